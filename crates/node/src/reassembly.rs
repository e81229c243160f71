//! The receiving half of a stream, without I/O: bytes that arrive in pieces of any size become headers and data
//! segments; the [`Machine`] determines where each segment is placed.
//!
//! Many small PDUs arrive at a time in the stream buffer and are copied from there; the rest of a large data segment is
//! received directly into the task's buffer. Read-ahead behind a large segment is short, so that the next segment is
//! also received in place.

use std::time::Duration;

use area::{Pool, Span};
use iscsi::digest::{DIGEST_LENGTH, Digest};
use iscsi::machine::{Digests, Fatal, Machine, Placement, Received, TaskId};

use crate::stream::buffer::{self, Buffer};

/// Read-ahead behind a large segment, in bytes: one header or a few.
const SHORT_READ_AHEAD: usize = 512;
const LARGE_SEGMENT: usize = 16 << 10;
const BHS: usize = 48;
/// Longest header with AHS (TotalAHSLength is one byte of words) and digest.
const HEADER_BYTES_MAX: usize = BHS + 255 * 4 + DIGEST_LENGTH;

const _: () = assert!(HEADER_BYTES_MAX < buffer::IDLE_BYTES);

/// The condition for the next call of [`Reassembly::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// The machine has new events: drain them, then call again.
    Events,
    Starved,
}

#[derive(Debug)]
enum Place {
    Task(Span),
    Inline(Vec<u8>),
    Nowhere,
}

#[derive(Debug)]
struct Segment {
    place: Place,
    /// Bytes of the segment that the machine takes.
    keep: usize,
    /// Bytes of the segment, without padding.
    length: usize,
    arrived: usize,
    /// Bytes of padding and digest after the segment.
    trailer: usize,
    digest: Option<Digest>,
}

#[derive(Debug)]
pub struct Reassembly {
    buffer: Buffer,
    /// A header was processed and its placement not yet requested: (segment length, digests).
    headed: Option<(usize, Digests)>,
    segment: Option<Segment>,
    /// Bytes of the receive in flight that go directly into the segment's place.
    direct: usize,
    last_segment: usize,
    copied: u64,
}

impl Reassembly {
    pub fn new(pool: &Pool) -> Option<Self> {
        Some(Self {
            buffer: Buffer::new(pool)?,
            headed: None,
            segment: None,
            direct: 0,
            last_segment: 0,
            copied: 0,
        })
    }

    /// Payload bytes copied from the stream buffer since the start.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Accounts for `count` bytes received into the [places](Self::places).
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
        self.buffer.on_received(count - placed);
    }

    /// Processes at most one step of one PDU from the received bytes. `buffer_of` returns the buffer of a task.
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

    fn advance_header(&mut self, machine: &mut impl Machine, now: Duration) -> Result<Advance, Fatal> {
        let bytes = self.buffer.bytes();
        if bytes.len() < BHS {
            return Ok(Advance::Starved);
        }
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
        self.buffer.take(total);
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
        let available = self.buffer.len();
        let segment = self.segment.as_mut().expect("checked by the caller");
        let bytes = self.buffer.bytes();
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
        self.buffer.take(take);
        if segment.arrived < segment.length || available - take < segment.trailer {
            return Ok(Advance::Starved);
        }
        let segment = self.segment.take().expect("checked above");
        let trailer = &self.buffer.bytes()[..segment.trailer];
        let intact = segment.digest.is_none_or(|digest| digest_matches(digest, trailer));
        self.buffer.take(segment.trailer);
        let received = match &segment.place {
            _ if !intact => Received::DigestError,
            Place::Task(_) => Received::Placed,
            Place::Inline(bytes) => Received::Inline(bytes),
            Place::Nowhere => Received::Discarded,
        };
        machine.on_data(received, now)?;
        Ok(Advance::Events)
    }

    /// Where the next receive writes, in this order: the rest of a data segment, then the stream buffer. Never empty.
    pub fn places(&mut self, pool: &Pool, now: Duration) -> (Option<Span>, Span) {
        self.direct = 0;
        let mut place = None;
        let mut short = self.last_segment >= LARGE_SEGMENT;
        if let Some(segment) = &self.segment
            && let Place::Task(span) = &segment.place
            && segment.arrived < segment.keep
        {
            debug_assert_eq!(self.buffer.len(), 0, "what was here has been placed");
            self.direct = segment.keep - segment.arrived;
            short |= self.direct >= LARGE_SEGMENT;
            place = Some(span.slice(segment.arrived, self.direct));
        }
        let here = self.buffer.len();
        let room = self.buffer.room(pool, now, HEADER_BYTES_MAX);
        let length = room.len();
        let length = if short { length.min(SHORT_READ_AHEAD.max(HEADER_BYTES_MAX - here)) } else { length };
        (place, room.slice(0, length))
    }

    /// The stream buffer with its content, for the successor of this reassembly.
    pub(crate) fn hand_over(&self) -> Buffer {
        debug_assert!(self.headed.is_none() && self.segment.is_none(), "in the middle of a PDU");
        self.buffer.clone()
    }
}

fn digest_matches(mut digest: Digest, trailer: &[u8]) -> bool {
    let (padding, received) = trailer.split_at(trailer.len() - DIGEST_LENGTH);
    digest.update(padding);
    received.try_into().is_ok_and(|received| digest.matches(received))
}
