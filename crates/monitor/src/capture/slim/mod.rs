//! Writes a capture that can be given to third parties: headers without payload, from which the analysis gives the same
//! verdict.
//!
//! For each TCP packet of an iSCSI connection: IP and TCP headers written anew (link type RAW), with their times,
//! lengths, sequence numbers, windows and known options, and the payload's PDU headers. What is replaced, and by what:
//!
//! - Addresses: the n-th IPv4 address by the n-th of 10.0.0.0/8, the n-th IPv6 address by fd00::n. Ports stay.
//! - Payload: zeros, except basic header segments (module `header` says which of their bytes stay; logical block addresses
//!   and lengths do), header digests, computed anew where there are any, and text of logins with negotiated numbers
//!   (module `text`). Nothing that was written to or read from a disk, no name, no part of CHAP stays.
//! - Link headers, IP options, unknown TCP options, checksums, comments and names in the capture: left out.
//!
//! A snap length cannot describe a packet with a header in its middle. So a packet keeps its bytes up to the last one
//! that stays, the others as zeros, and the lengths in its headers tell the rest. Zeros compress to almost nothing
//! (`gzip`), and a compressed capture can be read as it is.
//!
//! Packets whose connection or PDUs are not yet known wait in a queue, which keeps the order of the capture. When it is
//! full, its first packet leaves it: without payload if its PDUs are unknown, not at all if its connection is.

mod header;
mod packet;
mod stream;
mod text;

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::net::SocketAddr;

use self::header::Headers;
use self::packet::Addresses;
use self::stream::Stream;
use super::link::LINK_TYPE_RAW;
use super::pcapng::{Blocks, Interface};
use crate::event::{Event, Kind, Opaque, Side};
use crate::limits::{SLIM_FLOWS_MAX, SLIM_PDUS_MAX, SLIM_QUEUE_BYTES_MAX, SLIM_QUEUE_PACKETS_MAX};
use crate::packet::{Flags, Packet};

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Packets written.
    pub packets: u64,
    /// Packets of connections that are not iSCSI, or did not turn out to be before the queue was full.
    pub left_out: u64,
    /// Packets written before all of their PDUs were known: without headers that the analysis might miss.
    pub incomplete: u64,
}

pub struct Slim<W: Write> {
    blocks: Blocks<W>,
    /// By the two ends, the lower one first.
    keys: HashMap<(SocketAddr, SocketAddr), u64>,
    flows: HashMap<u64, Flow>,
    next_flow: u64,
    /// Packets of connections for which there was no room, since there was any.
    refused: usize,
    queue: VecDeque<Waiting>,
    queue_bytes: usize,
    /// Known PDUs of all streams.
    pdus: usize,
    addresses: Addresses,
    headers: Headers,
    summary: Summary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nature {
    Unknown,
    Iscsi,
    Other,
}

#[derive(Debug)]
struct Flow {
    nature: Nature,
    /// By direction: from the lower end, from the higher one.
    streams: [Stream; 2],
    /// Packets in the queue, by direction.
    waiting: [usize; 2],
    /// Sides, once a packet with events shows them: of the lower end.
    lower: Option<Side>,
    /// FIN or RST, by direction.
    ended: [bool; 2],
    /// Another connection has the same ends now.
    is_replaced: bool,
}

struct Waiting {
    flow: u64,
    direction: usize,
    at_ns: u64,
    interface: u32,
    original_bytes: u32,
    headers: Vec<u8>,
    /// Place of the payload in the stream; `None` for what is no new payload.
    offset: Option<u64>,
    payload: Vec<u8>,
}

impl<W: Write> Slim<W> {
    /// `output` gets many small writes: give it a buffer.
    pub fn new(output: W) -> io::Result<Self> {
        Ok(Self {
            blocks: Blocks::new(output)?,
            keys: HashMap::new(),
            flows: HashMap::new(),
            next_flow: 0,
            refused: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
            pdus: 0,
            addresses: Addresses::default(),
            headers: Headers::default(),
            summary: Summary::default(),
        })
    }

    /// Takes every TCP packet of the capture in its order, with the events that it yielded.
    pub fn packet(&mut self, packet: &Packet<'_>, events: &[Event]) -> io::Result<()> {
        let direction = usize::from(packet.source > packet.destination);
        let Some(id) = self.flow(packet) else {
            self.summary.left_out += 1;
            return Ok(());
        };
        let offset = self.learn(id, direction, packet, events);
        let flow = self.flows.get_mut(&id).expect("it was found or made");
        if flow.nature == Nature::Other {
            self.summary.left_out += 1;
            return self.release();
        }
        let mut headers = Vec::with_capacity(80);
        let original_bytes = packet::write(packet, &mut self.addresses, &mut headers);
        let payload = offset.map_or(&[][..], |_| packet.payload).to_vec();
        flow.waiting[direction] += 1;
        self.queue_bytes += payload.len();
        self.queue.push_back(Waiting {
            flow: id,
            direction,
            at_ns: packet.at_ns,
            interface: packet.interface,
            original_bytes,
            headers,
            offset,
            payload,
        });
        self.release()
    }

    /// Writes what waits, flushes, and returns the output.
    pub fn finish(mut self) -> io::Result<(W, Summary)> {
        while !self.queue.is_empty() {
            self.leave()?;
        }
        Ok((self.blocks.finish()?, self.summary))
    }

    /// The connection of a packet; `None` if there are too many.
    fn flow(&mut self, packet: &Packet<'_>) -> Option<u64> {
        let (source, destination) = (packet.source, packet.destination);
        let key = (source.min(destination), source.max(destination));
        let known = self.keys.get(&key).copied();
        if let Some(id) = known {
            let flow = self.flows.get_mut(&id).expect("keys name flows");
            let is_new = packet.flags.has(Flags::SYN) && !packet.flags.has(Flags::ACK);
            if !(is_new && (flow.ended != [false; 2] || flow.nature != Nature::Unknown)) {
                return Some(id);
            }
            flow.is_replaced = true;
            flow.streams.iter_mut().for_each(Stream::close);
            self.keys.remove(&key);
            self.drop_if_done(id);
        }
        if self.flows.len() >= SLIM_FLOWS_MAX {
            // A look at all connections for each that is refused would take a millisecond each.
            if self.refused.is_multiple_of(SLIM_FLOWS_MAX) {
                self.drop_ended();
            }
            if self.flows.len() >= SLIM_FLOWS_MAX {
                self.refused += 1;
                return None;
            }
            self.refused = 0;
        }
        let id = self.next_flow;
        self.next_flow += 1;
        let flow = Flow {
            nature: Nature::Unknown,
            streams: Default::default(),
            waiting: [0; 2],
            lower: None,
            ended: [false; 2],
            is_replaced: false,
        };
        self.flows.insert(id, flow);
        self.keys.insert(key, id);
        Some(id)
    }

    fn drop_ended(&mut self) {
        let flows = &mut self.flows;
        let pdus = &mut self.pdus;
        self.keys.retain(|_, id| {
            let is_done = flows.get(id).is_some_and(|flow| flow.ended == [true; 2] && flow.waiting == [0; 2]);
            if is_done && let Some(flow) = flows.remove(id) {
                *pdus -= flow.streams.iter().map(Stream::pdus).sum::<usize>();
            }
            !is_done
        });
    }

    fn drop_if_done(&mut self, id: u64) {
        let is_done = self.flows.get(&id).is_some_and(|flow| flow.is_replaced && flow.waiting == [0; 2]);
        if is_done && let Some(flow) = self.flows.remove(&id) {
            self.pdus -= flow.streams.iter().map(Stream::pdus).sum::<usize>();
        }
    }

    /// Takes what the events of a packet say of its connection; returns where its payload is, if it is new.
    fn learn(&mut self, id: u64, direction: usize, packet: &Packet<'_>, events: &[Event]) -> Option<u64> {
        let flow = self.flows.get_mut(&id).expect("it was found or made");
        let mut offset = None;
        for event in events {
            if let Kind::Segment(_) | Kind::Ack(_) = event.kind {
                flow.lower = Some(if direction == 0 { event.from } else { event.from.peer() });
            }
            let of = match flow.lower {
                Some(lower) => usize::from(event.from != lower),
                None => direction,
            };
            match &event.kind {
                Kind::Segment(segment) => offset = Some(segment.offset),
                Kind::PduStart(start) => {
                    flow.nature = Nature::Iscsi;
                    flow.streams[of].start(start, &mut self.headers);
                    self.pdus += 1;
                }
                Kind::Opaque(opaque) => {
                    let is_port = [packet.source, packet.destination].iter().any(|end| end.port() == PORT);
                    match (opaque, flow.nature) {
                        (Opaque::Sealed, _) => flow.nature = Nature::Iscsi,
                        (Opaque::Tls, Nature::Unknown) if is_port => flow.nature = Nature::Iscsi,
                        (_, Nature::Unknown) => flow.nature = Nature::Other,
                        _ => {}
                    }
                    flow.streams[of].is_tls |= *opaque == Opaque::Tls;
                    flow.streams[of].close();
                }
                Kind::Ended { by_reset } => {
                    flow.ended[of] = true;
                    flow.ended[1 - of] |= by_reset;
                    if flow.ended == [true; 2] {
                        flow.streams.iter_mut().for_each(Stream::close);
                    }
                }
                Kind::HeadersUnseen { offset, bytes } | Kind::CaptureLost { offset, bytes } => {
                    self.pdus += flow.streams[of].pass(*offset, offset.saturating_add(*bytes));
                }
                Kind::Ack(_) | Kind::PduEnd(_) => {}
            }
        }
        offset
    }

    /// Writes packets from the front of the queue as long as they are known, or the queue is too long.
    fn release(&mut self) -> io::Result<()> {
        while let Some(first) = self.queue.front() {
            let flow = &self.flows[&first.flow];
            let is_ready = match flow.nature {
                Nature::Unknown => false,
                Nature::Other => true,
                Nature::Iscsi => first.offset.is_none_or(|offset| {
                    flow.streams[first.direction].is_known(offset.saturating_add(first.payload.len() as u64))
                }),
            };
            let is_full = self.queue_bytes > SLIM_QUEUE_BYTES_MAX
                || self.queue.len() > SLIM_QUEUE_PACKETS_MAX
                || self.pdus > SLIM_PDUS_MAX;
            if !is_ready && !is_full {
                break;
            }
            self.leave()?;
        }
        if self.pdus > SLIM_PDUS_MAX {
            // Of packets that never came.
            self.flows.values_mut().flat_map(|flow| &mut flow.streams).for_each(|stream| {
                stream.forget(u64::MAX);
            });
            self.pdus = 0;
        }
        Ok(())
    }

    /// The first packet leaves the queue.
    fn leave(&mut self) -> io::Result<()> {
        let Some(mut first) = self.queue.pop_front() else { return Ok(()) };
        self.queue_bytes -= first.payload.len();
        let flow = self.flows.get_mut(&first.flow).expect("a packet in the queue keeps its flow");
        flow.waiting[first.direction] -= 1;
        let is_last = flow.waiting[first.direction] == 0;
        if flow.nature == Nature::Iscsi {
            let stream = &mut flow.streams[first.direction];
            if let Some(offset) = first.offset {
                let end = offset.saturating_add(first.payload.len() as u64);
                self.summary.incomplete += u64::from(!stream.is_known(end));
                stream.keep(offset, &first.payload, &mut first.headers);
                // With others in the queue, one of them may be before this one in the stream.
                if is_last || self.pdus > SLIM_PDUS_MAX {
                    self.pdus -= stream.forget(end);
                }
            }
            self.summary.packets += 1;
            let interface = Interface { index: first.interface, link_type: LINK_TYPE_RAW, snap_bytes: 0 };
            self.blocks.frame(interface, first.at_ns, first.original_bytes, &[&first.headers], &[])?;
        } else {
            self.summary.left_out += 1;
        }
        self.drop_if_done(first.flow);
        Ok(())
    }
}

/// Of iSCSI (RFC 7143 §5).
const PORT: u16 = 3260;
