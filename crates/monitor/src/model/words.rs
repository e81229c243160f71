//! The verdict as one sentence.

use super::judge::{SURE, is_short};
use super::{Cause, Evidence, Source, Verdict};
use crate::event::{Side, Vantage};

/// A rate as the whole program writes it.
pub(super) fn mb(bytes_per_s: f64) -> String {
    match bytes_per_s {
        rate if rate >= 1e9 => format!("{:.2} GB/s", rate / 1e9),
        rate if rate >= 1e8 => format!("{:.0} MB/s", rate / 1e6),
        rate if rate >= 1e6 => format!("{:.1} MB/s", rate / 1e6),
        rate => format!("{:.1} kB/s", rate / 1e3),
    }
}

pub(super) fn bytes(bytes: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB")];
    let unit = UNITS.into_iter().find(|(size, _)| bytes >= *size);
    match unit {
        Some((size, name)) if bytes / size < 10.0 => format!("{:.1} {name}", bytes / size),
        Some((size, name)) => format!("{:.0} {name}", bytes / size),
        None => format!("{bytes:.0} B"),
    }
}

fn ms(seconds: f64) -> String {
    if seconds >= 0.01 { format!("{:.0} ms", seconds * 1e3) } else { format!("{:.2} ms", seconds * 1e3) }
}

/// The limit in words, with its figure.
fn limit(evidence: &Evidence, cause: Cause) -> String {
    let (sender, receiver) = ends(evidence.sender);
    let rtt = evidence.path.rtt_s.map_or("an unknown round trip".to_owned(), ms);
    let in_flight =
        evidence.caps.in_flight_stopped_bytes.map_or("a fixed amount".to_owned(), |n| bytes(n as f64));
    let protocol = evidence.protocol.unwrap_or_default();
    match cause {
        Cause::R2t if protocol.r2t_bytes == 0 => format!("waits for R2Ts, a round trip of {rtt} each"),
        Cause::R2t => format!(
            "waits for R2Ts: each permits {} of a write and comes a round trip of {rtt} after the one before, {} in a write",
            bytes(protocol.r2t_bytes as f64),
            protocol.r2t_rounds
        ),
        Cause::QueueDepth => format!(
            "too few commands outstanding: {} of {} on a round trip of {rtt}",
            protocol.depth_max.max(1),
            bytes(protocol.block_bytes as f64)
        ),
        Cause::SendBuffer => {
            format!(
                "the send buffer of the {sender}: it stops with {in_flight} in flight on a round trip of {rtt}"
            )
        }
        Cause::ReceiveWindow => format!(
            "the receive window of the {receiver}: {} on a round trip of {rtt}",
            evidence.caps.window_bytes.map_or("full".to_owned(), |n| bytes(n as f64))
        ),
        Cause::Congestion => {
            format!(
                "the congestion window of the {sender}: {in_flight} in flight on a round trip of {rtt}, without loss"
            )
        }
        Cause::Loss => format!(
            "loss in the network: {} of {} packets were sent again",
            evidence.path.retransmitted_packets, evidence.path.data_packets
        ),
        Cause::NagleDelayedAck => {
            format!(
                "short segments that wait for delayed acknowledgements (Nagle's algorithm at the {sender})"
            )
        }
        Cause::LocalDevice => format!(
            "the {sender}'s own network device or queueing discipline, which drops packets before they reach the network{}",
            match evidence.path.local_drops {
                Some(times @ 1..) =>
                    format!(" ({times} reductions of the congestion window without another reason)"),
                _ => String::new(),
            }
        ),
        Cause::Target => format!("the target: it takes {} of its own for a command", ms(protocol.target_s)),
        Cause::Cipher => "sealing or opening of data".to_owned(),
        Cause::Cpu => format!("the {sender}'s program: it does not send although it may"),
        Cause::ThinkTime => {
            format!("the initiator's pauses: {} from a response to the next command", ms(protocol.tc_s))
        }
        Cause::LineRate => format!(
            "the network's rate, {}: nothing else holds the data back",
            evidence.path.line_bytes_per_s.map_or("fully used".to_owned(), mb)
        ),
        Cause::Unknown => "not known".to_owned(),
    }
}

fn share_of(evidence: &Evidence, cause: Cause) -> f64 {
    let total = evidence.waits.total();
    if total > 0.0 { evidence.waits[cause] / total } else { 0.0 }
}

fn ends(sender: Side) -> (&'static str, &'static str) {
    match sender {
        Side::Initiator => ("initiator", "target"),
        Side::Target => ("target", "initiator"),
    }
}

fn short(cause: Cause) -> &'static str {
    match cause {
        Cause::R2t => "waits for R2Ts",
        Cause::QueueDepth => "the number of outstanding commands",
        Cause::SendBuffer => "the send buffer",
        Cause::ReceiveWindow => "the receive window",
        Cause::Congestion => "the congestion window",
        Cause::Loss => "loss",
        Cause::NagleDelayedAck => "delayed acknowledgements",
        Cause::LocalDevice => "the sender's network device",
        Cause::Target => "the target",
        Cause::Cipher => "sealing",
        Cause::Cpu => "the processor",
        Cause::ThinkTime => "the initiator's pauses",
        Cause::LineRate => "the network's rate",
        Cause::Unknown => "something unknown",
    }
}

/// `a, b or c`.
fn listed(names: &[&str], word: &str) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} {word} {last}", first.join(", ")),
    }
}

pub(super) fn sentence(evidence: &Evidence, verdict: &Verdict) -> String {
    let rate = mb(verdict.bytes_per_s);
    if verdict.limit == Cause::Unknown {
        if verdict.candidates.is_empty() {
            return "What limits this connection is not known: too little data was seen.".to_owned();
        }
        let names: Vec<_> = verdict.candidates.iter().map(|cause| short(*cause)).collect();
        return format!(
            "What limits this connection ({rate}) is not decided: it can be {}.",
            listed(&names, "or")
        );
    }
    let probably = if verdict.confidence < SURE { "probably " } else { "" };
    let mut text = format!(
        "{rate}, {probably}limited {:.0} % of the time by {}",
        verdict.share * 100.0,
        limit(evidence, verdict.limit)
    );
    if let Some(also) = verdict.also {
        let share = share_of(evidence, also) * 100.0;
        text += &format!("; and {share:.0} % of the time by {}", short(also));
    }
    if let Some(expected) = verdict.expected_bytes_per_s.filter(|_| verdict.limit != Cause::LineRate) {
        let without = if verdict.also.is_some() { short(verdict.limit) } else { "it" };
        text += &format!("; without {without} about {}", mb(expected));
        if let Some(next) = verdict.next_limit {
            text += &format!(", then limited by {}", short(next));
        }
    } else if matches!(evidence.source, Source::Probe(_) | Source::Own(_)) && verdict.limit != Cause::LineRate
    {
        text += "; how much is gained without it is not known, because the network's own rate has not shown";
    }
    text + "."
}

pub(super) fn notes(evidence: &Evidence, verdict: &Verdict) -> Vec<String> {
    let mut notes = Vec::new();
    let (sender, _) = ends(evidence.sender);
    let line = share_of(evidence, Cause::LineRate);
    if !matches!(verdict.limit, Cause::LineRate | Cause::Unknown) && line > verdict.share {
        notes.push(format!(
            "The network's rate (line_rate) takes more of the time, {:.0} %: data moves at the full rate then, which no setting \
             shortens. The limit is the largest part of the time that can be removed.",
            line * 100.0
        ));
    }
    if !verdict.candidates.is_empty() {
        let names: Vec<_> = verdict.candidates.iter().map(|cause| short(*cause)).collect();
        let what = match verdict.limit {
            Cause::ThinkTime | Cause::Cpu => {
                "the initiator's processor use tells which (`hikyaku watch PID` at the initiator)".to_owned()
            }
            Cause::Loss => format!("a capture at the {sender} tells which"),
            _ => format!("samples of the {sender}'s socket tell which (`hikyaku watch` at the {sender})"),
        };
        // The sentence of an undecided verdict lists the candidates already.
        let is_decided = verdict.limit != Cause::Unknown;
        match evidence.source {
            Source::Own(_) if !is_decided => {}
            Source::Own(_) => notes.push(format!("The observation fits {}.", listed(&names, "and"))),
            Source::Probe(_) if !is_decided => notes
                .push("Packets tell which of these limits: `sudo hikyaku watch`, or a capture.".to_owned()),
            _ if !is_decided => notes.push(format!("Which of these limits: {what}.")),
            _ => notes.push(format!("The observation fits {}; {what}.", listed(&names, "and"))),
        }
    }
    if evidence.path.capture_lost_bytes > 0 {
        notes.push(format!(
            "The capture lacks {} that were received: not lost by the network.",
            bytes(evidence.path.capture_lost_bytes as f64)
        ));
    }
    if is_short(evidence) && verdict.limit != Cause::Unknown {
        notes.push(format!(
            "Only {:.0} ms of the load could be judged, which may be a phase of it: capture at least 5 s.",
            evidence.waits.total() * 1e3
        ));
    }
    if evidence.protocol.is_none() {
        notes.push("No iSCSI PDU was visible: the verdict is about TCP alone.".to_owned());
    }
    if matches!(evidence.source, Source::Capture(Vantage::Unknown)) {
        notes.push("Where the capture was made is not known: times are as captured.".to_owned());
    }
    notes
}
