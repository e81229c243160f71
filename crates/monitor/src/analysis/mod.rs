//! A capture from its packets to verdicts, in bounded memory whatever its length.
//!
//! Drive an [`Analyzer`] with the packets of a [`crate::capture::Reader`] ([`Analyzer::handle`]), then take its
//! [`Report`] ([`Analyzer::finish`]).

mod connection;
mod plain;
mod report;

pub use report::{FlowReport, Report};

use self::connection::{Connection, Finished};
use self::plain::Table;
use crate::capture;
use crate::command::{Command, Shares};
use crate::event::Event;
use crate::limits::{DETAILED_FLOWS_MAX, SERIES_POINTS_MAX};
use crate::model;
use crate::packet::Packet;
use crate::view;

/// How to analyse.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ports of targets besides the registered one, 3260.
    pub ports: Vec<u16>,
    /// Of the sample of commands that is kept.
    pub seed: u64,
    /// Whether points for pictures are collected.
    pub has_pictures: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { ports: Vec::new(), seed: 1, has_pictures: false }
    }
}

/// Commands that are kept of the connections that come first, and of each further one.
const SHARES: Shares = Shares { first: 1024, slowest: 256, sample: 4096, bursts: 32_768 };
const SHARES_SMALL: Shares = Shares { first: 16, slowest: 16, sample: 32, bursts: 256 };

/// Analyses the connections of a capture.
#[derive(Debug)]
pub struct Analyzer {
    options: Options,
    table: Table,
    connections: Vec<Connection>,
    ended_ns: u64,
}

/// What a packet held.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// An event of the connection with this number.
    Event(u64, &'a Event),
    /// A command that is complete.
    Command(&'a Command),
}

impl Analyzer {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let table = Table::new(&options.ports);
        Self { options, table, connections: Vec::new(), ended_ns: 0 }
    }

    pub fn handle(&mut self, packet: &Packet<'_>) {
        self.handle_seen(packet, |_| {});
    }

    /// Handles a packet and shows what it held to `see`, in order.
    pub fn handle_seen(&mut self, packet: &Packet<'_>, mut see: impl FnMut(Seen<'_>)) {
        self.ended_ns = self.ended_ns.max(packet.at_ns);
        let (connections, options) = (&mut self.connections, &self.options);
        self.table.handle(packet, |index, flow, event| {
            while connections.len() <= index {
                add(connections, options);
            }
            let connection = &mut connections[index];
            connection.set_distances(flow.distances());
            see(Seen::Event(index as u64, event));
            connection.handle(event, |command| see(Seen::Command(command)));
        });
    }

    /// What was found in `source`, the name of what was read.
    pub fn finish(self, source: &str, frames: capture::Counts, notes: &[capture::Note]) -> Report {
        let flows = self.table.flows.iter().zip(self.connections).enumerate();
        let mut flows: Vec<FlowReport> = flows
            .map(|(index, (flow, connection))| report(index, flow, source, connection.finish()))
            .collect();
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.payload_bytes.iter().sum::<u64>()));
        Report {
            flows,
            frames,
            ended_ns: self.ended_ns,
            notes: notes.iter().map(ToString::to_string).collect(),
        }
    }
}

fn add(connections: &mut Vec<Connection>, options: &Options) {
    let number = connections.len();
    let shares = if number < DETAILED_FLOWS_MAX { SHARES } else { SHARES_SMALL };
    let points = if options.has_pictures && number < DETAILED_FLOWS_MAX {
        SERIES_POINTS_MAX / (number + 1)
    } else {
        0
    };
    if points > 0 {
        connections.iter_mut().for_each(|connection| connection.limit_points(points));
    }
    connections.push(Connection::new(shares, options.seed.wrapping_add(number as u64), points));
}

fn report(index: usize, flow: &plain::Flow, source: &str, finished: Finished) -> FlowReport {
    let verdict = model::judge(&finished.evidence);
    FlowReport {
        flow: view::Flow {
            id: (index + 1).to_string(),
            source: source.to_owned(),
            initiator: flow.ends[0].to_string(),
            target: flow.ends[1].to_string(),
            initiator_name: None,
            target_name: None,
            vantage: flow.vantage(),
            distances: flow.distances(),
            negotiated: Vec::new(),
            commands: finished.commands_seen,
            frames: flow.frames,
        },
        verdict,
        evidence: finished.evidence,
        series: finished.series,
        commands: finished.commands,
        summary: finished.summary,
        counts: finished.counts,
        seconds: finished.seconds,
        payload_bytes: finished.bytes,
        notes: Vec::new(),
    }
}
