//! Login Request and Response (RFC 7143 §11.12, §11.13).

use super::{
    BHS_LENGTH, Bhs, CONTINUE, CmdSn, FINAL, Isid, Itt, Opcode, Raw, StatSn, WireError, begin, bit, expect,
    field, get_sns, get_u16, get_u32, open_enum, put_sns, put_u16, put_u32,
};

/// Stages of a connection (§11.12.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    Security = 0,
    Operational = 1,
    FullFeature = 3,
}

impl Stage {
    const fn parse(code: u8) -> Result<Self, WireError> {
        match code & 0x03 {
            0 => Ok(Self::Security),
            1 => Ok(Self::Operational),
            3 => Ok(Self::FullFeature),
            _ => Err(WireError::ReservedStage),
        }
    }
}

/// T, C, CSG and NSG of the flags byte. NSG is valid only with T (§11.12.3); without T it is read as CSG, because some
/// initiators leave arbitrary bits there.
fn get_stages(raw: &Raw) -> Result<(bool, bool, Stage, Stage), WireError> {
    let flags = raw[field::FLAGS];
    let (transit, continues) = (flags & FINAL != 0, flags & CONTINUE != 0);
    if transit && continues {
        return Err(WireError::FinalAndContinue);
    }
    let csg = Stage::parse(flags >> 2)?;
    let nsg = if transit { Stage::parse(flags)? } else { csg };
    Ok((transit, continues, csg, nsg))
}

const fn stage_flags(transit: bool, continues: bool, csg: Stage, nsg: Stage) -> u8 {
    let flags = if transit { FINAL | nsg as u8 } else { 0 } | bit(continues, CONTINUE);
    flags | (csg as u8) << 2
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginRequest {
    /// T bit: the initiator is ready to leave the stage `csg` for `nsg`.
    pub transit: bool,
    pub continues: bool,
    pub csg: Stage,
    /// Next stage; emitted only with `transit`, read as `csg` without.
    pub nsg: Stage,
    pub version_max: u8,
    pub version_min: u8,
    pub isid: Isid,
    /// Target part of the session identifier; 0 requests a new session.
    pub tsih: u16,
    /// Initiator task tag; equal in every request of one login.
    pub itt: Itt,
    pub cid: u16,
    /// InitialCmdSN in the first request of a session.
    pub cmd_sn: CmdSn,
    /// Next StatSN expected; in a first request meaningful only when a connection is being restored.
    pub exp_stat_sn: StatSn,
    pub data_segment_length: u32,
}

impl LoginRequest {
    /// Parses the header; fails for another opcode, for T with C and for a reserved stage.
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::LoginRequest)?;
        let bhs = Bhs(raw);
        let (transit, continues, csg, nsg) = get_stages(raw)?;
        Ok(Self {
            transit,
            continues,
            csg,
            nsg,
            version_max: raw[field::RESPONSE],
            version_min: raw[field::STATUS],
            isid: get_isid(raw),
            tsih: get_u16(raw, field::TSIH),
            itt: bhs.itt(),
            cid: get_u16(raw, field::CID),
            cmd_sn: CmdSn(get_u32(raw, field::CMD_SN)),
            exp_stat_sn: StatSn(get_u32(raw, field::EXP_STAT_SN)),
            data_segment_length: bhs.data_segment_length(),
        })
    }

    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let flags = stage_flags(self.transit, self.continues, self.csg, self.nsg);
        let mut raw = begin(Opcode::LoginRequest, true, flags, self.data_segment_length);
        raw[field::RESPONSE] = self.version_max;
        raw[field::STATUS] = self.version_min;
        raw[field::ISID].copy_from_slice(&self.isid.0);
        put_u16(&mut raw, field::TSIH, self.tsih);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u16(&mut raw, field::CID, self.cid);
        put_u32(&mut raw, field::CMD_SN, self.cmd_sn.0);
        put_u32(&mut raw, field::EXP_STAT_SN, self.exp_stat_sn.0);
        raw
    }
}

fn get_isid(raw: &Raw) -> Isid {
    let mut isid = [0; 6];
    isid.copy_from_slice(&raw[field::ISID]);
    Isid(isid)
}

open_enum! {
    /// Status class (high byte) and detail (low byte) of a Login Response (§11.13.5).
    LoginStatus(u16) {
        Success = 0x0000,
        TargetMovedTemporarily = 0x0101,
        TargetMovedPermanently = 0x0102,
        InitiatorError = 0x0200,
        /// The initiator could not be authenticated, or authentication is not supported.
        AuthenticationFailure = 0x0201,
        AuthorizationFailure = 0x0202,
        NotFound = 0x0203,
        TargetRemoved = 0x0204,
        UnsupportedVersion = 0x0205,
        TooManyConnections = 0x0206,
        /// A key such as InitiatorName or TargetName is missing.
        MissingParameter = 0x0207,
        /// The target does not support sessions that span this connection.
        CannotIncludeInSession = 0x0208,
        SessionTypeNotSupported = 0x0209,
        SessionDoesNotExist = 0x020a,
        InvalidRequestDuringLogin = 0x020b,
        TargetError = 0x0300,
        ServiceUnavailable = 0x0301,
        OutOfResources = 0x0302,
    }
}

impl LoginStatus {
    /// Status class: 0 success, 1 redirection, 2 initiator error, 3 target error.
    #[must_use]
    pub const fn class(self) -> u8 {
        (self.code() >> 8) as u8
    }

    #[must_use]
    pub const fn detail(self) -> u8 {
        (self.code() & 0xff) as u8
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginResponse {
    pub transit: bool,
    pub continues: bool,
    pub csg: Stage,
    /// Next stage; emitted only with `transit`, read as `csg` without.
    pub nsg: Stage,
    pub version_max: u8,
    pub version_active: u8,
    pub isid: Isid,
    /// The TSIH that the target assigned, in the last response of a successful login; before that, the request's.
    pub tsih: u16,
    pub itt: Itt,
    /// Status sequence number; valid when `status` is of class 0.
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    pub status: LoginStatus,
    pub data_segment_length: u32,
}

impl LoginResponse {
    /// Parses the header; fails for another opcode. T with C and reserved stages are errors only in status class 0:
    /// other classes have no valid stages (§11.13).
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::LoginResponse)?;
        let bhs = Bhs(raw);
        let status = LoginStatus::from_code(get_u16(raw, field::LOGIN_STATUS));
        let (transit, continues, csg, nsg) = match get_stages(raw) {
            Err(_) if status.class() != 0 => (false, false, Stage::Security, Stage::Security),
            stages => stages?,
        };
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        Ok(Self {
            transit,
            continues,
            csg,
            nsg,
            version_max: raw[field::RESPONSE],
            version_active: raw[field::STATUS],
            isid: get_isid(raw),
            tsih: get_u16(raw, field::TSIH),
            itt: bhs.itt(),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            status,
            data_segment_length: bhs.data_segment_length(),
        })
    }

    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let flags = stage_flags(self.transit, self.continues, self.csg, self.nsg);
        let mut raw = begin(Opcode::LoginResponse, false, flags, self.data_segment_length);
        raw[field::RESPONSE] = self.version_max;
        raw[field::STATUS] = self.version_active;
        raw[field::ISID].copy_from_slice(&self.isid.0);
        put_u16(&mut raw, field::TSIH, self.tsih);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        put_u16(&mut raw, field::LOGIN_STATUS, self.status.code());
        raw
    }
}
