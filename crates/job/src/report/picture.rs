//! The course of a copy over time: its rate over the phases, what limited it, the number of chunks in flight.
//!
//! The plots are SVG that stretches to the width of the page; their labels are HTML beside them, so that text keeps its
//! size on a narrow screen. Colours are CSS classes, defined in the page's style for a light and a dark scheme.

use std::fmt::Write as _;
use std::time::Duration;

use crate::{Interval, units};

/// Phases and limits, in the order of the legend; each is a class of [`STYLE`].
const PHASES: [&str; 4] = ["copy", "rescue", "flush", "verify"];
const LIMITS: [&str; 8] = ["source", "destination", "balanced", "rate", "impact", "memory", "cpu", "target"];

/// On a narrow page every second label of the time is hidden: all of them would overlap.
pub(super) const STYLE: &str = "\
.plots{font-size:12px;line-height:1;color:#444;margin:0 0 0 52px}.plot{position:relative;margin:0 30px 22px 0}\
.plot svg{display:block;width:100%;height:100%}.tall{height:240px;margin-bottom:4px}.strip{height:12px}.low{height:120px}\
.name{margin:0 0 10px -40px}.y,.x{position:absolute;white-space:nowrap}\
.y{right:100%;margin-right:6px;transform:translateY(-50%)}.x{top:100%;margin-top:6px;transform:translateX(-50%)}\
.seconds{text-align:right;margin:4px 30px 0 0}\
line{stroke:#8884}polyline{fill:none;stroke:#111;stroke-width:2}.depth{stroke:#1f77b4}\
line,polyline{vector-effect:non-scaling-stroke}.legend{line-height:1.9}.legend span{white-space:nowrap;margin-right:1em}\
.key{display:inline-block;width:.9em;height:.9em;margin-right:.3em;vertical-align:-.1em}\
.copy{fill:#e8f0fc;background:#e8f0fc}.rescue{fill:#fdecd8;background:#fdecd8}.flush{fill:#fff4c8;background:#fff4c8}\
.verify{fill:#e6f6e6;background:#e6f6e6}\
.source{fill:#1f77b4;background:#1f77b4}.destination{fill:#d64541;background:#d64541}.balanced{fill:#9467bd;background:#9467bd}\
.rate{fill:#8c8c8c;background:#8c8c8c}.impact{fill:#795548;background:#795548}.memory{fill:#ff9800;background:#ff9800}.cpu{fill:#222;background:#222}\
.target{fill:#009688;background:#009688}\
@media(max-width:700px){.odd{display:none}}\
@media print{.plots{break-inside:avoid}.key,svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}\
@media screen and (prefers-color-scheme:dark){.plots{color:#bbb}polyline{stroke:#eee}.depth{stroke:#6ab0de}\
.copy{fill:#1d2b45;background:#1d2b45}.rescue{fill:#4a3315;background:#4a3315}.flush{fill:#453d12;background:#453d12}\
.verify{fill:#183a18;background:#183a18}.cpu{fill:#eee;background:#eee}}";

/// Units of the coordinates within a plot, which is stretched to the size of its element.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

pub(super) fn draw(intervals: &[Interval]) -> String {
    let end = intervals.last().map_or(0.0, |part| part.to).max(1e-3);
    let rate = Axis::of_rates(intervals.iter().map(|part| part.rate).fold(0.0, f64::max));
    let deepest = intervals.iter().map(|part| part.sample.depth).max().unwrap_or(0).max(1);
    let depth = Axis { name: "chunks in flight", unit: 1.0, most: f64::from(deepest) * 1.1 };
    let mut html = String::from("<h2>Over time</h2>\n<div class=\"plots\">\n");
    let _ = writeln!(html, "<div class=\"name\">{}, holes not counted</div>", rate.name);
    plot(&mut html, "tall", "rate over time", |svg| {
        bars(svg, intervals, end, |part| part.sample.phase);
        rate.grid(svg);
        line(svg, "line", intervals.iter().map(|part| (part, part.rate)), end, &rate);
        rate.labels()
    });
    plot(&mut html, "strip", "what limited the rate", |svg| {
        bars(svg, intervals, end, |part| part.sample.limited_by);
        String::new()
    });
    let _ = writeln!(html, "<div class=\"name\">{}</div>", depth.name);
    plot(&mut html, "low", "chunks in flight over time", |svg| {
        depth.grid(svg);
        let depths = intervals.iter().map(|part| (part, f64::from(part.sample.depth)));
        line(svg, "line depth", depths, end, &depth);
        depth.labels() + &times(end)
    });
    html += "<div class=\"seconds\">seconds</div>\n</div>\n";
    legend(&mut html, "phases:", &PHASES, intervals, |part| part.sample.phase);
    let title = "limited by (the strip below the rate):";
    legend(&mut html, title, &LIMITS, intervals, |part| part.sample.limited_by);
    html
}

/// One plot: `content` writes its shapes and returns its labels.
fn plot(html: &mut String, class: &str, title: &str, content: impl FnOnce(&mut String) -> String) {
    let mut shapes = String::new();
    let labels = content(&mut shapes);
    let _ = writeln!(
        html,
        "<div class=\"plot {class}\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{title}\">{shapes}</svg>{labels}</div>"
    );
}

/// One rectangle for each run of intervals with the same class.
fn bars(svg: &mut String, intervals: &[Interval], end: f64, class: fn(&Interval) -> &'static str) {
    for run in intervals.chunk_by(|one, next| class(one) == class(next)) {
        let (from, to) = (run[0].from / end * WIDTH, run[run.len() - 1].to / end * WIDTH);
        let (class, width) = (class(&run[0]), to - from);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{from:.2}\" y=\"0\" width=\"{width:.2}\" height=\"{HEIGHT}\"/>"
        );
    }
}

fn line<'a>(
    svg: &mut String,
    class: &str,
    values: impl Iterator<Item = (&'a Interval, f64)>,
    end: f64,
    axis: &Axis,
) {
    let _ = write!(svg, "<polyline class=\"{class}\" points=\"");
    for (part, value) in values {
        let y = HEIGHT * (1.0 - value / axis.most);
        let (from, to) = (part.from / end * WIDTH, part.to / end * WIDTH);
        let _ = write!(svg, "{from:.2},{y:.2} {to:.2},{y:.2} ");
    }
    *svg += "\"/>\n";
}

/// The labels of the time, as HTML.
fn times(end: f64) -> String {
    let label = |(index, seconds): (usize, f64)| {
        let (class, at) = (if index % 2 == 1 { "x odd" } else { "x" }, seconds / end * 100.0);
        format!("<span class=\"{class}\" style=\"left:{at:.2}%\">{seconds}</span>")
    };
    ticks(end).into_iter().enumerate().map(label).collect()
}

/// The entries of `names` that occur, with the time that each took.
fn legend(
    html: &mut String,
    title: &str,
    names: &[&str],
    intervals: &[Interval],
    of: fn(&Interval) -> &'static str,
) {
    let _ = write!(html, "<p class=\"legend\">{title} ");
    for name in names {
        let seconds: f64 =
            intervals.iter().filter(|part| of(part) == *name).map(|part| part.to - part.from).sum();
        if intervals.iter().any(|part| of(part) == *name) {
            let time = units::duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
            let _ = write!(html, "<span><i class=\"key {name}\"></i>{name} {time}</span> ");
        }
    }
    *html += "</p>\n";
}

/// A vertical axis from 0 to `most`, labelled in multiples of `unit`.
struct Axis {
    name: &'static str,
    unit: f64,
    most: f64,
}

impl Axis {
    /// The axis of rates up to `fastest` bytes per second. Its labels have at most five digits.
    fn of_rates(fastest: f64) -> Self {
        let most = fastest.max(1e3) * 1.1;
        let (name, unit) = match most {
            _ if most < 1e6 => ("kB/s", 1e3),
            _ if most < 1e11 => ("MB/s", 1e6),
            _ => ("GB/s", 1e9),
        };
        Self { name, unit, most }
    }

    /// Round values with their distance from the top, from 0 to 1.
    fn values(&self) -> impl Iterator<Item = (f64, f64)> {
        let most = self.most / self.unit;
        ticks(most).into_iter().map(move |value| (value, 1.0 - value / most))
    }

    fn grid(&self, svg: &mut String) {
        for (_, at) in self.values() {
            let y = at * HEIGHT;
            let _ = writeln!(svg, "<line x1=\"0\" x2=\"{WIDTH}\" y1=\"{y:.2}\" y2=\"{y:.2}\"/>");
        }
    }

    /// The labels, as HTML.
    fn labels(&self) -> String {
        let label = |(value, at): (f64, f64)| {
            format!("<span class=\"y\" style=\"top:{:.2}%\">{value}</span>", at * 100.0)
        };
        self.values().map(label).collect()
    }
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
    fn the_axis_reaches_the_fastest_rate_and_not_much_more() {
        for (fastest, name) in [
            (0.0, "kB/s"),
            (3e4, "kB/s"),
            (5e6, "MB/s"),
            (1e8, "MB/s"),
            (3e9, "MB/s"),
            (9e10, "MB/s"),
            (4e11, "GB/s"),
            (9e13, "GB/s"),
        ] {
            let axis = Axis::of_rates(fastest);
            let values: Vec<_> = axis.values().collect();
            let (last, at) = values[values.len() - 1];
            assert_eq!((axis.name, values[0]), (name, (0.0, 1.0)), "{fastest}");
            assert!(axis.most >= fastest && axis.most <= fastest.max(1e3) * 1.2, "{fastest}");
            assert!((0.0..0.5).contains(&at) && last * axis.unit <= axis.most, "{fastest}: {last} at {at}");
            assert!(values.iter().all(|(value, _)| value.to_string().len() <= 6), "{values:?}");
        }
    }

    #[test]
    fn neighbours_of_one_phase_are_one_rectangle() {
        let part = |from: f64, to: f64, phase| {
            let sample = crate::Sample { phase, limited_by: "cpu", ..Default::default() };
            Interval { from, to, rate: 1e8, sample }
        };
        let html = draw(&[part(0.0, 1.0, "copy"), part(1.0, 3.0, "copy"), part(3.0, 4.0, "verify")]);
        for (words, count) in
            [("class=\"copy\"", 1), ("class=\"verify\"", 1), ("class=\"cpu\"", 1), ("copy 3.00 s", 1)]
        {
            assert_eq!(html.matches(words).count(), count, "{words}: {html}");
        }
    }
}
