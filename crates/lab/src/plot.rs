//! Figures as SVG text, for whoever draws one ([`draw`]); and three kinds for the papers: lines by block size, stacked bars, and
//! time lines of packets.

use std::error::Error;

use plotters::prelude::*;

use crate::LabError;

/// Of every figure, in pixels.
pub const WIDTH: u32 = 1000;
/// Height of a plot without its lanes or bars.
const FRAME: u32 = 140;
/// Width of what stands beside a plot of lines.
const LEGEND: u32 = 210;
/// Of every figure.
pub const FONT: &str = "sans-serif";
/// Up to this, in milliseconds, time lines go: as the paper's figures do.
pub(crate) const TIME_MS: f64 = 6.0;

/// What became of drawing.
pub type Drawn = Result<(), Box<dyn Error>>;

/// A figure [`WIDTH`] wide and `height` high, as the text of an SVG file.
pub fn draw(
    height: u32,
    body: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Drawn,
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

/// One line of a [`lines`] figure; a value for each place on the x axis.
pub(crate) struct Line {
    pub(crate) name: String,
    /// Median, least, greatest.
    pub(crate) values: Vec<Option<[f64; 3]>>,
}

/// Values by place, lines by name, on a logarithmic y axis; bars from least to greatest.
pub(crate) fn lines(title: &str, y: &str, places: &[String], lines: &[Line]) -> Result<String, LabError> {
    let all = || lines.iter().flat_map(|line| line.values.iter().flatten().flatten().copied());
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
            chart.draw_series(LineSeries::new(points().map(|(x, value)| (x, value[0])), style))?;
            chart.draw_series(
                points().map(|(x, [_, low, high])| PathElement::new([(x, low), (x, high)], style)),
            )?;
            // Beside the plot, where the chart's own legend cannot be.
            let (x, y) = (WIDTH as i32 - LEGEND as i32, 50 + 15 * index as i32);
            area.draw(&PathElement::new([(x, y), (x + 16, y)], style))?;
            area.draw(&Text::new(line.name.clone(), (x + 22, y - 5), (FONT, 12)))?;
        }
        Ok(())
    })
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
        let mut chart = ChartBuilder::on(area)
            .caption(title, (FONT, 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(230)
            .build_cartesian_2d(0.0..most * 1.05, -0.5..count as f64 - 0.5)?;
        let name = |y: &f64| {
            let row = count as f64 - 1.0 - y.round();
            let is_at_row = (y - y.round()).abs() < 0.01 && row >= 0.0;
            bars.get(row as usize).filter(|_| is_at_row).map(|(name, _)| name.clone()).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(count * 2 + 1)
            .y_label_formatter(&name)
            .x_desc(unit)
            .draw()?;
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

/// A lane of a time line.
pub(crate) struct Lane {
    pub(crate) name: String,
    /// Milliseconds from the first request; whether it is data from the target; bytes.
    pub(crate) marks: Vec<(f64, bool, u32)>,
}

/// A lane for each way of reading: data of the target upwards, as high as its bytes go on a logarithmic scale, requests downwards.
pub(crate) fn lanes(title: &str, note: &str, lanes: &[Lane]) -> Result<String, LabError> {
    const LANE: u32 = 56;
    /// What fills a lane: the longest IP packet.
    const BYTES_MAX: f64 = 65536.0;
    let count = lanes.len();
    draw(FRAME + LANE * count as u32, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, (FONT, 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(230)
            .build_cartesian_2d(0.0..TIME_MS, -0.5..count as f64 - 0.5)?;
        let name = |y: &f64| {
            let row = count as f64 - 1.0 - y.round();
            let is_at_row = (y - y.round()).abs() < 0.01 && row >= 0.0;
            lanes.get(row as usize).filter(|_| is_at_row).map(|lane| lane.name.clone()).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(count * 2 + 1)
            .y_label_formatter(&name)
            .x_desc(format!("ms; {note}"))
            .draw()?;
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

    #[test]
    fn figures_hold_their_names_and_marks() {
        let line = Line { name: "plain".into(), values: vec![Some([10.0, 9.0, 11.0]), None] };
        let svg = lines("t", "MB/s", &["512 B".into(), "1 KiB".into()], &[line]).unwrap();
        assert!(["<svg", "plain", "512 B", "1 KiB"].iter().all(|part| svg.contains(part)), "{svg}");
        let svg = bars("t", "us", &["wait", "open"], &[("ours".into(), vec![1.0, 2.0])]).unwrap();
        assert!(["ours", "wait", "open"].iter().all(|part| svg.contains(part)), "{svg}");
        let lane =
            Lane { name: "TLS".into(), marks: vec![(0.0, false, 8), (1.0, true, 1460), (7.0, true, 1)] };
        let svg = lanes("t", "packets", &[lane]).unwrap();
        assert!(svg.contains("TLS") && svg.contains("packets"), "{svg}");
        assert!(lines("t", "y", &[], &[]).unwrap().contains("<svg"));
    }
}
