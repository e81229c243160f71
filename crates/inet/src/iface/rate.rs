//! A bound on what others make this host send.

use crate::Time;

/// A token bucket, as the time at which it will be full: an integer that needs no refill.
#[derive(Clone, Copy, Debug, Default, zerocopy::FromZeros)]
#[repr(C)]
pub(super) struct Bucket {
    full_at: Time,
}

impl Bucket {
    /// Takes a token of a bucket that holds `burst` and gains one every `interval_us`.
    pub(super) fn take(&mut self, interval_us: u64, burst: u64, now: Time) -> bool {
        let full_at = Time(self.full_at.0.max(now.0)).after(interval_us);
        let may = full_at.since(now) <= interval_us * burst;
        if may {
            self.full_at = full_at;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_allows_a_burst_and_then_its_rate() {
        let mut bucket = Bucket::default();
        let allowed = |bucket: &mut Bucket, now| (0..10).filter(|_| bucket.take(100, 3, Time(now))).count();
        assert_eq!(allowed(&mut bucket, 1_000_000), 3);
        assert_eq!(allowed(&mut bucket, 1_000_099), 0);
        assert_eq!(allowed(&mut bucket, 1_000_200), 2);
        assert_eq!(allowed(&mut bucket, 9_000_000), 3);
    }
}
