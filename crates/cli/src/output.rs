//! What commands print: results on stdout, everything else on stderr; tables for people, JSON for programs.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

/// Version of every JSON object we print; fields are only ever added to it.
pub(crate) const SCHEMA: u32 = 1;

/// Prints a line of result. A reader that has gone away (`| head`) ends the program quietly.
pub(crate) fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush());
    if written.is_err() {
        std::process::exit(0);
    }
}

/// Prints a line of result for whoever may still listen, and goes on if nobody does.
pub(crate) fn announce(text: &str) {
    let mut stdout = io::stdout().lock();
    // A server goes on serving without a reader.
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush());
}

/// Prints one JSON object on one line of stdout.
pub(crate) fn json(value: &Value) {
    line(&value.to_string());
}

/// Prints a line on stderr, if anybody still listens.
pub(crate) fn note(text: &str) {
    let mut stderr = io::stderr().lock();
    // A closed stderr must not stop a copy.
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.write_all(b"\n"));
}

/// Whether people look at stdout.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether colours and moving bars are welcome on stderr.
pub(crate) fn is_lively() -> bool {
    io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Columns of text. Aligned, with a heading, for people; tab-separated without one in a pipe.
#[derive(Debug)]
pub(crate) struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new(heading: &[&'static str]) -> Self {
        Self { heading: heading.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.heading.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// The table as text, without a newline at its end.
    pub(crate) fn render(&self, for_people: bool) -> String {
        if !for_people {
            let rows: Vec<String> = self.rows.iter().map(|row| row.join("\t")).collect();
            return rows.join("\n");
        }
        let heading: Vec<String> = self.heading.iter().map(|name| name.to_uppercase()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..heading.len())
            .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        let padded = lines.iter().map(|line| {
            let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        });
        padded.collect::<Vec<_>>().join("\n")
    }

    /// Prints it, as suits whoever reads stdout.
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
    fn tables_are_aligned_for_people_and_plain_in_a_pipe() {
        let mut table = Table::new(&["lun", "size"]);
        table.row(vec!["0".to_owned(), "256 MiB".to_owned()]);
        table.row(vec!["12".to_owned(), "1 GiB".to_owned()]);
        assert_eq!(table.render(true), "LUN  SIZE\n0    256 MiB\n12   1 GiB");
        assert_eq!(table.render(false), "0\t256 MiB\n12\t1 GiB");
    }
}
