//! Polling for a while before sleeping: on virtual machines a wake-up costs about 28 us, more than the length of most
//! waits under load.
//!
//! It is bounded in three ways: one poll lasts at most [`SPIN_MAX`]; each poll without a completion makes the next ones
//! rarer, so that a loop with long waits (an idle session, a slow disk, both ends on one core) sleeps as if polling did
//! not exist; and there is no polling while more threads are runnable than there are cores.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

pub(crate) const SPIN_MAX: Duration = Duration::from_micros(30);
/// Most waits without a poll after many unsuccessful ones.
const REST_MAX: u32 = 255;
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
    /// Waits until the next poll; `penalty` is the value after the next unsuccessful poll.
    rest: u32,
    penalty: u32,
    load: MachineLoad,
    pub(crate) report: SpinReport,
}

impl Spin {
    pub(crate) fn new(is_on: bool) -> Self {
        let is_on = is_on && std::env::var_os(VARIABLE).is_none_or(|value| value != "0") && cores() > 1;
        let (mut load, report) = (MachineLoad::default(), SpinReport::default());
        if is_on {
            // Opened here and not on first use, so that the set of the loop's descriptors never changes.
            load.file = File::open("/proc/loadavg").ok();
        }
        Self { is_on, is_enabled: true, rest: 0, penalty: 0, load, report }
    }

    /// Whether to poll before the wait that starts now.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        if !self.is_on || !self.is_enabled {
            return false;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        !self.load.is_oversubscribed(now)
    }

    pub(crate) fn hit(&mut self, time: Duration) {
        self.report.time += time;
        self.report.hits += 1;
        self.penalty /= 2;
    }

    pub(crate) fn miss(&mut self, time: Duration) {
        self.report.time += time;
        self.report.misses += 1;
        self.penalty = (2 * self.penalty + 1).min(REST_MAX);
        self.rest = self.penalty;
    }
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

fn cores() -> usize {
    static CORES: std::sync::LazyLock<usize> =
        std::sync::LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *CORES
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = SPIN_MAX;

    fn spin() -> Spin {
        let load = MachineLoad { file: None, read_at: Some(Duration::MAX / 2), is_large: false };
        Spin { is_on: true, is_enabled: true, rest: 0, penalty: 0, load, report: SpinReport::default() }
    }

    /// Number of polls in `waits` waits; `found` selects the waits that have a completion.
    fn polls(spin: &mut Spin, waits: u32, found: impl Fn(u32) -> bool) -> u32 {
        (0..waits)
            .filter(|wait| {
                let due = spin.is_due(Duration::ZERO);
                match due {
                    true if found(*wait) => spin.hit(POLL / 3),
                    true => spin.miss(POLL),
                    false => {}
                }
                due
            })
            .count() as u32
    }

    #[test]
    fn polls_that_find_something_go_on() {
        let mut spin = spin();
        assert_eq!(polls(&mut spin, 1000, |_| true), 1000);
        assert_eq!(spin.report, SpinReport { time: POLL / 3 * 1000, hits: 1000, misses: 0 });
        assert!(polls(&mut spin, 1000, |wait| wait % 10 != 0) > 850, "one in ten in vain");
    }

    #[test]
    fn polls_in_vain_become_rare_and_come_back() {
        let mut spin = spin();
        assert!(polls(&mut spin, 10_000, |_| false) < 50, "an idle loop sleeps");
        assert!(polls(&mut spin, 1000, |_| true) > 700, "load brings them back");
    }

    #[test]
    fn off_is_off() {
        for mut spin in [Spin { is_on: false, ..spin() }, Spin { is_enabled: false, ..spin() }] {
            assert_eq!(polls(&mut spin, 100, |_| true), 0);
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
        assert_eq!(polls(&mut spin, 100, |_| true), 0);
    }
}
