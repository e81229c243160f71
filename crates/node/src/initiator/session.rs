//! One connection of an initiator: connect, log in, commands; until it ends.

use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use area::Span;
use io::{Event as IoEvent, Handle, Io, Owner, Token};
use iscsi::initiator::{Command, Config, Connection, Event, WindowFull};
use iscsi::login::initiator as login;
use iscsi::login::initiator::{LoginError, Redirect};
use iscsi::machine::{Machine, TargetRecord, TaskId};
use iscsi::params::Negotiated;
use iscsi::wire::{AsyncEvent, LogoutReason};
use scsi::Sense;
use socket2::SockRef;

use crate::reassembly::Advance;
use crate::stream::{Operation, SEND_BYTES_MAX, Stream};

/// Time a TCP connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a session ended, or never began.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection.
    Connect(std::io::Error),
    /// The target refused the login, for a reason that will not go away.
    Login(LoginError),
    /// Log in there instead.
    Redirect(Redirect),
    /// The connection was lost.
    Lost(String),
}

/// What a session tells its owner.
#[derive(Debug)]
pub(super) enum Outcome {
    LoggedIn(Negotiated),
    Completed {
        task: TaskId,
        status: u8,
        sense: Option<Sense>,
        data_in: u32,
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
    machine: Connection,
    buffers: Vec<Option<Span>>,
    timer: Option<Duration>,
}

impl Session {
    /// Begins to connect to `address`. Events of `owner` whose key carries `generation` belong here.
    pub(super) fn connect(
        io: &mut Io,
        owner: Owner,
        generation: u32,
        address: SocketAddr,
        login: login::Config,
    ) -> Result<Self, Failure> {
        let mut entropy = [0; 32];
        io::entropy(&mut entropy)
            .map_err(|error| Failure::Lost(format!("no randomness for the login: {error}")))?;
        let machine = Connection::new(Config::new(login), entropy, io.now())
            .map_err(|error| Failure::Lost(format!("login cannot be configured: {error}")))?;
        let socket: Handle = Rc::new(io::socket(address).map_err(Failure::Connect)?);
        let token = |operation: Operation| Token { owner, key: operation.key(generation) };
        io.connect(token(Operation::Connect), &socket, address);
        let deadline = io.now() + CONNECT_TIMEOUT;
        io.timer(token(Operation::Timer), deadline);
        Ok(Self {
            owner,
            generation,
            socket,
            link: Link::Connecting { deadline },
            machine,
            buffers: Vec::new(),
            timer: Some(deadline),
        })
    }

    /// Commands that may be submitted now.
    pub(super) fn window(&self) -> u32 {
        if matches!(self.link, Link::Up(_)) { self.machine.window() } else { 0 }
    }

    /// Sends a command; its data is `buffer`, which stays with the session until the command's outcome.
    pub(super) fn submit(&mut self, command: Command, buffer: Option<Span>) -> Result<TaskId, WindowFull> {
        let task = self.machine.submit(command)?;
        if self.buffers.len() <= task.index() {
            self.buffers.resize(task.index() + 1, None);
        }
        self.buffers[task.index()] = buffer;
        Ok(task)
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
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
        match std::mem::replace(&mut self.link, Link::Down) {
            Link::Up(stream) => {
                self.link = Link::Ending { stream, failure };
                self.end(outcomes);
            }
            Link::Connecting { .. } => outcomes.push(Outcome::Failed(failure)),
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
            (Operation::Receive, Link::Up(stream)) => match stream.on_received(event) {
                Ok(true) => Ok(()),
                Ok(false) => Err(Failure::Lost("the target closed the connection".into())),
                Err(error) => Err(Failure::Lost(error.to_string())),
            },
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
        let stream = Stream::new(io, Rc::clone(&self.socket), self.owner, self.generation)
            .ok_or_else(|| Failure::Lost("no memory for a connection".into()))?;
        self.link = Link::Up(Box::new(stream));
        Ok(())
    }

    fn on_timer(&mut self, io: &Io) -> Result<(), Failure> {
        match &self.link {
            Link::Connecting { deadline } if io.now() >= *deadline => {
                Err(Failure::Connect(std::io::ErrorKind::TimedOut.into()))
            }
            Link::Up(_) => {
                self.machine.on_timeout(io.now()).map_err(|fatal| Failure::Lost(fatal.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Receives, and sends what was submitted.
    pub(super) fn pump(&mut self, io: &mut Io, outcomes: &mut Vec<Outcome>) {
        loop {
            if let Err(failure) = self.drain(io.now(), outcomes) {
                return self.cut(failure, outcomes);
            }
            let Link::Up(stream) = &mut self.link else { return };
            let buffers = &self.buffers;
            match stream.advance(io, &mut self.machine, |task| buffer_of(buffers, task)) {
                Ok(Advance::Events) => {}
                Ok(Advance::Starved) => break,
                Err(fatal) => {
                    // A refused login says more than the end it leads to.
                    let said = self.drain(io.now(), outcomes);
                    let failure = said.err().unwrap_or_else(|| Failure::Lost(fatal.to_string()));
                    return self.cut(failure, outcomes);
                }
            }
        }
        let Link::Up(stream) = &mut self.link else { return };
        let buffers = &self.buffers;
        let sent = stream.send(io, &mut self.machine, SEND_BYTES_MAX, |task| buffer_of(buffers, task));
        if let Err(fatal) = sent {
            return self.cut(Failure::Lost(fatal.to_string()), outcomes);
        }
        stream.receive(io);
        if let Some(due) = self.machine.poll_timeout()
            && self.timer.is_none_or(|armed| due < armed)
        {
            self.timer = Some(due);
            io.timer(Token { owner: self.owner, key: Operation::Timer.key(self.generation) }, due);
        }
    }

    fn drain(&mut self, now: Duration, outcomes: &mut Vec<Outcome>) -> Result<(), Failure> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::LoggedIn(logged_in) => outcomes.push(Outcome::LoggedIn(logged_in.negotiated)),
                Event::LoginFailed(error) => return Err(Failure::Login(error)),
                Event::Redirect(redirect) => return Err(Failure::Redirect(redirect)),
                Event::Complete(complete) => {
                    let task = complete.task;
                    self.buffers[task.index()] = None;
                    let sense = Sense::parse(&complete.sense);
                    let (status, data_in) = (complete.status, complete.data_in);
                    outcomes.push(Outcome::Completed { task, status, sense, data_in });
                }
                Event::Failed { task, error } => {
                    tracing::debug!(%error, "a command ended without a status");
                    self.buffers[task.index()] = None;
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

fn buffer_of(buffers: &[Option<Span>], task: TaskId) -> Option<Span> {
    buffers.get(task.index())?.clone()
}
