//! The turns of the loop during a copy: their duration, what they waited for, and the calls of the observer.
//!
//! Copies between two endpoints (`engine.rs`) and with a stream (`stream/pump.rs`) have one each.

use std::time::Duration;

use io::{Event, Io};

use crate::limit::{Blocked, Limit, Occupancy, Shares};
use crate::progress::{Control, Done, OBSERVE_EVERY, Phase, Progress, Speed, eta};

pub(crate) type Observer<'a> = &'a mut dyn FnMut(&Progress) -> Control;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    /// Chunks at the source and at the destination.
    pub(crate) at: [usize; 2],
    /// The reason why no further chunk is started.
    pub(crate) blocked: Option<Blocked>,
    /// The turn does not wait; it only takes pending events.
    pub(crate) look: bool,
}

impl Wait {
    /// A turn that submits requests and updates the clock without waiting.
    pub(crate) const LOOK: Self = Self { at: [0; 2], blocked: None, look: true };
}

pub(crate) struct Watch<'a> {
    pub(crate) observer: Observer<'a>,
    /// The observer has stopped the copy; never cleared.
    stopped: bool,
    phase: Phase,
    /// Bytes in total in this phase; 0 if unknown.
    total: u64,
    /// Since [`Watch::begin`], and since the last observation.
    occupancy: Occupancy,
    window: Occupancy,
    /// Time since [`Watch::begin`] with requests in flight at the source and at the destination.
    busy: [Duration; 2],
    began: Duration,
    speed: Speed,
    data_speed: Speed,
    observe_at: Duration,
    /// Loop time of the last turn.
    seen: Duration,
    /// Wall clock when the last turn returned. Used only to separate running from waiting in the report.
    woke: Duration,
    unseen: Duration,
}

/// A turn that took less than this beside the time awake did not wait: its events had arrived before.
const SLEEP_MIN: Duration = Duration::from_micros(5);

impl<'a> Watch<'a> {
    /// The first turn should not wait: the loop's clock may not have advanced since the loop was created.
    pub(crate) fn new(observer: Observer<'a>) -> Self {
        Self {
            observer,
            stopped: false,
            phase: Phase::Copy,
            total: 0,
            occupancy: Occupancy::default(),
            window: Occupancy::default(),
            busy: [Duration::ZERO; 2],
            began: Duration::ZERO,
            speed: Speed::default(),
            data_speed: Speed::default(),
            observe_at: Duration::MAX,
            seen: Duration::ZERO,
            woke: Duration::ZERO,
            unseen: Duration::ZERO,
        }
    }

    pub(crate) fn begin(&mut self) {
        self.occupancy = Occupancy::default();
        self.busy = [Duration::ZERO; 2];
        self.began = self.seen;
    }

    /// Starts a phase with `bytes` of `total` complete.
    pub(crate) fn enter(&mut self, phase: Phase, bytes: u64, total: u64) {
        (self.phase, self.total) = (phase, total);
        self.window = Occupancy::default();
        self.observe_at = self.seen + OBSERVE_EVERY;
        self.speed.start(self.seen, bytes);
        self.data_speed.start(self.seen, 0);
    }

    pub(crate) fn seen(&self) -> Duration {
        self.seen
    }

    /// The time before the end of the last turn during which its events may have arrived: zero if it waited for them.
    pub(crate) fn unseen(&self) -> Duration {
        self.unseen
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopped
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Loop time since [`Watch::begin`].
    pub(crate) fn duration(&self) -> Duration {
        self.seen.saturating_sub(self.began)
    }

    pub(crate) fn busy(&self) -> [Duration; 2] {
        self.busy
    }

    pub(crate) fn limit(&self) -> Limit {
        self.occupancy.limit()
    }

    pub(crate) fn shares(&self) -> Shares {
        self.occupancy.shares()
    }

    /// Submits requests, waits until an event arrives or the observer is due. On an error process the events too.
    pub(crate) fn turn(&mut self, io: &mut Io, wait: Wait, events: &mut Vec<Event>) -> std::io::Result<()> {
        let awake = io.clock().saturating_sub(self.woke);
        let until = if wait.look { Duration::ZERO } else { self.observe_at };
        let turned = io.turn_until(Some(until), events);
        self.woke = io.clock();
        let passed = io.now().saturating_sub(self.seen);
        self.seen = io.now();
        let awake = if wait.look { passed } else { awake.min(passed) };
        self.unseen = if passed - awake < SLEEP_MIN { passed } else { Duration::ZERO };
        for occupancy in [&mut self.occupancy, &mut self.window] {
            occupancy.add(awake, passed - awake, wait.at, wait.blocked);
        }
        for (busy, count) in self.busy.iter_mut().zip(wait.at) {
            if count > 0 {
                *busy += passed;
            }
        }
        turned
    }

    pub(crate) fn is_due(&self) -> bool {
        self.seen >= self.observe_at
    }

    /// Calls the observer: `done` is complete, `retries` requests were repeated, `depth` runs may be in flight, and
    /// reading is limited to `rate` bytes per second.
    pub(crate) fn observe(&mut self, done: Done, retries: u64, depth: u32, rate: Option<u64>) {
        let rate_now = self.speed.sample(self.seen, done.bytes);
        let (done, total) =
            if self.phase == Phase::Flush { (Done::default(), 0) } else { (done, self.total) };
        let data_rate_now = self.data_speed.sample(self.seen, done.data_bytes);
        let left = total.saturating_sub(done.bytes).saturating_sub(done.hole_bytes_left);
        let progress = Progress {
            phase: self.phase,
            bytes: done.bytes,
            total,
            rate_now,
            data_bytes: done.data_bytes,
            data_rate_now,
            eta: eta(left, data_rate_now).filter(|_| total > 0),
            retries,
            limited_by: self.window.limit(),
            depth,
            rate_limit: rate,
        };
        self.window = Occupancy::default();
        self.observe_at = self.seen + OBSERVE_EVERY;
        if (self.observer)(&progress) == Control::Stop {
            self.stopped = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use area::PoolLimits;
    use io::Token;

    use super::*;

    #[test]
    fn a_phase_is_told_of_and_time_goes_to_what_was_waited_for() {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let (mut told, mut events) = (Vec::new(), Vec::new());
        let mut observer = |progress: &Progress| {
            told.push((progress.phase, progress.bytes, progress.total));
            if progress.phase == Phase::Verify {
                // 20 bytes of data remain, as many as were moved.
                let expected = Duration::from_secs(20).as_secs_f64() / progress.data_rate_now as f64;
                let eta = progress.eta.unwrap().as_secs_f64();
                assert!((eta - expected).abs() < 1e-6 && progress.data_bytes == 20, "{progress:?}");
            }
            if progress.phase == Phase::Flush { Control::Stop } else { Control::Continue }
        };
        let mut watch = Watch::new(&mut observer);
        watch.turn(&mut io, Wait::LOOK, &mut events).unwrap();
        watch.begin();
        watch.enter(Phase::Verify, 10, 100);
        let at = io.now() + Duration::from_millis(2);
        io.timer(Token { owner: io.owner(), key: 0 }, at);
        let wait = Wait { at: [1, 0], ..Wait::default() };
        while events.is_empty() {
            watch.turn(&mut io, wait, &mut events).unwrap();
        }
        assert!(watch.duration() >= Duration::from_millis(2) && watch.seen() >= at);
        assert_eq!(watch.busy(), [watch.duration(), Duration::ZERO]);
        let shares = watch.shares();
        assert!(shares.source > 0.0 && shares.destination == 0.0, "{shares:?}");
        let done = Done { bytes: 50, data_bytes: 20, hole_bytes_left: 30 };
        watch.observe(done, 0, 4, None);
        assert!(!watch.stopped() && !watch.is_due());
        watch.enter(Phase::Flush, 50, 100);
        watch.observe(done, 0, 4, None);
        assert!(watch.stopped());
        watch.begin();
        assert_eq!(watch.duration(), Duration::ZERO);
        assert_eq!(told, [(Phase::Verify, 50, 100), (Phase::Flush, 0, 0)], "a flush has no bytes");
    }

    #[test]
    fn a_turn_that_only_looks_is_time_awake_and_does_not_wait() {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let mut observer = |_: &Progress| Control::Continue;
        let mut watch = Watch::new(&mut observer);
        let mut events = Vec::new();
        watch.turn(&mut io, Wait::LOOK, &mut events).unwrap();
        watch.begin();
        // No event ever arrives.
        watch.turn(&mut io, Wait { at: [1, 1], ..Wait::LOOK }, &mut events).unwrap();
        let shares = watch.shares();
        assert!(shares.cpu == 1.0 || watch.duration().is_zero(), "{shares:?}");
    }
}
