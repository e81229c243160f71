//! Keys added, changed and removed (docs/VOLUME.md, "Change of keys"): a new area is durable before a header refers to
//! it, and an old one is overwritten when no header does.

use std::ops::Range;

use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::error::ChangeError;
use super::hash::Hash;
use super::header::{Copies, Header, read_in_reencryption};
use super::kdf::{DeriveError, Pbkdf, SALT_BYTES};
use super::key::VolumeKey;
use super::metadata::{Metadata, XTS, area_bytes};
use super::object::{malformed, to_base64};
use super::unlock::seal;
use super::{Random, SLOTS_MAX, af, copies};
use crate::Storage;

/// Bytes of the key of a new keyslot's area.
const AREA_KEY_BYTES: usize = 64;
const SPLIT_HASH: Hash = Hash::Sha256;
/// Bytes that are overwritten in one write.
const WIPE_BYTES: u64 = 1 << 20;

/// A key encrypted for a passphrase, ready to be written.
pub(super) struct NewSlot {
    pub(super) json: Value,
    offset: u64,
    area: Zeroizing<Vec<u8>>,
}

impl NewSlot {
    /// `pbkdf` has costs that were checked.
    pub(super) fn new(
        key: &VolumeKey,
        passphrase: &[u8],
        pbkdf: &Pbkdf,
        offset: u64,
        random: Random<'_>,
    ) -> Result<Self, DeriveError> {
        let mut salt = [0; SALT_BYTES];
        random(&mut salt);
        let mut area_key = Zeroizing::new([0; AREA_KEY_BYTES]);
        pbkdf.derive(passphrase, &salt, &mut *area_key)?;
        let area = seal(key, &*area_key, SPLIT_HASH, random);
        let (name, salt) = (pbkdf.name(), to_base64(&salt));
        let kdf = match pbkdf {
            Pbkdf::Pbkdf2 { hash, iterations } => {
                json!({ "type": name, "hash": hash.name(), "iterations": iterations, "salt": salt })
            }
            Pbkdf::Argon2i(costs) | Pbkdf::Argon2id(costs) => json!({
                "type": name,
                "time": costs.passes,
                "memory": costs.memory_kib,
                "cpus": costs.lanes,
                "salt": salt,
            }),
        };
        let json = json!({
            "type": "luks2",
            "key_size": key.bytes().len(),
            "af": { "type": "luks1", "stripes": af::STRIPES, "hash": SPLIT_HASH.name() },
            "area": {
                "type": "raw",
                "offset": offset.to_string(),
                "size": area.len().to_string(),
                "encryption": XTS,
                "key_size": AREA_KEY_BYTES,
            },
            "kdf": kdf,
        });
        Ok(Self { json, offset, area })
    }

    /// Writes the area, durably.
    pub(super) fn write<S: Storage>(&self, storage: &mut S) -> Result<(), S::Error> {
        storage.write(self.offset, &self.area)?;
        storage.flush()
    }
}

impl Header {
    /// Adds a keyslot for `passphrase` and returns its number. `pbkdf`'s memory is the caller's to bound.
    pub fn add_key<S: Storage>(
        &mut self,
        storage: &mut S,
        key: &VolumeKey,
        passphrase: &[u8],
        pbkdf: &Pbkdf,
        random: Random<'_>,
    ) -> Result<u8, ChangeError<S::Error>> {
        self.check_new(key, pbkdf)?;
        let id = self.free_slot().ok_or(ChangeError::NoFreeSlot)?;
        let slot = self.new_slot(storage, key, passphrase, pbkdf, random)?;
        let mut json = self.json.clone();
        member(&mut json, &["keyslots"]).insert(id.to_string(), slot.json.clone());
        let digest = self.metadata.digest.id.to_string();
        let bound =
            member(&mut json, &["digests", &digest]).get_mut("keyslots").and_then(Value::as_array_mut);
        bound.expect("a digest that was checked").push(id.to_string().into());
        self.put(storage, json, Some(&slot), random)?;
        Ok(id)
    }

    /// Makes `passphrase` the one of keyslot `slot`, which keeps its number, priority and tokens.
    pub fn change_key<S: Storage>(
        &mut self,
        storage: &mut S,
        slot: u8,
        key: &VolumeKey,
        passphrase: &[u8],
        pbkdf: &Pbkdf,
        random: Random<'_>,
    ) -> Result<(), ChangeError<S::Error>> {
        let (_, old) =
            self.metadata.bound().find(|(id, _)| *id == slot).ok_or(ChangeError::NoSuchSlot(slot))?;
        let old = old.area.clone();
        self.check_new(key, pbkdf)?;
        let new = self.new_slot(storage, key, passphrase, pbkdf, random)?;
        let mut json = self.json.clone();
        for (name, value) in new.json.as_object().expect("an object was built") {
            member(&mut json, &["keyslots", &slot.to_string()]).insert(name.clone(), value.clone());
        }
        self.put(storage, json, Some(&new), random)?;
        wipe(storage, old, random).map_err(ChangeError::Storage)
    }

    /// Removes keyslot `slot` and overwrites its area. Without the last keyslot of the volume's key nobody opens the
    /// volume again, so that it is removed only if `even_last`.
    pub fn remove_key<S: Storage>(
        &mut self,
        storage: &mut S,
        slot: u8,
        even_last: bool,
        random: Random<'_>,
    ) -> Result<(), ChangeError<S::Error>> {
        let area = self.metadata.slots.get(&slot).ok_or(ChangeError::NoSuchSlot(slot))?.area.clone();
        if !even_last && self.metadata.digest.slots == [slot] {
            return Err(ChangeError::LastSlot(slot));
        }
        let mut json = self.json.clone();
        remove_slot(&mut json, slot);
        self.put(storage, json, None, random)?;
        wipe(storage, area, random).map_err(ChangeError::Storage)
    }

    pub(super) fn free_slot(&self) -> Option<u8> {
        (0..SLOTS_MAX).find(|id| !self.metadata.slots.contains_key(id))
    }

    pub(super) fn check_new<E>(&self, key: &VolumeKey, pbkdf: &Pbkdf) -> Result<(), ChangeError<E>> {
        pbkdf.check(u64::MAX)?;
        if self.has_key(key)? { Ok(()) } else { Err(ChangeError::WrongKey) }
    }

    /// A keyslot in an area that no other keyslot has.
    pub(super) fn new_slot<S: Storage>(
        &self,
        storage: &S,
        key: &VolumeKey,
        passphrase: &[u8],
        pbkdf: &Pbkdf,
        random: Random<'_>,
    ) -> Result<NewSlot, ChangeError<S::Error>> {
        let used = self.metadata.slots.values().map(|slot| slot.area.clone()).collect();
        let within = self.metadata.keyslots.start..self.metadata.keyslots.end.min(storage.size_bytes());
        let offset = first_fit(within, used, area_bytes(key.bytes().len())).ok_or(ChangeError::NoRoom)?;
        Ok(NewSlot::new(key, passphrase, pbkdf, offset, random)?)
    }

    /// Makes `json` the header's. The area of `new` is durable before a header refers to it. Another program may have
    /// taken the same free area, so the header is read again before the area is written, too.
    pub(super) fn put<S: Storage>(
        &mut self,
        storage: &mut S,
        json: Map<String, Value>,
        new: Option<&NewSlot>,
        random: Random<'_>,
    ) -> Result<(), ChangeError<S::Error>> {
        let mut next = Self { json, ..self.clone() };
        next.metadata = Metadata::parse(&next.json, next.binary.header_bytes)?;
        let seqid = self.binary.seqid.checked_add(1);
        next.binary.seqid = seqid.ok_or_else(|| malformed("no sequence number is higher"))?;
        let text = next.text().ok_or(ChangeError::NoRoomInJson)?;
        if let Some(new) = new {
            self.check_unchanged(storage)?;
            new.write(storage).map_err(ChangeError::Storage)?;
        }
        self.check_unchanged(storage)?;
        copies::write(storage, self.copies, &next.binary, &text, random).map_err(ChangeError::Storage)?;
        next.copies = Copies::Both;
        *self = next;
        Ok(())
    }

    /// The JSON as it is written, if the JSON area has room for it and a zero byte.
    pub(super) fn text(&self) -> Option<Vec<u8>> {
        let text = serde_json::to_vec(&self.json).expect("maps with strings for names");
        (text.len() < self.binary.json_bytes()).then_some(text)
    }

    fn check_unchanged<S: Storage>(&self, storage: &mut S) -> Result<(), ChangeError<S::Error>> {
        let now = read_in_reencryption(storage, self.place)?;
        if now.binary == self.binary && now.json == self.json { Ok(()) } else { Err(ChangeError::Changed) }
    }
}

/// Removes a keyslot, and its number where digests and tokens refer to it.
pub(super) fn remove_slot(json: &mut Map<String, Value>, slot: u8) {
    let name = slot.to_string();
    member(json, &["keyslots"]).shift_remove(&name);
    for referring in ["digests", "tokens"] {
        for object in member(json, &[referring]).values_mut() {
            if let Some(slots) = object.get_mut("keyslots").and_then(Value::as_array_mut) {
                slots.retain(|id| id.as_str() != Some(&name));
            }
        }
    }
}

/// An object in JSON that was checked.
pub(super) fn member<'a>(json: &'a mut Map<String, Value>, path: &[&str]) -> &'a mut Map<String, Value> {
    path.iter().fold(json, |json, name| {
        json.get_mut(*name).and_then(Value::as_object_mut).expect("an object that was checked")
    })
}

/// Where the first `bytes` of `within` begin that none of `used` overlaps.
pub(super) fn first_fit(within: Range<u64>, used: Vec<Range<u64>>, bytes: u64) -> Option<u64> {
    gaps(within, used).into_iter().find(|gap| gap.end - gap.start >= bytes).map(|gap| gap.start)
}

/// The parts of `within` that none of `used` overlaps, in order.
pub(super) fn gaps(within: Range<u64>, mut used: Vec<Range<u64>>) -> Vec<Range<u64>> {
    used.sort_by_key(|area| area.start);
    used.push(within.end..within.end);
    let mut at = within.start;
    let mut gaps = Vec::new();
    for area in used {
        if at < area.start {
            gaps.push(at..area.start.min(within.end));
        }
        at = at.max(area.end);
    }
    gaps
}

/// Overwrites an area with random bytes, and flushes.
pub(super) fn wipe<S: Storage>(
    storage: &mut S,
    area: Range<u64>,
    random: Random<'_>,
) -> Result<(), S::Error> {
    let mut bytes = vec![0; WIPE_BYTES.min(area.end - area.start) as usize];
    let mut at = area.start;
    while at < area.end {
        let piece = &mut bytes[..WIPE_BYTES.min(area.end - at) as usize];
        random(piece);
        storage.write(at, piece)?;
        at += piece.len() as u64;
    }
    storage.flush()
}
