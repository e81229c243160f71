//! PDUs on a stream socket, for both roles: bytes in to where a [`Machine`] says they belong, and PDUs out as
//! headers and spans.
//!
//! Receiving: small PDUs arrive many at a time in the stream buffer and are copied from there; the rest of a
//! large data segment is received straight into the task's buffer. Read-ahead behind a large segment is kept
//! short, so that the next one lands in place too.

use std::os::fd::AsRawFd;
use std::time::Duration;

use area::Span;
use io::{Event, Handle, Incoming, Io, Item, Outgoing, Owner, Token};
use iscsi::digest::{DIGEST_LENGTH, Digest};
use iscsi::machine::{Digests, Fatal, Machine, Payload, Placement, Received, TaskId, Transmit};

/// Stream buffer of a busy connection: batches of small PDUs.
const BUFFER_BYTES: usize = 64 << 10;
/// Stream buffer of a connection that waits: a receive holds it for as long as nothing comes.
const IDLE_BUFFER_BYTES: usize = area::PAGE_BYTES;
/// How long a connection counts as busy after a receive that filled the small buffer.
const BUSY: Duration = Duration::from_secs(1);
/// Read-ahead behind a large segment: a header or two.
const SHORT_READ_AHEAD: usize = 512;
/// A segment from here on is large.
const LARGE_SEGMENT: usize = 16 << 10;
/// Payload gathered into one send: keeps the buffers in use within the cache.
const SEND_BYTES: usize = 1 << 20;
const BHS: usize = 48;
/// Longest header with AHS (TotalAHSLength is one byte of words) and digest.
const HEADER_BYTES_MAX: usize = BHS + 255 * 4 + DIGEST_LENGTH;

const _: () = assert!(HEADER_BYTES_MAX < IDLE_BUFFER_BYTES && IDLE_BUFFER_BYTES < BUFFER_BYTES);

/// What [`Stream::advance`] needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    /// The machine has taken something: drain its events, then call again.
    Events,
    /// More bytes from the socket.
    Starved,
}

/// Where the bytes of a data segment go.
enum Place {
    Task(Span),
    Inline(Vec<u8>),
    Nowhere,
}

/// A data segment that is arriving.
struct Segment {
    place: Place,
    /// Bytes to keep.
    keep: usize,
    /// Bytes of the segment itself.
    length: usize,
    /// Bytes of it that have arrived.
    arrived: usize,
    /// Padding and digest behind it.
    trailer: usize,
    digest: Option<Digest>,
}

/// One connection's socket with what is on its way in and out.
pub(crate) struct Stream {
    socket: Handle,
    owner: Owner,
    generation: u32,
    buffer: Span,
    start: usize,
    end: usize,
    /// The last receive brought more than the small buffer holds.
    filled: bool,
    busy_until: Duration,
    /// Header taken, placement not yet asked: (segment length, digests).
    headed: Option<(usize, Digests)>,
    segment: Option<Segment>,
    /// Bytes that the receive in flight may put into the segment's place.
    direct: usize,
    last_segment: usize,
    incoming: Option<Box<Incoming>>,
    outgoing: Option<Box<Outgoing>>,
    /// Payload bytes received and sent so far, and how many of them were copied.
    pub(crate) counters: Counters,
}

/// What a connection has moved.
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
            buffer: io.pool().take(IDLE_BUFFER_BYTES)?,
            start: 0,
            end: 0,
            filled: false,
            busy_until: Duration::ZERO,
            headed: None,
            segment: None,
            direct: 0,
            last_segment: 0,
            incoming: Some(Box::default()),
            outgoing: Some(Box::default()),
            counters: Counters::default(),
        })
    }

    fn token(&self, operation: Operation) -> Token {
        Token { owner: self.owner, key: operation.key(self.generation) }
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
        let placed = count.min(self.direct);
        if placed > 0 {
            let segment = self.segment.as_mut().expect("received into its place");
            let Place::Task(span) = &segment.place else { unreachable!("only tasks receive in place") };
            if let Some(digest) = &mut segment.digest {
                digest.update(span.slice(segment.arrived, placed).as_slice());
            }
            segment.arrived += placed;
        }
        self.end += count - placed;
        self.filled = self.end >= IDLE_BUFFER_BYTES;
        self.counters.received += count as u64;
        Ok(count > 0)
    }

    /// Takes the event of a send.
    pub(crate) fn on_sent(&mut self, event: Event) -> std::io::Result<()> {
        let count = event.bytes();
        let Item::Outgoing(mut outgoing) = event.item else { unreachable!("a send returns its queue") };
        if let Ok(count) = count {
            outgoing.advance(count);
            self.counters.sent += count as u64;
        }
        self.outgoing = Some(outgoing);
        count.map(|_| ())
    }

    /// Goes on with the bytes that are here, one step of one PDU. `buffer_of` gives the buffer of a task.
    pub(crate) fn advance(
        &mut self,
        machine: &mut impl Machine,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
        now: Duration,
    ) -> Result<Advance, Fatal> {
        if let Some((length, digests)) = self.headed.take() {
            self.begin_segment(machine.placement(), length, digests, buffer_of)?;
        }
        if self.segment.is_some() {
            self.advance_segment(machine, now)
        } else {
            self.advance_header(machine, now)
        }
    }

    fn available(&self) -> usize {
        self.end - self.start
    }

    fn advance_header(&mut self, machine: &mut impl Machine, now: Duration) -> Result<Advance, Fatal> {
        if self.available() < BHS {
            return Ok(Advance::Starved);
        }
        let bytes = &self.buffer.as_slice()[self.start..self.end];
        let ahs_length = usize::from(bytes[4]) * 4;
        let digests = machine.receive_digests();
        let total = BHS + ahs_length + if digests.header { DIGEST_LENGTH } else { 0 };
        if bytes.len() < total {
            return Ok(Advance::Starved);
        }
        let length = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]);
        let bhs: &[u8; BHS] = bytes[..BHS].try_into().expect("48 bytes");
        let ahs = &bytes[BHS..BHS + ahs_length];
        if digests.header && iscsi::digest::header(bhs, ahs) != bytes[BHS + ahs_length..total] {
            return Err(machine.on_header_digest_error());
        }
        if length > machine.data_segment_max() {
            return Err(Fatal::Protocol("data segment longer than MaxRecvDataSegmentLength"));
        }
        machine.on_header(bhs, ahs, now)?;
        self.start += total;
        if length > 0 {
            self.headed = Some((length as usize, digests));
        }
        Ok(Advance::Events)
    }

    fn begin_segment(
        &mut self,
        placement: Placement,
        length: usize,
        digests: Digests,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<(), Fatal> {
        let (place, keep) = match placement {
            Placement::Nothing | Placement::Discard => (Place::Nowhere, 0),
            Placement::Inline => (Place::Inline(Vec::with_capacity(length)), length),
            Placement::Task { task, offset, length: keep } => {
                let buffer = buffer_of(task).ok_or(Fatal::Protocol("data for a task without a buffer"))?;
                let keep = keep as usize;
                assert!(
                    keep <= length && offset as usize + keep <= buffer.len(),
                    "placement outside the buffer"
                );
                (Place::Task(buffer.slice(offset as usize, keep)), keep)
            }
        };
        let padding = length.next_multiple_of(4) - length;
        let trailer = padding + if digests.data { DIGEST_LENGTH } else { 0 };
        let digest = digests.data.then(Digest::new);
        self.last_segment = length;
        self.segment = Some(Segment { place, keep, length, arrived: 0, trailer, digest });
        Ok(())
    }

    fn advance_segment(&mut self, machine: &mut impl Machine, now: Duration) -> Result<Advance, Fatal> {
        let available = self.available();
        let segment = self.segment.as_mut().expect("checked by the caller");
        let bytes = &self.buffer.as_slice()[self.start..self.end];
        let take = available.min(segment.length - segment.arrived);
        let keep = take.min(segment.keep.saturating_sub(segment.arrived));
        match &mut segment.place {
            Place::Task(span) if keep > 0 => span.fill(segment.arrived, &bytes[..keep]),
            Place::Inline(inline) => inline.extend_from_slice(&bytes[..keep]),
            _ => {}
        }
        if let Some(digest) = &mut segment.digest {
            digest.update(&bytes[..take]);
        }
        segment.arrived += take;
        self.counters.copied += keep as u64;
        self.start += take;
        if segment.arrived < segment.length || available - take < segment.trailer {
            return Ok(Advance::Starved);
        }
        let segment = self.segment.take().expect("checked above");
        let trailer = &self.buffer.as_slice()[self.start..self.start + segment.trailer];
        self.start += segment.trailer;
        let intact = segment.digest.is_none_or(|digest| digest_matches(digest, trailer));
        let received = match &segment.place {
            _ if !intact => Received::DigestError,
            Place::Task(_) => Received::Placed,
            Place::Inline(bytes) => Received::Inline(bytes),
            Place::Nowhere => Received::Discarded,
        };
        machine.on_data(received, now)?;
        Ok(Advance::Events)
    }

    /// Changes to the large buffer when the small one was filled, and back when that is a while ago: the answer to a
    /// ping brings an idle session here.
    fn fit_buffer(&mut self, io: &Io) {
        if std::mem::take(&mut self.filled) {
            self.busy_until = io.now() + BUSY;
        }
        let fitting = if io.now() < self.busy_until { BUFFER_BYTES } else { IDLE_BUFFER_BYTES };
        if fitting == self.buffer.len() {
            return;
        }
        // Without memory for a larger one, the small one does.
        let Some(buffer) = io.pool().take(fitting) else { return };
        // What is here is less than a header.
        let rest = &self.buffer.as_slice()[self.start..self.end];
        buffer.fill(0, rest);
        (self.start, self.end) = (0, rest.len());
        self.buffer = buffer;
    }

    /// Asks the socket for more, unless that is already under way.
    pub(crate) fn receive(&mut self, io: &mut Io) {
        let Some(mut incoming) = self.incoming.take() else { return };
        incoming.clear();
        self.fit_buffer(io);
        self.direct = 0;
        let mut short = self.last_segment >= LARGE_SEGMENT;
        if let Some(segment) = &self.segment
            && let Place::Task(span) = &segment.place
            && segment.arrived < segment.keep
        {
            debug_assert_eq!(self.available(), 0, "what was here has been placed");
            self.direct = segment.keep - segment.arrived;
            short |= self.direct >= LARGE_SEGMENT;
            incoming.push(span.slice(segment.arrived, self.direct));
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.start < HEADER_BYTES_MAX {
            // The head of a PDU at the end of the buffer: move it to the front. At most a kilobyte.
            let rest = self.buffer.slice(self.start, self.available());
            self.buffer.fill(0, rest.as_slice());
            (self.start, self.end) = (0, rest.len());
        }
        let room = self.buffer.len() - self.end;
        let room =
            if short { room.min(SHORT_READ_AHEAD.max(HEADER_BYTES_MAX - self.available())) } else { room };
        incoming.push(self.buffer.slice(self.end, room));
        let token = self.token(Operation::Receive);
        io.receive(token, &self.socket, incoming);
    }

    /// Gathers what the machine has to send, and sends it, unless a send is under way.
    pub(crate) fn send(
        &mut self,
        io: &mut Io,
        machine: &mut impl Machine,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) {
        let Some(mut outgoing) = self.outgoing.take() else { return };
        let mut payload = 0;
        while !outgoing.is_full() && payload < SEND_BYTES {
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

fn digest_matches(mut digest: Digest, trailer: &[u8]) -> bool {
    let (padding, received) = trailer.split_at(trailer.len() - DIGEST_LENGTH);
    digest.update(padding);
    received.try_into().is_ok_and(|received| digest.matches(received))
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    use super::*;

    /// Sends `bytes`, lets the stream receive them and takes them out.
    fn pass(io: &mut Io, stream: &mut Stream, peer: &mut UnixStream, bytes: &[u8]) {
        peer.write_all(bytes).unwrap();
        let mut left = bytes.len();
        while left > 0 {
            stream.receive(io);
            let mut events = Vec::new();
            io.turn(&mut events).unwrap();
            for event in events {
                assert!(stream.on_received(event).unwrap());
            }
            left -= stream.available();
            stream.start = stream.end;
        }
        stream.receive(io);
    }

    #[test]
    fn the_large_buffer_is_held_only_while_busy() {
        let mut io = Io::new(area::PoolLimits::default()).unwrap();
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let owner = io.owner();
        let mut stream = Stream::new(&io, Rc::new(ours.into()), owner, 0).unwrap();
        pass(&mut io, &mut stream, &mut peer, &[0; BHS]);
        assert_eq!(stream.buffer.len(), IDLE_BUFFER_BYTES, "a PDU now and then");
        pass(&mut io, &mut stream, &mut peer, &[0; 3 * IDLE_BUFFER_BYTES]);
        assert_eq!(stream.buffer.len(), BUFFER_BYTES, "a batch");
        pass(&mut io, &mut stream, &mut peer, &[0; BHS]);
        assert_eq!(stream.buffer.len(), BUFFER_BYTES, "shortly after a batch");
        stream.busy_until = Duration::ZERO;
        pass(&mut io, &mut stream, &mut peer, &[0; BHS]);
        assert_eq!(stream.buffer.len(), IDLE_BUFFER_BYTES, "long after it");
        assert_eq!(io.pool().lent(), 1, "the other is back");
    }

    #[test]
    fn the_head_of_a_pdu_moves_to_the_other_buffer() {
        let io = Io::new(area::PoolLimits::default()).unwrap();
        let (ours, _peer) = UnixStream::pair().unwrap();
        let owner = io.owner();
        let mut stream = Stream::new(&io, Rc::new(ours.into()), owner, 0).unwrap();
        let head: Vec<u8> = (1..40).collect();
        stream.start = IDLE_BUFFER_BYTES - head.len();
        stream.end = IDLE_BUFFER_BYTES;
        stream.buffer.fill(stream.start, &head);
        stream.filled = true;
        stream.fit_buffer(&io);
        assert_eq!(stream.buffer.len(), BUFFER_BYTES);
        assert_eq!(stream.buffer.as_slice()[stream.start..stream.end], head);
    }
}
