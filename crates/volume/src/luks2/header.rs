//! A header as it was read.

use serde_json::{Map, Value};

use super::binary::Binary;
use super::copies::{self, Copy};
use super::error::{ReadError, Refusal};
use super::metadata::{Metadata, Segment};
use crate::Storage;

/// Where a header lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before its data, on one storage.
    Attached,
    /// On a storage of its own, such as a file.
    Detached,
}

/// Which copies of a header are valid and current. The next change writes both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    Both,
    /// Both are valid; the primary one has the lower sequence number.
    PrimaryOlder,
    SecondaryOlder,
    PrimaryOnly,
    SecondaryOnly,
}

/// A header that is accepted.
#[derive(Clone, Debug)]
pub struct Header {
    pub(super) place: Place,
    pub(super) binary: Binary,
    /// With the members that this crate does not know.
    pub(super) json: Map<String, Value>,
    pub(super) metadata: Metadata,
    pub(super) copies: Copies,
}

/// Reads and checks the header of a volume.
pub fn read<S: Storage>(storage: &mut S, place: Place) -> Result<Header, ReadError<S::Error>> {
    let header = read_in_reencryption(storage, place)?;
    if header.is_in_reencryption() { Err(Refusal::AuthReencryption.into()) } else { Ok(header) }
}

/// As [`read()`], also of a volume in re-encryption, whose blocks have either of two keys: nothing but the re-encryption may use it.
pub fn read_in_reencryption<S: Storage>(
    storage: &mut S,
    place: Place,
) -> Result<Header, ReadError<S::Error>> {
    let (Copy { binary, json, metadata }, copies) = copies::read(storage)?;
    let metadata = metadata?;
    if place == Place::Attached && metadata.segment.offset_bytes == 0 {
        return Err(Refusal::DataInHeader.into());
    }
    if metadata.slots.values().any(|slot| slot.area.end > storage.size_bytes()) {
        return Err(Refusal::Truncated.into());
    }
    Ok(Header { place, binary, json, metadata, copies })
}

impl Header {
    /// Where the data lies.
    pub fn segment(&self) -> &Segment {
        &self.metadata.segment
    }

    /// The UUID as text, as the header has it: bytes without a zero byte, at most 39.
    pub fn uuid(&self) -> &[u8] {
        &self.binary.uuid
    }

    /// Whether the keys of `other` are keys of this header, by their digests, which no change of keyslots changes: the same key for
    /// the data, and in a re-encryption the one that it moves to.
    pub fn has_keys_of(&self, other: &Self) -> bool {
        let (own, others) = (&self.metadata, &other.metadata);
        let has_next =
            others.next.iter().all(|next| own.next.iter().any(|own| own.of_key() == next.of_key()));
        own.digest.of_key() == others.digest.of_key() && has_next
    }

    /// Bytes of both copies and the keyslot area.
    pub fn size_bytes(&self) -> u64 {
        self.metadata.keyslots.end
    }
}
