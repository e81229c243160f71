//! Both ends ours over one connection: `hikyaku bench path` against `hikyaku serve`, beside one iperf3 stream, tgt under
//! `qemu-img bench`, and a bare TCP round trip. Rows of a group are interleaved with their peers. Rows on a file are
//! flushed and verified in every run; rows on memory are ceilings.

mod calls;
mod memory;
mod pong;
pub(in crate::bench) mod run;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::bars::{Bar, Bound, verdict};
use super::peers::{QemuRun, Shape, iperf, qemu_img_bench, seconds};
use super::{Common, Spread, filter_rows};
use crate::evidence;
use crate::harness::process::Surroundings;
use crate::harness::{Context, Disk, Served, Tgt};
pub(super) use pong::pong;
use run::{Ours, Sample, Storage, Used};

/// The processor that both ends share where they share one.
const CORE: usize = 0;

/// How a cell is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Ours, on the target of this number.
    Ours(usize, Storage),
    /// tgt under `qemu-img bench`, on the file of the first target.
    Tgt,
    /// One stream of iperf3.
    Stream,
    /// A bare TCP round trip on one processor.
    RoundTrip,
}

/// One row of a table.
#[derive(Clone, Debug)]
struct Cell {
    name: String,
    way: Way,
    shape: Shape,
}

/// How two rows are compared.
#[derive(Clone, Copy, Debug)]
enum Compare {
    /// Median of one by that of the other.
    Ratio,
    /// Microseconds of one operation more, on average.
    MoreMicroseconds,
    /// The row alone, operations per second.
    PerSecond,
}

/// What a row must reach.
struct Claim {
    row: String,
    peer: String,
    what: &'static str,
    compare: Compare,
    bound: Bound,
}

/// Rows that are interleaved, the targets they run on, and what they must reach.
struct Group {
    name: &'static str,
    targets: Vec<Surroundings>,
    cells: Vec<Cell>,
    claims: Vec<Claim>,
}

fn shape(write: bool, block: u64, depth: u32) -> Shape {
    Shape { write, block, depth }
}

fn name(storage: Storage, shape: Shape) -> String {
    let storage = if storage == Storage::File { "file" } else { "mem" };
    format!("{storage}-{}", shape.name())
}

fn ours(target: usize, storage: Storage, shape: Shape) -> Cell {
    Cell { name: name(storage, shape), way: Way::Ours(target, storage), shape }
}

fn claim(row: &str, peer: &str, what: &'static str, compare: Compare, bound: Bound) -> Claim {
    Claim { row: row.to_owned(), peer: peer.to_owned(), what, compare, bound }
}

fn groups() -> Vec<Group> {
    vec![stream(), small(), one_core(), spin(), backends()]
}

fn stream() -> Group {
    let mut cells =
        vec![Cell { name: "iperf3".to_owned(), way: Way::Stream, shape: shape(false, 128 << 10, 1) }];
    for write in [false, true] {
        for storage in [Storage::Memory, Storage::File] {
            cells.push(ours(0, storage, shape(write, 1 << 20, 32)));
        }
    }
    let ratio = |row, least| claim(row, "iperf3", "ratio to iperf3", Compare::Ratio, Bound::AtLeast(least));
    let claims = vec![ratio("mem-read-1M-qd32", 1.2), ratio("file-read-1M-qd32", 1.0)];
    Group { name: "stream", targets: vec![Surroundings::default()], cells, claims }
}

fn small() -> Group {
    let (mut cells, mut claims) = (Vec::new(), Vec::new());
    for write in [false, true] {
        let shape = shape(write, 4 << 10, 32);
        let (file, tgt) = (name(Storage::File, shape), format!("tgt-{}", shape.name()));
        cells.push(ours(0, Storage::Memory, shape));
        cells.push(ours(0, Storage::File, shape));
        cells.push(Cell { name: tgt.clone(), way: Way::Tgt, shape });
        claims.push(claim(&file, &tgt, "ratio to tgt", Compare::Ratio, Bound::AtLeast(4.0)));
        claims.push(claim(&file, "", "operations per second", Compare::PerSecond, Bound::AtLeast(200_000.0)));
    }
    Group { name: "small", targets: vec![Surroundings::default()], cells, claims }
}

fn one_core() -> Group {
    let (mut cells, mut claims) = (Vec::new(), Vec::new());
    for write in [false, true] {
        let shape = shape(write, 4 << 10, 1);
        let bare = format!("tcp-{}", shape.name());
        cells.push(Cell { name: bare.clone(), way: Way::RoundTrip, shape });
        for storage in [Storage::Memory, Storage::File] {
            cells.push(ours(0, storage, shape));
            claims.push(claim(
                &name(storage, shape),
                &bare,
                "us more than bare TCP",
                Compare::MoreMicroseconds,
                Bound::AtMost(3.0),
            ));
        }
    }
    let pinned = Surroundings { core: Some(CORE), ..Surroundings::default() };
    Group { name: "one-core", targets: vec![pinned], cells, claims }
}

/// The same with spinning as it is and switched off.
fn spin() -> Group {
    let mut cells = Vec::new();
    for write in [false, true] {
        for (target, word) in [(0, "default"), (1, "no-spin")] {
            let cell = ours(target, Storage::Memory, shape(write, 4 << 10, 1));
            cells.push(Cell { name: format!("{word}-{}", cell.name), ..cell });
        }
    }
    let targets = vec![Surroundings::default(), Surroundings::variable("HIKYAKU_SPIN", "0")];
    Group { name: "spin", targets, cells, claims: Vec::new() }
}

fn backends() -> Group {
    let (mut cells, mut claims) = (Vec::new(), Vec::new());
    for write in [false, true] {
        for block in [64 << 10, 256 << 10, 1 << 20] {
            let shape = shape(write, block, 32);
            for (target, word) in [(0, "uring"), (1, "portable")] {
                let cell = ours(target, Storage::File, shape);
                cells.push(Cell { name: format!("{word}-{}", cell.name), ..cell });
            }
            let row = |word: &str| format!("{word}-{}", name(Storage::File, shape));
            let bound = Bound::AtLeast(0.7);
            claims.push(claim(&row("portable"), &row("uring"), "ratio to io_uring", Compare::Ratio, bound));
        }
    }
    let targets =
        vec![Surroundings::variable("HIKYAKU_IO", "uring"), Surroundings::variable("HIKYAKU_IO", "portable")];
    Group { name: "backend", targets, cells, claims }
}

/// Everything a group needs while it runs.
struct Scene<'a> {
    context: &'a Context,
    ours: Vec<Ours>,
    tgt: Option<Served>,
    /// Requests of a run of tgt, by cell.
    counts: Vec<u64>,
    seconds: f64,
}

impl<'a> Scene<'a> {
    fn new(context: &'a Context, group: &Group, seconds: f64) -> Result<Self> {
        let ours = group.targets.iter().map(|surroundings| Ours::start(context, surroundings.clone()));
        let ours = ours.collect::<Result<Vec<_>>>()?;
        let tgt = if group.cells.iter().any(|cell| cell.way == Way::Tgt) {
            let disks = [&ours[0].read_image, &ours[0].write_image].map(|path| Disk::file(path));
            Some(Served::Tgt(Tgt::serve(&disks, None)?))
        } else {
            None
        };
        let mut scene = Self { context, ours, tgt, counts: Vec::new(), seconds };
        for cell in &group.cells {
            let count = match cell.way {
                Way::Tgt => {
                    cell.shape.count(scene.tgt_run(cell.shape, cell.shape.probe())?.mb_per_s, seconds)
                }
                _ => 0,
            };
            scene.counts.push(count);
        }
        Ok(scene)
    }

    fn tgt_run(&mut self, shape: Shape, count: u64) -> Result<QemuRun> {
        let tgt = self.tgt.as_mut().context("no tgt")?;
        let (pid, url) = (tgt.pid(), tgt.url(usize::from(shape.write)).clone());
        let result = qemu_img_bench(&url, pid, shape, count);
        tgt.blame(result)
    }

    fn measure(&mut self, index: usize, cell: &Cell) -> Result<Sample> {
        let shape = cell.shape;
        let of_block = |mb_per_s: f64| mb_per_s * 1e6 / shape.block as f64;
        Ok(match cell.way {
            Way::Ours(target, storage) => {
                self.ours[target].measure(self.context, storage, shape, self.seconds)?
            }
            Way::Tgt => {
                let run = self.tgt_run(shape, self.counts[index])?;
                let used = |cpu_s_per_gb: f64| Used {
                    cpu_s_per_gb,
                    cpu_us: cpu_s_per_gb * shape.block as f64 / 1e3,
                    switches: f64::NAN,
                    switches_involuntary: f64::NAN,
                };
                Sample {
                    mb_per_s: run.mb_per_s,
                    per_second: of_block(run.mb_per_s),
                    initiator: Some(used(run.initiator_cpu_s_per_gb)),
                    target: Some(used(run.target_cpu_s_per_gb)),
                    ..Sample::default()
                }
            }
            Way::Stream => {
                let mb_per_s = iperf(self.seconds, Some("128K"))?;
                Sample { mb_per_s, per_second: of_block(mb_per_s), ..Sample::default() }
            }
            Way::RoundTrip => {
                let trips = pong::round_trips(shape, CORE, self.seconds)?;
                Sample {
                    mb_per_s: shape.block as f64 / trips.mean_us,
                    per_second: 1e6 / trips.mean_us,
                    p50_us: trips.p50_us,
                    p99_us: trips.p99_us,
                    ..Sample::default()
                }
            }
        })
    }
}

fn column(runs: &[Sample], value: impl Fn(&Sample) -> f64) -> Spread {
    Spread::of(&runs.iter().map(value).collect::<Vec<_>>())
}

/// What one side of a row used.
type End = fn(&Sample) -> Option<Used>;
/// The sides.
const ENDS: [(&str, End); 2] = [("initiator", |sample| sample.initiator), ("target", |sample| sample.target)];

fn print_row(cell: &Cell, runs: &[Sample]) {
    let dash = |value: f64, digits: usize| {
        if value.is_finite() && value > 0.0 { format!("{value:.digits$}") } else { "-".to_owned() }
    };
    let mut line = format!(
        "| {} | {} | {} | {} | {} |",
        cell.name,
        column(runs, |run| run.mb_per_s).show(0),
        column(runs, |run| run.per_second).show(0),
        dash(column(runs, |run| run.p50_us).median, 1),
        dash(column(runs, |run| run.p99_us).median, 0),
    );
    for (_, end) in ENDS {
        let of = |value: fn(Used) -> f64| column(runs, |run| end(run).map_or(f64::NAN, value)).median;
        line += &format!(
            " {} | {} | {} |",
            dash(of(|used| used.cpu_s_per_gb), 3),
            dash(of(|used| used.cpu_us), 2),
            dash(of(|used| used.switches), 3)
        );
    }
    let data = match cell.way {
        Way::Ours(_, Storage::File) => "file, flushed, verified",
        Way::Ours(_, Storage::Memory) => "memory: ceiling",
        Way::Tgt => "the same file",
        Way::Stream | Way::RoundTrip => "none",
    };
    println!("{line} {data} |");
}

fn row_object(cell: &Cell, runs: &[Sample]) -> Value {
    let mut object = json!({
        "row": cell.name, "block_bytes": cell.shape.block, "depth": cell.shape.depth, "write": cell.shape.write,
        "mb_per_s": column(runs, |run| run.mb_per_s),
        "operations_per_s": column(runs, |run| run.per_second),
        "p50_us": column(runs, |run| run.p50_us),
        "p99_us": column(runs, |run| run.p99_us),
        "initiator_spin_share": column(runs, |run| run.spin_share),
        "verified": runs.iter().all(|run| run.verified),
    });
    for (name, end) in ENDS {
        if runs.iter().any(|run| end(run).is_none()) {
            continue;
        }
        let of = |value: fn(Used) -> f64| column(runs, |run| end(run).map_or(f64::NAN, value));
        object[name] = json!({
            "cpu_s_per_gb": of(|used| used.cpu_s_per_gb),
            "cpu_us_per_operation": of(|used| used.cpu_us),
            "switches_per_operation": of(|used| used.switches),
            "involuntary_switches_per_operation": of(|used| used.switches_involuntary),
        });
    }
    object
}

/// A claim's figure from the medians of its rows.
fn judge(claim: &Claim, cells: &[Cell], runs: &[Vec<Sample>]) -> Bar {
    let per_second = |name: &str| {
        let at = cells.iter().position(|cell| cell.name == name);
        at.map_or(f64::NAN, |at| column(&runs[at], |run| run.per_second).median)
    };
    let bytes = |name: &str| {
        let at = cells.iter().position(|cell| cell.name == name);
        at.map_or(f64::NAN, |at| column(&runs[at], |run| run.mb_per_s).median)
    };
    let value = match claim.compare {
        Compare::Ratio => bytes(&claim.row) / bytes(&claim.peer),
        Compare::MoreMicroseconds => 1e6 / per_second(&claim.row) - 1e6 / per_second(&claim.peer),
        Compare::PerSecond => per_second(&claim.row),
    };
    Bar::new(claim.what, value, claim.bound)
}

fn run_group(context: &Context, group: &Group, reps: usize, seconds: f64) -> Result<Value> {
    let mut scene = Scene::new(context, group, seconds).with_context(|| group.name)?;
    let mut runs: Vec<Vec<Sample>> = group.cells.iter().map(|_| Vec::new()).collect();
    for rep in 0..reps {
        for at in 0..group.cells.len() {
            // Whoever goes second may profit from the first: take turns.
            let index = (at + rep) % group.cells.len();
            let cell = &group.cells[index];
            runs[index].push(scene.measure(index, cell).with_context(|| cell.name.clone())?);
        }
    }
    println!(
        "\n{}:\n\n| row | MB/s | per second | p50 us | p99 us | initiator CPU s/GB | us each | switches each | target \
         CPU s/GB | us each | switches each | data |\n|---|---|---|---|---|---|---|---|---|---|---|---|",
        group.name
    );
    let mut rows = Vec::new();
    for (cell, runs) in group.cells.iter().zip(&runs) {
        print_row(cell, runs);
        rows.push(row_object(cell, runs));
    }
    let mut bars = Vec::new();
    if !group.claims.is_empty() {
        println!("\n| row | figure | bar | verdict |\n|---|---|---|---|");
    }
    for claim in &group.claims {
        let bar = judge(claim, &group.cells, &runs);
        let digits = if bar.value.abs() < 1000.0 { 2 } else { 0 };
        println!(
            "| {} | {:.digits$} | {} | {} |",
            claim.row,
            bar.value,
            bar.show(),
            verdict(std::slice::from_ref(&bar))
        );
        let mut object = bar.object();
        object["row"] = json!(claim.row);
        object["peer"] = json!(claim.peer);
        bars.push(object);
    }
    Ok(json!({ "group": group.name, "rows": rows, "bars": bars }))
}

/// Rows whose system calls are counted.
fn counted() -> Vec<(Storage, Shape)> {
    let mut rows = Vec::new();
    for (block, depth) in [(4 << 10, 1), (4 << 10, 32), (1 << 20, 32)] {
        for write in [false, true] {
            rows.push((Storage::File, shape(write, block, depth)));
        }
    }
    rows
}

pub(super) fn run_table(common: &Common, context: &Context) -> Result<bool> {
    let seconds = seconds(common.quick);
    let groups = groups();
    let mut names: Vec<&str> = groups.iter().map(|group| group.name).collect();
    names.extend(["memory", "calls"]);
    let chosen = filter_rows(names, common.rows.as_deref(), |name| (*name).to_owned())?;
    let mut tables = Vec::new();
    for group in groups.iter().filter(|group| chosen.contains(&group.name)) {
        tables.push(run_group(context, group, common.reps, seconds)?);
    }
    let (mut memory, mut calls) = (Value::Null, Value::Null);
    if chosen.contains(&"memory") {
        memory = memory::row(context, seconds)?;
    }
    if chosen.contains(&"calls") {
        let mut ours = Ours::start(context, Surroundings::default())?;
        calls = calls::table(context, &mut ours, &counted())?;
    }
    println!(
        "\nmedian of {} interleaved runs [least-greatest]; one connection, both ends ours unless the row says \
         otherwise; LUNs of {} MiB",
        common.reps,
        run::LUN_BYTES >> 20
    );
    // A look, or a part of the tables, must not replace the kept figures.
    if common.quick || common.rows.is_some() {
        println!("not kept: --quick or --rows");
        return Ok(true);
    }
    let mut content = evidence::header("bench-ends");
    content.insert("reps".into(), json!(common.reps));
    content.insert("seconds".into(), json!(seconds));
    content.insert("groups".into(), Value::Array(tables));
    content.insert("memory".into(), memory);
    content.insert("system_calls_per_operation".into(), calls);
    evidence::write("bench-ends", &content)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(mb_per_s: f64, per_second: f64) -> Sample {
        Sample { mb_per_s, per_second, ..Sample::default() }
    }

    #[test]
    fn every_claim_names_rows_that_exist() {
        for group in groups() {
            let exists = |name: &str| group.cells.iter().filter(|cell| cell.name == name).count() == 1;
            for claim in &group.claims {
                assert!(exists(&claim.row), "{}: {}", group.name, claim.row);
                let alone = matches!(claim.compare, Compare::PerSecond);
                assert!(alone == claim.peer.is_empty() && (alone || exists(&claim.peer)), "{}", claim.peer);
            }
            for cell in &group.cells {
                assert!(!matches!(cell.way, Way::Ours(target, _) if target >= group.targets.len()));
            }
        }
    }

    #[test]
    fn claims_are_judged_by_medians() {
        let cells = vec![
            ours(0, Storage::File, shape(false, 4096, 1)),
            Cell { name: "peer".into(), way: Way::Tgt, shape: shape(false, 4096, 1) },
        ];
        let runs = vec![
            vec![sample(30.0, 40_000.0), sample(40.0, 50_000.0), sample(400.0, 1.0)],
            vec![sample(10.0, 100_000.0); 3],
        ];
        let value = |compare| {
            let claim = claim("file-read-4K-qd1", "peer", "x", compare, Bound::AtLeast(1.0));
            judge(&claim, &cells, &runs).value
        };
        assert_eq!(value(Compare::Ratio), 4.0);
        assert_eq!(value(Compare::MoreMicroseconds), 15.0);
        assert_eq!(value(Compare::PerSecond), 40_000.0);
    }
}
