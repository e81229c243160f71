//! RACK: what was sent before something that has arrived is lost when a reordering window has passed (RFC 8985 §6).

use zerocopy::FromZeros;

use super::scoreboard::{Arrival, Segment, State};
use crate::{SeqNumber, Time};

/// Round trips for which a larger reordering window is kept (RFC 8985 §6.2, step 4).
const WINDOW_PERSIST: u8 = 16;

#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(super) struct Rack {
    /// The segment that was sent last among those that have arrived (RACK.segment): the last transmission of its record,
    /// and its end.
    sent_at: Time,
    first_sent_at: Time,
    end: SeqNumber,
    was_retransmitted: bool,
    /// Highest byte that has arrived (RACK.fack).
    fack: SeqNumber,
    rtt_us: u32,
    /// SND.NXT when the latest D-SACK was counted.
    dsack_round_end: SeqNumber,
    is_in_dsack_round: bool,
    pub(super) is_reordering_seen: bool,
    /// Quarters of the smallest round trip time that the window has (RACK.reo_wnd_mult).
    multiplier: u8,
    persist: u8,
}

/// What the reordering window depends on besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) min_rtt_us: u64,
    pub(super) srtt_us: u64,
    /// A recovery is under way, or as much was SACKed as makes duplicate ACKs (DupThresh).
    pub(super) is_loss_likely: bool,
}

impl Rack {
    pub(super) fn new(next: SeqNumber) -> Self {
        Self { end: next, fack: next, multiplier: 1, ..Self::default() }
    }

    /// Steps 2 and 3. `is_earlier`: the timestamps say that an earlier transmission than the last one has arrived.
    pub(super) fn on_arrival(&mut self, arrival: &Arrival, is_earlier: bool, min_rtt_us: u64, now: Time) {
        if arrival.end.is_after(self.fack) {
            self.fack = arrival.end;
        } else if arrival.end.is_before(self.fack) && !arrival.was_retransmitted {
            self.is_reordering_seen = true;
        }
        // The ACK may be due to an earlier transmission than the last one.
        if is_earlier || arrival.was_retransmitted && now.since(arrival.first_sent_at) < min_rtt_us {
            return;
        }
        self.rtt_us = now.since(arrival.first_sent_at).min(u64::from(u32::MAX)) as u32;
        let is_newer = if arrival.was_retransmitted || self.was_retransmitted {
            arrival.first_sent_at >= self.first_sent_at
        } else {
            arrival.end.is_after(self.end)
        };
        if is_newer {
            self.sent_at = arrival.sent_at;
            self.first_sent_at = arrival.first_sent_at;
            self.end = arrival.end;
            self.was_retransmitted = arrival.was_retransmitted;
        }
    }

    /// Step 4: segments were sent again that had arrived.
    pub(super) fn on_dsack(&mut self, una: SeqNumber, nxt: SeqNumber) {
        if self.is_in_dsack_round && una.is_before(self.dsack_round_end) {
            return;
        }
        self.is_in_dsack_round = true;
        self.dsack_round_end = nxt;
        self.multiplier = self.multiplier.saturating_add(1);
        self.persist = WINDOW_PERSIST;
    }

    /// Step 4: a recovery is over.
    pub(super) fn on_recovered(&mut self, una: SeqNumber) {
        self.is_in_dsack_round &= una.is_before(self.dsack_round_end);
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiplier = 1;
        }
    }

    /// Step 4
    fn window_us(&self, path: &Path) -> u64 {
        if !self.is_reordering_seen && path.is_loss_likely {
            return 0;
        }
        (path.min_rtt_us / 4 * u64::from(self.multiplier)).min(path.srtt_us)
    }

    /// RACK_sent_after(RACK.segment, segment). What was sent once was sent in order; else times decide, as far as those
    /// of the records do not overlap.
    fn is_sent_before(&self, segment: &Segment) -> bool {
        let is_in_order = segment.end().is_before(self.end);
        match (segment.retransmissions > 0, self.was_retransmitted) {
            (false, false) => is_in_order,
            (true, true) if is_in_order => segment.sent_at <= self.sent_at,
            _ => segment.sent_at < self.first_sent_at,
        }
    }

    /// When a segment in flight is lost, if it was sent before one that has arrived (step 5). Between two bursts lies the
    /// time between their beginnings.
    fn lost_at(&self, segment: &Segment, window_us: u64) -> Option<Time> {
        self.is_sent_before(segment)
            .then(|| segment.first_sent_at().after(u64::from(self.rtt_us) + window_us))
    }

    /// Step 5. Calls `mark` with the test that a lost segment passes. Returns when the next segment may be lost.
    pub(super) fn detect(
        &self,
        path: &Path,
        now: Time,
        mark: impl FnOnce(&mut dyn FnMut(&Segment) -> bool),
    ) -> Time {
        let window_us = self.window_us(path);
        let mut next = Time::NEVER;
        mark(&mut |segment| match self.lost_at(segment, window_us) {
            Some(at) if at <= now => true,
            Some(at) => {
                next = next.min(at);
                false
            }
            None => false,
        });
        next
    }

    /// A timeout has occurred (RFC 8985 §6.3): what was sent so recently that it can be in flight is not lost.
    pub(super) fn is_lost_by_timeout(&self, segment: &Segment, path: &Path, now: Time) -> bool {
        debug_assert_eq!(segment.state, State::InFlight);
        segment.sent_at.after(u64::from(self.rtt_us) + self.window_us(path)) <= now
    }

    #[cfg(test)]
    pub(super) fn multiplier(&self) -> u8 {
        self.multiplier
    }

    /// End of RACK.segment.
    #[cfg(test)]
    pub(super) fn newest(&self) -> SeqNumber {
        self.end
    }
}
