//! Development tasks: `cargo xtask quick`, `ci`, `test`, `nightly`, `soak`, `fuzz`, `bench`, `package`. Read docs/HACKING.md
//! first.
//!
//! The checks lie elsewhere: unit tests in each crate, families of real peers in `tests`, benchmarks in `benches`. The
//! tasks here run them in order, install the peers and print one table.

mod bpf;
mod chart;
mod package;
mod suite;
mod touched;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use steps::{Against, cargo};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Development tasks of hikyaku")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Before each commit: formatting, lints, the unit tests within the crates
    Quick,
    /// What CI runs: formatting, lints, documentation, then `test`
    Ci(TestArgs),
    /// Unit tests, then a seeded sample of every interoperability family
    Test(TestArgs),
    /// Every case of every family; writes docs/evidence/FAMILY.json
    Nightly(NightlyArgs),
    /// Copies, comparisons and sessions for hours, watching the target's memory and descriptors
    #[command(disable_help_flag = true)]
    Soak(Forwarded),
    /// Coverage-guided fuzzing of parsers and sessions; replays what it found
    #[command(disable_help_flag = true)]
    Fuzz(Forwarded),
    /// The Debian package, a static program, digests and the list of dependencies, in target/package
    Package(package::Args),
    /// Compiles the kernel's programs of `watch`: crates/monitor/bpf/tcp.bpf.o
    Bpf(bpf::Args),
    /// Draws docs/peers.svg from docs/evidence
    Chart,
    /// A kept benchmark, ours beside the peers: target, ends, sealed, volume, copy, service, probe, analyze, versus or verdict; `bench NAME --help` lists its options
    #[command(disable_help_flag = true)]
    Bench {
        /// Which one
        name: String,
        #[command(flatten)]
        forwarded: Forwarded,
    },
}

#[derive(Debug, clap::Args)]
struct Forwarded {
    /// Its arguments; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Which families run, and on what.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Selection {
    /// Only this family (repeatable); unit tests are then left out
    #[arg(long, value_name = "NAME")]
    family: Vec<String>,
    /// Only cases whose name contains this, whether or not a sample holds them
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
    /// Replays the random choices of an earlier run
    #[arg(long)]
    seed: Option<u64>,
    /// Use this program instead of building one
    #[arg(long, value_name = "PATH")]
    hikyaku: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct TestArgs {
    #[command(flatten)]
    selection: Selection,
    /// List the families and end
    #[arg(long)]
    list: bool,
    /// Examine this target; families that need our initiator are left out for tgt
    #[arg(long, value_enum, default_value = "ours")]
    against: Against,
}

#[derive(Debug, clap::Args)]
struct NightlyArgs {
    #[command(flatten)]
    selection: Selection,
    /// Go on where an interrupted run of the same commit stopped
    #[arg(long)]
    resume: bool,
}

/// Replaces this process by a program that cargo builds and runs.
fn forward(fixed: &[&str], forwarded: &Forwarded) -> Result<bool> {
    let here = std::env::current_dir()?;
    let mut command = cargo(fixed);
    // cargo runs a benchmark in its package's directory; relative paths among the arguments refer to this one.
    command.args(&forwarded.arguments).env(steps::DIRECTORY, &here).current_dir(here);
    Err(command.exec()).context("start cargo")
}

fn bench(name: &str, forwarded: &Forwarded) -> Result<bool> {
    ensure!(
        ["target", "ends", "sealed", "volume", "copy", "service", "probe", "analyze", "versus", "verdict"]
            .contains(&name),
        "no benchmark {name}; there are target, ends, sealed, volume, copy, service, probe, analyze, versus and verdict"
    );
    let fixed = ["bench", "--profile", "dev", "--package", "hikyaku-benches", "--bench", name, "--"];
    forward(&fixed, forwarded)
}

/// A program of the package of the tests.
fn program(name: &str, forwarded: &Forwarded) -> Result<bool> {
    forward(&["run", "--quiet", "--package", "hikyaku-tests", "--bin", name, "--"], forwarded)
}

fn run(command: Command) -> Result<bool> {
    match command {
        Command::Quick => suite::quick(),
        Command::Ci(args) => suite::ci(&args.selection),
        Command::Test(args) if args.list => suite::list(),
        Command::Test(args) => suite::test(&args.selection, args.against),
        Command::Nightly(args) => suite::nightly(&args.selection, args.resume),
        Command::Soak(forwarded) => program("soak", &forwarded),
        Command::Fuzz(forwarded) => program("fuzz", &forwarded),
        Command::Package(args) => package::run(&args),
        Command::Bpf(args) => bpf::run(&args),
        Command::Chart => chart::run(),
        Command::Bench { name, forwarded } => bench(&name, &forwarded),
    }
}

fn main() -> ExitCode {
    steps::exit("xtask", run(Cli::parse().command))
}
