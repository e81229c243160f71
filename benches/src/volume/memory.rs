//! Copies between loop devices over tmpfs, into volumes and out of them.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::super::Spread;
use super::super::bars::Bar;
use super::super::copy::{Measure, measure_copy};
use super::made::{AEGIS, GCM_SIV, Kind, Passphrase};
use super::{Bench, Found, RUN_LIMIT};
use harness::files::{Loop, empty_file, random_file};
use harness::{program, run, scratch};

/// Room for the header of a volume, and for the metadata of blocks that are authenticated.
const ROOM: u64 = 256 << 20;
const QEMU_ATTEMPTS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    In,
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Ours(Kind),
    /// `qemu-img convert -W -m 8` with its luks driver (LUKS1, aes-256-xts).
    Qemu,
}

struct Row {
    name: &'static str,
    tool: Tool,
    /// Over what an earlier copy wrote, not into a fresh volume.
    overwrites: bool,
    /// Bytes that the volume's storage writes whole: with 512 a volume has a journal.
    unit: u32,
    /// Least share of the plain copy.
    least: Option<f64>,
}

const fn row(name: &'static str, kind: Kind, least: Option<f64>) -> Row {
    Row { name, tool: Tool::Ours(kind), overwrites: false, unit: 512, least }
}

/// A row of authenticated volumes.
const fn auth(name: &'static str, kind: Kind, unit: u32, overwrites: bool, least: Option<f64>) -> Row {
    Row { unit, overwrites, ..row(name, kind, least) }
}

const ROWS: &[Row] = &[
    row("plain", Kind::Plain, None),
    row("luks2, sectors of 4096", Kind::Luks2 { sector: Some(4096) }, Some(0.75)),
    row("luks2, sectors of 512", Kind::Luks2 { sector: Some(512) }, Some(0.65)),
    auth("auth, AEGIS-256X4", AEGIS, 4096, false, Some(0.70)),
    auth("auth, AEGIS-256X4, overwriting", AEGIS, 4096, true, Some(0.55)),
    auth("auth, AES-256-GCM-SIV", GCM_SIV, 4096, false, Some(0.35)),
    auth("auth, AES-256-GCM-SIV, overwriting", GCM_SIV, 4096, true, Some(0.28)),
    auth("auth, AEGIS-256X4, overwriting, units of 512", AEGIS, 512, true, None),
    auth("auth, AES-256-GCM-SIV, overwriting, units of 512", GCM_SIV, 512, true, None),
    Row { tool: Tool::Qemu, ..row("qemu-img convert -W -m 8, luks", Kind::Plain, None) },
];

struct Place {
    dir: TempDir,
    /// Plain bytes.
    plain: Loop,
    /// The volume's storage, attached for each row.
    sealed: Loop,
    unit: u32,
    passphrase: Passphrase,
}

impl Place {
    fn new(bytes: u64) -> Result<Self> {
        let dir = scratch()?;
        let file = random_file(dir.path().join("plain"), bytes, 1)?;
        let plain = Loop::attach(&file, 512, true)?;
        let file = empty_file(dir.path().join("sealed"), bytes + ROOM)?;
        let (unit, sealed) = (512, Loop::attach(&file, 512, true)?);
        std::fs::write(dir.path().join("secret"), "of a benchmark")?;
        let passphrase = Passphrase::new(dir.path())?;
        Ok(Self { dir, plain, sealed, unit, passphrase })
    }

    /// Attaches the volume's storage as a device that writes `unit` bytes whole.
    fn set_unit(&mut self, unit: u32) -> Result<()> {
        if std::mem::replace(&mut self.unit, unit) != unit {
            self.sealed = Loop::attach(&self.dir.path().join("sealed"), unit, true)?;
        }
        Ok(())
    }

    fn secret(&self) -> String {
        format!("secret,id=s,file={}", self.dir.path().join("secret").display())
    }

    /// Makes the volume anew, of a new key.
    fn format(&self, bench: &Bench, tool: Tool) -> Result<()> {
        let sealed = self.sealed.path();
        match tool {
            Tool::Ours(kind) => {
                self.passphrase.format(bench.context.command(), &self.sealed.text(), kind, &[])
            }
            Tool::Qemu => {
                let mut command = program("qemu-img")?;
                command.args(["create", "-q", "-f", "luks", "--object", &self.secret()]);
                command.args(["-o", "key-secret=s,iter-time=100"]).arg(sealed).arg(bench.bytes.to_string());
                // QEMU gives up where its clock shows no time for a derivation ("unable to get accurate CPU usage").
                let mut made = run(&mut command, RUN_LIMIT)?;
                for _ in 0..QEMU_ATTEMPTS {
                    if made.code == Some(0) {
                        break;
                    }
                    made = run(&mut command, RUN_LIMIT)?;
                }
                made.success().map(drop)
            }
        }
    }

    fn sealed_words(&self, tool: Tool) -> String {
        let kind = if let Tool::Ours(kind) = tool { kind } else { Kind::Plain };
        self.passphrase.endpoint(&self.sealed.text(), kind)
    }

    /// Writes all blocks of the volume, with other content than what is copied over it: a block that a copy leaves is
    /// found by [`Self::compare`].
    fn fill(&self, bench: &Bench, tool: Tool) -> Result<()> {
        let pattern = format!("pattern:{}:7", bench.bytes);
        let mut command = bench.context.command();
        command.args(["copy", "--force", "--quiet", "--allow", "sector-size", &pattern]);
        run(command.arg(self.sealed_words(tool)), RUN_LIMIT)?.success().map(drop)
    }

    fn copy(&self, bench: &Bench, tool: Tool, way: Way) -> Result<Command> {
        let plain = self.plain.text();
        if tool == Tool::Qemu {
            let mut command = program("qemu-img")?;
            let device = self.sealed.path().display();
            command.args([
                "convert",
                "-n",
                "-W",
                "-m",
                "8",
                "-S",
                "0",
                "--object",
                &self.secret(),
                "-t",
                "none",
            ]);
            match way {
                Way::In => {
                    let image =
                        format!("driver=luks,key-secret=s,file.driver=host_device,file.filename={device}");
                    command.args(["-T", "none", "-f", "raw", &plain, "--target-image-opts", &image]);
                }
                // The image is larger than the data.
                Way::Out => {
                    let file = format!("file.file.driver=host_device,file.file.filename={device}");
                    let image =
                        format!("driver=raw,size={},file.driver=luks,file.key-secret=s,{file}", bench.bytes);
                    command.args(["--image-opts", &image, "-O", "raw", &plain]);
                }
            }
            return Ok(command);
        }
        let size = bench.bytes.to_string();
        let sealed = self.sealed_words(tool);
        let [from, to] = if way == Way::In { [plain, sealed] } else { [sealed, plain] };
        let mut command = bench.context.command();
        command.args(["copy", "--force", "--quiet", "--allow", "sector-size", "--size", &size, &from, &to]);
        Ok(command)
    }

    /// Every byte, through a fresh process.
    fn compare(&self, bench: &Bench, tool: Tool) -> Result<()> {
        let mut command = bench.context.command();
        let size = bench.bytes.to_string();
        command.args(["compare", "--quiet", "--size", &size]);
        command.arg(self.plain.path()).arg(self.sealed_words(tool));
        run(&mut command, RUN_LIMIT)?.success().map(drop)
    }

    fn destination(&self, way: Way) -> &Path {
        if way == Way::In { self.sealed.path() } else { self.plain.path() }
    }
}

pub(super) fn measure(bench: &Bench, way: Way) -> Result<Found> {
    let mut place = Place::new(bench.bytes)?;
    let mut runs: Vec<Vec<Measure>> = vec![Vec::new(); ROWS.len()];
    // The first round warms up and is not counted.
    for rep in 0..=bench.reps {
        for (row, runs) in ROWS.iter().zip(&mut runs) {
            place.set_unit(row.unit)?;
            place.format(bench, row.tool)?;
            if way == Way::Out && row.overwrites {
                continue;
            }
            if row.overwrites {
                place.fill(bench, row.tool)?;
            } else if way == Way::Out {
                run(&mut place.copy(bench, row.tool, Way::In)?, RUN_LIMIT)?.success()?;
            }
            let mut command = place.copy(bench, row.tool, way)?;
            let measured =
                measure_copy(&mut command, place.destination(way), bench.bytes).with_context(|| row.name)?;
            if rep > 0 {
                runs.push(measured);
            }
            if row.tool != Tool::Qemu && (rep == 0 || rep == bench.reps) {
                place.compare(bench, row.tool).with_context(|| format!("{} did not copy", row.name))?;
            }
        }
    }
    let speed = |index: usize| Spread::column(&runs[index], |run| run.gb_per_s);
    let plain = speed(0).median;
    ensure!(plain > 0.0, "no figure of the plain copy");
    let mut table = format!(
        "| {} MiB, loop devices over tmpfs | GB/s | of plain | CPU s/GB | machine CPU s/GB |\n|---|---|---|---|---|\n",
        bench.bytes >> 20
    );
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (index, row) in ROWS.iter().enumerate().filter(|(index, _)| !runs[*index].is_empty()) {
        let speed = speed(index);
        let cpu = Spread::column(&runs[index], |run| run.cpu_s_per_gb);
        let machine = Spread::column(&runs[index], |run| run.machine_cpu_s_per_gb);
        let share = speed.median / plain;
        writeln!(
            table,
            "| {} | {} | {:.0} % | {} | {} |",
            row.name,
            speed.show(2),
            100.0 * share,
            cpu.show(3),
            machine.show(3)
        )?;
        if let Some(least) = row.least {
            bars.push(Bar::at_least(row.name, share, least));
        }
        rows.push(json!({ "row": row.name, "gb_per_s": speed, "cpu_s_per_gb": cpu, "machine_cpu_s_per_gb": machine }));
    }
    let qemu = speed(ROWS.len() - 1).median;
    bars.push(Bar::at_least("luks2, sectors of 4096, to qemu-img's luks", speed(1).median / qemu, 4.0));
    Ok(Found { table, bars, rows: json!(rows) })
}
