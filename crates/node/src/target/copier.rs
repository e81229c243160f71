//! Third-party copies run here: on threads of their own, by the mover's one call.
//!
//! The mover has its loop to itself while it copies, and a loop that serves cannot be lent. So a copy gets a thread,
//! with a loop, and its own way into the two units' media. A thread goes on with copies that wait, rests a second when
//! there are none, and ends; in a confined server, where no loop can be made later, the threads are started with it and
//! rest for good. Its answer is mail to the connection that the command came by; a task that is aborted sets its
//! [`Order::stop`], and the answer comes then.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use area::PoolLimits;
use block::{
    Capability, Completion, Endpoint, Extent, Identity, IoError, Kind, Request, State, close_all, wait_ready,
};
use io::{Event, Io, Owner, Token, Waker};
use iscsi::machine::TaskId;
use mover::{CHUNK_BYTES_MAX, Control, CopyError, End, Plan};
use mutant::{Mutant, is_on};
use scsi::NexusId;
use scsi::copy::{CopyFailure, CopyFault, CopyList};
use scsi::limits::COPIES_MAX;

use super::lun::Lun;
use super::mail::{ConnectionId, Mail};
use super::media::media_error;
use super::server::{Confine, Shared};

/// Copies of a server that wait for one of [`COPIES_MAX`] threads; TASK SET FULL beyond it.
const WAITING_MAX: usize = 64;
/// Payload memory of one copy.
const POOL: PoolLimits = PoolLimits { bytes_max: 64 << 20 };
/// How long a thread waits for another copy: a host sends one after the other, and to map memory takes longer than a
/// small copy.
const LINGER: Duration = Duration::from_secs(1);
/// What a host is told when there is no copy at all.
const NO_COPY: CopyFailure = CopyFailure { segment: 0, fault: CopyFault::Device };

const _: () = assert!(CHUNK_BYTES_MAX as usize <= POOL.bytes_max);

/// A stretch that one call of the mover copies: segments that follow each other at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Slots of the server's LUNs.
    pub(super) source: usize,
    pub(super) destination: usize,
    /// First bytes.
    pub(super) source_offset: u64,
    pub(super) destination_offset: u64,
    pub(super) bytes: u64,
    /// Its first segment.
    pub(super) segment: u16,
    /// Where each of its segments ends, in bytes from its start.
    pub(super) ends: Vec<u64>,
}

impl Run {
    /// The segment that byte `at` of the run belongs to.
    fn segment_at(&self, at: u64) -> u16 {
        let before = self.ends.iter().take_while(|end| **end <= at).count();
        self.segment + before.min(self.ends.len() - 1) as u16
    }
}

/// A copy to be made.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) shared: Arc<Shared>,
    /// The units of the runs, and that of the command: they are kept until the copy has ended.
    pub(super) luns: Vec<Arc<Lun>>,
    pub(super) runs: Vec<Run>,
    pub(super) list: Arc<CopyList>,
    /// The unit that the command was for, and who asked.
    pub(super) lun: usize,
    pub(super) nexus: NexusId,
    /// Whom to answer.
    pub(super) connection: ConnectionId,
    pub(super) task: TaskId,
    /// Set when the task is aborted.
    pub(super) stop: Arc<AtomicBool>,
}

impl Order {
    /// The unit in this slot.
    fn unit(&self, slot: usize) -> &Lun {
        self.luns.iter().find(|lun| lun.slot == slot).expect("every unit of the order is in it")
    }

    /// A panic ended the copy: what of its writes is with the storage is not known.
    fn fail_units(&self) {
        for run in &self.runs {
            self.unit(run.destination).fail();
            self.unit(run.source).fail_if_poisoned();
        }
        self.unit(self.lun).fail_if_poisoned();
    }

    fn answer(self, result: Result<u64, CopyFailure>) {
        let Self { shared, connection, task, .. } = self;
        shared.mailboxes[connection.worker].send(Mail::Copied { connection, task, result });
    }
}

/// Copies that wait, and the threads that copy.
#[derive(Debug, Default)]
pub(super) struct Copier {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Order>,
    threads: usize,
    /// Threads that rest: their numbers, and how to wake them.
    resting: Vec<(u64, Waker)>,
    number_last: u64,
}

/// What a thread does next.
enum Next {
    Copy(Order),
    /// Until it is woken, at most for [`LINGER`].
    Rest,
    End,
}

impl Copier {
    /// Starts all threads now, each with a loop, then confined by `confine`; they do not end. Returns when all are confined. With the
    /// portable back end it starts none: the calls that make its loops stay allowed, and later threads inherit the confinement.
    pub(super) fn start(self: &Arc<Self>, confine: &Confine) -> std::io::Result<()> {
        if Io::new(POOL)?.backend_name() == "portable" {
            return Ok(());
        }
        let (confined, all) = mpsc::channel();
        for _ in 0..COPIES_MAX {
            let (copier, confine, confined) = (Arc::clone(self), Arc::clone(confine), confined.clone());
            let confine: Confine = Arc::new(move || {
                confine();
                let _ = confined.send(());
            });
            self.lock().threads += 1;
            let spawned = io::spawn("target-copy", move || work(&copier, Some(&confine)));
            if let Err(error) = spawned {
                self.lock().threads -= 1;
                return Err(error);
            }
        }
        drop(confined);
        // One that has no loop says so in the log, and here.
        for () in all.iter().take(COPIES_MAX) {}
        Ok(())
    }

    /// A queue and two counts, which are whole between any two statements.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a copy, to be begun now or when a thread is free. False: there are too many.
    pub(super) fn take(self: &Arc<Self>, order: Order) -> bool {
        let mut inner = self.lock();
        if inner.waiting.len() == WAITING_MAX {
            return false;
        }
        inner.waiting.push_back(order);
        if let Some((_, waker)) = inner.resting.pop() {
            waker.wake();
            return true;
        }
        if inner.threads == COPIES_MAX {
            return true;
        }
        inner.threads += 1;
        drop(inner);
        let copier = Arc::clone(self);
        let Err(error) = io::spawn("target-copy", move || work(&copier, None)) else { return true };
        tracing::warn!(%error, "no thread for a copy");
        let mut inner = self.lock();
        inner.threads -= 1;
        // Another copy thread takes the order later; without one it is the only order that waits, and is refused.
        inner.threads > 0 || inner.waiting.pop_back().is_none()
    }

    /// What the thread of this number does, which has rested long enough or not yet.
    fn next(&self, number: u64, waker: &Waker, rested: bool) -> Next {
        let mut inner = self.lock();
        inner.resting.retain(|(known, _)| *known != number);
        if let Some(order) = inner.waiting.pop_front() {
            return Next::Copy(order);
        }
        if rested {
            inner.threads -= 1;
            return Next::End;
        }
        inner.resting.push((number, waker.clone()));
        Next::Rest
    }
}

/// A thread that copies. It keeps its memory for the next copy, and nothing of the server while it rests. With `confine` it
/// does not end: without copies it gives its memory back.
fn work(copier: &Copier, confine: Option<&Confine>) {
    let number = {
        let mut inner = copier.lock();
        inner.number_last += 1;
        inner.number_last
    };
    let ready = Io::new(POOL).and_then(|mut io| {
        let token = Token { owner: io.owner(), key: 0 };
        let waker = io.waker(token)?;
        Ok((io, waker))
    });
    let (mut io, waker) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            tracing::warn!(%error, "no loop for a copy");
            if let Some(confine) = confine {
                confine();
            }
            let mut inner = copier.lock();
            inner.threads -= 1;
            let order = inner.waiting.pop_front();
            drop(inner);
            return order.into_iter().for_each(|order| order.answer(Err(NO_COPY)));
        }
    };
    if let Some(confine) = confine {
        confine();
    }
    let (mut rest_until, mut events, mut failed) = (None, Vec::new(), false);
    loop {
        let rested = rest_until.is_some_and(|until| io.now() >= until);
        let ends = failed || rested && confine.is_none();
        match copier.next(number, &waker, ends) {
            Next::Copy(order) => {
                let copy = AssertUnwindSafe(|| Copying { io: &mut io, order: &order, ends: None }.run());
                // A defect of ours, and told as one by the panic; the host must not wait for ever.
                let result = catch_unwind(copy).unwrap_or_else(|_| {
                    order.fail_units();
                    Err(NO_COPY)
                });
                order.answer(result);
                rest_until = None;
            }
            Next::Rest => {
                if rested {
                    io.trim();
                }
                let until = *rest_until.get_or_insert_with(|| io.now() + LINGER);
                if io.turn_until((!rested).then_some(until), &mut events).is_err() {
                    failed = true;
                }
                events.clear();
            }
            Next::End => return,
        }
    }
}

/// One copy under way.
struct Copying<'a> {
    io: &'a mut Io,
    order: &'a Order,
    /// Ways into the source and the destination of the last run.
    ends: Option<(usize, usize, [Part; 2])>,
}

impl Copying<'_> {
    /// Copies everything. The bytes that were copied.
    fn run(mut self) -> Result<u64, CopyFailure> {
        let mut bytes = 0;
        let mut result = Ok(());
        for run in &self.order.runs {
            result = self.attach(run).and_then(|()| self.copy(run, bytes));
            if result.is_err() {
                break;
            }
            bytes += run.bytes;
        }
        self.detach();
        result.map(|()| bytes)
    }

    /// Makes `ends` those of this run.
    fn attach(&mut self, run: &Run) -> Result<(), CopyFailure> {
        if self
            .ends
            .as_ref()
            .is_some_and(|(source, destination, _)| (*source, *destination) == (run.source, run.destination))
        {
            return Ok(());
        }
        self.detach();
        let mut attach = |lun: usize| {
            let unit = self.order.unit(lun);
            let mut inner = unit.config.medium.attach(self.io)?;
            wait_ready(self.io, &mut [&mut *inner])?;
            let flushes = !unit.unit().write_cache() && !is_on(Mutant::CopyUnflushed);
            Ok(Part { inner, flushes })
        };
        let ends = attach(run.source).and_then(|source| Ok([source, attach(run.destination)?]));
        let ends = ends.map_err(|error: block::OpenError| {
            tracing::warn!(%error, "storage of a copy");
            CopyFailure { segment: run.segment, fault: CopyFault::Device }
        })?;
        self.ends = Some((run.source, run.destination, ends));
        Ok(())
    }

    fn detach(&mut self) {
        if let Some((_, _, mut ends)) = self.ends.take() {
            let [source, destination] = &mut ends;
            close_all(self.io, &mut [&mut *source.inner, &mut *destination.inner]);
        }
    }

    /// Copies one run, `before` bytes being done. What overlaps itself is moved as if all of it were read before anything
    /// is written: in pieces, each of which is, from the side on which nothing is lost.
    fn copy(&mut self, run: &Run, before: u64) -> Result<(), CopyFailure> {
        let Some((_, _, [source, destination])) = &self.ends else { unreachable!("attached by the caller") };
        let (from, to) = (run.source_offset, run.destination_offset);
        let identity = source.inner.identity();
        let same = run.source == run.destination
            || identity != Identity::Unique && identity == destination.inner.identity();
        if !same || from.abs_diff(to) >= run.bytes {
            return self.piece(run, 0, &Plan { size: Some(run.bytes), ..plan() }, before);
        }
        if from == to {
            return Ok(());
        }
        // Mapped once, there is memory for it from here on: the mover will not cut it smaller.
        drop(self.io.pool().take(CHUNK_BYTES_MAX as usize));
        let piece = u64::from(CHUNK_BYTES_MAX);
        let pieces = run.bytes.div_ceil(piece);
        for done in 0..pieces {
            let index = if to > from { pieces - 1 - done } else { done };
            let start = index * piece;
            let size = Some(piece.min(run.bytes - start));
            let plan = Plan { size, chunk: Some(CHUNK_BYTES_MAX), depth: Some(1), ..plan() };
            self.piece(run, start, &plan, before + done * piece)?;
        }
        Ok(())
    }

    /// One call of the mover, `start` bytes into the run.
    fn piece(&mut self, run: &Run, start: u64, plan: &Plan, before: u64) -> Result<(), CopyFailure> {
        let Self { io, order, ends } = self;
        let Some((_, _, [source, destination])) = ends else { unreachable!("attached by the caller") };
        let (src_offset, dst_offset) = (run.source_offset + start, run.destination_offset + start);
        let plan = Plan { src_offset, dst_offset, ..plan.clone() };
        let mut observer = |progress: &mover::Progress| {
            order.unit(order.lun).unit().copying(order.nexus, &order.list, before + progress.bytes);
            if order.stop.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
        };
        if order.stop.load(Ordering::Relaxed) {
            return Err(CopyFailure { segment: run.segment, fault: CopyFault::Aborted });
        }
        let Err(error) = mover::copy(io, source, destination, &plan, &mut observer) else { return Ok(()) };
        let fault = match error {
            CopyError::Interrupted { .. } => CopyFault::Aborted,
            _ => CopyFault::Device,
        };
        let failed = |lun: usize, error: &IoError| {
            order.unit(lun).unit().copy_failed(order.nexus, media_error(error));
        };
        let at = match &error {
            CopyError::Read { end: End::Source, offset, error, .. } => {
                failed(run.source, error);
                offset - run.source_offset
            }
            CopyError::Read { offset, error, .. } | CopyError::Write { offset, error, .. } => {
                failed(run.destination, error);
                offset - run.destination_offset
            }
            CopyError::Flush(error) => {
                failed(run.destination, error);
                0
            }
            _ => start,
        };
        if fault == CopyFault::Device {
            let [source, destination] = [run.source, run.destination].map(|lun| &order.unit(lun).config);
            tracing::warn!(
                from = source.medium.name(), to = destination.medium.name(), %error, "third-party copy"
            );
        }
        Err(CopyFailure { segment: run.segment_at(at), fault })
    }
}

/// What every call of the mover has in common: block sizes and ranges have been checked.
fn plan() -> Plan {
    Plan { allow_block_size: true, ..Plan::default() }
}

/// One end of a copy, as the mover is to see it: the device server has decided whether the two may be the same storage,
/// and a command flushes only where the unit has no volatile cache.
struct Part {
    inner: Box<dyn Endpoint>,
    flushes: bool,
}

impl Endpoint for Part {
    fn state(&self) -> State {
        self.inner.state()
    }

    fn capability(&self) -> &Capability {
        self.inner.capability()
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        if matches!(request.kind, Kind::Flush) && !self.flushes {
            return done.push(Completion { id: request.id, result: Ok(()) });
        }
        self.inner.submit(io, request, done);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        self.inner.on_event(io, event, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        self.inner.owners(owners);
    }

    fn extent(&mut self, offset: u64) -> Extent {
        self.inner.extent(offset)
    }

    fn identity(&self) -> Identity {
        Identity::Unique
    }
}
