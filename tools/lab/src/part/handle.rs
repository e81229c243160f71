//! The starting process's handle of a part.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Role;
use crate::{Attempted, LabError};

/// Timeout of an answer, above any answer's duration on a busy machine; the part is then ended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Environment variable with the role of a part that takes no orders.
pub(super) const ALONE: &str = "HIKYAKU_LAB_PART";

/// A running part. A drop ends it.
pub(crate) struct Part {
    what: String,
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Part {
    /// Starts a part and waits for its first answer; `what` is its name in errors. Its stderr is inherited.
    pub(crate) fn start<T: for<'a> Deserialize<'a>>(what: &str, role: &Role) -> Result<(Self, T), LabError> {
        let starting = format!("start {what}");
        // Not by path: the file may have been replaced.
        let mut child = Command::new("/proc/self/exe")
            .args(["--quiet", "part"])
            .envs(role.environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .attempted(&starting)?;
        let stdout = child.stdout.take().expect("piped above");
        let stdin = child.stdin.take();
        let (sender, answers) = channel();
        let mut part = Self { what: what.to_owned(), child, stdin, answers };
        // This thread ends when the child's stdout closes, at the latest when the part is dropped.
        std::thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            })
            .attempted(&starting)?;
        part.write(role)?;
        let answer = part.answer()?;
        Ok((part, answer))
    }

    /// The command of a part that takes no orders and sends no answers.
    pub(crate) fn alone(role: &Role) -> Result<Command, LabError> {
        let role = serde_json::to_string(role).attempted("describe a part")?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["--quiet", "part"]).env(ALONE, role);
        Ok(command)
    }

    fn write(&mut self, value: &impl Serialize) -> Result<(), LabError> {
        let doing = format!("write to {}", self.what);
        let mut line = serde_json::to_string(value).attempted(&doing)?;
        line.push('\n');
        self.stdin.as_mut().expect("open until dropped").write_all(line.as_bytes()).attempted(&doing)
    }

    /// Orders a measurement of `ms` milliseconds; its answer is read later by [`Part::answer`].
    pub(crate) fn order(&mut self, ms: u64) -> Result<(), LabError> {
        self.write(&ms)
    }

    pub(crate) fn answer<T: for<'a> Deserialize<'a>>(&self) -> Result<T, LabError> {
        let doing = format!("read the answer of {}", self.what);
        let line = self.answers.recv_timeout(ANSWER_TIMEOUT).map_err(|error| {
            let cause = match error {
                RecvTimeoutError::Timeout => format!("no answer in {} s", ANSWER_TIMEOUT.as_secs()),
                RecvTimeoutError::Disconnected => "it has ended; its last messages stand above".to_owned(),
            };
            LabError::new(&doing, &cause)
        })?;
        serde_json::from_str(&line).attempted(&doing)
    }

    pub(crate) fn ask<T: for<'a> Deserialize<'a>>(&mut self, ms: u64) -> Result<T, LabError> {
        self.order(ms)?;
        self.answer()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.stdin = None;
        // A part has no state to save; an error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
