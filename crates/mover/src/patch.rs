//! What becomes of a chunk that was read: stretches of it are written, made zero, or left alone.
//!
//! Pure: bytes in, [`Patch`]es out. Read "Zeroes" and "Incremental" in `docs/internals/mover.md` first.

use std::ops::Range;

use crate::cutter::HOLE_BYTES_MIN;
use crate::plan::CHUNK_BYTES_MAX;
use crate::zero::is_zero;

/// Where two stretches that differ lie no farther apart than this, what lies between is written too: moving 16 KiB takes
/// 10 to 20 us at 1 GB/s or so, and a request of its own costs about that.
const GAP_BYTES: usize = 16 << 10;
/// A chunk is not written in more requests than this: gaps of this part of it are always closed.
const WRITES_MAX: usize = 256;
/// Zeroes inside of data are worth a request from here on, as holes of the source are.
const ZEROES_BYTES_MIN: usize = HOLE_BYTES_MIN as usize;

// Stretches of zeroes are longer than any gap that is closed, so that these two bounds hold beside each other.
const _: () = assert!(CHUNK_BYTES_MAX as usize / WRITES_MAX <= ZEROES_BYTES_MIN);

/// A stretch of a piece that is brought to the destination. What is in none is there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Counted from the start of the piece.
    pub(crate) range: Range<u32>,
    /// Its bytes are zero, and may be made so by name.
    pub(crate) zero: bool,
}

impl Patch {
    /// All of a piece of so many bytes is written.
    pub(crate) fn all(length: u32) -> Vec<Self> {
        vec![Self { range: 0..length, zero: false }]
    }

    fn new(range: Range<usize>, zero: bool) -> Self {
        Self { range: range.start as u32..range.end as u32, zero }
    }

    /// Bytes.
    pub(crate) fn length(&self) -> u32 {
        self.range.end - self.range.start
    }
}

/// What makes the destination hold `new`, in ascending order; `old` is what it holds, if that is known. Patches begin and
/// end on multiples of `unit` bytes, or at the end. With `sparse`, stretches of zeroes that are long enough are zero patches.
pub(crate) fn patches(new: &[u8], old: Option<&[u8]>, unit: usize, sparse: bool) -> Vec<Patch> {
    let mut patches = Vec::new();
    // All at once first: most of what is compared is the same.
    if old == Some(new) {
        return patches;
    }
    let mut at = 0;
    while at < new.len() {
        let zeroes = if sparse { zeroes(new, at, unit) } else { new.len()..new.len() };
        match old {
            Some(old) => differing(&mut patches, new, old, at..zeroes.start, unit),
            None if at < zeroes.start => patches.push(Patch::new(at..zeroes.start, false)),
            None => {}
        }
        // As a whole, also where only a part of it differs: by name that costs nothing, and it becomes a hole.
        if !zeroes.is_empty() && old.is_none_or(|old| !is_zero(&old[zeroes.clone()])) {
            patches.push(Patch::new(zeroes.clone(), true));
        }
        at = zeroes.end;
    }
    patches
}

/// The same for a destination that does not zero by name after all.
pub(crate) fn without_zeroes(patches: Vec<Patch>) -> Vec<Patch> {
    let mut written: Vec<Patch> = Vec::with_capacity(patches.len());
    for Patch { range, .. } in patches {
        match written.last_mut() {
            Some(last) if last.range.end == range.start => last.range.end = range.end,
            _ => written.push(Patch { range, zero: false }),
        }
    }
    written
}

/// The first stretch of zero units from `from` on that has [`ZEROES_BYTES_MIN`] or is all of `bytes`; else empty, at the end.
///
/// Such a stretch contains a multiple of [`ZEROES_BYTES_MIN`]. So a look at each of these is enough, and where they are data
/// nothing else is looked at: 16 words of a MiB.
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
fn differing(patches: &mut Vec<Patch>, new: &[u8], old: &[u8], range: Range<usize>, unit: usize) {
    let gap = GAP_BYTES.max(new.len() / WRITES_MAX);
    let before = patches.len();
    for start in range.clone().step_by(unit) {
        let end = (start + unit).min(range.end);
        if new[start..end] == old[start..end] {
            continue;
        }
        match patches[before..].last_mut() {
            Some(last) if start - last.range.end as usize <= gap => last.range.end = end as u32,
            _ => patches.push(Patch::new(start..end, false)),
        }
    }
}

#[cfg(test)]
mod tests;
