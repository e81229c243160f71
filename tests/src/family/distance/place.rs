//! A path of 1 Gbit/s with a server at its far side, and copies to and from it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::wan::{ADDRESSES, Line, Options, Settings, Tap, Wan};
use tempfile::TempDir;

use crate::files::{empty_file, random_file, same_range};
use crate::process::Surroundings;
use crate::seal::Keys;
use crate::{Context, Credentials, Output, Running, Server, scratch};

pub(super) const PORT: u16 = 3260;
const BITS_PER_S: f64 = 1e9;
/// Time limit of a copy.
const LIMIT: Duration = Duration::from_secs(120);
const CAPTURE: &str = "initiator.pcap";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Write,
    Read,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }

    /// Which end of the copy is the LUN.
    pub(super) fn remote_end(self) -> &'static str {
        match self {
            Self::Write => "destination",
            Self::Read => "source",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    Plain,
    Chap,
    Sealed,
}

impl Protection {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Chap => "chap",
            Self::Sealed => "sealed",
        }
    }

    /// Arguments of `serve`, and options of its URL.
    fn prepare(self, context: &Context, dir: &Path) -> Result<(Vec<String>, String)> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match self {
            Self::Plain => Ok((words(&["--seal", "off"]), ",seal=off".to_owned())),
            Self::Chap => {
                let credentials = Credentials::example();
                let file = credentials.secret_file(dir)?.display().to_string();
                let arguments =
                    words(&["--seal", "off", "--chap-user", &credentials.user, "--chap-secret-file", &file]);
                Ok((arguments, format!("{},seal=off", credentials.options(dir)?)))
            }
            Self::Sealed => {
                let [own, target] = ["own", "target"].map(|name| Keys::new(context, dir, name));
                let (own, target) = (own?, target?);
                let peers = dir.join("peers.toml");
                std::fs::write(&peers, own.peer("distance", ""))?;
                let peers = peers.display().to_string();
                let arguments =
                    words(&["--seal", "require", "--identity", &target.path(), "--peers", &peers]);
                Ok((arguments, format!(",identity={},peer-key={}", own.path(), target.public)))
            }
        }
    }
}

/// Makes a tap that writes to this file.
pub(super) type MakeTap<'a> = &'a dyn Fn(PathBuf) -> Tap;

pub(super) struct Place {
    // Declared before the path and therefore dropped first.
    server: Option<Server>,
    wan: Wan,
    dir: TempDir,
    bytes: u64,
    /// Arguments of `serve` before its LUN, and options of the URL.
    arguments: Vec<String>,
    options: String,
}

impl Place {
    /// With a source and a LUN of `bytes`.
    pub(super) fn new(
        context: &Context,
        rtt: Duration,
        bytes: u64,
        protection: Protection,
        tap: Option<MakeTap<'_>>,
    ) -> Result<Self> {
        let dir = scratch()?;
        for name in ["source.img", "lun.img"] {
            random_file(dir.path().join(name), bytes, context.seed_for(&format!("distance/{name}")))?;
        }
        let (arguments, options) = protection.prepare(context, dir.path())?;
        let mut path = Options::new(Settings::new(rtt, Some(BITS_PER_S)));
        path = path.ipv4("tcp_congestion_control", "cubic");
        path.tap = tap.map(|tap| tap(dir.path().join(CAPTURE)));
        let wan = Wan::start(&path)?;
        let mut place = Self { server: None, wan, dir, bytes, arguments, options };
        place.serve(context)?;
        Ok(place)
    }

    pub(super) fn line(&self) -> &Line {
        self.wan.line()
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Kills the server, if there is one, and starts it with the same names and identities.
    pub(super) fn serve(&mut self, context: &Context) -> Result<()> {
        self.server = None;
        let mut command = self.command(context, 1);
        command.arg("serve").args(&self.arguments);
        command.args(["--listen", &format!("{}:{PORT}", ADDRESSES[1])]).arg(self.file("lun.img"));
        self.server = Some(Server::start(&mut command, 1)?);
        Ok(())
    }

    pub(super) fn kill_server(&mut self) {
        self.server = None;
    }

    fn command(&self, context: &Context, side: usize) -> Command {
        let mut command = context.command_in(self.dir.path());
        Surroundings::network(self.wan.side(side).name()).apply(&mut command);
        command.current_dir(self.dir.path());
        command
    }

    fn url(&self) -> Result<String> {
        let server = self.server.as_ref().context("there is no server")?;
        Ok(format!("{}{}", server.url, self.options))
    }

    /// Starts a copy from `source.img` to the LUN, or from the LUN to `copy.img`; `more` are options of the LUN.
    pub(super) fn start_copy(&self, context: &Context, way: Way, more: &str) -> Result<Running> {
        self.start_copy_with(context, way, more, &[])
    }

    fn start_copy_with(&self, context: &Context, way: Way, more: &str, words: &[&str]) -> Result<Running> {
        let lun = format!("{}{more}", self.url()?);
        let ends = match way {
            Way::Write => ["source.img", &lun],
            Way::Read => [&lun, "copy.img"],
        };
        Running::start(self.command(context, 0).args(["copy", "--json"]).args(ends).args(words))
    }

    pub(super) fn copy_verified(&self, context: &Context, way: Way) -> Result<Output> {
        finish(self.start_copy_with(context, way, "", &["--verify", "--connections", "1"])?)
    }

    pub(super) fn copy(&self, context: &Context, way: Way) -> Result<Output> {
        finish(self.start_copy(context, way, "")?)
    }

    /// Runs a line that the program printed.
    pub(super) fn type_line(&self, context: &Context, line: &str) -> Result<Output> {
        let line = line.strip_prefix("hikyaku ").with_context(|| format!("no command line: {line}"))?;
        let mut command = Command::new("sh");
        let ours = self.command(context, 0);
        Surroundings::network(self.wan.side(0).name()).apply(&mut command);
        command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(self.dir.path());
        let script = format!("exec '{}' {line}", context.hikyaku.display());
        finish(Running::start(command.args(["-c", &script]))?)
    }

    /// Fails unless everything arrived.
    pub(super) fn compare(&self, way: Way) -> Result<()> {
        let (from, to) = match way {
            Way::Write => ("source.img", "lun.img"),
            Way::Read => ("lun.img", "copy.img"),
        };
        same_range(&self.file(from), 0, &self.file(to), 0, self.bytes)
    }

    /// Waits until so many bytes of a running copy have been delivered from its side of the path.
    pub(super) fn wait_moved(&self, copy: &mut Running, way: Way, bytes: u64) -> Result<()> {
        let side = if way == Way::Write { 0 } else { 1 };
        crate::wait_until(LIMIT, || {
            copy.alive()?;
            Ok(self.line().counters(side).delivered_bytes > bytes)
        })
        .with_context(|| format!("{bytes} bytes of the {}", way.name()))
    }

    /// Ends the capture; returns its file.
    pub(super) fn finish_tap(&self) -> Result<PathBuf> {
        let left_out = self.wan.line().finish_tap()?;
        ensure!(left_out == 0, "{left_out} packets are missing in the capture");
        Ok(self.file(CAPTURE))
    }

    /// Appends a hole to the source and to the LUN.
    pub(super) fn extend(&mut self, bytes: u64) -> Result<()> {
        for name in ["source.img", "lun.img"] {
            std::fs::OpenOptions::new().write(true).open(self.file(name))?.set_len(bytes)?;
        }
        self.bytes = bytes;
        Ok(())
    }

    pub(super) fn empty_lun(&self) -> Result<()> {
        empty_file(self.file("lun.img"), self.bytes).map(drop)
    }
}

/// A successful end.
pub(super) fn finish(copy: Running) -> Result<Output> {
    copy.finish(LIMIT)?.orderly()?.success()
}
