//! What a connection would carry without one of its limits.
//!
//! ```text
//! rate = min(line, cwnd/RTT, window/RTT, buffer/RTT, data/work, depth * block / T)
//! T(one command) = (1 + R2T rounds) * RTT + block/rate
//! ```
//!
//! Commands that are outstanding together share the path: while one waits, the data of another moves. So waits of iSCSI
//! are added up only where a single command is outstanding. With several, their number is one more cap, and the work of
//! a program or of storage is a resource beside the line: the slowest one decides.

use super::{Cause, Evidence, Protocol, Source};
use crate::event::Side;

/// A share of the time below this is no limit of its own.
pub(super) const NOTABLE: f64 = 0.12;
/// Part of the line's rate that a connection carries which nothing else limits: the middle between the least and the most
/// of 102 runs that were measured (0.73 and 1.03). A congestion control gives way after a drop, or to see whether the queue
/// is empty, and nothing that was seen before tells how often it will.
const LINE_USED: f64 = 0.88;
/// The same where a single command is outstanding: what it leaves in the queue is gone before the next one.
const LINE_USED_ALONE: f64 = 0.92;
/// Least part of the time that the wait for the path takes where the depth is named as the next limit.
const DEPTH_NAMED: f64 = 0.05;
/// An initiator whose commands are all visible waits a round trip each time that they are all sent. One that waits less
/// than this part of it has further commands that the socket did not take yet.
const DRY_LEAST: f64 = 0.5;
/// A depth with which even this part of the measured rate would be impossible was not seen whole.
const IMPOSSIBLE: f64 = 0.95;
/// Least part of the data whose commands were seen, to know their number. Commands that share a packet are cut off by the
/// snap length.
const SEEN_LEAST: f64 = 0.9;
/// Least part of what the commands hold that was in flight at once.
const ALL_SENT: f64 = 0.95;
/// An even rate has to be above the measured one by this much: that of a slow program is not.
const EVEN: f64 = 1.15;

/// Waits in which TCP does not move data that it has.
const TRANSPORT: [Cause; 6] = [
    Cause::SendBuffer,
    Cause::ReceiveWindow,
    Cause::Congestion,
    Cause::Loss,
    Cause::NagleDelayedAck,
    Cause::LocalDevice,
];
/// Waits of an initiator that has sent all that it may.
const DRY: [Cause; 4] = [Cause::QueueDepth, Cause::R2t, Cause::Target, Cause::ThinkTime];
/// What a program or the storage does, one command after the other.
const WORK: [Cause; 4] = [Cause::Target, Cause::Cpu, Cause::Cipher, Cause::ThinkTime];

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

/// The rate without `limit`.
#[must_use]
pub fn without(evidence: &Evidence, limit: Cause) -> Prediction {
    let nothing = Prediction { bytes_per_s: None, next: None };
    let is_empty = evidence.waits.total() <= 0.0 || evidence.data_bytes == 0;
    if is_empty || matches!(limit, Cause::LineRate | Cause::Unknown) {
        return nothing;
    }
    let is_sampled = matches!(evidence.source, Source::Probe(_) | Source::Own(_));
    if is_sampled && evidence.path.line_bytes_per_s.is_none() {
        // Windows are larger than what the network carries: without its rate any figure would promise too much.
        return nothing;
    }
    let rest = Rest { evidence, limit, gone: removed_with(limit, evidence.sender) };
    match rest.depth() {
        Some(1) => rest.one_by_one(rest.cap(LINE_USED_ALONE)),
        depth => rest.cap(LINE_USED).map_or(nothing, |cap| rest.together(cap, depth)),
    }
}

/// Causes that go with `limit`. A deep queue hides every wait for the network, and shorter ones for the two ends. A program
/// that has no time is late with all that it does: what looks like a full buffer, or like an end that waits, are its pauses.
fn removed_with(limit: Cause, sender: Side) -> Vec<Cause> {
    let mut gone = vec![limit];
    gone.extend_from_slice(match (limit, sender) {
        (Cause::QueueDepth, _) => &[Cause::R2t, Cause::ThinkTime, Cause::Target],
        (Cause::Cpu, Side::Initiator) => {
            &[Cause::Cipher, Cause::SendBuffer, Cause::NagleDelayedAck, Cause::ThinkTime]
        }
        (Cause::Cpu, Side::Target) => {
            &[Cause::Cipher, Cause::SendBuffer, Cause::NagleDelayedAck, Cause::Target]
        }
        _ => &[],
    });
    gone
}

/// What remains of a connection without its limit.
struct Rest<'a> {
    evidence: &'a Evidence,
    limit: Cause,
    gone: Vec<Cause>,
}

impl Rest<'_> {
    fn left(&self, cause: Cause) -> f64 {
        if self.gone.contains(&cause) { 0.0 } else { self.evidence.waits[cause] }
    }

    fn bytes(&self) -> f64 {
        self.evidence.data_bytes as f64
    }

    fn is_notable(&self, seconds: f64) -> bool {
        seconds >= NOTABLE * self.evidence.waits.total()
    }

    fn protocol(&self) -> Option<&Protocol> {
        self.evidence.protocol.as_ref().filter(|protocol| protocol.block_bytes > 0)
    }

    fn commands(&self) -> f64 {
        self.protocol().map_or(0.0, |protocol| self.bytes() / protocol.block_bytes as f64)
    }

    /// Rate of the narrowest link. What drops in the sender's own device is in front of it: only what that device let
    /// pass at once shows it.
    fn line(&self) -> Option<f64> {
        let path = &self.evidence.path;
        // Even packets at the measured rate may be those of a slow program.
        let bursts = path.burst_bytes_per_s.filter(|rate| *rate > EVEN * measured(self.evidence));
        match self.limit {
            Cause::LocalDevice => bursts.or(path.line_bytes_per_s),
            _ => path.line_bytes_per_s.or(bursts),
        }
    }

    /// The least cap of TCP that is visible and remains, in bytes per second; of the line's rate `line_used` counts.
    fn cap(&self, line_used: f64) -> Option<(Cause, f64)> {
        let mut found: Vec<(Cause, f64)> = Vec::new();
        let (path, caps) = (&self.evidence.path, &self.evidence.caps);
        let mut add = |cause: Cause, rate: Option<f64>| {
            if let Some(rate) = rate.filter(|rate| *rate > 0.0 && !self.gone.contains(&cause)) {
                found.push((cause, rate));
            }
        };
        add(Cause::LineRate, self.line().map(|rate| line_used * rate));
        let rtt_s = path.rtt_s.filter(|rtt| *rtt > 0.0);
        let per_rtt = |bytes: Option<u64>| rtt_s.and_then(|rtt| bytes.map(|bytes| bytes as f64 / rtt));
        // Receivers enlarge a window that is used: one that did not hold much back is no cap.
        let is_used = self.is_notable(self.evidence.waits[Cause::ReceiveWindow]);
        add(Cause::ReceiveWindow, per_rtt(caps.window_bytes.filter(|_| is_used)));
        // A congestion window that was never reduced grows when it is used.
        let is_reduced = caps.ssthresh_bytes.is_some();
        add(Cause::Congestion, per_rtt(caps.congestion_window_bytes.filter(|_| is_reduced)));
        // A buffer counts overhead: between 0.67 and 0.85 of it is data.
        let buffer = caps.send_buffer_bytes.map(|bytes| bytes * 3 / 4);
        add(Cause::SendBuffer, per_rtt(buffer));
        found.into_iter().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Commands that the initiator keeps outstanding; `None` if there are enough, or more than were seen.
    fn depth(&self) -> Option<u32> {
        let protocol = self.protocol()?;
        // A program that thinks has fewer on their way than it may have. Otherwise the most may be one too many, where an
        // answer was about to come.
        let seen = match (self.limit, protocol.depth) {
            (_, 0) | (Cause::QueueDepth, _) => return None,
            (Cause::ThinkTime, depth) => depth.max(protocol.depth_max),
            (_, depth) => depth.max(protocol.depth_max.saturating_sub(1)),
        };
        // Commands show when the socket takes them: those of writes without R2T wait behind data that does not move.
        let is_held = TRANSPORT.contains(&self.limit) && self.limit != Cause::NagleDelayedAck;
        let is_hidden = self.evidence.sender == Side::Initiator && protocol.r2t_bytes == 0;
        if is_hidden && self.limit == Cause::Cpu {
            return None;
        }
        let dry: f64 = DRY.into_iter().map(|cause| self.evidence.waits[cause]).sum();
        let waits = self.commands() / f64::from(seen) * self.evidence.path.rtt_s.unwrap_or(0.0);
        if is_hidden && is_held && dry < DRY_LEAST * waits {
            return None;
        }
        let is_possible =
            self.bound(seen, f64::INFINITY).is_none_or(|bound| bound >= IMPOSSIBLE * measured(self.evidence));
        (is_possible && self.is_seen_whole(seen)).then_some(seen)
    }

    /// Whether so few commands were cut off, or passed unseen, that the initiator's own time shows; `depth` of them have not
    /// ended.
    fn is_seen_whole(&self, depth: u32) -> bool {
        self.protocol().is_none_or(|protocol| {
            let whole = protocol.commands.saturating_sub(protocol.inferred);
            protocol.commands == 0 || whole as f64 + f64::from(depth) >= SEEN_LEAST * self.commands()
        })
    }

    /// Waits for R2Ts in one command. Few ends send all of a command without being asked: of many, one for all of it stays.
    fn rounds(&self) -> u32 {
        let rounds = self.protocol().map_or(0, |protocol| protocol.r2t_rounds);
        if self.gone.contains(&Cause::R2t) { rounds.min(1) } else { rounds }
    }

    /// Bytes per second that `depth` commands at once can reach where data moves at `rate`.
    fn bound(&self, depth: u32, rate: f64) -> Option<f64> {
        let (protocol, rtt_s) = (self.protocol()?, self.evidence.path.rtt_s?);
        let block = protocol.block_bytes as f64;
        let seconds = f64::from(self.rounds().saturating_add(1)) * rtt_s + block / rate;
        (seconds > 0.0).then(|| f64::from(depth) * block / seconds)
    }

    /// Whether all data of the commands was in flight at once: then neither a window nor a buffer stopped any.
    fn is_all_in_flight(&self) -> bool {
        let Some(protocol) = self.protocol() else { return false };
        let commands = u64::from(protocol.depth).saturating_mul(protocol.block_bytes);
        self.evidence.caps.in_flight_max_bytes.is_some_and(|most| most as f64 >= ALL_SENT * commands as f64)
    }

    /// Waits of TCP that the removal leaves. Until it first stopped at the cap that is removed, the congestion window grew:
    /// that is over once it has.
    fn held(&self) -> impl Iterator<Item = (Cause, f64)> {
        let has_grown = matches!(self.limit, Cause::SendBuffer | Cause::ReceiveWindow);
        let is_empty = self.limit == Cause::QueueDepth && self.is_all_in_flight();
        TRANSPORT
            .into_iter()
            .filter(move |cause| !(has_grown && *cause == Cause::Congestion))
            .filter(move |cause| !(is_empty && matches!(cause, Cause::Congestion | Cause::SendBuffer)))
            .map(|cause| (cause, self.left(cause)))
            .filter(|(_, seconds)| self.is_notable(*seconds))
    }

    /// A single command at once: all that remains is added up.
    fn one_by_one(&self, cap: Option<(Cause, f64)>) -> Prediction {
        let moving = cap.map_or_else(|| self.left(Cause::LineRate), |(_, rate)| self.bytes() / rate);
        let held: f64 = self.held().map(|(_, seconds)| seconds).sum();
        let waiting = |cause: Cause| if TRANSPORT.contains(&cause) { 0.0 } else { self.left(cause) };
        let others = Cause::ALL.into_iter().filter(|cause| *cause != Cause::LineRate);
        let waits: f64 = others.map(waiting).sum();
        // No command is faster than the path.
        let path = self.bound(1, f64::INFINITY).map_or(0.0, |rate| self.bytes() / rate);
        // Where no time is booked on the link, that is a part of the waits.
        let seconds = match self.evidence.path.line_bytes_per_s {
            Some(_) => moving + held + waits.max(path),
            None => (held + waits).max(path + moving),
        };
        if seconds <= 0.0 {
            return Prediction { bytes_per_s: None, next: None };
        }
        // The path's own round trips end with more commands at once.
        let depth = self.left(Cause::QueueDepth).max(path - self.left(Cause::R2t));
        let work = WORK.into_iter().map(|cause| (cause, self.left(cause)));
        let rest = [(Cause::QueueDepth, depth), (Cause::R2t, self.left(Cause::R2t))].into_iter();
        let longest = rest.chain(work).chain(self.held()).max_by(|a, b| a.1.total_cmp(&b.1));
        let named = longest.filter(|(_, wait)| *wait > DEPTH_NAMED * seconds).map(|(cause, _)| cause);
        // Behind a limit of TCP, the next one of TCP takes its place.
        let line = self.line().map_or(0.0, |line| self.bytes() / line);
        let is_slower = TRANSPORT.contains(&self.limit) && moving - line > NOTABLE * seconds;
        let next = match (cap, named) {
            (Some((cap, _)), _) if is_slower && cap != Cause::LineRate => Some(cap),
            (cap, named) => named.or(cap.map(|(cause, _)| cause)),
        };
        Prediction { bytes_per_s: Some(self.bytes() / seconds), next }
    }

    /// Several commands at once, or enough.
    fn together(&self, cap: (Cause, f64), depth: Option<u32>) -> Prediction {
        let mut least = cap;
        let mut consider = |cause: Cause, rate: f64| {
            if rate < least.1 {
                least = (cause, rate);
            }
        };
        let held: f64 = self.held().map(|(_, seconds)| seconds).sum();
        if let Some((cause, _)) = self.held().max_by(|a, b| a.1.total_cmp(&b.1)) {
            consider(cause, self.bytes() / (self.bytes() / cap.1 + held));
        }
        let depth_max = self.protocol().map_or(0, |protocol| protocol.depth_max);
        for cause in WORK {
            let seconds = self.left(cause);
            let is_seen = cause != Cause::ThinkTime || self.is_seen_whole(depth_max);
            if is_seen && self.is_notable(seconds) {
                consider(cause, self.bytes() / seconds);
            }
        }
        if let Some(bound) = depth.and_then(|depth| self.bound(depth, cap.1)) {
            // Of the round trips of a command, most are waits for R2Ts.
            let cause = if self.rounds() > 1 { Cause::R2t } else { Cause::QueueDepth };
            consider(cause, bound);
        }
        Prediction { bytes_per_s: Some(least.1), next: Some(least.0) }
    }
}
