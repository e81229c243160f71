//! Task Management Function Request and Response (RFC 7143 §11.5, §11.6; RFC 7144 §4).

use super::{
    BHS_LENGTH, Bhs, CmdSn, DataSn, FINAL, Itt, Opcode, StatSn, WireError, begin, expect, field, get_sns,
    get_u32, open_enum, put_sns, put_u32, put_u64,
};

open_enum! {
    /// Task management function (§11.5.1; 9 and above from RFC 7144).
    TmFunction(u8) {
        AbortTask = 1,
        /// ABORT TASK SET: aborts the tasks of this I_T nexus on the logical unit.
        AbortTaskSet = 2,
        ClearAca = 3,
        /// CLEAR TASK SET: aborts the tasks of every I_T nexus on the logical unit.
        ClearTaskSet = 4,
        LogicalUnitReset = 5,
        TargetWarmReset = 6,
        /// TARGET COLD RESET: also ends all sessions.
        TargetColdReset = 7,
        TaskReassign = 8,
        QueryTask = 9,
        QueryTaskSet = 10,
        ItNexusReset = 11,
        QueryAsynchronousEvent = 12,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TmRequest {
    pub immediate: bool,
    pub function: TmFunction,
    pub lun: u64,
    pub itt: Itt,
    /// Initiator task tag of the task concerned (ABORT TASK, TASK REASSIGN, QUERY TASK), otherwise reserved.
    pub referenced_task_tag: Itt,
    pub cmd_sn: CmdSn,
    pub exp_stat_sn: StatSn,
    /// CmdSN of the task to abort (ABORT TASK).
    pub ref_cmd_sn: CmdSn,
    /// Next DataSN that the initiator expects (TASK REASSIGN).
    pub exp_data_sn: DataSn,
}

impl TmRequest {
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
        Complete = 0,
        TaskDoesNotExist = 1,
        LunDoesNotExist = 2,
        TaskStillAllegiant = 3,
        ReassignmentNotSupported = 4,
        NotSupported = 5,
        AuthorizationFailed = 6,
        /// Function succeeded: a query found its task or event.
        Succeeded = 7,
        Rejected = 255,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TmResponse {
    pub result: TmResult,
    /// Additional response information (RFC 7144 §4.1), four bytes at the offset of the TTT; zero for other functions.
    pub information: u32,
    pub itt: Itt,
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
}

impl TmResponse {
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
