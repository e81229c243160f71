//! The superblock of a volume in re-encryption: that of the volume, how far the move to the new key has come, and the
//! tag of another purpose, so that it opens nowhere else.

use super::super::keys::{self, Keys, TAG_BYTES, Tag};
use super::super::superblock::{self, CONTENT_BYTES_MAX, Superblock};
use super::super::{PAGE_BYTES, SECTOR_BYTES};

const PURPOSE: &str = "reencryption";
/// First session, zero (u32 each); groups moved, blocks lost (u64 each); commitment.
const FIRST_SESSION_AT: usize = CONTENT_BYTES_MAX;
const MOVED_AT: usize = FIRST_SESSION_AT + 8;
const LOST_AT: usize = MOVED_AT + 8;
const COMMITMENT_AT: usize = LOST_AT + 8;
const END: usize = COMMITMENT_AT + TAG_BYTES;

const _: () = assert!(END + TAG_BYTES <= SECTOR_BYTES);

#[derive(Clone, Debug)]
pub(super) struct Moving {
    pub(super) superblock: Superblock,
    /// Sessions of the re-encryption begin with this one. 0: the volume is not in re-encryption.
    pub(super) first_session: u32,
    /// Groups before this one have the new key only, durably.
    pub(super) moved: u64,
    /// Of those groups, blocks that did not verify and were given up.
    pub(super) lost: u64,
    /// Of the new key: another one in the header is noticed.
    pub(super) commitment: Tag,
}

impl Moving {
    pub(super) fn commitment(reencryption: &keys::Key) -> Tag {
        keys::tag(reencryption, "commitment", 0, &[])
    }

    /// A volume whose re-encryption has not begun.
    pub(super) fn not_begun(superblock: Superblock) -> Self {
        Self { superblock, first_session: 0, moved: 0, lost: 0, commitment: [0; TAG_BYTES] }
    }

    pub(super) fn emit(&self, keys: &Keys) -> [u8; SECTOR_BYTES] {
        let mut content = self.superblock.content();
        content.resize(FIRST_SESSION_AT, 0);
        content.extend_from_slice(&u64::from(self.first_session).to_le_bytes());
        content.extend_from_slice(&self.moved.to_le_bytes());
        content.extend_from_slice(&self.lost.to_le_bytes());
        content.extend_from_slice(&self.commitment);
        superblock::seal(keys, PURPOSE, content)
    }

    fn parse(keys: &Keys, bytes: &[u8]) -> Option<Self> {
        let moving = Self::of_content(superblock::open(keys, PURPOSE, bytes)?)?;
        (moving.first_session > 0).then_some(moving)
    }

    fn of_content(content: &[u8]) -> Option<Self> {
        let superblock = Superblock::of_content(content)?;
        let u64_at = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("8 bytes"));
        let first_session = u32::try_from(u64_at(FIRST_SESSION_AT)).ok()?;
        Some(Self {
            superblock,
            first_session,
            moved: u64_at(MOVED_AT),
            lost: u64_at(LOST_AT),
            commitment: content[COMMITMENT_AT..END].try_into().expect("16 bytes"),
        })
    }

    /// The copy that counts, of both, before or in re-encryption.
    pub(super) fn latest(keys: &Keys, copies: &[u8]) -> Option<Self> {
        let copies = copies.chunks(PAGE_BYTES);
        let parsed = copies.filter_map(|bytes| {
            Self::parse(keys, bytes).or_else(|| Superblock::parse(keys, bytes).map(Self::not_begun))
        });
        parsed.max_by_key(|moving| moving.superblock.sequence)
    }

    /// As [`Self::latest`], of copies in re-encryption, without their key: whatever they say.
    pub(super) fn unverified(copies: &[u8]) -> Option<Self> {
        let sectors = copies.chunks(PAGE_BYTES).filter_map(|bytes| bytes.get(..SECTOR_BYTES));
        let parsed = sectors.filter_map(Self::of_content).filter(|moving| moving.first_session > 0);
        parsed.max_by_key(|moving| moving.superblock.sequence)
    }
}
