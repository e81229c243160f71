//! The interface that the mover and the target see, and nothing else.

use std::fmt;
use std::time::Duration;

use area::Span;
use io::{Event, Io, Owner};

use crate::{Fingerprint, IoError, OpenError};

/// The submitter's name for a request; comes back in its [`Completion`].
pub type RequestId = u64;

/// What an endpoint can do and what it likes. Asked, not assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Bytes in all.
    pub size_bytes: u64,
    /// Logical block size, as a LUN shows it: 512 or 4096.
    pub block_size: u32,
    /// Physical block size: what the medium writes without reading first.
    pub physical_block_size: u32,
    /// Offsets and lengths of requests must be multiples of this: 1 for a file, the block size for a device
    /// or LUN.
    pub granularity: u32,
    /// Address and offset alignment with which no copy is made (O_DIRECT).
    pub alignment: u32,
    /// Longest request accepted, in bytes; a submitter splits longer ones.
    pub max_transfer_bytes: u32,
    /// Chunk that this medium moves best, in bytes.
    pub optimal_transfer_bytes: u32,
    /// Requests in flight worth having.
    pub queue_depth: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// `Discard` is understood and discarded blocks read as zeroes.
    pub discard: bool,
    /// `WriteZeroes` is cheaper than writing zeroes.
    pub write_zeroes: bool,
    /// Writes are volatile until a `Flush`.
    pub volatile_cache: bool,
    /// Spinning medium.
    pub rotational: bool,
}

/// What is asked of storage.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Fill `into` from `offset`.
    Read {
        /// Byte offset.
        offset: u64,
        /// Destination; its length is the length of the read.
        into: Span,
    },
    /// Write `from` at `offset`.
    Write {
        /// Byte offset.
        offset: u64,
        /// Source; its length is the length of the write.
        from: Span,
        /// On the medium, allocation included, before completion (FUA).
        durable: bool,
    },
    /// Make every completed write durable.
    Flush,
    /// The range is no longer needed; where `capability().discard`, it reads as zeroes afterwards.
    Discard {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Blocks may be given back instead of written.
        may_unmap: bool,
    },
}

impl Kind {
    /// First byte and length touched; `None` for a flush.
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

    /// Whether the medium changes.
    pub fn is_write(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
    }

    /// The verb, for logs and messages.
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

/// One request. Completes exactly once.
#[derive(Clone, Debug)]
pub struct Request {
    /// The submitter's name for it.
    pub id: RequestId,
    /// What to do.
    pub kind: Kind,
}

/// A request is over. All of it was done, or `result` says why not; a short read or write is an error.
#[derive(Clone, Debug)]
pub struct Completion {
    /// As submitted.
    pub id: RequestId,
    /// Why it failed, if it did.
    pub result: Result<(), IoError>,
}

/// Whether an endpoint can be used yet.
#[derive(Clone, Debug)]
pub enum State {
    /// Still connecting.
    Opening,
    /// `capability()` is valid and requests are served.
    Ready,
    /// It will never be ready.
    Failed(OpenError),
}

/// A stretch of an endpoint that is all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte after it.
    pub end: u64,
    /// False: known to read as zeroes.
    pub data: bool,
}

/// Tells whether two endpoints are the same storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Regular file.
    File {
        /// `st_dev`.
        device: u64,
        /// `st_ino`.
        inode: u64,
    },
    /// Block device.
    Device {
        /// `st_rdev`.
        device: u64,
    },
    /// A remote LUN, by its designator or its address.
    Remote(String),
    /// Not the same as anything else.
    Unique,
}

/// Storage as one loop thread uses it.
pub trait Endpoint {
    /// Whether it is ready. Drive its events until it is not `Opening`.
    fn state(&self) -> State {
        State::Ready
    }

    /// Sizes, limits and abilities. Valid once ready; may change (a LUN that was resized).
    fn capability(&self) -> &Capability;

    /// Takes a request. It completes later through [`Endpoint::on_event`], or at once: look at `done`.
    ///
    /// Requests in flight together have no order among them; a submitter that needs one waits. The number in
    /// flight is bounded by the submitter; an endpoint may queue what its transport cannot take.
    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>);

    /// Takes an event of one of this endpoint's owners and appends what it completed.
    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>);

    /// The owner numbers whose events belong here, own and wrapped.
    fn owners(&self, owners: &mut Vec<Owner>);

    /// The extent that contains `offset`, as far as the storage knows; data where it does not.
    fn extent(&mut self, offset: u64) -> Extent {
        let _ = offset;
        Extent { end: self.capability().size_bytes, data: true }
    }

    /// The stored bytes themselves, to send from: a read without reading, for storage that is memory. They may change
    /// like those that any read races with. A process [fetches](Span::fetch) them. `None`: read them.
    fn lend(&mut self, offset: u64, length: usize, looks: Looks) -> Option<Span> {
        let _ = (offset, length, looks);
        None
    }

    /// To tell source and destination apart.
    fn identity(&self) -> Identity;

    /// To tell, later, whether this is still the same storage and still holds the same, as far as that can be seen.
    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_identity(&self.identity(), self.capability().size_bytes)
    }

    /// The disks of this machine that requests end at, by number; empty if there are none (memory, a LUN) or none is known.
    /// Two endpoints with one in common slow each other down.
    fn disks(&self) -> &[u64] {
        &[]
    }

    /// Whether this is still the storage that was opened. An error is [`crate::IoErrorKind::Gone`]: what was written since nobody
    /// knows when may be on another disk, or nowhere.
    fn check_identity(&mut self, certainty: Certainty) -> Result<(), IoError> {
        let _ = certainty;
        Ok(())
    }

    /// The storage has this size now, as [`Medium::current_size`] says; requests in flight are not affected.
    fn resize(&mut self, size_bytes: u64) {
        let _ = size_bytes;
    }

    /// Begins an orderly end (an iSCSI logout). Drive events until nothing is in flight, or drop it.
    fn close(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// Whether [`Endpoint::close`] has nothing left to wait for.
    fn is_closed(&self) -> bool {
        true
    }

    /// Facts for people and for JSON: (name, value), in the standards' words.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Requests repeated after a lost connection so far.
    fn retries(&self) -> u64 {
        0
    }

    /// Times that the connection to the storage was lost so far.
    fn losses(&self) -> u64 {
        0
    }
}

/// How sure an answer of [`Endpoint::check_identity`] has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// By what was heard of it: cheap enough to be asked several times a second.
    Heard,
    /// By looking: at the end of a copy, and before something is written down about it.
    Seen,
}

/// Who looks at bytes that storage lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// The kernel alone, which sends them.
    Kernel,
    /// This process, to seal or encrypt them on their way.
    Process,
}

/// Storage as threads share it: the open file, the memory, the address of a LUN.
pub trait Medium: Send + Sync + fmt::Debug {
    /// This thread's way in. A remote one comes back `Opening`.
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError>;

    /// What the user called it, without secrets.
    fn name(&self) -> String;

    /// Bytes in all as the storage is now, where it may have changed since it was opened and its endpoints follow
    /// ([`Endpoint::resize`]): a file or device without a size of its own choice and without layers.
    fn current_size(&self) -> Option<u64> {
        None
    }

    /// The file or device that this is, if nothing lies between: what is done to it behind the endpoint's back is the same.
    fn as_file(&self) -> Option<&crate::FileMedium> {
        None
    }

    /// The number of the block device that has the same bytes at the same places, if nothing lies between.
    fn as_disk(&self) -> Option<u64> {
        None
    }

    /// By what the open file or device is known as long as it exists, whatever its name leads to by now; see
    /// [`crate::device::lasting_name`].
    fn lasting_name(&self) -> Option<String> {
        None
    }
}

/// How long [`crate::wait_ready`] waits before it says that nothing answers, unless the endpoint gives up
/// first.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an orderly end may take.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
