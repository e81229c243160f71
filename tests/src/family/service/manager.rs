//! A service manager for the server: it receives notifications, keeps the listening sockets, and passes them on.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use sendfd::RecvWithFd;

use super::{Home, LIMIT, OPEN, http, prints};
use crate::{Context, Running, Url, free_port, program};

/// Longest pause between two restarts: shorter than the set-up of all sessions takes.
const PAUSE: Duration = Duration::from_millis(150);
/// First descriptor that a service manager passes (sd_listen_fds(3)).
const FIRST: RawFd = 3;

pub(super) struct Manager {
    socket: UnixDatagram,
    /// By FDNAME.
    pub(super) stored: Vec<(String, OwnedFd)>,
    pub(super) states: Vec<String>,
}

impl Manager {
    pub(super) fn new(home: &Home) -> Result<Self> {
        let socket = UnixDatagram::bind(home.path("notify"))?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self { socket, stored: Vec::new(), states: Vec::new() })
    }

    /// The command of a service: `serve` with `arguments`, notifications, and the stored sockets.
    fn command(&mut self, context: &Context, home: &Home, arguments: &[&str]) -> Result<Command> {
        self.command_under(context, home, None, arguments)
    }

    /// [`Self::command`] run by another program, which must keep the process id.
    pub(super) fn command_under(
        &mut self,
        context: &Context,
        home: &Home,
        tracer: Option<&Command>,
        arguments: &[&str],
    ) -> Result<Command> {
        let mut command = context.command_in(home.dir.path());
        let program = command.get_program().to_owned();
        let variables: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        // The PID in LISTEN_PID is that of the program, which replaces the shell.
        command = Command::new("/bin/sh");
        command.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\""]);
        if let Some(tracer) = tracer {
            command.arg(tracer.get_program()).args(tracer.get_args());
        }
        command.arg(program).arg("serve").args(arguments);
        command.envs(variables).current_dir(home.dir.path());
        command.env("NOTIFY_SOCKET", home.path("notify")).env("FDSTORE", "8");
        let passed: Vec<OwnedFd> =
            self.stored.iter().map(|(_, stored)| stored.try_clone()).collect::<Result<_, _>>()?;
        if !passed.is_empty() {
            let names: Vec<&str> = self.stored.iter().map(|(name, _)| name.as_str()).collect();
            command.env("LISTEN_FDS", passed.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        // SAFETY: between fork and exec only `dup2` is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                for (number, socket) in passed.iter().enumerate() {
                    // Not closed on exec, unlike the original. The test's own descriptors are above these few.
                    if libc::dup2(socket.as_raw_fd(), FIRST + number as RawFd) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        Ok(command)
    }

    /// Receives notifications until one has this line.
    pub(super) fn wait(&mut self, line: &str) -> Result<()> {
        let until = Instant::now() + LIMIT;
        while !self.states.iter().any(|state| state == line) {
            ensure!(Instant::now() < until, "no {line} among {:?}", self.states);
            self.receive()?;
        }
        Ok(())
    }

    /// Receives what has been sent until now.
    pub(super) fn drain(&mut self) -> Result<()> {
        while self.receive()? {}
        Ok(())
    }

    /// Receives a notification. False: none came in time.
    fn receive(&mut self) -> Result<bool> {
        let (mut text, mut descriptors) = ([0; 4096], [-1; 8]);
        let received = self.socket.recv_with_fd(&mut text, &mut descriptors);
        let Ok((bytes, count)) = received else { return Ok(false) };
        let text = std::str::from_utf8(&text[..bytes])?;
        self.states.extend(text.lines().map(str::to_owned));
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default();
        if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
            self.stored.retain(|(known, _)| known != name);
        }
        // SAFETY: the kernel has just installed these descriptors for this process.
        let received = descriptors[..count].iter().map(|number| unsafe { OwnedFd::from_raw_fd(*number) });
        for descriptor in received {
            // A manager stores a file once, as systemd does.
            if !self.stored.iter().any(|(_, known)| is_same(known, &descriptor)) {
                self.stored.push((name.to_owned(), descriptor));
            }
        }
        Ok(true)
    }
}

/// Whether two descriptors are of one file.
fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let file = |descriptor: &OwnedFd| {
        let file = std::fs::File::from(descriptor.try_clone().ok()?);
        file.metadata().ok().map(|found| (found.dev(), found.ino()))
    };
    file(one).is_some_and(|file_of_one| file(other) == Some(file_of_one))
}

pub(super) fn serve(command: &mut Command) -> Result<(Running, Url)> {
    let mut running = Running::start(command)?;
    let url = running.wait_stdout("URL", LIMIT, |text| text.lines().next().map(Url::parse))??;
    Ok((running, url))
}

/// Restarts under load: the sockets stay open, and no command of busy sessions, ours and QEMU's, fails. Returns the longest
/// time of a command of ours in microseconds.
pub(super) fn restart(context: &Context, restarts: usize) -> Result<u64> {
    let home = Home::new()?;
    let sessions = context.amount(4, 64);
    // Each restart, and a pause between two.
    let seconds = (4 + 2 * (restarts - 1)).to_string();
    let listen = format!("127.0.0.1:{}", free_port()?);
    let arguments = ["a.img", "--iqn", OPEN, "--listen", &listen, "--allow-user", "any"];
    let mut manager = Manager::new(&home)?;
    let (mut old, url) = serve(manager.command(context, &home, &arguments)?.env("WATCHDOG_USEC", "200000"))?;
    manager.wait("READY=1")?;
    manager.wait("FDNAME=hikyaku-listen")?;
    manager.wait("WATCHDOG=1")?;
    ensure!(manager.stored.len() == 1, "{} sockets are stored", manager.stored.len());
    let load = |number: usize| -> Result<Running> {
        let (url, write) = (url.to_string(), number % 2 == 1);
        let mut command = context.command_in(home.dir.path());
        command.args([
            "bench",
            "path",
            &url,
            "--block-size",
            "4K",
            "--depth",
            "4",
            "--seconds",
            &seconds,
            "--json",
        ]);
        if write {
            command.args(["--write", "--destroy"]);
        }
        Running::start(&mut command)
    };
    let busy: Vec<Running> = (0..sessions).map(load).collect::<Result<_>>()?;
    let mut qemu = program("qemu-img")?;
    qemu.args(["bench", "-t", "none", "-f", "raw", "-c", "60000", "-s", "4096", "-d", "4"])
        .arg(url.to_string());
    let qemu = Running::start(&mut qemu)?;
    let logged_in = || Ok(old.stderr().matches(" logged in ").count() > sessions);
    crate::wait_until(LIMIT, logged_in)?;
    std::thread::sleep(Duration::from_millis(500));
    let limit = LIMIT + Duration::from_secs(4) * u32::try_from(restarts)?;
    for number in 0..restarts {
        if number > 0 {
            std::thread::sleep(PAUSE * (number as u32 % 4) / 3);
        }
        manager.states.clear();
        old.signal(libc::SIGTERM)?;
        manager.wait("STOPPING=1")?;
        // A connection made now waits in the backlog.
        let waiting = std::net::TcpStream::connect(&listen)?;
        old.finish(LIMIT)?.success().context("the old server")?;
        manager.wait("FDNAME=hikyaku-ports")?;
        let (new, again) = serve(&mut manager.command(context, &home, &arguments)?)?;
        ensure!(again.portal == url.portal, "{} and {}", again.portal, url.portal);
        manager.wait("FDSTOREREMOVE=1")?;
        old = new;
        drop(waiting);
    }
    let new = old;
    let qemu = qemu.finish(limit)?;
    ensure!(qemu.code == Some(0), "a command of QEMU failed: {qemu}");
    let mut longest = 0;
    for running in busy {
        let output = running.finish(limit)?;
        let log = || format!("{output}\n--- log\n{}", new.stderr());
        ensure!(output.code == Some(0), "a command failed: {}", log());
        let us = output.json()?["rows"][0]["latency_us"]["max"].as_u64();
        longest = longest.max(us.with_context(log)?);
    }
    prints(&home.run(context, &["status", "--interval", "0s"])?.success()?, &new.pid().to_string())?;
    Ok(longest)
}

/// A socket unit: the server listens where the service manager does, and says which sockets it does not use.
pub(super) fn activated(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let mut manager = Manager::new(&home)?;
    let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?.to_string();
    manager.stored.push(("a.socket".to_owned(), socket.into()));
    let arguments = ["a.img", "--iqn", OPEN, "--metrics", "127.0.0.1:0"];
    let (mut running, url) = serve(&mut manager.command(context, &home, &arguments)?)?;
    ensure!(url.portal == address, "it listens at {}, the socket is {address}", url.portal);
    home.run(context, &["info", &url.to_string()])?.success()?;
    let health = || -> Result<String> {
        let log = running.stderr();
        let at = log.split("http://").nth(1).and_then(|rest| rest.split('/').next()).context("no address")?;
        Ok(http(at, "GET /health HTTP/1.1\r\n\r\n")?.0)
    };
    ensure!(health()?.starts_with("HTTP/1.1 200 "), "{}", health()?);
    running.signal(libc::SIGTERM)?;
    running.finish(LIMIT)?.success()?;
    let elsewhere = ["a.img", "--iqn", OPEN, "--listen", "127.0.0.1:0"];
    let (running, url) = serve(&mut manager.command(context, &home, &elsewhere)?)?;
    ensure!(url.portal != address && running.stderr().contains("is not used"), "{}", running.stderr());
    Ok(())
}

/// A stored socket that the next configuration does not name stops listening: connections to it would wait forever, and
/// it would keep the port.
pub(super) fn moved(context: &Context) -> Result<()> {
    let home = Home::new()?;
    let mut manager = Manager::new(&home)?;
    let port = free_port()?;
    let [before, after] = ["127.0.0.1", "127.0.0.2"].map(|host| format!("{host}:{port}"));
    let arguments = |listen| ["a.img", "--iqn", OPEN, "--listen", listen];
    let (mut old, _) = serve(&mut manager.command(context, &home, &arguments(&before))?)?;
    manager.wait("FDNAME=hikyaku-listen")?;
    old.signal(libc::SIGTERM)?;
    old.finish(LIMIT)?.success()?;
    std::net::TcpStream::connect(&before).context("while no server runs, the backlog takes connections")?;
    let (new, url) = serve(&mut manager.command(context, &home, &arguments(&after))?)?;
    ensure!(url.portal == after && new.stderr().contains("no longer listening"), "{}", new.stderr());
    ensure!(std::net::TcpStream::connect(&before).is_err(), "the former address takes connections");
    home.run(context, &["info", &url.to_string()])?.success().map(drop)
}
