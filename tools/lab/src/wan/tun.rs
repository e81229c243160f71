//! TUN interfaces, and the priority of a thread. The only unsafe code of the path.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

// linux/if_tun.h
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
/// TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 and TUN_F_TSO_ECN.
const OFFLOADS: libc::c_ulong = 1 | 2 | 4 | 8;

/// Makes a TUN interface in the network namespace of the calling thread. Reads of the file do not block; each returns
/// an offload header and an IP packet, up to 64 KiB large. The interface ends with the file.
pub(super) fn open(name: &str) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: the request is plain data, for which all zeroes is a valid value, filled before the kernel reads it; the
    // name is shorter than its field, so a zero byte ends it. The second call takes a number.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        if libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) != 0
            || libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, OFFLOADS) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(file)
}

/// Lets the calling thread run before ordinary ones, so that wake-ups are not late on a busy machine. Without the right
/// to do so nothing changes.
pub(super) fn raise_priority() {
    let parameters = libc::sched_param { sched_priority: 5 };
    // SAFETY: the structure lives through the call; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
}
