//! Whether storage kept its word: what to write ([`plan`]), how to know it again ([`stamp`]), which answers
//! are allowed ([`history`]).
//!
//! Everything here is pure: no I/O, no clock, no randomness but a seed. The unit is a sector of 512 bytes,
//! whatever the block size of the storage. Read `docs/internals/torture.md` first, then `history/mod.rs`.

#![forbid(unsafe_code)]

pub mod history;
pub mod journal;
pub mod plan;
pub mod random;
pub mod stamp;

/// Bytes of a sector: what a power cut may not tear.
pub const SECTOR_BYTES: usize = 512;

/// Who issues requests: a session of its own, for the history and in stamps.
pub type Client = u32;
