//! Verdicts from series of samples.

use crate::event::Side;
use crate::model::{Cause, Cpu, combined, judge, sampled};
use crate::sample::{CaState, Sample};

const MSS: u32 = 1448;

/// A socket at 50 ms that sends 8 MB/s with about 400 kB in flight and room everywhere.
fn plain() -> Sample {
    Sample {
        state: 1,
        ca_state: Some(CaState::Open),
        mss_bytes: Some(MSS),
        cwnd_segments: Some(2000),
        ssthresh_segments: Some(0x7fff_ffff),
        unacked_segments: Some(276),
        notsent_bytes: Some(0),
        peer_window_bytes: Some(8 << 20),
        receive_window_bytes: Some(1 << 20),
        rtt_us: Some(50_500),
        min_rtt_us: Some(50_000),
        total_retrans: Some(0),
        busy_us: Some(0),
        rwnd_limited_us: Some(0),
        bytes_acked: Some(0),
        bytes_received: Some(0),
        send_queue_bytes: Some(40_000),
        send_buffer_bytes: Some(4 << 20),
        receive_queue_bytes: Some(0),
        receive_buffer_bytes: Some(4 << 20),
        ..Sample::default()
    }
}

/// A second of samples, each 10 ms after the one before, in which the socket sends (or receives) 80 kB.
fn series(is_sender: bool, change: impl Fn(&mut Sample, u64)) -> Vec<Sample> {
    let samples = (0..100).map(|index| {
        let mut sample = Sample { at_ns: index * 10_000_000, busy_us: Some(index * 10_000), ..plain() };
        let bytes = Some(index * 80_000);
        if is_sender {
            sample.bytes_acked = bytes;
        } else {
            sample.bytes_received = bytes;
        }
        change(&mut sample, index);
        sample
    });
    samples.collect()
}

#[test]
fn the_state_of_a_senders_socket_names_the_limit() {
    type Change = fn(&mut Sample, u64);
    let table: [(Cause, Change); 12] = [
        (Cause::SendBuffer, |sample, _| sample.send_queue_bytes = Some(3 << 20)),
        (Cause::ReceiveWindow, |sample, _| {
            sample.peer_window_bytes = Some(400_000);
            sample.notsent_bytes = Some(1 << 20);
        }),
        (Cause::ReceiveWindow, |sample, index| sample.rwnd_limited_us = Some(index * 9_000)),
        (Cause::Congestion, |sample, _| {
            sample.cwnd_segments = Some(276);
            sample.notsent_bytes = Some(1 << 20);
        }),
        (Cause::Loss, |sample, index| {
            sample.cwnd_segments = Some(276);
            sample.notsent_bytes = Some(1 << 20);
            sample.ssthresh_segments = Some(200);
            sample.total_retrans = Some(5 + index as u32 / 10);
        }),
        (Cause::Loss, |sample, _| sample.ca_state = Some(CaState::Recovery)),
        (Cause::LocalDevice, |sample, _| {
            sample.cwnd_segments = Some(276);
            sample.notsent_bytes = Some(1 << 20);
            sample.ssthresh_segments = Some(200);
            sample.ca_state = Some(CaState::Cwr);
        }),
        // The queue of the sender's device drops what is sent again; fewer drops are those of others.
        (Cause::LocalDevice, |sample, index| {
            sample.cwnd_segments = Some(276);
            sample.notsent_bytes = Some(1 << 20);
            sample.total_retrans = Some(5 + index as u32 / 10);
            sample.device_drops = Some(7 + index / 10);
        }),
        (Cause::Loss, |sample, index| {
            sample.cwnd_segments = Some(276);
            sample.notsent_bytes = Some(1 << 20);
            sample.total_retrans = Some(5 + index as u32 / 2);
            sample.device_drops = Some(7 + index / 10);
        }),
        (Cause::LineRate, |sample, _| {
            sample.rtt_us = Some(80_000);
            sample.unacked_segments = Some(442);
            sample.notsent_bytes = Some(1 << 20);
        }),
        // The bursts of a full buffer queue in the path, which is empty in between.
        (Cause::SendBuffer, |sample, index| {
            sample.rtt_us = Some(80_000);
            sample.unacked_segments = Some(if index % 10 == 0 { 100 } else { 442 });
            sample.send_queue_bytes = Some(3 << 20);
        }),
        (Cause::ThinkTime, |sample, _| {
            sample.unacked_segments = Some(0);
            sample.outstanding = Some(0);
        }),
    ];
    for (limit, change) in table {
        let evidence = sampled(Side::Initiator, &series(true, change), None).unwrap();
        assert_eq!(evidence.sender, Side::Initiator);
        assert!((evidence.waits.total() - evidence.seconds).abs() < 1e-9);
        let verdict = judge(&evidence);
        assert_eq!(verdict.limit, limit, "{:?} {:?}", verdict.waits.ranked(), verdict.candidates);
        assert!((verdict.bytes_per_s - 8e6).abs() < 1e5);
    }
}

#[test]
fn what_a_socket_does_not_show_is_unknown_with_its_candidates() {
    let idle = |sample: &mut Sample, _: u64| sample.unacked_segments = Some(0);
    let kernel = |sample: &mut Sample, _: u64| {
        sample.unacked_segments = Some(0);
        sample.outstanding = Some(1);
    };
    let table = [
        (series(true, idle), vec![Cause::QueueDepth, Cause::R2t, Cause::ThinkTime]),
        (series(true, kernel), vec![Cause::QueueDepth, Cause::R2t, Cause::Target]),
        (series(false, |_, _| ()), vec![Cause::QueueDepth, Cause::SendBuffer, Cause::LineRate]),
    ];
    for (samples, candidates) in table {
        let verdict = judge(&sampled(Side::Initiator, &samples, None).unwrap());
        assert_eq!(verdict.limit, Cause::Unknown);
        assert!(verdict.confidence < 0.8);
        for candidate in candidates {
            assert!(verdict.candidates.contains(&candidate), "{:?}", verdict.candidates);
        }
        // The sentence lists the candidates, the notes only say what decides.
        let lists = |text: &str| text.contains("the number of outstanding commands");
        assert!(lists(&verdict.sentence) && !verdict.notes.iter().any(|note| lists(note)), "{verdict:?}");
        assert!(verdict.notes.iter().any(|note| note.contains("sudo hikyaku watch")), "{:?}", verdict.notes);
    }
    assert!(sampled(Side::Initiator, &[plain()], None).is_none());
    assert!(sampled(Side::Initiator, &[Sample::default(), Sample::default()], None).is_none());
}

#[test]
fn a_busy_thread_is_the_processor() {
    let cpu = |cipher| Cpu { busiest_thread: 0.99, waiting: 0.0, cipher };
    let idle = series(true, |sample, _| {
        sample.unacked_segments = Some(0);
        sample.outstanding = Some(0);
    });
    for (cipher, limit) in [(None, Cause::Cpu), (Some(0.1), Cause::Cpu), (Some(0.6), Cause::Cipher)] {
        let verdict = judge(&sampled(Side::Initiator, &idle, Some(cpu(cipher))).unwrap());
        assert_eq!(verdict.limit, limit);
    }
}

/// A program sends 8 MB/s in bursts, which queue in a path of 50 ms: 276 segments are in flight at that rate without a
/// queue, and at the end of each burst fewer.
#[test]
fn bursts_do_not_fill_the_path() {
    let bursts = |drained: u64, unsent_bytes| {
        series(true, move |sample, index| {
            sample.rtt_us = Some(80_000);
            sample.unacked_segments = Some(if index % 100 < drained { 200 } else { 442 });
            sample.notsent_bytes = Some(unsent_bytes);
        })
    };
    let cpu = |busiest_thread, waiting| Some(Cpu { busiest_thread, waiting, cipher: None });
    for (drained, unsent_bytes, cpu, limit) in [
        (10, 0, cpu(0.8, 0.19), Cause::Cpu),
        (10, 0, cpu(0.98, 0.0), Cause::Cpu),
        (10, 0, cpu(0.3, 0.1), Cause::Unknown),
        (10, 0, None, Cause::Unknown),
        (10, 100_000, None, Cause::Unknown),
        (10, 100_000, cpu(0.98, 0.0), Cause::Cpu),
        (2, 0, cpu(0.8, 0.19), Cause::LineRate),
        (0, 100_000, None, Cause::LineRate),
    ] {
        let evidence = sampled(Side::Initiator, &bursts(drained, unsent_bytes), cpu).unwrap();
        let verdict = judge(&evidence);
        assert_eq!(verdict.limit, limit, "{drained} {unsent_bytes} {cpu:?} {:?}", verdict.waits.ranked());
        assert_eq!(evidence.path.line_bytes_per_s, None);
    }
}

#[test]
fn samples_settle_what_a_capture_leaves_open() {
    let full = series(true, |sample, _| sample.send_queue_bytes = Some(3 << 20));
    let samples = sampled(Side::Initiator, &full, None).unwrap();
    let mut capture = super::paper::evidence();
    capture.waits[Cause::Congestion] = capture.waits[Cause::SendBuffer];
    capture.waits[Cause::SendBuffer] = 0.0;
    capture.alternatives[Cause::SendBuffer] = capture.waits[Cause::Congestion];
    let alone = judge(&capture);
    assert!(alone.confidence < 0.8 && alone.candidates.contains(&Cause::SendBuffer));
    let both = judge(&combined(capture, &samples));
    assert_eq!((both.limit, both.confidence >= 0.8), (Cause::SendBuffer, true));
}
