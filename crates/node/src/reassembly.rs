//! The receiving half of a stream, without its socket: bytes that arrive in pieces of any size become headers and data
//! segments, each segment where the [`Machine`] says it belongs.
//!
//! Small PDUs arrive many at a time in the stream buffer and are copied from there; the rest of a large data segment is
//! received straight into the task's buffer. Read-ahead behind a large segment is kept short, so that the next one lands
//! in place too.

use std::time::Duration;

use area::{Pool, Span};
use iscsi::digest::{DIGEST_LENGTH, Digest};
use iscsi::machine::{Digests, Fatal, Machine, Placement, Received, TaskId};

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
const BHS: usize = 48;
/// Longest header with AHS (TotalAHSLength is one byte of words) and digest.
const HEADER_BYTES_MAX: usize = BHS + 255 * 4 + DIGEST_LENGTH;

const _: () = assert!(HEADER_BYTES_MAX < IDLE_BUFFER_BYTES && IDLE_BUFFER_BYTES < BUFFER_BYTES);

/// What [`Reassembly::advance`] needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// The machine has taken something: drain its events, then call again.
    Events,
    /// More bytes from the socket.
    Starved,
}

/// Where the bytes of a data segment go.
#[derive(Debug)]
enum Place {
    Task(Span),
    Inline(Vec<u8>),
    Nowhere,
}

/// A data segment that is arriving.
#[derive(Debug)]
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

/// What is on its way in, of one connection.
#[derive(Debug)]
pub struct Reassembly {
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
    copied: u64,
}

impl Reassembly {
    /// Nothing received yet. `None` when the pool has no memory for a stream buffer.
    pub fn new(pool: &Pool) -> Option<Self> {
        Some(Self {
            buffer: pool.take(IDLE_BUFFER_BYTES)?,
            start: 0,
            end: 0,
            filled: false,
            busy_until: Duration::ZERO,
            headed: None,
            segment: None,
            direct: 0,
            last_segment: 0,
            copied: 0,
        })
    }

    /// Payload bytes so far that had to be copied into their place.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Takes the `count` bytes that were received into the [places](Self::places).
    pub fn on_received(&mut self, count: usize) {
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
    }

    /// Goes on with the bytes that are here, one step of one PDU. `buffer_of` gives the buffer of a task.
    pub fn advance(
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
        let bytes = self.buffer.range(self.start..self.end);
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
        let bytes = self.buffer.range(self.start..self.end);
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
        self.copied += keep as u64;
        self.start += take;
        if segment.arrived < segment.length || available - take < segment.trailer {
            return Ok(Advance::Starved);
        }
        let segment = self.segment.take().expect("checked above");
        let trailer = self.buffer.range(self.start..self.start + segment.trailer);
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
    fn fit_buffer(&mut self, pool: &Pool, now: Duration) {
        if std::mem::take(&mut self.filled) {
            self.busy_until = now + BUSY;
        }
        let fitting = if now < self.busy_until { BUFFER_BYTES } else { IDLE_BUFFER_BYTES };
        if fitting == self.buffer.len() {
            return;
        }
        // Without memory for a larger one, the small one does.
        let Some(buffer) = pool.take(fitting) else { return };
        // What is here is less than a header.
        let rest = self.buffer.range(self.start..self.end);
        buffer.fill(0, rest);
        (self.start, self.end) = (0, rest.len());
        self.buffer = buffer;
    }

    /// Where the next bytes belong, in this order: the rest of a data segment, then the stream buffer. Never empty.
    pub fn places(&mut self, pool: &Pool, now: Duration) -> (Option<Span>, Span) {
        self.fit_buffer(pool, now);
        self.direct = 0;
        let mut place = None;
        let mut short = self.last_segment >= LARGE_SEGMENT;
        if let Some(segment) = &self.segment
            && let Place::Task(span) = &segment.place
            && segment.arrived < segment.keep
        {
            debug_assert_eq!(self.available(), 0, "what was here has been placed");
            self.direct = segment.keep - segment.arrived;
            short |= self.direct >= LARGE_SEGMENT;
            place = Some(span.slice(segment.arrived, self.direct));
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
        (place, self.buffer.slice(self.end, room))
    }
}

fn digest_matches(mut digest: Digest, trailer: &[u8]) -> bool {
    let (padding, received) = trailer.split_at(trailer.len() - DIGEST_LENGTH);
    digest.update(padding);
    received.try_into().is_ok_and(|received| digest.matches(received))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `count` bytes at `now`, takes them out, and asks for more.
    fn pass(stream: &mut Reassembly, pool: &Pool, now: Duration, count: usize) {
        let mut left = count;
        while left > 0 {
            let (_, room) = stream.places(pool, now);
            stream.on_received(left.min(room.len()));
            left -= stream.available();
            stream.start = stream.end;
        }
        stream.places(pool, now);
    }

    #[test]
    fn the_large_buffer_is_held_only_while_busy() {
        let pool = Pool::new(area::PoolLimits::default());
        let mut stream = Reassembly::new(&pool).unwrap();
        let now = Duration::from_secs(100);
        pass(&mut stream, &pool, now, BHS);
        assert_eq!(stream.buffer.len(), IDLE_BUFFER_BYTES, "a PDU now and then");
        pass(&mut stream, &pool, now, 3 * IDLE_BUFFER_BYTES);
        assert_eq!(stream.buffer.len(), BUFFER_BYTES, "a batch");
        pass(&mut stream, &pool, now + BUSY / 2, BHS);
        assert_eq!(stream.buffer.len(), BUFFER_BYTES, "shortly after a batch");
        pass(&mut stream, &pool, now + BUSY, BHS);
        assert_eq!(stream.buffer.len(), IDLE_BUFFER_BYTES, "long after it");
        assert_eq!(pool.lent(), 1, "the other is back");
    }

    #[test]
    fn the_head_of_a_pdu_moves_to_the_other_buffer() {
        let pool = Pool::new(area::PoolLimits::default());
        let mut stream = Reassembly::new(&pool).unwrap();
        let head: Vec<u8> = (1..40).collect();
        stream.start = IDLE_BUFFER_BYTES - head.len();
        stream.end = IDLE_BUFFER_BYTES;
        stream.buffer.fill(stream.start, &head);
        stream.filled = true;
        stream.fit_buffer(&pool, Duration::ZERO);
        assert_eq!(stream.buffer.len(), BUFFER_BYTES);
        assert_eq!(stream.buffer.as_slice()[stream.start..stream.end], head);
    }
}
