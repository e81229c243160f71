//! What `watch` takes of a core: 100 connections at 100 Hz, and one at 1 kHz, beside a loop in C that asks the same and
//! keeps nothing (probe.c). Interleaved; CPU time of the whole process, without its first second.
//!
//! Limited by the kernel: most of the time goes into its replies, and into waking the process up.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::bars::{Bar, verdict};
use super::{Common, RUN_LIMIT, Spread, filter_rows, interleaved, keep};
use harness::{Context, program, run, scratch};

const SOURCE: &str = include_str!("probe.c");
/// Start of a process that is not measured.
const START: Duration = Duration::from_secs(1);
/// Most that `watch` may take of what the loop in C takes.
const RATIO_MAX: f64 = 1.3;

#[derive(Clone, Copy, Debug)]
struct Cell {
    name: &'static str,
    connections: usize,
    hz: u32,
    /// Most of a core, in percent.
    bar: f64,
}

const CELLS: [Cell; 2] = [
    Cell { name: "100-flows-100-hz", connections: 100, hz: 100, bar: 2.5 },
    Cell { name: "1-flow-1-khz", connections: 1, hz: 1000, bar: 4.5 },
];

/// A process that is killed at the end.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Scene<'a> {
    context: &'a Context,
    home: tempfile::TempDir,
    seconds: u64,
}

impl<'a> Scene<'a> {
    fn new(context: &'a Context, seconds: u64) -> Result<Self> {
        let home = scratch()?;
        fs::write(home.path().join("probe.c"), SOURCE)?;
        let mut compiler = program("cc")?;
        compiler.args(["-O2", "-o", "probe", "probe.c"]).current_dir(home.path());
        run(&mut compiler, RUN_LIMIT)?.success()?;
        Ok(Self { context, home, seconds })
    }

    fn bare(&self) -> PathBuf {
        self.home.path().join("probe")
    }

    /// Connections that a process of their own holds; the other ends are here.
    fn hold(&self, listener: &TcpListener, count: usize) -> Result<(Guard, Vec<TcpStream>)> {
        let port = listener.local_addr()?.port().to_string();
        let mut command = Command::new(self.bare());
        command.args(["hold", &port, &count.to_string()]).stdout(Stdio::piped());
        let mut child = Guard(command.spawn()?);
        let far: Vec<TcpStream> =
            (0..count).map(|_| listener.accept().map(|(stream, _)| stream)).collect::<Result<_, _>>()?;
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().context("piped above")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "the connections are not there: {line}");
        Ok((child, far))
    }

    /// Percent of a core.
    fn measure(&self, cell: Cell, ours: bool) -> Result<f64> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (holder, _far) = self.hold(&listener, cell.connections)?;
        let mut command = if ours {
            let interval = format!("{}ms", 1000 / cell.hz);
            let limit = format!("{}s", self.seconds + 2);
            let mut command = self.context.command_in(self.home.path());
            command.args([
                "watch",
                &holder.0.id().to_string(),
                "--quiet",
                "--packets",
                "off",
                "--interval",
                &interval,
            ]);
            command.args(["--for", &limit]);
            command
        } else {
            let port = listener.local_addr()?.port().to_string();
            let mut command = Command::new(self.bare());
            command.args(["sample", &port, &cell.hz.to_string(), &(self.seconds + 2).to_string()]);
            command
        };
        let child = Guard(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        std::thread::sleep(START);
        let (before, started) = (cpu_ns(child.0.id())?, Instant::now());
        std::thread::sleep(Duration::from_secs(self.seconds));
        let used = cpu_ns(child.0.id())?.saturating_sub(before);
        Ok(used as f64 / started.elapsed().as_nanos() as f64 * 100.0)
    }
}

/// Processor time of all threads of a process.
fn cpu_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let times = fs::read_to_string(task?.path().join("schedstat"))?;
        sum += times.split_whitespace().next().context("no time")?.parse::<u64>()?;
    }
    ensure!(sum > 0, "process {pid} has not run");
    Ok(sum)
}

pub(super) fn run_table(common: &Common, context: &Context) -> Result<()> {
    let cells = filter_rows(CELLS.to_vec(), common.rows.as_deref(), |cell| cell.name.to_owned())?;
    let scene = Scene::new(context, if common.quick { 2 } else { 8 })?;
    let runs = interleaved(common.reps, 2 * cells.len(), |index| {
        scene.measure(cells[index / 2], index.is_multiple_of(2))
    })?;
    println!("\n{:<18} {:>24} {:>24} {:>20}", "row", "watch, % of a core", "C, % of a core", "ratio");
    let mut rows = serde_json::Map::new();
    let mut missed = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        let (ours, bare) = (&runs[2 * number], &runs[2 * number + 1]);
        let ratios: Vec<f64> = ours.iter().zip(bare).map(|(ours, bare)| ours / bare).collect();
        let (ours, bare, ratio) = (Spread::of(ours), Spread::of(bare), Spread::of(&ratios));
        let bars = [
            Bar::at_most("percent of a core", ours.median, cell.bar),
            Bar::at_most("ratio to C", ratio.median, RATIO_MAX),
        ];
        let (name, said) = (cell.name, verdict(&bars));
        println!("{name:<18} {:>24} {:>24} {:>20}  {said}", ours.show(2), bare.show(2), ratio.show(2));
        if bars.iter().any(|bar| !bar.is_met()) {
            missed.push(name);
        }
        let bars: Vec<_> = bars.iter().map(Bar::object).collect();
        rows.insert(name.to_owned(), json!({ "watch": ours, "c": bare, "ratio": ratio, "bars": bars }));
    }
    keep(common, "bench-probe", json!({ "rows": rows }))?;
    ensure!(common.quick || missed.is_empty(), "bars missed: {}", missed.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_own_name() {
        assert!(crate::tests::all_differ(CELLS.iter().map(|cell| cell.name)));
    }
}
