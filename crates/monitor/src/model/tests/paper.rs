//! The case of Higa et al.: 4 MB writes at 20 ms stop with 1 MB in flight, the congestion window of 1200 segments is not
//! used up, and 3000 would be needed.

use crate::event::{Side, Vantage};
use crate::model::{Caps, Cause, Evidence, Path, Protocol, Seconds, Source, doubt, judge};

const MIB: u64 = 1 << 20;

/// One write: 1 MiB leaves in 9 ms at 1 Gbit/s, then the sender stops until the first acknowledgement, four times.
pub(super) fn evidence() -> Evidence {
    let mut waits = Seconds::default();
    waits[Cause::LineRate] = 0.036;
    waits[Cause::SendBuffer] = 0.036;
    waits[Cause::QueueDepth] = 0.020;
    Evidence {
        source: Source::Capture(Vantage::At(Side::Initiator)),
        sender: Side::Initiator,
        seconds: waits.total(),
        data_bytes: 4 * MIB,
        waits,
        alternatives: Seconds::default(),
        path: Path {
            rtt_s: Some(0.020),
            mss_bytes: Some(1448),
            line_bytes_per_s: Some(117e6),
            data_packets: 2900,
            ..Path::default()
        },
        caps: Caps {
            in_flight_max_bytes: Some(MIB),
            in_flight_stopped_bytes: Some(MIB),
            window_bytes: Some(4 * MIB),
            congestion_window_bytes: Some(1200 * 1448),
            ssthresh_bytes: Some(1200 * 1448),
            ..Caps::default()
        },
        protocol: Some(Protocol { block_bytes: 4 * MIB, depth: 1, depth_max: 1, ..Protocol::default() }),
        cpu: None,
    }
}

#[test]
fn the_papers_case_is_the_send_buffer_then_the_congestion_window() {
    let verdict = judge(&evidence());
    assert_eq!((verdict.limit, verdict.next_limit), (Cause::SendBuffer, Some(Cause::Congestion)));
    // 1200 segments a round trip, and 20 ms for the response: 4 MiB in 48 + 20 ms.
    let expected = 4.0 * MIB as f64 / (4.0 * MIB as f64 / (1200.0 * 1448.0 / 0.020) + 0.020);
    assert!((verdict.expected_bytes_per_s.unwrap() / expected - 1.0).abs() < 0.01);
    // 1.5 bandwidth-delay products of 117 MB/s and 20 ms, in whole MiB.
    let line = &verdict.advice.iter().find(|advice| advice.system == "open-iscsi").unwrap().line;
    assert!(line.contains("tcp.window_size' -v 4194304"), "{line}");
    assert!(
        verdict.sentence.contains("send buffer of the initiator") && verdict.sentence.contains("1.0 MiB")
    );
    assert!(verdict.sentence.contains("then limited by the congestion window"), "{}", verdict.sentence);
}

#[test]
fn every_limit_has_words_and_advice() {
    for limit in Cause::ALL {
        let mut evidence = evidence();
        evidence.waits = Seconds::default();
        evidence.waits[limit] = 1.0;
        let verdict = judge(&evidence);
        assert_eq!(verdict.limit, limit);
        assert!(verdict.sentence.ends_with('.'), "{}", verdict.sentence);
        let has_none = matches!(limit, Cause::LineRate | Cause::Unknown);
        assert_eq!(verdict.advice.is_empty(), has_none, "{limit:?}");
        let is_tried = |system: &str| !matches!(system, "ESXi" | "Windows");
        assert!(verdict.advice.iter().all(|advice| advice.is_tried == is_tried(advice.system)));
    }
}

#[test]
fn of_two_that_are_close_the_depth_is_named_second() {
    let mut evidence = evidence();
    evidence.waits = Seconds::default();
    evidence.waits[Cause::QueueDepth] = 0.045;
    for (fault, expected) in
        [(0.040, (Cause::NagleDelayedAck, Some(Cause::QueueDepth))), (0.020, (Cause::QueueDepth, None))]
    {
        evidence.waits[Cause::NagleDelayedAck] = fault;
        let verdict = judge(&evidence);
        assert_eq!((verdict.limit, verdict.also), expected);
    }
}

#[test]
fn two_limits_that_are_close_are_both_named_and_neither_surely() {
    let mut evidence = evidence();
    for (second, also) in [(0.030, Some(Cause::Target)), (0.020, None)] {
        evidence.waits[Cause::Target] = second;
        let verdict = judge(&evidence);
        assert_eq!((verdict.limit, verdict.also), (Cause::SendBuffer, also));
        assert!(also.is_none() || verdict.confidence < 0.8);
    }
}

/// What a deep queue of small commands carries is a matter of the two ends: no figure.
#[test]
fn small_commands_have_no_predicted_rate_far_from_the_measured_one() {
    for (block_bytes, has_figure) in [(4096, false), (64 << 10, true)] {
        let mut evidence = evidence();
        evidence.waits = Seconds::default();
        evidence.waits[Cause::QueueDepth] = 1.0;
        evidence.data_bytes = 500_000;
        evidence.seconds = 1.0;
        if let Some(protocol) = &mut evidence.protocol {
            protocol.block_bytes = block_bytes;
        }
        let verdict = judge(&evidence);
        assert_eq!(verdict.limit, Cause::QueueDepth);
        assert_eq!(verdict.expected_bytes_per_s.is_some(), has_figure, "{}", verdict.sentence);
        assert_eq!(verdict.sentence.contains("without it"), has_figure, "{}", verdict.sentence);
    }
}

/// The largest row is not the limit: a note says why.
#[test]
fn a_larger_share_of_the_line_is_explained() {
    let mut evidence = evidence();
    evidence.waits = Seconds::default();
    (evidence.waits[Cause::SendBuffer], evidence.waits[Cause::LineRate]) = (0.35, 0.57);
    let verdict = judge(&evidence);
    assert_eq!(verdict.limit, Cause::SendBuffer);
    assert!(verdict.notes.iter().any(|note| note.contains("62 %") && note.contains("can be removed")));
    evidence.waits[Cause::SendBuffer] = 0.6;
    assert!(!judge(&evidence).notes.iter().any(|note| note.contains("can be removed")));
}

/// Of a capture of ten seconds.
#[test]
fn what_a_capture_cannot_settle_is_named_with_doubt() {
    let long = |cause: Cause, lost: u64| {
        let mut evidence = evidence();
        evidence.waits = Seconds::default();
        (evidence.waits[cause], evidence.waits[Cause::LineRate]) = (8.0, 2.0);
        evidence.seconds = 10.0;
        (evidence.path.data_packets, evidence.path.retransmitted_packets) = (100_000, lost);
        evidence
    };
    for (cause, lost, is_sure) in [
        (Cause::Congestion, 0, true),
        (Cause::Congestion, 10, true),
        (Cause::Congestion, 11, false),
        (Cause::SendBuffer, 11, true),
        // A program that pauses may be busy.
        (Cause::ThinkTime, 0, false),
    ] {
        let verdict = judge(&long(cause, lost));
        assert_eq!((verdict.limit, verdict.confidence >= 0.8), (cause, is_sure), "{lost} lost");
    }
}

#[test]
fn a_doubted_limit_is_said_to_be_probable() {
    let mut evidence = evidence();
    evidence.waits = Seconds::default();
    (evidence.waits[Cause::SendBuffer], evidence.waits[Cause::LineRate]) = (2.0, 1.0);
    let mut verdict = judge(&evidence);
    assert!(verdict.confidence >= 0.8 && verdict.sentence.contains("MB/s, limited "), "{verdict:?}");
    doubt(&mut verdict, &evidence, 0.79);
    assert!(verdict.confidence < 0.8 && verdict.sentence.contains("MB/s, probably limited "), "{verdict:?}");
}
