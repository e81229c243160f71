//! What every view says of a connection, in the same words.

use std::time::Duration;

use monitor::event::Side;
use monitor::probe::Session;

use super::engine::{Engine, PERIOD_LEAST};
use crate::{output, units};

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

/// The limit in a word, and its share of the time in percent; `None` before the first verdict.
pub(super) fn limit(engine: &Engine, session: &Session) -> Option<(&'static str, f64)> {
    let kept = engine.kept(session)?;
    let verdict = kept.verdict.as_ref()?;
    let word = if kept.own.is_some() { "its own --rate" } else { verdict.limit.name() };
    Some((word, verdict.share * 100.0))
}

/// The verdict in a sentence, then what to type and notes, each a line; without a verdict the reason.
pub(super) fn verdict(engine: &Engine, session: &Session) -> Vec<String> {
    let Some(verdict) = engine.kept(session).and_then(|kept| kept.verdict.as_ref()) else {
        return vec![missing(engine, session)];
    };
    let mut lines = vec![verdict.sentence.clone()];
    for advice in &verdict.advice {
        let untried = if advice.is_tried { "" } else { " (not tried by this project)" };
        lines.push(format!("{}: {}{untried}", advice.system, advice.line));
    }
    lines.extend(verdict.notes.iter().cloned());
    let printable =
        |line: String| line.split('\n').map(output::printable_name).collect::<Vec<_>>().join("\n");
    lines.into_iter().map(printable).collect()
}

/// Why there is no verdict.
fn missing(engine: &Engine, session: &Session) -> String {
    let seconds = PERIOD_LEAST.as_secs_f64();
    if session.ended {
        format!("No verdict: it ended before {seconds:.0} s of samples were taken.")
    } else if engine.observed().is_none_or(|observed| observed < PERIOD_LEAST) {
        format!("No verdict yet: it needs {seconds:.0} s of samples (--for 5s).")
    } else {
        "No verdict: nothing that could be judged has moved.".to_owned()
    }
}
