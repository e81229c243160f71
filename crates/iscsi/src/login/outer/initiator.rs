//! The initiator's side of the outer login.
//!
//! Rules for the edge: drain [`Exchange::poll_event`] after each call that takes input; answer [`Event::Chosen`] with
//! [`Exchange::send_message`]. After [`Event::Answer`] the next byte in either direction belongs to a record. After any
//! other event, and after a [`Fatal`], the edge closes the connection.

use std::time::Duration;

use super::{
    Choice, Keys, Line, METHOD, PATTERN, Pattern, SUITE, SUITES_MAX, Side, Transcript, UNIT, Violation,
    check_flags, emit_message, is_suite, is_unit, joined, names_method, parse_message,
};
use crate::login::initiator::{Redirect, redirect};
use crate::machine::Fatal;
use crate::name::IscsiName;
use crate::params::SessionType;
use crate::text;
use crate::wire::{CmdSn, Isid, Itt, LoginRequest, LoginResponse, LoginStatus, Stage, StatSn, VERSION};

/// The names, suites, unit and pattern of the initiator's request. They travel unencrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub initiator_name: IscsiName,
    pub isid: Isid,
    pub cid: u16,
    pub session_type: SessionType,
    /// TargetName; present in normal sessions and only there.
    pub target_name: Option<IscsiName>,
    /// Whether AuthMethod lists ordinary methods after [`METHOD`], for a target that does not seal: policy `offer`.
    pub plain: bool,
    /// Suites, most preferred first: 1 to [`SUITES_MAX`] different ones.
    pub suites: Vec<String>,
    /// Unit size: a power of two from [`UNIT_MIN`](super::UNIT_MIN) to [`UNIT_MAX`](super::UNIT_MAX) bytes.
    pub unit: u32,
    pub pattern: Pattern,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The target seals, with these parameters. The edge answers with [`Exchange::send_message`].
    Chosen {
        choice: Choice,
        /// Request 1 and response 1, for the prologue of the handshake.
        transcript: Transcript,
    },
    /// The target's handshake message. If it verifies, records follow.
    Answer(Vec<u8>),
    /// The target does not seal, or not with this initiator: it chose another method or none.
    Declined,
    /// The target refused with this status. After the initiator's message, 0201 means that one of the keys is wrong.
    Refused(LoginStatus),
    /// The target redirects. The response is not authenticated: the target at the new address must have the same key.
    Redirect(Redirect),
}

#[derive(Debug)]
enum Phase {
    ExpectChoice,
    Chosen,
    ExpectAnswer,
    Over,
}

/// One outer login of an initiator; for its events and calls see the module.
#[derive(Debug)]
pub struct Exchange {
    line: Line,
    phase: Phase,
    event: Option<Event>,
    offer: Offer,
    /// The header of request 1, which request 2 repeats.
    request: LoginRequest,
    p1: Vec<u8>,
}

impl Exchange {
    /// Starts on a new connection; request 1 is ready in `poll_transmit`. `deadline` is the time by which the login
    /// must have ended. Panics if the offer violates a bound of its fields.
    #[must_use]
    pub fn new(offer: Offer, deadline: Duration) -> Self {
        let normal = offer.session_type == SessionType::Normal;
        assert_eq!(normal, offer.target_name.is_some(), "the target's name is sent in normal sessions");
        assert!((1..=SUITES_MAX).contains(&offer.suites.len()), "{} suites", offer.suites.len());
        assert!(offer.suites.iter().all(|suite| is_suite(suite)), "suites {:?}", offer.suites);
        assert!(is_unit(offer.unit), "a unit of {} bytes", offer.unit);
        let mut segment = Vec::new();
        text::emit("InitiatorName", offer.initiator_name.as_str(), &mut segment);
        text::emit("SessionType", offer.session_type.as_str(), &mut segment);
        if let Some(target) = &offer.target_name {
            text::emit("TargetName", target.as_str(), &mut segment);
        }
        let others = if offer.plain { ",CHAP,None" } else { "" };
        text::emit("AuthMethod", &format!("{METHOD}{others}"), &mut segment);
        text::emit(SUITE, &offer.suites.join(","), &mut segment);
        text::emit(UNIT, &offer.unit.to_string(), &mut segment);
        text::emit(PATTERN, offer.pattern.as_str(), &mut segment);
        let request = LoginRequest {
            transit: false,
            continues: false,
            csg: Stage::Security,
            nsg: Stage::Security,
            version_max: VERSION,
            version_min: VERSION,
            isid: offer.isid,
            tsih: 0,
            itt: Itt(0),
            cid: offer.cid,
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(0),
            data_segment_length: length(&segment),
        };
        let header = request.emit();
        let p1 = joined(&header, &segment);
        let mut line = Line::new(deadline);
        line.send(header, segment);
        Self { line, phase: Phase::ExpectChoice, event: None, offer, request, p1 }
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Whether the exchange has ended: no further PDU is accepted.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Answers [`Event::Chosen`] with the first message of the handshake.
    ///
    /// Panics unless that event is unanswered, and if the message is empty or longer than
    /// [`MESSAGE_MAX`](super::MESSAGE_MAX).
    pub fn send_message(&mut self, message: &[u8]) {
        assert!(matches!(self.phase, Phase::Chosen), "no target waits for a message");
        let segment = emit_message(message);
        self.request.data_segment_length = length(&segment);
        self.line.send(self.request.emit(), segment);
        self.phase = Phase::ExpectAnswer;
    }

    /// Checks the fields that every response of an outer login repeats or leaves zero.
    fn check(&self, response: &LoginResponse) -> Result<(), Violation> {
        check_flags(response.transit, response.continues, response.csg, response.tsih)?;
        self.line.check_ahs()?;
        if response.isid != self.request.isid {
            return Err(Violation::Field("ISID"));
        }
        if response.version_active != VERSION {
            return Err(Violation::Field("Version-active"));
        }
        Ok(())
    }

    /// Parses the target's choice; a value that was not offered is an error.
    fn parse_choice(&self, segment: &[u8]) -> Result<Choice, Violation> {
        let mut keys = Keys::parse(segment)?;
        if keys.take("AuthMethod")? != METHOD {
            return Err(Violation::Malformed("AuthMethod"));
        }
        let (suite, unit, pattern) = (keys.take(SUITE)?, keys.unit()?, keys.pattern()?);
        // The nonce is used only as part of the transcript.
        keys.nonce()?;
        keys.end()?;
        if !self.offer.suites.iter().any(|offered| offered == suite) {
            return Err(Violation::NotOffered(SUITE));
        }
        if unit > self.offer.unit {
            return Err(Violation::NotOffered(UNIT));
        }
        if pattern != self.offer.pattern {
            return Err(Violation::NotOffered(PATTERN));
        }
        Ok(Choice { suite: suite.to_owned(), unit, pattern })
    }
}

fn length(segment: &[u8]) -> u32 {
    u32::try_from(segment.len()).expect("at most a segment of a login")
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
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        if matches!(phase, Phase::Over) {
            return Err(Fatal::Closed);
        }
        let response = LoginResponse::parse(&self.line.header).map_err(Violation::from)?;
        if matches!(phase, Phase::Chosen) || self.line.queued.is_some() {
            return Err(Violation::Turn.into());
        }
        if response.itt != self.request.itt {
            return Err(Violation::Field("ITT").into());
        }
        if response.status != LoginStatus::Success {
            self.event = Some(match response.status {
                status if status.class() == 0 => return Err(Violation::Field("the status").into()),
                status if status.class() == 1 => Event::Redirect(
                    redirect(status, segment).map_err(|error| Fatal::Login(error.to_string()))?,
                ),
                // A target that does not support [`METHOD`] answers with this status alone.
                LoginStatus::AuthenticationFailure if matches!(phase, Phase::ExpectChoice) => Event::Declined,
                status => Event::Refused(status),
            });
            return Ok(());
        }
        let (event, next) = match phase {
            Phase::ExpectChoice if !names_method(segment) => (Event::Declined, Phase::Over),
            Phase::ExpectChoice => {
                self.check(&response)?;
                let choice = self.parse_choice(segment)?;
                self.request.exp_stat_sn = response.stat_sn.next();
                let p2 = joined(&self.line.header, segment);
                let transcript = Transcript { p1: std::mem::take(&mut self.p1), p2 };
                (Event::Chosen { choice, transcript }, Phase::Chosen)
            }
            Phase::ExpectAnswer => {
                self.check(&response)?;
                if response.stat_sn != self.request.exp_stat_sn {
                    return Err(Violation::Field("StatSN").into());
                }
                (Event::Answer(parse_message(segment)?), Phase::Over)
            }
            Phase::Chosen | Phase::Over => unreachable!("refused above"),
        };
        self.event = Some(event);
        self.phase = next;
        Ok(())
    }
}
