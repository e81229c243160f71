//! Where the parts of a volume lie: superblock, map, contexts, journal, data (docs/VOLUME.md section 2).

use std::ops::Range;

use thiserror::Error;

use super::{BATCH_BLOCKS_MAX, BLOCK_BYTES, PAGE_BYTES, SECTOR_BYTES};

/// AEAD that seals blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES-256-GCM-SIV (RFC 8452): a repeated nonce shows only that two blocks are equal.
    Aes256GcmSiv,
    /// AEGIS-256X4 (RFC 10032).
    Aegis256X4,
}

impl Cipher {
    pub const ALL: [Self; 2] = [Self::Aes256GcmSiv, Self::Aegis256X4];

    /// Name in the header's segment and in the derivation of keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes256GcmSiv => "aes256-gcm-siv",
            Self::Aegis256X4 => "aegis-256x4",
        }
    }

    /// The cipher of a name in a header, compared exactly.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| cipher.name() == name)
    }

    /// Bytes of randomness that each sealed block takes.
    pub fn nonce_bytes(self) -> usize {
        match self {
            Self::Aes256GcmSiv => 12,
            Self::Aegis256X4 => 28,
        }
    }

    /// Bytes of a slot: generation, nonce and tag.
    pub(super) fn slot_bytes(self) -> usize {
        4 + self.nonce_bytes() + 16
    }

    /// Blocks whose pairs of slots fit a sector of 512 bytes.
    fn blocks_per_sector(self) -> usize {
        SECTOR_BYTES / (2 * self.slot_bytes())
    }

    pub(super) fn blocks_per_page(self) -> usize {
        self.blocks_per_sector() * (PAGE_BYTES / SECTOR_BYTES)
    }

    /// Offset in a page of the pair of a block, which is the `index`th of the page.
    pub(super) fn pair_offset(self, index: usize) -> usize {
        let per_sector = self.blocks_per_sector();
        index / per_sector * SECTOR_BYTES + index % per_sector * 2 * self.slot_bytes()
    }

    /// Entries of a page of a journal's header.
    pub(super) fn entries_per_page(self) -> usize {
        (PAGE_BYTES - super::journal::HEAD_BYTES - super::keys::TAG_BYTES) / (8 + self.slot_bytes())
    }
}

/// Bytes that the storage writes entirely or not at all when power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Blocks can tear; overwritten blocks are written to a journal first.
    Bytes512,
    Bytes4096,
}

impl Unit {
    pub fn bytes(self) -> u32 {
        match self {
            Self::Bytes512 => 512,
            Self::Bytes4096 => 4096,
        }
    }

    pub fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            512 => Some(Self::Bytes512),
            4096 => Some(Self::Bytes4096),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    #[error("the segment begins at {0}, which is no multiple of 4096 bytes")]
    Misaligned(u64),
    #[error("{0} bytes of storage are too few for an authenticated volume")]
    TooSmall(u64),
    #[error("{0} blocks are more than an authenticated volume can have")]
    TooLarge(u64),
}

/// Pages of contexts in a group, which has one bit in the map.
pub(super) const PAGES_PER_GROUP: u64 = 4;
/// Bytes of a sector of the map that hold bits; its tag follows.
pub(super) const MAP_BITS_BYTES: usize = SECTOR_BYTES - super::keys::TAG_BYTES;
pub(super) const GROUPS_PER_SECTOR: u64 = MAP_BITS_BYTES as u64 * 8;
const SECTORS_PER_PAGE: u64 = (PAGE_BYTES / SECTOR_BYTES) as u64;
/// Most blocks: 16 PiB. The map then takes 2 GiB of storage.
const BLOCKS_MAX: u64 = 1 << 42;
const DATA_ALIGNMENT: u64 = 1 << 20;
/// The journal has two halves of this fraction of the data, within these bounds in blocks.
const JOURNAL_FRACTION: u64 = 64;
const JOURNAL_BLOCKS_MIN: u64 = 512;

/// Offsets are in bytes from the beginning of the storage. Equal arguments give equal layouts: a layout is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub cipher: Cipher,
    pub unit: Unit,
    /// Offset of the segment, as in the header.
    pub segment: u64,
    /// Blocks for which map and contexts have room. A volume has at most so many.
    pub capacity: u64,
    map: u64,
    contexts: u64,
    journal: u64,
    data: u64,
}

impl Layout {
    /// The layout with room for `capacity` blocks.
    pub fn new(cipher: Cipher, unit: Unit, segment: u64, capacity: u64) -> Result<Self, LayoutError> {
        if !segment.is_multiple_of(PAGE_BYTES as u64) || segment > 1 << 40 {
            return Err(LayoutError::Misaligned(segment));
        }
        if capacity == 0 {
            return Err(LayoutError::TooSmall(0));
        }
        if capacity > BLOCKS_MAX {
            return Err(LayoutError::TooLarge(capacity));
        }
        let mut layout = Self { cipher, unit, segment, capacity, map: 0, contexts: 0, journal: 0, data: 0 };
        layout.map = segment + 2 * PAGE_BYTES as u64;
        layout.contexts = layout.map + layout.map_pages() * PAGE_BYTES as u64;
        layout.journal = layout.contexts + layout.groups() * PAGES_PER_GROUP * PAGE_BYTES as u64;
        layout.data = (layout.journal + 2 * layout.journal_half_bytes()).next_multiple_of(DATA_ALIGNMENT);
        Ok(layout)
    }

    /// The layout with the most blocks that storage of `storage_bytes` holds.
    pub fn fitting(
        cipher: Cipher,
        unit: Unit,
        segment: u64,
        storage_bytes: u64,
    ) -> Result<Self, LayoutError> {
        let fits =
            |capacity| Self::new(cipher, unit, segment, capacity).is_ok_and(|l| l.end() <= storage_bytes);
        if !segment.is_multiple_of(PAGE_BYTES as u64) {
            return Err(LayoutError::Misaligned(segment));
        }
        if !fits(1) {
            return Err(LayoutError::TooSmall(storage_bytes));
        }
        // The end grows with the capacity.
        let (mut least, mut most) = (1, (storage_bytes / BLOCK_BYTES as u64).min(BLOCKS_MAX));
        while least < most {
            let middle = (least + most).div_ceil(2);
            if fits(middle) { least = middle } else { most = middle - 1 }
        }
        Self::new(cipher, unit, segment, least)
    }

    /// Offset of one of the two copies of the superblock.
    pub fn superblock(&self, copy: u64) -> u64 {
        self.segment + copy * PAGE_BYTES as u64
    }

    /// The bytes of the map.
    pub fn map(&self) -> Range<u64> {
        self.map..self.contexts
    }

    /// The bytes of the pair of contexts of a block.
    pub fn pair(&self, block: u64) -> Range<u64> {
        let offset =
            self.page_offset(self.page_of(block)) + self.cipher.pair_offset(self.index_in_page(block)) as u64;
        offset..offset + 2 * self.cipher.slot_bytes() as u64
    }

    /// Offsets of the header and of the data of both halves of the journal.
    pub fn journal_halves(&self) -> [(u64, u64); 2] {
        [0, 1].map(|half| (self.journal_page_offset(half, 0), self.journal_data_offset(half, 0)))
    }

    pub fn data_offset(&self, block: u64) -> u64 {
        self.data + block * BLOCK_BYTES as u64
    }

    /// First byte after the last block that the layout has room for.
    pub fn end(&self) -> u64 {
        self.data_offset(self.capacity)
    }

    pub(super) fn blocks_per_group(&self) -> u64 {
        self.cipher.blocks_per_page() as u64 * PAGES_PER_GROUP
    }

    pub(super) fn groups(&self) -> u64 {
        self.capacity.div_ceil(self.blocks_per_group())
    }

    pub(super) fn group_of(&self, block: u64) -> u64 {
        block / self.blocks_per_group()
    }

    /// The number of a block's page of contexts.
    pub(super) fn page_of(&self, block: u64) -> u64 {
        block / self.cipher.blocks_per_page() as u64
    }

    pub(super) fn pages_of(&self, blocks: &Range<u64>) -> Range<u64> {
        if blocks.is_empty() { 0..0 } else { self.page_of(blocks.start)..self.page_of(blocks.end - 1) + 1 }
    }

    /// Those of `blocks` whose contexts are on the page.
    pub(super) fn blocks_of(&self, page: u64, blocks: &Range<u64>) -> Range<u64> {
        let per_page = self.cipher.blocks_per_page() as u64;
        blocks.start.max(page * per_page)..blocks.end.min((page + 1) * per_page)
    }

    pub(super) fn index_in_page(&self, block: u64) -> usize {
        (block % self.cipher.blocks_per_page() as u64) as usize
    }

    pub(super) fn page_offset(&self, page: u64) -> u64 {
        self.contexts + page * PAGE_BYTES as u64
    }

    pub(super) fn map_offset(&self, page: u64) -> u64 {
        self.map + page * PAGE_BYTES as u64
    }

    fn map_sectors(&self) -> u64 {
        self.groups().div_ceil(GROUPS_PER_SECTOR)
    }

    pub(super) fn map_pages(&self) -> u64 {
        self.map_sectors().div_ceil(SECTORS_PER_PAGE)
    }

    pub(super) fn map_page_of(&self, group: u64) -> u64 {
        group / (GROUPS_PER_SECTOR * SECTORS_PER_PAGE)
    }

    /// Blocks of data that a half of the journal has room for; 0 without a journal.
    pub(super) fn journal_blocks(&self) -> u64 {
        match self.unit {
            Unit::Bytes4096 => 0,
            Unit::Bytes512 => {
                let blocks = self.capacity / JOURNAL_FRACTION;
                blocks.clamp(JOURNAL_BLOCKS_MIN, BATCH_BLOCKS_MAX as u64)
            }
        }
    }

    /// Pages of the header of a half of the journal.
    pub(super) fn journal_pages(&self) -> u64 {
        self.journal_blocks().div_ceil(self.cipher.entries_per_page() as u64)
    }

    fn journal_half_bytes(&self) -> u64 {
        self.journal_pages() * PAGE_BYTES as u64 + self.journal_blocks() * BLOCK_BYTES as u64
    }

    pub(super) fn journal_page_offset(&self, half: u64, page: u64) -> u64 {
        self.journal + half * self.journal_half_bytes() + page * PAGE_BYTES as u64
    }

    pub(super) fn journal_data_offset(&self, half: u64, block: u64) -> u64 {
        self.journal_page_offset(half, self.journal_pages()) + block * BLOCK_BYTES as u64
    }

    /// Blocks that may wait for one barrier.
    pub(super) fn batch_blocks_max(&self) -> usize {
        match self.unit {
            Unit::Bytes4096 => BATCH_BLOCKS_MAX,
            Unit::Bytes512 => self.journal_blocks() as usize,
        }
    }

    /// Offsets of the areas, for the derivation of keys.
    pub(super) fn areas(&self) -> [u64; 4] {
        [self.map, self.contexts, self.journal, self.data]
    }
}

// A request of the greatest length that is not aligned fits a batch.
const _: () = assert!(super::REQUEST_BYTES_MAX / (BLOCK_BYTES as u64) < JOURNAL_BLOCKS_MIN);
