//! Sockets and links: what TCP promises, and everything it does not.
//!
//! A link carries bytes of both directions in order and without loss, in pieces of any size and at any time, until it
//! ends. It can stand still, be reset at any byte, lose one end without a word, or be dead for one end while what was
//! on its way still arrives at the other.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::state::{Due, LoopId, MachineId, Op, OpId, State};

pub(crate) type LinkId = usize;
/// 0: who connected. 1: who accepted. A direction has the number of the end that sends.
pub(crate) type Side = usize;

/// Attempts to connect to a machine that does not answer.
const SYN_MAX: u32 = 6;
/// How long TCP takes to give up a peer that has vanished, in microseconds.
const VANISHED: Range<u64> = 15_000_000..60_000_000;

/// The network's events.
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
    /// An end learns that the link is gone.
    Reset(LinkId, Side, i32),
    /// See [`State::half_kill`].
    HalfKill {
        link: LinkId,
        told: bool,
        late: Duration,
    },
    /// What was sent to a vanished peer is sent again, and answered by a reset once that machine is back.
    Probe(LinkId, Side, u32),
}

/// What the network is like.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    /// Microseconds that a segment takes.
    pub latency: Range<u64>,
    /// One send in so many is cut into small segments; likewise receives.
    pub fragments: u64,
    /// Bytes on their way and not yet received, for each direction.
    pub capacity: usize,
    /// Until then, connections are refused.
    pub refused_until: Duration,
    /// So many new connections are reset at one of their first bytes.
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
    /// Arrival of the last segment, and bytes on their way.
    last: Duration,
    bytes: usize,
    /// Bytes carried so far, and the byte at which the link is reset.
    carried: u64,
    reset_at: Option<u64>,
    /// The sender has said that nothing more comes.
    eof: bool,
    /// Nothing that is sent from here on arrives.
    dead: bool,
}

#[derive(Debug)]
struct End {
    machine: MachineId,
    life: u32,
    /// The process has it open, or will when it accepts it.
    open: bool,
    vanished: bool,
    error: i32,
    receive: Option<OpId>,
    send: Option<OpId>,
}

#[derive(Debug)]
pub(crate) struct Link {
    /// Whose connection it is: the loop that made it.
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
    fn name(&mut self, machine: MachineId, life: u32, role: Role) -> io::Result<OwnedFd> {
        // A number may come back at once: what was shut until now is another socket's end.
        self.notice();
        self.socket_last += 1;
        let word = self.socket_last;
        let (name, kept) = self.watch.name(word)?;
        self.sockets.insert(name.as_raw_fd(), Socket { word, _kept: kept, machine, life, role });
        Ok(name)
    }

    pub(crate) fn open_socket(&mut self, machine: MachineId, life: u32) -> io::Result<OwnedFd> {
        if !self.lives(machine, life) {
            return Err(gone("socket"));
        }
        self.name(machine, life, Role::Fresh { connecting: None })
    }

    pub(crate) fn listen(
        &mut self,
        machine: MachineId,
        life: u32,
        address: SocketAddr,
    ) -> io::Result<::io::Listener> {
        if !self.lives(machine, life) {
            return Err(gone("listen"));
        }
        if self.listeners.iter().any(|other| other.open && other.address == address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let socket = self.name(machine, life, Role::Listener(self.listeners.len()))?;
        let (backlog, accepts) = (VecDeque::new(), VecDeque::new());
        self.listeners.push(Listening { machine, life, address, backlog, accepts, open: true });
        Ok(::io::Listener { socket, address })
    }

    /// (peer, own).
    pub(crate) fn addresses(&self, fd: RawFd) -> io::Result<(SocketAddr, SocketAddr)> {
        let Some(Socket { role: Role::End(link, side), .. }) = self.sockets.get(&fd) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let found = &self.links[*link];
        let client = Ipv4Addr::new(10, 0, 1, found.ends[0].machine as u8);
        let client = SocketAddr::from((client, 10_000 + (*link % 50_000) as u16));
        Ok(if *side == 0 { (found.target, client) } else { (client, found.target) })
    }

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

    pub(crate) fn connect(&mut self, op: OpId, fd: RawFd, address: SocketAddr) {
        if let Some(Socket { role: Role::Fresh { connecting }, .. }) = self.sockets.get_mut(&fd) {
            *connecting = Some(op);
        }
        let delay = self.latency();
        self.net_after(delay, Net::Syn { op, fd, address, attempt: 0 });
    }

    fn on_syn(&mut self, op: OpId, fd: RawFd, address: SocketAddr, attempt: u32) {
        if !matches!(self.op(op), Some(Op::Connect)) {
            return;
        }
        let refused = self.now < self.weather.refused_until;
        let listener = self.listeners.iter().position(|found| found.open && found.address == address);
        let machine = self.listeners.iter().rev().find(|found| found.address == address);
        let (client, life) = {
            let found = &self.loops[&op.0];
            (found.machine, found.life)
        };
        match listener {
            Some(listener) if !refused => {
                let Listening { machine, life: server, .. } = self.listeners[listener];
                let end = |machine, life| End {
                    machine,
                    life,
                    open: true,
                    vanished: false,
                    error: 0,
                    receive: None,
                    send: None,
                };
                self.links.push(Link {
                    client: op.0,
                    target: address,
                    established: false,
                    spoken: false,
                    ends: [end(client, life), end(machine, server)],
                    directions: Default::default(),
                });
                let link = self.links.len() - 1;
                self.listeners[listener].backlog.push_back(link);
                self.pair(listener);
                let delay = self.latency();
                self.net_after(delay, Net::Connected { link, op, fd });
            }
            None if machine.is_some_and(|found| !self.machines[found.machine].on) => {
                self.counters.refused += 1;
                if attempt >= SYN_MAX {
                    return self.complete(op, -libc::ETIMEDOUT);
                }
                let delay = Duration::from_secs(1 << attempt);
                self.net_after(delay, Net::Syn { op, fd, address, attempt: attempt + 1 });
            }
            _ => {
                self.counters.refused += 1;
                self.complete_later(op, -libc::ECONNREFUSED);
            }
        }
    }

    fn on_connected(&mut self, link: LinkId, op: OpId, fd: RawFd) {
        let connecting =
            |socket: &Socket| matches!(socket.role, Role::Fresh { connecting: Some(found) } if found == op);
        if self.op(op).is_none() || !self.sockets.get(&fd).is_some_and(connecting) {
            // Given up meanwhile.
            self.links[link].established = true;
            return self.close_end(link, 0);
        }
        self.sockets.get_mut(&fd).expect("just looked at").role = Role::End(link, 0);
        self.links[link].established = true;
        self.counters.connections += 1;
        self.trace("connected", &[link as u64]);
        if self.weather.doomed > 0 {
            self.weather.doomed -= 1;
            let (side, bytes) = (self.random.within(0..2) as Side, self.random.magnitude(1..4000));
            self.reset_after(link, side, bytes);
        }
        self.complete(op, 0);
    }

    pub(crate) fn accept(&mut self, op: OpId, fd: RawFd) {
        match self.sockets.get(&fd).map(|socket| &socket.role) {
            Some(Role::Listener(listener)) => {
                let listener = *listener;
                self.listeners[listener].accepts.push_back(op);
                self.pair(listener);
            }
            _ => self.complete(op, -libc::EINVAL),
        }
    }

    fn pair(&mut self, listener: usize) {
        loop {
            let Listening { machine, life, backlog, accepts, .. } = &mut self.listeners[listener];
            let (machine, life) = (*machine, *life);
            if backlog.is_empty() || accepts.is_empty() {
                return;
            }
            let (link, op) =
                (backlog.pop_front().expect("not empty"), accepts.pop_front().expect("not empty"));
            let name = self.name(machine, life, Role::End(link, 1)).expect("a descriptor");
            self.complete(op, name.into_raw_fd());
        }
    }

    fn end_of(&self, fd: RawFd) -> Option<(LinkId, Side)> {
        match self.sockets.get(&fd)?.role {
            Role::End(link, side) => Some((link, side)),
            _ => None,
        }
    }

    pub(crate) fn receive(&mut self, op: OpId, fd: RawFd) {
        let Some((link, side)) = self.end_of(fd) else { return self.complete(op, 0) };
        self.links[link].ends[side].receive = Some(op);
        self.net_soon(Net::Receive(link, side));
    }

    fn on_receive(&mut self, link: LinkId, side: Side) {
        let End { receive: Some(op), error, .. } = self.links[link].ends[side] else { return };
        let Some(Op::Receive(message)) = self.op(op) else { return };
        let there = self.links[link].directions[1 - side].buffer.len();
        let result = if there > 0 {
            let most = there.min(message.len());
            let count = if self.random.one_in(self.weather.fragments) {
                self.random.within(1..most as u64 + 1) as usize
            } else {
                most
            };
            let direction = &mut self.links[link].directions[1 - side];
            direction.bytes -= count;
            let bytes: Vec<u8> = direction.buffer.drain(..count).collect();
            message.copy_in(&bytes);
            self.net_soon(Net::Send(link, 1 - side));
            count as i32
        } else if error != 0 {
            -error
        } else if self.links[link].directions[1 - side].eof {
            0
        } else {
            return;
        };
        self.links[link].ends[side].receive = None;
        self.trace("received", &[link as u64, side as u64, result as u64]);
        self.complete(op, result);
    }

    pub(crate) fn send(&mut self, op: OpId, fd: RawFd) {
        let Some((link, side)) = self.end_of(fd) else { return self.complete(op, -libc::EPIPE) };
        self.links[link].ends[side].send = Some(op);
        self.net_soon(Net::Send(link, side));
    }

    fn on_send(&mut self, link: LinkId, side: Side) {
        let End { send: Some(op), error, .. } = self.links[link].ends[side] else { return };
        let Some(Op::Send { message, done }) = self.op(op) else { return };
        let length = message.len();
        if error != 0 {
            let result = if done > 0 { done as i32 } else { -error };
            return self.end_send(link, side, op, result);
        }
        let space = self.weather.capacity.saturating_sub(self.links[link].directions[side].bytes);
        let most = space.min(length - done);
        if most == 0 {
            return;
        }
        let fragment = self.random.one_in(self.weather.fragments);
        let count = if fragment { self.random.magnitude(1..most as u64 + 1) as usize } else { most };
        let bytes = message.copy_out(done, count);
        self.carry(link, side, bytes);
        let done = done + count;
        if let Some(Op::Send { done: noted, .. }) =
            self.loops.get_mut(&op.0).and_then(|found| found.ops.get_mut(&op.1))
        {
            *noted = done;
        }
        if done == length || self.random.one_in(8) {
            self.end_send(link, side, op, done as i32);
        } else {
            self.net_soon(Net::Send(link, side));
        }
    }

    fn end_send(&mut self, link: LinkId, side: Side, op: OpId, result: i32) {
        self.links[link].ends[side].send = None;
        self.trace("sent", &[link as u64, side as u64, result as u64]);
        self.complete(op, result);
    }

    /// Puts bytes on their way.
    fn carry(&mut self, link: LinkId, side: Side, mut bytes: Vec<u8>) {
        let direction = &mut self.links[link].directions[side];
        direction.bytes += bytes.len();
        direction.carried += bytes.len() as u64;
        if direction.dead {
            return;
        }
        let reset = direction.reset_at.is_some_and(|at| direction.carried >= at);
        if reset {
            let over = direction.carried - direction.reset_at.take().expect("just looked at");
            bytes.truncate(bytes.len() - (over as usize).min(bytes.len()));
        }
        self.ship(link, side, What::Bytes(bytes));
        if reset {
            self.counters.resets += 1;
            self.trace("reset", &[link as u64, side as u64]);
            self.ship(link, side, What::Reset);
            self.links[link].directions[side].dead = true;
            let delay = self.latency();
            self.net_after(delay, Net::Reset(link, side, libc::ECONNRESET));
        }
    }

    fn ship(&mut self, link: LinkId, side: Side, what: What) {
        let latency = self.latency();
        let at = (self.now + latency).max(self.links[link].directions[side].last);
        let direction = &mut self.links[link].directions[side];
        direction.last = at;
        direction.flight.push_back(Segment { at, what });
        self.at(at, Due::Net(Net::Arrive(link, side)));
    }

    fn on_arrive(&mut self, link: LinkId, side: Side) {
        let Some(segment) = self.links[link].directions[side].flight.front() else { return };
        if segment.at > self.now {
            // It was delayed after its arrival had been planned.
            let at = segment.at;
            return self.at(at, Due::Net(Net::Arrive(link, side)));
        }
        let what = self.links[link].directions[side].flight.pop_front().expect("just looked at").what;
        let receiver = &self.links[link].ends[1 - side];
        let length = if let What::Bytes(bytes) = &what { bytes.len() as u64 } else { 0 };
        let machine = self.machines[receiver.machine];
        let (open, vanished, error) = (receiver.open, receiver.vanished, receiver.error);
        if side == 0 && length > 0 {
            self.observe(link, open && error == 0);
        }
        self.trace("arrive", &[link as u64, side as u64, length]);
        if vanished && !machine.on {
            return self.net_after(Duration::from_millis(200), Net::Probe(link, side, 0));
        }
        match what {
            What::Reset => return self.on_reset(link, 1 - side, libc::ECONNRESET),
            _ if error != 0 => return,
            What::End if open => self.links[link].directions[side].eof = true,
            What::Bytes(bytes) if open => {
                self.links[link].directions[side].buffer.extend(bytes);
            }
            _ => {
                let delay = self.latency();
                return self.net_after(delay, Net::Reset(link, side, libc::ECONNRESET));
            }
        }
        self.net_soon(Net::Receive(link, 1 - side));
    }

    /// Counts what makes a segment to the target interesting.
    fn observe(&mut self, link: LinkId, heard: bool) {
        let client = self.links[link].client;
        if self.links[link + 1..].iter().any(|newer| newer.client == client && newer.established) {
            self.counters.late_segments += 1;
            self.counters.late_segments_heard += u64::from(heard);
        }
        if !self.links[link].spoken {
            self.links[link].spoken = true;
            let still =
                |older: &Link| older.client == client && older.ends[1].open && older.ends[1].error == 0;
            self.counters.reinstatements += u64::from(self.links[..link].iter().any(still));
        }
    }

    fn on_reset(&mut self, link: LinkId, side: Side, error: i32) {
        let end = &mut self.links[link].ends[side];
        if end.error == 0 && end.open {
            end.error = error;
            self.trace("lost", &[link as u64, side as u64, error as u64]);
            self.net_soon(Net::Receive(link, side));
            self.net_soon(Net::Send(link, side));
        }
    }

    fn on_probe(&mut self, link: LinkId, side: Side, attempt: u32) {
        let [sender, receiver] = [side, 1 - side].map(|side| &self.links[link].ends[side]);
        if !sender.open || sender.error != 0 {
            return;
        }
        if self.machines[receiver.machine].on {
            return self.on_reset(link, side, libc::ECONNRESET);
        }
        let delay = Duration::from_millis(200 << attempt.min(6));
        self.net_after(delay, Net::Probe(link, side, attempt + 1));
    }

    pub(crate) fn on_net(&mut self, net: Net) {
        match net {
            Net::Syn { op, fd, address, attempt } => self.on_syn(op, fd, address, attempt),
            Net::Connected { link, op, fd } => self.on_connected(link, op, fd),
            Net::Send(link, side) => self.on_send(link, side),
            Net::Arrive(link, side) => self.on_arrive(link, side),
            Net::Receive(link, side) => self.on_receive(link, side),
            Net::Reset(link, side, error) => self.on_reset(link, side, error),
            Net::HalfKill { link, told, late } => self.half_kill(link, told, late),
            Net::Probe(link, side, attempt) => self.on_probe(link, side, attempt),
        }
    }

    /// A name was shut down or closed.
    pub(crate) fn on_shut(&mut self, word: u64) {
        let Some(socket) = self.sockets.values_mut().find(|socket| socket.word == word) else { return };
        match std::mem::replace(&mut socket.role, Role::Shut) {
            Role::Fresh { connecting: Some(op) } => self.complete_later(op, -libc::ECONNRESET),
            Role::Fresh { connecting: None } | Role::Shut => {}
            Role::Listener(listener) => self.close_listener(listener),
            Role::End(link, side) => self.close_end(link, side),
        }
    }

    fn close_listener(&mut self, listener: usize) {
        self.listeners[listener].open = false;
        for op in std::mem::take(&mut self.listeners[listener].accepts) {
            self.complete_later(op, -libc::EINVAL);
        }
        for link in std::mem::take(&mut self.listeners[listener].backlog) {
            self.ship(link, 1, What::Reset);
            self.links[link].ends[1].open = false;
        }
    }

    /// The process lets go of its end: what it has sent still travels.
    fn close_end(&mut self, link: LinkId, side: Side) {
        let end = &mut self.links[link].ends[side];
        if !end.open {
            return;
        }
        end.open = false;
        let (receive, send, error) = (end.receive.take(), end.send.take(), end.error);
        self.trace("close", &[link as u64, side as u64]);
        if let Some(op) = receive {
            self.complete(op, 0);
        }
        if let Some(op) = send {
            let done = if let Some(Op::Send { done, .. }) = self.op(op) { done } else { 0 };
            self.complete(op, if done > 0 { done as i32 } else { -libc::EPIPE });
        }
        if error == 0 && !self.links[link].directions[side].dead {
            // As Linux: a reset where something was left unread.
            let unread = !self.links[link].directions[1 - side].buffer.is_empty();
            self.ship(link, side, if unread { What::Reset } else { What::End });
        }
    }

    /// The process on `machine` ends: see [`crate::world::Context::kill`].
    pub(crate) fn vanish(&mut self, machine: MachineId, power: bool) {
        let life = self.machines[machine].life;
        let mut words: Vec<u64> = self
            .sockets
            .values()
            .filter(|socket| socket.machine == machine && socket.life == life)
            .map(|socket| socket.word)
            .collect();
        // Numbers of descriptors depend on what else runs in this process.
        words.sort_unstable();
        if !power {
            return words.into_iter().for_each(|word| self.on_shut(word));
        }
        for socket in self.sockets.values_mut().filter(|socket| words.contains(&socket.word)) {
            socket.role = Role::Shut;
        }
        for listener in
            self.listeners.iter_mut().filter(|found| found.machine == machine && found.life == life)
        {
            listener.open = false;
            listener.accepts.clear();
            listener.backlog.clear();
        }
        for link in 0..self.links.len() {
            for side in [0, 1] {
                let end = &mut self.links[link].ends[side];
                if end.machine != machine || end.life != life || !end.open {
                    continue;
                }
                (end.open, end.vanished, end.receive, end.send) = (false, true, None, None);
                // What had left the machine still arrives: some of it.
                let flight = self.links[link].directions[side].flight.len() as u64;
                let left = self.random.within(0..flight + 1) as usize;
                let direction = &mut self.links[link].directions[side];
                direction.flight.truncate(left);
                direction.dead = true;
                let patience = self.micros(VANISHED);
                self.net_after(patience, Net::Reset(link, 1 - side, libc::ETIMEDOUT));
            }
        }
    }

    /// A loop is no more: nothing refers to its operations.
    pub(crate) fn forget(&mut self, id: LoopId) {
        let other = |op: &OpId| op.0 != id;
        for end in self.links.iter_mut().flat_map(|link| &mut link.ends) {
            (end.receive, end.send) = (end.receive.filter(other), end.send.filter(other));
        }
        for listener in &mut self.listeners {
            listener.accepts.retain(other);
        }
        for socket in self.sockets.values_mut() {
            if let Role::Fresh { connecting } = &mut socket.role {
                *connecting = connecting.filter(other);
            }
        }
        self.wakes.retain(|_, op| other(op));
    }

    /// Links that are alive at both ends.
    pub(crate) fn live_links(&self) -> Vec<LinkId> {
        let alive = |link: &Link| link.established && link.ends.iter().all(|end| end.open && end.error == 0);
        (0..self.links.len()).filter(|link| alive(&self.links[*link])).collect()
    }

    /// Resets the link when so many more bytes have been sent by `side`.
    pub(crate) fn reset_after(&mut self, link: LinkId, side: Side, bytes: u64) {
        let direction = &mut self.links[link].directions[side];
        direction.reset_at = Some(direction.carried + bytes);
    }

    /// What is on its way, and what follows it, arrives later.
    pub(crate) fn stall(&mut self, link: LinkId, side: Side, time: Duration) {
        self.counters.stalls += 1;
        self.delay(link, side, time);
    }

    fn delay(&mut self, link: LinkId, side: Side, time: Duration) {
        let now = self.now;
        let direction = &mut self.links[link].directions[side];
        for segment in &mut direction.flight {
            segment.at += time;
        }
        direction.last = direction.last.max(now) + time;
    }

    /// Stops what the initiator sends, and kills the link by half when something has gathered there.
    pub(crate) fn half_kill_after(&mut self, link: LinkId, wait: Duration, told: bool, late: Duration) {
        self.delay(link, 0, wait);
        self.net_after(wait, Net::HalfKill { link, told, late });
    }

    /// The link is dead for who connected, at once if `told` and else when its patience ends; what was sent to the
    /// target arrives `late`, and long after that the target learns that nobody is there.
    fn half_kill(&mut self, link: LinkId, told: bool, late: Duration) {
        let [initiator, target] = &self.links[link].ends;
        if !initiator.open || !target.open || initiator.error != 0 || self.links[link].directions[0].dead {
            return;
        }
        self.counters.half_dead += 1;
        self.trace("half dead", &[link as u64, u64::from(told), late.as_micros() as u64]);
        self.delay(link, 0, late);
        self.links[link].directions[0].dead = true;
        self.links[link].directions[1].dead = true;
        self.links[link].directions[1].flight.clear();
        if told {
            self.on_reset(link, 0, libc::ECONNRESET);
        }
        let patience = self.micros(VANISHED);
        self.net_after(late + patience, Net::Reset(link, 1, libc::ETIMEDOUT));
    }
}
