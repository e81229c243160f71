//! Packets that a capture holds more than once: `-i any`, several interfaces, mirror ports.

use std::collections::VecDeque;

use crate::limits::FINGERPRINTS_MAX;
use crate::packet::{Flags, Packet};

/// Longest time between two copies of a packet with an IPv4 identification.
const IDENTIFIED_NS_MAX: u64 = 50_000_000;
/// The same without one, where a sender may repeat a segment within one tick of its time stamps.
const UNIDENTIFIED_NS_MAX: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
struct Fingerprint {
    seq: u32,
    ack: u32,
    bytes: u32,
    flags: u8,
    window: u16,
    ip_id: Option<u16>,
    stamps: Option<(u32, u32)>,
    sack: (u32, u32),
    interface: u32,
    hops: u8,
    at_ns: u64,
}

impl Fingerprint {
    fn of(packet: &Packet<'_>) -> Self {
        Self {
            seq: packet.seq,
            ack: packet.ack,
            bytes: packet.payload_bytes,
            flags: packet.flags.0,
            window: packet.window,
            ip_id: packet.ip_id.filter(|id| *id != 0),
            stamps: packet.options.timestamps,
            sack: packet.options.sacks[0],
            interface: packet.interface,
            hops: packet.hops,
            at_ns: packet.at_ns,
        }
    }

    /// Whether this is another copy of `other`, which passed before.
    fn is_copy_of(&self, other: &Self, round_trip_ns: Option<u64>) -> bool {
        let is_same = self.seq == other.seq
            && self.ack == other.ack
            && self.bytes == other.bytes
            && self.flags == other.flags
            && self.window == other.window
            && self.ip_id == other.ip_id
            && self.stamps == other.stamps
            && self.sack == other.sack;
        if !is_same {
            return false;
        }
        let elapsed = self.at_ns.saturating_sub(other.at_ns);
        if self.ip_id.is_some() {
            return elapsed <= IDENTIFIED_NS_MAX;
        }
        // Duplicate acknowledgements without identification and SACK are alike.
        let is_syn = self.flags & Flags::SYN != 0;
        if self.bytes == 0 && !is_syn && self.interface == other.interface && self.hops == other.hops {
            return false;
        }
        elapsed <= round_trip_ns.map_or(UNIDENTIFIED_NS_MAX, |time| (time / 2).min(UNIDENTIFIED_NS_MAX))
    }
}

/// The last packets of one direction.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    last: VecDeque<Fingerprint>,
    /// The interface on which the direction was seen first.
    interface: Option<u32>,
    tsval: Option<u32>,
}

impl Repeats {
    #[inline]
    pub(super) fn remember(&mut self, packet: &Packet<'_>) {
        if self.last.len() == FINGERPRINTS_MAX {
            self.last.pop_front();
        }
        self.last.push_back(Fingerprint::of(packet));
        self.interface.get_or_insert(packet.interface);
        if let Some((tsval, _)) = packet.options.timestamps {
            self.tsval = Some(tsval);
        }
    }

    /// Whether `packet`, which brings nothing new, is a copy of one before. On another interface a frame may be cut
    /// differently; there, a packet with a time stamp that is not newer is a copy.
    pub(super) fn is_copy(&self, packet: &Packet<'_>, round_trip_ns: Option<u64>) -> bool {
        let is_elsewhere = self.interface.is_some_and(|first| first != packet.interface);
        if is_elsewhere && let (Some(last), Some((tsval, _))) = (self.tsval, packet.options.timestamps) {
            return tsval.wrapping_sub(last).cast_signed() <= 0;
        }
        let this = Fingerprint::of(packet);
        self.last.iter().rev().any(|other| this.is_copy_of(other, round_trip_ns))
    }
}
