//! `--rate`: a token bucket over loop time.

use std::time::Duration;

/// Time that may be caught up after a late timer. Longer pauses are not made good.
const CREDIT: Duration = Duration::from_millis(50);

/// Admits a chunk when those before it are paid for, so that at time `t` at most `rate * t` bytes and one
/// chunk have been admitted (and `CREDIT` more after a pause).
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: u64,
    /// Loop time at which everything admitted so far is paid for.
    paid: Duration,
}

impl Bucket {
    /// A bucket of `rate` bytes per second, empty at `now`.
    pub(crate) fn new(rate: u64, now: Duration) -> Self {
        assert!(rate > 0, "a rate of zero is refused with the plan");
        Self { rate, paid: now }
    }

    /// Whether a chunk may be read now; if not, when.
    pub(crate) fn ready(&self, now: Duration) -> Result<(), Duration> {
        if now >= self.paid { Ok(()) } else { Err(self.paid) }
    }

    /// Charges `bytes` that are about to be read.
    pub(crate) fn charge(&mut self, now: Duration, bytes: u64) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.paid = self.paid.max(now.saturating_sub(CREDIT)).saturating_add(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_kept_and_one_chunk_is_the_burst() {
        let mut now = Duration::from_secs(7);
        let mut bucket = Bucket::new(1000, now);
        for _ in 0..100 {
            bucket.ready(now).unwrap();
            bucket.charge(now, 50);
            let at = bucket.ready(now).unwrap_err();
            assert!(at > now);
            // The timer is a little late; the average does not suffer.
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
