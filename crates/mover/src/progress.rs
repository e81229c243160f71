//! Progress reports to the observer, and its answer.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limit::Limit;

/// Minimum loop time between two calls of the observer.
pub const OBSERVE_EVERY: Duration = Duration::from_millis(200);
/// Number of observations over which the current rate is measured (3 s).
const SAMPLES: usize = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Copy,
    /// Unreadable ranges are retried in small steps.
    Rescue,
    Flush,
    Verify,
    Compare,
}

impl Phase {
    pub(crate) fn copies(self) -> bool {
        matches!(self, Self::Copy | Self::Rescue)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    pub phase: Phase,
    pub bytes: u64,
    pub total: u64,
    /// Bytes per second over the last seconds, with holes.
    pub rate_now: u64,
    /// Bytes moved in this phase: without holes, and without what an earlier copy had finished.
    pub data_bytes: u64,
    /// Bytes moved per second over the last seconds.
    pub data_rate_now: u64,
    /// Time left at that rate for what is not known to be a hole; `None` if the rate is 0.
    pub eta: Option<Duration>,
    /// Requests the endpoints repeated after a lost connection.
    pub retries: u64,
    /// The limiting resource since the last observation.
    pub limited_by: Limit,
    /// Chunks that may be in flight at present, at most.
    pub depth: u32,
    /// The bound of the read rate at present, in bytes per second.
    pub rate_limit: Option<u64>,
}

/// How far a phase has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) bytes: u64,
    pub(crate) data_bytes: u64,
    /// Bytes that are not done and known to be holes.
    pub(crate) hole_bytes_left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Continue,
    /// Stop: requests in flight are finished and flushed, and the copy ends with the number of safe bytes.
    Stop,
}

/// The rate over the last few observations.
#[derive(Debug, Default)]
pub(crate) struct Speed {
    samples: VecDeque<(Duration, u64)>,
}

impl Speed {
    pub(crate) fn start(&mut self, now: Duration, bytes: u64) {
        self.samples.clear();
        self.samples.push_back((now, bytes));
    }

    /// Records the bytes complete at `now`; returns the bytes per second since the oldest sample kept.
    pub(crate) fn sample(&mut self, now: Duration, bytes: u64) -> u64 {
        let (since, before) = self.samples.front().copied().unwrap_or((now, bytes));
        self.samples.push_back((now, bytes));
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        let nanos = now.saturating_sub(since).as_nanos().max(1);
        let rate = u128::from(bytes - before) * 1_000_000_000 / nanos;
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Time for `left` bytes at `rate` bytes per second; `None` if the rate is 0.
pub(crate) fn eta(left: u64, rate: u64) -> Option<Duration> {
    let seconds = left.checked_div(rate)?;
    let nanos = u128::from(left % rate) * 1_000_000_000 / u128::from(rate);
    Some(Duration::new(seconds, nanos as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_forgets_what_is_long_ago() {
        let mut speed = Speed::default();
        speed.start(Duration::ZERO, 0);
        assert_eq!(speed.sample(Duration::from_secs(1), 1000), 1000);
        for second in 2..100 {
            speed.sample(Duration::from_secs(second), 1000);
        }
        assert_eq!(speed.sample(Duration::from_secs(100), 1000), 0);
    }

    #[test]
    fn eta_at_the_ends_of_the_number_range() {
        assert_eq!(eta(10, 0), None);
        assert_eq!(eta(0, 5), Some(Duration::ZERO));
        assert_eq!(eta(3, 2), Some(Duration::from_millis(1500)));
        assert_eq!(eta(u64::MAX, 1), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(eta(u64::MAX, u64::MAX), Some(Duration::from_secs(1)));
    }
}
