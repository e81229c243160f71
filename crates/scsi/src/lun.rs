//! Logical unit numbers on the wire (SAM-5 4.7), and the response for a LUN without logical unit.

use crate::cdb::opcode;
use crate::{Outcome, Sense};

/// Largest number in flat space addressing.
pub const NUMBER_MAX: u16 = 0x3fff;

/// The 8-byte wire value of a number, as a big-endian integer: peripheral device addressing below 256 (which every
/// initiator expects), flat space addressing up to [`NUMBER_MAX`]; `None` beyond.
pub const fn to_wire(number: u16) -> Option<u64> {
    match number {
        0..=0xff => Some((number as u64) << 48),
        0x100..=NUMBER_MAX => Some((0x4000 | number as u64) << 48),
        _ => None,
    }
}

/// The number of a wire value; `None` for deeper levels, other buses, well-known units and extended addressing. Flat
/// space addressing of a number below 256 addresses the same unit (SAM-5 4.7.2).
pub const fn from_wire(wire: u64) -> Option<u16> {
    if wire & 0x0000_ffff_ffff_ffff != 0 {
        return None;
    }
    let first = (wire >> 48) as u16;
    match first >> 14 {
        // 00b with a non-zero BUS IDENTIFIER addresses a lower level.
        0b00 if first <= 0xff => Some(first),
        0b01 => Some(first & NUMBER_MAX),
        _ => None,
    }
}

/// Executes a command for a LUN without logical unit (SPC-4 4.3.5.4.. "incorrect logical unit selection", SAM-5 5.11):
/// INQUIRY reports it, REPORT LUNS and REQUEST SENSE work, every other command ends with 05h 25h/00h.
pub fn no_unit(cdb: &[u8], inventory: &[u64]) -> Outcome {
    match cdb.first() {
        Some(&opcode::INQUIRY) => crate::unit::inquiry_without_unit(cdb),
        Some(&opcode::REPORT_LUNS) => crate::unit::report_luns(cdb, inventory),
        Some(&opcode::REQUEST_SENSE) => crate::unit::request_sense(cdb, Sense::NO_UNIT),
        _ => Outcome::check(Sense::NO_UNIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_values() {
        let vectors: [(&str, u64, Option<u16>); 9] = [
            ("zero", 0, Some(0)),
            ("peripheral", 0x0007_0000_0000_0000, Some(7)),
            ("peripheral_largest", 0x00ff_0000_0000_0000, Some(255)),
            ("peripheral_other_bus", 0x0107_0000_0000_0000, None),
            ("flat", 0x4100_0000_0000_0000, Some(256)),
            ("flat_largest", 0x7fff_0000_0000_0000, Some(0x3fff)),
            ("logical_unit_addressing", 0x8001_0000_0000_0000, None),
            ("well_known", 0xc101_0000_0000_0000, None),
            ("second_level", 0x0001_0001_0000_0000, None),
        ];
        for (name, wire, number) in vectors {
            assert_eq!(from_wire(wire), number, "{name}");
        }
    }

    #[test]
    fn round_trip() {
        for number in 0..=NUMBER_MAX {
            assert_eq!(to_wire(number).and_then(from_wire), Some(number));
        }
        assert_eq!(to_wire(NUMBER_MAX + 1), None);
    }
}
