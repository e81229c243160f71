//! What a remote cache may hold of ours, and whether it was lost. For endpoints whose server can lose power and come back
//! without saying so: somebody has to remember what was acknowledged before. Who may have lost it is for the endpoint's
//! protocol to say.

use std::sync::atomic::{AtomicU64, Ordering};

use mutant::Mutant;

use crate::{IoError, IoErrorKind};

/// The volatile writes of one remote unit, over all endpoints that reach it by one medium: the flush of one covers the
/// writes of all. Everything is counted, so nothing is kept per write.
#[derive(Debug, Default)]
pub struct WriteCache {
    /// Volatile writes that were acknowledged, and how many of them are durable or known to be lost.
    written: AtomicU64,
    settled: AtomicU64,
    /// Times that acknowledged writes were lost, and how many of these a flush has told.
    losses: AtomicU64,
    told: AtomicU64,
}

/// The moment at which a flush was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    written: u64,
    told: u64,
}

impl WriteCache {
    /// A write was acknowledged that is not durable. Returns its number.
    pub fn wrote(&self) -> u64 {
        self.written.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Now.
    pub fn mark(&self) -> Mark {
        Mark { written: self.written.load(Ordering::Acquire), told: self.told.load(Ordering::Acquire) }
    }

    /// The flush asked for at `mark` succeeded there. It fails all the same if a loss has not been told since:
    /// each flush that waited while it happened, else the next one.
    pub fn flushed(&self, mark: Mark) -> Result<(), IoError> {
        let written = if mutant::is_on(Mutant::SettleLate) { self.mark().written } else { mark.written };
        self.settled.fetch_max(written, Ordering::AcqRel);
        let losses = self.losses.load(Ordering::Acquire);
        if losses <= mark.told {
            return Ok(());
        }
        self.told.fetch_max(losses, Ordering::AcqRel);
        let text = "the other end may have lost power: writes acknowledged since the last flush may be gone; write them again";
        Err(IoError::new(IoErrorKind::CacheLost, text))
    }

    /// The other end may have forgotten what is not durable. True: there was something.
    pub fn lost(&self) -> bool {
        let written = self.written.load(Ordering::Acquire);
        let lost = self.settled.fetch_max(written, Ordering::AcqRel) < written;
        self.losses.fetch_add(lost.into(), Ordering::AcqRel);
        lost
    }

    /// Whether write number `number` is still volatile.
    pub fn holds(&self, number: u64) -> bool {
        self.settled.load(Ordering::Acquire) < number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_told(result: &Result<(), IoError>) -> bool {
        result.as_ref().is_err_and(|error| error.kind == IoErrorKind::CacheLost)
    }

    #[test]
    fn a_loss_is_told_once_by_the_next_flush() {
        let cache = WriteCache::default();
        cache.wrote();
        assert!(cache.lost());
        assert!(!cache.lost(), "nothing was written since");
        assert!(is_told(&cache.flushed(cache.mark())));
        cache.wrote();
        assert!(cache.flushed(cache.mark()).is_ok(), "written again");
        assert!(!cache.lost(), "and durable");
        assert!(cache.flushed(cache.mark()).is_ok());
    }

    #[test]
    fn every_flush_that_waited_tells() {
        let cache = WriteCache::default();
        cache.wrote();
        let (first, second) = (cache.mark(), cache.mark());
        cache.lost();
        assert!(is_told(&cache.flushed(first)));
        let later = cache.mark();
        assert!(is_told(&cache.flushed(second)));
        assert!(cache.flushed(later).is_ok());
    }

    #[test]
    fn a_flush_settles_what_was_written_before_it_was_asked_for() {
        let cache = WriteCache::default();
        cache.wrote();
        let mark = cache.mark();
        let beside = cache.wrote();
        assert!(cache.flushed(mark).is_ok());
        assert!(cache.holds(beside));
        assert!(cache.lost(), "the write beside the flush");
    }
}
