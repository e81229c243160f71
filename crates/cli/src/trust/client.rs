//! The initiator's part: whether a session with a portal is sealed, with which keys, and what a refusal may mean.

use std::path::Path;
use std::time::Duration;

use block::Spec;
use node::SealPolicy;
use node::initiator::{InitiatorSealing, Url, enquire};
use seal::{PublicKey, Suite};

use super::identity;
use super::known::KnownTargets;
use super::{config_file, fingerprint};
use crate::context::Context;
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
    Known { line: usize, key: PublicKey },
}

impl Trusted {
    /// The key.
    pub(crate) fn key(&self) -> &PublicKey {
        match self {
            Self::Option(key) | Self::Known { key, .. } => key,
        }
    }
}

/// How the known targets name a portal.
pub(crate) fn portal(url: &Url) -> String {
    names::portal(&url.host.to_ascii_lowercase(), url.port)
}

/// What is known of a portal's key. `Err` tells what is wrong with the option, or with the known targets.
fn trusted(spec: &Spec, url: &Url, known: Option<&KnownTargets>) -> Result<Option<Trusted>, Failure> {
    if let Some(text) = spec.get("peer-key") {
        let key = PublicKey::parse(text).ok_or_else(|| {
            Failure::usage(
                "understand",
                format!("peer-key={text}"),
                "it is not a public key, 44 characters of base64",
            )
        })?;
        return Ok(Some(Trusted::Option(key)));
    }
    let found = known.map(|known| known.key_of(&portal(url))).transpose()?.flatten();
    Ok(found.map(|(line, key)| Trusted::Known { line, key }))
}

/// How the session of an endpoint is sealed; `None` for not at all. With a key that the target must prove, sealing is
/// required unless `seal=` says otherwise.
pub(crate) fn sealing(
    context: &Context,
    spec: &Spec,
    url: &Url,
) -> Result<Option<InitiatorSealing>, Failure> {
    let usage = |option: String, cause: &str| Failure::usage("understand", option, cause);
    let wanted = match spec.get("seal") {
        None => None,
        Some(name) => Some(
            SealPolicy::from_name(name)
                .ok_or_else(|| usage(format!("seal={name}"), "say seal=off, seal=offer or seal=require"))?,
        ),
    };
    if wanted == Some(SealPolicy::Off) {
        return Ok(None);
    }
    let known = KnownTargets::locate();
    if let (Err(failure), None) = (&known, spec.get("peer-key")) {
        context.warn(&format!("no target is known by its key: {}", failure.cause));
    }
    let Some(trusted) = trusted(spec, url, known.ok().as_ref())? else {
        let asks = wanted.map(|policy| format!("seal={}", policy.name()));
        let names_one =
            || OPTIONS[1..].iter().find(|name| spec.get(name).is_some()).map(|name| format!("{name}="));
        return match asks.or_else(names_one) {
            None => Ok(None),
            Some(asks) => {
                let cause = format!("{asks} was given, but the target's key is not known");
                Err(Failure::new(Exit::Authentication, "seal the session with", portal(url), cause)
                    .hint(format!("hikyaku key trust iscsi://{}, or peer-key=KEY", portal(url))))
            }
        };
    };
    let identity = identity::load(spec.get("identity").map(Path::new))?;
    let policy = wanted.unwrap_or(SealPolicy::Require);
    let mut sealing = InitiatorSealing::new(policy, identity, *trusted.key());
    if let Some(name) = spec.get("suite") {
        let names: Vec<&str> = Suite::ALL.iter().map(|suite| suite.name()).collect();
        // Of these only: the library may know more, for experiments.
        let suite = Suite::ALL
            .into_iter()
            .find(|suite| suite.name() == name)
            .ok_or_else(|| usage(format!("suite={name}"), &format!("the suites are {}", names.join(", "))))?;
        sealing.suites = vec![suite];
    }
    sealing.psk = spec.get("psk-file").map(|path| identity::load_psk(Path::new(path))).transpose()?;
    Ok(Some(sealing))
}

/// Says of a login that was refused what can be found out: whether the target seals, under which key, and what to type.
pub(crate) fn explain(spec: &Spec, url: &Url, failure: Failure) -> Failure {
    if failure.exit != Exit::Authentication {
        return failure;
    }
    let known = KnownTargets::locate().ok();
    let (Ok(trusted), Ok(answered)) = (trusted(spec, url, known.as_ref()), enquire(url, EXPLANATION_TIMEOUT))
    else {
        return failure;
    };
    match trusted {
        Some(trusted) if *trusted.key() != answered => changed(url, &trusted, &answered),
        Some(_) if spec.get("seal") != Some("off") => not_listed(spec, failure),
        trusted => unsealed(url, trusted.is_some(), failure),
    }
}

/// The target has proven the key we know, and yet refuses.
fn not_listed(spec: &Spec, failure: Failure) -> Failure {
    let key = identity::load(spec.get("identity").map(Path::new)).map(|identity| identity.public());
    let own = key.map_or_else(|_| "(see `hikyaku key public`)".to_owned(), |key| key.to_string());
    let cause = format!("{}; the target has the key we know", failure.cause);
    Failure { cause, ..failure }.hint(format!(
        "have this host's public key {own} added to the target's peers, and see whether they ask for another initiator=, \
         a psk-file= or CHAP"
    ))
}

/// We came in the clear, and the target could seal.
fn unsealed(url: &Url, is_known: bool, failure: Failure) -> Failure {
    let mut commands = Vec::new();
    if identity::default_file().is_ok_and(|file| !file.exists()) {
        commands.push("hikyaku key new".to_owned());
    }
    if is_known {
        commands.push("leave out seal=off".to_owned());
    } else {
        commands.push(format!("hikyaku key trust iscsi://{}", portal(url)));
    }
    let cause = format!("{}; the target seals sessions, and this login was in the clear", failure.cause);
    let hint = format!(
        "{}; then the target's peers need what `hikyaku key public` shows. Without sealing: {}",
        commands.join("; "),
        failure.hint
    );
    Failure { cause, ..failure }.hint(hint)
}

/// Somebody else answers than the key we know.
pub(crate) fn changed(url: &Url, trusted: &Trusted, answered: &PublicKey) -> Failure {
    let place = match trusted {
        Trusted::Option(_) => "peer-key=".to_owned(),
        Trusted::Known { line, .. } => {
            let file =
                config_file("known-targets").map(|file| file.display().to_string()).unwrap_or_default();
            format!("line {line} of {file}")
        }
    };
    let cause = format!(
        "ITS KEY IS NOT THE ONE WE KNOW. Somebody may be listening in between, or the target has a new identity.\n  \
         {place} has {}\n  the portal answered {answered}\n  fingerprint {}",
        trusted.key(),
        fingerprint(answered),
    );
    let portal = portal(url);
    Failure::new(Exit::Authentication, "trust", portal.clone(), cause).hint(format!(
        "ask the target's owner for its key by another way; if it is this one: hikyaku key trust iscsi://{portal} --key {answered}"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

    /// What the options come to at a portal whose key nobody knows.
    fn sealed(options: &str) -> Result<Option<InitiatorSealing>, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("k");
        fs::write(&file, format!("{KEY}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let options = options.replace("FILE", file.to_str().unwrap());
        let text = "iscsi://no-such-host.invalid/iqn.2026-11.example:a/0";
        let spec = Spec::parse(&format!("{text}{options}")).unwrap();
        sealing(&Context::default(), &spec, &Url::parse(text).unwrap())
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
