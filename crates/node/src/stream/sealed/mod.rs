//! A sealed connection (docs/SEAL.md, sections 5 and 6): records instead of PDUs, in both directions.
//!
//! What arrives is opened where it lies, as soon as the last byte of a unit is there; what is sent is sealed on its way from
//! the task's buffer into an area of its own, so that the buffer stays as it is. The keys and the arithmetic are `seal`'s; which
//! bytes are a unit is decided here, by the Buffer Offset alone.

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
pub(super) use send::Send;

/// Sealed bytes of one area: a power of two, and small beside the cache.
const RUN_BYTES: usize = 256 << 10;

/// Bytes of a data segment, where a unit is not longer.
const SEGMENT_BYTES: u32 = 128 << 10;
/// Payload sealed for one send: half of a usual L2 cache, so that the socket finds it there.
const SEND_BYTES_MAX: usize = 512 << 10;

/// Both directions.
pub(super) struct Sealed {
    pub(super) receive: Receive,
    pub(super) send: Send,
    /// When the channel was made: its times count from there.
    began: Duration,
}

impl Sealed {
    /// Goes on with a connection whose next byte, in either direction, belongs to a record. `unit` is the agreed size in bytes.
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

    /// Goes on with the bytes that are here, one step of one record. A control record is no event for the machine.
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

    /// Adds what the machine has to send, and control records between its PDUs.
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

    /// Wipes keys whose time is over.
    pub(super) fn retire(&mut self, now: Duration) {
        let age = self.age(now);
        self.receive.opener().retire(age);
    }

    /// When keys are to be renewed or wiped though nothing is sent or received.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.send.due_at().into_iter().chain(self.receive.retire_at()).min().map(|at| self.began + at)
    }

    /// A task has ended: what is left of its units is of no use.
    pub(super) fn end_task(&mut self, task: TaskId) {
        self.send.end_task(task);
        self.receive.end_task(task);
    }
}

/// The longest data segment that a sealed session is to have, bytes: what one head can describe, and not so much that the
/// units behind it have left the cache when the last of them is sealed.
pub(crate) fn segment_max(unit: u32) -> u32 {
    unit.saturating_mul(seal::DESCRIPTORS_MAX as u32).min(unit.max(SEGMENT_BYTES))
}

/// The one end of everything that is wrong with what came. It tells nothing, to anyone.
fn broken(_: Broken) -> Fatal {
    Fatal::Protocol("the seal is broken: not what the peer sent, or not the peer")
}

/// Seals `plain` into bytes of the same length: in one pass from a buffer of ours. What belongs to storage is first fetched, and
/// sealed where it then lies, in the cache: another session may write it meanwhile, and a cipher that reads a byte twice would
/// make ciphertext and tag of two different ones. Errors are those of [`Span::fetch`].
fn seal_unit(sealer: &mut Sealer, plain: &Span, sealed: &mut [u8]) -> std::io::Result<Descriptor> {
    if let Some(plain) = plain.steady() {
        return Ok(sealer.seal_into(plain, sealed));
    }
    plain.fetch(0, sealed)?;
    Ok(sealer.seal_in_place(sealed))
}

/// Areas for `bytes` that begin with a unit, each for whole units; `None` when the pool has not enough now.
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
