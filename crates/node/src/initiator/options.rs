//! Login parameters, authentication, protection and timeout of an initiator.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use block::OpenError;
use block::remote::Links;
use iscsi::chap::Secret;
use iscsi::login::ChapAccount;
use iscsi::login::initiator::Config;
use iscsi::name::IscsiName;
use iscsi::params::{DigestPolicy, Params, SessionType};
use iscsi::wire::Isid;
use seal::{PublicKey, Suite};

use super::trust::{Login, Portal, Trust};
use super::url::Url;
use crate::TlsTrust;
use crate::sealing::{Psk, SealPolicy};
use crate::stream::tls;

#[derive(Clone, Debug)]
pub struct Credentials {
    pub user: String,
    pub secret: Secret,
}

/// How a session is sealed (docs/SEAL.md, section 7).
#[derive(Clone, Debug)]
pub struct InitiatorSealing {
    pub policy: SealPolicy,
    pub identity: Arc<seal::Identity>,
    /// Public key that the target must prove to hold.
    pub peer_key: PublicKey,
    /// The next key that the holder of `peer_key` has announced; tried after a refusal, which another key causes.
    pub next_key: Option<PublicKey>,
    pub psk: Option<Psk>,
    /// Offered suites, in order of preference.
    pub suites: Vec<Suite>,
    /// Proposed unit in bytes, a power of two within [`seal::UNIT_BYTES_MIN`]..=[`seal::UNIT_BYTES_MAX`].
    pub unit: u32,
}

impl InitiatorSealing {
    /// All suites and the default unit [`seal::UNIT_BYTES`].
    pub fn new(policy: SealPolicy, identity: Arc<seal::Identity>, peer_key: PublicKey) -> Self {
        let suites = Suite::ALL.to_vec();
        Self { policy, identity, peer_key, next_key: None, psk: None, suites, unit: seal::UNIT_BYTES }
    }
}

impl InitiatorSealing {
    /// With `uses_next` and an announced key, the sealing with that key instead.
    pub(super) fn with_next(mut self, uses_next: bool) -> Self {
        if let Some(next) = self.next_key.filter(|_| uses_next) {
            self.peer_key = next;
        }
        self
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub initiator_name: String,
    pub chap: Option<Credentials>,
    /// Credentials by which the target must authenticate to the initiator.
    pub mutual: Option<Credentials>,
    /// Time after which a request fails, lost connections and new logins included.
    pub timeout: Duration,
    /// Congestion control of the connections; `None`: the host's.
    pub congestion: Option<String>,
    /// Standard TLS 1.3 around every connection; the certificates that it trusts.
    pub tls: Option<TlsTrust>,
    /// HeaderDigest and DataDigest (CRC32C) of sessions that are not sealed.
    pub header_digest: DigestPolicy,
    pub data_digest: DigestPolicy,
    /// Sealing where `trust` is `None`; `None`: not sealed.
    pub sealing: Option<InitiatorSealing>,
    pub trust: Option<Arc<dyn Trust>>,
    /// Sessions of one attached LUN: [`block::remote::Several`], for submitters that may use it.
    pub sessions: Links,
}

impl Options {
    /// No authentication, digests only if the target requires them, a timeout of 30 s, one session.
    pub fn new(initiator_name: impl Into<String>) -> Self {
        Self {
            initiator_name: initiator_name.into(),
            chap: None,
            mutual: None,
            timeout: Duration::from_secs(30),
            congestion: None,
            tls: None,
            header_digest: DigestPolicy::Allow,
            data_digest: DigestPolicy::Allow,
            sealing: None,
            trust: None,
            sessions: Links::One,
        }
    }

    pub(super) fn protect(
        &self,
        url: &Url,
        portal: &Portal<'_>,
    ) -> Result<(Option<InitiatorSealing>, Option<tls::End>), OpenError> {
        let sealing = match &self.trust {
            Some(trust) => trust.sealing(portal)?,
            None => self.sealing.clone(),
        };
        let sealing = sealing.filter(|sealing| sealing.policy != SealPolicy::Off);
        let tls = self.tls(url, sealing.is_some())?;
        Ok((sealing, tls))
    }

    pub(super) fn on_login(&self, login: &Login) {
        if let Some(trust) = &self.trust {
            trust.on_login(login);
        }
    }

    fn tls(&self, url: &Url, is_sealed: bool) -> Result<Option<tls::End>, OpenError> {
        if self.tls.is_some() && is_sealed {
            return Err(OpenError::Usage(format!(
                "{url}: a session is sealed or goes through TLS, not both; with seal=off it goes through TLS"
            )));
        }
        let end = self.tls.as_ref().map(|trust| trust.end(&url.host)).transpose();
        end.map_err(|cause| OpenError::Usage(format!("TLS with {url}: {cause}")))
    }

    pub(super) fn login(&self, target: Option<&str>, isid: Isid) -> Result<Config, OpenError> {
        let name = |what: &str, name: &str| {
            IscsiName::parse(name).map_err(|error| OpenError::Usage(format!("{what} '{name}': {error}")))
        };
        let initiator = name("initiator name", &self.initiator_name)?;
        let account = |credentials: &Credentials| ChapAccount {
            user: credentials.user.clone(),
            secret: credentials.secret.clone(),
        };
        let target_name = target.map(|target| name("target name", target)).transpose()?;
        let session_type = if target.is_some() { SessionType::Normal } else { SessionType::Discovery };
        Ok(Config {
            session_type,
            target_name,
            auth: self.chap.as_ref().map(account),
            mutual: self.mutual.as_ref().map(account),
            params: Params {
                header_digest: self.header_digest,
                data_digest: self.data_digest,
                max_recv_data_segment_length: 1 << 20,
                ..Params::default()
            },
            ..Config::discovery(initiator, isid)
        })
    }
}

/// A random ISID (type random), so that the session of another initiator with the same name, such as the kernel's, is
/// not reinstated.
pub(super) fn random_isid() -> Isid {
    let mut random = [0; 5];
    io::entropy(&mut random).expect("the system has randomness");
    Isid::random([random[0], random[1], random[2]], u16::from_be_bytes([random[3], random[4]]))
}

/// The addresses of a redirection, `address` or `address,tag`; empty if the name does not resolve.
pub(super) fn resolve_redirect(address: &str) -> Vec<SocketAddr> {
    let portal = address.rsplit_once(',').map_or(address, |(portal, _)| portal);
    portal.to_socket_addrs().map(Iterator::collect).unwrap_or_default()
}

pub(super) fn resolve(url: &Url) -> Result<Vec<SocketAddr>, OpenError> {
    let address = url.address();
    let found: Vec<_> = address
        .to_socket_addrs()
        .map_err(|error| OpenError::Unreachable(format!("looking up {}: {error}", url.host)))?
        .collect();
    if found.is_empty() {
        return Err(OpenError::Unreachable(format!("{} has no address", url.host)));
    }
    Ok(found)
}
