//! Requests of one thread while they are under way.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use area::Span;
use volume::auth::{BLOCK_BYTES, Context, Failure, OperationId, ReadError, RequestId, Run, Sealer, Source};
use zeroize::Zeroizing;

use crate::IoError;

/// What is written: bytes of the caller from `at`, or zeroes.
#[derive(Clone)]
pub(super) enum Plain {
    Bytes { from: Span, at: usize },
    Zeroes,
}

/// A request of the volume.
pub(super) enum Job {
    Read(Read),
    Write(Write),
    /// A flush, a discard: nothing to do but to wait.
    Other {
        parent: u64,
    },
    Close,
}

pub(super) struct Read {
    pub(super) parent: u64,
    pub(super) offset: u64,
    pub(super) into: Span,
    pub(super) fetch: Fetch,
    pub(super) sources: Option<Vec<Source>>,
    /// Its result, which waits for the end of a fetch.
    pub(super) ended: Option<Result<(), Failure<IoError>>>,
}

/// The stored bytes of a read of whole blocks.
pub(super) enum Fetch {
    Not,
    InFlight,
    Done(Result<(), IoError>),
}

pub(super) struct Write {
    pub(super) parent: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) plain: Plain,
    /// Present content of blocks that are covered in part.
    pub(super) merged: HashMap<u64, Zeroizing<Vec<u8>>>,
}

/// Blocks to look at, a piece of memory at a time: for a read that begins or ends within a block, or for a write.
pub(super) struct Examine {
    pub(super) blocks: VecDeque<(u64, Source)>,
    /// For each block looked at: the candidate that verifies.
    pub(super) found: Vec<Option<u8>>,
    /// Those in `area`, in order.
    pub(super) now: Vec<(u64, Source)>,
    /// With the number under which it was taken.
    pub(super) area: Option<(u64, Span)>,
    pub(super) in_flight: usize,
    pub(super) result: Result<(), ReadError<IoError>>,
}

/// Blocks being sealed, and written where they are for the storage.
pub(super) struct Seal {
    pub(super) runs: VecDeque<Run>,
    /// For each block of the write, in order; without a tag as long as it is not sealed.
    pub(super) contexts: Vec<Context>,
    /// Blocks that are in pieces, or were.
    pub(super) cut: usize,
    /// Pieces that are being sealed or written.
    pub(super) in_flight: u32,
    pub(super) result: Result<(), IoError>,
}

/// Blocks of a write that lie together, in memory for them.
pub(super) struct Piece {
    pub(super) id: RequestId,
    /// The number under which the memory was taken, and is written.
    pub(super) part: u64,
    pub(super) block: u64,
    /// Place of the first block's context in those of the write.
    pub(super) first: usize,
    pub(super) contexts: Vec<Context>,
    /// For the storage; else into slots, which are memory that all threads share.
    pub(super) is_stored: bool,
    pub(super) into: Span,
}

/// A piece that a helper thread seals, and where that leaves the contexts.
pub(super) struct Given {
    pub(super) piece: Piece,
    pub(super) sealed: Arc<OnceLock<Vec<Context>>>,
}

/// Work that waits for the next turn, or for memory of its own.
#[derive(Clone, Copy)]
pub(super) enum Todo {
    /// Of a read whose stored bytes are here.
    Open(RequestId),
    Examine(RequestId),
    Seal(RequestId),
}

/// What a request to the storage beneath is for.
pub(super) enum Part {
    Fetch(RequestId),
    Examine(RequestId),
    Seal(RequestId),
    /// `into`: of a read.
    Operation {
        id: OperationId,
        into: Option<Span>,
    },
}

/// A request of the caller, in one part or several of the volume.
pub(super) struct Parent {
    pub(super) id: crate::RequestId,
    /// First byte of its range; 0 for a flush.
    pub(super) offset: u64,
    pub(super) left: u32,
    /// Durable: a flush follows.
    pub(super) flushes: bool,
    pub(super) result: Result<(), IoError>,
}

impl Examine {
    pub(super) fn new(blocks: Vec<(u64, Source)>) -> Self {
        Self {
            blocks: blocks.into(),
            found: Vec::new(),
            now: Vec::new(),
            area: None,
            in_flight: 0,
            result: Ok(()),
        }
    }
}

impl Job {
    /// Whether a write has only a part of the block.
    pub(super) fn covers_in_part(&self, block: u64) -> bool {
        let Self::Write(write) = self else { return false };
        let start = block * BLOCK_BYTES as u64;
        start < write.offset || write.offset + write.length < start + BLOCK_BYTES as u64
    }
}

impl Read {
    /// Copies the part of a block that is asked for.
    pub(super) fn copy(&self, block: u64, plain: &[u8]) {
        let start = block * BLOCK_BYTES as u64;
        let end = self.offset + self.into.len() as u64;
        let (from, to) = (self.offset.max(start), end.min(start + BLOCK_BYTES as u64));
        self.into.fill((from - self.offset) as usize, &plain[(from - start) as usize..(to - start) as usize]);
    }

    /// Whether it begins and ends between blocks, so that its stored bytes can be opened where they land.
    pub(super) fn is_whole(&self) -> bool {
        let block = BLOCK_BYTES as u64;
        self.offset.is_multiple_of(block) && (self.into.len() as u64).is_multiple_of(block)
    }
}

impl Write {
    /// The plaintext of a block: the caller's bytes over the present ones.
    pub(super) fn content(&self, block: u64, into: &mut [u8]) -> Result<(), IoError> {
        let start = block * BLOCK_BYTES as u64;
        let from = self.offset.max(start);
        let end = (self.offset + self.length).min(start + BLOCK_BYTES as u64);
        let (low, high) = ((from - start) as usize, (end - start) as usize);
        if let Some(present) = self.merged.get(&block) {
            into.copy_from_slice(present);
        }
        match &self.plain {
            Plain::Zeroes => into[low..high].fill(0),
            Plain::Bytes { from: span, at } => {
                let at = at + (from - self.offset) as usize;
                span.fetch(at, &mut into[low..high])?;
            }
        }
        Ok(())
    }

    /// The caller's bytes of blocks that are covered whole, if they do not change.
    pub(super) fn steady(&self, block: u64, count: usize) -> Option<Span> {
        let (start, length) = (block * BLOCK_BYTES as u64, count * BLOCK_BYTES);
        if start < self.offset || start + length as u64 > self.offset + self.length {
            return None;
        }
        let Plain::Bytes { from, at } = &self.plain else { return None };
        from.steady()?;
        Some(from.slice(at + (start - self.offset) as usize, length))
    }
}

impl Piece {
    /// Seals its blocks of `write`.
    pub(super) fn seal(&mut self, sealer: &Sealer, write: &Write) -> Result<(), IoError> {
        let mut sealed = [0; BLOCK_BYTES];
        for (index, context) in self.contexts.iter_mut().enumerate() {
            let (at, block) = (index * BLOCK_BYTES, self.block + index as u64);
            let mut into = |into: &mut [u8]| {
                if let Some(plain) = write.steady(block, 1) {
                    seal_block(sealer, block, context, plain.as_slice(), into);
                } else {
                    let mut plain = Zeroizing::new([0; BLOCK_BYTES]);
                    write.content(block, &mut *plain)?;
                    seal_block(sealer, block, context, &*plain, into);
                }
                Ok::<(), IoError>(())
            };
            if self.is_stored {
                self.into.change(at, BLOCK_BYTES, into)?;
            } else {
                into(&mut sealed)?;
                self.into.fill(at, &sealed);
            }
        }
        Ok(())
    }
}

/// Seals a block under the generation and the nonce of its context, which gets its tag.
pub(super) fn seal_block(sealer: &Sealer, block: u64, context: &mut Context, plain: &[u8], into: &mut [u8]) {
    let Context { generation, nonce, .. } = *context;
    *context = sealer.seal(block, generation, &nonce[..sealer.cipher().nonce_bytes()], plain, into);
}
