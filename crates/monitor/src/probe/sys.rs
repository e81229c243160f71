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

/// Binds a packet socket to all interfaces and all protocols (`ETH_P_ALL`), and asks for the times of packets.
pub(super) fn bind_packets(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    // SAFETY: plain data for which all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives through the call and has the length that is given.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Packets dropped at a packet socket since the last call.
pub(super) fn packets_dropped(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut counts = [0; 8];
    option(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut counts)?;
    Ok(u32::from_ne_bytes([counts[4], counts[5], counts[6], counts[7]]))
}

/// Packets of one system call.
#[derive(Debug)]
pub(super) struct Packets {
    bytes: Vec<u8>,
    arrived: [Arrived; PACKETS_MAX],
}

/// What the kernel says of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrived {
    /// Bytes on the wire, which may be more than were kept.
    pub(super) length: usize,
    /// Nanoseconds since 1970.
    pub(super) at_ns: u64,
    pub(super) interface: u32,
    /// It was sent by this machine, on an interface that also receives what it sends.
    pub(super) is_echo: bool,
}

/// Most packets of one [`Packets::receive`], and bytes kept of each.
const PACKETS_MAX: usize = 32;
const PACKET_BYTES: usize = 66 << 10;
/// Room for a time: a header of 16 bytes and `struct timespec`.
const CONTROL_BYTES: usize = 64;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

impl Packets {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; PACKETS_MAX * PACKET_BYTES], arrived: [Arrived::default(); PACKETS_MAX] }
    }

    /// Receives packets that have arrived. `WouldBlock`: there is none.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: all three are plain data for which all zeroes is a valid value.
        let (mut slices, mut headers, mut addresses): (
            [libc::iovec; PACKETS_MAX],
            [libc::mmsghdr; PACKETS_MAX],
            [libc::sockaddr_ll; PACKETS_MAX],
        ) = unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
        let mut controls = [Control([0; CONTROL_BYTES]); PACKETS_MAX];
        let slots = self.bytes.chunks_exact_mut(PACKET_BYTES).zip(&mut slices).zip(&mut headers);
        for (((slot, slice), header), (address, control)) in
            slots.zip(addresses.iter_mut().zip(&mut controls))
        {
            *slice = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: PACKET_BYTES };
            header.msg_hdr.msg_iov = slice;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = (address as *mut libc::sockaddr_ll).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: each header refers to a slice of a distinct slot of `bytes`, an address and a control buffer with
        // their lengths; all of them live through the call and nothing else uses them meanwhile.
        let received = unsafe {
            let none = std::ptr::null_mut();
            libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), PACKETS_MAX as libc::c_uint, flags, none)
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        let seen = headers.iter().zip(&addresses).zip(&controls).take(received);
        for (arrived, ((header, address), control)) in self.arrived.iter_mut().zip(seen) {
            *arrived = Arrived {
                length: header.msg_len as usize,
                at_ns: stamp(&control.0).unwrap_or(0),
                interface: address.sll_ifindex.unsigned_abs(),
                is_echo: address.sll_hatype == libc::ARPHRD_LOOPBACK
                    && address.sll_pkttype == libc::PACKET_OUTGOING,
            };
        }
        Ok(received)
    }

    /// Packet `index` of the last [`Self::receive`]: what was kept, from its IP header, and what the kernel says of it.
    pub(super) fn packet(&self, index: usize) -> (&[u8], Arrived) {
        let (start, arrived) = (index * PACKET_BYTES, self.arrived[index]);
        (&self.bytes[start..start + arrived.length.min(PACKET_BYTES)], arrived)
    }
}

/// The time in a control buffer whose first message is `SCM_TIMESTAMPNS`.
fn stamp(control: &[u8; CONTROL_BYTES]) -> Option<u64> {
    let word = |at: usize| Some(i64::from_ne_bytes(control.get(at..at + 8)?.try_into().ok()?));
    let kind = i32::from_ne_bytes(control.get(12..16)?.try_into().ok()?);
    if kind != libc::SCM_TIMESTAMPNS {
        return None;
    }
    let (seconds, nanoseconds) = (u64::try_from(word(16)?).ok()?, u64::try_from(word(24)?).ok()?);
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

/// `SO_BUF_LOCK`, Linux 5.14: which buffers have a size that was set.
const SO_BUF_LOCK: i32 = 72;

pub(super) fn buffer_lock(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let mut value = [0; 4];
    option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

pub(super) fn set_buffer_lock(socket: BorrowedFd<'_>, value: i32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, value)
}

fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value lives through the call and has the length that is given.
    let result = unsafe {
        let place = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, name, place, length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
