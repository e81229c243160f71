//! The bytes of a read that have arrived. The chunks of a structured reply may come in any order, and must not overlap.

use crate::limits::RANGES_MAX;

/// Received ranges of a read: disjoint, not adjacent, in ascending order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage {
    ranges: Vec<(u32, u32)>,
}

impl Coverage {
    /// Adds `start..end`. False: the range overlaps a received one, or there are more than `RANGES_MAX` ranges.
    pub(crate) fn add(&mut self, start: u32, end: u32) -> bool {
        debug_assert!(start < end);
        let at = self.ranges.partition_point(|(_, other)| *other < start);
        let touches_left = self.ranges.get(at).is_some_and(|(_, other)| *other == start);
        let right = at + usize::from(touches_left);
        if self.ranges.get(right).is_some_and(|(other, _)| *other < end) {
            return false;
        }
        let touches_right = self.ranges.get(right).is_some_and(|(other, _)| *other == end);
        match (touches_left, touches_right) {
            (true, true) => {
                self.ranges[at].1 = self.ranges[right].1;
                self.ranges.remove(right);
            }
            (true, false) => self.ranges[at].1 = end,
            (false, true) => self.ranges[right].0 = start,
            (false, false) if self.ranges.len() == RANGES_MAX => return false,
            (false, false) => self.ranges.insert(at, (start, end)),
        }
        true
    }

    pub(crate) fn is_whole(&self, length: u32) -> bool {
        length == 0 || self.ranges == [(0, length)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_is_whole_and_nothing_counts_twice() {
        let mut seed = 7u32;
        for _ in 0..200 {
            let mut parts: Vec<u32> = (0..16).collect();
            for i in (1..16).rev() {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                parts.swap(i, (seed >> 16) as usize % (i + 1));
            }
            let mut coverage = Coverage::default();
            for (count, part) in parts.iter().enumerate() {
                assert!(!coverage.is_whole(160), "{count} parts of 16");
                assert!(coverage.add(part * 10, part * 10 + 10));
                assert!(!coverage.clone().add(part * 10 + 9, part * 10 + 12), "its last byte again");
                let added = coverage.clone().add((part * 10).saturating_sub(1), part * 10 + 1);
                assert!(!added, "its first byte again");
            }
            assert!(coverage.is_whole(160));
        }
    }

    #[test]
    fn ranges_are_bounded() {
        let mut coverage = Coverage::default();
        for number in 0..RANGES_MAX as u32 {
            assert!(coverage.add(number * 4, number * 4 + 1));
        }
        assert!(!coverage.add(u32::MAX - 1, u32::MAX));
        assert!(coverage.add(1, 2), "one that touches needs no room");
    }
}
