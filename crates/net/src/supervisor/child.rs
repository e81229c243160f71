//! One server: its process, the socket to it, and what is seen of it from outside.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;

use area::{Region, memfd};
use inet::Time;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::journal::plain;
use super::memory::Bell;
use super::watch::{Seen, Watch};
use crate::control_socket;
use crate::process::{News, Pulse};

/// Lines of a server's standard error that are logged; it is not trusted with more of the log.
const LINES_MAX: u32 = 64;
/// Bytes of such a line.
const LINE_BYTES_MAX: usize = 400;
/// Bytes of messages that wait in the socket: more than a driver with the most applications and memory is started with.
const SOCKET_BYTES: usize = 208 << 10;

#[derive(Debug)]
pub(super) struct Child {
    name: &'static str,
    process: std::process::Child,
    end: OwnedFd,
    control: OwnedFd,
    news: News,
    news_memory: OwnedFd,
    /// Counters and pulse, which the server writes.
    counters: Arc<Region>,
    counters_memory: OwnedFd,
    pulse: Pulse,
    watch: Watch,
    /// Wakes the server for a message; a spare waits for the socket itself.
    bell: Option<Arc<Bell>>,
    stderr: Option<ChildStderr>,
    line: Vec<u8>,
    lines: u32,
    pub(super) started_at: Time,
    pub(super) is_ready: bool,
}

impl Child {
    /// Starts `net NAME` with a socket as its standard input, and nothing else of this process. `counters_bytes` is the
    /// length of its counters, of which the pulse is the last part.
    pub(super) fn start(name: &'static str, counters_bytes: usize, now: Time) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        sockopt::set_socket_send_buffer_size(&control, SOCKET_BYTES)?;
        let news_memory = memfd::create("net-news", News::BYTES)?;
        let counters_memory = memfd::create("net-counters", counters_bytes)?;
        let counters = Arc::new(Region::shared(counters_memory.as_fd(), counters_bytes, false)?);
        let mut process = Command::new("/proc/self/exe")
            .args(["net", name])
            .env_clear()
            // Ctrl-C ends the supervisor, which then ends its servers.
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = process.stderr.take();
        if let Some(stderr) = &stderr {
            rustix::io::ioctl_fionbio(stderr, true)?;
        }
        let pid = Pid::from_child(&process);
        Ok(Self {
            name,
            // Until it is waited for, the number is that of this process.
            end: pidfd_open(pid, PidfdFlags::empty())?,
            process,
            control,
            news: News::map(news_memory.as_fd(), true)?,
            news_memory,
            pulse: Pulse::new(Arc::clone(&counters), counters_bytes - Pulse::BYTES),
            counters,
            counters_memory,
            watch: Watch::default(),
            bell: None,
            stderr,
            line: Vec::new(),
            lines: 0,
            started_at: now,
            is_ready: false,
        })
    }

    /// The page of news for reading, and the memory of the counters, for the first message.
    pub(super) fn pages(&self) -> io::Result<(OwnedFd, BorrowedFd<'_>)> {
        Ok((memfd::read_only(self.news_memory.as_fd())?, self.counters_memory.as_fd()))
    }

    /// Of `inet`, and of a driver that serves.
    pub(super) fn wake_by(&mut self, bell: Arc<Bell>) {
        self.bell = Some(bell);
    }

    /// Sends a message. A server that has no room for it, or is gone, is killed: it does not take its messages any more,
    /// and its end is noticed as every other.
    pub(super) fn send(&mut self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) {
        match control_socket::send(&self.control, message, descriptors) {
            Ok(()) => {
                self.news.add();
                if let Some(bell) = &self.bell {
                    bell.ringer.ring();
                }
            }
            Err(error) => {
                tracing::warn!("{} {} takes no messages ({error}): it is killed", self.name, self.pid());
                self.kill();
            }
        }
    }

    /// The next message; `None` if there is none. A server that writes none of ours is killed.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Option<T> {
        match control_socket::receive(&self.control) {
            Ok(message) => message.map(|(message, _)| message),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => {
                tracing::warn!(
                    "{} {} sent no message of ours ({error}): it is killed",
                    self.name,
                    self.pid()
                );
                self.kill();
                None
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Whether it hangs. `frame_waits`: the device has a frame.
    pub(super) fn hangs(&mut self, frame_waits: bool, now: Time) -> bool {
        let bell_rings = self.bell.as_ref().is_some_and(|bell| is_readable(bell.owners.as_fd()));
        let (turns, doing) = (self.pulse.turns(), self.pulse.doing());
        self.watch.look(Seen { turns, doing, bell_rings, frame_waits }, now)
    }

    pub(super) fn counters(&self) -> &Arc<Region> {
        &self.counters
    }

    pub(super) fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    pub(super) fn stderr(&self) -> Option<BorrowedFd<'_>> {
        self.stderr.as_ref().map(AsFd::as_fd)
    }

    /// Logs what it has written to standard error, up to the bounds.
    pub(super) fn log(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        let mut bytes = [0; 4096];
        match stderr.read(&mut bytes) {
            Ok(0) => self.stderr = None,
            Ok(count) => {
                for &byte in &bytes[..count] {
                    if byte == b'\n' {
                        self.log_line();
                    } else if self.line.len() < LINE_BYTES_MAX {
                        self.line.push(byte);
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.stderr = None,
        }
        if self.lines >= LINES_MAX {
            self.stderr = None;
        }
    }

    /// Logs no more of what it writes.
    pub(super) fn silence(&mut self) {
        self.stderr = None;
    }

    fn log_line(&mut self) {
        if self.lines < LINES_MAX {
            let (name, pid) = (self.name, self.process.id());
            tracing::warn!("{name} {pid}: {}", plain(&String::from_utf8_lossy(&self.line)));
        }
        self.lines += 1;
        self.line.clear();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
        self.log();
    }
}

pub(super) fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// "signal 9", "exit code 1".
pub(super) fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no status".to_owned(),
    }
}
