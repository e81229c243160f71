//! The superblock: size, epoch, sessions and the writer. Two copies; the higher sequence number counts.

use super::keys::{self, Keys, TAG_BYTES};
use super::{BLOCK_BYTES, PAGE_BYTES, SECTOR_BYTES};

const MAGIC: &[u8; 8] = b"HKYKVOL1";
/// Bytes that identify a writer.
pub(super) const WRITER_BYTES: usize = 16;
/// Intervals of sessions that ended without closing; the earliest are merged beyond.
const UNCLEAN_MAX: usize = 24;
const FLAG_CLOSED: u32 = 1;
const TAG_AT: usize = SECTOR_BYTES - TAG_BYTES;
/// Most bytes of [`Superblock::content`].
pub(super) const CONTENT_BYTES_MAX: usize = 264;
const PURPOSE: &str = "superblock";

/// State of a volume that changes with each session, not with each write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub sequence: u64,
    /// Size of the volume in blocks.
    pub blocks: u64,
    /// Blocks for which the layout has room.
    pub capacity: u64,
    pub epoch: u32,
    /// The number of the last session that wrote; 0 before the first.
    pub session: u32,
    /// The last session closed the volume: all that it wrote is durable.
    pub is_closed: bool,
    /// Random bytes of the last writer.
    pub writer: [u8; WRITER_BYTES],
    /// Batches of the journal with a lower number must not be written again.
    pub(super) journal_from: u64,
    /// First and last session of intervals, ascending. Of a block whose later context is of such a session, either
    /// version may be the stored one.
    pub(super) unclean: Vec<(u32, u32)>,
}

impl Superblock {
    pub(super) fn new(blocks: u64, capacity: u64) -> Self {
        Self {
            sequence: 1,
            blocks,
            capacity,
            epoch: 0,
            session: 0,
            is_closed: true,
            writer: [0; WRITER_BYTES],
            journal_from: 0,
            unclean: Vec::new(),
        }
    }

    /// Adds the last session to those that ended without closing, if it did.
    pub(super) fn note_unclean(&mut self) {
        if self.is_closed || self.session == 0 {
            return;
        }
        match self.unclean.last_mut() {
            Some((_, last)) if *last + 1 >= self.session => *last = self.session,
            _ => self.unclean.push((self.session, self.session)),
        }
        if self.unclean.len() > UNCLEAN_MAX {
            let (_, last) = self.unclean.remove(1);
            self.unclean[0].1 = last;
        }
    }

    /// Whether a version of `session` may be the stored one or not: also of sessions that are not yet known here.
    pub(super) fn is_unclean(&self, session: u32) -> bool {
        session > self.session || self.unclean.iter().any(|(first, last)| (*first..=*last).contains(&session))
    }

    pub(super) fn emit(&self, keys: &Keys) -> [u8; SECTOR_BYTES] {
        seal(keys, PURPOSE, self.content())
    }

    /// The bytes before the zeroes.
    pub(super) fn content(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SECTOR_BYTES);
        bytes.extend_from_slice(MAGIC);
        for number in [self.sequence, self.blocks, self.capacity, self.journal_from] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let flags = if self.is_closed { FLAG_CLOSED } else { 0 };
        for number in [self.epoch, self.session, flags, self.unclean.len() as u32] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.writer);
        for (first, last) in &self.unclean {
            bytes.extend_from_slice(&first.to_le_bytes());
            bytes.extend_from_slice(&last.to_le_bytes());
        }
        bytes
    }

    /// `None` if the bytes do not verify.
    pub(super) fn parse(keys: &Keys, bytes: &[u8]) -> Option<Self> {
        Self::of_content(open(keys, PURPOSE, bytes)?)
    }

    /// Parses a sector without its tag, which is not verified here.
    pub(super) fn of_content(content: &[u8]) -> Option<Self> {
        let u64_at = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("8 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().expect("4 bytes"));
        let count = u32_at(52) as usize;
        if &content[..8] != MAGIC || count > UNCLEAN_MAX {
            return None;
        }
        Some(Self {
            sequence: u64_at(8),
            blocks: u64_at(16),
            capacity: u64_at(24),
            journal_from: u64_at(32),
            epoch: u32_at(40),
            session: u32_at(44),
            is_closed: u32_at(48) & FLAG_CLOSED != 0,
            writer: content[56..72].try_into().expect("16 bytes"),
            unclean: (0..count).map(|i| (u32_at(72 + 8 * i), u32_at(76 + 8 * i))).collect(),
        })
    }

    /// The later of two copies, a page each, as the storage says: nothing of it is verified. Also of a volume in re-encryption.
    pub fn unverified(copies: &[u8]) -> Option<Self> {
        let sectors = copies.chunks(PAGE_BYTES).filter_map(|bytes| bytes.get(..SECTOR_BYTES));
        let parsed = sectors.filter_map(Self::of_content).filter(|copy| {
            let is_size = (1..=copy.capacity).contains(&copy.blocks);
            is_size && copy.capacity.checked_mul(BLOCK_BYTES as u64).is_some()
        });
        parsed.max_by_key(|copy| copy.sequence)
    }

    /// The copy that counts, of the first bytes of both.
    pub(super) fn latest(keys: &Keys, copies: [&[u8]; 2]) -> Option<Self> {
        let copies = copies.into_iter().filter_map(|bytes| Self::parse(keys, bytes));
        copies.max_by_key(|copy| copy.sequence)
    }
}

/// A sector of this content with the tag of `purpose`.
pub(super) fn seal(keys: &Keys, purpose: &str, mut content: Vec<u8>) -> [u8; SECTOR_BYTES] {
    content.resize(TAG_AT, 0);
    let tag = keys::tag(keys.superblock(), purpose, 0, &content);
    content.extend_from_slice(&tag);
    content.try_into().expect("512 bytes")
}

/// The content of a sector, if it verifies.
pub(super) fn open<'a>(keys: &Keys, purpose: &str, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (content, tag) = bytes.get(..SECTOR_BYTES)?.split_at(TAG_AT);
    keys::is_equal(tag, &keys::tag(keys.superblock(), purpose, 0, content)).then_some(content)
}

const _: () = assert!(72 + 8 * UNCLEAN_MAX <= CONTENT_BYTES_MAX);
const _: () = assert!(CONTENT_BYTES_MAX < TAG_AT);
