//! Block requests as commands, and the capability of an export.

use area::Span;
use block::{Capability, IoError, IoErrorKind, Kind};

use crate::negotiation::{BlockSizes, Export};
use crate::transmission::{Command, ServerError};
use crate::wire::flag;

/// Longest data of a request by this client, in bytes.
const TRANSFER_BYTES_MAX: u32 = 8 << 20;
/// Longest data, in bytes, for a server that sends no block sizes (proto, "Block size constraints").
const TRANSFER_BYTES_DEFAULT: u32 = 32 << 20;
/// Longest range, in bytes, of a command without data: bounds the command's duration.
const RANGE_BYTES_MAX: u64 = 64 << 20;
/// Optimal transfer length, in bytes, unless the server prefers a larger one.
const OPTIMAL_BYTES: u32 = 1 << 20;
/// Queue depth of the endpoint's capability, in requests.
const QUEUE_DEPTH: u32 = 32;

const _: () = assert!(TRANSFER_BYTES_MAX <= TRANSFER_BYTES_DEFAULT);
const _: () = assert!(QUEUE_DEPTH as usize <= crate::limits::TASKS_MAX);

pub(super) fn capability(export: &Export, read_only: bool) -> Capability {
    // Without block sizes a server should accept single bytes, but sectors are more portable.
    let unannounced = BlockSizes {
        minimum: if export.size.is_multiple_of(512) { 512 } else { 1 },
        preferred: 4096,
        maximum: TRANSFER_BYTES_DEFAULT,
    };
    let BlockSizes { minimum, preferred, maximum } = export.blocks.unwrap_or(unannounced);
    let block_size = if minimum > 512 { 4096 } else { 512 };
    let max_transfer_bytes = maximum.min(TRANSFER_BYTES_MAX) / minimum * minimum;
    Capability {
        // Bytes beyond the last whole block are not accessible.
        size_bytes: export.size / u64::from(minimum) * u64::from(minimum),
        block_size,
        physical_block_size: preferred.clamp(block_size, 65536),
        granularity: minimum,
        alignment: minimum.max(512),
        max_transfer_bytes,
        optimal_transfer_bytes: preferred.max(OPTIMAL_BYTES).min(max_transfer_bytes),
        queue_depth: QUEUE_DEPTH,
        read_only: read_only || export.has(flag::READ_ONLY),
        sole_writer: false,
        // NBD_CMD_TRIM guarantees nothing about the content read afterwards.
        discard: false,
        write_zeroes: export.has(flag::WRITE_ZEROES),
        volatile_cache: export.has_cache(),
        rotational: export.has(flag::ROTATIONAL),
    }
}

pub(super) fn unknown_capability() -> Capability {
    let flags = flag::READ_ONLY;
    capability(&Export { size: 0, flags, blocks: None, structured: false, contexts: Vec::new() }, true)
}

#[derive(Debug)]
pub(super) struct Submission {
    pub(super) command: Command,
    pub(super) span: Option<Span>,
    /// Bytes of the request that this command completes.
    pub(super) bytes: u64,
}

/// The next command of `kind`, after `done` of its bytes are complete, including a final flush where needed; `None`: no
/// command is left. `zeroes` is a buffer of zeroes.
pub(super) fn step(
    kind: &Kind,
    done: u64,
    export: &Export,
    capability: &Capability,
    zeroes: &Span,
) -> Option<Submission> {
    let transfer_max = u64::from(capability.max_transfer_bytes);
    let range_max = RANGE_BYTES_MAX / u64::from(capability.granularity) * u64::from(capability.granularity);
    if is_over(kind, done, false, export) {
        return None;
    }
    let left = kind.range().map_or(0, |(_, length)| length) - done;
    if left == 0 {
        return Some(Submission { command: Command::Flush, span: None, bytes: 0 });
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
    Some(Submission { command, span, bytes })
}

/// Whether the request `kind` is complete.
pub(super) fn is_over(kind: &Kind, done: u64, flushed: bool, export: &Export) -> bool {
    let total = kind.range().map_or(0, |(_, length)| length);
    let flushes = match kind {
        Kind::Flush => true,
        // The write is durable, and the server does not support FUA.
        Kind::Write { durable: true, .. } => !export.has(flag::FUA),
        _ => false,
    };
    done == total && (flushed || !flushes || !export.has(flag::FLUSH))
}

/// Whether a power loss of the server can lose the data of a completed request.
pub(super) fn is_volatile(kind: &Kind, export: &Export) -> bool {
    kind.is_write() && export.has_cache() && !matches!(kind, Kind::Write { durable: true, .. })
}

/// Checks a request locally against the conditions that the server would reject.
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
