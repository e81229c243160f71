//! Discovery: the targets of a portal (SendTargets) and the LUNs of a target (REPORT LUNS). Blocking; for the command
//! line.

use std::net::SocketAddr;
use std::time::Duration;

use area::Span;
use block::OpenError;
use block::remote::Link;
use io::{Handle, Io, Owner};
use iscsi::initiator::{Command, Direction};
use iscsi::login::initiator::Config;
use iscsi::machine::TargetRecord;
use iscsi::wire::Attribute;
use scsi::capacity::{Capacity, LunList};
use scsi::cdb::{self, Cdb};
use scsi::inquiry::{self, Standard};
use scsi::mode::ModeData;
use scsi::{Sense, SenseKey, Status};

use super::facts::Known;
use super::options::{InitiatorSealing, Options, random_isid, resolve};
use super::race;
use super::refusal::{BUSY_PAUSE, BUSY_TIME_MAX, damaged, login_error, unverified};
use super::session::{CONNECT_TIMEOUT, Failure, Outcome, Session};
use super::setup::{ANSWER_BYTES, Answer, status_text};
use super::trust::{Login, Portal};
use super::url::Url;
use crate::stream::tls;

const LUNS_SHOWN_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub name: String,
    /// TargetAddress values, `host:port,tag`; empty if the target is at the portal that was queried.
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunInfo {
    pub lun: u16,
    /// Capacity in bytes; `None` if READ CAPACITY fails (no medium, no disk).
    pub size_bytes: Option<u64>,
    pub block_size: Option<u32>,
    pub vendor: String,
    pub product: String,
    /// Unit serial number (VPD page 80h).
    pub serial: Option<String>,
    pub read_only: bool,
}

pub fn discover(io: &mut Io, url: &Url, options: &Options) -> Result<Vec<Target>, OpenError> {
    let mut talk = Talk::begin(io, url, options, None)?;
    talk.session.send_targets();
    let targets = talk.wait(|outcome| match outcome {
        Outcome::Targets(targets) => Some(targets),
        _ => None,
    })?;
    talk.end();
    let target = |record: TargetRecord| Target {
        name: record.name.to_string(),
        addresses: record.addresses.iter().map(ToString::to_string).collect(),
    };
    Ok(targets.into_iter().map(target).collect())
}

pub type SessionFacts = Vec<(&'static str, String)>;

/// The LUNs of the target that `url` names, and the facts of the session with it, in the form of an endpoint's
/// [`facts`](block::Inspect::facts).
pub fn list_luns(
    io: &mut Io,
    url: &Url,
    options: &Options,
) -> Result<(Vec<LunInfo>, SessionFacts), OpenError> {
    let target = url.target.clone().ok_or_else(|| OpenError::Usage(format!("{url} names no target")))?;
    let mut talk = Talk::begin(io, url, options, Some(&target))?;
    let list = talk.command(0, cdb::report_luns(ANSWER_BYTES))?.unwrap_or_default();
    let luns = LunList::parse(&list).map(|list| list.luns).unwrap_or_default();
    let mut found = Vec::new();
    for wire in luns.into_iter().take(LUNS_SHOWN_MAX) {
        if let Some(lun) = scsi::lun::from_wire(wire) {
            found.push(describe(&mut talk, wire, lun)?);
        }
    }
    let facts = talk.known.iter().flat_map(Known::facts).collect();
    talk.end();
    Ok((found, facts))
}

fn describe(talk: &mut Talk<'_>, wire: u64, lun: u16) -> Result<LunInfo, OpenError> {
    let standard = talk.command(wire, cdb::inquiry(None, 255))?.and_then(|data| Standard::parse(&data));
    let serial = talk.command(wire, cdb::inquiry(Some(0x80), 255))?.and_then(|data| inquiry::serial(&data));
    let capacity = match talk.command(wire, cdb::read_capacity_16(32))? {
        Some(data) => Capacity::parse_16(&data),
        None => talk.command(wire, cdb::read_capacity_10())?.and_then(|data| Capacity::parse_10(&data)),
    };
    let mode = talk.command(wire, cdb::mode_sense_6(0x3F, 255))?;
    let read_only = mode.and_then(|data| ModeData::parse_6(&data).map(|mode| mode.write_protected));
    let word = |text: Option<&str>| text.unwrap_or_default().trim().to_owned();
    Ok(LunInfo {
        lun,
        size_bytes: capacity.as_ref().and_then(|c| c.blocks.checked_mul(u64::from(c.block_size))),
        block_size: capacity.as_ref().map(|capacity| capacity.block_size),
        vendor: word(standard.as_ref().map(Standard::vendor)),
        product: word(standard.as_ref().map(Standard::product)),
        serial,
        read_only: read_only.unwrap_or(false),
    })
}

#[derive(Debug)]
pub(super) enum Ended {
    Good,
    /// Aborted because `go_on` returned false.
    Stopped,
    /// Refused; the status and sense data as text.
    Refused(String),
}

const GO_ON_EVERY: Duration = Duration::from_millis(200);
/// Bound of the repetitions of a command that ended with BUSY or TASK SET FULL, and the pause before each.
const REPEATS_MAX: u32 = 20;
const REPEAT_PAUSE: Duration = Duration::from_millis(50);

/// A session that runs one command at a time and blocks for its outcome.
pub(super) struct Talk<'a> {
    io: &'a mut Io,
    url: &'a Url,
    owner: Owner,
    session: Session,
    known: Option<Known>,
    timeout: Duration,
    deadline: Duration,
}

impl<'a> Talk<'a> {
    /// Connects and logs in, to the address of the host that answers first. All attempts together to connect take at most
    /// `CONNECT_TIMEOUT`, and no longer than `Options::timeout`.
    pub(super) fn begin(
        io: &'a mut Io,
        url: &'a Url,
        options: &Options,
        target: Option<&str>,
    ) -> Result<Self, OpenError> {
        let mut last = None;
        let until = io.now() + BUSY_TIME_MAX.min(options.timeout);
        let mut tried_again = false;
        let addresses = resolve(url)?;
        let mut left = addresses.clone();
        let connected_by = io.now() + CONNECT_TIMEOUT.min(options.timeout);
        while !left.is_empty() {
            let (address, socket) =
                match race::connect(io, &mut left, options.congestion.as_deref(), connected_by) {
                    Ok(connected) => connected,
                    Err(error) => {
                        last = Some(explain(url, Failure::Connect(error)));
                        break;
                    }
                };
            let mut socket = Some(socket);
            let portal = Portal { address, addresses: &addresses, redirected: None };
            let mut declined = false;
            loop {
                let (sealing, tls) = options.protect(url, &portal)?;
                let sealing = sealing.filter(|_| !declined).map(|sealing| sealing.with_next(tried_again));
                let config = options.login(target, random_isid())?;
                let at = (address, socket.take());
                match Talk::log_in(&mut *io, url, options, config, at, sealing.as_ref(), tls) {
                    Ok((session, owner, deadline, known)) => {
                        let (timeout, known) = (options.timeout, Some(known));
                        return Ok(Self { io, url, owner, session, known, timeout, deadline });
                    }
                    Err(Failure::Declined) if !declined => {
                        tracing::warn!(%url, "the target does not seal: going on in the clear");
                        declined = true;
                    }
                    Err(failure) if failure.is_busy() && io.now() < until => pause(io, BUSY_PAUSE)?,
                    Err(failure) if failure.may_be_damage() && !tried_again => tried_again = true,
                    Err(failure) => match explain(url, failure) {
                        error @ OpenError::Unreachable(_) => {
                            last = Some(error);
                            break;
                        }
                        error => return Err(error),
                    },
                }
            }
        }
        Err(last.expect("resolve gives at least one address"))
    }

    fn log_in(
        io: &'a mut Io,
        url: &'a Url,
        options: &Options,
        config: Config,
        (address, socket): (SocketAddr, Option<Handle>),
        sealing: Option<&InitiatorSealing>,
        tls: Option<tls::End>,
    ) -> Result<(Session, Owner, Duration, Known), Failure> {
        let owner = io.owner();
        let session = match socket {
            Some(socket) => Session::connected(io, owner, socket, config, sealing, tls)?,
            None => {
                let to = (address, options.congestion.as_deref());
                Session::connect(io, owner, 0, to, config, sealing, tls)?
            }
        };
        let deadline = io.now() + options.timeout;
        let mut talk = Talk { io, url, owner, session, known: None, timeout: options.timeout, deadline };
        let negotiated = talk.wait_for(|outcome| match outcome {
            Outcome::LoggedIn(negotiated) => Some(negotiated),
            _ => None,
        })?;
        let protection = talk.session.protection();
        let next_key = talk.session.next_key();
        options.on_login(&Login { address, protection, next_key });
        Ok((talk.session, owner, deadline, Known { negotiated, protection, address }))
    }

    fn wait<T>(&mut self, accept: impl FnMut(Outcome) -> Option<T>) -> Result<T, OpenError> {
        let url = self.url;
        self.wait_for(accept).map_err(|failure| explain(url, failure))
    }

    fn wait_for<T>(&mut self, accept: impl FnMut(Outcome) -> Option<T>) -> Result<T, Failure> {
        let found = self.wait_until(self.deadline, accept)?;
        found.ok_or_else(|| Failure::Lost("no answer in time".into()))
    }

    /// As [`Self::wait_for`], until a given time; `None` if no outcome was accepted by then.
    fn wait_until<T>(
        &mut self,
        until: Duration,
        mut accept: impl FnMut(Outcome) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let (mut events, mut outcomes) = (Vec::new(), Vec::new());
        loop {
            self.session.pump(self.io, &mut outcomes);
            for outcome in outcomes.drain(..) {
                if let Outcome::Failed(failure) = outcome {
                    return Err(failure);
                }
                if let Some(found) = accept(outcome) {
                    return Ok(Some(found));
                }
            }
            if self.io.now() >= until {
                return Ok(None);
            }
            self.io
                .turn_for(|owner| owner == self.owner, Some(until), &mut events)
                .map_err(|error| Failure::Lost(format!("waiting: {error}")))?;
            for event in events.drain(..) {
                self.session.on_event(self.io, event, &mut outcomes);
            }
        }
    }

    /// Returns the data-in of a command, `None` if the LUN refuses the command. After a unit attention the command is
    /// repeated.
    pub(super) fn command(&mut self, lun: u64, cdb: Cdb) -> Result<Option<Vec<u8>>, OpenError> {
        for _ in 0..8 {
            let buffer = self.buffer()?;
            let length = cdb::data_bytes(cdb.as_bytes(), 512).map_or(0, |(_, length)| length as u32);
            let length = length.min(ANSWER_BYTES);
            let direction = super::command::direction_in(length);
            let command = Command { lun, cdb: cdb.padded(), direction, length, attribute: Attribute::Simple };
            if self.session.submit(command, Some(buffer.clone())).is_err() {
                return Err(OpenError::Failed(format!("{}: the target takes no commands", self.url)));
            }
            let (status, sense, moved) = self.wait(|outcome| match outcome {
                Outcome::Completed { status, sense, moved, .. } => Some((status, sense, moved)),
                Outcome::Interrupted { .. } => Some((Status::Busy as u8, None, 0)),
                _ => None,
            })?;
            let attention = |sense: &Sense| sense.key == SenseKey::UnitAttention;
            if status == Status::Good as u8 {
                return Ok(Some(buffer.as_slice()[..(moved as usize).min(buffer.len())].to_vec()));
            } else if !sense.as_ref().is_some_and(attention) {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Runs a command with data-out or without data, for at most `Options::timeout`. Meanwhile `go_on` is called
    /// periodically; if it returns false, the command is aborted.
    pub(super) fn write(
        &mut self,
        lun: u64,
        cdb: Cdb,
        data: &[u8],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Ended, OpenError> {
        let (url, length) = (self.url, data.len() as u32);
        let direction = if data.is_empty() { Direction::None } else { Direction::Out };
        let mut refused = Ended::Refused("it is busy".into());
        for _ in 0..REPEATS_MAX {
            let buffer = self.io.pool().take(data.len().max(1));
            let buffer = buffer.ok_or_else(|| OpenError::Failed("out of buffer memory".into()))?;
            buffer.fill(0, data);
            let command = Command { lun, cdb: cdb.padded(), direction, length, attribute: Attribute::Simple };
            self.deadline = self.io.now() + self.timeout;
            let task = self.session.submit(command, Some(buffer));
            let task = task.map_err(|_| OpenError::Failed(format!("{url}: the target takes no commands")))?;
            let mut stopped = false;
            let (status, sense) = loop {
                let until = self.deadline.min(self.io.now() + GO_ON_EVERY);
                let ended = self.wait_until(until, |outcome| match outcome {
                    Outcome::Completed { status, sense, .. } => Some((Some(status), sense)),
                    Outcome::Interrupted { .. } => Some((None, None)),
                    _ => None,
                });
                match ended.map_err(|failure| explain(url, failure))? {
                    Some(ended) => break ended,
                    None if self.io.now() >= self.deadline => {
                        return Err(OpenError::Unreachable(format!("{url}: no answer in time")));
                    }
                    None if !stopped && !go_on() => {
                        stopped = true;
                        self.session.abort(lun, task);
                    }
                    None => {}
                }
            };
            let again =
                |sense: &Sense| matches!(sense.key, SenseKey::UnitAttention | SenseKey::AbortedCommand);
            let busy = [Status::Busy as u8, Status::TaskSetFull as u8];
            match status {
                Some(status) if status == Status::Good as u8 => return Ok(Ended::Good),
                _ if stopped => return Ok(Ended::Stopped),
                Some(status) => {
                    refused = Ended::Refused(status_text(&Answer { status, sense, data: &[] }));
                    if busy.contains(&status) {
                        let until = self.io.now() + REPEAT_PAUSE;
                        let pause = self.wait_until(until, |_| None::<()>);
                        pause.map_err(|failure| explain(url, failure))?;
                    } else if !sense.as_ref().is_some_and(again) {
                        break;
                    }
                }
                None => {}
            }
        }
        Ok(refused)
    }

    pub(super) fn now(&self) -> Duration {
        self.io.now()
    }

    pub(super) fn session_bytes(&self) -> (u64, u64) {
        self.session.transferred()
    }

    fn buffer(&self) -> Result<Span, OpenError> {
        let span = self.io.pool().take(ANSWER_BYTES as usize);
        span.ok_or_else(|| OpenError::Failed("out of buffer memory".into()))
    }

    pub(super) fn end(mut self) {
        self.deadline = self.io.now() + self.timeout;
        self.session.log_out(self.io.now());
        let _ = self.wait(|outcome| matches!(outcome, Outcome::LoggedOut).then_some(()));
    }
}

/// Blocks for `length`; events of the loop's other owners are not dispatched meanwhile.
fn pause(io: &mut Io, length: Duration) -> Result<(), OpenError> {
    let until = io.now() + length;
    while io.now() < until {
        io.turn_for(|_| false, Some(until), &mut Vec::new())
            .map_err(|error| OpenError::Failed(format!("waiting: {error}")))?;
    }
    Ok(())
}

fn explain(url: &Url, failure: Failure) -> OpenError {
    match failure {
        Failure::Connect(error) => {
            OpenError::Unreachable(format!("connecting to {}: {error}", url.address()))
        }
        Failure::Untrusted(text) => OpenError::Certificate(format!("{url}: {text}")),
        Failure::Login(error) => login_error(url, &error),
        Failure::Redirect(redirect) => OpenError::Unreachable(format!(
            "{url} has moved: ask iscsi://{}",
            redirect.address.to_string().split(',').next().unwrap_or_default()
        )),
        Failure::Lost(text) | Failure::Dropped(text) => OpenError::Unreachable(format!("{url}: {text}")),
        Failure::Damaged(text) => damaged(url, &text),
        Failure::Unverified => unverified(url),
        Failure::Declined => OpenError::Authentication(format!("{url}: the target does not seal")),
        Failure::Seal(text) => OpenError::Authentication(format!("{url}: {text}")),
    }
}
