//! What the engine asks of a copy, a verification or a comparison, and what it is told.

use area::Span;
use block::{Endpoint, Extent};

use crate::cutter::Piece;
use crate::error::End;
use crate::map::Map;
use crate::patch::Patch;
use crate::progress::Phase;

/// What the engine asks of a copy, a verification or a comparison.
pub(crate) trait Job {
    const PHASE: Phase;
    /// Whether pieces may be cut smaller when memory is short.
    const SHRINKS: bool;
    /// Whether what the source's medium cannot read is skipped, if the plan says so.
    const SKIPS_BAD: bool = false;

    /// Areas of one chunk that a slot holds. With two, each end is read into its own.
    fn spans(&self) -> usize {
        1
    }
    /// Most pieces in flight.
    fn depth_max(&self) -> usize {
        usize::MAX
    }
    /// Bytes of a chunk for this job, given those of the job before.
    fn chunk(&self, chunk: u32) -> u32 {
        chunk
    }
    /// Whether [`Job::next`] has nothing more, given what is known of the range.
    fn is_exhausted(&self, map: &Map) -> bool;
    /// The next piece, at most `chunk` bytes if it is to be read. It is begun at once.
    fn next(&mut self, chunk: u32, map: &Map, extents: &mut Extents<'_, '_>) -> Option<Piece>;
    /// What to do with a new piece.
    fn on_begin(&mut self, piece: &Piece) -> Step;
    /// What to do with a piece that was read, into `spans`.
    fn on_read(&mut self, piece: &Piece, spans: &[Span]) -> Step;
    /// A piece that the source's medium could not read; says so in `map`. Asked with `SKIPS_BAD`.
    fn on_unreadable(&mut self, piece: &Piece, map: &mut Map) {
        unreachable!("{piece:?} of {map:?} is not skipped");
    }
}

/// What happens to a slot next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read from the source, from the destination, or both.
    Read([bool; 2]),
    /// Bring these stretches of the piece, which the first span holds, to the destination. There is at least one.
    Write(Vec<Patch>),
    /// Make the piece, which was not read, zero.
    Zero,
    /// The piece is finished.
    Done,
    /// The job has its answer: begin no more. The piece does not count as finished.
    Halt,
}

/// What endpoints know about holes, counted from the start of the range.
pub(crate) struct Extents<'e, 'a> {
    pub(crate) ends: &'e mut [&'a mut dyn Endpoint; 2],
    pub(crate) offsets: [u64; 2],
}

impl Extents<'_, '_> {
    /// The extent of one end that contains byte `at` of the range.
    pub(crate) fn of(&mut self, end: End, at: u64) -> Extent {
        let start = self.offsets[end.index()];
        let extent = self.ends[end.index()].extent(start + at);
        Extent { end: extent.end.saturating_sub(start), data: extent.data }
    }

    /// A hole only where both ends have one.
    pub(crate) fn of_both(&mut self, at: u64) -> Extent {
        let [a, b] = End::BOTH.map(|end| self.of(end, at));
        Extent { end: a.end.min(b.end), data: a.data || b.data }
    }
}
