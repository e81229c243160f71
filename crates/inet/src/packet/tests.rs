use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr,
    TcpPacket, TcpRepr,
};

use super::*;

const US: Mac = [2, 0, 0, 0, 0, 1];
const PEER: Mac = [2, 0, 0, 0, 0, 2];

fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

fn arrived(frame: &[u8]) -> Arrived<'_> {
    Arrived {
        interface: 0,
        frame: 7,
        header: &frame[..frame.len().min(HEADER_BYTES)],
        length: frame.len() as u32,
        is_checked: true,
        segment_bytes: 0,
    }
}

fn parsed(frame: &[u8]) -> Parsed {
    parse(&arrived(frame))
}

fn ethernet(ether_type: u16, packet: &[u8]) -> Vec<u8> {
    [&US[..], &PEER, &ether_type.to_be_bytes(), packet].concat()
}

/// An IPv4 packet from 10.0.0.2 to 10.0.0.1, whose checksum is right after `change`.
fn v4(protocol: u8, payload: &[u8], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut packet = [
        &[0x45, 0, 0, 20 + payload.len() as u8, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1][..],
        payload,
    ]
    .concat();
    change(&mut packet);
    let header_bytes = (usize::from(packet[0] & 15) * 4).clamp(20, packet.len());
    packet[10..12].fill(0);
    let checksum = !fold(sum(&packet[..header_bytes]));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    ethernet(0x0800, &packet)
}

/// An IPv6 packet from fd00::2 to fd00::1.
fn v6(next_header: u8, payload: &[u8], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x60;
    packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    packet[6] = next_header;
    packet[7] = 64;
    packet[8..24].copy_from_slice(&address("fd00::2").0);
    packet[24..40].copy_from_slice(&address("fd00::1").0);
    packet.extend_from_slice(payload);
    change(&mut packet);
    ethernet(0x86dd, &packet)
}

/// A TCP header and three bytes of payload.
fn segment(flags: u8, options: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x30, 0x39, 0x0c, 0xbc, 0, 0, 0, 5, 0, 0, 0, 9, 0, flags, 0x10, 0, 0xab, 0xcd, 0, 0];
    bytes.extend_from_slice(options);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes[12] = ((bytes.len() / 4) << 4) as u8;
    bytes.extend_from_slice(b"abc");
    bytes
}

fn tcp(frame: &[u8]) -> TcpHeader {
    match parsed(frame) {
        Parsed::Tcp(header) => header,
        other => panic!("{other:?}"),
    }
}

fn header_strategy() -> impl Strategy<Value = TcpHeader> {
    let ends = prop_oneof![
        Just((address("10.0.0.2"), address("10.0.0.1"))),
        Just((address("fd00::2"), address("fe80::1"))),
    ];
    let syn = (any::<bool>(), any::<Option<u16>>(), proptest::option::of(0u8..=14), any::<bool>());
    let rest =
        (any::<u32>(), any::<u32>(), any::<u8>(), any::<u16>(), any::<u16>(), any::<Option<(u32, u32)>>());
    let sack = proptest::collection::vec(any::<(u32, u32)>(), 0..=4);
    (ends, any::<(u16, u16)>(), syn, rest, sack, 0u32..60_000).prop_map(
        |((from, to), ports, (is_syn, mss, window_scale, permitted), rest, sack, payload_bytes)| {
            let (seq, ack, flags, window, urgent, timestamps) = rest;
            let flags = Flags((flags & 0x3d) | (u8::from(is_syn) << 1));
            let mut header = TcpHeader {
                source: Endpoint { address: from, port: ports.0 },
                destination: Endpoint { address: to, port: ports.1 },
                seq: SeqNumber(seq),
                ack: SeqNumber(if flags.has(Flags::ACK) { ack } else { 0 }),
                flags,
                window,
                urgent,
                mss: mss.filter(|_| is_syn),
                window_scale: window_scale.filter(|_| is_syn),
                has_sack_permitted: is_syn && permitted,
                timestamps,
                payload_bytes,
                ..TcpHeader::default()
            };
            if !is_syn {
                header.sack_count = sack.len().min(if timestamps.is_some() { 3 } else { 4 }) as u8;
                for (range, (left, right)) in header.sack.iter_mut().zip(&sack[..header.sack_count.into()]) {
                    *range = (SeqNumber(*left), SeqNumber(*right));
                }
            }
            header
        },
    )
}

/// The frame as the driver sends it, with a checksum over payload of zeroes.
fn frame_of(header: &TcpHeader) -> Vec<u8> {
    let mut slot = [0xaa; HEADER_BYTES];
    let emitted = emit_tcp(&mut slot, US, PEER, header);
    let mut frame = slot[VNET_BYTES..][..emitted.header_bytes.into()].to_vec();
    frame.resize(frame.len() + header.payload_bytes as usize, 0);
    let start = usize::from(emitted.checksum_start);
    let checksum = !fold(sum(&frame[start..]));
    frame[start + usize::from(emitted.checksum_offset)..][..2].copy_from_slice(&checksum.to_be_bytes());
    frame
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed_as_the_same(header in header_strategy()) {
        let frame = frame_of(&header);
        let got = tcp(&frame);
        let payload_start = frame.len() as u32 - header.payload_bytes;
        prop_assert_eq!(got, TcpHeader { payload_start, ..header });
        prop_assert_eq!(payload_start as usize, got.tcp_bytes() + if got.source.address.is_v4() { 34 } else { 54 });
    }

    /// smoltcp as the peer: checksums of IP and TCP, lengths, and every field that it knows.
    #[test]
    fn what_is_emitted_is_right_for_smoltcp(header in header_strategy()) {
        // Segments without a flag of those, or with more than one, have no `TcpRepr`.
        let header = TcpHeader { flags: Flags(header.flags.0 & 0x12), ..header };
        let frame = frame_of(&header);
        let frame = EthernetFrame::new_checked(&frame[..]).unwrap();
        prop_assert_eq!((frame.src_addr().0, frame.dst_addr().0), (US, PEER));
        let caps = ChecksumCapabilities::default();
        let (from, to, packet) = match frame.ethertype() {
            EthernetProtocol::Ipv4 => {
                let ip = Ipv4Packet::new_checked(frame.payload()).unwrap();
                let repr = Ipv4Repr::parse(&ip, &caps).unwrap();
                prop_assert!(repr.next_header == IpProtocol::Tcp && ip.dont_frag());
                (IpAddress::from(repr.src_addr), IpAddress::from(repr.dst_addr), ip.payload().to_vec())
            }
            _ => {
                let ip = Ipv6Packet::new_checked(frame.payload()).unwrap();
                let repr = Ipv6Repr::parse(&ip).unwrap();
                prop_assert_eq!(repr.next_header, IpProtocol::Tcp);
                (IpAddress::from(repr.src_addr), IpAddress::from(repr.dst_addr), ip.payload().to_vec())
            }
        };
        let packet = TcpPacket::new_checked(&packet[..]).unwrap();
        prop_assert!(packet.verify_checksum(&from, &to));
        prop_assert_eq!(packet.payload().len(), header.payload_bytes as usize);
        if header.source.port != 0 && header.destination.port != 0 {
            let repr = TcpRepr::parse(&packet, &from, &to, &caps).unwrap();
            prop_assert_eq!(repr.seq_number.0, header.seq.0.cast_signed());
            prop_assert_eq!(repr.ack_number.is_some(), header.flags.has(Flags::ACK));
            prop_assert_eq!(repr.window_len, header.window);
            prop_assert_eq!(repr.window_scale, header.window_scale);
            prop_assert_eq!(repr.max_seg_size, header.mss);
            prop_assert_eq!(repr.sack_permitted, header.has_sack_permitted);
            prop_assert_eq!(repr.timestamp.map(|t| (t.tsval, t.tsecr)), header.timestamps);
            let sack = header.sack[..usize::from(header.sack_count).min(3)].iter().map(|range| (range.0.0, range.1.0));
            prop_assert_eq!(repr.sack_ranges.into_iter().flatten().collect::<Vec<_>>(), sack.collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_frame_panics_and_payload_lies_in_its_frame(
        mut frame in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..400),
            header_strategy().prop_map(|header| frame_of(&TcpHeader { payload_bytes: header.payload_bytes % 300, ..header })),
            proptest::collection::vec(any::<u8>(), 0..200).prop_map(|chain| v6(chain.first().map_or(0, |next| next % 64), &chain, |_| {})),
        ],
        changes in proptest::collection::vec((0usize..120, any::<u8>()), 0..4),
        length in proptest::option::of(0u32..500),
    ) {
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        let mut given = arrived(&frame);
        given.length = length.unwrap_or(given.length);
        let (start, bytes) = match parse(&given) {
            Parsed::Tcp(header) => (header.payload_start, header.payload_bytes),
            Parsed::Icmp(ip) | Parsed::Refused(ip, _) => (ip.payload_start, ip.payload_bytes),
            _ => (0, 0),
        };
        prop_assert!(start + bytes <= given.length);
    }
}

#[test]
fn sack_ranges_beyond_the_room_are_left_out() {
    let end = Endpoint { address: address("10.0.0.1"), port: 1 };
    let range = (SeqNumber(1), SeqNumber(2));
    let header = TcpHeader {
        source: end,
        destination: end,
        flags: Flags::ACK,
        timestamps: Some((1, 2)),
        sack: [range; 4],
        sack_count: 4,
        ..TcpHeader::default()
    };
    assert_eq!(header.tcp_bytes(), 60);
    assert_eq!(tcp(&frame_of(&header)).sack_count, 3, "RFC 2018 §3: three beside timestamps");
}

/// RFC 9293 §3.2 and MUST-4 to MUST-7.
#[test]
fn options_of_tcp() {
    let plain = TcpHeader::default();
    let timestamps = Some((1, 2));
    let range = |left, right| (SeqNumber(left), SeqNumber(right));
    const SYN: u8 = 2;
    const ACK: u8 = 0x10;
    #[rustfmt::skip]
    let cases: &[(&str, u8, &[u8], TcpHeader)] = &[
        ("none", ACK, &[], plain),
        ("mss", SYN, &[2, 4, 5, 0xb4], TcpHeader { mss: Some(1460), ..plain }),
        ("mss without SYN", ACK, &[2, 4, 5, 0xb4], plain),
        ("mss of a wrong length", SYN, &[2, 3, 5, 1, 4, 2], TcpHeader { has_sack_permitted: true, ..plain }),
        ("window scale", SYN, &[1, 3, 3, 7], TcpHeader { window_scale: Some(7), ..plain }),
        ("window scale above 14", SYN, &[1, 3, 3, 200], TcpHeader { window_scale: Some(14), ..plain }),
        ("window scale without SYN", ACK, &[1, 3, 3, 7], plain),
        ("aligned timestamps", ACK, &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], TcpHeader { timestamps, ..plain }),
        ("timestamps elsewhere", ACK, &[8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1], TcpHeader { timestamps, ..plain }),
        ("an unknown option first", ACK, &[99, 4, 0, 0, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], TcpHeader { timestamps, ..plain }),
        ("behind the end", ACK, &[0, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], plain),
        ("length 0", SYN, &[2, 4, 5, 0xb4, 99, 0, 4, 2], TcpHeader { mss: Some(1460), ..plain }),
        ("length 1", SYN, &[2, 4, 5, 0xb4, 99, 1, 4, 2], TcpHeader { mss: Some(1460), ..plain }),
        ("length beyond the header", SYN, &[2, 4, 5, 0xb4, 99, 5, 4, 2], TcpHeader { mss: Some(1460), ..plain }),
        ("a kind without length", SYN, &[2, 4, 5, 0xb4, 1, 1, 1, 2], TcpHeader { mss: Some(1460), ..plain }),
        ("one range", ACK, &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            TcpHeader { sack: [range(1, 2), range(0, 0), range(0, 0), range(0, 0)], sack_count: 1, ..plain }),
        ("a range and a half", ACK, &[1, 1, 5, 14, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3], plain),
        ("no range", ACK, &[1, 1, 5, 2], plain),
    ];
    for (name, flags, options, expected) in cases {
        let payload_start = 34 + 20 + options.len().next_multiple_of(4) as u32;
        let expected = TcpHeader {
            source: Endpoint { address: address("10.0.0.2"), port: 12345 },
            destination: Endpoint { address: address("10.0.0.1"), port: 3260 },
            seq: SeqNumber(5),
            ack: SeqNumber(if *flags == ACK { 9 } else { 0 }),
            flags: Flags(*flags),
            window: 0x1000,
            payload_start,
            payload_bytes: 3,
            ..*expected
        };
        assert_eq!(tcp(&v4(6, &segment(*flags, options), |_| {})), expected, "{name}");
    }
}

#[test]
fn defects_of_ipv4_and_tcp() {
    use DropReason::*;
    let payload = segment(0x10, &[]);
    let good = v4(6, &payload, |_| {});
    let change = |at: usize, value: u8| v4(6, &payload, |packet| packet[at] = value);
    let header = |at: usize, value: u8| {
        let mut payload = payload.clone();
        payload[at] = value;
        v4(6, &payload, |_| {})
    };
    let raw = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        frame
    };
    let cases = [
        ("no Ethernet header", good[..13].to_vec(), Malformed),
        ("no IPv4 header", good[..33].to_vec(), Malformed),
        ("version 5", change(0, 0x55), Malformed),
        ("header of 16 bytes", change(0, 0x44), Malformed),
        ("header beyond the packet", change(0, 0x4f), Malformed),
        ("total length below the header's", change(3, 19), Malformed),
        ("total length beyond the frame", change(3, 44), Malformed),
        ("total length 0", change(3, 0), Malformed),
        ("checksum", raw(24, 1), Checksum),
        ("more fragments", change(6, 0x20), Fragment),
        ("last fragment", change(7, 1), Fragment),
        ("from this network", change(12, 0), Martian),
        ("from loop-back", change(12, 127), Martian),
        ("to loop-back", change(16, 127), Martian),
        ("from multicast", change(12, 224), Martian),
        ("from broadcast", v4(6, &payload, |packet| packet[12..16].fill(255)), Martian),
        ("in a broadcast frame", raw(0, 0xff), NotForUs),
        ("TCP header of 16 bytes", header(12, 0x40), Malformed),
        ("TCP header beyond the packet", header(12, 0x60), Malformed),
        ("TCP cut", v4(6, &payload[..19], |_| {}), Malformed),
        ("VLAN", ethernet(0x8100, &[0; 64]), EtherType),
        ("802.3", ethernet(64, &[0; 64]), EtherType),
    ];
    assert!(matches!(parsed(&good), Parsed::Tcp(_)));
    for (name, frame, reason) in cases {
        assert_eq!(parsed(&frame), Parsed::Dropped(reason), "{name}");
    }
    let unchecked = Arrived { is_checked: false, ..arrived(&good) };
    assert_eq!(parse(&unchecked), Parsed::Dropped(Checksum));
    let icmp = v4(1, &[0; 8], |_| {});
    assert_eq!(parse(&Arrived { is_checked: false, ..arrived(&icmp) }), Parsed::Dropped(Checksum));
    let short = Arrived { header: &good[..40], ..arrived(&good) };
    assert_eq!(parse(&short), Parsed::Dropped(TooLong));
}

#[test]
fn ipv4_options_and_padding_are_skipped() {
    let mut with_options = vec![1, 1, 1, 0];
    with_options.extend(segment(0x10, &[]));
    let mut frame = v4(6, &with_options, |packet| packet[0] = 0x46);
    frame.extend([0; 9]);
    let header = tcp(&frame);
    assert_eq!((header.payload_start, header.payload_bytes), (14 + 24 + 20, 3));
}

/// RFC 8200 §4.
#[test]
fn extension_headers() {
    let payload = segment(0x10, &[]);
    let behind = |chain: &[u8]| [chain, &payload].concat();
    const TCP: u8 = 6;
    let ip = |protocol: u8, at: u32, bytes: usize| IpHeader {
        source: address("fd00::2"),
        destination: address("fd00::1"),
        hop_limit: 64,
        protocol,
        payload_start: 54 + at,
        payload_bytes: bytes as u32 - at,
    };
    let accepted: [(&str, u8, Vec<u8>, u32); 5] = [
        ("none", TCP, behind(&[]), 0),
        ("hop-by-hop with PadN", 0, behind(&[TCP, 0, 1, 4, 0, 0, 0, 0]), 8),
        (
            "destination options with Pad1 and an option to skip",
            60,
            behind(&[TCP, 0, 0, 0x1e, 3, 9, 9, 9]),
            8,
        ),
        (
            "hop-by-hop, then destination options",
            0,
            behind(&[60, 0, 1, 4, 0, 0, 0, 0, TCP, 0, 1, 4, 0, 0, 0, 0]),
            16,
        ),
        ("routing without segments left", 43, behind(&[TCP, 0, 9, 0, 0, 0, 0, 0]), 8),
    ];
    for (name, next, chain, at) in accepted {
        let header = tcp(&v6(next, &chain, |_| {}));
        assert_eq!((header.payload_start, header.payload_bytes), (54 + at + 20, 3), "{name}");
    }
    let problem = |code, pointer| Refused::Parameter { code, pointer };
    type Case = (&'static str, u8, Vec<u8>, u32, u8, Refused);
    let refused: [Case; 7] = [
        ("UDP", 17, vec![0; 8], 0, 17, Refused::Protocol),
        ("unknown next header", 253, vec![0; 8], 0, 253, problem(1, 6)),
        ("unknown behind options", 60, vec![253, 0, 1, 4, 0, 0, 0, 0], 8, 253, problem(1, 40)),
        (
            "hop-by-hop behind options",
            60,
            behind(&[0, 0, 1, 4, 0, 0, 0, 0, TCP, 0, 1, 4, 0, 0, 0, 0]),
            8,
            0,
            problem(1, 40),
        ),
        ("option to be refused", 60, behind(&[TCP, 0, 1, 0, 0x9e, 2, 0, 0]), 0, 60, problem(2, 44)),
        ("option to be refused to one host", 0, behind(&[TCP, 0, 0xde, 4, 0, 0, 0, 0]), 0, 0, problem(2, 42)),
        ("routing with segments left", 43, behind(&[TCP, 0, 0, 1, 0, 0, 0, 0]), 0, 43, problem(0, 42)),
    ];
    for (name, next, chain, at, protocol, why) in refused {
        let expected = Parsed::Refused(ip(protocol, at, chain.len()), why);
        assert_eq!(parsed(&v6(next, &chain, |_| {})), expected, "{name}");
    }
    use DropReason::*;
    let icmp_error = [58, 0, 0x9e, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let multicast = |packet: &mut [u8]| packet[24] = 0xff;
    let nothing = |_: &mut [u8]| {};
    let mut long = vec![TCP, 31];
    long.resize(256, 0);
    let dropped: [(&str, Vec<u8>, DropReason); 15] = [
        ("cut", v6(TCP, &[], nothing)[..53].to_vec(), Malformed),
        ("version 4", v6(TCP, &payload, |packet| packet[0] = 0x40), Malformed),
        ("payload beyond the frame", v6(TCP, &payload, |packet| packet[5] += 1), Malformed),
        ("extension beyond the packet", v6(60, &[TCP, 1, 1, 4, 0, 0, 0, 0], nothing), Malformed),
        ("option beyond its header", v6(60, &behind(&[TCP, 0, 1, 5, 0, 0, 0, 0]), nothing), Malformed),
        ("option without length", v6(60, &behind(&[TCP, 0, 0, 0, 0, 0, 0, 1]), nothing), Malformed),
        ("extension beyond the copied bytes", v6(60, &behind(&long), nothing), TooLong),
        (
            "option that asks for silence",
            v6(60, &behind(&[TCP, 0, 0x5e, 4, 0, 0, 0, 0]), nothing),
            Unsupported,
        ),
        (
            "multicast, option silent then",
            v6(60, &behind(&[TCP, 0, 0xde, 4, 0, 0, 0, 0]), multicast),
            Unsupported,
        ),
        ("no next header", v6(59, &[], nothing), Unsupported),
        ("fragment", v6(44, &behind(&[TCP, 0, 0, 0, 0, 0, 0, 0]), nothing), Fragment),
        ("an error about an ICMPv6 error (RFC 4443 §2.4)", v6(60, &icmp_error, nothing), Unsupported),
        ("from multicast", v6(TCP, &payload, |packet| packet[8] = 0xff), Martian),
        (
            "from an IPv4-mapped address",
            v6(TCP, &payload, |packet| packet[8..24].copy_from_slice(&address("1.2.3.4").0)),
            Martian,
        ),
        (
            "to loop-back",
            v6(TCP, &payload, |packet| packet[24..40].copy_from_slice(&address("::1").0)),
            Martian,
        ),
    ];
    for (name, frame, reason) in dropped {
        assert_eq!(parsed(&frame), Parsed::Dropped(reason), "{name}");
    }
    let unspecified = v6(TCP, &payload, |packet| packet[8..24].fill(0));
    assert_eq!(parsed(&unspecified), Parsed::Dropped(Martian));
}

/// RFC 1071 §3, and an odd length.
#[test]
fn checksum_of_rfc_1071() {
    assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    assert_eq!(fold(sum(&[0x12, 0x34, 0x56])), 0x1234 + 0x5600);
    assert_eq!(fold(u64::MAX), 0xffff);
}
