//! Streams of PDUs, with where each begins.

use iscsi::wire::{
    BHS_LENGTH, CmdSn, DataIn, DataOut, Isid, Itt, LoginRequest, LoginResponse, LoginStatus, NopOut, Opcode,
    Stage, StatSn, padded,
};

use super::path::Random;
use crate::event::{PduStart, Side};

#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    pub(super) bytes: Vec<u8>,
    pub(super) pdus: Vec<PduStart>,
}

impl Stream {
    /// `digests`: of the header, of the data.
    pub(super) fn push(&mut self, header: [u8; BHS_LENGTH], data: &[u8], digests: (bool, bool)) {
        let offset = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&header);
        if digests.0 {
            self.bytes.extend([0xd1; 4]);
        }
        self.bytes.extend_from_slice(data);
        let pad = padded(data.len() as u32) as usize - data.len();
        self.bytes.extend(std::iter::repeat_n(0, pad));
        if digests.1 && !data.is_empty() {
            self.bytes.extend([0xd2; 4]);
        }
        let bytes = self.bytes.len() as u64 - offset;
        self.pdus.push(PduStart { offset, bytes, header });
    }
}

fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut text = Vec::new();
    pairs.iter().for_each(|(key, value)| iscsi::text::emit(key, value, &mut text));
    text
}

pub(super) fn login(side: Side, digests: (bool, bool)) -> ([u8; BHS_LENGTH], Vec<u8>) {
    let name = |is_on| if is_on { "CRC32C" } else { "None" };
    let pairs = [
        ("InitiatorName", "iqn.2026-01.example:client"),
        ("HeaderDigest", name(digests.0)),
        ("DataDigest", name(digests.1)),
        ("FirstBurstLength", "65536"),
        ("CHAP_R", "0x0123"),
    ];
    let (isid, tsih, itt) = (Isid::random([1, 2, 3], 4), 0, Itt(9));
    match side {
        Side::Initiator => {
            let text = text(&pairs);
            let request = LoginRequest {
                transit: true,
                continues: false,
                csg: Stage::Operational,
                nsg: Stage::FullFeature,
                version_max: 0,
                version_min: 0,
                isid,
                tsih,
                itt,
                cid: 0,
                cmd_sn: CmdSn(1),
                exp_stat_sn: StatSn(0),
                data_segment_length: text.len() as u32,
            };
            (request.emit(), text)
        }
        Side::Target => {
            let text = text(&pairs[1..4]);
            let response = LoginResponse {
                transit: true,
                continues: false,
                csg: Stage::Operational,
                nsg: Stage::FullFeature,
                version_max: 0,
                version_active: 0,
                isid,
                tsih,
                itt,
                stat_sn: StatSn(1),
                exp_cmd_sn: CmdSn(1),
                max_cmd_sn: CmdSn(65),
                status: LoginStatus::Success,
                data_segment_length: text.len() as u32,
            };
            (response.emit(), text)
        }
    }
}

/// Random PDUs of one side after a login.
pub(super) fn random(side: Side, digests: (bool, bool), count: u32, random: &mut Random) -> Stream {
    let mut stream = Stream::default();
    let (header, text) = login(side, digests);
    stream.push(header, &text, (false, false));
    for number in 0..count {
        let length = match random.below(4) {
            0 => 0,
            1 => random.below(64),
            2 => random.below(9_000),
            _ => 8192,
        };
        let data: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let (header, data) = pdu(side, number, &data);
        stream.push(header, data, digests);
    }
    stream
}

fn pdu(side: Side, number: u32, data: &[u8]) -> ([u8; BHS_LENGTH], &[u8]) {
    let (itt, length) = (Itt(number + 1), data.len() as u32);
    let mut header = match (side, data.is_empty()) {
        (Side::Initiator, true) => NopOut::parse(&begin(Opcode::NopOut, 0x80)).expect("a NOP-Out").emit(),
        (Side::Initiator, false) => DataOut::parse(&begin(Opcode::DataOut, 0x80)).expect("a Data-Out").emit(),
        (Side::Target, true) => begin(Opcode::NopIn, 0x80),
        (Side::Target, false) => DataIn::parse(&begin(Opcode::DataIn, 0x80)).expect("a Data-In").emit(),
    };
    header[5..8].copy_from_slice(&length.to_be_bytes()[1..]);
    header[16..20].copy_from_slice(&itt.0.to_be_bytes());
    header[20..24].copy_from_slice(&(number + 7).to_be_bytes());
    if side == Side::Target {
        header[24..28].copy_from_slice(&number.to_be_bytes());
        header[32..36].copy_from_slice(&(number / 3 + 65).to_be_bytes());
    }
    header[28..32].copy_from_slice(&(number / 3 + 1).to_be_bytes());
    (header, data)
}

fn begin(opcode: Opcode, flags: u8) -> [u8; BHS_LENGTH] {
    let mut header = [0; BHS_LENGTH];
    header[0] = opcode as u8;
    header[1] = flags;
    header
}
