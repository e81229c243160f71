//! Sockets and links: the guarantees of TCP, and everything that it does not guarantee.
//!
//! A link carries the bytes of both directions in order and without loss, in parts of any size and at any time, until
//! it ends. It can stall, be reset at any byte, lose one end without notice, or be dead for one end while data in
//! flight still arrives at the other.

mod connect;
mod fault;
mod link;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use crate::state::{Due, LoopId, MachineId, OpId, State};

pub(crate) type LinkId = usize;
/// 0: the end that connected. 1: the end that accepted. A direction has the number of the sending end.
pub(crate) type Side = usize;

/// Attempts to connect to a machine that does not answer.
const SYN_MAX: u32 = 6;
/// Microseconds until TCP gives up a vanished peer.
const VANISHED: Range<u64> = 15_000_000..60_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Net {
    Syn {
        op: OpId,
        fd: RawFd,
        address: SocketAddr,
        attempt: u32,
    },
    Connected {
        link: LinkId,
        op: OpId,
        fd: RawFd,
    },
    Send(LinkId, Side),
    Arrive(LinkId, Side),
    Receive(LinkId, Side),
    /// An end is notified that the link is gone.
    Reset(LinkId, Side, i32),
    /// See [`State::half_kill`].
    HalfKill {
        link: LinkId,
        notified: bool,
        late: Duration,
    },
    /// A retransmission to a vanished peer, answered by a reset after that machine is back.
    Probe(LinkId, Side, u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Weather {
    /// Latency of a segment in microseconds.
    pub latency: Range<u64>,
    /// One send in so many is divided into small segments; likewise receives.
    pub fragments: u64,
    /// Maximum number of bytes in flight and unreceived, per direction.
    pub capacity: usize,
    pub refused_until: Duration,
    /// Number of new connections that are reset at one of their first bytes.
    pub doomed: u32,
}

impl Weather {
    pub(crate) fn fair() -> Self {
        Self { latency: 10..100, fragments: 20, capacity: 1 << 20, refused_until: Duration::ZERO, doomed: 0 }
    }
}

#[derive(Debug)]
enum What {
    Bytes(Vec<u8>),
    End,
    Reset,
}

#[derive(Debug)]
struct Segment {
    at: Duration,
    what: What,
}

#[derive(Debug, Default)]
struct Direction {
    flight: VecDeque<Segment>,
    buffer: VecDeque<u8>,
    /// Arrival time of the last segment, and bytes in flight.
    last: Duration,
    bytes: usize,
    /// Bytes carried so far, and the byte at which the link is reset.
    carried: u64,
    reset_at: Option<u64>,
    eof: bool,
    /// Data sent from here on is lost.
    dead: bool,
}

#[derive(Debug)]
struct End {
    machine: MachineId,
    life: u32,
    /// Whether the process has the end open, or will have after it accepts.
    open: bool,
    vanished: bool,
    error: i32,
    receive: Option<OpId>,
    send: Option<OpId>,
}

#[derive(Debug)]
pub(crate) struct Link {
    /// The loop that made the connection.
    client: LoopId,
    target: SocketAddr,
    established: bool,
    spoken: bool,
    ends: [End; 2],
    directions: [Direction; 2],
}

#[derive(Debug)]
enum Role {
    Fresh { connecting: Option<OpId> },
    Listener(usize),
    End(LinkId, Side),
    Shut,
}

#[derive(Debug)]
pub(crate) struct Socket {
    word: u64,
    _kept: OwnedFd,
    machine: MachineId,
    life: u32,
    role: Role,
}

#[derive(Debug)]
pub(crate) struct Listening {
    machine: MachineId,
    life: u32,
    address: SocketAddr,
    backlog: VecDeque<LinkId>,
    accepts: VecDeque<OpId>,
    open: bool,
}

fn gone(operation: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, format!("{operation}: the simulated process has ended"))
}

impl State {
    fn latency(&mut self) -> Duration {
        let range = self.weather.latency.clone();
        self.micros(range)
    }

    fn net_after(&mut self, delay: Duration, net: Net) {
        self.after(delay, Due::Net(net));
    }

    fn net_soon(&mut self, net: Net) {
        let delay = self.micros(0..10);
        self.net_after(delay, net);
    }

    pub(crate) fn on_net(&mut self, net: Net) {
        match net {
            Net::Syn { op, fd, address, attempt } => self.on_syn(op, fd, address, attempt),
            Net::Connected { link, op, fd } => self.on_connected(link, op, fd),
            Net::Send(link, side) => self.on_send(link, side),
            Net::Arrive(link, side) => self.on_arrive(link, side),
            Net::Receive(link, side) => self.on_receive(link, side),
            Net::Reset(link, side, error) => self.on_reset(link, side, error),
            Net::HalfKill { link, notified, late } => self.half_kill(link, notified, late),
            Net::Probe(link, side, attempt) => self.on_probe(link, side, attempt),
        }
    }

    /// Handles the shutdown or close of a name.
    pub(crate) fn on_shut(&mut self, word: u64) {
        let Some(socket) = self.sockets.values_mut().find(|socket| socket.word == word) else { return };
        match std::mem::replace(&mut socket.role, Role::Shut) {
            Role::Fresh { connecting: Some(op) } => self.complete_later(op, -libc::ECONNRESET),
            Role::Fresh { connecting: None } | Role::Shut => {}
            Role::Listener(listener) => self.close_listener(listener),
            Role::End(link, side) => self.close_end(link, side),
        }
    }
}
