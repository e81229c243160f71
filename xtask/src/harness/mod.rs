//! What every family uses: the run's context, the ledger of cases, guards for processes, targets and files.

pub(crate) mod capture;
pub(crate) mod cases;
pub(crate) mod cutter;
pub(crate) mod files;
pub(crate) mod load;
pub(crate) mod nbd;
pub(crate) mod pdu;
pub(crate) mod process;
pub(crate) mod procfs;
pub(crate) mod records;
pub(crate) mod relay;
pub(crate) mod seal;
pub(crate) mod tap;
pub(crate) mod target;
pub(crate) mod tgt;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tempfile::TempDir;

pub(crate) use cases::Cases;
pub(crate) use files::scratch;
pub(crate) use process::{Output, Running, run};
pub(crate) use target::{Credentials, Disk, Served, Target, Url};
pub(crate) use tgt::Tgt;

/// How much of a family's space is visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// A seeded sample, for every change.
    Sample,
    /// Everything, for the night.
    Full,
}

/// Which target a family examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Against {
    /// `hikyaku serve`.
    Ours,
    /// tgt: shows that the harness itself works, and how the peer fares.
    Tgt,
}

/// What a family is given.
#[derive(Debug)]
pub(crate) struct Context {
    /// Root of the working tree.
    pub(crate) repository: PathBuf,
    /// The release binary under test.
    pub(crate) hikyaku: PathBuf,
    /// Everything random derives from this.
    pub(crate) seed: u64,
    pub(crate) tier: Tier,
    pub(crate) against: Against,
    /// Stands in for the user's home and state directories.
    pub(crate) home: TempDir,
    /// What the environment of our programs has besides.
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Context {
    /// With an empty home.
    pub(crate) fn new(hikyaku: PathBuf, seed: u64, tier: Tier, against: Against) -> Result<Self> {
        let (repository, home) = (crate::steps::repository(), scratch()?);
        Ok(Self { repository, hikyaku, seed, tier, against, home, variables: Vec::new() })
    }

    /// A generator for one named purpose: adding draws to one case does not change another's.
    pub(crate) fn rng(&self, purpose: &str) -> StdRng {
        StdRng::seed_from_u64(self.seed_for(purpose))
    }

    /// A seed for one named purpose.
    pub(crate) fn seed_for(&self, purpose: &str) -> u64 {
        // FNV-1a: stable over releases, which the standard hasher does not promise.
        let start = 0xcbf2_9ce4_8422_2325 ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        purpose.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// `sample` in the sample tier, `full` in the full one.
    pub(crate) fn amount(&self, sample: usize, full: usize) -> usize {
        match self.tier {
            Tier::Sample => sample,
            Tier::Full => full,
        }
    }

    /// Our binary, with `home` in place of the user's directories.
    pub(crate) fn command_in(&self, home: &Path) -> Command {
        let mut command = Command::new(&self.hikyaku);
        command
            .env("HOME", home)
            .env("XDG_STATE_HOME", home.join("state"))
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env("XDG_CACHE_HOME", home.join("cache"))
            .env("XDG_RUNTIME_DIR", home)
            .env("RUST_BACKTRACE", "1")
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Our binary with the run's own home directory.
    pub(crate) fn command(&self) -> Command {
        self.command_in(self.home.path())
    }

    /// Runs our binary to its end.
    pub(crate) fn ours<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S], limit: Duration) -> Result<Output> {
        run(self.command().args(arguments), limit)
    }

    /// Serves disks from the target under examination.
    pub(crate) fn serve(&self, disks: &[Disk], credentials: Option<&Credentials>) -> Result<Served> {
        match self.against {
            Against::Ours => Ok(Served::Ours(Target::serve(self, disks, credentials, &[])?)),
            Against::Tgt => Ok(Served::Tgt(Tgt::serve(disks, credentials)?)),
        }
    }
}

/// A TCP port of the loopback address that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Finds a program in `PATH` or in the system directories that a user's `PATH` often lacks.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// A command for a program found by [`find_program`].
pub(crate) fn program(name: &str) -> Result<Command> {
    match find_program(name) {
        Some(path) => Ok(Command::new(path)),
        None => bail!("{name} is not installed"),
    }
}
