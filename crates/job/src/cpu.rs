//! Processor time used by this process.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    pub user: Duration,
    pub system: Duration,
}

impl CpuTime {
    /// Processor time of all threads of this process since its start.
    pub fn now() -> Self {
        let usage = usage();
        let duration = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.max(0) as u64) + Duration::from_micros(time.tv_usec.max(0) as u64)
        };
        Self { user: duration(usage.ru_utime), system: duration(usage.ru_stime) }
    }

    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

/// getrusage(2) for this process and all its threads.
pub fn usage() -> libc::rusage {
    // SAFETY: `rusage` is plain data for which all zeroes is a valid value; the call only fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_grows() {
        let before = CpuTime::now();
        let mut sum = 0u64;
        while CpuTime::now().since(before) == CpuTime::default() {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(CpuTime::now().since(before).user + CpuTime::now().since(before).system > Duration::ZERO);
    }
}
