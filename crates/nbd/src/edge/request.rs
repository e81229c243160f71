//! Block requests as commands, and an export in the mover's and the target's terms.

use area::Span;
use block::{Capability, IoError, IoErrorKind, Kind};

use crate::negotiation::{BlockSizes, Export};
use crate::transmission::{Command, ServerError};
use crate::wire::flag;

/// Longest data of a request of ours.
const TRANSFER_BYTES_MAX: u32 = 8 << 20;
/// Longest data for a server that does not tell (proto, "Block size constraints").
const TRANSFER_BYTES_DEFAULT: u32 = 32 << 20;
/// A command without data covers at most this many bytes, so that it ends in time.
const RANGE_BYTES_MAX: u64 = 64 << 20;
/// Chunk that a server moves best, if it has no larger wish.
const OPTIMAL_BYTES: u32 = 1 << 20;
/// Requests an export is worth having in flight.
const QUEUE_DEPTH: u32 = 32;

const _: () = assert!(TRANSFER_BYTES_MAX <= TRANSFER_BYTES_DEFAULT);
const _: () = assert!(QUEUE_DEPTH as usize <= crate::limits::TASKS_MAX);

/// What the export can do.
pub(super) fn capability(export: &Export, read_only: bool) -> Capability {
    // Whoever says nothing should take single bytes, but whoever wants to be understood asks for sectors.
    let untold = BlockSizes {
        minimum: if export.size.is_multiple_of(512) { 512 } else { 1 },
        preferred: 4096,
        maximum: TRANSFER_BYTES_DEFAULT,
    };
    let BlockSizes { minimum, preferred, maximum } = export.blocks.unwrap_or(untold);
    let block_size = if minimum > 512 { 4096 } else { 512 };
    let max_transfer_bytes = maximum.min(TRANSFER_BYTES_MAX) / minimum * minimum;
    Capability {
        // What is beyond the last whole block cannot be reached.
        size_bytes: export.size / u64::from(minimum) * u64::from(minimum),
        block_size,
        physical_block_size: preferred.clamp(block_size, 65536),
        granularity: minimum,
        alignment: minimum.max(512),
        max_transfer_bytes,
        optimal_transfer_bytes: preferred.max(OPTIMAL_BYTES).min(max_transfer_bytes),
        queue_depth: QUEUE_DEPTH,
        read_only: read_only || export.has(flag::READ_ONLY),
        // NBD_CMD_TRIM promises nothing about what is read afterwards.
        discard: false,
        write_zeroes: export.has(flag::WRITE_ZEROES),
        volatile_cache: export.has_cache(),
        rotational: export.has(flag::ROTATIONAL),
    }
}

/// Before there is an export.
pub(super) fn unknown_capability() -> Capability {
    let flags = flag::READ_ONLY;
    capability(&Export { size: 0, flags, blocks: None, structured: false, contexts: Vec::new() }, true)
}

/// One command of a request.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) command: Command,
    pub(super) span: Option<Span>,
    /// Bytes of the request that are done with it.
    pub(super) bytes: u64,
}

/// The next command of `kind`, of which `done` bytes are done, and the flush that it may end with; `None`: there is
/// nothing left to do. `zeroes` is a buffer of zeroes.
pub(super) fn step(
    kind: &Kind,
    done: u64,
    flushed: bool,
    export: &Export,
    capability: &Capability,
    zeroes: &Span,
) -> Option<Step> {
    let transfer_max = u64::from(capability.max_transfer_bytes);
    let range_max = RANGE_BYTES_MAX / u64::from(capability.granularity) * u64::from(capability.granularity);
    if is_over(kind, done, flushed, export) {
        return None;
    }
    let left = kind.range().map_or(0, |(_, length)| length) - done;
    if left == 0 {
        return Some(Step { command: Command::Flush, span: None, bytes: 0 });
    }
    let part = |span: &Span, bytes: u64| Some(span.slice(done as usize, bytes as usize));
    let (command, span, bytes) = match kind {
        Kind::Read { offset, into } => {
            let bytes = left.min(transfer_max);
            (Command::Read { offset: offset + done, length: bytes as u32 }, part(into, bytes), bytes)
        }
        Kind::Write { offset, from, durable } => {
            let bytes = left.min(transfer_max);
            let fua = *durable && export.has(flag::FUA);
            (Command::Write { offset: offset + done, length: bytes as u32, fua }, part(from, bytes), bytes)
        }
        Kind::Discard { offset, .. } => {
            let bytes = left.min(range_max);
            (Command::Trim { offset: offset + done, length: bytes as u32 }, None, bytes)
        }
        Kind::WriteZeroes { offset, may_unmap, .. } if export.has(flag::WRITE_ZEROES) => {
            let bytes = left.min(range_max);
            let (offset, length) = (offset + done, bytes as u32);
            (Command::WriteZeroes { offset, length, no_hole: !may_unmap }, None, bytes)
        }
        Kind::WriteZeroes { offset, .. } => {
            let bytes = left.min(
                zeroes.len() as u64 / u64::from(capability.granularity) * u64::from(capability.granularity),
            );
            let bytes = bytes.min(transfer_max);
            let command = Command::Write { offset: offset + done, length: bytes as u32, fua: false };
            (command, Some(zeroes.slice(0, bytes as usize)), bytes)
        }
        Kind::Flush => unreachable!("it has no bytes"),
    };
    Some(Step { command, span, bytes })
}

/// Whether nothing is left to do of `kind`.
pub(super) fn is_over(kind: &Kind, done: u64, flushed: bool, export: &Export) -> bool {
    let total = kind.range().map_or(0, |(_, length)| length);
    let flushes = match kind {
        Kind::Flush => true,
        // It is to be durable, and the server does not know how to do that at once.
        Kind::Write { durable: true, .. } => !export.has(flag::FUA),
        _ => false,
    };
    done == total && (flushed || !flushes || !export.has(flag::FLUSH))
}

/// Whether what was acknowledged can be lost with the server's power.
pub(super) fn is_volatile(kind: &Kind, export: &Export) -> bool {
    kind.is_write() && export.has_cache() && !matches!(kind, Kind::Write { durable: true, .. })
}

/// Refuses what the server would refuse.
pub(super) fn check(capability: &Capability, export: &Export, kind: &Kind) -> Result<(), IoError> {
    let Some((offset, length)) = kind.range() else { return Ok(()) };
    let size = capability.size_bytes;
    let (error, text) = if offset.checked_add(length).is_none_or(|end| end > size) {
        (IoErrorKind::OutOfRange, format!("{} of {length} bytes at {offset} in {size}", kind.verb()))
    } else if kind.is_write() && capability.read_only {
        (IoErrorKind::ReadOnly, "the export is read-only".into())
    } else if !(offset | length).is_multiple_of(u64::from(capability.granularity)) {
        let unit = capability.granularity;
        (IoErrorKind::Other, format!("{length} bytes at {offset} are no multiples of the export's {unit}"))
    } else if matches!(kind, Kind::Discard { .. }) && !export.has(flag::TRIM) {
        (IoErrorKind::Unsupported, "the export does not know NBD_CMD_TRIM".into())
    } else {
        return Ok(());
    };
    Err(IoError::new(error, text))
}

/// A server's error as storage's.
pub(super) fn io_error(error: &ServerError) -> IoError {
    let kind = match error.code {
        1 => IoErrorKind::ReadOnly,
        5 => IoErrorKind::Medium,
        28 => IoErrorKind::NoSpace,
        95 => IoErrorKind::Unsupported,
        _ => IoErrorKind::Other,
    };
    IoError::new(kind, error.to_string())
}
