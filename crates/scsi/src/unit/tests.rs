//! One test per clause and condition; expectations are data. Clauses are those of SPC-4 and SBC-3 unless stated.

use super::*;
use crate::capacity::{Capacity, LunList};
use crate::cdb::{self, opcode as op};
use crate::copy::{CopyFailure, CopyFault, CopyList, CopyParameters};
use crate::inquiry::{self, DesignatorId};
use crate::limits::{LBA_STATUS_DESCRIPTORS_MAX, UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX};
use crate::mode::ModeData;
use crate::{Compare, LbaExtent, Range, Status};
use proptest::prelude::*;

pub(super) const BLOCKS: u64 = 10_000;
pub(super) const A: NexusId = 1;
pub(super) const B: NexusId = 2;
pub(super) const RW: Rights = Rights::ReadWrite;

pub(super) fn config() -> UnitConfig {
    UnitConfig {
        blocks: BLOCKS,
        block_size: 512,
        physical_block_size: 4096,
        read_only: false,
        sole_writer: false,
        removable: false,
        rotational: false,
        thin: true,
        write_cache: true,
        vendor: "HIKYAKU".into(),
        product: "VOLUME".into(),
        revision: "0001".into(),
        serial: "c0ffee".into(),
        naa: 0x1234_5678_9abc_def0,
        max_transfer_bytes: 1 << 20,
        optimal_transfer_bytes: 256 << 10,
        target_name: "iqn.2026-11.example:disk".into(),
        target_port_group: 1,
        relative_port: 1,
    }
}

/// A unit with nexuses A and B, whose POWER ON has been reported.
pub(super) fn unit_of(config: UnitConfig) -> LogicalUnit {
    let mut unit = LogicalUnit::new(config);
    for nexus in [A, B] {
        unit.attach(nexus, None);
        assert_eq!(codes(unit.command(nexus, RW, &[0; 6], &[])), Err((6, 0x29, 0x00)));
    }
    unit
}

pub(super) fn unit() -> LogicalUnit {
    unit_of(config())
}

/// Key, code and qualifier of a failure; any other step is a success.
pub(super) fn codes(step: Step) -> Result<Step, (u8, u8, u8)> {
    match step {
        Step::Done(Outcome { status: Status::CheckCondition, sense: Some(sense), .. }) => {
            Err((sense.key as u8, sense.asc, sense.ascq))
        }
        Step::Done(Outcome { status: Status::ReservationConflict, .. }) => Err((0xff, 0, 0)),
        step => Ok(step),
    }
}

/// The end of a command: key, code and qualifier; [`CONFLICT`] for a status without sense data.
type Ended = Result<(), (u8, u8, u8)>;

const GOOD: Ended = Ok(());
const OUT_OF_RANGE: Ended = Err((5, 0x21, 0x00));
const IN_CDB: Ended = Err((5, 0x24, 0x00));
const IN_LIST: Ended = Err((5, 0x26, 0x00));
const LIST_LENGTH: Ended = Err((5, 0x1a, 0x00));
const OPCODE: Ended = Err((5, 0x20, 0x00));
const PROTECTED: Ended = Err((7, 0x27, 0x00));
const NO_MEDIUM: Ended = Err((2, 0x3a, 0x00));
const PREVENTED: Ended = Err((5, 0x53, 0x02));
const CONFLICT: Ended = Err((0xff, 0, 0));

/// Runs a command to its end; the storage always succeeds.
fn run(unit: &mut LogicalUnit, nexus: NexusId, cdb: impl AsRef<[u8]>) -> Ended {
    match codes(unit.command(nexus, RW, cdb.as_ref(), &[0]))? {
        Step::Media(media) => codes(Step::Done(unit.finish(nexus, &media, Ok(())))).map(drop),
        _ => Ok(()),
    }
}

pub(super) fn data(unit: &mut LogicalUnit, cdb: impl AsRef<[u8]>) -> Vec<u8> {
    match unit.command(A, RW, cdb.as_ref(), &[0, 1 << 48]) {
        Step::Done(Outcome { status: Status::Good, data, .. }) => data,
        other => panic!("{:02x?}: {other:?}", cdb.as_ref()),
    }
}

fn media(unit: &mut LogicalUnit, cdb: impl AsRef<[u8]>) -> Media {
    match unit.command(A, RW, cdb.as_ref(), &[]) {
        Step::Media(media) => media,
        other => panic!("{:02x?}: {other:?}", cdb.as_ref()),
    }
}

/// A CDB of the block commands of any length: operation code, byte 1, address, count.
fn access(code: u8, flags: u8, lba: u64, blocks: u32) -> Vec<u8> {
    let mut cdb = vec![0; cdb::length(code).expect("a group with a length")];
    cdb[0] = code;
    match cdb.len() {
        6 => {
            cdb[1..4].copy_from_slice(&(lba as u32).to_be_bytes()[1..]);
            cdb[4] = blocks as u8;
        }
        10 => {
            cdb[2..6].copy_from_slice(&(lba as u32).to_be_bytes());
            cdb[7..9].copy_from_slice(&(blocks as u16).to_be_bytes());
        }
        12 => {
            cdb[2..6].copy_from_slice(&(lba as u32).to_be_bytes());
            cdb[6..10].copy_from_slice(&blocks.to_be_bytes());
        }
        _ => {
            cdb[2..10].copy_from_slice(&lba.to_be_bytes());
            cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
        }
    }
    cdb[1] |= flags;
    cdb
}

const READS: [u8; 4] = [op::READ_6, op::READ_10, op::READ_12, op::READ_16];
const WRITES: [u8; 4] = [op::WRITE_6, op::WRITE_10, op::WRITE_12, op::WRITE_16];
const VERIFIES: [u8; 3] = [op::VERIFY_10, op::VERIFY_12, op::VERIFY_16];
const WRITE_VERIFIES: [u8; 3] = [op::WRITE_VERIFY_10, op::WRITE_VERIFY_12, op::WRITE_VERIFY_16];
const PRE_FETCHES: [u8; 2] = [op::PRE_FETCH_10, op::PRE_FETCH_16];
const FLUSHES: [u8; 2] = [op::SYNCHRONIZE_CACHE_10, op::SYNCHRONIZE_CACHE_16];
const SAMES: [u8; 2] = [op::WRITE_SAME_10, op::WRITE_SAME_16];

fn all_accesses() -> impl Iterator<Item = u8> {
    let writes = WRITES.into_iter().chain(WRITE_VERIFIES).chain(SAMES);
    READS.into_iter().chain(VERIFIES).chain(PRE_FETCHES).chain(FLUSHES).chain(writes)
}

#[test]
fn access_beyond_eol() {
    let mut unit = unit();
    for code in all_accesses() {
        let vectors = [
            ("last_block", BLOCKS - 1, 1, GOOD),
            ("up_to_the_end", BLOCKS - 255, 255, GOOD),
            ("one_block_too_many", BLOCKS - 254, 255, OUT_OF_RANGE),
            ("all_but_one_beyond", BLOCKS - 1, 2, OUT_OF_RANGE),
            ("first_block_beyond", BLOCKS, 1, OUT_OF_RANGE),
            ("largest_of_21_bits", 0x1f_ffff, 1, OUT_OF_RANGE),
        ];
        for (name, lba, blocks, expected) in vectors {
            assert_eq!(run(&mut unit, A, access(code, 0, lba, blocks)), expected, "{name} {code:02x}");
        }
        if cdb::length(code) == Some(16) {
            assert_eq!(run(&mut unit, A, access(code, 0, u64::MAX, 2)), OUT_OF_RANGE, "wraps {code:02x}");
        }
    }
}

#[test]
fn access_of_zero_blocks() {
    let mut unit = unit();
    for code in all_accesses().filter(|code| cdb::length(*code) != Some(6)) {
        let same = SAMES.contains(&code);
        let vectors = [
            ("at_zero", 0, if same { IN_CDB } else { GOOD }),
            ("at_the_end", BLOCKS, OUT_OF_RANGE),
            ("one_beyond_the_end", BLOCKS + 1, OUT_OF_RANGE),
            ("at_2_31", 1 << 31, OUT_OF_RANGE),
        ];
        for (name, lba, expected) in vectors {
            assert_eq!(run(&mut unit, A, access(code, 0, lba, 0)), expected, "{name} {code:02x}");
        }
    }
}

#[test]
fn read_6_of_zero_blocks_is_256() {
    let mut unit = unit();
    let work = media(&mut unit, access(op::READ_6, 0, 5, 0));
    assert_eq!((work.lba, work.blocks, work.data_in_bytes(512)), (5, 256, 256 * 512));
    assert_eq!(media(&mut unit, access(op::WRITE_6, 0, 0, 0)).data_out_bytes(512), 256 * 512);
    assert_eq!(run(&mut unit, A, access(op::READ_6, 0, BLOCKS - 255, 0)), OUT_OF_RANGE);
}

#[test]
fn access_protect_field() {
    let mut unit = unit();
    for code in all_accesses().filter(|code| cdb::length(*code) != Some(6)) {
        let ignored = PRE_FETCHES.contains(&code) || FLUSHES.contains(&code);
        for protect in 1..8 {
            let expected = if ignored { GOOD } else { IN_CDB };
            assert_eq!(run(&mut unit, A, access(code, protect << 5, 0, 1)), expected, "{code:02x} {protect}");
        }
    }
}

#[test]
fn access_beyond_maximum_transfer_length() {
    let mut unit = unit();
    for code in [op::READ_10, op::READ_16, op::WRITE_12, op::VERIFY_16, op::WRITE_VERIFY_10] {
        assert_eq!(run(&mut unit, A, access(code, 0, 0, 2048)), GOOD, "{code:02x}");
        assert_eq!(run(&mut unit, A, access(code, 0, 0, 2049)), IN_CDB, "{code:02x}");
    }
    let mut unlimited = unit_of(UnitConfig { max_transfer_bytes: 0, ..config() });
    assert_eq!(run(&mut unlimited, A, access(op::READ_16, 0, 0, BLOCKS as u32)), GOOD);
}

#[test]
fn dpo_and_fua_reach_the_storage() {
    let mut unit = unit();
    for code in [op::READ_10, op::READ_12, op::READ_16] {
        assert_eq!(media(&mut unit, access(code, 0x00, 0, 1)).op, MediaOp::Read { fua: false });
        let work = media(&mut unit, access(code, 0x18, 0, 1));
        assert_eq!((work.dpo, work.op), (true, MediaOp::Read { fua: true }));
    }
    for code in [op::WRITE_10, op::WRITE_12, op::WRITE_16] {
        assert_eq!(media(&mut unit, access(code, 0x00, 0, 1)).op, MediaOp::Write { durable: false });
        assert_eq!(media(&mut unit, access(code, 0x08, 0, 1)).op, MediaOp::Write { durable: true });
    }
    let mut through = unit_of(UnitConfig { write_cache: false, ..config() });
    for (code, flags) in [(op::WRITE_6, 0), (op::WRITE_16, 0), (op::WRITE_SAME_16, 1)] {
        assert!(media(&mut through, access(code, flags, 0, 1)).durable(), "{code:02x}");
    }
}

#[test]
fn verify_bytchk() {
    let mut unit = unit();
    let vectors = [
        (0x00, Some((Compare::None, 0))),
        (0x02, Some((Compare::Each, 3 * 512))),
        (0x04, None),
        (0x06, Some((Compare::One, 512))),
    ];
    for code in VERIFIES {
        for (flags, expected) in vectors {
            let cdb = access(code, flags, 7, 3);
            match expected {
                None => assert_eq!(run(&mut unit, A, cdb), IN_CDB),
                Some((compare, bytes)) => {
                    let work = media(&mut unit, cdb);
                    assert_eq!((&work.op, work.data_out_bytes(512)), (&MediaOp::Verify { compare }, bytes));
                }
            }
        }
    }
    let none = media(&mut unit, access(op::VERIFY_16, 0x06, 0, 0));
    assert_eq!(none.data_out_bytes(512), 0, "nothing to compare");
    for flags in [0x04, 0x06] {
        assert_eq!(run(&mut unit, A, access(op::WRITE_VERIFY_16, flags, 0, 1)), IN_CDB);
    }
    let work = media(&mut unit, access(op::WRITE_VERIFY_16, 0x02, 0, 1));
    assert_eq!((work.durable(), work.data_out_bytes(512)), (true, 512));
}

#[test]
fn synchronize_cache_of_zero_blocks_is_the_rest() {
    let mut unit = unit();
    let work = media(&mut unit, access(op::SYNCHRONIZE_CACHE_16, 0, 100, 0));
    assert_eq!((work.op, work.lba, work.blocks), (MediaOp::Flush, 100, BLOCKS - 100));
}

#[test]
fn write_same_fields() {
    let (mut thin, mut thick) = (unit(), unit_of(UnitConfig { thin: false, ..config() }));
    let vectors = [
        ("plain", 0x00, GOOD, GOOD),
        ("unmap", 0x08, GOOD, IN_CDB),
        ("anchor", 0x10, IN_CDB, IN_CDB),
        ("anchor_unmap", 0x18, IN_CDB, IN_CDB),
        ("lbdata", 0x02, IN_CDB, IN_CDB),
        ("pbdata", 0x04, IN_CDB, IN_CDB),
    ];
    for code in SAMES {
        for (name, flags, on_thin, on_thick) in vectors {
            assert_eq!(run(&mut thin, A, access(code, flags, 0, 1)), on_thin, "{name} {code:02x}");
            assert_eq!(run(&mut thick, A, access(code, flags, 0, 1)), on_thick, "{name} {code:02x}");
        }
    }
    let work = media(&mut thin, cdb::write_same_16(3, 4, true, false));
    assert_eq!(work.op, MediaOp::WriteSame { unmap: true, zero: false, durable: false });
    assert_eq!(work.data_out_bytes(512), 512);
    assert_eq!(media(&mut thin, cdb::write_same_16(3, 4, true, true)).data_out_bytes(512), 0, "NDOB");
    let ten = media(&mut thin, access(op::WRITE_SAME_10, 0x01, 0, 1));
    assert_eq!(ten.data_out_bytes(512), 512, "no NDOB in 10");
}

/// FCP-4 9.4.2.6 leaves targets the choice that [`Media::accepts_data_out`] makes; iSCSI does not define it.
#[test]
fn data_out_of_another_length_than_the_cdb_has() {
    let mut unit = unit();
    let offers: [u64; 9] = [0, 1, 200, 511, 512, 513, 1023, 1024, 1025];
    let vectors: [(&str, Vec<u8>, &[u64]); 8] = [
        ("write", access(op::WRITE_10, 0, 0, 2), &[0, 512, 1024, 1025]),
        ("write_16", access(op::WRITE_16, 0, 0, 2), &[0, 512, 1024, 1025]),
        ("write_and_verify", access(op::WRITE_VERIFY_10, 0, 0, 2), &[0, 512, 1024, 1025]),
        ("verify_each", access(op::VERIFY_10, 0x02, 0, 2), &[1024, 1025]),
        ("verify_one", access(op::VERIFY_10, 0x06, 0, 2), &[512]),
        ("verify_without_data", access(op::VERIFY_10, 0, 0, 2), &offers),
        ("write_same", access(op::WRITE_SAME_16, 0, 0, 2), &[512]),
        ("write_same_unmap", access(op::WRITE_SAME_16, 0x08, 0, 2), &[0, 512]),
    ];
    for (name, cdb, accepted) in vectors {
        let media = media(&mut unit, cdb);
        let found: Vec<u64> =
            offers.into_iter().filter(|offered| media.accepts_data_out(*offered, 512)).collect();
        assert_eq!(found, accepted, "{name}");
    }
    assert_eq!(codes(Step::Done(unit.misfit())).map(drop), Err((5, 0x0e, 0x03)));
}

/// Relation of a nexus to the unit in the test below.
#[derive(Clone, Copy, Debug)]
enum Standing {
    ReadWrite,
    ReadOnly,
    /// The nexus does not see the unit: the caller executes [`crate::no_unit`].
    Masked,
}

/// How each command of the table ends for each standing: GOOD or an operation, or sense data. A read-write nexus always
/// ends with GOOD or an operation. The rows are in the order of the table.
#[test]
fn every_command_for_every_standing() {
    use op::*;
    const DENIED: Ended = Err((5, 0x20, 0x02));
    const NO_UNIT: Ended = Err((5, 0x25, 0x00));
    /// Operation code, service action, result for a read-only nexus, result for a masked one.
    const ROWS: [(u8, Option<u8>, Ended, Ended); 45] = [
        (TEST_UNIT_READY, None, GOOD, NO_UNIT),
        (REQUEST_SENSE, None, GOOD, GOOD),
        (READ_6, None, GOOD, NO_UNIT),
        (WRITE_6, None, PROTECTED, NO_UNIT),
        (INQUIRY, None, GOOD, GOOD),
        (MODE_SELECT_6, None, DENIED, NO_UNIT),
        (RESERVE_6, None, DENIED, NO_UNIT),
        (RELEASE_6, None, GOOD, NO_UNIT),
        (MODE_SENSE_6, None, GOOD, NO_UNIT),
        (START_STOP_UNIT, None, DENIED, NO_UNIT),
        (SEND_DIAGNOSTIC, None, GOOD, NO_UNIT),
        (PREVENT_ALLOW, None, DENIED, NO_UNIT),
        (READ_CAPACITY_10, None, GOOD, NO_UNIT),
        (READ_10, None, GOOD, NO_UNIT),
        (WRITE_10, None, PROTECTED, NO_UNIT),
        (WRITE_VERIFY_10, None, PROTECTED, NO_UNIT),
        (VERIFY_10, None, GOOD, NO_UNIT),
        (PRE_FETCH_10, None, GOOD, NO_UNIT),
        (SYNCHRONIZE_CACHE_10, None, GOOD, NO_UNIT),
        (WRITE_SAME_10, None, PROTECTED, NO_UNIT),
        (UNMAP, None, PROTECTED, NO_UNIT),
        (MODE_SELECT_10, None, DENIED, NO_UNIT),
        (RESERVE_10, None, DENIED, NO_UNIT),
        (RELEASE_10, None, GOOD, NO_UNIT),
        (MODE_SENSE_10, None, GOOD, NO_UNIT),
        // The ends of a copy are checked separately: the unit that gets the list need not be written.
        (EXTENDED_COPY, Some(0x00), GOOD, NO_UNIT),
        (RECEIVE_COPY_RESULTS, Some(0x00), GOOD, NO_UNIT),
        (RECEIVE_COPY_RESULTS, Some(0x03), GOOD, NO_UNIT),
        (RECEIVE_COPY_RESULTS, Some(0x04), GOOD, NO_UNIT),
        (READ_16, None, GOOD, NO_UNIT),
        (WRITE_16, None, PROTECTED, NO_UNIT),
        (WRITE_VERIFY_16, None, PROTECTED, NO_UNIT),
        (VERIFY_16, None, GOOD, NO_UNIT),
        (PRE_FETCH_16, None, GOOD, NO_UNIT),
        (SYNCHRONIZE_CACHE_16, None, GOOD, NO_UNIT),
        (WRITE_SAME_16, None, PROTECTED, NO_UNIT),
        (SERVICE_ACTION_IN_16, Some(0x10), GOOD, NO_UNIT),
        (SERVICE_ACTION_IN_16, Some(0x12), GOOD, NO_UNIT),
        (REPORT_LUNS, None, GOOD, GOOD),
        (MAINTENANCE_IN, Some(0x0c), GOOD, NO_UNIT),
        (MAINTENANCE_IN, Some(0x0d), GOOD, NO_UNIT),
        (READ_12, None, GOOD, NO_UNIT),
        (WRITE_12, None, PROTECTED, NO_UNIT),
        (WRITE_VERIFY_12, None, PROTECTED, NO_UNIT),
        (VERIFY_12, None, GOOD, NO_UNIT),
    ];
    let rows: Vec<(u8, Option<u8>)> =
        opcodes::TABLE.iter().map(|opcode| (opcode.code(), opcode.service_action)).collect();
    assert_eq!(rows, ROWS.map(|(code, action, ..)| (code, action)), "the table and its expectations");
    for (code, action, read_only, masked) in ROWS {
        let mut cdb = vec![0; cdb::length(code).expect("a group with a length")];
        cdb[0] = code;
        cdb[1] = action.unwrap_or(0);
        match code {
            // WSNZ: zero blocks would be rejected.
            WRITE_SAME_10 => cdb[8] = 1,
            WRITE_SAME_16 => cdb[13] = 1,
            MODE_SENSE_6 | MODE_SENSE_10 => cdb[2] = 0x3f,
            MAINTENANCE_IN => cdb[9] = 64,
            // Reports about a copy need a record.
            RECEIVE_COPY_RESULTS => cdb[13] = 64,
            _ => {}
        }
        use Standing::*;
        for (standing, expected) in [(ReadWrite, GOOD), (ReadOnly, read_only), (Masked, masked)] {
            let mut unit = unit();
            let record = CopyList { list_id: Some(0), cscds: Vec::new(), segments: Vec::new() };
            let (copy, list) = cdb::extended_copy(&record);
            assert!(matches!(unit.parameters(A, RW, copy.as_bytes(), &list), Step::Copy(_)));
            let step = match standing {
                ReadWrite => unit.command(A, RW, &cdb, &[0]),
                ReadOnly => unit.command(A, Rights::ReadOnly, &cdb, &[0]),
                Masked => Step::Done(crate::no_unit(&cdb, &[])),
            };
            assert_eq!(codes(step).map(drop), expected, "{code:02x} {action:?} {standing:?}");
        }
    }
}

#[test]
fn rights_that_are_lost_while_a_list_travels_count() {
    let list = [&[0; 4][..], &[0x0a, 10, 0x02, 0x10, 0x08, 0, 0, 0, 0xff, 0xff, 0, 0]].concat();
    let cdb = [op::MODE_SELECT_6, 0x10, 0, 0, list.len() as u8, 0];
    let mut unit = unit();
    assert!(matches!(unit.command(A, RW, &cdb, &[]), Step::Collect { .. }));
    let ended = codes(unit.parameters(A, Rights::ReadOnly, &cdb, &list)).map(drop);
    assert_eq!(ended, Err((5, 0x20, 0x02)));
    assert_eq!(run(&mut unit, B, access(op::WRITE_10, 0, 0, 1)), GOOD, "SWP was not set");
}

#[test]
fn write_protection_is_told_to_whom_it_concerns_sbc3_6_4_1() {
    let mut unit = unit();
    let sense = [op::MODE_SENSE_6, 0x08, 0x3f, 0, 255, 0];
    for (rights, expected) in [(RW, false), (Rights::ReadOnly, true)] {
        let Step::Done(outcome) = unit.command(A, rights, &sense, &[]) else { panic!("no storage") };
        assert_eq!(ModeData::parse_6(&outcome.data).map(|mode| mode.write_protected), Some(expected));
    }
}

#[test]
fn a_copy_may_read_what_its_nexus_may_only_read() {
    let unit = unit();
    let cscd = crate::copy::Cscd::naa(&0x3234_5678_9abc_def0_u64.to_be_bytes(), 512).expect("8 bytes");
    let ends = |end| unit.copies((A, Rights::ReadOnly), end, &cscd, 0, 8);
    assert_eq!(ends(CopyEnd::Source), Ok(()));
    assert_eq!(ends(CopyEnd::Destination), Err(CopyFault::Device));
}

#[test]
fn write_same_maximum_length_is_the_one_told() {
    let mut unit = unit_of(UnitConfig { blocks: 1 << 30, ..config() });
    let limits =
        inquiry::BlockLimits::parse(&data(&mut unit, cdb::inquiry(Some(0xb0), 255))).expect("page B0h");
    assert!(limits.write_same_non_zero);
    let max = u32::try_from(limits.write_same_max_blocks).expect("a count of 32 bits");
    assert_eq!(run(&mut unit, A, cdb::write_same_16(0, max, false, false)), GOOD);
    assert_eq!(run(&mut unit, A, cdb::write_same_16(0, max + 1, false, false)), IN_CDB);
}

/// UNMAP with a list built by the initiator's side, then modified.
fn unmapped(unit: &mut LogicalUnit, ranges: &[Range], change: impl FnOnce(&mut Vec<u8>)) -> Step {
    let (cdb, mut list) = cdb::unmap(ranges).expect("fits a list");
    let bytes = list.len() as u32;
    assert_eq!(unit.command(A, RW, cdb.as_bytes(), &[]), Step::Collect { list_bytes: bytes, bytes });
    change(&mut list);
    unit.parameters(A, RW, cdb.as_bytes(), &list)
}

#[test]
fn unmap_ranges() {
    let range = |lba, blocks| Range { lba, blocks };
    let many = vec![range(0, 1); UNMAP_DESCRIPTORS_MAX as usize];
    let mut unit = unit_of(UnitConfig { blocks: 1 << 33, ..config() });
    let max = u64::from(UNMAP_BLOCKS_MAX);
    let vectors: [(&str, &[Range], Ended); 10] = [
        ("none", &[], GOOD),
        ("empty_range", &[range(5, 0)], GOOD),
        ("empty_range_at_end", &[range(1 << 33, 0)], GOOD),
        ("empty_range_beyond_end", &[range((1 << 33) + 1, 0)], OUT_OF_RANGE),
        ("last_block", &[range((1 << 33) - 1, 1)], GOOD),
        ("beyond_end", &[range((1 << 33) - 1, 2)], OUT_OF_RANGE),
        ("largest_lba", &[range(u64::MAX, 1)], OUT_OF_RANGE),
        ("overlapping", &[range(0, 8), range(4, 8)], GOOD),
        ("too_many_blocks", &[range(0, max), range(0, 1)], IN_LIST),
        ("most_descriptors", &many, GOOD),
    ];
    for (name, ranges, expected) in vectors {
        assert_eq!(codes(unmapped(&mut unit, ranges, |_| {})).map(drop), expected, "{name}");
    }
    let ranges = [range(1, 2), range(9, 0), range(3, 4)];
    let Step::Media(work) = unmapped(&mut unit, &ranges, |_| {}) else { panic!() };
    assert_eq!(work.op, MediaOp::Unmap { ranges: vec![range(1, 2), range(3, 4)], durable: false });
    assert_eq!((work.blocks, work.data_out_bytes(512)), (6, 0));
}

#[test]
fn unmap_list_defects() {
    let mut unit = unit();
    let one = [Range { lba: 0, blocks: 1 }];
    type Change = fn(&mut Vec<u8>);
    let vectors: [(&str, Change, Ended); 5] = [
        ("list_truncated", |list| list.truncate(23), LIST_LENGTH),
        ("list_empty", Vec::clear, LIST_LENGTH),
        ("descriptor_length_beyond_list", |list| list[3] = 32, LIST_LENGTH),
        ("descriptor_length_cuts_descriptor", |list| list[3] = 15, GOOD),
        ("descriptor_length_huge", |list| list[2] = 0xff, IN_LIST),
    ];
    for (name, change, expected) in vectors {
        assert_eq!(codes(unmapped(&mut unit, &one, change)).map(drop), expected, "{name}");
    }
    let short = [op::UNMAP, 0, 0, 0, 0, 0, 0, 0, 7, 0];
    assert_eq!(run(&mut unit, A, short), LIST_LENGTH);
    assert_eq!(run(&mut unit, A, [op::UNMAP, 1, 0, 0, 0, 0, 0, 0, 24, 0]), IN_CDB, "anchor");
    assert_eq!(run(&mut unit, A, [op::UNMAP, 0, 0, 0, 0, 0, 0, 0, 0, 0]), GOOD, "no list");
}

#[test]
fn unmap_needs_thin() {
    let mut thick = unit_of(UnitConfig { thin: false, ..config() });
    let (cdb, _) = cdb::unmap(&[]).expect("fits");
    assert_eq!(run(&mut thick, A, cdb), OPCODE);
    let limits =
        inquiry::BlockLimits::parse(&data(&mut thick, cdb::inquiry(Some(0xb0), 255))).expect("page B0h");
    assert_eq!((limits.unmap_max_blocks, limits.unmap_max_descriptors), (0, 0));
}

/// PARAMETER DATA LENGTH and the descriptors of parameter data: first block, count, PROVISIONING STATUS. A partial
/// descriptor is omitted.
fn descriptors(data: &[u8]) -> (u32, Vec<(u64, u32, u8)>) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let descriptor = |bytes: &[u8]| {
        assert_eq!(bytes[13..], [0; 3], "reserved");
        (number(&bytes[..8]), number(&bytes[8..12]) as u32, bytes[12])
    };
    (number(&data[..4]) as u32, data[8..].chunks_exact(16).map(descriptor).collect())
}

/// Runs GET LBA STATUS; the storage reports these extents.
fn lba_status(unit: &mut LogicalUnit, lba: u64, allocation: u32, extents: &[(u64, bool)]) -> Vec<u8> {
    let work = media(unit, cdb::get_lba_status(lba, allocation));
    let extents: Vec<_> = extents.iter().map(|&(blocks, mapped)| LbaExtent { blocks, mapped }).collect();
    let outcome = unit.lba_status(A, &work, &extents);
    assert_eq!((outcome.status, outcome.sense), (Status::Good, None));
    outcome.data
}

#[test]
fn lba_status_of_blocks_that_exist() {
    for thin in [false, true] {
        let mut unit = unit_of(UnitConfig { thin, ..config() });
        for (name, lba, expected) in [
            ("first", 0, GOOD),
            ("last", BLOCKS - 1, GOOD),
            ("at_the_end", BLOCKS, OUT_OF_RANGE),
            ("one_beyond_the_end", BLOCKS + 1, OUT_OF_RANGE),
            ("at_2_63", 1 << 63, OUT_OF_RANGE),
            ("largest", u64::MAX, OUT_OF_RANGE),
        ] {
            for allocation in [0, 24, u32::MAX] {
                assert_eq!(run(&mut unit, A, cdb::get_lba_status(lba, allocation)), expected, "{name}");
            }
        }
    }
    let mut empty = unit_of(UnitConfig { blocks: 0, ..config() });
    assert_eq!(run(&mut empty, A, cdb::get_lba_status(0, 24)), OUT_OF_RANGE);
}

#[test]
fn lba_status_asks_for_what_the_answer_can_hold() {
    let mut unit = unit_of(UnitConfig { blocks: 1 << 60, ..config() });
    let whole = u64::from(u32::MAX);
    let max = LBA_STATUS_DESCRIPTORS_MAX;
    let vectors = [(0, 1), (7, 1), (23, 1), (24, 1), (39, 1), (40, 2), (8 + 16 * max, max), (u32::MAX, max)];
    for (allocation, expected) in vectors {
        let work = media(&mut unit, cdb::get_lba_status(5, allocation));
        assert_eq!(work.op, MediaOp::LbaStatus { descriptors_max: expected }, "{allocation}");
        assert_eq!((work.lba, work.blocks), (5, u64::from(expected) * whole), "{allocation}");
        assert_eq!((work.data_in_bytes(512), work.data_out_bytes(512)), (0, 0));
        assert!(!work.writes() && !work.durable() && work.accepts_data_out(0, 512));
    }
    unit.resized(100);
    assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), Err((6, 0x2a, 0x09)));
    assert_eq!(media(&mut unit, cdb::get_lba_status(90, 24)).blocks, 10, "to the end");
}

#[test]
fn lba_status_parameter_data() {
    let data = lba_status(&mut unit(), 0x0102, 40, &[(3, false), (4, true), (5, false)]);
    let mut expected = vec![0, 0, 0, 36, 0, 0, 0, 0];
    expected.extend([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 1, 0, 0, 0]);
    expected.extend([0, 0, 0, 0, 0, 0, 1, 5, 0, 0, 0, 4, 0, 0, 0, 0]);
    assert_eq!(data, expected, "the third does not fit");
}

#[test]
fn lba_status_cut_to_the_allocation_length() {
    let mut unit = unit();
    let extents = [(8, true), (8, false), (8, true)];
    let whole = lba_status(&mut unit, 0, 1024, &extents);
    assert_eq!(whole.len(), 8 + 3 * 16);
    for allocation in 0..=64 {
        let data = lba_status(&mut unit, 0, allocation, &extents);
        let descriptors = (allocation.saturating_sub(8) / 16).clamp(1, 3);
        assert_eq!(data.len() as u32, allocation.min(8 + 16 * descriptors), "{allocation}");
        if data.len() >= 8 {
            assert_eq!(data[..8], [0, 0, 0, 4 + 16 * descriptors as u8, 0, 0, 0, 0], "{allocation}");
            assert_eq!(data[8..], whole[8..data.len()], "{allocation}");
        }
    }
}

#[test]
fn lba_status_extents() {
    type Vector = (&'static str, &'static [(u64, bool)], &'static [(u64, u32, u8)]);
    let vectors: [Vector; 9] = [
        ("nothing_known", &[], &[(9_000, 1_000, 0)]),
        ("only_empty_extents", &[(0, false), (0, false)], &[(9_000, 1_000, 0)]),
        ("ends_early", &[(7, false)], &[(9_000, 7, 1)]),
        (
            "neighbours_alike",
            &[(1, false), (2, false), (3, true), (4, true)],
            &[(9_000, 3, 1), (9_003, 7, 0)],
        ),
        ("alike_around_an_empty_one", &[(1, false), (0, true), (2, false)], &[(9_000, 3, 1)]),
        ("empty_first", &[(0, true), (5, false)], &[(9_000, 5, 1)]),
        ("beyond_the_end", &[(999, true), (2, false)], &[(9_000, 999, 0), (9_999, 1, 1)]),
        ("behind_the_end", &[(1_000, false), (1, true)], &[(9_000, 1_000, 1)]),
        ("overflowing", &[(u64::MAX, true), (u64::MAX, true), (1, false)], &[(9_000, 1_000, 0)]),
    ];
    for (name, extents, expected) in vectors {
        let (length, found) = descriptors(&lba_status(&mut unit(), 9_000, 1024, extents));
        assert_eq!((length as usize, &found[..]), (4 + 16 * expected.len(), expected), "{name}");
    }
}

#[test]
fn lba_status_counts_have_32_bits() {
    let mut unit = unit_of(UnitConfig { blocks: 1 << 33, ..config() });
    let max = u64::from(u32::MAX);
    let (_, found) = descriptors(&lba_status(&mut unit, 0, 24, &[(1 << 33, false)]));
    assert_eq!(found, [(0, u32::MAX, 1)], "clamped");
    let (_, found) = descriptors(&lba_status(&mut unit, 0, 1024, &[(max + 5, false), (8, true)]));
    assert_eq!(found, [(0, u32::MAX, 1), (max, 5, 1), (max + 5, 8, 0)], "split");
}

#[test]
fn lba_status_is_bounded() {
    let mut unit = unit();
    let extents: Vec<_> = (0..2 * u64::from(LBA_STATUS_DESCRIPTORS_MAX)).map(|at| (1, at % 2 == 0)).collect();
    let (length, found) = descriptors(&lba_status(&mut unit, 0, u32::MAX, &extents));
    assert_eq!(length, 4 + 16 * LBA_STATUS_DESCRIPTORS_MAX);
    assert_eq!(found.len() as u32, LBA_STATUS_DESCRIPTORS_MAX);
}

#[test]
fn lba_status_without_provisioning_is_mapped() {
    let mut thick = unit_of(UnitConfig { thin: false, blocks: 1 << 33, ..config() });
    let (_, found) = descriptors(&data(&mut thick, cdb::get_lba_status(1, 24)));
    assert_eq!(found, [(1, u32::MAX, 0)]);
    let (_, found) = descriptors(&data(&mut thick, cdb::get_lba_status((1 << 33) - 1, 1024)));
    assert_eq!(found, [((1 << 33) - 1, 1, 0)]);
    assert_eq!(data(&mut thick, cdb::get_lba_status(0, 5)).len(), 5);
}

#[test]
fn lba_status_the_storage_does_not_know() {
    let mut unit = unit();
    let work = media(&mut unit, cdb::get_lba_status(10, 24));
    let outcome = unit.finish(A, &work, Ok(()));
    assert_eq!(descriptors(&outcome.data), (20, vec![(10, BLOCKS as u32 - 10, 0)]), "as if mapped");
    let read = media(&mut unit, cdb::read_16(0, 1, false));
    assert_eq!(unit.lba_status(A, &read, &[]), Outcome::good(), "other work has no such data");
}

#[test]
fn lba_status_conditions() {
    let status = || cdb::get_lba_status(0, 24);
    let mut unit = unit_of(UnitConfig { read_only: true, removable: true, ..config() });
    assert_eq!(run(&mut unit, A, status()), GOOD, "not a write");
    assert_eq!(run(&mut unit, A, [op::RESERVE_6, 0, 0, 0, 0, 0]), GOOD);
    assert_eq!(run(&mut unit, B, status()), CONFLICT);
    assert_eq!(run(&mut unit, A, cdb::start_stop_unit(false, true)), GOOD);
    assert_eq!(run(&mut unit, A, status()), NO_MEDIUM);
}

#[test]
fn read_only_refuses_writes() {
    let mut unit = unit_of(UnitConfig { read_only: true, ..config() });
    for code in [&WRITES[..], &WRITE_VERIFIES, &SAMES].into_iter().flatten() {
        assert_eq!(run(&mut unit, A, access(*code, 0, 0, 1)), PROTECTED, "{code:02x}");
    }
    assert_eq!(run(&mut unit, A, access(op::WRITE_SAME_16, 0x08, 0, 1)), PROTECTED);
    assert_eq!(run(&mut unit, A, [op::UNMAP, 0, 0, 0, 0, 0, 0, 0, 24, 0]), PROTECTED);
    assert_eq!(run(&mut unit, A, access(op::READ_16, 0, 0, 1)), GOOD);
    let answer = data(&mut unit, cdb::mode_sense_6(0x3f, 255));
    assert!(ModeData::parse_6(&answer).is_some_and(|mode| mode.write_protected && mode.dpo_fua));
}

#[test]
fn capacity() {
    let mut unit = unit();
    let ten = Capacity::parse_10(&data(&mut unit, cdb::read_capacity_10())).expect("8 bytes");
    assert_eq!((ten.blocks, ten.block_size), (BLOCKS, 512));
    let sixteen = Capacity::parse_16(&data(&mut unit, cdb::read_capacity_16(32))).expect("32 bytes");
    assert_eq!((sixteen.blocks, sixteen.physical_block_size()), (BLOCKS, Some(4096)));
    assert!(sixteen.thin && sixteen.unmapped_reads_zero && !sixteen.protection);
    for allocation in 0..=40 {
        assert_eq!(data(&mut unit, cdb::read_capacity_16(allocation)).len(), allocation.min(32) as usize);
    }
    let at_one = [op::READ_CAPACITY_10, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(run(&mut unit, A, at_one), IN_CDB, "LBA without PMI");
    let mut large = unit_of(UnitConfig { blocks: (1 << 32) + 1, ..config() });
    assert_eq!(data(&mut large, cdb::read_capacity_10())[..4], [0xff; 4]);
}

#[test]
fn inquiry_standard() {
    let mut unit = unit();
    let whole = data(&mut unit, cdb::inquiry(None, 260));
    assert_eq!((whole.len(), usize::from(whole[4])), (96, 91));
    let standard = inquiry::Standard::parse(&whole).expect("36 bytes");
    assert!(standard.is_disk() && standard.queueing && !standard.removable && !standard.protect);
    assert_eq!((standard.version, standard.vendor(), standard.product()), (6, "HIKYAKU", "VOLUME"));
    assert_eq!(whole[3], 0x12, "HISUP, format 2, no AERC, no TRMTSK");
    assert_eq!((standard.sole_writer, &whole[36..56]), (false, &[0; 20][..]));
    let mut sole = unit_of(UnitConfig { sole_writer: true, ..config() });
    let whole_sole = data(&mut sole, cdb::inquiry(None, 260));
    for (length, sole_writer) in [(36, false), (55, false), (56, true), (96, true)] {
        let standard = inquiry::Standard::parse(&whole_sole[..length]).expect("36 bytes");
        assert_eq!(standard.sole_writer, sole_writer, "{length} bytes");
    }
    assert_eq!(whole[58..66], [0x00, 0xa0, 0x09, 0x60, 0x04, 0x60, 0x04, 0xc0]);
    for allocation in 0..=260 {
        let cut = &whole[..whole.len().min(allocation.into())];
        assert_eq!(data(&mut unit, cdb::inquiry(None, allocation)), cut);
    }
    assert_eq!(run(&mut unit, A, [op::INQUIRY, 0, 1, 1, 0, 0]), IN_CDB, "page code without EVPD");
    assert_eq!(run(&mut unit, A, [op::INQUIRY, 1, 0x81, 1, 0, 0]), IN_CDB, "unknown page");
}

#[test]
fn inquiry_every_page_listed_is_there() {
    let mut unit = unit();
    let list = data(&mut unit, cdb::inquiry(Some(0x00), 255));
    let pages = inquiry::supported_pages(&list).expect("page 00h");
    assert_eq!(pages, [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2]);
    for page in pages {
        let whole = data(&mut unit, cdb::inquiry(Some(*page), 1024));
        assert_eq!(whole.len(), 4 + usize::from(u16::from_be_bytes([whole[2], whole[3]])), "{page:02x}");
        assert_eq!(whole[1], *page);
    }
}

#[test]
fn inquiry_identification() {
    let mut unit = unit();
    let page = data(&mut unit, cdb::inquiry(Some(0x83), 1024));
    let ids: Vec<DesignatorId> =
        inquiry::designators(&page).expect("page 83h").into_iter().map(|designator| designator.id).collect();
    let expected = [
        DesignatorId::Naa(vec![0x32, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0]),
        DesignatorId::T10 { vendor: "HIKYAKU".into(), id: "c0ffee".into() },
        DesignatorId::RelativePort(1),
        DesignatorId::PortGroup(1),
        DesignatorId::Name("iqn.2026-11.example:disk,t,0x0001".into()),
        DesignatorId::Name("iqn.2026-11.example:disk".into()),
    ];
    assert_eq!(ids, expected);
    let mut long = unit_of(UnitConfig { target_name: "é".repeat(500), serial: "x".repeat(500), ..config() });
    let page = data(&mut long, cdb::inquiry(Some(0x83), 4096));
    assert_eq!(inquiry::designators(&page).map(|list| list.len()), Some(6), "overlong names are cut");
}

#[test]
fn inquiry_block_limits_and_provisioning() {
    let mut unit = unit();
    let page = data(&mut unit, cdb::inquiry(Some(0xb0), 64));
    assert_eq!((page.len(), page[3]), (64, 0x3c));
    let limits = inquiry::BlockLimits::parse(&page).expect("page B0h");
    assert_eq!((limits.transfer_max_blocks, limits.transfer_optimal_blocks), (2048, 512));
    assert_eq!((limits.granularity_blocks, limits.unmap_granularity_blocks), (8, 8));
    assert_eq!((limits.unmap_max_blocks, limits.unmap_alignment), (UNMAP_BLOCKS_MAX, Some(0)));
    assert_eq!(limits.compare_and_write_max_blocks, 0);
    let page = data(&mut unit, cdb::inquiry(Some(0xb2), 64));
    let provisioning = inquiry::Provisioning::parse(&page).expect("page B2h");
    assert!(provisioning.unmap && provisioning.write_same_16 && provisioning.write_same_10);
    assert!(provisioning.reads_zero && !provisioning.anchor);
    assert_eq!(provisioning.kind, 2);
    let rate = |unit: &mut LogicalUnit| {
        inquiry::Characteristics::parse(&data(unit, cdb::inquiry(Some(0xb1), 64)))
            .map(|page| page.rotation_rate)
    };
    assert_eq!(rate(&mut unit), Some(1));
    assert_eq!(rate(&mut unit_of(UnitConfig { rotational: true, ..config() })), Some(7200));
}

#[test]
fn report_luns_select() {
    let mut unit = unit();
    let mut luns = |select: u8, allocation: u8| {
        data(&mut unit, [op::REPORT_LUNS, 0, select, 0, 0, 0, 0, 0, 0, allocation, 0, 0])
    };
    for (select, expected) in [(0, vec![0, 1 << 48]), (1, vec![]), (2, vec![0, 1 << 48])] {
        assert_eq!(LunList::parse(&luns(select, 255)).map(|list| list.luns), Some(expected), "{select}");
    }
    assert_eq!(luns(0, 16)[..8], [0, 0, 0, 16, 0, 0, 0, 0], "the length counts all LUNs");
    assert_eq!(luns(0, 3).len(), 3);
    assert_eq!(run(&mut unit, A, [op::REPORT_LUNS, 0, 3, 0, 0, 0, 0, 0, 0, 16, 0, 0]), IN_CDB);
}

#[test]
fn no_unit_answers() {
    let outcome = |cdb: &[u8]| crate::no_unit(cdb, &[0]);
    assert_eq!(outcome(cdb::inquiry(None, 36).as_bytes()).data[0], 0x7f);
    assert_eq!(outcome(cdb::inquiry(None, 5).as_bytes()).data.len(), 5);
    assert_eq!(outcome(cdb::report_luns(16).as_bytes()).data.len(), 16);
    let sense = Sense::parse(&outcome(cdb::request_sense(true, 255).as_bytes()).data).expect("sense data");
    assert_eq!((sense.asc, sense.descriptor), (0x25, true));
    for cdb in [cdb::test_unit_ready(), cdb::read_16(0, 1, false), cdb::inquiry(Some(0), 255)] {
        assert_eq!(outcome(cdb.as_bytes()).status, Status::CheckCondition);
    }
    for length in 0..16 {
        for code in 0..=255 {
            let mut cdb = vec![0; length];
            cdb.iter_mut().take(1).for_each(|byte| *byte = code);
            let _ = outcome(&cdb);
        }
    }
}

#[test]
fn attention_is_told_once_and_does_not_block_some() {
    let mut unit = LogicalUnit::new(config());
    unit.attach(A, None);
    assert_eq!(run(&mut unit, A, cdb::inquiry(None, 36)), GOOD);
    assert_eq!(run(&mut unit, A, cdb::report_luns(64)), GOOD);
    let sense = Sense::parse(&data(&mut unit, cdb::request_sense(false, 252))).expect("sense data");
    assert_eq!((sense.key, sense.asc, sense.ascq), (SenseKey::UnitAttention, 0x29, 0x00));
    assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), GOOD, "REQUEST SENSE took it");
    unit.attach(A, None);
    assert_eq!(run(&mut unit, A, cdb::read_16(0, 1, false)), Err((6, 0x29, 0x00)));
    assert_eq!(run(&mut unit, A, cdb::read_16(0, 1, false)), GOOD);
}

/// SAM-5 6.3.1 and 6.3.4: a returning nexus gets I_T NEXUS LOSS instead of POWER ON, unless data was lost.
#[test]
fn a_nexus_that_returns_gets_nexus_loss() {
    const POWER_ON: Ended = Err((6, 0x29, 0x00));
    const NEXUS_LOSS: Ended = Err((6, 0x29, 0x07));
    let mut unit = unit();
    let attach = |unit: &mut LogicalUnit, nexus, former, expected| {
        unit.attach(nexus, former);
        assert_eq!(run(unit, nexus, cdb::test_unit_ready()), expected, "{nexus} after {former:?}");
        assert_eq!(run(unit, nexus, cdb::test_unit_ready()), GOOD);
    };
    unit.detach(A);
    attach(&mut unit, 3, Some(A), NEXUS_LOSS);
    attach(&mut unit, 4, None, POWER_ON);
    unit.reset(Some(B));
    unit.detach(3);
    attach(&mut unit, 5, Some(3), NEXUS_LOSS);
    unit.detach(5);
    unit.reopened();
    attach(&mut unit, 6, Some(5), POWER_ON);
    unit.detach(6);
    attach(&mut unit, 7, Some(6), NEXUS_LOSS);
    unit.detach(7);
    let flush = media(&mut self::unit(), cdb::synchronize_cache_10());
    let _ = unit.finish(4, &flush, Err(MediaError::CacheLost));
    attach(&mut unit, 8, Some(7), POWER_ON);
    unit.detach(8);
    attach(&mut unit, 9, Some(8), NEXUS_LOSS);
}

/// A condition not reported before the loss of the nexus is reported to its successor.
#[test]
fn power_on_stays_pending_until_it_was_reported() {
    type Event = fn(&mut LogicalUnit);
    let events: [(&str, Event); 5] = [
        ("nothing", |_| {}),
        ("past_attention", |unit| assert_eq!(run(unit, 3, cdb::inquiry(None, 36)), GOOD)),
        ("reset", |unit| {
            unit.reset(Some(A));
            assert_eq!(run(unit, 3, cdb::test_unit_ready()), Err((6, 0x29, 0x03)));
        }),
        ("reopened", |unit| {
            assert_eq!(run(unit, 3, cdb::test_unit_ready()), Err((6, 0x29, 0x00)));
            unit.reopened();
        }),
        ("cache_lost", |unit| {
            assert_eq!(run(unit, 3, cdb::test_unit_ready()), Err((6, 0x29, 0x00)));
            let flush = media(unit, cdb::synchronize_cache_10());
            let _ = unit.finish(A, &flush, Err(MediaError::CacheLost));
        }),
    ];
    for (name, event) in events {
        let mut unit = unit();
        unit.attach(3, None);
        event(&mut unit);
        unit.detach(3);
        unit.attach(4, Some(3));
        assert_eq!(run(&mut unit, 4, cdb::test_unit_ready()), Err((6, 0x29, 0x00)), "{name}");
        unit.detach(4);
        unit.attach(5, Some(4));
        assert_eq!(run(&mut unit, 5, cdb::test_unit_ready()), Err((6, 0x29, 0x07)), "{name}");
    }
}

#[test]
fn attention_by_event() {
    type Event = fn(&mut LogicalUnit);
    let vectors: [(&str, Event, Ended, Ended); 6] = [
        ("reset_by_a", |unit| unit.reset(Some(A)), Err((6, 0x29, 0x03)), Err((6, 0x29, 0x03))),
        ("reset_by_target", |unit| unit.reset(None), Err((6, 0x29, 0x04)), Err((6, 0x29, 0x04))),
        ("resized", |unit| unit.resized(5), Err((6, 0x2a, 0x09)), Err((6, 0x2a, 0x09))),
        ("resized_to_the_same", |unit| unit.resized(BLOCKS), GOOD, GOOD),
        ("cleared_by_a", |unit| unit.tasks_cleared_by(A), GOOD, Err((6, 0x2f, 0x00))),
        ("established_except_b", |unit| unit.establish(Some(B), (0x3f, 0x0e)), Err((6, 0x3f, 0x0e)), GOOD),
    ];
    for (name, event, at_a, at_b) in vectors {
        let mut unit = unit();
        event(&mut unit);
        assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), at_a, "{name}");
        assert_eq!(run(&mut unit, B, cdb::test_unit_ready()), at_b, "{name}");
        assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), GOOD, "{name}: once");
    }
}

#[test]
fn attention_of_luns_goes_with_report_luns() {
    let mut unit = unit();
    unit.establish(None, (0x3f, 0x0e));
    assert_eq!(run(&mut unit, A, cdb::report_luns(64)), GOOD);
    assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), GOOD);
}

#[test]
fn reserve_against_another() {
    let (reserve, release) = ([op::RESERVE_6, 0, 0, 0, 0, 0], [op::RELEASE_6, 0, 0, 0, 0, 0]);
    let mut unit = unit();
    for _ in 0..2 {
        assert_eq!(run(&mut unit, A, reserve), GOOD, "again by the holder");
    }
    let (conflict, good) = (CONFLICT, GOOD);
    let vectors: [(&str, Vec<u8>, Ended); 12] = [
        ("reserve", reserve.to_vec(), conflict),
        ("release", release.to_vec(), good),
        ("mode_sense", cdb::mode_sense_6(0x3f, 255).as_bytes().to_vec(), conflict),
        ("inquiry", cdb::inquiry(None, 36).as_bytes().to_vec(), good),
        ("request_sense", cdb::request_sense(false, 18).as_bytes().to_vec(), good),
        ("report_luns", cdb::report_luns(64).as_bytes().to_vec(), good),
        ("test_unit_ready", cdb::test_unit_ready().as_bytes().to_vec(), conflict),
        ("read", cdb::read_16(0, 1, false).as_bytes().to_vec(), conflict),
        ("write", cdb::write_16(0, 1, false).as_bytes().to_vec(), conflict),
        ("prevent", vec![op::PREVENT_ALLOW, 0, 0, 0, 1, 0], conflict),
        ("allow", vec![op::PREVENT_ALLOW, 0, 0, 0, 0, 0], good),
        ("reserve_after_release", reserve.to_vec(), conflict),
    ];
    for (name, cdb, expected) in vectors {
        assert_eq!(run(&mut unit, B, cdb), expected, "{name}");
    }
    assert_eq!(run(&mut unit, A, cdb::write_16(0, 1, false)), GOOD);
    assert_eq!(run(&mut unit, A, release), GOOD);
    assert_eq!(run(&mut unit, B, [op::RESERVE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0]), GOOD);
    assert_eq!(unit.reserved_by(), Some(B));
    for cdb in [[op::RESERVE_6, 1, 0, 0, 0, 0], [op::RESERVE_6, 0x10, 0, 0, 0, 0]] {
        assert_eq!(run(&mut unit, B, cdb), IN_CDB, "extents and third parties");
    }
}

#[test]
fn reservation_ends_with_nexus_or_reset() {
    let mut unit = unit();
    assert_eq!(run(&mut unit, A, [op::RESERVE_6, 0, 0, 0, 0, 0]), GOOD);
    unit.detach(A);
    assert_eq!(run(&mut unit, B, [op::RESERVE_6, 0, 0, 0, 0, 0]), GOOD);
    unit.reset(Some(A));
    assert_eq!(unit.reserved_by(), None);
}

fn start_stop(immediate: u8, bits: u8) -> [u8; 6] {
    [op::START_STOP_UNIT, immediate, 0, 0, bits, 0]
}

const EJECT: u8 = 0x02;
const LOAD: u8 = 0x03;

fn prevent(unit: &mut LogicalUnit, nexus: NexusId, prevent: u8) {
    assert_eq!(run(unit, nexus, [op::PREVENT_ALLOW, 0, 0, 0, prevent, 0]), GOOD);
}

#[test]
fn eject_and_load() {
    let mut unit = unit_of(UnitConfig { removable: true, ..config() });
    for immediate in [0, 1] {
        assert_eq!(run(&mut unit, A, start_stop(immediate, EJECT)), GOOD);
        assert_eq!(run(&mut unit, B, cdb::test_unit_ready()), Err((6, 0x28, 0x00)), "others hear of it");
        for code in all_accesses() {
            assert_eq!(run(&mut unit, A, access(code, 0, u64::from(u32::MAX), 1)), NO_MEDIUM, "{code:02x}");
        }
        for cdb in [cdb::test_unit_ready(), cdb::read_capacity_10(), cdb::read_capacity_16(32)] {
            assert_eq!(run(&mut unit, A, cdb), NO_MEDIUM);
        }
        assert_eq!(run(&mut unit, A, [op::UNMAP, 0, 0, 0, 0, 0, 0, 0, 24, 0]), NO_MEDIUM);
        let sense = Sense::parse(&data(&mut unit, cdb::request_sense(false, 252))).expect("sense data");
        assert_eq!(sense.asc, 0x3a);
        assert_eq!(run(&mut unit, A, start_stop(immediate, LOAD)), GOOD);
        assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), GOOD, "not for the one that loads");
        assert_eq!(run(&mut unit, B, cdb::test_unit_ready()), Err((6, 0x28, 0x00)));
    }
}

#[test]
fn eject_flushes_and_fails_with_it() {
    let mut unit = unit_of(UnitConfig { removable: true, ..config() });
    let work = media(&mut unit, start_stop(0, EJECT));
    assert_eq!(work.op, MediaOp::Flush);
    let outcome = unit.finish(A, &work, Err(MediaError::FlushFailed));
    assert_eq!(outcome.sense.map(|sense| sense.key), Some(SenseKey::MediumError));
    assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), GOOD, "still in");
}

#[test]
fn start_stop_without_loej_and_with_power_condition() {
    let mut unit = unit_of(UnitConfig { removable: true, ..config() });
    for bits in [0x00, 0x01, 0x04, 0x05] {
        assert_eq!(run(&mut unit, A, start_stop(0, bits)), GOOD);
        assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), GOOD, "{bits:02x}");
    }
    for power in 1..16 {
        assert_eq!(run(&mut unit, A, start_stop(1, power << 4 | EJECT)), GOOD);
        assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), GOOD, "{power}");
    }
    assert_eq!(run(&mut self::unit(), A, start_stop(0, EJECT)), IN_CDB, "not removable");
}

#[test]
fn prevent_is_per_nexus_and_ends_with_it() {
    type End = fn(&mut LogicalUnit);
    let ends: [(&str, End); 3] = [
        ("allow", |unit| prevent(unit, A, 0)),
        ("nexus_loss", |unit| unit.detach(A)),
        ("reset", |unit| {
            unit.reset(Some(B));
            assert_eq!(run(unit, B, cdb::test_unit_ready()), Err((6, 0x29, 0x03)));
        }),
    ];
    for (name, end) in ends {
        let mut unit = unit_of(UnitConfig { removable: true, ..config() });
        prevent(&mut unit, A, 1);
        prevent(&mut unit, B, 1);
        prevent(&mut unit, B, 0);
        assert_eq!(run(&mut unit, B, start_stop(0, EJECT)), PREVENTED, "{name}");
        assert_eq!(run(&mut unit, B, cdb::test_unit_ready()), GOOD, "{name}");
        end(&mut unit);
        assert_eq!(run(&mut unit, B, start_stop(0, EJECT)), GOOD, "{name}");
        prevent(&mut unit, B, 1);
        assert_eq!(run(&mut unit, B, start_stop(0, LOAD)), PREVENTED, "{name}: loading too");
    }
}

/// MODE SELECT (6) of `page` after an empty header.
fn mode_select(unit: &mut LogicalUnit, page: &[u8]) -> Step {
    let mut list = vec![0; 4];
    list.extend(page);
    let bytes = list.len() as u32;
    let cdb = [op::MODE_SELECT_6, 0x10, 0, 0, bytes as u8, 0];
    assert_eq!(unit.command(A, RW, &cdb, &[]), Step::Collect { list_bytes: bytes, bytes });
    unit.parameters(A, RW, &cdb, &list)
}

/// Pages by MODE SENSE: all bytes after the header.
fn page(unit: &mut LogicalUnit, control: u8, code: u8) -> Vec<u8> {
    data(unit, [op::MODE_SENSE_6, 0x08, control << 6 | code, 0, 255, 0])[4..].to_vec()
}

#[test]
fn mode_sense_pages() {
    let mut unit = unit();
    let all = page(&mut unit, 0, 0x3f);
    assert_eq!(all, [0x01, 0x08, 0x0a, 0x1c].map(|code| page(&mut unit, 0, code)).concat());
    let six = data(&mut unit, [op::MODE_SENSE_6, 0, 0x3f, 0xff, 255, 0]);
    assert_eq!((usize::from(six[0]) + 1, six[3]), (six.len(), 8));
    assert_eq!(six[4..12], [0, 0, 0x27, 0x10, 0, 0, 2, 0], "short block descriptor");
    let ten = data(&mut unit, [op::MODE_SENSE_10, 0x10, 0x3f, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!((usize::from(u16::from_be_bytes([ten[0], ten[1]])) + 2, ten[4], ten[7]), (ten.len(), 1, 16));
    assert_eq!(data(&mut unit, [op::MODE_SENSE_6, 0, 0x3f, 0, 4, 0]).len(), 4, "allocation length");
    let vectors = [
        ("saved", [op::MODE_SENSE_6, 0, 0xc8, 0, 255, 0], Err((5, 0x39, 0x00))),
        ("unknown_page", [op::MODE_SENSE_6, 0, 0x02, 0, 255, 0], IN_CDB),
        ("unknown_subpage", [op::MODE_SENSE_6, 0, 0x0a, 1, 255, 0], IN_CDB),
        ("all_subpages", [op::MODE_SENSE_6, 0, 0x0a, 0xff, 255, 0], GOOD),
    ];
    for (name, cdb, expected) in vectors {
        assert_eq!(run(&mut unit, A, cdb), expected, "{name}");
    }
}

#[test]
fn mode_select_wce() {
    let mut unit = unit();
    assert_eq!(page(&mut unit, 1, 0x08)[2], 0x04, "changeable");
    let mut caching = page(&mut unit, 0, 0x08);
    caching[2] &= !0x04;
    let Step::Media(work) = mode_select(&mut unit, &caching) else { panic!("the cache is written first") };
    assert_eq!(work.op, MediaOp::Flush);
    assert_eq!(unit.finish(A, &work, Ok(())), Outcome::good());
    assert!(!unit.write_cache() && media(&mut unit, cdb::write_16(0, 1, false)).durable());
    assert_eq!(page(&mut unit, 2, 0x08)[2], 0x04, "default");
    assert_eq!(run(&mut unit, B, cdb::test_unit_ready()), Err((6, 0x2a, 0x01)), "others hear of it");
    unit.reset(Some(A));
    assert!(unit.write_cache(), "a reset returns to the default");

    let mut through = unit_of(UnitConfig { write_cache: false, ..config() });
    let mut caching = page(&mut through, 0, 0x08);
    caching[2] |= 0x04;
    assert_eq!(codes(mode_select(&mut through, &caching)).map(drop), IN_LIST, "write-through stays");
}

#[test]
fn mode_select_swp() {
    let mut unit = unit();
    let mut control = page(&mut unit, 0, 0x0a);
    control[4] |= 0x08;
    assert_eq!(codes(mode_select(&mut unit, &control)).map(drop), GOOD);
    assert_eq!(run(&mut unit, A, cdb::write_16(0, 1, false)), PROTECTED);
    assert_eq!(run(&mut unit, A, cdb::read_16(0, 1, false)), GOOD);
    assert_eq!(data(&mut unit, cdb::mode_sense_6(0x0a, 255))[2] & 0x80, 0x80, "WP");
    control[4] &= !0x08;
    assert_eq!(codes(mode_select(&mut unit, &control)).map(drop), GOOD);
    assert_eq!(run(&mut unit, A, cdb::write_16(0, 1, false)), GOOD);
}

#[test]
fn mode_select_d_sense() {
    let mut unit = unit();
    let failing = cdb::read_16(u64::MAX, 1, false);
    let format = |unit: &mut LogicalUnit| match unit.command(A, RW, failing.as_bytes(), &[]) {
        Step::Done(Outcome { sense: Some(sense), .. }) => sense.to_bytes()[0],
        other => panic!("{other:?}"),
    };
    assert_eq!(format(&mut unit), 0x70, "fixed although the address has 64 bits");
    let mut control = page(&mut unit, 0, 0x0a);
    control[2] |= 0x04;
    assert_eq!(codes(mode_select(&mut unit, &control)).map(drop), GOOD);
    assert_eq!(format(&mut unit), 0x72);
    let work = media(&mut unit, cdb::read_16(0, 1, false));
    let outcome = unit.finish(A, &work, Err(MediaError::Medium { lba: None }));
    assert!(outcome.sense.is_some_and(|sense| sense.descriptor));
}

#[test]
fn mode_select_defects() {
    let mut unit = unit();
    let caching = page(&mut unit, 0, 0x08);
    let with = |change: fn(&mut Vec<u8>)| {
        let mut page = caching.clone();
        change(&mut page);
        page
    };
    let vectors = [
        ("same", with(|_| {}), GOOD),
        ("ps_is_ignored", with(|page| page[0] |= 0x80), GOOD),
        ("not_changeable", with(|page| page[2] |= 0x01), IN_LIST),
        ("page_length", with(|page| page[1] = 10), IN_LIST),
        ("page_truncated", with(|page| page.truncate(19)), LIST_LENGTH),
        ("page_header_truncated", with(|page| page.truncate(1)), LIST_LENGTH),
        ("subpage_format", with(|page| page[0] |= 0x40), IN_LIST),
        ("page_unknown", with(|page| page[0] = 0x02), IN_LIST),
    ];
    for (name, list, expected) in vectors {
        assert_eq!(codes(mode_select(&mut unit, &list)).map(drop), expected, "{name}");
    }
    for (name, cdb, expected) in [
        ("save_pages", [op::MODE_SELECT_6, 0x11, 0, 0, 24, 0], IN_CDB),
        ("revert", [op::MODE_SELECT_6, 0x12, 0, 0, 24, 0], IN_CDB),
        ("page_format", [op::MODE_SELECT_6, 0x00, 0, 0, 24, 0], IN_CDB),
        ("no_list", [op::MODE_SELECT_6, 0x10, 0, 0, 0, 0], GOOD),
    ] {
        assert_eq!(run(&mut unit, A, cdb), expected, "{name}");
    }
}

#[test]
fn mode_select_block_descriptor() {
    let vectors: [(&str, &[u8], Ended); 6] = [
        ("header_truncated", &[0, 0, 0], LIST_LENGTH),
        ("as_it_is", &[0, 0, 0, 8, 0, 0, 0x27, 0x10, 0, 0, 2, 0], GOOD),
        ("number_zero", &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0], GOOD),
        ("other_block_length", &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0x10, 0], IN_LIST),
        ("length_odd", &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 2], IN_LIST),
        ("descriptor_truncated", &[0, 0, 0, 8, 0, 0, 0, 0], LIST_LENGTH),
    ];
    for (name, list, expected) in vectors {
        let cdb = [op::MODE_SELECT_6, 0x10, 0, 0, list.len() as u8, 0];
        assert_eq!(codes(unit().parameters(A, RW, &cdb, list)).map(drop), expected, "{name}");
    }
    let cdb = [op::MODE_SELECT_6, 0x10, 0, 0, 24, 0];
    let ended = codes(unit().parameters(A, RW, &cdb, &[0; 23])).map(drop);
    assert_eq!(ended, LIST_LENGTH, "shorter than requested");
    let ten = [op::MODE_SELECT_10, 0x10, 0, 0, 0, 0, 0, 0, 16, 0];
    let list = [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0x27, 0x10, 0, 0, 2, 0];
    assert_eq!(codes(unit().parameters(A, RW, &ten, &list)).map(drop), GOOD);
}

#[test]
fn report_supported_opcodes() {
    for thin in [false, true] {
        let mut unit = unit_of(UnitConfig { thin, ..config() });
        let all = data(&mut unit, [op::MAINTENANCE_IN, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
        assert_eq!(all.len() as u32, 4 + u32::from_be_bytes([all[0], all[1], all[2], all[3]]));
        let (mut seen_unmap, mut seen_lba_status) = (false, false);
        for line in all[4..].chunks(8) {
            let (code, action, flags) = (line[0], line[3], line[5]);
            seen_unmap |= code == op::UNMAP;
            seen_lba_status |= (code, action) == (op::SERVICE_ACTION_IN_16, 0x12);
            assert!(flags == 1 || action == 0, "SERVACTV {code:02x}");
            let mut one = |options: u8| {
                let cdb = [op::MAINTENANCE_IN, 0x0c, options, code, 0, action, 0, 0, 0xff, 0xff, 0, 0];
                codes(unit.command(A, RW, &cdb, &[]))
            };
            let (works, fails) = if flags & 1 == 1 { (2, 1) } else { (1, 2) };
            assert_eq!(one(fails).map(drop), IN_CDB);
            let Ok(Step::Done(outcome)) = one(works) else { panic!("{code:02x}") };
            assert_eq!((outcome.data[1], outcome.data[3], outcome.data[4]), (3, line[7], code));
            let Ok(Step::Done(outcome)) = one(3) else { panic!("{code:02x}") };
            assert_eq!(outcome.data[1], 3);
        }
        assert_eq!((seen_unmap, seen_lba_status), (thin, true));
        let timed = data(&mut unit, [op::MAINTENANCE_IN, 0x0c, 0x80, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
        for line in timed[4..].chunks(20) {
            assert_eq!((line[5] & 2, line[8], line[9]), (2, 0, 0x0a), "CTDP and its descriptor");
        }
        let unknown = data(&mut unit, cdb::report_supported_opcode(op::PERSISTENT_RESERVE_IN, 0, 64));
        assert_eq!(unknown, [0, 1, 0, 0]);
        let read = data(&mut unit, cdb::report_supported_opcode(op::READ_10, 0, 64));
        assert_eq!(read[5] & 0x18, 0x18, "DPO and FUA in the usage data");
    }
}

#[test]
fn report_supported_task_management() {
    let mut unit = unit();
    let cdb = |extended: u8, allocation: u8| {
        [op::MAINTENANCE_IN, 0x0d, extended, 0, 0, 0, 0, 0, 0, allocation, 0, 0]
    };
    assert_eq!(data(&mut unit, cdb(0, 255)), [0xda, 0, 0, 0]);
    assert_eq!(data(&mut unit, cdb(0x80, 255)).len(), 16);
    assert_eq!(run(&mut unit, A, cdb(0, 3)), IN_CDB);
}

#[test]
fn unknown_commands() {
    let mut unit = unit();
    for cdb in [
        access(op::COMPARE_AND_WRITE, 0, 0, 1),
        access(op::ORWRITE, 0, 0, 1),
        access(op::EXTENDED_COPY, 1, 0, 1),
        access(op::RECEIVE_COPY_RESULTS, 1, 0, 1),
        access(op::SERVICE_ACTION_IN_16, 0x13, 0, 24),
        vec![op::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 0, 8, 0],
        vec![0xff; 16],
        vec![],
    ] {
        assert_eq!(run(&mut unit, A, &cdb), OPCODE, "{cdb:02x?}");
    }
    assert_eq!(run(&mut unit, A, [0, 0, 0, 0, 0, 0x04]), IN_CDB, "NACA");
    assert_eq!(run(&mut unit, A, [op::READ_10, 0, 0]), IN_CDB, "cut");
    assert_eq!(run(&mut unit, A, [op::SEND_DIAGNOSTIC, 0x04, 0, 0, 0, 0]), GOOD, "self-test");
    assert_eq!(run(&mut unit, A, [op::SEND_DIAGNOSTIC, 0x20, 0, 0, 0, 0]), IN_CDB);
}

#[test]
fn errors_of_the_storage() {
    let mut unit = unit();
    let read = media(&mut unit, cdb::read_16(0, 1, false));
    let write = media(&mut unit, cdb::write_16(0, 1, false));
    let status = media(&mut unit, cdb::get_lba_status(0, 24));
    let vectors = [
        (&read, MediaError::Medium { lba: None }, (3, 0x11, 0x00)),
        (&write, MediaError::Medium { lba: None }, (3, 0x0c, 0x00)),
        (&write, MediaError::NoSpace, (7, 0x27, 0x07)),
        (&write, MediaError::ReadOnly, (7, 0x27, 0x00)),
        (&status, MediaError::Medium { lba: None }, (3, 0x11, 0x00)),
        (&read, MediaError::OutOfRange, (5, 0x21, 0x00)),
        (&write, MediaError::Miscompare { offset: 77 }, (0xe, 0x1d, 0x00)),
        (&read, MediaError::Aborted, (0xb, 0x00, 0x00)),
        (&read, MediaError::NotReady { ascq: 1 }, (2, 0x04, 0x01)),
        (&read, MediaError::Hardware, (4, 0x44, 0x00)),
    ];
    for (media, error, expected) in vectors {
        let outcome = unit.finish(A, media, Err(error));
        if let MediaError::Miscompare { offset } = error {
            assert_eq!(outcome.sense.and_then(|sense| sense.information), Some(offset));
        }
        assert_eq!(codes(Step::Done(outcome)), Err(expected), "{error:?}");
    }
    assert!(!unit.lost_data());
}

/// INFORMATION is the LBA of the first block that failed, where it is one of the command's. In fixed format it has 32 bits; a
/// larger LBA leaves VALID zero (SPC-4 4.5.3).
#[test]
fn sbc3_4_18_1_information_is_the_lba_that_failed() {
    const LARGE: u64 = (1 << 33) - 16;
    let mut unit = unit_of(UnitConfig { blocks: 1 << 33, ..config() });
    let mut control = page(&mut unit, 0, 0x0a);
    control[2] |= 0x04;
    for descriptor in [false, true] {
        if descriptor {
            assert_eq!(codes(mode_select(&mut unit, &control)).map(drop), GOOD);
        }
        let read = media(&mut unit, cdb::read_16(100, 8, false));
        let write = media(&mut unit, cdb::write_16(100, 8, false));
        let large = media(&mut unit, cdb::read_16(LARGE, 8, false));
        let vectors = [
            (&read, Some(100), (3, 0x11, 0x00), Some(100)),
            (&read, Some(107), (3, 0x11, 0x00), Some(107)),
            (&read, Some(108), (3, 0x11, 0x00), None),
            (&read, Some(99), (3, 0x11, 0x00), None),
            (&read, None, (3, 0x11, 0x00), None),
            (&write, Some(103), (3, 0x0c, 0x00), Some(103)),
            (&large, Some(LARGE + 7), (3, 0x11, 0x00), descriptor.then_some(LARGE + 7)),
        ];
        for (media, lba, expected, information) in vectors {
            let outcome = unit.finish(A, media, Err(MediaError::Medium { lba }));
            let bytes = outcome.sense.unwrap().to_bytes();
            assert_eq!(bytes[0] & 0x7f, if descriptor { 0x72 } else { 0x70 });
            assert_eq!(Sense::parse(&bytes).unwrap().information, information, "{lba:?}: {bytes:02x?}");
            assert_eq!(codes(Step::Done(outcome)), Err(expected), "{lba:?}");
        }
    }
    let ranges = [Range { lba: 50, blocks: 2 }, Range { lba: 70, blocks: 2 }];
    let Step::Media(unmap) = unmapped(&mut unit, &ranges, |_| ()) else { panic!("blocks are deallocated") };
    for (lba, information) in [(50, Some(50)), (52, None), (71, Some(71)), (0, None)] {
        let outcome = unit.finish(A, &unmap, Err(MediaError::Medium { lba: Some(lba) }));
        assert_eq!(outcome.sense.unwrap().information, information, "{lba}");
    }
}

#[test]
fn failed_flush_stays_failed() {
    let mut unit = unit();
    let flush = media(&mut unit, cdb::synchronize_cache_16(0, 0));
    assert_eq!(codes(Step::Done(unit.finish(A, &flush, Err(MediaError::FlushFailed)))), Err((3, 0x0c, 0x00)));
    for nexus in [A, B] {
        for (cdb, expected) in [
            (cdb::synchronize_cache_10(), Err((3, 0x0c, 0x00))),
            (cdb::write_16(0, 1, false), Err((3, 0x0c, 0x00))),
            (cdb::read_16(0, 1, false), Err((3, 0x11, 0x00))),
            (cdb::get_lba_status(0, 24), Err((3, 0x11, 0x00))),
        ] {
            assert_eq!(run(&mut unit, nexus, cdb), expected);
        }
    }
    unit.reset(Some(A));
    assert!(unit.lost_data(), "a reset does not bring it back");
    unit.reopened();
    assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), Err((6, 0x29, 0x03)));
    assert_eq!(run(&mut unit, A, cdb::test_unit_ready()), Err((6, 0x28, 0x00)));
    assert_eq!(run(&mut unit, A, cdb::synchronize_cache_10()), GOOD);
}

#[test]
fn a_lost_cache_fails_one_flush_of_each_nexus() {
    const LOST: Ended = Err((3, 0x0c, 0x00));
    let mut unit = unit();
    let flush = media(&mut unit, cdb::synchronize_cache_10());
    let ended = |unit: &mut LogicalUnit, nexus, result| {
        let outcome = unit.finish(nexus, &flush, result);
        codes(Step::Done(outcome)).map(|_| ())
    };
    // The flushes of both were in progress: the storage reports the loss to each.
    assert_eq!(ended(&mut unit, A, Err(MediaError::CacheLost)), LOST);
    assert_eq!(ended(&mut unit, B, Err(MediaError::CacheLost)), LOST);
    assert_eq!((ended(&mut unit, A, Ok(())), ended(&mut unit, B, Ok(()))), (GOOD, GOOD));
    // Only one was: the next flush of the other nexus fails even if the storage reports success; no other command does.
    assert_eq!(ended(&mut unit, A, Err(MediaError::CacheLost)), LOST);
    let write = media(&mut unit, cdb::write_16(0, 1, false));
    assert_eq!(codes(Step::Done(unit.finish(B, &write, Ok(())))).map(|_| ()), GOOD);
    assert_eq!((ended(&mut unit, A, Ok(())), ended(&mut unit, B, Ok(()))), (GOOD, LOST));
    assert_eq!((ended(&mut unit, A, Ok(())), ended(&mut unit, B, Ok(()))), (GOOD, GOOD));
    assert!(!unit.lost_data());
}

#[test]
fn odd_block_sizes_are_put_right() {
    for (block_size, physical, expected) in
        [(0, 0, (512, 512)), (4096, 512, (4096, 4096)), (512, 1 << 30, (512, 512))]
    {
        let unit = LogicalUnit::new(UnitConfig { block_size, physical_block_size: physical, ..config() });
        assert_eq!((unit.config().block_size, unit.config().physical_block_size), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// For any input: no panic, sense data exactly with CHECK CONDITION, no list above the bound, operations only on
    /// existing blocks.
    #[test]
    fn any_cdb_and_list(
        commands in prop::collection::vec(
            (
                1u64..4,
                prop_oneof![any::<u8>(), prop::sample::select(opcodes::TABLE.iter().map(Opcode::code).collect::<Vec<_>>())],
                prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..20),
                prop::collection::vec(any::<u8>(), 0..80),
            ),
            1..12,
        ),
        (removable, read_only, thin, blocks) in (any::<bool>(), any::<bool>(), any::<bool>(), 0u64..1 << 34),
    ) {
        let mut unit = LogicalUnit::new(UnitConfig { removable, read_only, thin, blocks, ..config() });
        for (nexus, code, mut cdb, list) in commands {
            if let Some(first) = cdb.first_mut() {
                *first = code;
            }
            let mut step = unit.command(nexus, RW, &cdb, &[0]);
            if let Step::Collect { bytes, .. } = step {
                prop_assert!(bytes > 0 && bytes <= crate::limits::PARAMETER_LIST_MAX_BYTES);
                step = unit.parameters(nexus, RW, &cdb, &list);
            }
            // A parameter list without a preceding [`Step::Collect`].
            let _ = unit.parameters(nexus, RW, &cdb, &list);
            let outcome = match step {
                Step::Done(outcome) => outcome,
                Step::Media(media) => {
                    if let MediaOp::Unmap { ranges, .. } = &media.op {
                        prop_assert!(ranges.iter().all(|range| range.lba + range.blocks <= blocks));
                    } else {
                        prop_assert!(media.lba.checked_add(media.blocks).is_some_and(|end| end <= blocks));
                    }
                    prop_assert!(media.data_in_bytes(512) <= 1 << 20 && media.data_out_bytes(512) <= 1 << 20);
                    unit.finish(nexus, &media, if list.is_empty() { Err(MediaError::Medium { lba: None }) } else { Ok(()) })
                }
                Step::Copy(list) => {
                    let failure = CopyFailure { segment: 1, fault: CopyFault::Device };
                    unit.copied(nexus, &list, Err(failure))
                }
                Step::Collect { .. } => return Err(TestCaseError::fail("a list is collected once")),
            };
            prop_assert_eq!(outcome.status == Status::CheckCondition, outcome.sense.is_some());
            if let Some(sense) = outcome.sense {
                prop_assert_eq!(Sense::parse(&sense.to_bytes()), Some(sense));
            }
            let _ = crate::no_unit(&cdb, &[0]);
        }
    }

    /// The parsers of the initiator's side accept any bytes without a panic.
    #[test]
    fn any_answer(data in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = (Sense::parse(&data), inquiry::Standard::parse(&data), inquiry::serial(&data));
        let mut page = data.clone();
        for code in [0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2] {
            if let Some(byte) = page.get_mut(1) {
                *byte = code;
            }
            let _ = (inquiry::supported_pages(&page), inquiry::serial(&page), inquiry::designators(&page));
            let _ = (inquiry::BlockLimits::parse(&page), inquiry::Characteristics::parse(&page));
            let _ = inquiry::Provisioning::parse(&page);
        }
        let _ = (Capacity::parse_10(&data), Capacity::parse_16(&data), LunList::parse(&data));
        for mode in [ModeData::parse_6(&data), ModeData::parse_10(&data)].into_iter().flatten() {
            let _ = (mode.caching(), mode.page(0x0a, 1));
        }
        let _ = CopyParameters::parse(&data).map(|parameters| parameters.segments_of_list(2));
        let _ = (cdb::Access::parse(&data), cdb::data_bytes(&data, 512), cdb::fact_of(&data));
    }
}
