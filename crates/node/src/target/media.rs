//! The storage work of one command: a [`scsi::Media`] as requests to an endpoint.
//!
//! READ and WRITE are a single request. Other commands are short programs of stages, each started when the previous one
//! has ended. No call here blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use area::{Pool, Span};
use block::{Capability, IoError, IoErrorKind, Kind};
use scsi::{Compare, Media, MediaError, MediaOp};

/// Bytes that WRITE SAME and VERIFY process at a time.
const CHUNK_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) enum Next {
    One(Kind),
    Many(Vec<Kind>),
    Wait,
    /// The work has ended; pass the result to the device server.
    Done(Result<(), MediaError>),
}

/// `Requests`: concurrent parts of a transfer that exceeds the endpoint's maximum. `Fill`: write the same blocks
/// repeatedly. `Check`: read, and compare with the expected data.
#[derive(Debug)]
enum Stage {
    Request(Kind),
    Requests(Vec<Kind>),
    Fill { offset: u64, length: u64, pattern: Span, durable: bool },
    Check { offset: u64, length: u64, position: u64, buffer: Span, reading: usize, expected: Expected },
}

#[derive(Debug)]
enum Expected {
    Anything,
    Bytes(Span),
    /// This block, repeated.
    Block(Span),
}

/// A command's storage work in progress. The driver calls `next`, submits the requests that it returns, calls
/// `completed` for each, and then `next` again, until `Next::Done`.
#[derive(Debug)]
pub(super) struct StorageWork {
    /// Remaining stages, last first.
    stages: Vec<Stage>,
    outstanding: u32,
    block_size: u32,
    error: Option<MediaError>,
    /// For work on another thread: set to stop it.
    stop: Option<Arc<AtomicBool>>,
}

impl StorageWork {
    /// Plans `media`. `data` is the command's buffer: data-out, or the destination of a READ. Of a WRITE's data the first
    /// `written` bytes are in the storage. `Err`: the pool has no memory now.
    pub(super) fn plan(
        media: &Media,
        data: Option<&Span>,
        written: usize,
        block_size: u32,
        capability: &Capability,
        pool: &Pool,
    ) -> Result<Self, ()> {
        let offset = media.lba * u64::from(block_size);
        let length = media.blocks * u64::from(block_size);
        let mut stages = Vec::new();
        let unmap = |offset, length| {
            Stage::Request(if capability.discard {
                Kind::Discard { offset, length }
            } else {
                Kind::WriteZeroes { offset, length, may_unmap: true }
            })
        };
        match &media.op {
            MediaOp::Read { fua } => {
                if *fua {
                    stages.push(Stage::Request(Kind::Flush));
                }
                let into = data.expect("a READ has a buffer");
                stages.extend(transfer(into, capability, |start, chunk| Kind::Read {
                    offset: offset + start,
                    into: chunk,
                }));
            }
            MediaOp::Write { durable } => {
                let rest = data.map(|data| data.slice(written, data.len() - written));
                let offset = offset + written as u64;
                stages.extend(write(offset, rest.as_ref(), block_size, *durable, capability));
            }
            MediaOp::WriteVerify { compare } => {
                stages.extend(write(offset, data, block_size, true, capability));
                let expected = match (compare, data) {
                    (Compare::Each, Some(data)) => Expected::Bytes(data.clone()),
                    _ => Expected::Anything,
                };
                stages.push(check(offset, length, expected, pool)?);
            }
            MediaOp::Verify { compare } => {
                let expected = match (compare, data) {
                    (Compare::Each, Some(data)) => Expected::Bytes(data.clone()),
                    (Compare::One, Some(data)) => Expected::Block(data.clone()),
                    _ => Expected::Anything,
                };
                stages.push(check(offset, length, expected, pool)?);
            }
            MediaOp::Flush => stages.push(Stage::Request(Kind::Flush)),
            MediaOp::LbaStatus { .. } => {}
            MediaOp::Unmap { ranges, durable } => {
                let block = u64::from(block_size);
                stages.extend(ranges.iter().map(|range| unmap(range.lba * block, range.blocks * block)));
                stages.extend(durable.then_some(Stage::Request(Kind::Flush)));
            }
            MediaOp::WriteSame { unmap, zero: no_data, durable } => {
                let block = data.map(Span::as_slice).unwrap_or_default();
                if *no_data || block.iter().all(|byte| *byte == 0) {
                    // Not a discard: the storage, such as another target, may keep the content of discarded blocks.
                    stages.push(Stage::Request(Kind::WriteZeroes { offset, length, may_unmap: *unmap }));
                    stages.extend(durable.then_some(Stage::Request(Kind::Flush)));
                } else {
                    let pattern = pool.take(CHUNK_BYTES.min(length as usize)).ok_or(())?;
                    for start in (0..pattern.len()).step_by(block.len()) {
                        pattern.fill(start, block);
                    }
                    stages.push(Stage::Fill { offset, length, pattern, durable: *durable });
                }
            }
        }
        stages.reverse();
        Ok(Self { stages, outstanding: 0, block_size, error: None, stop: None })
    }

    /// Work of another thread, which `stop` aborts: counted as one request that is never submitted here.
    pub(super) fn elsewhere(stop: Arc<AtomicBool>, block_size: u32) -> Self {
        Self { stages: Vec::new(), outstanding: 1, block_size, error: None, stop: Some(stop) }
    }

    pub(super) fn is_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    pub(super) fn completed(&mut self, result: Result<(), IoError>) {
        self.outstanding -= 1;
        let Err(error) = result else { return };
        let error = media_error(&error, self.block_size);
        // Of blocks that could not be read, the first one is reported; of other failures, the first to be known.
        let is_reported = match (self.error, error) {
            (None, _) => true,
            (Some(MediaError::Medium { lba: Some(first) }), MediaError::Medium { lba: Some(lba) }) => {
                lba < first
            }
            (Some(_), _) => false,
        };
        if is_reported {
            self.error = Some(error);
        }
    }

    /// Starts no further request; outstanding requests still have to end.
    pub(super) fn abort(&mut self) {
        self.error.get_or_insert(MediaError::Aborted);
        if let Some(stop) = &self.stop {
            stop.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn next(&mut self) -> Next {
        if self.outstanding > 0 {
            return Next::Wait;
        }
        let next = self.step();
        match &next {
            Next::One(_) => self.outstanding = 1,
            Next::Many(kinds) => self.outstanding = kinds.len() as u32,
            Next::Wait | Next::Done(_) => {}
        }
        next
    }

    fn step(&mut self) -> Next {
        loop {
            if let Some(error) = self.error {
                return Next::Done(Err(error));
            }
            match self.stages.pop() {
                None => return Next::Done(Ok(())),
                Some(Stage::Request(kind)) => return Next::One(kind),
                Some(Stage::Requests(kinds)) => return Next::Many(kinds),
                Some(Stage::Fill { length: 0, .. }) => {}
                Some(Stage::Fill { offset, length, pattern, durable }) => {
                    let count = length.min(pattern.len() as u64);
                    let from = pattern.slice(0, count as usize);
                    let (offset_next, length) = (offset + count, length - count);
                    self.stages.push(Stage::Fill { offset: offset_next, length, pattern, durable });
                    return Next::One(Kind::Write { offset, from, durable });
                }
                Some(Stage::Check { offset, length, position, buffer, reading, expected }) => {
                    let got = &buffer.as_slice()[..reading];
                    if let Some(at) = expected.first_difference(position, got) {
                        self.error = Some(MediaError::Miscompare { offset: position + at as u64 });
                        continue;
                    }
                    let position = position + reading as u64;
                    if position == length {
                        continue;
                    }
                    let reading = (length - position).min(buffer.len() as u64) as usize;
                    let into = buffer.slice(0, reading);
                    self.stages.push(Stage::Check { offset, length, position, buffer, reading, expected });
                    return Next::One(Kind::Read { offset: offset + position, into });
                }
            }
        }
    }
}

impl Expected {
    fn first_difference(&self, position: u64, got: &[u8]) -> Option<usize> {
        let differs = |got: &[u8], expected: &[u8]| -> Option<usize> {
            if got == expected {
                return None;
            }
            got.iter().zip(expected).position(|(got, expected)| got != expected)
        };
        match self {
            Self::Anything => None,
            Self::Bytes(bytes) => {
                let start = position as usize;
                differs(got, &bytes.as_slice()[start..start + got.len()])
            }
            Self::Block(block) => got.chunks(block.len()).enumerate().find_map(|(index, chunk)| {
                differs(chunk, block.as_slice()).map(|at| index * block.len() + at)
            }),
        }
    }
}

fn check(offset: u64, length: u64, expected: Expected, pool: &Pool) -> Result<Stage, ()> {
    // Data-out shorter than the range leaves a residual: blocks without data-out are not compared.
    let length = match &expected {
        Expected::Bytes(bytes) => length.min(bytes.len() as u64),
        _ => length,
    };
    let buffer = pool.take(CHUNK_BYTES.min(length as usize)).ok_or(())?;
    Ok(Stage::Check { offset, length, position: 0, buffer, reading: 0, expected })
}

/// Writes the blocks for which data-out arrived, whole blocks only ([`Media::accepts_data_out`]); the rest is the
/// initiator's residual.
fn write(
    offset: u64,
    data: Option<&Span>,
    block_size: u32,
    durable: bool,
    capability: &Capability,
) -> Option<Stage> {
    let from = data?;
    assert!(from.len().is_multiple_of(block_size as usize), "half a block was collected");
    transfer(from, capability, |start, chunk| Kind::Write { offset: offset + start, from: chunk, durable })
}

/// One request, or several if the span exceeds the endpoint's maximum transfer; `None` if the span is empty.
fn transfer(span: &Span, capability: &Capability, request: impl Fn(u64, Span) -> Kind) -> Option<Stage> {
    let max = capability.max_transfer_bytes as usize;
    if span.is_empty() {
        None
    } else if span.len() <= max {
        Some(Stage::Request(request(0, span.clone())))
    } else {
        let chunk = |start: usize| request(start as u64, span.slice(start, max.min(span.len() - start)));
        Some(Stage::Requests((0..span.len()).step_by(max).map(chunk).collect()))
    }
}

/// The failure of storage of a unit with blocks of `block_size` bytes.
pub(super) fn media_error(error: &IoError, block_size: u32) -> MediaError {
    match error.kind {
        IoErrorKind::Medium => {
            MediaError::Medium { lba: error.offset.map(|offset| offset / u64::from(block_size)) }
        }
        IoErrorKind::NoSpace => MediaError::NoSpace,
        IoErrorKind::ReadOnly => MediaError::ReadOnly,
        IoErrorKind::OutOfRange => MediaError::OutOfRange,
        IoErrorKind::FlushFailed => MediaError::FlushFailed,
        IoErrorKind::CacheLost => MediaError::CacheLost,
        IoErrorKind::Unreachable => MediaError::NotReady { ascq: 0 },
        IoErrorKind::Refused | IoErrorKind::Gone => MediaError::NotReady { ascq: 3 },
        IoErrorKind::Aborted => MediaError::Aborted,
        IoErrorKind::Unsupported | IoErrorKind::Other => MediaError::Hardware,
    }
}

#[cfg(test)]
mod tests {
    use area::PoolLimits;
    use block::{Completion, Endpoint, Medium, MemoryMedium, Request};
    use io::Io;
    use scsi::{LogicalUnit, Step, UnitConfig, cdb};

    use super::*;

    const BLOCKS: u64 = 4096;

    fn unit() -> LogicalUnit {
        LogicalUnit::new(UnitConfig {
            blocks: BLOCKS,
            block_size: 512,
            physical_block_size: 512,
            read_only: false,
            sole_writer: false,
            removable: false,
            rotational: false,
            thin: true,
            write_cache: true,
            vendor: String::new(),
            product: String::new(),
            revision: String::new(),
            serial: String::new(),
            naa: 1,
            max_transfer_bytes: 8 << 20,
            optimal_transfer_bytes: 0,
            target_name: "iqn.2026-11.example:t".into(),
            target_port_group: 1,
            relative_port: 1,
        })
    }

    /// Every 16-byte CDB whose opcode writes, verifies or zeroes, with data-out from no bytes to more than required:
    /// the work ends, changes nothing outside its range, and returns all memory.
    #[test]
    fn any_command_with_any_length_of_data_ends() {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let medium = MemoryMedium::new(BLOCKS * 512, false).unwrap();
        let mut endpoint = medium.attach(&mut io).unwrap();
        let small = Capability { max_transfer_bytes: 4096, ..endpoint.capability().clone() };
        let mut unit = unit();
        let (lba, blocks) = (7u32, 40u16);
        let mut commands = vec![
            cdb::write_10(lba, blocks, true).padded(),
            cdb::read_10(lba, blocks, true).padded(),
            cdb::synchronize_cache_10().padded(),
        ];
        for (opcode, byte1) in
            [(0x2E, 0x00), (0x2E, 0x02), (0x2F, 0x00), (0x2F, 0x02), (0x2F, 0x06), (0x41, 0x00), (0x41, 0x08)]
        {
            let mut cdb = cdb::write_10(lba, blocks, false).padded();
            (cdb[0], cdb[1]) = (opcode, byte1);
            commands.push(cdb);
        }
        for cdb in commands {
            for offered in [0, 1, 511, 512, 513, 20 * 512, 40 * 512 - 1, 40 * 512] {
                for capability in [&small, &endpoint.capability().clone()] {
                    let Step::Media(media) = unit.command(1, scsi::Rights::ReadWrite, &cdb, &[]) else {
                        continue;
                    };
                    if !media.accepts_data_out(offered as u64, 512) {
                        continue;
                    }
                    let bytes = (media.data_out_bytes(512) as usize).min(offered);
                    let buffer = match media.data_in_bytes(512) {
                        0 if bytes == 0 => None,
                        0 => io.pool().take(bytes),
                        bytes => io.pool().take(bytes as usize),
                    };
                    if let Some(buffer) = &buffer {
                        buffer.fill(0, &vec![0xA5; buffer.len()]);
                    }
                    let mut work =
                        StorageWork::plan(&media, buffer.as_ref(), 0, 512, capability, io.pool()).unwrap();
                    run(&mut io, &mut *endpoint, &mut work, &media);
                }
            }
        }
        drop(endpoint);
        assert_eq!(io.pool().borrowed(), 0);
    }

    fn run(io: &mut Io, endpoint: &mut dyn Endpoint, work: &mut StorageWork, media: &Media) {
        let range = media.lba * 512..(media.lba + media.blocks) * 512;
        loop {
            let kinds = match work.next() {
                Next::One(kind) => vec![kind],
                Next::Many(kinds) => kinds,
                Next::Wait => panic!("nothing is outstanding"),
                Next::Done(_) => return,
            };
            for kind in kinds {
                if let Some((offset, length)) = kind.range() {
                    assert!(length > 0 && offset >= range.start && offset + length <= range.end, "{kind:?}");
                }
                let mut done: Vec<Completion> = Vec::new();
                endpoint.submit(io, Request { id: 0, kind }, &mut done);
                work.completed(done.pop().unwrap().result);
            }
        }
    }
}
