//! Volumes that get another key, cut anywhere and tampered with.

use std::collections::HashSet;
use std::convert::Infallible;

use super::Random;
use super::disk::{Disk, Image};
use super::machine::{Machine, SEGMENT, STORAGE_BYTES, UUID, keys};
use volume::Storage;
use volume::auth::{
    BLOCK_BYTES, Cipher, Failure, Keys, Layout, PAGE_BYTES, ReencryptError, Reencryption, Request, Unit,
    Unverified, Volume, format,
};

/// Room for a last group with pages of blocks beyond the volume's end.
const CAPACITY: u64 = 700;
/// Three groups or four, of which the last one has blocks beyond the end and one has none.
const BLOCKS: u64 = 620;
const WRITTEN: [u64; 6] = [0, 1, 63, 319, 600, BLOCKS - 1];
/// Never written: in a group that is, in one that is not, at the end.
const UNWRITTEN: [u64; 4] = [2, 200, 400, BLOCKS - 2];
const BLOCK: u64 = BLOCK_BYTES as u64;
const KINDS: [(Cipher, Unit); 4] = [
    (Cipher::Aes256GcmSiv, Unit::Bytes4096),
    (Cipher::Aegis256X4, Unit::Bytes4096),
    (Cipher::Aes256GcmSiv, Unit::Bytes512),
    (Cipher::Aegis256X4, Unit::Bytes512),
];
/// Pieces whose subsets are all tried; of more, some at random.
const EXHAUSTIVE_PIECES_MAX: usize = 8;
const DRAWN_SUBSETS: usize = 24;
const STEPS_MAX: usize = 100;

type Error = ReencryptError<Infallible>;
type Contents = Vec<(u64, Vec<u8>)>;

fn new_keys(cipher: Cipher, unit: Unit) -> Keys {
    Keys::new(&[8; 64], UUID, cipher, unit, SEGMENT)
}

fn layout(cipher: Cipher, unit: Unit) -> Layout {
    Layout::new(cipher, unit, SEGMENT, CAPACITY).expect("a layout")
}

/// A disk that remembers what power loss may leave after each of its writes and barriers.
struct Recorder {
    disk: Disk,
    bytes: u64,
    images: Vec<Image>,
    seen: HashSet<u64>,
    /// `None`: nothing is remembered.
    random: Option<Random>,
}

impl Recorder {
    fn new(unit: Unit, image: Image, random: Option<Random>) -> Self {
        let disk = Disk::new(unit, image);
        Self { disk, bytes: STORAGE_BYTES, images: Vec::new(), seen: HashSet::new(), random }
    }

    fn remember(&mut self) {
        let Some(random) = &mut self.random else { return };
        let pieces: Vec<_> = self.disk.volatile().into_iter().flatten().collect();
        let masks: Vec<u64> = if pieces.len() <= EXHAUSTIVE_PIECES_MAX {
            (0..1 << pieces.len()).collect()
        } else {
            // Of few pieces, of most, of every other.
            let few = |random: &mut Random| random.next() & random.next() & random.next();
            let drawn = (0..DRAWN_SUBSETS).map(|index| match index % 3 {
                0 => few(random),
                1 => !few(random),
                _ => random.next(),
            });
            [0, u64::MAX].into_iter().chain(drawn).collect()
        };
        for mask in masks {
            let kept =
                pieces.iter().enumerate().filter(|(index, _)| mask.rotate_right(*index as u32) & 1 == 1);
            let image = self.disk.image(kept.map(|(_, piece)| piece.clone()));
            if self.seen.insert(image.digest()) {
                self.images.push(image);
            }
        }
    }
}

impl Storage for Recorder {
    type Error = Infallible;

    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Infallible> {
        assert!(offset + into.len() as u64 <= self.bytes, "nothing is read beyond the end");
        self.disk.read(offset, into, &mut Random(1));
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Infallible> {
        let id = self.disk.submit(offset, from);
        self.disk.complete(id);
        self.remember();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        let done = self.disk.completed();
        self.disk.make_durable(&done);
        self.remember();
        Ok(())
    }
}

fn content(block: u64, version: u8) -> Vec<u8> {
    vec![block as u8 ^ version << 4 | 1; BLOCK_BYTES]
}

/// A volume with overwritten blocks. If it was not closed, a batch is half in its place.
fn volume(cipher: Cipher, unit: Unit, is_closed: bool) -> Image {
    let mut image = Image::default();
    for (offset, bytes) in format(&layout(cipher, unit), &keys(cipher, unit), BLOCKS) {
        image.write(offset, &bytes);
    }
    let mut machine = Machine::on(cipher, unit, image);
    for version in 0..2 {
        for block in WRITTEN {
            machine.write(block, content(block, version)).expect("nothing fails");
        }
        machine.flush().expect("nothing fails");
    }
    if is_closed {
        machine.perform(Request::Close, Vec::new()).expect("nothing fails");
        return machine.disk.image([]);
    }
    for block in WRITTEN {
        machine.write(block, content(block, 2)).expect("nothing fails");
    }
    machine.write_out();
    machine.run();
    let pieces: Vec<_> = machine.disk.volatile().into_iter().flatten().collect();
    assert!(!pieces.is_empty(), "the last round is not durable");
    machine.disk.image(pieces.into_iter().step_by(2))
}

fn opened(keys: Keys, cipher: Cipher, unit: Unit, image: Image) -> Machine {
    let volume = Volume::new(keys, (cipher, unit, SEGMENT), STORAGE_BYTES, [3; 16], false);
    let mut machine = Machine::of(volume.expect("a volume"), cipher, Disk::new(unit, image));
    machine.run();
    machine
}

fn read_all(machine: &mut Machine) -> Vec<(u64, Result<Vec<u8>, ()>)> {
    let blocks = WRITTEN.into_iter().chain(UNWRITTEN);
    blocks.map(|block| (block, machine.read(block).map_err(|_| ()))).collect()
}

/// What the volume holds.
fn contents(keys: Keys, cipher: Cipher, unit: Unit, image: &Image) -> Contents {
    let all = read_all(&mut opened(keys, cipher, unit, image.clone()));
    all.into_iter().map(|(block, content)| (block, content.expect("a block that verifies"))).collect()
}

fn begun(storage: &mut Recorder, cipher: Cipher, seed: u64) -> Result<Reencryption, Error> {
    let unit = storage.disk.unit;
    let keys = [&keys(cipher, unit), &new_keys(cipher, unit)];
    let mut reencryption = Reencryption::read(storage, keys, (cipher, unit, SEGMENT), 1)?;
    reencryption.begin(storage, [seed as u8; 16])?;
    Ok(reencryption)
}

fn finish(
    storage: &mut Recorder,
    mut reencryption: Reencryption,
    gives_up: bool,
    seed: u64,
) -> Result<u64, Error> {
    let mut random = Random(seed);
    let mut fill = |bytes: &mut [u8]| bytes.fill_with(|| random.next() as u8);
    for _ in 0..STEPS_MAX {
        if !reencryption.step(storage, gives_up, &mut fill)? {
            return Ok(reencryption.progress().lost_blocks);
        }
    }
    panic!("it does not end");
}

fn reencrypt(storage: &mut Recorder, cipher: Cipher, gives_up: bool, seed: u64) -> Result<u64, Error> {
    let reencryption = begun(storage, cipher, seed)?;
    finish(storage, reencryption, gives_up, seed)
}

/// The volume after re-encryption from an image, or its error.
fn resumed(image: &Image, cipher: Cipher, unit: Unit, seed: u64) -> Result<Image, Error> {
    let mut storage = Recorder::new(unit, image.clone(), None);
    reencrypt(&mut storage, cipher, false, seed).map(|_| storage.disk.image([]))
}

fn check(image: &Image, expected: &Contents, (cipher, unit): (Cipher, Unit), what: &str) {
    let image = resumed(image, cipher, unit, 77).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(contents(new_keys(cipher, unit), cipher, unit, &image), *expected, "{what}");
}

/// Every cut, and every cut of going on after some of them.
fn every_cut(kind: (Cipher, Unit), is_closed: bool) {
    let (cipher, unit) = kind;
    let image = volume(cipher, unit, is_closed);
    let expected = contents(keys(cipher, unit), cipher, unit, &image);
    let seed = 5;
    let mut storage = Recorder::new(unit, image, Some(Random(seed)));
    assert_eq!(reencrypt(&mut storage, cipher, false, seed), Ok(0));
    println!("{kind:?}, closed: {is_closed}: {} images, seed {seed}", storage.images.len());
    let (twice, stride) = if std::env::var_os("HIKYAKU_ALL_CRASHES").is_some() { (2, 2) } else { (24, 6) };
    for (index, image) in storage.images.iter().enumerate() {
        check(image, &expected, kind, &format!("{kind:?}, image {index}"));
        if index % twice == 0 {
            let mut again = Recorder::new(unit, image.clone(), Some(Random(seed + index as u64)));
            assert_eq!(reencrypt(&mut again, cipher, false, 6), Ok(0));
            for (second, image) in again.images.iter().enumerate().step_by(stride) {
                check(image, &expected, kind, &format!("{kind:?}, image {index}, then {second}"));
            }
        }
    }
}

#[test]
fn every_cut_of_gcm_siv_in_units_of_4096() {
    every_cut(KINDS[0], true);
}

#[test]
fn every_cut_of_gcm_siv_in_units_of_4096_after_an_unclean_end() {
    every_cut(KINDS[0], false);
}

#[test]
fn every_cut_of_aegis_in_units_of_4096() {
    every_cut(KINDS[1], false);
}

#[test]
fn every_cut_of_gcm_siv_in_units_of_512() {
    every_cut(KINDS[2], true);
}

#[test]
fn every_cut_of_aegis_in_units_of_512_after_an_unclean_end() {
    every_cut(KINDS[3], false);
}

/// The images of a re-encryption without the ones that power loss would leave.
fn steps(kind: (Cipher, Unit), image: &Image) -> Vec<Image> {
    let (cipher, unit) = kind;
    let mut storage = Recorder::new(unit, image.clone(), None);
    let mut reencryption = begun(&mut storage, cipher, 4).expect("nothing fails");
    let mut random = Random(4);
    let mut fill = |bytes: &mut [u8]| bytes.fill_with(|| random.next() as u8);
    let mut images = Vec::new();
    loop {
        let pieces: Vec<_> = storage.disk.volatile().into_iter().flatten().collect();
        images.push(storage.disk.image(pieces));
        if !reencryption.step(&mut storage, false, &mut fill).expect("nothing fails") {
            break;
        }
    }
    images.push(storage.disk.image([]));
    images
}

fn copy(from: &Image, to: &mut Image, range: std::ops::Range<u64>) {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    from.read(range.start, &mut bytes);
    to.write(range.start, &bytes);
}

#[test]
fn the_volume_opens_with_the_new_key_only_and_is_closed() {
    for (cipher, unit) in KINDS {
        let before = volume(cipher, unit, true);
        let after = resumed(&before, cipher, unit, 1).expect("nothing fails");
        let old = opened(keys(cipher, unit), cipher, unit, after.clone());
        assert_eq!(old.volume.failure(), Some(&Failure::Damaged));
        // The provider returns all that has a tag of the old key but contexts and data: no block verifies.
        let mut returned = after.clone();
        copy(&before, &mut returned, SEGMENT..layout(cipher, unit).map().end);
        for (block, content) in read_all(&mut opened(keys(cipher, unit), cipher, unit, returned)) {
            let group = if cipher == Cipher::Aegis256X4 { 160 } else { 256 };
            let is_in_use = WRITTEN.iter().any(|written| written / group == block / group);
            assert!(
                if is_in_use { content.is_err() } else { content == Ok(vec![0; BLOCK_BYTES]) },
                "block {block}"
            );
        }
        let mut new = opened(new_keys(cipher, unit), cipher, unit, after);
        assert_eq!(new.volume.failure(), None);
        let last = content(BLOCKS - 1, 9);
        new.write(BLOCKS - 1, last.clone()).expect("nothing fails");
        new.flush().expect("nothing fails");
        assert_eq!(new.read(BLOCKS - 1), Ok(last));
    }
}

/// While it is under way the superblock opens nowhere, whatever the header says.
#[test]
fn a_volume_in_reencryption_does_not_open() {
    for (cipher, unit) in KINDS {
        let images = steps((cipher, unit), &volume(cipher, unit, true));
        assert!(images.len() > 4);
        for image in &images[..images.len() - 1] {
            for keys in [keys(cipher, unit), new_keys(cipher, unit)] {
                let machine = opened(keys, cipher, unit, image.clone());
                assert_eq!(machine.volume.failure(), Some(&Failure::Damaged));
            }
        }
    }
}

/// A process that has the volume open meanwhile writes nothing over it.
#[test]
fn a_process_with_the_volume_open_notices() {
    let (cipher, unit) = KINDS[0];
    let mut open = Machine::on(cipher, unit, volume(cipher, unit, true));
    open.write(1, content(1, 5)).expect("nothing fails");
    open.flush().expect("nothing fails");
    let mut storage = Recorder::new(unit, open.disk.image([]), None);
    begun(&mut storage, cipher, 1).expect("nothing fails");
    open.disk = storage.disk;
    open.write(1, content(1, 6)).expect("nothing fails");
    assert_eq!(open.flush(), Err(Failure::Damaged));
}

#[test]
fn another_process_that_goes_on_stops_this_one() {
    for (cipher, unit) in KINDS {
        let mut storage = Recorder::new(unit, volume(cipher, unit, true), None);
        let first = begun(&mut storage, cipher, 1).expect("nothing fails");
        let second = begun(&mut storage, cipher, 2).expect("nothing fails");
        assert_eq!(finish(&mut storage, first, false, 3), Err(ReencryptError::Foreign));
        assert_eq!(finish(&mut storage, second, false, 4), Ok(0));
        let late = begun(&mut storage, cipher, 5).expect("nothing is left to do");
        assert_eq!(finish(&mut storage, late, false, 6), Ok(0));
    }
}

#[test]
fn another_new_key_is_refused() {
    let (cipher, unit) = KINDS[0];
    let mut storage = Recorder::new(unit, volume(cipher, unit, true), None);
    begun(&mut storage, cipher, 1).expect("nothing fails");
    let other = Keys::new(&[9; 64], UUID, cipher, unit, SEGMENT);
    let read = |storage: &mut Recorder, old: &Keys, new: &Keys| {
        Reencryption::read(storage, [old, new], (cipher, unit, SEGMENT), 1).map(drop)
    };
    assert_eq!(read(&mut storage, &keys(cipher, unit), &other), Err(ReencryptError::OtherKey));
    assert_eq!(read(&mut storage, &other, &new_keys(cipher, unit)), Err(ReencryptError::Damaged));
    storage.bytes = layout(cipher, unit).data_offset(BLOCKS) - BLOCK;
    let truncated = read(&mut storage, &keys(cipher, unit), &new_keys(cipher, unit));
    assert_eq!(truncated, Err(ReencryptError::Truncated));
}

/// Nothing around a block that does not verify is written: it is there again when the storage returns its bytes.
#[test]
fn a_block_that_does_not_verify_stops_it_or_is_given_up() {
    for (cipher, unit) in KINDS {
        let right = volume(cipher, unit, true);
        let expected = contents(keys(cipher, unit), cipher, unit, &right);
        let at = layout(cipher, unit).data_offset(319);
        let mut wrong = right.clone();
        wrong.write(at, &[0; 512]);
        let mut storage = Recorder::new(unit, wrong, None);
        let stopped = reencrypt(&mut storage, cipher, false, 1);
        let unverified = |blocks: &[u64]| {
            let offsets = blocks.iter().map(|block| block * BLOCK).collect();
            Err(ReencryptError::Unverified(Unverified { blocks: blocks.len() as u64, offsets }))
        };
        assert_eq!(stopped, unverified(&[319]));
        let done = storage.disk.completed();
        storage.disk.make_durable(&done);
        let mut image = storage.disk.image([]);
        let mut again = begun(&mut storage, cipher, 2).expect("nothing fails");
        while again.step(&mut storage, true, &mut |bytes| bytes.fill(5)).expect("nothing fails") {}
        assert_eq!(again.progress().lost_blocks, 1);
        let given_up = (319 * BLOCK, 320 * BLOCK);
        assert!(again.given_up().iter().map(|range| (range.start, range.end)).eq([given_up]));
        let mut machine = opened(new_keys(cipher, unit), cipher, unit, storage.disk.image([]));
        for (block, content) in &expected {
            let read = machine.read(*block);
            if *block == 319 {
                assert_eq!(read, Err(Failure::Unverified { block: 319 }));
            } else {
                assert_eq!(read.as_ref(), Ok(content), "block {block}");
            }
        }
        copy(&right, &mut image, at..at + BLOCK);
        check(&image, &expected, (cipher, unit), "the storage returns the block");
    }
}

/// Before a volume is claimed: what its first part has, without a write.
#[test]
fn the_first_part_is_examined_before_the_beginning() {
    for (cipher, unit) in KINDS {
        let try_first = |image: Image| {
            let mut storage = Recorder::new(unit, image, Some(Random(1)));
            let keys = [&keys(cipher, unit), &new_keys(cipher, unit)];
            let read = Reencryption::read(&mut storage, keys, (cipher, unit, SEGMENT), 1 << 20);
            let tried = read.and_then(|mut read| read.try_first(&mut storage, &mut |bytes| bytes.fill(7)));
            assert!(storage.images.is_empty(), "nothing is written");
            tried
        };
        for is_closed in [true, false] {
            assert_eq!(try_first(volume(cipher, unit, is_closed)), Ok(()), "closed: {is_closed}");
        }
        let mut wrong = volume(cipher, unit, true);
        for block in [1, 63] {
            wrong.write(layout(cipher, unit).data_offset(block), &[0; 512]);
        }
        let error = try_first(wrong).expect_err("two blocks do not verify");
        let said = "2 blocks do not verify in the part examined, at bytes 4096, 258048";
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn many_blocks_are_counted_and_the_first_ones_are_named() {
    let unverified = Unverified { blocks: 12, offsets: (0..10).map(|block| block * BLOCK).collect() };
    let said = unverified.to_string();
    assert!(said.starts_with("12 blocks") && said.ends_with("32768, 36864, ..."), "{said}");
}

/// Contents of an older step, in any sectors: an error, or what was there, never anything else.
#[test]
fn older_states_are_errors_or_the_same_plaintext() {
    let mut random = Random(11);
    for (cipher, unit) in KINDS {
        let before = volume(cipher, unit, true);
        let expected = contents(keys(cipher, unit), cipher, unit, &before);
        let layout = layout(cipher, unit);
        let images = steps((cipher, unit), &before);
        let superblocks = SEGMENT..layout.map().start;
        let contexts = layout.map().end..layout.journal_halves()[0].0;
        let data = layout.data_offset(0)..layout.end();
        for (index, image) in images.iter().enumerate() {
            for older in &images[..index] {
                let mut attempts = vec![superblocks.clone(), layout.map(), contexts.clone(), data.clone()];
                for _ in 0..8 {
                    let block = WRITTEN[random.below(WRITTEN.len() as u64) as usize];
                    let sector = layout.pair(block).start / 512 * 512;
                    attempts.push(if random.one_in(2) {
                        sector..sector + 512
                    } else {
                        layout.data_offset(block)..layout.data_offset(block) + BLOCK
                    });
                }
                for range in attempts {
                    let mut tampered = image.clone();
                    copy(older, &mut tampered, range);
                    tamper(&tampered, &expected, (cipher, unit));
                }
            }
        }
    }
}

#[test]
fn changed_bytes_are_errors_or_the_same_plaintext() {
    let mut random = Random(12);
    for (cipher, unit) in KINDS {
        let before = volume(cipher, unit, true);
        let expected = contents(keys(cipher, unit), cipher, unit, &before);
        let layout = layout(cipher, unit);
        for image in steps((cipher, unit), &before) {
            for _ in 0..20 {
                let block = WRITTEN[random.below(WRITTEN.len() as u64) as usize];
                let at = match random.below(4) {
                    0 => SEGMENT + random.below(2) * PAGE_BYTES as u64 + random.below(512),
                    1 => layout.map().start + random.below(512),
                    2 => layout.pair(block).start + random.below(64),
                    _ => layout.data_offset(block) + random.below(BLOCK),
                };
                let mut sector = [0; 512];
                image.read(at / 512 * 512, &mut sector);
                sector[(at % 512) as usize] ^= 1 << random.below(8);
                let mut tampered = image.clone();
                tampered.write(at / 512 * 512, &sector);
                tamper(&tampered, &expected, (cipher, unit));
            }
        }
    }
}

/// Going on, also over what does not verify, ends with an error or with a volume whose blocks are errors or right. Where
/// groups are lost from the map they are unwritten, as without re-encryption.
fn tamper(image: &Image, expected: &Contents, (cipher, unit): (Cipher, Unit)) {
    for gives_up in [false, true] {
        let mut storage = Recorder::new(unit, image.clone(), None);
        if reencrypt(&mut storage, cipher, gives_up, 9).is_err() {
            continue;
        }
        let mut machine = opened(new_keys(cipher, unit), cipher, unit, storage.disk.image([]));
        for ((block, read), (_, content)) in read_all(&mut machine).into_iter().zip(expected) {
            assert!(read.is_err() || read.as_ref() == Ok(content), "{cipher:?} {unit:?}: block {block}");
        }
    }
}

/// A step takes as many groups as the memory holds.
#[test]
fn a_round_of_many_groups_has_one_barrier() {
    for (cipher, unit) in KINDS {
        let mut storage = Recorder::new(unit, volume(cipher, unit, true), None);
        let keys = [&keys(cipher, unit), &new_keys(cipher, unit)];
        let reencryption = Reencryption::read(&mut storage, keys, (cipher, unit, SEGMENT), 1 << 20);
        let mut reencryption = reencryption.expect("nothing fails");
        let total = reencryption.progress().total_bytes;
        assert!(total > 400 * BLOCK && total < BLOCKS * BLOCK || cipher == Cipher::Aes256GcmSiv);
        reencryption.begin(&mut storage, [1; 16]).expect("nothing fails");
        let before = storage.disk.barriers;
        let mut fill = |bytes: &mut [u8]| bytes.fill(7);
        assert!(reencryption.step(&mut storage, false, &mut fill).expect("nothing fails"));
        assert_eq!(storage.disk.barriers - before, 1);
        let moved = reencryption.progress().moved_bytes;
        assert!(moved == total || unit == Unit::Bytes512, "a half of the journal has less room");
    }
}

/// What `volume info` shows is the provider's.
#[test]
fn progress_without_the_key_is_any_bytes() {
    let mut random = Random(13);
    let steps = steps(KINDS[0], &volume(KINDS[0].0, KINDS[0].1, true));
    let state = |image: &Image| {
        let mut state = vec![0; 2 * PAGE_BYTES];
        let place = Reencryption::state_bytes(SEGMENT);
        image.read(place.start, &mut state[..(place.end - place.start) as usize]);
        state
    };
    let shown = steps.iter().map(|image| Reencryption::unverified(KINDS[0].0, &state(image)));
    let shown: Vec<_> = shown.collect();
    assert_eq!(shown[0], Some((0, 3)));
    assert_eq!(shown[shown.len() - 2..], [Some((3, 3)), None]);
    for _ in 0..2000 {
        let mut changed = state(&steps[1]);
        for _ in 0..4 {
            let at = 8 + random.below(300) as usize;
            changed[at] = if random.one_in(2) { u8::MAX } else { random.next() as u8 };
            changed[PAGE_BYTES + at] = changed[at];
        }
        for cipher in Cipher::ALL {
            if let Some((moved, groups)) = Reencryption::unverified(cipher, &changed) {
                assert!(moved <= groups);
            }
        }
    }
}
