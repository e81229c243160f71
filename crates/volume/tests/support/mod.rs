//! A disk in memory that records its requests, and small volumes on it.
#![allow(dead_code, unreachable_pub, reason = "a module of several test programs")]

use std::convert::Infallible;

use volume::Storage;
use volume::luks2::{
    Argon2Costs, Format, Hash, Header, Limits, Pbkdf, Place, SegmentKind, VolumeKey, format, read,
};

pub const UNIT: usize = 4096;
pub const LIMITS: Limits = Limits { memory_bytes_max: 1 << 30 };
/// The least that PBKDF2 and Argon2 can cost.
pub const CHEAP: Pbkdf = Pbkdf::Pbkdf2 { hash: Hash::Sha256, iterations: 1 };
pub const CHEAP_ARGON2ID: Pbkdf = Pbkdf::Argon2id(Argon2Costs { passes: 4, memory_kib: 64, lanes: 2 });

pub enum Step {
    Write { offset: usize, bytes: Vec<u8> },
    Flush,
}

pub struct Disk {
    pub bytes: Vec<u8>,
    pub log: Vec<Step>,
}

impl Disk {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, log: Vec::new() }
    }
}

impl Storage for Disk {
    type Error = Infallible;

    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Infallible> {
        check(offset, into.len());
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Infallible> {
        check(offset, from.len());
        self.bytes[offset as usize..][..from.len()].copy_from_slice(from);
        self.log.push(Step::Write { offset: offset as usize, bytes: from.to_vec() });
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        self.log.push(Step::Flush);
        Ok(())
    }
}

fn check(offset: u64, length: usize) {
    assert!(
        offset.is_multiple_of(UNIT as u64) && length.is_multiple_of(UNIT),
        "{offset}+{length}: whole units"
    );
}

/// Bytes that look random and depend on the seed only (SplitMix64).
pub fn random(mut seed: u64) -> impl FnMut(&mut [u8]) {
    move |into| {
        for piece in into.chunks_mut(8) {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut value = seed;
            value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            value ^= value >> 31;
            piece.copy_from_slice(&value.to_le_bytes()[..piece.len()]);
        }
    }
}

pub const CRYPT: SegmentKind = SegmentKind::Crypt { sector_bytes: 4096 };
/// Bytes of the area of one keyslot of [`small`].
pub const AREA_BYTES: u64 = 32 * 4000 + 3072;

/// Parameters of a volume with 256 bits of key and room for `areas` keyslots.
pub fn small(areas: u64) -> Format<'static> {
    let header_bytes = 16 << 10;
    let keyslots_bytes = areas * AREA_BYTES;
    Format {
        key_bytes: 32,
        header_bytes,
        keyslots_bytes,
        data_offset_bytes: 2 * header_bytes + keyslots_bytes,
        digest_iterations: 1,
        ..Format::new(Place::Attached, CRYPT)
    }
}

/// A disk with a volume of `parameters` and one keyslot, and two units of data.
pub fn made(parameters: &Format<'_>, passphrase: &str, seed: u64) -> (Disk, Header, VolumeKey) {
    let mut disk = Disk::new(vec![0; parameters.data_offset_bytes as usize + 2 * UNIT]);
    let made = format(&mut disk, parameters, passphrase.as_bytes(), &CHEAP, &mut random(seed));
    let (header, key) = made.expect("parameters that are allowed");
    disk.log.clear();
    (disk, header, key)
}

/// The volume's header, read again.
pub fn reread(disk: &mut Disk) -> Header {
    read(disk, Place::Attached).expect("a header that is accepted")
}

/// Changes the JSON of both copies, which have 16 KiB.
pub fn edit(disk: &mut Disk, change: impl Fn(&mut serde_json::Value)) {
    use sha2::{Digest as _, Sha256};
    for copy in disk.bytes[..32 << 10].chunks_mut(16 << 10) {
        let end = UNIT + copy[UNIT..].iter().position(|byte| *byte == 0).expect("JSON ends with a zero byte");
        let mut json = serde_json::from_slice(&copy[UNIT..end]).expect("JSON");
        change(&mut json);
        let text = json.to_string();
        copy[UNIT..].fill(0);
        copy[UNIT..][..text.len()].copy_from_slice(text.as_bytes());
        copy[448..512].fill(0);
        let sum = Sha256::digest(&*copy);
        copy[448..480].copy_from_slice(&sum);
    }
}
