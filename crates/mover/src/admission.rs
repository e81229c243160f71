//! Admission of a new run: by depth, rate and memory.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use area::Span;
use io::{Io, Token};
use tracing::debug;

use crate::depth::Depth;
use crate::error::CopyError;
use crate::limit::Blocked;
use crate::rate::{RateLimit, Throttle};
use crate::regulator::Window;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Areas per chunk.
    pub(crate) spans: usize,
    pub(crate) depth_max: usize,
    /// Runs may be made smaller when memory is short.
    pub(crate) shrinks: bool,
    /// What other programs leave of a shared disk.
    pub(crate) window: Option<Window>,
}

#[derive(Debug)]
pub(crate) enum Admitted {
    /// Start a run in these areas.
    Now(Vec<Span>),
    /// Retry after a turn of the loop.
    After(Pause),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pause {
    /// The resource that prevents a new run; `None` if the depth does.
    pub(crate) blocked: Option<Blocked>,
    /// The turn must not wait.
    pub(crate) look: bool,
}

#[derive(Debug)]
pub(crate) struct Admission {
    depth: Depth,
    throttle: Option<Throttle>,
    /// Bytes of a chunk. Halved, in whole units, when memory is short.
    chunk: u32,
    unit: u32,
    /// Runs admitted since the last turn.
    begun: usize,
}

impl Admission {
    /// No rate limit until [`Admission::set_rate`].
    pub(crate) fn new(depth: Depth, chunk: u32, unit: u32) -> Self {
        Self { depth, throttle: None, chunk, unit, begun: 0 }
    }

    /// From `now` on, reading follows `limit`. `token` is for the event of the rate's timer.
    pub(crate) fn set_rate(&mut self, limit: RateLimit, now: Duration, token: Token) {
        self.throttle = Some(Throttle::new(limit, now, token));
    }

    /// The bound of the read rate at present.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.throttle.as_ref().and_then(Throttle::rate)
    }

    pub(crate) fn chunk(&self) -> u32 {
        self.chunk
    }

    pub(crate) fn begin(&mut self, chunk: u32) {
        self.chunk = chunk;
        self.depth.disturbed();
        if let Some(throttle) = &mut self.throttle {
            throttle.waits = 0;
        }
    }

    /// Whether a run may start while `in_flight` others are in flight. If admitted, the caller must start it at once.
    pub(crate) fn admit(
        &mut self,
        io: &mut Io,
        now: Duration,
        in_flight: usize,
        needs: Needs,
    ) -> Result<Admitted, CopyError> {
        let after = |blocked, look| Ok(Admitted::After(Pause { blocked, look }));
        if in_flight >= self.depth.limit().min(needs.depth_max) {
            return after(None, false);
        }
        if needs.window.is_some_and(|window| in_flight >= window.depth) {
            return after(Some(Blocked::Impact), false);
        }
        // Endpoints that complete inside `submit` would otherwise prevent turns of the loop, and with them the clock,
        // for ever.
        if self.begun >= self.depth.limit() {
            return after(None, true);
        }
        if self.throttle.as_mut().is_some_and(|throttle| !throttle.admits(io, now)) {
            return after(Some(Blocked::Rate), false);
        }
        let take = |_| io.pool().take(self.chunk as usize);
        let spans: Vec<_> = (0..needs.spans).map_while(take).collect();
        if spans.len() == needs.spans {
            self.begun += 1;
            return Ok(Admitted::Now(spans));
        }
        drop(spans);
        if in_flight > 0 {
            return after(Some(Blocked::Memory), false);
        }
        // No run is in flight whose end could return memory, so waiting would never end.
        let smaller = self.chunk / 2 / self.unit * self.unit;
        if smaller == 0 || !needs.shrinks {
            let text = format!("no memory for a chunk of {} bytes", self.chunk);
            return Err(CopyError::Loop(Error::new(ErrorKind::OutOfMemory, text)));
        }
        debug!(chunk = self.chunk, smaller, "memory is short");
        self.chunk = smaller;
        after(Some(Blocked::Memory), true)
    }

    /// Called before each turn of the loop.
    pub(crate) fn on_turn(&mut self, pause: Pause) {
        self.begun = 0;
        if pause.blocked.is_some() {
            self.depth.disturbed();
        }
    }

    pub(crate) fn on_timer(&mut self) {
        if let Some(throttle) = &mut self.throttle {
            throttle.on_timer();
        }
    }

    pub(crate) fn charge(&mut self, now: Duration, bytes: u64) {
        if let Some(throttle) = &mut self.throttle {
            throttle.charge(now, bytes);
        }
    }

    /// A run of so many bytes is finished; `None` for zeroes, which are no measure for the depth.
    pub(crate) fn finished(&mut self, now: Duration, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => self.depth.finished(now, bytes),
            None => self.depth.disturbed(),
        }
    }

    /// Bytes worth having in flight on a network between the ends.
    pub(crate) fn on_path(&mut self, bytes: u64) {
        self.depth.on_path(bytes, self.chunk);
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth.limit()
    }

    /// How often the rate prevented a run from starting, in this phase.
    pub(crate) fn rate_waits(&self) -> u64 {
        self.throttle.as_ref().map_or(0, |throttle| throttle.waits)
    }
}

#[cfg(test)]
mod tests {
    use area::PoolLimits;

    use super::*;

    const CHUNK: u32 = 1 << 20;
    const UNIT: u32 = 4096;
    const NEEDS: Needs = Needs { spans: 1, depth_max: usize::MAX, shrinks: true, window: None };

    fn bench(depth: u32) -> (Io, Admission) {
        let mut io = Io::new(PoolLimits { bytes_max: 8 << 20 }).unwrap();
        io.turn_until(Some(Duration::ZERO), &mut Vec::new()).unwrap();
        (io, Admission::new(Depth::fixed(depth), CHUNK, UNIT))
    }

    /// The number of areas granted, or the reason for a turn.
    fn ask(admission: &mut Admission, io: &mut Io, in_flight: usize, needs: Needs) -> Result<usize, Pause> {
        let now = io.now();
        match admission.admit(io, now, in_flight, needs).unwrap() {
            Admitted::Now(spans) => Ok(spans.len()),
            Admitted::After(pause) => Err(pause),
        }
    }

    fn exhaust(io: &Io) -> Vec<Span> {
        std::iter::from_fn(|| io.pool().take(CHUNK as usize)).collect()
    }

    #[test]
    fn no_more_than_the_depth_and_no_more_than_the_job_takes() {
        let (mut io, mut admission) = bench(4);
        assert_eq!(ask(&mut admission, &mut io, 3, NEEDS), Ok(1));
        assert_eq!(ask(&mut admission, &mut io, 4, NEEDS), Err(Pause::default()));
        let one = Needs { depth_max: 1, ..NEEDS };
        assert_eq!(ask(&mut admission, &mut io, 1, one), Err(Pause::default()));
    }

    #[test]
    fn a_window_is_what_prevents_a_run_that_the_depth_admits() {
        let (mut io, mut admission) = bench(4);
        let needs = Needs { window: Some(Window { chunk: UNIT, depth: 2 }), ..NEEDS };
        assert_eq!(ask(&mut admission, &mut io, 1, needs), Ok(1));
        let pause = Pause { blocked: Some(Blocked::Impact), look: false };
        assert_eq!(ask(&mut admission, &mut io, 2, needs), Err(pause));
        assert_eq!(ask(&mut admission, &mut io, 4, needs), Err(Pause::default()), "the depth does");
    }

    #[test]
    fn what_ends_at_once_does_not_keep_the_loop_from_turning() {
        let (mut io, mut admission) = bench(2);
        let look = Pause { look: true, blocked: None };
        for _ in 0..2 {
            assert_eq!(ask(&mut admission, &mut io, 0, NEEDS), Ok(1));
            assert_eq!(ask(&mut admission, &mut io, 0, NEEDS), Ok(1));
            assert_eq!(ask(&mut admission, &mut io, 0, NEEDS), Err(look));
            admission.on_turn(look);
        }
    }

    #[test]
    fn without_memory_it_waits_for_some_or_takes_less() {
        let (mut io, mut admission) = bench(4);
        let held = exhaust(&io);
        let blocked = Some(Blocked::Memory);
        assert_eq!(ask(&mut admission, &mut io, 1, NEEDS), Err(Pause { blocked, look: false }));
        assert_eq!(admission.chunk(), CHUNK, "a run in flight returns its memory");
        assert_eq!(ask(&mut admission, &mut io, 0, NEEDS), Err(Pause { blocked, look: true }));
        assert_eq!(admission.chunk(), CHUNK / 2);
        drop(held);
        let two = Needs { spans: 2, ..NEEDS };
        assert_eq!(ask(&mut admission, &mut io, 0, two), Ok(2), "of half a chunk each");
    }

    #[test]
    fn no_memory_at_all_is_an_error() {
        let (mut io, mut admission) = bench(4);
        let _held = exhaust(&io);
        let now = io.now();
        let fixed = Needs { shrinks: false, ..NEEDS };
        assert!(matches!(admission.admit(&mut io, now, 0, fixed), Err(CopyError::Loop(_))));
        assert_eq!(admission.chunk(), CHUNK, "an operation whose runs must not shrink keeps its chunk");
    }

    #[test]
    fn the_rate_is_asked_before_memory_is_taken() {
        let (mut io, mut admission) = bench(4);
        let token = Token { owner: io.owner(), key: 0 };
        let now = io.now();
        admission.set_rate(Some(1000).into(), now, token);
        assert_eq!(ask(&mut admission, &mut io, 0, NEEDS), Ok(1));
        admission.charge(now, 1 << 30);
        let pause = Pause { blocked: Some(Blocked::Rate), look: false };
        assert_eq!(ask(&mut admission, &mut io, 0, NEEDS), Err(pause));
        assert_eq!((io.pool().borrowed(), admission.rate_waits()), (0, 1));
        admission.begin(CHUNK);
        assert_eq!(admission.rate_waits(), 0, "each phase counts its own");
    }
}
