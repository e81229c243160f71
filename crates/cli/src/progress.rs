//! Progress of a long command on stderr: a bar on a terminal, otherwise a line every few seconds, or JSON lines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use job::{Sample, Stop};
use mover::Control;
use serde_json::{Value, json};

use crate::context::Context;
use crate::{output, units};

/// The whole line is the message, see [`bar_line`]: `indicatif` draws after each change of a field, and fields that change one
/// after the other would be drawn with those of another sample. `wide_msg` is cut off at the width of the terminal: a
/// line that wraps would not be overwritten.
const BAR: &str = "{wide_msg}";
/// Columns within the brackets of the bar.
const BAR_COLUMNS: u64 = 6;
const BAR_PERIOD: Duration = Duration::from_millis(100);
/// Time between two lines without a terminal.
const LINE_PERIOD: Duration = Duration::from_secs(3);
const JSON_PERIOD: Duration = Duration::from_secs(1);

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

pub(crate) struct Progress {
    style: Style,
    next: Instant,
    /// Set by SIGUSR1.
    shows_now: Arc<AtomicBool>,
    is_json: bool,
    sample: Arc<Mutex<Option<Sample>>>,
}

impl Progress {
    pub(crate) fn new(context: &Context) -> Self {
        let style = if context.quiet {
            Style::Quiet
        } else if context.json {
            Style::Json
        } else if output::is_lively() {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::with_template(BAR).expect("the template is a constant"));
            Style::Bar(bar)
        } else {
            Style::Lines
        };
        let next = Instant::now() + style.period();
        let (shows_now, sample) = (Arc::clone(&context.shows_now), Arc::clone(&context.sample));
        Self { style, next, shows_now, is_json: context.json, sample }
    }

    pub(crate) fn update(&mut self, sample: &Sample) {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner) = Some(sample.clone());
        if self.shows_now.swap(false, Ordering::Relaxed) {
            self.show(sample);
        }
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + self.style.period();
        match &self.style {
            Style::Bar(bar) => bar.set_message(bar_line(sample, output::columns_of_stderr())),
            Style::Lines => output::note(&line(sample)),
            Style::Json => output::note_json(&object(sample)),
            Style::Quiet => {}
        }
    }

    /// Prints one line now, also with `--quiet`.
    fn show(&self, sample: &Sample) {
        match &self.style {
            Style::Json => output::note_json(&object(sample)),
            Style::Bar(bar) => bar.suspend(|| output::note(&line(sample))),
            Style::Lines => output::note(&line(sample)),
            Style::Quiet if self.is_json => output::note_json(&object(sample)),
            Style::Quiet => output::note(&line(sample)),
        }
    }

    /// Observer callback for calls into `mover`: shows the progress and returns whether to continue.
    pub(crate) fn observe(&mut self, now: &mover::Progress, stop: &Stop) -> Control {
        self.update(&Sample::of(now));
        if stop.is_requested() { Control::Stop } else { Control::Continue }
    }

    /// Removes the bar, so that later output begins on a clean line. A drop does the same.
    pub(crate) fn finish(self) {}
}

pub(crate) fn line(sample: &Sample) -> String {
    let percent = percent(sample).map(|percent| format!("{percent}% ")).unwrap_or_default();
    format!("{} {percent}{}", sample.phase, words(sample))
}

/// Rounded down: 100 only where all is done. `None` for a stream of unknown size.
fn percent(sample: &Sample) -> Option<u64> {
    let percent = (u128::from(sample.bytes) * 100).checked_div(sample.total.into())?;
    Some(percent.min(100) as u64)
}

/// `copy [===   ]  50% 2.96 s left, 336 MB/s (destination), of 2 GiB, depth 8`: as many of the words as fit, the most useful
/// first.
fn bar_line(sample: &Sample, columns: usize) -> String {
    let mut line = sample.phase.to_owned();
    if let Some(percent) = percent(sample) {
        let full = percent * BAR_COLUMNS / 100;
        let bar: String = (0..BAR_COLUMNS).map(|column| if column < full { '=' } else { ' ' }).collect();
        line += &format!(" [{bar}] {percent:>3}%");
    }
    let mut separator = " ";
    for word in bar_words(sample) {
        // What stands in parentheses belongs to the word before it.
        let separator = if word.starts_with('(') { " " } else { std::mem::replace(&mut separator, ", ") };
        if line.len() + separator.len() + word.len() > columns {
            break;
        }
        line = line + separator + &word;
    }
    line
}

fn bar_words(sample: &Sample) -> Vec<String> {
    let eta = sample.eta.map(|eta| format!("{} left", units::duration(eta)));
    let rate = (sample.data_rate > 0).then(|| units::rate(sample.data_rate as f64));
    let limit = (rate.is_some() && !sample.limited_by.is_empty()).then(|| format!("({})", sample.limited_by));
    let bytes = match sample.total {
        0 => units::bytes(sample.bytes),
        total => format!("of {}", units::bytes(total)),
    };
    let retries = (sample.retries > 0).then(|| units::retries(sample.retries));
    let depth = (sample.depth > 0).then(|| format!("depth {}", sample.depth));
    [eta, rate, limit, Some(bytes), retries, depth].into_iter().flatten().collect()
}

fn words(sample: &Sample) -> String {
    let mut words = match (sample.total, sample.data_bytes < sample.bytes) {
        // The size of a stream is unknown.
        (0, _) => units::bytes(sample.bytes),
        (total, true) => units::data(sample.data_bytes, sample.bytes, total),
        (total, false) => format!("{} of {}", units::bytes(sample.bytes), units::bytes(total)),
    };
    if sample.data_rate > 0 {
        words += &format!(", {}", units::rate(sample.data_rate as f64));
    }
    if let Some(eta) = sample.eta {
        words += &format!(", {} left", units::duration(eta));
    }
    if sample.retries > 0 {
        words += &format!(", {}", units::retries(sample.retries));
    }
    if !sample.limited_by.is_empty() {
        let limit = if sample.limited_by == "balanced" { "both ends alike" } else { sample.limited_by };
        words += &format!(", limited by {limit}");
    }
    if let Some(rate) = sample.rate_limit {
        words += &format!(", at most {}", units::rate(rate as f64));
    }
    if sample.depth > 0 {
        words += &format!(", up to {} requests in flight", sample.depth);
    }
    words
}

pub(crate) fn object(sample: &Sample) -> Value {
    json!({ "progress": {
        "phase": sample.phase,
        "bytes": sample.bytes,
        "total": sample.total,
        "mb_per_s": units::rounded(sample.rate as f64 / 1e6),
        "data_bytes": sample.data_bytes,
        "data_mb_per_s": units::rounded(sample.data_rate as f64 / 1e6),
        "eta_s": sample.eta.map(|eta| units::rounded(eta.as_secs_f64())),
        "retries": sample.retries,
        "limited_by": sample.limited_by,
        "depth": sample.depth,
        "rate_limit_mb_per_s": sample.rate_limit.map(|rate| units::rounded(rate as f64 / 1e6)),
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
            data_bytes: 512 << 20,
            data_rate: 256_000_000,
            eta: Some(Duration::from_millis(2100)),
            retries: 0,
            limited_by: "destination",
            depth: 8,
            rate_limit: None,
        }
    }

    #[test]
    fn words_say_what_is_known() {
        let expected =
            "512 MiB of 1 GiB, 256 MB/s, 2.10 s left, limited by destination, up to 8 requests in flight";
        assert_eq!(words(&sample()), expected);
        let limited = Sample { rate_limit: Some(256_000_000), limited_by: "rate", ..sample() };
        let expected = "512 MiB of 1 GiB, 256 MB/s, 2.10 s left, limited by rate, at most 256 MB/s, up to 8 requests in flight";
        assert_eq!(words(&limited), expected);
        let holes = Sample { data_bytes: 3 << 20, data_rate: 2_000_000, limited_by: "", ..sample() };
        assert_eq!(words(&holes), "3 MiB data of 1 GiB, 2.0 MB/s, 2.10 s left, up to 8 requests in flight");
        let sample = Sample { data_rate: 0, eta: None, retries: 2, limited_by: "", depth: 0, ..sample() };
        assert_eq!(words(&sample), "512 MiB of 1 GiB, 2 retries");
        assert_eq!(words(&Sample { total: 0, ..sample }), "512 MiB, 2 retries");
    }

    #[test]
    fn a_bar_has_what_fits_and_first_the_time_left() {
        let longest = Sample {
            phase: "verify",
            bytes: (1023 << 29) - 1,
            data_bytes: 900 << 30,
            total: 1023 << 29,
            eta: Some(Duration::from_secs(59 * 60 + 59)),
            depth: 16,
            ..sample()
        };
        let whole = "verify [===== ]  99% 59m59s left, 256 MB/s (destination), of 511.5 GiB, depth 16";
        assert_eq!(bar_line(&longest, 80), whole);
        assert_eq!(bar_line(&longest, 45), "verify [===== ]  99% 59m59s left, 256 MB/s");
        assert_eq!(bar_line(&longest, 0), "verify [===== ]  99%");
        let stream = Sample { data_rate: 0, eta: None, retries: 1, total: 0, depth: 0, ..longest };
        assert_eq!(bar_line(&stream, 80), "verify 511.5 GiB, 1 retry");
    }

    #[test]
    fn nothing_is_complete_before_its_last_byte() {
        for (bytes, total, line) in [
            (0, 1 << 30, "copy [      ]   0% of 1 GiB"),
            ((1 << 30) - 1, 1 << 30, "copy [===== ]  99% of 1 GiB"),
            (1 << 30, 1 << 30, "copy [======] 100% of 1 GiB"),
            (0, 0, "copy 0 B"),
        ] {
            let sample = Sample { bytes, total, data_rate: 0, eta: None, depth: 0, ..sample() };
            assert_eq!(bar_line(&sample, 80), line);
        }
    }

    #[test]
    fn object_has_every_field() {
        let value = object(&Sample { eta: None, ..sample() });
        let expected = r#"{"progress":{"phase":"copy","bytes":536870912,"total":1073741824,"mb_per_s":256.0,"data_bytes":536870912,"data_mb_per_s":256.0,"eta_s":null,"retries":0,"limited_by":"destination","depth":8,"rate_limit_mb_per_s":null}}"#;
        assert_eq!(value.to_string(), expected);
    }
}
