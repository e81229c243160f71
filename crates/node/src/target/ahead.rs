//! Sealing ahead of the command: after READs in sequence, the extent that the next one probably reads is read and
//! sealed while the initiator processes the last one.
//!
//! A guess is used only for a READ of exactly its blocks, and only if since the time before it was read the unit was
//! neither changed nor reset (by any session) and less than [`AGE_MAX`] has passed. Unused sealed units leave a gap in
//! the seal-ids, which is legal.

use std::time::Duration;

use area::Span;
use block::{Kind, Request, RequestId};
use seal::Suite;

use super::context::Context;
use crate::sealing::ahead_bytes_max;
use crate::stream::{Prepared, Stream};

/// Age at which a guess is dropped: the storage may have writers outside this server.
const AGE_MAX: Duration = Duration::from_millis(500);
/// Sequential READs of equal length, after the first, that precede a guess.
const STREAK_MIN: u32 = 2;
/// Task number in the request ids of reads for guesses.
pub(super) const AHEAD: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Slot of the unit.
    pub(super) lun: usize,
    pub(super) lba: u64,
    pub(super) blocks: u64,
}

impl Extent {
    fn next(self) -> Option<Self> {
        Some(Self { lba: self.lba.checked_add(self.blocks)?, ..self })
    }
}

/// The extent that the next READ is expected to read, with its data.
pub(super) struct Guess {
    extent: Extent,
    /// Value of `Lun::changes` before the extent was read.
    changes: u64,
    began: Duration,
    pub(super) plain: Span,
    is_read: bool,
    pub(super) prepared: Prepared,
}

impl Guess {
    fn new(extent: Extent, changes: u64, now: Duration, plain: Span) -> Self {
        Self { extent, changes, began: now, plain, is_read: false, prepared: Prepared::default() }
    }

    /// A guess, and the read request unless the bytes are borrowed. `None`: too long, past the end, no memory.
    fn make(context: &mut Context<'_>, stream: &Stream, extent: Extent) -> Option<(Self, Option<Kind>)> {
        let lun = &context.luns[extent.lun];
        let capability = context.units[extent.lun].capability();
        let block = u64::from(lun.block_size);
        let (offset, length) = (extent.lba.checked_mul(block)?, extent.blocks.checked_mul(block)?);
        let bytes = usize::try_from(length).ok()?;
        if length > u64::from(capability.max_transfer_bytes)
            || offset.checked_add(length)? > capability.size_bytes
        {
            return None;
        }
        let (changes, now) = (lun.changes(), context.io.now());
        if let Some(stored) = context.units[extent.lun].borrow(now, offset, bytes, stream.reader()) {
            return Some((Self { is_read: true, ..Self::new(extent, changes, now, stored) }, None));
        }
        let into = context.io.pool().take(bytes)?;
        let guess = Self::new(extent, changes, now, into.clone());
        Some((guess, Some(Kind::Read { offset, into })))
    }

    fn wants_sealing(&self) -> bool {
        self.is_read && self.prepared.bytes() < self.plain.len()
    }
}

pub(super) struct Ahead {
    /// Bytes of the longest READ that is guessed; 0: none.
    bytes_max: usize,
    last: Option<Extent>,
    streak: u32,
    guess: Option<Guess>,
    /// A read for a guess is in flight; the guess may have been dropped meanwhile.
    is_reading: bool,
}

impl Ahead {
    /// For sessions that are not sealed: makes no guesses.
    pub(super) fn off() -> Self {
        Self { bytes_max: 0, last: None, streak: 0, guess: None, is_reading: false }
    }

    pub(super) fn new(suite: Suite) -> Self {
        Self { bytes_max: ahead_bytes_max(suite), ..Self::off() }
    }

    /// The longest READ, in bytes, that is guessed. Longer ones are not: polling for idle time would delay their completions.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Processes a READ of at most [`Self::bytes_max`]. Returns a valid guess for exactly this extent.
    pub(super) fn on_read(&mut self, extent: Extent, changes: u64, now: Duration) -> Option<Guess> {
        let follows = self.last.and_then(Extent::next) == Some(extent);
        self.streak = if follows { self.streak.saturating_add(1) } else { 0 };
        self.last = Some(extent);
        let guess = self.guess.take()?;
        let is_good = guess.extent == extent && guess.is_read && guess.changes == changes;
        (is_good && now < guess.began + AGE_MAX).then_some(guess)
    }

    fn next_extent(&self) -> Option<Extent> {
        let may = self.bytes_max > 0 && self.guess.is_none() && !self.is_reading && self.streak >= STREAK_MIN;
        self.last.filter(|_| may).and_then(Extent::next)
    }

    pub(super) fn wants_prefetch(&self) -> bool {
        self.next_extent().is_some() || self.guess.as_ref().is_some_and(Guess::wants_sealing)
    }

    /// One step of work: submits the read for a guess under `id`, or seals one unit of the guess.
    pub(super) fn step(&mut self, context: &mut Context<'_>, stream: &mut Stream, id: RequestId) {
        if let Some(extent) = self.next_extent() {
            // If no guess can be made now, none is made before the next READ.
            let Some((guess, read)) = Guess::make(context, stream, extent) else { return self.streak = 0 };
            self.begin(guess);
            if let Some(kind) = read {
                context.units[extent.lun].submit(context.io, Request { id, kind }, context.done);
            }
        } else if let Some(guess) = self.guess.as_mut().filter(|guess| guess.wants_sealing()) {
            let Guess { plain, prepared, .. } = guess;
            let send = stream.sealed_send_mut();
            if !send.is_some_and(|send| send.seal_ahead(context.io.pool(), plain, prepared)) {
                self.end();
            }
        }
    }

    fn begin(&mut self, guess: Guess) {
        self.is_reading = !guess.is_read;
        self.guess = Some(guess);
    }

    pub(super) fn on_completion(&mut self, is_read: bool) {
        self.is_reading = false;
        match &mut self.guess {
            Some(guess) if is_read => guess.is_read = true,
            _ => self.guess = None,
        }
    }

    pub(super) fn is_reading(&self) -> bool {
        self.is_reading
    }

    pub(super) fn due(&self) -> Option<Duration> {
        self.guess.as_ref().map(|guess| guess.began + AGE_MAX)
    }

    /// Drops an expired guess, and makes no new one before the next sequence of READs.
    pub(super) fn expire(&mut self, now: Duration) {
        if self.due().is_some_and(|due| now >= due) {
            (self.guess, self.streak) = (None, 0);
        }
    }

    /// Resets the state because units were added or removed: the slots of past READs may be reassigned.
    pub(super) fn forget(&mut self) {
        (self.guess, self.streak, self.last) = (None, 0, None);
    }

    pub(super) fn end(&mut self) {
        (self.guess, self.streak) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use area::{Pool, PoolLimits};

    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    fn extent(lba: u64) -> Extent {
        Extent { lun: 0, lba, blocks: 8 }
    }

    /// The state after three READs in sequence, with a guess whose data was read.
    fn guessing(changes: u64) -> Ahead {
        let pool = Pool::new(PoolLimits::default());
        let mut ahead = Ahead { bytes_max: 512 << 10, ..Ahead::off() };
        for lba in [0, 8, 16] {
            assert!(ahead.next_extent().is_none(), "no sequence yet");
            assert!(ahead.on_read(extent(lba), changes, NOW).is_none());
        }
        assert_eq!(ahead.next_extent(), Some(extent(24)));
        ahead.begin(Guess::new(extent(24), changes, NOW, pool.take(4096).unwrap()));
        assert!(ahead.next_extent().is_none(), "one at a time");
        ahead.on_completion(true);
        ahead
    }

    #[test]
    fn a_guess_serves_the_read_of_its_blocks() {
        let guess = guessing(7).on_read(extent(24), 7, NOW);
        assert_eq!(guess.map(|guess| guess.extent), Some(extent(24)));
    }

    #[test]
    fn a_guess_is_dropped_by_a_change_by_age_and_by_another_read() {
        for (read, changes, now) in
            [(extent(24), 8, NOW), (extent(24), 7, NOW + AGE_MAX), (extent(25), 7, NOW)]
        {
            let mut ahead = guessing(7);
            assert!(ahead.on_read(read, changes, now).is_none(), "{read:?} {changes} {now:?}");
            assert!(ahead.guess.is_none());
        }
    }

    #[test]
    fn a_guess_that_was_not_read_is_not_used() {
        let mut ahead = guessing(7);
        ahead.guess.as_mut().unwrap().is_read = false;
        assert!(ahead.on_read(extent(24), 7, NOW).is_none());
    }

    #[test]
    fn the_memory_of_a_guess_goes_with_its_age() {
        let mut ahead = guessing(7);
        ahead.expire(NOW + AGE_MAX / 2);
        assert!(ahead.guess.is_some());
        ahead.expire(ahead.due().unwrap());
        assert!(ahead.guess.is_none() && !ahead.wants_prefetch());
    }
}
