//! Latency of requests.

use std::time::Duration;

/// Longest latency that is distinguished: 2^36 us, 19 hours.
const US_MAX: u64 = 1 << 36;
/// Two significant digits: a percentile is at most 1 % too high.
const DIGITS: u8 = 2;

/// Latency of requests in microseconds of loop time, from submission to completion; never above the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    pub mean_us: f64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

#[derive(Debug)]
pub(crate) struct Histogram {
    counts: hdrhistogram::Histogram<u64>,
    /// Mean and maximum are exact.
    sum_us: u128,
    max_us: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        let counts = hdrhistogram::Histogram::new_with_max(US_MAX, DIGITS).expect("constant bounds");
        Self { counts, sum_us: 0, max_us: 0 }
    }

    pub(crate) fn add(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.counts.saturating_record(us);
        self.sum_us += u128::from(us);
        self.max_us = self.max_us.max(us);
    }

    pub(crate) fn summary(&self) -> Latency {
        if self.counts.is_empty() {
            return Latency::default();
        }
        let quantile = |quantile| self.counts.value_at_quantile(quantile).min(self.max_us);
        Latency {
            mean_us: self.sum_us as f64 / self.counts.len() as f64,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            max_us: self.max_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_at_most_one_in_a_hundred_too_high() {
        let powers = (12..36).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) * 11 / 8]);
        for us in (0..3000).chain(powers).chain([US_MAX, US_MAX + 1, u64::MAX / 1000]) {
            let mut histogram = Histogram::new();
            histogram.add(Duration::from_micros(us));
            histogram.add(Duration::from_micros(u64::MAX));
            let found = histogram.summary().p50_us;
            let us = us.min(US_MAX);
            assert!(found >= us && found <= us + us / 100, "{us}: {found}");
        }
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
