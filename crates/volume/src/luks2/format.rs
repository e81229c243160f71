//! A new volume.

use serde_json::{Map, Value, json};

use super::binary::{BINARY_BYTES, Binary, HEADER_BYTES, LABEL_BYTES_MAX, UUID_BYTES_MAX};
use super::change::{NewSlot, wipe};
use super::hash::Hash;
use super::header::{Copies, Header, Place};
use super::kdf::{CostError, DeriveError, Pbkdf, SALT_BYTES};
use super::key::VolumeKey;
use super::metadata::{
    AREA_ALIGNMENT, KEYSLOTS_BYTES_MAX, Metadata, SegmentKind, XTS, XTS_KEY_BYTES, area_bytes,
};
use super::object::to_base64;
use super::{AUTH_REQUIREMENT, AUTH_SEGMENT, Random, copies};
use crate::Storage;

/// Bytes of a header with its keyslot area, as cryptsetup makes it by default.
pub const HEADER_AREA_BYTES: u64 = 16 << 20;
const DIGEST_HASH: Hash = Hash::Sha256;
/// Iterations of the digest of a volume key: the least that cryptsetup accepts. More would slow each opening and protect
/// nothing: the key has 256 or 512 random bits, which cannot be guessed.
const DIGEST_ITERATIONS: u32 = 1000;

/// What a new volume is like.
#[derive(Clone, Debug)]
pub struct Format<'a> {
    pub place: Place,
    pub segment: SegmentKind,
    /// `None`: a random one.
    pub uuid: Option<&'a str>,
    pub label: &'a str,
    /// 32 or 64.
    pub key_bytes: usize,
    /// Bytes of one copy: a power of two from 16 KiB to 4 MiB.
    pub header_bytes: u64,
    /// Bytes of the keyslot area: a multiple of 4096, at most 128 MiB, with room for one keyslot.
    pub keyslots_bytes: u64,
    /// Where the data begins: a multiple of 4096, 0 only if the header is detached.
    pub data_offset_bytes: u64,
    pub digest_iterations: u32,
}

impl Format<'_> {
    /// A volume as cryptsetup makes it by default.
    pub fn new(place: Place, segment: SegmentKind) -> Self {
        let header_bytes = HEADER_BYTES[0];
        Self {
            place,
            segment,
            uuid: None,
            label: "",
            key_bytes: 64,
            header_bytes,
            keyslots_bytes: HEADER_AREA_BYTES - 2 * header_bytes,
            data_offset_bytes: match place {
                Place::Attached => HEADER_AREA_BYTES,
                Place::Detached => 0,
            },
            digest_iterations: DIGEST_ITERATIONS,
        }
    }
}

/// Why no volume was made. After [`FormatError::Storage`] the storage may hold no volume; otherwise nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum FormatError<E> {
    #[error("a label of more than {LABEL_BYTES_MAX} bytes, or with a zero byte")]
    Label,
    #[error("a UUID of more than {UUID_BYTES_MAX} bytes, or with other than hexadecimal digits and hyphens")]
    Uuid,
    #[error("a volume key of {0} bytes, not 32 or 64")]
    KeyBytes(usize),
    #[error("sizes or offsets that the format does not allow: {0}")]
    Layout(&'static str),
    #[error("the storage has {size} bytes, of which the header takes {needed}")]
    TooSmall { size: u64, needed: u64 },
    #[error(transparent)]
    Cost(#[from] CostError),
    #[error(transparent)]
    Derive(#[from] DeriveError),
    #[error("the header cannot be written")]
    Storage(#[source] E),
}

/// Makes a volume with one keyslot. What the storage held is lost: first its headers, then its keyslots. The volume
/// exists once the first of both headers is durable; a cut before leaves none.
pub fn format<S: Storage>(
    storage: &mut S,
    format: &Format<'_>,
    passphrase: &[u8],
    pbkdf: &Pbkdf,
    random: Random<'_>,
) -> Result<(Header, VolumeKey), FormatError<S::Error>> {
    format.check()?;
    pbkdf.check(u64::MAX)?;
    let start = 2 * format.header_bytes;
    let keyslots = start..start + format.keyslots_bytes;
    let size = storage.size_bytes();
    // A secondary copy of an older header may lie where the data will be.
    let (needed, erased) = match format.place {
        Place::Attached => (format.data_offset_bytes, size),
        Place::Detached => (keyslots.end, keyslots.end),
    };
    if size < needed {
        return Err(FormatError::TooSmall { size, needed });
    }
    let key = VolumeKey::random(format.key_bytes, random);
    let slot = NewSlot::new(&key, passphrase, pbkdf, start, random)?;
    let json = format.json(&key, &slot.json, random);
    let uuid = format.uuid.map_or_else(|| random_uuid(random), str::to_ascii_lowercase);
    let binary = Binary {
        header_bytes: format.header_bytes,
        seqid: 1,
        label: format.label.as_bytes().to_vec(),
        subsystem: Vec::new(),
        uuid: uuid.into_bytes(),
        checksum: Hash::Sha256,
    };
    let metadata = Metadata::parse(&json, format.header_bytes).expect("a header of this crate is accepted");
    let header = Header { place: format.place, binary, json, metadata, copies: Copies::Both };
    let text = header.text().expect("one keyslot fits into any header");
    copies::erase(storage, erased).map_err(FormatError::Storage)?;
    wipe(storage, keyslots, random).map_err(FormatError::Storage)?;
    slot.write(storage).map_err(FormatError::Storage)?;
    copies::write(storage, Copies::Both, &header.binary, &text, random).map_err(FormatError::Storage)?;
    Ok((header, key))
}

impl Format<'_> {
    fn check<E>(&self) -> Result<(), FormatError<E>> {
        if self.label.len() > LABEL_BYTES_MAX || self.label.contains('\0') {
            return Err(FormatError::Label);
        }
        let is_uuid = |text: &str| {
            (1..=UUID_BYTES_MAX).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        };
        if !self.uuid.is_none_or(is_uuid) {
            return Err(FormatError::Uuid);
        }
        if !XTS_KEY_BYTES.contains(&self.key_bytes) {
            return Err(FormatError::KeyBytes(self.key_bytes));
        }
        if !HEADER_BYTES.contains(&self.header_bytes) {
            return Err(FormatError::Layout("the size of a header copy"));
        }
        let keyslots = area_bytes(self.key_bytes)..=KEYSLOTS_BYTES_MAX;
        if !keyslots.contains(&self.keyslots_bytes) || !self.keyslots_bytes.is_multiple_of(AREA_ALIGNMENT) {
            return Err(FormatError::Layout("the size of the keyslot area"));
        }
        let is_alone = self.place == Place::Detached && self.data_offset_bytes == 0;
        let is_behind = self.data_offset_bytes >= 2 * self.header_bytes + self.keyslots_bytes;
        if !self.data_offset_bytes.is_multiple_of(AREA_ALIGNMENT) || !(is_alone || is_behind) {
            return Err(FormatError::Layout("the offset of the data"));
        }
        let (unit_bytes, allowed) = match self.segment {
            SegmentKind::Crypt { sector_bytes } => (sector_bytes, &[512, 1024, 2048, 4096][..]),
            SegmentKind::Auth { unit_bytes, .. } => (unit_bytes, &[512, 4096][..]),
        };
        if !allowed.contains(&unit_bytes) {
            return Err(FormatError::Layout("the size of a sector"));
        }
        Pbkdf::Pbkdf2 { hash: DIGEST_HASH, iterations: self.digest_iterations }.check(u64::MAX)?;
        Ok(())
    }

    fn json(&self, key: &VolumeKey, slot: &Value, random: Random<'_>) -> Map<String, Value> {
        let digest = digest(key, self.digest_iterations, ("0", &["0"]), random);
        let offset = self.data_offset_bytes.to_string();
        let segment = match self.segment {
            SegmentKind::Crypt { sector_bytes } => json!({
                "type": "crypt", "offset": offset, "size": "dynamic",
                "iv_tweak": "0", "encryption": XTS, "sector_size": sector_bytes,
            }),
            SegmentKind::Auth { cipher, unit_bytes } => json!({
                "type": AUTH_SEGMENT, "offset": offset, "size": "dynamic",
                "encryption": cipher.name(), "unit": unit_bytes, "version": 1,
            }),
        };
        let json = json!({
            "keyslots": { "0": slot },
            "tokens": {},
            "segments": { "0": segment },
            "digests": { "0": digest },
            "config": {
                "json_size": (self.header_bytes - BINARY_BYTES as u64).to_string(),
                "keyslots_size": self.keyslots_bytes.to_string(),
            },
        });
        let Value::Object(mut json) = json else { unreachable!("an object was built") };
        if let SegmentKind::Auth { .. } = self.segment {
            json["config"]["requirements"] = json!({ "mandatory": [AUTH_REQUIREMENT] });
        }
        json
    }
}

/// The digest of a key that a keyslot holds and that segments have.
pub(super) fn digest(
    key: &VolumeKey,
    iterations: u32,
    (slot, segments): (&str, &[&str]),
    random: Random<'_>,
) -> Value {
    let mut salt = [0; SALT_BYTES];
    random(&mut salt);
    let mut digest = vec![0; DIGEST_HASH.bytes()];
    DIGEST_HASH.pbkdf2(key.bytes(), &salt, iterations, &mut digest);
    json!({
        "type": "pbkdf2",
        "keyslots": [slot],
        "segments": segments,
        "hash": DIGEST_HASH.name(),
        "iterations": iterations,
        "salt": to_base64(&salt),
        "digest": to_base64(&digest),
    })
}

/// A UUID of version 4 (RFC 9562 §5.4).
fn random_uuid(random: Random<'_>) -> String {
    let mut bytes = [0; 16];
    random(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
