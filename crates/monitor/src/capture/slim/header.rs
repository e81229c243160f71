//! Basic header segments without what names or describes anything.
//!
//! Kept: operation code and flags, lengths, tags, sequence numbers, buffer offsets, status; of CDBs the operation code,
//! service action, logical block address and length. Logical unit numbers other than 0 and session identifiers (ISID)
//! are numbered in the order in which they occur. All else is zero: what RFC 7143 section 11 reserves can hold a name.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use iscsi::wire::{BHS_LENGTH, Bhs, Opcode, field};
use scsi::cdb::{self, Access};

use crate::limits::SLIM_NAMES_MAX;

/// Numbers for values, in the order in which they occur, from 1; those after [`SLIM_NAMES_MAX`] share the last one.
#[derive(Debug)]
pub(super) struct Numbers<T>(HashMap<T, u32>);

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Eq + Hash> Numbers<T> {
    pub(super) fn of(&mut self, value: T) -> u32 {
        let next = self.0.len() as u32 + 1;
        if self.0.len() >= SLIM_NAMES_MAX {
            return self.0.get(&value).copied().unwrap_or(next);
        }
        *self.0.entry(value).or_insert(next)
    }
}

/// TotalAHSLength and DataSegmentLength.
const LENGTHS: Range<usize> = 4..8;

/// What stays of a header besides its operation code and lengths, which are in every one.
struct Kept {
    /// Bits of the second byte.
    flags: u8,
    has_lun: bool,
    /// Bytes that stay as they are: first, and one beyond the last.
    ranges: &'static [(usize, usize)],
}

/// The fields that RFC 7143 section 11 defines for an operation code, without logical unit numbers, ISIDs and CDBs.
fn kept(opcode: Opcode) -> Kept {
    let (flags, has_lun, ranges): (_, _, &[(usize, usize)]) = match opcode {
        Opcode::NopOut => (0x80, true, &[(16, 32)]),
        Opcode::ScsiCommand => (0xe7, true, &[(16, 32)]),
        Opcode::TmRequest => (0xff, true, &[(16, 40)]),
        Opcode::LoginRequest => (0xcf, false, &[(2, 4), (14, 22), (24, 32)]),
        Opcode::TextRequest => (0xc0, true, &[(16, 32)]),
        Opcode::DataOut => (0x80, true, &[(16, 24), (28, 32), (36, 44)]),
        Opcode::LogoutRequest => (0xff, false, &[(16, 22), (24, 32)]),
        Opcode::Snack => (0x8f, true, &[(16, 24), (28, 32), (40, 48)]),
        Opcode::NopIn => (0x80, true, &[(16, 36)]),
        Opcode::ScsiResponse => (0x9e, false, &[(2, 4), (16, 48)]),
        Opcode::TmResponse => (0x80, false, &[(2, 3), (16, 20), (24, 36)]),
        Opcode::LoginResponse => (0xcf, false, &[(2, 4), (14, 20), (24, 38)]),
        Opcode::TextResponse => (0xc0, true, &[(16, 36)]),
        Opcode::DataIn => (0xc7, true, &[(3, 4), (16, 48)]),
        Opcode::LogoutResponse => (0x80, false, &[(2, 3), (16, 20), (24, 36), (40, 44)]),
        Opcode::R2t => (0x80, true, &[(16, 48)]),
        Opcode::AsyncMessage => (0x80, true, &[(16, 20), (24, 44)]),
        Opcode::Reject => (0x80, false, &[(2, 3), (16, 20), (24, 40)]),
    };
    Kept { flags, has_lun, ranges }
}

#[derive(Debug, Default)]
pub(super) struct Headers {
    luns: Numbers<[u8; 8]>,
    isids: Numbers<[u8; 6]>,
}

impl Headers {
    pub(super) fn replace(&mut self, header: &[u8; BHS_LENGTH]) -> [u8; BHS_LENGTH] {
        let mut out = [0; BHS_LENGTH];
        out[0] = header[0];
        out[LENGTHS].copy_from_slice(&header[LENGTHS]);
        let Ok(opcode) = Bhs(header).opcode() else { return out };
        let Kept { flags, has_lun, ranges } = kept(opcode);
        out[field::FLAGS] = header[field::FLAGS] & flags;
        for &(from, to) in ranges {
            out[from..to].copy_from_slice(&header[from..to]);
        }
        if matches!(opcode, Opcode::LoginRequest | Opcode::LoginResponse) {
            let isid: [u8; 6] = header[field::ISID].try_into().expect("it has 6 bytes");
            let number = self.isids.of(isid).to_be_bytes();
            // The type that is random (§11.12.5).
            out[field::ISID].copy_from_slice(&[0x80, 0, number[0], number[1], number[2], number[3]]);
        }
        let lun: [u8; 8] = header[field::LUN].try_into().expect("it has 8 bytes");
        if has_lun && lun != [0; 8] {
            out[field::LUN].copy_from_slice(&lun_of(self.luns.of(lun)));
        }
        if opcode == Opcode::DataIn && header[field::FLAGS] & 1 == 0 {
            // Without the S bit there is no status.
            out[field::STATUS] = 0;
        }
        if opcode == Opcode::ScsiCommand {
            out[field::CDB].copy_from_slice(&cdb_of(&header[field::CDB]));
        }
        out
    }
}

/// A logical unit number in flat space addressing (SAM-5 4.7.7.3) or, below 256, in peripheral device addressing.
fn lun_of(number: u32) -> [u8; 8] {
    let number = number.min(0x3fff) as u16;
    let first = if number < 256 { number } else { 0x4000 | number };
    let [high, low] = first.to_be_bytes();
    [high, low, 0, 0, 0, 0, 0, 0]
}

/// Operation code, service action, logical block address and length.
fn cdb_of(cdb: &[u8]) -> [u8; 16] {
    let mut out = [0; 16];
    out[0] = cdb[0];
    if Access::parse(cdb).is_some() {
        // First and one beyond the last byte.
        let kept: &[(usize, usize)] = match cdb::length(cdb[0]) {
            Some(6) => &[(1, 5)],
            Some(10) => &[(2, 6), (7, 9)],
            Some(12) => &[(2, 10)],
            _ => &[(2, 14)],
        };
        for &(from, to) in kept {
            out[from..to].copy_from_slice(&cdb[from..to]);
        }
    } else if cdb::fact_of(cdb).is_some_and(|fact| fact.service_action.is_some()) {
        out[1] = cdb[1] & 0x1f;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header whose bytes are their own numbers, from 0x80 on.
    fn header(opcode: u8) -> [u8; BHS_LENGTH] {
        let mut header = std::array::from_fn(|index| 0x80 | index as u8);
        header[0] = opcode;
        header
    }

    #[test]
    fn only_the_listed_bytes_stay() {
        // Opcode, CDB, and what the last 16 bytes become.
        let lba = [0x2a, 0xff, 1, 2, 3, 4, 0xff, 5, 6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let cases: [([u8; 16], &[u8]); 6] = [
            (lba, &[0x2a, 0, 1, 2, 3, 4, 0, 5, 6]),
            ([0x0a; 16], &[0x0a, 0x0a, 0x0a, 0x0a, 0x0a]),
            ([0xa8; 16], &[0xa8, 0, 0xa8, 0xa8, 0xa8, 0xa8, 0xa8, 0xa8, 0xa8, 0xa8]),
            ([0x8a; 16], &[0x8a, 0, 0x8a, 0x8a, 0x8a, 0x8a, 0x8a, 0x8a, 0x8a, 0x8a, 0x8a, 0x8a, 0x8a, 0x8a]),
            ([0x12; 16], &[0x12]),
            ([0x9e, 0xf0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7], &[0x9e, 0x10]),
        ];
        for (cdb, expected) in cases {
            let mut command = header(1);
            command[32..].copy_from_slice(&cdb);
            let out = Headers::default().replace(&command);
            let mut whole = [0; 16];
            whole[..expected.len()].copy_from_slice(expected);
            assert_eq!(out[32..], whole, "{:#x}", cdb[0]);
        }
        let login = Headers::default().replace(&header(0x43));
        assert_eq!(login[8..16], [0x80, 0, 0, 0, 0, 1, 0x8e, 0x8f]);
        assert_eq!(login[32..], [0; 16]);
    }

    #[test]
    fn no_reserved_byte_stays() {
        // By the diagrams of RFC 7143 section 11: a byte that stays (x), is replaced (n), or is zero.
        let cases = [
            (0x00, 0x80, "xx..xxxxnnnnnnnnxxxxxxxxxxxxxxxx................"),
            (0x01, 0xe7, "xx..xxxxnnnnnnnnxxxxxxxxxxxxxxxxn..............."),
            (0x02, 0xff, "xx..xxxxnnnnnnnnxxxxxxxxxxxxxxxxxxxxxxxx........"),
            (0x03, 0xcf, "xxxxxxxxnnnnnnxxxxxxxx..xxxxxxxx................"),
            (0x04, 0xc0, "xx..xxxxnnnnnnnnxxxxxxxxxxxxxxxx................"),
            (0x05, 0x80, "xx..xxxxnnnnnnnnxxxxxxxx....xxxx....xxxxxxxx...."),
            (0x06, 0xff, "xx..xxxx........xxxxxx..xxxxxxxx................"),
            (0x10, 0x8f, "xx..xxxxnnnnnnnnxxxxxxxx....xxxx........xxxxxxxx"),
            (0x20, 0x80, "xx..xxxxnnnnnnnnxxxxxxxxxxxxxxxxxxxx............"),
            (0x21, 0x9e, "xxxxxxxx........xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
            (0x22, 0x80, "xxx.xxxx........xxxx....xxxxxxxxxxxx............"),
            (0x23, 0xcf, "xxxxxxxxnnnnnnxxxxxx....xxxxxxxxxxxxxx.........."),
            (0x24, 0xc0, "xx..xxxxnnnnnnnnxxxxxxxxxxxxxxxxxxxx............"),
            (0x25, 0xc7, "xx.xxxxxnnnnnnnnxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
            (0x26, 0x80, "xxx.xxxx........xxxx....xxxxxxxxxxxx....xxxx...."),
            (0x31, 0x80, "xx..xxxxnnnnnnnnxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
            (0x32, 0x80, "xx..xxxxnnnnnnnnxxxx....xxxxxxxxxxxxxxxxxxxx...."),
            (0x3f, 0x80, "xxx.xxxx........xxxx....xxxxxxxxxxxxxxxx........"),
            // No operation code.
            (0x1c, 0x00, "x...xxxx........................................"),
        ];
        for (opcode, flags, expected) in cases {
            let mut whole = [0xff; BHS_LENGTH];
            whole[0] = opcode;
            let out = Headers::default().replace(&whole);
            assert_eq!(out[1], flags, "{opcode:#x}");
            for (at, kind) in expected.bytes().enumerate().filter(|(at, _)| *at != 1) {
                match kind {
                    b'x' => assert_eq!(out[at], whole[at], "{opcode:#x} {at}"),
                    b'n' => assert!((8..16).contains(&at) || at >= 32, "{opcode:#x} {at}"),
                    _ => assert_eq!(out[at], 0, "{opcode:#x} {at}"),
                }
            }
            if expected.as_bytes()[8] == b'n' && !matches!(opcode, 0x03 | 0x23) {
                assert_eq!(out[8..16], [0, 1, 0, 0, 0, 0, 0, 0], "{opcode:#x}");
            }
        }
        let mut data_in = [0xff; BHS_LENGTH];
        (data_in[0], data_in[1]) = (0x25, 0x80);
        assert_eq!(Headers::default().replace(&data_in)[3], 0, "no status without the S bit");
    }

    #[test]
    fn logical_units_keep_their_identity() {
        let mut headers = Headers::default();
        let mut seen = Vec::new();
        for lun in [7, 0, 9, 7] {
            let mut raw = header(5);
            raw[8..16].fill(lun);
            seen.push(headers.replace(&raw)[9]);
        }
        assert_eq!(seen, [1, 0, 2, 1]);
        assert_eq!(
            (lun_of(300)[..2].to_vec(), lun_of(u32::MAX)[..2].to_vec()),
            (vec![0x41, 0x2c], vec![0x7f, 0xff])
        );
    }
}
