//! The host of a server: file modes, environments, arguments, memory, panics, and the limits of the sandbox.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::cases::Rows;
use crate::files::random_file;
use crate::process::{Running, Surroundings};
use crate::seal::Keys;
use crate::{Cases, Context, Disk, Output, Scene, Target, program, run, scratch};
use steps::is_root;

/// Time limit of a command: a refusal takes milliseconds, and a server that starts instead is killed here.
const LIMIT: Duration = Duration::from_secs(10);
const UNTRUSTED: i32 = 4;
/// A user id that owns no files of the test.
const STRANGER: u32 = 54_321;
/// A password that appears nowhere else.
const PASSWORD: &str = "correct-horse-17";
const TARGET_PASSWORD: &str = "battery-staple-42";

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let home = Scene::new(|| Home::new(context));
    for (file, of) in TRUSTED {
        for (name, mode) in [("group", 0o620), ("all", 0o602)] {
            cases.check(&format!("host-{of}-writable-by-{name}"), || {
                let home = home.get()?;
                let path = home.make(file)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
                refused(home.use_it(context, file)?, &path, &["others may write", &format!("{mode:03o}")])
            });
        }
        cases.check(&format!("host-{of}-of-a-stranger"), || {
            if !is_root() {
                return Ok(());
            }
            let home = home.get()?;
            let path = home.make(file)?;
            std::os::unix::fs::chown(&path, Some(STRANGER), None)?;
            refused(home.use_it(context, file)?, &path, &["belongs to user 54321"])
        });
        cases.check(&format!("host-{of}-is-a-fifo"), || {
            let home = home.get()?;
            let path = home.make(file)?;
            make_fifo(&path)?;
            let output = home.use_it(context, file)?;
            ensure!(!output.timed_out && output.code != Some(0), "{}: {output}", output.line);
            output.says_all(&["FIFO", &path.display().to_string()]).map(drop)
        });
        if file.is_secret() {
            cases.check(&format!("host-{of}-readable-by-others"), || {
                let home = home.get()?;
                let path = home.make(file)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o640))?;
                refused(home.use_it(context, file)?, &path, &["others may read", "640"])
            });
        }
    }
    let rows: Rows<'_> = &[
        ("host-create-is-private", create_is_private),
        ("host-hooks-see-no-password", hooks_see_no_password),
        ("host-process-shows-no-password", process_shows_no_password),
        ("host-messages-show-no-password", messages_show_no_password),
    ];
    cases.check_each(context, rows);
    cases.check("host-messages-command-no-terminal", || messages_command_no_terminal(context, home.get()?));
    for back_end in ["uring", "portable"] {
        cases.check(&format!("host-sandbox-{back_end}"), || sandboxed(context, back_end));
    }
    cases.check("host-sandbox-off", || sandbox_off(context));
}

/// A file that decides whom the program trusts.
#[derive(Clone, Copy, Debug)]
enum Trusted {
    Peers,
    Config,
    KnownTargets,
    ChapSecret,
    InitiatorSecret,
    Psk,
    Identity,
    TlsKey,
}

const TRUSTED: [(Trusted, &str); 8] = [
    (Trusted::Peers, "peers"),
    (Trusted::Config, "config"),
    (Trusted::KnownTargets, "known-targets"),
    (Trusted::ChapSecret, "chap-secret"),
    (Trusted::InitiatorSecret, "initiator-secret"),
    (Trusted::Psk, "psk"),
    (Trusted::Identity, "identity"),
    (Trusted::TlsKey, "tls-key"),
];

impl Trusted {
    fn is_secret(self) -> bool {
        !matches!(self, Self::Peers | Self::Config | Self::KnownTargets)
    }
}

struct Home {
    directory: TempDir,
    keys: Keys,
}

impl Home {
    fn new(context: &Context) -> Result<Self> {
        let directory = scratch()?;
        let keys = Keys::new(context, directory.path(), "first")?;
        Ok(Self { directory, keys })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> Result<PathBuf> {
        let path = self.path(name);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let _ = fs::remove_file(&path);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(path)
    }

    fn make(&self, file: Trusted) -> Result<PathBuf> {
        let key = self.keys.secret()?;
        let psk = self.write("psk", &format!("{key}\n"), 0o600)?;
        let of_psk = format!("psk-file = \"{}\"", psk.display());
        let more = if matches!(file, Trusted::Psk) { &of_psk } else { "" };
        let peers = self.write("peers.toml", &self.keys.peer("laptop", more), 0o600)?;
        let identity = self.write("target.key", &format!("{key}\n"), 0o600)?;
        let secret = self.write("chap.secret", &format!("{PASSWORD}\n"), 0o600)?;
        Ok(match file {
            Trusted::Peers => peers,
            Trusted::Psk => psk,
            Trusted::Identity => identity,
            Trusted::ChapSecret | Trusted::InitiatorSecret => secret,
            Trusted::Config => {
                let text = format!(
                    "[[target]]\niqn = \"iqn.2026-11.example:host\"\n[[target.lun]]\nlun = 0\nendpoint = \"mem:1M\"\n\
                     [[target.acl]]\nchap-user = \"u\"\nsecret-file = \"{}\"\n",
                    secret.display()
                );
                self.write("hikyaku.toml", &text, 0o600)?
            }
            Trusted::KnownTargets => {
                let line = format!("127.0.0.1:1 {}\n", self.keys.public);
                self.write("config/hikyaku/known-targets", &line, 0o600)?
            }
            Trusted::TlsKey => {
                let (certificate, key) = (self.path("tls.crt"), self.path("tls.key"));
                let _ = fs::remove_file(&key);
                let mut openssl = program("openssl")?;
                openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
                openssl.args(["-nodes", "-days", "2", "-subj", "/CN=localhost", "-out"]).arg(&certificate);
                run(openssl.arg("-keyout").arg(&key), LIMIT)?.success()?;
                key
            }
        })
    }

    fn use_it(&self, context: &Context, file: Trusted) -> Result<Output> {
        let path = |name: &str| self.path(name).display().to_string();
        let mut command = context.command_in(self.directory.path());
        let serve = ["serve", "--listen", "127.0.0.1:0"];
        match file {
            Trusted::KnownTargets => command.args(["ls", "iscsi://127.0.0.1:1"]),
            Trusted::InitiatorSecret => {
                let options = format!("chap-user=u,chap-secret-file={}", path("chap.secret"));
                command.args(["info", &format!("iscsi://127.0.0.1:2/iqn.2026-11.example:x/0,{options}")])
            }
            Trusted::Config => command.args(serve).args(["--config", &path("hikyaku.toml")]),
            Trusted::ChapSecret => {
                let secret = path("chap.secret");
                command.args(serve).args(["mem:1M", "--chap-user", "u", "--chap-secret-file", &secret])
            }
            Trusted::TlsKey => {
                let files = format!("{},{}", path("tls.crt"), path("tls.key"));
                command.args(serve).args(["mem:1M", "--tls", &files])
            }
            Trusted::Peers | Trusted::Psk | Trusted::Identity => {
                let (peers, identity) = (path("peers.toml"), path("target.key"));
                command.args(serve).args(["mem:1M", "--peers", &peers, "--identity", &identity])
            }
        };
        run(&mut command, LIMIT)
    }
}

pub(super) fn make_fifo(path: &Path) -> Result<()> {
    let _ = fs::remove_file(path);
    let name = std::ffi::CString::new(path.to_str().context("a path of text")?)?;
    // SAFETY: the name outlives the call.
    demand!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) } == 0, "{}", std::io::Error::last_os_error())
}

fn refused(output: Output, path: &Path, words: &[&str]) -> Result<()> {
    let path = path.display().to_string();
    output.expect(UNTRUSTED)?.says_all(words)?.says_all(&[&path, "try: ch"]).map(drop)
}

/// `create` makes files for their owner only, whatever the umask allows.
fn create_is_private(context: &Context) -> Result<()> {
    let home = scratch()?;
    let image = home.path().join("new.img");
    let mut shell = program("sh")?;
    shell.envs(context.command_in(home.path()).get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.args(["-c", "umask 0; exec \"$@\"", "sh"]).arg(&context.hikyaku);
    let endpoint = format!("{},create,size=1M", image.display());
    run(shell.args(["copy", "pattern:1M", &endpoint]), LIMIT)?.success()?;
    let mode = fs::metadata(&image)?.mode() & 0o777;
    demand!(mode == 0o600, "the new image has mode {mode:03o}")
}

/// Child processes of the program get no password in their environment, and find none in the program's process.
fn hooks_see_no_password(context: &Context) -> Result<()> {
    let home = scratch()?;
    let seen = home.path().join("seen");
    let image = home.path().join("new.img");
    let mut command = context.command_in(home.path());
    command.env("LIBISCSI_CHAP_PASSWORD", PASSWORD).env("LIBISCSI_CHAP_TARGET_PASSWORD", TARGET_PASSWORD);
    command.env("LIBISCSI_CHAP_USERNAME", "user-of-a-hook");
    let look = format!("env > {0}; cat /proc/[0-9]*/environ >> {0} 2>/dev/null; true", seen.display());
    // Limits the search to the child and its parent: other processes of this machine are not tested.
    let look = look.replace("/proc/[0-9]*/environ", "/proc/$$/environ /proc/$PPID/environ");
    command.args(["copy", "pattern:1M", &format!("{},create,size=1M", image.display()), "--pre", &look]);
    run(&mut command, LIMIT)?.success()?;
    let text = String::from_utf8_lossy(&fs::read(&seen)?).into_owned();
    ensure!(text.contains("user-of-a-hook"), "the hook saw no environment: {text}");
    let shown = [PASSWORD, TARGET_PASSWORD].iter().any(|password| text.contains(password));
    demand!(!shown, "the hook's environment has the password")
}

/// During a login that hangs, neither arguments nor environment show a password.
fn process_shows_no_password(context: &Context) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let portal = listener.local_addr()?;
    let mut command = context.command();
    command.env("LIBISCSI_CHAP_TARGET_PASSWORD", TARGET_PASSWORD);
    let mut running = Running::start(command.args([
        "info",
        &format!("iscsi://user%{PASSWORD}@{portal}/iqn.2026-11.example:x/0?target_user=t,timeout=30s"),
    ]))?;
    let (mut socket, _) = listener.accept()?;
    socket.set_read_timeout(Some(LIMIT))?;
    // The first bytes of a login: from here on the login waits for a response.
    socket.read_exact(&mut [0; 48]).context("the login request")?;
    for file in ["cmdline", "environ"] {
        let bytes = fs::read(format!("/proc/{}/{file}", running.pid()))?;
        let text = String::from_utf8_lossy(&bytes);
        ensure!(text.contains("info") || text.contains("HOME="), "{file} is not that of the process: {text}");
        for password in [PASSWORD, TARGET_PASSWORD] {
            ensure!(!text.contains(password), "/proc/PID/{file} shows the password");
        }
    }
    running.kill();
    Ok(())
}

/// Endpoints with a password in a wrong place, or under a wrong scheme; PW stands for it.
const MISTYPED: &[&str] = &[
    "ISCSI://me%PW@127.0.0.1:1/iqn.2026-11.example:x/0",
    "iscis://me%PW@127.0.0.1:1/iqn.2026-11.example:x/0",
    "iscis://me:PW@127.0.0.1:1/iqn.2026-11.example:x/0",
    "log:iscsi://me%PW@127.0.0.1:1/iqn.2026-11.example:x/0",
    "nbd://me:PW@127.0.0.1:1/x",
    "iscsi://me:PW@127.0.0.1:1/iqn.2026-11.example:x/0",
    "iscsi://me:PW@127.0.0.1:1/not-a-name/0",
    "iscsi://127.0.0.1:1/iqn.2026-11.example:x/0,chap-secret=PW",
    "iscsi://127.0.0.1:1/iqn.2026-11.example:x/0?foo=PW",
];

/// Errors about an endpoint, in messages, reports and hooks, omit the password in it.
fn messages_show_no_password(context: &Context) -> Result<()> {
    let home = scratch()?;
    let (report, seen) = (home.path().join("report.html"), home.path().join("seen"));
    for endpoint in MISTYPED {
        let endpoint = endpoint.replace("PW", PASSWORD);
        let hook = format!("echo \"$HIKYAKU_DESTINATION\" > {}", seen.display());
        let report_name = report.display().to_string();
        let copy = ["copy", "pattern:1M", &endpoint, "--pre", &hook, "--report", &report_name];
        for arguments in [&copy[..], &["info", &endpoint], &["info", &endpoint, "--json"]] {
            let output = run(context.command_in(home.path()).args(arguments), LIMIT)?;
            ensure!(output.code != Some(0), "{endpoint}: {output}");
            ensure!(!output.text().contains(PASSWORD), "{endpoint}: {output}");
        }
        for file in [&report, &seen] {
            let text = fs::read_to_string(file).unwrap_or_default();
            ensure!(!text.contains(PASSWORD), "{endpoint}: {} has\n{text}", file.display());
            ensure!(file == &seen || !text.is_empty(), "{endpoint}: no report");
            let _ = fs::remove_file(file);
        }
    }
    Ok(())
}

/// Control sequences and characters that reorder text are escaped, whatever their source.
fn messages_command_no_terminal(context: &Context, home: &Home) -> Result<()> {
    const HOSTILE: &str = "a\u{1b}[31mb\u{9b}c\u{202e}d\u{7f}";
    let toml = r"a\u001b[31mb\u009bc\u202Ed\u007f";
    let config = home.write("hostile.toml", &format!("\"{toml}\" = 1\n"), 0o600)?;
    let peers = format!("[[peer]]\nname = \"x\"\npublic-key = \"{toml}\"\n");
    let peers = home.write("hostile-peers.toml", &peers, 0o600)?;
    let [config, peers] = [config, peers].map(|path| path.display().to_string());
    let missing = home.path(HOSTILE).display().to_string();
    let option = format!("--{HOSTILE}");
    let commands: [&[&str]; 7] = [
        &["check", &config],
        &["check", &config, "--json"],
        &["serve", "mem:1M", "--listen", "127.0.0.1:0", "--peers", &peers],
        &["info", &missing],
        &["info", &missing, "--json"],
        &["copy", "mem:1M", &option],
        &["copy", "mem:1M", &option, "--json"],
    ];
    for arguments in commands {
        let output = run(context.command_in(home.directory.path()).args(arguments), LIMIT)?;
        ensure!(output.code != Some(0), "{}: {output}", output.line);
        let text = output.text();
        let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        ensure!(!text.contains(acts), "{arguments:?}: {text:?}");
        ensure!(text.contains("9b"), "{arguments:?}: the name is not shown: {text:?}");
    }
    Ok(())
}

fn threads(pid: u32) -> Result<Vec<String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    tasks.map(|task| Ok(fs::read_to_string(task?.path().join("status"))?)).collect()
}

/// A server of a file has no privilege left in any thread when it reports that it is ready; it serves, and ends in
/// order.
fn sandboxed(context: &Context, back_end: &str) -> Result<()> {
    let home = scratch()?;
    let image = random_file(home.path().join("disk.img"), 8 << 20, context.seed_for("attack/host"))?;
    let surroundings = Surroundings::variable("HIKYAKU_IO", back_end);
    let disks = [Disk::file(&image), Disk::file(&home.path().join("other.img")).option("create,size=8M")];
    let target = Target::serve_with(context, &disks, None, &[], &surroundings)?;
    let bound = |when: &str| -> Result<()> {
        let threads = threads(target.pid())?;
        ensure!(threads.len() > 2, "{} threads", threads.len());
        for status in threads {
            let none = |set: &str| format!("{set}:\t0000000000000000");
            let sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"].map(none);
            for line in ["NoNewPrivs:\t1", "Seccomp:\t2"].into_iter().chain(sets.iter().map(String::as_str)) {
                ensure!(status.contains(line), "{when}: no '{line}' in\n{status}");
            }
            ensure!(!is_root() || status.contains(&none("CapBnd")), "{when}: bounding set in\n{status}");
        }
        Ok(())
    };
    bound("ready")?;
    let (one, other) = (target.url(0).to_string(), target.url(1).to_string());
    for offload in [&["--offload", "off", "--verify"][..], &["--offload", "require"]] {
        context.ours(&[&["copy", "--force", &one, &other], offload].concat(), LIMIT)?.success()?;
    }
    bound("after copies")?;
    let log = target.log();
    ensure!(!log.contains("panicked") && !log.contains("not permitted"), "{log}");
    target.terminate(LIMIT)?.expect(0)?;
    demand!(fs::read(&image)? == fs::read(home.path().join("other.img"))?, "the copies differ")
}

fn sandbox_off(context: &Context) -> Result<()> {
    let target = Target::serve(context, &[Disk::endpoint("mem:1M")], None, &["--sandbox", "off"])?;
    for status in threads(target.pid())? {
        for line in ["NoNewPrivs:\t0", "Seccomp:\t0"] {
            ensure!(status.contains(line), "no '{line}' in\n{status}");
        }
    }
    demand!(target.log().contains("not confined"), "{}", target.log())
}
