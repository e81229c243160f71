//! Source to destination, one flush, and the verification if asked for.

use area::Span;
use std::time::Duration;

use block::{Endpoint, Identity, IoErrorKind, State};
use io::Io;
use tracing::warn;

use crate::cutter::{Cutter, Piece};
use crate::engine::{Engine, Extents, Job, Side, Step};
use crate::error::{CopyError, End};
use crate::limit::{Limit, Shares};
use crate::plan::{Checked, Plan, Refusal, plan_check};
use crate::progress::{Control, Phase, Progress};
use crate::verify::{Digests, Verify};
use crate::zero::is_zero;

/// What a finished copy was like.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Bytes of the range.
    pub bytes: u64,
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
    /// The destination lost what it had accepted ([`IoErrorKind::CacheLost`]), and all was copied once more. The figures
    /// are those of the second time, but for `seconds`.
    pub copied_again: bool,
}

/// Copies the range of `plan` from `source` to `destination`, flushes once, and verifies if asked.
///
/// If the flush says that the destination's cache was lost, all is copied a second time by durable writes, which no
/// further loss can undo. It is not tried a third time.
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
    both_ready(source, destination)?;
    if source.identity() != Identity::Unique && source.identity() == destination.identity() {
        return Err(Refusal::Same.into());
    }
    let checked = plan_check(source.capability(), destination.capability(), plan)?;
    let mut engine = Engine::new(io, source, destination, plan, &checked, observer)?;
    let mut job = Copy::new(plan, &checked);
    let mut figures = engine.run(&mut job)?;
    let mut flushed = engine.flush();
    let mut before = Duration::ZERO;
    if let Err(CopyError::Flush(error)) = &flushed
        && error.kind == IoErrorKind::CacheLost
        && figures.safe == checked.bytes
    {
        warn!(%error, "copying all of it again, by durable writes");
        before = figures.duration;
        job = Copy::new(plan, &checked);
        engine.write_through();
        figures = engine.run(&mut job)?;
        flushed = engine.flush();
    }
    let flush = flushed?;
    let chunk = engine.chunk();
    if figures.safe < checked.bytes {
        return Err(CopyError::Interrupted { phase: Phase::Copy, bytes_safe: figures.safe });
    }
    let mut verify_seconds = 0.0;
    if let Some(digests) = job.digests {
        let mut job = Verify::new(digests, plan.dst_offset);
        let figures = engine.run(&mut job)?;
        if let Some((offset, length)) = job.difference() {
            return Err(CopyError::Verify { offset, length });
        }
        if figures.safe < checked.bytes {
            return Err(CopyError::Interrupted { phase: Phase::Verify, bytes_safe: checked.bytes });
        }
        verify_seconds = figures.duration.as_secs_f64();
    }
    Ok(Report {
        bytes: checked.bytes,
        seconds: (before + figures.duration + flush).as_secs_f64(),
        chunks: figures.pieces,
        read: figures.sides[End::Source.index()],
        write: figures.sides[End::Destination.index()],
        flush_seconds: flush.as_secs_f64(),
        zero_bytes_skipped: figures.zero_bytes,
        verified: plan.verify,
        verify_seconds,
        depth_max: figures.depth_max as u32,
        chunk,
        limited_by: figures.limit,
        shares: figures.shares,
        rate_waits: figures.rate_waits,
        retries: engine.retries(),
        copied_again: before > Duration::ZERO,
    })
}

pub(crate) fn both_ready(source: &dyn Endpoint, destination: &dyn Endpoint) -> Result<(), Refusal> {
    for (end, endpoint) in [(End::Source, source), (End::Destination, destination)] {
        if !matches!(endpoint.state(), State::Ready) {
            return Err(Refusal::NotReady(end));
        }
    }
    Ok(())
}

struct Copy {
    cutter: Cutter,
    sparse: bool,
    digests: Option<Digests>,
}

impl Copy {
    fn new(plan: &Plan, checked: &Checked) -> Self {
        Self {
            cutter: Cutter::new(checked.bytes, checked.unit),
            sparse: plan.sparse,
            digests: plan.verify.then(Digests::default),
        }
    }
}

impl Job for Copy {
    const PHASE: Phase = Phase::Copy;
    const SPANS: usize = 1;
    const SHRINKS: bool = true;

    fn next(&mut self, chunk: u32, extents: &mut Extents<'_, '_>) -> Option<Piece> {
        let mut piece = if self.sparse {
            self.cutter.next(chunk, |at| extents.of(End::Source, at))
        } else {
            self.cutter.next(chunk, |_| Cutter::ALL_DATA)
        }?;
        if let Some(digests) = &mut self.digests {
            piece.index = digests.push(piece.length);
        }
        Some(piece)
    }

    fn on_begin(&mut self, piece: &Piece) -> Step {
        if piece.zero { Step::Zero { blank: false } } else { Step::Read([true, false]) }
    }

    fn on_read(&mut self, piece: &Piece, spans: &[Span]) -> Step {
        let bytes = &spans[0].as_slice()[..piece.length as usize];
        if self.sparse && is_zero(bytes) {
            return Step::Zero { blank: true };
        }
        if let Some(digests) = &mut self.digests {
            digests.set(piece.index, bytes);
        }
        Step::Write
    }
}
