//! AEGIS-256X4 and AEGIS-128X2 by libaegis, which selects the instructions at run time. AEGIS has no key schedule: each
//! message initialises the state from key and nonce in 16 to 20 rounds.

use zeroize::Zeroizing;

use super::{Aead, Tag};
use crate::{Broken, TAG_BYTES};

macro_rules! aegis {
    ($name:ident, $module:ident, $key:literal, $nonce:literal) => {
        pub(crate) struct $name(Zeroizing<[u8; $key]>);

        impl $name {
            /// `key` has the key length of the algorithm.
            pub(crate) fn new(key: &[u8]) -> Self {
                let mut kept = Zeroizing::new([0; $key]);
                kept.copy_from_slice(key);
                Self(kept)
            }

            fn start(&self, nonce: &[u8]) -> aegis::$module::$name<TAG_BYTES> {
                let nonce: &[u8; $nonce] = nonce.try_into().expect("a nonce of the right length");
                aegis::$module::$name::new(&self.0, nonce)
            }
        }

        impl Aead for $name {
            fn seal(&self, nonce: &[u8], aad: &[u8], data: &mut [u8]) -> Tag {
                self.start(nonce).encrypt_in_place(data, aad)
            }

            fn seal_into(&self, nonce: &[u8], aad: &[u8], plain: &[u8], sealed: &mut [u8]) -> Tag {
                let mut encryptor = self.start(nonce).encryptor(aad);
                encryptor.update(plain, sealed);
                encryptor.finalize()
            }

            fn open(&self, nonce: &[u8], aad: &[u8], data: &mut [u8], tag: &Tag) -> Result<(), Broken> {
                self.start(nonce).decrypt_in_place(data, tag, aad).map_err(|_| Broken)
            }
        }
    };
}

aegis!(Aegis256X4, aegis256x4, 32, 32);
aegis!(Aegis128X2, aegis128x2, 16, 16);
