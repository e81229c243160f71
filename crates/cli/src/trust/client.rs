//! The initiator's side: whether a session with a portal is sealed, with which keys, and the explanation of a refusal.
//!
//! [`Client`] decides for each connection of one endpoint: by the known targets that match any of its names
//! (`known.rs`), by the endpoint's options and by `[client] seal` of the configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use block::{OpenError, Spec};
use node::initiator::{Announced, InitiatorSealing, Login, Portal, Trust, Url, enquire};
use node::{Protection, Psk, SealPolicy};
use seal::{Identity, PublicKey, Suite};

use super::identity;
use super::known::{Change, Found, KnownTargets, Place, Query};
use super::{HOST_DIRECTORY, config_file, fingerprint};
use crate::config::{DEFAULT_FILE, client_seal};
use crate::context::{self, Context, Once};
use crate::error::{Exit, Failure};
use crate::names;

/// Options of a remote LUN that control sealing.
pub(crate) const OPTIONS: &[&str] = &["seal", "identity", "peer-key", "psk-file", "suite"];

/// Timeout of the query for a portal's key that explains a refusal.
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(3);

/// The key that a portal must prove, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trusted {
    Option(PublicKey),
    Known(Found),
}

impl Trusted {
    pub(crate) fn key(&self) -> &PublicKey {
        match self {
            Self::Option(key) => key,
            Self::Known(found) => &found.key,
        }
    }

    /// The announced next key, accepted as well.
    fn next(&self) -> Option<PublicKey> {
        match self {
            Self::Option(_) => None,
            Self::Known(found) => found.next,
        }
    }
}

pub(crate) fn portal(url: &Url) -> String {
    names::portal(&url.host.to_ascii_lowercase(), url.port)
}

/// Decides how the sessions of one endpoint are sealed. Shared by all its connections; [`Trust::sealing`] is called
/// before each login, [`Trust::on_login`] after it, [`Client::explain`] after a failed attempt.
#[derive(Debug)]
pub(crate) struct Client {
    url: Url,
    /// The option `seal=`.
    policy_requested: Option<SealPolicy>,
    /// Whether a CHAP name is given, by the URL, an option or the environment.
    has_chap: bool,
    /// The first option that requests sealing, as typed.
    option: Option<String>,
    peer_key: Option<PublicKey>,
    identity_file: Option<PathBuf>,
    /// Read before the first sealed session.
    identity: OnceLock<Arc<Identity>>,
    psk: Option<Psk>,
    suites: Vec<Suite>,
    tls: bool,
    known: KnownTargets,
    json: bool,
    once: Once,
    last: Mutex<Last>,
}

/// The last decision, for [`Client::explain`].
#[derive(Debug, Default)]
struct Last {
    trusted: Option<Trusted>,
    refusal: Option<Failure>,
    /// What sessions of this process have shown since the known targets were read.
    learned: Option<Learned>,
}

/// The keys of a target after a change that a session has shown.
#[derive(Clone, Copy, Debug)]
struct Learned {
    /// The key in the known targets when they were read.
    read: PublicKey,
    key: PublicKey,
    next: Option<PublicKey>,
}

impl Client {
    /// Reads the options of an endpoint and the known targets. Resolves no name.
    pub(crate) fn new(context: &Context, spec: &Spec, url: &Url, tls: bool) -> Result<Self, Failure> {
        let usage = |option: String, cause: &str| Failure::usage("understand", option, cause);
        let policy_requested = spec.get("seal").map(|name| {
            SealPolicy::from_name(name)
                .ok_or_else(|| usage(format!("seal={name}"), "say seal=off, seal=offer or seal=require"))
        });
        let policy_requested = policy_requested.transpose()?;
        let peer_key = spec.get("peer-key").map(|text| {
            PublicKey::parse(text).ok_or_else(|| {
                usage(format!("peer-key={text}"), "it is not a public key, 44 characters of base64")
            })
        });
        let peer_key = peer_key.transpose()?;
        // Without a configuration directory the user's known targets cannot be read.
        if let (None, None, Err(failure)) = (policy_requested, peer_key, config_file("known-targets")) {
            let cause = format!("{}, so whether its key is known cannot be determined", failure.cause);
            return Err(Failure::usage("use", portal(url), cause)
                .hint("set HOME or XDG_CONFIG_HOME, or say seal=off or seal=require"));
        }
        let suites = match spec.get("suite") {
            None => Suite::ALL.to_vec(),
            Some(name) => {
                let names: Vec<&str> = Suite::ALL.iter().map(|suite| suite.name()).collect();
                // Only these: the library has further suites for experiments.
                let suite = Suite::ALL.into_iter().find(|suite| suite.name() == name);
                vec![suite.ok_or_else(|| {
                    usage(format!("suite={name}"), &format!("the suites are {}", names.join(", ")))
                })?]
            }
        };
        let names_one = || OPTIONS[1..].iter().find(|name| spec.get(name).is_some());
        let option = policy_requested.map(|policy| format!("seal={}", policy.name()));
        let psk = spec.get("psk-file").filter(|_| policy_requested != Some(SealPolicy::Off));
        Ok(Self {
            url: url.clone(),
            policy_requested,
            has_chap: url.user.is_some()
                || spec.get("chap-user").is_some()
                || std::env::var_os("LIBISCSI_CHAP_USERNAME").is_some_and(|name| !name.is_empty()),
            option: option.or_else(|| names_one().map(|name| format!("{name}="))),
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

    /// The key that the target must prove at an address; `None` if unknown.
    fn trusted(&self, portal: &Portal<'_>) -> Result<Option<Trusted>, Failure> {
        if let Some(key) = self.peer_key {
            return Ok(Some(Trusted::Option(key)));
        }
        let mut places = vec![Place::of(&self.url.host, self.url.port)];
        places.extend(portal.redirected.and_then(Place::parse));
        places.extend(portal.addresses.iter().chain([&portal.address]).copied().map(Place::at));
        let query = Query { places: &places, target: self.url.target.as_deref() };
        let Some(mut found) = self.known.find(query)? else { return Ok(None) };
        if let Some(learned) = self.last().learned.filter(|learned| learned.read == found.key) {
            (found.key, found.next) = (learned.key, learned.next);
        }
        Ok(Some(Trusted::Known(found)))
    }

    /// How a session at an address is sealed. With a known key sealing is required, unless `seal=off` was given.
    fn decide(&self, portal: &Portal<'_>) -> Result<Option<InitiatorSealing>, Failure> {
        let sealing = match self.policy_requested {
            Some(SealPolicy::Off) => {
                // For the explanation of a refusal only.
                self.last().trusted = self.trusted(portal).ok().flatten();
                None
            }
            _ => self.sealing(portal)?,
        };
        if sealing.is_some() || self.tls {
            return Ok(sealing);
        }
        match required()? {
            None => Ok(None),
            Some(place) => {
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
            return match &self.option {
                None => Ok(None),
                Some(option) => {
                    Err(self.refused(format!("{option} was given, but the target's key is not known")))
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
                    Failure { cause, ending: Exit::Authentication, ..failure }
                })?;
                self.identity.get_or_init(|| identity)
            }
        };
        // `offer` too: otherwise an attacker who answers in place of the target would get the session in the clear.
        let mut sealing = InitiatorSealing::new(SealPolicy::Require, Arc::clone(identity), *trusted.key());
        (sealing.suites, sealing.psk) = (self.suites.clone(), self.psk.clone());
        if let Trusted::Known(found) = &trusted {
            sealing.next_key = found.next;
        }
        Ok(Some(sealing))
    }

    /// Adds to a refused login what a query to the portal shows: whether it seals, its key, and the command to type. Other
    /// failures, those of shared secrets and of damage on the way too, have nothing to do with public keys.
    pub(crate) fn explain(&self, failure: Failure, error: &OpenError) -> Failure {
        if !matches!(
            error,
            OpenError::Authentication(_) | OpenError::Unprotected(_) | OpenError::Certificate(_)
        ) {
            return failure;
        }
        let (trusted, refusal) = {
            let last = self.last();
            (last.trusted.clone(), last.refusal.clone())
        };
        if let Some(refusal) = refusal {
            return refusal;
        }
        let is_off = self.policy_requested == Some(SealPolicy::Off);
        let (trusted, ignored) = if is_off { (None, trusted) } else { (trusted, None) };
        match (trusted, enquire(&self.url, EXPLANATION_TIMEOUT)) {
            (Some(trusted), Ok(answered))
                if *trusted.key() != answered && trusted.next() != Some(answered) =>
            {
                changed(&self.url, &trusted, &answered)
            }
            (Some(_), Ok(_)) => self.not_listed(failure),
            (Some(Trusted::Known(found)), Err(_)) => must_be_sealed(&found, failure),
            (None, Ok(answered)) => {
                self.unsealed(ignored.filter(|trusted| *trusted.key() == answered).as_ref(), failure)
            }
            (_, Err(_)) => failure,
        }
    }

    /// The failure of a target that proved the known key and refuses the login.
    fn not_listed(&self, failure: Failure) -> Failure {
        let key = identity::load(self.identity_file.as_deref()).map(|identity| identity.public());
        let own = key.map_or_else(|_| "(see `hikyaku key public`)".to_owned(), |key| key.to_string());
        let cause = format!("{}; the target has the key we know", failure.cause);
        Failure { cause, ..failure }.hint(format!(
            "see whether the target wants CHAP too (chap-user=), whether its peers list this host's public key {own}, and whether \
             they require another initiator= or a psk-file=; its log has the reason"
        ))
    }

    /// The failure of a login in the clear to a target that can seal. `ignored`: its key, which is known but not used
    /// because of `seal=off`.
    fn unsealed(&self, ignored: Option<&Trusted>, failure: Failure) -> Failure {
        let login = if self.has_chap { "CHAP and without a seal" } else { "neither CHAP nor a seal" };
        let cause = format!("{}: a login with {login}, and the target seals sessions", failure.cause);
        let clear = if self.has_chap {
            "if the target admits logins without a seal, check the CHAP name and secret, and that its ACL lists this initiator \
             (initiator=)"
        } else {
            "if the target admits logins without a seal: chap-user=NAME,chap-secret-file=FILE"
        };
        let sealed = match ignored {
            Some(Trusted::Known(found)) => format!("leave out seal=off: {found} has the target's key"),
            Some(Trusted::Option(_)) => "leave out seal=off: peer-key= is the target's key".to_owned(),
            None => self.enrolment(),
        };
        let hint = if ignored.is_some() {
            format!("{sealed}; {clear}")
        } else {
            format!("{clear}; to seal the session: {sealed}")
        };
        Failure { cause, ..failure }.hint(hint)
    }

    /// The commands that make the two hosts known to each other.
    fn enrolment(&self) -> String {
        let mut commands = Vec::new();
        if identity::default_file().is_ok_and(|file| !file.exists()) {
            commands.push("hikyaku key new".to_owned());
        }
        if self.policy_requested == Some(SealPolicy::Off) {
            commands.push("leave out seal=off".to_owned());
        }
        commands.push(format!("hikyaku key trust iscsi://{}", portal(&self.url)));
        format!("{}; then the target's peers need what `hikyaku key public` shows", commands.join("; "))
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
        if let (Protection::Sealed { peer_key, .. }, Some(Trusted::Known(found))) =
            (login.protection, trusted)
        {
            let found = self.on_proven(&found, peer_key, login.next_key);
            let host = Place::of(&self.url.host, self.url.port);
            if let Some(target) = &self.url.target
                && let Err(failure) = self.known.note(&found, &host, target)
            {
                tracing::debug!(cause = failure.cause, "the target's name is not noted");
            }
        }
        if !login.protection.is_whole()
            && !is_local(login.address)
            && self.policy_requested != Some(SealPolicy::Off)
        {
            let text = self.unprotected(login);
            if self.once.is_first(&text) {
                context::warn(self.json, &text);
            }
        }
    }
}

impl Client {
    /// Stores what a login has shown of the target's keys: that it has changed to its next key, or what it has announced.
    /// Returns `found` with the keys after it. A file that cannot be written does not end the session.
    fn on_proven(&self, found: &Found, proven: PublicKey, announced: Announced) -> Found {
        let mut now = found.clone();
        if proven != found.key {
            self.store(found, Change::Replaced(proven));
            (now.key, now.next) = (proven, None);
        }
        let next = match announced {
            Announced::Nothing => now.next,
            Announced::Kept => None,
            Announced::Next(next) => Some(next),
        };
        if next != now.next {
            self.store(&now, Change::Next(next));
            now.next = next;
        }
        if now != *found {
            let mut last = self.last();
            let read =
                last.learned.filter(|learned| learned.key == found.key).map_or(found.key, |old| old.read);
            last.learned = Some(Learned { read, key: now.key, next: now.next });
            last.trusted = Some(Trusted::Known(now.clone()));
        }
        now
    }

    fn store(&self, found: &Found, change: Change) {
        let portal = portal(&self.url);
        let present = fingerprint(&found.key);
        let text = match change {
            Change::Next(Some(next)) => format!(
                "{portal} announces its next key {}, in a session sealed with its key {present}; from now on both are accepted. \
                 If its owner has not rotated it: hikyaku key forget iscsi://{portal}",
                fingerprint(&next)
            ),
            Change::Next(None) => {
                format!(
                    "{portal} keeps its key {present}; the next key that was announced is not accepted any more"
                )
            }
            Change::Replaced(next) => format!(
                "{portal} has changed to the key {} that it had announced; its key {present} is not accepted any more",
                fingerprint(&next)
            ),
        };
        let stored = KnownTargets::rotate(&found.path, &found.key, change);
        let text = match &stored {
            Ok(()) => text,
            Err(failure) => format!(
                "{text}. This holds until the command ends: {} {}: {}",
                failure.attempted, failure.object, failure.cause
            ),
        };
        if self.once.is_first(&text) {
            context::warn(self.json, &text);
        }
    }

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

/// The place of `[client] seal = "require"` in the configuration of the host or of this user.
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

fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn must_be_sealed(found: &Found, failure: Failure) -> Failure {
    let cause = format!("{}: {found} has its key, for {}", failure.cause, found.by);
    Failure { cause, ..failure }.hint(format!(
        "check which server answers there; if it is meant to be without sealing from now on, remove {found}, or say seal=off"
    ))
}

/// The failure of a portal that proves another key than the known one.
pub(crate) fn changed(url: &Url, trusted: &Trusted, answered: &PublicKey) -> Failure {
    let place = match trusted {
        Trusted::Option(_) => "the key that was given".to_owned(),
        Trusted::Known(found) => format!("{found}, for {}", found.by),
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

/// The command that makes a key trusted by `key trust` known to every user of this host; `None` if it is already.
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

    #[test]
    fn a_refused_login_in_the_clear_names_the_cause_before_enrolment() {
        let key = PublicKey::parse(KEY).unwrap();
        let found = || Found { path: "known".into(), line: 3, key, next: None, by: "h:3260".to_owned() };
        let enrol = "to seal the session: ";
        for (options, known, cause, first, last) in [
            (
                "",
                None,
                "neither CHAP nor a seal",
                "if the target admits logins without a seal: chap-user=",
                enrol,
            ),
            (
                ",chap-user=me",
                None,
                "CHAP and without a seal",
                "if the target admits logins without a seal, check",
                enrol,
            ),
            (
                ",seal=off",
                Some(Trusted::Known(found())),
                "neither CHAP nor a seal",
                "leave out seal=off: line 3 of known has the target's key; ",
                "chap-secret-file=FILE",
            ),
        ] {
            let url = Url::parse("iscsi://h/iqn.2026-11.example:a/0").unwrap();
            let spec = Spec::parse(&format!("iscsi://h/iqn.2026-11.example:a/0{options}")).unwrap();
            let client = Client::new(&Context::default(), &spec, &url, false).unwrap();
            let Failure { cause: found, hint, .. } =
                client.unsealed(known.as_ref(), Failure::failed("use", "h", "authentication failed"));
            let expected =
                format!("authentication failed: a login with {cause}, and the target seals sessions");
            assert_eq!(found, expected, "{options}");
            assert!(hint.starts_with(first) && hint.contains(last), "{options}: {hint}");
        }
    }

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
    fn another_key_is_shown_beside_the_known_one() {
        let url = Url::parse("iscsi://h").unwrap();
        let key = PublicKey::parse(KEY).unwrap();
        let found = Found { path: "known".into(), line: 3, key, next: None, by: "h:3260".to_owned() };
        let failure = changed(&url, &Trusted::Known(found), &PublicKey([2; 32]));
        assert!(failure.cause.contains(&format!(", for h:3260: {KEY}\n")), "{}", failure.cause);
    }

    #[test]
    fn each_row_of_the_policy_at_the_initiator_seal1_7() {
        let known = |more: &str| sealed(&format!(",peer-key={KEY},identity=FILE{more}"));
        let policy = |more: &str| known(more).unwrap().map(|sealing| sealing.policy);
        assert_eq!(policy(""), Some(SealPolicy::Require), "a known key is enough");
        assert_eq!(policy(",seal=require"), Some(SealPolicy::Require));
        assert_eq!(policy(",seal=offer"), Some(SealPolicy::Require), "not in the clear with a known key");
        assert_eq!(policy(",seal=off"), None);
        assert!(sealed("").unwrap().is_none(), "nothing is known, nothing was asked for");
        // With an option that requests sealing, a session is never in the clear.
        for option in
            [",seal=require", ",seal=offer", ",identity=FILE", ",suite=AES-256-GCM", ",psk-file=FILE"]
        {
            assert_eq!(sealed(option).unwrap_err().ending, Exit::Authentication, "{option}");
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
            assert_eq!(with(wrong).unwrap_err().ending, Exit::Usage, "{wrong}");
        }
        assert_eq!(sealed(",peer-key=short,identity=FILE").unwrap_err().ending, Exit::Usage);
    }
}
