//! One connection of an analysis: its commands, statistics, cause of each moment and points for pictures.

use crate::command::{Command, Counts, Kept, Keys, Shares, Summary, Tracker, Transfer};
use crate::event::{Distances, Event, Kind, Side};
use crate::model::{Attribution, Evidence};
use crate::series::{Collector, Series};

/// Follows one connection: [`Connection::handle`] each event, then [`Connection::finish`].
#[derive(Debug)]
pub(super) struct Connection {
    tracker: Tracker,
    attribution: Attribution,
    summary: Summary,
    kept: Kept,
    collector: Option<Collector>,
    /// Outstanding commands that the collector has seen last.
    outstanding: u32,
    first_ns: Option<u64>,
    last_ns: u64,
    bytes: [u64; 2],
}

/// What a connection was.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) evidence: Evidence,
    pub(super) summary: Summary,
    pub(super) counts: Counts,
    pub(super) commands: Vec<Command>,
    pub(super) commands_seen: u64,
    pub(super) series: Series,
    pub(super) seconds: f64,
    /// TCP payload by sender, repeated bytes left out.
    pub(super) bytes: [u64; 2],
}

impl Connection {
    /// `points_max` bounds the points for pictures; 0: none.
    pub(super) fn new(shares: Shares, seed: u64, points_max: usize) -> Self {
        Self {
            tracker: Tracker::new(),
            attribution: Attribution::new(),
            summary: Summary::default(),
            kept: Kept::new(shares, seed),
            collector: (points_max > 0).then(|| Collector::new(points_max)),
            outstanding: 0,
            first_ns: None,
            last_ns: 0,
            bytes: [0; 2],
        }
    }

    pub(super) fn limit_points(&mut self, points_max: usize) {
        if let Some(collector) = &mut self.collector {
            collector.limit(points_max);
        }
    }

    pub(super) fn set_distances(&mut self, distances: Distances) {
        self.tracker.set_distances(distances);
        self.attribution.set_distances(distances);
    }

    pub(super) fn set_keys(&mut self, keys: Keys) {
        self.tracker.set_keys(keys);
        self.attribution.set_first_burst(keys.first_burst_length);
    }

    /// The end that sent most payload so far.
    pub(super) fn sender(&self) -> Side {
        let [initiator, target] = self.bytes;
        if initiator >= target { Side::Initiator } else { Side::Target }
    }

    /// `see` gets the commands that are complete.
    pub(super) fn handle(&mut self, event: &Event, see: impl FnMut(&Command)) {
        self.first_ns.get_or_insert(event.at_ns);
        self.last_ns = self.last_ns.max(event.at_ns);
        if let Kind::Segment(segment) = &event.kind {
            let fresh = u64::from(segment.bytes.saturating_sub(segment.repeated_bytes));
            let bytes = &mut self.bytes[event.from as usize];
            *bytes = bytes.saturating_add(fresh);
        }
        if let Some(collector) = &mut self.collector {
            collector.handle_event(event);
        }
        self.tracker.handle(event);
        self.attribution.handle(event);
        if matches!(event.kind, Kind::PduStart(_) | Kind::PduEnd(_) | Kind::Ended { .. }) {
            self.after_pdu(event.at_ns, see);
        }
    }

    fn after_pdu(&mut self, at_ns: u64, see: impl FnMut(&Command)) {
        self.take_commands(see);
        let standing = self.tracker.standing();
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

    fn take_commands(&mut self, mut see: impl FnMut(&Command)) {
        while let Some(command) = self.tracker.poll_command() {
            see(&command);
            self.summary.add(&command);
            if let Some(collector) = &mut self.collector {
                collector.handle_command(&command);
            }
            self.kept.add(command);
        }
    }

    /// Data bytes of ended commands in one direction.
    pub(super) fn data_bytes(&self, transfer: Transfer) -> u64 {
        self.summary.direction(transfer).bytes
    }

    pub(super) fn finish(mut self) -> Finished {
        self.tracker.finish();
        self.take_commands(|_| {});
        let commands_seen = self.kept.seen();
        let counts = self.tracker.counts();
        let summary = &self.summary;
        let evidence = self.attribution.finish(|sender| summary.protocol(sender, &counts));
        Finished {
            evidence,
            counts,
            summary: self.summary,
            commands: self.kept.into_commands(),
            commands_seen,
            series: self.collector.map(Collector::finish).unwrap_or_default(),
            seconds: self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns)) as f64 / 1e9,
            bytes: self.bytes,
        }
    }
}
