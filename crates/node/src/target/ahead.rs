//! Sealing ahead of the command: after READs in sequence, what the next one will ask for is read and sealed while the
//! initiator is busy with the last.
//!
//! A guess is given to a READ of exactly its blocks, and only if the unit has not changed (by any session), nobody has reset it,
//! and little time has passed, since before the guess was read. What it sealed for nothing leaves a gap in the seal-ids,
//! which is legal.

use std::time::Duration;

use area::Span;
use block::{Kind, Request};
use iscsi::machine::TaskId;
use seal::Suite;

use super::connection::{Connection, Context, Phase};
use crate::sealing::ahead_bytes_max;
use crate::stream::Prepared;

/// A guess is given up after this: the storage may have other writers than us.
const AGE_MAX: Duration = Duration::from_millis(500);
/// READs in sequence, of one length, before a guess.
const STREAK_MIN: u32 = 2;
/// What the reads of guesses are called at the endpoints, in place of a task.
pub(super) const AHEAD: u32 = u32::MAX;

/// Blocks of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Its slot.
    pub(super) lun: usize,
    pub(super) lba: u64,
    pub(super) blocks: u64,
}

impl Extent {
    fn next(self) -> Option<Self> {
        Some(Self { lba: self.lba.checked_add(self.blocks)?, ..self })
    }
}

/// What the next READ will ask for, perhaps.
pub(super) struct Guess {
    extent: Extent,
    /// Changes of the unit before it was read.
    changes: u64,
    began: Duration,
    pub(super) plain: Span,
    is_read: bool,
    pub(super) prepared: Prepared,
}

impl Guess {
    pub(super) fn new(extent: Extent, changes: u64, now: Duration, plain: Span) -> Self {
        Self { extent, changes, began: now, plain, is_read: false, prepared: Prepared::default() }
    }

    /// One that the storage lends: nothing is to be read.
    pub(super) fn lent(extent: Extent, changes: u64, now: Duration, plain: Span) -> Self {
        Self { is_read: true, ..Self::new(extent, changes, now, plain) }
    }

    /// Read, and not all of it sealed.
    fn wants_sealing(&self) -> bool {
        self.is_read && self.prepared.bytes() < self.plain.len()
    }
}

/// One connection's guessing.
pub(super) struct Ahead {
    /// Longest READ that is guessed; 0: none.
    bytes_max: usize,
    last: Option<Extent>,
    streak: u32,
    guess: Option<Guess>,
    /// A read for a guess, perhaps one that was given up, is with the storage.
    is_reading: bool,
}

impl Ahead {
    /// That of a session without seal: nothing is guessed.
    pub(super) fn off() -> Self {
        Self { bytes_max: 0, last: None, streak: 0, guess: None, is_reading: false }
    }

    pub(super) fn new(suite: Suite) -> Self {
        Self { bytes_max: ahead_bytes_max(suite), ..Self::off() }
    }

    /// The longest READ, in bytes, that is guessed; longer ones are none of its business: a thread that looks for an idle
    /// moment does not look for work meanwhile, and sleeps too soon.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// A READ of no more than [`Self::bytes_max`] has come. Returns the guess if it is one of exactly this, and as good as reading now.
    pub(super) fn on_read(&mut self, extent: Extent, changes: u64, now: Duration) -> Option<Guess> {
        let follows = self.last.and_then(Extent::next) == Some(extent);
        self.streak = if follows { self.streak.saturating_add(1) } else { 0 };
        self.last = Some(extent);
        let guess = self.guess.take()?;
        let is_good = guess.extent == extent && guess.is_read && guess.changes == changes;
        (is_good && now < guess.began + AGE_MAX).then_some(guess)
    }

    /// What to read next, if anything.
    pub(super) fn wanted(&self) -> Option<Extent> {
        let may = self.bytes_max > 0 && self.guess.is_none() && !self.is_reading && self.streak >= STREAK_MIN;
        self.last.filter(|_| may).and_then(Extent::next)
    }

    /// Whether there is something to do that needs nobody else.
    pub(super) fn is_eager(&self) -> bool {
        self.wanted().is_some() || self.guess.as_ref().is_some_and(Guess::wants_sealing)
    }

    /// A guess whose bytes are being read, or lent.
    pub(super) fn begin(&mut self, guess: Guess) {
        self.is_reading = !guess.is_read;
        self.guess = Some(guess);
    }

    /// It cannot be guessed: not before the next READ.
    pub(super) fn give_up(&mut self) {
        self.streak = 0;
    }

    /// The bytes of the guess are there, or not.
    pub(super) fn on_completion(&mut self, is_read: bool) {
        self.is_reading = false;
        match &mut self.guess {
            Some(guess) if is_read => guess.is_read = true,
            _ => self.guess = None,
        }
    }

    /// The guess to seal more of.
    pub(super) fn unsealed(&mut self) -> Option<&mut Guess> {
        self.guess.as_mut().filter(|guess| guess.wants_sealing())
    }

    /// A read for a guess is with the storage.
    pub(super) fn is_reading(&self) -> bool {
        self.is_reading
    }

    /// When to call [`Self::expire`].
    pub(super) fn due(&self) -> Option<Duration> {
        self.guess.as_ref().map(|guess| guess.began + AGE_MAX)
    }

    /// Drops a guess that is too old, and guesses no more until there is a sequence again.
    pub(super) fn expire(&mut self, now: Duration) {
        if self.due().is_some_and(|due| now >= due) {
            (self.guess, self.streak) = (None, 0);
        }
    }

    /// Units have come or gone: what was read last says nothing of what comes.
    pub(super) fn forget(&mut self) {
        (self.guess, self.streak, self.last) = (None, 0, None);
    }

    /// Nothing will be read any more.
    pub(super) fn end(&mut self) {
        (self.guess, self.streak) = (None, 0);
    }
}

impl Connection {
    /// Whether [`Self::prepare`] has something to do: what is asked for has been answered, and more of it may be asked for.
    pub(super) fn is_eager(&self) -> bool {
        self.phase == Phase::Open && self.ahead.is_eager() && self.tasks.iter().all(Option::is_none)
    }

    /// One step ahead of the initiator: begins to read what it will ask for, or seals a unit of that.
    pub(super) fn prepare(&mut self, context: &mut Context<'_>) {
        if let Some(extent) = self.ahead.wanted() {
            return match self.guess(context, extent) {
                Some((guess, None)) => self.ahead.begin(guess),
                Some((guess, Some(kind))) => {
                    self.ahead.begin(guess);
                    let id = self.request_id(TaskId(AHEAD));
                    context.units[extent.lun].submit(context.io, Request { id, kind }, context.done);
                }
                None => self.ahead.give_up(),
            };
        }
        if let Some(Guess { plain, prepared, .. }) = self.ahead.unsealed() {
            let is_sealed = self.stream.seal_ahead(context.io, plain, prepared);
            if !is_sealed {
                self.ahead.end();
            }
        }
    }

    /// A guess, and how to read it if the storage does not lend it. `None`: nothing is there, or there is no
    /// memory.
    fn guess(&self, context: &mut Context<'_>, extent: Extent) -> Option<(Guess, Option<Kind>)> {
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
        if let Some(stored) = context.units[extent.lun].lend(offset, bytes, self.stream.looks()) {
            return Some((Guess::lent(extent, changes, now, stored), None));
        }
        let into = context.io.pool().take(bytes)?;
        let guess = Guess::new(extent, changes, now, into.clone());
        Some((guess, Some(Kind::Read { offset, into })))
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

    /// After three READs in sequence, with a guess that is read.
    fn guessing(changes: u64) -> Ahead {
        let pool = Pool::new(PoolLimits::default());
        let mut ahead = Ahead { bytes_max: 512 << 10, ..Ahead::off() };
        for lba in [0, 8, 16] {
            assert!(ahead.wanted().is_none(), "no sequence yet");
            assert!(ahead.on_read(extent(lba), changes, NOW).is_none());
        }
        assert_eq!(ahead.wanted(), Some(extent(24)));
        ahead.begin(Guess::new(extent(24), changes, NOW, pool.take(4096).unwrap()));
        assert!(ahead.wanted().is_none(), "one at a time");
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
    fn a_guess_that_was_not_read_serves_nobody() {
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
        assert!(ahead.guess.is_none() && !ahead.is_eager());
    }
}
