//! What observation costs a server: `hikyaku serve` without it, with `status --json` each second, and with a scrape each
//! second, interleaved; idle, and under 4K reads at queue depth 32 from a file in memory. Prints, and judges nothing.
//!
//! Limited by the CPU: load, observer and server share the cores, so that throughput falls by all that the observer costs the
//! machine, its own process included; `server CPU` is the server's alone.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::ends::run::bench_path;
use super::peers::Shape;
use super::{Common, RUN_LIMIT, Spread, filter_rows, interleaved, keep};
use harness::files::random_file;
use harness::procfs::cpu_seconds;
use harness::{Context, Server, free_port, run, scratch, wait_until};

const LUN_BYTES: u64 = 256 << 20;
const LOAD: Shape = Shape { write: false, block: 4 << 10, depth: 32 };
const INTERVAL: Duration = Duration::from_secs(1);
/// Sessions that exist meanwhile, so that a status has something to list.
const SESSIONS: u8 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Observer {
    None,
    Status,
    Scrape,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    name: &'static str,
    observer: Observer,
    is_loaded: bool,
}

const CELLS: [Cell; 6] = [
    Cell { name: "idle", observer: Observer::None, is_loaded: false },
    Cell { name: "idle-status", observer: Observer::Status, is_loaded: false },
    Cell { name: "idle-scrape", observer: Observer::Scrape, is_loaded: false },
    Cell { name: "read-4K-qd32", observer: Observer::None, is_loaded: true },
    Cell { name: "read-4K-qd32-status", observer: Observer::Status, is_loaded: true },
    Cell { name: "read-4K-qd32-scrape", observer: Observer::Scrape, is_loaded: true },
];

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Of a core, by the server.
    cpu_share: f64,
    /// NaN without a load.
    mb_per_s: f64,
    cpu_s_per_gb: f64,
    observations: u64,
}

struct Scene<'a> {
    context: &'a Context,
    home: tempfile::TempDir,
    server: Server,
    metrics: String,
    seconds: f64,
}

impl<'a> Scene<'a> {
    fn start(context: &'a Context, seconds: f64) -> Result<Self> {
        let home = scratch()?;
        random_file(home.path().join("read.img"), LUN_BYTES, 1)?;
        let metrics = format!("127.0.0.1:{}", free_port()?);
        let mut command = context.command_in(home.path());
        command.args(["serve", "read.img", "--listen", "127.0.0.1:0", "--metrics", &metrics]);
        let server = Server::start(command.current_dir(home.path()), 1)?;
        Ok(Self { context, home, server, metrics, seconds })
    }

    fn observe(&self, observer: Observer) -> Result<()> {
        match observer {
            Observer::None => Ok(()),
            Observer::Status => {
                let mut command = self.context.command_in(self.home.path());
                let output =
                    run(command.args(["status", "--json", "--interval", "0s"]), RUN_LIMIT)?.success()?;
                let processes = output.json()?["processes"].as_array().map_or(0, Vec::len);
                ensure!(processes > 0, "no server in {output}");
                Ok(())
            }
            Observer::Scrape => {
                let mut stream = TcpStream::connect(&self.metrics)?;
                stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
                let mut text = String::new();
                stream.read_to_string(&mut text)?;
                ensure!(text.ends_with("# EOF\n"), "no scrape: {text}");
                Ok(())
            }
        }
    }

    /// Observes each [`INTERVAL`] until `end` is dropped; returns the number of observations.
    fn observe_until(&self, observer: Observer, end: &mpsc::Receiver<()>) -> Result<u64> {
        for count in 0.. {
            self.observe(observer)?;
            if end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Disconnected) {
                return Ok(count + 1);
            }
        }
        unreachable!("the range has no end")
    }

    fn measure(&self, cell: Cell) -> Result<Sample> {
        let pid = self.server.running.pid();
        let used = || cpu_seconds(pid).map(|(user, system)| user + system);
        let (end, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| -> Result<Sample> {
            let (before, started) = (used()?, Instant::now());
            let observer = scope.spawn(move || self.observe_until(cell.observer, &ended));
            let row = if cell.is_loaded { self.load() } else { Ok(self.rest()) };
            let (cpu, elapsed) = (used()? - before, started.elapsed());
            drop(end);
            let observations = observer.join().expect("no panic")?;
            let row = row?;
            let of = |field: &str| row[field].as_f64().unwrap_or(f64::NAN);
            Ok(Sample {
                cpu_share: cpu / elapsed.as_secs_f64(),
                mb_per_s: of("mb_per_s"),
                cpu_s_per_gb: row["target"]["cpu_s_per_gb"].as_f64().unwrap_or(f64::NAN),
                observations,
            })
        })
    }

    fn load(&self) -> Result<Value> {
        let pid = self.server.running.pid().to_string();
        let mut command = bench_path(self.context, &self.server.url.to_string(), LOAD);
        command.args(["--seconds", &self.seconds.to_string(), "--target-pid", &pid]);
        let output = run(&mut command, RUN_LIMIT)?.success()?;
        Ok(output.json()?["rows"][0].clone())
    }

    fn rest(&self) -> Value {
        std::thread::sleep(Duration::from_secs_f64(self.seconds));
        Value::Null
    }
}

pub(super) fn run_table(common: &Common, context: &Context) -> Result<()> {
    let cells = filter_rows(CELLS.to_vec(), common.rows.as_deref(), |cell| cell.name.to_owned())?;
    let scene = Scene::start(context, if common.quick { 1.0 } else { 10.0 })?;
    let _sessions = (0..SESSIONS)
        .map(|number| {
            let isid = [0x80, 7, 0, 0, 0, number];
            let mut session =
                harness::pdu::Session::login(&scene.server.url, "iqn.2026-11.org.example:idle", isid)?;
            session.read(0, 0, 8).map(|_| session)
        })
        .collect::<Result<Vec<_>>>()
        .context("idle sessions")?;
    wait_until(RUN_LIMIT, || Ok(scene.observe(Observer::Scrape).is_ok()))?;
    let runs = interleaved(common.reps, cells.len(), |index| scene.measure(cells[index]))?;
    println!(
        "\n{:<22} {:>24} {:>26} {:>22}",
        "row", "server CPU, % of a core", "MB/s", "server CPU s per GB"
    );
    let mut rows = serde_json::Map::new();
    for (cell, runs) in cells.iter().zip(&runs) {
        let cpu = Spread::column(runs, |run| run.cpu_share * 100.0);
        let speed = Spread::column(runs, |run| run.mb_per_s);
        let per_gb = Spread::column(runs, |run| run.cpu_s_per_gb);
        let shown = |spread: &Spread, digits| {
            if cell.is_loaded { spread.show(digits) } else { "-".to_owned() }
        };
        println!("{:<22} {:>24} {:>26} {:>22}", cell.name, cpu.show(2), shown(&speed, 1), shown(&per_gb, 3));
        let observations: u64 = runs.iter().map(|run| run.observations).sum();
        let mut row = json!({ "cpu_percent_of_a_core": cpu, "observations": observations });
        if cell.is_loaded {
            row["mb_per_s"] = json!(speed);
            row["cpu_s_per_gb"] = json!(per_gb);
        }
        rows.insert(cell.name.to_owned(), row);
    }
    compare(&cells, &runs);
    println!(
        "the counters alone: cargo test --release -p hikyaku-node --lib cost_of_counters -- --ignored --nocapture\n\
         an older program without them: cargo xtask bench versus OLD --rows 'ends-mem-read-4K'"
    );
    keep(common, "bench-service", json!({ "sessions": SESSIONS, "rows": rows }))
}

/// The ratios to the row without an observer.
fn compare(cells: &[Cell], runs: &[Vec<Sample>]) {
    let of = |is_loaded: bool, observer: Observer| {
        let index = cells.iter().position(|cell| cell.is_loaded == is_loaded && cell.observer == observer)?;
        Some(&runs[index])
    };
    let Some(without) = of(true, Observer::None) else { return };
    for (name, observer) in [("status", Observer::Status), ("scrape", Observer::Scrape)] {
        let Some(with) = of(true, observer) else { continue };
        let ratio = |value: fn(&Sample) -> f64| {
            // Runs of one round lie beside each other in time.
            Spread::of(
                &with
                    .iter()
                    .zip(without)
                    .map(|(with, without)| value(with) / value(without))
                    .collect::<Vec<_>>(),
            )
        };
        println!(
            "{name} each second: throughput {}, server CPU per byte {} of that without",
            ratio(|run| run.mb_per_s).show(3),
            ratio(|run| run.cpu_s_per_gb).show(3)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_own_name() {
        assert!(crate::tests::all_differ(CELLS.iter().map(|cell| cell.name)));
        assert_eq!(CELLS.iter().filter(|cell| cell.observer == Observer::None).count(), 2);
    }
}
