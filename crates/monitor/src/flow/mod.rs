//! TCP connections and the PDUs in them: packets become [`crate::event::Event`]s.
//!
//! [`Table`] takes the packets of a capture and follows each connection: which bytes passed, which were sent again, what
//! was acknowledged, where PDUs begin and end, and how far each end is from the vantage. It reads headers of iSCSI and the
//! text of logins, never data. Read docs/internals/monitor.md first.
//!
//! A connection is iSCSI if it is on a port of a target, begins with a login, or carries what only PDUs look like.
//! Others yield no event.
//!
//! ```text
//! Table -> Connection -> Half      offsets, gaps, repetitions, acknowledgements, round trips
//!                     -> Framer    where PDUs begin: by the chain of headers, or by search where it is broken
//! ```

mod connection;
mod framer;
mod half;
mod holes;
mod negotiated;
mod plausible;
mod repeats;
mod round_trip;
mod scraps;
mod table;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use negotiated::Pair;
pub use table::Table;

use crate::event::{Distances, Side, Vantage};

/// A connection of one [`Table`]; never used again for another. They ascend in the order of the first packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(u64);

/// Bits of a [`FlowId`] that name its place in the table.
const SLOT_BITS: u32 = 16;

const _: () = assert!(crate::limits::FLOWS_MAX <= 1 << SLOT_BITS);

impl FlowId {
    fn new(serial: u64, slot: usize) -> Self {
        Self(serial << SLOT_BITS | slot as u64)
    }

    /// A place below [`crate::limits::FLOWS_MAX`] that no other connection of the table has at the same time.
    pub(crate) fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    /// A number that is unique in the table.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// What a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belongs {
    /// An iSCSI connection.
    To(FlowId),
    /// A connection that may be found to be iSCSI.
    Undecided(FlowId),
    /// Something else.
    Other,
}

/// Whether PDUs of a direction are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Plain,
    /// No PDU was found yet, or again.
    Searching,
    /// SEAL/1.
    Sealed,
    Tls,
    Unframed,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames of the capture, copies included.
    pub packets: u64,
    /// Packets on the wire that carried payload: frames by the maximum segment size.
    pub segments: u64,
    /// Payload, without repetitions.
    pub bytes: u64,
    /// Of `segments`, those that were sent again: seen twice, or lost before the vantage.
    pub retransmissions: u64,
    /// Of `segments`, those that others of the same direction overtook.
    pub reordered: u64,
    /// Duplicate acknowledgements that this direction carried.
    pub duplicate_acks: u64,
    /// Packets that the capture holds more than once.
    pub copies: u64,
    /// Packets outside any window.
    pub strange: u64,
    pub capture_losses: u64,
    pub capture_lost_bytes: u64,
    pub pdus: u64,
    /// Bytes of PDUs whose headers were not captured.
    pub headers_unseen_bytes: u64,
    /// Most payload that the snap length left of a packet.
    pub kept_bytes_max: u64,
}

/// What is known of a connection. Arrays are by the end that sends: see [`Flow::of`].
#[derive(Clone, Debug)]
pub struct Flow {
    pub id: FlowId,
    pub initiator: SocketAddr,
    pub target: SocketAddr,
    /// Times of the first and the last packet, nanoseconds since the epoch of the capture.
    pub first_ns: u64,
    pub last_ns: u64,
    /// Whether the handshake was captured.
    pub is_from_start: bool,
    /// Whether all text of the login was captured: a key that is absent then has its default.
    pub is_login_whole: bool,
    /// Payload of a full packet; guessed without the handshake.
    pub mss: [u16; 2],
    /// Shift of the windows that each end announces; `None` without the handshake.
    pub window_scales: [Option<u8>; 2],
    pub distances: Distances,
    pub vantage: Vantage,
    /// Keys of the login as each end sent them last, in the order of appearance. Names and values may hold any
    /// character.
    pub negotiated: Vec<Pair>,
    /// Whether PDUs have digests; `None` if not known.
    pub header_digest: Option<bool>,
    pub data_digest: Option<bool>,
    pub framing: [Framing; 2],
    pub counts: [Counts; 2],
}

impl Flow {
    /// The entry of an array for the direction that `from` sends.
    pub fn of<T: Copy>(&self, from: Side, array: [T; 2]) -> T {
        array[from as usize]
    }

    /// The value of a key as `from` sent it last.
    pub fn key(&self, from: Side, key: &str) -> Option<&str> {
        let pair = self.negotiated.iter().find(|pair| pair.from == from && pair.key == key)?;
        Some(&pair.value)
    }

    /// Counts of both directions together.
    pub fn total(&self, count: impl Fn(&Counts) -> u64) -> u64 {
        self.counts.iter().map(count).sum()
    }
}
