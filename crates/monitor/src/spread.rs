//! A distribution in memory that follows what was seen, not the largest value.

use crate::limits::SPREAD_PAGES_MAX;

/// Values below have counters of their own; each doubling beyond has half as many.
const EXACT_BITS: u32 = 8;
/// Counters of one page.
const PAGE: usize = 16;

/// Counts of values within 1 %, as an `hdrhistogram` of two digits has them, of which only those parts are kept that have
/// counts: a connection has two dozen distributions, and an analysis a thousand connections. Beyond
/// [`SPREAD_PAGES_MAX`] parts, a value of a new one counts as the nearest known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spread {
    /// Numbers of the pages, ascending: apart from the counts, so that a search stays within few cache lines.
    numbers: Vec<u16>,
    pages: Vec<[u32; PAGE]>,
    total: u64,
}

fn index(value: u64) -> usize {
    let shift = (u64::BITS - EXACT_BITS) - (value | ((1 << EXACT_BITS) - 1)).leading_zeros();
    ((shift << (EXACT_BITS - 1)) as usize) + (value >> shift) as usize
}

/// The least and the greatest value that is counted at an index.
fn range(index: usize) -> (u64, u64) {
    let shift = (index >> (EXACT_BITS - 1)).saturating_sub(1);
    let low = ((index - (shift << (EXACT_BITS - 1))) as u64) << shift;
    (low, low + ((1 << shift) - 1))
}

impl Spread {
    pub(crate) fn add(&mut self, value: u64, weight: u32) {
        self.add_at(index(value), weight);
    }

    fn add_at(&mut self, index: usize, weight: u32) {
        self.total = self.total.saturating_add(u64::from(weight));
        let (number, mut slot) = ((index / PAGE) as u16, index % PAGE);
        let place = match self.numbers.binary_search(&number) {
            Ok(place) => place,
            Err(place) if self.pages.len() < SPREAD_PAGES_MAX => {
                if self.pages.len() == self.pages.capacity() {
                    // Most have few: doubling would leave half of them unused.
                    let more = 2 + self.pages.len() / 4;
                    self.pages.reserve_exact(more);
                    self.numbers.reserve_exact(more);
                }
                self.numbers.insert(place, number);
                self.pages.insert(place, [0; PAGE]);
                place
            }
            Err(0) => {
                slot = 0;
                0
            }
            Err(place) => {
                slot = PAGE - 1;
                place - 1
            }
        };
        let count = &mut self.pages[place][slot];
        *count = count.saturating_add(weight);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (index, count) in other.counts() {
            self.add_at(index, count);
        }
    }

    /// Indices with their counts, ascending.
    fn counts(&self) -> impl Iterator<Item = (usize, u32)> {
        self.numbers.iter().zip(&self.pages).flat_map(|(number, page)| {
            let first = usize::from(*number) * PAGE;
            page.iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
                .map(move |(slot, count)| (first + slot, *count))
        })
    }

    /// The sum of the weights.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The values of the counter below which `quantile` (0 to 1) of all lie; `None` without values.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<(u64, u64)> {
        let wanted = ((quantile.min(1.0) * self.total as f64).ceil() as u64).max(1);
        let mut passed = 0u64;
        let mut found = None;
        for (number, page) in self.numbers.iter().zip(&self.pages) {
            let sum: u64 = page.iter().map(|count| u64::from(*count)).sum();
            found = Some((number, page, passed));
            passed = passed.saturating_add(sum);
            if passed >= wanted {
                break;
            }
        }
        let (number, page, mut passed) = found?;
        let slot = page.iter().position(|count| {
            passed = passed.saturating_add(u64::from(*count));
            passed >= wanted
        });
        // A count that could grow no more leaves the last page short.
        Some(range(usize::from(*number) * PAGE + slot.unwrap_or(PAGE - 1)))
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;

    /// Numbers of every magnitude up to `bits` bits.
    fn numbers(count: u64, bits: u32) -> impl Iterator<Item = u64> {
        (1..=count).map(move |number| {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed >> (64 - bits + (mixed as u32 % bits))
        })
    }

    #[test]
    fn quantiles_are_those_of_a_histogram_of_two_digits() {
        for (count, bits) in [(1, 8), (10, 20), (1000, 8), (5000, 12), (5000, 16)] {
            let (mut spread, mut half) = (Spread::default(), Spread::default());
            let mut histogram = Histogram::<u32>::new(2).unwrap();
            for (at, value) in numbers(count, bits).enumerate() {
                let weight = 1 + at as u32 % 3;
                if at % 2 == 0 { &mut spread } else { &mut half }.add(value, weight);
                histogram.record_n(value, weight).unwrap();
            }
            spread.merge(&half);
            assert_eq!(spread.total(), histogram.len());
            for step in 1..=20 {
                let quantile = f64::from(step) / 20.0;
                let value = histogram.value_at_quantile(quantile);
                let expected = (histogram.lowest_equivalent(value), value);
                assert_eq!(spread.quantile(quantile), Some(expected), "{count} {bits} {quantile}");
            }
        }
        assert_eq!(Spread::default().quantile(0.5), None);
    }

    #[test]
    fn every_value_has_a_counter_and_pages_are_bounded() {
        for value in numbers(10_000, 64).chain([0, 1, 255, 256, u64::MAX]) {
            let (low, high) = range(index(value));
            assert!((low..=high).contains(&value) && high - low <= low / 100, "{value}: {low} to {high}");
        }
        let mut spread = Spread::default();
        numbers(100_000, 64).for_each(|value| spread.add(value, 1));
        assert_eq!((spread.pages.len(), spread.total()), (SPREAD_PAGES_MAX, 100_000));
        assert!(spread.numbers.is_sorted());
        assert!(spread.quantile(1.0).is_some());
    }
}
