//! The results: tables and JSON.

use serde_json::{Map, Value, json};

use super::Staged;
use super::hand::Mode;
use super::headline::headline;
use super::near::Payload;
use super::parts::{PAPER_SENDS, Parts, ROWS, Who};
use super::plan::Stack;
use super::plots;
use super::results::Results;
use super::verdicts::{bars, verdicts};
use crate::stats::{Spread, rounded, short, size};
use crate::table::Table;
use crate::{LabError, Options, Report, heading};

pub(super) fn report(results: &Results, options: &Options) -> Result<Report, LabError> {
    let switch = results.switch();
    let verdicts = verdicts(results);
    let mut text =
        format!("A switch between two processes of one core takes {} us in this run.\n", switch.show());
    for part in [round_trips(results), streams(results), table_3(results, switch), whole_sends(results)] {
        text += &part;
    }
    text += &hand_overs(results);
    text += &copies(results);
    text += &results.kills.text();
    text += &results.lossy.text();
    text += &paragraph(&bars(results));
    text += "\n";
    for verdict in &verdicts {
        text += &format!("- {verdict}\n");
    }
    let mut json = heading("packet-send", options);
    json.extend(headline(results));
    json.insert("verdicts".to_owned(), json!(verdicts));
    json.insert("rows".to_owned(), Value::Array(objects(results)));
    Ok(Report { text, json: Value::Object(json), figures: plots::all(results)? })
}

fn show(spread: Option<Spread>) -> String {
    spread.map(|spread| spread.show()).unwrap_or_default()
}

/// Nothing, if the table has no row.
fn paragraph(table: &Table) -> String {
    if table.is_empty() { String::new() } else { format!("\n{}", table.render()) }
}

fn round_trips(results: &Results) -> String {
    let heading = "round trip | waiting | stack | p50 us | p99 us | of the kernel's";
    let mut table = Table::new(heading);
    for rows in results.rows.iter().filter(|rows| rows.is_echo()) {
        table.row(vec![
            size(rows.row.bytes() as u64),
            rows.row.waits(),
            rows.row.stack.name().to_owned(),
            rows.spread(|sample| sample.measured.round_trip.p50_us).show(),
            rows.spread(|sample| sample.measured.round_trip.p99_us).show(),
            show(results.ratios(rows)),
        ]);
    }
    paragraph(&table)
}

fn streams(results: &Results) -> String {
    let mut table = Table::new("stream | stack | GB/s | of the kernel's | CPU s per GB | of the kernel's");
    for rows in results.rows.iter().filter(|rows| !rows.is_echo()) {
        table.row(vec![
            rows.row.what().to_owned(),
            rows.row.stack.name().to_owned(),
            rows.spread(|sample| rows.value(sample)).show(),
            show(results.ratios(rows)),
            rows.spread(|sample| rows.cpu_per_gb(sample)).show(),
            show(results.cpu_ratios(rows)),
        ]);
    }
    let mut text = paragraph(&table);
    if let Some(stream) = results.stream_ipc() {
        text += &format!(
            "\nIn a stream of 64 KiB, written in place, a send has {} switches between processes; its hops take {} ns, {} switches.\n",
            stream.switches.show(),
            stream.ns.show(),
            stream.in_switches.show(),
        );
    }
    text
}

/// Table 3: the paper's at 256 B, and a column for each of our sizes.
fn table_3(results: &Results, switch: Spread) -> String {
    let mut text = String::new();
    for (stack, payload) in
        [(Stack::Three, Payload::InPlace), (Stack::Three, Payload::Copied), (Stack::Kernel, Payload::Copied)]
    {
        let all: Vec<_> = results
            .staged
            .iter()
            .filter(|staged| (staged.stack, staged.payload) == (stack, payload))
            .collect();
        let Some(first) = all.first() else { continue };
        let system = usize::from(stack == Stack::Kernel);
        let paper = ["AnT", "FreeBSD"][system];
        let sizes: Vec<_> = all.iter().map(|staged| size(staged.bytes as u64)).collect();
        let mut table =
            Table::new(&format!("a send, us, {} | {paper}, 256 B | {}", first.how(), sizes.join(" | ")));
        let mut add = |name: String, paper: Option<f64>, part: &dyn Fn(&Parts) -> f64| {
            let cells = all.iter().map(|staged| show(staged.part(part)));
            let paper = paper.map(short).unwrap_or_default();
            table.row([name, paper].into_iter().chain(cells).collect());
        };
        for (at, row) in ROWS.iter().enumerate() {
            let is_seen = match row.who {
                Who::Both => true,
                Who::Processes => system == 0,
                Who::Kernel => system == 1,
            };
            if !is_seen {
                continue;
            }
            let name = match (system, row.name) {
                (1, "packet creation") => "packet creation, TCP and IP layer".to_owned(),
                (1, "TCP layer" | "IP layer") => format!("{} (above)", row.name),
                (_, name) => name.to_owned(),
            };
            let is_above = name.ends_with("(above)");
            add(name, row.paper[system], &|parts| if is_above { f64::NAN } else { parts.row(at) });
        }
        if system == 0 {
            add("the three hops".to_owned(), Some(15.15), &Parts::ipc);
            add("the three hops, in switches".to_owned(), None, &|parts| parts.ipc() / switch.median);
            add("all but the hops".to_owned(), Some(8.43), &Parts::without_ipc);
        }
        add("until the frame has left, without the peer's reception".to_owned(), None, &Parts::handed);
        add("whole send".to_owned(), Some(PAPER_SENDS[0].1[system]), &|parts| parts.whole);
        if system == 0 {
            add("until released, as without direct return".to_owned(), None, &|parts| parts.released);
        }
        add("what a note takes, subtracted".to_owned(), None, &|parts| parts.note);
        text += &format!("\n{}", table.render());
    }
    text
}

fn whole_sends(results: &Results) -> String {
    let mut table = Table::new(
        "whole send | ours, us | kernel, us | ratio | gap, us | paper: AnT | FreeBSD | ratio | gap",
    );
    for staged in &results.staged {
        let Some(ratio) = of_kernel(results, staged, |ours, kernel| ours / kernel) else { continue };
        let paper = PAPER_SENDS.iter().find(|(bytes, _)| *bytes == staged.bytes).map(|(_, us)| *us);
        let of = |value: &dyn Fn([f64; 2]) -> f64| paper.map(|us| short(value(us))).unwrap_or_default();
        let kernel = results.staged(Stack::Kernel, Payload::Copied, staged.bytes);
        table.row(vec![
            format!("{}, {}", size(staged.bytes as u64), staged.how()),
            show(staged.part(|parts| parts.whole)),
            show(kernel.and_then(|kernel| kernel.part(|parts| parts.whole))),
            ratio.show(),
            show(of_kernel(results, staged, |ours, kernel| ours - kernel)),
            of(&|us| us[0]),
            of(&|us| us[1]),
            of(&|us| us[0] / us[1]),
            of(&|us| us[0] - us[1]),
        ]);
    }
    paragraph(&table)
}

fn of_kernel(results: &Results, staged: &Staged, value: impl Fn(f64, f64) -> f64) -> Option<Spread> {
    let kernel = results.staged(Stack::Kernel, Payload::Copied, staged.bytes)?;
    if staged.stack == Stack::Kernel {
        return None;
    }
    let pairs = staged.samples.iter().zip(&kernel.samples);
    Spread::of(pairs.map(|(ours, kernel)| value(ours.whole, kernel.whole)))
}

fn hand_overs(results: &Results) -> String {
    if results.handings.is_empty() {
        return String::new();
    }
    let turns =
        plots::modes(results, |handed| handed.turn_us).table("an area handed over twice and back, us");
    let first = plots::modes(results, |handed| handed.first_access_us).table("first access, us");
    let wires = plots::wires(results);
    let wires = if wires.lines.is_empty() {
        String::new()
    } else {
        format!("\n{}", wires.table("added by processes, % of a round trip (wire computed)"))
    };
    format!("\n{turns}\n{first}{wires}")
}

fn copies(results: &Results) -> String {
    if results.copies.is_empty() {
        return String::new();
    }
    let mut text = "\nCopies a send: 0 written in place, 1 into the area (by the application); the kernel 1. By counters:\n".to_owned();
    for copies in &results.copies {
        text += &format!("- {}", copies.text());
    }
    text
}

fn objects(results: &Results) -> Vec<Value> {
    let rows = results.rows.iter().map(|rows| {
        json!({
            "row": rows.row.name(),
            "bytes": rows.row.bytes(),
            "stack": rows.row.stack.name(),
            "waiting": rows.row.waits(),
            "runs": rows.samples.len(),
            "p50_us": rows.spread(|sample| sample.measured.round_trip.p50_us),
            "p99_us": rows.spread(|sample| sample.measured.round_trip.p99_us),
            "gb_per_s": rows.spread(|sample| sample.measured.streamed.gb_per_s()),
            "cpu_s_per_gb": rows.spread(|sample| rounded(rows.cpu_per_gb(sample))),
            "of_the_kernel": results.ratios(rows),
            "cpu_of_the_kernel": (!rows.is_echo()).then(|| results.cpu_ratios(rows)).flatten(),
        })
    });
    let staged = results.staged.iter().map(|staged| {
        let parts: Map<String, Value> = ROWS
            .iter()
            .enumerate()
            .map(|(at, row)| (row.name.to_owned(), json!(staged.part(|parts| parts.row(at)))))
            .collect();
        json!({
            "row": staged.name(),
            "bytes": staged.bytes,
            "stack": staged.stack.name(),
            "runs": staged.samples.len(),
            "parts_us": parts,
            "hops_us": staged.part(Parts::ipc),
            "handed_us": staged.part(Parts::handed),
            "reception_share_of_nic_io": staged.part(|parts| parts.reception_share.unwrap_or(f64::NAN)),
            "whole_us": staged.part(|parts| parts.whole),
            "released_us": staged.part(|parts| parts.released),
            "note_us": staged.part(|parts| parts.note),
            "whole_of_the_kernel": of_kernel(results, staged, |ours, kernel| ours / kernel),
        })
    });
    let handings = results.handings.iter().map(|handing| {
        let of = |mode: Mode| {
            json!({
                "turn_us": handing.of(mode, |handed| handed.turn_us),
                "first_access_us": handing.of(mode, |handed| handed.first_access_us),
            })
        };
        let modes: Map<String, Value> = Mode::ALL.iter().map(|&mode| (mode.to_string(), of(mode))).collect();
        json!({ "row": handing.name(), "bytes": handing.bytes, "runs": handing.samples.len(), "modes": modes })
    });
    let wires = plots::wires(results).lines.into_iter().map(|line| {
        json!({ "row": format!("added by processes, percent of a round trip of {}, by wire", line.name), "percent": line.values })
    });
    let copies = results.copies.iter().map(super::copies::Copies::object);
    let mut all: Vec<Value> = rows.chain(staged).chain(handings).chain(wires).chain(copies).collect();
    all.extend(results.kills.objects());
    all.extend(results.lossy.objects());
    all
}
