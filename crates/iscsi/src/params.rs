//! The operational parameters of RFC 7143 §13 and their negotiation (§6.2).
//!
//! [`Params`] holds the values of one side, [`Negotiated`] the result. [`Negotiation`] serves both roles: it
//! answers a key that the peer offers with the key's result function, and checks the peer's answer to an offer against
//! that function. The login machines decide when keys travel; this module handles no PDUs.

mod negotiation;

pub use negotiation::{Negotiation, NegotiationError, order};

/// Smallest MaxRecvDataSegmentLength, MaxBurstLength and FirstBurstLength, bytes.
pub const SEGMENT_LENGTH_MIN: u32 = 512;
/// Largest MaxRecvDataSegmentLength, MaxBurstLength and FirstBurstLength, bytes.
pub const SEGMENT_LENGTH_MAX: u32 = (1 << 24) - 1;
/// MaxRecvDataSegmentLength until declared, and throughout login, bytes (§13.12).
pub const SEGMENT_LENGTH_DEFAULT: u32 = 8192;
/// Largest DefaultTime2Wait and DefaultTime2Retain, seconds.
pub const TIME_MAX: u16 = 3600;
/// Highest iSCSIProtocolLevel that RFC 7144 §7.1.1 allows.
pub const PROTOCOL_LEVEL_MAX: u8 = 31;
/// Stands for the missing answer in an error about an unanswered offer.
const NO_ANSWER: &str = "nothing";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Initiator,
    Target,
}

/// SessionType (§13.21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SessionType {
    #[default]
    Normal,
    Discovery,
}

impl SessionType {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Discovery => "Discovery",
        }
    }
}

/// Which values of a digest key one side offers and permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DigestPolicy {
    Off,
    /// None preferred, CRC32C permitted.
    #[default]
    Allow,
    /// CRC32C preferred: this side offers it first. If the peer's list has both, CRC32C is chosen even if None is
    /// listed first (§6.2.1: a responder takes the first value that it "is allowed to use for the specific
    /// originator"). If the list has no CRC32C, None is permitted.
    Prefer,
    Require,
}

impl DigestPolicy {
    /// The policy of a word in a URL: `none` (or `off`), `prefer`, `crc32c`.
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

/// The values that one side negotiates for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    pub header_digest: DigestPolicy,
    pub data_digest: DigestPolicy,
    /// InitialR2T: `true` demands an R2T before any Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData: `false` forbids immediate data.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength: largest data segment that this side receives, bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength: most bytes per R2T and per Data-In sequence.
    pub max_burst_length: u32,
    /// FirstBurstLength: most unsolicited bytes per command.
    pub first_burst_length: u32,
    /// DefaultTime2Wait, seconds; the result is the larger of both sides' values.
    pub default_time2wait: u16,
    /// DefaultTime2Retain, seconds; the result is the smaller of both sides' values.
    pub default_time2retain: u16,
    pub max_outstanding_r2t: u16,
    /// Highest iSCSIProtocolLevel supported (RFC 7144): 1 is RFC 7143, 2 adds the task management of RFC 7144.
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

/// A configured value that RFC 7143 does not permit. The fault is the configuration's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{key}={value} is not permitted")]
pub struct ParamsError {
    pub key: &'static str,
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

/// The result of a negotiation. `MaxConnections` is always 1 and `ErrorRecoveryLevel` always 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    pub session_type: SessionType,
    /// CRC32C on headers, both directions, from the first PDU of the full feature phase on.
    pub header_digest: bool,
    pub data_digest: bool,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    /// Largest data segment that this side may receive, bytes.
    pub max_recv_data_segment_length: u32,
    /// Largest data segment that this side may send, bytes: the peer's MaxRecvDataSegmentLength.
    pub max_send_data_segment_length: u32,
    /// Most bytes of one solicited or Data-In sequence.
    pub max_burst_length: u32,
    /// Most unsolicited bytes of one command; at most `max_burst_length`.
    pub first_burst_length: u32,
    /// Seconds to wait before a new login after an unexpected end of the session.
    pub default_time2wait: u16,
    /// Seconds, after that wait, for which tasks are kept.
    pub default_time2retain: u16,
    pub max_outstanding_r2t: u16,
    /// The data PDUs of a sequence are in order of offset; always `true`.
    pub data_pdu_in_order: bool,
    /// The sequences are in order of offset; always `true`.
    pub data_sequence_in_order: bool,
    /// Always 0: a digest error or a lost PDU ends the session.
    pub error_recovery_level: u8,
    pub max_connections: u16,
    pub protocol_level: u8,
}

impl Negotiated {
    /// Names and values of the keys that matter to a user. MaxRecvDataSegmentLength is this side's.
    #[must_use]
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let digest = |on: bool| if on { "CRC32C" } else { "None" }.to_owned();
        let yes = |on: bool| if on { "Yes" } else { "No" }.to_owned();
        vec![
            ("HeaderDigest", digest(self.header_digest)),
            ("DataDigest", digest(self.data_digest)),
            ("InitialR2T", yes(self.initial_r2t)),
            ("ImmediateData", yes(self.immediate_data)),
            ("MaxRecvDataSegmentLength", self.max_recv_data_segment_length.to_string()),
            ("MaxBurstLength", self.max_burst_length.to_string()),
            ("FirstBurstLength", self.first_burst_length.to_string()),
            ("MaxOutstandingR2T", self.max_outstanding_r2t.to_string()),
            ("ErrorRecoveryLevel", self.error_recovery_level.to_string()),
        ]
    }

    /// The defaults of §13, in force for a key that neither side sends.
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

#[cfg(test)]
mod tests;
