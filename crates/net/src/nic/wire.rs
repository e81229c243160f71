//! A wire between the drivers of two stacks: a UNIX socket of type SOCK_SEQPACKET, one message a frame, no kernel's
//! TCP/IP. It carries frames of at most the MTU with complete checksums, as a cable does: this side divides long ones,
//! the other verifies. What goes wrong on the way happens on the side of the sender (`line.rs`); `end.rs` finds the other end.

mod end;
mod line;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, sockopt};

pub use self::end::{End, Fault};
use self::line::Line;
use super::device::{Arrival, Gather, Offload, Received, Scatter, Sent};
use super::{ETHERNET_BYTES, Opened, checksum, segment};
use crate::control;

/// Largest IP packet on a wire, as on Ethernet.
pub const MTU: u16 = 1500;
/// Bytes in the socket: the kernel counts about 2.3 KiB for a frame of 1514.
const SOCKET_BYTES: usize = 1 << 20;

/// Both ends of a wire within one process.
pub fn pair() -> io::Result<[Opened; 2]> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok([opened(one)?, opened(other)?])
}

fn opened(socket: OwnedFd) -> io::Result<Opened> {
    sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES)?;
    Ok(Opened { descriptor: socket, mtu: MTU })
}

/// One end, as its driver sees it.
#[derive(Debug)]
pub(super) struct Wire {
    socket: OwnedFd,
    mtu: u16,
    line: Line,
    /// Microseconds of the line count from here.
    start: Instant,
    /// A frame that is being divided.
    frame: Vec<u8>,
    is_up: bool,
    /// The socket has no room.
    is_full: bool,
}

impl Wire {
    pub(super) fn new(socket: OwnedFd, settings: control::Wire, mtu: u16) -> Self {
        let line = Line::new(settings);
        let frame = Vec::new();
        Self { socket, mtu, line, start: Instant::now(), frame, is_up: true, is_full: false }
    }

    pub(super) fn frame_bytes_max(&self) -> usize {
        ETHERNET_BYTES + usize::from(self.mtu)
    }

    fn us(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_micros() as u64
    }

    pub(super) fn send(&mut self, offload: &Offload, frame: &mut Gather<'_>, now: Instant) -> Sent {
        if !self.is_up {
            return Sent::Refused;
        }
        if !self.line.has_room() {
            return Sent::Busy;
        }
        self.frame.clear();
        frame.append_to(&mut self.frame);
        let us = self.us(now);
        let &Offload { checksum_start, checksum_offset, segment_bytes, header_bytes, .. } = offload;
        let line = &mut self.line;
        let is_right = if segment_bytes != 0 {
            let (header_bytes, segment_bytes) = (header_bytes.into(), segment_bytes.into());
            segment::divide(&mut self.frame, header_bytes, segment_bytes, |segment| line.enter(segment, us))
        } else {
            let is_right = self.frame.len() <= ETHERNET_BYTES + usize::from(self.mtu)
                && (checksum_start == 0
                    || checksum::complete(&mut self.frame, checksum_start.into(), checksum_offset.into()));
            if is_right {
                line.enter(&self.frame, us);
            }
            is_right
        };
        self.flush(now);
        if is_right { Sent::Taken } else { Sent::Refused }
    }

    /// Puts frames whose time has come into the socket. Returns whether there were any.
    pub(super) fn flush(&mut self, now: Instant) -> bool {
        let us = self.us(now);
        self.is_full = false;
        let mut has_any = false;
        while let Some(frame) = self.line.due(us) {
            match send(&self.socket, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => has_any = true,
                Err(Errno::AGAIN) => {
                    self.is_full = true;
                    break;
                }
                Err(Errno::INTR) => continue,
                Err(_) => {
                    self.go_down();
                    break;
                }
            }
            self.line.remove();
        }
        has_any
    }

    pub(super) fn receive(&mut self, into: &mut Scatter<'_>) -> Arrival {
        if !self.is_up {
            return Arrival::Nothing;
        }
        match into.read(self.socket.as_fd(), &mut []) {
            // No driver sends a message without bytes: the other end is closed.
            Ok(0) => {
                self.go_down();
                Arrival::Nothing
            }
            Ok(length) if (ETHERNET_BYTES..=self.frame_bytes_max()).contains(&length) => {
                Arrival::Frame(Received { length, is_checked: false, segment_bytes: 0 })
            }
            Ok(_) => Arrival::Dropped,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Arrival::Nothing,
                _ => {
                    self.go_down();
                    Arrival::Nothing
                }
            },
        }
    }

    fn go_down(&mut self) {
        self.is_up = false;
        self.is_full = false;
        self.line.clear();
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let due = self.line.next().filter(|_| !self.is_full)?;
        Some(self.start + Duration::from_micros(due))
    }

    /// The other end is there.
    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(super) fn lost(&self) -> u64 {
        self.line.lost()
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
