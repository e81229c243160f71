//! The course of a copy over time, as SVG: its rate over the phases, what limited it, the number of chunks in flight.
//!
//! Colours are CSS classes, defined in the page's style for a light and a dark scheme.

use std::fmt::Write as _;

use crate::Interval;

/// Phases and limits, in the order of the legend; each is a class of [`STYLE`].
const PHASES: [&str; 4] = ["copy", "rescue", "flush", "verify"];
const LIMITS: [&str; 7] = ["source", "destination", "balanced", "rate", "memory", "cpu", "target"];

pub(super) const STYLE: &str = "\
svg text{font:12px sans-serif;fill:#444}svg .grid{stroke:#8884}svg .line{fill:none;stroke:#111;stroke-width:2}svg .depth{stroke:#1f77b4}\
.copy{fill:#e8f0fc;background:#e8f0fc}.rescue{fill:#fdecd8;background:#fdecd8}.flush{fill:#fff4c8;background:#fff4c8}\
.verify{fill:#e6f6e6;background:#e6f6e6}\
.source{fill:#1f77b4;background:#1f77b4}.destination{fill:#d64541;background:#d64541}.balanced{fill:#9467bd;background:#9467bd}\
.rate{fill:#8c8c8c;background:#8c8c8c}.memory{fill:#ff9800;background:#ff9800}.cpu{fill:#222;background:#222}\
.target{fill:#009688;background:#009688}\
@media(prefers-color-scheme:dark){svg text{fill:#bbb}svg .line{stroke:#eee}svg .depth{stroke:#6ab0de}.copy{fill:#1d2b45;background:#1d2b45}\
.rescue{fill:#4a3315;background:#4a3315}.flush{fill:#453d12;background:#453d12}.verify{fill:#183a18;background:#183a18}\
.cpu{fill:#eee;background:#eee}}";

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 990.0;
/// Vertical extents in pixels: the rate, the strip of limits below it, the depth; then the line of seconds.
const RATE: [f64; 2] = [12.0, 250.0];
const STRIP: [f64; 2] = [256.0, 268.0];
const DEPTH: [f64; 2] = [290.0, 410.0];
const HEIGHT: u32 = 450;

pub(super) fn draw(intervals: &[Interval]) -> String {
    let mut html = String::from("<h2>Over time</h2>\n");
    picture(&mut html, intervals);
    html += "\n<p>phases:";
    key(&mut html, &PHASES, intervals, |part| part.sample.phase);
    html += " &#160; limited by (the strip below the rate):";
    key(&mut html, &LIMITS, intervals, |part| part.sample.limited_by);
    html + "</p>\n"
}

/// The legend: the entries of `names` that occur.
fn key(html: &mut String, names: &[&str], intervals: &[Interval], of: fn(&Interval) -> &'static str) {
    for name in names.iter().filter(|name| intervals.iter().any(|part| of(part) == **name)) {
        let _ = write!(html, "<span class=\"key {name}\"></span>{name}");
    }
}

fn picture(svg: &mut String, intervals: &[Interval]) {
    let end = intervals.last().map_or(0.0, |part| part.to).max(1e-3);
    let fastest = intervals.iter().map(|part| part.rate).fold(1e3, f64::max) * 1.1;
    let (unit, bytes) = rate_unit(fastest);
    let rate_max = fastest / bytes;
    let deepest = intervals.iter().map(|part| part.sample.depth).max().unwrap_or(0).max(1);
    let depth_max = f64::from(deepest) * 1.1;
    let x = |seconds: f64| LEFT + seconds / end * (RIGHT - LEFT);
    let _ = writeln!(svg, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    let bar = |svg: &mut String, class: &str, part: &Interval, [top, bottom]: [f64; 2]| {
        let (from, to) = (x(part.from), x(part.to));
        let (width, height) = (to - from, bottom - top);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\"/>"
        );
    };
    for part in intervals {
        bar(svg, part.sample.phase, part, RATE);
        bar(svg, part.sample.limited_by, part, STRIP);
    }
    axis(svg, unit, rate_max, RATE);
    axis(svg, "chunks in flight", depth_max, DEPTH);
    line(svg, "line", intervals.iter().map(|part| (part, part.rate / bytes)), x, (rate_max, RATE));
    let depths = intervals.iter().map(|part| (part, f64::from(part.sample.depth)));
    line(svg, "line depth", depths, x, (depth_max, DEPTH));
    let below = DEPTH[1] + 16.0;
    for seconds in ticks(end) {
        let at = x(seconds);
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{seconds}</text>");
    }
    let _ =
        write!(svg, "<text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\">seconds</text>\n</svg>", below + 16.0);
}

/// The unit of rates up to `most` bytes per second, and its bytes: labels get at most five digits, which fit left of
/// `LEFT`.
fn rate_unit(most: f64) -> (&'static str, f64) {
    match most {
        _ if most < 1e6 => ("kB/s", 1e3),
        _ if most < 1e11 => ("MB/s", 1e6),
        _ => ("GB/s", 1e9),
    }
}

/// Horizontal grid lines at round values, labelled at the left.
fn axis(svg: &mut String, name: &str, most: f64, [top, bottom]: [f64; 2]) {
    for value in ticks(most) {
        let y = bottom - value / most * (bottom - top);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    let middle = f64::midpoint(top, bottom);
    let _ = writeln!(
        svg,
        "<text x=\"14\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {middle})\">{name}</text>"
    );
}

fn line<'a>(
    svg: &mut String,
    class: &str,
    values: impl Iterator<Item = (&'a Interval, f64)>,
    x: impl Fn(f64) -> f64,
    (most, [top, bottom]): (f64, [f64; 2]),
) {
    let _ = write!(svg, "<polyline class=\"{class}\" points=\"");
    for (part, value) in values {
        let y = bottom - value / most * (bottom - top);
        let _ = write!(svg, "{:.1},{y:.1} {:.1},{y:.1} ", x(part.from), x(part.to));
    }
    *svg += "\"/>\n";
}

/// At most eight multiples of 1, 2 or 5 times a power of ten from 0 to `most`.
fn ticks(most: f64) -> Vec<f64> {
    let power = 10f64.powf((most / 8.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| most / step < 8.0);
    let step = step.unwrap_or(most);
    let count = (most / step) as u32;
    // Rounds off the last digits that the multiplication adds.
    let digits = (-power.log10()).max(0.0) as i32;
    let round = |value: f64| (value * 10f64.powi(digits)).round() / 10f64.powi(digits);
    (0..=count).map(|number| round(f64::from(number) * step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(7.7), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(ticks(0.0015), [0.0, 0.0002, 0.0004, 0.0006, 0.0008, 0.001, 0.0012, 0.0014]);
        for most in [1e-3, 0.3, 1.0, 8.0, 33.0, 4096.0, 7e5] {
            let found = ticks(most);
            assert!(
                (2..=9).contains(&found.len()) && found.iter().all(|tick| *tick <= most),
                "{most}: {found:?}"
            );
        }
    }

    #[test]
    fn labels_of_any_rate_are_short() {
        for rate in [0.0, 20.0, 3e4, 5e6, 1e8, 3e9, 9e10, 4e11, 9e13] {
            let sample =
                crate::Sample { phase: "copy", limited_by: "cpu", depth: 1024, ..Default::default() };
            let html = draw(&[Interval { from: 0.0, to: 1.0, rate, sample }]);
            let labels =
                html.split("text-anchor=\"end\">").skip(1).map(|rest| rest.split('<').next().unwrap());
            for label in labels.filter(|label| *label != "seconds") {
                assert!(label.len() <= 6, "{label} at {rate}");
            }
        }
    }
}
