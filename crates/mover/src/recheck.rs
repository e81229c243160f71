//! Comparison of an endpoint with the sums of an earlier verification, by extent.

use std::collections::BTreeSet;
use std::time::Duration;

use area::Span;
use block::{Endpoint, Medium, NullMedium, State};
use io::Io;

use crate::checkpoint::Checkpoints;
use crate::copy::Area;
use crate::cutter::{HOLE_BYTES_MAX, Run};
use crate::engine::Engine;
use crate::error::{CopyError, End};
use crate::limit::Limit;
use crate::map::{Map, Status};
use crate::operation::{Extents, Operation, Step};
use crate::plan::{Plan, Refusal, compare_check};
use crate::progress::{Control, Phase, Progress};
use crate::sums::{Content, Sums};
use crate::tree::{ExtentTree, Hashed};
use crate::zero::is_zero;

/// The result of a comparison with sums. Areas are joined extents, counted from the start of the range, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Recheck {
    pub bytes: u64,
    /// Extents whose content differs from the sums.
    pub different: Vec<Area>,
    /// Extents that could not be read completely and are not known to differ.
    pub unreadable: Vec<Area>,
    /// Bytes of extents without a sum; they were not read.
    pub unknown_bytes: u64,
    pub duration: Duration,
    pub limited_by: Limit,
}

impl Recheck {
    /// Bytes of extents whose comparison has a result.
    pub fn compared_bytes(&self) -> u64 {
        self.bytes - self.unknown_bytes - self.unreadable.iter().map(|area| area.bytes).sum::<u64>()
    }
}

/// Reads the extents that have a sum, in the range from `plan.src_offset` of `endpoint` to its end, and compares. Only
/// offset, chunk, depth, rate and `sparse` of the plan are used: with `sparse`, holes count as zero without being read.
/// Unreadable places of the medium do not end the comparison.
///
/// As with [`copy()`](crate::copy()), the loop belongs to this call, and all memory is back in the pool afterwards.
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
    // The engine requires two ends; the second one gets no requests.
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
    let mut operation = Against::new(sums, plan.sparse);
    let figures = engine.run(&mut operation, map)?;
    if !figures.complete {
        return Err(CopyError::Interrupted { phase: Phase::Compare, bytes_safe: engine.map.safe() });
    }
    operation.unreadable.retain(|index| !operation.different.contains(index));
    Ok(Recheck {
        bytes: sums.total(),
        different: operation.areas(&operation.different),
        unreadable: operation.areas(&operation.unreadable),
        unknown_bytes: sums.unknown_bytes(),
        duration: figures.duration,
        limited_by: figures.limit,
    })
}

struct Against<'a> {
    sums: &'a Sums,
    sparse: bool,
    /// Index of the sum that contains the next byte, and the offset of that byte.
    sum: usize,
    at: u64,
    tree: ExtentTree,
    /// Indices of extents.
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

    /// Moves to the next byte, from `to` on, that has a sum.
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

impl Operation for Against<'_> {
    const PHASE: Phase = Phase::Compare;
    const SHRINKS: bool = true;
    const SKIPS_BAD: bool = true;

    fn is_exhausted(&self, _map: &Map) -> bool {
        self.sum == self.sums.sums().len()
    }

    fn next(&mut self, chunk: u32, _map: &Map, extents: &mut Extents<'_, '_>) -> Option<Run> {
        let (at, extent, index) = (self.at, self.sums.extent(), self.sum);
        let sum = self.sums.sums().get(index)?;
        let sum_end = sum.offset + sum.bytes;
        let extent_end = (at / extent * extent).saturating_add(extent).min(sum_end);
        let (mut end, mut zero) = (extent_end.min(at + u64::from(chunk)), false);
        if self.sparse && matches!(sum.content, Content::Zero(_)) {
            let known = extents.of(End::Source, at);
            // A hole is cut at the end of an extent, so that the data after it begins with an extent.
            let stop = if known.end >= sum_end { sum_end } else { known.end / extent * extent };
            if !known.data && stop > at {
                (end, zero) = (stop.min(at + HOLE_BYTES_MAX), true);
            }
        }
        self.advance(end);
        Some(Run { offset: at, length: (end - at) as u32, zero, index })
    }

    fn on_begin(&mut self, run: &Run) -> Step {
        if run.zero { Step::Done } else { Step::Read([true, false]) }
    }

    fn on_read(&mut self, run: &Run, spans: &[Span]) -> Step {
        let bytes = &spans[0].as_slice()[..run.length as usize];
        let different = &mut self.different;
        let mut found = |index, same: bool| {
            if !same {
                different.insert(index);
            }
        };
        match self.sums.sums()[run.index].content {
            Content::Unknown => unreachable!("it is not read"),
            Content::Zero(_) => found(run.offset / self.sums.extent(), is_zero(bytes)),
            Content::Data(value) => {
                let hashed = Hashed::new(run.offset, bytes, self.sums.total());
                self.tree.add(&hashed, |index, now| found(index, now == value));
            }
        }
        Step::Done
    }

    fn on_unreadable(&mut self, run: &Run, map: &mut Map) {
        self.unreadable.insert(run.offset / self.sums.extent());
        map.set(run.offset, run.offset + u64::from(run.length), Status::BadSector);
    }
}
