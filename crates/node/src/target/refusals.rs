//! What is logged of connections that come to no session. Anybody can make them, thousands a second, so the log is bounded: the
//! first of a second in full, the others as a number when it is over.

use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// The refusals of a whole server.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    until: Duration,
    unsaid: u64,
}

impl Refusals {
    /// Another one, at `now`. If it is to be told in full: when to call [`Refusals::summary`].
    pub(super) fn add(&mut self, now: Duration) -> Option<Duration> {
        if now < self.until {
            self.unsaid += 1;
            return None;
        }
        self.until = now + SECOND;
        Some(self.until)
    }

    /// How many have not been told of.
    pub(super) fn summary(&mut self) -> u64 {
        std::mem::take(&mut self.unsaid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_second_is_told_and_the_others_are_counted() {
        let mut refusals = Refusals::default();
        let start = 100 * SECOND;
        let summary_at = start + SECOND;
        assert_eq!(refusals.add(start), Some(summary_at));
        for number in 0..5000 {
            assert_eq!(refusals.add(start + SECOND * number / 5000), None);
        }
        assert_eq!(refusals.add(start - SECOND), None, "another thread's clock may be behind");
        assert_eq!(refusals.summary(), 5001);
        assert_eq!(refusals.add(summary_at), Some(summary_at + SECOND));
        assert_eq!(refusals.summary(), 0);
    }

    #[test]
    fn none_is_lost_when_the_summary_is_late() {
        let mut refusals = Refusals::default();
        let told = (0..100).filter(|number| refusals.add(SECOND + SECOND * *number / 10).is_some()).count();
        assert_eq!((told, refusals.summary()), (10, 90));
    }
}
