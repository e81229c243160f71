//! The number of chunks in flight.
//!
//! A fixed number, or the result of a search: the depth is doubled while that increases the rate, and reduced when it
//! only increases the latency. By Little's law chunks in flight = rate x latency / chunk, so if twice the depth does
//! not increase the rate, it has doubled the latency.
//!
//! Pure: the input is when how many bytes were finished, the output is the number of chunks that may be in flight.

use std::time::Duration;

use area::Pool;

use crate::plan::DEPTH_MAX;

const DEPTH_AUTO_MAX: u32 = 64;
/// Bound of the memory of the chunks in flight in a search, in bytes.
const DEPTH_AUTO_BYTES_MAX: u32 = 128 << 20;
/// Bound of the memory of the chunks in flight that a network asks for, in bytes: half of a loop's pool.
const PATH_BYTES_MAX: u64 = 256 << 20;

/// A measurement is the median of this many slices, so that one pause has no effect; up to `SLICES_OF_TEST` if close.
const SLICES: usize = 3;
const SLICES_OF_TEST: usize = 7;
/// Weight of a new measurement in the rate of the held depth, which changes slowly.
const NEW_RATE_WEIGHT: f64 = 0.25;
/// Minimum of a slice: this multiple of the depth in chunks, and this duration.
const SLICE_ROUNDS: usize = 2;
const SLICE_MIN: Duration = Duration::from_millis(4);
/// Twice the depth is kept if the rate increases by at least this factor.
const GAIN_OF_MORE: f64 = 1.08;
/// Half the depth is kept if the rate increases by at least this factor: at equal rates the higher depth is preferred,
/// since it also bridges pauses.
const GAIN_OF_LESS: f64 = 1.05;
/// Two slices suffice if both are better by this factor, or neither is better.
const GAIN_CLEAR: f64 = 1.4;
/// A smaller gain is accepted only the second time, after the previous depth was measured again: later measurements are
/// often faster for other reasons.
const GAIN_CERTAIN: f64 = 1.7;
/// Measurements between two tests; the first value doubles up to the second. So a copy of any length spends little time
/// on tests, the depth does not alternate, and a change during a long copy is still detected.
const HOLD_MIN: u32 = 32;
const HOLD_MAX: u32 = 1024;
/// If the chunks in flight are transferred in less than this, there is hardly any latency to hide, and the first test
/// also waits for [`HOLD_MIN`] measurements: the first use of additional memory costs more than a short copy can gain.
const ROUND_SHORT: Duration = Duration::from_millis(2);

const _: () = assert!(DEPTH_AUTO_BYTES_MAX as usize >= Pool::AREA_BYTES_MAX);

/// The current depth and, unless it is fixed, the search. `finished` drives it.
#[derive(Debug)]
pub(crate) struct Depth {
    chunks: usize,
    /// Chunks that a network between the ends holds: the depth is at least that, whatever a search has found.
    path: usize,
    search: Option<Search>,
}

#[derive(Debug)]
struct Search {
    chunk_bytes: u32,
    max: usize,
    trial: Trial,
    /// The best depth so far, and its last measured rate in bytes per second.
    held: usize,
    rate: f64,
    /// The higher depth was slightly better; it is accepted only after the held depth was measured again.
    must_confirm: bool,
    /// Measurements until the next test.
    hold: u32,
    meter: Meter,
}

/// The depth being measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// The held depth, for so many more measurements.
    Hold(u32),
    /// Twice the held depth. Half of it is tried next, unless doubling has helped before.
    More { helped: bool },
    /// Half the held depth.
    Less,
}

#[derive(Debug, Default)]
struct Meter {
    /// Chunks to ignore: they started at another depth, or during a disturbance.
    skip: usize,
    slice: Option<Slice>,
    /// Rates of the completed slices, in bytes per second.
    rates: Vec<f64>,
}

#[derive(Debug)]
struct Slice {
    since: Duration,
    chunks: usize,
    bytes: u64,
}

impl Depth {
    pub(crate) fn fixed(chunks: u32) -> Self {
        Self { chunks: chunks as usize, path: 0, search: None }
    }

    /// Starts with `chunks` of `chunk_bytes`; the bound is the sum of the devices' queue depths, `queues`.
    pub(crate) fn adaptive(chunks: u32, chunk_bytes: u32, queues: u32) -> Self {
        let most = DEPTH_AUTO_MAX.min(DEPTH_AUTO_BYTES_MAX / chunk_bytes.max(1)).min(queues);
        let chunks = chunks as usize;
        let search = Search {
            chunk_bytes,
            max: chunks.max(most as usize),
            trial: Trial::Hold(1),
            held: chunks,
            rate: 0.0,
            must_confirm: false,
            hold: HOLD_MIN,
            // The first round includes the first use of its memory, so it is skipped.
            meter: Meter::after(2 * chunks),
        };
        Self { chunks, path: 0, search: Some(search) }
    }

    pub(crate) fn limit(&self) -> usize {
        self.chunks.max(self.path)
    }

    /// Bytes worth having in flight on a network between the ends. A fixed depth remains.
    pub(crate) fn on_path(&mut self, bytes: u64, chunk: u32) {
        if self.search.is_some() {
            let chunks = bytes.min(PATH_BYTES_MAX).div_ceil(chunk.max(1).into());
            self.path = chunks.min(DEPTH_MAX.into()) as usize;
        }
    }

    pub(crate) fn finished(&mut self, now: Duration, bytes: u64) {
        if self.path > self.chunks {
            // More are in flight than at the depth that the search measures.
            return self.disturbed();
        }
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

    /// The rate is limited by something else than the devices: zeroing, the rate limit, memory, a new phase.
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

    /// Adds a finished chunk. Returns whether a slice is complete.
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

    /// The rate at this depth in bytes per second, once it is sufficiently certain in comparison with `other` at
    /// another depth, which it has to exceed by the factor `gain`.
    fn rate(&mut self, other: Option<(f64, f64)>) -> Option<f64> {
        self.rates.sort_by(f64::total_cmp);
        let (least, most) = (self.rates.first().copied()?, self.rates.last().copied()?);
        let count = self.rates.len();
        let is_enough = match other {
            None => count == SLICES,
            Some(_) if count < 2 => false,
            Some((other, gain)) => {
                let below = self.rates.iter().filter(|rate| **rate < other * gain).count();
                // Further slices cannot move the median to the other side.
                most < other || least > other * GAIN_CLEAR || below.max(count - below) > SLICES_OF_TEST / 2
            }
        };
        is_enough.then(|| self.rates[count / 2])
    }
}

impl Search {
    /// The new depth, if the last slice has decided a measurement.
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
                let weight = if self.rate == 0.0 || self.must_confirm { 1.0 } else { NEW_RATE_WEIGHT };
                self.rate += weight * (rate - self.rate);
                if left > 1 { self.hold(left - 1) } else { self.try_more(false) }
            }
            Trial::More { .. }
                if (GAIN_OF_MORE..GAIN_CERTAIN).contains(&(rate / self.rate)) && !self.must_confirm =>
            {
                self.must_confirm = true;
                self.hold(1)
            }
            Trial::More { .. } if rate >= self.rate * GAIN_OF_MORE => {
                self.must_confirm = false;
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

    /// The duration for which the chunks of the held depth are in flight at this rate, by Little's law.
    fn round(&self, rate: f64) -> Duration {
        Duration::from_secs_f64(self.held as f64 * f64::from(self.chunk_bytes) / rate.max(1.0))
    }

    fn hold(&mut self, measurements: u32) -> usize {
        self.trial = Trial::Hold(measurements);
        self.held
    }

    fn rest(&mut self) -> usize {
        self.must_confirm = false;
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
        self.must_confirm = false;
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

    /// A model of two ends as queues: a request waits for earlier ones, is served, and has a latency that overlaps with
    /// others.
    struct Pair {
        /// Overlapping microseconds per request, for each end.
        latency_us: [f64; 2],
        /// Serial microseconds per chunk, for each end.
        service_us: [f64; 2],
        /// Both ends are one disk, which serves one request at a time.
        shared: bool,
        /// Part by which each waiting request beyond four lengthens the service of a shared disk.
        crowding: f64,
        /// Largest relative variation of a service; in addition one of 500 takes twenty times as long.
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

        /// As `fast`, with 2 ms more latency at both ends.
        fn distant() -> Self {
            Self { latency_us: [2060.0; 2], ..Self::fast() }
        }

        fn one_disk() -> Self {
            Self { latency_us: [100.0; 2], service_us: [500.0; 2], shared: true, crowding: 0.08, noise: 0.3 }
        }

        /// The seconds of a copy, and the sequence of depths.
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

        /// Asserts that the search costs at most 5 % of the best fixed depth, for copies of 4 GiB and one of 32 GiB;
        /// returns the final depth.
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
        // The knee: 4.56 ms of latency at one chunk per 250 us are 18 chunks.
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
            // A terabyte. Each test changes the depth at most three times: up, down, and back.
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
            // In each round a pause, as by a rate limit, and then a few chunks at once.
            depth.disturbed();
            for chunk in 0..8 {
                depth
                    .finished(Duration::from_millis(round * 10) + Duration::from_micros(chunk), CHUNK.into());
            }
        }
        assert_eq!(depth.limit(), 4);
    }

    #[test]
    fn a_path_is_filled_whatever_the_search_has_found() {
        let mut depth = Depth::adaptive(4, CHUNK, 64);
        for (bytes, chunk, limit) in [
            (0, CHUNK, 4),
            (3 << 20, CHUNK, 4),
            ((100 << 20) + 1, CHUNK, 101),
            (u64::MAX, CHUNK, 256),
            (u64::MAX, 16 << 20, 16),
            (1 << 30, 4096, 512),
            (0, 0, 4),
        ] {
            depth.on_path(bytes, chunk);
            assert_eq!(depth.limit(), limit, "{bytes} bytes in chunks of {chunk}");
        }
        let mut fixed = Depth::fixed(2);
        fixed.on_path(1 << 30, CHUNK);
        assert_eq!(fixed.limit(), 2);
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
