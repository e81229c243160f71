//! Data transfer on links, and the closing of their ends.

use std::os::fd::RawFd;
use std::time::Duration;

use super::{End, Link, LinkId, Net, Role, Segment, Side, What};
use crate::state::{Due, Op, OpId, State};

impl State {
    fn end_of(&self, fd: RawFd) -> Option<(LinkId, Side)> {
        match self.sockets.get(&fd)?.role {
            Role::End(link, side) => Some((link, side)),
            _ => None,
        }
    }

    pub(crate) fn receive(&mut self, op: OpId, fd: RawFd) {
        let Some((link, side)) = self.end_of(fd) else { return self.complete(op, 0) };
        self.links[link].ends[side].receive = Some(op);
        self.net_soon(Net::Receive(link, side));
    }

    pub(super) fn on_receive(&mut self, link: LinkId, side: Side) {
        let End { receive: Some(op), error, .. } = self.links[link].ends[side] else { return };
        let Some(Op::Receive(message)) = self.op(op) else { return };
        let there = self.links[link].directions[1 - side].buffer.len();
        let result = if there > 0 {
            let most = there.min(message.len());
            let count = if self.random.one_in(self.weather.fragments) {
                self.random.within(1..most as u64 + 1) as usize
            } else {
                most
            };
            let direction = &mut self.links[link].directions[1 - side];
            direction.bytes -= count;
            let bytes: Vec<u8> = direction.buffer.drain(..count).collect();
            message.copy_in(&bytes);
            self.net_soon(Net::Send(link, 1 - side));
            count as i32
        } else if error != 0 {
            -error
        } else if self.links[link].directions[1 - side].eof {
            0
        } else {
            return;
        };
        self.links[link].ends[side].receive = None;
        self.trace("received", &[link as u64, side as u64, result as u64]);
        self.complete(op, result);
    }

    pub(crate) fn send(&mut self, op: OpId, fd: RawFd) {
        let Some((link, side)) = self.end_of(fd) else { return self.complete(op, -libc::EPIPE) };
        self.links[link].ends[side].send = Some(op);
        self.net_soon(Net::Send(link, side));
    }

    pub(super) fn on_send(&mut self, link: LinkId, side: Side) {
        let End { send: Some(op), error, .. } = self.links[link].ends[side] else { return };
        let Some(Op::Send { message, done }) = self.op(op) else { return };
        let length = message.len();
        if error != 0 {
            let result = if done > 0 { done as i32 } else { -error };
            return self.end_send(link, side, op, result);
        }
        let space = self.weather.capacity.saturating_sub(self.links[link].directions[side].bytes);
        let most = space.min(length - done);
        if most == 0 {
            return;
        }
        let fragment = self.random.one_in(self.weather.fragments);
        let count = if fragment { self.random.magnitude(1..most as u64 + 1) as usize } else { most };
        let bytes = message.copy_out(done, count);
        self.carry(link, side, bytes);
        let done = done + count;
        if let Some(Op::Send { done: noted, .. }) =
            self.loops.get_mut(&op.0).and_then(|found| found.ops.get_mut(&op.1))
        {
            *noted = done;
        }
        if done == length || self.random.one_in(8) {
            self.end_send(link, side, op, done as i32);
        } else {
            self.net_soon(Net::Send(link, side));
        }
    }

    fn end_send(&mut self, link: LinkId, side: Side, op: OpId, result: i32) {
        self.links[link].ends[side].send = None;
        self.trace("sent", &[link as u64, side as u64, result as u64]);
        self.complete(op, result);
    }

    fn carry(&mut self, link: LinkId, side: Side, mut bytes: Vec<u8>) {
        let direction = &mut self.links[link].directions[side];
        direction.bytes += bytes.len();
        direction.carried += bytes.len() as u64;
        if direction.dead {
            return;
        }
        let reset = direction.reset_at.is_some_and(|at| direction.carried >= at);
        if reset {
            let over = direction.carried - direction.reset_at.take().expect("just looked at");
            bytes.truncate(bytes.len() - (over as usize).min(bytes.len()));
        }
        self.ship(link, side, What::Bytes(bytes));
        if reset {
            self.counters.resets += 1;
            self.trace("reset", &[link as u64, side as u64]);
            self.ship(link, side, What::Reset);
            self.links[link].directions[side].dead = true;
            let delay = self.latency();
            self.net_after(delay, Net::Reset(link, side, libc::ECONNRESET));
        }
    }

    pub(super) fn ship(&mut self, link: LinkId, side: Side, what: What) {
        let latency = self.latency();
        let at = (self.now + latency).max(self.links[link].directions[side].last);
        let direction = &mut self.links[link].directions[side];
        direction.last = at;
        direction.flight.push_back(Segment { at, what });
        self.at(at, Due::Net(Net::Arrive(link, side)));
    }

    pub(super) fn on_arrive(&mut self, link: LinkId, side: Side) {
        let Some(segment) = self.links[link].directions[side].flight.front() else { return };
        if segment.at > self.now {
            // The segment was delayed after its arrival was scheduled.
            let at = segment.at;
            return self.at(at, Due::Net(Net::Arrive(link, side)));
        }
        let what = self.links[link].directions[side].flight.pop_front().expect("just looked at").what;
        let receiver = &self.links[link].ends[1 - side];
        let length = if let What::Bytes(bytes) = &what { bytes.len() as u64 } else { 0 };
        let machine = self.machines[receiver.machine];
        let (open, vanished, error) = (receiver.open, receiver.vanished, receiver.error);
        if side == 0 && length > 0 {
            self.observe(link, open && error == 0);
        }
        self.trace("arrive", &[link as u64, side as u64, length]);
        if vanished && !machine.on {
            return self.net_after(Duration::from_millis(200), Net::Probe(link, side, 0));
        }
        match what {
            What::Reset => return self.on_reset(link, 1 - side, libc::ECONNRESET),
            _ if error != 0 => return,
            What::End if open => self.links[link].directions[side].eof = true,
            What::Bytes(bytes) if open => {
                self.links[link].directions[side].buffer.extend(bytes);
            }
            _ => {
                let delay = self.latency();
                return self.net_after(delay, Net::Reset(link, side, libc::ECONNRESET));
            }
        }
        self.net_soon(Net::Receive(link, 1 - side));
    }

    fn observe(&mut self, link: LinkId, received: bool) {
        let client = self.links[link].client;
        if self.links[link + 1..].iter().any(|newer| newer.client == client && newer.established) {
            self.counters.late_segments += 1;
            self.counters.late_segments_heard += u64::from(received);
        }
        if !self.links[link].spoken {
            self.links[link].spoken = true;
            let still =
                |older: &Link| older.client == client && older.ends[1].open && older.ends[1].error == 0;
            self.counters.reinstatements += u64::from(self.links[..link].iter().any(still));
        }
    }

    /// Closes the end of a process; data already sent still travels.
    pub(super) fn close_end(&mut self, link: LinkId, side: Side) {
        let end = &mut self.links[link].ends[side];
        if !end.open {
            return;
        }
        end.open = false;
        let (receive, send, error) = (end.receive.take(), end.send.take(), end.error);
        self.trace("close", &[link as u64, side as u64]);
        if let Some(op) = receive {
            self.complete(op, 0);
        }
        if let Some(op) = send {
            let done = if let Some(Op::Send { done, .. }) = self.op(op) { done } else { 0 };
            self.complete(op, if done > 0 { done as i32 } else { -libc::EPIPE });
        }
        if error == 0 && !self.links[link].directions[side].dead {
            // As in Linux: a reset if unread data is left.
            let unread = !self.links[link].directions[1 - side].buffer.is_empty();
            self.ship(link, side, if unread { What::Reset } else { What::End });
        }
    }
}
