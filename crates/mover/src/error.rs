//! Errors of a copy or a comparison.

use std::fmt;
use std::io;

use block::IoError;
use thiserror::Error;

use crate::plan::Refusal;
use crate::progress::Phase;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Source,
    /// The end that is written; a verification or a comparison reads it.
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

/// The first error. Everything in flight was drained, except after `Loop`.
#[derive(Debug, Error)]
pub enum CopyError {
    /// A read failed: of the source, or of the destination while verifying or comparing.
    #[error("reading {length} bytes of the {end} at {offset}: {error}")]
    Read { end: End, offset: u64, length: u64, error: IoError },
    #[error("writing {length} bytes of the destination at {offset}: {error}")]
    Write { offset: u64, length: u64, error: IoError },
    /// The flush failed: written data may be lost. A flush is never repeated after an error, since a later success
    /// would prove nothing.
    #[error("flushing the destination: {0}")]
    Flush(IoError),
    /// An end is no longer the storage that was opened. Data may have been written to another disk.
    #[error("the {end} is not what was opened: {error}")]
    Gone { end: End, error: IoError },
    #[error("verification: the destination differs from the source in the {length} bytes at {offset}")]
    Verify {
        /// Offset in the destination of the first chunk that differs, in bytes.
        offset: u64,
        length: u64,
    },
    /// The stream has more bytes than the destination has room for. The bytes that fit were written.
    #[error("the stream is longer than the {room} bytes that the destination has room for")]
    Long {
        /// Bytes from the offset to the end of the destination.
        room: u64,
    },
    /// The stream ended early. The bytes received were written and flushed.
    #[error("the stream ended after {bytes} of {expected} bytes")]
    Short { bytes: u64, expected: u64 },
    /// The journal could not be written. Its existing claims are valid, but it no longer follows the copy.
    #[error("writing the journal: {0}")]
    Journal(String),
    /// The observer stopped the copy. Requests in flight were finished and flushed.
    #[error("interrupted; the first {bytes_safe} bytes are done")]
    Interrupted {
        phase: Phase,
        /// Bytes from the start of the range that are copied and flushed (compared, in a comparison).
        bytes_safe: u64,
    },
    /// The completion loop failed, or the pool has no memory for the smallest chunk.
    #[error("completion loop: {0}")]
    Loop(#[source] io::Error),
    /// The plan was refused before anything was started.
    #[error(transparent)]
    Refused(#[from] Refusal),
}
