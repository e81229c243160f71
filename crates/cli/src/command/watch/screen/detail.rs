//! The page of one connection: charts of the send queue, the windows, the rate and the round trip, and the verdict.

use monitor::probe::{Figures, Session};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Borders, Chart, Dataset, GraphType, Paragraph, Wrap};

use super::{State, fitted, height};
use crate::command::watch::engine::{Engine, figures};
use crate::command::watch::words::{self, bytes, name, rate, time};
use crate::{output, units};

/// Least height of a row of charts.
const ROW: u16 = 5;
/// Width from which charts lie side by side.
const WIDE: u16 = 60;
/// Seconds that charts show.
const SPAN_S: f64 = 60.0;

/// A line of a chart.
struct Curve {
    name: &'static str,
    colour: Color,
    marker: Marker,
    value: fn(&Figures) -> Option<f64>,
}

const fn curve(
    name: &'static str,
    colour: Color,
    marker: Marker,
    value: fn(&Figures) -> Option<f64>,
) -> Curve {
    Curve { name, colour, marker, value }
}

struct Picture {
    title: &'static str,
    curves: &'static [Curve],
    /// The largest value as text.
    scale: fn(f64) -> String,
}

const PICTURES: [Picture; 4] = [
    Picture {
        title: "send queue",
        curves: &[
            curve("wait ACK", Color::Cyan, Marker::Braille, |figures| float(figures.waiting_ack_bytes)),
            curve("unsent", Color::Yellow, Marker::Braille, |figures| float(figures.unsent_bytes)),
            curve("cap", Color::Red, Marker::Dot, |figures| float(figures.buffer_bytes)),
        ],
        scale: as_bytes,
    },
    Picture {
        title: "windows",
        curves: &[
            curve("in flight", Color::Cyan, Marker::Braille, |figures| float(figures.waiting_ack_bytes)),
            curve("cwnd", Color::Green, Marker::Dot, |figures| float(figures.congestion_window_bytes)),
            curve("window", Color::Magenta, Marker::Dot, |figures| float(figures.peer_window_bytes)),
        ],
        scale: as_bytes,
    },
    Picture {
        title: "rate",
        curves: &[
            curve("sent", Color::Cyan, Marker::Braille, |figures| figures.sent_bytes_per_s),
            curve("received", Color::Green, Marker::Braille, |figures| figures.received_bytes_per_s),
        ],
        scale: units::rate,
    },
    Picture {
        title: "round trip",
        curves: &[curve("rtt", Color::Cyan, Marker::Braille, |figures| figures.rtt_us.map(f64::from))],
        scale: |us| time(Some(us as u32)),
    },
];

fn float(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64)
}

fn as_bytes(value: f64) -> String {
    bytes(Some(value as u64))
}

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, engine: &Engine, session: &Session, state: &State) {
    let facts = facts(session).join("\n");
    let text = words::verdict(engine, session).join("\n");
    let columns = if area.width >= WIDE { 2 } else { 1 };
    let rows_max = (PICTURES.len() / columns) as u16;
    // The verdict is shown whole before there are charts, and the facts before the verdict.
    let head = height(&facts, area.width).min(area.height);
    let rest = area.height - head;
    let text = fitted(&text, area.width, rest.saturating_sub(1));
    let below = height(&text, area.width).saturating_add(1).min(rest);
    let rows = ((rest - below) / ROW).min(rows_max);
    let [top, middle, lower] =
        Layout::vertical([Constraint::Length(head), Constraint::Min(0), Constraint::Length(below)])
            .areas(area);
    frame.render_widget(Paragraph::new(facts).wrap(Wrap { trim: false }), top);
    let block = Block::new().borders(Borders::TOP).title("What limits it");
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }).block(block), lower);

    let places =
        Layout::vertical(vec![Constraint::Ratio(1, u32::from(rows.max(1))); rows.into()]).split(middle);
    for (row, pictures) in places.iter().zip(PICTURES.chunks(columns)) {
        let places = Layout::horizontal(vec![Constraint::Ratio(1, columns as u32); columns]).split(*row);
        for (place, picture) in places.iter().zip(pictures) {
            chart(frame, *place, engine, session, picture, state);
        }
    }
}

/// Lines about the connection: who, and the present figures.
fn facts(session: &Session) -> Vec<String> {
    let figures = figures(session).unwrap_or_default();
    let control = session.congestion.as_deref().map_or("-".into(), output::printable_name);
    let mut lines = vec![
        name(session),
        format!(
            "sends {}  receives {}  rtt {} (least {})  {control}",
            rate(figures.sent_bytes_per_s),
            rate(figures.received_bytes_per_s),
            time(figures.rtt_us),
            time(figures.rtt_least_us),
        ),
        format!(
            "queue {} of {}  in flight {}  unsent {}",
            bytes(figures.queue_bytes),
            bytes(figures.buffer_bytes),
            bytes(figures.waiting_ack_bytes),
            bytes(figures.unsent_bytes),
        ),
    ];
    let cpu = session.cpu.iter().flat_map(|cpu| {
        [
            format!("busiest thread {:.0} % of a core", cpu.busiest_thread * 100.0),
            format!("ready and waiting {:.0} %", cpu.waiting * 100.0),
        ]
    });
    let place = session.sleeps_in.iter().map(|place| format!("sleeps in {}", output::printable_name(place)));
    let queue = session.route.iter();
    let queue =
        queue.map(|route| format!("{} dropped {}", output::printable_name(&route.queue), route.drops));
    let more: Vec<String> = cpu.chain(place).chain(queue).collect();
    if !more.is_empty() {
        lines.push(more.join("  "));
    }
    if let Some(kernel) = &session.kernel {
        let disks = kernel.disks.iter().map(|disk| {
            let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
            let name = output::printable_name(&disk.name);
            format!("  {name} {} of {}", number(disk.inflight), number(disk.queue_depth))
        });
        lines.push(format!("{}{}", output::printable_name(&kernel.target), disks.collect::<String>()));
    }
    lines
}

fn chart(
    frame: &mut Frame<'_>,
    area: Rect,
    engine: &Engine,
    session: &Session,
    picture: &Picture,
    state: &State,
) {
    let Some(kept) = engine.kept(session) else { return };
    let end = kept.points.back().map_or(0.0, |(at, _)| *at);
    let start = (end - SPAN_S).max(0.0);
    let points = |curve: &Curve| -> Vec<(f64, f64)> {
        let shown = kept.points.iter().filter(|(at, _)| *at >= start);
        shown.filter_map(|(at, figures)| Some((*at, (curve.value)(figures)?))).collect()
    };
    let lines: Vec<(&Curve, Vec<(f64, f64)>)> = picture
        .curves
        .iter()
        .map(|curve| (curve, points(curve)))
        .filter(|(_, line)| !line.is_empty())
        .collect();
    // A window far above everything else would flatten the first curve: four times its largest value is shown.
    let largest = |line: &[(f64, f64)]| line.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let most = lines.iter().map(|(_, line)| largest(line)).fold(0.0, f64::max);
    let first = lines.first().map_or(0.0, |(_, line)| largest(line));
    let top = if first > 0.0 { most.min(4.0 * first) } else { most }.max(1.0) * 1.05;
    let sets = lines.iter().map(|(curve, line)| {
        let set = Dataset::default().marker(curve.marker).graph_type(GraphType::Line);
        set.style(state.colour(curve.colour)).data(line)
    });
    let mut title = vec![Span::raw(format!("{} ", picture.title))];
    for (curve, line) in &lines {
        let beyond = if largest(line) > top { "^" } else { "" };
        title.push(Span::styled(format!(" {}{beyond}", curve.name), state.colour(curve.colour)));
    }
    let chart = Chart::new(sets.collect())
        .block(Block::new().title(Line::from(title)))
        .legend_position(None)
        .x_axis(Axis::default().bounds([start, end.max(start + 1.0)]))
        .y_axis(Axis::default().bounds([0.0, top]).labels(["0".to_owned(), (picture.scale)(top)]));
    frame.render_widget(chart, area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_has_a_curve_with_a_value() {
        let figures = Figures {
            sent_bytes_per_s: Some(1.0),
            received_bytes_per_s: Some(1.0),
            rtt_us: Some(1),
            waiting_ack_bytes: Some(1),
            unsent_bytes: Some(1),
            congestion_window_bytes: Some(1),
            peer_window_bytes: Some(1),
            buffer_bytes: Some(1),
            ..Figures::default()
        };
        for picture in &PICTURES {
            assert!(
                picture.curves.iter().all(|curve| (curve.value)(&figures) == Some(1.0)),
                "{}",
                picture.title
            );
            assert!(picture.curves.iter().all(|curve| (curve.value)(&Figures::default()).is_none()));
            assert!(!(picture.scale)(1e9).is_empty());
        }
    }
}
