//! What `analyze`, `watch` and `copy` say.

use serde_json::{Value, json};

use super::{Cause, Seconds};

/// One thing to type or to set, and on which end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// `open-iscsi`, `LIO`, `tgt`, `QEMU`, `Linux`, `hikyaku`, `ESXi`, `Windows`, ...
    pub system: &'static str,
    /// The limit that it is against: [`Verdict::limit`] or [`Verdict::also`].
    pub cause: Cause,
    /// A command to type; what follows `#` in it says what to replace in it, or what to do by hand.
    pub line: String,
    /// Whether this project has tried it.
    pub is_tried: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// `Cause::Unknown` if the evidence does not decide; then `candidates` has the causes that fit.
    pub limit: Cause,
    /// A second limit whose share is within 20 % of the first's.
    pub also: Option<Cause>,
    pub candidates: Vec<Cause>,
    /// 0 to 1: how much of the evidence for the limit was seen, not inferred.
    pub confidence: f64,
    /// Share of the period that the limit explains, 0 to 1.
    pub share: f64,
    pub waits: Seconds,
    /// Rates of data in bytes per second: measured, and expected without the limit.
    pub bytes_per_s: f64,
    pub expected_bytes_per_s: Option<f64>,
    /// What limits once the first limit is gone.
    pub next_limit: Option<Cause>,
    /// One sentence: the limit, its figure, what removing it gains.
    pub sentence: String,
    pub advice: Vec<Advice>,
    /// What could not be seen, and what would show it.
    pub notes: Vec<String>,
}

impl Verdict {
    /// The verdict as `watch --json` and `copy --json` have it: rates in 10^6 bytes a second, numbers with three digits
    /// after the point.
    pub fn object(&self) -> Value {
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        let advice = self.advice.iter();
        let advice = advice
            .map(|advice| json!({ "system": advice.system, "line": advice.line, "tried": advice.is_tried }));
        json!({
            "limit": self.limit.name(),
            "also": self.also.map(Cause::name),
            "candidates": self.candidates.iter().map(|cause| cause.name()).collect::<Vec<_>>(),
            "confidence": rounded(self.confidence),
            "share": rounded(self.share),
            "mb_per_s": rounded(self.bytes_per_s / 1e6),
            "expected_mb_per_s": self.expected_bytes_per_s.map(|rate| rounded(rate / 1e6)),
            "next_limit": self.next_limit.map(Cause::name),
            "sentence": self.sentence,
            "advice": advice.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}
