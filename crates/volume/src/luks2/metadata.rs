//! What the JSON of a header says, and the checks that come before any key is derived: the JSON is the provider's.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Value};

use super::af::STRIPES;
use super::error::{Refusal, quoted};
use super::hash::Hash;
use super::kdf::{Argon2Costs, Pbkdf, SALT_BYTES};
use super::object::{Object, malformed};
use super::{AUTH_REQUIREMENT, AUTH_SEGMENT, REENCRYPTION_REQUIREMENT, SLOTS_MAX};
pub use crate::auth::Cipher as AuthCipher;

pub(super) const XTS: &str = "aes-xts-plain64";
/// Bytes of keys that `aes-xts-plain64` takes here.
pub(super) const XTS_KEY_BYTES: [usize; 2] = [32, 64];
/// Areas of keyslots begin and end at multiples of this.
pub(super) const AREA_ALIGNMENT: u64 = 4096;
/// Largest area of all keyslots together (`LUKS2_MAX_KEYSLOTS_SIZE`).
pub(super) const KEYSLOTS_BYTES_MAX: u64 = 128 << 20;
/// Most bytes of a key in a keyslot, those of other keys than the volume's included.
const KEY_BYTES_MAX: u32 = 512;
/// Bytes of the digest of a volume key in LUKS1, whatever the hash; `cryptsetup convert` keeps them.
const LUKS1_DIGEST_BYTES: usize = 20;
const TOKENS_MAX: u8 = 32;
pub(super) const DIGESTS_MAX: u8 = 32;
const SEGMENTS_MAX: u8 = 32;
/// Member of a segment of [`AUTH_SEGMENT`] in re-encryption: the number of the digest of its next key.
pub(super) const NEXT: &str = "next";

/// Where a volume's data lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub kind: SegmentKind,
    pub offset_bytes: u64,
    /// `None`: to the end of the storage.
    pub size_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// AES-XTS; tweaks count 512 bytes from the beginning of the segment. `sector_bytes` is a power of two from 512 to
    /// 4096.
    Crypt { sector_bytes: u32 },
    /// Authenticated blocks (docs/VOLUME.md §2). `unit_bytes` is 512 or 4096.
    Auth { cipher: AuthCipher, unit_bytes: u32 },
}

/// In which order keyslots are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Only if it is asked for by number.
    Ignored,
    Normal,
    Preferred,
}

#[derive(Clone, Debug)]
pub(super) struct Keyslot {
    pub(super) key_bytes: usize,
    pub(super) kdf: Pbkdf,
    pub(super) salt: [u8; SALT_BYTES],
    pub(super) split_hash: Hash,
    pub(super) area: Range<u64>,
    pub(super) area_key_bytes: usize,
    pub(super) priority: Priority,
}

impl Keyslot {
    /// Bytes of the split key, in sectors of 512 bytes.
    pub(super) fn material_bytes(&self) -> usize {
        material_bytes(self.key_bytes)
    }
}

pub(super) fn material_bytes(key_bytes: usize) -> usize {
    (key_bytes * STRIPES).next_multiple_of(xts::TWEAK_BYTES)
}

/// Bytes of the area of a keyslot for a key.
pub(super) fn area_bytes(key_bytes: usize) -> u64 {
    (material_bytes(key_bytes) as u64).next_multiple_of(AREA_ALIGNMENT)
}

/// The digest of a volume key, and the keyslots that hold this key.
#[derive(Clone, Debug)]
pub(super) struct Digest {
    pub(super) id: u8,
    pub(super) slots: Vec<u8>,
    pub(super) hash: Hash,
    pub(super) iterations: u32,
    pub(super) salt: [u8; SALT_BYTES],
    pub(super) digest: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) id: u8,
    pub(super) kind: String,
    pub(super) slots: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Metadata {
    pub(super) slots: BTreeMap<u8, Keyslot>,
    pub(super) tokens: Vec<Token>,
    pub(super) segment: Segment,
    pub(super) digest: Digest,
    /// Of a volume in re-encryption, the key that it moves to.
    pub(super) next: Option<Digest>,
    pub(super) requirements: Vec<String>,
    pub(super) flags: Vec<String>,
    /// The area of all keyslots.
    pub(super) keyslots: Range<u64>,
}

impl Metadata {
    /// Parses and checks the JSON of a header whose copies have `header_bytes` each.
    pub(super) fn parse(json: &Map<String, Value>, header_bytes: u64) -> Result<Self, Refusal> {
        let root = Object::root(json);
        let config = root.object("config")?;
        let requirements = requirements(&config)?;
        let segment = segment(&root, &requirements)?;
        let keyslots = keyslots_area(&config, header_bytes, &segment)?;
        let slots = slots(&root, &keyslots)?;
        let next = next(&root, &requirements, &segment)?;
        let (digest, next) = digests(&root, &slots, next)?;
        let tokens = tokens(&root, &slots)?;
        let flags = if config.has("flags") { config.texts("flags")? } else { Vec::new() };
        let flags = flags.into_iter().map(str::to_owned).collect();
        let this = Self { slots, tokens, segment, digest, next, requirements, flags, keyslots };
        this.check_key()?;
        Ok(this)
    }

    /// The keyslots of the volume key.
    pub(super) fn bound(&self) -> impl Iterator<Item = (u8, &Keyslot)> {
        self.bound_to(&self.digest)
    }

    pub(super) fn bound_to(&self, digest: &Digest) -> impl Iterator<Item = (u8, &Keyslot)> {
        digest.slots.iter().map(|id| (*id, &self.slots[id]))
    }

    /// Bytes of the volume key; `None` without a keyslot.
    pub(super) fn key_bytes(&self) -> Option<usize> {
        self.bound().next().map(|(_, slot)| slot.key_bytes)
    }

    fn check_key(&self) -> Result<(), Refusal> {
        let first = self.key_bytes();
        let next = self.next.iter().flat_map(|next| self.bound_to(next));
        for (id, slot) in self.bound().chain(next) {
            if !XTS_KEY_BYTES.contains(&slot.key_bytes) {
                return Err(cipher(format!("the key of keyslot {id}"), XTS, slot.key_bytes));
            }
            if Some(slot.key_bytes) != first {
                return Err(malformed("keyslots of one key have different lengths"));
            }
        }
        Ok(())
    }
}

fn cipher(of: String, name: &str, key_bytes: usize) -> Refusal {
    Refusal::Cipher { of, name: format!("{} of {} bits", quoted(name), key_bytes * 8) }
}

fn requirements(config: &Object<'_>) -> Result<Vec<String>, Refusal> {
    if !config.has("requirements") {
        return Ok(Vec::new());
    }
    let requirements = config.object("requirements")?;
    let mandatory = if requirements.has("mandatory") { requirements.texts("mandatory")? } else { Vec::new() };
    let unknown = mandatory.iter().find(|name| ![AUTH_REQUIREMENT, REENCRYPTION_REQUIREMENT].contains(name));
    match unknown {
        None => Ok(mandatory.into_iter().map(str::to_owned).collect()),
        Some(name) if name.contains("reencrypt") => Err(Refusal::Reencryption),
        Some(name) => Err(Refusal::Requirement(quoted(name))),
    }
}

fn segment(root: &Object<'_>, requirements: &[String]) -> Result<Segment, Refusal> {
    let segments = root.numbered("segments", SEGMENTS_MAX)?;
    for (_, segment) in &segments {
        let flags = if segment.has("flags") { segment.texts("flags")? } else { Vec::new() };
        if flags.iter().any(|flag| *flag == "in-reencryption" || flag.starts_with("backup-")) {
            return Err(Refusal::Reencryption);
        }
    }
    let [(0, segment)] = &segments[..] else { return Err(Refusal::SegmentCount(segments.len())) };
    let name = segment.text("type")?;
    let demands_auth = requirements.iter().any(|name| name == AUTH_REQUIREMENT);
    let kind = match name {
        "crypt" if !demands_auth => crypt(segment)?,
        AUTH_SEGMENT if demands_auth => auth(segment)?,
        _ => return Err(Refusal::SegmentType(quoted(name))),
    };
    let alignment = match kind {
        SegmentKind::Crypt { sector_bytes } => sector_bytes,
        SegmentKind::Auth { .. } => AREA_ALIGNMENT as u32,
    };
    let offset_bytes = segment.number("offset")?;
    let size_bytes = match segment.text("size")? {
        "dynamic" => None,
        _ => Some(segment.number("size")?),
    };
    let is_aligned = |bytes: u64| bytes.is_multiple_of(alignment.into());
    if !is_aligned(offset_bytes) || !size_bytes.is_none_or(|size| size > 0 && is_aligned(size)) {
        return Err(malformed("the segment does not consist of whole sectors"));
    }
    if offset_bytes.checked_add(size_bytes.unwrap_or(0)).is_none() {
        return Err(malformed("the segment ends beyond 2^64"));
    }
    Ok(Segment { kind, offset_bytes, size_bytes })
}

fn crypt(segment: &Object<'_>) -> Result<SegmentKind, Refusal> {
    let encryption = segment.text("encryption")?;
    if encryption != XTS {
        return Err(Refusal::Cipher { of: "the segment".to_owned(), name: quoted(encryption) });
    }
    if segment.has("integrity") {
        return Err(Refusal::Integrity);
    }
    if segment.number("iv_tweak")? != 0 {
        return Err(Refusal::IvTweak);
    }
    let sector_bytes = segment.integer("sector_size")?;
    if ![512, 1024, 2048, 4096].contains(&sector_bytes) {
        return Err(malformed("segments.0.sector_size is not 512, 1024, 2048 or 4096"));
    }
    Ok(SegmentKind::Crypt { sector_bytes })
}

fn auth(segment: &Object<'_>) -> Result<SegmentKind, Refusal> {
    let name = segment.text("encryption")?;
    let cipher = AuthCipher::from_name(name);
    let cipher = cipher.ok_or_else(|| Refusal::Auth(quoted(name)))?;
    let (version, unit_bytes) = (segment.integer("version")?, segment.integer("unit")?);
    if version != 1 {
        return Err(Refusal::Auth(format!("version {version}")));
    }
    if ![512, 4096].contains(&unit_bytes) {
        return Err(malformed("segments.0.unit is not 512 or 4096"));
    }
    Ok(SegmentKind::Auth { cipher, unit_bytes })
}

fn keyslots_area(config: &Object<'_>, header_bytes: u64, segment: &Segment) -> Result<Range<u64>, Refusal> {
    if config.number("json_size")? != header_bytes - super::binary::BINARY_BYTES as u64 {
        return Err(malformed("config.json_size is not that of the header"));
    }
    let bytes = config.number("keyslots_size")?;
    let start = 2 * header_bytes;
    if bytes > KEYSLOTS_BYTES_MAX || !bytes.is_multiple_of(AREA_ALIGNMENT) {
        return Err(malformed("config.keyslots_size is not a multiple of 4096 up to 128 MiB"));
    }
    if segment.offset_bytes != 0 && start + bytes > segment.offset_bytes {
        return Err(malformed("the keyslot area overlaps the segment"));
    }
    Ok(start..start + bytes)
}

fn slots(root: &Object<'_>, keyslots: &Range<u64>) -> Result<BTreeMap<u8, Keyslot>, Refusal> {
    let mut slots = BTreeMap::new();
    for (id, slot) in root.numbered("keyslots", SLOTS_MAX)? {
        let slot = keyslot(id, &slot)?;
        if slot.area.start < keyslots.start || slot.area.end > keyslots.end {
            return Err(malformed(format!("the area of keyslot {id} leaves the keyslot area")));
        }
        slots.insert(id, slot);
    }
    let mut areas: Vec<_> = slots.values().map(|slot| &slot.area).collect();
    areas.sort_by_key(|area| area.start);
    if areas.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(malformed("areas of keyslots overlap"));
    }
    Ok(slots)
}

fn keyslot(id: u8, slot: &Object<'_>) -> Result<Keyslot, Refusal> {
    match slot.text("type")? {
        "luks2" => {}
        "reencrypt" => return Err(Refusal::Reencryption),
        name => return Err(Refusal::SlotType { slot: id, name: quoted(name) }),
    }
    let key_bytes = slot.integer("key_size")?;
    if !(1..=KEY_BYTES_MAX).contains(&key_bytes) {
        return Err(malformed(format!("keyslots.{id}.key_size is not between 1 and {KEY_BYTES_MAX}")));
    }
    let key_bytes = key_bytes as usize;
    let priority = match slot.has("priority").then(|| slot.integer("priority")).transpose()? {
        Some(0) => Priority::Ignored,
        None | Some(1) => Priority::Normal,
        Some(2) => Priority::Preferred,
        Some(_) => return Err(malformed(format!("keyslots.{id}.priority is above 2"))),
    };
    let (area, af, kdf) = (slot.object("area")?, slot.object("af")?, slot.object("kdf")?);
    let (encryption, area_key_bytes) = (area.text("encryption")?, area.integer("key_size")? as usize);
    if encryption != XTS || !XTS_KEY_BYTES.contains(&area_key_bytes) {
        return Err(cipher(format!("the area of keyslot {id}"), encryption, area_key_bytes));
    }
    if area.text("type")? != "raw" {
        return Err(malformed(format!("keyslots.{id}.area.type is not raw")));
    }
    if af.text("type")? != "luks1" || af.integer("stripes")? as usize != STRIPES {
        return Err(malformed(format!("keyslots.{id}.af is not luks1 with {STRIPES} stripes")));
    }
    let (offset, size) = (area.number("offset")?, area.number("size")?);
    let is_aligned = offset.is_multiple_of(AREA_ALIGNMENT) && size.is_multiple_of(AREA_ALIGNMENT);
    if !is_aligned || size < material_bytes(key_bytes) as u64 {
        return Err(malformed(format!("the area of keyslot {id} is too small or not aligned")));
    }
    let end = offset.checked_add(size).ok_or_else(|| malformed("an area ends beyond 2^64"))?;
    Ok(Keyslot {
        key_bytes,
        kdf: pbkdf(&kdf)?,
        salt: kdf.salt("salt")?,
        split_hash: af.hash("hash")?,
        area: offset..end,
        area_key_bytes,
        priority,
    })
}

fn pbkdf(kdf: &Object<'_>) -> Result<Pbkdf, Refusal> {
    let costs = || {
        let (passes, memory_kib, lanes) =
            (kdf.integer("time")?, kdf.integer("memory")?, kdf.integer("cpus")?);
        Ok::<_, Refusal>(Argon2Costs { passes, memory_kib, lanes })
    };
    Ok(match kdf.text("type")? {
        "pbkdf2" => Pbkdf::Pbkdf2 { hash: kdf.hash("hash")?, iterations: kdf.integer("iterations")? },
        "argon2i" => Pbkdf::Argon2i(costs()?),
        "argon2id" => Pbkdf::Argon2id(costs()?),
        name => return Err(Refusal::Kdf(quoted(name))),
    })
}

/// The digest of the next key of a volume in re-encryption. The requirement or the segment is enough to refuse it elsewhere.
fn next(root: &Object<'_>, requirements: &[String], segment: &Segment) -> Result<Option<u8>, Refusal> {
    let is_required = requirements.iter().any(|name| name == REENCRYPTION_REQUIREMENT);
    let SegmentKind::Auth { .. } = segment.kind else {
        return if is_required { Err(Refusal::Reencryption) } else { Ok(None) };
    };
    let object = root.object("segments")?.object("0")?;
    match (is_required, object.has(NEXT)) {
        (false, false) => Ok(None),
        (true, true) => object.id(NEXT, DIGESTS_MAX).map(Some),
        _ => Err(Refusal::AuthReencryption),
    }
}

/// The digest of the segment's key and, by its number, that of the next one.
fn digests(
    root: &Object<'_>,
    slots: &BTreeMap<u8, Keyslot>,
    next: Option<u8>,
) -> Result<(Digest, Option<Digest>), Refusal> {
    let (mut found, mut found_next) = (None, None);
    for (id, digest) in root.numbered("digests", DIGESTS_MAX)? {
        let bound = digest.ids("keyslots", SLOTS_MAX)?;
        let segments = digest.ids("segments", SEGMENTS_MAX)?;
        if bound.iter().any(|slot| !slots.contains_key(slot)) || segments.iter().any(|segment| *segment != 0)
        {
            return Err(malformed(format!("digest {id} refers to what does not exist")));
        }
        let name = digest.text("type")?;
        if name != "pbkdf2" {
            return Err(Refusal::DigestType(quoted(name)));
        }
        let is_next = next == Some(id);
        if segments.is_empty() && !is_next {
            continue;
        }
        if is_next && (bound.is_empty() || !segments.is_empty()) {
            return Err(malformed(format!("digest {id} is of no next key")));
        }
        let parsed = Digest {
            id,
            slots: bound,
            hash: digest.hash("hash")?,
            iterations: digest.integer("iterations")?,
            salt: digest.salt("salt")?,
            digest: digest.base64("digest")?,
        };
        if ![LUKS1_DIGEST_BYTES, parsed.hash.bytes()].contains(&parsed.digest.len()) {
            return Err(malformed(format!("digest {id} has {} bytes", parsed.digest.len())));
        }
        let place = if is_next { &mut found_next } else { &mut found };
        if place.replace(parsed).is_some() {
            return Err(malformed("two digests of one segment"));
        }
    }
    if next.is_some() && found_next.is_none() {
        return Err(malformed("no digest for the next key"));
    }
    let found = found.ok_or_else(|| malformed("no digest for the segment"))?;
    if found_next.iter().any(|next| next.slots.iter().any(|slot| found.slots.contains(slot))) {
        return Err(malformed("a keyslot of two keys"));
    }
    Ok((found, found_next))
}

fn tokens(root: &Object<'_>, slots: &BTreeMap<u8, Keyslot>) -> Result<Vec<Token>, Refusal> {
    let token = |(id, token): (u8, Object<'_>)| {
        let slots_of = token.ids("keyslots", SLOTS_MAX)?;
        if slots_of.iter().any(|slot| !slots.contains_key(slot)) {
            return Err(malformed(format!("token {id} refers to a keyslot that does not exist")));
        }
        Ok(Token { id, kind: token.text("type")?.to_owned(), slots: slots_of })
    };
    root.numbered("tokens", TOKENS_MAX)?.into_iter().map(token).collect()
}
