//! Text requests at the target: SendTargets, and the keys that are permitted in the full feature phase.
//!
//! RFC 7143 §11.10, Appendix C. One exchange at a time; a new one discards an unfinished one.

use super::transmit::Control;
use super::{Connection, Event, Segment};
use crate::limits::{TEXT_REQUEST_MAX, TEXT_SEGMENT_MAX};
use crate::machine::{Fatal, TargetRecord};
use crate::name::IscsiName;
use crate::params::{SEGMENT_LENGTH_MAX, SEGMENT_LENGTH_MIN};
use crate::text::{self, Collector, NOT_UNDERSTOOD, REJECT, Segments};
use crate::wire::{Itt, RejectReason, TextRequest, Ttt};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All that the initiator may access; only in discovery sessions.
    All,
    This,
    Named(IscsiName),
}

/// Effect of a key in a text request of the full feature phase. A key that is not in the table has none.
///
/// No key needs a check of access rights here: the edge selects the targets for SendTargets among those to which the
/// initiator may log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Appendix C: all targets in a discovery session, the session's own target in a normal session, or one by name.
    Targets,
    /// §13.12: declared, not negotiated, in any phase.
    Declare,
    /// Fixed by the login for the lifetime of the session (§6.2: "not renegotiated").
    Settled,
}

const KEYS: [(&str, Use); 29] = [
    ("SendTargets", Use::Targets),
    ("MaxRecvDataSegmentLength", Use::Declare),
    ("AuthMethod", Use::Settled),
    ("CHAP_A", Use::Settled),
    ("CHAP_I", Use::Settled),
    ("CHAP_C", Use::Settled),
    ("CHAP_N", Use::Settled),
    ("CHAP_R", Use::Settled),
    ("DataDigest", Use::Settled),
    ("DataPDUInOrder", Use::Settled),
    ("DataSequenceInOrder", Use::Settled),
    ("DefaultTime2Retain", Use::Settled),
    ("DefaultTime2Wait", Use::Settled),
    ("ErrorRecoveryLevel", Use::Settled),
    ("FirstBurstLength", Use::Settled),
    ("HeaderDigest", Use::Settled),
    ("ImmediateData", Use::Settled),
    ("InitialR2T", Use::Settled),
    ("InitiatorAlias", Use::Settled),
    ("InitiatorName", Use::Settled),
    ("MaxBurstLength", Use::Settled),
    ("MaxConnections", Use::Settled),
    ("MaxOutstandingR2T", Use::Settled),
    ("SessionType", Use::Settled),
    ("TargetAlias", Use::Settled),
    ("TargetName", Use::Settled),
    ("TargetPortalGroupTag", Use::Settled),
    ("TaskReporting", Use::Settled),
    ("iSCSIProtocolLevel", Use::Settled),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TextId(u32);

#[derive(Debug, Default)]
pub(super) struct Text {
    /// Counts exchanges; its value is also the Target Transfer Tag.
    exchange: u32,
    /// Tag of the exchange in which the next request of the initiator is expected.
    open: Option<Itt>,
    collector: Collector,
    outgoing: Segments,
    /// Answers to the other keys, while the edge looks up targets.
    answers: Option<Vec<u8>>,
    is_final: bool,
}

impl Connection {
    pub(super) fn on_text_header(&mut self) -> Result<(), Fatal> {
        let immediate = crate::wire::Bhs(&self.header).immediate();
        let cmd_sn = crate::wire::CmdSn(crate::wire::get_u32(&self.header, crate::wire::field::CMD_SN));
        if !self.admit(immediate, cmd_sn)? {
            return Ok(());
        }
        match TextRequest::parse(&self.header) {
            Ok(request) if request.itt.is_reserved() => self.reject(RejectReason::InvalidPduField),
            Ok(request) if request.data_segment_length > 0 => {
                self.segment = Segment::Text;
                Ok(())
            }
            Ok(_) => self.on_text(&[]),
            Err(_) => self.reject(RejectReason::InvalidPduField),
        }
    }

    pub(super) fn on_text(&mut self, segment: &[u8]) -> Result<(), Fatal> {
        let Ok(request) = TextRequest::parse(&self.header) else {
            return self.reject(RejectReason::InvalidPduField);
        };
        if request.ttt.is_reserved() {
            let exchange = self.text.exchange.wrapping_add(1) & 0x7fff_ffff;
            self.text = Text { exchange, ..Text::default() };
        } else if self.text.open != Some(request.itt) || request.ttt.0 != self.text.exchange {
            return self.reject(RejectReason::InvalidPduField);
        }
        self.text.open = None;
        self.text.is_final = request.is_final;
        if self.text.outgoing.has_more() {
            // §6.2: while the target's C bit is set, the initiator sends only empty requests.
            if !segment.is_empty() || request.continues {
                self.text.outgoing = Segments::default();
                return self.reject(RejectReason::ProtocolError);
            }
            return self.send_text(request.itt);
        }
        match self.text.collector.push(segment, request.continues, TEXT_REQUEST_MAX) {
            Ok(Some(text)) => self.on_whole_text(request.itt, &text),
            Ok(None) => self.send_text(request.itt),
            Err(_) => self.reject(RejectReason::InvalidPduField),
        }
    }

    fn on_whole_text(&mut self, itt: Itt, whole: &[u8]) -> Result<(), Fatal> {
        let Ok(pairs) = text::parse(whole) else {
            return self.reject(RejectReason::InvalidPduField);
        };
        let mut answers = Vec::new();
        let mut scope = None;
        for pair in pairs {
            match KEYS.iter().find(|(key, _)| *key == pair.key).map(|(_, allowed)| allowed) {
                Some(Use::Targets) => {
                    let requested = match pair.value {
                        "All" if self.discovery => Some(Scope::All),
                        "" if !self.discovery => Some(Scope::This),
                        name => IscsiName::parse(name).ok().map(Scope::Named),
                    };
                    match requested {
                        Some(requested) if scope.is_none() => scope = Some(requested),
                        _ => text::emit(pair.key, REJECT, &mut answers),
                    }
                }
                Some(Use::Declare) => {
                    let length = text::parse_number(pair.value).and_then(|length| u32::try_from(length).ok());
                    match length {
                        Some(length) if (SEGMENT_LENGTH_MIN..=SEGMENT_LENGTH_MAX).contains(&length) => {
                            self.limit_segments(length);
                        }
                        _ => text::emit(pair.key, REJECT, &mut answers),
                    }
                }
                Some(Use::Settled) => text::emit(pair.key, REJECT, &mut answers),
                None => text::emit(pair.key, NOT_UNDERSTOOD, &mut answers),
            }
        }
        match scope {
            Some(scope) => {
                self.text.answers = Some(answers);
                self.text.open = Some(itt);
                let request = TextId(self.text.exchange);
                self.events.push_back(Event::SendTargets { request, scope });
                Ok(())
            }
            None => {
                self.text.outgoing = Segments::new(answers);
                self.send_text(itt)
            }
        }
    }

    /// Answers [`Event::SendTargets`] with the targets that this initiator may access; the list may be empty. Ignored
    /// if the initiator has started another exchange.
    pub fn send_targets(&mut self, request: TextId, targets: &[TargetRecord]) {
        if request.0 != self.text.exchange {
            return;
        }
        let (Some(mut answer), Some(itt)) = (self.text.answers.take(), self.text.open.take()) else {
            return;
        };
        for target in targets {
            text::emit("TargetName", target.name.as_str(), &mut answer);
            for address in &target.addresses {
                text::emit("TargetAddress", &address.to_string(), &mut answer);
            }
        }
        self.text.outgoing = Segments::new(answer);
        if self.send_text(itt).is_err() {
            self.events.push_back(Event::Close);
        }
    }

    /// Sets the initiator's MaxRecvDataSegmentLength, bytes.
    pub(super) fn limit_segments(&mut self, length: u32) {
        self.parameters.send_segment_max = length.min(self.config.segment_max);
    }

    /// Queues the next text response: a segment of the answer, or an empty one that requests more text.
    fn send_text(&mut self, itt: Itt) -> Result<(), Fatal> {
        let segment_max = self.parameters.send_segment_max.min(TEXT_SEGMENT_MAX) as usize;
        let (segment, continues) = self.text.outgoing.next_segment(segment_max);
        let data = segment.to_vec();
        let is_final = self.text.is_final && !continues && !self.text.collector.is_partial();
        let ttt = if is_final { Ttt::RESERVED } else { Ttt(self.text.exchange) };
        self.text.open = (!is_final).then_some(itt);
        self.push_control(Control::Text { is_final, continues, itt, ttt, data })
    }
}
