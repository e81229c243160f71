//! The PDUs of RFC 7143 §11, as views and as meanings.
//!
//! [`Bhs`] is a view of the 48-byte basic header segment with every common field; each PDU has a `Repr`-like
//! struct ([`ScsiCommand`], [`DataIn`], ...) with `parse(&[u8; 48])` and `emit() -> [u8; 48]`. Nothing here
//! allocates, keeps state, or looks at data segments. Reserved bits are ignored when reading and zero when
//! writing, as §11 asks; values that the standards do not define survive as `Other(..)`, so that the caller can
//! answer them in the protocol's words.

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
/// The one protocol version there is (§11.12.4).
pub const VERSION: u8 = 0x00;

/// A named byte range of the header.
pub type Field = Range<usize>;

/// Where the fields of the 48-byte header are (§11.2 and the PDU layouts after it).
pub mod field {
    use super::Field;

    /// Immediate bit (0x40) and opcode (0x3f).
    pub const OPCODE: usize = 0;
    /// Final bit (0x80) and the flags of the opcode.
    pub const FLAGS: usize = 1;
    /// Response code, reason or Version-max.
    pub const RESPONSE: usize = 2;
    /// SCSI status or Version-min / Version-active.
    pub const STATUS: usize = 3;
    /// TotalAHSLength in four-byte words.
    pub const TOTAL_AHS_LENGTH: usize = 4;
    /// DataSegmentLength in bytes, without padding.
    pub const DATA_SEGMENT_LENGTH: Field = 5..8;
    /// Logical unit number.
    pub const LUN: Field = 8..16;
    /// Initiator part of the session identifier (login only).
    pub const ISID: Field = 8..14;
    /// Target part of the session identifier (login only).
    pub const TSIH: Field = 14..16;
    /// Initiator task tag.
    pub const ITT: Field = 16..20;
    /// Target transfer tag.
    pub const TTT: Field = 20..24;
    /// Expected data transfer length (SCSI Command).
    pub const EXPECTED_DATA_TRANSFER_LENGTH: Field = 20..24;
    /// Connection identifier (login and logout).
    pub const CID: Field = 20..22;
    /// Referenced task tag (task management).
    pub const REFERENCED_TASK_TAG: Field = 20..24;
    /// SNACK tag (SCSI Response).
    pub const SNACK_TAG: Field = 20..24;
    /// CmdSN, from the initiator.
    pub const CMD_SN: Field = 24..28;
    /// StatSN, from the target.
    pub const STAT_SN: Field = 24..28;
    /// ExpStatSN, from the initiator.
    pub const EXP_STAT_SN: Field = 28..32;
    /// ExpCmdSN, from the target.
    pub const EXP_CMD_SN: Field = 28..32;
    /// MaxCmdSN, from the target.
    pub const MAX_CMD_SN: Field = 32..36;
    /// Command descriptor block.
    pub const CDB: Field = 32..48;
    /// RefCmdSN (task management).
    pub const REF_CMD_SN: Field = 32..36;
    /// DataSN, R2TSN or ExpDataSN.
    pub const DATA_SN: Field = 36..40;
    /// Status class and detail (Login Response).
    pub const LOGIN_STATUS: Field = 36..38;
    /// Event code (Asynchronous Message).
    pub const ASYNC_EVENT: usize = 36;
    /// Vendor event code (Asynchronous Message).
    pub const ASYNC_VCODE: usize = 37;
    /// Parameter 1 (Asynchronous Message).
    pub const PARAMETER1: Field = 38..40;
    /// Parameter 2 (Asynchronous Message), Time2Wait (Logout Response).
    pub const PARAMETER2: Field = 40..42;
    /// Parameter 3 (Asynchronous Message), Time2Retain (Logout Response).
    pub const PARAMETER3: Field = 42..44;
    /// Buffer offset (data and R2T).
    pub const BUFFER_OFFSET: Field = 40..44;
    /// Bidirectional read residual count (SCSI Response).
    pub const BIDI_RESIDUAL_COUNT: Field = 40..44;
    /// First number of a SNACK run.
    pub const BEG_RUN: Field = 40..44;
    /// Residual count.
    pub const RESIDUAL_COUNT: Field = 44..48;
    /// Desired data transfer length (R2T).
    pub const DESIRED_DATA_TRANSFER_LENGTH: Field = 44..48;
    /// Length of a SNACK run.
    pub const RUN_LENGTH: Field = 44..48;
}

/// The final bit of the flags byte; the T bit in login.
pub(crate) const FINAL: u8 = 0x80;
/// The continue bit of login and text PDUs.
pub(crate) const CONTINUE: u8 = 0x40;
const IMMEDIATE: u8 = 0x40;

/// Why 48 bytes are not the PDU they were taken for. The peer's fault: the answer is Reject or a closed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The opcode is none that RFC 7143 defines.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// The opcode is another one than this parser reads, or one that the peer's role must not send.
    #[error("unexpected opcode {0:?}")]
    UnexpectedOpcode(Opcode),
    /// Overflow and underflow are both set (§11.4.1).
    #[error("residual overflow and underflow both set")]
    ResidualFlags,
    /// The T and C bits are both set (§11.12.1, §11.12.2), or F and C of a text PDU (§11.10.1).
    #[error("final (or transit) and continue both set")]
    FinalAndContinue,
    /// A stage that RFC 7143 reserves (CSG or NSG = 2).
    #[error("reserved login stage")]
    ReservedStage,
    /// The AHS area ends inside an AHS, or an AHS has an impossible length.
    #[error("malformed additional header segment")]
    MalformedAhs,
}

/// Opcodes of both directions (§11.2.1.2). The high bit of the six tells them apart: set means from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// NOP-Out.
    NopOut = 0x00,
    /// SCSI Command.
    ScsiCommand = 0x01,
    /// SCSI Task Management Function Request.
    TmRequest = 0x02,
    /// Login Request.
    LoginRequest = 0x03,
    /// Text Request.
    TextRequest = 0x04,
    /// SCSI Data-Out.
    DataOut = 0x05,
    /// Logout Request.
    LogoutRequest = 0x06,
    /// SNACK Request.
    Snack = 0x10,
    /// NOP-In.
    NopIn = 0x20,
    /// SCSI Response.
    ScsiResponse = 0x21,
    /// SCSI Task Management Function Response.
    TmResponse = 0x22,
    /// Login Response.
    LoginResponse = 0x23,
    /// Text Response.
    TextResponse = 0x24,
    /// SCSI Data-In.
    DataIn = 0x25,
    /// Logout Response.
    LogoutResponse = 0x26,
    /// Ready To Transfer.
    R2t = 0x31,
    /// Asynchronous Message.
    AsyncMessage = 0x32,
    /// Reject.
    Reject = 0x3f,
}

impl Opcode {
    /// Reads the opcode from the first byte of a header (the immediate bit is masked off).
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

    /// Whether PDUs of this opcode travel from the target to the initiator.
    #[must_use]
    pub const fn is_from_target(self) -> bool {
        self as u8 & 0x20 != 0
    }
}

/// A view of the 48-byte basic header segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bhs<'a>(pub &'a [u8; BHS_LENGTH]);

impl Bhs<'_> {
    /// The opcode, if it is one that RFC 7143 defines.
    pub const fn opcode(&self) -> Result<Opcode, WireError> {
        Opcode::parse(self.0[field::OPCODE])
    }

    /// The immediate bit: this request takes no CmdSN.
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

    /// The logical unit number, where the opcode has one.
    #[must_use]
    pub fn lun(&self) -> u64 {
        get_u64(self.0, field::LUN)
    }

    /// The initiator task tag.
    #[must_use]
    pub fn itt(&self) -> Itt {
        Itt(get_u32(self.0, field::ITT))
    }
}

/// `length` rounded up to the four bytes that iSCSI pads segments to (§11.1).
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
            /// The value that means "no tag".
            pub const RESERVED: Self = Self(RESERVED_TAG);

            /// Whether this is the reserved "no tag" value.
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
    /// Initiator task tag.
    Itt
}
tag! {
    /// Target transfer tag.
    Ttt
}

/// Initiator part of the session identifier (§11.12.5). Two sessions of one initiator name to one target portal
/// group must differ in it; logging in again with the same one reinstates (kills) the older session.
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

    /// Whether this is of the random type (10b).
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

/// A code that the standards define partly: known names, and `Other` for what they do not name.
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
            /// The meaning of a code.
            #[must_use]
            pub const fn from_code(code: $int) -> Self {
                match code {
                    $($value => Self::$variant,)+
                    other => Self::Other(other),
                }
            }

            /// The code on the wire.
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

/// `mask` where `on` holds, for putting flag bytes together.
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

/// A zeroed header with opcode, flags and data segment length.
///
/// Panics when the length does not fit 24 bits: no machine of ours may negotiate that much.
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
            /// Reads whichever PDU of this direction the header is.
            pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
                match Opcode::parse(raw[field::OPCODE])? {
                    $(Opcode::$variant => $repr::parse(raw).map(Self::$variant),)+
                    other => Err(WireError::UnexpectedOpcode(other)),
                }
            }

            /// Writes the header.
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
    /// Any PDU that an initiator sends.
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
    /// Any PDU that a target sends.
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
