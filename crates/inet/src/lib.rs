//! TCP/IP as a state machine: RFC 9293 and its neighbours over IPv4 and IPv6, without I/O, clock, threads or randomness.
//!
//! [`Engine`] takes frames that a driver received, requests of applications and the time, and returns frames to send,
//! events for applications and the time of the next timer. Payload is never read and never copied: what an application
//! sends is a [`PayloadRef`], kept until it is acknowledged *and* no frame that refers to it waits at the driver; what
//! the network delivers is a [`FrameId`] with a range, kept until the application releases it. Checksums over payload
//! are partial on the way out and verified by the driver on the way in.
//!
//! All state of connections lies in fixed-size records of [`Memory`], which the caller lends: no pointer, no heap, no
//! clock value but [`Time`]. A copy of the records at another address, given to [`Engine::attach`], continues where
//! the former engine stopped. Read `docs/internals/net.md` first, and RFC 9293 section 3.10 before `tcp/connection.rs`.
#![forbid(unsafe_code)]

mod chain;
mod engine;
pub mod iface;
mod memory;
pub mod packet;
mod pools;
mod records;
pub mod step;
mod tcp;
mod types;

pub use engine::{Engine, SEND_PIECES_MAX, Settings};
pub use memory::{Capacity, Lend, Memory, Owned, Record, TABLE_ALIGN};
pub use pools::Drops;
pub use records::{List, NONE, Node, Slab, SlabHead};
pub use types::*;
