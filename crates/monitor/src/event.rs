//! What happens on a connection, in the order of capture: the seam between TCP below and iSCSI and the model above.
//!
//! Stream offsets count payload bytes of one direction from the first one after its SYN, or, for a connection whose
//! start was not captured, from the first byte seen. They are 64 bits wide: sequence numbers are unwrapped before.

use iscsi::wire::BHS_LENGTH;

/// One end of an iSCSI connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    Initiator,
    Target,
}

impl Side {
    /// The other end.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Initiator => Self::Target,
            Self::Target => Self::Initiator,
        }
    }
}

/// One thing that a captured packet shows. A packet with payload and an acknowledgement yields several, in the order
/// `Ack`, `Segment`, `PduStart`, `PduEnd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the epoch of the capture, as it was stamped: at the vantage, not at either end.
    pub at_ns: u64,
    /// Number of the frame in the capture, from 1.
    pub frame: u64,
    /// The end that sent it.
    pub from: Side,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Segment(Segment),
    Ack(Ack),
    PduStart(PduStart),
    PduEnd(PduEnd),
    /// The receiver acknowledged bytes that the capture does not hold: the capture lost them, not the network. PDUs
    /// within them are unknown; framing is found again after them, or is not, which [`Kind::Opaque`] tells.
    CaptureLost {
        offset: u64,
        bytes: u64,
    },
    /// Bytes passed in which PDUs begin whose headers the capture does not hold, because the snap length cut them off:
    /// those PDUs are unknown. The next [`PduStart`] of this side is at `offset + bytes` or later. One for each packet,
    /// until a header is found again.
    HeadersUnseen {
        offset: u64,
        bytes: u64,
    },
    /// From here on the stream of this side is not read as PDUs: SEAL/1, TLS, or framing that was not found again.
    Opaque(Opaque),
    /// FIN or RST.
    Ended {
        by_reset: bool,
    },
}

/// Payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    /// May be up to 64 KiB: captures hold frames before the network card cuts them.
    pub bytes: u32,
    /// Bytes of it that were seen before at this vantage. All of them: a retransmission, unless the capture holds the
    /// same packet twice, which yields no event at all.
    pub repeated_bytes: u32,
    /// Maximum segment size of the direction, to count the packets on the wire.
    pub mss: u16,
    pub push: bool,
    pub order: Order,
}

/// How a segment stands to those of its direction that passed before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Beyond all bytes that passed before.
    #[default]
    Next,
    /// Sent before bytes that passed earlier, and overtaken by them: reordering, not loss.
    Late,
    /// Sent again: it repeats bytes, or fills a gap that was lost before the vantage.
    Again,
}

/// The acknowledgement part of any packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Offset in the *peer's* stream up to which all is received.
    pub acknowledged: u64,
    /// Receive window of the packet's sender in bytes, scaled; `None` if the scale is unknown (start not captured).
    pub window_bytes: Option<u64>,
    /// Bytes above `acknowledged` in the SACK blocks of this packet.
    pub sacked_bytes: u32,
    /// A duplicate acknowledgement (RFC 5681 section 2), or one whose first SACK block is old data (RFC 2883).
    pub duplicate: Duplicate,
    /// Explicit congestion notification echoed (RFC 3168).
    pub congestion_echo: bool,
    /// The packet carries no payload.
    pub is_bare: bool,
    /// Since the last byte that it acknowledges passed the vantage, in nanoseconds; `None` if that byte was sent more
    /// than once, its passing was not seen, or nothing new is acknowledged. With the distance to the end that sent the
    /// byte it is the round trip in that end's clock, queues included.
    pub round_trip_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicate {
    #[default]
    No,
    /// The same `acknowledged`, data outstanding, no payload, no window update.
    Ack,
    /// The receiver reports data that it had already: the retransmission was not needed.
    Data,
}

/// The first byte of a PDU has passed; its basic header segment is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduStart {
    pub offset: u64,
    /// Whole length: header, AHS, digests, data, padding.
    pub bytes: u64,
    pub header: [u8; BHS_LENGTH],
}

/// The last byte of the PDU that started at `offset` has passed, and every byte before it (a gap delays it until the
/// retransmission). PDUs of a direction end in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduEnd {
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opaque {
    /// SEAL/1 records follow the login.
    Sealed,
    /// TLS records.
    Tls,
    /// Not iSCSI, or framing was lost and not found again within the bound.
    Unframed,
}

/// Round trips between the point of capture and each end, the least seen. Their sum is the connection's RTT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distances {
    pub initiator_ns: Option<u64>,
    pub target_ns: Option<u64>,
}

/// Where packets were captured, from [`Distances`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vantage {
    /// At this end, or so near that the difference does not matter.
    At(Side),
    /// On the way.
    Between,
    Unknown,
}
