//! Requests in flight at one endpoint, and the clock, for copies whose other end is a stream.

use std::time::Duration;

use area::Span;
use block::{Completion, Endpoint, IoError, Kind, Request, Router};
use io::{Event, Io, Owner, Token};

use super::no_memory;
use crate::copy::Report;
use crate::error::{CopyError, End};
use crate::limit::Blocked;
use crate::meter::Meter;
use crate::progress::Phase;
use crate::rate::Throttle;
use crate::watch::{Observer, Wait, Watch};

/// One request of a [`Pump::single`]; no flight has this number.
const SINGLE: u64 = u64::MAX;
/// Key of the rate's timer; the stream's bell has 0.
const TIMER: u32 = 1;

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
    pub(super) watch: Watch<'a>,
    which: End,
    /// Of the stream's bell and of the timer.
    owner: Owner,
    router: Router<()>,
    done: Vec<Completion>,
    events: Vec<Event>,
    flights: Vec<Option<(Duration, Flight)>>,
    throttle: Option<Throttle>,
    pub(super) failure: Option<CopyError>,
    /// Bytes done.
    pub(super) bytes: u64,
    /// Bytes there are; 0 where nobody knows.
    total: u64,
    meter: Meter,
    depth_max: usize,
    begun: usize,
    retries_before: u64,
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
            watch: Watch::new(observer),
            which,
            owner,
            router,
            done: Vec::new(),
            events: Vec::new(),
            flights: Vec::new(),
            throttle: None,
            failure: None,
            bytes: 0,
            total,
            meter: Meter::new(),
            depth_max: 0,
            begun: 0,
            retries_before,
        };
        pump.step(Wait::LOOK)?;
        let token = Token { owner, key: TIMER };
        pump.throttle = rate.map(|rate| Throttle::new(rate, pump.watch.seen(), token));
        pump.watch.begin();
        pump.enter(phase);
        Ok(pump)
    }

    pub(super) fn enter(&mut self, phase: Phase) {
        if phase == Phase::Flush {
            self.observe();
        }
        self.watch.enter(phase, self.bytes, self.total);
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
        self.flights[index] = Some((self.watch.seen(), flight));
        self.depth_max = self.depth_max.max(self.in_flight());
        self.end.submit(self.io, Request { id: index as u64, kind }, &mut self.done);
    }

    /// A request that has ended, and how.
    pub(super) fn completed(&mut self) -> Option<(Flight, Result<(), IoError>)> {
        let Completion { id, result } = self.done.pop()?;
        let (since, flight) = self.flights[id as usize].take().expect("each request completes once");
        if result.is_ok() && !flight.named {
            self.meter.add(flight.span.len() as u64, self.watch.seen().saturating_sub(since));
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
        let now = self.watch.seen();
        self.throttle.as_mut().is_none_or(|throttle| throttle.admits(self.io, now))
    }

    pub(super) fn charge(&mut self, bytes: u64) {
        if let Some(throttle) = &mut self.throttle {
            throttle.charge(self.watch.seen(), bytes);
        }
    }

    /// Waits until memory comes back, if there is a chunk that may give some.
    pub(super) fn wait_for_memory(&mut self, may_come: bool, waiting: [usize; 2]) -> Result<(), CopyError> {
        if may_come { self.turn(waiting, Some(Blocked::Memory)) } else { Err(no_memory()) }
    }

    /// What completes inside `submit` must not keep the loop from the kernel and the clock.
    pub(super) fn look_now_and_then(&mut self, depth: usize) -> Result<(), CopyError> {
        self.begun += 1;
        if self.begun < depth { Ok(()) } else { self.step(Wait::LOOK) }
    }

    /// Waits until something happens or the observer is due. `waiting` are chunks at the source and at the destination.
    pub(super) fn turn(&mut self, waiting: [usize; 2], blocked: Option<Blocked>) -> Result<(), CopyError> {
        // A request that ended inside `submit` is looked at first.
        self.step(Wait { at: waiting, blocked, look: !self.done.is_empty() })
    }

    fn step(&mut self, wait: Wait) -> Result<(), CopyError> {
        self.begun = 0;
        let mut events = std::mem::take(&mut self.events);
        let turned = self.watch.turn(self.io, wait, &mut events);
        for event in events.drain(..) {
            self.on_event(event);
        }
        self.events = events;
        turned.map_err(CopyError::Loop)?;
        if self.watch.is_due() {
            self.observe();
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) {
        if event.token.owner == self.owner {
            if event.token.key == TIMER
                && let Some(throttle) = &mut self.throttle
            {
                throttle.on_timer();
            }
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
        self.watch.observe(self.bytes, self.retries(), self.in_flight() as u32);
    }

    fn retries(&self) -> u64 {
        self.end.retries() - self.retries_before
    }

    /// What it was like; the caller adds what it knows of the stream.
    pub(super) fn report(&self, bytes: u64, flush: Duration, chunk: usize) -> Report {
        let side = self.meter.side(self.watch.busy()[self.which.index()]);
        Report {
            bytes,
            resumed_bytes: 0,
            skipped_bytes: 0,
            equal_bytes: 0,
            compared_bytes: 0,
            seconds: self.watch.duration().as_secs_f64(),
            chunks: side.ops,
            read: side,
            write: side,
            flush_seconds: flush.as_secs_f64(),
            zero_bytes_skipped: 0,
            verified: false,
            verify_seconds: 0.0,
            blake3: None,
            sums: None,
            depth_max: self.depth_max as u32,
            chunk: chunk as u32,
            limited_by: self.watch.limit(),
            shares: self.watch.shares(),
            rate_waits: self.throttle.as_ref().map_or(0, |throttle| throttle.waits),
            retries: self.retries(),
            copied_again: false,
            source_changed: false,
            claims: 0,
            unreadable_bytes: 0,
            unreadable_areas: 0,
            unreadable: Vec::new(),
        }
    }
}
