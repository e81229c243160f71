//! Uevents: messages of the kernel about devices that appear, change and disappear (netlink, family KOBJECT_UEVENT).
//!
//! Any user may receive them, but only in network namespaces that belong to the initial user namespace. Elsewhere (most
//! containers) no message ever arrives, which is indistinguishable from the absence of changes. Uevents therefore only
//! speed up the detection of changes that [`super::Devices`] also finds in sysfs.

use std::io::Result;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType};

/// Maximum length of a message: the kernel's limit (UEVENT_BUFFER_SIZE) and the header before it.
const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// Multicast group of the kernel's messages; the other group is udev's.
const KERNEL_GROUP: u32 = 1;

/// A change of a block device: it appeared, disappeared, or has another medium, size or name. The details are in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uevent {
    /// Node name under /dev.
    pub name: String,
    /// `st_rdev` of the node.
    pub number: u64,
}

impl Uevent {
    /// Parses `ACTION@PATH` and zero-terminated `KEY=VALUE` fields. `None` unless a block device's node is concerned.
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

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Event(Uevent),
    /// Another message, or one that the kernel did not send.
    Other,
    Overrun,
    Nothing,
}

#[derive(Debug)]
pub struct Monitor {
    socket: OwnedFd,
}

impl Monitor {
    /// Opens the socket. Messages are queued in it from now on, until they are read.
    pub fn new() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::KOBJECT_UEVENT);
        let socket = net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        net::bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        Ok(Self { socket })
    }

    /// Reads the next message, without waiting.
    pub(super) fn next(&self) -> Received {
        let mut message = [0u8; MESSAGE_BYTES_MAX];
        let (count, _, sender) = match net::recvfrom(&self.socket, &mut message, RecvFlags::empty()) {
            Ok(received) => received,
            Err(Errno::WOULDBLOCK) => return Received::Nothing,
            Err(Errno::INTR) => return Received::Other,
            // ENOBUFS, or another error: messages may be missing.
            Err(_) => return Received::Overrun,
        };
        // The kernel sends from port 0; any process may send to this socket.
        let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
        let is_from_kernel = sender.is_none_or(|sender| sender.pid() == 0);
        match Uevent::parse(&message[..count]) {
            Some(event) if is_from_kernel => Received::Event(event),
            _ => Received::Other,
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
        while monitor.next() != Received::Nothing {}
    }
}
