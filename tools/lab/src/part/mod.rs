//! A side of an experiment in a separate process.
//!
//! A part is this program started as `hikyaku-lab part`. The first line of its stdin is its role (a `Role`); it answers
//! each further line, an order, with a line of JSON, and ends when stdin closes, so that no part outlives the process that started
//! it.

pub(crate) mod bystander;
mod handle;

use std::io::{Lines, StdinLock, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use handle::Part;

use crate::device_copy::{Copier, Loader, Neighbour};
use crate::packet_send::{
    HandOver as PacketHandOver, KernelStages as PacketKernelStages, Near as PacketNear, Peer as PacketPeer,
    Stages as PacketStages,
};
use crate::secure_read::{IscsiInitiator, IscsiTarget, SocketInitiator, SocketTarget};
use crate::wan_write::{Far, Near, Sink, Target, Writer};
use crate::{Attempted, LabError};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    Bystander(bystander::Bystander),
    SocketTarget(SocketTarget),
    SocketInitiator(SocketInitiator),
    IscsiTarget(IscsiTarget),
    IscsiInitiator(IscsiInitiator),
    Copier(Copier),
    Loader(Loader),
    Neighbour(Neighbour),
    WanWriter(Writer),
    WanSink(Sink),
    WanTarget(Target),
    WanFar(Far),
    WanNear(Near),
    PacketPeer(PacketPeer),
    PacketNear(PacketNear),
    PacketStages(PacketStages),
    PacketKernelStages(PacketKernelStages),
    PacketHandOver(PacketHandOver),
}

impl Role {
    fn environment(&self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::IscsiTarget(role) => role.environment(),
            _ => Vec::new(),
        }
    }
}

/// Writes an answer to an order, or the first answer: the part is ready.
pub(crate) fn send(answer: &impl Serialize) -> Result<(), LabError> {
    let mut line = serde_json::to_string(answer).attempted("write an answer")?;
    line.push('\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()).attempted("write an answer")
}

/// The lines of a part's stdin after the first.
pub(crate) struct Orders(Lines<StdinLock<'static>>);

impl Orders {
    /// Answers every order until stdin closes. An order is the duration of a measurement, in milliseconds.
    pub(crate) fn serve<T: Serialize>(
        self,
        mut answer: impl FnMut(Duration) -> Result<T, LabError>,
    ) -> Result<(), LabError> {
        for line in self.0 {
            let ms = parse(&line.attempted("read an order")?)?;
            send(&answer(Duration::from_millis(ms))?)?;
        }
        Ok(())
    }
}

fn parse<T: for<'a> Deserialize<'a>>(line: &str) -> Result<T, LabError> {
    serde_json::from_str(line).attempted("understand an order (a part is not started by hand)")
}

/// Runs as the part that the first line of stdin describes, or the environment variable of parts that take no orders.
pub fn run() -> Result<(), LabError> {
    let mut lines = std::io::stdin().lines();
    let first = match std::env::var(handle::ALONE) {
        Ok(role) => role,
        Err(_) => lines.next().transpose().attempted("read an order")?.unwrap_or_default(),
    };
    let orders = Orders(lines);
    match parse(&first)? {
        Role::Bystander(role) => role.run(orders),
        Role::SocketTarget(role) => role.run(orders),
        Role::SocketInitiator(role) => role.run(orders),
        Role::IscsiTarget(role) => role.run(orders),
        Role::IscsiInitiator(role) => role.run(orders),
        Role::Copier(role) => role.run(orders),
        Role::Loader(role) => role.run(orders),
        Role::Neighbour(role) => role.run(orders),
        Role::WanWriter(role) => role.run(orders),
        Role::WanSink(role) => role.run(orders),
        Role::WanTarget(role) => role.run(orders),
        Role::WanFar(role) => role.run(orders),
        Role::WanNear(role) => role.run(),
        Role::PacketPeer(role) => role.run(orders),
        Role::PacketNear(role) => role.run(orders),
        Role::PacketStages(role) => role.run(orders),
        Role::PacketKernelStages(role) => role.run(orders),
        Role::PacketHandOver(role) => role.run(orders),
    }
}
