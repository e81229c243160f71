//! The hashes that a header may name: for checksums, PBKDF2, the anti-forensic splitter and digests of volume keys.

use blake2::{Blake2b512, Blake2s256};
use hmac::{Hmac, SimpleHmac};
use ripemd::Ripemd160;
use sha1::Sha1;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use sha3::{Sha3_224, Sha3_256, Sha3_384, Sha3_512};
use whirlpool::Whirlpool;

macro_rules! hashes {
    ($($variant:ident $name:literal $hmac:ident)*) => {
        /// A hash by its name in the kernel's crypto API, as cryptsetup writes it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Hash { $($variant),* }

        impl Hash {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Bytes of a digest.
            pub fn bytes(self) -> usize {
                match self { $(Self::$variant => <$variant as Digest>::output_size()),* }
            }

            /// The first `into.len()` bytes of the digest of `parts`, which is not shorter.
            pub(super) fn digest(self, parts: &[&[u8]], into: &mut [u8]) {
                match self {
                    $(Self::$variant => {
                        let mut hash = $variant::new();
                        parts.iter().for_each(|part| hash.update(part));
                        into.copy_from_slice(&hash.finalize()[..into.len()]);
                    })*
                }
            }

            /// PBKDF2 (RFC 8018 §5.2) with HMAC of this hash.
            pub(super) fn pbkdf2(self, password: &[u8], salt: &[u8], iterations: u32, into: &mut [u8]) {
                match self {
                    $(Self::$variant => {
                        pbkdf2::pbkdf2::<$hmac<$variant>>(password, salt, iterations, into)
                            .expect("HMAC takes keys of any length");
                    })*
                }
            }
        }
    };
}

hashes! {
    Sha1 "sha1" Hmac
    Sha224 "sha224" Hmac
    Sha256 "sha256" Hmac
    Sha384 "sha384" Hmac
    Sha512 "sha512" Hmac
    Sha3_224 "sha3-224" SimpleHmac
    Sha3_256 "sha3-256" SimpleHmac
    Sha3_384 "sha3-384" SimpleHmac
    Sha3_512 "sha3-512" SimpleHmac
    Ripemd160 "ripemd160" Hmac
    Whirlpool "whirlpool" Hmac
    Blake2b512 "blake2b-512" SimpleHmac
    Blake2s256 "blake2s-256" SimpleHmac
}

/// Bytes of the longest digest.
pub(super) const DIGEST_BYTES_MAX: usize = 64;

impl Hash {
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|hash| hash.name() == name)
    }
}
