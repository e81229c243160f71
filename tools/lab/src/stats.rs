//! Medians, percentiles and spreads.

use serde::Serialize;

/// Median, minimum and maximum of several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Of an even number of values, the mean of the middle two.
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) greatest: f64,
}

impl Spread {
    /// The spread of the finite values; `None` if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) };
        Some(Self { median: rounded(median), least: rounded(first), greatest: rounded(last) })
    }

    pub(crate) fn exact(value: f64) -> Self {
        Self { median: value, least: value, greatest: value }
    }

    /// `median [least-greatest]`.
    pub(crate) fn show(&self) -> String {
        format!("{} [{}-{}]", short(self.median), short(self.least), short(self.greatest))
    }
}

/// A number rounded to four significant digits: JSON shows no more precision than there is.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let factor = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * factor).round() / factor
}

/// A number with three significant digits, for text.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A size in MiB, KiB or bytes, whichever divides it.
pub(crate) fn size(bytes: impl Into<u64>) -> String {
    match bytes.into() {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// The different values, in the order of their first occurrence.
pub(crate) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// The value below which `share` of the values lie. Sorts the values.
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
