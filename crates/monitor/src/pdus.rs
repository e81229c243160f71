//! Headers of PDUs, for tests. Commands are numbered as their tasks.

use iscsi::wire::{
    Attribute, BHS_LENGTH, CmdSn, DataIn, DataOut, DataSn, Itt, R2t, Residual, ScsiCommand, ScsiResponse,
    ServiceResponse, StatSn, Ttt,
};

pub(crate) fn scsi(itt: u32, code: u8, bytes: u32, immediate: u32, is_final: bool) -> [u8; BHS_LENGTH] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    let is_write = matches!(code, 0x2a | 0x8a);
    ScsiCommand {
        immediate: false,
        is_final,
        read: !is_write && bytes > 0,
        write: is_write,
        attribute: Attribute::Simple,
        lun: 0,
        itt: Itt(itt),
        expected_data_transfer_length: bytes,
        cmd_sn: CmdSn(itt),
        exp_stat_sn: StatSn(0),
        cdb,
        total_ahs_length: 0,
        data_segment_length: immediate,
    }
    .emit()
}

pub(crate) fn write(itt: u32, bytes: u32, immediate: u32) -> [u8; BHS_LENGTH] {
    scsi(itt, 0x2a, bytes, immediate, true)
}

pub(crate) fn read(itt: u32, bytes: u32) -> [u8; BHS_LENGTH] {
    scsi(itt, 0x28, bytes, 0, true)
}

pub(crate) fn r2t(itt: u32, offset: u32, bytes: u32) -> [u8; BHS_LENGTH] {
    R2t {
        lun: 0,
        itt: Itt(itt),
        ttt: Ttt(7),
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(itt),
        max_cmd_sn: CmdSn(itt + 99),
        r2t_sn: DataSn(0),
        buffer_offset: offset,
        desired_data_transfer_length: bytes,
    }
    .emit()
}

pub(crate) fn data_out(itt: u32, ttt: u32, offset: u32, bytes: u32, is_final: bool) -> [u8; BHS_LENGTH] {
    DataOut {
        is_final,
        lun: 0,
        itt: Itt(itt),
        ttt: Ttt(ttt),
        exp_stat_sn: StatSn(0),
        data_sn: DataSn(0),
        buffer_offset: offset,
        data_segment_length: bytes,
    }
    .emit()
}

pub(crate) fn data_in(itt: u32, offset: u32, bytes: u32, status: Option<u8>) -> [u8; BHS_LENGTH] {
    DataIn {
        is_final: status.is_some(),
        acknowledge: false,
        status,
        lun: 0,
        itt: Itt(itt),
        ttt: Ttt::RESERVED,
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(itt),
        max_cmd_sn: CmdSn(itt + 99),
        data_sn: DataSn(0),
        buffer_offset: offset,
        residual: Residual::None,
        data_segment_length: bytes,
    }
    .emit()
}

pub(crate) fn response(itt: u32, status: u8, residual: Residual) -> [u8; BHS_LENGTH] {
    ScsiResponse {
        response: ServiceResponse::Completed,
        status,
        itt: Itt(itt),
        snack_tag: 0,
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(itt + 1),
        max_cmd_sn: CmdSn(itt + 99),
        exp_data_sn: DataSn(0),
        bidi_residual: Residual::None,
        residual,
        data_segment_length: 0,
    }
    .emit()
}

pub(crate) fn good(itt: u32) -> [u8; BHS_LENGTH] {
    response(itt, 0, Residual::None)
}
