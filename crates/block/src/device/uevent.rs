//! What the kernel tells of devices as they come, change and go: netlink, family KOBJECT_UEVENT.
//!
//! Anybody may listen, root or not, but only in network namespaces that belong to the initial user namespace: elsewhere (most
//! containers) nothing ever arrives, which nobody can tell from quiet. So what is heard here only hurries what
//! [`super::Devices`] would find anyway.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Longest message: the kernel's own bound (UEVENT_BUFFER_SIZE) and the header before it.
const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// The group the kernel itself speaks to; the other is udev's.
const KERNEL_GROUP: u32 = 1;

/// Something happened to a block device: it came, went, or has another medium, size or name. What it is, sysfs says better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uevent {
    /// Node name under /dev.
    pub name: String,
    /// `st_rdev` of the node.
    pub number: u64,
}

impl Uevent {
    /// Reads `ACTION@PATH`, then `KEY=VALUE` each ended by a zero byte. `None` if it is not about a block device's node.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let mut fields = message.split(|byte| *byte == 0);
        let head = std::str::from_utf8(fields.next()?).ok()?;
        head.split_once('@')?;
        let (mut block, mut name) = (false, None);
        let (mut major, mut minor) = (None, None);
        for field in fields {
            let Some((key, value)) = std::str::from_utf8(field).ok().and_then(|field| field.split_once('='))
            else {
                continue;
            };
            match key {
                "SUBSYSTEM" => block = value == "block",
                "DEVNAME" => name = Some(value.strip_prefix("/dev/").unwrap_or(value)),
                "MAJOR" => major = value.parse().ok(),
                "MINOR" => minor = value.parse().ok(),
                _ => {}
            }
        }
        let name = name.filter(|name| block && !name.is_empty())?;
        Some(Self { name: name.to_owned(), number: libc::makedev(major?, minor?) })
    }
}

/// What a look at the socket found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// About a block device.
    Event(Uevent),
    /// About something else, or not from the kernel.
    Other,
    /// Messages were lost.
    Overrun,
    /// Nothing more at present.
    Nothing,
}

/// The socket.
#[derive(Debug)]
pub struct Monitor {
    socket: OwnedFd,
}

impl Monitor {
    /// Listens from now on. Messages wait in the socket until they are looked at.
    pub fn new() -> Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a plain system call.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain C data for which all zeroes is a value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = KERNEL_GROUP;
        let length = size_of::<libc::sockaddr_nl>() as u32;
        // SAFETY: the address lives through the call and has the length given.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } != 0 {
            return Err(Error::last_os_error());
        }
        Ok(Self { socket })
    }

    /// The next message, without waiting.
    pub(super) fn next(&self) -> Heard {
        let mut message = [0u8; MESSAGE_BYTES_MAX];
        // SAFETY: plain C data for which all zeroes is a value.
        let mut from: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_nl>() as u32;
        let (buffer, capacity) = (message.as_mut_ptr().cast(), message.len());
        // SAFETY: buffer, address and length live through the call, which writes no more than it is told they hold.
        let count = unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                buffer,
                capacity,
                0,
                (&raw mut from).cast(),
                &raw mut length,
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = Error::last_os_error();
            return match error.kind() {
                ErrorKind::WouldBlock => Heard::Nothing,
                ErrorKind::Interrupted => Heard::Other,
                // ENOBUFS; whatever else it is, what was heard so far is not all.
                _ => Heard::Overrun,
            };
        };
        // Port 0 is the kernel; any process may send to a port.
        let message = &message[..count.min(capacity)];
        match Uevent::parse(message) {
            Some(event) if from.nl_pid == 0 => Heard::Event(event),
            _ => Heard::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: &[u8] = b"change@/devices/virtual/block/loop0\0ACTION=change\0DEVPATH=/devices/virtual/block/loop0\0\
        SUBSYSTEM=block\0DISK_MEDIA_CHANGE=1\0MAJOR=7\0MINOR=0\0DEVNAME=loop0\0DEVTYPE=disk\0DISKSEQ=210\0SEQNUM=1394\0";

    #[test]
    fn messages_of_block_devices_are_read() {
        let event = Uevent { name: "loop0".into(), number: libc::makedev(7, 0) };
        assert_eq!(Uevent::parse(CHANGE), Some(event));
    }

    #[test]
    fn what_is_none_is_left_alone() {
        for (defect, message) in [
            ("empty", b"".as_slice()),
            ("udev's own", b"libudev\0\xfe\xed\xca\xfe"),
            (
                "another subsystem",
                b"add@/devices/virtual/bdi/7:0\0SUBSYSTEM=bdi\0MAJOR=7\0MINOR=0\0DEVNAME=x\0",
            ),
            ("no node", b"add@/x\0SUBSYSTEM=block\0MAJOR=7\0MINOR=0\0"),
            ("no number", b"add@/x\0SUBSYSTEM=block\0DEVNAME=sda\0MAJOR=8\0"),
            ("number too large", b"add@/x\0SUBSYSTEM=block\0DEVNAME=sda\0MAJOR=99999999999\0MINOR=0\0"),
            ("no action", b"/devices/virtual/block/loop0\0SUBSYSTEM=block\0DEVNAME=sda\0MAJOR=8\0MINOR=0\0"),
            ("not text", b"add@/\xff\0SUBSYSTEM=block\0DEVNAME=sda\0MAJOR=8\0MINOR=0\0"),
        ] {
            assert_eq!(Uevent::parse(message), None, "{defect}");
        }
        for end in 0..CHANGE.len() {
            if let Some(found) = Uevent::parse(&CHANGE[..end]) {
                assert_eq!(found.number, libc::makedev(7, 0));
            }
        }
    }

    #[test]
    fn a_monitor_needs_no_privilege_and_does_not_wait() {
        let monitor = Monitor::new().expect("a socket");
        while monitor.next() != Heard::Nothing {}
    }
}
