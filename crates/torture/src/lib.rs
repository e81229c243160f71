//! Checks storage for lost, stale and torn data: the workload ([`plan`]), the content of written sectors ([`stamp`]),
//! and the answers that are allowed ([`history`]).
//!
//! The crate is pure: no I/O, no clock, no randomness but a seed. The unit is a sector of 512 bytes, for any block size
//! of the storage. Read `docs/internals/torture.md` first, then `history/mod.rs`.

#![forbid(unsafe_code)]

pub mod history;
pub mod journal;
pub mod plan;
pub mod random;
pub mod stamp;

/// Bytes of a sector, the unit that a power failure must not tear.
pub const SECTOR_BYTES: usize = 512;

/// Number of a session that issues requests; part of its stamps.
pub type Client = u32;
