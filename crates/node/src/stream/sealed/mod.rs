//! A sealed connection (docs/SEAL.md, sections 5 and 6): records instead of PDUs, in both directions.
//!
//! A received unit is opened in place when its last byte has arrived. A unit to be sent is sealed from the task's
//! buffer into an area of its own, so that the buffer stays unchanged. Keys and cryptography are in the crate `seal`;
//! this module divides data into units, by the Buffer Offset alone.

use std::time::Duration;

use area::{Pool, Span};
use io::Outgoing;
use iscsi::machine::{Fatal, Machine, TaskId};
use seal::{Broken, Channel, Descriptor, Sealer};

use super::buffer::Buffer;
use crate::reassembly::Advance;

mod prepared;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod track;

pub(crate) use prepared::Prepared;
pub use receive::Receive;
pub(crate) use send::Send;

/// Sealed bytes per area: a power of two, and small relative to the cache.
const RUN_BYTES: usize = 256 << 10;

/// Bytes of a data segment, unless a unit is longer.
const SEGMENT_BYTES: u32 = 128 << 10;
/// Payload sealed for one send: half of a usual L2 cache, so that the data is still cached when the socket copies it.
const SEND_BYTES_MAX: usize = 512 << 10;

pub(super) struct Sealed {
    pub(super) receive: Receive,
    pub(super) send: Send,
    /// When the channel was created; its times are relative to this.
    began: Duration,
}

impl Sealed {
    /// Takes over a connection whose next byte, in either direction, belongs to a record; `unit` is in bytes.
    pub(super) fn new(channel: Channel, unit: u32, buffer: Buffer, now: Duration) -> Self {
        let unit = unit as usize;
        assert!(unit.is_power_of_two(), "a unit of {unit} bytes was agreed on");
        Self {
            receive: Receive::new(channel.opener, unit, buffer),
            send: Send::new(channel.sealer, channel.renewal, unit),
            began: now,
        }
    }

    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began)
    }

    /// Processes at most one step of one record. A control record produces no event for the machine.
    pub(super) fn advance(
        &mut self,
        machine: &mut impl Machine,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
        now: Duration,
    ) -> Result<Advance, Fatal> {
        let advance = self.receive.advance(machine, buffer_of, now)?;
        let age = self.age(now);
        if let Some((kind, message, opener)) = self.receive.control() {
            self.send.on_control(kind, message, opener, age).map_err(broken)?;
        }
        Ok(advance)
    }

    pub(super) fn gather(
        &mut self,
        pool: &Pool,
        now: Duration,
        outgoing: &mut Outgoing,
        machine: &mut impl Machine,
        bytes: usize,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<(), Fatal> {
        let age = self.age(now);
        self.send.gather(pool, age, self.receive.opener(), outgoing, machine, bytes, buffer_of)
    }

    pub(super) fn retire(&mut self, now: Duration) {
        let age = self.age(now);
        self.receive.opener().retire(age);
    }

    /// When keys must be renewed or wiped without any send or receive.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.send.due_at().into_iter().chain(self.receive.retire_at()).min().map(|at| self.began + at)
    }

    pub(super) fn end_task(&mut self, task: TaskId) {
        self.send.end_task(task);
        self.receive.end_task(task);
    }
}

/// Bound of a data segment of a sealed session, in bytes: what one head can describe, and short enough that its first
/// units are still cached when the last one is sealed.
pub(crate) fn segment_max(unit: u32) -> u32 {
    unit.saturating_mul(seal::DESCRIPTORS_MAX as u32).min(unit.max(SEGMENT_BYTES))
}

/// The error for every defect of received records: the same for all, to give no information to an attacker.
fn broken(_: Broken) -> Fatal {
    Fatal::Protocol("the seal is broken: not what the peer sent, or not the peer")
}

/// Seals `plain` into bytes of the same length. A steady buffer is sealed in one pass. Borrowed bytes of storage are
/// first fetched into `sealed` and sealed there, in the cache: another session may write them meanwhile, and a cipher
/// that reads a byte twice would make ciphertext and tag from different values. Errors are those of [`Span::fetch`].
fn seal_unit(sealer: &mut Sealer, plain: &Span, sealed: &mut [u8]) -> std::io::Result<Descriptor> {
    if let Some(plain) = plain.steady() {
        return Ok(sealer.seal_into(plain, sealed));
    }
    plain.fetch(0, sealed)?;
    Ok(sealer.seal_in_place(sealed))
}

/// Areas for `bytes` bytes that start on a unit boundary, each for whole units; `None`: no memory now.
fn take_runs(pool: &Pool, unit: usize, bytes: usize, runs: &mut Vec<Span>) -> Option<()> {
    debug_assert!(runs.is_empty());
    let run = unit.max(RUN_BYTES);
    for start in (0..bytes).step_by(run) {
        let Some(span) = pool.take(run.min(bytes - start)) else {
            runs.clear();
            return None;
        };
        runs.push(span);
    }
    Some(())
}
