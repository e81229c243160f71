//! Captures: reads TCP segments out of them, and writes captures that carry comments or carry no payload.
//!
//! [`Reader`] takes pcap and pcapng, gzip of either, from a file or a pipe, and yields a [`crate::packet::Packet`] for
//! each TCP segment. It never interprets payload, follows no connection, and drops no duplicate.

mod comments;
mod container;
mod error;
mod headers;
mod input;
mod link;
mod live;
pub mod pcapng;
mod reader;
pub mod slim;

#[cfg(test)]
mod tests;

pub use comments::Comments;
pub use container::Frame;
pub use error::{COMMAND, CaptureError, Note, SNAP_BYTES};
pub(crate) use live::live;
pub use reader::{Counts, Reader};
