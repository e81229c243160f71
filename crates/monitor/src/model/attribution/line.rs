//! The rate of the narrowest link, from bytes that certainly waited for it.

use super::values::Values;

/// Least bytes, and packets, of a run that counts as a measurement.
const RUN_BYTES_MIN: u64 = 24_000;
const RUN_STEPS_MIN: u32 = 3;
/// A run is split into measurements of this size.
const RUN_BYTES: u64 = 256 << 10;
/// Packets whose time per byte differs by more than this are not of one run.
const UNEVEN: f64 = 2.5;
/// Shorter pauses may be those of the capturing machine.
const PAUSE_NS: u64 = 50_000;
/// Bytes that have to be measured before the rate is used.
const KNOWN_BYTES_MIN: u64 = 96_000;
/// Arrivals this many times as fast as their acknowledgements come in batches.
const BATCHED: f64 = 2.0;
/// Delays make a rate of arrivals or of a burst too low, nothing makes it too high: the upper part counts.
const UPPER: f64 = 0.85;

/// What is sent within this time is sent at once.
const BURST_NS: u64 = 100_000;
/// Shorter times on the link drown in the delays of the machines.
const LATE_NS_MIN: u64 = 500_000;
/// The delays of a peer, divided by fewer bytes, would be taken for a slow link.
const BURST_BYTES_MIN: u64 = 8 << 10;

/// A run of bytes that passed without a pause.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    bytes: u64,
    ns: u64,
    steps: u32,
}

/// Rates of runs, weighted by bytes, in KiB per second.
#[derive(Debug)]
struct Rates {
    seen: Values,
    run: Run,
    bytes: u64,
    rate: Option<f64>,
    quantile: f64,
}

impl Rates {
    fn new(quantile: f64) -> Self {
        Self { seen: Values::new(), run: Run::default(), bytes: 0, rate: None, quantile }
    }

    fn step(&mut self, bytes: u64, ns: u64) {
        self.run.bytes += bytes;
        self.run.ns += ns;
        self.run.steps += 1;
        if self.run.bytes >= RUN_BYTES {
            self.end();
        }
    }

    /// A pause ends a run, the rate of which is even.
    fn even_step(&mut self, bytes: u64, ns: u64) {
        let run = self.run;
        if run.steps > 0 {
            let (of_run, of_step) =
                (run.ns.max(1) as f64 / run.bytes.max(1) as f64, ns as f64 / bytes.max(1) as f64);
            if of_step > UNEVEN * of_run && ns > PAUSE_NS {
                self.end();
                return;
            }
            if of_step * UNEVEN < of_run && run.steps < RUN_STEPS_MIN {
                self.run = Run::default();
            }
        }
        self.step(bytes, ns);
        if self.run.bytes >= RUN_BYTES / 4 && self.run.steps >= RUN_STEPS_MIN {
            self.end();
        }
    }

    fn end(&mut self) {
        let run = std::mem::take(&mut self.run);
        if run.bytes < RUN_BYTES_MIN || run.steps < RUN_STEPS_MIN || run.ns == 0 {
            return;
        }
        let kib_per_s = run.bytes as f64 / 1024.0 / (run.ns as f64 / 1e9);
        self.seen.add(kib_per_s as u64, run.bytes / 4096 + 1);
        self.bytes += run.bytes;
        if self.bytes >= KNOWN_BYTES_MIN {
            self.rate = self.seen.quantile(self.quantile).map(|kib| kib as f64 * 1024.0);
        }
    }
}

/// Estimates the narrowest link's payload rate in bytes per second.
#[derive(Debug)]
pub(super) struct Line {
    /// From acknowledgements of data that queued behind the data before it.
    queued: Rates,
    /// From arrivals, where the data passes after the link.
    arrived: Rates,
    /// From even runs of acknowledgements, whether or not the data queued.
    acked: Rates,
    /// From acknowledgements of what was sent at once.
    bursts: Bursts,
}

/// Data that was sent at once while nothing was in flight: its acknowledgements are late, beyond the round trip, by the
/// time that the narrowest link took.
#[derive(Debug)]
struct Bursts {
    sent_ns: u64,
    from: u64,
    end: u64,
    /// KiB per second, weighted by time.
    rates: Values,
}

impl Bursts {
    fn on_sent(&mut self, at_ns: u64, from: u64, end: u64, is_first: bool) {
        if is_first {
            (self.sent_ns, self.from, self.end) = (at_ns, from, end);
        } else if from == self.end && at_ns.saturating_sub(self.sent_ns) < BURST_NS {
            self.end = end;
        }
    }

    fn on_ack(&mut self, at_ns: u64, acknowledged: u64, rtt_ns: u64) {
        let late_ns = at_ns.saturating_sub(self.sent_ns).saturating_sub(rtt_ns);
        let bytes = acknowledged.saturating_sub(self.from);
        if bytes >= BURST_BYTES_MIN && acknowledged <= self.end && late_ns >= LATE_NS_MIN {
            let kib = bytes as f64 / 1024.0;
            self.rates.add((kib / (late_ns as f64 / 1e9)) as u64, late_ns / 1000);
        }
    }
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            queued: Rates::new(0.5),
            arrived: Rates::new(UPPER),
            acked: Rates::new(UPPER),
            bursts: Bursts { sent_ns: 0, from: 0, end: 0, rates: Values::new() },
        }
    }

    /// `bytes` were acknowledged `ns` after the acknowledgement before; `is_queued`: they were sent before the bytes
    /// before them had left the link. Acknowledgements most of a round trip apart are those of turns, not of a run.
    pub(super) fn on_ack(&mut self, bytes: u64, ns: u64, is_queued: bool, rtt_ns: u64) {
        if ns > rtt_ns / 2 {
            self.acked.end();
        } else {
            self.acked.even_step(bytes, ns);
        }
        if is_queued {
            self.queued.step(bytes, ns);
        } else {
            self.queued.end();
        }
    }

    /// Up to `end` has been sent; `is_first`: nothing was in flight.
    pub(super) fn on_sent(&mut self, at_ns: u64, from: u64, end: u64, is_first: bool) {
        self.bursts.on_sent(at_ns, from, end, is_first);
    }

    /// `acknowledged` is the offset up to which the peer has the data, `rtt_ns` the round trip without a queue.
    pub(super) fn on_acknowledged(&mut self, at_ns: u64, acknowledged: u64, rtt_ns: u64) {
        self.bursts.on_ack(at_ns, acknowledged, rtt_ns);
    }

    /// `bytes` passed `ns` after the data before; `is_first`: nothing was in flight, and the pause is not the link's.
    pub(super) fn on_arrival(&mut self, bytes: u64, ns: u64, is_first: bool) {
        match is_first {
            true => self.arrived.end(),
            false => self.arrived.even_step(bytes, ns),
        }
    }

    /// Seen as a queue in front of the link.
    pub(super) fn queued_bytes_per_s(&self) -> Option<f64> {
        self.queued.rate
    }

    /// By what was sent at once, where that is visible; else by even runs of acknowledgements, which a program that sends
    /// evenly makes as well.
    pub(super) fn burst_bytes_per_s(&self, is_at_sender: bool) -> Option<f64> {
        let bursts = self.bursts.rates.quantile(UPPER).filter(|_| is_at_sender);
        bursts.or_else(|| self.acked.seen.quantile(UPPER)).map(|kib| kib as f64 * 1024.0)
    }

    /// The rate of even arrivals, unless the acknowledgements of the same data are far slower: then what arrives in
    /// batches was merged behind the link.
    pub(super) fn plausible(&self, arrived: f64) -> f64 {
        let acked = self.acked.seen.quantile(UPPER).map(|kib| kib as f64 * 1024.0);
        acked.filter(|acked| arrived > BATCHED * acked).unwrap_or(arrived)
    }

    pub(super) fn arrived_bytes_per_s(&self) -> Option<f64> {
        self.arrived.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 MB/s: 10 kB in a millisecond.
    const STEP: (u64, u64) = (10_000, 1_000_000);

    #[test]
    fn a_burst_shows_the_link_that_nothing_queues_for() {
        let (rtt, mss) = (20_000_000, 1448);
        let mut line = Line::new();
        for turn in 0..4u64 {
            // 64 segments at once; each is acknowledged, the last one late by the receiver's own delay.
            let (at, from) = (turn * 100_000_000, turn * 64 * mss);
            (0..64).for_each(|index| {
                line.on_sent(at + index * 1000, from + index * mss, from + (index + 1) * mss, index == 0);
            });
            for index in 1..=64 {
                let late = if index == 64 { 40_000_000 } else { 0 };
                line.on_acknowledged(at + rtt + index * mss * 100 + late, from + index * mss, rtt);
            }
        }
        let rate = line.burst_bytes_per_s(true).unwrap();
        assert!((rate / 10e6 - 1.0).abs() < 0.02, "{rate}");
        assert_eq!(line.burst_bytes_per_s(false), None);
    }

    #[test]
    fn turns_of_a_few_segments_are_no_link() {
        let (rtt, mss) = (5_000_000, 1448);
        let mut line = Line::new();
        for turn in 0..400u64 {
            // Two segments, and a third one when these are acknowledged.
            let (at, from) = (turn * 10_600_000, turn * 3 * mss);
            line.on_sent(at, from, from + mss, true);
            line.on_sent(at + 1000, from + mss, from + 2 * mss, false);
            line.on_acknowledged(at + rtt + 600_000, from + 2 * mss, rtt);
            line.on_ack(2 * mss, rtt + 600_000, false, rtt);
            line.on_ack(mss, rtt, false, rtt);
        }
        assert_eq!(line.burst_bytes_per_s(true), None);
    }

    #[test]
    fn frames_of_many_segments_measure_the_link_as_well() {
        let mut line = Line::new();
        for index in 0..40u64 {
            line.on_arrival(65_160, if index % 4 == 0 { 30_000_000 } else { 6_516_000 }, false);
        }
        assert!((line.arrived_bytes_per_s().unwrap() / 10e6 - 1.0).abs() < 0.02);
        // Commands one after the other come as evenly, whatever their target waits for.
        let mut line = Line::new();
        (0..40).for_each(|_| line.on_arrival(65_160, 11_000_000, true));
        assert_eq!(line.arrived_bytes_per_s(), None);
    }

    /// 64 KiB in 0.1 ms are merged packets if their acknowledgements come at 10 MB/s.
    #[test]
    fn batches_of_arrivals_are_no_link() {
        for (ack_ns, expected) in [(6_553_600, 10e6), (150_000, 655.36e6)] {
            let mut line = Line::new();
            for _ in 0..40 {
                line.on_arrival(65_536, 100_000, false);
                line.on_ack(65_536, ack_ns, false, 40_000_000);
            }
            let rate = line.plausible(line.arrived_bytes_per_s().unwrap());
            assert!((rate / expected - 1.0).abs() < 0.02, "{ack_ns}: {rate}");
        }
    }

    #[test]
    fn only_what_queued_and_even_runs_measure_the_link() {
        let mut line = Line::new();
        for index in 0..200u64 {
            // A program's pauses are no part of a run, and acknowledgements of data that did not queue are none.
            let is_pause = index % 10 == 0;
            let ns = if is_pause { 50 * STEP.1 } else { STEP.1 };
            line.on_arrival(STEP.0, ns, false);
            line.on_ack(STEP.0, ns, !is_pause, 20 * STEP.1);
        }
        for rate in [line.queued_bytes_per_s(), line.arrived_bytes_per_s()] {
            assert!((rate.unwrap() / 10e6 - 1.0).abs() < 0.02, "{rate:?}");
        }
        let mut slow = Line::new();
        (0..200).for_each(|_| slow.on_ack(STEP.0, STEP.1, false, 20 * STEP.1));
        assert_eq!(slow.queued_bytes_per_s(), None);
    }
}
