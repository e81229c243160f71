//! Captures of real connections.
//!
//! `CAPTURES="a.pcap b.pcapng" cargo test -p hikyaku-monitor --lib -- --ignored --nocapture flow::tests::captures`

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Instant;

use crate::capture::Reader;
use crate::event::{Event, Kind};
use crate::flow::{FlowId, Table};

fn name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Segment(_) => "segment",
        Kind::Ack(_) => "ack",
        Kind::PduStart(_) => "start",
        Kind::PduEnd(_) => "end",
        Kind::CaptureLost { .. } => "capture-lost",
        Kind::HeadersUnseen { .. } => "headers-unseen",
        Kind::Opaque(_) => "opaque",
        Kind::Ended { .. } => "ended",
    }
}

#[test]
#[ignore = "prints what is in captures"]
fn print() {
    let files = crate::named_captures();
    for file in files.split_whitespace() {
        let mut reader = Reader::new(File::open(file).unwrap()).unwrap();
        let mut table = Table::new(&[]);
        let mut kinds: BTreeMap<(FlowId, &str), u64> = BTreeMap::new();
        let start = Instant::now();
        let mut packets = 0;
        while let Some(packet) = reader.next().unwrap() {
            packets += 1;
            table.push(&packet, &mut |id, event: &Event| {
                *kinds.entry((id, name(&event.kind))).or_default() += 1;
            });
        }
        println!("{file}: {packets} packets, {:?}", start.elapsed() / packets.max(1));
        table.finish();
        while let Some(flow) = table.poll_finished() {
            println!("{flow:#?}");
            for ((_, kind), count) in kinds.range((flow.id, "")..=(flow.id, "z")) {
                println!("  {kind}: {count}");
            }
        }
    }
}

/// Packets per second of the reader alone, and of the reader with the flows.
#[test]
#[ignore = "measures; needs captures and a release build"]
fn speed() {
    let files = crate::named_captures();
    for file in files.split_whitespace() {
        let bytes: &'static [u8] = std::fs::read(file).unwrap().leak();
        let mut seconds = [f64::MAX; 2];
        let (mut packets, mut events) = (0_u64, 0_u64);
        for round in 0..10 {
            let mut reader = Reader::new(bytes).unwrap();
            let mut table = Table::new(&[]);
            let start = Instant::now();
            (packets, events) = (0, 0);
            while let Some(packet) = reader.next().unwrap() {
                packets += 1;
                if round % 2 == 1 {
                    table.push(&packet, &mut |_, _: &Event| events += 1);
                }
            }
            let least = &mut seconds[round % 2];
            *least = least.min(start.elapsed().as_secs_f64());
        }
        let [reader, both] = seconds.map(|seconds| packets as f64 / seconds / 1e6);
        let flow_ns = (seconds[1] - seconds[0]) * 1e9 / packets as f64;
        println!(
            "{file}: {packets} packets, {events} events; million packets a second: reader {reader:.1}, with flows {both:.1}; \
             flows {flow_ns:.0} ns a packet"
        );
    }
}
