//! Copy from source to destination, with one flush at the end and optional verification.

use std::ops::Range;
use std::time::Duration;

use area::Span;

use block::{Endpoint, Identity, IoErrorKind, State};
use io::Io;
use tracing::{debug, warn};

use crate::checkpoint::{Checkpoints, Journal};
use crate::cutter::{Cutter, Run};
use crate::engine::{Engine, Figures};
use crate::error::{CopyError, End};
use crate::extent::{WriteExtent, extents};
use crate::impact::Yielded;
use crate::limit::{Limit, Shares};
use crate::map::{Map, Status};
use crate::meter::Side;
use crate::operation::{Extents, Operation, Step};
use crate::plan::{Checked, Plan, Refusal, plan_check};
use crate::progress::{Control, Phase, Progress};
use crate::rescue::Rescue;
use crate::sums::Sums;
use crate::verify::{Digests, Verify};
use crate::zero::is_zero;

#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub bytes: u64,
    /// Bytes moved: without holes, what was resumed, skipped, or not read for another reason.
    pub data_bytes: u64,
    /// Bytes that an earlier copy had finished: neither read nor written.
    pub resumed_bytes: u64,
    /// Bytes outside of [`Plan::only`]: neither read nor written.
    pub skipped_bytes: u64,
    /// Bytes that the destination already held, found by [`Plan::differing`]: not written.
    pub equal_bytes: u64,
    /// Bytes read from the destination for that comparison.
    pub compared_bytes: u64,
    /// Seconds from the first read to the end of the flush, without verification.
    pub seconds: f64,
    /// Number of runs: chunks of data, and holes.
    pub chunks: u64,
    pub read: Side,
    pub write: Side,
    pub flush_seconds: f64,
    /// Bytes zeroed at the destination without transferring zeroes.
    pub zero_bytes_skipped: u64,
    /// The destination was read back and equals the data read from the source.
    pub verified: bool,
    pub verify_seconds: f64,
    /// BLAKE3 of the range as 64 hexadecimal digits, as `b3sum` prints it, if the range was verified whole. `None` if a
    /// part could not be read, or was read block by block, and if more than 4 GiB and more than half of the range is
    /// zero.
    pub blake3: Option<String>,
    pub sums: Option<Sums>,
    pub depth_max: u32,
    /// Bytes of one chunk.
    pub chunk: u32,
    /// The limiting resource of the copy without flush and verification.
    pub limited_by: Limit,
    pub shares: Shares,
    /// How often reading waited for the rate limit.
    pub rate_waits: u64,
    /// How the copy gave way to other programs, if it did: of all phases.
    pub yielded: Option<Yielded>,
    /// Requests that the endpoints repeated after a lost connection.
    pub retries: u64,
    /// The destination lost acknowledged writes ([`IoErrorKind::CacheLost`]), and everything not durable was copied
    /// again. All figures except `seconds` are those of the second pass.
    pub copied_again: bool,
    /// The source was written during the copy: the copied data may mix several states of it.
    pub source_changed: bool,
    pub claims: u64,
    /// Bytes of the source that could not be read. The destination keeps its previous content there.
    pub unreadable_bytes: u64,
    pub unreadable_areas: u64,
    /// The first [`AREAS_MAX`] unreadable areas.
    pub unreadable: Vec<Area>,
}

/// Bound of the unreadable areas that a report lists.
pub const AREAS_MAX: usize = 100;

/// A range of the source; the offset is absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub offset: u64,
    pub bytes: u64,
}

/// Copies the range of `plan` from `source` to `destination`, flushes once, and verifies if requested.
///
/// If the flush ends with a lost cache, everything that is not durable is copied a second time with durable writes,
/// which a further loss cannot undo. There is no third pass.
///
/// The loop belongs to this call until it returns: events of other owners are dropped. `observer` is called at most
/// every [`crate::OBSERVE_EVERY`] and at the end of each phase. All memory is back in the loop's pool afterwards,
/// whatever the result, except after [`CopyError::Loop`].
pub fn copy(
    io: &mut Io,
    source: &mut dyn Endpoint,
    destination: &mut dyn Endpoint,
    plan: &Plan,
    observer: &mut dyn FnMut(&Progress) -> Control,
) -> Result<Report, CopyError> {
    copy_claiming(io, source, destination, plan, observer, None)
}

/// As [`copy()`], and reports to `journal` what is durable: after flushes during the copy, at the end, after an
/// interruption, and after an error if the destination still responds.
pub fn copy_with_journal(
    io: &mut Io,
    source: &mut dyn Endpoint,
    destination: &mut dyn Endpoint,
    plan: &Plan,
    observer: &mut dyn FnMut(&Progress) -> Control,
    journal: &mut dyn Journal,
) -> Result<Report, CopyError> {
    copy_claiming(io, source, destination, plan, observer, Some(journal))
}

fn copy_claiming<'a>(
    io: &'a mut Io,
    source: &'a mut dyn Endpoint,
    destination: &'a mut dyn Endpoint,
    plan: &Plan,
    observer: &'a mut dyn FnMut(&Progress) -> Control,
    journal: Option<&'a mut dyn Journal>,
) -> Result<Report, CopyError> {
    both_ready(source, destination)?;
    if source.inspect().identity() != Identity::Unique
        && source.inspect().identity() == destination.inspect().identity()
    {
        return Err(Refusal::Same.into());
    }
    let checked = plan_check(source.capability(), destination.capability(), plan)?;
    let mut map = plan.map.clone().unwrap_or_else(|| Map::new(checked.bytes));
    map.fit(checked.unit, checked.block);
    let resumed_bytes = map.bytes(Status::Finished);
    if let Some(only) = &plan.only {
        leave_out(&mut map, only);
        map.fit(checked.unit, checked.block);
    }
    let skipped_bytes = map.bytes(Status::Finished) - resumed_bytes;
    let was = source.inspect().fingerprint();
    let checkpoints = Checkpoints::new(journal, map.clone());
    let mut engine = Engine::new(io, source, destination, plan, &checked, observer, checkpoints)?;
    let mut digests = plan.verify.then(|| Digests::new(&map));
    let copied = copied(&mut engine, plan, &checked, map, &mut digests)?;
    let Copied { figures, before, flush, equal_bytes } = copied;
    let chunk = engine.chunk();
    let source_changed = engine.fingerprint(End::Source) != was;
    if source_changed {
        warn!("the source has changed while it was copied");
    }
    let map = engine.map.clone();
    let (mut verify_seconds, mut blake3, mut sums) = (0.0, None, None);
    if let Some(digests) = digests {
        let mut operation = Verify::new(digests, map.clone(), plan.dst_offset, plan.sums);
        engine.renew(End::Destination, checked.bytes);
        let figures = engine.run(&mut operation, Map::new(checked.bytes))?;
        if let Some((offset, length)) = operation.difference() {
            return Err(CopyError::Verify { offset, length });
        }
        if !figures.complete {
            return Err(CopyError::Interrupted { phase: Phase::Verify, bytes_safe: checked.bytes });
        }
        verify_seconds = figures.duration.as_secs_f64();
        (blake3, sums) = operation.finish();
    }
    let unreadable = unreadable(&map, plan.src_offset);
    Ok(Report {
        bytes: checked.bytes,
        data_bytes: figures.data_bytes,
        resumed_bytes,
        skipped_bytes,
        equal_bytes,
        compared_bytes: figures.compared_bytes,
        seconds: (before + figures.duration + flush).as_secs_f64(),
        chunks: figures.runs,
        read: figures.sides[End::Source.index()],
        write: figures.sides[End::Destination.index()],
        flush_seconds: flush.as_secs_f64(),
        zero_bytes_skipped: figures.zero_bytes,
        verified: plan.verify,
        verify_seconds,
        blake3,
        sums,
        depth_max: figures.depth_max as u32,
        chunk,
        limited_by: figures.limit,
        shares: figures.shares,
        rate_waits: figures.rate_waits,
        yielded: engine.yielded(),
        retries: engine.retries(),
        copied_again: engine.is_durable(),
        source_changed,
        claims: engine.checkpoints.count,
        unreadable_bytes: unreadable.iter().map(|area| area.bytes).sum(),
        unreadable_areas: unreadable.len() as u64,
        unreadable: unreadable.into_iter().take(AREAS_MAX).collect(),
    })
}

/// The areas of the source that could not be read.
fn unreadable(map: &Map, src_offset: u64) -> Vec<Area> {
    let bad = map.entries().filter(|entry| entry.status.is_bad());
    bad.map(|entry| Area { offset: src_offset + entry.start, bytes: entry.bytes() }).collect()
}

/// The result of the copy phases: everything that can be copied is copied and flushed.
struct Copied {
    /// Figures of the last first pass.
    figures: Figures,
    /// Duration of all other passes.
    before: Duration,
    flush: Duration,
    equal_bytes: u64,
}

/// Marks all ranges outside of `only` that were not tried as finished.
fn leave_out(map: &mut Map, only: &[Range<u64>]) {
    let bytes = map.size();
    let starts = [0].into_iter().chain(only.iter().map(|range| range.end));
    let ends = only.iter().map(|range| range.start).chain([bytes]);
    for (mut at, end) in starts.zip(ends) {
        while at < end {
            let entry = map.at(at);
            let stop = entry.end.min(end);
            if entry.status == Status::NonTried {
                map.set(at, stop, Status::Finished);
            }
            at = stop;
        }
    }
}

/// First pass, rescue and flush; all of it once more with durable writes if the destination lost its cache. In any case
/// the last possible claim is made.
fn copied(
    engine: &mut Engine<'_>,
    plan: &Plan,
    checked: &Checked,
    mut map: Map,
    digests: &mut Option<Digests>,
) -> Result<Copied, CopyError> {
    let mut before = Duration::ZERO;
    loop {
        if plan.differing {
            before += settled(engine)?;
        }
        let mut operation = Copy::new(plan, checked, engine.can_write_zeroes(), &map, digests);
        let figures = engine.run(&mut operation, map);
        let equal_bytes = operation.equal_bytes;
        let figures = figures.inspect_err(|error| last_claim(engine, error))?;
        let (mut complete, mut rescue, mut phase) = (figures.complete, Duration::ZERO, Phase::Copy);
        if complete && plan.skip_bad {
            phase = Phase::Rescue;
            let map = engine.map.clone();
            let figures = engine.run(&mut Rescue::new(checked.block, digests), map);
            let figures = figures.inspect_err(|error| last_claim(engine, error))?;
            (complete, rescue) = (figures.complete, figures.duration);
        }
        let lost = engine.checkpoints.cache_lost;
        let flushed = if lost { Ok(Duration::ZERO) } else { engine.flush() };
        let lost = match &flushed {
            Err(CopyError::Flush(error)) if error.kind == IoErrorKind::CacheLost => {
                complete && !engine.is_durable()
            }
            _ => lost,
        };
        if !lost {
            let flush = flushed?;
            if !complete {
                return Err(CopyError::Interrupted { phase, bytes_safe: engine.map.safe() });
            }
            return Ok(Copied { figures, before: before + rescue, flush, equal_bytes });
        }
        before += figures.duration + rescue;
        map = engine.checkpoints.rewind();
        warn!(bytes = map.bytes(Status::NonTried), "copying again what was not durable, by durable writes");
        if let Some(digests) = digests {
            digests.rewind(&map);
        }
        engine.write_through();
    }
}

/// Flushes before the comparison. Bytes found equal are not written, so they must be durable before they are read: a
/// destination that loses power between that read and the final flush would report no lost write of this copy. A lost
/// cache reported by this flush concerns earlier writers.
fn settled(engine: &mut Engine<'_>) -> Result<Duration, CopyError> {
    match engine.settle() {
        Err(CopyError::Flush(error)) if error.kind == IoErrorKind::CacheLost => Ok(Duration::ZERO),
        settled => settled,
    }
}

/// After an error everything is drained. Finished runs can still be made durable if the destination responds.
fn last_claim(engine: &mut Engine<'_>, error: &CopyError) {
    let hopeless = match error {
        CopyError::Read { .. } => false,
        CopyError::Write { error, .. } => matches!(error.kind, IoErrorKind::Unreachable | IoErrorKind::Gone),
        _ => true,
    };
    if engine.checkpoints.is_kept() && !hopeless && !engine.checkpoints.cache_lost {
        let claimed = engine.flush();
        debug!(?claimed, "the last claim after an error");
    }
}

pub(crate) fn both_ready(source: &dyn Endpoint, destination: &dyn Endpoint) -> Result<(), Refusal> {
    for (end, endpoint) in [(End::Source, source), (End::Destination, destination)] {
        if !matches!(endpoint.state(), State::Ready) {
            return Err(Refusal::NotReady(end));
        }
    }
    Ok(())
}

struct Copy<'a> {
    cutter: Cutter,
    sparse: bool,
    /// The destination can zero ranges without data, so zeroes within data are detected.
    can_write_zeroes: bool,
    differing: bool,
    /// Extents of a run begin and end on multiples of this many bytes from the start of the run.
    unit: u32,
    equal_bytes: u64,
    digests: &'a mut Option<Digests>,
}

impl<'a> Copy<'a> {
    /// A copy of the ranges that `map` marks as not tried.
    fn new(
        plan: &Plan,
        checked: &Checked,
        can_write_zeroes: bool,
        map: &Map,
        digests: &'a mut Option<Digests>,
    ) -> Self {
        let open = map.entries().filter(|entry| entry.status == Status::NonTried);
        let cutter = Cutter::over(open.map(|entry| (entry.start, entry.end)), checked.unit);
        let Plan { sparse, differing, .. } = *plan;
        Self { cutter, sparse, can_write_zeroes, differing, unit: checked.unit, equal_bytes: 0, digests }
    }
}

impl Operation for Copy<'_> {
    const PHASE: Phase = Phase::Copy;
    const SHRINKS: bool = true;
    const SKIPS_BAD: bool = true;

    fn spans(&self) -> usize {
        1 + usize::from(self.differing)
    }

    fn skips_holes(&self) -> bool {
        self.sparse && self.can_write_zeroes && !self.differing
    }

    fn is_exhausted(&self, _map: &Map) -> bool {
        self.cutter.is_done()
    }

    fn next(&mut self, chunk: u32, _map: &Map, extents: &mut Extents<'_, '_>) -> Option<Run> {
        let mut run = match (self.sparse, self.differing) {
            (false, _) => self.cutter.next(chunk, |_| Cutter::ALL_DATA),
            (true, false) => self.cutter.next(chunk, |at| extents.of(End::Source, at)),
            (true, true) => self.cutter.next(chunk, |at| extents.of_both(at)),
        }?;
        if let Some(digests) = &mut *self.digests {
            run.index = digests.push(run.offset);
        }
        Some(run)
    }

    fn on_begin(&mut self, run: &Run) -> Step {
        match (run.zero, self.differing) {
            (true, true) => {
                self.equal_bytes += u64::from(run.length);
                Step::Done
            }
            (true, false) => Step::Zero,
            (false, both) => Step::Read([true, both]),
        }
    }

    fn on_read(&mut self, run: &Run, spans: &[Span]) -> Step {
        let bytes = 0..run.length as usize;
        let new = spans[0].range(bytes.clone());
        let old = spans.get(1).map(|span| span.range(bytes));
        if let Some(digests) = &mut *self.digests
            && !(self.sparse && is_zero(new))
        {
            digests.set(run.index, new);
        }
        let sparse = self.sparse && self.can_write_zeroes;
        let extents = extents(new, old, self.unit as usize, sparse);
        let changed: u32 = extents.iter().map(WriteExtent::length).sum();
        self.equal_bytes += u64::from(run.length - changed);
        if extents.is_empty() { Step::Done } else { Step::Write(extents) }
    }

    fn on_unreadable(&mut self, run: &Run, map: &mut Map) {
        if let Some(digests) = &mut *self.digests {
            digests.forget(run.index);
        }
        map.set(run.offset, run.offset + u64::from(run.length), Status::NonTrimmed);
    }
}
