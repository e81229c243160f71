//! The ledger: a local file that knows the state of a volume that was last flushed (`freshness=FILE`, docs/VOLUME.md
//! "Freshness").
//!
//! It has a header, a tag for each sector of the map and for each page of contexts, and a log: the pages that the round
//! under way changes, before and after. The file is written before the storage may hold a change, and again before a
//! flush is acknowledged.

use super::keys::{self, EpochKeys, Keys, TAG_BYTES, Tag};
use super::layout::{MAP_BITS_BYTES, PAGES_PER_GROUP};
use super::map::Groups;
use super::{BLOCK_BYTES, Layout, OPERATION_BYTES_MAX, PAGE_BYTES, SECTOR_BYTES, Superblock};

const MAGIC: &[u8; 8] = b"HKYKFRS1";
const LOG_MAGIC: &[u8; 8] = b"HKYKFLG1";
/// Bytes of tags for a MiB of the volume.
const BYTES_PER_MIB: usize = 64;
const FLAG_REDO: u32 = 1;
const TAG_AT: usize = SECTOR_BYTES - TAG_BYTES;
/// Both copies of the header.
pub(super) const HEADERS_BYTES: usize = 2 * PAGE_BYTES;
/// Bytes of a log before its lists.
pub(super) const LOG_HEAD_BYTES: usize = 48;
const LOG_PAGE_BYTES: usize = 8 + 2 * TAG_BYTES;
const LOG_SECTOR_BYTES: usize = 8 + TAG_BYTES;
/// Bytes of a page before and after a round.
pub(super) const IMAGES_BYTES: usize = 2 * PAGE_BYTES;
/// Pages that a log may have: a file with more was not written by this code.
const LOG_PAGES_MAX: usize = 1 << 16;

/// Why a file is not the ledger of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    #[error("the freshness file is not one, or is damaged")]
    Damaged,
    #[error("the freshness file is of another volume, or of the time before a re-encryption")]
    OtherVolume,
    #[error("the freshness file is shorter than the volume needs")]
    Truncated,
    #[error("the volume was written without this freshness file, or the file is an older copy")]
    Behind,
}

/// Where the parts of a ledger lie; offsets in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LedgerLayout {
    tag_bytes: usize,
    pages: u64,
    map_sectors: u64,
}

impl LedgerLayout {
    pub(super) fn new(layout: &Layout) -> Self {
        let page_data = layout.cipher.blocks_per_page() * BLOCK_BYTES;
        Self {
            // 16 bytes for 256 KiB, or 10 for 160 KiB.
            tag_bytes: BYTES_PER_MIB * page_data / (1 << 20),
            pages: layout.groups() * PAGES_PER_GROUP,
            map_sectors: layout.map_pages() * (PAGE_BYTES / SECTOR_BYTES) as u64,
        }
    }

    pub(super) fn tag_bytes(&self) -> usize {
        self.tag_bytes
    }

    pub(super) fn map_sectors(&self) -> u64 {
        self.map_sectors
    }

    pub(super) fn header_offset(serial: u64) -> u64 {
        serial % 2 * PAGE_BYTES as u64
    }

    pub(super) fn map_tag_offset(sector: u64) -> u64 {
        HEADERS_BYTES as u64 + sector * TAG_BYTES as u64
    }

    pub(super) fn page_tag_offset(&self, page: u64) -> u64 {
        Self::map_tag_offset(self.map_sectors) + page * self.tag_bytes as u64
    }

    pub(super) fn log_offset(&self) -> u64 {
        self.page_tag_offset(self.pages).next_multiple_of(PAGE_BYTES as u64)
    }

    /// Offset of the images of the log's page with this index.
    pub(super) fn images_offset(&self, log: &Log, index: usize) -> u64 {
        let lists = (LOG_HEAD_BYTES + log.lists_bytes()).next_multiple_of(PAGE_BYTES);
        self.log_offset() + (lists + index * IMAGES_BYTES) as u64
    }
}

/// What the file says of the volume as a whole. Two copies; the higher serial number counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) serial: u64,
    /// The last round that is durable as a whole.
    pub(super) round: u64,
    /// A superblock with a lower sequence number is older than the last flush.
    pub(super) sequence: u64,
    /// No session with a higher number wrote with this file.
    pub(super) session: u32,
    /// The log of `round` has tags that may not be in their place.
    pub(super) needs_redo: bool,
}

impl Header {
    pub(super) fn new(superblock: &Superblock) -> Self {
        let (sequence, session) = (superblock.sequence, superblock.session);
        Self { serial: 1, round: 0, sequence, session, needs_redo: false }
    }

    pub(super) fn emit(&self, keys: &EpochKeys) -> [u8; SECTOR_BYTES] {
        let mut bytes = Vec::with_capacity(SECTOR_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&volume_id(keys));
        for number in [self.serial, self.round, self.sequence] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let flags = if self.needs_redo { FLAG_REDO } else { 0 };
        for number in [self.session, flags] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.resize(TAG_AT, 0);
        let tag = keys::tag(&keys.ledger, "header", 0, &bytes);
        bytes.extend_from_slice(&tag);
        bytes.try_into().expect("512 bytes")
    }

    fn parse(keys: &EpochKeys, bytes: &[u8]) -> Result<Self, LedgerError> {
        let (content, tag) = bytes[..SECTOR_BYTES].split_at(TAG_AT);
        if &content[..8] != MAGIC {
            return Err(LedgerError::Damaged);
        }
        if !keys::is_equal(&content[8..24], &volume_id(keys)) {
            return Err(LedgerError::OtherVolume);
        }
        if !keys::is_equal(tag, &keys::tag(&keys.ledger, "header", 0, content)) {
            return Err(LedgerError::Damaged);
        }
        Ok(Self {
            serial: u64_at(content, 24),
            round: u64_at(content, 32),
            sequence: u64_at(content, 40),
            session: u32_at(content, 48),
            needs_redo: u32_at(content, 52) & FLAG_REDO != 0,
        })
    }

    /// The copy that counts, of the bytes of both.
    pub(super) fn latest(keys: &EpochKeys, bytes: &[u8]) -> Result<Self, LedgerError> {
        let (first, second) = bytes.split_at(PAGE_BYTES);
        match (Self::parse(keys, first), Self::parse(keys, second)) {
            (Ok(first), Ok(second)) if second.serial > first.serial => Ok(second),
            (Ok(header), _) | (_, Ok(header)) => Ok(header),
            (Err(LedgerError::OtherVolume), _) => Err(LedgerError::OtherVolume),
            (_, Err(error)) => Err(error),
        }
    }
}

/// A page that a round changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogPage {
    pub(super) page: u64,
    /// Of the page after the round.
    pub(super) tag: Tag,
    /// Of both images.
    images: Tag,
}

/// What a round changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) round: u64,
    /// Of the superblock when the round began.
    pub(super) sequence: u64,
    pub(super) session: u32,
    /// Of the round in the journal.
    pub(super) batch: u64,
    pub(super) pages: Vec<LogPage>,
    /// Sectors of the map, with their tags after the round.
    pub(super) sectors: Vec<(u64, Tag)>,
}

impl Log {
    pub(super) fn lists_bytes(&self) -> usize {
        self.pages.len() * LOG_PAGE_BYTES + self.sectors.len() * LOG_SECTOR_BYTES + TAG_BYTES
    }

    /// Adds a page with its bytes before and after the round.
    pub(super) fn add(&mut self, keys: &EpochKeys, page: u64, images: &[u8]) {
        let tag = page_tag(keys, page, &images[PAGE_BYTES..]);
        let images = images_tag(keys, self.round, page, images);
        self.pages.push(LogPage { page, tag, images });
    }

    /// Head and lists.
    pub(super) fn emit(&self, keys: &EpochKeys) -> Vec<u8> {
        let mut bytes = LOG_MAGIC.to_vec();
        for number in [self.round, self.sequence, self.batch, self.sectors.len() as u64] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.session, self.pages.len() as u32] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for LogPage { page, tag, images } in &self.pages {
            bytes.extend_from_slice(&page.to_le_bytes());
            bytes.extend_from_slice(tag);
            bytes.extend_from_slice(images);
        }
        for (sector, tag) in &self.sectors {
            bytes.extend_from_slice(&sector.to_le_bytes());
            bytes.extend_from_slice(tag);
        }
        let tag = keys::tag(&keys.ledger, "log", self.round, &bytes);
        bytes.extend_from_slice(&tag);
        bytes
    }

    /// Bytes of head and lists, from the head; `None` if there is no log.
    pub(super) fn length(layout: &LedgerLayout, head: &[u8]) -> Option<usize> {
        let (pages, sectors) = (u32_at(head, 44) as usize, u64_at(head, 32));
        let is_log = &head[..8] == LOG_MAGIC && pages <= LOG_PAGES_MAX && sectors <= layout.map_sectors;
        let lists = pages * LOG_PAGE_BYTES + sectors as usize * LOG_SECTOR_BYTES + TAG_BYTES;
        is_log.then_some(LOG_HEAD_BYTES + lists)
    }

    /// The log in as many bytes as [`Self::length`] says. `None`: it was not written whole.
    pub(super) fn parse(keys: &EpochKeys, bytes: &[u8]) -> Option<Self> {
        let (content, tag) = bytes.split_at(bytes.len() - TAG_BYTES);
        let round = u64_at(content, 8);
        if !keys::is_equal(tag, &keys::tag(&keys.ledger, "log", round, content)) {
            return None;
        }
        let tag_at = |bytes: &[u8], at: usize| bytes[at..at + TAG_BYTES].try_into().expect("16 bytes");
        let lists = &content[LOG_HEAD_BYTES..];
        let (pages, sectors) = lists.split_at(u32_at(content, 44) as usize * LOG_PAGE_BYTES);
        let pages = pages.chunks_exact(LOG_PAGE_BYTES).map(|entry| LogPage {
            page: u64_at(entry, 0),
            tag: tag_at(entry, 8),
            images: tag_at(entry, 8 + TAG_BYTES),
        });
        let sectors =
            sectors.chunks_exact(LOG_SECTOR_BYTES).map(|entry| (u64_at(entry, 0), tag_at(entry, 8)));
        Some(Self {
            round,
            sequence: u64_at(content, 16),
            batch: u64_at(content, 24),
            session: u32_at(content, 40),
            pages: pages.collect(),
            sectors: sectors.collect(),
        })
    }

    /// Whether these are the images of the page with this index. Otherwise the log was not written whole.
    pub(super) fn has_images(&self, keys: &EpochKeys, index: usize, images: &[u8]) -> bool {
        let LogPage { page, images: tag, .. } = &self.pages[index];
        keys::is_equal(tag, &images_tag(keys, self.round, *page, images))
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn volume_id(keys: &EpochKeys) -> Tag {
    keys::tag(&keys.ledger, "volume", 0, &[])
}

/// The tag of a page of contexts, of which a file has the first [`LedgerLayout::tag_bytes`].
pub(super) fn page_tag(keys: &EpochKeys, page: u64, bytes: &[u8]) -> Tag {
    keys::tag(&keys.ledger, "page", page, bytes)
}

fn images_tag(keys: &EpochKeys, round: u64, page: u64, images: &[u8]) -> Tag {
    let place = [round.to_le_bytes(), page.to_le_bytes()].concat();
    keys::tag(&keys.ledger, "images", 0, &[&place, images].concat())
}

/// The tag of a sector of the map.
pub(super) fn map_tag(keys: &EpochKeys, sector: u64, bytes: &[u8]) -> Tag {
    keys::tag(&keys.ledger, "map", sector, bytes)
}

/// Yields offsets and bytes of the ledger of an empty volume, which has [`ledger_bytes`] bytes; what is not yielded is
/// zero.
pub fn format_ledger(layout: &Layout, keys: &Keys, blocks: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let superblock = Superblock::new(blocks, layout.capacity);
    let keys = keys.of_epoch(layout, superblock.epoch);
    let mut header = Header::new(&superblock).emit(&keys).to_vec();
    header.resize(PAGE_BYTES, 0);
    let at = LedgerLayout::header_offset(1);
    let groups = Groups::new(0);
    let step = (OPERATION_BYTES_MAX / PAGE_BYTES) as u64;
    let pages = layout.map_pages();
    let tags = (0..pages).step_by(step as usize).map(move |first| {
        let sectors = (first..pages.min(first + step)).flat_map(|page| {
            let bytes = groups.emit_page(&keys, page);
            let sectors = (page * 8..).zip(bytes.chunks_exact(SECTOR_BYTES));
            sectors
                .flat_map(|(sector, bytes)| map_tag(&keys, sector, &bytes[..MAP_BITS_BYTES]))
                .collect::<Vec<u8>>()
        });
        (LedgerLayout::map_tag_offset(first * 8), sectors.collect())
    });
    tags.chain([(at, header)])
}

/// Bytes of a volume's ledger without a log.
pub fn ledger_bytes(layout: &Layout) -> u64 {
    LedgerLayout::new(layout).log_offset()
}
