//! Sense data: both formats, emitted and parsed (SPC-4 4.5).

use crate::limits::SENSE_MAX_BYTES;

/// SENSE KEY (SPC-4 table 48).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SenseKey {
    NoSense = 0x0,
    RecoveredError = 0x1,
    NotReady = 0x2,
    MediumError = 0x3,
    HardwareError = 0x4,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    BlankCheck = 0x8,
    VendorSpecific = 0x9,
    CopyAborted = 0xa,
    AbortedCommand = 0xb,
    Reserved = 0xc,
    VolumeOverflow = 0xd,
    Miscompare = 0xe,
    Completed = 0xf,
}

impl SenseKey {
    pub const fn from_low_bits(byte: u8) -> Self {
        match byte & 0x0f {
            0x0 => Self::NoSense,
            0x1 => Self::RecoveredError,
            0x2 => Self::NotReady,
            0x3 => Self::MediumError,
            0x4 => Self::HardwareError,
            0x5 => Self::IllegalRequest,
            0x6 => Self::UnitAttention,
            0x7 => Self::DataProtect,
            0x8 => Self::BlankCheck,
            0x9 => Self::VendorSpecific,
            0xa => Self::CopyAborted,
            0xb => Self::AbortedCommand,
            0xc => Self::Reserved,
            0xd => Self::VolumeOverflow,
            0xe => Self::Miscompare,
            _ => Self::Completed,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSense => "NO SENSE",
            Self::RecoveredError => "RECOVERED ERROR",
            Self::NotReady => "NOT READY",
            Self::MediumError => "MEDIUM ERROR",
            Self::HardwareError => "HARDWARE ERROR",
            Self::IllegalRequest => "ILLEGAL REQUEST",
            Self::UnitAttention => "UNIT ATTENTION",
            Self::DataProtect => "DATA PROTECT",
            Self::BlankCheck => "BLANK CHECK",
            Self::VendorSpecific => "VENDOR SPECIFIC",
            Self::CopyAborted => "COPY ABORTED",
            Self::AbortedCommand => "ABORTED COMMAND",
            Self::Reserved => "RESERVED",
            Self::VolumeOverflow => "VOLUME OVERFLOW",
            Self::Miscompare => "MISCOMPARE",
            Self::Completed => "COMPLETED",
        }
    }
}

/// SENSE KEY SPECIFIC (SPC-4 4.5.2.4): the forms that this crate interprets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Specific {
    /// ILLEGAL REQUEST: pointer to the invalid field.
    Field {
        /// The field is in the CDB; otherwise in the parameter list.
        in_cdb: bool,
        byte: u16,
        /// Most significant bit of the field, unless it consists of whole bytes.
        bit: Option<u8>,
    },
    /// NOT READY or NO SENSE: progress in units of 1/65536.
    Progress(u16),
    /// Any other form from a peer, without SKSV.
    Other([u8; 3]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sense {
    pub key: SenseKey,
    pub asc: u8,
    pub ascq: u8,
    /// INFORMATION; its meaning depends on the command (an LBA, an offset).
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION, zero if absent; for EXTENDED COPY the segment, in its low half.
    pub command_specific: u64,
    pub specific: Option<Specific>,
    /// Deferred error: reports an earlier command.
    pub deferred: bool,
    /// Descriptor format (72h, 73h) instead of fixed format (70h, 71h). D_SENSE of the Control page selects it.
    pub descriptor: bool,
}

impl Sense {
    /// Current error in fixed format with only the three codes.
    pub const fn new(key: SenseKey, asc: u8, ascq: u8) -> Self {
        Self {
            key,
            asc,
            ascq,
            information: None,
            command_specific: 0,
            specific: None,
            deferred: false,
            descriptor: false,
        }
    }

    pub const NONE: Self = Self::new(SenseKey::NoSense, 0, 0);
    pub const NO_UNIT: Self = Self::new(SenseKey::IllegalRequest, 0x25, 0x00);
    /// INVALID COMMAND OPERATION CODE; also for an unknown service action.
    pub const INVALID_OPCODE: Self = Self::new(SenseKey::IllegalRequest, 0x20, 0x00);
    pub const ACCESS_DENIED: Self = Self::new(SenseKey::IllegalRequest, 0x20, 0x02);
    /// INVALID FIELD IN COMMAND INFORMATION UNIT: the transport's expected length does not match the CDB.
    pub const COMMAND_IU: Self = Self::new(SenseKey::IllegalRequest, 0x0e, 0x03);
    pub const OUT_OF_RANGE: Self = Self::new(SenseKey::IllegalRequest, 0x21, 0x00);
    pub const LIST_LENGTH: Self = Self::new(SenseKey::IllegalRequest, 0x1a, 0x00);
    pub const NO_SAVING: Self = Self::new(SenseKey::IllegalRequest, 0x39, 0x00);
    pub const REMOVAL_PREVENTED: Self = Self::new(SenseKey::IllegalRequest, 0x53, 0x02);
    pub const NO_MEDIUM: Self = Self::new(SenseKey::NotReady, 0x3a, 0x00);
    pub const WRITE_PROTECTED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x00);
    /// SPACE ALLOCATION FAILED WRITE PROTECT.
    pub const NO_SPACE: Self = Self::new(SenseKey::DataProtect, 0x27, 0x07);
    pub const READ_ERROR: Self = Self::new(SenseKey::MediumError, 0x11, 0x00);
    pub const WRITE_ERROR: Self = Self::new(SenseKey::MediumError, 0x0c, 0x00);
    pub const INTERNAL: Self = Self::new(SenseKey::HardwareError, 0x44, 0x00);

    /// INVALID FIELD IN CDB, with a field pointer.
    pub const fn field_in_cdb(byte: u16, bit: Option<u8>) -> Self {
        let mut sense = Self::new(SenseKey::IllegalRequest, 0x24, 0x00);
        sense.specific = Some(Specific::Field { in_cdb: true, byte, bit });
        sense
    }

    /// INVALID FIELD IN PARAMETER LIST, with a field pointer.
    pub const fn field_in_list(byte: u16, bit: Option<u8>) -> Self {
        let mut sense = Self::new(SenseKey::IllegalRequest, 0x26, 0x00);
        sense.specific = Some(Specific::Field { in_cdb: false, byte, bit });
        sense
    }

    /// Emits the bytes for a SCSI Response, at most [`SENSE_MAX_BYTES`], in the format of [`Sense::descriptor`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = if self.descriptor { self.descriptor_bytes() } else { self.fixed_bytes() };
        assert!(bytes.len() <= SENSE_MAX_BYTES);
        bytes
    }

    /// Fixed format, SPC-4 4.5.3. INFORMATION has 32 bits; a larger value leaves VALID zero.
    fn fixed_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 18];
        bytes[0] = 0x70 | u8::from(self.deferred);
        if let Some(information) = self.information.and_then(|information| u32::try_from(information).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[2] = self.key as u8;
        bytes[7] = 10;
        let specific = u32::try_from(self.command_specific).unwrap_or_default();
        bytes[8..12].copy_from_slice(&specific.to_be_bytes());
        bytes[12] = self.asc;
        bytes[13] = self.ascq;
        if let Some(specific) = self.specific {
            bytes[15..18].copy_from_slice(&specific.emit());
        }
        bytes
    }

    /// Descriptor format, SPC-4 4.5.2.
    fn descriptor_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SENSE_MAX_BYTES);
        bytes.extend([0x72 | u8::from(self.deferred), self.key as u8, self.asc, self.ascq, 0, 0, 0, 0]);
        if let Some(information) = self.information {
            bytes.extend([0x00, 0x0a, 0x80, 0x00]);
            bytes.extend(information.to_be_bytes());
        }
        if self.command_specific != 0 {
            bytes.extend([0x01, 0x0a, 0x00, 0x00]);
            bytes.extend(self.command_specific.to_be_bytes());
        }
        if let Some(specific) = self.specific {
            bytes.extend([0x02, 0x06, 0x00, 0x00]);
            bytes.extend(specific.emit());
            bytes.push(0);
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }

    /// Parses sense data of either format; `None` for other bytes. Truncated data yields the fields received, because
    /// an initiator may provide a small buffer.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? & 0x7f {
            code @ (0x70 | 0x71) => {
                // ADDITIONAL SENSE LENGTH bounds the sense data, also in a longer buffer.
                let end = bytes.get(7).map_or(bytes.len(), |more| bytes.len().min(8 + usize::from(*more)));
                let bytes = &bytes[..end];
                let mut sense = Self::new(SenseKey::from_low_bits(*bytes.get(2)?), 0, 0);
                sense.deferred = code == 0x71;
                if bytes[0] & 0x80 != 0
                    && let Some(information) = bytes.get(3..7)
                {
                    sense.information = Some(u64::from(u32::from_be_bytes(information.try_into().ok()?)));
                }
                sense.command_specific = bytes.get(8..12).map_or(0, |value| {
                    u64::from(u32::from_be_bytes([value[0], value[1], value[2], value[3]]))
                });
                sense.asc = bytes.get(12).copied().unwrap_or(0);
                sense.ascq = bytes.get(13).copied().unwrap_or(0);
                sense.specific = bytes.get(15..18).and_then(|raw| Specific::parse(sense.key, raw));
                Some(sense)
            }
            code @ (0x72 | 0x73) => {
                let mut sense = Self::new(SenseKey::from_low_bits(*bytes.get(1)?), 0, 0);
                sense.deferred = code == 0x73;
                sense.descriptor = true;
                sense.asc = bytes.get(2).copied().unwrap_or(0);
                sense.ascq = bytes.get(3).copied().unwrap_or(0);
                let end = bytes.get(7).map_or(bytes.len(), |more| bytes.len().min(8 + usize::from(*more)));
                let mut rest = bytes.get(8..end).unwrap_or(&[]);
                while let [kind, length, ..] = *rest {
                    let length = 2 + usize::from(length);
                    let Some(body) = rest.get(..length) else { break };
                    match kind {
                        0x00 if body.len() >= 12 && body[2] & 0x80 != 0 => {
                            sense.information = Some(u64::from_be_bytes(body[4..12].try_into().ok()?));
                        }
                        0x01 if body.len() >= 12 => {
                            sense.command_specific = u64::from_be_bytes(body[4..12].try_into().ok()?);
                        }
                        0x02 if body.len() >= 7 => sense.specific = Specific::parse(sense.key, &body[4..7]),
                        _ => {}
                    }
                    rest = &rest[length..];
                }
                Some(sense)
            }
            _ => None,
        }
    }

    /// The text of the additional sense code, for the codes of this crate and others common at initiators; otherwise
    /// the empty string.
    pub const fn meaning(&self) -> &'static str {
        match (self.asc, self.ascq) {
            (0x00, 0x00) => "NO ADDITIONAL SENSE INFORMATION",
            (0x00, 0x16) => "OPERATION IN PROGRESS",
            (0x04, 0x00) => "LOGICAL UNIT NOT READY, CAUSE NOT REPORTABLE",
            (0x04, 0x01) => "LOGICAL UNIT IS IN PROCESS OF BECOMING READY",
            (0x04, 0x02) => "LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED",
            (0x04, 0x03) => "LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED",
            (0x04, 0x0a) => "LOGICAL UNIT NOT ACCESSIBLE, ASYMMETRIC ACCESS STATE TRANSITION",
            (0x04, 0x0b) => "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE",
            (0x04, 0x0c) => "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE",
            (0x08, 0x00) => "LOGICAL UNIT COMMUNICATION FAILURE",
            (0x08, 0x04) => "UNREACHABLE COPY TARGET",
            (0x0c, 0x00) => "WRITE ERROR",
            (0x0c, 0x0c) => "WRITE ERROR - UNEXPECTED UNSOLICITED DATA",
            (0x0c, 0x0d) => "WRITE ERROR - NOT ENOUGH UNSOLICITED DATA",
            (0x0d, 0x01) => "THIRD PARTY DEVICE FAILURE",
            (0x0d, 0x02) => "COPY TARGET DEVICE NOT REACHABLE",
            (0x0d, 0x03) => "INCORRECT COPY TARGET DEVICE TYPE",
            (0x0e, 0x03) => "INVALID FIELD IN COMMAND INFORMATION UNIT",
            (0x11, 0x00) => "UNRECOVERED READ ERROR",
            (0x1a, 0x00) => "PARAMETER LIST LENGTH ERROR",
            (0x1d, 0x00) => "MISCOMPARE DURING VERIFY OPERATION",
            (0x20, 0x00) => "INVALID COMMAND OPERATION CODE",
            (0x20, 0x02) => "ACCESS DENIED - NO ACCESS RIGHTS",
            (0x21, 0x00) => "LOGICAL BLOCK ADDRESS OUT OF RANGE",
            (0x24, 0x00) => "INVALID FIELD IN CDB",
            (0x25, 0x00) => "LOGICAL UNIT NOT SUPPORTED",
            (0x26, 0x00) => "INVALID FIELD IN PARAMETER LIST",
            (0x26, 0x06) => "TOO MANY TARGET DESCRIPTORS",
            (0x26, 0x07) => "UNSUPPORTED TARGET DESCRIPTOR TYPE CODE",
            (0x26, 0x08) => "TOO MANY SEGMENT DESCRIPTORS",
            (0x26, 0x09) => "UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE",
            (0x26, 0x0a) => "UNEXPECTED INEXACT SEGMENT",
            (0x26, 0x0b) => "INLINE DATA LENGTH EXCEEDED",
            (0x27, 0x00) => "WRITE PROTECTED",
            (0x27, 0x07) => "SPACE ALLOCATION FAILED WRITE PROTECT",
            (0x28, 0x00) => "NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED",
            (0x29, 0x00) => "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED",
            (0x29, 0x01) => "POWER ON OCCURRED",
            (0x29, 0x03) => "BUS DEVICE RESET FUNCTION OCCURRED",
            (0x29, 0x04) => "DEVICE INTERNAL RESET",
            (0x29, 0x07) => "I_T NEXUS LOSS OCCURRED",
            (0x2a, 0x01) => "MODE PARAMETERS CHANGED",
            (0x2a, 0x03) => "RESERVATIONS PREEMPTED",
            (0x2a, 0x04) => "RESERVATIONS RELEASED",
            (0x2a, 0x05) => "REGISTRATIONS PREEMPTED",
            (0x2a, 0x06) => "ASYMMETRIC ACCESS STATE CHANGED",
            (0x2a, 0x09) => "CAPACITY DATA HAS CHANGED",
            (0x2f, 0x00) => "COMMANDS CLEARED BY ANOTHER INITIATOR",
            (0x38, 0x07) => "THIN PROVISIONING SOFT THRESHOLD REACHED",
            (0x39, 0x00) => "SAVING PARAMETERS NOT SUPPORTED",
            (0x3a, 0x00) => "MEDIUM NOT PRESENT",
            (0x3a, 0x01) => "MEDIUM NOT PRESENT - TRAY CLOSED",
            (0x3a, 0x02) => "MEDIUM NOT PRESENT - TRAY OPEN",
            (0x3f, 0x0e) => "REPORTED LUNS DATA HAS CHANGED",
            (0x44, 0x00) => "INTERNAL TARGET FAILURE",
            (0x47, 0x05) => "PROTOCOL SERVICE CRC ERROR",
            (0x4e, 0x00) => "OVERLAPPED COMMANDS ATTEMPTED",
            (0x53, 0x02) => "MEDIUM REMOVAL PREVENTED",
            _ => "",
        }
    }
}

impl std::fmt::Display for Sense {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "sense {:02x}/{:02x}/{:02x} {}", self.key as u8, self.asc, self.ascq, self.key.name())?;
        match self.meaning() {
            "" => Ok(()),
            meaning => write!(out, ", {meaning}"),
        }
    }
}

impl Specific {
    /// SKSV and the 23 bits that follow it.
    fn emit(self) -> [u8; 3] {
        match self {
            Self::Field { in_cdb, byte, bit } => {
                let [high, low] = byte.to_be_bytes();
                [0x80 | (u8::from(in_cdb) << 6) | bit.map_or(0, |bit| 0x08 | (bit & 7)), high, low]
            }
            Self::Progress(progress) => {
                let [high, low] = progress.to_be_bytes();
                [0x80, high, low]
            }
            Self::Other([first, second, third]) => [0x80 | first, second, third],
        }
    }

    fn parse(key: SenseKey, raw: &[u8]) -> Option<Self> {
        let &[first, high, low] = raw else { return None };
        if first & 0x80 == 0 {
            return None;
        }
        let value = u16::from_be_bytes([high, low]);
        Some(match key {
            SenseKey::IllegalRequest => {
                let bit = (first & 0x08 != 0).then_some(first & 7);
                Self::Field { in_cdb: first & 0x40 != 0, byte: value, bit }
            }
            SenseKey::NotReady | SenseKey::NoSense => Self::Progress(value),
            _ => Self::Other([first & 0x7f, high, low]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_field_pointer() {
        let bytes = Sense::field_in_cdb(1, Some(7)).to_bytes();
        assert_eq!(bytes, [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcf, 0, 1]);
    }

    #[test]
    fn descriptor_with_information_and_pointer() {
        let mut sense = Sense::field_in_list(0x102, None);
        sense.information = Some(0x0102_0304_0506);
        sense.descriptor = true;
        let bytes = sense.to_bytes();
        assert_eq!(bytes[..8], [0x72, 5, 0x26, 0, 0, 0, 0, 20]);
        assert_eq!(bytes[8..20], [0, 10, 0x80, 0, 0, 0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(bytes[20..], [2, 6, 0, 0, 0x80, 1, 2, 0]);
    }

    #[test]
    fn information_beyond_32_bits_is_not_valid_in_fixed_format() {
        let mut sense = Sense::READ_ERROR;
        sense.information = Some(1 << 32);
        assert_eq!(sense.to_bytes()[0], 0x70);
        sense.information = Some(0xffff_ffff);
        assert_eq!(sense.to_bytes()[0], 0xf0);
    }

    #[test]
    fn round_trip() {
        for descriptor in [false, true] {
            for deferred in [false, true] {
                let mut sense = Sense::field_in_cdb(2, Some(3));
                (sense.descriptor, sense.deferred, sense.information) = (descriptor, deferred, Some(77));
                sense.command_specific = 5;
                assert_eq!(Sense::parse(&sense.to_bytes()), Some(sense));
            }
        }
    }

    #[test]
    fn parse_hostile() {
        type Codes = (u8, u8, u8);
        let vectors: [(&str, &[u8], Option<Codes>); 8] = [
            ("empty", &[], None),
            ("response_code_unknown", &[0x7f, 0, 5], None),
            ("response_code_zero", &[0; 18], None),
            ("fixed_without_key", &[0x70, 0], None),
            ("fixed_cut_after_key", &[0xf0, 0, 6], Some((6, 0, 0))),
            (
                "fixed_additional_length_short",
                &[0x70, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x29, 1],
                Some((6, 0, 0)),
            ),
            (
                "descriptor_length_beyond_end",
                &[0x72, 3, 0x11, 1, 0, 0, 0, 255, 0, 255, 1],
                Some((3, 0x11, 1)),
            ),
            ("descriptor_of_length_zero", &[0x72, 3, 0x11, 1, 0, 0, 0, 4, 0, 0, 2, 0], Some((3, 0x11, 1))),
        ];
        for (name, bytes, expected) in vectors {
            let got = Sense::parse(bytes).map(|sense| (sense.key as u8, sense.asc, sense.ascq));
            assert_eq!(got, expected, "{name}");
        }
    }

    #[test]
    fn says_what_it_means() {
        let text = Sense::field_in_cdb(0, None).to_string();
        assert_eq!(text, "sense 05/24/00 ILLEGAL REQUEST, INVALID FIELD IN CDB");
    }
}
