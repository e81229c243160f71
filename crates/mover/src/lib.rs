//! Copy engine over two endpoints: source, destination, offsets and size in one call.
//!
//! One loop thread keeps several chunks in flight. A chunk is read into an area and written from the same area; reads
//! and writes overlap; one flush ends the copy. The report names the resource that limited the copy. An incomplete copy
//! never returns success: the first error stops new reads, everything in flight is drained, and the caller gets the
//! error.
//!
//! # One call
//! [`copy()`] takes source, destination, offsets and size, and returns when the written data is durable:
//!
//! ```
//! use mover::{Control, Plan, copy};
//!
//! // Storage by its words; a path is a file or a device. LUNs are opened by crate `node`, exports by crate `nbd`.
//! let options = block::OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
//! let source = block::open(&block::Spec::parse("pattern:8M:1")?, &options)?;
//! let destination = block::open(&block::Spec::parse("mem:4M")?, &options)?;
//!
//! // The loop and all of its memory are this thread's.
//! let mut io = io::Io::new(area::PoolLimits::default())?;
//! let (mut from, mut to) = (source.attach(&mut io)?, destination.attach(&mut io)?);
//! block::wait_ready(&mut io, &mut [&mut *from, &mut *to])?;
//!
//! let plan = Plan { src_offset: 1 << 20, size: Some(3 << 20), verify: true, ..Plan::default() };
//! let report = copy(&mut io, &mut *from, &mut *to, &plan, &mut |_| Control::Continue)?;
//! assert_eq!(report.bytes, 3 << 20);
//! assert!(report.verified);
//! block::close_all(&mut io, &mut [&mut *from, &mut *to]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/copy.rs` is a complete program. [`copy_with_journal`] is for a copy that can be resumed after a crash;
//! [`compare()`] reads both ends and writes neither. [`copy_from_stream`] and [`copy_to_stream`] are for pipes.
//!
//! # Progress and cancellation
//! The observer is called at the end of each phase, and in between at most every [`OBSERVE_EVERY`], on the thread of
//! the copy. It receives the [`Progress`] and returns whether to continue. After [`Control::Stop`] no new run is
//! started, runs in flight are written and flushed, and the copy ends with [`CopyError::Interrupted`], which contains
//! the number of safe bytes:
//!
//! ```
//! use mover::{Control, CopyError, Plan, copy};
//!
//! # let options = block::OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
//! # let source = block::open(&block::Spec::parse("pattern:1G,limit=100MB/s")?, &options)?;
//! # let destination = block::open(&block::Spec::parse("null:1G")?, &options)?;
//! # let mut io = io::Io::new(area::PoolLimits::default())?;
//! # let (mut from, mut to) = (source.attach(&mut io)?, destination.attach(&mut io)?);
//! let mut observer = |now: &mover::Progress| {
//!     println!("{:?}: {} of {} bytes", now.phase, now.bytes, now.total);
//!     if now.bytes > 1 << 20 { Control::Stop } else { Control::Continue }
//! };
//! match copy(&mut io, &mut *from, &mut *to, &Plan::default(), &mut observer) {
//!     Err(CopyError::Interrupted { bytes_safe, .. }) => assert!(bytes_safe > 0 && bytes_safe < 1 << 30),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! To stop from another thread or a signal handler, set an `AtomicBool` that the observer reads. Endpoints, loop and
//! pool can be used again afterwards, also after an error, except after [`CopyError::Loop`].
//!
//! Not here: storage (`block`), iSCSI, names of endpoints, progress bars. While the engine runs, the loop belongs to
//! it: events of owners other than the two endpoints are dropped.
//!
//! Read `docs/internals/mover.md` first, then `engine.rs`.

#![forbid(unsafe_code)]

mod admission;
mod checkpoint;
mod compare;
mod copy;
mod cutter;
mod depth;
mod driver;
mod engine;
mod error;
mod extent;
mod geometry;
mod impact;
mod journal;
mod latency;
mod limit;
mod load;
mod manifest;
mod map;
mod mapfile;
mod meter;
mod operation;
mod parts;
mod plan;
mod progress;
mod rate;
mod recheck;
mod regulator;
mod rescue;
mod sharing;
mod slot;
mod stream;
mod sums;
mod textfile;
mod tree;
mod verify;
mod watch;
mod zero;

pub use checkpoint::{CHECKPOINT_EVERY, Journal};
pub use compare::{Comparison, compare};
pub use copy::{AREAS_MAX, Area, Report, copy, copy_with_journal};
pub use error::{CopyError, End};
pub use impact::{Disk, Impact, ReadCounter, Yielded};
pub use journal::{FileJournal, read_mapfile};
pub use latency::Latency;
pub use limit::{Limit, Shares};
pub use load::{LOAD_BLOCKS_MAX, Load, LoadError, LoadFigures, LoadPlan, Until};
pub use manifest::{
    MANIFEST_BYTES_MAX, MANIFEST_VERSION, Manifest, ManifestError, check_manifest_place, read_manifest,
    write_manifest,
};
pub use map::{Map, MapEntry, Status};
pub use mapfile::{Label, MAPFILE_BYTES_MAX, MAPFILE_VERSION, Mapfile, MapfileError, Mismatch, Origin};
pub use meter::Side;
pub use plan::{
    BLOCK_BYTES_MIN, CHUNK_BYTES_DEFAULT_MAX, CHUNK_BYTES_DEFAULT_MIN, CHUNK_BYTES_MAX, Checked,
    DEPTH_DEFAULT, DEPTH_MAX, Plan, Refusal, UNIT_BYTES_MIN, plan_check,
};
pub use progress::{Control, OBSERVE_EVERY, Phase, Progress};
pub use rate::{HeldUnlimited, RateLimit};
pub use recheck::{Recheck, recheck};
pub use stream::{copy_from_stream, copy_to_stream};
pub use sums::{Content, EXTENT_BYTES_MIN, EXTENTS_MAX, Sum, Sums};

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;
