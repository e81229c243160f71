//! Headers of frames: Ethernet, IPv4, IPv6 and TCP. Fields are read and written here by hand: this is the path of every
//! segment. Nothing is allocated, nothing beyond the copied bytes is read, and no input panics.
//!
//! Read RFC 791 §3.1, RFC 8200 §4 and RFC 9293 §3.1 first.

use crate::{Address, Arrived, Endpoint, HEADER_BYTES, SeqNumber};

pub type Mac = [u8; 6];

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Ranges of selective acknowledgement in one segment (RFC 2018 §3).
pub const SACK_RANGES_MAX: usize = 4;

/// Control bits of a TCP segment (RFC 9293 §3.1). ECN's are neither used nor reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Flags(pub u8);

impl Flags {
    pub const FIN: Self = Self(0x01);
    pub const SYN: Self = Self(0x02);
    pub const RST: Self = Self(0x04);
    pub const PSH: Self = Self(0x08);
    pub const ACK: Self = Self(0x10);
    pub const URG: Self = Self(0x20);

    /// All bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What the headers of a segment say, received or to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    pub source: Endpoint,
    pub destination: Endpoint,
    pub seq: SeqNumber,
    /// Means something if `flags` has ACK; 0 otherwise.
    pub ack: SeqNumber,
    pub flags: Flags,
    /// As on the wire: not scaled.
    pub window: u16,
    pub urgent: u16,
    pub mss: Option<u16>,
    /// At most 14 (RFC 7323 §2.3).
    pub window_scale: Option<u8>,
    pub has_sack_permitted: bool,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// The first `sack_count` are ranges, left edge and right edge.
    pub sack: [(SeqNumber, SeqNumber); SACK_RANGES_MAX],
    pub sack_count: u8,
    /// From the Ethernet header to the first byte of payload. Ignored by [`emit_tcp`].
    pub payload_start: u32,
    pub payload_bytes: u32,
}

impl TcpHeader {
    /// Of the TCP header with its options, bytes.
    pub fn tcp_bytes(&self) -> usize {
        todo!()
    }

    /// Payload and the sequence numbers of SYN and FIN (SEG.LEN of RFC 9293 §3.3.1).
    pub fn sequence_length(&self) -> u32 {
        self.payload_bytes + u32::from(self.flags.has(Flags::SYN)) + u32::from(self.flags.has(Flags::FIN))
    }
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

/// Why a frame is dropped; the name of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// Shorter than its headers say, or impossible lengths.
    Malformed,
    /// Headers that do not fit into the bytes that were copied.
    TooLong,
    /// The checksum of the IPv4 header, or TCP or ICMP in a frame whose checksum the driver did not verify.
    Checksum,
    Fragment,
    /// Neither ARP, IPv4 nor IPv6.
    EtherType,
    /// Of no use to this host: an IPv6 option that asks for silence, no next header, an unknown ICMP message.
    Unsupported,
    /// A source that cannot be one, or a destination that must not be on the wire.
    Martian,
    /// To another host, MAC or IP.
    NotForUs,
    /// A message of ARP or neighbour discovery that its standard does not allow.
    Neighbour,
    /// A bound of replies.
    Busy,
}

/// The protocol error that is reported to the sender of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No such protocol (RFC 1122 §3.2.2.1, RFC 8200 §4); the offset of the field that names it, from the IP header.
    Protocol { pointer: u32 },
    /// ICMPv6 parameter problem, code and pointer (RFC 4443 §3.4).
    Parameter { code: u8, pointer: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    Tcp(TcpHeader),
    /// From the Ethernet header's end on.
    Arp,
    /// ICMPv4 or ICMPv6, as the family says.
    Icmp(IpHeader),
    Refused(IpHeader, Refused),
    Dropped(Drop),
}

/// What a frame is. Addresses are not compared with any of ours.
pub fn parse(arrived: &Arrived<'_>) -> Parsed {
    let _ = arrived;
    todo!()
}

/// What the caller says to the driver of headers that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// From the Ethernet header on, bytes.
    pub header_bytes: u16,
    pub checksum_start: u16,
    pub checksum_offset: u16,
}

/// Writes Ethernet, IP and TCP headers behind `VNET_BYTES`. The checksum field of TCP holds the folded sum of the
/// pseudo-header, not complemented, over the length of headers and `payload_bytes`. Ranges of SACK for which the options
/// have no room are left out.
pub fn emit_tcp(header: &mut [u8; HEADER_BYTES], source: Mac, destination: Mac, tcp: &TcpHeader) -> Emitted {
    let _ = (header, source, destination, tcp);
    todo!()
}
