//! Command descriptor blocks: builders, parsers and names.

mod facts;
pub mod opcode;

pub use facts::{Direction, Fact, fact_of, facts, name};

use crate::Range;
use crate::copy::CopyList;

/// A CDB of up to 16 bytes, as an initiator sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cdb {
    bytes: [u8; 16],
    length: u8,
}

impl Cdb {
    const fn zeroed(code: u8, length: u8) -> Self {
        let mut bytes = [0; 16];
        bytes[0] = code;
        Self { bytes, length }
    }

    /// The CDB, 6 to 16 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }

    /// The CDB padded with zeros to 16 bytes, as in the iSCSI header.
    pub const fn padded(&self) -> [u8; 16] {
        self.bytes
    }

    fn put(mut self, offset: usize, field: &[u8]) -> Self {
        self.bytes[offset..offset + field.len()].copy_from_slice(field);
        self
    }

    fn flag(mut self, offset: usize, bits: u8, set: bool) -> Self {
        if set {
            self.bytes[offset] |= bits;
        }
        self
    }
}

impl AsRef<[u8]> for Cdb {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Length of a CDB by its operation code's group (SPC-4 4.2.5.1); `None` for variable, vendor-specific and
/// reserved groups.
pub const fn length(code: u8) -> Option<usize> {
    match code {
        0x00..=0x1f => Some(6),
        0x20..=0x5f => Some(10),
        0x80..=0x9f => Some(16),
        0xa0..=0xbf => Some(12),
        _ => None,
    }
}

/// Address, count and flags of the commands that address a run of blocks: READ, WRITE, VERIFY, WRITE AND VERIFY,
/// PRE-FETCH, SYNCHRONIZE CACHE, WRITE SAME and similar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub lba: u64,
    /// TRANSFER LENGTH, VERIFICATION LENGTH or NUMBER OF LOGICAL BLOCKS; in 6-byte commands zero is converted to 256.
    pub blocks: u64,
    /// RDPROTECT, WRPROTECT, VRPROTECT or ORPROTECT.
    pub protect: u8,
    /// DISABLE PAGE OUT; false if the command has no such bit.
    pub dpo: bool,
    /// FORCE UNIT ACCESS; false if the command has no such bit.
    pub fua: bool,
}

impl Access {
    /// Parses a CDB of this kind; `None` for other commands and for a truncated CDB.
    #[inline]
    pub fn parse(cdb: &[u8]) -> Option<Self> {
        use opcode as op;
        let code = *cdb.first()?;
        let (protect, dpo, fua) = match code {
            op::READ_6 | op::WRITE_6 => {
                let &[_, high, middle, low, blocks, _, ..] = cdb else { return None };
                let lba = u64::from(u32::from_be_bytes([0, high & 0x1f, middle, low]));
                let blocks = if blocks == 0 { 256 } else { u64::from(blocks) };
                return Some(Self { lba, blocks, protect: 0, dpo: false, fua: false });
            }
            op::READ_10
            | op::READ_12
            | op::READ_16
            | op::WRITE_10
            | op::WRITE_12
            | op::WRITE_16
            | op::ORWRITE => (true, true, true),
            op::VERIFY_10 | op::VERIFY_12 | op::VERIFY_16 => (true, true, false),
            op::WRITE_VERIFY_10 | op::WRITE_VERIFY_12 | op::WRITE_VERIFY_16 => (true, true, false),
            op::WRITE_SAME_10 | op::WRITE_SAME_16 => (true, false, false),
            op::PRE_FETCH_10 | op::PRE_FETCH_16 | op::SYNCHRONIZE_CACHE_10 | op::SYNCHRONIZE_CACHE_16 => {
                (false, false, false)
            }
            _ => return None,
        };
        let (lba, blocks) = match length(code)? {
            10 => {
                let &[_, _, a, b, c, d, _, high, low, _, ..] = cdb else { return None };
                (u64::from(u32::from_be_bytes([a, b, c, d])), u64::from(u16::from_be_bytes([high, low])))
            }
            12 => {
                let &[_, _, a, b, c, d, e, f, g, h, _, _, ..] = cdb else { return None };
                (u64::from(u32::from_be_bytes([a, b, c, d])), u64::from(u32::from_be_bytes([e, f, g, h])))
            }
            _ => {
                let &[_, _, a, b, c, d, e, f, g, h, i, j, k, l, _, _, ..] = cdb else { return None };
                (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from(u32::from_be_bytes([i, j, k, l])))
            }
        };
        let flags = cdb[1];
        Some(Self {
            lba,
            blocks,
            protect: if protect { flags >> 5 } else { 0 },
            dpo: dpo && flags & 0x10 != 0,
            fua: fua && flags & 0x08 != 0,
        })
    }
}

pub(crate) const fn blocks_field(cdb: &[u8]) -> u16 {
    match cdb {
        [0x00..=0x1f, ..] => 4,
        [0x20..=0x5f, ..] => 7,
        [0xa0..=0xbf, ..] => 6,
        _ => 10,
    }
}

/// Direction and bytes of the data that a CDB transfers with blocks of this size; `None` if the CDB does not determine
/// them. For commands with an allocation or parameter list length: that length.
pub fn data_bytes(cdb: &[u8], block_size: u32) -> Option<(Direction, u64)> {
    use opcode as op;
    let fact = fact_of(cdb)?;
    let number = |at: usize, count: usize| -> Option<u64> {
        Some(cdb.get(at..at + count)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let block = u64::from(block_size);
    let (direction, bytes) = match fact.code {
        op::WRITE_SAME_16 if cdb.get(1)? & 0x01 != 0 => (Direction::None, 0),
        op::WRITE_SAME_10 | op::WRITE_SAME_16 => (Direction::Out, block),
        op::VERIFY_10 | op::VERIFY_12 | op::VERIFY_16 => match (cdb.get(1)? >> 1) & 0x03 {
            0b01 => (Direction::Out, Access::parse(cdb)?.blocks * block),
            0b11 => (Direction::Out, block),
            _ => (Direction::None, 0),
        },
        op::COMPARE_AND_WRITE => (Direction::Out, 2 * number(13, 1)? * block),
        op::READ_CAPACITY_10 => (Direction::In, 8),
        op::REQUEST_SENSE | op::MODE_SELECT_6 | op::MODE_SENSE_6 => (fact.direction, number(4, 1)?),
        op::INQUIRY | op::SEND_DIAGNOSTIC | op::RECEIVE_DIAGNOSTIC_RESULTS => (fact.direction, number(3, 2)?),
        op::UNMAP | op::LOG_SELECT | op::LOG_SENSE | op::MODE_SELECT_10 | op::MODE_SENSE_10 => {
            (fact.direction, number(7, 2)?)
        }
        op::RESERVE_10
        | op::RELEASE_10
        | op::READ_DEFECT_DATA_10
        | op::PERSISTENT_RESERVE_IN
        | op::SANITIZE => (fact.direction, number(7, 2)?),
        op::READ_BUFFER | op::WRITE_BUFFER => (fact.direction, number(6, 3)?),
        op::PERSISTENT_RESERVE_OUT => (fact.direction, number(5, 4)?),
        op::SERVICE_ACTION_IN_16 | op::EXTENDED_COPY | op::RECEIVE_COPY_RESULTS => {
            (fact.direction, number(10, 4)?)
        }
        op::REPORT_LUNS | op::MAINTENANCE_IN | op::MAINTENANCE_OUT | op::READ_DEFECT_DATA_12 => {
            (fact.direction, number(6, 4)?)
        }
        _ if fact.direction == Direction::None => (Direction::None, 0),
        _ => (fact.direction, Access::parse(cdb)?.blocks * block),
    };
    Some(if bytes == 0 { (Direction::None, 0) } else { (direction, bytes) })
}

fn access_10(code: u8, lba: u32, blocks: u16) -> Cdb {
    Cdb::zeroed(code, 10).put(2, &lba.to_be_bytes()).put(7, &blocks.to_be_bytes())
}

fn access_16(code: u8, lba: u64, blocks: u32) -> Cdb {
    Cdb::zeroed(code, 16).put(2, &lba.to_be_bytes()).put(10, &blocks.to_be_bytes())
}

pub fn test_unit_ready() -> Cdb {
    Cdb::zeroed(opcode::TEST_UNIT_READY, 6)
}

pub fn request_sense(descriptor: bool, allocation: u8) -> Cdb {
    Cdb::zeroed(opcode::REQUEST_SENSE, 6).flag(1, 0x01, descriptor).put(4, &[allocation])
}

pub fn inquiry(vpd: Option<u8>, allocation: u16) -> Cdb {
    Cdb::zeroed(opcode::INQUIRY, 6)
        .flag(1, 0x01, vpd.is_some())
        .put(2, &[vpd.unwrap_or(0)])
        .put(3, &allocation.to_be_bytes())
}

/// REPORT LUNS with SELECT REPORT 00h. SPC-4 requires an allocation length of at least 16.
pub fn report_luns(allocation: u32) -> Cdb {
    Cdb::zeroed(opcode::REPORT_LUNS, 12).put(6, &allocation.to_be_bytes())
}

pub fn read_capacity_10() -> Cdb {
    Cdb::zeroed(opcode::READ_CAPACITY_10, 10)
}

pub fn read_capacity_16(allocation: u32) -> Cdb {
    Cdb::zeroed(opcode::SERVICE_ACTION_IN_16, 16).put(1, &[0x10]).put(10, &allocation.to_be_bytes())
}

pub fn read_10(lba: u32, blocks: u16, fua: bool) -> Cdb {
    access_10(opcode::READ_10, lba, blocks).flag(1, 0x08, fua)
}

pub fn read_16(lba: u64, blocks: u32, fua: bool) -> Cdb {
    access_16(opcode::READ_16, lba, blocks).flag(1, 0x08, fua)
}

pub fn write_10(lba: u32, blocks: u16, fua: bool) -> Cdb {
    access_10(opcode::WRITE_10, lba, blocks).flag(1, 0x08, fua)
}

pub fn write_16(lba: u64, blocks: u32, fua: bool) -> Cdb {
    access_16(opcode::WRITE_16, lba, blocks).flag(1, 0x08, fua)
}

/// VERIFY (16); `compare` sets BYTCHK to 01b, with the blocks as data-out.
pub fn verify_16(lba: u64, blocks: u32, compare: bool) -> Cdb {
    access_16(opcode::VERIFY_16, lba, blocks).flag(1, 0x02, compare)
}

pub fn synchronize_cache_10() -> Cdb {
    Cdb::zeroed(opcode::SYNCHRONIZE_CACHE_10, 10)
}

/// SYNCHRONIZE CACHE (16); zero blocks means to the end of the unit.
pub fn synchronize_cache_16(lba: u64, blocks: u32) -> Cdb {
    access_16(opcode::SYNCHRONIZE_CACHE_16, lba, blocks)
}

/// WRITE SAME (16). `no_data` sets NDOB: zeros without data-out; otherwise the data-out is one block.
pub fn write_same_16(lba: u64, blocks: u32, unmap: bool, no_data: bool) -> Cdb {
    access_16(opcode::WRITE_SAME_16, lba, blocks).flag(1, 0x08, unmap).flag(1, 0x01, no_data)
}

/// UNMAP with its parameter list (SBC-3 table 84); `None` for more ranges than a list holds (4095) or a range of more
/// than 2^32-1 blocks. The limits of a device are in its Block Limits page.
pub fn unmap(ranges: &[Range]) -> Option<(Cdb, Vec<u8>)> {
    let bytes = u16::try_from(ranges.len().checked_mul(16)?.checked_add(8)?).ok()?;
    let mut list = Vec::with_capacity(bytes.into());
    list.extend((bytes - 2).to_be_bytes());
    list.extend((bytes - 8).to_be_bytes());
    list.extend([0; 4]);
    for range in ranges {
        list.extend(range.lba.to_be_bytes());
        list.extend(u32::try_from(range.blocks).ok()?.to_be_bytes());
        list.extend([0; 4]);
    }
    Some((Cdb::zeroed(opcode::UNMAP, 10).put(7, &bytes.to_be_bytes()), list))
}

pub fn mode_sense_6(page: u8, allocation: u8) -> Cdb {
    Cdb::zeroed(opcode::MODE_SENSE_6, 6).put(1, &[0x08]).put(2, &[page & 0x3f]).put(4, &[allocation])
}

/// MODE SENSE (10), current values, without block descriptor.
pub fn mode_sense_10(page: u8, allocation: u16) -> Cdb {
    Cdb::zeroed(opcode::MODE_SENSE_10, 10)
        .put(1, &[0x08])
        .put(2, &[page & 0x3f])
        .put(7, &allocation.to_be_bytes())
}

pub fn get_lba_status(lba: u64, allocation: u32) -> Cdb {
    access_16(opcode::SERVICE_ACTION_IN_16, lba, allocation).put(1, &[0x12])
}

pub fn extended_copy(list: &CopyList) -> (Cdb, Vec<u8>) {
    let list = list.emit();
    (Cdb::zeroed(opcode::EXTENDED_COPY, 16).put(10, &(list.len() as u32).to_be_bytes()), list)
}

pub fn copy_parameters(allocation: u32) -> Cdb {
    Cdb::zeroed(opcode::RECEIVE_COPY_RESULTS, 16).put(1, &[0x03]).put(10, &allocation.to_be_bytes())
}

/// START STOP UNIT: start or stop; with `load_or_eject` load or eject.
pub fn start_stop_unit(start: bool, load_or_eject: bool) -> Cdb {
    Cdb::zeroed(opcode::START_STOP_UNIT, 6).flag(4, 0x01, start).flag(4, 0x02, load_or_eject)
}

/// REPORT SUPPORTED OPERATION CODES for one code, with its service action if not zero.
pub fn report_supported_opcode(code: u8, service_action: u16, allocation: u32) -> Cdb {
    Cdb::zeroed(opcode::MAINTENANCE_IN, 12)
        .put(1, &[0x0c, 0x03, code])
        .put(4, &service_action.to_be_bytes())
        .put(6, &allocation.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builders_emit_the_standard_layout() {
        let expected = [0x88, 0x08, 1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0];
        assert_eq!(read_16(0x0102_0304_0506_0708, 0x0a0b_0c0d, true).as_bytes(), expected);
        assert_eq!(write_10(0x0102_0304, 0x0506, false).as_bytes(), [0x2a, 0, 1, 2, 3, 4, 0, 5, 6, 0]);
        assert_eq!(inquiry(Some(0x83), 0x0100).as_bytes(), [0x12, 1, 0x83, 1, 0, 0]);
        assert_eq!(inquiry(None, 36).as_bytes(), [0x12, 0, 0, 0, 36, 0]);
        assert_eq!(read_capacity_16(32).padded()[..2], [0x9e, 0x10]);
        assert_eq!(write_same_16(1, 2, true, true).as_bytes()[..2], [0x93, 0x09]);
        assert_eq!(mode_sense_10(0x08, 0x0201).as_bytes(), [0x5a, 0x08, 0x08, 0, 0, 0, 0, 2, 1, 0]);
        let expected = [0xa3, 0x0c, 3, 0x9e, 0, 0x10, 0, 0, 0, 20, 0, 0];
        assert_eq!(report_supported_opcode(0x9e, 0x10, 20).as_bytes(), expected);
    }

    #[test]
    fn unmap_list() {
        let (cdb, list) = unmap(&[Range { lba: 1, blocks: 2 }]).expect("one range fits");
        assert_eq!(cdb.as_bytes(), [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
        assert_eq!(list, [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert!(unmap(&[Range { lba: 0, blocks: 1 }; 4096]).is_none());
        assert!(unmap(&[Range { lba: 0, blocks: 1 << 32 }]).is_none());
    }

    #[test]
    fn access_takes_apart_every_length() {
        let access = |lba, blocks, protect, dpo, fua| Access { lba, blocks, protect, dpo, fua };
        let vectors: [(&[u8], Access); 6] = [
            (&[0x08, 0xff, 0xff, 0xff, 0, 0], access(0x1f_ffff, 256, 0, false, false)),
            (&[0x0a, 0, 0, 1, 7, 0], access(1, 7, 0, false, false)),
            (&[0x28, 0x38, 1, 2, 3, 4, 0, 5, 6, 0], access(0x0102_0304, 0x0506, 1, true, true)),
            (&[0xaa, 0x08, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0], access(1, 0x1_0000, 0, false, true)),
            (&[0x8f, 0x1a, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], access(1 << 56, 1, 0, true, false)),
            (&[0x93, 0xf8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0], access(9, 1, 7, false, false)),
        ];
        for (cdb, expected) in vectors {
            assert_eq!(Access::parse(cdb), Some(expected), "{cdb:02x?}");
            assert_eq!(Access::parse(&cdb[..cdb.len() - 1]), None, "cut {cdb:02x?}");
        }
        assert_eq!(Access::parse(&[0x12, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn data_bytes_by_command() {
        type Bytes = (Direction, u64);
        let vectors: [(Vec<u8>, Option<Bytes>); 7] = [
            (read_16(0, 8, false).as_bytes().to_vec(), Some((Direction::In, 4096))),
            (write_10(0, 2, false).as_bytes().to_vec(), Some((Direction::Out, 1024))),
            (write_same_16(0, 9, false, false).as_bytes().to_vec(), Some((Direction::Out, 512))),
            (write_same_16(0, 9, false, true).as_bytes().to_vec(), Some((Direction::None, 0))),
            (verify_16(0, 3, false).as_bytes().to_vec(), Some((Direction::None, 0))),
            (verify_16(0, 3, true).as_bytes().to_vec(), Some((Direction::Out, 1536))),
            (vec![0xff], None),
        ];
        for (cdb, expected) in vectors {
            assert_eq!(data_bytes(&cdb, 512), expected, "{cdb:02x?}");
        }
    }
}
