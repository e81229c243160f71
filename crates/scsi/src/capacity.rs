//! Parsers of READ CAPACITY and REPORT LUNS data.

use crate::limits::LUNS_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Logical blocks: RETURNED LOGICAL BLOCK ADDRESS plus one.
    pub blocks: u64,
    /// Logical block size in bytes, as received; not validated.
    pub block_size: u32,
    pub physical_exponent: u8,
    pub lowest_aligned: u16,
    /// LBPME: logical block provisioning is in use.
    pub thin: bool,
    /// LBPRZ: unmapped blocks read as zeros.
    pub unmapped_reads_zero: bool,
    /// PROT_EN: formatted with protection information.
    pub protection: bool,
}

impl Capacity {
    /// Parses READ CAPACITY (10) data, SBC-3 table 60. `None` if truncated, and if the unit is too large for it
    /// (FFFFFFFFh): READ CAPACITY (16) is needed.
    pub fn parse_10(data: &[u8]) -> Option<Self> {
        let last = u32::from_be_bytes(data.get(..4)?.try_into().ok()?);
        let block_size = u32::from_be_bytes(data.get(4..8)?.try_into().ok()?);
        Some(Self {
            blocks: u64::from(last.checked_add(1)?),
            block_size,
            physical_exponent: 0,
            lowest_aligned: 0,
            thin: false,
            unmapped_reads_zero: false,
            protection: false,
        })
    }

    /// Parses READ CAPACITY (16) data, SBC-3 table 63. SBC-2 devices end it after 12 bytes; missing bytes are zero.
    pub fn parse_16(data: &[u8]) -> Option<Self> {
        let last = u64::from_be_bytes(data.get(..8)?.try_into().ok()?);
        let block_size = u32::from_be_bytes(data.get(8..12)?.try_into().ok()?);
        let byte = |at: usize| data.get(at).copied().unwrap_or(0);
        Some(Self {
            blocks: last.checked_add(1)?,
            block_size,
            physical_exponent: byte(13) & 0x0f,
            lowest_aligned: u16::from_be_bytes([byte(14) & 0x3f, byte(15)]),
            thin: byte(14) & 0x80 != 0,
            unmapped_reads_zero: byte(14) & 0x40 != 0,
            protection: byte(12) & 0x01 != 0,
        })
    }

    /// Physical block size in bytes; `None` on overflow.
    pub fn physical_block_size(&self) -> Option<u32> {
        self.block_size.checked_mul(1 << self.physical_exponent)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunList {
    /// The wire values received, at most [`LUNS_MAX`]; see [`crate::lun::from_wire`].
    pub luns: Vec<u64>,
    /// The list is longer: repeat the command with this allocation length.
    pub missing_bytes: Option<u32>,
}

impl LunList {
    /// Parses REPORT LUNS data, SPC-4 table 272. `None` if the header is truncated.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let length = u32::from_be_bytes(data.get(..4)?.try_into().ok()?);
        let body = data.get(8..)?;
        let end = body.len().min(length as usize).min(8 * LUNS_MAX);
        let luns: Vec<u64> = body[..end]
            .chunks_exact(8)
            .map(|lun| lun.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
            .collect();
        let missing_bytes = (length as usize / 8 > luns.len() && luns.len() < LUNS_MAX)
            .then(|| length.saturating_add(8).min(8 + 8 * LUNS_MAX as u32));
        Some(Self { luns, missing_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_hostile() {
        assert_eq!(Capacity::parse_10(&[0; 7]), None, "cut");
        assert_eq!(Capacity::parse_10(&[0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]), None, "too large");
        assert_eq!(Capacity::parse_16(&[0; 11]), None, "cut");
        assert_eq!(Capacity::parse_16(&[0xff; 32]), None, "last LBA 2^64-1");
        let short = Capacity::parse_16(&[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 2, 0]).expect("SBC-2 length");
        assert_eq!((short.blocks, short.block_size, short.thin), (10, 512, false));
        let mut data = [0; 32];
        (data[7], data[8], data[13]) = (9, 0x80, 0x0f);
        let size = Capacity::parse_16(&data).and_then(|capacity| capacity.physical_block_size());
        assert_eq!(size, None, "overflow");
    }

    #[test]
    fn luns_hostile() {
        assert_eq!(LunList::parse(&[0, 0, 0, 8]), None, "header_truncated");
        let mut data = vec![0, 0, 0, 16, 0, 0, 0, 0];
        let list = LunList::parse(&data).map(|list| (list.luns, list.missing_bytes));
        assert_eq!(list, Some((vec![], Some(24))));
        data.extend([0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        assert_eq!(LunList::parse(&data).map(|list| list.luns), Some(vec![1 << 48]), "second lun cut");
        let huge = LunList::parse(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]).expect("header is there");
        assert_eq!((huge.luns.len(), huge.missing_bytes), (0, Some(8 + 8 * LUNS_MAX as u32)), "length_huge");
    }
}
