//! One TCP connection: what each of its packets shows.

use std::net::SocketAddr;

use super::framer::{Captured, Framer};
use super::half::{Acked, Half, Stamp, Syn};
use super::negotiated::Negotiated;
use super::plausible::{Context, is_plausible, sender};
use super::round_trip::Least;
use super::{Counts, Flow, FlowId, Framing};
use crate::event::{Ack, Distances, Duplicate, Event, Kind, Opaque, Order, Segment, Side, Vantage};
use crate::limits::CANDIDATE_BYTES_MAX;
use crate::packet::{Flags, Packet};

/// Largest shift of a window (RFC 7323 section 2.3).
const WINDOW_SHIFT_MAX: u8 = 14;
/// Without an MSS option (RFC 9293 section 3.7.1).
const MSS_DEFAULT: u16 = 536;
/// Bytes that time stamps take of each segment.
const TIMESTAMPS_BYTES: u16 = 12;
/// Maximum segment sizes of Ethernet, with and without time stamps, and with jumbo frames.
const MSS_USUAL: [u16; 4] = [1448, 1460, 8948, 8960];
/// An end this near, or this part of the round trip away, is at the vantage.
const NEAR_NS: u64 = 50_000;
const NEAR_PART: u64 = 20;
/// Ends that are both so near may be one machine.
const LOCAL_NS: u64 = 200_000;

/// What is known of whether this is iSCSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// PDUs were found, or it is on a port of a target.
    Iscsi,
    Candidate,
    Other,
}

#[derive(Debug)]
pub(super) struct Connection {
    id: FlowId,
    /// By direction: the end that sends.
    ends: [SocketAddr; 2],
    halves: [Half; 2],
    framers: [Framer; 2],
    /// The direction that the initiator sends.
    initiator: Option<usize>,
    /// Shifts of the windows that the sockets tell, by direction.
    known_scales: [Option<u8>; 2],
    standing: Standing,
    /// Least round trip to the end that sends each direction.
    distances: [Least; 2],
    negotiated: Negotiated,
    counts: [Counts; 2],
    first_ns: u64,
    last_ns: u64,
    candidate_bytes: u64,
    ended: [bool; 2],
    is_reset: bool,
    /// It held too much: its packets are counted only.
    is_left: bool,
}

impl Connection {
    /// `initiator` is the direction that the initiator sends, where the port tells; then the connection is taken for
    /// iSCSI. Direction 0 is that of `packet`, the first one.
    pub(super) fn new(id: FlowId, packet: &Packet<'_>, initiator: Option<usize>) -> Self {
        let is_from_start = packet.flags.has(Flags::SYN);
        let by_syn = is_from_start.then(|| usize::from(packet.flags.has(Flags::ACK)));
        let mut connection = Self {
            id,
            ends: [packet.source, packet.destination],
            halves: Default::default(),
            framers: [Side::Initiator, Side::Target].map(|side| Framer::new(side, is_from_start)),
            initiator: None,
            known_scales: [None; 2],
            standing: if initiator.is_some() { Standing::Iscsi } else { Standing::Candidate },
            distances: Default::default(),
            negotiated: Negotiated::new(is_from_start),
            counts: Default::default(),
            first_ns: packet.at_ns,
            last_ns: packet.at_ns,
            candidate_bytes: 0,
            ended: [false; 2],
            is_reset: false,
            is_left: false,
        };
        if let Some(direction) = by_syn.or(initiator) {
            connection.set_initiator(direction);
        }
        connection
    }

    /// Shifts of the windows by direction, as the socket of an end has them: for a connection whose start is not captured.
    pub(super) fn set_known_scales(&mut self, scales: [Option<u8>; 2]) {
        self.known_scales = scales.map(|scale| scale.map(|scale| scale.min(WINDOW_SHIFT_MAX)));
    }

    fn set_initiator(&mut self, direction: usize) {
        self.initiator = Some(direction);
        let is_from_start = self.negotiated.is_from_start;
        let sides =
            if direction == 0 { [Side::Initiator, Side::Target] } else { [Side::Target, Side::Initiator] };
        self.framers = sides.map(|side| Framer::new(side, is_from_start));
    }

    /// Memory that [`Connection::leave`] frees, about.
    pub(super) fn held_bytes(&self) -> usize {
        if self.is_left {
            return 0;
        }
        let halves = self.halves.iter().map(Half::held_bytes).sum::<usize>();
        let framers = self.framers.iter().map(Framer::held_bytes).sum::<usize>();
        halves + framers + self.negotiated.held_bytes()
    }

    /// Follows the connection no further: its packets are counted, and yield no event. What is known stays.
    pub(super) fn leave(&mut self) {
        self.is_left = true;
        self.framers.iter_mut().for_each(Framer::leave);
        self.halves.iter_mut().for_each(Half::leave);
        self.negotiated.leave();
    }

    pub(super) fn id(&self) -> FlowId {
        self.id
    }

    pub(super) fn is_from(&self, end: SocketAddr) -> bool {
        self.ends[0] == end
    }

    pub(super) fn is_candidate(&self) -> bool {
        self.standing == Standing::Candidate
    }

    /// Whether a SYN belongs to another connection between the same ports.
    pub(super) fn is_reused_by(&self, direction: usize, packet: &Packet<'_>) -> bool {
        let is_new = packet.flags.has(Flags::SYN) && !packet.flags.has(Flags::ACK);
        is_new && self.halves[direction].syn.is_none_or(|syn| syn.seq != packet.seq || syn.is_answer)
    }

    /// Takes the next packet; returns whether the connection is iSCSI.
    pub(super) fn push(
        &mut self,
        direction: usize,
        packet: &Packet<'_>,
        sink: &mut impl FnMut(FlowId, &Event),
    ) -> Standing {
        self.last_ns = self.last_ns.max(packet.at_ns);
        self.counts[direction].packets += 1;
        if self.is_left {
            return self.standing;
        }
        if packet.flags.has(Flags::SYN) {
            if self.halves[direction].repeats.is_copy(packet, self.round_trip_ns()) {
                self.counts[direction].copies += 1;
                return self.standing;
            }
            self.on_syn(direction, packet);
        }
        if packet.flags.has(Flags::RST) {
            if self.is_emitting() && !std::mem::replace(&mut self.is_reset, true) {
                self.emit(direction, packet, Kind::Ended { by_reset: true }, sink);
            }
            return self.standing;
        }
        if !self.halves[direction].is_started() {
            self.halves[direction].start(packet.seq);
        }
        let seq = packet.seq.wrapping_add(u32::from(packet.flags.has(Flags::SYN)));
        let Some(offset) = self.halves[direction].offset(seq) else {
            self.counts[direction].strange += 1;
            return self.standing;
        };
        if self.is_copy(direction, packet, offset) {
            self.counts[direction].copies += 1;
            return self.standing;
        }
        self.halves[direction].repeats.remember(packet);
        if self.standing == Standing::Candidate {
            self.examine(direction, packet);
        }
        self.on_stamps(direction, packet);
        self.on_ack(direction, packet, sink);
        self.on_payload(direction, packet, offset, sink);
        self.on_fin(direction, packet, offset, sink);
        self.declare_lost(packet, sink);
        self.standing
    }

    fn is_emitting(&self) -> bool {
        self.standing == Standing::Iscsi && self.initiator.is_some()
    }

    fn side(&self, direction: usize) -> Side {
        if self.initiator == Some(direction) { Side::Initiator } else { Side::Target }
    }

    fn emit(&self, direction: usize, packet: &Packet<'_>, kind: Kind, sink: &mut impl FnMut(FlowId, &Event)) {
        let from = self.side(direction);
        sink(self.id, &Event { at_ns: packet.at_ns, frame: packet.frame, from, kind });
    }

    fn on_syn(&mut self, direction: usize, packet: &Packet<'_>) {
        let half = &mut self.halves[direction];
        if let Some(syn) = &mut half.syn {
            syn.is_repeated = true;
            return;
        }
        if half.is_started() {
            return;
        }
        half.start(packet.seq.wrapping_add(1));
        half.syn = Some(Syn {
            seq: packet.seq,
            at_ns: packet.at_ns,
            is_answer: packet.flags.has(Flags::ACK),
            is_repeated: false,
            window_scale: packet.options.window_scale,
            is_cut: packet.options.is_cut,
            mss: packet.options.mss,
            has_timestamps: packet.options.timestamps.is_some(),
        });
    }

    /// Whether the capture holds this packet twice. Only packets that bring nothing new are compared.
    fn is_copy(&self, direction: usize, packet: &Packet<'_>, offset: i64) -> bool {
        let half = &self.halves[direction];
        let end = offset.saturating_add(i64::from(packet.payload_bytes));
        let peer = &self.halves[1 - direction];
        let acked = peer.offset(packet.ack).unwrap_or(0);
        let is_new = packet.payload_bytes > 0 && end > half.next.cast_signed()
            || acked > half.acked.offset.cast_signed()
            || !half.acked.is_any;
        if is_new || packet.flags.has(Flags::SYN) {
            return false;
        }
        half.repeats.is_copy(packet, self.round_trip_ns())
    }

    /// Looks whether a connection on another port is iSCSI.
    fn examine(&mut self, direction: usize, packet: &Packet<'_>) {
        let Some(first) = packet.payload.first() else { return };
        let header = packet.payload.first_chunk();
        let is_start = self.initiator.is_some() && !self.halves[direction].has_data;
        if let (true, Some(initiator)) = (is_start, self.initiator) {
            let is_login = *first == 0x43 && direction == initiator;
            let fits = header.is_none_or(|header| is_plausible(Side::Initiator, header, Context::default()));
            self.standing = if is_login && fits { Standing::Iscsi } else { Standing::Other };
            return;
        }
        let side = sender(*first);
        if let (Some(header), Some(side)) = (header, side)
            && is_plausible(side, header, Context::default())
        {
            self.set_initiator(if side == Side::Initiator { direction } else { 1 - direction });
            self.standing = Standing::Iscsi;
            return;
        }
        self.candidate_bytes += u64::from(packet.payload_bytes);
        if self.candidate_bytes > CANDIDATE_BYTES_MAX {
            self.standing = Standing::Other;
        }
    }

    #[inline]
    fn on_stamps(&mut self, direction: usize, packet: &Packet<'_>) {
        let Some((tsval, tsecr)) = packet.options.timestamps else { return };
        if self.distances[1 - direction].needs_stamps() {
            self.halves[direction].stamps.sent(tsval, packet.at_ns);
        }
        if self.distances[direction].needs_stamps()
            && packet.flags.has(Flags::ACK)
            && let Some(sample_ns) = self.halves[1 - direction].stamps.echoed(tsecr, packet.at_ns)
        {
            self.distances[direction].add_stamps(sample_ns);
        }
    }

    fn on_ack(&mut self, direction: usize, packet: &Packet<'_>, sink: &mut impl FnMut(FlowId, &Event)) {
        if !packet.flags.has(Flags::ACK) {
            return;
        }
        let peer = &mut self.halves[1 - direction];
        if !peer.is_started() {
            peer.start(packet.ack);
        }
        let Some(offset) = peer.offset(packet.ack) else {
            self.counts[direction].strange += 1;
            return;
        };
        let mut offset = u64::try_from(offset).unwrap_or(0);
        if let Some(fin) = peer.fin {
            offset = offset.min(fin);
        }
        let last = self.halves[direction].acked;
        if last.is_any && offset < last.offset {
            // Overtaken by a later one.
            return;
        }
        let peer = &mut self.halves[1 - direction];
        let round_trip_ns =
            if last.is_any && offset > last.offset { peer.acknowledge(offset, packet.at_ns) } else { None };
        let outstanding = peer.next > offset;
        self.time_handshake(direction, packet, last);
        if let Some(sample_ns) = round_trip_ns {
            self.distances[direction].add(sample_ns);
        }
        let sacked_bytes = sacked_bytes(packet);
        let duplicate = duplicate(packet, last, offset, sacked_bytes, outstanding);
        self.halves[direction].acked = Acked { offset, window: packet.window, sacked_bytes, is_any: true };
        self.counts[direction].duplicate_acks += u64::from(duplicate == Duplicate::Ack);
        if !self.is_emitting() || packet.flags.has(Flags::SYN) {
            return;
        }
        let ack = Ack {
            acknowledged: offset,
            window_bytes: self.scale(direction).map(|scale| u64::from(packet.window) << scale),
            sacked_bytes,
            duplicate,
            congestion_echo: packet.flags.has(Flags::ECE),
            is_bare: packet.payload_bytes == 0,
            round_trip_ns,
        };
        self.emit(direction, packet, Kind::Ack(ack), sink);
    }

    /// The first acknowledgement of a direction answers the peer's SYN, if it acknowledges nothing more.
    fn time_handshake(&mut self, direction: usize, packet: &Packet<'_>, last: Acked) {
        let Some(syn) = self.halves[1 - direction].syn.filter(|_| !last.is_any) else { return };
        let is_repeated = syn.is_repeated || self.halves[direction].syn.is_some_and(|own| own.is_repeated);
        if !is_repeated && packet.ack == syn.seq.wrapping_add(1) {
            self.distances[direction].add(packet.at_ns.saturating_sub(syn.at_ns));
        }
    }

    fn on_payload(
        &mut self,
        direction: usize,
        packet: &Packet<'_>,
        offset: i64,
        sink: &mut impl FnMut(FlowId, &Event),
    ) {
        let peer = &self.halves[1 - direction];
        let peer_window = (peer.acked.is_any).then_some(peer.acked.window);
        if packet.payload_bytes == 0
            || self.halves[direction].is_probe(offset, packet.payload_bytes, peer_window)
        {
            return;
        }
        // Bytes from before the capture are left out.
        let before = usize::try_from(offset.min(0).unsigned_abs()).unwrap_or(usize::MAX);
        let bytes = packet.payload_bytes.saturating_sub(u32::try_from(before).unwrap_or(u32::MAX));
        if bytes == 0 {
            self.counts[direction].retransmissions += 1;
            return;
        }
        let offset = u64::try_from(offset).unwrap_or(0);
        let captured = Captured { offset, bytes: packet.payload.get(before..).unwrap_or(&[]) };
        let span = offset..offset.saturating_add(bytes.into());
        let round_trip_ns = self.round_trip_ns();
        let half = &mut self.halves[direction];
        half.payload_max = half.payload_max.max(bytes);
        let placed = half.place(span, packet.at_ns, Stamp::of(packet), round_trip_ns);
        let mss = self.mss(direction);
        let packets = u64::from(bytes.div_ceil(u32::from(mss.max(1))));
        let counts = &mut self.counts[direction];
        counts.segments += packets;
        counts.kept_bytes_max = counts.kept_bytes_max.max(packet.payload.len() as u64);
        counts.bytes += u64::from(bytes - placed.repeated_bytes);
        match placed.order {
            Order::Next => {}
            Order::Late => counts.reordered += packets,
            Order::Again => counts.retransmissions += packets,
        }
        if !self.is_emitting() {
            return;
        }
        let push = packet.flags.has(Flags::PSH);
        let repeated_bytes = placed.repeated_bytes;
        let segment = Segment { offset, bytes, repeated_bytes, mss, push, order: placed.order };
        self.emit(direction, packet, Kind::Segment(segment), sink);
        if repeated_bytes < bytes {
            self.frame(direction, packet, captured, sink);
        }
    }

    fn frame(
        &mut self,
        direction: usize,
        packet: &Packet<'_>,
        captured: Captured<'_>,
        sink: &mut impl FnMut(FlowId, &Event),
    ) {
        let (id, from) = (self.id, self.side(direction));
        let (at_ns, frame) = (packet.at_ns, packet.frame);
        let mut emit = |kind| sink(id, &Event { at_ns, frame, from, kind });
        self.framers[direction].advance(&self.halves[direction], captured, &mut self.negotiated, &mut emit);
    }

    fn on_fin(
        &mut self,
        direction: usize,
        packet: &Packet<'_>,
        offset: i64,
        sink: &mut impl FnMut(FlowId, &Event),
    ) {
        if !packet.flags.has(Flags::FIN) {
            return;
        }
        let end = offset.saturating_add(i64::from(packet.payload_bytes));
        self.halves[direction].fin = Some(u64::try_from(end).unwrap_or(0));
        if self.is_emitting() && !std::mem::replace(&mut self.ended[direction], true) {
            self.emit(direction, packet, Kind::Ended { by_reset: false }, sink);
        }
    }

    #[inline]
    fn declare_lost(&mut self, packet: &Packet<'_>, sink: &mut impl FnMut(FlowId, &Event)) {
        for direction in 0..2 {
            while let Some(lost) = self.halves[direction].poll_lost(packet.at_ns) {
                let bytes = lost.end - lost.start;
                self.counts[direction].capture_lost_bytes += bytes;
                self.counts[direction].capture_losses += 1;
                if self.is_emitting() {
                    self.emit(direction, packet, Kind::CaptureLost { offset: lost.start, bytes }, sink);
                    self.frame(direction, packet, Captured { offset: lost.end, bytes: &[] }, sink);
                }
            }
        }
    }

    /// Shift of the window of this direction's packets, if the handshake or the socket tells.
    fn scale(&self, direction: usize) -> Option<u8> {
        let Some(own) = self.halves[direction].syn else { return self.known_scales[direction] };
        let other = self.halves[1 - direction].syn;
        let is_hidden = |syn: Syn| syn.is_cut && syn.window_scale.is_none();
        if is_hidden(own) || other.is_some_and(is_hidden) {
            return None;
        }
        match (own.window_scale, other) {
            // An answer has the option only if the first SYN had it.
            (Some(scale), Some(Syn { window_scale: Some(_), .. })) => Some(scale.min(WINDOW_SHIFT_MAX)),
            (Some(scale), None) if own.is_answer => Some(scale.min(WINDOW_SHIFT_MAX)),
            (None, _) | (Some(_), Some(_)) => Some(0),
            (Some(_), None) => None,
        }
    }

    /// Payload of a full packet of this direction.
    #[inline]
    fn mss(&self, direction: usize) -> u16 {
        let (own, peer) = (self.halves[direction].syn, self.halves[1 - direction].syn);
        if own.is_none() && peer.is_none() {
            return guessed_mss(self.halves[direction].payload_max);
        }
        let announced = |syn: Option<Syn>| syn.map(|syn| syn.mss.unwrap_or(MSS_DEFAULT));
        let mss = announced(own).into_iter().chain(announced(peer)).min().unwrap_or(MSS_DEFAULT);
        let has_timestamps = [own, peer].into_iter().flatten().all(|syn| syn.has_timestamps);
        mss.saturating_sub(if has_timestamps { TIMESTAMPS_BYTES } else { 0 }).max(1)
    }

    pub(super) fn round_trip_ns(&self) -> Option<u64> {
        self.distances[0].get()?.checked_add(self.distances[1].get()?)
    }

    pub(super) fn distances(&self) -> Distances {
        let Some(initiator) = self.initiator else { return Distances::default() };
        Distances {
            initiator_ns: self.distances[initiator].get(),
            target_ns: self.distances[1 - initiator].get(),
        }
    }

    /// What is known now; `None` for a connection that was not found to be iSCSI.
    pub(super) fn flow(&self) -> Option<Flow> {
        let initiator = self.initiator.filter(|_| self.standing == Standing::Iscsi)?;
        let directions = [initiator, 1 - initiator];
        let framing = |direction: usize| {
            let framer: &Framer = &self.framers[direction];
            match framer.opaque {
                Some(Opaque::Sealed) => Framing::Sealed,
                Some(Opaque::Tls) => Framing::Tls,
                Some(Opaque::Unframed) => Framing::Unframed,
                None if framer.is_framed() && framer.pdus > 0 => Framing::Plain,
                None => Framing::Searching,
            }
        };
        let digests = directions.iter().find_map(|direction| self.framers[*direction].digests());
        let counts = |direction: usize| Counts {
            pdus: self.framers[direction].pdus,
            headers_unseen_bytes: self.framers[direction].unseen_bytes,
            ..self.counts[direction]
        };
        let distances = self.distances();
        Some(Flow {
            id: self.id,
            initiator: self.ends[initiator],
            target: self.ends[1 - initiator],
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            is_from_start: self.negotiated.is_from_start,
            is_login_whole: self.negotiated.is_from_start && !self.negotiated.is_cut,
            mss: directions.map(|direction| self.mss(direction)),
            window_scales: directions.map(|direction| self.scale(direction)),
            distances,
            vantage: vantage(distances),
            negotiated: self.negotiated.pairs.clone(),
            header_digest: digests.map(|digests| digests.0),
            data_digest: digests.map(|digests| digests.1),
            framing: directions.map(framing),
            counts: directions.map(counts),
        })
    }
}

fn sacked_bytes(packet: &Packet<'_>) -> u32 {
    let blocks = packet.options.sacks.iter().take(packet.options.sack_count.into());
    blocks.fold(0, |sum, (left, right)| {
        let is_above = left.wrapping_sub(packet.ack).cast_signed() > 0;
        let bytes = right.wrapping_sub(*left);
        if is_above && bytes.cast_signed() > 0 { sum.saturating_add(bytes) } else { sum }
    })
}

/// Whether the first SACK block reports data that the receiver had already (RFC 2883 section 4).
fn is_duplicate_data(packet: &Packet<'_>) -> bool {
    let blocks =
        &packet.options.sacks[..usize::from(packet.options.sack_count).min(packet.options.sacks.len())];
    let Some((left, right)) = blocks.first() else { return false };
    let is_within = |a: u32, b: u32| b.wrapping_sub(a).cast_signed() >= 0;
    let is_acknowledged = is_within(*right, packet.ack);
    is_acknowledged || blocks.get(1).is_some_and(|(l, r)| is_within(*l, *left) && is_within(*right, *r))
}

fn duplicate(
    packet: &Packet<'_>,
    last: Acked,
    offset: u64,
    sacked_bytes: u32,
    outstanding: bool,
) -> Duplicate {
    if is_duplicate_data(packet) {
        return Duplicate::Data;
    }
    // A receiver's window may move with what it holds out of order: new SACK blocks count as well (RFC 6675 section 2).
    let is_news = last.window == packet.window || sacked_bytes > last.sacked_bytes;
    let is_plain = packet.payload_bytes == 0 && !packet.flags.has(Flags::SYN | Flags::FIN);
    if last.is_any && offset == last.offset && outstanding && is_plain && is_news {
        Duplicate::Ack
    } else {
        Duplicate::No
    }
}

/// The maximum segment size of a direction without handshake, by its largest frame. Frames before segmentation by the
/// network card have a multiple of it.
fn guessed_mss(payload_max: u32) -> u16 {
    let of_many =
        MSS_USUAL.into_iter().find(|mss| payload_max.is_multiple_of((*mss).into()) && payload_max > 0);
    of_many.unwrap_or(match u16::try_from(payload_max) {
        Ok(bytes) if bytes > MSS_DEFAULT && bytes < MSS_USUAL[1] => bytes,
        _ => MSS_USUAL[0],
    })
}

/// Where packets were captured.
pub(super) fn vantage(distances: Distances) -> Vantage {
    let (Some(initiator), Some(target)) = (distances.initiator_ns, distances.target_ns) else {
        return Vantage::Unknown;
    };
    let total = initiator.saturating_add(target);
    let near = (total / NEAR_PART).max(NEAR_NS);
    let (side, least) =
        if initiator <= target { (Side::Initiator, initiator) } else { (Side::Target, target) };
    if least <= near || total <= LOCAL_NS { Vantage::At(side) } else { Vantage::Between }
}
