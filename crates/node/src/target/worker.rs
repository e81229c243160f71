//! One loop thread: its connections, its attachments to every logical unit, its mail.

use std::any::Any;
use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use area::PoolLimits;
use block::{Completion, Endpoint, Kind, OpenError, Request, Router, State, wait_ready};
use io::{Event, Handle, Io, Item, Owner, Token};
use socket2::{SockRef, TcpKeepalive};

use super::config::ServeError;
use super::connection::{Connection, Context};
use super::handshake::ENQUIRY;
use super::lun::Lun;
use super::mail::{Change, ConnectionId, Mail};
use super::management;
use super::refusals::Refusals;
use super::server::{Shared, least_loaded};
use super::slots::Slots;
use crate::TlsIdentity;
use crate::stream::{GENERATION_MASK, Operation, SEND_BYTES_MAX, Stream};

/// Connections of one thread, logged in or not.
const CONNECTIONS_MAX: usize = 4096;
/// Of those, the ones that have no session yet. Beyond it the oldest goes: a login takes milliseconds, and whoever only
/// holds connections open must not keep others out.
const LOGINS_MAX: usize = 1024;
/// The same for all threads together: 10 KiB of memory each.
const SERVER_LOGINS_MAX: usize = 4096;
/// Connections of a thread from which on memory is given back when most of them have ended.
const RELEASE_FROM: usize = 64;
/// Payload of one turn, which the connections that have something to do in it share; and what each may send in any case.
const TURN_BYTES: usize = 4 << 20;
const SEND_BYTES_MIN: usize = 64 << 10;
/// How long a peer may leave data unacknowledged, or not read at all, until the kernel drops the connection.
const UNREAD_MAX: Duration = Duration::from_secs(30);
/// Probes of a silent connection: a peer that vanished without a word is noticed even where nothing is sent to it.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
/// Connections of one thread that a panic may end: with one more the server ends. A defect that comes back so often is not to be
/// survived, and each has cost a slot.
const PANICS_MAX: usize = 64;
/// How long the last flush may take. It moves what lies in the page cache, so it is given its time.
const FLUSH_MAX: Duration = Duration::from_secs(60);
/// How long accepting rests when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long the storage of a unit that is no longer served may take to close.
const LEAVE_MAX: Duration = Duration::from_secs(3);

/// Completions with this in the upper half belong to the worker, not to a connection.
const WORKER_REQUESTS: u64 = u32::MAX as u64;
/// The same for units that are no longer served.
const LEAVING_REQUESTS: u64 = WORKER_REQUESTS - 1;

/// Keys of the worker's own operations.
const KEY_MAIL: u32 = 0;
const KEY_DEADLINE: u32 = 1;
const KEY_REFUSALS: u32 = 2;
const KEY_LEAVING: u32 = 3;
const KEY_ACCEPT: u32 = 4;

/// Whose event it is.
#[derive(Clone, Copy, Debug)]
enum Route {
    Worker,
    Unit(usize),
    Slot(usize),
}

/// A place for a connection; its owner number and the wire between events and it are used again and again.
struct Slot {
    owner: Owner,
    generation: u32,
    /// Taken out while it acts, so in a box: it is large.
    connection: Option<Box<Connection>>,
    /// It is among the dirty ones.
    dirty: bool,
    /// A timer that the last connection here has left behind, for the next one: they cannot be withdrawn, and must not
    /// become more with every connection that comes and goes.
    timer: Option<Duration>,
}

/// Where an ending server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Until then, sessions may finish and log out.
    Draining(Duration),
    /// Connections are cut; their I/O ends, or is given up then.
    Ending(Duration),
    /// Everything written is being made durable, or is given up then.
    Flushing {
        outstanding: usize,
        until: Duration,
    },
}

/// A unit that is no longer served and still has its slot here.
struct Leaving {
    slot: usize,
    step: Step,
    /// Dropped when it has gone.
    _gone: mpsc::Sender<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Tasks in flight use it.
    Used,
    /// What was written is being made durable.
    Flushing,
    Flushed,
    /// Its storage is being closed, until then at the latest.
    Closing(Duration),
}

pub(super) struct Worker {
    index: usize,
    io: Io,
    owner: Owner,
    shared: Arc<Shared>,
    listeners: Vec<Handle>,
    /// The units that are served here and the ways to their storage, by slot.
    luns: Slots<Arc<Lun>>,
    units: Slots<Box<dyn Endpoint>>,
    /// Units that are being opened, and where to say how that ends.
    opening: Vec<(usize, mpsc::Sender<Result<(), OpenError>>)>,
    /// Units that are no longer served.
    leaving: Vec<Leaving>,
    slots: Vec<Slot>,
    vacant: Vec<usize>,
    /// The most connections since memory was given back last.
    connections_peak: usize,
    router: Router<Route>,
    done: Vec<Completion>,
    /// Slots to be pumped, each once, in the order in which something happened to them.
    dirty: VecDeque<usize>,
    /// Slots whose connections may work ahead while nothing else is to be done, each once.
    eager: VecDeque<usize>,
    /// The most that were dirty at once in this turn: who has many commands waiting gets no more than who has few.
    crowd: usize,
    phase: Phase,
    /// Connections that a panic ended; each has cost a slot.
    panics: usize,
    /// Whether a connection with a session has acted since the last wait.
    served_session: bool,
    /// What did not end as it should have.
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
        let (mut luns, mut units) = (Slots::default(), Slots::default());
        for lun in shared.state().luns.iter().flatten() {
            let failed = |cause| ServeError::Lun { target: String::new(), lun: lun.config.lun, cause };
            units.put(lun.slot, lun.config.medium.attach(&mut io).map_err(failed)?);
            luns.put(lun.slot, Arc::clone(lun));
        }
        let mut opening: Vec<&mut dyn Endpoint> =
            units.iter_mut().map(|(_, unit)| &mut **unit as _).collect();
        wait_ready(&mut io, &mut opening).map_err(|cause| ServeError::Config(cause.to_string()))?;
        for (unit, endpoint) in units.iter_mut() {
            router.add_endpoint(&**endpoint, Route::Unit(unit));
        }
        let waker = io.waker(Token { owner, key: KEY_MAIL }).map_err(ServeError::Loop)?;
        shared.mailboxes[index].connect(waker);
        let listeners = listeners.into_iter().map(|listener| Rc::new(listener.socket)).collect();
        Ok(Self {
            index,
            io,
            owner,
            shared,
            listeners,
            luns,
            units,
            opening: Vec::new(),
            leaving: Vec::new(),
            slots: Vec::new(),
            vacant: Vec::new(),
            connections_peak: 0,
            router,
            done: Vec::new(),
            dirty: VecDeque::new(),
            eager: VecDeque::new(),
            crowd: 0,
            phase: Phase::Serving,
            panics: 0,
            served_session: false,
            unfinished: Vec::new(),
        })
    }

    /// Serves until drained or stopped.
    pub(super) fn run(mut self) -> Result<(), ServeError> {
        for listener in 0..self.listeners.len() {
            self.accept(listener);
        }
        let mut events = Vec::new();
        while !self.is_over() {
            // Logins are not worth the processor time of looking before sleeping: a flood of them would multiply it.
            self.io.set_spin(std::mem::take(&mut self.served_session));
            let deadline = (!self.eager.is_empty()).then_some(Duration::ZERO);
            self.io.turn_until(deadline, &mut events).map_err(ServeError::Loop)?;
            if events.is_empty() {
                self.prepare();
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
        self.sum_refusals();
        if !self.unfinished.is_empty() {
            return Err(ServeError::Unfinished(self.unfinished.join("; ")));
        }
        let Self { io, slots, units, panics, .. } = self;
        // The waker has an area, and a remote unit what its connection still receives and sends.
        let expected = 1 + 2 * units.count();
        drop((slots, units));
        debug_assert!(
            panics > 0 || io.pool().lent() <= expected,
            "{} areas did not come back",
            io.pool().lent()
        );
        Ok(())
    }

    fn accept(&mut self, listener: usize) {
        let token = Token { owner: self.owner, key: KEY_ACCEPT + listener as u32 };
        self.io.accept(token, &self.listeners[listener]);
    }

    fn on_event(&mut self, event: Event) {
        match self.router.route(event.token.owner) {
            None => {}
            Some(Route::Unit(unit)) => self.units[unit].on_event(&mut self.io, event, &mut self.done),
            Some(Route::Slot(slot)) => self.on_connection_event(slot, event),
            Some(Route::Worker) => match event.token.key {
                KEY_MAIL => {
                    for mail in self.shared.mailboxes[self.index].take() {
                        self.on_mail(mail);
                    }
                }
                KEY_DEADLINE => self.on_deadline(),
                KEY_REFUSALS => self.sum_refusals(),
                // `change_units` looks at the time itself.
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

    /// Lets a connection act, if there is one in the slot; it is pumped before the next turn. A panic ends the connection
    /// and nothing else: see [`Self::on_panic`].
    fn act<T>(&mut self, slot: usize, act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T) -> Option<T> {
        let result = self.attempt(slot, act)?;
        self.touch(slot);
        Some(result)
    }

    /// As [`Self::act`], without more to do afterwards.
    fn attempt<T>(
        &mut self,
        slot: usize,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let mut connection = self.slots[slot].connection.take()?;
        // What a panic may leave half done: the connection, which ends; its units, which fail; the endpoints and the loop,
        // which take requests one by one and let go of them by their completions.
        let result = catch_unwind(AssertUnwindSafe(|| act(&mut connection, &mut self.context())));
        match result {
            Ok(result) => {
                self.served_session |= connection.session.is_some();
                self.slots[slot].connection = Some(connection);
                Some(result)
            }
            Err(panic) => {
                self.on_panic(connection, panic);
                None
            }
        }
    }

    /// A panic came while a connection acted: a defect of this program. The connection ends, with its session; units that were
    /// locked, or had requests of it, fail. Its slot is not used again: completions of its requests may still come.
    fn on_panic(&mut self, mut connection: Box<Connection>, panic: Box<dyn Any + Send>) {
        self.panics += 1;
        if self.panics > PANICS_MAX {
            resume_unwind(panic);
        }
        let text = panic.downcast_ref::<&str>().copied();
        let text =
            text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        tracing::error!(
            peer = %connection.peer, initiator = connection.initiator(), panic = text,
            "a panic ended this connection: this is a defect of hikyaku, please report it"
        );
        self.unfinished.push(format!("a panic ended the connection of {}: {text}", connection.peer));
        for lun in connection.doubtful_luns() {
            self.luns[lun].fail();
        }
        for lun in self.luns.iter() {
            lun.fail_if_poisoned();
        }
        let (id, luns) = (connection.id(), &self.luns);
        let end = move || {
            // Operations in flight hold the socket open.
            connection.stream.shutdown();
            connection.end(luns);
        };
        if catch_unwind(AssertUnwindSafe(end)).is_err() {
            tracing::error!("the connection's end panicked too");
        }
        self.let_go(id);
    }

    /// The session of a connection is over: another may take its place.
    fn let_go(&self, id: ConnectionId) {
        for waiter in self.shared.sessions.release(id) {
            self.shared.mailboxes[waiter.worker].send(Mail::Retry { connection: waiter });
        }
        self.shared.load[self.index].fetch_sub(1, Ordering::Relaxed);
    }

    fn context(&mut self) -> Context<'_> {
        Context {
            io: &mut self.io,
            shared: &self.shared,
            luns: &self.luns,
            units: &mut self.units,
            done: &mut self.done,
            draining: self.phase != Phase::Serving,
            send_bytes: (TURN_BYTES / self.crowd.max(1)).clamp(SEND_BYTES_MIN, SEND_BYTES_MAX),
        }
    }

    /// Goes on until nobody has anything left to do without the kernel.
    fn settle(&mut self) {
        self.crowd = 0;
        loop {
            let mut done = std::mem::take(&mut self.done);
            for completion in done.drain(..) {
                self.on_completion(completion);
            }
            if self.done.is_empty() {
                self.done = done;
            }
            self.crowd = self.crowd.max(self.dirty.len());
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
                let name = self.name_of(task as usize);
                tracing::error!(storage = name, %error, "last flush failed");
                self.unfinished.push(format!("the last flush of {name} failed: {error}"));
            }
            if let Phase::Flushing { outstanding, .. } = &mut self.phase {
                *outstanding -= 1;
            }
            return;
        }
        if upper == LEAVING_REQUESTS {
            if let Err(error) = completion.result {
                let name = self.name_of(task as usize);
                tracing::error!(storage = name, %error, "flush of a unit that is no longer served failed");
            }
            let leaving = self.leaving.iter_mut().find(|leaving| leaving.slot == task as usize);
            leaving.into_iter().for_each(|leaving| leaving.step = Step::Flushed);
            return;
        }
        let slot = upper as usize;
        self.act(slot, |connection, context| connection.on_completion(context, task, completion.result));
    }

    /// Something has happened to a connection: it is pumped before the next turn.
    fn touch(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.slots[slot].dirty, true) {
            self.dirty.push_back(slot);
        }
    }

    fn pump(&mut self, slot: usize) {
        self.slots[slot].dirty = false;
        let pumped = self.attempt(slot, |connection, context| {
            connection.pump(context);
            (connection.is_over(), connection.is_eager())
        });
        match pumped {
            Some((true, _)) => {
                let connection = self.slots[slot].connection.take().expect("it was just pumped");
                self.retire(slot, *connection);
            }
            Some((false, is_eager)) if is_eager && !self.eager.contains(&slot) => {
                self.eager.push_back(slot);
            }
            Some((false, _)) | None => {}
        }
    }

    /// Nothing is to be done: one step of work ahead, for the connection whose turn it is.
    fn prepare(&mut self) {
        let Some(slot) = self.eager.pop_front() else { return };
        let prepared = self.attempt(slot, |connection, context| {
            if connection.is_eager() {
                connection.prepare(context);
            }
            connection.is_eager()
        });
        if prepared == Some(true) {
            self.eager.push_back(slot);
        }
    }

    /// A connection has ended, with all its tasks.
    fn retire(&mut self, slot: usize, connection: Connection) {
        let id = connection.id();
        self.slots[slot].timer = connection.timer();
        if let Some(reason) = &connection.refusal {
            self.tell_refusal(connection.peer, reason);
        }
        connection.end(&self.luns);
        self.let_go(id);
        self.slots[slot].generation = (self.slots[slot].generation + 1) & GENERATION_MASK;
        self.vacant.push(slot);
        self.release_memory();
        tracing::debug!(
            worker = self.index,
            connections = self.occupied(),
            areas = self.io.pool().lent(),
            mapped_bytes = self.io.pool().mapped_bytes(),
            "memory"
        );
    }

    /// When three quarters of many connections have ended, what they used goes back to the system. It costs time with each of them
    /// that has ended since the last time.
    fn release_memory(&mut self) {
        let connections = self.occupied();
        if self.connections_peak >= RELEASE_FROM && connections <= self.connections_peak / 4 {
            self.connections_peak = connections;
            self.io.trim();
            area::release_heap();
        }
    }

    fn on_accepted(&mut self, listener: usize, event: Event) {
        if listener >= self.listeners.len() {
            // The end of an accept that was under way when the server began to drain.
            return;
        }
        if event.result == 0 && matches!(event.item, Item::None) {
            // The end of a pause.
            return self.accept_again(listener);
        }
        match event.into_handle() {
            Ok(handle) => {
                let socket = Rc::into_inner(handle).expect("a fresh socket has one holder");
                self.place(socket);
                self.accept_again(listener);
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR)) => {
                self.accept_again(listener);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections: waiting");
                let token = Token { owner: self.owner, key: KEY_ACCEPT + listener as u32 };
                self.io.timer(token, self.io.now() + ACCEPT_PAUSE);
            }
        }
    }

    /// Refuses new connections from here on; the accept under way ends too.
    fn stop_listening(&mut self) {
        for listener in self.listeners.drain(..) {
            let _ = SockRef::from(&*listener).shutdown(Shutdown::Both);
        }
    }

    fn accept_again(&mut self, listener: usize) {
        if self.phase == Phase::Serving {
            self.accept(listener);
        }
    }

    /// Gives a new socket to the thread with the fewest connections.
    fn place(&mut self, socket: OwnedFd) {
        let Ok((peer, local)) = io::addresses(&socket) else { return };
        let worker = least_loaded(&self.shared);
        if self.shared.load[worker].load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            return self
                .tell_refusal(peer, &format!("there are {CONNECTIONS_MAX} connections for every thread"));
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
            self.tell_refusal(peer, "no memory, or the server is ending");
            self.shared.load[self.index].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Puts a connection into a slot. False: memory is short.
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
        let stream = tls.ok().and_then(|tls| Stream::new(&self.io, Rc::new(socket), owner, generation, tls));
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

    /// Cuts the oldest of too many connections that have not logged in.
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

    /// Logs a connection that came to no session, as far as there were not many of late.
    fn tell_refusal(&mut self, peer: SocketAddr, reason: &str) {
        let summary_at = self.refusals().add(self.io.now(), reason);
        if let Some(at) = summary_at {
            match reason {
                ENQUIRY => tracing::info!(%peer, "our public key was asked for"),
                _ => tracing::warn!(%peer, reason, "no session"),
            }
            self.io.timer(Token { owner: self.owner, key: KEY_REFUSALS }, at);
        }
    }

    fn sum_refusals(&self) {
        let more = self.refusals().summary();
        if more > 0 {
            tracing::warn!(more, "connections came to no session within a second");
        }
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        // Counts for the log.
        self.shared.refusals.lock().unwrap_or_else(PoisonError::into_inner)
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
                self.with(connection, |connection, context| connection.on_copied(context, task, result));
            }
            Mail::Attach { lun, answer } => self.attach(lun, answer),
            Mail::Reload { change, answer, gone } => {
                let ended = self.reload(&change, &gone);
                // The reload may have been given up.
                let _ = answer.send(ended);
            }
            Mail::Drain if self.phase == Phase::Serving => {
                let until = self.deadline(self.shared.state().config.drain_timeout);
                self.phase = Phase::Draining(until);
                self.stop_listening();
                self.for_each(|connection, context| connection.drain(context.io.now()));
            }
            Mail::Drain => {}
            Mail::Stop => {
                if matches!(self.phase, Phase::Serving | Phase::Draining(_)) {
                    self.stop_listening();
                    self.cut();
                }
            }
        }
    }

    /// Begins to open a new unit here.
    fn attach(&mut self, lun: Arc<Lun>, answer: mpsc::Sender<Result<(), OpenError>>) {
        if self.phase != Phase::Serving {
            // Without an answer, the reload ends.
            return;
        }
        match lun.config.medium.attach(&mut self.io) {
            Ok(endpoint) => {
                let slot = lun.slot;
                self.router.add_endpoint(&*endpoint, Route::Unit(slot));
                self.units.put(slot, endpoint);
                self.luns.put(slot, lun);
                self.opening.push((slot, answer));
            }
            Err(error) => {
                let _ = answer.send(Err(error));
            }
        }
    }

    /// Carries out a reload. Returns how many sessions have ended by it.
    fn reload(&mut self, change: &Change, gone: &mpsc::Sender<()>) -> usize {
        for (slot, size_bytes) in &change.resized {
            self.units[*slot].resize(*size_bytes);
        }
        let mut ended = 0;
        if let Some(state) = &change.state {
            for slot in 0..self.slots.len() {
                let revised = self.act(slot, |connection, context| connection.revise(context, state));
                ended += usize::from(revised == Some(true));
            }
        }
        for slot in change.removed.iter().copied().filter(|slot| self.units.get(*slot).is_some()) {
            self.opening.retain(|(opening, _)| *opening != slot);
            self.leaving.push(Leaving { slot, step: Step::Used, _gone: gone.clone() });
        }
        ended
    }

    /// Goes on with units that come and go. True: there may be more to do at once.
    fn change_units(&mut self) -> bool {
        if self.opening.is_empty() && self.leaving.is_empty() {
            return false;
        }
        let units = &self.units;
        self.opening.retain(|(slot, answer)| {
            let opened = match units[*slot].state() {
                State::Opening => return true,
                State::Ready => Ok(()),
                State::Failed(error) => Err(error),
            };
            let _ = answer.send(opened);
            false
        });
        let mut has_acted = false;
        for index in (0..self.leaving.len()).rev() {
            has_acted |= self.leave(index);
        }
        has_acted
    }

    /// One step on the way out of a unit: its last task ends, what was written is made durable, its storage is closed. True: a step was
    /// made.
    fn leave(&mut self, index: usize) -> bool {
        let Leaving { slot, step, .. } = self.leaving[index];
        let unit = &mut self.units[slot];
        let next = match step {
            Step::Used => {
                let mut connections = self.slots.iter().filter_map(|slot| slot.connection.as_ref());
                if connections.any(|connection| connection.uses(slot)) {
                    return false;
                }
                if unit.capability().read_only || !matches!(unit.state(), State::Ready) {
                    Step::Flushed
                } else {
                    let request = Request { id: LEAVING_REQUESTS << 32 | slot as u64, kind: Kind::Flush };
                    unit.submit(&mut self.io, request, &mut self.done);
                    Step::Flushing
                }
            }
            Step::Flushing => return false,
            Step::Flushed => {
                unit.close(&mut self.io);
                let until = self.io.now() + LEAVE_MAX;
                self.io.timer(Token { owner: self.owner, key: KEY_LEAVING }, until);
                Step::Closing(until)
            }
            Step::Closing(until) if !unit.is_closed() && self.io.now() < until => return false,
            Step::Closing(_) => {
                let mut owners = Vec::new();
                unit.owners(&mut owners);
                owners.into_iter().for_each(|owner| self.router.remove(owner));
                drop((self.units.take(slot), self.luns.take(slot)));
                self.leaving.remove(index);
                return true;
            }
        };
        self.leaving[index].step = next;
        true
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
                tracing::warn!("sessions did not log out in time: closing them");
                self.cut();
            }
            Phase::Flushing { outstanding, until } if now >= until && outstanding > 0 => {
                self.unfinished.push("the last flush did not end in time".into());
                self.phase = Phase::Flushing { outstanding: 0, until };
            }
            // `advance_phase` looks at that of `Ending` itself.
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
                let silent = self.give_up();
                self.flush(&silent);
            }
            _ => {}
        }
    }

    /// Lets go of connections whose storage does not answer, and says which units these are.
    fn give_up(&mut self) -> Vec<usize> {
        let mut silent: Vec<usize> = Vec::new();
        for slot in &mut self.slots {
            silent.extend(slot.connection.take().iter().flat_map(|connection| connection.awaited_luns()));
        }
        silent.sort_unstable();
        silent.dedup();
        for lun in &silent {
            let name = self.name_of(*lun);
            tracing::error!(storage = name, "does not answer: its requests are given up");
            self.unfinished.push(format!("{name} did not answer; what was written to it may not be durable"));
        }
        silent
    }

    /// Makes everything durable, but for units of which no answer is to be expected.
    fn flush(&mut self, silent: &[usize]) {
        let until = self.deadline(FLUSH_MAX);
        let mut outstanding = 0;
        for (unit, endpoint) in self.units.iter_mut() {
            let skipped = mutant::is_on(mutant::Mutant::SkipLastFlush);
            if endpoint.capability().read_only || silent.contains(&unit) || skipped {
                continue;
            }
            let request = Request { id: WORKER_REQUESTS << 32 | unit as u64, kind: Kind::Flush };
            endpoint.submit(&mut self.io, request, &mut self.done);
            outstanding += 1;
        }
        self.phase = Phase::Flushing { outstanding, until };
        self.settle();
    }

    /// Connections here.
    fn occupied(&self) -> usize {
        self.slots.len() - self.vacant.len() - self.panics
    }

    fn name_of(&self, lun: usize) -> String {
        let lun = &self.luns[lun].config;
        format!("LUN {} ({})", lun.lun, lun.medium.name())
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Flushing { outstanding: 0, .. })
    }
}

/// What a socket of a session needs.
fn tune(socket: &OwnedFd) -> std::io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_tcp_user_timeout(Some(UNREAD_MAX))
}
