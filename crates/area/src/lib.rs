//! Memory for payload, from its arrival until it leaves.
//!
//! A [`Pool`] owns page-granular, pre-faulted regions and allocates *areas* of them. A [`Span`] is the handle that is
//! passed instead of the bytes: (area, start, length). It never copies payload implicitly; every copy is an explicit
//! [`Span::fill`] or [`Span::read`], so that copies can be counted.
//!
//! The crate does not interpret the bytes. A pool and its spans belong to one loop thread; memory shared by threads, or
//! by processes, is a [`Region`]; [`ring`]s and [`Doorbell`]s carry references to it from one process to another.

mod doorbell;
mod flight;
pub mod memfd;
mod poison;
mod pool;
mod region;
pub mod ring;
mod span;

pub use doorbell::{Doorbell, Ringer};
pub use flight::Access;
pub use pool::{Mapping, Pool, PoolLimits};
pub use region::{Region, release_heap};
pub use span::Span;

/// Granularity of regions and areas, in bytes.
pub const PAGE_BYTES: usize = 4096;
