//! A side of an experiment in a process of its own.
//!
//! A part is this program started as `hikyaku lab part`. Its first line of stdin says what it is (a `Job`); from then on it
//! answers each line with a line of JSON, and ends when stdin does, so that no part outlives who started it.

pub(crate) mod bystander;
mod handle;

use std::io::{Lines, StdinLock, Write};

use serde::{Deserialize, Serialize};

pub(crate) use handle::Part;

use crate::device_copy::{Copier, Loader, Neighbour};
use crate::secure_read::{IscsiInitiator, IscsiTarget, SocketInitiator, SocketTarget};
use crate::{Attempted, LabError};

/// What a part is to be.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Somebody who has nothing to do with it, and wants his turn.
    Bystander(bystander::Bystander),
    /// Sends blocks over a socket.
    SocketTarget(SocketTarget),
    /// Asks for them.
    SocketInitiator(SocketInitiator),
    /// Our iSCSI target.
    IscsiTarget(IscsiTarget),
    /// Reads from it.
    IscsiInitiator(IscsiInitiator),
    /// Copies from device to device.
    Copier(Copier),
    /// Reads a device or writes one as fast as it can.
    Loader(Loader),
    /// Somebody else who uses one of the devices.
    Neighbour(Neighbour),
}

impl Job {
    /// Environment variables that the part needs beside ours.
    fn environment(&self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::IscsiTarget(job) => job.environment(),
            _ => Vec::new(),
        }
    }
}

/// What is said to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Do it once more, and tell what came of it.
    Go {
        /// How long, milliseconds.
        ms: u64,
    },
    /// Tell what was used and seen so far.
    Mark,
}

/// A part's end of the conversation.
pub(crate) struct Talk {
    lines: Lines<StdinLock<'static>>,
}

impl Talk {
    /// Answers the last order, or says that the part is there.
    pub(crate) fn say(&self, answer: &impl Serialize) -> Result<(), LabError> {
        let mut line = serde_json::to_string(answer).attempted("write an answer")?;
        line.push('\n');
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()).attempted("write an answer")
    }

    /// The next order; `None` when it is time to end.
    pub(crate) fn next(&mut self) -> Result<Option<Order>, LabError> {
        self.lines.next().transpose().attempted("read an order")?.map(|line| parse(&line)).transpose()
    }
}

fn parse<T: for<'a> Deserialize<'a>>(line: &str) -> Result<T, LabError> {
    serde_json::from_str(line).attempted("understand an order (a part is not started by hand)")
}

/// Is a part, as the process that started this one says.
pub fn run() -> Result<(), LabError> {
    let mut lines = std::io::stdin().lines();
    let first = lines.next().transpose().attempted("read an order")?.unwrap_or_default();
    let talk = Talk { lines };
    match parse(&first)? {
        Job::Bystander(job) => job.run(talk),
        Job::SocketTarget(job) => job.run(talk),
        Job::SocketInitiator(job) => job.run(talk),
        Job::IscsiTarget(job) => job.run(talk),
        Job::IscsiInitiator(job) => job.run(talk),
        Job::Copier(job) => job.run(talk),
        Job::Loader(job) => job.run(talk),
        Job::Neighbour(job) => job.run(talk),
    }
}
