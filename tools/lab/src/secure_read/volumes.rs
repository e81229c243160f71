//! Rows with sealed volumes: the target stores ciphertext or shows plaintext as a LUKS2 volume; the initiator decrypts, by the
//! same layers of `block` that `volume=` and `view=` name on a command line.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::layer::volume::{Keys, of_header};
use block::{Blocking, Location, Medium, OpenError, OpenOptions, Spec, layer};
use serde::{Deserialize, Serialize};
use volume::auth::{self, BLOCK_BYTES, Layout};
use volume::luks2::{self, AuthCipher, Format, Hash, Pbkdf, Place, SegmentKind};
use zeroize::Zeroizing;

use super::shape::Reading;
use crate::{Attempted, LabError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Volume {
    /// The target's file holds a LUKS2 volume.
    Luks2,
    /// It holds a volume of authenticated blocks, by AES-256-GCM-SIV.
    Auth,
    AuthAegis,
    /// The target's file holds plaintext, which the target encrypts when it is read.
    View,
}

/// The passphrase of volumes whose contents are no secret.
const PASSPHRASE: &[u8] = b"lab";
/// Least that a header may have: a key derivation is not measured here.
const ITERATIONS: u32 = 1000;
const HEADER_AREA_BYTES: u64 = 1 << 20;
/// Units of the storage, and sectors where blocks are whole ones.
const UNIT_BYTES: u32 = 4096;
/// File beside the file of the LUN with the header of a view.
const HEADER: &str = "header.img";
const WRITABLE: OpenOptions =
    OpenOptions { writable: true, request_alignment: UNIT_BYTES, allow_in_use: false };

impl Volume {
    pub(super) const ALL: [Self; 4] = [Self::Luks2, Self::Auth, Self::AuthAegis, Self::View];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Luks2 => "stored-luks2",
            Self::Auth => "stored-auth",
            Self::AuthAegis => "stored-auth, AEGIS-256X4",
            Self::View => "view",
        }
    }

    pub(super) fn obtained(self) -> &'static str {
        match self {
            Self::Luks2 => {
                "measured: a plain session to a file that holds a LUKS2 volume (AES-256-XTS); the initiator's volume=luks2 decrypts"
            }
            Self::Auth => {
                "measured: a plain session to a file that holds an authenticated volume (AES-256-GCM-SIV); the initiator's volume=auth verifies and decrypts"
            }
            Self::AuthAegis => {
                "measured: a plain session to a file that holds an authenticated volume (AEGIS-256X4); the initiator's volume=auth verifies and decrypts"
            }
            Self::View => {
                "measured: a plain session to a file in plaintext; the target's view=luks2 encrypts what is read, and the initiator's volume=luks2 decrypts"
            }
        }
    }

    /// The option with which the initiator opens what it reads.
    fn kind(self) -> &'static str {
        match self {
            Self::Luks2 | Self::View => "luks2",
            Self::Auth | Self::AuthAegis => "auth",
        }
    }

    fn segment(self, reading: &Reading) -> SegmentKind {
        let auth = |cipher| SegmentKind::Auth { cipher, unit_bytes: UNIT_BYTES };
        match self {
            Self::Auth => auth(AuthCipher::Aes256GcmSiv),
            Self::AuthAegis => auth(AuthCipher::Aegis256X4),
            Self::Luks2 | Self::View => {
                let is_whole = reading.block.is_multiple_of(UNIT_BYTES);
                SegmentKind::Crypt { sector_bytes: if is_whole { UNIT_BYTES } else { 512 } }
            }
        }
    }

    /// Makes the file at `path` with `contents`, in the volume or in plaintext, and returns the medium that a target serves.
    pub(super) fn store(
        self,
        reading: &Reading,
        path: &Path,
        contents: &[u8],
    ) -> Result<Arc<dyn Medium>, LabError> {
        let doing = format!("make the volume {}", path.display());
        let segment = self.segment(reading);
        if self == Self::View {
            let header = path.with_file_name(HEADER);
            make(&header, segment, 0).attempted(&doing)?;
            std::fs::write(path, contents).attempted(&doing)?;
            let options = [("view", self.kind()), ("header", &header.to_string_lossy())];
            return open(path, &options, false).attempted(&doing);
        }
        make(path, segment, contents.len() as u64).attempted(&doing)?;
        let medium = open(path, &[("volume", self.kind())], true).attempted(&doing)?;
        let mut plain = Blocking::attach(&*medium).attempted(&doing)?;
        plain.write(0, contents).attempted(&doing)?;
        plain.flush().attempted(&doing)?;
        drop((plain, medium));
        open(path, &[], false).attempted(&doing)
    }

    /// The plaintext of the LUN that `medium` reads.
    pub(super) fn open(self, medium: Arc<dyn Medium>) -> Result<Arc<dyn Medium>, OpenError> {
        let spec = spec(Location::Url("the LUN".to_owned()), &[("volume", self.kind())]);
        layer::wrap(&spec, medium, &Passphrase)
    }
}

struct Passphrase;

impl Keys for Passphrase {
    fn secret(&self, attempt: u32) -> Result<Option<Zeroizing<Vec<u8>>>, OpenError> {
        Ok((attempt == 0).then(|| Zeroizing::new(PASSPHRASE.to_vec())))
    }
}

fn spec(location: Location, options: &[(&str, &str)]) -> Spec {
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())));
    Spec { location, options: options.collect() }
}

fn open(path: &Path, options: &[(&str, &str)], writable: bool) -> Result<Arc<dyn Medium>, OpenError> {
    let options = spec(Location::File(PathBuf::from(path)), options);
    block::open_with(&options, &OpenOptions { writable, ..WRITABLE }, &Passphrase)
}

/// A file with a volume that has room for so many bytes of data.
fn make(path: &Path, segment: SegmentKind, data_bytes: u64) -> Result<(), String> {
    let text = |error: &dyn ToString| error.to_string();
    let layout = match segment {
        SegmentKind::Crypt { .. } => None,
        SegmentKind::Auth { cipher, unit_bytes } => {
            let (cipher, unit) = of_header(cipher, unit_bytes).map_err(|error| text(&error))?;
            let blocks = data_bytes.div_ceil(BLOCK_BYTES as u64);
            Some(Layout::new(cipher, unit, HEADER_AREA_BYTES, blocks).map_err(|error| text(&error))?)
        }
    };
    let end = layout.map_or(HEADER_AREA_BYTES + data_bytes, |layout| layout.end());
    let file = File::create(path).map_err(|error| text(&error))?;
    file.set_len(end).map_err(|error| text(&error))?;
    let medium = open(path, &[], true).map_err(|error| text(&error))?;
    let mut storage = Blocking::attach(&*medium).map_err(|error| text(&error))?;
    let new = Format::new(Place::Attached, segment);
    let format = Format {
        keyslots_bytes: HEADER_AREA_BYTES - 2 * new.header_bytes,
        data_offset_bytes: HEADER_AREA_BYTES,
        digest_iterations: ITERATIONS,
        ..new
    };
    let pbkdf = Pbkdf::Pbkdf2 { hash: Hash::Sha256, iterations: ITERATIONS };
    let mut random = |bytes: &mut [u8]| getrandom::fill(bytes).expect("the kernel's random numbers");
    let made = luks2::format(&mut storage, &format, PASSPHRASE, &pbkdf, &mut random);
    let (header, key) = made.map_err(|error| text(&error))?;
    if let Some(layout) = layout {
        let uuid = header.facts().uuid;
        let keys = auth::Keys::new(key.bytes(), &uuid, layout.cipher, layout.unit, HEADER_AREA_BYTES);
        for (offset, bytes) in auth::format(&layout, &keys, layout.capacity) {
            storage.write(offset, &bytes).map_err(|error| text(&error))?;
        }
    }
    storage.flush().map_err(|error| text(&error))
}
