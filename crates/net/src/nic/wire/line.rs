//! What happens to frames on their way: a path with delay, a bottleneck with a queue, loss, reordering, duplication.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::control::Wire;

/// Bytes on the way and in the queue; when there are more, the sender waits.
const BYTES_MAX: usize = 32 << 20;
/// The bottleneck's queue holds two delays, a product of bandwidth and delay, but no less than this.
const QUEUE_US_MIN: u64 = 20_000;
/// A reordered frame arrives this much later than it would: an eighth of the delay more, frames sent after it overtake it.
const LATE_US_MIN: u64 = 200;
/// Buffers kept for the next frames.
const SPARE_MAX: usize = 64;

/// Frames by the time at which they arrive, in microseconds of the caller's clock.
#[derive(Debug)]
pub(super) struct Line {
    settings: Wire,
    random: u64,
    /// By time of arrival, then in the order in which they entered.
    frames: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    bytes: usize,
    entered: u64,
    /// When the bottleneck has sent all that it has, nanoseconds.
    free_ns: u64,
    lost: u64,
    spare: Vec<Vec<u8>>,
}

impl Line {
    pub(super) fn new(settings: Wire) -> Self {
        Self {
            settings,
            random: settings.seed,
            frames: BinaryHeap::new(),
            bytes: 0,
            entered: 0,
            free_ns: 0,
            lost: 0,
            spare: Vec::new(),
        }
    }

    /// Uniform in 0..1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ mixed >> 31) >> 11) as f64) / (1u64 << 53) as f64
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX
    }

    /// A frame enters. What becomes of it depends on the seed and on how many entered before, and, of the queue, on time.
    pub(super) fn enter(&mut self, frame: &[u8], now_us: u64) {
        // The same number of draws for each frame: a share that is changed moves no other decision.
        let [lost, reordered, duplicated] = std::array::from_fn(|_| self.draw());
        if lost < self.settings.loss {
            self.lost += 1;
            return;
        }
        let delay = self.settings.delay_us;
        let late = if reordered < self.settings.reordering { LATE_US_MIN + delay / 8 } else { 0 };
        for _ in 0..1 + u32::from(duplicated < self.settings.duplication) {
            let Some(sent_us) = self.pass_bottleneck(frame.len(), now_us) else {
                self.lost += 1;
                return;
            };
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(frame);
            self.bytes += bytes.len();
            self.frames.push(Reverse((sent_us + delay + late, self.entered, bytes)));
            self.entered += 1;
        }
    }

    /// When the bottleneck has sent a frame; `None` if its queue is full.
    fn pass_bottleneck(&mut self, bytes: usize, now_us: u64) -> Option<u64> {
        if self.settings.bits_per_s == 0 {
            return Some(now_us);
        }
        let now_ns = now_us.saturating_mul(1000);
        let begin = self.free_ns.max(now_ns);
        if begin - now_ns > 1000 * (2 * self.settings.delay_us).max(QUEUE_US_MIN) {
            return None;
        }
        self.free_ns = begin + bytes as u64 * 8 * 1_000_000_000 / self.settings.bits_per_s;
        Some(self.free_ns.div_ceil(1000))
    }

    /// The next frame that has arrived; it stays until [`Line::remove`].
    pub(super) fn due(&self, now_us: u64) -> Option<&[u8]> {
        self.frames
            .peek()
            .filter(|Reverse((due, ..))| *due <= now_us)
            .map(|Reverse((_, _, bytes))| &bytes[..])
    }

    pub(super) fn remove(&mut self) {
        if let Some(Reverse((_, _, bytes))) = self.frames.pop() {
            self.bytes -= bytes.len();
            if self.spare.len() < SPARE_MAX {
                self.spare.push(bytes);
            }
        }
    }

    /// When the next frame arrives.
    pub(super) fn next(&self) -> Option<u64> {
        self.frames.peek().map(|Reverse((due, ..))| *due)
    }

    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.bytes = 0;
    }

    /// Frames lost by chance, and at the bottleneck.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `count` frames, one each `gap_us`; returns (number, time of arrival) in the order of arrival.
    fn run(settings: Wire, count: u32, bytes: usize, gap_us: u64) -> (Vec<(u32, u64)>, u64) {
        let mut line = Line::new(settings);
        let mut arrived = Vec::new();
        let mut now = 0;
        let mut number = 0;
        loop {
            while number < count && u64::from(number) * gap_us <= now {
                let mut frame = vec![0; bytes];
                frame[..4].copy_from_slice(&number.to_be_bytes());
                line.enter(&frame, now);
                number += 1;
            }
            while let Some(frame) = line.due(now) {
                arrived.push((u32::from_be_bytes(*frame.first_chunk().unwrap()), now));
                line.remove();
            }
            let entry = (number < count).then(|| u64::from(number) * gap_us);
            let Some(next) = [entry, line.next()].into_iter().flatten().min() else { break };
            now = next.max(now + u64::from(next <= now));
        }
        assert_eq!(line.bytes, 0);
        (arrived, line.lost())
    }

    #[test]
    fn without_settings_frames_arrive_at_once_and_in_order() {
        let (arrived, lost) = run(Wire::default(), 100, 64, 10);
        let expected: Vec<_> = (0..100).map(|number| (number, u64::from(number) * 10)).collect();
        assert_eq!((arrived, lost), (expected, 0));
    }

    #[test]
    fn delay_and_rate_say_when_a_frame_arrives() {
        // 1250 bytes at 10 Mb/s are 1 ms.
        let settings = Wire { delay_us: 5000, bits_per_s: 10_000_000, ..Wire::default() };
        let (arrived, lost) = run(settings, 10, 1250, 0);
        let expected: Vec<_> = (0..10).map(|number| (number, 6000 + u64::from(number) * 1000)).collect();
        assert_eq!((arrived, lost), (expected, 0));
    }

    #[test]
    fn the_queue_of_the_bottleneck_is_bounded() {
        // 20 ms of queue at 1 ms a frame, and the one that is being sent.
        let settings = Wire { bits_per_s: 10_000_000, ..Wire::default() };
        let (arrived, lost) = run(settings, 100, 1250, 0);
        assert_eq!((arrived.len(), lost), (21, 79));
        let settings = Wire { delay_us: 30_000, ..settings };
        let (arrived, lost) = run(settings, 100, 1250, 0);
        assert_eq!((arrived.len(), lost), (61, 39));
    }

    #[test]
    fn shares_are_kept_and_the_same_seed_does_the_same() {
        let seed = 17;
        let settings = Wire {
            delay_us: 10_000,
            loss: 0.01,
            reordering: 0.02,
            duplication: 0.03,
            seed,
            ..Wire::default()
        };
        let count = 100_000;
        let (arrived, lost) = run(settings, count, 64, 10);
        let late = arrived.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
        let again = arrived.len() + lost as usize - count as usize;
        let near = |value: f64, share: f64| (value / f64::from(count) / share - 1.0).abs() < 0.1;
        assert!(near(lost as f64, 0.01), "seed {seed}: {lost} lost");
        assert!(near(late as f64, 0.02), "seed {seed}: {late} late");
        assert!(near(again as f64, 0.03), "seed {seed}: {again} twice");
        assert_eq!(run(settings, count, 64, 10).0, arrived, "seed {seed}");
        assert_ne!(run(Wire { seed: seed + 1, ..settings }, count, 64, 10).0, arrived, "seed {seed}");
    }
}
