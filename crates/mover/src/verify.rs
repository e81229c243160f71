//! Reading the destination back and comparing it with what was read from the source, by digest.

use area::Span;

use crate::cutter::Piece;
use crate::engine::{Extents, Job, Step};
use crate::progress::Phase;
use crate::zero::is_zero;

/// What a piece of the source was.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// All zero: a hole, or data that turned out so.
    Zero,
    /// BLAKE3 of its bytes.
    Data([u8; 32]),
}

/// One entry per piece in the order they were cut, 40 bytes each (40 MiB for 1 TiB in chunks of 1 MiB).
/// Offsets follow from the lengths.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    entries: Vec<(u32, Content)>,
    /// Bytes of the longest piece that has a digest.
    longest: u32,
}

impl Digests {
    /// Appends a piece, zero until [`Digests::set`]. Gives its index.
    pub(crate) fn push(&mut self, length: u32) -> usize {
        self.entries.push((length, Content::Zero));
        self.entries.len() - 1
    }

    /// Takes the bytes of a piece.
    pub(crate) fn set(&mut self, index: usize, bytes: &[u8]) {
        assert_eq!(self.entries[index].0 as usize, bytes.len(), "the piece that was cut");
        self.longest = self.longest.max(self.entries[index].0);
        self.entries[index].1 = Content::Data(*blake3::hash(bytes).as_bytes());
    }
}

/// Reads the destination and compares.
pub(crate) struct Verify {
    digests: Digests,
    /// The entry to be read next, from this byte of it on.
    entry: usize,
    within: u32,
    /// Of that byte, in the range.
    offset: u64,
    dst_offset: u64,
    difference: Option<(u64, u64)>,
}

impl Verify {
    pub(crate) fn new(digests: Digests, dst_offset: u64) -> Self {
        Self { digests, entry: 0, within: 0, offset: 0, dst_offset, difference: None }
    }

    /// Offset in the destination and length of the first chunk that differs. Pieces are begun in order and
    /// all that were begun are looked at, so that no earlier one was missed.
    pub(crate) fn difference(&self) -> Option<(u64, u64)> {
        self.difference
    }
}

impl Job for Verify {
    const PHASE: Phase = Phase::Verify;
    const SPANS: usize = 1;
    /// The digests are of whole pieces.
    const SHRINKS: bool = false;

    /// A chunk that shrank on the way may be shorter than the first ones were.
    fn chunk(&self, chunk: u32) -> u32 {
        chunk.max(self.digests.longest)
    }

    fn next(&mut self, chunk: u32, _extents: &mut Extents<'_, '_>) -> Option<Piece> {
        let (whole, content) = *self.digests.entries.get(self.entry)?;
        let zero = matches!(content, Content::Zero);
        let left = whole - self.within;
        let length = if zero { left.min(chunk) } else { left };
        let piece = Piece { offset: self.offset, length, zero, index: self.entry };
        self.offset += u64::from(length);
        self.within += length;
        if self.within == whole {
            (self.entry, self.within) = (self.entry + 1, 0);
        }
        Some(piece)
    }

    fn on_begin(&mut self, _piece: &Piece) -> Step {
        Step::Read([false, true])
    }

    fn on_read(&mut self, piece: &Piece, spans: &[Span]) -> Step {
        let bytes = &spans[0].as_slice()[..piece.length as usize];
        let same = match self.digests.entries[piece.index].1 {
            Content::Zero => is_zero(bytes),
            Content::Data(digest) => *blake3::hash(bytes).as_bytes() == digest,
        };
        if same {
            return Step::Done;
        }
        let here = (self.dst_offset + piece.offset, u64::from(piece.length));
        self.difference = Some(self.difference.map_or(here, |earlier| earlier.min(here)));
        Step::Halt
    }
}
