//! Processor time and context switches of a process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::sys;

/// Resources used by all threads of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usage {
    /// Time in user mode and in the kernel.
    pub(super) cpu: Duration,
    /// Voluntary context switches: a thread waited.
    pub(super) voluntary: u64,
    /// Involuntary context switches: the scheduler preempted a thread.
    pub(super) involuntary: u64,
}

impl Usage {
    pub(super) fn own() -> Self {
        let (cpu, [voluntary, involuntary]) = (job::cpu::CpuTime::now(), sys::context_switches());
        Self { cpu: cpu.user + cpu.system, voluntary, involuntary }
    }

    /// Usage of process `pid`, from `/proc`, without threads that have ended; an error contains the file's name.
    pub(super) fn of(pid: u32) -> Result<Self, String> {
        Self::read(Path::new("/proc"), pid)
    }

    fn read(proc: &Path, pid: u32) -> Result<Self, String> {
        let tasks = proc.join(pid.to_string()).join("task");
        let failed = |error: std::io::Error| format!("{}: {error}", tasks.display());
        let mut usage = Self::default();
        for task in fs::read_dir(&tasks).map_err(failed)? {
            let task = task.map_err(failed)?.path();
            // A thread may end between the listing and this read.
            let (Ok(times), Ok(status)) =
                (fs::read_to_string(task.join("schedstat")), fs::read_to_string(task.join("status")))
            else {
                continue;
            };
            usage.add(&times, &status);
        }
        Ok(usage)
    }

    /// Adds a thread. The first number of `schedstat` is its processor time in nanoseconds.
    fn add(&mut self, schedstat: &str, status: &str) {
        let nanos = schedstat.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
        self.cpu += Duration::from_nanos(nanos);
        let value = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        self.voluntary += value("voluntary_ctxt_switches:");
        self.involuntary += value("nonvoluntary_ctxt_switches:");
    }

    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let mut usage = Usage::default();
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        usage.add("1500 20 3\n", status);
        usage.add("500 0 1\n", status);
        let expected = Usage { cpu: Duration::from_nanos(2000), voluntary: 24, involuntary: 6 };
        assert_eq!(usage, expected);
        assert_eq!(usage.since(expected), Usage::default());
    }

    #[test]
    fn this_process_is_readable_both_ways() {
        let own = Usage::of(std::process::id()).unwrap();
        assert!(own.cpu > Duration::ZERO && Usage::own().cpu > Duration::ZERO);
        assert!(Usage::read(Path::new("/nonexistent"), 1).unwrap_err().contains("/nonexistent/1/task"));
    }
}
