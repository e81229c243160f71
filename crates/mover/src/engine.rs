//! The slot machine: what copy, verification and comparison have in common.
//!
//! A slot carries one piece from `Free` through `Reading` and `Writing` (or `Zeroing`) back to `Free`. One owner
//! loop decides (`select`) and does (`apply`); neither waits, except in `turn`. What is read from where, and
//! what becomes of it, is the [`Job`]'s business.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use area::Span;
use block::{
    Capability, Certainty, Completion, Endpoint, Extent, Fingerprint, IoError, IoErrorKind, Kind, Request,
    Router,
};
use io::{Event, Io, Owner, Token};
use tracing::debug;

use crate::checkpoint::{Checkpoints, FLUSH_ID};
use crate::cutter::Piece;
use crate::depth::Depth;
use crate::error::{CopyError, End};
use crate::latency::{Histogram, Latency};
use crate::limit::{Blocked, Limit, Occupancy, Shares};
use crate::map::{Map, Status};
use crate::plan::{Checked, Plan, granularity};
use crate::progress::{Control, OBSERVE_EVERY, Phase, Progress, Speed, eta};
use crate::rate::Bucket;

/// Most stretches that unreadable places may cut a range into; then it is a failing medium, not a copy.
const STRETCHES_MAX: usize = 20_000;

/// What one endpoint did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Side {
    /// Reads or writes.
    pub ops: u64,
    /// Bytes moved by them.
    pub bytes: u64,
    /// From submission to completion.
    pub latency: Latency,
    /// Time with at least one request in flight.
    pub busy_seconds: f64,
}

/// What the engine asks of a copy, a verification or a comparison.
pub(crate) trait Job {
    const PHASE: Phase;
    /// Whether pieces may be cut smaller when memory is short.
    const SHRINKS: bool;

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
    /// A piece that the source's medium could not read; says so in `map`. Only a copy is asked.
    fn on_unreadable(&mut self, piece: &Piece, map: &mut Map) {
        unreachable!("{piece:?} of {map:?} is not skipped");
    }
}

/// What happens to a slot next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read from the source, from the destination, or both.
    Read([bool; 2]),
    /// Write the first span to the destination.
    Write,
    /// Write only these bytes of the piece: the destination holds the others already.
    WritePart(Range<u32>),
    /// Make the range zero; `blank` if the first span already is.
    Zero { blank: bool },
    /// The piece is finished.
    Done,
    /// The job has its answer: begin no more. The piece does not count as finished.
    Halt,
}

/// What endpoints know about holes, counted from the start of the range.
pub(crate) struct Extents<'e, 'a> {
    ends: &'e mut [&'a mut dyn Endpoint; 2],
    offsets: [u64; 2],
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Reading,
    Writing,
    Zeroing,
}

struct Slot {
    stage: Stage,
    piece: Piece,
    spans: Vec<Span>,
    /// Requests in flight at the source and at the destination.
    pending: [u32; 2],
    /// When the requests of this stage were submitted.
    since: Duration,
    /// `Zeroing` goes request by request: bytes done, bytes of the one in flight, and whether that one moves
    /// zeroes or only names them.
    zeroed: u64,
    zeroing: u64,
    zeroes_named: bool,
    /// The first span is all zero.
    blank: bool,
    /// The medium could not read a part of it: where that was, and why.
    unreadable: Option<(u32, IoError)>,
}

/// What `select` decides.
enum Action {
    /// Take a completion of one end.
    Complete(End, Completion),
    /// Cut a piece and begin it in these spans.
    Begin(Vec<Span>),
    /// Flush the destination to claim what is finished.
    Claim,
    /// Nothing to do now: submit and wait, or with `look` only look.
    Turn { blocked: Option<Blocked>, look: bool },
    /// Everything begun has ended and nothing is left to begin.
    End,
}

#[derive(Debug)]
struct Meter {
    ops: u64,
    bytes: u64,
    latency: Histogram,
    busy: Duration,
}

impl Meter {
    fn new() -> Self {
        Self { ops: 0, bytes: 0, latency: Histogram::new(), busy: Duration::ZERO }
    }

    fn add(&mut self, bytes: u64, latency: Duration) {
        self.ops += 1;
        self.bytes += bytes;
        self.latency.add(latency);
    }

    fn side(&self) -> Side {
        Side {
            ops: self.ops,
            bytes: self.bytes,
            latency: self.latency.summary(),
            busy_seconds: self.busy.as_secs_f64(),
        }
    }
}

/// Figures of one phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) sides: [Side; 2],
    pub(crate) pieces: u64,
    /// Bytes that were made zero without moving zeroes.
    pub(crate) zero_bytes: u64,
    /// Bytes read from the destination.
    pub(crate) compared_bytes: u64,
    pub(crate) depth_max: usize,
    pub(crate) limit: Limit,
    pub(crate) shares: Shares,
    pub(crate) rate_waits: u64,
    pub(crate) duration: Duration,
    /// The job came to its end: it was neither interrupted nor halted, and lost nothing on the way.
    pub(crate) complete: bool,
}

pub(crate) type Observer<'a> = &'a mut dyn FnMut(&Progress) -> Control;

pub(crate) struct Engine<'a> {
    io: &'a mut Io,
    ends: [&'a mut dyn Endpoint; 2],
    capabilities: [Capability; 2],
    offsets: [u64; 2],
    /// Completions not yet taken, in the order they came.
    completions: VecDeque<(End, Completion)>,
    /// Where endpoints put them.
    done: Vec<Completion>,
    events: Vec<Event>,
    router: Router<End>,
    owner: Owner,
    observer: Observer<'a>,
    pub(crate) checkpoints: Checkpoints<'a>,

    total: u64,
    chunk: u32,
    unit: u32,
    depth: Depth,
    slots: Vec<Slot>,
    free: Vec<usize>,
    bucket: Option<Bucket>,
    /// The timer set for the bucket, until its event.
    bucket_timer: Option<Duration>,
    /// The destination zeroes ranges by name, as far as is known.
    names_zeroes: bool,
    /// Data is written durably. Zeroes by name cannot be: they are as volatile as ever.
    durable: bool,

    /// Reads that the source's medium cannot do are skipped.
    skip_bad: bool,
    /// Unless the map has more stretches than this.
    stretches_max: usize,

    /// The observer said stop. Stays set through all phases.
    stopped: bool,
    halted: bool,
    failure: Option<CopyError>,
    /// Pieces begun since the loop last looked at the kernel and the clock.
    begun: usize,

    phase: Phase,
    /// What is known of the range, in this run.
    pub(crate) map: Map,
    finished_bytes: u64,
    meters: [Meter; 2],
    pieces: u64,
    zero_bytes: u64,
    compared_bytes: u64,
    depth_max: usize,
    rate_waits: u64,
    occupancy: Occupancy,
    window: Occupancy,
    speed: Speed,
    phase_start: Duration,
    observe_at: Duration,
    retries_before: u64,
    /// Loop time of the last turn.
    seen: Duration,
    /// The wall clock when the last turn returned. Tells being awake from sleeping for the report; decides
    /// nothing.
    woke: Duration,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(
        io: &'a mut Io,
        source: &'a mut dyn Endpoint,
        destination: &'a mut dyn Endpoint,
        plan: &Plan,
        checked: &Checked,
        observer: Observer<'a>,
        checkpoints: Checkpoints<'a>,
    ) -> Result<Self, CopyError> {
        let capabilities = [source.capability().clone(), destination.capability().clone()];
        let mut router = Router::new();
        router.add_endpoint(source, End::Source);
        router.add_endpoint(destination, End::Destination);
        let retries_before = source.retries() + destination.retries();
        let names_zeroes = capabilities[1].write_zeroes || capabilities[1].discard;
        let depth = match plan.depth {
            Some(_) => Depth::fixed(checked.depth),
            None => {
                let queues = capabilities[0].queue_depth.saturating_add(capabilities[1].queue_depth);
                Depth::adaptive(checked.depth, checked.chunk, queues)
            }
        };
        let mut engine = Self {
            owner: io.owner(),
            io,
            ends: [source, destination],
            capabilities,
            offsets: [plan.src_offset, plan.dst_offset],
            completions: VecDeque::new(),
            done: Vec::new(),
            events: Vec::new(),
            router,
            observer,
            checkpoints,
            total: checked.bytes,
            chunk: checked.chunk,
            unit: checked.unit,
            depth,
            slots: Vec::new(),
            free: Vec::new(),
            bucket: None,
            bucket_timer: None,
            names_zeroes,
            durable: false,
            skip_bad: plan.skip_bad,
            stretches_max: STRETCHES_MAX + 2 * plan.only.as_ref().map_or(0, Vec::len),
            stopped: false,
            halted: false,
            failure: None,
            begun: 0,
            phase: Phase::Copy,
            map: Map::new(checked.bytes),
            finished_bytes: 0,
            meters: [Meter::new(), Meter::new()],
            pieces: 0,
            zero_bytes: 0,
            compared_bytes: 0,
            depth_max: 0,
            rate_waits: 0,
            occupancy: Occupancy::default(),
            window: Occupancy::default(),
            speed: Speed::default(),
            phase_start: Duration::ZERO,
            observe_at: Duration::MAX,
            retries_before,
            seen: Duration::ZERO,
            woke: Duration::ZERO,
        };
        // The loop's clock may be as old as the loop.
        engine.turn(None, true)?;
        engine.bucket = plan.rate.map(|rate| Bucket::new(rate, engine.seen));
        Ok(engine)
    }

    /// Whether the observer said stop.
    pub(crate) fn stopped(&self) -> bool {
        self.stopped
    }

    /// One end as it is now.
    pub(crate) fn fingerprint(&self, end: End) -> Fingerprint {
        self.ends[end.index()].fingerprint()
    }

    /// Requests repeated since the engine began.
    pub(crate) fn retries(&self) -> u64 {
        let now: u64 = self.ends.iter().map(|end| end.retries()).sum();
        now.saturating_sub(self.retries_before)
    }

    /// From now on data is durable when it is written.
    pub(crate) fn write_through(&mut self) {
        self.durable = true;
    }

    pub(crate) fn chunk(&self) -> u32 {
        self.chunk
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Carries `job` over the range of `map` to its end, an interruption, or the first error; nothing is in flight
    /// afterwards, and what is known of the range stands in `self.map`.
    pub(crate) fn run<J: Job>(&mut self, job: &mut J, map: Map) -> Result<Figures, CopyError> {
        self.map = map;
        self.enter(J::PHASE);
        self.chunk = job.chunk(self.chunk);
        loop {
            match self.select(job)? {
                Action::Complete(end, completion) => self.on_completion(job, end, completion),
                Action::Begin(spans) => self.begin(job, spans),
                Action::Claim => self.claim(),
                Action::Turn { blocked, look } => self.turn(blocked, look)?,
                Action::End => break,
            }
        }
        assert!(self.slots.iter().all(|slot| slot.spans.is_empty()), "a slot kept memory");
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.check_identities(Certainty::Seen)?;
        let complete = job.is_exhausted(&self.map) && !self.halted && !self.checkpoints.cache_lost;
        if complete {
            let finished = self.map.bytes(Status::Finished);
            assert_eq!(self.finished_bytes, finished, "what is finished was counted once");
            self.observe();
        }
        Ok(Figures {
            sides: [self.meters[0].side(), self.meters[1].side()],
            pieces: self.pieces,
            zero_bytes: self.zero_bytes,
            compared_bytes: self.compared_bytes,
            depth_max: self.depth_max,
            limit: self.occupancy.limit(),
            shares: self.occupancy.shares(),
            rate_waits: self.rate_waits,
            duration: self.seen.saturating_sub(self.phase_start),
            complete,
        })
    }

    /// Flushes the destination, once, and claims what is finished. Nothing else may be in flight.
    pub(crate) fn flush(&mut self) -> Result<Duration, CopyError> {
        self.enter(Phase::Flush);
        if mutant::is_on(mutant::Mutant::SkipCopyFlush) {
            return Ok(Duration::ZERO);
        }
        self.submit(End::Destination, FLUSH_ID, Kind::Flush);
        let result = loop {
            if let Some((_, completion)) = self.completions.pop_front() {
                break completion.result;
            }
            self.turn(None, false)?;
        };
        result.map_err(CopyError::Flush)?;
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.checkpoints.claimed(self.map.clone(), self.seen)?;
        self.observe();
        Ok(self.seen.saturating_sub(self.phase_start))
    }

    fn enter(&mut self, phase: Phase) {
        assert!(self.completions.is_empty() && self.failure.is_none(), "the last phase has ended");
        self.phase = phase;
        self.depth.disturbed();
        self.finished_bytes = if phase == Phase::Flush { 0 } else { self.map.bytes(Status::Finished) };
        self.checkpoints.begin(self.seen);
        self.meters = [Meter::new(), Meter::new()];
        (self.pieces, self.zero_bytes, self.depth_max, self.rate_waits) = (0, 0, 0, 0);
        self.compared_bytes = 0;
        self.occupancy = Occupancy::default();
        self.window = Occupancy::default();
        self.halted = false;
        self.phase_start = self.seen;
        self.observe_at = self.seen + OBSERVE_EVERY;
        self.speed.start(self.seen, self.finished_bytes);
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn select<J: Job>(&mut self, job: &J) -> Result<Action, CopyError> {
        if let Some((end, completion)) = self.completions.pop_front() {
            return Ok(Action::Complete(end, completion));
        }
        let in_flight = self.in_flight();
        let closed = self.stopped
            || self.halted
            || self.failure.is_some()
            || self.checkpoints.cache_lost
            || job.is_exhausted(&self.map);
        if closed && in_flight == 0 && !self.checkpoints.is_flushing() {
            return Ok(Action::End);
        }
        if !closed && J::PHASE.copies() && self.checkpoints.is_due(self.seen, &self.map) {
            return Ok(Action::Claim);
        }
        if closed || in_flight >= self.depth.limit().min(job.depth_max()) {
            return Ok(Action::Turn { blocked: None, look: false });
        }
        // Endpoints that complete inside `submit` would keep the loop from the kernel and the clock for ever.
        if self.begun >= self.depth.limit() {
            return Ok(Action::Turn { blocked: None, look: true });
        }
        if let Some(Err(at)) = self.bucket.as_ref().map(|bucket| bucket.ready(self.seen)) {
            if self.bucket_timer.is_none() {
                self.io.timer(Token { owner: self.owner, key: 0 }, at);
                self.bucket_timer = Some(at);
                self.rate_waits += 1;
            }
            return Ok(Action::Turn { blocked: Some(Blocked::Rate), look: false });
        }
        let wanted = job.spans();
        let spans: Vec<_> = (0..wanted).map_while(|_| self.io.pool().take(self.chunk as usize)).collect();
        if spans.len() == wanted {
            return Ok(Action::Begin(spans));
        }
        drop(spans);
        if in_flight > 0 {
            return Ok(Action::Turn { blocked: Some(Blocked::Memory), look: false });
        }
        // Waiting would be for ever: nobody else is about to return memory.
        let smaller = self.chunk / 2 / self.unit * self.unit;
        if smaller == 0 || !J::SHRINKS {
            let text = format!("no memory for a chunk of {} bytes", self.chunk);
            return Err(CopyError::Loop(std::io::Error::new(std::io::ErrorKind::OutOfMemory, text)));
        }
        debug!(chunk = self.chunk, smaller, "memory is short");
        self.chunk = smaller;
        Ok(Action::Turn { blocked: Some(Blocked::Memory), look: true })
    }

    fn begin<J: Job>(&mut self, job: &mut J, spans: Vec<Span>) {
        let mut extents = Extents { ends: &mut self.ends, offsets: self.offsets };
        let piece = job.next(self.chunk, &self.map, &mut extents).expect("the range is not exhausted");
        let slot = Slot {
            stage: Stage::Reading,
            piece,
            spans,
            pending: [0; 2],
            since: self.seen,
            zeroed: 0,
            zeroing: 0,
            zeroes_named: false,
            blank: false,
            unreadable: None,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.begun += 1;
        self.pieces += 1;
        self.depth_max = self.depth_max.max(self.in_flight());
        let step = job.on_begin(&piece);
        self.step(index, step);
    }

    fn step(&mut self, index: usize, step: Step) {
        match step {
            Step::Read(from) => {
                let length = self.slots[index].piece.length;
                if let Some(bucket) = &mut self.bucket {
                    bucket.charge(self.seen, length.into());
                }
                self.slots[index].stage = Stage::Reading;
                for end in End::BOTH {
                    if from[end.index()] {
                        self.read(index, end);
                    }
                }
            }
            Step::Write => self.write(index),
            Step::WritePart(part) => {
                self.narrow(index, part);
                self.write(index);
            }
            Step::Zero { blank } if blank && !self.names_zeroes => self.write(index),
            Step::Zero { blank } => {
                self.slots[index].stage = Stage::Zeroing;
                self.slots[index].blank = blank;
                self.zero(index);
            }
            Step::Done => self.finish(index),
            Step::Halt => {
                self.halted = true;
                self.release(index);
            }
        }
    }

    /// Longest request of one end: its own limit in whole units, or in whole blocks if it is that short.
    fn part_bytes(&self, end: End) -> u32 {
        let capability = &self.capabilities[end.index()];
        let most = capability.max_transfer_bytes;
        let step = if most >= self.unit { self.unit } else { granularity(capability) };
        (most / step).max(1) * step
    }

    /// Offset and length within the piece of one of the requests that it is moved in. The last of a read goes on
    /// to the end of its block.
    fn part(&self, index: usize, end: End, part: u32) -> (u32, u32) {
        let slot = &self.slots[index];
        let most = self.part_bytes(end);
        let start = part * most;
        let mut length = (slot.piece.length - start).min(most);
        if slot.stage == Stage::Reading {
            length = length.next_multiple_of(granularity(&self.capabilities[end.index()]));
        }
        (start, length)
    }

    /// Submits all the requests that a piece is moved in.
    fn transfer(&mut self, index: usize, end: End, kind: impl Fn(u64, Span) -> Kind, span: &Span) {
        let parts = self.slots[index].piece.length.div_ceil(self.part_bytes(end));
        let base = self.offsets[end.index()] + self.slots[index].piece.offset;
        self.slots[index].since = self.seen;
        self.slots[index].pending[end.index()] = parts;
        for part in 0..parts {
            let (start, length) = self.part(index, end, part);
            let kind = kind(base + u64::from(start), span.slice(start as usize, length as usize));
            self.submit(end, (index as u64) << 32 | u64::from(part), kind);
        }
    }

    fn read(&mut self, index: usize, end: End) {
        let spans = &self.slots[index].spans;
        let span = spans[if spans.len() == 1 { 0 } else { end.index() }].clone();
        self.transfer(index, end, |offset, into| Kind::Read { offset, into }, &span);
    }

    /// The rest of the piece is finished.
    fn narrow(&mut self, index: usize, part: Range<u32>) {
        let Slot { piece, spans, .. } = &mut self.slots[index];
        let (start, end) = (piece.offset, piece.offset + u64::from(piece.length));
        (piece.offset, piece.length) = (start + u64::from(part.start), part.end - part.start);
        spans[0] = spans[0].slice(part.start as usize, piece.length as usize);
        let (from, to) = (piece.offset, start + u64::from(part.end));
        self.map.set(start, from, Status::Finished);
        self.map.set(to, end, Status::Finished);
        self.finished_bytes += (from - start) + (end - to);
    }

    fn write(&mut self, index: usize) {
        self.slots[index].stage = Stage::Writing;
        let span = self.slots[index].spans[0].clone();
        let durable = self.durable;
        let kind = |offset, from| Kind::Write { offset, from, durable };
        self.transfer(index, End::Destination, kind, &span);
    }

    /// Submits the next request that makes a piece zero: by name if the destination can, else by moving zeroes.
    fn zero(&mut self, index: usize) {
        let part = u64::from(self.part_bytes(End::Destination));
        let named = self.names_zeroes;
        let slot = &mut self.slots[index];
        let offset = self.offsets[1] + slot.piece.offset + slot.zeroed;
        let left = u64::from(slot.piece.length) - slot.zeroed;
        let kind = if named {
            slot.zeroing = left.min(part);
            Kind::WriteZeroes { offset, length: slot.zeroing, may_unmap: true }
        } else {
            let span = &slot.spans[0];
            if !slot.blank {
                span.zero(0, span.len());
                slot.blank = true;
            }
            slot.zeroing = left.min(part).min(span.len() as u64);
            let from = span.slice(0, slot.zeroing as usize);
            Kind::Write { offset, from, durable: self.durable }
        };
        slot.zeroes_named = named;
        slot.since = self.seen;
        slot.pending[End::Destination.index()] = 1;
        self.submit(End::Destination, (index as u64) << 32, kind);
    }

    /// Submits a flush of what is finished by now, while copying goes on.
    fn claim(&mut self) {
        if mutant::is_on(mutant::Mutant::ClaimUnflushed) {
            let _ = self.checkpoints.claimed(self.map.clone(), self.seen);
        }
        self.checkpoints.flushing(&self.map);
        self.submit(End::Destination, FLUSH_ID, Kind::Flush);
    }

    /// That flush has ended.
    fn on_claimed(&mut self, result: Result<(), IoError>) {
        // What another disk holds is not written down as copied.
        let result = result
            .and_then(|()| self.ends.iter_mut().try_for_each(|end| end.check_identity(Certainty::Seen)));
        if let Err(error) = self.checkpoints.flushed(result, !self.durable, self.seen) {
            self.failure.get_or_insert(error);
        }
    }

    fn submit(&mut self, end: End, id: u64, kind: Kind) {
        self.ends[end.index()].submit(self.io, Request { id, kind }, &mut self.done);
        self.completions.extend(self.done.drain(..).map(|completion| (end, completion)));
    }

    fn on_completion<J: Job>(&mut self, job: &mut J, end: End, completion: Completion) {
        let Completion { id, result } = completion;
        if id == FLUSH_ID {
            return self.on_claimed(result);
        }
        let index = (id >> 32) as usize;
        let slot = &mut self.slots[index];
        assert!(slot.pending[end.index()] > 0, "the {end} completed request {id:#x} once too often");
        slot.pending[end.index()] -= 1;
        match result {
            Ok(()) => self.account(index, end, id as u32),
            Err(error)
                if slot.stage == Stage::Zeroing
                    && slot.zeroes_named
                    && error.kind == IoErrorKind::Unsupported =>
            {
                debug!(%error, "the destination does not zero by name after all; writing zeroes");
                self.names_zeroes = false;
                slot.zeroing = 0;
            }
            Err(error)
                if self.skip_bad
                    && (slot.stage == Stage::Reading && end == End::Source)
                    && (J::PHASE.copies() && error.kind == IoErrorKind::Medium) =>
            {
                debug!(offset = slot.piece.offset, length = slot.piece.length, %error, "skipped for now");
                slot.unreadable = Some((id as u32, error));
            }
            Err(error) => self.fail(index, end, id as u32, error),
        }
        let slot = &mut self.slots[index];
        if slot.pending != [0, 0] {
            return;
        }
        if self.failure.is_some() {
            return self.release(index);
        }
        if let Some((part, error)) = slot.unreadable.take() {
            job.on_unreadable(&slot.piece, &mut self.map);
            if self.map.len() > self.stretches_max {
                self.fail(index, end, part, error);
            }
            return self.release(index);
        }
        match slot.stage {
            Stage::Free => unreachable!("a free slot has nothing pending"),
            Stage::Reading => {
                let step = job.on_read(&slot.piece, &slot.spans);
                self.step(index, step);
            }
            Stage::Writing => self.finish(index),
            Stage::Zeroing if slot.zeroed < slot.piece.length.into() => self.zero(index),
            Stage::Zeroing => self.finish(index),
        }
    }

    fn account(&mut self, index: usize, end: End, part: u32) {
        let (_, length) = self.part_or_zeroing(index, end, part);
        let slot = &mut self.slots[index];
        let latency = self.seen.saturating_sub(slot.since);
        if slot.stage == Stage::Zeroing {
            slot.zeroed += slot.zeroing;
            slot.zeroing = 0;
            if slot.zeroes_named {
                self.zero_bytes += length;
                return;
            }
        }
        if slot.stage == Stage::Reading && end == End::Destination {
            self.compared_bytes += length;
            return;
        }
        self.meters[end.index()].add(length, latency);
    }

    /// Offset in its endpoint and length of a request.
    fn part_or_zeroing(&self, index: usize, end: End, part: u32) -> (u64, u64) {
        let slot = &self.slots[index];
        let base = self.offsets[end.index()] + slot.piece.offset;
        if slot.stage == Stage::Zeroing {
            return (base + slot.zeroed, slot.zeroing);
        }
        let (start, length) = self.part(index, end, part);
        (base + u64::from(start), length.into())
    }

    fn fail(&mut self, index: usize, end: End, part: u32, error: IoError) {
        if self.failure.is_some() {
            debug!(%error, "another error while draining");
            return;
        }
        let (offset, length) = self.part_or_zeroing(index, end, part);
        self.failure = Some(match self.slots[index].stage {
            Stage::Reading => CopyError::Read { end, offset, length, error },
            _ => CopyError::Write { offset, length, error },
        });
    }

    fn finish(&mut self, index: usize) {
        let Piece { offset, length, .. } = self.slots[index].piece;
        self.map.set(offset, offset + u64::from(length), Status::Finished);
        self.finished_bytes += u64::from(length);
        match self.slots[index].stage {
            Stage::Zeroing => self.depth.disturbed(),
            _ => self.depth.finished(self.seen, length.into()),
        }
        self.release(index);
    }

    fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.stage = Stage::Free;
        slot.spans.clear();
        self.free.push(index);
    }

    /// Submits, waits until something happens or the observer is due (with `look`, not at all), and routes
    /// the events.
    fn turn(&mut self, blocked: Option<Blocked>, look: bool) -> Result<(), CopyError> {
        self.begun = 0;
        if blocked.is_some() {
            self.depth.disturbed();
        }
        let mut waiting = [0; 2];
        for slot in self.slots.iter().filter(|slot| slot.stage != Stage::Free) {
            for end in End::BOTH {
                waiting[end.index()] += usize::from(slot.pending[end.index()] > 0);
            }
        }
        if self.phase == Phase::Flush || self.checkpoints.is_flushing() && waiting == [0, 0] {
            waiting[End::Destination.index()] = 1;
        }
        let awake = self.io.clock().saturating_sub(self.woke);
        let until = if look { Duration::ZERO } else { self.observe_at };
        let mut events = std::mem::take(&mut self.events);
        let turned = self.io.turn_until(Some(until), &mut events);
        self.woke = self.io.clock();
        let passed = self.io.now().saturating_sub(self.seen);
        self.seen = self.io.now();
        let awake = if look { passed } else { awake.min(passed) };
        for occupancy in [&mut self.occupancy, &mut self.window] {
            occupancy.add(awake, passed - awake, waiting, blocked);
        }
        for (meter, waiting) in self.meters.iter_mut().zip(waiting) {
            if waiting > 0 {
                meter.busy += passed;
            }
        }
        for event in events.drain(..) {
            self.on_event(event);
        }
        self.events = events;
        turned.map_err(CopyError::Loop)?;
        if self.seen >= self.observe_at {
            self.observe();
            if let Err(error) = self.check_identities(Certainty::Heard) {
                self.failure.get_or_insert(error);
            }
        }
        Ok(())
    }

    /// Whether both ends are still the storage that was opened.
    fn check_identities(&mut self, certainty: Certainty) -> Result<(), CopyError> {
        for end in End::BOTH {
            self.ends[end.index()]
                .check_identity(certainty)
                .map_err(|error| CopyError::Gone { end, error })?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) {
        if event.token.owner == self.owner {
            self.bucket_timer = None;
            return;
        }
        let end = self.router.route(event.token.owner).or_else(|| {
            // An endpoint that connected anew may have new owners.
            self.router.add_endpoint(&*self.ends[0], End::Source);
            self.router.add_endpoint(&*self.ends[1], End::Destination);
            self.router.route(event.token.owner)
        });
        if let Some(end) = end {
            self.ends[end.index()].on_event(self.io, event, &mut self.done);
            self.completions.extend(self.done.drain(..).map(|completion| (end, completion)));
        }
    }

    fn observe(&mut self) {
        let rate_now = self.speed.sample(self.seen, self.finished_bytes);
        let total = if self.phase == Phase::Flush { 0 } else { self.total };
        let progress = Progress {
            phase: self.phase,
            bytes: self.finished_bytes,
            total,
            rate_now,
            eta: eta(total - self.finished_bytes, rate_now),
            retries: self.retries(),
            limited_by: self.window.limit(),
            depth: self.depth.limit() as u32,
        };
        self.window = Occupancy::default();
        self.observe_at = self.seen + OBSERVE_EVERY;
        if (self.observer)(&progress) == Control::Stop {
            self.stopped = true;
        }
    }
}
