//! Unlocking, once for all threads of a medium.

use std::path::Path;
use std::sync::Arc;

use volume::auth::{self, BLOCK_BYTES};
use volume::luks2::{
    self, AuthCipher, Copies, Header, Place, ReadError, Refusal, Segment, SegmentKind, UnlockError,
};
use zeroize::Zeroizing;

use super::auth::{AuthMedium, LedgerFile};
use super::luks2::{Luks2Medium, Side, Unlocked};
use crate::{Blocking, Capability, IoError, Location, Medium, OpenError, OpenOptions, Spec};

/// Where the program gets passphrases from.
pub trait Keys {
    /// A passphrase, or the bytes of a key file. `attempt` counts those that were wrong. `None`: there is no other.
    fn secret(&self, attempt: u32) -> Result<Option<Zeroizing<Vec<u8>>>, OpenError>;

    /// A volume opens, and has this flaw.
    fn warn(&self, _flaw: &str) {}
}

/// Of a program that opens no sealed volumes.
pub struct NoKeys;

impl Keys for NoKeys {
    fn secret(&self, _attempt: u32) -> Result<Option<Zeroizing<Vec<u8>>>, OpenError> {
        Ok(None)
    }
}

/// What a key derivation may take of this machine.
pub fn limits() -> luks2::Limits {
    luks2::Limits { memory_bytes_max: host::memory_bytes_max().unwrap_or(u64::MAX) }
}

/// The plaintext of the volume on `inner`, whose type is `value`.
pub(in crate::layer) fn open(
    inner: Arc<dyn Medium>,
    value: &str,
    spec: &Spec,
    keys: &dyn Keys,
) -> Result<Arc<dyn Medium>, OpenError> {
    if !["luks2", "auth"].contains(&value) {
        return Err(OpenError::Usage(format!("option volume: '{value}' is not a type; luks2 or auth")));
    }
    let freshness = spec.get("freshness").map(Path::new);
    if value == "luks2" && freshness.is_some() {
        let text =
            "option freshness: LUKS2 has no contexts of blocks that could be compared; volume=auth has";
        return Err(OpenError::Usage(text.to_owned()));
    }
    let mut storage = Blocking::attach(&*inner)?;
    let capability = storage.endpoint().capability().clone();
    let (header, unlocked) = match spec.get("header") {
        Some(path) => unlock(&mut detached(Path::new(path), false)?, Place::Detached, keys)?,
        None => unlock(&mut storage, Place::Attached, keys)?,
    };
    drop(storage);
    let Segment { kind, offset_bytes, size_bytes } = header.segment().clone();
    match (kind, value) {
        (SegmentKind::Crypt { sector_bytes }, "luks2") => {
            fits(&capability, offset_bytes, sector_bytes)?;
            let uuid = String::from_utf8_lossy(header.uuid()).into_owned();
            let key = Zeroizing::new(unlocked.key.bytes().to_vec());
            let name = format!("{uuid} of key {}", unlocked.key.name());
            Ok(luks2_of_key(inner, key, (offset_bytes, size_bytes), sector_bytes, name))
        }
        (SegmentKind::Crypt { .. }, _) => Err(OpenError::Refused(
            "the volume has no authenticated blocks; volume=luks2 opens it".to_owned(),
        )),
        (SegmentKind::Auth { cipher, unit_bytes }, "auth") => {
            fits(&capability, offset_bytes, BLOCK_BYTES as u32)?;
            let uuid = String::from_utf8_lossy(header.uuid()).into_owned();
            let (cipher, unit) = of_header(cipher, unit_bytes)?;
            let keys = auth::Keys::new(unlocked.key.bytes(), &uuid, cipher, unit, offset_bytes);
            let storage = (capability.size_bytes, capability.read_only);
            let name = format!("{uuid} of key {}", unlocked.key.name());
            auth_of_keys(inner, keys, (cipher, unit, offset_bytes), storage, name, freshness)
        }
        (SegmentKind::Auth { .. }, _) => {
            Err(OpenError::Refused("the volume's blocks are authenticated; volume=auth opens it".to_owned()))
        }
    }
}

/// The plaintext of a `luks2` volume whose key is known, without its header. `place`: offset of the data, and its size,
/// `None` up to the end of the storage. `name`: UUID and digest of the key.
pub fn luks2_of_key(
    inner: Arc<dyn Medium>,
    key: Zeroizing<Vec<u8>>,
    place: (u64, Option<u64>),
    sector_bytes: u32,
    name: String,
) -> Arc<dyn Medium> {
    let (data_offset, size_bytes) = place;
    let unlocked = Unlocked { key, data_offset, size_bytes, sector_bytes, first_tweak: 0, name };
    Arc::new(Luks2Medium::new(inner, unlocked, Side::Volume))
}

/// The plaintext of an `auth` volume whose keys are known, without its header. `place`: cipher, unit and offset of the
/// segment; `storage`: bytes of the storage, and whether it is only read; `name`: UUID and digest of the key.
pub fn auth_of_keys(
    inner: Arc<dyn Medium>,
    keys: auth::Keys,
    place: (auth::Cipher, auth::Unit, u64),
    storage: (u64, bool),
    name: String,
    freshness: Option<&Path>,
) -> Result<Arc<dyn Medium>, OpenError> {
    let (storage_bytes, is_read_only) = storage;
    let mut writer = [0; 16];
    io::entropy(&mut writer).map_err(|error| OpenError::Failed(error.to_string()))?;
    let ledger = freshness.map(|path| LedgerFile::open(path, is_read_only)).transpose()?;
    let mut volume = auth::Volume::new(keys, place, storage_bytes, writer, is_read_only)
        .map_err(|error| OpenError::Refused(error.to_string()))?;
    if let Some(ledger) = &ledger {
        volume = volume.with_ledger(ledger.bytes);
    }
    Ok(Arc::new(AuthMedium::new(inner, volume, name, ledger)?))
}

/// The plaintext of `inner` as the LUKS2 volume of the header that the option `header` names.
pub(in crate::layer) fn view(
    inner: Arc<dyn Medium>,
    value: &str,
    spec: &Spec,
    keys: &dyn Keys,
) -> Result<Arc<dyn Medium>, OpenError> {
    if value != "luks2" {
        return Err(OpenError::Usage(format!("option view: '{value}' is not a type; luks2")));
    }
    let Some(path) = spec.get("header") else {
        let text =
            "option view: header=FILE has the header that is shown; hikyaku volume format FILE makes one";
        return Err(OpenError::Usage(text.to_owned()));
    };
    let mut storage = detached(Path::new(path), false)?;
    // The header lies before the data of the view, wherever this copy of it is kept.
    let (header, unlocked) = unlock(&mut storage, Place::Attached, keys)?;
    let Segment { kind, offset_bytes, .. } = header.segment().clone();
    let SegmentKind::Crypt { sector_bytes } = kind else {
        return Err(OpenError::Refused("a view is of type luks2, and the header of another".to_owned()));
    };
    let mut shown = header.backup(&mut storage).map_err(|error| read_error(error, Place::Attached))?;
    shown.truncate(usize::try_from(offset_bytes).unwrap_or(usize::MAX));
    let uuid = String::from_utf8_lossy(header.uuid()).into_owned();
    let unlocked = Unlocked {
        key: Zeroizing::new(unlocked.key.bytes().to_vec()),
        data_offset: offset_bytes,
        size_bytes: None,
        sector_bytes,
        first_tweak: 0,
        name: format!("{uuid} of key {}", unlocked.key.name()),
    };
    Ok(Arc::new(Luks2Medium::new(inner, unlocked, Side::View(shown.into()))))
}

/// The cipher and unit of blocks as the header has them.
pub fn of_header(cipher: AuthCipher, unit_bytes: u32) -> Result<(auth::Cipher, auth::Unit), OpenError> {
    let unit = auth::Unit::from_bytes(unit_bytes);
    let found = auth::Cipher::from_name(cipher.name()).zip(unit);
    found.ok_or_else(|| {
        OpenError::Refused(format!("blocks of {}, units of {unit_bytes} bytes", cipher.name()))
    })
}

/// The storage of a detached header.
pub fn detached(path: &Path, writable: bool) -> Result<Blocking, OpenError> {
    let options = if writable { Vec::new() } else { vec![("ro".to_owned(), None)] };
    let spec = Spec { location: Location::File(path.to_owned()), options };
    let medium = crate::open(&spec, &OpenOptions { writable, request_alignment: 4096, allow_in_use: false })?;
    Blocking::attach(&*medium)
}

/// Reads a header and derives the key, with at most as many passphrases as `keys` has.
fn unlock(
    storage: &mut Blocking,
    place: Place,
    keys: &dyn Keys,
) -> Result<(Header, luks2::Unlocked), OpenError> {
    let header = luks2::read(storage, place).map_err(|error| read_error(error, place))?;
    let mut attempt = 0;
    while let Some(secret) = keys.secret(attempt)? {
        match header.unlock(storage, &secret, None, &limits()) {
            Ok(unlocked) => {
                if let Some(flaw) = flaw(header.facts().copies) {
                    keys.warn(flaw);
                }
                return Ok((header, unlocked));
            }
            Err(UnlockError::WrongPassphrase) => attempt += 1,
            Err(error) => return Err(unlock_error(error)),
        }
    }
    Err(match attempt {
        0 => OpenError::Passphrase("the volume is sealed, and no passphrase was given".to_owned()),
        _ => unlock_error(UnlockError::WrongPassphrase),
    })
}

/// What is wrong with a header that has these copies, and what repairs it.
pub fn flaw(copies: Copies) -> Option<&'static str> {
    match copies {
        Copies::Both | Copies::PrimaryOlder | Copies::SecondaryOlder => None,
        Copies::PrimaryOnly => Some(
            "the secondary copy of the volume's header is damaged: the next change of a key, such as `hikyaku volume passwd`, writes both",
        ),
        Copies::SecondaryOnly => Some(
            "the primary copy of the volume's header is damaged: the next change of a key, such as `hikyaku volume passwd`, writes both",
        ),
    }
}

/// The error of reading a header that lies at `place`.
pub fn read_error(error: ReadError<IoError>, place: Place) -> OpenError {
    match error {
        ReadError::Refused(Refusal::AuthReencryption) if place == Place::Detached => OpenError::Refused(
            "the volume is in re-encryption; `hikyaku volume reencrypt --header FILE` completes it"
                .to_owned(),
        ),
        ReadError::Refused(refusal @ (Refusal::NotLuks | Refusal::Damaged(_))) => {
            OpenError::NoHeader(refusal.to_string())
        }
        ReadError::Refused(refusal) => OpenError::Refused(refusal.to_string()),
        ReadError::Storage(error) => OpenError::Failed(format!("reading the volume's header: {error}")),
    }
}

pub fn unlock_error(error: UnlockError<IoError>) -> OpenError {
    match error {
        UnlockError::WrongPassphrase | UnlockError::NoSuchSlot(_) => OpenError::Passphrase(error.to_string()),
        UnlockError::Refused(refusal) => OpenError::Refused(refusal.to_string()),
        UnlockError::Derive(error) => OpenError::Failed(error.to_string()),
        UnlockError::Storage(error) => OpenError::Failed(format!("reading a keyslot: {error}")),
    }
}

/// Whether the storage takes requests of the volume's sectors at their places.
fn fits(storage: &Capability, offset_bytes: u64, sector_bytes: u32) -> Result<(), OpenError> {
    let unit = storage.granularity;
    if sector_bytes < unit || !offset_bytes.is_multiple_of(u64::from(unit)) {
        return Err(OpenError::Refused(format!(
            "the storage takes blocks of {unit} bytes, and the volume has sectors of {sector_bytes} bytes from byte {offset_bytes}"
        )));
    }
    if offset_bytes >= storage.size_bytes {
        return Err(OpenError::Refused(format!(
            "the volume's data begins at byte {offset_bytes}, and the storage has {} bytes",
            storage.size_bytes
        )));
    }
    Ok(())
}
