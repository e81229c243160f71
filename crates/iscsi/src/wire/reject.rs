//! Reject (RFC 7143 §11.17). The data segment is the header of the PDU that was refused.

use super::{
    BHS_LENGTH, Bhs, CmdSn, DataSn, FINAL, Opcode, RESERVED_TAG, StatSn, WireError, begin, expect, field,
    get_sns, get_u32, open_enum, put_sns, put_u32,
};

open_enum! {
    /// Why a PDU was refused (§11.17.1).
    RejectReason(u8) {
        /// Data digest error.
        DataDigestError = 0x02,
        /// SNACK reject.
        SnackReject = 0x03,
        /// Protocol error.
        ProtocolError = 0x04,
        /// Command not supported.
        CommandNotSupported = 0x05,
        /// Too many immediate commands.
        TooManyImmediateCommands = 0x06,
        /// Task in progress.
        TaskInProgress = 0x07,
        /// Invalid data ACK.
        InvalidDataAck = 0x08,
        /// Invalid PDU field.
        InvalidPduField = 0x09,
        /// Long operation reject: no target transfer tag to be had.
        LongOperationReject = 0x0a,
        /// Negotiation reset (obsolete in RFC 7143, still sent by RFC 3720 peers).
        NegotiationReset = 0x0b,
        /// Waiting for logout.
        WaitingForLogout = 0x0c,
    }
}

/// Reject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reject {
    /// Why.
    pub reason: RejectReason,
    /// Status sequence number.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Last CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
    /// DataSN or R2TSN of the next PDU of the task, for a refused SNACK.
    pub data_sn: DataSn,
    /// Bytes of the refused PDU that follow, normally 48.
    pub data_segment_length: u32,
}

impl Reject {
    /// Reads the header.
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::Reject)?;
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        Ok(Self {
            reason: RejectReason::from_code(raw[field::RESPONSE]),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            data_sn: DataSn(get_u32(raw, field::DATA_SN)),
            data_segment_length: Bhs(raw).data_segment_length(),
        })
    }

    /// Writes the header.
    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::Reject, false, FINAL, self.data_segment_length);
        raw[field::RESPONSE] = self.reason.code();
        put_u32(&mut raw, field::ITT, RESERVED_TAG);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        put_u32(&mut raw, field::DATA_SN, self.data_sn.0);
        raw
    }
}
