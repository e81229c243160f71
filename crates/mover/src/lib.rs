//! Copy engine over two endpoints: source, destination, offsets and size in one call.
//!
//! One loop thread keeps several chunks in flight. A chunk is read into an area and written out of the same
//! area; reads and writes overlap; one flush ends the copy. The engine says what limited it, and nothing
//! half-done looks finished: the first error stops new reads, everything in flight is drained, and the caller
//! gets the error.
//!
//! Not here: what storage is (`block`), iSCSI, names of endpoints, progress bars. The engine has the loop to
//! itself while it runs: events of owners other than the two endpoints are dropped.
//!
//! Read `docs/internals/mover.md` first, then `engine.rs`.

#![forbid(unsafe_code)]

mod checkpoint;
mod compare;
mod copy;
mod cutter;
mod depth;
mod engine;
mod error;
mod journal;
mod latency;
mod limit;
mod load;
mod map;
mod mapfile;
mod plan;
mod progress;
mod rate;
mod rescue;
mod verify;
mod zero;

pub use checkpoint::{CHECKPOINT_EVERY, Journal};
pub use compare::{Comparison, compare};
pub use copy::{AREAS_MAX, Area, Report, copy, copy_with_journal};
pub use engine::Side;
pub use error::{CopyError, End};
pub use journal::{FileJournal, read_mapfile};
pub use latency::Latency;
pub use limit::{Limit, Shares};
pub use load::{LOAD_BLOCKS_MAX, Load, LoadError, LoadFigures, LoadPlan, Until};
pub use map::{Map, Status, Stretch};
pub use mapfile::{Label, MAPFILE_BYTES_MAX, MAPFILE_VERSION, Mapfile, MapfileError, Mismatch};
pub use plan::{
    BLOCK_BYTES_MIN, CHUNK_BYTES_DEFAULT_MAX, CHUNK_BYTES_DEFAULT_MIN, CHUNK_BYTES_MAX, Checked,
    DEPTH_DEFAULT, DEPTH_MAX, Plan, Refusal, UNIT_BYTES_MIN, plan_check,
};
pub use progress::{Control, OBSERVE_EVERY, Phase, Progress};

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;
