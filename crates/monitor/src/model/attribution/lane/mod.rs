//! One direction of data in the clock of its sender.
//!
//! Time between two data packets is cut at everything that changes what the sender could do, and booked as a [`Part`].
//! Parts whose cause shows only when the sender goes on are decided then ([`Lane::resolve`]).

mod parts;
mod pdus;
mod resume;

use std::collections::VecDeque;

pub(super) use self::parts::Part;
use self::parts::Parts;
use self::resume::{Early, Resume};
use super::line::Line;
use super::load::{Load, Pdu};
use super::pace::Pace;
use super::stops::Stops;
use super::values::Values;
use crate::event::{Ack, Duplicate, Event, Kind, Order, Segment, Side};
use crate::limits::{PEER_EVENTS_MAX, SENDS_REMEMBERED_MAX};

/// Least time in which a sender goes on after what it waited for.
const REACTION_NS: u64 = 300_000;
/// A congestion control that reduces its window keeps less than this part of it (CUBIC 0.7, Reno 0.5).
const REDUCED: f64 = 0.85;
/// The depth is the most of so few commands, then what all but the deepest tenth have; recomputed each so many.
const DEPTHS_EXACT: u64 = 16;
const DEPTH_QUANTILE: f64 = 0.9;
/// By how much a program's answer is later than the kernel's.
const SOONER_NS: u64 = 60_000;
/// Measured round trips are this much longer than the least one without any queue.
const JITTER_NS: u64 = 100_000;
/// A pause before a retransmission that only a timer explains (the least RTO of Linux).
const TIMEOUT_NS: u64 = 200_000_000;

/// A packet of the peer on its way to the sender.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    Ack {
        acknowledged: u64,
        window: Option<u64>,
        sacked: u32,
        is_bare: bool,
        is_spurious: bool,
        has_echo: bool,
    },
    Pdu(Pdu),
}

/// Bytes in flight over one round trip, to find reductions of the congestion window.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    from_ns: u64,
    most: u64,
    before: u64,
    /// The sender had data to send throughout, and nothing was lost.
    is_plain: bool,
    was_plain: bool,
}

/// Counters of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) data_packets: u64,
    pub(super) retransmitted: u64,
    pub(super) episodes: u64,
    /// Episodes that began while packets queued in front of the narrowest link.
    pub(super) overflows: u64,
    pub(super) spurious: u64,
    pub(super) timeouts: u64,
    pub(super) local_drops: u64,
    pub(super) echoes: u64,
    /// Times at which much less was in flight than a round trip before, without loss and with data to send.
    pub(super) reductions: u64,
    pub(super) capture_lost_bytes: u64,
    pub(super) data_bytes: u64,
    pub(super) payload_bytes: u64,
    pub(super) mss: u64,
    pub(super) in_flight_max: u64,
}

#[derive(Debug)]
pub(super) struct Lane {
    sender: Side,
    to_sender_ns: u64,
    rtt_ns: u64,
    is_at_sender: bool,
    peer: VecDeque<(u64, Arrival)>,
    /// Reads: when a response's successor may reach the target.
    returns: VecDeque<u64>,
    /// Reads whose last Data-In has begun: its end, and the command.
    closing: VecDeque<(u64, u32)>,
    load: Load,
    is_framed: bool,
    framed_until: u64,
    /// Until then commands may pass unseen.
    unframed_until_ns: u64,
    sent: u64,
    acked: u64,
    sacked: u64,
    window_edge: Option<u64>,
    window: u64,
    window_max: u64,
    sends: VecDeque<(u64, u64)>,
    last_ack_ns: Option<u64>,
    last_rtt_ns: u64,
    /// Bytes of an episode of loss have to be acknowledged up to here.
    repair_until: u64,
    repairs_local: bool,
    slots: u32,
    /// Commands on their way when each was sent, and how many the initiator keeps so.
    depths: Values,
    depth: u32,
    /// Since the last data.
    first_ns: Option<u64>,
    last_ns: u64,
    mark_ns: u64,
    sent_ns: u64,
    busy_until_ns: u64,
    parts: Parts,
    acks: u32,
    acked_at_stop: u64,
    ack_ns: Option<u64>,
    first_ack_ns: Option<u64>,
    answer_ns: Option<u64>,
    /// The last answer was an R2T.
    is_by_r2t: bool,
    all_acked_ns: Option<u64>,
    resume: Option<Resume>,
    /// Most in flight within the round trip that began at the time, and within the one before.
    epoch: Epoch,
    /// What was seen before the narrowest link's rate was known.
    early: Option<Box<Early>>,
    pub(super) totals: Parts,
    pub(super) stops: Stops,
    pub(super) line: Line,
    pub(super) pace: Pace,
    pub(super) counters: Counters,
    pub(super) windows: Values,
    pub(super) rtts: Values,
}

impl Lane {
    pub(super) fn new(sender: Side) -> Self {
        Self {
            sender,
            to_sender_ns: 0,
            rtt_ns: 0,
            is_at_sender: true,
            peer: VecDeque::new(),
            returns: VecDeque::new(),
            closing: VecDeque::new(),
            load: Load::new(sender),
            is_framed: true,
            framed_until: 0,
            unframed_until_ns: 0,
            sent: 0,
            acked: 0,
            sacked: 0,
            window_edge: None,
            window: 0,
            window_max: 0,
            sends: VecDeque::new(),
            last_ack_ns: None,
            last_rtt_ns: 0,
            repair_until: 0,
            repairs_local: false,
            slots: 0,
            depths: Values::new(),
            depth: 0,
            first_ns: None,
            last_ns: 0,
            mark_ns: 0,
            sent_ns: 0,
            busy_until_ns: 0,
            parts: Parts::default(),
            acks: 0,
            acked_at_stop: 0,
            ack_ns: None,
            first_ack_ns: None,
            answer_ns: None,
            is_by_r2t: false,
            all_acked_ns: None,
            resume: None,
            epoch: Epoch::default(),
            early: None,
            totals: Parts::default(),
            stops: Stops::new(),
            line: Line::new(),
            pace: Pace::default(),
            counters: Counters::default(),
            windows: Values::new(),
            rtts: Values::new(),
        }
    }

    /// `to_sender_ns`: the round trip between the point of capture and the sender; `rtt_ns`: of the connection.
    pub(super) fn set_distances(&mut self, to_sender_ns: u64, rtt_ns: u64) {
        self.is_at_sender = to_sender_ns <= rtt_ns / 4;
        // What an acknowledgement releases may come a little sooner than any acknowledgement of this end.
        let sooner = if self.is_at_sender { to_sender_ns } else { SOONER_NS.min(to_sender_ns) };
        (self.to_sender_ns, self.rtt_ns) = (to_sender_ns - sooner, rtt_ns);
    }

    pub(super) fn set_first_burst(&mut self, bytes: Option<u64>) {
        self.load.first_burst = bytes;
    }

    pub(super) fn is_at_sender(&self) -> bool {
        self.is_at_sender
    }

    pub(super) fn sender(&self) -> Side {
        self.sender
    }

    /// Memory that the queues take, about.
    pub(super) fn held_bytes(&self) -> usize {
        self.peer.capacity() * size_of::<(u64, Arrival)>()
            + self.returns.capacity() * size_of::<u64>()
            + (self.closing.capacity() + self.sends.capacity()) * size_of::<(u64, u64)>()
            + self.load.held_bytes()
    }

    /// Which lane is reported.
    pub(super) fn weight(&self) -> u64 {
        self.counters.data_bytes.max(self.counters.payload_bytes)
    }

    pub(super) fn is_framed(&self) -> bool {
        self.is_framed
    }

    pub(super) fn line_bytes_per_s(&self) -> Option<f64> {
        match (self.line.queued_bytes_per_s(), self.arrival_rate()) {
            (Some(queued), Some(arrived)) => Some(queued.min(arrived)),
            (None, Some(arrived)) => Some(self.line.plausible(arrived)),
            (queued, None) => queued,
        }
    }

    /// Payload rate of the path, as bursts show it; for predictions only.
    pub(super) fn burst_bytes_per_s(&self) -> Option<f64> {
        self.line.burst_bytes_per_s(self.is_at_sender)
    }

    fn arrival_rate(&self) -> Option<f64> {
        if self.is_at_sender { None } else { self.line.arrived_bytes_per_s() }
    }

    fn in_flight(&self) -> u64 {
        self.sent.saturating_sub(self.acked).saturating_sub(self.sacked)
    }

    fn reaction_ns(&self) -> u64 {
        REACTION_NS + self.rtt_ns / 50
    }

    pub(super) fn handle(&mut self, event: &Event) {
        if event.from == self.sender {
            self.release(event.at_ns);
            self.on_own(event);
        } else {
            self.on_peer(event);
        }
    }

    fn on_peer(&mut self, event: &Event) {
        let arrival = match &event.kind {
            Kind::Ack(ack) => of_ack(ack),
            Kind::PduStart(start) => match Pdu::parse(event.from, &start.header) {
                Pdu::Other => return,
                pdu => Arrival::Pdu(pdu),
            },
            Kind::Opaque(_) => {
                self.is_framed = false;
                return;
            }
            _ => return,
        };
        if self.peer.len() == PEER_EVENTS_MAX
            && let Some((due, arrival)) = self.peer.pop_front()
        {
            self.arrive(due, arrival);
        }
        self.peer.push_back((event.at_ns.saturating_add(self.to_sender_ns), arrival));
    }

    /// Lets everything reach the sender that is due.
    fn release(&mut self, now_ns: u64) {
        loop {
            let peer = self.peer.front().map(|(due, _)| *due).filter(|due| *due <= now_ns);
            let slot = self.returns.front().copied().filter(|due| *due <= now_ns);
            match (peer, slot) {
                (None, None) => return,
                (peer, Some(slot)) if peer.is_none_or(|peer| slot < peer) => {
                    self.returns.pop_front();
                    self.advance(slot);
                    self.on_slot(slot);
                }
                _ => {
                    let (due, arrival) = self.peer.pop_front().expect("its first is due");
                    self.arrive(due, arrival);
                }
            }
        }
    }

    fn on_slot(&mut self, at_ns: u64) {
        self.slots = self.slots.saturating_sub(1);
        self.answer_ns = Some(at_ns);
        self.is_by_r2t = false;
        self.pace.on_answer(at_ns);
    }

    fn arrive(&mut self, at_ns: u64, arrival: Arrival) {
        self.settle(0);
        self.advance(at_ns);
        match arrival {
            Arrival::Ack { acknowledged, window, sacked, is_bare, is_spurious, has_echo } => {
                self.counters.spurious += u64::from(is_spurious);
                self.counters.echoes += u64::from(has_echo);
                self.sacked = u64::from(sacked);
                if let Some(window) = window {
                    self.window = window;
                    self.window_max = self.window_max.max(window);
                    self.window_edge = Some(acknowledged.saturating_add(window));
                }
                if acknowledged > self.acked {
                    self.on_progress(at_ns, acknowledged, is_bare);
                }
            }
            Arrival::Pdu(pdu) => {
                let is_end = self.load.handle(pdu);
                match pdu {
                    Pdu::Command { .. } => {
                        self.on_command(at_ns);
                        self.answer_ns = Some(at_ns);
                    }
                    Pdu::R2t { .. } => {
                        self.answer_ns = Some(at_ns);
                        self.is_by_r2t = true;
                    }
                    // Of a command that passed unseen.
                    Pdu::Response { .. } if !is_end => {
                        self.answer_ns = Some(at_ns);
                        self.is_by_r2t = false;
                    }
                    _ => {}
                }
                if is_end {
                    self.on_slot(at_ns);
                    self.last_ns = self.last_ns.max(at_ns);
                }
            }
        }
    }

    fn on_progress(&mut self, at_ns: u64, acknowledged: u64, is_bare: bool) {
        let bytes = acknowledged - self.acked;
        self.acked = acknowledged;
        self.acks += 1;
        self.ack_ns = Some(at_ns);
        self.first_ack_ns.get_or_insert(at_ns);
        let mut newest = None;
        while let Some((end, sent_ns)) = self.sends.front().copied() {
            if end > acknowledged {
                break;
            }
            newest = Some(sent_ns);
            self.sends.pop_front();
        }
        if let Some(sent_ns) = newest {
            let rtt = at_ns.saturating_sub(sent_ns);
            self.rtts.add(rtt, 1);
            self.last_rtt_ns = rtt;
            let margin = self.rtt_ns / 50 + JITTER_NS;
            let is_queued = self
                .last_ack_ns
                .is_some_and(|last| last.saturating_sub(sent_ns) >= self.rtt_ns.saturating_add(margin));
            let gap = self.last_ack_ns.map_or(0, |last| at_ns.saturating_sub(last));
            self.line.on_acknowledged(at_ns, acknowledged, self.rtt_ns);
            let is_queued = is_queued && self.sacked == 0 && acknowledged > self.repair_until;
            self.line.on_ack(bytes, gap, is_queued, self.rtt_ns);
        }
        self.last_ack_ns = Some(at_ns);
        // No more than what is in flight can wait for the link.
        if let Some(rate) = self.line.queued_bytes_per_s() {
            let ns = (self.in_flight() as f64 / rate * 1e9) as u64;
            self.busy_until_ns = self.busy_until_ns.min(at_ns.saturating_add(ns));
        }
        if self.window > 0 {
            self.windows.add(self.window, 1);
        }
        if acknowledged >= self.sent && is_bare {
            self.all_acked_ns = Some(at_ns);
            // The path took longer than its least round trip: no time of the target.
            if at_ns <= self.deadline_ns().saturating_add(self.rtt_ns / 2) {
                let late = self.parts.take(Part::SentTarget);
                self.parts.add(Part::SentFull, late);
                let late = self.parts.take(Part::R2tTarget);
                self.parts.add(Part::R2t, late);
            }
        }
    }

    /// Until when an answer to the last data may still be on its way.
    fn deadline_ns(&self) -> u64 {
        self.sent_ns
            .max(self.busy_until_ns)
            .saturating_add(self.rtt_ns)
            .saturating_add(self.rtt_ns / 32 + JITTER_NS)
    }

    fn on_command(&mut self, at_ns: u64) {
        if self.first_ns.is_none() {
            self.start(at_ns);
        }
        // The command itself may come a little sooner than the slowest part of the path allows.
        let soon = at_ns.saturating_add(4 * SOONER_NS + self.rtt_ns / 16);
        while let Some(slot) = self.returns.pop_front_if(|slot| *slot <= soon) {
            self.on_slot(slot.min(at_ns));
        }
        self.slots += 1;
        self.depths.add(u64::from(self.slots), 1);
        let count = self.depths.count();
        if count < DEPTHS_EXACT {
            self.depth = self.depth.max(self.slots);
        } else if count.is_multiple_of(DEPTHS_EXACT) {
            let usual = self.depths.quantile(DEPTH_QUANTILE).unwrap_or(0);
            self.depth = u32::try_from(usual).unwrap_or(u32::MAX);
        }
    }

    fn start(&mut self, at_ns: u64) {
        self.first_ns = Some(at_ns);
        (self.mark_ns, self.sent_ns, self.last_ns) = (at_ns, at_ns, at_ns);
        self.parts = Parts::default();
    }

    fn on_own(&mut self, event: &Event) {
        self.settle(event.frame);
        match &event.kind {
            Kind::Segment(segment) => self.on_segment(event, segment),
            Kind::PduStart(start) => self.on_own_pdu(event, start),
            Kind::CaptureLost { offset, bytes } => {
                self.sent = self.sent.max(offset.saturating_add(*bytes));
                self.counters.capture_lost_bytes = self.counters.capture_lost_bytes.saturating_add(*bytes);
            }
            Kind::Opaque(_) => self.is_framed = false,
            Kind::Ack(_) | Kind::PduEnd(_) | Kind::HeadersUnseen { .. } | Kind::Ended { .. } => {}
        }
    }

    fn on_segment(&mut self, event: &Event, segment: &Segment) {
        let (bytes, mss) = (u64::from(segment.bytes), u64::from(segment.mss.max(1)));
        if self.first_ns.is_none() {
            if bytes < mss {
                self.sent = self.sent.max(segment.offset.saturating_add(bytes));
                return;
            }
            self.start(event.at_ns);
        }
        let end = segment.offset.saturating_add(bytes);
        let is_repeated = segment.order == Order::Again;
        // Sent again, and never seen before at the sender: dropped before the point of capture.
        let is_local = is_repeated && segment.repeated_bytes == 0 && self.is_at_sender;
        self.counters.mss = self.counters.mss.max(mss);
        self.counters.data_packets += bytes.div_ceil(mss);
        self.advance(event.at_ns);
        let gap_ns = event.at_ns.saturating_sub(self.sent_ns);
        if is_repeated {
            self.on_repeated(bytes.div_ceil(mss), is_local, gap_ns);
        } else {
            self.counters.payload_bytes = self.counters.payload_bytes.saturating_add(bytes);
        }
        self.resume = Some(Resume {
            frame: event.frame,
            at_ns: event.at_ns,
            bytes,
            mss,
            parts: std::mem::take(&mut self.parts),
            last_part: self.part(),
            stopped_ns: self.sent_ns,
            in_flight_stopped: self.sent.saturating_sub(self.acked_at_stop),
            freed: self.acked.saturating_sub(self.acked_at_stop),
            acks: self.acks,
            ack_ns: self.ack_ns,
            first_ack_ns: self.first_ack_ns,
            answer_ns: self.answer_ns,
            is_by_r2t: self.is_by_r2t,
            is_empty: self.acked >= self.sent,
            is_repeated,
            is_local,
            starts_command: false,
            starts_pdu: false,
        });
        let had_nothing_to_send = self.acked >= self.sent;
        if !self.is_at_sender && !is_repeated {
            self.line.on_arrival(bytes, gap_ns, had_nothing_to_send);
        }
        if !is_repeated {
            self.line.on_sent(event.at_ns, segment.offset, end, had_nothing_to_send);
        }
        self.sent = self.sent.max(end);
        self.counters.in_flight_max = self.counters.in_flight_max.max(self.in_flight());
        self.on_epoch(event.at_ns, had_nothing_to_send);
        if !is_repeated {
            if self.sends.len() == SENDS_REMEMBERED_MAX {
                self.sends.pop_front();
            }
            self.sends.push_back((end, event.at_ns));
        }
        if let Some(rate) = self.line.queued_bytes_per_s().filter(|_| self.serialization_ns(1 << 20) == 0) {
            let ns = (bytes as f64 / rate * 1e9) as u64;
            self.busy_until_ns = self.busy_until_ns.max(event.at_ns).saturating_add(ns);
        }
        (self.sent_ns, self.last_ns, self.mark_ns) = (event.at_ns, event.at_ns, event.at_ns);
        (self.acks, self.acked_at_stop, self.ack_ns, self.answer_ns) = (0, self.acked, None, None);
        (self.all_acked_ns, self.first_ack_ns) = (None, None);
    }

    /// `had_nothing_to_send`: nothing was in flight before this segment. Neither the rest of a command nor the first burst
    /// after a pause, which fills an empty buffer, is compared with others.
    fn on_epoch(&mut self, now_ns: u64, had_nothing_to_send: bool) {
        let in_flight = self.in_flight();
        let epoch = &mut self.epoch;
        let is_plain = self.acked >= self.repair_until && !had_nothing_to_send;
        epoch.is_plain &= is_plain;
        if now_ns.saturating_sub(epoch.from_ns) >= self.rtt_ns.max(REACTION_NS) {
            let is_lower = (epoch.most as f64) < REDUCED * epoch.before as f64;
            self.counters.reductions += u64::from(is_lower && epoch.is_plain && epoch.was_plain);
            *epoch =
                Epoch { from_ns: now_ns, most: 0, before: epoch.most, is_plain, was_plain: epoch.is_plain };
        }
        epoch.most = epoch.most.max(in_flight);
    }

    fn on_repeated(&mut self, packets: u64, is_local: bool, gap_ns: u64) {
        self.counters.retransmitted += packets;
        if self.acked >= self.repair_until {
            self.counters.episodes += 1;
            self.counters.overflows +=
                u64::from(self.last_rtt_ns > self.rtt_ns + self.rtt_ns / 4 + JITTER_NS);
            self.repairs_local = is_local;
        }
        if is_local {
            self.counters.local_drops += packets;
            self.repairs_local = true;
        }
        if gap_ns >= TIMEOUT_NS && gap_ns > 2 * self.rtt_ns {
            self.counters.timeouts += 1;
        }
        self.repair_until = self.sent;
    }

    /// What the sender does at this moment, as far as it is known now.
    fn part(&self) -> Part {
        if !self.is_framed {
            return if self.in_flight() == 0 { Part::Blind } else { self.open_part() };
        }
        let is_full = self.slots >= self.depth;
        if self.framed_until > self.sent {
            return self.open_part();
        }
        if self.mark_ns < self.unframed_until_ns {
            return match self.open_part() {
                Part::Open => Part::Unframed,
                part => part,
            };
        }
        if self.load.permitted() > 0 {
            return match self.open_part() {
                Part::Open if self.load.is_unbegun() => Part::Unbegun,
                part => part,
            };
        }
        if self.load.outstanding() == 0 {
            return if is_full { Part::IdleFull } else { Part::IdleLess };
        }
        if self.load.awaiting_r2t() > 0 {
            Part::R2t
        } else if is_full {
            Part::SentFull
        } else {
            Part::SentLess
        }
    }

    fn open_part(&self) -> Part {
        if self.acked < self.repair_until {
            return Part::Repair;
        }
        let margin = (2 * self.counters.mss).max(self.window / 6);
        if self.window_edge.is_some_and(|edge| edge < self.sent.saturating_add(margin)) {
            return if self.window < self.window_max / 3 { Part::WindowShrunk } else { Part::Window };
        }
        Part::Open
    }

    /// Books the time until now.
    fn advance(&mut self, to_ns: u64) {
        if self.first_ns.is_none() || to_ns <= self.mark_ns {
            return;
        }
        if !matches!(self.part(), Part::Open | Part::Unbegun | Part::Unframed)
            && to_ns - self.mark_ns > JITTER_NS
        {
            self.epoch.is_plain = false;
        }
        let mut from = self.mark_ns;
        if self.busy_until_ns > from {
            let until = self.busy_until_ns.min(to_ns);
            self.parts.add(Part::Line, until - from);
            from = until;
        }
        self.mark_ns = to_ns;
        if from >= to_ns {
            return;
        }
        let part = self.part();
        let later = match part {
            Part::R2t => Part::R2tTarget,
            Part::SentFull => Part::SentTarget,
            Part::Unframed => Part::UnframedLate,
            _ => part,
        };
        let deadline = self.deadline_ns().clamp(from, to_ns);
        self.parts.add(part, deadline - from);
        self.parts.add(later, to_ns - deadline);
    }

    /// The capture or the connection has ended.
    pub(super) fn finish(&mut self) {
        self.settle(0);
        self.release(u64::MAX - 1);
        self.add_early();
    }
}

fn of_ack(ack: &Ack) -> Arrival {
    Arrival::Ack {
        acknowledged: ack.acknowledged,
        window: ack.window_bytes,
        sacked: ack.sacked_bytes,
        is_bare: ack.is_bare,
        is_spurious: ack.duplicate == Duplicate::Data,
        has_echo: ack.congestion_echo,
    }
}
