//! What `analyze`, `watch` and `copy` say.

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
