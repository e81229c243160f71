//! Text Request and Response (RFC 7143 §11.10, §11.11).

use super::{
    BHS_LENGTH, Bhs, CONTINUE, CmdSn, FINAL, Itt, Opcode, Raw, StatSn, Ttt, WireError, begin, bit, expect,
    field, get_sns, get_u32, put_sns, put_u32, put_u64,
};

fn get_flags(raw: &Raw) -> Result<(bool, bool), WireError> {
    let (is_final, continues) = (raw[field::FLAGS] & FINAL != 0, raw[field::FLAGS] & CONTINUE != 0);
    if is_final && continues { Err(WireError::FinalAndContinue) } else { Ok((is_final, continues)) }
}

const fn flags(is_final: bool, continues: bool) -> u8 {
    bit(is_final, FINAL) | bit(continues, CONTINUE)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRequest {
    pub immediate: bool,
    /// F bit: the initiator has no more text to send.
    pub is_final: bool,
    pub continues: bool,
    /// Zero, or the LUN that the target sent with the TTT.
    pub lun: u64,
    pub itt: Itt,
    /// Reserved in the first request of an exchange, then the target's tag.
    pub ttt: Ttt,
    pub cmd_sn: CmdSn,
    pub exp_stat_sn: StatSn,
    pub data_segment_length: u32,
}

impl TextRequest {
    /// Parses the header; fails for another opcode and for F with C.
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::TextRequest)?;
        let bhs = Bhs(raw);
        let (is_final, continues) = get_flags(raw)?;
        Ok(Self {
            immediate: bhs.immediate(),
            is_final,
            continues,
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
        let flags = flags(self.is_final, self.continues);
        let mut raw = begin(Opcode::TextRequest, self.immediate, flags, self.data_segment_length);
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::TTT, self.ttt.0);
        put_u32(&mut raw, field::CMD_SN, self.cmd_sn.0);
        put_u32(&mut raw, field::EXP_STAT_SN, self.exp_stat_sn.0);
        raw
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextResponse {
    /// F bit: the exchange is complete.
    pub is_final: bool,
    pub continues: bool,
    /// Zero, or a value that the initiator repeats with the TTT.
    pub lun: u64,
    pub itt: Itt,
    /// Reserved when `is_final`, valid otherwise (§11.11.4).
    pub ttt: Ttt,
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    pub data_segment_length: u32,
}

impl TextResponse {
    /// Parses the header; fails for another opcode and for F with C.
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::TextResponse)?;
        let bhs = Bhs(raw);
        let (is_final, continues) = get_flags(raw)?;
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        Ok(Self {
            is_final,
            continues,
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
        let flags = flags(self.is_final, self.continues);
        let mut raw = begin(Opcode::TextResponse, false, flags, self.data_segment_length);
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::TTT, self.ttt.0);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        raw
    }
}
