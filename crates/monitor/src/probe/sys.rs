//! System calls that `rustix` and `socket2` lack. The only file of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

/// Most datagrams of one [`Batch::receive`].
pub(super) const BATCH_MAX: usize = 50;
/// Bytes kept of each datagram: a reply for one socket has less than 1 KiB.
const SLOT_BYTES: usize = 2048;

/// A netlink socket of `protocol` (`None`: `NETLINK_ROUTE`, which is 0); its peer is the kernel.
pub(super) fn netlink(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?)
}

/// Datagrams of one system call.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    lengths: [usize; BATCH_MAX],
}

impl Batch {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BATCH_MAX * SLOT_BYTES], lengths: [0; BATCH_MAX] }
    }

    /// Receives up to `count_max` datagrams that have arrived. `WouldBlock`: there is none.
    pub(super) fn receive(&mut self, socket: impl AsFd, count_max: usize) -> io::Result<usize> {
        let count = count_max.min(BATCH_MAX);
        // SAFETY: both are plain data for which all zeroes is a valid value.
        let (mut slices, mut headers): ([libc::iovec; BATCH_MAX], [libc::mmsghdr; BATCH_MAX]) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let parts = self.bytes.chunks_exact_mut(SLOT_BYTES).zip(&mut slices).zip(&mut headers);
        for ((slot, slice), header) in parts.take(count) {
            *slice = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT_BYTES };
            header.msg_hdr.msg_iov = slice;
            header.msg_hdr.msg_iovlen = 1;
        }
        let socket = socket.as_fd().as_raw_fd();
        // SAFETY: the first `count` headers refer to slices that refer to distinct slots of `bytes`; all of them live
        // through the call and nothing else uses them meanwhile. No name and no control data is asked for.
        let received = unsafe {
            let none = std::ptr::null_mut();
            libc::recvmmsg(socket, headers.as_mut_ptr(), count as libc::c_uint, libc::MSG_DONTWAIT, none)
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (length, header) in self.lengths.iter_mut().zip(&headers).take(received) {
            *length = (header.msg_len as usize).min(SLOT_BYTES);
        }
        Ok(received)
    }

    /// Datagram `index` of the last [`Self::receive`].
    pub(super) fn datagram(&self, index: usize) -> &[u8] {
        let start = index * SLOT_BYTES;
        &self.bytes[start..start + self.lengths[index]]
    }
}

/// Reads a socket option of any length into `buffer`; returns the bytes that the kernel filled.
fn option(socket: BorrowedFd<'_>, level: i32, name: i32, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(buffer.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the buffer lives through the call, and the kernel writes at most `length` bytes into it.
    let result = unsafe {
        let place = buffer.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), level, name, place, &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((length as usize).min(buffer.len())) }
}

/// `TCP_INFO`, as long as the kernel makes it.
pub(super) fn tcp_info<'a>(socket: BorrowedFd<'_>, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let length = option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, buffer)?;
    Ok(&buffer[..length])
}

/// `SO_MEMINFO`, Linux 4.12.
pub(super) fn memory<'a>(socket: BorrowedFd<'_>, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    /// `SO_MEMINFO`, which the `libc` crate has for some targets only.
    const SO_MEMINFO: i32 = 55;
    let length = option(socket, libc::SOL_SOCKET, SO_MEMINFO, buffer)?;
    Ok(&buffer[..length])
}

/// Binds a packet socket to all interfaces and all protocols (`ETH_P_ALL`).
pub(super) fn bind_packets(socket: impl AsFd) -> io::Result<()> {
    // SAFETY: plain data for which all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives through the call and has the length that is given.
    let result = unsafe { libc::bind(socket.as_fd().as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `SO_BUF_LOCK`, Linux 5.14: which buffers have a size that was set.
const SO_BUF_LOCK: i32 = 72;

pub(super) fn buffer_lock(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let mut value = [0; 4];
    option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

pub(super) fn set_buffer_lock(socket: BorrowedFd<'_>, value: i32) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value lives through the call and has the length that is given.
    let result = unsafe {
        let place = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_BUF_LOCK, place, length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
