//! What protects a connection's bytes, in both directions: the one place that knows all kinds.

use std::time::Duration;

use area::{Pool, Span};
use block::Looks;
use io::{Io, Outgoing};
use iscsi::machine::{Fatal, Machine, TaskId};
use seal::Channel;

use super::plain;
use super::sealed::{Prepared, Sealed};
use super::tls::{self, Tls, TlsError};
use crate::reassembly::{Advance, Reassembly};

/// Between the socket and the PDUs.
pub(super) enum Protection {
    /// PDUs as they are.
    Plain(Reassembly),
    /// Records of SEAL/1.
    Sealed(Box<Sealed>),
    /// The same inside TLS.
    Tls(Box<Tls>, Reassembly),
}

impl Protection {
    /// A connection begins without. `None` when the pool has no memory for a stream buffer.
    pub(super) fn none(pool: &Pool) -> Option<Self> {
        Some(Self::Plain(Reassembly::new(pool)?))
    }

    /// TLS from the first byte. `None` when the pool has no memory for its buffers.
    pub(super) fn tls(end: tls::End, pool: &Pool) -> Option<Self> {
        Some(Self::Tls(Box::new(Tls::new(end, pool)?), Reassembly::new(pool)?))
    }

    /// Payload bytes so far that had to be copied into their place.
    pub(super) fn copied(&self) -> u64 {
        match self {
            Self::Plain(reassembly) | Self::Tls(_, reassembly) => reassembly.copied(),
            Self::Sealed(sealed) => sealed.receive.copied(),
        }
    }

    /// Where the next bytes of the socket belong, in this order. One of them at least is there.
    pub(super) fn places(&mut self, pool: &Pool, now: Duration) -> (Option<Span>, Option<Span>) {
        match self {
            Self::Plain(reassembly) => {
                let (place, room) = reassembly.places(pool, now);
                (place, Some(room))
            }
            Self::Sealed(sealed) => sealed.receive.places(pool, now),
            Self::Tls(tls, _) => (None, Some(tls.room(pool, now))),
        }
    }

    /// Takes the `count` bytes that were received into the places.
    pub(super) fn on_received(&mut self, count: usize) {
        match self {
            Self::Plain(reassembly) => reassembly.on_received(count),
            Self::Sealed(sealed) => sealed.receive.on_received(count),
            Self::Tls(tls, _) => tls.on_received(count),
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
            Self::Sealed(sealed) => sealed.advance(machine, buffer_of, io.now()),
            Self::Tls(tls, reassembly) => loop {
                match reassembly.advance(machine, &buffer_of, io.now())? {
                    Advance::Starved if tls.feed(reassembly, io.pool(), io.now())? => {}
                    advance => return Ok(advance),
                }
            },
        }
    }

    /// Adds what the machine has to send, until there are `bytes` of payload.
    pub(super) fn gather(
        &mut self,
        io: &Io,
        outgoing: &mut Outgoing,
        machine: &mut impl Machine,
        bytes: usize,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<(), Fatal> {
        match self {
            Self::Plain(_) => {
                plain::gather(outgoing, machine, bytes, &buffer_of);
                Ok(())
            }
            Self::Sealed(sealed) => sealed.gather(io.pool(), io.now(), outgoing, machine, bytes, buffer_of),
            Self::Tls(tls, _) => {
                // One gathering at a time bounds what is queued.
                if tls.queue.is_empty() {
                    plain::gather(&mut tls.queue, machine, bytes, &buffer_of);
                }
                Ok(tls.seal(outgoing, io.pool())?)
            }
        }
    }

    /// Wipes keys whose time is over.
    pub(super) fn retire(&mut self, now: Duration) {
        if let Self::Sealed(sealed) = self {
            sealed.retire(now);
        }
    }

    /// When to send though the machine has nothing to: keys are to be renewed or wiped.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        match self {
            Self::Plain(_) | Self::Tls(..) => None,
            Self::Sealed(sealed) => sealed.wake_at(),
        }
    }

    /// Whether a PDU that the machine has handed out waits for memory.
    pub(super) fn is_stalled(&self) -> bool {
        match self {
            Self::Plain(_) | Self::Tls(..) => false,
            Self::Sealed(sealed) => sealed.send.is_stalled(),
        }
    }

    /// Whether all data of a task that has arrived is what the peer sent.
    pub(super) fn is_whole(&self, task: TaskId) -> bool {
        match self {
            Self::Plain(_) | Self::Tls(..) => true,
            Self::Sealed(sealed) => sealed.receive.is_whole(task),
        }
    }

    /// A task has ended.
    pub(super) fn end_task(&mut self, task: TaskId) {
        match self {
            Self::Plain(_) | Self::Tls(..) => {}
            Self::Sealed(sealed) => sealed.end_task(task),
        }
    }

    /// Seals one more unit of a transfer that nobody has asked for yet; only what is sealed has such units.
    pub(super) fn seal_ahead(&mut self, pool: &Pool, plain: &Span, prepared: &mut Prepared) -> bool {
        match self {
            Self::Sealed(sealed) => sealed.send.seal_ahead(pool, plain, prepared),
            _ => false,
        }
    }

    /// Seals one more unit of `plain`, which `task` will send.
    pub(super) fn seal_task_ahead(&mut self, pool: &Pool, plain: &Span, task: TaskId) -> bool {
        match self {
            Self::Sealed(sealed) => sealed.send.seal_task_ahead(pool, plain, task),
            _ => false,
        }
    }

    /// Bytes of what `task` sends that are sealed, sent or not.
    pub(super) fn sealed_bytes(&self, task: TaskId) -> usize {
        match self {
            Self::Sealed(sealed) => sealed.send.sealed_bytes(task),
            _ => 0,
        }
    }

    /// Bytes that are sealed ahead and wait for their records.
    pub(super) fn waiting_bytes(&self) -> usize {
        match self {
            Self::Sealed(sealed) => sealed.send.waiting_bytes(),
            _ => 0,
        }
    }

    /// What was sealed ahead is what `task` will send.
    pub(super) fn adopt(&mut self, task: TaskId, prepared: Prepared) {
        if let Self::Sealed(sealed) = self {
            sealed.send.adopt(task, prepared);
        }
    }

    /// From here on, both directions carry records. Between two PDUs, with nothing gathered.
    pub(super) fn seal(&mut self, channel: Channel, unit: u32, now: Duration) {
        match self {
            Self::Plain(reassembly) => {
                let sealed = Sealed::new(channel, unit, reassembly.hand_over(), now);
                *self = Self::Sealed(Box::new(sealed));
            }
            Self::Sealed(_) | Self::Tls(..) => {
                unreachable!("a connection is sealed once, and not inside TLS")
            }
        }
    }

    /// How TLS seals.
    pub(super) fn tls_suite(&self) -> Option<&'static str> {
        match self {
            Self::Tls(tls, _) => tls.suite(),
            Self::Plain(_) | Self::Sealed(_) => None,
        }
    }

    /// Who looks at payload on its way out, while it may change: a record of SEAL/1 is made of it in one pass, which reads
    /// each byte once; rustls seals a copy of its own.
    pub(super) fn looks(&self) -> Looks {
        match self {
            Self::Plain(_) => Looks::Kernel,
            Self::Sealed(_) | Self::Tls(..) => Looks::Process,
        }
    }

    /// Nothing that was gathered waits for another gathering.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Sealed(sealed) => !sealed.send.is_stalled(),
            Self::Tls(tls, _) => tls.is_drained(),
        }
    }

    /// Where the stream has ended: why that is not the end the peer meant.
    pub(super) fn cut_short(&self) -> Option<&'static str> {
        match self {
            Self::Plain(_) | Self::Sealed(_) => None,
            Self::Tls(tls, _) => tls.cut_short(),
        }
    }

    /// The last bytes to send.
    pub(super) fn farewell(&mut self) -> Vec<u8> {
        match self {
            Self::Plain(_) | Self::Sealed(_) => Vec::new(),
            Self::Tls(tls, _) => tls.farewell(),
        }
    }
}

impl From<TlsError> for Fatal {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Untrusted(_) => Self::Untrusted(error.to_string()),
            _ => Self::Protection(error.to_string()),
        }
    }
}
