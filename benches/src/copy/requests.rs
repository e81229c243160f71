//! Counters of the devices: one request for each chunk, none split, none merged, none through the page cache.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use host::{Kernel, Traffic};
use serde_json::json;

use super::super::bars::Bar;
use super::disks::{Files, Place, compare, prepare};
use super::{Bench, Found};
use harness::files::Loop;
use harness::{program, run};

const BYTES: u64 = 1 << 30;
/// Tolerance for requests that are not the copy's: the final flush, and programs that probe a new device.
const EDGES: f64 = 2.0;

/// The counters of a block device.
pub(crate) fn traffic(device: &Path) -> Result<Traffic> {
    let number = std::fs::metadata(device)?.rdev();
    Kernel::default().traffic(number).with_context(|| format!("no counters of {}", device.display()))
}

fn cached_bytes(device: &Path) -> Result<f64> {
    let mut fincore = program("fincore")?;
    fincore.args(["--bytes", "--noheadings", "--output", "RES"]).arg(device);
    let output = run(&mut fincore, Duration::from_secs(10))?.success()?;
    output.stdout.trim().parse().with_context(|| format!("output of fincore: {}", output.stdout))
}

/// Traffic of both devices, and their pages in the page cache.
fn counters(src: &Path, dst: &Path) -> Result<(Traffic, Traffic, f64)> {
    Ok((traffic(src)?, traffic(dst)?, cached_bytes(src)? + cached_bytes(dst)?))
}

pub(super) fn measure(bench: &Bench) -> Result<Found> {
    let files = Files::new(Place::Memory, BYTES)?;
    let loops = files.loops()?;
    let [src, dst] = loops.each_ref().map(Loop::path);
    let mut table = "| 1 GiB between loop devices | reads | joined | writes | joined | read at the destination | page cache, bytes more \
                     |\n|---|---|---|---|---|---|---|\n"
        .to_owned();
    // Maximum over all runs: the difference to one request for each chunk, merged requests, growth of the page cache.
    let [mut odd, mut joined, mut cached] = [0.0f64; 3];
    let mut rows = Vec::new();
    for chunk in [512u64 << 10, 1 << 20] {
        let mut last = String::new();
        for rep in 0..bench.reps {
            prepare(src, dst, BYTES, rep)?;
            let before = counters(src, dst)?;
            let text = chunk.to_string();
            bench.copy(&[&src.display().to_string(), &dst.display().to_string(), "--chunk", &text])?;
            let after = counters(src, dst)?;
            let reads = after.0.reads - before.0.reads;
            let writes = after.1.writes - before.1.writes;
            let read_joined = after.0.read_merges - before.0.read_merges;
            let write_joined = after.1.write_merges - before.1.write_merges;
            let read_at_destination = after.1.reads - before.1.reads;
            let growth = after.2 - before.2;
            let chunks = BYTES / chunk;
            odd = odd.max(chunks.abs_diff(reads).max(chunks.abs_diff(writes)) as f64);
            joined = joined.max((read_joined + write_joined) as f64);
            cached = cached.max(growth);
            compare(src, dst, BYTES)?;
            last = format!(
                "| chunks of {} KiB | {reads} | {read_joined} | {writes} | {write_joined} | {read_at_destination} | {growth} |",
                chunk >> 10
            );
            rows.push(json!({
                "chunk": chunk, "reads": reads, "read_merges": read_joined, "writes": writes,
                "write_merges": write_joined, "reads_at_destination": read_at_destination, "cached_bytes": growth,
            }));
        }
        writeln!(table, "{last}")?;
    }
    let bars = vec![
        Bar::at_most("requests more or fewer than chunks, in the worst run", odd, EDGES),
        Bar::at_most("requests joined, in the worst run", joined, 0.0),
        Bar::at_most("bytes more in the page cache, in the worst run", cached, 0.0),
    ];
    Ok(Found { table, bars, rows: json!(rows) })
}
