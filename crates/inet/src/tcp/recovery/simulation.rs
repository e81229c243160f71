//! A sender over a path with rate, delay, queue, loss and reordering, by seed: what the parts do together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::tests::check;
use super::*;
use crate::{Node, SlabHead};

const MSS: u32 = 1448;
/// IP and TCP headers with timestamps, and Ethernet's.
const OVERHEAD_BYTES: u64 = 66;
const ISS: u32 = u32::MAX - 1_000_000;
const DELAYED_ACK_US: u64 = 40_000;
/// Receive window.
const WINDOW_BYTES: u32 = 8 << 20;

#[derive(Clone, Copy)]
struct Route {
    mbit_per_s: u64,
    /// Both ways together.
    rtt_us: u64,
    queue_bytes: u64,
    loss: f64,
    reordering: f64,
    /// Of segments that are reordered.
    extra_us: (u64, u64),
    ack_loss: f64,
}

const CLEAN: Route = Route {
    mbit_per_s: 200,
    rtt_us: 50_000,
    queue_bytes: 1_250_000,
    loss: 0.0,
    reordering: 0.0,
    extra_us: (1_000, 5_000),
    ack_loss: 0.0,
};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn is_hit(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    fn within(&mut self, (from, to): (u64, u64)) -> u64 {
        from + self.next() % (to - from + 1)
    }
}

#[derive(Clone, Copy, Debug)]
enum Arrives {
    /// At the receiver: stream offset, length, time of transmission.
    Data(u64, u32, Time),
    Ack(Ack),
    DelayedAck(u64),
}

/// RFC 9293 and RFC 2018, as far as the sender can notice.
#[derive(Default)]
struct Receiver {
    next: u64,
    /// Beyond `next`: start, end.
    ranges: BTreeMap<u64, u64>,
    /// Starts of ranges, the latest first.
    recent: Vec<u64>,
    unacked_segments: u32,
    ts_recent: Time,
    last_ack: u64,
    acks: u64,
    duplicate_bytes: u64,
}

impl Receiver {
    /// Whether an ACK is due at once, with the D-SACK block that it carries.
    fn on_data(&mut self, start: u64, length: u32, sent_at: Time) -> (bool, Option<(u64, u64)>) {
        let end = start + u64::from(length);
        if start <= self.last_ack {
            self.ts_recent = self.ts_recent.max(sent_at);
        }
        let is_known = |&(&from, &to): &(&u64, &u64)| from <= start && end <= to;
        if end <= self.next || self.ranges.iter().any(|range| is_known(&range)) {
            self.duplicate_bytes += u64::from(length);
            return (true, Some((start, end)));
        }
        let (mut from, mut to) = (start, end);
        let touching: Vec<u64> = self
            .ranges
            .range(..=to)
            .filter(|&(_, &range_end)| range_end >= from)
            .map(|(&at, _)| at)
            .collect();
        for at in touching {
            let range_end = self.ranges.remove(&at).unwrap();
            self.recent.retain(|&start| start != at);
            (from, to) = (from.min(at), to.max(range_end));
        }
        if from <= self.next {
            let had_gap = !self.ranges.is_empty() || to != end;
            self.next = to;
            self.unacked_segments += 1;
            return (had_gap || self.unacked_segments >= 2, None);
        }
        self.ranges.insert(from, to);
        self.recent.insert(0, from);
        (true, None)
    }

    fn ack(&mut self, duplicate: Option<(u64, u64)>, has_timestamps: bool, has_sack: bool) -> Ack {
        let mut ack = Ack { una: seq(self.next), is_pure: true, ..Ack::default() };
        if has_timestamps {
            ack.echo = Some(Time(self.ts_recent.0 / TIMESTAMP_TICK_US * TIMESTAMP_TICK_US));
        }
        if has_sack {
            let known = self.recent.iter().map(|start| (*start, self.ranges[start]));
            for (block, (from, to)) in ack.sack.iter_mut().zip(duplicate.into_iter().chain(known).take(3)) {
                *block = (seq(from), seq(to));
                ack.sack_blocks += 1;
            }
        }
        self.last_ack = self.next;
        self.unacked_segments = 0;
        self.acks += 1;
        ack
    }
}

fn seq(offset: u64) -> SeqNumber {
    SeqNumber(ISS.wrapping_add(1).wrapping_add(offset as u32))
}

#[derive(Default, Debug)]
struct Report {
    delivered: u64,
    retransmitted: u64,
    needless: u64,
    timeouts: u32,
    probes: u32,
    recoveries: u32,
    records_max: u32,
    finished_at: Time,
    /// Longest time without forward progress.
    stall_us_max: u64,
    dropped: u64,
}

impl Report {
    fn mbit_per_s(&self, us: u64) -> f64 {
        self.delivered as f64 * 8.0 / us as f64
    }
}

struct Simulation {
    has_timestamps: bool,
    has_sack: bool,
    algorithm: Algorithm,
    route: Route,
    seed: u64,
    /// Bytes to send.
    total: u64,
    until: Time,
}

const RUN: Simulation = Simulation {
    has_timestamps: true,
    has_sack: true,
    algorithm: Algorithm::Cubic,
    route: CLEAN,
    seed: 1,
    total: u64::MAX,
    until: Time(20_000_000),
};

struct State<'a> {
    run: &'a Simulation,
    random: Random,
    /// Time, order, and index into `arrivals`.
    events: BinaryHeap<Reverse<(Time, u64, usize)>>,
    arrivals: Vec<Arrives>,
    free: Vec<usize>,
    order: u64,
    link_free_at: Time,
    report: Report,
}

impl State<'_> {
    fn at(&mut self, time: Time, what: Arrives) {
        self.order += 1;
        let index = self.free.pop().unwrap_or(self.arrivals.len());
        if index == self.arrivals.len() {
            self.arrivals.push(what);
        } else {
            self.arrivals[index] = what;
        }
        self.events.push(Reverse((time, self.order, index)));
    }

    fn send(&mut self, start: u64, length: u32, now: Time) {
        let route = &self.run.route;
        let (mut at, end) = (start, start + u64::from(length));
        while at < end {
            let bytes = (end - at).min(u64::from(MSS));
            let queued_bytes = self.link_free_at.since(now) * route.mbit_per_s / 8;
            if queued_bytes > route.queue_bytes {
                self.report.dropped += 1;
            } else {
                self.link_free_at =
                    self.link_free_at.max(now).after((bytes + OVERHEAD_BYTES) * 8 / route.mbit_per_s);
                let mut arrival = self.link_free_at.after(route.rtt_us / 2);
                if self.random.is_hit(route.reordering) {
                    arrival = arrival.after(self.random.within(route.extra_us));
                }
                if self.random.is_hit(route.loss) {
                    self.report.dropped += 1;
                } else {
                    self.at(arrival, Arrives::Data(at, bytes as u32, now));
                }
            }
            at += bytes;
        }
    }
}

impl Simulation {
    fn run(&self) -> Report {
        let (mut head, mut nodes) = (SlabHead::default(), vec![Node::<Segment>::default(); 16_384]);
        let mut segments = Slab::format(&mut head, &mut nodes);
        let mut now = Time(1_000_000);
        let mut sender = Recovery::new(seq(0), MSS, self.algorithm, now);
        sender.set_sack(self.has_sack);
        sender.on_handshake(Some(self.route.rtt_us), now);
        let mut receiver = Receiver::default();
        let mut state = State {
            run: self,
            random: Random(self.seed),
            events: BinaryHeap::new(),
            arrivals: Vec::new(),
            free: Vec::new(),
            order: 0,
            link_free_at: Time::ZERO,
            report: Report::default(),
        };
        let (mut una, mut nxt) = (0u64, 0u64);
        let mut progress_at = now;
        let start = now;
        loop {
            let mut phase = sender.phase;
            while let Some((from, length)) = sender.next_retransmission(&segments) {
                let offset = una + u64::from(from.distance(seq(una)).cast_unsigned());
                assert!(offset >= una && offset + u64::from(length) <= nxt, "seed {}", self.seed);
                sender.on_retransmitted(&mut segments, from, length, now);
                state.send(offset, length, now);
                state.report.retransmitted += u64::from(length);
            }
            loop {
                let window = WINDOW_BYTES - (nxt - una) as u32;
                let left = (self.total - nxt).min(u64::from(u32::MAX)) as u32;
                let most = sender.allowance(now).min(window).min(SEGMENT_BYTES_MAX).min(left);
                let length = if most == left { most } else { most - most % MSS };
                if length == 0 || !sender.can_record(&segments) {
                    break;
                }
                sender.on_sent(&mut segments, seq(nxt), length, now);
                state.send(nxt, length, now);
                nxt += u64::from(length);
            }
            if state.order.is_multiple_of(64) {
                check(&sender, &segments);
            }
            state.report.records_max = state.report.records_max.max(sender.board.records());
            let deadline = sender.deadline();
            let next = state.events.peek().map_or(Time::NEVER, |event| event.0.0);
            if una == self.total {
                break;
            }
            assert_ne!(deadline.min(next), Time::NEVER, "stalled for ever, seed {}: {sender:?}", self.seed);
            now = now.max(deadline.min(next));
            if now.since(start) >= self.until.0 {
                break;
            }
            if deadline <= next {
                let has_new = nxt < self.total;
                match sender.on_deadline(&mut segments, now, has_new) {
                    Expiry::Nothing => {}
                    Expiry::Probe => state.report.probes += 1,
                    Expiry::Timeout => state.report.timeouts += 1,
                }
                assert!(
                    sender.deadline() > now || sender.in_flight() == 0 || sender.probe != Probe::None,
                    "{sender:?}"
                );
            } else if let Some(Reverse((_, _, index))) = state.events.pop() {
                state.free.push(index);
                match state.arrivals[index] {
                    Arrives::Data(from, length, sent_at) => {
                        let (is_due, duplicate) = receiver.on_data(from, length, sent_at);
                        if is_due {
                            let ack = receiver.ack(duplicate, self.has_timestamps, self.has_sack);
                            if !state.random.is_hit(self.route.ack_loss) {
                                state.at(now.after(self.route.rtt_us / 2), Arrives::Ack(ack));
                            }
                        } else {
                            state.at(now.after(DELAYED_ACK_US), Arrives::DelayedAck(receiver.acks));
                        }
                    }
                    Arrives::DelayedAck(acks) if acks == receiver.acks => {
                        let ack = receiver.ack(None, self.has_timestamps, self.has_sack);
                        state.at(now.after(self.route.rtt_us / 2), Arrives::Ack(ack));
                    }
                    Arrives::DelayedAck(_) => {}
                    Arrives::Ack(ack) => {
                        let before = (sender.phase, sender.congestion.cwnd(), sender.high);
                        let outcome = sender.on_ack(&mut segments, &ack, now);
                        una += u64::from(outcome.acked);
                        if outcome.delivered > 0 {
                            state.report.stall_us_max = state.report.stall_us_max.max(now.since(progress_at));
                            progress_at = now;
                        }
                        if before.0 == Phase::Fast && sender.phase == Phase::Fast && sender.high == before.2 {
                            // Once per window of data: the target does not move while the recovery lasts.
                            assert!(una < nxt);
                        }
                        phase = before.0;
                    }
                }
            }
            if sender.phase == Phase::Fast && phase != Phase::Fast {
                state.report.recoveries += 1;
            }
        }
        assert_eq!(sender.board.una, seq(una), "seed {}", self.seed);
        assert!(una <= receiver.next);
        state.report.finished_at = Time(now.since(start));
        state.report.delivered = receiver.next;
        state.report.needless = receiver.duplicate_bytes;
        sender.clear(&mut segments);
        assert_eq!(segments.room(), segments.capacity());
        state.report
    }
}

/// Throughput that the response functions of RFC 9438 predict (§5.1, figures 5 and 6: that of W_est, and that of W_cubic)
/// for random loss, Mbit/s.
fn predicted(loss: f64, rtt_s: f64) -> f64 {
    let friendly = (3.0f64 / 2.0 / loss).sqrt();
    let cubic = (0.4f64 * 3.7 / (4.0 * 0.3)).powf(0.25) * (rtt_s / loss).powf(0.75);
    friendly.max(cubic) * f64::from(MSS) * 8.0 / rtt_s / 1e6
}

/// RTT 50 ms, 200 Mbit/s. Prints rates; what it asserts is that recovery repairs each loss once and without timeout.
#[test]
fn lossy_and_reordering_paths_need_no_timeout_and_few_records() {
    let reordering = |route: Route| Route { reordering: 0.01, ..route };
    let losing = |loss| Route { loss, ..CLEAN };
    let cases = [
        ("no loss", CLEAN, 6, 2048),
        ("no loss, queue of a quarter BDP", Route { queue_bytes: 312_500, ..CLEAN }, 6, 1024),
        ("1 % reordering", reordering(CLEAN), 6, 2048),
        ("0.1 % loss", losing(0.001), 30, 256),
        ("1 % loss", losing(0.01), 60, 64),
        ("0.1 % loss, 1 % reordering", reordering(losing(0.001)), 30, 256),
        ("1 % loss, 1 % reordering", reordering(losing(0.01)), 60, 64),
    ];
    for (name, route, seconds, records_max) in cases {
        let seeds = if route.loss > 0.0 { 1..=3 } else { 1..=1 };
        for seed in seeds {
            let until = Time(seconds * 1_000_000);
            let report = Simulation { route, seed, until, ..RUN }.run();
            let rate = report.mbit_per_s(until.0);
            let most = predicted(route.loss, 0.05).min(route.mbit_per_s as f64);
            println!(
                "{name}, seed {seed}: {rate:.2} Mbit/s, {:.2} of the prediction, {report:?}",
                rate / most
            );
            let context = format!("{name}, seed {seed}: {report:?}");
            assert_eq!(report.timeouts, 0, "{context}");
            assert!(u64::from(report.recoveries) <= report.dropped + 8, "{context}");
            // Without reordering none; else those before reordering has been seen.
            let needless_max = if route.reordering > 0.0 { 8 * u64::from(MSS) } else { 0 };
            assert!(report.needless <= needless_max, "{context}");
            assert!(report.retransmitted >= report.needless);
            assert!(report.stall_us_max < 4 * route.rtt_us, "{context}");
            assert!(report.records_max <= records_max, "{context}");
        }
    }
}

/// Any combination of options finishes over a bad path, with each invariant kept all the time.
#[test]
fn bad_paths_deliver_everything_with_and_without_sack_and_timestamps() {
    let route =
        Route { loss: 0.08, reordering: 0.05, ack_loss: 0.05, mbit_per_s: 20, queue_bytes: 60_000, ..CLEAN };
    let mut timeouts = [0; 2];
    for seed in 0..24 {
        for (has_sack, has_timestamps) in [(false, false), (false, true), (true, false), (true, true)] {
            let algorithm = if seed % 2 == 0 { Algorithm::Cubic } else { Algorithm::NewReno };
            let until = Time(600_000_000);
            let total = 200_000;
            let run = Simulation { has_timestamps, has_sack, algorithm, route, seed, total, until };
            let report = run.run();
            assert_eq!(
                report.delivered, total,
                "seed {seed}, SACK {has_sack}, timestamps {has_timestamps}: {report:?}"
            );
            timeouts[usize::from(has_sack)] += report.timeouts;
        }
    }
    println!("timeouts without SACK {}, with SACK {}", timeouts[0], timeouts[1]);
    assert!(timeouts[1] * 2 < timeouts[0], "{timeouts:?}");
}
