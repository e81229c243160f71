//! `view=luks2,header=FILE`: storage in plaintext, seen as a volume. `volume=luks2|auth`: the plaintext of a sealed volume ([docs/VOLUME.md](../../../../../docs/VOLUME.md)) on the storage
//! beneath. It is unlocked once, when the medium is opened; each thread's endpoint encrypts and decrypts by itself.
//!
//! `open.rs` unlocks; `luks2.rs` is the data path of LUKS2, `auth/` that of authenticated blocks; `areas.rs` the memory for
//! ciphertext, `pace.rs` turns of encryption.

mod areas;
mod auth;
mod luks2;
mod open;
mod pace;

pub use auth::open_freshness;
pub use open::{
    Keys, NoKeys, auth_of_keys, detached, flaw, limits, luks2_of_key, of_header, read_error, unlock_error,
};
pub(super) use open::{open, view};

#[cfg(test)]
mod tests;
