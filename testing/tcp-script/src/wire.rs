//! Frames on the wire, written and read without the stack's own code: what a stack emits is checked here bit by bit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub type Mac = [u8; 6];

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_ICMPV6: u8 = 58;
const ETHERNET_BYTES: usize = 14;
const TCP_BYTES: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opt {
    Mss(u16),
    Scale(u8),
    SackPermitted,
    Sack(Vec<(u32, u32)>),
    Timestamps(u32, u32),
    Nop,
    /// Any bytes, right or wrong.
    Raw(Vec<u8>),
}

#[derive(Clone, Debug)]
pub struct Segment {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub urgent: u16,
    pub options: Vec<Opt>,
    pub payload: Vec<u8>,
}

impl Segment {
    /// Sequence numbers that the segment occupies.
    pub fn length(&self) -> u32 {
        let controls = u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0);
        self.payload.len() as u32 + controls
    }

    pub fn timestamps(&self) -> Option<(u32, u32)> {
        self.options.iter().find_map(|option| match option {
            Opt::Timestamps(value, echo) => Some((*value, *echo)),
            _ => None,
        })
    }

    /// Bytes of the options, padding included.
    pub fn option_bytes(&self) -> usize {
        options(&self.options).len()
    }
}

/// What of a frame is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The TCP checksum is that of other bytes.
    Checksum,
    /// The IPv4 header's checksum is.
    HeaderChecksum,
    /// Data Offset in words, whatever the header's length is.
    DataOffset(u8),
    /// The IP length says that this many bytes are missing at the end, and they are.
    Shorter(usize),
    /// The frame ends this many bytes before the IP length says.
    Cut(usize),
    /// Bits between Data Offset and the flags are set (RFC 9293 §3.1: ignored by receivers).
    Reserved,
    /// More fragments follow.
    Fragment,
    /// Bytes behind the IP packet, as short Ethernet frames have them.
    Padded(usize),
}

#[derive(Clone, Debug)]
pub enum Frame {
    Tcp(Segment),
    /// Somebody wants the link-layer address of `target`.
    Resolve {
        target: IpAddr,
        sender: IpAddr,
        mac: Mac,
    },
    /// An ICMP error or answer: type, code, rest of the message.
    Icmp {
        kind: u8,
        code: u8,
    },
    /// Announcements and what else a host says unasked.
    Other,
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend(value.to_be_bytes());
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_be_bytes());
}

fn get16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn get32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The sum of RFC 1071, folded and not complemented.
pub fn sum(parts: &[&[u8]]) -> u16 {
    let mut total = 0u64;
    let mut is_odd = false;
    for &byte in parts.iter().copied().flatten() {
        total += if is_odd { u64::from(byte) } else { u64::from(byte) << 8 };
        is_odd = !is_odd;
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

fn address_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The pseudo-header of RFC 9293 §3.1 and RFC 8200 §8.1.
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let mut out = address_bytes(source);
    out.extend(address_bytes(destination));
    if source.is_ipv4() {
        out.extend([0, protocol]);
        put16(&mut out, length as u16);
    } else {
        put32(&mut out, length as u32);
        out.extend([0, 0, 0, protocol]);
    }
    out
}

fn options(list: &[Opt]) -> Vec<u8> {
    let mut out = Vec::new();
    for option in list {
        match option {
            Opt::Mss(mss) => {
                out.extend([2, 4]);
                put16(&mut out, *mss);
            }
            Opt::Scale(shift) => out.extend([3, 3, *shift]),
            Opt::SackPermitted => out.extend([4, 2]),
            Opt::Sack(blocks) => {
                out.extend([5, (2 + 8 * blocks.len()) as u8]);
                for &(left, right) in blocks {
                    put32(&mut out, left);
                    put32(&mut out, right);
                }
            }
            Opt::Timestamps(value, echo) => {
                out.extend([8, 10]);
                put32(&mut out, *value);
                put32(&mut out, *echo);
            }
            Opt::Nop => out.push(1),
            Opt::Raw(bytes) => out.extend(bytes),
        }
    }
    // Padding is the end of the option list, which is zero.
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn ethernet(destination: Mac, source: Mac, ethertype: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend(destination);
    out.extend(source);
    put16(&mut out, ethertype);
    out
}

/// IP headers: `payload` bytes of `protocol` follow.
fn ip(
    out: &mut Vec<u8>,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: usize,
    damages: &[Damage],
) {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let start = out.len();
            let fragment = if damages.contains(&Damage::Fragment) { 0x2000 } else { 0x4000 };
            out.extend([0x45, 0]);
            put16(out, (20 + payload) as u16);
            put16(out, 1);
            put16(out, fragment);
            out.extend([64, protocol, 0, 0]);
            out.extend(source.octets());
            out.extend(destination.octets());
            let mut checksum = !sum(&[&out[start..]]);
            if damages.contains(&Damage::HeaderChecksum) {
                checksum ^= 0x0100;
            }
            out[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            put32(out, 0x6000_0000);
            put16(out, payload as u16);
            out.extend([protocol, 64]);
            out.extend(source.octets());
            out.extend(destination.octets());
        }
        _ => panic!("addresses of two versions of IP"),
    }
}

/// The frame of a segment.
pub fn tcp(segment: &Segment, destination: Mac, source: Mac, damages: &[Damage]) -> Vec<u8> {
    let body = tcp_body(segment, damages);
    let (from, to) = (segment.source.ip(), segment.destination.ip());
    let ethertype = if from.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    let mut out = ethernet(destination, source, ethertype);
    let shorter = damages.iter().find_map(|damage| match damage {
        Damage::Shorter(bytes) => Some(*bytes),
        _ => None,
    });
    let mut length = body.len().saturating_sub(shorter.unwrap_or(0));
    ip(&mut out, from, to, PROTOCOL_TCP, length, damages);
    for damage in damages {
        if let Damage::Cut(bytes) = damage {
            length = length.saturating_sub(*bytes);
        }
    }
    out.extend(&body[..length]);
    for damage in damages {
        if let Damage::Padded(bytes) = damage {
            out.extend(vec![0xee; *bytes]);
        }
    }
    out
}

fn tcp_body(segment: &Segment, damages: &[Damage]) -> Vec<u8> {
    let options = options(&segment.options);
    let mut words = ((TCP_BYTES + options.len()) / 4) as u8;
    let mut reserved = 0;
    for damage in damages {
        match damage {
            Damage::DataOffset(other) => words = *other,
            Damage::Reserved => reserved = 0x0e,
            _ => {}
        }
    }
    let mut out = Vec::new();
    put16(&mut out, segment.source.port());
    put16(&mut out, segment.destination.port());
    put32(&mut out, segment.seq);
    put32(&mut out, segment.ack);
    out.extend([words << 4 | reserved, segment.flags]);
    put16(&mut out, segment.window);
    put16(&mut out, 0);
    put16(&mut out, segment.urgent);
    out.extend(options);
    out.extend(&segment.payload);
    let pseudo = pseudo_header(segment.source.ip(), segment.destination.ip(), PROTOCOL_TCP, out.len());
    let mut checksum = !sum(&[&pseudo, &out]);
    if damages.contains(&Damage::Checksum) {
        checksum ^= 0x0100;
    }
    out[16..18].copy_from_slice(&checksum.to_be_bytes());
    out
}

/// An ICMP error about a segment: `quoted` bytes of its TCP header come with its IP header.
#[derive(Clone, Debug)]
pub struct IcmpError {
    pub kind: u8,
    pub code: u8,
    /// The second word of the header: the MTU, where one belongs there.
    pub word: u32,
    /// Who says so.
    pub router: IpAddr,
    pub about: Segment,
    pub quoted: usize,
}

pub fn icmp_error(error: &IcmpError, destination: Mac, source: Mac) -> Vec<u8> {
    let about = &error.about;
    let body = tcp_body(about, &[]);
    let mut message = vec![error.kind, error.code, 0, 0];
    put32(&mut message, error.word);
    ip(&mut message, about.source.ip(), about.destination.ip(), PROTOCOL_TCP, body.len(), &[]);
    message.extend(&body[..error.quoted.min(body.len())]);
    let to = about.source.ip();
    let is_v4 = to.is_ipv4();
    let (ethertype, protocol) =
        if is_v4 { (ETHERTYPE_IPV4, PROTOCOL_ICMP) } else { (ETHERTYPE_IPV6, PROTOCOL_ICMPV6) };
    let pseudo =
        if is_v4 { Vec::new() } else { pseudo_header(error.router, to, PROTOCOL_ICMPV6, message.len()) };
    let checksum = !sum(&[&pseudo, &message]);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut out = ethernet(destination, source, ethertype);
    ip(&mut out, error.router, to, protocol, message.len(), &[]);
    out.extend(message);
    out
}

/// The question for the link-layer address of `target`, which tells that of the asker.
pub fn question(target: IpAddr, asker: IpAddr, asker_mac: Mac) -> Vec<u8> {
    match (target, asker) {
        (IpAddr::V4(target), IpAddr::V4(asker)) => {
            let mut out = ethernet([0xff; 6], asker_mac, ETHERTYPE_ARP);
            out.extend([0, 1, 8, 0, 6, 4, 0, 1]);
            out.extend(asker_mac);
            out.extend(asker.octets());
            out.extend([0; 6]);
            out.extend(target.octets());
            out
        }
        (IpAddr::V6(target), IpAddr::V6(_)) => {
            // Neighbour Solicitation with source link-layer address, to the solicited-node address (RFC 4861 §4.3, §2.3).
            let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
            message.extend(target.octets());
            message.extend([1, 1]);
            message.extend(asker_mac);
            let [.., a, b, c] = target.octets();
            let multicast =
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
            let mac = [0x33, 0x33, 0xff, a, b, c];
            neighbour_discovery(asker, multicast.into(), asker_mac, mac, message)
        }
        _ => panic!("addresses of two versions of IP"),
    }
}

fn neighbour_discovery(
    source: IpAddr,
    destination: IpAddr,
    from: Mac,
    to: Mac,
    mut message: Vec<u8>,
) -> Vec<u8> {
    let pseudo = pseudo_header(source, destination, PROTOCOL_ICMPV6, message.len());
    let checksum = !sum(&[&pseudo, &message]);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut out = ethernet(to, from, ETHERTYPE_IPV6);
    ip(&mut out, source, destination, PROTOCOL_ICMPV6, message.len(), &[]);
    // RFC 4861 §7.1: the hop limit is 255.
    out[ETHERNET_BYTES + 7] = 255;
    out.extend(message);
    out
}

/// The answer to a question for a link-layer address.
pub fn resolved(target: IpAddr, own: Mac, asker: IpAddr, asker_mac: Mac) -> Vec<u8> {
    match (target, asker) {
        (IpAddr::V4(target), IpAddr::V4(asker)) => {
            let mut out = ethernet(asker_mac, own, ETHERTYPE_ARP);
            out.extend([0, 1, 8, 0, 6, 4, 0, 2]);
            out.extend(own);
            out.extend(target.octets());
            out.extend(asker_mac);
            out.extend(asker.octets());
            out
        }
        (IpAddr::V6(own_ip), IpAddr::V6(_)) => {
            // Neighbour Advertisement, solicited and override (RFC 4861 §4.4), with the target's link-layer address.
            let mut message = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
            message.extend(own_ip.octets());
            message.extend([2, 1]);
            message.extend(own);
            neighbour_discovery(target, asker, own, asker_mac, message)
        }
        _ => panic!("addresses of two versions of IP"),
    }
}

/// Whether a device would call the checksum of TCP or ICMPv6 in a frame right; of what it does not know, it says so too.
pub fn is_checked(frame: &[u8]) -> bool {
    let Some(packet) = frame.get(ETHERNET_BYTES..) else { return false };
    let (header, length) = match (get16(frame, 12), packet.first()) {
        (Some(ETHERTYPE_IPV4), Some(first)) => {
            (usize::from(first & 15) * 4, get16(packet, 2).unwrap_or(0).into())
        }
        (Some(ETHERTYPE_IPV6), Some(_)) => (40, 40 + usize::from(get16(packet, 4).unwrap_or(0))),
        _ => return true,
    };
    let is_v4 = header < 40;
    let (protocol, addresses) = if is_v4 { (9, 12..20) } else { (6, 8..40) };
    let (Some(body), Some(&protocol), Some(addresses)) =
        (packet.get(header..length), packet.get(protocol), packet.get(addresses))
    else {
        return false;
    };
    let length = (body.len() as u32).to_be_bytes();
    match protocol {
        PROTOCOL_TCP | PROTOCOL_ICMPV6 => sum(&[addresses, &length, &[0, protocol], body]) == 0xffff,
        PROTOCOL_ICMP => sum(&[body]) == 0xffff,
        _ => true,
    }
}

/// Reads a frame of a stack; what is wrong with it is the error.
pub fn parse(frame: &[u8]) -> Result<Frame, String> {
    parse_whole(frame).unwrap_or_else(|| Err("a frame that ends within a header".to_owned()))
}

fn parse_whole(frame: &[u8]) -> Option<Result<Frame, String>> {
    let mac: Mac = frame.get(6..12)?.try_into().ok()?;
    let packet = frame.get(ETHERNET_BYTES..)?;
    match get16(frame, 12)? {
        ETHERTYPE_ARP => Some(Ok(parse_arp(packet, mac)?)),
        ETHERTYPE_IPV4 => {
            let header = usize::from(packet.first()? & 15) * 4;
            if packet.first()? >> 4 != 4 || header < 20 || sum(&[packet.get(..header)?]) != 0xffff {
                return Some(Err("an IPv4 header with a wrong checksum or version".to_owned()));
            }
            let length = usize::from(get16(packet, 2)?);
            if length != packet.len() {
                return Some(Err(format!("an IPv4 length of {length} for {} bytes", packet.len())));
            }
            if get16(packet, 6)? & 0x3fff != 0 {
                return Some(Err("a fragment".to_owned()));
            }
            if *packet.get(8)? == 0 {
                return Some(Err("a TTL of 0".to_owned()));
            }
            let ip = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(get32(packet, at)?)));
            upper(*packet.get(9)?, ip(12)?, ip(16)?, packet.get(header..)?, mac)
        }
        ETHERTYPE_IPV6 => {
            let length = usize::from(get16(packet, 4)?);
            if packet.first()? >> 4 != 6 || length + 40 != packet.len() {
                return Some(Err(format!("an IPv6 length of {length} for {} bytes", packet.len())));
            }
            if *packet.get(7)? == 0 {
                return Some(Err("a hop limit of 0".to_owned()));
            }
            let ip = |at: usize| {
                let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
                Some(IpAddr::V6(Ipv6Addr::from(bytes)))
            };
            upper(*packet.get(6)?, ip(8)?, ip(24)?, packet.get(40..)?, mac)
        }
        _ => Some(Ok(Frame::Other)),
    }
}

fn parse_arp(packet: &[u8], mac: Mac) -> Option<Frame> {
    let is_request = get16(packet, 6)? == 1;
    let ip = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(get32(packet, at)?)));
    let (sender, target) = (ip(14)?, ip(24)?);
    Some(if is_request && sender != target { Frame::Resolve { target, sender, mac } } else { Frame::Other })
}

fn upper(
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    body: &[u8],
    mac: Mac,
) -> Option<Result<Frame, String>> {
    let is_valid = sum(&[&pseudo_header(source, destination, protocol, body.len()), body]) == 0xffff;
    match protocol {
        PROTOCOL_TCP if !is_valid => Some(Err("a TCP checksum that is wrong".to_owned())),
        PROTOCOL_TCP => Some(parse_tcp(source, destination, body)?.map(Frame::Tcp)),
        PROTOCOL_ICMP => Some(Ok(Frame::Icmp { kind: *body.first()?, code: *body.get(1)? })),
        PROTOCOL_ICMPV6 if !is_valid => Some(Err("an ICMPv6 checksum that is wrong".to_owned())),
        PROTOCOL_ICMPV6 => {
            let kind = *body.first()?;
            if kind == 135 && !source.is_unspecified() {
                let target: [u8; 16] = body.get(8..24)?.try_into().ok()?;
                let target = IpAddr::V6(Ipv6Addr::from(target));
                return Some(Ok(Frame::Resolve { target, sender: source, mac }));
            }
            // Errors and echo; neighbour discovery and multicast listeners are of no interest here.
            Some(Ok(if kind < 130 { Frame::Icmp { kind, code: *body.get(1)? } } else { Frame::Other }))
        }
        _ => Some(Ok(Frame::Other)),
    }
}

fn parse_tcp(source: IpAddr, destination: IpAddr, body: &[u8]) -> Option<Result<Segment, String>> {
    let header = usize::from(body.get(12)? >> 4) * 4;
    if header < TCP_BYTES || header > body.len() {
        return Some(Err(format!("a TCP header of {header} bytes")));
    }
    if body.get(12)? & 0x0f != 0 {
        return Some(Err("reserved bits of the TCP header that are set".to_owned()));
    }
    let options = match parse_options(&body[TCP_BYTES..header]) {
        Ok(options) => options,
        Err(wrong) => return Some(Err(wrong)),
    };
    Some(Ok(Segment {
        source: SocketAddr::new(source, get16(body, 0)?),
        destination: SocketAddr::new(destination, get16(body, 2)?),
        seq: get32(body, 4)?,
        ack: get32(body, 8)?,
        flags: *body.get(13)?,
        window: get16(body, 14)?,
        urgent: get16(body, 18)?,
        options,
        payload: body[header..].to_vec(),
    }))
}

fn parse_options(mut bytes: &[u8]) -> Result<Vec<Opt>, String> {
    let mut list = Vec::new();
    while let Some(&kind) = bytes.first() {
        if kind == 0 {
            break;
        }
        if kind == 1 {
            list.push(Opt::Nop);
            bytes = &bytes[1..];
            continue;
        }
        let length = bytes.get(1).map_or(0, |&length| usize::from(length));
        if length < 2 || length > bytes.len() {
            return Err(format!("an option of kind {kind} with length {length}"));
        }
        let (option, rest) = bytes.split_at(length);
        bytes = rest;
        list.push(match (kind, length) {
            (2, 4) => Opt::Mss(u16::from_be_bytes([option[2], option[3]])),
            (3, 3) => Opt::Scale(option[2]),
            (4, 2) => Opt::SackPermitted,
            (5, 10 | 18 | 26 | 34) => Opt::Sack(
                option[2..]
                    .chunks(8)
                    .filter_map(|block| Some((get32(block, 0)?, get32(block, 4)?)))
                    .collect(),
            ),
            (8, 10) => Opt::Timestamps(get32(option, 2).unwrap_or(0), get32(option, 6).unwrap_or(0)),
            _ => return Err(format!("an option of kind {kind} with length {length}")),
        });
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(version: u8) -> Segment {
        let (source, destination) = if version == 4 {
            ("192.0.2.2:40000", "192.0.2.1:80")
        } else {
            ("[2001:db8::2]:40000", "[2001:db8::1]:80")
        };
        Segment {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            flags: ACK | PSH,
            seq: 0xffff_fff0,
            ack: 7,
            window: 1000,
            urgent: 0,
            options: vec![Opt::Nop, Opt::Nop, Opt::Timestamps(1, 2), Opt::Sack(vec![(3, 4), (5, 6)])],
            payload: b"odd".to_vec(),
        }
    }

    #[test]
    fn segments_are_read_as_they_were_written() {
        for version in [4, 6] {
            let written = segment(version);
            let Ok(Frame::Tcp(read)) = parse(&tcp(&written, [1; 6], [2; 6], &[])) else {
                panic!("no segment")
            };
            assert_eq!(format!("{read:?}"), format!("{written:?}"));
        }
    }

    #[test]
    fn defects_are_found() {
        let cases = [
            ("TCP checksum", Damage::Checksum),
            ("IPv4 header", Damage::HeaderChecksum),
            ("TCP header", Damage::DataOffset(4)),
            ("IPv4 length", Damage::Cut(1)),
            ("TCP checksum", Damage::Shorter(1)),
            ("reserved bits", Damage::Reserved),
            ("fragment", Damage::Fragment),
        ];
        for (expected, damage) in cases {
            let found = parse(&tcp(&segment(4), [1; 6], [2; 6], &[damage])).unwrap_err();
            assert!(found.contains(expected), "{damage:?}: {found}");
        }
        let mut bad = segment(4);
        bad.options = vec![Opt::Raw(vec![2, 9, 0, 0])];
        assert!(parse(&tcp(&bad, [1; 6], [2; 6], &[])).unwrap_err().contains("kind 2"));
    }

    #[test]
    fn a_device_knows_right_checksums() {
        for version in [4, 6] {
            let checked = |damages: &[Damage]| is_checked(&tcp(&segment(version), [1; 6], [2; 6], damages));
            assert!(checked(&[]) && checked(&[Damage::Padded(9)]));
            assert!(!checked(&[Damage::Checksum]) && !checked(&[Damage::Cut(1)]));
        }
    }

    #[test]
    fn sums_are_those_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&[&bytes]), 0xddf2);
        assert_eq!(sum(&[&bytes[..3], &bytes[3..]]), 0xddf2, "an odd first part");
    }
}
