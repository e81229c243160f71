//! Sealing in both roles: the policy, the pre-shared key of two peers, and the protection of a session.

use std::fmt;
use std::sync::{Arc, OnceLock};

use iscsi::chap::Algorithm;
use seal::{PublicKey, Suite};
use zeroize::Zeroizing;

/// InitiatorName of an enquiry about a portal's key: the name of the host that asks is not disclosed to a portal that has
/// proven nothing.
pub(crate) const ENQUIRY_NAME: &str = "iqn.2026-11.example.hikyaku:enquiry";

/// Whether sessions are sealed (docs/SEAL.md, section 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SealPolicy {
    #[default]
    Off,
    /// Sealed if the peer supports it, otherwise not.
    Offer,
    /// Sealed, or no session.
    Require,
}

impl SealPolicy {
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Off, Self::Offer, Self::Require].into_iter().find(|policy| policy.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Offer => "offer",
            Self::Require => "require",
        }
    }
}

/// The pre-shared key of two peers, P of docs/SEAL.md section 3. Zeroized when the last reference is dropped; never
/// printed.
#[derive(Clone)]
pub struct Psk(Arc<Zeroizing<[u8; 32]>>);

impl Psk {
    pub fn new(key: Zeroizing<[u8; 32]>) -> Self {
        Self(Arc::new(key))
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(..)")
    }
}

/// Bound of the bytes that one connection seals ahead. More than this would leave the cache before it is sent, which
/// costs more than sealing with a fast suite.
const AHEAD_BYTES_FAST: usize = 512 << 10;
/// The bound for slow suites, which cost more than the cache misses.
const AHEAD_BYTES_SLOW: usize = 4 << 20;
const AHEAD_VARIABLE: &str = "HIKYAKU_SEAL_AHEAD";

/// Bytes that one connection may seal ahead; 0 on one core, where it would take the other side's CPU time.
pub(crate) fn ahead_bytes_max(suite: Suite) -> usize {
    static MAY: OnceLock<bool> = OnceLock::new();
    let may = *MAY.get_or_init(|| {
        std::env::var_os(AHEAD_VARIABLE).is_none_or(|value| value != "0")
            && std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1)
    });
    match suite {
        _ if !may => 0,
        Suite::Aes256Gcm | Suite::Aegis256X4 | Suite::Aegis128X2 => AHEAD_BYTES_FAST,
        _ => AHEAD_BYTES_SLOW,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Neither authentication nor protection of the data.
    #[default]
    None,
    /// CHAP: the initiator authenticated at login; data is not protected.
    Chap { hash: Algorithm },
    /// SEAL/1 with units of `unit` bytes; the peer has proven that it holds `peer_key`.
    Sealed { suite: Suite, unit: u32, peer_key: PublicKey },
    /// TLS 1.3 with this cipher suite.
    Tls { suite: &'static str },
}

impl Protection {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Chap { .. } => "chap",
            Self::Sealed { .. } => "seal",
            Self::Tls { .. } => "tls",
        }
    }

    /// Whether data in transit is confidential and authenticated.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Sealed { .. } | Self::Tls { .. })
    }

    /// Facts for reports: `protection`, `suite`, and for a sealed session `unit` and `peer key`.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("protection", self.kind().to_owned())];
        match self {
            Self::None => {}
            Self::Chap { hash } => facts.push(("suite", hash.to_string())),
            Self::Sealed { suite, unit, peer_key } => facts.extend([
                ("suite", suite.name().to_owned()),
                ("unit", format!("{unit} bytes")),
                ("peer key", peer_key.to_string()),
            ]),
            Self::Tls { suite } => facts.push(("suite", (*suite).to_owned())),
        }
        facts
    }
}
