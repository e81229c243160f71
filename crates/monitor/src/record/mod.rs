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
mod report;
mod writer;

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::SocketAddr;

use crate::event::{Event, Side};
use crate::limits::RECORD_FLOWS_MAX;
use crate::model::Cpu;
use crate::sample::Sample;

pub use reader::Reader;
pub use report::analyze;
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

/// What a recording has of a connection at a moment.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most items are samples")]
pub enum Item {
    Sample(Sample),
    Cpu(Cpu),
    Event(Event),
}

/// How a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Start in nanoseconds since 1970; `None` if no block was whole.
    pub started_unix_ns: Option<u64>,
    /// Bytes of damaged blocks, which were left out.
    pub damaged_bytes: u64,
}

/// Reads a recording from its beginning to its end. Passes each item on with its connection and that one's number,
/// which belongs to this connection alone: where a later run of `watch` used a number again, it gets another one.
pub fn read(input: impl Read, mut on: impl FnMut(usize, &Flow, Item)) -> Result<Ended, RecordError> {
    let mut reader = Reader::new(input);
    let mut flows: Vec<Flow> = Vec::new();
    let mut numbers: HashMap<u32, usize> = HashMap::new();
    while let Some(entry) = reader.next_entry()? {
        let (id, item) = match entry {
            Entry::Flow(id, flow) => {
                let same = |known: &Flow| (known.local, known.remote) == (flow.local, flow.remote);
                let known = flows.iter().position(same);
                let number = known.or_else(|| {
                    (flows.len() < RECORD_FLOWS_MAX).then(|| {
                        flows.push(flow.clone());
                        flows.len() - 1
                    })
                });
                match number {
                    // Its process or target may have become known since.
                    Some(number) => {
                        flows[number] = flow;
                        numbers.insert(id, number);
                    }
                    None => drop(numbers.remove(&id)),
                }
                continue;
            }
            Entry::Sample(id, sample) => (id, Item::Sample(sample)),
            Entry::Cpu(id, cpu) => (id, Item::Cpu(cpu)),
            Entry::Event(id, event) => (id, Item::Event(event)),
        };
        if let Some((number, flow)) = numbers.get(&id).and_then(|number| Some((*number, flows.get(*number)?)))
        {
            on(number, flow, item);
        }
    }
    Ok(Ended { started_unix_ns: reader.started_unix_ns(), damaged_bytes: reader.damaged_bytes() })
}

#[cfg(test)]
mod tests;
