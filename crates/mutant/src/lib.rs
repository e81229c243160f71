//! Defects on demand: what the simulator and the torture test must find.
//!
//! Each [`Mutant`] is a mistake that somebody could make, at the place where it would be made. Without the feature `mutants`
//! [`is_on`] is `false` at compile time and nothing of them is left. With it, `HIKYAKU_MUTANT` names the one that is on.
//!
//! What they are for and what a new one needs: `docs/internals/mutants.md`.

#![forbid(unsafe_code)]

/// One defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Target: every third flush is answered without asking the storage.
    DropFlush,
    /// Target: FUA is taken for an ordinary write.
    IgnoreFua,
    /// Target: a write is answered when its data has arrived, before the storage has it.
    AckEarly,
    /// Target: a read is answered from its buffer before the storage has filled it.
    ReadEarly,
    /// Target: an acknowledged write reaches the storage behind a later one of the same blocks.
    MisorderWrites,
    /// Target: a command gets the buffer of one that is answered, whose data still has to be sent.
    ReuseSlot,
    /// Target: a login is answered before the tasks of the session it replaces have ended.
    ReinstateEarly,
    /// Target: every initiator is told that the target has kept running.
    ClaimKept,
    /// Target: it ends without the last flush.
    SkipLastFlush,
    /// Initiator: after a lost connection each write is sent twice.
    RetryTwice,
    /// Initiator: a lost cache is not told to anyone.
    ForgetCacheLost,
    /// Initiator: only data counts as volatile, zeroes and discards do not.
    ForgetZeroes,
    /// Initiator: a flush settles what was acknowledged before its end, not before its beginning.
    SettleLate,
    /// Mover: a copy ends without its flush.
    SkipCopyFlush,
    /// Mover: what is finished is claimed when the flush begins, not when it has ended.
    ClaimUnflushed,
    /// Mover: a copy that is resumed takes four kilobytes more for finished than the map says.
    TrustBeyond,
    /// Mover: the last byte of a chunk is not looked at when zeroes are searched.
    SkipLastByte,
    /// Target: a copy to a unit without a volatile cache is answered before the storage has it for good.
    CopyUnflushed,
    /// Target: the abort of a copy is answered while its last writes are with the storage.
    AbortEarly,
    /// Mover: the journal's new file is not synchronised before it is renamed.
    SkipJournalSync,
    /// Initiator: another disk at the same address is taken for the one that was there.
    MissExchange,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::DropFlush,
        Self::IgnoreFua,
        Self::AckEarly,
        Self::ReadEarly,
        Self::MisorderWrites,
        Self::ReuseSlot,
        Self::ReinstateEarly,
        Self::ClaimKept,
        Self::SkipLastFlush,
        Self::RetryTwice,
        Self::ForgetCacheLost,
        Self::ForgetZeroes,
        Self::SettleLate,
        Self::SkipCopyFlush,
        Self::ClaimUnflushed,
        Self::TrustBeyond,
        Self::SkipLastByte,
        Self::CopyUnflushed,
        Self::AbortEarly,
        Self::SkipJournalSync,
        Self::MissExchange,
    ];
}

#[cfg(not(feature = "mutants"))]
mod chosen {
    use super::Mutant;

    /// Whether this defect is wanted: never, in this build.
    #[inline(always)]
    pub const fn is_on(_: Mutant) -> bool {
        false
    }

    /// Whether it is wanted this time, which is every `n`th on this thread: never, in this build.
    #[inline(always)]
    pub const fn is_on_every(_: Mutant, _n: u32) -> bool {
        false
    }

    /// Leaves an item for later and takes the one left before: there is none, in this build.
    #[inline(always)]
    pub fn exchange<T: 'static>(_: Option<T>) -> Option<T> {
        None
    }
}

#[cfg(feature = "mutants")]
mod chosen {
    use std::any::Any;
    use std::cell::{Cell, RefCell};
    use std::sync::OnceLock;

    use super::Mutant;

    thread_local! {
        static COUNT: Cell<u32> = const { Cell::new(0) };
        static LEFT: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
    }

    fn chosen() -> Option<Mutant> {
        let name = std::env::var("HIKYAKU_MUTANT").ok()?;
        let found = Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name);
        assert!(found.is_some(), "HIKYAKU_MUTANT={name} is none of {:?}", Mutant::ALL);
        found
    }

    /// Whether this defect is wanted.
    pub fn is_on(mutant: Mutant) -> bool {
        static CHOSEN: OnceLock<Option<Mutant>> = OnceLock::new();
        *CHOSEN.get_or_init(chosen) == Some(mutant)
    }

    /// Whether it is wanted this time, which is every `n`th on this thread.
    pub fn is_on_every(mutant: Mutant, n: u32) -> bool {
        is_on(mutant) && {
            COUNT.set(COUNT.get() + 1);
            COUNT.get().is_multiple_of(n)
        }
    }

    /// Leaves an item for later and takes the one left before, on this thread.
    pub fn exchange<T: 'static>(item: Option<T>) -> Option<T> {
        let item = item.map(|item| Box::new(item) as Box<dyn Any>);
        let left = LEFT.with(|left| left.replace(item))?;
        left.downcast().ok().map(|left| *left)
    }
}

pub use chosen::{exchange, is_on, is_on_every};
