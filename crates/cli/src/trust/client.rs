//! The initiator's part: whether a session with a portal is sealed, with which keys, and what a refusal may mean.
//!
//! [`Client`] decides for each connection of one endpoint, by what is known of every name that leads there
//! (`known.rs`), by the endpoint's options and by `[client] seal` of the configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use block::{OpenError, Spec};
use node::initiator::{InitiatorSealing, Login, Portal, Trust, Url, enquire};
use node::{Protection, Psk, SealPolicy};
use seal::{Identity, PublicKey, Suite};

use super::identity;
use super::known::{Found, KnownTargets, Place, Wanted};
use super::{HOST_DIRECTORY, config_file, fingerprint};
use crate::config::{DEFAULT_FILE, client_seal};
use crate::context::{self, Context, Once};
use crate::error::{Exit, Failure};
use crate::names;

/// Options of a remote LUN that say how it is sealed.
pub(crate) const OPTIONS: &[&str] = &["seal", "identity", "peer-key", "psk-file", "suite"];

/// How long a portal may take to say its key when a refusal is to be explained.
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(3);

/// Whose key a portal must prove, and how we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trusted {
    /// By the option peer-key=.
    Option(PublicKey),
    /// By a line of the known targets.
    Known(Found),
}

impl Trusted {
    /// The key.
    pub(crate) fn key(&self) -> &PublicKey {
        match self {
            Self::Option(key) => key,
            Self::Known(found) => &found.key,
        }
    }
}

/// `host:port` as it is typed.
pub(crate) fn portal(url: &Url) -> String {
    names::portal(&url.host.to_ascii_lowercase(), url.port)
}

/// Decides how the sessions of one endpoint are sealed.
#[derive(Debug)]
pub(crate) struct Client {
    url: Url,
    /// `seal=`.
    wanted: Option<SealPolicy>,
    /// The first option that asks for sealing, as it is typed.
    asks: Option<String>,
    peer_key: Option<PublicKey>,
    identity_file: Option<PathBuf>,
    /// Read when the first session is to be sealed.
    identity: OnceLock<Arc<Identity>>,
    psk: Option<Psk>,
    suites: Vec<Suite>,
    /// `tls=` was given.
    tls: bool,
    known: KnownTargets,
    json: bool,
    once: Once,
    last: Mutex<Last>,
}

/// The last decision.
#[derive(Debug, Default)]
struct Last {
    trusted: Option<Trusted>,
    refusal: Option<Failure>,
}

impl Client {
    /// By the options of an endpoint, and what is known. Nothing is resolved yet.
    pub(crate) fn new(context: &Context, spec: &Spec, url: &Url, tls: bool) -> Result<Self, Failure> {
        let usage = |option: String, cause: &str| Failure::usage("understand", option, cause);
        let wanted = spec.get("seal").map(|name| {
            SealPolicy::from_name(name)
                .ok_or_else(|| usage(format!("seal={name}"), "say seal=off, seal=offer or seal=require"))
        });
        let wanted = wanted.transpose()?;
        let peer_key = spec.get("peer-key").map(|text| {
            PublicKey::parse(text).ok_or_else(|| {
                usage(format!("peer-key={text}"), "it is not a public key, 44 characters of base64")
            })
        });
        let peer_key = peer_key.transpose()?;
        // Without the directory what this user knows cannot be known.
        if let (None, None, Err(failure)) = (wanted, peer_key, config_file("known-targets")) {
            let cause = format!("{}, so whether its key is known cannot be told", failure.cause);
            return Err(Failure::usage("use", portal(url), cause)
                .hint("set HOME or XDG_CONFIG_HOME, or say seal=off or seal=require"));
        }
        let suites = match spec.get("suite") {
            None => Suite::ALL.to_vec(),
            Some(name) => {
                let names: Vec<&str> = Suite::ALL.iter().map(|suite| suite.name()).collect();
                // Of these only: the library may know more, for experiments.
                let suite = Suite::ALL.into_iter().find(|suite| suite.name() == name);
                vec![suite.ok_or_else(|| {
                    usage(format!("suite={name}"), &format!("the suites are {}", names.join(", ")))
                })?]
            }
        };
        let names_one = || OPTIONS[1..].iter().find(|name| spec.get(name).is_some());
        let asks = wanted.map(|policy| format!("seal={}", policy.name()));
        let psk = spec.get("psk-file").filter(|_| wanted != Some(SealPolicy::Off));
        Ok(Self {
            url: url.clone(),
            wanted,
            asks: asks.or_else(|| names_one().map(|name| format!("{name}="))),
            peer_key,
            identity_file: spec.get("identity").map(PathBuf::from),
            identity: OnceLock::new(),
            psk: psk.map(|path| identity::load_psk(Path::new(path))).transpose()?,
            suites,
            tls,
            known: KnownTargets::read()?,
            json: context.json,
            once: context.once.clone(),
            last: Mutex::default(),
        })
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose key the target must prove at an address.
    fn trusted(&self, portal: &Portal<'_>) -> Result<Option<Trusted>, Failure> {
        if let Some(key) = self.peer_key {
            return Ok(Some(Trusted::Option(key)));
        }
        let mut places = vec![Place::of(&self.url.host, self.url.port)];
        places.extend(portal.redirected.and_then(Place::parse));
        places.extend(portal.addresses.iter().chain([&portal.address]).copied().map(Place::at));
        let wanted = Wanted { places: &places, target: self.url.target.as_deref() };
        Ok(self.known.find(wanted)?.map(Trusted::Known))
    }

    /// How a session at an address is sealed. With a key that the target must prove, sealing is required unless `seal=` says
    /// otherwise.
    fn decide(&self, portal: &Portal<'_>) -> Result<Option<InitiatorSealing>, Failure> {
        let sealing = match self.wanted {
            Some(SealPolicy::Off) => None,
            _ => self.sealing(portal)?,
        };
        let is_open = sealing.as_ref().is_none_or(|sealing| sealing.policy != SealPolicy::Require);
        if !is_open || self.tls {
            return Ok(sealing);
        }
        let Some(place) = required()? else { return Ok(sealing) };
        match sealing {
            // What is only offered may end in the clear.
            Some(sealing) => Ok(Some(InitiatorSealing { policy: SealPolicy::Require, ..sealing })),
            None => {
                Err(self.refused(format!("{place} requires every session to be sealed or to go through TLS")))
            }
        }
    }

    fn refused(&self, cause: String) -> Failure {
        let portal = portal(&self.url);
        Failure::new(Exit::Authentication, "seal the session with", portal.clone(), cause)
            .hint(format!("hikyaku key trust iscsi://{portal}, peer-key=KEY or tls=FILE"))
    }

    fn sealing(&self, portal: &Portal<'_>) -> Result<Option<InitiatorSealing>, Failure> {
        let trusted = self.trusted(portal)?;
        self.last().trusted.clone_from(&trusted);
        let Some(trusted) = trusted else {
            return match &self.asks {
                None => Ok(None),
                Some(asks) => {
                    Err(self.refused(format!("{asks} was given, but the target's key is not known")))
                }
            };
        };
        let identity = match self.identity.get() {
            Some(identity) => identity,
            None => {
                let identity = identity::load(self.identity_file.as_deref()).map_err(|failure| {
                    let why = match &trusted {
                        Trusted::Option(_) => "peer-key= requires sealing".to_owned(),
                        Trusted::Known(found) => format!("{found} requires sealing, for {}", found.by),
                    };
                    let cause = format!("{why}, and this host's key cannot be read: {}", failure.cause);
                    Failure { cause, exit: Exit::Authentication, ..failure }
                })?;
                self.identity.get_or_init(|| identity)
            }
        };
        let policy = self.wanted.unwrap_or(SealPolicy::Require);
        let mut sealing = InitiatorSealing::new(policy, Arc::clone(identity), *trusted.key());
        (sealing.suites, sealing.psk) = (self.suites.clone(), self.psk.clone());
        Ok(Some(sealing))
    }

    /// Says of a login that was refused what can be found out: whether the target seals, under which key, and what to type.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        if failure.exit != Exit::Authentication {
            return failure;
        }
        let (trusted, refusal) = {
            let last = self.last();
            (last.trusted.clone(), last.refusal.clone())
        };
        if let Some(refusal) = refusal {
            return refusal;
        }
        let is_off = self.wanted == Some(SealPolicy::Off);
        let trusted = trusted.filter(|_| !is_off);
        match (trusted, enquire(&self.url, EXPLANATION_TIMEOUT)) {
            (Some(trusted), Ok(answered)) if *trusted.key() != answered => {
                changed(&self.url, &trusted, &answered)
            }
            (Some(_), Ok(_)) => self.not_listed(failure),
            (Some(Trusted::Known(found)), Err(_)) => must_be_sealed(&found, failure),
            (None, Ok(_)) => self.unsealed(is_off, failure),
            (_, Err(_)) => failure,
        }
    }

    /// The target has proven the key we know, and yet refuses.
    fn not_listed(&self, failure: Failure) -> Failure {
        let key = identity::load(self.identity_file.as_deref()).map(|identity| identity.public());
        let own = key.map_or_else(|_| "(see `hikyaku key public`)".to_owned(), |key| key.to_string());
        let cause = format!("{}; the target has the key we know", failure.cause);
        Failure { cause, ..failure }.hint(format!(
            "see whether the target wants CHAP too (chap-user=), whether its peers list this host's public key {own}, and whether \
             they ask for another initiator= or a psk-file=; its log has the reason"
        ))
    }

    /// The login was in the clear, and the target could seal.
    fn unsealed(&self, is_off: bool, failure: Failure) -> Failure {
        let mut commands = Vec::new();
        if identity::default_file().is_ok_and(|file| !file.exists()) {
            commands.push("hikyaku key new".to_owned());
        }
        if is_off {
            commands.push("leave out seal=off".to_owned());
        }
        commands.push(format!("hikyaku key trust iscsi://{}", portal(&self.url)));
        let cause = format!("{}; the target seals sessions, and this login was in the clear", failure.cause);
        let hint = format!(
            "{}; then the target's peers need what `hikyaku key public` shows. Without sealing: {}",
            commands.join("; "),
            failure.hint
        );
        Failure { cause, ..failure }.hint(hint)
    }
}

impl Trust for Client {
    fn sealing(&self, portal: &Portal<'_>) -> Result<Option<InitiatorSealing>, OpenError> {
        let decided = self.decide(portal);
        self.last().refusal = decided.as_ref().err().cloned();
        decided.map_err(|failure| OpenError::Authentication(format!("{}: {}", self.url, failure.cause)))
    }

    fn on_login(&self, login: &Login) {
        let trusted = self.last().trusted.clone();
        if let (Protection::Sealed { .. }, Some(Trusted::Known(found)), Some(target)) =
            (login.protection, trusted, &self.url.target)
        {
            let host = Place::of(&self.url.host, self.url.port);
            if let Err(failure) = self.known.note(&found, &host, target) {
                tracing::debug!(cause = failure.cause, "the target's name is not noted");
            }
        }
        if !login.protection.is_whole() && !is_local(login.address) && self.wanted != Some(SealPolicy::Off) {
            let text = self.unprotected(login);
            if self.once.is_first(&text) {
                context::warn(self.json, &text);
            }
        }
    }
}

impl Client {
    fn unprotected(&self, login: &Login) -> String {
        let (portal, address) = (portal(&self.url), Place::at(login.address).to_string());
        let at = if portal == address { String::new() } else { format!(" at {address}") };
        let chap = if login.protection == Protection::None { "" } else { ", CHAP or not" };
        format!(
            "the session with {portal}{at} is not protected{chap}: hosts on the network path can read and change its data; \
             hikyaku key trust iscsi://{portal}, tls=FILE, or seal=off if that is meant"
        )
    }
}

/// Where the configuration requires every session to be protected: of the host, or of this user.
pub(crate) fn required() -> Result<Option<String>, Failure> {
    let host = PathBuf::from(DEFAULT_FILE);
    let own = config_file("hikyaku.toml").ok().filter(|own| *own != host);
    for path in [Some(host), own].into_iter().flatten() {
        if let Some(line) = client_seal(&path)? {
            return Ok(Some(format!("line {line} of {}", path.display())));
        }
    }
    Ok(None)
}

/// Whether nothing leaves this machine on the way to an address.
fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The target whose key is known does not seal.
fn must_be_sealed(found: &Found, failure: Failure) -> Failure {
    let cause = format!("{}: {found} has its key, for {}", failure.cause, found.by);
    Failure { cause, ..failure }.hint(format!(
        "see who answers there; if it is meant to be without sealing from now on, remove {found}, or say seal=off"
    ))
}

/// Another key answers than the one we know.
pub(crate) fn changed(url: &Url, trusted: &Trusted, answered: &PublicKey) -> Failure {
    let place = match trusted {
        Trusted::Option(_) => "the key that was given".to_owned(),
        Trusted::Known(found) => format!("{found}, for {},", found.by),
    };
    let cause = format!(
        "ITS KEY IS NOT THE ONE WE KNOW. The connection may be intercepted, or the target has a new identity.\n  \
         {place}: {}\n  the portal answered {answered}\n  fingerprint {}",
        trusted.key(),
        fingerprint(answered),
    );
    let portal = portal(url);
    Failure::new(Exit::Authentication, "trust", portal.clone(), cause).hint(format!(
        "ask the target's owner for its key by another way; if it is this one: hikyaku key trust iscsi://{portal} --key {answered}"
    ))
}

/// How what `key trust` has written can be made known to every user of this host; `None` where it is.
pub(crate) fn for_every_user(file: &Path, portal: &str, key: &PublicKey) -> Option<String> {
    let is_own = !file.starts_with(HOST_DIRECTORY);
    is_own.then(|| {
        format!(
            "other users of this host, root by sudo too, do not read that file; for all of them: \
             sudo env -u XDG_CONFIG_HOME hikyaku key trust iscsi://{portal} --key {key}"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

    /// What the options come to at a portal whose key is not known.
    fn sealed(options: &str) -> Result<Option<InitiatorSealing>, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("k");
        fs::write(&file, format!("{KEY}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let options = options.replace("FILE", file.to_str().unwrap());
        let text = "iscsi://no-such-host.invalid/iqn.2026-11.example:a/0";
        let spec = Spec::parse(&format!("{text}{options}")).unwrap();
        let client = Client::new(&Context::default(), &spec, &Url::parse(text).unwrap(), false)?;
        let address = SocketAddr::from(([192, 0, 2, 1], 3260));
        client.decide(&Portal { address, addresses: &[address], redirected: None })
    }

    #[test]
    fn only_the_loopback_network_is_local() {
        for (address, local) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("10.0.0.1:1", false),
            ("[::ffff:10.0.0.1]:1", false),
            ("[fe80::1]:1", false),
        ] {
            assert_eq!(is_local(address.parse().unwrap()), local, "{address}");
        }
    }

    #[test]
    fn each_row_of_the_policy_at_the_initiator_seal1_7() {
        let known = |more: &str| sealed(&format!(",peer-key={KEY},identity=FILE{more}"));
        let policy = |more: &str| known(more).unwrap().map(|sealing| sealing.policy);
        assert_eq!(policy(""), Some(SealPolicy::Require), "a known key is enough");
        assert_eq!(policy(",seal=require"), Some(SealPolicy::Require));
        assert_eq!(policy(",seal=offer"), Some(SealPolicy::Offer));
        assert_eq!(policy(",seal=off"), None);
        assert!(sealed("").unwrap().is_none(), "nothing is known, nothing was asked for");
        // Who asks for sealing never gets a session in the clear instead.
        for asks in [",seal=require", ",seal=offer", ",identity=FILE", ",suite=AES-256-GCM", ",psk-file=FILE"]
        {
            assert_eq!(sealed(asks).unwrap_err().exit, Exit::Authentication, "{asks}");
        }
    }

    #[test]
    fn suite_and_pre_shared_key_are_chosen_by_option() {
        let with = |more: &str| sealed(&format!(",peer-key={KEY},identity=FILE{more}"));
        let all = with("").unwrap().unwrap();
        assert_eq!((all.suites, all.psk.is_none(), all.peer_key.0), (Suite::ALL.to_vec(), true, [1; 32]));
        let one = with(",suite=AEGIS-128X2,psk-file=FILE").unwrap().unwrap();
        assert_eq!((one.suites, one.psk.map(|psk| *psk.bytes())), (vec![Suite::Aegis128X2], Some([1; 32])));
        for wrong in [",suite=DES", ",seal=yes"] {
            assert_eq!(with(wrong).unwrap_err().exit, Exit::Usage, "{wrong}");
        }
        assert_eq!(sealed(",peer-key=short,identity=FILE").unwrap_err().exit, Exit::Usage);
    }
}
