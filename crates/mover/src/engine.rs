//! The slot machine shared by copy, verification and comparison.
//!
//! A slot carries one run from `Free` through `Reading` and `Writing` (or `Zeroing`) back to `Free`. An owner loop
//! decides (`select`) and acts (`apply`); only `turn` waits. The [`Operation`] determines what is read from which end and
//! what follows; [`Admission`] decides whether a run may start; [`Watch`] measures time and calls the observer.

use std::time::Duration;

use area::Span;
use block::{Completion, Direction, Endpoint, Evidence, Fingerprint, IoError, IoErrorKind, Kind, RequestId};
use io::{Event, Io, Owner, Token};
use tracing::debug;

use crate::admission::{Admission, Admitted, Needs, Pause};
use crate::checkpoint::{Checkpoints, FLUSH_ID};
use crate::cutter::{HOLE_BYTES_MIN, Run};
use crate::depth::Depth;
use crate::driver::Driver;
use crate::error::{CopyError, End};
use crate::extent::{WriteExtent, without_zeroes};
use crate::geometry::Geometry;
use crate::impact::{Impact, Yielded};
use crate::limit::{Blocked, Limit, Shares};
use crate::map::{Map, Status};
use crate::meter::{Meter, Side};
use crate::operation::{Extents, Operation, Step};
use crate::plan::{Checked, Plan, granularity};
use crate::progress::{Done, Phase};
use crate::sharing::{PROBE_BYTES, PROBE_ID, Sharing};
use crate::slot::{Slot, Stage};
use crate::watch::{Observer, Wait, Watch};

/// Bound of the entries of the map when unreadable places are skipped; beyond it the medium counts as failed.
const ENTRIES_MAX: usize = 20_000;

/// Keys of the timers of the engine's owner.
const RATE_TIMER: u32 = 0;
const SHARING_TIMER: u32 = 1;

/// Places at which a probe may find data.
const PROBE_PLACES: usize = 4;

/// Bound of the queries for holes at the start of a copy, which the estimate of its end needs.
const EXTENT_QUERIES_MAX: usize = 20_000;

enum Action {
    Complete(End, Completion),
    /// Cut a run and start it in these spans.
    Begin(Vec<Span>),
    /// Flush the destination, to claim what is finished.
    Claim,
    /// No work is possible now: run the loop, waiting or not.
    Turn(Pause),
    End,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) sides: [Side; 2],
    pub(crate) runs: u64,
    /// Bytes zeroed without transferring zeroes.
    pub(crate) zero_bytes: u64,
    /// Bytes of the runs that were not holes.
    pub(crate) data_bytes: u64,
    pub(crate) compared_bytes: u64,
    pub(crate) depth_max: usize,
    pub(crate) limit: Limit,
    pub(crate) shares: Shares,
    pub(crate) rate_waits: u64,
    pub(crate) duration: Duration,
    /// The operation has completed: it was not interrupted or halted, and no cache was lost.
    pub(crate) complete: bool,
}

fn request_id(index: usize, part: u32) -> RequestId {
    (index as u64) << 32 | u64::from(part)
}

pub(crate) struct Engine<'a> {
    driver: Driver<'a, 2>,
    geometry: Geometry,
    /// Owner of the rate's timer.
    owner: Owner,
    watch: Watch<'a>,
    admission: Admission,
    sharing: Sharing,
    pub(crate) checkpoints: Checkpoints<'a>,

    total: u64,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The destination can zero ranges without data; cleared when it refuses.
    can_write_zeroes: bool,
    /// Data is written durably. Zeroing without data has no durable form and stays volatile.
    durable: bool,

    /// Ranges that the source's medium cannot read are skipped.
    skip_bad: bool,
    /// Bound of the map's entries up to which unreadable ranges are skipped.
    entries_max: usize,

    halted: bool,
    failure: Option<CopyError>,

    /// The state of the range in this run.
    pub(crate) map: Map,
    finished_bytes: u64,
    /// Finished in this phase and not zeroed without data.
    data_bytes: u64,
    /// Bytes of the range that are known to be holes, and how many of them are finished.
    hole_bytes: u64,
    hole_bytes_done: u64,
    meters: [Meter; 2],
    runs: u64,
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
        let geometry = Geometry::new([&*source, &*destination], plan, checked.unit);
        let [from, to] = [source.capability(), destination.capability()];
        let depth = match plan.depth {
            Some(_) => Depth::fixed(checked.depth),
            None => {
                let queues = from.queue_depth.saturating_add(to.queue_depth);
                Depth::adaptive(checked.depth, checked.chunk, queues)
            }
        };
        let can_write_zeroes = to.write_zeroes || to.discard;
        let mut engine = Self {
            driver: Driver::new(io, [source, destination]),
            geometry,
            owner,
            watch: Watch::new(observer),
            admission: Admission::new(depth, checked.chunk, checked.unit),
            sharing: Sharing::new(&Impact::Full, 0, 1, Duration::ZERO, Token { owner, key: SHARING_TIMER }),
            checkpoints,
            total: checked.bytes,
            slots: Vec::new(),
            free: Vec::new(),
            can_write_zeroes,
            durable: false,
            skip_bad: plan.skip_bad,
            entries_max: ENTRIES_MAX + 2 * plan.only.as_ref().map_or(0, Vec::len),
            halted: false,
            failure: None,
            map: Map::new(checked.bytes),
            finished_bytes: 0,
            data_bytes: 0,
            hole_bytes: 0,
            hole_bytes_done: 0,
            meters: [Meter::new(), Meter::new()],
            runs: 0,
            zero_bytes: 0,
            compared_bytes: 0,
            depth_max: 0,
        };
        engine.turn(Pause { look: true, ..Pause::default() })?;
        let now = engine.watch.seen();
        engine.admission.set_rate(plan.rate.clone(), now, Token { owner, key: RATE_TIMER });
        let token = Token { owner, key: SHARING_TIMER };
        engine.sharing = Sharing::new(&plan.impact, checked.chunk, checked.unit, now, token);
        Ok(engine)
    }

    /// Whether the destination can zero ranges without data, as far as known.
    pub(crate) fn can_write_zeroes(&self) -> bool {
        self.can_write_zeroes
    }

    pub(crate) fn stopped(&self) -> bool {
        self.watch.stopped()
    }

    pub(crate) fn renew(&mut self, end: End, bytes: u64) {
        let Driver { io, ends, .. } = &mut self.driver;
        ends[end.index()].renew(io, bytes);
    }

    pub(crate) fn fingerprint(&self, end: End) -> Fingerprint {
        self.driver.ends[end.index()].inspect().fingerprint()
    }

    pub(crate) fn retries(&self) -> u64 {
        self.driver.retries()
    }

    pub(crate) fn yielded(&self) -> Option<Yielded> {
        self.sharing.yielded()
    }

    pub(crate) fn write_through(&mut self) {
        self.durable = true;
    }

    pub(crate) fn chunk(&self) -> u32 {
        self.admission.chunk()
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Runs `operation` over the range of `map` until its end, an interruption or the first error. Afterwards nothing is in
    /// flight, and `self.map` has the state of the range.
    pub(crate) fn run<J: Operation>(&mut self, operation: &mut J, map: Map) -> Result<Figures, CopyError> {
        self.map = map;
        self.enter(J::PHASE, operation.chunk(self.admission.chunk()));
        if operation.skips_holes() {
            self.hole_bytes = self.known_holes();
        }
        loop {
            match self.select(operation)? {
                Action::Complete(end, completion) => self.on_completion(operation, end, completion),
                Action::Begin(spans) => self.begin(operation, spans),
                Action::Claim => self.claim(),
                Action::Turn(pause) => self.turn(pause)?,
                Action::End => break,
            }
        }
        assert!(self.slots.iter().all(|slot| slot.spans.is_empty()), "a slot kept memory");
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.check_identities(Evidence::Probed)?;
        let complete = operation.is_exhausted(&self.map) && !self.halted && !self.checkpoints.cache_lost;
        if complete {
            let finished = self.map.bytes(Status::Finished);
            assert_eq!(self.finished_bytes, finished, "what is finished was counted once");
            self.observe();
        }
        let busy = self.watch.busy();
        Ok(Figures {
            sides: [0, 1].map(|end| self.meters[end].side(busy[end])),
            runs: self.runs,
            zero_bytes: self.zero_bytes,
            data_bytes: self.data_bytes,
            compared_bytes: self.compared_bytes,
            depth_max: self.depth_max,
            limit: self.watch.limit(),
            shares: self.watch.shares(),
            rate_waits: self.admission.rate_waits(),
            duration: self.watch.duration(),
            complete,
        })
    }

    /// Bytes that are not tried and that the source reports as holes, as far as `EXTENT_QUERIES_MAX` queries reach.
    fn known_holes(&mut self) -> u64 {
        let mut extents = Extents { ends: &mut self.driver.ends, offsets: self.geometry.offsets };
        let (mut queries, mut holes) = (0, 0);
        for entry in self.map.entries().filter(|entry| entry.status == Status::NonTried) {
            let mut at = entry.start;
            while at < entry.end && queries < EXTENT_QUERIES_MAX {
                let extent = extents.of(End::Source, at);
                let end = extent.end.clamp(at + 1, entry.end);
                if !extent.data && end - at >= HOLE_BYTES_MIN {
                    holes += end - at;
                }
                (at, queries) = (end, queries + 1);
            }
        }
        holes
    }

    /// Flushes the destination once and claims what is finished. Nothing else may be in flight.
    pub(crate) fn flush(&mut self) -> Result<Duration, CopyError> {
        let duration = self.settle()?;
        self.checkpoints.claimed(self.map.clone(), self.watch.seen())?;
        self.observe();
        Ok(duration)
    }

    /// Flushes the destination once without a claim: data read from it afterwards is durable, except later writes.
    /// Nothing else may be in flight.
    pub(crate) fn settle(&mut self) -> Result<Duration, CopyError> {
        self.enter(Phase::Flush, self.admission.chunk());
        self.driver.submit(End::Destination.index(), FLUSH_ID, Kind::Flush);
        let result = loop {
            if let Some((_, completion)) = self.driver.completed() {
                break completion.result;
            }
            self.turn(Pause::default())?;
        };
        result.map_err(CopyError::Flush)?;
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(self.watch.duration()),
        }
    }

    fn enter(&mut self, phase: Phase, chunk: u32) {
        assert!(self.driver.is_quiet() && self.failure.is_none(), "the last phase has ended");
        self.admission.begin(chunk);
        self.finished_bytes = if phase == Phase::Flush { 0 } else { self.map.bytes(Status::Finished) };
        self.checkpoints.begin(self.watch.seen());
        (self.data_bytes, self.hole_bytes, self.hole_bytes_done) = (0, 0, 0);
        self.meters = [Meter::new(), Meter::new()];
        (self.runs, self.zero_bytes, self.compared_bytes, self.depth_max) = (0, 0, 0, 0);
        self.halted = false;
        self.watch.begin();
        self.watch.enter(phase, self.finished_bytes, self.total);
        self.look_at_paths();
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn select<J: Operation>(&mut self, operation: &J) -> Result<Action, CopyError> {
        if let Some((end, completion)) = self.driver.completed() {
            return Ok(Action::Complete(End::BOTH[end], completion));
        }
        let in_flight = self.in_flight();
        let closed = self.stopped()
            || self.halted
            || self.failure.is_some()
            || self.checkpoints.cache_lost
            || operation.is_exhausted(&self.map);
        if closed && in_flight == 0 && !self.checkpoints.is_flushing() && !self.sharing.is_probing() {
            return Ok(Action::End);
        }
        if !closed && J::PHASE.copies() && self.checkpoints.is_due(self.watch.seen(), &self.map) {
            return Ok(Action::Claim);
        }
        if closed {
            return Ok(Action::Turn(Pause::default()));
        }
        if self.sharing.is_stopped(self.watch.seen()) {
            return Ok(Action::Turn(Pause { blocked: Some(Blocked::Impact), look: false }));
        }
        let (window, shrinks) = (self.sharing.window(), J::SHRINKS);
        let needs = Needs { spans: operation.spans(), depth_max: operation.depth_max(), shrinks, window };
        let admitted = self.admission.admit(self.driver.io, self.watch.seen(), in_flight, needs)?;
        Ok(match admitted {
            Admitted::Now(spans) => Action::Begin(spans),
            Admitted::After(pause) => Action::Turn(pause),
        })
    }

    fn begin<J: Operation>(&mut self, operation: &mut J, spans: Vec<Span>) {
        let mut extents = Extents { ends: &mut self.driver.ends, offsets: self.geometry.offsets };
        // The digests of a verification are of whole runs.
        let bound = self.sharing.window().filter(|_| J::SHRINKS).map_or(u32::MAX, |window| window.chunk);
        let run = operation.next(self.admission.chunk().min(bound), &self.map, &mut extents);
        let run = run.expect("the range is not exhausted");
        let slot = Slot::new(run, spans, self.watch.seen());
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
        self.runs += 1;
        self.depth_max = self.depth_max.max(self.in_flight());
        let step = operation.on_begin(&run);
        self.step(index, step);
    }

    fn step(&mut self, index: usize, step: Step) {
        match step {
            Step::Read(from) => {
                let length = self.slots[index].run.length;
                self.admission.charge(self.watch.seen(), length.into());
                self.slots[index].stage = Stage::Reading;
                for end in End::BOTH {
                    if from[end.index()] {
                        self.read(index, end);
                    }
                }
            }
            Step::Write(extents) => self.write(index, extents),
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

    fn read(&mut self, index: usize, end: End) {
        let Run { offset, length, .. } = self.slots[index].run;
        let parts = self.geometry.parts(end);
        let base = self.geometry.offset(end, offset);
        let slot = &mut self.slots[index];
        let span = slot.spans[if slot.spans.len() == 1 { 0 } else { end.index() }].clone();
        slot.since = self.watch.seen();
        slot.pending[end.index()] = parts.count(length);
        for part in 0..parts.count(length) {
            let (start, length) = self.slots[index].request(parts, part);
            let into = span.slice(start as usize, length as usize);
            self.driver.submit(
                end.index(),
                request_id(index, part),
                Kind::Read { offset: base + start, into },
            );
        }
    }

    fn write(&mut self, index: usize, extents: Vec<WriteExtent>) {
        let extents = if self.can_write_zeroes { extents } else { without_zeroes(extents) };
        let slot = &mut self.slots[index];
        slot.stage = Stage::Writing;
        slot.since = self.watch.seen();
        slot.extents = self.geometry.parts(End::Destination).cut(extents);
        let requests = slot.extents.len() as u32;
        slot.pending[End::Destination.index()] = requests;
        for part in 0..requests {
            self.extent(index, part);
        }
    }

    fn extent(&mut self, index: usize, part: u32) {
        let slot = &self.slots[index];
        let base = self.geometry.offset(End::Destination, slot.run.offset);
        let kind = slot.extent(base, part, self.durable);
        self.driver.submit(End::Destination.index(), request_id(index, part), kind);
    }

    /// Submits the next request that zeroes a hole: without data if the destination can, otherwise by writing zeroes.
    fn zero(&mut self, index: usize) {
        let most = self.geometry.parts(End::Destination).bytes_max();
        let slot = &mut self.slots[index];
        let base = self.geometry.offset(End::Destination, slot.run.offset);
        let kind = slot.zero(base, most, self.can_write_zeroes, self.durable);
        slot.since = self.watch.seen();
        slot.pending[End::Destination.index()] = 1;
        self.driver.submit(End::Destination.index(), request_id(index, 0), kind);
    }

    fn claim(&mut self) {
        self.checkpoints.flushing(&self.map);
        self.driver.submit(End::Destination.index(), FLUSH_ID, Kind::Flush);
    }

    fn on_claimed(&mut self, result: Result<(), IoError>) {
        // If the destination is another disk now, nothing is claimed.
        let result = result.and_then(|()| self.check_ends(Evidence::Probed).map_err(|(_, error)| error));
        if let Err(error) = self.checkpoints.flushed(result, !self.durable, self.watch.seen()) {
            self.failure.get_or_insert(error);
        }
    }

    fn on_completion<J: Operation>(&mut self, operation: &mut J, end: End, completion: Completion) {
        let Completion { id, result } = completion;
        if id == FLUSH_ID {
            return self.on_claimed(result);
        }
        if id == PROBE_ID {
            let now = self.watch.seen();
            return self.sharing.on_probe(now, result.is_ok(), self.watch.unseen());
        }
        let (index, part) = ((id >> 32) as usize, id as u32);
        let slot = &mut self.slots[index];
        assert!(slot.pending[end.index()] > 0, "the {end} completed request {id:#x} once too often");
        slot.pending[end.index()] -= 1;
        if slot.stage == Stage::Reading {
            self.sharing.on_read(end);
        }
        match result {
            Ok(()) => self.account(index, end, part),
            Err(error) if slot.can_write_zeroes(part) && error.kind == IoErrorKind::Unsupported => {
                debug!(%error, "the destination does not zero by name after all; writing zeroes");
                self.can_write_zeroes = false;
                match slot.extents.get_mut(part as usize) {
                    None => slot.on_zeroed(false),
                    Some(extent) if self.failure.is_none() => {
                        extent.zero = false;
                        slot.pending[end.index()] += 1;
                        self.extent(index, part);
                    }
                    Some(_) => {}
                }
            }
            Err(error)
                if self.skip_bad
                    && (slot.stage == Stage::Reading && end == End::Source)
                    && (J::SKIPS_BAD && error.kind == IoErrorKind::Medium) =>
            {
                debug!(offset = slot.run.offset, length = slot.run.length, %error, "skipped for now");
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
            operation.on_unreadable(&slot.run, &mut self.map);
            if self.map.len() > self.entries_max {
                self.fail(index, end, part, error);
            }
            return self.release(index);
        }
        match slot.stage {
            Stage::Free => unreachable!("a free slot has nothing pending"),
            Stage::Reading => {
                let step = operation.on_read(&slot.run, &slot.spans);
                self.step(index, step);
            }
            Stage::Writing => self.finish(index),
            Stage::Zeroing if slot.is_zeroed() => self.finish(index),
            Stage::Zeroing => self.zero(index),
        }
    }

    fn account(&mut self, index: usize, end: End, part: u32) {
        let slot = &mut self.slots[index];
        let (_, length) = slot.request(self.geometry.parts(end), part);
        let latency = self.watch.seen().saturating_sub(slot.since);
        if slot.stage == Stage::Zeroing {
            slot.on_zeroed(true);
        }
        if slot.can_write_zeroes(part) {
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
        let (start, length) = slot.request(self.geometry.parts(end), part);
        let offset = self.geometry.offset(end, slot.run.offset + start);
        self.failure = Some(match slot.stage {
            Stage::Reading => CopyError::Read { end, offset, length, error },
            _ => CopyError::Write { offset, length, error },
        });
    }

    fn finish(&mut self, index: usize) {
        let Run { offset, length, .. } = self.slots[index].run;
        self.map.set(offset, offset + u64::from(length), Status::Finished);
        self.finished_bytes += u64::from(length);
        if !self.slots[index].run.zero {
            self.data_bytes += u64::from(length);
        } else if self.slots[index].stage == Stage::Zeroing && !self.can_write_zeroes {
            // Zeroes were written.
            self.data_bytes += u64::from(length);
        } else {
            self.hole_bytes_done += u64::from(length);
        }
        let is_data = self.slots[index].is_data();
        self.sharing.on_finished(self.slots[index].begun, self.watch.seen());
        self.look_at_paths();
        self.admission.finished(self.watch.seen(), is_data.then_some(length.into()));
        self.release(index);
    }

    fn look_at_paths(&mut self) {
        let second = if self.watch.phase().copies() { Direction::Write } else { Direction::Read };
        let ends = self.driver.ends.iter().zip([Direction::Read, second]);
        let bytes = ends.filter_map(|(end, direction)| end.in_flight(direction)).max();
        self.admission.on_path(bytes.unwrap_or(0));
    }

    fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.stage = Stage::Free;
        slot.spans.clear();
        self.free.push(index);
    }

    /// Runs the loop: submits requests, waits until an event arrives or the observer is due (or does not wait), and
    /// routes the events.
    fn turn(&mut self, pause: Pause) -> Result<(), CopyError> {
        self.admission.on_turn(pause);
        let mut waiting = [0; 2];
        for slot in self.slots.iter().filter(|slot| slot.stage != Stage::Free) {
            for end in End::BOTH {
                waiting[end.index()] += usize::from(slot.pending[end.index()] > 0);
            }
        }
        self.probe();
        if self.watch.phase() == Phase::Flush || self.checkpoints.is_flushing() && waiting == [0, 0] {
            waiting[End::Destination.index()] = 1;
        }
        // A probe may have completed inside `submit`.
        let wait = Wait { at: waiting, blocked: pause.blocked, look: pause.look || !self.driver.is_quiet() };
        let Self { driver, watch, admission, sharing, owner, .. } = self;
        let own = |event: Event| match event.token.key {
            SHARING_TIMER => sharing.on_timer(),
            _ => admission.on_timer(),
        };
        let turned = driver.turn(|io, events| watch.turn(io, wait, events), Some(*owner), own);
        turned.map_err(CopyError::Loop)?;
        if self.watch.is_due() {
            self.observe();
            if let Err(error) = self.check_identities(Evidence::Cached) {
                self.failure.get_or_insert(error);
            }
        }
        Ok(())
    }

    /// Lets the shared disks be looked at, and submits the probe that is due.
    fn probe(&mut self) {
        // Nothing begins during a flush, and its completion is the only one that is waited for.
        if self.watch.phase() == Phase::Flush {
            return;
        }
        let mut reads = [0; 2];
        for slot in self.slots.iter().filter(|slot| slot.stage == Stage::Reading) {
            for end in End::BOTH {
                reads[end.index()] += u64::from(slot.pending[end.index()]);
            }
        }
        let is_quiet = self.in_flight() == 0 && !self.checkpoints.is_flushing();
        let (now, natural) = (self.watch.seen(), self.admission.depth());
        let due = self.sharing.attend(self.driver.io, now, reads, is_quiet, natural);
        let Some(end) = due else { return };
        let Some((offset, into)) = self.probe_place(end) else { return self.sharing.no_probe(now) };
        self.sharing.probing(end, into.clone(), self.driver.io.clock());
        self.driver.submit(end.index(), PROBE_ID, Kind::Read { offset, into });
    }

    /// Where the endpoint holds data, and memory for a probe there.
    fn probe_place(&mut self, end: End) -> Option<(u64, Span)> {
        let capability = self.driver.ends[end.index()].capability();
        let length = PROBE_BYTES.checked_next_multiple_of(granularity(capability))?;
        let length =
            Some(u64::from(length)).filter(|length| *length <= capability.max_transfer_bytes.into())?;
        let places = self.total.checked_div(length).filter(|places| *places > 0)?;
        let mut extents = Extents { ends: &mut self.driver.ends, offsets: self.geometry.offsets };
        let at = (0..PROBE_PLACES).find_map(|_| {
            let at = self.sharing.random() % places * length;
            // What is not written may be a hole of the destination, which no disk is read for.
            let is_there = end == End::Source || self.map.at(at).status == Status::Finished;
            let extent = is_there.then(|| extents.of(end, at))?;
            (extent.data && extent.end >= at + length).then_some(at)
        })?;
        let span = self.driver.io.pool().take(length as usize)?;
        Some((self.geometry.offset(end, at), span.slice(0, length as usize)))
    }

    fn check_identities(&mut self, certainty: Evidence) -> Result<(), CopyError> {
        self.check_ends(certainty).map_err(|(end, error)| CopyError::Gone { end, error })
    }

    fn check_ends(&mut self, certainty: Evidence) -> Result<(), (End, IoError)> {
        End::BOTH.into_iter().try_for_each(|end| {
            self.driver.ends[end.index()].inspect().check_identity(certainty).map_err(|error| (end, error))
        })
    }

    fn observe(&mut self) {
        let done = Done {
            bytes: self.finished_bytes,
            data_bytes: self.data_bytes,
            hole_bytes_left: self.hole_bytes.saturating_sub(self.hole_bytes_done),
        };
        let bound = self.sharing.window().map_or(usize::MAX, |window| window.depth);
        let depth = self.admission.depth().min(bound) as u32;
        self.watch.observe(done, self.retries(), depth, self.admission.rate());
    }
}
