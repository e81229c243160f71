//! Frames that arrive.

use super::Engine;
use super::output::Reply;
use super::settle::Found;
use crate::iface::{IcmpError, IcmpErrorKind, Verdict};
use crate::packet::{Flags, TcpHeader};
use crate::pools::{Holder, Text};
use crate::tcp::{ChainKind, State, Step, TIME_WAIT_US, TimeWaitVerdict, Tuple};
use crate::{Arrived, NONE, SeqNumber, Time};

/// Of all connections, one in this many may be half-open.
const HALF_OPEN_SHARE: usize = 4;
/// A connection that follows one in TIME-WAIT begins this far behind its last number (RFC 6191 §2 needs more than 0; the
/// largest window without scaling is skipped too).
const REUSE_DISTANCE: u32 = 65_537;
/// A connection confirms its next hop at most once in this time: the look into the table of neighbours is not for each ACK.
/// Shorter than the shortest time in which a neighbour would be probed (DELAY_FIRST_PROBE_TIME of RFC 4861, 5 s).
const CONFIRM_US: u64 = 1_000_000;

impl Engine<'_> {
    /// A frame was received (`ethinput`). It belongs to the engine until `poll_free` returns it; a frame that it has
    /// already is ignored.
    pub fn on_frame(&mut self, arrived: &Arrived<'_>, now: Time) {
        let Some(frame) = self.pools.frames.get_mut(arrived.frame as usize) else { return };
        if frame.holder != Holder::Driver || arrived.header.len() > arrived.length as usize {
            return;
        }
        let step = match self.iface.on_frame(arrived, now) {
            Verdict::Tcp(tcp) => self.on_tcp(&tcp, arrived, now),
            Verdict::Error(error) => {
                self.on_icmp_error(&error, now);
                Step::Dropped
            }
            Verdict::Done => Step::Dropped,
            Verdict::Held => {
                self.pools.frames[arrived.frame as usize].holder = Holder::Iface;
                Step::Kept
            }
        };
        if step != Step::Kept {
            self.pools.free(arrived.frame);
        }
        self.after_iface();
    }

    fn on_tcp(&mut self, tcp: &TcpHeader, arrived: &Arrived<'_>, now: Time) -> Step {
        let tuple = Tuple { local: tcp.destination, remote: tcp.source };
        let step = match self.find(&tuple) {
            Some(Found::Connection(index)) => self.on_connection(index, tcp, arrived, now),
            Some(Found::TimeWait(index)) => self.on_time_wait(index, tcp, now),
            None => self.on_unknown(&tuple, tcp, None, now),
        };
        if step == Step::Refused {
            self.refuse(&tuple, tcp);
        }
        step
    }

    fn on_connection(&mut self, index: u32, tcp: &TcpHeader, arrived: &Arrived<'_>, now: Time) -> Step {
        let text = Text::of(tcp, arrived);
        let connection = &mut self.connections[index as usize];
        let progress = connection.progress();
        let mut step = match connection.state {
            State::SynSent => connection.on_segment_in_syn_sent(&mut self.pools, tcp, now),
            _ => connection.on_segment(&mut self.pools, index, tcp, &text, now),
        };
        if step == Step::Open {
            step = self.open(index, tcp, &text, now);
        }
        let connection = &mut self.connections[index as usize];
        if connection.progress() != progress
            && connection.state.is_synchronized()
            && now.since(connection.confirmed_at) >= CONFIRM_US
        {
            connection.confirmed_at = now;
            self.iface.confirm(&connection.route, now);
        }
        self.settle(index);
        step
    }

    /// The handshake is done; the segment that ended it may carry more.
    fn open(&mut self, index: u32, tcp: &TcpHeader, text: &Text, now: Time) -> Step {
        let connection = &mut self.connections[index as usize];
        if connection.listener != NONE {
            let listener = &mut self.listeners[connection.listener as usize];
            if listener.queue.length >= listener.backlog {
                // Not opened: the peer will repeat what it sends, and we repeat SYN.
                return Step::Dropped;
            }
            self.pools.header.half_open.remove(self.connections, ChainKind::HalfOpen, index);
            listener.half_open -= 1;
            listener.queue.push_back(self.connections, ChainKind::Queue, index);
            listener.incoming += 1;
            self.pools.clients[listener.client as usize].incoming += 1;
        }
        let connection = &mut self.connections[index as usize];
        let was_syn_sent = connection.state == State::SynSent;
        connection.open(tcp, now);
        if was_syn_sent {
            connection.on_content(&mut self.pools, index, tcp, text, now)
        } else {
            connection.on_segment(&mut self.pools, index, tcp, text, now)
        }
    }

    fn on_time_wait(&mut self, index: u32, tcp: &TcpHeader, now: Time) -> Step {
        let time_wait = self.time_waits[index as usize];
        match time_wait.on_segment(tcp) {
            TimeWaitVerdict::Dropped => {}
            TimeWaitVerdict::Acknowledge => self.reply(Reply::acknowledge(&time_wait, now)),
            TimeWaitVerdict::Restart => {
                self.restart_time_wait(index, now.after(TIME_WAIT_US));
                self.reply(Reply::acknowledge(&time_wait, now));
            }
            TimeWaitVerdict::Delete => self.delete_time_wait(index),
            TimeWaitVerdict::Reuse => {
                if self.listener_for(&time_wait.tuple).is_some() {
                    self.delete_time_wait(index);
                    let least = time_wait.snd_nxt + REUSE_DISTANCE;
                    return self.on_unknown(&time_wait.tuple, tcp, Some(least), now);
                }
            }
        }
        Step::Dropped
    }

    fn listener_for(&self, tuple: &Tuple) -> Option<u32> {
        let fits =
            (0..).zip(self.listeners.iter()).filter_map(|(index, it)| Some((it.fits(tuple.local)?, index)));
        fits.max().map(|(_, index)| index)
    }

    /// CLOSED and LISTEN (RFC 9293 §3.10.7.1, §3.10.7.2).
    fn on_unknown(&mut self, tuple: &Tuple, tcp: &TcpHeader, iss_min: Option<SeqNumber>, now: Time) -> Step {
        if tcp.flags.has(Flags::RST) {
            return Step::Dropped;
        }
        let Some(listener) = self.listener_for(tuple) else { return Step::Refused };
        if tcp.flags.has(Flags::ACK) {
            return Step::Refused;
        }
        if tcp.flags.has(Flags::SYN) {
            self.on_syn(listener, tuple, tcp, iss_min, now);
        }
        Step::Dropped
    }

    /// A SYN for a listener. Bytes and FIN in it are not acknowledged, so that the peer repeats them.
    fn on_syn(
        &mut self,
        listener: u32,
        tuple: &Tuple,
        tcp: &TcpHeader,
        iss_min: Option<SeqNumber>,
        now: Time,
    ) {
        let record = &self.listeners[listener as usize];
        let (client, options, backlog) = (record.client, record.options, record.backlog);
        if record.queue.length >= backlog {
            self.pools.header.drops.syns += 1;
            return;
        }
        let Ok(route) = self.iface.route(tuple.remote.address, Some(tuple.local.address)) else { return };
        let all = (self.connections.len() / HALF_OPEN_SHARE).max(1) as u32;
        if record.half_open >= backlog {
            self.drop_half_open(|connection| connection.listener == listener);
        } else if self.pools.header.half_open.length >= all {
            // The listener that has most gives way: a flood at one does not displace the few of another.
            let most = (0..).zip(self.listeners.iter()).max_by_key(|(_, it)| it.half_open);
            let most = most.map_or(listener, |(index, _)| index);
            self.drop_half_open(|connection| connection.listener == most);
        }
        if !self.make_room(client) {
            self.pools.header.drops.syns += 1;
            return;
        }
        let Some(index) = self.allocate(client, *tuple, route, options, iss_min, now) else { return };
        let connection = &mut self.connections[index as usize];
        (connection.listener, connection.is_passive) = (listener, true);
        connection.state = State::SynReceived;
        connection.on_peers_syn(tcp, now);
        connection.may_send = true;
        self.listeners[listener as usize].half_open += 1;
        self.pools.header.half_open.push_back(self.connections, ChainKind::HalfOpen, index);
        self.settle(index);
    }

    /// RST in answer to a segment that belongs to no connection, or acknowledges what was not sent (RFC 9293 §3.5.2).
    fn refuse(&mut self, tuple: &Tuple, tcp: &TcpHeader) {
        if !tcp.flags.has(Flags::RST) {
            self.reply(Reply::refuse(tuple, tcp));
        }
    }

    fn on_icmp_error(&mut self, error: &IcmpError, now: Time) {
        let tuple = Tuple { local: error.local, remote: error.remote };
        let Some(Found::Connection(index)) = self.find(&tuple) else { return };
        let connection = &mut self.connections[index as usize];
        match error.kind {
            IcmpErrorKind::PacketTooBig(mtu) => {
                connection.on_packet_too_big(&mut self.pools, error.seq, mtu, now);
            }
            IcmpErrorKind::Hard => connection.on_unreachable(&mut self.pools, error.seq, true),
            IcmpErrorKind::Soft => connection.on_unreachable(&mut self.pools, error.seq, false),
        }
        self.settle(index);
    }

    /// Connections that wait for a neighbour go on when resolutions have ended.
    pub(super) fn after_iface(&mut self) {
        let changes = self.iface.changes();
        if changes == self.pools.header.neighbour_changes {
            return;
        }
        self.pools.header.neighbour_changes = changes;
        for index in 0..self.connections.len() as u32 {
            let connection = &mut self.connections[index as usize];
            if std::mem::take(&mut connection.waits_for_neighbour) {
                connection.may_send = true;
                self.settle(index);
            }
        }
    }
}
