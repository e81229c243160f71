//! The target's side of the outer login.
//!
//! Rules for the edge: drain [`Exchange::poll_event`] after each call that takes input. Answer [`Event::Ordinary`] with
//! [`Exchange::decline`] or [`Exchange::refuse`]; [`Event::Offered`] with these or [`Exchange::choose`];
//! [`Event::Message`] with [`Exchange::answer`] or [`Exchange::refuse`]. After a refusal, and after a [`Fatal`], the
//! edge sends what `poll_transmit` still holds and closes the connection. Once an answer has been handed out, the next
//! byte in either direction belongs to a record.

use std::time::Duration;

use super::{
    Choice, Keys, Line, METHOD, NONCE, NONCE_BYTES, PATTERN, Pattern, SUITE, Side, Transcript, UNIT,
    Violation, check_flags, emit_message, is_unit, joined, names_method, parse_message,
};
use crate::machine::{Fatal, Machine, Placement, Received};
use crate::name::IscsiName;
use crate::params::SessionType;
use crate::text::{self, parse_list};
use crate::wire::{Isid, LoginRequest, LoginResponse, LoginStatus, Stage, StatSn, VERSION};

/// The first PDU of a connection, for the machine of an ordinary login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct First {
    header: [u8; 48],
    ahs: Vec<u8>,
    segment: Vec<u8>,
}

impl First {
    /// Passes the PDU to `machine` as if it had arrived at `now`.
    pub fn replay(&self, machine: &mut impl Machine, now: Duration) -> Result<(), Fatal> {
        machine.on_header(&self.header, &self.ahs, now)?;
        match machine.placement() {
            Placement::Nothing => Ok(()),
            Placement::Inline => machine.on_data(Received::Inline(&self.segment), now),
            Placement::Discard | Placement::Task { .. } => machine.on_data(Received::Discarded, now),
        }
    }
}

/// What an initiator offers: claimed by the initiator, not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offered {
    pub initiator_name: IscsiName,
    pub isid: Isid,
    pub cid: u16,
    pub session_type: SessionType,
    /// TargetName; present in normal sessions and only there.
    pub target_name: Option<IscsiName>,
    /// Suites in the initiator's order, names of graphic ASCII: 1 to [`SUITES_MAX`](super::SUITES_MAX).
    pub suites: Vec<String>,
    pub unit: u32,
    pub pattern: Pattern,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The first PDU does not request sealing, or is no login request.
    Ordinary,
    Offered(Offered),
    Message {
        /// 1 to [`MESSAGE_MAX`](super::MESSAGE_MAX) bytes.
        message: Vec<u8>,
        /// Request 1 and response 1, for the prologue of the handshake.
        transcript: Transcript,
    },
}

#[derive(Debug)]
enum Phase {
    ExpectOffer,
    /// The edge decides on the first PDU; with an offer, it may choose from its suites and unit.
    Deciding(First, Option<Offered>),
    ExpectMessage(Transcript),
    Answering,
    Over,
}

#[derive(Debug)]
pub struct Exchange {
    line: Line,
    phase: Phase,
    event: Option<Event>,
    /// The header of request 1; `None` if the first PDU is no login request.
    request: Option<LoginRequest>,
    stat_sn: StatSn,
}

impl Exchange {
    /// Starts on an accepted connection. `deadline` is the time by which the login must have ended.
    #[must_use]
    pub const fn new(deadline: Duration) -> Self {
        let line = Line::new(deadline);
        Self { line, phase: Phase::ExpectOffer, event: None, request: None, stat_sn: StatSn(0) }
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Whether the exchange has ended (refusal, answer, [`Exchange::decline`]); discard an answer still being computed.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Answers [`Event::Offered`]: sealed with `suite`, one of those offered, and units of `unit` bytes or the
    /// initiator's size if smaller. `nonce` must be fresh and random. Returns the parameters agreed. Panics unless that
    /// event is unanswered, if the suite was not offered, and if `unit` is no valid unit size.
    pub fn choose(&mut self, suite: &str, unit: u32, nonce: &[u8; NONCE_BYTES]) -> Choice {
        let Phase::Deciding(first, Some(offered)) = std::mem::replace(&mut self.phase, Phase::Over) else {
            panic!("no offer is unanswered");
        };
        assert!(offered.suites.iter().any(|offered| offered == suite), "suite {suite} was not offered");
        assert!(is_unit(unit), "a unit of {unit} bytes");
        let choice =
            Choice { suite: suite.to_owned(), unit: unit.min(offered.unit), pattern: offered.pattern };
        let mut segment = Vec::new();
        text::emit("AuthMethod", METHOD, &mut segment);
        text::emit(SUITE, &choice.suite, &mut segment);
        text::emit(UNIT, &choice.unit.to_string(), &mut segment);
        text::emit(PATTERN, choice.pattern.as_str(), &mut segment);
        text::emit(NONCE, &text::base64(nonce), &mut segment);
        let p1 = joined(&first.header, &first.segment);
        let header = self.respond(LoginStatus::Success, segment.clone());
        self.phase = Phase::ExpectMessage(Transcript { p1, p2: joined(&header, &segment) });
        choice
    }

    /// Answers [`Event::Ordinary`] and [`Event::Offered`]: the session will not be sealed. The returned first PDU is
    /// input for an ordinary machine, which replaces this one. Panics unless one of those events is unanswered.
    pub fn decline(&mut self) -> First {
        let Phase::Deciding(first, _) = std::mem::replace(&mut self.phase, Phase::Over) else {
            panic!("nothing to decline");
        };
        first
    }

    /// Answers [`Event::Message`] with the last unencrypted PDU.
    ///
    /// Panics unless that event is unanswered, and if the message is empty or longer than
    /// [`MESSAGE_MAX`](super::MESSAGE_MAX).
    pub fn answer(&mut self, message: &[u8]) {
        assert!(matches!(self.phase, Phase::Answering), "no message to answer");
        self.respond(LoginStatus::Success, emit_message(message));
        self.phase = Phase::Over;
    }

    /// Ends the login; callable in any phase. A first PDU that is no login request gets no response. Panics if the
    /// class of `status` is not 2 or higher.
    pub fn refuse(&mut self, status: LoginStatus) {
        assert!(status.class() > 1, "refused with {status:?}");
        if !matches!(self.phase, Phase::Over) {
            self.respond(status, Vec::new());
            self.phase = Phase::Over;
        }
    }

    /// Queues a response; replaces one that was not handed out yet. Returns its header.
    fn respond(&mut self, status: LoginStatus, segment: Vec<u8>) -> [u8; 48] {
        let Some(request) = &self.request else { return [0; 48] };
        let header = LoginResponse {
            transit: false,
            continues: false,
            csg: Stage::Security,
            nsg: Stage::Security,
            version_max: VERSION,
            version_active: VERSION,
            isid: request.isid,
            tsih: 0,
            itt: request.itt,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: request.cmd_sn,
            max_cmd_sn: request.cmd_sn,
            status,
            data_segment_length: u32::try_from(segment.len()).expect("at most a segment of a login"),
        };
        let header = header.emit();
        self.line.send(header, segment);
        header
    }

    fn on_first(&mut self, segment: &[u8]) -> Result<(), Violation> {
        let request = LoginRequest::parse(&self.line.header).ok();
        self.request = request;
        self.stat_sn = request.map_or(StatSn(0), |request| request.exp_stat_sn);
        let offered = match &request {
            Some(request) if names_method(segment) => {
                self.line.check_ahs()?;
                Some(parse_offer(request, segment)?)
            }
            _ => None,
        };
        self.event = Some(offered.clone().map_or(Event::Ordinary, Event::Offered));
        let (header, ahs) = (self.line.header, std::mem::take(&mut self.line.ahs));
        self.phase = Phase::Deciding(First { header, ahs, segment: segment.to_vec() }, offered);
        Ok(())
    }

    fn on_message(&mut self, transcript: Transcript, segment: &[u8]) -> Result<(), Violation> {
        let first = self.request.expect("it made the offer");
        let request = LoginRequest::parse(&self.line.header)?;
        self.line.check_ahs()?;
        check_flags(request.transit, request.continues, request.csg, request.tsih)?;
        for (right, field) in [
            (request.isid == first.isid, "ISID"),
            (request.cid == first.cid, "CID"),
            (request.itt == first.itt, "ITT"),
            (request.cmd_sn == first.cmd_sn, "CmdSN"),
            (request.exp_stat_sn == self.stat_sn, "ExpStatSN"),
        ] {
            if !right {
                return Err(Violation::Field(field));
            }
        }
        let message = parse_message(segment)?;
        self.event = Some(Event::Message { message, transcript });
        self.phase = Phase::Answering;
        Ok(())
    }
}

fn parse_offer(request: &LoginRequest, segment: &[u8]) -> Result<Offered, Violation> {
    check_flags(request.transit, request.continues, request.csg, request.tsih)?;
    if request.version_min > VERSION {
        return Err(Violation::Field("Version-min"));
    }
    let mut keys = Keys::parse(segment)?;
    let name = |key, value| IscsiName::parse(value).map_err(|_| Violation::Malformed(key));
    let initiator_name = name("InitiatorName", keys.take("InitiatorName")?)?;
    let session_type = match keys.take("SessionType")? {
        "Normal" => SessionType::Normal,
        "Discovery" => SessionType::Discovery,
        _ => return Err(Violation::Malformed("SessionType")),
    };
    let target_name = match session_type {
        SessionType::Normal => Some(name("TargetName", keys.take("TargetName")?)?),
        SessionType::Discovery => None,
    };
    if parse_list(keys.take("AuthMethod")?).next() != Some(METHOD) {
        return Err(Violation::Malformed("AuthMethod"));
    }
    let (suites, unit, pattern) = (keys.suites()?, keys.unit()?, keys.pattern()?);
    keys.end()?;
    let (isid, cid) = (request.isid, request.cid);
    Ok(Offered { initiator_name, isid, cid, session_type, target_name, suites, unit, pattern })
}

impl Side for Exchange {
    fn line(&self) -> &Line {
        &self.line
    }

    fn line_mut(&mut self) -> &mut Line {
        &mut self.line
    }

    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    fn on_pdu(&mut self, segment: &[u8]) -> Result<(), Fatal> {
        let result = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::ExpectOffer => self.on_first(segment),
            Phase::ExpectMessage(transcript) if self.line.queued.is_none() => {
                self.on_message(transcript, segment)
            }
            Phase::Over => return Err(Fatal::Closed),
            Phase::Deciding(..) | Phase::ExpectMessage(_) | Phase::Answering => Err(Violation::Turn),
        };
        result.map_err(|violation| {
            self.event = None;
            self.respond(LoginStatus::InitiatorError, Vec::new());
            violation.into()
        })
    }
}
