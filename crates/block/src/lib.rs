//! Endpoints: everything that stores blocks, behind one interface; and the layers that wrap them.
//!
//! A [`Medium`] is opened once and shared by threads; [`Medium::attach`] makes the [`Endpoint`] through which
//! one loop thread submits [`Request`]s. A layer implements the trait it wraps and may delay, refuse or
//! reorder, but never looks at what the bytes mean.
//!
//! Not here: iSCSI (`node`), copying (`mover`). Start with `endpoint.rs`.

mod backlog;
mod endpoint;
mod error;
mod file;
mod fingerprint;
mod input;
mod lock;
mod memory;
mod open;
mod pattern;
mod readiness;
mod router;
mod shared;
mod size;
mod spec;
mod write_cache;

pub mod device;
pub mod layer;
pub mod offload;
pub mod signature;
pub mod thin;

pub use backlog::{Backlog, Backoff, Run, Work};
pub use endpoint::{
    Capability, Certainty, Completion, Endpoint, Extent, Identity, Kind, Looks, Medium, Request, RequestId,
    State,
};
pub use error::{IoError, IoErrorKind, OpenError};
pub use file::FileMedium;
pub use fingerprint::Fingerprint;
pub use input::open_input;
pub use memory::{MemoryMedium, NullMedium};
pub use open::{LOCAL_OPTIONS, OpenOptions, open};
pub use pattern::{PatternMedium, fill as fill_pattern};
pub use readiness::{close_all, wait_ready};
pub use router::Router;
pub use shared::{SharedError, unshared};
pub use size::{parse_rate, parse_size};
pub use spec::{Location, Spec, SpecError};
pub use write_cache::{Mark, WriteCache};
