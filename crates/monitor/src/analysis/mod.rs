//! A capture from its packets to verdicts, in bounded memory whatever its length.
//!
//! Drive an [`Analyzer`] with the packets of a [`crate::capture::Reader`] ([`Analyzer::handle`]), then take its
//! [`Report`] ([`Analyzer::finish`]).

mod connection;
mod keys;
mod queue;
mod report;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;

pub use report::{FlowReport, Report};

use self::connection::Connection;
use self::queue::{Item, Queue};
use crate::capture;
use crate::command::{Command, Shares};
use crate::event::Event;
use crate::flow::{Belongs, Flow, FlowId, Table};
use crate::limits::{
    DETAILED_FLOWS_MAX, FLOWS_REPORTED_MAX, HELD_BYTES_MAX, HELD_CHECK_EVENTS, SERIES_POINTS_MAX,
};
use crate::packet::Packet;

/// How to analyse.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ports of targets besides the registered ones.
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

/// Connections by identifiers that the table counts: no end of a connection chooses them.
type Connections = HashMap<FlowId, Connection, BuildHasherDefault<Numbers>>;

/// Spreads the bits of a number.
#[derive(Default)]
struct Numbers(u64);

impl Hasher for Numbers {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// Analyses the connections of a capture.
#[derive(Debug)]
pub struct Analyzer {
    options: Options,
    table: Table,
    connections: Connections,
    /// What packets showed and connections have not handled yet.
    queue: Queue,
    added: usize,
    /// Connections that have left the table.
    finished: Vec<(Flow, Connection)>,
    forgotten: u64,
    ended_ns: u64,
    /// Packets until memory is looked at.
    unchecked: u32,
    /// Connections that took too much of it.
    folded: u64,
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
        Self {
            options,
            table,
            connections: Connections::default(),
            queue: Queue::default(),
            added: 0,
            finished: Vec::new(),
            forgotten: 0,
            ended_ns: 0,
            unchecked: HELD_CHECK_EVENTS,
            folded: 0,
        }
    }

    /// See [`Table::set_window_scale`].
    pub fn set_window_scale(&mut self, from: SocketAddr, to: SocketAddr, scale: u8) {
        self.table.set_window_scale(from, to, scale);
    }

    /// Takes the next packet. What it shows is handled at the latest when [`Analyzer::finish`] is called.
    pub fn handle(&mut self, packet: &Packet<'_>) {
        self.take(packet, |_| {});
        if self.queue.is_full() {
            self.release(|_| {});
        }
    }

    /// Handles a packet and shows what it held to `see`, in order.
    pub fn handle_seen(&mut self, packet: &Packet<'_>, mut see: impl FnMut(Seen<'_>)) {
        self.release(|_| {});
        self.take(packet, &mut see);
        self.release(see);
    }

    /// Queues what the packet shows. `see` gets what has to be handled meanwhile.
    fn take(&mut self, packet: &Packet<'_>, mut see: impl FnMut(Seen<'_>)) {
        self.ended_ns = self.ended_ns.max(packet.at_ns);
        let (connections, options, added) = (&mut self.connections, &self.options, &mut self.added);
        let queue = &mut self.queue;
        let mut events = 0;
        let belongs = self.table.push(packet, &mut |id, event| {
            events += 1;
            if queue.push(id, Item::Event(event.clone())) {
                *added += 1;
                add(connections, id, options, *added - 1);
            }
        });
        if let Belongs::To(id) = belongs {
            self.queue.set_distances(id, self.table.distances(id));
            if self.queue.wants_keys(id)
                && let Some(flow) = self.table.flow(id)
            {
                let keys = keys::for_commands(&keys::negotiated(&flow));
                self.queue.push(id, Item::Keys(keys));
            }
        }
        self.collect(&mut see);
        self.unchecked = self.unchecked.saturating_sub(1 + events);
        if self.unchecked == 0 {
            self.unchecked = HELD_CHECK_EVENTS;
            self.release(see);
            self.fold(HELD_BYTES_MAX);
        }
    }

    /// Lets the connections handle all that is queued, one after the other.
    fn release(&mut self, mut see: impl FnMut(Seen<'_>)) {
        let connections = &mut self.connections;
        self.queue.drain(|id, items| {
            let Some(connection) = connections.get_mut(&id) else { return };
            for item in items {
                match item {
                    Item::Event(event) => {
                        see(Seen::Event(id.number(), event));
                        connection.handle(event, |command| see(Seen::Command(command)));
                    }
                    Item::Distances(distances) => connection.set_distances(*distances),
                    Item::Keys(keys) => connection.set_keys(*keys),
                }
            }
        });
    }

    /// What the connections of the table hold, if anything.
    fn held(&self) -> Vec<(usize, FlowId)> {
        let of = |id| self.connections.get(&id).map_or(0, Connection::held_bytes);
        let held = self.table.held().map(|(id, bytes)| (bytes + of(id), id));
        held.filter(|(bytes, _)| *bytes > 0).collect()
    }

    /// Leaves those that hold most with the results that they have, until all together hold at most `most` bytes. Only
    /// many connections with thousands of commands or packets on their way come to that, or made-up ones.
    fn fold(&mut self, most: usize) {
        let mut held = self.held();
        let mut sum: usize = held.iter().map(|(bytes, _)| *bytes).sum();
        if sum <= most {
            return;
        }
        held.sort_unstable_by_key(|(bytes, id)| (Reverse(*bytes), *id));
        for (bytes, id) in held {
            if sum <= most {
                return;
            }
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.settle();
            }
            self.table.leave(id);
            self.folded += 1;
            sum -= bytes;
        }
    }

    /// Takes the connections that have left the table. Beyond [`FLOWS_REPORTED_MAX`] those with least data are forgotten.
    fn collect(&mut self, mut see: impl FnMut(Seen<'_>)) {
        while let Some(flow) = self.table.poll_finished() {
            self.release(&mut see);
            // One without an event has shown nothing.
            let Some(mut connection) = self.connections.remove(&flow.id) else { continue };
            connection.settle();
            self.finished.push((flow, connection));
            if self.finished.len() >= FLOWS_REPORTED_MAX + FLOWS_REPORTED_MAX / 8 {
                self.shrink();
            }
        }
    }

    fn shrink(&mut self) {
        self.finished.sort_by_key(|(flow, _)| Reverse(data_bytes(flow)));
        self.forgotten += self.finished.len().saturating_sub(FLOWS_REPORTED_MAX) as u64;
        self.finished.truncate(FLOWS_REPORTED_MAX);
    }

    /// What was found in `source`, the name of what was read.
    pub fn finish(mut self, source: &str, frames: capture::Counts, notes: &[capture::Note]) -> Report {
        self.release(|_| {});
        self.table.finish();
        self.collect(|_| {});
        self.shrink();
        let mut notes: Vec<_> = notes.iter().map(ToString::to_string).collect();
        if self.forgotten > 0 {
            notes.push(format!("{} connections with less data are not reported", self.forgotten));
        }
        if self.folded > 0 {
            let count = self.folded;
            notes.push(format!(
                "{count} connections had too much on its way: only a part of their time is analysed"
            ));
        }
        if self.table.others() > 0 {
            notes.push(format!("{} TCP connections are not iSCSI", self.table.others()));
        }
        let finished = std::mem::take(&mut self.finished).into_iter().enumerate();
        let flows = finished
            .map(|(index, (flow, connection))| connection.finish((index + 1).to_string(), &flow, source))
            .collect();
        Report { flows, frames, ended_ns: self.ended_ns, notes }
    }
}

fn data_bytes(flow: &Flow) -> u64 {
    flow.total(|counts| counts.bytes)
}

/// Adds the connection that is number `added`, from 0.
fn add(connections: &mut Connections, id: FlowId, options: &Options, added: usize) {
    let is_detailed = added < DETAILED_FLOWS_MAX;
    let shares = if is_detailed { SHARES } else { SHARES_SMALL };
    let points = if options.has_pictures && is_detailed { SERIES_POINTS_MAX / (added + 1) } else { 0 };
    if points > 0 {
        connections.values_mut().for_each(|connection| connection.limit_points(points));
    }
    connections.insert(id, Connection::new(shares, options.seed.wrapping_add(added as u64), points));
}
