//! Who may log in: access rules with their secrets, users of this machine, and listeners that nothing protects.

use node::SealPolicy;
use node::target::{Access, AclEntry, ChapAccount, LocalUsers};

use crate::config::{Account, Acl, Config, Target};
use crate::context::Context;
use crate::error::Failure;
use crate::{secret, sys};

/// Refuses a listener beyond loopback without protection, unless an option permits it explicitly.
pub(crate) fn check_exposure(context: &Context, config: &Config) -> Result<(), Failure> {
    let Some(exposed) = config.listen.iter().find(|address| !address.ip().to_canonical().is_loopback())
    else {
        return Ok(());
    };
    if config.seal_policy() == SealPolicy::Require {
        return Ok(());
    }
    let Some(open) = config.targets.iter().find(|target| target.is_open()) else { return Ok(()) };
    let target = open.iqn.as_deref().unwrap_or("the target");
    if config.seal == Some(SealPolicy::Off) {
        context.warn(&format!(
            "{target} is open to everyone who can reach {exposed}: neither CHAP nor a key protects it, as --seal off allowed"
        ));
        return Ok(());
    }
    let why = match config.seal_policy() {
        SealPolicy::Offer => {
            "--seal offer also admits initiators that do not seal, and they are not authenticated"
        }
        _ if config.tls.is_some() => "TLS proves the target to initiators, not initiators to the target",
        _ => {
            "neither CHAP nor a key protects it, and an acl by initiator alone checks a name that any host can claim"
        }
    };
    let cause = format!("everyone who can reach {exposed} could read and write {target}: {why}");
    let hint = match config.seal_policy() {
        SealPolicy::Offer => {
            "--chap-user and --chap-secret-file for those, --seal require to let none of them in, or peer or chap-user in every \
             [[target.acl]]"
        }
        _ if config.tls.is_some() => {
            "--chap-user and --chap-secret-file, chap-user in every [[target.acl]], or --seal off if that is meant"
        }
        _ => {
            "--peers with the keys of those who may, --chap-user and --chap-secret-file, peer or chap-user in every \
             [[target.acl]], or --seal off if that is meant"
        }
    };
    Err(Failure::refused("listen on", exposed.to_string(), cause).hint(hint))
}

/// Access rules of each target, with the secrets read from their files.
pub(crate) fn accesses(context: &Context, config: &Config) -> Result<Vec<Access>, Failure> {
    let accesses: Vec<Access> =
        config.targets.iter().map(|target| target.access(context, config)).collect::<Result<_, _>>()?;
    // After CHAP a row is chosen by the authenticated name, so each name must have one secret.
    let mut known: Vec<ChapAccount> = Vec::new();
    for acl in config.targets.iter().flat_map(|target| &target.acls) {
        let Some(chap) = &acl.chap else { continue };
        let all = accesses.iter().flat_map(|access| {
            access.chap.iter().chain(access.initiators.iter().filter_map(|row| row.chap.as_ref()))
        });
        known.clear();
        known.extend(all.filter(|account| account.user == chap.user).cloned());
        if known.iter().any(|account| !account.secret.same_as(&known[0].secret)) {
            return Err(
                config.wrong_row(acl, &format!("user '{}' has another secret in another acl", chap.user))
            );
        }
    }
    Ok(accesses)
}

/// Local users that may log in over loopback without CHAP or key: the server's own, root, and those of `--allow-user`.
pub(crate) fn local_users(config: &Config) -> Result<LocalUsers, Failure> {
    if config.allow_users.iter().any(|name| name == "any") {
        return Ok(LocalUsers::Any);
    }
    let mut uids = vec![0, sys::user()];
    for name in &config.allow_users {
        let failed = |cause: &dyn std::fmt::Display| {
            Failure::usage("find the user", name.clone(), cause).hint("--allow-user NAME, its number, or any")
        };
        let uid = match name.parse() {
            Ok(uid) => uid,
            Err(_) => sys::uid_of(name)
                .map_err(|error| failed(&error))?
                .ok_or_else(|| failed(&"this system has no such user"))?,
        };
        uids.push(uid);
    }
    uids.sort_unstable();
    uids.dedup();
    Ok(LocalUsers::Only(uids))
}

impl Target {
    pub(super) fn has_chap(&self) -> bool {
        self.acls.iter().any(|acl| acl.chap.is_some())
    }

    /// Whether a login is possible without CHAP and without a key.
    pub(super) fn is_open(&self) -> bool {
        let has_accounts = self.acls.iter().any(Acl::is_account);
        let proves = |acl: &Acl| acl.chap.is_some() || acl.peer.is_some() || has_accounts;
        self.acls.is_empty() || !self.acls.iter().all(proves)
    }

    fn access(&self, context: &Context, config: &Config) -> Result<Access, Failure> {
        let mut access = Access::default();
        for acl in &self.acls {
            let whose = format!("acl of {}", self.iqn.as_deref().unwrap_or_default());
            let secret = |account: &Account| {
                let secret = secret::from_file(context, &account.secret_file);
                secret.map_err(|failure| config.at_line(acl.line, &whose, failure))
            };
            let chap = match &acl.chap {
                None => None,
                Some(account) => {
                    let mutual = acl.mutual.as_ref();
                    let mutual = mutual.map(|other| Ok((other.user.clone(), secret(other)?))).transpose()?;
                    Some(ChapAccount { user: account.user.clone(), secret: secret(account)?, mutual })
                }
            };
            if acl.is_account() {
                access.chap.extend(chap);
                continue;
            }
            access.initiators.push(AclEntry {
                initiator: acl.initiator.clone(),
                peer: acl.peer.clone(),
                luns: acl.luns.clone(),
                read_only: acl.read_only,
                chap,
            });
        }
        Ok(access)
    }
}
