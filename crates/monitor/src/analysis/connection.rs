//! One connection of an analysis: its commands, statistics, cause of each moment and points for pictures.

use super::keys;
use super::report::FlowReport;
use crate::capture::SNAP_BYTES;
use crate::command::{Command, Counts, Kept, Keys, Shares, Summary, Tracker};
use crate::event::{Distances, Event, Kind, Side};
use crate::flow::{Flow, Framing};
use crate::model::{Attribution, Evidence, Peers, advise, doubt, judge};
use crate::series::Collector;
use crate::view;

/// Header of a PDU (RFC 7143 11.2.1).
const HEADER_BYTES: u64 = 48;
/// Confidence at most, where no header of a PDU can be seen.
const GUESS: f64 = 0.6;

/// Follows one connection: [`Connection::handle`] each event, then [`Connection::finish`].
#[derive(Debug)]
pub(super) struct Connection {
    /// `None` after both ends have closed the connection: then only the results are kept.
    live: Option<Box<Live>>,
    results: Option<(Counts, Evidence)>,
    /// Ends that have closed the connection.
    closed: [bool; 2],
    summary: Summary,
    kept: Kept,
    collector: Option<Collector>,
    distances: Distances,
    /// Outstanding commands that the collector has seen last.
    outstanding: u32,
}

/// What follows a connection while it is open.
#[derive(Debug, Default)]
struct Live {
    tracker: Tracker,
    attribution: Attribution,
}

impl Connection {
    /// `points_max` bounds the points for pictures; 0: none.
    pub(super) fn new(shares: Shares, seed: u64, points_max: usize) -> Self {
        Self {
            live: Some(Box::default()),
            results: None,
            closed: [false; 2],
            summary: Summary::default(),
            kept: Kept::new(shares, seed),
            collector: (points_max > 0).then(|| Collector::new(points_max)),
            distances: Distances::default(),
            outstanding: 0,
        }
    }

    pub(super) fn limit_points(&mut self, points_max: usize) {
        if let Some(collector) = &mut self.collector {
            collector.limit(points_max);
        }
    }

    pub(super) fn set_distances(&mut self, distances: Distances) {
        if distances != self.distances {
            self.distances = distances;
            if let Some(live) = &mut self.live {
                live.tracker.set_distances(distances);
                live.attribution.set_distances(distances);
            }
        }
    }

    /// What the login agreed on.
    pub(super) fn set_keys(&mut self, keys: Keys) {
        if let Some(live) = &mut self.live {
            live.tracker.set_keys(keys);
            live.attribution.set_first_burst(keys.first_burst_length);
        }
    }

    /// `see` gets the commands that are complete.
    pub(super) fn handle(&mut self, event: &Event, see: impl FnMut(&Command)) {
        if let Some(collector) = &mut self.collector {
            collector.handle_event(event);
        }
        let Some(live) = &mut self.live else { return };
        live.attribution.handle(event);
        live.tracker.handle(event);
        if matches!(event.kind, Kind::PduStart(_) | Kind::PduEnd(_) | Kind::Ended { .. }) {
            self.after_pdu(event.at_ns, see);
        }
        if let Kind::Ended { by_reset } = event.kind {
            self.closed[event.from as usize] = true;
            if by_reset || self.closed == [true; 2] {
                self.settle();
            }
        }
    }

    /// Memory that [`Connection::settle`] frees, about.
    pub(super) fn held_bytes(&self) -> usize {
        self.live.as_ref().map_or(0, |live| live.tracker.held_bytes() + live.attribution.held_bytes())
    }

    /// Nothing more comes: takes the results and frees what followed the connection.
    pub(super) fn settle(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        live.tracker.finish();
        self.take_commands(&mut live.tracker, |_| {});
        let counts = live.tracker.counts();
        let evidence = live.attribution.finish(|sender| self.summary.protocol(sender, &counts));
        self.results = Some((counts, evidence));
    }

    fn after_pdu(&mut self, at_ns: u64, see: impl FnMut(&Command)) {
        let Some(mut live) = self.live.take() else { return };
        self.take_commands(&mut live.tracker, see);
        let standing = live.tracker.standing();
        self.live = Some(live);
        if let Some(commands) = standing.command_window {
            self.summary.add_window(commands);
        }
        if standing.outstanding != self.outstanding {
            self.outstanding = standing.outstanding;
            if let Some(collector) = &mut self.collector {
                collector.handle_standing(at_ns, &standing);
            }
        }
    }

    fn take_commands(&mut self, tracker: &mut Tracker, mut see: impl FnMut(&Command)) {
        while let Some(command) = tracker.poll_command() {
            see(&command);
            self.summary.add(&command);
            if let Some(collector) = &mut self.collector {
                collector.handle_command(&command);
            }
            self.kept.add(command);
        }
    }

    /// `id` names the connection within the analysis, `source` what was read.
    pub(super) fn finish(mut self, id: String, flow: &Flow, source: &str) -> FlowReport {
        self.settle();
        let (counts, mut evidence) = self.results.take().unwrap_or_else(|| {
            let counts = Counts::default();
            (counts, Attribution::new().finish(|_| None))
        });
        let summary = self.summary;
        if let Some(bytes) = unframed_bytes(flow, evidence.sender) {
            evidence.data_bytes = evidence.data_bytes.max(bytes);
        }
        let name = |side, key| flow.key(side, key).map(str::to_owned);
        let view = view::Flow {
            id,
            source: source.to_owned(),
            initiator: flow.initiator.to_string(),
            target: flow.target.to_string(),
            initiator_name: name(Side::Initiator, "InitiatorName"),
            target_name: name(Side::Initiator, "TargetName"),
            vantage: flow.vantage,
            distances: flow.distances,
            negotiated: keys::negotiated(flow),
            commands: self.kept.seen(),
            frames: flow.total(|counts| counts.packets),
        };
        let mut verdict = judge(&evidence);
        if has_no_headers(flow) {
            doubt(&mut verdict, &evidence, GUESS);
        }
        let names = [view.initiator_name.as_deref(), view.target_name.as_deref()];
        let alias = flow.key(Side::Target, "TargetAlias");
        advise(&mut verdict, &evidence, &Peers::of_login(names[0], names[1], alias, &view.target));
        FlowReport {
            flow: view,
            verdict,
            evidence,
            series: self.collector.map(Collector::finish).unwrap_or_default(),
            commands: self.kept.into_commands(),
            summary,
            counts,
            seconds: flow.last_ns.saturating_sub(flow.first_ns) as f64 / 1e9,
            payload_bytes: flow.counts.map(|counts| counts.bytes),
            notes: notes(flow, &counts),
        }
    }
}

/// All payload of a direction in which not all PDUs are known: nearly all of it is data where there is much.
fn unframed_bytes(flow: &Flow, sender: Side) -> Option<u64> {
    let counts = flow.of(sender, flow.counts);
    let is_patchy = counts.headers_unseen_bytes > 0 || flow.of(sender, flow.framing) != Framing::Plain;
    is_patchy.then_some(counts.bytes)
}

/// No PDU can be in the capture, whatever passed: the snap length leaves no header of one.
fn has_no_headers(flow: &Flow) -> bool {
    let kept = flow.counts.iter().map(|counts| counts.kept_bytes_max).max();
    flow.total(|counts| counts.bytes) > 0 && kept < Some(HEADER_BYTES)
}

/// What could not be seen of the connection.
fn notes(flow: &Flow, counts: &Counts) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |is_so: bool, text: String| {
        if is_so {
            notes.push(text);
        }
    };
    let is_framed = |framing| flow.framing.contains(&framing);
    note(
        is_framed(Framing::Sealed),
        "the session is sealed (SEAL/1): its PDUs cannot be read, what is said rests on TCP alone".to_owned(),
    );
    note(
        is_framed(Framing::Tls),
        "the session is within TLS: its PDUs cannot be read, what is said rests on TCP alone".to_owned(),
    );
    note(
        has_no_headers(flow),
        format!(
            "the capture length cuts off all iSCSI headers, and what limits is a guess: capture again with tcpdump -s {SNAP_BYTES}"
        ),
    );
    note(
        is_framed(Framing::Unframed) || is_framed(Framing::Searching) && counts.commands == 0,
        "no PDUs were found: what is said rests on TCP alone".to_owned(),
    );
    note(
        !flow.is_from_start,
        "the start of the connection is not in the capture: the negotiated keys and the scale of the windows are unknown; to see \
         them, capture from before the login"
            .to_owned(),
    );
    note(
        flow.is_from_start && !flow.is_login_whole && !flow.negotiated.is_empty(),
        format!(
            "the text of the login is cut off by the capture length: keys that are not listed are unknown; capture {SNAP_BYTES} bytes \
             of each packet (tcpdump -s {SNAP_BYTES}), or all (-s 0), to see them"
        ),
    );
    let lost = flow.total(|counts| counts.capture_lost_bytes);
    note(
        lost > 0,
        format!(
            "the capture lacks {lost} bytes of the connection that passed: it dropped packets, the network did not"
        ),
    );
    note(
        counts.inferred_bytes > 0,
        format!(
            "{} bytes belong to PDUs whose headers are cut off by the capture length: they are given to the commands in their order; \
             capture more of each packet (tcpdump -s 0) to see them",
            counts.inferred_bytes
        ),
    );
    note(
        counts.inferred > 0,
        format!(
            "{} commands passed in frames whose headers are cut off by the capture length: they are counted by R2Ts and responses",
            counts.inferred
        ),
    );
    note(
        counts.unknown > 0,
        format!(
            "{} PDUs belong to commands that began before the capture, or whose start it lacks",
            counts.unknown
        ),
    );
    notes
}
