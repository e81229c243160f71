//! `man`: manual pages, generated from the parser's command tree and the table of the configuration's keys.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;

use crate::command::config::EXAMPLE;
use crate::error::{Exit, Failure};
use crate::{args, manual};

/// Write the manual pages: one for each command, and hikyaku.toml.5
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  hikyaku man ./man && man -l man/hikyaku-copy.1\n  man -l man/hikyaku.toml.5"
)]
pub(crate) struct Args {
    /// Directory to write to; made if it is missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let failed =
        |error: io::Error| Failure::failed("write the manual to", args.dir.display().to_string(), error);
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    let command = tree();
    let pages = Pages { root: Notes::of(&command) };
    pages.write(&command, "", &args.dir).map_err(failed)?;
    std::fs::write(args.dir.join("hikyaku.toml.5"), manual::page(EXAMPLE)).map_err(failed)?;
    Ok(Exit::Done)
}

/// The commands without `help`, whose pages would only repeat the others.
fn tree() -> Command {
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    command
}

/// The text after a command's options, in parts that begin with a line `Heading:`.
#[derive(Debug, Default)]
struct Notes {
    examples: String,
    exit_status: String,
    environment: String,
    /// The parts with other headings.
    others: String,
}

impl Notes {
    fn of(command: &Command) -> Self {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let mut notes = Self::default();
        let mut part = &mut notes.others;
        for line in text.lines() {
            part = match line {
                "Examples:" => &mut notes.examples,
                "Exit codes:" => &mut notes.exit_status,
                "Environment:" => &mut notes.environment,
                _ => {
                    if line.ends_with(':') && !line.starts_with(' ') {
                        part = &mut notes.others;
                    }
                    writeln!(part, "{line}").expect("a string");
                    part
                }
            };
        }
        notes
    }
}

struct Pages {
    /// Of the program: exit status and environment belong to every command.
    root: Notes,
}

impl Pages {
    /// Writes the pages of a command and of those below it. A command without examples shows `above`, its parent's.
    fn write(&self, command: &Command, above: &str, dir: &Path) -> io::Result<()> {
        let own = Notes::of(command).examples;
        let examples = if own.is_empty() { above } else { &own };
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            self.write(sub, examples, dir)?;
        }
        std::fs::write(dir.join(format!("{}.1", name(command))), self.page(command, examples)?)
    }

    /// Renders one page. The text after the options keeps its line breaks.
    fn page(&self, command: &Command, examples: &str) -> io::Result<String> {
        let mut text = Vec::new();
        Man::new(command.clone().after_help(None::<&str>)).render(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let end = text.find("\n.SH VERSION").map_or(text.len(), |at| at + 1);
        let (mut page, version) = (text[..end].to_owned(), &text[end..]);
        let notes = Notes::of(command);
        let exit_status = &self.root.exit_status;
        let mut verbatim = |heading: &str, text: &str| {
            if !text.trim().is_empty() {
                page.push_str(&manual::verbatim(heading, text));
            }
        };
        verbatim("NOTES", &notes.others);
        verbatim("EXAMPLES", examples);
        verbatim("\"EXIT STATUS\"", exit_status);
        verbatim("ENVIRONMENT", &self.root.environment);
        page.push_str(&manual::files());
        page.push_str(version);
        if !page.ends_with('\n') {
            page.push('\n');
        }
        let root = if name(command) == "hikyaku" { "" } else { ".BR hikyaku (1),\n" };
        write!(page, ".SH \"SEE ALSO\"\n{root}.BR hikyaku.toml (5)\n").expect("a string");
        Ok(page)
    }
}

fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_files_exit_status_and_examples() {
        let tree = tree();
        let place = tempfile::tempdir().unwrap();
        Pages { root: Notes::of(&tree) }.write(&tree, "", place.path()).unwrap();
        for entry in std::fs::read_dir(place.path()).unwrap() {
            let path = entry.unwrap().path();
            let page = std::fs::read_to_string(&path).unwrap();
            for heading in ["FILES", "\"EXIT STATUS\"", "ENVIRONMENT", "EXAMPLES", "\"SEE ALSO\""] {
                let count = page.matches(&format!("\n.SH {heading}\n")).count();
                assert_eq!(count, 1, "{heading} in {}", path.display());
            }
            assert!(page.contains("\n  0 done"), "{}", path.display());
        }
        assert!(place.path().join("hikyaku-key-trust.1").exists());
    }

    #[test]
    fn notes_keep_their_lines_and_headings() {
        let tree = tree();
        let page = Pages { root: Notes::of(&tree) }.page(&tree, "").unwrap();
        let (_, notes) = page.split_once(".SH NOTES\n.nf\n").unwrap();
        assert!(notes.contains("\nOptions of an endpoint:\n  any "), "{notes}");
        let (notes, _) = notes.split_once("\n.fi\n").unwrap();
        assert!(!notes.contains("Exit codes") && !notes.contains("Examples:"), "{notes}");
    }
}
