//! Logout Request and Response (RFC 7143 §11.14, §11.15).

use super::{
    BHS_LENGTH, Bhs, CmdSn, FINAL, Itt, Opcode, StatSn, WireError, begin, expect, field, get_sns, get_u16,
    get_u32, open_enum, put_sns, put_u16, put_u32,
};

open_enum! {
    /// Why the initiator logs out (§11.14.1).
    LogoutReason(u8) {
        CloseSession = 0,
        CloseConnection = 1,
        /// Remove the connection `cid` for recovery: its tasks wait for reassignment.
        RemoveConnectionForRecovery = 2,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogoutRequest {
    pub immediate: bool,
    pub reason: LogoutReason,
    pub itt: Itt,
    /// Connection to close; ignored if the session is closed.
    pub cid: u16,
    pub cmd_sn: CmdSn,
    pub exp_stat_sn: StatSn,
}

impl LogoutRequest {
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::LogoutRequest)?;
        let bhs = Bhs(raw);
        Ok(Self {
            immediate: bhs.immediate(),
            reason: LogoutReason::from_code(raw[field::FLAGS] & 0x7f),
            itt: bhs.itt(),
            cid: get_u16(raw, field::CID),
            cmd_sn: CmdSn(get_u32(raw, field::CMD_SN)),
            exp_stat_sn: StatSn(get_u32(raw, field::EXP_STAT_SN)),
        })
    }

    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::LogoutRequest, self.immediate, FINAL | self.reason.code() & 0x7f, 0);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u16(&mut raw, field::CID, self.cid);
        put_u32(&mut raw, field::CMD_SN, self.cmd_sn.0);
        put_u32(&mut raw, field::EXP_STAT_SN, self.exp_stat_sn.0);
        raw
    }
}

open_enum! {
    LogoutResult(u8) {
        Closed = 0,
        CidNotFound = 1,
        RecoveryNotSupported = 2,
        CleanupFailed = 3,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogoutResponse {
    pub result: LogoutResult,
    pub itt: Itt,
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    /// Seconds to wait before reconnecting (Time2Wait).
    pub time2wait: u16,
    /// Seconds, after Time2Wait, for which the target keeps tasks (Time2Retain).
    pub time2retain: u16,
}

impl LogoutResponse {
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::LogoutResponse)?;
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        Ok(Self {
            result: LogoutResult::from_code(raw[field::RESPONSE]),
            itt: Bhs(raw).itt(),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            time2wait: get_u16(raw, field::PARAMETER2),
            time2retain: get_u16(raw, field::PARAMETER3),
        })
    }

    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::LogoutResponse, false, FINAL, 0);
        raw[field::RESPONSE] = self.result.code();
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        put_u16(&mut raw, field::PARAMETER2, self.time2wait);
        put_u16(&mut raw, field::PARAMETER3, self.time2retain);
        raw
    }
}
