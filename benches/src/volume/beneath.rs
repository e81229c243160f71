//! Bytes and flushes beneath a volume, by the counters of the loop device that it lies on.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::super::Spread;
use super::super::bars::Bar;
use super::super::copy::traffic;
use super::super::peers::{Shape, qemu_img_bench_flushing};
use super::made::{AEGIS, GCM_SIV, Kind, Passphrase};
use super::{Bench, Found, RUN_LIMIT};
use harness::files::{Loop, empty_file, random_file};
use harness::{Disk, Target, run, scratch};

/// Of a sparse file. A journal half has a 64th of the data, at most 32 MiB, so from 2 GiB on volumes behave as large
/// ones do.
const STORAGE_BYTES: u64 = 4 << 30;
const BYTES: u64 = 256 << 20;
/// Numbers of flushed writes of two runs: their difference has no claim of the volume and no logout.
const FLUSHED: [u64; 2] = [100, 300];
const FLUSHED_SHAPE: Shape = Shape::new(true, 64 << 10, 1);
const SMALL_WRITES: u64 = BYTES / 4096;

struct Place {
    /// Two different contents of twice `BYTES`.
    sources: [PathBuf; 2],
    passphrase: Passphrase,
    storage: PathBuf,
    _dir: TempDir,
}

struct Volume<'a> {
    bench: &'a Bench,
    place: &'a Place,
    device: Loop,
    kind: Kind,
}

/// What one run wrote.
#[derive(Clone, Copy, Debug)]
struct Written {
    bytes: f64,
    flushes: f64,
}

/// Bytes for each byte above, and flushes.
#[derive(Clone, Copy, Debug)]
struct Measured {
    fresh: f64,
    large: f64,
    medium: f64,
    small: f64,
    /// For each flush above.
    flush_fresh: f64,
    flush_over: f64,
    /// For 64 MiB overwritten without a flush.
    between: f64,
}

type Column = (&'static str, fn(&Measured) -> f64, [Option<f64>; 2]);

/// What is measured, and at most how much of it, in units of 4096 and of 512 bytes.
const COLUMNS: &[Column] = &[
    ("bytes: fresh", |row| row.fresh, [Some(1.05); 2]),
    ("overwriting by 512 KiB", |row| row.large, [Some(1.10), Some(2.15)]),
    ("by 64 KiB", |row| row.medium, [Some(1.10), Some(2.15)]),
    ("by 4 KiB, random", |row| row.small, [None; 2]),
    ("flushes for a flush: fresh", |row| row.flush_fresh, [Some(2.0); 2]),
    ("overwriting", |row| row.flush_over, [Some(2.0); 2]),
    ("for 64 MiB overwritten between", |row| row.between, [Some(2.0); 2]),
];

impl Volume<'_> {
    fn endpoint(&self) -> String {
        self.place.passphrase.endpoint(&self.device.text(), self.kind)
    }

    fn format(&self) -> Result<()> {
        self.place.passphrase.format(self.bench.context.command(), &self.device.text(), self.kind, &[])
    }

    /// What the device writes while `work` runs.
    fn written(&self, work: impl FnOnce() -> Result<()>) -> Result<Written> {
        let before = traffic(self.device.path())?;
        work()?;
        let after = traffic(self.device.path())?;
        Ok(Written {
            bytes: ((after.sectors_written - before.sectors_written) * 512) as f64,
            flushes: (after.flushes - before.flushes) as f64,
        })
    }

    fn copy(&self, source: usize, bytes: u64, chunk: u64) -> Result<Written> {
        let (from, to) = (self.place.sources[source].display().to_string(), self.endpoint());
        let mut command = self.bench.context.command();
        command.args(["copy", "--force", "--quiet", "--allow", "sector-size", "--size", &bytes.to_string()]);
        command.args(["--chunk", &chunk.to_string(), &from, &to]);
        self.written(|| run(&mut command, RUN_LIMIT)?.success().map(drop))
    }

    fn compare(&self, source: usize, bytes: u64) -> Result<()> {
        let mut command = self.bench.context.command();
        command.args(["compare", "--quiet", "--size", &bytes.to_string()]);
        command.arg(&self.place.sources[source]).arg(self.endpoint());
        run(&mut command, RUN_LIMIT)?.success().map(drop)
    }

    fn small(&self) -> Result<Written> {
        let mut command = self.bench.context.command();
        command.args([
            "bench",
            "path",
            &self.endpoint(),
            "--write",
            "--destroy",
            "--random",
            "--verify",
            "--json",
        ]);
        command.args(["--block-size", "4096", "--depth", "32", "--operations", &SMALL_WRITES.to_string()]);
        command.args(["--range", &BYTES.to_string()]);
        self.written(|| {
            let report = run(&mut command, RUN_LIMIT)?.success()?.json()?;
            ensure!(report["rows"][0]["verified"] == true, "not verified: {report}");
            Ok(())
        })
    }

    /// Flushes of the device while a fresh volume takes `count` writes, each flushed, and while it takes them again.
    fn flushed(&self, count: u64) -> Result<[f64; 2]> {
        self.format()?;
        let target = Target::serve(&self.bench.context, &[Disk::endpoint(self.endpoint())], None, &[])?;
        let load = || qemu_img_bench_flushing(target.url(0), FLUSHED_SHAPE, count, 1).map(drop);
        Ok([self.written(load)?.flushes, self.written(load)?.flushes])
    }

    fn measure(&self) -> Result<Measured> {
        let each = |written: Written, bytes: u64| written.bytes / bytes as f64;
        self.format()?;
        let fresh = self.copy(0, BYTES, 512 << 10)?;
        let large = self.copy(1, BYTES, 512 << 10)?;
        let medium = self.copy(0, BYTES, 64 << 10)?;
        self.compare(0, BYTES)?;
        self.copy(0, 2 * BYTES, 512 << 10)?;
        let twice = self.copy(1, 2 * BYTES, 512 << 10)?;
        self.compare(1, 2 * BYTES)?;
        let small = self.small()?;
        let [few, many] = [self.flushed(FLUSHED[0])?, self.flushed(FLUSHED[1])?];
        let for_one = |index: usize| (many[index] - few[index]) / (FLUSHED[1] - FLUSHED[0]) as f64;
        Ok(Measured {
            fresh: each(fresh, BYTES),
            large: each(large, BYTES),
            medium: each(medium, BYTES),
            small: each(small, SMALL_WRITES * 4096),
            flush_fresh: for_one(0),
            flush_over: for_one(1),
            between: (twice.flushes - large.flushes) / (BYTES / (64 << 20)) as f64,
        })
    }
}

pub(super) fn measure(bench: &Bench) -> Result<Found> {
    let dir = scratch()?;
    let source = |seed: u64| random_file(dir.path().join(format!("source-{seed}")), 2 * BYTES, seed);
    let place = Place {
        sources: [source(1)?, source(2)?],
        passphrase: Passphrase::new(dir.path())?,
        storage: empty_file(dir.path().join("sealed"), STORAGE_BYTES)?,
        _dir: dir,
    };
    let names: Vec<&str> = COLUMNS.iter().map(|(name, ..)| *name).collect();
    let mut table = format!("| beneath, for each above | {} |\n", names.join(" | "));
    writeln!(table, "|---|{}", "---|".repeat(names.len()))?;
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (cipher, kind) in [("AES-256-GCM-SIV", GCM_SIV), ("AEGIS-256X4", AEGIS)] {
        for (at, unit) in [4096, 512].into_iter().enumerate() {
            let row = format!("{cipher}, units of {unit}");
            let device = Loop::attach(&place.storage, unit, true)?;
            let volume = Volume { bench, place: &place, device, kind };
            let runs: Vec<Measured> = (0..bench.reps)
                .map(|_| volume.measure())
                .collect::<Result<_>>()
                .with_context(|| row.clone())?;
            write!(table, "| {row} |")?;
            let mut figures = serde_json::Map::new();
            for (name, value, most) in COLUMNS {
                let spread = Spread::column(&runs, value);
                write!(table, " {} |", spread.show(3))?;
                if let Some(most) = most[at] {
                    bars.push(Bar::at_most(format!("{row}: {name}"), spread.median, most));
                }
                figures.insert((*name).to_owned(), json!(spread));
            }
            table.push('\n');
            rows.push(json!({ "row": row, "figures": figures }));
        }
    }
    Ok(Found { table, bars, rows: json!(rows) })
}
