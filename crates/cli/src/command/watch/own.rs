//! Copies of this program among the watched processes. A copy with `--rate` is limited by that rate, which no packet and no
//! sample shows.

use std::collections::HashMap;

use monitor::Verdict;
use monitor::probe::Session;

use crate::control::Request;
use crate::control::client;
use crate::units;

/// The rates in bytes per second that copies are limited by now, by process.
pub(super) fn rates(sessions: &[Session]) -> HashMap<u32, f64> {
    let owners =
        || sessions.iter().filter(|session| !session.ended).filter_map(|session| session.owner.as_ref());
    if !owners().any(|owner| owner.name == "hikyaku") {
        return HashMap::new();
    }
    let mut rates = HashMap::new();
    for process in client::find().processes.into_iter().filter(|process| process.command == "copy") {
        if !owners().any(|owner| owner.pid == process.pid) {
            continue;
        }
        // One that does not answer has no known rate.
        let Ok(status) = process.ask(&Request::Status {}) else { continue };
        let progress = &status["progress"];
        if let (Some("rate"), Some(mb_per_s)) =
            (progress["limited_by"].as_str(), progress["rate_limit_mb_per_s"].as_f64())
        {
            rates.insert(process.pid, mb_per_s * 1e6);
        }
    }
    rates
}

/// A copy that keeps to a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Own {
    pub(super) pid: u32,
    pub(super) bytes_per_s: f64,
}

impl Own {
    /// The copy that has a session, or the other end of it, if that is watched too.
    pub(super) fn find(rates: &HashMap<u32, f64>, session: &Session, all: &[Session]) -> Option<Self> {
        let of = |session: &Session| {
            let pid = session.owner.as_ref()?.pid;
            Some(Self { pid, bytes_per_s: *rates.get(&pid)? })
        };
        let is_other = |other: &&Session| {
            (other.ends.local, other.ends.remote) == (session.ends.remote, session.ends.local) && !other.ended
        };
        of(session).or_else(|| all.iter().find(is_other).and_then(of))
    }

    /// Replaces a verdict by the rate limit: the waits of the connection follow from it.
    pub(super) fn amend(self, verdict: &mut Verdict) {
        verdict.sentence = format!(
            "{}, limited by the copy's own rate limit of {} (to change it: hikyaku ctl copy {} rate RATE).",
            units::rate(verdict.bytes_per_s),
            units::rate(self.bytes_per_s),
            self.pid,
        );
        (verdict.also, verdict.expected_bytes_per_s, verdict.next_limit) = (None, None, None);
        verdict.candidates.clear();
        verdict.advice.clear();
        verdict.notes.clear();
    }
}
