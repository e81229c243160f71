//! Whether one endpoint still holds what it was verified to hold, and which extents of it do not.

use std::collections::BTreeSet;
use std::time::Duration;

use area::Span;
use block::{Endpoint, Medium, NullMedium, State};
use io::Io;

use crate::checkpoint::Checkpoints;
use crate::copy::Area;
use crate::cutter::{HOLE_BYTES_MAX, Piece};
use crate::engine::Engine;
use crate::error::{CopyError, End};
use crate::job::{Extents, Job, Step};
use crate::limit::Limit;
use crate::map::{Map, Status};
use crate::plan::{Plan, Refusal, compare_check};
use crate::progress::{Control, Phase, Progress};
use crate::sums::{Content, Sums};
use crate::tree::{ExtentTree, Hashed};
use crate::zero::is_zero;

/// What a comparison with sums found. Areas are joined extents, counted from the start of the range, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Recheck {
    /// Bytes of the range.
    pub bytes: u64,
    /// Extents that are not what they were.
    pub different: Vec<Area>,
    /// Extents that are not known to be different, and cannot be read as a whole.
    pub unreadable: Vec<Area>,
    /// Bytes of extents of which the sums know nothing; they were not read.
    pub unknown_bytes: u64,
    /// How long it took.
    pub duration: Duration,
    /// What limited it.
    pub limited_by: Limit,
}

impl Recheck {
    /// Bytes of which it is known whether they are what they were.
    pub fn compared_bytes(&self) -> u64 {
        self.bytes - self.unknown_bytes - self.unreadable.iter().map(|area| area.bytes).sum::<u64>()
    }
}

/// Reads what `sums` know of the range at `plan.src_offset` of `endpoint`, to its end, and compares. Of the plan only offset, chunk,
/// depth, rate and `sparse` count: with the last, holes are zero without being read. A medium that cannot be read in places does not
/// end it.
///
/// As in [`copy()`](crate::copy()), the loop belongs to this call, and memory is back in the pool afterwards.
pub fn recheck(
    io: &mut Io,
    endpoint: &mut dyn Endpoint,
    sums: &Sums,
    plan: &Plan,
    observer: &mut dyn FnMut(&Progress) -> Control,
) -> Result<Recheck, CopyError> {
    if !matches!(endpoint.state(), State::Ready) {
        return Err(Refusal::NotReady(End::Source).into());
    }
    let plan = Plan { size: Some(sums.total()), dst_offset: 0, skip_bad: true, ..plan.clone() };
    // The engine has two ends; nobody asks anything of the second.
    let nothing = NullMedium::new(sums.total(), true);
    let mut nothing = nothing.attach(io).map_err(|error| CopyError::Loop(std::io::Error::other(error)))?;
    let checked = compare_check(endpoint.capability(), nothing.capability(), &plan)?;
    if !sums.extent().is_multiple_of(checked.unit.into()) {
        let offset = sums.extent();
        let granularity = checked.unit;
        return Err(Refusal::OffsetMisaligned { end: End::Source, offset, granularity }.into());
    }
    let mut map = Map::new(sums.total());
    for sum in sums.sums().iter().filter(|sum| sum.content == Content::Unknown) {
        map.set(sum.offset, sum.offset + sum.bytes, Status::Finished);
    }
    let checkpoints = Checkpoints::none(checked.bytes);
    let mut engine = Engine::new(io, endpoint, &mut *nothing, &plan, &checked, observer, checkpoints)?;
    let mut job = Against::new(sums, plan.sparse);
    let figures = engine.run(&mut job, map)?;
    if !figures.complete {
        return Err(CopyError::Interrupted { phase: Phase::Compare, bytes_safe: engine.map.safe() });
    }
    job.unreadable.retain(|index| !job.different.contains(index));
    Ok(Recheck {
        bytes: sums.total(),
        different: job.areas(&job.different),
        unreadable: job.areas(&job.unreadable),
        unknown_bytes: sums.unknown_bytes(),
        duration: figures.duration,
        limited_by: figures.limit,
    })
}

struct Against<'a> {
    sums: &'a Sums,
    /// Holes are not read.
    sparse: bool,
    /// The sum in which the next byte lies, and that byte.
    sum: usize,
    at: u64,
    /// Of extents with data.
    tree: ExtentTree,
    /// Numbers of extents.
    different: BTreeSet<u64>,
    unreadable: BTreeSet<u64>,
}

impl<'a> Against<'a> {
    fn new(sums: &'a Sums, sparse: bool) -> Self {
        let tree = ExtentTree::new(sums.total(), sums.extent());
        let (different, unreadable) = (BTreeSet::new(), BTreeSet::new());
        let mut against = Self { sums, sparse, sum: 0, at: 0, tree, different, unreadable };
        against.advance(0);
        against
    }

    /// To the next byte of which something is known.
    fn advance(&mut self, to: u64) {
        self.at = to;
        while let Some(sum) = self.sums.sums().get(self.sum) {
            let end = sum.offset + sum.bytes;
            if self.at < end && sum.content != Content::Unknown {
                return;
            }
            self.at = self.at.max(end);
            self.sum += 1;
        }
    }

    fn areas(&self, extents: &BTreeSet<u64>) -> Vec<Area> {
        let mut areas: Vec<Area> = Vec::new();
        for index in extents {
            let offset = index * self.sums.extent();
            let bytes = self.sums.extent().min(self.sums.total() - offset);
            match areas.last_mut() {
                Some(last) if last.offset + last.bytes == offset => last.bytes += bytes,
                _ => areas.push(Area { offset, bytes }),
            }
        }
        areas
    }
}

impl Job for Against<'_> {
    const PHASE: Phase = Phase::Compare;
    const SHRINKS: bool = true;
    const SKIPS_BAD: bool = true;

    fn is_exhausted(&self, _map: &Map) -> bool {
        self.sum == self.sums.sums().len()
    }

    fn next(&mut self, chunk: u32, _map: &Map, extents: &mut Extents<'_, '_>) -> Option<Piece> {
        let (at, extent, index) = (self.at, self.sums.extent(), self.sum);
        let sum = self.sums.sums().get(index)?;
        let sum_end = sum.offset + sum.bytes;
        let extent_end = (at / extent * extent).saturating_add(extent).min(sum_end);
        let (mut end, mut zero) = (extent_end.min(at + u64::from(chunk)), false);
        if self.sparse && matches!(sum.content, Content::Zero(_)) {
            let known = extents.of(End::Source, at);
            // A hole ends where an extent does, so that what is read does, too.
            let stop = if known.end >= sum_end { sum_end } else { known.end / extent * extent };
            if !known.data && stop > at {
                (end, zero) = (stop.min(at + HOLE_BYTES_MAX), true);
            }
        }
        self.advance(end);
        Some(Piece { offset: at, length: (end - at) as u32, zero, index })
    }

    fn on_begin(&mut self, piece: &Piece) -> Step {
        if piece.zero { Step::Done } else { Step::Read([true, false]) }
    }

    fn on_read(&mut self, piece: &Piece, spans: &[Span]) -> Step {
        let bytes = &spans[0].as_slice()[..piece.length as usize];
        let different = &mut self.different;
        let mut found = |index, same: bool| {
            if !same {
                different.insert(index);
            }
        };
        match self.sums.sums()[piece.index].content {
            Content::Unknown => unreachable!("it is not read"),
            Content::Zero(_) => found(piece.offset / self.sums.extent(), is_zero(bytes)),
            Content::Data(value) => {
                let hashed = Hashed::new(piece.offset, bytes, self.sums.total());
                self.tree.add(&hashed, |index, now| found(index, now == value));
            }
        }
        Step::Done
    }

    fn on_unreadable(&mut self, piece: &Piece, map: &mut Map) {
        self.unreadable.insert(piece.offset / self.sums.extent());
        map.set(piece.offset, piece.offset + u64::from(piece.length), Status::BadSector);
    }
}
