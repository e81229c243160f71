//! Initiator, target and mover under one seed, with fake clock, link and disk.
//!
//! The code of `node`, `iscsi`, `scsi`, `mover` and `io` runs unchanged on its own threads; this crate replaces the
//! operating system (`io::World`). [`world`] passes the turn to one thread at a time, `net` is TCP, [`disk`] the
//! storage, [`scenario`] the workload; [`torture::history`] checks the answers.
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

#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seed: u64,
    /// The scenario; `None`: chosen by the seed.
    pub scenario: Option<Scenario>,
    /// Whether a flush after a power cut must fail for an initiator whose writes the cut may have lost.
    pub strict: bool,
    pub trace: bool,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub counters: Counters,
    /// Hash of the trace; equal for equal seeds.
    pub hash: u64,
    pub failure: Option<String>,
}

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
