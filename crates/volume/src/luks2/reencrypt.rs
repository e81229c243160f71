//! The header of a volume of type `auth` in re-encryption (docs/VOLUME.md, "Re-encryption"): it has both keys, so that a
//! cut anywhere leaves what is needed to go on.

use serde_json::{Value, json};

use super::change::{member, remove_slot, wipe};
use super::error::{ChangeError, UnlockError};
use super::header::Header;
use super::kdf::Pbkdf;
use super::key::VolumeKey;
use super::metadata::{DIGESTS_MAX, NEXT, SegmentKind};
use super::object::malformed;
use super::unlock::Limits;
use super::{AUTH_REQUIREMENT, REENCRYPTION_REQUIREMENT, Random, format};
use crate::Storage;

impl Header {
    /// Whether blocks of the volume may have either of two keys. [`read`](super::read()) refuses such a header.
    pub fn is_in_reencryption(&self) -> bool {
        self.metadata.next.is_some()
    }

    /// Adds the key `next` with a keyslot for `passphrase`: from then on the volume is refused to all but its re-encryption. `key` is
    /// the present one, of the same length. Only for a segment of type `auth`.
    pub fn begin_reencryption<S: Storage>(
        &mut self,
        storage: &mut S,
        [key, next]: [&VolumeKey; 2],
        passphrase: &[u8],
        pbkdf: &Pbkdf,
        random: Random<'_>,
    ) -> Result<(), ChangeError<S::Error>> {
        assert!(matches!(self.metadata.segment.kind, SegmentKind::Auth { .. }), "a volume of type auth");
        assert!(!self.is_in_reencryption(), "one re-encryption at a time");
        self.check_new(key, pbkdf)?;
        let slot = self.free_slot().ok_or(ChangeError::NoFreeSlot)?.to_string();
        let new = self.new_slot(storage, next, passphrase, pbkdf, random)?;
        let mut json = self.json.clone();
        member(&mut json, &["keyslots"]).insert(slot.clone(), new.json.clone());
        let digests = member(&mut json, &["digests"]);
        let id = (0..DIGESTS_MAX).map(|id| id.to_string()).find(|id| !digests.contains_key(id));
        let id = id.ok_or_else(|| malformed("no number for another digest is left"))?;
        let digest = format::digest(next, self.metadata.digest.iterations, (&slot, &[]), random);
        digests.insert(id.clone(), digest);
        member(&mut json, &["segments", "0"]).insert(NEXT.to_owned(), id.into());
        member(&mut json, &["config", "requirements"])
            .insert("mandatory".to_owned(), json!([AUTH_REQUIREMENT, REENCRYPTION_REQUIREMENT]));
        self.put(storage, json, Some(&new), random)
    }

    /// The key that a volume in re-encryption moves to, by the passphrase that it began with.
    pub fn unlock_next<S: Storage>(
        &self,
        storage: &mut S,
        passphrase: &[u8],
        limits: &Limits,
    ) -> Result<VolumeKey, UnlockError<S::Error>> {
        let next = self.metadata.next.as_ref().expect("a volume in re-encryption");
        self.unlock_of(next, storage, passphrase, None, limits).map(|unlocked| unlocked.key)
    }

    /// Makes the next key the volume's, and removes the keyslots of the one before; their areas are overwritten. The keyslot
    /// of the next key takes the place of `slot`, one of those, with its number, priority and tokens.
    pub fn finish_reencryption<S: Storage>(
        &mut self,
        storage: &mut S,
        slot: u8,
        random: Random<'_>,
    ) -> Result<(), ChangeError<S::Error>> {
        let next = self.metadata.next.as_ref().expect("a volume in re-encryption");
        let old = &self.metadata.digest;
        if !old.slots.contains(&slot) {
            return Err(ChangeError::NoSuchSlot(slot));
        }
        let areas: Vec<_> = self.metadata.bound().map(|(_, slot)| slot.area.clone()).collect();
        let mut json = self.json.clone();
        let [new] = next.slots[..] else { return Err(malformed("several keyslots of the next key").into()) };
        let (name, new_name) = (slot.to_string(), new.to_string());
        let moved = member(&mut json, &["keyslots", &new_name]).clone();
        member(&mut json, &["keyslots", &name]).extend(moved);
        for other in old.slots.iter().filter(|other| **other != slot).chain([&new]) {
            remove_slot(&mut json, *other);
        }
        let digests = member(&mut json, &["digests"]);
        digests.shift_remove(&old.id.to_string());
        let digest = digests.get_mut(&next.id.to_string()).and_then(Value::as_object_mut);
        let digest = digest.expect("a digest that was checked");
        digest.insert("keyslots".to_owned(), json!([name]));
        digest.insert("segments".to_owned(), json!(["0"]));
        member(&mut json, &["segments", "0"]).shift_remove(NEXT);
        member(&mut json, &["config", "requirements"])
            .insert("mandatory".to_owned(), json!([AUTH_REQUIREMENT]));
        self.put(storage, json, None, random)?;
        areas.into_iter().try_for_each(|area| wipe(storage, area, random)).map_err(ChangeError::Storage)
    }
}
