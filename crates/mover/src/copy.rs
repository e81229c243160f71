//! Source to destination, one flush, and the verification if asked for.

use std::ops::Range;
use std::time::Duration;

use area::Span;

use block::{Endpoint, Identity, IoErrorKind, State};
use io::Io;
use tracing::{debug, warn};

use crate::checkpoint::{Checkpoints, Journal};
use crate::cutter::{Cutter, Piece};
use crate::engine::{Engine, Figures};
use crate::error::{CopyError, End};
use crate::job::{Extents, Job, Step};
use crate::limit::{Limit, Shares};
use crate::map::{Map, Status};
use crate::meter::Side;
use crate::patch::{Patch, patches};
use crate::plan::{Checked, Plan, Refusal, plan_check};
use crate::progress::{Control, Phase, Progress};
use crate::rescue::Rescue;
use crate::sums::Sums;
use crate::verify::{Digests, Verify};
use crate::zero::is_zero;

/// What a finished copy was like.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Bytes of the range.
    pub bytes: u64,
    /// Bytes of it that an earlier copy had finished: neither read nor written.
    pub resumed_bytes: u64,
    /// Bytes of it outside of what [`Plan::only`] names: neither read nor written.
    pub skipped_bytes: u64,
    /// Bytes of it that the destination held already, as [`Plan::differing`] found: not written.
    pub equal_bytes: u64,
    /// Bytes read from the destination to find that.
    pub compared_bytes: u64,
    /// Seconds from the first read to the end of the flush. Verification comes on top.
    pub seconds: f64,
    /// Pieces: chunks of data and stretches of hole.
    pub chunks: u64,
    /// Reads from the source.
    pub read: Side,
    /// Writes to the destination.
    pub write: Side,
    /// Seconds of the flush.
    pub flush_seconds: f64,
    /// Bytes made zero at the destination without moving zeroes.
    pub zero_bytes_skipped: u64,
    /// The destination was read back and is what was read from the source.
    pub verified: bool,
    /// Seconds of reading back.
    pub verify_seconds: f64,
    /// BLAKE3 of the range in 64 hexadecimal digits, where it was verified whole: what `b3sum` says of these bytes. `None`
    /// where something could not be read, or only block by block, and where more than 4 GiB and more than half is zero.
    pub blake3: Option<String>,
    /// What was verified, extent by extent, if [`Plan::sums`] asked for it.
    pub sums: Option<Sums>,
    /// Most chunks that were in flight.
    pub depth_max: u32,
    /// Bytes of one chunk.
    pub chunk: u32,
    /// What limited the copy, flush and verification aside.
    pub limited_by: Limit,
    /// Where its time went.
    pub shares: Shares,
    /// Times that reading waited for the rate.
    pub rate_waits: u64,
    /// Requests the endpoints repeated after a lost connection.
    pub retries: u64,
    /// The destination lost what it had accepted ([`IoErrorKind::CacheLost`]), and what was not durable was copied once
    /// more. The figures are those of the second time, but for `seconds`.
    pub copied_again: bool,
    /// The source was written while it was copied: what was copied may mix several moments of it.
    pub source_changed: bool,
    /// Claims that the journal was told.
    pub claims: u64,
    /// Bytes of the source that could not be read. The destination holds there what it held before.
    pub unreadable_bytes: u64,
    /// Areas they lie in.
    pub unreadable_areas: u64,
    /// The first [`AREAS_MAX`] of those.
    pub unreadable: Vec<Area>,
}

/// Most unreadable areas that a report lists.
pub const AREAS_MAX: usize = 100;

/// A stretch of the source, absolute in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Copies the range of `plan` from `source` to `destination`, flushes once, and verifies if asked.
///
/// If the flush says that the destination's cache was lost, what was not durable is copied a second time by durable writes,
/// which no further loss can undo. It is not tried a third time.
///
/// The loop belongs to this call until it returns: events of other owners are dropped. `observer` is called at
/// most every [`crate::OBSERVE_EVERY`] and at the end of each phase. All memory is back in the loop's pool
/// afterwards, whatever the outcome, except after [`CopyError::Loop`].
pub fn copy(
    io: &mut Io,
    source: &mut dyn Endpoint,
    destination: &mut dyn Endpoint,
    plan: &Plan,
    observer: &mut dyn FnMut(&Progress) -> Control,
) -> Result<Report, CopyError> {
    copy_claiming(io, source, destination, plan, observer, None)
}

/// As [`copy()`], and tells `journal` again and again what is durable: flushed under way, at the end, when it is interrupted,
/// and after an error as far as the destination still answers.
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
    if source.identity() != Identity::Unique && source.identity() == destination.identity() {
        return Err(Refusal::Same.into());
    }
    let checked = plan_check(source.capability(), destination.capability(), plan)?;
    let mut map = plan.map.clone().unwrap_or_else(|| Map::new(checked.bytes));
    map.fit(checked.unit, checked.block);
    if mutant::is_on(mutant::Mutant::TrustBeyond) && map.safe() > 0 {
        map.set(map.safe(), (map.safe() + 4096).min(checked.bytes), Status::Finished);
    }
    let resumed_bytes = map.bytes(Status::Finished);
    if let Some(only) = &plan.only {
        leave_out(&mut map, only);
        map.fit(checked.unit, checked.block);
    }
    let skipped_bytes = map.bytes(Status::Finished) - resumed_bytes;
    let was = source.fingerprint();
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
        let mut job = Verify::new(digests, map.clone(), plan.dst_offset, plan.sums);
        let figures = engine.run(&mut job, Map::new(checked.bytes))?;
        if let Some((offset, length)) = job.difference() {
            return Err(CopyError::Verify { offset, length });
        }
        if !figures.complete {
            return Err(CopyError::Interrupted { phase: Phase::Verify, bytes_safe: checked.bytes });
        }
        verify_seconds = figures.duration.as_secs_f64();
        (blake3, sums) = job.finish();
    }
    let unreadable = map.stretches().filter(|stretch| stretch.status.is_bad());
    let unreadable: Vec<_> = unreadable
        .map(|stretch| Area { offset: plan.src_offset + stretch.start, bytes: stretch.bytes() })
        .collect();
    Ok(Report {
        bytes: checked.bytes,
        resumed_bytes,
        skipped_bytes,
        equal_bytes,
        compared_bytes: figures.compared_bytes,
        seconds: (before + figures.duration + flush).as_secs_f64(),
        chunks: figures.pieces,
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
        retries: engine.retries(),
        copied_again: engine.is_durable(),
        source_changed,
        claims: engine.checkpoints.count,
        unreadable_bytes: unreadable.iter().map(|area| area.bytes).sum(),
        unreadable_areas: unreadable.len() as u64,
        unreadable: unreadable.into_iter().take(AREAS_MAX).collect(),
    })
}

/// All that can be copied is, and flushed.
struct Copied {
    /// Of the first pass over what was to be copied, the last time.
    figures: Figures,
    /// Time of all other passes.
    before: Duration,
    flush: Duration,
    /// Found to be the same, the last time.
    equal_bytes: u64,
}

/// What is not tried and lies outside of `only` is finished.
fn leave_out(map: &mut Map, only: &[Range<u64>]) {
    let bytes = map.size();
    let starts = [0].into_iter().chain(only.iter().map(|range| range.end));
    let ends = only.iter().map(|range| range.start).chain([bytes]);
    for (mut at, end) in starts.zip(ends) {
        while at < end {
            let stretch = map.at(at);
            let stop = stretch.end.min(end);
            if stretch.status == Status::NonTried {
                map.set(at, stop, Status::Finished);
            }
            at = stop;
        }
    }
}

/// First pass, rescue and flush; once more, durably, if the destination lost its cache. Whatever the outcome, the last claim
/// is made that can be.
fn copied(
    engine: &mut Engine<'_>,
    plan: &Plan,
    checked: &Checked,
    mut map: Map,
    digests: &mut Option<Digests>,
) -> Result<Copied, CopyError> {
    let mut before = Duration::ZERO;
    loop {
        let mut job = Copy::new(plan, checked, engine.names_zeroes(), &map, digests);
        let figures = engine.run(&mut job, map);
        let equal_bytes = job.equal_bytes;
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

/// After an error everything is drained: what is finished can still be made durable, if the destination answers.
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
    /// The destination zeroes by name: zeroes inside of data are told apart.
    names_zeroes: bool,
    /// The destination is read too.
    differing: bool,
    /// What is written of a piece begins and ends on multiples of this many bytes from its start.
    unit: u32,
    equal_bytes: u64,
    digests: &'a mut Option<Digests>,
}

impl<'a> Copy<'a> {
    /// Over what `map` says was not tried.
    fn new(
        plan: &Plan,
        checked: &Checked,
        names_zeroes: bool,
        map: &Map,
        digests: &'a mut Option<Digests>,
    ) -> Self {
        let open = map.stretches().filter(|stretch| stretch.status == Status::NonTried);
        let cutter = Cutter::over(open.map(|stretch| (stretch.start, stretch.end)), checked.unit);
        let Plan { sparse, differing, .. } = *plan;
        Self { cutter, sparse, names_zeroes, differing, unit: checked.unit, equal_bytes: 0, digests }
    }
}

impl Job for Copy<'_> {
    const PHASE: Phase = Phase::Copy;
    const SHRINKS: bool = true;
    const SKIPS_BAD: bool = true;

    fn spans(&self) -> usize {
        1 + usize::from(self.differing)
    }

    fn is_exhausted(&self, _map: &Map) -> bool {
        self.cutter.is_done()
    }

    fn next(&mut self, chunk: u32, _map: &Map, extents: &mut Extents<'_, '_>) -> Option<Piece> {
        let mut piece = match (self.sparse, self.differing) {
            (false, _) => self.cutter.next(chunk, |_| Cutter::ALL_DATA),
            (true, false) => self.cutter.next(chunk, |at| extents.of(End::Source, at)),
            (true, true) => self.cutter.next(chunk, |at| extents.of_both(at)),
        }?;
        if let Some(digests) = &mut *self.digests {
            piece.index = digests.push(piece.offset);
        }
        Some(piece)
    }

    fn on_begin(&mut self, piece: &Piece) -> Step {
        match (piece.zero, self.differing) {
            (true, true) => {
                self.equal_bytes += u64::from(piece.length);
                Step::Done
            }
            (true, false) => Step::Zero,
            (false, both) => Step::Read([true, both]),
        }
    }

    fn on_read(&mut self, piece: &Piece, spans: &[Span]) -> Step {
        let bytes = 0..piece.length as usize;
        let new = spans[0].range(bytes.clone());
        let old = spans.get(1).map(|span| span.range(bytes));
        if let Some(digests) = &mut *self.digests
            && !(self.sparse && is_zero(new))
        {
            digests.set(piece.index, new);
        }
        let sparse = self.sparse && self.names_zeroes;
        let patches = patches(new, old, self.unit as usize, sparse);
        let changed: u32 = patches.iter().map(Patch::length).sum();
        self.equal_bytes += u64::from(piece.length - changed);
        if patches.is_empty() { Step::Done } else { Step::Write(patches) }
    }

    fn on_unreadable(&mut self, piece: &Piece, map: &mut Map) {
        if let Some(digests) = &mut *self.digests {
            digests.forget(piece.index);
        }
        map.set(piece.offset, piece.offset + u64::from(piece.length), Status::NonTrimmed);
    }
}
