//! Faults of links: resets, vanished machines, stalls, and links that are dead for one end only.

use std::time::Duration;

use super::{Link, LinkId, Net, Role, Side, VANISHED};
use crate::state::{LoopId, MachineId, OpId, State};

impl State {
    pub(super) fn on_reset(&mut self, link: LinkId, side: Side, error: i32) {
        let end = &mut self.links[link].ends[side];
        if end.error == 0 && end.open {
            end.error = error;
            self.trace("lost", &[link as u64, side as u64, error as u64]);
            self.net_soon(Net::Receive(link, side));
            self.net_soon(Net::Send(link, side));
        }
    }

    pub(super) fn on_probe(&mut self, link: LinkId, side: Side, attempt: u32) {
        let [sender, receiver] = [side, 1 - side].map(|side| &self.links[link].ends[side]);
        if !sender.open || sender.error != 0 {
            return;
        }
        if self.machines[receiver.machine].on {
            return self.on_reset(link, side, libc::ECONNRESET);
        }
        let delay = Duration::from_millis(200 << attempt.min(6));
        self.net_after(delay, Net::Probe(link, side, attempt + 1));
    }

    /// Ends the process on `machine`; see [`crate::world::Context::kill`].
    pub(crate) fn vanish(&mut self, machine: MachineId, power: bool) {
        let life = self.machines[machine].life;
        let mut words: Vec<u64> = self
            .sockets
            .values()
            .filter(|socket| socket.machine == machine && socket.life == life)
            .map(|socket| socket.word)
            .collect();
        // Sorted by word: descriptor numbers depend on other code in this process.
        words.sort_unstable();
        if !power {
            return words.into_iter().for_each(|word| self.on_shut(word));
        }
        for socket in self.sockets.values_mut().filter(|socket| words.contains(&socket.word)) {
            socket.role = Role::Shut;
        }
        for listener in
            self.listeners.iter_mut().filter(|found| found.machine == machine && found.life == life)
        {
            listener.open = false;
            listener.accepts.clear();
            listener.backlog.clear();
        }
        for link in 0..self.links.len() {
            for side in [0, 1] {
                let end = &mut self.links[link].ends[side];
                if end.machine != machine || end.life != life || !end.open {
                    continue;
                }
                (end.open, end.vanished, end.receive, end.send) = (false, true, None, None);
                // A random part of the data in flight still arrives.
                let flight = self.links[link].directions[side].flight.len() as u64;
                let left = self.random.within(0..flight + 1) as usize;
                let direction = &mut self.links[link].directions[side];
                direction.flight.truncate(left);
                direction.dead = true;
                let timeout = self.micros(VANISHED);
                self.net_after(timeout, Net::Reset(link, 1 - side, libc::ETIMEDOUT));
            }
        }
    }

    /// Removes a dropped loop: no link or socket refers to its operations any more.
    pub(crate) fn forget(&mut self, id: LoopId) {
        let other = |op: &OpId| op.0 != id;
        for end in self.links.iter_mut().flat_map(|link| &mut link.ends) {
            (end.receive, end.send) = (end.receive.filter(other), end.send.filter(other));
        }
        for listener in &mut self.listeners {
            listener.accepts.retain(other);
        }
        for socket in self.sockets.values_mut() {
            if let Role::Fresh { connecting } = &mut socket.role {
                *connecting = connecting.filter(other);
            }
        }
        self.wakes.retain(|_, op| other(op));
    }

    /// Established links with both ends open.
    pub(crate) fn live_links(&self) -> Vec<LinkId> {
        let alive = |link: &Link| link.established && link.ends.iter().all(|end| end.open && end.error == 0);
        (0..self.links.len()).filter(|link| alive(&self.links[*link])).collect()
    }

    /// Resets the link after `side` has sent so many more bytes.
    pub(crate) fn reset_after(&mut self, link: LinkId, side: Side, bytes: u64) {
        let direction = &mut self.links[link].directions[side];
        direction.reset_at = Some(direction.carried + bytes);
    }

    /// Delays the data in flight, and all data after it.
    pub(crate) fn stall(&mut self, link: LinkId, side: Side, time: Duration) {
        self.counters.stalls += 1;
        self.delay(link, side, time);
    }

    fn delay(&mut self, link: LinkId, side: Side, time: Duration) {
        let now = self.now;
        let direction = &mut self.links[link].directions[side];
        for segment in &mut direction.flight {
            segment.at += time;
        }
        direction.last = direction.last.max(now) + time;
    }

    /// Delays the initiator's data, so that some gathers, and after `wait` kills the link by [`State::half_kill`].
    pub(crate) fn half_kill_after(&mut self, link: LinkId, wait: Duration, notified: bool, late: Duration) {
        self.delay(link, 0, wait);
        self.net_after(wait, Net::HalfKill { link, notified, late });
    }

    /// The link is dead for the initiator: immediately with `notified`, otherwise when its timeout ends. Data sent to the
    /// target arrives `late`; the target gets ETIMEDOUT 15 to 60 s after that.
    pub(super) fn half_kill(&mut self, link: LinkId, notified: bool, late: Duration) {
        let [initiator, target] = &self.links[link].ends;
        if !initiator.open || !target.open || initiator.error != 0 || self.links[link].directions[0].dead {
            return;
        }
        self.counters.half_dead += 1;
        self.trace("half dead", &[link as u64, u64::from(notified), late.as_micros() as u64]);
        self.delay(link, 0, late);
        self.links[link].directions[0].dead = true;
        self.links[link].directions[1].dead = true;
        self.links[link].directions[1].flight.clear();
        if notified {
            self.on_reset(link, 0, libc::ECONNRESET);
        }
        let timeout = self.micros(VANISHED);
        self.net_after(late + timeout, Net::Reset(link, 1, libc::ETIMEDOUT));
    }
}
