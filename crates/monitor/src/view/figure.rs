//! One [`Chart`] as SVG. A picture has at most a few marks for each of its columns, whatever the number of points.
//!
//! Colours are classes: [`PALETTE`] defines them for a figure that stands alone, a page for light and dark.

use std::fmt::Write as _;

use super::chart::{Chart, Data, Line, Unit};
use super::escape::markup;
use super::words;
use crate::event::Side;
use crate::series::{Mark, Point, Series, Span, Timed};

/// Colours of lines by class, on white.
pub(super) const PALETTE: &str = "svg{--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--grid:#e3e7eb;\
--sent:#1f6fc4;--repeated:#d1242f;--acknowledged:#2a8a3e;--window:#b07a00;--command:#7a3fb8;--r2t:#d0560b;--data:#5b7fa8;\
--response:#0b8074;--other:#8a8f98;--waiting:#1f6fc4;--unsent:#e39a2d;--queue:#5b6570;--cap:#d1242f;--cwnd:#7a3fb8;\
--ssthresh:#c2549d;--ta:#1f6fc4;--tb:#e39a2d;--tc:#b4bac2;background:#fff}";

/// How lines of a figure look; needs the variables of [`PALETTE`].
pub(super) const STYLE: &str = "\
.figure text{font:12px system-ui,sans-serif;fill:var(--dim)}.figure .title{font-size:15px;font-weight:600;fill:var(--fg)}\
.figure .end{text-anchor:end}.figure .mid{text-anchor:middle}.figure .grid{stroke:var(--grid)}\
.figure .line{fill:none;stroke-width:1.5;stroke-linejoin:round}.figure .area{stroke:none}\
.figure .mark{stroke-width:1.5}.figure .axis{stroke:var(--dim)}";

/// Width of a figure in pixels.
pub(super) const WIDTH: f64 = 1000.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 54.0;
const BOTTOM: f64 = 44.0;
/// Most marks of one kind in a figure: more would hide the stream.
const MARKS_MAX: usize = 60;
/// Width of a command's bar where there are few.
const BAR_MAX: f64 = 14.0;

/// Where values lie in the picture.
struct Frame {
    from_ns: u64,
    to_ns: u64,
    bottom: f64,
    top: f64,
    height: f64,
}

impl Frame {
    fn x(&self, at_ns: u64) -> f64 {
        let share =
            at_ns.saturating_sub(self.from_ns) as f64 / self.to_ns.saturating_sub(self.from_ns).max(1) as f64;
        LEFT + share.min(1.0) * (WIDTH - LEFT - RIGHT)
    }

    /// Values far outside the picture lie one height above or below it.
    fn y(&self, value: f64) -> f64 {
        let share = (value - self.bottom) / (self.top - self.bottom);
        TOP + (1.0 - share.clamp(-1.0, 2.0)) * self.height
    }

    fn column(&self, at_ns: u64) -> u32 {
        self.x(at_ns) as u32
    }
}

/// The chart as an SVG element of [`WIDTH`] units, with `style` inside it.
pub(super) fn draw(chart: &Chart<'_>, series: &Series, style: &str) -> String {
    let height = if chart.is_tall { 380.0 } else { 220.0 };
    let (bottom, top) = range(chart);
    let frame = Frame { from_ns: series.from_ns, to_ns: series.to_ns, bottom, top, height };
    let whole = TOP + height + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"figure\" viewBox=\"0 0 {WIDTH} {whole}\" role=\"img\" \
         aria-label=\"{title}\">{style}<text class=\"title\" x=\"{LEFT}\" y=\"18\">{title}</text>\n",
        title = markup(chart.title),
    );
    axes(&mut svg, chart, &frame);
    // An inner element cuts off what lies beyond its frame. Marks are drawn after it: those at the edges are whole.
    let width = WIDTH - LEFT - RIGHT;
    let _ = writeln!(
        svg,
        "<svg x=\"{LEFT}\" y=\"{TOP}\" width=\"{width}\" height=\"{height}\" viewBox=\"{LEFT} {TOP} {width} {height}\">"
    );
    let is_mark = |line: &&Line<'_>| matches!(line.data, Data::Marks { .. });
    chart.lines.iter().filter(|line| !is_mark(line)).for_each(|line| draw_line(&mut svg, line, &frame));
    svg += "</svg>\n";
    chart.lines.iter().filter(is_mark).for_each(|line| draw_line(&mut svg, line, &frame));
    legend(&mut svg, chart);
    svg += "</svg>\n";
    svg
}

/// Least and greatest value of the picture: from 0, except offsets of a stream.
fn range(chart: &Chart<'_>) -> (f64, f64) {
    let mut ends = (u64::MAX, 0u64);
    let mut widen = |low: u64, high: u64| ends = (ends.0.min(low), ends.1.max(high));
    for line in chart.lines.iter().filter(|line| line.is_scaled) {
        match &line.data {
            Data::Spans(spans) => spans.iter().for_each(|span| widen(span.low, span.high)),
            Data::Bands(spans) => spans.iter().for_each(|span| widen(span.low, span.high)),
            Data::Steps(points) => points.iter().for_each(|point| widen(point.value, point.value)),
            Data::Dots(points) => points.iter().for_each(|point| widen(point.value, point.value)),
            Data::Marks { marks, stream } => marks.iter().for_each(|mark| {
                let at = mark.offsets[*stream as usize];
                widen(at, at);
            }),
            Data::Bars(commands) => commands.iter().for_each(|timed| widen(0, sum(timed))),
        }
    }
    let low = if chart.name == "sequence" && ends.0 <= ends.1 { ends.0 } else { 0 };
    let high = ends.1.max(low.saturating_add(1));
    (low as f64, low as f64 + (high - low) as f64 * 1.05)
}

fn sum(timed: &Timed) -> u64 {
    timed.parts_ns().into_iter().fold(0, u64::saturating_add)
}

fn axes(svg: &mut String, chart: &Chart<'_>, frame: &Frame) {
    let (unit, scale) = unit(chart.unit, frame.top);
    let foot = TOP + frame.height;
    let (step, values) = words::ticks(frame.bottom / scale, frame.top / scale, 6);
    let digits = decimals(step);
    for value in values {
        let y = frame.y(value * scale);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"end\" x=\"{}\" y=\"{:.1}\">{value:.digits$}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0
        );
    }
    let seconds = frame.to_ns.saturating_sub(frame.from_ns) as f64 / 1e9;
    let (name, scale) = if seconds < 1.0 { ("ms", 1e3) } else { ("s", 1.0) };
    let (step, values) = words::ticks(0.0, seconds * scale, 10);
    let digits = decimals(step);
    for value in values {
        let x = LEFT + value / (seconds * scale).max(1e-9) * (WIDTH - LEFT - RIGHT);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{foot}\"/>\
             <text class=\"mid\" x=\"{x:.1}\" y=\"{}\">{value:.digits$}</text>",
            foot + 16.0
        );
    }
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{foot}\" y2=\"{foot}\"/>\
         <text class=\"end\" x=\"{}\" y=\"{}\">time in {name}</text><text class=\"end\" x=\"{}\" y=\"{}\">{unit}</text>",
        WIDTH - RIGHT,
        WIDTH - RIGHT,
        foot + 34.0,
        LEFT - 6.0,
        TOP - 12.0
    );
}

fn decimals(step: f64) -> usize {
    (-step.log10().floor()).clamp(0.0, 9.0) as usize
}

/// Name of the unit for values up to `top`, and its size.
fn unit(unit: Unit, top: f64) -> (&'static str, f64) {
    let of = |units: &[(&'static str, f64)]| {
        units.iter().rev().find(|(_, size)| top >= *size).or(units.first()).copied().unwrap_or(("", 1.0))
    };
    match unit {
        Unit::Bytes => of(&words::SIZES),
        Unit::BytesPerS => of(&[("B/s", 1.0), ("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12)]),
        Unit::Nanoseconds => of(&[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)]),
        Unit::Count => ("", 1.0),
    }
}

fn draw_line(svg: &mut String, line: &Line<'_>, frame: &Frame) {
    let colour = line.colour;
    match &line.data {
        Data::Spans(spans) => stroke(svg, colour, &span_path(spans, frame)),
        Data::Bands(spans) => {
            let _ = writeln!(
                svg,
                "<path class=\"area\" fill=\"var(--{colour})\" d=\"{}\"/>",
                band_path(spans, frame)
            );
        }
        Data::Steps(points) => stroke(svg, colour, &step_path(points, frame)),
        Data::Dots(points) => {
            let spans: Vec<Span> = points
                .iter()
                .map(|point| Span { at_ns: point.at_ns, low: point.value, high: point.value, segments: 1 })
                .collect();
            stroke(svg, colour, &span_path(&spans, frame));
        }
        Data::Marks { marks, stream } => draw_marks(svg, colour, marks, *stream, frame),
        Data::Bars(commands) => bars(svg, commands, frame),
    }
}

fn stroke(svg: &mut String, colour: &str, path: &str) {
    let _ = writeln!(svg, "<path class=\"line\" stroke=\"var(--{colour})\" d=\"{path}\"/>");
}

/// A vertical line for each column, from the least to the greatest of its spans; at least 1.5 units long.
fn span_path(spans: &[Span], frame: &Frame) -> String {
    let mut path = String::new();
    for column in spans.chunk_by(|one, next| frame.column(one.at_ns) == frame.column(next.at_ns)) {
        let low = column.iter().map(|span| span.low).min().unwrap_or(0);
        let high = column.iter().map(|span| span.high).max().unwrap_or(0);
        let (foot, head) = (frame.y(low as f64), frame.y(high as f64));
        let length = (foot - head).max(1.5);
        let _ = write!(path, "M{:.1} {:.1}v{:.1}", frame.x(column[0].at_ns), head, length);
    }
    path
}

/// Horizontal lines with a vertical one in each column that has a change, through its least and greatest value.
fn step_path(points: &[Point], frame: &Frame) -> String {
    let mut path = String::new();
    for column in points.chunk_by(|one, next| frame.column(one.at_ns) == frame.column(next.at_ns)) {
        let x = frame.x(column[0].at_ns);
        let ys = || column.iter().map(|point| frame.y(point.value as f64));
        let (low, high) = ys().fold((f64::MAX, f64::MIN), |(low, high), y| (low.min(y), high.max(y)));
        let last = ys().next_back().unwrap_or(0.0);
        if path.is_empty() {
            let _ = write!(path, "M{x:.1} {:.1}", ys().next().unwrap_or(0.0));
        } else {
            let _ = write!(path, "H{x:.1}");
        }
        if high - low > 0.05 {
            let _ = write!(path, "V{low:.1}V{high:.1}");
        }
        let _ = write!(path, "V{last:.1}");
    }
    if !path.is_empty() {
        let _ = write!(path, "H{:.1}", WIDTH - RIGHT);
    }
    path
}

/// A rectangle for each run of columns with the same values: the highest of each column.
fn band_path(spans: &[Span], frame: &Frame) -> String {
    let mut path = String::new();
    let mut tops = spans
        .chunk_by(|one, next| frame.column(one.at_ns) == frame.column(next.at_ns))
        .filter_map(|column| column.iter().max_by_key(|span| span.high))
        .peekable();
    while let Some(span) = tops.next() {
        let from = frame.x(span.at_ns);
        let to = tops.peek().map_or(WIDTH - RIGHT, |next| frame.x(next.at_ns));
        let (foot, head) = (frame.y(span.low as f64), frame.y(span.high as f64));
        if foot - head > 0.05 {
            let _ = write!(path, "M{from:.1} {foot:.1}V{head:.1}H{to:.1}V{foot:.1}z");
        }
    }
    path
}

fn draw_marks(svg: &mut String, colour: &str, marks: &[Mark], stream: Side, frame: &Frame) {
    let mut path = String::new();
    for mark in marks.iter().filter(|_| marks.len() <= MARKS_MAX) {
        let (x, y) = (frame.x(mark.at_ns), frame.y(mark.offsets[stream as usize] as f64));
        path += &symbol(colour, x, y);
    }
    let _ =
        writeln!(svg, "<path class=\"mark\" stroke=\"var(--{colour})\" fill=\"var(--bg)\" d=\"{path}\"/>");
}

/// A shape for each colour of marks: they differ without colours, too.
fn symbol(colour: &str, x: f64, y: f64) -> String {
    match colour {
        "command" => format!("M{x:.1} {y:.1}l4 8h-8z"),
        "response" => format!("M{x:.1} {y:.1}l4 -8h-8z"),
        "r2t" => format!("M{:.1} {:.1}l4 4l-4 4l-4 -4z", x, y - 4.0),
        "data" => format!("M{:.1} {:.1}h8", x - 4.0, y),
        _ => format!("M{:.1} {:.1}h6v6h-6z", x - 3.0, y - 3.0),
    }
}

fn bars(svg: &mut String, commands: &[Timed], frame: &Frame) {
    let space = (WIDTH - LEFT - RIGHT) / commands.len().max(1) as f64;
    let width = (space * 0.8).clamp(1.0, BAR_MAX);
    let mut paths = [const { String::new() }; 4];
    for column in commands.chunk_by(|one, next| frame.column(one.at_ns) == frame.column(next.at_ns)) {
        let Some(timed) = column.iter().max_by_key(|timed| sum(timed)) else { continue };
        let x = frame.x(timed.at_ns);
        let mut low = 0u64;
        for (path, part) in paths.iter_mut().zip(timed.parts_ns()) {
            let high = low.saturating_add(part);
            let (foot, head) = (frame.y(low as f64), frame.y(high as f64));
            let _ = write!(path, "M{x:.1} {foot:.1}V{head:.1}h{width:.1}V{foot:.1}z");
            low = high;
        }
    }
    for (colour, path) in ["ta", "tb", "other", "tc"].into_iter().zip(paths) {
        let _ = writeln!(svg, "<path class=\"area\" fill=\"var(--{colour})\" d=\"{path}\"/>");
    }
}

/// Names of the lines, in a row below the title.
fn legend(svg: &mut String, chart: &Chart<'_>) {
    let mut x = LEFT;
    let mut entry = |svg: &mut String, shape: &str, label: &str| {
        let _ = writeln!(svg, "{shape}<text x=\"{:.0}\" y=\"38\">{}</text>", x + 17.0, markup(label));
        // The width of the text is not known here: 7.6 units for each character are enough for wide fonts.
        x += 17.0 + 7.6 * label.chars().count() as f64 + 16.0;
        x
    };
    let mut at = LEFT;
    for line in &chart.lines {
        let colour = line.colour;
        let square = |colour: &str, at: f64| {
            format!("<rect x=\"{at:.0}\" y=\"28\" width=\"11\" height=\"11\" fill=\"var(--{colour})\"/>")
        };
        at = match &line.data {
            Data::Marks { marks, .. } => {
                // The symbol lies around its point, below it, or above it.
                let y = match colour {
                    "command" => 29.0,
                    "response" => 38.0,
                    _ => 33.0,
                };
                let shape = format!(
                    "<path class=\"mark\" stroke=\"var(--{colour})\" fill=\"var(--bg)\" d=\"{}\"/>",
                    symbol(colour, at + 5.0, y)
                );
                let is_drawn = marks.len() <= MARKS_MAX;
                let hidden = if is_drawn { String::new() } else { format!(" ({}, not drawn)", marks.len()) };
                entry(svg, &shape, &(line.label.to_owned() + &hidden))
            }
            Data::Bars(_) => {
                for (colour, label) in [("ta", "Ta"), ("tb", "Tb"), ("other", "rest"), ("tc", "Tc")] {
                    at = entry(svg, &square(colour, at), label);
                }
                at
            }
            Data::Steps(_) => entry(
                svg,
                &format!("<path class=\"line\" stroke=\"var(--{colour})\" d=\"M{at:.0} 34h12\"/>"),
                line.label,
            ),
            _ => entry(svg, &square(colour, at), line.label),
        };
    }
}
