//! The results: tables, JSON, the headline.

use serde_json::{Value, json};

use super::near::{Measure, Payload};
use super::plan::{Row, Stack};
use super::stages::Parts;
use super::waiting::Waiting;
use super::{Results, Rows, Sample, Staged};
use crate::stats::{Spread, distinct, rounded, short, size};
use crate::table::Table;
use crate::{LabError, Options, Report, fields, heading};

impl Rows {
    fn spread(&self, value: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(value)).unwrap_or_default()
    }

    /// The row's figure: microseconds of a round trip, or GB/s.
    fn value(&self, sample: &Sample) -> f64 {
        match self.row.measure {
            Measure::Echo { .. } => sample.measured.round_trip.p50_us,
            _ => sample.measured.streamed.gb_per_s(),
        }
    }

    /// Processor seconds per GB of all processes but, where the peer sends, the peer.
    fn cpu_per_gb(&self, sample: &Sample) -> f64 {
        let Sample { measured, servers } = sample;
        let ours = measured.cpu.user + measured.cpu.system + servers.user + servers.system;
        let peer = measured.streamed.peer_cpu_us as f64 / 1e6;
        (ours + peer) / (measured.streamed.bytes as f64 / 1e9).max(1e-9)
    }
}

impl Staged {
    fn part(&self, part: impl Fn(&Parts) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(part)).unwrap_or_default()
    }
}

/// Of each round, the row's value beside that of the kernel for the same measure.
fn ratios(results: &Results, rows: &Rows) -> Option<Spread> {
    let is_same = |other: &Row| {
        other.stack == Stack::Kernel
            && other.waiting == rows.row.waiting
            && other.bytes() == rows.row.bytes()
            && std::mem::discriminant(&other.measure) == std::mem::discriminant(&rows.row.measure)
    };
    let kernel = results.rows.iter().find(|other| is_same(&other.row))?;
    let pairs = rows.samples.iter().zip(&kernel.samples);
    Spread::of(pairs.map(|(ours, theirs)| rows.value(ours) / kernel.value(theirs)))
}

pub(super) fn report(results: &Results, options: &Options) -> Result<Report, LabError> {
    let switch = Spread::of(results.switch_us.iter().copied()).unwrap_or_default();
    let mut text =
        format!("A switch between two processes of one core takes {} us in this run.\n", switch.show());
    text += &round_trips(results);
    text += &streams(results);
    text += &stages(results, switch);
    let pauses = |ms: &[f64]| Spread::of(ms.iter().copied());
    let killed = pauses(&results.killed.with_ms).zip(pauses(&results.killed.without_ms));
    if let Some((with, without)) = killed {
        text += &format!(
            "\nThe driver was killed in {} streams: longest pause of the receiver {} ms (without kills {} ms), \
             connections lost: {}.\n",
            results.killed.with_ms.len(),
            with.show(),
            without.show(),
            results.killed.lost,
        );
    }
    let mut json = heading("packet-send", options);
    json.insert("switch_us".to_owned(), json!(switch));
    let echo_ratio = |stack: Stack, bytes: usize| {
        let rows = results.rows.iter().find(|rows| {
            rows.row.stack == stack
                && rows.row.waiting == Waiting::Spin
                && rows.row.bytes() == bytes
                && matches!(rows.row.measure, Measure::Echo { .. })
        })?;
        Some(ratios(results, rows)?.median)
    };
    for (name, stack, bytes) in [
        ("rtt_ratio_256", Stack::Three, 256),
        ("rtt_ratio_1024", Stack::Three, 1024),
        ("rtt_ratio_256_one_process", Stack::One, 256),
    ] {
        json.insert(name.to_owned(), json!(echo_ratio(stack, bytes)));
    }
    let staged =
        results.staged.iter().find(|staged| staged.bytes == 256 && staged.payload == Payload::InPlace);
    let ipc = staged.map(|staged| staged.part(Parts::ipc).median);
    json.insert("ipc_us_per_send".to_owned(), json!(ipc));
    json.insert("gap_ms_nic".to_owned(), json!(killed.map(|(with, _)| with)));
    json.insert("gap_ms_without_kills".to_owned(), json!(killed.map(|(_, without)| without)));
    json.insert("connections_lost".to_owned(), json!(results.killed.lost));
    json.insert("rows".to_owned(), Value::Array(objects(results)));
    Ok(Report { text, json: Value::Object(fields(Value::Object(json))), figures: Vec::new() })
}

fn round_trips(results: &Results) -> String {
    let mut table = Table::new("round trip | waiting | stack | p50 us | p99 us | of the kernel's");
    for rows in results.rows.iter().filter(|rows| matches!(rows.row.measure, Measure::Echo { .. })) {
        let ratio = ratios(results, rows).map(|ratio| ratio.show()).unwrap_or_default();
        table.row(vec![
            size(rows.row.bytes() as u64),
            rows.row.waiting.name().to_owned(),
            rows.row.stack.name().to_owned(),
            rows.spread(|sample| sample.measured.round_trip.p50_us).show(),
            rows.spread(|sample| sample.measured.round_trip.p99_us).show(),
            ratio,
        ]);
    }
    format!("\n{}", table.render())
}

fn streams(results: &Results) -> String {
    let mut table = Table::new("stream | stack | GB/s | of the kernel's | CPU s per GB");
    for rows in results.rows.iter().filter(|rows| !matches!(rows.row.measure, Measure::Echo { .. })) {
        let ratio = ratios(results, rows).map(|ratio| ratio.show()).unwrap_or_default();
        table.row(vec![
            rows.row.what().to_owned(),
            rows.row.stack.name().to_owned(),
            rows.spread(|sample| rows.value(sample)).show(),
            ratio,
            rows.spread(|sample| rows.cpu_per_gb(sample)).show(),
        ]);
    }
    format!("\n{}", table.render())
}

fn stages(results: &Results, switch: Spread) -> String {
    let mut text = String::new();
    for payload in distinct(results.staged.iter().map(|staged| staged.payload)) {
        let all: Vec<_> = results.staged.iter().filter(|staged| staged.payload == payload).collect();
        let sizes: Vec<_> = all.iter().map(|staged| size(staged.bytes as u64)).collect();
        let how = if payload == Payload::InPlace { "written in place" } else { "copied into the area" };
        let mut table = Table::new(&format!("a send, us, {how} | {}", sizes.join(" | ")));
        for (name, part) in Parts::NAMES {
            let cells = all.iter().map(|staged| staged.part(part).show());
            table.row(std::iter::once(name.to_owned()).chain(cells).collect());
        }
        let in_switches = all.iter().map(|staged| short(staged.part(Parts::ipc).median / switch.median));
        table.row(std::iter::once("hops, in switches".to_owned()).chain(in_switches).collect());
        text += &format!("\n{}", table.render());
    }
    text
}

fn objects(results: &Results) -> Vec<Value> {
    let rows = results.rows.iter().map(|rows| {
        json!({
            "row": rows.row.name(),
            "bytes": rows.row.bytes(),
            "stack": rows.row.stack.name(),
            "waiting": rows.row.waiting.name(),
            "runs": rows.samples.len(),
            "p50_us": rows.spread(|sample| sample.measured.round_trip.p50_us),
            "p99_us": rows.spread(|sample| sample.measured.round_trip.p99_us),
            "gb_per_s": rows.spread(|sample| sample.measured.streamed.gb_per_s()),
            "cpu_s_per_gb": rows.spread(|sample| rounded(rows.cpu_per_gb(sample))),
            "of_the_kernel": ratios(results, rows),
        })
    });
    let staged = results.staged.iter().map(|staged| {
        let parts: serde_json::Map<String, Value> =
            Parts::NAMES.iter().map(|(name, part)| ((*name).to_owned(), json!(staged.part(part)))).collect();
        json!({ "row": staged.name(), "bytes": staged.bytes, "runs": staged.samples.len(), "parts_us": parts })
    });
    rows.chain(staged).collect()
}
