//! What every view says of a connection, in the same words.

use std::time::Duration;

use monitor::event::Side;
use monitor::model;
use monitor::probe::Session;

use super::engine::{Engine, PERIOD, PERIOD_LEAST};
use crate::{output, units};

/// What advice against a full send buffer begins with where this program can enlarge it.
const TUNE: &str = "hikyaku watch --tune";

/// `LOCAL > REMOTE (initiator, tgtd 4711)`, as every view names a connection.
pub(super) fn name(session: &Session) -> String {
    let side = if session.side == Side::Initiator { "initiator" } else { "target" };
    let owner = match (&session.kernel, &session.owner) {
        (Some(kernel), _) => format!(", kernel {}", output::printable_name(&kernel.name)),
        (None, Some(owner)) => format!(", {} {}", output::printable_name(&owner.name), owner.pid),
        (None, None) => String::new(),
    };
    format!("{} > {} ({side}{owner})", session.ends.local, session.ends.remote)
}

/// Bytes; `-` where the kernel does not tell.
pub(super) fn bytes(count: Option<u64>) -> String {
    count.map_or("-".to_owned(), units::bytes)
}

pub(super) fn rate(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), units::rate)
}

pub(super) fn time(us: Option<u32>) -> String {
    us.map_or("-".to_owned(), |us| units::duration(Duration::from_micros(us.into())))
}

/// What a line of a list says of the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    /// The first verdict comes after [`PERIOD`] of samples.
    Awaited,
    /// No verdict: no data moved, or the connection ended too early.
    None,
    Known {
        word: &'static str,
        /// Share of the time.
        percent: f64,
        confidence: f64,
    },
}

pub(super) fn limit(engine: &Engine, session: &Session) -> Limit {
    let kept = engine.kept(session);
    match kept.and_then(|kept| Some((kept.verdict.as_ref()?, kept.own))) {
        Some((verdict, own)) => Limit::Known {
            word: if own.is_some() { "its own --rate" } else { verdict.limit.name() },
            percent: verdict.share * 100.0,
            confidence: if own.is_some() { 1.0 } else { verdict.confidence },
        },
        None if session.ended || session.sampled_for() >= PERIOD => Limit::None,
        None => Limit::Awaited,
    }
}

/// The verdict in a sentence, then what to type and notes, each a line; without a verdict the reason.
pub(super) fn verdict(engine: &Engine, session: &Session) -> Vec<String> {
    let Some(verdict) = engine.kept(session).and_then(|kept| kept.verdict.as_ref()) else {
        return vec![missing(session.sampled_for(), session.ended, engine.is_concluded)];
    };
    let mut lines = vec![verdict.sentence.clone()];
    if model::is_for_several(&verdict.advice) {
        lines.push(model::ENDS_UNKNOWN.to_owned());
    }
    for advice in &verdict.advice {
        // This command is doing it.
        if engine.is_tuning && advice.line.starts_with(TUNE) {
            continue;
        }
        let untried = if advice.is_tried { "" } else { " (not tried by this project)" };
        lines.push(format!("{}: {}{untried}", advice.system, advice.line));
    }
    lines.extend(verdict.notes.iter().cloned());
    let printable =
        |line: String| line.split('\n').map(output::printable_name).collect::<Vec<_>>().join("\n");
    lines.into_iter().map(printable).collect()
}

/// Why a connection that was sampled for this time has no verdict.
fn missing(sampled: Duration, has_ended: bool, is_concluded: bool) -> String {
    let (needed, least) = (PERIOD.as_secs(), PERIOD_LEAST.as_secs());
    let seen = units::duration(sampled);
    match (has_ended, is_concluded) {
        (true, _) if sampled < PERIOD_LEAST => {
            format!("No verdict: the connection ended after {seen} of samples; a verdict needs {least} s.")
        }
        (false, true) if sampled < PERIOD_LEAST => {
            format!("No verdict: it was watched for {seen}; a verdict needs {least} s of samples (--for 5s).")
        }
        (false, false) if sampled < PERIOD => {
            format!("No verdict yet: the first one comes after {needed} s of samples, so far {seen}.")
        }
        _ => "No verdict: the connection carried no data while it was watched.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_verdict_says_what_is_waited_for_or_what_was_missing() {
        let table = [
            (300, false, false, "No verdict yet: the first one comes after 4 s of samples, so far 0.30 s."),
            (2000, false, false, "No verdict yet: the first one comes after 4 s of samples, so far 2.00 s."),
            (4000, false, false, "No verdict: the connection carried no data"),
            (
                300,
                true,
                false,
                "No verdict: the connection ended after 0.30 s of samples; a verdict needs 1 s.",
            ),
            (2000, true, false, "No verdict: the connection carried no data"),
            (300, false, true, "No verdict: it was watched for 0.30 s; a verdict needs 1 s of samples"),
            (2000, false, true, "No verdict: the connection carried no data"),
        ];
        for (ms, has_ended, is_concluded, expected) in table {
            let said = missing(Duration::from_millis(ms), has_ended, is_concluded);
            assert!(said.starts_with(expected), "{ms} ms, {has_ended}, {is_concluded}: {said}");
        }
    }
}
