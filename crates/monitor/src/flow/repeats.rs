//! Packets that a capture holds more than once: `-i any`, several interfaces, mirror ports.

use crate::limits::FINGERPRINTS_MAX;
use crate::packet::{Flags, Packet};

/// Longest time between two copies of a packet with an IPv4 identification.
const IDENTIFIED_NS_MAX: u64 = 50_000_000;
/// The same without one, where a sender may repeat a segment within one tick of its time stamps.
const UNIDENTIFIED_NS_MAX: u64 = 1_000_000;

/// What two copies of a packet have in common, and what tells them apart: small, because each packet writes one.
#[derive(Clone, Copy, Debug)]
struct Fingerprint {
    /// Of everything in which copies are equal.
    digest: u64,
    at_ns: u64,
    interface: u32,
    hops: u8,
    /// It has an IPv4 identification.
    is_identified: bool,
    /// A packet without payload that is no SYN.
    is_bare: bool,
}

/// Adds a number to a digest. Captures that are made to have equal ones hide their own packets, nothing else.
fn mixed(digest: u64, number: u64) -> u64 {
    (digest.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Two numbers as one.
fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl Fingerprint {
    fn of(packet: &Packet<'_>) -> Self {
        let ip_id = packet.ip_id.filter(|id| *id != 0);
        let (tsval, tsecr) = packet.options.timestamps.unwrap_or_default();
        let (left, right) = packet.options.sacks[0];
        let options = u32::from(packet.options.timestamps.is_some()) << 8 | u32::from(packet.flags.0);
        let parts = [
            joined(packet.seq, packet.ack),
            joined(packet.payload_bytes, options),
            joined(packet.window.into(), ip_id.unwrap_or(0).into()),
            joined(tsval, tsecr),
            joined(left, right),
        ];
        Self {
            digest: parts.into_iter().fold(0, mixed),
            at_ns: packet.at_ns,
            interface: packet.interface,
            hops: packet.hops,
            is_identified: ip_id.is_some(),
            is_bare: packet.payload_bytes == 0 && !packet.flags.has(Flags::SYN),
        }
    }

    /// Whether this is another copy of `other`, which passed before.
    fn is_copy_of(&self, other: &Self, round_trip_ns: Option<u64>) -> bool {
        if self.digest != other.digest {
            return false;
        }
        let elapsed = self.at_ns.saturating_sub(other.at_ns);
        if self.is_identified {
            return elapsed <= IDENTIFIED_NS_MAX;
        }
        // Duplicate acknowledgements without identification and SACK are alike.
        if self.is_bare && self.interface == other.interface && self.hops == other.hops {
            return false;
        }
        elapsed <= round_trip_ns.map_or(UNIDENTIFIED_NS_MAX, |time| (time / 2).min(UNIDENTIFIED_NS_MAX))
    }
}

/// The last packets of one direction.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    last: Vec<Fingerprint>,
    /// Where the next one is written, in place of the oldest.
    next: usize,
    /// The interface on which the direction was seen first.
    interface: Option<u32>,
    tsval: Option<u32>,
}

impl Repeats {
    pub(super) fn held_bytes(&self) -> usize {
        self.last.capacity() * size_of::<Fingerprint>()
    }

    #[inline]
    pub(super) fn remember(&mut self, packet: &Packet<'_>) {
        let this = Fingerprint::of(packet);
        match self.last.get_mut(self.next) {
            Some(oldest) => *oldest = this,
            None => self.last.push(this),
        }
        self.next = (self.next + 1) % FINGERPRINTS_MAX;
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
        let (newer, older) = self.last.split_at(self.next.min(self.last.len()));
        newer.iter().rev().chain(older.iter().rev()).any(|other| this.is_copy_of(other, round_trip_ns))
    }
}
