//! Counters of a phase.

use std::time::Duration;

use crate::latency::{Histogram, Latency};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Side {
    pub ops: u64,
    pub bytes: u64,
    pub latency: Latency,
    /// Seconds with at least one request in flight.
    pub busy_seconds: f64,
}

#[derive(Debug)]
pub(crate) struct Meter {
    ops: u64,
    bytes: u64,
    latency: Histogram,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { ops: 0, bytes: 0, latency: Histogram::new() }
    }

    pub(crate) fn add(&mut self, bytes: u64, latency: Duration) {
        self.ops += 1;
        self.bytes += bytes;
        self.latency.add(latency);
    }

    /// The result; `busy`: time with at least one request in flight.
    pub(crate) fn side(&self, busy: Duration) -> Side {
        Side {
            ops: self.ops,
            bytes: self.bytes,
            latency: self.latency.summary(),
            busy_seconds: busy.as_secs_f64(),
        }
    }
}
