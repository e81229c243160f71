//! What was sent and not acknowledged, which part of it is lost, and what may be sent next.
//!
//! [`Recovery`] never reads a frame and never writes one. The connection gives it what was sent ([`Recovery::on_sent`],
//! [`Recovery::on_retransmitted`]), acceptable ACKs ([`Recovery::on_ack`]) and expired times
//! ([`Recovery::on_deadline`]); and before each frame asks first for [`Recovery::next_retransmission`], then for
//! [`Recovery::allowance`].
//!
//! With SACK, losses are found by RACK-TLP (RFC 8985), on the scoreboard of RFC 6675; without it, by duplicate ACKs
//! (RFC 6582). Reductions that were spurious are undone: by timestamps (Eifel, RFC 3522), by D-SACK (RFC 3708), and
//! timeouts by F-RTO with SACK (RFC 5682 §3). Read RFC 8985 §5 to §7 first.

mod rack;
mod scoreboard;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use zerocopy::FromZeros;

use self::rack::{Path, Rack};
use self::scoreboard::{Arrival, Scoreboard};
use super::congestion::{Acked, Congestion};
use super::rtt::Rtt;
use crate::{Algorithm, SEGMENT_BYTES_MAX, SeqNumber, Slab, Time};

pub(crate) use self::scoreboard::Segment;

/// Unit of the timestamps' clock that [`Ack::echo`] was computed with.
pub(crate) const TIMESTAMP_TICK_US: u64 = 1000;
/// SACK blocks of one segment (RFC 2018 §3).
pub(crate) const SACK_BLOCKS_MAX: usize = 4;
/// Duplicate ACKs that show a loss (RFC 5681 §3.2).
const DUP_THRESH: u32 = 3;
/// Longest delay of a delayed ACK (RFC 8985 §7.2, TLP.max_ack_delay).
const ACK_DELAY_US_MAX: u64 = 200_000;
/// Added to the probe timeout: on a path of microseconds the peer's process needs longer than the path.
const PROBE_MARGIN_US: u64 = 2_000;
/// Transmissions that lie this part of a round trip time apart at most share one record.
const BURSTS_PER_RTT: u64 = 64;

/// What an acceptable ACK (RFC 9293 §3.10.7.4: SND.UNA <= SEG.ACK <= SND.NXT) says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ack {
    /// SEG.ACK
    pub(crate) una: SeqNumber,
    /// Blocks `left..right` of the SACK option in their order, a D-SACK included (RFC 2883); checked by `on_ack`.
    pub(crate) sack: [(SeqNumber, SeqNumber); SACK_BLOCKS_MAX],
    pub(crate) sack_blocks: u8,
    /// When the segment was sent whose timestamp this ACK echoes, rounded down to [`TIMESTAMP_TICK_US`]: `now` in ticks
    /// less (our timestamp clock - SEG.TSecr). `None` without timestamps.
    pub(crate) echo: Option<Time>,
    /// No payload, neither SYN nor FIN, window as before: a duplicate if `una` does not advance (RFC 5681 §2).
    pub(crate) is_pure: bool,
}

/// What an ACK did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Bytes by which SND.UNA advanced.
    pub(crate) acked: u32,
    /// Bytes that arrived, by SEG.ACK or by SACK for the first time: forward progress.
    pub(crate) delivered: u32,
}

/// What [`Recovery::on_deadline`] did; what is to be sent comes by `next_retransmission` and `allowance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// Too early, or segments were found to be lost (RFC 8985 §6.3).
    Nothing,
    /// One segment, new or the last one, goes out whatever the congestion window says (RFC 8985 §7.3).
    Probe,
    /// RFC 6298 §5.4 to 5.6; [`Recovery::retries`] has grown.
    Timeout,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(u8)]
enum Phase {
    #[default]
    Open,
    /// Losses are repaired at a rate by PRR (fast recovery).
    Fast,
    /// Losses are repaired in slow start, after a timeout.
    Timeout,
}

/// Tail loss probe (RFC 8985 §7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(u8)]
enum Probe {
    #[default]
    None,
    /// To be sent: new data.
    DueNew,
    /// To be sent: the last segment again.
    DueLast,
    /// Sent, not acknowledged: new data.
    SentNew,
    /// Sent, not acknowledged: the last segment again (TLP.is_retrans).
    SentLast,
}

/// Proportional rate reduction (RFC 6937 §3).
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
struct Prr {
    delivered: u32,
    out: u32,
    /// RecoverFS
    flight: u32,
}

/// Whether the latest reduction of the window was spurious.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
struct Undo {
    is_armed: bool,
    /// SND.UNA when the recovery began.
    start: SeqNumber,
    /// Of this recovery; `NEVER` before it.
    first_retransmission_at: Time,
    /// Bytes that were sent again, and how many of them no D-SACK has reported.
    retransmitted: u32,
    not_duplicate: u32,
    /// After the recovery, D-SACKs are awaited until this is acknowledged.
    end: SeqNumber,
}

/// What the arrivals of one ACK have in common.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    bytes: u32,
    /// Transmissions of bytes that were sent once, first and last: the beginnings of their bursts, so that no round trip
    /// time is measured too short.
    oldest: Option<Time>,
    newest: Option<Time>,
    is_retransmission: bool,
    /// Bytes below the recovery point that were sent once.
    is_original: bool,
}

impl Seen {
    fn on_arrival(&mut self, arrival: &Arrival, high: SeqNumber) {
        self.bytes += arrival.bytes;
        if arrival.was_retransmitted {
            self.is_retransmission = true;
            return;
        }
        let sent_at = arrival.first_sent_at;
        self.oldest = Some(self.oldest.map_or(sent_at, |oldest| oldest.min(sent_at)));
        self.newest = self.newest.max(Some(sent_at));
        self.is_original |= !arrival.end.is_after(high);
    }
}

/// Everything that a sender knows about its path.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Recovery {
    rtt: Rtt,
    congestion: Congestion,
    board: Scoreboard,
    rack: Rack,
    prr: Prr,
    undo: Undo,
    mss: u32,
    has_sack: bool,
    phase: Phase,
    /// SND.NXT when the recovery began (RecoveryPoint of RFC 6675, recover of RFC 6582).
    high: SeqNumber,
    /// Duplicate ACKs without SACK, less those that an advance of SND.UNA explains.
    duplicates: u32,
    /// Timeouts since SND.UNA advanced.
    retries: u8,
    probe: Probe,
    /// TLP.end_seq
    probe_end: SeqNumber,
    /// The RTO runs from here.
    rto_from: Time,
    /// The probe timeout runs from here.
    probe_from: Time,
    /// When a segment's reordering window ends.
    reordering_deadline: Time,
    /// The latest transmission, or the end of the idle time that has reduced the window.
    sent_at: Time,
}

impl Recovery {
    /// `next` is ISS + 1: the SYN is not recorded here. `mss`: payload bytes of a full segment, options subtracted.
    pub(crate) fn new(next: SeqNumber, mss: u32, algorithm: Algorithm, now: Time) -> Self {
        Self {
            rtt: Rtt::new(),
            congestion: Congestion::new(algorithm, mss, next),
            board: Scoreboard::new(next),
            rack: Rack::new(next),
            mss,
            // ISS (RFC 6582 §3.2 step 1): duplicate ACKs of the first bytes already count.
            high: next - 1,
            reordering_deadline: Time::NEVER,
            sent_at: now,
            ..Self::default()
        }
    }

    /// Both ends have offered SACK.
    pub(crate) fn set_sack(&mut self, has_sack: bool) {
        self.has_sack = has_sack;
    }

    /// The congestion window stays the same number of bytes.
    pub(crate) fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.congestion.set_mss(mss);
    }

    /// The path takes smaller segments than was known: all that waits for an ACK counts as lost, at the same window, as
    /// no congestion was shown (RFC 8201 §5.4).
    pub(crate) fn on_mss_reduced(&mut self, segments: &mut Slab<'_, Segment>, mss: u32, now: Time) {
        self.set_mss(mss);
        self.send_all_again(segments, now);
    }

    /// The handshake is over. `rtt_us` is `None` if SYN or SYN-ACK were sent twice: no sample (RFC 6298 §3), and the
    /// window starts at one segment (RFC 5681 §3.1).
    pub(crate) fn on_handshake(&mut self, rtt_us: Option<u64>, now: Time) {
        self.sent_at = now;
        match rtt_us {
            Some(us) => {
                self.rtt.on_sample(us, now);
                self.rtt.on_min_sample(us, now);
            }
            None => {
                self.rtt.on_late_handshake();
                self.congestion.on_late_handshake();
            }
        }
    }

    /// There is a record for new data. If not, an ACK of this connection changes it; or, if nothing is outstanding, one
    /// of another connection.
    pub(crate) fn can_record(&self, segments: &Slab<'_, Segment>) -> bool {
        self.board.can_push(segments)
    }

    /// New data at SND.NXT, a FIN counting 1; a super-segment is one call. `can_record` was asked before.
    pub(crate) fn on_sent(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        seq: SeqNumber,
        length: u32,
        now: Time,
    ) {
        assert_eq!(seq, self.board.nxt, "new data begin at SND.NXT");
        if self.board.outstanding() == 0 {
            // RFC 6298 §5.1
            self.rto_from = now;
        }
        let burst_shift = self.burst_shift();
        self.board.push(segments, length, now, |a, b| is_same_burst(a, b, burst_shift));
        self.sent_at = now;
        self.probe_from = now;
        if self.phase == Phase::Fast {
            self.prr.out = self.prr.out.saturating_add(length);
        } else {
            self.congestion.on_sent(self.in_flight(), self.board.nxt);
        }
        if self.probe == Probe::DueNew {
            self.on_probe_sent(Probe::SentNew, now);
        }
    }

    /// What `next_retransmission` returned was sent again, or the first part of it.
    pub(crate) fn on_retransmitted(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        seq: SeqNumber,
        length: u32,
        now: Time,
    ) {
        let burst_shift = self.burst_shift();
        self.board.retransmit(segments, seq, length, now, |a, b| is_same_burst(a, b, burst_shift));
        self.sent_at = now;
        if seq == self.board.una {
            self.rto_from = now;
        }
        if self.probe == Probe::DueLast {
            self.on_probe_sent(Probe::SentLast, now);
            return;
        }
        if self.phase == Phase::Fast {
            self.prr.out = self.prr.out.saturating_add(length);
        } else {
            self.congestion.on_sent(self.in_flight(), self.board.nxt);
        }
        if self.undo.is_armed {
            self.undo.first_retransmission_at = self.undo.first_retransmission_at.min(now);
            self.undo.retransmitted = self.undo.retransmitted.saturating_add(length);
            self.undo.not_duplicate = self.undo.not_duplicate.saturating_add(length);
        }
    }

    /// RFC 8985 §7.3
    fn on_probe_sent(&mut self, probe: Probe, now: Time) {
        self.probe = probe;
        self.probe_end = self.board.nxt;
        self.rto_from = now;
    }

    fn burst_shift(&self) -> u32 {
        (self.rtt.srtt_us() / BURSTS_PER_RTT).checked_ilog2().unwrap_or(0)
    }

    fn path(&self) -> Path {
        Path {
            min_rtt_us: self.rtt.min_us(),
            srtt_us: self.rtt.srtt_us(),
            // RFC 8985 §6.2, step 4; as many bytes as RFC 6675 §4 asks for (IsLost).
            is_loss_likely: self.phase != Phase::Open || self.board.sacked > (DUP_THRESH - 1) * self.mss,
        }
    }

    pub(crate) fn on_ack(&mut self, segments: &mut Slab<'_, Segment>, ack: &Ack, now: Time) -> Outcome {
        let acked = ack.una.distance(self.board.una);
        if acked < 0 || ack.una.is_after(self.board.nxt) {
            return Outcome::default();
        }
        let acked = acked.cast_unsigned();
        let (high, min_rtt_us) = (self.high, self.rtt.min_us());
        let rack = &mut self.rack;
        let mut by_ack = Seen::default();
        self.board.acknowledge(segments, ack.una, |arrival| {
            by_ack.on_arrival(&arrival, high);
            let is_earlier = arrival.was_retransmitted && is_echo_before(ack.echo, arrival.sent_at);
            rack.on_arrival(&arrival, is_earlier, min_rtt_us, now);
        });
        let mut by_sack = Seen::default();
        let mut duplicate = None;
        if self.has_sack && ack.sack_blocks > 0 {
            let blocks = Blocks::new(ack, self.board.nxt);
            duplicate = blocks.duplicate;
            self.board.sack(segments, blocks.in_order(), |arrival| {
                by_sack.on_arrival(&arrival, high);
                // The echoed timestamp is that of the latest segment in order, not of this one.
                rack.on_arrival(&arrival, false, min_rtt_us, now);
            });
        }
        let rtt_us = self.measure(acked, &by_ack, &by_sack, ack.echo, now);
        let delivered = self.delivered(acked, by_ack.bytes + by_sack.bytes, ack.is_pure);
        if acked > 0 {
            self.retries = 0;
            // RFC 6298 §5.3
            self.rto_from = now;
            self.probe_from = now;
            if matches!(self.probe, Probe::DueNew | Probe::DueLast) {
                self.probe = Probe::None;
            }
        }
        if let Some(block) = duplicate {
            self.on_duplicate(block);
        }
        if matches!(self.probe, Probe::SentNew | Probe::SentLast) {
            let is_duplicate = acked == 0 && delivered == 0 && ack.is_pure;
            self.end_probe(duplicate, is_duplicate);
        }
        // The ACK that ends a fast recovery sets the window, and does not open it besides.
        let was_fast = self.phase == Phase::Fast;
        self.leave_or_undo(segments, ack, acked, &by_ack, by_sack.is_original);
        let lost = self.find_losses(segments, acked, now);
        if self.phase == Phase::Fast {
            self.reduce(delivered, lost == 0 && acked > 0);
        } else if !was_fast && (acked > 0 || delivered > 0 && self.rack.is_reordering_seen) {
            let bytes = match self.phase {
                // Most that a first retransmission makes acknowledged was SACKed before: no reason for a burst.
                Phase::Timeout => acked.min(delivered),
                // As Linux: on a path that is known to reorder, a SACK is progress as any other ACK.
                _ if self.rack.is_reordering_seen => delivered,
                // RFC 5681 §3.2 step 1: duplicate ACKs do not open the window.
                _ => acked,
            };
            let (una, nxt, srtt_us) = (self.board.una, self.board.nxt, self.rtt.srtt_us());
            self.congestion.on_acked(&Acked { bytes, una, nxt, rtt_us, srtt_us }, now);
        }
        Outcome { acked, delivered }
    }

    /// Takes samples of the round trip time (RFC 6298 §3, RFC 7323 §4.1). Returns the newest one.
    fn measure(
        &mut self,
        acked: u32,
        by_ack: &Seen,
        by_sack: &Seen,
        echo: Option<Time>,
        now: Time,
    ) -> Option<u64> {
        // Karn's algorithm; and what was acknowledged together with a retransmission may have arrived long before it.
        let by_ack = if by_ack.is_retransmission { &Seen::default() } else { by_ack };
        let sample = match (by_ack.oldest, echo, by_sack.newest) {
            (Some(sent_at), _, _) => Some(now.since(sent_at)),
            // RFC 7323 §4.1: only if SND.UNA advances.
            (None, Some(sent_at), _) if acked > 0 => Some(now.since(sent_at)),
            (None, _, Some(sent_at)) => Some(now.since(sent_at)),
            (None, _, None) => None,
        };
        if let Some(us) = sample {
            self.rtt.on_sample(us, now);
        }
        let newest = now.since(by_ack.newest.max(by_sack.newest)?);
        self.rtt.on_min_sample(newest, now);
        Some(newest)
    }

    /// Bytes that have arrived by what an ACK says: DeliveredData of RFC 6937. Without SACK, a duplicate ACK stands for
    /// a segment.
    fn delivered(&mut self, acked: u32, bytes: u32, is_pure: bool) -> u32 {
        if self.has_sack {
            return bytes;
        }
        let before = self.duplicate_bytes();
        if acked > 0 {
            // The first of the segments is the missing one, the others were announced by duplicate ACKs.
            self.duplicates = self.duplicates.saturating_sub(acked.div_ceil(self.mss) - 1);
            return (acked + self.duplicate_bytes()).saturating_sub(before);
        }
        if is_pure && self.board.outstanding() > 0 {
            self.duplicates = self.duplicates.saturating_add(1);
        }
        self.duplicate_bytes().saturating_sub(before)
    }

    /// What duplicate ACKs without SACK say to have arrived. The first segment has not, else it were acknowledged.
    fn duplicate_bytes(&self) -> u32 {
        let most = self.board.outstanding().saturating_sub(self.mss);
        self.duplicates.saturating_mul(self.mss).min(most)
    }

    /// A D-SACK: these bytes were sent again although they had arrived.
    fn on_duplicate(&mut self, (left, right): (SeqNumber, SeqNumber)) {
        // The network may double segments too, and a probe may be one too many: both say nothing of the window.
        let is_of_recovery = !left.is_before(self.undo.start) && !right.is_after(self.high);
        if !is_of_recovery || self.undo.retransmitted == 0 {
            return;
        }
        self.rack.on_dsack(self.board.una, self.board.nxt);
        let bytes = right.distance(left).cast_unsigned();
        self.undo.not_duplicate = self.undo.not_duplicate.saturating_sub(bytes);
    }

    /// RFC 8985 §7.4. `is_duplicate`: the ACK says nothing but that something arrived which had arrived before.
    fn end_probe(&mut self, duplicate: Option<(SeqNumber, SeqNumber)>, is_duplicate: bool) {
        let una = self.board.una;
        if una.is_before(self.probe_end) {
            return;
        }
        let has_arrived_twice = duplicate.is_some_and(|(_, right)| right == self.probe_end);
        if self.probe == Probe::SentNew || has_arrived_twice || is_duplicate {
            self.probe = Probe::None;
        } else if una.is_after(self.probe_end) {
            // The probe has repaired a loss, and so hidden it.
            self.probe = Probe::None;
            if self.phase == Phase::Open {
                self.congestion.on_loss();
                self.congestion.set_cwnd(self.congestion.ssthresh());
                self.undo.is_armed = false;
            }
        }
    }

    /// Ends a recovery whose last byte is acknowledged; and one that was not necessary at any time.
    fn leave_or_undo(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        ack: &Ack,
        acked: u32,
        by_ack: &Seen,
        is_original_sacked: bool,
    ) {
        let is_over = !self.board.una.is_before(self.high);
        let undo = &self.undo;
        // RFC 3522 §3.2: what advances SND.UNA is a transmission before the first repeated one.
        let is_echo_older = acked > 0 && is_echo_before(ack.echo, undo.first_retransmission_at);
        let is_spurious = undo.is_armed
            && (undo.retransmitted > 0 && undo.not_duplicate == 0
                || match self.phase {
                    Phase::Open => false,
                    // Other segments may have been lost than the delayed one.
                    Phase::Fast => {
                        is_echo_older
                            && (is_over || by_ack.is_retransmission && self.board.retransmitted == 0)
                    }
                    // RFC 5682 §3.1, step 3: what was sent once has arrived after the timeout. Without SACK it may have
                    // arrived before, and be acknowledged with the first segment.
                    Phase::Timeout => {
                        is_echo_older || self.has_sack && (by_ack.is_original || is_original_sacked)
                    }
                });
        if is_spurious {
            if self.phase != Phase::Open {
                self.board.unmark_lost(segments);
            }
            self.rack.is_reordering_seen |= self.phase != Phase::Timeout;
            self.congestion.undo();
            self.rtt.restore();
            self.undo.is_armed = false;
            self.undo.end = self.board.nxt;
            self.leave();
        } else if is_over && self.phase != Phase::Open {
            if self.phase == Phase::Fast {
                // RFC 6937 §3, RFC 6582 §3.2 step 3.
                self.congestion.set_cwnd(self.congestion.ssthresh());
            }
            self.undo.end = self.board.nxt;
            self.leave();
            if self.board.lost > 0 || self.board.retransmitted > 0 {
                // Of what was sent during the recovery, some was lost in a later round trip.
                self.enter();
            }
        } else if self.phase == Phase::Open {
            if self.undo.retransmitted > 0 && !self.board.una.is_before(self.undo.end) {
                self.undo = Undo::default();
            }
            // Keeps behind SND.UNA: 2 GiB later the comparison would mean the opposite.
            self.high = self.high.max(self.board.una - 1);
        }
    }

    fn leave(&mut self) {
        if self.phase != Phase::Open {
            self.rack.on_recovered(self.board.una);
        }
        self.phase = Phase::Open;
        self.duplicates = 0;
    }

    /// Marks what is lost, and begins a recovery. Returns the bytes that were marked.
    fn find_losses(&mut self, segments: &mut Slab<'_, Segment>, acked: u32, now: Time) -> u32 {
        let lost = if self.has_sack {
            self.reordering_deadline = Time::NEVER;
            if self.board.sacked == 0 && self.board.retransmitted == 0 {
                // All that has arrived lies below SND.UNA, and was sent before the rest.
                return 0;
            }
            let (path, board) = (self.path(), &mut self.board);
            let mut lost = 0;
            self.reordering_deadline =
                self.rack.detect(&path, now, |test| lost = board.mark_lost(segments, test));
            lost
        } else if self.phase == Phase::Open {
            // RFC 6582 §3.2 step 2: duplicate ACKs below `high` may be due to what was sent twice.
            let is_shown = acked == 0 && self.duplicates >= DUP_THRESH && self.board.una.is_after(self.high);
            if is_shown { self.board.mark_first_lost(segments, self.mss) } else { 0 }
        } else if acked > 0 && self.phase == Phase::Fast {
            // A partial ACK (RFC 6582 §3.2 step 3): the next segment is missing too.
            self.board.mark_first_lost(segments, self.mss)
        } else {
            0
        };
        if lost > 0 && self.phase == Phase::Open {
            self.enter();
        }
        lost
    }

    /// Fast recovery begins (RFC 6675 §5 step 4, RFC 6937 §3).
    fn enter(&mut self) {
        self.phase = Phase::Fast;
        self.high = self.board.nxt;
        self.arm_undo();
        self.congestion.on_loss();
        let flight = (self.board.outstanding() - self.board.sacked).max(self.mss);
        self.prr = Prr { flight, ..Prr::default() };
        self.probe = Probe::None;
        self.reduce(0, false);
    }

    fn arm_undo(&mut self) {
        let (start, first_retransmission_at) = (self.board.una, Time::NEVER);
        self.undo = Undo { is_armed: true, start, first_retransmission_at, ..Undo::default() };
    }

    /// RFC 6937 §3.1 with the slow-start bound only while losses do not continue (RFC 9937 §6.2, SafeACK).
    fn reduce(&mut self, delivered: u32, is_safe: bool) {
        let prr = &mut self.prr;
        prr.delivered = prr.delivered.saturating_add(delivered);
        let pipe = self.board.outstanding() - self.board.sacked - self.board.lost;
        let pipe = if self.has_sack { pipe } else { pipe.saturating_sub(self.duplicate_bytes()) };
        let (prr, ssthresh) = (&self.prr, self.congestion.ssthresh());
        let send = if pipe > ssthresh {
            let share = (u64::from(prr.delivered) * u64::from(ssthresh)).div_ceil(u64::from(prr.flight));
            share.saturating_sub(u64::from(prr.out)).min(u64::from(u32::MAX)) as u32
        } else {
            let bound = prr.delivered.saturating_sub(prr.out).max(delivered);
            let bound = if is_safe { bound.saturating_add(self.mss) } else { bound };
            bound.min(ssthresh - pipe)
        };
        // The first retransmission goes out at once.
        let least = if prr.out == 0 { self.mss } else { 0 };
        self.congestion.set_cwnd(pipe.saturating_add(send.max(least)));
    }

    /// What must be sent again now, before new data: at most `SEGMENT_BYTES_MAX` bytes within the congestion window.
    pub(crate) fn next_retransmission(&self, segments: &Slab<'_, Segment>) -> Option<(SeqNumber, u32)> {
        if self.probe == Probe::DueLast {
            // RFC 8985 §7.3: the segment with the highest sequence number.
            let last = self.board.last(segments)?;
            let length = last.length.min(self.mss);
            return Some((last.end() - length, length));
        }
        let lost = self.board.first_lost(segments)?;
        let room = self.congestion.cwnd().saturating_sub(self.in_flight()).min(SEGMENT_BYTES_MAX);
        let length = if lost.length <= room { lost.length } else { room - room % self.mss };
        (length > 0).then_some((lost.seq, length))
    }

    /// Bytes of new data that the congestion window allows now. After an idle time the window is reduced first.
    pub(crate) fn allowance(&mut self, now: Time) -> u32 {
        if self.board.outstanding() == 0 {
            let (idle, rto) = (now.since(self.sent_at), self.rtt.rto_us());
            if idle > rto {
                self.congestion.on_idle(idle / rto);
                self.sent_at = now;
            }
        }
        if self.probe == Probe::DueNew {
            return self.mss;
        }
        if self.board.lost > 0 {
            return 0;
        }
        self.congestion.cwnd().saturating_sub(self.in_flight())
    }

    /// Bytes in the network (pipe of RFC 6675 §3).
    pub(crate) fn in_flight(&self) -> u32 {
        let board = &self.board;
        let flight = board.outstanding() - board.sacked - board.lost;
        if self.has_sack { flight } else { flight.saturating_sub(self.duplicate_bytes()) }
    }

    fn rto_deadline(&self) -> Time {
        self.rto_from.after(self.rtt.backed_off_us())
    }

    /// When the tail is probed (RFC 8985 §7.2); `NEVER` if something else is under way.
    fn probe_deadline(&self) -> Time {
        let board = &self.board;
        let is_quiet = self.phase == Phase::Open && board.sacked == 0 && board.lost == 0 && self.retries == 0;
        let srtt_us = self.rtt.srtt_us();
        if !self.has_sack || !is_quiet || self.probe != Probe::None || srtt_us == 0 {
            return Time::NEVER;
        }
        let delay_us = if board.outstanding() <= self.mss { ACK_DELAY_US_MAX } else { PROBE_MARGIN_US };
        self.probe_from.after(2 * srtt_us + delay_us).min(self.rto_deadline())
    }

    /// When `on_deadline` must be called: RTO, loss probe or reordering timer; `NEVER` while nothing is outstanding.
    pub(crate) fn deadline(&self) -> Time {
        if self.board.outstanding() == 0 {
            return Time::NEVER;
        }
        self.rto_deadline().min(self.probe_deadline()).min(self.reordering_deadline)
    }

    /// `has_new_data`: there are unsent bytes, and the receiver's window takes some of them.
    pub(crate) fn on_deadline(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        now: Time,
        has_new_data: bool,
    ) -> Expiry {
        if self.board.outstanding() == 0 {
            return Expiry::Nothing;
        }
        if now >= self.reordering_deadline {
            self.find_losses(segments, 0, now);
            return Expiry::Nothing;
        }
        // First the milder one, if both are late.
        if now >= self.probe_deadline() {
            self.probe =
                if has_new_data && self.can_record(segments) { Probe::DueNew } else { Probe::DueLast };
            self.rto_from = now;
            return Expiry::Probe;
        }
        if now >= self.rto_deadline() {
            self.time_out(segments, now);
            return Expiry::Timeout;
        }
        Expiry::Nothing
    }

    /// RFC 6298 §5.4 to §5.6, RFC 5681 §3.1, RFC 8985 §6.3.
    fn time_out(&mut self, segments: &mut Slab<'_, Segment>, now: Time) {
        let is_new = self.phase == Phase::Open || !self.board.una.is_before(self.high);
        let is_first = is_new || self.phase == Phase::Timeout && self.retries == 0;
        if is_first {
            self.arm_undo();
        } else if self.phase == Phase::Fast {
            // F-RTO is defined for a timeout that begins a recovery (RFC 5682 §3.1, step 1).
            self.undo.is_armed = false;
        }
        if self.board.first(segments).is_some_and(|first| first.state == scoreboard::State::Sacked) {
            // SND.UNA would have passed it: the receiver has dropped it.
            self.board.unmark_sacked(segments);
        }
        self.phase = Phase::Timeout;
        self.high = self.board.nxt;
        let (path, rack, una, has_sack) = (self.path(), &self.rack, self.board.una, self.has_sack);
        self.board.mark_lost(segments, |segment| {
            segment.seq == una || !has_sack || rack.is_lost_by_timeout(segment, &path, now)
        });
        self.duplicates = 0;
        self.probe = Probe::None;
        self.reordering_deadline = Time::NEVER;
        self.congestion.on_timeout(self.in_flight(), is_first);
        self.retries = self.retries.saturating_add(1);
        self.rtt.back_off();
        self.rto_from = now;
    }

    /// The driver was replaced, and what it held is gone: all that waits for an ACK is sent again at once. Congestion
    /// window and RTO stay; no round trip time is measured by the segments concerned.
    pub(crate) fn on_driver_restarted(&mut self, segments: &mut Slab<'_, Segment>, now: Time) {
        self.send_all_again(segments, now);
    }

    fn send_all_again(&mut self, segments: &mut Slab<'_, Segment>, now: Time) {
        if self.board.first(segments).is_some_and(|first| first.state == scoreboard::State::Sacked) {
            // SND.UNA would have passed it: the receiver has dropped it. Drivers that start again more often than a timeout
            // comes would keep it from being found.
            self.board.unmark_sacked(segments);
        }
        self.board.mark_lost(segments, |_| true);
        // A timeout that is due by now would reduce the window for the time without a driver.
        self.rto_from = now;
        self.reordering_deadline = Time::NEVER;
        self.probe = Probe::None;
        if self.phase == Phase::Open {
            // Duplicate ACKs of what had arrived after all show no loss (RFC 6582 §3.2, step 2).
            self.high = self.board.nxt;
        }
    }

    /// Timeouts in a row (RFC 9293 §3.8.3: R1, R2).
    pub(crate) fn retries(&self) -> u8 {
        self.retries
    }

    /// The retransmission timeout, without back-off: for window probes and keep-alive.
    pub(crate) fn rto_us(&self) -> u64 {
        self.rtt.rto_us()
    }

    /// Smoothed round trip time; 0 before the first sample.
    pub(crate) fn srtt_us(&self) -> u64 {
        self.rtt.srtt_us()
    }

    /// The connection ends: its records are free.
    pub(crate) fn clear(&mut self, segments: &mut Slab<'_, Segment>) {
        self.board.clear(segments);
    }
}

/// The echoed timestamp is older than that of a segment sent at `time`; `NEVER` if there is none.
fn is_echo_before(echo: Option<Time>, time: Time) -> bool {
    time != Time::NEVER && echo.is_some_and(|echo| echo.after(TIMESTAMP_TICK_US) <= time)
}

fn is_same_burst(a: Time, b: Time, shift: u32) -> bool {
    a.0 >> shift == b.0 >> shift
}

/// SACK blocks of an ACK that are believed.
struct Blocks {
    /// In order of their left ends.
    new: [(SeqNumber, SeqNumber); SACK_BLOCKS_MAX],
    count: usize,
    /// A D-SACK (RFC 2883 §4): the first block, if it lies below SEG.ACK or within the second block.
    duplicate: Option<(SeqNumber, SeqNumber)>,
}

impl Blocks {
    fn new(ack: &Ack, nxt: SeqNumber) -> Self {
        let given = &ack.sack[..usize::from(ack.sack_blocks).min(SACK_BLOCKS_MAX)];
        let mut blocks = Self { new: Default::default(), count: 0, duplicate: None };
        for (index, &(left, right)) in given.iter().enumerate() {
            if !left.is_before(right) || right.is_after(nxt) {
                continue;
            }
            let is_within_second =
                || given.get(1).is_some_and(|second| !left.is_before(second.0) && !right.is_after(second.1));
            if index == 0 && (!right.is_after(ack.una) || is_within_second()) {
                blocks.duplicate = Some((left, right));
                continue;
            }
            let left = left.max(ack.una);
            if left.is_before(right) {
                blocks.new[blocks.count] = (left, right);
                blocks.count += 1;
            }
        }
        blocks.new[..blocks.count].sort_unstable_by_key(|block| block.0.distance(ack.una));
        blocks
    }

    fn in_order(&self) -> &[(SeqNumber, SeqNumber)] {
        &self.new[..self.count]
    }
}
