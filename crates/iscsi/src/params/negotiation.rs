//! The negotiation of parameters (RFC 7143 §6.2): a key that the peer offers is answered with the key's result function
//! (§13); the peer's answer to an offer is checked against that function.

use super::{
    DigestPolicy, NO_ANSWER, Negotiated, PROTOCOL_LEVEL_MAX, Params, Role, SEGMENT_LENGTH_DEFAULT,
    SEGMENT_LENGTH_MAX, SEGMENT_LENGTH_MIN, SessionType, TIME_MAX,
};
use crate::text::{
    self, IRRELEVANT, NOT_UNDERSTOOD, REJECT, boolean, parse_boolean, parse_list, parse_number,
};

/// Why a negotiation failed. The fault is the peer's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The peer sent a key twice (§6.2: renegotiation during login is a protocol error).
    #[error("{0} negotiated twice")]
    Duplicate(&'static str),
    /// The peer's answer to an offer is not a permitted result.
    #[error("{key} answered with {value:?}, which was not offered")]
    BadAnswer { key: &'static str, value: String },
    #[error("no agreement on {0}")]
    NoAgreement(&'static str),
    /// This side requires a digest, and the answer excludes it.
    #[error("{key}=CRC32C was requested, and the target answered {answer}")]
    DigestRefused { key: &'static str, answer: String },
    /// NotUnderstood for a key that every target understands, or that was not sent: the text was altered in transit.
    #[error(
        "the target answered {0}=NotUnderstood: that key was not sent, or is one that every target understands"
    )]
    NotUnderstood(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    HeaderDigest,
    DataDigest,
    MaxRecvDataSegmentLength,
    InitialR2T,
    ImmediateData,
    MaxBurstLength,
    FirstBurstLength,
    MaxOutstandingR2T,
    MaxConnections,
    DefaultTime2Wait,
    DefaultTime2Retain,
    ErrorRecoveryLevel,
    DataPDUInOrder,
    DataSequenceInOrder,
    TaskReporting,
    ProtocolLevel,
}

/// Key, name, and whether the key has a meaning in discovery sessions; indexed by `Key as usize`.
pub(super) const KEYS: [(Key, &str, bool); 16] = [
    (Key::HeaderDigest, "HeaderDigest", true),
    (Key::DataDigest, "DataDigest", true),
    (Key::MaxRecvDataSegmentLength, "MaxRecvDataSegmentLength", true),
    (Key::InitialR2T, "InitialR2T", false),
    (Key::ImmediateData, "ImmediateData", false),
    (Key::MaxBurstLength, "MaxBurstLength", false),
    (Key::FirstBurstLength, "FirstBurstLength", false),
    (Key::MaxOutstandingR2T, "MaxOutstandingR2T", false),
    (Key::MaxConnections, "MaxConnections", false),
    (Key::DefaultTime2Wait, "DefaultTime2Wait", true),
    (Key::DefaultTime2Retain, "DefaultTime2Retain", true),
    (Key::ErrorRecoveryLevel, "ErrorRecoveryLevel", true),
    (Key::DataPDUInOrder, "DataPDUInOrder", false),
    (Key::DataSequenceInOrder, "DataSequenceInOrder", false),
    (Key::TaskReporting, "TaskReporting", false),
    (Key::ProtocolLevel, "iSCSIProtocolLevel", false),
];

impl Key {
    fn name(self) -> &'static str {
        KEYS[self as usize].1
    }

    /// Whether RFC 3720 already defines the key, so that every implementation must understand it.
    const fn is_mandatory(self) -> bool {
        !matches!(self, Self::TaskReporting | Self::ProtocolLevel)
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The state of one negotiation. The login machine calls [`offer`](Self::offer) for the keys to send,
/// [`on_pair`](Self::on_pair) for each key received (in the order of [`order`] within one text), and
/// [`finish`](Self::finish) at the end of the login.
#[derive(Debug, Clone)]
pub struct Negotiation {
    role: Role,
    params: Params,
    values: Negotiated,
    /// Bits of the keys offered and not yet answered.
    awaiting: u32,
    /// Bits of the keys offered.
    offered: u32,
    /// Bits of the keys that the peer sent.
    received: u32,
    /// This side rejected a digest list since the last [`Self::take_rejected`].
    rejected: bool,
}

impl Negotiation {
    /// Starts with the defaults of §13. Panics if `params` is not valid: see [`Params::validate`].
    #[must_use]
    pub fn new(role: Role, session_type: SessionType, params: Params) -> Self {
        if let Err(error) = params.validate() {
            panic!("{error}");
        }
        let values = Negotiated::defaults(session_type);
        Self { role, params, values, awaiting: 0, offered: 0, received: 0, rejected: false }
    }

    #[must_use]
    pub const fn is_awaiting(&self) -> bool {
        self.awaiting != 0
    }

    /// Largest data segment to send during login, bytes: 8192, or less if the peer declared less.
    #[must_use]
    pub fn send_limit(&self) -> usize {
        let limit = self.values.max_send_data_segment_length.min(SEGMENT_LENGTH_DEFAULT);
        usize::try_from(limit).expect("at most 8192")
    }

    /// Whether a digest list was rejected since the last call. The login must not complete in the same exchange: a peer
    /// that cannot continue without the digest would leave a session established for nothing.
    pub const fn take_rejected(&mut self) -> bool {
        std::mem::replace(&mut self.rejected, false)
    }

    /// Appends this side's offers that were not sent before: an initiator's values; a target's
    /// MaxRecvDataSegmentLength and each key that the initiator did not send and whose default the target does not
    /// accept. A target calls this after it has taken the initiator's keys.
    pub fn offer(&mut self, text: &mut Vec<u8>) {
        for (key, name, in_discovery) in KEYS {
            let discovery = self.values.session_type == SessionType::Discovery;
            if self.offered & key.bit() != 0 || (discovery && !in_discovery) {
                continue;
            }
            let Some(value) = self.offered_value(key) else { continue };
            self.offered |= key.bit();
            if key == Key::MaxRecvDataSegmentLength {
                self.values.max_recv_data_segment_length = self.params.max_recv_data_segment_length;
            } else {
                self.awaiting |= key.bit();
            }
            text::emit(name, &value, text);
        }
    }

    fn offered_value(&self, key: Key) -> Option<String> {
        let params = &self.params;
        if self.role == Role::Target && key != Key::MaxRecvDataSegmentLength {
            let default = Negotiated::defaults(self.values.session_type);
            let content = match key {
                Key::HeaderDigest => params.header_digest.permits(false),
                Key::DataDigest => params.data_digest.permits(false),
                Key::ImmediateData => params.immediate_data,
                Key::MaxBurstLength => params.max_burst_length >= default.max_burst_length,
                Key::FirstBurstLength => {
                    params.first_burst_length >= default.first_burst_length
                        && params.max_burst_length >= default.first_burst_length
                }
                _ => true,
            };
            if content || self.received & key.bit() != 0 {
                return None;
            }
        }
        Some(match key {
            Key::HeaderDigest => params.header_digest.offer().to_owned(),
            Key::DataDigest => params.data_digest.offer().to_owned(),
            Key::MaxRecvDataSegmentLength => params.max_recv_data_segment_length.to_string(),
            Key::InitialR2T => boolean(params.initial_r2t).to_owned(),
            Key::ImmediateData => boolean(params.immediate_data).to_owned(),
            Key::MaxBurstLength => params.max_burst_length.to_string(),
            Key::FirstBurstLength => params.first_burst_length.to_string(),
            Key::MaxOutstandingR2T => params.max_outstanding_r2t.to_string(),
            Key::MaxConnections => "1".to_owned(),
            Key::DefaultTime2Wait => params.default_time2wait.to_string(),
            Key::DefaultTime2Retain => params.default_time2retain.to_string(),
            Key::ErrorRecoveryLevel => "0".to_owned(),
            Key::DataPDUInOrder | Key::DataSequenceInOrder => "Yes".to_owned(),
            // Level 1 is not offered: older peers may not support the key.
            Key::ProtocolLevel if params.protocol_level > 1 => params.protocol_level.to_string(),
            Key::TaskReporting | Key::ProtocolLevel => return None,
        })
    }

    /// Takes one key from the peer: an answer to an offer of this side, or an offer of the peer, whose answer is
    /// appended to `answers`. The caller handles the keys of login itself (names, AuthMethod, CHAP).
    pub fn on_pair(
        &mut self,
        name: &str,
        value: &str,
        answers: &mut Vec<u8>,
    ) -> Result<(), NegotiationError> {
        let Some((key, name, in_discovery)) = KEYS.into_iter().find(|entry| entry.1 == name) else {
            match name {
                // §13.25: obsolete keys, but NotUnderstood is not a permitted answer.
                "IFMarker" | "OFMarker" => text::emit(name, "No", answers),
                "IFMarkInt" | "OFMarkInt" => text::emit(name, REJECT, answers),
                // A declaration that expects no answer (RFC 3721).
                "X#NodeArchitecture" => {}
                // An initiator sends no key that is not in the table.
                _ if value == NOT_UNDERSTOOD && self.role == Role::Initiator => {
                    // The offer of the key whose name was altered in transit remains without an answer.
                    for key in [Key::HeaderDigest, Key::DataDigest] {
                        if self.awaiting & key.bit() != 0 {
                            self.on_default(key, &format!("{name}={value}"))?;
                        }
                    }
                    return Err(NegotiationError::NotUnderstood(text::printable(name)));
                }
                _ if value == NOT_UNDERSTOOD => {}
                _ => text::emit(name, NOT_UNDERSTOOD, answers),
            }
            return Ok(());
        };
        if value == NOT_UNDERSTOOD && self.role == Role::Target && key.is_mandatory() {
            return Err(NegotiationError::NotUnderstood(name.to_owned()));
        }
        if key == Key::MaxRecvDataSegmentLength {
            return self.on_max_recv_data_segment_length(value, answers);
        }
        if self.awaiting & key.bit() != 0 {
            self.awaiting &= !key.bit();
            self.received |= key.bit();
            return self.on_answer(key, value);
        }
        if self.received & key.bit() != 0 {
            return Err(NegotiationError::Duplicate(name));
        }
        self.received |= key.bit();
        let answer = if self.values.session_type == SessionType::Discovery && !in_discovery {
            IRRELEVANT.to_owned()
        } else {
            self.on_offer(key, value)?
        };
        text::emit(name, &answer, answers);
        Ok(())
    }

    /// Declarative in both directions (§13.12): no answer unless the value is rejected.
    fn on_max_recv_data_segment_length(
        &mut self,
        value: &str,
        answers: &mut Vec<u8>,
    ) -> Result<(), NegotiationError> {
        let key = Key::MaxRecvDataSegmentLength;
        if value == NOT_UNDERSTOOD && self.role == Role::Initiator {
            return Err(NegotiationError::NotUnderstood(key.name().to_owned()));
        }
        if matches!(value, REJECT | IRRELEVANT | NOT_UNDERSTOOD) {
            // A peer that rejects the declaration sends by the default of 8192, which this side accepts too.
            return Ok(());
        }
        if self.received & key.bit() != 0 {
            return Err(NegotiationError::Duplicate(key.name()));
        }
        self.received |= key.bit();
        match parse_number(value).and_then(|length| u32::try_from(length).ok()) {
            // 2^24 and more exceed the 24-bit length field; such a peer accepts every segment length.
            Some(length) if length >= SEGMENT_LENGTH_MIN => {
                self.values.max_send_data_segment_length = length.min(SEGMENT_LENGTH_MAX);
            }
            _ => text::emit(key.name(), REJECT, answers),
        }
        Ok(())
    }

    fn on_offer(&mut self, key: Key, value: &str) -> Result<String, NegotiationError> {
        let params = &self.params;
        let values = &mut self.values;
        let answer = match key {
            Key::HeaderDigest | Key::DataDigest => {
                let policy = if key == Key::HeaderDigest { params.header_digest } else { params.data_digest };
                let mut permitted = parse_list(value).filter_map(parse_digest).filter(|d| policy.permits(*d));
                let choice = match policy {
                    DigestPolicy::Prefer => permitted.max(),
                    _ => permitted.next(),
                };
                let Some(choice) = choice else {
                    // No common value; the default None remains in force.
                    if !policy.permits(false) {
                        return Err(NegotiationError::NoAgreement(key.name()));
                    }
                    self.rejected = true;
                    return Ok(REJECT.to_owned());
                };
                *(if key == Key::HeaderDigest {
                    &mut values.header_digest
                } else {
                    &mut values.data_digest
                }) = choice;
                Some(if choice { "CRC32C" } else { "None" }.to_owned())
            }
            Key::InitialR2T => parse_boolean(value).map(|offer| {
                values.initial_r2t = offer || params.initial_r2t;
                boolean(values.initial_r2t).to_owned()
            }),
            Key::ImmediateData => parse_boolean(value).map(|offer| {
                values.immediate_data = offer && params.immediate_data;
                boolean(values.immediate_data).to_owned()
            }),
            // This side sends and accepts data only in order, even if the peer offers No.
            Key::DataPDUInOrder | Key::DataSequenceInOrder => parse_boolean(value).map(|_| "Yes".to_owned()),
            Key::TaskReporting => parse_list(value).find(|&item| item == "RFC3720").map(ToOwned::to_owned),
            _ => parse_in_range(key, value).map(|offer| self.result(key, offer).to_string()),
        };
        Ok(answer.unwrap_or_else(|| REJECT.to_owned()))
    }

    fn result(&mut self, key: Key, offer: u32) -> u32 {
        let (params, values) = (&self.params, &mut self.values);
        let short = |value: u32| u16::try_from(value).expect("within the key's range");
        match key {
            Key::MaxBurstLength => {
                values.max_burst_length = offer.min(params.max_burst_length);
                values.max_burst_length
            }
            Key::FirstBurstLength => {
                // §13.14: not above MaxBurstLength, as far as negotiated by now; `finish` applies the bound again.
                let known = self.received & Key::MaxBurstLength.bit() != 0;
                let burst = if known { values.max_burst_length } else { params.max_burst_length };
                values.first_burst_length = offer.min(params.first_burst_length).min(burst);
                values.first_burst_length
            }
            Key::MaxOutstandingR2T => {
                values.max_outstanding_r2t = short(offer).min(params.max_outstanding_r2t);
                values.max_outstanding_r2t.into()
            }
            Key::DefaultTime2Wait => {
                values.default_time2wait = short(offer).max(params.default_time2wait);
                values.default_time2wait.into()
            }
            Key::DefaultTime2Retain => {
                values.default_time2retain = short(offer).min(params.default_time2retain);
                values.default_time2retain.into()
            }
            Key::ProtocolLevel => {
                let level = u8::try_from(offer).expect("within the key's range");
                values.protocol_level = level.min(params.protocol_level);
                values.protocol_level.into()
            }
            // The result functions are minima, and this side supports only 1 and 0.
            Key::MaxConnections => 1,
            Key::ErrorRecoveryLevel => 0,
            _ => unreachable!("not a numerical key"),
        }
    }

    /// Handles the peer's answer to an offer. `Irrelevant` and `Reject` leave the default in force (§6.2) if this side
    /// accepts it. `NotUnderstood` fails the login, except for iSCSIProtocolLevel, which is newer than many targets.
    fn on_answer(&mut self, key: Key, value: &str) -> Result<(), NegotiationError> {
        if value == NOT_UNDERSTOOD && self.role == Role::Initiator && key != Key::ProtocolLevel {
            return Err(NegotiationError::NotUnderstood(key.name().to_owned()));
        }
        if matches!(value, REJECT | IRRELEVANT | NOT_UNDERSTOOD) {
            return self.on_default(key, value);
        }
        let bad = || NegotiationError::BadAnswer { key: key.name(), value: text::printable(value) };
        match key {
            Key::HeaderDigest | Key::DataDigest => {
                let policy = if key == Key::HeaderDigest {
                    self.params.header_digest
                } else {
                    self.params.data_digest
                };
                let digest = match parse_digest(value) {
                    Some(digest) if policy.permits(digest) => digest,
                    _ if self.role == Role::Initiator && !policy.permits(false) => {
                        return self.on_default(key, value);
                    }
                    _ => return Err(bad()),
                };
                if key == Key::HeaderDigest {
                    self.values.header_digest = digest;
                } else {
                    self.values.data_digest = digest;
                }
            }
            Key::InitialR2T => {
                let answer = parse_boolean(value).ok_or_else(bad)?;
                // A target that answers No to Yes misapplies the OR function; Yes stays in force and is safe with every
                // target.
                self.values.initial_r2t = answer || self.params.initial_r2t;
            }
            Key::ImmediateData => {
                let answer = parse_boolean(value).ok_or_else(bad)?;
                self.values.immediate_data = answer && self.params.immediate_data;
            }
            Key::DataPDUInOrder | Key::DataSequenceInOrder => {
                parse_boolean(value).filter(|&answer| answer).ok_or_else(bad)?;
            }
            Key::TaskReporting | Key::MaxRecvDataSegmentLength => {}
            _ => {
                let answer = parse_in_range(key, value).ok_or_else(bad)?;
                let result = self.result(key, answer);
                // A larger burst or more R2Ts than offered would exceed the limits of this side. For other keys some
                // targets answer with their own value instead of the result; the result computed here is in force.
                if matches!(key, Key::MaxBurstLength | Key::MaxOutstandingR2T) && result != answer {
                    return Err(bad());
                }
            }
        }
        Ok(())
    }

    /// Fails if this side does not accept the default of `key`, which `answer` leaves in force.
    fn on_default(&self, key: Key, answer: &str) -> Result<(), NegotiationError> {
        let acceptable = match key {
            Key::HeaderDigest => self.params.header_digest.permits(false),
            Key::DataDigest => self.params.data_digest.permits(false),
            _ => true,
        };
        match self.role {
            _ if acceptable => Ok(()),
            Role::Initiator => {
                let answer = text::printable(answer);
                Err(NegotiationError::DigestRefused { key: key.name(), answer })
            }
            Role::Target => Err(NegotiationError::NoAgreement(key.name())),
        }
    }

    /// Ends the negotiation and returns its result. An offer without an answer leaves the default in force, except
    /// where this side's offer alone decides the result (§6.2.2: `No` under AND, `Yes` under OR).
    pub fn finish(mut self) -> Result<Negotiated, NegotiationError> {
        for (key, ..) in KEYS {
            if self.awaiting & key.bit() != 0 {
                self.on_default(key, NO_ANSWER)?;
            }
        }
        // A required digest that neither side mentioned stays None, which fails as well.
        for key in [Key::HeaderDigest, Key::DataDigest] {
            if (self.offered | self.received) & key.bit() == 0 {
                self.on_default(key, NO_ANSWER)?;
            }
        }
        if self.values.session_type == SessionType::Normal {
            let unanswered = |key: Key| self.awaiting & key.bit() != 0;
            if unanswered(Key::ImmediateData) {
                self.values.immediate_data &= self.params.immediate_data;
            }
            if unanswered(Key::InitialR2T) {
                self.values.initial_r2t |= self.params.initial_r2t;
            }
        }
        self.values.first_burst_length = self.values.first_burst_length.min(self.values.max_burst_length);
        Ok(self.values)
    }
}

/// Sort key for the pairs of one text before [`Negotiation::on_pair`]: FirstBurstLength is bounded by MaxBurstLength,
/// so MaxBurstLength must come first.
#[must_use]
pub fn order(name: &str) -> u8 {
    u8::from(name == "FirstBurstLength")
}

fn parse_digest(value: &str) -> Option<bool> {
    match value {
        "None" => Some(false),
        "CRC32C" => Some(true),
        _ => None,
    }
}

fn parse_in_range(key: Key, value: &str) -> Option<u32> {
    let range = match key {
        Key::MaxBurstLength | Key::FirstBurstLength => SEGMENT_LENGTH_MIN..=SEGMENT_LENGTH_MAX,
        Key::MaxOutstandingR2T | Key::MaxConnections => 1..=65535,
        Key::DefaultTime2Wait | Key::DefaultTime2Retain => 0..=u32::from(TIME_MAX),
        Key::ErrorRecoveryLevel => 0..=2,
        Key::ProtocolLevel => 0..=u32::from(PROTOCOL_LEVEL_MAX),
        _ => return None,
    };
    let number = u32::try_from(parse_number(value)?).ok()?;
    range.contains(&number).then_some(number)
}
