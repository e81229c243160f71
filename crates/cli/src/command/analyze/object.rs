//! `analyze --json`.

use monitor::analysis::{FlowReport, Report};
use monitor::command::{Burst, Command, Direction, Times, Transfer, Trigger};
use monitor::event::{Side, Vantage};
use monitor::model::{Cause, Verdict};
use serde_json::{Map, Value, json};

use crate::output;
use crate::units::rounded;

/// With `before`, the flows of the first capture are in a field of their own. In parts, one flow each: a thousand
/// connections, each with thousands of commands, take a gigabyte as one value.
pub(super) fn report<'a>(
    before: Option<&'a Report>,
    report: &'a Report,
) -> impl Iterator<Item = String> + 'a {
    let text = |text: &str| std::iter::once(text.to_owned());
    let before_flows = before.into_iter().flat_map(flows);
    let (open, close) = if before.is_some() { ("[", "]") } else { ("null", "") };
    let mut head = head(report).to_string();
    // The closing brace follows the flows.
    head.pop();
    text(&head)
        .chain(text(&format!(",\"before\":{open}")))
        .chain(before_flows)
        .chain(text(&format!("{close},\"flows\":[")))
        .chain(flows(report))
        .chain(text("]}"))
}

/// The flows, with commas between them.
fn flows(report: &Report) -> impl Iterator<Item = String> + '_ {
    let comma = |number| if number > 0 { "," } else { "" };
    (0..).zip(&report.flows).map(move |(number, report)| format!("{}{}", comma(number), flow(report)))
}

fn head(report: &Report) -> Value {
    let others: Map<String, Value> =
        report.frames.others().map(|(kind, count)| (kind.to_owned(), count.into())).collect();
    json!({
        "schema": output::SCHEMA,
        "frames": report.frames.frames,
        "tcp_frames": report.frames.tcp,
        "other_frames": others,
        "notes": report.notes,
    })
}

fn flow(report: &FlowReport) -> Value {
    let of = |transfer: Transfer| -> Vec<_> {
        report.commands.iter().filter(|command| command.transfer == transfer).map(command).collect()
    };
    let flow = &report.flow;
    let path = &report.evidence.path;
    let negotiated: Map<String, Value> =
        flow.negotiated.iter().map(|(key, value)| (key.clone(), value_of(value))).collect();
    json!({
        "id": flow.id,
        "source": flow.source,
        "initiator": flow.initiator,
        "target": flow.target,
        "initiator_name": flow.initiator_name,
        "target_name": flow.target_name,
        "vantage": vantage(flow.vantage),
        "sampled": super::text::is_sampled(report),
        "rtt_ms": path.rtt_s.map(|seconds| rounded(seconds * 1e3)),
        "rtt_loaded_ms": path.rtt_loaded_s.map(|seconds| rounded(seconds * 1e3)),
        "seconds": rounded(report.seconds),
        "frames": flow.frames,
        "sent_bytes": report.payload_bytes[Side::Initiator as usize],
        "received_bytes": report.payload_bytes[Side::Target as usize],
        "tcp": {
            "mss_bytes": path.mss_bytes,
            "window_bytes": report.evidence.caps.window_bytes,
            "in_flight_max_bytes": report.evidence.caps.in_flight_max_bytes,
            "line_mb_per_s": path.line_bytes_per_s.map(|rate| rounded(rate / 1e6)),
            "data_packets": path.data_packets,
            "retransmitted_packets": path.retransmitted_packets,
            "spurious_packets": path.spurious_packets,
            "timeouts": path.timeouts,
            "capture_lost_bytes": path.capture_lost_bytes,
        },
        "commands": report.counts.commands + report.counts.inferred,
        "unfinished": report.counts.unfinished,
        "unknown": report.counts.unknown,
        "write": direction(report.summary.direction(Transfer::Write)),
        "read": direction(report.summary.direction(Transfer::Read)),
        "writes": of(Transfer::Write),
        "reads": of(Transfer::Read),
        "negotiated": negotiated,
        "verdict": verdict(&report.verdict),
        "notes": report.notes,
    })
}

pub(super) fn vantage(vantage: Vantage) -> &'static str {
    match vantage {
        Vantage::At(Side::Initiator) => "initiator",
        Vantage::At(Side::Target) => "target",
        Vantage::Between => "between",
        Vantage::Unknown => "unknown",
    }
}

/// Numbers as numbers, all others as text.
fn value_of(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| text.into(), Value::from)
}

fn ms(ns: u64) -> f64 {
    rounded(ns as f64 / 1e6)
}

fn command(command: &Command) -> Value {
    let bursts: Vec<_> = command.bursts.iter().map(burst).collect();
    json!({
        "bytes": command.bytes,
        "ta_ms": ms(command.ta_ns),
        "tb_ms": ms(command.tb_ns),
        "tc_ms": command.tc_ns.map(ms),
        "bursts": bursts,
        "at_s": command.at_ns as f64 / 1e9,
        "frame": command.frame,
        "itt": command.itt,
        "lun": command.lun,
        "operation": scsi_name(command.operation),
        "latency_ms": ms(command.latency_ns),
        "target_ms": ms(command.target_ns),
        "r2t_rounds": command.r2t_rounds,
        "r2t_bytes": command.r2t_bytes,
        "unsolicited_bytes": command.unsolicited_bytes,
        "depth": command.depth,
        "status": command.status,
        "inferred": command.is_inferred,
    })
}

fn scsi_name(code: u8) -> &'static str {
    monitor::command::operation_name(code)
}

fn burst(burst: &Burst) -> Value {
    json!({
        "packets": burst.packets,
        "bytes": burst.bytes,
        "gap_ms": ms(burst.gap_ns),
        "trigger": trigger(burst.trigger),
    })
}

fn trigger(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Ack => "ack",
        Trigger::R2t => "r2t",
        Trigger::Response => "response",
        Trigger::Command => "command",
        Trigger::Nothing => "nothing",
    }
}

fn direction(direction: &Direction) -> Value {
    if direction.count == 0 {
        return Value::Null;
    }
    json!({
        "commands": direction.count,
        "bytes": direction.bytes,
        "failed": direction.failed,
        "inferred": direction.inferred,
        "mb_per_s": rounded(direction.bytes_per_s() / 1e6),
        "seconds": rounded(direction.seconds()),
        "block_bytes": direction.sizes.median(),
        "depth": direction.depths.median(),
        "depth_max": direction.depths.most(),
        "unsolicited_bytes": direction.unsolicited.median(),
        "r2t_bytes": direction.r2t_bytes.median(),
        "r2t_rounds": direction.r2t_rounds.median(),
        "ta_ms": times(&direction.ta),
        "tb_ms": times(&direction.tb),
        "tc_ms": times(&direction.tc),
        "latency_ms": times(&direction.latency),
        "target_ms": times(&direction.target),
    })
}

fn times(times: &Times) -> Value {
    let ms = |quantile| rounded(times.seconds(quantile) * 1e3);
    json!({ "p50": ms(0.5), "p99": ms(0.99), "max": ms(1.0) })
}

fn verdict(verdict: &Verdict) -> Value {
    let seconds = verdict.waits.total();
    let waits: Map<String, Value> = verdict
        .waits
        .ranked()
        .into_iter()
        .map(|(cause, time)| (cause.name().to_owned(), rounded(time / seconds).into()))
        .collect();
    let advice: Vec<_> = verdict
        .advice
        .iter()
        .map(|advice| {
            json!({
                "system": advice.system,
                "limit": advice.cause.name(),
                "line": advice.line,
                "tried": advice.is_tried,
            })
        })
        .collect();
    let first = verdict.advice.first().map(|advice| format!("{}: {}", advice.system, advice.line));
    json!({
        "confidence": rounded(verdict.confidence),
        "limit": verdict.limit.name(),
        "also": verdict.also.map(Cause::name),
        "candidates": verdict.candidates.iter().map(|cause| cause.name()).collect::<Vec<_>>(),
        "share": rounded(verdict.share),
        "mb_per_s": rounded(verdict.bytes_per_s / 1e6),
        "expected_mb_per_s": verdict.expected_bytes_per_s.map(|rate| rounded(rate / 1e6)),
        "next_limit": verdict.next_limit.map(Cause::name),
        "sentence": verdict.sentence,
        "advice": first,
        "advice_lines": advice,
        "shares": waits,
        "notes": verdict.notes,
    })
}
