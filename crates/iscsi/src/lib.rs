//! iSCSI (RFC 7143) protocol machines without I/O.
//!
//! No sockets, no clock, no threads; randomness and time are arguments. Read [`wire`] for the PDUs first, then
//! [`login`] for how a connection reaches the full feature phase, then the machines of that phase.

#![forbid(unsafe_code)]

pub mod chap;
pub mod digest;
pub mod initiator;
pub mod limits;
pub mod login;
pub mod machine;
pub mod name;
pub mod params;
pub mod serial;
pub mod target;
pub mod text;
pub mod wire;
