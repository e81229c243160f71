//! What remains without a limit, by how the time was spent.

use crate::event::{Side, Vantage};
use crate::model::{Caps, Cause, Evidence, Path, Protocol, Seconds, Source, predict};

const KIB: u64 = 1024;
/// Bytes per second of the link, and what a connection uses of it.
const LINE: f64 = 20e6;
const USED: f64 = 0.88 * LINE;
const USED_ALONE: f64 = 0.92 * LINE;
const RTT: f64 = 0.050;
/// Bytes of the 10 seconds that all cases take.
const BYTES: u64 = 40_000_000;

fn waits(table: &[(Cause, f64)]) -> Seconds {
    let mut waits = Seconds::default();
    table.iter().for_each(|(cause, share)| waits[*cause] = 10.0 * share);
    waits
}

/// Name, evidence, limit, and what remains: rate and next limit.
type Case = (&'static str, Evidence, Cause, Option<(f64, Cause)>);

/// 160 writes of 256 KiB, as many as the depth at once.
fn evidence(depth: u32, table: &[(Cause, f64)]) -> Evidence {
    Evidence {
        source: Source::Capture(Vantage::Between),
        sender: Side::Initiator,
        seconds: 10.0,
        data_bytes: BYTES,
        waits: waits(table),
        alternatives: Seconds::default(),
        path: Path { rtt_s: Some(RTT), line_bytes_per_s: Some(LINE), ..Path::default() },
        caps: Caps::default(),
        protocol: Some(Protocol {
            commands: 152,
            block_bytes: 256 * KIB,
            depth,
            depth_max: depth,
            ..Protocol::default()
        }),
        cpu: None,
    }
}

fn read(mut evidence: Evidence) -> Evidence {
    evidence.sender = Side::Target;
    evidence
}

fn with_path(mut evidence: Evidence, line: Option<f64>, burst: Option<f64>) -> Evidence {
    evidence.path.line_bytes_per_s = line;
    evidence.path.burst_bytes_per_s = burst;
    evidence
}

/// Bytes per second of `depth` blocks in `seconds`.
fn blocks(depth: u32, seconds: f64) -> f64 {
    f64::from(depth) * 256.0 * 1024.0 / seconds
}

#[test]
fn what_remains_follows_from_how_the_time_was_spent() {
    use Cause::{Congestion, Cpu, LineRate, LocalDevice, Loss};
    use Cause::{NagleDelayedAck, QueueDepth, SendBuffer, Target, ThinkTime};
    let on_link = 256.0 * 1024.0 / USED;
    let held = [(SendBuffer, 0.6), (LineRate, 0.2), (Congestion, 0.2)];
    let shared = [(Target, 0.4), (QueueDepth, 0.25), (ThinkTime, 0.15), (LineRate, 0.2)];
    let alone = [(Target, 0.6), (QueueDepth, 0.2), (LineRate, 0.2)];
    let busy = [(Cpu, 0.5), (SendBuffer, 0.2), (LineRate, 0.3)];
    let thinks = [(SendBuffer, 0.4), (ThinkTime, 0.4), (LineRate, 0.2)];
    let ends = [(Cpu, 0.5), (NagleDelayedAck, 0.2), (LineRate, 0.3)];
    let short = [(QueueDepth, 0.6), (SendBuffer, 0.2), (LineRate, 0.2)];
    let full = Caps { in_flight_max_bytes: Some(512 * KIB), ..Caps::default() };
    let window = Caps { window_bytes: Some(400 * KIB), ..Caps::default() };
    let growing = Caps { congestion_window_bytes: Some(400 * KIB), ..Caps::default() };
    let unseen = |mut evidence: Evidence| {
        evidence.protocol.as_mut().unwrap().commands = 40;
        evidence
    };
    let inferred = |mut evidence: Evidence| {
        evidence.protocol.as_mut().unwrap().inferred = 100;
        evidence
    };
    let table: [Case; 20] = [
        ("a window that still grew", evidence(3, &held), SendBuffer, Some((USED, LineRate))),
        ("commands behind a full buffer", evidence(1, &held), SendBuffer, Some((USED, LineRate))),
        (
            "reads show all of theirs",
            read(evidence(2, &held)),
            SendBuffer,
            Some((blocks(2, RTT + on_link), QueueDepth)),
        ),
        (
            "reads of which not all were seen",
            unseen(read(evidence(2, &held))),
            SendBuffer,
            Some((USED, LineRate)),
        ),
        (
            "reads whose commands were cut off",
            inferred(read(evidence(2, &held))),
            SendBuffer,
            Some((USED, LineRate)),
        ),
        (
            "a program that thinks",
            read(evidence(8, &thinks)),
            SendBuffer,
            Some((BYTES as f64 / 4.0, ThinkTime)),
        ),
        (
            "commands that were cut off do not show it",
            inferred(read(evidence(8, &thinks))),
            SendBuffer,
            Some((USED, LineRate)),
        ),
        (
            "losses stay",
            evidence(8, &[(SendBuffer, 0.5), (Loss, 0.3), (LineRate, 0.2)]),
            SendBuffer,
            Some((BYTES as f64 / (BYTES as f64 / USED + 3.0), Loss)),
        ),
        ("commands together hide waits", evidence(8, &shared), Target, Some((USED, LineRate))),
        ("too few to hide them", evidence(2, &shared), Target, Some((blocks(2, RTT + on_link), QueueDepth))),
        (
            "one after the other",
            evidence(1, &alone),
            Target,
            Some((BYTES as f64 / (BYTES as f64 / USED_ALONE + 152.59 * RTT), QueueDepth)),
        ),
        ("a busy program has no full buffer", evidence(1, &busy), Cpu, Some((USED, LineRate))),
        ("nor a short segment that waits", evidence(8, &ends), Cpu, Some((USED, LineRate))),
        (
            "all was in flight",
            Evidence { caps: full, ..evidence(2, &short) },
            QueueDepth,
            Some((USED, LineRate)),
        ),
        (
            "not all was",
            evidence(2, &short),
            QueueDepth,
            Some((BYTES as f64 / (BYTES as f64 / USED + 2.0), SendBuffer)),
        ),
        (
            "a window that was never full",
            Evidence { caps: window, ..evidence(8, &shared) },
            Target,
            Some((USED, LineRate)),
        ),
        (
            "one that was never reduced",
            Evidence { caps: growing, ..evidence(3, &held) },
            SendBuffer,
            Some((USED, LineRate)),
        ),
        (
            "a burst shows the link",
            with_path(evidence(3, &held), None, Some(LINE)),
            SendBuffer,
            Some((USED, LineRate)),
        ),
        (
            "even packets of a program do not",
            with_path(evidence(3, &held), None, Some(4.2e6)),
            SendBuffer,
            None,
        ),
        (
            "what the sender's device let pass",
            with_path(evidence(3, &[(LocalDevice, 1.0)]), Some(LINE / 2.0), Some(LINE)),
            LocalDevice,
            Some((USED, LineRate)),
        ),
    ];
    for (name, evidence, limit, expected) in table {
        let found = predict::without(&evidence, limit);
        assert_eq!(found.next, expected.map(|(_, next)| next), "{name}: {found:?}");
        let error = found.bytes_per_s.zip(expected).map(|(found, (rate, _))| (found / rate - 1.0).abs());
        assert!(error.is_none_or(|error| error < 0.01), "{name}: {found:?} {expected:?}");
    }
}

#[test]
fn one_r2t_stays_of_many() {
    let mut evidence = evidence(1, &[(Cause::R2t, 0.7), (Cause::QueueDepth, 0.05), (Cause::LineRate, 0.25)]);
    let protocol = evidence.protocol.as_mut().unwrap();
    (protocol.block_bytes, protocol.commands, protocol.r2t_bytes, protocol.r2t_rounds) =
        (4096 * KIB, 9, 256 * KIB, 16);
    let found = predict::without(&evidence, Cause::R2t);
    let expected = 4096.0 * 1024.0 / (2.0 * RTT + 4096.0 * 1024.0 / USED_ALONE);
    assert!((found.bytes_per_s.unwrap() / expected - 1.0).abs() < 0.01, "{found:?} {expected}");
    assert_eq!(found.next, Some(Cause::QueueDepth));
}
