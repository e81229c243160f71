//! 4 KiB requests, 32 at a time, at LUNs whose media are volumes in files in memory.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::super::Spread;
use super::super::bars::Bar;
use super::super::ends::run::{PATTERN, Sample, bench_path};
use super::super::peers::{Shape, qemu_img_bench_flushing};
use super::made::{AEGIS, GCM_SIV, Kind, LUKS2, Passphrase};
use super::{Bench, Found, RUN_LIMIT};
use harness::{Disk, Target, run, scratch};

/// Contexts of 1 GiB (AES-256-GCM-SIV) or 640 MiB (AEGIS) stay in memory.
const SMALL_BYTES: u64 = 256 << 20;
const LARGE_BYTES: u64 = 4 << 30;
/// A limit that is never reached keeps the plain file from being lent to the kernel page by page: that takes sequential
/// reads 0.9 and random reads of 4 KiB 2.7 times as long, and no volume can be lent.
const NOT_LENT: &str = "limit=1000GB/s";
/// Length of a run that is timed.
const SECONDS: &str = "1";
/// Writes that are flushed together, and how many a run has.
const FLUSH_INTERVAL: u64 = 32;
const FLUSHED: u64 = 32 * 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Reads,
    /// Of a region whose contexts do not stay in memory.
    LargeReads,
    Writes,
    FlushedWrites,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads of 256 MiB",
            Self::LargeReads => "reads of 4 GiB, contexts not cached",
            Self::Writes => "writes",
            Self::FlushedWrites => "writes, flushed by 32",
        }
    }

    fn bytes(self) -> u64 {
        if self == Self::LargeReads { LARGE_BYTES } else { SMALL_BYTES }
    }

    fn is_write(self) -> bool {
        matches!(self, Self::Writes | Self::FlushedWrites)
    }
}

const KINDS: [(&str, Kind); 4] = [
    ("plain", Kind::Plain),
    ("luks2", LUKS2),
    ("auth, AES-256-GCM-SIV", GCM_SIV),
    ("auth, AEGIS-256X4", AEGIS),
];
const LOADS: [Load; 4] = [Load::Reads, Load::LargeReads, Load::Writes, Load::FlushedWrites];

/// Least share of the plain LUN.
fn least(kind: Kind, load: Load) -> Option<f64> {
    match (kind, load) {
        (Kind::Luks2 { .. }, Load::Reads) => Some(0.85),
        (Kind::Auth { .. }, Load::Reads) => Some(0.75),
        (Kind::Auth { .. }, Load::LargeReads) => Some(0.40),
        _ => None,
    }
}

struct Cell {
    name: &'static str,
    kind: Kind,
    load: Load,
    lun: usize,
}

struct Luns {
    target: Target,
    _dir: TempDir,
}

impl Luns {
    /// A LUN for each cell; both kinds of writes share theirs.
    fn new(bench: &Bench, cells: &mut [Cell]) -> Result<Self> {
        let dir = scratch()?;
        let passphrase = Passphrase::new(dir.path())?;
        let mut disks = Vec::new();
        for index in 0..cells.len() {
            let Cell { kind, load, .. } = cells[index];
            let shared = cells[..index].iter().find(|cell| cell.kind == kind && cell.load.is_write());
            if let Some(lun) = shared.filter(|_| load.is_write()).map(|cell| cell.lun) {
                cells[index].lun = lun;
                continue;
            }
            let file = dir.path().join(index.to_string()).display().to_string();
            let size = load.bytes().to_string();
            if kind == Kind::Plain {
                std::fs::File::create(&file)?.set_len(load.bytes())?;
            } else {
                let place = format!("{file},create");
                passphrase.format(bench.context.command(), &place, kind, &["--data-size", &size])?;
            }
            cells[index].lun = disks.len();
            let endpoint = passphrase.endpoint(&file, kind);
            let pattern = format!("pattern:{size}:{PATTERN}");
            bench.context.ours(&["copy", "--force", "--quiet", &pattern, &endpoint], RUN_LIMIT)?.success()?;
            let disk = Disk::endpoint(endpoint);
            disks.push(if kind == Kind::Plain { disk.option(NOT_LENT) } else { disk });
        }
        Ok(Self { target: Target::serve(&bench.context, &disks, None, &[])?, _dir: dir })
    }

    /// Requests a second; all that is read and written is verified, but for the flushed writes of QEMU.
    fn measure(&self, bench: &Bench, cell: &Cell) -> Result<f64> {
        let (url, shape) = (self.target.url(cell.lun), Shape::new(cell.load.is_write(), 4096, 32));
        if cell.load == Load::FlushedWrites {
            let mb_per_s = qemu_img_bench_flushing(url, shape, FLUSHED, FLUSH_INTERVAL)?;
            return Ok(mb_per_s * 1e6 / 4096.0);
        }
        let mut command = bench_path(&bench.context, &url.to_string(), shape);
        command.args([
            "--random",
            "--seconds",
            SECONDS,
            "--range",
            &cell.load.bytes().to_string(),
            "--verify",
        ]);
        if !cell.load.is_write() {
            command.args(["--pattern", PATTERN]);
        }
        let sample = Sample::read(&run(&mut command, RUN_LIMIT)?.success()?)?;
        ensure!(sample.verified, "not verified");
        Ok(sample.per_second)
    }
}

pub(super) fn measure(bench: &Bench) -> Result<Found> {
    let mut cells = Vec::new();
    for load in LOADS {
        for (name, kind) in KINDS {
            if load != Load::LargeReads || kind != LUKS2 {
                cells.push(Cell { name, kind, load, lun: 0 });
            }
        }
    }
    let luns = Luns::new(bench, &mut cells)?;
    let mut runs = vec![Vec::new(); cells.len()];
    // The first round warms up and is not counted.
    for rep in 0..=bench.reps {
        for (cell, runs) in cells.iter().zip(&mut runs) {
            let rate = luns
                .measure(bench, cell)
                .with_context(|| format!("{} of {}", cell.load.name(), cell.name))?;
            if rep > 0 {
                runs.push(rate / 1e3);
            }
        }
    }
    let mut table = "| 4 KiB, 32 at a time, random, files in memory | | thousands a second | of plain |\n|---|---|---|---|\n"
        .to_owned();
    let (mut rows, mut bars, mut plain) = (Vec::new(), Vec::new(), f64::NAN);
    for (cell, runs) in cells.iter().zip(&runs) {
        let (rate, load) = (Spread::of(runs), cell.load.name());
        // The plain LUN is the first of each load.
        if cell.kind == Kind::Plain {
            plain = rate.median;
        }
        let share = rate.median / plain;
        writeln!(table, "| {load} | {} | {} | {:.0} % |", cell.name, rate.show(1), 100.0 * share)?;
        if let Some(least) = least(cell.kind, cell.load) {
            bars.push(Bar::at_least(format!("{}, {load}", cell.name), share, least));
        }
        rows.push(json!({ "row": cell.name, "load": load, "thousands_per_s": rate }));
    }
    Ok(Found { table, bars, rows: json!(rows) })
}
