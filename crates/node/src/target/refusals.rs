//! What is logged of connections that come to no session. Any host can make them, thousands a second, so the log is bounded: of
//! each second the first [`REASONS_MAX`] reasons that differ are logged in full, the others as a number when it is over.

use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// Lines of a second.
const REASONS_MAX: usize = 4;

/// The refusals of a whole server.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    until: Duration,
    logged: Vec<String>,
    unsaid: u64,
}

impl Refusals {
    /// Another one, at `now`. If it is to be logged in full: when to call [`Refusals::summary`].
    pub(super) fn add(&mut self, now: Duration, reason: &str) -> Option<Duration> {
        if now >= self.until {
            self.until = now + SECOND;
            self.logged.clear();
        }
        if self.logged.len() == REASONS_MAX || self.logged.iter().any(|logged| logged == reason) {
            self.unsaid += 1;
            return None;
        }
        self.logged.push(reason.to_owned());
        Some(self.until)
    }

    /// How many have not been logged.
    pub(super) fn summary(&mut self) -> u64 {
        std::mem::take(&mut self.unsaid)
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
