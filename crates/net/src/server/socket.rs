//! Socket management: the sockets of each client, with their states, and what the client owns. It checks every field
//! of a request and calls protocol management to open, use and close connections.

use std::collections::VecDeque;
use std::sync::Arc;

use area::Region;
use inet::step::{Step, mark};
use inet::{
    Address, Algorithm, Capacity, ClientId, ConnectionId, Ended, Endpoint, Event, ListenerId, Options,
    PayloadRef, Refusal, Time,
};
use libc::{
    EADDRINUSE, EADDRNOTAVAIL, EAGAIN, EALREADY, EBADF, ECANCELED, ECONNABORTED, ECONNREFUSED, ECONNRESET,
    EHOSTUNREACH, EINVAL, EISCONN, EMFILE, ENETUNREACH, ENOBUFS, ENOTCONN, EPIPE, ETIMEDOUT,
};

use super::protocol::{Name, Protocol};
use super::received::{Copies, Delivery, View};
use super::{Quota, REGIONS_MAX};
use crate::nic;
use crate::slot::{Completion, FRAMES, Request, SPANS, completion, option, request};

/// While fewer than this part of a client's sockets are free, connections that it has closed give way.
const ROOM_SHARE: usize = 8;

/// Answers that are delivered later, errors by errno.
type Answer = Result<Option<Completion>, i32>;

pub(super) struct Sockets {
    clients: Vec<Option<Client>>,
    quota: Quota,
    frames: u32,
}

struct Client {
    sockets: Vec<Socket>,
    free: Vec<u32>,
    /// By number; those of all clients have different ones, because drivers know them by number only.
    regions: Vec<Option<Memory>>,
    view: View,
    /// Sends not released, of all sockets.
    tickets: u64,
    /// Events of connections for whose next received bytes there is no room. Bounded: each is a frame that the engine
    /// counts as received, or one of two last events of a connection.
    deferred: VecDeque<(Name, Event)>,
}

/// Memory of a client, as the supervisor said.
#[derive(Clone, Copy)]
struct Memory {
    generation: u32,
    bytes: u32,
}

struct Socket {
    generation: u32,
    state: State,
    options: Options,
    /// Tickets of the last send taken, and of the last one released.
    sent: u64,
    released: u64,
    /// Times that received bytes were delivered, modulo 2^32.
    delivered: u32,
    /// The client does not know it any more; it waits for the engine.
    is_closed: bool,
}

#[derive(Clone, Copy)]
enum State {
    Free,
    Open,
    Bound(Endpoint),
    /// With the ticket of an ACCEPT that waits.
    Listening(ListenerId, Option<u64>),
    /// With the ticket of the CONNECT.
    Connecting(ConnectionId, u64),
    Connected(ConnectionId),
    Ended,
}

impl Socket {
    fn new(generation: u32, state: State) -> Self {
        Self {
            generation,
            state,
            options: Options::default(),
            sent: 0,
            released: 0,
            delivered: 0,
            is_closed: false,
        }
    }

    fn connection(&self) -> Result<ConnectionId, i32> {
        match self.state {
            State::Connected(connection) => Ok(connection),
            State::Ended => Err(EPIPE),
            _ => Err(ENOTCONN),
        }
    }

    /// EAGAIN if the last SEND before a SHUTDOWN or CLOSE was refused: its repetition goes before the FIN.
    fn all_sent(&self, asked: &Request) -> Result<(), i32> {
        if asked.value == self.sent as u32 { Ok(()) } else { Err(EAGAIN) }
    }
}

impl Client {
    /// A free socket; there is room for it.
    fn open(&mut self) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.sockets.push(Socket::new(0, State::Free));
            self.sockets.len() as u32 - 1
        });
        let socket = &mut self.sockets[number as usize];
        *socket = Socket::new(socket.generation.wrapping_add(1), State::Open);
        number
    }

    /// Whether one more socket may be opened. A socket that the client has closed is free only when its connection has
    /// ended: the oldest such connection is reset before the last sockets are used.
    fn has_room(&self, id: ClientId, protocol: &mut Protocol<'_>, quota: usize) -> bool {
        let left = (self.free.len() + quota).saturating_sub(self.sockets.len());
        if left <= quota / ROOM_SHARE {
            protocol.reset_orphan(id);
        }
        left > 0
    }

    fn free(&mut self, number: u32) {
        self.sockets[number as usize].state = State::Free;
        self.free.push(number);
    }

    /// Frees a closed socket of which the engine has said all.
    fn settle(&mut self, number: u32) {
        let socket = &self.sockets[number as usize];
        if socket.is_closed && matches!(socket.state, State::Ended) && socket.released >= socket.sent {
            self.free(number);
        }
    }

    /// The socket that a client names.
    fn socket(&mut self, number: u32, generation: u32) -> Result<&mut Socket, i32> {
        let socket = self.sockets.get_mut(number as usize).ok_or(EBADF)?;
        let is_known = socket.generation == generation && !matches!(socket.state, State::Free);
        if is_known && !socket.is_closed { Ok(socket) } else { Err(EBADF) }
    }

    /// The socket of an event, also if the client has closed it.
    fn named(&mut self, name: Name) -> Option<&mut Socket> {
        let socket = self.sockets.get_mut(name.socket as usize)?;
        (socket.generation == name.generation && !matches!(socket.state, State::Free)).then_some(socket)
    }

    /// The spans of a send, all of them checked.
    fn pieces(&self, request: &Request) -> Result<([PayloadRef; SPANS], usize), i32> {
        let mut pieces = [PayloadRef::default(); SPANS];
        let count = request.spans.iter().take_while(|span| span.length > 0).count();
        if count == 0 || request.spans[count..].iter().any(|span| span.length > 0) {
            return Err(EINVAL);
        }
        for (piece, span) in pieces.iter_mut().zip(&request.spans[..count]) {
            let memory = self.regions.get(span.region as usize).copied().flatten().ok_or(EINVAL)?;
            let is_inside = span.offset.checked_add(span.length).is_some_and(|end| end <= memory.bytes);
            if memory.generation != span.generation || !is_inside {
                return Err(EINVAL);
            }
            *piece = PayloadRef {
                region: span.region,
                generation: span.generation,
                offset: span.offset,
                length: span.length,
            };
        }
        Ok((pieces, count))
    }
}

impl Sockets {
    pub(super) fn new(capacity: &Capacity, quota: Quota) -> Self {
        Self { clients: (0..quota.clients).map(|_| None).collect(), quota, frames: capacity.frames }
    }

    /// # Panics
    /// If the client is there already, or there are too many.
    pub(super) fn add_client(&mut self, client: ClientId, copies: Option<Arc<Region>>) {
        let view = match copies {
            Some(memory) => View::Copies(Copies::new(memory, self.quota.sockets)),
            None => View::frames(self.frames),
        };
        let place = &mut self.clients[client as usize];
        assert!(place.is_none(), "a client twice");
        *place = Some(Client {
            sockets: Vec::new(),
            free: Vec::new(),
            regions: Vec::new(),
            view,
            tickets: 0,
            deferred: VecDeque::new(),
        });
    }

    /// Memory of a client, perhaps in place of other memory with the same number. `false` if there is too much, or no
    /// such client.
    pub(super) fn add_region(&mut self, client: ClientId, region: u32, generation: u32, bytes: u32) -> bool {
        let Some(client) = self.clients.get_mut(client as usize).and_then(Option::as_mut) else {
            return false;
        };
        let number = region as usize;
        let is_new = client.regions.get(number).is_none_or(Option::is_none);
        if number >= nic::REGIONS_MAX || is_new && client.regions.iter().flatten().count() >= REGIONS_MAX {
            return false;
        }
        if client.regions.len() <= number {
            client.regions.resize(number + 1, None);
        }
        client.regions[number] = Some(Memory { generation, bytes });
        true
    }

    pub(super) fn client_gone(&mut self, client: ClientId, protocol: &mut Protocol<'_>, now: Time) {
        if self.clients.get_mut(client as usize).is_some_and(|place| place.take().is_some()) {
            protocol.client_gone(client, now);
        }
    }

    /// Sockets of all clients.
    pub(super) fn count(&self) -> usize {
        self.clients.iter().flatten().map(|client| client.sockets.len() - client.free.len()).sum()
    }

    /// Carries out a request of a client, and appends at most [`super::ANSWERS_MAX`] completions. Returns whether it was
    /// refused.
    pub(super) fn on_request(
        &mut self,
        id: ClientId,
        asked: &Request,
        protocol: &mut Protocol<'_>,
        now: Time,
        answers: &mut Vec<Completion>,
    ) -> bool {
        let quota = self.quota;
        let Some(client) = &mut self.clients[id as usize] else { return true };
        let name = Name { client: id, socket: asked.socket, generation: asked.generation };
        let answer = match asked.code {
            request::SOCKET if client.has_room(id, protocol, quota.sockets) => {
                let number = client.open();
                let generation = client.sockets[number as usize].generation;
                Ok(Some(Completion { socket: number, generation, ..done(asked) }))
            }
            request::SOCKET => Err(EMFILE),
            request::BIND => client.bind(asked),
            request::LISTEN => client.listen(name, asked, protocol),
            request::CONNECT => client.connect(name, asked, protocol, now),
            request::ACCEPT => client.accept(name, asked, protocol, quota.sockets),
            request::CLOSE => client.close(asked, protocol, now, answers),
            request::SEND => client.send(asked, protocol, quota.tickets, now),
            request::RECEIVE => client.give_back(id, asked, protocol, now),
            request::SHUTDOWN => client.shutdown(asked, protocol, now),
            request::ABORT => client.abort(asked, protocol, now),
            request::OPTION => client.set_option(asked, protocol),
            _ => Err(EINVAL),
        };
        let is_refused = matches!(answer, Err(EINVAL | EBADF));
        match answer {
            Ok(answer) => answers.extend(answer),
            Err(status) => {
                let code = if asked.code == request::SEND { completion::REFUSED } else { completion::DONE };
                answers.push(Completion { code, status: status as u32, ..done(asked) });
            }
        }
        is_refused
    }

    /// The next completion of a client that is no immediate answer.
    pub(super) fn poll_event(
        &mut self,
        id: ClientId,
        protocol: &mut Protocol<'_>,
        now: Time,
    ) -> Option<Completion> {
        let quota = self.quota.sockets;
        let client = self.clients[id as usize].as_mut()?;
        if let Some(completion) = client.poll_deferred(id, protocol, now) {
            return Some(completion);
        }
        while let Some((name, event)) = protocol.poll_event(id) {
            let is_ordered =
                matches!(event, Event::Received { .. } | Event::PeerClosed { .. } | Event::Ended { .. });
            if is_ordered && client.deferred.iter().any(|(other, _)| *other == name) {
                client.deferred.push_back((name, event));
                continue;
            }
            match client.on_event(id, name, event, protocol, quota, now) {
                Outcome::Nothing => {}
                Outcome::Completion(completion) => return Some(completion),
                Outcome::Deferred => client.deferred.push_back((name, event)),
            }
        }
        None
    }
}

enum Outcome {
    Nothing,
    Completion(Completion),
    /// There is no room for the bytes received.
    Deferred,
}

// Requests.
impl Client {
    fn bind(&mut self, asked: &Request) -> Answer {
        let socket = self.socket(asked.socket, asked.generation)?;
        let State::Open = socket.state else { return Err(EINVAL) };
        socket.state = State::Bound(endpoint(asked));
        Ok(Some(Completion { local: asked.address, local_port: asked.port, ..done(asked) }))
    }

    fn listen(&mut self, name: Name, asked: &Request, protocol: &mut Protocol<'_>) -> Answer {
        let socket = self.socket(asked.socket, asked.generation)?;
        let local = match socket.state {
            State::Open => Endpoint::from(std::net::SocketAddr::from(([0, 0, 0, 0], 0))),
            State::Bound(local) => local,
            _ => return Err(EINVAL),
        };
        let backlog = u16::try_from(asked.value).unwrap_or(u16::MAX).max(1);
        let (listener, local) = protocol.listen(name, local, backlog, socket.options).map_err(errno)?;
        socket.state = State::Listening(listener, None);
        Ok(Some(Completion { local: local.address.0, local_port: local.port, ..done(asked) }))
    }

    fn connect(&mut self, name: Name, asked: &Request, protocol: &mut Protocol<'_>, now: Time) -> Answer {
        let socket = self.socket(asked.socket, asked.generation)?;
        let local = match socket.state {
            State::Open => Endpoint::default(),
            State::Bound(local) => local,
            State::Connecting(..) => return Err(EALREADY),
            State::Connected(_) => return Err(EISCONN),
            _ => return Err(EINVAL),
        };
        if asked.port == 0 || endpoint(asked).address.is_unspecified() {
            return Err(EINVAL);
        }
        let connection =
            protocol.connect(name, local, endpoint(asked), socket.options, now).map_err(errno)?;
        socket.state = State::Connecting(connection, asked.ticket);
        Ok(None)
    }

    fn accept(&mut self, name: Name, asked: &Request, protocol: &mut Protocol<'_>, quota: usize) -> Answer {
        let socket = self.socket(asked.socket, asked.generation)?;
        match socket.state {
            State::Listening(listener, None) => {
                socket.state = State::Listening(listener, Some(asked.ticket));
                self.try_accept(name, protocol, quota)
            }
            State::Listening(_, Some(_)) => Err(EALREADY),
            _ => Err(EINVAL),
        }
    }

    /// Answers the ACCEPT that waits, if a connection is there.
    fn try_accept(&mut self, name: Name, protocol: &mut Protocol<'_>, quota: usize) -> Answer {
        let has_room = self.has_room(name.client, protocol, quota);
        let Some(socket) = self.named(name) else { return Ok(None) };
        let State::Listening(listener, Some(ticket)) = socket.state else { return Ok(None) };
        let options = socket.options;
        if !has_room {
            socket.state = State::Listening(listener, None);
            return Err(EMFILE);
        }
        let Some(connection) = protocol.accept(listener) else { return Ok(None) };
        socket.state = State::Listening(listener, None);
        let number = self.open();
        let new = &mut self.sockets[number as usize];
        (new.state, new.options) = (State::Connected(connection), options);
        let generation = new.generation;
        protocol.name(connection, Name { client: name.client, socket: number, generation });
        Ok(Some(with_ends(
            Completion { ticket, new_socket: [number, generation], ..of(name, completion::DONE) },
            protocol.ends(connection),
        )))
    }

    fn close(
        &mut self,
        asked: &Request,
        protocol: &mut Protocol<'_>,
        now: Time,
        answers: &mut Vec<Completion>,
    ) -> Answer {
        let is_deferred = self.deferred.iter().any(|(name, event)| {
            (name.socket, name.generation) == (asked.socket, asked.generation)
                && matches!(event, Event::Received { .. })
        });
        let socket = self.socket(asked.socket, asked.generation)?;
        let mut cancelled = None;
        match socket.state {
            State::Free | State::Open | State::Bound(_) => socket.state = State::Ended,
            State::Listening(listener, accept) => {
                protocol.close_listener(listener, now);
                socket.state = State::Ended;
                cancelled = accept;
            }
            State::Connecting(connection, ticket) => {
                // An error means that the connection has ended, and its last event is on its way.
                let _ = protocol.abort(connection, now);
                socket.state = State::Connected(connection);
                cancelled = Some(ticket);
            }
            // RFC 2525 §2.17, as with Linux: RST instead of FIN says that received bytes were discarded.
            State::Connected(connection) if is_deferred || asked.read != socket.delivered => {
                let _ = protocol.abort(connection, now);
            }
            State::Connected(connection) => {
                socket.all_sent(asked)?;
                let _ = protocol.close(connection, now);
            }
            State::Ended => {}
        }
        socket.is_closed = true;
        if let Some(ticket) = cancelled {
            answers.push(Completion { ticket, status: ECANCELED as u32, ..done(asked) });
        }
        self.settle(asked.socket);
        Ok(Some(done(asked)))
    }

    fn shutdown(&mut self, asked: &Request, protocol: &mut Protocol<'_>, now: Time) -> Answer {
        let socket = self.socket(asked.socket, asked.generation)?;
        let connection = socket.connection()?;
        socket.all_sent(asked)?;
        protocol.shutdown(connection, now).map_err(errno)?;
        Ok(Some(done(asked)))
    }

    fn abort(&mut self, asked: &Request, protocol: &mut Protocol<'_>, now: Time) -> Answer {
        let connection = self.socket(asked.socket, asked.generation)?.connection()?;
        protocol.abort(connection, now).map_err(errno)?;
        Ok(Some(done(asked)))
    }

    fn send(&mut self, asked: &Request, protocol: &mut Protocol<'_>, quota: u64, now: Time) -> Answer {
        let (pieces, count) = self.pieces(asked)?;
        let left = quota.saturating_sub(self.tickets);
        let socket = self.socket(asked.socket, asked.generation)?;
        let connection = socket.connection()?;
        if asked.ticket <= socket.sent {
            return Err(EALREADY);
        }
        // A socket may have one send, and as many as are left: so a peer that acknowledges nothing does not take those of
        // all other connections of its application (a dynamic threshold).
        let own = socket.sent - socket.released;
        let is_full = own > 0 && own >= left;
        // A send behind one that was refused is refused as well: bytes stay in order.
        if is_full || asked.ticket != socket.sent + 1 {
            return Err(EAGAIN);
        }
        mark(Step::Tcp);
        protocol.send(connection, asked.ticket, &pieces[..count], now).map_err(|refusal| match refusal {
            Refusal::Full => EAGAIN,
            refusal => errno(refusal),
        })?;
        socket.sent = asked.ticket;
        self.tickets += 1;
        Ok(None)
    }

    fn give_back(&mut self, id: ClientId, asked: &Request, protocol: &mut Protocol<'_>, now: Time) -> Answer {
        if asked.value as usize > FRAMES {
            return Err(EINVAL);
        }
        let mut answer = Ok(None);
        for number in &asked.frames()[..asked.value as usize] {
            match self.view.give_back(*number) {
                Ok(Some(frame)) => {
                    if protocol.release(id, frame, now).is_err() {
                        answer = Err(EINVAL);
                    }
                }
                Ok(None) => {}
                Err(()) => answer = Err(EINVAL),
            }
        }
        answer
    }

    fn set_option(&mut self, asked: &Request, protocol: &mut Protocol<'_>) -> Answer {
        let socket = self.socket(asked.socket, asked.generation)?;
        let mut options = socket.options;
        let value = asked.ticket as u32;
        match (asked.value, value) {
            (option::NO_DELAY, _) => options.no_delay = value != 0,
            (option::KEEP_ALIVE, _) => options.keep_alive_s = value,
            (option::CONGESTION, 0) => options.algorithm = Algorithm::NewReno,
            (option::CONGESTION, 1) => options.algorithm = Algorithm::Cubic,
            _ => return Err(EINVAL),
        }
        match socket.state {
            State::Connecting(connection, _) | State::Connected(connection) => {
                protocol.set_options(connection, options).map_err(errno)?;
            }
            State::Open | State::Bound(_) => {}
            // Connections that wait to be accepted have the options of their listener's start.
            State::Free | State::Listening(..) | State::Ended => return Err(EINVAL),
        }
        socket.options = options;
        Ok(Some(done(asked)))
    }
}

// Events.
impl Client {
    fn on_event(
        &mut self,
        id: ClientId,
        name: Name,
        event: Event,
        protocol: &mut Protocol<'_>,
        quota: usize,
        now: Time,
    ) -> Outcome {
        if let Event::Received { frame, start, length, offset, .. } = event {
            let is_read = self.named(name).is_some_and(|socket| !socket.is_closed);
            if !is_read {
                let _ = protocol.release(id, frame, now);
                return Outcome::Nothing;
            }
            let ranges = protocol.ranges(frame, start, length);
            let (frame, ranges) = match self.view.deliver(name.socket, frame, ranges, protocol) {
                Some(Delivery::Frame(frame, ranges)) => (frame, ranges),
                Some(Delivery::Copy(number, ranges)) => {
                    let _ = protocol.release(id, frame, now);
                    (number, ranges)
                }
                None => return Outcome::Deferred,
            };
            protocol.count_received(length, matches!(self.view, View::Copies(_)));
            if let Some(socket) = self.named(name) {
                socket.delivered = socket.delivered.wrapping_add(1);
            }
            return Outcome::Completion(Completion {
                frame,
                ranges,
                offset,
                ..of(name, completion::RECEIVED)
            });
        }
        let Some(socket) = self.named(name) else { return Outcome::Nothing };
        let completion = match event {
            Event::Received { .. } => return Outcome::Nothing,
            Event::Connected { connection } => {
                let State::Connecting(_, ticket) = socket.state else { return Outcome::Nothing };
                socket.state = State::Connected(connection);
                with_ends(Completion { ticket, ..of(name, completion::DONE) }, protocol.ends(connection))
            }
            Event::Incoming { .. } => {
                let State::Listening(_, Some(ticket)) = socket.state else { return Outcome::Nothing };
                match self.try_accept(name, protocol, quota) {
                    Ok(None) => return Outcome::Nothing,
                    Ok(Some(completion)) => completion,
                    Err(status) => Completion { ticket, status: status as u32, ..of(name, completion::DONE) },
                }
            }
            Event::PeerClosed { .. } => of(name, completion::PEER_CLOSED),
            Event::Room { .. } => of(name, completion::ROOM),
            Event::Released { ticket, .. } => {
                let released = ticket.min(socket.sent);
                let count = released.saturating_sub(socket.released);
                socket.released = socket.released.max(released);
                self.tickets -= count;
                self.settle(name.socket);
                Completion { ticket, ..of(name, completion::RELEASED) }
            }
            Event::Ended { why, .. } => {
                let status = status_of(why) as u32;
                let former = std::mem::replace(&mut socket.state, State::Ended);
                self.settle(name.socket);
                match former {
                    State::Connecting(_, ticket) => {
                        Completion { ticket, status, ..of(name, completion::DONE) }
                    }
                    _ => Completion { status, ..of(name, completion::ENDED) },
                }
            }
        };
        Outcome::Completion(completion)
    }

    /// The first of the deferred events whose connection has room again.
    fn poll_deferred(&mut self, id: ClientId, protocol: &mut Protocol<'_>, now: Time) -> Option<Completion> {
        let mut blocked: Vec<Name> = Vec::new();
        let mut at = 0;
        while let Some(&(name, event)) = self.deferred.get(at) {
            if blocked.contains(&name) {
                at += 1;
                continue;
            }
            match self.on_event(id, name, event, protocol, 0, now) {
                Outcome::Deferred => {
                    blocked.push(name);
                    at += 1;
                }
                Outcome::Nothing => drop(self.deferred.remove(at)),
                Outcome::Completion(completion) => {
                    self.deferred.remove(at);
                    return Some(completion);
                }
            }
        }
        None
    }
}

fn endpoint(asked: &Request) -> Endpoint {
    Endpoint { address: Address(asked.address), port: asked.port }
}

/// The answer to a request.
fn done(asked: &Request) -> Completion {
    Completion {
        code: completion::DONE,
        socket: asked.socket,
        generation: asked.generation,
        ticket: asked.ticket,
        ..Completion::default()
    }
}

fn of(name: Name, code: u32) -> Completion {
    Completion { code, socket: name.socket, generation: name.generation, ..Completion::default() }
}

fn with_ends(completion: Completion, (local, peer): (Endpoint, Endpoint)) -> Completion {
    Completion {
        local: local.address.0,
        local_port: local.port,
        peer: peer.address.0,
        peer_port: peer.port,
        ..completion
    }
}

fn errno(refusal: Refusal) -> i32 {
    match refusal {
        Refusal::InUse => EADDRINUSE,
        Refusal::NotOurs => EADDRNOTAVAIL,
        Refusal::NoRoute => ENETUNREACH,
        Refusal::Full => ENOBUFS,
        Refusal::NotConnected => ENOTCONN,
        Refusal::Closed => EPIPE,
        Refusal::Unknown => EBADF,
        Refusal::Invalid => EINVAL,
    }
}

fn status_of(why: Ended) -> i32 {
    match why {
        Ended::Closed => 0,
        Ended::Reset => ECONNRESET,
        Ended::Refused => ECONNREFUSED,
        Ended::TimedOut => ETIMEDOUT,
        Ended::Unreachable => EHOSTUNREACH,
        Ended::Aborted => ECONNABORTED,
    }
}
