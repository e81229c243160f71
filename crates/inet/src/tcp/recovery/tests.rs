//! Recovery by clause: segments of 1000 bytes, a round trip time of 100 ms, and what an ACK or a timer changes.

use super::scoreboard::{RECORDS_MAX, State};
use super::*;
use crate::{Node, SlabHead};

const MSS: u32 = 1000;
const RTT_US: u64 = 100_000;
/// Near the end of the space of sequence numbers: every test wraps.
const NEXT: SeqNumber = SeqNumber(u32::MAX - 4_500);

/// A sender that works on a slab of its own, and knows the time. Segments are named by number, the first one is 0.
struct Sender<'m> {
    recovery: Recovery,
    segments: Slab<'m, Segment>,
    now: Time,
    sent: u32,
    has_timestamps: bool,
}

fn with_sender(capacity: usize, test: impl FnOnce(&mut Sender<'_>)) {
    let (mut head, mut nodes) = (SlabHead::default(), vec![Node::<Segment>::default(); capacity]);
    let segments = Slab::format(&mut head, &mut nodes);
    let now = Time(10_000_000);
    let mut recovery = Recovery::new(NEXT, MSS, Algorithm::NewReno, now);
    recovery.set_sack(true);
    recovery.on_handshake(Some(RTT_US), now);
    recovery.congestion.set_cwnd(10 * MSS);
    test(&mut Sender { recovery, segments, now, sent: 0, has_timestamps: false });
}

/// A sender with `count` segments in flight, sent 1 ms after each other, just when the first one could be acknowledged.
fn with_flight(count: u32, test: impl FnOnce(&mut Sender<'_>)) {
    with_sender(1024, |sender| {
        sender.recovery.congestion.set_cwnd(count * MSS);
        for _ in 0..count {
            sender.send(1);
            sender.wait(1_000);
        }
        sender.wait(RTT_US - u64::from(count) * 1_000);
        test(sender);
    });
}

fn at(segment: u32) -> SeqNumber {
    NEXT + segment * MSS
}

impl Sender<'_> {
    fn wait(&mut self, us: u64) {
        self.now = self.now.after(us);
    }

    /// New segments, as one super-segment.
    fn send(&mut self, count: u32) {
        self.recovery.on_sent(&mut self.segments, at(self.sent), count * MSS, self.now);
        self.sent += count;
    }

    /// All that is lost and may be sent again: segment and number of segments.
    fn resend(&mut self) -> Vec<(u32, u32)> {
        let mut all = Vec::new();
        while let Some((seq, length)) = self.recovery.next_retransmission(&self.segments) {
            self.recovery.on_retransmitted(&mut self.segments, seq, length, self.now);
            all.push((seq.distance(NEXT).cast_unsigned() / MSS, length / MSS));
        }
        all
    }

    /// All segments before `una`, and those of `sack` (start, behind the end), have arrived. `echo_us`: how long ago the
    /// segment was sent whose timestamp is echoed.
    fn ack_echo(&mut self, una: u32, sack: &[(u32, u32)], echo_us: Option<u64>) -> Outcome {
        let mut ack = Ack { una: at(una), is_pure: true, sack_blocks: sack.len() as u8, ..Ack::default() };
        for (block, &(from, to)) in ack.sack.iter_mut().zip(sack) {
            *block = (at(from), at(to));
        }
        ack.echo = echo_us.map(|us| Time((self.now.0 - us) / TIMESTAMP_TICK_US * TIMESTAMP_TICK_US));
        let outcome = self.recovery.on_ack(&mut self.segments, &ack, self.now);
        self.check();
        outcome
    }

    fn ack(&mut self, una: u32, sack: &[(u32, u32)]) -> Outcome {
        self.ack_echo(una, sack, self.has_timestamps.then_some(RTT_US))
    }

    fn expire(&mut self, has_new_data: bool) -> Expiry {
        self.now = self.recovery.deadline();
        assert_ne!(self.now, Time::NEVER);
        let expiry = self.recovery.on_deadline(&mut self.segments, self.now, has_new_data);
        self.check();
        expiry
    }

    fn cwnd(&self) -> u32 {
        self.recovery.congestion.cwnd() / MSS
    }

    fn ssthresh(&self) -> u32 {
        self.recovery.congestion.ssthresh() / MSS
    }

    /// Until the next timer.
    fn deadline_us(&self) -> u64 {
        self.recovery.deadline().since(self.now)
    }

    fn states(&self) -> Vec<(u32, u32, State)> {
        let number = |seq: SeqNumber| seq.distance(NEXT).cast_unsigned() / MSS;
        let board = &self.recovery.board;
        board.iter(&self.segments).map(|s| (number(s.seq), number(s.end()), s.state)).collect()
    }

    /// What holds between calls.
    fn check(&self) {
        check(&self.recovery, &self.segments);
    }
}

pub(super) fn check(sender: &Recovery, segments: &Slab<'_, Segment>) {
    let board = &sender.board;
    let mut at = board.una;
    let mut counts = [0u32; 3];
    for segment in board.iter(segments) {
        assert_eq!(segment.seq, at);
        assert!(segment.length > 0);
        match segment.state {
            State::Sacked => counts[0] += segment.length,
            State::Lost => counts[1] += segment.length,
            State::InFlight if segment.retransmissions > 0 => counts[2] += segment.length,
            State::InFlight => {}
        }
        at = segment.end();
    }
    assert_eq!((at, counts), (board.nxt, [board.sacked, board.lost, board.retransmitted]));
}

// RFC 6298.

#[test]
fn rfc6298_5_1_timer_starts_with_the_first_segment_and_5_2_stops_when_all_is_acknowledged() {
    with_sender(64, |sender| {
        sender.recovery.set_sack(false);
        assert_eq!(sender.recovery.deadline(), Time::NEVER);
        sender.send(1);
        // RTO = SRTT + max(4 RTTVAR, 200 ms) = 100 + 200.
        assert_eq!(sender.deadline_us(), 300_000);
        sender.wait(50_000);
        sender.send(1);
        assert_eq!(sender.deadline_us(), 250_000);
        sender.wait(50_000);
        sender.ack(2, &[]);
        assert_eq!(sender.recovery.deadline(), Time::NEVER);
    });
}

#[test]
fn rfc6298_5_3_timer_restarts_when_new_data_is_acknowledged() {
    with_flight(4, |sender| {
        sender.recovery.set_sack(false);
        sender.ack(1, &[]);
        assert_eq!(sender.deadline_us(), sender.recovery.rto_us());
        let deadline = sender.recovery.deadline();
        sender.wait(1_000);
        sender.ack(1, &[]);
        assert_eq!(sender.recovery.deadline(), deadline);
    });
}

#[test]
fn rfc6298_5_4_to_5_6_timeout_sends_the_first_segment_and_doubles_the_rto() {
    with_flight(4, |sender| {
        sender.recovery.set_sack(false);
        let rto = sender.recovery.rto_us();
        for retry in 1..=5 {
            assert_eq!(sender.expire(true), Expiry::Timeout);
            assert_eq!((sender.resend(), sender.recovery.retries()), (vec![(0, 1)], retry));
            assert_eq!(sender.deadline_us(), rto << retry);
            assert_eq!(sender.recovery.allowance(sender.now), 0);
        }
        sender.ack(4, &[]);
        assert_eq!(sender.recovery.retries(), 0);
    });
}

#[test]
fn rfc6298_3_karn_no_sample_of_what_was_sent_twice_and_back_off_stays() {
    with_flight(2, |sender| {
        sender.recovery.set_sack(false);
        sender.expire(false);
        sender.resend();
        let (rto, srtt) = (sender.recovery.rto_us(), sender.recovery.srtt_us());
        sender.wait(7_000);
        sender.ack(1, &[]);
        assert_eq!((sender.recovery.rto_us(), sender.recovery.srtt_us()), (rto, srtt));
        assert_eq!(sender.recovery.rtt.backed_off_us(), 2 * rto);
    });
}

#[test]
fn rfc7323_4_1_timestamps_measure_what_was_sent_twice() {
    with_flight(2, |sender| {
        sender.recovery.set_sack(false);
        sender.expire(false);
        sender.resend();
        sender.wait(500_000);
        sender.ack_echo(1, &[], Some(500_000));
        assert_eq!(sender.recovery.rtt.backed_off_us(), sender.recovery.rto_us());
        assert!(sender.recovery.srtt_us() > 140_000);
        // Only an advance of SND.UNA.
        let srtt = sender.recovery.srtt_us();
        sender.ack_echo(1, &[], Some(500_000));
        assert_eq!(sender.recovery.srtt_us(), srtt);
    });
}

#[test]
fn rfc6298_3_no_sample_of_what_is_acknowledged_together_with_a_retransmission() {
    with_flight(3, |sender| {
        sender.recovery.set_sack(false);
        sender.expire(false);
        sender.resend();
        let srtt = sender.recovery.srtt_us();
        // Segments 1 and 2 were sent once, and have arrived long ago.
        sender.ack(3, &[]);
        assert_eq!(sender.recovery.srtt_us(), srtt);
    });
}

// RFC 5681, RFC 6582, RFC 3042: without SACK.

#[test]
fn rfc5681_3_2_third_duplicate_ack_starts_fast_retransmit_with_half_the_window() {
    with_flight(10, |sender| {
        sender.recovery.set_sack(false);
        for allowance in [1, 2] {
            sender.ack(0, &[]);
            assert_eq!(sender.resend(), []);
            // RFC 3042: a new segment for each of the first two.
            assert_eq!(sender.recovery.allowance(sender.now), allowance * MSS);
        }
        sender.ack(0, &[]);
        assert_eq!(sender.resend(), [(0, 1)]);
        assert_eq!(sender.ssthresh(), 5);
        // RFC 6582 §3.2 step 3: a full ACK.
        sender.wait(RTT_US);
        sender.ack(10, &[]);
        assert_eq!((sender.recovery.phase, sender.cwnd()), (Phase::Open, 5));
    });
}

#[test]
fn rfc5681_2_what_is_no_duplicate_ack_starts_nothing() {
    with_flight(10, |sender| {
        sender.recovery.set_sack(false);
        for _ in 0..9 {
            let ack = Ack { una: at(0), is_pure: false, ..Ack::default() };
            sender.recovery.on_ack(&mut sender.segments, &ack, sender.now);
        }
        assert_eq!((sender.recovery.phase, sender.recovery.in_flight()), (Phase::Open, 10 * MSS));
    });
}

#[test]
fn rfc6582_3_2_partial_ack_sends_the_next_missing_segment_and_reduces_nothing_more() {
    with_flight(10, |sender| {
        sender.recovery.set_sack(false);
        for _ in 0..8 {
            sender.ack(0, &[]);
        }
        assert_eq!(sender.resend(), [(0, 1)]);
        for missing in [3, 7] {
            sender.wait(RTT_US);
            sender.ack(missing, &[]);
            assert_eq!(sender.resend(), [(missing, 1)]);
            assert_eq!((sender.recovery.phase, sender.ssthresh()), (Phase::Fast, 5));
        }
        sender.wait(RTT_US);
        sender.ack(10, &[]);
        assert_eq!((sender.recovery.phase, sender.cwnd()), (Phase::Open, 5));
    });
}

#[test]
fn rfc6582_3_2_duplicate_acks_after_a_timeout_start_no_fast_retransmit() {
    with_flight(10, |sender| {
        sender.recovery.set_sack(false);
        sender.expire(true);
        sender.resend();
        // What was sent twice, arrives twice.
        sender.ack(10, &[]);
        sender.send(1);
        for _ in 0..5 {
            sender.ack(10, &[]);
        }
        assert_eq!((sender.recovery.phase, sender.resend()), (Phase::Open, vec![]));
    });
}

#[test]
fn rfc5681_3_1_timeout_halves_ssthresh_once_and_slow_start_repairs() {
    with_flight(10, |sender| {
        sender.recovery.set_sack(false);
        for _ in 0..3 {
            sender.expire(true);
            assert_eq!((sender.resend(), sender.cwnd(), sender.ssthresh()), (vec![(0, 1)], 1, 5));
        }
        for (una, resent) in [(1, vec![(1, 2)]), (3, vec![(3, 4)]), (7, vec![(7, 3)])] {
            sender.wait(RTT_US);
            sender.ack(una, &[]);
            assert_eq!(sender.resend(), resent);
        }
    });
}

// RFC 2018, RFC 2883, RFC 6675: the scoreboard.

#[test]
fn rfc6675_3_pipe_counts_neither_what_is_sacked_nor_what_is_lost() {
    with_flight(10, |sender| {
        assert_eq!(sender.recovery.in_flight(), 10 * MSS);
        sender.ack(0, &[(2, 4)]);
        assert_eq!(sender.recovery.in_flight(), 8 * MSS);
        sender.ack(0, &[(2, 5)]);
        assert_eq!((sender.recovery.board.lost, sender.recovery.in_flight()), (2 * MSS, 5 * MSS));
        assert_eq!(sender.resend(), [(0, 1)]);
        assert_eq!(sender.recovery.in_flight(), 6 * MSS);
    });
}

#[test]
fn rfc2018_3_blocks_divide_a_super_segment_and_neighbours_unite() {
    with_sender(64, |sender| {
        sender.recovery.congestion.set_cwnd(40 * MSS);
        sender.send(20);
        sender.wait(RTT_US);
        sender.recovery.rack.is_reordering_seen = true;
        sender.ack(1, &[(12, 13), (5, 6), (8, 9)]);
        assert_eq!(sender.states().len(), 7);
        sender.ack(1, &[(6, 8)]);
        let (flight, sacked) = (State::InFlight, State::Sacked);
        let expected = [(1, 5, flight), (5, 9, sacked), (9, 12, flight), (12, 13, sacked), (13, 20, flight)];
        assert_eq!(sender.states(), expected);
        sender.ack(10, &[(12, 20)]);
        assert_eq!(sender.states(), [(10, 12, flight), (12, 20, sacked)]);
        assert_eq!(sender.ack(20, &[]), Outcome { acked: 10 * MSS, delivered: 2 * MSS });
        assert_eq!(sender.segments.room(), 64);
    });
}

#[test]
fn rfc2018_blocks_outside_of_what_is_outstanding_are_ignored() {
    with_flight(4, |sender| {
        for block in [(3, 5), (4, 6), (2, 2), (3, 1), (0x20_0000, 0x20_0001)] {
            sender.ack(1, &[(2, 3), block]);
            assert_eq!(sender.recovery.board.sacked, MSS, "{block:?}");
        }
    });
}

#[test]
fn rfc2883_4_d_sack_marks_nothing() {
    with_flight(6, |sender| {
        // Below SEG.ACK, and within the second block.
        assert_eq!(sender.ack(2, &[(0, 1), (3, 4)]).delivered, 3 * MSS);
        assert_eq!(sender.ack(2, &[(3, 4), (3, 5)]).delivered, MSS);
        assert_eq!(sender.recovery.board.sacked, 2 * MSS);
    });
}

#[test]
fn rfc2018_8_timeout_forgets_sacks_that_the_receiver_has_reneged_on() {
    with_flight(4, |sender| {
        sender.recovery.rack.is_reordering_seen = true;
        sender.ack(0, &[(1, 3)]);
        // Segment 0 arrived, and 1 and 2 were dropped by the receiver.
        sender.ack(1, &[]);
        while sender.expire(false) != Expiry::Timeout {
            sender.resend();
        }
        assert_eq!((sender.recovery.board.sacked, sender.resend()), (0, vec![(1, 1)]));
    });
}

#[test]
fn rfc2018_8_timeout_keeps_other_sacks() {
    with_flight(4, |sender| {
        sender.ack(0, &[(1, 4)]);
        sender.resend();
        assert_eq!((sender.expire(false), sender.recovery.board.sacked), (Expiry::Timeout, 3 * MSS));
        assert_eq!(sender.resend(), [(0, 1)]);
    });
}

// RFC 8985 §6: RACK.

#[test]
fn rfc8985_6_2_third_sacked_segment_shows_a_loss_at_once_before_reordering_is_known() {
    with_flight(10, |sender| {
        for sacked in [2, 3] {
            sender.ack(0, &[(1, sacked)]);
            assert_eq!((sender.recovery.phase, sender.recovery.board.lost), (Phase::Open, 0));
        }
        sender.ack(0, &[(1, 4)]);
        assert_eq!((sender.recovery.phase, sender.resend()), (Phase::Fast, vec![(0, 1)]));
    });
}

#[test]
fn rfc8985_6_2_one_sacked_segment_shows_a_loss_after_a_quarter_of_the_round_trip_time() {
    with_flight(10, |sender| {
        sender.wait(1_000);
        sender.ack(0, &[(1, 2)]);
        // Segment 0 was sent 1 ms before segment 1.
        assert_eq!(sender.deadline_us(), 24_000);
        assert_eq!(sender.expire(true), Expiry::Nothing);
        assert_eq!((sender.recovery.phase, sender.resend()), (Phase::Fast, vec![(0, 1)]));
    });
}

#[test]
fn rfc8985_6_2_reordering_that_was_seen_delays_even_the_third() {
    with_flight(10, |sender| {
        sender.ack(0, &[(1, 2)]);
        sender.ack(2, &[]);
        assert!(sender.recovery.rack.is_reordering_seen);
        sender.ack(2, &[(3, 9)]);
        assert_eq!((sender.recovery.phase, sender.recovery.board.lost), (Phase::Open, 0));
        sender.wait(24_000);
        sender.ack(9, &[]);
        assert_eq!(sender.recovery.phase, Phase::Open);
    });
}

#[test]
fn rfc8985_6_2_segments_sent_later_are_not_lost() {
    with_flight(10, |sender| {
        sender.ack(0, &[(1, 5)]);
        let (lost, sacked, flight) = (State::Lost, State::Sacked, State::InFlight);
        let states = sender.states();
        assert_eq!(states[..2], [(0, 1, lost), (1, 5, sacked)]);
        assert!(states[2..].iter().all(|(_, _, state)| *state == flight));
    });
}

#[test]
fn rfc8985_3_2_lost_retransmission_is_found_when_later_data_arrive() {
    with_flight(10, |sender| {
        sender.ack(0, &[(1, 4)]);
        assert_eq!(sender.resend(), [(0, 1)]);
        sender.wait(1_000);
        sender.recovery.congestion.set_cwnd(20 * MSS);
        sender.send(1);
        sender.wait(RTT_US);
        sender.ack(0, &[(1, 10)]);
        assert_eq!(sender.resend(), []);
        sender.ack(0, &[(1, 11)]);
        assert_eq!(sender.resend(), [(0, 1)]);
        // Of the same window of data: no second reduction.
        assert_eq!(sender.ssthresh(), 5);
    });
}

#[test]
fn rfc8985_6_2_ack_sooner_than_any_round_trip_is_of_the_first_transmission() {
    with_flight(10, |sender| {
        sender.ack(0, &[(1, 4)]);
        assert_eq!(sender.resend(), [(0, 1)]);
        sender.recovery.congestion.set_cwnd(20 * MSS);
        let before = sender.recovery.rack.newest();
        sender.wait(10_000);
        sender.ack(1, &[(1, 4)]);
        assert_eq!(sender.recovery.rack.newest(), before);
    });
}

#[test]
fn rfc8985_6_2_d_sack_widens_the_window_for_16_recoveries() {
    with_flight(10, |sender| {
        sender.ack(0, &[(1, 4)]);
        sender.resend();
        sender.wait(RTT_US);
        sender.ack(10, &[]);
        sender.send(1);
        assert_eq!(sender.recovery.rack.multiplier(), 1);
        sender.ack(10, &[(0, 1)]);
        assert_eq!(sender.recovery.rack.multiplier(), 2);
        // Once per round trip, and no more when its data are acknowledged.
        sender.ack(10, &[(0, 1)]);
        assert_eq!(sender.recovery.rack.multiplier(), 2);
        for recovery in 1..=16 {
            assert_eq!(sender.recovery.rack.multiplier(), 2, "{recovery}");
            sender.recovery.rack.on_recovered(at(10));
        }
        assert_eq!(sender.recovery.rack.multiplier(), 1);
    });
}

#[test]
fn rfc8985_6_3_timeout_spares_what_was_sent_just_before() {
    with_flight(4, |sender| {
        sender.recovery.rack.is_reordering_seen = true;
        sender.ack(0, &[(1, 2)]);
        sender.now = Time(sender.recovery.rto_deadline().0 - 1_000);
        sender.recovery.find_losses(&mut sender.segments, 0, sender.now);
        sender.recovery.congestion.set_cwnd(20 * MSS);
        sender.recovery.reordering_deadline = Time::NEVER;
        sender.send(2);
        sender.expire(true);
        let (flight, lost) = (State::InFlight, State::Lost);
        assert_eq!(sender.states().last(), Some(&(4, 6, flight)));
        assert_eq!(sender.states().first(), Some(&(0, 1, lost)));
        // The first segment may go nevertheless.
        assert_eq!(sender.resend(), [(0, 1)]);
    });
}

// RFC 8985 §7: tail loss probe.

#[test]
fn rfc8985_7_2_probe_after_two_round_trips_and_one_segment_waits_for_a_delayed_ack() {
    with_sender(64, |sender| {
        sender.send(2);
        assert_eq!(sender.deadline_us(), 2 * RTT_US + PROBE_MARGIN_US);
        sender.wait(RTT_US);
        sender.ack(1, &[]);
        let rto = sender.recovery.rto_us();
        // 2 SRTT + 200 ms, but not later than the RTO, which the probe then replaces.
        assert_eq!((sender.deadline_us(), sender.expire(false)), (rto, Expiry::Probe));
    });
}

#[test]
fn rfc8985_7_3_probe_is_new_data_or_else_the_last_segment_whatever_the_window() {
    for has_new_data in [true, false] {
        with_flight(10, |sender| {
            assert_eq!(sender.recovery.allowance(sender.now), 0);
            assert_eq!(sender.expire(has_new_data), Expiry::Probe);
            if has_new_data {
                assert_eq!((sender.resend(), sender.recovery.allowance(sender.now)), (vec![], MSS));
                sender.send(1);
            } else {
                assert_eq!((sender.resend(), sender.recovery.allowance(sender.now)), (vec![(9, 1)], 0));
            }
            // §7.2: no second one in a row; the RTO starts anew.
            assert_eq!((sender.deadline_us(), sender.cwnd()), (sender.recovery.rto_us(), 10));
            assert_eq!(sender.recovery.allowance(sender.now), 0);
            assert_eq!(sender.expire(has_new_data), Expiry::Timeout);
        });
    }
}

#[test]
fn rfc8985_7_2_no_probe_without_sack() {
    with_flight(10, |sender| {
        sender.recovery.set_sack(false);
        assert_eq!(sender.expire(false), Expiry::Timeout);
    });
}

#[test]
fn rfc8985_7_4_probe_that_repaired_a_loss_reduces_the_window() {
    with_flight(10, |sender| {
        sender.ack(9, &[]);
        sender.expire(false);
        assert_eq!(sender.resend(), [(9, 1)]);
        sender.wait(RTT_US);
        sender.ack(10, &[]);
        let before = sender.cwnd();
        sender.send(2);
        sender.wait(RTT_US);
        sender.ack(12, &[]);
        assert_eq!((sender.cwnd(), sender.ssthresh()), (before / 2, before / 2));
    });
}

#[test]
fn rfc8985_7_4_probe_that_arrived_twice_reduces_nothing() {
    with_flight(10, |sender| {
        sender.ack(9, &[]);
        sender.expire(false);
        assert_eq!(sender.resend(), [(9, 1)]);
        sender.ack(10, &[]);
        sender.wait(RTT_US);
        sender.ack(10, &[(9, 10)]);
        sender.send(2);
        sender.wait(RTT_US);
        sender.ack(12, &[]);
        assert!(sender.cwnd() >= 10 && sender.ssthresh() > 1000);
    });
}

#[test]
fn rfc8985_7_1_tail_of_several_segments_is_repaired_by_the_probes_sack() {
    with_flight(10, |sender| {
        sender.ack(5, &[]);
        assert_eq!(sender.expire(false), Expiry::Probe);
        assert_eq!(sender.resend(), [(9, 1)]);
        sender.wait(RTT_US);
        sender.ack(5, &[(9, 10)]);
        while sender.recovery.phase == Phase::Open {
            assert_eq!(sender.expire(false), Expiry::Nothing);
        }
        let mut resent = sender.resend();
        while sender.recovery.board.una != at(10) {
            sender.wait(RTT_US);
            let next = resent.last().map_or(10, |&(first, count)| first + count);
            if next == 9 {
                sender.ack(10, &[]);
            } else {
                sender.ack(next, &[(9, 10)]);
            }
            resent.extend(sender.resend());
        }
        assert_eq!(resent.iter().map(|(_, count)| count).sum::<u32>(), 4);
    });
}

// RFC 6937: proportional rate reduction.

#[test]
fn rfc6937_3_1_one_segment_for_two_acks_while_the_window_is_halved() {
    with_flight(20, |sender| {
        sender.ack(0, &[(1, 4)]);
        assert_eq!((sender.resend(), sender.ssthresh()), (vec![(0, 1)], 10));
        let mut sent = Vec::new();
        for sacked in 5..=20 {
            sender.ack(0, &[(1, sacked)]);
            let allowance = sender.recovery.allowance(sender.now) / MSS;
            if allowance > 0 {
                sender.send(allowance);
            }
            sent.push(allowance);
        }
        // Of 20 segments of data one is lost, 19 are delivered: 10 go out, the retransmission among them.
        assert!(sent.iter().all(|&count| count <= 1), "{sent:?}");
        assert!(sent.windows(2).all(|two| two[0] + two[1] >= 1 || two == [0, 0]), "{sent:?}");
        assert_eq!(sender.recovery.in_flight() / MSS, 10);
        sender.wait(RTT_US);
        sender.ack(sender.sent, &[]);
        assert_eq!((sender.recovery.phase, sender.cwnd()), (Phase::Open, 10));
    });
}

#[test]
fn rfc6937_3_1_below_ssthresh_each_delivery_is_replaced_and_grows_by_one_segment() {
    with_flight(20, |sender| {
        // 15 of 20 are lost.
        sender.ack(0, &[(15, 20)]);
        assert_eq!(sender.recovery.in_flight(), 0);
        // The reduction begins by what has just been delivered.
        assert_eq!(sender.resend().iter().map(|(_, count)| count).sum::<u32>(), 5);
        sender.wait(RTT_US);
        sender.ack(2, &[(15, 20)]);
        assert_eq!(sender.resend().iter().map(|(_, count)| count).sum::<u32>(), 3);
        assert!(sender.cwnd() <= sender.ssthresh());
    });
}

// Undo.

#[test]
fn rfc3522_3_2_echo_of_the_first_transmission_undoes_fast_recovery() {
    with_flight(10, |sender| {
        sender.has_timestamps = true;
        sender.ack(0, &[(1, 4)]);
        assert_eq!((sender.resend(), sender.ssthresh()), (vec![(0, 1)], 5));
        sender.wait(5_000);
        sender.ack_echo(4, &[], Some(RTT_US + 5_000));
        assert_eq!((sender.recovery.phase, sender.cwnd()), (Phase::Open, 10));
        assert!(sender.ssthresh() > 1000 && sender.recovery.rack.is_reordering_seen);
    });
}

#[test]
fn rfc3522_3_2_echo_of_the_retransmission_undoes_nothing() {
    with_flight(10, |sender| {
        sender.has_timestamps = true;
        sender.ack(0, &[(1, 4)]);
        sender.resend();
        sender.wait(RTT_US);
        sender.ack_echo(4, &[], Some(RTT_US));
        assert_eq!((sender.recovery.phase, sender.ssthresh()), (Phase::Fast, 5));
    });
}

#[test]
fn rfc3708_3_d_sack_of_all_that_was_sent_again_undoes_the_reduction() {
    with_flight(10, |sender| {
        sender.ack(0, &[(1, 2), (3, 7)]);
        assert_eq!(sender.resend(), [(0, 1), (2, 1)]);
        sender.wait(RTT_US);
        sender.ack(10, &[(0, 1)]);
        assert_eq!((sender.recovery.phase, sender.cwnd()), (Phase::Open, 5));
        sender.ack(10, &[(2, 3)]);
        assert_eq!(sender.cwnd(), 10);
    });
}

#[test]
fn rfc3708_3_d_sack_of_something_else_undoes_nothing() {
    with_flight(10, |sender| {
        sender.ack(4, &[]);
        sender.ack(4, &[(5, 9)]);
        assert_eq!(sender.resend(), [(4, 1)]);
        sender.wait(RTT_US);
        // Doubled by the network before.
        sender.ack(10, &[(1, 2)]);
        assert_eq!((sender.cwnd(), sender.recovery.rack.multiplier()), (sender.ssthresh(), 1));
        assert!(sender.cwnd() < 10);
    });
}

#[test]
fn rfc3708_3_d_sack_without_any_recovery_is_of_the_network() {
    with_flight(10, |sender| {
        sender.ack(9, &[]);
        sender.ack(9, &[(6, 7)]);
        assert_eq!(sender.recovery.rack.multiplier(), 1);
    });
}

#[test]
fn rfc5682_3_1_timeout_within_fast_recovery_is_not_undone_by_new_data() {
    with_flight(10, |sender| {
        sender.ack(0, &[(1, 4)]);
        assert_eq!(sender.resend(), [(0, 1)]);
        sender.ack(0, &[(1, 9)]);
        sender.send(1);
        assert_eq!(sender.expire(true), Expiry::Timeout);
        sender.resend();
        sender.ack(0, &[(1, 9), (10, 11)]);
        assert_eq!((sender.recovery.phase, sender.ssthresh()), (Phase::Timeout, 5));
    });
}

#[test]
fn rfc3522_3_2_echo_of_the_first_transmission_undoes_a_timeout() {
    with_flight(10, |sender| {
        sender.recovery.set_sack(false);
        sender.expire(true);
        sender.resend();
        assert_eq!((sender.cwnd(), sender.ssthresh()), (1, 5));
        let rto = sender.recovery.rto_us();
        sender.wait(1_000);
        let sent_ago = sender.now.since(Time(10_000_000));
        sender.ack_echo(1, &[], Some(sent_ago));
        assert_eq!((sender.recovery.phase, sender.cwnd(), sender.resend()), (Phase::Open, 11, vec![]));
        assert!(sender.recovery.rtt.backed_off_us() < 2 * rto + sent_ago);
    });
}

#[test]
fn rfc5682_3_1_arrival_of_what_was_sent_once_undoes_a_timeout() {
    with_flight(10, |sender| {
        sender.expire(true);
        sender.send(1);
        assert_eq!(sender.expire(true), Expiry::Timeout);
        sender.resend();
        sender.wait(1_000);
        // The retransmission says nothing yet.
        sender.ack(1, &[]);
        assert_eq!(sender.recovery.phase, Phase::Timeout);
        sender.ack(3, &[]);
        assert_eq!((sender.recovery.phase, sender.recovery.board.lost), (Phase::Open, 0));
        assert!(sender.cwnd() >= 10);
    });
}

#[test]
fn rfc5682_3_1_without_sack_one_ack_for_all_shows_nothing() {
    with_flight(10, |sender| {
        sender.recovery.set_sack(false);
        sender.expire(true);
        sender.resend();
        sender.wait(RTT_US);
        sender.ack(8, &[]);
        assert_eq!((sender.recovery.phase, sender.ssthresh()), (Phase::Timeout, 5));
    });
}

// Super-segments, records and what lies around them.

#[test]
fn bursts_share_a_record_and_later_segments_do_not() {
    with_sender(64, |sender| {
        sender.recovery.congestion.set_cwnd(100 * MSS);
        // SRTT / 64 is 1.5 ms, of which 1.024 ms are a burst.
        for _ in 0..50 {
            sender.send(1);
            sender.wait(10);
        }
        assert!(sender.recovery.board.records() <= 2);
        for _ in 0..10 {
            sender.wait(2_000);
            sender.send(1);
        }
        assert!((10..=12).contains(&sender.recovery.board.records()));
    });
}

#[test]
fn records_of_a_receiver_that_sacks_every_other_byte_are_bounded() {
    with_sender(16_384, |sender| {
        sender.recovery.congestion.set_cwnd(100 * MSS);
        sender.send(60);
        sender.wait(RTT_US);
        for byte in (0..30_000).step_by(4) {
            let block = |offset: u32| (NEXT + byte + offset, NEXT + byte + offset + 1);
            let ack = Ack {
                una: NEXT,
                sack: [block(1), block(3), block(1), block(3)],
                sack_blocks: 4,
                ..Ack::default()
            };
            sender.recovery.on_ack(&mut sender.segments, &ack, sender.now);
        }
        sender.check();
        assert_eq!(sender.recovery.board.records(), RECORDS_MAX);
        sender.ack(60, &[]);
        assert_eq!((sender.recovery.board.records(), sender.segments.room()), (0, 16_384));
    });
}

#[test]
fn without_records_new_data_join_the_last_one_and_sacks_of_parts_are_ignored() {
    with_sender(1, |sender| {
        for _ in 0..5 {
            assert!(sender.recovery.can_record(&sender.segments));
            sender.send(1);
            sender.wait(10_000);
        }
        assert_eq!(sender.recovery.board.records(), 1);
        assert_eq!(sender.ack(0, &[(2, 3)]).delivered, 0);
        assert_eq!(sender.ack(1, &[(2, 5)]).delivered, MSS);
        while sender.expire(false) != Expiry::Timeout {
            sender.resend();
        }
        // The record cannot be divided: it counts as sent again.
        assert_eq!(sender.resend(), [(1, 1)]);
        sender.ack(5, &[]);
        assert_eq!(sender.segments.room(), 1);
    });
}

#[test]
fn retransmissions_of_a_burst_share_records_and_are_limited_by_the_window() {
    with_sender(64, |sender| {
        sender.recovery.congestion.set_cwnd(60 * MSS);
        sender.send(60);
        sender.wait(1_000);
        assert_eq!(sender.recovery.board.records(), 1);
        sender.wait(RTT_US);
        sender.ack(0, &[(50, 60)]);
        assert_eq!(sender.resend(), [(0, 10)]);
        for una in 1..10 {
            sender.wait(100);
            sender.ack(una, &[(50, 60)]);
            assert_eq!(sender.resend().iter().map(|(_, count)| count).sum::<u32>(), 2);
        }
        assert!(sender.recovery.board.records() <= 5, "{:?}", sender.states());
    });
}

#[test]
fn driver_restart_sends_all_again_at_once_and_touches_neither_window_nor_rto() {
    with_flight(10, |sender| {
        sender.recovery.rack.is_reordering_seen = true;
        sender.ack(2, &[(5, 6)]);
        let before = (
            sender.cwnd(),
            sender.ssthresh(),
            sender.recovery.rtt.backed_off_us(),
            sender.recovery.srtt_us(),
        );
        let after = |sender: &Sender<'_>| {
            let rtt = &sender.recovery.rtt;
            (sender.cwnd(), sender.ssthresh(), rtt.backed_off_us(), rtt.srtt_us())
        };
        // The RTO is due, had the driver not been replaced.
        sender.now = sender.recovery.rto_deadline();
        sender.recovery.on_driver_restarted(&mut sender.segments, sender.now);
        for _ in 0..2 {
            assert_eq!(sender.recovery.on_deadline(&mut sender.segments, sender.now, true), Expiry::Nothing);
        }
        assert_eq!(sender.resend(), [(2, 3), (6, 4)]);
        assert_eq!(after(sender), before);
        sender.wait(30_000);
        sender.ack(10, &[]);
        assert_eq!(
            (sender.recovery.phase, after(sender).2, after(sender).3),
            (Phase::Open, before.2, before.3)
        );
    });
}

#[test]
fn rfc8201_5_4_smaller_path_mtu_sends_again_at_the_same_window() {
    with_flight(10, |sender| {
        sender.recovery.on_mss_reduced(&mut sender.segments, MSS / 2, sender.now);
        assert_eq!(sender.resend().iter().map(|(_, count)| count).sum::<u32>(), 10);
        assert_eq!((sender.cwnd(), sender.recovery.phase), (10, Phase::Open));
    });
}

#[test]
fn window_is_reduced_once_for_all_losses_of_a_round() {
    with_flight(20, |sender| {
        sender.ack(0, &[(1, 4)]);
        sender.resend();
        for next in (6..18).step_by(2) {
            sender.ack(0, &[(1, 4), (next, next + 1)]);
            sender.resend();
        }
        assert_eq!((sender.recovery.phase, sender.ssthresh()), (Phase::Fast, 10));
    });
}

#[test]
fn losses_of_the_next_round_reduce_the_window_again() {
    with_flight(20, |sender| {
        sender.ack(0, &[(1, 20)]);
        assert_eq!(sender.resend(), [(0, 1)]);
        sender.wait(1_000);
        sender.recovery.congestion.set_cwnd(12 * MSS);
        for _ in 0..8 {
            sender.send(1);
            sender.wait(2_000);
        }
        sender.wait(RTT_US);
        // The first of them was lost too, and is found before the recovery ends.
        sender.ack(0, &[(1, 20), (21, 26)]);
        sender.resend();
        sender.ack(20, &[(21, 26)]);
        assert_eq!((sender.recovery.phase, sender.ssthresh()), (Phase::Fast, 5));
    });
}

#[test]
fn rfc5681_4_1_idle_connection_restarts_slowly() {
    with_sender(64, |sender| {
        sender.recovery.congestion.set_cwnd(100 * MSS);
        sender.send(100);
        sender.wait(RTT_US);
        sender.ack(100, &[]);
        sender.recovery.congestion.set_cwnd(100 * MSS);
        let rto = sender.recovery.rto_us();
        for (rtos, window) in [(0, 100), (1, 50), (2, 25), (3, 12), (4, 10), (40, 10)] {
            let mut other = sender.recovery;
            let now = Time(10_000_000 + rtos * rto + rto / 2);
            assert_eq!((other.allowance(now) / MSS, rtos), (window, rtos));
        }
    });
}

#[test]
fn old_and_future_acks_change_nothing() {
    with_flight(4, |sender| {
        sender.ack(2, &[]);
        let before = (sender.states(), sender.recovery.deadline());
        for una in [NEXT, at(1), at(5), NEXT + (1 << 31)] {
            let ack = Ack { una, is_pure: true, ..Ack::default() };
            let outcome = sender.recovery.on_ack(&mut sender.segments, &ack, sender.now);
            assert_eq!(
                (outcome, (sender.states(), sender.recovery.deadline())),
                (Outcome::default(), before.clone())
            );
        }
    });
}

proptest::proptest! {
    /// Whatever a peer sends, counts agree with records and nothing panics; and at its end all can be acknowledged.
    #[test]
    fn any_sequence_of_calls_keeps_the_invariants(
        has_sack: bool,
        capacity in 1usize..40,
        steps in proptest::collection::vec((0u8..8, 0u32..12_000, 0u32..12_000, 0u64..300_000), 1..200),
    ) {
        with_sender(capacity, |sender| {
            let recovery = &mut sender.recovery;
            recovery.set_sack(has_sack);
            let (mut una, mut nxt) = (NEXT, NEXT);
            for (what, a, b, us) in steps {
                sender.now = sender.now.after(us / 4);
                let now = sender.now;
                match what {
                    0..=2 => {
                        let length = recovery.allowance(now).min(a);
                        if length > 0 && recovery.can_record(&sender.segments) {
                            recovery.on_sent(&mut sender.segments, nxt, length, now);
                            nxt = nxt + length;
                        }
                    }
                    3..=5 => {
                        let outstanding = nxt.distance(una).cast_unsigned();
                        let advance = if what == 3 { a.min(outstanding) } else { 0 };
                        let ack = Ack {
                            una: una + advance,
                            sack: [(una + a, una + b), (una + b / 2, una + a), (una + b, una + b + 500), (una - a, una)],
                            sack_blocks: what,
                            echo: (b % 2 == 0).then(|| Time(now.0 - us)),
                            is_pure: a % 2 == 0,
                        };
                        recovery.on_ack(&mut sender.segments, &ack, now);
                        una = una + advance;
                    }
                    6 => {
                        while let Some((seq, length)) = recovery.next_retransmission(&sender.segments) {
                            let length = if a % 2 == 0 { length } else { length.div_ceil(2) };
                            recovery.on_retransmitted(&mut sender.segments, seq, length, now);
                        }
                    }
                    _ if b % 16 == 0 => recovery.on_driver_restarted(&mut sender.segments, now),
                    _ => {
                        sender.now = now.max(recovery.deadline().min(now.after(120_000_000)));
                        recovery.on_deadline(&mut sender.segments, sender.now, a % 2 == 0);
                    }
                }
                check(recovery, &sender.segments);
                assert!(recovery.in_flight() <= nxt.distance(una).cast_unsigned());
            }
            let ack = Ack { una: nxt, ..Ack::default() };
            recovery.on_ack(&mut sender.segments, &ack, sender.now);
            assert_eq!((sender.segments.room(), recovery.deadline()), (capacity as u32, Time::NEVER));
        });
    }
}
