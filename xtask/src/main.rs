//! Development tasks: `cargo xtask quick`, `ci`, `test`, `nightly`, `soak`, `fuzz`, `bench`. Read docs/HACKING.md
//! first.
//!
//! The checks lie elsewhere: unit tests in each crate, families of real peers in `tests`, benchmarks in `benches`. The
//! tasks here run them in order, install the peers and print one table.

mod chart;
mod soak;
mod suite;
mod touched;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use harness::steps::{cargo, must};
use harness::{Against, family, fuzz};

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
    Soak(soak::Args),
    /// Coverage-guided fuzzing of parsers and sessions; replays what it found
    Fuzz(fuzz::Args),
    /// Draws docs/peers.svg from docs/evidence
    Chart,
    /// A kept benchmark, ours beside the peers: target, ends, sealed, copy or versus
    Bench {
        /// Which one
        name: String,
        /// Its arguments; `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
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

fn bench(name: &str, arguments: &[String]) -> Result<bool> {
    if !["target", "ends", "sealed", "copy", "versus"].contains(&name) {
        bail!("no benchmark {name}; there are target, ends, sealed, copy and versus");
    }
    let fixed = ["bench", "--profile", "dev", "--package", "hikyaku-benches", "--bench", name, "--"];
    // cargo runs a benchmark in its package's directory; relative paths among the arguments refer to the current
    // directory.
    must(cargo(&fixed).args(arguments).env(benches::DIRECTORY, std::env::current_dir()?)).map(|()| true)
}

fn run(command: Command) -> Result<bool> {
    match command {
        Command::Quick => suite::quick(),
        Command::Ci(args) => suite::ci(&args.selection),
        Command::Test(args) if args.list => {
            for family in family::FAMILIES {
                println!("{:<16} {}", family.name, family.about);
            }
            Ok(true)
        }
        Command::Test(args) => suite::test(&args.selection, args.against),
        Command::Nightly(args) => suite::nightly(&args.selection, args.resume),
        Command::Soak(args) => soak::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Chart => chart::run(),
        Command::Bench { name, arguments } => bench(&name, &arguments),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
