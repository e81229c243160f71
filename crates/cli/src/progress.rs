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
#[derive(Clone, Debug, Default)]
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
        Self { style, next }
    }

    /// Shows `sample` if it is time to.
    pub(crate) fn update(&mut self, sample: &Sample) {
        let now = Instant::now();
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
                let percent = (sample.bytes as f64 / sample.total.max(1) as f64 * 100.0).min(100.0);
                output::note(&format!("{} {percent:.0}% {}", sample.phase, words(sample)));
            }
            Style::Json => output::note(&object(sample).to_string()),
            Style::Quiet => {}
        }
    }

    /// Takes the bar away, so that what follows stands on a clean line.
    pub(crate) fn finish(&mut self) {
        if let Style::Bar(bar) = &self.style {
            bar.finish_and_clear();
        }
    }
}

fn words(sample: &Sample) -> String {
    let mut words = format!("{} of {}", units::bytes(sample.bytes), units::bytes(sample.total));
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
        }
    }

    #[test]
    fn words_say_what_is_known() {
        assert_eq!(words(&sample()), "512 MiB of 1 GiB, 256 MB/s, 2.10 s left, limited by destination");
        let sample = Sample { rate: 0, eta: None, retries: 2, limited_by: "", ..sample() };
        assert_eq!(words(&sample), "512 MiB of 1 GiB, 2 retries");
    }

    #[test]
    fn object_has_every_field() {
        let value = object(&Sample { eta: None, ..sample() });
        assert_eq!(
            value.to_string(),
            r#"{"progress":{"phase":"copy","bytes":536870912,"total":1073741824,"mb_per_s":256.0,"eta_s":null,"retries":0,"limited_by":"destination"}}"#
        );
    }
}
