//! Basic header segments without what names or describes anything.
//!
//! Kept: operation code and flags, lengths, tags, sequence numbers, buffer offsets, status; of CDBs the operation code,
//! service action, logical block address and length. Logical unit numbers other than 0 and session identifiers (ISID)
//! are numbered in the order in which they occur.

use std::collections::HashMap;
use std::hash::Hash;

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

#[derive(Debug, Default)]
pub(super) struct Headers {
    luns: Numbers<[u8; 8]>,
    isids: Numbers<[u8; 6]>,
}

impl Headers {
    pub(super) fn replace(&mut self, header: &[u8; BHS_LENGTH]) -> [u8; BHS_LENGTH] {
        let mut out = *header;
        let opcode = Bhs(header).opcode();
        if matches!(opcode, Ok(Opcode::LoginRequest | Opcode::LoginResponse)) {
            let isid: [u8; 6] = header[field::ISID].try_into().expect("it has 6 bytes");
            let number = self.isids.of(isid).to_be_bytes();
            // The type that is random (§11.12.5).
            out[field::ISID].copy_from_slice(&[0x80, 0, number[0], number[1], number[2], number[3]]);
        } else {
            let lun: [u8; 8] = header[field::LUN].try_into().expect("it has 8 bytes");
            out[field::LUN].copy_from_slice(&if lun == [0; 8] { lun } else { lun_of(self.luns.of(lun)) });
        }
        match opcode {
            Ok(Opcode::ScsiCommand) => out[field::CDB].copy_from_slice(&cdb_of(&header[field::CDB])),
            Ok(Opcode::LoginRequest | Opcode::TextRequest) => out[32..].fill(0),
            Ok(Opcode::LoginResponse) => out[40..].fill(0),
            Ok(_) => {}
            Err(_) => out[36..].fill(0),
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
            assert_eq!(
                (&out[..8], &out[8..16], &out[16..32]),
                (&command[..8], &[0, 1, 0, 0, 0, 0, 0, 0][..], &command[16..32])
            );
        }
        let login = Headers::default().replace(&header(0x43));
        assert_eq!(login[8..16], [0x80, 0, 0, 0, 0, 1, 0x8e, 0x8f]);
        assert_eq!(login[32..], [0; 16]);
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
