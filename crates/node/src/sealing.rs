//! What both roles mean by sealing: the policy, the secret of a pair of peers, what protects a session.

use std::fmt;
use std::sync::{Arc, OnceLock};

use iscsi::chap::Algorithm;
use seal::{PublicKey, Suite};
use zeroize::Zeroizing;

/// How much sealing is wanted (docs/SEAL.md, section 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SealPolicy {
    /// Never.
    #[default]
    Off,
    /// If the peer can; in the clear otherwise.
    Offer,
    /// Or not at all.
    Require,
}

impl SealPolicy {
    /// By its name, as people write it.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Off, Self::Offer, Self::Require].into_iter().find(|policy| policy.name() == name)
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Offer => "offer",
            Self::Require => "require",
        }
    }
}

/// The pre-shared key of a pair of peers, P of docs/SEAL.md section 3. Wiped when the last holder drops it; never shown.
#[derive(Clone)]
pub struct Psk(Arc<Zeroizing<[u8; 32]>>);

impl Psk {
    /// Takes the key.
    pub fn new(key: Zeroizing<[u8; 32]>) -> Self {
        Self(Arc::new(key))
    }

    /// The key.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(..)")
    }
}

/// Bytes of one connection that are sealed ahead: more would leave the cache before it is sent, which costs more than a fast
/// suite ...
const AHEAD_BYTES_FAST: usize = 512 << 10;
/// ... but less than a slow one.
const AHEAD_BYTES_SLOW: usize = 4 << 20;
/// The environment variable that turns it off: `0`.
const AHEAD_VARIABLE: &str = "HIKYAKU_SEAL_AHEAD";

/// Bytes that one connection may seal ahead of their turn; 0: none. On one core, what is done ahead keeps the other side from
/// its work.
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

/// What protects a session on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Nothing.
    #[default]
    None,
    /// CHAP: the initiator has proven its name at login, and nothing is protected after that.
    Chap {
        /// The hash.
        hash: Algorithm,
    },
    /// SEAL/1.
    Sealed {
        /// How.
        suite: Suite,
        /// Bytes of a unit.
        unit: u32,
        /// The other side's key, which it has proven to hold.
        peer_key: PublicKey,
    },
    /// TLS.
    Tls {
        /// How.
        suite: &'static str,
    },
}

impl Protection {
    /// In one word: `none`, `chap`, `tls`, `seal`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Chap { .. } => "chap",
            Self::Sealed { .. } => "seal",
            Self::Tls { .. } => "tls",
        }
    }

    /// Whether what passes can neither be read nor changed on its way.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Sealed { .. } | Self::Tls { .. })
    }

    /// What people want to know of it: `protection`, `suite`, and for a seal `unit` and `peer key`.
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
