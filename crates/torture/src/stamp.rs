//! The content of a sector of 512 bytes: eight cells of 64 bytes, each with writer, address and sequence number under
//! its own CRC-32C. Cells of one sector that disagree reveal a torn sector; a foreign address reveals a misdirected
//! write.
//!
//! ```text
//! cell    0       8     16          24       28     32        60     64
//!         | run   | lba | sequence  | writer | cell | filler  | crc  |     little endian
//! ```

use std::fmt;

use crate::SECTOR_BYTES;
use crate::random::Random;

const CELL_BYTES: usize = 64;
const CELLS: usize = SECTOR_BYTES / CELL_BYTES;
const CRC_AT: usize = CELL_BYTES - 4;

/// Identifies one write in its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp {
    /// Number of the write at its client.
    pub sequence: u64,
    pub writer: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// All zeroes: never written, discarded, or zeroed.
    Zero,
    /// A complete sector of this run and this address.
    Stamp(Stamp),
    /// A complete sector of this run, written for another address.
    Misdirected {
        /// Address for which it was written.
        lba: u64,
        stamp: Stamp,
    },
    /// Parts belong to this run: parts of several writes, or damaged.
    Torn,
    /// Content that no write of this run produced.
    Foreign,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "write {} of client {}", self.sequence, self.writer)
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => write!(f, "zeroes"),
            Self::Stamp(stamp) => stamp.fmt(f),
            Self::Misdirected { lba, stamp } => write!(f, "{stamp} for sector {lba}"),
            Self::Torn => write!(f, "a sector torn inside"),
            Self::Foreign => write!(f, "data that was not written in this run"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Stamper {
    run: u64,
}

impl Stamper {
    /// A stamper for the run `run`. Runs over the same storage need different numbers, else old sectors look current.
    pub fn new(run: u64) -> Self {
        Self { run }
    }

    /// Fills `bytes`, whole sectors from `lba` on, with the content of one write.
    pub fn fill(&self, lba: u64, stamp: Stamp, bytes: &mut [u8]) {
        assert!(bytes.len().is_multiple_of(SECTOR_BYTES), "part of a sector");
        for (lba, sector) in (lba..).zip(bytes.as_chunks_mut::<SECTOR_BYTES>().0) {
            for (index, cell) in sector.as_chunks_mut::<CELL_BYTES>().0.iter_mut().enumerate() {
                *cell = self.cell(lba, stamp, index as u32);
            }
        }
    }

    fn cell(&self, lba: u64, stamp: Stamp, index: u32) -> [u8; CELL_BYTES] {
        let mut cell = [0; CELL_BYTES];
        cell[..8].copy_from_slice(&self.run.to_le_bytes());
        cell[8..16].copy_from_slice(&lba.to_le_bytes());
        cell[16..24].copy_from_slice(&stamp.sequence.to_le_bytes());
        cell[24..28].copy_from_slice(&stamp.writer.to_le_bytes());
        cell[28..32].copy_from_slice(&index.to_le_bytes());
        let mut random =
            Random::of(&[self.run, lba, stamp.sequence, (u64::from(stamp.writer) << 32) | u64::from(index)]);
        for word in cell[32..CRC_AT].chunks_mut(8) {
            let filler = random.word().to_le_bytes();
            word.copy_from_slice(&filler[..word.len()]);
        }
        let crc = crc_fast::crc32_iscsi(&cell[..CRC_AT]);
        cell[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        cell
    }

    /// The content of the sector read from `lba`.
    pub fn read(&self, lba: u64, sector: &[u8]) -> Content {
        assert_eq!(sector.len(), SECTOR_BYTES, "one sector");
        let cells = sector.as_chunks::<CELL_BYTES>().0;
        let first = self.parse(&cells[0], 0);
        let whole = cells.iter().enumerate().all(|(index, cell)| self.parse(cell, index) == first);
        if let (Some((found, stamp)), true) = (first, whole) {
            return if found == lba {
                Content::Stamp(stamp)
            } else {
                Content::Misdirected { lba: found, stamp }
            };
        }
        if sector.iter().all(|byte| *byte == 0) {
            return Content::Zero;
        }
        let ours =
            |(index, cell): (usize, &[u8; CELL_BYTES])| self.parse(cell, index).is_some() || self.owns(cell);
        if cells.iter().enumerate().any(ours) { Content::Torn } else { Content::Foreign }
    }

    /// Address and stamp of a valid cell of this run.
    fn parse(&self, cell: &[u8; CELL_BYTES], index: usize) -> Option<(u64, Stamp)> {
        let word = |at: usize| u64::from_le_bytes(cell[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(cell[at..at + 4].try_into().expect("four bytes"));
        let whole = self.owns(cell)
            && half(28) as usize == index % CELLS
            && half(CRC_AT) == crc_fast::crc32_iscsi(&cell[..CRC_AT]);
        whole.then(|| (word(8), Stamp { sequence: word(16), writer: half(24) }))
    }

    fn owns(&self, cell: &[u8; CELL_BYTES]) -> bool {
        cell[..8] == self.run.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMPER: Stamper = Stamper { run: 0x1234_5678_9ABC_DEF0 };

    fn sectors(lba: u64, sequence: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count * SECTOR_BYTES];
        STAMPER.fill(lba, Stamp { sequence, writer: 3 }, &mut bytes);
        bytes
    }

    #[test]
    fn what_was_written_is_recognised() {
        let bytes = sectors(70, 9, 8);
        for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
            let stamp = Stamp { sequence: 9, writer: 3 };
            assert_eq!(STAMPER.read(70 + index as u64, sector), Content::Stamp(stamp));
            let lba = 70 + index as u64;
            assert_eq!(STAMPER.read(7, sector), Content::Misdirected { lba, stamp });
            assert_eq!(Stamper::new(1).read(lba, sector), Content::Foreign);
        }
        assert_eq!(STAMPER.read(0, &[0; SECTOR_BYTES]), Content::Zero);
        assert_eq!(STAMPER.read(0, &[7; SECTOR_BYTES]), Content::Foreign);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let (old, new) = (sectors(5, 1, 1), sectors(5, 2, 1));
        for bit in 0..SECTOR_BYTES * 8 {
            let mut sector = new.clone();
            sector[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(STAMPER.read(5, &sector), Content::Torn, "bit {bit}");
        }
        for at in 1..SECTOR_BYTES {
            for before in [old.as_slice(), &[0; SECTOR_BYTES]] {
                // The high bytes of small numbers are equal in both: such a cut changes nothing.
                let sector = [&new[..at], &before[at..]].concat();
                if sector != new && sector != before {
                    let found = STAMPER.read(5, &sector);
                    assert!(matches!(found, Content::Torn | Content::Foreign), "cut at {at}: {found}");
                }
            }
        }
    }
}
