//! The initiator's side of a connection, which with MaxConnections=1 is its session.
//!
//! Login is embedded ([`crate::login::initiator`]); the full feature phase is in the files that mirror the target's:
//! `command.rs`, `data.rs`, `management.rs`, `text.rs`, `transmit.rs`. The module contains no SCSI beyond status and
//! sense bytes. The target is an untrusted peer: input that does not fit a request of this side ends the connection,
//! which at ErrorRecoveryLevel 0 is the only way to guarantee the data.
//!
//! Rules for the edge:
//! - Drain [`Connection::poll_event`] after each call that takes input, also after a [`Fatal`].
//! - A task's buffer may be freed at [`Event::Complete`] or [`Event::Failed`]. The edge itself keeps memory from which
//!   its socket still reads. A [`Connection::submit`] after that event was taken reuses the slot.
//! - A GOOD status does not imply that all data arrived: compare [`Outcome::data_in`] and [`Outcome::residual`] with
//!   the length of the command.
//! - After a [`Fatal`] every task without such an event has an unknown outcome.

use std::collections::VecDeque;
use std::time::Duration;

use crate::chap::Entropy;
use crate::limits;
use crate::login::initiator as login;
use crate::machine::{
    Digests, Fatal, Machine, Parameters, Placement, Received, TargetRecord, TaskId, Transmit,
};
use crate::params::{Negotiated, SessionType};
use crate::wire::{
    AsyncEvent, Attribute, Bhs, CmdSn, Itt, LoginResponse, LogoutResult, Opcode, RejectReason, Residual,
    StatSn, TmResult, get_sns,
};

mod command;
mod data;
mod management;
mod task;
mod text;
mod transmit;

pub use crate::login::initiator::{Complete as LoggedIn, ConfigError, LoginError, Redirect};
pub use management::{ManagementBusy, ManagementId};

use task::Tasks;
use text::Text;
use transmit::Control;

#[derive(Debug, Clone)]
pub struct Config {
    pub login: login::Config,
    /// Most tasks at once, 1..=1008; the target's command window may allow fewer.
    pub tasks_max: u32,
    /// Longest data segment to send, bytes, even if the target accepts longer ones.
    pub segment_max: u32,
    /// Time without a received PDU after which the initiator pings the target; `None`: no pings.
    pub ping_interval: Option<Duration>,
    pub ping_timeout: Duration,
    pub login_timeout: Duration,
    pub logout_timeout: Duration,
}

impl Config {
    pub fn new(login: login::Config) -> Self {
        Self {
            login,
            tasks_max: 512,
            segment_max: u32::MAX,
            ping_interval: Some(Duration::from_secs(5)),
            ping_timeout: Duration::from_secs(5),
            login_timeout: Duration::from_secs(15),
            logout_timeout: Duration::from_secs(5),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    None,
    In,
    Out,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    pub lun: u64,
    pub cdb: [u8; 16],
    pub direction: Direction,
    /// Length of the task's buffer, bytes: the Expected Data Transfer Length.
    pub length: u32,
    pub attribute: Attribute,
}

/// The command window or the task slots allow no further command now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the command window is full")]
pub struct WindowFull;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub task: TaskId,
    pub status: u8,
    /// Sense data, usually empty; at most [`limits::SENSE_MAX`] bytes.
    pub sense: Vec<u8>,
    /// The difference to the expected length, as reported by the target.
    pub residual: Residual,
    /// Bytes of Data-In received, from the start of the buffer.
    pub data_in: u32,
    /// Bytes of Data-Out that were handed out before the status arrived.
    pub data_out: u32,
}

/// Why a command ended without a SCSI status. Whether the target executed it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// Task management ended it.
    #[error("aborted")]
    Aborted,
    /// A logout began before the command was handed out: the target has not seen it.
    #[error("not sent before the logout")]
    Unsent,
    #[error("rejected by the target: {0:?}")]
    Rejected(RejectReason),
    /// The target reported a failure; holds the iSCSI response code.
    #[error("target failure 0x{0:02x}")]
    TargetFailure(u8),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsyncNotice {
    pub event: AsyncEvent,
    pub vcode: u8,
    /// Logical unit; meaningful only for events that concern one.
    pub lun: u64,
    pub parameters: [u16; 3],
    pub data: Vec<u8>,
}

#[derive(Debug)]
pub enum Event {
    /// The session is established. [`Connection::window`] returns how many commands it accepts.
    LoggedIn(Box<LoggedIn>),
    /// The target redirects; the edge closes this connection.
    Redirect(Redirect),
    /// The login failed; the call also returns [`Fatal::Login`].
    LoginFailed(LoginError),
    /// A command ended with a SCSI status.
    Complete(Outcome),
    /// A command ended without a SCSI status.
    Failed {
        task: TaskId,
        error: TaskError,
    },
    /// The answer to [`Connection::send_targets`]. Malformed names and addresses are omitted.
    Targets(Vec<TargetRecord>),
    /// The answer to [`Connection::task_management`].
    ManagementDone {
        request: ManagementId,
        result: TmResult,
    },
    Async(Box<AsyncNotice>),
    /// The answer to [`Connection::logout`]. After [`LogoutResult::Closed`] the edge closes the connection.
    LoggedOut {
        result: LogoutResult,
    },
}

#[derive(Debug)]
enum Phase {
    Login(Box<login::Login>),
    FullFeature,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    None,
    Discard,
    Login,
    Sense { slot: u32 },
    DataIn { slot: u32, offset: u32, length: u32 },
    Ping,
    Text,
    Async,
    Reject,
}

/// A connection and its session: a [`Machine`] that also takes commands and yields events; see the rules of this
/// module. Between calls it holds the login, tasks, PDUs to send, and at most one partly received PDU.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    phase: Phase,
    parameters: Parameters,
    discovery: bool,
    events: VecDeque<Event>,
    header: [u8; 48],
    segment: Segment,
    tasks: Tasks,
    cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    exp_stat_sn: StatSn,
    urgent: VecDeque<Control>,
    urgent_run: u32,
    /// Commands submitted and not yet handed out.
    ready: VecDeque<u32>,
    /// Tasks with Data-Out to send; the first one has its turn.
    data_queue: VecDeque<u32>,
    turn_bytes: u32,
    management: [Option<Itt>; limits::MANAGEMENT_MAX as usize],
    management_generation: u32,
    text: Text,
    async_pending: usize,
    /// Deadline of the logout in progress.
    logout: Option<Duration>,
    last_received: Duration,
    ping: Option<(Itt, Duration)>,
    ping_generation: u32,
    login_deadline: Duration,
}

impl Connection {
    /// Starts on a new connection; the first login request is ready in `poll_transmit`. `entropy` is fresh from the
    /// system's generator: the challenges of the login are derived from it. Panics if `config.tasks_max` is out of
    /// range.
    pub fn new(config: Config, entropy: Entropy, now: Duration) -> Result<Self, ConfigError> {
        assert!(
            (1..=management::TASK_SLOTS_MAX).contains(&config.tasks_max),
            "tasks_max {}",
            config.tasks_max
        );
        let discovery = config.login.session_type == SessionType::Discovery;
        let mut login = Box::new(login::Login::new(config.login.clone(), entropy)?);
        let first = Control::Login(login.start());
        Ok(Self {
            phase: Phase::Login(login),
            parameters: Parameters::from(&Negotiated::defaults(SessionType::Normal)),
            discovery,
            events: VecDeque::new(),
            header: [0; 48],
            segment: Segment::None,
            tasks: Tasks::new(config.tasks_max),
            cmd_sn: CmdSn(0),
            max_cmd_sn: CmdSn(0).minus(1),
            exp_stat_sn: StatSn(0),
            urgent: VecDeque::from([first]),
            urgent_run: 0,
            ready: VecDeque::new(),
            data_queue: VecDeque::new(),
            turn_bytes: 0,
            management: [None; limits::MANAGEMENT_MAX as usize],
            management_generation: 0,
            text: Text::default(),
            async_pending: 0,
            logout: None,
            last_received: now,
            ping: None,
            ping_generation: 0,
            login_deadline: now + config.login_timeout,
            config,
        })
    }

    /// The next event for the edge. Taking the last event of a task releases its slot.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        match &event {
            Event::Complete(Outcome { task, .. }) | Event::Failed { task, .. } => self.tasks.release(task.0),
            Event::Async(_) => self.async_pending -= 1,
            _ => {}
        }
        Some(event)
    }

    /// Whether the session is established and has not ended.
    pub fn is_full_feature(&self) -> bool {
        matches!(self.phase, Phase::FullFeature)
    }

    /// Whether no command is queued or active, and the edge has taken the event that ended each.
    pub fn is_idle(&self) -> bool {
        self.tasks.free() == self.config.tasks_max
    }

    /// Number of task slots: every [`TaskId`] is below this.
    pub fn slots(&self) -> u32 {
        self.config.tasks_max
    }

    fn on_login(&mut self, segment: &[u8]) -> Result<(), Fatal> {
        let Phase::Login(login) = &mut self.phase else { return Err(Fatal::Closed) };
        let Ok(response) = LoginResponse::parse(&self.header) else {
            let error = LoginError::Protocol("not a login response");
            let fatal = Fatal::Login(error.to_string());
            self.events.push_back(Event::LoginFailed(error));
            self.phase = Phase::Over;
            return Err(fatal);
        };
        if !self.urgent.is_empty() {
            return Err(Fatal::Protocol("login response before the request"));
        }
        match login.receive(&response, segment) {
            Ok(login::Step::Send(request)) => self.urgent.push_back(Control::Login(request)),
            Ok(login::Step::Complete(complete)) => {
                self.phase = Phase::FullFeature;
                self.parameters = Parameters::from(&complete.negotiated);
                let segment_max = &mut self.parameters.send_segment_max;
                *segment_max = self.config.segment_max.min(*segment_max);
                self.cmd_sn = complete.cmd_sn;
                self.max_cmd_sn = complete.cmd_sn.minus(1);
                self.on_window(complete.exp_cmd_sn, complete.max_cmd_sn);
                self.exp_stat_sn = complete.exp_stat_sn;
                self.events.push_back(Event::LoggedIn(complete));
            }
            Ok(login::Step::Redirect(redirect)) => {
                self.phase = Phase::Over;
                self.events.push_back(Event::Redirect(redirect));
            }
            Err(error) => {
                self.phase = Phase::Over;
                let fatal = Fatal::Login(error.to_string());
                self.events.push_back(Event::LoginFailed(error));
                return Err(fatal);
            }
        }
        Ok(())
    }

    /// Advances ExpStatSN to the StatSN after the newest status (§4.2.2.2). A gap would mean a lost PDU, which TCP and
    /// the fatal header digest error exclude; it is no error here, because some targets skip numbers.
    fn on_stat_sn(&mut self, stat_sn: StatSn) {
        if stat_sn.next().follows(self.exp_stat_sn) {
            self.exp_stat_sn = stat_sn.next();
        }
    }

    fn on_full_feature(&mut self) -> Result<(), Fatal> {
        let bhs = Bhs(&self.header);
        let length = bhs.data_segment_length();
        if length > 0 {
            self.segment = Segment::Discard;
        }
        let opcode = bhs.opcode().map_err(|_| Fatal::Protocol("unknown opcode"))?;
        if !opcode.is_from_target() {
            return Err(Fatal::Protocol("a PDU that only initiators send"));
        }
        let (_, exp_cmd_sn, max_cmd_sn) = get_sns(&self.header);
        self.on_window(exp_cmd_sn, max_cmd_sn);
        match opcode {
            Opcode::DataIn => self.on_data_in(),
            Opcode::ScsiResponse => self.on_response(),
            Opcode::R2t => self.on_r2t(),
            Opcode::NopIn => self.on_nop_in(),
            Opcode::TmResponse => self.on_management_response(),
            Opcode::TextResponse => self.on_text_header(),
            Opcode::LogoutResponse => self.on_logout_response(),
            Opcode::AsyncMessage if length > 0 => {
                self.segment = Segment::Async;
                Ok(())
            }
            Opcode::AsyncMessage => self.on_async(&[]),
            Opcode::Reject if length > 0 => {
                self.segment = Segment::Reject;
                Ok(())
            }
            Opcode::Reject => self.on_reject(&[]),
            _ => Err(Fatal::Protocol("login response in the full feature phase")),
        }
    }
}

impl Machine for Connection {
    fn receive_digests(&self) -> Digests {
        if matches!(self.phase, Phase::Login(_)) { Digests::default() } else { self.parameters.digests }
    }

    fn data_segment_max(&self) -> u32 {
        match self.phase {
            Phase::Login(_) => limits::LOGIN_SEGMENT_MAX,
            Phase::FullFeature | Phase::Over => self.parameters.receive_segment_max,
        }
    }

    fn on_header(&mut self, bhs: &[u8; 48], _ahs: &[u8], now: Duration) -> Result<(), Fatal> {
        self.last_received = now;
        self.header = *bhs;
        self.segment = Segment::None;
        let length = Bhs(bhs).data_segment_length();
        if length > self.data_segment_max() {
            return Err(Fatal::Protocol("data segment above MaxRecvDataSegmentLength"));
        }
        match self.phase {
            Phase::Login(_) if length > 0 => {
                self.segment = Segment::Login;
                Ok(())
            }
            Phase::Login(_) => self.on_login(&[]),
            Phase::FullFeature => self.on_full_feature(),
            Phase::Over => Err(Fatal::Closed),
        }
    }

    fn on_header_digest_error(&mut self) -> Fatal {
        Fatal::HeaderDigest
    }

    fn placement(&self) -> Placement {
        match self.segment {
            Segment::None => Placement::Nothing,
            Segment::Discard => Placement::Discard,
            Segment::DataIn { slot, offset, length } => {
                Placement::Task { task: TaskId(slot), offset, length }
            }
            Segment::Login
            | Segment::Sense { .. }
            | Segment::Ping
            | Segment::Text
            | Segment::Async
            | Segment::Reject => Placement::Inline,
        }
    }

    fn on_data(&mut self, data: Received<'_>, now: Duration) -> Result<(), Fatal> {
        self.last_received = now;
        let bytes = match data {
            Received::DigestError => return Err(Fatal::DataDigest("a PDU from the target")),
            Received::Inline(bytes) => bytes,
            Received::Placed | Received::Discarded => &[],
        };
        match std::mem::replace(&mut self.segment, Segment::None) {
            Segment::None | Segment::Discard => Ok(()),
            Segment::Login => self.on_login(bytes),
            Segment::Sense { slot } => self.on_sense(slot, bytes),
            Segment::DataIn { slot, length, .. } => self.on_data_in_placed(slot, length),
            Segment::Ping => self.on_ping_data(bytes),
            Segment::Text => self.on_text(bytes),
            Segment::Async => self.on_async(bytes),
            Segment::Reject => self.on_reject(bytes),
        }
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        self.next_transmit()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        if matches!(self.phase, Phase::Login(_)) {
            return Some(self.login_deadline);
        }
        if !self.is_full_feature() {
            return None;
        }
        let ping = match (self.ping, self.config.ping_interval) {
            (Some((_, deadline)), _) => Some(deadline),
            (None, Some(interval)) => Some(self.last_received + interval),
            (None, None) => None,
        };
        [ping, self.logout].into_iter().flatten().min()
    }

    fn on_timeout(&mut self, now: Duration) -> Result<(), Fatal> {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return Ok(());
        }
        if matches!(self.phase, Phase::Login(_)) {
            return Err(Fatal::LoginTimeout);
        }
        if self.logout.is_some_and(|due| now >= due) {
            return Err(Fatal::LogoutTimeout);
        }
        match self.ping {
            // Any PDU from the target proves that it is alive; its NOP-In may be queued behind much data.
            Some((itt, _)) if self.last_received + self.config.ping_timeout > now => {
                self.ping = Some((itt, self.last_received + self.config.ping_timeout));
                Ok(())
            }
            Some(_) => Err(Fatal::PingTimeout),
            None => {
                self.ping(now);
                Ok(())
            }
        }
    }
}
