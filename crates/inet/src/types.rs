//! What crosses the boundary of the engine: names of things that the caller keeps, time, sequence numbers, frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::{Add, Sub};

use zerocopy::FromZeros;

/// Room for the headers of one frame: virtio_net_hdr (the driver's, [`VNET_BYTES`]), Ethernet, IPv6, TCP with options.
pub const HEADER_BYTES: usize = 256;
/// Bytes at the start of a header slot that belong to the driver (struct virtio_net_hdr_v1).
pub const VNET_BYTES: usize = 12;
/// Bytes of a received frame, from its Ethernet header on, that lie in its head; a longer one also occupies a tail.
pub const HEAD_BYTES: u32 = 2048 - VNET_BYTES as u32;
/// Pieces of payload in one frame.
pub const GATHER_MAX: usize = 4;
/// Most payload bytes of one frame: an IPv4 datagram of 65,535 bytes less headers, rounded down.
pub const SEGMENT_BYTES_MAX: u32 = 65_160;

/// Microseconds of a monotonic clock that never stops while records live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromZeros)]
#[repr(transparent)]
pub struct Time(pub u64);

impl Time {
    pub const ZERO: Self = Self(0);
    pub const NEVER: Self = Self(u64::MAX);

    /// Microseconds from `earlier` to this time; 0 if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This time `us` microseconds later.
    pub const fn after(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }
}

/// A sequence number of TCP; comparisons are modulo 2^32 (RFC 9293 §3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromZeros)]
#[repr(transparent)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// How far this number lies behind `other`; negative if before it.
    pub const fn distance(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    pub const fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    pub const fn is_after(self, other: Self) -> bool {
        self.distance(other) > 0
    }

    pub const fn max(self, other: Self) -> Self {
        if self.is_after(other) { self } else { other }
    }

    pub const fn min(self, other: Self) -> Self {
        if self.is_before(other) { self } else { other }
    }
}

impl Add<u32> for SeqNumber {
    type Output = Self;

    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl Sub<u32> for SeqNumber {
    type Output = Self;

    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

/// Bytes in memory of an application. The engine passes it on and divides it, and never looks at the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct PayloadRef {
    pub region: u32,
    /// Of the region's number: a number that is used again has another generation.
    pub generation: u32,
    /// From the start of the region, bytes.
    pub offset: u32,
    pub length: u32,
}

impl PayloadRef {
    /// Bytes `start..start + length` of these.
    ///
    /// # Panics
    /// If they lie outside.
    pub fn slice(self, start: u32, length: u32) -> Self {
        assert!(
            start.checked_add(length).is_some_and(|end| end <= self.length),
            "a slice outside of the payload"
        );
        Self { offset: self.offset + start, length, ..self }
    }
}

/// A frame that the driver received, in memory of the driver: below [`crate::Capacity::frames`].
pub type FrameId = u32;

/// A client of the stack: an application.
pub type ClientId = u32;

/// A network interface (an attached driver): small and dense.
pub type InterfaceId = u8;

/// A slot of the connections' table, and how many times it has been used before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromZeros)]
#[repr(C)]
pub struct ConnectionId {
    pub index: u32,
    pub generation: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromZeros)]
#[repr(C)]
pub struct ListenerId {
    pub index: u32,
    pub generation: u32,
}

/// An IP address; IPv4 as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, FromZeros)]
#[repr(transparent)]
pub struct Address(pub [u8; 16]);

impl Address {
    pub const UNSPECIFIED: Self = Self([0; 16]);

    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// The IPv4 address, if it is one.
    pub fn v4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    pub fn is_v4(self) -> bool {
        self.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
    }

    /// `0.0.0.0` or `::`.
    pub fn is_unspecified(self) -> bool {
        self.ip().is_unspecified()
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Self(match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

/// An address and a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromZeros)]
#[repr(C)]
pub struct Endpoint {
    pub address: Address,
    pub port: u16,
}

impl From<SocketAddr> for Endpoint {
    fn from(socket: SocketAddr) -> Self {
        Self { address: socket.ip().into(), port: socket.port() }
    }
}

impl From<Endpoint> for SocketAddr {
    fn from(endpoint: Endpoint) -> Self {
        Self::new(endpoint.address.ip(), endpoint.port)
    }
}

/// What a driver says of its device when it attaches (`ifattach` of the paper).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct Link {
    pub mac: [u8; 6],
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// The driver takes TCP segments longer than the MTU and divides them, or its device does.
    pub segments: bool,
}

/// A frame that the driver received.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    pub interface: InterfaceId,
    pub frame: FrameId,
    /// The first bytes of the frame from the Ethernet header on, at most [`HEADER_BYTES`], copied once out of memory
    /// that the driver can change.
    pub header: &'a [u8],
    /// Of the whole frame from the Ethernet header on, bytes.
    pub length: u32,
    /// The driver or its device has verified the checksums of TCP, ICMP and ICMPv6, or the frame never was on a wire.
    pub is_checked: bool,
    /// TCP payload bytes of each segment of which the frame was put together; 0 if it is one segment.
    pub segment_bytes: u16,
}

/// Where bytes of a frame that the engine sends lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Memory of an application.
    Client(PayloadRef),
    /// Bytes `start..start + length` of a frame that was received, counted from its Ethernet header (ICMP echo).
    Frame { frame: FrameId, start: u32, length: u32 },
}

/// Bytes of a client that were sent for the first time by a frame: the driver says so directly to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    pub client: ClientId,
    pub connection: ConnectionId,
    /// Of the last `send` whose bytes now have all been sent once. Earlier tickets of the connection are included.
    pub ticket: u64,
}

/// A frame to send. Its header lies in the slot that the caller gave to `poll_transmit`, from [`VNET_BYTES`] on.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    pub interface: InterfaceId,
    /// Of the header from the Ethernet header on, bytes.
    pub header_bytes: u16,
    pub sources: [Option<Source>; GATHER_MAX],
    /// Where the checksum is to be completed: bytes `start..` of the frame from the Ethernet header on are summed, the
    /// result is stored at `start + offset`, whose content now is the sum of the pseudo-header. 0, 0 if none.
    pub checksum_start: u16,
    pub checksum_offset: u16,
    /// TCP payload bytes of each segment if the frame must be divided; 0 otherwise.
    pub segment_bytes: u16,
    pub submitted: Option<Submitted>,
}

/// Congestion control of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub enum Algorithm {
    NewReno,
    /// RFC 9438.
    #[default]
    Cubic,
}

/// Options of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct Options {
    /// TCP_NODELAY: RFC 9293 §3.7.4 switched off.
    pub no_delay: bool,
    pub algorithm: Algorithm,
    /// Seconds of silence before the first keep-alive probe; 0 for none.
    pub keep_alive_s: u32,
    /// Most bytes that are received and not released, and so the largest window.
    pub receive_bytes_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { no_delay: false, algorithm: Algorithm::Cubic, keep_alive_s: 0, receive_bytes_max: 4 << 20 }
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub enum Ended {
    /// Both sides closed.
    Closed,
    /// The peer sent RST.
    Reset,
    /// RST in answer to SYN.
    Refused,
    /// No answer (RFC 9293 §3.8.3, R2), or to keep-alive probes.
    TimedOut,
    /// ICMP said so while the connection was being opened, or no neighbour answered.
    Unreachable,
    /// The caller aborted it.
    Aborted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A `connect` is done.
    Connected {
        connection: ConnectionId,
    },
    /// `accept` will return a connection.
    Incoming {
        listener: ListenerId,
    },
    /// Bytes in order: `start..start + length` of a frame, counted from its Ethernet header. The frame is the client's
    /// until it calls `release`; each part once. `offset` counts the stream's bytes, to find a repeated delivery.
    Received {
        connection: ConnectionId,
        frame: FrameId,
        start: u32,
        length: u32,
        offset: u64,
    },
    /// The peer sent FIN; all bytes before it have been delivered.
    PeerClosed {
        connection: ConnectionId,
    },
    /// All pieces of sends up to this ticket belong to the client again.
    Released {
        connection: ConnectionId,
        ticket: u64,
    },
    /// A `send` that was refused for want of room may be tried again.
    Room {
        connection: ConnectionId,
    },
    Ended {
        connection: ConnectionId,
        why: Ended,
    },
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// EADDRINUSE
    InUse,
    /// EADDRNOTAVAIL: the local address is none of ours.
    NotOurs,
    /// ENETUNREACH: no route.
    NoRoute,
    /// ENOBUFS: a table is full; later it may not be.
    Full,
    /// ENOTCONN
    NotConnected,
    /// EPIPE: the sending side was closed.
    Closed,
    /// EBADF: no such connection, or one that was there before.
    Unknown,
    /// EINVAL
    Invalid,
}
