//! The target's side of a connection, which with MaxConnections=1 is its session.
//!
//! Login is embedded ([`crate::login::target`]); the full feature phase is in `command.rs` (admission, outcome, end of
//! a task), `data.rs` (Data-Out, R2T, Data-In), `management.rs`, `text.rs` and `transmit.rs` (order of transmission).
//! The module contains no SCSI beyond status and sense bytes. Read docs/internals/iscsi.md first.
//!
//! Rules for the edge:
//! - After each call that takes input or an answer, drain [`Connection::poll_event`] before any other call; drain it
//!   again after `poll_transmit` has returned `None`.
//! - A task's buffer may be freed at [`Event::TaskDone`], which follows the last transmit that names it. The edge
//!   itself keeps memory from which its socket still reads. Only an [`Event::Command`] later in the same queue reuses
//!   the slot.
//! - Every announced command gets exactly one [`Connection::complete`] or [`Connection::abort`], unless its `TaskDone`
//!   came first. The machine never ends a task that the edge works on.

use std::collections::VecDeque;
use std::time::Duration;

use crate::chap::Entropy;
use crate::limits;
use crate::login::target as login;
use crate::machine::{Digests, Fatal, Machine, Parameters, Placement, Received, TaskId, Transmit};
use crate::params::{Negotiated, SessionType};
use crate::wire::{
    Attribute, Bhs, CmdSn, LoginRequest, LoginStatus, LogoutReason, Opcode, RejectReason, StatSn, TmFunction,
    Ttt, WireError,
};

mod command;
mod data;
mod management;
mod task;
mod text;
mod transmit;

pub use crate::login::target::{
    AuthRequirement, ChapPolicy, Complete as SessionReady, Denial, Identity, Policy, Refusal,
};
pub use management::ManagementId;
pub use text::{Scope, TextId};

use management::Management;
use task::Tasks;
use text::Text;
use transmit::{Control, Urgent};

/// Step of [`Event::DataOutFront`], bytes.
pub const FRONT_BYTES: u32 = 64 << 10;

#[derive(Debug, Clone)]
pub struct Config {
    /// Command window: most tasks admitted through it at once. At least 1; [`limits::IMMEDIATE_TASKS_MAX`] slots are
    /// added, and the sum must not exceed [`limits::TASKS_MAX`].
    pub tasks_max: u32,
    /// Most bytes that R2Ts have solicited and that have not arrived, over all tasks.
    pub solicited_bytes_max: u32,
    /// Longest data segment to send, bytes, even if the initiator accepts longer ones.
    pub segment_max: u32,
    /// Time without a received PDU after which the target pings the initiator; `None`: no pings.
    pub ping_interval: Option<Duration>,
    pub ping_timeout: Duration,
    pub login_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tasks_max: 512,
            solicited_bytes_max: limits::SOLICITED_BYTES_MAX,
            segment_max: u32::MAX,
            ping_interval: Some(Duration::from_secs(15)),
            ping_timeout: Duration::from_secs(15),
            login_timeout: Duration::from_secs(15),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    pub task: TaskId,
    pub lun: u64,
    /// The first 16 bytes of the CDB, zero-padded; [`Connection::extended_cdb`] returns the rest of a longer one.
    pub cdb: [u8; 16],
    pub attribute: Attribute,
    /// I bit: the command was admitted outside the command window.
    pub immediate: bool,
    pub read: bool,
    pub write: bool,
    /// Expected Data Transfer Length in the direction of the command, bytes; 0 without a direction. With both
    /// directions it is the length of the Data-Out.
    pub expected: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completion<'a> {
    pub status: u8,
    pub sense: &'a [u8],
    /// Bytes to send from the start of the task's buffer; the part beyond the initiator's expectation is not sent.
    pub data_in: u32,
    /// Bytes that the command transferred or could have in its direction, for the residual (RFC 7143 §11.4.5).
    pub transfer: u64,
}

/// A request or result that the edge must handle.
#[derive(Debug)]
pub enum Event {
    /// An initiator logs in. The edge answers with [`Connection::identify`].
    Identify(Identity),
    /// The login negotiation is complete. The edge ends the session that this one replaces (§6.3.5), then calls
    /// [`Connection::accept_session`] or [`Connection::refuse_session`].
    SessionReady(Box<SessionReady>),
    /// The machine or [`Connection::identify`] refused the login; [`Event::Close`] follows the response.
    LoginRefused {
        status: LoginStatus,
        /// Why authentication failed, if that was the reason.
        denial: Option<Denial>,
    },
    /// A command. The edge calls [`Connection::want_data_out`] before it calls `placement`, or [`Connection::complete`]
    /// at any time.
    Command(Command),
    /// The first `bytes` of the Data-Out that the edge requested, and not all, are in the task's buffer; reported each time
    /// they have become [`FRONT_BYTES`] more.
    DataOutFront { task: TaskId, bytes: u32 },
    /// All Data-Out that the edge requested is in the task's buffer.
    DataOut { task: TaskId },
    /// The task has ended; the machine will not name it again.
    TaskDone { task: TaskId },
    /// A task management function; the edge answers with [`Connection::complete_management`]. If the initiator is
    /// allowed to execute it, the edge first calls [`Connection::carry_out`], which marks the affected tasks of this
    /// session aborted ([`Connection::is_aborted`]).
    TaskManagement {
        request: ManagementId,
        function: TmFunction,
        /// Logical unit; meaningful for functions that address one.
        lun: u64,
        /// ABORT TASK: the task to abort, on which the edge works.
        referenced: Option<TaskId>,
    },
    /// SendTargets; the edge answers with [`Connection::send_targets`].
    SendTargets { request: TextId, scope: Scope },
    /// The initiator logs out. All tasks are marked aborted; the response waits until the edge has ended each.
    Logout { reason: LogoutReason },
    /// The last PDU is queued: send what `poll_transmit` returned, then close the connection.
    Close,
}

#[derive(Debug)]
enum Phase {
    Login {
        login: Box<login::Login>,
        waiting: Waiting,
    },
    FullFeature,
    /// After a logout or a refused login: no PDU is answered.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Request,
    Identity,
    Session,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    None,
    Discard,
    Login,
    Command { slot: u32, length: u32 },
    DataOut { slot: u32, offset: u32, length: u32 },
    Ping,
    Text,
}

impl Segment {
    fn task(self) -> Option<u32> {
        match self {
            Self::Command { slot, .. } | Self::DataOut { slot, .. } => Some(slot),
            _ => None,
        }
    }
}

/// A connection and its session: a [`Machine`] whose events the edge answers; see the rules of this module. Between
/// calls it holds the login, tasks, PDUs to send, and at most one partly received PDU.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    phase: Phase,
    parameters: Parameters,
    discovery: bool,
    cid: u16,
    events: VecDeque<Event>,
    header: [u8; 48],
    segment: Segment,
    tasks: Tasks,
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    stat_sn: StatSn,
    /// PDUs without task data, in order of transmission.
    urgent: VecDeque<Urgent>,
    /// Number of [`Urgent::Control`] entries in `urgent`.
    controls: usize,
    urgent_run: u32,
    /// Tasks with Data-In to send; the first one has its turn.
    data_queue: VecDeque<u32>,
    turn_bytes: u32,
    /// Tasks with bytes still to solicit.
    r2t_queue: VecDeque<u32>,
    r2t_generation: u32,
    solicited_bytes: u64,
    management: [Option<Management>; limits::MANAGEMENT_MAX as usize],
    text: Text,
    /// Tag of a logout request that waits for the end of the last task.
    logout: Option<crate::wire::Itt>,
    logout_answered: bool,
    last_received: Duration,
    ping: Option<(Ttt, Duration)>,
    ping_tag: u32,
    login_deadline: Duration,
}

impl Connection {
    /// Starts on an accepted connection. `entropy` is fresh from the system's generator: the challenges of the login
    /// are derived from it. Panics if `config.tasks_max` is out of range.
    pub fn new(config: Config, entropy: Entropy, now: Duration) -> Self {
        let slots = config.tasks_max.saturating_add(limits::IMMEDIATE_TASKS_MAX);
        assert!(config.tasks_max > 0 && slots <= limits::TASKS_MAX, "tasks_max {}", config.tasks_max);
        let login_config = login::Config { command_window: config.tasks_max, ..login::Config::default() };
        let login = Box::new(login::Login::new(login_config, entropy));
        Self {
            phase: Phase::Login { login, waiting: Waiting::Request },
            parameters: Parameters::from(&Negotiated::defaults(SessionType::Normal)),
            discovery: false,
            cid: 0,
            events: VecDeque::new(),
            header: [0; 48],
            segment: Segment::None,
            tasks: Tasks::new(slots),
            exp_cmd_sn: CmdSn(0),
            max_cmd_sn: CmdSn(0),
            stat_sn: StatSn(0),
            urgent: VecDeque::new(),
            controls: 0,
            urgent_run: 0,
            data_queue: VecDeque::new(),
            turn_bytes: 0,
            r2t_queue: VecDeque::new(),
            r2t_generation: 0,
            solicited_bytes: 0,
            management: Default::default(),
            text: Text::default(),
            logout: None,
            logout_answered: false,
            last_received: now,
            ping: None,
            ping_tag: 0,
            login_deadline: now + config.login_timeout,
            config,
        }
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the session is established and has not ended.
    pub fn is_full_feature(&self) -> bool {
        matches!(self.phase, Phase::FullFeature)
    }

    /// Number of task slots: every [`TaskId`] is below this.
    pub fn slots(&self) -> u32 {
        self.config.tasks_max + limits::IMMEDIATE_TASKS_MAX
    }

    /// Answers [`Event::Identify`]. Panics unless that event is unanswered.
    pub fn identify(&mut self, answer: Result<Policy, Refusal>) {
        let Phase::Login { login, waiting: waiting @ Waiting::Identity } = &mut self.phase else {
            panic!("no Identify is unanswered");
        };
        *waiting = Waiting::Request;
        let step = login.identify(answer);
        self.on_login_step(step);
    }

    /// Answers [`Event::SessionReady`] and establishes the session. `tsih` is not 0. Panics unless that event is
    /// unanswered.
    pub fn accept_session(&mut self, tsih: u16) {
        let Phase::Login { login, waiting: Waiting::Session } = &mut self.phase else {
            panic!("no session to accept");
        };
        let response = login.accept(tsih);
        self.phase = Phase::FullFeature;
        self.push_login(response);
    }

    /// Answers [`Event::SessionReady`], or ends a login in any other phase; [`Event::Close`] follows the response.
    pub fn refuse_session(&mut self, status: LoginStatus) {
        if let Phase::Login { login, .. } = &mut self.phase {
            let response = login.refuse(status);
            self.phase = Phase::Over;
            self.push_login(response);
        }
    }

    fn on_login(&mut self, segment: &[u8]) -> Result<(), Fatal> {
        let request = match LoginRequest::parse(&self.header) {
            Ok(request) => request,
            Err(WireError::UnexpectedOpcode(_) | WireError::UnknownOpcode(_)) => {
                return Err(Fatal::Protocol("not a login request during login"));
            }
            Err(_) => return Err(Fatal::Protocol("malformed login request")),
        };
        let Phase::Login { login, waiting: Waiting::Request } = &mut self.phase else {
            return Err(Fatal::Protocol("login request out of turn"));
        };
        let step = login.receive(&request, segment);
        self.on_login_step(step);
        Ok(())
    }

    fn on_login_step(&mut self, step: login::Step) {
        let Phase::Login { login, waiting } = &mut self.phase else { unreachable!("a step of a login") };
        match step {
            login::Step::Respond(response) => self.push_login(response),
            login::Step::Identify(identity) => {
                *waiting = Waiting::Identity;
                self.events.push_back(Event::Identify(identity));
            }
            login::Step::Complete(complete) => {
                *waiting = Waiting::Session;
                self.take_over(&complete);
                self.events.push_back(Event::SessionReady(complete));
            }
            login::Step::Refused(response) => {
                let denial = login.denial().cloned();
                self.events.push_back(Event::LoginRefused { status: response.header.status, denial });
                self.phase = Phase::Over;
                self.push_login(response);
            }
        }
    }

    fn take_over(&mut self, complete: &SessionReady) {
        self.parameters = Parameters::from(&complete.negotiated);
        self.limit_segments(self.parameters.send_segment_max);
        self.discovery = complete.negotiated.session_type == SessionType::Discovery;
        self.cid = complete.identity.cid;
        self.exp_cmd_sn = complete.exp_cmd_sn;
        self.max_cmd_sn = complete.max_cmd_sn;
        self.stat_sn = complete.stat_sn;
    }

    fn on_full_feature(&mut self, ahs: &[u8]) -> Result<(), Fatal> {
        let bhs = Bhs(&self.header);
        if bhs.data_segment_length() > 0 {
            self.segment = Segment::Discard;
        }
        let (immediate, cmd_sn) =
            (bhs.immediate(), CmdSn(crate::wire::get_u32(&self.header, crate::wire::field::CMD_SN)));
        match bhs.opcode() {
            Ok(Opcode::ScsiCommand) => self.on_command(ahs),
            Ok(Opcode::DataOut) => self.on_data_out(),
            Ok(Opcode::NopOut) => self.on_nop_out(),
            Ok(Opcode::TmRequest) => self.on_management(),
            Ok(Opcode::TextRequest) => self.on_text_header(),
            Ok(Opcode::LogoutRequest) => self.on_logout(),
            // §11.16: ErrorRecoveryLevel 0 retransmits nothing.
            Ok(Opcode::Snack) => self.reject(RejectReason::SnackReject),
            Ok(Opcode::LoginRequest) => {
                self.reject(RejectReason::ProtocolError)?;
                Err(Fatal::Protocol("login request in the full feature phase"))
            }
            Ok(_) => {
                self.reject(RejectReason::ProtocolError)?;
                Err(Fatal::Protocol("a PDU that only targets send"))
            }
            Err(_) => {
                // A request with an unknown opcode uses up its CmdSN too.
                if self.admit(immediate, cmd_sn)? {
                    self.reject(RejectReason::CommandNotSupported)
                } else {
                    Ok(())
                }
            }
        }
    }
}

impl Machine for Connection {
    fn receive_digests(&self) -> Digests {
        if matches!(self.phase, Phase::Login { .. }) { Digests::default() } else { self.parameters.digests }
    }

    fn data_segment_max(&self) -> u32 {
        match self.phase {
            Phase::Login { .. } => limits::LOGIN_SEGMENT_MAX,
            Phase::FullFeature | Phase::Over => self.parameters.receive_segment_max,
        }
    }

    fn on_header(&mut self, bhs: &[u8; 48], ahs: &[u8], now: Duration) -> Result<(), Fatal> {
        self.last_received = now;
        self.header = *bhs;
        self.segment = Segment::None;
        let length = Bhs(bhs).data_segment_length();
        if length > self.data_segment_max() {
            return Err(Fatal::Protocol("data segment above MaxRecvDataSegmentLength"));
        }
        match self.phase {
            Phase::Login { .. } if length > 0 => {
                self.segment = Segment::Login;
                Ok(())
            }
            Phase::Login { .. } => self.on_login(&[]),
            Phase::FullFeature if self.logout.is_none() => self.on_full_feature(ahs),
            // After a logout request the initiator may send nothing; PDUs received then are discarded.
            Phase::FullFeature | Phase::Over => {
                if length > 0 {
                    self.segment = Segment::Discard;
                }
                Ok(())
            }
        }
    }

    fn on_header_digest_error(&mut self) -> Fatal {
        Fatal::HeaderDigest
    }

    fn placement(&self) -> Placement {
        match self.segment {
            Segment::None => Placement::Nothing,
            Segment::Discard => Placement::Discard,
            Segment::Login | Segment::Ping | Segment::Text => Placement::Inline,
            Segment::Command { slot, length } => self.place(slot, 0, length),
            Segment::DataOut { slot, offset, length } => self.place(slot, offset, length),
        }
    }

    fn on_data(&mut self, data: Received<'_>, now: Duration) -> Result<(), Fatal> {
        self.last_received = now;
        let damaged = data == Received::DigestError;
        let placed = data == Received::Placed;
        let bytes = if let Received::Inline(bytes) = data { bytes } else { &[] };
        match std::mem::replace(&mut self.segment, Segment::None) {
            Segment::None => Ok(()),
            Segment::Command { slot, length } => self.on_command_data(slot, 0, length, placed, damaged),
            Segment::DataOut { slot, offset, length } => {
                self.on_command_data(slot, offset, length, placed, damaged)
            }
            // §7.8: reject the PDU and discard it. Such a PDU belongs to no task whose data would be missing.
            Segment::Discard | Segment::Ping | Segment::Text if damaged && self.is_full_feature() => {
                self.reject(RejectReason::DataDigestError)
            }
            Segment::Discard => Ok(()),
            Segment::Login => self.on_login(bytes),
            Segment::Ping => self.on_ping_data(bytes),
            Segment::Text => self.on_text(bytes),
        }
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        self.next_transmit()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        match (&self.phase, self.ping, self.config.ping_interval) {
            (Phase::Login { .. }, ..) => Some(self.login_deadline),
            (Phase::FullFeature, Some((_, deadline)), _) => Some(deadline),
            (Phase::FullFeature, None, Some(interval)) if !self.discovery => {
                Some(self.last_received + interval)
            }
            _ => None,
        }
    }

    fn on_timeout(&mut self, now: Duration) -> Result<(), Fatal> {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return Ok(());
        }
        match (&self.phase, self.ping) {
            (Phase::Login { .. }, _) => Err(Fatal::LoginTimeout),
            // Any PDU from the initiator proves that it is alive; its NOP-Out may be queued behind much data.
            (_, Some((ttt, _))) if self.last_received + self.config.ping_timeout > now => {
                self.ping = Some((ttt, self.last_received + self.config.ping_timeout));
                Ok(())
            }
            (_, Some(_)) => Err(Fatal::PingTimeout),
            (_, None) => {
                self.ping_tag = self.ping_tag.wrapping_add(1) & 0x7fff_ffff;
                let ttt = Ttt(self.ping_tag);
                self.ping = Some((ttt, now + self.config.ping_timeout));
                self.push_control(Control::Ping { ttt })
            }
        }
    }
}
