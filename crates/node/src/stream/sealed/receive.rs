//! Receiving records: no field of a head is used before the head is opened; units are opened in place.

use std::time::Duration;

use area::{Pool, Span};
use iscsi::machine::{Fatal, Machine, Placement, Received, TaskId};
use seal::{Broken, Descriptor, Head, Kind, Opener};

use super::track::{Tracks, Unit};
use super::{broken, segment_max};
use crate::reassembly::Advance;
use crate::stream::buffer::{self, Buffer};

/// Prefix and the longest sealed head, in bytes.
const RECORD_HEAD_MAX: usize = seal::PREFIX_BYTES + seal::HEAD_BYTES_MAX + seal::TAG_BYTES;
/// Prefix, BHS and tag: a head without descriptors, in bytes.
const RECORD_HEAD_MIN: usize = seal::PREFIX_BYTES + 48 + seal::TAG_BYTES;
/// Bytes from which a body is large: only a head is read ahead behind it; the next body arrives in place.
const LARGE_BODY: usize = 16 << 10;
/// Bytes received in place by one receive: they are still cached when they are opened.
const DIRECT_BYTES_MAX: usize = 256 << 10;

const _: () = assert!(RECORD_HEAD_MAX < buffer::IDLE_BYTES);

/// `Task`: `unit` is being received, `begun` of the head's descriptors have begun. `Inline`: a single unit.
enum Place {
    Task { task: TaskId, span: Span, unit: Option<Unit>, begun: usize },
    Inline(Vec<u8>, Descriptor),
    Nowhere,
}

struct Body {
    place: Place,
    /// Offset of the next byte to arrive, in the task's buffer if there is one; and the end of the bytes to keep.
    at: usize,
    keep: usize,
    /// Offset of the end of the body.
    stop: usize,
}

/// The receiving state. Public for the fuzzer.
pub struct Receive {
    opener: Opener,
    unit: usize,
    buffer: Buffer,
    /// The opened head, and the bytes of it that are header.
    head: Vec<u8>,
    header: usize,
    /// Set when the opened head is of a control record that has not been taken.
    control: Option<Kind>,
    /// Length of the body, when the header was processed and its placement not yet requested.
    headed: Option<usize>,
    body: Option<Body>,
    /// Bytes of the receive in flight that go directly into the body's place.
    direct: usize,
    /// Bytes received there and not yet processed.
    placed: usize,
    /// Bytes to read ahead behind a body; bounded behind a large one, since the next record is probably similar.
    ahead: usize,
    tracks: Tracks,
    copied: u64,
}

impl Receive {
    /// Starts after the last byte of `buffer`; `unit` is the agreed size in bytes.
    pub fn new(opener: Opener, unit: usize, buffer: Buffer) -> Self {
        Self {
            opener,
            unit,
            buffer,
            head: Vec::with_capacity(RECORD_HEAD_MAX),
            header: 0,
            control: None,
            headed: None,
            body: None,
            direct: 0,
            placed: 0,
            ahead: usize::MAX,
            tracks: Tracks::default(),
            copied: 0,
        }
    }

    /// The control record that the last [`Self::advance`] received: its kind and message for the connection's
    /// [`seal::Renewal`], and the opener. Must be called after each `advance`.
    pub fn control(&mut self) -> Option<(Kind, &[u8], &mut Opener)> {
        let kind = self.control.take()?;
        Some((kind, &self.head, &mut self.opener))
    }

    pub(super) fn opener(&mut self) -> &mut Opener {
        &mut self.opener
    }

    pub(super) fn retire_at(&self) -> Option<Duration> {
        self.opener.retire_at()
    }

    /// Payload bytes copied from the stream buffer since the start.
    pub(in crate::stream) fn copied(&self) -> u64 {
        self.copied
    }

    pub fn end_task(&mut self, task: TaskId) {
        self.tracks.end(task);
    }

    /// Whether every unit of the task's data that has begun has been opened.
    pub fn is_whole(&self, task: TaskId) -> bool {
        self.tracks.is_whole(task)
    }

    /// Where the next receive writes, in this order. At least one of the two is present.
    pub fn places(&mut self, pool: &Pool, now: Duration) -> (Option<Span>, Option<Span>) {
        self.direct = 0;
        let mut place = None;
        if let Some(Body { place: Place::Task { span, .. }, at, keep, .. }) = &self.body
            && at < keep
        {
            debug_assert_eq!(self.buffer.len(), 0, "what was here has been placed");
            self.direct = (keep - at).min(DIRECT_BYTES_MAX);
            place = Some(span.slice(*at, self.direct));
            if self.direct < keep - at {
                return (place, None);
            }
        }
        let here = self.buffer.len();
        let room = self.buffer.room(pool, now, RECORD_HEAD_MAX);
        // If `ahead` bytes are present and no head is complete, the head is longer than the last one: reads up to the
        // longest.
        let ahead = if here < self.ahead { self.ahead - here } else { RECORD_HEAD_MAX };
        let length = room.len().min(ahead);
        (place, Some(room.slice(0, length)))
    }

    pub fn on_received(&mut self, count: usize) {
        self.placed = count.min(self.direct);
        self.buffer.on_received(count - self.placed);
    }

    pub fn advance(
        &mut self,
        machine: &mut impl Machine,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
        now: Duration,
    ) -> Result<Advance, Fatal> {
        assert!(self.control.is_none(), "a control record is taken before the next record");
        let placed = std::mem::take(&mut self.placed);
        self.arrive(placed).map_err(broken)?;
        if let Some(length) = self.headed.take() {
            self.body = Some(self.begin(machine.placement(), length, buffer_of)?);
        }
        match self.body {
            Some(_) => self.advance_body(machine, now),
            None => self.advance_head(machine, now),
        }
    }

    fn advance_head(&mut self, machine: &mut impl Machine, now: Duration) -> Result<Advance, Fatal> {
        let bytes = self.buffer.bytes();
        let Some((&prefix, rest)) = bytes.split_first_chunk::<{ seal::PREFIX_BYTES }>() else {
            return Ok(Advance::Starved);
        };
        let sealed = self.opener.sealed_head_bytes(prefix).map_err(broken)?;
        if rest.len() < sealed {
            return Ok(Advance::Starved);
        }
        self.head.clear();
        self.head.extend_from_slice(&rest[..sealed]);
        let Head { kind, bytes: opened } = self.opener.open_head(prefix, &mut self.head).map_err(broken)?;
        self.head.truncate(opened);
        if kind != Kind::Pdu {
            self.buffer.take(seal::PREFIX_BYTES + sealed);
            self.control = Some(kind);
            return Ok(Advance::Events);
        }
        let (header, descriptors) = seal::parse_head(&self.head).map_err(broken)?;
        let (bhs, ahs) = header.split_first_chunk::<48>().expect("a head has a BHS");
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]);
        if length > machine.data_segment_max().min(segment_max(self.unit as u32)) {
            return Err(Fatal::Protocol("data segment longer than MaxRecvDataSegmentLength"));
        }
        if length == 0 && descriptors.len() > 0 {
            return Err(broken(Broken));
        }
        machine.on_header(bhs, ahs, now)?;
        self.header = header.len();
        self.buffer.take(seal::PREFIX_BYTES + sealed);
        if length > 0 {
            self.headed = Some(length as usize);
        }
        Ok(Advance::Events)
    }

    /// Starts a body. Its descriptors are compared with the placement before any byte of it is placed.
    fn begin(
        &mut self,
        placement: Placement,
        length: usize,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<Body, Fatal> {
        self.ahead = match length {
            LARGE_BODY.. => RECORD_HEAD_MIN + (self.head.len() - 48).max(seal::DESCRIPTOR_BYTES),
            _ => usize::MAX,
        };
        match placement {
            Placement::Nothing | Placement::Discard => {
                Ok(Body { place: Place::Nowhere, at: 0, keep: 0, stop: length })
            }
            Placement::Inline => {
                let mut descriptors = self.descriptors();
                let descriptor = descriptors.next().filter(|first| first.length as usize == length);
                let descriptor = descriptor.filter(|_| descriptors.next().is_none());
                let descriptor = descriptor.ok_or(Broken).map_err(broken)?;
                if length > seal::SEGMENT_UNIT_BYTES_MAX {
                    return Err(broken(Broken));
                }
                let place = Place::Inline(Vec::with_capacity(length), descriptor);
                Ok(Body { place, at: 0, keep: length, stop: length })
            }
            Placement::Task { task, offset, length: kept } => {
                let span = buffer_of(task).ok_or(Fatal::Protocol("data for a task without a buffer"))?;
                let (offset, kept) = (offset as usize, kept as usize);
                assert!(kept <= length && offset + kept <= span.len(), "placement outside the buffer");
                let stop = offset + length;
                let unit = self.begin_units(task, span.len(), offset, stop).map_err(broken)?;
                let begun = usize::from(unit.start >= offset);
                let place = Place::Task { task, span, unit: Some(unit), begun };
                Ok(Body { place, at: offset, keep: offset + kept, stop })
            }
        }
    }

    fn descriptors(&self) -> seal::Descriptors<'_> {
        seal::parse_head(&self.head).expect("parsed before").1
    }

    /// Checks the descriptors of a body that covers `offset..stop` of a task's buffer of `room` bytes; returns the unit
    /// that contains its first byte.
    fn begin_units(&mut self, task: TaskId, room: usize, offset: usize, stop: usize) -> Result<Unit, Broken> {
        let Self { head, tracks, unit: size, .. } = self;
        let mut descriptors = seal::parse_head(head)?.1;
        let mut first = None;
        let mut start = offset;
        if !offset.is_multiple_of(*size) {
            let unit = tracks.resume(task, offset)?;
            if unit.end < stop && unit.end - unit.start < *size {
                return Err(Broken);
            }
            start = unit.end;
            first = Some(unit);
        }
        while start < stop {
            let descriptor = descriptors.next().ok_or(Broken)?;
            let unit = unit_at(start, descriptor);
            tracks.begin(task, &unit, *size, stop)?;
            // A unit entirely beyond the buffer is discarded; a unit partly in it could not be verified.
            if unit.start < room && unit.end > room {
                return Err(Broken);
            }
            first = first.or(Some(unit));
            start += *size;
        }
        if descriptors.next().is_some() {
            return Err(Broken);
        }
        first.ok_or(Broken)
    }

    fn advance_body(&mut self, machine: &mut impl Machine, now: Duration) -> Result<Advance, Fatal> {
        let Self { buffer, body, copied, .. } = self;
        let body = body.as_mut().expect("checked by the caller");
        let bytes = buffer.bytes();
        let take = bytes.len().min(body.stop - body.at);
        let keep = take.min(body.keep.saturating_sub(body.at));
        match &mut body.place {
            Place::Task { span, .. } if keep > 0 => span.fill(body.at, &bytes[..keep]),
            Place::Inline(inline, _) => inline.extend_from_slice(&bytes[..keep]),
            _ => {}
        }
        *copied += keep as u64;
        buffer.take(take);
        self.arrive(take).map_err(broken)?;
        let body = self.body.as_ref().expect("as before");
        if body.at < body.stop {
            return Ok(Advance::Starved);
        }
        let mut body = self.body.take().expect("as before");
        let received = match &mut body.place {
            Place::Task { task, unit, .. } => {
                if let Some(unit) = unit.take() {
                    self.tracks.suspend(*task, unit).map_err(broken)?;
                }
                Received::Placed
            }
            Place::Inline(bytes, descriptor) => {
                self.opener.open_unit(descriptor, bytes).map_err(broken)?;
                Received::Inline(bytes)
            }
            Place::Nowhere => Received::Discarded,
        };
        machine.on_data(received, now)?;
        Ok(Advance::Events)
    }

    /// Accounts for `count` bytes of the body in their place, and opens the units that are complete.
    fn arrive(&mut self, count: usize) -> Result<(), Broken> {
        let Some(body) = &mut self.body else { return Ok(()) };
        body.at += count;
        let Place::Task { span, unit, begun, .. } = &mut body.place else { return Ok(()) };
        while let Some(current) = unit {
            if body.at < current.end {
                current.arrived = body.at;
                break;
            }
            let Unit { start, end, descriptor, .. } = unit.take().expect("just looked at");
            if end <= span.len() {
                span.change(start, end - start, |bytes| self.opener.open_unit(&descriptor, bytes))?;
            }
            if end < body.stop {
                let descriptor = seal::parse_head(&self.head)?.1.nth(*begun).ok_or(Broken)?;
                *unit = Some(unit_at(end, descriptor));
                *begun += 1;
            }
        }
        Ok(())
    }
}

fn unit_at(start: usize, descriptor: Descriptor) -> Unit {
    Unit { start, end: start + descriptor.length as usize, arrived: start, descriptor }
}
