//! iSCSI (RFC 7143) protocol machines.
//!
//! No I/O, sockets, clock or threads; randomness and time are arguments. Read [`wire`] for the PDUs first, then
//! [`login`], then [`target`] and [`initiator`] for the machines of the full feature phase.

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
