//! The bounded log of connections without a session. Any host can cause thousands per second, so that in each second
//! the first [`REASONS_MAX`] distinct reasons are logged in full, and the others as a count at its end.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::handshake::ENQUIRY;

const SECOND: Duration = Duration::from_secs(1);
const REASONS_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct RefusalLog(Mutex<Refusals>);

impl RefusalLog {
    /// Logs a connection that got no session. If it is logged in full, returns when to call [`Self::log_summary`].
    pub(super) fn log(&self, now: Duration, peer: SocketAddr, reason: &str) -> Option<Duration> {
        let summary_at = self.refusals().add(now, reason)?;
        match reason {
            ENQUIRY => tracing::info!(%peer, "sent this server's public key"),
            _ => tracing::warn!(%peer, reason, "no session"),
        }
        Some(summary_at)
    }

    pub(super) fn log_summary(&self) {
        let more = self.refusals().summary();
        if more > 0 {
            tracing::warn!(more, "connections came to no session within a second");
        }
    }

    /// Counters, usable in any state a panic leaves: poisoning is ignored.
    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Refusals {
    until: Duration,
    logged: Vec<String>,
    unlogged: u64,
}

impl Refusals {
    /// Adds a refusal at `now`. If it is to be logged in full, returns when to call [`Refusals::summary`].
    fn add(&mut self, now: Duration, reason: &str) -> Option<Duration> {
        if now >= self.until {
            self.until = now + SECOND;
            self.logged.clear();
        }
        if self.logged.len() == REASONS_MAX || self.logged.iter().any(|logged| logged == reason) {
            self.unlogged += 1;
            return None;
        }
        self.logged.push(reason.to_owned());
        Some(self.until)
    }

    /// The number not logged; resets it.
    fn summary(&mut self) -> u64 {
        std::mem::take(&mut self.unlogged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_second_is_logged_and_its_repetitions_are_counted() {
        let mut refusals = Refusals::default();
        let start = 100 * SECOND;
        let summary_at = start + SECOND;
        assert_eq!(refusals.add(start, "a"), Some(summary_at));
        for number in 0..5000 {
            assert_eq!(refusals.add(start + SECOND * number / 5000, "a"), None);
        }
        assert_eq!(refusals.add(start - SECOND, "a"), None, "another thread's clock may be behind");
        assert_eq!(refusals.summary(), 5001);
        assert_eq!(refusals.add(summary_at, "a"), Some(summary_at + SECOND));
        assert_eq!(refusals.summary(), 0);
    }

    #[test]
    fn another_reason_is_logged_beside_a_flood_and_reasons_without_end_are_not() {
        let mut refusals = Refusals::default();
        let logged = |refusals: &mut Refusals, reason: &str| refusals.add(SECOND, reason).is_some();
        assert!(logged(&mut refusals, "flood") && !logged(&mut refusals, "flood"));
        assert!(logged(&mut refusals, "its key is not among the peers"));
        let all = (0..100).filter(|number| logged(&mut refusals, &number.to_string())).count();
        assert_eq!((all, refusals.summary()), (REASONS_MAX - 2, 1 + 100 - 2));
    }

    #[test]
    fn none_is_lost_when_the_summary_is_late() {
        let mut refusals = Refusals::default();
        let at = |number| SECOND + SECOND * number / 10;
        let logged = (0..100).filter(|number| refusals.add(at(*number), "a").is_some()).count();
        assert_eq!((logged, refusals.summary()), (10, 90));
    }
}
