//! The device behind a driver: one system call a frame, no bytes copied on the way to it.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use area::Region;
use inet::GATHER_MAX;
use libc::iovec;
use rustix::event::PollFlags;

use super::ETHERNET_BYTES;
use super::wire::Wire;
use crate::control;

/// Bytes of struct virtio_net_hdr, without the `num_buffers` of later versions: kernels before 6.6 know no longer one
/// for AF_PACKET, and it says nothing here.
pub(super) const VNET_HEADER_BYTES: usize = 10;
/// Of a frame: the largest IP packet and the Ethernet header.
pub(super) const FRAME_BYTES_MAX: usize = 65_535 + ETHERNET_BYTES;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// A mark beside the type: CWR is set in the first segment only.
const GSO_ECN: u8 = 0x80;

/// Where the bytes of a frame lie: the device's header, the frame's, and spans, each in at most two parts.
const VECTORS: usize = 2 + 2 * GATHER_MAX;

const NO_VECTOR: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// The bytes of a frame to send, in order. Vector 0 is left for the device's own header.
pub(super) struct Gather<'a> {
    vectors: [iovec; VECTORS],
    count: usize,
    bytes: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    pub(super) fn new() -> Self {
        Self { vectors: [NO_VECTOR; VECTORS], count: 1, bytes: 0, memory: PhantomData }
    }

    fn add(&mut self, base: *mut u8, length: usize) {
        self.vectors[self.count] = iovec { iov_base: base.cast(), iov_len: length };
        self.count += 1;
        self.bytes += length;
    }

    pub(super) fn push(&mut self, bytes: &'a [u8]) {
        self.add(bytes.as_ptr().cast_mut(), bytes.len());
    }

    /// # Panics
    /// If the range is not inside the region.
    pub(super) fn push_shared(&mut self, memory: &'a Region, offset: usize, length: usize) {
        assert!(offset <= memory.len() && length <= memory.len() - offset, "bytes outside of the region");
        // SAFETY: the range is inside the region.
        self.add(unsafe { memory.as_ptr().add(offset) }, length);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends the frame to `into`. Other processes may write the memory meanwhile: what arrives is then a mixture of
    /// old and new bytes.
    pub(super) fn append_to(&self, into: &mut Vec<u8>) {
        into.reserve(self.bytes);
        for vector in &self.vectors[1..self.count] {
            // SAFETY: vectors are readable for the lifetime 'a (made from a slice, or checked against a region that is
            // borrowed for as long); `into` has room for all of them, and is memory of its own. No reference to memory
            // that others may write is created.
            unsafe {
                let to = into.as_mut_ptr().add(into.len());
                std::ptr::copy_nonoverlapping(vector.iov_base.cast::<u8>(), to, vector.iov_len);
                into.set_len(into.len() + vector.iov_len);
            }
        }
    }

    fn write(&mut self, device: BorrowedFd<'_>, prefix: &[u8]) -> io::Result<usize> {
        self.vectors[0] = iovec { iov_base: prefix.as_ptr().cast_mut().cast(), iov_len: prefix.len() };
        // SAFETY: the kernel only reads through the vectors, which are valid (see `append_to`); a mapping that lost its
        // memory is EFAULT.
        let count = unsafe { libc::writev(device.as_raw_fd(), self.vectors.as_ptr(), self.count as i32) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

/// Memory for a frame that arrives, in order: a head, perhaps a tail. Vector 0 is left for the device's own header.
pub(super) struct Scatter<'a> {
    vectors: [iovec; 3],
    count: usize,
    memory: PhantomData<&'a Region>,
}

impl<'a> Scatter<'a> {
    pub(super) fn new() -> Self {
        Self { vectors: [NO_VECTOR; 3], count: 1, memory: PhantomData }
    }

    /// # Panics
    /// If the range is not inside the region.
    pub(super) fn push(&mut self, memory: &'a Region, offset: usize, length: usize) {
        assert!(offset <= memory.len() && length <= memory.len() - offset, "bytes outside of the region");
        // SAFETY: the range is inside the region.
        let base = unsafe { memory.as_ptr().add(offset) };
        self.vectors[self.count] = iovec { iov_base: base.cast(), iov_len: length };
        self.count += 1;
    }

    /// Reads one frame or message, `prefix` first.
    pub(super) fn read(&mut self, device: BorrowedFd<'_>, prefix: &mut [u8]) -> io::Result<usize> {
        self.vectors[0] = iovec { iov_base: prefix.as_mut_ptr().cast(), iov_len: prefix.len() };
        // SAFETY: the vectors lie in `prefix` and in a region that is borrowed; its bytes are owned by no reference
        // (access to a region goes by raw pointers), and a region that is not writable is EFAULT.
        let count = unsafe { libc::readv(device.as_raw_fd(), self.vectors.as_ptr(), self.count as i32) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

/// What a frame asks of the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offload {
    /// As in `inet::Transmit`: 0, 0 if the checksum is complete.
    pub(super) checksum_start: u16,
    pub(super) checksum_offset: u16,
    /// TCP payload bytes of each segment if the frame must be divided; 0 otherwise.
    pub(super) segment_bytes: u16,
    /// Of all headers, from the Ethernet header on.
    pub(super) header_bytes: u16,
    pub(super) is_v6: bool,
}

impl Offload {
    /// struct virtio_net_hdr, in the machine's byte order (as TAP and AF_PACKET have it).
    fn vnet_header(&self) -> [u8; VNET_HEADER_BYTES] {
        let mut header = [0; VNET_HEADER_BYTES];
        if self.checksum_start != 0 {
            header[0] = NEEDS_CSUM;
            header[6..8].copy_from_slice(&self.checksum_start.to_ne_bytes());
            header[8..10].copy_from_slice(&self.checksum_offset.to_ne_bytes());
        }
        if self.segment_bytes != 0 {
            header[1] = if self.is_v6 { GSO_TCPV6 } else { GSO_TCPV4 };
            // Only here: of a frame that stays whole, the kernel would put the payload into a page of its own.
            header[2..4].copy_from_slice(&self.header_bytes.to_ne_bytes());
            header[4..6].copy_from_slice(&self.segment_bytes.to_ne_bytes());
        }
        header
    }
}

/// A frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// From the Ethernet header on, bytes.
    pub(super) length: usize,
    /// Checksums of transport headers were verified, or the frame never was on a wire.
    pub(super) is_checked: bool,
    pub(super) segment_bytes: u16,
}

impl Received {
    fn new(length: usize, vnet: [u8; VNET_HEADER_BYTES]) -> Self {
        let is_checked = vnet[0] & (NEEDS_CSUM | DATA_VALID) != 0;
        let segment_bytes = match vnet[1] & !GSO_ECN {
            GSO_TCPV4 | GSO_TCPV6 => u16::from_ne_bytes([vnet[4], vnet[5]]),
            _ => 0,
        };
        Self { length, is_checked, segment_bytes }
    }
}

/// What became of a frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Taken,
    /// The device has no room: try again, when it is writable if [`Device::interest`] says so, else after a while.
    Busy,
    /// The device refuses this frame, or its link is down.
    Refused,
}

/// What [`Device::receive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Nothing,
    Frame(Received),
    /// A frame that was lost: too long, or of a kind that virtio_net_hdr has no name for.
    Dropped,
}

/// What is behind a driver's descriptor.
#[derive(Debug)]
pub struct Device(Kind);

#[derive(Debug)]
enum Kind {
    /// A TAP, or a packet socket: frames behind virtio_net_hdr.
    Kernel {
        descriptor: OwnedFd,
        is_full: bool,
    },
    Wire(Box<Wire>),
}

impl Device {
    /// `descriptor` was opened by [`super::tap`], [`super::packet`] or [`super::wire`].
    pub fn new(descriptor: OwnedFd, kind: &control::Device, mtu: u16) -> Self {
        Self(match kind {
            control::Device::Tap | control::Device::Packet => Kind::Kernel { descriptor, is_full: false },
            control::Device::Wire(settings) => Kind::Wire(Box::new(Wire::new(descriptor, *settings, mtu))),
        })
    }

    /// Most bytes of a frame that arrives.
    pub(super) fn frame_bytes_max(&self) -> usize {
        match &self.0 {
            Kind::Kernel { .. } => FRAME_BYTES_MAX,
            Kind::Wire(wire) => wire.frame_bytes_max(),
        }
    }

    pub(super) fn send(&mut self, offload: &Offload, frame: &mut Gather<'_>) -> io::Result<Sent> {
        let (descriptor, is_full) = match &mut self.0 {
            Kind::Kernel { descriptor, is_full } => (&*descriptor, is_full),
            Kind::Wire(wire) => return Ok(wire.send(offload, frame, Instant::now())),
        };
        *is_full = false;
        let Err(error) = frame.write(descriptor.as_fd(), &offload.vnet_header()) else {
            return Ok(Sent::Taken);
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                *is_full = true;
                Ok(Sent::Busy)
            }
            Some(libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Ok(Sent::Busy),
            // The interface was deleted: TAP, packet socket.
            Some(libc::EBADFD | libc::ENXIO) => Err(error),
            // EIO and ENETDOWN: the interface is down. Others: the frame is wrong in the eyes of the device.
            _ => Ok(Sent::Refused),
        }
    }

    pub(super) fn receive(&mut self, into: &mut Scatter<'_>) -> io::Result<Arrival> {
        let descriptor = match &mut self.0 {
            Kind::Kernel { descriptor, .. } => &*descriptor,
            Kind::Wire(wire) => return Ok(wire.receive(into)),
        };
        let mut vnet = [0; VNET_HEADER_BYTES];
        match into.read(descriptor.as_fd(), &mut vnet) {
            Ok(bytes) => Ok(match bytes.checked_sub(VNET_HEADER_BYTES) {
                Some(length @ ETHERNET_BYTES..=FRAME_BYTES_MAX) => {
                    Arrival::Frame(Received::new(length, vnet))
                }
                _ => Arrival::Dropped,
            }),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(Arrival::Nothing),
                Some(libc::ENETDOWN) if super::packet::is_bound(descriptor.as_fd()) => Ok(Arrival::Nothing),
                Some(libc::EBADFD | libc::ENETDOWN) => Err(error),
                _ => Ok(Arrival::Dropped),
            },
        }
    }

    /// Moves frames whose delay is over. Returns whether there were any.
    pub(super) fn flush(&mut self) -> bool {
        match &mut self.0 {
            Kind::Kernel { .. } => false,
            Kind::Wire(wire) => wire.flush(Instant::now()),
        }
    }

    /// When [`Device::flush`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.0 {
            Kind::Kernel { .. } => None,
            Kind::Wire(wire) => wire.deadline(),
        }
    }

    /// What to wait for, if the driver is able to receive, or has a frame to send.
    pub(super) fn interest(&self, receives: bool) -> PollFlags {
        let is_up = match &self.0 {
            Kind::Kernel { .. } => true,
            Kind::Wire(wire) => wire.is_up(),
        };
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, receives && is_up);
        interest.set(PollFlags::OUT, self.is_full());
        interest
    }

    /// The device will be writable when it can take a frame again.
    pub(super) fn is_full(&self) -> bool {
        match &self.0 {
            Kind::Kernel { is_full, .. } => *is_full,
            Kind::Wire(wire) => wire.is_full(),
        }
    }

    /// Frames that a wire has lost, by its settings or by its queue.
    pub(super) fn lost(&self) -> u64 {
        match &self.0 {
            Kind::Kernel { .. } => 0,
            Kind::Wire(wire) => wire.lost(),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Kernel { descriptor, .. } => descriptor.as_fd(),
            Kind::Wire(wire) => wire.as_fd(),
        }
    }
}
