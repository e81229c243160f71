//! Finds the control sockets of running processes, and asks them.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;

use super::{Request, SYSTEM_DIRECTORY, Timed, directories, parse_name};
use crate::error::{Exit, Failure};
use crate::sys;

/// Time for a process to answer: a reload may wait for storage that it opens.
const ANSWER_MAX: Duration = Duration::from_secs(150);
/// Time for a process to answer with its status, for which it waits for nothing.
const STATUS_MAX: Duration = Duration::from_secs(2);
/// Bound of a response in bytes: 4096 sessions have 12 MB.
const RESPONSE_BYTES_MAX: u64 = 32 << 20;
/// Bound of the sockets that are looked at in one directory.
const PROCESSES_MAX: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// `serve` or `copy`.
    pub(crate) command: String,
    /// Its directory belongs to this user or to the system.
    pub(crate) is_own: bool,
    directory: Arc<Directory>,
    name: PathBuf,
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Those of this user first, then by PID.
    pub(crate) processes: Vec<Process>,
    /// Sockets of other users.
    pub(crate) denied: usize,
}

/// An open directory: its owner may exchange the name for a link, and then neither a connection nor a removal goes there.
#[derive(Debug)]
struct Directory {
    file: File,
    owner: u32,
}

impl Directory {
    fn open(path: &Path) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)?;
        let owner = file.metadata()?.uid();
        Ok(Self { file, owner })
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// A connection to the socket `name` of process `pid`. The kernel tells who listens: another process under this name,
    /// or one of a user to whom the directory does not belong, is refused. A full backlog is an error, not a wait.
    fn connect(&self, name: &Path, pid: u32) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(self.path().join(name))?)?;
        let peer = socket_peercred(&socket)?;
        let (user, listening) = (peer.uid.as_raw(), peer.pid.as_raw_nonzero().get().unsigned_abs());
        if listening != pid || (user != self.owner && user != 0) {
            let cause = format!("process {listening} of user {user} listens on {}", name.display());
            tracing::warn!("a control socket is ignored: {cause}");
            return Err(io::Error::other(cause));
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

/// The processes whose sockets accept a connection. Sockets of dead processes are removed if permissions allow it.
pub(crate) fn find() -> Found {
    let mut found = Found::default();
    for directory in directories() {
        look(&directory, &mut found);
    }
    found.processes.sort_by_key(|process| (!process.is_own, process.pid));
    found
}

fn look(path: &Path, found: &mut Found) {
    let Ok(directory) = Directory::open(path).map(Arc::new) else { return };
    let is_own = directory.owner == sys::user() || path == Path::new(SYSTEM_DIRECTORY);
    let entries = std::fs::read_dir(directory.path()).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    for entry in sockets.take(PROCESSES_MAX) {
        let name = PathBuf::from(entry.file_name());
        let Some((command, pid)) = parse_name(&name) else { continue };
        let command = command.to_owned();
        match directory.connect(&name, pid) {
            Ok(_) => {
                let directory = Arc::clone(&directory);
                found.processes.push(Process { pid, command, is_own, directory, name });
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.denied += 1,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(entry.path());
            }
            // It ended between the listing and the connection, or it is not what its name says.
            Err(_) => {}
        }
    }
}

impl Process {
    /// Sends a request. `Err` is the process's own error, or that it did not answer.
    pub(crate) fn ask(&self, request: &Request) -> Result<Value, Failure> {
        let object = format!("process {}", self.pid);
        let limit = if matches!(request, Request::Status {}) { STATUS_MAX } else { ANSWER_MAX };
        let response = self.exchange(request, limit).map_err(|error| {
            Failure::new(Exit::Unreachable, "ask", object, error).hint("hikyaku status lists what is running")
        })?;
        match response.get("error") {
            Some(error) => Err(failure_of(error)),
            None => Ok(response),
        }
    }

    /// `limit` is that of the whole exchange, however slowly the answer arrives.
    fn exchange(&self, request: &Request, limit: Duration) -> io::Result<Value> {
        let until = Instant::now() + limit;
        let mut stream = self.directory.connect(&self.name, self.pid)?;
        stream.set_write_timeout(Some(limit))?;
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        stream.write_all(line.as_bytes())?;
        let mut response = Vec::new();
        let bytes = io::Read::take(Timed { stream: &stream, until }, RESPONSE_BYTES_MAX);
        BufReader::new(bytes).read_until(b'\n', &mut response)?;
        if response.is_empty() {
            return Err(io::Error::other("it closed the connection without an answer"));
        }
        Ok(serde_json::from_slice(&response)?)
    }
}

/// The failure that a process reports in `error`.
fn failure_of(error: &Value) -> Failure {
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    let all = [Exit::Usage, Exit::Mismatch, Exit::Authentication, Exit::Unreachable, Exit::Refused];
    let ending = all.into_iter().find(|ending| error["code"] == ending.code()).unwrap_or(Exit::Failed);
    Failure::new(ending, text("attempted"), text("object"), text("cause")).hint(text("hint"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn found_in(path: &Path) -> Vec<Process> {
        let mut found = Found::default();
        look(path, &mut found);
        found.processes
    }

    #[test]
    fn only_the_process_of_the_name_is_believed() {
        let home = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let _of_another = UnixListener::bind(home.path().join("serve-1.sock")).unwrap();
        let _own = UnixListener::bind(home.path().join(format!("serve-{own}.sock"))).unwrap();
        let pids: Vec<_> = found_in(home.path()).iter().map(|process| process.pid).collect();
        assert_eq!(pids, [own]);
    }

    #[test]
    fn links_are_not_followed_and_only_sockets_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let (real, link) = (home.path().join("real"), home.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        drop(UnixListener::bind(real.join("serve-4194301.sock")).unwrap());
        std::fs::write(real.join("serve-4194302.sock"), "").unwrap();
        let left = || std::fs::read_dir(&real).unwrap().count();
        found_in(&link);
        assert_eq!(left(), 2);
        found_in(&real);
        assert_eq!(left(), 1, "the dead socket is removed, the file stays");
    }

    #[test]
    fn a_process_that_answers_slowly_is_left_in_time() {
        let home = tempfile::tempdir().unwrap();
        let listener =
            UnixListener::bind(home.path().join(format!("serve-{}.sock", std::process::id()))).unwrap();
        let process = found_in(home.path()).remove(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The first connection is that of `look`.
                let mut stream = listener.incoming().nth(1).unwrap().unwrap();
                while stream.write_all(b" ").is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let started = Instant::now();
            process.exchange(&Request::Status {}, Duration::from_millis(200)).unwrap_err();
            assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        });
    }

    #[test]
    fn a_failure_survives_the_socket() {
        for ending in [Exit::Usage, Exit::Refused, Exit::Failed, Exit::Unreachable] {
            let failure = Failure::new(ending, "open", "b.img", "no such file").hint("check the name");
            assert_eq!(failure_of(&failure.to_json()["error"]), failure);
        }
        assert_eq!(failure_of(&Value::Null).ending, Exit::Failed);
    }
}
