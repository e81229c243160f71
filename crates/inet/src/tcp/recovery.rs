//! What was sent and not acknowledged, which part of it is lost, and what may be sent next.
//!
//! [`Recovery`] never reads a frame and never writes one. The connection gives it what was sent ([`Recovery::on_sent`],
//! [`Recovery::on_retransmitted`]), acceptable ACKs ([`Recovery::on_ack`]) and expired times
//! ([`Recovery::on_deadline`]); and before each frame asks first for [`Recovery::next_retransmission`], then for
//! [`Recovery::allowance`].

use super::congestion::Congestion;
use super::rtt::Rtt;
use crate::{Algorithm, List, SeqNumber, Slab, Time};

/// Unit of the timestamps' clock that [`Ack::echo`] was computed with.
pub(crate) const TIMESTAMP_TICK_US: u64 = 1000;
/// SACK blocks of one segment (RFC 2018 §3).
pub(crate) const SACK_BLOCKS_MAX: usize = 4;

/// Bytes that were sent at one time and share one fate. A FIN counts as a byte.
#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub(crate) struct Segment {
    seq: SeqNumber,
    length: u32,
    /// The last time.
    sent_at: Time,
    retransmissions: u8,
    state: u8,
}

impl crate::Record for crate::Node<Segment> {}

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

/// Everything that a sender knows about its path.
#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub(crate) struct Recovery {
    rtt: Rtt,
    congestion: Congestion,
    segments: List,
}

impl Recovery {
    /// `next` is ISS + 1: the SYN is not recorded here. `mss` is SMSS of RFC 5681, without options.
    pub(crate) fn new(next: SeqNumber, mss: u32, algorithm: Algorithm, now: Time) -> Self {
        let _ = (next, mss, algorithm, now);
        todo!()
    }

    /// What both ends have offered.
    pub(crate) fn set_features(&mut self, sack: bool, timestamps: bool) {
        let _ = (sack, timestamps);
        todo!()
    }

    /// During the handshake, before anything was sent.
    pub(crate) fn set_mss(&mut self, mss: u32) {
        let _ = mss;
        todo!()
    }

    /// The path takes smaller segments than was known: all that waits for an ACK counts as lost, at the same window.
    pub(crate) fn on_mss_reduced(&mut self, segments: &mut Slab<'_, Segment>, mss: u32, now: Time) {
        let _ = (segments, mss, now);
        todo!()
    }

    /// The handshake's sample. `was_repeated`: SYN or SYN-ACK were sent twice; then the sample is ignored (Karn), and
    /// the window starts at one segment (RFC 5681 §3.1).
    pub(crate) fn on_handshake(&mut self, rtt_us: u64, was_repeated: bool, now: Time) {
        let _ = (rtt_us, was_repeated, now);
        todo!()
    }

    /// New data can be sent: there is a record for it. If not, an ACK of this connection changes it, or, if it has
    /// nothing outstanding, one of another connection.
    pub(crate) fn can_record(&self, segments: &Slab<'_, Segment>) -> bool {
        let _ = segments;
        todo!()
    }

    /// New data at SND.NXT, a FIN counting 1; a super-segment is one call.
    pub(crate) fn on_sent(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        seq: SeqNumber,
        length: u32,
        now: Time,
    ) {
        let _ = (segments, seq, length, now);
        todo!()
    }

    /// What `next_retransmission` returned was sent again, or the first part of it.
    pub(crate) fn on_retransmitted(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        seq: SeqNumber,
        length: u32,
        now: Time,
    ) {
        let _ = (segments, seq, length, now);
        todo!()
    }

    pub(crate) fn on_ack(&mut self, segments: &mut Slab<'_, Segment>, ack: &Ack, now: Time) -> Outcome {
        let _ = (segments, ack, now);
        todo!()
    }

    /// What must be sent again now, before new data: at most `SEGMENT_BYTES_MAX` bytes within the congestion window.
    pub(crate) fn next_retransmission(&self, segments: &Slab<'_, Segment>) -> Option<(SeqNumber, u32)> {
        let _ = segments;
        todo!()
    }

    /// Bytes of new data that the congestion window allows now. After an idle time the window is reduced first.
    pub(crate) fn allowance(&mut self, now: Time) -> u32 {
        let _ = now;
        todo!()
    }

    /// Bytes in the network (pipe of RFC 6675 §3).
    pub(crate) fn in_flight(&self) -> u32 {
        todo!()
    }

    /// When `on_deadline` must be called: RTO, loss probe or reordering timer; `NEVER` while nothing is outstanding.
    pub(crate) fn deadline(&self) -> Time {
        todo!()
    }

    /// `has_new_data`: there are unsent bytes, and the receiver's window takes some of them.
    pub(crate) fn on_deadline(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        now: Time,
        has_new_data: bool,
    ) -> Expiry {
        let _ = (segments, now, has_new_data);
        todo!()
    }

    /// The driver was replaced, and what it held is gone: all that waits for an ACK is sent again at once. Congestion
    /// window and RTO stay; no round trip time is measured by the segments concerned.
    pub(crate) fn on_driver_restarted(&mut self, segments: &mut Slab<'_, Segment>, now: Time) {
        let _ = (segments, now);
        todo!()
    }

    /// Timeouts in a row (RFC 9293 §3.8.3: R1, R2).
    pub(crate) fn retries(&self) -> u8 {
        todo!()
    }

    /// The retransmission timeout, without back-off: for window probes and keep-alive.
    pub(crate) fn rto_us(&self) -> u64 {
        todo!()
    }

    /// Smoothed round trip time; 0 before the first sample.
    pub(crate) fn srtt_us(&self) -> u64 {
        todo!()
    }

    /// The connection ends: its records are free.
    pub(crate) fn clear(&mut self, segments: &mut Slab<'_, Segment>) {
        segments.clear(&mut self.segments);
    }
}
