//! NBD client: the protocol (`doc/proto.md` of the NetworkBlockDevice project, called "proto" below) and an export as a
//! [`block::Medium`].
//!
//! `wire`, `uri`, `negotiation`, `transmission`, `coverage` and `extents` are pure: bytes in, bytes and decisions out,
//! no sockets, no clock. All data of a server counts as hostile until one of them has checked it. `edge` does the I/O.
//! Read proto, "Transmission phase", before touching `transmission.rs`.

#![forbid(unsafe_code)]

mod coverage;
mod edge;
mod extents;
pub mod limits;
pub mod negotiation;
pub mod transmission;
mod uri;
pub mod wire;

#[cfg(test)]
mod tests;

pub use edge::{NbdMedium, dirty};
pub use uri::{PORT, Place, Uri, UriError};
