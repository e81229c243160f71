//! `analyze` for people: the verdict first, then what it rests on.

use std::time::Duration;

use monitor::analysis::{FlowReport, Report};
use monitor::command::{Direction, Times, Transfer};
use monitor::event::{Side, Vantage};
use monitor::model::{self, Cause, SURE, Source};

use crate::{output, units};

/// Connections that are shown one by one.
const FLOWS_SHOWN_MAX: usize = 8;
/// Lines of advice against one limit.
const ADVICE_SHOWN_MAX: usize = 6;
/// Share of a connection's data below which a direction has no times of its own: inquiries, not the load.
const MINOR: f64 = 0.01;

pub(super) fn print(report: &Report) {
    for (number, flow) in report.flows.iter().take(FLOWS_SHOWN_MAX).enumerate() {
        if number > 0 {
            output::line("");
        }
        print_flow(flow, report.flows.len() > 1);
    }
    if report.flows.len() > FLOWS_SHOWN_MAX {
        let more = (report.flows.len() - FLOWS_SHOWN_MAX) as u64;
        let of = units::counted(more, "more connection");
        output::line(&format!("\n{of} with less data: --json has them"));
    }
    report.notes.iter().for_each(|note| wrapped("note", note));
}

/// Rates within this part of each other are the same.
const SAME_RATE: f64 = 0.02;

/// Which of two rates is larger, and how much.
fn change(before: f64, after: f64) -> String {
    let (least, most) = (before.min(after), before.max(after));
    if least <= 0.0 {
        return String::new();
    }
    if most <= least * (1.0 + SAME_RATE) {
        return ": as fast".to_owned();
    }
    let faster = if after > before { "the second" } else { "the first" };
    format!(": {faster} is {:.2} times as fast", most / least)
}

/// The verdict after a change, then what is not as it was. `remark` is one of the notes of `after`: what is said first.
pub(super) fn print_change(before: &Report, after: &Report, remark: Option<&str>) {
    let (Some(old), Some(new)) = (before.flows.first(), after.flows.first()) else { return print(after) };
    let (old_rate, new_rate) = (old.verdict.bytes_per_s, new.verdict.bytes_per_s);
    remark.iter().for_each(|remark| wrapped("note", remark));
    let change = change(old_rate, new_rate);
    wrapped("", &format!("{} before, {} after{change}.", units::rate(old_rate), units::rate(new_rate)));
    wrapped("before:", &old.verdict.sentence);
    wrapped("after:", &new.verdict.sentence);
    print_advice(new);
    output::line("");
    let (old, new) = (rows(old), rows(new));
    let value_of = |rows: &[Row], row: &Row| {
        rows.iter().find(|other| other.0 == row.0).map_or_else(|| "-".to_owned(), |row| row.1.clone())
    };
    let added = new.iter().filter(|row| old.iter().all(|other| other.0 != row.0));
    let mut changes = Vec::new();
    for row in old.iter().chain(added) {
        let (one, other) = (value_of(&old, row), value_of(&new, row));
        if one != other {
            changes.push((format!("{} before", row.0), one));
            changes.push(("    after".to_owned(), other));
        }
    }
    lines(&output::pairs(&changes, output::columns()));
    for (when, report) in [("before", before), ("after", after)] {
        if report.flows.len() > 1 {
            let others = units::counted(report.flows.len() as u64 - 1, "connection");
            wrapped(&format!("note, {when}"), &format!("{others} with less data: not compared"));
        }
        for note in report.notes.iter().filter(|note| Some(note.as_str()) != remark) {
            wrapped(&format!("note, {when}"), note);
        }
    }
}

fn print_advice(report: &FlowReport) {
    let verdict = &report.verdict;
    if model::is_for_several(&verdict.advice) {
        output::line(&format!("  {}", model::ENDS_UNKNOWN));
    }
    for cause in [Some(verdict.limit), verdict.also].into_iter().flatten() {
        let lines: Vec<_> = verdict.advice.iter().filter(|advice| advice.cause == cause).collect();
        if Some(cause) == verdict.also && !lines.is_empty() {
            output::line(&format!("  Against {}:", cause.name()));
        }
        for advice in lines.iter().take(ADVICE_SHOWN_MAX) {
            let untried = if advice.is_tried { "" } else { " (not tried by this project)" };
            output::line(&format!("  {}{untried}: {}", advice.system, advice.line));
        }
        if lines.len() > ADVICE_SHOWN_MAX {
            output::line(&format!("  {} more with --json", lines.len() - ADVICE_SHOWN_MAX));
        }
    }
}

fn print_flow(report: &FlowReport, is_one_of_many: bool) {
    if is_one_of_many {
        let flow = &report.flow;
        output::line(&format!("[{}] {} -> {}", flow.id, flow.initiator, flow.target));
    }
    wrapped("", &report.verdict.sentence);
    print_advice(report);
    output::line("");
    let mut rows = rows(report);
    let notes = report.verdict.notes.iter().chain(&report.notes);
    rows.extend(notes.map(|note| ("note".to_owned(), note.clone())));
    lines(&output::pairs(&rows, output::columns()));
}

/// Text with words wrapped at the width of the terminal.
fn wrapped(head: &str, text: &str) {
    let text = output::pairs(&[(head.trim_end().to_owned(), text.to_owned())], output::columns());
    lines(text.trim_start());
}

fn lines(text: &str) {
    text.lines().for_each(output::line);
}

/// A name and its value.
type Row = (String, String);

fn rows(report: &FlowReport) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    let flow = &report.flow;
    let name = |name: &Option<String>| name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    row("initiator", flow.initiator.clone() + &name(&flow.initiator_name));
    row("target", flow.target.clone() + &name(&flow.target_name));
    row(if is_sampled(report) { "sampled" } else { "captured" }, captured(report));
    row("data", data(report));
    row("round trip", round_trip(report));
    let load = report.evidence.data_bytes as f64;
    for (transfer, name, of_one) in [(Transfer::Write, "writes", "write"), (Transfer::Read, "reads", "read")]
    {
        let direction = report.summary.direction(transfer);
        let is_minor = (direction.bytes as f64) < load * MINOR;
        if direction.count > 0 {
            row(name, commands(direction));
        }
        if direction.count > 0 && !is_minor {
            row(&format!("{of_one} times"), times(direction, transfer));
            if direction.r2t_bytes.most() > 0 {
                row("R2Ts", r2ts(direction));
            }
        }
    }
    row("in flight", in_flight(report));
    if !is_sampled(report) || report.evidence.path.data_packets > 0 {
        row("packets", packets(report));
    }
    if !flow.negotiated.is_empty() {
        let keys: Vec<_> = flow.negotiated.iter().map(|(key, value)| format!("{key}={value}")).collect();
        row("negotiated", keys.join(" "));
    }
    let shares = shares(report);
    if !shares.is_empty() {
        row("time went to", shares);
    }
    if report.verdict.limit != Cause::Unknown {
        row("confidence", confidence(report.verdict.confidence));
    }
    rows
}

/// Whether no packet was seen.
pub(super) fn is_sampled(report: &FlowReport) -> bool {
    matches!(report.evidence.source, Source::Probe(_))
}

fn confidence(confidence: f64) -> String {
    let doubt = if confidence < SURE { ": another limit can explain what was seen" } else { "" };
    format!("{confidence:.2} of 1{doubt}")
}

fn captured(report: &FlowReport) -> String {
    let place = match report.flow.vantage {
        Vantage::At(Side::Initiator) => "at the initiator",
        Vantage::At(Side::Target) => "at the target",
        Vantage::Between => "between the ends",
        Vantage::Unknown => "at an unknown place",
    };
    let seconds = time(report.seconds);
    if is_sampled(report) {
        return format!("{place} for {seconds}, without packets");
    }
    format!("{place}, {} in {seconds}", units::counted(report.flow.frames, "frame"))
}

/// What the rate of the verdict is of: its data, by its time.
fn data(report: &FlowReport) -> String {
    let evidence = &report.evidence;
    let end = if evidence.sender == Side::Initiator { "initiator" } else { "target" };
    format!(
        "{} from the {end} in the {} that are judged",
        units::bytes(evidence.data_bytes),
        time(evidence.seconds)
    )
}

/// A time in the unit that leaves one to three digits before the point.
fn time(seconds: f64) -> String {
    if (0.01..1.0).contains(&seconds) {
        let ms = seconds * 1e3;
        return if ms < 99.95 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") };
    }
    units::duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

fn round_trip(report: &FlowReport) -> String {
    let path = &report.evidence.path;
    let Some(rtt) = path.rtt_s else { return "unknown".to_owned() };
    match path.rtt_loaded_s.filter(|loaded| *loaded > rtt * 1.1) {
        Some(loaded) => format!("{}, under load {}", time(rtt), time(loaded)),
        None => time(rtt),
    }
}

fn commands(direction: &Direction) -> String {
    let failed = match direction.failed {
        0 => String::new(),
        failed => format!(", {failed} failed"),
    };
    format!(
        "{} of {}, {} outstanding (at most {}){failed}",
        direction.count,
        units::bytes(direction.sizes.median()),
        direction.depths.median(),
        direction.depths.most(),
    )
}

fn times(direction: &Direction, transfer: Transfer) -> String {
    let of = |times: &Times| format!("{} [{}]", time(times.seconds(0.5)), time(times.seconds(0.99)));
    let (ta, tb, tc) = (of(&direction.ta), of(&direction.tb), of(&direction.tc));
    let target = time(direction.target.seconds(0.5));
    let parts = match transfer {
        Transfer::Write => format!("first to last data (Ta) {ta}, then to the response (Tb) {tb}"),
        Transfer::Read => format!("command to first data (Tb) {tb}, first to last data (Ta) {ta}"),
    };
    format!(
        "median [99th percentile]: {parts}, then to the next command (Tc) {tc}; the target itself {target}"
    )
}

fn r2ts(direction: &Direction) -> String {
    let rounds = direction.r2t_rounds.median();
    format!(
        "each permits {}; a write waits {rounds} time{} for one, and sends {} without",
        units::bytes(direction.r2t_bytes.median()),
        if rounds == 1 { "" } else { "s" },
        units::bytes(direction.unsolicited.median())
    )
}

fn in_flight(report: &FlowReport) -> String {
    let caps = &report.evidence.caps;
    let bytes = |value: Option<u64>| value.map_or("unknown".to_owned(), units::bytes);
    format!("at most {}, receive window {}", bytes(caps.in_flight_max_bytes), bytes(caps.window_bytes))
}

fn packets(report: &FlowReport) -> String {
    let path = &report.evidence.path;
    let mut text = format!("{} with data, {} retransmitted", path.data_packets, path.retransmitted_packets);
    if path.spurious_packets > 0 {
        text += &format!(" ({} of them needlessly)", path.spurious_packets);
    }
    if path.timeouts > 0 {
        text += &format!(", {}", units::counted(path.timeouts, "timeout"));
    }
    if path.capture_lost_bytes > 0 {
        text += &format!(", {} missing in the capture", units::bytes(path.capture_lost_bytes));
    }
    text
}

fn shares(report: &FlowReport) -> String {
    let waits = &report.verdict.waits;
    let total = waits.total();
    let shares = waits.ranked().into_iter().map(|(cause, time)| (cause.name(), time / total * 100.0));
    let shares = shares.filter(|(_, share)| *share >= 0.5);
    shares.map(|(name, share)| format!("{name} {share:.0} %")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_of_two_is_named() {
        for (before, after, expected) in [
            (13e6, 26e6, ": the second is 2.00 times as fast"),
            (26e6, 13e6, ": the first is 2.00 times as fast"),
            (13e6, 13.1e6, ": as fast"),
            (0.0, 13e6, ""),
        ] {
            assert_eq!(change(before, after), expected);
        }
    }

    #[test]
    fn a_doubt_is_said_in_words() {
        assert_eq!(confidence(0.93), "0.93 of 1");
        assert_eq!(confidence(0.6), "0.60 of 1: another limit can explain what was seen");
    }
}
