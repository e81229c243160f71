//! The layer's endpoint: one thread's requests, and what it reads ahead of them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use area::Span;
use io::{Event, Io, Owner, Token};
use slab::Slab;

use super::super::forward_endpoint;
use super::stream::{Bounds, Found, Streams};
use super::{AGE_MAX, Change, Claim, Shared};
use crate::{Completion, Direction, Endpoint, Kind, Request, RequestId};

const ALL: Range<u64> = 0..u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    Arrived,
    Failed,
}

/// Bytes that are read ahead.
struct Chunk {
    number: u64,
    claim: Claim,
    range: Range<u64>,
    span: Span,
    began: Duration,
    state: State,
    stream: usize,
    /// No further read is answered from it: its reader is past it, or the session was lost.
    is_over: bool,
    /// Reads that wait for it.
    readers: u32,
    used: u64,
}

/// A read that waits for chunks.
struct Reader {
    id: RequestId,
    offset: u64,
    into: Span,
    /// Their numbers, in the order of their bytes.
    chunks: Vec<u64>,
}

/// Meaning of a completion of the storage beneath.
enum Pending {
    Request { id: RequestId, change: Option<Change> },
    Chunk(u64),
}

pub(super) struct Readahead {
    inner: Box<dyn Endpoint>,
    owner: Owner,
    shared: Arc<Shared>,
    streams: Streams,
    chunks: Vec<Chunk>,
    /// Number of the last chunk.
    last: u64,
    readers: Vec<Reader>,
    pending: Slab<Pending>,
    /// Lost sessions and size in bytes when chunks were last known to be good.
    storage: (u64, u64),
    /// When the timer that drops what is too old fires.
    timer: Option<Duration>,
}

impl Chunk {
    fn is_fresh(&self, now: Duration) -> bool {
        now < self.began + AGE_MAX
    }

    /// The bytes from `offset` on that this chunk has, up to `end`: offset in the chunk, and length.
    fn part(&self, offset: u64, end: u64) -> (usize, usize) {
        ((offset - self.range.start) as usize, (end.min(self.range.end) - offset) as usize)
    }
}

impl Readahead {
    pub(super) fn new(owner: Owner, inner: Box<dyn Endpoint>, shared: Arc<Shared>) -> Self {
        Self {
            inner,
            owner,
            shared,
            streams: Streams::default(),
            chunks: Vec::new(),
            last: 0,
            readers: Vec::new(),
            pending: Slab::new(),
            storage: (0, 0),
            timer: None,
        }
    }

    fn bounds(&self) -> Bounds {
        let capability = self.inner.capability();
        Bounds {
            size_bytes: capability.size_bytes,
            path_bytes: self.inner.in_flight(Direction::Read).unwrap_or(0),
            bytes_max: self.shared.bytes_max,
            transfer_bytes_max: capability.max_transfer_bytes.into(),
            granularity: capability.granularity.max(1).into(),
        }
    }

    fn forward(
        &mut self,
        io: &mut Io,
        request: Request,
        change: Option<Change>,
        ended: &mut Vec<Completion>,
    ) {
        let key = self.pending.insert(Pending::Request { id: request.id, change });
        self.inner.submit(io, Request { id: key as u64, kind: request.kind }, ended);
    }

    fn read(
        &mut self,
        io: &mut Io,
        id: RequestId,
        (offset, into): (u64, Span),
        ended: &mut Vec<Completion>,
        done: &mut Vec<Completion>,
    ) {
        let is_on = self.shared.is_asked || self.inner.capability().sole_writer;
        let bounds = self.bounds();
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= bounds.size_bytes);
        let Some(end) = end.filter(|end| is_on && *end > offset) else {
            return self.forward(io, Request { id, kind: Kind::Read { offset, into } }, None, ended);
        };
        let range = offset..end;
        let found = match self.cover(&range, io.now()) {
            Some(chunks) => self.answer(id, (offset, into), &chunks, done),
            None => {
                self.forward(io, Request { id, kind: Kind::Read { offset, into } }, None, ended);
                Found::Nothing
            }
        };
        let (stream, is_other) = self.streams.on_read(&range, found, &bounds, io.now());
        let position = self.streams.position(stream);
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.stream == stream) {
            chunk.is_over |= is_other || chunk.range.end <= position;
        }
        self.sweep(io.now());
        self.read_ahead(io, stream, &bounds, ended);
    }

    /// The chunks, by index, that a read of `range` is answered from; `None` if they do not have all of its bytes.
    fn cover(&self, range: &Range<u64>, now: Duration) -> Option<Vec<usize>> {
        if self.chunks.is_empty() {
            return None;
        }
        let ledger = self.shared.ledger();
        let is_good = |chunk: &Chunk| {
            !chunk.is_over
                && chunk.state != State::Failed
                && chunk.is_fresh(now)
                && ledger.is_valid(chunk.claim.ticket)
        };
        let (mut at, mut cover) = (range.start, Vec::new());
        while at < range.end {
            let has = |chunk: &Chunk| chunk.range.contains(&at) && is_good(chunk);
            let index = self.chunks.iter().position(has)?;
            at = self.chunks[index].range.end;
            cover.push(index);
        }
        Some(cover)
    }

    /// Answers a read from chunks, at once or when the last of them has arrived.
    fn answer(
        &mut self,
        id: RequestId,
        (offset, into): (u64, Span),
        cover: &[usize],
        done: &mut Vec<Completion>,
    ) -> Found {
        let chunks = cover.iter().map(|index| self.chunks[*index].number).collect();
        let reader = Reader { id, offset, into, chunks };
        if cover.iter().all(|index| self.chunks[*index].state == State::Arrived) {
            self.deliver(reader, done);
            return Found::Arrived;
        }
        cover.iter().for_each(|index| self.chunks[*index].readers += 1);
        self.readers.push(reader);
        Found::Coming
    }

    /// Completes a read whose chunks have arrived.
    fn deliver(&mut self, reader: Reader, done: &mut Vec<Completion>) {
        let Reader { id, offset, into, chunks } = reader;
        let (mut at, end) = (offset, offset + into.len() as u64);
        for number in chunks {
            let chunk = self.chunk_mut(number);
            let (start, length) = chunk.part(at, end);
            into.fill((at - offset) as usize, chunk.span.range(start..start + length));
            let used = (length as u64).min(chunk.range.end - chunk.range.start - chunk.used);
            chunk.used += used;
            at += length as u64;
            self.shared.counters.used.fetch_add(used, Ordering::Relaxed);
        }
        done.push(Completion { id, result: Ok(()) });
    }

    fn chunk_mut(&mut self, number: u64) -> &mut Chunk {
        let chunk = self.chunks.iter_mut().find(|chunk| chunk.number == number);
        chunk.expect("a chunk stays while it is read and while readers wait for it")
    }

    /// Begins the reads that the window of `stream` has room for.
    fn read_ahead(&mut self, io: &mut Io, stream: usize, bounds: &Bounds, ended: &mut Vec<Completion>) {
        while let Some(range) = self.streams.next_chunk(stream, bounds) {
            // Without memory, or while a change is in progress, the next read tries again.
            let Some(span) = io.pool().take((range.end - range.start) as usize) else { break };
            let Some(claim) = Claim::new(&self.shared, &range) else { break };
            self.streams.begun(stream, &range);
            self.last += 1;
            let key = self.pending.insert(Pending::Chunk(self.last));
            let kind = Kind::Read { offset: range.start, into: span.clone() };
            self.chunks.push(Chunk {
                number: self.last,
                claim,
                range,
                span,
                began: io.now(),
                state: State::Reading,
                stream,
                is_over: false,
                readers: 0,
                used: 0,
            });
            self.inner.submit(io, Request { id: key as u64, kind }, ended);
        }
    }

    /// Handles completions of the storage beneath, and those that they lead to.
    fn settle(&mut self, io: &mut Io, mut ended: Vec<Completion>, done: &mut Vec<Completion>) {
        while !ended.is_empty() {
            let mut has_chunk = false;
            for Completion { id, result } in std::mem::take(&mut ended) {
                match self.pending.remove(id as usize) {
                    Pending::Request { id, change } => {
                        drop(change);
                        done.push(Completion { id, result });
                    }
                    Pending::Chunk(number) => {
                        has_chunk = true;
                        self.on_chunk(number, result.is_ok());
                    }
                }
            }
            if has_chunk {
                self.serve_readers(io, &mut ended, done);
                self.sweep(io.now());
            }
        }
        self.set_timer(io);
    }

    fn on_chunk(&mut self, number: u64, is_read: bool) {
        let chunk = self.chunk_mut(number);
        chunk.state = if is_read { State::Arrived } else { State::Failed };
        let (stream, bytes) = (chunk.stream, chunk.range.end - chunk.range.start);
        if is_read {
            self.shared.counters.ahead.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.streams.stop(stream);
        }
    }

    /// Completes reads whose chunks have ended. If one of them failed, the read is submitted as it is: its bytes may be
    /// readable, and if not, the error is that of its own bytes.
    fn serve_readers(&mut self, io: &mut Io, ended: &mut Vec<Completion>, done: &mut Vec<Completion>) {
        for reader in std::mem::take(&mut self.readers) {
            let states: Vec<State> =
                reader.chunks.iter().map(|number| self.chunk_mut(*number).state).collect();
            if states.contains(&State::Reading) {
                self.readers.push(reader);
                continue;
            }
            reader.chunks.iter().for_each(|number| self.chunk_mut(*number).readers -= 1);
            if states.contains(&State::Failed) {
                let Reader { id, offset, into, .. } = reader;
                self.forward(io, Request { id, kind: Kind::Read { offset, into } }, None, ended);
            } else {
                self.deliver(reader, done);
            }
        }
    }

    /// Drops the chunks that are of no more use.
    fn sweep(&mut self, now: Duration) {
        if self.chunks.is_empty() {
            return;
        }
        let ledger = self.shared.ledger();
        let is_dropped = |chunk: &mut Chunk| {
            let is_needed = chunk.state == State::Reading || chunk.readers > 0;
            let is_good = !chunk.is_over
                && chunk.state == State::Arrived
                && chunk.is_fresh(now)
                && ledger.is_valid(chunk.claim.ticket);
            !is_needed && !is_good
        };
        let dropped: Vec<Chunk> = self.chunks.extract_if(.., is_dropped).collect();
        // The end of a claim locks it.
        drop(ledger);
        for chunk in dropped {
            if !chunk.is_over && !chunk.is_fresh(now) {
                self.streams.stop(chunk.stream);
            }
            if chunk.state == State::Arrived {
                let unused = chunk.range.end - chunk.range.start - chunk.used;
                self.shared.counters.dropped.fetch_add(unused, Ordering::Relaxed);
            }
        }
    }

    /// Drops everything after a lost session, which may have lost writes, and if the storage has another size.
    fn check_storage(&mut self) {
        let storage = (self.inner.inspect().losses(), self.inner.capability().size_bytes);
        if std::mem::replace(&mut self.storage, storage) != storage {
            self.chunks.iter_mut().for_each(|chunk| chunk.is_over = true);
            self.streams.stop_all();
        }
    }

    /// A timer for the oldest chunk, if there is none yet.
    fn set_timer(&mut self, io: &mut Io) {
        if self.timer.is_some() {
            return;
        }
        let arrived = self.chunks.iter().filter(|chunk| chunk.state != State::Reading);
        if let Some(began) = arrived.map(|chunk| chunk.began).min() {
            let at = (began + AGE_MAX).max(io.now());
            io.timer(Token { owner: self.owner, key: 0 }, at);
            self.timer = Some(at);
        }
    }
}

impl Endpoint for Readahead {
    forward_endpoint!();

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        self.check_storage();
        let mut ended = Vec::new();
        match request.kind {
            Kind::Read { offset, into } => self.read(io, request.id, (offset, into), &mut ended, done),
            ref kind => {
                let range =
                    kind.range().map_or(ALL, |(offset, length)| offset..offset.saturating_add(length));
                let change = Change::new(&self.shared, &range);
                self.forward(io, request, Some(change), &mut ended);
            }
        }
        self.settle(io, ended, done);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        let mut ended = Vec::new();
        if event.token.owner == self.owner {
            self.timer = None;
            self.sweep(io.now());
        } else {
            self.inner.on_event(io, event, &mut ended);
            self.check_storage();
        }
        self.settle(io, ended, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
        self.inner.owners(owners);
    }
}
