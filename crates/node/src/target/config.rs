//! The configuration of a server.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use block::{Medium, OpenError};
use iscsi::chap::Secret;
use seal::{PublicKey, Suite};
use thiserror::Error;

use crate::TlsIdentity;
use crate::sealing::{Psk, SealPolicy};

#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses to listen on; port 0 selects a free port.
    pub listen: Vec<SocketAddr>,
    /// `host:port` that SendTargets returns instead of the address that the client used (for NAT).
    pub advertise: Option<String>,
    /// How sessions are sealed; `None`: never.
    pub sealing: Option<Sealing>,
    pub targets: Vec<TargetConfig>,
    /// Users of this host who may log in over loopback where a login needs no proof.
    pub local_users: LocalUsers,
    /// TLS 1.3 around every connection, with this certificate; connections without TLS are refused.
    pub tls: Option<TlsIdentity>,
    pub drain_timeout: Duration,
    /// Number of loop threads; `None`: one per core.
    pub threads: Option<usize>,
}

impl ServerConfig {
    pub fn seal_policy(&self) -> SealPolicy {
        self.sealing.as_ref().map_or(SealPolicy::Off, |sealing| sealing.policy)
    }

    pub(super) fn has(&self, iqn: &str) -> bool {
        self.targets.iter().any(|target| target.iqn == iqn)
    }

    /// The peer with this key, if sealing is on and the key is listed.
    pub fn peer(&self, key: &PublicKey) -> Option<&Peer> {
        let sealing = self.sealing.as_ref().filter(|sealing| sealing.policy != SealPolicy::Off)?;
        sealing.peers.iter().find(|peer| peer.public_key == *key)
    }
}

/// Users of this host. A login over loopback that requires neither CHAP nor a seal is admitted by the user whose
/// process holds the initiator's socket: a loopback address is reachable for every user, regardless of the permissions
/// of the storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalUsers {
    #[default]
    Any,
    Only(Vec<u32>),
}

impl LocalUsers {
    pub(super) fn admit(&self, uid: u32) -> bool {
        match self {
            Self::Any => true,
            Self::Only(uids) => uids.contains(&uid),
        }
    }
}

/// How sessions are sealed, and with which peers (docs/SEAL.md, section 7).
#[derive(Clone, Debug)]
pub struct Sealing {
    pub policy: SealPolicy,
    pub identity: Arc<seal::Identity>,
    /// Initiators that may log in sealed; keys and names are unique.
    pub peers: Vec<Peer>,
    /// Supported suites; the initiator's order of preference decides.
    pub suites: Vec<Suite>,
    /// The key that will replace `identity`, announced to every initiator that asks. A reload with the same key keeps the
    /// one of before, with its counts.
    pub next: Option<Arc<NextIdentity>>,
}

/// The next key of a server, and the logins since its first announcement was possible.
pub struct NextIdentity {
    pub(super) identity: Arc<seal::Identity>,
    since: SystemTime,
    logins: AtomicU64,
}

impl NextIdentity {
    pub fn new(identity: Arc<seal::Identity>) -> Self {
        Self { identity, since: SystemTime::now(), logins: AtomicU64::new(0) }
    }

    pub fn key(&self) -> PublicKey {
        self.identity.public()
    }

    /// When this process read the key: the server announces it from then on.
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// Sealed logins since then. Initiators of releases that ask for no next key count too.
    pub fn logins(&self) -> u64 {
        self.logins.load(Ordering::Relaxed)
    }

    pub(super) fn on_login(&self) {
        self.logins.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for NextIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NextIdentity").field(&self.key()).finish()
    }
}

impl Peer {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let words =
            |peer: &Self| (peer.name.clone(), peer.public_key, peer.initiator.clone(), peer.luns.clone());
        let psk = |peer: &Self| peer.psk.as_ref().map(|psk| *psk.bytes());
        words(self) == words(other) && psk(self) == psk(other)
    }
}

#[derive(Clone, Debug)]
pub struct Peer {
    pub name: String,
    /// Public key whose private key the initiator must prove to hold.
    pub public_key: PublicKey,
    /// The InitiatorName that the key is bound to; `None`: any.
    pub initiator: Option<String>,
    /// LUNs visible to this peer, at every target; `None`: all.
    pub luns: Option<Vec<u16>>,
    pub psk: Option<Psk>,
}

#[derive(Clone, Debug)]
pub struct TargetConfig {
    pub iqn: String,
    pub luns: Vec<LunConfig>,
    pub access: Access,
}

#[derive(Clone, Debug)]
pub struct LunConfig {
    /// Logical unit number, below 16384.
    pub lun: u16,
    pub medium: Arc<dyn Medium>,
    /// Unit serial number (VPD page 80h).
    pub serial: String,
    /// NAA designator, locally assigned (VPD page 83h).
    pub naa: u64,
    pub read_only: bool,
    /// WCE: writes may be volatile until a flush.
    pub write_cache: bool,
    /// `None` here and below: the default, or what the storage reports. T10 vendor and product identification.
    pub vendor: Option<String>,
    pub product: Option<String>,
    pub rotational: Option<bool>,
    pub removable: bool,
    /// Logical and physical block length, bytes.
    pub block_size: Option<u32>,
    pub physical_block_size: Option<u32>,
    /// Several initiators are expected to write; suppresses the warning about that.
    pub shared: bool,
    /// At most one initiator at a time may be logged in to the unit. Its INQUIRY data say so.
    pub exclusive: bool,
    /// A resource of the caller for this unit (a lock on its identity); dropped when no thread has the unit any more.
    pub held: Option<Held>,
}

impl LunConfig {
    /// A unit with a volatile cache that is written to; everything else is the default or what the storage reports.
    pub fn new(lun: u16, medium: Arc<dyn Medium>, serial: impl Into<String>, naa: u64) -> Self {
        Self {
            lun,
            medium,
            serial: serial.into(),
            naa,
            read_only: false,
            write_cache: true,
            vendor: None,
            product: None,
            rotational: None,
            removable: false,
            block_size: None,
            physical_block_size: None,
            shared: false,
            exclusive: false,
            held: None,
        }
    }

    /// Whether both describe the same unit on the same storage: such a unit is kept by a reload.
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

/// A resource that is held as long as a unit is served.
#[derive(Clone)]
pub struct Held(#[expect(dead_code, reason = "it is kept, not used")] Arc<dyn std::any::Any + Send + Sync>);

impl Held {
    pub fn new(what: impl std::any::Any + Send + Sync) -> Self {
        Self(Arc::new(what))
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// Which initiators may log in to a target. Empty: all. Otherwise the first row decides that matches the initiator's
/// name, its key and the user it has authenticated as; rows that name an initiator or a peer precede those by user
/// alone. Without a matching row the login is refused.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Accounts of rows without their own. If no row is named, they admit any initiator, to every LUN.
    pub chap: Vec<ChapAccount>,
    pub initiators: Vec<AclEntry>,
}

impl ChapAccount {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let mutual = match (&self.mutual, &other.mutual) {
            (None, None) => true,
            (Some((name, secret)), Some((other_name, other))) => name == other_name && secret.same_as(other),
            _ => false,
        };
        self.user == other.user && self.secret.same_as(&other.secret) && mutual
    }
}

#[derive(Clone, Debug)]
pub struct ChapAccount {
    pub user: String,
    pub secret: Secret,
    /// Name and secret by which the target authenticates to the initiator when requested.
    pub mutual: Option<(String, Secret)>,
}

impl AclEntry {
    /// Whether the row names an initiator or a peer, not only a user.
    pub(super) fn is_named(&self) -> bool {
        self.initiator.is_some() || self.peer.is_some()
    }

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

/// A row: matches initiators by name, by key, by user, or by several of these.
#[derive(Clone, Debug)]
pub struct AclEntry {
    /// InitiatorName; `None`: any. With sealing on, a name without [`AclEntry::peer`] or [`AclEntry::chap`] matches
    /// only with the key that [`Peer::initiator`] binds to it, because any initiator can claim a name.
    pub initiator: Option<String>,
    /// The [`Peer::name`] of the key to be proven; `None`: none is needed.
    pub peer: Option<String>,
    /// Visible LUNs; `None`: all.
    pub luns: Option<Vec<u16>>,
    pub read_only: bool,
    /// CHAP account of this row; `None`: the accounts of the target apply.
    pub chap: Option<ChapAccount>,
}

#[derive(Debug, Error)]
pub enum ServeError {
    #[error("listening on {address}: {cause}")]
    Listen { address: SocketAddr, cause: std::io::Error },
    #[error("LUN {lun} of {target}: {cause}")]
    Lun { target: String, lun: u16, cause: OpenError },
    #[error("{0}")]
    Config(String),
    /// The server ended, but some written data may not be durable.
    #[error("{0}")]
    Unfinished(String),
    /// The change requires a restart.
    #[error("{0} needs a restart")]
    Restart(String),
    #[error("a loop thread panicked: this is a defect, please report it with the lines above")]
    Panicked,
    #[error("loop thread: {0}")]
    Loop(std::io::Error),
}

/// Restricts the calling thread to what a server needs once everything is open; see [`super::Server::start_with`].
pub type Confine = Arc<dyn Fn() + Send + Sync>;

pub(super) fn check(config: &ServerConfig) -> Result<(), ServeError> {
    let wrong = |text: String| Err(ServeError::Config(text));
    if config.listen.is_empty() || config.targets.is_empty() {
        return wrong("a portal and a target are needed".into());
    }
    if config.tls.is_some() && config.sealing.is_some() {
        return wrong("sessions are sealed or go through TLS, not both".into());
    }
    let mut identities: Vec<(u64, String)> = Vec::new();
    for (index, target) in config.targets.iter().enumerate() {
        if config.targets[..index].iter().any(|other| other.iqn == target.iqn) {
            return wrong(format!("target {} is configured twice", target.iqn));
        }
        if target.luns.is_empty() {
            return wrong(format!("target {} has no LUN", target.iqn));
        }
        for (at, lun) in target.luns.iter().enumerate() {
            if target.luns[..at].iter().any(|other| other.lun == lun.lun) {
                return wrong(format!("LUN {} of {} is configured twice", lun.lun, target.iqn));
            }
            let name = format!("LUN {} of {}", lun.lun, target.iqn);
            if let Some((_, other)) = identities.iter().find(|(naa, _)| *naa == lun.naa) {
                return wrong(format!("{name} and {other} have one identity (NAA {:016x})", lun.naa));
            }
            identities.push((lun.naa, name));
        }
    }
    Ok(())
}
