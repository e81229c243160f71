//! From a passphrase to the volume's key.

use subtle::ConstantTimeEq as _;
use xts::Xts;
use zeroize::Zeroizing;

use super::error::{Refusal, UnlockError};
use super::header::Header;
use super::kdf::{CostError, DeriveError, Pbkdf};
use super::key::VolumeKey;
use super::metadata::{Digest, Keyslot, Priority};
use super::{Random, af};
use crate::Storage;

/// What a key derivation may use of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The memory that this process may still take, such as the rest of its cgroup's.
    pub memory_bytes_max: u64,
}

/// A volume's key, and the keyslot that the passphrase opened.
#[derive(Clone, Debug)]
pub struct Unlocked {
    pub slot: u8,
    pub key: VolumeKey,
}

impl Header {
    /// Tries `passphrase` on the keyslots of the volume's key: on `slot`, or on all of them, preferred ones first.
    ///
    /// A keyslot whose costs are above the limits is not tried. If no other one opens, the result is this refusal:
    /// [`UnlockError::WrongPassphrase`] means that every keyslot was tried.
    pub fn unlock<S: Storage>(
        &self,
        storage: &mut S,
        passphrase: &[u8],
        slot: Option<u8>,
        limits: &Limits,
    ) -> Result<Unlocked, UnlockError<S::Error>> {
        self.unlock_of(&self.metadata.digest, storage, passphrase, slot, limits)
    }

    /// As [`Self::unlock`], of the key of a digest.
    pub(super) fn unlock_of<S: Storage>(
        &self,
        digest: &Digest,
        storage: &mut S,
        passphrase: &[u8],
        slot: Option<u8>,
        limits: &Limits,
    ) -> Result<Unlocked, UnlockError<S::Error>> {
        let bound = self.metadata.bound_to(digest);
        let mut slots: Vec<_> = match slot {
            Some(slot) => bound.filter(|(id, _)| *id == slot).collect(),
            None => bound.filter(|(_, slot)| slot.priority != Priority::Ignored).collect(),
        };
        match slot {
            Some(slot) if slots.is_empty() => return Err(UnlockError::NoSuchSlot(slot)),
            None if slots.is_empty() => return Err(Refusal::NoKeyslot.into()),
            _ => {}
        }
        slots.sort_by_key(|(id, slot)| (std::cmp::Reverse(slot.priority), *id));
        let mut refused = None;
        for (id, slot) in slots {
            let costs = slot.kdf.check(limits.memory_bytes_max).and(digest.pbkdf().check(u64::MAX));
            if let Err(cost) = costs {
                refused.get_or_insert(Refusal::Cost { slot: id, cost });
                continue;
            }
            let mut material = Zeroizing::new(vec![0; slot.padded_bytes()]);
            storage.read(slot.area.start, &mut material).map_err(UnlockError::Storage)?;
            if let Some(key) = slot.open(&mut material, passphrase, digest)? {
                return Ok(Unlocked { slot: id, key });
            }
        }
        Err(refused.map_or(UnlockError::WrongPassphrase, UnlockError::Refused))
    }

    /// Whether `key` is this volume's.
    pub(super) fn has_key(&self, key: &VolumeKey) -> Result<bool, CostError> {
        let digest = &self.metadata.digest;
        digest.pbkdf().check(u64::MAX)?;
        Ok(digest.matches(key))
    }
}

impl Keyslot {
    /// Bytes of the split key in whole units of [`Storage`].
    fn padded_bytes(&self) -> usize {
        super::metadata::area_bytes(self.key_bytes) as usize
    }

    /// The key, if `passphrase` opens this slot. `material` is the beginning of its area, and becomes plaintext.
    fn open(
        &self,
        material: &mut [u8],
        passphrase: &[u8],
        digest: &Digest,
    ) -> Result<Option<VolumeKey>, DeriveError> {
        let material = &mut material[..self.material_bytes()];
        let mut area_key = Zeroizing::new(vec![0; self.area_key_bytes]);
        self.kdf.derive(passphrase, &self.salt, &mut area_key)?;
        let Ok(mut cipher) = Xts::new(&area_key, xts::TWEAK_BYTES) else { return Ok(None) };
        cipher.open(0, material);
        let mut key = VolumeKey::zeroed(self.key_bytes);
        af::merge(self.split_hash, &material[..self.key_bytes * af::STRIPES], key.bytes_mut());
        Ok(digest.matches(&key).then_some(key))
    }
}

impl Digest {
    pub(super) fn pbkdf(&self) -> Pbkdf {
        Pbkdf::Pbkdf2 { hash: self.hash, iterations: self.iterations }
    }

    /// What tells keys apart: another digest of the same key has another salt.
    pub(super) fn of_key(&self) -> (&[u8], &[u8]) {
        (&self.salt, &self.digest)
    }

    fn matches(&self, key: &VolumeKey) -> bool {
        let mut digest = vec![0; self.digest.len()];
        self.hash.pbkdf2(key.bytes(), &self.salt, self.iterations, &mut digest);
        digest.ct_eq(&self.digest).into()
    }
}

/// Encrypts `key` for the area of a keyslot: the bytes of the area, padded with random bytes.
pub(super) fn seal(
    key: &VolumeKey,
    area_key: &[u8],
    split_hash: super::Hash,
    random: Random<'_>,
) -> Zeroizing<Vec<u8>> {
    let split_bytes = key.bytes().len() * af::STRIPES;
    let mut area = Zeroizing::new(vec![0; super::metadata::area_bytes(key.bytes().len()) as usize]);
    random(&mut area);
    af::split(split_hash, key.bytes(), &mut area[..split_bytes]);
    let mut cipher = Xts::new(area_key, xts::TWEAK_BYTES).expect("derived keys have different halves");
    cipher.seal(0, &mut area[..super::metadata::material_bytes(key.bytes().len())]);
    area
}
