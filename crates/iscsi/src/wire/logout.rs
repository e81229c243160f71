//! Logout Request and Response (RFC 7143 §11.14, §11.15).

use super::{
    BHS_LENGTH, Bhs, CmdSn, FINAL, Itt, Opcode, StatSn, WireError, begin, expect, field, get_sns, get_u16,
    get_u32, open_enum, put_sns, put_u16, put_u32,
};

open_enum! {
    /// Why the initiator logs out (§11.14.1).
    LogoutReason(u8) {
        /// Close the session with all its connections.
        CloseSession = 0,
        /// Close the connection `cid`.
        CloseConnection = 1,
        /// Remove the connection `cid` for recovery: its tasks wait for reassignment.
        RemoveConnectionForRecovery = 2,
    }
}

/// Logout Request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Takes no CmdSN.
    pub immediate: bool,
    /// What to close.
    pub reason: LogoutReason,
    /// Tag.
    pub itt: Itt,
    /// The connection, unless the session is closed.
    pub cid: u16,
    /// Command sequence number.
    pub cmd_sn: CmdSn,
    /// Next StatSN the initiator expects.
    pub exp_stat_sn: StatSn,
}

impl LogoutRequest {
    /// Reads the header.
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

    /// Writes the header.
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
    /// Outcome of a logout (§11.15.1).
    LogoutResult(u8) {
        /// Connection or session closed.
        Closed = 0,
        /// CID not found.
        CidNotFound = 1,
        /// Connection recovery is not supported.
        RecoveryNotSupported = 2,
        /// Cleanup failed.
        CleanupFailed = 3,
    }
}

/// Logout Response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogoutResponse {
    /// Outcome.
    pub result: LogoutResult,
    /// Tag of the request.
    pub itt: Itt,
    /// Status sequence number.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Last CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
    /// Seconds to wait before reconnecting.
    pub time2wait: u16,
    /// Seconds, after the wait, for which tasks are kept.
    pub time2retain: u16,
}

impl LogoutResponse {
    /// Reads the header.
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

    /// Writes the header.
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
