use iscsi::wire::BHS_LENGTH;

use super::*;
use crate::command::{Command, Standing, Transfer};
use crate::event::{Ack, Duplicate, Event, Kind, Order, PduStart, Segment};
use crate::sample::Sample;

const EVERYTHING: usize = 1_000_000;

fn segment(at_ns: u64, offset: u64, bytes: u32, repeated_bytes: u32) -> Event {
    let segment = Segment {
        order: if bytes == 77 { Order::Again } else { Order::Next },
        offset,
        bytes,
        repeated_bytes,
        mss: 1448,
        ..Segment::default()
    };
    Event { at_ns, frame: 1, from: Side::Initiator, kind: Kind::Segment(segment) }
}

fn ack(at_ns: u64, acknowledged: u64, window_bytes: u64, duplicate: Duplicate) -> Event {
    let ack = Ack {
        acknowledged,
        window_bytes: Some(window_bytes),
        duplicate,
        is_bare: true,
        round_trip_ns: (acknowledged == 1000).then_some(4_000_000),
        ..Ack::default()
    };
    Event { at_ns, frame: 1, from: Side::Target, kind: Kind::Ack(ack) }
}

fn pdu(at_ns: u64, from: Side, opcode: u8, offset: u64, bytes: u64) -> Event {
    let mut header = [0; BHS_LENGTH];
    header[0] = opcode;
    header[16..20].copy_from_slice(&7u32.to_be_bytes());
    header[44..48].copy_from_slice(&65536u32.to_be_bytes());
    Event { at_ns, frame: 1, from, kind: Kind::PduStart(PduStart { offset, bytes, header }) }
}

fn command(at_ns: u64, latency_ns: u64) -> Command {
    Command {
        frame: 1,
        at_ns,
        itt: 1,
        lun: 0,
        operation: 0x2a,
        transfer: Transfer::Write,
        bytes: 4096,
        ta_ns: latency_ns / 2,
        tb_ns: latency_ns / 4,
        tc_ns: None,
        latency_ns,
        target_ns: 0,
        r2t_rounds: 0,
        r2t_bytes: 0,
        unsolicited_bytes: 0,
        depth: 1,
        bursts: Vec::new(),
        status: Some(0),
        is_inferred: false,
    }
}

fn collected(points_max: usize, events: &[Event]) -> Series {
    let mut collector = Collector::new(points_max);
    events.iter().for_each(|event| collector.handle_event(event));
    collector.finish()
}

fn points(pairs: &[(u64, u64)]) -> Vec<Point> {
    pairs.iter().map(|&(at_ns, value)| Point { at_ns, value }).collect()
}

#[test]
fn a_stream_has_its_bytes_acknowledgements_and_what_is_in_flight() {
    const MS: u64 = 1_000_000;
    let series = collected(
        EVERYTHING,
        &[
            segment(MS, 0, 1000, 0),
            segment(2 * MS, 1000, 1000, 0),
            ack(5 * MS, 1000, 9000, Duplicate::No),
            ack(6 * MS, 1000, 9000, Duplicate::Ack),
            segment(7 * MS, 1000, 1500, 1000),
            ack(9 * MS, 2500, 8000, Duplicate::No),
            // Again, and not seen before: the network lost it before the capture.
            segment(9 * MS, 500, 77, 0),
        ],
    );
    let stream = series.direction(Side::Initiator);
    let spans =
        |spans: &[Span]| spans.iter().map(|span| (span.at_ns / MS, span.low, span.high)).collect::<Vec<_>>();
    assert_eq!(spans(&stream.sent), [(1, 0, 1000), (2, 1000, 2000), (7, 2000, 2500)]);
    assert_eq!(spans(&stream.repeated), [(7, 1000, 2000), (9, 500, 577)]);
    assert_eq!(stream.acknowledged, points(&[(5 * MS, 1000), (9 * MS, 2500)]));
    assert_eq!(stream.duplicates, points(&[(6 * MS, 1000)]));
    let in_flight = [(MS, 1000), (2 * MS, 2000), (5 * MS, 1000), (7 * MS, 1500), (9 * MS, 0)];
    assert_eq!(stream.in_flight, points(&in_flight));
    assert_eq!(stream.window, points(&[(5 * MS, 9000), (9 * MS, 8000)]));
    assert_eq!(stream.rtt, points(&[(5 * MS, 4 * MS)]));
    assert_eq!(
        stream.rate,
        Bins { from_ns: MS, width_ns: MS, sums: vec![1000, 1000, 0, 0, 0, 0, 500, 0, 77] }
    );
    assert_eq!((series.from_ns, series.to_ns, series.is_thinned), (MS, 9 * MS, false));
    assert!(series.direction(Side::Target).sent.is_empty());
}

#[test]
fn pdus_are_marked_in_both_streams() {
    let series = collected(
        EVERYTHING,
        &[
            pdu(1, Side::Initiator, 0x01, 0, 48),
            ack(5, 48, 9000, Duplicate::No),
            pdu(6, Side::Target, 0x31, 0, 48),
            pdu(7, Side::Initiator, 0x05, 48, 65584),
            pdu(8, Side::Target, 0x21, 48, 48),
            pdu(9, Side::Target, 0x25 | 0x80, 96, 560),
            pdu(9, Side::Initiator, 0x40, 65632, 48),
        ],
    );
    let found: Vec<_> = series.marks.iter().map(|mark| (mark.kind, mark.bytes, mark.offsets)).collect();
    let expected = [
        (MarkKind::Command, 48, [0, 0]),
        (MarkKind::R2t, 65536, [48, 0]),
        (MarkKind::DataOut, 65584, [48, 0]),
        (MarkKind::Response, 48, [48, 48]),
        (MarkKind::DataIn, 560, [48, 96]),
        (MarkKind::Other, 48, [65632, 0]),
    ];
    assert_eq!(found, expected);
    assert!(series.marks.iter().all(|mark| mark.itt == 7 && mark.count == 1));
}

#[test]
fn samples_are_bytes_and_what_is_missing_has_no_points() {
    let mut collector = Collector::new(EVERYTHING);
    let sample = Sample {
        at_ns: 5,
        mss_bytes: Some(1000),
        cwnd_segments: Some(10),
        ssthresh_segments: Some(0x7fff_ffff),
        unacked_segments: Some(4),
        notsent_bytes: Some(700),
        send_queue_bytes: Some(6000),
        rtt_us: Some(20),
        ..Sample::default()
    };
    collector.handle_sample(Side::Target, &sample);
    collector
        .handle_sample(Side::Target, &Sample { at_ns: 9, unacked_segments: Some(4), ..Sample::default() });
    let series = collector.finish();
    let socket = series.socket(Side::Target);
    assert!(socket.is_seen() && !series.socket(Side::Initiator).is_seen());
    assert_eq!(socket.waiting, points(&[(5, 4000)]), "without a segment size there are no bytes");
    assert_eq!(socket.unsent, points(&[(5, 700)]));
    assert_eq!(socket.queue, points(&[(5, 6000)]));
    assert_eq!(socket.congestion_window, points(&[(5, 10_000)]));
    assert_eq!(socket.rtt, points(&[(5, 20_000)]));
    assert!(socket.ssthresh.is_empty() && socket.queue_cap.is_empty() && socket.peer_window.is_empty());
}

#[test]
fn only_changes_of_the_commands_outstanding_take_points() {
    let mut collector = Collector::new(EVERYTHING);
    for (at_ns, outstanding) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 0)] {
        collector.handle_standing(at_ns, &Standing { outstanding, ..Standing::default() });
    }
    assert_eq!(collector.finish().outstanding, points(&[(1, 1), (3, 2), (5, 0)]));
}

/// All points of a series.
fn count(series: &Series) -> usize {
    let stream = |stream: &Direction| {
        let spans = stream.sent.len() + stream.repeated.len();
        let tracks =
            [&stream.acknowledged, &stream.duplicates, &stream.in_flight, &stream.window, &stream.rtt];
        spans + tracks.iter().map(|track| track.len()).sum::<usize>()
    };
    series.directions.iter().map(stream).sum::<usize>()
        + series.marks.len()
        + series.commands.len()
        + series.outstanding.len()
}

/// Events that fill every track, with one command, one span and one value far from the others.
fn long(packets: u64) -> Series {
    let mut collector = Collector::new(4000);
    for packet in 0..packets {
        let at_ns = packet * 10_000;
        collector.handle_event(&segment(at_ns, packet * 1000, 1000, if packet % 50 == 0 { 1000 } else { 0 }));
        let window = if packet == packets / 3 { 3 } else { 50_000 + packet % 7 };
        collector.handle_event(&ack(
            at_ns + 5_000,
            (packet * 1000).saturating_sub(9000),
            window,
            Duplicate::Ack,
        ));
        collector.handle_event(&pdu(
            at_ns,
            Side::Initiator,
            if packet == packets / 2 { 0x01 } else { 0x05 },
            packet * 1000,
            48,
        ));
        let latency = if packet == packets / 4 { 900_000_000 } else { 1_000_000 + packet % 11 };
        collector.handle_command(&command(at_ns, latency));
        collector
            .handle_standing(at_ns, &Standing { outstanding: (packet % 3) as u32, ..Standing::default() });
    }
    collector.finish()
}

#[test]
fn memory_is_bounded_and_extremes_stay() {
    const PACKETS: u64 = 100_000;
    let series = long(PACKETS);
    let points = count(&series);
    assert!(series.is_thinned && (1000..=4000).contains(&points), "{points}");
    let stream = series.direction(Side::Initiator);
    let ends = |spans: &[Span]| (spans[0].low, spans.iter().map(|span| span.high).max().unwrap());
    assert_eq!(ends(&stream.sent), (1000, PACKETS * 1000));
    let segments: u64 = stream.sent.iter().map(|span| u64::from(span.segments)).sum();
    assert_eq!(segments, PACKETS - PACKETS / 50, "a span counts the segments that it stands for");
    assert!(stream.window.iter().any(|point| point.value == 3), "the least window");
    assert_eq!(stream.acknowledged.last().unwrap().value, PACKETS * 1000 - 10_000);
    let slowest = series.commands.iter().max_by_key(|timed| timed.latency_ns).unwrap();
    assert_eq!((slowest.latency_ns, slowest.at_ns), (900_000_000, PACKETS / 4 * 10_000));
    let marked = |kind| series.marks.iter().filter(move |mark| mark.kind == kind);
    assert_eq!(marked(MarkKind::Command).count(), 1);
    let data: u64 = marked(MarkKind::DataOut).map(|mark| u64::from(mark.count)).sum();
    assert_eq!(data, PACKETS - 1);
    for track in [&stream.acknowledged, &stream.in_flight, &stream.window, &series.outstanding] {
        assert!(track.is_sorted_by_key(|point| point.at_ns) && !track.is_empty());
    }
}

#[test]
fn a_smaller_share_of_the_points_applies_at_once() {
    let mut collector = Collector::new(EVERYTHING);
    for packet in 0..20_000 {
        collector.handle_event(&segment(packet * 1_000_000, packet * 1000, 1000, 0));
    }
    collector.limit(2000);
    assert!(count(&collector.finish()) <= 2000);
}

#[test]
fn any_time_and_offset_is_a_point() {
    let extremes = [0, u64::MAX, 1, u64::MAX - 1, u64::MAX / 2];
    let mut collector = Collector::new(0);
    for round in 0..3000u64 {
        for at_ns in extremes {
            let offset = extremes[(round % 5) as usize];
            collector.handle_event(&segment(
                at_ns,
                offset,
                u32::MAX,
                if round % 2 == 0 { u32::MAX } else { 9 },
            ));
            collector.handle_event(&ack(at_ns, offset, u64::MAX, Duplicate::Data));
            collector.handle_event(&pdu(at_ns, Side::Target, round as u8, offset, u64::MAX));
            collector.handle_command(&command(at_ns, u64::MAX));
            let sample = Sample {
                at_ns,
                mss_bytes: Some(u32::MAX),
                cwnd_segments: Some(u32::MAX),
                unacked_segments: Some(u32::MAX),
                rtt_us: Some(u32::MAX),
                ..Sample::default()
            };
            collector.handle_sample(Side::Initiator, &sample);
        }
    }
    let series = collector.finish();
    assert_eq!((series.from_ns, series.to_ns), (0, u64::MAX));
    assert!(count(&series) <= 1024);
}

#[test]
fn bins_of_the_rate_hold_every_byte() {
    let mut bins = Bins::default();
    for millisecond in 0..100_000u64 {
        bins.add(7 + millisecond * 1_000_000, 3);
    }
    bins.add(0, 5);
    assert_eq!((bins.sums.iter().sum::<u64>(), bins.width_ns), (300_005, 32_000_000));
    assert!(bins.sums.len() <= 4096);
    bins.add(u64::MAX, 1);
    assert!(bins.sums.len() <= 4096 && bins.sums.iter().sum::<u64>() == 300_006);
}
