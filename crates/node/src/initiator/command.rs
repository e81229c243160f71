//! Block requests as SCSI commands, and status and sense data as verdicts.

use std::time::Duration;

use area::Span;
use block::remote::Verdict;
use block::{Capability, IoError, IoErrorKind, Kind};
use iscsi::initiator::Direction;
use scsi::cdb::{self, Cdb};
use scsi::{Range, Sense, SenseKey, Status};

use super::setup::{Disk, describe};

/// Longest transfer, in bytes, for a LUN without MAXIMUM TRANSFER LENGTH.
const TRANSFER_BYTES_DEFAULT: u64 = 4 << 20;
/// Upper bound of a transfer, in bytes, whatever the LUN allows.
const TRANSFER_BYTES_MAX: u64 = 8 << 20;
/// Longest range, in bytes, of one UNMAP or WRITE SAME: bounds the command's duration.
const ZERO_BYTES_MAX: u64 = 64 << 20;

/// Pause before a command is repeated that ended with BUSY or TASK SET FULL.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct ScsiCommand {
    pub(super) cdb: Cdb,
    pub(super) direction: Direction,
    pub(super) data: Data,
    /// Bytes of the request that this command completes.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) enum Data {
    None,
    Span(Span),
    Bytes(Vec<u8>),
}

pub(super) fn capability(disk: &Disk, read_only: bool, queue_depth: u32) -> Result<Capability, String> {
    let capacity = disk.capacity.as_ref().ok_or("the LUN does not report its size")?;
    let block_size = capacity.block_size;
    if ![512, 4096].contains(&block_size) {
        return Err(format!("blocks of {block_size} bytes are not supported, only 512 and 4096"));
    }
    let size_bytes = capacity
        .blocks
        .checked_mul(u64::from(block_size))
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| {
            let blocks = capacity.blocks;
            format!("{blocks} blocks of {block_size} bytes are 8 EiB or more: offsets have 63 bits")
        })?;
    let in_bytes = |blocks: u32| u64::from(blocks) * u64::from(block_size);
    let limits = disk.limits.as_ref();
    let reported = limits.map_or(0, |limits| in_bytes(limits.transfer_max_blocks));
    let transfer_max = if reported == 0 { TRANSFER_BYTES_DEFAULT } else { reported.min(TRANSFER_BYTES_MAX) };
    let optimal = limits.map_or(0, |limits| in_bytes(limits.transfer_optimal_blocks));
    let optimal = if optimal == 0 { 1 << 20 } else { optimal.clamp(64 << 10, 1 << 20) };
    let provisioning = disk.provisioning.as_ref();
    let unmap = provisioning.is_some_and(|page| page.unmap && page.reads_zero)
        && limits.is_some_and(|limits| limits.unmap_max_blocks > 0 && limits.unmap_max_descriptors > 0);
    Ok(Capability {
        size_bytes,
        block_size,
        physical_block_size: capacity.physical_block_size().unwrap_or(block_size).clamp(block_size, 65536),
        granularity: block_size,
        alignment: block_size,
        max_transfer_bytes: transfer_max.max(u64::from(block_size)) as u32,
        optimal_transfer_bytes: optimal.min(transfer_max) as u32,
        queue_depth,
        read_only: read_only || disk.write_protected,
        sole_writer: disk.standard.as_ref().is_some_and(|standard| standard.sole_writer),
        discard: unmap,
        write_zeroes: write_same(disk),
        volatile_cache: disk.write_cache,
        rotational: disk.rotational,
    })
}

/// Whether WRITE SAME of zeroes is cheaper than a WRITE: the disk then unmaps the blocks, and unmapped blocks read as
/// zeroes.
fn write_same(disk: &Disk) -> bool {
    disk.provisioning.as_ref().is_some_and(|page| page.write_same_16 && page.reads_zero)
}

/// The next command of `kind`, after `done` of its bytes are complete. `zeroes` is a buffer of zeroes.
pub(super) fn next(
    kind: &Kind,
    done: u64,
    disk: &Disk,
    capability: &Capability,
    zeroes: &Span,
) -> ScsiCommand {
    let block = u64::from(capability.block_size);
    let none = |cdb, bytes| ScsiCommand { cdb, direction: Direction::None, data: Data::None, bytes };
    match kind {
        Kind::Read { offset, into } => {
            let cdb = access(*offset / block, into.len() as u64 / block, false, false);
            ScsiCommand {
                cdb,
                direction: Direction::In,
                data: Data::Span(into.clone()),
                bytes: into.len() as u64,
            }
        }
        Kind::Write { from, .. } if done > 0 && done == from.len() as u64 => {
            none(cdb::synchronize_cache_10(), 0)
        }
        Kind::Write { offset, from, durable } => write(*offset, from.clone(), *durable && disk.fua, block),
        Kind::Flush => none(cdb::synchronize_cache_10(), 0),
        Kind::Discard { offset, length } => {
            let limits = disk.limits.as_ref();
            let max = limits.map_or(0, |limits| u64::from(limits.unmap_max_blocks)) * block;
            let bytes = (length - done).min(max.clamp(block, ZERO_BYTES_MAX));
            let range = Range { lba: (offset + done) / block, blocks: bytes / block };
            let (cdb, list) = cdb::unmap(&[range]).expect("one range is a list");
            ScsiCommand { cdb, direction: Direction::Out, data: Data::Bytes(list), bytes }
        }
        Kind::WriteZeroes { offset, length, may_unmap } => {
            let left = length - done;
            if !write_same(disk) || !may_unmap {
                let bytes = left.min(zeroes.len() as u64).min(u64::from(capability.max_transfer_bytes));
                return write(offset + done, zeroes.slice(0, bytes as usize), false, block);
            }
            let reported = disk.limits.as_ref().map_or(0, |limits| limits.write_same_max_blocks);
            let max = if reported == 0 {
                ZERO_BYTES_MAX
            } else {
                reported.saturating_mul(block).min(ZERO_BYTES_MAX)
            };
            let bytes = left.min(max);
            let cdb = cdb::write_same_16((offset + done) / block, (bytes / block) as u32, true, false);
            let data = Data::Span(zeroes.slice(0, block as usize));
            ScsiCommand { cdb, direction: Direction::Out, data, bytes }
        }
    }
}

/// Whether a write needs a flush after it: the write is durable, and the disk has a volatile cache but no FUA.
pub(super) fn needs_flush(kind: &Kind, disk: &Disk) -> bool {
    matches!(kind, Kind::Write { durable: true, .. }) && disk.write_cache && !disk.fua
}

/// Whether the request `kind` is complete after a successful command of `bytes` bytes, with `done` bytes complete
/// before it. A command with `bytes` 0 is SYNCHRONIZE CACHE: a flush request, or the flush after a durable write.
pub(super) fn is_last(kind: &Kind, done: u64, bytes: u64, disk: &Disk) -> bool {
    let total = kind.range().map_or(0, |(_, length)| length);
    done + bytes >= total && (bytes == 0 || !needs_flush(kind, disk))
}

pub(super) fn is_volatile(kind: &Kind, disk: &Disk) -> bool {
    let leaves = match kind {
        Kind::Read { .. } | Kind::Flush => false,
        Kind::Write { durable, .. } => !durable,
        Kind::Discard { .. } | Kind::WriteZeroes { .. } => true,
    };
    leaves && disk.write_cache
}

fn write(offset: u64, from: Span, fua: bool, block: u64) -> ScsiCommand {
    let bytes = from.len() as u64;
    let cdb = access(offset / block, bytes / block, true, fua);
    ScsiCommand { cdb, direction: Direction::Out, data: Data::Span(from), bytes }
}

/// READ or WRITE: the 10-byte form if LBA and length fit, since old targets support no other.
fn access(lba: u64, blocks: u64, write: bool, fua: bool) -> Cdb {
    match (u32::try_from(lba), u16::try_from(blocks), write) {
        (Ok(lba), Ok(blocks), false) => cdb::read_10(lba, blocks, fua),
        (Ok(lba), Ok(blocks), true) => cdb::write_10(lba, blocks, fua),
        (_, _, false) => cdb::read_16(lba, blocks as u32, fua),
        (_, _, true) => cdb::write_16(lba, blocks as u32, fua),
    }
}

pub(super) fn direction_in(length: u32) -> Direction {
    if length > 0 { Direction::In } else { Direction::None }
}

/// Maps the status of a command to a verdict (SAM-5 5.3.1).
pub(super) fn judge(status: u8, sense: Option<&Sense>) -> Verdict {
    let fail = |kind, text: String| Verdict::Fail(IoError::new(kind, text));
    match Status::from_code(status) {
        Some(Status::Good) => Verdict::Done,
        Some(Status::CheckCondition) => match sense {
            Some(sense) => judge_sense(sense),
            None => fail(IoErrorKind::Other, "CHECK CONDITION without sense data".to_owned()),
        },
        Some(busy @ (Status::Busy | Status::TaskSetFull)) => Verdict::Later(BUSY_PAUSE, busy.name().into()),
        Some(Status::ReservationConflict) => {
            let text = "RESERVATION CONFLICT: another initiator has reserved the LUN";
            fail(IoErrorKind::Refused, text.to_owned())
        }
        other => fail(IoErrorKind::Other, format!("SCSI status {status:02X}h ({other:?})")),
    }
}

pub(super) fn judge_sense(sense: &Sense) -> Verdict {
    let fail = |kind| Verdict::Fail(IoError::new(kind, describe(sense)));
    match (sense.key, sense.asc, sense.ascq) {
        (SenseKey::UnitAttention, ..) | (SenseKey::AbortedCommand, ..) => Verdict::Again(describe(sense)),
        (SenseKey::NotReady, 0x04, 0x01..=0x0A) => Verdict::Later(BUSY_PAUSE, describe(sense).into()),
        (SenseKey::NotReady, ..) => fail(IoErrorKind::Unreachable),
        (SenseKey::DataProtect, 0x27, 0x07) => fail(IoErrorKind::NoSpace),
        (SenseKey::DataProtect, ..) => fail(IoErrorKind::ReadOnly),
        (SenseKey::IllegalRequest, 0x21, _) => fail(IoErrorKind::OutOfRange),
        (SenseKey::IllegalRequest, 0x20 | 0x24, _) => fail(IoErrorKind::Unsupported),
        (SenseKey::MediumError | SenseKey::HardwareError, ..) => {
            let place = sense.information.map_or_else(String::new, |lba| format!(" at LBA {lba}"));
            Verdict::Fail(IoError::new(IoErrorKind::Medium, describe(sense) + &place))
        }
        _ => fail(IoErrorKind::Other),
    }
}

pub(super) fn check(capability: &Capability, kind: &Kind) -> Result<(), IoError> {
    let Some((offset, length)) = kind.range() else { return Ok(()) };
    let size = capability.size_bytes;
    let wrong = if offset.checked_add(length).is_none_or(|end| end > size) {
        (IoErrorKind::OutOfRange, format!("{} of {length} bytes at {offset} in {size}", kind.verb()))
    } else if kind.is_write() && capability.read_only {
        (IoErrorKind::ReadOnly, "the LUN is write protected".into())
    } else if !(offset | length).is_multiple_of(u64::from(capability.granularity)) {
        (IoErrorKind::Other, format!("{length} bytes at {offset} are no whole blocks"))
    } else {
        return Ok(());
    };
    Err(IoError::new(wrong.0, wrong.1))
}

pub(super) fn unknown_capability() -> Capability {
    Capability {
        size_bytes: 0,
        block_size: 512,
        physical_block_size: 512,
        granularity: 512,
        alignment: 512,
        max_transfer_bytes: 512,
        optimal_transfer_bytes: 512,
        queue_depth: 1,
        read_only: true,
        sole_writer: false,
        discard: false,
        write_zeroes: false,
        volatile_cache: true,
        rotational: false,
    }
}

#[cfg(test)]
mod tests {
    use area::{Pool, PoolLimits};

    use super::*;

    #[test]
    fn a_disk_of_8_eib_or_more_is_refused() {
        for (last, block_size, size_bytes) in [
            ((1u64 << 54) - 2, 512u32, Some((1u64 << 63) - 512)),
            ((1 << 54) - 1, 512, None),
            ((1 << 55) - 1, 512, None),
            (u64::MAX - 1, 4096, None),
        ] {
            let data = [&last.to_be_bytes()[..], &block_size.to_be_bytes()].concat();
            let disk = Disk { capacity: scsi::capacity::Capacity::parse_16(&data), ..Disk::default() };
            let found = capability(&disk, true, 32);
            assert_eq!(found.as_ref().ok().map(|found| found.size_bytes), size_bytes, "{found:?}");
            assert!(found.is_ok() || found.unwrap_err().contains("8 EiB"));
        }
    }

    #[test]
    fn sam5_5_3_1_statuses() {
        let kind = |status, sense: Option<&Sense>| match judge(status, sense) {
            Verdict::Fail(error) => Some(error.kind),
            _ => None,
        };
        assert!(matches!(judge(0x00, None), Verdict::Done));
        for busy in [0x08, 0x28] {
            assert!(matches!(judge(busy, None), Verdict::Later(..)), "{busy:02X}h");
        }
        assert_eq!(kind(0x18, None), Some(IoErrorKind::Refused));
        assert_eq!(kind(0x02, None), Some(IoErrorKind::Other), "it has to say why");
        for strange in [0x04, 0x14, 0x30, 0x40, 0xff] {
            assert_eq!(kind(strange, None), Some(IoErrorKind::Other), "{strange:02X}h");
        }
        let medium = Sense::new(SenseKey::MediumError, 0x11, 0);
        assert_eq!(kind(0x02, Some(&medium)), Some(IoErrorKind::Medium));
        assert!(matches!(
            judge(0x02, Some(&Sense::new(SenseKey::UnitAttention, 0x29, 0))),
            Verdict::Again(_)
        ));
    }

    #[test]
    fn a_durable_write_is_flushed_where_the_disk_has_no_fua() {
        let pool = Pool::new(PoolLimits::default());
        let (from, zeroes) = (pool.take(4096).unwrap(), pool.take(4096).unwrap());
        let capability = unknown_capability();
        let kind = |durable| Kind::Write { offset: 512, from: from.clone(), durable };
        for (write_cache, fua, durable, flushed) in [
            (true, false, true, true),
            (true, false, false, false),
            (true, true, true, false),
            (false, false, true, false),
        ] {
            let disk = Disk { write_cache, fua, ..Disk::default() };
            let first = next(&kind(durable), 0, &disk, &capability, &zeroes);
            assert_eq!(first.bytes, 4096);
            assert_eq!(first.cdb.as_bytes()[1] & 8 != 0, durable && fua, "FUA");
            assert_eq!(needs_flush(&kind(durable), &disk), flushed);
            let then = next(&kind(durable), first.bytes, &disk, &capability, &zeroes);
            assert_eq!((then.cdb, then.bytes), (cdb::synchronize_cache_10(), 0));
        }
    }
}
