//! Why a header is not used, and why an operation failed.

use super::kdf::{CostError, DeriveError};

/// Why the header of a volume is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no LUKS header")]
    NotLuks,
    #[error("a LUKS1 header; `cryptsetup convert --type luks2` makes it LUKS2")]
    Luks1,
    #[error("LUKS version {0}, not 2")]
    Version(u16),
    /// Neither copy is valid: what is wrong with the primary one.
    #[error("both copies of the header are damaged; the primary one has {0}")]
    Damaged(&'static str),
    #[error("the header's JSON is malformed: {0}")]
    Malformed(String),
    #[error("the storage ends within the header's keyslots")]
    Truncated,
    #[error("the volume is in re-encryption; `cryptsetup reencrypt` completes it")]
    Reencryption,
    #[error("the volume is in re-encryption; `hikyaku volume reencrypt` completes it")]
    AuthReencryption,
    #[error("the header demands {0}, which this version lacks")]
    Requirement(String),
    #[error("a segment of type {0}")]
    SegmentType(String),
    #[error("{0} segments, not one")]
    SegmentCount(usize),
    #[error("{of} with cipher {name}; only aes-xts-plain64 with 256 or 512 bits of key is accepted")]
    Cipher { of: String, name: String },
    #[error("an integrity profile in the segment")]
    Integrity,
    #[error("a segment whose tweaks do not begin at 0")]
    IvTweak,
    #[error("keyslot {slot} of type {name}")]
    SlotType { slot: u8, name: String },
    #[error("a key derivation of type {0}")]
    Kdf(String),
    #[error("a hash of type {0}")]
    Hash(String),
    #[error("a digest of type {0}")]
    DigestType(String),
    #[error("a version or cipher of authenticated volumes that is not known: {0}")]
    Auth(String),
    /// A header before its data whose segment begins at 0.
    #[error("the data would overwrite its header: the segment begins at offset 0")]
    DataInHeader,
    #[error("keyslot {slot}: {cost}")]
    Cost { slot: u8, cost: CostError },
    #[error("no usable keyslot for the volume's key is left")]
    NoKeyslot,
}

/// Why a header could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError<E> {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the header cannot be read")]
    Storage(#[source] E),
}

/// Why a volume's key was not found.
#[derive(Debug, thiserror::Error)]
pub enum UnlockError<E> {
    #[error("no keyslot opens with this passphrase")]
    WrongPassphrase,
    #[error("keyslot {0} does not exist")]
    NoSuchSlot(u8),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Derive(#[from] DeriveError),
    #[error("a keyslot cannot be read")]
    Storage(#[source] E),
}

/// Why a header was not written, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError<E> {
    #[error("all {} keyslots are in use", super::SLOTS_MAX)]
    NoFreeSlot,
    #[error("the keyslot area has no room for another keyslot")]
    NoRoom,
    #[error("the JSON area has no room for the change")]
    NoRoomInJson,
    #[error("keyslot {0} does not exist")]
    NoSuchSlot(u8),
    #[error("keyslot {0} is the last one: without it the volume cannot be opened again")]
    LastSlot(u8),
    #[error("the key is not this volume's")]
    WrongKey,
    /// The header is not the one that was read: another writer changed it. Nothing was written.
    #[error("the header was changed by another program")]
    Changed,
    #[error(transparent)]
    Cost(#[from] CostError),
    #[error(transparent)]
    Derive(#[from] DeriveError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the header cannot be read or written")]
    Storage(#[source] E),
}

impl<E> From<ReadError<E>> for ChangeError<E> {
    fn from(error: ReadError<E>) -> Self {
        match error {
            ReadError::Refused(refusal) => Self::Refused(refusal),
            ReadError::Storage(error) => Self::Storage(error),
        }
    }
}

/// Text of a header for a message: escaped, and shortened.
pub(super) fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 48;
    let start: String = text.chars().take(CHARS_MAX).collect();
    format!("{start:?}{}", if start.len() < text.len() { "..." } else { "" })
}
