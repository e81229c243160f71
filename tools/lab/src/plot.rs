//! SVG figures of three kinds: lines by block size, stacked bars, and time
//! lines of packets.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::LabError;
use crate::stats::Spread;
use crate::table::Series;

pub(crate) const WIDTH: u32 = 1000;
/// Height of a plot without its lanes or bars, in pixels.
const FRAME: u32 = 140;
/// Width of the legend beside a plot of lines, in pixels.
pub(crate) const LEGEND: u32 = 210;
pub(crate) const FONT: &str = "sans-serif";
/// End of the time axis in milliseconds, as in the paper's figures.
pub(crate) const TIME_MS: f64 = 6.0;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Rows<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A figure [`WIDTH`] wide and `height` high, as the text of an SVG file.
pub(crate) fn draw(
    height: u32,
    body: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<String, LabError> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
    let drawn = area
        .fill(&WHITE)
        .map_err(Into::into)
        .and_then(|()| body(&area))
        .and_then(|()| area.present().map_err(Into::into));
    drop(area);
    drawn.map_err(|error| LabError::new("draw a figure", &error))?;
    Ok(text)
}

/// Draws values by place, lines by name, on a logarithmic y axis, with bars from minimum to maximum.
pub(crate) fn lines(title: &str, y: &str, series: &Series) -> Result<String, LabError> {
    let Series { places, lines } = series;
    let spreads = || lines.iter().flat_map(|line| line.values.iter().flatten());
    let all = || spreads().flat_map(|spread| [spread.median, spread.least, spread.greatest]);
    let least = all().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    let most = all().fold(least, f64::max);
    if !least.is_finite() {
        return draw(FRAME, |_| Ok(()));
    }
    draw(620, |area| {
        let last = places.len().saturating_sub(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(title, (FONT, 20))
            .margin(12)
            .margin_right(LEGEND + 10)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(-0.2..last + 0.2, (least * 0.8..most * 1.3).log_scale())?;
        let place = |x: &f64| {
            let is_at_place = (x - x.round()).abs() < 0.01;
            places.get(x.round() as usize).filter(|_| is_at_place && *x >= 0.0).cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .x_labels(places.len() * 2)
            .x_label_formatter(&place)
            .y_desc(y)
            .light_line_style(WHITE)
            .draw()?;
        for (index, line) in lines.iter().enumerate() {
            let style = Palette99::pick(index).stroke_width(2);
            let points =
                || line.values.iter().enumerate().filter_map(|(at, value)| Some((at as f64, (*value)?)));
            chart.draw_series(LineSeries::new(points().map(|(x, value)| (x, value.median)), style))?;
            let bar = |(x, value): (f64, Spread)| [(x, value.least), (x, value.greatest)];
            chart.draw_series(points().map(|point| PathElement::new(bar(point), style)))?;
            // Beside the plot, where the chart library cannot place its legend.
            let (x, y) = (WIDTH as i32 - LEGEND as i32, 50 + 15 * index as i32);
            area.draw(&PathElement::new([(x, y), (x + 16, y)], style))?;
            area.draw(&Text::new(line.name.clone(), (x + 22, y - 5), (FONT, 12)))?;
        }
        Ok(())
    })
}

/// A chart with a row for each name, the first at the top (y = number of names - 1), and x from 0 to `x_max`.
fn rows<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    names: &[&str],
    x_max: f64,
    x_desc: &str,
) -> Result<Rows<'a, 'b>, Box<dyn Error>> {
    let count = names.len();
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(230)
        .build_cartesian_2d(0.0..x_max, -0.5..count as f64 - 0.5)?;
    let name = |y: &f64| {
        let row = count as f64 - 1.0 - y.round();
        let is_at_row = (y - y.round()).abs() < 0.01 && row >= 0.0;
        names.get(row as usize).filter(|_| is_at_row).map(|name| (*name).to_owned()).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(count * 2 + 1)
        .y_label_formatter(&name)
        .x_desc(x_desc)
        .draw()?;
    Ok(chart)
}

/// Horizontal bars of stacked parts: `parts` names them, each bar has a value for each, in `unit`.
pub(crate) fn bars(
    title: &str,
    unit: &str,
    parts: &[&str],
    bars: &[(String, Vec<f64>)],
) -> Result<String, LabError> {
    const BAR: u32 = 26;
    let most = bars.iter().map(|(_, values)| values.iter().sum::<f64>()).fold(1e-9, f64::max);
    let count = bars.len();
    draw(FRAME + BAR * count as u32, |area| {
        let names: Vec<&str> = bars.iter().map(|(name, _)| name.as_str()).collect();
        let mut chart = rows(area, title, &names, most * 1.05, unit)?;
        for (part, what) in parts.iter().enumerate() {
            let style = Palette99::pick(part).filled();
            let boxes = bars.iter().enumerate().map(|(row, (_, values))| {
                let from: f64 = values[..part].iter().sum();
                let y = (count - 1 - row) as f64;
                Rectangle::new([(from, y - 0.35), (from + values[part], y + 0.35)], style)
            });
            chart
                .draw_series(boxes)?
                .label(*what)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], style));
        }
        chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
        Ok(())
    })
}

pub(crate) struct Lane {
    pub(crate) name: String,
    /// Milliseconds from the first request; whether it is data from the target; bytes.
    pub(crate) marks: Vec<(f64, bool, u32)>,
}

/// Draws a lane per kind of reading: data upwards, with a height logarithmic in its bytes, and requests downwards.
pub(crate) fn lanes(title: &str, note: &str, lanes: &[Lane]) -> Result<String, LabError> {
    const LANE: u32 = 56;
    /// Bytes that fill the height of a lane: the longest IP packet.
    const BYTES_MAX: f64 = 65536.0;
    let count = lanes.len();
    draw(FRAME + LANE * count as u32, |area| {
        let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
        let mut chart = rows(area, title, &names, TIME_MS, &format!("ms; {note}"))?;
        for (row, lane) in lanes.iter().enumerate() {
            let y = (count - 1 - row) as f64;
            chart.draw_series([PathElement::new([(0.0, y), (TIME_MS, y)], BLACK.mix(0.3))])?;
            chart.draw_series(lane.marks.iter().filter(|mark| mark.0 <= TIME_MS).map(
                |(ms, is_data, bytes)| {
                    let share = f64::from(*bytes).max(2.0).log2() / BYTES_MAX.log2();
                    let (to, style) = if *is_data {
                        (y + 0.42 * share, Palette99::pick(1))
                    } else {
                        (y - 0.3, Palette99::pick(0))
                    };
                    PathElement::new([(*ms, y), (*ms, to)], style.stroke_width(1))
                },
            ))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Line;

    #[test]
    fn figures_hold_their_names_and_marks() {
        let spread = Spread { median: 10.0, least: 9.0, greatest: 11.0 };
        let line = Line { name: "plain".into(), values: vec![Some(spread), None] };
        let series = Series { places: vec!["512 B".into(), "1 KiB".into()], lines: vec![line] };
        let svg = lines("t", "MB/s", &series).unwrap();
        assert!(["<svg", "plain", "512 B", "1 KiB"].iter().all(|part| svg.contains(part)), "{svg}");
        let svg = bars("t", "us", &["wait", "open"], &[("ours".into(), vec![1.0, 2.0])]).unwrap();
        assert!(["ours", "wait", "open"].iter().all(|part| svg.contains(part)), "{svg}");
        let lane =
            Lane { name: "TLS".into(), marks: vec![(0.0, false, 8), (1.0, true, 1460), (7.0, true, 1)] };
        let svg = lanes("t", "packets", &[lane]).unwrap();
        assert!(svg.contains("TLS") && svg.contains("packets"), "{svg}");
        let empty = Series { places: Vec::new(), lines: Vec::new() };
        assert!(lines("t", "y", &empty).unwrap().contains("<svg"));
    }
}
