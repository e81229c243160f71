//! The interface between the engine and a copy, a verification or a comparison.

use area::Span;
use block::{Endpoint, Extent};

use crate::cutter::Run;
use crate::error::End;
use crate::extent::WriteExtent;
use crate::map::Map;
use crate::progress::Phase;

/// A copy, a verification or a comparison, called by the engine. For each run the engine calls `next`, `on_begin`
/// and, if the run was read, `on_read`.
pub(crate) trait Operation {
    const PHASE: Phase;
    /// Whether runs may be made smaller when memory is short.
    const SHRINKS: bool;
    /// Whether ranges that the source's medium cannot read are skipped, if the plan permits it.
    const SKIPS_BAD: bool = false;

    /// Areas per slot, each of one chunk. With two, each end is read into its own area.
    fn spans(&self) -> usize {
        1
    }
    fn depth_max(&self) -> usize {
        usize::MAX
    }
    /// Bytes of a chunk for this operation; `chunk` is that of the previous operation.
    fn chunk(&self, chunk: u32) -> u32 {
        chunk
    }
    /// Whether holes of the source are not read, and zeroed without data.
    fn skips_holes(&self) -> bool {
        false
    }
    /// Whether [`Operation::next`] has no further run for this state of the range.
    fn is_exhausted(&self, map: &Map) -> bool;
    /// The next run, at most `chunk` bytes if it is to be read. The engine starts it immediately.
    fn next(&mut self, chunk: u32, map: &Map, extents: &mut Extents<'_, '_>) -> Option<Run>;
    fn on_begin(&mut self, run: &Run) -> Step;
    fn on_read(&mut self, run: &Run, spans: &[Span]) -> Step;
    /// Records in `map` that the source's medium could not read a run. Called only with `SKIPS_BAD`.
    fn on_unreadable(&mut self, run: &Run, map: &mut Map) {
        unreachable!("{run:?} of {map:?} is not skipped");
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read from the source, the destination, or both.
    Read([bool; 2]),
    /// Write these extents of the run, which the first span holds, to the destination. Never empty.
    Write(Vec<WriteExtent>),
    /// Zero the range of the run, which was not read.
    Zero,
    Done,
    /// The result of the operation is known: start no further run. This run does not count as finished.
    Halt,
}

/// Access to the endpoints' extents, with offsets from the start of the range.
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

    /// The common extent: a hole only where both ends have one.
    pub(crate) fn of_both(&mut self, at: u64) -> Extent {
        let [a, b] = End::BOTH.map(|end| self.of(end, at));
        Extent { end: a.end.min(b.end), data: a.data || b.data }
    }
}
