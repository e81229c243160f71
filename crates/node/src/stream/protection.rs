//! What protects a connection's bytes, in both directions: the one place that knows all kinds.

use std::time::Duration;

use area::{Pool, Span};
use io::{Io, Outgoing};
use iscsi::machine::{Fatal, Machine, TaskId};

use super::plain;
use crate::reassembly::{Advance, Reassembly};

/// Between the socket and the PDUs.
pub(super) enum Protection {
    /// PDUs as they are.
    Plain(Reassembly),
}

impl Protection {
    /// A connection begins without. `None` when the pool has no memory for a stream buffer.
    pub(super) fn none(pool: &Pool) -> Option<Self> {
        Some(Self::Plain(Reassembly::new(pool)?))
    }

    /// Payload bytes so far that had to be copied into their place.
    pub(super) fn copied(&self) -> u64 {
        match self {
            Self::Plain(reassembly) => reassembly.copied(),
        }
    }

    /// Where the next bytes of the socket belong, in this order. Never empty.
    pub(super) fn places(&mut self, pool: &Pool, now: Duration) -> (Option<Span>, Span) {
        match self {
            Self::Plain(reassembly) => reassembly.places(pool, now),
        }
    }

    /// Takes the `count` bytes that were received into the places.
    pub(super) fn on_received(&mut self, count: usize) {
        match self {
            Self::Plain(reassembly) => reassembly.on_received(count),
        }
    }

    /// Goes on with the bytes that are here, one step of one PDU.
    pub(super) fn advance(
        &mut self,
        io: &Io,
        machine: &mut impl Machine,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<Advance, Fatal> {
        match self {
            Self::Plain(reassembly) => reassembly.advance(machine, buffer_of, io.now()),
        }
    }

    /// Adds what the machine has to send, until there are `bytes` of payload.
    pub(super) fn gather(
        &mut self,
        _io: &Io,
        outgoing: &mut Outgoing,
        machine: &mut impl Machine,
        bytes: usize,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<(), Fatal> {
        match self {
            Self::Plain(_) => plain::gather(outgoing, machine, bytes, &buffer_of),
        }
        Ok(())
    }
}
