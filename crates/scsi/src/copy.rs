//! Third-party copy for both roles (SPC-4 5.17): the parameter list of EXTENDED COPY (LID1), the data of RECEIVE COPY
//! OPERATING PARAMETERS and RECEIVE COPY STATUS (LID1), and the failures of a copy.
//!
//! The only CSCD descriptor supported is identification, E4h; the only segment descriptor is block to block, 02h. The
//! caller finds the units of a list, because a logical unit has no access to others.

use crate::limits::{COPY_CSCDS_MAX, COPY_LIST_BYTES_MAX, COPY_SEGMENTS_MAX};
use crate::{Sense, SenseKey};

/// Bytes before the descriptors (SPC-4 table 106).
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes of an identification CSCD descriptor (SPC-4 table 112).
pub(crate) const CSCD_BYTES: usize = 32;
/// Bytes of a block to block segment descriptor (SPC-4 table 119).
pub(crate) const SEGMENT_BYTES: usize = 28;
/// Supported descriptor type codes, ascending as in the reports.
pub(crate) const DESCRIPTORS: [u8; 2] = [BLOCK_TO_BLOCK, IDENTIFICATION];

const BLOCK_TO_BLOCK: u8 = 0x02;
const IDENTIFICATION: u8 = 0xe4;
/// Bytes for a designator in a CSCD descriptor.
const DESIGNATOR_BYTES_MAX: usize = 20;
const NAA: u8 = 0x03;

/// One end of a copy: an identification CSCD descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cscd {
    pub code_set: u8,
    /// ASSOCIATION (bits 5, 4) and DESIGNATOR TYPE, as in VPD page 83h.
    pub kind: u8,
    /// DESIGNATOR, at most 20 bytes.
    pub designator: Vec<u8>,
    pub device_type: u8,
    /// NUL: the null device.
    pub null: bool,
    /// DISK BLOCK LENGTH in bytes.
    pub block_bytes: u32,
}

impl Cscd {
    /// A logical unit by its NAA designator; `None` unless that has 8 or 16 bytes.
    pub fn naa(designator: &[u8], block_bytes: u32) -> Option<Self> {
        let fits = matches!(designator.len(), 8 | 16) && block_bytes < 1 << 24;
        let designator = fits.then(|| designator.to_vec())?;
        Some(Self { code_set: 0x01, kind: NAA, designator, device_type: 0, null: false, block_bytes })
    }

    fn emit(&self, list: &mut Vec<u8>) {
        let start = list.len();
        list.extend([IDENTIFICATION, self.device_type & 0x1f | u8::from(self.null) << 5, 0, 0]);
        list.extend([self.code_set, self.kind, 0, self.designator.len() as u8]);
        list.extend(&self.designator);
        list.resize(start + CSCD_BYTES - 4, 0);
        list.extend(self.block_bytes.to_be_bytes());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// SOURCE CSCD DESCRIPTOR ID: index into the list's CSCD descriptors.
    pub source: u16,
    /// DESTINATION CSCD DESCRIPTOR ID: index into the list's CSCD descriptors.
    pub destination: u16,
    /// DC: `blocks` counts blocks of the destination.
    pub destination_count: bool,
    pub blocks: u16,
    pub source_lba: u64,
    pub destination_lba: u64,
}

impl Segment {
    fn emit(&self, list: &mut Vec<u8>) {
        let [high, low] = (SEGMENT_BYTES as u16 - 4).to_be_bytes();
        list.extend([BLOCK_TO_BLOCK, u8::from(self.destination_count) << 1, high, low]);
        list.extend(self.source.to_be_bytes());
        list.extend(self.destination.to_be_bytes());
        list.extend([0, 0]);
        list.extend(self.blocks.to_be_bytes());
        list.extend(self.source_lba.to_be_bytes());
        list.extend(self.destination_lba.to_be_bytes());
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyList {
    /// LIST IDENTIFIER; `None` if the status of the copy will not be queried (LIST ID USAGE 11b).
    pub list_id: Option<u8>,
    pub cscds: Vec<Cscd>,
    /// The segment descriptors, in order of execution.
    pub segments: Vec<Segment>,
}

impl CopyList {
    /// Emits the list with LIST ID USAGE 10b (or 11b): the target need not keep the result of the copy.
    pub fn emit(&self) -> Vec<u8> {
        let usage = if self.list_id.is_some() { 0b10 } else { 0b11 };
        let mut list = vec![self.list_id.unwrap_or(0), usage << 3];
        list.resize(HEADER_BYTES, 0);
        self.cscds.iter().for_each(|cscd| cscd.emit(&mut list));
        let segments_at = list.len();
        self.segments.iter().for_each(|segment| segment.emit(&mut list));
        let (cscds, segments) = (segments_at - HEADER_BYTES, list.len() - segments_at);
        list[2..4].copy_from_slice(&(cscds as u16).to_be_bytes());
        list[8..12].copy_from_slice(&(segments as u32).to_be_bytes());
        list
    }

    /// Parses the list of a host (SPC-4 6.4.3). On error the command ends with the sense data returned.
    pub(crate) fn parse(list: &[u8]) -> Result<Self, Sense> {
        let header = list.get(..HEADER_BYTES).ok_or(Sense::LIST_LENGTH)?;
        let list_id = match (header[1] >> 3 & 0x03, header[0]) {
            (0b01, _) => return Err(Sense::field_in_list(1, Some(4))),
            (0b11, 0) => None,
            (0b11, _) => return Err(Sense::field_in_list(0, None)),
            (_, id) => Some(id),
        };
        let cscd_bytes = usize::from(be16(&header[2..]));
        let (segment_bytes, inline_bytes) = (be32(&header[8..]) as usize, be32(&header[12..]) as usize);
        if cscd_bytes + segment_bytes > COPY_LIST_BYTES_MAX {
            return Err(Sense::LIST_LENGTH);
        }
        let (cscds, segments) = list[HEADER_BYTES..]
            .split_at_checked(cscd_bytes)
            .and_then(|(cscds, rest)| Some((cscds, rest.get(..segment_bytes)?)))
            .ok_or(Sense::LIST_LENGTH)?;
        if inline_bytes > 0 {
            return Err(in_list(0x0b, 12));
        }
        Ok(Self {
            list_id,
            cscds: parse_cscds(cscds)?,
            segments: parse_segments(segments, HEADER_BYTES + cscd_bytes)?,
        })
    }
}

fn parse_cscds(bytes: &[u8]) -> Result<Vec<Cscd>, Sense> {
    let mut cscds = Vec::new();
    for (index, raw) in bytes.chunks(CSCD_BYTES).enumerate() {
        let at = HEADER_BYTES + index * CSCD_BYTES;
        if index == COPY_CSCDS_MAX {
            return Err(in_list(0x06, 2));
        }
        if raw[0] != IDENTIFICATION {
            return Err(in_list(0x07, at));
        }
        let Some(designator) = raw.get(8..8 + DESIGNATOR_BYTES_MAX).filter(|_| raw.len() == CSCD_BYTES)
        else {
            return Err(Sense::LIST_LENGTH);
        };
        // Only LU ID TYPE 00b is supported: the unit is identified by its designator alone.
        if raw[1] >> 6 != 0 {
            return Err(Sense::field_in_list(at as u16 + 1, Some(7)));
        }
        let Some(designator) = designator.get(..raw[7].into()) else {
            return Err(Sense::field_in_list(at as u16 + 7, None));
        };
        cscds.push(Cscd {
            code_set: raw[4] & 0x0f,
            kind: raw[5] & 0x3f,
            designator: designator.to_vec(),
            device_type: raw[1] & 0x1f,
            null: raw[1] & 0x20 != 0,
            block_bytes: be32(&raw[28..]) & 0x00ff_ffff,
        });
    }
    Ok(cscds)
}

/// `at` is the offset of the segment descriptors in the list.
fn parse_segments(bytes: &[u8], at: usize) -> Result<Vec<Segment>, Sense> {
    let mut segments = Vec::new();
    for (index, raw) in bytes.chunks(SEGMENT_BYTES).enumerate() {
        let at = at + index * SEGMENT_BYTES;
        if index == COPY_SEGMENTS_MAX {
            return Err(in_list(0x08, 8));
        }
        if raw[0] != BLOCK_TO_BLOCK {
            return Err(in_list(0x09, at));
        }
        if raw.len() < SEGMENT_BYTES {
            return Err(Sense::LIST_LENGTH);
        }
        if usize::from(be16(&raw[2..])) != SEGMENT_BYTES - 4 {
            return Err(Sense::field_in_list(at as u16 + 2, None));
        }
        segments.push(Segment {
            source: be16(&raw[4..]),
            destination: be16(&raw[6..]),
            destination_count: raw[1] & 0x02 != 0,
            blocks: be16(&raw[10..]),
            source_lba: be64(&raw[12..]),
            destination_lba: be64(&raw[20..]),
        });
    }
    Ok(segments)
}

/// ILLEGAL REQUEST 26h with this qualifier and a field pointer to `byte` of the list.
fn in_list(ascq: u8, byte: usize) -> Sense {
    Sense { ascq, ..Sense::field_in_list(byte as u16, None) }
}

/// Why a copy ended early. The contents of all destinations are undefined from the first segment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFailure {
    /// Index of the failed segment, from zero.
    pub segment: u16,
    pub fault: CopyFault,
}

/// Failure of a segment (SPC-4 6.4.4); the sense key is COPY ABORTED except for the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// An index refers to no descriptor of the list, or to the null device: 08h/04h UNREACHABLE COPY TARGET.
    NoDescriptor,
    /// The descriptor identifies no unit that this I_T nexus can access: 0Dh/02h COPY TARGET DEVICE NOT REACHABLE.
    NotReachable,
    /// The unit is no direct access block device: 0Dh/03h INCORRECT COPY TARGET DEVICE TYPE.
    DeviceType,
    /// The bytes are no whole blocks of the other end: 26h/0Ah UNEXPECTED INEXACT SEGMENT.
    Inexact,
    /// A command to the unit was, or would be, refused: 0Dh/01h THIRD PARTY DEVICE FAILURE.
    Device,
    /// DISK BLOCK LENGTH differs from that of the logical unit: ILLEGAL REQUEST 26h/00h.
    BlockLength,
    /// The copy was aborted: ABORTED COMMAND 00h/00h.
    Aborted,
}

impl CopyFailure {
    /// The sense data of the command; the segment is in the low half of COMMAND-SPECIFIC INFORMATION.
    pub(crate) fn sense(&self) -> Sense {
        let (key, asc, ascq) = match self.fault {
            CopyFault::NoDescriptor => (SenseKey::CopyAborted, 0x08, 0x04),
            CopyFault::NotReachable => (SenseKey::CopyAborted, 0x0d, 0x02),
            CopyFault::DeviceType => (SenseKey::CopyAborted, 0x0d, 0x03),
            CopyFault::Inexact => (SenseKey::CopyAborted, 0x26, 0x0a),
            CopyFault::Device => (SenseKey::CopyAborted, 0x0d, 0x01),
            CopyFault::BlockLength => (SenseKey::IllegalRequest, 0x26, 0x00),
            CopyFault::Aborted => (SenseKey::AbortedCommand, 0x00, 0x00),
        };
        Sense { command_specific: self.segment.into(), ..Sense::new(key, asc, ascq) }
    }
}

/// RECEIVE COPY OPERATING PARAMETERS data (SPC-4 6.22): the fields that a block to block copy needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyParameters {
    pub cscds_max: u16,
    pub segments_max: u16,
    /// MAXIMUM DESCRIPTOR LIST LENGTH in bytes.
    pub list_bytes_max: u32,
    /// MAXIMUM SEGMENT LENGTH in bytes; 0 means no limit.
    pub segment_bytes_max: u32,
    /// IMPLEMENTED DESCRIPTOR LIST: supported type codes.
    pub descriptors: Vec<u8>,
}

impl CopyParameters {
    pub fn parse(data: &[u8]) -> Option<Self> {
        let count = usize::from(*data.get(43)?);
        Some(Self {
            cscds_max: be16(&data[8..]),
            segments_max: be16(&data[10..]),
            list_bytes_max: be32(&data[12..]),
            segment_bytes_max: be32(&data[16..]),
            descriptors: data.get(44..44 + count)?.to_vec(),
        })
    }

    /// Whether copies between block devices by designator are supported.
    pub fn copies_blocks(&self) -> bool {
        DESCRIPTORS.iter().all(|code| self.descriptors.contains(code))
    }

    /// Most block to block segments of one list with `cscds` CSCD descriptors.
    pub fn segments_of_list(&self, cscds: usize) -> usize {
        let left = (self.list_bytes_max as usize).saturating_sub(cscds * CSCD_BYTES);
        (left / SEGMENT_BYTES).min(self.segments_max.into())
    }
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(cscds: usize, segments: usize) -> CopyList {
        let cscd = |index: usize| Cscd::naa(&[0x30, 0, 0, 0, 0, 0, 0, index as u8], 512).expect("8 bytes");
        let segment = |index: usize| Segment {
            source: 0,
            destination: 1,
            destination_count: index % 2 == 1,
            blocks: 0x0102,
            source_lba: 0x0102_0304_0506_0708 + index as u64,
            destination_lba: u64::MAX - index as u64,
        };
        CopyList {
            list_id: Some(7),
            cscds: (0..cscds).map(cscd).collect(),
            segments: (0..segments).map(segment).collect(),
        }
    }

    #[test]
    fn round_trip() {
        for list in [list(0, 0), list(2, 3), list(COPY_CSCDS_MAX, COPY_SEGMENTS_MAX)] {
            assert_eq!(CopyList::parse(&list.emit()), Ok(list));
        }
        let nameless = CopyList { list_id: None, ..list(2, 1) };
        assert_eq!(CopyList::parse(&nameless.emit()), Ok(nameless));
        let long = Cscd::naa(&[0x60; 16], 4096).expect("16 bytes");
        let list = CopyList { cscds: vec![long], ..list(0, 0) };
        assert_eq!(CopyList::parse(&list.emit()), Ok(list));
        assert_eq!(Cscd::naa(&[0x30; 9], 512), None);
    }

    #[test]
    fn layout_spc4_table_112_and_119() {
        let bytes = list(1, 1).emit();
        assert_eq!(bytes[..16], [7, 0x10, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0]);
        assert_eq!(bytes[16..32], [0xe4, 0, 0, 0, 1, 3, 0, 8, 0x30, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[32..48], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        assert_eq!(bytes[48..60], [0x02, 0, 0, 24, 0, 0, 0, 1, 0, 0, 1, 2]);
        assert_eq!(bytes[60..], [1, 2, 3, 4, 5, 6, 7, 8, 255, 255, 255, 255, 255, 255, 255, 255]);
    }

    /// SPC-4 6.4.3 and 6.4.5: each defect of a list, with its sense code and field pointer.
    #[test]
    fn list_hostile() {
        type Spoil = fn(&mut Vec<u8>);
        /// ASC, ASCQ and field pointer.
        type Codes = (u8, u8, Option<u16>);
        const LENGTH: Codes = (0x1a, 0x00, None);
        let vectors: [(&str, Spoil, Codes); 17] = [
            ("empty", |list| list.clear(), LENGTH),
            ("header_truncated", |list| list.truncate(15), LENGTH),
            ("cscd_truncated", |list| list.truncate(16 + 31), LENGTH),
            ("segment_truncated", |list| list.truncate(16 + 64 + 27), LENGTH),
            ("cscd_length_beyond_end", |list| list[2] = 1, LENGTH),
            ("segment_length_huge", |list| list[8] = 0xff, LENGTH),
            ("cscd_cut_in_half", |list| (list[3], list[11]) = (40, 28 + 24), LENGTH),
            ("inline_data", |list| list[15] = 1, (0x26, 0x0b, Some(12))),
            ("usage_reserved", |list| list[1] = 0x08, (0x26, 0x00, Some(1))),
            ("usage_none_with_identifier", |list| list[1] = 0x18, (0x26, 0x00, Some(0))),
            ("cscd_fibre_channel", |list| list[16] = 0xe0, (0x26, 0x07, Some(16))),
            ("cscd_extension", |list| list[48] = 0xff, (0x26, 0x07, Some(48))),
            ("lu_id_type_proxy_token", |list| list[17] = 0x40, (0x26, 0x00, Some(17))),
            ("lu_id_type_reserved", |list| list[17] = 0xc0, (0x26, 0x00, Some(17))),
            ("designator_long", |list| list[23] = 21, (0x26, 0x00, Some(23))),
            ("segment_stream_to_stream", |list| list[80] = 0x03, (0x26, 0x09, Some(80))),
            ("segment_length_wrong", |list| list[83] = 25, (0x26, 0x00, Some(82))),
        ];
        for (name, spoil, (asc, ascq, byte)) in vectors {
            let mut bytes = list(2, 1).emit();
            spoil(&mut bytes);
            let sense = CopyList::parse(&bytes).expect_err(name);
            assert_eq!((sense.key, sense.asc, sense.ascq), (SenseKey::IllegalRequest, asc, ascq), "{name}");
            let pointed = sense.specific.map(|specific| match specific {
                crate::Specific::Field { in_cdb: false, byte, .. } => byte,
                other => panic!("{name}: {other:?}"),
            });
            assert_eq!(pointed, byte, "{name}");
        }
    }

    #[test]
    fn counts_spc4_6_4_3() {
        let codes = |list: CopyList| {
            CopyList::parse(&list.emit()).map_err(|sense| (sense.asc, sense.ascq)).map(|_| ())
        };
        assert_eq!(codes(list(COPY_CSCDS_MAX + 1, 1)), Err((0x26, 0x06)));
        assert_eq!(codes(list(1, COPY_SEGMENTS_MAX + 1)), Err((0x26, 0x08)));
        // Above MAXIMUM DESCRIPTOR LIST LENGTH, no other check is made.
        assert_eq!(codes(list(COPY_CSCDS_MAX + 1, COPY_SEGMENTS_MAX + 1)), Err((0x1a, 0x00)));
        assert_eq!(codes(list(COPY_CSCDS_MAX, COPY_SEGMENTS_MAX)), Ok(()));
    }

    #[test]
    fn operating_parameters_hostile() {
        assert_eq!(CopyParameters::parse(&[0; 43]), None, "cut");
        let mut data = [0; 46];
        data[43] = 3;
        assert_eq!(CopyParameters::parse(&data), None, "list_cut");
        (data[43], data[44], data[45]) = (2, 0x02, 0xe4);
        (data[9], data[11], data[14]) = (2, 9, 1);
        let parameters = CopyParameters::parse(&data).expect("whole");
        assert!(parameters.copies_blocks());
        assert_eq!(parameters.segments_of_list(2), 6, "(256 - 64) / 28");
        assert_eq!(parameters.segments_of_list(9), 0);
        data[45] = 0xe0;
        assert!(!CopyParameters::parse(&data).expect("whole").copies_blocks());
    }
}
