//! Our copy beside qemu-img convert and dd, between two loop devices over files in memory, with the fio ceiling
//! of both at once. Destinations are spoiled before every run and compared after the first and the last.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::bars::{Bar, Bound, verdict};
use super::{Common, Spread, filter_rows};
use crate::evidence;
use crate::harness::files::{Loop, can_loop, random_file, same_file};
use crate::harness::procfs::{children_cpu_seconds, machine_busy_seconds};
use crate::harness::{program, run, scratch};

const RUN_LIMIT: Duration = Duration::from_secs(120);
/// Blocks of the destination that are spoiled before a run.
const SPOILS: u64 = 64;

/// One tool's command line, `{src}` and `{dst}` to be filled in.
struct Tool {
    name: &'static str,
    line: &'static [&'static str],
}

const TOOLS: &[Tool] = &[
    Tool { name: "hikyaku copy", line: &["hikyaku", "copy", "--force", "--quiet", "{src}", "{dst}"] },
    Tool {
        name: "qemu-img convert -W -m 8",
        line: &[
            "qemu-img", "convert", "-n", "-W", "-m", "8", "-S", "0", "-t", "none", "-T", "none", "-f", "raw",
            "-O", "raw", "{src}", "{dst}",
        ],
    },
    Tool {
        name: "dd bs=1M direct",
        line: &[
            "dd",
            "if={src}",
            "of={dst}",
            "bs=1M",
            "iflag=direct",
            "oflag=direct",
            "conv=notrunc",
            "status=none",
        ],
    },
];

/// One run.
#[derive(Clone, Copy, Debug)]
struct Measure {
    gb_per_s: f64,
    /// Of the tool and its children.
    cpu_s_per_gb: f64,
    /// Of the whole machine: what the kernel does for the loop devices included.
    machine_cpu_s_per_gb: f64,
}

fn command(tool: &Tool, hikyaku: &Path, home: &Path, src: &Path, dst: &Path) -> Result<Command> {
    let mut command = if tool.line[0] == "hikyaku" { Command::new(hikyaku) } else { program(tool.line[0])? };
    for part in &tool.line[1..] {
        command.arg(
            part.replace("{src}", &src.display().to_string()).replace("{dst}", &dst.display().to_string()),
        );
    }
    command.env("HOME", home).env("XDG_STATE_HOME", home.join("state"));
    Ok(command)
}

/// Makes what is on disk the only copy.
fn uncache(path: &Path) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    file.sync_data()?;
    // SAFETY: the descriptor is open; the call only drops clean pages.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

fn spoil(path: &Path, bytes: u64, rep: usize) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    for index in 0..SPOILS {
        let offset = (index * bytes / SPOILS + rep as u64 * 4096) / 4096 * 4096;
        file.write_all_at(&[0xa5; 4096], offset.min(bytes - 4096))?;
    }
    file.sync_data().context("flush the spoiled blocks")
}

fn measure(command: &mut Command, dst: &Path, bytes: u64) -> Result<Measure> {
    let (cpu, busy, started) = (children_cpu_seconds(), machine_busy_seconds()?, Instant::now());
    run(command, RUN_LIMIT)?.success()?;
    OpenOptions::new().write(true).open(dst)?.sync_data().context("flush the destination")?;
    let seconds = started.elapsed().as_secs_f64();
    let (cpu_after, busy_after) = (children_cpu_seconds(), machine_busy_seconds()?);
    let gb = bytes as f64 / 1e9;
    Ok(Measure {
        gb_per_s: gb / seconds,
        cpu_s_per_gb: (cpu_after.0 + cpu_after.1 - cpu.0 - cpu.1) / gb,
        machine_cpu_s_per_gb: (busy_after - busy) / gb,
    })
}

/// fio reading the source and writing the destination at once: GB/s of the slower side.
fn ceiling(src: &Path, dst: &Path, bytes: u64, seconds: u32) -> Result<f64> {
    let mut fio = program("fio")?;
    fio.args(["--output-format=json", "--ioengine=io_uring", "--direct=1", "--bs=1M", "--iodepth=16"]);
    fio.args(["--thread", "--time_based", &format!("--runtime={seconds}"), &format!("--size={bytes}")]);
    fio.args(["--name=r", "--rw=read", &format!("--filename={}", src.display())]);
    fio.args(["--name=w", "--rw=write", &format!("--filename={}", dst.display())]);
    let output = run(&mut fio, RUN_LIMIT)?.success()?;
    let start = output.stdout.find('{').context("no JSON from fio")?;
    let value: Value = serde_json::from_str(&output.stdout[start..]).context("output of fio")?;
    let rate =
        |job: usize, way: &str| value["jobs"][job][way]["bw_bytes"].as_f64().context("no figure from fio");
    Ok(rate(0, "read")?.min(rate(1, "write")?) / 1e9)
}

pub(super) fn run_table(common: &Common, size_mib: u64, hikyaku: &Path) -> Result<bool> {
    if !can_loop() {
        bail!("this benchmark makes loop devices: run it as root, where /dev/loop-control exists");
    }
    ensure!((64..=65_536).contains(&size_mib), "--size wants 64 to 65536 MiB");
    let bytes = if common.quick { 512 << 20 } else { size_mib << 20 };
    let tools = filter_rows(TOOLS.iter().collect(), common.rows.as_deref(), |tool| tool.name.to_owned())?;
    let dir = scratch()?;
    let (source_file, destination_file) = (dir.path().join("src.img"), dir.path().join("dst.img"));
    random_file(&source_file, bytes, 1)?;
    // Written, not sparse: no tool shall pay for the allocation of the first run.
    random_file(&destination_file, bytes, 2)?;
    let source = Loop::attach(&source_file, 512, true)?;
    let destination = Loop::attach(&destination_file, 512, true)?;
    let (src, dst) = (source.path(), destination.path());
    let fio_seconds = if common.quick { 1 } else { 3 };
    let before = ceiling(src, dst, bytes, fio_seconds)?;

    let mut runs: Vec<Vec<Measure>> = tools.iter().map(|_| Vec::new()).collect();
    // The first round warms up and is not counted; it and the last are compared.
    for rep in 0..=common.reps {
        for (tool, runs) in tools.iter().zip(&mut runs) {
            spoil(dst, bytes, rep)?;
            uncache(src)?;
            uncache(dst)?;
            let mut command = command(tool, hikyaku, dir.path(), src, dst)?;
            let measure = measure(&mut command, dst, bytes).with_context(|| tool.name)?;
            if rep > 0 {
                runs.push(measure);
            }
            if rep == 0 || rep == common.reps {
                uncache(dst)?;
                same_file(src, dst).with_context(|| format!("{} did not copy", tool.name))?;
            }
        }
    }
    let after = ceiling(src, dst, bytes, fio_seconds)?;
    let most = before.max(after);
    println!(
        "\n| tool | GB/s | of ceiling | CPU s/GB | of qemu-img's | machine CPU s/GB |\n|---|---|---|---|---|---|"
    );
    let (mut table, mut bars) = (Vec::new(), Vec::new());
    let cpu_of = |name: &str| {
        let at = tools.iter().position(|tool| tool.name.starts_with(name))?;
        Some(Spread::of(&runs[at].iter().map(|run| run.cpu_s_per_gb).collect::<Vec<_>>()).median)
    };
    let qemu_cpu = cpu_of("qemu-img").unwrap_or(f64::NAN);
    for (tool, runs) in tools.iter().zip(&runs) {
        let column = |value: fn(&Measure) -> f64| Spread::of(&runs.iter().map(value).collect::<Vec<_>>());
        let speed = column(|run| run.gb_per_s);
        let cpu = column(|run| run.cpu_s_per_gb);
        let machine = column(|run| run.machine_cpu_s_per_gb);
        let (of_ceiling, cpu_ratio) = (speed.median / most, cpu.median / qemu_cpu);
        if tool.name.starts_with("hikyaku") {
            bars.push(Bar::new("share of the ceiling", of_ceiling, Bound::AtLeast(0.9)));
            bars.push(Bar::new("CPU ratio to qemu-img", cpu_ratio, Bound::AtMost(0.3)));
        }
        println!(
            "| {} | {} | {:.0} % | {} | {cpu_ratio:.2} | {} |",
            tool.name,
            speed.show(2),
            of_ceiling * 100.0,
            cpu.show(3),
            machine.show(3)
        );
        table.push(json!({
            "tool": tool.name, "gb_per_s": speed, "of_ceiling": of_ceiling, "cpu_s_per_gb": cpu,
            "cpu_ratio_to_qemu_img": cpu_ratio.is_finite().then_some(cpu_ratio),
            "machine_cpu_s_per_gb": machine,
        }));
    }
    println!("| ceiling: fio, both at once, before and after | {before:.2}, {after:.2} | 100 % | | | |");
    println!(
        "\n{} MiB, loop devices over memory, median of {} interleaved runs [least-greatest], flushed; every tool's first and last copy \
         compared byte by byte",
        bytes >> 20,
        common.reps
    );
    if !bars.is_empty() {
        println!("hikyaku copy: {}", verdict(&bars));
    }
    if common.quick || common.rows.is_some() {
        println!("not kept: --quick or --rows");
        return Ok(true);
    }
    let mut content = evidence::header("bench-copy");
    content.insert("reps".into(), json!(common.reps));
    content.insert("bytes".into(), json!(bytes));
    content.insert("ceiling_gb_per_s".into(), json!([before, after]));
    content.insert("bars".into(), bars.iter().map(Bar::object).collect());
    content.insert("rows".into(), Value::Array(table));
    evidence::write("bench-copy", &content)?;
    Ok(true)
}
