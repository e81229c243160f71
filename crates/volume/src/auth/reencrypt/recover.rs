//! Batches of the journal, where the unit is 512 bytes: those of the volume's last session, or of the re-encryption.

use std::collections::{BTreeMap, BTreeSet};

use super::super::context::ContextPage;
use super::super::journal::{self, JournalPage};
use super::super::{BLOCK_BYTES, Context, PAGE_BYTES};
use super::chunk::Run;
use super::{ReencryptError, Reencryption, Side};
use crate::Storage;

/// A page of the journal: its half, the index of its first entry, what it says.
type Part = (u64, u64, JournalPage);

impl Reencryption {
    /// Writes the last two batches to their places again, durably: those of the new key once the re-encryption has begun, before
    /// those of the volume's last session. A barrier came before.
    pub(super) fn recover<S: Storage>(&mut self, storage: &mut S) -> Result<(), ReencryptError<S::Error>> {
        let is_begun = self.state.first_session > 0;
        let mut pages = self.journal(storage, is_begun)?;
        let last = pages.iter().map(|(.., page)| page.batch).max().unwrap_or(0);
        pages.retain(|(.., page)| page.batch + 1 >= last);
        pages.sort_by_key(|(.., page)| std::cmp::Reverse(page.batch));
        let mut seen = BTreeSet::new();
        for (half, first, page) in pages {
            let room = self.layout.journal_blocks().saturating_sub(first) as usize;
            let entries = &page.entries[..page.entries.len().min(room)];
            let mut data = vec![0; entries.len() * BLOCK_BYTES];
            let offset = self.layout.journal_data_offset(half, first);
            storage.read(offset, &mut data).map_err(ReencryptError::Storage)?;
            let side = if is_begun { &self.new } else { &self.old };
            let mut found = Vec::new();
            for (entry, data) in entries.iter().zip(data.chunks_exact(BLOCK_BYTES)) {
                if self.exists(entry.0) && !seen.contains(&entry.0) && side.verifies(entry, data) {
                    seen.insert(entry.0);
                    found.push((*entry, data));
                }
            }
            self.put(storage, side, &found).map_err(ReencryptError::Storage)?;
        }
        storage.flush().map_err(ReencryptError::Storage)?;
        self.batch = if is_begun { last } else { 0 };
        Ok(())
    }

    fn exists(&self, block: u64) -> bool {
        block < self.state.superblock.blocks && self.groups.contains(self.layout.group_of(block))
    }

    /// Pages of both halves.
    fn journal<S: Storage>(
        &self,
        storage: &mut S,
        is_begun: bool,
    ) -> Result<Vec<Part>, ReencryptError<S::Error>> {
        let (layout, superblock) = (&self.layout, &self.state.superblock);
        let keys = if is_begun { &self.reencryption } else { &self.old.epoch };
        let mut found = Vec::new();
        for half in 0..2 {
            let mut bytes = vec![0; layout.journal_pages() as usize * PAGE_BYTES];
            let start = layout.journal_page_offset(half, 0);
            storage.read(start, &mut bytes).map_err(ReencryptError::Storage)?;
            for (index, bytes) in (0..).zip(bytes.chunks_exact(PAGE_BYTES)) {
                let offset = start + index * PAGE_BYTES as u64;
                let Some(page) = journal::parse(layout.cipher, keys, offset, bytes) else { continue };
                let is_live = page.session == superblock.session && page.batch >= superblock.journal_from;
                if is_begun || is_live {
                    found.push((half, index * layout.cipher.entries_per_page() as u64, page));
                }
            }
        }
        Ok(found)
    }

    fn put<S: Storage>(
        &self,
        storage: &mut S,
        side: &Side,
        found: &[((u64, Context), &[u8])],
    ) -> Result<(), S::Error> {
        let (layout, cipher) = (&self.layout, self.layout.cipher);
        let mut pages = BTreeMap::new();
        for ((block, context), data) in found {
            let number = layout.page_of(*block);
            if let std::collections::btree_map::Entry::Vacant(page) = pages.entry(number) {
                let mut bytes = [0; PAGE_BYTES];
                storage.read(layout.page_offset(number), &mut bytes)?;
                page.insert(ContextPage::parse(cipher, &side.epoch, number, &bytes));
            }
            let page = pages.get_mut(&number).expect("the page was read");
            page.set_only(cipher, layout.index_in_page(*block), context);
            storage.write(layout.data_offset(*block), data)?;
        }
        pages.iter().try_for_each(|(number, page)| storage.write(layout.page_offset(*number), page.bytes()))
    }

    /// Writes the blocks of `runs` that move into the next half.
    pub(super) fn write_batch<S: Storage>(&mut self, storage: &mut S, runs: &[Run]) -> Result<(), S::Error> {
        let moves: Vec<_> = runs.iter().flat_map(Run::moves).copied().collect();
        if moves.is_empty() {
            return Ok(());
        }
        self.batch += 1;
        let (layout, half) = (&self.layout, self.batch % 2);
        let batch = (self.state.superblock.session, self.batch);
        let mut pages = Vec::new();
        for entries in moves.chunks(layout.cipher.entries_per_page()) {
            let place = layout.journal_page_offset(half, (pages.len() / PAGE_BYTES) as u64);
            pages.extend_from_slice(&journal::emit(layout.cipher, &self.reencryption, place, batch, entries));
        }
        storage.write(layout.journal_page_offset(half, 0), &pages)?;
        let mut index = 0;
        for (_, bytes) in runs.iter().flat_map(Run::stretches) {
            storage.write(layout.journal_data_offset(half, index), bytes)?;
            index += (bytes.len() / BLOCK_BYTES) as u64;
        }
        Ok(())
    }
}

impl Side {
    fn verifies(&self, (block, context): &(u64, Context), data: &[u8]) -> bool {
        let mut opened = zeroize::Zeroizing::new(data.to_vec());
        self.sealer.open(*block, context, &mut opened).is_ok()
    }
}
