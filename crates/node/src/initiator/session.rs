//! One connection of an initiator: connect, log in, commands; until it ends.

use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use area::Span;
use io::{Event as IoEvent, Handle, Io, Owner, Token};
use iscsi::initiator::{Command, Config, Connection, Direction, Event, WindowFull};
use iscsi::login::initiator as login;
use iscsi::login::initiator::{LoginError, Redirect};
use iscsi::machine::{Fatal, Machine, TargetRecord, TaskId};
use iscsi::params::Negotiated;
use iscsi::wire::{AsyncEvent, LoginStatus, LogoutReason, TmFunction};
use scsi::Sense;
use socket2::SockRef;

use super::ahead::Ahead;
use super::handshake::{Agreement, Handshake, within_seal};
use super::options::InitiatorSealing;
use crate::reassembly::Advance;
use crate::sealing::Protection;
use crate::stream::{Operation, SEND_BYTES_MAX, Stream, sealed_segment_max, tls};

/// Time a TCP connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// SCSI status GOOD.
const GOOD: u8 = scsi::Status::Good as u8;

/// Why a session ended, or never began.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection.
    Connect(std::io::Error),
    /// It is not the target it should be.
    Untrusted(String),
    /// The target refused the login, for a reason that will not go away.
    Login(LoginError),
    /// Log in there instead.
    Redirect(Redirect),
    /// The target does not seal; it may be asked again without.
    Declined,
    /// The target refuses to seal, or what it refuses is one of the keys; a message that was damaged on the way is refused alike.
    Seal(String),
    /// The handshake was damaged on the way.
    Damaged(String),
    /// The connection ended in the middle of the handshake.
    Dropped(String),
    /// The connection was lost.
    Lost(String),
}

impl Failure {
    /// Whether damage on the way may be the reason, so that the same may succeed when it is tried once more.
    pub(super) fn may_be_damage(&self) -> bool {
        let malformed = matches!(self, Self::Login(LoginError::Refused(LoginStatus::InitiatorError)));
        malformed || matches!(self, Self::Seal(_) | Self::Damaged(_) | Self::Dropped(_))
    }

    /// Whether the target has too much to do for a login (0301).
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Login(LoginError::Refused(LoginStatus::ServiceUnavailable)))
    }
}

/// What a session tells its owner.
#[derive(Debug)]
pub(super) enum Outcome {
    LoggedIn(Negotiated),
    Completed {
        task: TaskId,
        status: u8,
        sense: Option<Sense>,
        moved: u32,
    },
    /// A command ended without a status; it may be sent again.
    Interrupted {
        task: TaskId,
    },
    Targets(Vec<TargetRecord>),
    LoggedOut,
    Failed(Failure),
}

enum Link {
    Connecting {
        deadline: Duration,
        tls: Option<tls::End>,
    },
    Up(Box<Stream>),
    /// Shut. The kernel may still read from and write to the buffers of commands: their owner is told of the end
    /// when that is over.
    Ending {
        stream: Box<Stream>,
        failure: Failure,
    },
    Down,
}

/// A session, which is one connection.
pub(super) struct Session {
    owner: Owner,
    generation: u32,
    socket: Handle,
    link: Link,
    /// What comes before the machine, if the session is to be sealed.
    handshake: Option<Box<Handshake>>,
    protection: Protection,
    login: login::Config,
    machine: Connection,
    buffers: Vec<Option<Span>>,
    ahead: Ahead,
    timer: Option<Duration>,
}

impl Session {
    /// Begins to connect to `address`, and to seal. Events of `owner` whose key carries `generation` belong here.
    pub(super) fn connect(
        io: &mut Io,
        owner: Owner,
        generation: u32,
        address: SocketAddr,
        login: login::Config,
        sealing: Option<&InitiatorSealing>,
        tls: Option<tls::End>,
    ) -> Result<Self, Failure> {
        let machine = new_machine(&login, u32::MAX, io.now())?;
        let handshake = sealing.map(|sealing| Box::new(Handshake::begin(sealing, &login, io.now())));
        let socket: Handle = Rc::new(io::socket(address).map_err(Failure::Connect)?);
        let token = |operation: Operation| Token { owner, key: operation.key(generation) };
        io.connect(token(Operation::Connect), &socket, address);
        let deadline = io.now() + CONNECT_TIMEOUT;
        io.timer(token(Operation::Timer), deadline);
        Ok(Self {
            owner,
            generation,
            socket,
            link: Link::Connecting { deadline, tls },
            handshake,
            protection: Protection::None,
            login,
            machine,
            buffers: Vec::new(),
            ahead: Ahead::default(),
            timer: Some(deadline),
        })
    }

    /// What protects it; to be asked once it is logged in.
    pub(super) fn protection(&self) -> Protection {
        match &self.link {
            Link::Up(stream) => stream.tls_suite().map_or(self.protection, |suite| Protection::Tls { suite }),
            _ => self.protection,
        }
    }

    /// Commands that may be submitted now.
    pub(super) fn window(&self) -> u32 {
        if matches!(self.link, Link::Up(_)) { self.machine.window() } else { 0 }
    }

    /// Sends a command; its data is `buffer`, which stays with the session until the command's outcome. What is to be written
    /// must not change until then: it is sealed when there is time for it, and again for a session that replaces this one.
    pub(super) fn submit(&mut self, command: Command, buffer: Option<Span>) -> Result<TaskId, WindowFull> {
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

    /// Whether [`Self::seal_ahead`] has something to do.
    pub(super) fn is_eager(&mut self) -> bool {
        let Link::Up(stream) = &self.link else { return false };
        self.ahead.next(stream, &self.buffers).is_some()
    }

    /// Nothing is to be done: seals one unit of what will be written, in the order of submission.
    pub(super) fn seal_ahead(&mut self, io: &Io) {
        let Link::Up(stream) = &mut self.link else { return };
        if let Some((task, data)) = self.ahead.next(stream, &self.buffers)
            && !stream.seal_task_ahead(io, data, task)
        {
            self.ahead.on_end(task);
        }
    }

    /// Asks the target to give a command up. It ends by [`Outcome::Interrupted`], or as it would have.
    pub(super) fn abort(&mut self, lun: u64, task: TaskId) {
        // Refused only when the session ends anyway.
        let _ = self.machine.task_management(TmFunction::AbortTask, lun, Some(task));
    }

    /// Bytes that came and went over the connection.
    pub(super) fn transferred(&self) -> (u64, u64) {
        match &self.link {
            Link::Up(stream) => (stream.counters().received, stream.counters().sent),
            _ => (0, 0),
        }
    }

    /// Asks for the portal's targets.
    pub(super) fn send_targets(&mut self) {
        self.machine.send_targets();
    }

    /// Ends the session in order; [`Outcome::LoggedOut`] follows, and the end of the connection.
    pub(super) fn logout(&mut self, now: Duration) {
        self.machine.logout(LogoutReason::CloseSession, now);
    }

    /// Cuts the connection. [`Outcome::Failed`] follows when no buffer is in use any more, perhaps at once.
    pub(super) fn cut(&mut self, failure: Failure, outcomes: &mut Vec<Outcome>) {
        match std::mem::replace(&mut self.link, Link::Down) {
            Link::Up(mut stream) => {
                stream.shutdown();
                self.link = Link::Ending { stream, failure };
                self.end(outcomes);
            }
            Link::Connecting { .. } => {
                let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
                outcomes.push(Outcome::Failed(failure));
            }
            ending => self.link = ending,
        }
    }

    /// Says that the session has ended, if the kernel has given all buffers back.
    fn end(&mut self, outcomes: &mut Vec<Outcome>) {
        match std::mem::replace(&mut self.link, Link::Down) {
            Link::Ending { stream, failure } if stream.is_idle() => outcomes.push(Outcome::Failed(failure)),
            other => self.link = other,
        }
    }

    /// Takes an event of this session's operations, and goes on as far as it can.
    pub(super) fn on_event(&mut self, io: &mut Io, event: IoEvent, outcomes: &mut Vec<Outcome>) {
        let (operation, generation) = Operation::of(event.token.key);
        if generation != self.generation {
            return;
        }
        let result = match (operation, &mut self.link) {
            (Operation::Connect, Link::Connecting { .. }) => self.on_connected(io, &event),
            (Operation::Receive, Link::Up(stream)) => {
                let lost = if self.handshake.is_some() { Failure::Dropped } else { Failure::Lost };
                match stream.on_received(event) {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(lost("the target closed the connection".into())),
                    Err(error) => Err(lost(error.to_string())),
                }
            }
            (Operation::Send, Link::Up(stream)) => {
                stream.on_sent(event).map_err(|error| Failure::Lost(error.to_string()))
            }
            // Errors and data do not matter any more.
            (Operation::Receive, Link::Ending { stream, .. }) => {
                let _ = stream.on_received(event);
                return self.end(outcomes);
            }
            (Operation::Send, Link::Ending { stream, .. }) => {
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

    fn on_connected(&mut self, io: &mut Io, event: &IoEvent) -> Result<(), Failure> {
        event.bytes().map_err(Failure::Connect)?;
        let _ = SockRef::from(&*self.socket).set_keepalive(true);
        let tls = match &mut self.link {
            Link::Connecting { tls, .. } => tls.take(),
            _ => None,
        };
        let stream = Stream::new(io, Rc::clone(&self.socket), self.owner, self.generation, tls)
            .ok_or_else(|| Failure::Lost("no memory for a connection".into()))?;
        self.link = Link::Up(Box::new(stream));
        Ok(())
    }

    fn on_timer(&mut self, io: &Io) -> Result<(), Failure> {
        match &self.link {
            Link::Connecting { deadline, .. } if io.now() >= *deadline => {
                Err(Failure::Connect(std::io::ErrorKind::TimedOut.into()))
            }
            Link::Up(_) => {
                let result = match &mut self.handshake {
                    Some(handshake) => handshake.exchange.on_timeout(io.now()),
                    None => self.machine.on_timeout(io.now()),
                };
                result.map_err(|fatal| Failure::Lost(fatal.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Receives, and sends what was submitted.
    pub(super) fn pump(&mut self, io: &mut Io, outcomes: &mut Vec<Outcome>) {
        if let Err(failure) = self.shake_hands(io) {
            return self.cut(failure, outcomes);
        }
        while self.handshake.is_none() {
            if let Err(failure) = self.drain(io.now(), outcomes) {
                return self.cut(failure, outcomes);
            }
            let Link::Up(stream) = &mut self.link else { return };
            let buffers = &self.buffers;
            match stream.advance(io, &mut self.machine, |task| buffer_of(buffers, task)) {
                Ok(Advance::Events) => {}
                Ok(Advance::Starved) => break,
                Err(fatal) => {
                    if let Fatal::Untrusted(text) = fatal {
                        return self.cut(Failure::Untrusted(text), outcomes);
                    }
                    // A refused login says more than the end it leads to.
                    let said = self.drain(io.now(), outcomes);
                    let failure = said.err().unwrap_or_else(|| Failure::Lost(fatal.to_string()));
                    return self.cut(failure, outcomes);
                }
            }
        }
        let Link::Up(stream) = &mut self.link else { return };
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
        if let Some(due) = due.into_iter().chain(stream.retry_at(io.now())).min()
            && self.timer.is_none_or(|armed| due < armed)
        {
            self.timer = Some(due);
            io.timer(Token { owner: self.owner, key: Operation::Timer.key(self.generation) }, due);
        }
    }

    /// The outer login, as far as it goes.
    fn shake_hands(&mut self, io: &Io) -> Result<(), Failure> {
        while let (Some(handshake), Link::Up(stream)) = (&mut self.handshake, &mut self.link) {
            let damaged = |fatal: Fatal| Failure::Damaged(fatal.to_string());
            if stream.advance(io, &mut handshake.exchange, |_| None).map_err(damaged)? == Advance::Starved {
                break;
            }
            if let Some(Agreement { channel, unit, protection }) = handshake.advance()? {
                // All that was said before has been answered, so it has been sent.
                stream.seal(channel, unit, io.now());
                let login = within_seal(&self.login, unit);
                self.machine = new_machine(&login, sealed_segment_max(unit), io.now())?;
                (self.handshake, self.protection) = (None, protection);
                if let Protection::Sealed { suite, .. } = protection {
                    self.ahead = Ahead::new(suite);
                }
            }
        }
        Ok(())
    }

    fn drain(&mut self, now: Duration, outcomes: &mut Vec<Outcome>) -> Result<(), Failure> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::LoggedIn(logged_in) => {
                    if let (Protection::None, Some(hash)) = (self.protection, logged_in.authenticated_by) {
                        self.protection = Protection::Chap { hash };
                    }
                    outcomes.push(Outcome::LoggedIn(logged_in.negotiated));
                }
                Event::LoginFailed(error) => return Err(Failure::Login(error)),
                Event::Redirect(redirect) => return Err(Failure::Redirect(redirect)),
                Event::Complete(complete) => {
                    let task = complete.task;
                    self.end_task(task, complete.status == GOOD)?;
                    let sense = Sense::parse(&complete.sense);
                    // One of them is 0: a command moves data one way.
                    let (status, moved) = (complete.status, complete.data_in.max(complete.data_out));
                    outcomes.push(Outcome::Completed { task, status, sense, moved });
                }
                Event::Failed { task, error } => {
                    tracing::debug!(%error, "a command ended without a status");
                    self.end_task(task, false)?;
                    outcomes.push(Outcome::Interrupted { task });
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

    /// Lets go of what a task had. One that ended `well` must have got all of its data.
    fn end_task(&mut self, task: TaskId, well: bool) -> Result<(), Failure> {
        self.buffers[task.index()] = None;
        self.ahead.on_end(task);
        let Link::Up(stream) = &mut self.link else { return Ok(()) };
        if well && !stream.is_whole(task) {
            return Err(Failure::Lost("data of a command came without all of its seal".into()));
        }
        stream.end_task(task);
        Ok(())
    }

    /// RFC 7143 §11.9: the target wants to be rid of us.
    fn on_notice(&mut self, event: AsyncEvent, now: Duration) -> Result<(), Failure> {
        tracing::info!(?event, "asynchronous message");
        match event {
            AsyncEvent::LogoutRequested => {
                self.logout(now);
                Ok(())
            }
            AsyncEvent::ConnectionDropped | AsyncEvent::SessionDropped => {
                Err(Failure::Lost("the target drops the connection".into()))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Session {
    /// Whatever is under way keeps the socket open, so dropping it is not enough.
    fn drop(&mut self) {
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
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
