//! Initiator, target and mover under one seed, with fake clock, link and disk.
//!
//! The code of `node`, `iscsi`, `scsi`, `mover` and `io` runs as it is, on threads of its own; only what it asks of the
//! operating system is answered from here (`io::World`). [`world`] gives the turn to one thread at a time, `net` is
//! TCP, [`disk`] the storage, [`scenario`] what is done; [`torture::history`] says whether the answers
//! were right.
//!
//! Read `docs/internals/sim.md` first.

mod backend;
pub mod counters;
pub mod disk;
mod fd;
mod net;
pub mod random;
pub mod scenario;
mod state;
pub mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

pub use counters::Counters;
pub use scenario::Scenario;
use world::Context;

/// A run to be made.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Decides everything else.
    pub seed: u64,
    /// What is done; `None`: what the seed says.
    pub scenario: Option<Scenario>,
    /// A flush after a power cut must not succeed for an initiator whose writes the cut may have taken.
    pub strict: bool,
    /// Print what happens.
    pub trace: bool,
}

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What happened in it.
    pub counters: Counters,
    /// The same for the same seed.
    pub hash: u64,
    /// What went wrong.
    pub failure: Option<String>,
}

/// Makes a run.
pub fn run(run: &Run) -> Outcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::panic::set_hook(Box::new(|info| world::panicked(&info.to_string()))));
    let context = Context::begin(run.seed, run.trace).expect("descriptors for a world");
    let scenario = run.scenario.unwrap_or_else(|| Scenario::of(run.seed));
    let played = catch_unwind(AssertUnwindSafe(|| scenario.play(&context, run.strict)));
    if played.is_err() {
        context.fail("the scenario panicked");
    }
    let (counters, hash, failure) = context.finish();
    Outcome { counters, hash, failure }
}
