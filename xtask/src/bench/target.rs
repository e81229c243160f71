//! Our target beside tgt: one initiator (`qemu-img bench`), one file in memory, both daemons up all the time and
//! only one at work. Target CPU is the daemon's own, from /proc, threads included.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{Common, Spread, filter_rows, geometric_mean};
use crate::evidence;
use crate::harness::files::random_file;
use crate::harness::procfs::{children_cpu_seconds, cpu_seconds};
use crate::harness::{
    Against, Context, Disk, Running, Served, Tgt, Tier, Url, free_port, program, run, scratch,
};

const IMAGE_BYTES: u64 = 512 << 20;
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// What a run should take, so that CPU ticks of 10 ms and start-up do not blur it.
const SECONDS: f64 = 1.0;
const SECONDS_QUICK: f64 = 0.3;
/// Requests of the run that finds out how many make up that time.
const PROBE_BYTES: u64 = 24 << 20;
const PROBE_REQUESTS_MAX: u64 = 3000;
const PROBE_REQUESTS_MIN: u64 = 64;

/// One cell of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    write: bool,
    block: u64,
    depth: u32,
}

impl Row {
    fn name(self) -> String {
        let operation = if self.write { "write" } else { "read" };
        let block = if self.block >= 1 << 20 { "1M".into() } else { format!("{}K", self.block >> 10) };
        format!("{operation}-{block}-qd{}", self.depth)
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Measure {
    mb_per_s: f64,
    target_cpu_s_per_gb: f64,
    initiator_cpu_s_per_gb: f64,
}

fn bench(url: &Url, pid: u32, row: Row, count: u64) -> Result<Measure> {
    let mut command = program("qemu-img")?;
    command.args([
        "bench",
        "-f",
        "raw",
        "-t",
        "none",
        "-d",
        &row.depth.to_string(),
        "-s",
        &row.block.to_string(),
    ]);
    command.args(["-c", &count.to_string()]);
    if row.write {
        command.arg("-w");
    }
    command.arg(url.to_string());
    let (before, own) = (cpu_seconds(pid)?, children_cpu_seconds());
    let output = run(&mut command, RUN_LIMIT)?.success()?;
    let (after, own_after) = (cpu_seconds(pid)?, children_cpu_seconds());
    let seconds: f64 = output
        .stdout
        .split("completed in ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("no time in: {}", output.stdout))?;
    if seconds <= 0.0 {
        bail!("{}: {seconds} seconds", output.line);
    }
    let bytes = (count * row.block) as f64;
    let gb = bytes / 1e9;
    Ok(Measure {
        mb_per_s: bytes / 1e6 / seconds,
        target_cpu_s_per_gb: (after.0 + after.1 - before.0 - before.1) / gb,
        initiator_cpu_s_per_gb: (own_after.0 + own_after.1 - own.0 - own.1) / gb,
    })
}

/// One TCP stream over loopback, MB/s: what no iSCSI target here can exceed with one connection.
fn ceiling(seconds: u32) -> Result<f64> {
    let port = free_port()?.to_string();
    let mut server = program("iperf3")?;
    let mut server =
        Running::start(server.args(["-s", "-B", "127.0.0.1", "-p", &port, "-1", "--forceflush"]))?;
    server.wait_stdout("iperf3 server", Duration::from_secs(10), |text| {
        text.contains("listening").then_some(())
    })?;
    let mut client = program("iperf3")?;
    client.args(["-c", "127.0.0.1", "-p", &port, "-J", "-t", &seconds.to_string()]);
    let output = run(&mut client, Duration::from_secs(60))?.success()?;
    let value: Value = serde_json::from_str(&output.stdout).context("output of iperf3")?;
    let bits = value["end"]["sum_received"]["bits_per_second"].as_f64().context("no figure from iperf3")?;
    Ok(bits / 8e6)
}

fn column(runs: &[Measure], value: fn(&Measure) -> f64) -> Spread {
    Spread::of(&runs.iter().map(value).collect::<Vec<_>>())
}

pub(super) fn run_table(common: &Common, hikyaku: PathBuf) -> Result<bool> {
    let mut rows = Vec::new();
    for write in [false, true] {
        for block in [4 << 10, 64 << 10, 256 << 10, 1 << 20] {
            rows.extend([1, 32].map(|depth| Row { write, block, depth }));
        }
    }
    let rows = filter_rows(rows, common.rows.as_deref(), |row| row.name())?;
    let context = Context {
        repository: crate::steps::repository(),
        hikyaku,
        seed: 1,
        tier: Tier::Full,
        against: Against::Ours,
        home: scratch()?,
    };
    let dir = scratch()?;
    let image = dir.path().join("disk.img");
    random_file(&image, IMAGE_BYTES, 1)?;
    let disks = [Disk::file(&image)];
    let mut ours = context.serve(&disks, None)?;
    let tgt = Tgt::serve(&disks, None)?;
    let (ours_url, ours_pid) = (ours.url(0).clone(), ours.pid());
    let mut tgt = Served::Tgt(tgt);
    let (tgt_url, tgt_pid) = (tgt.url(0).clone(), tgt.pid());

    let seconds = if common.quick { SECONDS_QUICK } else { SECONDS };
    let ceiling_seconds = if common.quick { 1 } else { 3 };
    let ceiling_before = ceiling(ceiling_seconds)?;
    println!(
        "\n| op-block-depth | ours MB/s | tgt MB/s | ratio | ours target CPU s/GB | tgt target CPU s/GB | ratio | \
         ours / tgt initiator CPU s/GB |\n|---|---|---|---|---|---|---|---|"
    );
    let (mut table, mut speed, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let probe = (PROBE_BYTES / row.block).clamp(PROBE_REQUESTS_MIN, PROBE_REQUESTS_MAX);
        let mut slowest = f64::INFINITY;
        for (url, pid) in [(&ours_url, ours_pid), (&tgt_url, tgt_pid)] {
            slowest = slowest.min(bench(url, pid, row, probe)?.mb_per_s);
        }
        // Both sides move the same number of bytes; the slower one takes about `seconds`.
        let count = ((slowest * 1e6 * seconds) as u64 / row.block).max(probe);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for rep in 0..common.reps {
            // Whoever goes second may profit from the first: take turns.
            for ours_now in [rep % 2 == 0, rep % 2 == 1] {
                if ours_now {
                    a.push(bench(&ours_url, ours_pid, row, count)?);
                } else {
                    b.push(bench(&tgt_url, tgt_pid, row, count)?);
                }
            }
        }
        ours.alive()?;
        tgt.alive()?;
        let (fast_a, fast_b) = (column(&a, |run| run.mb_per_s), column(&b, |run| run.mb_per_s));
        let (cpu_a, cpu_b) =
            (column(&a, |run| run.target_cpu_s_per_gb), column(&b, |run| run.target_cpu_s_per_gb));
        let (own_a, own_b) =
            (column(&a, |run| run.initiator_cpu_s_per_gb), column(&b, |run| run.initiator_cpu_s_per_gb));
        let (ratio, cpu_ratio) = (fast_a.median / fast_b.median, cpu_a.median / cpu_b.median);
        speed.push(ratio);
        if cpu_ratio.is_finite() && cpu_ratio > 0.0 {
            cpu.push(cpu_ratio);
        }
        println!(
            "| {} | {} | {} | {ratio:.2} | {} | {} | {cpu_ratio:.2} | {:.2} / {:.2} |",
            row.name(),
            fast_a.show(0),
            fast_b.show(0),
            cpu_a.show(2),
            cpu_b.show(2),
            own_a.median,
            own_b.median
        );
        table.push(json!({
            "row": row.name(), "requests": count, "block_bytes": row.block, "depth": row.depth,
            "ours": {"mb_per_s": fast_a, "target_cpu_s_per_gb": cpu_a, "initiator_cpu_s_per_gb": own_a},
            "tgt": {"mb_per_s": fast_b, "target_cpu_s_per_gb": cpu_b, "initiator_cpu_s_per_gb": own_b},
            "ratio": ratio, "cpu_ratio": cpu_ratio,
        }));
    }
    let ceiling_after = ceiling(ceiling_seconds)?;
    let (speed_mean, cpu_mean) = (geometric_mean(&speed), geometric_mean(&cpu));
    println!("| geometric mean | | | {speed_mean:.2} | | | {cpu_mean:.2} | |");
    println!(
        "| ceiling: iperf3, one stream, before and after | {ceiling_before:.0} | {ceiling_after:.0} | | | | | |"
    );
    println!(
        "\nmedian of {} interleaved runs [least-greatest]; same file in memory, same initiator",
        common.reps
    );
    // A look, or a part of the table, must not replace the kept figures.
    if common.quick || common.rows.is_some() {
        println!("not kept: --quick or --rows");
        return Ok(true);
    }
    let mut content = evidence::header("bench-target");
    content.insert("reps".into(), json!(common.reps));
    content.insert("ceiling_mb_per_s".into(), json!([ceiling_before, ceiling_after]));
    content.insert("ratio_geometric_mean".into(), json!(speed_mean));
    content.insert("cpu_ratio_geometric_mean".into(), json!(cpu_mean));
    content.insert("rows".into(), Value::Array(table));
    evidence::write("bench-target", &content)?;
    Ok(true)
}
