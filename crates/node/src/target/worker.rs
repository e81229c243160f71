//! One loop thread: its connections, its endpoints for every logical unit, its mail.

use std::any::Any;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use area::PoolLimits;
use block::{Completion, OpenError, Router};
use io::{Event, Io, Owner, Token};

use super::config::ServeError;
use super::connection::Connection;
use super::context::Context;
use super::lun::Lun;
use super::mail::{Change, ConnectionId, Mail};
use super::management;
use super::portals::{Portals, tune};
use super::refusals::Refused;
use super::shared::{Shared, least_loaded};
use super::tasks::Tasks;
use super::units::Units;
use crate::TlsIdentity;
use crate::stream::{GENERATION_MASK, Operation, SEND_BYTES_MAX, Socket, Stream};

/// Bound of the connections of one thread, logged in or not.
const CONNECTIONS_MAX: usize = 4096;
/// Bound of the connections of one thread without a session; beyond it the oldest is cut. A login takes milliseconds,
/// and a peer that only holds connections open must not keep others out.
const LOGINS_MAX: usize = 1024;
/// The same for all threads together: 10 KiB of memory each.
const SERVER_LOGINS_MAX: usize = 4096;
/// Number of connections from which memory is released after most of them have ended.
const RELEASE_FROM: usize = 64;
/// Payload bytes of one turn, shared by the connections that have something to send; and the least that each may send.
const TURN_BYTES: usize = 4 << 20;
const SEND_BYTES_MIN: usize = 64 << 10;
/// Bound of the connections of one thread that a panic may end; one more ends the server. A defect that recurs so often
/// is not worth surviving, and each panic costs a slot.
const PANICS_MAX: usize = 64;
/// How long sessions may take to log out when another process will serve them: those that have, wait for it.
const HAND_OVER_MAX: Duration = Duration::from_millis(300);
/// Time for the last flush, which may have to write the dirty pages of the page cache.
const FLUSH_MAX: Duration = Duration::from_secs(60);
/// Upper half of the ids of the worker's own requests.
const WORKER_REQUESTS: u64 = u32::MAX as u64;
/// Upper half of the ids of requests for leaving units.
const LEAVING_REQUESTS: u64 = WORKER_REQUESTS - 1;

const KEY_MAIL: u32 = 0;
const KEY_DEADLINE: u32 = 1;
const KEY_REFUSALS: u32 = 2;
const KEY_LEAVING: u32 = 3;
const KEY_ACCEPT: u32 = 4;

#[derive(Clone, Copy, Debug)]
enum Route {
    Worker,
    Unit(usize),
    Slot(usize),
}

/// A slot for a connection; its owner number and the route of its events are reused.
struct Slot {
    owner: Owner,
    generation: u32,
    /// Boxed, because it is large and is moved out while it runs.
    connection: Option<Box<Connection>>,
    dirty: bool,
    /// A timer left by the last connection of this slot, for the next one: timers cannot be cancelled, and must not
    /// accumulate with every connection.
    timer: Option<Duration>,
}

/// Each time is the end of the phase: `Draining`, sessions may finish and log out; `Ending`, connections are cut and
/// outstanding I/O completes; `Flushing`, the last flush is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining(Duration),
    Ending(Duration),
    Flushing { outstanding: usize, until: Duration },
}

pub(super) struct Worker {
    index: usize,
    io: Io,
    owner: Owner,
    shared: Arc<Shared>,
    portals: Portals,
    units: Units,
    slots: Vec<Slot>,
    vacant: Vec<usize>,
    /// Highest number of connections since memory was last released.
    connections_peak: usize,
    router: Router<Route>,
    done: Vec<Completion>,
    /// Slots to be pumped, each once, in the order of their events.
    dirty: VecDeque<usize>,
    /// Slots whose connections may read and seal ahead in turns without events, each once.
    prefetching: VecDeque<usize>,
    /// Highest number of dirty slots at a time in this turn: they share the payload of the turn.
    ready_max: usize,
    phase: Phase,
    /// Connections ended by a panic; each has cost a slot.
    panics: usize,
    /// Whether a connection with a session was active since the last wait.
    served_session: bool,
    /// Descriptions of what did not end cleanly.
    unfinished: Vec<String>,
}

impl Worker {
    pub(super) fn new(
        index: usize,
        limits: PoolLimits,
        shared: Arc<Shared>,
        listeners: Vec<io::Listener>,
    ) -> Result<Self, ServeError> {
        let mut io = Io::new(limits).map_err(ServeError::Loop)?;
        let owner = io.owner();
        let mut router = Router::new();
        router.add(owner, Route::Worker);
        let units = Units::open(&mut io, shared.state().luns.iter().flatten())?;
        for (slot, endpoint) in units.endpoints.iter() {
            router.add_endpoint(&**endpoint, Route::Unit(slot));
        }
        let waker = io.waker(Token { owner, key: KEY_MAIL }).map_err(ServeError::Loop)?;
        shared.mailboxes[index].connect(waker);
        Ok(Self {
            index,
            io,
            owner,
            shared,
            portals: Portals::new(owner, KEY_ACCEPT, listeners),
            units,
            slots: Vec::new(),
            vacant: Vec::new(),
            connections_peak: 0,
            router,
            done: Vec::new(),
            dirty: VecDeque::new(),
            prefetching: VecDeque::new(),
            ready_max: 0,
            phase: Phase::Serving,
            panics: 0,
            served_session: false,
            unfinished: Vec::new(),
        })
    }

    pub(super) fn run(mut self) -> Result<(), ServeError> {
        self.portals.accept_all(&mut self.io);
        let mut events = Vec::new();
        while !self.is_over() {
            // Spinning before sleep is enabled only for sessions: a flood of logins would multiply its CPU time.
            self.io.set_spin(std::mem::take(&mut self.served_session));
            let deadline = (!self.prefetching.is_empty()).then_some(Duration::ZERO);
            self.io.turn_until(deadline, &mut events).map_err(ServeError::Loop)?;
            if events.is_empty() {
                self.prefetch();
            }
            for event in events.drain(..) {
                self.on_event(event);
            }
            self.settle();
            while self.change_units() {
                self.settle();
            }
        }
        self.shared.mailboxes[self.index].close();
        self.shared.refusals.log_summary();
        if !self.unfinished.is_empty() {
            return Err(ServeError::Unfinished(self.unfinished.join("; ")));
        }
        let Self { mut io, slots, mut units, panics, .. } = self;
        // The waker has one area, and a remote unit has those that its connection receives and sends with.
        let expected = 1 + 2 * units.endpoints.count();
        drop(slots);
        units.close(&mut io);
        drop(units);
        debug_assert!(
            panics > 0 || io.pool().borrowed() <= expected,
            "{} areas did not come back",
            io.pool().borrowed()
        );
        Ok(())
    }

    fn on_event(&mut self, event: Event) {
        match self.router.route(event.token.owner) {
            None => {}
            Some(Route::Unit(unit)) => {
                self.units.endpoints[unit].on_event(&mut self.io, event, &mut self.done);
            }
            Some(Route::Slot(slot)) => self.on_connection_event(slot, event),
            Some(Route::Worker) => match event.token.key {
                KEY_MAIL => {
                    for mail in self.shared.mailboxes[self.index].take() {
                        self.on_mail(mail);
                    }
                }
                KEY_DEADLINE => self.on_deadline(),
                KEY_REFUSALS => self.shared.refusals.log_summary(),
                // `change_units` checks the time itself.
                KEY_LEAVING => {}
                key => self.on_accepted((key - KEY_ACCEPT) as usize, event),
            },
        }
    }

    fn on_connection_event(&mut self, slot: usize, event: Event) {
        let (operation, generation) = Operation::of(event.token.key);
        if self.slots[slot].generation != generation && operation != Operation::Timer {
            return;
        }
        self.act(slot, |connection, context| connection.on_event(context, operation, event));
    }

    /// Calls `act` on the connection in the slot, if any; it is pumped before the next turn. A panic ends only this
    /// connection: see [`Self::on_panic`].
    fn act<T>(&mut self, slot: usize, act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T) -> Option<T> {
        let result = self.attempt(slot, act)?;
        self.touch(slot);
        Some(result)
    }

    /// As [`Self::act`], without pumping afterwards.
    fn attempt<T>(
        &mut self,
        slot: usize,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let mut connection = self.slots[slot].connection.take()?;
        // A panic may leave in an inconsistent state: the connection, which ends; its units, which fail. Endpoints and
        // the loop take requests one at a time and release them by their completions.
        let result = catch_unwind(AssertUnwindSafe(|| act(&mut connection, &mut self.context())));
        match result {
            Ok(result) => {
                self.served_session |= connection.has_session();
                self.slots[slot].connection = Some(connection);
                Some(result)
            }
            Err(panic) => {
                self.on_panic(connection, panic);
                None
            }
        }
    }

    /// A panic occurred in a connection: a defect of this program. The connection and its session end; units that were
    /// locked, or had requests of it, fail. Its slot is not reused: completions of its requests may still arrive.
    fn on_panic(&mut self, connection: Box<Connection>, panic: Box<dyn Any + Send>) {
        self.panics += 1;
        if self.panics > PANICS_MAX {
            resume_unwind(panic);
        }
        let text = panic.downcast_ref::<&str>().copied();
        let text =
            text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        tracing::error!(
            peer = %connection.login.peer, initiator = connection.login.initiator(), panic = text,
            "a panic ended this connection: this is a defect of hikyaku, please report it"
        );
        self.unfinished.push(format!("a panic ended the connection of {}: {text}", connection.login.peer));
        for lun in connection.tasks.doubtful_luns() {
            self.units.luns[lun].fail();
        }
        for (_, lun) in self.units.luns.iter() {
            lun.fail_if_poisoned();
        }
        let (id, luns) = (connection.id, &self.units.luns);
        let end = move || connection.end_after_panic(luns);
        if catch_unwind(AssertUnwindSafe(end)).is_err() {
            tracing::error!("the connection's end panicked too");
        }
        self.release_session(id);
    }

    fn release_session(&self, id: ConnectionId) {
        for waiter in self.shared.sessions.release(id) {
            self.shared.mailboxes[waiter.worker].send(Mail::Retry { connection: waiter });
        }
        self.shared.load[self.index].fetch_sub(1, Ordering::Relaxed);
    }

    fn context(&mut self) -> Context<'_> {
        Context {
            io: &mut self.io,
            shared: &self.shared,
            luns: &self.units.luns,
            units: &mut self.units.endpoints,
            done: &mut self.done,
            draining: self.phase != Phase::Serving,
            send_bytes: (TURN_BYTES / self.ready_max.max(1)).clamp(SEND_BYTES_MIN, SEND_BYTES_MAX),
        }
    }

    /// Runs until no connection has work left that needs no event of the kernel.
    fn settle(&mut self) {
        self.ready_max = 0;
        loop {
            let mut done = std::mem::take(&mut self.done);
            for completion in done.drain(..) {
                self.on_completion(completion);
            }
            if self.done.is_empty() {
                self.done = done;
            }
            self.ready_max = self.ready_max.max(self.dirty.len());
            let Some(slot) = self.dirty.pop_front() else {
                if self.done.is_empty() {
                    break;
                }
                continue;
            };
            self.pump(slot);
        }
        self.advance_phase();
    }

    fn on_completion(&mut self, completion: Completion) {
        let (upper, task) = (completion.id >> 32, completion.id as u32);
        if upper == WORKER_REQUESTS {
            if let Err(error) = completion.result {
                let name = self.units.name_of(task as usize);
                tracing::error!(storage = name, %error, "last flush failed");
                self.unfinished.push(format!("the last flush of {name} failed: {error}"));
            }
            if let Phase::Flushing { outstanding, .. } = &mut self.phase {
                *outstanding -= 1;
            }
            return;
        }
        if upper == LEAVING_REQUESTS {
            return self.units.on_flushed(task as usize, completion.result);
        }
        let slot = upper as usize;
        self.act(slot, |connection, context| {
            connection
                .with_tasks(context, |tasks, context| tasks.on_completion(context, task, completion.result));
        });
    }

    /// Marks a connection dirty: it is pumped before the next turn.
    fn touch(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.slots[slot].dirty, true) {
            self.dirty.push_back(slot);
        }
    }

    fn pump(&mut self, slot: usize) {
        self.slots[slot].dirty = false;
        let pumped = self.attempt(slot, |connection, context| {
            connection.pump(context);
            (connection.is_over(), connection.wants_prefetch())
        });
        match pumped {
            Some((true, _)) => {
                let connection = self.slots[slot].connection.take().expect("it was just pumped");
                self.retire(slot, *connection);
            }
            Some((false, wants_prefetch)) if wants_prefetch && !self.prefetching.contains(&slot) => {
                self.prefetching.push_back(slot);
            }
            Some((false, _)) | None => {}
        }
    }

    /// After a turn without events: one step of reading and sealing ahead, for the next connection in the queue.
    fn prefetch(&mut self) {
        let Some(slot) = self.prefetching.pop_front() else { return };
        let prepared = self.attempt(slot, |connection, context| {
            if connection.wants_prefetch() {
                connection.with_tasks(context, Tasks::prefetch);
            }
            connection.wants_prefetch()
        });
        if prepared == Some(true) {
            self.prefetching.push_back(slot);
        }
    }

    fn retire(&mut self, slot: usize, connection: Connection) {
        let id = connection.id;
        self.slots[slot].timer = connection.timer;
        if let Some(refusal) = &connection.login.refusal {
            self.log_refusal(connection.login.peer, refusal);
        }
        connection.end(&self.units.luns);
        self.release_session(id);
        self.slots[slot].generation = (self.slots[slot].generation + 1) & GENERATION_MASK;
        self.vacant.push(slot);
        self.release_memory();
        tracing::debug!(
            worker = self.index,
            connections = self.occupied(),
            areas = self.io.pool().borrowed(),
            mapped_bytes = self.io.pool().mapped_bytes(),
            "memory"
        );
    }

    /// Returns memory to the system when three quarters of at least `RELEASE_FROM` connections have ended. The cost is
    /// proportional to the connections that have ended since the last release.
    fn release_memory(&mut self) {
        let connections = self.occupied();
        if self.connections_peak >= RELEASE_FROM && connections <= self.connections_peak / 4 {
            self.connections_peak = connections;
            self.io.trim();
            area::release_heap();
        }
    }

    fn on_accepted(&mut self, listener: usize, event: Event) {
        let Some(accepted) = self.portals.on_accepted(&mut self.io, listener, event) else { return };
        if let Some(socket) = accepted {
            self.place(socket);
        }
        if self.phase == Phase::Serving {
            self.portals.accept(&mut self.io, listener);
        }
    }

    /// Passes a new socket to the thread with the fewest connections.
    fn place(&mut self, socket: OwnedFd) {
        let Ok((peer, local)) = io::addresses(&socket) else { return };
        let worker = least_loaded(&self.shared);
        if self.shared.load[worker].load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            let reason = format!("there are {CONNECTIONS_MAX} connections for every thread");
            return self.log_refusal(peer, &reason.as_str().into());
        }
        self.shared.load[worker].fetch_add(1, Ordering::Relaxed);
        if worker == self.index {
            self.adopt(socket, peer, local);
        } else {
            self.shared.mailboxes[worker].send(Mail::Connection { socket, peer, local });
        }
    }

    fn adopt(&mut self, socket: OwnedFd, peer: SocketAddr, local: SocketAddr) {
        if let Err(error) = tune(&socket) {
            tracing::debug!(%peer, %error, "socket options");
        }
        let adopted = self.phase == Phase::Serving && self.occupy(socket, peer, local);
        if !adopted {
            self.log_refusal(peer, &"no memory, or the server is ending".into());
            self.shared.load[self.index].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Puts a connection into a slot. False: no memory.
    fn occupy(&mut self, socket: OwnedFd, peer: SocketAddr, local: SocketAddr) -> bool {
        self.bound_logins();
        let slot = self.vacant.pop().unwrap_or_else(|| {
            let owner = self.io.owner();
            self.router.add(owner, Route::Slot(self.slots.len()));
            self.slots.push(Slot { owner, generation: 0, connection: None, dirty: false, timer: None });
            self.slots.len() - 1
        });
        let Slot { owner, generation, timer, .. } = self.slots[slot];
        let id = ConnectionId { worker: self.index, slot, generation };
        let tls = self.shared.state().config.tls.as_ref().map(TlsIdentity::end).transpose();
        let transport = Box::new(Socket::new(Rc::new(socket), false));
        let stream = tls.ok().and_then(|tls| Stream::new(&self.io, transport, owner, generation, tls));
        let connection = stream.and_then(|stream| {
            Connection::new(&self.io, &self.shared, stream, owner, id, (peer, local), timer)
        });
        let adopted = connection.is_some();
        self.slots[slot].connection = connection.map(Box::new);
        if adopted {
            self.touch(slot);
        } else {
            self.vacant.push(slot);
        }
        adopted
    }

    /// Cuts the oldest connection without a session if there are too many.
    fn bound_logins(&mut self) {
        let logins_max = (SERVER_LOGINS_MAX / self.shared.mailboxes.len()).clamp(1, LOGINS_MAX);
        let connections = self.occupied();
        self.connections_peak = self.connections_peak.max(connections + 1);
        if connections < logins_max {
            return;
        }
        let since =
            |slot: &Slot| slot.connection.as_ref().and_then(|connection| connection.logging_in_since());
        let logins = self.slots.iter().enumerate().filter_map(|(at, slot)| Some((since(slot)?, at)));
        let (count, oldest) = logins.fold((0, None), |(count, oldest), login| {
            (count + 1, Some(oldest.map_or(login, |oldest| login.min(oldest))))
        });
        if count >= logins_max
            && let Some((_, slot)) = oldest
            && let Some(connection) = &mut self.slots[slot].connection
        {
            connection.close("too many connections are logging in");
            self.touch(slot);
        }
    }

    fn log_refusal(&mut self, peer: SocketAddr, refused: &Refused) {
        if let Some(at) = self.shared.refusals.log(self.io.now(), peer, refused) {
            self.io.timer(Token { owner: self.owner, key: KEY_REFUSALS }, at);
        }
    }

    fn on_mail(&mut self, mail: Mail) {
        match mail {
            Mail::Connection { socket, peer, local } => self.adopt(socket, peer, local),
            Mail::Close { connection, reason } => {
                self.with(connection, |connection, _| connection.close(reason));
            }
            Mail::Retry { connection } => {
                self.with(connection, Connection::claim_session);
            }
            Mail::Aborted { aborts, found } => {
                management::conclude(&self.shared, &aborts, found);
                self.with(aborts.origin, |connection, _| connection.on_aborted(aborts.request));
            }
            Mail::Abort { group } => {
                self.for_each(|connection, _| connection.abort_for(&group));
            }
            Mail::Copied { connection, task, result } => {
                self.with(connection, |connection, context| {
                    connection.with_tasks(context, |tasks, context| tasks.on_copied(context, task, result));
                });
            }
            Mail::Attach { lun, answer } => self.attach(lun, answer),
            Mail::Reload { change, answer, gone } => {
                let ended = self.reload(&change, &gone);
                // The receiver may have timed out.
                let _ = answer.send(ended);
            }
            Mail::Drain if self.phase == Phase::Serving => {
                let timeout = self.shared.state().config.drain_timeout;
                let hand_over = self.shared.hands_over().then_some(HAND_OVER_MAX);
                let until = self.deadline(hand_over.map_or(timeout, |max| max.min(timeout)));
                self.phase = Phase::Draining(until);
                self.portals.close(&mut self.io, self.shared.hands_over());
                self.for_each(|connection, context| connection.drain(context.io.now()));
            }
            Mail::Drain => {}
            // The receiver may have timed out.
            Mail::Probe { answer } => drop(answer.send(())),
            Mail::Stop => {
                if matches!(self.phase, Phase::Serving | Phase::Draining(_)) {
                    self.portals.close(&mut self.io, self.shared.hands_over());
                    self.cut();
                }
            }
        }
    }

    fn attach(&mut self, lun: Arc<Lun>, answer: mpsc::Sender<Result<(), OpenError>>) {
        if self.phase != Phase::Serving {
            // The dropped `answer` makes the reload fail.
            return;
        }
        let slot = lun.slot;
        if let Some(endpoint) = self.units.attach(&mut self.io, lun, answer) {
            self.router.add_endpoint(endpoint, Route::Unit(slot));
        }
    }

    /// Applies a reload. Returns the number of sessions that it ended.
    fn reload(&mut self, change: &Change, gone: &mpsc::Sender<()>) -> usize {
        for (slot, size_bytes) in &change.resized {
            self.units.endpoints[*slot].resize(*size_bytes);
        }
        let mut ended = 0;
        if let Some(state) = &change.state {
            for slot in 0..self.slots.len() {
                let revised = self.act(slot, |connection, context| connection.revise(context, state));
                ended += usize::from(revised == Some(true));
            }
        }
        for slot in &change.removed {
            self.units.remove(*slot, gone);
        }
        ended
    }

    /// Advances units being opened or leaving. True: more work may be possible now.
    fn change_units(&mut self) -> bool {
        if !self.units.is_changing() {
            return false;
        }
        self.units.report_opened();
        let slots = &self.slots;
        let is_used = |unit| {
            let mut connections = slots.iter().filter_map(|slot| slot.connection.as_ref());
            connections.any(|connection| connection.uses(unit))
        };
        let timer = Token { owner: self.owner, key: KEY_LEAVING };
        let mut left = Vec::new();
        let has_acted =
            self.units.leave(&mut self.io, &mut self.done, is_used, LEAVING_REQUESTS, timer, &mut left);
        left.into_iter().for_each(|owner| self.router.remove(owner));
        has_acted
    }

    fn deadline(&mut self, after: Duration) -> Duration {
        let until = self.io.now() + after;
        self.io.timer(Token { owner: self.owner, key: KEY_DEADLINE }, until);
        until
    }

    fn on_deadline(&mut self) {
        let now = self.io.now();
        match self.phase {
            Phase::Draining(until) if now >= until => {
                match self.shared.hands_over() {
                    true => tracing::info!("sessions did not log out: closing them for the hand-over"),
                    false => tracing::warn!("sessions did not log out in time: closing them"),
                }
                self.cut();
            }
            Phase::Flushing { outstanding, until } if now >= until && outstanding > 0 => {
                self.unfinished.push("the last flush did not end in time".into());
                self.phase = Phase::Flushing { outstanding: 0, until };
            }
            // `advance_phase` handles the deadline of `Ending`.
            _ => {}
        }
    }

    fn cut(&mut self) {
        let until = self.deadline(self.shared.state().config.drain_timeout);
        self.phase = Phase::Ending(until);
        self.for_each(|connection, _| connection.close("the server ends"));
    }

    fn with(&mut self, id: ConnectionId, act: impl FnOnce(&mut Connection, &mut Context<'_>)) {
        if self.slots.get(id.slot).is_none_or(|slot| slot.generation != id.generation) {
            return;
        }
        self.act(id.slot, act);
    }

    fn for_each(&mut self, act: impl Fn(&mut Connection, &mut Context<'_>)) {
        for slot in 0..self.slots.len() {
            self.act(slot, &act);
        }
    }

    fn advance_phase(&mut self) {
        let empty = self.occupied() == 0;
        match self.phase {
            Phase::Draining(_) | Phase::Ending(_) if empty => self.flush(&[]),
            Phase::Ending(until) if self.io.now() >= until => {
                let unresponsive = self.give_up();
                self.flush(&unresponsive);
            }
            _ => {}
        }
    }

    /// Drops connections whose storage does not respond, and returns the slots of these units.
    fn give_up(&mut self) -> Vec<usize> {
        let mut unresponsive: Vec<usize> = Vec::new();
        for slot in &mut self.slots {
            unresponsive
                .extend(slot.connection.take().iter().flat_map(|connection| connection.tasks.awaited_luns()));
        }
        unresponsive.sort_unstable();
        unresponsive.dedup();
        for lun in &unresponsive {
            let name = self.units.name_of(*lun);
            tracing::error!(storage = name, "does not answer: its requests are given up");
            self.unfinished.push(format!("{name} did not answer; what was written to it may not be durable"));
        }
        unresponsive
    }

    /// Starts the last flush, except for units in `unresponsive`, which do not respond.
    fn flush(&mut self, unresponsive: &[usize]) {
        let until = self.deadline(FLUSH_MAX);
        let outstanding = self.units.flush(&mut self.io, &mut self.done, unresponsive, WORKER_REQUESTS);
        self.phase = Phase::Flushing { outstanding, until };
        self.settle();
    }

    fn occupied(&self) -> usize {
        self.slots.len() - self.vacant.len() - self.panics
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Flushing { outstanding: 0, .. })
    }
}
