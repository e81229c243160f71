//! Values in few bytes, for their quantiles.

use hdrhistogram::Histogram;

/// Counts of values, to 1 %. Its memory grows with the largest value, to 10 KiB.
#[derive(Debug)]
pub(super) struct Values(Histogram<u32>);

impl Values {
    pub(super) fn new() -> Self {
        Self(Histogram::new(2).unwrap_or_else(|_| unreachable!("two digits are valid")))
    }

    pub(super) fn add(&mut self, value: u64, weight: u64) {
        // Beyond these bounds nothing is meant: a day in nanoseconds, and what a histogram counts.
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let _ = self.0.record_n(value.clamp(1, 1 << 47), weight);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let _ = self.0.add(&other.0);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `None` without values.
    pub(super) fn quantile(&self, quantile: f64) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile))
    }
}
