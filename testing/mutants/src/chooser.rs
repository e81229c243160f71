//! Reads from the environment which mutant is on. [`crate::make_tree`] copies this file into each patched crate, as its
//! module `mutant`; the patches call [`is_on`].

#![allow(dead_code, unreachable_pub)]

use std::cell::Cell;
use std::sync::OnceLock;

/// Environment variable with the name of the mutant that is on.
pub const VARIABLE: &str = "HIKYAKU_MUTANT";

/// All mutants, in the order in which their patches are applied.
pub const NAMES: [&str; 39] = [
    "DropFlush",
    "IgnoreFua",
    "AckEarly",
    "ReadEarly",
    "MisorderWrites",
    "ReuseSlot",
    "ReinstateEarly",
    "ClaimKept",
    "SkipLastFlush",
    "RetryTwice",
    "RetryElsewhere",
    "ForgetCacheLost",
    "ForgetZeroes",
    "SettleLate",
    "SkipCopyFlush",
    "ClaimUnflushed",
    "TrustBeyond",
    "SkipLastByte",
    "CopyUnflushed",
    "AbortEarly",
    "SkipJournalSync",
    "MissExchange",
    "KeepAhead",
    "RingWrap",
    "LostBell",
    "ReadTwice",
    "ReleaseAtAck",
    "GenerationUnchecked",
    "NoBackOff",
    "HeaderEarly",
    "WipeEarly",
    "CountedFirst",
    "ContextLate",
    "PairReused",
    "MarkEarly",
    "MemoryTrusted",
    "ReplayVolatile",
    "LogLate",
    "CommitEarly",
];

/// Whether this mutant is on.
pub fn is_on(name: &str) -> bool {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var(VARIABLE).ok()?;
        assert!(NAMES.contains(&&*name), "{VARIABLE}={name} is none of {NAMES:?}");
        Some(name)
    });
    chosen.as_deref() == Some(name)
}

/// Whether this mutant is on and the call is an `n`th one of this thread.
pub fn is_on_every(name: &str, n: u32) -> bool {
    thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
    is_on(name) && {
        COUNT.set(COUNT.get() + 1);
        COUNT.get().is_multiple_of(n)
    }
}
