//! Frames of TCP and ICMP as `inet` builds them, written by hand.

use std::net::IpAddr;

use super::*;
use crate::nic::checksum::{Sum, verify};
use crate::nic::segment::divide;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const PSH: u8 = 8;
pub(super) const ACK: u8 = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) source_mac: [u8; 6],
    pub(super) destination_mac: [u8; 6],
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

impl Flow {
    pub(super) fn is_v6(&self) -> bool {
        self.source.is_ipv6()
    }

    fn addresses(&self) -> Vec<u8> {
        let bytes = |ip| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        [bytes(self.source), bytes(self.destination)].concat()
    }

    /// Of Ethernet and IP.
    pub(super) fn header_bytes(&self) -> usize {
        if self.is_v6() { 54 } else { 34 }
    }

    /// Ethernet and IP in front of `payload_bytes`.
    pub(super) fn ip(&self, protocol: u8, payload_bytes: usize) -> Vec<u8> {
        let mut bytes = [self.destination_mac, self.source_mac].concat();
        if self.is_v6() {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((payload_bytes as u16).to_be_bytes());
            bytes.extend([protocol, 64]);
            bytes.extend(self.addresses());
        } else {
            bytes.extend([0x08, 0x00, 0x45, 0]);
            bytes.extend((20 + payload_bytes as u16).to_be_bytes());
            bytes.extend([0xab, 0xff, 0x40, 0, 64, protocol, 0, 0]);
            bytes.extend(self.addresses());
            let mut sum = Sum::default();
            sum.add(&bytes[14..34]);
            bytes[24..26].copy_from_slice(&(!sum.fold()).to_ne_bytes());
        }
        bytes
    }

    pub(super) fn pseudo_header(&self, protocol: u8, length: usize) -> Sum {
        let mut sum = Sum::default();
        sum.add(&self.addresses());
        sum.add(&[0, protocol]);
        sum.add(&(length as u16).to_be_bytes());
        sum
    }

    /// Headers of TCP with a partial checksum, as `inet` writes them. `tcp` is without the two ports.
    pub(super) fn tcp(&self, ports: [u16; 2], tcp: &Tcp, payload_bytes: usize) -> Vec<u8> {
        let length = 20 + tcp.options.len() + payload_bytes;
        let mut bytes = self.ip(6, length);
        bytes.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        bytes.extend(tcp.seq.to_be_bytes());
        bytes.extend(tcp.ack.to_be_bytes());
        bytes.extend([((20 + tcp.options.len()) as u8) << 2, tcp.flags]);
        bytes.extend(u16::MAX.to_be_bytes());
        bytes.extend(self.pseudo_header(6, length).fold().to_ne_bytes());
        bytes.extend([0, 0]);
        bytes.extend(tcp.options);
        bytes
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tcp<'a> {
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    /// A multiple of 4 bytes.
    pub(super) options: &'a [u8],
}

pub(super) const V4: Flow = Flow {
    source_mac: LINK.mac,
    destination_mac: [2, 0, 0, 0, 0, 2],
    source: IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2)),
    destination: IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1)),
};
pub(super) const V6: Flow = Flow {
    source_mac: LINK.mac,
    destination_mac: [2, 0, 0, 0, 0, 2],
    source: IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2)),
    destination: IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 1)),
};

/// A TCP frame with a complete checksum.
pub(super) fn tcp_frame(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let tcp = Tcp { seq: u32::MAX - 1000, ack: 5, flags: ACK | PSH | FIN, options: &[1, 1, 1, 0] };
    let mut frame = flow.tcp([80, 4000], &tcp, payload.len());
    frame.extend(payload);
    assert!(checksum::complete(&mut frame, flow.header_bytes(), 16));
    frame
}

/// An ICMP or ICMPv6 echo request with a complete checksum (RFC 792, RFC 4443 §4.1).
pub(super) fn echo_frame(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len();
    let (protocol, kind) = if flow.is_v6() { (58, 128) } else { (1, 8) };
    let mut frame = flow.ip(protocol, length);
    let start = frame.len();
    let partial = if flow.is_v6() { flow.pseudo_header(58, length).fold() } else { 0 };
    frame.extend([kind, 0]);
    frame.extend(partial.to_ne_bytes());
    frame.extend([0, 1, 0, 2]);
    frame.extend(payload);
    assert!(checksum::complete(&mut frame, start, 2));
    frame
}

fn verdict(frame: &[u8]) -> Option<bool> {
    verify([frame, &[]])
}

#[test]
fn checksums_of_tcp_and_icmp_are_verified_wherever_the_frame_is_cut() {
    for flow in [V4, V6] {
        for length in [0, 1, 2, 3, 64, 1001, 1460] {
            let payload = noise(length, 1);
            for frame in [tcp_frame(&flow, &payload), echo_frame(&flow, &payload)] {
                let header = flow.header_bytes() + 8;
                for cut in [header, header + 1, frame.len() - 1, frame.len()] {
                    let (head, tail) = frame.split_at(cut.clamp(74.min(frame.len()), frame.len()));
                    assert_eq!(verify([head, tail]), Some(true), "{flow:?}, {length} cut at {cut}");
                }
                let padded = [&frame[..], &[0xee; 7]].concat();
                assert_eq!(verdict(&padded), Some(true), "Ethernet padding is no part of the packet");
            }
        }
    }
}

#[test]
fn each_changed_bit_behind_the_network_header_is_noticed() {
    for flow in [V4, V6] {
        for frame in [tcp_frame(&flow, b"odd"), echo_frame(&flow, b"even")] {
            for bit in flow.header_bytes() * 8..frame.len() * 8 {
                let mut wrong = frame.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(verdict(&wrong), Some(false), "{flow:?}, bit {bit}");
            }
        }
    }
}

/// A query of multicast listeners has its router alert there (RFC 3810 §5).
#[test]
fn icmpv6_behind_hop_by_hop_options_is_verified() {
    let frame = echo_frame(&V6, b"payload");
    let (ip, message) = frame.split_at(V6.header_bytes());
    let mut frame = [ip, &[58, 0, 5, 2, 0, 0, 1, 0], message].concat();
    frame[18..20].copy_from_slice(&(message.len() as u16 + 8).to_be_bytes());
    frame[20] = 0;
    assert_eq!(verdict(&frame), Some(true));
    let last = frame.len() - 1;
    frame[last] ^= 1;
    assert_eq!(verdict(&frame), Some(false));
    for (name, at, byte) in [("options_behind_the_end", 55, 255), ("another_header", 54, 43)] {
        let mut frame = frame.clone();
        frame[at] = byte;
        assert_eq!(verdict(&frame), None, "{name}");
    }
    assert_eq!(verdict(&frame[..55]), None, "options_truncated");
}

#[test]
fn what_is_not_tcp_or_icmp_is_not_judged() {
    let v4 = tcp_frame(&V4, b"payload");
    let v6 = tcp_frame(&V6, b"payload");
    let changed = |frame: &[u8], at: usize, bytes: &[u8]| {
        let mut frame = frame.to_vec();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let cases: &[(&str, Vec<u8>)] = &[
        ("header_truncated", v4[..33].to_vec()),
        ("no_bytes", Vec::new()),
        ("ethertype_truncated", v4[..13].to_vec()),
        ("arp", changed(&v4, 12, &[8, 6])),
        ("vlan", changed(&v4, 12, &[0x81, 0])),
        ("version_of_ipv4", changed(&v4, 14, &[0x55])),
        ("ihl_too_small", changed(&v4, 14, &[0x44])),
        ("ihl_behind_the_end", changed(&v4[..40], 14, &[0x4f])),
        ("total_length_too_long", changed(&v4, 16, &[0xff, 0xff])),
        ("total_length_below_header", changed(&v4, 16, &[0, 19])),
        ("first_fragment", changed(&v4, 20, &[0x20, 0])),
        ("later_fragment", changed(&v4, 20, &[0, 1])),
        ("udp", changed(&v4, 23, &[17])),
        ("icmpv6_in_ipv4", changed(&v4, 23, &[58])),
        ("version_of_ipv6", changed(&v6, 14, &[0x45])),
        ("payload_length_too_long", changed(&v6, 18, &[0xff, 0xff])),
        ("hop_by_hop_header", changed(&v6, 20, &[0])),
        ("icmp_in_ipv6", changed(&v6, 20, &[1])),
        ("ipv6_truncated", v6[..53].to_vec()),
    ];
    for (name, frame) in cases {
        assert_eq!(verdict(frame), None, "{name}");
    }
}

#[test]
fn a_divided_frame_is_the_same_stream_in_right_segments() {
    for (flow, length, segment_bytes) in
        [(V4, 65_160, 1448), (V6, 65_160, 1428), (V4, 1449, 1448), (V4, 1448, 1448), (V6, 2999, 1000)]
    {
        let payload = noise(length, 2);
        let mut frame = tcp_frame(&flow, &payload);
        // CWR in the original.
        let tcp = flow.header_bytes();
        frame[tcp + 13] |= 0x80;
        let header_bytes = frame.len() - length;
        let mut stream: Vec<u8> = Vec::new();
        let mut identifications = Vec::new();
        assert!(divide(&mut frame, header_bytes, segment_bytes, |segment| {
            let is_first = stream.is_empty();
            assert_eq!(verdict(segment), Some(true), "{flow:?}, {length}, at {}", stream.len());
            let seq = u32::from_be_bytes(*segment[tcp + 4..].first_chunk().unwrap());
            assert_eq!(seq, (u32::MAX - 1000).wrapping_add(stream.len() as u32));
            stream.extend(&segment[header_bytes..]);
            let is_last = stream.len() == length;
            assert!(segment.len() - header_bytes == segment_bytes || is_last);
            let expected = ACK | if is_last { FIN | PSH } else { 0 } | if is_first { 0x80 } else { 0 };
            assert_eq!(segment[tcp + 13], expected, "flags at {}", stream.len());
            if !flow.is_v6() {
                let mut sum = Sum::default();
                sum.add(&segment[14..34]);
                assert!(sum.is_right(), "header checksum");
                identifications.push(u16::from_be_bytes([segment[18], segment[19]]));
            }
        }));
        assert!(stream == payload, "{flow:?}, {length}");
        assert!(identifications.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)));
    }
}

#[test]
fn what_is_no_tcp_is_not_divided() {
    let frame = tcp_frame(&V4, &[7; 100]);
    let header = frame.len() - 100;
    let cases: &[(&str, Vec<u8>, usize, usize)] = &[
        ("segment_of_nothing", frame.clone(), header, 0),
        ("header_without_tcp", frame.clone(), 53, 10),
        ("header_longer_than_the_frame", frame.clone(), frame.len() + 1, 10),
        ("header_longer_than_any", frame.clone(), 245, 10),
        ("icmp", echo_frame(&V4, &[7; 100]), 42, 10),
        ("no_bytes", Vec::new(), 0, 10),
    ];
    for (name, frame, header_bytes, segment_bytes) in cases {
        let mut frame = frame.clone();
        assert!(!divide(&mut frame, *header_bytes, *segment_bytes, |_| panic!("{name}")), "{name}");
    }
}

#[test]
fn a_checksum_outside_of_the_frame_is_not_completed() {
    for (start, offset) in [(0, 9), (0, 10), (10, 0), (11, 0), (usize::MAX, 0), (5, usize::MAX)] {
        assert!(!checksum::complete(&mut [1; 10], start, offset), "{start}, {offset}");
    }
}
