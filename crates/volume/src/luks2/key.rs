//! A volume key.

use std::fmt::{self, Debug, Formatter};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::Random;

/// The key of a volume's data, 32 or 64 bytes, zeroed when dropped.
#[derive(Clone)]
pub struct VolumeKey(Zeroizing<Vec<u8>>);

impl VolumeKey {
    /// A new key of this length.
    pub fn random(bytes: usize, random: Random<'_>) -> Self {
        let mut key = Self::zeroed(bytes);
        random(key.bytes_mut());
        key
    }

    pub(super) fn zeroed(bytes: usize) -> Self {
        Self(Zeroizing::new(vec![0; bytes]))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Tells this key from others, and says nothing else of it: 8 bytes of SHA-256 in hexadecimal digits.
    pub fn name(&self) -> String {
        let digest = Sha256::new_with_prefix(b"hikyaku volume key").chain_update(&*self.0).finalize();
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl PartialEq for VolumeKey {
    /// In a time that does not depend on the bytes.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for VolumeKey {}

impl Debug for VolumeKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeKey({} bytes)", self.0.len())
    }
}
