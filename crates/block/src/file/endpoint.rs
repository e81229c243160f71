//! The endpoint of a file or block device: requests of one loop thread.

use std::io::Result as IoResult;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use area::Span;
use io::{Allocation, Durability, Event, Handle, Io, Owner, Token};

use super::mapped::Mapped;
use super::{DataExtent, Shared, probe};
use crate::memory::check;
use crate::{
    Capability, Completion, Endpoint, Evidence, Extent, Fingerprint, Identity, Inspect, IoError, IoErrorKind,
    Kind, Reader, Request, RequestId,
};
use host::{Devices, Kernel, Lost, Node};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Writes up to this length to a file in memory are made inside `submit`; longer ones go to the loop, which may use
/// another core.
const WRITE_NOW_BYTES_MAX: usize = 64 << 10;
/// Zeroes written per request where the file system cannot zero a range itself.
const ZERO_BYTES: usize = 256 << 10;

pub(super) struct Handles {
    pub(super) buffered: Handle,
    pub(super) direct: Option<Handle>,
    /// Used for flushes only, with an open file description of its own. The kernel reports a failed write-back once to
    /// each open file description; with a shared one, a flush of another thread could take the report.
    pub(super) sync: Handle,
    /// The file's bytes are memory (tmpfs): a write never waits for a device.
    pub(super) in_memory: bool,
    /// Source of [`Endpoint::borrow`]; `None` if the file is not mapped.
    pub(super) mapped: Option<Mapped>,
}

pub(super) struct FileEndpoint {
    owner: Owner,
    handles: Handles,
    is_device: bool,
    identity: Identity,
    capability: Capability,
    shared: Arc<Shared>,
    /// The last data extent that `extent` found.
    data_extent: Option<DataExtent>,
    pending: Vec<Option<Pending>>,
    vacant: Vec<u32>,
    /// Slots of the flush requests that the running `fsync` completes. Its event carries the first slot's number.
    flushes: Vec<u32>,
    /// Slots of flush requests that came after that `fsync` started: the next one completes them all. Two at once would
    /// share the report of one failed write-back.
    flushes_waiting: Vec<u32>,
    zeroes: Option<Span>,
}

#[derive(Clone)]
struct Pending {
    id: RequestId,
    operation: Operation,
    /// O_DIRECT refused this request; it goes through the page cache.
    through_cache: bool,
    /// A durable write of which a part went through the page cache: a flush follows before completion.
    owes_flush: bool,
}

#[derive(Clone)]
enum Operation {
    Read {
        offset: u64,
        into: Span,
    },
    Write {
        offset: u64,
        from: Span,
        durability: Durability,
    },
    Flush,
    /// `fallocate` by the file system.
    Allocate {
        how: Allocation,
        offset: u64,
        length: u64,
        fall_back: bool,
    },
    /// Writes of `ZERO_BYTES` zeroes each.
    Zero {
        offset: u64,
        length: u64,
    },
}

impl Operation {
    fn is_punch(&self) -> bool {
        matches!(self, Self::Allocate { how: Allocation::PunchHole, .. })
    }
}

impl FileEndpoint {
    pub(super) fn new(
        io: &Io,
        handles: Handles,
        is_device: bool,
        identity: Identity,
        capability: Capability,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            owner: io.owner(),
            handles,
            is_device,
            identity,
            capability,
            shared,
            data_extent: None,
            pending: Vec::new(),
            vacant: Vec::new(),
            flushes: Vec::new(),
            flushes_waiting: Vec::new(),
            zeroes: None,
        }
    }

    fn operation(&self, kind: Kind) -> Result<Operation, IoError> {
        check(&self.capability, &kind)?;
        if self.shared.flush_failed.load(Ordering::Acquire)
            && (kind.is_write() || matches!(kind, Kind::Flush))
        {
            return Err(earlier_failure());
        }
        Ok(match kind {
            Kind::Read { offset, into } => Operation::Read { offset, into },
            Kind::Write { offset, from, durable } => {
                let durability = if durable { Durability::Durable } else { Durability::Volatile };
                Operation::Write { offset, from, durability }
            }
            Kind::Flush => Operation::Flush,
            Kind::Discard { offset, length } => {
                self.shared.punched.fetch_add(1, Ordering::Relaxed);
                Operation::Allocate { how: Allocation::PunchHole, offset, length, fall_back: false }
            }
            Kind::WriteZeroes { offset, length, may_unmap: true } => {
                self.shared.punched.fetch_add(1, Ordering::Relaxed);
                Operation::Allocate { how: Allocation::PunchHole, offset, length, fall_back: true }
            }
            Kind::WriteZeroes { offset, length, may_unmap: false } => {
                Operation::Allocate { how: Allocation::ZeroRange, offset, length, fall_back: true }
            }
        })
    }

    /// The O_DIRECT descriptor, if the transfer is aligned; `None` if it goes through the page cache.
    fn direct_for(&self, offset: u64, span: &Span, through_cache: bool) -> Option<&Handle> {
        let alignment = u64::from(self.capability.alignment);
        let aligned = offset.is_multiple_of(alignment)
            && (span.len() as u64).is_multiple_of(alignment)
            && (span.as_ptr() as u64).is_multiple_of(alignment);
        self.handles.direct.as_ref().filter(|_| aligned && !through_cache)
    }

    fn handle_for(&self, offset: u64, span: &Span, through_cache: bool) -> Handle {
        Rc::clone(self.direct_for(offset, span, through_cache).unwrap_or(&self.handles.buffered))
    }

    /// Starts the rest of the request in slot `key`. `Some`: the request is complete.
    fn start(&mut self, io: &mut Io, key: u32) -> Option<Result<(), IoError>> {
        let token = Token { owner: self.owner, key };
        let pending = self.pending[key as usize].clone().expect("slot in use");
        match pending.operation {
            Operation::Read { offset, into } => {
                let handle = self.handle_for(offset, &into, pending.through_cache);
                io.read(token, &handle, offset, into);
            }
            Operation::Write { offset, from, durability } => {
                let handle = self.handle_for(offset, &from, pending.through_cache);
                if self.handles.in_memory && from.len() <= WRITE_NOW_BYTES_MAX {
                    let result = io.write_now(&handle, offset, &from, durability);
                    return self.advance(io, key, result);
                }
                // A durable write through the page cache is a plain write followed by the shared flush: of two syncs at
                // once on one descriptor, one could take the other's error report.
                let durability = match durability {
                    Durability::Durable
                        if self.direct_for(offset, &from, pending.through_cache).is_none() =>
                    {
                        self.pending[key as usize].as_mut().expect("slot in use").owes_flush = true;
                        Durability::Volatile
                    }
                    durability => durability,
                };
                io.write(token, &handle, offset, from, durability);
            }
            Operation::Flush => {
                self.flushes_waiting.push(key);
                self.flush(io);
            }
            Operation::Allocate { length: 0, .. } | Operation::Zero { length: 0, .. } => return Some(Ok(())),
            Operation::Allocate { how, offset, length, .. } => {
                io.allocate(token, &self.handles.buffered, how, offset, length);
            }
            Operation::Zero { offset, length } => {
                let Some(zeroes) = self.zeroes(io) else {
                    return Some(Err(IoError::new(IoErrorKind::Other, "no memory for zeroes")));
                };
                let chunk = zeroes.slice(0, length.min(ZERO_BYTES as u64) as usize);
                let handle = self.handle_for(offset, &chunk, pending.through_cache);
                io.write(token, &handle, offset, chunk, Durability::Volatile);
            }
        }
        None
    }

    /// Starts one flush for all waiting flush requests, unless one is running.
    fn flush(&mut self, io: &mut Io) {
        if self.flushes.is_empty()
            && let Some(key) = self.flushes_waiting.first().copied()
        {
            std::mem::swap(&mut self.flushes, &mut self.flushes_waiting);
            io.sync(Token { owner: self.owner, key }, &self.handles.sync);
        }
    }

    fn on_flushed(&mut self, io: &mut Io, result: IoResult<usize>, done: &mut Vec<Completion>) {
        let result = match result {
            Err(error) => {
                self.shared.flush_failed.store(true, Ordering::Release);
                let text = format!("flush failed ({error}): what was written may be lost");
                Err(IoError::new(IoErrorKind::FlushFailed, text))
            }
            Ok(_) if self.shared.flush_failed.load(Ordering::Acquire) => Err(earlier_failure()),
            // The flushed data may be on another disk than the written data.
            Ok(_) => self.check_identity(Evidence::Cached),
        };
        let mut flushes = std::mem::take(&mut self.flushes);
        for key in flushes.drain(..) {
            self.finish(key, result.clone(), done);
        }
        // Reuses the vector's memory.
        self.flushes = flushes;
        self.flush(io);
    }

    fn zeroes(&mut self, io: &Io) -> Option<Span> {
        if self.zeroes.is_none() {
            let span = io.pool().take(ZERO_BYTES)?;
            span.zero(0, ZERO_BYTES);
            self.zeroes = Some(span);
        }
        self.zeroes.clone()
    }

    /// Evaluates a result. `None`: a part of the request is left and was started.
    fn advance(&mut self, io: &mut Io, key: u32, result: IoResult<usize>) -> Option<Result<(), IoError>> {
        let pending = self.pending[key as usize].as_mut().expect("slot in use");
        match (&mut pending.operation, result) {
            (Operation::Read { into, .. } | Operation::Write { from: into, .. }, Err(error))
                if error.raw_os_error() == Some(libc::EINVAL)
                    && !pending.through_cache
                    && self.handles.direct.is_some() =>
            {
                tracing::debug!(
                    length = into.len(),
                    "O_DIRECT refused a transfer: going through the page cache"
                );
                pending.through_cache = true;
            }
            (Operation::Read { offset, .. }, Ok(0)) => {
                let text = format!("end of file at {offset}: the storage has shrunk");
                return Some(Err(IoError::new(IoErrorKind::OutOfRange, text)));
            }
            (Operation::Write { offset, .. }, Ok(0)) => {
                let text = format!("nothing could be written at {offset}");
                return Some(Err(IoError::new(IoErrorKind::Medium, text)));
            }
            (Operation::Read { offset, into }, Ok(count))
            | (Operation::Write { offset, from: into, .. }, Ok(count)) => {
                if count < into.len() {
                    *offset += count as u64;
                    *into = into.slice(count, into.len() - count);
                } else if pending.owes_flush {
                    pending.operation = Operation::Flush;
                } else {
                    return Some(Ok(()));
                }
            }
            (Operation::Zero { offset, length }, Ok(count)) if count > 0 => {
                *offset += count as u64;
                *length -= count as u64;
            }
            (Operation::Allocate { offset, length, fall_back: true, .. }, Err(error))
                if error.raw_os_error() == Some(libc::EOPNOTSUPP) =>
            {
                pending.operation = Operation::Zero { offset: *offset, length: *length };
            }
            (Operation::Allocate { .. }, Ok(_)) => return Some(Ok(())),
            (Operation::Flush, _) => unreachable!("flushes are answered together"),
            (Operation::Zero { .. }, Ok(_)) => {
                return Some(Err(IoError::new(IoErrorKind::Medium, "nothing could be written")));
            }
            (_, Err(error)) if error.raw_os_error() == Some(libc::EINTR) => {}
            (_, Err(error)) => return Some(Err(error.into())),
        }
        self.start(io, key)
    }

    fn seek_extent(&self, offset: u64, size: u64) -> Extent {
        // The calls move the file position, which no code uses.
        let seek = |to| seek(&self.handles.buffered, to);
        match seek(SeekFrom::Data(offset)) {
            Ok(data) if data > offset => return Extent { end: data.min(size), data: false },
            Ok(_) => {}
            Err(error) => {
                // The lost end of a file that has shrunk must not pass for a hole: a read of it must fail.
                let whole = seek(SeekFrom::End(0)).map_or(true, |end| end >= size);
                return Extent { end: size, data: error != Errno::NXIO || !whole };
            }
        }
        match seek(SeekFrom::Hole(offset)) {
            Ok(hole) if hole > offset => Extent { end: hole.min(size), data: true },
            _ => Extent { end: size, data: true },
        }
    }

    fn finish(&mut self, key: u32, result: Result<(), IoError>, done: &mut Vec<Completion>) {
        // A removed device fails requests with various error numbers.
        let result = result.map_err(|error| match error.kind {
            IoErrorKind::FlushFailed => error,
            _ => self.check_identity(Evidence::Probed).err().unwrap_or(error),
        });
        let pending = self.pending[key as usize].take().expect("slot in use");
        self.vacant.push(key);
        done.push(Completion { id: pending.id, result });
    }
}

fn earlier_failure() -> IoError {
    let text = "an earlier flush failed; what was written before it may be lost: reopen the storage";
    IoError::new(IoErrorKind::FlushFailed, text)
}

impl Endpoint for FileEndpoint {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let operation = match self.operation(request.kind) {
            Ok(operation) => operation,
            Err(error) => return done.push(Completion { id: request.id, result: Err(error) }),
        };
        let pending = Pending { id: request.id, operation, through_cache: false, owes_flush: false };
        let key = self.vacant.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() as u32 - 1
        });
        self.pending[key as usize] = Some(pending);
        if let Some(result) = self.start(io, key) {
            self.finish(key, result, done);
        }
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        let key = event.token.key;
        if self.flushes.first() == Some(&key) {
            return self.on_flushed(io, event.bytes(), done);
        }
        if let Some(result) = self.advance(io, key, event.bytes()) {
            self.finish(key, result, done);
        }
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
    }

    fn extent(&mut self, offset: u64) -> Extent {
        let size = self.capability.size_bytes;
        if self.is_device || offset >= size {
            return Extent { end: size, data: true };
        }
        let punched = self.shared.punched.load(Ordering::Relaxed);
        let holds = |found: &DataExtent| found.range.contains(&offset) && found.punched == punched;
        if let Some(found) = self.data_extent.as_ref().filter(|found| holds(found)) {
            return Extent { end: found.range.end, data: true };
        }
        let mut found_last = self.shared.data_extent.lock().expect("no panic while locked");
        if let Some(found) = found_last.as_ref().filter(|found| holds(found)) {
            self.data_extent = Some(found.clone());
            return Extent { end: found.range.end, data: true };
        }
        let extent = self.seek_extent(offset, size);
        // A punch in flight may already be in the file, but not in the extent just read.
        if extent.data && self.pending.iter().flatten().all(|pending| !pending.operation.is_punch()) {
            self.data_extent = Some(DataExtent { range: offset..extent.end, punched });
            found_last.clone_from(&self.data_extent);
        }
        extent
    }

    fn borrow(&mut self, now: Duration, offset: u64, length: usize, reader: Reader) -> Option<Span> {
        let range = offset..offset.checked_add(length as u64)?;
        let punched = self.shared.punched.load(Ordering::Relaxed);
        let Handles { buffered, mapped, .. } = &mut self.handles;
        mapped.as_mut()?.borrow(&*buffered, now, range, punched, reader)
    }

    fn write_now(&mut self, io: &Io, offset: u64, from: &Span) -> bool {
        let kind = Kind::Write { offset, from: from.clone(), durable: false };
        self.handles.in_memory && self.operation(kind).is_ok() && {
            let handle = self.handle_for(offset, from, false);
            io.write_now(&handle, offset, from, Durability::Volatile).is_ok_and(|count| count == from.len())
        }
    }

    fn resize(&mut self, size_bytes: u64) {
        self.capability.size_bytes = size_bytes;
        self.shared.resized.store(size_bytes, Ordering::Release);
        self.data_extent = None;
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for FileEndpoint {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn fingerprint(&self) -> Fingerprint {
        let size_bytes = self.capability.size_bytes;
        let kernel = Kernel::default();
        let metadata = || {
            let file = std::fs::File::from(self.handles.buffered.try_clone()?);
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            kernel.write_back(Node::of_metadata(&file.metadata()?), Path::new(&path));
            file.metadata()
        };
        match (&self.identity, metadata()) {
            (_, Ok(metadata)) if self.is_device => kernel.fingerprint(metadata.rdev(), size_bytes),
            (_, Ok(metadata)) => Fingerprint::of_file(self.shared.unprobed(&metadata), size_bytes),
            // This value equals no recorded fingerprint: the storage counts as changed.
            (identity, Err(error)) => {
                Fingerprint { contents: format!("unknown: {error}"), ..identity.fingerprint(size_bytes) }
            }
        }
    }

    fn disks(&self) -> &[u64] {
        &self.shared.disks
    }

    fn check_identity(&self, certainty: Evidence) -> Result<(), IoError> {
        let Some(opened) = &self.shared.opened else { return Ok(()) };
        let mut devices = Devices::shared();
        let lost = match certainty {
            _ if !probe::is_still(opened, &*self.handles.buffered) => Err(Lost::TakenOver),
            Evidence::Cached => devices.check_cached(opened),
            Evidence::Probed => devices.check_probed(opened),
        };
        lost.map_err(|lost| IoError::new(IoErrorKind::Gone, format!("/dev/{}: {lost}", opened.name)))
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let access = match (&self.handles.direct, self.is_device) {
            (Some(_), _) => "O_DIRECT",
            (None, _) => "page cache",
        };
        let kind = if self.is_device { "block device" } else { "regular file" };
        vec![("kind", kind.into()), ("access", access.into())]
    }
}
