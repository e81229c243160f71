//! The results: tables, JSON, the headline.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::distance::{self, Copies};
use super::plan::{Row, SEND_BUFFER};
use super::watched::Watched;
use super::{Rate, environment, plots};
use crate::stats::{Spread, distinct, rounded, short, size};
use crate::table::{Series, Table};
use crate::{LabError, Options, Report, fields, heading};

/// Share of bursts that pass a check; `None` without bursts.
fn share<T>(bursts: &[T], passes: impl Fn(&T) -> bool) -> Option<f64> {
    let count = bursts.iter().filter(|burst| passes(burst)).count();
    (!bursts.is_empty()).then(|| rounded(count as f64 / bursts.len() as f64))
}

/// Figures of the bursts of a case.
pub(super) struct Bursts {
    pub(super) per_write: f64,
    pub(super) packets: Option<Spread>,
    pub(super) bytes: Option<Spread>,
    pub(super) interval_ms: Option<Spread>,
    /// Share of those within a write before which nothing but acknowledgements without data arrived.
    acks_alone: Option<f64>,
    /// Share of those that begin with a WRITE before which everything was acknowledged.
    all_back: Option<f64>,
}

impl Bursts {
    pub(super) fn of(watched: &Watched) -> Self {
        let bursts = watched.bursts();
        // Whole writes; for a socket whole bursts: the first and the last may be cut off by the period.
        let first = bursts.iter().position(|burst| burst.begins_with_write);
        let last = bursts.iter().rposition(|burst| burst.begins_with_write);
        let (first, last) = first.zip(last).unwrap_or((1, bursts.len().saturating_sub(1)));
        let whole = bursts.get(first..last).unwrap_or_default();
        let (with_write, within): (Vec<_>, Vec<_>) = whole.iter().partition(|burst| burst.begins_with_write);
        // From the last burst of a write to the next write it is another wait.
        let is_followed = |index: &usize| bursts.get(index + 1).is_some_and(|next| !next.begins_with_write);
        let interval = (first..last)
            .filter(is_followed)
            .filter_map(|index| bursts[index].interval_ns)
            .map(|ns| ns as f64 / 1e6);
        Self {
            per_write: rounded(whole.len() as f64 / with_write.len().max(1) as f64),
            packets: Spread::of(whole.iter().map(|burst| burst.count as f64)),
            bytes: Spread::of(whole.iter().map(|burst| burst.bytes as f64)),
            interval_ms: Spread::of(interval),
            acks_alone: share(&within, |burst| burst.before.bare_acks > 0 && burst.before.others == 0),
            all_back: share(&with_write, |burst| burst.in_flight_before == 0),
        }
    }
}

impl Rate {
    fn mb_per_s(&self) -> Spread {
        Spread::of(self.samples.iter().map(|wrote| wrote.mb_per_s())).unwrap_or_default()
    }

    fn object(&self) -> Value {
        json!({
            "row": self.row.name(),
            "rtt_ms": self.rtt.as_millis() as u64,
            "block": self.block,
            "congestion_control": self.row.congestion,
            "obtained": self.row.obtained(),
            "runs": self.samples.len(),
            "writes": self.samples.iter().map(|wrote| wrote.writes).sum::<usize>(),
            "mb_per_s": self.mb_per_s(),
            "late_max_ms": rounded(self.late_ms),
        })
    }
}

impl Watched {
    /// Packets that the congestion window would need to hold a block.
    fn cwnd_needed(&self) -> Option<f64> {
        let mss = self.sampled(|sample| sample.mss_bytes)?;
        Some((f64::from(self.block) / mss.max(1.0)).ceil())
    }

    fn object(&self) -> Value {
        let bursts = Bursts::of(self);
        let sleeps: Map<String, Value> = self
            .sleeps()
            .into_iter()
            .map(|(place, share)| (place.unwrap_or("running").to_owned(), json!(rounded(share))))
            .collect();
        json!({
            "row": self.row.name(),
            "rtt_ms": self.rtt.as_millis() as u64,
            "block": self.block,
            "obtained": "capture between bottleneck and delay, beside the initiator; sampled: sock_diag and wchan every millisecond",
            "writes": self.commands.len(),
            "ta_ms": self.ta(),
            "tb_ms": self.tb(),
            "tc_ms": self.tc(),
            "rtt_measured_ms": rounded(self.rtt_ns() as f64 / 1e6),
            "bursts": {
                "per_write": bursts.per_write,
                "packets": bursts.packets,
                "bytes": bursts.bytes,
                "start_to_start_ms": bursts.interval_ms,
                "acks_alone_before": bursts.acks_alone,
                "all_acknowledged_before_write": bursts.all_back,
            },
            "in_flight_max_bytes": self.trace.in_flight_max(),
            "repeated_bytes": self.trace.repeated_bytes,
            "peer_window_min_bytes": self.trace.acks.iter().filter_map(|ack| ack.window_bytes).min(),
            "sampled": {
                "samples": self.observed.len(),
                "cwnd_segments": self.sampled(|sample| sample.cwnd_segments),
                "cwnd_segments_needed": self.cwnd_needed(),
                "send_buffer_bytes": self.sampled(|sample| sample.send_buffer_bytes),
                "send_queue_bytes_max": self.observed.iter().filter_map(|one| one.sample.send_queue_bytes).max(),
                "unsent_bytes_max": self.observed.iter().filter_map(|one| one.sample.notsent_bytes).max(),
                "sleeps_in": sleeps,
            },
            "verdict": self.verdict.as_ref().filter(|_| self.is_iscsi()).map(|verdict| json!({
                "limit": verdict.limit,
                "confidence": rounded(verdict.confidence),
                "sentence": verdict.sentence,
            })),
            "late_max_ms": rounded(self.late_ms),
        })
    }
}

/// MB/s of a row at a round trip.
fn rate_of(rates: &[Rate], row: &Row, rtt: Duration) -> Option<f64> {
    let found = rates.iter().find(|rate| rate.row == *row && rate.rtt == rtt)?;
    Some(found.mb_per_s().median)
}

/// The figures that answer the paper's question; null if not measured.
fn headline(rates: &[Rate], cases: &[Watched]) -> Map<String, Value> {
    let rtts = distinct(rates.iter().map(|rate| rate.rtt));
    let ends = rtts.iter().min().zip(rtts.iter().max());
    let kept = |row: &Row| {
        let (least, most) = ends?;
        Some(rounded(rate_of(rates, row, *most)? / rate_of(rates, row, *least)?))
    };
    let growth = |row: Row| {
        let block = cases.iter().map(|case| case.block).max()?;
        let of_row: Vec<&Watched> = cases
            .iter()
            .filter(|case| case.row == row && case.block == block && case.ta().is_some())
            .collect();
        let first = of_row.iter().min_by_key(|case| case.rtt)?;
        let last = of_row.iter().max_by_key(|case| case.rtt)?;
        let more_rtt = (last.rtt.as_secs_f64() - first.rtt.as_secs_f64()) * 1e3;
        Some(rounded((last.ta()?.median - first.ta()?.median) / more_rtt)).filter(|growth| growth.is_finite())
    };
    fields(json!({
        "rate_kept_at_longest_rtt": {
            "as_open_iscsi": kept(&Row::PAPER),
            "as_open_iscsi_freed": kept(&Row::FREED),
            "socket": kept(&Row::SOCKET),
        },
        "ta_ms_per_rtt_ms": { "as_open_iscsi": growth(Row::PAPER), "as_open_iscsi_freed": growth(Row::FREED) },
    }))
}

pub(super) fn report(
    copies: &Copies,
    rates: &[Rate],
    cases: &[Watched],
    options: &Options,
) -> Result<Report, LabError> {
    let mut object = heading("wan-write", options);
    object.extend(headline(rates, cases));
    object.extend(distance::headline(copies));
    object.insert("environment".to_owned(), environment::json());
    object.insert("rows".to_owned(), distance::rows(copies).chain(rates.iter().map(Rate::object)).collect());
    object.insert("cases".to_owned(), cases.iter().map(Watched::object).collect());
    let text = [
        distance::text(copies),
        text_of_environment(),
        text_of_rates(rates),
        text_of_times(cases),
        text_of_bursts(cases),
        text_of_sleeps(cases),
        text_of_verdict(cases),
    ];
    let figures = [distance::figures(copies)?, plots::all(rates, cases)?].concat();
    Ok(Report { text: text.concat(), json: Value::Object(object), figures })
}

fn text_of_environment() -> String {
    let mut table = Table::new("environment (table 1) | ");
    for (name, value) in environment::table() {
        table.row(vec![name.to_owned(), value]);
    }
    format!("{}\n", table.render())
}

/// Rates by round trip: the lines of figure 4, under these names.
pub(super) fn by_rtt(rates: &[Rate], name: fn(&Row) -> String) -> Series {
    let places = distinct(rates.iter().map(|rate| rate.rtt));
    let cells: Vec<_> = rates.iter().map(|rate| (name(&rate.row), rate.rtt, rate.mb_per_s())).collect();
    Series::new(&places, |rtt| format!("{} ms", rtt.as_millis()), &cells)
}

fn text_of_rates(rates: &[Rate]) -> String {
    let Some(first) = rates.first() else { return String::new() };
    let title = format!("### MB/s by round trip, writes of {} (figure 4)", size(first.block));
    format!("{title}\n\n{}\n", by_rtt(rates, Row::name).table("row"))
}

fn show(spread: Option<Spread>) -> String {
    spread.map(|spread| spread.show()).unwrap_or_default()
}

fn text_of_times(cases: &[Watched]) -> String {
    let mut table =
        Table::new("row | block | RTT ms | measured | writes | Ta ms | Tb ms | Tc ms | path late ms at most");
    let cases: Vec<&Watched> = cases.iter().filter(|case| case.is_iscsi()).collect();
    if cases.is_empty() {
        return String::new();
    }
    for case in cases {
        table.row(vec![
            case.row.name(),
            size(case.block),
            case.rtt.as_millis().to_string(),
            short(case.rtt_ns() as f64 / 1e6),
            case.commands.len().to_string(),
            show(case.ta()),
            show(case.tb()),
            show(case.tc()),
            short(case.late_ms),
        ]);
    }
    format!(
        "### A write: first to last data packet (Ta), to the response without the round trip (Tb), to the next write (Tc) \
         (figures 7, 8)\n\n{}\n",
        table.render()
    )
}

fn text_of_bursts(cases: &[Watched]) -> String {
    if cases.is_empty() {
        return String::new();
    }
    let mut table = Table::new(
        "row | block | RTT ms | bursts of a write | packets | KiB | start to start ms | ACKs alone before | all back before a \
         WRITE | in flight at most KiB | send buffer KiB | cwnd (needed)",
    );
    let percent =
        |share: Option<f64>| share.map(|share| format!("{:.0} %", share * 100.0)).unwrap_or_default();
    for case in cases {
        let bursts = Bursts::of(case);
        let kib = |bytes: Option<f64>| bytes.map(|bytes| short(bytes / 1024.0)).unwrap_or_default();
        let number = |value: Option<f64>| value.map(|value| format!("{value:.0}")).unwrap_or_default();
        let cwnd = case.sampled(|sample| sample.cwnd_segments);
        table.row(vec![
            case.row.name(),
            if case.is_iscsi() { size(case.block) } else { String::new() },
            case.rtt.as_millis().to_string(),
            if case.is_iscsi() { short(bursts.per_write) } else { String::new() },
            number(bursts.packets.map(|packets| packets.median)),
            kib(bursts.bytes.map(|bytes| bytes.median)),
            show(bursts.interval_ms),
            percent(bursts.acks_alone),
            percent(bursts.all_back),
            kib(Some(case.trace.in_flight_max() as f64)),
            kib(case.sampled(|sample| sample.send_buffer_bytes)),
            format!("{} ({})", number(cwnd), number(case.cwnd_needed())),
        ]);
    }
    format!(
        "### Bursts (figures 9, 10, section 5) and the socket (figures 11 to 16; send buffer and cwnd are sampled)\n\n{}\n",
        table.render()
    )
}

fn text_of_sleeps(cases: &[Watched]) -> String {
    let mut table = Table::new("row | RTT ms | where the writer is, share of the samples");
    let shown: Vec<&Watched> = cases.iter().filter(|case| plots::is_of_figures(case)).collect();
    if shown.is_empty() {
        return String::new();
    }
    for case in shown {
        let places: Vec<String> = case
            .sleeps()
            .into_iter()
            .filter(|(_, share)| *share >= 0.005)
            .map(|(place, share)| format!("{} {:.0} %", place.unwrap_or("running"), share * 100.0))
            .collect();
        table.row(vec![case.row.name(), case.rtt.as_millis().to_string(), places.join(", ")]);
    }
    format!("### Where the sender sleeps (figure 17, sampled)\n\n{}\n", table.render())
}

/// The paper's question, answered from the case of its figures.
fn text_of_verdict(cases: &[Watched]) -> String {
    let Some(case) = cases.iter().find(|case| case.row == Row::PAPER && plots::is_of_figures(case)) else {
        return String::new();
    };
    let in_flight = case.trace.in_flight_max() as f64;
    let (Some(buffer), Some(cwnd), Some(mss), Some(needed)) = (
        case.sampled(|sample| sample.send_buffer_bytes),
        case.sampled(|sample| sample.cwnd_segments),
        case.sampled(|sample| sample.mss_bytes),
        case.cwnd_needed(),
    ) else {
        return String::new();
    };
    let window = cwnd * mss;
    let limit = if in_flight < 0.9 * window { "the send buffer" } else { "the congestion window" };
    let verdict = case.verdict.as_ref().map(|verdict| format!("\nThe analyser: {}\n", verdict.sentence));
    let verdict = verdict.unwrap_or_default();
    format!(
        "At {} ms at most {} KiB are in flight, of a send buffer of {} KiB (SO_SNDBUF {SEND_BUFFER}, doubled), while the congestion \
         window permits {} KiB ({cwnd:.0} packets; a block needs {needed:.0}): the limit is {limit}.\n{verdict}",
        case.rtt.as_millis(),
        short(in_flight / 1024.0),
        short(buffer / 1024.0),
        short(window / 1024.0),
    )
}
