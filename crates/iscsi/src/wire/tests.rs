//! Every PDU parses back from its own emitted bytes; hand-written bytes from the figures of RFC 7143 pin the layouts.

use proptest::prelude::*;

use super::*;

/// Parses 48 bytes of hexadecimal text with spaces.
fn hex(text: &str) -> [u8; 48] {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    bytes.try_into().expect("48 bytes")
}

const STAT_SN: StatSn = StatSn(0x0a0b_0c0d);
const EXP_CMD_SN: CmdSn = CmdSn(0x1a1b_1c1d);
const MAX_CMD_SN: CmdSn = CmdSn(0x2a2b_2c2d);

/// The 48 bytes of each PDU that an initiator sends, in rows of 8, and the parsed PDU.
const INITIATOR_VECTORS: [(&str, InitiatorPdu); 8] = [
    (
        "40 80 0000 00 000004  0102030405060708  11121314 21222324  31323334 41424344  0000000000000000 0000000000000000",
        InitiatorPdu::NopOut(NopOut {
            immediate: true,
            lun: 0x0102_0304_0506_0708,
            itt: Itt(0x1112_1314),
            ttt: Ttt(0x2122_2324),
            cmd_sn: CmdSn(0x3132_3334),
            exp_stat_sn: StatSn(0x4142_4344),
            data_segment_length: 4,
        }),
    ),
    (
        "01 c1 0000 04 000200  0001000000000000  11121314 00001000  31323334 41424344  28000000000000000800 000000000000",
        InitiatorPdu::ScsiCommand(ScsiCommand {
            immediate: false,
            is_final: true,
            read: true,
            write: false,
            attribute: Attribute::Simple,
            lun: 1 << 48,
            itt: Itt(0x1112_1314),
            expected_data_transfer_length: 4096,
            cmd_sn: CmdSn(0x3132_3334),
            exp_stat_sn: StatSn(0x4142_4344),
            cdb: [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0],
            total_ahs_length: 16,
            data_segment_length: 512,
        }),
    ),
    (
        "42 81 0000 00 000000  0001000000000000  11121314 21222324  31323334 41424344  51525354 61626364 0000000000000000",
        InitiatorPdu::TmRequest(TmRequest {
            immediate: true,
            function: TmFunction::AbortTask,
            lun: 1 << 48,
            itt: Itt(0x1112_1314),
            referenced_task_tag: Itt(0x2122_2324),
            cmd_sn: CmdSn(0x3132_3334),
            exp_stat_sn: StatSn(0x4142_4344),
            ref_cmd_sn: CmdSn(0x5152_5354),
            exp_data_sn: DataSn(0x6162_6364),
        }),
    ),
    (
        "43 87 0200 00 0000a5  800102030405 0607  11121314 2122 0000  31323334 41424344  0000000000000000 0000000000000000",
        InitiatorPdu::LoginRequest(LoginRequest {
            transit: true,
            continues: false,
            csg: Stage::Operational,
            nsg: Stage::FullFeature,
            version_max: 2,
            version_min: 0,
            isid: Isid::random([1, 2, 3], 0x0405),
            tsih: 0x0607,
            itt: Itt(0x1112_1314),
            cid: 0x2122,
            cmd_sn: CmdSn(0x3132_3334),
            exp_stat_sn: StatSn(0x4142_4344),
            data_segment_length: 0xa5,
        }),
    ),
    (
        "04 40 0000 00 001000  0001000000000000  11121314 ffffffff  31323334 41424344  0000000000000000 0000000000000000",
        InitiatorPdu::TextRequest(TextRequest {
            immediate: false,
            is_final: false,
            continues: true,
            lun: 1 << 48,
            itt: Itt(0x1112_1314),
            ttt: Ttt::RESERVED,
            cmd_sn: CmdSn(0x3132_3334),
            exp_stat_sn: StatSn(0x4142_4344),
            data_segment_length: 4096,
        }),
    ),
    (
        "05 80 0000 00 040000  0001000000000000  11121314 21222324  00000000 41424344  00000000 61626364 71727374 00000000",
        InitiatorPdu::DataOut(DataOut {
            is_final: true,
            lun: 1 << 48,
            itt: Itt(0x1112_1314),
            ttt: Ttt(0x2122_2324),
            exp_stat_sn: StatSn(0x4142_4344),
            data_sn: DataSn(0x6162_6364),
            buffer_offset: 0x7172_7374,
            data_segment_length: 0x40000,
        }),
    ),
    (
        "46 81 0000 00 000000  0000000000000000  11121314 2122 0000  31323334 41424344  0000000000000000 0000000000000000",
        InitiatorPdu::LogoutRequest(LogoutRequest {
            immediate: true,
            reason: LogoutReason::CloseConnection,
            itt: Itt(0x1112_1314),
            cid: 0x2122,
            cmd_sn: CmdSn(0x3132_3334),
            exp_stat_sn: StatSn(0x4142_4344),
        }),
    ),
    (
        "10 81 0000 00 000000  0001000000000000  11121314 21222324  00000000 41424344  0000000000000000 51525354 61626364",
        InitiatorPdu::Snack(Snack {
            kind: SnackType::Status,
            lun: 1 << 48,
            itt: Itt(0x1112_1314),
            tag: 0x2122_2324,
            exp_stat_sn: StatSn(0x4142_4344),
            beg_run: 0x5152_5354,
            run_length: 0x6162_6364,
        }),
    ),
];

const TARGET_VECTORS: [(&str, TargetPdu); 10] = [
    (
        "20 80 0000 00 000000  0001000000000000  ffffffff 21222324  0a0b0c0d 1a1b1c1d 2a2b2c2d 000000000000000000000000",
        TargetPdu::NopIn(NopIn {
            lun: 1 << 48,
            itt: Itt::RESERVED,
            ttt: Ttt(0x2122_2324),
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
            data_segment_length: 0,
        }),
    ),
    (
        "21 92 00 02 00 000014  0000000000000000  11121314 21222324  0a0b0c0d 1a1b1c1d 2a2b2c2d 31323334 00000007 00000009",
        TargetPdu::ScsiResponse(ScsiResponse {
            response: ServiceResponse::Completed,
            status: 2,
            itt: Itt(0x1112_1314),
            snack_tag: 0x2122_2324,
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
            exp_data_sn: DataSn(0x3132_3334),
            bidi_residual: Residual::Overflow(7),
            residual: Residual::Underflow(9),
            data_segment_length: 20,
        }),
    ),
    (
        "22 80 05 00 00 000000  0000000000000000  11121314 00000000  0a0b0c0d 1a1b1c1d 2a2b2c2d 000000000000000000000000",
        TargetPdu::TmResponse(TmResponse {
            result: TmResult::NotSupported,
            information: 0,
            itt: Itt(0x1112_1314),
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
        }),
    ),
    (
        "23 81 0000 00 000003  800102030405 0607  11121314 00000000  0a0b0c0d 1a1b1c1d 2a2b2c2d 0203 0000 0000000000000000",
        TargetPdu::LoginResponse(LoginResponse {
            transit: true,
            continues: false,
            csg: Stage::Security,
            nsg: Stage::Operational,
            version_max: 0,
            version_active: 0,
            isid: Isid::random([1, 2, 3], 0x0405),
            tsih: 0x0607,
            itt: Itt(0x1112_1314),
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
            status: LoginStatus::NotFound,
            data_segment_length: 3,
        }),
    ),
    (
        "24 80 0000 00 000100  0000000000000000  11121314 ffffffff  0a0b0c0d 1a1b1c1d 2a2b2c2d 000000000000000000000000",
        TargetPdu::TextResponse(TextResponse {
            is_final: true,
            continues: false,
            lun: 0,
            itt: Itt(0x1112_1314),
            ttt: Ttt::RESERVED,
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
            data_segment_length: 256,
        }),
    ),
    (
        "25 85 00 08 00 000200  0000000000000000  11121314 ffffffff  0a0b0c0d 1a1b1c1d 2a2b2c2d 31323334 41424344 00000200",
        TargetPdu::DataIn(DataIn {
            is_final: true,
            acknowledge: false,
            status: Some(8),
            lun: 0,
            itt: Itt(0x1112_1314),
            ttt: Ttt::RESERVED,
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
            data_sn: DataSn(0x3132_3334),
            buffer_offset: 0x4142_4344,
            residual: Residual::Overflow(512),
            data_segment_length: 512,
        }),
    ),
    (
        "26 80 01 00 00 000000  0000000000000000  11121314 00000000  0a0b0c0d 1a1b1c1d 2a2b2c2d 00000000 0002 0014 00000000",
        TargetPdu::LogoutResponse(LogoutResponse {
            result: LogoutResult::CidNotFound,
            itt: Itt(0x1112_1314),
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
            time2wait: 2,
            time2retain: 20,
        }),
    ),
    (
        "31 80 0000 00 000000  0001000000000000  11121314 21222324  0a0b0c0d 1a1b1c1d 2a2b2c2d 31323334 41424344 00100000",
        TargetPdu::R2t(R2t {
            lun: 1 << 48,
            itt: Itt(0x1112_1314),
            ttt: Ttt(0x2122_2324),
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
            r2t_sn: DataSn(0x3132_3334),
            buffer_offset: 0x4142_4344,
            desired_data_transfer_length: 1 << 20,
        }),
    ),
    (
        "32 80 0000 00 000000  0001000000000000  ffffffff 00000000  0a0b0c0d 1a1b1c1d 2a2b2c2d 01 00 0001 0002 0003 00000000",
        TargetPdu::AsyncMessage(AsyncMessage {
            event: AsyncEvent::LogoutRequested,
            vcode: 0,
            lun: 1 << 48,
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
            parameter1: 1,
            parameter2: 2,
            parameter3: 3,
            data_segment_length: 0,
        }),
    ),
    (
        "3f 80 04 00 00 000030  0000000000000000  ffffffff 00000000  0a0b0c0d 1a1b1c1d 2a2b2c2d 31323334 0000000000000000",
        TargetPdu::Reject(Reject {
            reason: RejectReason::ProtocolError,
            stat_sn: STAT_SN,
            exp_cmd_sn: EXP_CMD_SN,
            max_cmd_sn: MAX_CMD_SN,
            data_sn: DataSn(0x3132_3334),
            data_segment_length: 48,
        }),
    ),
];

#[test]
fn layouts_as_in_the_figures_of_section_11() {
    for (bytes, pdu) in INITIATOR_VECTORS {
        assert_eq!(pdu.emit(), hex(bytes), "{pdu:?}");
        assert_eq!(InitiatorPdu::parse(&hex(bytes)), Ok(pdu));
        assert!(TargetPdu::parse(&hex(bytes)).is_err());
    }
    for (bytes, pdu) in TARGET_VECTORS {
        assert_eq!(pdu.emit(), hex(bytes), "{pdu:?}");
        assert_eq!(TargetPdu::parse(&hex(bytes)), Ok(pdu));
        assert!(InitiatorPdu::parse(&hex(bytes)).is_err());
    }
}

#[test]
fn reserved_bits_are_ignored() {
    let mut raw = R2t::parse(&TARGET_VECTORS[7].1.emit()).unwrap().emit();
    let clean = raw;
    raw[0] |= 0x80;
    raw[1] |= 0x7f;
    raw[2] = 0xff;
    raw[3] = 0xff;
    assert_eq!(R2t::parse(&raw), R2t::parse(&clean));
}

#[test]
fn opcodes_undefined_are_refused() {
    let defined = [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31, 0x32,
        0x3f,
    ];
    for code in 0..0x40 {
        match Opcode::parse(code | 0xc0) {
            Ok(opcode) => {
                assert!(defined.contains(&code));
                assert_eq!(opcode as u8, code);
                assert_eq!(opcode.is_from_target(), code >= 0x20);
            }
            Err(error) => {
                assert!(!defined.contains(&code));
                assert_eq!(error, WireError::UnknownOpcode(code));
            }
        }
    }
}

#[test]
fn flags_that_exclude_each_other_are_refused() {
    // Parses a Login Request with the given flags byte.
    let login = |flags: u8| {
        let mut raw = [0; 48];
        (raw[0], raw[1]) = (0x43, flags);
        LoginRequest::parse(&raw).map(|_| ())
    };
    assert_eq!(login(0xc7), Err(WireError::FinalAndContinue));
    assert_eq!(login(0x88), Err(WireError::ReservedStage));
    assert_eq!(login(0x86), Err(WireError::ReservedStage));
    assert_eq!(login(0x06), Ok(()), "NSG does not count without T");

    let mut raw = [0; 48];
    (raw[0], raw[1]) = (0x04, 0xc0);
    assert_eq!(TextRequest::parse(&raw), Err(WireError::FinalAndContinue));
    (raw[0], raw[1]) = (0x21, 0x86);
    assert_eq!(ScsiResponse::parse(&raw), Err(WireError::ResidualFlags));
    (raw[0], raw[1]) = (0x21, 0x98);
    assert_eq!(ScsiResponse::parse(&raw), Err(WireError::ResidualFlags));
    (raw[0], raw[1]) = (0x25, 0x87);
    assert_eq!(DataIn::parse(&raw), Err(WireError::ResidualFlags));
    (raw[0], raw[1]) = (0x25, 0x86);
    assert!(DataIn::parse(&raw).is_ok(), "O and U do not count without S");
}

#[test]
fn refusal_with_odd_stages_is_still_read() {
    let mut raw = TARGET_VECTORS[3].1.emit();
    raw[1] = 0xcf;
    let response = LoginResponse::parse(&raw).unwrap();
    assert_eq!(response.status, LoginStatus::NotFound);
    assert_eq!((response.status.class(), response.status.detail()), (2, 3));
}

#[test]
fn residual_between() {
    for (expected, actual, residual) in [
        (512, 512, Residual::None),
        (512, 0, Residual::Underflow(512)),
        (0, 512, Residual::Overflow(512)),
        (1, u64::MAX, Residual::Overflow(u32::MAX)),
        (u32::MAX, 1, Residual::Underflow(u32::MAX - 1)),
    ] {
        assert_eq!(Residual::between(expected, actual), residual);
    }
}

#[test]
fn isid_types() {
    assert_eq!(Isid::random([0xaa, 0xbb, 0xcc], 0x0102).0, [0x80, 0xaa, 0xbb, 0xcc, 1, 2]);
    assert!(Isid::random([1, 2, 3], 4).is_random());
    assert_eq!(Isid::oui([0xff, 0, 1], [2, 3, 4]).0, [0x3f, 0, 1, 2, 3, 4]);
    assert_eq!(Isid::enterprise([0, 1, 2], 3).0, [0x40, 0, 1, 2, 0, 3]);
    assert!(!Isid::enterprise([0, 1, 2], 3).is_random());
}

#[test]
fn ahs_both_kinds() {
    let mut area = Vec::new();
    emit_bidi_read_length(0x1234_5678, &mut area);
    assert_eq!(area, [0, 5, 2, 0, 0x12, 0x34, 0x56, 0x78]);
    let tail: Vec<u8> = (16..32).collect();
    emit_extended_cdb(&tail, &mut area);
    assert_eq!(area[8..12], [0, 17, 1, 0]);
    let parsed: Vec<_> = AhsIter::new(&area).collect();
    assert_eq!(parsed, [Ok(Ahs::BidiReadLength(0x1234_5678)), Ok(Ahs::ExtendedCdb(&tail))]);

    // A tail that needs padding.
    let mut area = Vec::new();
    emit_extended_cdb(&[1, 2], &mut area);
    assert_eq!(area, [0, 3, 1, 0, 1, 2, 0, 0]);
    assert_eq!(AhsIter::new(&area).next(), Some(Ok(Ahs::ExtendedCdb(&[1, 2]))));
}

#[test]
fn ahs_malformed() {
    for (name, area) in [
        ("length_zero", &[0, 0, 1, 0][..]),
        ("truncated_header", &[0, 5]),
        ("truncated_body", &[0, 5, 2, 0, 1, 2, 3]),
        ("read_length_short", &[0, 4, 2, 0, 1, 2, 3, 0]),
        ("cdb_empty", &[0, 1, 1, 0]),
        ("length_beyond_area", &[0xff, 0xff, 1, 0, 1, 2, 3, 4]),
    ] {
        let parsed: Vec<_> = AhsIter::new(area).collect();
        assert_eq!(parsed, [Err(WireError::MalformedAhs)], "{name}");
    }
    assert_eq!(AhsIter::new(&[0, 1, 9, 0]).next(), Some(Ok(Ahs::Other(9))));
}

proptest! {
    /// A header that parses emits to bytes that parse to the same PDU.
    #[test]
    fn any_header(raw: [u8; 48]) {
        if let Ok(pdu) = InitiatorPdu::parse(&raw) {
            prop_assert_eq!(InitiatorPdu::parse(&pdu.emit()), Ok(pdu));
        }
        if let Ok(pdu) = TargetPdu::parse(&raw) {
            prop_assert_eq!(TargetPdu::parse(&pdu.emit()), Ok(pdu));
        }
        let bhs = Bhs(&raw);
        prop_assert!(bhs.data_segment_length_padded() - bhs.data_segment_length() < 4);
    }

    #[test]
    fn any_ahs(area in prop::collection::vec(any::<u8>(), 0..1020)) {
        prop_assert!(AhsIter::new(&area).count() <= 256);
    }
}
