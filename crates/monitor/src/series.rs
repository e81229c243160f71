//! What pictures of a connection need: points over time, collected in bounded memory.
//!
//! Drive a [`Collector`] with the events, commands, standings and samples of one connection as they come, then take its
//! [`Series`]. A collector holds at most the points that its constructor (or [`Collector::limit`]) permits: beyond them the
//! longest track is halved, by the least and the greatest value of each bin of time. Extremes are never dropped, so a
//! picture shows the same outline.

mod collector;
mod marks;
#[cfg(test)]
mod tests;
mod track;

pub use collector::Collector;
pub use marks::{Mark, MarkKind};
pub use track::{Bins, Point, Span, Timed};

use crate::event::Side;

/// Points over time of one connection. All lists ascend in time; times are as the events and samples had them.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// First and last moment of any point.
    pub from_ns: u64,
    pub to_ns: u64,
    /// Whether any track was halved: a point may then stand for several.
    pub is_thinned: bool,
    /// By the end that sends: see [`Series::direction`].
    pub directions: [Direction; 2],
    /// By the end whose socket was sampled: see [`Series::socket`].
    pub sockets: [Socket; 2],
    pub marks: Vec<Mark>,
    pub commands: Vec<Timed>,
    /// Commands outstanding.
    pub outstanding: Vec<Point>,
}

impl Series {
    /// The stream that `from` sends.
    pub fn direction(&self, from: Side) -> &Direction {
        &self.directions[from as usize]
    }

    /// What samples of the socket at `end` showed; empty without samples.
    pub fn socket(&self, end: Side) -> &Socket {
        &self.sockets[end as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.from_ns >= self.to_ns
    }

    /// Length of the period in seconds.
    pub fn seconds(&self) -> f64 {
        self.to_ns.saturating_sub(self.from_ns) as f64 / 1e9
    }
}

/// One direction of the stream, as seen at the place of capture. Values are offsets and bytes.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Bytes sent for the first time.
    pub sent: Vec<Span>,
    /// Bytes sent again.
    pub repeated: Vec<Span>,
    /// What the peer has acknowledged.
    pub acknowledged: Vec<Point>,
    /// Offsets at duplicate acknowledgements of the peer.
    pub duplicates: Vec<Point>,
    /// Bytes sent and not acknowledged.
    pub in_flight: Vec<Point>,
    /// The receive window of the peer, where it changes.
    pub window: Vec<Point>,
    /// Nanoseconds between a segment and its acknowledgement, both at the place of capture.
    pub rtt: Vec<Point>,
    /// Payload sent for the first time, by bins of time.
    pub rate: Bins,
}

/// What the kernel said about one socket. Bytes, except `rtt`.
#[derive(Clone, Debug, Default)]
pub struct Socket {
    /// The two parts of the send queue: sent and not acknowledged, written and not sent.
    pub waiting: Vec<Point>,
    pub unsent: Vec<Point>,
    /// Memory of the queue as the kernel counts it, and its cap.
    pub queue: Vec<Point>,
    pub queue_cap: Vec<Point>,
    pub congestion_window: Vec<Point>,
    pub ssthresh: Vec<Point>,
    pub peer_window: Vec<Point>,
    /// Nanoseconds.
    pub rtt: Vec<Point>,
}

impl Socket {
    /// Whether the socket was sampled.
    pub fn is_seen(&self) -> bool {
        !(self.waiting.is_empty() && self.congestion_window.is_empty() && self.queue.is_empty())
    }
}
