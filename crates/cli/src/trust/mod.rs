//! Trust: this host's key, the keys of known targets, and the keys of the peers that a target admits. An error in one
//! of these files stops the command: a key that is skipped would mean sealing that is not required.

pub(crate) mod client;
pub(crate) mod file;
pub(crate) mod identity;
pub(crate) mod known;
pub(crate) mod peers;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use node::SealPolicy;
use node::target::{NextIdentity, Sealing};
use seal::{PublicKey, Suite};
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::context::Context;
use crate::error::Failure;
use crate::sys;

/// Directory of the host's files, read for every user.
pub(crate) const HOST_DIRECTORY: &str = "/etc/hikyaku";

/// Path of a file in the configuration directory: `$XDG_CONFIG_HOME/hikyaku`, `/etc/hikyaku` for root, else
/// `~/.config/hikyaku`.
pub(crate) fn config_file(name: &str) -> Result<PathBuf, Failure> {
    let from = |name: &str| std::env::var_os(name).filter(|value| Path::new(value).is_absolute());
    let directory = if let Some(base) = from("XDG_CONFIG_HOME") {
        Path::new(&base).join("hikyaku")
    } else if sys::is_root() {
        PathBuf::from(HOST_DIRECTORY)
    } else if let Some(home) = from("HOME") {
        Path::new(&home).join(".config/hikyaku")
    } else {
        let cause = "neither XDG_CONFIG_HOME nor HOME is set";
        return Err(Failure::usage("find the configuration directory", "", cause)
            .hint("set XDG_CONFIG_HOME to a directory that survives restarts"));
    };
    Ok(directory.join(name))
}

/// Creates a configuration directory if absent: the user's with mode 0700, the host's readable by every user.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    let mode = if path == Path::new(HOST_DIRECTORY) { 0o755 } else { 0o700 };
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// The command that makes a file of the host's configuration readable by every user.
pub(crate) fn for_all_to_read(path: &Path) -> String {
    format!(
        "sudo chmod 755 {HOST_DIRECTORY}; sudo chmod 644 {}: every user must be able to read it",
        path.display()
    )
}

/// The fingerprint of a key, in the format of ssh, for comparison by eye or telephone.
pub(crate) fn fingerprint(key: &PublicKey) -> String {
    let digest = PublicKey(Sha256::digest(key.0).into()).to_string();
    format!("SHA256:{}", digest.trim_end_matches('='))
}

/// The sealing of a server, from its configuration; `None` for never.
pub(crate) fn sealing(context: &Context, config: &Config) -> Result<Option<Sealing>, Failure> {
    let policy = config.seal_policy();
    let acls = || config.targets.iter().flat_map(|target| &target.acls);
    let named = || acls().find_map(|acl| acl.peer.as_deref());
    if policy == SealPolicy::Off {
        return match named() {
            Some(name) => Err(Failure::usage(
                "serve",
                "",
                format!("an acl requires the key of peer '{name}', but sealing is off"),
            )
            .hint("--peers FILE, and not --seal off")),
            None => Ok(None),
        };
    }
    let Some(file) = &config.peers else {
        let cause = format!("--seal {} needs the public keys of those who may log in", policy.name());
        return Err(Failure::usage("serve", "", cause).hint(
            "--peers FILE, with [[peer]], name = \"laptop\" and public-key = \"...\", which `hikyaku key public` shows there",
        ));
    };
    let peers = peers::load(context, file)?;
    for acl in acls() {
        if let Some(name) = &acl.peer
            && peers.iter().all(|peer| peer.name != *name)
        {
            let cause =
                format!("an acl requires the key of peer '{name}', which {} does not name", file.display());
            return Err(config.wrong_row(acl, &cause));
        }
        // With peers' keys an initiator name counts only together with the key bound to it, because any initiator can
        // send any name.
        if let (Some(name), None, None) = (&acl.initiator, &acl.peer, &acl.chap)
            && peers.iter().all(|peer| peer.initiator.as_ref() != Some(name))
        {
            let cause = format!("any peer may type the name {name}: no key proves it");
            let hint = format!(
                "peer = \"NAME\" in this acl, or initiator = \"{name}\" at its peer in {}",
                file.display()
            );
            return Err(config.wrong_row(acl, &cause).hint(hint));
        }
    }
    let identity = identity::load(config.identity.as_deref())?;
    let next = identity::load_next(config.identity.as_deref())?;
    let next = next.map(|next| Arc::new(NextIdentity::new(next)));
    Ok(Some(Sealing { policy, identity, peers, suites: Suite::ALL.to_vec(), next }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_a_digest_as_ssh_writes_it() {
        // printf '\0%.0s' {1..32} | sha256sum | xxd -r -p | base64
        assert_eq!(fingerprint(&PublicKey([0; 32])), "SHA256:Zmh6rfhivXdsj8GLjp+OIAiXFIVu4jOzkCpZHQ1fKSU");
    }
}
