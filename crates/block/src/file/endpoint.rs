//! One loop thread's requests to a file.

use std::io::{Error, Result as IoResult};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use area::Span;
use io::{Allocation, Durability, Event, Handle, Io, Owner, Token};

use super::mapped::Mapped;
use super::{DataExtent, Shared, probe};
use crate::device::{Devices, Kernel, Lost};
use crate::memory::check;
use crate::{
    Capability, Certainty, Completion, Endpoint, Extent, Fingerprint, Identity, IoError, IoErrorKind, Kind,
    Looks, Request, RequestId,
};

/// Writes to a file in memory up to this are made at once; a longer one is worth another core's time.
const WRITE_NOW_BYTES_MAX: usize = 64 << 10;
/// Zeroes written at a time where the file system cannot zero a range itself.
const ZERO_BYTES: usize = 256 << 10;

/// The ways of one endpoint to its file.
pub(super) struct Handles {
    pub(super) buffered: Handle,
    pub(super) direct: Option<Handle>,
    /// For flushes alone, and an open file description of its own. The kernel tells each description of a write that was
    /// lost behind our back once: what one thread is told must not be missing from another's flush.
    pub(super) sync: Handle,
    /// The file's bytes are memory (tmpfs): a write never waits for a device.
    pub(super) in_memory: bool,
    /// To lend from.
    pub(super) mapped: Option<Mapped>,
}

pub(super) struct FileEndpoint {
    owner: Owner,
    handles: Handles,
    is_device: bool,
    identity: Identity,
    capability: Capability,
    shared: Arc<Shared>,
    /// The data extent found last.
    data_extent: Option<DataExtent>,
    pending: Vec<Option<Pending>>,
    vacant: Vec<u32>,
    /// Flushes that the one with the kernel answers; its event comes for the first.
    flushes: Vec<u32>,
    /// Those that came after it began: one more answers them all. Two at once would share one lost write's error.
    flushes_waiting: Vec<u32>,
    zeroes: Option<Span>,
}

#[derive(Clone)]
struct Pending {
    id: RequestId,
    job: Job,
    /// O_DIRECT was refused for this one: the page cache takes it.
    through_cache: bool,
    /// A durable write of which some went through the page cache: it ends with a flush.
    owes_flush: bool,
}

/// What is left to do of a request.
#[derive(Clone)]
enum Job {
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
    /// By the file system.
    Allocate {
        how: Allocation,
        offset: u64,
        length: u64,
        fall_back: bool,
    },
    /// By writing zeroes, a piece at a time.
    Zero {
        offset: u64,
        length: u64,
    },
}

impl Job {
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

    fn job(&self, kind: Kind) -> Result<Job, IoError> {
        check(&self.capability, &kind)?;
        if self.shared.flush_failed.load(Ordering::Acquire)
            && (kind.is_write() || matches!(kind, Kind::Flush))
        {
            return Err(earlier_failure());
        }
        Ok(match kind {
            Kind::Read { offset, into } => Job::Read { offset, into },
            Kind::Write { offset, from, durable } => {
                let durability = if durable { Durability::Durable } else { Durability::Volatile };
                Job::Write { offset, from, durability }
            }
            Kind::Flush => Job::Flush,
            Kind::Discard { offset, length } => {
                self.shared.punched.fetch_add(1, Ordering::Relaxed);
                Job::Allocate { how: Allocation::PunchHole, offset, length, fall_back: false }
            }
            Kind::WriteZeroes { offset, length, may_unmap: true } => {
                self.shared.punched.fetch_add(1, Ordering::Relaxed);
                Job::Allocate { how: Allocation::PunchHole, offset, length, fall_back: true }
            }
            Kind::WriteZeroes { offset, length, may_unmap: false } => {
                Job::Allocate { how: Allocation::ZeroRange, offset, length, fall_back: true }
            }
        })
    }

    /// The descriptor for a transfer, if it may pass by the page cache: direct where it is aligned.
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

    /// Starts what is left of the request in slot `key`. `Some` when there is nothing left to start.
    fn start(&mut self, io: &mut Io, key: u32) -> Option<Result<(), IoError>> {
        let token = Token { owner: self.owner, key };
        let pending = self.pending[key as usize].clone().expect("slot in use");
        match pending.job {
            Job::Read { offset, into } => {
                let handle = self.handle_for(offset, &into, pending.through_cache);
                io.read(token, &handle, offset, into);
            }
            Job::Write { offset, from, durability } => {
                let handle = self.handle_for(offset, &from, pending.through_cache);
                if self.handles.in_memory && from.len() <= WRITE_NOW_BYTES_MAX {
                    let result = io.write_now(&handle, offset, &from, durability);
                    return self.advance(io, key, result);
                }
                // A durable write through the page cache is a write, and then the flush that others share: of two that
                // the kernel syncs beside each other on one descriptor, one could take the other's error.
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
            Job::Flush => {
                self.flushes_waiting.push(key);
                self.flush(io);
            }
            Job::Allocate { length: 0, .. } | Job::Zero { length: 0, .. } => return Some(Ok(())),
            Job::Allocate { how, offset, length, .. } => {
                io.allocate(token, &self.handles.buffered, how, offset, length);
            }
            Job::Zero { offset, length } => {
                let Some(zeroes) = self.zeroes(io) else {
                    return Some(Err(IoError::new(IoErrorKind::Other, "no memory for zeroes")));
                };
                let piece = zeroes.slice(0, length.min(ZERO_BYTES as u64) as usize);
                let handle = self.handle_for(offset, &piece, pending.through_cache);
                io.write(token, &handle, offset, piece, Durability::Volatile);
            }
        }
        None
    }

    /// Starts the flush that all who wait for one share, unless one is under way.
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
            // What was flushed is on another disk than what was written.
            Ok(_) => self.check_identity(Certainty::Heard),
        };
        let mut flushes = std::mem::take(&mut self.flushes);
        for key in flushes.drain(..) {
            self.finish(key, result.clone(), done);
        }
        // Their memory is used again: `waiting` takes the place of `flushes`.
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

    /// Looks at a result. `None`: more is left, and it was started again.
    fn advance(&mut self, io: &mut Io, key: u32, result: IoResult<usize>) -> Option<Result<(), IoError>> {
        let pending = self.pending[key as usize].as_mut().expect("slot in use");
        match (&mut pending.job, result) {
            (Job::Read { into, .. } | Job::Write { from: into, .. }, Err(error))
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
            (Job::Read { offset, .. }, Ok(0)) => {
                let text = format!("end of file at {offset}: the storage has shrunk");
                return Some(Err(IoError::new(IoErrorKind::OutOfRange, text)));
            }
            (Job::Write { offset, .. }, Ok(0)) => {
                let text = format!("nothing could be written at {offset}");
                return Some(Err(IoError::new(IoErrorKind::Medium, text)));
            }
            (Job::Read { offset, into }, Ok(count)) | (Job::Write { offset, from: into, .. }, Ok(count)) => {
                if count < into.len() {
                    *offset += count as u64;
                    *into = into.slice(count, into.len() - count);
                } else if pending.owes_flush {
                    pending.job = Job::Flush;
                } else {
                    return Some(Ok(()));
                }
            }
            (Job::Zero { offset, length }, Ok(count)) if count > 0 => {
                *offset += count as u64;
                *length -= count as u64;
            }
            (Job::Allocate { offset, length, fall_back: true, .. }, Err(error))
                if error.raw_os_error() == Some(libc::EOPNOTSUPP) =>
            {
                pending.job = Job::Zero { offset: *offset, length: *length };
            }
            (Job::Allocate { .. }, Ok(_)) => return Some(Ok(())),
            (Job::Flush, _) => unreachable!("flushes are answered together"),
            (Job::Zero { .. }, Ok(_)) => {
                return Some(Err(IoError::new(IoErrorKind::Medium, "nothing could be written")));
            }
            (_, Err(error)) if error.raw_os_error() == Some(libc::EINTR) => {}
            (_, Err(error)) => return Some(Err(error.into())),
        }
        self.start(io, key)
    }

    fn seek_extent(&self, offset: u64, size: u64) -> Extent {
        let seek_from = |offset: u64, whence| {
            // SAFETY: a plain system call on a live descriptor; the file position is not used by anyone.
            unsafe { libc::lseek(self.handles.buffered.as_raw_fd(), offset as i64, whence) }
        };
        let seek = |whence| seek_from(offset, whence);
        let data = seek(libc::SEEK_DATA);
        if data < 0 {
            let nothing_left = Error::last_os_error().raw_os_error() == Some(libc::ENXIO);
            // What a file that has shrunk held at its end is no hole: reading it must fail.
            let whole = seek_from(0, libc::SEEK_END) as u64 >= size;
            return Extent { end: size, data: !(nothing_left && whole) };
        }
        if data as u64 > offset {
            return Extent { end: (data as u64).min(size), data: false };
        }
        match seek(libc::SEEK_HOLE) {
            hole if hole > 0 && hole as u64 > offset => Extent { end: (hole as u64).min(size), data: true },
            _ => Extent { end: size, data: true },
        }
    }

    fn finish(&mut self, key: u32, result: Result<(), IoError>, done: &mut Vec<Completion>) {
        // A device that has gone fails requests with words of all kinds.
        let result = result.map_err(|error| match error.kind {
            IoErrorKind::FlushFailed => error,
            _ => self.check_identity(Certainty::Seen).err().unwrap_or(error),
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
        let job = match self.job(request.kind) {
            Ok(job) => job,
            Err(error) => return done.push(Completion { id: request.id, result: Err(error) }),
        };
        let pending = Pending { id: request.id, job, through_cache: false, owes_flush: false };
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
        // A punch on its way might be in the file already and not yet in what was just read.
        if extent.data && self.pending.iter().flatten().all(|pending| !pending.job.is_punch()) {
            self.data_extent = Some(DataExtent { range: offset..extent.end, punched });
            found_last.clone_from(&self.data_extent);
        }
        extent
    }

    fn lend(&mut self, offset: u64, length: usize, looks: Looks) -> Option<Span> {
        let punched = self.shared.punched.load(Ordering::Relaxed);
        let Handles { buffered, mapped, .. } = &mut self.handles;
        mapped.as_mut()?.lend(&**buffered, offset, length, punched, looks)
    }

    fn resize(&mut self, size_bytes: u64) {
        self.capability.size_bytes = size_bytes;
        self.shared.resized.store(size_bytes, Ordering::Release);
        self.data_extent = None;
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn fingerprint(&self) -> Fingerprint {
        let size_bytes = self.capability.size_bytes;
        let metadata = || std::fs::File::from(self.handles.buffered.try_clone()?).metadata();
        match (&self.identity, metadata()) {
            (Identity::Device { device }, _) => Kernel::default().fingerprint(*device, size_bytes),
            (_, Ok(metadata)) => Fingerprint::of_file(&metadata, size_bytes),
            // Not to be compared with what it was: whoever asks is told that it has changed.
            (identity, Err(error)) => Fingerprint {
                contents: format!("unknown: {error}"),
                ..Fingerprint::of_identity(identity, size_bytes)
            },
        }
    }

    fn disks(&self) -> &[u64] {
        &self.shared.disks
    }

    fn check_identity(&mut self, certainty: Certainty) -> Result<(), IoError> {
        let Some(opened) = &self.shared.opened else { return Ok(()) };
        let mut devices = Devices::shared();
        let lost = match certainty {
            _ if !probe::is_still(opened, &*self.handles.buffered) => Err(Lost::TakenOver),
            Certainty::Heard => devices.heard(opened),
            Certainty::Seen => devices.look(opened),
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
