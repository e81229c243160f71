//! `--rate`: a token bucket over loop time.

use std::time::Duration;

use io::{Io, Token};

/// Bound of the time caught up after a late timer; longer pauses are not compensated.
const CREDIT: Duration = Duration::from_millis(50);

/// Admits a chunk when the earlier ones are paid for: at time `t` at most `rate * t` bytes and one chunk have been
/// admitted (and the bytes of `CREDIT` after a pause).
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: u64,
    /// Loop time at which all admitted chunks are paid for.
    paid: Duration,
}

impl Bucket {
    /// A bucket of `rate` bytes per second, empty at `now`.
    pub(crate) fn new(rate: u64, now: Duration) -> Self {
        assert!(rate > 0, "a rate of zero is refused with the plan");
        Self { rate, paid: now }
    }

    /// Whether a chunk may be read now; `Err`: the time at which it may.
    pub(crate) fn ready(&self, now: Duration) -> Result<(), Duration> {
        if now >= self.paid { Ok(()) } else { Err(self.paid) }
    }

    pub(crate) fn charge(&mut self, now: Duration, bytes: u64) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.paid = self.paid.max(now.saturating_sub(CREDIT)).saturating_add(cost);
    }
}

/// A bucket with a timer of a loop, whose event announces the next admission.
#[derive(Debug)]
pub(crate) struct Throttle {
    bucket: Bucket,
    token: Token,
    is_set: bool,
    pub(crate) waits: u64,
}

impl Throttle {
    pub(crate) fn new(rate: u64, now: Duration, token: Token) -> Self {
        Self { bucket: Bucket::new(rate, now), token, is_set: false, waits: 0 }
    }

    /// Whether a chunk may be read now. If not, the timer's event will follow.
    pub(crate) fn admits(&mut self, io: &mut Io, now: Duration) -> bool {
        let Err(at) = self.bucket.ready(now) else { return true };
        if !self.is_set {
            io.timer(self.token, at);
            self.is_set = true;
            self.waits += 1;
        }
        false
    }

    pub(crate) fn on_timer(&mut self) {
        self.is_set = false;
    }

    pub(crate) fn charge(&mut self, now: Duration, bytes: u64) {
        self.bucket.charge(now, bytes);
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
        let mut throttle = Throttle::new(1000, now, token);
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
        let mut bucket = Bucket::new(1000, now);
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
        let mut bucket = Bucket::new(1000, Duration::ZERO);
        let now = Duration::from_secs(100);
        bucket.charge(now, 50);
        assert!(bucket.ready(now).is_ok());
        bucket.charge(now, 50);
        assert_eq!(bucket.ready(now), Err(now + Duration::from_millis(50)));
    }

    #[test]
    fn huge_chunks_at_tiny_rates_do_not_overflow() {
        let mut bucket = Bucket::new(1, Duration::ZERO);
        bucket.charge(Duration::ZERO, u64::MAX);
        bucket.charge(Duration::ZERO, u64::MAX);
        assert!(bucket.ready(Duration::from_secs(1 << 33)).is_err());
    }
}
