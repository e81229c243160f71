//! A process with a fixed amount of work per millisecond. The share of completed work and its delay measure what the
//! load of an experiment costs other processes.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Orders, send};
use crate::LabError;
use crate::stats::{percentile, rounded};

const PERIOD: Duration = Duration::from_millis(1);
/// Duration of a unit of work on an idle machine.
const WORK_TIME: Duration = Duration::from_micros(100);

/// The work: a number of additions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Bystander {
    additions: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pacing {
    /// Units of work completed, as a share of one per millisecond.
    pub(crate) rate_share: f64,
    /// Median time from the start of a unit's period to its end.
    pub(crate) p50_us: f64,
    /// 99th percentile of that time.
    pub(crate) p99_us: f64,
}

fn work(additions: u64) {
    let mut sum = 0u64;
    for number in 0..additions {
        sum = black_box(sum.wrapping_add(number));
    }
}

impl Bystander {
    /// Measures the additions that this machine completes in [`WORK_TIME`].
    pub(crate) fn fitted() -> Self {
        const TRY: u64 = 100_000;
        let times = (0..20).map(|_| {
            let start = Instant::now();
            work(TRY);
            start.elapsed()
        });
        let least = times.min().expect("there are twenty").max(Duration::from_nanos(1));
        Self { additions: (TRY as f64 * WORK_TIME.as_secs_f64() / least.as_secs_f64()) as u64 }
    }

    pub(super) fn run(self, orders: Orders) -> Result<(), LabError> {
        work(self.additions);
        send(&())?;
        orders.serve(|time| Ok(self.go(time)))
    }

    fn go(self, time: Duration) -> Pacing {
        let Ok(pacing) = paced(time, || {
            work(self.additions);
            Ok::<_, Infallible>(())
        });
        pacing
    }
}

/// Runs `work` once every [`PERIOD`] for `time`. Periods that have passed meanwhile are skipped and lower the rate.
pub(crate) fn paced<E>(time: Duration, mut work: impl FnMut() -> Result<(), E>) -> Result<Pacing, E> {
    let start = Instant::now();
    let mut late = Vec::with_capacity(time.as_millis() as usize + 1);
    let mut at = PERIOD;
    while at <= time {
        if let Some(wait) = at.checked_sub(start.elapsed()) {
            std::thread::sleep(wait);
        }
        work()?;
        let now = start.elapsed();
        late.push((now - at).as_nanos() as u64);
        at += PERIOD * ((now - at).as_nanos() / PERIOD.as_nanos() + 1) as u32;
    }
    let expected = (time.as_nanos() / PERIOD.as_nanos()).max(1);
    let us = |share: f64, late: &mut [u64]| rounded(percentile(late, share).unwrap_or(0) as f64 / 1e3);
    Ok(Pacing {
        rate_share: rounded(late.len() as f64 / expected as f64),
        p50_us: us(0.5, &mut late),
        p99_us: us(0.99, &mut late),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_every_millisecond_and_missed_periods_are_left_out() {
        let pacing = Bystander { additions: 1 }.go(Duration::from_millis(20));
        assert!(pacing.rate_share > 0.2 && pacing.rate_share <= 1.0, "{pacing:?}");
        // Work that takes several periods.
        let start = Instant::now();
        work(1 << 20);
        let additions = (1 << 20) * 4_000_000 / start.elapsed().as_nanos().max(1) as u64;
        let pacing = Bystander { additions: additions.max(1) }.go(Duration::from_millis(40));
        assert!(pacing.rate_share < 0.7, "{pacing:?}");
    }
}
