//! Copies into volumes on storage that is slower than their ciphers: a disk, and a LUN behind a link of 1 Gbit/s.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::super::Spread;
use super::super::bars::Bar;
use super::super::copy::{Measure, Place, measure_copy};
use super::super::sealed::link::{Kind as LinkKind, Link, TARGET};
use super::super::sealed::rig::PORT;
use super::made::{AEGIS, GCM_SIV, Kind, LUKS2, Passphrase};
use super::{Bench, Found, RUN_LIMIT};
use harness::files::random_file;
use harness::process::Surroundings;
use harness::{Disk, Target, run, scratch};

/// Room for the header of a volume, and for the contexts of its blocks.
const ROOM: u64 = 128 << 20;
const LINK_MBIT: u32 = 1000;
/// 3 to 4 seconds of the link.
const LINK_BYTES: u64 = 384 << 20;

struct Row {
    name: &'static str,
    kind: Kind,
    /// The row before wrote the volume.
    overwrites: bool,
    /// Least share of the plain copy.
    least: Option<f64>,
}

const fn row(name: &'static str, kind: Kind, overwrites: bool, least: Option<f64>) -> Row {
    Row { name, kind, overwrites, least }
}

const ROWS: &[Row] = &[
    row("plain", Kind::Plain, false, None),
    row("luks2", LUKS2, false, Some(0.95)),
    row("auth, AES-256-GCM-SIV", GCM_SIV, false, Some(0.95)),
    row("auth, AES-256-GCM-SIV, overwriting", GCM_SIV, true, Some(0.85)),
    row("auth, AEGIS-256X4", AEGIS, false, Some(0.95)),
    row("auth, AEGIS-256X4, overwriting", AEGIS, true, Some(0.85)),
];

/// Where volumes are made, and from where.
struct Storage {
    what: String,
    endpoint: String,
    /// What the endpoint writes.
    file: PathBuf,
    bytes: u64,
    initiator: Surroundings,
}

/// Two different contents in memory: what overwrites differs from what it overwrites.
struct Sources {
    files: [PathBuf; 2],
    passphrase: Passphrase,
    _dir: TempDir,
}

impl Sources {
    fn new(bytes: u64) -> Result<Self> {
        let dir = scratch()?;
        let source = |seed: u64| random_file(dir.path().join(format!("source-{seed}")), bytes, seed);
        Ok(Self { files: [source(1)?, source(2)?], passphrase: Passphrase::new(dir.path())?, _dir: dir })
    }
}

impl Storage {
    fn command(&self, bench: &Bench) -> Command {
        let mut command = bench.context.command();
        self.initiator.apply(&mut command);
        command
    }

    fn measure(&self, bench: &Bench, sources: &Sources, row: &Row, compares: bool) -> Result<Measure> {
        if !row.overwrites {
            sources.passphrase.format(self.command(bench), &self.endpoint, row.kind, &[])?;
        }
        let size = self.bytes.to_string();
        let source = &sources.files[usize::from(row.overwrites)];
        let endpoint = sources.passphrase.endpoint(&self.endpoint, row.kind);
        let mut command = self.command(bench);
        command.args(["copy", "--force", "--quiet", "--size", &size]).arg(source).arg(&endpoint);
        let measured = measure_copy(&mut command, &self.file, self.bytes)?;
        if compares {
            let mut command = self.command(bench);
            command.args(["compare", "--quiet", "--size", &size]).arg(source).arg(&endpoint);
            run(&mut command, RUN_LIMIT)?.success()?;
        }
        Ok(measured)
    }

    fn table(&self, bench: &Bench) -> Result<Found> {
        let sources = Sources::new(self.bytes)?;
        let mut runs: Vec<Vec<Measure>> = vec![Vec::new(); ROWS.len()];
        // The first round warms up and is not counted.
        for rep in 0..=bench.reps {
            let compares = rep == 0 || rep == bench.reps;
            for (row, runs) in ROWS.iter().zip(&mut runs) {
                let measured = self.measure(bench, &sources, row, compares).context(row.name)?;
                if rep > 0 {
                    runs.push(measured);
                }
            }
        }
        let plain = Spread::column(&runs[0], |run| run.gb_per_s).median;
        ensure!(plain > 0.0, "no figure of the plain copy");
        let mut table = format!(
            "| {} MiB from memory, {} | MB/s | of plain | CPU s/GB |\n|---|---|---|---|\n",
            self.bytes >> 20,
            self.what
        );
        let (mut rows, mut bars) = (Vec::new(), Vec::new());
        for (row, runs) in ROWS.iter().zip(&runs) {
            let speed = Spread::column(runs, |run| 1e3 * run.gb_per_s);
            let cpu = Spread::column(runs, |run| run.cpu_s_per_gb);
            let share = speed.median / 1e3 / plain;
            let shown = speed.show(if plain > 1.0 { 0 } else { 1 });
            writeln!(table, "| {} | {shown} | {:.1} % | {} |", row.name, 100.0 * share, cpu.show(3))?;
            if let Some(least) = row.least {
                bars.push(Bar::at_least(row.name, share, least));
            }
            rows.push(json!({ "row": row.name, "mb_per_s": speed, "cpu_s_per_gb": cpu }));
        }
        Ok(Found { table, bars, rows: json!(rows) })
    }
}

/// A file of a disk, written before, so that no run includes its allocation.
fn destination(folder: &Path, bytes: u64) -> Result<PathBuf> {
    random_file(folder.join("destination"), bytes + ROOM, 3)
}

pub(super) fn disk(bench: &Bench) -> Result<Found> {
    let folder = Place::Disk.folder()?;
    let file = destination(folder.path(), bench.bytes)?;
    let storage = Storage {
        what: "to a file of a disk, O_DIRECT".to_owned(),
        endpoint: file.display().to_string(),
        file,
        bytes: bench.bytes,
        initiator: Surroundings::default(),
    };
    storage.table(bench)
}

pub(super) fn link(bench: &Bench, rtt: Duration) -> Result<Found> {
    let kind = match rtt {
        Duration::ZERO => LinkKind::Rate { mbit: LINK_MBIT },
        rtt => LinkKind::Wan { mbit: LINK_MBIT, rtt },
    };
    let link = Link::new(kind)?;
    link.sysctl("net/ipv4/tcp_congestion_control", "cubic")?;
    let [initiator, target] = link.sides();
    let folder = scratch()?;
    let file = destination(folder.path(), LINK_BYTES)?;
    let listen = format!("0.0.0.0:{PORT}");
    let arguments = ["--seal", "off", "--listen", &listen];
    let served = Target::serve_with(&bench.context, &[Disk::file(&file)], None, &arguments, &target)?;
    let storage = Storage {
        what: format!("to a LUN, {LINK_MBIT} Mbit/s, round trip {} ms", rtt.as_millis()),
        endpoint: served.url(0).at(&format!("{TARGET}:{PORT}")).to_string(),
        file,
        bytes: LINK_BYTES,
        initiator,
    };
    storage.table(bench)
}
