//! Static X25519 keys and how they are written: 44 characters of base64, as WireGuard does.

use std::fmt;

use base64ct::{Base64, Encoding};
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

/// Characters of a key's text.
const TEXT_CHARS: usize = 44;

/// 32 bytes from 44 characters, exactly.
fn parse(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    if text.len() != TEXT_CHARS {
        return None;
    }
    let mut bytes = Zeroizing::new([0; 32]);
    let decoded = Base64::decode(text, bytes.as_mut_slice()).ok()?.len();
    (decoded == bytes.len()).then_some(bytes)
}

/// A static X25519 public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// From 44 characters of base64, as WireGuard writes keys. `None` for anything else, and for the few points that
    /// make every exchange come out as zero.
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

/// A static X25519 key pair. The private half is wiped when dropped, and never shown.
#[derive(Clone)]
pub struct Identity {
    secret: StaticSecret,
    /// Kept: each handshake names it, and to compute it costs as much as a DH.
    public: PublicKey,
}

impl Identity {
    /// A new one from fresh entropy.
    pub fn generate(entropy: [u8; 32]) -> Self {
        let secret = StaticSecret::from(entropy);
        let public = PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes());
        Self { secret, public }
    }

    /// From the 44 characters of base64 of its private half; `None` if it is not that.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self::generate(*parse(text)?))
    }

    /// The 44 characters of base64 to keep in a file; wiped when dropped.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(Base64::encode_string(self.secret.as_bytes()))
    }

    /// The public half.
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
