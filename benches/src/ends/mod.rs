//! `hikyaku` at both ends of one connection: `hikyaku bench path` against `hikyaku serve`, compared with one iperf3
//! stream, tgt under `qemu-img bench`, and a bare TCP round trip. Rows of a group are interleaved with their peers.
//! Rows on a file are flushed and verified in every run; rows on memory are ceilings.

mod calls;
mod memory;
pub(crate) mod pong;
pub(crate) mod run;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::bars::Bound;
use super::claims::{Claim, Compare, judge};
use super::peers::{QemuRun, Shape, iperf, qemu_img_bench, seconds};
use super::{CORE, Common, Spread, filter_rows, interleaved, keep};
use harness::process::Surroundings;
use harness::{Context, Disk, Served, Tgt};
use run::{Ours, Sample, Storage, Used};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `hikyaku bench path`, on the target with this index.
    Ours(usize, Storage),
    /// tgt under `qemu-img bench`, on the file of the first target.
    Tgt,
    Stream,
    RoundTrip,
}

#[derive(Clone, Debug)]
struct Cell {
    name: String,
    way: Way,
    shape: Shape,
}

struct Group {
    name: &'static str,
    targets: Vec<Surroundings>,
    cells: Vec<Cell>,
    claims: Vec<Claim>,
}

fn name(storage: Storage, shape: Shape) -> String {
    let storage = if storage == Storage::File { "file" } else { "mem" };
    format!("{storage}-{}", shape.name())
}

fn ours(target: usize, storage: Storage, shape: Shape) -> Cell {
    Cell { name: name(storage, shape), way: Way::Ours(target, storage), shape }
}

fn groups() -> Vec<Group> {
    vec![stream(), small(), one_core(), spin(), backends()]
}

fn stream() -> Group {
    let mut cells =
        vec![Cell { name: "iperf3".to_owned(), way: Way::Stream, shape: Shape::new(false, 128 << 10, 1) }];
    for write in [false, true] {
        for storage in [Storage::Memory, Storage::File] {
            cells.push(ours(0, storage, Shape::new(write, 1 << 20, 32)));
        }
    }
    let ratio =
        |row, least| Claim::new(row, "iperf3", "ratio to iperf3", Compare::Speed, Bound::AtLeast(least));
    let claims = vec![ratio("mem-read-1M-qd32", 1.2), ratio("file-read-1M-qd32", 1.0)];
    Group { name: "stream", targets: vec![Surroundings::default()], cells, claims }
}

fn small() -> Group {
    let (mut cells, mut claims) = (Vec::new(), Vec::new());
    for write in [false, true] {
        let shape = Shape::new(write, 4 << 10, 32);
        let (file, tgt) = (name(Storage::File, shape), format!("tgt-{}", shape.name()));
        cells.push(ours(0, Storage::Memory, shape));
        cells.push(ours(0, Storage::File, shape));
        cells.push(Cell { name: tgt.clone(), way: Way::Tgt, shape });
        claims.push(Claim::new(&file, &tgt, "ratio to tgt", Compare::Speed, Bound::AtLeast(4.0)));
        claims.push(Claim::new(
            &file,
            "",
            "operations per second",
            Compare::PerSecond,
            Bound::AtLeast(200_000.0),
        ));
    }
    Group { name: "small", targets: vec![Surroundings::default()], cells, claims }
}

fn one_core() -> Group {
    let (mut cells, mut claims) = (Vec::new(), Vec::new());
    for write in [false, true] {
        let shape = Shape::new(write, 4 << 10, 1);
        let bare = format!("tcp-{}", shape.name());
        cells.push(Cell { name: bare.clone(), way: Way::RoundTrip, shape });
        for storage in [Storage::Memory, Storage::File] {
            cells.push(ours(0, storage, shape));
            let (row, what) = (name(storage, shape), "us more than bare TCP");
            claims.push(Claim::new(&row, &bare, what, Compare::MoreMicroseconds, Bound::AtMost(3.0)));
        }
    }
    let pinned = Surroundings { core: Some(CORE), ..Surroundings::default() };
    Group { name: "one-core", targets: vec![pinned], cells, claims }
}

/// The same rows with spinning in its default setting and switched off.
fn spin() -> Group {
    let mut cells = Vec::new();
    for write in [false, true] {
        for (target, word) in [(0, "default"), (1, "no-spin")] {
            let cell = ours(target, Storage::Memory, Shape::new(write, 4 << 10, 1));
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
            let shape = Shape::new(write, block, 32);
            for (target, word) in [(0, "uring"), (1, "portable")] {
                let cell = ours(target, Storage::File, shape);
                cells.push(Cell { name: format!("{word}-{}", cell.name), ..cell });
            }
            let row = |word: &str| format!("{word}-{}", name(Storage::File, shape));
            let (bound, what) = (Bound::AtLeast(0.7), "ratio to io_uring");
            claims.push(Claim::new(&row("portable"), &row("uring"), what, Compare::Speed, bound));
        }
    }
    let targets =
        vec![Surroundings::variable("HIKYAKU_IO", "uring"), Surroundings::variable("HIKYAKU_IO", "portable")];
    Group { name: "backend", targets, cells, claims }
}

struct Scene<'a> {
    context: &'a Context,
    ours: Vec<Ours>,
    tgt: Option<Served>,
    /// Requests of one run of tgt, by cell.
    counts: Vec<u64>,
    seconds: f64,
}

impl<'a> Scene<'a> {
    fn new(context: &'a Context, group: &Group, seconds: f64) -> Result<Self> {
        let ours = Ours::start_all(context, &group.targets)?;
        let disks = [&ours[0].read_image, &ours[0].write_image].map(|path| Disk::file(path));
        let has_tgt = group.cells.iter().any(|cell| cell.way == Way::Tgt);
        let tgt = has_tgt.then(|| Tgt::serve(&disks, None).map(Served::Tgt)).transpose()?;
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
                let used = |cpu_s_per_gb: f64| {
                    let cpu_us = cpu_s_per_gb * shape.block as f64 / 1e3;
                    Some(Used { cpu_s_per_gb, cpu_us, switches: f64::NAN, switches_involuntary: f64::NAN })
                };
                let (initiator, target) = (used(run.initiator_cpu_s_per_gb), used(run.target_cpu_s_per_gb));
                let (mb_per_s, per_second) = (run.mb_per_s, of_block(run.mb_per_s));
                Sample { mb_per_s, per_second, initiator, target, ..Sample::default() }
            }
            Way::Stream => {
                let mb_per_s = iperf(self.seconds, Some("128K"))?;
                Sample { mb_per_s, per_second: of_block(mb_per_s), ..Sample::default() }
            }
            Way::RoundTrip => pong::round_trips(shape, CORE, self.seconds)?,
        })
    }
}

type End = fn(&Sample) -> Option<Used>;
const ENDS: [(&str, End); 2] = [("initiator", |sample| sample.initiator), ("target", |sample| sample.target)];

fn print_row(cell: &Cell, runs: &[Sample]) {
    let dash = |value: f64, digits: usize| {
        if value.is_finite() && value > 0.0 { format!("{value:.digits$}") } else { "-".to_owned() }
    };
    let column = |value: fn(&Sample) -> f64| Spread::column(runs, value);
    let [speed, rate] = [column(|run| run.mb_per_s), column(|run| run.per_second)].map(|all| all.show(0));
    let (p50, p99) = (dash(column(|run| run.p50_us).median, 1), dash(column(|run| run.p99_us).median, 0));
    let mut line = format!("| {} | {speed} | {rate} | {p50} | {p99} |", cell.name);
    for (_, end) in ENDS {
        let of = |value: fn(Used) -> f64| Spread::column(runs, |run| end(run).map_or(f64::NAN, value)).median;
        let (cpu, each) = (dash(of(|used| used.cpu_s_per_gb), 3), dash(of(|used| used.cpu_us), 2));
        line += &format!(" {cpu} | {each} | {} |", dash(of(|used| used.switches), 3));
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
        "mb_per_s": Spread::column(runs, |run| run.mb_per_s),
        "operations_per_s": Spread::column(runs, |run| run.per_second),
        "p50_us": Spread::column(runs, |run| run.p50_us),
        "p99_us": Spread::column(runs, |run| run.p99_us),
        "initiator_spin_share": Spread::column(runs, |run| run.spin_share),
        "verified": runs.iter().all(|run| run.verified),
    });
    for (name, end) in ENDS {
        if runs.iter().any(|run| end(run).is_none()) {
            continue;
        }
        let of = |value: fn(Used) -> f64| Spread::column(runs, |run| end(run).map_or(f64::NAN, value));
        object[name] = json!({
            "cpu_s_per_gb": of(|used| used.cpu_s_per_gb),
            "cpu_us_per_operation": of(|used| used.cpu_us),
            "switches_per_operation": of(|used| used.switches),
            "involuntary_switches_per_operation": of(|used| used.switches_involuntary),
        });
    }
    object
}

fn run_group(context: &Context, group: &Group, reps: usize, seconds: f64) -> Result<Value> {
    let mut scene = Scene::new(context, group, seconds).with_context(|| group.name)?;
    let runs = interleaved(reps, group.cells.len(), |index| {
        let cell = &group.cells[index];
        scene.measure(index, cell).with_context(|| cell.name.clone())
    })?;
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
    let names: Vec<&str> = group.cells.iter().map(|cell| cell.name.as_str()).collect();
    let digits = |value: f64| if value.abs() < 1000.0 { 2 } else { 0 };
    let bars = judge(&group.claims, &names, &runs, digits);
    Ok(json!({ "group": group.name, "rows": rows, "bars": bars }))
}

fn counted() -> Vec<(Storage, Shape)> {
    let both = |(block, depth)| [false, true].map(|write| (Storage::File, Shape::new(write, block, depth)));
    [(4 << 10, 1), (4 << 10, 32), (1 << 20, 32)].into_iter().flat_map(both).collect()
}

pub(super) fn run_table(common: &Common, context: &Context) -> Result<()> {
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
    let figures = json!({
        "seconds": seconds, "groups": tables, "memory": memory, "system_calls_per_operation": calls,
    });
    keep(common, "bench-ends", figures)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
