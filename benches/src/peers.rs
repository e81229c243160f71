//! Runs the peer programs and parses their figures.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::RUN_LIMIT;
use harness::procfs::{children_cpu_seconds, cpu_seconds};
use harness::{Running, Url, free_port, program, run};

/// Length of a timed run: CPU ticks of 10 ms and start-up become negligible.
const SECONDS: f64 = 1.0;
const SECONDS_QUICK: f64 = 0.3;
/// Bytes of the run that measures the rate, from which the number of requests of a timed run follows.
const PROBE_BYTES: u64 = 24 << 20;
const PROBE_REQUESTS_MAX: u64 = 3000;
const PROBE_REQUESTS_MIN: u64 = 64;

pub(super) fn seconds(quick: bool) -> f64 {
    if quick { SECONDS_QUICK } else { SECONDS }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) write: bool,
    pub(super) block: u64,
    pub(super) depth: u32,
}

impl Shape {
    pub(super) const fn new(write: bool, block: u64, depth: u32) -> Self {
        Self { write, block, depth }
    }

    /// For example `read-4K-qd32`.
    pub(super) fn name(self) -> String {
        let operation = if self.write { "write" } else { "read" };
        let block = if self.block >= 1 << 20 { "1M".into() } else { format!("{}K", self.block >> 10) };
        format!("{operation}-{block}-qd{}", self.depth)
    }

    pub(super) fn probe(self) -> u64 {
        (PROBE_BYTES / self.block).clamp(PROBE_REQUESTS_MIN, PROBE_REQUESTS_MAX)
    }

    /// Number of requests that take about `seconds` at this rate.
    pub(super) fn count(self, mb_per_s: f64, seconds: f64) -> u64 {
        ((mb_per_s * 1e6 * seconds) as u64 / self.block).max(self.probe())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct QemuRun {
    pub(super) mb_per_s: f64,
    pub(super) target_cpu_s_per_gb: f64,
    pub(super) initiator_cpu_s_per_gb: f64,
}

/// `count` requests of one shape by `qemu-img bench`.
fn load(url: &Url, shape: Shape, count: u64) -> Result<Command> {
    let mut command = program("qemu-img")?;
    command.args(["bench", "-f", "raw", "-t", "none", "-d", &shape.depth.to_string()]);
    command.args(["-s", &shape.block.to_string(), "-c", &count.to_string()]);
    if shape.write {
        command.arg("-w");
    }
    command.arg(url.to_string());
    Ok(command)
}

/// Runs `qemu-img bench`; returns the seconds that it reports.
fn load_seconds(command: &mut Command) -> Result<f64> {
    let output = run(command, RUN_LIMIT)?.success()?;
    let seconds = output.stdout.split_once("completed in ");
    let seconds: Option<f64> = seconds.and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    let seconds = seconds.with_context(|| format!("no time in: {}", output.stdout))?;
    ensure!(seconds > 0.0, "{}: {seconds} seconds", output.line);
    Ok(seconds)
}

/// Runs `count` requests of one shape against the LUN that process `pid` serves.
pub(super) fn qemu_img_bench(url: &Url, pid: u32, shape: Shape, count: u64) -> Result<QemuRun> {
    let mut command = load(url, shape, count)?;
    let (before, own) = (cpu_seconds(pid)?, children_cpu_seconds());
    let seconds = load_seconds(&mut command)?;
    let (after, own_after) = (cpu_seconds(pid)?, children_cpu_seconds());
    let bytes = (count * shape.block) as f64;
    let gb = bytes / 1e9;
    Ok(QemuRun {
        mb_per_s: bytes / 1e6 / seconds,
        target_cpu_s_per_gb: (after.0 + after.1 - before.0 - before.1) / gb,
        initiator_cpu_s_per_gb: (own_after.0 + own_after.1 - own.0 - own.1) / gb,
    })
}

/// Runs `count` writes with a flush after each `interval` of them, for which all writes before it have ended. Returns
/// MB/s.
pub(super) fn qemu_img_bench_flushing(url: &Url, shape: Shape, count: u64, interval: u64) -> Result<f64> {
    let mut command = load(url, shape, count)?;
    let seconds = load_seconds(command.args(["--flush-interval", &interval.to_string()]))?;
    Ok((count * shape.block) as f64 / 1e6 / seconds)
}

/// One TCP stream over loopback, MB/s; `length` is the size of each read and write.
pub(super) fn iperf(seconds: f64, length: Option<&str>) -> Result<f64> {
    let port = free_port()?.to_string();
    let mut server = program("iperf3")?;
    let mut server =
        Running::start(server.args(["-s", "-B", "127.0.0.1", "-p", &port, "-1", "--forceflush"]))?;
    server.wait_stdout("iperf3 server", Duration::from_secs(10), |text| {
        text.contains("listening").then_some(())
    })?;
    let mut client = program("iperf3")?;
    // `iperf3 -t` accepts whole seconds only.
    client.args(["-c", "127.0.0.1", "-p", &port, "-J", "-t", &seconds.ceil().to_string()]);
    if let Some(length) = length {
        client.args(["-l", length]);
    }
    let value = run(&mut client, Duration::from_secs(60))?.success()?.json()?;
    let bits = value["end"]["sum_received"]["bits_per_second"].as_f64().context("no figure from iperf3")?;
    Ok(bits / 8e6)
}

const VERIFY_BYTES: u64 = 16 << 20;

/// Writes a pattern through the target by `qemu-io`, flushes, reads it back through the target, and compares the
/// backing file.
pub(super) fn verify(url: &Url, image: &std::path::Path, pattern: u8) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let (write, read) =
        (format!("write -P {pattern} 0 {VERIFY_BYTES}"), format!("read -P {pattern} 0 {VERIFY_BYTES}"));
    let mut command = program("qemu-io")?;
    command.args(["-f", "raw", "-t", "none", "-c", &write, "-c", "flush", "-c", &read]);
    let output = run(command.arg(url.to_string()), RUN_LIMIT)?.success()?;
    ensure!(!output.text().contains("verification failed"), "{url}: {}", output.text());
    let file = std::fs::File::open(image)?;
    let mut bytes = vec![0; 1 << 20];
    for offset in (0..VERIFY_BYTES).step_by(bytes.len()) {
        file.read_exact_at(&mut bytes, offset)?;
        let is_there = bytes.iter().all(|byte| *byte == pattern);
        ensure!(is_there, "{url}: flushed, but {} lacks it near {offset}", image.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_names_and_counts() {
        let shape = Shape { write: false, block: 4096, depth: 32 };
        assert_eq!(shape.name(), "read-4K-qd32");
        assert_eq!(shape.count(409.6, 1.0), 100_000);
        let shape = Shape { write: true, block: 1 << 20, depth: 1 };
        assert_eq!((shape.name().as_str(), shape.count(1.0, 1.0)), ("write-1M-qd1", PROBE_REQUESTS_MIN));
    }
}
