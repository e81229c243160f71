//! CHAP (RFC 7143 §12.1.3, RFC 1994): responses, secrets and the choice of a hash.
//!
//! CHAP proves knowledge of a secret and does not protect the data that follows. A recorded exchange allows offline
//! guessing of the secret; therefore secrets have a minimum length.

use md5::Md5;
use sha1::Sha1;
use sha2::Sha256;
use sha3::{Digest as _, Sha3_256};
use zeroize::Zeroizing;

/// Shortest secret that [`Secret::new`] accepts, bytes: 96 bits (§12.1.3).
pub const SECRET_LENGTH_MIN: usize = 12;
pub const SECRET_LENGTH_MAX: usize = 255;
/// Longest challenge or response accepted from a peer, bytes (§12.1.3: large binary value of at most 1024).
pub const CHALLENGE_LENGTH_MAX: usize = 1024;
pub const USER_LENGTH_MAX: usize = 255;

/// Hash of a CHAP exchange (§12.1.3 and IANA's PPP authentication algorithms).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// MD5; the only one that RFC 7143 requires, and the weakest.
    Md5 = 5,
    Sha1 = 6,
    /// SHA-256. tgt uses this number for SHA-1.
    Sha256 = 7,
    Sha3_256 = 8,
}

impl Algorithm {
    /// Every algorithm, strongest first.
    pub const ALL: [Self; 4] = [Self::Sha3_256, Self::Sha256, Self::Sha1, Self::Md5];

    #[must_use]
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|&algorithm| u64::from(algorithm as u8) == code)
    }

    /// Length of the response, bytes. [`Challenge`] has the same length, as the challenges of the Linux target.
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3_256 => 32,
        }
    }

    /// The response to a challenge: hash of identifier, secret and challenge.
    #[must_use]
    pub fn respond(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        fn hash<D: sha3::Digest>(parts: [&[u8]; 3]) -> Vec<u8> {
            let mut hash = D::new();
            for part in parts {
                hash.update(part);
            }
            hash.finalize().to_vec()
        }
        let parts = [&[identifier][..], secret.bytes(), challenge];
        match self {
            Self::Md5 => hash::<Md5>(parts),
            Self::Sha1 => hash::<Sha1>(parts),
            Self::Sha256 => hash::<Sha256>(parts),
            Self::Sha3_256 => hash::<Sha3_256>(parts),
        }
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Md5 => "MD5",
            Self::Sha1 => "SHA-1",
            Self::Sha256 => "SHA-256",
            Self::Sha3_256 => "SHA3-256",
        })
    }
}

/// Why a list of algorithms is invalid. The fault is the configuration's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AlgorithmsError {
    #[error("no CHAP algorithm")]
    Empty,
    /// Only MD5 is in the list, and `allow_md5_only` is false.
    #[error("MD5 as the only CHAP algorithm must be allowed explicitly")]
    Md5Only,
}

/// The algorithms one side accepts, in its order of preference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Algorithms(Vec<Algorithm>);

impl Default for Algorithms {
    fn default() -> Self {
        Self(Algorithm::ALL.to_vec())
    }
}

impl Algorithms {
    /// Takes a list in order of preference; repetitions are dropped.
    pub fn new(list: &[Algorithm], allow_md5_only: bool) -> Result<Self, AlgorithmsError> {
        let mut unique: Vec<Algorithm> = Vec::new();
        for &algorithm in list {
            if !unique.contains(&algorithm) {
                unique.push(algorithm);
            }
        }
        match unique[..] {
            [] => Err(AlgorithmsError::Empty),
            [Algorithm::Md5] if !allow_md5_only => Err(AlgorithmsError::Md5Only),
            _ => Ok(Self(unique)),
        }
    }

    /// The list without `algorithm`: for a second login to a peer that uses its number for another hash.
    pub fn without(&self, algorithm: Algorithm, allow_md5_only: bool) -> Result<Self, AlgorithmsError> {
        let rest: Vec<_> = self.0.iter().copied().filter(|&other| other != algorithm).collect();
        Self::new(&rest, allow_md5_only)
    }

    #[must_use]
    pub fn as_slice(&self) -> &[Algorithm] {
        &self.0
    }

    #[must_use]
    pub fn contains(&self, algorithm: Algorithm) -> bool {
        self.0.contains(&algorithm)
    }

    #[must_use]
    pub fn offer(&self) -> String {
        let codes: Vec<_> = self.0.iter().map(|&algorithm| (algorithm as u8).to_string()).collect();
        codes.join(",")
    }

    /// The algorithm to use among those that a peer offers in CHAP_A: the first in this list. RFC 7143 would take the
    /// first of the peer's list, which often is in historical order, MD5 first.
    #[must_use]
    pub fn choose(&self, offered: &str) -> Option<Algorithm> {
        let offered: Vec<_> =
            crate::text::parse_list(offered).filter_map(crate::text::parse_number).collect();
        self.0.iter().copied().find(|&algorithm| offered.contains(&u64::from(algorithm as u8)))
    }
}

/// Why bytes are not an acceptable secret. The fault is the configuration's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Shorter than [`SECRET_LENGTH_MIN`]. [`Secret::new_weak`] accepts it; the caller should warn.
    #[error("CHAP secret shorter than {SECRET_LENGTH_MIN} bytes")]
    Short,
    #[error("CHAP secret is empty")]
    Empty,
    #[error("CHAP secret longer than {SECRET_LENGTH_MAX} bytes")]
    Long,
}

/// A CHAP secret. Its memory is zeroed when dropped; `Debug` does not print it, and it has no `==`.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// A secret of 12 to 255 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        if (1..SECRET_LENGTH_MIN).contains(&bytes.len()) {
            return Err(SecretError::Short);
        }
        Self::new_weak(bytes)
    }

    /// A secret of 1 to 255 bytes, for a peer whose secret cannot be changed.
    pub fn new_weak(bytes: &[u8]) -> Result<Self, SecretError> {
        match bytes.len() {
            0 => Err(SecretError::Empty),
            1..=SECRET_LENGTH_MAX => Ok(Self(Zeroizing::new(bytes.to_vec()))),
            _ => Err(SecretError::Long),
        }
    }

    /// Whether both are equal, in time that depends only on their lengths.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        equal(&self.0, &other.0)
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Compares in time that depends only on the lengths.
#[must_use]
pub fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let difference = a.iter().zip(b).fold(0, |acc, (a, b)| std::hint::black_box(acc | (a ^ b)));
    std::hint::black_box(difference) == 0
}

/// A challenge of this side: identifier and bytes, derived from the entropy of one login and never reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    pub identifier: u8,
    pub bytes: Vec<u8>,
}

/// Entropy of one login, from its caller: fresh from the system's generator for every login.
pub type Entropy = [u8; 32];

impl Challenge {
    /// Derives the challenge. `role` separates the roles, so that one entropy used by two logins yields two challenges.
    #[must_use]
    pub fn derive(algorithm: Algorithm, entropy: &Entropy, role: &str) -> Self {
        let expand = |what: &str| {
            let mut hash = Sha3_256::new();
            hash.update(b"hikyaku iSCSI CHAP challenge\0");
            hash.update(role.as_bytes());
            hash.update([0, algorithm as u8]);
            hash.update(what.as_bytes());
            hash.update(entropy);
            hash.finalize()
        };
        let mut bytes = expand("challenge").to_vec();
        bytes.truncate(algorithm.length());
        Self { identifier: expand("identifier")[0], bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::binary;

    fn secret(bytes: &[u8]) -> Secret {
        Secret::new_weak(bytes).unwrap()
    }

    #[test]
    fn responses_are_the_hash_of_identifier_secret_challenge() {
        // Identifier 'a', secret "b", challenge "c": the published vectors for "abc".
        for (algorithm, expected) in [
            (Algorithm::Md5, "0x900150983cd24fb0d6963f7d28e17f72"),
            (Algorithm::Sha1, "0xa9993e364706816aba3e25717850c26c9cd0d89d"),
            (Algorithm::Sha256, "0xba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (Algorithm::Sha3_256, "0x3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"),
        ] {
            let response = algorithm.respond(b'a', &secret(b"b"), b"c");
            assert_eq!(binary(&response), expected);
            assert_eq!(response.len(), algorithm.length());
            assert_eq!(Algorithm::from_code(u64::from(algorithm as u8)), Some(algorithm));
        }
    }

    #[test]
    fn strongest_offered_is_chosen() {
        let md5_only = Algorithms::new(&[Algorithm::Md5], true).unwrap();
        for (algorithms, offered, chosen) in [
            (&Algorithms::default(), "5,6,7,8", Some(Algorithm::Sha3_256)),
            (&Algorithms::default(), "5,7", Some(Algorithm::Sha256)),
            (&Algorithms::default(), "5,6", Some(Algorithm::Sha1)),
            (&Algorithms::default(), "5", Some(Algorithm::Md5)),
            (&Algorithms::default(), "0x8", Some(Algorithm::Sha3_256)),
            (&Algorithms::default(), "9,,x,261", None),
            (&Algorithms::default(), "", None),
            (&md5_only, "8,7", None),
            (&md5_only, "8,5", Some(Algorithm::Md5)),
        ] {
            assert_eq!(algorithms.choose(offered), chosen, "{offered}");
        }
        assert_eq!(Algorithms::default().offer(), "8,7,6,5");
    }

    #[test]
    fn md5_alone_must_be_allowed() {
        use Algorithm::{Md5, Sha1, Sha256};
        assert_eq!(Algorithms::new(&[Md5, Md5], false), Err(AlgorithmsError::Md5Only));
        assert!(Algorithms::new(&[Md5], true).is_ok());
        assert_eq!(Algorithms::new(&[], true), Err(AlgorithmsError::Empty));
        assert_eq!(Algorithms::new(&[Md5, Sha1, Md5], false).unwrap().offer(), "5,6");
        assert_eq!(Algorithms::default().without(Sha256, false).unwrap().offer(), "8,6,5");
        let two = Algorithms::new(&[Sha256, Md5], false).unwrap();
        assert_eq!(two.without(Sha256, false), Err(AlgorithmsError::Md5Only));
    }

    #[test]
    fn secret_lengths() {
        for (length, error) in [
            (0, Some(SecretError::Empty)),
            (1, Some(SecretError::Short)),
            (11, Some(SecretError::Short)),
            (12, None),
            (255, None),
            (256, Some(SecretError::Long)),
        ] {
            assert_eq!(Secret::new(&vec![1; length]).err(), error, "{length}");
        }
        assert!(Secret::new_weak(b"short").is_ok());
        assert_eq!(format!("{:?}", secret(b"hush")), "Secret(..)");
        assert!(secret(b"hush").same_as(&secret(b"hush")));
        assert!(!secret(b"hush").same_as(&secret(b"husk")));
        assert!(!secret(b"hush").same_as(&secret(b"hus")));
    }

    #[test]
    fn challenges_differ_by_entropy_and_role() {
        for algorithm in Algorithm::ALL {
            let a = Challenge::derive(algorithm, &[1; 32], "target");
            assert_eq!(a.bytes.len(), algorithm.length());
            assert_ne!(a.bytes, Challenge::derive(algorithm, &[2; 32], "target").bytes);
            assert_ne!(a.bytes, Challenge::derive(algorithm, &[1; 32], "initiator").bytes);
            assert_eq!(a, Challenge::derive(algorithm, &[1; 32], "target"));
        }
    }
}
