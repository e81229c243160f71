//! Divides a chunk that was read into parts to be written, to be zeroed, and to be left alone. Pure. Read "Zeroes" in
//! `docs/internals/mover.md` and `docs/internals/mover-incremental.md` first.

use std::ops::Range;

use crate::cutter::HOLE_BYTES_MIN;
use crate::plan::CHUNK_BYTES_MAX;
use crate::zero::is_zero;

/// A gap of at most this length between two differing ranges is written too: transferring 16 KiB takes 10 to 20 us at 1
/// GB/s, about the cost of an additional request.
const GAP_BYTES: usize = 16 << 10;
/// Bound of the write requests of a chunk: gaps up to this part of it are always closed.
const WRITES_MAX: usize = 256;
/// Shortest range of zeroes within data that is worth a request, as for holes of the source.
const ZEROES_BYTES_MIN: usize = HOLE_BYTES_MIN as usize;

// Ranges of zeroes are longer than any gap that is closed, so both bounds hold at the same time.
const _: () = assert!(CHUNK_BYTES_MAX as usize / WRITES_MAX <= ZEROES_BYTES_MIN);

/// A range of a run to be written to the destination. Ranges outside of all extents are already correct there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriteExtent {
    /// Offsets from the start of the run.
    pub(crate) range: Range<u32>,
    /// All bytes are zero, so the range may be zeroed without data.
    pub(crate) zero: bool,
}

impl WriteExtent {
    /// One extent that writes a whole run of `length` bytes.
    pub(crate) fn all(length: u32) -> Vec<Self> {
        vec![Self { range: 0..length, zero: false }]
    }

    fn new(range: Range<usize>, zero: bool) -> Self {
        Self { range: range.start as u32..range.end as u32, zero }
    }

    pub(crate) fn length(&self) -> u32 {
        self.range.end - self.range.start
    }
}

/// The extents that make the destination hold `new`, in ascending order; `old` is its content, if known. They begin and
/// end on multiples of `unit` bytes, or at the end. With `sparse`, sufficiently long ranges of zeroes become zero
/// extents.
pub(crate) fn extents(new: &[u8], old: Option<&[u8]>, unit: usize, sparse: bool) -> Vec<WriteExtent> {
    let mut extents = Vec::new();
    // Compares everything first: in a comparison most data is equal.
    if old == Some(new) {
        return extents;
    }
    let mut at = 0;
    while at < new.len() {
        let zeroes = if sparse { zeroes(new, at, unit) } else { new.len()..new.len() };
        match old {
            Some(old) => differing(&mut extents, new, old, at..zeroes.start, unit),
            None if at < zeroes.start => extents.push(WriteExtent::new(at..zeroes.start, false)),
            None => {}
        }
        // The whole range, even if only a part of it differs: zeroing without data costs nothing per byte, and makes a
        // hole.
        if !zeroes.is_empty() && old.is_none_or(|old| !is_zero(&old[zeroes.clone()])) {
            extents.push(WriteExtent::new(zeroes.clone(), true));
        }
        at = zeroes.end;
    }
    extents
}

/// The same extents for a destination that refuses to zero without data.
pub(crate) fn without_zeroes(extents: Vec<WriteExtent>) -> Vec<WriteExtent> {
    let mut written: Vec<WriteExtent> = Vec::with_capacity(extents.len());
    for WriteExtent { range, .. } in extents {
        match written.last_mut() {
            Some(last) if last.range.end == range.start => last.range.end = range.end,
            _ => written.push(WriteExtent { range, zero: false }),
        }
    }
    written
}

/// The first range of zero units from `from` on that has [`ZEROES_BYTES_MIN`] or covers all of `bytes`; otherwise an
/// empty range at the end.
///
/// Such a range contains a multiple of [`ZEROES_BYTES_MIN`], so it is enough to probe each of these; where they are
/// data, nothing else is examined: 16 words per MiB.
fn zeroes(bytes: &[u8], from: usize, unit: usize) -> Range<usize> {
    let unit_end = |start: usize| (start + unit).min(bytes.len());
    let mut probe = from.next_multiple_of(ZEROES_BYTES_MIN);
    while probe < bytes.len() {
        let word = &bytes[probe..bytes.len().min(probe + 8)];
        if word.iter().any(|byte| *byte != 0) {
            probe += ZEROES_BYTES_MIN;
            continue;
        }
        let mut start = probe / unit * unit;
        let mut end = start;
        while end < bytes.len() && is_zero(&bytes[end..unit_end(end)]) {
            end = unit_end(end);
        }
        while end > start && start > from && is_zero(&bytes[start - unit..start]) {
            start -= unit;
        }
        if end - start >= ZEROES_BYTES_MIN || end > start && end - start == bytes.len() {
            return start..end;
        }
        probe = end.max(probe + 1).next_multiple_of(ZEROES_BYTES_MIN);
    }
    bytes.len()..bytes.len()
}

/// Appends the units of `range` that differ, joined over short gaps.
fn differing(extents: &mut Vec<WriteExtent>, new: &[u8], old: &[u8], range: Range<usize>, unit: usize) {
    let gap = GAP_BYTES.max(new.len() / WRITES_MAX);
    let before = extents.len();
    for start in range.clone().step_by(unit) {
        let end = (start + unit).min(range.end);
        if new[start..end] == old[start..end] {
            continue;
        }
        match extents[before..].last_mut() {
            Some(last) if start - last.range.end as usize <= gap => last.range.end = end as u32,
            _ => extents.push(WriteExtent::new(start..end, false)),
        }
    }
}

#[cfg(test)]
mod tests;
