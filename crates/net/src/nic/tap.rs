//! A TAP interface: the kernel, or a bridge of it, is the other end of the cable.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use super::Opened;
use super::device::VNET_HEADER_BYTES;

/// Opens the interface `name`, or makes it, brings it up, and asks the kernel for what this stack wants: checksums
/// that are not computed, TCP segments of 64 KiB.
///
/// Needs CAP_NET_ADMIN, or a persistent interface that belongs to the user. Only one process can have it open: the
/// supervisor keeps the descriptor, and gives it to each driver.
pub fn open(name: &str) -> io::Result<Opened> {
    let mut request = request(name)?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map_err(|error| {
            // ENODEV, ENXIO: the file is there, the module is not.
            let is_missing = matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO));
            let kind = if is_missing { io::ErrorKind::NotFound } else { error.kind() };
            io::Error::new(kind, format!("/dev/net/tun cannot be opened: {error}"))
        })?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    set(&file, TUNSETIFF, &mut request).map_err(|error| {
        let why = match error.raw_os_error() {
            Some(libc::EBUSY) => match holder(name) {
                Some((pid, program)) => format!("process {pid} ({program}) has it open"),
                None => "another process has it open".to_owned(),
            },
            Some(libc::EPERM | libc::EACCES) => "making it needs CAP_NET_ADMIN".to_owned(),
            Some(libc::EINVAL) => "it exists and is not a TAP interface, or one of several queues".to_owned(),
            _ => "no TAP interface could be made".to_owned(),
        };
        explain(&error, &why)
    })?;
    let mut bytes = VNET_HEADER_BYTES as i32;
    set(&file, TUNSETVNETHDRSZ, &mut bytes)
        .map_err(|error| explain(&error, "the size of struct virtio_net_hdr"))?;
    // Without an offload the kernel delivers frames of the MTU, with checksums; the driver takes both kinds.
    let accepts = |offloads: u64| {
        // SAFETY: takes its argument by value.
        unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD as _, offloads) == 0 }
    };
    let _ = accepts(F_CSUM | F_TSO4 | F_TSO6) || accepts(F_CSUM) || accepts(0);
    let mtu = bring_up(name)?;
    Ok(Opened { descriptor: OwnedFd::from(file), mtu })
}

// Of linux/if_tun.h.
const TUNSETIFF: u64 = 0x4004_54ca;
const TUNGETIFF: u64 = 0x8004_54d2;
const TUNSETOFFLOAD: u64 = 0x4004_54d0;
const TUNSETVNETHDRSZ: u64 = 0x4004_54d8;
const F_CSUM: u64 = 1;
const F_TSO4: u64 = 2;
const F_TSO6: u64 = 4;

/// The kind stays that of `error`; ENODEV, which has none, is `NotFound`.
pub(super) fn explain(error: &io::Error, what: &str) -> io::Error {
    if error.raw_os_error() == Some(libc::ENODEV) {
        return io::Error::new(io::ErrorKind::NotFound, "no such interface");
    }
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// A process of this network namespace that has the TAP interface open, and its program, as far as /proc tells this user:
/// fdinfo of a descriptor of /dev/net/tun has a line "iff:" with the name.
fn holder(name: &str) -> Option<(u32, String)> {
    let own = fs::read_link("/proc/self/ns/net").ok();
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has_it = |pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo"));
        fs::read_link(format!("/proc/{pid}/ns/net")).ok() == own
            && descriptors.into_iter().flatten().any(|descriptor| {
                let text = descriptor.and_then(|descriptor| fs::read_to_string(descriptor.path()));
                text.is_ok_and(|text| text.lines().any(|line| line.strip_prefix("iff:\t") == Some(name)))
            })
    };
    // The first: that of a supervisor is lower than those of its drivers.
    let pid = pids.filter(has_it).min()?;
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((pid, program.trim_end().to_owned()))
}

/// Whether the interface of this descriptor was deleted.
pub(crate) fn is_gone(file: BorrowedFd<'_>) -> bool {
    // SAFETY: plain numbers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    set(&file, TUNGETIFF, &mut request).is_err_and(|error| error.raw_os_error() == Some(libc::EBADFD))
}

fn set<T>(file: &impl AsRawFd, what: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: each caller passes what the request reads and writes: struct ifreq, or an int.
    if unsafe { libc::ioctl(file.as_raw_fd(), what as _, std::ptr::from_mut(argument)) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

pub(super) fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.bytes().any(|byte| byte == 0) {
        let why = format!("the name of an interface has 1 to {} bytes", request.ifr_name.len() - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Whether the interface is there, and set down.
pub(crate) fn is_down(name: &str) -> bool {
    let flags = request(name).and_then(|mut request| flags(&socket()?, &mut request));
    flags.is_ok_and(|flags| flags & libc::IFF_UP as i16 == 0)
}

/// For requests about interfaces, of the network namespace of this process.
fn socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn flags(socket: &OwnedFd, request: &mut libc::ifreq) -> io::Result<i16> {
    set(socket, libc::SIOCGIFFLAGS, request)?;
    // SAFETY: the kernel has filled in this member.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

/// Sets the interface up, if it is not, and reads its MTU.
pub(super) fn bring_up(name: &str) -> io::Result<u16> {
    let mut request = request(name)?;
    let socket = socket()?;
    let flags = flags(&socket, &mut request).map_err(|error| explain(&error, "its flags cannot be read"))?;
    if flags & libc::IFF_UP as i16 == 0 {
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as i16;
        set(&socket, libc::SIOCSIFFLAGS, &mut request)
            .map_err(|error| explain(&error, "it cannot be brought up"))?;
    }
    read_mtu(&socket, &mut request).map_err(|error| explain(&error, "its MTU cannot be read"))
}

/// The MTU of an interface.
pub(crate) fn mtu(name: &str) -> io::Result<u16> {
    read_mtu(&socket()?, &mut request(name)?)
}

fn read_mtu(socket: &OwnedFd, request: &mut libc::ifreq) -> io::Result<u16> {
    set(socket, libc::SIOCGIFMTU, request)?;
    // SAFETY: the kernel has filled in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}
