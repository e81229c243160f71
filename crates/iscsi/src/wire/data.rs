//! SCSI Data-Out, SCSI Data-In and R2T (RFC 7143 §11.7, §11.8).

use super::scsi::{OVERFLOW, Residual, UNDERFLOW};
use super::{
    BHS_LENGTH, Bhs, CmdSn, DataSn, FINAL, Itt, Opcode, StatSn, Ttt, WireError, begin, bit, expect, field,
    get_sns, get_u32, put_sns, put_u32, put_u64,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOut {
    /// F bit: last PDU of its sequence (the burst of one R2T, or the unsolicited data).
    pub is_final: bool,
    /// Logical unit; meaningful if `ttt` is not reserved.
    pub lun: u64,
    pub itt: Itt,
    /// Target transfer tag of the R2T that this PDU answers; reserved for unsolicited data.
    pub ttt: Ttt,
    pub exp_stat_sn: StatSn,
    /// Number within its sequence, from 0.
    pub data_sn: DataSn,
    pub buffer_offset: u32,
    pub data_segment_length: u32,
}

impl DataOut {
    #[inline]
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::DataOut)?;
        let bhs = Bhs(raw);
        Ok(Self {
            is_final: bhs.is_final(),
            lun: bhs.lun(),
            itt: bhs.itt(),
            ttt: Ttt(get_u32(raw, field::TTT)),
            exp_stat_sn: StatSn(get_u32(raw, field::EXP_STAT_SN)),
            data_sn: DataSn(get_u32(raw, field::DATA_SN)),
            buffer_offset: get_u32(raw, field::BUFFER_OFFSET),
            data_segment_length: bhs.data_segment_length(),
        })
    }

    #[inline]
    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let flags = bit(self.is_final, FINAL);
        let mut raw = begin(Opcode::DataOut, false, flags, self.data_segment_length);
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::TTT, self.ttt.0);
        put_u32(&mut raw, field::EXP_STAT_SN, self.exp_stat_sn.0);
        put_u32(&mut raw, field::DATA_SN, self.data_sn.0);
        put_u32(&mut raw, field::BUFFER_OFFSET, self.buffer_offset);
        raw
    }
}

const ACKNOWLEDGE: u8 = 0x40;
const STATUS: u8 = 0x01;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataIn {
    pub is_final: bool,
    /// A bit: the target requests a DataACK SNACK (error recovery levels above 0).
    pub acknowledge: bool,
    /// S bit: the PDU carries the SCSI status, no SCSI Response follows, and `stat_sn` is valid.
    pub status: Option<u8>,
    /// Logical unit; meaningful with `acknowledge`.
    pub lun: u64,
    pub itt: Itt,
    /// Reserved unless `acknowledge`.
    pub ttt: Ttt,
    /// Status sequence number; zero without a status.
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    /// Number within the task, from 0.
    pub data_sn: DataSn,
    pub buffer_offset: u32,
    /// Parsed and emitted only with a status.
    pub residual: Residual,
    pub data_segment_length: u32,
}

impl DataIn {
    #[inline]
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::DataIn)?;
        let bhs = Bhs(raw);
        let flags = raw[field::FLAGS];
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        let with_status = flags & STATUS != 0;
        Ok(Self {
            is_final: bhs.is_final(),
            acknowledge: flags & ACKNOWLEDGE != 0,
            status: with_status.then_some(raw[field::STATUS]),
            lun: bhs.lun(),
            itt: bhs.itt(),
            ttt: Ttt(get_u32(raw, field::TTT)),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            data_sn: DataSn(get_u32(raw, field::DATA_SN)),
            buffer_offset: get_u32(raw, field::BUFFER_OFFSET),
            residual: if with_status {
                Residual::parse(raw, OVERFLOW, UNDERFLOW, field::RESIDUAL_COUNT)?
            } else {
                Residual::None
            },
            data_segment_length: bhs.data_segment_length(),
        })
    }

    #[inline]
    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut flags = bit(self.is_final, FINAL) | bit(self.acknowledge, ACKNOWLEDGE);
        if self.status.is_some() {
            flags |= STATUS | self.residual.flags(OVERFLOW, UNDERFLOW);
        }
        let mut raw = begin(Opcode::DataIn, false, flags, self.data_segment_length);
        if let Some(status) = self.status {
            raw[field::STATUS] = status;
            put_u32(&mut raw, field::RESIDUAL_COUNT, self.residual.count());
        }
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::TTT, self.ttt.0);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        put_u32(&mut raw, field::DATA_SN, self.data_sn.0);
        put_u32(&mut raw, field::BUFFER_OFFSET, self.buffer_offset);
        raw
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct R2t {
    /// Logical unit, repeated by the Data-Out PDUs.
    pub lun: u64,
    pub itt: Itt,
    /// Target transfer tag that the Data-Out PDUs repeat; never reserved.
    pub ttt: Ttt,
    /// StatSN that the next response will use; an R2T does not advance it.
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    /// R2TSN: number within the task, from 0.
    pub r2t_sn: DataSn,
    pub buffer_offset: u32,
    /// Requested bytes, 1..=MaxBurstLength.
    pub desired_data_transfer_length: u32,
}

impl R2t {
    #[inline]
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::R2t)?;
        let bhs = Bhs(raw);
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        Ok(Self {
            lun: bhs.lun(),
            itt: bhs.itt(),
            ttt: Ttt(get_u32(raw, field::TTT)),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            r2t_sn: DataSn(get_u32(raw, field::DATA_SN)),
            buffer_offset: get_u32(raw, field::BUFFER_OFFSET),
            desired_data_transfer_length: get_u32(raw, field::DESIRED_DATA_TRANSFER_LENGTH),
        })
    }

    #[inline]
    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::R2t, false, FINAL, 0);
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::TTT, self.ttt.0);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        put_u32(&mut raw, field::DATA_SN, self.r2t_sn.0);
        put_u32(&mut raw, field::BUFFER_OFFSET, self.buffer_offset);
        put_u32(&mut raw, field::DESIRED_DATA_TRANSFER_LENGTH, self.desired_data_transfer_length);
        raw
    }
}
