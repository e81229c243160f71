//! Medians, percentiles and spreads.

use serde::Serialize;

/// Median, least and greatest of some runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Of an even number, the mean of the two in the middle.
    pub(crate) median: f64,
    /// The least.
    pub(crate) least: f64,
    /// The greatest.
    pub(crate) greatest: f64,
}

impl Spread {
    /// Of these; `None` if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) };
        Some(Self { median: rounded(median), least: rounded(first), greatest: rounded(last) })
    }

    /// `median [least-greatest]`.
    pub(crate) fn show(&self) -> String {
        format!("{} [{}-{}]", short(self.median), short(self.least), short(self.greatest))
    }
}

/// Four digits that count, so that JSON does not feign more.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let factor = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * factor).round() / factor
}

/// Three digits that count, as people like them.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The value below which `share` of the values lie. Sorts them.
pub(crate) fn percentile(values: &mut [u64], share: f64) -> Option<u64> {
    values.sort_unstable();
    let last = values.len().checked_sub(1)?;
    Some(values[(last as f64 * share).round() as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_and_percentiles() {
        let spread = Spread::of([3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!((spread.median, spread.least, spread.greatest), (2.5, 1.0, 10.0));
        assert_eq!(spread.show(), "2.50 [1.00-10.0]");
        assert_eq!(Spread::of([]), None);
        let mut values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut values, 0.99), Some(99));
        assert_eq!(percentile(&mut values, 0.5), Some(51));
        assert_eq!(percentile(&mut [], 0.5), None);
    }

    #[test]
    fn four_digits_count() {
        assert_eq!(rounded(123_456.0), 123_500.0);
        assert_eq!(rounded(0.001_234_56), 0.001_235);
        assert_eq!(rounded(0.0), 0.0);
    }
}
