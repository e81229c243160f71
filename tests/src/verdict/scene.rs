//! One run of a setup: a path, a target, an initiator, captures, and the rate.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::wan::{ADDRESSES, INTERFACE, Tap, Wan};
use serde::Serialize;
use tempfile::TempDir;

use super::inject::{self, Quota};
use super::{Burst, Peers, Programs, Setup};
use crate::files::random_file;
use crate::process::Surroundings;
use crate::seal::Keys;
use crate::{Context, Output, Running, Server, Url, program, run, scratch, wait_until};

const PORT: u16 = 3260;
const IQN: &str = "iqn.2026-11.org.example:disk";
const LUN_BYTES: u64 = 64 << 20;
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Time that a run may take beyond the measured one.
const RUN_SLACK: Duration = Duration::from_secs(60);
/// Bytes that captures at the ends keep of each packet.
const SNAP_BYTES: usize = 128;
/// The slowest suite.
const SUITE: &str = "ChaCha20-Poly1305";
/// Time between the start of a load and that of `watch`, so that there is a connection.
const LOGIN: Duration = Duration::from_millis(700);

/// What is taken of a run.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a> {
    pub seconds: f64,
    /// Not measured; slow start ends meanwhile.
    pub warm_seconds: f64,
    /// Where captures are written.
    pub captures: Option<&'a Path>,
    pub has_watch: bool,
    pub seed: u64,
}

/// Files of one run.
#[derive(Clone, Debug)]
pub struct Captures {
    pub initiator: PathBuf,
    pub target: PathBuf,
    pub between: PathBuf,
}

impl Captures {
    pub fn within(dir: &Path) -> Self {
        Self { initiator: dir.join("1.pcap"), between: dir.join("2.pcap"), target: dir.join("3.pcap") }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// By the initiator's own figures.
    pub mb_per_s: f64,
    /// Greatest lateness of the emulator: above a few milliseconds the machine was too busy.
    pub late_max_ms: f64,
    /// Output of `watch --json` in the data sender's namespace, or why there is none.
    #[serde(skip)]
    pub watch: String,
}

enum Target {
    Ours(Server),
    Tgt { running: Running, _control: TempDir },
}

impl Target {
    fn running(&self) -> &Running {
        match self {
            Self::Ours(server) => &server.running,
            Self::Tgt { running, .. } => running,
        }
    }
}

/// Everything of one run. Dropping it ends the programs and removes the path.
pub struct Scene<'a> {
    context: &'a Context,
    programs: &'a Programs,
    setup: &'a Setup,
    // Declared before the path and therefore dropped first, the target before its quota.
    target: Target,
    _quota: Option<Quota>,
    wan: Wan,
    url: String,
    _dir: TempDir,
}

impl<'a> Scene<'a> {
    /// Makes the path and starts the target.
    pub fn start(
        context: &'a Context,
        programs: &'a Programs,
        setup: &'a Setup,
        take: &Take<'_>,
    ) -> Result<Self> {
        let tap = take
            .captures
            .map(|dir| Tap { snap_bytes: SNAP_BYTES, ..Tap::new(Captures::within(dir).between) });
        let wan = inject::path(setup, tap, take.seed)?;
        let dir = scratch()?;
        // Written, not sparse: QEMU reads no holes.
        let image = random_file(dir.path().join("disk.img"), LUN_BYTES, 1)?;
        let mut around = surroundings(&wan, 1);
        around.variables = inject::variables(setup, 1, &programs.shim());
        let (target, url) = if setup.peers.has_tgt() {
            tgt(setup, &image, &around)?
        } else {
            ours(context, setup, dir.path(), &image, &around)?
        };
        let quota = Quota::start(setup, target.running().pid())?;
        Ok(Self { context, programs, setup, target, _quota: quota, wan, url, _dir: dir })
    }

    /// Runs the load; returns its rate.
    pub fn measure(&mut self, take: &Take<'_>) -> Result<Measured> {
        if inject::needs_first_connection(self.setup) {
            inject::first_connection(&self.wan, &format!("{}:{PORT}", ADDRESSES[1]))?;
        }
        let dumps = match take.captures {
            None => Vec::new(),
            Some(dir) => {
                let captures = Captures::within(dir);
                vec![self.dump(0, &captures.initiator)?, self.dump(1, &captures.target)?]
            }
        };
        let load = Running::start(&mut self.load(take)?)?;
        let watch = take.has_watch.then(|| self.watch(take)).transpose()?;
        let limit = Duration::from_secs_f64(take.seconds + take.warm_seconds) + RUN_SLACK;
        let result = load.finish(limit).and_then(Output::success).and_then(|output| self.rate(&output));
        let mb_per_s = result.with_context(|| self.target.running().stderr_tail())?;
        let watch = watch
            .map(|watch| watch.finish(RUN_SLACK))
            .transpose()?
            .map_or_else(String::new, |output| output.text());
        for mut dump in dumps {
            dump.signal(libc::SIGINT)?;
            dump.finish(READY_LIMIT)?.success()?;
        }
        self.wan.line().finish_tap()?;
        let late = [0, 1].map(|side| self.wan.line().counters(side).late_max_ns);
        Ok(Measured { mb_per_s, late_max_ms: late[0].max(late[1]) as f64 / 1e6, watch })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs a program of the initiator's side to its end; what it sends and receives is captured there. Returns its time.
    pub fn capture(&self, command: &mut Command, to: &Path) -> Result<Duration> {
        let mut dump = self.dump(0, to)?;
        Surroundings::network(self.wan.side(0).name()).apply(command);
        let start = Instant::now();
        run(command, RUN_SLACK)?.success()?;
        let time = start.elapsed();
        dump.signal(libc::SIGINT)?;
        dump.finish(READY_LIMIT)?.success()?;
        Ok(time)
    }

    fn dump(&self, side: usize, to: &Path) -> Result<Running> {
        let mut command = program("tcpdump")?;
        Surroundings::network(self.wan.side(side).name()).apply(&mut command);
        command.args([
            "-i",
            INTERFACE,
            "-s",
            &SNAP_BYTES.to_string(),
            "-B",
            "16384",
            "-U",
            "-Z",
            "root",
            "-w",
        ]);
        command.arg(to).args(["tcp", "port", &PORT.to_string()]);
        let dump = Running::start(&mut command)?;
        wait_until(READY_LIMIT, || Ok(dump.stderr().contains("listening on")))
            .with_context(|| format!("tcpdump does not begin: {}", dump.stderr_tail()))?;
        Ok(dump)
    }

    /// `watch` in the data sender's namespace, for as long as the load runs.
    fn watch(&self, take: &Take<'_>) -> Result<Running> {
        std::thread::sleep(LOGIN);
        let mut command = program("setpriv")?;
        // Without the right to see packets: by samples alone.
        command.args(["--bounding-set", "-net_raw"]).arg(&self.context.hikyaku);
        command.env("HOME", self.context.home.path());
        Surroundings::network(self.wan.side(inject::sender(self.setup)).name()).apply(&mut command);
        let seconds = (take.seconds + take.warm_seconds - LOGIN.as_secs_f64() - 0.2).max(1.0);
        let portal = format!("{}:{PORT}", ADDRESSES[1]);
        command.args(["watch", &portal, "--json", "--for", &format!("{:.0}ms", seconds * 1e3)]);
        Running::start(&mut command)
    }

    fn load(&self, take: &Take<'_>) -> Result<Command> {
        let (load, peers) = (&self.setup.load, self.setup.peers);
        let seconds = take.seconds + take.warm_seconds;
        let (block, depth) = (load.block.to_string(), load.depth.to_string());
        let mut command = match peers {
            Peers::LibiscsiTgt => {
                let mut command = Command::new(self.programs.load());
                command.args([if load.is_write { "w" } else { "r" }, &self.url, &block, &depth]);
                let think = inject::think_us(self.setup);
                command.args([&take.seconds, &take.warm_seconds].map(f64::to_string)).arg(think.to_string());
                command
            }
            Peers::OursTgt | Peers::Ours => {
                let mut command = self.context.command();
                command.args(["bench", "path", &self.url, "--json", "--block-size", &block]);
                command.args(["--depth", &depth, "--seconds", &seconds.to_string()]);
                command.args(if load.is_write { &["--write", "--destroy"][..] } else { &[] });
                command
            }
            Peers::QemuOurs => {
                let count = (self.setup.about() * seconds / load.block as f64).ceil().max(4.0);
                let mut command = program("qemu-img")?;
                command.args(["bench", "-f", "raw", "-t", "none", "-d", &depth, "-s", &block, "-c"]);
                command.arg(count.to_string()).args(load.is_write.then_some("-w")).arg(&self.url);
                command
            }
        };
        let mut around = surroundings(&self.wan, 0);
        around.variables = inject::variables(self.setup, 0, &self.programs.shim());
        around.apply(&mut command);
        Ok(command)
    }

    /// MB/s, from what the initiator prints.
    fn rate(&self, output: &Output) -> Result<f64> {
        let load = &self.setup.load;
        let rate = match self.setup.peers {
            Peers::LibiscsiTgt => output.stdout.trim().parse().ok(),
            Peers::OursTgt | Peers::Ours => output.json()?["rows"][0]["mb_per_s"].as_f64(),
            Peers::QemuOurs => {
                let seconds = output.stdout.split_once("completed in ");
                let seconds =
                    seconds.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<f64>().ok());
                let count = output.stdout.split_once("Sending ");
                let count = count.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<f64>().ok());
                seconds.zip(count).map(|(seconds, count)| count * load.block as f64 / 1e6 / seconds)
            }
        };
        let rate = rate.with_context(|| format!("no rate in: {}", output.text()))?;
        ensure!(rate > 0.0, "nothing was moved: {}", output.text());
        Ok(rate)
    }
}

/// A side's namespace. Buffers are what the path's sysctls say: neither end enlarges its own.
fn surroundings(wan: &Wan, side: usize) -> Surroundings {
    Surroundings { without_net_admin: true, ..Surroundings::network(wan.side(side).name()) }
}

/// tgt in the target's namespace, with one LUN.
fn tgt(setup: &Setup, image: &Path, around: &Surroundings) -> Result<(Target, String)> {
    let control = scratch()?;
    let socket = control.path().join("control");
    let mut command = program("tgtd")?;
    around.apply(&mut command);
    command.args(["-f", "-C", "1", "--iscsi", &format!("portal={}:{PORT}", ADDRESSES[1])]);
    let mut running = Running::start(command.env("TGT_IPC_SOCKET", &socket))?;
    let admin = |line: &str| -> Result<()> {
        let mut command = program("tgtadm")?;
        command.args(["-C", "1", "--lld", "iscsi"]).args(line.split_whitespace());
        run(command.env("TGT_IPC_SOCKET", &socket), READY_LIMIT)?.success()?;
        Ok(())
    };
    wait_until(READY_LIMIT, || {
        running.alive()?;
        Ok(admin("--mode target --op show").is_ok())
    })
    .context("tgtd does not start")?;
    admin(&format!("--mode target --op new --tid 1 -T {IQN}"))?;
    let new = "--mode logicalunit --op new --tid 1 --lun 1 --bstype rdwr -b";
    admin(&format!("{new} {}", image.display()))?;
    if let Burst::First(bytes) = setup.burst {
        for (key, value) in [
            ("MaxRecvDataSegmentLength", "262144"),
            ("MaxXmitDataSegmentLength", "262144"),
            ("MaxBurstLength", "16776192"),
            ("FirstBurstLength", &bytes.to_string()),
            ("InitialR2T", "No"),
            ("ImmediateData", "Yes"),
        ] {
            admin(&format!("--mode target --op update --tid 1 --name {key} --value {value}"))?;
        }
    }
    admin("--mode target --op bind --tid 1 -I ALL")?;
    let url = Url { portal: format!("{}:{PORT}", ADDRESSES[1]), iqn: IQN.to_owned(), lun: 1 };
    Ok((Target::Tgt { running, _control: control }, url.to_string() + plain(setup)))
}

/// Our initiator is told that nothing protects the session.
fn plain(setup: &Setup) -> &'static str {
    if setup.peers.has_our_initiator() { "?header_digest=none&data_digest=none,seal=off" } else { "" }
}

fn ours(
    context: &Context,
    setup: &Setup,
    dir: &Path,
    image: &Path,
    around: &Surroundings,
) -> Result<(Target, String)> {
    let mut command = context.command_in(dir);
    around.apply(&mut command);
    let disk = std::iter::once(image.display().to_string()).chain(inject::endpoint_options(setup));
    let disk = disk.collect::<Vec<_>>().join(",");
    command.args(["serve", &disk, "--iqn", IQN, "--listen", &format!("{}:{PORT}", ADDRESSES[1])]);
    let mut options = plain(setup).to_owned();
    if inject::is_sealed(setup) {
        let [initiator, target] = ["initiator", "target"].map(|name| Keys::new(context, dir, name));
        let (initiator, target) = (initiator?, target?);
        let peers = dir.join("peers.toml");
        std::fs::write(&peers, initiator.peer("initiator", ""))?;
        command.args(["--seal", "require", "--identity", &target.path(), "--peers"]).arg(peers);
        options = format!(",identity={},peer-key={},suite={SUITE}", initiator.path(), target.public);
    } else {
        command.args(["--seal", "off"]);
    }
    let server = Server::start(&mut command, 1)?;
    let url = format!("{}{options}", server.url);
    Ok((Target::Ours(server), url))
}
