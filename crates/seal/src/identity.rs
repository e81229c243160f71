//! Static X25519 keys and their text form: 44 characters of base64, as in WireGuard.

use std::fmt;

use base64ct::{Base64, Encoding};
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

const TEXT_CHARS: usize = 44;

/// Decodes 32 bytes from exactly 44 characters.
fn parse(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    if text.len() != TEXT_CHARS {
        return None;
    }
    let mut bytes = Zeroizing::new([0; 32]);
    let decoded = Base64::decode(text, bytes.as_mut_slice()).ok()?.len();
    (decoded == bytes.len()).then_some(bytes)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Parses 44 characters of base64, as WireGuard writes keys. `None` for other text, and for the few points whose
    /// every exchange yields zero (low order).
    pub fn parse(text: &str) -> Option<Self> {
        let key = Self(*parse(text)?);
        let shared = StaticSecret::from([1; 32]).diffie_hellman(&key.0.into());
        shared.was_contributory().then_some(key)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Base64::encode_string(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A static X25519 key pair. The private key is zeroed when dropped, and `Debug` does not print it.
#[derive(Clone)]
pub struct Identity {
    secret: StaticSecret,
    /// Stored, because to compute it costs as much as a DH and each handshake needs it.
    public: PublicKey,
}

impl Identity {
    /// The key pair of fresh entropy.
    pub fn generate(entropy: [u8; 32]) -> Self {
        let secret = StaticSecret::from(entropy);
        let public = PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes());
        Self { secret, public }
    }

    /// Parses the 44 characters of base64 of a private key; `None` for other text.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self::generate(*parse(text)?))
    }

    /// The private key as 44 characters of base64, for a file; zeroed when dropped.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(Base64::encode_string(self.secret.as_bytes()))
    }

    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn secret(&self) -> &StaticSecret {
        &self.secret
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public())
    }
}
