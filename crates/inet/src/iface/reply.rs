//! Frames that interfaces send by themselves: a queue of what they say, written when the driver has room, and the
//! received frames to which they refer.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags,
    NdiscRepr,
};

use super::records::{HELD_MAX, Held, INTERFACES_MAX, Kind, REPLIES_MAX, Reply};
use super::{Iface, listener};
use crate::packet::{
    ETHERNET_BYTES, IpHeader, Mac, emit_ethernet, emit_ip, ether_type, fold, protocol, pseudo_header_sum,
};
use crate::{Address, FrameId, GATHER_MAX, HEADER_BYTES, InterfaceId, Source, Transmit, VNET_BYTES};

const ARP_BYTES: usize = 28;
/// Of the header of every ICMP message here.
pub(super) const ICMP_BYTES: usize = 8;
/// Offset of the checksum of ICMP.
const ICMP_CHECKSUM: u16 = 2;
const HOP_LIMIT: u8 = 64;
/// RFC 4861 §7.1: a router cannot have forwarded such a packet.
pub(super) const HOP_LIMIT_ON_LINK: u8 = 255;

impl Iface<'_> {
    /// Queues a frame. If the queue is full it is lost, as it may be on the link.
    pub(super) fn reply(&mut self, reply: Reply) {
        let state = &mut *self.state;
        if state.reply_count as usize == REPLIES_MAX {
            state.counters.replies_lost += 1;
            return;
        }
        state.replies[(state.reply_first + state.reply_count) as usize % REPLIES_MAX] = reply;
        state.reply_count += 1;
        state.held_waiting += u32::from(reply.kind == Kind::Icmp);
    }

    /// A reply can refer to one more received frame.
    pub(super) fn can_hold(&self) -> bool {
        let state = &*self.state;
        (state.held_waiting + state.held_count) < HELD_MAX as u32 && state.reply_count < REPLIES_MAX as u32
    }

    /// The next frame of ARP, neighbour discovery or ICMP. `positions` are the numbers of frames that all of the engine has
    /// sent so far, one of each interface; this frame is one more.
    pub fn poll_transmit(
        &mut self,
        header: &mut [u8; HEADER_BYTES],
        positions: &[u64; INTERFACES_MAX],
    ) -> Option<Transmit> {
        let state = &mut *self.state;
        state.reply_count = state.reply_count.checked_sub(1)?;
        let reply = state.replies[state.reply_first as usize];
        state.reply_first = (state.reply_first + 1) % REPLIES_MAX as u32;
        let interface = usize::from(reply.interface);
        let own = state.interfaces[interface].link.mac;
        let mut transmit = Transmit {
            interface: reply.interface,
            header_bytes: 0,
            sources: [None; GATHER_MAX],
            checksum_start: 0,
            checksum_offset: 0,
            segment_bytes: 0,
            submitted: None,
        };
        transmit.header_bytes = match reply.kind {
            Kind::ArpRequest | Kind::ArpReply => {
                state.counters.arp_sent += 1;
                emit_arp(header, own, &reply)
            }
            Kind::Solicitation | Kind::Advertisement => {
                state.counters.neighbour_discovery_sent += 1;
                emit_neighbour_discovery(header, own, &reply)
            }
            Kind::Report => listener::emit_report(header, own, &reply),
            Kind::Icmp => {
                state.held[state.held_count as usize] = Held {
                    position: positions[interface],
                    frame: reply.icmp.frame,
                    interface: reply.interface,
                    is_done: false,
                };
                state.held_count += 1;
                state.held_waiting -= 1;
                emit_icmp(header, own, &reply, &mut transmit)
            }
        };
        state.counters.sent_frames += 1;
        state.counters.sent_bytes += u64::from(transmit.header_bytes) + u64::from(reply.icmp.length);
        Some(transmit)
    }

    /// The driver has consumed the first `frames` frames of the interface.
    pub fn on_transmitted(&mut self, interface: InterfaceId, frames: u64) {
        let state = &mut *self.state;
        for held in &mut state.held[..state.held_count as usize] {
            held.is_done |= held.interface == interface && held.position < frames;
        }
    }

    /// The next frame that was held and is of no more use.
    pub fn poll_free(&mut self) -> Option<FrameId> {
        let state = &mut *self.state;
        let held = &mut state.held[..state.held_count as usize];
        let index = held.iter().position(|held| held.is_done)?;
        let frame = held[index].frame;
        held[index] = *held.last()?;
        state.held_count -= 1;
        Some(frame)
    }
}

fn emit_arp(header: &mut [u8; HEADER_BYTES], own: Mac, reply: &Reply) -> u16 {
    emit_ethernet(header, own, reply.mac, ether_type::ARP);
    let v4 = |address: Address| address.v4().expect("ARP is for IPv4");
    let (operation, target_hardware) = match reply.kind {
        Kind::ArpReply => (ArpOperation::Reply, reply.mac),
        _ => (ArpOperation::Request, [0; 6]),
    };
    ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(own),
        source_protocol_addr: v4(reply.source),
        target_hardware_addr: EthernetAddress(target_hardware),
        target_protocol_addr: v4(reply.target),
    }
    .emit(&mut ArpPacket::new_unchecked(&mut header[VNET_BYTES + ETHERNET_BYTES..][..ARP_BYTES]));
    (ETHERNET_BYTES + ARP_BYTES) as u16
}

fn emit_neighbour_discovery(header: &mut [u8; HEADER_BYTES], own: Mac, reply: &Reply) -> u16 {
    let lladdr = Some(EthernetAddress(own).into());
    let target_addr = reply.target.0.into();
    let message = Icmpv6Repr::Ndisc(match reply.kind {
        Kind::Advertisement => {
            let solicited =
                if reply.is_solicited { NdiscNeighborFlags::SOLICITED } else { NdiscNeighborFlags::empty() };
            NdiscRepr::NeighborAdvert { flags: solicited | NdiscNeighborFlags::OVERRIDE, target_addr, lladdr }
        }
        _ => NdiscRepr::NeighborSolicit { target_addr, lladdr },
    });
    let bytes = message.buffer_len();
    let start = emit_reply_ip(header, own, reply, HOP_LIMIT_ON_LINK, bytes as u32);
    message.emit(
        &reply.source.0.into(),
        &reply.destination.0.into(),
        &mut Icmpv6Packet::new_unchecked(&mut header[VNET_BYTES + start..][..bytes]),
        &ChecksumCapabilities::default(),
    );
    (start + bytes) as u16
}

fn emit_icmp(header: &mut [u8; HEADER_BYTES], own: Mac, reply: &Reply, transmit: &mut Transmit) -> u16 {
    let icmp = &reply.icmp;
    let bytes = ICMP_BYTES as u32 + icmp.length;
    let start = emit_reply_ip(header, own, reply, HOP_LIMIT, bytes);
    let mut checksum = icmp.checksum;
    if icmp.is_partial {
        // ICMPv4 has no pseudo-header.
        let is_v4 = reply.source.is_v4();
        let pseudo = pseudo_header_sum(reply.source, reply.destination, protocol::ICMP_V6, bytes);
        checksum = if is_v4 { 0 } else { fold(pseudo) };
        transmit.checksum_start = start as u16;
        transmit.checksum_offset = ICMP_CHECKSUM;
    }
    let fields = &mut header[VNET_BYTES + start..][..ICMP_BYTES];
    fields[0] = icmp.message;
    fields[1] = icmp.code;
    fields[2..4].copy_from_slice(&checksum.to_be_bytes());
    fields[4..8].copy_from_slice(&icmp.rest.to_be_bytes());
    transmit.sources[0] = (icmp.length > 0).then_some(Source::Frame {
        frame: icmp.frame,
        start: icmp.start,
        length: icmp.length,
    });
    (start + ICMP_BYTES) as u16
}

fn emit_reply_ip(
    header: &mut [u8; HEADER_BYTES],
    own: Mac,
    reply: &Reply,
    hop_limit: u8,
    payload_bytes: u32,
) -> usize {
    let protocol = if reply.source.is_v4() { protocol::ICMP_V4 } else { protocol::ICMP_V6 };
    let (source, destination) = (reply.source, reply.destination);
    let ip = IpHeader { source, destination, hop_limit, protocol, payload_start: 0, payload_bytes };
    emit_ip(header, own, reply.mac, &ip)
}
