//! Two pages that a server and the supervisor share, each written by one of them: how many control messages there are,
//! and how the server's loop goes. A look at either costs a load.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use area::ring::{Mapped, Words as _};
use area::{PAGE_BYTES, Region};

/// Number of control messages that the supervisor has sent to one server: so a server that does not sleep finds them
/// without a system call.
#[derive(Debug)]
pub(crate) struct News(Mapped);

impl News {
    pub(crate) const BYTES: usize = PAGE_BYTES;

    pub(crate) fn map(memory: BorrowedFd<'_>, is_supervisor: bool) -> io::Result<Self> {
        let region = Region::shared(memory, Self::BYTES, is_supervisor)?;
        Ok(Self(Mapped::new(Arc::new(region), 0, 8)))
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(0, Ordering::Acquire)
    }

    /// After the message was put into the socket.
    pub(crate) fn add(&self) {
        self.0.store(0, self.0.load(0, Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// What a server's loop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Turning,
    /// Sleeping on the doorbell and, if it says so, on input from the device.
    Sleeping {
        receives: bool,
    },
}

/// Counts a server's turns, and says whether it sleeps: from outside a loop that hangs cannot be told from one that has
/// nothing to do otherwise.
#[derive(Debug)]
pub(crate) struct Pulse(Mapped);

const TURNS: usize = 0;
const DOING: usize = 1;

impl Pulse {
    pub(crate) const BYTES: usize = PAGE_BYTES;

    /// In a region that also holds other counters, at `offset`.
    pub(crate) fn new(region: Arc<Region>, offset: usize) -> Self {
        Self(Mapped::new(region, offset, 16))
    }

    pub(crate) fn turn(&self) {
        self.0.store(TURNS, self.0.load(TURNS, Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(crate) fn set(&self, doing: Doing) {
        let word = match doing {
            Doing::Turning => 0,
            Doing::Sleeping { receives } => 1 + u64::from(receives),
        };
        self.0.store(DOING, word, Ordering::Relaxed);
    }

    pub(crate) fn turns(&self) -> u64 {
        self.0.load(TURNS, Ordering::Relaxed)
    }

    /// Any number is an answer: the server is not trusted.
    pub(crate) fn doing(&self) -> Doing {
        match self.0.load(DOING, Ordering::Relaxed) {
            0 => Doing::Turning,
            word => Doing::Sleeping { receives: word > 1 },
        }
    }
}
