//! The kept benchmarks. Every figure is a median of interleaved runs (A B A B), ours beside the peer's in the
//! same minute on the same files, with the spread and a ceiling of the machine next to it.

mod bars;
mod copy;
mod ends;
mod peers;
mod record;
mod sealed;
mod target;
mod versus;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::harness::{Against, Context, Tier, program, run};

/// How long another benchmark may keep us waiting.
const LOCK_LIMIT: Duration = Duration::from_secs(3600);

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
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Bench {
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
    /// The far end of a bare TCP round trip
    #[command(hide = true)]
    Pong {
        /// Bytes of a request
        request: usize,
        /// Bytes of a reply
        reply: usize,
    },
}

/// `cargo xtask bench`.
pub(crate) fn run_bench(bench: &Bench) -> Result<bool> {
    let common = match bench {
        Bench::Target(common)
        | Bench::Ends(common)
        | Bench::Sealed(common)
        | Bench::Copy { common, .. }
        | Bench::Versus { common, .. } => common,
        Bench::Pong { request, reply } => return ends::pong(*request, *reply).map(|()| true),
    };
    crate::install::ensure(crate::install::Purpose::Bench)?;
    let reps = common.reps;
    if reps == 0 || reps > 1000 {
        bail!("--reps wants 1 to 1000");
    }
    let hikyaku = crate::suite::binary(common.hikyaku.as_ref())?;
    // Everything random is the same in every run.
    let context = Context::new(hikyaku, 1, Tier::Full, Against::Ours)?;
    let _lock = Lock::take()?;
    match bench {
        Bench::Target(common) => target::run_table(common, &context),
        Bench::Ends(common) => ends::run_table(common, &context),
        Bench::Sealed(common) => sealed::run_table(common, &context),
        Bench::Copy { common, size, all } => copy::run_table(common, *size, *all, context),
        Bench::Versus { common, old } => versus::run_table(common, old, &context),
        Bench::Pong { .. } => unreachable!("answered above"),
    }
}

/// Held while a benchmark runs, so that two never overlap.
#[derive(Debug)]
struct Lock {
    _file: File,
}

impl Lock {
    fn take() -> Result<Self> {
        let path = std::env::temp_dir().join("hikyaku-bench.lock");
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let until = Instant::now() + LOCK_LIMIT;
        let mut said = false;
        loop {
            // SAFETY: the descriptor is open; flock goes with the open file and ends with it.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(Self { _file: file });
            }
            if Instant::now() > until {
                bail!("{}: another benchmark has held it for {LOCK_LIMIT:?}", path.display());
            }
            if !std::mem::replace(&mut said, true) {
                eprintln!("waiting for another benchmark to end ({})", path.display());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Keeps the names that a pattern matches.
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
    if kept.is_empty() {
        bail!("--rows {pattern} matches nothing");
    }
    Ok(kept)
}

/// Median, least and greatest of some runs, and the runs in their order.
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

    fn show(&self, digits: usize) -> String {
        format!("{:.digits$} [{:.digits$}-{:.digits$}]", self.median, self.min, self.max)
    }
}

/// Geometric mean.
fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

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
