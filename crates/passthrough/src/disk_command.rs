//! Block requests as commands, independent of the family.

use area::Span;
use block::{Capability, IoError, IoErrorKind, Kind};

use crate::disk::Disk;

/// `fua`: on the medium before the result (Force Unit Access). `Zero` transfers no blocks and may `unmap` them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Write { fua: bool },
    Flush,
    Zero { unmap: bool },
}

#[derive(Clone, Debug)]
pub(crate) struct DiskCommand {
    pub(crate) verb: Verb,
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
    /// Read and write: as many bytes as the blocks. Zero: one block of zeroes, for commands that need it.
    pub(crate) data: Option<Span>,
}

pub(crate) fn check(kind: &Kind, capability: &Capability) -> Result<(), IoError> {
    let fail = |kind, text| Err(IoError::new(kind, text));
    if let Some((offset, length)) = kind.range() {
        let verb = kind.verb();
        if offset.checked_add(length).is_none_or(|end| end > capability.size_bytes) {
            let size = capability.size_bytes;
            let text = format!("{verb} of {length} bytes at {offset} is beyond the end at {size}");
            return fail(IoErrorKind::OutOfRange, text);
        }
        let block = u64::from(capability.granularity);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            let text = format!("{verb} of {length} bytes at {offset} is not whole blocks of {block}");
            return fail(IoErrorKind::Unsupported, text);
        }
    }
    if kind.is_write() && capability.read_only {
        return fail(IoErrorKind::ReadOnly, "opened read-only, or write-protected".to_owned());
    }
    if matches!(kind, Kind::Discard { .. }) && !capability.discard {
        return fail(IoErrorKind::Unsupported, "the content of discarded blocks is undefined".to_owned());
    }
    Ok(())
}

/// The next command of `kind`, of which `done` bytes are complete, with at most `bytes_max` of data; `None`: the
/// request is complete. `flushed`: the flush at the end of a durable write is complete. `zeroes` is a buffer of zeroes,
/// in whole blocks.
pub(crate) fn next(
    kind: &Kind,
    done: u64,
    flushed: bool,
    disk: &Disk,
    bytes_max: u32,
    zeroes: &Span,
) -> Option<DiskCommand> {
    let block = u64::from(disk.block_size);
    let flush = DiskCommand { verb: Verb::Flush, lba: 0, blocks: 0, data: None };
    let Some((offset, length)) = kind.range() else { return (!flushed).then_some(flush) };
    let (left, lba) = (length - done, (offset + done) / block);
    let transfer = |verb, data: &Span, start: u64| {
        let bytes = left.min(bytes_max.into()).min(data.len() as u64 - start);
        let data = data.slice(start as usize, bytes as usize);
        DiskCommand { verb, lba, blocks: (bytes / block) as u32, data: Some(data) }
    };
    match kind {
        Kind::Write { durable: true, .. } if left == 0 => {
            (disk.write_cache && !disk.fua && !flushed).then_some(flush)
        }
        _ if left == 0 => None,
        Kind::Read { into, .. } => Some(transfer(Verb::Read, into, done)),
        Kind::Write { from, durable, .. } => {
            Some(transfer(Verb::Write { fua: *durable && disk.fua }, from, done))
        }
        Kind::Discard { .. } | Kind::WriteZeroes { .. } => {
            let unmap = matches!(kind, Kind::Discard { .. } | Kind::WriteZeroes { may_unmap: true, .. });
            Some(match disk.zeroing.filter(|zeroing| unmap || zeroing.keeps) {
                Some(zeroing) => DiskCommand {
                    verb: Verb::Zero { unmap },
                    lba,
                    blocks: zeroing.blocks(left / block, disk.block_size) as u32,
                    data: Some(zeroes.slice(0, block as usize)),
                },
                None => transfer(Verb::Write { fua: false }, zeroes, 0),
            })
        }
        Kind::Flush => unreachable!("it has no range"),
    }
}

/// Whether the completed request may be in the disk's volatile cache, durable only after a flush.
pub(crate) fn is_volatile(kind: &Kind, disk: &Disk) -> bool {
    disk.write_cache && kind.is_write() && !matches!(kind, Kind::Write { durable: true, .. })
}

#[cfg(test)]
mod tests {
    use area::{Pool, PoolLimits};

    use super::*;
    use crate::disk::{Zeroing, example};

    fn walk(kind: &Kind, disk: &Disk, bytes_max: u32) -> Vec<(Verb, u64, u32)> {
        let pool = Pool::new(PoolLimits::default());
        let zeroes = pool.take(8192).unwrap();
        let (mut done, mut flushed, mut commands) = (0, false, Vec::new());
        while let Some(command) = next(kind, done, flushed, disk, bytes_max, &zeroes) {
            assert!(commands.len() < 100, "it ends");
            match command.verb {
                Verb::Flush => flushed = true,
                _ => done += u64::from(command.blocks) * u64::from(disk.block_size),
            }
            if matches!(command.verb, Verb::Read | Verb::Write { .. }) {
                let expected = Some(command.blocks as usize * disk.block_size as usize);
                assert_eq!(command.data.as_ref().map(Span::len), expected);
            }
            commands.push((command.verb, command.lba, command.blocks));
        }
        commands
    }

    #[test]
    fn a_request_is_as_few_commands_as_its_limit_allows() {
        let pool = Pool::new(PoolLimits::default());
        let into = pool.take(10240).unwrap();
        let read = Kind::Read { offset: 512, into };
        assert_eq!(walk(&read, &example(), 10240), [(Verb::Read, 1, 20)]);
        let expected = [(Verb::Read, 1, 8), (Verb::Read, 9, 8), (Verb::Read, 17, 4)];
        assert_eq!(walk(&read, &example(), 4096), expected);
        assert_eq!(walk(&Kind::Flush, &example(), 4096), [(Verb::Flush, 0, 0)]);
    }

    #[test]
    fn a_durable_write_ends_with_a_flush_where_fua_does_not_do() {
        let pool = Pool::new(PoolLimits::default());
        let from = pool.take(4096).unwrap();
        for (write_cache, fua, durable, fua_sent, flushed) in [
            (true, false, true, false, true),
            (true, false, false, false, false),
            (true, true, true, true, false),
            (false, false, true, false, false),
        ] {
            let disk = Disk { write_cache, fua, ..example() };
            let kind = Kind::Write { offset: 0, from: from.clone(), durable };
            let mut expected = vec![(Verb::Write { fua: fua_sent }, 0, 8)];
            expected.extend(flushed.then_some((Verb::Flush, 0, 0)));
            assert_eq!(walk(&kind, &disk, 65536), expected, "{write_cache} {fua} {durable}");
            assert_eq!(is_volatile(&kind, &disk), write_cache && !durable);
        }
    }

    #[test]
    fn zeroes_are_named_where_that_is_true_and_moved_elsewhere() {
        let zero = |may_unmap| Kind::WriteZeroes { offset: 0, length: 150 * 512, may_unmap };
        let named = |unmap| vec![(Verb::Zero { unmap }, 0, 100), (Verb::Zero { unmap }, 100, 50)];
        let with = |zeroing| Disk { zeroing, ..example() };
        let only_unmap = with(Some(Zeroing { blocks_max: 100, keeps: false }));
        let both = with(Some(Zeroing { blocks_max: 100, keeps: true }));
        assert_eq!(walk(&zero(true), &only_unmap, 8192), named(true));
        assert_eq!(walk(&zero(false), &both, 8192), named(false));
        let moved = walk(&zero(false), &only_unmap, 1 << 20);
        assert_eq!(moved.len(), 10, "pieces of the zeroes' length");
        assert!(moved.iter().all(|(verb, ..)| *verb == Verb::Write { fua: false }));
        assert_eq!(walk(&zero(true), &with(None), 1 << 20), moved);
        let unbounded = with(Some(Zeroing { blocks_max: 0, keeps: true }));
        assert_eq!(walk(&zero(true), &unbounded, 8192), [(Verb::Zero { unmap: true }, 0, 150)]);
    }

    #[test]
    fn what_the_disk_cannot_do_is_refused_before_it_is_asked() {
        let limits = host::Limits::default();
        let capability = |disk: &Disk, read_only| disk.capability(&limits, 16, read_only);
        let disk = example();
        let size = capability(&disk, false).size_bytes;
        let zero = |offset, length| Kind::WriteZeroes { offset, length, may_unmap: true };
        let kind =
            |kind: &Kind, capability: &Capability| check(kind, capability).err().map(|error| error.kind);
        let writable = capability(&disk, false);
        assert_eq!(kind(&zero(0, size), &writable), None);
        assert_eq!(kind(&zero(0, size + 512), &writable), Some(IoErrorKind::OutOfRange));
        assert_eq!(kind(&zero(u64::MAX, 2), &writable), Some(IoErrorKind::OutOfRange));
        assert_eq!(kind(&zero(0, 100), &writable), Some(IoErrorKind::Unsupported));
        assert_eq!(kind(&zero(0, 512), &capability(&disk, true)), Some(IoErrorKind::ReadOnly));
        let discard = Kind::Discard { offset: 0, length: 512 };
        let plain = Disk { zeroing: None, ..example() };
        assert_eq!(kind(&discard, &capability(&plain, false)), Some(IoErrorKind::Unsupported));
    }
}
