//! Keys of a volume, derived from the volume key in the header and from all that the provider says of the volume.

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::{Cipher, Layout, Unit};

pub(super) const KEY_BYTES: usize = 32;
pub(super) const TAG_BYTES: usize = 16;

pub(super) type Key = Zeroizing<[u8; KEY_BYTES]>;
pub(super) type Tag = [u8; TAG_BYTES];

/// The keys of one volume. Without secrets in `Debug`.
#[derive(Clone)]
pub struct Keys {
    extracted: Key,
    superblock: Key,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Keys {
    /// `uuid`, cipher, unit and offset of the segment as in the header; changed ones lead to other keys.
    pub fn new(volume_key: &[u8], uuid: &str, cipher: Cipher, unit: Unit, segment: u64) -> Self {
        let (prk, _) = Hkdf::<Sha256>::extract(Some(uuid.as_bytes()), volume_key);
        let extracted = Zeroizing::new(prk.into());
        let mut parameters = Parameters::default();
        parameters.name(cipher).number(b'u', u64::from(unit.bytes())).number(b'a', segment);
        let superblock = expand(&extracted, "superblock", &parameters);
        Self { extracted, superblock }
    }

    /// Authenticates the superblock, from which size and epoch are read.
    pub(super) fn superblock(&self) -> &[u8; KEY_BYTES] {
        &self.superblock
    }

    /// Keys of the blocks and of what describes them.
    pub(super) fn of_epoch(&self, layout: &Layout, epoch: u32) -> EpochKeys {
        let parameters = Self::parameters(layout, epoch);
        EpochKeys {
            data: expand(&self.extracted, "data", &parameters),
            unwritten: expand(&self.extracted, "unwritten", &parameters),
            meta: expand(&self.extracted, "meta", &parameters),
            ledger: expand(&self.extracted, "freshness", &parameters),
        }
    }

    /// The key of what only a re-encryption to these keys writes.
    pub(super) fn of_reencryption(&self, layout: &Layout, epoch: u32) -> Key {
        expand(&self.extracted, "reencryption", &Self::parameters(layout, epoch))
    }

    fn parameters(layout: &Layout, epoch: u32) -> Parameters {
        let mut parameters = Parameters::default();
        parameters.name(layout.cipher).number(b'u', u64::from(layout.unit.bytes()));
        parameters.number(b'a', layout.segment).number(b'c', layout.capacity);
        for area in layout.areas() {
            parameters.number(b'o', area);
        }
        parameters.number(b'e', u64::from(epoch));
        parameters
    }
}

#[derive(Clone)]
pub(super) struct EpochKeys {
    pub(super) data: Key,
    pub(super) unwritten: Key,
    pub(super) meta: Key,
    /// Of what the freshness file says.
    pub(super) ledger: Key,
}

/// Each as a one-byte tag and its value, so that no two lists have equal bytes.
#[derive(Default)]
struct Parameters(Vec<u8>);

impl Parameters {
    fn name(&mut self, cipher: Cipher) -> &mut Self {
        let name = cipher.name().as_bytes();
        self.0.push(b'n');
        self.0.push(name.len() as u8);
        self.0.extend_from_slice(name);
        self
    }

    fn number(&mut self, tag: u8, value: u64) -> &mut Self {
        self.0.push(tag);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
}

fn expand(extracted: &Key, purpose: &str, parameters: &Parameters) -> Key {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let info = [b"hikyaku VOLUME/1 ", purpose.as_bytes(), &[0], &parameters.0];
    let expanded = Hkdf::<Sha256>::from_prk(&**extracted).expect("32 bytes are what a PRK has");
    expanded.expand_multi_info(&info, &mut *key).expect("32 bytes are within HKDF's limit");
    key
}

/// The tag of bytes that are not secret: BLAKE3-keyed of a purpose, a number and the bytes.
pub(super) fn tag(key: &[u8; KEY_BYTES], purpose: &str, number: u64, bytes: &[u8]) -> Tag {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(purpose.as_bytes()).update(&[0]).update(&number.to_le_bytes()).update(bytes);
    let mut tag = [0; TAG_BYTES];
    hasher.finalize_xof().fill(&mut tag);
    tag
}

pub(super) fn is_equal(left: &[u8], right: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(left, right).is_ok()
}
