//! PDUs on a byte stream, for both roles. A [`Transport`] carries the bytes; a [`Framing`] turns received bytes into
//! headers and data segments, and PDUs into bytes to send: plain, in records of SEAL/1, or within TLS.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use area::Span;
use block::Reader;
use io::{Event, Io, Outgoing, Owner, Token};
use iscsi::machine::{Fatal, Machine, TaskId};
use seal::Channel;

use crate::reassembly::{Advance, Reassembly};
use congestion::Congestion;
use sealed::Sealed;
use socket_buffers::{ReceiveBuffer, SendBuffer, say_once};
use tls::Tls;

pub(crate) mod buffer;
mod congestion;
#[cfg(test)]
pub(crate) mod memory;
mod plain;
mod sealed;
mod socket_buffers;
pub(crate) mod tls;
mod transport;

#[doc(hidden)]
pub use buffer::Buffer;
#[doc(hidden)]
pub use sealed::Receive as SealedReceive;
pub(crate) use sealed::{Prepared, Send as SealedSend, segment_max as sealed_segment_max};
pub(crate) use socket_buffers::BufferState;
pub(crate) use transport::{Socket, Transport};

/// How long what the kernel says of a path is used; to ask takes three system calls.
const PATH_AGE: Duration = Duration::from_millis(20);
/// Bound of the payload bytes of one send: keeps the buffers in use within the cache.
pub(crate) const SEND_BYTES_MAX: usize = 1 << 20;
/// The same to a far peer, where a send lasts until the congestion window has taken it: a small command waits for at most
/// one.
const FAR_SEND_BYTES_MAX: usize = 256 << 10;

/// Interval of retries for memory when no operation of the connection is in flight whose end could free some.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

enum Framing {
    Plain(Box<Reassembly>),
    Sealed(Box<Sealed>),
    Tls(Box<Tls>),
}

/// The byte stream of one connection, with its receive and its send state.
///
/// The owner dispatches events to [`Self::on_received`] and [`Self::on_sent`]; then it calls [`Self::advance`] until
/// that is starved, and drains the machine's events after each call; then [`Self::send`] and [`Self::receive`], which
/// start a send and a receive unless one is in flight. After [`Self::shutdown`] it only dispatches the events of
/// operations in flight, until [`Self::is_idle`].
pub(crate) struct Stream {
    transport: Box<dyn Transport>,
    owner: Owner,
    generation: u32,
    framing: Framing,
    reader: Reader,
    receiving: bool,
    /// The queue of bytes to send; `None` while a send in flight owns it.
    outgoing: Option<Box<Outgoing>>,
    send_buffer: SendBuffer,
    receive_buffer: ReceiveBuffer,
    congestion: Congestion,
    /// The path as last read, and until when that serves.
    looked: (Duration, Option<io::Path>),
    received: u64,
    sent: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) copied: u64,
}

/// The operation of a connection that an event belongs to; the low two bits of a token's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Receive,
    Send,
    Timer,
    Connect,
}

impl Operation {
    const ALL: [Self; 4] = [Self::Receive, Self::Send, Self::Timer, Self::Connect];

    pub(crate) fn key(self, generation: u32) -> u32 {
        generation << 2 | self as u32
    }

    pub(crate) fn of(key: u32) -> (Self, u32) {
        (Self::ALL[(key & 3) as usize], key >> 2)
    }
}

/// Generations wrap here: two bits of a key name the operation.
pub(crate) const GENERATION_MASK: u32 = u32::MAX >> 2;

impl Stream {
    /// Takes a connected transport; with `tls` all bytes pass through TLS. `None`: no memory for a buffer.
    pub(crate) fn new(
        io: &Io,
        transport: Box<dyn Transport>,
        owner: Owner,
        generation: u32,
        tls: Option<tls::End>,
    ) -> Option<Self> {
        let reassembly = Reassembly::new(io.pool())?;
        let (framing, reader) = match tls {
            None => (Framing::Plain(Box::new(reassembly)), transport.reader()),
            Some(end) => (Framing::Tls(Box::new(Tls::new(end, reassembly, io.pool())?)), Reader::Process),
        };
        Some(Self {
            transport,
            owner,
            generation,
            framing,
            reader,
            receiving: false,
            outgoing: Some(Box::default()),
            send_buffer: SendBuffer::default(),
            receive_buffer: ReceiveBuffer::default(),
            congestion: Congestion::default(),
            looked: (Duration::ZERO, None),
            received: 0,
            sent: 0,
        })
    }

    fn token(&self, operation: Operation) -> Token {
        Token { owner: self.owner, key: operation.key(self.generation) }
    }

    pub(crate) fn counters(&self) -> Counters {
        let copied = match &self.framing {
            Framing::Plain(reassembly) => reassembly.copied(),
            Framing::Sealed(sealed) => sealed.receive.copied(),
            Framing::Tls(tls) => tls.copied(),
        };
        Counters { received: self.received, sent: self.sent, copied }
    }

    /// Whether this process or the kernel reads payload as it is sent; the payload may change meanwhile. SEAL/1 reads
    /// each byte once, in the pass that seals it; rustls seals its own copy.
    pub(crate) fn reader(&self) -> Reader {
        self.reader
    }

    /// The path; `None` where there is no network.
    pub(crate) fn path(&mut self, now: Duration) -> Option<io::Path> {
        self.looked = (now + PATH_AGE, self.transport.path());
        self.looked.1
    }

    /// The path as it was at most [`PATH_AGE`] ago.
    fn path_lately(&mut self, now: Duration) -> Option<io::Path> {
        let (until, path) = self.looked;
        if now < until { path } else { self.path(now) }
    }

    pub(crate) fn buffers(&self) -> BufferState {
        socket_buffers::state(&self.send_buffer, &self.receive_buffer)
    }

    pub(crate) fn tls_suite(&self) -> Option<&'static str> {
        match &self.framing {
            Framing::Tls(tls) => tls.suite(),
            Framing::Plain(_) | Framing::Sealed(_) => None,
        }
    }

    /// The sending half of a sealed stream, which supports sealing ahead; `None` for other streams.
    pub(crate) fn sealed_send(&self) -> Option<&SealedSend> {
        match &self.framing {
            Framing::Sealed(sealed) => Some(&sealed.send),
            Framing::Plain(_) | Framing::Tls(_) => None,
        }
    }

    pub(crate) fn sealed_send_mut(&mut self) -> Option<&mut SealedSend> {
        match &mut self.framing {
            Framing::Sealed(sealed) => Some(&mut sealed.send),
            Framing::Plain(_) | Framing::Tls(_) => None,
        }
    }

    /// No operation is in flight; the transport holds no span.
    pub(crate) fn is_idle(&self) -> bool {
        !self.receiving && self.outgoing.is_some()
    }

    /// No send is in flight, and no gathered bytes wait for one.
    pub(crate) fn is_sent(&self) -> bool {
        let is_drained = match &self.framing {
            Framing::Plain(_) => true,
            Framing::Sealed(sealed) => !sealed.send.is_stalled(),
            Framing::Tls(tls) => tls.is_drained(),
        };
        is_drained && self.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_empty())
    }

    /// When to pump without an event: memory is missing for a record to be sent, or keys are due to be renewed or
    /// wiped. A time in the past is omitted: that work waits for the send in flight, whose end pumps.
    pub(crate) fn retry_at(&self, now: Duration) -> Option<Duration> {
        let Framing::Sealed(sealed) = &self.framing else { return None };
        let stalled = self.outgoing.is_some() && sealed.send.is_stalled();
        let keys = sealed.wake_at().filter(|at| *at > now);
        keys.into_iter().chain(stalled.then_some(now + MEMORY_PAUSE)).min()
    }

    /// Whether all received data of a task has been verified; must be checked before a task ends with GOOD.
    pub(crate) fn is_whole(&self, task: TaskId) -> bool {
        match &self.framing {
            Framing::Sealed(sealed) => sealed.receive.is_whole(task),
            Framing::Plain(_) | Framing::Tls(_) => true,
        }
    }

    /// Releases the state of a task that has ended; its slot may be used again.
    pub(crate) fn end_task(&mut self, task: TaskId) {
        if let Framing::Sealed(sealed) = &mut self.framing {
            sealed.end_task(task);
        }
    }

    /// Switches to records: the next byte in either direction belongs to one. All bytes to be sent before must have
    /// been gathered.
    pub(crate) fn seal(&mut self, channel: Channel, unit: u32, now: Duration) {
        let Framing::Plain(reassembly) = &mut self.framing else {
            unreachable!("a connection is sealed once, and not inside TLS")
        };
        let sealed = Sealed::new(channel, unit, reassembly.hand_over(), now);
        (self.framing, self.reader) = (Framing::Sealed(Box::new(sealed)), Reader::Process);
    }

    /// Closes both directions; operations in flight complete soon. TLS tries once to send a close_notify.
    pub(crate) fn shutdown(&mut self) {
        let last = match &mut self.framing {
            Framing::Tls(tls) if self.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_empty()) => {
                tls.close_notify()
            }
            _ => Vec::new(),
        };
        self.transport.close(&last);
    }

    /// As [`Self::shutdown`], without a close_notify.
    pub(crate) fn cut(&mut self) {
        self.transport.close(&[]);
    }

    /// Processes the event of a receive. `Ok(false)`: the peer has closed the stream.
    pub(crate) fn on_received(&mut self, event: Event) -> std::io::Result<bool> {
        self.receiving = false;
        let count = self.transport.on_received(event)?;
        self.received += count as u64;
        match &mut self.framing {
            Framing::Plain(reassembly) => reassembly.on_received(count),
            Framing::Sealed(sealed) => sealed.receive.on_received(count),
            Framing::Tls(tls) => {
                tls.on_received(count);
                if count == 0
                    && let Some(reason) = tls.cut_short()
                {
                    return Err(Error::new(ErrorKind::UnexpectedEof, reason));
                }
            }
        }
        Ok(count > 0)
    }

    pub(crate) fn on_sent(&mut self, event: Event) -> std::io::Result<()> {
        let (outgoing, count) = self.transport.on_sent(event);
        self.outgoing = Some(outgoing);
        self.sent += count? as u64;
        Ok(())
    }

    /// Starts a receive, unless one is in flight.
    pub(crate) fn receive(&mut self, io: &mut Io) {
        if self.receiving {
            return;
        }
        let (pool, now) = (io.pool(), io.now());
        let places = match &mut self.framing {
            Framing::Plain(reassembly) => {
                let (place, room) = reassembly.places(pool, now);
                (place, Some(room))
            }
            Framing::Sealed(sealed) => sealed.receive.places(pool, now),
            Framing::Tls(tls) => (None, Some(tls.room(pool, now))),
        };
        self.receiving = true;
        if self.receive_buffer.is_due(now) {
            self.watch_receive_buffer(now);
        }
        if self.congestion.is_due(now) {
            self.choose_congestion_control(now);
        }
        let token = self.token(Operation::Receive);
        self.transport.receive(io, token, places);
    }

    /// Processes at most one step of one PDU from the received bytes. `buffer_of` returns the buffer of a task.
    pub(crate) fn advance(
        &mut self,
        io: &Io,
        machine: &mut impl Machine,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<Advance, Fatal> {
        match &mut self.framing {
            Framing::Plain(reassembly) => reassembly.advance(machine, buffer_of, io.now()),
            Framing::Sealed(sealed) => sealed.advance(machine, buffer_of, io.now()),
            Framing::Tls(tls) => tls.advance(machine, buffer_of, io.pool(), io.now()),
        }
    }

    fn grow_send_buffer(&mut self, now: Duration) {
        let path = self.path_lately(now);
        let Some(bytes) = self.send_buffer.look(now, path) else { return };
        let result = self.transport.force_send_buffer(bytes);
        if let Some(wanted) = self.send_buffer.on_grown(bytes, result.is_err()) {
            say_once(io::SocketBuffer::Send, wanted);
        }
    }

    /// The user has named a congestion control: no other is chosen.
    pub(crate) fn keep_congestion_control(&mut self) {
        self.congestion.settle();
    }

    fn choose_congestion_control(&mut self, now: Duration) {
        let path = self.path_lately(now);
        if self.congestion.look(now, path) && self.transport.prefer_bbr() {
            tracing::info!("this path loses packets without a queue: sending by BBR");
        }
    }

    fn watch_receive_buffer(&mut self, now: Duration) {
        let path = self.path_lately(now);
        if let Some(wanted) = self.receive_buffer.look(now, self.received, path) {
            say_once(io::SocketBuffer::Receive, wanted);
        }
    }

    /// Gathers the machine's PDUs and sends them, unless a send is in flight. No PDU is added once `bytes` are gathered, with
    /// what the last send has left. An error ends the connection; what was gathered before it is still sent.
    pub(crate) fn send(
        &mut self,
        io: &mut Io,
        machine: &mut impl Machine,
        bytes: usize,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<(), Fatal> {
        let now = io.now();
        if let Framing::Sealed(sealed) = &mut self.framing {
            // Expired keys are wiped, whether or not a send is possible.
            sealed.retire(now);
        }
        let Some(mut outgoing) = self.outgoing.take() else { return Ok(()) };
        let is_far = self.looked.1.is_some_and(|path| path.is_far());
        let bytes = if is_far { bytes.min(FAR_SEND_BYTES_MAX) } else { bytes }.saturating_sub(outgoing.len());
        let result = match &mut self.framing {
            Framing::Plain(_) => {
                plain::gather(&mut outgoing, machine, bytes, &buffer_of);
                Ok(())
            }
            Framing::Sealed(sealed) => {
                sealed.gather(io.pool(), now, &mut outgoing, machine, bytes, buffer_of)
            }
            Framing::Tls(tls) => tls.gather(io.pool(), &mut outgoing, machine, bytes, &buffer_of),
        };
        if outgoing.is_empty() {
            self.outgoing = Some(outgoing);
        } else {
            if self.send_buffer.is_due(now) {
                self.grow_send_buffer(now);
            }
            if self.congestion.is_due(now) {
                self.choose_congestion_control(now);
            }
            let token = self.token(Operation::Send);
            self.transport.send(io, token, outgoing);
        }
        result
    }
}

#[cfg(test)]
impl Stream {
    /// Makes an initiator offer fresh keys after `records` records.
    fn renew_every(&mut self, records: u32) {
        let Framing::Sealed(sealed) = &mut self.framing else { panic!("not sealed") };
        sealed.send.renew_every.0 = records;
    }

    fn generation(&self) -> u16 {
        let Framing::Sealed(sealed) = &self.framing else { panic!("not sealed") };
        sealed.send.generation()
    }
}
