//! `man`: the manual's pages, from the same tree as the parser.

use std::path::PathBuf;

use crate::args;
use crate::error::{Exit, Failure};

/// Write the manual pages, one for each command
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  hikyaku man ./man1 && man -l man1/hikyaku-copy.1")]
pub(crate) struct Args {
    /// Directory to write to; made if it is missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let failed =
        |error: std::io::Error| Failure::failed("write the manual to", args.dir.display().to_string(), error);
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(args::command(), &args.dir).map_err(failed)?;
    Ok(Exit::Done)
}
