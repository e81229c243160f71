//! Headers of PDUs.

use iscsi::wire::{
    Attribute, BHS_LENGTH, Bhs, CmdSn, DataIn, DataOut, DataSn, Itt, R2t, Residual, ScsiCommand,
    ScsiResponse, ServiceResponse, StatSn, Ttt,
};

type Header = [u8; BHS_LENGTH];

pub(super) fn command(itt: u32, is_write: bool, bytes: u64, immediate: u64) -> Header {
    let mut cdb = [0; 16];
    cdb[0] = if is_write { 0x8a } else { 0x88 };
    ScsiCommand {
        immediate: false,
        is_final: true,
        read: !is_write,
        write: is_write,
        attribute: Attribute::Simple,
        lun: 0,
        itt: Itt(itt),
        expected_data_transfer_length: bytes as u32,
        cmd_sn: CmdSn(itt),
        exp_stat_sn: StatSn(0),
        cdb,
        total_ahs_length: 0,
        data_segment_length: immediate as u32,
    }
    .emit()
}

pub(super) fn r2t(itt: u32, bytes: u64) -> Header {
    R2t {
        lun: 0,
        itt: Itt(itt),
        ttt: Ttt(7),
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(itt),
        max_cmd_sn: CmdSn(itt + 99),
        r2t_sn: DataSn(0),
        buffer_offset: 0,
        desired_data_transfer_length: bytes as u32,
    }
    .emit()
}

pub(super) fn data_out(itt: u32, bytes: u64) -> Header {
    DataOut {
        is_final: true,
        lun: 0,
        itt: Itt(itt),
        ttt: Ttt(7),
        exp_stat_sn: StatSn(0),
        data_sn: DataSn(0),
        buffer_offset: 0,
        data_segment_length: bytes as u32,
    }
    .emit()
}

pub(super) fn data_in(itt: u32, bytes: u64) -> Header {
    DataIn {
        is_final: true,
        acknowledge: false,
        status: Some(0),
        lun: 0,
        itt: Itt(itt),
        ttt: Ttt::RESERVED,
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(itt),
        max_cmd_sn: CmdSn(itt + 99),
        data_sn: DataSn(0),
        buffer_offset: 0,
        residual: Residual::None,
        data_segment_length: bytes as u32,
    }
    .emit()
}

pub(super) fn response(itt: u32) -> Header {
    ScsiResponse {
        response: ServiceResponse::Completed,
        status: 0,
        itt: Itt(itt),
        snack_tag: 0,
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(itt + 1),
        max_cmd_sn: CmdSn(itt + 99),
        exp_data_sn: DataSn(0),
        bidi_residual: Residual::None,
        residual: Residual::None,
        data_segment_length: 0,
    }
    .emit()
}

pub(super) fn is_r2t(header: &Header) -> bool {
    header[0] & 0x3f == 0x31
}

pub(super) fn itt(header: &Header) -> u32 {
    Bhs(header).itt().0
}
