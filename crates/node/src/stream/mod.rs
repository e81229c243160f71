//! PDUs on a stream socket, for both roles. Between the socket and the PDUs stands a [`Protection`]: bytes that come become
//! headers and data segments, and PDUs become headers and spans to send.

use std::os::fd::AsRawFd;
use std::time::Duration;

use area::Span;
use block::Looks;
use io::{Event, Handle, Incoming, Io, Item, Outgoing, Owner, Token};
use iscsi::machine::{Fatal, Machine, TaskId};
use seal::Channel;

use crate::reassembly::Advance;
use protection::Protection;

pub(crate) mod buffer;
mod plain;
mod protection;
mod sealed;
pub(crate) mod tls;

#[doc(hidden)]
pub use buffer::Buffer;
#[doc(hidden)]
pub use sealed::Receive as SealedReceive;
pub(crate) use sealed::{Prepared, segment_max as sealed_segment_max};

/// Payload gathered into one send: keeps the buffers in use within the cache.
pub(crate) const SEND_BYTES_MAX: usize = 1 << 20;

/// How long to wait for memory when nothing of the connection is under way that could bring it.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// One connection's socket with what is on its way in and out.
pub(crate) struct Stream {
    socket: Handle,
    owner: Owner,
    generation: u32,
    protection: Protection,
    incoming: Option<Box<Incoming>>,
    outgoing: Option<Box<Outgoing>>,
    received: u64,
    sent: u64,
}

/// Bytes that a connection has moved, and how many of them were copied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) copied: u64,
}

/// Which operation of a connection an event belongs to; the low bits of a token's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Receive,
    Send,
    Timer,
    Connect,
}

impl Operation {
    const ALL: [Self; 4] = [Self::Receive, Self::Send, Self::Timer, Self::Connect];

    /// A key that names this operation of one incarnation of an owner.
    pub(crate) fn key(self, generation: u32) -> u32 {
        generation << 2 | self as u32
    }

    /// The operation and incarnation of a key.
    pub(crate) fn of(key: u32) -> (Self, u32) {
        (Self::ALL[(key & 3) as usize], key >> 2)
    }
}

/// Incarnations wrap here: two bits of a key name the operation.
pub(crate) const GENERATION_MASK: u32 = u32::MAX >> 2;

impl Stream {
    /// Takes a connected socket; with `tls`, all of its bytes go through that. `None` when the pool has no memory for a
    /// stream buffer.
    pub(crate) fn new(
        io: &Io,
        socket: Handle,
        owner: Owner,
        generation: u32,
        tls: Option<tls::End>,
    ) -> Option<Self> {
        let protection = match tls {
            None => Protection::none(io.pool())?,
            Some(end) => Protection::tls(end, io.pool())?,
        };
        Some(Self {
            socket,
            owner,
            generation,
            protection,
            incoming: Some(Box::default()),
            outgoing: Some(Box::default()),
            received: 0,
            sent: 0,
        })
    }

    fn token(&self, operation: Operation) -> Token {
        Token { owner: self.owner, key: operation.key(self.generation) }
    }

    /// What was moved so far.
    pub(crate) fn counters(&self) -> Counters {
        Counters { received: self.received, sent: self.sent, copied: self.protection.copied() }
    }

    /// Who looks at payload on its way out, while it may change.
    pub(crate) fn looks(&self) -> Looks {
        self.protection.looks()
    }

    /// How TLS seals, where it does.
    pub(crate) fn tls_suite(&self) -> Option<&'static str> {
        self.protection.tls_suite()
    }

    /// Nothing of ours is with the kernel.
    pub(crate) fn is_idle(&self) -> bool {
        self.incoming.is_some() && self.outgoing.is_some()
    }

    /// Nothing is being sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_empty()) && self.protection.is_drained()
    }

    /// When to pump again although nothing may happen until then: memory is missing for what is to be sent, or keys are to be renewed
    /// or wiped. What is due already, and waits for what is being sent, needs no time.
    pub(crate) fn retry_at(&self, now: Duration) -> Option<Duration> {
        let stalled = self.outgoing.is_some() && self.protection.is_stalled();
        let keys = self.protection.wake_at().filter(|at| *at > now);
        keys.into_iter().chain(stalled.then_some(now + MEMORY_PAUSE)).min()
    }

    /// Whether all data of a task that has arrived is what the peer sent: to be asked before a task ends well.
    pub(crate) fn is_whole(&self, task: TaskId) -> bool {
        self.protection.is_whole(task)
    }

    /// A task has ended; its slot may be used again.
    pub(crate) fn end_task(&mut self, task: TaskId) {
        self.protection.end_task(task);
    }

    /// Seals one more unit of `plain`, a transfer that nobody has asked for yet. False: nothing is left to seal, or no memory.
    pub(crate) fn seal_ahead(&mut self, io: &Io, plain: &Span, prepared: &mut Prepared) -> bool {
        self.protection.seal_ahead(io.pool(), plain, prepared)
    }

    /// Seals one more unit of `plain`, which `task` will send and which stays as it is until `task` ends. False: as above.
    pub(crate) fn seal_task_ahead(&mut self, io: &Io, plain: &Span, task: TaskId) -> bool {
        self.protection.seal_task_ahead(io.pool(), plain, task)
    }

    /// Bytes of what `task` sends that are sealed, sent or not.
    pub(crate) fn sealed_bytes(&self, task: TaskId) -> usize {
        self.protection.sealed_bytes(task)
    }

    /// Bytes that are sealed ahead of the transfers of tasks and wait to be sent.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.protection.waiting_bytes()
    }

    /// What was sealed ahead is what `task` will send: its buffer holds the same bytes.
    pub(crate) fn adopt(&mut self, task: TaskId, prepared: Prepared) {
        self.protection.adopt(task, prepared);
    }

    /// The next byte in either direction belongs to a record. Everything before it has been gathered.
    pub(crate) fn seal(&mut self, channel: Channel, unit: u32, now: Duration) {
        self.protection.seal(channel, unit, now);
    }

    /// Ends both directions; operations in flight come back soon. What protects the stream says so, if the socket takes
    /// that at once.
    pub(crate) fn shutdown(&mut self) {
        if self.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_empty()) {
            let last = self.protection.farewell();
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            if !last.is_empty() {
                // SAFETY: a plain system call on a live descriptor, with bytes that outlive it.
                unsafe { libc::send(self.socket.as_raw_fd(), last.as_ptr().cast(), last.len(), flags) };
            }
        }
        // SAFETY: a plain system call on a live descriptor.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Takes the event of a receive. `Ok(false)`: the peer has ended the stream.
    pub(crate) fn on_received(&mut self, event: Event) -> std::io::Result<bool> {
        let count = event.bytes();
        let Item::Incoming(incoming) = event.item else { unreachable!("a receive returns its spans") };
        self.incoming = Some(incoming);
        let count = count?;
        self.protection.on_received(count);
        self.received += count as u64;
        match self.protection.cut_short() {
            Some(reason) if count == 0 => Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, reason)),
            _ => Ok(count > 0),
        }
    }

    /// Takes the event of a send.
    pub(crate) fn on_sent(&mut self, event: Event) -> std::io::Result<()> {
        let count = event.bytes();
        let Item::Outgoing(mut outgoing) = event.item else { unreachable!("a send returns its queue") };
        if let Ok(count) = count {
            outgoing.advance(count);
            self.sent += count as u64;
        }
        self.outgoing = Some(outgoing);
        count.map(|_| ())
    }

    /// Asks the socket for more, unless that is already under way.
    pub(crate) fn receive(&mut self, io: &mut Io) {
        let Some(mut incoming) = self.incoming.take() else { return };
        incoming.clear();
        let (place, room) = self.protection.places(io.pool(), io.now());
        if let Some(place) = place {
            incoming.push(place);
        }
        if let Some(room) = room {
            incoming.push(room);
        }
        let token = self.token(Operation::Receive);
        io.receive(token, &self.socket, incoming);
    }

    /// Goes on with the bytes that are here, one step of one PDU. `buffer_of` gives the buffer of a task.
    pub(crate) fn advance(
        &mut self,
        io: &Io,
        machine: &mut impl Machine,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<Advance, Fatal> {
        self.protection.advance(io, machine, buffer_of)
    }

    /// Gathers what the machine has to send, and sends it, unless a send is under way. Nothing is added once there are
    /// `bytes` of payload. An error ends the connection; what was gathered before it is still sent.
    pub(crate) fn send(
        &mut self,
        io: &mut Io,
        machine: &mut impl Machine,
        bytes: usize,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<(), Fatal> {
        self.protection.retire(io.now());
        let Some(mut outgoing) = self.outgoing.take() else { return Ok(()) };
        let result = self.protection.gather(io, &mut outgoing, machine, bytes, buffer_of);
        if outgoing.is_empty() {
            self.outgoing = Some(outgoing);
        } else {
            io.send(self.token(Operation::Send), &self.socket, outgoing);
        }
        result
    }
}

#[cfg(test)]
impl Stream {
    /// An initiator offers fresh keys after so many records.
    fn renew_every(&mut self, records: u32) {
        let Protection::Sealed(sealed) = &mut self.protection else { panic!("not sealed") };
        sealed.send.renew_every.0 = records;
    }

    fn generation(&self) -> u16 {
        let Protection::Sealed(sealed) = &self.protection else { panic!("not sealed") };
        sealed.send.generation()
    }
}
