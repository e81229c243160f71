//! The tools that copy between two devices, and the measurement of one run.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Bench;
use crate::RUN_LIMIT;
use harness::procfs::{children_context_switches, children_cpu_seconds, machine_busy_seconds};
use harness::{program, run};

/// One tool's command line; `{src}` and `{dst}` are replaced by paths.
pub(super) struct Tool {
    pub(super) name: &'static str,
    words: &'static str,
}

pub(super) const OURS: usize = 0;
pub(super) const QEMU: usize = 1;
/// The tool of paper D's comparison.
pub(super) const DD_SYNC: usize = 2;

/// The tools that bars name come first, in the order of the constants above.
const TOOLS: &[Tool] = &[
    Tool { name: "hikyaku copy", words: "hikyaku copy --force --quiet {src} {dst}" },
    Tool {
        name: "qemu-img convert -W -m 8",
        words: "qemu-img convert -n -W -m 8 -S 0 -t none -T none -f raw -O raw {src} {dst}",
    },
    Tool {
        name: "dd bs=512k oflag=sync",
        words: "dd if={src} of={dst} bs=512k oflag=sync conv=notrunc status=none",
    },
    Tool {
        name: "dd bs=1M direct",
        words: "dd if={src} of={dst} bs=1M iflag=direct oflag=direct conv=notrunc status=none",
    },
];

const MORE: &[Tool] = &[
    Tool {
        name: "dd bs=512k conv=fsync",
        words: "dd if={src} of={dst} bs=512k conv=fsync,notrunc status=none",
    },
    Tool {
        name: "dd bs=8M direct",
        words: "dd if={src} of={dst} bs=8M iflag=direct oflag=direct conv=notrunc status=none",
    },
    Tool { name: "cp", words: "cp --reflink=never --sparse=never {src} {dst}" },
    Tool { name: "ddrescue direct", words: "ddrescue -q -f -d -D -c 2048 {src} {dst}" },
    Tool { name: "nbdcopy", words: "nbdcopy --flush {src} {dst}" },
];

pub(super) fn tools(all: bool) -> Vec<&'static Tool> {
    TOOLS.iter().chain(if all { MORE } else { &[] }).collect()
}

impl Tool {
    pub(super) fn command(&self, bench: &Bench, src: &Path, dst: &Path) -> Result<Command> {
        let mut words = self.words.split(' ');
        let mut command = match words.next().expect("a tool has a name") {
            "hikyaku" => bench.context.command(),
            name => program(name)?,
        };
        let [src, dst] = [src, dst].map(|path| path.display().to_string());
        command.args(words.map(|word| word.replace("{src}", &src).replace("{dst}", &dst)));
        Ok(command)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    pub(crate) gb_per_s: f64,
    pub(crate) cpu_s_per_gb: f64,
    /// CPU seconds of the whole machine, which include the kernel's work for the loop devices.
    pub(crate) machine_cpu_s_per_gb: f64,
    /// Context switches of the tool and its children.
    pub(crate) switches_per_gb: f64,
}

/// Runs a tool that copies `bytes`, and flushes the destination.
pub(crate) fn measure(command: &mut Command, dst: &Path, bytes: u64) -> Result<Measure> {
    let used = || -> Result<[f64; 3]> {
        let (user, system) = children_cpu_seconds();
        Ok([user + system, machine_busy_seconds()?, children_context_switches() as f64])
    };
    let (before, started) = (used()?, Instant::now());
    run(command, RUN_LIMIT)?.success()?;
    OpenOptions::new().write(true).open(dst)?.sync_data().context("flush the destination")?;
    let seconds = started.elapsed().as_secs_f64();
    let (after, gb) = (used()?, bytes as f64 / 1e9);
    let per_gb = |index: usize| (after[index] - before[index]) / gb;
    Ok(Measure {
        gb_per_s: gb / seconds,
        cpu_s_per_gb: per_gb(0),
        machine_cpu_s_per_gb: per_gb(1),
        switches_per_gb: per_gb(2),
    })
}

/// Runs fio, which reads the source and writes the destination concurrently; returns GB/s of the slower side.
pub(super) fn ceiling(src: &Path, dst: &Path, bytes: u64) -> Result<f64> {
    let mut fio = program("fio")?;
    fio.args(["--output-format=json", "--ioengine=io_uring", "--direct=1", "--bs=1M", "--iodepth=4"]);
    fio.args(["--fixedbufs=1", "--registerfiles=1"]);
    fio.args(["--thread", "--time_based", "--runtime=1", &format!("--size={bytes}")]);
    fio.args(["--name=r", "--rw=read", &format!("--filename={}", src.display())]);
    fio.args(["--name=w", "--rw=write", &format!("--filename={}", dst.display())]);
    let output = run(&mut fio, RUN_LIMIT)?.success()?;
    let start = output.stdout.find('{').context("no JSON from fio")?;
    let value: Value = serde_json::from_str(&output.stdout[start..]).context("output of fio")?;
    let rate =
        |job: usize, way: &str| value["jobs"][job][way]["bw_bytes"].as_f64().context("no figure from fio");
    Ok(rate(0, "read")?.min(rate(1, "write")?) / 1e9)
}
