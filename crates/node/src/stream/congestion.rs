//! When a connection sends by another congestion control than the host's.
//!
//! CUBIC and Reno take every loss for a full queue. On a path that loses packets by itself, a radio link or a damaged
//! cable, they never use what it carries: at 50 ms one loss in ten thousand segments leaves 4 MB/s of any rate. BBR
//! models rate and round-trip time instead. A loss of a full queue is preceded by a longer round trip. So after
//! [`LOSSES`] without one, while the congestion window held data back, the connection goes on with BBR, if the kernel has
//! it and this process may use it. A connection for which the user has named one keeps that.

use std::time::Duration;

use io::Path;

/// A shorter round trip lets CUBIC recover before the loss costs much.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(5);
/// Losses without a queue after which the path counts as one that loses packets by itself.
const LOSSES: u32 = 3;
/// Round trips in which retransmissions belong to one loss.
const RECOVERY_ROUNDS: u32 = 2;
/// Least time between two looks.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct Congestion {
    next: Duration,
    looked_at: Duration,
    /// Nothing is to be chosen any more.
    is_settled: bool,
    /// As of the last look.
    retransmitted: u32,
    was_full: bool,
    /// Losses without a queue since the last one with it.
    losses: u32,
}

impl Congestion {
    pub(super) fn is_due(&self, now: Duration) -> bool {
        !self.is_settled && now >= self.next
    }

    /// The congestion control stays as it is.
    pub(super) fn settle(&mut self) {
        self.is_settled = true;
    }

    /// Whether the connection should go on with BBR. Asked for once.
    pub(super) fn look(&mut self, now: Duration, path: Option<Path>) -> bool {
        self.next = now + LOOK;
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked_at, now));
        let Some(path) = path else { return false };
        let before = std::mem::replace(&mut self.retransmitted, path.retransmitted);
        let was_full = std::mem::replace(&mut self.was_full, path.is_window_full());
        let retransmitted = path.retransmitted.wrapping_sub(before);
        if retransmitted == 0 || path.round_trip_least < ROUND_TRIP_MIN {
            return false;
        }
        let recovery = (path.round_trip * RECOVERY_ROUNDS).max(LOOK);
        self.next = now + recovery;
        // On a slow path the time between two looks is that of a send, seconds with many losses.
        let most = (passed.as_secs_f64() / recovery.as_secs_f64()) as u32;
        if io::is_queued(path.round_trip, path.round_trip_least) {
            self.losses = 0;
        } else if was_full || self.was_full {
            self.losses += retransmitted.min(most.max(1));
        }
        self.is_settled = self.losses >= LOSSES;
        self.is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn path(least_ms: u32, round_trip_ms: u32, retransmitted: u32, unsent_bytes: u64) -> Option<Path> {
        Some(Path {
            round_trip: MS * round_trip_ms,
            round_trip_least: MS * least_ms,
            retransmitted,
            unsent_bytes,
            unacknowledged_bytes: 1 << 20,
            ..Path::default()
        })
    }

    /// Looks each 500 ms; each item is the retransmissions so far, the smoothed round-trip time in ms and the bytes that
    /// the window holds back. Returns the look at which BBR is chosen.
    fn chosen(least_ms: u32, looks: &[(u32, u32, u64)]) -> Option<usize> {
        let mut congestion = Congestion::default();
        looks.iter().enumerate().find_map(|(index, (retransmitted, round_trip_ms, unsent_bytes))| {
            let now = MS * 500 * index as u32;
            assert!(congestion.is_due(now));
            congestion
                .look(now, path(least_ms, *round_trip_ms, *retransmitted, *unsent_bytes))
                .then_some(index)
        })
    }

    #[test]
    fn losses_without_a_queue_that_hold_data_back() {
        const WAITS: u64 = 1 << 20;
        for (least, looks, expected, why) in [
            (50, &[(0, 50, WAITS), (1, 50, WAITS), (2, 51, WAITS), (3, 52, WAITS)][..], Some(3), "by itself"),
            (50, &[(1, 50, WAITS), (1, 50, WAITS), (1, 50, WAITS), (1, 50, WAITS)], None, "one loss"),
            (50, &[(1, 90, WAITS), (2, 99, WAITS), (3, 80, WAITS), (4, 90, WAITS)], None, "a full queue"),
            (
                50,
                &[(1, 50, WAITS), (2, 50, WAITS), (9, 90, WAITS), (10, 50, WAITS), (11, 50, WAITS)],
                None,
                "both",
            ),
            (50, &[(1, 50, 0), (2, 50, 0), (3, 50, 0), (4, 50, 0)], None, "nothing waits"),
            (2, &[(1, 2, WAITS), (2, 2, WAITS), (3, 2, WAITS), (4, 2, WAITS)], None, "near"),
        ] {
            assert_eq!(chosen(least, looks), expected, "{why}");
        }
    }

    #[test]
    fn one_recovery_is_one_loss() {
        let mut congestion = Congestion::default();
        let path = |retransmitted| path(100, 100, retransmitted, 1 << 20);
        assert!(!congestion.look(MS, path(10)));
        assert!(!congestion.is_due(MS * 200) && congestion.is_due(MS * 201));
        assert!(!congestion.look(MS * 201, path(10)), "no further one");
        assert!(congestion.is_due(MS * 251));
    }

    #[test]
    fn many_losses_between_two_looks_are_seen_at_once() {
        for (retransmitted, seconds, expected) in [(7, 4, true), (2, 4, false), (7, 0, false)] {
            let mut congestion = Congestion::default();
            let path = |retransmitted| path(50, 50, retransmitted, 1 << 20);
            assert!(!congestion.look(MS, path(0)));
            let is_chosen = congestion.look(MS * 100 + Duration::from_secs(seconds), path(retransmitted));
            assert_eq!(is_chosen, expected, "{retransmitted} in {seconds} s");
        }
    }

    #[test]
    fn what_was_settled_is_not_asked_again() {
        let mut congestion = Congestion::default();
        assert!(!congestion.look(MS, None), "no network");
        congestion.settle();
        assert!(!congestion.is_due(Duration::MAX));
    }
}
