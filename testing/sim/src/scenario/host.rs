//! A minimal initiator: no retry, no reconnecting, and task management on request.

use std::rc::Rc;
use std::time::Duration;

use area::{PoolLimits, Span};
use io::{Handle, Incoming, Io, Item, Outgoing, Owner, Token};
use iscsi::initiator::{Command, Config, Connection, Direction, Event, ManagementId};
use iscsi::login::initiator as login;
use iscsi::machine::{Machine, Payload, Placement, Received, TaskId};
use iscsi::name::IscsiName;
use iscsi::params::DigestPolicy;
use iscsi::wire::{Attribute, Isid, TmFunction};
use scsi::Sense;
use scsi::cdb::{self, Cdb};

use super::target::{ADDRESS, IQN};

const CONNECT: u32 = 0;
const RECEIVE: u32 = 1;
const SEND: u32 = 2;
const BHS: usize = 48;
/// Timeout of a login, and of a command that no copy delays.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The session or its process has ended.
#[derive(Debug)]
pub(super) struct Broken;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Good,
    /// A unit attention: its code and qualifier.
    Attention(u8, u8),
    Refused,
}

/// A session; a drop cuts the connection.
pub(super) struct Host {
    io: Io,
    owner: Owner,
    socket: Handle,
    machine: Connection,
    buffers: Vec<Vec<u8>>,
    inbox: Vec<u8>,
    area: Span,
    /// The send buffer, while no send is in flight.
    outgoing: Option<Box<Outgoing>>,
}

/// Sleeps. `None` after the end of the process.
pub(super) fn pause(time: Duration) -> Option<()> {
    let mut io = Io::new(PoolLimits { bytes_max: 1 << 20 }).ok()?;
    let until = io.now() + time;
    while io.now() < until {
        io.turn_until(Some(until), &mut Vec::new()).ok()?;
    }
    Some(())
}

impl Host {
    /// Connects and logs in. The same name is the same I_T nexus, whose older session ends.
    pub(super) fn login(name: &str) -> Result<Self, Broken> {
        let mut io = Io::new(PoolLimits { bytes_max: 16 << 20 }).map_err(|_| Broken)?;
        let address = ADDRESS.parse().expect("an address");
        let iqn = |text: &str| IscsiName::parse(text).expect("a name");
        let name = iqn(&format!("iqn.2026-11.example:{name}"));
        let mut config = login::Config::normal(name, Isid([0x80, 0, 0, 0, 0, 1]), iqn(IQN));
        // This edge computes no digests, and a target beyond loopback selects CRC32C from every list that contains it.
        (config.params.header_digest, config.params.data_digest) = (DigestPolicy::Off, DigestPolicy::Off);
        let mut entropy = [0; 32];
        io::entropy(&mut entropy).map_err(|_| Broken)?;
        let machine = Connection::new(Config::new(config), entropy, io.now()).expect("a configuration");
        let socket: Handle = Rc::new(io::socket(address, None).map_err(|_| Broken)?);
        let owner = io.owner();
        io.connect(Token { owner, key: CONNECT }, &socket, address);
        let area = io.pool().take(16 << 10).ok_or(Broken)?;
        let (buffers, inbox) = (Vec::new(), Vec::new());
        let mut host = Self { io, owner, socket, machine, buffers, inbox, area, outgoing: None };
        match host.next(host.now() + RESPONSE_TIMEOUT)? {
            Some(Event::LoggedIn(_)) => Ok(host),
            _ => Err(Broken),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.io.now()
    }

    /// Queues a command; `data` is its Data-Out.
    pub(super) fn submit(&mut self, lun: u16, cdb: &Cdb, data: Vec<u8>) -> Result<TaskId, Broken> {
        let lun = scsi::lun::to_wire(lun).expect("a LUN");
        let length = data.len() as u32;
        let direction = if data.is_empty() { Direction::None } else { Direction::Out };
        let command = Command { lun, cdb: cdb.padded(), direction, length, attribute: Attribute::Simple };
        let task = self.machine.submit(command).map_err(|_| Broken)?;
        self.buffers.resize(self.buffers.len().max(task.index() + 1), Vec::new());
        self.buffers[task.index()] = data;
        Ok(task)
    }

    pub(super) fn manage(
        &mut self,
        function: TmFunction,
        lun: u16,
        task: Option<TaskId>,
    ) -> Result<ManagementId, Broken> {
        let lun = scsi::lun::to_wire(lun).expect("a LUN");
        self.machine.task_management(function, lun, task).map_err(|_| Broken)
    }

    pub(super) fn command(&mut self, lun: u16, cdb: &Cdb, data: Vec<u8>) -> Result<Answer, Broken> {
        let (task, until) = (self.submit(lun, cdb, data)?, self.now() + RESPONSE_TIMEOUT);
        loop {
            match self.next(until)?.ok_or(Broken)? {
                Event::Complete(outcome) if outcome.task == task => return Ok(answer(&outcome)),
                _ => {}
            }
        }
    }

    pub(super) fn clear_attentions(&mut self, lun: u16) -> Result<(), Broken> {
        while let Answer::Attention(..) = self.command(lun, &cdb::test_unit_ready(), Vec::new())? {}
        Ok(())
    }

    /// The next event; `None` if there is none before `until`.
    pub(super) fn next(&mut self, until: Duration) -> Result<Option<Event>, Broken> {
        let mut events = Vec::new();
        loop {
            if let Some(event) = self.machine.poll_event() {
                return Ok(Some(event));
            }
            if self.take()? {
                continue;
            }
            self.send();
            if self.io.now() >= until {
                return Ok(None);
            }
            let deadline = self.machine.poll_timeout().map_or(until, |at| at.min(until));
            self.io.turn_until(Some(deadline), &mut events).map_err(|_| Broken)?;
            self.machine.on_timeout(self.io.now()).map_err(|_| Broken)?;
            events.drain(..).try_for_each(|event| self.on_event(event))?;
        }
    }

    fn on_event(&mut self, event: io::Event) -> Result<(), Broken> {
        let (key, count) = (event.token.key, event.bytes().map_err(|_| Broken)?);
        match (key, event.item) {
            (CONNECT, _) => self.outgoing = Some(Box::default()),
            (RECEIVE, _) if count == 0 => return Err(Broken),
            (RECEIVE, _) => self.inbox.extend_from_slice(&self.area.as_slice()[..count]),
            (SEND, Item::Outgoing(mut outgoing)) => {
                outgoing.advance(count);
                self.outgoing = Some(outgoing);
                return Ok(());
            }
            (_, item) => unreachable!("no such operation: {item:?}"),
        }
        let mut incoming = Box::new(Incoming::default());
        incoming.push(self.area.clone());
        self.io.receive(Token { owner: self.owner, key: RECEIVE }, &self.socket, incoming);
        Ok(())
    }

    fn send(&mut self) {
        let Some(mut outgoing) = self.outgoing.take() else { return };
        while let Some(transmit) = self.machine.poll_transmit() {
            outgoing.bytes(&transmit.header);
            let data = match &transmit.payload {
                Payload::None => continue,
                Payload::Bytes(data) => &data[..],
                Payload::Task { task, offset, length, .. } => {
                    &self.buffers[task.index()][*offset as usize..][..*length as usize]
                }
            };
            outgoing.bytes(data);
            outgoing.bytes(&[0; 4][..data.len().next_multiple_of(4) - data.len()]);
        }
        if outgoing.is_empty() {
            self.outgoing = Some(outgoing);
        } else {
            self.io.send(Token { owner: self.owner, key: SEND }, &self.socket, outgoing);
        }
    }

    /// Passes one PDU to the machine, if a complete one has arrived.
    fn take(&mut self) -> Result<bool, Broken> {
        if self.inbox.len() < BHS {
            return Ok(false);
        }
        let ahs = usize::from(self.inbox[4]) * 4;
        let length = u32::from_be_bytes([0, self.inbox[5], self.inbox[6], self.inbox[7]]) as usize;
        let total = BHS + ahs + length.next_multiple_of(4);
        if self.inbox.len() < total {
            return Ok(false);
        }
        let (pdu, now) = (self.inbox.drain(..total).collect::<Vec<_>>(), self.io.now());
        let (header, rest) = pdu.split_at(BHS);
        let header = header.try_into().expect("48 bytes");
        self.machine.on_header(header, &rest[..ahs], now).map_err(|_| Broken)?;
        if length > 0 {
            let received = match self.machine.placement() {
                Placement::Inline => Received::Inline(&rest[ahs..ahs + length]),
                // No command of this initiator reads.
                Placement::Task { .. } | Placement::Discard | Placement::Nothing => Received::Discarded,
            };
            self.machine.on_data(received, now).map_err(|_| Broken)?;
        }
        Ok(true)
    }
}

pub(super) fn answer(outcome: &iscsi::initiator::Outcome) -> Answer {
    match Sense::parse(&outcome.sense) {
        _ if outcome.status == scsi::Status::Good as u8 => Answer::Good,
        Some(sense) if sense.key == scsi::SenseKey::UnitAttention => Answer::Attention(sense.asc, sense.ascq),
        _ => Answer::Refused,
    }
}
