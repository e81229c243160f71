//! What sealed volumes cost, and their bars: percent of the same copy without a volume on the same devices.
//!
//! `memory-in`, `memory-out`: between loop devices over tmpfs, beside `qemu-img convert` with its luks driver.
//! `disk`: into a file of a disk. `link`, `link-32ms`: into a LUN behind 1 Gbit/s. `lun`: 4 KiB requests at LUNs that are
//! volumes. `beneath`: bytes and flushes, by a device's counters. `ciphers`: AES-XTS beside OpenSSL's. `opening`: time and
//! memory of unlocking beside cryptsetup, of formatting 1 TiB. Every group of copies compares the bytes.

mod beneath;
mod ciphers;
mod lun;
mod made;
mod memory;
mod opening;
mod slower;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::bars::Bar;
use super::{Common, KEPT_REPS_MIN, RUN_LIMIT, filter_rows, record};
use harness::Context;
use harness::files::can_loop;

const NAME: &str = "bench-volume";
/// Round trip of the longer link.
const FAR: Duration = Duration::from_millis(32);

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
    ("disk", slower::disk),
    ("link", |bench| slower::link(bench, Duration::ZERO)),
    ("link-32ms", |bench| slower::link(bench, FAR)),
    ("lun", lun::measure),
    ("beneath", beneath::measure),
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
