//! Login Request and Response (RFC 7143 §11.12, §11.13).

use super::{
    BHS_LENGTH, Bhs, CONTINUE, CmdSn, FINAL, Isid, Itt, Opcode, Raw, StatSn, WireError, begin, bit, expect,
    field, get_sns, get_u16, get_u32, open_enum, put_sns, put_u16, put_u32,
};

/// Stages of a connection (§11.12.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// SecurityNegotiation.
    Security = 0,
    /// LoginOperationalNegotiation.
    Operational = 1,
    /// FullFeaturePhase.
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

/// T, C, CSG and NSG of the flags byte. NSG counts only with T (§11.12.3) and is read as CSG otherwise, since
/// initiators exist that leave anything there.
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

/// Login Request; always immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginRequest {
    /// T: the initiator is ready to leave the stage `csg` for `nsg`.
    pub transit: bool,
    /// C: the text goes on in the next request.
    pub continues: bool,
    /// Current stage.
    pub csg: Stage,
    /// Next stage; written only with `transit`, read as `csg` without.
    pub nsg: Stage,
    /// Highest version supported.
    pub version_max: u8,
    /// Lowest version supported.
    pub version_min: u8,
    /// Initiator part of the session identifier.
    pub isid: Isid,
    /// Target part: 0 asks for a new session.
    pub tsih: u16,
    /// Tag; the same in every request of one login.
    pub itt: Itt,
    /// Connection identifier.
    pub cid: u16,
    /// InitialCmdSN in the first request of a session.
    pub cmd_sn: CmdSn,
    /// Next StatSN expected; in a first request meaningful only when a connection is being restored.
    pub exp_stat_sn: StatSn,
    /// Text, bytes.
    pub data_segment_length: u32,
}

impl LoginRequest {
    /// Reads the header.
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

    /// Writes the header.
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
        /// Success.
        Success = 0x0000,
        /// The target moved temporarily; TargetAddress says where.
        TargetMovedTemporarily = 0x0101,
        /// The target moved permanently; TargetAddress says where.
        TargetMovedPermanently = 0x0102,
        /// Miscellaneous initiator error.
        InitiatorError = 0x0200,
        /// The initiator could not be authenticated, or authentication is not supported.
        AuthenticationFailure = 0x0201,
        /// The initiator is not allowed to use the target.
        AuthorizationFailure = 0x0202,
        /// The target does not exist here.
        NotFound = 0x0203,
        /// The target was removed, and no new address is known.
        TargetRemoved = 0x0204,
        /// The version range is not supported.
        UnsupportedVersion = 0x0205,
        /// Too many connections on this session.
        TooManyConnections = 0x0206,
        /// A key such as InitiatorName or TargetName is missing.
        MissingParameter = 0x0207,
        /// The target does not support sessions that span this connection.
        CannotIncludeInSession = 0x0208,
        /// The session type is not supported.
        SessionTypeNotSupported = 0x0209,
        /// The session to add a connection to does not exist.
        SessionDoesNotExist = 0x020a,
        /// A request type not valid during login.
        InvalidRequestDuringLogin = 0x020b,
        /// Target hardware or software error.
        TargetError = 0x0300,
        /// The service is not available now.
        ServiceUnavailable = 0x0301,
        /// Out of resources.
        OutOfResources = 0x0302,
    }
}

impl LoginStatus {
    /// Status class: 0 success, 1 redirection, 2 initiator error, 3 target error.
    #[must_use]
    pub const fn class(self) -> u8 {
        (self.code() >> 8) as u8
    }

    /// Status detail within the class.
    #[must_use]
    pub const fn detail(self) -> u8 {
        (self.code() & 0xff) as u8
    }
}

/// Login Response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginResponse {
    /// T: the target agrees to leave `csg` for `nsg`.
    pub transit: bool,
    /// C: the text goes on in the next response.
    pub continues: bool,
    /// Current stage.
    pub csg: Stage,
    /// Next stage; written only with `transit`, read as `csg` without.
    pub nsg: Stage,
    /// Highest version supported.
    pub version_max: u8,
    /// Version in use.
    pub version_active: u8,
    /// Repeats the request's.
    pub isid: Isid,
    /// The session's handle in the last response of a successful login; before that, the request's.
    pub tsih: u16,
    /// Tag of the request.
    pub itt: Itt,
    /// Status sequence number; valid when `status` is of class 0.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Last CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
    /// Class and detail.
    pub status: LoginStatus,
    /// Text, bytes.
    pub data_segment_length: u32,
}

impl LoginResponse {
    /// Reads the header. Stages count only in class 0 (§11.13): a refusal's are read leniently.
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

    /// Writes the header.
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
