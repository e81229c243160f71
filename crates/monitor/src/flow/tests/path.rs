//! Two TCP ends with a path between them, and a point of capture on it: packets as a capture would hold them, and what
//! happened.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use super::streams::Stream;
use crate::packet::{Flags, Options, Packet};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Of the first packet.
pub(super) const EPOCH: u64 = 1_700_000_000_000_000_000;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    fn is_one_of(&mut self, many: u64) -> bool {
        many > 0 && self.below(many) == 0
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Round trips between the point of capture and each end.
    pub(super) distances_ns: [u64; 2],
    /// One of so many packets is lost, half of them before the point of capture; 0: none.
    pub(super) lost: u64,
    /// One of so many is late.
    pub(super) reordered: u64,
    /// One of so many is captured twice.
    pub(super) copied: u64,
    /// One of so many is not captured.
    pub(super) missed: u64,
    pub(super) has_timestamps: bool,
    pub(super) is_version_6: bool,
    /// Segments of a frame at most.
    pub(super) frame_segments: u32,
    /// Captured payload of a packet.
    pub(super) snap_bytes: usize,
    pub(super) isns: [u32; 2],
    /// Delayed acknowledgements.
    pub(super) is_delaying: bool,
}

impl Settings {
    pub(super) fn mss(&self) -> u64 {
        if self.has_timestamps { 1448 } else { 1460 }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            distances_ns: [3 * MS, 5 * MS],
            lost: 0,
            reordered: 0,
            copied: 0,
            missed: 0,
            has_timestamps: true,
            is_version_6: false,
            frame_segments: 1,
            snap_bytes: usize::MAX,
            isns: [0xffff_f000, 17],
            is_delaying: true,
        }
    }
}

#[derive(Clone, Debug)]
struct Segment {
    from: usize,
    span: Range<u64>,
    ack: u64,
    flags: u8,
    stamps: (u32, u32),
    ip_id: u16,
    sack: Option<Range<u64>>,
    is_again: bool,
}

/// A captured packet, owned.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) at_ns: u64,
    pub(super) frame: u64,
    pub(super) interface: u32,
    segment: Segment,
    payload: Vec<u8>,
}

/// What happened in one direction, as far as it can be told at the point of capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Truth {
    pub(super) retransmissions: u64,
    pub(super) reordered: u64,
    pub(super) copies: u64,
    /// Bytes that no captured packet has.
    pub(super) missed_bytes: u64,
}

#[derive(Default)]
struct End {
    written: u64,
    next: u64,
    acked: u64,
    duplicates: u32,
    received: u64,
    out_of_order: BTreeMap<u64, u64>,
    owed: u32,
    ip_id: u16,
    stamp: u32,
    timer_ns: u64,
    /// What was sent again last, and when.
    repaired: (u64, u64),
    is_finished: bool,
}

enum Happening {
    Write(usize, u64),
    Arrive(Segment),
    Delayed(usize),
    Timer(usize),
}

pub(super) struct Path {
    settings: Settings,
    random: Random,
    streams: [Stream; 2],
    ends: [End; 2],
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    serial: u64,
    /// Passing packets.
    passed: Vec<(u64, Segment)>,
}

impl Path {
    pub(super) fn new(settings: Settings, streams: [Stream; 2], seed: u64) -> Self {
        Self {
            settings,
            random: Random(seed | 1),
            streams,
            ends: Default::default(),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            serial: 0,
            passed: Vec::new(),
        }
    }

    fn at(&mut self, at_ns: u64, happening: Happening) {
        self.serial += 1;
        self.queue.push(Reverse((at_ns, self.serial)));
        self.happenings.insert(self.serial, happening);
    }

    /// Runs until everything has arrived.
    pub(super) fn run(mut self) -> (Vec<Seen>, [Truth; 2]) {
        let round_trip = self.settings.distances_ns[0] + self.settings.distances_ns[1];
        self.send(0, 0, 0..0, Flags::SYN, false);
        self.send(round_trip / 2, 1, 0..0, Flags::SYN | Flags::ACK, false);
        self.send(round_trip, 0, 0..0, Flags::ACK, false);
        for end in 0..2 {
            let mut at_ns = round_trip + MS * (1 + end as u64);
            for index in 0..self.streams[end].pdus.len() {
                let pdu = self.streams[end].pdus[index];
                self.at(at_ns, Happening::Write(end, pdu.offset + pdu.bytes));
                at_ns += self.random.below(300 * US);
            }
        }
        while let Some(Reverse((now, serial))) = self.queue.pop() {
            match self.happenings.remove(&serial).expect("it is queued once") {
                Happening::Write(end, until) => {
                    self.ends[end].written = until;
                    self.transmit(now, end);
                }
                Happening::Arrive(segment) => self.arrive(now, &segment),
                Happening::Delayed(end) if self.ends[end].owed > 0 => self.acknowledge(now, end),
                Happening::Timer(end) if now >= self.ends[end].timer_ns => self.time_out(now, end),
                Happening::Delayed(_) | Happening::Timer(_) => {}
            }
        }
        self.capture()
    }

    fn send(&mut self, now: u64, from: usize, span: Range<u64>, flags: u8, is_again: bool) {
        let packets = (span.end - span.start).div_ceil(self.settings.mss()).max(1) as u16;
        let (stamp, peer) = ((now / MS) as u32 + 1000, 1 - from);
        let end = &mut self.ends[from];
        let ip_id = end.ip_id.wrapping_add(1);
        end.ip_id = end.ip_id.wrapping_add(packets);
        end.owed = 0;
        let sack = end.out_of_order.iter().next_back().map(|(start, end)| *start..*end);
        let (ack, stamps) = (end.received, (stamp, end.stamp));
        let segment = Segment { from, span, ack, flags, stamps, ip_id, sack, is_again };
        let is_handshake = flags & Flags::SYN != 0 || now <= self.settings.distances_ns.iter().sum();
        let many = if is_handshake { 0 } else { self.settings.lost };
        let is_lost = self.random.is_one_of(many);
        if is_lost && self.random.is_one_of(2) {
            return;
        }
        let late = !is_handshake && self.random.is_one_of(self.settings.reordered);
        let late_ns = if late { self.random.below(500 * US) } else { 0 };
        let passes_ns = now + self.settings.distances_ns[from] / 2 + late_ns;
        self.passed.push((passes_ns, segment.clone()));
        if !is_lost && flags & Flags::SYN == 0 {
            self.at(passes_ns + self.settings.distances_ns[peer] / 2, Happening::Arrive(segment));
        }
    }

    fn transmit(&mut self, now: u64, from: usize) {
        const IN_FLIGHT: u64 = 64 << 10;
        loop {
            let end = &self.ends[from];
            let (next, left) = (end.next, end.written - end.next);
            if left == 0 || next - end.acked >= IN_FLIGHT {
                break;
            }
            let most = self.settings.mss() * (1 + self.random.below(self.settings.frame_segments.into()));
            let bytes =
                if self.random.is_one_of(4) { 1 + self.random.below(self.settings.mss()) } else { most };
            let span = next..next + bytes.min(left);
            self.ends[from].next = span.end;
            self.send(now, from, span, Flags::ACK | Flags::PSH, false);
        }
        let end = &mut self.ends[from];
        if end.next == self.streams[from].bytes.len() as u64 && end.acked == end.next && !end.is_finished {
            end.is_finished = true;
            let at = end.next;
            self.send(now, from, at..at, Flags::ACK | Flags::FIN, false);
        } else {
            self.restart_timer(now, from);
        }
    }

    fn restart_timer(&mut self, now: u64, from: usize) {
        let end = &mut self.ends[from];
        if end.acked < end.next {
            end.timer_ns = now + 200 * MS;
            let at_ns = end.timer_ns;
            self.at(at_ns, Happening::Timer(from));
        }
    }

    fn send_again(&mut self, now: u64, from: usize) {
        let end = &mut self.ends[from];
        let span = end.acked..end.next.min(end.acked + self.settings.mss());
        let round_trip: u64 = self.settings.distances_ns.iter().sum();
        // Not twice within a round trip.
        let is_repaired = end.repaired.0 == span.start && now < end.repaired.1 + round_trip;
        if !span.is_empty() && !is_repaired {
            end.repaired = (span.start, now);
            self.send(now, from, span, Flags::ACK, true);
            self.restart_timer(now, from);
        }
    }

    fn time_out(&mut self, now: u64, from: usize) {
        self.send_again(now, from);
    }

    fn arrive(&mut self, now: u64, segment: &Segment) {
        let to = 1 - segment.from;
        let end = &mut self.ends[to];
        if segment.stamps.0 > end.stamp && segment.span.start <= end.received {
            end.stamp = segment.stamps.0;
        }
        if segment.ack > end.acked {
            end.acked = segment.ack;
            end.duplicates = 0;
            let is_hole = segment.sack.is_some();
            if is_hole {
                self.send_again(now, to);
            }
        } else if segment.span.is_empty() && end.acked < end.next {
            end.duplicates += 1;
            if end.duplicates == 3 {
                self.send_again(now, to);
            }
        }
        self.receive(now, to, segment.span.clone());
        self.transmit(now, to);
    }

    fn receive(&mut self, now: u64, to: usize, span: Range<u64>) {
        if span.is_empty() {
            return;
        }
        let end = &mut self.ends[to];
        let is_in_order = span.start <= end.received && span.end > end.received;
        if span.end > end.received {
            let known = end.out_of_order.entry(span.start).or_default();
            *known = (*known).max(span.end);
        }
        while let Some((start, until)) = end.out_of_order.first_key_value().map(|(a, b)| (*a, *b))
            && start <= end.received
        {
            end.received = end.received.max(until);
            end.out_of_order.pop_first();
        }
        end.owed += 1;
        let is_now = !is_in_order || end.owed >= 2 || !self.settings.is_delaying;
        if is_now {
            self.acknowledge(now, to);
        } else {
            self.at(now + 20 * MS, Happening::Delayed(to));
        }
    }

    fn acknowledge(&mut self, now: u64, from: usize) {
        let at = self.ends[from].next;
        self.send(now, from, at..at, Flags::ACK, false);
    }

    /// What a capture holds of the packets that passed, and what can be told from it.
    fn capture(mut self) -> (Vec<Seen>, [Truth; 2]) {
        let mut passed = std::mem::take(&mut self.passed);
        passed.sort_by_key(|(at_ns, _)| *at_ns);
        let (mut truth, mut high, mut seen) = ([Truth::default(); 2], [0; 2], Vec::new());
        let mut covered: [Vec<bool>; 2] = [0, 1].map(|end| vec![false; self.streams[end].bytes.len()]);
        for (at_ns, segment) in passed {
            let is_missed = segment.flags & Flags::SYN == 0 && self.random.is_one_of(self.settings.missed);
            if is_missed {
                continue;
            }
            let (from, span) = (segment.from, segment.span.clone());
            let bytes = span.start as usize..span.end as usize;
            if !span.is_empty() && span.start < high[from] {
                let packets = (span.end - span.start).div_ceil(self.settings.mss());
                let is_known = covered[from][bytes.clone()].iter().any(|byte| *byte);
                let is_again = segment.is_again || is_known;
                *if is_again { &mut truth[from].retransmissions } else { &mut truth[from].reordered } +=
                    packets;
            }
            if !span.is_empty() {
                high[from] = high[from].max(span.end);
            }
            covered[from][bytes.clone()].fill(true);
            let captured = bytes.start..bytes.end.min(bytes.start.saturating_add(self.settings.snap_bytes));
            let payload = self.streams[from].bytes[captured].to_vec();
            let (at_ns, frame) = (EPOCH + at_ns, seen.len() as u64 + 1);
            seen.push(Seen { at_ns, frame, interface: 0, segment, payload });
            if self.random.is_one_of(self.settings.copied) {
                truth[from].copies += 1;
                let last = seen.last().expect("one was added").clone();
                seen.push(Seen { at_ns: at_ns + 5 * US, frame: frame + 1, interface: 1, ..last });
            }
        }
        for (truth, covered) in truth.iter_mut().zip(&covered) {
            truth.missed_bytes = covered.iter().filter(|byte| !**byte).count() as u64;
        }
        (seen, truth)
    }
}

impl Seen {
    pub(super) fn packet(&self, settings: &Settings) -> Packet<'_> {
        let Segment { from, span, ack, flags, stamps, ip_id, sack, .. } = &self.segment;
        let ends = if settings.is_version_6 {
            ["[fd00::1]:40000", "[fd00::2]:3260"]
        } else {
            ["10.0.0.1:40000", "10.0.0.2:3260"]
        }
        .map(|end| end.parse().expect("an address"));
        let is_syn = flags & Flags::SYN != 0;
        let sequence =
            |end: usize, offset: u64| settings.isns[end].wrapping_add(1).wrapping_add(offset as u32);
        let mut options = Options {
            mss: is_syn.then_some(1460),
            window_scale: is_syn.then_some(7),
            sack_permitted: is_syn,
            timestamps: settings.has_timestamps.then_some(*stamps),
            ..Options::default()
        };
        if let Some(sack) = sack {
            options.sacks[0] = (sequence(1 - from, sack.start), sequence(1 - from, sack.end));
            options.sack_count = 1;
        }
        Packet {
            at_ns: self.at_ns,
            frame: self.frame,
            interface: self.interface,
            source: ends[*from],
            destination: ends[1 - from],
            seq: if is_syn { settings.isns[*from] } else { sequence(*from, span.start) },
            ack: if flags & Flags::ACK == 0 { 0 } else { sequence(1 - from, *ack) },
            flags: Flags(*flags),
            window: 512,
            options,
            ip_id: (!settings.is_version_6).then_some(*ip_id),
            hops: 64,
            ecn: 0,
            payload_bytes: (span.end - span.start) as u32,
            payload: &self.payload,
        }
    }
}
