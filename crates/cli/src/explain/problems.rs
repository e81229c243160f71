//! All errors of a file instead of the first.
//!
//! The parser ends at its first error. The text is then repaired and parsed again: a line with an error is read as empty, a
//! table with an unknown name as absent, and a key that is missing gets a placeholder. Errors that follow from a repair are
//! not reported. Without an error of the parser all errors of the values are found at once.

use std::ops::Range;

use super::{PROBLEMS_MAX, key_of, line_range};
use crate::config::{Wrong, position};

/// Errors of values that may follow from a repair: nothing is left where a table was wrong.
pub(crate) const NO_TARGET: &str = "there is no [[target]]";
pub(crate) const NO_LUN: &str = "it has no [[target.lun]]";
/// The end of an error about a LUN whose number may be a placeholder.
pub(crate) const NOT_OF_TARGET: &str = "which the target does not have";

/// Bound of the repairs of one file.
const REPAIRS_MAX: usize = 4 * PROBLEMS_MAX;
/// Names that are placeholders begin so.
const MISSING: &str = "iqn.2026-11.invalid:missing-";
/// The first LUN that is a placeholder; the next ones count down.
const NUMBER: u16 = 16383;

/// Errors of values, in the order in which they are found.
#[derive(Debug, Default)]
pub(crate) struct Noted(Vec<Wrong>);

impl Noted {
    pub(crate) fn add(&mut self, wrong: Wrong) {
        self.0.push(wrong);
    }

    pub(crate) fn good<T>(&mut self, result: Result<T, Wrong>) -> Option<T> {
        result.map_err(|wrong| self.add(wrong)).ok()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn all(self) -> impl Iterator<Item = Wrong> {
        self.0.into_iter()
    }
}

/// What `parse` makes of a repaired text.
#[derive(Debug)]
pub(crate) struct Rest<T> {
    pub(crate) parsed: T,
    /// Lines of the repaired text that are not in the file.
    inserted: Vec<usize>,
}

impl<T> Rest<T> {
    /// The line of the file for a line of the repaired text.
    pub(crate) fn line(&self, line: usize) -> usize {
        line - self.inserted.iter().filter(|inserted| **inserted <= line).count()
    }
}

/// Whether a target's name is a placeholder.
pub(crate) fn is_placeholder(name: &str) -> bool {
    name.starts_with(MISSING)
}

/// The result of `parse` for a file or its repaired text, and the errors in the order of the file, at most [`PROBLEMS_MAX`].
pub(crate) fn problems<T>(
    text: &str,
    parse: impl Fn(&str) -> Result<(T, Vec<Wrong>), Wrong>,
) -> (Option<Rest<T>>, Vec<Wrong>) {
    let mut repaired = Repaired { text: text.to_owned(), ..Repaired::default() };
    let mut found = Vec::new();
    let mut rest = None;
    for _ in 0..REPAIRS_MAX {
        match parse(&repaired.text) {
            Ok((result, mut wrong)) => {
                wrong.sort_by_key(|(at, _)| at.start);
                let wrong = wrong.into_iter().filter(|wrong| !repaired.caused(wrong)).take(PROBLEMS_MAX);
                found.extend(wrong.map(|wrong| repaired.original(wrong)));
                // A placeholder begins with the end of the line above it.
                let inserted =
                    repaired.inserted.iter().map(|part| position(&repaired.text, part.start + 1).0);
                rest = Some(Rest { parsed: result, inserted: inserted.collect() });
                break;
            }
            Err(wrong) => {
                if !repaired.caused(&wrong) {
                    found.push(repaired.original(wrong.clone()));
                }
                if !repaired.repair(&wrong) {
                    break;
                }
            }
        }
    }
    if repaired.misspelt_table {
        // [[target.lun]] below [[targets]] makes a target that is no list.
        found.retain(|(_, cause)| !cause.ends_with("a table, and a list in brackets is needed"));
    }
    found.sort_by_key(|(at, _)| at.start);
    found.truncate(PROBLEMS_MAX);
    (rest, found)
}

/// A text in which errors are replaced. Every byte of the original keeps its line and column.
#[derive(Debug, Default)]
struct Repaired {
    text: String,
    /// Placeholders in the text.
    inserted: Vec<Range<usize>>,
    /// Keys whose lines were emptied, with the start of the table that they are in.
    emptied: Vec<(usize, String)>,
    lacks_table: bool,
    misspelt_table: bool,
    lacks_number: bool,
    lacks_address: bool,
}

impl Repaired {
    /// Start of the line of the header above a byte; 0 if there is none. It is the same after an insertion below it.
    fn table(&self, byte: usize) -> usize {
        let end = line_range(&self.text, byte).end;
        let headers = lines(&self.text).take_while(|line| line.start <= end);
        headers.filter(|line| self.is_header(line)).last().map_or(0, |line| self.place(line.start))
    }

    fn is_header(&self, line: &Range<usize>) -> bool {
        self.text[line.clone()].trim_start().starts_with('[')
    }

    /// The place in the original of a byte of the text.
    fn place(&self, byte: usize) -> usize {
        let before = self.inserted.iter().map(|part| byte.clamp(part.start, part.end) - part.start);
        byte - before.sum::<usize>()
    }

    fn original(&self, (at, cause): Wrong) -> Wrong {
        (self.place(at.start)..self.place(at.end), without_placeholders(&cause))
    }

    /// Whether an error follows from a repair.
    fn caused(&self, (at, cause): &Wrong) -> bool {
        let says = |key: &str| {
            let mut words = cause.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
            words.any(|word| word == key)
        };
        let lacks = || says("missing") || says("need") || says("needs");
        let is_in = |table: usize| self.table(at.start) == table;
        self.lacks_table && (cause.ends_with(NO_TARGET) || cause.ends_with(NO_LUN))
            || self.lacks_number && cause.ends_with(NOT_OF_TARGET)
            || self.lacks_address && cause.contains("its portals are not those")
            || lacks() && self.emptied.iter().any(|(table, key)| says(key) && is_in(*table))
    }

    /// Replaces what an error of the parser is about. False: it is not known how.
    fn repair(&mut self, (at, cause): &Wrong) -> bool {
        let line = line_range(&self.text, at.start);
        if let Some(key) = cause.split_once("the key ").and_then(|(_, rest)| rest.split_once(" is missing")) {
            return self.is_header(&line) && self.insert(line.end, key.0);
        }
        if self.is_header(&line) {
            self.lacks_table = true;
            self.misspelt_table |= meant(cause).is_some();
            return self.empty(self.table_range(&line));
        }
        let Some(key) = key_of(&self.text[line.clone()]).map(str::to_owned) else { return false };
        // A number in quotes: its table keeps the number.
        let words = &self.text[line.clone()];
        let bare = words.replace('"', " ");
        let is_number = bare.split_once('=').is_some_and(|(_, value)| value.trim().parse::<u16>().is_ok());
        if key == "lun" && words != bare && is_number {
            self.text.replace_range(line, &bare);
            return true;
        }
        let table = self.table(at.start);
        self.emptied.extend(meant(cause).map(|meant| (table, meant.to_owned())));
        self.emptied.push((table, key));
        self.empty(line)
    }

    /// A table with the tables below it: up to a header of no more parts.
    fn table_range(&self, header: &Range<usize>) -> Range<usize> {
        let depth = |line: &Range<usize>| {
            let name = self.text[line.clone()].trim_start_matches([' ', '\t', '[']);
            name.split([']', '#']).next().unwrap_or_default().matches('.').count()
        };
        let below = lines(&self.text).filter(|line| line.start > header.start && self.is_header(line));
        let mut ends = below.filter(|line| depth(line) <= depth(header)).map(|line| line.start);
        header.start..ends.next().unwrap_or(self.text.len())
    }

    /// False if the range is empty already.
    fn empty(&mut self, range: Range<usize>) -> bool {
        let blank = |c: char| if c == '\n' { "\n".to_owned() } else { " ".repeat(c.len_utf8()) };
        let spaces: String = self.text[range.clone()].chars().map(blank).collect();
        let differs = self.text[range.clone()] != spaces;
        self.text.replace_range(range, &spaces);
        differs
    }

    /// Inserts a line for `key` at the end of a header's line. False: there is no placeholder for the key.
    fn insert(&mut self, at: usize, key: &str) -> bool {
        let number = self.inserted.len();
        let value = match key {
            "lun" => (NUMBER - number as u16).to_string(),
            "endpoint" => "\"null:1M\"".to_owned(),
            "iqn" => format!("\"{MISSING}{number}\""),
            "address" => "\"127.0.0.1:3260\"".to_owned(),
            _ => return false,
        };
        self.lacks_number |= key == "lun";
        self.lacks_address |= key == "address";
        let line = format!("\n{key} = {value}");
        for part in self.inserted.iter_mut().filter(|part| part.start >= at) {
            *part = part.start + line.len()..part.end + line.len();
        }
        self.text.insert_str(at, &line);
        self.inserted.push(at..at + line.len());
        true
    }
}

/// The key in "did you mean KEY?".
fn meant(cause: &str) -> Option<&str> {
    cause.split_once("did you mean ")?.1.strip_suffix('?')
}

/// Lines of a text, without their ends.
fn lines(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    text.split('\n').map(move |line| {
        let start = next;
        next = start + line.len() + 1;
        start..start + line.len()
    })
}

/// The cause without "target NAME: " and "LUN N: " of placeholders.
fn without_placeholders(cause: &str) -> String {
    let mut rest = cause;
    if rest.strip_prefix("target ").is_some_and(is_placeholder) {
        rest = rest.split_once(": ").map_or(rest, |(_, rest)| rest);
    }
    let made_up = usize::from(NUMBER) - REPAIRS_MAX..=usize::from(NUMBER);
    let is_made_up = |number: &str| number.parse().is_ok_and(|number: usize| made_up.contains(&number));
    let mut parts: Vec<&str> = rest.split(": ").collect();
    parts.retain(|part| !part.strip_prefix("LUN ").is_some_and(is_made_up));
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_for_problems_ends() {
        let wrong = |text: &str| match text.find('!') {
            Some(at) => Err((at..at + 1, "no !".to_owned())),
            None => Ok(((), Vec::new())),
        };
        let starts = |text: &str| -> Vec<usize> {
            problems(text, wrong).1.into_iter().map(|(at, _)| at.start).collect()
        };
        assert_eq!(starts("a = !\nb = 1\nc = !"), [4, 16]);
        assert_eq!(
            starts("[!]\nc = !\n[d.e]\nf = !\n[g]\nh = !"),
            [1, 30],
            "without the tables of the first"
        );
        assert_eq!(starts("[[g]]\na!"), [7], "no key, so that it is not known what to leave out");
        assert_eq!(starts(&"a = !\n".repeat(100)).len(), PROBLEMS_MAX);
        let always = |_: &str| Err::<((), Vec<Wrong>), Wrong>((0..0, "the key lun is missing".to_owned()));
        assert_eq!(problems("[[lun]]\n", always).1.len(), PROBLEMS_MAX);
    }
}
