//! The provider changes, exchanges and truncates what it holds.

use super::Random;
use super::disk::{Disk, Image};
use super::machine::{Machine, SEGMENT, STORAGE_BYTES, formatted, keys, keys_of};
use volume::auth::{
    BLOCK_BYTES, Cipher, Failure, Layout, PAGE_BYTES, Request, SECTOR_BYTES, State, Unit, Volume, format,
};

const BLOCKS: u64 = 100;
const WRITTEN: u64 = 50;

fn content(block: u64) -> Vec<u8> {
    vec![block as u8 + 1; BLOCK_BYTES]
}

/// A volume whose first half is written, every third block twice.
fn written(cipher: Cipher, unit: Unit) -> Image {
    let mut machine = Machine::on(cipher, unit, formatted(cipher, unit, BLOCKS));
    for round in 0..2 {
        for block in (0..WRITTEN).filter(|block| round == 1 || block % 3 == 0) {
            machine.write(block, content(block)).expect("nothing fails");
        }
        machine.flush().expect("nothing fails");
    }
    machine.perform(Request::Close, Vec::new()).expect("nothing fails");
    machine.disk.image([])
}

fn layout(cipher: Cipher, unit: Unit) -> Layout {
    Layout::new(cipher, unit, SEGMENT, BLOCKS).expect("a layout")
}

/// Reads every block: what was written, or an error. Returns the blocks with errors; all if the volume does not open.
fn check(cipher: Cipher, unit: Unit, image: Image, what: &str) -> Vec<u64> {
    let mut machine = Machine::on(cipher, unit, image);
    let mut failed = Vec::new();
    for block in 0..BLOCKS {
        match machine.read(block) {
            Ok(data) => {
                let right = if block < WRITTEN { content(block) } else { vec![0; BLOCK_BYTES] };
                assert!(data == right, "block {block} reads as {:x?}..: {what}", &data[..8]);
            }
            Err(Failure::Unverified { block: named }) => {
                assert_eq!(named, block, "{what}");
                failed.push(block);
            }
            Err(Failure::Damaged) => failed.push(block),
            Err(failure) => panic!("block {block}: {failure:?}: {what}"),
        }
    }
    failed
}

fn flip(image: &mut Image, offset: u64, bit: u64) {
    let start = offset / 512 * 512;
    let mut sector = [0; 512];
    image.read(start, &mut sector);
    sector[(offset - start) as usize] ^= 1 << bit;
    image.write(start, &sector);
}

fn exchange(image: &mut Image, left: u64, right: u64, length: usize) {
    let (mut l, mut r) = (vec![0; length], vec![0; length]);
    copy_out(image, left, &mut l);
    copy_out(image, right, &mut r);
    copy_in(image, left, &r);
    copy_in(image, right, &l);
}

fn copy_out(image: &Image, offset: u64, into: &mut [u8]) {
    for (at, byte) in (offset..).zip(into) {
        let mut sector = [0; 512];
        image.read(at / 512 * 512, &mut sector);
        *byte = sector[(at % 512) as usize];
    }
}

fn copy_in(image: &mut Image, offset: u64, from: &[u8]) {
    for (at, byte) in (offset..).zip(from) {
        let mut sector = [0; 512];
        image.read(at / 512 * 512, &mut sector);
        sector[(at % 512) as usize] = *byte;
        image.write(at / 512 * 512, &sector);
    }
}

const KINDS: [(Cipher, Unit); 3] = [
    (Cipher::Aegis256X4, Unit::Bytes4096),
    (Cipher::Aes256GcmSiv, Unit::Bytes4096),
    (Cipher::Aegis256X4, Unit::Bytes512),
];

#[test]
fn untouched_volume_reads_as_written() {
    for (cipher, unit) in KINDS {
        assert!(check(cipher, unit, written(cipher, unit), "untouched").is_empty(), "{cipher:?} {unit:?}");
    }
}

/// A flipped bit of the map or of both superblocks closes the volume; of a block or its context, the block. A copy of
/// the superblock may be lost.
#[test]
fn bits_flipped_anywhere() {
    let mut random = Random(11);
    for (cipher, unit) in KINDS {
        let (image, layout) = (written(cipher, unit), layout(cipher, unit));
        let mut ranges =
            vec![(layout.superblock(0), 512), (layout.superblock(1), 512), (layout.map().start, 512)];
        ranges
            .extend((0..2).map(|page| (layout.pair(0).start + page * PAGE_BYTES as u64, PAGE_BYTES as u64)));
        ranges.extend(
            [0, 3, WRITTEN - 1, WRITTEN].map(|block| (layout.data_offset(block), BLOCK_BYTES as u64)),
        );
        for (start, length) in ranges {
            for _ in 0..24 {
                let mut changed = image.clone();
                let (offset, bit) = (start + random.below(length), random.below(8));
                flip(&mut changed, offset, bit);
                let failed =
                    check(cipher, unit, changed, &format!("{cipher:?} {unit:?} bit {bit} of {offset}"));
                if (layout.map().start..layout.map().start + 512).contains(&offset) {
                    assert_eq!(failed.len() as u64, BLOCKS, "the map does not verify");
                } else {
                    assert!(failed.len() <= 1, "{failed:?}");
                }
            }
        }
    }
}

#[test]
fn each_bit_of_a_context_counts() {
    for (cipher, unit) in KINDS {
        let (image, layout) = (written(cipher, unit), layout(cipher, unit));
        let pair = layout.pair(1).start;
        let bits = (layout.pair(1).end - layout.pair(1).start) * 4;
        for bit in 0..2 * bits {
            let mut changed = image.clone();
            flip(&mut changed, pair + bit / 8, bit % 8);
            let failed = check(cipher, unit, changed, "a bit of a context");
            // The second slot of this block is void.
            assert!(failed == [1] || (bit >= bits && failed.is_empty()), "{cipher:?} {unit:?} bit {bit}");
        }
    }
}

#[test]
fn blocks_exchanged_with_and_without_their_contexts() {
    for (cipher, unit) in KINDS {
        let (image, layout) = (written(cipher, unit), layout(cipher, unit));
        let pair = |block| layout.pair(block).start;
        let pair_bytes = (layout.pair(0).end - layout.pair(0).start) as usize;
        let mut data = image.clone();
        exchange(&mut data, layout.data_offset(4), layout.data_offset(5), BLOCK_BYTES);
        assert_eq!(check(cipher, unit, data.clone(), "data exchanged"), [4, 5]);
        exchange(&mut data, pair(4), pair(5), pair_bytes);
        assert_eq!(check(cipher, unit, data, "data and contexts exchanged"), [4, 5]);
        let mut unwritten = image.clone();
        exchange(&mut unwritten, pair(7), pair(WRITTEN), pair_bytes);
        assert_eq!(check(cipher, unit, unwritten, "an unwritten block's context"), [7, WRITTEN]);
    }
}

#[test]
fn contexts_zeroed() {
    for (cipher, unit) in KINDS {
        let (image, layout) = (written(cipher, unit), layout(cipher, unit));
        let mut one = image.clone();
        let pair = layout.pair(7);
        copy_in(&mut one, pair.start, &vec![0; (pair.end - pair.start) as usize]);
        assert_eq!(check(cipher, unit, one, "a context zeroed"), [7]);
        let mut all = image.clone();
        for page in 0..4 {
            all.write(layout.pair(0).start + page * PAGE_BYTES as u64, &[0; PAGE_BYTES]);
        }
        let failed = check(cipher, unit, all, "all contexts zeroed");
        assert_eq!(failed.len() as u64, BLOCKS, "unwritten blocks do not read as zeroes either");
    }
}

/// Data, contexts and map of another volume with the same key and another UUID.
#[test]
fn parts_of_another_volume() {
    let (cipher, unit) = (Cipher::Aegis256X4, Unit::Bytes4096);
    let layout = layout(cipher, unit);
    let other_keys = keys_of(cipher, unit, "6e8f2d1c-0000-4000-8000-000000000002");
    let mut other = Image::default();
    for (offset, bytes) in format(&layout, &other_keys, BLOCKS) {
        other.write(offset, &bytes);
    }
    let image = written(cipher, unit);
    let mut map = image.clone();
    let mut bytes = [0; SECTOR_BYTES];
    other.read(layout.map().start, &mut bytes);
    map.write(layout.map().start, &bytes);
    assert_eq!(check(cipher, unit, map, "another volume's map").len() as u64, BLOCKS);
    assert_eq!(check(cipher, unit, other, "another volume").len() as u64, BLOCKS);
}

#[test]
fn key_for_other_parameters_of_the_header() {
    let image = written(Cipher::Aegis256X4, Unit::Bytes4096);
    assert_eq!(check(Cipher::Aes256GcmSiv, Unit::Bytes4096, image.clone(), "cipher").len() as u64, BLOCKS);
    assert_eq!(check(Cipher::Aegis256X4, Unit::Bytes512, image, "unit").len() as u64, BLOCKS);
}

#[test]
fn storage_truncated() {
    let (cipher, unit) = (Cipher::Aegis256X4, Unit::Bytes4096);
    let end = layout(cipher, unit).end();
    for (bytes, failure) in [(end - 1, Some(Failure::Truncated)), (end, None)] {
        let volume = Volume::new(keys(cipher, unit), (cipher, unit, SEGMENT), bytes, [1; 16], false);
        let mut machine =
            Machine::of(volume.expect("a volume"), cipher, Disk::new(unit, written(cipher, unit)));
        machine.run();
        assert_eq!(machine.volume.failure(), failure.as_ref());
        assert_eq!(machine.volume.state() == State::Open, failure.is_none());
    }
    assert!(STORAGE_BYTES > end);
}

#[test]
fn second_writer_is_noticed_by_the_next_flush() {
    let (cipher, unit) = (Cipher::Aegis256X4, Unit::Bytes4096);
    let mut first = Machine::on(cipher, unit, formatted(cipher, unit, BLOCKS));
    first.write(1, content(1)).expect("nothing fails");
    first.flush().expect("nothing fails");
    let mut second = Machine::new(cipher, first.disk.clone(), Random(77));
    second.write(2, content(2)).expect("nothing fails");
    first.disk = second.disk.clone();
    first.write(3, content(3)).expect("nothing fails");
    assert_eq!(first.flush(), Err(Failure::Foreign));
    assert_eq!(first.write(3, content(3)), Err(Failure::Foreign));
    assert_eq!(first.read(3), Err(Failure::Foreign));
    assert_eq!(second.flush(), Ok(()));
    assert_eq!(second.read(1), Ok(content(1)));
}

/// A volume that was open, and not written, while another writer used it: its first write is of what the other left.
#[test]
fn what_another_writer_left_since_the_volume_was_opened_is_kept() {
    for (cipher, unit, closes) in [
        (Cipher::Aegis256X4, Unit::Bytes4096, true),
        (Cipher::Aegis256X4, Unit::Bytes512, true),
        (Cipher::Aes256GcmSiv, Unit::Bytes4096, false),
        (Cipher::Aes256GcmSiv, Unit::Bytes512, false),
    ] {
        let mut idle = Machine::on(cipher, unit, formatted(cipher, unit, BLOCKS));
        assert_eq!(idle.read(1), Ok(vec![0; BLOCK_BYTES]));
        let mut writer = Machine::new(cipher, idle.disk.clone(), Random(78));
        writer.write(1, content(1)).expect("nothing fails");
        writer.flush().expect("nothing fails");
        if closes {
            writer.perform(Request::Close, Vec::new()).expect("nothing fails");
        }
        idle.disk = writer.disk.clone();
        idle.write(60, content(60)).expect("nothing fails");
        assert_eq!(idle.flush(), Ok(()));
        for (block, data) in [(1, content(1)), (60, content(60)), (2, vec![0; BLOCK_BYTES])] {
            assert_eq!(idle.read(block), Ok(data.clone()), "block {block}");
            assert_eq!(
                Machine::on(cipher, unit, idle.disk.image([])).read(block),
                Ok(data),
                "block {block}, later"
            );
        }
    }
}

/// A writer whose volume another one has claimed writes nothing over what that one wrote.
#[test]
fn a_round_writes_nothing_after_the_claim_of_another_writer() {
    for (cipher, unit) in [(Cipher::Aegis256X4, Unit::Bytes4096), (Cipher::Aes256GcmSiv, Unit::Bytes512)] {
        let mut first = Machine::on(cipher, unit, formatted(cipher, unit, BLOCKS));
        for block in [1, 2] {
            first.write(block, content(block)).expect("nothing fails");
        }
        first.flush().expect("nothing fails");
        first.write(1, content(8)).expect("nothing fails");
        let mut second = Machine::new(cipher, first.disk.clone(), Random(79));
        second.write(2, content(9)).expect("nothing fails");
        second.flush().expect("nothing fails");
        first.disk = second.disk.clone();
        let before = first.disk.image([]);
        assert_eq!(first.flush(), Err(Failure::Foreign));
        let mut later = Machine::on(cipher, unit, first.disk.image([]));
        assert_eq!(later.read(2), Ok(content(9)));
        assert_eq!(later.read(1), Ok(content(1)));
        assert_eq!(Machine::on(cipher, unit, before).read(1), Ok(content(1)));
    }
}
