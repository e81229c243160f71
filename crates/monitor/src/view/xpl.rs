//! `analyze --xpl`: time sequence graphs for xplot, drawn as tcptrace draws them, with PDUs as labels.
//!
//! Data is white with an arrow at each end, retransmissions are red with an `R`, acknowledgements green, duplicate ones
//! have ticks, and the receive window is yellow. PDUs have the colours of their kind.

use std::io::{self, Write};

use super::chart::window_edge;
use super::escape::plain;
use super::{Subject, words};
use crate::event::Side;
use crate::series::{Mark, MarkKind, Point, Span};

/// The first bytes of every file; a file without them is no earlier graph and not to be overwritten.
pub const MARKS: [&str; 1] = ["timeval double\ntitle\nhikyaku analyze: "];

/// The name that tcptrace gives to the graph of the connection with this number, from 0: `a2b_tsg.xpl` for the first
/// one's initiator, `b2a_tsg.xpl` for its target, then `c2d`.
pub fn name(connection: usize, from: Side) -> String {
    let (initiator, target) = (letters(2 * connection), letters(2 * connection + 1));
    match from {
        Side::Initiator => format!("{initiator}2{target}_tsg.xpl"),
        Side::Target => format!("{target}2{initiator}_tsg.xpl"),
    }
}

/// `a` to `z`, `aa`, `ab` and so on.
fn letters(mut number: usize) -> String {
    let mut text = Vec::new();
    loop {
        text.push(b'a' + (number % 26) as u8);
        match (number / 26).checked_sub(1) {
            Some(rest) => number = rest,
            None => break,
        }
    }
    text.iter().rev().map(|byte| char::from(*byte)).collect()
}

/// Writes the graph of the stream that `from` sends.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write, subject: &Subject<'_>, from: Side) -> io::Result<()> {
    let stream = subject.series.direction(from);
    let edges = window_edge(stream);
    let [mark] = MARKS;
    let flow = &subject.flow;
    let (one, other) = match from {
        Side::Initiator => (&flow.initiator, &flow.target),
        Side::Target => (&flow.target, &flow.initiator),
    };
    writeln!(out, "{mark}{} to {} (time sequence graph)", plain(one), plain(other))?;
    out.write_all(b"xlabel\nTime\nylabel\nSequence Offset\n")?;
    steps(out, "yellow", &edges)?;
    steps(out, "green", &stream.acknowledged)?;
    for Point { at_ns, value } in &stream.duplicates {
        writeln!(out, "dtick {} {value}", Time(*at_ns))?;
    }
    out.write_all(b"white\n")?;
    segments(out, &stream.sent)?;
    out.write_all(b"red\n")?;
    segments(out, &stream.repeated)?;
    for span in &stream.repeated {
        writeln!(out, "atext {} {}\nR", Time(span.at_ns), span.high)?;
    }
    subject.series.marks.iter().try_for_each(|mark| label(out, mark, from))?;
    out.write_all(b"go\n")
}

/// Seconds and microseconds of a moment.
struct Time(u64);

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}

fn segments(out: &mut impl Write, spans: &[Span]) -> io::Result<()> {
    for Span { at_ns, low, high, .. } in spans {
        let at = Time(*at_ns);
        writeln!(out, "darrow {at} {low}\nuarrow {at} {high}\nline {at} {low} {at} {high}")?;
    }
    Ok(())
}

/// A line of steps: along the time, then to the next value.
fn steps(out: &mut impl Write, colour: &str, points: &[Point]) -> io::Result<()> {
    writeln!(out, "{colour}")?;
    for pair in points.windows(2) {
        let (at, next) = (Time(pair[0].at_ns), Time(pair[1].at_ns));
        let (value, new) = (pair[0].value, pair[1].value);
        writeln!(out, "line {at} {value} {next} {value}\nline {next} {value} {next} {new}")?;
    }
    Ok(())
}

/// A PDU: data as a tick, because its labels would cover the graph; others with their name.
fn label(out: &mut impl Write, mark: &Mark, stream: Side) -> io::Result<()> {
    let (at, offset) = (Time(mark.at_ns), mark.offsets[stream as usize]);
    let name = mark.kind.name();
    let (colour, place, text) = match mark.kind {
        MarkKind::DataOut | MarkKind::DataIn => return writeln!(out, "blue\nhtick {at} {offset}"),
        MarkKind::Command => ("purple", "ltext", format!("{name} {:#x}", mark.itt)),
        MarkKind::R2t => ("orange", "rtext", format!("{name} {}", words::bytes(u64::from(mark.bytes)))),
        MarkKind::Response => ("magenta", "rtext", format!("{name} {:#x}", mark.itt)),
        MarkKind::Other => ("pink", "rtext", name.to_owned()),
    };
    let count = if mark.count > 1 { format!("{} x ", mark.count) } else { String::new() };
    writeln!(out, "{colour}\ndiamond {at} {offset}\n{place} {at} {offset}\n{count}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_tcptrace() {
        let names = [(0, "a2b"), (1, "c2d"), (12, "y2z"), (13, "aa2ab"), (26, "ba2bb")];
        for (connection, expected) in names {
            assert_eq!(name(connection, Side::Initiator), format!("{expected}_tsg.xpl"));
        }
        assert_eq!(name(0, Side::Target), "b2a_tsg.xpl");
    }

    #[test]
    fn times_have_microseconds() {
        assert_eq!(Time(1_700_000_000_000_045_999).to_string(), "1700000000.000045");
    }
}
