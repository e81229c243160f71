//! A volume key.

use std::fmt::{self, Debug, Formatter};

use zeroize::Zeroizing;

/// The key of a volume's data, 32 or 64 bytes, zeroed when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumeKey(Zeroizing<Vec<u8>>);

impl VolumeKey {
    pub(super) fn zeroed(bytes: usize) -> Self {
        Self(Zeroizing::new(vec![0; bytes]))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Debug for VolumeKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeKey({} bytes)", self.0.len())
    }
}
