//! `hikyaku serve` under a guard, and an interface common to it and tgt.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tempfile::TempDir;

use super::process::{Surroundings, tail, wait_until};
use super::{Context, Output, Running, Tgt};

const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of a line of the log.
const LOG_LIMIT: Duration = Duration::from_secs(10);
/// Value of `HIKYAKU_LOG` that [`Target::memory_at_rest`] needs.
pub const MEMORY_LOG: &str = "warn,node::target::worker=debug";

#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Endpoint in the syntax of `hikyaku serve`; for tgt it must be a path.
    pub endpoint: String,
    pub read_only: bool,
    pub removable: bool,
    /// tgt offers UNMAP and WRITE SAME only with this option; `hikyaku serve` always does if the medium can.
    pub thin: bool,
    pub block_size: Option<u32>,
    /// Further endpoint options, for `hikyaku serve` only.
    pub options: Vec<String>,
}

impl Disk {
    /// A file, thin-provisioned in tgt.
    pub fn file(path: &Path) -> Self {
        Self { endpoint: path.display().to_string(), thin: true, ..Self::default() }
    }

    pub fn endpoint(endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), ..Self::default() }
    }

    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    fn argument(&self) -> String {
        let flags = [(self.read_only, "ro"), (self.removable, "removable")];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned());
        let block_size = self.block_size.map(|bytes| format!("block-size={bytes}"));
        let options = flags.chain(block_size).chain(self.options.iter().cloned());
        std::iter::once(self.endpoint.clone()).chain(options).collect::<Vec<_>>().join(",")
    }
}

#[derive(Clone, Debug)]
pub struct Credentials {
    pub user: String,
    pub secret: String,
}

impl Credentials {
    /// The credentials of the tests: 16 characters, none special to URLs or shells.
    pub fn example() -> Self {
        Self { user: "tester".into(), secret: "secret-of-16-byt".into() }
    }

    /// Writes the secret to a file that only its owner can read.
    pub fn secret_file(&self, dir: &Path) -> Result<PathBuf> {
        private_file(dir.join(format!("{}.secret", self.user)), &format!("{}\n", self.secret))
    }

    /// Options of an endpoint that name the user, and the file of [`Credentials::secret_file`].
    pub fn options(&self, dir: &Path) -> Result<String> {
        Ok(format!(",chap-user={},chap-secret-file={}", self.user, self.secret_file(dir)?.display()))
    }
}

/// Writes a file that only its owner can read; returns its path.
pub fn private_file(path: PathBuf, text: &str) -> Result<PathBuf> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&path).with_context(|| format!("create {}", path.display()))?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub portal: String,
    pub iqn: String,
    pub lun: u64,
}

impl Url {
    pub fn parse(text: &str) -> Result<Self> {
        let parts = || {
            let (portal, rest) = text.trim().strip_prefix("iscsi://")?.split_once('/')?;
            let (iqn, lun) = rest.split_once('/')?;
            Some(Self { portal: portal.to_owned(), iqn: iqn.to_owned(), lun: lun.parse().ok()? })
        };
        parts().with_context(|| format!("not a URL iscsi://host:port/iqn/lun: {text:?}"))
    }

    pub fn port(&self) -> Result<u16> {
        let port = self.portal.rsplit_once(':').context("no port in the portal")?.1;
        Ok(port.parse()?)
    }

    /// The URL of the same LUN at another portal.
    pub fn at(&self, portal: &str) -> Self {
        Self { portal: portal.to_owned(), ..self.clone() }
    }

    pub fn with(&self, Credentials { user, secret }: &Credentials) -> String {
        self.at(&format!("{user}%{secret}@{}", self.portal)).to_string()
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "iscsi://{}/{}/{}", self.portal, self.iqn, self.lun)
    }
}

/// A server's process, and the URL of its first LUN.
#[derive(Debug)]
pub struct Server {
    pub running: Running,
    pub url: Url,
}

impl Server {
    /// Starts `command`, and waits for the URLs of `luns` LUNs on its standard output.
    pub fn start(command: &mut Command, luns: usize) -> Result<Self> {
        let (running, urls) = start(command, luns)?;
        Ok(Self { running, url: urls.into_iter().next().context("no LUN")? })
    }

    /// Waits for a line of the log that contains `words`, behind the first `from` bytes.
    pub fn logs(&self, from: usize, words: &str) -> Result<String> {
        let find = |log: &str| log.get(from..)?.lines().find(|line| line.contains(words)).map(str::to_owned);
        let mut found = None;
        let logged = wait_until(LOG_LIMIT, || {
            found = find(&self.running.stderr());
            Ok(found.is_some())
        });
        logged.with_context(|| format!("no line with {words:?} in its log:\n{}", self.running.stderr()))?;
        found.context("just found")
    }
}

fn start(command: &mut Command, luns: usize) -> Result<(Running, Vec<Url>)> {
    let mut running = Running::start(command)?;
    let urls = running.wait_stdout("URL for every LUN", READY_LIMIT, |text| {
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let urls: Vec<_> = whole.lines().map(Url::parse).collect();
        (urls.len() >= luns).then_some(urls)
    })?;
    Ok((running, urls.into_iter().collect::<Result<_>>()?))
}

#[derive(Debug)]
pub struct Target {
    pub running: Running,
    urls: Vec<Url>,
    /// State directory of this instance: identities of LUNs differ between instances.
    home: TempDir,
}

impl Target {
    pub fn serve(
        context: &Context,
        disks: &[Disk],
        credentials: Option<&Credentials>,
        arguments: &[&str],
    ) -> Result<Self> {
        Self::serve_with(context, disks, credentials, arguments, &Surroundings::default())
    }

    pub fn serve_with(
        context: &Context,
        disks: &[Disk],
        credentials: Option<&Credentials>,
        arguments: &[&str],
        surroundings: &Surroundings,
    ) -> Result<Self> {
        let home = super::scratch()?;
        let mut command = context.command_in(home.path());
        surroundings.apply(&mut command);
        command.arg("serve").args(["--listen", "127.0.0.1:0"]).args(arguments);
        if let Some(credentials) = credentials {
            command.args(["--chap-user", &credentials.user, "--chap-secret-file"]);
            command.arg(credentials.secret_file(home.path())?);
        }
        let (running, urls) = start(command.args(disks.iter().map(Disk::argument)), disks.len())?;
        ensure!(urls.len() == disks.len(), "{} LUNs, and the URLs {urls:?}", disks.len());
        Ok(Self { running, urls, home })
    }

    /// Starts the target again after its end: same portal, same names and identities, no other options.
    pub fn restart(&mut self, context: &Context, disks: &[Disk]) -> Result<()> {
        let mut command = context.command_in(self.home.path());
        command.args(["serve", "--listen", &self.urls[0].portal]).args(disks.iter().map(Disk::argument));
        let (running, urls) = start(&mut command, disks.len())?;
        ensure!(urls == self.urls, "restarted, the target serves {urls:?} instead of {:?}", self.urls);
        self.running = running;
        Ok(())
    }

    /// Kills the target and starts it again: see [`Target::restart`].
    pub fn kill_and_restart(&mut self, context: &Context, disks: &[Disk]) -> Result<()> {
        self.running.kill();
        self.restart(context, disks)
    }

    /// Deletes the identities of the LUNs: after a restart the target has other disks under the same names.
    pub fn forget(&self) -> Result<()> {
        let path = self.home.path().join("state/hikyaku/identities.json");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mut state: serde_json::Value = serde_json::from_str(&text)?;
        state["luns"] = serde_json::json!([]);
        Ok(std::fs::write(&path, state.to_string())?)
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub fn log(&self) -> String {
        self.running.stderr_tail()
    }

    pub fn logins(&self) -> usize {
        self.running.stderr().matches(" logged in ").count()
    }

    /// Number of log lines about connections that did not become sessions.
    pub fn refusals(&self) -> usize {
        self.running.stderr().lines().filter(|line| line.contains("no session")).count()
    }

    pub fn url(&self, index: usize) -> &Url {
        &self.urls[index]
    }

    /// Borrowed and mapped bytes of the pools of all threads, after the last connection has ended. The target must run
    /// with [`MEMORY_LOG`].
    pub fn memory_at_rest(&self, limit: Duration) -> Result<Memory> {
        let mut memory = None;
        let rests = wait_until(limit, || {
            memory = memory_of(&self.running.stderr());
            Ok(matches!(memory, Some((0, _))))
        });
        let log = || tail(&self.running.stderr(), 2000).to_owned();
        rests.with_context(|| format!("the target still has connections: {memory:?}\n{}", log()))?;
        Ok(memory.context("just seen")?.1)
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(mut self, limit: Duration) -> Result<Output> {
        self.running.signal(libc::SIGTERM)?;
        self.running.finish(limit)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub areas: u64,
    pub mapped_bytes: u64,
}

/// From the last log line of each thread about the end of a connection: connections left, and the memory of the pools.
fn memory_of(log: &str) -> Option<(u64, Memory)> {
    let mut last: BTreeMap<u64, (u64, Memory)> = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains(" memory worker=")) {
        let value = |key: &str| -> Option<u64> {
            line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
        };
        let memory = Memory { areas: value("areas")?, mapped_bytes: value("mapped_bytes")? };
        last.insert(value("worker")?, (value("connections")?, memory));
    }
    let all = last.into_values();
    all.reduce(|(connections, sum), (more, memory)| {
        let areas = sum.areas + memory.areas;
        (connections + more, Memory { areas, mapped_bytes: sum.mapped_bytes + memory.mapped_bytes })
    })
}

/// A target under examination, `hikyaku serve` or tgt; dropping it ends the process.
#[derive(Debug)]
pub enum Served {
    Ours(Target),
    Tgt(Tgt),
}

impl Served {
    pub fn url(&self, index: usize) -> &Url {
        match self {
            Self::Ours(target) => &target.urls[index],
            Self::Tgt(tgt) => tgt.url(index),
        }
    }

    fn running(&mut self) -> &mut Running {
        match self {
            Self::Ours(target) => &mut target.running,
            Self::Tgt(tgt) => tgt.running(),
        }
    }

    pub fn pid(&mut self) -> u32 {
        self.running().pid()
    }

    pub fn memory_at_rest(&self, limit: Duration) -> Result<Memory> {
        match self {
            Self::Ours(target) => target.memory_at_rest(limit),
            Self::Tgt(_) => bail!("only our own target logs its memory"),
        }
    }

    pub fn alive(&mut self) -> Result<()> {
        self.running().alive()
    }

    /// Returns `result`, or an error if the target has ended. Errors include the end of the target's log.
    pub fn blame<T>(&mut self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => self.alive().map(|()| value),
            Err(error) => {
                let log = self.running().stderr_tail();
                let state = if self.running().ended() { " (it has ended)" } else { "" };
                Err(anyhow!("{error:#}\n--- log of the target{state}\n{log}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_parses_and_prints() {
        let text = "iscsi://127.0.0.1:3260/iqn.2026-11.org.example:a/1";
        let url = Url::parse(text).unwrap();
        assert_eq!((url.port().unwrap(), url.lun), (3260, 1));
        assert_eq!(url.to_string(), text);
        for bad in ["", "iscsi://", "iscsi://h:1/iqn", "http://h:1/iqn/0", "iscsi://h:1/iqn/x"] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn memory_is_the_sum_of_the_last_line_of_each_thread() {
        let log = "a DEBUG memory worker=0 connections=1 areas=7 mapped_bytes=10\n\
                   b DEBUG memory worker=1 connections=0 areas=1 mapped_bytes=20\n\
                   c WARN other\n\
                   d DEBUG memory worker=0 connections=0 areas=2 mapped_bytes=30\n";
        assert_eq!(memory_of(log), Some((0, Memory { areas: 3, mapped_bytes: 50 })));
        let first = log.lines().next().unwrap();
        assert_eq!(memory_of(first), Some((1, Memory { areas: 7, mapped_bytes: 10 })));
        assert_eq!(memory_of("nothing"), None);
    }

    #[test]
    fn disk_argument_has_its_options() {
        let disk = Disk::file(Path::new("/a")).option("cache=writethrough");
        let disk = Disk { read_only: true, block_size: Some(4096), ..disk };
        assert_eq!(disk.argument(), "/a,ro,block-size=4096,cache=writethrough");
    }
}
