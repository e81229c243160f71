//! Development tasks: `cargo xtask ci`, `test`, `nightly`, `soak`, `fuzz`, `bench`. Read docs/HACKING.md first.
//!
//! This crate depends on none of ours: it drives the built program as its users do, and the peers beside it.

mod bench;
mod evidence;
mod family;
mod fuzz;
mod harness;
mod install;
mod soak;
#[cfg(test)]
mod statements;
mod steps;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use harness::Against;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Development tasks of hikyaku")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
    /// The kept benchmarks, ours beside the peers
    #[command(subcommand)]
    Bench(bench::Bench),
}

/// Which families run, and on what.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Selection {
    /// Only this family (repeatable); unit tests are then left out
    #[arg(long, value_name = "NAME")]
    family: Vec<String>,
    /// Only cases whose name contains this
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

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Ci(args) => suite::ci(&args.selection),
        Command::Test(args) if args.list => {
            for family in family::FAMILIES {
                println!("{:<16} {}", family.name, family.about);
            }
            return ExitCode::SUCCESS;
        }
        Command::Test(args) => suite::test(&args.selection, args.against),
        Command::Nightly(args) => suite::nightly(&args.selection, args.resume),
        Command::Soak(args) => soak::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Bench(bench) => bench::run_bench(&bench),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
