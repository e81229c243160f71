//! Other users of this machine at a server on loopback without authentication.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::claims::{IQN, LIMIT, SECRET, as_user as url_of, isid, refused};
use super::names::{BEYOND, Namespace};
use crate::cases::Rows;
use crate::files::empty_file;
use crate::pdu::{Pdu, SCSI_COMMAND, Session, cdb10, connect, login_request};
use crate::process::Surroundings;
use crate::target::private_file;
use crate::{Cases, Context, Output, Server, Url, find_program, run, scratch, wait_until};
use steps::is_root;

const NOBODY: u32 = 65534;
const NAME: &str = "iqn.2026-11.org.example:nobody";

struct Scene {
    dir: tempfile::TempDir,
    image: PathBuf,
    server: Server,
}

impl Scene {
    fn new(context: &Context, listen: &str, more: &[&str]) -> Result<Self> {
        Self::new_in(context, listen, more, &Surroundings::default())
    }

    fn new_in(context: &Context, listen: &str, more: &[&str], surroundings: &Surroundings) -> Result<Self> {
        let dir = scratch()?;
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
        let image = empty_file(dir.path().join("root.img"), 1 << 20)?;
        std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o600))?;
        let mut command = context.command_in(dir.path());
        command.arg("serve").arg(&image).args(["--iqn", IQN, "--listen", listen]).args(more);
        surroundings.apply(&mut command);
        Ok(Self { dir, image, server: Server::start(&mut command, 1)? })
    }

    fn url(&self) -> &Url {
        &self.server.url
    }

    /// The program with a home of the other user, not yet as that user.
    fn home_of_nobody(&self, context: &Context, arguments: &[&str]) -> Result<Command> {
        let home = self.dir.path().join("nobody");
        std::fs::create_dir_all(&home)?;
        std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY))?;
        let mut command = context.command_in(&home);
        command.args(arguments).current_dir("/");
        Ok(command)
    }

    fn as_nobody(&self, context: &Context, arguments: &[&str]) -> Result<Output> {
        run(self.home_of_nobody(context, arguments)?.uid(NOBODY).gid(NOBODY), LIMIT)
    }

    fn untouched(&self) -> Result<()> {
        demand!(std::fs::read(&self.image)?.iter().all(|byte| *byte == 0), "the image was written")
    }

    /// Demands that the log names the refused user, and the option that admits it.
    fn logged(&self, who: &str) -> Result<()> {
        let is_said = |log: &str| log.lines().any(|line| line.contains(who) && line.contains("--allow-user"));
        wait_until(Duration::from_secs(5), || Ok(is_said(&self.server.running.stderr()))).with_context(|| {
            format!("no line about {who} and --allow-user in its log:\n{}", self.server.running.stderr())
        })
    }
}

/// Runs `act` on a thread with this file system user id; the sockets that it creates belong to that user.
fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: a system call on plain values that affects only the calling thread, which ends after `act`.
            unsafe { libc::setfsuid(uid) };
            act()
        });
        thread.join().expect("no panic in it")
    })
}

fn raw(scene: &Scene) -> Result<Session> {
    as_user(NOBODY, || Session::login(scene.url(), NAME, isid(1)))
}

/// The refusal at a server of one address family, by a socket of the same or another one; `through` is the address that
/// the initiator connects to.
fn refused_at(context: &Context, listen: &str, through: &str) -> Result<()> {
    let mut scene = Scene::new(context, listen, &[])?;
    scene.server.url.portal = format!("{through}:{}", scene.url().port()?);
    refused(raw(&scene), "0201")?;
    scene.logged("65534")?;
    let url = scene.url().to_string();
    scene.as_nobody(context, &["copy", "pattern:64K", &url, "--force"])?.expect(4)?.says("--allow-user")?;
    scene.as_nobody(context, &["info", &url])?.expect(4)?;
    scene.as_nobody(context, &["ls", &format!("iscsi://{}", scene.url().portal)])?.expect(4)?;
    scene.untouched()?;
    // The server's own user can still log in.
    let mut own = Session::login(scene.url(), NAME, isid(2))?;
    own.write(0, 0, &[0xaa; 512])?;
    own.logout()
}

fn allowed(context: &Context, who: &str) -> Result<()> {
    let scene = Scene::new(context, "127.0.0.1:0", &["--allow-user", who])?;
    let mut session = raw(&scene)?;
    session.write(0, 0, &[0xaa; 512])?;
    ensure!(session.read(0, 0, 1)? == [0xaa; 512]);
    Ok(())
}

/// The option names another user: this one is refused.
fn another_allowed(context: &Context) -> Result<()> {
    let scene = Scene::new(context, "127.0.0.1:0", &["--allow-user", "daemon"])?;
    refused(raw(&scene), "0201")?;
    as_user(1, || Session::login(scene.url(), NAME, isid(3))).context("daemon")?.logout()
}

fn unknown_user(context: &Context) -> Result<()> {
    let arguments = ["serve", "mem:1M", "--listen", "127.0.0.1:0", "--allow-user", "no-such-user"];
    context.ours(&arguments, LIMIT)?.expect(2)?.says("no-such-user").map(drop)
}

/// The initiator chooses its source address. An address of the host outside the loopback network does not bypass the
/// check.
fn another_source(context: &Context) -> Result<()> {
    let namespace = Namespace::new("uid")?;
    let (name, surroundings) = (namespace.name.as_str(), namespace.surroundings());
    let to_loopback = ["local", "127.0.0.1", "dev", "lo", "table", "local", "scope", "host", "src", BEYOND];
    namespace.ip(&[&["-n", name, "route", "change"], &to_loopback[..]].concat())?;
    let scene = Scene::new_in(context, "127.0.0.1:0", &[], &surroundings)?;
    let url = scene.url().to_string();
    for arguments in [&["copy", "pattern:64K", &url, "--force"][..], &["info", &url]] {
        let mut command = scene.home_of_nobody(context, arguments)?;
        surroundings.apply(&mut command);
        // SAFETY: system calls on plain values between fork and exec, after the network namespace was entered.
        unsafe {
            command.pre_exec(|| {
                let ids = [libc::setresgid(NOBODY, NOBODY, NOBODY), libc::setresuid(NOBODY, NOBODY, NOBODY)];
                if ids == [0, 0] { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        run(&mut command, LIMIT)?.expect(4)?;
    }
    scene.logged("65534")?;
    let log = scene.server.running.stderr();
    ensure!(log.contains(BEYOND), "it came from another address:\n{log}");
    scene.untouched()
}

/// The whole session is sent at once, and the socket closed before the target looks up its owner: a closed socket has
/// none.
fn closed_early(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, "127.0.0.1:0", &[])?;
    scene.server.running.signal(libc::SIGSTOP)?;
    let sent = as_user(NOBODY, || -> Result<()> {
        use std::io::Write;
        let mut stream = connect(scene.url(), LIMIT)?;
        let mut bytes = login_request(scene.url(), NAME, isid(1), false).encode();
        bytes.extend(login_request(scene.url(), NAME, isid(1), true).encode());
        let mut write = Pdu::new(SCSI_COMMAND, 0x80 | 0x20 | 1).with_data(vec![0xee; 512]);
        write.bhs[32..42].copy_from_slice(&cdb10(0x2a, 0, 1));
        write.set(16, 9).set(20, 512).set(24, 1).set(28, 0);
        bytes.extend(write.encode());
        Ok(stream.write_all(&bytes)?)
    });
    scene.server.running.signal(libc::SIGCONT)?;
    sent?;
    scene.logged("--allow-user")?;
    scene.untouched()
}

/// CHAP is a proof: the user is not checked.
fn chap(context: &Context) -> Result<()> {
    let secret = scratch()?;
    let file = private_file(secret.path().join("u.secret"), &format!("{SECRET}\n"))?;
    let file = file.display().to_string();
    let scene = Scene::new(context, "127.0.0.1:0", &["--chap-user", "u", "--chap-secret-file", &file])?;
    scene.as_nobody(context, &["info", &url_of(&scene.server, "u", SECRET, 0)])?.success().map(drop)
}

/// A server of another user admits root and its own user.
fn server_of_another(context: &Context) -> Result<()> {
    let dir = scratch()?;
    std::os::unix::fs::chown(dir.path(), Some(1), Some(1))?;
    let mut command = context.command_in(dir.path());
    command.args(["serve", "mem:1M", "--iqn", IQN, "--listen", "127.0.0.1:0"]).uid(1).gid(1).current_dir("/");
    let Server { running: _running, url } = Server::start(&mut command, 1)?;
    Session::login(&url, NAME, isid(1)).context("root")?.logout()?;
    as_user(1, || Session::login(&url, NAME, isid(2))).context("the server's own user")?.logout()?;
    refused(as_user(NOBODY, || Session::login(&url, NAME, isid(3))), "0201")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    if !is_root() {
        cases.note("attack uid: not run, other users are played by root only");
        return;
    }
    for (case, listen, through) in [
        ("uid-other-user-ipv4", "127.0.0.1:0", "127.0.0.1"),
        ("uid-other-user-ipv6", "[::1]:0", "[::1]"),
        ("uid-other-user-mapped", "127.0.0.1:0", "[::ffff:127.0.0.1]"),
    ] {
        cases.check(case, || refused_at(context, listen, through));
    }
    if find_program("ip").is_some() {
        cases.check("uid-another-source-address", || another_source(context));
    }
    let rows: Rows<'_> = &[
        ("uid-allowed-by-name", |context| allowed(context, "nobody")),
        ("uid-allowed-by-any", |context| allowed(context, "any")),
        ("uid-another-is-allowed", another_allowed),
        ("uid-unknown-user", unknown_user),
        ("uid-closed-early", closed_early),
        ("uid-chap-counts-instead", chap),
        ("uid-server-of-another-user", server_of_another),
    ];
    cases.check_each(context, rows);
}
