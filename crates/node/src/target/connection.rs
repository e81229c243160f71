//! One connection: its life and its pump.
//!
//! The worker passes it the events of its operations ([`Connection::on_event`]), completions of its storage requests,
//! and mail; after each it calls [`Connection::pump`], which receives, processes the machine's events and sends, as far
//! as possible without waiting, and sets the single timer. [`Phase`] is the phase of its life; it is over
//! ([`Connection::is_over`]) when the socket is shut down and the kernel, the endpoints and the copier have completed
//! every operation. [`Login`] has the initiator's identity and the session, [`Tasks`] its commands.
//!
//! A READ: `pump` takes its header from the stream; the machine yields `Command`; [`Tasks`] calls the device server,
//! allocates a buffer and starts its storage work; the endpoint fills the buffer; `on_completion` ends the work, and the machine
//! yields Data-In headers that refer to the buffer; `pump` sends headers and spans. A WRITE: as above, but the buffer
//! is allocated first, the stream receives into it, and the work starts at `DataOut`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use io::{Event as IoEvent, Io, Owner, Token};
use iscsi::machine::{Fatal, Machine};
use iscsi::target::{self as machine, Event};

use super::admission::{Login, Revised};
use super::ahead::Ahead;
use super::context::{Context, TaskContext};
use super::handshake::{Agreement, Handshake, Next as HandshakeNext};
use super::lun::Lun;
use super::mail::{AbortGroup, ConnectionId};
use super::management::Management;
use super::shared::Shared;
use super::slots::Slots;
use super::state::State;
use super::tasks::Tasks;
use crate::reassembly::Advance;
use crate::sealing::Protection;
use crate::stream::{Operation, Stream, sealed_segment_max};

/// Bound of an initiator's outstanding commands.
const COMMANDS_MAX: u32 = 512;
/// Seconds that an initiator has to log out when the server drains (Parameter3 of the asynchronous message).
const LOGOUT_SECONDS: u16 = 3;
/// How long a connection that ends may take to send its queue; the rest is dropped.
const ENDING_MAX: Duration = Duration::from_secs(5);

/// The machine yields commands in the full feature phase only.
const LOGGED_IN: &str = "commands come after the login";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The queue is sent, then the socket is shut down, at this time at the latest.
    Ending(Duration),
    /// Shut down; operations in flight at the kernel and the endpoints complete.
    Shut,
}

pub(super) struct Connection {
    pub(super) id: ConnectionId,
    owner: Owner,
    stream: Stream,
    handshake: Option<Box<Handshake>>,
    machine: machine::Connection,
    pub(super) login: Login,
    pub(super) tasks: Tasks,
    management: Management,
    began: Duration,
    phase: Phase,
    pub(super) timer: Option<Duration>,
}

impl Connection {
    /// Takes a new stream. `timer` is a timer already set for this slot. `None` if the system has no randomness.
    pub(super) fn new(
        io: &Io,
        shared: &Shared,
        stream: Stream,
        owner: Owner,
        id: ConnectionId,
        (peer, local): (SocketAddr, SocketAddr),
        timer: Option<Duration>,
    ) -> Option<Self> {
        let machine = new_machine(u32::MAX, io.now())?;
        let handshake = Handshake::begin(&shared.state().config, io.now()).map(Box::new);
        tracing::debug!(%peer, "connected");
        Some(Self {
            id,
            owner,
            stream,
            handshake,
            machine,
            login: Login::new(id, (peer, local)),
            tasks: Tasks::new(id),
            management: Management::default(),
            began: io.now(),
            phase: Phase::Open,
            timer: timer.filter(|at| *at > io.now()),
        })
    }

    pub(super) fn has_session(&self) -> bool {
        self.login.session.is_some()
    }

    /// When the connection began, if it has no session yet.
    pub(super) fn logging_in_since(&self) -> Option<Duration> {
        (!self.has_session() && self.phase == Phase::Open).then_some(self.began)
    }

    /// Whether the connection still refers to the unit in `slot`.
    pub(super) fn uses(&self, slot: usize) -> bool {
        let session = self.login.session.as_ref();
        let is_visible = session.is_some_and(|session| session.luns.iter().any(|entry| entry.lun == slot));
        is_visible || self.tasks.uses(slot)
    }

    /// The socket is shut down and every task has ended.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Shut && self.stream.is_idle() && self.tasks.is_idle()
    }

    pub(super) fn end(self, luns: &Slots<Arc<Lun>>) {
        self.login.end(luns, self.stream.counters());
    }

    pub(super) fn end_after_panic(mut self, luns: &Slots<Arc<Lun>>) {
        // Operations in flight keep the socket open.
        self.stream.shutdown();
        self.end(luns);
    }

    fn commands<'a, 'thread>(
        &'a mut self,
        context: &'a mut Context<'thread>,
    ) -> Option<(&'a mut Tasks, &'a mut Management, TaskContext<'a, 'thread>)> {
        let Self { stream, machine, login, tasks, management, phase, .. } = self;
        let session = login.session.as_ref()?;
        let answers = *phase == Phase::Open;
        Some((tasks, management, TaskContext { thread: context, machine, stream, session, answers }))
    }

    pub(super) fn with_tasks(
        &mut self,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut Tasks, &mut TaskContext<'_, '_>),
    ) {
        if let Some((tasks, _, mut context)) = self.commands(context) {
            act(tasks, &mut context);
        }
    }

    pub(super) fn on_event(&mut self, context: &mut Context<'_>, operation: Operation, event: IoEvent) {
        match operation {
            Operation::Receive => match self.stream.on_received(event) {
                Ok(true) => {}
                Ok(false) => self.close("the initiator closed the connection"),
                Err(error) => self.close(&error.to_string()),
            },
            Operation::Send => {
                if let Err(error) = self.stream.on_sent(event) {
                    self.close(&error.to_string());
                }
            }
            Operation::Timer => {
                // Otherwise the timer is from an earlier deadline, or from an earlier connection in this slot.
                let now = context.io.now();
                if self.timer.is_some_and(|armed| armed <= now) {
                    self.timer = None;
                    self.on_timer(now);
                }
            }
            Operation::Connect => unreachable!("a target does not connect"),
        }
    }

    fn on_timer(&mut self, now: Duration) {
        match self.phase {
            Phase::Open => {
                let result = match &mut self.handshake {
                    Some(handshake) => handshake.exchange.on_timeout(now),
                    None => self.machine.on_timeout(now),
                };
                self.tasks.ahead.expire(now);
                if let Err(fatal) = result {
                    self.fail(&fatal, now);
                }
            }
            Phase::Ending(until) if now >= until => self.close("the initiator does not read"),
            Phase::Ending(_) | Phase::Shut => {}
        }
    }

    /// Receives, processes and sends, as far as possible without waiting.
    pub(super) fn pump(&mut self, context: &mut Context<'_>) {
        self.shake_hands(context);
        while self.phase == Phase::Open && self.handshake.is_none() {
            self.drain_events(context);
            let Self { stream, machine, tasks, .. } = self;
            match stream.advance(context.io, machine, |task| tasks.buffer(task)) {
                Ok(Advance::Events) => {}
                Ok(Advance::Starved) => break,
                Err(fatal) => self.fail(&fatal, context.io.now()),
            }
        }
        self.drain_events(context);
        if self.phase == Phase::Shut {
            return;
        }
        self.with_tasks(context, Tasks::start_waiting);
        self.send(context);
        self.drain_events(context);
        match self.phase {
            Phase::Open => {
                self.stream.receive(context.io);
                let now = context.io.now();
                let due = match &self.handshake {
                    Some(handshake) => handshake.exchange.poll_timeout(),
                    None => self.machine.poll_timeout(),
                };
                let due =
                    due.into_iter().chain(self.stream.retry_at(now)).chain(self.tasks.ahead.due()).min();
                self.arm_timer(context.io, due);
            }
            Phase::Ending(_) if self.stream.is_sent() => self.close("closed"),
            Phase::Ending(until) => {
                let retry = self.stream.retry_at(context.io.now());
                self.arm_timer(context.io, Some(retry.map_or(until, |at| at.min(until))));
            }
            Phase::Shut => {}
        }
    }

    fn send(&mut self, context: &mut Context<'_>) {
        let Self { stream, machine, tasks, handshake, .. } = self;
        let sent = match handshake {
            Some(handshake) => {
                let gathers = stream.is_sent();
                let sent = stream.send(context.io, &mut handshake.exchange, context.send_bytes, |_| None);
                if gathers && let Some(agreement) = handshake.agreement.take() {
                    self.seal(agreement, &context.shared.state(), context.io.now());
                }
                sent
            }
            None => stream.send(context.io, machine, context.send_bytes, |task| tasks.buffer(task)),
        };
        if let Err(fatal) = sent {
            self.fail(&fatal, context.io.now());
        }
    }

    fn shake_hands(&mut self, context: &mut Context<'_>) {
        let (io, shared) = (&*context.io, context.shared);
        while self.phase == Phase::Open
            && let Some(handshake) = &mut self.handshake
        {
            match self.stream.advance(io, &mut handshake.exchange, |_| None) {
                Ok(Advance::Events) => {}
                Ok(Advance::Starved) => break,
                Err(fatal) => return self.fail(&fatal, io.now()),
            }
            match handshake.advance(
                &shared.state().config,
                &shared.handshakes,
                self.login.peer.ip(),
                io.now(),
            ) {
                HandshakeNext::Wait => {}
                HandshakeNext::Ordinary(first) => {
                    self.handshake = None;
                    if let Err(fatal) = first.replay(&mut self.machine, io.now()) {
                        self.fail(&fatal, io.now());
                    }
                }
                HandshakeNext::End(reason) => {
                    self.login.refuse(reason);
                    self.conclude(io.now());
                }
            }
        }
    }

    /// The last PDU of the outer login is gathered: switches to records, inside which an ordinary login follows.
    fn seal(&mut self, agreement: Agreement, state: &State, now: Duration) {
        let Agreement { channel, suite, unit, peer_key, next_key, announced } = agreement;
        // A reload may have removed the peer since it was looked up; later reloads find this connection.
        let Some(peer) = state.config.peer(&peer_key) else {
            return self.close("its key is no longer among the peers");
        };
        let Some(machine) = new_machine(sealed_segment_max(unit), now) else {
            return self.close("no randomness for the login");
        };
        self.stream.seal(channel, unit, now);
        (self.machine, self.handshake) = (machine, None);
        self.login.on_sealed(peer, Protection::Sealed { suite, unit, peer_key }, (next_key, announced));
        self.tasks.ahead = Ahead::new(suite);
        tracing::debug!(peer = %self.login.peer, key = %peer_key, suite = suite.name(), unit, "sealed");
    }

    fn arm_timer(&mut self, io: &mut Io, due: Option<Duration>) {
        let Some(due) = due else { return };
        if self.timer.is_none_or(|armed| due < armed) {
            self.timer = Some(due);
            io.timer(Token { owner: self.owner, key: Operation::Timer.key(self.id.generation) }, due);
        }
    }

    fn fail(&mut self, fatal: &Fatal, now: Duration) {
        match self.login.session {
            Some(_) => tracing::info!(peer = %self.login.peer, reason = %fatal, "dropping the connection"),
            None => self.login.refuse(fatal.to_string()),
        }
        self.conclude(now);
    }

    /// Stops receiving; what is queued is still sent.
    fn conclude(&mut self, now: Duration) {
        if self.phase == Phase::Open {
            self.phase = Phase::Ending(now + ENDING_MAX);
            self.tasks.abandon(&mut self.machine);
        }
    }

    /// Ends the connection immediately; what is queued is not sent.
    pub(super) fn close(&mut self, reason: &str) {
        if self.phase != Phase::Shut {
            tracing::debug!(peer = %self.login.peer, reason, "connection ends");
            self.phase = Phase::Shut;
            self.stream.shutdown();
            self.tasks.abandon(&mut self.machine);
        }
    }

    pub(super) fn drain(&mut self, now: Duration) {
        match &self.login.session {
            Some(_) => {
                if let Err(fatal) = self.machine.request_logout(LOGOUT_SECONDS) {
                    self.fail(&fatal, now);
                }
            }
            None => self.close("the server ends"),
        }
    }

    /// Applies a changed configuration. True: it has ended a session.
    pub(super) fn revise(&mut self, context: &Context<'_>, state: &State) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        match self.login.revise(context, state) {
            Revised::Same => false,
            Revised::Units => {
                self.tasks.ahead.forget();
                false
            }
            Revised::Ends => {
                self.close("its key, its user or its rights were changed by the reload");
                self.has_session()
            }
        }
    }

    fn drain_events(&mut self, context: &mut Context<'_>) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::TaskDone { task } => {
                    self.stream.end_task(task);
                    self.tasks.on_done(task);
                }
                Event::Command(command) if self.phase != Phase::Open => self.machine.abort(command.task),
                // Outside of `Open` no event starts new work.
                _ if self.phase != Phase::Open => {}
                Event::Identify(identity) => {
                    let policy = self.login.identify(context, &identity);
                    self.machine.identify(policy);
                }
                Event::LoginRefused { status, denial } => self.login.on_refused(status, denial),
                Event::SessionReady(ready) => {
                    self.login.on_agreed(*ready);
                    self.claim_session(context);
                }
                Event::SendTargets { request, scope } => {
                    let targets = self.login.targets(context.shared, &scope);
                    self.machine.send_targets(request, &targets);
                }
                Event::Logout { reason } => {
                    tracing::debug!(peer = %self.login.peer, ?reason, "logout");
                }
                Event::Close => self.conclude(context.io.now()),
                Event::Command(command) => {
                    let (tasks, _, mut context) = self.commands(context).expect(LOGGED_IN);
                    tasks.on_command(&mut context, &command);
                }
                Event::DataOutFront { task, bytes } => {
                    let (tasks, _, mut context) = self.commands(context).expect(LOGGED_IN);
                    tasks.on_data_front(&mut context, task, bytes as usize);
                }
                Event::DataOut { task } => {
                    let (tasks, _, mut context) = self.commands(context).expect(LOGGED_IN);
                    if let Err(reason) = tasks.on_data_out(&mut context, task) {
                        self.close(reason);
                    }
                }
                Event::TaskManagement { request, function, lun, .. } => {
                    let id = self.id;
                    let (tasks, management, mut context) = self.commands(context).expect(LOGGED_IN);
                    management.on_request(&mut context, tasks, id, (request, function, lun));
                }
            }
        }
    }

    pub(super) fn claim_session(&mut self, context: &mut Context<'_>) {
        if self.phase != Phase::Open {
            return;
        }
        match self.login.claim(context) {
            Some(Ok(tsih)) => self.machine.accept_session(tsih),
            Some(Err(status)) => self.machine.refuse_session(status),
            None => {}
        }
    }

    /// Ends the tasks that `group` of another session covers.
    pub(super) fn abort_for(&mut self, group: &Arc<AbortGroup>) {
        if let Some(session) = &self.login.session
            && self.id != group.aborts.origin
        {
            self.tasks.abort_for(&mut self.machine, session, group);
        }
    }

    /// All tasks that a task management request of this session covered have ended, on every thread.
    pub(super) fn on_aborted(&mut self, request: u32) {
        self.management.on_aborted(&mut self.machine, request);
    }

    pub(super) fn wants_prefetch(&self) -> bool {
        self.phase == Phase::Open && self.tasks.wants_prefetch()
    }
}

/// A machine that expects a login. `None` if the system has no randomness.
fn new_machine(segment_max: u32, now: Duration) -> Option<machine::Connection> {
    let mut entropy = [0; 32];
    io::entropy(&mut entropy).ok()?;
    let config = machine::Config { tasks_max: COMMANDS_MAX, segment_max, ..machine::Config::default() };
    Some(machine::Connection::new(config, entropy, now))
}
