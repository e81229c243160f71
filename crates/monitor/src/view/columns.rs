//! Points of charts as bytes within a page: columns of differences, base64.
//!
//! Each column holds one value of every point, as the difference from the point before: zigzag, then LEB128. Times are
//! counted in [`quantum_ns`] from the start. `assets/report/` is the reader.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::chart::{Chart, Data};
use crate::event::Side;
use crate::series::{Mark, Point, Span};

/// Largest value: JavaScript's numbers are exact up to here.
const VALUE_MAX: u64 = 1 << 53;
/// Periods up to this length have times exact to 100 ns, longer ones to 1 us.
const FINE_NS_MAX: u64 = 60_000_000_000;

/// Unit of times in columns.
pub(super) const fn quantum_ns(period_ns: u64) -> u64 {
    if period_ns <= FINE_NS_MAX { 100 } else { 1000 }
}

/// The columns of all charts in their order, as base64, and their description.
pub(super) fn encode(charts: &[Chart<'_>], from_ns: u64, to_ns: u64) -> (Value, String) {
    let mut columns =
        Columns { bytes: Vec::new(), from_ns, quantum_ns: quantum_ns(to_ns.saturating_sub(from_ns)) };
    let described: Vec<Value> = charts
        .iter()
        .map(|chart| {
            let lines: Vec<Value> = chart
                .lines
                .iter()
                .map(|line| {
                    let kind = columns.add(&line.data);
                    json!({
                        "label": line.label,
                        "colour": line.colour,
                        "scaled": line.is_scaled,
                        "kind": kind,
                        "points": line.data.len(),
                    })
                })
                .collect();
            json!({
                "name": chart.name,
                "title": chart.title,
                "unit": chart.unit,
                "tall": chart.is_tall,
                "lines": lines,
            })
        })
        .collect();
    let seconds = to_ns.saturating_sub(from_ns) as f64 / 1e9;
    let quantum_s = columns.quantum_ns as f64 / 1e9;
    let about = json!({ "seconds": seconds, "quantum_s": quantum_s, "charts": described });
    (about, STANDARD.encode(&columns.bytes))
}

struct Columns {
    bytes: Vec<u8>,
    from_ns: u64,
    quantum_ns: u64,
}

impl Columns {
    /// Adds the columns of one line and returns the name of their kind.
    fn add(&mut self, data: &Data<'_>) -> &'static str {
        match data {
            Data::Spans(spans) => self.spans("spans", spans),
            Data::Bands(spans) => self.spans("bands", spans),
            Data::Steps(points) => self.points("steps", points),
            Data::Dots(points) => self.points("dots", points),
            Data::Marks { marks, stream } => self.marks(marks, *stream),
            Data::Bars(commands) => {
                self.times(commands.iter().map(|timed| timed.at_ns));
                for part in 0..4 {
                    self.column(commands.iter().map(|timed| timed.parts_ns()[part]));
                }
                self.column(commands.iter().map(|timed| timed.bytes));
                "bars"
            }
        }
    }

    fn points(&mut self, kind: &'static str, points: &[Point]) -> &'static str {
        self.times(points.iter().map(|point| point.at_ns));
        self.column(points.iter().map(|point| point.value));
        kind
    }

    /// Times, then the gap from the end of the span before to the start, then the length: both mostly the same.
    fn spans(&mut self, kind: &'static str, spans: &[Span]) -> &'static str {
        self.times(spans.iter().map(|span| span.at_ns));
        let mut end = 0;
        self.signed(spans.iter().map(|span| {
            let gap = bounded(span.low) - end;
            end = bounded(span.high);
            gap
        }));
        self.column(spans.iter().map(|span| bounded(span.high).abs_diff(bounded(span.low))));
        kind
    }

    fn marks(&mut self, marks: &[Mark], stream: Side) -> &'static str {
        self.times(marks.iter().map(|mark| mark.at_ns));
        self.column(marks.iter().map(|mark| mark.offsets[stream as usize]));
        self.column(marks.iter().map(|mark| u64::from(mark.itt)));
        self.column(marks.iter().map(|mark| u64::from(mark.bytes)));
        self.column(marks.iter().map(|mark| u64::from(mark.count)));
        "marks"
    }

    fn times(&mut self, times: impl Iterator<Item = u64>) {
        let (from, quantum) = (self.from_ns, self.quantum_ns);
        self.column(times.map(|at| at.saturating_sub(from) / quantum));
    }

    fn column(&mut self, values: impl Iterator<Item = u64>) {
        self.signed(values.map(bounded));
    }

    fn signed(&mut self, values: impl Iterator<Item = i64>) {
        let mut last = 0i64;
        for value in values {
            // Values have 54 bits: neither the difference nor its double overflows.
            let difference = value - last;
            last = value;
            let mut rest = ((difference << 1) ^ (difference >> 63)) as u64;
            while rest >= 0x80 {
                self.bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            self.bytes.push(rest as u8);
        }
    }
}

fn bounded(value: u64) -> i64 {
    value.min(VALUE_MAX) as i64
}
