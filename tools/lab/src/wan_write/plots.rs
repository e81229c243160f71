//! The paper's figures: rates (4), parts of a write (7, 8), and a write over time (9 to 17).

use std::error::Error;
use std::ops::Range;

use plotters::prelude::*;

use super::Rate;
use super::plan::{RTT_OF_FIGURES_MS, Row};
use super::report::by_rtt;
use super::trace::{Packet, Pdu};
use super::watched::Watched;
use crate::LabError;
use crate::plot::{Area, FONT, LEGEND, WIDTH, bars, draw, lines};
use crate::stats::{Spread, distinct, size};
use crate::table::Series;

/// Dots of one figure at most, so that its file stays small.
const DOTS_MAX: usize = 4000;
/// Writes of the figure with several.
const WRITES_SHOWN: usize = 4;

/// PDUs above the packets: name, colour, height as a share of the packets.
const MARKS: [(Pdu, &str, RGBColor, f64); 4] = [
    (Pdu::Write, "WRITE", RED, 1.22),
    (Pdu::DataOut, "Data-Out", BLUE, 1.18),
    (Pdu::Response, "response", MAGENTA, 1.14),
    (Pdu::R2t, "R2T", CYAN, 1.14),
];
const LINES: [RGBColor; 2] = [RGBColor(0, 120, 200), RGBColor(230, 120, 30)];

type Drawn = Result<String, LabError>;

/// Whether the figures over time are drawn from a case.
pub(super) fn is_of_figures(case: &Watched) -> bool {
    case.rtt.as_millis() as u64 == RTT_OF_FIGURES_MS && case.block >= 4 << 20
}

pub(super) fn all(rates: &[Rate], cases: &[Watched]) -> Result<Vec<(String, String)>, LabError> {
    let mut figures = Vec::new();
    let mut add = |name: &str, figure: Drawn| {
        figures.push((format!("wan-write-{name}.svg"), figure?));
        Ok::<_, LabError>(())
    };
    if let Some(first) = rates.first() {
        let title = format!("Throughput by round trip, writes of {} (figure 4)", size(first.block));
        add("4-rate", lines(&title, "MB/s", &by_rtt(rates, Row::label)))?;
    }
    let iscsi: Vec<&Watched> = cases.iter().filter(|case| case.is_iscsi()).collect();
    for block in distinct(iscsi.iter().map(|case| case.block)) {
        add(&format!("7-parts-{}", size(block).replace(' ', "")), parts(&iscsi, block))?;
    }
    if !iscsi.is_empty() {
        add("8-ta", lines("First to last data packet, Ta (figure 8)", "ms", &ta_by_rtt(&iscsi)))?;
    }
    let of = |row: Row| cases.iter().find(|case| case.row == row && is_of_figures(case));
    if let Some(case) = of(Row::PAPER) {
        over_time(case, &mut add)?;
    }
    if let Some(case) = of(Row::SOCKET) {
        let title = "Send queue of a plain socket (figure 16; queue sampled)";
        add("16-queue-socket", chart(case, &Shown::new(title, whole(case), &[Line::Waiting, Line::Unsent])))?;
    }
    let shown: Vec<&Watched> = cases.iter().filter(|case| is_of_figures(case)).collect();
    if !shown.is_empty() {
        add("17-sleeps", sleeps(&shown))?;
    }
    Ok(figures)
}

/// Figures 9 to 15, of the paper's case.
fn over_time(
    case: &Watched,
    add: &mut impl FnMut(&str, Drawn) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let writes = case.trace.writes();
    let Some(one) = case.one_write() else { return Ok(()) };
    let several = writes[writes.len().saturating_sub(WRITES_SHOWN)]..one.end;
    let queue = [Line::Waiting, Line::Unsent];
    let at = RTT_OF_FIGURES_MS;
    let shown = Shown::new(&format!("Packets and PDUs at {at} ms (figure 9)"), several.clone(), &[]);
    add("9-packets", chart(case, &shown))?;
    let shown = Shown::new(&format!("One write at {at} ms (figure 10)"), one.clone(), &[]);
    add("10-one-write", chart(case, &shown))?;
    let title = "Congestion window and packets in flight (figure 11; window sampled)";
    add("11-cwnd", chart(case, &Shown::new(title, several.clone(), &[Line::Cwnd, Line::InFlight])))?;
    let shown = Shown::new("Send queue during one write (figure 12; queue sampled)", one.clone(), &queue);
    add("12-queue", chart(case, &shown))?;
    // From the beginning to the first stop, and from there to the next burst's end.
    let bursts = case.bursts();
    let packet = |index: usize| case.trace.packets[index].at_ns;
    let of_write: Vec<_> = bursts.iter().filter(|burst| one.contains(&packet(burst.packets.start))).collect();
    if let [first, second, ..] = &of_write[..] {
        let stop = packet(first.packets.end - 1);
        let margin = 1_000_000;
        let begins = packet(first.packets.start).saturating_sub(margin)..stop + margin;
        let shown = Shown::new("Until the first stop (figure 13; queue sampled)", begins, &queue);
        add("13-queue-first", chart(case, &shown))?;
        let resumes = stop.saturating_sub(margin)..packet(second.packets.end - 1) + margin;
        let shown = Shown::new("From the stop to the next burst (figure 14; queue sampled)", resumes, &queue);
        add("14-queue-resumed", chart(case, &shown))?;
    }
    let title = "Send queue of iSCSI writes (figure 15; queue sampled)";
    add("15-queue-iscsi", chart(case, &Shown::new(title, several, &queue)))
}

fn whole(case: &Watched) -> Range<u64> {
    let at = |one: Option<&super::watch::Observed>| one.map_or(0, |one| one.sample.at_ns);
    at(case.observed.first())..at(case.observed.last())
}

fn ta_by_rtt(cases: &[&Watched]) -> Series {
    let places = distinct(cases.iter().map(|case| case.rtt));
    let cells: Vec<_> = cases
        .iter()
        .filter_map(|case| {
            Some((format!("{}, {}", size(case.block), case.row.label()), case.rtt, case.ta()?))
        })
        .collect();
    Series::new(&places, |rtt| format!("{} ms", rtt.as_millis()), &cells)
}

/// Parts of the time of a write, by round trip, of one block.
fn parts(cases: &[&Watched], block: u32) -> Drawn {
    let median = |spread: Option<Spread>| spread.map_or(0.0, |spread| spread.median);
    let all: Vec<(String, Vec<f64>)> = cases
        .iter()
        .filter(|case| case.block == block && case.row == Row::PAPER)
        .map(|case| {
            let values =
                vec![median(case.ta()), case.rtt_ns() as f64 / 1e6, median(case.tb()), median(case.tc())];
            (format!("RTT {} ms", case.rtt.as_millis()), values)
        })
        .collect();
    let title = format!("A write of {} as open-iscsi sends it (figure 7)", size(block));
    bars(&title, "ms", &["Ta", "RTT", "Tb", "Tc"], &all)
}

fn sleeps(cases: &[&Watched]) -> Drawn {
    let names = distinct(cases.iter().flat_map(|case| case.sleeps()).map(|(place, _)| place));
    let all: Vec<(String, Vec<f64>)> = cases
        .iter()
        .map(|case| {
            let sleeps = case.sleeps();
            let of = |name: &Option<&str>| {
                sleeps.iter().find(|(place, _)| place == name).map_or(0.0, |(_, share)| share * 100.0)
            };
            (case.row.name(), names.iter().map(of).collect())
        })
        .collect();
    let names: Vec<&str> = names.iter().map(|name| name.unwrap_or("running")).collect();
    bars("Where the sender sleeps (figure 17; sampled)", "% of the samples", &names, &all)
}

/// Lines beside the packets, in KiB.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Line {
    /// Sent and not acknowledged, by the kernel.
    Waiting,
    /// Written and not sent.
    Unsent,
    Cwnd,
    /// Sent and not acknowledged, by the capture.
    InFlight,
}

impl Line {
    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "queue waiting for ACK",
            Self::Unsent => "queue unsent",
            Self::Cwnd => "congestion window",
            Self::InFlight => "in flight (captured)",
        }
    }

    fn points(self, case: &Watched, period: &Range<u64>) -> Vec<(u64, f64)> {
        let sampled = |value: &dyn Fn(&monitor::Sample) -> Option<f64>| {
            let within = case.observed.iter().filter(|one| period.contains(&one.sample.at_ns));
            within.filter_map(|one| Some((one.sample.at_ns, value(&one.sample)? / 1024.0))).collect()
        };
        let product = |a: Option<u32>, b: Option<u32>| Some(f64::from(a?) * f64::from(b?));
        match self {
            Self::Waiting => sampled(&|sample| product(sample.unacked_segments, sample.mss_bytes)),
            Self::Unsent => sampled(&|sample| sample.notsent_bytes.map(f64::from)),
            Self::Cwnd => sampled(&|sample| product(sample.cwnd_segments, sample.mss_bytes)),
            Self::InFlight => in_flight(case, period),
        }
    }
}

fn in_flight(case: &Watched, period: &Range<u64>) -> Vec<(u64, f64)> {
    let (mut acks, mut acknowledged) = (case.trace.acks.iter().peekable(), 0);
    let mut points = Vec::new();
    for packet in &case.trace.packets {
        while let Some(ack) = acks.next_if(|ack| ack.at_ns <= packet.at_ns) {
            acknowledged = acknowledged.max(ack.offset);
            if acknowledged > 0 && period.contains(&ack.at_ns) {
                let sent = points.last().map_or(packet.end, |(_, _, end): &(u64, f64, u64)| *end);
                points.push((ack.at_ns, sent.saturating_sub(acknowledged) as f64 / 1024.0, sent));
            }
        }
        if acknowledged > 0 && period.contains(&packet.at_ns) {
            let bytes = packet.end.saturating_sub(acknowledged) as f64 / 1024.0;
            points.push((packet.at_ns, bytes, packet.end));
        }
    }
    points.into_iter().map(|(at_ns, kib, _)| (at_ns, kib)).collect()
}

/// What a figure over time shows.
struct Shown {
    title: String,
    period: Range<u64>,
    lines: Vec<Line>,
}

impl Shown {
    fn new(title: &str, period: Range<u64>, lines: &[Line]) -> Self {
        Self { title: title.to_owned(), period, lines: lines.to_vec() }
    }
}

/// A name of the legend, with what it stands for.
enum Sign {
    Dot(RGBColor),
    Triangle(RGBColor),
    Stroke(RGBColor),
}

/// Draws the legend beside the plot, where it hides nothing.
fn draw_legend(area: &Area<'_>, signs: &[(&str, Sign)]) -> Result<(), Box<dyn Error>> {
    for (index, (name, sign)) in signs.iter().enumerate() {
        let (x, y) = (WIDTH as i32 - LEGEND as i32, 60 + 18 * index as i32);
        match sign {
            Sign::Dot(colour) => area.draw(&Circle::new((x + 8, y), 2, colour.filled()))?,
            Sign::Triangle(colour) => area.draw(&TriangleMarker::new((x + 8, y), 5, colour.filled()))?,
            Sign::Stroke(colour) => {
                area.draw(&PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)))?;
            }
        }
        area.draw(&Text::new((*name).to_owned(), (x + 22, y - 5), (FONT, 12)))?;
    }
    Ok(())
}

/// Packet numbers over time (left axis) with PDUs and ACKs above them, and lines in KiB (right axis).
fn chart(case: &Watched, shown: &Shown) -> Drawn {
    draw(560, |area| draw_chart(area, case, shown))
}

fn draw_chart(
    area: &Area<'_>,
    case: &Watched,
    Shown { title, period, lines }: &Shown,
) -> Result<(), Box<dyn Error>> {
    let ms = |at_ns: u64| at_ns.saturating_sub(period.start) as f64 / 1e6;
    let packets: Vec<&Packet> =
        case.trace.packets.iter().filter(|packet| period.contains(&packet.at_ns)).collect();
    let first = packets.first().map_or(0, |packet| packet.number);
    let most = packets.last().map_or(1, |packet| packet.number - first).max(1) as f64;
    let lines: Vec<_> = lines.iter().map(|line| (line, line.points(case, period))).collect();
    let kib = lines.iter().flat_map(|(_, points)| points).map(|(_, kib)| *kib).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 20))
        .margin(12)
        .margin_right(LEGEND + 10)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .right_y_label_area_size(if lines.is_empty() { 20 } else { 64 })
        .build_cartesian_2d(0.0..ms(period.end), 0.0..most * 1.25)?
        .set_secondary_coord(0.0..ms(period.end), 0.0..kib * 1.25);
    chart.configure_mesh().light_line_style(WHITE).x_desc("ms").y_desc("packets of the MSS").draw()?;
    if !lines.is_empty() {
        chart.configure_secondary_axes().y_desc("KiB").draw()?;
    }
    let mut signs = vec![("packets", Sign::Dot(BLACK))];
    let dots = thinned(&packets, DOTS_MAX);
    chart.draw_series(
        dots.map(|packet| Circle::new((ms(packet.at_ns), (packet.number - first) as f64), 1, BLACK.filled())),
    )?;
    for (kind, name, colour, height) in MARKS {
        let of_kind = case.trace.pdus.iter().filter(|(at_ns, pdu)| *pdu == kind && period.contains(at_ns));
        let marks: Vec<u64> = of_kind.map(|(at_ns, _)| *at_ns).collect();
        if marks.is_empty() {
            continue;
        }
        let mark = |at_ns: &u64| TriangleMarker::new((ms(*at_ns), most * height), 5, colour.filled());
        chart.draw_series(marks.iter().map(mark))?;
        signs.push((name, Sign::Triangle(colour)));
    }
    let acks: Vec<u64> =
        case.trace.acks.iter().map(|ack| ack.at_ns).filter(|at_ns| period.contains(at_ns)).collect();
    let tick = |at_ns: &u64| PathElement::new([(ms(*at_ns), most * 1.06), (ms(*at_ns), most * 1.1)], GREEN);
    chart.draw_series(thinned(&acks, DOTS_MAX / 4).map(tick))?;
    signs.push(("ACK arrives", Sign::Stroke(GREEN)));
    for (index, (line, points)) in lines.iter().enumerate() {
        let colour = LINES[index % LINES.len()];
        let points = thinned(points, DOTS_MAX).map(|(at_ns, kib)| (ms(*at_ns), *kib));
        chart.draw_secondary_series(LineSeries::new(points, colour.stroke_width(2)))?;
        signs.push((line.name(), Sign::Stroke(colour)));
    }
    draw_legend(area, &signs)
}

/// Evenly chosen values, at most `most` of them.
fn thinned<T>(values: &[T], most: usize) -> impl Iterator<Item = &T> {
    values.iter().step_by(values.len().div_ceil(most).max(1))
}
