//! The other end of a part: whoever started it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::Deserialize;

use super::{Job, Order};
use crate::{Attempted, LabError};

/// Longer than any answer takes, however busy the machine is; a part that does not answer is ended.
const PATIENCE: Duration = Duration::from_secs(600);

/// A running part. Dropping it ends it.
pub(crate) struct Part {
    what: String,
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Part {
    /// Starts it; `what` is its name in errors. Its complaints go to our stderr.
    pub(crate) fn start(what: &str, job: &Job) -> Result<Self, LabError> {
        let starting = format!("start {what}");
        let environment = job.environment();
        // Not the path: that may be another program by now.
        let mut child = Command::new("/proc/self/exe")
            .args(["--quiet", "lab", "part"])
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .attempted(&starting)?;
        let stdout = child.stdout.take().expect("it was asked for");
        let stdin = child.stdin.take();
        let (sender, answers) = channel();
        let mut part = Self { what: what.to_owned(), child, stdin, answers };
        // Ends with the child's stdout, at the latest when the part is dropped.
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
        part.write(&serde_json::to_string(job).attempted(&starting)?)?;
        Ok(part)
    }

    fn write(&mut self, line: &str) -> Result<(), LabError> {
        let doing = format!("speak to {}", self.what);
        let stdin = self.stdin.as_mut().expect("open until dropped");
        stdin.write_all(format!("{line}\n").as_bytes()).attempted(&doing)
    }

    /// Gives an order whose answer is wanted later.
    pub(crate) fn order(&mut self, order: Order) -> Result<(), LabError> {
        self.write(&serde_json::to_string(&order).attempted("write an order")?)
    }

    /// The next answer.
    pub(crate) fn answer<T: for<'a> Deserialize<'a>>(&self) -> Result<T, LabError> {
        let doing = format!("hear from {}", self.what);
        let line = self.answers.recv_timeout(PATIENCE).map_err(|error| {
            let cause = match error {
                RecvTimeoutError::Timeout => format!("no answer in {} s", PATIENCE.as_secs()),
                RecvTimeoutError::Disconnected => "it has ended; what it said last stands above".to_owned(),
            };
            LabError::new(&doing, &cause)
        })?;
        serde_json::from_str(&line).attempted(&doing)
    }

    /// Gives an order and waits for its answer.
    pub(crate) fn ask<T: for<'a> Deserialize<'a>>(&mut self, order: Order) -> Result<T, LabError> {
        self.order(order)?;
        self.answer()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.stdin = None;
        // It has nothing to lose; an error means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
