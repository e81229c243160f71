//! How far a long command is: a bar on a terminal, a line every few seconds otherwise, JSON lines for programs.
//! Always on stderr.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::context::Context;
use crate::{output, units};

/// Time between two redraws of a bar.
const BAR_PERIOD: Duration = Duration::from_millis(100);
/// Time between two lines where there is no terminal.
const LINE_PERIOD: Duration = Duration::from_secs(3);
/// Time between two JSON lines.
const JSON_PERIOD: Duration = Duration::from_secs(1);

/// What there is to tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// What is being done: `copy`, `verify`, `compare`.
    pub(crate) phase: &'static str,
    /// Bytes done of this phase.
    pub(crate) bytes: u64,
    /// Bytes there are to do.
    pub(crate) total: u64,
    /// Bytes per second over the last seconds.
    pub(crate) rate: u64,
    /// Time left at that rate.
    pub(crate) eta: Option<Duration>,
    /// Requests repeated after a lost connection.
    pub(crate) retries: u64,
    /// What limits the rate at present, in a word.
    pub(crate) limited_by: &'static str,
    /// Chunks that may be in flight at present; 0 where nobody says.
    pub(crate) depth: u32,
}

enum Style {
    Bar(ProgressBar),
    Lines,
    Json,
    Quiet,
}

impl Style {
    fn period(&self) -> Duration {
        match self {
            Self::Bar(_) | Self::Quiet => BAR_PERIOD,
            Self::Lines => LINE_PERIOD,
            Self::Json => JSON_PERIOD,
        }
    }
}

/// Tells how far a command is.
pub(crate) struct Progress {
    style: Style,
    next: Instant,
    series: Series,
}

impl Progress {
    /// Progress as the context and stderr suggest.
    pub(crate) fn new(context: &Context) -> Self {
        let style = if context.quiet {
            Style::Quiet
        } else if context.json {
            Style::Json
        } else if output::is_lively() {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{prefix:>8} [{bar:30}] {percent:>3}% {msg}")
                .expect("the template is a constant")
                .progress_chars("=> ");
            bar.set_style(style);
            Style::Bar(bar)
        } else {
            Style::Lines
        };
        let next = Instant::now() + style.period();
        Self { style, next, series: Series::new(Instant::now()) }
    }

    /// Keeps `sample`, and shows it if it is time to.
    pub(crate) fn update(&mut self, sample: &Sample) {
        let now = Instant::now();
        self.series.push(now, sample);
        if now < self.next {
            return;
        }
        self.next = now + self.style.period();
        match &self.style {
            Style::Bar(bar) => {
                bar.set_prefix(sample.phase);
                bar.set_length(sample.total);
                bar.set_position(sample.bytes);
                bar.set_message(words(sample));
            }
            Style::Lines => {
                let percent = match sample.total {
                    0 => String::new(),
                    total => format!("{:.0}% ", (sample.bytes as f64 / total as f64 * 100.0).min(100.0)),
                };
                output::note(&format!("{} {percent}{}", sample.phase, words(sample)));
            }
            Style::Json => output::note_json(&object(sample)),
            Style::Quiet => {}
        }
    }

    /// Takes the bar away, so that what follows stands on a clean line. What it was told comes back.
    pub(crate) fn finish(self) -> Series {
        if let Style::Bar(bar) = &self.style {
            bar.finish_and_clear();
        }
        self.series
    }
}

/// Most points of a [`Series`].
const POINTS_MAX: usize = 1024;
/// A rate over less time says nothing.
const GAP_MIN: Duration = Duration::from_millis(50);

/// How it went over time, in bounded memory: when there are too many points, every second one is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    start: Instant,
    /// Points of one phase lie at least this far apart, but for the first and the last.
    every: Duration,
    points: Vec<(Instant, Sample)>,
}

/// What was true between two points of a [`Series`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stretch {
    /// Seconds from the start.
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// Bytes per second.
    pub(crate) rate: f64,
    /// At its end.
    pub(crate) sample: Sample,
}

impl Series {
    pub(crate) fn new(start: Instant) -> Self {
        Self { start, every: Duration::ZERO, points: Vec::new() }
    }

    fn push(&mut self, at: Instant, sample: &Sample) {
        // The last point is always the newest; it makes room for the next one if either came too soon.
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

    /// Halves the resolution. The first and the last point of each phase stay.
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

    /// Goes on with another one.
    pub(crate) fn extend(&mut self, later: Self) {
        for (at, sample) in later.points {
            self.push(at, &sample);
        }
    }

    /// The newest sample.
    pub(crate) fn last(&self) -> Option<&Sample> {
        self.points.last().map(|(_, sample)| sample)
    }

    /// The time from the start, cut at the points.
    pub(crate) fn stretches(&self) -> Vec<Stretch> {
        let mut before: Option<&(Instant, Sample)> = None;
        let stretch = |point| {
            let (at, sample): &(Instant, Sample) = point;
            let from = before.map_or(self.start, |(at, _)| *at);
            let seconds = (*at - from).as_secs_f64();
            let rate = match before {
                Some((_, earlier)) if earlier.phase == sample.phase => {
                    sample.bytes.saturating_sub(earlier.bytes) as f64 / seconds.max(1e-6)
                }
                // What was there when the phase began is known to whoever measured the rate.
                _ if sample.rate > 0 => sample.rate as f64,
                _ => sample.bytes as f64 / seconds.max(1e-6),
            };
            before = Some(point);
            let to = (*at - self.start).as_secs_f64();
            Stretch { from: to - seconds, to, rate, sample: sample.clone() }
        };
        self.points.iter().map(stretch).collect()
    }
}

fn words(sample: &Sample) -> String {
    let mut words = units::bytes(sample.bytes);
    // Nobody knows how long a stream is.
    if sample.total > 0 {
        words += &format!(" of {}", units::bytes(sample.total));
    }
    if sample.rate > 0 {
        words += &format!(", {}", units::rate(sample.rate as f64));
    }
    if let Some(eta) = sample.eta {
        words += &format!(", {} left", units::duration(eta));
    }
    if sample.retries > 0 {
        words += &format!(", {} retries", sample.retries);
    }
    if !sample.limited_by.is_empty() {
        words += &format!(", limited by {}", sample.limited_by);
    }
    if sample.depth > 0 {
        words += &format!(", depth {}", sample.depth);
    }
    words
}

fn object(sample: &Sample) -> Value {
    json!({ "progress": {
        "phase": sample.phase,
        "bytes": sample.bytes,
        "total": sample.total,
        "mb_per_s": units::rounded(sample.rate as f64 / 1e6),
        "eta_s": sample.eta.map(|eta| units::rounded(eta.as_secs_f64())),
        "retries": sample.retries,
        "limited_by": sample.limited_by,
        "depth": sample.depth,
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        Sample {
            phase: "copy",
            bytes: 512 << 20,
            total: 1 << 30,
            rate: 256_000_000,
            eta: Some(Duration::from_millis(2100)),
            retries: 0,
            limited_by: "destination",
            depth: 8,
        }
    }

    #[test]
    fn words_say_what_is_known() {
        assert_eq!(
            words(&sample()),
            "512 MiB of 1 GiB, 256 MB/s, 2.10 s left, limited by destination, depth 8"
        );
        let sample = Sample { rate: 0, eta: None, retries: 2, limited_by: "", depth: 0, ..sample() };
        assert_eq!(words(&sample), "512 MiB of 1 GiB, 2 retries");
        assert_eq!(words(&Sample { total: 0, ..sample }), "512 MiB, 2 retries");
    }

    #[test]
    fn object_has_every_field() {
        let value = object(&Sample { eta: None, ..sample() });
        assert_eq!(
            value.to_string(),
            r#"{"progress":{"phase":"copy","bytes":536870912,"total":1073741824,"mb_per_s":256.0,"eta_s":null,"retries":0,"limited_by":"destination","depth":8}}"#
        );
    }

    #[test]
    fn a_series_is_bounded_and_keeps_sums_and_the_ends_of_phases() {
        let start = Instant::now();
        let mut series = Series::new(start);
        let step = Duration::from_millis(200);
        for index in 1..=50_000u32 {
            let phase = if index <= 40_000 { "copy" } else { "verify" };
            let bytes = u64::from(if index <= 40_000 { index } else { index - 40_000 }) * 1000;
            series.push(start + step * index, &Sample { phase, bytes, rate: 5000, ..Sample::default() });
            assert!(series.points.len() <= POINTS_MAX);
        }
        assert!(series.points.len() > POINTS_MAX / 4, "{}", series.points.len());
        let stretches = series.stretches();
        let moved: f64 = stretches.iter().map(|part| part.rate * (part.to - part.from)).sum();
        assert!((moved / 50_000_000.0 - 1.0).abs() < 0.01, "{moved}");
        series.push(
            start + step * 50_001 - GAP_MIN * 4,
            &Sample { phase: "verify", bytes: 10_000_001, ..Sample::default() },
        );
        assert_eq!(series.last().map(|last| last.bytes), Some(10_000_001));
        assert_eq!(series.stretches().len(), stretches.len(), "too soon for a rate of its own");
        let last = |phase| stretches.iter().rfind(|part| part.sample.phase == phase).unwrap();
        assert_eq!((last("copy").to, last("copy").sample.bytes), (8000.0, 40_000_000));
        assert_eq!((last("verify").to, last("verify").sample.bytes), (10_000.0, 10_000_000));
        let joined = stretches.windows(2).all(|pair| (pair[0].to - pair[1].from).abs() < 1e-6);
        assert!(joined && stretches[0].from.abs() < 1e-6);
    }
}
