//! SCSI Command and SCSI Response (RFC 7143 §11.3, §11.4).

use super::{
    BHS_LENGTH, Bhs, CmdSn, DataSn, FINAL, Itt, Opcode, Raw, StatSn, WireError, begin, bit, expect, field,
    get_sns, get_u32, open_enum, put_sns, put_u32, put_u64,
};

open_enum! {
    /// Task attribute (§11.3.1, SAM-2).
    Attribute(u8) {
        /// Untagged; treated as simple.
        Untagged = 0,
        Simple = 1,
        Ordered = 2,
        HeadOfQueue = 3,
        Aca = 4,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScsiCommand {
    /// I bit: does not advance CmdSN.
    pub immediate: bool,
    /// F bit: no unsolicited Data-Out PDUs follow.
    pub is_final: bool,
    pub read: bool,
    pub write: bool,
    pub attribute: Attribute,
    pub lun: u64,
    pub itt: Itt,
    /// Bytes of the initiator's buffer for this task; the write length of a bidirectional command.
    pub expected_data_transfer_length: u32,
    pub cmd_sn: CmdSn,
    pub exp_stat_sn: StatSn,
    /// First 16 bytes of the CDB, zero-padded; a longer CDB continues in an AHS.
    pub cdb: [u8; 16],
    /// Bytes of AHS that follow, a multiple of four, at most 1020.
    pub total_ahs_length: u16,
    pub data_segment_length: u32,
}

const READ: u8 = 0x40;
const WRITE: u8 = 0x20;

impl ScsiCommand {
    #[inline]
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::ScsiCommand)?;
        let bhs = Bhs(raw);
        let flags = raw[field::FLAGS];
        let mut cdb = [0; 16];
        cdb.copy_from_slice(&raw[field::CDB]);
        Ok(Self {
            immediate: bhs.immediate(),
            is_final: bhs.is_final(),
            read: flags & READ != 0,
            write: flags & WRITE != 0,
            attribute: Attribute::from_code(flags & 0x07),
            lun: bhs.lun(),
            itt: bhs.itt(),
            expected_data_transfer_length: get_u32(raw, field::EXPECTED_DATA_TRANSFER_LENGTH),
            cmd_sn: CmdSn(get_u32(raw, field::CMD_SN)),
            exp_stat_sn: StatSn(get_u32(raw, field::EXP_STAT_SN)),
            cdb,
            total_ahs_length: u16::from(raw[field::TOTAL_AHS_LENGTH]) * 4,
            data_segment_length: bhs.data_segment_length(),
        })
    }

    /// Emits the header. Panics if `total_ahs_length` is no multiple of four or above 1020.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let flags = bit(self.is_final, FINAL)
            | bit(self.read, READ)
            | bit(self.write, WRITE)
            | self.attribute.code() & 0x07;
        let mut raw = begin(Opcode::ScsiCommand, self.immediate, flags, self.data_segment_length);
        assert!(self.total_ahs_length.is_multiple_of(4), "AHS area not padded");
        raw[field::TOTAL_AHS_LENGTH] = u8::try_from(self.total_ahs_length / 4).expect("AHS area too long");
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::EXPECTED_DATA_TRANSFER_LENGTH, self.expected_data_transfer_length);
        put_u32(&mut raw, field::CMD_SN, self.cmd_sn.0);
        put_u32(&mut raw, field::EXP_STAT_SN, self.exp_stat_sn.0);
        raw[field::CDB].copy_from_slice(&self.cdb);
        raw
    }
}

/// Difference between the bytes that could have been transferred and the expected data transfer length (§11.4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Residual {
    #[default]
    None,
    /// This many bytes more were available than the initiator expected, and were not sent.
    Overflow(u32),
    /// This many bytes fewer were transferred than the initiator expected.
    Underflow(u32),
}

impl Residual {
    /// The residual of a task that could transfer `actual` bytes and announced `expected`.
    #[must_use]
    pub const fn between(expected: u32, actual: u64) -> Self {
        if actual > expected as u64 {
            let over = actual - expected as u64;
            Self::Overflow(if over > u32::MAX as u64 { u32::MAX } else { over as u32 })
        } else if actual < expected as u64 {
            Self::Underflow(expected - actual as u32)
        } else {
            Self::None
        }
    }

    #[must_use]
    pub const fn count(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Overflow(count) | Self::Underflow(count) => count,
        }
    }

    #[inline]
    pub(super) const fn flags(self, overflow: u8, underflow: u8) -> u8 {
        match self {
            Self::None => 0,
            Self::Overflow(_) => overflow,
            Self::Underflow(_) => underflow,
        }
    }

    #[inline]
    pub(super) fn parse(
        raw: &Raw,
        overflow: u8,
        underflow: u8,
        count: super::Field,
    ) -> Result<Self, WireError> {
        let flags = raw[field::FLAGS];
        match (flags & overflow != 0, flags & underflow != 0) {
            (false, false) => Ok(Self::None),
            (true, false) => Ok(Self::Overflow(get_u32(raw, count))),
            (false, true) => Ok(Self::Underflow(get_u32(raw, count))),
            (true, true) => Err(WireError::ResidualFlags),
        }
    }
}

pub(super) const OVERFLOW: u8 = 0x04;
pub(super) const UNDERFLOW: u8 = 0x02;
const BIDI_OVERFLOW: u8 = 0x10;
const BIDI_UNDERFLOW: u8 = 0x08;

open_enum! {
    /// iSCSI service response (§11.4.3).
    ServiceResponse(u8) {
        /// Command completed at target: the status field is valid.
        Completed = 0x00,
        /// Target failure: no SCSI status.
        TargetFailure = 0x01,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScsiResponse {
    pub response: ServiceResponse,
    /// SCSI status; valid with [`ServiceResponse::Completed`].
    pub status: u8,
    pub itt: Itt,
    /// Zero, or the tag that an R-Data SNACK must repeat.
    pub snack_tag: u32,
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    /// Number of Data-In and R2T PDUs that the target sent for the task.
    pub exp_data_sn: DataSn,
    /// Residual of the read part of a bidirectional command.
    pub bidi_residual: Residual,
    /// Residual of the command, or of the write part of a bidirectional one.
    pub residual: Residual,
    /// Length of the sense and response data, bytes, with the two bytes of SenseLength.
    pub data_segment_length: u32,
}

impl ScsiResponse {
    /// Parses the header; fails for another opcode and for contradictory residual flags.
    #[inline]
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::ScsiResponse)?;
        let bhs = Bhs(raw);
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        Ok(Self {
            response: ServiceResponse::from_code(raw[field::RESPONSE]),
            status: raw[field::STATUS],
            itt: bhs.itt(),
            snack_tag: get_u32(raw, field::SNACK_TAG),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            exp_data_sn: DataSn(get_u32(raw, field::DATA_SN)),
            bidi_residual: Residual::parse(raw, BIDI_OVERFLOW, BIDI_UNDERFLOW, field::BIDI_RESIDUAL_COUNT)?,
            residual: Residual::parse(raw, OVERFLOW, UNDERFLOW, field::RESIDUAL_COUNT)?,
            data_segment_length: bhs.data_segment_length(),
        })
    }

    #[inline]
    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let flags = FINAL
            | self.bidi_residual.flags(BIDI_OVERFLOW, BIDI_UNDERFLOW)
            | self.residual.flags(OVERFLOW, UNDERFLOW);
        let mut raw = begin(Opcode::ScsiResponse, false, flags, self.data_segment_length);
        raw[field::RESPONSE] = self.response.code();
        raw[field::STATUS] = self.status;
        put_u32(&mut raw, field::ITT, self.itt.0);
        put_u32(&mut raw, field::SNACK_TAG, self.snack_tag);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        put_u32(&mut raw, field::DATA_SN, self.exp_data_sn.0);
        put_u32(&mut raw, field::BIDI_RESIDUAL_COUNT, self.bidi_residual.count());
        put_u32(&mut raw, field::RESIDUAL_COUNT, self.residual.count());
        raw
    }
}
