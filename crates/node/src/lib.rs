//! The iSCSI node: a target daemon and an initiator endpoint, one connection driver in two roles.
//!
//! `stream/` moves PDUs for both, `reassembly.rs` finds them in the bytes. [`target`] answers commands from media;
//! [`initiator`] is itself a medium. What a PDU means is `iscsi`'s business and what a CDB means is `scsi`'s; here are
//! sockets, threads, buffers and time. Follow a READ at the target from `target/connection.rs`.

#[doc(hidden)]
pub mod reassembly;
mod sealing;
mod stream;
mod tls;

pub mod initiator;
pub mod target;

// For the fuzzer.
#[doc(hidden)]
pub use stream::{Buffer, SealedReceive};

pub use sealing::{Protection, Psk, SealPolicy};
pub use tls::{TlsFileError, TlsIdentity, TlsTrust};
