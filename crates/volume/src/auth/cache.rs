//! Pages of contexts in memory.
//!
//! A page equals the one in storage, or is *dirty*: it belongs to a group whose bit in the map is not set, so that it may
//! be written at any time. Pages with a pin stay; the others leave when there are more than [`CACHE_PAGES_MAX`].

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use foldhash::HashMap;

use super::context::ContextPage;
use super::{CACHE_PAGES_MAX, OPERATION_BYTES_MAX, PAGE_BYTES};

/// Longest run of pages in one operation.
pub(super) const RUN_PAGES_MAX: u64 = (OPERATION_BYTES_MAX / PAGE_BYTES) as u64;
/// Pages that one call looks at to find one that may leave.
const LOOKS_MAX: usize = 64;

struct Page {
    /// `None` while the page is read for the first time.
    contexts: Option<ContextPage>,
    pins: u32,
    writes: u32,
    /// A read of it is under way. The page stays until it ends, so that none is read twice at once, and no bytes that were
    /// read before a write come after it.
    is_loading: bool,
    /// Used since the last look at it.
    is_recent: bool,
}

#[derive(Default)]
pub(super) struct Cache {
    pages: HashMap<u64, Page>,
    /// All pages, in the order of the next look at them.
    clock: VecDeque<u64>,
    dirty: BTreeSet<u64>,
    /// The next dirty page to write: pages are written in ascending order, so that those written to last wait longest.
    cursor: u64,
}

impl Cache {
    /// A page, if it was read.
    pub(super) fn get(&mut self, page: u64) -> Option<&ContextPage> {
        let page = self.pages.get_mut(&page)?;
        page.is_recent = true;
        page.contexts.as_ref()
    }

    /// As [`Self::get`]; the page's place in the order of eviction stays.
    pub(super) fn peek(&self, page: u64) -> Option<&ContextPage> {
        self.pages.get(&page)?.contexts.as_ref()
    }

    /// A page that is pinned and was read.
    pub(super) fn pinned(&mut self, page: u64) -> &mut ContextPage {
        let contexts = self.pages.get_mut(&page).and_then(|page| page.contexts.as_mut());
        contexts.expect("a page of a batch is pinned")
    }

    /// Adds a pin. Returns whether the page must be read: it was neither here nor is it being read.
    pub(super) fn pin(&mut self, page: u64) -> bool {
        if let Some(page) = self.pages.get_mut(&page) {
            page.pins += 1;
            return false;
        }
        self.add(page, 1, None);
        true
    }

    /// Adds a page without a pin, for a read ahead of its use. Returns whether it must be read.
    pub(super) fn expect(&mut self, page: u64) -> bool {
        let is_new = !self.pages.contains_key(&page);
        if is_new {
            self.add(page, 0, None);
        }
        is_new
    }

    fn add(&mut self, page: u64, pins: u32, contexts: Option<ContextPage>) {
        self.evict();
        let is_loading = contexts.is_none();
        self.pages.insert(page, Page { contexts, pins, writes: 0, is_loading, is_recent: true });
        self.clock.push_back(page);
    }

    /// A page of a group that gets its first block: dirty. What was read of it before does not matter.
    pub(super) fn create(&mut self, number: u64, contexts: ContextPage) {
        match self.pages.get_mut(&number) {
            Some(page) => page.contexts = Some(contexts),
            None => self.add(number, 0, Some(contexts)),
        }
        self.dirty.insert(number);
    }

    /// A page that stays until the cache is dropped.
    pub(super) fn hold(&mut self, number: u64, contexts: ContextPage) {
        self.add(number, 1, Some(contexts));
    }

    pub(super) fn unpin(&mut self, page: u64) {
        if let Some(page) = self.pages.get_mut(&page) {
            page.pins -= 1;
        }
    }

    /// A page was read. It counts unless the page was created meanwhile.
    pub(super) fn fill(&mut self, page: u64, contexts: ContextPage) {
        if let Some(page) = self.pages.get_mut(&page) {
            page.is_loading = false;
            page.contexts.get_or_insert(contexts);
        }
    }

    /// Drops a page that could not be read, with its pins. One that was created meanwhile stays; returns whether it did.
    pub(super) fn forget(&mut self, number: u64) -> bool {
        let Some(page) = self.pages.get_mut(&number) else { return false };
        page.is_loading = false;
        if page.contexts.is_some() {
            return true;
        }
        self.pages.remove(&number);
        self.clock.retain(|other| *other != number);
        false
    }

    pub(super) fn set_dirty(&mut self, page: u64) {
        self.dirty.insert(page);
    }

    pub(super) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Takes the next run of dirty pages; they count as being written until [`Self::written`]. Pages that are being written
    /// are not taken again.
    pub(super) fn take_dirty(&mut self) -> Option<Range<u64>> {
        let is_idle = |page: &&u64| self.pages.get(page).is_some_and(|page| page.writes == 0);
        let first = self.dirty.range(self.cursor..).chain(self.dirty.range(..self.cursor)).find(is_idle);
        let first = *first?;
        let run = self.dirty.range(first..first + RUN_PAGES_MAX).zip(first..).take_while(|(page, at)| {
            *page == at && self.pages.get(page).is_some_and(|page| page.writes == 0)
        });
        let end = first + run.count() as u64;
        self.cursor = end;
        for page in first..end {
            self.dirty.remove(&page);
            self.pages.get_mut(&page).expect("a dirty page is here").writes += 1;
        }
        Some(first..end)
    }

    /// Pages are about to be written, whether dirty or not.
    pub(super) fn writing(&mut self, pages: Range<u64>) {
        for page in pages {
            self.dirty.remove(&page);
            self.pages.get_mut(&page).expect("a page that is written is here").writes += 1;
        }
    }

    pub(super) fn written(&mut self, pages: Range<u64>) {
        for page in pages {
            if let Some(page) = self.pages.get_mut(&page) {
                page.writes = page.writes.saturating_sub(1);
            }
        }
    }

    /// Drops pages that nothing needs, until few enough are left.
    fn evict(&mut self) {
        for _ in 0..LOOKS_MAX {
            if self.pages.len() < CACHE_PAGES_MAX {
                return;
            }
            let Some(number) = self.clock.pop_front() else { return };
            let page = self.pages.get_mut(&number).expect("pages on the clock are here");
            let stays = page.pins > 0 || page.writes > 0 || page.is_loading || self.dirty.contains(&number);
            if stays || page.is_recent {
                page.is_recent = false;
                self.clock.push_back(number);
            } else {
                self.pages.remove(&number);
            }
        }
    }
}
