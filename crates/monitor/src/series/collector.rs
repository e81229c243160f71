//! The machine that fills a [`Series`].

use super::marks::{Mark, Marks};
use super::track::{Bins, Point, Span, Thin, Timed, Track};
use super::{Direction, Series, Socket};
use crate::command::{Command, Standing};
use crate::event::{Ack, Duplicate, Event, Kind, Order, PduStart, Segment, Side};
use crate::limits::SERIES_POINTS_MAX;
use crate::sample::Sample;

/// Most points that one call of a `handle_*` method adds: a sample has eight values.
const POINTS_PER_CALL_MAX: usize = 8;
/// Least bound: every track can be halved to a few points, which together are fewer.
const POINTS_LEAST: usize = 1024;
/// Bins of in-flight values from the start, which would otherwise be two for each packet.
const IN_FLIGHT_BIN_NS: u64 = 50_000;
/// Bins of round trips from the start.
const RTT_BIN_NS: u64 = 1_000_000;

/// Collects the [`Series`] of one connection. Call `handle_*` in the order of the observations, then
/// [`Collector::finish`].
#[derive(Debug)]
pub struct Collector {
    points_max: usize,
    points: usize,
    directions: [Stream; 2],
    sockets: [Samples; 2],
    marks: Marks,
    commands: Track<Timed>,
    outstanding: Track<Point>,
}

impl Collector {
    /// Holds at most `points_max` points, of at most 40 bytes each (a command: 72).
    pub fn new(points_max: usize) -> Self {
        Self {
            points_max: points_max.clamp(POINTS_LEAST, SERIES_POINTS_MAX),
            points: 0,
            directions: Default::default(),
            sockets: Default::default(),
            marks: Marks::default(),
            commands: Track::default(),
            outstanding: Track::default(),
        }
    }

    /// Changes the bound, for an analysis that divides its points between a growing number of connections.
    pub fn limit(&mut self, points_max: usize) {
        self.points_max = points_max.clamp(POINTS_LEAST, SERIES_POINTS_MAX);
        self.settle();
    }

    pub fn handle_event(&mut self, event: &Event) {
        let Event { at_ns, from, .. } = *event;
        match &event.kind {
            Kind::Segment(segment) => self.directions[from as usize].handle_segment(at_ns, *segment),
            Kind::Ack(ack) => self.directions[from.peer() as usize].handle_ack(at_ns, *ack),
            Kind::PduStart(start) => self.handle_pdu(at_ns, from, start),
            Kind::PduEnd(_)
            | Kind::CaptureLost { .. }
            | Kind::HeadersUnseen { .. }
            | Kind::Opaque(_)
            | Kind::Ended { .. } => return,
        }
        self.settle();
    }

    fn handle_pdu(&mut self, at_ns: u64, from: Side, start: &PduStart) {
        let mut offsets = [0; 2];
        offsets[from as usize] = start.offset;
        offsets[from.peer() as usize] = self.directions[from.peer() as usize].acked();
        self.marks.push(Mark::new(at_ns, from, &start.header, start.bytes, offsets));
    }

    /// A command that has ended. Commands need not come in the order of their start.
    pub fn handle_command(&mut self, command: &Command) {
        self.commands.push(Timed {
            at_ns: command.at_ns,
            transfer: command.transfer,
            bytes: command.bytes,
            ta_ns: command.ta_ns,
            tb_ns: command.tb_ns,
            tc_ns: command.tc_ns.unwrap_or(0),
            latency_ns: command.latency_ns,
            depth: command.depth,
            r2t_rounds: command.r2t_rounds,
        });
        self.settle();
    }

    /// What iSCSI waits for from this moment on. Only changes of the number of commands take a point.
    pub fn handle_standing(&mut self, at_ns: u64, standing: &Standing) {
        let value = u64::from(standing.outstanding);
        if self.outstanding.last().is_none_or(|last| last.value != value) {
            self.outstanding.push(Point { at_ns, value });
            self.settle();
        }
    }

    /// A sample of the socket at `end`, with its time moved to the clock of the events.
    pub fn handle_sample(&mut self, end: Side, sample: &Sample) {
        self.sockets[end as usize].handle(sample);
        self.settle();
    }

    /// What was collected.
    pub fn finish(mut self) -> Series {
        let is_thinned = self.tracks().into_iter().any(|track| track.is_thinned());
        let [initiator, target] = &mut self.directions;
        let directions = [initiator.finish(), target.finish()];
        let [initiator, target] = &mut self.sockets;
        let sockets = [initiator.finish(), target.finish()];
        let mut marks = self.marks.entries;
        marks.sort_by_key(|mark| mark.at_ns);
        let mut series = Series {
            from_ns: u64::MAX,
            to_ns: 0,
            is_thinned,
            directions,
            sockets,
            marks,
            commands: self.commands.take(),
            outstanding: self.outstanding.take(),
        };
        (series.from_ns, series.to_ns) = period(&series);
        series
    }

    /// Halves the longest track while there are too many points. `points` grows by the most that a call adds, and is
    /// counted when it reaches the bound: rarely, because each count brings it back.
    fn settle(&mut self) {
        self.points += POINTS_PER_CALL_MAX;
        if self.points <= self.points_max {
            return;
        }
        self.points = self.tracks().iter().map(|track| track.len()).sum();
        while self.points + POINTS_PER_CALL_MAX > self.points_max {
            let mut tracks = self.tracks();
            let Some(longest) = tracks.iter_mut().max_by_key(|track| track.len()) else { return };
            longest.halve();
            self.points = tracks.iter().map(|track| track.len()).sum();
        }
    }

    fn tracks(&mut self) -> Vec<&mut dyn Thin> {
        let mut tracks: Vec<&mut dyn Thin> = vec![&mut self.marks, &mut self.commands, &mut self.outstanding];
        for stream in &mut self.directions {
            tracks.extend(stream.tracks());
        }
        for samples in &mut self.sockets {
            tracks.extend(samples.0.iter_mut().map(|track| track as &mut dyn Thin));
        }
        tracks
    }
}

/// First and last moment of any point.
fn period(series: &Series) -> (u64, u64) {
    let mut ends = (u64::MAX, 0);
    let mut widen = |first: Option<u64>, last: Option<u64>| {
        if let (Some(first), Some(last)) = (first, last) {
            ends = (ends.0.min(first), ends.1.max(last));
        }
    };
    let mut points = |points: &[Point]| {
        widen(points.first().map(|point| point.at_ns), points.last().map(|point| point.at_ns));
    };
    points(&series.outstanding);
    for direction in &series.directions {
        points(&direction.acknowledged);
        points(&direction.in_flight);
    }
    for socket in &series.sockets {
        for track in [&socket.waiting, &socket.congestion_window, &socket.queue] {
            points(track);
        }
    }
    widen(series.marks.first().map(|mark| mark.at_ns), series.marks.last().map(|mark| mark.at_ns));
    let end = |timed: &Timed| timed.at_ns.saturating_add(timed.latency_ns);
    widen(series.commands.first().map(|timed| timed.at_ns), series.commands.iter().map(end).max());
    if ends.0 > ends.1 { (0, 0) } else { ends }
}

/// One direction while it is collected.
#[derive(Debug)]
struct Stream {
    sent: Track<Span>,
    repeated: Track<Span>,
    acknowledged: Track<Point>,
    duplicates: Track<Point>,
    in_flight: Track<Point>,
    window: Track<Point>,
    rtt: Track<Point>,
    rate: Bins,
    /// End of what was sent.
    edge: u64,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            sent: Track::default(),
            repeated: Track::default(),
            acknowledged: Track::default(),
            duplicates: Track::default(),
            in_flight: Track::with_bins(IN_FLIGHT_BIN_NS),
            window: Track::default(),
            rtt: Track::with_bins(RTT_BIN_NS),
            rate: Bins::default(),
            edge: 0,
        }
    }
}

impl Stream {
    fn acked(&self) -> u64 {
        self.acknowledged.last().map_or(0, |point| point.value)
    }

    fn handle_segment(&mut self, at_ns: u64, segment: Segment) {
        let low = segment.offset;
        let high = low.saturating_add(u64::from(segment.bytes));
        // A segment that repeats a part begins with it: what a sender repeats starts at its oldest unacknowledged byte.
        let middle = match (segment.order, segment.repeated_bytes) {
            (Order::Again, 0) => high,
            (_, repeated) => low.saturating_add(u64::from(repeated)).min(high),
        };
        if low < middle {
            self.repeated.push(Span { at_ns, low, high: middle, segments: 1 });
        }
        if middle < high {
            self.sent.push(Span { at_ns, low: middle, high, segments: 1 });
        }
        // What fills a gap passes here for the first time.
        let new = u64::from(segment.bytes.saturating_sub(segment.repeated_bytes));
        if new > 0 {
            self.rate.add(at_ns, new);
        }
        self.edge = self.edge.max(high);
        self.note_in_flight(at_ns);
    }

    fn handle_ack(&mut self, at_ns: u64, ack: Ack) {
        if ack.duplicate == Duplicate::Ack {
            self.duplicates.push(Point { at_ns, value: ack.acknowledged });
        }
        if let Some(value) = ack.window_bytes
            && self.window.last().is_none_or(|last| last.value != value)
        {
            self.window.push(Point { at_ns, value });
        }
        let is_first = self.acknowledged.last().is_none();
        if !is_first && ack.acknowledged <= self.acked() {
            return;
        }
        self.acknowledged.push(Point { at_ns, value: ack.acknowledged });
        if let Some(value) = ack.round_trip_ns {
            self.rtt.push(Point { at_ns, value });
        }
        self.note_in_flight(at_ns);
    }

    fn note_in_flight(&mut self, at_ns: u64) {
        let value = self.edge.saturating_sub(self.acked());
        if self.in_flight.last().is_none_or(|last| last.value != value) {
            self.in_flight.push(Point { at_ns, value });
        }
    }

    fn tracks(&mut self) -> [&mut dyn Thin; 7] {
        [
            &mut self.sent,
            &mut self.repeated,
            &mut self.acknowledged,
            &mut self.duplicates,
            &mut self.in_flight,
            &mut self.window,
            &mut self.rtt,
        ]
    }

    fn finish(&mut self) -> Direction {
        Direction {
            sent: self.sent.take(),
            repeated: self.repeated.take(),
            acknowledged: self.acknowledged.take(),
            duplicates: self.duplicates.take(),
            in_flight: self.in_flight.take(),
            window: self.window.take(),
            rtt: self.rtt.take(),
            rate: std::mem::take(&mut self.rate),
        }
    }
}

/// One sampled socket while it is collected: tracks in the order of [`Socket`]'s fields.
#[derive(Debug, Default)]
struct Samples([Track<Point>; 8]);

impl Samples {
    fn handle(&mut self, sample: &Sample) {
        let mss = u64::from(sample.mss_bytes.unwrap_or(0));
        let segments = |count: Option<u32>| count.filter(|_| mss > 0).map(|count| u64::from(count) * mss);
        let values = [
            segments(sample.unacked_segments),
            sample.notsent_bytes.map(u64::from),
            sample.send_queue_bytes.map(u64::from),
            sample.send_buffer_bytes.map(u64::from),
            segments(sample.cwnd_segments),
            // The kernel's "infinite", before the first loss (TCP_INFINITE_SSTHRESH).
            segments(sample.ssthresh_segments.filter(|segments| *segments < 0x7fff_ffff)),
            sample.peer_window_bytes.map(u64::from),
            sample.rtt_us.map(|us| u64::from(us) * 1000),
        ];
        for (track, value) in self.0.iter_mut().zip(values) {
            if let Some(value) = value {
                track.push(Point { at_ns: sample.at_ns, value });
            }
        }
    }

    fn finish(&mut self) -> Socket {
        let [waiting, unsent, queue, queue_cap, congestion_window, ssthresh, peer_window, rtt] =
            self.0.each_mut().map(Track::take);
        Socket { waiting, unsent, queue, queue_cap, congestion_window, ssthresh, peer_window, rtt }
    }
}
