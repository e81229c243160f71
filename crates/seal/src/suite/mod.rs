//! The suites: one interface over the AEADs of aws-lc and libaegis. A key is expanded once, when its AEAD is created.

pub(crate) mod aegis_x;
mod aws_lc;
#[cfg(feature = "lab")]
mod triple_des;

use zeroize::Zeroizing;

use crate::{Broken, TAG_BYTES};

/// Algorithm that seals units and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-256-GCM (NIST SP 800-38D), the default.
    Aes256Gcm,
    Aegis256X4,
    Aegis128X2,
    /// ChaCha20-Poly1305 (RFC 8439).
    ChaCha20Poly1305,
    /// 3DES-EDE in CBC mode, then HMAC-SHA-256: the cipher of the papers of 2004. Not in [`Self::ALL`].
    #[cfg(feature = "lab")]
    TripleDes,
}

impl Suite {
    /// The suites of the protocol, in order of preference.
    pub const ALL: [Self; 4] = [Self::Aes256Gcm, Self::Aegis256X4, Self::Aegis128X2, Self::ChaCha20Poly1305];

    pub fn name(self) -> &'static str {
        match self {
            Self::Aes256Gcm => "AES-256-GCM",
            Self::Aegis256X4 => "AEGIS-256X4",
            Self::Aegis128X2 => "AEGIS-128X2",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
            #[cfg(feature = "lab")]
            Self::TripleDes => "3DES-EDE-CBC-HMAC-SHA256",
        }
    }

    /// The suite of a name in the protocol, compared exactly.
    pub fn from_name(name: &str) -> Option<Self> {
        #[cfg(feature = "lab")]
        let lab = [Self::TripleDes];
        #[cfg(not(feature = "lab"))]
        let lab = [];
        Self::ALL.into_iter().chain(lab).find(|suite| suite.name() == name)
    }

    pub(crate) fn key_bytes(self) -> usize {
        match self {
            Self::Aes256Gcm | Self::Aegis256X4 | Self::ChaCha20Poly1305 => 32,
            Self::Aegis128X2 => 16,
            #[cfg(feature = "lab")]
            Self::TripleDes => triple_des::KEY_BYTES,
        }
    }

    /// Bytes of a nonce, and of the iv from which it is derived.
    pub(crate) fn nonce_bytes(self) -> usize {
        match self {
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 12,
            Self::Aegis256X4 => 32,
            Self::Aegis128X2 => 16,
            #[cfg(feature = "lab")]
            Self::TripleDes => 8,
        }
    }
}

pub(crate) type Tag = [u8; TAG_BYTES];

/// Longest iv of all suites, bytes.
const NONCE_BYTES_MAX: usize = 32;

/// The operations of a suite. Slices of `seal_into` have equal length; a failed `open` leaves `data` undefined.
pub(crate) trait Aead: Send + Sync {
    fn seal(&self, nonce: &[u8], aad: &[u8], data: &mut [u8]) -> Tag;
    /// Encrypts from `plain` to `sealed` in one pass.
    fn seal_into(&self, nonce: &[u8], aad: &[u8], plain: &[u8], sealed: &mut [u8]) -> Tag;
    /// Verifies the tag in constant time and decrypts in place.
    fn open(&self, nonce: &[u8], aad: &[u8], data: &mut [u8], tag: &Tag) -> Result<(), Broken>;
}

/// Creates the AEAD of a suite; `key` has its key length.
pub(crate) fn aead(suite: Suite, key: &[u8]) -> Box<dyn Aead> {
    match suite {
        Suite::Aes256Gcm => Box::new(aws_lc::AwsLc::new(&aws_lc_rs::aead::AES_256_GCM, key)),
        Suite::ChaCha20Poly1305 => Box::new(aws_lc::AwsLc::new(&aws_lc_rs::aead::CHACHA20_POLY1305, key)),
        Suite::Aegis256X4 => Box::new(aegis_x::Aegis256X4::new(key)),
        Suite::Aegis128X2 => Box::new(aegis_x::Aegis128X2::new(key)),
        #[cfg(feature = "lab")]
        Suite::TripleDes => Box::new(triple_des::TripleDes::new(key)),
    }
}

/// A key with its iv: seals and opens by number. No number may be sealed twice: docs/SEAL.md section 4.
pub(crate) struct Keyed {
    aead: Box<dyn Aead>,
    iv: Zeroizing<[u8; NONCE_BYTES_MAX]>,
    nonce_bytes: usize,
}

impl Keyed {
    /// `key` and `iv` have the lengths of the suite.
    pub(crate) fn new(suite: Suite, key: &[u8], iv: &[u8]) -> Self {
        let nonce_bytes = suite.nonce_bytes();
        let mut kept = Zeroizing::new([0; NONCE_BYTES_MAX]);
        kept[..nonce_bytes].copy_from_slice(iv);
        Self { aead: aead(suite, key), iv: kept, nonce_bytes }
    }

    pub(crate) fn seal(&self, number: u64, aad: &[u8], data: &mut [u8]) -> Tag {
        self.aead.seal(&self.nonce(number)[..self.nonce_bytes], aad, data)
    }

    pub(crate) fn seal_into(&self, number: u64, aad: &[u8], plain: &[u8], sealed: &mut [u8]) -> Tag {
        assert_eq!(plain.len(), sealed.len(), "a unit and its place");
        self.aead.seal_into(&self.nonce(number)[..self.nonce_bytes], aad, plain, sealed)
    }

    /// Verifies and decrypts in place; zeroes `data` if the tag is wrong.
    pub(crate) fn open(&self, number: u64, aad: &[u8], data: &mut [u8], tag: &Tag) -> Result<(), Broken> {
        let opened = self.aead.open(&self.nonce(number)[..self.nonce_bytes], aad, data, tag);
        if opened.is_err() {
            data.fill(0);
        }
        opened
    }

    /// The iv with its last 8 bytes XORed with the number.
    fn nonce(&self, number: u64) -> [u8; NONCE_BYTES_MAX] {
        let mut nonce = *self.iv;
        let last = &mut nonce[self.nonce_bytes - 8..self.nonce_bytes];
        for (byte, number) in last.iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }
}
