//! Reject (RFC 7143 §11.17). Its data segment is the header of the rejected PDU.

use super::{
    BHS_LENGTH, Bhs, CmdSn, DataSn, FINAL, Opcode, RESERVED_TAG, StatSn, WireError, begin, expect, field,
    get_sns, get_u32, open_enum, put_sns, put_u32,
};

open_enum! {
    /// Why a PDU was rejected (§11.17.1).
    RejectReason(u8) {
        DataDigestError = 0x02,
        SnackReject = 0x03,
        ProtocolError = 0x04,
        CommandNotSupported = 0x05,
        TooManyImmediateCommands = 0x06,
        TaskInProgress = 0x07,
        InvalidDataAck = 0x08,
        InvalidPduField = 0x09,
        /// Long operation reject: the target can assign no target transfer tag.
        LongOperationReject = 0x0a,
        /// Negotiation reset (obsolete in RFC 7143, still sent by RFC 3720 peers).
        NegotiationReset = 0x0b,
        WaitingForLogout = 0x0c,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reject {
    pub reason: RejectReason,
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    /// DataSN or R2TSN of the next PDU of the task, if a SNACK was rejected.
    pub data_sn: DataSn,
    /// Bytes of the rejected PDU that follow, normally 48.
    pub data_segment_length: u32,
}

impl Reject {
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
