//! A copy with its refusals, journal, snapshot, hooks, offloads, verification and report.
//!
//! A [`Request`] contains the options; a [`Job`] applies them to two [`Address`]es, within a [`Host`]. [`Job::inspect`]
//! makes a dry run, writes nothing and returns [`Findings`]; [`Job::copy`] copies and returns [`Copied`]. A [`Failure`]
//! contains what was attempted, on which object, the cause, and a hint. [`Job::prepare`] and [`Prepared::run`] are the
//! two halves of a copy, without hooks and snapshot. [`Report`] is begun before a copy and ended after it. Each stage
//! is a module with one or two functions that take the `Job`.
//!
//! This crate handles no command line, terminal or signal. Read docs/internals/job.md first, then `job.rs`,
//! `prepared.rs`.
//!
//! Copies a file to a new file, with a journal in the state directory, and verifies it:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use job::{Job, Local, Quiet, Record, Request};
//! use mover::Plan;
//!
//! let directory = tempfile::tempdir()?;
//! let [from, to] = ["a.img", "b.img"].map(|name| directory.path().join(name));
//! std::fs::write(&from, vec![7; 1 << 20])?;
//!
//! let host = Quiet { state_dir: directory.path().join("state"), ..Quiet::default() };
//! let plan = Plan { verify: true, ..Plan::default() };
//! let request = Request { plan, journal: true, ..Request::default() };
//! let source = Local::parse(&from.display().to_string())?;
//! let destination = Local::parse(&format!("{},create,size=1M", to.display()))?;
//! let job = Job::new(&host, &request, Box::new(source), Box::new(destination));
//! let copied = job.copy(&mut Record::new())?;
//!
//! assert_eq!(copied.object()["verified"], true);
//! assert_eq!(std::fs::read(&from)?, std::fs::read(&to)?);
//! # Ok(())
//! # }
//! ```

mod address;
mod again;
mod attach;
pub mod cpu;
mod estimate;
mod failure;
mod findings;
pub mod hooks;
mod host;
mod impact;
mod job;
pub mod journal;
pub mod journals;
pub mod lock;
pub mod manifest;
mod network;
pub mod offload;
mod outcome;
mod path;
mod place;
mod prepared;
pub mod printable;
pub mod protection;
pub mod refusals;
pub mod remote;
pub mod report;
mod request;
mod series;
pub mod shell;
pub mod since;
pub mod snapshot;
mod space;
mod standard;
mod stop;
mod stream;
mod thin;
pub mod units;

pub use address::{Address, Local};
pub(crate) use attach::read_parts;
pub use attach::{attach, close, event_loop, read};
pub use estimate::Estimate;
pub use failure::{Ending, Failure, OLDER_STATE, OTHER_FRESHNESS, OTHER_KEY};
pub use findings::Findings;
pub use hooks::Hooks;
pub use host::{Host, Quiet};
pub use impact::Impact;
pub use job::Job;
pub use manifest::Written;
pub use network::Connection;
pub use offload::Offloaded;
pub use outcome::{Copied, Mismatch, Way, cpu_s_per_gb, engine_failure, mb_per_s, object};
pub use path::EndPath;
pub use place::{Place, Readers};
pub use prepared::{Pair, Prepared};
pub use remote::ByTarget;
pub use report::{Record, Report};
pub use request::{Choice, Request, Resume, request_alignment};
pub use series::{Interval, Sample, Series};
pub use since::Since;
pub use stop::{Orderly, Stop};

/// Version of every JSON object of jobs and commands; later versions only add fields.
pub const SCHEMA: u32 = 1;
