//! Copies from and to streams (pipes, standard input and output), read or written once, in order, of unknown length.
//!
//! A thread of its own ([`pipe`]) reads or writes a stream, because that may block. A few buffers circulate between
//! this thread and the loop; when all are on one side, the other side waits. At the endpoint several requests are in
//! flight, as in other copies. A stream cannot be read again, so such a copy is neither resumed nor repeated.

mod pipe;
mod pump;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use area::Span;
use block::{Capability, Endpoint, Evidence, IoError, IoErrorKind, Kind, State};
use io::Io;

use crate::copy::Report;
use crate::cutter::HOLE_BYTES_MIN;
use crate::driver::Driver;
use crate::error::{CopyError, End};
use crate::limit::Blocked;
use crate::meter::Side;
use crate::plan::{Checked, Plan, Refusal, granularity, plan_check};
use crate::progress::Phase;
use crate::watch::{Observer, Watch};
use crate::zero::is_zero;
use pipe::{Inlet, Outlet};
use pump::Pump;

/// Copies the bytes of `reader` to the destination from `plan.dst_offset` on, flushes once, and verifies if requested
/// by the digests of the bytes received. The first `plan.src_offset` bytes are dropped.
///
/// With a size, exactly that many bytes are taken, and fewer are [`CopyError::Short`]; without, all bytes until the
/// end, and more than the destination has room for are [`CopyError::Long`]. Exactly the bytes received are written: if
/// they end within a block, the rest of the block stays unchanged.
pub fn copy_from_stream(
    io: &mut Io,
    reader: Box<dyn Read + Send>,
    destination: &mut dyn Endpoint,
    plan: &Plan,
    observer: Observer<'_>,
) -> Result<Report, CopyError> {
    let capability = ready(destination, End::Destination)?;
    let (offset, size) = (plan.dst_offset, capability.size_bytes);
    let room = size
        .checked_sub(offset)
        .filter(|room| plan.size.unwrap_or(0) <= *room)
        .ok_or(Refusal::DestinationTooSmall { offset, bytes: plan.size.unwrap_or(0), size })?;
    let block = granularity(&capability);
    // A source of the size of the room passes the check; the actual length is known only at the end.
    let other = Capability { size_bytes: room - room % u64::from(block), ..stand_in(&capability) };
    let checked =
        plan_check(&other, &capability, &Plan { src_offset: 0, size: None, map: None, ..plan.clone() })?;
    let chunk = one_request(&checked, &capability);
    let inlet = Inlet::start(io, reader, chunk, plan.src_offset, plan.size).map_err(CopyError::Loop)?;
    let total = plan.size.unwrap_or(0);
    let mut inward = Inward {
        can_write_zeroes: plan.sparse && (capability.write_zeroes || capability.discard),
        offset,
        room,
        block: block as usize,
        hasher: plan.verify.then(blake3::Hasher::new),
        at: 0,
        tail: Vec::new(),
        zero_bytes: 0,
        pump: Pump::new(
            io,
            destination,
            End::Destination,
            inlet.owner,
            (Phase::Copy, total),
            &plan.rate,
            observer,
        )?,
        inlet,
    };
    inward.run(checked.depth as usize, chunk)?;
    let flush = inward.flush()?;
    if inward.pump.watch.stopped() {
        return Err(CopyError::Interrupted { phase: Phase::Copy, bytes_safe: inward.at });
    }
    if let Some(expected) = plan.size.filter(|expected| inward.at < *expected) {
        return Err(CopyError::Short { bytes: inward.at, expected });
    }
    let Inward { at: bytes, hasher, zero_bytes, pump, .. } = inward;
    let read = Side { ops: 0, bytes, ..Side::default() };
    let mut report = pump.report(bytes, flush, chunk);
    (report.read, report.zero_bytes_skipped) = (read, zero_bytes);
    let Pump { driver: Driver { io, ends: [destination], .. }, watch: Watch { observer, .. }, .. } = pump;
    if let Some(hasher) = hasher {
        let expected = hasher.finalize();
        let (seconds, found) = read_back(io, destination, plan, bytes, observer)?;
        if found != expected {
            return Err(CopyError::Verify { offset: plan.dst_offset, length: bytes });
        }
        (report.verified, report.verify_seconds) = (true, seconds);
        report.blake3 = Some(expected.to_hex().to_string());
    }
    Ok(report)
}

/// Copies the range of `plan` to `writer`, in order. Success means that `writer` has them all, not their receiver.
pub fn copy_to_stream(
    io: &mut Io,
    source: &mut dyn Endpoint,
    writer: Box<dyn Write + Send>,
    plan: &Plan,
    observer: Observer<'_>,
) -> Result<Report, CopyError> {
    in_order(io, source, writer, plan, Phase::Copy, observer)
}

/// Reads one end in order, to copy it to a stream or to verify it.
fn in_order(
    io: &mut Io,
    source: &mut dyn Endpoint,
    writer: Box<dyn Write + Send>,
    plan: &Plan,
    phase: Phase,
    observer: Observer<'_>,
) -> Result<Report, CopyError> {
    let capability = ready(source, End::Source)?;
    let checked = plan_check(&capability, &stand_in(&capability), &Plan { dst_offset: 0, ..plan.clone() })?;
    let chunk = one_request(&checked, &capability);
    let outlet = Outlet::start(io, writer, chunk).map_err(CopyError::Loop)?;
    let mut outward = Outward {
        offset: plan.src_offset,
        sparse: plan.sparse,
        block: granularity(&capability) as usize,
        total: checked.bytes,
        next: 0,
        queue: VecDeque::new(),
        zero_bytes: 0,
        pump: Pump::new(io, source, End::Source, outlet.owner, (phase, checked.bytes), &plan.rate, observer)?,
        outlet,
    };
    outward.run(checked.depth as usize, chunk)?;
    let (written, stopped) = (outward.outlet.written, outward.pump.watch.stopped());
    if stopped && written < checked.bytes {
        return Err(CopyError::Interrupted { phase: Phase::Copy, bytes_safe: written });
    }
    let certain = outward.pump.driver.ends[0].inspect().check_identity(Evidence::Probed);
    certain.map_err(|error| CopyError::Gone { end: End::Source, error })?;
    let mut report = outward.pump.report(written, Duration::ZERO, chunk);
    report.write = Side { ops: 0, bytes: written, ..Side::default() };
    report.zero_bytes_skipped = outward.zero_bytes;
    Ok(report)
}

fn ready(endpoint: &dyn Endpoint, end: End) -> Result<Capability, Refusal> {
    match endpoint.state() {
        State::Ready => Ok(endpoint.capability().clone()),
        _ => Err(Refusal::NotReady(end)),
    }
}

/// The capability that stands for a stream in the checks: no constraints.
fn stand_in(other: &Capability) -> Capability {
    Capability { granularity: 1, read_only: false, ..other.clone() }
}

/// Bytes of a chunk, such that a chunk is one request.
fn one_request(checked: &Checked, capability: &Capability) -> usize {
    let most = capability.max_transfer_bytes.min(checked.chunk);
    let step = if most >= checked.unit { checked.unit } else { granularity(capability) };
    ((most / step).max(1) * step) as usize
}

/// Reads the destination back. Returns the seconds taken and the digest.
fn read_back(
    io: &mut Io,
    destination: &mut dyn Endpoint,
    plan: &Plan,
    bytes: u64,
    observer: Observer<'_>,
) -> Result<(f64, blake3::Hash), CopyError> {
    let hasher = Arc::new(Mutex::new(blake3::Hasher::new()));
    // Holes are read too, since the verification is of the storage.
    let (offset, size) = (plan.dst_offset, Some(bytes));
    let plan = Plan { src_offset: offset, size, sparse: false, ..plan.clone() };
    let writer = Box::new(Hashing(Arc::clone(&hasher)));
    let report =
        in_order(io, destination, writer, &plan, Phase::Verify, observer).map_err(|error| match error {
            CopyError::Read { offset, length, error, .. } => {
                CopyError::Read { end: End::Destination, offset, length, error }
            }
            CopyError::Interrupted { .. } => {
                CopyError::Interrupted { phase: Phase::Verify, bytes_safe: bytes }
            }
            error => error,
        })?;
    let hash = hasher.lock().expect("no panic while locked").finalize();
    Ok((report.seconds, hash))
}

struct Hashing(Arc<Mutex<blake3::Hasher>>);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic while locked").update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Inward<'a> {
    pump: Pump<'a>,
    inlet: Inlet,
    offset: u64,
    room: u64,
    block: usize,
    can_write_zeroes: bool,
    /// Digest of all bytes received, for the verification.
    hasher: Option<blake3::Hasher>,
    at: u64,
    /// The last bytes received, which do not fill a block.
    tail: Vec<u8>,
    zero_bytes: u64,
}

impl Inward<'_> {
    fn run(&mut self, depth: usize, chunk: usize) -> Result<(), CopyError> {
        let mut ended = false;
        loop {
            while let Some((flight, result)) = self.pump.completed() {
                self.on_written(flight, result);
            }
            let closed = ended || self.pump.watch.stopped() || self.pump.failure.is_some();
            let in_flight = self.pump.in_flight();
            if closed && in_flight == 0 {
                break;
            }
            if closed || in_flight >= depth {
                self.pump.turn([0, in_flight], None)?;
                continue;
            }
            if !self.pump.may_begin() {
                self.pump.turn([0, in_flight], Some(Blocked::Rate))?;
                continue;
            }
            let Some(span) = self.pump.driver.io.pool().take(chunk) else {
                self.pump.wait_for_memory(in_flight > 0, [0, in_flight])?;
                continue;
            };
            match self.inlet.next() {
                None => self.pump.turn([1, in_flight], None)?,
                Some(Ok(length)) if length as u64 > self.room - self.at => {
                    self.pump.fail(CopyError::Long { room: self.room });
                }
                Some(Ok(length)) => {
                    ended = length < chunk;
                    self.begin(&span, length);
                    self.pump.look_now_and_then(depth)?;
                }
                Some(Err(error)) => {
                    let (end, offset, length) = (End::Source, self.at, chunk as u64);
                    self.pump.fail(CopyError::Read { end, offset, length, error: error.into() });
                }
            }
        }
        self.pump.failure.take().map_or(Ok(()), Err)
    }

    /// Writes the received bytes; a part that does not fill a block is kept until the end.
    fn begin(&mut self, span: &Span, length: usize) {
        span.fill(0, &self.inlet.bytes()[..length]);
        self.inlet.give_back();
        self.pump.charge(length as u64);
        let whole = length / self.block * self.block;
        self.tail = span.range(whole..length).to_vec();
        if let Some(hasher) = &mut self.hasher {
            hasher.update(span.range(0..length));
        }
        if whole > 0 {
            let (offset, zero) =
                (self.offset + self.at, self.can_write_zeroes && is_zero(span.range(0..whole)));
            self.write(offset, span.slice(0, whole), zero);
        }
        self.at += length as u64;
    }

    fn write(&mut self, offset: u64, from: Span, zero: bool) {
        let (length, kept) = (from.len() as u64, from.clone());
        let kind = if zero {
            Kind::WriteZeroes { offset, length, may_unmap: true }
        } else {
            Kind::Write { offset, from, durable: false }
        };
        self.pump.submit(kind, pump::Flight { offset, span: kept, named: zero });
    }

    fn on_written(&mut self, flight: pump::Flight, result: Result<(), IoError>) {
        let (offset, length) = (flight.offset, flight.span.len() as u64);
        match result {
            Ok(()) => {
                self.pump.bytes += length;
                self.zero_bytes += if flight.named { length } else { 0 };
            }
            Err(error) if flight.named && error.kind == IoErrorKind::Unsupported => {
                self.can_write_zeroes = false;
                self.write(offset, flight.span, false);
            }
            Err(error) => self.pump.fail(CopyError::Write { offset, length, error }),
        }
    }

    fn flush(&mut self) -> Result<Duration, CopyError> {
        if !self.tail.is_empty() {
            let (length, offset) = (self.block as u64, self.offset + self.at - self.tail.len() as u64);
            let span =
                self.pump.driver.io.pool().take(self.block).ok_or_else(no_memory)?.slice(0, self.block);
            let read = self.pump.single(Kind::Read { offset, into: span.clone() })?;
            read.map_err(|error| CopyError::Read { end: End::Destination, offset, length, error })?;
            span.fill(0, &self.tail);
            let written = self.pump.single(Kind::Write { offset, from: span, durable: false })?;
            written.map_err(|error| CopyError::Write { offset, length, error })?;
            self.pump.bytes += self.tail.len() as u64;
        }
        self.pump.enter(Phase::Flush);
        let before = self.pump.watch.seen();
        self.pump.single(Kind::Flush)?.map_err(CopyError::Flush)?;
        Ok(self.pump.watch.seen() - before)
    }
}

struct Outward<'a> {
    pump: Pump<'a>,
    outlet: Outlet,
    offset: u64,
    sparse: bool,
    block: usize,
    total: u64,
    /// First byte of the range that was not requested.
    next: u64,
    /// Requested chunks not yet passed to the stream, in order.
    queue: VecDeque<Ahead>,
    zero_bytes: u64,
}

/// A chunk on the way to the stream.
struct Ahead {
    offset: u64,
    length: usize,
    /// `None`: zeroes, which are not read.
    span: Option<Span>,
    is_here: bool,
}

impl Outward<'_> {
    fn run(&mut self, depth: usize, chunk: usize) -> Result<(), CopyError> {
        loop {
            while let Some((flight, result)) = self.pump.completed() {
                self.on_read(&flight, result);
            }
            if let Err(error) = self.outlet.look() {
                let (offset, length) = (self.outlet.written, chunk as u64);
                self.pump.fail(CopyError::Write { offset, length, error: error.into() });
            }
            self.hand_on();
            self.pump.bytes = self.outlet.written;
            let in_flight = self.pump.in_flight();
            // After a failure or a stop, the stream is not waited for: its reader may never continue.
            if in_flight == 0 && (self.pump.failure.is_some() || self.pump.watch.stopped()) {
                break;
            }
            if self.outlet.written == self.total {
                break;
            }
            let waiting = [in_flight, usize::from(self.outlet.is_busy())];
            let closed = self.pump.failure.is_some() || self.pump.watch.stopped() || self.next == self.total;
            if closed || self.queue.len() >= depth {
                self.pump.turn(waiting, None)?;
            } else if !self.pump.may_begin() {
                self.pump.turn(waiting, Some(Blocked::Rate))?;
            } else if !self.begin(chunk) {
                self.pump.wait_for_memory(!self.queue.is_empty(), waiting)?;
            } else {
                self.pump.look_now_and_then(depth)?;
            }
        }
        self.pump.failure.take().map_or(Ok(()), Err)
    }

    /// Requests the next chunk. False: no memory.
    fn begin(&mut self, chunk: usize) -> bool {
        let (at, left) = (self.next, self.total - self.next);
        let length = left.min(chunk as u64) as usize;
        let offset = self.offset + at;
        let extent = self.pump.driver.ends[0].extent(offset);
        let is_hole = self.sparse
            && !extent.data
            && extent.end - offset >= (length as u64).max(HOLE_BYTES_MIN.min(left));
        let mut span = None;
        if is_hole {
            self.zero_bytes += length as u64;
        } else {
            let Some(area) = self.pump.driver.io.pool().take(chunk) else { return false };
            // A read extends to the end of its block.
            let into = area.slice(0, length.next_multiple_of(self.block));
            self.pump.charge(length as u64);
            self.pump.submit(
                Kind::Read { offset, into: into.clone() },
                pump::Flight { offset, span: into.clone(), named: false },
            );
            span = Some(into);
        }
        self.queue.push_back(Ahead { offset, length, span, is_here: is_hole });
        self.next += length as u64;
        true
    }

    fn on_read(&mut self, flight: &pump::Flight, result: Result<(), IoError>) {
        let (offset, length) = (flight.offset, flight.span.len() as u64);
        match result {
            Ok(()) => {
                let ahead = self.queue.iter_mut().find(|ahead| ahead.offset == offset);
                ahead.expect("a completed read is in the queue").is_here = true;
            }
            Err(error) => self.pump.fail(CopyError::Read { end: End::Source, offset, length, error }),
        }
    }

    /// Passes the next chunks in order to the stream, as far as buffers are free.
    fn hand_on(&mut self) {
        while self.pump.failure.is_none()
            && self.queue.front().is_some_and(|ahead| ahead.is_here)
            && let Some(mut buffer) = self.outlet.buffer()
        {
            let ahead = self.queue.pop_front().expect("there is one");
            buffer.resize(ahead.length, 0);
            match ahead.span {
                Some(span) => span.read(0, &mut buffer),
                None => buffer.fill(0),
            }
            self.outlet.give(buffer);
        }
    }
}

fn no_memory() -> CopyError {
    CopyError::Loop(std::io::ErrorKind::OutOfMemory.into())
}
