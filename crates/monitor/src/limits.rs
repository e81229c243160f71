//! Bounds of everything that an analysis keeps.

/// Points of pictures that a whole analysis holds: divided between its connections.
pub(crate) const SERIES_POINTS_MAX: usize = 1_000_000;
/// Bins of the rate over time of one direction.
pub(crate) const RATE_BINS_MAX: usize = 4096;
/// Segments of one direction that wait for the acknowledgement that times them.
pub(crate) const RTT_PENDING_MAX: usize = 4096;
