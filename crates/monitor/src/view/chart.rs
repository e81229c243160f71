//! What the charts of a connection show: the same for the page and for figures.

use std::borrow::Cow;

use serde::Serialize;

use super::Subject;
use crate::event::{Side, Vantage};
use crate::series::{Bins, Direction, Mark, MarkKind, Point, Span, Timed};

/// What the values of a chart are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    Bytes,
    BytesPerS,
    Nanoseconds,
    Count,
}

/// One picture with a time axis.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    /// Name of its file, and of its element.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// What cannot be seen in it, or how to read it.
    pub(super) note: String,
    pub(super) unit: Unit,
    pub(super) is_tall: bool,
    pub(super) lines: Vec<Line<'a>>,
}

/// One set of points with its entry in the legend.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) label: &'static str,
    /// Class of its colour.
    pub(super) colour: &'static str,
    /// Whether the value axis must reach its values.
    pub(super) is_scaled: bool,
    pub(super) data: Data<'a>,
}

#[derive(Debug)]
pub(super) enum Data<'a> {
    /// A vertical line from the lowest to the highest byte, at a moment.
    Spans(&'a [Span]),
    /// An area from `low` to `high`, until the next.
    Bands(Vec<Span>),
    /// A value that holds until the next.
    Steps(Cow<'a, [Point]>),
    Dots(&'a [Point]),
    /// PDUs of one kind, at their place in the stream that this end sends.
    Marks {
        marks: Vec<Mark>,
        stream: Side,
    },
    /// Three stacked times for each command.
    Bars(&'a [Timed]),
}

impl Data<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Spans(spans) => spans.len(),
            Self::Bands(spans) => spans.len(),
            Self::Steps(points) => points.len(),
            Self::Dots(points) => points.len(),
            Self::Marks { marks, .. } => marks.len(),
            Self::Bars(commands) => commands.len(),
        }
    }
}

fn line<'a>(label: &'static str, colour: &'static str, data: Data<'a>) -> Line<'a> {
    Line { label, colour, is_scaled: true, data }
}

fn steps(points: &[Point]) -> Data<'_> {
    Data::Steps(Cow::Borrowed(points))
}

/// All charts of a connection that have something to show, without lines that have nothing.
pub(super) fn charts<'a>(subject: &Subject<'a>) -> Vec<Chart<'a>> {
    let series = subject.series;
    let sender = subject.evidence.sender;
    let stream = series.direction(sender);
    let mut all = vec![
        sequence(subject, stream),
        queue(subject, stream),
        windows(subject, stream),
        Chart {
            name: "rate",
            title: "Rate of data on the wire",
            note: "Payload that was sent for the first time, retransmissions not counted.".to_owned(),
            unit: Unit::BytesPerS,
            is_tall: false,
            lines: vec![line("rate", "sent", Data::Steps(rate(&stream.rate).into()))],
        },
        commands(subject),
        round_trips(subject, stream),
        Chart {
            name: "depth",
            title: "Commands outstanding",
            note: String::new(),
            unit: Unit::Count,
            is_tall: false,
            lines: vec![line("outstanding", "command", steps(&series.outstanding))],
        },
    ];
    for chart in &mut all {
        chart.lines.retain(|line| line.data.len() > 0);
    }
    all.retain(|chart| !chart.lines.is_empty());
    all
}

fn sequence<'a>(subject: &Subject<'a>, stream: &'a Direction) -> Chart<'a> {
    let sender = subject.evidence.sender;
    let mut lines = vec![
        line("sent", "sent", Data::Spans(&stream.sent)),
        line("retransmitted", "repeated", Data::Spans(&stream.repeated)),
        line("acknowledged", "acknowledged", steps(&stream.acknowledged)),
        Line {
            is_scaled: false,
            ..line("receive window", "window", Data::Steps(window_edge(stream).into()))
        },
    ];
    let kinds = [
        (MarkKind::Command, "command"),
        (MarkKind::R2t, "r2t"),
        (MarkKind::DataOut, "data"),
        (MarkKind::DataIn, "data"),
        (MarkKind::Response, "response"),
        (MarkKind::Other, "other"),
    ];
    for (kind, colour) in kinds {
        let marks = subject.series.marks.iter().filter(|mark| mark.kind == kind).copied().collect();
        lines.push(line(kind.name(), colour, Data::Marks { marks, stream: sender }));
    }
    let (from, to) = ends(sender);
    Chart {
        name: "sequence",
        title: "Time sequence with PDUs",
        note: format!(
            "Bytes of the stream from {from} to {to}, in the order of the stream. A flat step is a pause."
        ),
        unit: Unit::Bytes,
        is_tall: true,
        lines,
    }
}

fn ends(sender: Side) -> (&'static str, &'static str) {
    match sender {
        Side::Initiator => ("the initiator", "the target"),
        Side::Target => ("the target", "the initiator"),
    }
}

fn queue<'a>(subject: &Subject<'a>, stream: &'a Direction) -> Chart<'a> {
    let socket = subject.series.socket(subject.evidence.sender);
    let title = "Send queue of the data sender";
    if socket.is_seen() {
        return Chart {
            name: "queue",
            title,
            note: "Sampled. The queue in memory and its cap count the kernel's overhead for each packet."
                .to_owned(),
            unit: Unit::Bytes,
            is_tall: false,
            lines: vec![
                line("waiting for acknowledgement", "waiting", Data::Bands(stacked(&[], &socket.waiting))),
                line("not sent yet", "unsent", Data::Bands(stacked(&socket.waiting, &socket.unsent))),
                line("memory", "queue", steps(&socket.queue)),
                line("cap of the send buffer", "cap", steps(&socket.queue_cap)),
            ],
        };
    }
    let waiting = stream.in_flight.iter().map(|point| Span {
        at_ns: point.at_ns,
        low: 0,
        high: point.value,
        segments: 1,
    });
    let place = match subject.flow.vantage {
        Vantage::At(side) if side == subject.evidence.sender => "as captured at the sender",
        _ => "as seen where it was captured",
    };
    Chart {
        name: "queue",
        title,
        note: format!(
            "The part that waits for acknowledgement, {place}. The part not sent yet and the cap of the buffer are not \
             visible in a capture: run hikyaku watch at the sender."
        ),
        unit: Unit::Bytes,
        is_tall: false,
        lines: vec![line("waiting for acknowledgement", "waiting", Data::Bands(waiting.collect()))],
    }
}

fn windows<'a>(subject: &Subject<'a>, stream: &'a Direction) -> Chart<'a> {
    let socket = subject.series.socket(subject.evidence.sender);
    let window = if stream.window.is_empty() { &socket.peer_window } else { &stream.window };
    let in_flight = if stream.in_flight.is_empty() { &socket.waiting } else { &stream.in_flight };
    let note = if socket.is_seen() {
        "Congestion window and slow start threshold are sampled."
    } else {
        "The congestion window is not visible in a capture: run hikyaku watch at the sender."
    };
    Chart {
        name: "windows",
        title: "Bytes in flight and what bounds them",
        note: note.to_owned(),
        unit: Unit::Bytes,
        is_tall: false,
        lines: vec![
            line("in flight", "sent", steps(in_flight)),
            line("congestion window", "cwnd", steps(&socket.congestion_window)),
            line("slow start threshold", "ssthresh", steps(&socket.ssthresh)),
            line("receive window", "window", steps(window)),
        ],
    }
}

fn commands<'a>(subject: &Subject<'a>) -> Chart<'a> {
    Chart {
        name: "commands",
        title: "Times of each command",
        note: "Ta: first to last data packet. Tb: from there to the response; for a read, from the command to its first \
               data. Tc: from the response to the next command. Rest: before a write's first data packet, after a read's last."
            .to_owned(),
        unit: Unit::Nanoseconds,
        is_tall: false,
        lines: vec![line("times", "ta", Data::Bars(&subject.series.commands))],
    }
}

fn round_trips<'a>(subject: &Subject<'a>, stream: &'a Direction) -> Chart<'a> {
    let sender = subject.evidence.sender;
    let socket = subject.series.socket(sender);
    let note = match subject.flow.vantage {
        Vantage::At(side) if side == sender => "From a segment to its acknowledgement.",
        Vantage::At(_) => "At the receiver: the time that it takes to acknowledge, without the network.",
        _ => "From the place of capture to the receiver and back, without the way to the sender.",
    };
    Chart {
        name: "rtt",
        title: "Round trips",
        note: note.to_owned(),
        unit: Unit::Nanoseconds,
        is_tall: false,
        lines: vec![
            line("to the receiver", "sent", Data::Dots(&stream.rtt)),
            line("smoothed by the sender", "cwnd", steps(&socket.rtt)),
        ],
    }
}

/// The offset up to which the receiver permits bytes, whenever it changes.
pub(super) fn window_edge(stream: &Direction) -> Vec<Point> {
    let mut windows = stream.window.iter().peekable();
    let mut acks = stream.acknowledged.iter().peekable();
    let (mut window, mut acked) = (None, None);
    let mut edges: Vec<Point> = Vec::new();
    while let Some(at_ns) = [windows.peek().map(|next| next.at_ns), acks.peek().map(|next| next.at_ns)]
        .into_iter()
        .flatten()
        .min()
    {
        while let Some(next) = windows.next_if(|next| next.at_ns <= at_ns) {
            window = Some(next.value);
        }
        while let Some(next) = acks.next_if(|next| next.at_ns <= at_ns) {
            acked = Some(next.value);
        }
        if let (Some(window), Some(acked)) = (window, acked) {
            let value = u64::saturating_add(window, acked);
            if edges.last().is_none_or(|last| last.value != value) {
                edges.push(Point { at_ns, value });
            }
        }
    }
    edges
}

/// Bands of the height of `upper` on top of `lower`, which may be empty.
fn stacked(lower: &[Point], upper: &[Point]) -> Vec<Span> {
    let mut below = lower.iter().peekable();
    let mut low = 0;
    upper
        .iter()
        .map(|point| {
            while let Some(next) = below.next_if(|next| next.at_ns <= point.at_ns) {
                low = next.value;
            }
            Span { at_ns: point.at_ns, low, high: u64::saturating_add(low, point.value), segments: 1 }
        })
        .collect()
}

/// Bytes per second by bin, with a 0 at the end.
fn rate(bins: &Bins) -> Vec<Point> {
    let at = |index: usize| bins.from_ns.saturating_add(bins.width_ns.saturating_mul(index as u64));
    let per_s = |sum: u64| (sum as f64 * 1e9 / (bins.width_ns.max(1) as f64)) as u64;
    let mut points: Vec<Point> = Vec::new();
    for (index, sum) in bins.sums.iter().enumerate() {
        let value = per_s(*sum);
        if points.last().is_none_or(|last| last.value != value) {
            points.push(Point { at_ns: at(index), value });
        }
    }
    if !points.is_empty() {
        points.push(Point { at_ns: at(bins.sums.len()), value: 0 });
    }
    points
}
