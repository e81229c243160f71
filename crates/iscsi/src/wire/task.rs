//! Task Management Function Request and Response (RFC 7143 §11.5, §11.6; RFC 7144 §4).

use super::{
    BHS_LENGTH, Bhs, CmdSn, DataSn, FINAL, Itt, Opcode, StatSn, WireError, begin, expect, field, get_sns,
    get_u32, open_enum, put_sns, put_u32, put_u64,
};

open_enum! {
    /// Task management function (§11.5.1; 9 and above from RFC 7144).
    TmFunction(u8) {
        /// ABORT TASK: the task of the referenced task tag.
        AbortTask = 1,
        /// ABORT TASK SET: this nexus's tasks on the logical unit.
        AbortTaskSet = 2,
        /// CLEAR ACA.
        ClearAca = 3,
        /// CLEAR TASK SET: every nexus's tasks on the logical unit.
        ClearTaskSet = 4,
        /// LOGICAL UNIT RESET.
        LogicalUnitReset = 5,
        /// TARGET WARM RESET.
        TargetWarmReset = 6,
        /// TARGET COLD RESET: also ends all sessions.
        TargetColdReset = 7,
        /// TASK REASSIGN: moves a task to this connection.
        TaskReassign = 8,
        /// QUERY TASK.
        QueryTask = 9,
        /// QUERY TASK SET.
        QueryTaskSet = 10,
        /// I_T NEXUS RESET.
        ItNexusReset = 11,
        /// QUERY ASYNCHRONOUS EVENT.
        QueryAsynchronousEvent = 12,
    }
}

/// Task Management Function Request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TmRequest {
    /// Takes no CmdSN.
    pub immediate: bool,
    /// What to do.
    pub function: TmFunction,
    /// Logical unit, where the function has one.
    pub lun: u64,
    /// Tag of this request.
    pub itt: Itt,
    /// Tag of the task concerned (ABORT TASK, TASK REASSIGN, QUERY TASK), else reserved.
    pub referenced_task_tag: Itt,
    /// Command sequence number.
    pub cmd_sn: CmdSn,
    /// Next StatSN the initiator expects.
    pub exp_stat_sn: StatSn,
    /// CmdSN of the task to abort (ABORT TASK).
    pub ref_cmd_sn: CmdSn,
    /// Next DataSN wanted (TASK REASSIGN).
    pub exp_data_sn: DataSn,
}

impl TmRequest {
    /// Reads the header.
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::TmRequest)?;
        let bhs = Bhs(raw);
        Ok(Self {
            immediate: bhs.immediate(),
            function: TmFunction::from_code(raw[field::FLAGS] & 0x7f),
            lun: bhs.lun(),
            itt: bhs.itt(),
            referenced_task_tag: Itt(get_u32(raw, field::REFERENCED_TASK_TAG)),
            cmd_sn: CmdSn(get_u32(raw, field::CMD_SN)),
            exp_stat_sn: StatSn(get_u32(raw, field::EXP_STAT_SN)),
            ref_cmd_sn: CmdSn(get_u32(raw, field::REF_CMD_SN)),
            exp_data_sn: DataSn(get_u32(raw, field::DATA_SN)),
        })
    }

    /// Writes the header.
    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::TmRequest, self.immediate, FINAL | self.function.code() & 0x7f, 0);
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::REFERENCED_TASK_TAG, self.referenced_task_tag.0);
        put_u32(&mut raw, field::CMD_SN, self.cmd_sn.0);
        put_u32(&mut raw, field::EXP_STAT_SN, self.exp_stat_sn.0);
        put_u32(&mut raw, field::REF_CMD_SN, self.ref_cmd_sn.0);
        put_u32(&mut raw, field::DATA_SN, self.exp_data_sn.0);
        raw
    }
}

open_enum! {
    /// Outcome of a task management function (§11.6.1; 7 from RFC 7144).
    TmResult(u8) {
        /// Function complete.
        Complete = 0,
        /// Task does not exist.
        TaskDoesNotExist = 1,
        /// LUN does not exist.
        LunDoesNotExist = 2,
        /// Task still allegiant.
        TaskStillAllegiant = 3,
        /// Task allegiance reassignment not supported.
        ReassignmentNotSupported = 4,
        /// Task management function not supported.
        NotSupported = 5,
        /// Function authorization failed.
        AuthorizationFailed = 6,
        /// Function succeeded (the queried thing exists).
        Succeeded = 7,
        /// Function rejected.
        Rejected = 255,
    }
}

/// Task Management Function Response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TmResponse {
    /// Outcome.
    pub result: TmResult,
    /// Additional response information (RFC 7144 §4.1), the four bytes of the TTT's place; zero otherwise.
    pub information: u32,
    /// Tag of the request.
    pub itt: Itt,
    /// Status sequence number.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Last CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
}

impl TmResponse {
    /// Reads the header.
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::TmResponse)?;
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        Ok(Self {
            result: TmResult::from_code(raw[field::RESPONSE]),
            information: get_u32(raw, field::TTT),
            itt: Bhs(raw).itt(),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
        })
    }

    /// Writes the header.
    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::TmResponse, false, FINAL, 0);
        raw[field::RESPONSE] = self.result.code();
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::TTT, self.information);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        raw
    }
}
