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
    let files = std::env::var("CAPTURES").expect("CAPTURES names files");
    for file in files.split_whitespace() {
        let mut reader = Reader::new(File::open(file).unwrap()).unwrap();
        let mut table = Table::new(&[]);
        let mut kinds: BTreeMap<(FlowId, &str), u64> = BTreeMap::new();
        let start = Instant::now();
        let mut packets = 0;
        while let Some(packet) = reader.next().unwrap() {
            packets += 1;
            table.push(&packet, &mut |id, event: &Event| {
                *kinds.entry((id, name(&event.kind))).or_default() += 1
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
