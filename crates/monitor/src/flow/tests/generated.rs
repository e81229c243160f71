//! Whatever the path, the vantage and the segmentation: the PDUs that were written, and what happened to the packets.

use super::path::{Path, Random, Seen, Settings, Truth};
use super::streams::{self, Stream};
use crate::event::{Event, Kind, Order, PduStart, Side, Vantage};
use crate::flow::{Flow, Table};

const SIDES: [Side; 2] = [Side::Initiator, Side::Target];
const PDUS: u32 = 120;

struct Outcome {
    starts: [Vec<PduStart>; 2],
    ends: [Vec<u64>; 2],
    /// New bytes by the events.
    bytes: [u64; 2],
    again: [u64; 2],
    lost_bytes: [u64; 2],
    /// Acknowledgements that time a segment, and the least time.
    round_trips: [Option<u64>; 2],
    /// Offset of the first segment.
    first: [Option<u64>; 2],
    flow: Flow,
}

fn follow(settings: &Settings, seen: &[Seen]) -> Outcome {
    let mut table = Table::new(&[]);
    let mut events: Vec<Event> = Vec::new();
    for seen in seen {
        table.push(&seen.packet(settings), &mut |_, event: &Event| events.push(event.clone()));
    }
    table.finish();
    let flow = table.poll_finished().expect("one connection");
    assert!(table.poll_finished().is_none());
    let mut outcome = Outcome {
        starts: Default::default(),
        ends: Default::default(),
        bytes: [0; 2],
        again: [0; 2],
        lost_bytes: [0; 2],
        round_trips: [None; 2],
        first: [None; 2],
        flow,
    };
    for Event { from, kind, .. } in events {
        let index = from as usize;
        match kind {
            Kind::Segment(segment) => {
                outcome.first[index].get_or_insert(segment.offset);
                outcome.bytes[index] += u64::from(segment.bytes - segment.repeated_bytes);
                outcome.again[index] += u64::from(segment.order == Order::Again);
            }
            Kind::Ack(ack) => {
                let least = &mut outcome.round_trips[index];
                *least = [*least, ack.round_trip_ns].into_iter().flatten().min();
            }
            Kind::PduStart(start) => outcome.starts[index].push(start),
            Kind::PduEnd(end) => outcome.ends[index].push(end.offset),
            Kind::CaptureLost { bytes, .. } => outcome.lost_bytes[index] += bytes,
            Kind::HeadersUnseen { .. } | Kind::Opaque(_) | Kind::Ended { .. } => {}
        }
    }
    outcome
}

/// Streams of both sides, and what a capture of them holds.
fn run(settings: Settings, digests: (bool, bool), seed: u64) -> ([Stream; 2], Vec<Seen>, [Truth; 2]) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let streams = SIDES.map(|side| streams::random(side, digests, PDUS, &mut random));
    let (seen, truth) = Path::new(settings, streams.clone(), random.next()).run();
    (streams, seen, truth)
}

fn settings(seed: u64) -> Settings {
    let pick = |bit: u64| seed >> bit & 1 == 1;
    let distances = [[20_000, 10_000_000], [3_000_000, 5_000_000], [40_000_000, 4_000]];
    Settings {
        distances_ns: distances[(seed % 3) as usize],
        lost: [0, 30, 150][(seed / 3 % 3) as usize],
        reordered: [0, 20][(seed / 9 % 2) as usize],
        has_timestamps: !pick(2),
        is_version_6: pick(3),
        frame_segments: [1, 4, 44][(seed / 2 % 3) as usize],
        isns: [0xffff_ffff - (seed as u32) * 977, 0x7fff_0000 + (seed as u32) * 511],
        is_delaying: pick(1),
        ..Settings::default()
    }
}

fn assert_whole(streams: &[Stream; 2], outcome: &Outcome, what: &str) {
    for (side, stream) in SIDES.into_iter().zip(streams) {
        let index = side as usize;
        assert_eq!(outcome.starts[index].len(), stream.pdus.len(), "{what} {side:?}");
        assert_eq!(outcome.starts[index], stream.pdus, "{what} {side:?}");
        let offsets: Vec<_> = stream.pdus.iter().map(|pdu| pdu.offset).collect();
        assert_eq!(outcome.ends[index], offsets, "{what} {side:?}");
        assert_eq!(outcome.bytes[index], stream.bytes.len() as u64, "{what} {side:?}");
    }
}

#[test]
fn pdus_and_retransmissions_are_those_that_were_sent() {
    for seed in 0..72 {
        let (settings, digests) = (settings(seed), (seed % 5 == 1, seed % 7 == 1));
        let (streams, seen, truth) = run(settings, digests, seed);
        let outcome = follow(&settings, &seen);
        let what = format!("seed {seed} {settings:?} {digests:?}");
        assert_whole(&streams, &outcome, &what);
        let flow = &outcome.flow;
        for side in SIDES {
            let (counts, truth) = (flow.of(side, flow.counts), truth[side as usize]);
            assert_eq!(counts.retransmissions, truth.retransmissions, "{what} {side:?}");
            assert_eq!(counts.reordered, truth.reordered, "{what} {side:?}");
            assert_eq!(counts.capture_lost_bytes, 0, "{what} {side:?}");
        }
        let found = [flow.distances.initiator_ns, flow.distances.target_ns];
        assert_eq!(found, settings.distances_ns.map(Some), "{what}");
        let vantages = [Vantage::At(Side::Initiator), Vantage::Between, Vantage::At(Side::Target)];
        assert_eq!(flow.vantage, vantages[(seed % 3) as usize], "{what}");
        assert_eq!((flow.header_digest, flow.data_digest), (Some(digests.0), Some(digests.1)), "{what}");
        assert_eq!(flow.window_scales, [Some(7); 2]);
        assert_eq!(flow.mss.map(u64::from), [settings.mss(); 2]);
        assert_eq!(flow.key(Side::Target, "FirstBurstLength"), Some("65536"));
        assert_eq!(flow.key(Side::Initiator, "CHAP_R"), None);
    }
}

#[test]
fn copies_of_packets_change_nothing() {
    for seed in 0..24 {
        let settings = Settings { copied: 3, ..settings(seed) };
        let (streams, seen, truth) = run(settings, (false, false), seed);
        let outcome = follow(&settings, &seen);
        let what = format!("seed {seed} {settings:?}");
        assert_whole(&streams, &outcome, &what);
        for side in SIDES {
            let (counts, truth) = (outcome.flow.of(side, outcome.flow.counts), truth[side as usize]);
            assert_eq!(counts.retransmissions, truth.retransmissions, "{what} {side:?}");
            assert_eq!(counts.copies, truth.copies, "{what} {side:?}");
        }
        let distances = [outcome.flow.distances.initiator_ns, outcome.flow.distances.target_ns];
        assert_eq!(distances, settings.distances_ns.map(Some), "{what}");
    }
}

/// Those of `found` are PDUs of the stream, in their order, from byte `first` of the stream on.
fn assert_part(stream: &Stream, found: &[PduStart], first: u64, what: &str) {
    let mut pdus = stream.pdus.iter();
    for start in found {
        let offset = start.offset + first;
        let pdu = pdus.find(|pdu| pdu.offset == offset);
        assert_eq!(pdu, Some(&PduStart { offset, ..*start }), "{what}");
    }
}

#[test]
fn what_the_capture_lost_is_not_lost_by_the_network() {
    for seed in 0..36 {
        let settings = Settings { lost: 0, reordered: 0, missed: 20, ..settings(seed) };
        let (streams, seen, truth) = run(settings, (false, false), seed);
        let outcome = follow(&settings, &seen);
        let what = format!("seed {seed} {settings:?}");
        for side in SIDES {
            let (index, stream) = (side as usize, &streams[side as usize]);
            assert_part(stream, &outcome.starts[index], 0, &what);
            assert_eq!(outcome.again[index], 0, "{what}");
            // Unless the acknowledgement was not captured, either.
            let (lost, missed) = (outcome.lost_bytes[index], truth[index].missed_bytes);
            assert!(lost <= missed && lost >= missed / 10 * 8, "{what} {lost} of {missed}");
            assert_eq!(outcome.bytes[index] + missed, stream.bytes.len() as u64, "{what}");
            assert!(
                outcome.starts[index].len() > stream.pdus.len() / 3,
                "{what} {}",
                outcome.starts[index].len()
            );
        }
    }
}

#[test]
fn a_capture_may_begin_anywhere() {
    for seed in 0..48 {
        let settings = Settings { lost: 0, ..settings(seed) };
        let digests = (seed % 3 == 1, seed % 4 == 1);
        let (streams, seen, _) = run(settings, digests, seed);
        let skipped = seen.len() / 3;
        let outcome = follow(&settings, &seen[skipped..]);
        let what = format!("seed {seed} {settings:?} {digests:?}");
        assert_eq!(outcome.flow.window_scales, [None; 2]);
        for side in SIDES {
            let (index, stream) = (side as usize, &streams[side as usize]);
            let last = outcome.starts[index].last().expect("PDUs are found");
            let (_, last_pdu) = (0, stream.pdus.last().expect("PDUs were sent"));
            let first = last_pdu.offset - last.offset;
            // The length of the first PDUs lacks digests that are not known yet.
            let settled: Vec<_> = outcome.starts[index]
                .iter()
                .copied()
                .filter(|start| {
                    let pdu = stream.pdus.iter().find(|pdu| pdu.offset == start.offset + first);
                    assert_eq!(pdu.map(|pdu| pdu.header), Some(start.header), "{what}");
                    pdu.is_some_and(|pdu| pdu.bytes == start.bytes)
                })
                .collect();
            assert!(settled.len() + 12 > outcome.starts[index].len(), "{what}");
            assert_part(stream, &settled, first, &what);
            let first = first + outcome.first[index].expect("data was seen");
            let after = stream.pdus.iter().filter(|pdu| pdu.offset >= first).count();
            assert!(
                outcome.starts[index].len() + 12 > after,
                "{what} {after} {side:?} {first} {:?}",
                outcome.starts[index].iter().map(|s| s.offset).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn headers_beyond_the_snap_length_are_unseen() {
    for seed in 0..36 {
        let settings = Settings { snap_bytes: 76, lost: 0, frame_segments: 4, ..settings(seed) };
        let (streams, seen, truth) = run(settings, (false, false), seed);
        let outcome = follow(&settings, &seen);
        let what = format!("seed {seed} {settings:?}");
        for side in SIDES {
            let (index, stream) = (side as usize, &streams[side as usize]);
            assert_part(stream, &outcome.starts[index], 0, &what);
            assert_eq!(outcome.bytes[index], stream.bytes.len() as u64, "{what}");
            let counts = outcome.flow.of(side, outcome.flow.counts);
            assert_eq!(counts.retransmissions, truth[index].retransmissions, "{what}");
            assert!(counts.headers_unseen_bytes > 0, "{what}");
            assert!(outcome.starts[index].len() > 10, "{what} {}", outcome.starts[index].len());
        }
    }
}
