//! The map: a bit for each group of blocks that says whether its pages of contexts are valid. Blocks of other groups are
//! unwritten.

use super::keys::{self, EpochKeys};
use super::layout::MAP_BITS_BYTES;
use super::{PAGE_BYTES, SECTOR_BYTES};

/// A set of groups.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    words: Vec<u64>,
}

impl Groups {
    pub(super) fn new(groups: u64) -> Self {
        Self { words: vec![0; groups.div_ceil(64) as usize] }
    }

    pub(super) fn contains(&self, group: u64) -> bool {
        self.words[(group / 64) as usize] >> (group % 64) & 1 == 1
    }

    pub(super) fn insert(&mut self, group: u64) {
        self.words[(group / 64) as usize] |= 1 << (group % 64);
    }

    /// Whether the group was in the set.
    pub(super) fn remove(&mut self, group: u64) -> bool {
        let was_in = self.contains(group);
        self.words[(group / 64) as usize] &= !(1 << (group % 64));
        was_in
    }

    fn byte(&self, index: usize) -> u8 {
        self.words.get(index / 8).map_or(0, |word| word.to_le_bytes()[index % 8])
    }

    fn set_byte(&mut self, index: usize, byte: u8) {
        if let Some(word) = self.words.get_mut(index / 8) {
            let mut bytes = word.to_le_bytes();
            bytes[index % 8] = byte;
            *word = u64::from_le_bytes(bytes);
        }
    }

    /// The bits of a sector of the map.
    pub(super) fn sector(&self, sector: u64) -> [u8; MAP_BITS_BYTES] {
        let first = sector as usize * MAP_BITS_BYTES;
        std::array::from_fn(|index| self.byte(first + index))
    }

    /// A page of the map.
    pub(super) fn emit_page(&self, keys: &EpochKeys, page: u64) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        for (sector, bytes) in (page * 8..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
            let (bits, tag) = bytes.split_at_mut(MAP_BITS_BYTES);
            bits.copy_from_slice(&self.sector(sector));
            tag.copy_from_slice(&keys::tag(&keys.meta, "map", sector, bits));
        }
        bytes
    }

    /// Takes the bits of a page. The error is the sector that does not verify.
    pub(super) fn parse_page(&mut self, keys: &EpochKeys, page: u64, bytes: &[u8]) -> Result<(), u64> {
        for (sector, bytes) in (page * 8..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            self.parse_sector(keys, sector, bytes)?;
        }
        Ok(())
    }

    /// Takes the bits of a sector; the error is its number.
    pub(super) fn parse_sector(&mut self, keys: &EpochKeys, sector: u64, bytes: &[u8]) -> Result<(), u64> {
        let (bits, tag) = bytes.split_at(MAP_BITS_BYTES);
        if !keys::is_equal(tag, &keys::tag(&keys.meta, "map", sector, bits)) {
            return Err(sector);
        }
        for (index, byte) in (sector as usize * MAP_BITS_BYTES..).zip(bits) {
            self.set_byte(index, *byte);
        }
        Ok(())
    }
}
