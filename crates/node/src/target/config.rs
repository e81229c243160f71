//! What a server is told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use block::{Medium, OpenError};
use iscsi::chap::Secret;
use seal::{PublicKey, Suite};
use thiserror::Error;

use crate::TlsIdentity;
use crate::sealing::{Psk, SealPolicy};

/// A server: portals and targets.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses to listen on; port 0 takes any free one.
    pub listen: Vec<SocketAddr>,
    /// `host:port` that SendTargets answers instead of the address the client used (behind NAT).
    pub advertise: Option<String>,
    /// How sessions are sealed; `None` for never.
    pub sealing: Option<Sealing>,
    /// What is served.
    pub targets: Vec<TargetConfig>,
    /// Standard TLS 1.3 around every connection, shown with this certificate; plain ones are refused.
    pub tls: Option<TlsIdentity>,
    /// How long a drain waits for sessions to log out.
    pub drain_timeout: Duration,
    /// Loop threads; `None` for one per core.
    pub threads: Option<usize>,
}

impl ServerConfig {
    /// What is demanded of every connection.
    pub fn seal_policy(&self) -> SealPolicy {
        self.sealing.as_ref().map_or(SealPolicy::Off, |sealing| sealing.policy)
    }

    /// Whose key this is, if sealing is on and the key is on the list.
    pub fn peer(&self, key: &PublicKey) -> Option<&Peer> {
        let sealing = self.sealing.as_ref().filter(|sealing| sealing.policy != SealPolicy::Off)?;
        sealing.peers.iter().find(|peer| peer.public_key == *key)
    }
}

/// How sessions are sealed, and with whom (docs/SEAL.md, section 7).
#[derive(Clone, Debug)]
pub struct Sealing {
    /// Whether sessions must be sealed.
    pub policy: SealPolicy,
    /// Our key pair.
    pub identity: Arc<seal::Identity>,
    /// Who may log in sealed; each key and each name once.
    pub peers: Vec<Peer>,
    /// What we can do; the initiator's order decides between them.
    pub suites: Vec<Suite>,
}

/// An initiator known by its key.
#[derive(Clone, Debug)]
pub struct Peer {
    /// What we call it.
    pub name: String,
    /// What it proves to hold the other half of.
    pub public_key: PublicKey,
    /// The InitiatorName it is bound to; any when `None`.
    pub initiator: Option<String>,
    /// LUNs it sees, of every target; all when `None`.
    pub luns: Option<Vec<u16>>,
    /// The pre-shared key of this pair.
    pub psk: Option<Psk>,
}

/// One target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Its name.
    pub iqn: String,
    /// Its logical units.
    pub luns: Vec<LunConfig>,
    /// Who may log in.
    pub access: Access,
}

/// One logical unit.
#[derive(Clone, Debug)]
pub struct LunConfig {
    /// Its number, below 16384.
    pub lun: u16,
    /// Its storage.
    pub medium: Arc<dyn Medium>,
    /// Unit serial number (VPD 80h).
    pub serial: String,
    /// NAA designator, locally assigned (VPD 83h).
    pub naa: u64,
    /// Write protected.
    pub read_only: bool,
    /// WCE: writes may be volatile until a flush.
    pub write_cache: bool,
    /// T10 vendor identification.
    pub vendor: Option<String>,
    /// Product identification.
    pub product: Option<String>,
    /// Spinning or not; as the storage says when `None`.
    pub rotational: Option<bool>,
    /// Removable medium.
    pub removable: bool,
    /// Logical block size; as the storage says when `None`.
    pub block_size: Option<u32>,
    /// Physical block size; as the storage says when `None`.
    pub physical_block_size: Option<u32>,
    /// Several initiators are expected to write.
    pub shared: bool,
    /// Only one initiator at a time may log in to it.
    pub exclusive: bool,
}

/// Who may log in to a target. Empty: everyone.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// CHAP accounts good for every initiator.
    pub chap: Vec<ChapAccount>,
    /// Initiators by name or key. With any entry, others are refused.
    pub initiators: Vec<AclEntry>,
}

/// A CHAP account.
#[derive(Clone, Debug)]
pub struct ChapAccount {
    /// CHAP_N.
    pub user: String,
    /// Its secret.
    pub secret: Secret,
    /// What the target proves itself with, when asked: name and secret.
    pub mutual: Option<(String, Secret)>,
}

/// One initiator, by its name, its key, or both.
#[derive(Clone, Debug)]
pub struct AclEntry {
    /// Its InitiatorName; any when `None`.
    pub initiator: Option<String>,
    /// The [`Peer::name`] of the key it must prove; none is needed when `None`.
    pub peer: Option<String>,
    /// LUNs it sees; all when `None`.
    pub luns: Option<Vec<u16>>,
    /// It may only read.
    pub read_only: bool,
    /// Its own account; with none, the target's accounts apply.
    pub chap: Option<ChapAccount>,
}

/// Why a server cannot serve.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A portal cannot be opened.
    #[error("listening on {address}: {cause}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        cause: std::io::Error,
    },
    /// A logical unit's storage cannot be opened.
    #[error("LUN {lun} of {target}: {cause}")]
    Lun {
        /// Target name.
        target: String,
        /// Number.
        lun: u16,
        /// Why not.
        cause: OpenError,
    },
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The server ended, but not everything that was written is known to be durable.
    #[error("{0}")]
    Unfinished(String),
    /// A loop thread ended by an assertion: a defect of ours.
    #[error("a loop thread panicked: this is a defect, please report it with the lines above")]
    Panicked,
    /// A loop thread cannot run.
    #[error("loop thread: {0}")]
    Loop(std::io::Error),
}
