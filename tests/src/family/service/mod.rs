//! A server as its operator sees it: the control socket, `status` and `ctl`, discovery, and refused logins in the log.

mod faults;
mod hostile;
mod manager;
mod monitoring;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use steps::is_root;
use tempfile::TempDir;

use super::FULL_ONLY;
use crate::cases::Rows;
use crate::files::empty_file;
use crate::pdu::{Session, cdb10, connect_from, keys, login_pdu};
use crate::target::private_file;
use crate::{Cases, Context, Output, Running, Server, Url, run, scratch, wait_until};

const LIMIT: Duration = Duration::from_secs(30);
const SECRET: &str = "secret-of-16-byt";
const OPEN: &str = "iqn.2026-11.org.example:open";
const CLOSED: &str = "iqn.2026-11.org.example:closed";
const MUTUAL: &str = "iqn.2026-11.org.example:mutual";
const OF_ANOTHER: &str = "iqn.2026-11.org.example:of-another";
const NAME: &str = "iqn.2026-11.org.example:host";
const NOBODY: u32 = 65534;
/// Of one server, one after the other, under load.
const RESTARTS: usize = 20;
/// Addresses that send wrong logins.
const ADDRESSES: u8 = 50;

/// A home directory with images and secrets, and commands that use it.
struct Home {
    dir: TempDir,
}

impl Home {
    fn new() -> Result<Self> {
        let home = Self { dir: scratch()? };
        empty_file(home.path("a.img"), 1 << 20)?;
        empty_file(home.path("b.img"), 2 << 20)?;
        for user in ["u", "v", "m"] {
            private_file(home.path(&format!("{user}.secret")), SECRET)?;
        }
        private_file(home.path("mutual.secret"), "other-of-16-byte")?;
        Ok(home)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, context: &Context, arguments: &[&str]) -> Result<Output> {
        run(context.command_in(self.dir.path()).current_dir(self.dir.path()).args(arguments), LIMIT)
    }

    fn serve(&self, context: &Context, arguments: &[&str], luns: usize) -> Result<Server> {
        let mut command = context.command_in(self.dir.path());
        command.current_dir(self.dir.path()).arg("serve").args(["--listen", "127.0.0.1:0"]).args(arguments);
        Server::start(&mut command, luns)
    }

    fn status(&self, context: &Context) -> Result<Value> {
        self.run(context, &["status", "--json", "--interval", "0s"])?.success()?.json()
    }

    /// The status of a server. Others may run on this machine.
    fn server(&self, context: &Context, server: &Server) -> Result<Value> {
        let status = self.status(context)?;
        let processes = status["processes"].as_array().context("no list of processes")?;
        let it = processes.iter().find(|process| process["pid"] == server.running.pid());
        it.cloned().with_context(|| format!("it is not in {status}"))
    }

    /// Runs `ctl` on a server.
    fn ctl(&self, context: &Context, server: &Server, arguments: &[&str]) -> Result<Output> {
        let pid = server.running.pid().to_string();
        self.run(context, &[&["ctl", "--pid", &pid], arguments].concat())
    }

    fn socket(&self, server: &Server) -> PathBuf {
        self.path(&format!("hikyaku/serve-{}.sock", server.running.pid()))
    }
}

/// Demands words on standard output.
fn prints(output: &Output, words: &str) -> Result<()> {
    ensure!(output.stdout.contains(words), "no {words:?} in: {output}");
    Ok(())
}

fn with_secret(url: &Url, user: &str) -> String {
    format!("iscsi://{user}%{SECRET}@{}/{}/0", url.portal, url.iqn)
}

fn expect(value: &Value, path: &str, expected: impl Into<Value>) -> Result<()> {
    let expected = expected.into();
    let found = value.pointer(path).unwrap_or(&Value::Null);
    ensure!(*found == expected, "{path} is {found}, not {expected}, in {value:#}");
    Ok(())
}

/// `status` has the session of a CHAP user and what it has read and written, as text and as JSON.
fn seen(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let chap = ["a.img", "b.img,ro", "--chap-user", "u", "--chap-secret-file", "u.secret", "--iqn", CLOSED];
    let server = home.serve(context, &chap, 2)?;
    let lun = with_secret(&server.url, "u");
    let copied = home.run(context, &["copy", "pattern:1M:7", &lun, "--verify", "--json"])?.success()?;
    ensure!(copied.json()?["verified"] == true, "{copied}");
    let status = home.server(context, &server)?;
    for (path, expected) in [
        ("/command", Value::from("serve")),
        ("/pid", server.running.pid().into()),
        ("/draining", false.into()),
        ("/sessions", Value::Array(Vec::new())),
        ("/luns/0/lun", 0.into()),
        ("/luns/0/target", CLOSED.into()),
        ("/luns/0/size_bytes", (1 << 20).into()),
        ("/luns/0/state", "ready".into()),
        ("/luns/0/bytes/write", (1 << 20).into()),
        ("/luns/0/errors", 0.into()),
        ("/luns/1/read_only", true.into()),
        ("/luns/1/bytes/read", 0.into()),
    ] {
        expect(&status, path, expected)?;
    }
    // Copying and verification, and what the refusals and the names of the copy need.
    ensure!(status["luns"][0]["bytes"]["read"].as_u64() >= Some(1 << 20), "{status:#}");
    let timed = status["luns"][0]["times_us"]["write"].as_array().context("no times")?;
    let count: u64 = timed.iter().filter_map(|step| step[1].as_u64()).sum();
    ensure!(count > 0 && count <= 64, "the times stand for {count} writes");
    Ok(())
}

/// A session is shown while it lasts, with its rates, and ends by `ctl session end`; its initiator logs in again.
fn sessions(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let server = home.serve(context, &["a.img", "--iqn", OPEN], 1)?;
    let mut session = Session::login(&server.url, NAME, [0x80, 0, 0, 0, 0, 1])?;
    for lba in 0..8 {
        session.read(0, lba, 1)?;
    }
    let status = home.server(context, &server)?;
    for (path, expected) in [
        ("/sessions/0/initiator", Value::from(NAME)),
        ("/sessions/0/target", OPEN.into()),
        ("/sessions/0/protection/kind", "none".into()),
        ("/sessions/0/chap_user", Value::Null),
        ("/sessions/0/keys/ImmediateData", "Yes".into()),
        ("/sessions/0/luns/0/read_only", false.into()),
        ("/sessions/0/commands/read", 8.into()),
        ("/sessions/0/bytes/read", 4096.into()),
    ] {
        expect(&status, path, expected)?;
    }
    // Each command arrived alone, so that each is timed.
    let times = status["sessions"][0]["times_us"]["read"].as_array().context("no times")?;
    let timed: u64 = times.iter().filter_map(|step| step[1].as_u64()).sum();
    ensure!(timed == 8, "{timed} of 8 commands are timed");
    let text = home.run(context, &["status", "--interval", "100ms"])?.success()?.text();
    ensure!(text.contains(NAME) && text.contains("ready"), "{text}");
    let tsih = status["sessions"][0]["tsih"].to_string();
    home.ctl(context, &server, &["session", "end", &tsih])?.success()?;
    ensure!(session.read(0, 0, 1).is_err(), "the session goes on");
    wait_until(LIMIT, || Ok(home.server(context, &server)?["sessions"] == Value::Array(Vec::new())))?;
    home.ctl(context, &server, &["session", "end", &tsih])?.expect(2)?.says("there is no such session")?;
    Session::login(&server.url, NAME, [0x80, 0, 0, 0, 0, 1])?.read(0, 0, 1).map(drop)
}

/// LUNs are added, resized and removed while another session works; a reload goes back to what was configured.
fn luns(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let mut server = home.serve(context, &["a.img", "--iqn", OPEN], 1)?;
    let mut session = Session::login(&server.url, NAME, [0x80, 0, 0, 0, 0, 1])?;
    session.read(0, 0, 1)?;
    let ctl = |arguments: &[&str]| home.ctl(context, &server, arguments);
    prints(&ctl(&["lun", "add", "b.img,ro", "--lun", "7"])?.success()?, "1 LUN added")?;
    let status = home.server(context, &server)?;
    expect(&status, "/luns/1/lun", 7)?;
    expect(&status, "/luns/1/storage", home.path("b.img").display().to_string())?;
    // The unit attention of the changed inventory, then the command.
    let cdb = cdb10(0x28, 0, 1);
    let answer = session.scsi(0, &cdb, 512, &[])?;
    ensure!(answer.sense_codes() == [6, 0x3f, 0x0e], "REPORTED LUNS DATA HAS CHANGED: {answer:?}");
    session.read(0, 0, 1)?;
    session.scsi(7, &cdb, 512, &[])?;
    let blocks = session.blocks(7)?;
    ensure!(blocks == 4096, "{blocks} blocks");
    empty_file(home.path("b.img"), 4 << 20)?;
    prints(&ctl(&["lun", "resize"])?.success()?, "1 LUN resized")?;
    expect(&home.server(context, &server)?, "/luns/1/size_bytes", 4 << 20)?;
    for (arguments, cause) in [
        (&["lun", "add", "missing.img", "--lun", "8"][..], "missing.img"),
        (&["lun", "add", "b.img", "--lun", "7"], "7"),
        (&["lun", "remove", "9"], "no such LUN"),
        (&["lun", "remove", "7", "--target", CLOSED], "does not have it"),
    ] {
        let output = ctl(arguments)?;
        ensure!(output.code != Some(0), "{arguments:?}: {output}");
        output.says(cause)?;
    }
    prints(&ctl(&["lun", "remove", "7"])?.success()?, "1 LUN removed")?;
    ctl(&["lun", "remove", "0"])?.expect(2)?.says("last LUN")?;
    ctl(&["lun", "add", "b.img", "--lun", "1"])?.success()?;
    prints(&ctl(&["reload"])?.success()?, "1 LUN removed")?;
    ensure!(
        home.server(context, &server)?["luns"].as_array().is_some_and(|luns| luns.len() == 1),
        "as configured"
    );
    drop(session);
    ctl(&["drain", "--json"])?.success()?;
    wait_until(LIMIT, || Ok(server.running.ended()))?;
    let (socket, pid) = (home.socket(&server), server.running.pid());
    server.running.finish(LIMIT)?.success()?;
    ensure!(!socket.exists(), "the socket is left behind");
    let status = home.status(context)?;
    ensure!(
        !status["processes"].as_array().is_some_and(|all| all.iter().any(|one| one["pid"] == pid)),
        "{status}"
    );
    home.run(context, &["ctl", "--pid", "1", "reload"])?
        .expect(2)?
        .says("no server of this user has that PID")
        .map(drop)
}

/// Hostile requests are refused, silent connections end, and a killed server's socket is removed by the next `status`.
fn socket(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let mut server = home.serve(context, &["a.img", "--iqn", OPEN], 1)?;
    let socket = home.socket(&server);
    let mode = |path: &Path| -> Result<u32> { Ok(path.metadata()?.permissions().mode() & 0o777) };
    ensure!(mode(&socket)? == 0o600, "mode {:o}", mode(&socket)?);
    let deep = "[".repeat(60_000);
    let long = "a".repeat(1 << 20);
    for request in ["", "\n", "{}\n", "null\n", "{\"request\":\"stop\"}\n", "\u{1b}[2J\n", &deep, &long] {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        // A request that is longer than the bound may end by a reset.
        if stream.read_to_string(&mut answer).is_ok() && !answer.is_empty() {
            let answer: Value = serde_json::from_str(&answer)?;
            ensure!(answer["error"]["cause"].is_string(), "{answer}");
        }
    }
    let _silent: Vec<_> = (0..20).map(|_| UnixStream::connect(&socket)).collect();
    Session::login(&server.url, NAME, [0x80, 0, 0, 0, 0, 1])?.read(0, 0, 1)?;
    wait_until(LIMIT, || Ok(home.server(context, &server).is_ok()))?;
    if is_root() {
        for path in [home.dir.path(), &home.path("hikyaku"), &socket] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
        }
        let mut other = context.command_in(home.dir.path());
        // With the number: without it the client leaves out processes of other users.
        let pid = server.running.pid().to_string();
        let other = other.args(["ctl", "--pid", &pid, "drain"]).uid(NOBODY).gid(NOBODY).current_dir("/");
        run(other, LIMIT)?.expect(2)?.says("for the user of this process and root")?;
        server.running.alive()?;
    }
    server.running.kill();
    ensure!(socket.exists(), "a killed server removes nothing");
    home.run(context, &["status"])?.success()?;
    ensure!(!socket.exists(), "the socket of a dead server is left");
    Ok(())
}

/// Discovery names each target that the asker may log in to: an open one does not hide those that need CHAP, and mutual
/// CHAP follows the same rule.
fn discovery(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let target = |iqn: &str, lun: u32, acl: &str| {
        format!("[[target]]\niqn = \"{iqn}\"\n[[target.lun]]\nlun = {lun}\nendpoint = \"mem:1M\"\n{acl}")
    };
    let account = |user: &str, more: &str| {
        format!("[[target.acl]]\nchap-user = \"{user}\"\nsecret-file = \"DIR/{user}.secret\"\n{more}")
    };
    let mutual = "mutual-chap-user = \"t\"\nmutual-secret-file = \"DIR/mutual.secret\"\n";
    let text = [
        target(CLOSED, 0, &account("u", "")),
        target(OPEN, 0, ""),
        target(MUTUAL, 0, &account("m", mutual)),
        target(OF_ANOTHER, 0, &account("v", "")),
    ];
    let text = text.concat().replace("DIR", &home.dir.path().display().to_string());
    std::fs::write(home.path("hikyaku.toml"), format!("[server]\nlisten = [\"127.0.0.1:0\"]\n{text}"))?;
    let mut command = context.command_in(home.dir.path());
    let server = Server::start(command.arg("serve").arg("--config").arg(home.path("hikyaku.toml")), 4)?;
    let portal = &server.url.portal;
    let listed = |options: &str| -> Result<BTreeSet<String>> {
        let url = format!("iscsi://{portal}{options}");
        let list = home.run(context, &["ls", &url, "--json"])?;
        let list: Value = serde_json::from_str(list.stdout.lines().next().unwrap_or_default())
            .with_context(|| format!("{list}"))?;
        let names = list["targets"].as_array().into_iter().flatten();
        Ok(names.filter_map(|target| target["iqn"].as_str().map(str::to_owned)).collect())
    };
    let chap = |user: &str| {
        format!(",chap-user={user},chap-secret-file={}", home.path(&format!("{user}.secret")).display())
    };
    let both = format!(
        "{},mutual-chap-user=t,mutual-chap-secret-file={}",
        chap("m"),
        home.path("mutual.secret").display()
    );
    let cases: [(String, &[&str]); 5] = [
        (String::new(), &[OPEN]),
        (chap("u"), &[CLOSED, OPEN]),
        (chap("v"), &[OF_ANOTHER, OPEN]),
        (chap("m"), &[MUTUAL, OPEN]),
        (both, &[MUTUAL, OPEN]),
    ];
    for (options, expected) in cases {
        let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
        let found = listed(&options)?;
        ensure!(found == expected, "{options}: {found:?}");
    }
    let wrong = format!("iscsi://u%another-of-16-by@{portal}");
    home.run(context, &["ls", &wrong])?.expect(4).map(drop)
}

/// One login with a wrong CHAP response; returns the status.
fn wrong_login(from: Ipv4Addr, url: &Url, user: &str) -> Result<[u8; 2]> {
    let mut session = Session::bare(connect_from(from, url, LIMIT)?);
    let identity = [("InitiatorName", NAME), ("TargetName", &url.iqn), ("SessionType", "Normal")];
    let response = format!("0x{}", "5a".repeat(16));
    let texts = [
        keys(&[&identity[..], &[("AuthMethod", "CHAP")]].concat()),
        keys(&[("CHAP_A", "5")]),
        keys(&[("CHAP_N", user), ("CHAP_R", &response)]),
    ];
    let mut status = [0, 0];
    for (number, text) in texts.into_iter().enumerate() {
        let mut pdu = login_pdu(if number == 2 { 0x81 } else { 0 }, [0x80, 0, 0, 0, 9, 9], text);
        pdu.set(28, session.exp_stat_sn);
        session.send(&pdu)?;
        let answer = session.receive()?;
        session.exp_stat_sn = answer.get(24).wrapping_add(1);
        status = answer.status();
        if status != [0, 0] {
            break;
        }
    }
    Ok(status)
}

/// Wrong logins from many addresses beside right ones: each address is in the log with the user and the reason, the log
/// is bounded, and the right ones succeed.
fn refused_logins(context: &Context) -> Result<()> {
    let logins = context.amount(1000, 10_000);
    let home = Home::new()?;
    let chap = ["a.img", "--chap-user", "u", "--chap-secret-file", "u.secret", "--iqn", CLOSED];
    let server = home.serve(context, &chap, 1)?;
    let stop = AtomicBool::new(false);
    let address = |number: usize| Ipv4Addr::new(127, 0, 9, 1 + (number % usize::from(ADDRESSES)) as u8);
    let started = std::time::Instant::now();
    let right = std::thread::scope(|scope| -> Result<usize> {
        let right = scope.spawn(|| -> Result<usize> {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) || count == 0 {
                let url = with_secret(&server.url, "u");
                home.run(context, &["info", &url])?.success().context("a right login")?;
                count += 1;
            }
            Ok(count)
        });
        let wrong = (0..logins).try_for_each(|number| {
            let user = if number % 2 == 0 { "u" } else { "unknown" };
            let status = wrong_login(address(number), &server.url, user)?;
            ensure!(status == [2, 1], "a wrong login has status {status:?}");
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        let right = right.join().expect("no panic")?;
        wrong.map(|()| right)
    })?;
    let seconds = started.elapsed().as_secs_f64().ceil() as usize + 1;
    std::thread::sleep(Duration::from_millis(1200));
    let log = server.running.stderr();
    let is_refusal = |line: &&str| line.contains("WARN no session ");
    let lines: Vec<&str> = log.lines().filter(is_refusal).collect();
    for number in 0..usize::from(ADDRESSES) {
        let peer = format!("peer={}:", address(number));
        let of_it: Vec<_> = lines.iter().filter(|line| line.contains(&peer)).collect();
        let is_whole = of_it.iter().any(|line| {
            ["initiator=", "chap_user=", "reason="].iter().all(|field| line.contains(field))
                && (line.contains("wrong secret of CHAP user") || line.contains("has no account here"))
        });
        ensure!(is_whole, "{peer} {of_it:?}");
    }
    let counted = counted(&log)?;
    ensure!(lines.len() + counted == logins, "{} lines and {counted} counted of {logins}", lines.len());
    // Two reasons for each address and second, and the lines of the counts.
    let lines_max = seconds * (usize::from(ADDRESSES) * 2 + 17);
    let all = log.lines().filter(|line| line.contains(" no session ")).count();
    ensure!(all <= lines_max, "{all} lines in {seconds} s");
    let status = home.server(context, &server)?;
    expect(&status, "/connections_refused", logins)?;
    ensure!(right > 0, "no right login");
    Ok(())
}

/// The connections that the log counts instead of listing them.
fn counted(log: &str) -> Result<usize> {
    let mut all = 0;
    for line in log.lines().filter(|line| line.contains("came to no session within a second")) {
        let more = line.split("more=").nth(1).and_then(|rest| rest.split(' ').next());
        all += more.context("no count")?.parse::<usize>()?;
    }
    Ok(all)
}

/// The response to a request for metrics, head and body.
fn http(address: &str, request: &str) -> Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(request.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let (head, body) =
        response.split_once("\r\n\r\n").with_context(|| format!("no response: {response:?}"))?;
    Ok((head.to_owned(), body.to_owned()))
}

/// Metrics are scraped while a connection hangs; a token is required beyond loopback, and is checked.
fn metrics(context: &Context) -> Result<()> {
    let home = Home::new()?;
    private_file(home.path("token"), "0123456789abcdef\n")?;
    let exposed = ["serve", "a.img", "--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"];
    home.run(context, &exposed)?.expect(6)?.says("--metrics-token-file")?;
    let with = ["a.img", "--iqn", OPEN, "--metrics", "127.0.0.1:0", "--metrics-token-file", "token"];
    let server = home.serve(context, &with, 1)?;
    let line = server.logs(0, "metrics: http://")?;
    let address =
        line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).context("no address")?;
    let slow = TcpStream::connect(address)?;
    let authorized = "GET /metrics HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n";
    home.run(context, &["copy", "pattern:1M:7", &server.url.to_string(), "-q"])?.success()?;
    let (head, body) = http(address, authorized)?;
    ensure!(head.starts_with("HTTP/1.1 200 ") && head.contains("openmetrics-text"), "{head}");
    let written = format!("hikyaku_data_bytes_total{{target=\"{OPEN}\",lun=\"0\",class=\"write\"}} 1048576");
    ensure!(body.lines().any(|line| line == written) && body.ends_with("# EOF\n"), "{body}");
    drop(slow);
    for (request, status) in [
        ("GET /metrics HTTP/1.1\r\n\r\n", "401"),
        ("GET /metrics HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdee\r\n\r\n", "401"),
        ("\u{1b}\r\n\r\n", "400"),
    ] {
        let (head, _) = http(address, request)?;
        ensure!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {head}");
    }
    Session::login(&server.url, NAME, [0x80, 0, 0, 0, 0, 1])?.read(0, 0, 1).map(drop)
}

/// `--log json`: an object a line, with the fields of a refusal; names that an initiator sends forge no line.
fn log_json(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let chap =
        ["a.img", "--chap-user", "u", "--chap-secret-file", "u.secret", "--iqn", CLOSED, "--log", "json"];
    let server = home.serve(context, &chap, 1)?;
    let user = "x\", \"level\": \"ERROR\nWARN no session peer=1.2.3.4:5 \u{1b}[2J\u{202e}";
    let status = wrong_login(Ipv4Addr::LOCALHOST, &server.url, user)?;
    ensure!(status == [2, 1], "{status:?}");
    server.logs(0, "no session")?;
    let log = server.running.stderr();
    let mut refusals = 0;
    for line in log.lines() {
        let object: Value = serde_json::from_str(line).with_context(|| format!("{line:?}"))?;
        if object["fields"]["message"] == "no session" {
            refusals += 1;
            expect(&object, "/fields/chap_user", user)?;
            expect(&object, "/fields/initiator", NAME)?;
        }
        ensure!(!line.contains(['\u{1b}', '\u{202e}']), "{line:?}");
    }
    ensure!(refusals == 1, "{refusals} refusals in {log}");
    Ok(())
}

/// A running copy is shown while it runs, and as resumable after its interruption.
fn copies(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let copy = ["copy", "pattern:1100M:3", "c.img", "--rate", "64M", "-q"];
    let mut command = context.command_in(home.dir.path());
    let mut running = Running::start(command.args(copy).current_dir(home.dir.path()))?;
    let pid = running.pid();
    let shown = || -> Result<Option<Value>> {
        let status = home.status(context)?;
        Ok(status["processes"].as_array().and_then(|all| all.iter().find(|one| one["pid"] == pid)).cloned())
    };
    let moving = || Ok(shown()?.is_some_and(|copy| copy["progress"]["bytes"].as_u64() > Some(0)));
    wait_until(LIMIT, moving)?;
    let copy = shown()?.context("no copy")?;
    expect(&copy, "/command", "copy")?;
    expect(&copy, "/destination", "c.img")?;
    expect(&home.status(context)?, "/resumable_copies", Value::Array(Vec::new()))?;
    running.signal(libc::SIGINT)?;
    running.finish(LIMIT)?.expect(130)?;
    let status = home.status(context)?;
    ensure!(shown()?.is_none(), "{status}");
    expect(&status, "/resumable_copies/0/destination", "c.img")?;
    prints(&home.run(context, &["status"])?.success()?, "--resume")
}

/// The rate of a running copy is changed, and removed: the copy then ends at once. An unknown ID names the copies.
fn copy_rate(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let copy = ["copy", "pattern:96M:3", "c.img", "--rate", "1MB/s", "-q"];
    let mut command = context.command_in(home.dir.path());
    let running = Running::start(command.args(copy).current_dir(home.dir.path()))?;
    let id = running.pid().to_string();
    let shows = |limit: f64| -> Result<bool> {
        let status = home.status(context)?;
        let mut all = status["processes"].as_array().into_iter().flatten();
        let copy = all.find(|one| one["pid"] == running.pid());
        Ok(copy.is_some_and(|copy| copy["progress"]["rate_limit_mb_per_s"] == limit))
    };
    wait_until(LIMIT, || shows(1.0))?;
    let ctl = |words: &[&str]| home.run(context, &[&["ctl", "copy"], words].concat());
    prints(&ctl(&[&id, "rate", "2MB/s"])?.success()?, "rate: at most 2.0 MB/s, before: at most 1.0 MB/s")?;
    wait_until(LIMIT, || shows(2.0))?;
    let listed = format!("{id} pattern:96M:3 -> c.img");
    ctl(&["1", "rate", "off"])?.expect(2)?.says_all(&["no copy of this user has this ID", &listed])?;
    ctl(&[&id, "rate", "0"])?.expect(2)?.says("would never finish")?;
    let done = ctl(&[&id, "rate", "off", "--json"])?.success()?.json()?;
    expect(&done, "/done", "rate: no limit, before: at most 2.0 MB/s")?;
    // At 2 MB/s it would take 50 seconds.
    running.finish(LIMIT)?.success().map(drop)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let rows: Rows<'_> = &[
        ("status-has-what-was-done", seen),
        ("status-has-sessions", sessions),
        ("ctl-luns", luns),
        ("control-socket-hostile", socket),
        ("copies-running-and-resumable", copies),
        ("copy-rate-changes-while-it-runs", copy_rate),
        ("metrics", metrics),
        ("log-json-forges-no-line", log_json),
        ("log-and-labels-are-escaped", hostile::log),
        ("hostile-connections-harm-no-session", hostile::connections),
        ("half-written-configuration", faults::half_written),
        ("socket-activation", manager::activated),
        ("stored-socket-no-longer-configured", manager::moved),
        ("discovery-lists-what-may-be-used", discovery),
        ("refused-logins-are-logged-by-address", refused_logins),
        ("alert-rules-fire", monitoring::rules),
        ("dashboard-and-rules-use-what-a-scrape-has", monitoring::expressions),
    ];
    cases.check_each(context, rows);
    cases.check_some(FULL_ONLY, "prometheus-scrapes", || monitoring::prometheus(context));
    cases.check("killed-at-each-step-of-its-start", || faults::start(context));
    if is_root() {
        // strace attaches to running servers, and a small file system is mounted.
        let rows: Rows<'_> = &[
            ("killed-at-each-step-of-a-reload", faults::reload),
            ("killed-at-each-step-of-a-hand-over", faults::hand_over),
            ("killed-at-each-step-of-an-upgrade", faults::upgrade),
            ("state-directory-full", faults::full_state),
        ];
        cases.check_each(context, rows);
    } else {
        cases.note("servers killed at reload and hand-over, and full state directories, were not tested: this needs root");
    }
    let longest = Cell::new(0);
    cases.check("restart-under-load", || {
        longest.set(manager::restart(context, 1)?);
        Ok(())
    });
    if longest.get() > 0 {
        cases.fact("longest_command_at_a_restart_ms", longest.take() / 1000);
    }
    cases.check_some(FULL_ONLY, "restarts-under-load", || {
        longest.set(manager::restart(context, RESTARTS)?);
        Ok(())
    });
    if longest.get() > 0 {
        cases.fact("longest_command_at_20_restarts_ms", longest.get() / 1000);
    }
    Ok(())
}
