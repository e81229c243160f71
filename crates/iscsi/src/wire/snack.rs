//! SNACK Request (RFC 7143 §11.16). A target at ErrorRecoveryLevel 0 answers it with Reject.

use super::{
    BHS_LENGTH, Bhs, FINAL, Itt, Opcode, StatSn, WireError, begin, expect, field, get_u32, open_enum,
    put_u32, put_u64,
};

open_enum! {
    /// What a SNACK requests (§11.16.1).
    SnackType(u8) {
        /// Retransmission of Data-In or R2T PDUs of a task.
        DataOrR2t = 0,
        Status = 1,
        DataAck = 2,
        /// Retransmission of Data-In PDUs, resegmented.
        RData = 3,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snack {
    pub kind: SnackType,
    pub lun: u64,
    pub itt: Itt,
    /// TTT (DataACK) or SNACK tag (R-Data), otherwise reserved.
    pub tag: u32,
    pub exp_stat_sn: StatSn,
    pub beg_run: u32,
    /// Length of the run; 0 means all from `beg_run`.
    pub run_length: u32,
}

impl Snack {
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::Snack)?;
        let bhs = Bhs(raw);
        Ok(Self {
            kind: SnackType::from_code(raw[field::FLAGS] & 0x0f),
            lun: bhs.lun(),
            itt: bhs.itt(),
            tag: get_u32(raw, field::TTT),
            exp_stat_sn: StatSn(get_u32(raw, field::EXP_STAT_SN)),
            beg_run: get_u32(raw, field::BEG_RUN),
            run_length: get_u32(raw, field::RUN_LENGTH),
        })
    }

    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::Snack, false, FINAL | self.kind.code() & 0x0f, 0);
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::TTT, self.tag);
        put_u32(&mut raw, field::EXP_STAT_SN, self.exp_stat_sn.0);
        put_u32(&mut raw, field::BEG_RUN, self.beg_run);
        put_u32(&mut raw, field::RUN_LENGTH, self.run_length);
        raw
    }
}
