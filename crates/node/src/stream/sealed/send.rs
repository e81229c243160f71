//! Sending records: a unit is sealed whole, into an area of its own, when its first part is sent.

use std::time::Duration;

use area::{Pool, Span};
use io::Outgoing;
use iscsi::machine::{Fatal, Machine, Payload, TaskId, Transmit};
use seal::{Broken, Descriptor, Kind, Opener, Renewal, Sealer};
use zeroize::Zeroizing;

use super::prepared::Prepared;
use super::{SEND_BYTES_MAX, broken, seal_unit, take_runs};

/// The rest of a unit whose first parts were sent.
struct Tail {
    /// Its offset in the task's buffer.
    at: usize,
    sealed: Span,
    generation: u16,
}

/// A PDU of the machine that waits for memory, with the buffer and tail of its task, which may end meanwhile.
struct Stalled {
    transmit: Transmit,
    buffer: Option<Span>,
    tail: Option<Tail>,
}

pub(crate) struct Send {
    sealer: Sealer,
    renewal: Renewal,
    unit: usize,
    /// Records after which an initiator offers an exchange (0: never), and the records since the last one.
    #[cfg(test)]
    pub(in crate::stream) renew_every: (u32, u32),
    /// Indexed by task.
    tails: Vec<Option<Tail>>,
    /// Indexed by task: the units of its transfer sealed ahead.
    prepared: Vec<Prepared>,
    stalled: Option<Stalled>,
    descriptors: Vec<Descriptor>,
    head: Vec<u8>,
    text: Vec<u8>,
    runs: Vec<Span>,
}

struct NoMemory;

impl Send {
    pub(super) fn new(sealer: Sealer, renewal: Renewal, unit: usize) -> Self {
        Self {
            sealer,
            renewal,
            unit,
            #[cfg(test)]
            renew_every: (0, 0),
            tails: Vec::new(),
            prepared: Vec::new(),
            stalled: None,
            descriptors: Vec::with_capacity(seal::DESCRIPTORS_MAX),
            head: Vec::new(),
            text: Vec::new(),
            runs: Vec::new(),
        }
    }

    pub(super) fn end_task(&mut self, task: TaskId) {
        if let Some(tail) = self.tails.get_mut(task.index()) {
            *tail = None;
        }
        if let Some(prepared) = self.prepared.get_mut(task.index()) {
            *prepared = Prepared::default();
        }
    }

    /// Seals one more unit of `plain`, a transfer whose command has not arrived. False: none left, no memory.
    pub(crate) fn seal_ahead(&mut self, pool: &Pool, plain: &Span, prepared: &mut Prepared) -> bool {
        prepared.seal_next(&mut self.sealer, pool, self.unit, plain)
    }

    /// Assigns the units sealed ahead to `task`, whose transfer must consist of the same bytes from its first byte on.
    pub(crate) fn adopt(&mut self, task: TaskId, prepared: Prepared) {
        *self.prepared_of(task) = prepared;
    }

    /// Seals one more unit of the transfer of `task`, which is all of `plain`: its buffer, which must stay unchanged
    /// until the task ends. False: nothing is left to seal, or no memory.
    pub(crate) fn seal_task_ahead(&mut self, pool: &Pool, plain: &Span, task: TaskId) -> bool {
        self.prepared_of(task);
        let Self { prepared, sealer, unit, .. } = self;
        prepared[task.index()].seal_next(sealer, pool, *unit, plain)
    }

    /// Bytes of the transfer of `task` that are sealed, sent or not.
    pub(crate) fn sealed_bytes(&self, task: TaskId) -> usize {
        self.prepared.get(task.index()).map_or(0, Prepared::bytes)
    }

    /// Bytes of all tasks that are sealed and not sent.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.prepared.iter().map(Prepared::waiting).sum()
    }

    fn prepared_of(&mut self, task: TaskId) -> &mut Prepared {
        if self.prepared.len() <= task.index() {
            self.prepared.resize_with(task.index() + 1, Prepared::default);
        }
        &mut self.prepared[task.index()]
    }

    pub(in crate::stream) fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// Processes an opened control record; `now`, here and below, is the age of the channel.
    pub(super) fn on_control(
        &mut self,
        kind: Kind,
        message: &[u8],
        opener: &mut Opener,
        now: Duration,
    ) -> Result<(), Broken> {
        self.renewal.open(kind, message, &mut self.sealer, opener, now)?;
        tracing::debug!(record = ?kind, generation = opener.generation(), "an exchange of fresh keys goes on");
        Ok(())
    }

    /// When an exchange is due without any send or receive.
    pub(super) fn due_at(&self) -> Option<Duration> {
        self.renewal.due_at(&self.sealer)
    }

    #[cfg(test)]
    pub(in crate::stream) fn generation(&self) -> u16 {
        self.sealer.generation()
    }

    /// Appends PDUs of the machine, until `bytes` of payload are gathered or memory runs out.
    #[expect(clippy::too_many_arguments, reason = "the parts of one connection")]
    pub(super) fn gather(
        &mut self,
        pool: &Pool,
        now: Duration,
        opener: &mut Opener,
        outgoing: &mut Outgoing,
        machine: &mut impl Machine,
        bytes: usize,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Result<(), Fatal> {
        let mut payload = 0;
        while !outgoing.is_full() && payload < bytes.min(SEND_BYTES_MAX) {
            if self.is_due(opener, now) && self.may_renew() {
                self.renew(opener, outgoing, now)?;
                continue;
            }
            let Some((transmit, buffer)) = self.next(machine, &buffer_of) else { break };
            if self.sealer.is_overdue() {
                return Err(Fatal::Protocol(
                    "no fresh keys were agreed on, and the old ones have reached their limit",
                ));
            }
            match self.append(pool, now, outgoing, &transmit, buffer.as_ref())? {
                Ok(length) => payload += length,
                Err(NoMemory) => {
                    let tail = self.take_tail(&transmit.payload);
                    self.stalled = Some(Stalled { transmit, buffer, tail });
                    break;
                }
            }
        }
        Ok(())
    }

    fn next(
        &mut self,
        machine: &mut impl Machine,
        buffer_of: impl Fn(TaskId) -> Option<Span>,
    ) -> Option<(Transmit, Option<Span>)> {
        if let Some(Stalled { transmit, buffer, tail }) = self.stalled.take() {
            if let (Payload::Task { task, .. }, Some(tail)) = (&transmit.payload, tail) {
                self.tails[task.index()] = Some(tail);
            }
            return Some((transmit, buffer));
        }
        let transmit = machine.poll_transmit()?;
        let buffer = match &transmit.payload {
            Payload::Task { task, .. } => buffer_of(*task),
            _ => None,
        };
        Some((transmit, buffer))
    }

    fn take_tail(&mut self, payload: &Payload) -> Option<Tail> {
        let Payload::Task { task, .. } = payload else { return None };
        self.tails.get_mut(task.index()).and_then(Option::take)
    }

    /// Whether the receiver may drop the previous generation: no rest of a unit of that generation is still to be sent.
    fn may_renew(&self) -> bool {
        let stalled = self.stalled.as_ref().and_then(|stalled| stalled.tail.as_ref());
        let mut tails = self.tails.iter().flatten().chain(stalled);
        tails.all(|tail| tail.generation == self.sealer.generation())
    }

    fn renew(&mut self, opener: &mut Opener, outgoing: &mut Outgoing, now: Duration) -> Result<(), Fatal> {
        let mut entropy = Zeroizing::new([0; seal::RENEWAL_ENTROPY_BYTES]);
        io::entropy(entropy.as_mut_slice())
            .map_err(|error| Fatal::Protection(format!("no randomness for fresh keys: {error}")))?;
        self.head.clear();
        let Self { renewal, sealer, head, .. } = self;
        renewal.seal(sealer, opener, &entropy, now, head).map_err(broken)?;
        outgoing.bytes(&self.head);
        #[cfg(test)]
        {
            self.renew_every.1 = 0;
        }
        Ok(())
    }

    #[cfg(not(test))]
    fn is_due(&self, opener: &Opener, now: Duration) -> bool {
        self.renewal.is_due(&self.sealer, opener, now)
    }

    #[cfg(test)]
    fn is_due(&mut self, opener: &Opener, now: Duration) -> bool {
        let (every, records) = &mut self.renew_every;
        *records += 1;
        let is_time = *every > 0 && *records >= *every && self.renewal.is_ready();
        is_time || self.renewal.is_due(&self.sealer, opener, now)
    }

    /// Appends one record; returns the bytes of its body.
    fn append(
        &mut self,
        pool: &Pool,
        now: Duration,
        outgoing: &mut Outgoing,
        transmit: &Transmit,
        buffer: Option<&Span>,
    ) -> Result<Result<usize, NoMemory>, Fatal> {
        self.descriptors.clear();
        match &transmit.payload {
            Payload::None => {
                self.seal_head(outgoing, transmit);
                Ok(Ok(0))
            }
            Payload::Bytes(bytes) => {
                assert!(bytes.len() <= seal::SEGMENT_UNIT_BYTES_MAX, "{} bytes of text", bytes.len());
                let mut text = std::mem::take(&mut self.text);
                text.clone_from(bytes);
                self.descriptors.push(self.sealer.seal_in_place(&mut text));
                self.seal_head(outgoing, transmit);
                outgoing.bytes(&text);
                self.text = text;
                Ok(Ok(bytes.len()))
            }
            Payload::Task { task, offset, length, end } => {
                let buffer = buffer.expect("a task that sends has a buffer");
                let (offset, end) = (*offset as usize, *end as usize);
                self.append_data(
                    pool,
                    now,
                    outgoing,
                    transmit,
                    *task,
                    buffer,
                    offset..offset + *length as usize,
                    end,
                )
            }
        }
    }

    /// Appends a record with `range` of a task's buffer; the task's transfer ends at `end`.
    #[expect(clippy::too_many_arguments, reason = "the parts of one PDU")]
    fn append_data(
        &mut self,
        pool: &Pool,
        now: Duration,
        outgoing: &mut Outgoing,
        transmit: &Transmit,
        task: TaskId,
        buffer: &Span,
        range: std::ops::Range<usize>,
        end: usize,
    ) -> Result<Result<usize, NoMemory>, Fatal> {
        // Units that start in this range are sealed whole, beyond the part of the last one that this PDU sends.
        let begin = range.start.next_multiple_of(self.unit).min(end);
        let sealed_to = range.end.next_multiple_of(self.unit).min(end).max(begin);
        self.prepared_of(task);
        let Self { sealer, prepared, unit, .. } = self;
        let ready =
            prepared[task.index()].usable(|unit| sealer.carries(unit, now), *unit, (begin, sealed_to, end));
        let mut runs = std::mem::take(&mut self.runs);
        if take_runs(pool, self.unit, sealed_to - begin - ready, &mut runs).is_none() {
            self.runs = runs;
            return Ok(Err(NoMemory));
        }
        let mut rest = None;
        if range.start < begin {
            rest = self.take_tail(&transmit.payload).filter(|tail| tail.at == range.start);
            if rest.is_none() {
                return Err(Fatal::Protocol("a request for data from the middle of a unit"));
            }
        }
        let ahead = self.take_ahead(task, ready);
        let mut at = begin + ready;
        for run in &runs {
            if self.seal_units(buffer, at, run).is_err() {
                return Err(Fatal::Protocol("the file behind the unit cannot be read: has it shrunk?"));
            }
            at += run.len();
        }
        self.prepared[task.index()].on_sealed(sealed_to);
        self.seal_head(outgoing, transmit);
        let mut left = range.len();
        if let Some(Tail { at, sealed, generation }) = rest {
            let count = self.send_part(outgoing, task, at, &sealed, generation, left);
            left -= count;
        }
        let fresh = self.sealer.generation();
        let mut at = begin;
        for (run, generation) in ahead.into_iter().chain(runs.drain(..).map(|run| (run, fresh))) {
            left -= self.send_part(outgoing, task, at, &run, generation, left);
            at += run.len();
        }
        debug_assert_eq!(left, 0, "all of the segment was sealed");
        self.runs = runs;
        Ok(Ok(range.len()))
    }

    /// Takes `bytes` bytes sealed ahead into this record: the bytes and the generation of each unit.
    fn take_ahead(&mut self, task: TaskId, bytes: usize) -> Vec<(Span, u16)> {
        let mut ahead = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let (descriptor, sealed) = self.prepared[task.index()].take().expect("counted before");
            left -= sealed.len();
            self.descriptors.push(descriptor);
            ahead.push((sealed, descriptor.generation()));
        }
        ahead
    }

    fn seal_units(&mut self, buffer: &Span, at: usize, run: &Span) -> std::io::Result<()> {
        for start in (0..run.len()).step_by(self.unit) {
            let length = self.unit.min(run.len() - start);
            let plain = buffer.slice(at + start, length);
            let Self { sealer, .. } = self;
            let descriptor = run.change(start, length, |sealed| seal_unit(sealer, &plain, sealed))?;
            self.descriptors.push(descriptor);
        }
        Ok(())
    }

    /// Appends at most the `left` bytes of the segment, keeps the rest as tail; returns the count appended.
    fn send_part(
        &mut self,
        outgoing: &mut Outgoing,
        task: TaskId,
        at: usize,
        sealed: &Span,
        generation: u16,
        left: usize,
    ) -> usize {
        let count = sealed.len().min(left);
        if count > 0 {
            outgoing.span(sealed.slice(0, count));
        }
        if count < sealed.len() {
            if self.tails.len() <= task.index() {
                self.tails.resize_with(task.index() + 1, || None);
            }
            let sealed = sealed.slice(count, sealed.len() - count);
            self.tails[task.index()] = Some(Tail { at: at + count, sealed, generation });
        }
        count
    }

    fn seal_head(&mut self, outgoing: &mut Outgoing, transmit: &Transmit) {
        debug_assert!(!transmit.digests.header && !transmit.digests.data, "a sealed session has no digests");
        self.head.clear();
        self.sealer.seal_head(&transmit.header, &self.descriptors, &mut self.head);
        outgoing.bytes(&self.head);
    }
}
