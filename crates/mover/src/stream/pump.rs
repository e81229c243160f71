//! Requests in flight at one endpoint, and the clock, for copies whose other end is a stream.

use std::time::Duration;

use area::Span;
use block::{Completion, Endpoint, IoError, Kind, Request, Router};
use io::{Event, Io, Owner, Token};

use super::no_memory;
use crate::copy::Report;
use crate::engine::{Observer, Side};
use crate::error::{CopyError, End};
use crate::latency::Histogram;
use crate::limit::{Blocked, Occupancy};
use crate::progress::{Control, OBSERVE_EVERY, Phase, Progress, Speed, eta};
use crate::rate::Bucket;

/// One request of a [`Pump::single`]; no flight has this number.
const SINGLE: u64 = u64::MAX;

/// A request in flight.
pub(super) struct Flight {
    /// Byte offset in the endpoint.
    pub(super) offset: u64,
    /// Its bytes.
    pub(super) span: Span,
    /// Zeroes named, not moved.
    pub(super) named: bool,
}

pub(super) struct Pump<'a> {
    pub(super) io: &'a mut Io,
    pub(super) end: &'a mut dyn Endpoint,
    pub(super) observer: Observer<'a>,
    which: End,
    /// Of the stream's bell and of the timer.
    owner: Owner,
    router: Router<()>,
    done: Vec<Completion>,
    events: Vec<Event>,
    flights: Vec<Option<(Duration, Flight)>>,
    bucket: Option<Bucket>,
    timer_is_set: bool,
    pub(super) failure: Option<CopyError>,
    pub(super) stopped: bool,
    phase: Phase,
    /// Bytes done.
    pub(super) bytes: u64,
    /// Bytes there are; 0 where nobody knows.
    total: u64,
    ops: u64,
    moved: u64,
    latency: Histogram,
    busy: Duration,
    depth_max: usize,
    begun: usize,
    occupancy: Occupancy,
    window: Occupancy,
    speed: Speed,
    retries_before: u64,
    started: Duration,
    observe_at: Duration,
    /// Loop time of the last turn.
    pub(super) seen: Duration,
    /// The wall clock when the last turn returned.
    woke: Duration,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        io: &'a mut Io,
        end: &'a mut dyn Endpoint,
        which: End,
        owner: Owner,
        (phase, total): (Phase, u64),
        rate: Option<u64>,
        observer: Observer<'a>,
    ) -> Result<Self, CopyError> {
        let mut router = Router::new();
        router.add_endpoint(end, ());
        let retries_before = end.retries();
        let mut pump = Self {
            io,
            end,
            observer,
            which,
            owner,
            router,
            done: Vec::new(),
            events: Vec::new(),
            flights: Vec::new(),
            bucket: None,
            timer_is_set: false,
            failure: None,
            stopped: false,
            phase,
            bytes: 0,
            total,
            ops: 0,
            moved: 0,
            latency: Histogram::new(),
            busy: Duration::ZERO,
            depth_max: 0,
            begun: 0,
            occupancy: Occupancy::default(),
            window: Occupancy::default(),
            speed: Speed::default(),
            retries_before,
            started: Duration::ZERO,
            observe_at: Duration::MAX,
            seen: Duration::ZERO,
            woke: Duration::ZERO,
        };
        // The loop's clock may be as old as the loop.
        pump.step(Duration::ZERO, [0, 0], None)?;
        pump.bucket = rate.map(|rate| Bucket::new(rate, pump.seen));
        pump.started = pump.seen;
        pump.occupancy = Occupancy::default();
        pump.enter(phase);
        Ok(pump)
    }

    pub(super) fn enter(&mut self, phase: Phase) {
        if phase == Phase::Flush {
            self.observe();
        }
        self.phase = phase;
        self.window = Occupancy::default();
        self.speed.start(self.seen, self.bytes);
        self.observe_at = self.seen + OBSERVE_EVERY;
    }

    /// The first error counts.
    pub(super) fn fail(&mut self, error: CopyError) {
        self.failure.get_or_insert(error);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.iter().flatten().count()
    }

    pub(super) fn submit(&mut self, kind: Kind, flight: Flight) {
        let index = self.flights.iter().position(Option::is_none).unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[index] = Some((self.seen, flight));
        self.depth_max = self.depth_max.max(self.in_flight());
        self.end.submit(self.io, Request { id: index as u64, kind }, &mut self.done);
    }

    /// A request that has ended, and how.
    pub(super) fn completed(&mut self) -> Option<(Flight, Result<(), IoError>)> {
        let Completion { id, result } = self.done.pop()?;
        let (since, flight) = self.flights[id as usize].take().expect("each request completes once");
        if result.is_ok() && !flight.named {
            self.ops += 1;
            self.moved += flight.span.len() as u64;
            self.latency.add(self.seen.saturating_sub(since));
        }
        Some((flight, result))
    }

    /// Makes one request while nothing else is in flight.
    pub(super) fn single(&mut self, kind: Kind) -> Result<Result<(), IoError>, CopyError> {
        assert!(self.in_flight() == 0 && self.done.is_empty());
        self.end.submit(self.io, Request { id: SINGLE, kind }, &mut self.done);
        let mut waiting = [0, 0];
        waiting[self.which.index()] = 1;
        while self.done.is_empty() {
            self.turn(waiting, None)?;
        }
        Ok(self.done.remove(0).result)
    }

    /// Whether the rate allows a chunk; if not, a timer says when.
    pub(super) fn may_begin(&mut self) -> bool {
        let Some(Err(at)) = self.bucket.as_ref().map(|bucket| bucket.ready(self.seen)) else { return true };
        if !self.timer_is_set {
            self.io.timer(Token { owner: self.owner, key: 1 }, at);
            self.timer_is_set = true;
        }
        false
    }

    pub(super) fn charge(&mut self, bytes: u64) {
        if let Some(bucket) = &mut self.bucket {
            bucket.charge(self.seen, bytes);
        }
    }

    /// Waits until memory comes back, if there is a chunk that may give some.
    pub(super) fn wait_for_memory(&mut self, may_come: bool, waiting: [usize; 2]) -> Result<(), CopyError> {
        if may_come { self.turn(waiting, Some(Blocked::Memory)) } else { Err(no_memory()) }
    }

    /// What completes inside `submit` must not keep the loop from the kernel and the clock.
    pub(super) fn look_now_and_then(&mut self, depth: usize) -> Result<(), CopyError> {
        self.begun += 1;
        if self.begun < depth { Ok(()) } else { self.step(Duration::ZERO, [0, 0], None) }
    }

    /// Waits until something happens or the observer is due. `waiting` are chunks at the source and at the destination.
    pub(super) fn turn(&mut self, waiting: [usize; 2], blocked: Option<Blocked>) -> Result<(), CopyError> {
        // A request that ended inside `submit` is looked at first.
        let until = if self.done.is_empty() { self.observe_at } else { Duration::ZERO };
        self.step(until, waiting, blocked)
    }

    fn step(
        &mut self,
        until: Duration,
        waiting: [usize; 2],
        blocked: Option<Blocked>,
    ) -> Result<(), CopyError> {
        self.begun = 0;
        let awake = self.io.clock().saturating_sub(self.woke);
        let mut events = std::mem::take(&mut self.events);
        let turned = self.io.turn_until(Some(until), &mut events);
        self.woke = self.io.clock();
        let passed = self.io.now().saturating_sub(self.seen);
        self.seen = self.io.now();
        let awake = if until.is_zero() { passed } else { awake.min(passed) };
        for occupancy in [&mut self.occupancy, &mut self.window] {
            occupancy.add(awake, passed - awake, waiting, blocked);
        }
        if waiting[self.which.index()] > 0 {
            self.busy += passed;
        }
        for event in events.drain(..) {
            self.on_event(event);
        }
        self.events = events;
        turned.map_err(CopyError::Loop)?;
        if self.seen >= self.observe_at {
            self.observe();
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) {
        if event.token.owner == self.owner {
            self.timer_is_set &= event.token.key != 1;
            return;
        }
        if self.router.route(event.token.owner).is_none() {
            // An endpoint that connected anew may have new owners.
            self.router.add_endpoint(&*self.end, ());
        }
        if self.router.route(event.token.owner).is_some() {
            self.end.on_event(self.io, event, &mut self.done);
        }
    }

    fn observe(&mut self) {
        let rate_now = self.speed.sample(self.seen, self.bytes);
        let (bytes, total) = if self.phase == Phase::Flush { (0, 0) } else { (self.bytes, self.total) };
        let progress = Progress {
            phase: self.phase,
            bytes,
            total,
            rate_now,
            eta: eta(total.saturating_sub(bytes), rate_now).filter(|_| total > 0),
            retries: self.end.retries() - self.retries_before,
            limited_by: self.window.limit(),
            depth: self.in_flight() as u32,
        };
        self.window = Occupancy::default();
        self.observe_at = self.seen + OBSERVE_EVERY;
        if (self.observer)(&progress) == Control::Stop {
            self.stopped = true;
        }
    }

    /// What it was like; the caller adds what it knows of the stream.
    pub(super) fn report(&self, bytes: u64, flush: Duration, chunk: usize) -> Report {
        let side = Side {
            ops: self.ops,
            bytes: self.moved,
            latency: self.latency.summary(),
            busy_seconds: self.busy.as_secs_f64(),
        };
        Report {
            bytes,
            resumed_bytes: 0,
            skipped_bytes: 0,
            equal_bytes: 0,
            compared_bytes: 0,
            seconds: (self.seen - self.started).as_secs_f64(),
            chunks: self.ops,
            read: side,
            write: side,
            flush_seconds: flush.as_secs_f64(),
            zero_bytes_skipped: 0,
            verified: false,
            verify_seconds: 0.0,
            blake3: None,
            depth_max: self.depth_max as u32,
            chunk: chunk as u32,
            limited_by: self.occupancy.limit(),
            shares: self.occupancy.shares(),
            rate_waits: 0,
            retries: self.end.retries() - self.retries_before,
            copied_again: false,
            source_changed: false,
            claims: 0,
            unreadable_bytes: 0,
            unreadable_areas: 0,
            unreadable: Vec::new(),
        }
    }
}
