//! Hosts with keys, a file to serve, and the ways to get at it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::harness::files::empty_file;
use crate::harness::process::Surroundings;
use crate::harness::{Context, Disk, Output, Target, scratch};

/// Patience of our sessions with the target, in seconds.
pub(in crate::family) const TIMEOUT_S: u64 = 8;
/// Of a command, whatever is done to it: its session's patience, and then some.
pub(in crate::family) const LIMIT: Duration = Duration::from_secs(60);
/// Until a session that has ended stands in the target's log.
const LOGGED: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);
/// A name of SCSI that only this family's LUNs have.
pub(in crate::family) const PRODUCT: &str = "CanaryInACoalMin";

/// A host's key pair.
#[derive(Clone, Debug)]
pub(in crate::family) struct Keys {
    pub(in crate::family) file: PathBuf,
    /// 44 characters.
    pub(in crate::family) public: String,
}

impl Keys {
    pub(in crate::family) fn new(context: &Context, dir: &Path, name: &str) -> Result<Self> {
        let file = dir.join(format!("{name}.key"));
        let path = file.display().to_string();
        let output = context.ours(&["key", "new", &path], LIMIT)?.success()?;
        let public = output.stdout.trim().to_owned();
        ensure!(public.len() == 44, "`key new` prints {public:?}");
        Ok(Self { file, public })
    }

    /// The private half as its file has it.
    pub(in crate::family) fn secret(&self) -> Result<String> {
        let text = std::fs::read_to_string(&self.file)?;
        let line = text.lines().map(str::trim).find(|line| line.len() == 44 && !line.starts_with('#'));
        Ok(line.with_context(|| format!("no key in {}", self.file.display()))?.to_owned())
    }
}

/// One target, an initiator it lets in, and one it does not.
#[derive(Debug)]
pub(in crate::family) struct Estate {
    pub(in crate::family) dir: TempDir,
    pub(in crate::family) target: Keys,
    pub(in crate::family) friend: Keys,
    pub(in crate::family) stranger: Keys,
    pub(in crate::family) peers: PathBuf,
    /// What is served.
    pub(in crate::family) file: PathBuf,
}

impl Estate {
    pub(in crate::family) fn new(context: &Context, bytes: u64) -> Result<Self> {
        let dir = scratch()?;
        let [target, friend, stranger] =
            ["target", "friend", "stranger"].map(|name| Keys::new(context, dir.path(), name));
        let (target, friend, stranger) = (target?, friend?, stranger?);
        let (peers, file) = (dir.path().join("peers.toml"), dir.path().join("disk.img"));
        empty_file(&file, bytes)?;
        let estate = Self { dir, target, friend, stranger, peers, file };
        estate.let_in(&[("friend", &estate.friend)])?;
        Ok(estate)
    }

    /// Writes the list of those who may log in.
    pub(in crate::family) fn let_in(&self, who: &[(&str, &Keys)]) -> Result<()> {
        let entry = |(name, keys): &(&str, &Keys)| {
            format!("[[peer]]\nname = \"{name}\"\npublic-key = \"{}\"\n", keys.public)
        };
        Ok(std::fs::write(&self.peers, who.iter().map(entry).collect::<String>())?)
    }

    pub(in crate::family) fn disk(&self) -> Disk {
        Disk::file(&self.file).option(format!("product={PRODUCT}"))
    }

    /// Serves the file under a policy.
    pub(in crate::family) fn serve(&self, context: &Context, policy: &str) -> Result<Target> {
        self.serve_in(context, policy, &[], &Surroundings::default())
    }

    pub(in crate::family) fn serve_in(
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

    /// The LUN at `portal` as an initiator with these keys names it.
    pub(in crate::family) fn endpoint(
        &self,
        target: &Target,
        portal: &str,
        who: &Keys,
        more: &str,
    ) -> String {
        let url = target.url(0);
        let identity = who.file.display();
        format!(
            "iscsi://{portal}/{}/{},timeout={TIMEOUT_S}s,seal=require,identity={identity},peer-key={}{more}",
            url.iqn, url.lun, self.target.public
        )
    }

    /// The same in the clear.
    pub(in crate::family) fn plain(target: &Target, portal: &str) -> String {
        let url = target.url(0);
        format!("iscsi://{portal}/{}/{},timeout={TIMEOUT_S}s,seal=off", url.iqn, url.lun)
    }

    /// That the target is well: a new session reads the LUN's size. When it returns, that session stands in the target's log,
    /// and so does every one before it.
    pub(in crate::family) fn serves_on(&self, context: &Context, target: &mut Target) -> Result<()> {
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

/// Our binary with these arguments, to its end.
pub(in crate::family) fn ours(context: &Context, arguments: &[&str]) -> Result<Output> {
    context.ours(arguments, LIMIT)
}

/// A refusal is exit code 4, and its text says what it is about.
pub(in crate::family) fn refused(output: Output) -> Result<Output> {
    let output = output.expect(4)?;
    let text = output.text().to_lowercase();
    ensure!(
        text.contains("seal") || text.contains("key"),
        "it does not say that it is about sealing:\n{text}"
    );
    Ok(output)
}
