//! Progress of a copy: single samples and their series over time.

use std::time::{Duration, Instant};

use mover::Phase;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The phase: `copy`, `verify`, `compare` and others.
    pub phase: &'static str,
    pub bytes: u64,
    pub total: u64,
    /// Bytes per second over the last seconds, with holes.
    pub rate: u64,
    /// Bytes moved in this phase, without holes.
    pub data_bytes: u64,
    /// Bytes moved per second over the last seconds.
    pub data_rate: u64,
    /// Time left at [`Sample::data_rate`].
    pub eta: Option<Duration>,
    /// Requests repeated after a lost connection.
    pub retries: u64,
    /// The current limit of the rate, in one word.
    pub limited_by: &'static str,
    /// Chunks that may be in flight; 0 if unknown.
    pub depth: u32,
    /// The bound of the read rate at present, in bytes per second.
    pub rate_limit: Option<u64>,
}

const POINTS_MAX: usize = 1024;
/// Over shorter times a rate is mostly noise.
const GAP_MIN: Duration = Duration::from_millis(50);
/// A shorter interval has no width in a picture; the interval before it or, at the start, after it is extended over it.
const INTERVAL_SECONDS_MIN: f64 = 5e-3;

/// Samples over time, in bounded memory: above `POINTS_MAX` points every second one is dropped.
#[derive(Clone, Debug)]
pub struct Series {
    start: Instant,
    /// Minimum distance of points of one phase, except the first and the last.
    every: Duration,
    points: Vec<(Instant, Sample)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Start, in seconds since the series began.
    pub from: f64,
    /// End, in seconds since the series began.
    pub to: f64,
    /// Bytes moved per second.
    pub rate: f64,
    /// The sample at the end.
    pub sample: Sample,
}

impl Sample {
    pub fn of(now: &mover::Progress) -> Self {
        let phase = match now.phase {
            Phase::Copy => "copy",
            Phase::Rescue => "rescue",
            Phase::Flush => "flush",
            Phase::Verify => "verify",
            Phase::Compare => "compare",
        };
        Self {
            phase,
            bytes: now.bytes,
            total: now.total,
            rate: now.rate_now,
            data_bytes: now.data_bytes,
            data_rate: now.data_rate_now,
            eta: now.eta,
            retries: now.retries,
            limited_by: now.limited_by.name(),
            depth: now.depth,
            rate_limit: now.rate_limit,
        }
    }
}

impl Series {
    pub fn new(start: Instant) -> Self {
        Self { start, every: Duration::ZERO, points: Vec::new() }
    }

    /// Adds a sample taken at `at`, which must not precede the last point.
    pub fn push(&mut self, at: Instant, sample: &Sample) {
        // The last point is always the newest sample. The new sample replaces it if it comes less than `GAP_MIN` after
        // it, or less than `every` after the point before it.
        let is_stopgap = match &self.points[..] {
            [.., (last_at, last)] if last.phase == sample.phase && at - *last_at < GAP_MIN => true,
            [.., (before, first), (_, last)] => {
                at - *before < self.every && first.phase == sample.phase && last.phase == sample.phase
            }
            _ => false,
        };
        if is_stopgap {
            self.points.pop();
        }
        self.points.push((at, sample.clone()));
        if self.points.len() > POINTS_MAX {
            self.thin();
        }
    }

    /// Halves the resolution. The first and the last point of each phase remain.
    fn thin(&mut self) {
        let phases: Vec<_> = self.points.iter().map(|(_, sample)| sample.phase).collect();
        let mut index = 0;
        self.points.retain(|_| {
            index += 1;
            let at = index - 1;
            let is_inner = at > 0 && phases[at - 1] == phases[at] && phases.get(at + 1) == Some(&phases[at]);
            !is_inner || at % 2 == 0
        });
        let span = self.points.last().map_or(Duration::ZERO, |(last, _)| *last - self.start);
        self.every = span / (POINTS_MAX / 2) as u32;
    }

    pub fn extend(&mut self, later: Self) {
        for (at, sample) in later.points {
            self.push(at, &sample);
        }
    }

    pub fn last(&self) -> Option<&Sample> {
        self.points.last().map(|(_, sample)| sample)
    }

    /// The intervals between the points, from the start on, without those below `INTERVAL_SECONDS_MIN`.
    pub fn intervals(&self) -> Vec<Interval> {
        let mut before: Option<&(Instant, Sample)> = None;
        let mut intervals: Vec<Interval> = Vec::new();
        for point @ (at, sample) in &self.points {
            let from = before.map_or(self.start, |(at, _)| *at);
            let seconds = (*at - from).as_secs_f64();
            let rate = match before {
                Some((_, earlier)) if earlier.phase == sample.phase => {
                    sample.data_bytes.saturating_sub(earlier.data_bytes) as f64
                        / seconds.max(INTERVAL_SECONDS_MIN)
                }
                // Storage or a target that copies by itself gives neither rate nor depth.
                _ if sample.rate == 0 && sample.depth == 0 => {
                    sample.data_bytes as f64 / seconds.max(INTERVAL_SECONDS_MIN)
                }
                // The interval begins before the phase, where it is the first of a copy.
                _ => sample.data_rate as f64,
            };
            before = Some(point);
            let to = (*at - self.start).as_secs_f64();
            let mut from = to - seconds;
            if let Some(last) = intervals.last_mut() {
                if seconds < INTERVAL_SECONDS_MIN {
                    last.to = to;
                    continue;
                }
                if last.to - last.from < INTERVAL_SECONDS_MIN {
                    from = last.from;
                    intervals.pop();
                }
            }
            intervals.push(Interval { from, to, rate, sample: sample.clone() });
        }
        intervals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_bounded_and_keeps_sums_and_the_ends_of_phases() {
        let start = Instant::now();
        let mut series = Series::new(start);
        let step = Duration::from_millis(200);
        for index in 1..=50_000u32 {
            let phase = if index <= 40_000 { "copy" } else { "verify" };
            let bytes = u64::from(if index <= 40_000 { index } else { index - 40_000 }) * 1000;
            series.push(
                start + step * index,
                &Sample { phase, bytes, data_bytes: bytes, data_rate: 5000, rate: 5000, ..Sample::default() },
            );
            assert!(series.points.len() <= POINTS_MAX);
        }
        assert!(series.points.len() > POINTS_MAX / 4, "{}", series.points.len());
        let intervals = series.intervals();
        let moved: f64 = intervals.iter().map(|part| part.rate * (part.to - part.from)).sum();
        assert!((moved / 50_000_000.0 - 1.0).abs() < 0.01, "{moved}");
        series.push(
            start + step * 50_001 - GAP_MIN * 4,
            &Sample { phase: "verify", bytes: 10_000_001, data_bytes: 10_000_001, ..Sample::default() },
        );
        assert_eq!(series.last().map(|last| last.bytes), Some(10_000_001));
        assert_eq!(series.intervals().len(), intervals.len(), "too soon for a rate of its own");
        let last = |phase| intervals.iter().rfind(|part| part.sample.phase == phase).unwrap();
        assert_eq!((last("copy").to, last("copy").sample.bytes), (8000.0, 40_000_000));
        assert_eq!((last("verify").to, last("verify").sample.bytes), (10_000.0, 10_000_000));
        let joined = intervals.windows(2).all(|pair| (pair[0].to - pair[1].from).abs() < 1e-6);
        assert!(joined && intervals[0].from.abs() < 1e-6);
    }

    #[test]
    fn a_phase_of_microseconds_is_no_peak() {
        let start = Instant::now();
        let mut series = Series::new(start);
        let at = |micros| start + Duration::from_micros(micros);
        let mut push = |micros, phase, bytes, rate| {
            let (data_bytes, data_rate) = (bytes, rate);
            let sample = Sample { phase, bytes, data_bytes, data_rate, rate, depth: 4, ..Sample::default() };
            series.push(at(micros), &sample);
        };
        push(900_000, "copy", 3 << 30, 3_579_139_413);
        // The rescue finds nothing to do: its bytes are those of the copy.
        push(900_010, "rescue", 3 << 30, 0);
        push(1_000_000, "flush", 0, 0);
        push(1_000_020, "verify", 1 << 20, 52_428_800_000);
        push(2_000_000, "verify", 3 << 30, 3_221_225_472);
        let intervals = series.intervals();
        let phases: Vec<_> = intervals.iter().map(|part| part.sample.phase).collect();
        assert_eq!(phases, ["copy", "flush", "verify"]);
        assert!(intervals.iter().all(|part| part.rate < 1e10), "{intervals:?}");
        assert!(intervals.windows(2).all(|pair| (pair[0].to - pair[1].from).abs() < 1e-9), "{intervals:?}");
    }

    #[test]
    fn holes_are_no_peak() {
        let start = Instant::now();
        let mut series = Series::new(start);
        for (millis, bytes, data_bytes) in
            [(200, 100 << 30, 0), (400, 101 << 30, 1 << 20), (460, 1 << 40, 2 << 20)]
        {
            let (rate, depth) = (bytes * 5, 4);
            let sample = Sample { phase: "copy", bytes, data_bytes, rate, depth, ..Sample::default() };
            series.push(start + Duration::from_millis(millis), &sample);
        }
        let rates: Vec<_> = series.intervals().iter().map(|part| part.rate.round() as u64).collect();
        assert_eq!(rates, [0, 5 << 20, 17_476_267]);
    }

    #[test]
    fn an_instant_has_no_peak() {
        let start = Instant::now();
        let mut series = Series::new(start);
        let sample = Sample { phase: "copy", bytes: 1 << 20, data_bytes: 1 << 20, ..Sample::default() };
        series.push(start + Duration::from_nanos(10), &sample);
        assert!(series.intervals()[0].rate < 1e9, "{:?}", series.intervals());
    }

    #[test]
    fn bytes_of_an_earlier_copy_have_no_rate() {
        let start = Instant::now();
        let mut series = Series::new(start);
        let sample = Sample { phase: "copy", bytes: 3 << 30, depth: 4, ..Sample::default() };
        series.push(start + Duration::from_millis(200), &sample);
        assert_eq!(series.intervals()[0].rate, 0.0);
        let mut series = Series::new(start);
        series.push(
            start + Duration::from_secs(2),
            &Sample { bytes: 2000, data_bytes: 2000, depth: 0, ..sample },
        );
        assert_eq!(series.intervals()[0].rate, 1000.0, "by storage itself");
    }
}
