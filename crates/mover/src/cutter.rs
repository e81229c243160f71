//! Cuts a range, or parts of it, into runs: chunks of data, and holes.

use std::collections::VecDeque;

use block::Extent;

/// Shorter holes are read like data: the saved transfer is not worth an additional request.
pub(crate) const HOLE_BYTES_MIN: u64 = 64 << 10;
/// Longest hole in one run: bounds the steps of progress and of the safe offset.
pub(crate) const HOLE_BYTES_MAX: u64 = 64 << 20;

/// The work of one slot. The offset counts from the start of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Known (or, in a verification, expected) to be zero in every byte.
    pub(crate) zero: bool,
    /// Index assigned by the operation.
    pub(crate) index: usize,
}

#[derive(Debug)]
pub(crate) struct Cutter {
    next: u64,
    /// End of the part that contains `next`.
    total: u64,
    /// The remaining parts: begin and end.
    rest: VecDeque<(u64, u64)>,
    /// Granularity of holes, except at the end of the range.
    unit: u64,
    /// End of the extent that contains `next`.
    extent_end: u64,
    extent_is_zero: bool,
}

impl Cutter {
    /// The extent of a range in which holes are ignored.
    pub(crate) const ALL_DATA: Extent = Extent { end: u64::MAX, data: true };

    pub(crate) fn new(total: u64, unit: u32) -> Self {
        Self::over([(0, total)], unit)
    }

    /// Parts in ascending order; each begins on a multiple of the unit, and ends on one or at the end of the range.
    pub(crate) fn over(parts: impl IntoIterator<Item = (u64, u64)>, unit: u32) -> Self {
        assert!(unit > 0);
        let rest = parts.into_iter().filter(|(start, end)| start < end).collect();
        let mut cutter =
            Self { next: 0, total: 0, rest, unit: unit.into(), extent_end: 0, extent_is_zero: false };
        cutter.enter();
        cutter
    }

    fn enter(&mut self) {
        if self.next == self.total
            && let Some((start, end)) = self.rest.pop_front()
        {
            (self.next, self.total, self.extent_end) = (start, end, start);
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.next == self.total
    }

    /// The next run; a run of data has at most `chunk` bytes. `extent` returns the extent at an offset of the range.
    pub(crate) fn next(&mut self, chunk: u32, extent: impl FnMut(u64) -> Extent) -> Option<Run> {
        if self.next == self.total {
            return None;
        }
        if self.next >= self.extent_end {
            (self.extent_end, self.extent_is_zero) = self.next_range(chunk.into(), extent);
        }
        let most = if self.extent_is_zero { HOLE_BYTES_MAX / self.unit * self.unit } else { chunk.into() };
        let length = (self.extent_end - self.next).min(most);
        assert!(length > 0 && length <= self.total - self.next, "a run outside the range");
        let run = Run { offset: self.next, length: length as u32, zero: self.extent_is_zero, index: 0 };
        self.next += length;
        self.enter();
        Some(run)
    }

    /// End and kind of the extent at `next`: a hole, narrowed to whole units, if it is long enough; otherwise data up
    /// to such a hole, or for at least one chunk.
    fn next_range(&self, chunk: u64, mut extent: impl FnMut(u64) -> Extent) -> (u64, bool) {
        let mut at = self.next;
        loop {
            let Extent { end, data } = extent(at);
            // An extent that does not advance is invalid: the rest counts as data.
            let (end, data) = if end > at { (end.min(self.total), data) } else { (self.total, true) };
            if !data {
                let stop = if end == self.total { end } else { end / self.unit * self.unit };
                if stop.checked_sub(at).is_some_and(|length| length >= HOLE_BYTES_MIN) {
                    return if at == self.next { (stop, true) } else { (at, false) };
                }
            }
            at = end.checked_next_multiple_of(self.unit).map_or(self.total, |end| end.min(self.total));
            if at == self.total || at - self.next >= chunk {
                return (at, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1024;

    /// The runs for a list of extents (end, data).
    fn cut(total: u64, unit: u32, chunk: u32, map: &[(u64, bool)]) -> Vec<(u64, u32, bool)> {
        let mut cutter = Cutter::new(total, unit);
        let mut runs = Vec::new();
        let extent = |at: u64| {
            let (end, data) = map.iter().copied().find(|(end, _)| *end > at).unwrap_or((u64::MAX, true));
            Extent { end, data }
        };
        while let Some(run) = cutter.next(chunk, extent) {
            runs.push((run.offset, run.length, run.zero));
        }
        runs
    }

    #[test]
    fn data_only() {
        assert_eq!(cut(2500, 1, 1000, &[]), [(0, 1000, false), (1000, 1000, false), (2000, 500, false)]);
        assert_eq!(cut(0, 1, 1000, &[]), []);
    }

    #[test]
    fn holes_are_narrowed_to_units_and_short_ones_are_data() {
        let map = [(10_000, true), (300 * K, false), (301 * K, true), (303 * K, false), (u64::MAX, true)];
        let runs = cut(400 * K, 4096, 1 << 20, &map);
        let first = 12_288;
        let hole = 300 * K - first;
        let expected =
            [(0, first as u32, false), (first, hole as u32, true), (300 * K, 100 * K as u32, false)];
        assert_eq!(runs, expected);
    }

    #[test]
    fn a_hole_to_an_odd_end_and_a_long_one_in_parts() {
        let total = 150 * K * K + 77;
        let most = HOLE_BYTES_MAX as u32;
        let expected = [
            (0, most, true),
            (HOLE_BYTES_MAX, most, true),
            (2 * HOLE_BYTES_MAX, (total - 2 * HOLE_BYTES_MAX) as u32, true),
        ];
        assert_eq!(cut(total, 4096, 1 << 20, &[(u64::MAX, false)]), expected);
    }

    #[test]
    fn only_the_parts_asked_for() {
        let mut cutter = Cutter::over([(0, 4096), (8192, 20_000), (30_000, 30_000)], 4096);
        let mut runs = Vec::new();
        while let Some(run) = cutter.next(8192, |_| Cutter::ALL_DATA) {
            runs.push((run.offset, run.length));
        }
        assert_eq!(runs, [(0, 4096), (8192, 8192), (16_384, 3616)]);
        assert!(cutter.is_done() && Cutter::over([], 1).is_done());
    }

    #[test]
    fn an_endpoint_without_headway_is_all_data() {
        let mut cutter = Cutter::new(5000, 1);
        let run = cutter.next(1 << 20, |_| Extent { end: 0, data: false }).unwrap();
        assert_eq!((run.length, run.zero), (5000, false));
    }

    #[test]
    fn the_end_of_the_number_range() {
        let mut cutter = Cutter::new(u64::MAX, 4096);
        cutter.next = u64::MAX - 100;
        let extent = |_| Extent { end: u64::MAX, data: true };
        assert_eq!(cutter.next(1 << 20, extent).unwrap().length, 100);
        assert_eq!(cutter.next(1 << 20, extent), None);
    }

    #[test]
    fn pieces_tile_any_map() {
        let mut seed = 0x1234_5678_9abc_def1u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for round in 0..200 {
            let unit = [1u32, 512, 4096, 8192][random(4) as usize];
            let total = random(3 << 20) + 1;
            let chunk = (random(64) as u32 + 1) * 8192;
            let (mut map, mut at) = (Vec::new(), 0);
            while at < total {
                at += random(300 << 10) + 1;
                map.push((at, random(2) == 0));
            }
            let kind = |byte: u64| map.iter().find(|(end, _)| *end > byte).is_none_or(|(_, data)| *data);
            let mut next = 0;
            for (offset, length, zero) in cut(total, unit, chunk, &map) {
                assert_eq!(offset, next, "round {round}");
                assert!(length > 0 && (zero || length <= chunk));
                next = offset + u64::from(length);
                if next != total {
                    assert!(next.is_multiple_of(unit.into()), "round {round}: {next} of unit {unit}");
                }
                let zeroes = (offset..next).step_by(64).chain([next - 1]).all(|byte| !kind(byte));
                assert!(!zero || zeroes, "round {round}: data taken for a hole");
            }
            assert_eq!(next, total, "round {round}");
        }
    }
}
