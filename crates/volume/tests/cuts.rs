//! The power fails at every moment of an operation on a header: whatever subset of the writes that were not yet flushed
//! reaches the medium, in units of 4096 bytes, the volume opens as before the operation or as after it.

mod support;

use std::collections::{BTreeMap, HashMap};

use sha2::{Digest as _, Sha256};
use support::{CHEAP, Disk, LIMITS, Step, UNIT, made, random, reread, small};
use volume::luks2::{
    AuthCipher, Backup, Format, Header, Place, Random, ReadError, Refusal, SegmentKind, UnlockError,
    VolumeKey, format, read, read_in_reencryption,
};

/// Units whose subsets are all tried.
const EXHAUSTIVE_UNITS_MAX: usize = 10;
/// Subsets that are drawn where there are more units, beside the regular ones.
const DRAWN_SUBSETS: u64 = 24;
const PASSPHRASES: [&str; 4] = ["old", "other", "new", "third"];

/// The passphrases of the keyslots; `None`: no volume.
type Keys = Option<BTreeMap<u8, &'static str>>;

fn keys(slots: &[(u8, &'static str)]) -> Keys {
    Some(slots.iter().copied().collect())
}

/// What images hold, remembered by their hash.
#[derive(Default)]
struct Opener {
    known: HashMap<[u8; 32], Keys>,
}

impl Opener {
    /// Panics if a keyslot of the header opens with no passphrase.
    fn keys(&mut self, image: &[u8]) -> Keys {
        let hash = Sha256::digest(image).into();
        self.known.entry(hash).or_insert_with(|| open(image)).clone()
    }
}

fn open(image: &[u8]) -> Keys {
    let mut disk = Disk::new(image.to_vec());
    let header = match read_in_reencryption(&mut disk, Place::Attached) {
        Ok(header) => header,
        Err(ReadError::Refused(_)) => return None,
        Err(ReadError::Storage(error)) => match error {},
    };
    let slots = header.facts().slots.into_iter().map(|slot| slot.slot);
    Some(slots.map(|slot| (slot, passphrase(&mut disk, &header, slot))).collect())
}

fn passphrase(disk: &mut Disk, header: &Header, slot: u8) -> &'static str {
    let is_next = header.facts().slots.iter().any(|facts| facts.slot == slot && facts.is_next);
    let opens = |passphrase: &&str| match header.unlock(disk, passphrase.as_bytes(), Some(slot), &LIMITS) {
        Ok(unlocked) => unlocked.slot == slot,
        Err(UnlockError::WrongPassphrase) => false,
        Err(UnlockError::NoSuchSlot(_)) if is_next => {
            header.unlock_next(disk, passphrase.as_bytes(), &LIMITS).is_ok()
        }
        Err(error) => panic!("keyslot {slot}: {error}"),
    };
    PASSPHRASES.into_iter().find(opens).unwrap_or_else(|| panic!("keyslot {slot} opens with no passphrase"))
}

/// Runs `operation` on `before` and returns the disk after it; checks every image that a cut may leave.
fn cut_everywhere(
    before: &[u8],
    allowed: &[Keys],
    seed: u64,
    operation: impl FnOnce(&mut Disk, Random<'_>),
) -> Disk {
    let mut disk = Disk::new(before.to_vec());
    operation(&mut disk, &mut random(seed));
    let mut opener = Opener::default();
    let mut durable = before.to_vec();
    let (mut pending, mut flushes, mut images) = (Vec::new(), 0, 0);
    assert!(matches!(disk.log.last(), Some(Step::Flush)), "an operation ends with a flush");
    for step in &disk.log {
        match step {
            Step::Write { offset, bytes } => {
                let units = bytes.chunks(UNIT).enumerate();
                pending.extend(units.map(|(number, unit)| (offset + number * UNIT, unit)));
            }
            Step::Flush => {
                let mut image = durable.clone();
                for subset in subsets(pending.len(), seed ^ flushes) {
                    pending
                        .iter()
                        .zip(&subset)
                        .filter(|(_, kept)| **kept)
                        .for_each(|(unit, _)| write(&mut image, *unit));
                    let found = opener.keys(&image);
                    assert!(
                        allowed.contains(&found),
                        "seed {seed}, before flush {flushes}, units {subset:?}: {found:?}, allowed {allowed:?}"
                    );
                    images += 1;
                    pending.iter().for_each(|(offset, unit)| {
                        image[*offset..][..unit.len()].copy_from_slice(&durable[*offset..][..unit.len()]);
                    });
                }
                pending.drain(..).for_each(|unit| write(&mut durable, unit));
                flushes += 1;
            }
        }
    }
    assert_eq!(durable, disk.bytes, "every write is followed by a flush");
    assert_eq!(opener.keys(&durable), allowed[allowed.len() - 1], "the outcome");
    println!("seed {seed}: {flushes} flushes, {images} images");
    disk
}

fn write(image: &mut [u8], (offset, unit): (usize, &[u8])) {
    image[offset..][..unit.len()].copy_from_slice(unit);
}

/// Which of `units` are kept: all subsets of a few; of many, none, all, every beginning and end, every one alone and
/// missing, and some at random.
fn subsets(units: usize, seed: u64) -> Vec<Vec<bool>> {
    if units <= EXHAUSTIVE_UNITS_MAX {
        return (0..1_u32 << units)
            .map(|bits| (0..units).map(|unit| bits >> unit & 1 == 1).collect())
            .collect();
    }
    let mut subsets = Vec::new();
    for at in 0..units {
        subsets.push((0..units).map(|unit| unit < at).collect());
        subsets.push((0..units).map(|unit| unit >= at).collect());
        subsets.push((0..units).map(|unit| unit == at).collect());
        subsets.push((0..units).map(|unit| unit != at).collect());
    }
    for draw in 0..DRAWN_SUBSETS {
        let mut bytes = vec![0; units];
        random(seed.wrapping_add(draw << 32))(&mut bytes);
        subsets.push(bytes.iter().map(|byte| byte & 1 == 1).collect());
    }
    subsets
}

/// A volume with keyslots 0 ("old") and 1 ("other").
fn two_slots() -> Vec<u8> {
    let (mut disk, mut header, key) = made(&small(4), "old", 1);
    header.add_key(&mut disk, &key, b"other", &CHEAP, &mut random(2)).unwrap();
    disk.bytes
}

#[test]
fn format_of_an_empty_disk() {
    let parameters = small(2);
    let empty = vec![0; parameters.data_offset_bytes as usize + 2 * UNIT];
    cut_everywhere(&empty, &[None, keys(&[(0, "new")])], 11, |disk, random| {
        format(disk, &parameters, b"new", &CHEAP, random).unwrap();
    });
}

#[test]
fn format_over_a_volume() {
    let before = two_slots();
    let old = keys(&[(0, "old"), (1, "other")]);
    for (header_bytes, seed) in [(16 << 10, 12), (32 << 10, 13)] {
        let mut parameters = small(2);
        parameters.header_bytes = header_bytes;
        parameters.data_offset_bytes += 2 * header_bytes;
        cut_everywhere(&before, &[old.clone(), None, keys(&[(0, "new")])], seed, |disk, random| {
            format(disk, &parameters, b"new", &CHEAP, random).unwrap();
        });
    }
}

#[test]
fn add_key() {
    let before = two_slots();
    let old = keys(&[(0, "old"), (1, "other")]);
    let new = keys(&[(0, "old"), (1, "other"), (2, "new")]);
    cut_everywhere(&before, &[old, new], 21, |disk, random| {
        let mut header = reread(disk);
        let key = header.unlock(disk, b"old", None, &LIMITS).unwrap().key;
        assert_eq!(header.add_key(disk, &key, b"new", &CHEAP, random).unwrap(), 2);
    });
}

#[test]
fn add_key_where_one_copy_is_lost() {
    let old = keys(&[(0, "old"), (1, "other")]);
    let new = keys(&[(0, "old"), (1, "other"), (2, "new")]);
    for (lost, seed) in [(0, 22), (16 << 10, 23)] {
        let mut before = two_slots();
        before[lost..][..UNIT].fill(0xff);
        let disk = cut_everywhere(&before, &[old.clone(), new.clone()], seed, |disk, random| {
            let mut header = reread(disk);
            let key = header.unlock(disk, b"old", None, &LIMITS).unwrap().key;
            header.add_key(disk, &key, b"new", &CHEAP, random).unwrap();
        });
        for lost in [0, 16 << 10] {
            let mut after = disk.bytes.clone();
            after[lost..][..UNIT].fill(0xff);
            assert_eq!(open(&after), new, "both copies were written");
        }
    }
}

#[test]
fn change_key() {
    let before = two_slots();
    let old = keys(&[(0, "old"), (1, "other")]);
    let new = keys(&[(0, "new"), (1, "other")]);
    let disk = cut_everywhere(&before, &[old, new], 31, |disk, random| {
        let mut header = reread(disk);
        let key = header.unlock(disk, b"old", None, &LIMITS).unwrap().key;
        header.change_key(disk, 0, &key, b"new", &CHEAP, random).unwrap();
    });
    let start = 32 << 10;
    let area = start..start + support::AREA_BYTES as usize;
    assert_ne!(disk.bytes[area.clone()], before[area], "the old area is overwritten");
}

#[test]
fn remove_key() {
    let before = two_slots();
    let old = keys(&[(0, "old"), (1, "other")]);
    let new = keys(&[(1, "other")]);
    let disk = cut_everywhere(&before, &[old, new], 41, |disk, random| {
        reread(disk).remove_key(disk, 0, false, random).unwrap();
    });
    let start = 32 << 10;
    for unit in (start..start + support::AREA_BYTES as usize).step_by(UNIT) {
        assert_ne!(
            disk.bytes[unit..][..UNIT],
            before[unit..][..UNIT],
            "every unit of the area is overwritten"
        );
    }
}

/// The volume of [`two_slots`] after its keyslot 0 changed to "new", and "third" was added; and a backup of before.
fn changed_since_backup(areas: u64) -> (Vec<u8>, Backup) {
    let (mut disk, mut header, key) = made(&small(areas), "old", 1);
    header.add_key(&mut disk, &key, b"other", &CHEAP, &mut random(2)).unwrap();
    let backup = header.backup(&mut disk).unwrap();
    header.change_key(&mut disk, 0, &key, b"new", &CHEAP, &mut random(3)).unwrap();
    header.add_key(&mut disk, &key, b"third", &CHEAP, &mut random(4)).unwrap();
    (disk.bytes, Backup::parse(backup, Place::Attached).unwrap())
}

/// Areas of the present header: third, other, new; of the backup: old, other. The area of "old" is taken.
#[test]
fn restore_beside_the_present_header() {
    let (before, backup) = changed_since_backup(4);
    let present = keys(&[(0, "new"), (1, "other"), (2, "third")]);
    let disk = cut_everywhere(&before, &[present, keys(&[(0, "old"), (1, "other")])], 51, |disk, random| {
        backup.restore(disk, random).unwrap();
    });
    for area in 0..3 {
        let start = (32 << 10) + area * support::AREA_BYTES as usize;
        let is_kept = disk.bytes[start..][..UNIT] == before[start..][..UNIT];
        assert_eq!(is_kept, area == 1, "area {area}: keyslots that the backup lacks are overwritten");
    }
}

#[test]
fn restore_without_room_beside_the_present_header() {
    let (before, backup) = changed_since_backup(3);
    let present = keys(&[(0, "new"), (1, "other"), (2, "third")]);
    cut_everywhere(&before, &[present, None, keys(&[(0, "old"), (1, "other")])], 52, |disk, random| {
        backup.restore(disk, random).unwrap();
    });
}

#[test]
fn restore_where_no_header_is_left() {
    let (mut before, backup) = changed_since_backup(4);
    before[..32 << 10].fill(0);
    cut_everywhere(&before, &[None, keys(&[(0, "old"), (1, "other")])], 53, |disk, random| {
        backup.restore(disk, random).unwrap();
    });
}

/// A volume of type auth with keyslots 0 ("old") and 1 ("other").
fn auth() -> Vec<u8> {
    let segment = SegmentKind::Auth { cipher: AuthCipher::Aes256GcmSiv, unit_bytes: 4096 };
    let parameters = Format { segment, ..small(4) };
    let (mut disk, mut header, key) = made(&parameters, "old", 1);
    header.add_key(&mut disk, &key, b"other", &CHEAP, &mut random(2)).unwrap();
    disk.bytes
}

fn both_keys(disk: &mut Disk) -> (Header, VolumeKey, VolumeKey) {
    let header = read_in_reencryption(disk, Place::Attached).unwrap();
    let old = header.unlock(disk, b"other", None, &LIMITS).unwrap();
    assert_eq!(old.slot, 1);
    let next = header.unlock_next(disk, b"other", &LIMITS).unwrap();
    (header, old.key, next)
}

#[test]
fn reencryption_begins_and_ends() {
    let old = keys(&[(0, "old"), (1, "other")]);
    let both = keys(&[(0, "old"), (1, "other"), (2, "other")]);
    let new = keys(&[(1, "other")]);
    let before = auth();
    let mut began = cut_everywhere(&before, &[old, both.clone()], 61, |disk, random| {
        let mut header = reread(disk);
        let key = header.unlock(disk, b"other", None, &LIMITS).unwrap().key;
        let next = VolumeKey::random(32, random);
        header.begin_reencryption(disk, [&key, &next], b"other", &CHEAP, random).unwrap();
        assert!(header.is_in_reencryption() && next != key);
    });
    let refused = read(&mut began, Place::Attached).map(drop);
    assert!(matches!(refused, Err(ReadError::Refused(Refusal::AuthReencryption))));
    let (header, old_key, next_key) = both_keys(&mut began);
    assert!(matches!(header.unlock_next(&mut began, b"old", &LIMITS), Err(UnlockError::WrongPassphrase)));
    let ended = cut_everywhere(&began.bytes, &[both, new], 62, |disk, random| {
        let (mut header, ..) = both_keys(disk);
        header.finish_reencryption(disk, 1, random).unwrap();
        assert!(!header.is_in_reencryption());
    });
    let mut ended = Disk::new(ended.bytes);
    let header = reread(&mut ended);
    let key = header.unlock(&mut ended, b"other", None, &LIMITS).unwrap().key;
    assert!(key == next_key && key != old_key);
    let old_header = reread(&mut Disk::new(before.clone()));
    assert!(!header.has_keys_of(&old_header) && old_header.has_keys_of(&reread(&mut Disk::new(auth()))));
    let (both, ..) = both_keys(&mut began);
    assert!(both.has_keys_of(&old_header) && both.has_keys_of(&both) && !both.has_keys_of(&header));
    assert!(!old_header.has_keys_of(&both), "the next key would be lost");
    let start = 32 << 10;
    let areas = start..start + 2 * support::AREA_BYTES as usize;
    for unit in areas.step_by(UNIT) {
        assert_ne!(ended.bytes[unit..][..UNIT], before[unit..][..UNIT], "old keyslots are overwritten");
    }
    // Once more, with the number of the digest that became free.
    let mut header = header;
    let next = VolumeKey::random(32, &mut random(65));
    header.begin_reencryption(&mut ended, [&key, &next], b"other", &CHEAP, &mut random(63)).unwrap();
    header.finish_reencryption(&mut ended, 1, &mut random(64)).unwrap();
    assert!(reread(&mut ended).unlock(&mut ended, b"other", None, &LIMITS).unwrap().key != key);
}

/// A token keeps the keyslot whose passphrase stays, and loses the others.
#[test]
fn tokens_after_reencryption() {
    let mut disk = Disk::new(auth());
    support::edit(&mut disk, |json| {
        json["tokens"]["0"] = serde_json::json!({ "type": "test", "keyslots": ["0", "1"] });
        json["keyslots"]["1"]["priority"] = serde_json::json!(2);
    });
    let mut header = reread(&mut disk);
    let key = header.unlock(&mut disk, b"other", None, &LIMITS).unwrap().key;
    let next = VolumeKey::random(32, &mut random(73));
    header.begin_reencryption(&mut disk, [&key, &next], b"other", &CHEAP, &mut random(71)).unwrap();
    header.finish_reencryption(&mut disk, 1, &mut random(72)).unwrap();
    let facts = reread(&mut disk).facts();
    assert_eq!(facts.tokens[0].slots, [1]);
    assert_eq!(facts.slots[0].priority, volume::luks2::Priority::Preferred);
}
