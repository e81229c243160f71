//! From the counters of a lane to evidence: what is decided by the whole period.

use super::lane::{Lane, Part};
use super::stops::BUFFER_STEP;
use crate::event::{Distances, Side, Vantage};
use crate::model::{Caps, Cause, Evidence, Path, Protocol, Seconds, Source};

/// Headers below TCP, and the precision of the rate.
const LINE_EXCESS: f64 = 1.12;
/// See [`super::pace::Pace::ratio`].
const THINKING_RATIO: f64 = 0.6;
/// Times that vary alike: the work of the program varies far more than the path, and only computing varies so much.
const EQUAL_RATIO: f64 = 0.9;
const BUSY_RATIO: f64 = 1.15;
/// What a busy program leaves unused, as a part of the time in which it has answers to wait for.
const BUSY_WAIT: f64 = 0.25;
/// Pauses within commands, as a part of those between them, that tell of a busy program.
const PAUSES_WITHIN: f64 = 0.1;
/// A window that losses explain by the square root law may be this many times larger than the one seen; CUBIC grows
/// faster than the law.
const LOSS_WINDOW: f64 = 12.0;
/// Least reductions without loss that tell of drops in the sender's own device.
const REDUCTIONS_MIN: u64 = 1;
/// With this many episodes of loss, and a window below this many times the one of the square root law, steps in which
/// the window opens do not speak for a buffer.
const LOSSES_MIN: u64 = 3;
const LAW_WINDOW: f64 = 3.0;
/// An acknowledgement that lets TCP itself go on does so sooner than this (measured: median 3 to 10 us, against 21 to
/// 76 us through a program), where the capture is at the sender.
const WOKEN_NS: u64 = 16_000;
/// Time at stops within data, as a part of the time in which a target does not begin to send, from which both may be one.
const STOPPED_BESIDE: f64 = 0.2;
/// Part of the time at stops from which steps tell of a buffer.
const STEPS_MIN: f64 = 0.05;
/// Part of the time at stops from which steps outweigh what queues in the path make of the releases of a window.
const STEPS_CLEAR: f64 = 0.6;
/// Part of the time at stops that is ended one for one, beside losses, from which no program is slow (measured: 7 % at most
/// where one is, and 32 % at least where losses limit).
const PACED: f64 = 0.2;
/// Bytes that one acknowledgement may cover, as receivers merge segments. Steps that are longer than it tell of a buffer
/// beside losses, too: those of recoveries take at most 24 % of the time (measured).
const ACK_BYTES_MAX: f64 = 65_536.0;
/// Bytes in flight at stops that spread more than this grow.
const GROWING_SPREAD: f64 = 1.3;
/// Bytes in flight at stops that spread less than this stand at a fixed cap.
const FIXED_SPREAD: f64 = 1.12;

/// Collects what else a cause would explain.
struct Books {
    waits: Seconds,
    alternatives: Seconds,
}

impl Books {
    fn add(&mut self, cause: Cause, ns: f64, others: &[Cause]) {
        let seconds = ns / 1e9;
        if seconds <= 0.0 {
            return;
        }
        self.waits[cause] += seconds;
        for other in others {
            self.alternatives[*other] += seconds;
        }
    }
}

pub(super) fn evidence(
    lane: &Lane,
    vantage: Vantage,
    distances: Distances,
    protocol: Option<Protocol>,
) -> Evidence {
    let mut books = Books { waits: Seconds::default(), alternatives: Seconds::default() };
    let part = |part: Part| lane.totals.of(part) as f64;
    for (what, cause) in [
        (Part::R2t, Cause::R2t),
        (Part::R2tTarget, Cause::Target),
        (Part::SentTarget, Cause::Target),
        (Part::Window, Cause::ReceiveWindow),
        (Part::Nagle, Cause::NagleDelayedAck),
        (Part::Local, Cause::LocalDevice),
        (Part::Blind, Cause::Unknown),
    ] {
        books.add(cause, part(what), &[]);
    }
    // Away from the sender a program that sleeps on a full buffer looks like one whose storage is late.
    let stopped_ns = lane.stops.released().ns as f64;
    let is_hidden = !lane.is_at_sender() && stopped_ns > STOPPED_BESIDE * part(Part::Target);
    books.add(Cause::Target, part(Part::Target), if is_hidden { &[Cause::SendBuffer] } else { &[] });
    line(lane, &mut books);
    let reader = if lane.sender() == Side::Initiator { Cause::Target } else { Cause::Cpu };
    books.add(reader, part(Part::WindowShrunk), &[Cause::ReceiveWindow]);
    // A sender's own device looks like the network from everywhere else.
    let elsewhere: &[Cause] = if lane.is_at_sender() { &[] } else { &[Cause::LocalDevice] };
    if is_overflow(lane) {
        books.add(Cause::LineRate, part(Part::Repair), &[]);
    } else {
        books.add(Cause::Loss, part(Part::Repair), elsewhere);
    }
    thinking(lane, &mut books);
    stopped(lane, &mut books);
    let seconds = books.waits.total();
    Evidence {
        source: Source::Capture(vantage),
        sender: lane.sender(),
        seconds,
        data_bytes: data_bytes(lane),
        waits: books.waits,
        alternatives: books.alternatives,
        path: path(lane, distances),
        caps: caps(lane),
        protocol,
        cpu: None,
    }
}

/// The link cannot have been busy longer than its rate takes for what was sent: the rest was booked by a rate that later
/// measurements corrected.
fn line(lane: &Lane, books: &mut Books) {
    let (counters, ns) = (&lane.counters, lane.totals.of(Part::Line) as f64);
    let sent = (counters.payload_bytes + counters.retransmitted * counters.mss) as f64;
    let most = lane.line_bytes_per_s().map_or(ns, |rate| LINE_EXCESS * sent / rate * 1e9);
    books.add(Cause::LineRate, ns.min(most), &[]);
    books.add(Cause::Unknown, (ns - most).max(0.0), &[Cause::SendBuffer, Cause::Congestion]);
}

fn data_bytes(lane: &Lane) -> u64 {
    let counters = &lane.counters;
    // Where most PDUs are not visible, the payload is the better figure.
    let is_seen = lane.is_framed() && counters.data_bytes >= counters.payload_bytes / 10 * 8;
    if is_seen { counters.data_bytes } else { counters.payload_bytes }
}

fn thinking(lane: &Lane, books: &mut Books) {
    let ns = lane.totals.of(Part::IdleLess) as f64 + lane.totals.of(Part::SentLess) as f64;
    let queue = lane.totals.of(Part::SentFull) as f64 + lane.totals.of(Part::IdleFull) as f64;
    // A busy program does not wait for answers: neither then is the number of its commands what limits. Away from it the
    // path varies, too, and both times alike.
    let busy = if lane.is_at_sender() { BUSY_RATIO } else { EQUAL_RATIO };
    let is_waiting = ns <= BUSY_WAIT * queue;
    match lane.pace.ratio() {
        Some(ratio) if ratio > busy && !is_waiting => books.add(Cause::Cpu, queue, &[Cause::QueueDepth]),
        Some(ratio) if ratio > THINKING_RATIO && !is_waiting => {
            books.add(Cause::QueueDepth, queue, &[Cause::Cpu]);
        }
        _ => books.add(Cause::QueueDepth, queue, &[]),
    }
    match lane.pace.ratio() {
        Some(ratio) if ratio > EQUAL_RATIO => books.add(Cause::Cpu, ns, &[Cause::ThinkTime]),
        Some(ratio) if ratio < THINKING_RATIO => books.add(Cause::ThinkTime, ns, &[]),
        // A program that also pauses within commands is busy with what it sends.
        _ if lane.pace.is_unanswered() => books.add(Cause::Cpu, ns, &[Cause::ThinkTime]),
        _ if lane.stops.own.ns as f64 > PAUSES_WITHIN * ns => books.add(Cause::Cpu, ns, &[Cause::ThinkTime]),
        _ => books.add(Cause::ThinkTime, ns, &[Cause::Cpu]),
    }
}

/// Time in which the sender had data and TCP or the program did not send it.
fn stopped(lane: &Lane, books: &mut Books) {
    let stops = &lane.stops;
    let released = stops.released();
    let by_ack = stops.share_ended_by_ack();
    let all = released.ns as f64 + stops.own.ns as f64;
    let window = window_cause(lane);
    // Behind the queue of a device packets come at its pace, whatever lets them out; a busy program makes no stop that
    // little of what is in flight ends.
    let is_paced = !lane.is_at_sender()
        && matches!(window, Cause::Loss | Cause::LocalDevice)
        && stops.one_by_one.ns as f64 > PACED * all;
    let released = if released.ns == 0 { 0.0 } else { all * by_ack };
    let waiting = if is_paced { all } else { released };
    if is_paced {
        books.alternatives[Cause::Cpu] += (all - released) / 1e9;
    }
    // Elsewhere, queues between hide what an acknowledgement released.
    let hidden: &[Cause] = if lane.is_at_sender() { &[] } else { &[Cause::Congestion] };
    books.add(Cause::Cpu, all - waiting, hidden);
    let clear = stops.in_steps.bytes.saturating_add(stops.one_by_one.bytes).max(1) as f64;
    let in_steps =
        stops.in_steps.ns as f64 / stops.in_steps.ns.saturating_add(stops.one_by_one.ns).max(1) as f64;
    let known = clear / (clear + stops.unclear.bytes as f64);
    let (lost, packets) = (lane.counters.episodes, lane.counters.data_packets.max(1));
    let law = 1.22 * lane.counters.mss as f64 / (lost as f64 / packets as f64).sqrt();
    let is_law = lost >= LOSSES_MIN && (stops.in_flight_median().unwrap_or(0) as f64) < LAW_WINDOW * law;
    let steps_bytes = BUFFER_STEP * stops.in_flight_median().unwrap_or(0) as f64;
    let is_buffer = in_steps >= STEPS_CLEAR && steps_bytes > ACK_BYTES_MAX;
    let is_growing = stops.in_flight_spread() > GROWING_SPREAD;
    match (in_steps, known) {
        _ if is_law && !is_buffer && window != Cause::Congestion => window_wait(lane, books, window, waiting),
        // A buffer keeps what is in flight between a third below its cap and the cap; after losses it falls further.
        _ if is_growing && !is_buffer && lost > 0 && window != Cause::Congestion => {
            books.add(window, waiting, &[Cause::SendBuffer]);
        }
        (_, ..0.3) if lane.is_at_sender() && stops.reaction_ns() > WOKEN_NS => {
            books.add(Cause::SendBuffer, waiting, &[window]);
        }
        // A window lets the first acknowledgement out already, whoever sees it.
        (_, ..0.3) if stops.unused.ns > stops.unclear.ns / 2 => {
            books.add(Cause::SendBuffer, waiting, &[window]);
        }
        (_, ..0.3) => books.add(window, waiting, &[Cause::SendBuffer]),
        (STEPS_CLEAR.., _) => {
            books.add(Cause::SendBuffer, waiting, if in_steps > 0.75 { &[] } else { &[Cause::Congestion] });
        }
        (..STEPS_MIN, _) if window == Cause::LocalDevice => window_wait(lane, books, window, waiting),
        (..0.3, _) if window == Cause::LocalDevice && lost > 0 => window_wait(lane, books, window, waiting),
        // Queues between gather acknowledgements. What a cap of TCP permits is the same at each stop; a buffer that is not
        // filled in steps alone stops below its cap, too.
        (STEPS_MIN..0.3, _) if !lane.is_at_sender() && window == Cause::Congestion && is_fixed(lane) => {
            books.add(Cause::Congestion, waiting, &[Cause::SendBuffer]);
        }
        // Only a buffer opens in steps (a congestion window and a device: at most 2.5 % of the time, measured); it may also
        // let out what was written while the sender stopped.
        (STEPS_MIN.., _) => books.add(Cause::SendBuffer, waiting, &[window]),
        // TCP itself goes on within microseconds; a program has to be woken first.
        _ if window == Cause::Congestion && lane.is_at_sender() && stops.reaction_ns() > WOKEN_NS => {
            // One for one, late, and more by and by: something between TCP and the network holds packets back.
            let (cause, other) = match is_growing {
                true => (Cause::LocalDevice, Cause::SendBuffer),
                false => (Cause::SendBuffer, Cause::Congestion),
            };
            books.add(cause, waiting, &[other]);
        }
        _ => window_wait(lane, books, window, waiting),
    }
}

fn is_fixed(lane: &Lane) -> bool {
    lane.stops.in_flight_spread() < FIXED_SPREAD
}

fn window_wait(lane: &Lane, books: &mut Books, window: Cause, ns: f64) {
    let others: &[Cause] = match window {
        Cause::Congestion if !is_fixed(lane) && !lane.is_at_sender() => &[Cause::LocalDevice],
        Cause::Loss if !lane.is_at_sender() => &[Cause::LocalDevice],
        Cause::LocalDevice if !lane.is_at_sender() => &[Cause::Congestion],
        _ if lane.windows.is_empty() => &[Cause::ReceiveWindow],
        _ => &[],
    };
    books.add(window, ns, others);
}

/// Episodes of loss without those whose retransmissions the receiver did not need.
fn lost_episodes(lane: &Lane) -> u64 {
    let counters = &lane.counters;
    let needed = counters.retransmitted.saturating_sub(counters.spurious);
    (counters.episodes * needed).div_ceil(counters.retransmitted.max(1))
}

/// Why the congestion window is no larger.
fn window_cause(lane: &Lane) -> Cause {
    let counters = &lane.counters;
    let lost = lost_episodes(lane);
    if lost == 0 {
        // Away from the sender, how soon it goes on is not visible.
        let is_sawtooth = counters.reductions >= REDUCTIONS_MIN
            && lane.stops.in_flight_spread() > GROWING_SPREAD
            && (lane.stops.reaction_ns() > WOKEN_NS || !lane.is_at_sender())
            && counters.echoes == 0;
        return if is_sawtooth { Cause::LocalDevice } else { Cause::Congestion };
    }
    let share = lost as f64 / counters.data_packets.max(1) as f64;
    let explained = LOSS_WINDOW * 1.22 * counters.mss as f64 / share.sqrt();
    // Before the first loss, and long after the last one, the window may be larger.
    let least = lane.stops.in_flight_least().unwrap_or(0) as f64;
    if is_fixed(lane) || explained < least {
        return Cause::Congestion;
    }
    if counters.local_drops * 2 > counters.retransmitted
        || lane.is_at_sender() && counters.local_drops > 0 && counters.reductions > 2 * lost
    {
        return Cause::LocalDevice;
    }
    if is_overflow(lane) { Cause::LineRate } else { Cause::Loss }
}

/// Most losses happened while packets queued in front of the narrowest link: TCP filled it.
fn is_overflow(lane: &Lane) -> bool {
    lane.counters.overflows * 2 > lane.counters.episodes
}

fn path(lane: &Lane, distances: Distances) -> Path {
    let counters = &lane.counters;
    let rtt_ns = match (distances.initiator_ns, distances.target_ns) {
        (Some(initiator), Some(target)) => Some(initiator.saturating_add(target)),
        _ => None,
    };
    Path {
        rtt_s: rtt_ns.map(|ns| ns as f64 / 1e9),
        rtt_loaded_s: lane.rtts.quantile(0.5).map(|ns| ns as f64 / 1e9),
        mss_bytes: u32::try_from(counters.mss).ok().filter(|mss| *mss > 0),
        line_bytes_per_s: lane.line_bytes_per_s(),
        burst_bytes_per_s: lane.burst_bytes_per_s(),
        data_packets: counters.data_packets,
        retransmitted_packets: counters.retransmitted,
        spurious_packets: counters.spurious,
        timeouts: counters.timeouts,
        local_drops: lane.is_at_sender().then_some(counters.local_drops),
        capture_lost_bytes: counters.capture_lost_bytes,
    }
}

fn caps(lane: &Lane) -> Caps {
    Caps {
        in_flight_max_bytes: (lane.counters.in_flight_max > 0).then_some(lane.counters.in_flight_max),
        in_flight_stopped_bytes: lane.stops.in_flight_median(),
        window_bytes: lane.windows.quantile(0.5),
        ..Caps::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::stops::Stop;
    use super::*;

    const MS: u64 = 1_000_000;
    const MSS: u64 = 1448;

    /// A sender whose bytes in flight at stops, in segments, are these; an acknowledgement lets each go on.
    fn lane(to_sender_ns: u64, segments: [u64; 4], reaction_ns: u64) -> Lane {
        let mut lane = Lane::new(Side::Initiator);
        lane.set_distances(to_sender_ns, 20 * MS);
        (lane.counters.mss, lane.counters.data_packets) = (MSS, 10_000);
        for in_flight in segments.map(|segments| segments * MSS) {
            let stop = Stop {
                wait_ns: MS,
                in_flight,
                freed: MSS,
                acks: 1,
                reaction_ns: Some(reaction_ns),
                gap_ns: MS,
                acks_min: 2,
                is_first_unused: false,
                is_full: true,
            };
            lane.stops.add(stop, MS);
        }
        lane
    }

    /// Falls of what is in flight, without loss and without marks of the network, are those of the sender's own device:
    /// its queueing discipline drops, and TCP learns that at once. At the sender a device shows by late reactions, too.
    #[test]
    fn a_sawtooth_without_loss_is_the_senders_device_from_everywhere() {
        const GROWING: [u64; 4] = [40, 60, 80, 100];
        const AWAY: u64 = 20 * MS;
        let late = WOKEN_NS + 1;
        for (place, segments, reaction_ns, reductions, echoes, expected) in [
            (AWAY, GROWING, 0, 1, 0, Cause::LocalDevice),
            (AWAY, GROWING, late, 1, 0, Cause::LocalDevice),
            (0, GROWING, late, 1, 0, Cause::LocalDevice),
            // The kernel itself goes on at once: nothing between it and the network.
            (0, GROWING, 0, 1, 0, Cause::Congestion),
            // The network marks, nothing falls, and a fixed cap.
            (AWAY, GROWING, 0, 1, 1, Cause::Congestion),
            (AWAY, GROWING, 0, 0, 0, Cause::Congestion),
            (AWAY, [100; 4], 0, 1, 0, Cause::Congestion),
        ] {
            let mut lane = lane(place, segments, reaction_ns);
            (lane.counters.reductions, lane.counters.echoes) = (reductions, echoes);
            let found = window_cause(&lane);
            assert_eq!(found, expected, "{place} {segments:?} {reaction_ns} {reductions} {echoes}");
        }
    }

    /// From elsewhere the device is named with the congestion window as a candidate.
    #[test]
    fn a_device_away_from_the_sender_is_doubted() {
        for (place, is_doubted) in [(0, false), (20 * MS, true)] {
            let mut books = Books { waits: Seconds::default(), alternatives: Seconds::default() };
            let lane = lane(place, [40, 60, 80, 100], 0);
            window_wait(&lane, &mut books, Cause::LocalDevice, MS as f64);
            let found = (books.waits[Cause::LocalDevice], books.alternatives[Cause::Congestion]);
            assert_eq!((found.0, found.1 > 0.0), (0.001, is_doubted), "{place}");
        }
    }

    /// Adds stops that are ended by several acknowledgements of a third of what is in flight.
    fn add_steps(lane: &mut Lane, segments: [u64; 4], count: usize) {
        for in_flight in segments.into_iter().cycle().take(count).map(|segments| segments * MSS) {
            let stop = Stop {
                wait_ns: MS,
                in_flight,
                freed: in_flight / 3,
                acks: 3,
                reaction_ns: Some(0),
                gap_ns: MS,
                acks_min: 3,
                is_first_unused: true,
                is_full: true,
            };
            lane.stops.add(stop, MS);
        }
    }

    /// The cause of the stops and what else it may be.
    fn stopped_by(lane: &Lane) -> (Cause, Vec<Cause>) {
        let mut books = Books { waits: Seconds::default(), alternatives: Seconds::default() };
        stopped(lane, &mut books);
        let others = books.alternatives.ranked().into_iter().filter(|(_, seconds)| *seconds > 0.0);
        (books.waits.ranked()[0].0, others.map(|(cause, _)| cause).collect())
    }

    /// Losses leave a window in which a single acknowledgement is a step; steps of a large one are those of a buffer.
    #[test]
    fn long_steps_are_a_buffer_beside_losses() {
        for (segments, expected) in [
            ([380, 400, 420, 460], Cause::SendBuffer),
            ([38, 40, 42, 46], Cause::Loss),
            // Swings of more than a third are no buffer's, but those of large steps.
            ([300, 400, 420, 460], Cause::SendBuffer),
            ([30, 40, 42, 46], Cause::Loss),
        ] {
            let mut lane = lane(0, segments, 0);
            add_steps(&mut lane, segments, 36);
            let counters = &mut lane.counters;
            (counters.episodes, counters.retransmitted, counters.data_packets) = (3, 300, 80_000);
            assert_eq!(stopped_by(&lane).0, expected, "{segments:?}");
        }
    }

    /// Away from the sender some releases of a window look like steps; what it permits does not vary. A buffer that is not
    /// filled in steps alone stops below its cap.
    #[test]
    fn a_cap_that_never_varies_is_a_window_in_spite_of_some_steps() {
        for (segments, steps, expected, other) in [
            ([73; 4], 1, Cause::Congestion, Cause::SendBuffer),
            ([60, 73, 73, 73], 1, Cause::SendBuffer, Cause::Congestion),
            ([73; 4], 3, Cause::SendBuffer, Cause::Congestion),
        ] {
            let mut lane = lane(20 * MS, segments, 0);
            add_steps(&mut lane, segments, steps);
            assert_eq!(stopped_by(&lane), (expected, vec![other]), "{segments:?} {steps}");
        }
        // A sawtooth with such steps is a buffer's as well.
        let mut lane = lane(20 * MS, [40, 60, 80, 100], 0);
        lane.counters.reductions = 1;
        assert_eq!(stopped_by(&lane).0, Cause::LocalDevice);
        add_steps(&mut lane, [100; 4], 1);
        assert_eq!(stopped_by(&lane).0, Cause::SendBuffer);
    }

    #[test]
    fn why_a_window_that_was_reduced_is_small() {
        const VARYING: [u64; 4] = [100, 120, 140, 160];
        // Episodes, packets sent again, of those not needed, dropped before the capture, reductions.
        for (segments, [episodes, again, spurious, local, reductions], expected) in [
            (VARYING, [2, 400, 0, 0, 0], Cause::Loss),
            (VARYING, [2, 400, 0, 390, 0], Cause::LocalDevice),
            (VARYING, [2, 400, 3, 390, 0], Cause::LocalDevice),
            (VARYING, [2, 400, 400, 0, 0], Cause::Congestion),
            // Drops of the device show at the sender; without one, reductions have another reason.
            (VARYING, [2, 400, 0, 0, 10], Cause::Loss),
            (VARYING, [2, 400, 0, 100, 10], Cause::LocalDevice),
            // Before the first loss.
            ([100, 2000, 2000, 2000], [20, 20, 0, 0, 0], Cause::Loss),
            ([1000, 2000, 2000, 2000], [20, 20, 0, 0, 0], Cause::Congestion),
        ] {
            let mut lane = lane(0, segments, 0);
            let counters = &mut lane.counters;
            (counters.episodes, counters.retransmitted, counters.spurious) = (episodes, again, spurious);
            (counters.local_drops, counters.reductions) = (local, reductions);
            let found = window_cause(&lane);
            assert_eq!(found, expected, "{segments:?} {episodes} {again} {spurious} {local} {reductions}");
        }
    }

    /// Losses behind the queue of a device: packets come at its pace, and most stops seem to end without an acknowledgement.
    #[test]
    fn a_pace_beside_losses_is_no_slow_program() {
        for (place, episodes, one_by_one, expected) in [
            (20 * MS, 3, 4, Cause::Loss),
            (20 * MS, 3, 1, Cause::Cpu),
            (20 * MS, 0, 4, Cause::Cpu),
            // At the sender what ends a stop is certain.
            (0, 3, 4, Cause::Cpu),
        ] {
            let mut lane = lane(place, [100, 120, 140, 160], 0);
            let own = Stop {
                wait_ns: 10 * MS / one_by_one,
                in_flight: 120 * MSS,
                freed: 0,
                acks: 0,
                reaction_ns: None,
                gap_ns: 10 * MS,
                acks_min: 3,
                is_first_unused: false,
                is_full: true,
            };
            (0..4).for_each(|_| lane.stops.add(own, MS));
            (lane.counters.episodes, lane.counters.retransmitted) = (episodes, 100 * episodes);
            let (found, others) = stopped_by(&lane);
            assert_eq!(found, expected, "{place} {episodes} {one_by_one}");
            assert!(found == Cause::Cpu || others.contains(&Cause::Cpu), "{others:?}");
        }
    }

    /// What the next command of a program follows: of the time that the answer varies, it is later by this part.
    #[test]
    fn a_busy_program_needs_no_deeper_queue() {
        const AWAY: u64 = 20 * MS;
        let part = |lane: &mut Lane, part: Part, ms: u64| lane.totals.add(part, ms * MS);
        for (place, follows, less_ms, expected, other) in [
            // Ratios of 0, 0.8, 1 and 2.3.
            (0, 1.0, 300, Cause::QueueDepth, None),
            (0, 0.55, 300, Cause::QueueDepth, Some(Cause::Cpu)),
            (0, 0.5, 300, Cause::QueueDepth, Some(Cause::Cpu)),
            (0, 0.3, 300, Cause::Cpu, Some(Cause::QueueDepth)),
            (AWAY, 0.55, 300, Cause::QueueDepth, Some(Cause::Cpu)),
            (AWAY, 0.5, 300, Cause::Cpu, Some(Cause::QueueDepth)),
            // It goes on at once when it may.
            (AWAY, 0.55, 200, Cause::QueueDepth, None),
        ] {
            let mut lane = lane(place, [100; 4], 0);
            part(&mut lane, Part::SentFull, 1000);
            part(&mut lane, Part::SentLess, less_ms);
            for turn in 1..400u64 {
                let (stopped, answer) = (turn * 100 * MS, 10 * MS + turn * 7919 % 1000 * 1000);
                lane.pace.on_answer(stopped + answer);
                let command = 20 * MS + (follows * answer as f64) as u64;
                lane.pace.on_command(stopped + command, stopped, 1);
            }
            let mut books = Books { waits: Seconds::default(), alternatives: Seconds::default() };
            thinking(&lane, &mut books);
            assert!(books.waits[expected] >= 1.0, "{place} {follows} {less_ms} {:?}", lane.pace.ratio());
            let is_open = |cause| books.alternatives[cause] >= 1.0;
            let found = [Cause::Cpu, Cause::QueueDepth].into_iter().find(|cause| is_open(*cause));
            assert_eq!(found, other, "{place} {follows} {less_ms} {:?}", lane.pace.ratio());
        }
    }
}
