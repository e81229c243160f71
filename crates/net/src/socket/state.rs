//! What the library knows of its sockets: a machine over the rings, without waiting and without descriptors.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use area::ring::{Consumer, Corrupt, Producer};
use inet::step::{self, mark};
use inet::{Address, Endpoint};
use libc::{EAGAIN, EALREADY, ECONNRESET};

use super::area::Lease;
use crate::slot::{Completion, FRAMES, Request, Returned, Span, completion, request};

/// Received bytes given back that are worth a request at once; fewer wait for others, or for a sleep.
const RETURN_BYTES: u32 = 128 << 10;

/// Number and generation of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) number: u32,
    pub(super) generation: u32,
}

pub(super) struct State {
    requests: Producer,
    completions: Consumer,
    direct: Consumer,
    sockets: Vec<Option<Socket>>,
    /// Requests that wait for their answer, and answers that wait to be fetched, by ticket.
    answers: HashMap<u64, Option<Completion>>,
    /// Of the last request, above its low half.
    last_ticket: u64,
    /// Requests for which the ring had no room; bounded by the calls of the application.
    queue: VecDeque<Request>,
    /// Flows with requests that must wait: for room in the ring, or because a send was refused.
    unfinished: Vec<Id>,
    /// Frames to give back.
    returns: Vec<u32>,
    returned_bytes: u32,
    has_pushed: bool,
    /// Work was handed on since the last wait: requests were published, or direct returns taken.
    pub(super) has_handed: bool,
    /// The rings are broken, or the servers are gone.
    pub(super) is_gone: bool,
    /// A thread waits for the rings in the name of all.
    pub(super) is_led: bool,
    /// That thread sleeps on the doorbell.
    pub(super) is_asleep: bool,
    pub(super) followers: usize,
    /// Looks at the rings that have found something.
    pub(super) looks: u64,
    /// Sends of all sockets so far.
    pub(super) sends: u64,
    /// The library's own thread waits until it is notified.
    pub(super) is_attendant_asleep: bool,
    /// That thread is to end.
    pub(super) is_over: bool,
}

pub(super) enum Socket {
    Flow(Flow),
    Listener(Listener),
}

/// One connection.
pub(super) struct Flow {
    generation: u32,
    pub(super) received: VecDeque<Chunk>,
    /// Chunks that the application has read to the end, modulo 2^32.
    read: u32,
    pub(super) is_peer_closed: bool,
    /// Errno of the connection's end, 0 for an orderly one.
    pub(super) ended: Option<i32>,
    /// Sends not released, the first one first.
    flight: VecDeque<Send>,
    pub(super) flight_bytes: usize,
    /// Tickets: of the last send; of the next one to be requested, again if it was refused; of the last one that the
    /// driver has submitted; of the last one released.
    sent: u64,
    next: u64,
    pub(super) submitted: u64,
    pub(super) released: u64,
    /// A send was refused: the next release or ROOM lets it be repeated.
    is_blocked: bool,
    /// Sends that may be requested and not released: as many as were taken when one was refused, and one more with each
    /// release since. Without it each release would repeat all sends that wait.
    window: u64,
    shutdown: Step,
    close: Step,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

struct Send {
    span: Span,
    /// Keeps the area from being taken again.
    _lease: Arc<Lease>,
}

/// Received bytes, in up to two ranges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) frame: u32,
    pub(super) ranges: [[u32; 2]; 2],
}

impl Chunk {
    pub(super) fn bytes(&self) -> usize {
        self.ranges.iter().map(|[_, length]| *length as usize).sum()
    }

    /// Removes bytes from the start.
    pub(super) fn skip(&mut self, mut bytes: usize) {
        for [offset, length] in &mut self.ranges {
            let count = bytes.min(*length as usize);
            *offset += count as u32;
            *length -= count as u32;
            bytes -= count;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    No,
    Wanted,
    /// With the ticket of the request.
    Asked(u64),
    Done,
}

pub(super) struct Listener {
    generation: u32,
    /// Connections that wait for a call of `accept`, or why there will be none: at most one, because one ACCEPT waits.
    pub(super) accepted: Option<Result<(Id, SocketAddr), i32>>,
    accept: u64,
    close: Step,
}

fn address(bytes: [u8; 16], port: u16) -> SocketAddr {
    Endpoint { address: Address(bytes), port }.into()
}

pub(super) fn local_of(completion: &Completion) -> SocketAddr {
    address(completion.local, completion.local_port)
}

fn peer_of(completion: &Completion) -> SocketAddr {
    address(completion.peer, completion.peer_port)
}

fn request_of(id: Id, code: u32) -> Request {
    Request { code, socket: id.number, generation: id.generation, ..Request::default() }
}

impl State {
    pub(super) fn new(requests: Producer, completions: Consumer, direct: Consumer) -> Self {
        Self {
            requests,
            completions,
            direct,
            sockets: Vec::new(),
            answers: HashMap::new(),
            last_ticket: 0,
            queue: VecDeque::new(),
            unfinished: Vec::new(),
            returns: Vec::new(),
            returned_bytes: 0,
            has_pushed: false,
            has_handed: false,
            is_gone: false,
            is_led: false,
            is_asleep: false,
            followers: 0,
            looks: 0,
            sends: 0,
            is_attendant_asleep: false,
            is_over: false,
        }
    }

    fn new_ticket(&mut self) -> u64 {
        self.last_ticket += 1 << 32;
        self.last_ticket
    }

    /// A request whose answer [`State::answer`] returns. `low` goes into the low half of its ticket.
    pub(super) fn ask(&mut self, asked: Request, low: u32) -> u64 {
        let ticket = self.new_ticket() | u64::from(low);
        self.answers.insert(ticket, None);
        self.queue.push_back(Request { ticket, ..asked });
        self.flush();
        ticket
    }

    pub(super) fn answer(&mut self, ticket: u64) -> Option<Completion> {
        let answer = self.answers.get(&ticket).copied().flatten()?;
        self.answers.remove(&ticket);
        Some(answer)
    }

    /// The answer is wanted no more.
    pub(super) fn forget(&mut self, ticket: u64) {
        self.answers.remove(&ticket);
    }

    /// A connection that is to be opened.
    pub(super) fn add_flow(&mut self, id: Id, local: SocketAddr, peer: SocketAddr) {
        *self.place(id.number) = Some(Socket::Flow(Flow {
            generation: id.generation,
            received: VecDeque::new(),
            read: 0,
            is_peer_closed: false,
            ended: None,
            flight: VecDeque::new(),
            flight_bytes: 0,
            sent: 0,
            next: 1,
            submitted: 0,
            released: 0,
            is_blocked: false,
            window: u64::MAX,
            shutdown: Step::No,
            close: Step::No,
            local,
            peer,
        }));
    }

    /// A listener, whose first ACCEPT is requested.
    pub(super) fn add_listener(&mut self, id: Id) {
        let listener = Listener { generation: id.generation, accepted: None, accept: 0, close: Step::No };
        *self.place(id.number) = Some(Socket::Listener(listener));
        self.accept_next(id);
    }

    /// The next connection of a listener; another ACCEPT is requested in its place.
    pub(super) fn accepted(&mut self, id: Id) -> Option<Result<(Id, SocketAddr), i32>> {
        let Some(Socket::Listener(listener)) = self.socket(id) else { return Some(Err(ECONNRESET)) };
        let accepted = listener.accepted.take()?;
        self.accept_next(id);
        Some(accepted)
    }

    fn accept_next(&mut self, id: Id) {
        let ticket = self.new_ticket();
        if let Some(Socket::Listener(listener)) = self.socket(id) {
            listener.accept = ticket;
            self.queue.push_back(Request { ticket, ..request_of(id, request::ACCEPT) });
            self.flush();
        }
    }

    fn place(&mut self, number: u32) -> &mut Option<Socket> {
        let number = number as usize;
        if self.sockets.len() <= number {
            self.sockets.resize_with(number + 1, || None);
        }
        &mut self.sockets[number]
    }

    fn socket(&mut self, id: Id) -> Option<&mut Socket> {
        let socket = self.sockets.get_mut(id.number as usize)?.as_mut()?;
        let generation = match socket {
            Socket::Flow(flow) => flow.generation,
            Socket::Listener(listener) => listener.generation,
        };
        (generation == id.generation).then_some(socket)
    }

    pub(super) fn flow(&mut self, id: Id) -> Option<&mut Flow> {
        match self.socket(id)? {
            Socket::Flow(flow) => Some(flow),
            Socket::Listener(_) => None,
        }
    }

    /// Sends bytes of an area behind those sent before; the flight keeps the area. Returns the ticket.
    pub(super) fn send(&mut self, id: Id, span: Span, lease: Arc<Lease>) -> Option<u64> {
        let flow = self.flow(id)?;
        flow.sent += 1;
        flow.flight_bytes += span.length as usize;
        flow.flight.push_back(Send { span, _lease: lease });
        let ticket = flow.sent;
        self.sends += 1;
        self.flush_flow(id);
        Some(ticket)
    }

    /// FIN behind what was sent.
    pub(super) fn shutdown(&mut self, id: Id) {
        if let Some(flow) = self.flow(id)
            && flow.shutdown == Step::No
        {
            flow.shutdown = Step::Wanted;
            self.flush_flow(id);
        }
    }

    /// The application does not use the socket any more. It is forgotten once all its memory is released.
    pub(super) fn close(&mut self, id: Id) {
        let mut unread = VecDeque::new();
        match self.socket(id) {
            Some(Socket::Flow(flow)) => {
                flow.close = Step::Wanted;
                unread = std::mem::take(&mut flow.received);
                if !unread.is_empty() {
                    // The connection will be reset, and does not wait for room for these.
                    flow.drop_from(flow.next);
                }
            }
            Some(Socket::Listener(listener)) => {
                listener.close = Step::Wanted;
                let accepted = listener.accepted.take();
                let ticket = self.new_ticket();
                if let Some(Socket::Listener(listener)) = self.socket(id) {
                    listener.close = Step::Asked(ticket);
                }
                self.queue.push_back(Request { ticket, ..request_of(id, request::CLOSE) });
                if let Some(Ok((accepted, _))) = accepted {
                    self.close(accepted);
                }
            }
            None => {}
        }
        for chunk in unread {
            self.give_back(chunk.frame, 0);
        }
        self.flush();
        self.flush_flow(id);
        self.settle(id);
    }

    /// RST.
    pub(super) fn abort(&mut self, id: Id) {
        let ticket = self.new_ticket();
        self.queue.push_back(Request { ticket, ..request_of(id, request::ABORT) });
        self.flush();
    }

    /// A frame that the application has read.
    pub(super) fn give_back(&mut self, frame: u32, bytes: usize) {
        self.returns.push(frame);
        self.returned_bytes = self.returned_bytes.saturating_add(bytes as u32);
        if self.returns.len() >= FRAMES || self.returned_bytes >= RETURN_BYTES {
            self.flush_returns();
        }
    }

    /// Requests that give frames back.
    pub(super) fn flush_returns(&mut self) {
        while !self.returns.is_empty() {
            let count = self.returns.len().min(FRAMES);
            let mut numbers = [0; FRAMES];
            for (place, number) in numbers.iter_mut().zip(self.returns.drain(..count)) {
                *place = number;
            }
            let ticket = self.new_ticket();
            let mut asked =
                Request { code: request::RECEIVE, value: count as u32, ticket, ..Request::default() };
            asked.set_frames(numbers);
            self.queue.push_back(asked);
        }
        self.returned_bytes = 0;
        self.flush();
    }

    /// Something is left to be done that no bell announces.
    pub(super) fn is_busy(&self) -> bool {
        !self.queue.is_empty()
            || !self.unfinished.is_empty()
            || !self.returns.is_empty()
            || self.has_flights()
    }

    /// Requests again what was refused, though no release has made room: what was full may be another application's.
    pub(super) fn retry(&mut self) {
        for at in 0..self.unfinished.len() {
            if let Some(flow) = self.flow(self.unfinished[at]).filter(|flow| flow.is_blocked) {
                flow.unblock();
            }
        }
        self.flush_returns();
    }

    // The rings.

    /// Pushes what waits as far as the ring has room.
    fn flush(&mut self) {
        while !self.queue.is_empty() && self.has_room() {
            let asked = self.queue.pop_front().expect("not empty");
            self.push(&asked);
        }
        for id in std::mem::take(&mut self.unfinished) {
            self.flush_flow(id);
        }
    }

    fn has_room(&mut self) -> bool {
        match self.requests.room() {
            Ok(room) => room > 0,
            Err(Corrupt) => {
                self.is_gone = true;
                false
            }
        }
    }

    fn push(&mut self, asked: &Request) {
        self.requests.push(&(*asked).into());
        self.has_pushed = true;
    }

    /// Makes requests visible. Returns whether `inet` sleeps: then ring its bell.
    pub(super) fn publish(&mut self) -> bool {
        if !std::mem::take(&mut self.has_pushed) {
            return false;
        }
        self.has_handed = true;
        mark(step::Step::RequestPublished);
        self.requests.publish()
    }

    /// Requests what a flow wants in its order: sends, then FIN, then close.
    fn flush_flow(&mut self, id: Id) {
        while self.queue.is_empty() && self.has_room() {
            let ticket = self.new_ticket();
            let Some(asked) = self.flow(id).and_then(|flow| flow.next_request(id, ticket)) else { break };
            self.push(&asked);
        }
        let is_unfinished = self.flow(id).is_some_and(|flow| flow.is_unfinished());
        if is_unfinished && !self.unfinished.contains(&id) {
            self.unfinished.push(id);
        }
    }

    /// Announces a sleep; returns whether all has been taken.
    pub(super) fn arm(&mut self) -> bool {
        self.completions.arm().unwrap_or(false)
    }

    pub(super) fn disarm(&mut self) {
        self.completions.disarm();
    }

    /// Takes all completions and direct returns; returns how many.
    pub(super) fn look(&mut self) -> usize {
        let mut count = 0;
        loop {
            match self.completions.take() {
                Ok(Some(slot)) => self.on_completion(&slot.into()),
                Ok(None) => break,
                Err(Corrupt) => {
                    self.is_gone = true;
                    break;
                }
            }
            count += 1;
        }
        let completions = count;
        // A broken ring of the driver costs direct return only.
        while let Ok(Some(slot)) = self.direct.take() {
            mark(step::Step::ReturnTaken);
            let Returned { socket: number, generation, ticket, .. } = slot.into();
            if let Some(flow) = self.flow(Id { number, generation }) {
                flow.submitted = flow.submitted.max(ticket.min(flow.sent));
            }
            count += 1;
        }
        if completions > 0 {
            self.completions.consume();
        }
        if count > completions {
            self.has_handed = true;
            self.direct.consume();
        }
        if completions > 0 || !self.queue.is_empty() {
            self.flush();
        }
        count
    }

    fn on_completion(&mut self, completion: &Completion) {
        let id = Id { number: completion.socket, generation: completion.generation };
        match completion.code {
            completion::DONE => self.on_done(id, completion),
            completion::RECEIVED => {
                let chunk = Chunk { frame: completion.frame, ranges: completion.ranges };
                match self.flow(id) {
                    Some(flow) if flow.close == Step::No => flow.received.push_back(chunk),
                    _ => self.give_back(chunk.frame, chunk.bytes()),
                }
            }
            completion::PEER_CLOSED => {
                if let Some(flow) = self.flow(id) {
                    flow.is_peer_closed = true;
                }
            }
            completion::RELEASED => {
                if let Some(flow) = self.flow(id) {
                    flow.on_released(completion.ticket);
                }
                // The client's share of all sends may have been what was full.
                for at in 0..self.unfinished.len() {
                    if let Some(flow) = self.flow(self.unfinished[at]) {
                        flow.unblock();
                    }
                }
                self.settle(id);
            }
            completion::ROOM => {
                if let Some(flow) = self.flow(id) {
                    flow.unblock();
                }
            }
            completion::ENDED => {
                if let Some(flow) = self.flow(id) {
                    flow.on_ended(completion.status.cast_signed());
                }
                self.settle(id);
            }
            completion::REFUSED => {
                if let Some(flow) = self.flow(id) {
                    flow.on_refused(completion.ticket, completion.status.cast_signed());
                }
                self.flush_flow(id);
                self.settle(id);
            }
            _ => {}
        }
    }

    fn on_done(&mut self, id: Id, completion: &Completion) {
        let (ticket, status) = (completion.ticket, completion.status.cast_signed());
        if let Some(answer) = self.answers.get_mut(&ticket) {
            *answer = Some(*completion);
            return;
        }
        match self.socket(id) {
            Some(Socket::Listener(listener)) if listener.accept == ticket => {
                let is_closed = listener.close != Step::No;
                if status != 0 {
                    if !is_closed {
                        listener.accepted = Some(Err(status));
                    }
                    return;
                }
                let [number, generation] = completion.new_socket;
                let (new, peer) = (Id { number, generation }, peer_of(completion));
                if !is_closed {
                    listener.accepted = Some(Ok((new, peer)));
                }
                self.add_flow(new, local_of(completion), peer);
                if is_closed {
                    self.close(new);
                }
            }
            Some(Socket::Listener(listener)) if listener.close == Step::Asked(ticket) => {
                self.sockets[id.number as usize] = None;
            }
            Some(Socket::Flow(flow)) => {
                flow.on_done(ticket, status);
                self.flush_flow(id);
                self.settle(id);
            }
            _ => {}
        }
    }

    /// Forgets a flow of which nothing is left.
    fn settle(&mut self, id: Id) {
        if let Some(flow) = self.flow(id)
            && flow.close == Step::Done
            && flow.ended.is_some()
            && flow.flight.is_empty()
        {
            self.sockets[id.number as usize] = None;
        }
    }

    /// The sends of closed flows, with their FIN, have not all been acknowledged.
    pub(super) fn lingers(&self) -> bool {
        self.sockets.iter().flatten().any(|socket| match socket {
            Socket::Flow(flow) => {
                flow.close != Step::No
                    && flow.ended.is_none()
                    && (flow.is_unfinished() || !flow.flight.is_empty())
            }
            Socket::Listener(_) => false,
        })
    }

    /// Sends that may be released later: then memory comes back.
    pub(super) fn has_flights(&self) -> bool {
        self.sockets.iter().flatten().any(|socket| match socket {
            Socket::Flow(flow) => !flow.flight.is_empty(),
            Socket::Listener(_) => false,
        })
    }
}

impl Flow {
    /// The first chunk that was received counts as read.
    pub(super) fn take_received(&mut self) -> Option<Chunk> {
        let chunk = self.received.pop_front()?;
        self.read = self.read.wrapping_add(1);
        Some(chunk)
    }

    /// The application has closed its direction.
    pub(super) fn is_shut(&self) -> bool {
        self.shutdown != Step::No || self.close != Step::No
    }

    /// A send is not released, and will be.
    pub(super) fn is_in_flight(&self, ticket: u64) -> bool {
        self.released < ticket && ticket <= self.sent
    }

    fn is_unfinished(&self) -> bool {
        self.next <= self.sent || self.shutdown == Step::Wanted || self.close == Step::Wanted
    }

    fn next_request(&mut self, id: Id, ticket: u64) -> Option<Request> {
        if self.next <= self.sent {
            if self.is_blocked || self.next - self.released > self.window {
                return None;
            }
            let at = self.flight.len() - (self.sent + 1 - self.next) as usize;
            let mut asked = Request { ticket: self.next, ..request_of(id, request::SEND) };
            asked.spans[0] = self.flight[at].span;
            self.next += 1;
            return Some(asked);
        }
        let (step, code) = if self.shutdown == Step::Wanted && self.close == Step::No {
            (&mut self.shutdown, request::SHUTDOWN)
        } else if self.close == Step::Wanted {
            (&mut self.close, request::CLOSE)
        } else {
            return None;
        };
        *step = Step::Asked(ticket);
        Some(Request { ticket, value: self.sent as u32, read: self.read, ..request_of(id, code) })
    }

    fn on_done(&mut self, ticket: u64, status: i32) {
        let is_again = status == EAGAIN;
        for step in [&mut self.shutdown, &mut self.close] {
            if *step == Step::Asked(ticket) {
                *step = if is_again { Step::Wanted } else { Step::Done };
            }
        }
        if self.close == Step::Done && status != 0 {
            // The server does not know the socket: no more will come.
            self.on_ended(status);
        }
    }

    fn on_released(&mut self, ticket: u64) {
        while self.released < ticket.min(self.sent)
            && let Some(send) = self.flight.pop_front()
        {
            self.released += 1;
            self.flight_bytes -= send.span.length as usize;
        }
        self.submitted = self.submitted.max(self.released);
        // A release also says that a repeated request is not needed.
        self.next = self.next.max(self.released + 1);
    }

    fn on_refused(&mut self, ticket: u64, status: i32) {
        if status == EALREADY || ticket <= self.released || ticket > self.sent {
            return;
        }
        if status == EAGAIN {
            self.next = self.next.min(ticket);
            self.window = (ticket - 1 - self.released).max(1);
            self.is_blocked = true;
        } else {
            self.drop_from(ticket);
            self.ended.get_or_insert(status);
        }
    }

    fn unblock(&mut self) {
        self.is_blocked = false;
        self.window = self.window.saturating_add(1);
    }

    fn on_ended(&mut self, status: i32) {
        self.ended = Some(status);
        self.drop_from(self.next);
    }

    /// Sends from a ticket on were never taken, and will not be.
    fn drop_from(&mut self, ticket: u64) {
        while self.sent >= ticket
            && let Some(send) = self.flight.pop_back()
        {
            self.sent -= 1;
            self.flight_bytes -= send.span.length as usize;
        }
        self.next = self.next.min(self.sent + 1);
    }
}
