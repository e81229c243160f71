//! What `cargo xtask` and the programs of `tests` and `benches` share: cargo's calls in steps, the packages of the peers,
//! and the settings and results of a run of the families.
//!
//! Nothing of the product and little else is linked, so that `cargo xtask` starts soon after a checkout.

pub mod build;
pub mod packages;
pub mod settings;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;

pub use build::{cargo, fresh_seed, must, repository, target_directory};
pub use settings::{Against, Settings, Share, Tally, Tier};

/// Name of the environment variable that holds the base directory of relative paths among a benchmark's arguments.
pub const DIRECTORY: &str = "HIKYAKU_BENCH_DIRECTORY";

/// The exit code of a task: 0 if everything passed. An error is printed with the task's name.
pub fn exit(task: &str, result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{task}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Finds a program in `PATH` or in the system directories that a user's `PATH` often lacks.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|path| path.is_file())
}

pub fn line_of(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

pub fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() == 0 }
}
