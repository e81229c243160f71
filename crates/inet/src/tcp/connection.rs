//! A connection, and what an arriving segment does to it. The order of steps is that of RFC 9293 §3.10.7.4.

use zerocopy::FromZeros;

use super::handshake::Opening;
use super::receive::{Fate, Receive};
use super::recovery::{Ack, Recovery, TIMESTAMP_TICK_US};
use super::send::Send;
use super::{
    CHALLENGES, CHALLENGES_US, FIN_WAIT_US, KEEP_ALIVE_PROBES, KEEP_ALIVE_US_MAX, ORPHAN_RETRIES, R2_RETRIES,
    State, TIME_WAIT_US, TIMESTAMP_US_MAX, TimeWait, Tuple, timestamp,
};
use crate::chain::{Link, Linked};
use crate::iface::Route;
use crate::packet::{Flags, TcpHeader};
use crate::pools::{Owner, Pools, Text};
use crate::{ConnectionId, Ended, Event, Link as Device, Options, Record, SeqNumber, Time};

/// Lists of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// May have a segment to send.
    Sending,
    /// Has events for its client.
    Reports,
    /// Has pieces that wait for a driver.
    AtDriver,
    /// Free ones, or those that a listener has for `accept`.
    Queue,
    HalfOpen,
    WantRoom,
    /// Closed by the client, and not over.
    Orphans,
}

const KINDS: usize = 7;

/// The last segment of a connection that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub(crate) enum Final {
    None = 0,
    /// The peer's FIN was the last one.
    Ack,
    Reset,
}

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Connection {
    links: [Link; KINDS],
    pub(crate) generation: u32,
    pub(crate) client: u32,
    /// Index of the listener, of a connection that was not accepted; else [`crate::NONE`].
    pub(crate) listener: u32,
    pub(crate) tuple: Tuple,
    pub(crate) route: Route,
    pub(crate) options: Options,
    pub(crate) state: State,
    /// It was opened by a SYN of the peer.
    pub(crate) is_passive: bool,
    /// In the table of connections.
    pub(crate) is_in_table: bool,
    /// Its next hop is not known yet.
    pub(crate) waits_for_neighbour: bool,
    /// The client closed it: bytes that arrive have no receiver.
    pub(crate) is_closed: bool,
    /// The client is gone: no events.
    pub(crate) is_abandoned: bool,
    /// Something has changed that may be worth a segment.
    pub(crate) may_send: bool,
    /// Leaves TIME-WAIT behind.
    pub(crate) leaves_time_wait: bool,
    pub(crate) last: Final,
    // Events that the client has not had yet.
    has_connected: bool,
    has_peer_closed: bool,
    pub(crate) has_room: bool,
    has_ended: bool,
    pub(crate) ended: Ended,
    /// A soft ICMP error arrived while the connection was being opened.
    pub(crate) has_soft_error: bool,
    // Options of the connection.
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    pub(crate) timestamp_offset: u32,
    /// TS.Recent
    pub(crate) recent: u32,
    pub(crate) recent_at: Time,
    /// When progress last confirmed the next hop.
    pub(crate) confirmed_at: Time,
    /// When a challenge ACK was sent, and how many since then.
    challenged_at: Time,
    challenges: u8,
    keep_alive_probes: u8,
    keep_alive_at: Time,
    /// FIN-WAIT-2 ends; of a connection that is over, TIME-WAIT.
    wait_until: Time,
    pub(crate) opening: Opening,
    pub(crate) receive: Receive,
    pub(crate) send: Send,
    pub(crate) recovery: Recovery,
}

const _: () = assert!(size_of::<Connection>() <= 1024);

impl Record for Connection {}

impl Linked<Kind> for Connection {
    fn link(&mut self, kind: Kind) -> &mut Link {
        &mut self.links[kind as usize]
    }
}

/// What the caller does with the segment, or because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Dropped,
    Kept,
    /// The segment is answered with `<SEQ=SEG.ACK><CTL=RST>`.
    Refused,
    /// The handshake is done, and the segment is to be processed (again) in ESTABLISHED.
    Open,
}

impl Connection {
    pub(crate) fn new(
        generation: u32,
        client: u32,
        tuple: Tuple,
        options: Options,
        iss: SeqNumber,
        now: Time,
    ) -> Self {
        Self {
            generation,
            client,
            listener: crate::NONE,
            tuple,
            options,
            opening: Opening::new(now),
            recovery: Recovery::new(iss + 1, 0, options.algorithm, now),
            receive: Receive::new(options.receive_bytes_max, now),
            send: Send::new(iss),
            recent_at: now,
            challenged_at: now,
            keep_alive_at: Time::NEVER,
            wait_until: Time::NEVER,
            ..Self::new_zeroed()
        }
    }

    pub(crate) fn is_in(&self, kind: Kind) -> bool {
        self.links[kind as usize].is_in
    }

    pub(crate) fn id(&self, index: u32) -> ConnectionId {
        ConnectionId { index, generation: self.generation }
    }

    /// Accepted by its client, or opened by it.
    pub(crate) fn is_clients(&self) -> bool {
        self.listener == crate::NONE && !self.is_abandoned
    }

    /// Moves when the peer has taken what was sent to it: it acknowledges more, or it sends more, which it does only if it
    /// gets our ACKs (RFC 4861 §7.3.1). Only an acceptable segment moves it.
    pub(crate) fn progress(&self) -> (SeqNumber, SeqNumber) {
        (self.send.una, self.receive.nxt)
    }

    /// A segment for a connection in SYN-RECEIVED or later.
    pub(crate) fn on_segment(
        &mut self,
        pools: &mut Pools<'_>,
        index: u32,
        tcp: &TcpHeader,
        text: &Text,
        now: Time,
    ) -> Step {
        let flags = tcp.flags;
        let is_reset = flags.has(Flags::RST);
        // RFC 7323 §5.3, R1: a segment that is older than the last one. §3.2: one without the option is dropped.
        if self.timestamps && !is_reset {
            let Some((value, _)) = tcp.timestamps else { return Step::Dropped };
            let is_old = SeqNumber(value).is_before(SeqNumber(self.recent));
            if is_old && now.since(self.recent_at) < TIMESTAMP_US_MAX {
                self.challenge(text.length > 0, now);
                return Step::Dropped;
            }
        }
        // First: is it acceptable?
        if !self.receive.is_acceptable(tcp.seq, tcp.sequence_length()) {
            return self.on_unacceptable(pools, tcp, text, now);
        }
        // Second: RST (RFC 5961 §3.2).
        if is_reset {
            if tcp.seq != self.receive.nxt {
                self.challenge(false, now);
            } else {
                let ended = if self.state == State::SynReceived { Ended::Refused } else { Ended::Reset };
                self.finish(pools, ended, Final::None);
            }
            return Step::Dropped;
        }
        // Fourth: SYN (RFC 5961 §4.2).
        if flags.has(Flags::SYN) {
            self.challenge(false, now);
            return Step::Dropped;
        }
        // Fifth: ACK.
        if !flags.has(Flags::ACK) {
            return Step::Dropped;
        }
        if self.state == State::SynReceived {
            if !tcp.ack.is_after(self.send.una) || tcp.ack.is_after(self.send.nxt) {
                return Step::Refused;
            }
            return Step::Open;
        }
        // RFC 7323 §4.3: TS.Recent is that of the segment that the next ACK answers.
        if let Some((value, _)) = tcp.timestamps
            && self.timestamps
            && !tcp.seq.is_after(self.receive.acknowledged)
        {
            (self.recent, self.recent_at) = (value, now);
        }
        if !self.on_ack(pools, tcp, now) {
            return Step::Dropped;
        }
        if self.state == State::Over {
            return Step::Dropped;
        }
        // Sixth: URG is ignored, its bytes are bytes of the stream (RFC 6093 §3.2).
        self.on_content(pools, index, tcp, text, now)
    }

    /// Seventh and eighth: text and FIN.
    pub(crate) fn on_content(
        &mut self,
        pools: &mut Pools<'_>,
        index: u32,
        tcp: &TcpHeader,
        text: &Text,
        now: Time,
    ) -> Step {
        let mut step = Step::Dropped;
        let has_fin = tcp.flags.has(Flags::FIN);
        if text.length > 0 && self.state.receives() {
            let brings_new = (text.seq + text.length).is_after(self.receive.nxt);
            if self.is_closed && brings_new {
                // RFC 9293 §3.6.1: bytes that no client will receive.
                self.finish(pools, Ended::Aborted, Final::Reset);
                return Step::Dropped;
            }
            let owner = Owner { connection: self.id(index), client: self.client };
            if self.receive.on_text(pools, owner, text, now) == Fate::Kept {
                step = Step::Kept;
            }
            self.may_send |= self.receive.ack_now;
        }
        if has_fin && self.state.receives() && !self.receive.has_fin {
            let fin = text.seq + text.length;
            if fin.is_before(self.receive.edge) || fin == self.receive.nxt {
                (self.receive.fin, self.receive.has_fin) = (fin, true);
            }
        }
        if self.receive.has_fin && self.receive.nxt == self.receive.fin && self.state.receives() {
            self.on_fin(pools, now);
        } else if has_fin && self.state.receives() {
            // RFC 5681 §4.2: out of order, as bytes.
            (self.receive.ack_now, self.may_send) = (true, true);
        }
        step
    }

    fn on_fin(&mut self, pools: &mut Pools<'_>, now: Time) {
        self.receive.nxt = self.receive.nxt + 1;
        self.receive.edge = self.receive.edge.max(self.receive.nxt);
        self.receive.ack_now = true;
        self.receive.arrived_at = now;
        self.may_send = true;
        self.has_peer_closed = true;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 if self.send.is_fin_acknowledged() => self.close_orderly(pools, Final::Ack, now),
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.close_orderly(pools, Final::Ack, now),
            _ => {}
        }
    }

    /// TIME-WAIT: its record is made when the engine settles.
    fn close_orderly(&mut self, pools: &mut Pools<'_>, last: Final, now: Time) {
        self.leaves_time_wait = true;
        self.wait_until = now.after(TIME_WAIT_US);
        self.finish(pools, Ended::Closed, last);
    }

    pub(crate) fn time_wait(&self) -> TimeWait {
        let window = self.receive.edge.distance(self.receive.nxt).max(0) >> self.receive.shift;
        TimeWait {
            link: Link::default(),
            tuple: self.tuple,
            snd_nxt: self.send.nxt,
            rcv_nxt: self.receive.nxt,
            window: window.clamp(0, i32::from(u16::MAX)) as u16,
            timestamps: self.timestamps,
            timestamp_offset: self.timestamp_offset,
            recent: self.recent,
            expires: self.wait_until,
        }
    }

    fn on_unacceptable(&mut self, pools: &mut Pools<'_>, tcp: &TcpHeader, text: &Text, now: Time) -> Step {
        if tcp.flags.has(Flags::RST) {
            return Step::Dropped;
        }
        if self.state == State::SynReceived && tcp.flags.has(Flags::SYN) && tcp.seq + 1 == self.receive.nxt {
            let is_ours = tcp.flags.has(Flags::ACK)
                && tcp.ack.is_after(self.send.una)
                && !tcp.ack.is_after(self.send.nxt);
            if is_ours && !self.is_passive {
                // Both opened at once (RFC 9293 §3.5, Figure 8): this ends it.
                return Step::Open;
            }
            // Our SYN was lost: once more, without waiting for the timer.
            if self.may_challenge(now) {
                (self.opening.is_due, self.may_send) = (true, true);
            }
            return Step::Dropped;
        }
        // An ACK is processed though the window is closed (RFC 9293 §3.10.7.4, first).
        let is_next = tcp.seq == self.receive.nxt && self.receive.edge == self.receive.nxt;
        if is_next && tcp.flags.has(Flags::ACK) && !tcp.flags.has(Flags::SYN) && self.state.is_synchronized()
        {
            self.on_ack(pools, tcp, now);
        }
        if text.length > 0 && tcp.seq.is_before(self.receive.nxt) {
            self.receive.note_duplicate(text);
            if let Some((value, _)) = tcp.timestamps
                && self.timestamps
                && tcp.seq + tcp.sequence_length() == self.receive.nxt
            {
                // The last segment again, because our ACK was lost: the next ACK echoes this transmission, as with Linux. The
                // first one's time stamp would make the peer's round trip time, and with it the next timeout, longer by all
                // timeouts since then, without bound.
                (self.recent, self.recent_at) = (value, now);
            }
        }
        if self.state != State::Over {
            self.challenge(tcp.sequence_length() > 0, now);
        }
        Step::Dropped
    }

    /// Whether one more ACK may answer what is not acceptable (RFC 5961 §7).
    fn may_challenge(&mut self, now: Time) -> bool {
        if now.since(self.challenged_at) >= CHALLENGES_US {
            (self.challenged_at, self.challenges) = (now, 0);
        }
        self.challenges += u8::from(self.challenges < CHALLENGES);
        self.challenges < CHALLENGES
    }

    /// An ACK at once. Answers to bytes, which the peer repeats with a timer, are not limited: each reports what arrived.
    pub(crate) fn challenge(&mut self, is_answer_to_bytes: bool, now: Time) {
        if is_answer_to_bytes || self.may_challenge(now) {
            (self.receive.ack_now, self.may_send) = (true, true);
        }
    }

    /// Fifth: ACK. Returns whether the rest of the segment is processed.
    pub(crate) fn on_ack(&mut self, pools: &mut Pools<'_>, tcp: &TcpHeader, now: Time) -> bool {
        let ack = tcp.ack;
        let una = self.send.una;
        if ack.is_after(self.send.nxt) || ack.is_before(self.send.ack_min()) {
            // Of something not sent, or far too old (RFC 5961 §5.2).
            self.challenge(false, now);
            return false;
        }
        self.keep_alive_probes = 0;
        self.arm_keep_alive(now);
        let wnd = u32::from(tcp.window) << self.send.shift;
        let has_window_changed =
            if ack.is_before(una) { false } else { self.send.update_window(tcp.seq, ack, wnd) };
        self.send.acknowledge(ack);
        self.send.on_answer();
        self.may_send = true;
        if una != self.send.nxt || tcp.sack_count > 0 {
            let acknowledgment = Ack {
                una: self.send.una,
                sack: tcp.sack,
                sack_blocks: if self.sack { tcp.sack_count } else { 0 },
                echo: self.echo(tcp, now),
                is_pure: tcp.sequence_length() == 0 && !has_window_changed,
            };
            self.recovery.on_ack(&mut pools.segments, &acknowledgment, now);
        }
        if self.send.una != una {
            self.send.reclaim(pools, self.client, false);
        }
        if self.send.is_fin_acknowledged() {
            match self.state {
                State::FinWait1 => {
                    self.state = State::FinWait2;
                    if self.is_closed {
                        self.wait_until = now.after(FIN_WAIT_US);
                    }
                }
                State::Closing => self.close_orderly(pools, Final::None, now),
                State::LastAck => self.finish(pools, Ended::Closed, Final::None),
                _ => {}
            }
        }
        true
    }

    /// Our clock of timestamps, which begins elsewhere for each pair of ends (RFC 7323 §5.4).
    pub(crate) fn timestamp(&self, now: Time) -> u32 {
        timestamp(now).wrapping_add(self.timestamp_offset)
    }

    /// RFC 7323 §4.1: when we sent the timestamp that the peer returns.
    pub(crate) fn echo(&self, tcp: &TcpHeader, now: Time) -> Option<Time> {
        let (_, echo) = tcp.timestamps.filter(|_| self.timestamps)?;
        let ticks = u64::from(self.timestamp(now).wrapping_sub(echo));
        // An echo from the future, or from before this clock began, says nothing.
        let at = (now.0 / TIMESTAMP_TICK_US).checked_sub(ticks)?;
        (ticks < 1 << 31).then_some(Time(at * TIMESTAMP_TICK_US))
    }

    // Time.

    fn arm_keep_alive(&mut self, now: Time) {
        let idle = u64::from(self.options.keep_alive_s) * 1_000_000;
        self.keep_alive_at = match (idle, self.keep_alive_probes) {
            (0, _) => Time::NEVER,
            (_, 0) => now.after(idle),
            _ => now.after(idle.min(KEEP_ALIVE_US_MAX)),
        };
    }

    pub(crate) fn set_options(&mut self, options: Options) {
        let was = self.options.keep_alive_s;
        self.receive.set_buffer_max(options.receive_bytes_max);
        self.may_send |= options.no_delay && !self.options.no_delay;
        self.options = options;
        if was != options.keep_alive_s {
            self.arm_keep_alive(self.receive.arrived_at);
        }
    }

    /// When the connection must be looked at.
    pub(crate) fn deadline(&self) -> Time {
        match self.state {
            State::Free | State::Over => Time::NEVER,
            State::SynSent | State::SynReceived => self.opening.at,
            _ => self
                .recovery
                .deadline()
                .min(self.receive.ack_at)
                .min(self.send.persist_at)
                .min(self.keep_alive_at)
                .min(self.wait_until),
        }
    }

    pub(crate) fn on_deadline(&mut self, pools: &mut Pools<'_>, now: Time) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            return self.on_opening_deadline(pools, now);
        }
        if self.receive.ack_at <= now {
            self.receive.ack_at = Time::NEVER;
            self.receive.ack_now = true;
        }
        if self.recovery.deadline() <= now {
            let has_new = self.send.unsent() > 0 && self.send.usable() > 0;
            self.recovery.on_deadline(&mut pools.segments, now, has_new);
            let most = if self.is_closed { ORPHAN_RETRIES } else { R2_RETRIES };
            if self.recovery.retries() > most {
                pools.header.drops.orphans += u64::from(self.is_closed);
                return self.finish(pools, Ended::TimedOut, Final::None);
            }
        }
        if self.send.persist_at <= now {
            let unanswered = self.send.on_persist(self.recovery.rto_us(), now);
            if self.is_closed && self.send.persist_count > u32::from(ORPHAN_RETRIES) {
                // RFC 9293 §3.8.6.1 lets a connection live while probes are answered, for its user to end it. No user is left.
                pools.header.drops.orphans += 1;
                return self.finish(pools, Ended::TimedOut, Final::Reset);
            }
            if unanswered > R2_RETRIES {
                return self.finish(pools, Ended::TimedOut, Final::None);
            }
        }
        if self.keep_alive_at <= now {
            if self.keep_alive_probes == KEEP_ALIVE_PROBES {
                return self.finish(pools, Ended::TimedOut, Final::Reset);
            }
            // RFC 9293 §3.8.4: only when nothing is on the way that the peer would answer anyway.
            let is_idle = self.send.una == self.send.nxt && self.send.persist_at == Time::NEVER;
            self.send.probe_due |= is_idle;
            self.keep_alive_probes += u8::from(is_idle);
            self.arm_keep_alive(now);
        }
        if self.wait_until <= now {
            return self.finish(pools, Ended::Closed, Final::None);
        }
        self.may_send = true;
    }

    // What the client does.

    /// FIN behind all that is queued (RFC 9293 §3.10.4).
    pub(crate) fn send_fin(&mut self) {
        self.send.has_fin = true;
        self.may_send = true;
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            // SYN-RECEIVED: FIN follows when our SYN is acknowledged.
            _ => {}
        }
    }

    pub(crate) fn close(&mut self, pools: &mut Pools<'_>, now: Time) {
        self.is_closed = true;
        let has_unread = !self.receive.ready.is_empty();
        match self.state {
            State::SynSent => self.finish(pools, Ended::Closed, Final::None),
            State::Over => self.receive.clear(pools, true),
            _ if has_unread => self.finish(pools, Ended::Aborted, Final::Reset),
            State::FinWait2 => self.wait_until = now.after(FIN_WAIT_US),
            _ => self.send_fin(),
        }
    }

    pub(crate) fn abort(&mut self, pools: &mut Pools<'_>) {
        self.is_closed = true;
        self.receive.clear(pools, true);
        // RFC 9293 §3.10.5: RST unless the peer knows nothing of the connection.
        let last = if self.state == State::SynSent { Final::None } else { Final::Reset };
        self.finish(pools, Ended::Aborted, last);
    }

    /// The client has released a frame with `bytes` of payload.
    pub(crate) fn on_released(&mut self, pools: &Pools<'_>, bytes: u32, now: Time) {
        self.receive.on_released(pools, self.client, bytes, self.recovery.srtt_us(), now);
        self.may_send |= self.receive.ack_now;
    }

    // What happens around the connection.

    pub(crate) fn on_driver_restarted(&mut self, pools: &mut Pools<'_>, link: Device, now: Time) {
        self.route.segments = link.segments;
        if link.mtu != self.route.mtu {
            self.route.mtu = link.mtu;
            self.set_mss();
            self.recovery.set_mss(self.send.mss);
        }
        match self.state {
            State::SynSent | State::SynReceived => self.opening.is_due = true,
            _ => self.recovery.on_driver_restarted(&mut pools.segments, now),
        }
        self.may_send = true;
    }

    /// RFC 1191 §3, RFC 8201 §4: the path carries packets of `mtu` bytes at most. The error must be about a segment that is
    /// on the way (RFC 5927 §4.1).
    pub(crate) fn on_packet_too_big(&mut self, pools: &mut Pools<'_>, seq: SeqNumber, mtu: u16, now: Time) {
        if self.is_on_the_way(seq) && mtu < self.route.mtu && self.state.sends() {
            self.route.mtu = mtu;
            self.set_mss();
            self.recovery.on_mss_reduced(&mut pools.segments, self.send.mss, now);
            self.may_send = true;
        }
    }

    /// RFC 9293 §3.9.2.2: no ICMP error ends an open connection; a hard one ends its opening (RFC 5927 §6), a soft one is
    /// remembered.
    pub(crate) fn on_unreachable(&mut self, pools: &mut Pools<'_>, seq: SeqNumber, is_hard: bool) {
        if !self.is_on_the_way(seq) || !matches!(self.state, State::SynSent | State::SynReceived) {
            return;
        }
        if is_hard {
            self.finish(pools, Ended::Unreachable, Final::None);
        } else {
            self.has_soft_error = true;
        }
    }

    fn is_on_the_way(&self, seq: SeqNumber) -> bool {
        !seq.is_before(self.send.una) && seq.is_before(self.send.nxt)
    }

    // The end.

    /// Nothing more is received or repeated.
    pub(crate) fn finish(&mut self, pools: &mut Pools<'_>, ended: Ended, last: Final) {
        if self.state == State::Over {
            return;
        }
        self.state = State::Over;
        (self.ended, self.has_ended, self.last) = (ended, true, last);
        self.may_send = last != Final::None;
        self.recovery.clear(&mut pools.segments);
        self.receive.clear(pools, !self.is_clients() || self.is_closed);
        self.send.reclaim(pools, self.client, true);
    }

    /// The client is gone, or the listener closed before `accept`: the record is freed without an event.
    pub(crate) fn abandon(&mut self, pools: &mut Pools<'_>) {
        let is_open = self.state.is_synchronized() || self.state == State::SynReceived;
        self.is_abandoned = true;
        self.finish(pools, Ended::Aborted, if is_open { Final::Reset } else { Final::None });
        self.receive.clear(pools, true);
        self.send.forget(pools, self.client);
    }

    /// Over, and nothing is left to do.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Over
            && self.last == Final::None
            && self.send.pieces.is_empty()
            && (!self.is_clients() || !self.has_ended)
    }

    // Events.

    pub(crate) fn on_open(&mut self, now: Time) {
        self.has_connected = !self.is_passive;
        self.arm_keep_alive(now);
    }

    pub(crate) fn has_event(&self) -> bool {
        self.has_connected
            || !self.receive.ready.is_empty()
            || self.has_peer_closed
            || self.send.has_released
            || self.has_room
            || self.has_ended && self.send.pieces.is_empty()
    }

    pub(crate) fn next_event(&mut self, pools: &mut Pools<'_>, index: u32) -> Option<Event> {
        let connection = self.id(index);
        if std::mem::take(&mut self.has_connected) {
            return Some(Event::Connected { connection });
        }
        if let Some((frame, start, length, offset)) = self.receive.deliver(pools) {
            return Some(Event::Received { connection, frame, start, length, offset });
        }
        if std::mem::take(&mut self.has_peer_closed) {
            return Some(Event::PeerClosed { connection });
        }
        if std::mem::take(&mut self.send.has_released) {
            return Some(Event::Released { connection, ticket: self.send.released });
        }
        if std::mem::take(&mut self.has_room) {
            return Some(Event::Room { connection });
        }
        if self.has_ended && self.send.pieces.is_empty() {
            self.has_ended = false;
            return Some(Event::Ended { connection, why: self.ended });
        }
        None
    }
}
