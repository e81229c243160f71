//! How much of a copy may be in flight on a disk that other programs read.
//!
//! The disk's counter shows the reads of other programs: all reads less those of the copy. While there are none, nothing
//! is bounded and nothing is measured. Otherwise the copy stops until nothing of it is in flight, for some 30 ms: reads
//! that the disk completes then are certainly of others, and small reads of the copy ("probes") show the latency
//! without it. Then the amount in flight follows the latency of probes beside the copy: it stays near twice that
//! value.
//!
//! The latency of the others cannot be taken from the disk's counters: they add up the time of all reads, and that of
//! the copy's own is known to some 10 us each, which is more than all of the others' time if those are few.
//!
//! Pure: samples, probes and times in; the admissible [`Window`] out.

use std::collections::VecDeque;
use std::time::Duration;

/// Time between two samples of the counters: one system call a disk, 3 us. A reader of 2000 a second is seen in the
/// first of them.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// Time over which the reads of others are looked for.
const SUSPECT_OVER: Duration = Duration::from_millis(500);
/// Time without reads of others after which there are none; samples are kept as long.
const FREE_AFTER: Duration = Duration::from_millis(500);
/// Fewer reads of others a second are ignored: the file system's own are as many.
const READS_PER_S: f64 = 32.0;
/// Reads of others before the copy stops to look, beside as many as its own in flight, whose completion the disk may
/// have counted already.
const SUSPECT_READS: u64 = 16;
/// Length of the stop: long enough for [`LEARN_READS`] reads of others at the rate seen before, within these bounds. At
/// the upper bound a copy of a minute loses 1 % to two of them.
const LEARN_MIN: Duration = Duration::from_millis(30);
const LEARN_MAX: Duration = Duration::from_millis(100);
const LEARN_READS: f64 = 8.0;
/// Of the expected reads, the part that must have come, at most [`LEARN_READS`]: programs read in bursts, and what was
/// seen before may have been split requests for the most part.
const LEARN_READS_PART: f64 = 0.25;
/// One or two reads in the stop may be the file system's.
const LEARN_READS_MIN: f64 = 3.0;
/// Probes without which the latency is not known. A disk that takes 8 ms for each has answered twelve by then.
const LEARN_PROBES_MIN: usize = 4;
/// Time between two probes during the stop. Probes without a pause would be faster than what they stand for: neither
/// processors nor the host of a virtual disk sleep between them.
const LEARN_PROBE_EVERY: Duration = Duration::from_millis(1);
/// The latency without the copy is measured again after this time: 30 ms of ten seconds.
const RELEARN_EVERY: Duration = Duration::from_secs(10);
/// The second stop comes sooner: one of 30 ms is within a fifth only.
const RELEARN_FIRST: Duration = Duration::from_secs(1);
/// After a suspicion that was wrong (requests that are split, a page cache that reads ahead) none is pursued for this
/// time, which doubles up to the maximum.
const TRUST_MIN: Duration = Duration::from_secs(10);
const TRUST_MAX: Duration = Duration::from_secs(320);
/// Probes of a measurement: the mean of so many is within a tenth. After [`PROBES_EARLY`] it ends if they are far from
/// the bound.
const PROBES: usize = 48;
const PROBES_EARLY: usize = 12;
/// Multiples of the latency without the copy that are far from the bound.
const SLOWER_FAR: f64 = 4.0;
const SLOWER_HARDLY: f64 = 1.3;
/// Probes ignored after a change, while requests of the former size end.
const PROBES_SKIPPED: usize = 2;
/// Time between two probes, and at least this multiple of what one takes without the copy: they take less than a tenth
/// of the disk.
const PROBE_EVERY: Duration = Duration::from_millis(2);
const PROBE_SHARE: f64 = 10.0;
/// The copy is bounded further if a probe takes this multiple of its latency without the copy. The 99th percentile of
/// other programs' reads is then 2.0 to 2.4 times what it is without the copy (2000 reads a second of a virtual disk).
const SLOWER_MAX: f64 = 2.25;
/// It is bounded to what should make it this multiple: between both nothing changes.
const SLOWER_AIM: f64 = 2.0;
/// The slowest tenth of probes is left out of means: single ones wait for the host.
const TRIM: usize = 10;
/// The smallest request; below it most disks lose more rate than others gain. The copy never has less in flight, so it
/// always makes progress.
const CHUNK_MIN: u32 = 128 << 10;
/// The first window after others were found.
const START_BYTES: f64 = (512 << 10) as f64;
/// The window changes by so many levels at most in one step, in both directions: one bad measurement must not stop the
/// copy, nor end its bound.
const LEVELS_DOWN_MAX: usize = 6;
const LEVELS_UP_MAX: usize = 2;

/// What may be in flight at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) chunk: u32,
    pub(crate) depth: usize,
}

impl Window {
    /// One request of the smallest size.
    pub(crate) fn least(chunk: u32, unit: u32) -> Self {
        Self { chunk: whole_units(CHUNK_MIN, unit).min(chunk), depth: 1 }
    }

    fn bytes(self) -> u64 {
        u64::from(self.chunk) * self.depth as u64
    }
}

/// The multiple of `unit` up to `bytes`, at least one.
fn whole_units(bytes: u32, unit: u32) -> u32 {
    (bytes / unit).max(1) * unit
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// No reads of others.
    Free,
    /// Nothing is begun until nothing is in flight. The reads a second that others seem to make.
    Draining(f64),
    /// Nothing of the copy but probes is in flight.
    Learning { since: Duration, foreign: i64, per_s: f64 },
    /// Others read.
    Bounded,
}

#[derive(Debug)]
pub(crate) struct Regulator {
    state: State,
    windows: Vec<Window>,
    /// Index of the window while others read; the number of windows if nothing needs to be bounded.
    level: usize,
    /// Chunks that would be in flight without a bound.
    natural: usize,
    /// Loop time and cumulative reads of others.
    samples: VecDeque<(Duration, i64)>,
    /// The last of them, also after they were cleared.
    sampled: (Duration, i64),
    /// Latency of probes without the copy, in microseconds.
    idle_us: Option<f64>,
    /// Latencies of the current measurement, in microseconds.
    probes: Vec<f64>,
    skip: usize,
    probe_at: Duration,
    /// Varies the distance of probes.
    turn: u8,
    learn_at: Duration,
    /// No suspicion is pursued before.
    trusted_until: Duration,
    trust: Duration,
    pub(crate) figures: Figures,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Time in which others read and the copy was bounded or stopped.
    pub(crate) bounded: Duration,
    pub(crate) reads: u64,
    pub(crate) idle_us: f64,
    pub(crate) beside_us: f64,
}

impl Regulator {
    /// For a copy in chunks of `chunk` bytes, which may be cut on multiples of `unit`; at `now` the reads of others are 0.
    pub(crate) fn new(chunk: u32, unit: u32, now: Duration) -> Self {
        // Four to a doubling: 128, 160, 192, 224, 256, 320, ... KiB in one request. One long request delays others less
        // than two short ones of together that length, and moves more.
        let sizes = std::iter::successors(Some(CHUNK_MIN), |bytes| Some(bytes + (1 << bytes.ilog2()) / 4));
        let sizes = sizes.map(|bytes| whole_units(bytes, unit)).take_while(|bytes| *bytes < chunk);
        let mut windows: Vec<_> = sizes.map(|chunk| Window { chunk, depth: 1 }).collect();
        windows.dedup();
        windows.extend([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64].map(|depth| Window { chunk, depth }));
        Self {
            state: State::Free,
            level: windows.len(),
            windows,
            natural: 1,
            samples: VecDeque::from([(now, 0)]),
            sampled: (now, 0),
            idle_us: None,
            probes: Vec::new(),
            skip: 0,
            probe_at: Duration::ZERO,
            turn: 0,
            learn_at: Duration::ZERO,
            trusted_until: Duration::ZERO,
            trust: TRUST_MIN,
            figures: Figures::default(),
        }
    }

    /// What may be in flight; `None`: no bound.
    pub(crate) fn window(&self) -> Option<Window> {
        match self.state {
            State::Bounded => self.windows.get(self.level).copied(),
            _ => None,
        }
    }

    /// Nothing may begin.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, State::Draining(_) | State::Learning { .. })
    }

    /// The stop has begun and waits for what is in flight.
    pub(crate) fn is_draining(&self) -> bool {
        matches!(self.state, State::Draining(_))
    }

    /// When the next probe is due. A probe is submitted only while no other is in flight.
    pub(crate) fn probe_at(&self) -> Option<Duration> {
        match self.state {
            State::Free | State::Draining(_) => None,
            State::Learning { .. } | State::Bounded => Some(self.probe_at),
        }
    }

    /// When [`Regulator::learned`] should be called.
    pub(crate) fn learned_at(&self) -> Option<Duration> {
        match self.state {
            State::Learning { since, .. } if self.probes.len() < LEARN_PROBES_MIN => Some(since + LEARN_MAX),
            State::Learning { since, per_s, .. } => Some(since + learn_for(per_s)),
            _ => None,
        }
    }

    /// A sample of the counters: `foreign` reads of others in all, `reads` of the copy in flight, and the chunks that
    /// it would have in flight without a bound.
    pub(crate) fn sample(&mut self, now: Duration, foreign: i64, reads: u64, natural: usize) {
        self.natural = natural;
        let (before, count) = std::mem::replace(&mut self.sampled, (now, foreign));
        if self.state != State::Free {
            self.figures.bounded += now.saturating_sub(before);
            self.figures.reads += u64::try_from(foreign - count).unwrap_or(0);
        }
        self.samples.push_back((now, foreign));
        while self.samples.get(1).is_some_and(|(at, _)| *at + FREE_AFTER <= now) {
            self.samples.pop_front();
        }
        match self.state {
            State::Free if now >= self.trusted_until => {
                let (excess, per_s, _) = self.rate(SUSPECT_OVER);
                if excess >= (SUSPECT_READS + reads) as f64 && per_s >= READS_PER_S {
                    self.state = State::Draining(per_s);
                }
            }
            State::Bounded => {
                let (_, per_s, over) = self.rate(FREE_AFTER);
                if over >= FREE_AFTER && per_s < READS_PER_S / 2.0 {
                    self.free();
                } else if now >= self.learn_at {
                    self.state = State::Draining(per_s);
                }
            }
            _ => {}
        }
    }

    /// The reads of others, their rate a second, and the time over which they were counted: `over`, or the next longer
    /// one between samples, if there are so many.
    fn rate(&self, over: Duration) -> (f64, f64, Duration) {
        let Some((to, after)) = self.samples.back() else { return (0.0, 0.0, Duration::ZERO) };
        let earlier = self.samples.iter().rfind(|(at, _)| *at + over <= *to).or(self.samples.front());
        let (from, before) = earlier.copied().unwrap_or((*to, *after));
        let (excess, over) = ((after - before) as f64, to.saturating_sub(from));
        (excess, excess / over.as_secs_f64().max(1e-3), over)
    }

    fn free(&mut self) {
        self.state = State::Free;
        self.idle_us = None;
        self.probes.clear();
    }

    /// Nothing of the copy is in flight.
    pub(crate) fn drained(&mut self, now: Duration, foreign: i64) {
        if let State::Draining(per_s) = self.state {
            self.state = State::Learning { since: now, foreign, per_s };
            self.probes.clear();
            self.probe_at = now;
        }
    }

    /// The end of the stop.
    pub(crate) fn learned(&mut self, now: Duration, foreign: i64) {
        let State::Learning { since, foreign: before, per_s } = self.state else { return };
        let seconds = now.saturating_sub(since).as_secs_f64();
        let expected = (per_s * seconds * LEARN_READS_PART).clamp(LEARN_READS_MIN, LEARN_READS);
        // The copy did not read meanwhile: samples before the stop say nothing of the time after it.
        self.samples.clear();
        if ((foreign - before) as f64) < expected || self.probes.len() < LEARN_PROBES_MIN {
            tracing::debug!(
                reads = foreign - before,
                expected,
                probes = self.probes.len(),
                "no reads of others"
            );
            // Others may have ended just now; a suspicion from the start was wrong.
            if self.idle_us.is_none() {
                self.trusted_until = now + self.trust;
                self.trust = (self.trust * 2).min(TRUST_MAX);
            }
            return self.free();
        }
        let idle = trimmed_mean(&mut self.probes).max(1.0);
        let (level, again) = match self.idle_us {
            Some(_) => (self.level, RELEARN_EVERY),
            None => (self.level_of(START_BYTES), RELEARN_FIRST),
        };
        // A stop is short, and the host of a virtual disk changes: half of the earlier value remains.
        let idle = self.idle_us.map_or(idle, |before| (before + idle) / 2.0);
        tracing::debug!(per_s, idle_us = idle, level, "others read the disk");
        self.figures.idle_us = idle;
        self.idle_us = Some(idle);
        self.trust = TRUST_MIN;
        self.learn_at = now + again;
        self.enter(level, now);
    }

    /// The largest window of at most `bytes`.
    fn level_of(&self, bytes: f64) -> usize {
        self.windows.iter().rposition(|window| window.bytes() as f64 <= bytes).unwrap_or(0)
    }

    /// A probe has ended at `now`; `None`: its latency is not known.
    pub(crate) fn probed(&mut self, now: Duration, latency: Option<Duration>) {
        let us = latency.map(|latency| latency.as_secs_f64() * 1e6);
        match self.state {
            State::Learning { .. } => {
                self.probe_at = now + LEARN_PROBE_EVERY;
                self.probes.extend(us);
            }
            State::Bounded => {
                let rest = Duration::from_secs_f64(self.idle_us.unwrap_or(0.0) * PROBE_SHARE / 1e6);
                // Not in step with anything: the distance varies by half.
                self.turn = self.turn.wrapping_mul(5).wrapping_add(3);
                let varied = PROBE_EVERY.mul_f64(f64::from(self.turn) / 512.0);
                self.probe_at = now + rest.max(PROBE_EVERY) + varied;
                let Some(us) = us else { return };
                if self.skip > 0 {
                    self.skip -= 1;
                    return;
                }
                self.probes.push(us);
                self.decide(now);
            }
            State::Free | State::Draining(_) => {}
        }
    }

    fn decide(&mut self, now: Duration) {
        let count = self.probes.len();
        let Some(idle) = self.idle_us.filter(|_| count >= PROBES_EARLY) else { return };
        let mean = trimmed_mean(&mut self.probes);
        let slower = mean / idle;
        let is_bounded = self.level < self.windows.len();
        if count < PROBES && slower < SLOWER_FAR && !(is_bounded && slower < SLOWER_HARDLY) {
            return;
        }
        self.figures.beside_us = mean;
        let chunk = self.windows.last().map_or(0, |window| window.chunk);
        let bytes = match self.windows.get(self.level) {
            Some(window) => window.bytes(),
            None => u64::from(chunk) * self.natural as u64,
        };
        // What is in flight delays a read in proportion to its bytes.
        let allowed = (SLOWER_AIM - 1.0) * idle / (mean - idle).max(f64::MIN_POSITIVE) * bytes as f64;
        let aim = self.level_of(allowed);
        let level = if slower > SLOWER_MAX {
            let from = if is_bounded { self.level } else { self.level_of(bytes as f64) };
            aim.clamp(from.saturating_sub(LEVELS_DOWN_MAX), from.saturating_sub(1))
        } else if is_bounded && aim > self.level {
            self.unbounded_if_natural(aim.min(self.level + LEVELS_UP_MAX))
        } else {
            self.level
        };
        tracing::debug!(idle, mean, from = self.level, to = level, window = ?self.windows.get(level), "beside others");
        if level == self.level { self.probes.clear() } else { self.enter(level, now) }
    }

    /// No bound instead of a window that has as much as would be in flight without one, or of the last.
    fn unbounded_if_natural(&self, level: usize) -> usize {
        let last = self.windows.len() - 1;
        let window = self.windows[level];
        let is_bound =
            level < last && (window.chunk < self.windows[last].chunk || window.depth < self.natural);
        if is_bound { level } else { self.windows.len() }
    }

    fn enter(&mut self, level: usize, now: Duration) {
        (self.state, self.level) = (State::Bounded, level);
        self.probes.clear();
        self.skip = PROBES_SKIPPED;
        self.probe_at = now + PROBE_EVERY;
    }
}

fn learn_for(per_s: f64) -> Duration {
    Duration::from_secs_f64(LEARN_READS / per_s.max(1.0)).clamp(LEARN_MIN, LEARN_MAX)
}

/// The mean without the slowest tenth. Sorts.
fn trimmed_mean(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let kept = values.len() - values.len() / TRIM;
    values[..kept].iter().sum::<f64>() / kept.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Random;

    const CHUNK: u32 = 1 << 20;
    const UNIT: u32 = 4096;
    const STEP: Duration = Duration::from_millis(1);
    /// Time until what is in flight has ended.
    const DRAIN: Duration = Duration::from_millis(3);

    /// A disk on which a small read takes `base_us`, and `per_mib_us` more for each MiB of the copy in flight.
    #[derive(Clone, Copy)]
    struct Disk {
        base_us: f64,
        per_mib_us: f64,
        /// Reads of others a second.
        others_per_s: f64,
        /// Reads that the disk counts beside each read of the copy, because they are split.
        splits: i64,
        /// Chunks in flight without a bound.
        natural: usize,
    }

    const VIRTUAL: Disk =
        Disk { base_us: 100.0, per_mib_us: 110.0, others_per_s: 2000.0, splits: 0, natural: 8 };

    /// A copy on a disk, in steps of a millisecond.
    struct Copy {
        disk: Disk,
        regulator: Regulator,
        random: Random,
        now: Duration,
        sample_at: Duration,
        draining_since: Option<Duration>,
        others: f64,
        split: i64,
        stopped: Duration,
        /// What probes take of the disk.
        probing: Duration,
    }

    impl Copy {
        fn new(disk: Disk, seed: u64) -> Self {
            Self {
                disk,
                regulator: Regulator::new(CHUNK, UNIT, Duration::ZERO),
                random: Random::new(seed),
                now: Duration::ZERO,
                sample_at: Duration::ZERO,
                draining_since: None,
                others: 0.0,
                split: 0,
                stopped: Duration::ZERO,
                probing: Duration::ZERO,
            }
        }

        fn in_flight(&self) -> u64 {
            let all = Window { chunk: CHUNK, depth: self.disk.natural };
            if self.regulator.is_stopped() { 0 } else { self.regulator.window().unwrap_or(all).bytes() }
        }

        fn latency(&mut self) -> Duration {
            let load = self.disk.per_mib_us * self.in_flight() as f64 / f64::from(1 << 20);
            // From 0.5 to 1.5 of the mean, and one of a hundred waits for 3 ms.
            let varied = 0.5 + self.random.below(1000) as f64 / 1000.0;
            let hiccup = if self.random.one_in(100) { 3000.0 } else { 0.0 };
            Duration::from_secs_f64(((self.disk.base_us + load) * varied + hiccup) / 1e6)
        }

        fn run(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.now += STEP;
                self.others += self.disk.others_per_s * STEP.as_secs_f64();
                if self.regulator.is_stopped() {
                    self.stopped += STEP;
                } else {
                    self.split += self.disk.splits;
                }
                // The disk has counted up to all reads in flight before their completion is noticed.
                let seen = self.random.below(self.disk.natural as u64 + 1) as i64;
                let early = if self.regulator.is_stopped() { 0 } else { seen };
                let foreign = self.others as i64 + self.split + early;
                if self.now >= self.sample_at {
                    self.sample_at = self.now + SAMPLE_EVERY;
                    let (reads, natural) = (self.disk.natural as u64, self.disk.natural);
                    self.regulator.sample(self.now, foreign, reads, natural);
                }
                if self.regulator.is_draining() {
                    let since = *self.draining_since.get_or_insert(self.now);
                    if self.now >= since + DRAIN {
                        self.draining_since = None;
                        self.regulator.drained(self.now, foreign);
                    }
                }
                if self.regulator.learned_at().is_some_and(|at| at <= self.now) {
                    self.regulator.learned(self.now, foreign);
                }
                if self.regulator.probe_at().is_some_and(|at| at <= self.now) {
                    let latency = self.latency();
                    if !self.regulator.is_stopped() {
                        self.probing += Duration::from_secs_f64(self.disk.base_us / 1e6);
                    }
                    self.regulator.probed(self.now, Some(latency));
                }
            }
        }

        /// The mean of a small read now, by that without the copy.
        fn slower(&self) -> f64 {
            1.0 + self.disk.per_mib_us * self.in_flight() as f64 / f64::from(1 << 20) / self.disk.base_us
        }
    }

    #[test]
    fn without_others_nothing_is_bounded_and_nothing_is_probed() {
        for natural in [1, 8, 64] {
            let mut copy = Copy::new(Disk { others_per_s: 0.0, natural, ..VIRTUAL }, 1);
            copy.run(Duration::from_secs(600));
            assert_eq!((copy.stopped, copy.probing), (Duration::ZERO, Duration::ZERO));
            assert_eq!((copy.regulator.window(), copy.regulator.figures), (None, Figures::default()));
        }
    }

    #[test]
    fn the_window_is_the_largest_beside_which_reads_are_fast() {
        let slow = Disk { base_us: 8000.0, per_mib_us: 20_000.0, others_per_s: 60.0, natural: 4, ..VIRTUAL };
        let fast = Disk { base_us: 80.0, per_mib_us: 5.0, ..VIRTUAL };
        // The last number: bytes that should be in flight in the end, at least and at most, in KiB.
        for (name, disk, least, most) in [
            ("virtual disk", VIRTUAL, 600, 1100),
            ("few reads", Disk { others_per_s: 60.0, ..VIRTUAL }, 600, 1100),
            ("hard disk", slow, 256, 512),
            ("slower still", Disk { per_mib_us: 1000.0, ..VIRTUAL }, 126, 128),
            ("nothing helps", Disk { per_mib_us: 1e6, ..VIRTUAL }, 126, 128),
            ("fast disk", fast, 7500, 8 << 10),
            ("one chunk in flight", Disk { natural: 1, per_mib_us: 10.0, ..VIRTUAL }, 950, 1024),
        ] {
            for seed in 1..6 {
                let mut copy = Copy::new(disk, seed);
                copy.run(Duration::from_secs(30));
                let (mut kib, mut slower) = (0, 0.0);
                for _ in 0..200 {
                    copy.run(Duration::from_millis(100));
                    kib += copy.in_flight() >> 10;
                    slower += copy.slower() / 200.0;
                }
                kib /= 200;
                assert!((least..=most).contains(&kib), "{name}, seed {seed}: {kib} KiB");
                let bound = if most == 128 { f64::MAX } else { SLOWER_MAX * 1.1 };
                assert!(slower <= bound, "{name}, seed {seed}: {slower} times slower");
                let share = copy.probing.as_secs_f64() / copy.now.as_secs_f64();
                assert!(share < 1.1 / PROBE_SHARE, "{name}: probes take {share} of the disk");
                let share = copy.stopped.as_secs_f64() / copy.now.as_secs_f64();
                assert!(share < 0.015, "{name}: stopped for {share} of the time");
            }
        }
    }

    #[test]
    fn it_is_bounded_within_a_second_and_free_within_two() {
        let mut copy = Copy::new(Disk { others_per_s: 0.0, ..VIRTUAL }, 3);
        copy.run(Duration::from_secs(10));
        copy.disk.others_per_s = 2000.0;
        copy.run(Duration::from_millis(300));
        assert!(copy.regulator.window().is_some());
        copy.run(Duration::from_secs(1));
        assert!(copy.slower() < 2.4, "{}", copy.slower());
        let figures = copy.regulator.figures;
        assert!((80.0..130.0).contains(&figures.idle_us), "{figures:?}");
        assert!((1900..2700).contains(&figures.reads), "{figures:?}");
        copy.disk.others_per_s = 0.0;
        copy.run(Duration::from_millis(1500));
        assert_eq!((copy.regulator.window(), copy.regulator.is_stopped()), (None, false));
        let bounded = copy.regulator.figures.bounded;
        copy.run(Duration::from_secs(60));
        assert_eq!(copy.regulator.figures.bounded, bounded, "the time without others is not counted");
    }

    #[test]
    fn a_disk_that_changes_is_followed() {
        let mut copy = Copy::new(VIRTUAL, 4);
        copy.run(Duration::from_secs(5));
        copy.disk.per_mib_us = 300.0;
        copy.run(Duration::from_secs(3));
        assert!(copy.slower() < 2.4, "{}", copy.slower());
        copy.disk.per_mib_us = 20.0;
        copy.run(Duration::from_secs(10));
        assert!(copy.in_flight() >= 3 << 20, "{} bytes", copy.in_flight());
    }

    #[test]
    fn requests_that_are_split_are_not_taken_for_others_for_long() {
        let mut copy = Copy::new(Disk { others_per_s: 0.0, splits: 7, ..VIRTUAL }, 5);
        copy.run(Duration::from_secs(60));
        assert_eq!(copy.regulator.window(), None);
        assert!(copy.stopped < Duration::from_millis(180), "{:?} of a minute", copy.stopped);
        copy.disk.others_per_s = 2000.0;
        copy.run(Duration::from_secs(120));
        assert!(copy.regulator.window().is_some(), "true ones are found later");
        copy.disk.others_per_s = 0.0;
        copy.run(Duration::from_secs(12));
        assert_eq!(copy.regulator.window(), None, "and their end");
    }

    #[test]
    fn probes_of_unknown_latency_decide_nothing() {
        let mut copy = Copy::new(VIRTUAL, 6);
        copy.run(Duration::from_secs(3));
        let window = copy.regulator.window();
        for _ in 0..10_000 {
            copy.now += PROBE_EVERY;
            copy.regulator.probed(copy.now, None);
        }
        assert_eq!(copy.regulator.window(), window);
        assert!(copy.regulator.probe_at().is_some_and(|at| at > copy.now));
    }

    #[test]
    fn windows_ascend_in_whole_units_up_to_the_chunk() {
        for (chunk, unit) in [
            (1 << 20, 4096),
            (512 << 10, 4096),
            (16 << 20, 1 << 20),
            (4096, 4096),
            (1 << 20, 1 << 20),
            (24 << 10, 12 << 10),
        ] {
            let regulator = Regulator::new(chunk, unit, Duration::ZERO);
            assert!(regulator.windows.is_sorted_by(|a, b| a.bytes() < b.bytes()), "{:?}", regulator.windows);
            for window in &regulator.windows {
                assert!(window.chunk > 0 && window.chunk.is_multiple_of(unit) && window.chunk <= chunk);
            }
            let least = Window::least(chunk, unit);
            assert_eq!((least.depth, least.chunk), (1, regulator.windows[0].chunk));
        }
        let kib: Vec<_> = Regulator::new(1 << 20, UNIT, Duration::ZERO)
            .windows
            .iter()
            .map(|window| window.bytes() >> 10)
            .collect();
        assert_eq!(kib[..6], [128, 160, 192, 224, 256, 320]);
        assert_eq!(kib[9..15], [640, 768, 896, 1024, 2048, 3072]);
    }
}
