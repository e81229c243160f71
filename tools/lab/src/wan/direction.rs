//! One direction of a path as a machine without clock and I/O: frames go in, and come out when they are due.
//!
//! Drive it by [`Direction::handle_frame`] for every arriving frame, then [`Direction::poll_deliver`] until it returns
//! `None`, then wait for the next frame or for [`Direction::poll_timeout`]. Times are nanoseconds from any origin.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::frame::{Frame, OFFLOAD_BYTES};
use super::settings::Settings;

/// Frames held at most; one that arrives beyond is lost. It must exceed the greatest bandwidth-delay product.
const HELD_BYTES_MAX: usize = 512 << 20;
/// A frame is delivered so long before it is due at most: a sleep would take longer.
const EARLY_NS_MAX: u64 = 5_000;

/// Figures since the start or the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that arrived, as large as they were, and the bytes of their IP packets.
    pub frames: u64,
    pub bytes: u64,
    /// Bytes of the IP packets that left at the other side.
    pub delivered_bytes: u64,
    pub segments: u64,
    /// Segments lost by probability, by number, or because the path was down.
    pub lost: u64,
    /// Segments that found the queue of the bottleneck full.
    pub tail_drops: u64,
    pub reordered: u64,
    pub duplicated: u64,
    /// Segments lost because this program held too much. Any of them makes a measurement invalid.
    pub overflows: u64,
    /// Frames that the other interface did not accept. Any of them makes a measurement invalid.
    pub refused: u64,
    /// Greatest length of the bottleneck's queue.
    pub queue_bytes_max: u64,
    /// Greatest time by which a frame was delivered late.
    pub late_max_ns: u64,
}

/// A frame's passage behind the bottleneck, before the place of loss.
#[derive(Clone, Copy, Debug)]
pub struct Passage<'a> {
    /// Time at which the frame has left the bottleneck.
    pub left_ns: u64,
    /// Time at which it arrives, or would have arrived.
    pub due_ns: u64,
    pub is_lost: bool,
    /// From the IP header on.
    pub packet: &'a [u8],
}

/// What happens to a segment behind the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Lost,
    Late,
    Twice,
    /// It did not get past the bottleneck.
    Dropped,
}

#[derive(Debug)]
pub struct Direction {
    settings: Settings,
    seed: u64,
    counters: Counters,
    /// Number of the next segment.
    number: u64,
    /// Time at which the bottleneck has sent all that it accepted.
    free_ns: u64,
    /// Greatest due time of the frames that keep their order.
    due_ns_max: u64,
    held: BinaryHeap<Held>,
    held_bytes: usize,
    /// Number of the next held frame.
    sequence: u64,
    /// Fates of the current frame's segments; kept to save allocations.
    fates: Vec<(Fate, u64)>,
}

impl Direction {
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            seed,
            counters: Counters::default(),
            number: 0,
            free_ns: 0,
            due_ns_max: 0,
            held: BinaryHeap::new(),
            held_bytes: 0,
            sequence: 0,
            fates: Vec::new(),
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Applies to frames that arrive from now on.
    pub fn set(&mut self, settings: Settings) {
        self.settings = settings;
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }

    pub(super) fn count_refused(&mut self) {
        self.counters.refused += 1;
    }

    /// Accepts a frame: offload header and IP packet. `observe` sees what leaves the bottleneck.
    pub fn handle_frame(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        mut observe: Option<&mut dyn FnMut(Passage<'_>)>,
    ) {
        let Some(frame) = Frame::parse(bytes) else { return };
        let count = frame.segments();
        self.counters.frames += 1;
        self.counters.bytes += frame.packet().len() as u64;
        self.counters.segments += count as u64;
        let mut fates = std::mem::take(&mut self.fates);
        fates.clear();
        for segment in 0..count {
            let fate = self.fate();
            fates.push(match self.depart(now_ns, frame.wire_bytes(segment)) {
                Some(left_ns) => (fate, left_ns),
                None => (Fate::Dropped, now_ns),
            });
        }
        let mut start = 0;
        let in_segments = self.settings.in_segments;
        // Segments of one fate stay one frame, which leaves the bottleneck with the last of them.
        for run in fates.chunk_by(|a, b| a.0 == b.0 && !in_segments) {
            let end = start + run.len();
            let (fate, left_ns) = (run[0].0, run[run.len() - 1].1);
            self.count(fate, run.len() as u64);
            let is_lost = fate == Fate::Lost;
            if fate != Fate::Dropped && (!is_lost || observe.is_some()) {
                let piece = frame.extract(start..end);
                let due_ns = self.due(fate, left_ns, self.number - (count - start) as u64);
                if let (Some(observe), Some(piece)) = (observe.as_mut(), Frame::parse(&piece)) {
                    observe(Passage { left_ns, due_ns, is_lost, packet: piece.packet() });
                }
                if !is_lost {
                    self.hold(piece, due_ns, fate, run.len() as u64);
                }
            }
            start = end;
        }
        self.fates = fates;
    }

    /// The next frame that is due.
    pub fn poll_deliver(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        self.held.peek().filter(|first| first.due_ns <= now_ns.saturating_add(EARLY_NS_MAX))?;
        let Held { due_ns, frame, .. } = self.held.pop()?;
        self.held_bytes -= frame.len();
        self.counters.delivered_bytes += (frame.len() - OFFLOAD_BYTES) as u64;
        self.counters.late_max_ns = self.counters.late_max_ns.max(now_ns.saturating_sub(due_ns));
        Some(frame)
    }

    /// Time at which the next frame is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.held.peek().map(|first| first.due_ns)
    }

    /// The fate of the next segment, which depends on the settings, the seed and the segment's number only.
    fn fate(&mut self) -> Fate {
        let number = self.number;
        self.number += 1;
        let Settings { down, drop_nth, loss, reorder, duplicate, .. } = self.settings;
        let hit = |salt, probability: f64| probability > 0.0 && chance(self.seed, salt, number) < probability;
        let is_nth = drop_nth > 0 && (number + 1).is_multiple_of(drop_nth);
        if down || is_nth || hit(1, loss) {
            Fate::Lost
        } else if hit(2, reorder) {
            Fate::Late
        } else if hit(3, duplicate) {
            Fate::Twice
        } else {
            Fate::Arrives
        }
    }

    /// Time at which a segment has left the bottleneck; `None` if the queue has no room for it.
    fn depart(&mut self, now_ns: u64, wire_bytes: u64) -> Option<u64> {
        let Some(rate) = self.settings.rate_bits_per_s.filter(|rate| *rate > 0.0) else {
            return Some(now_ns);
        };
        if self.settings.down {
            return Some(now_ns);
        }
        let begins = self.free_ns.max(now_ns);
        let queue = ((begins - now_ns) as f64 * rate / 8e9) as u64 + wire_bytes;
        if queue > self.settings.queue_bytes {
            return None;
        }
        self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(queue);
        self.free_ns = begins + (wire_bytes as f64 * 8e9 / rate) as u64;
        Some(self.free_ns)
    }

    fn due(&mut self, fate: Fate, left_ns: u64, number: u64) -> u64 {
        let Settings { delay, jitter, reorder_by, .. } = self.settings;
        let jitter = jitter.as_nanos() as f64 * chance(self.seed, 4, number);
        let due = left_ns + delay.as_nanos() as u64 + jitter as u64;
        match fate {
            Fate::Late => due + reorder_by.as_nanos() as u64,
            Fate::Lost => due,
            _ => {
                self.due_ns_max = self.due_ns_max.max(due);
                self.due_ns_max
            }
        }
    }

    fn count(&mut self, fate: Fate, segments: u64) {
        match fate {
            Fate::Arrives => {}
            Fate::Lost => self.counters.lost += segments,
            Fate::Late => self.counters.reordered += segments,
            Fate::Twice => self.counters.duplicated += segments,
            Fate::Dropped => self.counters.tail_drops += segments,
        }
    }

    fn hold(&mut self, frame: Vec<u8>, due_ns: u64, fate: Fate, segments: u64) {
        let again = (fate == Fate::Twice).then(|| frame.clone());
        for frame in [Some(frame), again].into_iter().flatten() {
            if self.held_bytes + frame.len() > HELD_BYTES_MAX {
                self.counters.overflows += segments;
                continue;
            }
            self.held_bytes += frame.len();
            self.held.push(Held { due_ns, sequence: self.sequence, frame });
            self.sequence += 1;
        }
    }
}

#[derive(Debug)]
struct Held {
    due_ns: u64,
    sequence: u64,
    frame: Vec<u8>,
}

/// The greatest is the one that is due first; of several at one time, the one that was held first.
impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due_ns, other.sequence).cmp(&(self.due_ns, self.sequence))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Held {}

/// A number from 0 to 1 (exclusive) that depends on its arguments only: SplitMix64 (Steele, Lea, Flood 2014).
fn chance(seed: u64, salt: u64, number: u64) -> f64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = mix(mix(seed.wrapping_mul(STEP).wrapping_add(salt)).wrapping_add(number.wrapping_mul(STEP)));
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::frame::tests::large;
    use super::*;

    const MS: u64 = 1_000_000;

    /// A frame of one segment: 1500 bytes with a number.
    fn small(number: u32) -> Vec<u8> {
        let mut frame = vec![0; OFFLOAD_BYTES + 1500];
        frame[OFFLOAD_BYTES] = 0x45;
        frame[OFFLOAD_BYTES + 100..][..4].copy_from_slice(&number.to_be_bytes());
        frame
    }

    fn number(frame: &[u8]) -> u32 {
        u32::from_be_bytes(frame[OFFLOAD_BYTES + 100..][..4].try_into().unwrap())
    }

    fn settings() -> Settings {
        Settings::new(Duration::from_millis(20), None)
    }

    /// Delivers at exactly the due times until nothing is held.
    fn drain(direction: &mut Direction) -> Vec<(u64, Vec<u8>)> {
        let (mut delivered, before) = (Vec::new(), direction.counters.delivered_bytes);
        while let Some(due) = direction.poll_timeout() {
            let frame = direction.poll_deliver(due).unwrap();
            delivered.push((due, frame));
        }
        assert_eq!(direction.held_bytes, 0);
        let bytes: usize = delivered.iter().map(|(_, frame)| frame.len() - OFFLOAD_BYTES).sum();
        assert_eq!(direction.counters.delivered_bytes - before, bytes as u64);
        delivered
    }

    /// The numbers of `count` small frames, one each 0.1 ms, in the order of their delivery.
    fn numbers(settings: Settings, seed: u64, count: u32) -> (Vec<u32>, Counters) {
        let mut direction = Direction::new(settings, seed);
        for index in 0..count {
            direction.handle_frame(&small(index), u64::from(index) * MS / 10, None);
        }
        let delivered = drain(&mut direction);
        (delivered.iter().map(|(_, frame)| number(frame)).collect(), direction.counters())
    }

    #[test]
    fn frames_arrive_in_order_after_the_delay() {
        let mut direction = Direction::new(settings(), 1);
        for index in 0..3 {
            direction.handle_frame(&small(index), 7 * MS + u64::from(index), None);
        }
        assert_eq!(direction.poll_deliver(16 * MS), None);
        let delivered = drain(&mut direction);
        let expected: Vec<_> = (0..3).map(|index| (17 * MS + u64::from(index), small(index))).collect();
        assert_eq!(delivered, expected);
    }

    #[test]
    fn fates_are_reproduced_by_a_seed() {
        let damaged = |loss, reorder, duplicate| Settings { loss, reorder, duplicate, ..settings() };
        for (settings, seed, lost, reordered, duplicated) in [
            (damaged(0.01, 0.0, 0.0), 1, 94, 0, 0),
            (damaged(0.01, 0.0, 0.0), 2, 95, 0, 0),
            (damaged(0.01, 0.02, 0.03), 1, 94, 192, 275),
            (damaged(0.0, 0.0, 1.0), 1, 0, 0, 10_000),
            (Settings { drop_nth: 100, ..settings() }, 1, 100, 0, 0),
            (Settings { down: true, ..settings() }, 1, 10_000, 0, 0),
        ] {
            let (delivered, counters) = numbers(settings, seed, 10_000);
            assert_eq!(
                (counters.lost, counters.reordered, counters.duplicated),
                (lost, reordered, duplicated)
            );
            assert_eq!(delivered.len() as u64, 10_000 - lost + duplicated);
            assert_eq!(numbers(settings, seed, 10_000), (delivered, counters));
        }
    }

    #[test]
    fn a_large_frame_loses_the_segments_that_small_ones_would() {
        let settings = Settings { loss: 0.1, drop_nth: 7, reorder: 0.1, ..settings() };
        let payload: Vec<u8> = (0..40_000u32).map(|at| (at / 1000) as u8).collect();
        let mut one = Direction::new(settings, 5);
        one.handle_frame(&large(4, 1000, &payload), 0, None);
        let mut many = Direction::new(settings, 5);
        let mut parts = Direction::new(Settings { in_segments: true, ..self::settings() }, 5);
        parts.handle_frame(&large(4, 1000, &payload), 0, None);
        let parts = drain(&mut parts);
        assert_eq!(parts.len(), 40);
        for (_, part) in parts {
            many.handle_frame(&part, 0, None);
        }
        let bytes = |direction: &mut Direction| -> Vec<u8> {
            let frames = drain(direction);
            frames.iter().flat_map(|(_, frame)| frame[OFFLOAD_BYTES + 52..].to_vec()).collect()
        };
        let (seen_one, seen_many) = (bytes(&mut one), bytes(&mut many));
        assert_eq!(seen_one, seen_many);
        assert!(one.counters.lost > 5 && one.counters.reordered > 0, "{:?}", one.counters);
        let counted = |direction: &Direction| {
            let Counters { segments, lost, reordered, .. } = direction.counters;
            (segments, lost, reordered)
        };
        assert_eq!(counted(&one), counted(&many));
    }

    #[test]
    fn the_bottleneck_spaces_frames_and_drops_those_beyond_its_queue() {
        // 1538 bytes take 1.538 ms; six of them are in the queue of 10,000 bytes.
        let slow = Settings { rate_bits_per_s: Some(8e6), queue_bytes: 10_000, ..settings() };
        let mut direction = Direction::new(slow, 1);
        for index in 0..10 {
            direction.handle_frame(&small(index), 0, None);
        }
        let due: Vec<_> = drain(&mut direction).iter().map(|(due, frame)| (*due, number(frame))).collect();
        let expected: Vec<_> =
            (0..6).map(|index| (10 * MS + u64::from(index + 1) * 1_538_000, index)).collect();
        assert_eq!(due, expected);
        assert_eq!((direction.counters.tail_drops, direction.counters.queue_bytes_max), (4, 6 * 1538));
        // A large frame loses its end only.
        let mut direction = Direction::new(slow, 1);
        direction.handle_frame(&large(4, 1448, &[0; 10 * 1448]), 0, None);
        let delivered = drain(&mut direction);
        let sizes: Vec<_> = delivered.iter().map(|(due, frame)| (*due, frame.len())).collect();
        assert_eq!(sizes, [(10 * MS + 6 * 1_538_000, OFFLOAD_BYTES + 52 + 6 * 1448)]);
        assert_eq!(direction.counters.tail_drops, 4);
    }

    #[test]
    fn settings_change_while_frames_are_on_the_way() {
        let mut direction = Direction::new(settings(), 1);
        direction.handle_frame(&small(0), 0, None);
        direction.set(Settings { down: true, ..settings() });
        direction.handle_frame(&small(1), MS, None);
        direction.set(Settings { delay: Duration::from_millis(2), ..settings() });
        direction.handle_frame(&small(2), 2 * MS, None);
        direction.handle_frame(&small(3), 12 * MS, None);
        let delivered: Vec<_> =
            drain(&mut direction).iter().map(|(due, frame)| (*due, number(frame))).collect();
        // The second is not before the first, though its path is shorter.
        assert_eq!(delivered, [(10 * MS, 0), (10 * MS, 2), (14 * MS, 3)]);
    }

    #[test]
    fn jitter_adds_delay_and_keeps_the_order() {
        let jitter = Settings { jitter: Duration::from_millis(5), ..settings() };
        let (delivered, _) = numbers(jitter, 3, 1000);
        assert!(delivered.is_sorted() && delivered.len() == 1000);
        let mut direction = Direction::new(jitter, 3);
        let mut added = Vec::new();
        for index in 0..1000 {
            direction.handle_frame(&small(index), u64::from(index) * 100 * MS, None);
            added.extend(
                drain(&mut direction).iter().map(|(due, _)| due - u64::from(index) * 100 * MS - 10 * MS),
            );
        }
        let mean = added.iter().sum::<u64>() / 1000;
        assert!(added.iter().all(|added| *added < 5 * MS) && mean.abs_diff(2_500_000) < 200_000, "{mean}");
    }

    #[test]
    fn an_observer_sees_what_leaves_the_bottleneck_and_what_is_lost_behind_it() {
        let mut direction = Direction::new(Settings { drop_nth: 2, ..settings() }, 1);
        let mut seen = Vec::new();
        for index in 0..4 {
            let mut observe = |passage: Passage<'_>| {
                seen.push((passage.left_ns, passage.due_ns, passage.is_lost, passage.packet.len()));
            };
            direction.handle_frame(&small(index), u64::from(index) * MS, Some(&mut observe));
        }
        let expected: Vec<_> = (0..4).map(|at| (at * MS, (at + 10) * MS, at % 2 == 1, 1500)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn lateness_is_that_of_the_latest_delivery() {
        let mut direction = Direction::new(settings(), 1);
        direction.handle_frame(&small(0), 0, None);
        direction.handle_frame(&small(1), MS, None);
        assert!(direction.poll_deliver(13 * MS).is_some() && direction.poll_deliver(13 * MS).is_some());
        assert_eq!(direction.counters().late_max_ns, 3 * MS);
        direction.reset_counters();
        assert_eq!(direction.counters(), Counters::default());
    }
}
