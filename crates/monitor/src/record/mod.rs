//! Recordings of `watch`.
