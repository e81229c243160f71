//! NBD servers as peers: qemu-nbd and nbdkit, on TCP and on Unix sockets.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{Running, free_port, program, wait_until};

const READY_LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub enum At {
    Port(u16),
    Socket(PathBuf),
}

impl At {
    pub fn port() -> Result<Self> {
        Ok(Self::Port(free_port()?))
    }

    pub fn url(&self, export: &str) -> String {
        match self {
            Self::Port(port) => format!("nbd://127.0.0.1:{port}/{export}"),
            Self::Socket(path) => format!("nbd+unix:///{export}?socket={}", path.display()),
        }
    }

    fn answers(&self) -> bool {
        match self {
            Self::Port(port) => TcpStream::connect(("127.0.0.1", *port)).is_ok(),
            Self::Socket(path) => UnixStream::connect(path).is_ok(),
        }
    }
}

#[derive(Debug)]
pub struct Nbd {
    running: Running,
    at: At,
}

impl Nbd {
    /// Starts qemu-nbd with an image; the export is called `disk`.
    pub fn qemu(at: At, image: &Path, format: &str, options: &[&str]) -> Result<Self> {
        let mut command = program("qemu-nbd")?;
        command.args(["--persistent", "--shared=8", "--export-name=disk", "-f", format]).args(options);
        match &at {
            At::Port(port) => command.args(["--bind=127.0.0.1", &format!("--port={port}")]),
            At::Socket(path) => command.arg("--socket").arg(path),
        };
        command.arg(image);
        Self::start(command, at)
    }

    /// Starts nbdkit; `arguments` follow its own options: a plugin, filters, their parameters.
    pub fn kit(at: At, arguments: &[&str]) -> Result<Self> {
        let mut command = program("nbdkit")?;
        command.args(["--foreground", "--threads=16"]);
        match &at {
            At::Port(port) => command.args(["--ipaddr=127.0.0.1", &format!("--port={port}")]),
            At::Socket(path) => command.arg("--unix").arg(path),
        };
        command.args(arguments);
        Self::start(command, at)
    }

    fn start(mut command: Command, at: At) -> Result<Self> {
        let mut running = Running::start(&mut command)?;
        wait_until(READY_LIMIT, || running.alive().map(|()| at.answers()))
            .with_context(|| format!("the server does not start: {}", running.stderr_tail()))?;
        Ok(Self { running, at })
    }

    pub fn url(&self, export: &str) -> String {
        self.at.url(export)
    }

    pub fn kill(&mut self) {
        self.running.kill();
    }
}
