//! `watch`: connections of this program, tgt and QEMU as lines, JSON, on a terminal and in a recording; without rights;
//! in another network namespace; a larger send buffer and back.

mod events;
mod path;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::files::{empty_file, random_file};
use crate::schema::Schema;
use crate::terminal::Terminal;
use crate::{Cases, Context, Disk, Output, Running, Scene, Server, Tgt, program, run, scratch, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: u64 = 1 << 30;
/// A copy of [`BYTES`] lasts two minutes.
const RATE: &str = "8MB/s";
/// Age of a copy that ends too soon for another case.
const COPY_S_MAX: f64 = 80.0;
/// From the start of a copy to its first data.
const COPY_START: Duration = Duration::from_secs(1);
const QEMU_BYTES: u64 = 64 << 20;
/// A user without rights.
const NOBODY: u32 = 65534;
/// A name with what would clear a terminal.
const HOSTILE: &str = "a\u{1b}[2Jb";

struct Place {
    dir: TempDir,
    server: Server,
    /// A copy to the server, started again when it has ended.
    copy: Running,
}

impl Place {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let mut command = context.command_in(dir.path());
        command.args(["serve", &format!("mem:{BYTES}"), "--listen", "127.0.0.1:0"]).current_dir(dir.path());
        let server = Server::start(&mut command, 1)?;
        let copy = Self::start(context, &dir, &server)?;
        Ok(Self { dir, server, copy })
    }

    fn start(context: &Context, dir: &TempDir, server: &Server) -> Result<Running> {
        let mut command = context.command_in(dir.path());
        let url = server.url.to_string();
        let source = format!("pattern:{BYTES}");
        command.args(["copy", &source, &url, "--rate", RATE, "--force", "--quiet"]);
        let copy = Running::start(command.current_dir(dir.path()))?;
        std::thread::sleep(COPY_START);
        Ok(copy)
    }

    /// A copy that lasts longer than a case.
    fn keep_copying(&mut self, context: &Context) -> Result<()> {
        if self.copy.ended() || self.copy.seconds() > COPY_S_MAX {
            self.copy = Self::start(context, &self.dir, &self.server)?;
        }
        Ok(())
    }

    /// Runs `watch` while a copy runs.
    fn watch(&mut self, context: &Context, arguments: &[&str]) -> Result<Output> {
        self.watch_by(context, arguments, |_| ())
    }

    fn watch_by(
        &mut self,
        context: &Context,
        arguments: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Result<Output> {
        self.keep_copying(context)?;
        let mut command = context.command_in(self.dir.path());
        command.arg("watch").args(arguments).current_dir(self.dir.path());
        change(&mut command);
        run(&mut command, LIMIT)?.orderly()
    }
}

/// The objects of `watch --json`, each compared with the schema.
fn objects(output: &Output) -> Result<Vec<Value>> {
    let schema = Schema::load("watch")?;
    let objects = output.stdout.lines().map(|line| {
        let value: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        schema.check(&value)?;
        Ok(value)
    });
    objects.collect()
}

/// The last object of the copy's end.
fn sender(objects: &[Value]) -> Result<&Value> {
    let is_sender =
        |object: &&Value| object["session"]["side"] == "initiator" && object["session"]["ended"] == false;
    objects.iter().rev().find(is_sender).context("no initiator")
}

fn json(context: &Context, place: &mut Place) -> Result<()> {
    let output = place.watch(context, &["--json", "--for", "3s"])?.success()?;
    let all = objects(&output)?;
    let last = sender(&all)?;
    let rate = last["rates"]["sent_bytes_per_s"].as_f64().context("no rate")?;
    ensure!((4e6..16e6).contains(&rate), "{rate} bytes a second of {RATE}: {last}");
    ensure!(last["session"]["process"]["pid"] == place.copy.pid(), "{last}");
    let sample = &last["sample"];
    ensure!(
        ["rtt_us", "cwnd_segments", "send_buffer_bytes"].iter().all(|name| sample[*name].is_u64()),
        "{sample}"
    );
    let target = all.iter().find(|object| object["session"]["side"] == "target").context("no target")?;
    demand!(target["session"]["process"]["pid"] == place.server.running.pid(), "{target}")
}

/// A line for each sample at an interval of 20 ms.
fn interval(context: &Context, place: &mut Place) -> Result<()> {
    let portal = place.server.url.portal.clone();
    let output =
        place.watch(context, &[&portal, "--json", "--interval", "20ms", "--for", "2s"])?.success()?;
    let all = objects(&output)?;
    let of = |object: &&Value| object["session"]["side"] == "initiator";
    let times: Vec<f64> = all.iter().filter(of).filter_map(|object| object["time_unix_s"].as_f64()).collect();
    // A machine under load leaves some out.
    ensure!((40..=101).contains(&times.len()), "{} lines of one connection in 2 s", times.len());
    demand!(times.is_sorted(), "{times:?}")
}

fn lines(context: &Context, place: &mut Place) -> Result<()> {
    let url = place.server.url.to_string();
    let output = place.watch(context, &[&url, "--for", "2s"])?.success()?;
    let sender = format!("(initiator, hikyaku {})", place.copy.pid());
    let words = [&*sender, "sends ", " in flight ", " cwnd "];
    let is_there = output.stdout.lines().any(|line| words.iter().all(|word| line.contains(word)));
    ensure!(is_there, "{words:?} in no line of\n{}", output.stdout);
    // The copy keeps to its rate: no remedy is for the connection.
    let own = format!(
        "limited by the copy's own rate limit of 8.0 MB/s (to change it: hikyaku ctl copy {} rate",
        place.copy.pid()
    );
    ensure!(output.stdout.contains(&own), "{own} is not in\n{}", output.stdout);
    let output = place.watch(context, &[&url, "--for", "400ms"])?.success()?;
    demand!(output.stdout.contains("No verdict: it was watched for "), "{}", output.stdout)
}

/// A connection that ends before its first verdict is judged at its end, or the line about its end says why it is not.
fn ended(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let mut serve = context.command_in(dir.path());
    serve.args(["serve", "mem:64M", "--listen", "127.0.0.1:0"]).current_dir(dir.path());
    let server = Server::start(&mut serve, 1)?;
    // Connections are looked for once a second: one of 0.9 s may be missed.
    for (bytes, copies, expected) in
        [("4M", 4, "No verdict: the connection ended after "), ("12M", 1, " MB/s")]
    {
        let mut watch = context.command_in(dir.path());
        watch.args(["watch", &server.url.portal, "--for", "8s", "--packets", "off"]);
        let watching = Running::start(watch.current_dir(dir.path()))?;
        std::thread::sleep(COPY_START);
        let url = server.url.to_string();
        for _ in 0..copies {
            let mut copy = context.command_in(dir.path());
            let source = format!("pattern:{bytes}");
            copy.args(["copy", &source, &url, "--rate", "4.6MB/s", "--force", "--quiet"]);
            run(copy.current_dir(dir.path()), LIMIT)?.success()?;
        }
        let output = watching.finish(LIMIT)?.success()?;
        let is_end = |line: &&str| line.contains("(initiator") && line.contains(" ended: ");
        let ends: Vec<_> = output.stdout.lines().filter(is_end).collect();
        ensure!(!ends.is_empty() && ends.iter().all(|end| end.contains(expected)), "{}", output.stdout);
    }
    Ok(())
}

/// A process: its connections, and no others.
fn of_a_process(context: &Context, place: &mut Place) -> Result<()> {
    let pid = place.server.running.pid().to_string();
    let output = place.watch(context, &[&pid, "--json", "--for", "1s"])?.success()?;
    let all = objects(&output)?;
    ensure!(!all.is_empty());
    demand!(all.iter().all(|object| object["session"]["side"] == "target"), "{}", output.stdout)
}

fn without_rights(context: &Context, place: &mut Place) -> Result<()> {
    let portal = place.server.url.portal.clone();
    let drop_rights = |command: &mut Command| {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    };
    let output = place.watch_by(context, &[&portal, "--json", "--for", "2s"], drop_rights)?.success()?;
    let all = objects(&output)?;
    let last = sender(&all)?;
    ensure!(last["session"]["process"].is_null(), "whose process it is cannot be seen: {last}");
    ensure!(
        last["sample"]["send_buffer_bytes"].is_u64() && last["rates"]["sent_bytes_per_s"].is_f64(),
        "{last}"
    );
    let pid = place.server.running.pid().to_string();
    let output = place.watch_by(context, &[&pid, "--for", "1s"], drop_rights)?.expect(1)?;
    output.says_all(&["cannot be entered", &format!("sudo hikyaku watch {pid}")]).map(drop)
}

fn nothing_to_watch(context: &Context) -> Result<()> {
    let output = context.ours(&["watch", "127.0.0.1:1", "--for", "300ms"], LIMIT)?.expect(1)?;
    output.says("there was no such connection")?;
    let output = context.ours(&["watch", "--for", "0s"], LIMIT)?.expect(2)?;
    output.says("the time must be above 0")?;
    // A namespace of its own has no connection at all.
    let mut command = program("unshare")?;
    command.arg("--net").arg(&context.hikyaku).args(["watch", "--for", "300ms"]);
    let output = run(&mut command, LIMIT)?.expect(1)?;
    let output =
        output.says_all(&["3260", "860", "tgtd", "iscsid", "qemu-*", "hikyaku watch PID, or ADDR:PORT"])?;
    ensure!(!output.stderr.contains("without an argument"), "{}", output.stderr);
    let output = context.ours(&["watch", "nbd://host/a", "--for", "1s"], LIMIT)?.expect(2)?;
    output.says("only iscsi://")?;
    context.ours(&["watch", "--interval", "1us"], LIMIT)?.expect(2)?.says("1ms to 1h").map(drop)
}

/// An interruption ends it, with the exit code of interruptions and what was recorded until then.
fn interrupted(context: &Context, place: &mut Place) -> Result<()> {
    place.keep_copying(context)?;
    let mut command = context.command_in(place.dir.path());
    command.args(["watch", "--record", "interrupted.rec"]).current_dir(place.dir.path());
    let mut running = Running::start(&mut command)?;
    let path = place.dir.path().join("interrupted.rec");
    let is_written = || Ok(std::fs::metadata(&path).is_ok_and(|file| file.len() > 0));
    wait_until(LIMIT, is_written)?;
    running.signal(libc::SIGINT)?;
    let output = running.finish(LIMIT)?.expect(130)?;
    demand!(!output.stderr.contains("second signal"), "{}", output.stderr)
}

/// A recording grows by each run, is private, and is refused where another file lies.
fn recording(context: &Context, place: &mut Place) -> Result<()> {
    let path = place.dir.path().join("a.rec");
    let mut length = 0;
    for _ in 0..2 {
        place.watch(context, &["--record", "a.rec", "--for", "1s", "--quiet"])?.success()?;
        let grown = std::fs::metadata(&path)?.len();
        ensure!(grown > length, "{grown} bytes after {length}");
        length = grown;
    }
    ensure!(std::fs::read(&path)?.starts_with(b"HKWR"));
    let other = place.dir.path().join("other");
    std::fs::write(&other, "a file of another program")?;
    let output = place.watch(context, &["--record", "other", "--for", "1s"])?.expect(1)?;
    ensure!(std::fs::read(&other)? == b"a file of another program", "the file was changed");
    output.says("it is no recording of watch").map(drop)
}

/// The process is in another network namespace; its connections are not in ours.
fn namespace(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let script = "ip link set lo up && exec \"$@\"";
    let mut command = program("unshare")?;
    command.args(["--net", "sh", "-c", script, "sh"]).arg(&context.hikyaku);
    command.args(["serve", &format!("mem:{BYTES}"), "--listen", "127.0.0.1:0"]).current_dir(dir.path());
    command.env("XDG_STATE_HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path());
    let server = Server::start(&mut command, 1)?;
    let pid = server.running.pid().to_string();
    let (size, url) = (BYTES.to_string(), server.url.to_string());
    let mut command = program("nsenter")?;
    command.args(["-t", &pid, "-n"]).arg(&context.hikyaku);
    command.args(["copy", &format!("pattern:{size}"), &url, "--rate", RATE, "--force", "--quiet"]);
    command.env("XDG_STATE_HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path());
    let copy = Running::start(&mut command)?;
    let output = context.ours(&["watch", &pid, "--json", "--for", "2s"], LIMIT)?.success()?;
    let all = objects(&output)?;
    let is_servers = |object: &Value| object["session"]["process"]["pid"] == server.running.pid();
    ensure!(!all.is_empty() && all.iter().all(is_servers), "{}", output.stdout);
    let output = context.ours(&["watch", &server.url.portal, "--for", "1s"], LIMIT)?;
    drop(copy);
    output.expect(1)?.says("there was no such connection").map(drop)
}

/// QEMU writes to tgt: the processes of both ends are named.
fn foreign_programs(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let (source, stored) = (dir.path().join("a.img"), dir.path().join("b.img"));
    random_file(&source, QEMU_BYTES, context.seed_for("watch-qemu"))?;
    empty_file(stored.clone(), QEMU_BYTES)?;
    let tgt = Tgt::serve(&[Disk::file(&stored)], None)?;
    let portal = tgt.url(0).portal.clone();
    let mut command = program("qemu-img")?;
    command
        .args(["convert", "-n", "-r", "4M", "-f", "raw", "-O", "raw"])
        .arg(&source)
        .arg(tgt.url(0).to_string());
    let qemu = Running::start(&mut command)?;
    let output = context.ours(&["watch", &portal, "--json", "--for", "2s"], LIMIT)?.success()?;
    let all = objects(&output)?;
    let names: Vec<&str> =
        all.iter().filter_map(|object| object["session"]["process"]["name"].as_str()).collect();
    ensure!(names.contains(&"qemu-img") && names.contains(&"tgtd"), "{names:?}");
    drop(qemu);
    Ok(())
}

fn start(context: &Context, home: &Path, arguments: &str) -> Result<Terminal> {
    let socket = format!("watch-{}-{}", std::process::id(), context.seed_for(arguments));
    let line = format!("{} watch {arguments}; echo ended $?; sleep 60", context.hikyaku.display());
    Terminal::start(socket, home, &line)
}

/// A window that is closed, or a connection of ssh that is lost, ends the command.
fn closed_terminal(context: &Context, place: &mut Place) -> Result<()> {
    let portal = place.server.url.portal.clone();
    let terminal = start(context, place.dir.path(), &format!("{portal} --interval 2s"))?;
    terminal.shows(&["hikyaku watch", "q quit"])?;
    let pid = terminal.process()?;
    drop(terminal);
    wait_until(Duration::from_secs(5), || Ok(!Path::new(&format!("/proc/{pid}/exe")).exists()))
        .with_context(|| format!("process {pid} goes on without its terminal"))
}

fn terminal(context: &Context, place: &mut Place) -> Result<()> {
    place.keep_copying(context)?;
    let portal = place.server.url.portal.clone();
    let terminal = start(context, place.dir.path(), &portal)?;
    let screen = terminal.shows(&["OTHER END", "LIMIT", "init", "targ", "What limits it", "q quit"])?;
    ensure!(screen.lines().count() <= 24 && screen.contains(&portal), "{screen}");
    let words = [format!("{} hikyaku", place.copy.pid()), "its own --rate".to_owned()];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    terminal.shows(&words)?;
    terminal.press("Enter")?;
    let screen = terminal.shows(&["send queue", "windows", "rate", "round trip", "queue ", "Enter list"])?;
    ensure!(screen.contains('\u{2502}'), "no axis in\n{screen}");
    terminal.press("?")?;
    terminal.shows(&["congestion window", "Esc"])?;
    // Two at once are another key.
    terminal.press("Escape")?;
    terminal.shows(&["send queue"])?;
    terminal.press("Escape")?;
    terminal.shows(&["OTHER END"])?;
    run(&mut terminal.tmux(&["resize-window", "-x", "40", "-y", "24"])?, LIMIT)?.success()?;
    terminal.shows(&words)?;
    for (columns, rows) in [("40", "10"), ("20", "3"), ("200", "60"), ("80", "24")] {
        run(&mut terminal.tmux(&["resize-window", "-x", columns, "-y", rows])?, LIMIT)?.success()?;
        terminal.shows(&["hikyaku watch"])?;
        terminal.press("Enter")?;
        terminal.shows(&["hikyaku watch"])?;
        terminal.press("Enter")?;
    }
    terminal.press("q")?;
    terminal.shows(&["ended 0"]).map(drop)
}

/// A process with a hostile name holds a connection to port 3260's like.
fn hostile_names(context: &Context, place: &mut Place) -> Result<()> {
    let program = place.dir.path().join(HOSTILE);
    std::fs::copy("/bin/sleep", &program)?;
    let stream = std::net::TcpStream::connect(&place.server.url.portal)?;
    let local = stream.local_addr()?.to_string();
    // The descriptor is inherited as standard input; the name of the process is that of its file.
    let mut command = Command::new(&program);
    command.arg("30").stdin(std::os::fd::OwnedFd::from(stream));
    let child = Killed(command.spawn()?);
    // It holds the descriptor too.
    drop(command);
    for json in [&["--json"][..], &[]] {
        let arguments = [&[local.as_str(), "--for", "1s"], json].concat();
        let output = place.watch(context, &arguments)?.success()?;
        ensure!(
            !output.stdout.contains('\u{1b}') && !output.stderr.contains('\u{1b}'),
            "{:?}",
            output.stdout
        );
        ensure!(output.stdout.contains("[2Jb"), "{}", output.stdout);
    }
    drop(child);
    Ok(())
}

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The buffer does not limit a copy with a rate on loopback, so that it is not changed.
fn tuning_leaves_others_alone(context: &Context, place: &mut Place) -> Result<()> {
    let portal = place.server.url.portal.clone();
    let output = place.watch(context, &[&portal, "--tune", "--for", "4s", "--json"])?.success()?;
    let sizes: Vec<u64> = objects(&output)?
        .iter()
        .filter(|object| object["session"]["side"] == "initiator")
        .filter_map(|object| object["sample"]["send_buffer_bytes"].as_u64())
        .collect();
    demand!(sizes.windows(2).all(|pair| pair[0] <= pair[1]), "{sizes:?}")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let mut place = Scene::new(|| Place::new(context));
    type Case = fn(&Context, &mut Place) -> Result<()>;
    let rows: &[(&str, Case)] = &[
        ("json", json),
        ("interval", interval),
        ("lines", lines),
        ("of-a-process", of_a_process),
        ("without-rights", without_rights),
        ("interrupted", interrupted),
        ("recording", recording),
        ("terminal", terminal),
        ("terminal-closed", closed_terminal),
        ("hostile-names", hostile_names),
        ("tuning-leaves-others-alone", tuning_leaves_others_alone),
    ];
    for (name, case) in rows {
        cases.check(name, || case(context, place.get_mut()?));
    }
    cases.check("ended", || ended(context));
    cases.check("nothing-to-watch", || nothing_to_watch(context));
    cases.check("namespace", || namespace(context));
    cases.check("foreign-programs", || foreign_programs(context));
    path::examine(context, cases);
    let missing = events::missing();
    let body = || if missing.is_none() { events::losses(context) } else { Ok(()) };
    cases.check_some(super::FULL_ONLY, "events", body);
    if let Some(why) = &missing {
        cases.note(format!("events of the kernel were not examined: {why}"));
    }
    Ok(())
}
