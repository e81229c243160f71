//! How a copy went over time: its rate over the phases, what limited it, and how many chunks were in flight.

use std::fmt::Write as _;

use lab::LabError;
use lab::plot::{self, FONT};
use plotters::prelude::*;

use crate::progress::Stretch;

/// Phases and their light background.
const PHASES: [(&str, RGBColor); 4] = [
    ("copy", RGBColor(232, 240, 252)),
    ("rescue", RGBColor(253, 236, 216)),
    ("flush", RGBColor(255, 244, 200)),
    ("verify", RGBColor(230, 246, 230)),
];
/// Limits and their colour.
const LIMITS: [(&str, RGBColor); 7] = [
    ("source", RGBColor(31, 119, 180)),
    ("destination", RGBColor(214, 69, 65)),
    ("balanced", RGBColor(148, 103, 189)),
    ("rate", RGBColor(140, 140, 140)),
    ("memory", RGBColor(255, 152, 0)),
    ("cpu", RGBColor(34, 34, 34)),
    ("target", RGBColor(0, 150, 136)),
];
const HEIGHT: u32 = 460;
const RATE_HEIGHT: u32 = 290;

fn colour(of: &str, names: &[(&str, RGBColor)]) -> RGBColor {
    names.iter().find(|(name, _)| *name == of).map_or(WHITE, |(_, colour)| *colour)
}

/// The picture and what its colours mean, as HTML.
pub(super) fn draw(stretches: &[Stretch]) -> Result<String, LabError> {
    let svg = picture(stretches)?;
    let mut html = format!("<h2>Over time</h2>\n{svg}\n<p>phases:");
    key(&mut html, &PHASES, stretches, |stretch| stretch.sample.phase);
    html += " &#160; limited by (the strip below the rate):";
    key(&mut html, &LIMITS, stretches, |stretch| stretch.sample.limited_by);
    Ok(html + "</p>\n")
}

/// Those of `names` that occur.
fn key(
    html: &mut String,
    names: &[(&str, RGBColor)],
    stretches: &[Stretch],
    of: fn(&Stretch) -> &'static str,
) {
    for (name, RGBColor(r, g, b)) in names {
        if stretches.iter().any(|stretch| of(stretch) == *name) {
            let _ = write!(html, "<span class=\"key\" style=\"background:rgb({r},{g},{b})\"></span>{name}");
        }
    }
}

fn picture(stretches: &[Stretch]) -> Result<String, LabError> {
    let end = stretches.last().map_or(0.0, |stretch| stretch.to).max(1e-3);
    let rate_max = stretches.iter().map(|stretch| stretch.rate / 1e6).fold(1e-3, f64::max) * 1.1;
    let depth_max = stretches.iter().map(|stretch| stretch.sample.depth).max().unwrap_or(0).max(1);
    plot::draw(HEIGHT, |area| {
        let (above, below) = area.split_vertically(RATE_HEIGHT);
        let mut chart = ChartBuilder::on(&above)
            .margin(10)
            .x_label_area_size(0)
            .y_label_area_size(70)
            // The strip lies below zero.
            .build_cartesian_2d(0.0..end, -0.07 * rate_max..rate_max)?;
        let band = |from: f64, to: f64, bottom: f64, top: f64, colour: RGBColor| {
            Rectangle::new([(from, bottom), (to, top)], colour.filled())
        };
        chart.draw_series(
            stretches
                .iter()
                .map(|part| band(part.from, part.to, 0.0, rate_max, colour(part.sample.phase, &PHASES))),
        )?;
        let y = |y: &f64| if *y < 0.0 { String::new() } else { format!("{y:.0}") };
        let y: &dyn Fn(&f64) -> String = if rate_max < 10.0 { &|y: &f64| format!("{y:.2}") } else { &y };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE.mix(0.0))
            .y_label_formatter(y)
            .y_desc("MB/s")
            .label_style((FONT, 12))
            .draw()?;
        chart.draw_series(stretches.iter().map(|part| {
            band(
                part.from,
                part.to,
                -0.06 * rate_max,
                -0.02 * rate_max,
                colour(part.sample.limited_by, &LIMITS),
            )
        }))?;
        let rates =
            stretches.iter().flat_map(|part| [(part.from, part.rate / 1e6), (part.to, part.rate / 1e6)]);
        chart.draw_series(LineSeries::new(rates, BLACK.stroke_width(2)))?;
        let mut chart = ChartBuilder::on(&below)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..end, 0.0..f64::from(depth_max) * 1.1)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE.mix(0.0))
            .y_labels(4)
            .y_label_formatter(&|y| format!("{y:.0}"))
            .x_desc("seconds")
            .y_desc("chunks in flight")
            .label_style((FONT, 12))
            .draw()?;
        let depths = stretches.iter().flat_map(|part| {
            let depth = f64::from(part.sample.depth);
            [(part.from, depth), (part.to, depth)]
        });
        chart.draw_series(LineSeries::new(depths, RGBColor(31, 119, 180).stroke_width(2)))?;
        Ok(())
    })
}
