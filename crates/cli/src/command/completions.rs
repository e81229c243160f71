//! `completions`: shell completions, generated from the parser's command tree.

use clap_complete::Shell;

use crate::args;
use crate::error::{Exit, Failure};

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku completions bash > ~/.local/share/bash-completion/completions/hikyaku
  hikyaku completions zsh > ~/.zfunc/_hikyaku")]
pub(crate) struct Args {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "hikyaku", &mut text);
    crate::output::line(String::from_utf8_lossy(&text).trim_end());
    Ok(Exit::Done)
}
