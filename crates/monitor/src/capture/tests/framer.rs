//! Events of connections without loss, reordering or duplicates: enough to drive what takes events.

use std::collections::HashMap;
use std::net::SocketAddr;

use iscsi::wire::Bhs;

use crate::event::{Ack, Event, Kind, PduEnd, PduStart, Segment, Side};
use crate::packet::{Flags, Packet};

/// The target's port.
pub(super) const PORT: u16 = 3260;

#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    /// Offset of the incomplete PDU, and whether its `PduStart` was emitted.
    at: usize,
    is_open: bool,
}

#[derive(Default)]
pub(super) struct Framer {
    streams: HashMap<(SocketAddr, SocketAddr), Stream>,
    /// Bytes of the digest that each header, and each data segment, has after it.
    digest: usize,
}

impl Framer {
    pub(super) fn new(digests: bool) -> Self {
        Self { digest: if digests { 4 } else { 0 }, ..Self::default() }
    }

    pub(super) fn events(&mut self, packet: &Packet<'_>) -> Vec<Event> {
        let from = if packet.destination.port() == PORT { Side::Initiator } else { Side::Target };
        let event = |kind| Event { at_ns: packet.at_ns, frame: packet.frame, from, kind };
        let ack = Ack { is_bare: packet.payload_bytes == 0, ..Ack::default() };
        let mut events = vec![event(Kind::Ack(ack))];
        let stream = self.streams.entry((packet.source, packet.destination)).or_default();
        if packet.payload_bytes > 0 {
            let offset = stream.bytes.len() as u64;
            events.push(event(Kind::Segment(Segment {
                offset,
                bytes: packet.payload_bytes,
                mss: 1448,
                ..Segment::default()
            })));
            stream.bytes.extend(packet.payload);
            stream.bytes.resize((offset + u64::from(packet.payload_bytes)) as usize, 0);
        }
        if packet.source.port() != PORT && packet.destination.port() != PORT {
            return events;
        }
        while let Some(header) = stream.bytes.get(stream.at..).and_then(<[u8]>::first_chunk::<48>) {
            let (bhs, offset) = (Bhs(header), stream.at as u64);
            let data = bhs.data_segment_length_padded() as usize;
            let is_login = matches!(header[0] & 0x3f, 0x03 | 0x23);
            let digests = if is_login { 0 } else { self.digest * if data > 0 { 2 } else { 1 } };
            let bytes = 48 + bhs.total_ahs_length() + data + digests;
            if !std::mem::replace(&mut stream.is_open, true) {
                events.push(event(Kind::PduStart(PduStart { offset, bytes: bytes as u64, header: *header })));
            }
            if stream.bytes.len() < stream.at + bytes {
                break;
            }
            events.push(event(Kind::PduEnd(PduEnd { offset })));
            stream.at += bytes;
            stream.is_open = false;
        }
        if packet.flags.has(Flags::FIN) {
            events.push(event(Kind::Ended { by_reset: false }));
        }
        events
    }
}
