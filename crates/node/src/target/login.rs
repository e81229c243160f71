//! Login rights, derived from the configuration alone.

use std::net::SocketAddr;

use iscsi::chap::Algorithms;
use iscsi::login::NextKey;
use iscsi::login::target::{Account, AuthRequirement, ChapPolicy, Identity, Policy, Refusal};
use iscsi::name::TargetAddress;
use iscsi::params::{Params, SessionType};
use iscsi::wire::LoginStatus;
use scsi::Rights;

use super::config::{Access, AclEntry, ChapAccount, Peer, ServerConfig, TargetConfig};
use super::lun::{PORTAL_GROUP_TAG, Seen};
use crate::sealing::SealPolicy;

/// How a connection continues after the first request of its login (docs/SEAL.md, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Sealed,
    Plain,
    /// Refused with this status, before anything about targets is disclosed.
    Refused(LoginStatus),
}

/// `offered`: the first request offers the method. An enquiry about the target's key also counts as an offer.
pub(super) fn way(config: &ServerConfig, offered: bool) -> Way {
    match (config.seal_policy(), offered) {
        (SealPolicy::Off, _) | (SealPolicy::Offer, false) => Way::Plain,
        (SealPolicy::Offer | SealPolicy::Require, true) => Way::Sealed,
        (SealPolicy::Require, false) => Way::Refused(LoginStatus::AuthenticationFailure),
    }
}

/// The response to the first request of an ordinary login, sealed or not. `peer`: the peer whose key was proven on this
/// connection.
pub(super) fn policy(
    config: &ServerConfig,
    identity: &Identity,
    peer: Option<&Peer>,
) -> Result<Policy, Refusal> {
    let initiator = identity.initiator_name.as_str();
    if peer.is_none()
        && let Way::Refused(status) = way(config, false)
    {
        return Err(status.into());
    }
    // The name in the outer login was not authenticated; this one was sent sealed.
    if peer.and_then(|peer| peer.initiator.as_deref()).is_some_and(|bound| bound != initiator) {
        return Err(LoginStatus::AuthorizationFailure.into());
    }
    let (accounts, required) = match identity.session_type {
        SessionType::Discovery => discovery_accounts(config, initiator, peer),
        SessionType::Normal => {
            let name = identity.target_name.as_ref().ok_or(LoginStatus::MissingParameter)?;
            let target = config.targets.iter().find(|target| target.iqn == name.as_str());
            let accounts = target.ok_or(Denied).and_then(|target| accounts(config, target, initiator, peer));
            match accounts {
                Ok(accounts) => (accounts, true),
                Err(Denied) => {
                    tracing::debug!(initiator, target = %name, "no such target, or it denies this initiator");
                    return absent(config);
                }
            }
        }
    };
    let auth = if accounts.is_empty() { AuthRequirement::None } else { chap(&accounts, required) };
    Ok(with(auth))
}

/// The meaning of a refusal without a specific reason, for the log.
pub(super) fn meaning(status: LoginStatus) -> String {
    match status {
        LoginStatus::AuthenticationFailure => "what is required was not proven".to_owned(),
        LoginStatus::AuthorizationFailure => "no row of the access list fits it".to_owned(),
        LoginStatus::NotFound => "there is no such target".to_owned(),
        LoginStatus::ServiceUnavailable => "the server is busy or ends".to_owned(),
        other => format!("status {other:?}"),
    }
}

/// Whether a row of the target has an account of this user, for whatever initiator.
pub(super) fn has_account(target: &TargetConfig, user: &str) -> bool {
    let of_rows = target.access.initiators.iter().filter_map(|row| row.chap.as_ref());
    target.access.chap.iter().chain(of_rows).any(|account| account.user == user)
}

/// The LUNs of a session, and whether they are read-only for it, for reports.
pub(super) fn visible_luns(luns: &[Seen]) -> Vec<(u16, bool)> {
    let number = |seen: &Seen| scsi::lun::from_wire(seen.wire).expect("made of a number");
    luns.iter().map(|seen| (number(seen), seen.rights == Rights::ReadOnly)).collect()
}

/// The same for the log: `0 1,ro`.
pub(super) fn listed(luns: &[Seen]) -> String {
    let one = |(number, read_only)| format!("{number}{}", if read_only { ",ro" } else { "" });
    visible_luns(luns).into_iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The response for a target that does not exist, and for one that denies the initiator whatever it proves. It is the
/// same for both, so that names cannot be found by trying: if any target requires CHAP, the response is CHAP without a
/// valid account.
fn absent(config: &ServerConfig) -> Result<Policy, Refusal> {
    let mut access = config.targets.iter().map(|target| &target.access);
    let requires_chap = |access: &Access| {
        !access.chap.is_empty() || access.initiators.iter().any(|entry| entry.chap.is_some())
    };
    if access.clone().any(requires_chap) {
        Ok(with(chap(&[], true)))
    } else if access.any(|access| !access.initiators.is_empty()) {
        Err(LoginStatus::AuthorizationFailure.into())
    } else {
        // All targets are open to everyone: discovery lists them.
        Err(LoginStatus::NotFound.into())
    }
}

fn with(auth: AuthRequirement) -> Policy {
    Policy {
        auth,
        portal_group_tag: PORTAL_GROUP_TAG,
        target_alias: None,
        params: params(),
        next_key: NextKey::Unsaid,
    }
}

fn chap(accounts: &[&ChapAccount], required: bool) -> AuthRequirement {
    let account = |user: &str, secret: &iscsi::chap::Secret| iscsi::login::ChapAccount {
        user: user.to_owned(),
        secret: secret.clone(),
    };
    let accounts = accounts.iter().map(|known| Account {
        initiator: account(&known.user, &known.secret),
        mutual: known.mutual.as_ref().map(|(user, secret)| account(user, secret)),
    });
    AuthRequirement::Chap(ChapPolicy {
        accounts: accounts.collect(),
        algorithms: Algorithms::default(),
        required,
    })
}

fn params() -> Params {
    Params { max_recv_data_segment_length: 256 << 10, ..Params::default() }
}

/// The initiator matches no row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Denied;

/// An initiator: the name it claims, the proven key, and the authenticated user. `None` matches a row without account.
#[derive(Clone, Copy)]
pub(super) struct Claims<'a> {
    pub(super) initiator: &'a str,
    pub(super) peer: Option<&'a Peer>,
    pub(super) user: Option<&'a str>,
}

/// The rows that match an initiator's name and key, named ones first; authentication tells which one decides.
fn candidates<'a>(
    config: &'a ServerConfig,
    target: &'a TargetConfig,
    initiator: &'a str,
    peer: Option<&'a Peer>,
) -> impl Iterator<Item = &'a AclEntry> {
    let seals = config.seal_policy() != SealPolicy::Off;
    let fits = move |row: &&AclEntry| {
        let name = row.initiator.as_deref().is_none_or(|name| name == initiator);
        let key = row.peer.as_deref().is_none_or(|name| peer.is_some_and(|peer| peer.name == name));
        // Any initiator can claim a name: a name matches only together with the key that is bound to it.
        let bound = !seals
            || row.initiator.is_none()
            || row.peer.is_some()
            || row.chap.is_some()
            || peer.is_some_and(|peer| peer.initiator == row.initiator);
        name && key && bound
    };
    let rows = &target.access.initiators;
    let named = rows.iter().filter(|row| row.is_named());
    named.chain(rows.iter().filter(|row| !row.is_named())).filter(fits)
}

/// Whether the accounts of the target admit any initiator, without a row.
fn accounts_suffice(target: &TargetConfig) -> bool {
    !target.access.chap.is_empty() && !target.access.initiators.iter().any(AclEntry::is_named)
}

/// The accounts valid for a row; if empty, none is required.
fn accounts_of<'a>(target: &'a TargetConfig, row: &'a AclEntry) -> &'a [ChapAccount] {
    row.chap.as_ref().map_or(&target.access.chap[..], std::slice::from_ref)
}

/// The row that decides the rights of an initiator; `None`: full access.
pub(super) fn entry<'a>(
    config: &'a ServerConfig,
    target: &'a TargetConfig,
    claims: Claims<'a>,
) -> Result<Option<&'a AclEntry>, Denied> {
    let Claims { initiator, peer, user } = claims;
    let has_user =
        |accounts: &[ChapAccount]| accounts.iter().any(|account| Some(account.user.as_str()) == user);
    let fits = |row: &&AclEntry| {
        let accounts = accounts_of(target, row);
        accounts.is_empty() || has_user(accounts)
    };
    let Access { chap, initiators } = &target.access;
    match candidates(config, target, initiator, peer).find(fits) {
        Some(row) => Ok(Some(row)),
        None if initiators.is_empty() && chap.is_empty() => Ok(None),
        None if accounts_suffice(target) && has_user(chap) => Ok(None),
        None => Err(Denied),
    }
}

/// The rights of an initiator at a LUN; `None`: not visible. Both the row and the key must make it visible.
pub(super) fn rights(entry: Option<&AclEntry>, peer: Option<&Peer>, lun: u16) -> Option<Rights> {
    let by_entry = entry.and_then(|entry| entry.luns.as_ref());
    let by_key = peer.and_then(|peer| peer.luns.as_ref());
    if !by_entry.into_iter().chain(by_key).all(|luns| luns.contains(&lun)) {
        return None;
    }
    let read_only = entry.is_some_and(|entry| entry.read_only);
    Some(if read_only { Rights::ReadOnly } else { Rights::ReadWrite })
}

/// The accounts that an initiator may authenticate with; empty: authentication is not required.
fn accounts<'a>(
    config: &'a ServerConfig,
    target: &'a TargetConfig,
    initiator: &'a str,
    peer: Option<&'a Peer>,
) -> Result<Vec<&'a ChapAccount>, Denied> {
    let mut rows = candidates(config, target, initiator, peer).peekable();
    let Access { chap, initiators } = &target.access;
    let general: &[ChapAccount] = if accounts_suffice(target) { chap } else { &[] };
    match rows.peek() {
        None if initiators.is_empty() || !general.is_empty() => Ok(general.iter().collect()),
        None => Err(Denied),
        // The first row matches without authentication.
        Some(first) if accounts_of(target, first).is_empty() => Ok(Vec::new()),
        Some(_) => Ok(rows.flat_map(|row| accounts_of(target, row)).chain(general).collect()),
    }
}

/// The accounts of all targets that a discovery session may be told of, and whether it must use one: names are
/// disclosed only to initiators that could log in. If a target admits the initiator without an account, CHAP is
/// optional, and with it the session is told of more targets.
fn discovery_accounts<'a>(
    config: &'a ServerConfig,
    initiator: &'a str,
    peer: Option<&'a Peer>,
) -> (Vec<&'a ChapAccount>, bool) {
    let (mut all, mut required) = (Vec::new(), true);
    for target in &config.targets {
        let Ok(accounts) = accounts(config, target, initiator, peer) else { continue };
        required &= !accounts.is_empty();
        all.extend(accounts);
    }
    let required = required && !all.is_empty();
    (all, required)
}

/// The configuration that a session depends on, besides the key; a reload that changes it ends the session.
#[derive(Debug)]
pub(super) struct Grant {
    /// The row that decided; `None`: full access.
    pub(super) row: Option<AclEntry>,
    accounts: Vec<ChapAccount>,
}

impl Grant {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let row = match (&self.row, &other.row) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        row && self.accounts.len() == other.accounts.len()
            && self.accounts.iter().zip(&other.accounts).all(|(one, other)| one.is_same(other))
    }
}

/// The grant for a login to `target` (`None`: discovery) under this configuration.
pub(super) fn grant(
    config: &ServerConfig,
    target: Option<&str>,
    claims: Claims<'_>,
) -> Result<Grant, Denied> {
    let Claims { initiator, peer, user } = claims;
    let (row, (offered, required)) = match target {
        None => (None, discovery_accounts(config, initiator, peer)),
        Some(name) => {
            let target = config.targets.iter().find(|target| target.iqn == name).ok_or(Denied)?;
            let accounts = accounts(config, target, initiator, peer)?;
            let required = !accounts.is_empty();
            (entry(config, target, claims)?, (accounts, required))
        }
    };
    let of_user = offered.iter().filter(|account| Some(account.user.as_str()) == user);
    let accounts: Vec<ChapAccount> = of_user.map(|account| (*account).clone()).collect();
    if accounts.is_empty() && (required || user.is_some()) {
        return Err(Denied);
    }
    Ok(Grant { row: row.cloned(), accounts })
}

/// The targets that a response to SendTargets may name: those that the initiator may log in to.
pub(super) fn visible<'a>(
    config: &'a ServerConfig,
    claims: Claims<'a>,
) -> impl Iterator<Item = &'a TargetConfig> {
    config.targets.iter().filter(move |target| entry(config, target, claims).is_ok())
}

/// The portal address in the response to SendTargets: the advertised one, or the one that the client used.
pub(super) fn portal_address(config: &ServerConfig, local: SocketAddr) -> Option<TargetAddress> {
    let text = match &config.advertise {
        Some(address) => format!("{address},{PORTAL_GROUP_TAG}"),
        None => format!("{local},{PORTAL_GROUP_TAG}"),
    };
    TargetAddress::parse(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use iscsi::chap::Secret;
    use iscsi::name::IscsiName;
    use iscsi::wire::Isid;

    use super::*;
    use crate::target::config::{LocalUsers, Sealing};

    const ME: &str = "iqn.2000-01.a:me";

    fn account(user: &str) -> ChapAccount {
        ChapAccount { user: user.into(), secret: Secret::new(b"twelve bytes!").unwrap(), mutual: None }
    }

    fn target(iqn: &str, chap: Vec<ChapAccount>, initiators: &[&str]) -> TargetConfig {
        let entry = |name: &&str| AclEntry {
            initiator: Some((*name).into()),
            peer: None,
            luns: None,
            read_only: false,
            chap: None,
        };
        let access = Access { chap, initiators: initiators.iter().map(entry).collect() };
        TargetConfig { iqn: iqn.into(), luns: Vec::new(), access }
    }

    fn config(targets: Vec<TargetConfig>) -> ServerConfig {
        ServerConfig {
            listen: Vec::new(),
            advertise: None,
            sealing: None,
            targets,
            local_users: LocalUsers::Any,
            tls: None,
            drain_timeout: Duration::ZERO,
            threads: None,
        }
    }

    fn identity(session_type: SessionType, target: Option<&str>) -> Identity {
        Identity {
            initiator_name: IscsiName::parse("iqn.2000-01.a:me").unwrap(),
            initiator_alias: None,
            target_name: target.map(|name| IscsiName::parse(name).unwrap()),
            session_type,
            isid: Isid([0; 6]),
            tsih: 0,
            cid: 0,
        }
    }

    #[test]
    fn discovery_is_not_a_way_round_chap() {
        let closed = target("iqn.2000-01.t:closed", vec![account("u")], &[]);
        let open = target("iqn.2000-01.t:open", Vec::new(), &[]);
        let discovery = identity(SessionType::Discovery, None);
        let all_closed = config(vec![closed.clone()]);
        let policy_of = |config: &ServerConfig| policy(config, &discovery, None).unwrap().auth;
        let required = |auth| match auth {
            AuthRequirement::Chap(chap) => Some((chap.required, chap.accounts.len())),
            AuthRequirement::None => None,
        };
        assert_eq!(required(policy_of(&all_closed)), Some((true, 1)));
        assert_eq!(required(policy_of(&config(vec![open.clone()]))), None);
        let mixed = config(vec![closed, open]);
        assert_eq!(required(policy_of(&mixed)), Some((false, 1)), "an open target does not hide the other");
        let is_granted = |user| grant(&mixed, None, Claims { initiator: ME, peer: None, user }).is_ok();
        assert_eq!([None, Some("u"), Some("v")].map(is_granted), [true, true, false]);
        let names = |user| -> Vec<_> {
            visible(&mixed, Claims { initiator: ME, peer: None, user })
                .map(|target| target.iqn.clone())
                .collect()
        };
        assert_eq!(names(None), ["iqn.2000-01.t:open"]);
        assert_eq!(names(Some("u")).len(), 2);
        assert_eq!(names(Some("v")).len(), 1);
    }

    #[test]
    fn luns_are_listed_by_number() {
        let seen = |number, rights| Seen { wire: scsi::lun::to_wire(number).unwrap(), lun: 0, rights };
        let luns = [seen(0, Rights::ReadWrite), seen(1, Rights::ReadOnly), seen(300, Rights::ReadWrite)];
        assert_eq!(listed(&luns), "0 1,ro 300");
    }

    /// A server with `peers`.
    fn sealing(policy: SealPolicy, peers: Vec<Peer>, targets: Vec<TargetConfig>) -> ServerConfig {
        let identity = Arc::new(seal::Identity::generate([7; 32]));
        let suites = seal::Suite::ALL.to_vec();
        ServerConfig {
            sealing: Some(Sealing { policy, identity, peers, suites, next: None }),
            ..config(targets)
        }
    }

    fn peer(name: &str) -> Peer {
        let public_key = seal::PublicKey([1; 32]);
        Peer { name: name.into(), public_key, initiator: None, luns: None, psk: None }
    }

    #[test]
    fn each_row_of_the_policy_seal1_7() {
        let refused = Way::Refused(LoginStatus::AuthenticationFailure);
        let rows = [
            (SealPolicy::Off, true, Way::Plain),
            (SealPolicy::Off, false, Way::Plain),
            (SealPolicy::Offer, true, Way::Sealed),
            (SealPolicy::Offer, false, Way::Plain),
            (SealPolicy::Require, true, Way::Sealed),
            (SealPolicy::Require, false, refused),
        ];
        for (policy, offered, expected) in rows {
            let config = sealing(policy, Vec::new(), Vec::new());
            assert_eq!(way(&config, offered), expected, "{policy:?} {offered}");
        }
        assert_eq!(way(&config(Vec::new()), true), Way::Plain, "without an identity");
    }

    #[test]
    fn what_is_not_sealed_is_told_nothing_where_sealing_is_required() {
        let name = "iqn.2000-01.t:x";
        let config = sealing(SealPolicy::Require, vec![peer("p")], vec![target(name, Vec::new(), &[])]);
        for (session_type, target) in [
            (SessionType::Discovery, None),
            (SessionType::Normal, Some(name)),
            (SessionType::Normal, Some("iqn.2000-01.t:y")),
        ] {
            let identity = identity(session_type, target);
            let refusal = policy(&config, &identity, None).unwrap_err();
            assert_eq!(refusal.status, LoginStatus::AuthenticationFailure, "{target:?}");
        }
        let sealed = policy(&config, &identity(SessionType::Normal, Some(name)), Some(&peer("p"))).unwrap();
        assert!(matches!(sealed.auth, AuthRequirement::None), "a key that is on the list is enough");
    }

    #[test]
    fn chap_is_required_within_the_seal_where_it_is_configured() {
        let name = "iqn.2000-01.t:x";
        let config =
            sealing(SealPolicy::Require, vec![peer("p")], vec![target(name, vec![account("u")], &[])]);
        let sealed = policy(&config, &identity(SessionType::Normal, Some(name)), Some(&peer("p"))).unwrap();
        assert!(matches!(sealed.auth, AuthRequirement::Chap(_)));
    }

    #[test]
    fn a_key_is_bound_to_its_initiator_name() {
        let name = "iqn.2000-01.t:x";
        let bound = |to: &str| Peer { initiator: Some(to.into()), ..peer("p") };
        let config = sealing(SealPolicy::Offer, Vec::new(), vec![target(name, Vec::new(), &[])]);
        let identity = identity(SessionType::Normal, Some(name));
        assert!(policy(&config, &identity, Some(&bound("iqn.2000-01.a:me"))).is_ok());
        let refusal = policy(&config, &identity, Some(&bound("iqn.2000-01.a:you"))).unwrap_err();
        assert_eq!(refusal.status, LoginStatus::AuthorizationFailure);
    }

    #[test]
    fn an_entry_may_ask_for_a_key_and_be_seen_by_its_holder_only() {
        let name = "iqn.2000-01.t:x";
        let mut keyed = target(name, Vec::new(), &["iqn.2000-01.a:me"]);
        keyed.access.initiators[0] = AclEntry {
            initiator: None,
            peer: Some("p".into()),
            luns: Some(vec![0, 1]),
            read_only: false,
            chap: None,
        };
        let config = sealing(SealPolicy::Offer, vec![peer("p")], vec![keyed.clone()]);
        let (p, q) = (peer("p"), Peer { luns: Some(vec![1, 2]), ..peer("q") });
        let claims = |peer| Claims { initiator: ME, peer, user: None };
        let names = |peer| visible(&config, claims(peer)).count();
        assert_eq!([names(Some(&p)), names(Some(&q)), names(None)], [1, 0, 0]);
        let identity = identity(SessionType::Normal, Some(name));
        assert!(policy(&config, &identity, Some(&p)).is_ok());
        for other in [Some(&q), None] {
            let refusal = policy(&config, &identity, other).unwrap_err();
            assert_eq!(refusal.status, LoginStatus::AuthorizationFailure);
        }
        let entry = entry(&config, &keyed, claims(Some(&p))).unwrap();
        let seen = |peer| (0..4).filter(|lun| rights(entry, peer, *lun).is_some()).collect::<Vec<_>>();
        assert_eq!(seen(Some(&p)), [0, 1]);
        assert_eq!(seen(Some(&q)), [1], "the entry's and the key's");
        assert_eq!(rights(entry, Some(&p), 0), Some(Rights::ReadWrite));
        let read_only = AclEntry { read_only: true, ..entry.unwrap().clone() };
        assert_eq!(rights(Some(&read_only), Some(&p), 0), Some(Rights::ReadOnly));
        assert_eq!(rights(Some(&read_only), Some(&p), 2), None);
    }

    #[test]
    fn a_key_is_known_while_it_is_on_the_list() {
        let config = sealing(SealPolicy::Offer, vec![peer("p")], Vec::new());
        assert_eq!(config.peer(&seal::PublicKey([1; 32])).map(|peer| peer.name.as_str()), Some("p"));
        assert!(config.peer(&seal::PublicKey([2; 32])).is_none());
        let off = sealing(SealPolicy::Off, vec![peer("p")], Vec::new());
        assert!(off.peer(&seal::PublicKey([1; 32])).is_none());
    }

    #[test]
    fn a_target_that_does_not_exist_looks_like_one_that_does() {
        let [known, denies, unknown] =
            ["known", "denies", "unknown"].map(|name| format!("iqn.2000-01.t:{name}"));
        let ask = |config: &ServerConfig, name: &str| {
            policy(config, &identity(SessionType::Normal, Some(name)), None).map_err(|refusal| refusal.status)
        };
        // If one target requires CHAP, every login gets CHAP; where there is no account, none is valid.
        let with_chap = config(vec![
            target(&known, vec![account("u")], &[]),
            target(&denies, Vec::new(), &["iqn.2000-01.a:you"]),
        ]);
        for (name, accounts) in [(&known, 1), (&denies, 0), (&unknown, 0)] {
            let AuthRequirement::Chap(chap) = ask(&with_chap, name).unwrap().auth else { panic!("{name}") };
            assert_eq!(chap.accounts.len(), accounts);
        }
        let with_list = config(vec![target(&denies, Vec::new(), &["iqn.2000-01.a:you"])]);
        for name in [&denies, &unknown] {
            assert_eq!(ask(&with_list, name).unwrap_err(), LoginStatus::AuthorizationFailure, "{name}");
        }
        let open = config(vec![target(&known, Vec::new(), &[])]);
        assert_eq!(ask(&open, &unknown).unwrap_err(), LoginStatus::NotFound);
    }

    #[test]
    fn the_list_of_initiators_is_exact() {
        let name = "iqn.2000-01.t:x";
        let status = |config: &ServerConfig, target| {
            policy(config, &identity(SessionType::Normal, Some(target)), None)
                .map(|_| ())
                .map_err(|r| r.status)
        };
        let listed = config(vec![target(name, Vec::new(), &["iqn.2000-01.a:me"])]);
        assert_eq!(status(&listed, name), Ok(()));
        let other = config(vec![target(name, Vec::new(), &["iqn.2000-01.a:you"])]);
        assert_eq!(status(&other, name), Err(LoginStatus::AuthorizationFailure));
        assert_eq!(status(&listed, "iqn.2000-01.t:y"), Err(LoginStatus::AuthorizationFailure));
        assert_eq!(visible(&other, Claims { initiator: ME, peer: None, user: None }).count(), 0);
    }

    fn row(initiator: Option<&str>, chap: Option<&str>, luns: &[u16]) -> AclEntry {
        let luns = Some(luns.to_vec());
        AclEntry {
            initiator: initiator.map(Into::into),
            peer: None,
            luns,
            read_only: false,
            chap: chap.map(account),
        }
    }

    /// The LUNs of the row that decides; empty: the whole target. `Err`: denied.
    fn decided(config: &ServerConfig, peer: Option<&Peer>, user: Option<&str>) -> Result<Vec<u16>, ()> {
        let grant = grant(config, Some(&config.targets[0].iqn), Claims { initiator: ME, peer, user });
        grant.map(|grant| grant.row.and_then(|row| row.luns).unwrap_or_default()).map_err(|Denied| ())
    }

    fn offered(config: &ServerConfig) -> Vec<&str> {
        let accounts = accounts(config, &config.targets[0], ME, None).unwrap();
        accounts.iter().map(|account| account.user.as_str()).collect()
    }

    #[test]
    fn a_row_by_user_decides_what_that_user_gets() {
        let rows = vec![row(None, Some("u"), &[1]), row(None, Some("v"), &[2])];
        let mut config = config(vec![target("iqn.2000-01.t:x", Vec::new(), &[])]);
        config.targets[0].access.initiators = rows;
        assert_eq!(offered(&config), ["u", "v"]);
        let found = [decided(&config, None, Some("u")), decided(&config, None, Some("v"))];
        assert_eq!(found, [Ok(vec![1]), Ok(vec![2])]);
        assert!(decided(&config, None, None).is_err() && decided(&config, None, Some("w")).is_err());
        // An account without a row gets full access.
        config.targets[0].access.chap.push(account("w"));
        assert_eq!((offered(&config), decided(&config, None, Some("w"))), (vec!["u", "v", "w"], Ok(vec![])));
        // A row that names the initiator precedes others, whatever its position, and requires an account as well.
        config.targets[0].access.initiators.push(row(Some(ME), None, &[3]));
        assert_eq!(decided(&config, None, Some("w")), Ok(vec![3]));
        assert_eq!(decided(&config, None, Some("u")), Ok(vec![1]), "not an account of the named row");
        assert!(decided(&config, None, None).is_err());
    }

    #[test]
    fn with_named_rows_an_account_alone_lets_nobody_else_in() {
        let mut config = config(vec![target("iqn.2000-01.t:x", vec![account("u")], &["iqn.2000-01.a:you"])]);
        assert!(decided(&config, None, Some("u")).is_err());
        config.targets[0].access.initiators.push(row(None, Some("v"), &[1]));
        assert_eq!((offered(&config), decided(&config, None, Some("v"))), (vec!["v"], Ok(vec![1])));
    }

    #[test]
    fn a_name_counts_only_with_the_key_that_it_is_bound_to() {
        let name = "iqn.2000-01.t:x";
        let mut config = sealing(SealPolicy::Require, vec![peer("p")], vec![target(name, Vec::new(), &[])]);
        config.targets[0].access.initiators = vec![row(Some(ME), None, &[1])];
        let bound = Peer { initiator: Some(ME.into()), ..peer("p") };
        assert_eq!(decided(&config, Some(&bound), None), Ok(vec![1]));
        assert!(decided(&config, Some(&peer("q")), None).is_err(), "it types the name");
        assert!(decided(&config, None, None).is_err(), "in the clear");
    }

    #[test]
    fn a_grant_changes_with_everything_it_rests_on() {
        let of = |secret: &[u8], luns: &[u16]| {
            let mut config = config(vec![target("iqn.2000-01.t:x", Vec::new(), &[])]);
            let mut row = row(None, Some("u"), luns);
            row.chap.as_mut().unwrap().secret = Secret::new(secret).unwrap();
            config.targets[0].access.initiators = vec![row];
            grant(&config, Some("iqn.2000-01.t:x"), Claims { initiator: ME, peer: None, user: Some("u") })
                .unwrap()
        };
        let now = of(b"twelve bytes!", &[1]);
        assert!(now.is_same(&of(b"twelve bytes!", &[1])));
        assert!(!now.is_same(&of(b"twelve bytes?", &[1])), "another secret");
        assert!(!now.is_same(&of(b"twelve bytes!", &[1, 2])), "other LUNs");
        assert!(!peer("p").is_same(&Peer { luns: Some(vec![1]), ..peer("p") }));
    }
}
