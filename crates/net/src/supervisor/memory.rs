//! The memory that servers and applications share. The supervisor makes it and keeps the descriptors, but maps none.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use area::{Doorbell, Ringer, memfd};

use crate::layout::{self, FRAMES_BYTES, RingPlace};

/// A memfd, with a descriptor for its one writer and one for its readers.
#[derive(Debug)]
pub(super) struct Shared {
    writer: OwnedFd,
    reader: OwnedFd,
}

impl Shared {
    pub(super) fn new(name: &str, bytes: usize) -> io::Result<Self> {
        let writer = memfd::create(name, bytes)?;
        let reader = memfd::read_only(writer.as_fd())?;
        Ok(Self { writer, reader })
    }

    pub(super) fn writer(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }

    pub(super) fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// A doorbell, and an end to ring it by. Its owner gets the first, each other process an end of its own.
#[derive(Debug)]
pub(super) struct Bell {
    pub(super) owners: Doorbell,
    pub(super) ringer: Ringer,
}

impl Bell {
    fn new() -> io::Result<Self> {
        let (owners, ringer) = Doorbell::new()?;
        Ok(Self { owners, ringer })
    }
}

/// Between `inet` and drivers, and their bells.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) inet: Shared,
    pub(super) nic: Shared,
    pub(super) frames: Shared,
    pub(super) inet_bell: Arc<Bell>,
    pub(super) nic_bell: Arc<Bell>,
}

impl Interface {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            inet: Shared::new("net-inet", layout::driver::INET_BYTES)?,
            nic: Shared::new("net-nic", layout::driver::NIC_BYTES)?,
            frames: Shared::new("net-frames", FRAMES_BYTES)?,
            inet_bell: Arc::new(Bell::new()?),
            nic_bell: Arc::new(Bell::new()?),
        })
    }
}

/// Memory to send from.
#[derive(Debug)]
pub(super) struct SendRegion {
    pub(super) number: u32,
    pub(super) generation: u32,
    pub(super) bytes: u32,
    pub(super) reader: OwnedFd,
}

/// Of one application.
#[derive(Debug)]
pub(super) struct Application {
    /// With `inet`: the parts that the application writes, and that `inet` writes.
    pub(super) requests: Shared,
    pub(super) completions: Shared,
    /// With the driver: the parts that the application writes, and that the driver writes.
    pub(super) direct: Shared,
    pub(super) returns: Shared,
    /// What it receives, unless it reads frames where the driver received them.
    pub(super) copies: Option<Shared>,
    pub(super) bell: Bell,
    pub(super) regions: Vec<SendRegion>,
}

impl Application {
    pub(super) fn new(is_only: bool) -> io::Result<Self> {
        let copies = || Shared::new("net-received", layout::received::BYTES);
        Ok(Self {
            requests: Shared::new("net-requests", layout::client::CLIENT_BYTES)?,
            completions: Shared::new("net-completions", layout::client::INET_BYTES)?,
            direct: Shared::new("net-direct", layout::direct::CLIENT_BYTES)?,
            returns: Shared::new("net-returns", layout::direct::NIC_BYTES)?,
            copies: if is_only { None } else { Some(copies()?) },
            bell: Bell::new()?,
            regions: Vec::new(),
        })
    }
}

/// Slots published in a ring and slots consumed, of two memories that are not mapped; `None` if a server or application
/// wrote numbers that make no sense.
pub(super) fn progress(ring: &RingPlace, memories: [&Shared; 2]) -> Option<[u64; 2]> {
    let read = |(memory, offset): (usize, usize)| {
        let mut bytes = [0; 8];
        let count = rustix::io::pread(&memories[memory].reader, &mut bytes, offset as u64).ok()?;
        (count == bytes.len()).then_some(u64::from_ne_bytes(bytes))
    };
    // In this order: a counter that is read later may only be larger.
    let consumed = read(ring.consumed)?;
    let published = read(ring.published)?;
    (published >= consumed).then_some([published, consumed])
}
