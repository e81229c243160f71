//! Limits by strength, round trip, direction and place of capture.

use super::simulator::{Cap, Simulator, Spec};
use crate::model::{Attribution, Cause, Protocol, Verdict, judge};

const MS: u64 = 1_000_000;
const KIB: u64 = 1024;
/// Payload bytes per second of 200 Mbit/s.
const LINE: u64 = 23_500_000;
/// At the initiator, at the target, between them.
const PLACES: [f64; 3] = [0.0, 1.0, 0.5];

fn verdict(spec: Spec) -> (Verdict, f64) {
    let (events, distances, simulator) = Simulator::run(spec);
    let mut attribution = Attribution::new();
    attribution.set_distances(distances);
    events.iter().for_each(|event| attribution.handle(event));
    let r2t_rounds = spec.block.saturating_sub(spec.unsolicited).div_ceil(spec.r2t.max(1)) as u32;
    let protocol = Protocol {
        block_bytes: spec.block,
        depth: spec.depth,
        r2t_bytes: if r2t_rounds > 0 { spec.r2t } else { 0 },
        r2t_rounds: if spec.is_read { 0 } else { r2t_rounds },
        ..Protocol::default()
    };
    let evidence = attribution.finish(|_| Some(protocol));
    assert!((evidence.waits.total() - evidence.seconds).abs() < 1e-6);
    (judge(&evidence), simulator.data_bytes as f64 / spec.seconds)
}

struct Case {
    limit: Cause,
    spec: Spec,
    /// What the sender's place alone shows.
    is_local: bool,
}

/// All that is varied, and what limits then by construction.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for rtt_ms in [2, 10, 50] {
        let rtt_ns = rtt_ms * MS;
        let bdp = LINE * rtt_ms / 1000;
        for is_read in [false, true] {
            let base = Spec { rtt_ns, line: LINE, is_read, seconds: 2.0, ..Spec::default() };
            let mut add = |limit: Cause, spec: Spec| cases.push(Case { limit, spec, is_local: false });
            let one = Spec { depth: 1, block: 64 * KIB, ..base };
            add(Cause::LineRate, Spec { depth: 64, ..base });
            add(Cause::Target, Spec { target_ns: 2 * rtt_ns + 10 * MS, ..one });
            add(Cause::ThinkTime, Spec { think_ns: 3 * rtt_ns + 20 * MS, ..one });
            if rtt_ms >= 10 {
                add(Cause::QueueDepth, one);
                for part in [3, 6] {
                    add(Cause::SendBuffer, Spec { cap: Cap::Buffer(bdp * part / 10), ..base });
                    add(Cause::ReceiveWindow, Spec { cap: Cap::Window(bdp * part / 10), ..base });
                    let segments = bdp * part / 10 / 1448 * 1448;
                    add(Cause::Congestion, Spec { cap: Cap::Congestion(segments), ..base });
                }
            }
            if rtt_ms >= 10 && !is_read {
                for block in [1024 * KIB, 4096 * KIB] {
                    let r2t = if rtt_ms == 10 { 64 * KIB } else { 256 * KIB };
                    add(Cause::R2t, Spec { depth: 1, block, r2t, unsolicited: 8 * KIB, ..base });
                }
            }
            for loss_every in [60, 200] {
                if rtt_ms >= 10 {
                    add(Cause::Loss, Spec { loss_every, ..base });
                }
            }
            let local = Spec { loss_every: 60, is_loss_local: true, ..base };
            if rtt_ms >= 10 {
                cases.push(Case { limit: Cause::LocalDevice, spec: local, is_local: true });
            }
        }
    }
    cases
}

#[test]
fn injected_limits_are_named_at_every_place_and_never_wrong_when_sure() {
    let (mut right, mut all) = (0, 0);
    let (mut wrong, mut sure) = (Vec::new(), 0);
    for case in cases() {
        for place in PLACES {
            let spec = Spec { place, ..case.spec };
            let is_at_sender = (place == 1.0) == spec.is_read && place != 0.5;
            if case.is_local && !is_at_sender {
                continue;
            }
            let (verdict, _) = verdict(spec);
            let is_right = verdict.limit == case.limit || verdict.also == Some(case.limit);
            all += 1;
            right += usize::from(is_right);
            if !is_right {
                wrong.push(format!(
                    "{:?} -> {:?} {:.2} {:?} {:?} {:?}",
                    case.limit,
                    verdict.limit,
                    verdict.confidence,
                    verdict.candidates,
                    verdict.waits.ranked(),
                    spec
                ));
            }
            sure += usize::from(!is_right && verdict.confidence >= 0.8);
        }
    }
    assert_eq!(sure, 0, "sure and wrong, {right} of {all} right:\n{}", wrong.join("\n"));
    assert!(right * 100 >= all * 95, "{right} of {all}\n{}", wrong.join("\n"));
}

#[test]
fn the_rate_without_the_limit_is_the_one_that_a_run_without_it_reaches() {
    let base = Spec { rtt_ns: 50 * MS, line: LINE, seconds: 3.0, ..Spec::default() };
    let r2t = Spec { depth: 1, block: 4096 * KIB, unsolicited: 8 * KIB, ..base };
    let table = [
        (Cause::SendBuffer, Spec { cap: Cap::Buffer(400_000), ..base }, base),
        (Cause::ReceiveWindow, Spec { cap: Cap::Window(400_000), ..base }, base),
        (Cause::Congestion, Spec { cap: Cap::Congestion(276 * 1448), ..base }, base),
        // One R2T for all of a command stays.
        (Cause::R2t, r2t, Spec { r2t: 4096 * KIB, ..r2t }),
        (Cause::QueueDepth, Spec { depth: 1, ..base }, Spec { depth: 32, ..base }),
        (Cause::ThinkTime, Spec { depth: 1, think_ns: 300 * MS, ..base }, Spec { depth: 1, ..base }),
    ];
    for (limit, with, without) in table {
        let (verdict, measured) = verdict(with);
        assert_eq!(verdict.limit, limit, "{:?}", verdict.waits.ranked());
        let (_, reached) = self::verdict(without);
        let expected = verdict.expected_bytes_per_s.unwrap();
        assert!(
            (verdict.bytes_per_s / measured - 1.0).abs() < 0.1,
            "{limit:?}: {} {measured}",
            verdict.bytes_per_s
        );
        assert!((expected / reached - 1.0).abs() < 0.15, "{limit:?}: {expected} {reached}");
    }
}
