//! Requests in flight at one endpoint, and the clock, for copies with a stream at the other end.

use std::time::Duration;

use area::Span;
use block::{Completion, Endpoint, IoError, Kind};
use io::{Io, Owner, Token};

use super::no_memory;
use crate::copy::Report;
use crate::driver::Driver;
use crate::error::{CopyError, End};
use crate::limit::Blocked;
use crate::meter::Meter;
use crate::progress::{Done, Phase};
use crate::rate::{RateLimit, Throttle};
use crate::watch::{Observer, Wait, Watch};

/// Id of the request of [`Pump::single`]; no flight has this number.
const SINGLE: u64 = u64::MAX;
/// Key of the rate's timer; the stream's waker has key 0.
const TIMER: u32 = 1;

pub(super) struct Flight {
    /// Offset in the endpoint, in bytes.
    pub(super) offset: u64,
    pub(super) span: Span,
    /// Zeroes without data.
    pub(super) named: bool,
}

pub(super) struct Pump<'a> {
    pub(super) driver: Driver<'a, 1>,
    pub(super) watch: Watch<'a>,
    which: End,
    /// Owner of the stream's waker and of the timer.
    owner: Owner,
    flights: Vec<Option<(Duration, Flight)>>,
    throttle: Option<Throttle>,
    pub(super) failure: Option<CopyError>,
    pub(super) bytes: u64,
    /// Bytes in total; 0 if unknown.
    total: u64,
    meter: Meter,
    depth_max: usize,
    begun: usize,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        io: &'a mut Io,
        end: &'a mut dyn Endpoint,
        which: End,
        owner: Owner,
        (phase, total): (Phase, u64),
        rate: &RateLimit,
        observer: Observer<'a>,
    ) -> Result<Self, CopyError> {
        let mut pump = Self {
            driver: Driver::new(io, [end]),
            watch: Watch::new(observer),
            which,
            owner,
            flights: Vec::new(),
            throttle: None,
            failure: None,
            bytes: 0,
            total,
            meter: Meter::new(),
            depth_max: 0,
            begun: 0,
        };
        pump.step(Wait::LOOK)?;
        let token = Token { owner, key: TIMER };
        pump.throttle = Some(Throttle::new(rate.clone(), pump.watch.seen(), token));
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

    /// Records an error; the first one is kept.
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
        self.driver.submit(0, index as u64, kind);
    }

    pub(super) fn completed(&mut self) -> Option<(Flight, Result<(), IoError>)> {
        let (_, Completion { id, result }) = self.driver.completed()?;
        let (since, flight) = self.flights[id as usize].take().expect("each request completes once");
        if result.is_ok() && !flight.named {
            self.meter.add(flight.span.len() as u64, self.watch.seen().saturating_sub(since));
        }
        Some((flight, result))
    }

    /// Submits one request while no other is in flight, and waits for its result.
    pub(super) fn single(&mut self, kind: Kind) -> Result<Result<(), IoError>, CopyError> {
        assert!(self.in_flight() == 0 && self.driver.is_quiet());
        self.driver.submit(0, SINGLE, kind);
        let mut waiting = [0, 0];
        waiting[self.which.index()] = 1;
        loop {
            if let Some((_, completion)) = self.driver.completed() {
                return Ok(completion.result);
            }
            self.turn(waiting, None)?;
        }
    }

    /// Whether the rate admits a chunk; if not, a timer is set.
    pub(super) fn may_begin(&mut self) -> bool {
        let now = self.watch.seen();
        self.throttle.as_mut().is_none_or(|throttle| throttle.admits(self.driver.io, now))
    }

    pub(super) fn charge(&mut self, bytes: u64) {
        if let Some(throttle) = &mut self.throttle {
            throttle.charge(self.watch.seen(), bytes);
        }
    }

    /// Waits until memory is returned, if a chunk in flight can return some.
    pub(super) fn wait_for_memory(&mut self, may_come: bool, waiting: [usize; 2]) -> Result<(), CopyError> {
        if may_come { self.turn(waiting, Some(Blocked::Memory)) } else { Err(no_memory()) }
    }

    /// Runs the loop without waiting after every `depth` requests: endpoints that complete inside `submit` must not
    /// prevent turns of the loop and its clock.
    pub(super) fn look_now_and_then(&mut self, depth: usize) -> Result<(), CopyError> {
        self.begun += 1;
        if self.begun < depth { Ok(()) } else { self.step(Wait::LOOK) }
    }

    /// Waits until an event arrives or the observer is due. `waiting`: chunks at the source and at the destination.
    pub(super) fn turn(&mut self, waiting: [usize; 2], blocked: Option<Blocked>) -> Result<(), CopyError> {
        // A request that completed inside `submit` is processed first.
        self.step(Wait { at: waiting, blocked, look: !self.driver.is_quiet() })
    }

    fn step(&mut self, wait: Wait) -> Result<(), CopyError> {
        self.begun = 0;
        let Self { driver, watch, throttle, owner, .. } = self;
        let turned = driver.turn(
            |io, events| watch.turn(io, wait, events),
            Some(*owner),
            |event| {
                if event.token.key == TIMER
                    && let Some(throttle) = throttle
                {
                    throttle.on_timer();
                }
            },
        );
        turned.map_err(CopyError::Loop)?;
        if self.watch.is_due() {
            self.observe();
        }
        Ok(())
    }

    fn observe(&mut self) {
        let done = Done { bytes: self.bytes, data_bytes: self.bytes, hole_bytes_left: 0 };
        let rate = self.throttle.as_ref().and_then(Throttle::rate);
        self.watch.observe(done, self.driver.retries(), self.in_flight() as u32, rate);
    }

    /// The report of the endpoint's part; the caller adds that of the stream.
    pub(super) fn report(&self, bytes: u64, flush: Duration, chunk: usize) -> Report {
        let side = self.meter.side(self.watch.busy()[self.which.index()]);
        Report {
            bytes,
            data_bytes: bytes,
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
            yielded: None,
            retries: self.driver.retries(),
            copied_again: false,
            source_changed: false,
            claims: 0,
            unreadable_bytes: 0,
            unreadable_areas: 0,
            unreadable: Vec::new(),
        }
    }
}
