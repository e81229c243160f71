//! The extents known ahead of use: one contiguous range of the export, from successive block status replies.

use std::collections::VecDeque;

use crate::limits::EXTENTS_MAX;

/// Contiguous extents from `start` on, each with a bit: data (or dirty), or not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    start: u64,
    /// End and bit of each extent.
    known: VecDeque<(u64, bool)>,
}

impl Extents {
    /// End and bit of the extent that contains `offset`.
    pub(crate) fn at(&self, offset: u64) -> Option<(u64, bool)> {
        if offset < self.start {
            return None;
        }
        self.known.get(self.known.partition_point(|(end, _)| *end <= offset)).copied()
    }

    /// Drops the extents that end at or before `offset`.
    pub(crate) fn drop_before(&mut self, offset: u64) {
        while let Some((end, _)) = self.known.pop_front_if(|(end, _)| *end <= offset) {
            self.start = end;
        }
    }

    /// The offset of the next request for a caller at `offset`: the end of the known extents, outside of them `offset`.
    pub(crate) fn next(&self, offset: u64) -> u64 {
        let end = self.known.back().map_or(self.start, |(end, _)| *end);
        if (self.start..=end).contains(&offset) { end } else { offset }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.known.len() < EXTENTS_MAX
    }

    /// Adds extents (length and bit of each) from `offset` on; they replace the known ones unless they are adjacent.
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

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

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
        assert_eq!(extents.at(3), Some((10, true)), "a query further ahead drops nothing");
        extents.drop_before(19);
        assert_eq!((extents.at(3), extents.at(10)), (None, Some((20, false))));
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
        extents.drop_before(1);
        assert!(extents.has_room() && extents.at(0).is_none() && extents.at(1).is_some());
    }
}
