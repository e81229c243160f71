//! How many chunks may be in flight.
//!
//! A fixed number, or one that is searched for: doubled while that moves more bytes in the same time, and taken back when it
//! only makes requests wait longer. By Little's law both say the same: chunks in flight = rate x latency / chunk, so where
//! twice the depth does not bring a higher rate it has brought twice the latency.
//!
//! Pure: it is shown when how many bytes were finished, and answers how many chunks may be in flight.

use std::time::Duration;

use area::Pool;

/// Most chunks in flight that are tried unasked,
const DEPTH_AUTO_MAX: u32 = 64;
/// as long as they take no more memory than this, in bytes.
const DEPTH_AUTO_BYTES_MAX: u32 = 128 << 20;

/// A measurement is the median of this many slices, so that one pause of somebody else's does not decide. A test takes more
/// where it is not clear: then it costs little.
const SLICES: usize = 3;
const SLICES_OF_TEST: usize = 7;
/// Part of a measurement in the rate of the depth that is held: the world changes slowly.
const NEWS: f64 = 0.25;
/// A slice is at least so many times the depth in chunks, and lasts at least so long.
const SLICE_ROUNDS: usize = 2;
const SLICE_MIN: Duration = Duration::from_millis(4);
/// Twice the depth must bring this much to be kept,
const GAIN_OF_MORE: f64 = 1.08;
/// and half the depth this much: where they are equal, more also bridges pauses.
const GAIN_OF_LESS: f64 = 1.05;
/// Two slices are enough where both are this much better, or none is better at all.
const GAIN_CLEAR: f64 = 1.4;
/// A lesser gain is believed the second time, after the depth before it was measured anew: what comes later is often faster for
/// other reasons.
const GAIN_BELIEVED: f64 = 1.7;
/// Measurements from a test to the next. The first number doubles up to the second: a copy of any length spends next to
/// nothing on tests, two depths cannot take turns, and what changes in the middle of a long copy is still noticed.
const HOLD_MIN: u32 = 32;
const HOLD_MAX: u32 = 1024;
/// Where the chunks in flight are moved in less time than this there is hardly a latency to be hidden, and the first test comes after
/// [`HOLD_MIN`] too: memory that nobody has touched yet costs more than a short copy can gain.
const ROUND_SHORT: Duration = Duration::from_millis(2);

const _: () = assert!(DEPTH_AUTO_BYTES_MAX as usize >= Pool::AREA_BYTES_MAX);

/// The policy.
#[derive(Debug)]
pub(crate) struct Depth {
    chunks: usize,
    search: Option<Search>,
}

#[derive(Debug)]
struct Search {
    chunk_bytes: u32,
    max: usize,
    trial: Trial,
    /// The best depth known, and its bytes per second as measured last.
    held: usize,
    rate: f64,
    /// More was a little better; the depth held is measured once more before that is believed.
    doubt: bool,
    /// Length of the next rest, in measurements.
    hold: u32,
    meter: Meter,
}

/// What is being measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// The depth held, so many times more.
    Hold(u32),
    /// Twice the depth held. Less is tried after it unless it has helped before.
    More { helped: bool },
    /// Half the depth held.
    Less,
}

/// Measures one depth.
#[derive(Debug, Default)]
struct Meter {
    /// Chunks to let pass: they were begun at another depth, or beside something else.
    skip: usize,
    slice: Option<Slice>,
    /// Bytes per second of the slices so far.
    rates: Vec<f64>,
}

#[derive(Debug)]
struct Slice {
    since: Duration,
    chunks: usize,
    bytes: u64,
}

impl Depth {
    /// Always `chunks`.
    pub(crate) fn fixed(chunks: u32) -> Self {
        Self { chunks: chunks as usize, search: None }
    }

    /// Begins with `chunks` of `chunk_bytes`, and goes up to what the devices' queues hold together.
    pub(crate) fn adaptive(chunks: u32, chunk_bytes: u32, queues: u32) -> Self {
        let most = DEPTH_AUTO_MAX.min(DEPTH_AUTO_BYTES_MAX / chunk_bytes.max(1)).min(queues);
        let chunks = chunks as usize;
        let search = Search {
            chunk_bytes,
            max: chunks.max(most as usize),
            trial: Trial::Hold(1),
            held: chunks,
            rate: 0.0,
            doubt: false,
            hold: HOLD_MIN,
            // The first round also pays for memory that nobody has touched yet.
            meter: Meter::after(2 * chunks),
        };
        Self { chunks, search: Some(search) }
    }

    /// Chunks that may be in flight now.
    pub(crate) fn limit(&self) -> usize {
        self.chunks
    }

    /// A chunk was moved from end to end.
    pub(crate) fn finished(&mut self, now: Duration, bytes: u64) {
        let Some(search) = &mut self.search else { return };
        if !search.meter.add(now, bytes, self.chunks) {
            return;
        }
        let Some(chunks) = search.measured() else { return };
        if chunks != self.chunks {
            tracing::debug!(from = self.chunks, to = chunks, held = search.held, rate = search.rate, "depth");
        }
        search.meter = Meter::after(if chunks == self.chunks { 0 } else { chunks.max(self.chunks) });
        self.chunks = chunks;
    }

    /// Something else than the devices decides how fast it goes: zeroes made by name, a rate, want of memory, another phase.
    pub(crate) fn disturbed(&mut self) {
        if let Some(search) = &mut self.search {
            search.meter.slice = None;
            search.meter.skip = self.chunks;
        }
    }
}

impl Meter {
    fn after(skip: usize) -> Self {
        Self { skip, ..Self::default() }
    }

    /// Whether a slice is complete.
    fn add(&mut self, now: Duration, bytes: u64, depth: usize) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let fresh = Slice { since: now, chunks: 0, bytes: 0 };
        let Some(slice) = &mut self.slice else {
            self.slice = Some(fresh);
            return false;
        };
        slice.chunks += 1;
        slice.bytes += bytes;
        let passed = now.saturating_sub(slice.since);
        if slice.chunks < SLICE_ROUNDS * depth || passed < SLICE_MIN {
            return false;
        }
        self.rates.push(slice.bytes as f64 / passed.as_secs_f64());
        self.slice = Some(fresh);
        true
    }

    /// Bytes per second at this depth, once that is known well enough beside `other` at another depth, which it is to exceed
    /// by the factor `gain`.
    fn rate(&mut self, other: Option<(f64, f64)>) -> Option<f64> {
        self.rates.sort_by(f64::total_cmp);
        let (least, most) = (self.rates.first().copied()?, self.rates.last().copied()?);
        let count = self.rates.len();
        let is_enough = match other {
            None => count == SLICES,
            Some(_) if count < 2 => false,
            Some((other, gain)) => {
                let below = self.rates.iter().filter(|rate| **rate < other * gain).count();
                // More of the same would not move the median to the other side.
                most < other || least > other * GAIN_CLEAR || below.max(count - below) > SLICES_OF_TEST / 2
            }
        };
        is_enough.then(|| self.rates[count / 2])
    }
}

impl Search {
    /// The depth to go on with, if the last slice decided something.
    fn measured(&mut self) -> Option<usize> {
        let gain = match self.trial {
            Trial::Hold(_) => None,
            Trial::More { .. } => Some(GAIN_OF_MORE),
            Trial::Less => Some(GAIN_OF_LESS),
        };
        let rate = self.meter.rate(gain.map(|gain| (self.rate, gain)))?;
        Some(match self.trial {
            Trial::Hold(_) if self.rate == 0.0 && self.round(rate) < ROUND_SHORT => {
                self.rate = rate;
                self.hold(HOLD_MIN)
            }
            Trial::Hold(left) => {
                let news = if self.rate == 0.0 || self.doubt { 1.0 } else { NEWS };
                self.rate += news * (rate - self.rate);
                if left > 1 { self.hold(left - 1) } else { self.try_more(false) }
            }
            Trial::More { .. }
                if (GAIN_OF_MORE..GAIN_BELIEVED).contains(&(rate / self.rate)) && !self.doubt =>
            {
                self.doubt = true;
                self.hold(1)
            }
            Trial::More { .. } if rate >= self.rate * GAIN_OF_MORE => {
                self.doubt = false;
                (self.held, self.rate) = (self.held * 2, rate);
                self.try_more(true)
            }
            Trial::More { helped: false } => self.try_less(),
            Trial::Less if rate >= self.rate * GAIN_OF_LESS => {
                (self.held, self.rate) = (self.held / 2, rate);
                self.try_less()
            }
            Trial::More { helped: true } | Trial::Less => self.rest(),
        })
    }

    /// How long the chunks of the depth held are in flight at this rate: Little's law.
    fn round(&self, rate: f64) -> Duration {
        Duration::from_secs_f64(self.held as f64 * f64::from(self.chunk_bytes) / rate.max(1.0))
    }

    fn hold(&mut self, measurements: u32) -> usize {
        self.trial = Trial::Hold(measurements);
        self.held
    }

    fn rest(&mut self) -> usize {
        self.doubt = false;
        let measurements = self.hold;
        self.hold = (self.hold * 2).min(HOLD_MAX);
        self.hold(measurements)
    }

    fn try_more(&mut self, helped: bool) -> usize {
        if self.held * 2 > self.max {
            return if helped { self.rest() } else { self.try_less() };
        }
        self.trial = Trial::More { helped };
        self.held * 2
    }

    fn try_less(&mut self) -> usize {
        self.doubt = false;
        if self.held == 1 {
            return self.rest();
        }
        self.trial = Trial::Less;
        self.held / 2
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;
    use crate::scripted::Random;

    const CHUNK: u32 = 1 << 20;

    /// Two ends as queues: a request waits for those before it, is served, and takes a latency on top that others share.
    struct Pair {
        /// Microseconds beside each other, for each end.
        latency_us: [f64; 2],
        /// Microseconds one after the other for a chunk, for each end.
        service_us: [f64; 2],
        /// Both ends are one disk, which serves one request at a time,
        shared: bool,
        /// and takes this much longer for every request beyond four that wait.
        crowding: f64,
        /// Largest part by which a service varies; and one of 500 takes twenty times as long.
        noise: f64,
    }

    impl Pair {
        fn fast() -> Self {
            Self {
                latency_us: [60.0; 2],
                service_us: [190.0, 250.0],
                shared: false,
                crowding: 0.0,
                noise: 0.3,
            }
        }

        /// As `fast`, 2 ms further away at both ends.
        fn distant() -> Self {
            Self { latency_us: [2060.0; 2], ..Self::fast() }
        }

        fn one_disk() -> Self {
            Self { latency_us: [100.0; 2], service_us: [500.0; 2], shared: true, crowding: 0.08, noise: 0.3 }
        }

        /// Seconds for a copy, and how the depth went.
        fn copy(&self, depth: &mut Depth, chunks: usize, seed: u64) -> (f64, Vec<usize>) {
            let mut random = Random::new(seed);
            let mut events = BinaryHeap::new();
            let (mut begun, mut done, mut flying) = (0, 0, 0);
            let mut free_at = [0.0f64; 2];
            let mut waiting = 0usize;
            let (mut now, mut path) = (0.0f64, vec![depth.limit()]);
            let submit =
                |end: usize, now: f64, waiting: usize, free_at: &mut [f64; 2], random: &mut Random| {
                    let server = if self.shared { 0 } else { end };
                    let crowd = 1.0 + self.crowding * waiting.saturating_sub(4) as f64;
                    let jitter = 1.0 + self.noise * (random.below(1000) as f64 / 500.0 - 1.0);
                    let pause = if self.noise > 0.0 && random.one_in(500) { 20.0 } else { 1.0 };
                    free_at[server] =
                        free_at[server].max(now) + self.service_us[end] * crowd * jitter * pause;
                    free_at[server] + self.latency_us[end]
                };
            while done < chunks {
                while begun < chunks && flying < depth.limit() {
                    (begun, flying, waiting) = (begun + 1, flying + 1, waiting + 1);
                    let at = submit(0, now, waiting, &mut free_at, &mut random);
                    events.push(Reverse(((at * 1e3) as u64, 0)));
                }
                let Reverse((at, end)) = events.pop().expect("in flight");
                now = at as f64 / 1e3;
                if end == 0 {
                    let at = submit(1, now, waiting, &mut free_at, &mut random);
                    events.push(Reverse(((at * 1e3) as u64, 1)));
                } else {
                    (done, flying, waiting) = (done + 1, flying - 1, waiting - 1);
                    depth.finished(Duration::from_nanos(at), CHUNK.into());
                    if path.last() != Some(&depth.limit()) {
                        path.push(depth.limit());
                    }
                }
            }
            (now / 1e6, path)
        }

        fn fixed(&self, chunks: usize, depth: u32, seeds: std::ops::Range<u64>) -> f64 {
            seeds.map(|seed| self.copy(&mut Depth::fixed(depth), chunks, seed).0).sum()
        }

        /// Asserts that the search costs at most 5 % of the best fixed depth, for copies of 4 GiB and one of 32 GiB; gives
        /// where it ended.
        fn assert_near_the_best(&self) -> usize {
            let mut held = 0;
            for (chunks, seeds) in [(4 << 10, 1..9), (32 << 10, 9..10)] {
                let fixed = (0..=6).map(|power| self.fixed(chunks, 1 << power, seeds.clone()));
                let best = fixed.fold(f64::MAX, f64::min);
                let (mut all, mut paths) = (0.0, Vec::new());
                for seed in seeds {
                    let mut depth = Depth::adaptive(4, CHUNK, 64);
                    let (seconds, path) = self.copy(&mut depth, chunks, seed);
                    all += seconds;
                    paths.push((seconds, path));
                    held = depth.search.unwrap().held;
                }
                assert!(all < best * 1.05, "{:.3} times the best, {best:.3} s: {paths:?}", all / best);
            }
            held
        }
    }

    #[test]
    fn depth_fills_the_latency() {
        let pair = Pair { noise: 0.0, ..Pair::distant() };
        let one = pair.fixed(1024, 1, 0..1);
        for (depth, factor) in [(2, 1.9), (4, 3.7), (8, 7.0)] {
            let gain = one / pair.fixed(1024, depth, 0..1);
            assert!(gain > factor, "{depth} buffers: {gain:.2} times one");
        }
        // The knee: 4.56 ms of latency at a chunk in 250 us are 18 chunks.
        assert!(pair.fixed(1024, 16, 0..1) > 1.1 * pair.fixed(1024, 32, 0..1));
        assert!(pair.fixed(1024, 32, 0..1) < 1.03 * pair.fixed(1024, 64, 0..1));
    }

    #[test]
    fn a_fast_pair() {
        let held = Pair::fast().assert_near_the_best();
        assert!((4..=16).contains(&held), "{held}");
    }

    #[test]
    fn a_distant_pair() {
        let held = Pair::distant().assert_near_the_best();
        assert!((16..=64).contains(&held), "{held}");
    }

    #[test]
    fn one_disk_at_both_ends() {
        let held = Pair::one_disk().assert_near_the_best();
        assert!((2..=4).contains(&held), "{held}");
    }

    #[test]
    fn one_disk_that_suffers_from_depth() {
        let pair = Pair { shared: true, crowding: 0.2, ..Pair::one_disk() };
        let mut depth = Depth::adaptive(4, CHUNK, 64);
        let (_, path) = pair.copy(&mut depth, 4096, 3);
        assert!(depth.search.unwrap().held <= 4, "{path:?}");
    }

    #[test]
    fn it_does_not_oscillate() {
        for pair in [Pair::fast(), Pair::distant(), Pair::one_disk()] {
            let mut depth = Depth::adaptive(4, CHUNK, 64);
            // A terabyte. Each test changes it three times at most: there, to the other side, and back.
            let (seconds, path) = pair.copy(&mut depth, 1 << 20, 5);
            let (tests, held) = (path.len() as f64 / 3.0, depth.search.unwrap().held);
            assert!(tests < 8.0 + seconds / 10.0, "{tests} tests in {seconds} s: {path:?}");
            let late = &path[path.len() / 2..];
            assert!(late.iter().all(|depth| (held / 4..=held * 4).contains(depth)), "held {held}: {late:?}");
        }
    }

    #[test]
    fn what_disturbs_is_not_measured() {
        let mut depth = Depth::adaptive(4, CHUNK, 64);
        for round in 0..10_000u64 {
            // Each round a pause, as a rate makes one, and a few chunks at once.
            depth.disturbed();
            for chunk in 0..8 {
                depth
                    .finished(Duration::from_millis(round * 10) + Duration::from_micros(chunk), CHUNK.into());
            }
        }
        assert_eq!(depth.limit(), 4);
    }

    #[test]
    fn bounds() {
        let most = |chunk, queues| Depth::adaptive(4, chunk, queues).search.unwrap().max;
        assert_eq!(most(CHUNK, 64), 64);
        assert_eq!(most(CHUNK, 1000), 64);
        assert_eq!(most(CHUNK, 20), 20);
        assert_eq!(most(16 << 20, 64), 8, "memory");
        assert_eq!(most(0, 1), 4, "at least what it begins with");
        assert_eq!(Depth::adaptive(2, CHUNK, 2).limit(), 2);
        assert_eq!(Depth::fixed(5).limit(), 5);
    }
}
