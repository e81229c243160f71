//! Flushed before it is claimed: when the destination is flushed under way, and what that proves.
//!
//! Read "What is trusted after an interruption" in `docs/internals/mover.md` first.

use std::time::Duration;

use block::{IoError, IoErrorKind, RequestId};
use tracing::warn;

use crate::error::CopyError;
use crate::map::Map;

/// Loop time between the end of one claim and the next flush.
pub const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);
/// The flush that a claim waits for; no slot has this number.
pub(crate) const FLUSH_ID: RequestId = RequestId::MAX;

/// Keeps what a copy claims to have made durable.
pub trait Journal {
    /// All that `map` says is finished will survive a power cut at the destination. Must not wait. An error ends the copy,
    /// and may be that of an earlier claim.
    fn claim(&mut self, map: &Map) -> Result<(), String>;

    /// Loop time between two claims.
    fn every(&self) -> Duration {
        CHECKPOINT_EVERY
    }
}

/// The claims of one copy.
pub(crate) struct Checkpoints<'a> {
    journal: Option<&'a mut dyn Journal>,
    /// Durable at the destination.
    claimed: Map,
    /// Finished when the flush in flight was submitted.
    flushing: Option<Map>,
    /// When the next flush is due.
    at: Duration,
    /// The destination lost what it had not flushed.
    pub(crate) cache_lost: bool,
    /// Claims made.
    pub(crate) count: u64,
}

impl<'a> Checkpoints<'a> {
    /// Without a journal nothing is claimed before the end.
    pub(crate) fn none(bytes: u64) -> Self {
        Self::new(None, Map::new(bytes))
    }

    /// `claimed` is what an earlier copy has made durable.
    pub(crate) fn new(journal: Option<&'a mut dyn Journal>, claimed: Map) -> Self {
        Self { journal, claimed, flushing: None, at: Duration::ZERO, cache_lost: false, count: 0 }
    }

    /// A phase begins.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.at = now + self.every();
    }

    fn every(&self) -> Duration {
        self.journal.as_ref().map_or(CHECKPOINT_EVERY, |journal| journal.every())
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.journal.is_some()
    }

    /// Whether to flush now: it is time, and there is something new.
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

    /// A flush is submitted. What ends from now on is not covered by it.
    pub(crate) fn flushing(&mut self, map: &Map) {
        assert!(self.flushing.is_none(), "one flush at a time");
        self.flushing = Some(map.clone());
    }

    /// That flush has ended. One that told of a lost cache makes the copy begin again from [`Checkpoints::rewind`], if
    /// `rewinds`.
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

    /// All that `map` says is durable.
    pub(crate) fn claimed(&mut self, map: Map, now: Duration) -> Result<(), CopyError> {
        self.claimed = map;
        self.begin(now);
        let Some(journal) = &mut self.journal else { return Ok(()) };
        self.count += 1;
        journal.claim(&self.claimed).map_err(CopyError::Journal)
    }

    /// What is there although the cache was lost.
    pub(crate) fn rewind(&mut self) -> Map {
        self.cache_lost = false;
        self.claimed.clone()
    }
}
