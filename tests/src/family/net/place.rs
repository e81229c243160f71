//! A network namespace with servers in it, and both ends of transfers.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::wan::Namespace;
use net::socket::Stack;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Surroundings;
use crate::{Context, Output, Running, random, run, scratch};

pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// The kernel's address on the TAP interface, and that of the stack.
pub(super) const KERNEL: &str = "10.78.0.1";
pub(super) const STACK: &str = "10.78.0.2";
/// Length of the pattern that transfers repeat: no power of two, so that bytes in another place are noticed.
const PATTERN_BYTES: usize = 1_000_003;
const CHUNK_BYTES: usize = 64 << 10;

/// The command's process will be in the namespace.
pub(super) fn enter<'c>(
    namespace: &Namespace,
    command: &'c mut std::process::Command,
) -> &'c mut std::process::Command {
    Surroundings::network(namespace.name()).apply(command);
    command
}

/// The servers, and the kernel at the other end of their interface.
pub(super) struct Net {
    dir: TempDir,
    // Before the namespace: it goes first.
    pub(super) supervisor: Running,
    namespace: Namespace,
}

impl Net {
    pub(super) fn up(context: &Context, of: &str, more: &[&str]) -> Result<Self> {
        let dir = scratch()?;
        let namespace = Namespace::new(of)?;
        let mut command = context.command();
        command.args(["net", "up", "--nic", "tap:tap0", "--address", &format!("{STACK}/24"), "--socket"]);
        command.arg(dir.path().join("socket")).args(more);
        let supervisor = Running::start(enter(&namespace, &mut command))?;
        let mut net = Self { dir, supervisor, namespace };
        net.supervisor.wait_stdout("line of an address", LIMIT, |text| {
            let is_there = text.lines().any(|line| line.starts_with(&format!("{STACK}/24 on tap0, mac ")));
            is_there.then_some(())
        })?;
        net.ip(&["address", "add", &format!("{KERNEL}/24"), "dev", "tap0"])?;
        // With BBR, some machines' default, a kernel has one frame of 64 KiB in flight at times: a lost one waits for the
        // least RTO of 200 ms, whatever we do.
        net.namespace.sysctl("net/ipv4/tcp_congestion_control", "cubic")?;
        Ok(net)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Memory that the supervisor shares, by its name, open for reading and writing.
    pub(super) fn memory(&self, name: &str) -> Result<File> {
        let descriptors = format!("/proc/{}/fd", self.supervisor.pid());
        for entry in std::fs::read_dir(descriptors)? {
            let path = entry?.path();
            if std::fs::read_link(&path)?.starts_with(format!("/memfd:{name} (deleted)")) {
                return File::options().read(true).write(true).open(path).context("open it");
            }
        }
        anyhow::bail!("no memory {name}")
    }

    pub(super) fn ip(&self, arguments: &[&str]) -> Result<()> {
        Ok(self.namespace.ip(&arguments.join(" "))?)
    }

    /// Runs a command beside the kernel's end.
    pub(super) fn run(&self, command: &mut std::process::Command) -> Result<Output> {
        run(enter(&self.namespace, command), LIMIT)
    }

    /// Runs `work` on a thread beside the kernel's end: its sockets are those of the kernel there.
    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.namespace.within(work)?
    }

    pub(super) fn join(&self) -> Result<Stack> {
        Stack::connect(self.socket()).context("join the servers")
    }

    pub(super) fn status(&self, context: &Context) -> Result<Value> {
        let socket = self.socket().display().to_string();
        context.ours(&["net", "status", "--socket", &socket, "--json"], LIMIT)?.success()?.json()
    }

    /// Process of a server; `None` while there is none.
    pub(super) fn pid(&self, context: &Context, server: &str) -> Result<Option<u32>> {
        Ok(of(&self.status(context)?, server)["pid"].as_u64().map(|pid| pid as u32))
    }

    pub(super) fn pid_of(&self, context: &Context, server: &str) -> Result<u32> {
        self.pid(context, server)?.with_context(|| format!("no {server}"))
    }

    /// Connects from the kernel to an application, and from an application to the kernel. The kernel's socket comes first.
    pub(super) fn connection(&self, stack: &Stack, port: u16, is_from_kernel: bool) -> Result<Pair> {
        if is_from_kernel {
            let listener =
                net::socket::TcpListener::bind(stack, (STACK, port)).context("the stack's listen")?;
            let kernel = self.within(|| TcpStream::connect((STACK, port)).context("the kernel's connect"))?;
            return Ok((kernel, listener.accept().context("the stack's accept")?.0));
        }
        let address: SocketAddr = format!("{KERNEL}:{port}").parse()?;
        let listener = self.within(|| TcpListener::bind(address).context("the kernel's listen"))?;
        let ours = net::socket::TcpStream::connect(stack, address).context("the stack's connect")?;
        Ok((listener.accept().context("the kernel's accept")?.0, ours))
    }
}

/// Both ends of a connection: the kernel's and the application's.
pub(super) type Pair = (TcpStream, net::socket::TcpStream);

/// A server in the status.
pub(super) fn of<'a>(status: &'a Value, server: &str) -> &'a Value {
    let servers = status["servers"].as_array().into_iter().flatten();
    servers.into_iter().find(|one| one["server"] == server).unwrap_or(&Value::Null)
}

pub(super) fn signal(pid: u32, signal: i32) -> Result<()> {
    // SAFETY: a plain system call on the number of a server that its supervisor has just named.
    let result = unsafe { libc::kill(pid.cast_signed(), signal) };
    demand!(result == 0, "signal {signal} to {pid}: {}", std::io::Error::last_os_error())
}

pub(super) fn pattern(context: &Context, of: &str) -> Vec<u8> {
    random::bytes(&mut context.rng(of), PATTERN_BYTES)
}

/// Progress of a transfer, which another thread reads to time kills and closes.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    /// The sender closes after its next bytes.
    pub(super) stop: AtomicBool,
    /// Bytes received and compared.
    pub(super) received: AtomicU64,
    /// Longest time between two reads since this was last set to 0.
    pub(super) pause_us: AtomicU64,
}

impl Transfer {
    /// Sends the pattern again and again. Returns the number of bytes.
    pub(super) fn send(&self, stream: &mut impl Write, pattern: &[u8]) -> Result<u64> {
        let mut sent = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let start = (sent % pattern.len() as u64) as usize;
            let chunk = &pattern[start..pattern.len().min(start + CHUNK_BYTES)];
            stream.write_all(chunk).with_context(|| format!("send after {sent} bytes"))?;
            sent += chunk.len() as u64;
        }
        Ok(sent)
    }

    /// Receives and compares until the peer closes. Returns the number of bytes.
    pub(super) fn receive(&self, stream: &mut impl Read, pattern: &[u8]) -> Result<u64> {
        let (mut received, mut buffer, mut last) = (0, vec![0; CHUNK_BYTES], Instant::now());
        loop {
            let start = (received % pattern.len() as u64) as usize;
            let most = (pattern.len() - start).min(buffer.len());
            let count = match stream.read(&mut buffer[..most]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result.with_context(|| format!("receive after {received} bytes"))?,
            };
            if count == 0 {
                return Ok(received);
            }
            let now = Instant::now();
            self.pause_us.fetch_max((now - last).as_micros() as u64, Ordering::Relaxed);
            last = now;
            ensure!(
                buffer[..count] == pattern[start..start + count],
                "wrong bytes in {count} from {received} on"
            );
            received += count as u64;
            self.received.store(received, Ordering::Relaxed);
        }
    }

    /// A transfer over a connection from the application to the kernel, or to the application, while `disturb` runs.
    pub(super) fn run(
        &self,
        (kernel, ours): Pair,
        pattern: &[u8],
        to_kernel: bool,
        disturb: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (mut kernel, mut ours) = (kernel, ours);
        kernel.set_read_timeout(Some(LIMIT))?;
        kernel.set_write_timeout(Some(LIMIT))?;
        ours.set_read_timeout(Some(LIMIT))?;
        ours.set_write_timeout(Some(LIMIT))?;
        let (sent, received) = std::thread::scope(|scope| {
            let (sender, receiver) = if to_kernel {
                (
                    scope.spawn(|| {
                        let sent = self.send(&mut ours, pattern);
                        let _ = ours.shutdown(std::net::Shutdown::Write);
                        sent
                    }),
                    scope.spawn(|| self.receive(&mut kernel, pattern)),
                )
            } else {
                (
                    scope.spawn(|| {
                        let sent = self.send(&mut kernel, pattern);
                        let _ = kernel.shutdown(std::net::Shutdown::Write);
                        sent
                    }),
                    scope.spawn(|| self.receive(&mut ours, pattern)),
                )
            };
            let disturbed = disturb();
            self.stop.store(true, Ordering::Relaxed);
            let panicked = |_| anyhow::anyhow!("a thread panicked");
            let sent = sender.join().map_err(panicked)?;
            let received = receiver.join().map_err(panicked)?;
            disturbed.and(Ok((sent?, received?)))
        })?;
        demand!(sent == received, "{sent} bytes were sent, {received} received")
    }
}

/// A few megabytes each way, compared, over a new connection each way.
pub(super) fn transfers_work(context: &Context, net: &Net, stack: &Stack) -> Result<()> {
    let pattern = pattern(context, "net");
    for (port, is_from_kernel) in [(4000, true), (4001, false)] {
        for to_kernel in [true, false] {
            let transfer = Transfer::default();
            let port = port + 2 * u16::from(to_kernel);
            transfer.run(net.connection(stack, port, is_from_kernel)?, &pattern, to_kernel, || {
                crate::wait_until(LIMIT, || Ok(transfer.received.load(Ordering::Relaxed) > 4 << 20))
            })?;
        }
    }
    Ok(())
}

/// Without root, the error of `net up` names the missing right and the command that makes the interface.
pub(super) fn explains_what_is_missing(context: &Context) -> Result<()> {
    let dir = scratch()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777))?;
    let mut command = context.command();
    command.args(["net", "up", "--nic", "tap:nosuch0", "--address", "10.0.0.2/24", "--socket"]);
    command.arg(dir.path().join("socket"));
    if steps::is_root() {
        command.uid(65_534).gid(65_534);
    }
    run(&mut command, LIMIT)?.expect(1)?.says_all(&["interface nosuch0", "CAP_NET_ADMIN", "sudo"]).map(drop)
}
