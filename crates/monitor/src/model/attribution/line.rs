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
}

impl Line {
    pub(super) fn new() -> Self {
        Self { queued: Rates::new(0.5), arrived: Rates::new(0.85) }
    }

    /// `bytes` were acknowledged `ns` after the acknowledgement before; `is_queued`: they were sent before the bytes
    /// before them had left the link.
    pub(super) fn on_ack(&mut self, bytes: u64, ns: u64, is_queued: bool) {
        if is_queued {
            self.queued.step(bytes, ns);
        } else {
            self.queued.end();
        }
    }

    /// `bytes` passed `ns` after the data before. A pause ends a run: the rate of a run is even.
    pub(super) fn on_arrival(&mut self, bytes: u64, ns: u64) {
        let run = self.arrived.run;
        if run.steps > 0 {
            let (of_run, of_step) =
                (run.ns.max(1) as f64 / run.bytes.max(1) as f64, ns as f64 / bytes.max(1) as f64);
            if of_step > UNEVEN * of_run && ns > PAUSE_NS {
                self.arrived.end();
                return;
            }
            if of_step * UNEVEN < of_run && run.steps < RUN_STEPS_MIN {
                self.arrived.run = Run::default();
            }
        }
        self.arrived.step(bytes, ns);
        if self.arrived.run.bytes >= RUN_BYTES / 4 {
            self.arrived.end();
        }
    }

    /// Seen as a queue in front of the link.
    pub(super) fn queued_bytes_per_s(&self) -> Option<f64> {
        self.queued.rate
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
    fn only_what_queued_and_even_runs_measure_the_link() {
        let mut line = Line::new();
        for index in 0..200u64 {
            // A program's pauses are no part of a run, and acknowledgements of data that did not queue are none.
            let is_pause = index % 10 == 0;
            let ns = if is_pause { 50 * STEP.1 } else { STEP.1 };
            line.on_arrival(STEP.0, ns);
            line.on_ack(STEP.0, ns, !is_pause);
        }
        for rate in [line.queued_bytes_per_s(), line.arrived_bytes_per_s()] {
            assert!((rate.unwrap() / 10e6 - 1.0).abs() < 0.02, "{rate:?}");
        }
        let mut slow = Line::new();
        (0..200).for_each(|_| slow.on_ack(STEP.0, STEP.1, false));
        assert_eq!(slow.queued_bytes_per_s(), None);
    }
}
