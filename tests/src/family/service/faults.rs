//! A server that is killed before each system call of its start, of a reload, of a hand-over and of the start after one.
//!
//! strace kills it before call `step` of one thread, among the calls that change something outside of the process. The next
//! start must need no help: the same identities, the data of every flush, no false report of what has happened.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;
use serde_json::Value;

use super::manager::Manager;
use super::{Home, LIMIT, NAME, OPEN};
use crate::pdu::Session;
use crate::{Context, Running, Server, Tier, Url, free_port, program, run, wait_until};

/// The calls that open, create or replace something, or that another process sees.
const CALLS: &str = "mkdir,openat,write,fsync,fdatasync,rename,unlink,chmod,bind,listen,memfd_create,ftruncate,sendto,sendmsg,\
                     shutdown,io_uring_setup,clone3,landlock_restrict_self,seccomp";
/// No thread makes more of them in the time of a case.
const STEPS_MAX: usize = 400;
const ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 1];
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const SYNCHRONIZE_CACHE: u8 = 0x35;
const POWER_ON: [u8; 3] = [6, 0x29, 0];
const NEXUS_LOSS: [u8; 3] = [6, 0x29, 7];

/// Every step until one that a server does not reach; in a sample a few of the first `drawn_max`.
fn steps(context: &Context, purpose: &str, sample: usize, drawn_max: usize) -> Vec<usize> {
    match context.tier {
        Tier::Full => (1..=STEPS_MAX).collect(),
        Tier::Sample => {
            let mut rng = context.rng(purpose);
            (0..context.amount(sample, drawn_max)).map(|_| rng.random_range(1..=drawn_max)).collect()
        }
    }
}

/// The options that make strace kill a process before call `step` of the thread that it traces.
fn kill_at(command: &mut Command, step: usize) {
    let inject = format!("inject={CALLS}:signal=KILL:when={step}");
    command.args(["-o", "/dev/null", "-e", &format!("trace={CALLS}"), "-e", &inject]);
}

/// `command` under strace, which is not its parent, so that it keeps its process id.
fn traced(command: &Command, step: usize) -> Result<Command> {
    let mut strace = program("strace")?;
    kill_at(strace.args(["-D", "-qq"]), step);
    strace.arg(command.get_program()).args(command.get_args());
    strace.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    strace.current_dir(command.get_current_dir().context("no directory")?);
    Ok(strace)
}

/// Starts a command that is to be killed. False: it was ready first, and is killed now.
fn is_killed(command: &mut Command) -> Result<bool> {
    let mut running = Running::start(command)?;
    wait_until(LIMIT, || Ok(running.ended() || running.stdout_text().contains('\n')))?;
    if !running.ended() {
        running.kill();
        return Ok(false);
    }
    let output = running.finish(LIMIT)?;
    ensure!(output.signal == Some(libc::SIGKILL), "not killed: {output}");
    Ok(true)
}

/// The id of a server's thread, once it has set its name.
fn thread(server: &Running, name: &str) -> Result<String> {
    let mut found = None;
    wait_until(LIMIT, || {
        found = thread_now(server, name)?;
        Ok(found.is_some())
    })
    .with_context(|| format!("no thread {name}"))?;
    found.context("a thread")
}

fn thread_now(server: &Running, name: &str) -> Result<Option<String>> {
    for entry in std::fs::read_dir(format!("/proc/{}/task", server.pid()))? {
        let path = entry?.path();
        if std::fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim() == name) {
            return Ok(Some(path.file_name().context("a number")?.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// Kills a running server before call `step` of a thread, if it makes as many until `is_done`.
fn kill_running(
    server: &mut Running,
    (name, step): (&str, usize),
    act: impl FnOnce(&mut Running) -> Result<()>,
    is_done: impl Fn(&Running) -> bool,
) -> Result<bool> {
    let mut strace = program("strace")?;
    kill_at(&mut strace, step);
    let strace = Running::start(strace.args(["-p", &thread(server, name)?]))?;
    wait_until(LIMIT, || Ok(strace.stderr().contains(" attached")))
        .with_context(|| format!("strace: {}", strace.stderr()))?;
    act(server)?;
    wait_until(LIMIT, || Ok(server.ended() || is_done(server)))?;
    Ok(server.ended())
}

/// What must outlive a killed server.
#[derive(Default)]
struct Kept {
    /// NAA and serial number by LUN.
    identities: BTreeMap<u64, String>,
    /// What was flushed last.
    block: Option<Vec<u8>>,
}

impl Kept {
    /// Checks a server that was started after a kill, and gives it more to keep.
    fn check(&mut self, home: &Home, server: &Server, log_from: usize, number: usize) -> Result<()> {
        let log = server.running.stderr();
        let complaint = log[log_from..].lines().find(|line| {
            [" WARN ", " ERROR "].iter().any(|level| line.contains(level)) && !line.contains("confined")
        });
        ensure!(complaint.is_none(), "{complaint:?}");
        let directory = home.path("state/hikyaku");
        let mut names: Vec<_> = std::fs::read_dir(&directory)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        names.sort();
        ensure!(names == ["identities.json", "identities.lock"], "{names:?}");
        for (lun, identity) in identities(&directory.join("identities.json"))? {
            let known = self.identities.entry(lun).or_insert_with(|| identity.clone());
            ensure!(*known == identity, "LUN {lun} was {known} and is {identity}");
        }
        let mut session = Session::login(&server.url, NAME, ISID)?;
        self.check_data(&mut session, number)
    }

    fn check_data(&mut self, session: &mut Session, number: usize) -> Result<()> {
        let block = session.read(0, 0, 1)?;
        ensure!(self.block.as_ref().is_none_or(|kept| *kept == block), "flushed data is lost");
        let next = vec![number as u8; 512];
        session.write(0, 0, &next)?;
        session.good(0, &crate::pdu::cdb10(SYNCHRONIZE_CACHE, 0, 0), 0, &[])?;
        self.block = Some(next);
        Ok(())
    }
}

fn identities(path: &Path) -> Result<BTreeMap<u64, String>> {
    let state: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let luns = state["luns"].as_array().context("no LUNs")?;
    let one = |lun: &Value| Some((lun["lun"].as_u64()?, format!("{} {}", lun["naa"], lun["serial"])));
    luns.iter().map(|lun| one(lun).context("no identity")).collect()
}

fn serve(context: &Context, home: &Home, arguments: &[&str]) -> Command {
    let mut command = context.command_in(home.dir.path());
    command.current_dir(home.dir.path()).arg("serve").args(arguments);
    command
}

/// The start, without state and with it: the next start has the identities that initiators have seen.
pub(super) fn start(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let listen = format!("127.0.0.1:{}", free_port()?);
    let arguments = ["a.img", "--iqn", OPEN, "--listen", &listen];
    let mut kept = Kept::default();
    let mut number = 0;
    for is_first in [true, false] {
        for step in steps(context, &format!("start {is_first}"), 3, 90) {
            if is_first {
                let _ = std::fs::remove_dir_all(home.path("state"));
                kept.identities.clear();
            }
            let killed = is_killed(&mut traced(&serve(context, &home, &arguments), step)?)?;
            number += 1;
            let mut server = Server::start(&mut serve(context, &home, &arguments), 1)
                .with_context(|| format!("after a kill at step {step}"))?;
            kept.check(&home, &server, 0, number).with_context(|| format!("after a kill at step {step}"))?;
            server.running.kill();
            if !killed && context.tier == Tier::Full {
                ensure!(step > 20, "only {step} steps");
                break;
            }
        }
    }
    // One `status` asks, and so removes, at most 256 sockets.
    for _ in 0..=number / 256 {
        home.run(context, &["status"])?.success()?;
    }
    let sockets = std::fs::read_dir(home.path("hikyaku"))?.count();
    ensure!(sockets == 0, "{sockets} sockets of killed servers are left");
    Ok(())
}

/// A reload that adds a LUN: the next start serves the new file, and the first LUN is what it was.
pub(super) fn reload(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let listen = format!("127.0.0.1:{}", free_port()?);
    let lun = |lun: u32, image: &str| format!("[[target.lun]]\nlun = {lun}\nendpoint = \"{image}\"\n");
    let one = format!("[server]\nlisten = [\"{listen}\"]\n[[target]]\niqn = \"{OPEN}\"\n{}", lun(0, "a.img"));
    let both = format!("{one}{}", lun(1, "b.img"));
    let file = home.path("hikyaku.toml");
    let command = || serve(context, &home, &["--config", "hikyaku.toml"]);
    let mut kept = Kept::default();
    for (number, step) in steps(context, "reload", 2, 30).into_iter().enumerate() {
        std::fs::write(&file, &one)?;
        let mut server = Server::start(&mut command(), 1)?;
        kept.check(&home, &server, 0, number)?;
        std::fs::write(&file, &both)?;
        let reloaded = |server: &Running| server.stderr().contains("SIGHUP: ");
        let hang_up = |server: &mut Running| server.signal(libc::SIGHUP);
        let killed = kill_running(&mut server.running, ("reload", step), hang_up, reloaded)?;
        server.running.kill();
        let mut server = Server::start(&mut command(), 2)?;
        kept.check(&home, &server, 0, number + 128)
            .with_context(|| format!("after a kill at step {step} of a reload"))?;
        ensure!(Session::login(&server.url, NAME, ISID)?.blocks(1)? == 4096, "the new LUN");
        server.running.kill();
        if !killed && context.tier == Tier::Full {
            ensure!(step > 5, "only {step} steps");
            break;
        }
    }
    Ok(())
}

/// Reloads of files that end anywhere: refused with the file and the line while everything stays, or carried out and logged.
/// The whole file then serves as before.
pub(super) fn half_written(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let lun = |lun: u32, image: &str| format!("[[target.lun]]\nlun = {lun}\nendpoint = \"{image}\"\n");
    let first = format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{OPEN}\"\n");
    let whole = format!("{first}{}{}", lun(0, "a.img"), lun(1, "b.img,ro"));
    let file = home.path("hikyaku.toml");
    std::fs::write(&file, &whole)?;
    let mut server = Server::start(&mut serve(context, &home, &["--config", "hikyaku.toml"]), 2)?;
    let mut session = Session::login(&server.url, NAME, ISID)?;
    let mut rng = context.rng("half-written");
    for _ in 0..context.amount(12, 200) {
        let end = rng.random_range(0..whole.len());
        std::fs::write(&file, &whole[..end])?;
        let from = server.running.stderr().len();
        let reload = home.ctl(context, &server, &["reload"])?;
        let logged = || server.running.stderr()[from..].to_owned();
        // The line is read from the server's pipe a moment after its answer.
        wait_until(LIMIT, || Ok(logged().contains(" reload: "))).with_context(|| format!("{end} bytes"))?;
        let log = logged();
        if reload.code == Some(0) {
            ensure!(log.contains("INFO reload: "), "no line of the reload to {end} bytes in {log}");
            let is_told = reload.stdout.contains("more rights than before");
            ensure!(is_told == log.contains("gives more rights"), "{end} bytes: {reload} and {log}");
        } else {
            ensure!(log.contains("ERROR reload: nothing is changed: "), "{end} bytes: {log}");
            let status = home.server(context, &server)?;
            ensure!(status["luns"].as_array().is_some_and(|luns| luns.len() == 2), "{end} bytes: {status}");
            ensure!(reload.stderr.contains("hikyaku.toml"), "no file: {reload}");
            let names_place = reload.stderr.contains("line ") || reload.stderr.contains("no [[target]]");
            ensure!(names_place || reload.stderr.contains("restart"), "no place: {reload}");
        }
        session.read(0, 0, 1).with_context(|| format!("after a reload to {end} bytes"))?;
        std::fs::write(&file, &whole)?;
        home.ctl(context, &server, &["reload"])?.success()?;
    }
    ensure!(session.blocks(1)? == 4096, "the second LUN");
    server.running.alive()
}

/// A server of a service manager, with a session that has written and flushed.
struct Managed<'a> {
    context: &'a Context,
    home: Home,
    manager: Manager,
    listen: String,
    kept: Kept,
}

impl<'a> Managed<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        let home = Home::new()?;
        let manager = Manager::new(&home)?;
        let listen = format!("127.0.0.1:{}", free_port()?);
        Ok(Self { context, home, manager, listen, kept: Kept::default() })
    }

    fn command(&mut self, tracer: Option<&Command>) -> Result<Command> {
        let arguments = ["a.img", "--iqn", OPEN, "--listen", &self.listen];
        self.manager.command_under(self.context, &self.home, tracer, &arguments)
    }

    fn start(&mut self) -> Result<(Running, Url)> {
        let started = super::manager::serve(&mut self.command(None)?)?;
        self.manager.states.clear();
        self.manager.wait("READY=1")?;
        self.manager.wait("FDNAME=hikyaku-listen")?;
        Ok(started)
    }

    /// Logs in from the port of an earlier session, and returns the first unit attention. Then writes and flushes.
    fn report(&mut self, url: &Url, number: usize) -> Result<[u8; 3]> {
        let mut session = Session::login(url, NAME, ISID)?;
        let report = session.scsi(0, &TEST_UNIT_READY, 0, &[])?.sense_codes();
        self.kept.check_data(&mut session, number)?;
        Ok(report)
    }

    /// Whether the manager keeps ports for the next server.
    fn has_ports(&mut self) -> Result<bool> {
        self.manager.drain()?;
        Ok(self.manager.stored.iter().any(|(name, _)| name == "hikyaku-ports"))
    }

    /// Starts a server after a kill, and kills it as well: its successor must report POWER ON.
    fn judge(&mut self, number: usize) -> Result<()> {
        let expected = if self.has_ports()? { NEXUS_LOSS } else { POWER_ON };
        let (mut server, url) = self.start()?;
        let report = self.report(&url, number)?;
        ensure!(report == expected, "{report:x?} instead of {expected:x?}\n{}", server.stderr());
        server.kill();
        ensure!(!self.has_ports()?, "the ports are still stored after their use");
        let (mut server, url) = self.start()?;
        let report = self.report(&url, number + 1)?;
        ensure!(report == POWER_ON, "{report:x?} after a kill");
        server.kill();
        // As a manager does when the service is stopped.
        self.manager.stored.clear();
        Ok(())
    }
}

/// The end of a server that hands over: its successor reports I_T NEXUS LOSS only if the ports were stored, and its own
/// successor after a kill never does.
pub(super) fn hand_over(context: &Context) -> Result<()> {
    let mut managed = Managed::new(context)?;
    let mut nexus_losses = 0;
    // The first reports the end and drains, the main thread stores the ports.
    for (name, sample, drawn_max) in [("signals", 1, 2), ("hikyaku", 2, 6)] {
        for (number, step) in steps(context, name, sample, drawn_max).into_iter().enumerate() {
            let (mut server, url) = managed.start()?;
            managed.report(&url, number)?;
            let end = |server: &mut Running| server.signal(libc::SIGTERM);
            kill_running(&mut server, (name, step), end, |_| false)?;
            let ending = server.finish(LIMIT)?;
            nexus_losses += usize::from(managed.has_ports()?);
            managed
                .judge(number + 1)
                .with_context(|| format!("step {step} of the thread {name}, {}", ending.ending()))?;
            if ending.signal.is_none() && context.tier == Tier::Full {
                ensure!(step > 2 && nexus_losses > 0, "{step} steps, {nexus_losses} hand-overs");
                break;
            }
        }
    }
    Ok(())
}

/// A server that inherits ports is killed at each step of its start. One successor at most inherits the same ports, because
/// the server removes them from the store and empties their file before it serves.
pub(super) fn upgrade(context: &Context) -> Result<()> {
    let mut managed = Managed::new(context)?;
    for (number, step) in steps(context, "upgrade", 2, 90).into_iter().enumerate() {
        let (mut server, url) = managed.start()?;
        managed.report(&url, number)?;
        server.signal(libc::SIGTERM)?;
        server.finish(LIMIT)?.success()?;
        ensure!(managed.has_ports()?, "no ports are stored");
        let mut strace = program("strace")?;
        kill_at(strace.args(["-D", "-qq"]), step);
        let killed = is_killed(&mut managed.command(Some(&strace))?)?;
        managed.judge(number + 1).with_context(|| format!("after a kill at step {step}"))?;
        if !killed && context.tier == Tier::Full {
            ensure!(step > 20, "only {step} steps");
            break;
        }
    }
    Ok(())
}

/// A state directory on a full file system: a clear message at the start, and nothing is lost where a server runs.
pub(super) fn full_state(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let state = home.path("state");
    std::fs::create_dir(&state)?;
    let _mounted = Mounted::tmpfs(&state, 64 << 10)?;
    let fill = || std::fs::write(state.join("fill"), vec![0; 128 << 10]).expect_err("a full file system");
    fill();
    let arguments = ["a.img", "--iqn", OPEN, "--listen", "127.0.0.1:0"];
    let refused = run(&mut serve(context, &home, &arguments), LIMIT)?.expect(1)?;
    refused.says_all(&["state", "No space left on device", "XDG_STATE_HOME"])?;
    std::fs::remove_file(state.join("fill"))?;
    let mut server = Server::start(&mut serve(context, &home, &arguments), 1)?;
    let mut kept = Kept::default();
    kept.check(&home, &server, 0, 1)?;
    fill();
    let before = std::fs::read(state.join("hikyaku/identities.json"))?;
    let added = home.ctl(context, &server, &["lun", "add", "b.img", "--lun", "1"])?;
    ensure!(added.code == Some(1), "{added}");
    added.says("No space left on device")?;
    ensure!(std::fs::read(state.join("hikyaku/identities.json"))? == before, "the state has changed");
    kept.check_data(&mut Session::login(&server.url, NAME, ISID)?, 2)?;
    std::fs::remove_file(state.join("fill"))?;
    home.ctl(context, &server, &["lun", "add", "b.img", "--lun", "1"])?.success()?;
    let from = server.running.stderr().len();
    kept.check(&home, &server, from, 3)?;
    server.running.kill();
    Ok(())
}

struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn tmpfs(path: &'a Path, bytes: u64) -> Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"]).arg(path);
        run(&mut mount, Duration::from_secs(10))?.success()?;
        Ok(Self(path))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").args(["-l"]).arg(self.0), Duration::from_secs(10));
    }
}
