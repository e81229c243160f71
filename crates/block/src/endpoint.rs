//! The traits through which the mover and the target use storage, and the types of their requests and answers.

use std::fmt;
use std::time::Duration;

use area::Span;
use io::{Event, Io, Owner};

use crate::{Fingerprint, IoError, OpenError};

/// Number that the submitter gives a request; its [`Completion`] carries the same number.
pub type RequestId = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub size_bytes: u64,
    /// Logical block size that a LUN reports: 512 or 4096 bytes.
    pub block_size: u32,
    /// Unit in bytes that the medium writes without reading first.
    pub physical_block_size: u32,
    /// Offsets and lengths of requests must be multiples of this number of bytes: 1 for a file, the block size for a
    /// device or LUN.
    pub granularity: u32,
    /// Alignment of address and offset, in bytes, with which O_DIRECT transfers without a copy.
    pub alignment: u32,
    /// Longest request accepted, in bytes; a submitter splits longer ones.
    pub max_transfer_bytes: u32,
    /// Request length in bytes with the highest throughput on this medium.
    pub optimal_transfer_bytes: u32,
    /// Number of requests in flight beyond which throughput does not grow.
    pub queue_depth: u32,
    pub read_only: bool,
    /// Nothing but the endpoints of this medium writes to the storage: what was read stays true until one of them writes.
    pub sole_writer: bool,
    /// The endpoint accepts `Discard`, and discarded blocks read as zeroes.
    pub discard: bool,
    /// `WriteZeroes` is cheaper than writing zeroes.
    pub write_zeroes: bool,
    /// Writes are volatile until a `Flush`.
    pub volatile_cache: bool,
    pub rotational: bool,
}

/// Operation of a [`Request`]. Offsets and lengths are in bytes.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Fills `into` from `offset`.
    Read {
        offset: u64,
        /// Destination; its length is the length of the read.
        into: Span,
    },
    /// Writes `from` at `offset`.
    Write {
        offset: u64,
        /// Source; its length is the length of the write.
        from: Span,
        /// The data and its block allocation are on the medium before completion (FUA).
        durable: bool,
    },
    /// Makes every completed write durable.
    Flush,
    /// The range is no longer needed; where `capability().discard`, it reads as zeroes afterwards.
    Discard { offset: u64, length: u64 },
    /// The range reads as zeroes after completion.
    WriteZeroes {
        offset: u64,
        length: u64,
        /// The endpoint may deallocate the blocks instead of writing zeroes.
        may_unmap: bool,
    },
}

impl Kind {
    /// Offset of the first byte, and length; `None` for a flush.
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, into } => Some((*offset, into.len() as u64)),
            Self::Write { offset, from, .. } => Some((*offset, from.len() as u64)),
            Self::Discard { offset, length } | Self::WriteZeroes { offset, length, .. } => {
                Some((*offset, *length))
            }
            Self::Flush => None,
        }
    }

    pub fn is_write(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
    }

    pub fn verb(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Flush => "flush",
            Self::Discard { .. } => "discard",
            Self::WriteZeroes { .. } => "write-zeroes",
        }
    }
}

/// Direction of a transfer, as seen by the submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

/// One request. Completes exactly once.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: RequestId,
    pub kind: Kind,
}

/// The end of a request: either all of it was done, or `result` is the error. A short read or write is an error.
#[derive(Clone, Debug)]
pub struct Completion {
    pub id: RequestId,
    pub result: Result<(), IoError>,
}

#[derive(Clone, Debug)]
pub enum State {
    Opening,
    /// `capability()` is valid and the endpoint accepts requests.
    Ready,
    /// Final: the endpoint never becomes ready.
    Failed(OpenError),
}

/// A range of an endpoint that consists of data only or of a hole only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte after the range.
    pub end: u64,
    /// False if the range is known to read as zeroes.
    pub data: bool,
}

/// Equal for two endpoints of the same storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    File {
        device: u64,
        inode: u64,
        /// Where the storage begins in the file, in bytes: a loop device is known by its file.
        offset: u64,
    },
    Device {
        device: u64,
    },
    /// A remote LUN, by its designator or its address; also the memory of this process.
    Remote(String),
    /// Storage without an identity that could be compared.
    Unique,
}

impl Identity {
    /// The fingerprint of storage of which only the identity and the size are known; `contents` is empty.
    pub fn fingerprint(&self, size_bytes: u64) -> Fingerprint {
        let storage = match self {
            Self::File { device, inode, offset: 0 } => format!("file {device}:{inode}, {size_bytes} bytes"),
            Self::File { device, inode, offset } => {
                format!("file {device}:{inode} from byte {offset}, {size_bytes} bytes")
            }
            Self::Device { device } => format!("device {device}, {size_bytes} bytes"),
            Self::Remote(name) => format!("{name}, {size_bytes} bytes"),
            Self::Unique => format!("{size_bytes} bytes"),
        };
        Fingerprint { storage, contents: String::new() }
    }
}

/// Storage as one loop thread uses it.
///
/// Life: [`Medium::attach`] creates the endpoint. Its thread passes each event of the owners in [`Endpoint::owners`] to
/// [`Endpoint::on_event`]. While [`Endpoint::state`] is `Opening` no request may be submitted; once it is `Ready`, each
/// [`Endpoint::submit`] leads to exactly one [`Completion`]. At the end, the thread calls [`Endpoint::close`] and
/// passes events until [`Endpoint::is_closed`], or drops the endpoint at any time: operations in flight hold their own
/// spans.
pub trait Endpoint {
    /// While this is `Opening`, pass events to [`Endpoint::on_event`].
    fn state(&self) -> State {
        State::Ready
    }

    /// Valid once ready. May change later, for example when a LUN is resized.
    fn capability(&self) -> &Capability;

    /// Accepts a request. Its completion is appended to `done`, by this call or by a later [`Endpoint::on_event`].
    ///
    /// Requests in flight at the same time are not ordered: a submitter that needs an order waits for the completion.
    /// The submitter bounds the number in flight; an endpoint may queue requests that its transport cannot accept yet.
    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>);

    /// Handles an event of one of this endpoint's owners, and appends the completions to `done`.
    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>);

    /// Appends the owner numbers of this endpoint and of the endpoints that it wraps.
    fn owners(&self, owners: &mut Vec<Owner>);

    /// Bytes worth having in flight on the network to the storage, of reads or of writes: with fewer the path is not
    /// used, with more requests only wait. Follows the path as it is measured. `None`: no network, or unknown.
    fn in_flight(&self, direction: Direction) -> Option<u64> {
        let _ = direction;
        None
    }

    /// The extent that contains `offset`; data wherever the storage cannot distinguish data from a hole.
    fn extent(&mut self, offset: u64) -> Extent {
        let _ = offset;
        Extent { end: self.capability().size_bytes, data: true }
    }

    /// Storage that is memory returns a span of its stored bytes, from which data is sent without a read. Those bytes
    /// may change while they are sent, as with any read that races with a write. The process copies them out by
    /// [`Span::fetch`]. `None`: the caller submits a read. `now` is the time of the loop's turn: what was looked at in one turn
    /// holds until its end.
    fn borrow(&mut self, now: Duration, offset: u64, length: usize, reader: Reader) -> Option<Span> {
        let _ = (now, offset, length, reader);
        None
    }

    /// Storage that is memory writes `from` at once, while it is in the processor's cache, for a part of a write that has not
    /// arrived completely. False: the caller submits the write; some of the bytes may have been written.
    fn write_now(&mut self, io: &Io, offset: u64, from: &Span) -> bool {
        let _ = (io, offset, from);
        false
    }

    /// Sets the size to one that [`Medium::current_size`] returned; requests in flight are not affected.
    fn resize(&mut self, size_bytes: u64) {
        let _ = size_bytes;
    }

    /// After writes, `bytes` are to be read. A sender whose small answers waited behind them has taken that for a full path
    /// and begins slowly: the endpoint may begin a new connection. To be called with no request in flight.
    fn renew(&mut self, io: &mut Io, bytes: u64) {
        let _ = (io, bytes);
    }

    /// Starts an orderly end (an iSCSI logout). Pass events until [`Endpoint::is_closed`], or drop the endpoint.
    fn close(&mut self, io: &mut Io) {
        let _ = io;
    }

    fn is_closed(&self) -> bool {
        true
    }

    fn inspect(&self) -> &dyn Inspect;
}

/// Facts of storage beyond its [`Capability`], not used on the data path. A layer returns those of what it wraps.
pub trait Inspect {
    /// What a layer wraps: what the layer says nothing else of is that storage's.
    fn beneath(&self) -> Option<&dyn Inspect> {
        None
    }

    /// Compared to detect that source and destination are the same storage.
    fn identity(&self) -> Identity;

    /// Compared with a later one to detect other storage or contents, as far as the storage shows either.
    fn fingerprint(&self) -> Fingerprint;

    /// Device numbers of the disks of this machine that requests are served from; empty for memory, for a LUN, and
    /// where no disk is known. Two endpoints with a disk in common slow each other down.
    fn disks(&self) -> &[u64] {
        self.beneath().map_or(&[], Inspect::disks)
    }

    /// Whether the storage is still the one that was opened. The error has the kind [`crate::IoErrorKind::Gone`]: any
    /// earlier write may be on another disk, or lost, because the time of the change is not known.
    fn check_identity(&self, certainty: Evidence) -> Result<(), IoError> {
        self.beneath().map_or(Ok(()), |beneath| beneath.check_identity(certainty))
    }

    /// (name, value) pairs for the terminal and for JSON, in the terms of the standards.
    fn facts(&self) -> Vec<(&'static str, String)> {
        self.beneath().map_or_else(Vec::new, Inspect::facts)
    }

    fn retries(&self) -> u64 {
        self.beneath().map_or(0, Inspect::retries)
    }

    fn losses(&self) -> u64 {
        self.beneath().map_or(0, Inspect::losses)
    }

    /// The connection to a remote end, to be observed; `None` without one.
    fn tap(&self) -> Option<io::Tap> {
        self.beneath().and_then(Inspect::tap)
    }

    /// The path to a remote end; `None` where there is no network, or nothing is known of it.
    fn path(&self) -> Option<crate::PathReport> {
        self.beneath().and_then(Inspect::path)
    }
}

/// Evidence on which [`Inspect::check_identity`] bases its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Notifications (uevents) received so far: cheap enough for several calls per second.
    Cached,
    /// A fresh look at the storage (sysfs): at the end of a copy, and before a record of its data is written.
    Probed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The peer of a connection, whose socket refers to the pages until it has their bytes.
    Peer,
    /// The kernel, which copies them into a socket.
    Kernel,
    /// This process, to encrypt them before they are sent.
    Process,
}

/// Storage that threads share (open file, memory, address of a LUN). Each thread attaches an endpoint of its own.
pub trait Medium: Send + Sync + fmt::Debug {
    /// Creates the endpoint of the calling thread. The endpoint of remote storage starts in `State::Opening`.
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError>;

    /// The name given by the user, without secrets.
    fn name(&self) -> String;

    /// Present size of the storage in bytes; the caller passes it to [`Endpoint::resize`]. `Some` only for a file or
    /// device without the option `size=` and without layers.
    fn current_size(&self) -> Option<u64> {
        None
    }

    /// The file or device, if no layer lies between: an operation on that file equals one on this medium.
    fn as_file(&self) -> Option<&crate::FileMedium> {
        None
    }

    /// The number of the block device with the same bytes at the same offsets, if no layer lies between.
    fn as_disk(&self) -> Option<u64> {
        None
    }

    /// Whether a flush has failed: writes and flushes fail until the storage is opened again.
    fn has_failed(&self) -> bool {
        false
    }

    /// Drops what was read ahead, of all threads: a reset of the unit is about to be acknowledged.
    fn drop_read_ahead(&self) {}

    /// A name of the file or device for as long as the storage exists, whatever its path; [`host::lasting_name`].
    fn lasting_name(&self) -> Option<String> {
        None
    }
}

/// [`crate::wait_ready`] fails after this time if an endpoint is still opening; the endpoint may fail earlier.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit of an orderly end: [`crate::close_all`] returns after this time.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
