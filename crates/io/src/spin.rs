//! Looking again for a while before sleeping: on virtual machines a wake-up costs about 28 us, which is more than what
//! most waits under load last.
//!
//! Bounded three ways: a look lasts [`SPIN_MAX`]; each that finds nothing makes the next ones rarer, so a loop that waits
//! long (an idle session, a slow disk, both ends on one core) sleeps as if this did not exist; and it is not done
//! while more threads want to run than there are cores.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Longest look.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(30);
/// Waits that go without a look after many that found nothing.
const REST_MAX: u32 = 255;
/// For how long the number of running threads is believed.
const CROWD_AGE: Duration = Duration::from_millis(4);
/// The environment variable that turns it off: `0`.
const VARIABLE: &str = "HIKYAKU_SPIN";

/// What looking before sleeping has cost and spared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpinReport {
    /// CPU time of it.
    pub time: Duration,
    /// Sleeps spared.
    pub hits: u64,
    /// Looks that ended in a sleep all the same.
    pub misses: u64,
}

#[derive(Debug)]
pub(crate) struct Spin {
    is_on: bool,
    /// Whether the owner of the loop wants it now.
    pub(crate) is_wanted: bool,
    /// Waits until the next look, and how many it will be after the next look in vain.
    rest: u32,
    penalty: u32,
    crowd: Crowd,
    pub(crate) report: SpinReport,
}

impl Spin {
    pub(crate) fn new(is_on: bool) -> Self {
        let is_on = is_on && std::env::var_os(VARIABLE).is_none_or(|value| value != "0") && cores() > 1;
        let (mut crowd, report) = (Crowd::default(), SpinReport::default());
        if is_on {
            // Now, not when it is first needed: the loop's descriptors are the same from the beginning.
            crowd.load = File::open("/proc/loadavg").ok();
        }
        Self { is_on, is_wanted: true, rest: 0, penalty: 0, crowd, report }
    }

    /// Whether to look before the wait that begins now.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        if !self.is_on || !self.is_wanted {
            return false;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        !self.crowd.is_too_large(now)
    }

    /// A look of this length found something.
    pub(crate) fn hit(&mut self, time: Duration) {
        self.report.time += time;
        self.report.hits += 1;
        self.penalty /= 2;
    }

    /// A look of this length was in vain.
    pub(crate) fn miss(&mut self, time: Duration) {
        self.report.time += time;
        self.report.misses += 1;
        self.penalty = (2 * self.penalty + 1).min(REST_MAX);
        self.rest = self.penalty;
    }
}

/// Whether other threads want the core.
#[derive(Debug, Default)]
struct Crowd {
    load: Option<File>,
    looked: Option<Duration>,
    is_large: bool,
}

impl Crowd {
    fn is_too_large(&mut self, now: Duration) -> bool {
        if self.looked.is_none_or(|looked| now >= looked + CROWD_AGE) {
            self.looked = Some(now);
            self.is_large = self.running().is_some_and(|running| running > cores());
        }
        self.is_large
    }

    /// Threads that run or want to, on the whole machine: `0.00 0.01 0.05 RUNNING/ALL LAST`.
    fn running(&mut self) -> Option<usize> {
        if self.load.is_none() {
            self.load = File::open("/proc/loadavg").ok();
        }
        let mut text = [0; 64];
        let length = self.load.as_ref()?.read_at(&mut text, 0).ok()?;
        parse_running(&text[..length])
    }
}

fn parse_running(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// Cores this process may use.
fn cores() -> usize {
    static CORES: std::sync::LazyLock<usize> =
        std::sync::LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *CORES
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = SPIN_MAX;

    fn spin() -> Spin {
        let crowd = Crowd { load: None, looked: Some(Duration::MAX / 2), is_large: false };
        Spin { is_on: true, is_wanted: true, rest: 0, penalty: 0, crowd, report: SpinReport::default() }
    }

    /// Looks made in `waits` waits of which each finds something or not.
    fn looks(spin: &mut Spin, waits: u32, found: impl Fn(u32) -> bool) -> u32 {
        (0..waits)
            .filter(|wait| {
                let due = spin.is_due(Duration::ZERO);
                match due {
                    true if found(*wait) => spin.hit(LOOK / 3),
                    true => spin.miss(LOOK),
                    false => {}
                }
                due
            })
            .count() as u32
    }

    #[test]
    fn looks_that_find_something_go_on() {
        let mut spin = spin();
        assert_eq!(looks(&mut spin, 1000, |_| true), 1000);
        assert_eq!(spin.report, SpinReport { time: LOOK / 3 * 1000, hits: 1000, misses: 0 });
        assert!(looks(&mut spin, 1000, |wait| wait % 10 != 0) > 850, "one in ten in vain");
    }

    #[test]
    fn looks_in_vain_become_rare_and_come_back() {
        let mut spin = spin();
        assert!(looks(&mut spin, 10_000, |_| false) < 50, "an idle loop sleeps");
        assert!(looks(&mut spin, 1000, |_| true) > 700, "load brings them back");
    }

    #[test]
    fn off_is_off() {
        for mut spin in [Spin { is_on: false, ..spin() }, Spin { is_wanted: false, ..spin() }] {
            assert_eq!(looks(&mut spin, 100, |_| true), 0);
        }
    }

    #[test]
    fn running_threads_are_counted() {
        assert_eq!(parse_running(b"0.50 0.36 0.91 3/512 4711\n"), Some(3));
        assert_eq!(parse_running(b"nonsense"), None);
        assert!(Crowd::default().running().is_none_or(|running| running > 0));
    }

    #[test]
    fn a_crowd_keeps_it_from_looking() {
        let mut spin = spin();
        spin.crowd.is_large = true;
        assert_eq!(looks(&mut spin, 100, |_| true), 0);
    }
}
