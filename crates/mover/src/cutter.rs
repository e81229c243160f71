//! Cuts a range, or the stretches of it that are to be copied, into pieces: chunks of data, and stretches of hole.

use std::collections::VecDeque;

use block::Extent;

/// A hole shorter than this is read like data: a request saved is not worth a request more.
pub(crate) const HOLE_BYTES_MIN: u64 = 64 << 10;
/// Longest hole in one piece, so that progress and the safe offset move.
pub(crate) const HOLE_BYTES_MAX: u64 = 64 << 20;

/// What one slot carries at a time. The offset counts from the start of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Known (or, in a verification, expected) to be all zero.
    pub(crate) zero: bool,
    /// The job's own number for it.
    pub(crate) index: usize,
}

/// Walks a range, or parts of it.
#[derive(Debug)]
pub(crate) struct Cutter {
    next: u64,
    /// Of the part that `next` lies in.
    total: u64,
    /// The parts behind that one: begin and end.
    rest: VecDeque<(u64, u64)>,
    /// Where holes may begin and end, except at the end of the range.
    unit: u64,
    /// Of the stretch that `next` lies in.
    stretch_end: u64,
    stretch_zero: bool,
}

impl Cutter {
    /// What is said of a range in which holes do not count.
    pub(crate) const ALL_DATA: Extent = Extent { end: u64::MAX, data: true };

    /// All of `total` bytes.
    pub(crate) fn new(total: u64, unit: u32) -> Self {
        Self::over([(0, total)], unit)
    }

    /// Parts in ascending order, each from a multiple of the unit to a multiple or to the end of the range.
    pub(crate) fn over(parts: impl IntoIterator<Item = (u64, u64)>, unit: u32) -> Self {
        assert!(unit > 0);
        let rest = parts.into_iter().filter(|(start, end)| start < end).collect();
        let mut cutter =
            Self { next: 0, total: 0, rest, unit: unit.into(), stretch_end: 0, stretch_zero: false };
        cutter.enter();
        cutter
    }

    /// Goes on with the next part if this one is over.
    fn enter(&mut self) {
        if self.next == self.total
            && let Some((start, end)) = self.rest.pop_front()
        {
            (self.next, self.total, self.stretch_end) = (start, end, start);
        }
    }

    /// Whether nothing is left to be cut.
    pub(crate) fn is_done(&self) -> bool {
        self.next == self.total
    }

    /// The next piece: of data at most `chunk` bytes. `extent` tells what lies at an offset of the range.
    pub(crate) fn next(&mut self, chunk: u32, extent: impl FnMut(u64) -> Extent) -> Option<Piece> {
        if self.next == self.total {
            return None;
        }
        if self.next >= self.stretch_end {
            (self.stretch_end, self.stretch_zero) = self.stretch(chunk.into(), extent);
        }
        let most = if self.stretch_zero { HOLE_BYTES_MAX / self.unit * self.unit } else { chunk.into() };
        let length = (self.stretch_end - self.next).min(most);
        assert!(length > 0 && length <= self.total - self.next, "a piece outside the range");
        let piece = Piece { offset: self.next, length: length as u32, zero: self.stretch_zero, index: 0 };
        self.next += length;
        self.enter();
        Some(piece)
    }

    /// End and kind of the stretch at `next`: a hole, narrowed to whole units, if it is long enough; otherwise
    /// data up to such a hole, or for at least a chunk.
    fn stretch(&self, chunk: u64, mut extent: impl FnMut(u64) -> Extent) -> (u64, bool) {
        let mut at = self.next;
        loop {
            let Extent { end, data } = extent(at);
            // An endpoint that makes no headway knows nothing: the rest is data.
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

    /// Extents from a list of (end, data).
    fn cut(total: u64, unit: u32, chunk: u32, map: &[(u64, bool)]) -> Vec<(u64, u32, bool)> {
        let mut cutter = Cutter::new(total, unit);
        let mut pieces = Vec::new();
        let extent = |at: u64| {
            let (end, data) = map.iter().copied().find(|(end, _)| *end > at).unwrap_or((u64::MAX, true));
            Extent { end, data }
        };
        while let Some(piece) = cutter.next(chunk, extent) {
            pieces.push((piece.offset, piece.length, piece.zero));
        }
        pieces
    }

    #[test]
    fn data_only() {
        assert_eq!(cut(2500, 1, 1000, &[]), [(0, 1000, false), (1000, 1000, false), (2000, 500, false)]);
        assert_eq!(cut(0, 1, 1000, &[]), []);
    }

    #[test]
    fn holes_are_narrowed_to_units_and_short_ones_are_data() {
        let map = [(10_000, true), (300 * K, false), (301 * K, true), (303 * K, false), (u64::MAX, true)];
        let pieces = cut(400 * K, 4096, 1 << 20, &map);
        let first = 12_288;
        let hole = 300 * K - first;
        assert_eq!(
            pieces,
            [(0, first as u32, false), (first, hole as u32, true), (300 * K, 100 * K as u32, false)]
        );
    }

    #[test]
    fn a_hole_to_an_odd_end_and_a_long_one_in_parts() {
        let total = 150 * K * K + 77;
        let most = HOLE_BYTES_MAX as u32;
        assert_eq!(
            cut(total, 4096, 1 << 20, &[(u64::MAX, false)]),
            [
                (0, most, true),
                (HOLE_BYTES_MAX, most, true),
                (2 * HOLE_BYTES_MAX, (total - 2 * HOLE_BYTES_MAX) as u32, true)
            ]
        );
    }

    #[test]
    fn only_the_parts_asked_for() {
        let mut cutter = Cutter::over([(0, 4096), (8192, 20_000), (30_000, 30_000)], 4096);
        let mut pieces = Vec::new();
        while let Some(piece) = cutter.next(8192, |_| Cutter::ALL_DATA) {
            pieces.push((piece.offset, piece.length));
        }
        assert_eq!(pieces, [(0, 4096), (8192, 8192), (16_384, 3616)]);
        assert!(cutter.is_done() && Cutter::over([], 1).is_done());
    }

    #[test]
    fn an_endpoint_without_headway_is_all_data() {
        let mut cutter = Cutter::new(5000, 1);
        let piece = cutter.next(1 << 20, |_| Extent { end: 0, data: false }).unwrap();
        assert_eq!((piece.length, piece.zero), (5000, false));
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
