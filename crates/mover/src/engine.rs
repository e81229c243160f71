//! The slot machine: what copy, verification and comparison have in common.
//!
//! A slot carries one piece from `Free` through `Reading` and `Writing` (or `Zeroing`) back to `Free`. One owner
//! loop decides (`select`) and does (`apply`); neither waits, except in `turn`. What is read from where, and
//! what becomes of it, is the [`Job`]'s business; whether a piece may begin now, [`Admission`]'s; time and the observer,
//! [`Watch`]'s.

use std::time::Duration;

use area::Span;
use block::{Certainty, Completion, Endpoint, Fingerprint, IoError, IoErrorKind, Kind, RequestId};
use io::{Event, Io, Owner, Token};
use tracing::debug;

use crate::admission::{Admission, Admitted, Pause, Wanted};
use crate::checkpoint::{Checkpoints, FLUSH_ID};
use crate::cutter::Piece;
use crate::depth::Depth;
use crate::ends::Ends;
use crate::error::{CopyError, End};
use crate::job::{Job, Step};
use crate::limit::{Limit, Shares};
use crate::map::{Map, Status};
use crate::meter::{Meter, Side};
use crate::patch::{Patch, without_zeroes};
use crate::plan::{Checked, Plan};
use crate::progress::Phase;
use crate::slot::{Slot, Stage};
use crate::watch::{Observer, Wait, Watch};

/// Most stretches that unreadable places may cut a range into; then it is a failing medium, not a copy.
const STRETCHES_MAX: usize = 20_000;

/// What `select` decides.
enum Action {
    /// Take a completion of one end.
    Complete(End, Completion),
    /// Cut a piece and begin it in these spans.
    Begin(Vec<Span>),
    /// Flush the destination to claim what is finished.
    Claim,
    /// Nothing to do now: submit and wait, or only look.
    Turn(Pause),
    /// Everything begun has ended and nothing is left to begin.
    End,
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

/// Of request number `part` of a slot's stage.
fn request_id(index: usize, part: u32) -> RequestId {
    (index as u64) << 32 | u64::from(part)
}

pub(crate) struct Engine<'a> {
    ends: Ends<'a>,
    events: Vec<Event>,
    /// Of the rate's timer.
    owner: Owner,
    watch: Watch<'a>,
    admission: Admission,
    pub(crate) checkpoints: Checkpoints<'a>,

    total: u64,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The destination zeroes ranges by name, as far as is known.
    names_zeroes: bool,
    /// Data is written durably. Zeroes by name cannot be: they are as volatile as ever.
    durable: bool,

    /// Reads that the source's medium cannot do are skipped.
    skip_bad: bool,
    /// Unless the map has more stretches than this.
    stretches_max: usize,

    halted: bool,
    failure: Option<CopyError>,

    /// What is known of the range, in this run.
    pub(crate) map: Map,
    finished_bytes: u64,
    meters: [Meter; 2],
    pieces: u64,
    zero_bytes: u64,
    compared_bytes: u64,
    depth_max: usize,
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
        let owner = io.owner();
        let ends = Ends::new(io, source, destination, plan, checked.unit);
        let [from, to] = End::BOTH.map(|end| ends.capability(end));
        let depth = match plan.depth {
            Some(_) => Depth::fixed(checked.depth),
            None => {
                let queues = from.queue_depth.saturating_add(to.queue_depth);
                Depth::adaptive(checked.depth, checked.chunk, queues)
            }
        };
        let names_zeroes = to.write_zeroes || to.discard;
        let mut engine = Self {
            ends,
            events: Vec::new(),
            owner,
            watch: Watch::new(observer),
            admission: Admission::new(depth, checked.chunk, checked.unit),
            checkpoints,
            total: checked.bytes,
            slots: Vec::new(),
            free: Vec::new(),
            names_zeroes,
            durable: false,
            skip_bad: plan.skip_bad,
            stretches_max: STRETCHES_MAX + 2 * plan.only.as_ref().map_or(0, Vec::len),
            halted: false,
            failure: None,
            map: Map::new(checked.bytes),
            finished_bytes: 0,
            meters: [Meter::new(), Meter::new()],
            pieces: 0,
            zero_bytes: 0,
            compared_bytes: 0,
            depth_max: 0,
        };
        engine.turn(Pause { look: true, ..Pause::default() })?;
        if let Some(rate) = plan.rate {
            engine.admission.set_rate(rate, engine.watch.seen(), Token { owner, key: 0 });
        }
        Ok(engine)
    }

    /// Whether the destination zeroes ranges by name, as far as is known.
    pub(crate) fn names_zeroes(&self) -> bool {
        self.names_zeroes
    }

    /// Whether the observer said stop.
    pub(crate) fn stopped(&self) -> bool {
        self.watch.stopped()
    }

    /// One end as it is now.
    pub(crate) fn fingerprint(&self, end: End) -> Fingerprint {
        self.ends.fingerprint(end)
    }

    /// Requests repeated since the engine began.
    pub(crate) fn retries(&self) -> u64 {
        self.ends.retries()
    }

    /// From now on data is durable when it is written.
    pub(crate) fn write_through(&mut self) {
        self.durable = true;
    }

    pub(crate) fn chunk(&self) -> u32 {
        self.admission.chunk()
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Carries `job` over the range of `map` to its end, an interruption, or the first error; nothing is in flight
    /// afterwards, and what is known of the range stands in `self.map`.
    pub(crate) fn run<J: Job>(&mut self, job: &mut J, map: Map) -> Result<Figures, CopyError> {
        self.map = map;
        self.enter(J::PHASE, job.chunk(self.admission.chunk()));
        loop {
            match self.select(job)? {
                Action::Complete(end, completion) => self.on_completion(job, end, completion),
                Action::Begin(spans) => self.begin(job, spans),
                Action::Claim => self.claim(),
                Action::Turn(pause) => self.turn(pause)?,
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
        let busy = self.watch.busy();
        Ok(Figures {
            sides: [0, 1].map(|end| self.meters[end].side(busy[end])),
            pieces: self.pieces,
            zero_bytes: self.zero_bytes,
            compared_bytes: self.compared_bytes,
            depth_max: self.depth_max,
            limit: self.watch.limit(),
            shares: self.watch.shares(),
            rate_waits: self.admission.rate_waits(),
            duration: self.watch.duration(),
            complete,
        })
    }

    /// Flushes the destination, once, and claims what is finished. Nothing else may be in flight.
    pub(crate) fn flush(&mut self) -> Result<Duration, CopyError> {
        self.enter(Phase::Flush, self.admission.chunk());
        if mutant::is_on(mutant::Mutant::SkipCopyFlush) {
            return Ok(Duration::ZERO);
        }
        self.ends.submit(End::Destination, FLUSH_ID, Kind::Flush);
        let result = loop {
            if let Some((_, completion)) = self.ends.completed() {
                break completion.result;
            }
            self.turn(Pause::default())?;
        };
        result.map_err(CopyError::Flush)?;
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.checkpoints.claimed(self.map.clone(), self.watch.seen())?;
        self.observe();
        Ok(self.watch.duration())
    }

    fn enter(&mut self, phase: Phase, chunk: u32) {
        assert!(self.ends.are_quiet() && self.failure.is_none(), "the last phase has ended");
        self.admission.begin(chunk);
        self.finished_bytes = if phase == Phase::Flush { 0 } else { self.map.bytes(Status::Finished) };
        self.checkpoints.begin(self.watch.seen());
        self.meters = [Meter::new(), Meter::new()];
        (self.pieces, self.zero_bytes, self.compared_bytes, self.depth_max) = (0, 0, 0, 0);
        self.halted = false;
        self.watch.begin();
        self.watch.enter(phase, self.finished_bytes, self.total);
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn select<J: Job>(&mut self, job: &J) -> Result<Action, CopyError> {
        if let Some((end, completion)) = self.ends.completed() {
            return Ok(Action::Complete(end, completion));
        }
        let in_flight = self.in_flight();
        let closed = self.stopped()
            || self.halted
            || self.failure.is_some()
            || self.checkpoints.cache_lost
            || job.is_exhausted(&self.map);
        if closed && in_flight == 0 && !self.checkpoints.is_flushing() {
            return Ok(Action::End);
        }
        if !closed && J::PHASE.copies() && self.checkpoints.is_due(self.watch.seen(), &self.map) {
            return Ok(Action::Claim);
        }
        if closed {
            return Ok(Action::Turn(Pause::default()));
        }
        let wanted = Wanted { spans: job.spans(), depth_max: job.depth_max(), shrinks: J::SHRINKS };
        let admitted = self.admission.ask(self.ends.io, self.watch.seen(), in_flight, wanted)?;
        Ok(match admitted {
            Admitted::Now(spans) => Action::Begin(spans),
            Admitted::After(pause) => Action::Turn(pause),
        })
    }

    fn begin<J: Job>(&mut self, job: &mut J, spans: Vec<Span>) {
        let piece = job.next(self.admission.chunk(), &self.map, &mut self.ends.extents());
        let piece = piece.expect("the range is not exhausted");
        let slot = Slot::new(piece, spans, self.watch.seen());
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
        self.pieces += 1;
        self.depth_max = self.depth_max.max(self.in_flight());
        let step = job.on_begin(&piece);
        self.step(index, step);
    }

    fn step(&mut self, index: usize, step: Step) {
        match step {
            Step::Read(from) => {
                let length = self.slots[index].piece.length;
                self.admission.charge(self.watch.seen(), length.into());
                self.slots[index].stage = Stage::Reading;
                for end in End::BOTH {
                    if from[end.index()] {
                        self.read(index, end);
                    }
                }
            }
            Step::Write(patches) => self.write(index, patches),
            Step::Zero => {
                self.slots[index].stage = Stage::Zeroing;
                self.zero(index);
            }
            Step::Done => self.finish(index),
            Step::Halt => {
                self.halted = true;
                self.release(index);
            }
        }
    }

    /// Submits all the reads of a piece at one end.
    fn read(&mut self, index: usize, end: End) {
        let Piece { offset, length, .. } = self.slots[index].piece;
        let parts = self.ends.parts(end);
        let base = self.ends.offset(end, offset);
        let slot = &mut self.slots[index];
        let span = slot.spans[if slot.spans.len() == 1 { 0 } else { end.index() }].clone();
        slot.since = self.watch.seen();
        slot.pending[end.index()] = parts.count(length);
        for part in 0..parts.count(length) {
            let (start, length) = self.slots[index].request(parts, part);
            let into = span.slice(start as usize, length as usize);
            self.ends.submit(end, request_id(index, part), Kind::Read { offset: base + start, into });
        }
    }

    /// Submits all the requests that bring these patches of a piece to the destination.
    fn write(&mut self, index: usize, patches: Vec<Patch>) {
        let patches = if self.names_zeroes { patches } else { without_zeroes(patches) };
        let slot = &mut self.slots[index];
        slot.stage = Stage::Writing;
        slot.since = self.watch.seen();
        slot.patches = self.ends.parts(End::Destination).cut(patches);
        let requests = slot.patches.len() as u32;
        slot.pending[End::Destination.index()] = requests;
        for part in 0..requests {
            self.patch(index, part);
        }
    }

    fn patch(&mut self, index: usize, part: u32) {
        let slot = &self.slots[index];
        let base = self.ends.offset(End::Destination, slot.piece.offset);
        let kind = slot.patch(base, part, self.durable);
        self.ends.submit(End::Destination, request_id(index, part), kind);
    }

    /// Submits the next request that makes a hole zero: by name if the destination can, else by moving zeroes.
    fn zero(&mut self, index: usize) {
        let most = self.ends.parts(End::Destination).bytes_max();
        let slot = &mut self.slots[index];
        let base = self.ends.offset(End::Destination, slot.piece.offset);
        let kind = slot.zero(base, most, self.names_zeroes, self.durable);
        slot.since = self.watch.seen();
        slot.pending[End::Destination.index()] = 1;
        self.ends.submit(End::Destination, request_id(index, 0), kind);
    }

    /// Submits a flush of what is finished by now, while copying goes on.
    fn claim(&mut self) {
        if mutant::is_on(mutant::Mutant::ClaimUnflushed) {
            let _ = self.checkpoints.claimed(self.map.clone(), self.watch.seen());
        }
        self.checkpoints.flushing(&self.map);
        self.ends.submit(End::Destination, FLUSH_ID, Kind::Flush);
    }

    /// That flush has ended.
    fn on_claimed(&mut self, result: Result<(), IoError>) {
        // What another disk holds is not written down as copied.
        let result =
            result.and_then(|()| self.ends.check_identities(Certainty::Seen).map_err(|(_, error)| error));
        if let Err(error) = self.checkpoints.flushed(result, !self.durable, self.watch.seen()) {
            self.failure.get_or_insert(error);
        }
    }

    fn on_completion<J: Job>(&mut self, job: &mut J, end: End, completion: Completion) {
        let Completion { id, result } = completion;
        if id == FLUSH_ID {
            return self.on_claimed(result);
        }
        let (index, part) = ((id >> 32) as usize, id as u32);
        let slot = &mut self.slots[index];
        assert!(slot.pending[end.index()] > 0, "the {end} completed request {id:#x} once too often");
        slot.pending[end.index()] -= 1;
        match result {
            Ok(()) => self.account(index, end, part),
            Err(error) if slot.names_zeroes(part) && error.kind == IoErrorKind::Unsupported => {
                debug!(%error, "the destination does not zero by name after all; writing zeroes");
                self.names_zeroes = false;
                match slot.patches.get_mut(part as usize) {
                    None => slot.on_zeroed(false),
                    Some(patch) if self.failure.is_none() => {
                        patch.zero = false;
                        slot.pending[end.index()] += 1;
                        self.patch(index, part);
                    }
                    Some(_) => {}
                }
            }
            Err(error)
                if self.skip_bad
                    && (slot.stage == Stage::Reading && end == End::Source)
                    && (J::SKIPS_BAD && error.kind == IoErrorKind::Medium) =>
            {
                debug!(offset = slot.piece.offset, length = slot.piece.length, %error, "skipped for now");
                slot.unreadable = Some((part, error));
            }
            Err(error) => self.fail(index, end, part, error),
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
            Stage::Zeroing if slot.is_zeroed() => self.finish(index),
            Stage::Zeroing => self.zero(index),
        }
    }

    fn account(&mut self, index: usize, end: End, part: u32) {
        let slot = &mut self.slots[index];
        let (_, length) = slot.request(self.ends.parts(end), part);
        let latency = self.watch.seen().saturating_sub(slot.since);
        if slot.stage == Stage::Zeroing {
            slot.on_zeroed(true);
        }
        if slot.names_zeroes(part) {
            self.zero_bytes += length;
            return;
        }
        if slot.stage == Stage::Reading && end == End::Destination {
            self.compared_bytes += length;
            return;
        }
        self.meters[end.index()].add(length, latency);
    }

    fn fail(&mut self, index: usize, end: End, part: u32, error: IoError) {
        if self.failure.is_some() {
            debug!(%error, "another error while draining");
            return;
        }
        let slot = &self.slots[index];
        let (start, length) = slot.request(self.ends.parts(end), part);
        let offset = self.ends.offset(end, slot.piece.offset + start);
        self.failure = Some(match slot.stage {
            Stage::Reading => CopyError::Read { end, offset, length, error },
            _ => CopyError::Write { offset, length, error },
        });
    }

    fn finish(&mut self, index: usize) {
        let Piece { offset, length, .. } = self.slots[index].piece;
        self.map.set(offset, offset + u64::from(length), Status::Finished);
        self.finished_bytes += u64::from(length);
        let is_data = self.slots[index].is_data();
        self.admission.finished(self.watch.seen(), is_data.then_some(length.into()));
        self.release(index);
    }

    fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.stage = Stage::Free;
        slot.spans.clear();
        self.free.push(index);
    }

    /// Submits, waits until something happens or the observer is due (or only looks), and routes the events.
    fn turn(&mut self, pause: Pause) -> Result<(), CopyError> {
        self.admission.on_turn(pause);
        let mut waiting = [0; 2];
        for slot in self.slots.iter().filter(|slot| slot.stage != Stage::Free) {
            for end in End::BOTH {
                waiting[end.index()] += usize::from(slot.pending[end.index()] > 0);
            }
        }
        if self.watch.phase() == Phase::Flush || self.checkpoints.is_flushing() && waiting == [0, 0] {
            waiting[End::Destination.index()] = 1;
        }
        let mut events = std::mem::take(&mut self.events);
        let wait = Wait { at: waiting, blocked: pause.blocked, look: pause.look };
        let turned = self.watch.turn(self.ends.io, wait, &mut events);
        for event in events.drain(..) {
            if event.token.owner == self.owner {
                self.admission.on_timer();
            } else {
                self.ends.on_event(event);
            }
        }
        self.events = events;
        turned.map_err(CopyError::Loop)?;
        if self.watch.is_due() {
            self.observe();
            if let Err(error) = self.check_identities(Certainty::Heard) {
                self.failure.get_or_insert(error);
            }
        }
        Ok(())
    }

    /// Whether both ends are still the storage that was opened.
    fn check_identities(&mut self, certainty: Certainty) -> Result<(), CopyError> {
        self.ends.check_identities(certainty).map_err(|(end, error)| CopyError::Gone { end, error })
    }

    fn observe(&mut self) {
        self.watch.observe(self.finished_bytes, self.retries(), self.admission.depth() as u32);
    }
}
