//! Round trips between the vantage and one end, from segments and their acknowledgements, and from time stamps.

use std::collections::VecDeque;
use std::ops::Range;

use crate::limits::{TIMED_SEGMENTS_MAX, TIMED_STAMPS_MAX};

/// A segment and its acknowledgement live at most two minutes each (MSL, RFC 9293 section 3.4.1): an interval beyond
/// both is one of the capture's clock, which may be set while it runs.
const ROUND_TRIP_MAX_NS: u64 = 240_000_000_000;

/// Segments of one direction that were sent once and are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Timed(VecDeque<(Range<u64>, u64)>);

impl Timed {
    /// New bytes passed. While the queue is full further segments are not timed.
    #[inline]
    pub(super) fn sent(&mut self, span: Range<u64>, at_ns: u64) {
        if self.0.len() < TIMED_SEGMENTS_MAX {
            self.0.push_back((span, at_ns));
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(Range<u64>, u64)>()
    }

    /// Bytes were sent again: what is not acknowledged is not timed, because it is not known which copy an
    /// acknowledgement answers, and those behind a loss are acknowledged only after its repair (RFC 6298 section 3).
    pub(super) fn sent_again(&mut self) {
        self.0.clear();
    }

    /// Everything below `offset` is acknowledged. The time is that of the last byte: a receiver that delays
    /// acknowledgements sends one for its last segment, or for a part of a frame that the sender had not cut yet.
    #[inline]
    pub(super) fn acknowledged(&mut self, offset: u64, at_ns: u64) -> Option<u64> {
        let mut last = None;
        while let Some((span, sent_ns)) = self.0.front() {
            if span.start < offset {
                last = (span.end >= offset).then_some(*sent_ns);
            }
            if span.end > offset {
                break;
            }
            self.0.pop_front();
        }
        Some(at_ns.saturating_sub(last?))
    }
}

/// Time stamps of one direction that wait for their echo (RFC 7323). Times from them are only used for an end of which
/// there is nothing better: an echo may answer a later packet with the same stamp, so they are too long by up to a tick
/// of the sender's clock.
#[derive(Debug, Default)]
pub(super) struct Stamps(VecDeque<(u32, u64)>);

impl Stamps {
    pub(super) fn sent(&mut self, tsval: u32, at_ns: u64) {
        if self.0.back().is_some_and(|(last, _)| tsval.wrapping_sub(*last).cast_signed() <= 0) {
            return;
        }
        if self.0.len() == TIMED_STAMPS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((tsval, at_ns));
    }

    /// The first echo of a stamp.
    pub(super) fn echoed(&mut self, tsecr: u32, at_ns: u64) -> Option<u64> {
        let index = self.0.iter().position(|(tsval, _)| *tsval == tsecr)?;
        let (_, sent_ns) = self.0.drain(..=index).next_back()?;
        Some(at_ns.saturating_sub(sent_ns))
    }
}

/// The least round trip to one end, of those that can be one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Least {
    segments: Option<u64>,
    stamps: Option<u64>,
}

impl Least {
    #[inline]
    pub(super) fn add(&mut self, sample_ns: u64) {
        least(&mut self.segments, sample_ns);
    }

    pub(super) fn add_stamps(&mut self, sample_ns: u64) {
        least(&mut self.stamps, sample_ns);
    }

    pub(super) fn needs_stamps(&self) -> bool {
        self.segments.is_none()
    }

    pub(super) fn get(&self) -> Option<u64> {
        self.segments.or(self.stamps)
    }
}

#[inline]
fn least(known: &mut Option<u64>, sample_ns: u64) {
    if sample_ns <= ROUND_TRIP_MAX_NS {
        *known = Some(known.map_or(sample_ns, |known| known.min(sample_ns)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_acknowledged_is_timed() {
        let mut timed = Timed::default();
        for (start, end, at) in [(0, 100, 10), (100, 200, 20), (200, 1000, 30), (1000, 1100, 40)] {
            timed.sent(start..end, at);
        }
        // Two segments with one acknowledgement; within a large frame, twice; at its end; beyond all.
        let table = [(200, Some(30)), (500, Some(20)), (600, Some(20)), (1000, Some(20)), (1200, None)];
        for (offset, expected) in table {
            assert_eq!(timed.acknowledged(offset, 50), expected, "{offset}");
        }
        timed.sent(1200..1300, 60);
        timed.sent_again();
        assert_eq!(timed.acknowledged(1300, 70), None);
    }

    #[test]
    fn an_interval_longer_than_segments_live_is_no_round_trip() {
        let mut least = Least::default();
        least.add(u64::MAX);
        least.add_stamps(ROUND_TRIP_MAX_NS + 1);
        assert_eq!(least.get(), None);
        least.add_stamps(ROUND_TRIP_MAX_NS);
        assert_eq!(least.get(), Some(ROUND_TRIP_MAX_NS));
    }

    #[test]
    fn the_first_echo_of_the_first_packet_with_a_stamp_counts() {
        let mut stamps = Stamps::default();
        for (tsval, at) in [(7, 10), (7, 12), (8, 20), (6, 25)] {
            stamps.sent(tsval, at);
        }
        assert_eq!(stamps.echoed(8, 50), Some(30));
        assert_eq!(stamps.echoed(8, 60), None);
        assert_eq!(stamps.echoed(7, 60), None);
    }
}
