//! Recordings of `watch --record`: samples of sockets and, where packets were seen, events.
//!
//! A file is a row of blocks that do not depend on each other: `HKWR`, version (u16), zero (u16), length (u32), CRC32C
//! (u32), then `length` bytes of records; all numbers little-endian. A record is its kind (u8), its length (varint) and
//! its body; readers skip kinds that they do not know. Every block begins with `Start` (the clocks), and names each
//! connection before its first record. So a file can be appended to, and what follows a damaged block is still read.
//! A sample is written as its difference from the one before in its block: about 40 bytes.

mod bytes;
mod columns;
mod event;
mod reader;
mod writer;

use std::io;
use std::net::SocketAddr;

use crate::event::{Event, Side};
use crate::model::Cpu;
use crate::sample::Sample;

pub use reader::Reader;
pub use writer::Writer;

const MAGIC: [u8; 4] = *b"HKWR";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 16;

const START: u8 = 1;
const FLOW: u8 = 2;
const SAMPLE: u8 = 3;
const CPU: u8 = 4;
const EVENT: u8 = 5;

/// Whether a file that begins so is a recording.
pub fn is_recording(beginning: &[u8]) -> bool {
    beginning.starts_with(&MAGIC)
}

/// A connection of a recording, as the recording end saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Which end was recorded.
    pub side: Side,
    /// Names that peers and processes chose: to be escaped where they are shown. Empty: unknown.
    pub congestion: String,
    pub process: String,
    pub target: String,
}

/// One thing that was recorded. Times are nanoseconds since the start of the recording.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most entries are samples")]
pub enum Entry {
    /// Comes before the first entry of the connection, and again in later blocks.
    Flow(u32, Flow),
    Sample(u32, Sample),
    /// Processor use of the socket's process since the one before.
    Cpu(u32, Cpu),
    Event(u32, Event),
}

/// Why a recording cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is no recording of watch")]
    Foreign,
    #[error("it has version {0} of the format; this program reads version {VERSION}")]
    Version(u16),
    #[error("it has reached {0} bytes, the most that a recording may have")]
    Full(u64),
}

#[cfg(test)]
mod tests;
