//! A target whose key is known, reached by other names, other addresses, and from other configuration directories.
//!
//! Each scene lets the initiator trust a sealed target, ends that target, and puts a plain one (the rogue) where the
//! attacker would: no name may lead to a session with it, and its log must show no login.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::pdu::{Pdu, keys};
use crate::harness::process::Surroundings;
use crate::harness::{Cases, Context, Output, Running, find_program, free_port, program, run, scratch};

const LIMIT: Duration = Duration::from_secs(60);
const IQN: &str = "iqn.2026-11.example.attack:names";
const LOGIN_RESPONSE: u8 = 0x23;
/// A user without rights and without a home directory.
const NOBODY: u32 = 65534;
/// What the C library, and through it the program, reads under `/etc`.
const ETC_FILES: &[&str] = &["hosts", "host.conf", "nsswitch.conf", "passwd", "group", "ld.so.cache"];

/// Ways to write 127.0.0.1 that lead there.
const SPELLINGS: &[&str] = &[
    "localhost",
    "LocalHost",
    "127.1",
    "127.0.0.01",
    "2130706433",
    "0x7f000001",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "127.0.0.1",
    // Linux connects the unspecified address to the loopback address.
    "0.0.0.0",
    "0",
    "[::ffff:0.0.0.0]",
];

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

/// A home with the initiator's key at the usual place, the target's key, and the target's list of peers.
struct Scene<'a> {
    context: &'a Context,
    home: TempDir,
    target_key: String,
}

/// A server under a guard.
struct Server {
    running: Running,
    port: u16,
}

impl Server {
    /// Its log; no login may stand in it.
    fn saw_no_login(&self) -> Result<()> {
        let log = self.running.stderr();
        ensure!(!log.contains(" logged in "), "the rogue had a session:\n{log}");
        Ok(())
    }
}

impl<'a> Scene<'a> {
    fn new(context: &'a Context) -> Result<Self> {
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

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    /// The user's known targets.
    fn known_targets(&self) -> PathBuf {
        self.home.path().join("config/hikyaku/known-targets")
    }

    fn command(&self) -> Command {
        self.context.command_in(self.home.path())
    }

    fn ours(&self, arguments: &[&str]) -> Result<Output> {
        bounded(self.command().args(arguments))
    }

    /// Serves 8 MiB at a port of the loopback address, 0 for any.
    fn serve(&self, port: u16, policy: &[&str], surroundings: &Surroundings, ip: &str) -> Result<Server> {
        let mut command = self.command();
        surroundings.apply(&mut command);
        command.args(["serve", "mem:8M", "--iqn", IQN, "--listen", &format!("{ip}:{port}")]).args(policy);
        let mut running = Running::start(&mut command)?;
        let port = running.wait_stdout("URL", LIMIT, |text| {
            let line = text.lines().find(|line| line.starts_with("iscsi://"))?;
            line.split('/').nth(2)?.rsplit(':').next()?.parse().ok()
        })?;
        Ok(Server { running, port })
    }

    /// The target whose key is known.
    fn sealed(&self) -> Result<Server> {
        let (identity, peers) = (self.path("target.key"), self.path("peers.toml"));
        self.serve(0, &["--identity", &identity, "--peers", &peers], &Surroundings::default(), "127.0.0.1")
    }

    /// Who stands at its place.
    fn rogue(&self, port: u16) -> Result<Server> {
        self.serve(port, &["--seal", "off"], &Surroundings::default(), "127.0.0.1")
    }

    fn trust(&self, host: &str, port: u16) -> Result<()> {
        let url = format!("iscsi://{host}:{port}");
        self.ours(&["key", "trust", &url, "--key", &self.target_key])?.success()?;
        Ok(())
    }

    /// The known target has gone, and the rogue answers at its port.
    fn replaced(&self, known_as: &str) -> Result<Server> {
        let sealed = self.sealed()?;
        let port = sealed.port;
        self.trust(known_as, port)?;
        drop(sealed);
        self.rogue(port)
    }

    /// Runs the program where `/etc/hikyaku` holds `files`; the machine's own directory is not touched.
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
    let output = run(command, LIMIT)?;
    ensure!(!output.timed_out, "{}: still running after {LIMIT:?}\n{}", output.line, output.text());
    ensure!(!output.text().contains("panicked"), "{}: {}", output.line, output.text());
    Ok(output)
}

fn lun(host: &str, port: u16) -> String {
    format!("iscsi://{host}:{port}/{IQN}/0")
}

/// Exit 4 and an error whose cause has all these words.
fn refused(output: Output, words: &[&str]) -> Result<()> {
    let output = output.expect(4)?;
    let line = output.stderr.lines().last().context("nothing on stderr")?;
    let error = serde_json::from_str::<Value>(line)?["error"].clone();
    let cause = error["cause"].as_str().unwrap_or_default();
    for word in words {
        ensure!(cause.contains(word), "{}: no {word:?} in {error}", output.line);
    }
    Ok(())
}

fn is_root() -> bool {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A network namespace whose loopback device also has an address that is not of the loopback network.
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
        run(program("ip")?.args(arguments), LIMIT)?.success()?;
        Ok(())
    }

    pub(super) fn surroundings(&self) -> Surroundings {
        Surroundings { network: Some(self.name.clone()), ..Surroundings::default() }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.ip(&["netns", "del", &self.name]);
    }
}

/// A portal that sends every login on to `to`. Its own port.
fn redirector(to: String) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    // Ends with this process: a blocked accept costs nothing.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 48];
            if stream.read_exact(&mut request).is_err() {
                continue;
            }
            let length = u32::from_be_bytes([0, request[5], request[6], request[7]]) as usize;
            let mut text = vec![0; length.next_multiple_of(4)];
            if stream.read_exact(&mut text).is_err() {
                continue;
            }
            // Status 0101, target moved temporarily.
            let moved = keys(&[("TargetAddress", &to)]);
            let mut response = Pdu::new(LOGIN_RESPONSE, 0).with_data(moved);
            response.bhs[8..14].copy_from_slice(&request[8..14]);
            response.bhs[16..20].copy_from_slice(&request[16..20]);
            (response.bhs[36], response.bhs[37]) = (1, 1);
            let _ = stream.write_all(&response.encode());
        }
    });
    Ok(port)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    cases.check("names-every-spelling-of-the-address", || {
        let scene = Scene::new(context)?;
        let rogue = scene.replaced("127.0.0.1")?;
        for spelling in SPELLINGS {
            let url = lun(spelling, rogue.port);
            let copy = scene.ours(&["copy", "pattern:1M", &url, "--force", "--json"])?;
            refused(copy, &["line 1 of", "known-targets"])?;
        }
        for command in [&["info"][..], &["ls"], &["torture", "--destroy"], &["bench", "path"]] {
            let url = lun("localhost", rogue.port);
            refused(scene.ours(&[command, &[&url, "--json"]].concat())?, &["line 1 of", "known-targets"])?;
        }
        rogue.saw_no_login()
    });
    cases.check("names-an-address-of-a-known-name", || {
        let scene = Scene::new(context)?;
        let rogue = scene.replaced("localhost")?;
        for spelling in SPELLINGS {
            let url = lun(spelling, rogue.port);
            refused(scene.ours(&["copy", "pattern:1M", &url, "--force", "--json"])?, &["line 1 of"])?;
        }
        rogue.saw_no_login()
    });
    cases.check("names-the-target-name-noted-at-the-first-sealed-login", || {
        let scene = Scene::new(context)?;
        let sealed = scene.sealed()?;
        scene.trust("127.0.0.1", sealed.port)?;
        let told = scene.ours(&["info", &lun("127.0.0.1", sealed.port), "--json"])?.success()?;
        drop(sealed);
        // Another port is another host, as far as names and addresses go.
        let rogue = scene.rogue(free_port()?)?;
        let url = lun("127.0.0.1", rogue.port);
        refused(scene.ours(&["copy", "pattern:1M", &url, "--force", "--json"])?, &["line 1 of", IQN])?;
        let protection = serde_json::from_str::<Value>(&told.stdout)?["protection"].clone();
        ensure!(protection["kind"] == "seal", "{protection}");
        ensure!(protection["peer"] == *scene.target_key, "{protection}");
        let rogue_url = format!("{url},seal=off");
        scene.ours(&["info", &rogue_url])?.success()?;
        Ok(())
    });
    cases.check("names-the-target-name-told-by-discovery", || {
        let scene = Scene::new(context)?;
        let sealed = scene.sealed()?;
        scene.trust("127.0.0.1", sealed.port)?;
        scene.ours(&["info", &lun("127.0.0.1", sealed.port)])?.success()?;
        drop(sealed);
        let rogue = scene.rogue(free_port()?)?;
        let output =
            scene.ours(&["ls", &format!("iscsi://127.0.0.1:{}", rogue.port), "--json"])?.success()?;
        let target = serde_json::from_str::<Value>(&output.stdout)?["targets"][0].clone();
        ensure!(target["error"]["code"] == 4 && target["luns"] == serde_json::json!([]), "{target}");
        let log = rogue.running.stderr();
        ensure!(!log.contains(&format!("target_name=\"{IQN}\"")), "the rogue had a session:\n{log}");
        Ok(())
    });
    cases.check("names-a-known-address-behind-a-redirection", || {
        let scene = Scene::new(context)?;
        let rogue = scene.replaced("127.0.0.1")?;
        for host in ["127.0.0.1", "0.0.0.0"] {
            let url = lun("127.0.0.1", redirector(format!("{host}:{}", rogue.port))?);
            refused(scene.ours(&["copy", "pattern:1M", &url, "--force", "--json"])?, &["line 1 of"])?;
        }
        rogue.saw_no_login()
    });
    cases.check("names-the-unspecified-address-of-ipv6", || {
        let scene = Scene::new(context)?;
        let none = Surroundings::default();
        let rogue = scene.serve(0, &["--seal", "off"], &none, "[::1]")?;
        fs::create_dir_all(scene.known_targets().parent().context("a directory")?)?;
        fs::write(scene.known_targets(), format!("[::1]:{} {}\n", rogue.port, scene.target_key))?;
        for spelling in ["[::]", "[::1]", "[0:0::0]"] {
            let url = lun(spelling, rogue.port);
            refused(scene.ours(&["copy", "pattern:1M", &url, "--force", "--json"])?, &["line 1 of"])?;
        }
        rogue.saw_no_login()
    });
    cases.check("names-a-mistaken-line-ends-the-command", || {
        let scene = Scene::new(context)?;
        let rogue = scene.replaced("127.0.0.1")?;
        let url = lun("127.0.0.1", rogue.port);
        let info = || scene.ours(&["info", &url, "--json"]);
        for line in MISTAKEN_LINES {
            let line = line.replace("PORT", &rogue.port.to_string()).replace("KEY", &scene.target_key);
            fs::write(scene.known_targets(), format!("# remark\n{line}\n"))?;
            let output = info()?.expect(1)?;
            ensure!(output.stderr.contains("line 2 is not of the form"), "{line}: {}", output.stderr);
        }
        fs::remove_file(scene.known_targets())?;
        std::os::unix::fs::symlink("/nonexistent/known-targets", scene.known_targets())?;
        let output = info()?.expect(1)?;
        ensure!(output.stderr.contains("leads nowhere"), "{}", output.stderr);
        rogue.saw_no_login()
    });
    cases.check("names-disagreement-names-both-lines", || {
        let scene = Scene::new(context)?;
        let sealed = scene.sealed()?;
        let other = scene.new_key(&[&scene.path("other.key")])?;
        let port = sealed.port;
        let lines = format!("localhost:{port} {other}\n127.0.0.1:{port} {}\n", scene.target_key);
        fs::write(scene.known_targets(), lines)?;
        fs::set_permissions(scene.known_targets(), fs::Permissions::from_mode(0o600))?;
        let told = scene.ours(&["info", &lun("localhost", port), "--json"])?;
        refused(told, &["line 1 of", "line 2 of", &other, &scene.target_key])?;
        // The name that only one line knows still works.
        scene.ours(&["info", &lun("127.0.0.1", port)])?.success()?;
        Ok(())
    });
    cases.check("names-no-configuration-directory", || {
        let scene = Scene::new(context)?;
        let rogue = scene.rogue(0)?;
        let url = lun("127.0.0.1", rogue.port);
        let mut command = scene.command();
        command.env_remove("HOME").env_remove("XDG_CONFIG_HOME").args(["info", &url]);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = bounded(&mut command)?.expect(2)?;
        ensure!(output.stderr.contains("XDG_CONFIG_HOME"), "{}", output.stderr);
        rogue.saw_no_login()
    });
    cases.check("names-client-seal-require", || {
        let scene = Scene::new(context)?;
        let rogue = scene.rogue(0)?;
        let file = scene.path("config/hikyaku/hikyaku.toml");
        fs::write(&file, "# this host's\n[client]\nseal = \"require\"\n")?;
        let at = format!("line 3 of {file}");
        for option in ["", ",seal=off"] {
            let url = lun("127.0.0.1", rogue.port) + option;
            refused(scene.ours(&["copy", "pattern:1M", &url, "--force", "--json"])?, &[&at])?;
            refused(scene.ours(&["ls", &url, "--json"])?, &[&at])?;
        }
        fs::write(&file, "[client]\nseal = \"off\"\n")?;
        let output = scene.ours(&["info", &lun("127.0.0.1", rogue.port)])?.expect(2)?;
        ensure!(output.stderr.contains("line 2"), "{}", output.stderr);
        rogue.saw_no_login()
    });
    if !is_root() || find_program("unshare").is_none() || find_program("ip").is_none() {
        cases.note("names-host-*, names-beyond-loopback: they need root, unshare and ip");
        return Ok(());
    }
    cases.check("names-host-file-under-another-configuration-directory", || {
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
    });
    cases.check("names-host-client-seal-require", || {
        let scene = Scene::new(context)?;
        let rogue = scene.rogue(0)?;
        let mut command = scene.command();
        command.args(["info", &lun("127.0.0.1", rogue.port), "--json"]);
        let text = "[client]\nseal = \"require\"\n";
        let mut inside = scene.with_host_files(&[("hikyaku.toml", text)], &command)?;
        refused(bounded(&mut inside)?, &["line 2 of /etc/hikyaku/hikyaku.toml"])?;
        rogue.saw_no_login()
    });
    cases.check("names-beyond-loopback-unprotected-is-said", || {
        let scene = Scene::new(context)?;
        let namespace = Namespace::new("names")?;
        let surroundings = namespace.surroundings();
        let plain = scene.serve(0, &["--seal", "off"], &surroundings, BEYOND)?;
        let info = |option: &str| -> Result<Output> {
            let mut command = scene.command();
            surroundings.apply(&mut command);
            bounded(command.args(["info", &format!("{}{option}", lun(BEYOND, plain.port)), "--json"]))?
                .success()
        };
        let output = info("")?;
        let said = output.stderr.lines().filter(|line| line.contains("not protected")).count();
        ensure!(said == 1, "{said} lines:\n{}", output.stderr);
        ensure!(output.stderr.contains(&format!("{BEYOND}:{}", plain.port)), "{}", output.stderr);
        let protection = serde_json::from_str::<Value>(&output.stdout)?["protection"].clone();
        ensure!(protection["kind"] == "none" && protection["peer"].is_null(), "{protection}");
        let output = info(",seal=off")?;
        ensure!(!output.stderr.contains("not protected"), "{}", output.stderr);
        Ok(())
    });
    Ok(())
}
