//! Asynchronous Message (RFC 7143 §11.9).

use super::{
    BHS_LENGTH, Bhs, CmdSn, FINAL, Opcode, RESERVED_TAG, StatSn, WireError, begin, expect, field, get_sns,
    get_u16, open_enum, put_sns, put_u16, put_u32, put_u64,
};

open_enum! {
    /// The event that the target reports (§11.9.1).
    AsyncEvent(u8) {
        /// A SCSI asynchronous event: sense data in the data segment.
        Scsi = 0,
        /// The target requests logout within `parameter3` seconds.
        LogoutRequested = 1,
        /// The target will drop or has dropped connection `parameter1`.
        ConnectionDropped = 2,
        /// The target will drop or has dropped every connection of the session.
        SessionDropped = 3,
        /// The target requests parameter negotiation within `parameter3` seconds.
        NegotiationRequested = 4,
        /// All active tasks of this nexus on the LUN are being terminated.
        TasksTerminated = 5,
        Vendor = 255,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncMessage {
    pub event: AsyncEvent,
    /// Vendor code, with [`AsyncEvent::Vendor`].
    pub vcode: u8,
    pub lun: u64,
    pub stat_sn: StatSn,
    pub exp_cmd_sn: CmdSn,
    pub max_cmd_sn: CmdSn,
    /// Event-dependent: the CID concerned.
    pub parameter1: u16,
    /// Event-dependent: Time2Wait, seconds.
    pub parameter2: u16,
    /// Event-dependent: Time2Retain or the time limit, seconds.
    pub parameter3: u16,
    pub data_segment_length: u32,
}

impl AsyncMessage {
    pub fn parse(raw: &[u8; BHS_LENGTH]) -> Result<Self, WireError> {
        expect(raw, Opcode::AsyncMessage)?;
        let bhs = Bhs(raw);
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = get_sns(raw);
        Ok(Self {
            event: AsyncEvent::from_code(raw[field::ASYNC_EVENT]),
            vcode: raw[field::ASYNC_VCODE],
            lun: bhs.lun(),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            parameter1: get_u16(raw, field::PARAMETER1),
            parameter2: get_u16(raw, field::PARAMETER2),
            parameter3: get_u16(raw, field::PARAMETER3),
            data_segment_length: bhs.data_segment_length(),
        })
    }

    #[must_use]
    pub fn emit(&self) -> [u8; BHS_LENGTH] {
        let mut raw = begin(Opcode::AsyncMessage, false, FINAL, self.data_segment_length);
        put_u64(&mut raw, field::LUN, self.lun);
        put_u32(&mut raw, field::ITT, RESERVED_TAG);
        put_sns(&mut raw, self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        raw[field::ASYNC_EVENT] = self.event.code();
        raw[field::ASYNC_VCODE] = self.vcode;
        put_u16(&mut raw, field::PARAMETER1, self.parameter1);
        put_u16(&mut raw, field::PARAMETER2, self.parameter2);
        put_u16(&mut raw, field::PARAMETER3, self.parameter3);
        raw
    }
}
