//! What sealed volumes cost, and their bars: percent of the same copy without a volume on the same devices.
//!
//! `memory-in`, `memory-out`: between loop devices over tmpfs, beside `qemu-img convert` with its luks driver.
//! `disk`: files of one disk. `ciphers`: AES-XTS beside OpenSSL's. `opening`: time and memory of unlocking beside
//! cryptsetup, of formatting 1 TiB. Every group of copies compares the bytes.

mod ciphers;
mod memory;
mod opening;

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::bars::Bar;
use super::{Common, KEPT_REPS_MIN, RUN_LIMIT, filter_rows, record};
use harness::Context;
use harness::files::can_loop;

const NAME: &str = "bench-volume";

struct Bench {
    context: Context,
    reps: usize,
    /// Size of the data, bytes.
    bytes: u64,
}

struct Found {
    table: String,
    bars: Vec<Bar>,
    rows: Value,
}

type Group = (&'static str, fn(&Bench) -> Result<Found>);

const GROUPS: &[Group] = &[
    ("memory-in", |bench| memory::measure(bench, memory::Way::In)),
    ("memory-out", |bench| memory::measure(bench, memory::Way::Out)),
    ("ciphers", ciphers::measure),
    ("opening", opening::measure),
];

pub(super) fn run_table(common: &Common, context: Context) -> Result<()> {
    ensure!(can_loop(), "this benchmark makes loop devices: run it as root, where /dev/loop-control exists");
    let bytes = if common.quick { 256 << 20 } else { 2 << 30 };
    let bench = Bench { context, reps: common.reps, bytes };
    let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
    let chosen =
        filter_rows(GROUPS.iter().collect(), common.rows.as_deref(), |(name, _)| (*name).to_owned())?;
    let keeps = !common.quick && common.reps >= KEPT_REPS_MIN;
    for (name, measure) in chosen {
        let begun = Instant::now();
        let Found { table, bars, rows } = measure(&bench).context(*name)?;
        eprintln!("{name} took {:.0} s", begun.elapsed().as_secs_f64());
        let mut shown = format!("\n{name}:\n\n{table}\n| figure | | bar |\n|---|---|---|\n");
        for bar in &bars {
            let verdict = if bar.is_met() { "met" } else { "short" };
            writeln!(shown, "| {} | {:.3} | {verdict} |", bar.show(), bar.value)?;
        }
        print!("{shown}");
        if keeps {
            let measured = json!({
                "group": name, "reps": common.reps, "bytes": bytes, "table": table.lines().collect::<Vec<_>>(),
                "bars": bars.iter().map(Bar::object).collect::<Vec<_>>(), "rows": rows,
            });
            record::keep(NAME, measured, &names)?;
        }
    }
    println!("\nmedian of {} interleaved runs [least-greatest]", common.reps);
    if !keeps {
        println!("not kept: --quick, or fewer than {KEPT_REPS_MIN} --reps");
    }
    Ok(())
}
