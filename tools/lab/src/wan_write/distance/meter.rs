//! The duration of a process, and the rate at which the path carried its data meanwhile.

use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::wan::{Counters, Line};
use crate::{Attempted, LabError};

/// Interval at which the process and the counters of the path are read.
const INTERVAL: Duration = Duration::from_millis(2);
/// Age of the path's counters at most.
const COUNTERS_AGE: Duration = Duration::from_millis(110);
/// Time limit of a copy.
const LIMIT: Duration = Duration::from_secs(300);
/// Shares of all bytes between which the rate counts as steady: behind the start, before the last acknowledgements.
const STEADY: [f64; 2] = [0.5, 0.95];

/// What one process took.
#[derive(Clone, Debug)]
pub(super) struct Took {
    /// From start to exit.
    pub(super) seconds: f64,
    /// `None` if the path carried less than half of the bytes, as of zeroes that do not travel.
    pub(super) steady_mb_per_s: Option<f64>,
    /// Greatest lateness of the path, in microseconds.
    pub(super) late_us: f64,
    /// Segments that the bottleneck's queue could not hold.
    pub(super) tail_drops: u64,
    /// Whether the emulator lost something by itself.
    pub(super) is_invalid: bool,
    /// What `hikyaku copy --json` says of its path.
    pub(super) path: Option<Value>,
}

/// Waits for the exit of `child`, whose data comes from `side` of the path. Kills it if `is_stopped` or after [`LIMIT`].
///
/// Returns the time from `begun` and whether the process succeeded.
pub(super) fn measure(
    line: &Line,
    side: usize,
    bytes: u64,
    begun: Instant,
    child: &mut Child,
    is_stopped: &dyn Fn() -> bool,
) -> Result<(Took, bool), LabError> {
    let mut carried = Carried::default();
    let status = loop {
        carried.add(begun.elapsed(), line.counters(side).delivered_bytes);
        if let Some(status) = child.try_wait().attempted("wait for a copy")? {
            break status;
        }
        if is_stopped() || begun.elapsed() > LIMIT {
            // It may have ended meanwhile.
            let _ = child.kill();
            child.wait().attempted("wait for a copy")?;
            let late = LabError::new("copy", &format!("it takes more than {} s", LIMIT.as_secs()));
            return Err(if is_stopped() { LabError::Interrupted } else { late });
        }
        std::thread::sleep(INTERVAL);
    };
    let seconds = begun.elapsed().as_secs_f64();
    std::thread::sleep(COUNTERS_AGE);
    let both = [0, 1].map(|side| line.counters(side));
    carried.add(begun.elapsed(), both[side].delivered_bytes);
    let sum = |value: fn(&Counters) -> u64| both.iter().map(value).sum::<u64>();
    let late_us = both.iter().map(|counters| counters.late_max_ns).max().unwrap_or(0) as f64 / 1e3;
    let took = Took {
        seconds,
        steady_mb_per_s: carried.steady(bytes),
        late_us,
        tail_drops: sum(|counters| counters.tail_drops),
        is_invalid: sum(|counters| counters.overflows + counters.refused) > 0,
        path: None,
    };
    Ok((took, status.success()))
}

/// Bytes that the path has delivered, by time.
#[derive(Debug, Default)]
struct Carried {
    points: Vec<(f64, u64)>,
}

impl Carried {
    fn add(&mut self, at: Duration, bytes: u64) {
        if self.points.last().is_none_or(|(_, last)| *last != bytes) {
            self.points.push((at.as_secs_f64(), bytes));
        }
    }

    /// MB/s of payload, of which the path has carried `bytes` in all: what else it carried are headers.
    fn steady(&self, bytes: u64) -> Option<f64> {
        let all = self.points.last()?.1;
        if all < bytes / 2 {
            return None;
        }
        let [from, to] = STEADY.map(|share| self.reached(share * all as f64));
        let payload = (STEADY[1] - STEADY[0]) * bytes as f64;
        Some(payload / 1e6 / (to? - from?)).filter(|rate| rate.is_finite())
    }

    /// Time at which so many bytes were delivered, between two points in proportion.
    fn reached(&self, bytes: f64) -> Option<f64> {
        let index = self.points.iter().position(|(_, carried)| *carried as f64 >= bytes)?;
        let (to, more) = self.points[index];
        let Some((from, less)) = index.checked_sub(1).map(|before| self.points[before]) else {
            return Some(to);
        };
        Some(from + (to - from) * (bytes - less as f64) / (more - less) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(points: &[(f64, u64)]) -> Carried {
        let mut carried = Carried::default();
        points.iter().for_each(|(at, bytes)| carried.add(Duration::from_secs_f64(*at), *bytes));
        carried
    }

    #[test]
    fn the_steady_rate_leaves_out_the_start_and_the_end() {
        // 10 MB in 5 s, 100 MB/s for 1 s, and an end without data.
        let points = [(0.0, 0), (5.0, 10_000_000), (6.0, 110_000_000), (7.0, 110_000_000)];
        let steady = carried(&points).steady(110_000_000).unwrap();
        assert!((steady - 100.0).abs() < 1e-6, "{steady}");
        // A tenth of it are headers.
        let steady = carried(&points).steady(99_000_000).unwrap();
        assert!((steady - 90.0).abs() < 1e-6, "{steady}");
    }

    #[test]
    fn zeroes_that_do_not_travel_have_no_rate() {
        assert_eq!(carried(&[(0.0, 0), (1.0, 4096)]).steady(1 << 30), None);
        assert_eq!(carried(&[]).steady(1), None);
    }
}
