//! Placeholder of the table of connections: 4-tuples with the target at port 3260, PDUs in order only, no defects.

use std::collections::HashMap;
use std::net::SocketAddr;

use iscsi::wire::{BHS_LENGTH, Bhs};

use crate::event::{Ack, Distances, Duplicate, Event, Kind, PduEnd, PduStart, Segment, Side, Vantage};
use crate::limits::FLOWS_MAX;
use crate::packet::{Flags, Packet};

#[derive(Debug, Default)]
struct Half {
    base: Option<u32>,
    next: u64,
    header: Vec<u8>,
    header_at: u64,
    pdu: Option<(u64, u64)>,
    scale: Option<u8>,
    acked: u64,
    sent: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) ends: [SocketAddr; 2],
    halves: [Half; 2],
    pub(super) frames: u64,
    distances: [Option<u64>; 2],
}

impl Flow {
    pub(super) fn distances(&self) -> Distances {
        Distances { initiator_ns: self.distances[0], target_ns: self.distances[1] }
    }

    pub(super) fn vantage(&self) -> Vantage {
        match self.distances {
            [Some(i), Some(t)] if i * 10 < t => Vantage::At(Side::Initiator),
            [Some(i), Some(t)] if t * 10 < i => Vantage::At(Side::Target),
            [Some(_), Some(_)] => Vantage::Between,
            _ => Vantage::Unknown,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    by_ends: HashMap<(SocketAddr, SocketAddr), usize>,
    pub(super) flows: Vec<Flow>,
    ports: Vec<u16>,
}

impl Table {
    pub(super) fn new(ports: &[u16]) -> Self {
        Self { ports: [&[3260], ports].concat(), ..Self::default() }
    }

    pub(super) fn handle(&mut self, packet: &Packet<'_>, mut sink: impl FnMut(usize, &Flow, &Event)) {
        let is_target = |address: &SocketAddr| self.ports.contains(&address.port());
        let from = match (is_target(&packet.destination), is_target(&packet.source)) {
            (true, _) => Side::Initiator,
            (false, true) => Side::Target,
            _ => return,
        };
        let ends = match from {
            Side::Initiator => (packet.source, packet.destination),
            Side::Target => (packet.destination, packet.source),
        };
        let index = match self.by_ends.get(&ends) {
            Some(index) => *index,
            None if self.flows.len() < FLOWS_MAX => {
                let halves = [Half::default(), Half::default()];
                self.flows.push(Flow { ends: [ends.0, ends.1], halves, frames: 0, distances: [None; 2] });
                self.by_ends.insert(ends, self.flows.len() - 1);
                self.flows.len() - 1
            }
            None => return,
        };
        let mut events = Vec::new();
        let flow = &mut self.flows[index];
        flow.on_packet(packet, from, &mut events);
        for kind in events {
            sink(index, flow, &Event { at_ns: packet.at_ns, frame: packet.frame, from, kind });
        }
    }
}

impl Flow {
    fn on_packet(&mut self, packet: &Packet<'_>, from: Side, events: &mut Vec<Kind>) {
        self.frames += 1;
        let half = &mut self.halves[from as usize];
        if packet.flags.has(Flags::SYN) {
            half.base = Some(packet.seq.wrapping_add(1));
            half.scale = packet.options.window_scale;
            return;
        }
        let base = *half.base.get_or_insert(packet.seq);
        let scale = half.scale;
        let offset = half.next.wrapping_add_signed(i64::from(
            packet.seq.wrapping_sub(base).wrapping_sub(half.next as u32) as i32,
        ));
        let peer = &mut self.halves[from.peer() as usize];
        if let Some(base) = peer.base {
            let acknowledged = peer.next.wrapping_add_signed(i64::from(
                packet.ack.wrapping_sub(base).wrapping_sub(peer.next as u32) as i32,
            ));
            let mut best = self.distances[from as usize];
            peer.sent.retain(|(end, at)| {
                if *end <= acknowledged {
                    if *end > peer.acked {
                        let rtt = packet.at_ns.saturating_sub(*at);
                        best = Some(best.map_or(rtt, |b| b.min(rtt)));
                    }
                    false
                } else {
                    true
                }
            });
            self.distances[from as usize] = best;
            peer.acked = peer.acked.max(acknowledged);
            events.push(Kind::Ack(Ack {
                acknowledged,
                window_bytes: scale.map(|scale| u64::from(packet.window) << scale.min(14)),
                sacked_bytes: 0,
                duplicate: Duplicate::No,
                congestion_echo: false,
                is_bare: packet.payload_bytes == 0,
                round_trip_ns: None,
            }));
        }
        if packet.payload_bytes == 0 {
            return;
        }
        let end = offset + u64::from(packet.payload_bytes);
        let half = &mut self.halves[from as usize];
        let repeated = half.next.saturating_sub(offset).min(u64::from(packet.payload_bytes));
        events.push(Kind::Segment(Segment {
            offset,
            bytes: packet.payload_bytes,
            repeated_bytes: repeated as u32,
            mss: packet.options.mss.unwrap_or(1448),
            push: packet.flags.has(Flags::PSH),
            ..Segment::default()
        }));
        if half.sent.len() < 1024 {
            half.sent.push((end, packet.at_ns));
        }
        half.frame(offset, end, packet.payload, events);
    }
}

impl Half {
    fn frame(&mut self, offset: u64, end: u64, payload: &[u8], events: &mut Vec<Kind>) {
        let mut at = self.next.max(offset);
        while at < end {
            if let Some((start, until)) = self.pdu {
                at = until.min(end);
                if until <= end {
                    events.push(Kind::PduEnd(PduEnd { offset: start }));
                    self.pdu = None;
                }
                continue;
            }
            let skip = (at - offset) as usize;
            if self.header.is_empty() {
                self.header_at = at;
            }
            let want = BHS_LENGTH - self.header.len();
            let have = payload.get(skip..).unwrap_or(&[]);
            let take = want.min(have.len());
            if take == 0 {
                break;
            }
            self.header.extend_from_slice(&have[..take]);
            at += take as u64;
            if let Ok(header) = <[u8; BHS_LENGTH]>::try_from(self.header.as_slice()) {
                self.header.clear();
                let bhs = Bhs(&header);
                let bytes = 48 + bhs.total_ahs_length() as u64 + u64::from(bhs.data_segment_length_padded());
                events.push(Kind::PduStart(PduStart { offset: self.header_at, bytes, header }));
                let until = self.header_at + bytes;
                if until <= at {
                    events.push(Kind::PduEnd(PduEnd { offset: self.header_at }));
                } else {
                    self.pdu = Some((self.header_at, until));
                }
            }
        }
        self.next = self.next.max(end);
    }
}
