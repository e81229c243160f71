//! Output of commands: results on stdout, everything else on stderr, as text or JSON.
//!
//! File names, configuration keys and messages of peers may contain any character. [`printable`] escapes characters
//! that control a terminal or reorder its text; `logging.rs` does so for the log.

use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::os::fd::AsFd;

use job::Failure;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub(crate) use job::SCHEMA;
pub(crate) use job::printable::{printable, printable_json, printable_name};

/// Prints a line of the result on stdout. Ends the program silently if the reader has closed the pipe (`| head`), and with a
/// message and the exit status of a failure if the line cannot be written.
pub(crate) fn line(text: &str) {
    result([printable(text)], false);
}

/// Prints a line that consists of `parts`.
fn result<T: AsRef<str>>(parts: impl IntoIterator<Item = T>, is_json: bool) {
    match write(parts) {
        Ok(true) => {}
        Ok(false) => std::process::exit(0),
        Err(failure) => {
            if is_json {
                note_json(&failure.to_json());
            } else {
                note(&format!("error: {failure}"));
            }
            std::process::exit(failure.ending.code().into());
        }
    }
}

fn write<T: AsRef<str>>(parts: impl IntoIterator<Item = T>) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    let written = parts
        .into_iter()
        .try_for_each(|part| stdout.write_all(part.as_ref().as_bytes()))
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush());
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed("write", "the result to standard output", error)),
    }
}

/// As [`line()`], for a command that has something to undo at its end. `false`: the reader has closed the pipe.
pub(crate) fn try_line(text: &str) -> Result<bool, Failure> {
    write([printable(text)])
}

/// As [`json`], for a command that has something to undo at its end. `false`: the reader has closed the pipe.
pub(crate) fn try_json(value: &Value) -> Result<bool, Failure> {
    write([printable_json(&value.to_string())])
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
    json_parts([value.to_string()]);
}

/// Prints one JSON object, whose text comes in parts, on one line of stdout: none of a large object is held.
pub(crate) fn json_parts(parts: impl IntoIterator<Item = String>) {
    result(parts.into_iter().map(|part| printable_json(&part).into_owned()), true);
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

/// Columns of the terminal at stdout; `None` in a pipe.
pub(crate) fn columns() -> Option<usize> {
    is_terminal().then(|| columns_of(io::stdout()))
}

pub(crate) fn columns_of_stderr() -> usize {
    columns_of(io::stderr())
}

fn columns_of(terminal: impl AsFd) -> usize {
    match rustix::termios::tcgetwinsize(terminal).map_or(0, |size| size.ws_col) {
        0 => COLUMNS_DEFAULT,
        known => known.into(),
    }
}

/// Columns of a terminal that does not say how many it has.
const COLUMNS_DEFAULT: usize = 80;
const INDENT: usize = 2;
const ELLIPSIS: &str = "...";

/// A table of text with a heading: aligned on a terminal, tab-separated in a pipe. On a terminal that is too narrow a row
/// continues on further lines, and a cell that is wider than the terminal loses its middle. Cells hold names that peers chose:
/// control characters are escaped, and widths are those in columns.
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
        self.rows.push(cells.into_iter().map(|cell| printable_name(&cell).into_owned()).collect());
    }

    /// The table as text, without a final newline.
    pub(crate) fn render(&self, columns: Option<usize>) -> String {
        let heading: Vec<String> = self.heading.iter().map(|name| name.to_uppercase()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let Some(columns) = columns else {
            return lines.iter().map(|line| line.join("\t")).collect::<Vec<_>>().join("\n");
        };
        let cell_max = columns.saturating_sub(INDENT).max(2 * ELLIPSIS.len());
        let widths: Vec<usize> = (0..heading.len())
            .map(|column| lines.iter().map(|line| line[column].width()).max().unwrap_or(0))
            .map(|width| width.min(cell_max))
            .collect();
        let folds = folds(&widths, columns);
        let padded = lines.iter().flat_map(|line| {
            folds.iter().enumerate().map(|(number, fold)| {
                let cells = fold.clone().map(|column| {
                    let (cell, width) = (shortened(&line[column], widths[column]), widths[column]);
                    let padding = " ".repeat(width.saturating_sub(cell.width()));
                    cell + &padding
                });
                let indent = if number > 0 { " ".repeat(INDENT) } else { String::new() };
                format!("{indent}{}", cells.collect::<Vec<_>>().join("  ").trim_end())
            })
        });
        padded.collect::<Vec<_>>().join("\n")
    }

    /// Prints the table in the form for a terminal or a pipe.
    pub(crate) fn print(&self) {
        if !self.rows.is_empty() {
            line(&self.render(columns()));
        }
    }
}

/// Names with their values: a value begins in one column, and on a terminal continues there on further lines between words.
/// A name that takes more than half of the terminal has its value on the next line.
pub(crate) fn pairs(rows: &[(String, String)], columns: Option<usize>) -> String {
    let most = columns.map_or(usize::MAX, |columns| columns / 2);
    let names = rows.iter().map(|(name, _)| name.width());
    let indent = names.filter(|width| width + 2 <= most).max().unwrap_or(0) + 2;
    let lines = rows.iter().map(|(name, value)| {
        let value = printable_name(value);
        let mut line = name.clone();
        let mut used = name.width();
        if used + 2 > indent {
            line.push('\n');
            used = 0;
        }
        line += &" ".repeat(indent - used);
        used = indent;
        for (number, word) in value.split(' ').enumerate() {
            let width = word.width();
            if number > 0 && columns.is_some_and(|columns| used + 1 + width > columns) {
                line += "\n";
                line += &" ".repeat(indent);
                used = indent;
            } else if number > 0 {
                line.push(' ');
                used += 1;
            }
            line += word;
            used += width;
        }
        line
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Fields of one line, which on a terminal continue on further lines as the cells of a table do.
pub(crate) fn fields(fields: &[String], columns: Option<usize>) -> String {
    let Some(columns) = columns else { return fields.join("  ") };
    let widths: Vec<usize> = fields.iter().map(|field| field.width()).collect();
    let lines: Vec<_> = folds(&widths, columns).into_iter().map(|fold| fields[fold].join("  ")).collect();
    lines.join(&format!("\n{}", " ".repeat(INDENT)))
}

/// The columns of a table on each line of a row.
fn folds(widths: &[usize], columns: usize) -> Vec<Range<usize>> {
    let mut folds: Vec<Range<usize>> = Vec::new();
    let mut used = 0;
    for (column, width) in widths.iter().enumerate() {
        match folds.last_mut() {
            Some(fold) if used + 2 + width <= columns => {
                fold.end = column + 1;
                used += 2 + width;
            }
            last => {
                used = width + if last.is_some() { INDENT } else { 0 };
                folds.push(column..column + 1);
            }
        }
    }
    folds
}

/// The text without its middle, if it takes more than `columns`: names differ at their ends.
fn shortened(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let kept = columns.saturating_sub(ELLIPSIS.len());
    let head: String = fitting(text.chars(), kept / 2).into_iter().collect();
    let tail: String = fitting(text.chars().rev(), kept - kept / 2).into_iter().rev().collect();
    head + ELLIPSIS + &tail
}

/// The first characters that fit into `columns`.
fn fitting(characters: impl Iterator<Item = char>, columns: usize) -> Vec<char> {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= columns
    };
    characters.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_heading_and_are_aligned_for_people() {
        let mut table = Table::new(&["lun", "size"]);
        table.row(vec!["0".to_owned(), "256 MiB".to_owned()]);
        table.row(vec!["12".to_owned(), "1 GiB".to_owned()]);
        assert_eq!(table.render(Some(80)), "LUN  SIZE\n0    256 MiB\n12   1 GiB");
        assert_eq!(table.render(None), "LUN\tSIZE\n0\t256 MiB\n12\t1 GiB");
    }

    #[test]
    fn a_row_that_is_too_wide_continues_on_the_next_line() {
        let mut table = Table::new(&["target", "portal", "lun", "size"]);
        let cells = ["iqn.2026-11.example:disks", "192.0.2.1:3260,1", "0", "256 MiB"];
        table.row(cells.map(str::to_owned).to_vec());
        let expected = "TARGET                     PORTAL\n  LUN  SIZE\n\
                        iqn.2026-11.example:disks  192.0.2.1:3260,1\n  0    256 MiB";
        assert_eq!(table.render(Some(45)), expected);
        let expected = "TARGET\n  PORTAL\n  LUN  SIZE\niqn.20...:disks\n  192.0....3260,1\n  0    256 MiB";
        assert_eq!(table.render(Some(17)), expected);
        for columns in [0, 1, 7, 45, 80, 200] {
            assert!(!table.render(Some(columns)).is_empty());
        }
    }

    #[test]
    fn cells_are_one_line_each_and_as_wide_as_a_terminal_shows_them() {
        let mut table = Table::new(&["name", "size"]);
        for name in ["a\nb\tc\u{1b}[2J", "\u{98db}\u{811a}", "e\u{301}"] {
            table.row(vec![name.to_owned(), "1 GiB".to_owned()]);
        }
        let escaped = "a\\u{a}b\\u{9}c\\u{1b}[2J";
        let lines = [
            "NAME                    SIZE",
            &format!("{escaped}  1 GiB"),
            "\u{98db}\u{811a}                    1 GiB",
            "e\u{301}                       1 GiB",
        ];
        assert_eq!(table.render(Some(80)), lines.join("\n"));
        assert_eq!(table.render(None).lines().nth(1), Some(&*format!("{escaped}\t1 GiB")));
        assert_eq!(shortened(&"\u{98db}".repeat(10), 12), "\u{98db}\u{98db}...\u{98db}\u{98db}");
    }

    #[test]
    fn values_continue_in_their_column() {
        let rows = [
            ("size", "1.0 MiB (1048577 bytes): the last 1 do not fill"),
            ("a long name of a fact", "8192"),
            ("x", "a\nb"),
        ];
        let rows = rows.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let expected = "size  1.0 MiB (1048577 bytes): the\n      last 1 do not fill\na long name of a fact\n      8192\n\
                        x     a\\u{a}b";
        assert_eq!(pairs(&rows, Some(36)), expected);
        let expected = "size                   1.0 MiB (1048577 bytes): the last 1 do not fill\n\
                        a long name of a fact  8192\nx                      a\\u{a}b";
        assert_eq!(pairs(&rows, None), expected);
        assert!(!pairs(&rows, Some(0)).is_empty());
        let parts = ["serve 4711", "up 3m05s", "127.0.0.1:3260"].map(str::to_owned);
        assert_eq!(fields(&parts, Some(22)), "serve 4711  up 3m05s\n  127.0.0.1:3260");
        assert_eq!(fields(&parts, None), "serve 4711  up 3m05s  127.0.0.1:3260");
    }
}
