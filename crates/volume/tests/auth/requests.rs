//! What requests mean, and their limits.

use super::Random;
use super::disk::Disk;
use super::machine::{Error, Machine, SEGMENT, STORAGE_BYTES, formatted, keys};
use volume::auth::{
    BLOCK_BYTES, Cipher, Failure, Layout, LayoutError, POOL_SLOTS, REQUEST_BYTES_MAX, Request, Unit, Volume,
    format,
};

const CIPHER: Cipher = Cipher::Aegis256X4;
const UNIT: Unit = Unit::Bytes4096;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of a group.
const GROUP: u64 = 160;

fn opened(blocks: u64) -> Machine {
    Machine::on(CIPHER, UNIT, formatted(CIPHER, UNIT, blocks))
}

#[test]
fn requests_that_are_refused() {
    let mut machine = opened(10);
    let refused = [
        Request::Read { offset: 9 * BLOCK, length: 2 * BLOCK },
        Request::Read { offset: 100, length: 512 },
        Request::Read { offset: 0, length: 0 },
        Request::Write { offset: u64::MAX - 511, length: 512 },
        Request::Write { offset: 0, length: REQUEST_BYTES_MAX + 512 },
        Request::Discard { offset: 512, length: BLOCK },
    ];
    for request in refused {
        let data = if let Request::Write { .. } = request { vec![0; 512] } else { Vec::new() };
        assert_eq!(machine.perform(request, data), Err(Failure::OutOfRange), "{request:?}");
    }
}

#[test]
fn sectors_are_merged_into_their_blocks() {
    for unit in [Unit::Bytes512, Unit::Bytes4096] {
        let mut machine = Machine::on(CIPHER, unit, formatted(CIPHER, unit, 10));
        machine.write(2, vec![1; BLOCK_BYTES]).expect("nothing fails");
        let (offset, length) = (BLOCK + 512, 2 * BLOCK - 1024);
        machine.perform(Request::Write { offset, length }, vec![2; length as usize]).expect("nothing fails");
        let expected = [vec![0; 512], vec![2; length as usize], vec![1; 512]].concat();
        let read = Request::Read { offset: BLOCK, length: 2 * BLOCK };
        assert_eq!(machine.perform(read, Vec::new()), Ok(expected.clone()));
        machine.flush().expect("nothing fails");
        assert_eq!(machine.perform(read, Vec::new()), Ok(expected));
    }
}

#[test]
fn read_only_volume_writes_nothing() {
    let image = formatted(CIPHER, UNIT, 10);
    let volume = Volume::new(keys(CIPHER, UNIT), (CIPHER, UNIT, SEGMENT), STORAGE_BYTES, [1; 16], true);
    let mut machine = Machine::of(volume.expect("a volume"), CIPHER, Disk::new(UNIT, image));
    assert_eq!(machine.read(3), Ok(vec![0; BLOCK_BYTES]));
    assert_eq!(machine.write(3, vec![1; BLOCK_BYTES]), Err(Failure::ReadOnly));
    assert_eq!(machine.flush(), Ok(()));
    assert_eq!(machine.perform(Request::Close, Vec::new()), Ok(Vec::new()));
    assert_eq!((machine.disk.written, machine.disk.barriers), (0, 0));
}

#[test]
fn closing_ends_the_session_and_a_write_begins_another() {
    let mut machine = opened(10);
    for session in 1..4 {
        machine.write(3, vec![session; BLOCK_BYTES]).expect("nothing fails");
        assert_eq!(machine.volume.superblock().session, u32::from(session));
        assert!(!machine.volume.superblock().is_closed);
        machine.perform(Request::Close, Vec::new()).expect("nothing fails");
        assert!(machine.volume.superblock().is_closed);
        assert_eq!(machine.read(3), Ok(vec![session; BLOCK_BYTES]));
    }
    let mut machine = Machine::on(CIPHER, UNIT, machine.disk.image([]));
    assert_eq!(machine.read(3), Ok(vec![3; BLOCK_BYTES]), "all was durable");
}

#[test]
fn discarded_groups_and_blocks_read_as_zeroes() {
    for unit in [Unit::Bytes512, Unit::Bytes4096] {
        let blocks = 4 * GROUP + 10;
        let mut machine = Machine::on(CIPHER, unit, formatted(CIPHER, unit, blocks));
        for block in 0..blocks {
            machine.write(block, vec![1; BLOCK_BYTES]).expect("nothing fails");
        }
        machine.flush().expect("nothing fails");
        let request = Request::Discard { offset: 5 * BLOCK, length: (blocks - 5) * BLOCK };
        machine.perform(request, Vec::new()).expect("nothing fails");
        let written = machine.disk.written;
        machine.flush().expect("nothing fails");
        assert!(machine.disk.written - written < 10 * BLOCK, "whole groups cost a bit of the map each");
        for reopened in [false, true] {
            if reopened {
                machine = Machine::on(CIPHER, unit, machine.disk.image([]));
            }
            for block in 0..blocks {
                let expected = vec![u8::from(block < 5); BLOCK_BYTES];
                assert_eq!(machine.read(block), Ok(expected), "block {block}, reopened: {reopened}");
            }
        }
        machine.write(2 * GROUP, vec![9; BLOCK_BYTES]).expect("nothing fails");
        machine.flush().expect("nothing fails");
        let mut machine = Machine::on(CIPHER, unit, machine.disk.image([]));
        assert_eq!(machine.read(2 * GROUP), Ok(vec![9; BLOCK_BYTES]));
        assert_eq!(machine.read(2 * GROUP + 1), Ok(vec![0; BLOCK_BYTES]));
    }
}

#[test]
fn extents_show_what_is_unwritten() {
    let mut machine = opened(4 * GROUP);
    assert_eq!(machine.volume.extent(0), (4 * GROUP * BLOCK, false));
    machine.write(GROUP + 2, vec![1; 2 * BLOCK_BYTES]).expect("nothing fails");
    let expected = [
        (0, (GROUP + 2) * BLOCK, false),
        ((GROUP + 2) * BLOCK, (GROUP + 4) * BLOCK, true),
        ((GROUP + 4) * BLOCK, 4 * GROUP * BLOCK, false),
    ];
    for (offset, end, is_data) in expected {
        assert_eq!(machine.volume.extent(offset), (end, is_data), "at {offset}");
    }
    machine.flush().expect("nothing fails");
    let machine = Machine::on(CIPHER, UNIT, machine.disk.image([]));
    let expected = [(0, GROUP * BLOCK, false), (GROUP * BLOCK, 2 * GROUP * BLOCK, true)];
    for (offset, end, is_data) in expected {
        assert_eq!(machine.volume.extent(offset), (end, is_data), "at {offset}, contexts not in memory");
    }
}

/// Writes of which each alone would fit wait for slots and pages, and all complete.
#[test]
fn more_writes_than_the_pool_holds() {
    let blocks = u64::from(POOL_SLOTS) * 2;
    let mut machine = opened(blocks);
    let length = REQUEST_BYTES_MAX;
    for round in 0..2 {
        for offset in (0..blocks * BLOCK).step_by(length as usize) {
            machine.submit(Request::Write { offset, length }, vec![round; length as usize]);
        }
        machine.run();
        assert_eq!(machine.pending(), 0);
        if round == 0 {
            machine.flush().expect("nothing fails");
        }
    }
    assert_eq!(machine.read(blocks - 1), Ok(vec![1; BLOCK_BYTES]));
}

#[test]
fn failed_writes_are_reported_by_the_next_flush() {
    let mut machine = opened(10);
    machine.write(1, vec![1; BLOCK_BYTES]).expect("nothing fails");
    machine.flush().expect("nothing fails");
    machine.write(1, vec![2; BLOCK_BYTES]).expect("it waits in memory");
    machine.faults.lost_cache = 1;
    machine.write_out();
    machine.run();
    machine.faults.lost_cache = 0;
    assert_eq!(machine.read(1), Ok(vec![1; BLOCK_BYTES]), "what was flushed is there");
    assert_eq!(machine.flush(), Err(Failure::Storage(Error::CacheLost)));
    machine.write(1, vec![3; BLOCK_BYTES]).expect("nothing fails");
    assert_eq!(machine.flush(), Ok(()));
    assert_eq!(machine.volume.superblock().session, 2);
    let mut machine = Machine::new(CIPHER, Disk::new(UNIT, machine.disk.image([])), Random(4));
    machine.run();
    assert_eq!(machine.read(1), Ok(vec![3; BLOCK_BYTES]));
}

#[test]
fn a_cache_lost_before_the_first_write_is_reported_by_the_flush() {
    let mut machine = opened(10);
    machine.faults.lost_cache = 1;
    let request = Request::Write { offset: 0, length: BLOCK };
    machine.submit(request, vec![1; BLOCK_BYTES]);
    while machine.losses == 0 {
        assert!(machine.step(), "the claim has a barrier");
    }
    machine.faults.lost_cache = 0;
    machine.run();
    assert_eq!(machine.completed.pop().expect("the write completes").result, Ok(()));
    assert_eq!(machine.flush(), Err(Failure::Storage(Error::CacheLost)));
    assert_eq!(machine.flush(), Ok(()));
    machine.perform(Request::Close, Vec::new()).expect("nothing fails");
    machine.faults.lost_cache = 1;
    assert_eq!(
        machine.perform(request, vec![1; BLOCK_BYTES]),
        Err(Failure::Storage(Error::CacheLost)),
        "twice"
    );
}

#[test]
fn a_flush_that_waits_for_a_claim_fails_with_it() {
    let mut machine = opened(10);
    machine.faults.lost_cache = 1;
    let write = machine.submit(Request::Write { offset: 0, length: BLOCK }, vec![1; BLOCK_BYTES]);
    let first = machine.submit(Request::Flush, Vec::new());
    while machine.losses == 0 {
        assert!(machine.step(), "the claim has a barrier");
    }
    let second = machine.submit(Request::Flush, Vec::new());
    machine.run();
    for id in [write, first, second] {
        let completed = machine.completed.iter().find(|completed| completed.id == id);
        let result = &completed.expect("it completes").result;
        assert_eq!(*result, Err(Failure::Storage(Error::CacheLost)), "request {id}");
    }
}

/// More unclean sessions, each after one that closed, than the superblock has intervals.
#[test]
fn many_sessions_that_end_without_closing() {
    let mut machine = opened(10);
    for round in 1..=60_u8 {
        for block in [1, u64::from(round) % 10] {
            machine.write(block, vec![round; BLOCK_BYTES]).expect("nothing fails");
        }
        machine.flush().expect("nothing fails");
        if round % 2 == 0 {
            machine.perform(Request::Close, Vec::new()).expect("nothing fails");
        }
        machine = Machine::on(CIPHER, UNIT, machine.disk.image([]));
        for block in 0..10 {
            let last = (1..=round).rev().find(|round| block == 1 || u64::from(*round) % 10 == block);
            assert_eq!(
                machine.read(block),
                Ok(vec![last.unwrap_or(0); BLOCK_BYTES]),
                "block {block}, {round}"
            );
        }
    }
    assert_eq!(machine.volume.superblock().session, 60);
}

#[test]
fn layouts_fit_the_storage() {
    for cipher in Cipher::ALL {
        for unit in [Unit::Bytes512, Unit::Bytes4096] {
            for bytes in [8 << 20, (1 << 30) + 512, 1 << 40, 1 << 46] {
                let layout = Layout::fitting(cipher, unit, 0, bytes).expect("a layout");
                assert!(layout.end() <= bytes, "{layout:?}");
                let larger = Layout::new(cipher, unit, 0, layout.capacity + 1).expect("a layout");
                assert!(larger.end() > bytes, "{layout:?}");
                if bytes >= 1 << 40 {
                    let share = 1.0 - (layout.capacity * BLOCK) as f64 / bytes as f64;
                    assert!(share < 0.03, "{cipher:?} {unit:?}: {share}");
                }
            }
            assert_eq!(Layout::fitting(cipher, unit, 0, 4096), Err(LayoutError::TooSmall(4096)));
        }
    }
}

#[test]
fn format_of_a_terabyte_writes_less_than_a_mebibyte() {
    let layout = Layout::fitting(CIPHER, Unit::Bytes512, 16 << 20, 1 << 40).expect("a layout");
    let written: usize =
        format(&layout, &keys(CIPHER, Unit::Bytes512), layout.capacity).map(|(_, bytes)| bytes.len()).sum();
    assert!(written < 1 << 20, "{written} bytes");
}
