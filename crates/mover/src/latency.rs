//! How long requests took.

use std::time::Duration;

/// Buckets of one power of two: a bucket is at most 1/16 (6 %) wide.
const STEPS: u64 = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Longest latency told apart from longer ones: 2^36 us, 19 hours.
const US_BITS: u32 = 36;
const BUCKETS: usize = ((US_BITS - STEP_BITS + 1) as u64 * STEPS) as usize;

/// Latency of requests, in microseconds of loop time from submission to completion. A percentile is the upper
/// end of its bucket, at most 7 % too high and never above the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: u64,
    /// 99 of 100 were at most this.
    pub p99_us: u64,
    /// Longest.
    pub max_us: u64,
}

#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_us: u128,
    max_us: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, sum_us: 0, max_us: 0 }
    }

    pub(crate) fn add(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket(us)] += 1;
        self.count += 1;
        self.sum_us += u128::from(us);
        self.max_us = self.max_us.max(us);
    }

    pub(crate) fn summary(&self) -> Latency {
        if self.count == 0 {
            return Latency::default();
        }
        Latency {
            mean_us: self.sum_us as f64 / self.count as f64,
            p50_us: self.percentile(50),
            p99_us: self.percentile(99),
            max_us: self.max_us,
        }
    }

    fn percentile(&self, percent: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                return bucket_end(index).min(self.max_us);
            }
        }
        self.max_us
    }
}

/// Below 16 us a bucket each; from there 16 to each power of two. 16 us is bucket 16, 32..33 us bucket 32.
fn bucket(us: u64) -> usize {
    let us = us.min((1 << US_BITS) - 1);
    if us < STEPS {
        return us as usize;
    }
    let shift = us.ilog2() - STEP_BITS;
    (u64::from(shift) * STEPS + (us >> shift)) as usize
}

/// Longest latency in a bucket.
fn bucket_end(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let shift = index / STEPS - 1;
    ((index % STEPS + STEPS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        let mut last = 0;
        for us in 0..100_000u64 {
            let at = bucket(us);
            assert!(at == last || at == last + 1, "{us}");
            assert!(bucket_end(at) >= us && bucket_end(at) <= us + us / 15, "{us}: {}", bucket_end(at));
            last = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_end(BUCKETS - 1), (1 << US_BITS) - 1);
    }

    #[test]
    fn summary_of_known_numbers() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.summary(), Latency::default());
        for us in 1..=100 {
            histogram.add(Duration::from_micros(us));
        }
        let summary = histogram.summary();
        assert_eq!((summary.mean_us, summary.max_us), (50.5, 100));
        assert!((50..=53).contains(&summary.p50_us) && (99..=100).contains(&summary.p99_us), "{summary:?}");
    }
}
