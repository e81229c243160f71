//! Third-party copies: each runs on a thread of its own and uses the mover.
//!
//! The mover occupies its loop while it copies, so it cannot use a loop that serves connections. A copy gets a thread
//! with a loop and its own endpoints for both units. A thread continues with waiting copies; without any it idles for
//! [`IDLE_TIME`] and ends. In a confined server, where no loop can be created later, the threads start with the server and
//! never end. The result is mailed to the connection of the command; abort of the task sets [`Order::stop`], after
//! which the result is mailed too.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use area::PoolLimits;
use block::{
    Capability, Completion, Endpoint, Extent, Fingerprint, Identity, Inspect, IoError, Kind, Request, State,
    close_all, wait_ready,
};
use io::{Event, Io, Owner, Token, Waker};
use iscsi::machine::TaskId;
use mover::{CHUNK_BYTES_MAX, Control, CopyError, End, Plan};
use scsi::NexusId;
use scsi::copy::{CopyFailure, CopyFault, CopyList};
use scsi::limits::COPIES_MAX;

use super::config::Confine;
use super::lun::Lun;
use super::mail::{ConnectionId, Mail, Mailbox};
use super::media::media_error;

/// Bound of a server's copies that wait for one of the [`COPIES_MAX`] threads; beyond it TASK SET FULL.
const WAITING_MAX: usize = 64;
const POOL: PoolLimits = PoolLimits { bytes_max: 64 << 20 };
/// How long a thread idles: hosts copy in series, and mapping memory takes longer than a small copy.
const IDLE_TIME: Duration = Duration::from_secs(1);
const NO_COPY: CopyFailure = CopyFailure { segment: 0, fault: CopyFault::Device };

const _: () = assert!(CHUNK_BYTES_MAX as usize <= POOL.bytes_max);

/// Segments that are consecutive at both ends: one call of the mover, unless the range overlaps itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Slots of the units.
    pub(super) source: usize,
    pub(super) destination: usize,
    /// Offsets of the first bytes.
    pub(super) source_offset: u64,
    pub(super) destination_offset: u64,
    pub(super) bytes: u64,
    /// Index of its first segment.
    pub(super) segment: u16,
    /// End of each of its segments, in bytes from the start of the run.
    pub(super) ends: Vec<u64>,
}

impl Run {
    /// The index of the segment that contains byte `at` of the run.
    fn segment_at(&self, at: u64) -> u16 {
        let before = self.ends.iter().take_while(|end| **end <= at).count();
        self.segment + before.min(self.ends.len() - 1) as u16
    }
}

#[derive(Debug)]
pub(super) struct Order {
    /// The units of the runs, and that of the command: held until the copy has ended.
    pub(super) luns: Vec<Arc<Lun>>,
    pub(super) runs: Vec<Run>,
    pub(super) list: Arc<CopyList>,
    /// Slot of the unit that received the command, and its I_T nexus.
    pub(super) lun: usize,
    pub(super) nexus: NexusId,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) connection: ConnectionId,
    pub(super) task: TaskId,
    pub(super) stop: Arc<AtomicBool>,
}

impl Order {
    fn unit(&self, slot: usize) -> &Lun {
        self.luns.iter().find(|lun| lun.slot == slot).expect("every unit of the order is in it")
    }

    /// A panic ended the copy: the state of its writes at the storage is unknown.
    fn fail_units(&self) {
        for run in &self.runs {
            self.unit(run.destination).fail();
            self.unit(run.source).fail_if_poisoned();
        }
        self.unit(self.lun).fail_if_poisoned();
    }

    fn answer(self, result: Result<u64, CopyFailure>) {
        let Self { mailbox, connection, task, .. } = self;
        mailbox.send(Mail::Copied { connection, task, result });
    }
}

/// Waiting copies, and the threads that copy.
#[derive(Debug, Default)]
pub(super) struct Copier {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Order>,
    threads: usize,
    /// Idle threads: number and waker.
    idle: Vec<(u64, Waker)>,
    number_last: u64,
}

enum Next {
    Copy(Order),
    /// Idle until woken, at most for [`IDLE_TIME`].
    Idle,
    End,
}

impl Copier {
    /// Starts all threads, each of which creates its loop and is then confined by `confine`; they do not end. Returns
    /// when all are confined. With the portable back end no thread is started: there the calls that create a loop stay
    /// allowed, and later threads inherit the confinement.
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
        // A thread without a loop reports that in the log, and here.
        for () in all.iter().take(COPIES_MAX) {}
        Ok(())
    }

    /// A queue and two counts, consistent after every statement: poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a copy, which starts now or when a thread is free. False: too many are waiting.
    pub(super) fn take(self: &Arc<Self>, order: Order) -> bool {
        let mut inner = self.lock();
        if inner.waiting.len() == WAITING_MAX {
            return false;
        }
        inner.waiting.push_back(order);
        if let Some((_, waker)) = inner.idle.pop() {
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
        // If a thread runs, it takes the order later; otherwise this is the only waiting order, and it is refused.
        inner.threads > 0 || inner.waiting.pop_back().is_none()
    }

    /// The next step of thread `number`; `idle_is_over`: it has idled long enough to end.
    fn next(&self, number: u64, waker: &Waker, idle_is_over: bool) -> Next {
        let mut inner = self.lock();
        inner.idle.retain(|(known, _)| *known != number);
        if let Some(order) = inner.waiting.pop_front() {
            return Next::Copy(order);
        }
        if idle_is_over {
            inner.threads -= 1;
            return Next::End;
        }
        inner.idle.push((number, waker.clone()));
        Next::Idle
    }
}

/// A copy thread. It keeps its memory for the next copy, and holds no units of the server while idle. With `confine` it
/// does not end; idle, it returns its memory to the system.
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
    let (mut idle_until, mut events, mut failed) = (None, Vec::new(), false);
    loop {
        let idle_is_over = idle_until.is_some_and(|until| io.now() >= until);
        let ends = failed || idle_is_over && confine.is_none();
        match copier.next(number, &waker, ends) {
            Next::Copy(order) => {
                let copy = AssertUnwindSafe(|| Copying { io: &mut io, order: &order, ends: None }.run());
                // A defect of this program, which the panic reports; the host must still get a response.
                let result = catch_unwind(copy).unwrap_or_else(|_| {
                    order.fail_units();
                    Err(NO_COPY)
                });
                order.answer(result);
                idle_until = None;
            }
            Next::Idle => {
                if idle_is_over {
                    io.trim();
                }
                let until = *idle_until.get_or_insert_with(|| io.now() + IDLE_TIME);
                if io.turn_until((!idle_is_over).then_some(until), &mut events).is_err() {
                    failed = true;
                }
                events.clear();
            }
            Next::End => return,
        }
    }
}

struct Copying<'a> {
    io: &'a mut Io,
    order: &'a Order,
    /// Slots and endpoints of the source and the destination of the last run.
    ends: Option<(usize, usize, [Part; 2])>,
}

impl Copying<'_> {
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

    fn attach(&mut self, run: &Run) -> Result<(), CopyFailure> {
        let attached = self.ends.as_ref().map(|(source, destination, _)| (*source, *destination));
        if attached == Some((run.source, run.destination)) {
            return Ok(());
        }
        self.detach();
        let mut attach = |lun: usize| {
            let unit = self.order.unit(lun);
            let mut inner = unit.config.medium.attach(self.io)?;
            wait_ready(self.io, &mut [&mut *inner])?;
            let flushes = !unit.unit().write_cache();
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

    /// Copies one run; `before` bytes of the order are complete. A run that overlaps itself is copied as if all of it
    /// were read before anything is written: in chunks that are each read whole before they are written, in the
    /// direction that overwrites no unread byte.
    fn copy(&mut self, run: &Run, before: u64) -> Result<(), CopyFailure> {
        let Some((_, _, [source, destination])) = &self.ends else { unreachable!("attached by the caller") };
        let (from, to) = (run.source_offset, run.destination_offset);
        let identity = source.inner.inspect().identity();
        let same = run.source == run.destination
            || identity != Identity::Unique && identity == destination.inner.inspect().identity();
        if !same || from.abs_diff(to) >= run.bytes {
            return self.copy_range(run, 0, &Plan { size: Some(run.bytes), ..plan() }, before);
        }
        if from == to {
            return Ok(());
        }
        // Once mapped, memory for a chunk stays in the pool, so the mover does not use smaller chunks.
        drop(self.io.pool().take(CHUNK_BYTES_MAX as usize));
        let chunk = u64::from(CHUNK_BYTES_MAX);
        let chunks = run.bytes.div_ceil(chunk);
        for done in 0..chunks {
            let index = if to > from { chunks - 1 - done } else { done };
            let start = index * chunk;
            let size = Some(chunk.min(run.bytes - start));
            let plan = Plan { size, chunk: Some(CHUNK_BYTES_MAX), depth: Some(1), ..plan() };
            self.copy_range(run, start, &plan, before + done * chunk)?;
        }
        Ok(())
    }

    /// One call of the mover, `start` bytes into the run.
    fn copy_range(&mut self, run: &Run, start: u64, plan: &Plan, before: u64) -> Result<(), CopyFailure> {
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
            let lun = order.unit(lun);
            lun.unit().copy_failed(order.nexus, media_error(error, lun.block_size));
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

/// The common part of the mover's plans: block sizes and ranges have been checked.
fn plan() -> Plan {
    Plan { allow_block_size: true, ..Plan::default() }
}

/// One end of a copy, as presented to the mover: the device server has decided whether both ends may be the same
/// storage, and a command flushes only where the unit has no volatile cache.
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

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for Part {
    fn identity(&self) -> Identity {
        Identity::Unique
    }

    fn fingerprint(&self) -> Fingerprint {
        self.identity().fingerprint(self.capability().size_bytes)
    }
}
