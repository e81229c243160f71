//! The requests that a piece is moved in at one end.

use crate::patch::Patch;

/// How pieces are cut for one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// Longest request: what the endpoint takes, in whole units, or in whole blocks if it is that short.
    bytes_max: u32,
    block: u32,
}

impl Parts {
    /// For an end that takes `most` bytes in a request, and those in blocks of `block`. `unit` is the plan's.
    pub(crate) fn new(most: u32, block: u32, unit: u32) -> Self {
        let step = if most >= unit { unit } else { block };
        Self { bytes_max: (most / step).max(1) * step, block }
    }

    pub(crate) fn bytes_max(self) -> u32 {
        self.bytes_max
    }

    /// Requests of a piece of `length` bytes.
    pub(crate) fn count(self, length: u32) -> u32 {
        length.div_ceil(self.bytes_max)
    }

    /// Offset and length within a piece of `length` bytes of its read number `part`. The last one goes on to the end of its
    /// block.
    pub(crate) fn part(self, length: u32, part: u32) -> (u32, u32) {
        let start = part * self.bytes_max;
        (start, (length - start).min(self.bytes_max).next_multiple_of(self.block))
    }

    /// Patches that are one request each.
    pub(crate) fn cut(self, patches: Vec<Patch>) -> Vec<Patch> {
        let is_one = |patch: &Patch| patch.length() <= self.bytes_max;
        if patches.iter().all(is_one) {
            return patches;
        }
        let requests = patches.into_iter().flat_map(|Patch { range, zero }| {
            let starts = range.clone().step_by(self.bytes_max as usize);
            starts.map(move |start| Patch { range: start..range.end.min(start + self.bytes_max), zero })
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
        let patch = |start, end, zero| Patch { range: start..end, zero };
        let cut = parts.cut(vec![patch(4096, 12_288, false), patch(12_288, 28_772, true)]);
        let expected = [
            patch(4096, 12_288, false),
            patch(12_288, 20_480, true),
            patch(20_480, 28_672, true),
            patch(28_672, 28_772, true),
        ];
        assert_eq!(cut, expected);
    }
}
