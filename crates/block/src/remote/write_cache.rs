//! Counts acknowledged writes that are not durable, and their losses: a server may lose power and return without a
//! report of it. The endpoint's protocol decides when a loss is possible.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{IoError, IoErrorKind};

/// The volatile writes of one remote unit, over all endpoints of one medium: one's flush covers all. Only counters.
#[derive(Debug, Default)]
pub struct WriteCache {
    /// Acknowledged volatile writes; `settled` of them are durable or known to be lost.
    written: AtomicU64,
    settled: AtomicU64,
    /// Losses of acknowledged writes; `reported` of them have failed a flush.
    losses: AtomicU64,
    reported: AtomicU64,
}

/// The counters when a flush was submitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    written: u64,
    reported: u64,
}

impl WriteCache {
    /// Counts an acknowledged write that is not durable; returns its number.
    pub fn wrote(&self) -> u64 {
        self.written.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub fn mark(&self) -> Mark {
        Mark {
            written: self.written.load(Ordering::Acquire),
            reported: self.reported.load(Ordering::Acquire),
        }
    }

    /// Ends a flush that was submitted at `mark` and succeeded at the server. A loss fails each flush that was pending
    /// when it was counted; if none was, the next one.
    pub fn flushed(&self, mark: Mark) -> Result<(), IoError> {
        self.settled.fetch_max(mark.written, Ordering::AcqRel);
        let losses = self.losses.load(Ordering::Acquire);
        if losses <= mark.reported {
            return Ok(());
        }
        self.reported.fetch_max(losses, Ordering::AcqRel);
        let text = "the other end may have lost power: writes acknowledged since the last flush may be gone; write them again";
        Err(IoError::new(IoErrorKind::CacheLost, text))
    }

    /// Counts the possible loss of all writes that are not durable; false if there were none.
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

    fn is_reported(result: &Result<(), IoError>) -> bool {
        result.as_ref().is_err_and(|error| error.kind == IoErrorKind::CacheLost)
    }

    #[test]
    fn a_loss_is_told_once_by_the_next_flush() {
        let cache = WriteCache::default();
        cache.wrote();
        assert!(cache.lost());
        assert!(!cache.lost(), "nothing was written since");
        assert!(is_reported(&cache.flushed(cache.mark())));
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
        assert!(is_reported(&cache.flushed(first)));
        let later = cache.mark();
        assert!(is_reported(&cache.flushed(second)));
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
