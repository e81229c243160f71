//! NOP-Out and NOP-In (RFC 7143 §11.18, §11.19).

use super::{
    BHS_LENGTH, Bhs, CmdSn, FINAL, Itt, Opcode, StatSn, Ttt, WireError, begin, expect, field, get_sns,
    get_u32, put_sns, put_u32, put_u64,
};

/// NOP-Out: a ping (valid ITT), or the answer to a target's NOP-In (valid TTT, reserved ITT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NopOut {
    pub immediate: bool,
    /// Zero, or the LUN of the NOP-In being answered.
    pub lun: u64,
    /// Initiator task tag; reserved if no NOP-In is requested.
    pub itt: Itt,
    /// Reserved unless this answers a NOP-In.
    pub ttt: Ttt,
    pub cmd_sn: CmdSn,
    pub exp_stat_sn: StatSn,
    pub data_segment_length: u32,
}

impl NopOut {
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::NopOut)?;
        let bhs = Bhs(raw);
        Ok(Self {
            immediate: bhs.immediate(),
            lun: bhs.lun(),
            itt: bhs.itt(),
            ttt: Ttt(get_u32(raw, field::TTT)),
            cmd_sn: CmdSn(get_u32(raw, field::CMD_SN)),
            exp_stat_sn: StatSn(get_u32(raw, field::EXP_STAT_SN)),
            data_segment_length: bhs.data_segment_length(),
        })
    }

    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::NopOut, self.immediate, FINAL, self.data_segment_length);
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::TTT, self.ttt.0);
        put_u32(&mut raw, field::CMD_SN, self.cmd_sn.0);
        put_u32(&mut raw, field::EXP_STAT_SN, self.exp_stat_sn.0);
        raw
    }
}

/// NOP-In: the answer to a ping (valid ITT), or the target's own ping (reserved ITT, valid TTT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NopIn {
    /// Logical unit; valid only if `ttt` is not reserved.
    pub lun: u64,
    /// Tag of the NOP-Out that this PDU answers, or reserved.
    pub itt: Itt,
    /// Reserved unless the target requests an answer.
    pub ttt: Ttt,
    /// StatSN; in a ping of the target the number that the next response will use, not advanced (§11.19.3).
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    pub data_segment_length: u32,
}

impl NopIn {
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::NopIn)?;
        let bhs = Bhs(raw);
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        Ok(Self {
            lun: bhs.lun(),
            itt: bhs.itt(),
            ttt: Ttt(get_u32(raw, field::TTT)),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            data_segment_length: bhs.data_segment_length(),
        })
    }

    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::NopIn, false, FINAL, self.data_segment_length);
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::TTT, self.ttt.0);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        raw
    }
}
