//! What reached the end that sends data, and when: the trigger of its next burst.

use std::collections::VecDeque;

use super::Trigger;
use crate::limits::ARRIVALS_MAX;

/// What a packet of the peer brings to a data sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brought {
    Ack,
    Response,
    Command,
}

/// Packets of the peer on their way from the point of capture to this end, and the last that arrived.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    due: VecDeque<(u64, Brought)>,
    ack_ns: Option<u64>,
    response_ns: Option<u64>,
    command_ns: Option<u64>,
}

impl Arrivals {
    /// A packet of the peer passed that arrives at `due_ns`.
    pub(super) fn on_peer(&mut self, due_ns: u64, what: Brought) {
        if self.due.len() == ARRIVALS_MAX {
            self.arrive();
        }
        self.due.push_back((due_ns, what));
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.due.capacity() * size_of::<(u64, Brought)>()
    }

    /// Lets everything arrive that is due at `now_ns`.
    pub(super) fn advance(&mut self, now_ns: u64) {
        while self.due.front().is_some_and(|(due_ns, _)| *due_ns <= now_ns) {
            self.arrive();
        }
    }

    fn arrive(&mut self) {
        let Some((due_ns, what)) = self.due.pop_front() else { return };
        *match what {
            Brought::Ack => &mut self.ack_ns,
            Brought::Response => &mut self.response_ns,
            Brought::Command => &mut self.command_ns,
        } = Some(due_ns);
    }

    /// What ended a pause of this end from `paused_ns` to `resumed_ns`: the last arrival in it, if the sender went on
    /// within `reaction_ns` of it. `r2t_ns` is when the last R2T of the command arrived.
    pub(super) fn trigger(
        &self,
        paused_ns: u64,
        resumed_ns: u64,
        reaction_ns: u64,
        r2t_ns: Option<u64>,
    ) -> Trigger {
        let from = paused_ns.max(resumed_ns.saturating_sub(reaction_ns));
        let within =
            |at: Option<u64>| at.filter(|at| *at >= from && *at <= resumed_ns.saturating_add(CLOSE_NS));
        if r2t_ns.is_some_and(|at| at >= paused_ns && at <= resumed_ns.saturating_add(reaction_ns)) {
            return Trigger::R2t;
        }
        let candidates = [
            (within(self.ack_ns), Trigger::Ack),
            (within(self.response_ns), Trigger::Response),
            (within(self.command_ns), Trigger::Command),
        ];
        // A PDU brings an acknowledgement too: of equal times the later entry wins.
        let last = candidates.into_iter().filter_map(|(at, trigger)| at.map(|at| (at, trigger)));
        last.max_by_key(|(at, _)| *at).map_or(Trigger::Nothing, |(_, trigger)| trigger)
    }
}

/// Times closer than this are one moment.
const CLOSE_NS: u64 = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_last_arrival_within_the_reaction_time_is_the_trigger() {
        let mut arrivals = Arrivals::default();
        for (due, what) in [
            (10 * MS, Brought::Ack),
            (20 * MS, Brought::Response),
            (20 * MS, Brought::Ack),
            (40 * MS, Brought::Ack),
        ] {
            arrivals.on_peer(due, what);
        }
        let table = [
            (9 * MS, 10 * MS, None, Trigger::Ack),
            // Of one moment: the PDU, not the acknowledgement that it carries.
            (15 * MS, 20 * MS, None, Trigger::Response),
            (15 * MS, 20 * MS, Some(19 * MS), Trigger::R2t),
            // The last arrival is 15 ms old, or from before the pause.
            (15 * MS, 35 * MS, None, Trigger::Nothing),
            (36 * MS, 39 * MS, Some(30 * MS), Trigger::Nothing),
        ];
        for (paused, resumed, r2t, expected) in table {
            arrivals.advance(resumed);
            assert_eq!(arrivals.trigger(paused, resumed, 2 * MS, r2t), expected, "{resumed}");
        }
    }

    #[test]
    fn a_flood_of_acknowledgements_is_bounded() {
        let mut arrivals = Arrivals::default();
        for at in 0..3 * ARRIVALS_MAX as u64 {
            arrivals.on_peer(at, Brought::Ack);
            arrivals.on_peer(at, Brought::Command);
        }
        assert!(arrivals.due.len() <= ARRIVALS_MAX);
    }
}
