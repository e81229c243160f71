//! Real descriptors as names of simulated sockets, and detection of system calls on them.
//!
//! A simulated socket is one end of a real socket pair. The code under test gets that end and may move, duplicate, shut
//! down or close it by system calls. The world keeps the other end and detects there that the first was shut down or
//! closed. A wake-up is a real eventfd.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

const REPORTS_MAX: usize = 64;

/// Watches descriptors, each for one event.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: plain system call; the result is checked before it is owned.
        let raw = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        Ok(Self { epoll: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    fn add(&self, fd: RawFd, events: i32, word: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (events | libc::EPOLLONESHOT) as u32, u64: word };
        for operation in [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD] {
            // SAFETY: plain system call with a live event.
            if unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) } == 0 {
                return Ok(());
            }
        }
        Err(io::Error::last_os_error())
    }

    /// Creates the name of a new socket, and the end to keep. `word` is reported when the name is shut down or closed.
    pub(crate) fn name(&self, word: u64) -> io::Result<(OwnedFd, OwnedFd)> {
        let (name, kept) = UnixStream::pair()?;
        self.add(kept.as_raw_fd(), libc::EPOLLRDHUP, word)?;
        Ok((name.into(), kept.into()))
    }

    /// Reports `word` when the eventfd is written.
    pub(crate) fn eventfd(&self, fd: RawFd, word: u64) -> io::Result<()> {
        self.add(fd, libc::EPOLLIN, word)
    }

    pub(crate) fn reports(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; REPORTS_MAX];
        let mut words = Vec::new();
        loop {
            // SAFETY: the buffer is live and has the given length; the call does not wait.
            let count = unsafe {
                libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), REPORTS_MAX as i32, 0)
            };
            let count = usize::try_from(count).unwrap_or(0);
            words.extend(events[..count].iter().map(|event| event.u64));
            if count < REPORTS_MAX {
                return words;
            }
        }
    }
}

/// The buffers of a message, as a `msghdr`.
///
/// Belongs to an operation in flight: `io::Io` keeps header, vectors and spans in place until the operation's
/// completion is delivered, and the world drops the message before that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message(*const libc::msghdr);

// SAFETY: only the thread with the turn uses it, and turns are passed under a mutex.
unsafe impl Send for Message {}

impl Message {
    pub(crate) fn new(header: *const libc::msghdr) -> Self {
        Self(header)
    }

    fn vectors(self) -> Vec<libc::iovec> {
        // SAFETY: see the type: header and vectors are live.
        unsafe { std::slice::from_raw_parts((*self.0).msg_iov, (*self.0).msg_iovlen).to_vec() }
    }

    pub(crate) fn len(self) -> usize {
        self.vectors().iter().map(|vector| vector.iov_len).sum()
    }

    pub(crate) fn copy_out(self, mut start: usize, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        for vector in self.vectors() {
            let skip = start.min(vector.iov_len);
            start -= skip;
            let take = (vector.iov_len - skip).min(count - bytes.len());
            // SAFETY: see the type; the range lies within the vector.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(vector.iov_base.cast::<u8>().add(skip), take)
            });
        }
        bytes
    }

    pub(crate) fn copy_in(self, mut bytes: &[u8]) {
        for vector in self.vectors() {
            let (now, later) = bytes.split_at(bytes.len().min(vector.iov_len));
            // SAFETY: see the type; no other code accesses the buffers of a receive in flight.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), vector.iov_base.cast(), now.len()) };
            bytes = later;
        }
        assert!(bytes.is_empty(), "more bytes than places");
    }
}
