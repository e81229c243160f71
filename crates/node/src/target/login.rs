//! Who may log in where, from the configuration alone.

use std::net::SocketAddr;

use iscsi::chap::Algorithms;
use iscsi::login::target::{AuthRequirement, ChapPolicy, Identity, Policy, Refusal};
use iscsi::name::TargetAddress;
use iscsi::params::{Params, SessionType};
use iscsi::wire::LoginStatus;

use super::config::{AclEntry, ChapAccount, ServerConfig, TargetConfig};
use super::lun::PORTAL_GROUP_TAG;

/// The answer to a login's first request.
pub(super) fn policy(config: &ServerConfig, identity: &Identity) -> Result<Policy, Refusal> {
    let initiator = identity.initiator_name.as_str();
    let accounts = match identity.session_type {
        SessionType::Discovery => discovery_accounts(config, initiator),
        SessionType::Normal => {
            let name = identity.target_name.as_ref().ok_or(LoginStatus::MissingParameter)?;
            let target = config.targets.iter().find(|target| target.iqn == name.as_str());
            let target = target.ok_or(LoginStatus::NotFound)?;
            let entry = entry(target, initiator).map_err(|Denied| LoginStatus::AuthorizationFailure)?;
            accounts(target, entry)
        }
    };
    let auth = if accounts.is_empty() {
        AuthRequirement::None
    } else {
        let chap = |user: &str, secret: &iscsi::chap::Secret| iscsi::login::ChapAccount {
            user: user.to_owned(),
            secret: secret.clone(),
        };
        let mutual = accounts.iter().find_map(|account| account.mutual.as_ref());
        AuthRequirement::Chap(ChapPolicy {
            mutual: mutual.map(|(user, secret)| chap(user, secret)),
            accounts: accounts.iter().map(|account| chap(&account.user, &account.secret)).collect(),
            algorithms: Algorithms::default(),
        })
    };
    Ok(Policy { auth, portal_group_tag: PORTAL_GROUP_TAG, target_alias: None, params: params() })
}

/// What we want of every session.
fn params() -> Params {
    Params { max_recv_data_segment_length: 256 << 10, ..Params::default() }
}

/// The initiator is not on the list.
#[derive(Debug)]
pub(super) struct Denied;

/// The entry of an initiator in a target's list; `None` when there is no list.
pub(super) fn entry<'a>(target: &'a TargetConfig, initiator: &str) -> Result<Option<&'a AclEntry>, Denied> {
    if target.access.initiators.is_empty() {
        return Ok(None);
    }
    target.access.initiators.iter().find(|entry| entry.initiator == initiator).map(Some).ok_or(Denied)
}

fn accounts<'a>(target: &'a TargetConfig, entry: Option<&'a AclEntry>) -> Vec<&'a ChapAccount> {
    match entry.and_then(|entry| entry.chap.as_ref()) {
        Some(own) => vec![own],
        None => target.access.chap.iter().collect(),
    }
}

/// A discovery session must authenticate when every target it could be told of demands it: names are told to
/// nobody who could not log in.
fn discovery_accounts<'a>(config: &'a ServerConfig, initiator: &str) -> Vec<&'a ChapAccount> {
    let mut all = Vec::new();
    for target in &config.targets {
        let Ok(entry) = entry(target, initiator) else { continue };
        let accounts = accounts(target, entry);
        if accounts.is_empty() {
            return Vec::new();
        }
        all.extend(accounts);
    }
    all
}

/// The targets that a SendTargets answer may name to `initiator`, who authenticated as `user` (if at all).
pub(super) fn visible<'a>(
    config: &'a ServerConfig,
    initiator: &str,
    user: Option<&str>,
) -> impl Iterator<Item = &'a TargetConfig> {
    config.targets.iter().filter(move |target| {
        let Ok(entry) = entry(target, initiator) else { return false };
        let accounts = accounts(target, entry);
        accounts.is_empty() || accounts.iter().any(|account| Some(account.user.as_str()) == user)
    })
}

/// What SendTargets says of a portal: the advertised address, or the one the client used.
pub(super) fn portal_address(config: &ServerConfig, local: SocketAddr) -> Option<TargetAddress> {
    let text = match &config.advertise {
        Some(address) => format!("{address},{PORTAL_GROUP_TAG}"),
        None => format!("{local},{PORTAL_GROUP_TAG}"),
    };
    TargetAddress::parse(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use iscsi::chap::Secret;
    use iscsi::name::IscsiName;
    use iscsi::wire::Isid;

    use super::*;
    use crate::target::Access;

    fn account(user: &str) -> ChapAccount {
        ChapAccount { user: user.into(), secret: Secret::new(b"twelve bytes!").unwrap(), mutual: None }
    }

    fn target(iqn: &str, chap: Vec<ChapAccount>, initiators: &[&str]) -> TargetConfig {
        let entry =
            |name: &&str| AclEntry { initiator: (*name).into(), luns: None, read_only: false, chap: None };
        let access = Access { chap, initiators: initiators.iter().map(entry).collect() };
        TargetConfig { iqn: iqn.into(), luns: Vec::new(), access }
    }

    fn config(targets: Vec<TargetConfig>) -> ServerConfig {
        ServerConfig {
            listen: Vec::new(),
            advertise: None,
            targets,
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
        let policy_of = |config| policy(config, &discovery).unwrap().auth;
        assert!(matches!(policy_of(&all_closed), AuthRequirement::Chap(_)));
        let mixed = config(vec![closed, open]);
        assert!(matches!(policy_of(&mixed), AuthRequirement::None));
        let names = |user| -> Vec<_> {
            visible(&mixed, "iqn.2000-01.a:me", user).map(|target| target.iqn.clone()).collect()
        };
        assert_eq!(names(None), ["iqn.2000-01.t:open"]);
        assert_eq!(names(Some("u")).len(), 2);
        assert_eq!(names(Some("v")).len(), 1);
    }

    #[test]
    fn the_list_of_initiators_is_exact() {
        let name = "iqn.2000-01.t:x";
        let status = |config: &ServerConfig, target| {
            policy(config, &identity(SessionType::Normal, Some(target))).map(|_| ()).map_err(|r| r.status)
        };
        let listed = config(vec![target(name, Vec::new(), &["iqn.2000-01.a:me"])]);
        assert_eq!(status(&listed, name), Ok(()));
        let other = config(vec![target(name, Vec::new(), &["iqn.2000-01.a:you"])]);
        assert_eq!(status(&other, name), Err(LoginStatus::AuthorizationFailure));
        assert_eq!(status(&listed, "iqn.2000-01.t:y"), Err(LoginStatus::NotFound));
        assert_eq!(visible(&other, "iqn.2000-01.a:me", None).count(), 0);
    }
}
