//! `man`: manual pages, generated from the parser's command tree.

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;

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
        |error: io::Error| Failure::failed("write the manual to", args.dir.display().to_string(), error);
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    // Pages for `help` would only repeat the others.
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, &args.dir).map_err(failed)?;
    Ok(Exit::Done)
}

fn write_pages(command: &Command, dir: &Path) -> io::Result<()> {
    for sub in command.get_subcommands() {
        write_pages(sub, dir)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    std::fs::write(dir.join(format!("{name}.1")), page(command)?)
}

/// Renders one page. The text after the options is formatted by hand and keeps its line breaks.
fn page(command: &Command) -> io::Result<String> {
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let Some((before, rest)) = text.split_once(".SH EXTRA\n") else { return Ok(text.into_owned()) };
    let end = rest.find("\n.SH ").map_or(rest.len(), |at| at + 1);
    let (notes, after) = rest.split_at(end);
    Ok(format!("{before}.SH NOTES\n.nf\n{}\n.fi\n{after}", notes.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_keep_their_lines() {
        let mut command = args::command();
        command.build();
        let page = page(&command).unwrap();
        let (_, notes) = page.split_once(".SH NOTES\n.nf\n").unwrap();
        assert!(notes.contains("\nExit codes:\n  0 done"), "{notes}");
        assert!(notes.contains("\n.fi\n"), "{notes}");
    }
}
