//! What the target's volatile cache may hold of ours, and whether it was lost (SBC-3 4.15).
//!
//! A target that loses power forgets writes it has acknowledged. The session ends, a new one begins, and a flush on it
//! succeeds: somebody has to remember what was acknowledged on the old one. What tells is the unit attention that a
//! new session begins with. 29h/07h I_T NEXUS LOSS says that the target kept running: no power was lost. Nothing else
//! says so. 29h/00h is what tgt says to every new session; the Linux target says nothing, after a restart as before.
//! A reset by an initiator (29h/02h, 29h/03h) ends tasks and keeps the cache: only power undoes what is in it.

use std::sync::atomic::{AtomicU64, Ordering};

use block::{IoError, IoErrorKind};
use mutant::Mutant;
use scsi::{Sense, SenseKey};

/// The volatile writes of one LUN, over all endpoints that reach it by one medium: the flush of one covers the writes of all.
/// Everything is counted, so nothing is kept per write.
#[derive(Debug, Default)]
pub(super) struct WriteCache {
    /// Volatile writes that were acknowledged, and how many of them are durable or known to be lost.
    written: AtomicU64,
    settled: AtomicU64,
    /// Times that acknowledged writes were lost, and how many of these a flush has told.
    losses: AtomicU64,
    told: AtomicU64,
}

/// The moment at which a flush was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    written: u64,
    told: u64,
}

impl WriteCache {
    /// A write was acknowledged that is not durable. Returns its number.
    pub(super) fn wrote(&self) -> u64 {
        self.written.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { written: self.written.load(Ordering::Acquire), told: self.told.load(Ordering::Acquire) }
    }

    /// The flush asked for at `mark` succeeded at the target. It fails all the same if a loss has not been told since:
    /// each flush that waited while it happened, else the next one.
    pub(super) fn flushed(&self, mark: Mark) -> Result<(), IoError> {
        let written = if mutant::is_on(Mutant::SettleLate) { self.mark().written } else { mark.written };
        self.settled.fetch_max(written, Ordering::AcqRel);
        let losses = self.losses.load(Ordering::Acquire);
        if losses <= mark.told {
            return Ok(());
        }
        self.told.fetch_max(losses, Ordering::AcqRel);
        let text = "the target may have lost power: writes acknowledged since the last flush may be gone; write them again";
        Err(IoError::new(IoErrorKind::CacheLost, text))
    }

    /// The target may have forgotten what is not durable. True: there was something.
    pub(super) fn lost(&self) -> bool {
        let written = self.written.load(Ordering::Acquire);
        let lost = self.settled.fetch_max(written, Ordering::AcqRel) < written;
        self.losses.fetch_add(lost.into(), Ordering::AcqRel);
        lost
    }

    /// Whether write number `number` is still volatile.
    pub(super) fn holds(&self, number: u64) -> bool {
        self.settled.load(Ordering::Acquire) < number
    }
}

/// What sense data says of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Unsaid,
    /// The target has kept running.
    Kept,
    /// It may not have, or its medium may be another.
    Lost,
}

/// Reads a unit attention.
pub(super) fn fate(sense: &Sense) -> Fate {
    match (sense.key, sense.asc, sense.ascq) {
        (SenseKey::UnitAttention, 0x29, 0x07) => Fate::Kept,
        (SenseKey::UnitAttention, 0x29, 0x00 | 0x01 | 0x04) | (SenseKey::UnitAttention, 0x28, 0x00) => {
            Fate::Lost
        }
        _ => Fate::Unsaid,
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

    #[test]
    fn attentions_and_what_they_say() {
        for (key, asc, ascq, expected) in [
            (SenseKey::UnitAttention, 0x29, 0x00, Fate::Lost),
            (SenseKey::UnitAttention, 0x29, 0x01, Fate::Lost),
            (SenseKey::UnitAttention, 0x29, 0x02, Fate::Unsaid),
            (SenseKey::UnitAttention, 0x29, 0x03, Fate::Unsaid),
            (SenseKey::UnitAttention, 0x29, 0x04, Fate::Lost),
            (SenseKey::UnitAttention, 0x29, 0x07, Fate::Kept),
            (SenseKey::UnitAttention, 0x28, 0x00, Fate::Lost),
            (SenseKey::UnitAttention, 0x2a, 0x09, Fate::Unsaid),
            (SenseKey::NotReady, 0x29, 0x01, Fate::Unsaid),
        ] {
            assert_eq!(fate(&Sense::new(key, asc, ascq)), expected, "{asc:02x}/{ascq:02x}");
        }
    }
}
