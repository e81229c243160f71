//! What `analyze` reads in a second on one core: headers and whole frames, one connection and many that take turns, beside
//! `tshark -T fields`; and the memory that it takes for 50 GB from a pipe.
//!
//! Limited by the CPU: a packet of one connection takes 0.3 us. With a thousand connections whose packets take turns, the state
//! of each (45 KB) leaves the second-level cache between two of its packets. Speeds are by the CPU time of the process, which
//! is pinned to one core; the captures lie in memory.

mod stream;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use self::stream::{Load, Until, Written, write};
use super::bars::{Bar, verdict};
use super::{Common, KEPT_REPS_MIN, RUN_LIMIT, Spread, filter_rows, interleaved, record};
use harness::procfs::{children_cpu_seconds, memory};
use harness::{Context, run, scratch};

/// Payload of a full Ethernet frame, and the largest before segmentation.
const SEGMENT: usize = 1448;
const SEGMENT_LARGE: usize = 65_160;
/// Least speeds.
const PACKETS_PER_S: f64 = 2e6;
const BYTES_PER_S: f64 = 1e9;
const TSHARK_RATIO: f64 = 20.0;
/// Most memory, MiB.
const RESIDENT_MIB: f64 = 200.0;
/// A capture that no machine here could store.
const PIPED_BYTES: u64 = 50_000_000_000;

/// What tshark prints of each packet: the fields from which `analyze` makes its figures.
const FIELDS: [&str; 20] = [
    "frame.number",
    "frame.time_epoch",
    "ip.src",
    "ip.dst",
    "tcp.stream",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.seq",
    "tcp.ack",
    "tcp.len",
    "tcp.flags",
    "tcp.window_size",
    "tcp.analysis.retransmission",
    "iscsi.opcode",
    "iscsi.initiatortasktag",
    "iscsi.datasegmentlength",
    "iscsi.cmdsn",
    "iscsi.statsn",
    "iscsi.expcmdsn",
    "iscsi.maxcmdsn",
];

/// Groups of rows, each recorded with its own commit and date.
const GROUPS: [&str; 4] = [HEADERS, FRAMES, TSHARK, PIPE];
const HEADERS: &str = "headers";
const FRAMES: &str = "frames";
const TSHARK: &str = "tshark";
const PIPE: &str = "pipe";
const NAME: &str = "bench-analyze";

#[derive(Clone, Copy, Debug)]
struct Cell {
    group: &'static str,
    name: &'static str,
    load: Load,
    packets: u64,
}

const CUT: Load = Load { connections: 1, segment: SEGMENT, data: 8192, snap: 128 };
const WHOLE: Load = Load { snap: 1 << 18, ..CUT };
const LARGE: Load = Load { segment: SEGMENT_LARGE, data: 61_440, ..WHOLE };

const fn cell(group: &'static str, name: &'static str, load: Load, packets: u64) -> Cell {
    Cell { group, name, load, packets }
}

/// Connections whose packets take turns.
const fn turns(connections: usize) -> Load {
    Load { connections, ..CUT }
}

const CELLS: [Cell; 8] = [
    cell(HEADERS, "1-connection", CUT, 3_000_000),
    cell(HEADERS, "256-connections", turns(256), 3_000_000),
    cell(HEADERS, "1024-connections", turns(1024), 3_000_000),
    cell(FRAMES, "1514-bytes", WHOLE, 1_000_000),
    cell(FRAMES, "64-KiB", LARGE, 40_000),
    cell(TSHARK, "20k-packets", CUT, 20_000),
    cell(TSHARK, "200k-packets", CUT, 200_000),
    cell(TSHARK, "200k-packets-64-connections", turns(64), 200_000),
];

/// CPU seconds of one run, and of tshark's.
#[derive(Clone, Copy, Debug)]
struct Taken {
    ours: f64,
    tshark: f64,
}

fn pinned(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &super::CORE.to_string()]).arg(program);
    command
}

/// CPU time of a command that ends well.
fn cpu_s(command: &mut Command) -> Result<f64> {
    let sum = || {
        let (user, system) = children_cpu_seconds();
        user + system
    };
    let before = sum();
    run(command, RUN_LIMIT)?.success()?;
    Ok(sum() - before)
}

struct Scene<'a> {
    context: &'a Context,
    files: Vec<(PathBuf, Written)>,
}

impl Scene<'_> {
    fn measure(&self, index: usize, cell: &Cell) -> Result<Taken> {
        let (file, _) = &self.files[index];
        let ours = cpu_s(pinned(&self.context.hikyaku).arg("analyze").arg(file))?;
        let mut tshark = f64::NAN;
        if cell.group == TSHARK {
            let mut command = pinned(Path::new("tshark"));
            command.arg("-n").arg("-r").arg(file).args(["-T", "fields"]);
            FIELDS.iter().for_each(|field| {
                command.args(["-e", field]);
            });
            tshark = cpu_s(&mut command)?;
        }
        Ok(Taken { ours, tshark })
    }
}

/// Seconds and peak memory, MiB, of an analysis of `bytes` that arrive through a pipe.
fn pipe(context: &Context, bytes: u64) -> Result<(Written, f64, f64)> {
    let load = Load { connections: 64, ..WHOLE };
    let mut command = context.command();
    let mut child: Child = command
        .args(["analyze", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start hikyaku")?;
    let pid = child.id();
    let started = Instant::now();
    let written = write(load, Until::Bytes(bytes), child.stdin.take().context("piped above")?);
    let mut peak = 0;
    let status = loop {
        if let Ok(memory) = memory(pid) {
            peak = peak.max(memory.resident_max);
        }
        match child.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    ensure!(status.success(), "hikyaku ends with {status}");
    Ok((written.context("write to hikyaku")?, started.elapsed().as_secs_f64(), peak as f64 / 1_048_576.0))
}

/// The figures of a row with its bar, and whether that is met.
fn row(cell: &Cell, written: Written, runs: &[Taken]) -> (Value, bool) {
    let packets = Spread::column(runs, |taken| written.packets as f64 / taken.ours);
    let bytes = Spread::column(runs, |taken| written.bytes as f64 / taken.ours);
    let ratio = Spread::column(runs, |taken| taken.tshark / taken.ours);
    let bar = match cell.group {
        HEADERS => Bar::at_least("packets/s", packets.median, PACKETS_PER_S),
        FRAMES => Bar::at_least("bytes/s", bytes.median, BYTES_PER_S),
        _ => Bar::at_least("times tshark's speed", ratio.median, TSHARK_RATIO),
    };
    let beside = if cell.group == TSHARK { ratio.show(0) } else { "-".to_owned() };
    let (name, millions, megabytes) = (cell.name, millions(&packets).show(2), millions(&bytes).show(0));
    println!(
        "{name:<30} {millions:>18} {megabytes:>18} {beside:>14}  {}",
        verdict(std::slice::from_ref(&bar))
    );
    let mut value = json!({ "packets": written.packets, "packets_per_s": packets, "bytes_per_s": bytes, "bar": bar.object() });
    if cell.group == TSHARK {
        value["tshark_packets_per_s"] =
            json!(Spread::column(runs, |taken| written.packets as f64 / taken.tshark));
        value["ratio"] = json!(ratio);
    }
    (value, bar.is_met())
}

fn millions(spread: &Spread) -> Spread {
    Spread::of(&spread.runs.iter().map(|value| value / 1e6).collect::<Vec<_>>())
}

/// Measures the rows of a group; also returns the names of those that miss their bars.
fn group(common: &Common, context: &Context, name: &str) -> Result<(Value, Vec<String>)> {
    let (mut rows, mut missed) = (serde_json::Map::new(), Vec::new());
    if name == PIPE {
        let bytes = if common.quick { PIPED_BYTES / 25 } else { PIPED_BYTES };
        let (written, seconds, peak) = pipe(context, bytes)?;
        let per_s = written.bytes as f64 / seconds;
        let bar = Bar::at_most("resident MiB", peak, RESIDENT_MIB);
        println!(
            "{:.0} GB, {:.0} MB/s, {peak:.1} MiB at most  {}",
            written.bytes as f64 / 1e9,
            per_s / 1e6,
            verdict(std::slice::from_ref(&bar))
        );
        rows.insert(
            "50-GB".to_owned(),
            json!({ "bytes": written.bytes, "packets": written.packets, "bytes_per_s": per_s, "resident_mib": peak, "bar": bar.object() }),
        );
        missed.extend((!bar.is_met()).then(|| name.to_owned()));
    }
    let cells: Vec<Cell> = CELLS.into_iter().filter(|cell| cell.group == name).collect();
    let home = scratch()?;
    let mut scene = Scene { context, files: Vec::new() };
    for cell in &cells {
        let path = home.path().join(cell.name);
        let packets = if common.quick { cell.packets / 10 } else { cell.packets };
        let written = write(cell.load, Until::Packets(packets), File::create(&path)?)?;
        scene.files.push((path, written));
    }
    let runs = interleaved(common.reps, cells.len(), |index| scene.measure(index, &cells[index]))?;
    for ((cell, (_, written)), runs) in cells.iter().zip(&scene.files).zip(&runs) {
        let (value, is_met) = row(cell, *written, runs);
        rows.insert(cell.name.to_owned(), value);
        missed.extend((!is_met).then(|| format!("{name} {}", cell.name)));
    }
    Ok((json!({ "group": name, "reps": common.reps, "rows": rows }), missed))
}

pub(super) fn run_table(common: &Common, context: &Context) -> Result<()> {
    let chosen = filter_rows(GROUPS.to_vec(), common.rows.as_deref(), |name| (*name).to_owned())?;
    let keeps = !common.quick && common.reps >= KEPT_REPS_MIN;
    println!("{:<30} {:>18} {:>18} {:>14}", "row", "million packets/s", "MB/s", "times tshark's");
    let mut missed = Vec::new();
    for name in chosen {
        println!("{name}:");
        let (measured, short) = group(common, context, name)?;
        missed.extend(short);
        if keeps {
            record::keep(NAME, measured, &GROUPS)?;
        }
    }
    if !keeps {
        println!("not kept: --quick, or fewer than {KEPT_REPS_MIN} --reps");
    }
    ensure!(common.quick || missed.is_empty(), "bars missed: {}", missed.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_own_name() {
        assert!(crate::tests::all_differ(CELLS.iter().map(|cell| (cell.group, cell.name))));
    }

    #[test]
    fn captures_have_the_size_that_is_asked_for() {
        for until in [Until::Packets(1000), Until::Bytes(100_000)] {
            let mut bytes = Vec::new();
            let load = turns(3);
            let written = write(load, until, &mut bytes).unwrap();
            assert_eq!(written.bytes, bytes.len() as u64);
            match until {
                Until::Packets(packets) => assert_eq!(written.packets, packets),
                Until::Bytes(least) => assert!((least..least + 2000).contains(&written.bytes)),
            }
            let mut at = 24;
            let mut packets = 0;
            while at < bytes.len() {
                at += 16 + u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
                packets += 1;
            }
            assert_eq!((at, packets), (bytes.len(), written.packets));
        }
    }
}
