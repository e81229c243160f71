//! Wakes a process that sleeps: a pipe, whose reader belongs to the one that sleeps.
//!
//! Descriptors of one eventfd share one open file: each holder could read the counter that another one has added to, or
//! clear O_NONBLOCK for all. A pipe has a writer that cannot be read, and each process that rings gets a writer with an
//! open file of its own ([`Ringer::another`]). A write to a full pipe fails with EAGAIN: the reader is readable already.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};

/// Rings taken back by one call; more leave the bell ringing.
const SILENCED: usize = 256;

/// The bell of one process, which waits until the descriptor is readable and calls [`Doorbell::silence`].
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// What others have of a bell. They ring it only if a ring says that its owner sleeps.
#[derive(Debug)]
pub struct Ringer(OwnedFd);

impl Doorbell {
    /// A bell without any [`Ringer`] is always readable.
    pub fn new() -> io::Result<(Self, Ringer)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Self(reader), Ringer(writer)))
    }

    /// Of a descriptor that another process made.
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Takes back what was rung. Call it before looking at the rings.
    pub fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; SILENCED]);
    }
}

impl Ringer {
    /// Of a descriptor that another process made.
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// For a process that is not trusted with this one's open file. Only the user who made the bell can do so, by /proc.
    pub fn another(&self) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    pub fn ring(&self) {
        // A full pipe (EAGAIN) is a bell that already rings; other errors mean that the owner does not exist.
        let _ = rustix::io::write(&self.0, &[1]);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Ringer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{fcntl_getfl, fcntl_setfl};

    use super::*;

    fn rings(bell: &Doorbell) -> bool {
        let mut polled = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        polled[0].revents().contains(PollFlags::IN)
    }

    #[test]
    fn a_bell_rings_until_it_is_silenced() {
        let (bell, ringer) = Doorbell::new().unwrap();
        assert!(!rings(&bell));
        ringer.ring();
        ringer.another().unwrap().ring();
        assert!(rings(&bell));
        bell.silence();
        assert!(!rings(&bell));
    }

    #[test]
    fn who_rings_can_neither_silence_the_bell_nor_block_another() {
        let (bell, ringer) = Doorbell::new().unwrap();
        let hostile = ringer.another().unwrap();
        fcntl_setfl(&hostile, OFlags::empty()).unwrap();
        assert!(fcntl_getfl(&ringer).unwrap().contains(OFlags::NONBLOCK));
        while rustix::io::write(&ringer, &[0; 4096]).is_ok() {}
        ringer.ring();
        assert!(rings(&bell));
        assert!(rustix::io::read(&hostile, &mut [0; 8]).is_err(), "open for writing only");
        bell.silence();
        assert!(rings(&bell), "more than one call takes back");
    }
}
