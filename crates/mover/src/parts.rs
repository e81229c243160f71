//! The requests of a run at one end.

use crate::extent::WriteExtent;

/// Divides runs into requests for one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// Longest request: the endpoint's maximum in whole units, or in whole blocks if it is below a unit.
    bytes_max: u32,
    block: u32,
}

impl Parts {
    /// For an end with requests of at most `most` bytes in blocks of `block`. `unit` is that of the plan.
    pub(crate) fn new(most: u32, block: u32, unit: u32) -> Self {
        let step = if most >= unit { unit } else { block };
        Self { bytes_max: (most / step).max(1) * step, block }
    }

    pub(crate) fn bytes_max(self) -> u32 {
        self.bytes_max
    }

    pub(crate) fn count(self, length: u32) -> u32 {
        length.div_ceil(self.bytes_max)
    }

    /// Offset and length of read number `part` of a run of `length` bytes; the last extends to the end of its block.
    pub(crate) fn part(self, length: u32, part: u32) -> (u32, u32) {
        let start = part * self.bytes_max;
        (start, (length - start).min(self.bytes_max).next_multiple_of(self.block))
    }

    pub(crate) fn cut(self, extents: Vec<WriteExtent>) -> Vec<WriteExtent> {
        let is_one = |extent: &WriteExtent| extent.length() <= self.bytes_max;
        if extents.iter().all(is_one) {
            return extents;
        }
        let requests = extents.into_iter().flat_map(|WriteExtent { range, zero }| {
            let starts = range.clone().step_by(self.bytes_max as usize);
            starts.map(move |start| WriteExtent { range: start..range.end.min(start + self.bytes_max), zero })
        });
        requests.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u32 = 4096;

    #[test]
    fn requests_are_whole_units_where_that_is_possible() {
        for (most, block, expected) in [
            (1 << 20, 512, 1 << 20),
            (10_000, 512, 8192),
            (4096, 1, 4096),
            (2000, 512, 1536),
            (100, 512, 512),
        ] {
            assert_eq!(Parts::new(most, block, UNIT).bytes_max(), expected, "{most}");
        }
    }

    #[test]
    fn reads_follow_each_other_and_cover_the_piece() {
        for length in [1, 4096, 8192, 8193, 100_000] {
            let parts = Parts::new(8192, 1, UNIT);
            let mut at = 0;
            for part in 0..parts.count(length) {
                let (start, bytes) = parts.part(length, part);
                assert_eq!(start, at);
                at += bytes;
            }
            assert_eq!(at, length);
        }
    }

    #[test]
    fn a_read_goes_on_to_the_end_of_its_block() {
        let parts = Parts::new(8192, 512, UNIT);
        assert_eq!(parts.part(8192 + 100, 1), (8192, 512));
    }

    #[test]
    fn patches_that_are_too_long_are_several_requests_and_end_where_they_did() {
        let parts = Parts::new(8192, 512, UNIT);
        let extent = |start, end, zero| WriteExtent { range: start..end, zero };
        let cut = parts.cut(vec![extent(4096, 12_288, false), extent(12_288, 28_772, true)]);
        let expected = [
            extent(4096, 12_288, false),
            extent(12_288, 20_480, true),
            extent(20_480, 28_672, true),
            extent(28_672, 28_772, true),
        ];
        assert_eq!(cut, expected);
    }
}
