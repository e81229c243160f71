//! Finds the control sockets of running processes, and asks them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::{Request, directories, parse_name};
use crate::error::{Exit, Failure};

/// Time for a process to answer: a reload may wait for storage that it opens.
const ANSWER_MAX: Duration = Duration::from_secs(150);
/// Bound of a response in bytes: 4096 sessions have 12 MB.
const RESPONSE_BYTES_MAX: u64 = 256 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// `serve` or `copy`.
    pub(crate) command: String,
    path: PathBuf,
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    /// By PID.
    pub(crate) processes: Vec<Process>,
    /// Sockets of other users.
    pub(crate) denied: usize,
}

/// The processes whose sockets accept a connection. Sockets of dead processes are removed if permissions allow it.
pub(crate) fn find() -> Found {
    let mut found = Found::default();
    for directory in directories() {
        look(&directory, &mut found);
    }
    found.processes.sort_by_key(|process| process.pid);
    found
}

fn look(directory: &Path, found: &mut Found) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Some((command, pid)) = parse_name(&path) else { continue };
        let command = command.to_owned();
        match UnixStream::connect(&path) {
            Ok(_) => found.processes.push(Process { pid, command, path }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.denied += 1,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(&path);
            }
            // It ended between the listing and the connection.
            Err(_) => {}
        }
    }
}

impl Process {
    /// Sends a request. `Err` is the process's own error, or that it did not answer.
    pub(crate) fn ask(&self, request: &Request) -> Result<Value, Failure> {
        let object = format!("process {}", self.pid);
        let response = self.exchange(request).map_err(|error| {
            Failure::new(Exit::Unreachable, "ask", object, error).hint("hikyaku status lists what is running")
        })?;
        match response.get("error") {
            Some(error) => Err(failure_of(error)),
            None => Ok(response),
        }
    }

    fn exchange(&self, request: &Request) -> io::Result<Value> {
        let mut stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        stream.write_all(line.as_bytes())?;
        let mut response = Vec::new();
        BufReader::new(stream.take(RESPONSE_BYTES_MAX)).read_until(b'\n', &mut response)?;
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
    use super::*;

    #[test]
    fn a_failure_survives_the_socket() {
        for ending in [Exit::Usage, Exit::Refused, Exit::Failed, Exit::Unreachable] {
            let failure = Failure::new(ending, "open", "b.img", "no such file").hint("check the name");
            assert_eq!(failure_of(&failure.to_json()["error"]), failure);
        }
        assert_eq!(failure_of(&Value::Null).ending, Exit::Failed);
    }
}
