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

/// `wide_msg` is cut off at the width of the terminal: a line that wraps would not be overwritten.
const BAR: &str = "{prefix} [{bar:6}] {percent:>3}% {wide_msg}";
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
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let style =
                ProgressStyle::with_template(BAR).expect("the template is a constant").progress_chars("=> ");
            bar.set_style(style);
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
            Style::Bar(bar) => {
                bar.set_prefix(sample.phase);
                bar.set_length(sample.total);
                bar.set_position(sample.bytes);
                bar.set_message(bar_words(sample));
            }
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
    let percent = match sample.total {
        0 => String::new(),
        total => format!("{:.0}% ", (sample.bytes as f64 / total as f64 * 100.0).min(100.0)),
    };
    format!("{} {percent}{}", sample.phase, words(sample))
}

/// What a bar and its percentage do not say, in few columns: `of 2 GiB, 336 MB/s (destination), 2.96 s left, depth 8`.
fn bar_words(sample: &Sample) -> String {
    let bytes = match sample.total {
        0 => units::bytes(sample.bytes),
        total => format!("of {}", units::bytes(total)),
    };
    let limit = match sample.limited_by {
        "" => String::new(),
        limit => format!(" ({limit})"),
    };
    let rate = (sample.data_rate > 0).then(|| format!("{}{limit}", units::rate(sample.data_rate as f64)));
    let eta = sample.eta.map(|eta| format!("{} left", units::duration(eta)));
    let depth = (sample.depth > 0).then(|| format!("depth {}", sample.depth));
    let retries = (sample.retries > 0).then(|| units::retries(sample.retries));
    let words = [Some(bytes), rate, eta, retries, depth].into_iter().flatten();
    words.collect::<Vec<_>>().join(", ")
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
        words += &format!(", depth {}", sample.depth);
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
        let expected = "512 MiB of 1 GiB, 256 MB/s, 2.10 s left, limited by destination, depth 8";
        assert_eq!(words(&sample()), expected);
        let limited = Sample { rate_limit: Some(256_000_000), limited_by: "rate", ..sample() };
        let expected = "512 MiB of 1 GiB, 256 MB/s, 2.10 s left, limited by rate, at most 256 MB/s, depth 8";
        assert_eq!(words(&limited), expected);
        let holes = Sample { data_bytes: 3 << 20, data_rate: 2_000_000, limited_by: "", ..sample() };
        assert_eq!(words(&holes), "3 MiB data of 1 GiB, 2.0 MB/s, 2.10 s left, depth 8");
        let sample = Sample { data_rate: 0, eta: None, retries: 2, limited_by: "", depth: 0, ..sample() };
        assert_eq!(words(&sample), "512 MiB of 1 GiB, 2 retries");
        assert_eq!(words(&Sample { total: 0, ..sample }), "512 MiB, 2 retries");
    }

    #[test]
    fn a_bar_fits_80_columns() {
        let longest = Sample {
            phase: "verify",
            bytes: 900 << 30,
            data_bytes: 900 << 30,
            total: 1023 << 29,
            eta: Some(Duration::from_secs(59 * 60 + 59)),
            depth: 16,
            ..sample()
        };
        let words = bar_words(&longest);
        assert_eq!(words, "of 511.5 GiB, 256 MB/s (destination), 59m59s left, depth 16");
        assert!("verify [======] 100% ".len() + words.len() <= 80 && BAR.contains("{bar:6}"), "{words}");
        let words = bar_words(&Sample { data_rate: 0, eta: None, retries: 1, total: 0, depth: 0, ..longest });
        assert_eq!(words, "900 GiB, 1 retry");
    }

    #[test]
    fn object_has_every_field() {
        let value = object(&Sample { eta: None, ..sample() });
        let expected = r#"{"progress":{"phase":"copy","bytes":536870912,"total":1073741824,"mb_per_s":256.0,"data_bytes":536870912,"data_mb_per_s":256.0,"eta_s":null,"retries":0,"limited_by":"destination","depth":8,"rate_limit_mb_per_s":null}}"#;
        assert_eq!(value.to_string(), expected);
    }
}
