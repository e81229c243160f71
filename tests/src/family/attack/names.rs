//! A target whose key is known, reached by other names, other addresses, and from other configuration directories.
//!
//! Each scene makes the initiator trust a sealed target, ends that target, and starts a plain one (the rogue) in the
//! attacker's place: no name may lead to a session with the rogue, and its log must show no login.

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::cases::Rows;
use crate::pdu::{LOGIN_RESPONSE, Pdu, keys};
use crate::process::{Surroundings, within};
use crate::relay::Acceptor;
use crate::{Cases, Context, Output, Running, Server, find_program, free_port, program, run, scratch};
use steps::is_root;

const LIMIT: Duration = Duration::from_secs(60);
const IQN: &str = "iqn.2026-11.example.attack:names";
const NOBODY: u32 = 65534;
/// Files under `/etc` that the C library reads.
const ETC_FILES: &[&str] = &["hosts", "host.conf", "nsswitch.conf", "passwd", "group", "ld.so.cache"];

/// Spellings of 127.0.0.1 that connect to it, separated by spaces. Linux connects the unspecified address to the
/// loopback address.
const SPELLINGS: &str = "localhost LocalHost 127.1 127.0.0.01 2130706433 0x7f000001 [::ffff:127.0.0.1] \
    [::ffff:7f00:1] 127.0.0.1 0.0.0.0 0 [::ffff:0.0.0.0]";

/// Lines of known targets that name no host; PORT and KEY stand for those of the known target.
const MISTAKEN_LINES: &[&str] = &[
    "iscsi://127.0.0.1:PORT KEY",
    "me@127.0.0.1:PORT KEY",
    "\u{feff}127.0.0.1:PORT KEY",
    "\u{200b}127.0.0.1:PORT KEY",
    "10.0.0.1:1;127.0.0.1:PORT KEY",
    "127.0.0.0/8:PORT KEY",
    "*:PORT KEY",
    "127%2e0.0.1:PORT KEY",
];

/// A home with the initiator's key at the default path, the target's key, and the target's list of peers.
pub(in crate::family) struct Scene<'a> {
    context: &'a Context,
    pub(in crate::family) home: TempDir,
    pub(in crate::family) target_key: String,
}

/// A target, sealed or not.
struct Reached {
    running: Running,
    port: u16,
}

impl Reached {
    fn saw_no_login(&self) -> Result<()> {
        let log = self.running.stderr();
        demand!(!log.contains(" logged in "), "the rogue had a session:\n{log}")
    }
}

impl<'a> Scene<'a> {
    pub(in crate::family) fn new(context: &'a Context) -> Result<Self> {
        let mut scene = Self { context, home: scratch()?, target_key: String::new() };
        let initiator = scene.new_key(&[])?;
        scene.target_key = scene.new_key(&[&scene.path("target.key")])?;
        let peers = format!("[[peer]]\nname = \"laptop\"\npublic-key = \"{initiator}\"\n");
        fs::write(scene.path("peers.toml"), peers)?;
        Ok(scene)
    }

    fn new_key(&self, file: &[&str]) -> Result<String> {
        let output = self.ours(&[&["key", "new"], file].concat())?.success()?;
        Ok(output.stdout.trim().to_owned())
    }

    pub(in crate::family) fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    pub(super) fn known_targets(&self) -> PathBuf {
        self.home.path().join("config/hikyaku/known-targets")
    }

    pub(in crate::family) fn command(&self) -> Command {
        self.context.command_in(self.home.path())
    }

    pub(in crate::family) fn ours(&self, arguments: &[&str]) -> Result<Output> {
        bounded(self.command().args(arguments))
    }

    /// Serves 8 MiB at a port of the address `ip`, 0 for any.
    fn serve(&self, port: u16, policy: &[&str], surroundings: &Surroundings, ip: &str) -> Result<Reached> {
        let mut command = self.command();
        surroundings.apply(&mut command);
        command.args(["serve", "mem:8M", "--iqn", IQN, "--listen", &format!("{ip}:{port}")]).args(policy);
        let Server { running, url } = Server::start(&mut command, 1)?;
        Ok(Reached { running, port: url.port()? })
    }

    fn sealed(&self) -> Result<Reached> {
        let (identity, peers) = (self.path("target.key"), self.path("peers.toml"));
        self.serve(0, &["--identity", &identity, "--peers", &peers], &Surroundings::default(), "127.0.0.1")
    }

    fn rogue(&self, port: u16) -> Result<Reached> {
        self.serve(port, &["--seal", "off"], &Surroundings::default(), "127.0.0.1")
    }

    fn trust(&self, host: &str, port: u16) -> Result<()> {
        let url = format!("iscsi://{host}:{port}");
        self.ours(&["key", "trust", &url, "--key", &self.target_key])?.success().map(drop)
    }

    /// `copy` to the LUN `url` is refused, with these words.
    fn copy_is_refused(&self, url: &str, words: &[&str]) -> Result<()> {
        refused(self.ours(&["copy", "pattern:1M", url, "--force", "--json"])?, words)
    }

    fn replaced(&self, known_as: &str) -> Result<Reached> {
        let sealed = self.sealed()?;
        let port = sealed.port;
        self.trust(known_as, port)?;
        drop(sealed);
        self.rogue(port)
    }

    /// Wraps `command` so that `/etc/hikyaku` holds `files`; the machine's own directory is not changed.
    fn with_host_files(&self, files: &[(&str, &str)], command: &Command) -> Result<Command> {
        let etc = self.home.path().join("etc");
        fs::create_dir_all(etc.join("hikyaku"))?;
        for name in ETC_FILES {
            if let Ok(bytes) = fs::read(format!("/etc/{name}")) {
                fs::write(etc.join(name), bytes)?;
            }
        }
        for (name, text) in files {
            fs::write(etc.join("hikyaku").join(name), text)?;
        }
        let mut inside = program("unshare")?;
        inside.args(["-m", "sh", "-c", "mount --bind \"$0\" /etc && exec \"$@\""]).arg(&etc);
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        Ok(inside)
    }
}

fn bounded(command: &mut Command) -> Result<Output> {
    run(command, LIMIT)?.orderly()
}

fn lun(host: &str, port: u16) -> String {
    format!("iscsi://{host}:{port}/{IQN}/0")
}

fn refused(output: Output, words: &[&str]) -> Result<()> {
    let output = output.expect(4)?;
    let error = output.json_error()?;
    let cause = error["cause"].as_str().unwrap_or_default();
    let has = |word: &&str| demand!(cause.contains(*word), "{}: no {word:?} in {error}", output.line);
    words.iter().try_for_each(has)
}

/// A network namespace whose loopback device also has an address outside the loopback network.
pub(super) struct Namespace {
    pub(super) name: String,
}

/// That address.
pub(super) const BEYOND: &str = "10.77.12.1";

impl Namespace {
    pub(super) fn new(of: &str) -> Result<Self> {
        let namespace = Self { name: format!("{of}-{}", std::process::id()) };
        namespace.ip(&["netns", "add", &namespace.name])?;
        namespace.ip(&["-n", &namespace.name, "link", "set", "lo", "up"])?;
        namespace.ip(&["-n", &namespace.name, "address", "add", &format!("{BEYOND}/32"), "dev", "lo"])?;
        Ok(namespace)
    }

    pub(super) fn ip(&self, arguments: &[&str]) -> Result<()> {
        run(program("ip")?.args(arguments), LIMIT)?.success().map(drop)
    }

    /// Runs `work` on a thread inside the namespace.
    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        within(&CString::new(format!("/run/netns/{}", self.name))?, work)
    }

    pub(super) fn surroundings(&self) -> Surroundings {
        Surroundings::network(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.ip(&["netns", "del", &self.name]);
    }
}

/// A target whose answer to every login is that it has moved temporarily (status 0101).
fn redirector(to: String) -> Result<Acceptor> {
    Acceptor::start(move |mut stream| {
        let request = Pdu::receive(&mut stream)?;
        let mut response = Pdu::new(LOGIN_RESPONSE, 0).with_data(keys(&[("TargetAddress", &to)]));
        response.bhs[8..14].copy_from_slice(&request.bhs[8..14]);
        response.bhs[16..20].copy_from_slice(&request.bhs[16..20]);
        (response.bhs[36], response.bhs[37]) = (1, 1);
        Ok(stream.write_all(&response.encode())?)
    })
}

fn every_spelling_of_the_address(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let rogue = scene.replaced("127.0.0.1")?;
    for spelling in SPELLINGS.split(' ') {
        scene.copy_is_refused(&lun(spelling, rogue.port), &["line 1 of", "known-targets"])?;
    }
    for command in [&["info"][..], &["ls"], &["torture", "--destroy"], &["bench", "path"]] {
        let url = lun("localhost", rogue.port);
        refused(scene.ours(&[command, &[&url, "--json"]].concat())?, &["line 1 of", "known-targets"])?;
    }
    rogue.saw_no_login()
}

fn an_address_of_a_known_name(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let rogue = scene.replaced("localhost")?;
    for spelling in SPELLINGS.split(' ') {
        scene.copy_is_refused(&lun(spelling, rogue.port), &["line 1 of"])?;
    }
    rogue.saw_no_login()
}

fn the_target_name_noted_at_a_sealed_login(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let sealed = scene.sealed()?;
    scene.trust("127.0.0.1", sealed.port)?;
    let report = scene.ours(&["info", &lun("127.0.0.1", sealed.port), "--json"])?.success()?;
    drop(sealed);
    // For names and addresses, another port counts as another host.
    let rogue = scene.rogue(free_port()?)?;
    let url = lun("127.0.0.1", rogue.port);
    scene.copy_is_refused(&url, &["line 1 of", IQN])?;
    let protection = report.json()?["protection"].clone();
    ensure!(protection["kind"] == "seal" && protection["peer"] == *scene.target_key, "{protection}");
    scene.ours(&["info", &format!("{url},seal=off")])?.success().map(drop)
}

fn the_target_name_told_by_discovery(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let sealed = scene.sealed()?;
    scene.trust("127.0.0.1", sealed.port)?;
    scene.ours(&["info", &lun("127.0.0.1", sealed.port)])?.success()?;
    drop(sealed);
    let rogue = scene.rogue(free_port()?)?;
    let output = scene.ours(&["ls", &format!("iscsi://127.0.0.1:{}", rogue.port), "--json"])?.success()?;
    let target = output.json()?["targets"][0].clone();
    ensure!(target["error"]["code"] == 4 && target["luns"] == serde_json::json!([]), "{target}");
    let log = rogue.running.stderr();
    let is_session =
        |line: &str| line.contains("logged in") && line.contains(&format!("target_name=\"{IQN}\""));
    demand!(!log.lines().any(is_session), "the rogue had a session:\n{log}")
}

fn a_known_address_behind_a_redirection(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let rogue = scene.replaced("127.0.0.1")?;
    for host in ["127.0.0.1", "0.0.0.0"] {
        let redirector = redirector(format!("{host}:{}", rogue.port))?;
        scene.copy_is_refused(&lun("127.0.0.1", redirector.port()), &["line 1 of"])?;
    }
    rogue.saw_no_login()
}

fn the_unspecified_address_of_ipv6(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let rogue = scene.serve(0, &["--seal", "off"], &Surroundings::default(), "[::1]")?;
    fs::create_dir_all(scene.known_targets().parent().context("a directory")?)?;
    fs::write(scene.known_targets(), format!("[::1]:{} {}\n", rogue.port, scene.target_key))?;
    for spelling in ["[::]", "[::1]", "[0:0::0]"] {
        scene.copy_is_refused(&lun(spelling, rogue.port), &["line 1 of"])?;
    }
    rogue.saw_no_login()
}

fn a_mistaken_line_ends_the_command(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let rogue = scene.replaced("127.0.0.1")?;
    let url = lun("127.0.0.1", rogue.port);
    let info = || scene.ours(&["info", &url, "--json"]);
    for line in MISTAKEN_LINES {
        let line = line.replace("PORT", &rogue.port.to_string()).replace("KEY", &scene.target_key);
        fs::write(scene.known_targets(), format!("# remark\n{line}\n"))?;
        info()?.expect(1)?.says("line 2 is not of the form")?;
    }
    fs::remove_file(scene.known_targets())?;
    std::os::unix::fs::symlink("/nonexistent/known-targets", scene.known_targets())?;
    info()?.expect(1)?.says("leads nowhere")?;
    rogue.saw_no_login()
}

fn disagreement_names_both_lines(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let sealed = scene.sealed()?;
    let other = scene.new_key(&[&scene.path("other.key")])?;
    let port = sealed.port;
    let lines = format!("localhost:{port} {other}\n127.0.0.1:{port} {}\n", scene.target_key);
    fs::write(scene.known_targets(), lines)?;
    fs::set_permissions(scene.known_targets(), fs::Permissions::from_mode(0o600))?;
    let report = scene.ours(&["info", &lun("localhost", port), "--json"])?;
    refused(report, &["line 1 of", "line 2 of", &other, &scene.target_key])?;
    // The name that is in one line only still works.
    scene.ours(&["info", &lun("127.0.0.1", port)])?.success().map(drop)
}

fn no_configuration_directory(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let rogue = scene.rogue(0)?;
    let url = lun("127.0.0.1", rogue.port);
    let mut command = scene.command();
    command.env_remove("HOME").env_remove("XDG_CONFIG_HOME").args(["info", &url]);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    bounded(&mut command)?.expect(2)?.says("XDG_CONFIG_HOME")?;
    rogue.saw_no_login()
}

fn client_seal_require(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let rogue = scene.rogue(0)?;
    let file = scene.path("config/hikyaku/hikyaku.toml");
    fs::write(&file, "# this host's\n[client]\nseal = \"require\"\n")?;
    let at = format!("line 3 of {file}");
    for option in ["", ",seal=off"] {
        let url = lun("127.0.0.1", rogue.port) + option;
        scene.copy_is_refused(&url, &[&at])?;
        refused(scene.ours(&["ls", &url, "--json"])?, &[&at])?;
    }
    fs::write(&file, "[client]\nseal = \"off\"\n")?;
    scene.ours(&["info", &lun("127.0.0.1", rogue.port)])?.expect(2)?.says("line 2")?;
    rogue.saw_no_login()
}

fn host_file_elsewhere(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let rogue = scene.replaced("127.0.0.1")?;
    let known = fs::read_to_string(scene.known_targets())?;
    let url = lun("localhost", rogue.port);
    let elsewhere = scene.path("elsewhere");
    for without_home in [false, true] {
        let mut command = scene.command();
        command.args(["copy", "pattern:1M", &url, "--force", "--json"]);
        if without_home {
            command.env_remove("HOME").env_remove("XDG_CONFIG_HOME");
        } else {
            command.env("XDG_CONFIG_HOME", &elsewhere);
        }
        let mut inside = scene.with_host_files(&[("known-targets", &known)], &command)?;
        refused(bounded(&mut inside)?, &["line 1 of /etc/hikyaku/known-targets"])?;
    }
    rogue.saw_no_login()
}

fn host_client_seal_require(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let rogue = scene.rogue(0)?;
    let mut command = scene.command();
    command.args(["info", &lun("127.0.0.1", rogue.port), "--json"]);
    let text = "[client]\nseal = \"require\"\n";
    let mut inside = scene.with_host_files(&[("hikyaku.toml", text)], &command)?;
    refused(bounded(&mut inside)?, &["line 2 of /etc/hikyaku/hikyaku.toml"])?;
    rogue.saw_no_login()
}

fn beyond_loopback_unprotected_is_said(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let namespace = Namespace::new("names")?;
    let surroundings = namespace.surroundings();
    let plain = scene.serve(0, &["--seal", "off"], &surroundings, BEYOND)?;
    let info = |option: &str| -> Result<Output> {
        let mut command = scene.command();
        surroundings.apply(&mut command);
        bounded(command.args(["info", &format!("{}{option}", lun(BEYOND, plain.port)), "--json"]))?.success()
    };
    let output = info("")?;
    let said = output.stderr.lines().filter(|line| line.contains("not protected")).count();
    ensure!(said == 1, "{said} lines:\n{}", output.stderr);
    ensure!(output.stderr.contains(&format!("{BEYOND}:{}", plain.port)), "{}", output.stderr);
    let protection = output.json()?["protection"].clone();
    ensure!(protection["kind"] == "none" && protection["peer"].is_null(), "{protection}");
    let output = info(",seal=off")?;
    demand!(!output.stderr.contains("not protected"), "{}", output.stderr)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let rows: Rows<'_> = &[
        ("names-every-spelling-of-the-address", every_spelling_of_the_address),
        ("names-an-address-of-a-known-name", an_address_of_a_known_name),
        ("names-the-target-name-noted-at-the-first-sealed-login", the_target_name_noted_at_a_sealed_login),
        ("names-the-target-name-told-by-discovery", the_target_name_told_by_discovery),
        ("names-a-known-address-behind-a-redirection", a_known_address_behind_a_redirection),
        ("names-the-unspecified-address-of-ipv6", the_unspecified_address_of_ipv6),
        ("names-a-mistaken-line-ends-the-command", a_mistaken_line_ends_the_command),
        ("names-disagreement-names-both-lines", disagreement_names_both_lines),
        ("names-no-configuration-directory", no_configuration_directory),
        ("names-client-seal-require", client_seal_require),
    ];
    cases.check_each(context, rows);
    if !is_root() || find_program("unshare").is_none() || find_program("ip").is_none() {
        cases.note("names-host-*, names-beyond-loopback: they need root, unshare and ip");
        return;
    }
    let rows: Rows<'_> = &[
        ("names-host-file-under-another-configuration-directory", host_file_elsewhere),
        ("names-host-client-seal-require", host_client_seal_require),
        ("names-beyond-loopback-unprotected-is-said", beyond_loopback_unprotected_is_said),
    ];
    cases.check_each(context, rows);
}
