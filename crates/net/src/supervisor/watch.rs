//! Whether a server hangs.
//!
//! A server counts the turns of its loop and says when it sleeps ([`crate::process`]). It hangs if for [`HANG_US`] it has
//! not turned, though it does not sleep, or sleeps while its bell rings or a frame that it waits for is there. The last
//! includes processes that were stopped.

use inet::Time;

use crate::process::Doing;

/// Without a turn for so long, a server that should work is as good as dead.
pub(super) const HANG_US: u64 = 1_000_000;
/// Distance of two looks. Several fit into [`HANG_US`]: on a machine that does not run the servers for want of cores, the
/// supervisor does not run either, and counts no time.
pub(super) const LOOK_US: u64 = 250_000;

/// What is seen of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) turns: u64,
    pub(super) doing: Doing,
    pub(super) bell_rings: bool,
    /// The device has a frame.
    pub(super) frame_waits: bool,
}

#[derive(Debug, Default)]
pub(super) struct Watch {
    turns: Option<u64>,
    /// Time without a turn that was due.
    stuck_us: u64,
    looked_at: Option<Time>,
}

impl Watch {
    /// Whether the server hangs.
    pub(super) fn look(&mut self, seen: Seen, now: Time) -> bool {
        let since = self.looked_at.replace(now).map_or(0, |looked_at| now.since(looked_at));
        let is_due = match seen.doing {
            Doing::Turning => true,
            Doing::Sleeping { receives } => seen.bell_rings || receives && seen.frame_waits,
        };
        let has_turned = self.turns.replace(seen.turns) != Some(seen.turns);
        if has_turned || !is_due {
            self.stuck_us = 0;
        } else {
            // A look that came late counts as one: the machine was busy, or asleep.
            self.stuck_us += since.min(2 * LOOK_US);
        }
        self.stuck_us >= HANG_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen = Seen { turns: 7, doing: Doing::Turning, bell_rings: false, frame_waits: false };

    /// Number of the look that finds a hang, of at most 100.
    fn looks(step_us: u64, seen: impl Fn(u64) -> Seen) -> Option<u64> {
        let mut watch = Watch::default();
        (0..100).find(|&look| watch.look(seen(look), Time(look * step_us)))
    }

    #[test]
    fn a_server_that_turns_or_has_nothing_to_do_does_not_hang() {
        let asleep = |receives| Seen { doing: Doing::Sleeping { receives }, ..SEEN };
        assert_eq!(looks(LOOK_US, |look| Seen { turns: look, ..SEEN }), None);
        assert_eq!(looks(LOOK_US, |_| asleep(true)), None);
        assert_eq!(looks(LOOK_US, |_| Seen { frame_waits: true, ..asleep(false) }), None, "no memory for it");
        assert_eq!(looks(LOOK_US, |look| Seen { bell_rings: look % 3 != 0, ..asleep(true) }), None);
    }

    #[test]
    fn a_server_that_does_not_turn_hangs_after_a_second() {
        let asleep = Seen { doing: Doing::Sleeping { receives: true }, ..SEEN };
        for seen in [SEEN, Seen { bell_rings: true, ..asleep }, Seen { frame_waits: true, ..asleep }] {
            assert_eq!(looks(LOOK_US, |_| seen), Some(HANG_US / LOOK_US), "{seen:?}");
        }
    }

    #[test]
    fn a_machine_that_stood_still_is_no_hang() {
        assert_eq!(looks(60_000_000, |look| Seen { turns: look / 2, ..SEEN }), None);
    }
}
