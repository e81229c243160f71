//! The operational parameters of RFC 7143 §13 and how two sides agree on them (§6.2).
//!
//! [`Negotiation`] works the same for both roles: what the peer offers is answered with the key's result function,
//! what the peer answers to our offer is checked against it. [`Params`] is what one side wants, [`Negotiated`] what
//! came out. Login decides *when* keys travel; nothing here knows PDUs.

use crate::text::{
    self, IRRELEVANT, NOT_UNDERSTOOD, REJECT, boolean, parse_boolean, parse_list, parse_number,
};

/// Smallest MaxRecvDataSegmentLength, MaxBurstLength and FirstBurstLength, bytes.
pub const SEGMENT_LENGTH_MIN: u32 = 512;
/// Largest MaxRecvDataSegmentLength, MaxBurstLength and FirstBurstLength, bytes.
pub const SEGMENT_LENGTH_MAX: u32 = (1 << 24) - 1;
/// MaxRecvDataSegmentLength until declared, and throughout login, bytes (§13.12).
pub const SEGMENT_LENGTH_DEFAULT: u32 = 8192;
/// Largest DefaultTime2Wait and DefaultTime2Retain, seconds.
pub const TIME_MAX: u16 = 3600;
/// Highest iSCSIProtocolLevel there can be (RFC 7144 §7.1.1).
pub const PROTOCOL_LEVEL_MAX: u8 = 31;
/// What stands in an error in place of an answer that did not come.
const NO_ANSWER: &str = "nothing";

/// Which side of a session we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that sends commands.
    Initiator,
    /// The side that has the storage.
    Target,
}

/// SessionType (§13.21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SessionType {
    /// For SCSI commands to one target.
    #[default]
    Normal,
    /// For SendTargets only.
    Discovery,
}

impl SessionType {
    /// The value of the key.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Discovery => "Discovery",
        }
    }
}

/// What one side wants of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DigestPolicy {
    /// None only.
    Off,
    /// None preferred, CRC32C permitted.
    #[default]
    Allow,
    /// CRC32C preferred: offered first, and of a peer's list with both the only one permitted, whatever comes first
    /// there (§6.2.1: a responder takes the first value that it "is allowed to use for the specific originator"). Of a
    /// list without it, None is permitted.
    Prefer,
    /// CRC32C only.
    Require,
}

impl DigestPolicy {
    /// By the word that URLs have for it: `none` (or `off`), `prefer`, `crc32c`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "none" | "off" => Some(Self::Off),
            "prefer" => Some(Self::Prefer),
            "crc32c" => Some(Self::Require),
            _ => None,
        }
    }

    const fn offer(self) -> &'static str {
        match self {
            Self::Off => "None",
            Self::Allow => "None,CRC32C",
            Self::Prefer => "CRC32C,None",
            Self::Require => "CRC32C",
        }
    }

    const fn permits(self, digest: bool) -> bool {
        match self {
            Self::Off => !digest,
            Self::Allow | Self::Prefer => true,
            Self::Require => digest,
        }
    }
}

/// What one side wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// HeaderDigest.
    pub header_digest: DigestPolicy,
    /// DataDigest.
    pub data_digest: DigestPolicy,
    /// InitialR2T: `true` insists on an R2T before any Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData: `false` insists on none.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength: largest data segment we take, bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength: most bytes per R2T and per Data-In sequence.
    pub max_burst_length: u32,
    /// FirstBurstLength: most unsolicited bytes per command.
    pub first_burst_length: u32,
    /// DefaultTime2Wait, seconds; the larger of both counts.
    pub default_time2wait: u16,
    /// DefaultTime2Retain, seconds; the smaller of both counts.
    pub default_time2retain: u16,
    /// MaxOutstandingR2T per task.
    pub max_outstanding_r2t: u16,
    /// iSCSIProtocolLevel we support (RFC 7144): 1 is RFC 7143, 2 adds RFC 7144's task management.
    pub protocol_level: u8,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            header_digest: DigestPolicy::Allow,
            data_digest: DigestPolicy::Allow,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 256 << 10,
            max_burst_length: SEGMENT_LENGTH_MAX,
            first_burst_length: 256 << 10,
            default_time2wait: 2,
            default_time2retain: 0,
            max_outstanding_r2t: 16,
            protocol_level: 1,
        }
    }
}

/// A wish that RFC 7143 does not permit. Configuration's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{key}={value} is not permitted")]
pub struct ParamsError {
    /// The key.
    pub key: &'static str,
    /// The value wished for.
    pub value: u32,
}

impl Params {
    /// Checks every value against its range, and FirstBurstLength against MaxBurstLength.
    pub fn validate(&self) -> Result<(), ParamsError> {
        let segment = SEGMENT_LENGTH_MIN..=SEGMENT_LENGTH_MAX;
        let time = 0..=u32::from(TIME_MAX);
        let checks = [
            ("MaxRecvDataSegmentLength", self.max_recv_data_segment_length, segment.clone()),
            ("MaxBurstLength", self.max_burst_length, segment.clone()),
            ("FirstBurstLength", self.first_burst_length, SEGMENT_LENGTH_MIN..=self.max_burst_length),
            ("DefaultTime2Wait", self.default_time2wait.into(), time.clone()),
            ("DefaultTime2Retain", self.default_time2retain.into(), time),
            ("MaxOutstandingR2T", self.max_outstanding_r2t.into(), 1..=65535),
            ("iSCSIProtocolLevel", self.protocol_level.into(), 0..=u32::from(PROTOCOL_LEVEL_MAX)),
        ];
        for (key, value, range) in checks {
            if !range.contains(&value) {
                return Err(ParamsError { key, value });
            }
        }
        Ok(())
    }
}

/// What both sides agreed on. `MaxConnections` is 1 and `ErrorRecoveryLevel` 0, always: we offer nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Kind of session.
    pub session_type: SessionType,
    /// CRC32C on headers, both directions, from the first PDU of the full feature phase on.
    pub header_digest: bool,
    /// CRC32C on data segments.
    pub data_digest: bool,
    /// An R2T precedes all Data-Out that is not immediate data.
    pub initial_r2t: bool,
    /// Commands may carry data.
    pub immediate_data: bool,
    /// Largest data segment that may come to us, bytes.
    pub max_recv_data_segment_length: u32,
    /// Largest data segment that we may send, bytes: the peer's MaxRecvDataSegmentLength.
    pub max_send_data_segment_length: u32,
    /// Most bytes of one solicited or Data-In sequence.
    pub max_burst_length: u32,
    /// Most unsolicited bytes of one command; at most `max_burst_length`.
    pub first_burst_length: u32,
    /// Seconds before a new attempt after an unexpected end.
    pub default_time2wait: u16,
    /// Seconds after that for which tasks are kept.
    pub default_time2retain: u16,
    /// R2Ts outstanding per task.
    pub max_outstanding_r2t: u16,
    /// Data PDUs of a sequence come in order of offsets; always `true` with us.
    pub data_pdu_in_order: bool,
    /// Sequences come in order of offsets; always `true` with us.
    pub data_sequence_in_order: bool,
    /// 0: a digest error or a lost PDU ends the session.
    pub error_recovery_level: u8,
    /// 1.
    pub max_connections: u16,
    /// iSCSIProtocolLevel.
    pub protocol_level: u8,
}

impl Negotiated {
    /// The defaults of §13: what holds for a key that nobody mentions.
    #[must_use]
    pub const fn defaults(session_type: SessionType) -> Self {
        Self {
            session_type,
            header_digest: false,
            data_digest: false,
            initial_r2t: true,
            immediate_data: true,
            max_recv_data_segment_length: SEGMENT_LENGTH_DEFAULT,
            max_send_data_segment_length: SEGMENT_LENGTH_DEFAULT,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            default_time2wait: 2,
            default_time2retain: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            max_connections: 1,
            protocol_level: 1,
        }
    }
}

/// Why a negotiation cannot go on. The peer's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The peer sent a key twice (§6.2: renegotiation during login is a protocol error).
    #[error("{0} negotiated twice")]
    Duplicate(&'static str),
    /// The peer answered our offer with a value it had no right to.
    #[error("{key} answered with {value:?}, which was not offered")]
    BadAnswer {
        /// The key.
        key: &'static str,
        /// The answer, made printable.
        value: String,
    },
    /// We need something that the peer does not do.
    #[error("no agreement on {0}")]
    NoAgreement(&'static str),
    /// A digest that we asked for, and an answer that leaves it out.
    #[error("{key}=CRC32C was asked for, and the target answered {answer}")]
    DigestRefused {
        /// The key.
        key: &'static str,
        /// The answer, made printable.
        answer: String,
    },
    /// NotUnderstood for a key that every target understands, or that was not sent: the text was changed on its way.
    #[error(
        "the target answered {0}=NotUnderstood: that key was not sent, or is one that every target understands"
    )]
    NotUnderstood(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
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

/// Name, and whether the key has a meaning in discovery sessions.
const KEYS: [(Key, &str, bool); 16] = [
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

    /// Whether it is one of RFC 3720's, which everyone knows; the others came later.
    const fn is_mandatory(self) -> bool {
        !matches!(self, Self::TaskReporting | Self::ProtocolLevel)
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The state of one negotiation.
#[derive(Debug, Clone)]
pub struct Negotiation {
    role: Role,
    params: Params,
    values: Negotiated,
    /// Keys we offered and have no answer for.
    awaiting: u32,
    /// Keys we offered.
    offered: u32,
    /// Keys the peer sent.
    received: u32,
    /// A digest list of the peer's had nothing for us, and the peer has not heard of that.
    rejected: bool,
}

impl Negotiation {
    /// Begins with the defaults.
    ///
    /// Panics when `params` is not valid: see [`Params::validate`].
    #[must_use]
    pub fn new(role: Role, session_type: SessionType, params: Params) -> Self {
        if let Err(error) = params.validate() {
            panic!("{error}");
        }
        let values = Negotiated::defaults(session_type);
        Self { role, params, values, awaiting: 0, offered: 0, received: 0, rejected: false }
    }

    /// Whether the peer owes us answers.
    #[must_use]
    pub const fn is_awaiting(&self) -> bool {
        self.awaiting != 0
    }

    /// Largest data segment to send while still in login, bytes: the default, or less if the peer declared less.
    #[must_use]
    pub fn send_limit(&self) -> usize {
        let limit = self.values.max_send_data_segment_length.min(SEGMENT_LENGTH_DEFAULT);
        usize::try_from(limit).expect("at most 8192")
    }

    /// Whether a digest list had to be rejected since the last call. The login must not complete in the same
    /// exchange: the peer may not be able to go on without, and a session would have been made for nothing.
    pub const fn take_rejected(&mut self) -> bool {
        std::mem::replace(&mut self.rejected, false)
    }

    /// Appends what this side has to say of its own accord, once: an initiator its wishes, a target its
    /// MaxRecvDataSegmentLength and such keys as the initiator did not mention while their defaults are not to our
    /// liking. Call it for a target after the initiator's keys were taken.
    pub fn offer(&mut self, text: &mut Vec<u8>) {
        for (key, name, in_discovery) in KEYS {
            let discovery = self.values.session_type == SessionType::Discovery;
            if self.offered & key.bit() != 0 || (discovery && !in_discovery) {
                continue;
            }
            let Some(value) = self.wish(key) else { continue };
            self.offered |= key.bit();
            if key == Key::MaxRecvDataSegmentLength {
                self.values.max_recv_data_segment_length = self.params.max_recv_data_segment_length;
            } else {
                self.awaiting |= key.bit();
            }
            text::emit(name, &value, text);
        }
    }

    /// What we offer for a key, if anything.
    fn wish(&self, key: Key) -> Option<String> {
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
            // Offered only when it says something: fewer keys, fewer surprises with older peers.
            Key::ProtocolLevel if params.protocol_level > 1 => params.protocol_level.to_string(),
            Key::TaskReporting | Key::ProtocolLevel => return None,
        })
    }

    /// Takes one key from the peer: an answer to our offer, or an offer of its own, whose answer is appended to
    /// `answers`. Keys of login itself (names, AuthMethod, CHAP) are not for this function.
    pub fn on_pair(
        &mut self,
        name: &str,
        value: &str,
        answers: &mut Vec<u8>,
    ) -> Result<(), NegotiationError> {
        let Some((key, name, in_discovery)) = KEYS.into_iter().find(|entry| entry.1 == name) else {
            match name {
                // §13.25: obsolete, yet never NotUnderstood.
                "IFMarker" | "OFMarker" => text::emit(name, "No", answers),
                "IFMarkInt" | "OFMarkInt" => text::emit(name, REJECT, answers),
                // Declarations that want no answer (RFC 3721); what a peer did not understand of ours.
                "X#NodeArchitecture" => {}
                // An initiator sends no key that is not in the table.
                _ if value == NOT_UNDERSTOOD && self.role == Role::Initiator => {
                    // An offer whose name was changed on its way is one that got no answer.
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

    /// Declarative in both directions (§13.12): no answer unless it is refused.
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
            // A peer that refuses our declaration sends by the default, which we take too.
            return Ok(());
        }
        if self.received & key.bit() != 0 {
            return Err(NegotiationError::Duplicate(key.name()));
        }
        self.received |= key.bit();
        match parse_number(value).and_then(|length| u32::try_from(length).ok()) {
            // 2^24 and more is beyond the field, but what such a peer means is plain.
            Some(length) if length >= SEGMENT_LENGTH_MIN => {
                self.values.max_send_data_segment_length = length.min(SEGMENT_LENGTH_MAX);
            }
            _ => text::emit(key.name(), REJECT, answers),
        }
        Ok(())
    }

    /// The peer offers; the result is stored and returned as answer.
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
                    // Nothing in common; the default None is what we would be left with.
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
            // We send and take everything in order, whatever the peer could bear.
            Key::DataPDUInOrder | Key::DataSequenceInOrder => parse_boolean(value).map(|_| "Yes".to_owned()),
            Key::TaskReporting => parse_list(value).find(|&item| item == "RFC3720").map(ToOwned::to_owned),
            _ => parse_in_range(key, value).map(|offer| self.result(key, offer).to_string()),
        };
        Ok(answer.unwrap_or_else(|| REJECT.to_owned()))
    }

    /// Stores and returns the result of a numerical key.
    fn result(&mut self, key: Key, offer: u32) -> u32 {
        let (params, values) = (&self.params, &mut self.values);
        let short = |value: u32| u16::try_from(value).expect("within the key's range");
        match key {
            Key::MaxBurstLength => {
                values.max_burst_length = offer.min(params.max_burst_length);
                values.max_burst_length
            }
            Key::FirstBurstLength => {
                // §13.14: never above MaxBurstLength, as far as that is known by now.
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
            // 1 and 0 are both the smallest value and the only one we support.
            Key::MaxConnections => 1,
            Key::ErrorRecoveryLevel => 0,
            _ => unreachable!("not a numerical key"),
        }
    }

    /// The peer answers our offer. `Irrelevant` and `Reject` leave the default in force (§6.2), if that is something we
    /// can live with. `NotUnderstood` ends a login, but for iSCSIProtocolLevel, which is newer than many targets.
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
                // A target that answers No to our Yes has not understood OR; Yes holds, and is always safe.
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
                // More per burst or more R2Ts than we offered would overrun us. Elsewhere targets that answer with
                // their own value instead of the result exist; the result is computed here and holds.
                if matches!(key, Key::MaxBurstLength | Key::MaxOutstandingR2T) && result != answer {
                    return Err(bad());
                }
            }
        }
        Ok(())
    }

    /// Whether the key's default will do, after this answer.
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

    /// The end: what was agreed. An offer that got no answer leaves the default, except where our offer alone
    /// decides the result (§6.2.2: `No` under AND, `Yes` under OR).
    pub fn finish(mut self) -> Result<Negotiated, NegotiationError> {
        for (key, ..) in KEYS {
            if self.awaiting & key.bit() != 0 {
                self.on_default(key, NO_ANSWER)?;
            }
        }
        // A digest that is required and never came up stays None: that is no agreement either.
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

/// Sort key for the pairs of one text before [`Negotiation::on_pair`] takes them: the burst lengths depend on each
/// other, so MaxBurstLength must come before FirstBurstLength.
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

#[cfg(test)]
mod tests;
