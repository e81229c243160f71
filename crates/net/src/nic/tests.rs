//! The driver with a hand-written `inet` and application, and a socket as its device; with the kernel in `tests::kernel`.

mod cost;
mod frames;
mod hostile;
mod kernel;
mod receive;
mod transmit;
mod wires;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use area::ring::{Consumer, Producer};
use area::{Doorbell, Region, Ringer};
use inet::{Link, VNET_BYTES};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::control;
use crate::layout::{self, Channel, FRAMES_BYTES, TAIL_BYTES, head_offset, tail_offset};
use crate::slot::{FILL_NUMBERS, Fill, Input, NO_CLIENT, NO_TAIL, Returned, Span, Transmit};

const REGION_BYTES: usize = 1 << 20;
const CLIENT: u32 = 3;
const REGION: u32 = 7;
const GENERATION: u32 = 2;
const LINK: Link = Link { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, segments: true };
/// Room for a frame in a head.
const HEAD_ROOM: usize = layout::HEAD_BYTES - VNET_BYTES;

fn memory(bytes: usize) -> OwnedFd {
    let memory = memfd_create("nic-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, bytes as u64).unwrap();
    memory
}

/// Bytes that differ at every place within 64 KiB.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    std::iter::repeat_with(|| random.next() as u8).take(length).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// All memory as the supervisor holds it, `inet`'s side of it, and an application's.
struct Rig {
    descriptors: [OwnedFd; 6],
    channel: Channel,
    transmits: Producer,
    fills: Producer,
    inputs: Consumer,
    frames: Region,
    region: Region,
    returns: Consumer,
    client_bell: (Doorbell, Ringer),
}

impl Rig {
    fn new() -> Self {
        let sizes = [
            layout::driver::INET_BYTES,
            layout::driver::NIC_BYTES,
            FRAMES_BYTES,
            REGION_BYTES,
            layout::direct::NIC_BYTES,
            layout::direct::CLIENT_BYTES,
        ];
        let descriptors = sizes.map(memory);
        let [inet, nic, frames, region, direct_nic, direct_client] = &descriptors;
        let channel = Channel::map(inet.as_fd(), sizes[0], nic.as_fd(), sizes[1]).unwrap();
        let direct = Channel::map(direct_client.as_fd(), sizes[5], direct_nic.as_fd(), sizes[4]).unwrap();
        let (transmits, fills, inputs) = layout::driver::inet(&channel);
        Self {
            transmits,
            fills,
            inputs,
            frames: Region::shared(frames.as_fd(), FRAMES_BYTES, false).unwrap(),
            region: Region::shared(region.as_fd(), REGION_BYTES, true).unwrap(),
            returns: layout::direct::application(&direct),
            client_bell: Doorbell::new().unwrap(),
            channel,
            descriptors,
        }
    }

    fn driver(&self, device: Device, epoch: u32) -> Driver {
        Driver::new(self.maps(), device, LINK, epoch)
    }

    /// All of it, mapped as by a new process.
    fn maps(&self) -> Maps {
        let [inet, nic, frames, region, direct_nic, direct_client] =
            self.descriptors.each_ref().map(AsFd::as_fd);
        let channel = Channel::map(nic, layout::driver::NIC_BYTES, inet, layout::driver::INET_BYTES).unwrap();
        let direct =
            Channel::map(direct_nic, layout::direct::NIC_BYTES, direct_client, layout::direct::CLIENT_BYTES)
                .unwrap();
        let mut maps = Maps::new(channel, frames, Doorbell::new().unwrap().1).unwrap();
        maps.add_client(CLIENT, direct, self.client_bell.1.another().unwrap()).unwrap();
        maps.add_region(CLIENT, REGION, GENERATION, region, REGION_BYTES as u32).unwrap();
        maps
    }

    fn write_region(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= REGION_BYTES);
        // SAFETY: inside the region; no driver runs meanwhile.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.region.as_ptr().add(offset), bytes.len());
        }
    }

    /// Writes a frame's header and slot; `transmit.header_bytes` is as given.
    fn submit_as(&mut self, header: &[u8], transmit: Transmit) {
        let at = layout::driver::header(&self.channel, self.transmits.position(), true);
        // SAFETY: a header slot of HEADER_BYTES, of which this many lie behind VNET_BYTES; the slot is not published.
        unsafe {
            let length = header.len().min(inet::HEADER_BYTES - VNET_BYTES);
            std::ptr::copy_nonoverlapping(header.as_ptr(), at.add(VNET_BYTES), length);
        }
        assert!(self.transmits.room().unwrap() > 0);
        self.transmits.push(&transmit.into());
        let _ = self.transmits.publish();
    }

    fn submit(&mut self, header: &[u8], transmit: Transmit) {
        self.submit_as(header, Transmit { header_bytes: header.len() as u16, ..transmit });
    }

    fn fill(&mut self, epoch: u32, heads: &[u32], tails: &[u32]) {
        let mut numbers = [0; FILL_NUMBERS];
        for (to, from) in numbers.iter_mut().zip(heads.iter().chain(tails)) {
            *to = *from;
        }
        let (heads, tails) = (heads.len() as u16, tails.len() as u16);
        self.post(Fill { epoch, heads, tails, unused: 0, numbers });
    }

    fn post(&mut self, fill: Fill) {
        assert!(self.fills.room().unwrap() > 0);
        self.fills.push(&fill.into());
        let _ = self.fills.publish();
    }

    fn input(&mut self) -> Option<Input> {
        let input = self.inputs.take().unwrap()?.into();
        self.inputs.consume();
        Some(input)
    }

    /// The bytes of a frame that was received.
    fn bytes(&self, input: &Input) -> Vec<u8> {
        let length = input.length as usize;
        let in_head = length.min(HEAD_ROOM);
        assert_eq!(input.tail != NO_TAIL, length > HEAD_ROOM, "a tail only if it is needed");
        let mut bytes = vec![0; length];
        let mut copy = |offset: usize, range: std::ops::Range<usize>| {
            assert!(offset + range.len() <= FRAMES_BYTES);
            // SAFETY: inside the region; no driver runs meanwhile.
            unsafe {
                let from = self.frames.as_ptr().add(offset);
                std::ptr::copy_nonoverlapping(from, bytes[range.clone()].as_mut_ptr(), range.len());
            }
        };
        copy(head_offset(input.head) + VNET_BYTES, 0..in_head);
        if length > HEAD_ROOM {
            assert!(length - HEAD_ROOM <= TAIL_BYTES);
            copy(tail_offset(input.tail), in_head..length);
        }
        bytes
    }

    fn returned(&mut self) -> Option<Returned> {
        let returned = self.returns.take().unwrap()?.into();
        self.returns.consume();
        Some(returned)
    }

    /// Number of times that the application's bell has rung since it was last asked.
    fn rings(&self) -> usize {
        rustix::io::read(&self.client_bell.0, &mut [0; 8]).unwrap_or(0)
    }
}

/// A frame in memory of the application: not returned, whole, complete.
fn plain(spans: &[(u32, u32)]) -> Transmit {
    let mut transmit = Transmit { client: NO_CLIENT, ..Transmit::default() };
    for (to, &(offset, length)) in transmit.spans.iter_mut().zip(spans) {
        *to = Span { region: REGION, generation: GENERATION, offset, length };
    }
    transmit
}

/// A device that behaves as a TAP, and the other end of its cable: frames behind virtio_net_hdr.
fn cable() -> (Device, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    for end in [&one, &other] {
        rustix::net::sockopt::set_socket_send_buffer_size(end, 1 << 20).unwrap();
    }
    (Device::new(one, &control::Device::Tap, LINK.mtu), other)
}

/// What came out at the other end: virtio_net_hdr, frame.
fn take(cable: &OwnedFd) -> Option<([u8; 10], Vec<u8>)> {
    let mut bytes = vec![0; 80_000];
    let length = rustix::io::read(cable, &mut bytes).ok()?;
    bytes.truncate(length);
    let frame = bytes.split_off(10);
    Some((bytes.try_into().unwrap(), frame))
}

/// Puts a frame into the other end.
fn put(cable: &OwnedFd, vnet: [u8; 10], frame: &[u8]) {
    let message = [&vnet[..], frame].concat();
    assert_eq!(rustix::io::write(cable, &message), Ok(message.len()));
}

/// Turns until there is no work.
fn settle(driver: &mut Driver) {
    while driver.turn().unwrap() {}
}
