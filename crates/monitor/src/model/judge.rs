//! From evidence to a verdict.

use super::predict::{self, NOTABLE};
use super::{Cause, Evidence, Peers, Seconds, Source, Verdict, advice, words};
use crate::event::Vantage;

/// A second limit is named from this part of the first one's share on.
const CLOSE: f64 = 0.8;
/// From this confidence on a verdict must not be wrong.
pub const SURE: f64 = 0.8;
/// Confidence with which a limit is named that another cause explains as well.
const DOUBTFUL: f64 = 0.6;
/// Least share of a limit's time that another cause has to explain to be a candidate.
const CANDIDATE: f64 = 0.4;
/// Share of the processor of the busiest thread from which a program counts as busy, and the same where others had it.
const BUSY: f64 = 0.9;
const BUSY_OR_WAITING: f64 = 0.97;
/// Least time that the link is busy for the verdict that nothing else limits.
const LINE_BUSY: f64 = 0.6;
/// Least part of the line's rate that the data has where the line is the limit, beside headers.
const LINE_RATE_LEAST: f64 = 0.8;
/// The verdict is the line, with doubt, where it is busy for so long and what TCP lost beside it is no more than this.
const LINE_FILLED: f64 = 0.75;
const PROBING: f64 = 0.25;
/// Of smaller commands a deep queue carries as many as the two ends can handle, which no packet shows.
const SMALL_BLOCK: u64 = 16 << 10;
/// A rate this many times the measured one is not predicted for them.
const SMALL_GAIN_MAX: f64 = 4.0;
/// From this part of lost packets on a congestion window may be as small as it is because of them: CUBIC then
/// keeps about 110 segments on a path of 50 ms (RFC 9438 5.1).
const LOST: f64 = 1e-4;
/// Least data for a verdict.
const BYTES_MIN: u64 = 4096;
/// Least time that is judged for a verdict without doubt: less may be a phase of the load.
const TIME_SURE: f64 = 1.0;

/// Names what limits the connection, as far as the evidence shows it.
#[must_use]
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut evidence = evidence.clone();
    with_processor(&mut evidence);
    let total = evidence.waits.total();
    if total <= 0.0 || evidence.data_bytes < BYTES_MIN {
        return unknown(&evidence, Vec::new(), 0.0);
    }
    let share = |cause: Cause| evidence.waits[cause] / total;
    let ranked: Vec<_> = evidence
        .waits
        .ranked()
        .into_iter()
        .map(|(cause, time)| (cause, time / total))
        .filter(|(cause, _)| !matches!(cause, Cause::LineRate | Cause::Unknown))
        .collect();
    let first = ranked.first().copied().unwrap_or((Cause::Unknown, 0.0));
    let line = share(Cause::LineRate);
    if first.1 < NOTABLE && line >= LINE_BUSY {
        // A socket that is never found with data that waits does not show the rate of its path.
        let is_filled = match evidence.path.line_bytes_per_s {
            Some(rate) => predict::measured(&evidence) >= LINE_RATE_LEAST * rate,
            None => !matches!(evidence.source, Source::Probe(_)),
        };
        // Away from the sender data that its program or storage paces comes as evenly as a line's.
        let seen = if is_at_sender(&evidence) { 1.0 } else { SURE - 0.05 };
        let confidence = line_confidence(line, first.1).min(if is_filled { seen } else { DOUBTFUL });
        return verdict(&evidence, Cause::LineRate, line, None, Vec::new(), confidence);
    }
    // A congestion control that probes a line that it fills loses a little of it.
    let is_probing = matches!(first.0, Cause::Loss | Cause::Congestion | Cause::LocalDevice);
    if is_probing && first.1 < PROBING && line >= LINE_FILLED {
        let others = vec![Cause::LineRate, first.0];
        return verdict(&evidence, Cause::LineRate, line, None, others, DOUBTFUL);
    }
    if share(Cause::Unknown) > first.1 || first.1 < NOTABLE / 2.0 {
        return unknown(&evidence, candidates(&evidence, Cause::Unknown), share(Cause::Unknown));
    }
    let also = ranked.get(1).filter(|second| second.1 >= CLOSE * first.1).copied();
    // A single command waits for the path whatever else is wrong: of two that are close, the other one is the fault.
    let (first, also) = match also {
        Some(fault) if first.0 == Cause::QueueDepth => (fault, Some(first)),
        also => (first, also),
    };
    let also = also.map(|second| second.0);
    let others = candidates(&evidence, first.0);
    let second = ranked.get(1).map_or(0.0, |second| second.1);
    let confidence = confidence(&evidence, first, second, &others);
    // What happens within the sender is concluded from its pauses by all others, and a program's pauses from a capture:
    // it may have been busy.
    let is_within = matches!(first.0, Cause::SendBuffer | Cause::LocalDevice) && !is_at_sender(&evidence)
        || first.0 == Cause::ThinkTime
            && matches!(evidence.source, Source::Capture(_))
            && evidence.cpu.is_none();
    // Losses of long ago leave a window that others keep as small as it is.
    let is_old =
        first.0 == Cause::Loss && matches!(evidence.source, Source::Probe(_)) && !has_losses(&evidence);
    let is_doubted =
        is_within || is_old || is_short(&evidence) || first.0 == Cause::Congestion && has_losses(&evidence);
    let confidence = if is_doubted { confidence.min(SURE - 0.05) } else { confidence };
    verdict(&evidence, first.0, first.1, also, others, confidence)
}

fn has_losses(evidence: &Evidence) -> bool {
    let path = &evidence.path;
    let lost = path.retransmitted_packets.saturating_sub(path.spurious_packets);
    lost as f64 > LOST * path.data_packets as f64
}

/// Whether so little of a capture could be judged that it may be a phase of the load.
pub(super) fn is_short(evidence: &Evidence) -> bool {
    matches!(evidence.source, Source::Capture(_)) && evidence.waits.total() < TIME_SURE
}

/// Whether the packets are seen as they leave the end that sends the data, or its socket is.
fn is_at_sender(evidence: &Evidence) -> bool {
    match evidence.source {
        Source::Capture(vantage) => vantage == Vantage::At(evidence.sender),
        _ => true,
    }
}

/// Gives the verdict on this evidence the advice for these ends. [`judge`] gives that for ends that are not known.
pub fn advise(verdict: &mut Verdict, evidence: &Evidence, peers: &Peers) {
    verdict.advice = advice::lines(evidence, verdict, peers);
}

/// Bounds the confidence of the verdict on this evidence by `most`, for a reason that the evidence does not hold.
pub fn doubt(verdict: &mut Verdict, evidence: &Evidence, most: f64) {
    verdict.confidence = verdict.confidence.min(most);
    verdict.sentence = words::sentence(evidence, verdict);
}

/// What the processor shows settles what a capture leaves open.
fn with_processor(evidence: &mut Evidence) {
    let Some(cpu) = evidence.cpu else { return };
    let is_busy = cpu.busiest_thread >= BUSY || cpu.busiest_thread + cpu.waiting >= BUSY_OR_WAITING;
    if !is_busy && cpu.waiting < 0.5 {
        return;
    }
    let cause = if cpu.cipher.is_some_and(|share| share > 0.3) { Cause::Cipher } else { Cause::Cpu };
    for from in [Cause::ThinkTime, Cause::Target, Cause::Cpu, Cause::Unknown] {
        let may_be = evidence.alternatives[Cause::Cpu];
        let is_open = match from {
            Cause::Target => may_be > 0.0,
            Cause::Unknown => may_be >= evidence.waits[Cause::Unknown],
            _ => true,
        };
        if from != cause && is_open {
            let seconds = std::mem::take(&mut evidence.waits[from]);
            evidence.waits[cause] += seconds;
        }
    }
    evidence.alternatives = Seconds::default();
}

/// Other causes that explain much of the limit's time.
fn candidates(evidence: &Evidence, limit: Cause) -> Vec<Cause> {
    let least = CANDIDATE * evidence.waits[limit].max(evidence.waits[Cause::Unknown]);
    let mut found: Vec<_> = evidence.alternatives.ranked();
    found.retain(|(cause, seconds)| *cause != limit && *seconds >= least && *seconds > 0.0);
    let mut found: Vec<_> = found.into_iter().map(|(cause, _)| cause).collect();
    if !found.is_empty() && limit != Cause::Unknown {
        found.insert(0, limit);
    }
    found
}

fn line_confidence(line: f64, other: f64) -> f64 {
    (1.0 - 2.2 * (1.0 - line) - 0.5 * other).clamp(0.3, 0.97)
}

fn confidence(evidence: &Evidence, first: (Cause, f64), second: f64, others: &[Cause]) -> f64 {
    let total = evidence.waits.total();
    let unseen = evidence.waits[Cause::Unknown] / total;
    // How clearly the limit stands out among all that could be removed.
    let lead = (first.1 - second) / first.1;
    let clear = 0.6 + 0.38 * lead.min(0.75) / 0.75;
    let size = if first.1 < 2.0 * NOTABLE { 0.7 } else { 1.0 };
    let doubt = if others.is_empty() { 1.0 } else { DOUBTFUL };
    (clear * (1.0 - unseen)).min(doubt).min(if size < 1.0 { SURE - 0.05 } else { 1.0 })
}

fn unknown(evidence: &Evidence, candidates: Vec<Cause>, share: f64) -> Verdict {
    verdict(evidence, Cause::Unknown, share, None, candidates, 0.0)
}

fn verdict(
    evidence: &Evidence,
    limit: Cause,
    share: f64,
    also: Option<Cause>,
    candidates: Vec<Cause>,
    confidence: f64,
) -> Verdict {
    let prediction = predict::without(evidence, limit);
    let measured = predict::measured(evidence);
    // Nothing is lost by removing a limit.
    let expected = prediction.bytes_per_s.map(|rate| rate.max(measured));
    let is_small = evidence.protocol.is_some_and(|protocol| protocol.block_bytes < SMALL_BLOCK)
        && matches!(limit, Cause::QueueDepth | Cause::ThinkTime);
    let is_known = expected.is_none_or(|rate| !is_small || rate <= SMALL_GAIN_MAX * measured);
    let expected = expected.filter(|_| is_known);
    let mut verdict = Verdict {
        limit,
        also,
        candidates,
        confidence,
        share,
        waits: evidence.waits,
        bytes_per_s: measured,
        expected_bytes_per_s: expected,
        next_limit: prediction.next.filter(|_| is_known),
        sentence: String::new(),
        advice: Vec::new(),
        notes: Vec::new(),
    };
    verdict.advice = advice::lines(evidence, &verdict, &Peers::default());
    verdict.sentence = words::sentence(evidence, &verdict);
    verdict.notes = words::notes(evidence, &verdict);
    verdict
}
