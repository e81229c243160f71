//! One connection to a server: connect, negotiate, requests with their buffers, end.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use area::Span;
use block::remote::Link;
use io::{Event, Handle, Incoming, Io, Item, Outgoing, Owner, Token};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::receive::Receiver;
use crate::negotiation::{Config, Export, Negotiation, NegotiationError, Progress};
use crate::transmission::{Command, Data, Ended, Step, TaskId, Transmission};
use crate::wire;

/// Bound of the time until a connection is ready for requests.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Bound of the data bytes gathered into one send.
const SEND_BYTES_MAX: usize = 1 << 20;

/// The operation of a connection that an event belongs to; the low two bits of a token's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Receive,
    Send,
    Connect,
    Deadline,
}

/// Generations wrap here: two bits of a key name the operation.
pub(super) const GENERATION_MASK: u32 = u32::MAX >> 2;

#[derive(Clone, Debug)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Why a connection ended or could not be established.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection could not be established.
    Connect(std::io::Error),
    /// The server refused the export, or negotiation failed.
    Negotiation(NegotiationError),
    Lost(String),
}

#[derive(Debug)]
pub(super) enum Outcome {
    Ready(Export),
    Ended(Ended),
    Failed(Failure),
}

enum State {
    Connecting,
    Negotiating(Negotiation),
    Up(Transmission),
    /// Shut down. The kernel may still access the buffers of requests, so the end is reported only when no operation is
    /// in flight.
    Ending(Failure),
    Down,
}

/// The buffer of a task; the server has all of it once `sent_at` bytes of the stream are sent.
#[derive(Clone, Debug)]
struct Buffer {
    span: Option<Span>,
    sent_at: u64,
}

/// A connection. The owner of its events dispatches them to `on_event`, and collects the outcomes.
pub(super) struct Connection {
    owner: Owner,
    generation: u32,
    socket: Handle,
    state: State,
    config: Option<Config>,
    receiver: Receiver,
    incoming: Option<Box<Incoming>>,
    outgoing: Option<Box<Outgoing>>,
    buffers: Vec<Buffer>,
    /// Bytes passed to sends, and bytes that the socket has accepted.
    queued: u64,
    sent: u64,
    /// Answered tasks whose data may still be in a send: their buffers are released only afterwards.
    held: VecDeque<Ended>,
}

impl Connection {
    /// Starts to connect to `address`. Events of `owner` whose key carries `generation` belong to this connection.
    pub(super) fn connect(
        io: &mut Io,
        owner: Owner,
        generation: u32,
        address: &Address,
        config: Config,
    ) -> Result<Self, Failure> {
        let receiver =
            Receiver::new(io.pool()).ok_or_else(|| Failure::Lost("no memory for a connection".into()))?;
        let token = |operation: Operation| Token { owner, key: generation << 2 | operation as u32 };
        let socket: Handle = match address {
            Address::Tcp(address) => {
                let socket = Rc::new(io::socket(*address, None).map_err(Failure::Connect)?);
                io.connect(token(Operation::Connect), &socket, *address);
                socket
            }
            Address::Unix(path) => {
                let socket = Rc::new(unix(path).map_err(Failure::Connect)?.into());
                io.soon(token(Operation::Connect));
                socket
            }
        };
        io.timer(token(Operation::Deadline), io.now() + SETUP_TIMEOUT);
        Ok(Self {
            owner,
            generation,
            socket,
            state: State::Connecting,
            config: Some(config),
            receiver,
            incoming: Some(Box::default()),
            outgoing: Some(Box::default()),
            buffers: Vec::new(),
            queued: 0,
            sent: 0,
            held: VecDeque::new(),
        })
    }

    fn token(&self, operation: Operation) -> Token {
        Token { owner: self.owner, key: self.generation << 2 | operation as u32 }
    }

    /// Sends a request. The connection holds its data `span` until the request's outcome.
    ///
    /// # Panics
    /// If the window is closed.
    pub(super) fn submit(&mut self, command: Command, span: Option<Span>) -> TaskId {
        let State::Up(machine) = &mut self.state else { unreachable!("the window is closed") };
        let task = machine.submit(command);
        if self.buffers.len() <= task.index() {
            self.buffers.resize(task.index() + 1, Buffer { span: None, sent_at: 0 });
        }
        self.buffers[task.index()] = Buffer { span, sent_at: u64::MAX };
        task
    }

    /// Cuts the connection. [`Outcome::Failed`] follows when no buffer is in use, possibly before this call returns.
    pub(super) fn cut(&mut self, failure: Failure, outcomes: &mut Vec<Outcome>) {
        if matches!(self.state, State::Ending(_) | State::Down) {
            return;
        }
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
        self.held.clear();
        self.state = State::Ending(failure);
        self.end(outcomes);
    }

    fn end(&mut self, outcomes: &mut Vec<Outcome>) {
        let is_idle = self.incoming.is_some() && self.outgoing.is_some();
        match std::mem::replace(&mut self.state, State::Down) {
            State::Ending(failure) if is_idle => {
                self.buffers.clear();
                outcomes.push(Outcome::Failed(failure));
            }
            state => self.state = state,
        }
    }

    fn on_connected(&mut self) {
        let socket = SockRef::from(&*self.socket);
        let _ = socket.set_keepalive(true);
        io::settle(&self.socket, false);
        if matches!(self.state, State::Connecting) {
            let config = self.config.take().expect("connected once");
            self.state = State::Negotiating(Negotiation::new(config));
        }
    }

    fn on_deadline(&self) -> Result<(), Failure> {
        match self.state {
            State::Connecting => Err(Failure::Connect(std::io::ErrorKind::TimedOut.into())),
            State::Negotiating(_) => Err(Failure::Lost(format!(
                "it accepted the connection, but did not answer for {} s (a server for one client may have one already)",
                SETUP_TIMEOUT.as_secs()
            ))),
            _ => Ok(()),
        }
    }

    fn on_received(&mut self, count: usize) -> Result<(), Failure> {
        let placed = self.receiver.on_received(count);
        match &mut self.state {
            _ if count == 0 => Err(Failure::Lost("the server closed the connection".into())),
            State::Up(machine) if placed > 0 => machine.on_data(placed).map_err(lost),
            _ => Ok(()),
        }
    }

    fn on_sent(&mut self, count: usize, outcomes: &mut Vec<Outcome>) {
        self.sent += count as u64;
        self.outgoing.as_mut().expect("just came back").advance(count);
        let held = std::mem::take(&mut self.held);
        for ended in held {
            self.finish(ended, outcomes);
        }
    }

    /// Reports the end of a task, once no send uses its buffer.
    fn finish(&mut self, ended: Ended, outcomes: &mut Vec<Outcome>) {
        let State::Up(machine) = &mut self.state else { return };
        let buffer = &mut self.buffers[ended.task.index()];
        if buffer.sent_at > self.sent {
            return self.held.push_back(ended);
        }
        buffer.span = None;
        machine.release(ended.task);
        outcomes.push(Outcome::Ended(ended));
    }

    fn advance(&mut self, outcomes: &mut Vec<Outcome>) -> Result<(), Failure> {
        // A receive in flight writes to a task's buffer: no task ends before the receive has completed.
        if self.incoming.is_none() {
            return Ok(());
        }
        loop {
            // Data received in place may have completed a task.
            while let State::Up(machine) = &mut self.state
                && let Some(ended) = machine.poll_ended()
            {
                self.finish(ended, outcomes);
            }
            match &mut self.state {
                State::Negotiating(machine) => {
                    match machine.advance(self.receiver.bytes()).map_err(Failure::Negotiation)? {
                        Progress::Starved => return Ok(()),
                        Progress::Took(count) => self.receiver.take(count),
                        Progress::Ready(count, export) => {
                            self.receiver.take(count);
                            self.state = State::Up(Transmission::new(&export));
                            outcomes.push(Outcome::Ready(export));
                        }
                    }
                }
                State::Up(machine) => match machine.advance(self.receiver.bytes()).map_err(lost)? {
                    Step::Starved => return Ok(()),
                    Step::Took(count) => self.receiver.take(count),
                    Step::Hole { took, hole } => {
                        self.receiver.take(took);
                        span(&self.buffers, hole.task).zero(hole.offset as usize, hole.length as usize);
                    }
                    Step::Data(data) => {
                        let bytes = self.receiver.bytes();
                        let count = bytes.len().min(data.length as usize);
                        span(&self.buffers, data.task).fill(data.offset as usize, &bytes[..count]);
                        self.receiver.on_data(data.length);
                        self.receiver.take(count);
                        machine.on_data(count).map_err(lost)?;
                        if count < data.length as usize {
                            return Ok(());
                        }
                    }
                },
                State::Connecting | State::Ending(_) | State::Down => return Ok(()),
            }
        }
    }

    fn send(&mut self, io: &mut Io) {
        let Some(mut outgoing) = self.outgoing.take() else { return };
        let mut payload = 0;
        match &mut self.state {
            State::Negotiating(machine) => outgoing.bytes(&machine.take_transmit()),
            State::Up(machine) => {
                while outgoing.is_empty() || (payload < SEND_BYTES_MAX && !outgoing.is_full()) {
                    let Some(transmit) = machine.poll_transmit() else { break };
                    outgoing.bytes(&transmit.header);
                    self.queued += wire::REQUEST_BYTES as u64;
                    let Some((task, length)) = transmit.task else { continue };
                    let buffer = &mut self.buffers[task.index()];
                    if length > 0 {
                        outgoing.span(buffer.span.clone().expect("a write has data"));
                        self.queued += u64::from(length);
                        payload += length as usize;
                    }
                    buffer.sent_at = self.queued;
                }
            }
            _ => {}
        }
        if outgoing.is_empty() {
            self.outgoing = Some(outgoing);
        } else {
            io.send(self.token(Operation::Send), &self.socket, outgoing);
        }
    }

    fn receive(&mut self, io: &mut Io) {
        if !matches!(self.state, State::Negotiating(_) | State::Up(_)) {
            return;
        }
        let Some(mut incoming) = self.incoming.take() else { return };
        let data: Option<Data> = match &self.state {
            State::Up(machine) => machine.data(),
            _ => None,
        };
        let data = data.map(|data| (data, span(&self.buffers, data.task)));
        incoming.clear();
        let (place, room) = self.receiver.places(data);
        place.into_iter().for_each(|place| incoming.push(place));
        incoming.push(room);
        io.receive(self.token(Operation::Receive), &self.socket, incoming);
    }
}

impl Link for Connection {
    type Outcome = Outcome;

    fn on_event(&mut self, _: &mut Io, event: Event, outcomes: &mut Vec<Outcome>) {
        if event.token.key >> 2 != self.generation {
            return;
        }
        let result = event.bytes();
        let result = match event.item {
            Item::Incoming(incoming) => {
                self.incoming = Some(incoming);
                result.map_err(lost).and_then(|count| self.on_received(count))
            }
            Item::Outgoing(outgoing) => {
                self.outgoing = Some(outgoing);
                result.map(|count| self.on_sent(count, outcomes)).map_err(lost)
            }
            _ if event.token.key & 3 == Operation::Deadline as u32 => self.on_deadline(),
            _ => result.map_err(Failure::Connect).map(|_| self.on_connected()),
        };
        if let Err(failure) = result {
            self.cut(failure, outcomes);
        }
        self.end(outcomes);
    }

    fn pump(&mut self, io: &mut Io, outcomes: &mut Vec<Outcome>) {
        if let Err(failure) = self.advance(outcomes) {
            return self.cut(failure, outcomes);
        }
        self.send(io);
        self.receive(io);
    }

    fn window(&self) -> u32 {
        if let State::Up(machine) = &self.state { machine.window() as u32 } else { 0 }
    }

    fn cut_off(&mut self, reason: &str, outcomes: &mut Vec<Outcome>) {
        self.cut(lost(reason), outcomes);
    }

    fn log_out(&mut self, _: Duration) {
        if let State::Up(machine) = &mut self.state {
            machine.disconnect();
        }
    }
}

impl Drop for Connection {
    /// An operation in flight keeps the socket open, so dropping the descriptor does not close the connection.
    fn drop(&mut self) {
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
    }
}

fn span(buffers: &[Buffer], task: TaskId) -> &Span {
    buffers[task.index()].span.as_ref().expect("a read has a buffer")
}

fn lost(error: impl std::fmt::Display) -> Failure {
    Failure::Lost(error.to_string())
}

/// A socket connected to a path. The call does not block: a server with a full backlog refuses immediately.
fn unix(path: &Path) -> std::io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&address)?;
    // Blocking mode from here on: the loop itself waits where an operation would block.
    socket.set_nonblocking(false)?;
    Ok(socket)
}
