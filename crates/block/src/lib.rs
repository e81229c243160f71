//! Endpoints: storage of blocks behind one interface, and the layers that wrap it.
//!
//! A [`Medium`] is opened once and shared by threads; [`Medium::attach`] creates the [`Endpoint`] through which one
//! loop thread submits [`Request`]s. A layer implements the trait that it wraps and may delay, refuse or reorder
//! requests, but never interprets the data.
//!
//! Not here: iSCSI (`node`), copying (`mover`). Start with `endpoint.rs`.

mod blocking;
mod endpoint;
mod error;
mod file;
mod input;
mod memory;
mod open;
mod path;
mod pattern;
mod readiness;
mod router;
mod size;
mod spec;

pub mod layer;
pub mod offload;
pub mod remote;

pub use blocking::Blocking;
pub use endpoint::{
    Capability, Completion, Direction, Endpoint, Evidence, Extent, Identity, Inspect, Kind, Medium, Reader,
    Request, RequestId, State,
};
pub use error::{IoError, IoErrorKind, OpenError};
pub use file::{FileMedium, NewFile, free_bytes, is_among_devices};
pub use host::{Fingerprint, differing};
pub use input::open_input;
pub use memory::{MemoryMedium, NullMedium};
pub use open::{LOCAL_OPTIONS, OpenOptions, open, open_with};
pub use path::PathReport;
pub use pattern::{PatternMedium, fill as fill_pattern};
pub use readiness::{close_all, wait_ready};
pub use router::Router;
pub use size::{parse_rate, parse_size};
pub use spec::{Location, Spec, SpecError};
