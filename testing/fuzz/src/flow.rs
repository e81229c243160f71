//! Packets of a few connections, right and wrong ones, through the table of flows: what comes out holds together.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use monitor::event::{Event, Kind, Side};
use monitor::flow::{FlowId, Table};
use monitor::packet::{Flags, Options, Packet};

use crate::{Source, heap};

const HEAP_MAX: usize = 16 << 20;
const PACKETS_MAX: usize = 400;
const PORTS: [u16; 4] = [3260, 860, 40_000, 12_345];

/// Per connection and side: PDUs that started and have not ended, the last start, the last end.
#[derive(Default)]
struct Seen {
    open: VecDeque<(u64, u64)>,
    framed_until: u64,
    last_end: Option<u64>,
    acknowledged: u64,
}

pub fn flow(bytes: &[u8]) {
    heap::within(HEAP_MAX, || {
        let mut source = Source::new(bytes);
        let mut table = Table::new(&[]);
        let mut seen = BTreeMap::new();
        let mut at_ns = 1;
        let mut next = [0_u32; 2];
        for frame in 1..=PACKETS_MAX as u64 {
            if source.is_empty() {
                break;
            }
            let payload = payload(&mut source);
            let packet = packet(&mut source, frame, &mut at_ns, &mut next, &payload);
            table.push(&packet, &mut |id, event: &Event| check(&mut seen, id, event));
        }
        let live = table.flows().len();
        table.finish();
        assert!(table.flows().is_empty());
        let finished: Vec<_> = std::iter::from_fn(|| table.poll_finished()).collect();
        assert!(finished.len() >= live);
        for flow in &finished {
            assert!(flow.total(|counts| counts.packets) <= PACKETS_MAX as u64);
            assert!(flow.of(Side::Initiator, flow.mss) > 0 && flow.of(Side::Target, flow.mss) > 0);
        }
    });
}

/// A login, a header with few fields that differ, or any bytes; cut anywhere.
fn payload(source: &mut Source<'_>) -> Vec<u8> {
    let mut bytes = match source.below(6) {
        0 => Vec::new(),
        1 => source.some(256).to_vec(),
        kind => {
            let mut header = vec![0; 48];
            let opcodes = [0x43, 0x23, 0x01, 0x05, 0x25, 0x21, 0x31, 0x40, 0x20, 0x3f, 0x16, 0x04];
            header[0] = source.pick(&opcodes);
            header[1] = source.pick(&[0x80, 0x87, 0x81, 0, 0xc0, 0x04]);
            header[7] = source.byte();
            header[19] = source.byte();
            header[31] = 1;
            header[35] = 20;
            header[47] = 4;
            let text: &[u8] = match kind {
                2 => b"HeaderDigest=CRC32C\0DataDigest=None\0",
                3 => b"HeaderDigest=None\0DataDigest=CRC32C\0X",
                _ => source.some(64),
            };
            header.extend_from_slice(text);
            let length = usize::from(header[7]).next_multiple_of(4) + 48;
            header.resize(length.max(48), 0);
            header
        }
    };
    if source.rarely(4) {
        bytes.truncate(source.below(bytes.len() + 1));
    }
    bytes
}

fn packet<'a>(
    source: &mut Source<'_>,
    frame: u64,
    at_ns: &mut u64,
    next: &mut [u32; 2],
    payload: &'a [u8],
) -> Packet<'a> {
    let from = source.below(2);
    let port = source.pick(&PORTS);
    let ends = [SocketAddr::from(([10, 0, 0, 1], 40_000)), SocketAddr::from(([10, 0, 0, 2], port))];
    *at_ns = at_ns.wrapping_add(match source.byte() {
        255 => source.u64(),
        steps => u64::from(steps) * 50_000,
    });
    let near = |source: &mut Source<'_>, value: u32| match source.below(8) {
        0 => source.u32(),
        1 => value.wrapping_sub(source.u16().into()),
        2 => value.wrapping_add(source.u16().into()),
        _ => value,
    };
    let cut = if source.rarely(8) { u32::from(source.u16()) } else { 0 };
    let (seq, ack) = (near(source, next[from]), near(source, next[1 - from]));
    let flags = match source.below(16) {
        0 => source.byte(),
        1 => Flags::SYN,
        2 => Flags::SYN | Flags::ACK,
        _ => Flags::ACK,
    };
    let payload_bytes = payload.len() as u32 + cut;
    next[from] = seq.wrapping_add(payload_bytes).wrapping_add(u32::from(flags & Flags::SYN != 0));
    let mut options = Options::default();
    if source.flag() {
        options.timestamps = Some((source.byte().into(), source.byte().into()));
        options.window_scale = Some(source.byte());
        options.mss = Some(source.u16());
        options.sack_count = source.byte();
        options.sacks[0] = (near(source, ack), near(source, ack));
    }
    Packet {
        at_ns: *at_ns,
        frame,
        interface: u32::from(source.rarely(8)),
        source: ends[from],
        destination: ends[1 - from],
        seq,
        ack,
        flags: Flags(flags),
        window: source.u16(),
        options,
        ip_id: source.flag().then(|| source.byte().into()),
        hops: 64,
        ecn: 0,
        payload_bytes,
        payload,
    }
}

fn check(seen: &mut BTreeMap<(FlowId, Side), Seen>, id: FlowId, event: &Event) {
    if let Kind::Ack(ack) = &event.kind {
        let seen = seen.entry((id, event.from)).or_default();
        assert!(ack.acknowledged >= seen.acknowledged, "acknowledgements ascend");
        seen.acknowledged = ack.acknowledged;
    }
    let seen = seen.entry((id, event.from)).or_default();
    match &event.kind {
        Kind::Segment(segment) => {
            assert!(segment.bytes > 0 && segment.repeated_bytes <= segment.bytes && segment.mss > 0);
        }
        Kind::PduStart(start) => {
            assert!(start.offset >= seen.framed_until, "PDUs do not overlap");
            assert!(start.bytes >= 48);
            seen.framed_until = start.offset + start.bytes;
            seen.open.push_back((start.offset, start.bytes));
        }
        Kind::PduEnd(end) => {
            assert!(seen.last_end.is_none_or(|last| end.offset > last), "PDUs end in their order");
            seen.last_end = Some(end.offset);
            while let Some((offset, _)) = seen.open.pop_front()
                && offset != end.offset
            {
                assert!(offset < end.offset, "what ends has started");
            }
        }
        Kind::HeadersUnseen { offset, bytes } => {
            assert!(*bytes > 0 && *offset >= seen.framed_until, "PDUs that started are known");
            seen.framed_until = offset + bytes;
        }
        Kind::CaptureLost { bytes, .. } => assert!(*bytes > 0),
        Kind::Ack(_) | Kind::Opaque(_) | Kind::Ended { .. } => {}
    }
}
