//! PDUs on a stream socket, for both roles: bytes in through a [`Reassembly`], and PDUs out as headers and spans.

use std::os::fd::AsRawFd;

use area::Span;
use io::{Event, Handle, Incoming, Io, Item, Outgoing, Owner, Token};
use iscsi::digest::Digest;
use iscsi::machine::{Machine, Payload, TaskId, Transmit};

use crate::reassembly::Reassembly;

/// Payload gathered into one send: keeps the buffers in use within the cache.
pub(crate) const SEND_BYTES_MAX: usize = 1 << 20;

/// One connection's socket with what is on its way in and out.
pub(crate) struct Stream {
    socket: Handle,
    owner: Owner,
    generation: u32,
    pub(crate) reassembly: Reassembly,
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
    /// Takes a connected socket. `None` when the pool has no memory for a stream buffer.
    pub(crate) fn new(io: &Io, socket: Handle, owner: Owner, generation: u32) -> Option<Self> {
        Some(Self {
            socket,
            owner,
            generation,
            reassembly: Reassembly::new(io.pool())?,
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
        Counters { received: self.received, sent: self.sent, copied: self.reassembly.copied() }
    }

    /// Nothing of ours is with the kernel.
    pub(crate) fn is_idle(&self) -> bool {
        self.incoming.is_some() && self.outgoing.is_some()
    }

    /// Nothing is being sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_empty())
    }

    /// Ends both directions; operations in flight come back soon.
    pub(crate) fn shutdown(&self) {
        // SAFETY: a plain system call on a live descriptor.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Takes the event of a receive. `Ok(false)`: the peer has ended the stream.
    pub(crate) fn on_received(&mut self, event: Event) -> std::io::Result<bool> {
        let count = event.bytes();
        let Item::Incoming(incoming) = event.item else { unreachable!("a receive returns its spans") };
        self.incoming = Some(incoming);
        let count = count?;
        self.reassembly.on_received(count);
        self.received += count as u64;
        Ok(count > 0)
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
        let (place, room) = self.reassembly.places(io.pool(), io.now());
        if let Some(place) = place {
            incoming.push(place);
        }
        incoming.push(room);
        let token = self.token(Operation::Receive);
        io.receive(token, &self.socket, incoming);
    }

    /// Gathers what the machine has to send, and sends it, unless a send is under way. Nothing is added once there are
    /// `bytes` of payload.
    pub(crate) fn send(
        &mut self,
        io: &mut Io,
        machine: &mut impl Machine,
        bytes: usize,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) {
        let Some(mut outgoing) = self.outgoing.take() else { return };
        let mut payload = 0;
        while !outgoing.is_full() && payload < bytes {
            let Some(transmit) = machine.poll_transmit() else { break };
            payload += append(&mut outgoing, &transmit, &buffer_of);
        }
        if outgoing.is_empty() {
            self.outgoing = Some(outgoing);
        } else {
            io.send(self.token(Operation::Send), &self.socket, outgoing);
        }
    }
}

/// Adds one PDU; returns its payload bytes.
fn append(
    outgoing: &mut Outgoing,
    transmit: &Transmit,
    buffer_of: &impl Fn(TaskId) -> Option<Span>,
) -> usize {
    outgoing.bytes(&transmit.header);
    if transmit.digests.header {
        outgoing.bytes(&iscsi::digest::header(&transmit.header, &[]));
    }
    let mut digest = transmit.digests.data.then(Digest::new);
    let length = match &transmit.payload {
        Payload::None => return 0,
        Payload::Bytes(bytes) => {
            outgoing.bytes(bytes);
            if let Some(digest) = &mut digest {
                digest.update(bytes);
            }
            bytes.len()
        }
        Payload::Task { task, offset, length } => {
            let buffer = buffer_of(*task).expect("a task that sends has a buffer");
            let span = buffer.slice(*offset as usize, *length as usize);
            // Without a digest nobody looks at the bytes: they may be stored ones (`Endpoint::lend`).
            if let Some(digest) = &mut digest {
                digest.update(span.as_slice());
            }
            outgoing.span(span);
            *length as usize
        }
    };
    outgoing.bytes(&[0; 3][..length.next_multiple_of(4) - length]);
    if let Some(mut digest) = digest {
        digest.pad();
        outgoing.bytes(&digest.finish());
    }
    length
}
