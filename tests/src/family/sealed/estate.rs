//! Hosts with keys, a file to serve, and the commands that access it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::files::empty_file;
use crate::process::Surroundings;
use crate::{Context, Disk, Output, Target, scratch};

/// `timeout=` of the initiator's sessions, in seconds.
pub(crate) const TIMEOUT_S: u64 = 8;
/// Time limit of a command under any attack: its session's timeout and a margin.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Time limit for an ended session to appear in the target's log.
const LOGGED: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);
/// A SCSI product name that only this family's LUNs have.
pub(crate) const PRODUCT: &str = "CanaryInACoalMin";

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) file: PathBuf,
    pub(crate) public: String,
}

impl Keys {
    pub(crate) fn new(context: &Context, dir: &Path, name: &str) -> Result<Self> {
        let file = dir.join(format!("{name}.key"));
        let path = file.display().to_string();
        let output = context.ours(&["key", "new", &path], LIMIT)?.success()?;
        let public = output.stdout.trim().to_owned();
        ensure!(public.len() == 44, "`key new` prints {public:?}");
        Ok(Self { file, public })
    }

    pub(crate) fn secret(&self) -> Result<String> {
        let text = std::fs::read_to_string(&self.file)?;
        let line = text.lines().map(str::trim).find(|line| line.len() == 44 && !line.starts_with('#'));
        Ok(line.with_context(|| format!("no key in {}", self.file.display()))?.to_owned())
    }
}

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
        let (peers, file) = (dir.path().join("peers.toml"), dir.path().join("disk.img"));
        empty_file(&file, bytes)?;
        let estate = Self { dir, target, friend, stranger, peers, file };
        estate.admit(&[("friend", &estate.friend)])?;
        Ok(estate)
    }

    pub(crate) fn admit(&self, who: &[(&str, &Keys)]) -> Result<()> {
        let entry = |(name, keys): &(&str, &Keys)| {
            format!("[[peer]]\nname = \"{name}\"\npublic-key = \"{}\"\n", keys.public)
        };
        Ok(std::fs::write(&self.peers, who.iter().map(entry).collect::<String>())?)
    }

    pub(crate) fn disk(&self) -> Disk {
        Disk::file(&self.file).option(format!("product={PRODUCT}"))
    }

    pub(crate) fn serve(&self, context: &Context, policy: &str) -> Result<Target> {
        self.serve_in(context, policy, &[], &Surroundings::default())
    }

    pub(crate) fn serve_in(
        &self,
        context: &Context,
        policy: &str,
        more: &[&str],
        surroundings: &Surroundings,
    ) -> Result<Target> {
        let (identity, peers) = (self.target.file.display().to_string(), self.peers.display().to_string());
        let mut arguments = vec!["--seal", policy];
        if policy != "off" {
            arguments.extend(["--identity", &identity, "--peers", &peers]);
        }
        arguments.extend(more);
        Target::serve_with(context, &[self.disk()], None, &arguments, surroundings)
    }

    pub(crate) fn endpoint(&self, target: &Target, portal: &str, who: &Keys, more: &str) -> String {
        let url = target.url(0);
        let identity = who.file.display();
        format!(
            "iscsi://{portal}/{}/{},timeout={TIMEOUT_S}s,seal=require,identity={identity},peer-key={}{more}",
            url.iqn, url.lun, self.target.public
        )
    }

    pub(crate) fn plain(target: &Target, portal: &str) -> String {
        let url = target.url(0);
        format!("iscsi://{portal}/{}/{},timeout={TIMEOUT_S}s,seal=off", url.iqn, url.lun)
    }

    /// Checks that a new session can read the LUN's size. On return that session and every one before it are in the
    /// target's log.
    pub(crate) fn serves_on(&self, context: &Context, target: &mut Target) -> Result<()> {
        ensure!(!target.ended(), "the target has ended by itself\n{}", target.log());
        let logins = target.logins();
        let endpoint = self.endpoint(target, &target.url(0).portal, &self.friend, "");
        let info = context.ours(&["info", &endpoint], LIMIT)?.success().context("a session after it");
        info.with_context(|| format!("--- log of the target\n{}", target.log()))?;
        let until = Instant::now() + LOGGED;
        while target.logins() == logins {
            ensure!(Instant::now() < until, "the target does not log its sessions\n{}", target.log());
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

pub(crate) fn ours(context: &Context, arguments: &[&str]) -> Result<Output> {
    context.ours(arguments, LIMIT)
}

pub(crate) fn refused(output: Output) -> Result<Output> {
    let output = output.expect(4)?;
    let text = output.text().to_lowercase();
    ensure!(
        text.contains("seal") || text.contains("key"),
        "it does not say that it is about sealing:\n{text}"
    );
    Ok(output)
}
