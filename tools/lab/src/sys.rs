//! System calls that the standard library lacks.

use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

/// Processor time of a process, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) user: f64,
    pub(crate) system: f64,
}

/// Switches from this process to others.
pub(crate) fn switches() -> u64 {
    let usage = usage(libc::RUSAGE_SELF);
    (usage.ru_nvcsw + usage.ru_nivcsw).cast_unsigned()
}

impl Cpu {
    /// Processor time of all threads of this process.
    pub(crate) fn now() -> Self {
        Self::of(&usage(libc::RUSAGE_SELF))
    }

    /// Processor time of child processes that were waited for.
    pub(crate) fn of_children() -> Self {
        Self::of(&usage(libc::RUSAGE_CHILDREN))
    }

    fn of(usage: &libc::rusage) -> Self {
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self { user: seconds(usage.ru_utime), system: seconds(usage.ru_stime) }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { user: self.user - earlier.user, system: self.system - earlier.system }
    }
}

/// Context switches of this process and of child processes that were waited for.
pub(crate) fn context_switches() -> u64 {
    let of = |usage: libc::rusage| (usage.ru_nvcsw + usage.ru_nivcsw).max(0) as u64;
    of(usage(libc::RUSAGE_SELF)) + of(usage(libc::RUSAGE_CHILDREN))
}

fn usage(whose: libc::c_int) -> libc::rusage {
    // SAFETY: `rusage` is plain data for which all zeroes is a valid value; the call only fills it.
    unsafe {
        let mut usage: libc::rusage = zeroed();
        libc::getrusage(whose, &raw mut usage);
        usage
    }
}

/// Writes back the dirty pages of a file or device, and drops its pages from the page cache, except mapped ones.
pub(crate) fn drop_cache(file: &File) -> io::Result<()> {
    file.sync_data()?;
    // SAFETY: the descriptor is open; advice changes no memory of this process.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Bytes of a file or device in the page cache: cachestat(2), since Linux 6.5; `None` before.
pub(crate) fn cached_bytes(file: &File) -> Option<u64> {
    /// The same number on all architectures; the libc crate lacks it.
    const SYS_CACHESTAT: libc::c_long = 451;
    // `struct cachestat_range` and `struct cachestat` of linux/mman.h.
    let (range, mut answer) = ([0u64, u64::MAX], [0u64; 5]);
    // SAFETY: both structures have the size that the kernel expects and live through the call, which fills the second.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), answer.as_mut_ptr(), 0) };
    (result == 0).then(|| answer[0] * area::PAGE_BYTES as u64)
}

/// Bytes in the socket's send queue that the peer has not acknowledged, sent or not (SIOCOUTQ, tcp(7)).
pub(crate) fn unacknowledged(socket: &TcpStream) -> io::Result<u32> {
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open and the call stores one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if result == 0 { Ok(count.max(0) as u32) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn can_capture() -> bool {
    packet_socket().is_ok()
}

/// A socket that receives a copy of every IPv4 packet of the loopback interface, from its IP header on, with a
/// timestamp.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    const BUFFER_BYTES: libc::c_int = 64 << 20;
    let check = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    let protocol = (libc::ETH_P_IP as u16).to_be();
    // SAFETY: takes plain numbers; nothing else owns the returned descriptor.
    let socket = unsafe {
        let number =
            check(libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol.into()))?;
        OwnedFd::from_raw_fd(number)
    };
    let option = |name: libc::c_int, value: *const libc::c_void, length: usize| {
        // SAFETY: `value` points to `length` bytes that live through the call.
        check(unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value, length as libc::socklen_t)
        })
    };
    let (one, buffer): (libc::c_int, _) = (1, BUFFER_BYTES);
    let wait = libc::timeval { tv_sec: 0, tv_usec: 5_000 };
    option(libc::SO_TIMESTAMPNS, (&raw const one).cast(), size_of::<libc::c_int>())?;
    option(libc::SO_RCVBUFFORCE, (&raw const buffer).cast(), size_of::<libc::c_int>())?;
    option(libc::SO_RCVTIMEO, (&raw const wait).cast(), size_of::<libc::timeval>())?;
    // SAFETY: plain data for which all zeroes is a valid value; the name ends with a zero byte.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    // SAFETY: as above.
    address.sll_ifindex = check(unsafe { libc::if_nametoindex(c"lo".as_ptr()) } as libc::c_int)?;
    // SAFETY: the address lives through the call and its length is right.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })?;
    Ok(socket)
}

/// The first bytes of a captured packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Captured {
    /// From the IP header on, as far as they fit.
    pub(crate) start: [u8; 96],
    /// The kernel's timestamp: nanoseconds of the system's clock.
    pub(crate) at_ns: u64,
    /// Whether this is the copy of the outgoing direction: on the loopback interface each packet is captured twice.
    pub(crate) is_outgoing: bool,
}

/// The next packet; `None` if there was none for 5 ms.
pub(crate) fn receive_packet(socket: &OwnedFd) -> io::Result<Option<Captured>> {
    let mut start = [0u8; 96];
    // Space for one control message with a timespec, with the alignment of cmsghdr.
    let mut control = [0u64; 8];
    // SAFETY: plain data for which all zeroes is a valid value.
    let (mut from, mut message): (libc::sockaddr_ll, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    let mut vector = libc::iovec { iov_base: start.as_mut_ptr().cast(), iov_len: start.len() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: every pointer of the message refers to a local that outlives the call, with its length.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    if count < 0 {
        let error = io::Error::last_os_error();
        let nothing = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
        return if nothing { Ok(None) } else { Err(error) };
    }
    let mut at_ns = 0;
    // SAFETY: the kernel filled the control buffer, and CMSG_FIRSTHDR stays within its length; a timestamp message
    // contains a timespec.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_TIMESTAMPNS {
            let time: libc::timespec = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast());
            at_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        }
    }
    Ok(Some(Captured { start, at_ns, is_outgoing: from.sll_pkttype == libc::PACKET_OUTGOING }))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_queue_without_a_reader_stays_unacknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_receiver, _) = listener.accept().unwrap();
        assert_eq!(unacknowledged(&sender).unwrap(), 0);
        sender.set_nonblocking(true).unwrap();
        while sender.write(&[0; 65536]).is_ok() {}
        assert!(unacknowledged(&sender).unwrap() > 0);
    }

    #[test]
    fn processor_time_grows() {
        let before = Cpu::now();
        let mut sum = 0u64;
        while Cpu::now().since(before) == Cpu::default() {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(Cpu::now().user + Cpu::now().system > before.user + before.system);
    }
}
