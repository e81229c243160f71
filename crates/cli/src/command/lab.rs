//! `lab`: runs the separate program `hikyaku-lab`, as git runs its commands.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::context::Context;
use crate::error::{Exit, Failure};

/// Name of the program, searched for in this program's directory, then in `PATH`.
const PROGRAM: &str = "hikyaku-lab";

/// Run or list experiments of the papers behind this program
///
/// The experiments are in a program of their own, hikyaku-lab, beside this one or in PATH; `hikyaku lab --help` explains its arguments.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = "Examples:\n  hikyaku lab list")]
pub(crate) struct Args {
    /// An experiment's name and its options, or `list`
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Args {
    pub(crate) fn is_json(&self) -> bool {
        self.arguments.iter().any(|argument| argument == "--json")
    }
}

/// Replaces this process by the program (exec); returns only on failure.
pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
    let places = beside.into_iter().chain(std::env::split_paths(&path));
    let found: Option<PathBuf> = places.map(|place| place.join(PROGRAM)).find(|program| program.is_file());
    let Some(program) = found else {
        let cause = "it is neither beside this program nor in PATH";
        return Err(Failure::failed("find", PROGRAM, cause).hint("cargo build --release -p hikyaku-lab"));
    };
    let mut command = Command::new(&program);
    if context.quiet {
        command.arg("--quiet");
    }
    let error = command.args(&args.arguments).exec();
    Err(Failure::failed("start", program.display().to_string(), error))
}
