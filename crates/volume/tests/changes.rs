//! Changes that are refused, and what they leave.

mod support;

use std::cell::Cell;

use support::{AREA_BYTES, CHEAP, Disk, LIMITS, Step, made, random, reread, small};
use volume::Storage;
use volume::luks2::{
    Backup, ChangeError, CostError, Hash, Pbkdf, Place, ReadError, Refusal, RestoreError, UnlockError,
    format, read,
};

#[test]
fn the_keyslot_area_is_full() {
    let (mut disk, mut header, key) = made(&small(2), "old", 1);
    header.add_key(&mut disk, &key, b"other", &CHEAP, &mut random(2)).unwrap();
    disk.log.clear();
    let full = header.add_key(&mut disk, &key, b"new", &CHEAP, &mut random(3));
    assert!(matches!(full, Err(ChangeError::NoRoom)), "{full:?}");
    let full = header.change_key(&mut disk, 0, &key, b"new", &CHEAP, &mut random(3));
    assert!(matches!(full, Err(ChangeError::NoRoom)), "{full:?}");
    assert!(disk.log.is_empty(), "nothing was written");
    // The area of a removed keyslot is used again.
    header.remove_key(&mut disk, 0, false, &mut random(4)).unwrap();
    assert_eq!(header.add_key(&mut disk, &key, b"new", &CHEAP, &mut random(5)).unwrap(), 0);
    assert_eq!(header.unlock(&mut disk, b"new", None, &LIMITS).unwrap().key, key);
}

#[test]
fn the_json_area_is_full() {
    let (mut disk, mut header, key) = made(&small(32), "old", 1);
    let mut slots = 1;
    let full = loop {
        match header.add_key(&mut disk, &key, b"other", &CHEAP, &mut random(slots)) {
            Ok(_) => slots += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, ChangeError::NoFreeSlot) && slots == 32, "{slots}: {full}");

    let (mut disk, _, key) = made(&small(3), "old", 1);
    fill_json(&mut disk);
    let mut header = reread(&mut disk);
    disk.log.clear();
    let full = header.add_key(&mut disk, &key, b"other", &CHEAP, &mut random(2));
    assert!(matches!(full, Err(ChangeError::NoRoomInJson)), "{full:?}");
    assert!(disk.log.is_empty(), "nothing was written");
}

/// Adds a token that leaves room for a few bytes only.
fn fill_json(disk: &mut Disk) {
    use sha2::{Digest as _, Sha256};
    let copies = disk.bytes[..32 << 10].chunks_mut(16 << 10);
    for copy in copies {
        let end = 4096 + copy[4096..].iter().position(|byte| *byte == 0).unwrap();
        let text = String::from_utf8(copy[4096..end].to_vec()).unwrap();
        let filler = "x".repeat((12 << 10) - text.len() - 60);
        let token = format!(r#""tokens":{{"0":{{"type":"{filler}","keyslots":[]}}}}"#);
        let text = text.replace(r#""tokens":{}"#, &token);
        copy[4096..][..text.len()].copy_from_slice(text.as_bytes());
        copy[448..512].fill(0);
        let sum = Sha256::digest(&*copy);
        copy[448..480].copy_from_slice(&sum);
    }
}

#[test]
fn the_key_or_slot_is_not_the_volumes() {
    let (mut disk, mut header, _) = made(&small(3), "old", 1);
    let (_, _, other) = made(&small(3), "old", 2);
    disk.log.clear();
    let error = header.add_key(&mut disk, &other, b"new", &CHEAP, &mut random(3));
    assert!(matches!(error, Err(ChangeError::WrongKey)), "{error:?}");
    let error = header.change_key(&mut disk, 0, &other, b"new", &CHEAP, &mut random(3));
    assert!(matches!(error, Err(ChangeError::WrongKey)), "{error:?}");
    let error = header.change_key(&mut disk, 1, &other, b"new", &CHEAP, &mut random(3));
    assert!(matches!(error, Err(ChangeError::NoSuchSlot(1))), "{error:?}");
    let error = header.remove_key(&mut disk, 1, true, &mut random(3));
    assert!(matches!(error, Err(ChangeError::NoSuchSlot(1))), "{error:?}");
    let none = Pbkdf::Pbkdf2 { hash: Hash::Sha256, iterations: 0 };
    let error = header.add_key(&mut disk, &other, b"new", &none, &mut random(3));
    assert!(matches!(error, Err(ChangeError::Cost(CostError::Iterations(0)))), "{error:?}");
    assert!(disk.log.is_empty(), "nothing was written");
}

#[test]
fn the_last_keyslot_is_removed_by_force_only() {
    let (mut disk, mut header, _) = made(&small(2), "old", 1);
    disk.log.clear();
    let error = header.remove_key(&mut disk, 0, false, &mut random(2));
    assert!(matches!(error, Err(ChangeError::LastSlot(0))) && disk.log.is_empty(), "{error:?}");
    header.remove_key(&mut disk, 0, true, &mut random(2)).unwrap();
    let error = reread(&mut disk).unlock(&mut disk, b"old", None, &LIMITS).unwrap_err();
    assert!(matches!(error, UnlockError::Refused(Refusal::NoKeyslot)), "{error}");
}

/// The area that was free when the header was read holds another program's keyslot now: it is not written.
#[test]
fn another_program_changed_the_header_before() {
    let (mut disk, mut stale, key) = made(&small(3), "old", 1);
    reread(&mut disk).add_key(&mut disk, &key, b"other", &CHEAP, &mut random(2)).unwrap();
    disk.log.clear();
    let error = stale.add_key(&mut disk, &key, b"new", &CHEAP, &mut random(3));
    assert!(matches!(error, Err(ChangeError::Changed)), "{error:?}");
    assert!(disk.log.is_empty(), "nothing was written");
    assert_eq!(reread(&mut disk).unlock(&mut disk, b"other", None, &LIMITS).unwrap().slot, 1);
}

/// A disk on which another program adds a key before the `at`th write.
struct Contended {
    disk: Disk,
    at: usize,
    writes: usize,
}

impl Storage for Contended {
    type Error = std::convert::Infallible;

    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error> {
        self.disk.read(offset, into)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Self::Error> {
        if self.writes == self.at {
            let mut header = reread(&mut self.disk);
            let key = header.unlock(&mut self.disk, b"old", None, &LIMITS).unwrap().key;
            header.add_key(&mut self.disk, &key, b"other", &CHEAP, &mut random(9)).unwrap();
        }
        self.writes += 1;
        self.disk.write(offset, from)
    }

    fn flush(&mut self) -> Result<(), Self::Error> {
        self.disk.flush()
    }
}

/// The other program changes the header while the new keyslot is written; its own keyslot may lie in the same area, but
/// the header that refers to it stays.
#[test]
fn another_program_changes_the_header_meanwhile() {
    let (disk, mut header, key) = made(&small(3), "old", 1);
    let mut contended = Contended { disk, at: 0, writes: 0 };
    let error = header.add_key(&mut contended, &key, b"new", &CHEAP, &mut random(2));
    assert!(matches!(error, Err(ChangeError::Changed)), "{error:?}");
    let mut disk = contended.disk;
    let header = reread(&mut disk);
    assert_eq!(header.unlock(&mut disk, b"old", None, &LIMITS).unwrap().key, key);
    assert_eq!(header.facts().slots.len(), 2);
}

#[derive(Debug, PartialEq)]
struct Broken;

/// A disk on which one write or flush fails, after `left` others.
struct Failing {
    disk: Disk,
    left: Cell<usize>,
}

impl Failing {
    fn step(&self) -> Result<(), Broken> {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        if left == 0 { Err(Broken) } else { Ok(()) }
    }
}

impl Storage for Failing {
    type Error = Broken;

    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Broken> {
        self.disk.read(offset, into).unwrap();
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Broken> {
        self.step()?;
        self.disk.write(offset, from).unwrap();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Broken> {
        self.step()?;
        self.disk.flush().unwrap();
        Ok(())
    }
}

/// Every write and flush of every operation fails once: the error is reported, and a later attempt succeeds.
#[test]
fn errors_of_the_storage_are_reported() {
    let (mut disk, mut header, key) = made(&small(4), "old", 1);
    header.add_key(&mut disk, &key, b"other", &CHEAP, &mut random(2)).unwrap();
    let backup = Backup::parse(header.backup(&mut disk).unwrap(), Place::Attached).unwrap();
    let start = disk.bytes;
    type Operation<'a> = (&'a str, Box<dyn Fn(&mut Failing) -> Option<Broken> + 'a>);
    let operations: [Operation<'_>; 5] = [
        (
            "add",
            Box::new(|storage| {
                let mut header = read(storage, Place::Attached).unwrap();
                broken(header.add_key(storage, &key, b"new", &CHEAP, &mut random(3)))
            }),
        ),
        (
            "change",
            Box::new(|storage| {
                let mut header = read(storage, Place::Attached).unwrap();
                broken(header.change_key(storage, 1, &key, b"new", &CHEAP, &mut random(3)))
            }),
        ),
        (
            "remove",
            Box::new(|storage| {
                let mut header = read(storage, Place::Attached).unwrap();
                match header.remove_key(storage, 1, false, &mut random(3)) {
                    // The headers were written by the attempt that failed while it overwrote the area.
                    Err(ChangeError::NoSuchSlot(1)) => None,
                    result => broken(result),
                }
            }),
        ),
        (
            "restore",
            Box::new(|storage| match backup.restore(storage, &mut random(3)) {
                Ok(_) => None,
                Err(RestoreError::Storage(error)) => Some(error),
                Err(error) => panic!("{error}"),
            }),
        ),
        (
            "format",
            Box::new(|storage| match format(storage, &small(4), b"old", &CHEAP, &mut random(3)) {
                Ok(_) => None,
                Err(volume::luks2::FormatError::Storage(error)) => Some(error),
                Err(error) => panic!("{error}"),
            }),
        ),
    ];
    for (name, operation) in operations {
        let mut at = 0;
        loop {
            let mut storage = Failing { disk: Disk::new(start.clone()), left: Cell::new(at) };
            let result = operation(&mut storage);
            if storage.left.get() < usize::MAX / 2 {
                assert_eq!(result, None, "{name}: no request failed");
                break;
            }
            assert_eq!(result, Some(Broken), "{name}: request {at}");
            assert_eq!(operation(&mut storage), None, "{name}: after request {at} failed");
            let header = reread(&mut storage.disk);
            assert!(header.unlock(&mut storage.disk, b"old", None, &LIMITS).is_ok(), "{name}: request {at}");
            at += 1;
        }
        assert!(at >= 4, "{name}: {at} requests");
    }
}

fn broken<T>(result: Result<T, ChangeError<Broken>>) -> Option<Broken> {
    match result {
        Ok(_) => None,
        Err(ChangeError::Storage(error)) => Some(error),
        Err(error) => panic!("{error}"),
    }
}

/// A disk that cannot read one range.
struct Unreadable(Disk, std::ops::Range<u64>);

impl Storage for Unreadable {
    type Error = Broken;

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Broken> {
        if offset < self.1.end && self.1.start < offset + into.len() as u64 {
            return Err(Broken);
        }
        self.0.read(offset, into).unwrap();
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Broken> {
        unreachable!("only reads")
    }

    fn flush(&mut self) -> Result<(), Broken> {
        unreachable!("only reads")
    }
}

#[test]
fn a_copy_that_cannot_be_read() {
    let (disk, ..) = made(&small(2), "old", 1);
    let bytes = disk.bytes;
    for range in [0..4096, 8192..12288, 16384..20480, 24576..28672] {
        let mut disk = Unreadable(Disk::new(bytes.clone()), range.clone());
        let header = read(&mut disk, Place::Attached).unwrap_or_else(|error| panic!("{range:?}: {error}"));
        assert!(header.unlock(&mut disk, b"old", None, &LIMITS).is_ok());
    }
    let both = read(&mut Unreadable(Disk::new(bytes.clone()), 0..32 << 10), Place::Attached);
    assert!(matches!(both, Err(ReadError::Storage(Broken))), "{both:?}");
    let area = 32 << 10..(32 << 10) + AREA_BYTES;
    let mut disk = Unreadable(Disk::new(bytes), area);
    let header = read(&mut disk, Place::Attached).unwrap();
    let error = header.unlock(&mut disk, b"old", None, &LIMITS).unwrap_err();
    assert!(matches!(error, UnlockError::Storage(Broken)), "{error:?}");
}

/// After a restore the sequence number is above that of the header it replaced, so that neither old copy counts.
#[test]
fn a_restored_header_is_the_newest() {
    let (mut disk, mut header, key) = made(&small(4), "old", 1);
    let backup = Backup::parse(header.backup(&mut disk).unwrap(), Place::Attached).unwrap();
    for seed in 2..5 {
        header.change_key(&mut disk, 0, &key, b"new", &CHEAP, &mut random(seed)).unwrap();
    }
    let before = header.facts().sequence_number;
    let restored = backup.restore(&mut disk, &mut random(9)).unwrap();
    assert_eq!(restored.facts().sequence_number, before + 1);
    assert_eq!(restored.facts(), reread(&mut disk).facts());
}

#[test]
fn a_backup_that_is_cut_off_is_refused() {
    let (mut disk, header, _) = made(&small(2), "old", 1);
    let bytes = header.backup(&mut disk).unwrap();
    for length in [0, 4096, bytes.len() - 4096] {
        assert!(Backup::parse(bytes[..length].to_vec(), Place::Attached).is_err(), "{length} bytes");
    }
    let small_disk = Backup::parse(bytes.clone(), Place::Attached).unwrap();
    let mut disk = Disk::new(vec![0; bytes.len() - 4096]);
    let error = small_disk.restore(&mut disk, &mut random(1));
    assert!(matches!(error, Err(RestoreError::TooSmall { .. })));
    assert!(!disk.log.iter().any(|step| matches!(step, Step::Write { .. })), "nothing was written");
}
