//! Values in few bytes, for their quantiles.

use crate::spread::Spread;

/// Counts of values, to 1 %.
#[derive(Debug)]
pub(super) struct Values(Spread);

impl Values {
    pub(super) fn new() -> Self {
        Self(Spread::default())
    }

    pub(super) fn add(&mut self, value: u64, weight: u64) {
        // Beyond these bounds nothing is meant: a day in nanoseconds, and what a histogram counts.
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        self.0.add(value.clamp(1, 1 << 47), weight);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.0.merge(&other.0);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.total()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.total() == 0
    }

    /// `None` without values.
    pub(super) fn quantile(&self, quantile: f64) -> Option<u64> {
        self.0.quantile(quantile).map(|(_, greatest)| greatest)
    }
}
