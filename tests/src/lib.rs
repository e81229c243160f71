//! The shared part of test families and benchmarks: cases and how they run, guards for processes, targets and files,
//! and protocol implementations for tests.
//!
//! Of the product only wire formats are used (`seal`, `nbd`, `io`): a family runs the built program as its users do.

/// `ensure!` as the value of a body: its last check.
macro_rules! demand {
    ($condition:expr, $($message:tt)+) => {
        if $condition { Ok(()) } else { Err(anyhow::anyhow!($($message)+)) }
    };
}

pub mod capture;
pub mod cases;
pub mod cutter;
pub mod evidence;
pub mod family;
pub mod files;
pub mod fuzz;
pub mod guide;
pub mod journal;
pub mod load;
pub mod made;
pub mod nbd;
pub mod pdu;
pub mod process;
pub mod procfs;
pub mod random;
pub mod records;
pub mod relay;
pub mod run;
pub mod schema;
pub mod seal;
#[cfg(test)]
mod statements;
pub mod tap;
pub mod target;
mod terminal;
pub mod tgt;
pub mod verdict;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tempfile::TempDir;

pub use cases::{Cases, Scene};
pub use files::scratch;
pub use process::{Output, Running, run, wait_until};
pub use steps::{Against, Share, Tier, find_program};
pub use target::{Credentials, Disk, Served, Server, Target, Url};
pub use tgt::Tgt;

/// A family of cases about one peer or subject.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub about: &'static str,
    /// Names the cases and runs the requested ones: see [`cases`].
    pub examine: fn(&Context, &mut Cases) -> Result<()>,
    /// Can examine tgt instead of `hikyaku serve` (`--against tgt`).
    pub any_target: bool,
    /// Takes too long for every change: runs only when named, and nightly.
    pub is_nightly: bool,
}

impl Family {
    const fn of_any_target(self) -> Self {
        Self { any_target: true, ..self }
    }

    const fn nightly(self) -> Self {
        Self { is_nightly: true, ..self }
    }
}

#[derive(Debug)]
pub struct Context {
    pub repository: PathBuf,
    pub hikyaku: PathBuf,
    /// `None`: it is built when it is needed.
    pub simulator: Option<PathBuf>,
    /// Source of all random choices.
    pub seed: u64,
    pub tier: Tier,
    pub share: Share,
    pub against: Against,
    /// Replaces the user's home and state directories.
    pub home: TempDir,
    /// Additional environment variables of `hikyaku`.
    pub variables: Vec<(&'static str, String)>,
}

impl Context {
    pub fn new(hikyaku: PathBuf, seed: u64, tier: Tier, against: Against) -> Result<Self> {
        let (repository, home) = (steps::repository(), scratch()?);
        let (share, simulator) = (Share::default(), None);
        Ok(Self { repository, hikyaku, simulator, seed, tier, share, against, home, variables: Vec::new() })
    }

    /// A generator for one named purpose: more draws in one case do not change another case's.
    pub fn rng(&self, purpose: &str) -> StdRng {
        random::seeded(self.seed_for(purpose))
    }

    pub fn seed_for(&self, purpose: &str) -> u64 {
        // FNV-1a: its values are the same in every release, which the standard hasher does not guarantee.
        let start = 0xcbf2_9ce4_8422_2325 ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        purpose.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// `sample` in the sample tier, more with [`Share::Triple`]; `full` in the full tier.
    pub fn amount(&self, sample: usize, full: usize) -> usize {
        match (self.tier, self.share) {
            (Tier::Full, _) => full,
            (Tier::Sample, Share::Triple) => (3 * sample).min(full),
            (Tier::Sample, _) => sample,
        }
    }

    /// The program under test, with `home` in place of the user's directories.
    pub fn command_in(&self, home: &Path) -> Command {
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

    /// The program under test, with the run's own home directory.
    pub fn command(&self) -> Command {
        self.command_in(self.home.path())
    }

    pub fn ours<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S], limit: Duration) -> Result<Output> {
        run(self.command().args(arguments), limit)
    }

    pub fn serve(&self, disks: &[Disk], credentials: Option<&Credentials>) -> Result<Served> {
        match self.against {
            Against::Ours => Ok(Served::Ours(Target::serve(self, disks, credentials, &[])?)),
            Against::Tgt => Ok(Served::Tgt(Tgt::serve(disks, credentials)?)),
        }
    }
}

/// Ports that the kernel assigns to no one: above those of well-known services, below `ip_local_port_range`.
const PORTS: std::ops::Range<u16> = 15_000..32_768;

/// A TCP port of the loopback address that was free during the call. While the server behind it is down, no other
/// process is assigned it.
pub fn free_port() -> Result<u16> {
    let mut rng = rand::rng();
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut tries = std::iter::repeat_with(|| rng.random_range(PORTS)).take(1000);
    tries.find(is_free).context("no free port")
}

/// A command for a program found by [`find_program`].
pub fn program(name: &str) -> Result<Command> {
    match find_program(name) {
        Some(path) => Ok(Command::new(path)),
        None => Err(Missing(name.to_owned()).into()),
    }
}

/// A program of a peer that a case needs is not installed.
#[derive(Debug)]
pub struct Missing(String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not installed", self.0)
    }
}

impl std::error::Error for Missing {}
