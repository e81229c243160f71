//! The commands of a session: buffer, storage work and response of each.
//!
//! The connection calls [`Tasks::on_command`] for a new command, [`Tasks::on_data_out`] when its data-out has arrived,
//! [`Tasks::on_completion`] when a storage request has completed, [`Tasks::on_copied`] when a copy has ended, and
//! [`Tasks::start_waiting`] before it sends. Each of them chooses the command's next [`Action`] and carries it out
//! ([`Tasks::act`]); the last action calls [`machine::Connection::complete`] or `abort`. After either the machine
//! reports the task as done, and [`Tasks::on_done`] frees its slot; spans being sent keep their memory until they are
//! sent.
//!
//! A READ: the device server names blocks, a buffer is allocated, a [`StorageWork`] fills it, the response refers to it. A
//! WRITE: the buffer is allocated first ([`Action::Collect`]), and the work is planned when all data-out has arrived; storage
//! that is memory is written part by part before ([`Tasks::on_data_front`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use area::Span;
use block::{Endpoint, IoError, Request, RequestId};
use io::Io;
use iscsi::machine::{Machine, TaskId};
use iscsi::target as machine;
use scsi::copy::CopyFailure;
use scsi::{LbaExtent, Media, MediaError, MediaOp, Outcome, Sense, Step};

use super::ahead::{AHEAD, Ahead, Extent, Guess};
use super::context::{Context, TaskContext};
use super::copying::{self, Copying};
use super::lun::Lun;
use super::mail::{AbortGroup, ConnectionId, Scope};
use super::media::{Next, StorageWork};
use super::session::Session;
use super::shared::POOL;
use super::usage::{Class, Ended, Sampler};

/// Slot of a command that needs no unit.
const NO_UNIT: usize = usize::MAX;
/// Bound of the buffers of one session's commands, in bytes; beyond it TASK SET FULL. The pool has room for several
/// such sessions, so that a session that does not read, or whose storage does not respond, leaves memory to others.
const SESSION_BYTES_MAX: usize = 256 << 20;
/// Bound of the borrowed storage bytes that a session sends at a time: more would exceed the cache.
const BORROWED_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(3 * SESSION_BYTES_MAX < POOL.bytes_max);

struct Task {
    /// Slot of its unit; `NO_UNIT` for a command that needs none.
    lun: usize,
    cdb: [u8; 16],
    /// Length of its parameter list; 0: none.
    list_bytes: u32,
    /// Its medium access, until that has ended.
    media: Option<Media>,
    buffer: Option<Span>,
    charged: usize,
    /// A WRITE: bytes of its buffer that are in the storage.
    written: usize,
    /// Borrowed storage bytes that it is sending.
    borrowed: usize,
    work: Option<StorageWork>,
    /// Its copy, which runs on another thread.
    copying: Option<Box<Copying>>,
    class: Class,
    /// The arrival of a command that is timed, and the number of commands that it stands for.
    timed: Option<(Duration, u64)>,
    /// Its response has been passed to the machine.
    answered: bool,
    /// Task management functions of other sessions that wait for the end of this task. If there are any, the task gets
    /// no response.
    groups: Vec<Arc<AbortGroup>>,
}

impl Task {
    fn new(lun: usize, cdb: [u8; 16]) -> Self {
        Self {
            lun,
            cdb,
            list_bytes: 0,
            media: None,
            buffer: None,
            charged: 0,
            written: 0,
            borrowed: 0,
            work: None,
            copying: None,
            class: Class::Other,
            timed: None,
            answered: false,
            groups: Vec::new(),
        }
    }
}

enum Action {
    /// Ends with the device server's outcome.
    Answer(Outcome),
    /// Ends because its data-out has an unusable length; the residual is relative to `needed` bytes.
    Misfit { needed: u64 },
    /// Receives `bytes` of data-out into its buffer.
    Collect { bytes: u32 },
    /// Ends with GOOD; it accesses no blocks.
    Nothing,
    /// A READ that waits until the session borrows fewer bytes.
    Wait,
    /// A READ that sends these borrowed storage bytes.
    Borrow(Span),
    /// A READ that sends data that was read and sealed ahead.
    Send(Guess),
    /// Starts its storage work.
    Work(StorageWork),
}

/// All commands of a connection, by [`TaskId`].
pub(super) struct Tasks {
    connection: ConnectionId,
    slots: Vec<Option<Task>>,
    pub(super) ahead: Ahead,
    /// Jobs with requests at endpoints or at the copier.
    busy: usize,
    /// Bytes of all tasks' buffers: the sum of `Task::charged`.
    charged: usize,
    /// Borrowed storage bytes being sent, and the READs that wait for them to become fewer, oldest first.
    borrowed: usize,
    waiting: VecDeque<TaskId>,
    /// Number of occupied slots.
    present: usize,
    sampler: Sampler,
}

impl Tasks {
    pub(super) fn new(connection: ConnectionId) -> Self {
        Self {
            connection,
            slots: Vec::new(),
            ahead: Ahead::off(),
            busy: 0,
            charged: 0,
            borrowed: 0,
            waiting: VecDeque::new(),
            present: 0,
            sampler: Sampler::default(),
        }
    }

    pub(super) fn buffer(&self, id: TaskId) -> Option<Span> {
        self.get(id)?.buffer.clone()
    }

    /// No request is at an endpoint or the copier.
    pub(super) fn is_idle(&self) -> bool {
        self.busy == 0 && !self.ahead.is_reading()
    }

    pub(super) fn uses(&self, lun: usize) -> bool {
        self.ahead.is_reading() || self.slots.iter().flatten().any(|task| task.lun == lun)
    }

    pub(super) fn awaited_luns(&self) -> impl Iterator<Item = usize> {
        let waits = |task: &&Task| task.work.as_ref().is_some_and(StorageWork::is_outstanding);
        self.slots.iter().flatten().filter(waits).map(|task| task.lun)
    }

    /// The slots of units whose state may be in doubt after a panic: those with storage work or a copy in progress.
    pub(super) fn doubtful_luns(&self) -> impl Iterator<Item = usize> {
        let under_way = |task: &&Task| task.work.is_some() || task.copying.is_some();
        self.slots.iter().flatten().filter(under_way).map(|task| task.lun)
    }

    /// Whether [`Self::prefetch`] has work: no command is in progress, and the next READ can be guessed.
    pub(super) fn wants_prefetch(&self) -> bool {
        self.ahead.wants_prefetch() && self.present == 0
    }

    pub(super) fn prefetch(&mut self, context: &mut TaskContext<'_, '_>) {
        let id = self.request_id(TaskId(AHEAD));
        self.ahead.step(context.thread, context.stream, id);
    }

    pub(super) fn on_command(&mut self, context: &mut TaskContext<'_, '_>, command: &machine::Command) {
        let (lun, step) = first_step(context, command);
        let id = command.task;
        let mut task = Task::new(lun, command.cdb);
        task.timed = self.sampler.arrive(self.present == 0).map(|count| (context.thread.io.now(), count));
        self.place(id, task);
        let offered = if command.write { command.expected } else { 0 };
        let action = self.choose(context, id, step, Some(offered));
        self.act(context, id, action);
    }

    /// The first `bytes` of a command's data-out have arrived: a WRITE begins, if its storage is memory.
    pub(super) fn on_data_front(&mut self, context: &mut TaskContext<'_, '_>, id: TaskId, bytes: usize) {
        if !context.machine.is_aborted(id) && context.stream.is_whole(id) {
            self.write_front(context, id, bytes);
        }
    }

    /// All data-out of a command has arrived. `Err`: why the connection ends.
    pub(super) fn on_data_out(
        &mut self,
        context: &mut TaskContext<'_, '_>,
        id: TaskId,
    ) -> Result<(), &'static str> {
        let Some(task) = self.slots[id.index()].as_mut() else { return Ok(()) };
        if !context.stream.is_whole(id) {
            return Err("data of a command came without all of its seal");
        }
        let action = if task.media.is_some() {
            self.choose_access(context, id, false)
        } else if let Some(rights) = context.session.rights(task.lun) {
            let list = task.buffer.take();
            let bytes = list.as_ref().map(Span::as_slice).unwrap_or_default();
            let unit = &context.thread.luns[task.lun];
            let step = unit.unit().parameters(context.session.nexus, rights, &task.cdb, bytes);
            self.choose(context, id, step, None)
        } else {
            // A reload has removed the unit since the command arrived.
            Action::Answer(scsi::no_unit(&task.cdb, &context.session.inventory))
        };
        self.act(context, id, action);
        Ok(())
    }

    /// The storage has completed a request of `task`, or one for [`AHEAD`].
    pub(super) fn on_completion(
        &mut self,
        context: &mut TaskContext<'_, '_>,
        task: u32,
        result: Result<(), IoError>,
    ) {
        if task == AHEAD {
            return self.ahead.on_completion(result.is_ok());
        }
        let Some(work) = self.get_mut(TaskId(task)).and_then(|task| task.work.as_mut()) else { return };
        work.completed(result);
        if !work.is_outstanding() {
            self.advance(context, TaskId(task));
        }
    }

    pub(super) fn on_copied(
        &mut self,
        context: &mut TaskContext<'_, '_>,
        id: TaskId,
        result: Result<u64, CopyFailure>,
    ) {
        let Some(task) = self.get_mut(id) else { return };
        let Some(copying) = task.copying.take() else { return };
        let lun = &context.thread.luns[task.lun];
        task.work = None;
        let outcome = copying.end(lun, context.session.nexus, result);
        let is_aborted = !context.answers || !task.groups.is_empty();
        self.busy -= 1;
        if is_aborted {
            return context.machine.abort(id);
        }
        self.answer(context, id, &outcome);
    }

    /// Starts READs that waited for borrowed bytes to become fewer, oldest first.
    pub(super) fn start_waiting(&mut self, context: &mut TaskContext<'_, '_>) {
        while self.borrowed < BORROWED_BYTES_MAX
            && let Some(id) = self.waiting.front().copied()
        {
            let action = self.choose_access(context, id, true);
            if matches!(action, Action::Wait) {
                return;
            }
            self.waiting.pop_front();
            self.act(context, id, action);
        }
    }

    /// The machine has ended a task. Drops its abort groups, which may answer an abort.
    pub(super) fn on_done(&mut self, id: TaskId) {
        if let Some(task) = self.slots.get_mut(id.index()).and_then(Option::take) {
            self.present -= 1;
            self.charged -= task.charged;
            self.borrowed -= task.borrowed;
            if task.media.is_some() {
                self.waiting.retain(|waiting| *waiting != id);
            }
        }
    }

    /// Ends all commands: work not started is dropped, and no data is sent; requests at endpoints complete.
    pub(super) fn abandon(&mut self, machine: &mut machine::Connection) {
        self.ahead.end();
        for id in machine.tasks().collect::<Vec<_>>() {
            match self.get_mut(id).and_then(|task| task.work.as_mut()) {
                Some(work) => work.abort(),
                None => machine.abort(id),
            }
        }
    }

    /// Stops the storage work of tasks that the machine has marked as aborted.
    pub(super) fn stop_marked(&mut self, machine: &machine::Connection) {
        for id in machine.tasks().filter(|id| machine.is_aborted(*id)) {
            if let Some(work) = self.get_mut(id).and_then(|task| task.work.as_mut()) {
                work.abort();
            }
        }
    }

    /// Ends the tasks of `session` that `group` covers; those with outstanding requests end when the requests complete.
    pub(super) fn abort_for(
        &mut self,
        machine: &mut machine::Connection,
        session: &Session,
        group: &Arc<AbortGroup>,
    ) {
        for id in machine.tasks().collect::<Vec<_>>() {
            let Some(task) = self.get_mut(id) else { continue };
            let covered = match group.aborts.scope {
                Scope::Lun(lun) => task.lun == lun,
                Scope::Target(target) => session.target == Some(target),
            };
            // An answered task has nothing left to abort, and its initiator would not get the response.
            if !covered || task.answered {
                continue;
            }
            group.found.store(true, Ordering::Relaxed);
            match &mut task.work {
                Some(work) if work.is_outstanding() => {
                    work.abort();
                    // Several requests may wait for one task.
                    task.groups.push(Arc::clone(group));
                }
                _ => machine.abort(id),
            }
        }
    }

    fn get(&self, id: TaskId) -> Option<&Task> {
        self.slots.get(id.index())?.as_ref()
    }

    fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.slots.get_mut(id.index())?.as_mut()
    }

    fn place(&mut self, id: TaskId, task: Task) {
        if self.slots.len() <= id.index() {
            self.slots.resize_with(id.index() + 1, || None);
        }
        debug_assert!(self.slots[id.index()].is_none(), "a slot is used again only after its end");
        self.slots[id.index()] = Some(task);
        self.present += 1;
    }

    fn request_id(&self, task: TaskId) -> RequestId {
        u64::from(self.connection.slot as u32) << 32 | u64::from(task.0)
    }

    /// Chooses by the server's decision. `offered`: bytes of data-out to come; `None` once they have arrived.
    fn choose(
        &mut self,
        context: &mut TaskContext<'_, '_>,
        id: TaskId,
        step: Step,
        offered: Option<u32>,
    ) -> Action {
        let task = self.slots[id.index()].as_mut().expect("a task under way");
        match step {
            Step::Done(outcome) => Action::Answer(outcome),
            Step::Collect { list_bytes, bytes } => {
                task.list_bytes = list_bytes;
                if offered.unwrap_or(0) < list_bytes {
                    return Action::Misfit { needed: list_bytes.into() };
                }
                self.choose_collect(context.thread.io, id, bytes)
            }
            Step::Copy(list) => {
                let origin = (self.connection, id);
                match copying::begin(context.thread, context.session, task.lun, origin, list) {
                    Ok((work, copying)) => {
                        task.copying = Some(Box::new(copying));
                        Action::Work(work)
                    }
                    Err(outcome) => Action::Answer(outcome),
                }
            }
            Step::Media(media) => {
                let lun = &context.thread.luns[task.lun];
                if media.writes() {
                    lun.note_writer(context.session.nexus, &context.session.initiator);
                }
                task.class = match media.op {
                    MediaOp::Read { .. } => Class::Read,
                    _ if media.writes() => Class::Write,
                    _ => Class::Other,
                };
                let out = media.data_out_bytes(lun.block_size);
                if let Some(offered) = offered
                    && !media.accepts_data_out(offered.into(), lun.block_size)
                {
                    return Action::Misfit { needed: out };
                }
                task.media = Some(media);
                match out.min(offered.unwrap_or(0).into()) as u32 {
                    0 => self.choose_access(context, id, false),
                    length => self.choose_collect(context.thread.io, id, length),
                }
            }
        }
    }

    fn choose_collect(&mut self, io: &Io, id: TaskId, bytes: u32) -> Action {
        if bytes > 0 && !self.take_buffer(io, id, bytes as usize) {
            return Action::Answer(Outcome::task_set_full());
        }
        Action::Collect { bytes }
    }

    /// Chooses the medium access of a command that has its data-out or needs none. `is_first`: no READ waits before it.
    fn choose_access(&mut self, context: &mut TaskContext<'_, '_>, id: TaskId, is_first: bool) -> Action {
        let TaskContext { thread, session, .. } = context;
        let task = self.slots[id.index()].as_ref().expect("a task under way");
        let media = task.media.as_ref().expect("set by the caller");
        let lun = &thread.luns[task.lun];
        if let MediaOp::LbaStatus { descriptors_max } = media.op {
            let extents = lba_extents(&mut *thread.units[task.lun], media, lun.block_size, descriptors_max);
            return Action::Answer(lun.unit().lba_status(session.nexus, media, &extents));
        }
        let data_in = media.data_in_bytes(lun.block_size) as usize;
        if data_in == 0 && media.blocks == 0 {
            return Action::Nothing;
        }
        if matches!(media.op, MediaOp::Read { fua: false }) {
            let extent = Extent { lun: task.lun, lba: media.lba, blocks: media.blocks };
            if let Some(action) = self.choose_in_place(context, extent, data_in, is_first) {
                return action;
            }
        }
        if data_in > 0 && !self.take_buffer(context.thread.io, id, data_in) {
            return Action::Answer(Outcome::task_set_full());
        }
        if let Some(arrived) = self.get(id).and_then(|task| task.buffer.as_ref()).map(Span::len) {
            self.write_front(context, id, arrived);
        }
        let Context { io, luns, units, .. } = &*context.thread;
        let task = self.slots[id.index()].as_ref().expect("a task under way");
        let media = task.media.as_ref().expect("as before");
        let (block_size, capability) = (luns[task.lun].block_size, units[task.lun].capability());
        let data = task.buffer.as_ref();
        match StorageWork::plan(media, data, task.written, block_size, capability, io.pool()) {
            Ok(work) => Action::Work(work),
            Err(()) => Action::Answer(Outcome::task_set_full()),
        }
    }

    /// Chooses how a READ is answered without a buffer, now or later: by data read ahead or borrowed bytes.
    fn choose_in_place(
        &mut self,
        context: &mut TaskContext<'_, '_>,
        extent: Extent,
        data_in: usize,
        is_first: bool,
    ) -> Option<Action> {
        let TaskContext { thread, machine, stream, .. } = context;
        let lun = &thread.luns[extent.lun];
        if data_in <= self.ahead.bytes_max()
            && let Some(guess) = self.ahead.on_read(extent, lun.changes(), thread.io.now())
        {
            return Some(Action::Send(guess));
        }
        // A data digest would be computed over bytes that may change before they are sent.
        if machine.receive_digests().data {
            return None;
        }
        // Together with the bytes being sent it would exceed the cache. A READ does not overtake those that wait.
        let overtakes = !is_first && !self.waiting.is_empty();
        if overtakes || self.borrowed > 0 && self.borrowed + data_in > BORROWED_BYTES_MAX {
            return Some(Action::Wait);
        }
        let offset = extent.lba * u64::from(lun.block_size);
        thread.units[extent.lun].borrow(thread.io.now(), offset, data_in, stream.reader()).map(Action::Borrow)
    }

    /// Writes the first `bytes` of a WRITE's buffer, as far as they are not written, if the storage is memory. On an idle core
    /// the kernel's worker would write them beside this thread, which other commands then keep busy.
    fn write_front(&mut self, context: &mut TaskContext<'_, '_>, id: TaskId, bytes: usize) {
        let is_alone = self.present == 1;
        let Some(task) = self.get_mut(id) else { return };
        let (Some(media), Some(buffer)) = (&task.media, &task.buffer) else { return };
        let Context { io, luns, units, .. } = &mut *context.thread;
        if !matches!(media.op, MediaOp::Write { durable: false }) || !(is_alone || io.is_crowded()) {
            return;
        }
        let block = luns[task.lun].block_size;
        let end = bytes - bytes % block as usize;
        if end == task.written {
            return;
        }
        let from = buffer.slice(task.written, end - task.written);
        let offset = media.lba * u64::from(block) + task.written as u64;
        if units[task.lun].write_now(io, offset, &from) {
            task.written = end;
        }
        // The command may yet be aborted: what was read ahead before is old in either case.
        luns[task.lun].note_change();
    }

    fn act(&mut self, context: &mut TaskContext<'_, '_>, id: TaskId, action: Action) {
        let task = self.slots[id.index()].as_mut().expect("a task under way");
        match action {
            Action::Answer(outcome) => self.answer(context, id, &outcome),
            Action::Misfit { needed } => {
                let outcome = context.thread.luns[task.lun].unit().misfit();
                self.complete(context, id, &outcome, 0, needed);
            }
            Action::Collect { bytes } => context.machine.want_data_out(id, bytes),
            Action::Nothing => self.finish(context, id, Ok(())),
            Action::Wait => self.waiting.push_back(id),
            Action::Borrow(stored) => {
                task.borrowed = stored.len();
                self.borrowed += stored.len();
                task.buffer = Some(stored);
                self.finish(context, id, Ok(()));
            }
            Action::Send(guess) => {
                task.buffer = Some(guess.plain);
                if let Some(send) = context.stream.sealed_send_mut() {
                    send.adopt(id, guess.prepared);
                }
                self.finish(context, id, Ok(()));
            }
            Action::Work(work) => {
                task.work = Some(work);
                self.busy += 1;
                self.advance(context, id);
            }
        }
    }

    /// Submits the next requests, or ends the command.
    fn advance(&mut self, context: &mut TaskContext<'_, '_>, id: TaskId) {
        let request = self.request_id(id);
        let task = self.slots[id.index()].as_mut().expect("a task under way");
        let lun = task.lun;
        match task.work.as_mut().expect("started").next() {
            Next::Wait => {}
            Next::One(kind) => submit(context.thread, lun, Request { id: request, kind }),
            Next::Many(kinds) => {
                for kind in kinds {
                    submit(context.thread, lun, Request { id: request, kind });
                }
            }
            Next::Done(result) => {
                self.busy -= 1;
                task.work = None;
                let media = task.media.as_ref().expect("started");
                let lun = &context.thread.luns[lun];
                if !matches!(media.op, MediaOp::Read { .. }) {
                    lun.note_change();
                }
                if !context.answers || !task.groups.is_empty() {
                    return context.machine.abort(id);
                }
                // A miscompare is a valid result of the command, not an error of the storage.
                if let Err(error) = result
                    && !matches!(error, MediaError::Miscompare { .. })
                {
                    let lun = &lun.config;
                    tracing::warn!(lun = lun.lun, storage = lun.medium.name(), ?error, op = ?media.op, lba = media.lba);
                }
                self.finish(context, id, result);
            }
        }
    }

    /// Allocates a buffer for a task. False: no memory now.
    fn take_buffer(&mut self, io: &Io, id: TaskId, bytes: usize) -> bool {
        if self.charged + bytes > SESSION_BYTES_MAX {
            return false;
        }
        let Some(buffer) = io.pool().take(bytes) else { return false };
        let task = self.slots[id.index()].as_mut().expect("a task under way");
        task.buffer = Some(buffer);
        task.charged += bytes;
        self.charged += bytes;
        true
    }

    fn finish(&mut self, context: &mut TaskContext<'_, '_>, id: TaskId, result: Result<(), MediaError>) {
        let task = self.slots[id.index()].as_mut().expect("a task under way");
        let media = task.media.take().expect("a command of the medium");
        let lun: &Lun = &context.thread.luns[task.lun];
        let outcome = lun.unit().finish(context.session.nexus, &media, result);
        let good = outcome.sense.is_none();
        let data_in = if good { media.data_in_bytes(lun.block_size) } else { 0 };
        let transfer = if good { data_in + media.data_out_bytes(lun.block_size) } else { 0 };
        self.complete(context, id, &outcome, data_in, transfer);
    }

    fn answer(&mut self, context: &mut TaskContext<'_, '_>, id: TaskId, outcome: &Outcome) {
        let task = self.slots[id.index()].as_ref().expect("a task under way");
        let (mut length, mut transfer) = (0, u64::from(task.list_bytes));
        if !outcome.data.is_empty() {
            if !self.take_buffer(context.thread.io, id, outcome.data.len()) {
                return self.complete(context, id, &Outcome::task_set_full(), 0, 0);
            }
            let buffer = self.get(id).and_then(|task| task.buffer.as_ref());
            buffer.expect("just taken").fill(0, &outcome.data);
            length = outcome.data.len() as u64;
            transfer = length;
        }
        self.complete(context, id, outcome, length, transfer);
    }

    /// Passes the response to the machine: `data_in` bytes of the task's buffer are sent; `transfer` is the number of
    /// bytes that the command transfers in its direction.
    fn complete(
        &mut self,
        context: &mut TaskContext<'_, '_>,
        id: TaskId,
        outcome: &Outcome,
        data_in: u64,
        transfer: u64,
    ) {
        let sense = outcome.sense.as_ref().map(Sense::to_bytes).unwrap_or_default();
        let status = outcome.status as u8;
        let task = self.slots[id.index()].as_mut().expect("a task under way");
        task.answered = true;
        let is_good = outcome.sense.is_none();
        let ended = Ended {
            class: task.class,
            bytes: if is_good { transfer.max(data_in) } else { 0 },
            status: outcome.status,
            sense_key: outcome.sense.as_ref().map(|sense| sense.key),
            time: task.timed.map(|(since, count)| (context.thread.io.now().saturating_sub(since), count)),
        };
        context.session.usage.add(ended);
        if task.lun != NO_UNIT {
            context.thread.luns[task.lun].usage(self.connection.worker).add(ended);
        }
        let data_in = u32::try_from(data_in).expect("bounded by the longest transfer");
        context.machine.complete(id, machine::Completion { status, sense: &sense, data_in, transfer });
    }
}

/// The slot of a new command's unit (`NO_UNIT`: it needs none) and the device server's decision.
fn first_step(context: &TaskContext<'_, '_>, command: &machine::Command) -> (usize, Step) {
    let (session, luns) = (context.session, context.thread.luns);
    let without_unit = |outcome| (NO_UNIT, Step::Done(outcome));
    let Some(seen) = session.seen(command.lun) else {
        return without_unit(scsi::no_unit(&command.cdb, &session.inventory));
    };
    let unit = &luns[seen.lun];
    if unit.is_clearing() {
        return without_unit(Outcome::busy());
    }
    match unit.working_unit() {
        Some(mut unit) => {
            (seen.lun, unit.command(session.nexus, seen.rights, &command.cdb, &session.inventory))
        }
        None => without_unit(Outcome::check(Sense::INTERNAL)),
    }
}

fn submit(thread: &mut Context<'_>, lun: usize, request: Request) {
    thread.units[lun].submit(thread.io, request, thread.done);
}

/// The allocation state of a range, in whole blocks: a block that is partly data counts as data.
fn lba_extents(unit: &mut dyn Endpoint, media: &Media, block_size: u32, count_max: u32) -> Vec<LbaExtent> {
    let block = u64::from(block_size);
    let (mut at, end) = (media.lba, media.lba + media.blocks);
    let mut extents = Vec::new();
    while at < end && extents.len() < count_max as usize {
        let extent = unit.extent(at * block);
        let (next, mapped) = match extent.data {
            true => (extent.end.div_ceil(block), true),
            false if extent.end / block > at => (extent.end / block, false),
            false => (at + 1, true),
        };
        let next = next.clamp(at + 1, end);
        extents.push(LbaExtent { blocks: next - at, mapped });
        at = next;
    }
    extents
}

#[cfg(test)]
mod tests {
    use area::PoolLimits;

    use super::*;

    #[test]
    fn a_task_that_ends_gives_back_what_it_was_charged() {
        let io = Io::new(PoolLimits::default()).unwrap();
        let mut tasks = Tasks::new(ConnectionId { worker: 0, slot: 0, generation: 0 });
        let ids = [TaskId(0), TaskId(1)];
        for id in ids {
            tasks.place(id, Task::new(0, [0; 16]));
            assert!(tasks.take_buffer(&io, id, 4096));
            tasks.slots[id.index()].as_mut().unwrap().borrowed = 512;
            tasks.borrowed += 512;
        }
        assert!(!tasks.take_buffer(&io, ids[1], SESSION_BYTES_MAX - 4096), "the session's bound");
        tasks.on_done(ids[0]);
        assert_eq!((tasks.charged, tasks.borrowed), (4096, 512));
        tasks.on_done(ids[0]);
        tasks.on_done(ids[1]);
        assert_eq!((tasks.charged, tasks.borrowed), (0, 0));
    }
}
