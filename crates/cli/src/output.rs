//! Output of commands: results on stdout, everything else on stderr, as text or JSON.
//!
//! File names, configuration keys and messages of peers may contain any character. [`printable`] escapes characters
//! that control a terminal or reorder its text; `logging.rs` does so for the log.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

pub(crate) use job::SCHEMA;
pub(crate) use job::printable::{printable, printable_json};

/// Prints a line of the result on stdout; ends the program silently if the reader has closed the pipe (`| head`).
pub(crate) fn line(text: &str) {
    result(&printable(text));
}

fn result(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush());
    if written.is_err() {
        std::process::exit(0);
    }
}

/// Prints a line of the result on stdout; a closed stdout is ignored.
pub(crate) fn announce(text: &str) {
    let text = printable(text);
    let mut stdout = io::stdout().lock();
    // A server continues without a reader of its stdout.
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush());
}

/// Prints one JSON object on one line of stdout.
pub(crate) fn json(value: &Value) {
    result(&printable_json(&value.to_string()));
}

/// Prints a line on stderr; errors are ignored.
pub(crate) fn note(text: &str) {
    remark(&printable(text));
}

/// Prints one JSON object on one line of stderr.
pub(crate) fn note_json(value: &Value) {
    remark(&printable_json(&value.to_string()));
}

fn remark(text: &str) {
    let mut stderr = io::stderr().lock();
    // A closed stderr must not stop a copy.
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.write_all(b"\n"));
}

pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether stderr may show colours and progress bars.
pub(crate) fn is_lively() -> bool {
    io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A table of text with a heading: aligned on a terminal, tab-separated in a pipe.
#[derive(Debug)]
pub(crate) struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&'static str]) -> Self {
        Self { heading: heading.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.heading.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// The table as text, without a final newline.
    pub(crate) fn render(&self, for_people: bool) -> String {
        let heading: Vec<String> = self.heading.iter().map(|name| name.to_uppercase()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        if !for_people {
            return lines.iter().map(|line| line.join("\t")).collect::<Vec<_>>().join("\n");
        }
        let widths: Vec<usize> = (0..heading.len())
            .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        let padded = lines.iter().map(|line| {
            let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        });
        padded.collect::<Vec<_>>().join("\n")
    }

    /// Prints the table in the form for a terminal or a pipe.
    pub(crate) fn print(&self) {
        if !self.rows.is_empty() {
            line(&self.render(is_terminal()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_heading_and_are_aligned_for_people() {
        let mut table = Table::new(&["lun", "size"]);
        table.row(vec!["0".to_owned(), "256 MiB".to_owned()]);
        table.row(vec!["12".to_owned(), "1 GiB".to_owned()]);
        assert_eq!(table.render(true), "LUN  SIZE\n0    256 MiB\n12   1 GiB");
        assert_eq!(table.render(false), "LUN\tSIZE\n0\t256 MiB\n12\t1 GiB");
    }
}
