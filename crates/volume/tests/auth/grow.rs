//! Volumes that become larger within their layout's room.

use std::convert::Infallible;

use super::Random;
use super::disk::{Disk, Image};
use super::file::File;
use super::machine::{Machine, SEGMENT, formatted_ledger, keys};
use volume::Storage;
use volume::auth::{
    BLOCK_BYTES, Cipher, Failure, GrowError, Layout, PAGE_BYTES, Request, Room, RoomLedgerError, Unit, format,
};

const CAPACITY: u64 = 700;
const BLOCKS: u64 = 100;
const BLOCK: u64 = BLOCK_BYTES as u64;
const KINDS: [(Cipher, Unit); 2] =
    [(Cipher::Aegis256X4, Unit::Bytes4096), (Cipher::Aes256GcmSiv, Unit::Bytes512)];

/// A disk of this size, whose writes may be lost until they are flushed.
struct Small {
    disk: Disk,
    bytes: u64,
    /// What power loss may leave after each request.
    after: Vec<Image>,
}

impl Storage for Small {
    type Error = Infallible;

    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Infallible> {
        self.disk.read(offset, into, &mut Random(1));
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Infallible> {
        let id = self.disk.submit(offset, from);
        self.disk.complete(id);
        let pieces: Vec<_> = self.disk.volatile().into_iter().flatten().collect();
        let subsets = 1_usize << pieces.len();
        self.after.extend((0..subsets).map(|mask| {
            let kept = pieces.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1);
            self.disk.image(kept.map(|(_, piece)| piece.clone()))
        }));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        let done = self.disk.completed();
        self.disk.make_durable(&done);
        self.after.push(self.disk.image([]));
        Ok(())
    }
}

fn layout(cipher: Cipher, unit: Unit) -> Layout {
    Layout::new(cipher, unit, SEGMENT, CAPACITY).expect("a layout")
}

/// A volume of 100 blocks in a layout for 700, with its ledger; the last block is written, and its session not closed.
fn volume(cipher: Cipher, unit: Unit) -> (Image, Vec<u8>) {
    let mut image = Image::default();
    for (offset, bytes) in format(&layout(cipher, unit), &keys(cipher, unit), BLOCKS) {
        image.write(offset, &bytes);
    }
    let file = File::new(formatted_ledger(cipher, unit, CAPACITY));
    let mut machine = Machine::with_file(cipher, Disk::new(unit, image), Some(file), false, Random(1));
    machine.write(BLOCKS - 1, vec![7; BLOCK_BYTES]).expect("nothing fails");
    machine.flush().expect("nothing fails");
    (machine.disk.image([]), machine.file.expect("a file").kept())
}

fn room(cipher: Cipher, unit: Unit, image: &Image, bytes: u64) -> (Small, Room) {
    let mut small = Small { disk: Disk::new(unit, image.clone()), bytes, after: Vec::new() };
    let room = Room::read(&mut small, &keys(cipher, unit), (cipher, unit, SEGMENT)).expect("a volume");
    (small, room)
}

#[test]
fn every_cut_leaves_the_old_size_or_the_new_one() {
    for (cipher, unit) in KINDS {
        let (image, file) = volume(cipher, unit);
        let keys = keys(cipher, unit);
        let (mut small, mut room) = room(cipher, unit, &image, layout(cipher, unit).data_offset(600) + 100);
        assert_eq!((room.size_bytes(), room.most_bytes()), (BLOCKS * BLOCK, 600 * BLOCK));
        room.grow(&mut small, &keys, 600 * BLOCK, [9; 16]).expect("room");
        let mut sizes = Vec::new();
        for image in small.after {
            let disk = Disk::new(unit, image);
            let file = Some(File::new(file.clone()));
            let mut machine = Machine::with_file(cipher, disk, file, false, Random(1));
            machine.run();
            sizes.push(machine.volume.size_bytes() / BLOCK);
            assert_eq!(machine.read(BLOCKS - 1), Ok(vec![7; BLOCK_BYTES]), "{cipher:?} {unit:?}");
            if machine.volume.size_bytes() > BLOCKS * BLOCK {
                assert_eq!(machine.read(BLOCKS), Ok(vec![0; BLOCK_BYTES]), "what is new reads as zeroes");
                machine.write(599, vec![8; BLOCK_BYTES]).expect("nothing fails");
                machine.flush().expect("nothing fails");
                assert_eq!(machine.read(599), Ok(vec![8; BLOCK_BYTES]));
            }
        }
        sizes.dedup();
        assert_eq!(sizes, [BLOCKS, 600], "{cipher:?} {unit:?}");
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let (cipher, unit) = KINDS[0];
    let (image, _) = volume(cipher, unit);
    for (size, error) in [
        (BLOCKS - 1, GrowError::Smaller { now: BLOCKS * BLOCK }),
        (CAPACITY + 1, GrowError::Capacity { most: CAPACITY * BLOCK }),
        (601, GrowError::StorageFull { most: 600 * BLOCK }),
    ] {
        let (mut small, mut room) = room(cipher, unit, &image, layout(cipher, unit).data_offset(600));
        assert_eq!(room.grow(&mut small, &keys(cipher, unit), size * BLOCK, [9; 16]), Err(error));
        assert!(small.after.is_empty(), "nothing is written");
    }
}

/// The process that has the volume open meanwhile does not write its own size back.
#[test]
fn a_process_with_the_volume_open_notices() {
    let (cipher, unit) = KINDS[0];
    let (image, _) = volume(cipher, unit);
    let mut open = Machine::on(cipher, unit, image);
    open.write(1, vec![1; BLOCK_BYTES]).expect("nothing fails");
    open.flush().expect("nothing fails");
    let (mut small, mut room) = room(cipher, unit, &open.disk.image([]), layout(cipher, unit).end());
    room.grow(&mut small, &keys(cipher, unit), CAPACITY * BLOCK, [9; 16]).expect("room");
    open.disk = small.disk;
    open.write(1, vec![2; BLOCK_BYTES]).expect("nothing fails");
    assert_eq!(open.flush(), Err(Failure::Foreign));
}

#[test]
fn the_smaller_volume_is_refused_once_the_ledger_knows() {
    let (cipher, unit) = KINDS[0];
    let keys = keys(cipher, unit);
    let (image, mut file) = volume(cipher, unit);
    let (mut small, mut room) = room(cipher, unit, &image, layout(cipher, unit).end());
    let old = room.clone();
    room.note(&keys, &file[..Room::LEDGER_BYTES]).expect("its ledger");
    room.grow(&mut small, &keys, CAPACITY * BLOCK, [9; 16]).expect("room");
    let (offset, bytes) = room.note(&keys, &file[..Room::LEDGER_BYTES]).expect("its ledger");
    file[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    assert_eq!(old.note(&keys, &file[..2 * PAGE_BYTES]).unwrap_err(), RoomLedgerError::OldVolume);
    for (image, failure) in [(image, Some(Failure::OldVolume)), (small.disk.image([]), None)] {
        let file = Some(File::new(file.clone()));
        let mut machine = Machine::with_file(cipher, Disk::new(unit, image), file, false, Random(1));
        machine.run();
        assert_eq!(machine.volume.failure(), failure.as_ref());
        if failure.is_none() {
            machine.perform(Request::Close, Vec::new()).expect("nothing fails");
        }
    }
}
