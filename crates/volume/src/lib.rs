//! Sealed volumes: storage that somebody else keeps and that only its client can read.
//!
//! Two types, [docs/VOLUME.md](../../../docs/VOLUME.md): `luks2` is LUKS2 as cryptsetup writes it, without integrity;
//! `auth` is a LUKS2 header before blocks that are authenticated one by one. This crate knows the formats and the order
//! of writes that a power cut may interrupt anywhere. It has no I/O: callers pass bytes, randomness and a [`Storage`].

#![forbid(unsafe_code)]

pub mod auth;
pub mod luks2;
mod storage;

pub use storage::Storage;
