//! The work of a client: requests of one pattern, each reported to the history.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use area::{PoolLimits, Span};
use block::{Completion, Endpoint, IoErrorKind, Kind, Medium, Request, wait_ready};
use io::Io;
use node::initiator::IscsiMedium;
use torture::Client as ClientId;
use torture::history::{OperationId, Outcome, Value};
use torture::stamp::Stamp;

use super::clients::Board;
use crate::disk::SECTOR;
use crate::random::Random;
use crate::world::Context;

const LENGTH_MAX: u64 = 24;
/// Number of requests that a client makes with short pauses.
const REQUESTS_AT_ONCE: u32 = 80;
const DEPTH_MAX: u64 = 6;

/// A pattern of requests. The content of the target's cache at a power cut depends on the patterns of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// All kinds of requests at all times.
    Mixed,
    /// Data is written durably: the cache contains only zeroes and discards.
    Zeroes,
    /// A flush with a few concurrent requests, then a pause: data that the flush did not cover stays in the cache.
    Bursts,
}

struct Pending {
    operation: OperationId,
    what: What,
}

enum What {
    Read { first: u64, into: Span },
    Write { durable: bool },
    Flush,
}

pub(super) struct Worker {
    context: Context,
    board: Arc<Board>,
    process: ClientId,
    sectors: Range<u64>,
    random: Random,
    pattern: Pattern,
    depth: u64,
    made: u32,
    rest: Duration,
    in_flight: Vec<Option<Pending>>,
}

impl Worker {
    pub(super) fn new(
        context: Context,
        board: Arc<Board>,
        process: ClientId,
        sectors: Range<u64>,
        mut random: Random,
    ) -> Self {
        let pattern = random.pick(&[Pattern::Mixed, Pattern::Mixed, Pattern::Zeroes, Pattern::Bursts]);
        let depth = random.within(if pattern == Pattern::Bursts { 2..5 } else { 1..DEPTH_MAX + 1 });
        let (made, rest, in_flight) = (0, Duration::ZERO, Vec::new());
        Self { context, board, process, sectors, random, pattern, depth, made, rest, in_flight }
    }

    pub(super) fn run(mut self, medium: &IscsiMedium) {
        // An attempt fails when the target does not answer, or when the process is killed; in the latter case its clock
        // stops.
        for _ in 0..100 {
            let Ok(mut io) = Io::new(PoolLimits { bytes_max: 64 << 20 }) else { return };
            let Ok(mut endpoint) = medium.attach(&mut io) else { return };
            if wait_ready(&mut io, &mut [&mut *endpoint]).is_ok() {
                let ended = self.serve(&mut io, &mut *endpoint);
                self.context.count(|counters| counters.retries += endpoint.inspect().retries());
                if ended.is_some() {
                    block::close_all(&mut io, &mut [&mut *endpoint]);
                    return;
                }
            }
            self.abandon();
            let until = io.now() + Duration::from_millis(self.random.magnitude(1..2000));
            while io.now() < until {
                if io.turn_until(Some(until), &mut Vec::new()).is_err() {
                    return;
                }
            }
        }
    }

    /// Makes requests until the board's `finish`, then flushes and reads everything. `None`: the loop has failed, or
    /// the endpoint refuses everything.
    fn serve(&mut self, io: &mut Io, endpoint: &mut dyn Endpoint) -> Option<()> {
        let mut refused = 0;
        while !self.board.finish.load(Ordering::Relaxed) {
            // Short pauses at first; later long ones, enough to have requests in flight when faults occur.
            let pause = if self.made < REQUESTS_AT_ONCE { 1..200_000 } else { 50_000..4_000_000 };
            let pause = Duration::from_micros(self.random.magnitude(pause));
            let until = io.now() + pause;
            for number in 0..self.requests_now(io.now(), until) {
                let first = number == 0 && self.pattern == Pattern::Bursts;
                let discards = endpoint.capability().discard;
                let request = if first { self.flush() } else { self.choose(io, discards)? };
                refused += self.submit(io, endpoint, request);
            }
            refused = if refused > 50 { return None } else { refused };
            self.turn(io, endpoint, Some(until))?;
        }
        while self.busy() > 0 {
            self.turn(io, endpoint, None)?;
        }
        let flush = self.flush();
        self.submit(io, endpoint, flush);
        let mut first = self.sectors.start;
        while first < self.sectors.end {
            let count = LENGTH_MAX.min(self.sectors.end - first);
            while self.busy() >= self.depth {
                self.turn(io, endpoint, None)?;
            }
            let read = self.read(io, first, count)?;
            self.submit(io, endpoint, read);
            first += count;
        }
        while self.busy() > 0 {
            self.turn(io, endpoint, None)?;
        }
        Some(())
    }

    fn busy(&self) -> u64 {
        self.in_flight.iter().flatten().count() as u64
    }

    fn requests_now(&mut self, now: Duration, until: Duration) -> u64 {
        if self.pattern == Pattern::Bursts {
            if self.busy() > 0 || now < self.rest {
                return 0;
            }
            self.rest = until;
            return self.depth;
        }
        let odds = if self.made < REQUESTS_AT_ONCE { 4 } else { 2 };
        let room = self.depth - self.busy();
        (0..room).take_while(|_| !self.random.one_in(odds)).count() as u64
    }

    fn flush(&self) -> (Kind, Pending) {
        let operation = self.board.operation();
        self.board.history().flush(operation, self.process);
        (Kind::Flush, Pending { operation, what: What::Flush })
    }

    fn read(&self, io: &Io, first: u64, count: u64) -> Option<(Kind, Pending)> {
        let into = io.pool().take(count as usize * SECTOR)?;
        let operation = self.board.operation();
        self.board.history().read(operation, self.process, first..first + count);
        let what = What::Read { first, into: into.clone() };
        Some((Kind::Read { offset: first * SECTOR as u64, into }, Pending { operation, what }))
    }

    fn choose(&mut self, io: &Io, discards: bool) -> Option<(Kind, Pending)> {
        let first = self.random.within(self.sectors.clone());
        let most = LENGTH_MAX.min(self.sectors.end - first);
        let count = self.random.within(1..most + 1);
        // Out of twenty: reads up to the first number, then flushes, zeroes, durable writes, and ordinary writes for
        // the rest.
        let [flushes, zeroes, durable, written] = match self.pattern {
            Pattern::Mixed => [8, 10, 12, 14],
            Pattern::Zeroes => [7, 8, 13, 20],
            Pattern::Bursts => [4, 4, 6, 6],
        };
        let kind = self.random.within(0..20);
        if kind < flushes {
            return self.read(io, first, count);
        }
        if kind < zeroes {
            return Some(self.flush());
        }
        let operation = self.board.operation();
        let (zeroes, durable) = (kind < durable, (durable..written).contains(&kind));
        let is_long = self.board.long_zeroes && zeroes && self.random.one_in(4);
        let count = if is_long { self.sectors.end - first } else { count };
        let (offset, length) = (first * SECTOR as u64, count * SECTOR as u64);
        let stamp = Stamp { sequence: operation, writer: self.process };
        let (kind, value) = if zeroes {
            let may_unmap = self.random.one_in(2);
            let discard = discards && self.random.one_in(2);
            let zero = Kind::WriteZeroes { offset, length, may_unmap };
            (if discard { Kind::Discard { offset, length } } else { zero }, Value::Zero)
        } else {
            let from = io.pool().take(length as usize)?;
            let mut bytes = vec![0; length as usize];
            self.board.stamper.fill(first, stamp, &mut bytes);
            from.fill(0, &bytes);
            (Kind::Write { offset, from, durable }, Value::Stamp(stamp))
        };
        let kept = durable || self.board.write_through;
        self.board.history().write(operation, self.process, first..first + count, value, kept);
        Some((kind, Pending { operation, what: What::Write { durable } }))
    }

    /// Submits a request; returns the number of immediate refusals.
    fn submit(&mut self, io: &mut Io, endpoint: &mut dyn Endpoint, (kind, pending): (Kind, Pending)) -> u32 {
        let slot = self.in_flight.iter().position(Option::is_none).unwrap_or_else(|| {
            self.in_flight.push(None);
            self.in_flight.len() - 1
        });
        self.in_flight[slot] = Some(pending);
        self.made += 1;
        self.context.count(|counters| counters.requests += 1);
        let mut done = Vec::new();
        endpoint.submit(io, Request { id: slot as u64, kind }, &mut done);
        let refused = done.iter().filter(|completion| completion.result.is_err()).count() as u32;
        self.completed(done);
        refused
    }

    fn turn(&mut self, io: &mut Io, endpoint: &mut dyn Endpoint, until: Option<Duration>) -> Option<()> {
        let (mut events, mut done) = (Vec::new(), Vec::new());
        io.turn_until(until, &mut events).ok()?;
        for event in events {
            endpoint.on_event(io, event, &mut done);
        }
        self.completed(done);
        Some(())
    }

    fn completed(&mut self, done: Vec<Completion>) {
        for Completion { id, result } in done {
            let Pending { operation, what } = self.in_flight[id as usize].take().expect("completed once");
            if let Err(error) = result {
                self.context.note(&error.text, &[self.process.into()]);
                self.context.count(|counters| counters.failures += 1);
                let lost = error.kind == IoErrorKind::CacheLost;
                self.context.count(|counters| counters.losses_told += u64::from(lost));
                let outcome = if lost { Outcome::CacheLost } else { Outcome::Unknown };
                self.board.history().complete(operation, outcome);
                continue;
            }
            if let What::Read { first, into } = what {
                if let Err(text) = self.board.judge(operation, first, into.as_slice()) {
                    self.context.fail(format!("client {}: {text}", self.process));
                }
                self.context.count(|counters| counters.sectors_checked += (into.len() / SECTOR) as u64);
                continue;
            }
            self.context.count(|counters| match what {
                What::Write { durable } => counters.durable_writes += u64::from(durable),
                _ => counters.flushes += 1,
            });
            self.board.history().complete(operation, Outcome::Done);
        }
    }

    /// Reports the requests in flight to the history as unknown.
    fn abandon(&mut self) {
        for Pending { operation, .. } in self.in_flight.drain(..).flatten() {
            self.board.history().complete(operation, Outcome::Unknown);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.abandon();
    }
}
