//! The cost of a local copy, and its bars. Each group has its own table and bars:
//!
//! `pair-*` compares `hikyaku copy` with qemu-img, dd and a ceiling between two loop devices; `latency` varies the
//! number of buffers; `requests` reads the devices' own counters; `sparse-*` measures holes; `incremental` what
//! `--since hash` moves; `impact` how long a reader of the same disk waits; `remote-*` EXTENDED COPY inside one target. Every group compares the bytes. The record keeps
//! each group with its own commit and date.

mod disks;
mod impact;
mod incremental;
mod latency;
mod pair;
mod remote;
mod requests;
mod sparse;
mod tools;

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::bars::Bar;
use super::{Common, KEPT_REPS_MIN, RUN_LIMIT, filter_rows, record};
pub(super) use disks::Place;
pub(super) use requests::traffic;
pub(super) use tools::{Measure, measure as measure_copy};

use harness::Context;
use harness::files::can_loop;

const NAME: &str = "bench-copy";

struct Bench {
    context: Context,
    reps: usize,
    /// Also measure the tools that no bar names.
    all: bool,
    /// Size of a disk, bytes.
    bytes: u64,
}

impl Bench {
    fn copy(&self, arguments: &[&str]) -> Result<Value> {
        let words = [&["copy", "--force", "--json"], arguments].concat();
        self.context.ours(&words, RUN_LIMIT)?.success()?.json()
    }
}

struct Found {
    table: String,
    bars: Vec<Bar>,
    rows: Value,
}

type Group = (&'static str, fn(&Bench) -> Result<Found>);

const GROUPS: &[Group] = &[
    ("pair-memory", |bench| pair::measure(bench, Place::Memory)),
    ("pair-disk", |bench| pair::measure(bench, Place::Disk)),
    ("latency", latency::measure),
    ("requests", requests::measure),
    ("sparse-memory", |bench| sparse::measure(bench, Place::Memory)),
    ("sparse-disk", |bench| sparse::measure(bench, Place::Disk)),
    ("incremental", incremental::measure),
    ("impact", impact::measure),
    ("remote-memory", |bench| remote::measure(bench, Place::Memory)),
    ("remote-disk", |bench| remote::measure(bench, Place::Disk)),
];

fn number(report: &Value, pointer: &str) -> Result<f64> {
    report.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("no {pointer} in {report}"))
}

pub(super) fn run_table(common: &Common, size_mib: u64, all: bool, context: Context) -> Result<()> {
    ensure!(can_loop(), "this benchmark makes loop devices: run it as root, where /dev/loop-control exists");
    ensure!((64..=65_536).contains(&size_mib), "--size wants 64 to 65536 MiB");
    let bytes = if common.quick { 512 << 20 } else { size_mib << 20 };
    let bench = Bench { context, reps: common.reps, all, bytes };
    let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
    let chosen =
        filter_rows(GROUPS.iter().collect(), common.rows.as_deref(), |(name, _)| (*name).to_owned())?;
    let keeps = !common.quick && !all && common.reps >= KEPT_REPS_MIN;
    let mut kept = Vec::new();
    for (name, measure) in chosen {
        let begun = Instant::now();
        let Found { table, bars, rows } = measure(&bench).context(*name)?;
        eprintln!("{name} took {:.0} s", begun.elapsed().as_secs_f64());
        let measured = json!({
            "group": name, "reps": common.reps, "bytes": bytes, "table": table.lines().collect::<Vec<_>>(),
            "bars": bars.iter().map(Bar::object).collect::<Vec<_>>(), "rows": rows,
        });
        if keeps {
            kept = record::keep(NAME, measured, &names)?;
        } else {
            kept.push(measured);
        }
    }
    kept.iter().for_each(print);
    println!("\nmedian of {} interleaved runs or more [least-greatest], all bytes compared", common.reps);
    if !keeps {
        println!("not kept: --quick, --all, or fewer than {KEPT_REPS_MIN} --reps");
    }
    Ok(())
}

fn print(group: &Value) {
    let words = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    println!("\n{}:\n", words(&group["group"]));
    for line in group["table"].as_array().into_iter().flatten() {
        println!("{}", words(line));
    }
    println!("\n| figure | | bar |\n|---|---|---|");
    for bar in group["bars"].as_array().into_iter().flatten() {
        let verdict = if bar["met"] == true { "met" } else { "short" };
        println!("| {} | {:.3} | {verdict} |", words(&bar["bar"]), bar["value"].as_f64().unwrap_or(f64::NAN));
    }
}
