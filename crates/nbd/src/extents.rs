//! What is known of the extents ahead: one stretch of the export, from block status replies that follow each other.

use std::collections::VecDeque;

use crate::limits::EXTENTS_MAX;

/// Extents from `start` on, without gaps. A bit of each: data (or dirty), or not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    start: u64,
    /// End and bit of each.
    known: VecDeque<(u64, bool)>,
}

impl Extents {
    /// End and bit of the extent that contains `offset`. What lies before it is forgotten: who asks goes forward.
    pub(crate) fn at(&mut self, offset: u64) -> Option<(u64, bool)> {
        if offset < self.start {
            return None;
        }
        while let Some((end, bit)) = self.known.front().copied() {
            if offset < end {
                return Some((end, bit));
            }
            self.start = end;
            self.known.pop_front();
        }
        None
    }

    /// Where to ask on, for someone who is at `offset`: behind what is known, or at `offset` if it lies elsewhere.
    pub(crate) fn next(&self, offset: u64) -> u64 {
        let end = self.known.back().map_or(self.start, |(end, _)| *end);
        if (self.start..=end).contains(&offset) { end } else { offset }
    }

    /// Whether more can be remembered.
    pub(crate) fn has_room(&self) -> bool {
        self.known.len() < EXTENTS_MAX
    }

    /// Adds extents, length and bit each, from `offset` on; they replace what is known if they do not follow it.
    pub(crate) fn append(&mut self, offset: u64, extents: impl Iterator<Item = (u64, bool)>) {
        if self.known.back().is_none_or(|(end, _)| *end != offset) {
            self.forget();
            self.start = offset;
        }
        let mut end = offset;
        for (length, bit) in extents {
            end += length;
            let is_full = !self.has_room();
            match self.known.back_mut() {
                Some((last, same)) if *same == bit => *last = end,
                _ if is_full => return,
                _ => self.known.push_back((end, bit)),
            }
        }
    }

    /// Whether nothing is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Nothing is known any more.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_follow_each_other_are_one_stretch() {
        let mut extents = Extents::default();
        extents.append(0, [(10, true), (5, false)].into_iter());
        extents.append(15, [(5, false), (1, true)].into_iter());
        assert_eq!(extents.at(3), Some((10, true)));
        assert_eq!(extents.at(10), Some((20, false)), "merged");
        assert_eq!(extents.at(3), None, "forgotten");
        assert_eq!((extents.next(12), extents.next(21), extents.next(30)), (21, 21, 30));
        extents.append(30, [(2, true)].into_iter());
        assert_eq!((extents.at(20), extents.at(31)), (None, Some((32, true))));
        extents.forget();
        assert_eq!(extents.at(31), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut extents = Extents::default();
        extents.append(0, (0..EXTENTS_MAX as u64 * 2).map(|number| (1, number % 2 == 0)));
        assert!(!extents.has_room() && extents.known.len() == EXTENTS_MAX);
    }
}
