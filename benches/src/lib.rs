//! The kept benchmarks. Every figure is a median of interleaved runs (A B A B), this program's and the peer's in the
//! same minute on the same files, with the spread and a ceiling of the machine.

mod analyze;
mod bars;
mod claims;
mod copy;
mod ends;
mod peers;
mod probe;
mod record;
mod sealed;
mod service;
mod target;
mod verdict;
mod versus;
mod volume;

use std::fs::{File, TryLockError};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser as _;
use serde_json::{Value, json};

use ends::pong;
use harness::{Against, Context, Tier, evidence, program, run, wait_until};

const LOCK_LIMIT: Duration = Duration::from_secs(3600);
/// Time limit of one measured command.
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// The processor of both ends in the rows where they share one.
const CORE: usize = 0;
/// Groups of `copy`, `sealed` and `analyze` that are measured with fewer runs are printed but not recorded.
const KEPT_REPS_MIN: usize = 5;

/// Options that all benchmarks share.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// Runs per cell and side; the median is shown
    #[arg(long, default_value_t = 5)]
    reps: usize,
    /// Short runs: for a first look, never for a claim
    #[arg(long)]
    quick: bool,
    /// Only rows whose name matches this extended regular expression
    #[arg(long, value_name = "REGEX")]
    rows: Option<String>,
    /// Use this program instead of building one
    #[arg(long, value_name = "PATH")]
    hikyaku: Option<std::path::PathBuf>,
}

/// The kept benchmarks.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask bench")]
enum Bench {
    /// Our target and tgt, each under the same initiator (qemu-img bench) on the same file
    Target(Common),
    /// Both ends ours over one connection, beside iperf3, tgt and a bare TCP round trip
    Ends(Common),
    /// Sealed sessions beside plain ones, TLS, stunnel, WireGuard and ESP (the rows on links need root)
    Sealed(Common),
    /// Local copies beside qemu-img, dd and a ceiling; buffers, device requests, holes, EXTENDED COPY (needs root)
    Copy {
        #[command(flatten)]
        common: Common,
        /// Size of the disks in MiB
        #[arg(long, default_value_t = 2048)]
        size: u64,
        /// More tools between the devices: cp, ddrescue, nbdcopy and further kinds of dd
        #[arg(long)]
        all: bool,
    },
    /// An older build of this program beside the present one, over a selection of rows of the other benchmarks
    Versus {
        #[command(flatten)]
        common: Common,
        /// The older program
        #[arg(value_name = "OLD")]
        old: std::path::PathBuf,
    },
    /// What a server costs while status or metrics are read each second, idle and under 4K reads
    Service(Common),
    /// What `watch` takes of a core, beside a bare loop in C over the same system calls
    Probe(Common),
    /// Copies into and out of sealed volumes beside plain ones and qemu-img's luks driver; ciphers, unlocking (needs root)
    Volume(Common),
    /// Packets and bytes a second of `analyze`, beside tshark, and its memory for 50 GB from a pipe
    Analyze(Common),
    /// What `analyze` and `watch` say about connections whose limit was injected (needs root)
    Verdict {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        own: verdict::Own,
    },
    /// The far end of a bare TCP round trip
    #[command(hide = true)]
    Pong {
        /// Bytes of a request
        request: usize,
        /// Bytes of a reply
        reply: usize,
    },
}

/// The `main` of the benchmark `name`. Its arguments are those of `cargo xtask bench NAME`; cargo adds `--bench`.
pub fn main(name: &str) -> ExitCode {
    let mut arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_none_or(|first| first != pong::NAME) {
        arguments.insert(0, name.to_owned());
    }
    arguments.insert(0, "cargo xtask bench".to_owned());
    let bench = Bench::parse_from(arguments);
    let entered = std::env::var_os(steps::DIRECTORY).map_or(Ok(()), std::env::set_current_dir);
    match entered.map_err(Into::into).and_then(|()| run_bench(&bench)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_bench(bench: &Bench) -> Result<()> {
    let common = match bench {
        Bench::Target(common)
        | Bench::Ends(common)
        | Bench::Sealed(common)
        | Bench::Service(common)
        | Bench::Probe(common)
        | Bench::Analyze(common)
        | Bench::Volume(common)
        | Bench::Copy { common, .. }
        | Bench::Verdict { common, .. }
        | Bench::Versus { common, .. } => common,
        Bench::Pong { request, reply } => return pong::pong(*request, *reply),
    };
    steps::packages::ensure(steps::packages::Purpose::Bench)?;
    let reps = common.reps;
    ensure!((1..=1000).contains(&reps), "--reps wants 1 to 1000");
    let hikyaku = steps::build::binary(common.hikyaku.as_ref())?;
    // A fixed seed: random choices are the same in every run.
    let context = Context::new(hikyaku, 1, Tier::Full, Against::Ours)?;
    let _lock = lock()?;
    match bench {
        Bench::Target(common) => target::run_table(common, &context),
        Bench::Ends(common) => ends::run_table(common, &context),
        Bench::Sealed(common) => sealed::run_table(common, &context),
        Bench::Copy { common, size, all } => copy::run_table(common, *size, *all, context),
        Bench::Service(common) => service::run_table(common, &context),
        Bench::Probe(common) => probe::run_table(common, &context),
        Bench::Analyze(common) => analyze::run_table(common, &context),
        Bench::Volume(common) => volume::run_table(common, context),
        Bench::Verdict { common, own } => verdict::run_table(common, own, &context),
        Bench::Versus { common, old } => versus::run_table(common, old, &context),
        Bench::Pong { .. } => unreachable!("answered above"),
    }
}

/// Waits for the end of other benchmarks; the returned file is the lock.
fn lock() -> Result<File> {
    let path = std::env::temp_dir().join("hikyaku-bench.lock");
    let file = File::options().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    let mut printed = false;
    let taken = wait_until(LOCK_LIMIT, || match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => {
            if !std::mem::replace(&mut printed, true) {
                eprintln!("waiting for another benchmark to end ({})", path.display());
            }
            Ok(false)
        }
        Err(TryLockError::Error(error)) => bail!("lock {}: {error}", path.display()),
    });
    taken.with_context(|| format!("{}: held by another benchmark", path.display()))?;
    Ok(file)
}

fn filter_rows<T>(rows: Vec<T>, pattern: Option<&str>, name: impl Fn(&T) -> String) -> Result<Vec<T>> {
    let Some(pattern) = pattern else { return Ok(rows) };
    let mut kept = Vec::new();
    for row in rows {
        let script = r#"printf '%s\n' "$1" | grep -Eq -- "$2""#;
        let name = name(&row);
        let output = run(program("sh")?.args(["-c", script, "sh", &name, pattern]), Duration::from_secs(10))?;
        match output.code {
            Some(0) => kept.push(row),
            Some(1) => {}
            _ => bail!("--rows {pattern}: {}", output.stderr),
        }
    }
    ensure!(!kept.is_empty(), "--rows {pattern} matches nothing");
    Ok(kept)
}

/// `reps` runs of each of `count` cells. The order rotates: a cell may profit from the one that ran before it.
fn interleaved<T>(
    reps: usize,
    count: usize,
    mut measure: impl FnMut(usize) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut runs: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for rep in 0..reps {
        for at in 0..count {
            let index = (at + rep) % count;
            runs[index].push(measure(index)?);
        }
    }
    Ok(runs)
}

/// Writes `docs/evidence/NAME.json`. A quick run, or a part of the tables, must not replace the recorded figures.
fn keep(common: &Common, name: &str, figures: Value) -> Result<()> {
    if common.quick || common.rows.is_some() {
        println!("not kept: --quick or --rows");
        return Ok(());
    }
    let mut content = evidence::header(name);
    content.insert("reps".into(), json!(common.reps));
    if let Value::Object(figures) = figures {
        content.extend(figures);
    }
    evidence::write(name, &content)
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
    runs: Vec<f64>,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => f64::NAN,
            length if length % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        let edge = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        Self { median, min: edge(sorted.first()), max: edge(sorted.last()), runs: values.to_vec() }
    }

    fn column<T>(runs: &[T], value: impl Fn(&T) -> f64) -> Self {
        Self::of(&runs.iter().map(value).collect::<Vec<_>>())
    }

    fn show(&self, digits: usize) -> String {
        format!("{:.digits$} [{:.digits$}-{:.digits$}]", self.median, self.min, self.max)
    }
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Whether no name occurs twice.
    pub(super) fn all_differ<T: Ord>(mut names: impl Iterator<Item = T>) -> bool {
        let mut known = BTreeSet::new();
        names.all(|name| known.insert(name))
    }

    #[test]
    fn medians() {
        let runs = vec![3.0, 1.0, 2.0];
        assert_eq!(Spread::of(&runs), Spread { median: 2.0, min: 1.0, max: 3.0, runs });
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
        assert!((geometric_mean(&[2.0, 8.0]) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn rows_are_chosen_by_pattern() {
        let rows = vec!["read-4K-qd1".to_owned(), "write-1M-qd32".to_owned()];
        let kept = filter_rows(rows.clone(), Some("^write|64K"), Clone::clone).unwrap();
        assert_eq!(kept, ["write-1M-qd32"]);
        assert!(filter_rows(rows, Some("nothing"), Clone::clone).is_err());
    }
}
