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
    /// Users of this host who may log in over loopback where a login needs no proof.
    pub local_users: LocalUsers,
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

/// Users of this host. A login over loopback that needs neither CHAP nor a seal is decided by the user whose process holds the
/// initiator's socket: a loopback address is reachable by every user, whatever the storage's own permissions say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalUsers {
    /// All of them.
    #[default]
    Any,
    /// Those with these user ids.
    Only(Vec<u32>),
}

impl LocalUsers {
    /// Whether this user may log in.
    pub(super) fn admit(&self, uid: u32) -> bool {
        match self {
            Self::Any => true,
            Self::Only(uids) => uids.contains(&uid),
        }
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

impl Peer {
    /// Whether both are one key with the same rights.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let words =
            |peer: &Self| (peer.name.clone(), peer.public_key, peer.initiator.clone(), peer.luns.clone());
        let psk = |peer: &Self| peer.psk.as_ref().map(|psk| *psk.bytes());
        words(self) == words(other) && psk(self) == psk(other)
    }
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
    /// What the caller holds for this unit (a lock on its identity); dropped when no thread has the unit any more.
    pub held: Option<Held>,
}

impl LunConfig {
    /// Whether both describe one unit on one storage: such a unit lives through a reload.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let words = |lun: &Self| {
            let Self { lun, serial, naa, read_only, write_cache, vendor, product, .. } = lun.clone();
            (lun, serial, naa, read_only, write_cache, vendor, product)
        };
        let facts = |lun: &Self| {
            let Self { rotational, removable, block_size, physical_block_size, shared, exclusive, .. } = *lun;
            (rotational, removable, block_size, physical_block_size, shared, exclusive)
        };
        Arc::ptr_eq(&self.medium, &other.medium) && words(self) == words(other) && facts(self) == facts(other)
    }
}

/// Something that is kept as long as a unit is served.
#[derive(Clone)]
pub struct Held(#[expect(dead_code, reason = "it is kept, not used")] Arc<dyn std::any::Any + Send + Sync>);

impl Held {
    /// Keeps `what`.
    pub fn new(what: impl std::any::Any + Send + Sync) -> Self {
        Self(Arc::new(what))
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

/// Who may log in to a target. Empty: everyone. Otherwise the first row decides that fits the initiator's name, its key and the
/// user it has authenticated as; rows that name an initiator or a peer come before those by user alone. Without a row that fits, the
/// login is refused.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// CHAP accounts for rows without one of their own. Where no row names an initiator or a peer, they let any initiator in, to
    /// every LUN.
    pub chap: Vec<ChapAccount>,
    /// The rows.
    pub initiators: Vec<AclEntry>,
}

impl ChapAccount {
    /// Whether both are one user with the same secrets.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let mutual = match (&self.mutual, &other.mutual) {
            (None, None) => true,
            (Some((name, secret)), Some((other_name, other))) => name == other_name && secret.same_as(other),
            _ => false,
        };
        self.user == other.user && self.secret.same_as(&other.secret) && mutual
    }
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

impl AclEntry {
    /// It says who the initiator is, besides the user that it authenticates as.
    pub(super) fn is_named(&self) -> bool {
        self.initiator.is_some() || self.peer.is_some()
    }

    /// Whether both give the same to the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let words = |row: &Self| (row.initiator.clone(), row.peer.clone(), row.luns.clone(), row.read_only);
        let chap = match (&self.chap, &other.chap) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        chap && words(self) == words(other)
    }
}

/// One row: initiators by name, by key, by user, or by several of these.
#[derive(Clone, Debug)]
pub struct AclEntry {
    /// Its InitiatorName; any when `None`. With sealing on, a name without [`AclEntry::peer`] or [`AclEntry::chap`] fits only with
    /// the key that [`Peer::initiator`] binds to it: everyone may type a name.
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
    /// A reload asks for what only a restart can do.
    #[error("{0} needs a restart")]
    Restart(String),
    /// A loop thread ended by an assertion: a defect of ours.
    #[error("a loop thread panicked: this is a defect, please report it with the lines above")]
    Panicked,
    /// A loop thread cannot run.
    #[error("loop thread: {0}")]
    Loop(std::io::Error),
}
