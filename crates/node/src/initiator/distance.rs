//! How many bytes are worth having in flight on the path to a target.
//!
//! A path of rate R and round-trip time T holds R x T bytes. R is the highest rate of the last [`WINDOWS`] round trips,
//! as BBR estimates it. After a loss all that has arrived behind the gap ends at once, up to a round trip after the
//! repair. So a window with losses lasts until [`WHOLE_ROUNDS`] have none, or for [`LOSSY_ROUNDS`], in which that is no
//! higher rate. Of writes the kernel knows what has arrived behind a gap (of reads it does not: in a virtual machine it
//! counts a frame of 64 KiB as one segment).
//!
//! Twice as much is worth having: then R can double in each round trip, as TCP's window does in slow start, and where more
//! bytes only wait longer R does not grow and the bound stays. Where the path loses segments it is three times: a gap
//! takes a round trip to fill, in which nothing ends. A write beyond the first burst takes a round trip for each round of
//! R2Ts before its data travels, and is worth as many times more.
//!
//! T is the shortest round-trip time of the last [`BASE_WINDOWS`] windows. A longer one is that of a queue, which more
//! bytes would only lengthen; unless bytes arrive more slowly than they did although all are on the path: then the path
//! has become longer.
//!
//! Until R is known it is [`START_RATE`]: a path is then filled from the first round trip on, whether its target takes
//! that much or not.
//!
//! Pure: the input is when commands begin and end, and what the kernel knows of the path.

use std::time::Duration;

use io::Path;
use iscsi::params::Negotiated;

/// Rate of a path that was not measured yet, bytes per second: 1 Gbit/s.
const START_RATE: f64 = 125e6;
/// Measured windows of which the highest rate counts.
const WINDOWS: usize = 10;
/// Windows after which the round-trip time of a path without queues is taken anew.
const BASE_WINDOWS: u32 = 64;
/// Parts of R and T beyond which a path may have become longer, and bytes in flight beyond rate x round-trip time where
/// some of them wait elsewhere.
const SLOWER: f64 = 0.9;
const LONGER: f64 = 1.25;
const ELSEWHERE: f64 = 1.5;
/// Bytes worth having in flight, in R x T: on a path without losses, and for so many round trips after one: [`BASE_WINDOWS`].
const WORTH: f64 = 2.0;
const WORTH_LOSSY: f64 = 3.0;
/// Round trips without losses that end a window with losses, and its most round trips.
const WHOLE_ROUNDS: u32 = 2;
const LOSSY_ROUNDS: u32 = 8;
/// Least length of a window, on paths with a shorter round trip.
const WINDOW_MIN: Duration = Duration::from_millis(20);

/// The most that all sessions of an endpoint had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Most {
    /// Bytes of commands in flight.
    pub(super) in_flight: u64,
    /// Rounds of R2Ts of one write.
    pub(super) r2t_rounds: u32,
}

/// Commands in flight and the rates of one session.
#[derive(Debug)]
pub(super) struct Distance {
    round_trip: Duration,
    /// The round-trip time without queues, and for how many windows.
    base: Duration,
    base_windows: u32,
    /// Round trips since the last loss.
    rounds_whole: u32,
    /// Bytes per second of a session that was not measured.
    start_rate: f64,
    /// Bytes per second of the last windows, in no order; `next` is the oldest.
    rates: [f64; WINDOWS],
    next: usize,
    /// Bytes of each command in flight, and whether it is a write, by the number of its task.
    commands: Vec<(u32, bool)>,
    in_flight: u64,
    /// Commands in flight.
    count: u32,
    /// Rates that were measured.
    measured: usize,
    most: Most,
    /// The present window: its start, when it was last looked at and how often, the bytes of reads and writes that ended in
    /// it, those that arrived at the peer, and the fewest that were in flight.
    since: Duration,
    looked_at: Duration,
    looks: u32,
    read: u64,
    written: u64,
    delivered: u64,
    least: u64,
    /// Round trips of the last write, the one with its data included.
    write_rounds: u32,
}

impl Distance {
    /// A new session at `now`; `most` is what earlier ones had.
    pub(super) fn new(now: Duration, most: Most) -> Self {
        Self::starting(now, most, START_RATE)
    }

    /// Of a session beside this one, on the same path: at first it is taken to be as fast as this one.
    pub(super) fn of_sibling(&self) -> Self {
        Self::starting(Duration::ZERO, Most::default(), self.rate())
    }

    /// Of the session that begins at `now` after this one.
    pub(super) fn of_next(&self, now: Duration) -> Self {
        Self::starting(now, self.most, self.start_rate)
    }

    fn starting(now: Duration, most: Most, start_rate: f64) -> Self {
        Self {
            round_trip: Duration::ZERO,
            base: Duration::ZERO,
            base_windows: 0,
            rounds_whole: BASE_WINDOWS,
            start_rate,
            rates: [start_rate; WINDOWS],
            next: 0,
            commands: Vec::new(),
            in_flight: 0,
            count: 0,
            measured: 0,
            most,
            since: now,
            looked_at: now,
            looks: 0,
            read: 0,
            written: 0,
            delivered: 0,
            least: 0,
            write_rounds: 1,
        }
    }

    /// A command of `bytes` begins; `write_rounds`: the round trips that it takes, if it is a write.
    pub(super) fn on_submit(&mut self, task: usize, bytes: u32, write_rounds: Option<u32>) {
        if self.commands.len() <= task {
            self.commands.resize(task + 1, (0, false));
        }
        self.commands[task] = (bytes, write_rounds.is_some());
        self.in_flight += u64::from(bytes);
        self.count += 1;
        self.write_rounds = write_rounds.unwrap_or(self.write_rounds);
        let Most { in_flight, r2t_rounds } = self.most;
        self.most = Most {
            in_flight: in_flight.max(self.in_flight),
            r2t_rounds: r2t_rounds.max(write_rounds.map_or(0, |rounds| rounds - 1)),
        };
    }

    /// A command ends, after so many bytes.
    pub(super) fn on_end(&mut self, task: usize, moved: u32) {
        let (bytes, is_write) = self.commands.get_mut(task).map_or((0, false), std::mem::take);
        self.in_flight -= u64::from(bytes);
        self.count = self.count.saturating_sub(1);
        self.least = self.least.min(self.in_flight);
        let ended = if is_write { &mut self.written } else { &mut self.read };
        *ended += u64::from(moved);
    }

    /// Whether a round trip ends: [`Self::on_round`] is to be called.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.looked_at) >= self.round_trip.max(WINDOW_MIN)
    }

    /// Ends a round trip, and the window with it unless something was lost. `paths`: the kernel's state now, and one round
    /// trip ago on the same connection.
    pub(super) fn on_round(&mut self, now: Duration, paths: [Option<Path>; 2]) {
        let passed = now.saturating_sub(self.since).as_secs_f64();
        self.round_trip = paths[0].unwrap_or_default().round_trip;
        (self.looked_at, self.looks) = (now, self.looks + 1);
        let mut has_lost = false;
        if let [Some(path), Some(before)] = paths {
            has_lost = path.has_lost_since(&before);
            self.delivered += path.delivered_bytes.saturating_sub(before.delivered_bytes);
        }
        self.rounds_whole = if has_lost { 0 } else { self.rounds_whole.saturating_add(1) };
        if self.rounds_whole < WHOLE_ROUNDS && self.looks < LOSSY_ROUNDS {
            return;
        }
        let written = if self.delivered > 0 { self.delivered } else { self.written };
        let is_longer = passed > 0.0 && self.measured(self.read.max(written) as f64 / passed);
        self.base_windows += 1;
        if is_longer
            || self.round_trip <= self.base
            || self.base_windows > BASE_WINDOWS
            || self.base.is_zero()
        {
            (self.base, self.base_windows) = (self.round_trip, 0);
        }
        (self.since, self.looks, self.least) = (now, 0, self.in_flight);
        (self.read, self.written, self.delivered) = (0, 0, 0);
    }

    /// Notes the rate of a window. Returns whether the path has become longer.
    fn measured(&mut self, rate: f64) -> bool {
        // With few bytes in flight the submitter was the limit, and the path's rate is at least as high.
        let is_path = self.least >= self.worth(1) / 2;
        let all_on_path = self.least as f64 <= ELSEWHERE * rate * self.round_trip.as_secs_f64();
        let is_slower = rate < SLOWER * self.rate();
        if is_path || rate > self.rate() {
            self.rates[self.next] = rate;
            self.next = (self.next + 1) % WINDOWS;
            self.measured += 1;
        }
        is_path && all_on_path && is_slower && self.round_trip > self.base.mul_f64(LONGER)
    }

    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// The median of the last rates that were measured; `None` until one was.
    pub(super) fn measured_rate(&self) -> Option<f64> {
        let mut rates = self.rates[..self.measured.min(WINDOWS)].to_vec();
        rates.sort_unstable_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }

    /// Commands in flight.
    pub(super) fn commands(&self) -> u32 {
        self.count
    }

    pub(super) fn most(&self) -> Most {
        self.most
    }

    fn worth(&self, rounds: u32) -> u64 {
        let times = if self.rounds_whole < BASE_WINDOWS { WORTH_LOSSY } else { WORTH };
        (times * self.rate() * self.base.as_secs_f64() * f64::from(rounds)) as u64
    }

    /// Bytes worth having in flight in reads.
    pub(super) fn of_reads(&self) -> u64 {
        self.worth(1)
    }

    /// Bytes worth having in flight in writes as long as the last one.
    pub(super) fn of_writes(&self) -> u64 {
        self.worth(self.write_rounds)
    }
}

/// Round trips of a write of `bytes`: one with the data that is sent unasked, and one for each round of R2Ts (RFC 7143
/// 11.8).
pub(super) fn write_rounds(keys: &Negotiated, bytes: u32) -> u32 {
    let unsolicited = match (keys.initial_r2t, keys.immediate_data) {
        (false, _) => keys.first_burst_length,
        (true, true) => keys.first_burst_length.min(keys.max_send_data_segment_length),
        (true, false) => 0,
    };
    let round = keys.max_burst_length.saturating_mul(u32::from(keys.max_outstanding_r2t.max(1)));
    1 + bytes.saturating_sub(unsolicited).div_ceil(round.max(1))
}

#[cfg(test)]
mod tests {
    use iscsi::params::SessionType;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const COMMAND: u32 = 1 << 20;

    fn at(round_trip: Duration) -> Path {
        Path { round_trip, round_trip_least: round_trip, ..Path::default() }
    }

    /// A round trip without losses.
    fn round(round_trip: Duration) -> [Option<Path>; 2] {
        [Some(at(round_trip)); 2]
    }

    /// A path with a round-trip time, a bottleneck with a rate in bytes per second, and a submitter that keeps in flight
    /// what is worth it, at least four commands. Returns the rate of each round trip.
    fn run(round_trip: Duration, rate: f64, rounds: usize, bound: u64) -> Vec<f64> {
        let mut distance = Distance::new(Duration::ZERO, Most::default());
        distance.on_round(Duration::ZERO, round(round_trip));
        let (mut now, mut free_at) = (Duration::ZERO, 0.0f64);
        let mut flying = std::collections::VecDeque::new();
        let (mut rates, mut task) = (Vec::new(), 0);
        for _ in 0..rounds {
            let end = now + round_trip;
            let mut bytes = 0;
            while now < end {
                while (flying.len() as u64) < (distance.of_reads().min(bound) / u64::from(COMMAND)).max(4) {
                    free_at = free_at.max(now.as_secs_f64()) + f64::from(COMMAND) / rate;
                    flying.push_back((task, free_at + round_trip.as_secs_f64()));
                    distance.on_submit(task, COMMAND, None);
                    task = (task + 1) % 1024;
                }
                let (task, at) = flying.pop_front().expect("just submitted");
                now = Duration::from_secs_f64(at);
                distance.on_end(task, COMMAND);
                bytes += u64::from(COMMAND);
                if distance.is_due(now) {
                    distance.on_round(now, round(round_trip));
                }
            }
            rates.push(bytes as f64 / round_trip.as_secs_f64());
        }
        rates
    }

    #[test]
    fn a_path_is_filled_after_the_first_round_trip_and_stays_filled() {
        for (round_trip, rate) in [(50, 117e6), (200, 117e6), (10, 1.2e9), (100, 580e6)] {
            let rates = run(MS * round_trip, rate, 40, u64::MAX);
            let late = rates[10..].iter().sum::<f64>() / 30.0;
            assert!(late > 0.97 * rate, "{round_trip} ms: {late:e} of {rate:e}");
        }
    }

    #[test]
    fn on_a_slow_path_hardly_more_is_in_flight_than_it_holds() {
        let mut distance = Distance::new(Duration::ZERO, Most::default());
        distance.on_round(Duration::ZERO, round(MS * 50));
        assert_eq!(distance.of_reads(), 12_500_000, "until it is measured");
        for window in 1..=20u32 {
            for task in 0..16 {
                distance.on_submit(task, COMMAND, None);
            }
            // 1 MiB in a round trip: 21 MB/s.
            distance.on_end(0, COMMAND);
            distance.on_round(MS * 50 * window, round(MS * 50));
            distance.in_flight = 16 << 20;
            distance.least = distance.in_flight;
        }
        assert_eq!(distance.of_reads(), 2 << 20);
    }

    /// Round trips of a path, of which the submitter keeps what is worth it in flight; a queue of `queue` bytes precedes the
    /// bottleneck. Returns the bytes in flight and the rate in each.
    fn fill(
        distance: &mut Distance,
        now: &mut Duration,
        (round_trip, rate, queue): (Duration, f64, f64),
        rounds: usize,
    ) -> Vec<(u64, f64)> {
        (0..rounds)
            .map(|_| {
                let bdp = rate * round_trip.as_secs_f64();
                let flying = distance.of_reads();
                (distance.in_flight, distance.least) = (flying, flying);
                let on_path = (flying as f64).min(bdp + queue);
                let smoothed = round_trip.mul_f64((on_path / bdp).max(1.0));
                let reached = on_path / smoothed.as_secs_f64();
                *now += smoothed;
                distance.read = (reached * smoothed.as_secs_f64()) as u64;
                distance.on_round(*now, round(smoothed));
                (flying, reached)
            })
            .collect()
    }

    #[test]
    fn a_queue_is_not_filled_further() {
        let mut distance = Distance::new(Duration::ZERO, Most::default());
        distance.on_round(Duration::ZERO, round(MS * 200));
        let mut now = Duration::ZERO;
        let rounds = fill(&mut distance, &mut now, (MS * 200, 117e6, 1e9), 60);
        let most = rounds.iter().map(|(bytes, _)| *bytes).max().unwrap();
        assert!(most <= 50_000_000, "{most} of 2 x 23.4 MB: {rounds:?}");
        assert!(rounds.iter().all(|(_, rate)| *rate > 116e6), "{rounds:?}");
    }

    #[test]
    fn a_path_that_becomes_longer_or_shorter_is_filled_again() {
        let mut distance = Distance::new(Duration::ZERO, Most::default());
        distance.on_round(Duration::ZERO, round(MS * 10));
        let mut now = Duration::ZERO;
        for round_trip in [10, 200, 10] {
            let rounds = fill(&mut distance, &mut now, (MS * round_trip, 117e6, 2e6), 40);
            assert!(rounds[3..].iter().all(|(_, rate)| *rate > 116e6), "{round_trip} ms: {rounds:?}");
        }
    }

    #[test]
    fn a_submitter_that_pauses_says_nothing_of_the_path() {
        let mut distance = Distance::new(Duration::ZERO, Most::default());
        distance.on_round(Duration::ZERO, round(MS * 50));
        for window in 1..=20u32 {
            distance.on_submit(0, 4096, None);
            distance.on_end(0, 4096);
            distance.on_round(MS * 50 * window, round(MS * 50));
        }
        assert_eq!(distance.of_reads(), 12_500_000);
    }

    #[test]
    fn what_a_session_had_most_is_kept_by_the_next() {
        let mut distance = Distance::new(Duration::ZERO, Most::default());
        distance.on_round(Duration::ZERO, round(MS * 50));
        assert_eq!(distance.measured_rate(), None);
        for (task, rounds) in [(0, None), (1, Some(1)), (2, Some(3))] {
            distance.on_submit(task, COMMAND, rounds);
        }
        assert_eq!(distance.commands(), 3);
        (0..3).for_each(|task| distance.on_end(task, COMMAND));
        assert_eq!(distance.commands(), 0);
        distance.on_round(MS * 10, round(MS * 50));
        assert_eq!(distance.measured_rate(), Some(f64::from(2 * COMMAND) / 0.01), "of the busier direction");
        let most = Most { in_flight: 3 << 20, r2t_rounds: 2 };
        let mut next = Distance::new(MS * 100, distance.most());
        next.on_submit(0, COMMAND, Some(1));
        assert_eq!((next.most(), next.measured_rate()), (most, None));
    }

    #[test]
    fn a_session_beside_another_begins_at_its_rate() {
        let mut distance = Distance::new(Duration::ZERO, Most::default());
        distance.on_round(Duration::ZERO, round(MS * 50));
        for window in 1..=20u32 {
            distance.on_submit(0, COMMAND, None);
            distance.on_end(0, COMMAND);
            (distance.in_flight, distance.least) = (16 << 20, 16 << 20);
            distance.on_round(MS * 50 * window, round(MS * 50));
        }
        let mut beside = distance.of_sibling().of_next(MS);
        beside.on_round(MS, round(MS * 50));
        assert_eq!((distance.of_reads(), beside.of_reads()), (2 << 20, 2 << 20));
        let mut next = distance.of_next(MS);
        next.on_round(MS, round(MS * 50));
        assert_eq!(next.of_reads(), 12_500_000, "after a loss the path may be another one");
    }

    #[test]
    fn what_arrives_behind_a_gap_is_no_higher_rate() {
        for (lossy, why) in
            [(2, "a gap for two round trips of three"), (LOSSY_ROUNDS + 1, "losses all the time")]
        {
            let mut distance = Distance::new(Duration::ZERO, Most::default());
            distance.on_round(Duration::ZERO, round(MS * 50));
            for round in 1..=90u32 {
                // The path carries 5 MB in each round trip. All of three end when the gap is filled.
                (0..15).filter(|_| round % 3 == 0).for_each(|_| {
                    distance.on_submit(0, 1_000_000, None);
                    distance.on_end(0, 1_000_000);
                });
                (distance.in_flight, distance.least) = (16 << 20, 16 << 20);
                let lost = u32::from(round % 3 != 0 || lossy > 2);
                let before = at(MS * 50);
                let path = Path { out_of_order: lost, ..before };
                distance.on_round(MS * 50 * round, [Some(path), Some(before)]);
            }
            assert!(
                (15_000_000..=18_000_000).contains(&distance.of_reads()),
                "{why}: {}",
                distance.of_reads()
            );
        }
    }

    #[test]
    fn of_writes_what_the_peer_has_received_counts() {
        let mut distance = Distance::new(Duration::ZERO, Most::default());
        distance.on_round(Duration::ZERO, round(MS * 50));
        for number in 1..=20u32 {
            // Commands end in lumps, each third round trip.
            (0..15).filter(|_| number % 3 == 0).for_each(|_| {
                distance.on_submit(0, 1_000_000, Some(1));
                distance.on_end(0, 1_000_000);
            });
            (distance.in_flight, distance.least) = (16 << 20, 16 << 20);
            let path = Path { delivered_bytes: 5_000_000, ..at(MS * 50) };
            distance.on_round(MS * 50 * number, [Some(path), Some(at(MS * 50))]);
        }
        assert_eq!(distance.of_writes(), 10_000_000);
    }

    #[test]
    fn without_a_network_nothing_is_worth_more() {
        let mut distance = Distance::new(Duration::ZERO, Most::default());
        distance.on_round(MS, [None; 2]);
        assert_eq!((distance.of_reads(), distance.of_writes()), (0, 0));
    }

    #[test]
    fn round_trips_of_a_write_rfc_7143_11_8() {
        let defaults = Negotiated::defaults(SessionType::Normal);
        let keys = |initial_r2t, immediate_data, first, burst, r2ts| Negotiated {
            initial_r2t,
            immediate_data,
            first_burst_length: first,
            max_burst_length: burst,
            max_outstanding_r2t: r2ts,
            max_send_data_segment_length: 8192,
            ..defaults
        };
        for (keys, bytes, rounds) in [
            (keys(true, true, 65_536, 262_144, 1), 4096, 1),
            (keys(true, true, 65_536, 262_144, 1), 4 << 20, 17),
            (keys(true, false, 65_536, 262_144, 1), 4096, 2),
            (keys(false, true, 262_144, 16 << 20, 16), 1 << 20, 2),
            (keys(false, true, 262_144, 262_144, 1), 256 << 10, 1),
            (keys(false, true, 0, 0, 0), 512, 513),
        ] {
            assert_eq!(write_rounds(&keys, bytes), rounds, "{keys:?}, {bytes} bytes");
        }
    }
}
