//! What a connection would carry without one of its limits.
//!
//! The time of a period is a sum: the phases in which TCP moves data (the link is busy, or a window or buffer is full),
//! and the waits of iSCSI in between. Without a limit of the first kind the data moves at the least of the remaining
//! caps; a limit of the second kind takes its waits away.
//!
//! ```text
//! rate = min(line, cwnd/RTT, window/RTT, buffer/RTT, depth * block / T)
//! T(one command) = (1 + R2T rounds) * RTT + block/line + target + think
//! ```

use super::{Cause, Evidence, Source};

/// A share of the time below this is no limit of its own.
pub(super) const NOTABLE: f64 = 0.12;

/// Limits that the movement of data by TCP has; the others are waits of iSCSI and of programs.
const TRANSFER: [Cause; 7] = [
    Cause::SendBuffer,
    Cause::ReceiveWindow,
    Cause::Congestion,
    Cause::Loss,
    Cause::NagleDelayedAck,
    Cause::LocalDevice,
    Cause::LineRate,
];

/// What is left when a limit is gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Bytes of data per second; `None` if no cap behind the limit is visible.
    pub bytes_per_s: Option<f64>,
    /// What limits then.
    pub next: Option<Cause>,
}

/// The rate of data, in bytes per second, of the whole period.
#[must_use]
pub fn measured(evidence: &Evidence) -> f64 {
    if evidence.seconds > 0.0 { evidence.data_bytes as f64 / evidence.seconds } else { 0.0 }
}

/// Caps of the rate that are visible, without those of `gone`.
fn caps(evidence: &Evidence, gone: &[Cause]) -> Vec<(Cause, f64)> {
    let mut found = Vec::new();
    let (path, caps) = (&evidence.path, &evidence.caps);
    let mut add = |cause: Cause, rate: Option<f64>| {
        if let Some(rate) = rate.filter(|rate| *rate > 0.0 && !gone.contains(&cause)) {
            found.push((cause, rate));
        }
    };
    add(Cause::LineRate, path.line_bytes_per_s);
    let per_rtt = |bytes: Option<u64>| {
        path.rtt_s.filter(|rtt| *rtt > 0.0).and_then(|rtt| bytes.map(|bytes| bytes as f64 / rtt))
    };
    // Receivers enlarge a window that is used: one that was never full is no cap.
    let is_used = evidence.waits[Cause::ReceiveWindow] > 0.01 * evidence.waits.total();
    add(Cause::ReceiveWindow, per_rtt(caps.window_bytes.filter(|_| is_used)));
    add(Cause::Congestion, per_rtt(caps.congestion_window_bytes));
    // A buffer counts overhead: between 0.67 and 0.85 of it is data.
    let buffer = caps.send_buffer_bytes.map(|bytes| bytes * 3 / 4);
    add(Cause::SendBuffer, per_rtt(buffer));
    found.sort_by(|a, b| a.1.total_cmp(&b.1));
    found
}

/// Causes that go with `limit`: a deep queue hides every wait for the network, and shorter ones for the two ends.
fn removed_with(limit: Cause) -> &'static [Cause] {
    match limit {
        Cause::QueueDepth => &[Cause::QueueDepth, Cause::R2t, Cause::ThinkTime, Cause::Target],
        Cause::ThinkTime => &[Cause::ThinkTime],
        Cause::R2t => &[Cause::R2t],
        Cause::Target => &[Cause::Target],
        Cause::Cpu => &[Cause::Cpu, Cause::Cipher],
        Cause::Cipher => &[Cause::Cipher],
        Cause::SendBuffer => &[Cause::SendBuffer],
        Cause::ReceiveWindow => &[Cause::ReceiveWindow],
        Cause::Congestion => &[Cause::Congestion],
        Cause::Loss => &[Cause::Loss],
        Cause::NagleDelayedAck => &[Cause::NagleDelayedAck],
        Cause::LocalDevice => &[Cause::LocalDevice],
        Cause::LineRate => &[Cause::LineRate],
        Cause::Unknown => &[Cause::Unknown],
    }
}

/// The rate without `limit`.
#[must_use]
pub fn without(evidence: &Evidence, limit: Cause) -> Prediction {
    let nothing = Prediction { bytes_per_s: None, next: None };
    let (total, bytes) = (evidence.waits.total(), evidence.data_bytes as f64);
    if total <= 0.0 || bytes <= 0.0 || matches!(limit, Cause::LineRate | Cause::Unknown) {
        return nothing;
    }
    let is_sampled = matches!(evidence.source, Source::Probe(_) | Source::Own(_));
    if is_sampled && evidence.path.line_bytes_per_s.is_none() {
        // Windows are larger than what the network carries: without its rate any figure would promise too much.
        return nothing;
    }
    let gone = removed_with(limit);
    let left = |cause: Cause| if gone.contains(&cause) { 0.0 } else { evidence.waits[cause] };
    let moving: f64 = TRANSFER.into_iter().map(left).sum();
    let waiting: f64 = Cause::ALL.into_iter().filter(|cause| !TRANSFER.contains(cause)).map(left).sum();
    let caps = caps(evidence, gone);
    let Some((cap, rate)) = caps.first().copied() else {
        // No cap is visible: the waits that remain are a bound only if there are any.
        let remaining = moving + waiting;
        let next = largest(evidence, gone);
        let is_bound = remaining > NOTABLE * total;
        return Prediction { bytes_per_s: is_bound.then(|| bytes / remaining), next };
    };
    // The line carries headers too; its own share of the time counts what it took.
    let moving = moving.max(bytes / rate);
    let seconds = moving + waiting;
    // What the cap costs beyond the time on the line.
    let line = evidence.path.line_bytes_per_s.map_or(0.0, |line| bytes / line);
    let cost = bytes / rate - line.max(left(Cause::LineRate));
    let is_same_phase = TRANSFER.contains(&limit) && cap != Cause::LineRate && cost > NOTABLE * seconds;
    let next = match largest(evidence, gone) {
        Some(cause) if !is_same_phase && evidence.waits[cause] > (NOTABLE * seconds).max(cost) => cause,
        _ => cap,
    };
    Prediction { bytes_per_s: Some(bytes / seconds), next: Some(next) }
}

/// The longest wait besides those of `gone` and the line.
fn largest(evidence: &Evidence, gone: &[Cause]) -> Option<Cause> {
    let ranked = evidence.waits.ranked().into_iter().map(|(cause, _)| cause);
    ranked
        .into_iter()
        .find(|cause| !gone.contains(cause) && !matches!(cause, Cause::LineRate | Cause::Unknown))
}
