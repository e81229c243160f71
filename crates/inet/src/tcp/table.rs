//! Finds connections by their ends: open addressing, linear probing. Derived from the records.

/// A table of numbers below 2^31, by hash.
#[derive(Debug)]
pub(crate) struct Table {
    /// Hash and number; a number of `EMPTY` ends a search.
    slots: Vec<(u32, u32)>,
    mask: usize,
}

const EMPTY: u32 = u32::MAX;

impl Table {
    /// At most half of the slots are ever used.
    pub(crate) fn new(entries_max: usize) -> Self {
        let slots = (2 * entries_max.max(8)).next_power_of_two();
        Self { slots: vec![(0, EMPTY); slots], mask: slots - 1 }
    }

    /// The first entry of a hash for which `is_it` holds.
    pub(crate) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = hash as usize & self.mask;
        loop {
            let (other, number) = self.slots[at];
            if number == EMPTY {
                return None;
            }
            if other == hash && is_it(number) {
                return Some(number);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// # Panics
    /// If more entries are there than `new` was given.
    pub(crate) fn insert(&mut self, hash: u32, number: u32) {
        let mut at = hash as usize & self.mask;
        let first = at;
        while self.slots[at].1 != EMPTY {
            at = (at + 1) & self.mask;
            assert_ne!(at, first, "the table of connections is full");
        }
        self.slots[at] = (hash, number);
    }

    pub(crate) fn remove(&mut self, hash: u32, number: u32) {
        let mut hole = hash as usize & self.mask;
        while self.slots[hole] != (hash, number) {
            if self.slots[hole].1 == EMPTY {
                return;
            }
            hole = (hole + 1) & self.mask;
        }
        // Entries behind the hole move into it unless they already lie at or behind their own place.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let (other, number) = self.slots[at];
            if number == EMPTY {
                break;
            }
            let place = other as usize & self.mask;
            if (at.wrapping_sub(place) & self.mask) >= (at.wrapping_sub(hole) & self.mask) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = (0, EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn finds_what_was_inserted_and_not_removed(steps in prop::collection::vec((0..12u32, 0..16u32), 0..200)) {
            // Hashes of few values, at the end of the table: long runs that wrap.
            let hash = |number: u32| 29 + number % 5;
            let (mut table, mut model) = (Table::new(16), std::collections::BTreeSet::new());
            for (step, number) in steps {
                if step < 6 && model.insert(number) {
                    table.insert(hash(number), number);
                } else if step >= 6 {
                    model.remove(&number);
                    table.remove(hash(number), number);
                }
                for number in 0..16 {
                    let found = table.find(hash(number), |other| other == number).is_some();
                    prop_assert_eq!(found, model.contains(&number));
                }
            }
        }
    }
}
