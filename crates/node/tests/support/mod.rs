//! Shared by the tests of this crate: servers, and a client on a plain socket that can misbehave.

#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod host;
pub(crate) mod relay;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Medium, OpenOptions, Spec};
use iscsi::initiator::{Command, Config, Connection, Direction, Event, Outcome};
use iscsi::login::initiator as login;
use iscsi::machine::{Machine, Payload, Placement, Received, TaskId};
use iscsi::name::IscsiName;
use iscsi::wire::{Attribute, Isid, LogoutReason, TmFunction, TmResult};
use node::target::{Access, LocalUsers, LunConfig, Server, ServerConfig, ServerHandle, TargetConfig};
use scsi::cdb::Cdb;

pub(crate) const IQN: &str = "iqn.2026-11.example:loopback";

/// Timeout for events that happen soon, on a busy machine.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn medium(words: &str) -> Arc<dyn Medium> {
    let options = OpenOptions { writable: true, request_alignment: 512, allow_in_use: false };
    block::open(&Spec::parse(words).unwrap(), &options).unwrap()
}

pub(crate) fn lun(number: u16, medium: Arc<dyn Medium>) -> LunConfig {
    LunConfig::new(number, medium, format!("serial-{number}"), 0x3000_0000_0000_0000 + u64::from(number))
}

pub(crate) fn config(luns: Vec<LunConfig>, access: Access) -> ServerConfig {
    ServerConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        advertise: None,
        sealing: None,
        targets: vec![TargetConfig { iqn: IQN.into(), luns, access }],
        local_users: LocalUsers::Any,
        tls: None,
        drain_timeout: Duration::from_secs(5),
        threads: Some(2),
    }
}

/// A running server that is stopped at the end of the test, and must stop without error.
pub(crate) struct Guard(pub(crate) Option<Server>);

impl Guard {
    pub(crate) fn start(luns: Vec<LunConfig>, access: Access) -> Self {
        Self::start_with(config(luns, access))
    }

    /// A server with this storage as LUN 0.
    pub(crate) fn of(words: &str) -> Self {
        Self::start(vec![lun(0, medium(words))], Access::default())
    }

    pub(crate) fn start_with(config: ServerConfig) -> Self {
        Self(Some(Server::start(config).unwrap()))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.as_ref().unwrap().addresses()[0]
    }

    pub(crate) fn handle(&self) -> ServerHandle {
        self.0.as_ref().unwrap().handle()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(server) = self.0.take() else { return };
        server.handle().stop();
        let ended = server.wait();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIME_LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An initiator on a blocking socket, driven step by step. Dropping it cuts the connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) machine: Connection,
    buffers: Vec<Vec<u8>>,
    inbox: Vec<u8>,
    began: Instant,
}

#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl Client {
    /// Connects and logs in as initiator `name` with an ISID made of `isid`.
    pub(crate) fn login(address: SocketAddr, name: &str, isid: u8) -> Result<Self, Broken> {
        let name = IscsiName::parse(&format!("iqn.2026-11.example:{name}")).unwrap();
        let isid = Isid([0x80, 0, 0, 0, 0, isid]);
        let mut config = login::Config::normal(name, isid, IscsiName::parse(IQN).unwrap());
        config.params.max_recv_data_segment_length = 64 << 10;
        let mut entropy = [0; 32];
        getrandom::fill(&mut entropy).unwrap();
        let config = Config { ping_interval: None, ..Config::new(config) };
        let machine = Connection::new(config, entropy, Duration::ZERO).unwrap();
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        stream.set_write_timeout(Some(TIME_LIMIT))?;
        let (buffers, inbox) = (Vec::new(), Vec::new());
        let mut client = Self { stream, machine, buffers, inbox, began: Instant::now() };
        match client.next_event()? {
            Event::LoggedIn(_) => Ok(client),
            other => Err(Broken(format!("{other:?}"))),
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Queues a command; `data` is its data-out, or a buffer for its data-in.
    pub(crate) fn submit(&mut self, lun: u16, cdb: Cdb, direction: Direction, data: Vec<u8>) -> TaskId {
        let lun = scsi::lun::to_wire(lun).unwrap();
        let length = data.len() as u32;
        let command = Command { lun, cdb: cdb.padded(), direction, length, attribute: Attribute::Simple };
        let task = self.machine.submit(command).unwrap();
        self.buffers.resize(self.buffers.len().max(task.index() + 1), Vec::new());
        self.buffers[task.index()] = data;
        task
    }

    /// Sends the queued PDUs.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        while let Some(transmit) = self.machine.poll_transmit() {
            let mut bytes = transmit.header.to_vec();
            match &transmit.payload {
                Payload::None => {}
                Payload::Bytes(data) => bytes.extend_from_slice(data),
                Payload::Task { task, offset, length, .. } => {
                    let (start, length) = (*offset as usize, *length as usize);
                    bytes.extend_from_slice(&self.buffers[task.index()][start..start + length]);
                }
            }
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            self.stream.write_all(&bytes)?;
        }
        Ok(())
    }

    fn fill(&mut self, length: usize) -> Result<(), Broken> {
        let mut chunk = [0; 16384];
        while self.inbox.len() < length {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Broken("end of stream".into())),
                Ok(count) => self.inbox.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends the queued PDUs and receives one PDU.
    pub(crate) fn step(&mut self) -> Result<(), Broken> {
        self.flush()?;
        self.fill(48)?;
        let ahs = usize::from(self.inbox[4]) * 4;
        let length = u32::from_be_bytes([0, self.inbox[5], self.inbox[6], self.inbox[7]]) as usize;
        let total = 48 + ahs + length.next_multiple_of(4);
        self.fill(total)?;
        let pdu: Vec<u8> = self.inbox.drain(..total).collect();
        let now = self.now();
        let fatal = |fatal: iscsi::machine::Fatal| Broken(fatal.to_string());
        self.machine.on_header(pdu[..48].try_into().unwrap(), &pdu[48..48 + ahs], now).map_err(fatal)?;
        if length > 0 {
            let data = &pdu[48 + ahs..48 + ahs + length];
            let received = match self.machine.placement() {
                Placement::Task { task, offset, length } => {
                    let (start, length) = (offset as usize, length as usize);
                    self.buffers[task.index()][start..start + length].copy_from_slice(&data[..length]);
                    Received::Placed
                }
                Placement::Inline => Received::Inline(data),
                Placement::Discard | Placement::Nothing => Received::Discarded,
            };
            self.machine.on_data(received, now).map_err(fatal)?;
        }
        Ok(())
    }

    pub(crate) fn next_event(&mut self) -> Result<Event, Broken> {
        loop {
            if let Some(event) = self.machine.poll_event() {
                return Ok(event);
            }
            self.step()?;
        }
    }

    /// Waits until a command has ended; returns its outcome and its data.
    pub(crate) fn complete(&mut self) -> Result<(Outcome, Vec<u8>), Broken> {
        loop {
            match self.next_event()? {
                Event::Complete(outcome) => {
                    let data = std::mem::take(&mut self.buffers[outcome.task.index()]);
                    return Ok((outcome, data));
                }
                Event::Async(_) => {}
                other => return Err(Broken(format!("{other:?}"))),
            }
        }
    }

    /// Runs one command to its end; after a unit attention the command is repeated.
    pub(crate) fn command(
        &mut self,
        lun: u16,
        cdb: Cdb,
        direction: Direction,
        data: &[u8],
    ) -> Result<(u8, Vec<u8>), Broken> {
        loop {
            self.submit(lun, cdb, direction, data.to_vec());
            let (outcome, data) = self.complete()?;
            let attention = outcome.sense.get(2).is_some_and(|key| key & 0xF == 6);
            if outcome.status != 2 || !attention {
                return Ok((outcome.status, data));
            }
        }
    }

    /// Runs a task management function to its response; other completions are dropped.
    pub(crate) fn manage(&mut self, function: TmFunction, lun: u16) -> Result<TmResult, Broken> {
        let lun = scsi::lun::to_wire(lun).unwrap();
        self.machine.task_management(function, lun, None).unwrap();
        loop {
            if let Event::ManagementDone { result, .. } = self.next_event()? {
                return Ok(result);
            }
        }
    }

    pub(crate) fn logout(mut self) -> Result<(), Broken> {
        self.machine.logout(LogoutReason::CloseSession, self.now());
        loop {
            if let Event::LoggedOut { .. } = self.next_event()? {
                return Ok(());
            }
        }
    }
}
