//! A TCP sender with one cap, below an iSCSI load, over a path with one narrow link: events whose limit is known.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use iscsi::wire::{BHS_LENGTH, Bhs, Opcode};

use crate::event::{Ack, Distances, Event, Kind, Order, PduEnd, PduStart, Segment, Side};
use crate::pdus;

pub(super) const MSS: u64 = 1448;
const FRAME: u64 = 10 * MSS;
const HEADER: u64 = BHS_LENGTH as u64;
/// From an acknowledgement to data: in TCP, and through a program that has to be woken.
const TCP_NS: u64 = 8_000;
const WAKE_NS: u64 = 60_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cap {
    None,
    /// Bytes; whole segments leave one for one.
    Congestion(u64),
    /// Bytes; refilled when a third is free.
    Buffer(u64),
    Window(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) rtt_ns: u64,
    /// Bytes per second.
    pub(super) line: u64,
    pub(super) is_read: bool,
    pub(super) block: u64,
    pub(super) depth: u32,
    pub(super) unsolicited: u64,
    pub(super) r2t: u64,
    pub(super) think_ns: u64,
    pub(super) target_ns: u64,
    /// The sending program computes so long for each frame.
    pub(super) spin_ns: u64,
    pub(super) cap: Cap,
    /// Every so many frames one is lost, and the congestion window is halved.
    pub(super) loss_every: u64,
    /// Whether lost frames are lost in the sender itself.
    pub(super) is_loss_local: bool,
    pub(super) seconds: f64,
    /// Where packets are captured: 0 at the initiator, 1 at the target, between them elsewhere.
    pub(super) place: f64,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            rtt_ns: 20_000_000,
            line: 25_000_000,
            is_read: false,
            block: 262_144,
            depth: 32,
            unsolicited: 262_144,
            r2t: 262_144,
            think_ns: 0,
            target_ns: 0,
            spin_ns: 0,
            cap: Cap::None,
            loss_every: 0,
            is_loss_local: false,
            seconds: 3.0,
            place: 0.0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The initiator may begin a command.
    Begin,
    /// A command (reads) or an answer (writes) has arrived at the sender.
    Small(usize),
    /// Data has arrived at the receiver: offset and bytes.
    Data(u64, u64),
    /// The receiver has done its part after the data of a command: answer, or the next R2T.
    Answer(u32),
    /// The target begins to send the data of a read.
    Serve(u32),
    /// An acknowledgement has arrived.
    Ack(u64),
    /// The program writes again.
    Wake,
    /// The program has computed.
    Go,
    /// Data is sent again.
    Repair(u64, u64),
}

/// One command: data sent, data granted.
#[derive(Clone, Copy, Debug)]
struct Task {
    granted: u64,
    queued: u64,
    arrived: u64,
}

pub(super) struct Simulator {
    spec: Spec,
    heap: BinaryHeap<Reverse<(u64, u64, Step)>>,
    order: u64,
    now: u64,
    events: Vec<(u64, u64, Event)>,
    frame: u64,
    // The sender.
    queued: u64,
    sent: u64,
    acked: u64,
    congestion: u64,
    is_filling: bool,
    is_waking: bool,
    busy_until: u64,
    line_busy_until: u64,
    frames: u64,
    repairing: Option<u64>,
    /// Data PDUs in the sender's stream: start, length, header, command.
    pdus: VecDeque<(u64, u64, [u8; BHS_LENGTH], u32)>,
    shown: usize,
    ended: usize,
    seen: u64,
    // The receiver.
    received: u64,
    ahead: BTreeMap<u64, u64>,
    pdu_next: usize,
    // Small PDUs of the other end.
    smalls: Vec<[u8; BHS_LENGTH]>,
    other_sent: u64,
    tasks: BTreeMap<u32, Task>,
    itt: u32,
    pub(super) data_bytes: u64,
}

impl Simulator {
    pub(super) fn run(spec: Spec) -> (Vec<Event>, Distances, Self) {
        let congestion = if let Cap::Congestion(bytes) = spec.cap { bytes } else { 1 << 30 };
        let mut sim = Self {
            spec,
            heap: BinaryHeap::new(),
            order: 0,
            now: 1_000_000_000,
            events: Vec::new(),
            frame: 0,
            queued: 0,
            sent: 0,
            acked: 0,
            congestion: if spec.loss_every > 0 { 20 * MSS } else { congestion },
            is_filling: true,
            is_waking: false,
            busy_until: 0,
            line_busy_until: 0,
            frames: 0,
            repairing: None,
            pdus: VecDeque::new(),
            shown: 0,
            ended: 0,
            seen: 0,
            received: 0,
            ahead: BTreeMap::new(),
            pdu_next: 0,
            smalls: Vec::new(),
            other_sent: 0,
            tasks: BTreeMap::new(),
            itt: 0,
            data_bytes: 0,
        };
        for slot in 0..spec.depth {
            sim.push(sim.now + u64::from(slot) * 1_000, Step::Begin);
        }
        let end = sim.now + (spec.seconds * 1e9) as u64;
        while let Some(Reverse((at, _, step))) = sim.heap.pop() {
            if at > end {
                break;
            }
            sim.now = at;
            sim.step(step);
        }
        let mut events = std::mem::take(&mut sim.events);
        events.sort_by_key(|(at, order, _)| (*at, *order));
        let to_initiator = (spec.rtt_ns as f64 * spec.place) as u64;
        let distances = Distances {
            initiator_ns: Some(to_initiator.max(10_000)),
            target_ns: Some((spec.rtt_ns - to_initiator).max(10_000)),
        };
        (events.into_iter().map(|(_, _, event)| event).collect(), distances, sim)
    }

    fn sender(&self) -> Side {
        if self.spec.is_read { Side::Target } else { Side::Initiator }
    }

    fn push(&mut self, at: u64, step: Step) {
        self.order += 1;
        self.heap.push(Reverse((at, self.order, step)));
    }

    /// A little that varies, the same in each run.
    fn jitter(&self) -> u64 {
        (self.order.wrapping_mul(2_654_435_761) >> 7) % 30_000
    }

    /// Nanoseconds from leaving `from` to the point of capture.
    fn to_vantage(&self, from: Side) -> u64 {
        let one_way = self.spec.rtt_ns as f64 / 2.0;
        (one_way * if from == Side::Initiator { self.spec.place } else { 1.0 - self.spec.place }) as u64
    }

    fn show(&mut self, at: u64, from: Side, kind: Kind) {
        self.order += 1;
        self.events.push((at, self.order, Event { at_ns: at, frame: self.frame, from, kind }));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin => self.begin(),
            Step::Small(index) => self.on_small(index),
            Step::Data(offset, bytes) => self.on_data(offset, bytes),
            Step::Answer(itt) => self.answer(itt),
            Step::Serve(itt) => self.serve(itt),
            Step::Ack(acked) => self.on_ack(acked),
            Step::Wake => {
                (self.is_filling, self.is_waking) = (true, false);
                self.pump();
            }
            Step::Go => self.pump(),
            Step::Repair(offset, bytes) => self.transmit(offset, bytes, true),
        }
    }

    fn begin(&mut self) {
        self.itt += 1;
        let (itt, block) = (self.itt, self.spec.block);
        let unsolicited = if self.spec.is_read { 0 } else { self.spec.unsolicited.min(block) };
        self.tasks.insert(itt, Task { granted: unsolicited, queued: unsolicited, arrived: 0 });
        let header = pdus::scsi(
            itt,
            if self.spec.is_read { 0x88 } else { 0x8a },
            block as u32,
            unsolicited as u32,
            true,
        );
        if self.spec.is_read {
            self.small(header);
        } else {
            self.enqueue(header, unsolicited, itt);
        }
    }

    fn enqueue(&mut self, header: [u8; BHS_LENGTH], data: u64, itt: u32) {
        self.pdus.push_back((self.queued, HEADER + data, header, itt));
        self.queued += HEADER + data;
        self.pump();
    }

    /// The end that does not send data sends a PDU without data.
    fn small(&mut self, header: [u8; BHS_LENGTH]) {
        let from = self.sender().peer();
        self.frame += 1;
        let at = self.now + self.to_vantage(from);
        let (offset, bytes) = (self.other_sent, HEADER);
        self.other_sent += bytes;
        let ack = Ack { acknowledged: self.received, window_bytes: Some(self.window()), ..Ack::default() };
        self.show(at, from, Kind::Ack(ack));
        let segment = Segment { offset, bytes: HEADER as u32, mss: MSS as u16, ..Segment::default() };
        self.show(at, from, Kind::Segment(segment));
        self.show(at, from, Kind::PduStart(PduStart { offset, bytes, header }));
        self.show(at, from, Kind::PduEnd(PduEnd { offset }));
        self.smalls.push(header);
        let received = self.received;
        self.push(self.now + self.spec.rtt_ns / 2, Step::Small(self.smalls.len() - 1));
        self.push(self.now + self.spec.rtt_ns / 2, Step::Ack(received));
    }

    fn window(&self) -> u64 {
        if let Cap::Window(bytes) = self.spec.cap { bytes } else { 64 << 20 }
    }

    fn on_small(&mut self, index: usize) {
        let header = self.smalls[index];
        let itt = Bhs(&header).itt().0;
        if self.spec.is_read {
            self.push(self.now + self.spec.target_ns + self.jitter(), Step::Serve(itt));
        } else if Bhs(&header).opcode() == Ok(Opcode::R2t) {
            let bytes = self.spec.r2t.min(self.spec.block - self.tasks[&itt].queued);
            self.tasks.get_mut(&itt).unwrap().queued += bytes;
            self.enqueue(pdus::data_out(itt, 7, 0, bytes as u32, true), bytes, itt);
        } else {
            self.tasks.remove(&itt);
            self.push(self.now + self.spec.think_ns + self.jitter(), Step::Begin);
        }
    }

    fn serve(&mut self, itt: u32) {
        let block = self.spec.block;
        self.enqueue(pdus::data_in(itt, 0, block as u32, Some(0)), block, itt);
    }

    /// Whether the cap lets `bytes` more out.
    fn may_send(&mut self, bytes: u64) -> bool {
        let in_flight = self.sent - self.acked;
        match self.spec.cap {
            Cap::Buffer(cap) => {
                if in_flight + bytes > cap {
                    self.is_filling = false;
                } else if in_flight <= cap * 2 / 3 && !self.is_filling && !self.is_waking {
                    self.is_waking = true;
                    self.push(self.now + WAKE_NS, Step::Wake);
                }
                self.is_filling
            }
            Cap::Window(cap) => in_flight + bytes <= cap && in_flight + bytes <= self.congestion,
            Cap::None | Cap::Congestion(_) => in_flight + bytes <= self.congestion,
        }
    }

    fn pump(&mut self) {
        while self.sent < self.queued {
            if self.now < self.busy_until {
                self.push(self.busy_until, Step::Go);
                return;
            }
            let mut bytes = FRAME.min(self.queued - self.sent);
            while bytes > 0 && !self.may_send(bytes) {
                bytes = if bytes > MSS { (bytes - 1) / MSS * MSS } else { 0 };
                if matches!(self.spec.cap, Cap::Buffer(_)) {
                    return;
                }
            }
            if bytes == 0 {
                return;
            }
            self.busy_until = self.now + 2_000 + self.spec.spin_ns;
            self.transmit(self.sent, bytes, false);
        }
    }

    fn transmit(&mut self, offset: u64, bytes: u64, is_again: bool) {
        self.frames += 1;
        self.sent = self.sent.max(offset + bytes);
        let is_lost =
            self.spec.loss_every > 0 && self.frames.is_multiple_of(self.spec.loss_every) && !is_again;
        if is_lost {
            self.repairing = Some(self.sent);
            self.congestion = (self.congestion / 2).max(4 * MSS);
            self.push(self.now + self.spec.rtt_ns + 500_000, Step::Repair(offset, bytes));
        }
        // The narrow link is the first one.
        let start = self.line_busy_until.max(self.now);
        let passed = start + (bytes as f64 / self.spec.line as f64 * 1e9) as u64;
        let from = self.sender();
        let is_at_sender = self.to_vantage(from) == 0;
        let at = if is_at_sender { self.now } else { passed + self.to_vantage(from) };
        let is_shown = !(is_lost && (self.spec.is_loss_local || !is_at_sender));
        if is_shown {
            self.show_data(at, offset, bytes, is_again);
        }
        if !is_lost {
            self.line_busy_until = passed;
            self.push(passed + self.spec.rtt_ns / 2, Step::Data(offset, bytes));
        }
    }

    fn show_data(&mut self, at: u64, offset: u64, bytes: u64, is_again: bool) {
        self.frame += 1;
        let from = self.sender();
        let repeated =
            if is_again && !self.spec.is_loss_local && self.to_vantage(from) == 0 { bytes } else { 0 };
        let order = if is_again { Order::Again } else { Order::Next };
        let segment = Segment {
            offset,
            bytes: bytes as u32,
            repeated_bytes: repeated as u32,
            mss: MSS as u16,
            push: false,
            order,
        };
        self.show(at, from, Kind::Segment(segment));
        self.seen = self.seen.max(offset + bytes);
        while let Some((start, bytes, header, _)) = self.pdus.get(self.shown).copied() {
            if start + HEADER > self.seen {
                break;
            }
            self.show(at, from, Kind::PduStart(PduStart { offset: start, bytes, header }));
            self.shown += 1;
        }
        while let Some((start, bytes, ..)) = self.pdus.get(self.ended).copied() {
            if start + bytes > self.seen {
                break;
            }
            self.show(at, from, Kind::PduEnd(PduEnd { offset: start }));
            self.ended += 1;
        }
    }

    fn on_data(&mut self, offset: u64, bytes: u64) {
        self.ahead.insert(offset, bytes);
        while let Some(entry) = self.ahead.first_entry() {
            if *entry.key() > self.received {
                break;
            }
            self.received = self.received.max(*entry.key() + entry.remove());
        }
        let from = self.sender().peer();
        self.frame += 1;
        let at = self.now + self.to_vantage(from);
        let sacked: u64 = self.ahead.values().sum();
        let ack = Ack {
            acknowledged: self.received,
            window_bytes: Some(self.window()),
            sacked_bytes: sacked as u32,
            is_bare: true,
            ..Ack::default()
        };
        self.show(at, from, Kind::Ack(ack));
        let received = self.received;
        self.push(self.now + self.spec.rtt_ns / 2, Step::Ack(received));
        while let Some((start, bytes, _, itt)) = self.pdus.get(self.pdu_next).copied() {
            if start + bytes > self.received {
                break;
            }
            self.pdu_next += 1;
            let task = self.tasks.get_mut(&itt).unwrap();
            task.arrived += bytes - HEADER;
            self.data_bytes += bytes - HEADER;
            if task.arrived >= if self.spec.is_read { self.spec.block } else { task.granted } {
                let own = if self.spec.is_read { 0 } else { self.spec.target_ns };
                self.push(self.now + own + self.jitter(), Step::Answer(itt));
            }
        }
    }

    /// Writes: an R2T or the response. Reads: the initiator has all data.
    fn answer(&mut self, itt: u32) {
        if self.spec.is_read {
            self.tasks.remove(&itt);
            self.push(self.now + self.spec.think_ns, Step::Begin);
            return;
        }
        let (block, r2t) = (self.spec.block, self.spec.r2t);
        let task = self.tasks.get_mut(&itt).unwrap();
        if task.granted < block {
            let bytes = r2t.min(block - task.granted);
            task.granted += bytes;
            self.small(pdus::r2t(itt, 0, bytes as u32));
        } else {
            self.small(pdus::good(itt));
        }
    }

    fn on_ack(&mut self, acked: u64) {
        if acked > self.acked {
            self.acked = acked;
            if self.spec.loss_every > 0 && self.repairing.is_none_or(|until| acked >= until) {
                self.repairing = None;
                // One segment a round trip.
                self.congestion += MSS * FRAME / self.congestion.max(1);
            }
        }
        self.push(self.now + TCP_NS, Step::Go);
    }
}
