//! LUKS2 headers (LUKS2 on-disk format 1.1; what cryptsetup 2 checks beyond it): found, checked, unlocked, written and
//! changed. Read docs/VOLUME.md §1 first.
//!
//! A header is two copies of a binary header with JSON, then the area of keyslots: the volume's key, encrypted once for
//! each passphrase. All of it is the provider's, so [`read`] refuses whatever it does not know to be safe, before any
//! key is derived. Every change is made in an order in which a power cut after any write leaves a header that opens.
//!
//! [`read`] returns a [`Header`]; [`Header::unlock`] returns the [`VolumeKey`]; [`Header::add_key`],
//! [`Header::change_key`] and [`Header::remove_key`] change the storage and then the value. After an error of a change
//! the header in memory may differ from the one on the storage: it is read again. [`format()`] makes a volume,
//! [`Header::backup`] and [`Backup`] keep and restore its header.

mod af;
mod backup;
mod binary;
mod change;
mod copies;
mod error;
mod facts;
mod format;
mod hash;
mod header;
mod kdf;
mod key;
mod metadata;
mod object;
mod reencrypt;
mod unlock;

pub use backup::{Backup, RestoreError};
pub use error::{ChangeError, ReadError, Refusal, UnlockError};
pub use facts::{Facts, SlotFacts, TokenFacts};
pub use format::{Format, FormatError, HEADER_AREA_BYTES, format};
pub use hash::Hash;
pub use header::{Copies, Header, Place, read, read_in_reencryption};
pub use kdf::{
    Argon2Costs, CostError, DeriveError, KDF_LANES_MAX, KDF_MEMORY_BYTES_MAX, KDF_WRITTEN_BYTES_MAX,
    PBKDF2_ITERATIONS_MAX, Pbkdf, SALT_BYTES,
};
pub use key::VolumeKey;
pub use metadata::{AuthCipher, Priority, Segment, SegmentKind};
pub use unlock::{Limits, Unlocked};

/// Keyslots of a header are numbered from 0 to this number less 1.
pub const SLOTS_MAX: u8 = 32;
/// The requirement that keeps other programs from opening or changing a volume of type `auth`.
pub const AUTH_REQUIREMENT: &str = "hikyaku-auth-v1";
/// The requirement of such a volume in re-encryption, beside the other one.
pub const REENCRYPTION_REQUIREMENT: &str = "hikyaku-auth-reencrypt";
/// The type of the segment of such a volume.
pub const AUTH_SEGMENT: &str = "hikyaku-auth";

/// Fills a slice with bytes of a cryptographically secure source.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);
