//! Hosts with keys, a file to serve, and the commands that access it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::files::empty_file;
use crate::process::Surroundings;
use crate::seal::Keys;
use crate::{Context, Disk, Output, Target, scratch, wait_until};

/// `timeout=` of the initiator's sessions, in seconds.
pub(crate) const TIMEOUT_S: u64 = 8;
/// Time limit of a command under any attack: its session's timeout and a margin.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Time limit for an ended session to appear in the target's log.
const LOGGED: Duration = Duration::from_secs(5);
/// A SCSI product name that only this family's LUNs have.
pub(crate) const PRODUCT: &str = "CanaryInACoalMin";

#[derive(Debug)]
pub(crate) struct Estate {
    pub(crate) dir: TempDir,
    pub(crate) target: Keys,
    pub(crate) friend: Keys,
    pub(crate) stranger: Keys,
    pub(crate) peers: PathBuf,
    pub(crate) file: PathBuf,
}

impl Estate {
    pub(crate) fn new(context: &Context, bytes: u64) -> Result<Self> {
        let dir = scratch()?;
        let [target, friend, stranger] =
            ["target", "friend", "stranger"].map(|name| Keys::new(context, dir.path(), name));
        let (target, friend, stranger) = (target?, friend?, stranger?);
        let peers = dir.path().join("peers.toml");
        let file = empty_file(dir.path().join("disk.img"), bytes)?;
        let estate = Self { dir, target, friend, stranger, peers, file };
        estate.admit(&[("friend", &estate.friend)])?;
        Ok(estate)
    }

    pub(crate) fn admit(&self, who: &[(&str, &Keys)]) -> Result<()> {
        let peers = who.iter().map(|(name, keys)| keys.peer(name, "")).collect::<String>();
        Ok(std::fs::write(&self.peers, peers)?)
    }

    /// Admits `friend` alone, with these further lines of its entry.
    pub(crate) fn admit_friend(&self, more: &str) -> Result<()> {
        Ok(std::fs::write(&self.peers, self.friend.peer("friend", more))?)
    }

    pub(crate) fn disk(&self) -> Disk {
        Disk::file(&self.file).option(format!("product={PRODUCT}"))
    }

    pub(crate) fn serve(&self, context: &Context, policy: &str) -> Result<Target> {
        self.serve_in(context, policy, &Surroundings::default())
    }

    pub(crate) fn serve_in(
        &self,
        context: &Context,
        policy: &str,
        surroundings: &Surroundings,
    ) -> Result<Target> {
        let (identity, peers) = (self.target.path(), self.peers.display().to_string());
        let mut arguments = vec!["--seal", policy];
        if policy != "off" {
            arguments.extend(["--identity", &identity, "--peers", &peers]);
        }
        Target::serve_with(context, &[self.disk()], None, &arguments, surroundings)
    }

    pub(crate) fn endpoint(&self, target: &Target, portal: &str, who: &Keys, more: &str) -> String {
        let (url, identity, key) = (target.url(0).at(portal), who.path(), &self.target.public);
        format!("{url},timeout={TIMEOUT_S}s,seal=require,identity={identity},peer-key={key}{more}")
    }

    /// The endpoint of `friend`, without a relay.
    pub(crate) fn friend_at(&self, target: &Target) -> String {
        self.endpoint(target, &target.url(0).portal, &self.friend, "")
    }

    pub(crate) fn plain(target: &Target, portal: &str) -> String {
        format!("{},timeout={TIMEOUT_S}s,seal=off", target.url(0).at(portal))
    }

    /// Checks that a new session can read the LUN's size. On return that session and every one before it are in the
    /// target's log.
    pub(crate) fn serves_on(&self, context: &Context, target: &mut Target) -> Result<()> {
        target.running.alive()?;
        let logins = target.logins();
        let info = context.ours(&["info", &self.friend_at(target)], LIMIT)?.success();
        let info = info.context("a session after it");
        info.with_context(|| format!("--- log of the target\n{}", target.log()))?;
        wait_until(LOGGED, || Ok(target.logins() > logins))
            .with_context(|| format!("the target does not log its sessions\n{}", target.log()))
    }
}

pub(crate) fn ours(context: &Context, arguments: &[&str]) -> Result<Output> {
    context.ours(arguments, LIMIT)
}

pub(crate) fn refused(output: Output) -> Result<Output> {
    let output = output.expect(4)?;
    let text = output.text().to_lowercase();
    let is_said = text.contains("seal") || text.contains("key");
    ensure!(is_said, "it does not say that it is about sealing:\n{text}");
    Ok(output)
}
