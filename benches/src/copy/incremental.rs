//! `copy --since hash`: bytes moved after a small change.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context as _, Result};
use rand::seq::index;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;

use super::super::Spread;
use super::super::bars::Bar;
use super::disks::{Files, Place, compare};
use super::{Bench, Found, number};

/// One byte in `PART` bytes changes.
const PART: u64 = 100;
const KINDS: [(&str, u64); 2] = [("in extents of 1 MiB", 1 << 20), ("in blocks of 4 KiB", 4096)];

/// Overwrites one hundredth of a file with other bytes, in places chosen by `seed`.
fn change(path: &Path, bytes: u64, extent: u64, seed: u64) -> Result<u64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let file = OpenOptions::new().write(true).open(path)?;
    let mut new = vec![0; extent as usize];
    let places = (bytes / extent / PART).max(1);
    for place in index::sample(&mut rng, (bytes / extent) as usize, places as usize) {
        rng.fill_bytes(&mut new);
        file.write_all_at(&new, place as u64 * extent)?;
    }
    file.sync_data().context("flush what was changed")?;
    Ok(places * extent)
}

pub(super) fn measure(bench: &Bench) -> Result<Found> {
    let files = Files::new(Place::Memory, bench.bytes)?;
    let (src, dst) = (files.source.as_path(), files.destination.as_path());
    let paths = [src, dst].map(|path| path.display().to_string());
    bench.copy(&[&paths[0], &paths[1]])?;
    let mut table = format!(
        "| {} MiB between files on {}, 1 % changed since the last copy | moved | seconds |\n|---|---|---|\n",
        files.bytes >> 20,
        Place::Memory.name()
    );
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (name, extent) in KINDS {
        let (mut seconds, mut parts, mut changed) = (Vec::new(), Vec::new(), 0);
        for rep in 0..bench.reps {
            changed = change(src, files.bytes, extent, extent + rep as u64)?;
            let report = bench.copy(&[&paths[0], &paths[1], "--since", "hash"])?;
            compare(src, dst, files.bytes)?;
            seconds.push(number(&report, "/seconds")?);
            parts.push(number(&report, "/write/bytes")? / files.bytes as f64);
        }
        let (seconds, part) = (Spread::of(&seconds), Spread::of(&parts));
        writeln!(table, "| {name}, {changed} bytes | {:.2} % | {} |", 100.0 * part.median, seconds.show(2))?;
        if extent == KINDS[0].1 {
            let what = "bytes moved, 1 % changed in extents of 1 MiB, worst run";
            bars.push(Bar::at_most(what, part.max, 0.02));
        }
        rows.push(json!({ "row": name, "changed_bytes": changed, "moved": part, "seconds": seconds }));
    }
    Ok(Found { table, bars, rows: json!(rows) })
}
