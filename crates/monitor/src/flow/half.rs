//! One direction of a TCP connection: offsets of its bytes, gaps, repetitions.

use std::ops::Range;

use super::holes::{Hole, Holes};
use super::repeats::Repeats;
use super::round_trip::{Stamps, Timed};
use crate::event::Order;
use crate::packet::Packet;

/// A segment this far from those before belongs to no window (RFC 7323 section 2.3).
const DISTANCE_MAX: i64 = 1 << 30;
/// How much later than the acknowledgement the bytes themselves may be captured: queues of a network card are not read
/// in the order of arrival.
const CAPTURE_DISORDER_NS: u64 = 2_000_000;
/// Below this round trip the time of a filled gap tells nothing.
const ROUND_TRIP_TELLING_NS: u64 = 200_000;
/// A gap that is filled sooner was reordered, if nothing else tells.
const LATE_NS_MAX: u64 = 3_000_000;

/// What tells in which order packets were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    tsval: Option<u32>,
    ip_id: Option<u16>,
}

impl Stamp {
    pub(super) fn of(packet: &Packet<'_>) -> Self {
        Self {
            tsval: packet.options.timestamps.map(|stamps| stamps.0),
            ip_id: packet.ip_id.filter(|id| *id != 0),
        }
    }

    /// Whether this packet was sent before the other; `None` if it does not tell.
    fn is_before_by_time(self, other: Self) -> Option<bool> {
        let difference = self.tsval?.wrapping_sub(other.tsval?).cast_signed();
        (difference != 0).then_some(difference < 0)
    }

    fn is_before_by_id(self, other: Self) -> Option<bool> {
        let difference = self.ip_id?.wrapping_sub(other.ip_id?).cast_signed();
        (difference != 0).then_some(difference < 0)
    }
}

/// What the SYN of this direction said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Syn {
    pub(super) seq: u32,
    pub(super) at_ns: u64,
    pub(super) is_answer: bool,
    pub(super) is_repeated: bool,
    pub(super) window_scale: Option<u8>,
    /// The capture lacks a part of the options.
    pub(super) is_cut: bool,
    pub(super) mss: Option<u16>,
    pub(super) has_timestamps: bool,
}

/// The last acknowledgement that this direction carried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Acked {
    pub(super) offset: u64,
    pub(super) window: u16,
    pub(super) sacked_bytes: u32,
    pub(super) is_any: bool,
}

#[derive(Debug, Default)]
pub(super) struct Half {
    /// Sequence number of offset 0.
    base: Option<u32>,
    pub(super) syn: Option<Syn>,
    pub(super) has_data: bool,
    /// End of the highest byte that passed.
    pub(super) next: u64,
    pub(super) holes: Holes,
    /// What the peer has acknowledged of this direction.
    pub(super) acknowledged: u64,
    /// When acknowledged bytes that have not passed are taken for lost by the capture.
    lost_due_ns: Option<u64>,
    pub(super) fin: Option<u64>,
    /// What this direction acknowledges of the other.
    pub(super) acked: Acked,
    pub(super) timed: Timed,
    pub(super) stamps: Stamps,
    pub(super) repeats: Repeats,
    /// Largest payload of a frame, for a direction without SYN.
    pub(super) payload_max: u32,
}

/// A segment in the stream.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) repeated_bytes: u32,
    pub(super) order: Order,
}

impl Half {
    pub(super) fn start(&mut self, base: u32) {
        self.base = Some(base);
    }

    pub(super) fn is_started(&self) -> bool {
        self.base.is_some()
    }

    /// Empties the queues.
    pub(super) fn leave(&mut self) {
        self.holes = Holes::default();
        self.timed = Timed::default();
        self.stamps = Stamps::default();
        self.repeats = Repeats::default();
    }

    /// Memory that the queues take, about.
    pub(super) fn held_bytes(&self) -> usize {
        self.holes.held_bytes() + self.timed.held_bytes() + self.repeats.held_bytes()
    }

    /// Offset of a sequence number, negative before the first byte seen; `None` if it belongs to no window.
    pub(super) fn offset(&self, seq: u32) -> Option<i64> {
        let next = self.base?.wrapping_add((self.next & u64::from(u32::MAX)) as u32);
        let distance = i64::from(seq.wrapping_sub(next).cast_signed());
        (distance.abs() <= DISTANCE_MAX).then(|| self.next.cast_signed().saturating_add(distance))
    }

    /// All bytes below have passed.
    pub(super) fn contiguous(&self) -> u64 {
        self.holes.first().map_or(self.next, |hole| hole.span.start)
    }

    /// Whether any byte of `span` has passed.
    pub(super) fn has_passed_any(&self, span: &Range<u64>) -> bool {
        let below = span.start..span.end.min(self.next);
        below.start < below.end && self.holes.leaves_any_of(&below)
    }

    /// Adds a segment of at least one byte. `round_trip_ns` is that of the connection.
    pub(super) fn place(
        &mut self,
        span: Range<u64>,
        at_ns: u64,
        stamp: Stamp,
        round_trip_ns: Option<u64>,
    ) -> Placed {
        let bytes = span.end - span.start;
        if !std::mem::replace(&mut self.has_data, true) && self.syn.is_none() {
            // What the peer acknowledged before was sent before the capture began.
            self.next = self.next.max(span.start);
        }
        if span.start >= self.next {
            if span.start > self.next {
                self.holes.push(Hole { span: self.next..span.start, since_ns: at_ns, stamp });
            }
            self.next = span.end;
            self.timed.sent(span, at_ns);
            return Placed { repeated_bytes: 0, order: Order::Next };
        }
        let (filled, hole) = self.holes.fill(&span);
        let beyond = span.end.saturating_sub(self.next);
        self.next = self.next.max(span.end);
        let repeated = bytes - filled - beyond;
        let is_late = repeated == 0 && hole.is_some_and(|hole| is_late(&hole, at_ns, stamp, round_trip_ns));
        if !is_late {
            self.timed.sent_again();
        }
        let order = if is_late { Order::Late } else { Order::Again };
        Placed { repeated_bytes: u32::try_from(repeated).unwrap_or(u32::MAX), order }
    }

    /// The peer acknowledged up to `offset`; returns the round trip between the vantage and the peer.
    pub(super) fn acknowledge(&mut self, offset: u64, at_ns: u64) -> Option<u64> {
        self.acknowledged = self.acknowledged.max(offset);
        if !self.has_data && self.syn.is_none() {
            // Sent before the capture began, or this direction is not captured.
            self.next = self.next.max(offset);
            return None;
        }
        let is_beyond = offset > self.next || self.holes.first().is_some_and(|hole| hole.span.start < offset);
        if is_beyond && self.lost_due_ns.is_none() {
            self.lost_due_ns = Some(at_ns.saturating_add(CAPTURE_DISORDER_NS));
        }
        self.timed.acknowledged(offset, at_ns)
    }

    /// The next bytes that are acknowledged and did not pass the capture.
    #[inline]
    pub(super) fn poll_lost(&mut self, at_ns: u64) -> Option<Range<u64>> {
        let due_ns = self.lost_due_ns?;
        if at_ns < due_ns {
            return None;
        }
        if let Some(lost) = self.holes.pop_below(self.acknowledged) {
            return Some(lost);
        }
        self.lost_due_ns = None;
        let lost = self.next..self.acknowledged;
        // One byte is the FIN: a PDU has a multiple of four.
        if lost.end > lost.start + 1 {
            self.next = lost.end;
            return Some(lost);
        }
        None
    }

    /// Whether a segment is a probe of a peer that is idle or whose window is closed, and carries no new byte.
    pub(super) fn is_probe(&self, offset: i64, bytes: u32, peer_window: Option<u16>) -> bool {
        let next = self.next.cast_signed();
        let is_keep_alive =
            bytes <= 1 && offset == next - 1 && self.acknowledged >= self.next && self.has_data;
        let is_window_probe = bytes <= 1 && offset < next && peer_window == Some(0);
        is_keep_alive || is_window_probe
    }
}

/// Whether the gap was left by packets that overtook others, not by a loss before the vantage. A retransmission passes
/// at least one round trip of the connection after the segment that opened the gap: the receiver's report of the gap
/// and the retransmission cover the whole way between them.
fn is_late(hole: &Hole, at_ns: u64, stamp: Stamp, round_trip_ns: Option<u64>) -> bool {
    let elapsed = at_ns.saturating_sub(hole.since_ns);
    if let Some(is_before) = stamp.is_before_by_time(hole.stamp) {
        return is_before;
    }
    if let Some(round_trip_ns) = round_trip_ns.filter(|time| *time >= ROUND_TRIP_TELLING_NS) {
        return elapsed < round_trip_ns / 4 * 3;
    }
    stamp.is_before_by_id(hole.stamp).unwrap_or(elapsed < LATE_NS_MAX)
}
