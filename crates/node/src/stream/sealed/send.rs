//! Records out: units are sealed on their way into areas of their own, when their first piece leaves.

use std::time::Duration;

use area::{Pool, Span};
use io::Outgoing;
use iscsi::machine::{Fatal, Machine, Payload, TaskId, Transmit};
use seal::{Broken, Descriptor, Kind, Opener, Renewal, Sealer};
use zeroize::Zeroizing;

use super::prepared::Prepared;
use super::{SEND_BYTES_MAX, broken, seal_unit, take_runs};

/// The rest of a unit whose first pieces have left.
struct Tail {
    /// Where it goes on in the task's buffer.
    at: usize,
    sealed: Span,
    generation: u16,
}

/// A PDU that the machine has handed out and that waits for memory, with what it needs: its task may end meanwhile.
struct Stalled {
    transmit: Transmit,
    buffer: Option<Span>,
    tail: Option<Tail>,
}

/// What is on its way out.
pub(in crate::stream) struct Send {
    sealer: Sealer,
    renewal: Renewal,
    unit: usize,
    /// Records after which an initiator offers an exchange, and those since; 0 for never.
    #[cfg(test)]
    pub(in crate::stream) renew_every: (u32, u32),
    /// By task.
    tails: Vec<Option<Tail>>,
    /// By task: what is sealed of its transfer.
    prepared: Vec<Prepared>,
    stalled: Option<Stalled>,
    /// Of the record being made.
    descriptors: Vec<Descriptor>,
    head: Vec<u8>,
    text: Vec<u8>,
    runs: Vec<Span>,
}

/// There is no memory for a record now.
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

    /// Seals one more unit of a transfer that nobody has asked for yet; `plain` is all of it. False: nothing is left to
    /// seal, or no memory.
    pub(in crate::stream) fn seal_ahead(
        &mut self,
        pool: &Pool,
        plain: &Span,
        prepared: &mut Prepared,
    ) -> bool {
        prepared.seal_next(&mut self.sealer, pool, self.unit, plain)
    }

    /// What was sealed ahead is what `task` will send: from its first byte on, and its buffer holds the same bytes.
    pub(in crate::stream) fn adopt(&mut self, task: TaskId, prepared: Prepared) {
        *self.prepared_of(task) = prepared;
    }

    /// Seals one more unit of what `task` will send, which is all of `plain`: its buffer, whose bytes stay as they are until it
    /// ends. False: nothing is left to seal, or no memory.
    pub(in crate::stream) fn seal_task_ahead(&mut self, pool: &Pool, plain: &Span, task: TaskId) -> bool {
        self.prepared_of(task);
        let Self { prepared, sealer, unit, .. } = self;
        prepared[task.index()].seal_next(sealer, pool, *unit, plain)
    }

    /// Bytes of what `task` sends that are sealed, sent or not.
    pub(in crate::stream) fn sealed_bytes(&self, task: TaskId) -> usize {
        self.prepared.get(task.index()).map_or(0, Prepared::bytes)
    }

    /// Bytes of all tasks that are sealed and wait for their records.
    pub(in crate::stream) fn waiting_bytes(&self) -> usize {
        self.prepared.iter().map(Prepared::waiting).sum()
    }

    fn prepared_of(&mut self, task: TaskId) -> &mut Prepared {
        if self.prepared.len() <= task.index() {
            self.prepared.resize_with(task.index() + 1, Prepared::default);
        }
        &mut self.prepared[task.index()]
    }

    /// Whether a PDU waits for memory.
    pub(in crate::stream) fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// Takes a control record that has been opened; `now`, here and below, is the age of the channel.
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

    /// When an exchange is due though nothing is sent or received.
    pub(super) fn due_at(&self) -> Option<Duration> {
        self.renewal.due_at(&self.sealer)
    }

    #[cfg(test)]
    pub(in crate::stream) fn generation(&self) -> u16 {
        self.sealer.generation()
    }

    /// Adds what the machine has to send, until there are `bytes` of payload or no memory for more.
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

    /// The next PDU, and the buffer of its task.
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

    /// Whether the receiver may forget the generation before: no rest of a unit of it is still to be sent.
    fn may_renew(&self) -> bool {
        let stalled = self.stalled.as_ref().and_then(|stalled| stalled.tail.as_ref());
        let mut tails = self.tails.iter().flatten().chain(stalled);
        tails.all(|tail| tail.generation == self.sealer.generation())
    }

    /// Adds a control record: an initiator's offer, a target's answer.
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

    /// Adds one record; returns the bytes of its body.
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

    /// Adds a record with `range` of a task's buffer, which sends up to `end` of it in all.
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
        // Units that begin here are sealed whole, beyond what this PDU takes of the last one.
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
                return Err(Fatal::Protocol("asked for data in the middle of a unit"));
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

    /// Takes the `bytes` that were sealed ahead into this record: each unit's bytes and generation.
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

    /// Seals what lies at `at` of a buffer into `run`, in units.
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

    /// Adds as much of sealed bytes as is `left` of the segment, keeps the rest; returns what was added.
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
