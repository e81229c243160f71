//! One connection of an initiator, from connect through login and commands to its end.

use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use area::Span;
use block::remote::Link;
use io::{Event as IoEvent, Handle, Io, Owner, Token};
use iscsi::initiator::{Command, Config, Connection, Direction, Event, TaskError, WindowFull};
use iscsi::login::initiator as login;
use iscsi::login::initiator::{LoginError, Redirect};
use iscsi::machine::{Fatal, Machine, TargetRecord, TaskId};
use iscsi::params::Negotiated;
use iscsi::wire::{AsyncEvent, LoginStatus, LogoutReason, Residual, TmFunction};
use scsi::Sense;
use socket2::SockRef;

use super::ahead::Ahead;
use super::handshake::{Agreement, Announcing, Handshake, within_seal};
use super::options::InitiatorSealing;
use super::trust::Announced;
use crate::reassembly::Advance;
use crate::sealing::Protection;
use crate::stream::{
    BufferState, Operation, SEND_BYTES_MAX, Socket, Stream, Transport, sealed_segment_max, tls,
};

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for active commands to be answered after the target has requested logout. Less than the 300 ms after which a
/// server that hands over cuts its sessions (`HAND_OVER_MAX`).
const LOGOUT_DELAY_MAX: Duration = Duration::from_millis(200);
const GOOD: u8 = scsi::Status::Good as u8;

#[derive(Debug)]
pub(super) enum Failure {
    Connect(std::io::Error),
    Untrusted(String),
    /// The target refused the login for a permanent reason.
    Login(LoginError),
    Redirect(Redirect),
    /// The target does not seal; a login that is not sealed may succeed.
    Declined,
    /// The target refused the sealed handshake: a key differs, or a message was damaged in transit; the refusal is the
    /// same.
    Seal(String),
    Damaged(String),
    /// The target's answer does not verify: it was damaged in transit, or the pre-shared keys differ.
    Unverified,
    Dropped(String),
    Lost(String),
}

impl Failure {
    /// Whether damage in transit may be the reason, so that one more attempt may succeed.
    pub(super) fn may_be_damage(&self) -> bool {
        let malformed = matches!(self, Self::Login(LoginError::Refused(LoginStatus::InitiatorError)));
        malformed || matches!(self, Self::Seal(_) | Self::Damaged(_) | Self::Unverified | Self::Dropped(_))
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Login(LoginError::Refused(LoginStatus::ServiceUnavailable)))
    }
}

/// `residual`: bytes by which the target says that it moved more or fewer than the command was for. `Interrupted`: a command
/// ended without a status; it may be sent again. If not `was_sent`, the target has not seen it.
#[derive(Debug)]
pub(super) enum Outcome {
    LoggedIn(Negotiated),
    Completed { task: TaskId, status: u8, sense: Option<Sense>, moved: u32, residual: u32 },
    Interrupted { task: TaskId, was_sent: bool },
    Targets(Vec<TargetRecord>),
    LoggedOut,
    Failed(Failure),
}

/// `Ending`: shut down. The kernel may still access the buffers of commands, so [`Outcome::Failed`] follows only when no
/// operation is in flight.
enum State {
    Connecting { socket: Handle, deadline: Duration, tls: Option<tls::End> },
    Up(Box<Stream>),
    Ending { stream: Box<Stream>, failure: Failure },
    Down,
}

pub(super) struct Session {
    owner: Owner,
    generation: u32,
    state: State,
    /// The outer login; present until it is complete in a session that is to be sealed.
    handshake: Option<Box<Handshake>>,
    protection: Protection,
    /// From the handshake to the end of the login.
    announcing: Option<Announcing>,
    next_key: Announced,
    login: login::Config,
    machine: Connection,
    buffers: Vec<Option<Span>>,
    ahead: Ahead,
    timer: Option<Duration>,
    /// The target has requested logout: when to log out at the latest.
    logout_due: Option<Duration>,
    /// The user has named a congestion control.
    keeps_congestion_control: bool,
}

impl Session {
    /// Starts to connect to an address, with the congestion control of that name if there is one, and to seal. Events of
    /// `owner` whose key carries `generation` belong to this session.
    pub(super) fn connect(
        io: &mut Io,
        owner: Owner,
        generation: u32,
        (address, congestion): (SocketAddr, Option<&str>),
        login: login::Config,
        sealing: Option<&InitiatorSealing>,
        tls: Option<tls::End>,
    ) -> Result<Self, Failure> {
        let mut session = Self::begin(io, owner, generation, login, sealing)?;
        let socket: Handle = Rc::new(io::socket(address, congestion).map_err(Failure::Connect)?);
        let token = |operation: Operation| Token { owner, key: operation.key(generation) };
        io.connect(token(Operation::Connect), &socket, address);
        let deadline = io.now() + CONNECT_TIMEOUT;
        io.timer(token(Operation::Timer), deadline);
        session.state = State::Connecting { socket, deadline, tls };
        session.keeps_congestion_control = congestion.is_some();
        session.timer = Some(deadline);
        Ok(session)
    }

    /// As [`Self::connect`], with a socket that is connected.
    pub(super) fn connected(
        io: &Io,
        owner: Owner,
        socket: Handle,
        login: login::Config,
        sealing: Option<&InitiatorSealing>,
        tls: Option<tls::End>,
    ) -> Result<Self, Failure> {
        let mut session = Self::begin(io, owner, 0, login, sealing)?;
        session.on_socket(io, socket, tls)?;
        Ok(session)
    }

    #[cfg(test)]
    fn over(
        io: &Io,
        owner: Owner,
        generation: u32,
        transport: Box<dyn Transport>,
        login: login::Config,
        sealing: Option<&InitiatorSealing>,
        tls: Option<tls::End>,
    ) -> Result<Self, Failure> {
        let mut session = Self::begin(io, owner, generation, login, sealing)?;
        session.on_transport(io, transport, tls)?;
        Ok(session)
    }

    fn begin(
        io: &Io,
        owner: Owner,
        generation: u32,
        login: login::Config,
        sealing: Option<&InitiatorSealing>,
    ) -> Result<Self, Failure> {
        let machine = new_machine(&login, u32::MAX, io.now())?;
        let handshake = sealing.map(|sealing| Box::new(Handshake::begin(sealing, &login, io.now())));
        Ok(Self {
            owner,
            generation,
            state: State::Down,
            handshake,
            protection: Protection::None,
            announcing: None,
            next_key: Announced::Nothing,
            login,
            machine,
            buffers: Vec::new(),
            ahead: Ahead::default(),
            timer: None,
            logout_due: None,
            keeps_congestion_control: false,
        })
    }

    /// The socket, until it is connected.
    pub(super) fn connecting(&self) -> Option<&Handle> {
        match &self.state {
            State::Connecting { socket, .. } => Some(socket),
            _ => None,
        }
    }

    /// The protection of the connection; valid after the login.
    pub(super) fn protection(&self) -> Protection {
        match &self.state {
            State::Up(stream) => {
                stream.tls_suite().map_or(self.protection, |suite| Protection::Tls { suite })
            }
            _ => self.protection,
        }
    }

    /// What the target has said of its next key; valid after the login.
    pub(super) fn next_key(&self) -> Announced {
        self.next_key
    }

    /// Sends a command. The session holds its data `buffer` until the command's outcome. Data to be written must not
    /// change until then: it is sealed at any time before it is sent, and again for a session that replaces this one.
    pub(super) fn submit(&mut self, command: Command, buffer: Option<Span>) -> Result<TaskId, WindowFull> {
        if self.logout_due.is_some() {
            return Err(WindowFull);
        }
        let is_write = command.direction == Direction::Out;
        let task = self.machine.submit(command)?;
        if is_write {
            self.ahead.on_write(task);
        }
        if self.buffers.len() <= task.index() {
            self.buffers.resize(task.index() + 1, None);
        }
        self.buffers[task.index()] = buffer;
        Ok(task)
    }

    /// Sends ABORT TASK. The command ends by [`Outcome::Interrupted`], or with its own status.
    pub(super) fn abort(&mut self, lun: u64, task: TaskId) {
        // Fails only if the session is ending anyway.
        let _ = self.machine.task_management(TmFunction::AbortTask, lun, Some(task));
    }

    /// The path as the kernel has it, and what the socket's buffers have come to; `None` while there is no connection, or
    /// no network.
    pub(super) fn path(&mut self, now: Duration) -> Option<(io::Path, BufferState)> {
        match &mut self.state {
            State::Up(stream) => Some((stream.path(now)?, stream.buffers())),
            _ => None,
        }
    }

    pub(super) fn transferred(&self) -> (u64, u64) {
        match &self.state {
            State::Up(stream) => (stream.counters().received, stream.counters().sent),
            _ => (0, 0),
        }
    }

    pub(super) fn send_targets(&mut self) {
        self.machine.send_targets();
    }

    /// Cuts the connection. [`Outcome::Failed`] follows when no buffer is in use, possibly before this call returns.
    pub(super) fn cut(&mut self, failure: Failure, outcomes: &mut Vec<Outcome>) {
        match std::mem::replace(&mut self.state, State::Down) {
            State::Up(mut stream) => {
                stream.shutdown();
                self.state = State::Ending { stream, failure };
                self.end(outcomes);
            }
            State::Connecting { socket, .. } => {
                let _ = SockRef::from(&*socket).shutdown(Shutdown::Both);
                outcomes.push(Outcome::Failed(failure));
            }
            ending => self.state = ending,
        }
    }

    /// Reports the end of the session once no operation is in flight.
    fn end(&mut self, outcomes: &mut Vec<Outcome>) {
        match std::mem::replace(&mut self.state, State::Down) {
            State::Ending { stream, failure } if stream.is_idle() => outcomes.push(Outcome::Failed(failure)),
            other => self.state = other,
        }
    }

    fn on_connected(&mut self, io: &Io, event: &IoEvent) -> Result<(), Failure> {
        event.bytes().map_err(Failure::Connect)?;
        let State::Connecting { socket, tls, .. } = &mut self.state else { return Ok(()) };
        let (socket, tls) = (Rc::clone(socket), tls.take());
        self.on_socket(io, socket, tls)
    }

    fn on_socket(&mut self, io: &Io, socket: Handle, tls: Option<tls::End>) -> Result<(), Failure> {
        let _ = SockRef::from(&*socket).set_keepalive(true);
        self.on_transport(io, Box::new(Socket::new(socket, self.keeps_congestion_control)), tls)
    }

    fn on_transport(
        &mut self,
        io: &Io,
        transport: Box<dyn Transport>,
        tls: Option<tls::End>,
    ) -> Result<(), Failure> {
        let mut stream = Stream::new(io, transport, self.owner, self.generation, tls)
            .ok_or_else(|| Failure::Lost("no memory for a connection".into()))?;
        if self.keeps_congestion_control {
            stream.keep_congestion_control();
        }
        self.state = State::Up(Box::new(stream));
        Ok(())
    }

    fn on_timer(&mut self, io: &Io) -> Result<(), Failure> {
        match &self.state {
            State::Connecting { deadline, .. } if io.now() >= *deadline => {
                Err(Failure::Connect(std::io::ErrorKind::TimedOut.into()))
            }
            State::Up(_) => {
                let result = match &mut self.handshake {
                    Some(handshake) => handshake.exchange.on_timeout(io.now()),
                    None => self.machine.on_timeout(io.now()),
                };
                result.map_err(|fatal| Failure::Lost(fatal.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn shake_hands(&mut self, io: &Io) -> Result<(), Failure> {
        while let (Some(handshake), State::Up(stream)) = (&mut self.handshake, &mut self.state) {
            let damaged = |fatal: Fatal| Failure::Damaged(fatal.to_string());
            if stream.advance(io, &mut handshake.exchange, |_| None).map_err(damaged)? == Advance::Starved {
                break;
            }
            if let Some(Agreement { channel, unit, protection, announcing }) = handshake.advance()? {
                // The target has answered every earlier message, so all of them have been sent.
                stream.seal(channel, unit, io.now());
                let login = within_seal(&self.login, unit);
                self.machine = new_machine(&login, sealed_segment_max(unit), io.now())?;
                (self.handshake, self.protection) = (None, protection);
                self.announcing = Some(announcing);
                if let Protection::Sealed { suite, .. } = protection {
                    self.ahead = Ahead::new(suite);
                }
            }
        }
        Ok(())
    }

    fn drain(&mut self, now: Duration, outcomes: &mut Vec<Outcome>) -> Result<(), Failure> {
        loop {
            self.drain_events(now, outcomes)?;
            let is_idle = self.machine.is_idle();
            if self.logout_due.take_if(|due| is_idle || now >= *due).is_none() {
                return Ok(());
            }
            self.log_out(now);
        }
    }

    fn drain_events(&mut self, now: Duration, outcomes: &mut Vec<Outcome>) -> Result<(), Failure> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::LoggedIn(logged_in) => {
                    if let (Protection::None, Some(hash)) = (self.protection, logged_in.authenticated_by) {
                        self.protection = Protection::Chap { hash };
                    }
                    if let Some(announcing) = self.announcing.take() {
                        self.next_key = announcing.verify(&logged_in.next_key)?;
                    }
                    outcomes.push(Outcome::LoggedIn(logged_in.negotiated));
                }
                Event::LoginFailed(error) => return Err(Failure::Login(error)),
                Event::Redirect(redirect) => return Err(Failure::Redirect(redirect)),
                Event::Complete(complete) => {
                    let task = complete.task;
                    self.end_task(task, complete.status == GOOD)?;
                    let sense = Sense::parse(&complete.sense);
                    // At most one of the two is not 0: a command moves data in one direction.
                    let (status, moved) = (complete.status, complete.data_in.max(complete.data_out));
                    let residual = match complete.residual {
                        Residual::None => 0,
                        Residual::Overflow(bytes) | Residual::Underflow(bytes) => bytes,
                    };
                    outcomes.push(Outcome::Completed { task, status, sense, moved, residual });
                }
                Event::Failed { task, error } => {
                    tracing::debug!(%error, "a command ended without a status");
                    self.end_task(task, false)?;
                    outcomes.push(Outcome::Interrupted { task, was_sent: error != TaskError::Unsent });
                }
                Event::Targets(targets) => outcomes.push(Outcome::Targets(targets)),
                Event::LoggedOut { .. } => {
                    outcomes.push(Outcome::LoggedOut);
                    return Err(Failure::Lost("logged out".into()));
                }
                Event::Async(notice) => self.on_notice(notice.event, now)?,
                Event::ManagementDone { .. } => {}
            }
        }
        Ok(())
    }

    /// Releases the resources of a task. If it ended `well`, all of its data must have been received.
    fn end_task(&mut self, task: TaskId, well: bool) -> Result<(), Failure> {
        self.buffers[task.index()] = None;
        self.ahead.on_end(task);
        let State::Up(stream) = &mut self.state else { return Ok(()) };
        if well && !stream.is_whole(task) {
            return Err(Failure::Lost("data of a command came without all of its seal".into()));
        }
        stream.end_task(task);
        Ok(())
    }

    /// RFC 7143 §11.9: the target requests logout or announces that it drops the connection or session.
    fn on_notice(&mut self, event: AsyncEvent, now: Duration) -> Result<(), Failure> {
        tracing::info!(?event, "asynchronous message");
        match event {
            AsyncEvent::LogoutRequested => {
                // A logout ends the active commands without an answer (§11.14). That of a set-up command may be the only
                // report of a lost cache.
                self.logout_due.get_or_insert(now + LOGOUT_DELAY_MAX);
                Ok(())
            }
            AsyncEvent::ConnectionDropped | AsyncEvent::SessionDropped => {
                Err(Failure::Lost("the target drops the connection".into()))
            }
            _ => Ok(()),
        }
    }
}

impl Link for Session {
    type Outcome = Outcome;

    fn on_event(&mut self, io: &mut Io, event: IoEvent, outcomes: &mut Vec<Outcome>) {
        let (operation, generation) = Operation::of(event.token.key);
        if generation != self.generation {
            return;
        }
        let result = match (operation, &mut self.state) {
            (Operation::Connect, State::Connecting { .. }) => self.on_connected(io, &event),
            (Operation::Receive, State::Up(stream)) => {
                let lost = if self.handshake.is_some() { Failure::Dropped } else { Failure::Lost };
                match stream.on_received(event) {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(lost("the target closed the connection".into())),
                    Err(error) => Err(lost(error.to_string())),
                }
            }
            (Operation::Send, State::Up(stream)) => {
                stream.on_sent(event).map_err(|error| Failure::Lost(error.to_string()))
            }
            // Errors and data are ignored: the session is ending.
            (Operation::Receive, State::Ending { stream, .. }) => {
                let _ = stream.on_received(event);
                return self.end(outcomes);
            }
            (Operation::Send, State::Ending { stream, .. }) => {
                let _ = stream.on_sent(event);
                return self.end(outcomes);
            }
            (Operation::Timer, _) => {
                self.timer = None;
                self.on_timer(io)
            }
            _ => Ok(()),
        };
        match result {
            Ok(()) => self.pump(io, outcomes),
            Err(failure) => self.cut(failure, outcomes),
        }
    }

    fn pump(&mut self, io: &mut Io, outcomes: &mut Vec<Outcome>) {
        if let Err(failure) = self.shake_hands(io) {
            return self.cut(failure, outcomes);
        }
        while self.handshake.is_none() {
            if let Err(failure) = self.drain(io.now(), outcomes) {
                return self.cut(failure, outcomes);
            }
            let State::Up(stream) = &mut self.state else { return };
            let buffers = &self.buffers;
            match stream.advance(io, &mut self.machine, |task| buffer_of(buffers, task)) {
                Ok(Advance::Events) => {}
                Ok(Advance::Starved) => break,
                Err(fatal) => {
                    if let Fatal::Untrusted(text) = fatal {
                        return self.cut(Failure::Untrusted(text), outcomes);
                    }
                    // The reason of a refused login is more specific than the end of the connection that follows it.
                    let refusal = self.drain(io.now(), outcomes);
                    let failure = refusal.err().unwrap_or_else(|| Failure::Lost(fatal.to_string()));
                    return self.cut(failure, outcomes);
                }
            }
        }
        let State::Up(stream) = &mut self.state else { return };
        let buffers = &self.buffers;
        let buffer_of = |task| buffer_of(buffers, task);
        let sent = match &mut self.handshake {
            Some(handshake) => stream.send(io, &mut handshake.exchange, SEND_BYTES_MAX, buffer_of),
            None => stream.send(io, &mut self.machine, SEND_BYTES_MAX, buffer_of),
        };
        if let Err(fatal) = sent {
            return self.cut(Failure::Lost(fatal.to_string()), outcomes);
        }
        stream.receive(io);
        let due = match &self.handshake {
            Some(handshake) => handshake.exchange.poll_timeout(),
            None => self.machine.poll_timeout(),
        };
        let due = due.into_iter().chain(self.logout_due).chain(stream.retry_at(io.now())).min();
        if let Some(due) = due
            && self.timer.is_none_or(|armed| due < armed)
        {
            self.timer = Some(due);
            io.timer(Token { owner: self.owner, key: Operation::Timer.key(self.generation) }, due);
        }
    }

    fn window(&self) -> u32 {
        let is_open = matches!(self.state, State::Up(_)) && self.logout_due.is_none();
        if is_open { self.machine.window() } else { 0 }
    }

    fn cut_off(&mut self, reason: &str, outcomes: &mut Vec<Outcome>) {
        self.cut(Failure::Lost(reason.into()), outcomes);
    }

    fn log_out(&mut self, now: Duration) {
        self.machine.logout(LogoutReason::CloseSession, now);
    }

    fn transferred(&self) -> u64 {
        let (received, sent) = self.transferred();
        received + sent
    }

    fn wants_idle(&mut self) -> bool {
        let State::Up(stream) = &self.state else { return false };
        self.ahead.next(stream, &self.buffers).is_some()
    }

    /// Seals one unit of the pending writes, in the order of submission.
    fn on_idle(&mut self, io: &mut Io) {
        let State::Up(stream) = &mut self.state else { return };
        if let Some((task, data)) = self.ahead.next(stream, &self.buffers)
            && !stream.sealed_send_mut().is_some_and(|send| send.seal_task_ahead(io.pool(), data, task))
        {
            self.ahead.on_end(task);
        }
    }
}

impl Drop for Session {
    /// An operation in flight keeps the socket open, so dropping the descriptor does not close the connection.
    fn drop(&mut self) {
        match &mut self.state {
            State::Connecting { socket, .. } => {
                let _ = SockRef::from(&**socket).shutdown(Shutdown::Both);
            }
            State::Up(stream) | State::Ending { stream, .. } => stream.cut(),
            State::Down => {}
        }
    }
}

fn new_machine(login: &login::Config, segment_max: u32, now: Duration) -> Result<Connection, Failure> {
    let mut entropy = [0; 32];
    io::entropy(&mut entropy)
        .map_err(|error| Failure::Lost(format!("no randomness for the login: {error}")))?;
    Connection::new(Config { segment_max, ..Config::new(login.clone()) }, entropy, now)
        .map_err(|error| Failure::Lost(format!("login cannot be configured: {error}")))
}

fn buffer_of(buffers: &[Option<Span>], task: TaskId) -> Option<Span> {
    buffers.get(task.index())?.clone()
}

#[cfg(test)]
mod tests;
