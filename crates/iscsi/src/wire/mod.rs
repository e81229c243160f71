//! The PDUs of RFC 7143 §11, as views and as parsed structs. Section numbers in this module are those of RFC 7143.
//!
//! [`Bhs`] is a view of the 48-byte basic header segment with every common field; each PDU has a struct
//! ([`ScsiCommand`], [`DataIn`], ...) with `parse(&[u8; 48])`, which fails for another opcode, and
//! `emit() -> [u8; 48]`. The module never allocates, keeps state, or reads data segments. Reserved bits are ignored by
//! `parse` and zero in `emit`, as §11 requires; a code that the standards do not define becomes `Other(..)`, so that
//! the caller can answer it with a Reject or a response.

use std::ops::Range;

pub use crate::serial::{CmdSn, DataSn, StatSn};

mod ahs;
mod async_message;
mod data;
mod login;
mod logout;
mod nop;
mod reject;
mod scsi;
mod snack;
mod task;
mod text;

pub use ahs::{Ahs, AhsIter, emit_bidi_read_length, emit_extended_cdb};
pub use async_message::{AsyncEvent, AsyncMessage};
pub use data::{DataIn, DataOut, R2t};
pub use login::{LoginRequest, LoginResponse, LoginStatus, Stage};
pub use logout::{LogoutReason, LogoutRequest, LogoutResponse, LogoutResult};
pub use nop::{NopIn, NopOut};
pub use reject::{Reject, RejectReason};
pub use scsi::{Attribute, Residual, ScsiCommand, ScsiResponse, ServiceResponse};
pub use snack::{Snack, SnackType};
pub use task::{TmFunction, TmRequest, TmResponse, TmResult};
pub use text::{TextRequest, TextResponse};

/// Length of the basic header segment in bytes (§11.2.1).
pub const BHS_LENGTH: usize = 48;
/// The tag that means "no tag" in both the ITT and the TTT field.
pub const RESERVED_TAG: u32 = 0xffff_ffff;
/// Largest data segment the 24-bit length field can describe, in bytes.
pub const DATA_SEGMENT_LENGTH_MAX: u32 = 0x00ff_ffff;
/// Most AHS bytes one PDU can have: 255 four-byte words.
pub const AHS_LENGTH_MAX: usize = 255 * 4;
/// The only protocol version defined (§11.12.4).
pub const VERSION: u8 = 0x00;

/// A named byte range of the header.
pub type Field = Range<usize>;

/// Positions of the fields in the 48-byte header (§11.2 and the PDU layouts after it).
pub mod field {
    use super::Field;

    /// Immediate bit (0x40) and opcode (0x3f).
    pub const OPCODE: usize = 0;
    /// Final bit (0x80) and the opcode-specific flags.
    pub const FLAGS: usize = 1;
    pub const RESPONSE: usize = 2;
    /// SCSI status or Version-min / Version-active.
    pub const STATUS: usize = 3;
    /// TotalAHSLength in four-byte words.
    pub const TOTAL_AHS_LENGTH: usize = 4;
    /// DataSegmentLength in bytes, without padding.
    pub const DATA_SEGMENT_LENGTH: Field = 5..8;
    pub const LUN: Field = 8..16;
    pub const ISID: Field = 8..14;
    pub const TSIH: Field = 14..16;
    pub const ITT: Field = 16..20;
    pub const TTT: Field = 20..24;
    pub const EXPECTED_DATA_TRANSFER_LENGTH: Field = 20..24;
    pub const CID: Field = 20..22;
    pub const REFERENCED_TASK_TAG: Field = 20..24;
    pub const SNACK_TAG: Field = 20..24;
    pub const CMD_SN: Field = 24..28;
    pub const STAT_SN: Field = 24..28;
    pub const EXP_STAT_SN: Field = 28..32;
    pub const EXP_CMD_SN: Field = 28..32;
    pub const MAX_CMD_SN: Field = 32..36;
    pub const CDB: Field = 32..48;
    pub const REF_CMD_SN: Field = 32..36;
    /// DataSN, R2TSN or ExpDataSN.
    pub const DATA_SN: Field = 36..40;
    pub const LOGIN_STATUS: Field = 36..38;
    pub const ASYNC_EVENT: usize = 36;
    pub const ASYNC_VCODE: usize = 37;
    pub const PARAMETER1: Field = 38..40;
    /// Parameter 2 (Asynchronous Message), Time2Wait (Logout Response).
    pub const PARAMETER2: Field = 40..42;
    /// Parameter 3 (Asynchronous Message), Time2Retain (Logout Response).
    pub const PARAMETER3: Field = 42..44;
    pub const BUFFER_OFFSET: Field = 40..44;
    pub const BIDI_RESIDUAL_COUNT: Field = 40..44;
    pub const BEG_RUN: Field = 40..44;
    pub const RESIDUAL_COUNT: Field = 44..48;
    pub const DESIRED_DATA_TRANSFER_LENGTH: Field = 44..48;
    pub const RUN_LENGTH: Field = 44..48;
}

/// The final bit of the flags byte; the T bit in login.
pub(crate) const FINAL: u8 = 0x80;
pub(crate) const CONTINUE: u8 = 0x40;
const IMMEDIATE: u8 = 0x40;

/// Why 48 bytes are not a valid PDU of the expected kind; the answer is Reject or a closed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// The opcode belongs to another PDU than this parser reads, or to one that the peer's role must not send.
    #[error("unexpected opcode {0:?}")]
    UnexpectedOpcode(Opcode),
    /// Overflow and underflow are both set (§11.4.1).
    #[error("residual overflow and underflow both set")]
    ResidualFlags,
    /// The T and C bits are both set (§11.12.1, §11.12.2), or F and C of a text PDU (§11.10.1).
    #[error("final (or transit) and continue both set")]
    FinalAndContinue,
    /// The stage is reserved by RFC 7143 (CSG or NSG = 2).
    #[error("reserved login stage")]
    ReservedStage,
    #[error("malformed additional header segment")]
    MalformedAhs,
}

/// Opcodes of both directions (§11.2.1.2). Bit 0x20 gives the direction: set means from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    NopOut = 0x00,
    ScsiCommand = 0x01,
    TmRequest = 0x02,
    LoginRequest = 0x03,
    TextRequest = 0x04,
    DataOut = 0x05,
    LogoutRequest = 0x06,
    Snack = 0x10,
    NopIn = 0x20,
    ScsiResponse = 0x21,
    TmResponse = 0x22,
    LoginResponse = 0x23,
    TextResponse = 0x24,
    DataIn = 0x25,
    LogoutResponse = 0x26,
    R2t = 0x31,
    AsyncMessage = 0x32,
    Reject = 0x3f,
}

impl Opcode {
    /// Parses the first byte of a header; the immediate bit is masked off.
    pub const fn parse(byte: u8) -> Result<Self, WireError> {
        Ok(match byte & 0x3f {
            0x00 => Self::NopOut,
            0x01 => Self::ScsiCommand,
            0x02 => Self::TmRequest,
            0x03 => Self::LoginRequest,
            0x04 => Self::TextRequest,
            0x05 => Self::DataOut,
            0x06 => Self::LogoutRequest,
            0x10 => Self::Snack,
            0x20 => Self::NopIn,
            0x21 => Self::ScsiResponse,
            0x22 => Self::TmResponse,
            0x23 => Self::LoginResponse,
            0x24 => Self::TextResponse,
            0x25 => Self::DataIn,
            0x26 => Self::LogoutResponse,
            0x31 => Self::R2t,
            0x32 => Self::AsyncMessage,
            0x3f => Self::Reject,
            unknown => return Err(WireError::UnknownOpcode(unknown)),
        })
    }

    #[must_use]
    pub const fn is_from_target(self) -> bool {
        self as u8 & 0x20 != 0
    }
}

/// A view of the 48-byte basic header segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bhs<'a>(pub &'a [u8; BHS_LENGTH]);

impl Bhs<'_> {
    /// The opcode; an error if RFC 7143 does not define it.
    pub const fn opcode(&self) -> Result<Opcode, WireError> {
        Opcode::parse(self.0[field::OPCODE])
    }

    #[must_use]
    pub const fn immediate(&self) -> bool {
        self.0[field::OPCODE] & IMMEDIATE != 0
    }

    /// The final bit (the transit bit in login).
    #[must_use]
    pub const fn is_final(&self) -> bool {
        self.0[field::FLAGS] & FINAL != 0
    }

    /// Length of all AHSs in bytes, 0..=1020, a multiple of four.
    #[must_use]
    pub const fn total_ahs_length(&self) -> usize {
        self.0[field::TOTAL_AHS_LENGTH] as usize * 4
    }

    /// Length of the data segment in bytes, without padding, below 2^24.
    #[must_use]
    pub const fn data_segment_length(&self) -> u32 {
        u32::from_be_bytes([0, self.0[5], self.0[6], self.0[7]])
    }

    /// Length of the data segment in bytes on the wire, padded to four.
    #[must_use]
    pub const fn data_segment_length_padded(&self) -> u32 {
        padded(self.data_segment_length())
    }

    /// The logical unit number; meaningful only for opcodes that have one.
    #[must_use]
    pub fn lun(&self) -> u64 {
        get_u64(self.0, field::LUN)
    }

    #[must_use]
    pub fn itt(&self) -> Itt {
        Itt(get_u32(self.0, field::ITT))
    }
}

/// `length` rounded up to a multiple of four, to which iSCSI pads segments (§11.1).
#[must_use]
pub const fn padded(length: u32) -> u32 {
    (length + 3) & !3
}

macro_rules! tag {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            pub const RESERVED: Self = Self(RESERVED_TAG);

            #[must_use]
            pub const fn is_reserved(self) -> bool {
                self.0 == RESERVED_TAG
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

tag! {
    Itt
}
tag! {
    Ttt
}

/// Initiator part of the session identifier (§11.12.5). Two sessions of one initiator name to one target portal group
/// must differ in it; a login that repeats the ISID of a session reinstates (ends) that session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// Type 10b: 24 random bits and a qualifier.
    #[must_use]
    pub const fn random(random: [u8; 3], qualifier: u16) -> Self {
        let [d0, d1] = qualifier.to_be_bytes();
        Self([0x80, random[0], random[1], random[2], d0, d1])
    }

    /// Type 00b: a 22-bit IEEE OUI part and a 24-bit qualifier of the vendor's choice.
    #[must_use]
    pub const fn oui(oui: [u8; 3], qualifier: [u8; 3]) -> Self {
        Self([oui[0] & 0x3f, oui[1], oui[2], qualifier[0], qualifier[1], qualifier[2]])
    }

    /// Type 01b: an IANA enterprise number (24 bits) and a qualifier.
    #[must_use]
    pub const fn enterprise(number: [u8; 3], qualifier: u16) -> Self {
        let [d0, d1] = qualifier.to_be_bytes();
        Self([0x40, number[0], number[1], number[2], d0, d1])
    }

    #[must_use]
    pub const fn is_random(self) -> bool {
        self.0[0] >> 6 == 0b10
    }
}

impl std::fmt::Display for Isid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{g:02x}")
    }
}

/// Defines an enum for a code that the standards define in part: the defined values, and `Other` for the rest.
macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident($int:ty) { $($(#[$vdoc:meta])* $variant:ident = $value:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
            /// A value that the standards do not define.
            Other($int),
        }

        impl $name {
            #[must_use]
            pub const fn from_code(code: $int) -> Self {
                match code {
                    $($value => Self::$variant,)+
                    other => Self::Other(other),
                }
            }

            #[must_use]
            pub const fn code(self) -> $int {
                match self {
                    $(Self::$variant => $value,)+
                    Self::Other(other) => other,
                }
            }
        }
    };
}
pub(crate) use open_enum;

/// `mask` if `on`, else 0; combines flags into a byte.
pub(crate) const fn bit(on: bool, mask: u8) -> u8 {
    if on { mask } else { 0 }
}

pub(crate) type Raw = [u8; BHS_LENGTH];

#[inline]
pub(crate) fn get_u16(raw: &Raw, field: Field) -> u16 {
    let mut bytes = [0; 2];
    bytes.copy_from_slice(&raw[field]);
    u16::from_be_bytes(bytes)
}

#[inline]
pub(crate) fn get_u32(raw: &Raw, field: Field) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&raw[field]);
    u32::from_be_bytes(bytes)
}

#[inline]
pub(crate) fn get_u64(raw: &Raw, field: Field) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[field]);
    u64::from_be_bytes(bytes)
}

#[inline]
pub(crate) fn put_u16(raw: &mut Raw, field: Field, value: u16) {
    raw[field].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(crate) fn put_u32(raw: &mut Raw, field: Field, value: u32) {
    raw[field].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(crate) fn put_u64(raw: &mut Raw, field: Field, value: u64) {
    raw[field].copy_from_slice(&value.to_be_bytes());
}

/// A zeroed header with opcode, flags and data segment length. Panics if the length does not fit in 24 bits;
/// negotiation keeps every segment below that.
#[inline]
pub(crate) fn begin(opcode: Opcode, immediate: bool, flags: u8, data_segment_length: u32) -> Raw {
    assert!(data_segment_length <= DATA_SEGMENT_LENGTH_MAX, "data segment length exceeds 24 bits");
    let mut raw = [0; BHS_LENGTH];
    raw[field::OPCODE] = opcode as u8 | bit(immediate, IMMEDIATE);
    raw[field::FLAGS] = flags;
    raw[field::DATA_SEGMENT_LENGTH].copy_from_slice(&data_segment_length.to_be_bytes()[1..]);
    raw
}

#[inline]
pub(crate) fn expect(raw: &Raw, opcode: Opcode) -> Result<(), WireError> {
    let found = Opcode::parse(raw[field::OPCODE])?;
    if found == opcode { Ok(()) } else { Err(WireError::UnexpectedOpcode(found)) }
}

#[inline]
pub(crate) fn get_sns(raw: &Raw) -> (StatSn, CmdSn, CmdSn) {
    (
        StatSn(get_u32(raw, field::STAT_SN)),
        CmdSn(get_u32(raw, field::EXP_CMD_SN)),
        CmdSn(get_u32(raw, field::MAX_CMD_SN)),
    )
}

#[inline]
pub(crate) fn put_sns(raw: &mut Raw, stat_sn: StatSn, exp_cmd_sn: CmdSn, max_cmd_sn: CmdSn) {
    put_u32(raw, field::STAT_SN, stat_sn.0);
    put_u32(raw, field::EXP_CMD_SN, exp_cmd_sn.0);
    put_u32(raw, field::MAX_CMD_SN, max_cmd_sn.0);
}

macro_rules! pdu_enum {
    ($(#[$doc:meta])* $name:ident { $($variant:ident($repr:ident)),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = concat!("See [`", stringify!($repr), "`].")] $variant($repr),)+
        }

        impl $name {
            /// Parses a header of any PDU of this direction; fails for an opcode of the other direction.
            pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
                match Opcode::parse(raw[field::OPCODE])? {
                    $(Opcode::$variant => $repr::parse(raw).map(Self::$variant),)+
                    other => Err(WireError::UnexpectedOpcode(other)),
                }
            }

            #[must_use]
            pub fn emit(&self) -> [u8; BHS_LENGTH] {
                match self {
                    $(Self::$variant(repr) => repr.emit(),)+
                }
            }
        }

        $(impl From<$repr> for $name {
            fn from(repr: $repr) -> Self {
                Self::$variant(repr)
            }
        })+
    };
}

pdu_enum! {
    InitiatorPdu {
        NopOut(NopOut),
        ScsiCommand(ScsiCommand),
        TmRequest(TmRequest),
        LoginRequest(LoginRequest),
        TextRequest(TextRequest),
        DataOut(DataOut),
        LogoutRequest(LogoutRequest),
        Snack(Snack),
    }
}

pdu_enum! {
    TargetPdu {
        NopIn(NopIn),
        ScsiResponse(ScsiResponse),
        TmResponse(TmResponse),
        LoginResponse(LoginResponse),
        TextResponse(TextResponse),
        DataIn(DataIn),
        LogoutResponse(LogoutResponse),
        R2t(R2t),
        AsyncMessage(AsyncMessage),
        Reject(Reject),
    }
}

#[cfg(test)]
mod tests;
