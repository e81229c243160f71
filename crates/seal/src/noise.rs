//! The symmetric half of Noise (revision 34, section 5) with X25519, ChaChaPoly and SHA-256.
//!
//! It is implemented here instead of by a library for two requirements of the patterns in `handshake.rs`: all
//! randomness is an argument, and every secret is zeroed when dropped. The tests run both patterns against `snow`.

use sha2::{Digest, Sha256};
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

use crate::schedule::{Secret32, expand, extract};
use crate::suite::{Suite, Tag, aead};
use crate::{Broken, PublicKey, TAG_BYTES};

/// DH(). An all-zero result is accepted: Noise leaves the check to the implementation (section 12.1).
pub(crate) fn dh(secret: &StaticSecret, public: &PublicKey) -> Secret32 {
    Zeroizing::new(secret.diffie_hellman(&public.0.into()).to_bytes())
}

/// SymmetricState with its CipherState.
pub(crate) struct Symmetric {
    hash: [u8; 32],
    chaining_key: Secret32,
    /// Zeroes without a key: an `Option` would leave old stack contents in its padding.
    key: Secret32,
    has_key: bool,
    nonce: u64,
}

impl Symmetric {
    /// InitializeSymmetric and MixHash(prologue).
    pub(crate) fn new(protocol: &str, prologue: &[u8]) -> Self {
        let hash = if protocol.len() <= 32 {
            let mut hash = [0; 32];
            hash[..protocol.len()].copy_from_slice(protocol.as_bytes());
            hash
        } else {
            Sha256::digest(protocol).into()
        };
        let mut state = Self {
            hash,
            chaining_key: Zeroizing::new(hash),
            key: Zeroizing::default(),
            has_key: false,
            nonce: 0,
        };
        state.mix_hash(prologue);
        state
    }

    pub(crate) fn mix_hash(&mut self, data: &[u8]) {
        self.hash = Sha256::new().chain_update(self.hash).chain_update(data).finalize().into();
    }

    pub(crate) fn mix_key(&mut self, material: &Secret32) {
        let [chaining_key, key] = self.derive(material.as_slice());
        self.chaining_key = chaining_key;
        self.set_key(key);
    }

    pub(crate) fn mix_key_and_hash(&mut self, material: &Secret32) {
        let [chaining_key, hash, key] = self.derive(material.as_slice());
        self.chaining_key = chaining_key;
        self.mix_hash(hash.as_slice());
        self.set_key(key);
    }

    /// Appends the ciphertext of `plain` (before the first key, `plain` itself) to `out`.
    pub(crate) fn encrypt_and_hash(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(plain);
        if self.has_key {
            let tag = aead(Suite::ChaCha20Poly1305, self.key.as_slice()).seal(
                &nonce(self.nonce),
                &self.hash,
                &mut out[start..],
            );
            out.extend_from_slice(&tag);
            self.nonce += 1;
        }
        self.mix_hash(&out[start..]);
    }

    /// The plaintext of `sealed`, which with a key is longer by a tag.
    pub(crate) fn decrypt_and_hash(&mut self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Broken> {
        let mut plain = Zeroizing::new(sealed.to_vec());
        if self.has_key {
            let text_bytes = sealed.len().checked_sub(TAG_BYTES).ok_or(Broken)?;
            let tag: Tag = sealed[text_bytes..].try_into().map_err(|_| Broken)?;
            plain.truncate(text_bytes);
            let cipher = aead(Suite::ChaCha20Poly1305, self.key.as_slice());
            cipher.open(&nonce(self.nonce), &self.hash, &mut plain, &tag)?;
            self.nonce += 1;
        }
        self.mix_hash(sealed);
        Ok(plain)
    }

    pub(crate) fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Split(): the keys of the initiator and of the responder.
    pub(crate) fn split(&self) -> (Secret32, Secret32) {
        let [first, second] = self.derive(&[]);
        (first, second)
    }

    fn set_key(&mut self, key: Secret32) {
        (self.key, self.has_key) = (key, true);
        self.nonce = 0;
    }

    /// HKDF of Noise: that of RFC 5869 with an empty info and N outputs joined.
    fn derive<const N: usize>(&self, material: &[u8]) -> [Secret32; N] {
        let mut joined = Zeroizing::new([0; 96]);
        expand(&extract(&self.chaining_key, &[material]), &[], &mut joined[..32 * N]);
        let mut outputs = joined.chunks_exact(32);
        std::array::from_fn(|_| {
            let mut output = Zeroizing::new([0; 32]);
            output.copy_from_slice(outputs.next().expect("three at most"));
            output
        })
    }
}

/// Nonce of ChaChaPoly: 32 zero bits, then the number, little-endian (section 12.3).
fn nonce(number: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    nonce
}
