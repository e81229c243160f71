//! Checkpoints: when the destination is flushed during a copy, and what may be claimed as durable afterwards.
//!
//! Read `docs/internals/mover-journal.md` first.

use std::time::Duration;

use block::{IoError, IoErrorKind, RequestId};
use tracing::warn;

use crate::error::CopyError;
use crate::map::Map;

/// Loop time between a claim and the next flush.
pub const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);
/// The id of the flush for a claim; no slot has this number.
pub(crate) const FLUSH_ID: RequestId = RequestId::MAX;

pub trait Journal {
    /// Everything that is finished in `map` survives a power loss of the destination. Must not block. An error ends the
    /// copy; it may be that of an earlier claim.
    fn claim(&mut self, map: &Map) -> Result<(), String>;

    /// Loop time between two claims.
    fn every(&self) -> Duration {
        CHECKPOINT_EVERY
    }
}

/// The claims of one copy. The engine calls `is_due`, submits the flush, calls `flushing`, and at its end `flushed`.
pub(crate) struct Checkpoints<'a> {
    journal: Option<&'a mut dyn Journal>,
    /// The durable part of the range.
    claimed: Map,
    /// The part that was finished when the flush in flight was submitted.
    flushing: Option<Map>,
    /// When the next flush is due, in loop time.
    at: Duration,
    /// The destination lost writes that were not flushed.
    pub(crate) cache_lost: bool,
    pub(crate) count: u64,
}

impl<'a> Checkpoints<'a> {
    /// Without a journal no claim is made before the end.
    pub(crate) fn none(bytes: u64) -> Self {
        Self::new(None, Map::new(bytes))
    }

    /// `claimed` is the part that an earlier copy has made durable.
    pub(crate) fn new(journal: Option<&'a mut dyn Journal>, claimed: Map) -> Self {
        Self { journal, claimed, flushing: None, at: Duration::ZERO, cache_lost: false, count: 0 }
    }

    /// Starts a phase: the next flush is due after the interval.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.at = now + self.every();
    }

    fn every(&self) -> Duration {
        self.journal.as_ref().map_or(CHECKPOINT_EVERY, |journal| journal.every())
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.journal.is_some()
    }

    /// Whether to flush now: the interval has passed and `map` differs from the last claim. If equal, it restarts.
    pub(crate) fn is_due(&mut self, now: Duration, map: &Map) -> bool {
        if self.journal.is_none() || self.flushing.is_some() || now < self.at {
            return false;
        }
        if *map == self.claimed {
            self.begin(now);
            return false;
        }
        true
    }

    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// A flush was submitted. It does not cover runs that finish later.
    pub(crate) fn flushing(&mut self, map: &Map) {
        assert!(self.flushing.is_none(), "one flush at a time");
        self.flushing = Some(map.clone());
    }

    /// The flush has ended. With `rewinds`, a lost cache is recorded so that the copy restarts from
    /// [`Checkpoints::rewind`]; otherwise it is an error.
    pub(crate) fn flushed(
        &mut self,
        result: Result<(), IoError>,
        rewinds: bool,
        now: Duration,
    ) -> Result<(), CopyError> {
        let map = self.flushing.take().expect("a flush was submitted");
        match result {
            Ok(()) => self.claimed(map, now),
            Err(error) if rewinds && error.kind == IoErrorKind::CacheLost => {
                warn!(%error, "a flush under way");
                self.cache_lost = true;
                Ok(())
            }
            Err(error) => Err(CopyError::Flush(error)),
        }
    }

    /// Claims that everything finished in `map` is durable.
    pub(crate) fn claimed(&mut self, map: Map, now: Duration) -> Result<(), CopyError> {
        self.claimed = map;
        self.begin(now);
        let Some(journal) = &mut self.journal else { return Ok(()) };
        self.count += 1;
        journal.claim(&self.claimed).map_err(CopyError::Journal)
    }

    /// The durable part of the range, after the cache was lost.
    pub(crate) fn rewind(&mut self) -> Map {
        self.cache_lost = false;
        self.claimed.clone()
    }
}
