//! One TCP segment as a capture holds it.

use std::net::SocketAddr;

/// Flags of the TCP header (RFC 9293 section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;

    /// Whether any of `bits` is set.
    pub const fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }
}

/// Most SACK blocks that the options hold (RFC 2018 section 3).
pub const SACK_BLOCKS_MAX: usize = 4;

/// TCP options that matter to the analysis; malformed ones are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
    /// TSval and TSecr (RFC 7323).
    pub timestamps: Option<(u32, u32)>,
    /// Left and right edges; the first `sack_count` are valid.
    pub sacks: [(u32, u32); SACK_BLOCKS_MAX],
    pub sack_count: u8,
    /// The snap length cut them: what is absent may have been there.
    pub is_cut: bool,
}

/// A TCP segment; borrows from the reader's buffer until the next one is read.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Nanoseconds since the Unix epoch, as stamped.
    pub at_ns: u64,
    /// Number of the frame in the capture, from 1, counting frames that are no TCP.
    pub frame: u64,
    /// Interface of the capture (pcapng, SLL2), to find packets that `-i any` holds twice.
    pub interface: u32,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub flags: Flags,
    /// Unscaled.
    pub window: u16,
    pub options: Options,
    /// IPv4 identification; `None` for IPv6.
    pub ip_id: Option<u16>,
    /// TTL or hop limit.
    pub hops: u8,
    /// ECN field of the IP header: 3 is Congestion Experienced.
    pub ecn: u8,
    /// Payload on the wire, by the IP length (frames of up to 64 KiB and more; an IPv4 length of 0 is segmentation
    /// offload: then by the frame's original length).
    pub payload_bytes: u32,
    /// The part of the payload that the snap length left.
    pub payload: &'a [u8],
}
