//! A logical unit with arbitrary commands and parameter lists, from several nexuses, with storage that may fail.

use iscsi::limits::EXTENDED_CDB_MAX;
use scsi::cdb::{self, Direction};
use scsi::copy::{CopyFailure, CopyFault, CopyList};
use scsi::limits::{
    COPY_CSCDS_MAX, COPY_SEGMENTS_MAX, LBA_STATUS_DESCRIPTORS_MAX, PARAMETER_LIST_MAX_BYTES, SENSE_MAX_BYTES,
    UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BLOCKS_MAX,
};
use scsi::{
    CopyEnd, LbaExtent, LogicalUnit, Media, MediaError, MediaOp, Outcome, Rights, Sense, Status, Step,
    UnitConfig,
};

use crate::{Source, heap};

const HEAP_MAX: usize = 256 << 10;
const STEPS_MAX: usize = 200;
const NEXUSES: usize = 3;

pub fn unit(bytes: &[u8]) {
    heap::within(HEAP_MAX, || {
        let mut source = Source::new(bytes);
        let mut unit = LogicalUnit::new(config(&mut source));
        for _ in 0..STEPS_MAX {
            if source.is_empty() {
                break;
            }
            step(&mut unit, &mut source);
        }
    });
}

/// Any configuration, valid or not.
pub(crate) fn config(source: &mut Source<'_>) -> UnitConfig {
    let text = |source: &mut Source<'_>| String::from_utf8_lossy(source.some(80)).into_owned();
    let own_words = source.rarely(8);
    UnitConfig {
        blocks: source.pick(&[1000, 0, 1, 1 << 32, (1 << 32) - 1, u64::MAX, u64::MAX / 512, 20_000_000]),
        block_size: source.pick(&[512, 4096, 512, 0, 513, 1 << 31]),
        physical_block_size: source.pick(&[4096, 512, 0, 1 << 24, 1 << 31]),
        read_only: source.rarely(4),
        removable: source.flag(),
        rotational: source.flag(),
        thin: source.flag(),
        write_cache: source.flag(),
        vendor: if own_words { text(source) } else { "VENDOR".into() },
        product: if own_words { text(source) } else { "PRODUCT".into() },
        revision: if own_words { text(source) } else { "0001".into() },
        serial: if own_words { text(source) } else { "serial".into() },
        naa: source.u64(),
        max_transfer_bytes: source.pick(&[1 << 20, 0, 1, u32::MAX]),
        optimal_transfer_bytes: source.pick(&[1 << 16, 0, 1, u32::MAX]),
        target_name: if own_words { text(source) } else { "iqn.2026-11.test:t".into() },
        target_port_group: 1,
        relative_port: 1,
        sole_writer: source.flag(),
    }
}

fn step(unit: &mut LogicalUnit, source: &mut Source<'_>) {
    let nexus = source.below(NEXUSES) as u64;
    match source.byte() {
        0..=223 => command(unit, nexus, source),
        224..=227 => unit.attach(nexus, source.flag().then_some(0)),
        228..=231 => unit.detach(nexus),
        232..=235 => unit.reset(source.flag().then_some(nexus)),
        236..=239 => unit.resized(source.u64()),
        240..=243 => unit.reopened(),
        244..=247 => unit.tasks_cleared_by(nexus),
        248..=251 => unit.establish(source.flag().then_some(nexus), (source.byte(), source.byte())),
        252.. => {
            let cdb = block(source);
            let outcome = scsi::no_unit(&cdb, &[0, 1 << 48]);
            answered(&cdb, 512, &outcome);
        }
    }
}

/// A CDB: a known operation code with arbitrary or extreme fields, sometimes too short or too long.
fn block(source: &mut Source<'_>) -> Vec<u8> {
    let facts = cdb::facts();
    let fact = &facts[source.below(facts.len())];
    let mut cdb = source.array::<16>().to_vec();
    if source.rarely(16) {
        cdb.extend_from_slice(source.some(EXTENDED_CDB_MAX));
    }
    if !source.rarely(32) {
        cdb[0] = fact.code;
        if let Some(action) = fact.service_action {
            cdb[1] = cdb[1] & 0xe0 | action;
        }
        // Most commands address the first blocks, and have no flags in the control byte.
        if let Some(length) = cdb::length(fact.code) {
            cdb[length - 1] = if source.rarely(16) { cdb[length - 1] } else { 0 };
            if source.flag() && length >= 10 {
                cdb[2..length - 4].fill(0);
            }
        }
    }
    if source.rarely(32) {
        cdb.truncate(source.below(17));
    }
    cdb
}

fn command(unit: &mut LogicalUnit, nexus: u64, source: &mut Source<'_>) {
    let cdb = block(source);
    let inventory: Vec<u64> = (0..source.below(40) as u64).map(|lun| lun << 48).collect();
    let rights = source.pick(&[Rights::ReadWrite, Rights::ReadWrite, Rights::ReadOnly]);
    let mut next = unit.command(nexus, rights, &cdb, &inventory);
    if let Step::Collect { bytes, list_bytes } = next {
        assert!(bytes <= list_bytes);
        assert!((1..=PARAMETER_LIST_MAX_BYTES).contains(&bytes));
        // Of an overlong list a command accepts only the meaningful length.
        let whole = cdb::data_bytes(&cdb, unit.config().block_size);
        let announced =
            whole.is_some_and(|(direction, moved)| direction == Direction::Out && u64::from(bytes) <= moved);
        assert!(announced, "{bytes} bytes for {cdb:02x?}");
        if source.rarely(8) {
            unit.reset(None);
        }
        next = unit.parameters(nexus, rights, &cdb, &list(source, bytes));
    }
    match next {
        Step::Done(outcome) => answered(&cdb, unit.config().block_size, &outcome),
        Step::Media(media) => work(unit, (nexus, rights), &cdb, &media, source),
        Step::Copy(list) => copy(unit, (nexus, rights), &list, source),
        Step::Collect { .. } => panic!("asks for the parameters again"),
    }
}

/// Asserts that a copy parsed by the device server is within its bounds, and ends.
fn copy(unit: &mut LogicalUnit, (nexus, rights): (u64, Rights), list: &CopyList, source: &mut Source<'_>) {
    assert!(list.cscds.len() <= COPY_CSCDS_MAX && list.segments.len() <= COPY_SEGMENTS_MAX);
    for cscd in &list.cscds {
        unit.is_named(cscd);
        let (lba, blocks) = (u64::from(source.number()), u64::from(source.u16()));
        let fits = unit.copies((nexus, rights), CopyEnd::Destination, cscd, lba, blocks);
        let may = rights == Rights::ReadWrite && !unit.config().read_only;
        assert!(fits.is_err() || lba + blocks <= unit.config().blocks && may);
    }
    let failure = CopyFailure { segment: source.u16(), fault: CopyFault::Device };
    let result = if source.flag() { Ok(u64::from(source.number()) << 20) } else { Err(failure) };
    let outcome = unit.copied(nexus, list, result);
    assert_eq!(outcome.sense.is_some(), result.is_err());
}

/// A plausible parameter list (MODE SELECT's header and pages, or UNMAP's descriptors), or arbitrary bytes.
fn list(source: &mut Source<'_>, bytes: u32) -> Vec<u8> {
    let bytes = bytes as usize;
    let mut list = Vec::new();
    match source.byte() % 5 {
        2 => {
            let (cscds, segments) = (source.below(10), source.below(12));
            list.extend([source.byte(), source.byte()]);
            list.extend((32 * cscds as u16).to_be_bytes());
            list.extend([0; 4]);
            list.extend((28 * segments as u32).to_be_bytes());
            list.extend([0; 4]);
            for _ in 0..cscds {
                list.extend([0xe4, 0, 0, 0, 1, 3, 0, 8]);
                list.extend_from_slice(source.take(20));
                list.resize(list.len().next_multiple_of(16) - 2, 0);
                list.extend([2, 0]);
            }
            for _ in 0..segments {
                list.extend([2, source.byte(), 0, 24]);
                list.extend_from_slice(source.take(24));
            }
        }
        0 => {
            let page: &[u8] = source.pick(&[
                &[0x08, 0x12, 0x04][..],
                &[0x0a, 0x0a, 0x02],
                &[0x8a, 0x0a, 0x06],
                &[0x1c, 0x0a],
                &[0x4a, 0x01, 0x00, 0x1c],
            ]);
            list.resize(source.pick(&[4, 8, 12, 16]), 0);
            list.extend_from_slice(page);
        }
        1 => {
            let count = source.below(20) as u16;
            list.extend((6 + 16 * count).to_be_bytes());
            list.extend((16 * count).to_be_bytes());
            list.extend([0; 4]);
            for _ in 0..count {
                list.extend(u64::from(source.u16()).to_be_bytes());
                list.extend(source.number().to_be_bytes());
                list.extend([0; 4]);
            }
        }
        _ => {}
    }
    list.extend_from_slice(source.some(64));
    if !source.rarely(8) {
        list.resize(bytes, 0);
    }
    list.truncate(bytes);
    list
}

fn answered(cdb: &[u8], block_size: u32, outcome: &Outcome) {
    assert_eq!(outcome.sense.is_some(), outcome.status == Status::CheckCondition, "{cdb:02x?}");
    if let Some(sense) = &outcome.sense {
        let bytes = sense.to_bytes();
        assert!(bytes.len() <= SENSE_MAX_BYTES && outcome.data.is_empty());
        let read = Sense::parse(&bytes).expect("sense data");
        assert_eq!((read.key, read.asc, read.ascq), (sense.key, sense.asc, sense.ascq));
        assert_eq!(read.specific, sense.specific);
    }
    if !outcome.data.is_empty() {
        let Some((Direction::In, bytes)) = cdb::data_bytes(cdb, block_size) else {
            panic!("data for a command that reads nothing: {cdb:02x?}");
        };
        assert!(outcome.data.len() as u64 <= bytes, "beyond the allocation length: {cdb:02x?}");
    }
}

/// Asserts that work for the storage addresses existing blocks and is permitted.
fn work(
    unit: &mut LogicalUnit,
    (nexus, rights): (u64, Rights),
    cdb: &[u8],
    media: &Media,
    source: &mut Source<'_>,
) {
    let config = unit.config().clone();
    let inside = |lba: u64, blocks: u64| lba <= config.blocks && blocks <= config.blocks - lba;
    assert!(matches!(media.op, MediaOp::Unmap { .. }) || inside(media.lba, media.blocks), "{media:?}");
    assert!(!(media.writes() && (config.read_only || rights == Rights::ReadOnly)), "{media:?}");
    assert!(!unit.lost_data(), "work for storage that lost data");
    let transfer_max = u64::from(config.max_transfer_bytes / config.block_size);
    match &media.op {
        MediaOp::Read { .. } | MediaOp::Write { .. } => {
            assert!(transfer_max == 0 || media.blocks <= transfer_max, "{media:?}");
            let expected = cdb::data_bytes(cdb, config.block_size).map(|(_, bytes)| bytes);
            let moved = media.data_in_bytes(config.block_size) + media.data_out_bytes(config.block_size);
            assert_eq!(expected, Some(moved), "{cdb:02x?}");
        }
        MediaOp::Unmap { ranges, .. } => {
            assert!(ranges.len() <= UNMAP_DESCRIPTORS_MAX as usize);
            assert!(ranges.iter().all(|range| range.blocks > 0 && inside(range.lba, range.blocks)));
            assert_eq!(ranges.iter().map(|range| range.blocks).sum::<u64>(), media.blocks);
            assert!(media.blocks <= UNMAP_BLOCKS_MAX.into());
        }
        MediaOp::WriteSame { .. } => assert!(media.blocks <= WRITE_SAME_BLOCKS_MAX.into(), "{media:?}"),
        MediaOp::LbaStatus { descriptors_max } => {
            assert!((1..=LBA_STATUS_DESCRIPTORS_MAX).contains(descriptors_max));
        }
        MediaOp::Verify { .. } | MediaOp::WriteVerify { .. } | MediaOp::Flush => {}
    }
    let _ = media.accepts_data_out(source.number().into(), config.block_size);
    // Events between the command and the answer of the storage.
    if source.rarely(8) {
        unit.resized(source.u64());
    }
    let outcome = if let MediaOp::LbaStatus { .. } = media.op {
        let extents: Vec<LbaExtent> = (0..source.below(20))
            .map(|_| LbaExtent {
                blocks: u64::from(source.number()) << (source.byte() % 33),
                mapped: source.flag(),
            })
            .collect();
        unit.lba_status(nexus, media, &extents)
    } else {
        let errors = [
            MediaError::Medium { lba: source.flag().then(|| source.u64()) },
            MediaError::NoSpace,
            MediaError::ReadOnly,
            MediaError::OutOfRange,
            MediaError::Miscompare { offset: 3 << 30 },
            MediaError::Aborted,
            MediaError::NotReady { ascq: 1 },
            MediaError::Hardware,
            MediaError::FlushFailed,
        ];
        let result = if source.rarely(4) { Err(source.pick(&errors)) } else { Ok(()) };
        unit.finish(nexus, media, result)
    };
    answered(cdb, config.block_size, &outcome);
}
