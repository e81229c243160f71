//! Pages of the header of a half of the journal, where the unit is 512 bytes.
//!
//! A header lists the blocks of a batch; the data of the entry with index i is the ith block of the half. A page that
//! does not verify, or that is of an earlier batch, has no entries.

use super::keys::{self, EpochKeys, TAG_BYTES};
use super::{Cipher, Context, PAGE_BYTES};

const MAGIC: &[u8; 8] = b"HKYKJRN1";
/// Bytes before the entries: magic, batch, session, number of entries.
pub(super) const HEAD_BYTES: usize = 24;
const TAG_AT: usize = PAGE_BYTES - TAG_BYTES;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JournalPage {
    pub(super) batch: u64,
    pub(super) session: u32,
    pub(super) entries: Vec<(u64, Context)>,
}

/// `place` is the offset of the page in storage: a page is valid there only.
pub(super) fn emit(
    cipher: Cipher,
    keys: &EpochKeys,
    place: u64,
    (session, batch): (u32, u64),
    entries: &[(u64, Context)],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAGE_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&batch.to_le_bytes());
    bytes.extend_from_slice(&session.to_le_bytes());
    bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    for (block, context) in entries {
        bytes.extend_from_slice(&block.to_le_bytes());
        let at = bytes.len();
        bytes.resize(at + cipher.slot_bytes(), 0);
        context.emit(cipher, &mut bytes[at..]);
    }
    bytes.resize(TAG_AT, 0);
    let tag = keys::tag(&keys.meta, "journal", place, &bytes);
    bytes.extend_from_slice(&tag);
    bytes
}

pub(super) fn parse(cipher: Cipher, keys: &EpochKeys, place: u64, bytes: &[u8]) -> Option<JournalPage> {
    let (content, tag) = bytes.get(..PAGE_BYTES)?.split_at(TAG_AT);
    if &content[..8] != MAGIC || !keys::is_equal(tag, &keys::tag(&keys.meta, "journal", place, content)) {
        return None;
    }
    let count = u32::from_le_bytes(content[20..24].try_into().expect("4 bytes")) as usize;
    if count > cipher.entries_per_page() {
        return None;
    }
    let entries = content[HEAD_BYTES..].chunks_exact(8 + cipher.slot_bytes()).take(count);
    Some(JournalPage {
        batch: u64::from_le_bytes(content[8..16].try_into().expect("8 bytes")),
        session: u32::from_le_bytes(content[16..20].try_into().expect("4 bytes")),
        entries: entries
            .map(|entry| {
                let (block, slot) = entry.split_at(8);
                (u64::from_le_bytes(block.try_into().expect("8 bytes")), Context::parse(cipher, slot))
            })
            .collect(),
    })
}
