//! `cargo xtask fuzz`: coverage-guided fuzzing of parsers and sessions; replays what it found.

use std::process::ExitCode;

use clap::Parser as _;
use harness::fuzz::{Args, run};

fn main() -> ExitCode {
    steps::exit("fuzz", run(&Args::parse()))
}
