//! Why a copy or a comparison did not finish.

use std::fmt;
use std::io;

use block::IoError;
use thiserror::Error;

use crate::plan::Refusal;
use crate::progress::Phase;

/// One of the two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Read from.
    Source,
    /// Written to; read from in a verification or a comparison.
    Destination,
}

impl End {
    /// Index into a pair (source, destination).
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Source => 0,
            Self::Destination => 1,
        }
    }

    pub(crate) const BOTH: [Self; 2] = [Self::Source, Self::Destination];
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}

/// The first thing that went wrong. Everything that was in flight has been drained, except after `Loop`.
#[derive(Debug, Error)]
pub enum CopyError {
    /// A read failed: of the source, or of the destination while verifying or comparing.
    #[error("reading {length} bytes of the {end} at {offset}: {error}")]
    Read {
        /// Which endpoint.
        end: End,
        /// Byte offset in that endpoint.
        offset: u64,
        /// Bytes of the request.
        length: u64,
        /// What it said.
        error: IoError,
    },
    /// A write to the destination failed.
    #[error("writing {length} bytes of the destination at {offset}: {error}")]
    Write {
        /// Byte offset in the destination.
        offset: u64,
        /// Bytes of the request.
        length: u64,
        /// What it said.
        error: IoError,
    },
    /// The flush failed: what was written may be lost. It is never repeated into success.
    #[error("flushing the destination: {0}")]
    Flush(IoError),
    /// An end is not the storage that was opened any more. What was written may be on another disk.
    #[error("the {end} is not what was opened: {error}")]
    Gone {
        /// Which endpoint.
        end: End,
        /// What became of it.
        error: IoError,
    },
    /// The destination does not hold what was read from the source.
    #[error("verification: the destination differs from the source in the {length} bytes at {offset}")]
    Verify {
        /// Byte offset in the destination of the first chunk that differs.
        offset: u64,
        /// Bytes of the chunk.
        length: u64,
    },
    /// A stream goes on although the destination is full. What fits was written; the rest was not.
    #[error("the stream is longer than the {room} bytes that the destination has room for")]
    Long {
        /// Bytes from the offset to the end of the destination.
        room: u64,
    },
    /// A stream ended too soon. What came was written and flushed.
    #[error("the stream ended after {bytes} of {wanted} bytes")]
    Short {
        /// Bytes that came.
        bytes: u64,
        /// Bytes that were asked for.
        wanted: u64,
    },
    /// The journal could not be written. What it claims is true, but would not have become more.
    #[error("writing the journal: {0}")]
    Journal(String),
    /// The observer said stop. What was in flight was finished and flushed.
    #[error("interrupted; the first {bytes_safe} bytes are done")]
    Interrupted {
        /// What was going on.
        phase: Phase,
        /// Bytes from the start of the range that are copied and flushed (compared, in a comparison).
        bytes_safe: u64,
    },
    /// The completion loop itself failed, or there is no memory for even the smallest chunk.
    #[error("completion loop: {0}")]
    Loop(#[source] io::Error),
    /// Nothing was begun.
    #[error(transparent)]
    Refused(#[from] Refusal),
}
