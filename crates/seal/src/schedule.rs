//! Key schedule: from the handshake to the keys of every generation (docs/SEAL.md section 4).

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::successor::Binding;
use crate::suite::{Keyed, Suite};

/// A secret of 32 bytes, zeroed when dropped; never printed.
pub(crate) type Secret32 = Zeroizing<[u8; 32]>;

pub(crate) fn extract(salt: &[u8; 32], parts: &[&[u8]]) -> Secret32 {
    let mut extract = hkdf::HkdfExtract::<Sha256>::new(Some(salt));
    for part in parts {
        extract.input_ikm(part);
    }
    let (mut prk, _) = extract.finalize();
    let secret = Zeroizing::new(prk.into());
    zeroize::Zeroize::zeroize(prk.as_mut_slice());
    secret
}

/// HKDF-Expand over SHA-256; the label is `parts` joined.
pub(crate) fn expand(secret: &Secret32, parts: &[&[u8]], out: &mut [u8]) {
    let hkdf = Hkdf::<Sha256>::from_prk(secret.as_slice()).expect("a secret of 32 bytes");
    hkdf.expand_multi_info(parts, out).expect("no more than 96 bytes");
}

pub(crate) fn expand32(secret: &Secret32, label: &[u8]) -> Secret32 {
    let mut out = Zeroizing::new([0; 32]);
    expand(secret, &[label], out.as_mut_slice());
    out
}

#[derive(Clone, Copy)]
pub(crate) enum Use {
    Head,
    Data,
}

/// The input of an exchange to the secrets of both directions.
pub(crate) struct Fresh {
    pub(crate) dh: Secret32,
    pub(crate) shared: Secret32,
    /// SHA-256 of offer and answer.
    pub(crate) hash: [u8; 32],
}

/// S[d, g]: the secret of one direction in one generation.
pub(crate) struct Ratchet {
    suite: Suite,
    secret: Secret32,
}

impl Ratchet {
    /// S[i, 0], S[t, 0] and the binding of announcements, from the handshake hash and the two keys of Split().
    pub(crate) fn both(suite: Suite, hash: &[u8; 32], keys: &(Secret32, Secret32)) -> (Self, Self, Binding) {
        let secret = extract(hash, &[keys.0.as_slice(), keys.1.as_slice()]);
        let of = |label: &[u8]| Self { suite, secret: expand32(&secret, label) };
        let binding = Binding::new(expand32(&secret, b"hikyaku seal1 next key"));
        (of(b"hikyaku seal1 initiator"), of(b"hikyaku seal1 target"), binding)
    }

    /// S[d, g + 1], after an exchange.
    pub(crate) fn next(&self, fresh: &Fresh) -> Self {
        let chain: &[u8; 32] = &expand32(&self.secret, b"hikyaku seal1 next");
        let Fresh { dh, shared, hash } = fresh;
        Self { suite: self.suite, secret: extract(chain, &[dh.as_slice(), shared.as_slice(), hash]) }
    }

    #[cfg(test)]
    pub(crate) fn from_secret(suite: Suite, secret: Secret32) -> Self {
        Self { suite, secret }
    }

    #[cfg(test)]
    pub(crate) fn secret(&self) -> &Secret32 {
        &self.secret
    }

    /// Key and iv of this generation for one use.
    pub(crate) fn keyed(&self, for_use: Use) -> Keyed {
        let (key, iv) = self.key_and_iv(for_use);
        Keyed::new(self.suite, &key, &iv)
    }

    /// Key and iv as bytes, in the lengths of the suite.
    pub(crate) fn key_and_iv(&self, for_use: Use) -> (Zeroizing<Vec<u8>>, Zeroizing<Vec<u8>>) {
        let mut key = Zeroizing::new(vec![0; self.suite.key_bytes()]);
        let mut iv = Zeroizing::new(vec![0; self.suite.nonce_bytes()]);
        self.expand_for(for_use, b" key", &mut key);
        self.expand_for(for_use, b" iv", &mut iv);
        (key, iv)
    }

    fn expand_for(&self, for_use: Use, what: &[u8], out: &mut [u8]) {
        let for_use: &[u8] = match for_use {
            Use::Head => b"head",
            Use::Data => b"data",
        };
        expand(&self.secret, &[b"hikyaku seal1 ", self.suite.name().as_bytes(), b" ", for_use, what], out);
    }
}
