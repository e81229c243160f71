//! The iSCSI node: a target daemon and an initiator endpoint, which share one connection driver.
//!
//! `stream/` moves PDUs for both roles, `reassembly.rs` finds them in the byte stream. [`target`] answers commands from
//! media; [`initiator`] is itself a medium. The crate `iscsi` interprets PDUs and `scsi` interprets CDBs; this crate
//! adds sockets, threads, buffers and time. To follow a READ at the target, start at `target/connection.rs`.

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
