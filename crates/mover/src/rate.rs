//! `--rate`: a token bucket over loop time, whose rate may change during the copy.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use io::{Io, Token};

use crate::progress::OBSERVE_EVERY;

/// Bound of the time caught up after a late timer; longer pauses are not compensated.
const CREDIT: Duration = Duration::from_millis(50);
/// Longest time between two readings of a limit that prevents reading: a changed limit applies after this time.
const RECHECK_MAX: Duration = OBSERVE_EVERY;
/// [`Shared::bytes_per_second`] without a limit.
const UNLIMITED: u64 = u64::MAX;

/// The bound of the read rate of a copy, in bytes per second, or none. Clones share one value: a thread beside the copy
/// changes it with [`RateLimit::set`], and the copy reads it before each chunk.
#[derive(Clone, Debug, Default)]
pub struct RateLimit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes_per_second: AtomicU64,
    /// Why the limit cannot be changed at present. Locked by every change, so that no limit is set after the decision
    /// for a way of copying that has none.
    held: Mutex<Option<&'static str>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { bytes_per_second: AtomicU64::new(UNLIMITED), held: Mutex::new(None) }
    }
}

/// While it lives, the rate is unlimited and [`RateLimit::set`] fails.
#[derive(Debug)]
pub struct HeldUnlimited(RateLimit);

impl Drop for HeldUnlimited {
    fn drop(&mut self) {
        *self.0.held() = None;
    }
}

impl RateLimit {
    /// `None`: unlimited.
    pub fn get(&self) -> Option<u64> {
        Some(self.0.bytes_per_second.load(Ordering::Relaxed)).filter(|rate| *rate != UNLIMITED)
    }

    /// Changes the limit of every clone; a copy applies it within 200 ms. `Err`: the reason why the copy cannot.
    pub fn set(&self, limit: Option<NonZeroU64>) -> Result<(), &'static str> {
        let held = self.held();
        match *held {
            Some(reason) => Err(reason),
            None => {
                self.0.bytes_per_second.store(limit.map_or(UNLIMITED, NonZeroU64::get), Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Prevents changes for `reason`, for a way of copying whose rate cannot be limited. `None`: there is a limit. At most
    /// one result may live at a time.
    pub fn hold_unlimited(&self, reason: &'static str) -> Option<HeldUnlimited> {
        let mut held = self.held();
        assert!(held.is_none(), "one part of a copy at a time holds the rate");
        if self.get().is_some() {
            return None;
        }
        *held = Some(reason);
        Some(HeldUnlimited(self.clone()))
    }

    fn held(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Option<u64>> for RateLimit {
    fn from(limit: Option<u64>) -> Self {
        let limit = AtomicU64::new(limit.unwrap_or(UNLIMITED));
        Self(Arc::new(Shared { bytes_per_second: limit, ..Shared::default() }))
    }
}

/// Equal limits at present, of one cell or two.
impl PartialEq for RateLimit {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for RateLimit {}

/// Admits a chunk when the earlier ones are paid for: at time `t` at most `rate * t` bytes and one chunk have been
/// admitted (and the bytes of `CREDIT` after a pause).
#[derive(Debug)]
pub(crate) struct Bucket {
    /// `None`: every chunk is admitted.
    rate: Option<u64>,
    /// Loop time at which all admitted chunks are paid for.
    paid: Duration,
}

impl Bucket {
    /// A bucket of `rate` bytes per second, empty at `now`.
    pub(crate) fn new(rate: Option<u64>, now: Duration) -> Self {
        assert!(rate != Some(0), "a rate of zero is refused with the plan");
        Self { rate, paid: now }
    }

    /// Changes the rate. Bytes that are not paid for yet are paid for at the new rate; a rate that follows none begins
    /// empty.
    pub(crate) fn set_rate(&mut self, rate: Option<u64>, now: Duration) {
        assert!(rate != Some(0), "a change has no rate of zero");
        self.paid = match (self.rate, rate) {
            (Some(before), Some(after)) if self.paid > now => {
                let nanos = (self.paid - now).as_nanos();
                now.saturating_add(scaled(nanos, before, after))
            }
            (Some(_), Some(_)) => self.paid,
            _ => now,
        };
        self.rate = rate;
    }

    /// Whether a chunk may be read now; `Err`: the time at which it may.
    pub(crate) fn ready(&self, now: Duration) -> Result<(), Duration> {
        if self.rate.is_none() || now >= self.paid { Ok(()) } else { Err(self.paid) }
    }

    pub(crate) fn charge(&mut self, now: Duration, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let cost = scaled(1_000_000_000, bytes, rate);
        self.paid = self.paid.max(now.saturating_sub(CREDIT)).saturating_add(cost);
    }
}

/// `nanos * numerator / denominator` nanoseconds, or the longest time that has a number.
fn scaled(nanos: u128, numerator: u64, denominator: u64) -> Duration {
    let nanos = nanos.saturating_mul(u128::from(numerator)) / u128::from(denominator);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A bucket with a timer of a loop, whose event announces the next admission.
#[derive(Debug)]
pub(crate) struct Throttle {
    limit: RateLimit,
    bucket: Bucket,
    token: Token,
    is_set: bool,
    /// A chunk waits: it is counted in `waits` once.
    is_waiting: bool,
    pub(crate) waits: u64,
}

impl Throttle {
    pub(crate) fn new(limit: RateLimit, now: Duration, token: Token) -> Self {
        let bucket = Bucket::new(limit.get(), now);
        Self { limit, bucket, token, is_set: false, is_waiting: false, waits: 0 }
    }

    /// Whether a chunk may be read now. If not, the timer's event will follow.
    pub(crate) fn admits(&mut self, io: &mut Io, now: Duration) -> bool {
        let rate = self.limit.get();
        if rate != self.bucket.rate {
            self.bucket.set_rate(rate, now);
        }
        let Err(at) = self.bucket.ready(now) else {
            self.is_waiting = false;
            return true;
        };
        self.waits += u64::from(!self.is_waiting);
        self.is_waiting = true;
        // One timer at a time: timers cannot be cancelled, and the rate may become higher during the wait.
        if !self.is_set {
            io.timer(self.token, at.min(now.saturating_add(RECHECK_MAX)));
            self.is_set = true;
        }
        false
    }

    pub(crate) fn on_timer(&mut self) {
        self.is_set = false;
    }

    pub(crate) fn charge(&mut self, now: Duration, bytes: u64) {
        self.bucket.charge(now, bytes);
    }

    /// The limit that the last admission applied.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.bucket.rate
    }
}

#[cfg(test)]
mod tests {
    use area::PoolLimits;

    use super::*;

    #[test]
    fn who_waits_has_one_timer_and_is_admitted_after_it() {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let mut events = Vec::new();
        io.turn_until(Some(Duration::ZERO), &mut events).unwrap();
        let token = Token { owner: io.owner(), key: 7 };
        let now = io.now();
        let mut throttle = Throttle::new(Some(1000).into(), now, token);
        assert!(throttle.admits(&mut io, now));
        throttle.charge(now, 5);
        for _ in 0..2 {
            assert!(!throttle.admits(&mut io, now));
        }
        while events.is_empty() {
            io.turn_until(None, &mut events).unwrap();
        }
        assert!(events.iter().all(|event| event.token == token) && events.len() == 1, "{events:?}");
        throttle.on_timer();
        let now = io.now();
        assert!(throttle.admits(&mut io, now));
        assert_eq!(throttle.waits, 1);
    }

    #[test]
    fn the_average_is_kept_and_one_chunk_is_the_burst() {
        let mut now = Duration::from_secs(7);
        let mut bucket = Bucket::new(Some(1000), now);
        for _ in 0..100 {
            bucket.ready(now).unwrap();
            bucket.charge(now, 50);
            let at = bucket.ready(now).unwrap_err();
            assert!(at > now);
            // The timer is slightly late; the average rate does not decrease.
            now = at + Duration::from_millis(3);
        }
        let took = now - Duration::from_secs(7);
        assert_eq!(took, Duration::from_millis(100 * 50 + 3));
    }

    #[test]
    fn a_long_pause_is_not_made_good() {
        let mut bucket = Bucket::new(Some(1000), Duration::ZERO);
        let now = Duration::from_secs(100);
        bucket.charge(now, 50);
        assert!(bucket.ready(now).is_ok());
        bucket.charge(now, 50);
        assert_eq!(bucket.ready(now), Err(now + Duration::from_millis(50)));
    }

    #[test]
    fn huge_chunks_at_tiny_rates_do_not_overflow() {
        let mut bucket = Bucket::new(Some(1), Duration::ZERO);
        bucket.charge(Duration::ZERO, u64::MAX);
        bucket.charge(Duration::ZERO, u64::MAX);
        assert!(bucket.ready(Duration::from_secs(1 << 33)).is_err());
    }

    /// Reads chunks of 50 bytes from `from` until `until` and returns their number.
    fn chunks(bucket: &mut Bucket, from: Duration, until: Duration) -> u64 {
        let (mut now, mut count) = (from, 0);
        while now < until {
            match bucket.ready(now) {
                Ok(()) => {
                    bucket.charge(now, 50);
                    count += 1;
                }
                Err(at) => now = at,
            }
            assert!(count < 1_000_000, "a rate was applied");
        }
        count
    }

    #[test]
    fn a_changed_rate_applies_without_burst_and_without_stall() {
        let second = Duration::from_secs;
        for (before, after, expected) in [(1000, 5000, 100), (5000, 1000, 20), (1, 1000, 20)] {
            let mut bucket = Bucket::new(Some(before), Duration::ZERO);
            chunks(&mut bucket, Duration::ZERO, second(3));
            bucket.set_rate(Some(after), second(3));
            let count = chunks(&mut bucket, second(3), second(4));
            assert!(count.abs_diff(expected) <= 1, "{before} to {after}: {count} chunks in a second");
        }
    }

    #[test]
    fn what_is_owed_is_owed_at_the_new_rate() {
        let mut bucket = Bucket::new(Some(1000), Duration::ZERO);
        bucket.charge(Duration::ZERO, 4000);
        bucket.set_rate(Some(2000), Duration::from_secs(2));
        assert_eq!(bucket.ready(Duration::from_secs(2)), Err(Duration::from_secs(3)), "2000 bytes are owed");
        bucket.set_rate(Some(u64::MAX - 1), Duration::from_secs(2));
        assert!(bucket.ready(Duration::from_secs(2)).is_ok());
        let mut bucket = Bucket::new(Some(u64::MAX - 1), Duration::ZERO);
        bucket.charge(Duration::ZERO, u64::MAX);
        bucket.set_rate(Some(1), Duration::ZERO);
        assert!(bucket.ready(Duration::from_secs(1 << 33)).is_err());
    }

    #[test]
    fn from_no_limit_to_one_and_back() {
        let hour = Duration::from_secs(3600);
        let mut bucket = Bucket::new(None, Duration::ZERO);
        for _ in 0..1000 {
            assert!(bucket.ready(Duration::ZERO).is_ok());
            bucket.charge(Duration::ZERO, 1 << 30);
        }
        bucket.set_rate(Some(1000), hour);
        assert_eq!(chunks(&mut bucket, hour, hour + Duration::from_secs(1)), 20, "no credit of the hour");
        bucket.charge(hour, 1 << 40);
        bucket.set_rate(None, hour);
        assert!(bucket.ready(hour).is_ok(), "no debt without a limit");
    }

    #[test]
    fn a_limit_raised_during_a_wait_ends_it() {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let mut events = Vec::new();
        io.turn_until(Some(Duration::ZERO), &mut events).unwrap();
        let token = Token { owner: io.owner(), key: 7 };
        let limit = RateLimit::from(Some(1));
        let mut throttle = Throttle::new(limit.clone(), io.now(), token);
        throttle.charge(io.now(), 1 << 20);
        let began = io.now();
        for _ in 0..3 {
            let now = io.now();
            assert!(!throttle.admits(&mut io, now), "12 days are owed");
        }
        limit.set(None).unwrap();
        while events.is_empty() {
            io.turn_until(None, &mut events).unwrap();
        }
        throttle.on_timer();
        let now = io.now();
        assert!(throttle.admits(&mut io, now) && now - began < 2 * RECHECK_MAX);
        assert_eq!((throttle.waits, throttle.rate(), events.len()), (1, None, 1));
    }

    #[test]
    fn a_limit_is_not_changed_while_it_is_held() {
        let limit = RateLimit::from(None);
        let held = limit.hold_unlimited("the target copies").unwrap();
        assert_eq!(limit.clone().set(NonZeroU64::new(5)), Err("the target copies"));
        assert_eq!(limit.get(), None);
        drop(held);
        assert_eq!(limit.clone().set(NonZeroU64::new(5)), Ok(()));
        assert_eq!(limit.get(), Some(5));
        assert!(limit.hold_unlimited("the target copies").is_none(), "there is a limit");
        assert_eq!(limit.set(None), Ok(()), "a refused hold prevents nothing");
    }
}
