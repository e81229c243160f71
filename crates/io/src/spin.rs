//! Polling for a while before sleeping: on virtual machines a wake-up costs about 28 us, more than the length of most
//! waits under load.
//!
//! How long is learned from the waits themselves. One wait in 8 to 256 is polled for the longest time, and a histogram has how
//! soon the recent ones of these ended (shorter polls do not count: they show only the waits that are short). The time is
//! chosen at which the sleeps that are avoided outweigh the processor time spent. A loop with long waits (an idle session, a
//! slow disk, both ends on one core) therefore polls seldom, and notices when waits become short. There is no polling while
//! more threads are runnable than there are cores.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Upper ends of the classes of the histogram, in microseconds. Longer waits are one class more.
const CLASSES_US: [u32; 8] = [4, 8, 16, 24, 32, 40, 52, 64];
const CLASSES: usize = CLASSES_US.len();
/// Longest poll, in microseconds.
const SPIN_MAX_US: u32 = CLASSES_US[CLASSES - 1];
/// Processor time that a sleep avoided is worth: a wake-up delays the peer by 28 us and more, and takes about 10 us of a core.
const WORTH_US: i64 = 80;
/// The histogram has the last 16 to 32 polls of full length.
const POLLS_MAX: u32 = 32;
/// Waits until the next poll of full length, least and most: while no other waits are polled it doubles with each that was
/// in vain.
const LOOK_MIN: u32 = 8;
const LOOK_MAX: u32 = 256;
/// How long the number of runnable threads is cached.
const LOAD_AGE_MAX: Duration = Duration::from_millis(4);
/// The environment variable that disables polling if it is `0`.
const VARIABLE: &str = "HIKYAKU_SPIN";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpinReport {
    /// CPU time spent polling.
    pub time: Duration,
    /// Polls that found a completion and avoided a sleep.
    pub hits: u64,
    pub misses: u64,
}

#[derive(Debug)]
pub(crate) struct Spin {
    is_on: bool,
    /// Set by the owner of the loop ([`crate::Io::set_spin`]).
    pub(crate) is_enabled: bool,
    /// Polls of full length by how soon the wait ended; the last class has those that did not end.
    polls: [u32; CLASSES + 1],
    /// How long a wait is polled.
    limit_us: u32,
    /// The present poll is of full length.
    is_look: bool,
    /// Waits until the next poll of full length, and between two of them.
    until_look: u32,
    look_each: u32,
    load: MachineLoad,
    pub(crate) report: SpinReport,
}

impl Spin {
    pub(crate) fn new(is_on: bool) -> Self {
        let is_on = is_on && std::env::var_os(VARIABLE).is_none_or(|value| value != "0") && cores() > 1;
        let mut load = MachineLoad::default();
        if is_on {
            // Opened here and not on first use, so that the set of the loop's descriptors never changes.
            load.file = File::open("/proc/loadavg").ok();
        }
        Self { load, ..Self::with(is_on) }
    }

    fn with(is_on: bool) -> Self {
        Self {
            is_on,
            is_enabled: true,
            polls: [0; CLASSES + 1],
            limit_us: 0,
            is_look: false,
            until_look: 0,
            look_each: LOOK_MIN,
            load: MachineLoad::default(),
            report: SpinReport::default(),
        }
    }

    /// How long to poll before the wait that starts now sleeps.
    pub(crate) fn limit(&mut self, now: Duration) -> Option<Duration> {
        if !self.is_on || !self.is_enabled {
            return None;
        }
        let is_due = self.until_look == 0;
        let limit_us = if is_due { SPIN_MAX_US } else { self.limit_us };
        self.until_look = self.until_look.saturating_sub(1);
        if limit_us == 0 || self.load.is_oversubscribed(now) {
            return None;
        }
        if is_due {
            self.until_look = self.look_each;
        }
        self.is_look = limit_us == SPIN_MAX_US;
        Some(Duration::from_micros(limit_us.into()))
    }

    /// Whether more threads are runnable than there are cores.
    pub(crate) fn is_busy(&mut self, now: Duration) -> bool {
        self.load.is_oversubscribed(now)
    }

    /// The wait ended after `time` of polling.
    pub(crate) fn hit(&mut self, time: Duration) {
        self.report.time += time;
        self.report.hits += 1;
        if self.is_look {
            self.look_each = (self.look_each / 4).max(LOOK_MIN);
        }
        let class = CLASSES_US.iter().position(|end| time <= Duration::from_micros(u64::from(*end)));
        self.add(class.unwrap_or(CLASSES));
    }

    /// The wait did not end within the `time` of polling.
    pub(crate) fn miss(&mut self, time: Duration) {
        self.report.time += time;
        self.report.misses += 1;
        if self.limit_us == 0 {
            self.look_each = (2 * self.look_each).min(LOOK_MAX);
        }
        self.add(CLASSES);
    }

    fn add(&mut self, class: usize) {
        if !self.is_look {
            return;
        }
        self.polls[class] += 1;
        if self.polls.iter().sum::<u32>() >= POLLS_MAX {
            self.polls.iter_mut().for_each(|count| *count /= 2);
        }
        self.limit_us = best_limit(&self.polls);
    }
}

/// The length of polls in microseconds for which the sleeps avoided outweigh the time spent most; 0 if there is none.
fn best_limit(polls: &[u32; CLASSES + 1]) -> u32 {
    let all: i64 = polls.iter().copied().map(i64::from).sum();
    let (mut ended, mut gain, mut best) = (0, 0, (0, 0));
    for (end, count) in CLASSES_US.into_iter().zip(polls) {
        let (end_us, count) = (i64::from(end), i64::from(*count));
        ended += count;
        gain += count * (WORTH_US - end_us);
        let total = gain - (all - ended) * end_us;
        if total > best.0 {
            best = (total, end);
        }
    }
    best.1
}

/// Whether more threads are runnable than there are cores, cached for [`LOAD_AGE_MAX`].
#[derive(Debug, Default)]
struct MachineLoad {
    file: Option<File>,
    read_at: Option<Duration>,
    is_large: bool,
}

impl MachineLoad {
    fn is_oversubscribed(&mut self, now: Duration) -> bool {
        if self.read_at.is_none_or(|read_at| now >= read_at + LOAD_AGE_MAX) {
            self.read_at = Some(now);
            self.is_large = self.running().is_some_and(|running| running > cores());
        }
        self.is_large
    }

    /// Runnable threads of the whole machine: `0.00 0.01 0.05 RUNNING/ALL LAST`.
    fn running(&mut self) -> Option<usize> {
        if self.file.is_none() {
            self.file = File::open("/proc/loadavg").ok();
        }
        let mut text = [0; 64];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        parse_running(&text[..length])
    }
}

fn parse_running(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

pub(crate) fn cores() -> usize {
    static CORES: std::sync::LazyLock<usize> =
        std::sync::LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *CORES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin() -> Spin {
        let load = MachineLoad { file: None, read_at: Some(Duration::MAX / 2), is_large: false };
        Spin { load, ..Spin::with(true) }
    }

    /// `waits` waits that end after `length` of microseconds. Returns how many ended while polled, and the time spent.
    fn wait(spin: &mut Spin, waits: u32, length: impl Fn(u32) -> u64) -> (u64, Duration) {
        let before = spin.report;
        for wait in 0..waits {
            let length = Duration::from_micros(length(wait));
            match spin.limit(Duration::ZERO) {
                Some(limit) if length <= limit => spin.hit(length),
                Some(limit) => spin.miss(limit),
                None => {}
            }
        }
        (spin.report.hits - before.hits, spin.report.time - before.time)
    }

    #[test]
    fn waits_of_any_length_that_pays_are_polled() {
        for length in [1, 10, 30, 45, 60] {
            let mut spin = spin();
            wait(&mut spin, 100, |_| length);
            assert_eq!(wait(&mut spin, 1000, |_| length).0, 1000, "{length} us");
            let (hits, _) = wait(&mut spin, 1000, |wait| if wait % 10 == 0 { 1000 } else { length.min(30) });
            assert!(hits > 850, "one in ten is long: {hits}");
        }
    }

    /// A command whose header arrives at once, and whose data arrives later.
    #[test]
    fn short_waits_do_not_hide_longer_ones_that_pay() {
        let mut spin = spin();
        let length = |wait: u32| if wait.is_multiple_of(2) { 2 } else { 45 };
        wait(&mut spin, 1000, length);
        assert_eq!(wait(&mut spin, 1000, length).0, 1000);
    }

    #[test]
    fn polls_are_no_longer_than_what_they_wait_for() {
        let mut spin = spin();
        wait(&mut spin, 1000, |wait| if wait % 2 == 0 { 5 } else { 500 });
        let (hits, time) = wait(&mut spin, 1000, |wait| if wait % 2 == 0 { 5 } else { 500 });
        assert_eq!(hits, 500);
        assert!(time < Duration::from_micros(1000 * 8 + 1000 / 8 * 64), "{time:?}");
    }

    #[test]
    fn long_waits_are_looked_at_seldom_and_short_ones_come_back() {
        let mut spin = spin();
        wait(&mut spin, 1000, |_| 10);
        wait(&mut spin, 1000, |_| 500);
        let (_, time) = wait(&mut spin, 100_000, |_| 500);
        assert!(time / 100_000 < Duration::from_nanos(300), "an idle loop sleeps: {time:?}");
        wait(&mut spin, 1000, |_| 40);
        assert_eq!(wait(&mut spin, 1000, |_| 40).0, 1000, "load brings the polls back");
    }

    #[test]
    fn off_is_off() {
        for mut spin in [Spin { is_on: false, ..spin() }, Spin { is_enabled: false, ..spin() }] {
            assert_eq!(wait(&mut spin, 100, |_| 1), (0, Duration::ZERO));
        }
    }

    #[test]
    fn running_threads_are_counted() {
        assert_eq!(parse_running(b"0.50 0.36 0.91 3/512 4711\n"), Some(3));
        assert_eq!(parse_running(b"nonsense"), None);
        assert!(MachineLoad::default().running().is_none_or(|running| running > 0));
    }

    #[test]
    fn an_oversubscribed_machine_is_not_polled() {
        let mut spin = spin();
        spin.load.is_large = true;
        assert_eq!(wait(&mut spin, 100, |_| 1).0, 0);
    }
}
