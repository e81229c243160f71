//! One interface with a peer made of `smoltcp::wire`: what it receives is data, what it sends is read back as a line.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet,
    Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscOption,
};

use super::records::HELD_MAX;
use super::*;
use crate::packet::{fold, pseudo_header_sum, sum};
use crate::{FrameId, Refusal, Source, VNET_BYTES};

mod icmp;
mod listener;
mod neighbours;
mod routes;

const US: Mac = [2, 0, 0, 0, 0, 1];
const PEER: Mac = [2, 0, 0, 0, 0, 2];
const OTHER: Mac = [2, 0, 0, 0, 0, 3];
const ALL: Mac = [0xff; 6];
/// Our link-local address.
const LOCAL: &str = "fe80::ff:fe00:1";

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

/// Interfaces with the frames that they hold. Each call works on records that were just attached.
struct Bench {
    state: State,
    neighbours: Vec<Neighbour>,
    frames: HashMap<FrameId, Vec<u8>>,
    next_frame: FrameId,
    positions: [u64; INTERFACES_MAX],
    now: Time,
}

impl Bench {
    fn new() -> Self {
        Self::with(&[(0, "10.0.0.1", 24), (0, "fd00::1", 64)], &["10.0.0.254", "fd00::fe"])
    }

    fn with(addresses: &[(InterfaceId, &str, u8)], gateways: &[&str]) -> Self {
        let addresses: Vec<_> =
            addresses.iter().map(|&(interface, ip, bits)| (interface, ip.parse().unwrap(), bits)).collect();
        let gateways: Vec<IpAddr> = gateways.iter().map(|ip| ip.parse().unwrap()).collect();
        let mut bench = Self {
            state: State::default(),
            neighbours: vec![Neighbour::default(); 32],
            frames: HashMap::new(),
            next_frame: 100,
            positions: [0; INTERFACES_MAX],
            now: Time(1_000_000_000),
        };
        Iface::format(&mut bench.state, &mut bench.neighbours, &addresses, &gateways, [7; 16]);
        bench.iface().on_attached(0, Link { mac: US, mtu: 1500, segments: true });
        bench.sent();
        bench
    }

    fn iface(&mut self) -> Iface<'_> {
        Iface::attach(&mut self.state, &mut self.neighbours)
    }

    fn receive(&mut self, frame: Vec<u8>) -> Verdict {
        let id = self.next_frame;
        self.next_frame += 1;
        let now = self.now;
        let arrived = Arrived {
            interface: 0,
            frame: id,
            header: &frame[..frame.len().min(HEADER_BYTES)],
            length: frame.len() as u32,
            is_checked: true,
            segment_bytes: 0,
        };
        let verdict = self.iface().on_frame(&arrived, now);
        if verdict == Verdict::Held {
            self.frames.insert(id, frame);
        }
        verdict
    }

    /// The reason for which a frame is dropped.
    fn drop_reason(&mut self, frame: Vec<u8>) -> Option<DropReason> {
        let before = self.state.counters.dropped;
        let verdict = self.receive(frame);
        let reason = DropReason::ALL
            .into_iter()
            .find(|&reason| self.state.counters.dropped(reason) != before[reason as usize]);
        assert!(reason.is_none() || verdict == Verdict::Done);
        reason
    }

    /// All frames that are to be sent, whole, with their checksums.
    fn sent_frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut slot = [0xaa; HEADER_BYTES];
        let mut positions = self.positions;
        while let Some(transmit) = self.iface().poll_transmit(&mut slot, &positions) {
            positions[usize::from(transmit.interface)] += 1;
            let mut frame = slot[VNET_BYTES..][..transmit.header_bytes.into()].to_vec();
            for source in transmit.sources.into_iter().flatten() {
                let Source::Frame { frame: id, start, length } = source else { panic!("{source:?}") };
                frame.extend_from_slice(&self.frames[&id][start as usize..][..length as usize]);
            }
            if transmit.checksum_offset != 0 {
                let start = usize::from(transmit.checksum_start);
                let checksum = !fold(sum(&frame[start..]));
                frame[start + usize::from(transmit.checksum_offset)..][..2]
                    .copy_from_slice(&checksum.to_be_bytes());
            }
            frames.push(frame);
        }
        self.positions = positions;
        frames
    }

    fn sent(&mut self) -> Vec<String> {
        self.sent_frames().iter().map(|frame| line(frame)).collect()
    }

    fn lookup(&mut self, remote: &str) -> Lookup {
        let now = self.now;
        let route = self.iface().route(address(remote), None).unwrap();
        self.iface().neighbour(&route, now)
    }

    /// Lets time pass, and returns what is sent meanwhile with the second at which it is.
    fn wait(&mut self, seconds: u64) -> Vec<(u64, String)> {
        let begin = self.now;
        let mut sent = Vec::new();
        for second in 1..=seconds {
            self.now = begin.after(second * 1_000_000);
            let now = self.now;
            self.iface().on_timer(now);
            sent.extend(self.sent().into_iter().map(|line| (second, line)));
        }
        sent
    }
}

fn mac(mac: EthernetAddress) -> String {
    match mac.0 {
        ALL => "all".into(),
        [0x33, 0x33, a, b, c, d] => format!("group {a:02x}{b:02x}{c:02x}{d:02x}"),
        [2, 0, 0, 0, 0, last] => format!("m{last}"),
        other => format!("{other:x?}"),
    }
}

/// A frame of ours as a line; its checksums must be right.
fn line(bytes: &[u8]) -> String {
    let frame = EthernetFrame::new_checked(bytes).unwrap();
    assert_eq!(frame.src_addr().0, US);
    let to = mac(frame.dst_addr());
    let caps = ChecksumCapabilities::default();
    match frame.ethertype() {
        EthernetProtocol::Arp => {
            let packet = ArpPacket::new_checked(frame.payload()).unwrap();
            let ArpRepr::EthernetIpv4 {
                operation,
                source_hardware_addr,
                source_protocol_addr,
                target_hardware_addr,
                target_protocol_addr,
            } = ArpRepr::parse(&packet).unwrap()
            else {
                panic!("another kind of ARP")
            };
            assert_eq!(source_hardware_addr.0, US);
            match operation {
                ArpOperation::Request => {
                    assert_eq!(target_hardware_addr.0, [0; 6]);
                    format!("{to}: who has {target_protocol_addr}? {source_protocol_addr} asks")
                }
                _ => {
                    assert_eq!(target_hardware_addr, frame.dst_addr());
                    format!("{to}: {source_protocol_addr} is at us, {target_protocol_addr}")
                }
            }
        }
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(frame.payload()).unwrap();
            let repr = Ipv4Repr::parse(&ip, &caps).unwrap();
            let packet = Icmpv4Packet::new_checked(ip.payload()).unwrap();
            assert!(packet.verify_checksum());
            let (kind, code) = (u8::from(packet.msg_type()), packet.msg_code());
            let rest = &ip.payload()[4..8];
            format!(
                "{to}: {} > {}: icmp {kind}.{code} {rest:?} {}",
                repr.src_addr,
                repr.dst_addr,
                ip.payload().len() - 8
            )
        }
        _ => {
            let ip = Ipv6Packet::new_checked(frame.payload()).unwrap();
            let repr = Ipv6Repr::parse(&ip).unwrap();
            let (from, at) = (repr.src_addr, repr.dst_addr);
            if repr.next_header == IpProtocol::HopByHop {
                assert_eq!(repr.hop_limit, 1, "RFC 3810 §5");
                let (options, message) = ip.payload().split_at(8);
                assert_eq!(options, [58, 0, 5, 2, 0, 0, 1, 0], "RFC 2711 §2.1: router alert for MLD");
                assert!(Icmpv6Packet::new_checked(message).unwrap().verify_checksum(&from, &at));
                assert_eq!(
                    (&message[..2], &message[4..8], message.len()),
                    (&[143, 0][..], &[0, 0, 0, 1][..], 28)
                );
                let group = Ipv6Addr::from(*message[12..].first_chunk().unwrap());
                return format!("{to}: {from} > {at}: report {} of {group}", message[8]);
            }
            let packet = Icmpv6Packet::new_checked(ip.payload()).unwrap();
            assert!(packet.verify_checksum(&from, &at));
            let is_discovery =
                matches!(packet.msg_type(), Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert);
            if !is_discovery {
                let (kind, code) = (u8::from(packet.msg_type()), packet.msg_code());
                let rest = &ip.payload()[4..8];
                return format!(
                    "{to}: {from} > {at}: icmp {kind}.{code} {rest:?} {}",
                    ip.payload().len() - 8
                );
            }
            assert_eq!(repr.hop_limit, 255, "RFC 4861 §7.1");
            let option = NdiscOption::new_checked(&ip.payload()[24..]).unwrap();
            assert_eq!(option.link_layer_addr().as_bytes(), US);
            let target = packet.target_addr();
            if packet.msg_type() == Icmpv6Message::NeighborSolicit {
                assert_eq!(u8::from(option.option_type()), 1);
                format!("{to}: {at}, who has {target}? {from} asks")
            } else {
                assert_eq!(u8::from(option.option_type()), 2);
                format!("{to}: {from} > {at}: {target} is at us {:#x}", packet.neighbor_flags().bits())
            }
        }
    }
}

fn ethernet(to: Mac, from: Mac, ether_type: u16, packet: &[u8]) -> Vec<u8> {
    [&to[..], &from, &ether_type.to_be_bytes(), packet].concat()
}

fn arp(to: Mac, operation: u16, sender: (Mac, &str), target: &str) -> Vec<u8> {
    let v4 = |text: &str| text.parse::<Ipv4Addr>().unwrap().octets();
    let packet =
        [&[0, 1, 8, 0, 6, 4][..], &operation.to_be_bytes(), &sender.0, &v4(sender.1), &[0; 6], &v4(target)]
            .concat();
    ethernet(to, sender.0, 0x0806, &packet)
}

/// An IP packet in a frame from `PEER`.
fn ip(to: Mac, source: &str, destination: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ip_with(to, source, destination, protocol, 255, payload)
}

fn ip_with(to: Mac, source: &str, destination: &str, protocol: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = (address(source), address(destination));
    let packet = if let (Some(from), Some(at)) = (source.v4(), destination.v4()) {
        let total = (20 + payload.len() as u16).to_be_bytes();
        let mut packet = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, hops, protocol, 0, 0];
        packet.extend(from.octets());
        packet.extend(at.octets());
        let checksum = !fold(sum(&packet));
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        (0x0800, [&packet, payload].concat())
    } else {
        let length = (payload.len() as u16).to_be_bytes();
        let header = [0x60, 0, 0, 0, length[0], length[1], protocol, hops];
        (0x86dd, [&header[..], &source.0, &destination.0, payload].concat())
    };
    ethernet(to, PEER, packet.0, &packet.1)
}

/// ICMP of the family of the addresses, with its checksum.
fn icmp(to: Mac, source: &str, destination: &str, hops: u8, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let (from, at) = (address(source), address(destination));
    let protocol = if from.is_v4() { 1 } else { 58 };
    if message.len() >= 4 {
        message[2..4].fill(0);
        let pseudo = if from.is_v4() { 0 } else { pseudo_header_sum(from, at, 58, message.len() as u32) };
        let checksum = !fold(sum(&message) + pseudo);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    ip_with(to, source, destination, protocol, hops, &message)
}

fn v6_octets(text: &str) -> [u8; 16] {
    text.parse::<Ipv6Addr>().unwrap().octets()
}

/// Bytes of a solicitation or an advertisement.
fn discovery(kind: u8, flags: u8, target: &str, option: Option<Mac>) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &v6_octets(target)].concat();
    if let Some(mac) = option {
        message.extend([if kind == 135 { 1 } else { 2 }, 1]);
        message.extend(mac);
    }
    message
}

fn echo(source: &str, destination: &str, bytes: usize) -> Vec<u8> {
    let mut message = vec![if source.contains(':') { 128 } else { 8 }, 0, 0, 0, 0x12, 0x34, 0, 1];
    message.extend((0..bytes).map(|byte| byte as u8));
    icmp(US, source, destination, 64, &message)
}

/// A segment with ports 1000 and 3260.
fn segment() -> Vec<u8> {
    vec![0x03, 0xe8, 0x0c, 0xbc, 0, 0, 0, 77, 0, 0, 0, 9, 0x50, 0x10, 0x10, 0, 0, 0, 0, 0]
}
