//! Memory that payload lives in, from the moment it arrives until it leaves.
//!
//! A [`Pool`] owns page-granular, pre-faulted regions and lends *areas* out of them. A
//! [`Span`] is the handle that travels instead of the bytes: (area, start, length). It never copies payload
//! on its own; every copy is an explicit [`Span::fill`] or [`Span::read`], so that they can be counted.
//!
//! Not here: anything that knows what the bytes mean, and anything that crosses threads. A pool belongs to
//! one loop thread; memory shared by threads is a [`Region`].

mod flight;
mod poison;
mod pool;
mod region;
mod span;

pub use flight::Access;
pub use pool::{Pool, PoolLimits};
pub use region::{Region, release_heap};
pub use span::Span;

/// Granularity of regions and areas, in bytes.
pub const PAGE_BYTES: usize = 4096;
