//! Headers of frames: Ethernet, IPv4, IPv6 and TCP, which every segment has. Nothing is allocated, nothing beyond the
//! copied bytes is read, and no input panics.
//!
//! Fields are read and written here by hand. `smoltcp::wire` wants a packet whole in one buffer, of the control bits at
//! most one beside ACK, and three ranges of SACK; and it takes longer (IPv4: 48 ns to read and 20 ns to write, here 35
//! and 16). ARP, ICMP and neighbour discovery, in `iface`, are smoltcp's.
//!
//! Read RFC 791 §3.1, RFC 8200 §4 and RFC 9293 §3.1 first.

use crate::step::{Step, mark};
use crate::{Address, Arrived, Endpoint, HEADER_BYTES, SeqNumber, VNET_BYTES};

mod tcp;
#[cfg(test)]
mod tests;

use tcp::Segment;
pub use tcp::{Flags, SACK_RANGES_MAX, TcpHeader};

pub type Mac = [u8; 6];

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
pub(crate) const V4_BYTES: usize = 20;
pub(crate) const V6_BYTES: usize = 40;
/// Largest TCP header.
const TCP_BYTES_MAX: usize = 60;
const _: () = assert!(VNET_BYTES + ETHERNET_BYTES + V6_BYTES + TCP_BYTES_MAX <= HEADER_BYTES);

/// TTL and hop limit of what is sent (RFC 1700).
const HOP_LIMIT: u8 = 64;

pub(crate) mod ether_type {
    pub(crate) const V4: u16 = 0x0800;
    pub(crate) const ARP: u16 = 0x0806;
    pub(crate) const V6: u16 = 0x86dd;
}

/// Protocol numbers and next headers.
pub(crate) mod protocol {
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ICMP_V4: u8 = 1;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const ICMP_V6: u8 = 58;
    pub(crate) const NO_NEXT: u8 = 59;
    pub(crate) const DESTINATION_OPTIONS: u8 = 60;
}

/// Codes of an ICMPv6 parameter problem (RFC 4443 §3.4).
mod problem {
    pub(super) const FIELD: u8 = 0;
    pub(super) const NEXT_HEADER: u8 = 1;
    pub(super) const OPTION: u8 = 2;
}

/// Header of an IP packet whose payload is not TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    pub source: Address,
    pub destination: Address,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Of the payload: the last next header.
    pub protocol: u8,
    /// From the Ethernet header to the IP payload, bytes.
    pub payload_start: u32,
    pub payload_bytes: u32,
}

impl IpHeader {
    /// Of the packet, bytes.
    pub fn packet_bytes(&self) -> u32 {
        self.payload_start + self.payload_bytes - ETHERNET_BYTES as u32
    }
}

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DropReason {
    /// Shorter than its headers say, or impossible lengths.
    Malformed,
    /// Headers that do not fit into the bytes that were copied.
    TooLong,
    /// The checksum of the IPv4 header is wrong, or the driver has not verified the one of TCP or ICMP.
    Checksum,
    Fragment,
    /// Neither ARP, IPv4 nor IPv6.
    EtherType,
    /// Nothing that this host answers: no next header, an IPv6 option that asks for silence, other messages of ICMP.
    Unsupported,
    /// A source that cannot be one, or a destination that must not be on a link.
    Martian,
    /// To another host, by MAC or IP.
    NotForUs,
    /// A message of ARP or neighbour discovery that its standard does not allow.
    Neighbour,
    /// An answer would exceed a bound or a rate.
    Busy,
}

impl DropReason {
    pub const ALL: [Self; 10] = [
        Self::Malformed,
        Self::TooLong,
        Self::Checksum,
        Self::Fragment,
        Self::EtherType,
        Self::Unsupported,
        Self::Martian,
        Self::NotForUs,
        Self::Neighbour,
        Self::Busy,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::Checksum => "checksum",
            Self::Fragment => "fragment",
            Self::EtherType => "ether_type",
            Self::Unsupported => "unsupported",
            Self::Martian => "martian",
            Self::NotForUs => "not_for_us",
            Self::Neighbour => "neighbour",
            Self::Busy => "busy",
        }
    }
}

/// What is wrong with an IP packet whose sender is told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No such protocol above IP.
    Protocol,
    /// ICMPv6 parameter problem (RFC 4443 §3.4).
    Parameter { code: u8, pointer: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    Tcp(TcpHeader),
    /// From the Ethernet header's end on.
    Arp,
    /// ICMPv4 or ICMPv6, by the family of the addresses. The source may be `::`.
    Icmp(IpHeader),
    /// The source may be `::`.
    Refused(IpHeader, Refused),
    Dropped(DropReason),
}

type Result<T> = std::result::Result<T, DropReason>;

/// What a frame is. No address is compared with those of this host.
#[inline]
pub fn parse(arrived: &Arrived<'_>) -> Parsed {
    let copied = arrived.header.len().min(arrived.length as usize);
    let frame = &arrived.header[..copied];
    let packet = match parse_ethernet(arrived, frame) {
        Ok(packet) => packet,
        Err(reason) => return Parsed::Dropped(reason),
    };
    match packet {
        Packet::Tcp(ip) => match check_tcp(arrived, frame, &ip) {
            // The header is built where the caller wants it: to move it would take as long as to read it.
            Ok(segment) => Parsed::Tcp(segment.header(&ip)),
            Err(reason) => Parsed::Dropped(reason),
        },
        Packet::Arp => Parsed::Arp,
        Packet::Icmp(_) if !arrived.is_checked => Parsed::Dropped(DropReason::Checksum),
        Packet::Icmp(ip) => Parsed::Icmp(ip),
        Packet::Refused(ip, refused) => Parsed::Refused(ip, refused),
    }
}

/// A frame whose headers up to IP are right.
enum Packet {
    Tcp(IpHeader),
    Arp,
    Icmp(IpHeader),
    Refused(IpHeader, Refused),
}

#[inline]
fn parse_ethernet(arrived: &Arrived<'_>, frame: &[u8]) -> Result<Packet> {
    let ethernet: &[u8; ETHERNET_BYTES] = frame.first_chunk().ok_or(DropReason::Malformed)?;
    match be16(ethernet, 12) {
        ether_type::V4 => parse_v4(arrived, frame),
        ether_type::V6 => parse_v6(arrived, frame),
        ether_type::ARP => Ok(Packet::Arp),
        _ => Err(DropReason::EtherType),
    }
}

#[inline]
fn parse_v4(arrived: &Arrived<'_>, frame: &[u8]) -> Result<Packet> {
    let fixed: &[u8; V4_BYTES] = frame[ETHERNET_BYTES..].first_chunk().ok_or(DropReason::Malformed)?;
    let header_bytes = usize::from(fixed[0] & 0x0f) * 4;
    let packet_bytes = u32::from(be16(fixed, 2));
    // RFC 1122 §3.2.1.1: another version is silently discarded.
    if fixed[0] >> 4 != 4
        || header_bytes < V4_BYTES
        || packet_bytes < header_bytes as u32
        || ETHERNET_BYTES as u32 + packet_bytes > arrived.length
    {
        return Err(DropReason::Malformed);
    }
    let payload_start = ETHERNET_BYTES + header_bytes;
    let header = frame.get(ETHERNET_BYTES..payload_start).ok_or(DropReason::TooLong)?;
    // RFC 1122 §3.2.1.2.
    if fold(sum(header)) != 0xffff {
        return Err(DropReason::Checksum);
    }
    // RFC 791 §3.1: More Fragments, or an offset.
    if be16(fixed, 6) & 0x3fff != 0 {
        return Err(DropReason::Fragment);
    }
    let source = v4_address(fixed, 12);
    // RFC 1122 §3.2.1.3: this network, loop-back, multicast and reserved are no sources.
    if matches!(fixed[12], 0 | 127 | 224..) || fixed[16] == 127 {
        return Err(DropReason::Martian);
    }
    let ip = IpHeader {
        source,
        destination: v4_address(fixed, 16),
        hop_limit: fixed[8],
        protocol: fixed[9],
        payload_start: payload_start as u32,
        payload_bytes: packet_bytes - header_bytes as u32,
    };
    // Options between the fixed header and the payload are skipped (RFC 1122 §3.2.1.8 permits it).
    Ok(match ip.protocol {
        protocol::TCP => Packet::Tcp(ip),
        protocol::ICMP_V4 => Packet::Icmp(ip),
        _ => Packet::Refused(ip, Refused::Protocol),
    })
}

fn parse_v6(arrived: &Arrived<'_>, frame: &[u8]) -> Result<Packet> {
    let fixed: &[u8; V6_BYTES] = frame[ETHERNET_BYTES..].first_chunk().ok_or(DropReason::Malformed)?;
    let end = (ETHERNET_BYTES + V6_BYTES) as u32 + u32::from(be16(fixed, 4));
    if fixed[0] >> 4 != 6 || end > arrived.length {
        return Err(DropReason::Malformed);
    }
    let (source, destination) = (v6_address(fixed, 8), v6_address(fixed, 24));
    // ::1 must not be on a link (RFC 4291 §2.5.3), nor an address that stands for an IPv4 one within a host (§2.5.5).
    // All of them, and ::, have eight bytes of zeroes in front.
    if source.0[0] == 0xff
        || destination.0[..8] == [0; 8]
        || (source.0[..8] == [0; 8] && !source.is_unspecified())
    {
        return Err(DropReason::Martian);
    }
    let ip = |protocol, payload_start: usize| IpHeader {
        source,
        destination,
        hop_limit: fixed[7],
        protocol,
        payload_start: payload_start as u32,
        payload_bytes: end.saturating_sub(payload_start as u32),
    };
    let mut extensions = Extensions { next: fixed[6], at: ETHERNET_BYTES + V6_BYTES, named_by: 6 };
    loop {
        let Extensions { next, at, named_by } = extensions;
        let refused = match next {
            protocol::TCP => return Ok(Packet::Tcp(ip(next, at))),
            protocol::ICMP_V6 => return Ok(Packet::Icmp(ip(next, at))),
            protocol::HOP_BY_HOP if named_by == 6 => {
                parse_options(extensions.body(frame, end)?, at, destination)?
            }
            protocol::DESTINATION_OPTIONS => parse_options(extensions.body(frame, end)?, at, destination)?,
            // RFC 8200 §4.4: without segments left the header is ignored; no type of it is known here.
            protocol::ROUTING => (extensions.body(frame, end)?[3] != 0).then(|| {
                let pointer = (at + 2 - ETHERNET_BYTES) as u32;
                Refused::Parameter { code: problem::FIELD, pointer }
            }),
            protocol::FRAGMENT => return Err(DropReason::Fragment),
            protocol::NO_NEXT => return Err(DropReason::Unsupported),
            protocol::UDP => return Ok(Packet::Refused(ip(next, at), Refused::Protocol)),
            // RFC 8200 §4: also a hop-by-hop header that is not the first one.
            _ => {
                let pointer = named_by as u32;
                return Ok(Packet::Refused(
                    ip(next, at),
                    Refused::Parameter { code: problem::NEXT_HEADER, pointer },
                ));
            }
        };
        if let Some(refused) = refused {
            // RFC 4443 §2.4 (e.1): no error about an error.
            if extensions.leads_to_icmp_error(frame, end) {
                return Err(DropReason::Unsupported);
            }
            return Ok(Packet::Refused(ip(next, at), refused));
        }
        extensions = extensions.following(frame, end)?;
    }
}

/// A place in a chain of IPv6 extension headers (RFC 8200 §4).
#[derive(Clone, Copy)]
struct Extensions {
    next: u8,
    /// Of the header of that type, from the Ethernet header.
    at: usize,
    /// The offset of the byte that says `next`, from the IPv6 header.
    named_by: usize,
}

impl Extensions {
    /// The extension header here: next header, length, and at least six more bytes.
    fn body(self, frame: &[u8], end: u32) -> Result<&[u8]> {
        let length = frame.get(self.at + 1).ok_or(DropReason::TooLong)?;
        let body_end = self.at + 8 * (1 + usize::from(*length));
        if body_end > end as usize {
            return Err(DropReason::Malformed);
        }
        frame.get(self.at..body_end).ok_or(DropReason::TooLong)
    }

    fn following(self, frame: &[u8], end: u32) -> Result<Self> {
        let body = self.body(frame, end)?;
        Ok(Self { next: body[0], at: self.at + body.len(), named_by: self.at - ETHERNET_BYTES })
    }

    /// The packet is an ICMPv6 error, or it cannot be seen that it is none.
    fn leads_to_icmp_error(self, frame: &[u8], end: u32) -> bool {
        let mut here = self;
        loop {
            match here.next {
                protocol::ICMP_V6 => return frame.get(here.at).is_none_or(|&kind| kind < 128),
                protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS | protocol::ROUTING => {}
                _ => return false,
            }
            match here.following(frame, end) {
                Ok(following) => here = following,
                Err(_) => return true,
            }
        }
    }
}

/// Options of a hop-by-hop or destination options header at `at` (RFC 8200 §4.2).
fn parse_options(body: &[u8], at: usize, destination: Address) -> Result<Option<Refused>> {
    let mut offset = 2;
    while let Some(&kind) = body.get(offset) {
        if kind == 0 {
            offset += 1;
            continue;
        }
        let Some(&length) = body.get(offset + 1) else { return Err(DropReason::Malformed) };
        let next = offset + 2 + usize::from(length);
        if next > body.len() {
            return Err(DropReason::Malformed);
        }
        // PadN is skipped as an unknown option is whose highest bits are 00.
        match kind >> 6 {
            0b00 => {}
            0b01 => return Err(DropReason::Unsupported),
            0b11 if is_multicast(destination) => return Err(DropReason::Unsupported),
            _ => {
                let pointer = (at + offset - ETHERNET_BYTES) as u32;
                return Ok(Some(Refused::Parameter { code: problem::OPTION, pointer }));
            }
        }
        offset = next;
    }
    Ok(None)
}

#[inline]
fn check_tcp<'a>(arrived: &Arrived<'_>, frame: &'a [u8], ip: &IpHeader) -> Result<Segment<'a>> {
    // RFC 9293 §3.1: MUST-3.
    if !arrived.is_checked {
        return Err(DropReason::Checksum);
    }
    // RFC 9293 §3.9.2.3 (MUST-57): a segment to a multicast or broadcast address is silently discarded, and so is one
    // that came in such a frame (RFC 1122 §3.3.6).
    if frame[0] & 1 != 0 {
        return Err(DropReason::NotForUs);
    }
    if ip.source.is_unspecified() {
        return Err(DropReason::Martian);
    }
    Segment::new(frame, ip)
}

/// What the driver must know of headers that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// From the Ethernet header on, bytes.
    pub header_bytes: u16,
    pub checksum_start: u16,
    pub checksum_offset: u16,
}

/// Writes Ethernet, IP and TCP headers behind `VNET_BYTES`. The checksum field of TCP holds the folded sum of the
/// pseudo-header, not complemented, whose length is that of TCP header and `payload_bytes`. Ranges of SACK for which the
/// options have no room are left out.
///
/// # Panics
/// If both addresses are not of one family, or the packet is longer than its header can say.
pub fn emit_tcp(header: &mut [u8; HEADER_BYTES], source: Mac, destination: Mac, tcp: &TcpHeader) -> Emitted {
    let tcp_bytes = tcp.tcp_bytes();
    let length = tcp_bytes as u32 + tcp.payload_bytes;
    let ends = (tcp.source.address, tcp.destination.address);
    let ip = IpHeader {
        source: ends.0,
        destination: ends.1,
        hop_limit: HOP_LIMIT,
        protocol: protocol::TCP,
        payload_start: 0,
        payload_bytes: length,
    };
    let start = emit_ip(header, source, destination, &ip);
    mark(Step::IpDone);
    let pseudo = pseudo_header_sum(ends.0, ends.1, protocol::TCP, length);
    let at = VNET_BYTES + start;
    tcp::emit(&mut header[at..at + tcp_bytes], tcp, fold(pseudo));
    Emitted {
        header_bytes: (start + tcp_bytes) as u16,
        checksum_start: start as u16,
        checksum_offset: tcp::CHECKSUM as u16,
    }
}

/// Writes an Ethernet header behind `VNET_BYTES`.
pub(crate) fn emit_ethernet(header: &mut [u8; HEADER_BYTES], source: Mac, destination: Mac, ether_type: u16) {
    mark(Step::Ethernet);
    let ethernet = &mut header[VNET_BYTES..VNET_BYTES + ETHERNET_BYTES];
    ethernet[0..6].copy_from_slice(&destination);
    ethernet[6..12].copy_from_slice(&source);
    ethernet[12..14].copy_from_slice(&ether_type.to_be_bytes());
    mark(Step::EthernetDone);
}

/// Writes Ethernet and IP headers behind `VNET_BYTES`; `payload_start` is not looked at. Returns the start of the IP
/// payload from the Ethernet header, bytes.
pub(crate) fn emit_ip(
    header: &mut [u8; HEADER_BYTES],
    source: Mac,
    destination: Mac,
    ip: &IpHeader,
) -> usize {
    mark(Step::Ip);
    assert_eq!(ip.source.is_v4(), ip.destination.is_v4(), "addresses of two families");
    const AT: usize = VNET_BYTES + ETHERNET_BYTES;
    if ip.source.is_v4() {
        emit_ethernet(header, source, destination, ether_type::V4);
        let total = u16::try_from(V4_BYTES as u32 + ip.payload_bytes).expect("a packet that IPv4 can carry");
        let fields: &mut [u8; V4_BYTES] = header[AT..].first_chunk_mut().expect("room for headers");
        fields[0] = 0x45;
        fields[1] = 0;
        fields[2..4].copy_from_slice(&total.to_be_bytes());
        // RFC 6864 §4.1: the identification of a packet that is never fragmented means nothing. Don't Fragment.
        fields[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
        fields[8] = ip.hop_limit;
        fields[9] = ip.protocol;
        fields[10..12].copy_from_slice(&[0, 0]);
        fields[12..16].copy_from_slice(&ip.source.0[12..]);
        fields[16..20].copy_from_slice(&ip.destination.0[12..]);
        let checksum = !fold(sum(fields));
        fields[10..12].copy_from_slice(&checksum.to_be_bytes());
        ETHERNET_BYTES + V4_BYTES
    } else {
        emit_ethernet(header, source, destination, ether_type::V6);
        let length = u16::try_from(ip.payload_bytes).expect("a packet that IPv6 can carry");
        let fields: &mut [u8; V6_BYTES] = header[AT..].first_chunk_mut().expect("room for headers");
        fields[0..4].copy_from_slice(&[0x60, 0, 0, 0]);
        fields[4..6].copy_from_slice(&length.to_be_bytes());
        fields[6] = ip.protocol;
        fields[7] = ip.hop_limit;
        fields[8..24].copy_from_slice(&ip.source.0);
        fields[24..40].copy_from_slice(&ip.destination.0);
        ETHERNET_BYTES + V6_BYTES
    }
}

/// Sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1), not folded.
pub(crate) fn pseudo_header_sum(source: Address, destination: Address, protocol: u8, length: u32) -> u64 {
    // The prefix of an IPv4 address, ::ffff, adds 0xffff, which is zero in one's complement.
    sum(&source.0) + sum(&destination.0) + u64::from(protocol) + u64::from(length)
}

/// One's complement sum of 16-bit words (RFC 1071), not folded. An odd byte at the end counts as the high one.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let total: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total + u64::from(u32::from_be_bytes(last))
}

/// Adds the carries of a sum until 16 bits are left.
pub(crate) fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// Of either family.
pub(crate) fn is_multicast(address: Address) -> bool {
    match address.v4() {
        Some(v4) => v4.is_multicast(),
        None => address.0[0] == 0xff,
    }
}

pub(crate) fn v4_address(header: &[u8; V4_BYTES], at: usize) -> Address {
    let mut address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
    address[12..].copy_from_slice(&header[at..at + 4]);
    Address(address)
}

fn v6_address(header: &[u8; V6_BYTES], at: usize) -> Address {
    let mut address = [0; 16];
    address.copy_from_slice(&header[at..at + 16]);
    Address(address)
}

/// # Panics
/// If the bytes end before.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// # Panics
/// If the bytes end before.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Endpoint of an address and the port at `at`.
pub(crate) fn endpoint(address: Address, bytes: &[u8], at: usize) -> Endpoint {
    Endpoint { address, port: be16(bytes, at) }
}

pub(crate) fn seq(bytes: &[u8], at: usize) -> SeqNumber {
    SeqNumber(be32(bytes, at))
}
