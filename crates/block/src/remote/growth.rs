//! How many links to one unit are worth having.
//!
//! One link is the rule. What it carries ends where a send or receive buffer is full, or where the server takes no more of
//! one link; a further link has buffers of its own. None of these bounds is visible as a whole from one end, so a further
//! link is tried: where requests wait, the rate does not grow, and the path shows no sign of being full. As many links
//! stay as the rate is worth, in rates of one link.
//!
//! A path that is full has a queue, which the round-trip time shows, or loses packets, or its congestion window holds data
//! back. More links would then only take from the connections of others. A sender whose window travels as one burst has a
//! queue as well, which the burst is to itself; but between its bursts nothing moves.
//!
//! Pure: the input is a [`Sample`] for each window.

use std::time::Duration;

/// Most links of one endpoint.
pub const LINKS_MAX: usize = 8;

/// Number of the links of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    #[default]
    One,
    /// As many from the start, up to [`LINKS_MAX`]; fewer if the server refuses them.
    Fixed(usize),
    /// As many as are worth it, up to [`LINKS_MAX`].
    Auto,
}

/// Shorter round trips never need a second link: 4 MiB, the usual bound of a buffer, are 800 MB/s at this one.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(5);
/// Length of a window: round trips, and least time.
const WINDOW_ROUNDS: u32 = 4;
const WINDOW_MIN: Duration = Duration::from_millis(100);
/// Windows after the links of a trial have begun to serve, until their rate counts: TCP's slow start to 4 MiB takes nine
/// round trips. Then windows until the trial ends.
const SETTLE_WINDOWS: u32 = 2;
const TRIAL_WINDOWS: u32 = SETTLE_WINDOWS + 2;
/// A trial goes on for so many windows while the rate still rises, or is below this part of that before it: tgt writes to its
/// sockets one after the other and waits for each, so that the slow start of a new link holds up all others.
const TRIAL_WINDOWS_MAX: u32 = 20;
const HELD_UP: f64 = 0.9;
/// A rate that is higher by this factor than the one of the window before still grows.
const GROWS: f64 = 1.1;
/// Requests wait where so many times the bytes are outstanding that the path carries in a round trip.
const WAITING: f64 = 1.25;
/// Nothing has moved for this part of a round trip, and for longer than so many bytes take at the present rate, which one
/// send may have: a pause. Where pauses are this part of a window, the path is not full.
const PAUSE_ROUNDS: f64 = 0.125;
const PAUSE_BYTES: f64 = (512u64 << 10) as f64;
const PAUSES: f64 = 0.25;
/// After a loss it is not known for this time whether the congestion window is the bound.
const LOSS_MEMORY: Duration = Duration::from_secs(20);
/// Most bytes of one link on the path of which a buffer of usual size can be the bound: `tcp_rmem` is 6 MiB, `tcp_wmem` 4.
const USUAL_BYTES: f64 = (8u64 << 20) as f64;
/// A link is worth it if it brings this part of what one carries.
const WORTH: f64 = 0.1;
/// The first trial is for this rate in bytes per second, 1 Gbit/s; the next ones for twice the links.
const START_RATE: f64 = 125e6;
/// Windows of which the highest rate counts.
const RATES: usize = 10;
/// Time until a trial that has failed is made again; doubles up to the second.
const PAUSE_MIN: Duration = Duration::from_secs(15);
const PAUSE_MAX: Duration = REFUSED_PAUSE;
/// Time until a server that has refused a link is asked for one again.
const REFUSED_PAUSE: Duration = Duration::from_secs(600);

/// What was found at the end of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// The longest of the links' smoothed round-trip times; `None`: unknown, or no network.
    pub(super) round_trip: Option<Duration>,
    /// The shortest round-trip time of the path lately, without queues.
    pub(super) round_trip_least: Option<Duration>,
    /// Losses of all links so far.
    pub(super) losses: u64,
    /// The congestion window of a link holds data back.
    pub(super) is_congested: bool,
    /// A buffer of this end is known to be too small for the path.
    pub(super) is_short: bool,
    /// Bytes received and sent on the present links so far.
    pub(super) bytes: u64,
    /// Links that serve.
    pub(super) serving: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// `rate`: of the last window.
    Watch {
        rate: f64,
    },
    /// More than `from` links; one carried `one` bytes per second before. `best`: the highest rate since they have settled.
    Trial {
        from: usize,
        one: f64,
        windows: u32,
        best: f64,
    },
    Rest {
        until: Duration,
    },
}

#[derive(Debug)]
pub(super) struct Growth {
    links: Links,
    wanted: usize,
    phase: Phase,
    pause: Duration,
    /// The present window: its start, and the fewest bytes that were outstanding.
    since: Duration,
    least: u64,
    /// Since when nothing has moved, and the pauses of the window so far.
    moved_at: Duration,
    moved: u64,
    paused: Duration,
    /// Bytes per second of the last window.
    rate_last: f64,
    /// At the start of the window.
    bytes: u64,
    losses: u64,
    lost_at: Option<Duration>,
    round_trip: Duration,
    /// Bytes per second of the last windows, in no order; `next` is the oldest.
    rates: [f64; RATES],
    next: usize,
}

impl Growth {
    pub(super) fn new(links: Links, now: Duration) -> Self {
        let wanted = match links {
            Links::One | Links::Auto => 1,
            Links::Fixed(count) => count.clamp(1, LINKS_MAX),
        };
        Self {
            links,
            wanted,
            phase: Phase::Watch { rate: 0.0 },
            pause: PAUSE_MIN,
            since: now,
            least: 0,
            moved_at: now,
            moved: 0,
            paused: Duration::ZERO,
            rate_last: 0.0,
            bytes: 0,
            losses: 0,
            lost_at: None,
            round_trip: Duration::ZERO,
            rates: [START_RATE; RATES],
            next: 0,
        }
    }

    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Bytes per second that requests in flight should be enough for.
    pub(super) fn rate(&self) -> f64 {
        let of_trial = match self.phase {
            Phase::Trial { one, .. } => one * self.wanted as f64,
            Phase::Watch { .. } | Phase::Rest { .. } => 0.0,
        };
        self.rates.iter().copied().fold(of_trial, f64::max)
    }

    /// The server has refused a link, and has `left` others.
    pub(super) fn refused(&mut self, now: Duration, left: usize) {
        self.wanted = left.clamp(1, LINKS_MAX);
        self.phase = Phase::Rest { until: now + REFUSED_PAUSE };
    }

    /// Called whenever requests have ended.
    pub(super) fn on_outstanding(&mut self, bytes: u64) {
        self.least = self.least.min(bytes);
    }

    /// Called after events; `bytes` as [`Sample::bytes`].
    pub(super) fn on_bytes(&mut self, now: Duration, bytes: u64) {
        if std::mem::replace(&mut self.moved, bytes) == bytes {
            return;
        }
        let gap = now.saturating_sub(std::mem::replace(&mut self.moved_at, now));
        let least = (self.round_trip.as_secs_f64() * PAUSE_ROUNDS).max(PAUSE_BYTES / self.rate_last.max(1.0));
        if gap.as_secs_f64() > least {
            self.paused += gap;
        }
    }

    /// Whether the window ends: [`Self::on_window`] is to be called.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.links != Links::One
            && now.saturating_sub(self.since) >= (self.round_trip * WINDOW_ROUNDS).max(WINDOW_MIN)
    }

    /// Ends a window; `outstanding`: bytes of the requests that have not ended.
    pub(super) fn on_window(&mut self, now: Duration, outstanding: u64, sample: Sample) {
        let passed = now.saturating_sub(self.since).as_secs_f64();
        let rate = sample.bytes.saturating_sub(self.bytes) as f64 / passed.max(1e-6);
        let least = std::mem::replace(&mut self.least, outstanding);
        let has_pauses = std::mem::take(&mut self.paused).as_secs_f64() > PAUSES * passed;
        self.rate_last = rate;
        (self.since, self.bytes) = (now, sample.bytes);
        // A counter begins anew with each connection.
        if std::mem::replace(&mut self.losses, sample.losses) != sample.losses {
            self.lost_at = Some(now);
        }
        self.round_trip = sample.round_trip.unwrap_or_default();
        // A submitter that pauses proves nothing.
        if self.is_waiting(rate, least) || rate > self.rate() {
            self.rates[self.next] = rate;
            self.next = (self.next + 1) % RATES;
        }
        match (self.links, self.phase) {
            (_, Phase::Rest { until }) if now < until => {}
            (Links::One, _) => {}
            (Links::Fixed(count), _) => self.wanted = count.clamp(1, LINKS_MAX),
            (Links::Auto, Phase::Rest { .. }) => self.phase = Phase::Watch { rate },
            (Links::Auto, Phase::Watch { rate: before }) => {
                self.phase = Phase::Watch { rate };
                let is_bound = rate > 0.0 && (rate < before * GROWS || sample.is_short);
                if is_bound && self.is_waiting(rate, least) && !self.is_full(now, sample, has_pauses) {
                    self.try_more(rate);
                }
            }
            (Links::Auto, Phase::Trial { from, one, windows, best }) => {
                let windows = if sample.serving >= self.wanted { windows + 1 } else { 0 };
                let is_rising = windows > SETTLE_WINDOWS + 1 && rate > best * GROWS;
                let best = if windows > SETTLE_WINDOWS { best.max(rate) } else { 0.0 };
                self.phase = Phase::Trial { from, one, windows, best };
                let is_settling =
                    windows < TRIAL_WINDOWS_MAX && (is_rising || best < HELD_UP * one * from as f64);
                self.judge(now, self.is_waiting(rate, least), is_settling);
            }
        }
    }

    /// Whether requests waited, in a window in which at least so many bytes were outstanding: the submitter is not the
    /// bound.
    fn is_waiting(&self, rate: f64, least: u64) -> bool {
        least as f64 >= WAITING * rate * self.round_trip.as_secs_f64()
    }

    /// Whether the path may be full, or is too short for a second link.
    fn is_full(&self, now: Duration, sample: Sample, has_pauses: bool) -> bool {
        let least = sample.round_trip_least.unwrap_or_default();
        let is_queued = io::is_queued(self.round_trip, least) && !has_pauses;
        let has_lost = self.lost_at.is_some_and(|at| now < at + LOSS_MEMORY);
        least < ROUND_TRIP_MIN || is_queued || has_lost || sample.is_congested
    }

    fn try_more(&mut self, rate: f64) {
        let one = rate / self.wanted as f64;
        if self.wanted == LINKS_MAX || one * self.round_trip.as_secs_f64() > USUAL_BYTES {
            return;
        }
        let of_start = (START_RATE / one).ceil() as usize;
        self.phase = Phase::Trial { from: self.wanted, one, windows: 0, best: 0.0 };
        self.wanted = of_start.max(self.wanted * 2).min(LINKS_MAX);
    }

    /// Ends a trial whose result is clear: as many links stay as carry the rate.
    fn judge(&mut self, now: Duration, is_waiting: bool, is_settling: bool) {
        let Phase::Trial { from, one, windows, best } = self.phase else { return };
        let tried = self.wanted;
        let worth = ((best / one - WORTH).ceil() as usize).clamp(from, tried);
        // A submitter that pauses proves nothing.
        let is_over = windows >= TRIAL_WINDOWS && !is_settling && (is_waiting || worth > from);
        if worth == tried {
            self.pause = PAUSE_MIN;
            self.phase = Phase::Watch { rate: best };
        } else if is_over {
            self.wanted = worth;
            self.phase = Phase::Rest { until: now + self.pause };
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        } else {
            return;
        }
        tracing::debug!(from, tried, stay = worth, best, one, "links");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A path, and a submitter that keeps `submitted` bytes in flight on it.
    #[derive(Clone, Copy)]
    struct Bench {
        round_trip: Duration,
        /// Bytes per second of the path, and those that a link has in flight at most.
        rate: f64,
        link_bytes: f64,
        submitted: u64,
        /// A full path has a queue of this length.
        queue: Duration,
        /// What is in flight travels as one burst, which has that queue as well.
        is_burst: bool,
        is_congested: bool,
        losses_per_window: u64,
        /// Windows in which a new link, one after the other, holds up all others.
        held_up: u32,
        /// Links that the server grants.
        granted: usize,
    }

    const PATH: Bench = Bench {
        round_trip: Duration::from_millis(100),
        rate: 117e6,
        link_bytes: 4e6,
        submitted: 64 << 20,
        queue: Duration::from_millis(20),
        is_burst: false,
        is_congested: false,
        losses_per_window: 0,
        held_up: 0,
        granted: LINKS_MAX,
    };

    impl Bench {
        /// The number of links in each window, and the time until half of the last rate was reached.
        fn run(self, links: Links, windows: usize) -> (Vec<usize>, Duration) {
            let mut growth = Growth::new(links, Duration::ZERO);
            let (mut now, mut bytes, mut losses) = (Duration::ZERO, 0.0, 0);
            let (mut counts, mut rates, mut started) = (Vec::new(), Vec::new(), [0u32; LINKS_MAX]);
            for _ in 0..windows {
                if growth.wanted() > self.granted {
                    growth.refused(now, self.granted);
                }
                let window = (growth.round_trip * WINDOW_ROUNDS).max(WINDOW_MIN);
                now += window;
                let mut flying = 0.0;
                for (link, rounds) in started.iter_mut().enumerate() {
                    *rounds = if link < growth.wanted() { *rounds + WINDOW_ROUNDS } else { 0 };
                    // Slow start from ten segments; the last round trip counts for the window.
                    flying += self.link_bytes.min(14e3 * 2f64.powi(*rounds as i32)) * f64::from(*rounds > 0);
                }
                // Of a new link that the server waits for.
                let is_held_up =
                    started[1..].iter().any(|rounds| (1..=self.held_up * WINDOW_ROUNDS).contains(rounds));
                let flying = if is_held_up { 2e5 } else { flying.min(self.submitted as f64) };
                let reached = (flying / self.round_trip.as_secs_f64()).min(self.rate);
                let is_full = self.is_burst || reached >= self.rate;
                bytes += reached * window.as_secs_f64();
                losses += self.losses_per_window;
                growth.on_outstanding(self.submitted);
                self.travel(&mut growth, now, window, (flying, bytes));
                assert!(growth.is_due(now));
                growth.on_window(
                    now,
                    self.submitted,
                    Sample {
                        round_trip: Some(self.round_trip + if is_full { self.queue } else { Duration::ZERO }),
                        round_trip_least: Some(self.round_trip),
                        losses,
                        is_congested: self.is_congested,
                        is_short: false,
                        bytes: bytes as u64,
                        serving: growth.wanted(),
                    },
                );
                counts.push(growth.wanted());
                rates.push(reached);
            }
            let last = rates.last().copied().unwrap_or_default();
            let half = rates.iter().position(|rate| *rate >= last / 2.0).unwrap_or_default() as u32;
            (counts, self.round_trip * WINDOW_ROUNDS * half)
        }

        /// The bytes of a window arrive: all the time, or in bursts of `flying` at the rate of the path.
        fn travel(self, growth: &mut Growth, end: Duration, window: Duration, (flying, bytes): (f64, f64)) {
            let busy = if self.is_burst { flying / self.rate } else { self.round_trip.as_secs_f64() };
            let steps = window.as_millis() as u32;
            for step in 1..=steps {
                let at = end - window + MS * step;
                if at.as_secs_f64() % self.round_trip.as_secs_f64() < busy {
                    growth.on_bytes(at, bytes as u64 - u64::from(steps - step));
                }
            }
        }

        fn most(self) -> usize {
            self.run(Links::Auto, 400).0.into_iter().max().unwrap_or_default()
        }
    }

    #[test]
    fn as_many_links_stay_as_the_path_is_worth() {
        for (path, expected) in [
            (PATH, 3),
            (Bench { rate: 1e9, ..PATH }, 8),
            (Bench { rate: 60e6, ..PATH }, 2),
            (Bench { link_bytes: 2e6, rate: 40e6, ..PATH }, 2),
            (Bench { round_trip: MS * 200, link_bytes: 4e6, rate: 1e9, submitted: 128 << 20, ..PATH }, 8),
            (Bench { is_burst: true, ..PATH }, 3),
            (Bench { held_up: 9, ..PATH }, 3),
            (Bench { granted: 2, ..PATH }, 2),
            (Bench { granted: 1, ..PATH }, 1),
        ] {
            let (counts, _) = path.run(Links::Auto, 40);
            assert_eq!(counts.last(), Some(&expected), "{counts:?}");
        }
    }

    #[test]
    fn a_path_that_one_link_fills_is_left_alone() {
        for (path, why) in [
            (Bench { round_trip: MS, ..PATH }, "short"),
            (Bench { rate: 30e6, ..PATH }, "its queue shows that it is full"),
            (Bench { rate: 30e6, is_burst: true, ..PATH }, "a burst lasts until the next one"),
            (Bench { is_congested: true, ..PATH }, "the congestion window is the bound"),
            (Bench { losses_per_window: 1, ..PATH }, "it loses packets"),
            (Bench { submitted: 3 << 20, ..PATH }, "the submitter has no more"),
            (Bench { link_bytes: 10e6, ..PATH }, "no buffer of usual size is the bound"),
        ] {
            assert_eq!(path.most(), 1, "{why}");
        }
    }

    #[test]
    fn a_trial_in_vain_ends_and_comes_again_ever_later() {
        // Full without a sign: the rate of a slow disk.
        let (counts, _) = Bench { rate: 30e6, queue: Duration::ZERO, ..PATH }.run(Links::Auto, 4000);
        let mut trials = Vec::new();
        for (index, pair) in counts.windows(2).enumerate() {
            if pair[0] == 1 && pair[1] > 1 {
                trials.push(index);
            }
        }
        let waits: Vec<usize> = trials.windows(2).map(|pair| (pair[1] - pair[0]) * 4 / 10).collect();
        assert!(waits.len() >= 4 && waits.is_sorted(), "{waits:?} s");
        assert!((15..19).contains(&waits[0]) && waits.last() <= Some(&610), "{waits:?} s");
        assert!(counts.iter().filter(|count| **count > 1).count() <= 4 * trials.len(), "each ends soon");
    }

    #[test]
    fn bytes_in_flight_follow_the_rate_of_all_links_and_are_enough_for_a_trial() {
        let mut growth = Growth::new(Links::Auto, Duration::ZERO);
        let mut sample = Sample {
            round_trip: Some(MS * 100),
            round_trip_least: Some(MS * 100),
            losses: 0,
            is_congested: false,
            is_short: false,
            bytes: 0,
            serving: 1,
        };
        let mut rates = vec![growth.rate()];
        for window in 1..=RATES as u32 + 4 {
            sample.bytes += 8_000_000;
            sample.serving = growth.wanted();
            growth.on_window(MS * 400 * window, 64 << 20, sample);
            rates.push(growth.rate());
        }
        assert_eq!(rates[0], START_RATE, "until it is measured");
        assert_eq!(rates[3], 140e6, "seven links, each with the rate of the one");
        assert_eq!(rates.last(), Some(&20e6), "what was reached");
    }

    #[test]
    fn the_first_trial_is_over_after_thirty_round_trips() {
        let (counts, half) = PATH.run(Links::Auto, 40);
        let at = counts.iter().rposition(|count| *count != 3).unwrap() + 1;
        assert!(at * 4 <= 30, "{counts:?}");
        assert!(half <= MS * 2000, "{half:?}");
    }

    #[test]
    fn a_number_that_was_asked_for_is_kept_and_bounded() {
        for (links, granted, expected) in [
            (Links::One, 8, 1),
            (Links::Fixed(0), 8, 1),
            (Links::Fixed(4), 8, 4),
            (Links::Fixed(99), 8, LINKS_MAX),
            (Links::Fixed(4), 2, 2),
        ] {
            let path = Bench { granted, ..PATH };
            if links == Links::One {
                assert!(!Growth::new(links, Duration::ZERO).is_due(MS * 1000), "nothing is measured");
                continue;
            }
            let (counts, _) = path.run(links, 20);
            assert_eq!(counts.last(), Some(&expected), "{links:?}");
        }
    }

    #[test]
    fn a_server_that_refused_is_asked_again_after_its_pause() {
        let mut growth = Growth::new(Links::Fixed(4), Duration::ZERO);
        growth.refused(MS, 2);
        let sample = Sample {
            round_trip: None,
            round_trip_least: None,
            losses: 0,
            is_congested: false,
            is_short: false,
            bytes: 0,
            serving: 2,
        };
        growth.on_window(REFUSED_PAUSE, 0, sample);
        assert_eq!(growth.wanted(), 2);
        growth.on_window(REFUSED_PAUSE + MS, 0, sample);
        assert_eq!(growth.wanted(), 4);
    }
}
