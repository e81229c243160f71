//! Rounds: the batch that is open is written around a barrier (docs/VOLUME.md, "Order of writes").
//!
//! *Before* the barrier: data of blocks that are unwritten in storage, pages of groups whose bit is not set, and the new
//! contexts of overwritten blocks (unit 4096) or the journal (unit 512). *After* it: contexts of the former, bits of the
//! map, and the data of overwritten blocks; discards. A second barrier ends the round if a flush waits for it; otherwise
//! the barrier of the next round makes these writes durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use foldhash::HashSet;

use super::super::batch::{Batch, Entry};
use super::super::cache::RUN_PAGES_MAX;
use super::super::context::Pair;
use super::super::layout::PAGES_PER_GROUP;
use super::super::{DISCARDS_MAX, FRESH_BLOCKS_MAX, OPERATION_BYTES_MAX, PAGE_BYTES, Unit, journal};
use super::ledger::RoundLog;
use super::opening::Phase;
use super::{Context, Purpose, RequestId, Todo, Volume};

/// Whether the volume was looked at for another writer before a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    No,
    UnderWay,
    Passed,
}

pub(super) struct Round {
    pub(super) batch: Batch,
    pub(super) step: Step,
    /// Operations of the step that are not done.
    pub(super) left: usize,
    /// Groups whose bit this round sets.
    pub(super) setting: HashSet<u64>,
    /// Overwritten blocks, in ascending order.
    overwritten: Vec<(u64, Entry)>,
    /// Number in the journal, if this round has entries there.
    pub(super) journal_batch: Option<u64>,
    pub(super) log: Option<RoundLog>,
    /// Requests that the end of this round completes.
    pub(super) flushes: Vec<RequestId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The ledger's log.
    Log,
    LogSync,
    Before,
    Barrier,
    After,
    LastBarrier,
    /// The ledger's tags.
    Commit,
    CommitSync,
}

/// A write of successive blocks from successive slots.
#[derive(Default)]
struct SlotRuns(Vec<(u64, Range<u32>)>);

impl SlotRuns {
    /// `offset` is where the slot goes; ascending.
    fn add(&mut self, offset: u64, slot: u32) {
        if let Some((start, slots)) = self.0.last_mut()
            && slots.end == slot
            && offset == *start + u64::from(slots.end - slots.start) * PAGE_BYTES as u64
        {
            slots.end += 1;
        } else {
            self.0.push((offset, slot..slot + 1));
        }
    }
}

impl<E: Clone> Volume<E> {
    /// Whether something is not durable.
    fn has_changes(&self) -> bool {
        !self.open.is_empty() || !self.pending.is_empty() || self.is_undurable
    }

    /// Whether a round should start as soon as it can.
    pub(super) fn needs_round(&self) -> bool {
        let open = &self.open;
        let is_wanted = self.wants_round
            || !self.flushes.is_empty()
            || (!self.closings.is_empty() && self.turns.is_empty());
        (is_wanted && self.has_changes())
            || open.entries.len() >= self.layout.batch_blocks_max()
            || open.pages.len() >= self.batch_pages_max()
            || open.fresh.len() >= FRESH_BLOCKS_MAX
            || open.fresh_pages.len() >= self.fresh_pages_max()
            || open.discards.len() >= DISCARDS_MAX
            || self.pending.len() >= self.pending_groups_max()
    }

    /// Starts a round if one is needed and possible; completes flushes that have nothing to wait for.
    pub(super) fn start_round(&mut self) {
        let is_ready = matches!(self.phase, Phase::Ready) && self.round.is_none();
        let is_clean = matches!(self.phase, Phase::Reading) || (is_ready && !self.has_changes());
        if is_clean {
            for id in std::mem::take(&mut self.flushes) {
                self.complete(id, Ok(()));
            }
            self.close();
        } else if is_ready && self.needs_round() && self.writebacks == 0 {
            match self.check {
                Check::No => {
                    self.check = Check::UnderWay;
                    self.look(Purpose::Check { is_before: true });
                }
                Check::UnderWay => {}
                Check::Passed => {
                    self.check = Check::No;
                    self.begin_round();
                }
            }
        }
    }

    fn begin_round(&mut self) {
        self.rounds += 1;
        let mut batch = std::mem::take(&mut self.open);
        self.open.reserved = std::mem::take(&mut batch.reserved);
        let setting = std::mem::take(&mut self.pending);
        for group in &setting {
            self.initialised.insert(*group);
        }
        let mut round = Round {
            batch,
            step: Step::Before,
            left: 0,
            setting,
            overwritten: Vec::new(),
            journal_batch: None,
            log: None,
            flushes: Vec::new(),
        };
        let mut slots = SlotRuns::default();
        let mut pages = BTreeSet::new();
        let mut before = BTreeMap::new();
        self.images_before(&round.batch, &round.setting, false, &mut before);
        let moved = self.classify(&mut round, &mut slots, &mut pages);
        if moved.is_empty() {
            round.flushes = std::mem::take(&mut self.flushes);
        }
        for (block, entry) in moved {
            self.enter(block, entry);
        }
        self.images_before(&round.batch, &round.setting, true, &mut before);
        let queued = self.queued.len();
        if self.layout.unit == Unit::Bytes512 && !round.overwritten.is_empty() {
            self.write_journal(&mut round, &mut slots);
        }
        self.round = Some(round);
        while let Some(pages) = self.cache.take_dirty() {
            self.note_tags(pages.clone());
            self.enqueue_round(pages.clone(), Todo::Pages(pages));
        }
        self.write_pages(&pages);
        self.write_slots(slots);
        let deferred = self.queued.split_off(queued);
        self.begin_log(&before, deferred);
        self.next_step();
        // What waited for room in a batch has that of the next one.
        self.retry_stalled();
    }

    /// Queues what the round has for the storage before its barrier.
    pub(super) fn begin_before(&mut self, operations: VecDeque<(Purpose, Todo)>) {
        let round = self.round.as_mut().expect("a round is under way");
        (round.step, round.left) = (Step::Before, operations.len());
        self.queued.extend(operations);
    }

    /// Decides for each entry what is written before the barrier. Removes and returns those that cannot be written in this
    /// round: of blocks both of whose slots may be needed until the barrier.
    fn classify(
        &mut self,
        round: &mut Round,
        slots: &mut SlotRuns,
        pages: &mut BTreeSet<u64>,
    ) -> Vec<(u64, Entry)> {
        let cipher = self.layout.cipher;
        let mut moved = Vec::new();
        for (block, entry) in &round.batch.entries {
            let (block, entry) = (*block, *entry);
            let (page, index) = (self.layout.page_of(block), self.layout.index_in_page(block));
            let contexts = self.cache.peek(page).expect("a page of a batch is pinned");
            let is_unwritten = contexts.versions(cipher, index) == Pair::Unwritten;
            if round.setting.contains(&self.layout.group_of(block)) {
                self.cache.pinned(page).set_only(cipher, index, &entry.context);
                self.cache.set_dirty(page);
                slots.add(self.layout.data_offset(block), entry.slot);
            } else if is_unwritten {
                round.batch.fresh.insert(block, entry.context);
                slots.add(self.layout.data_offset(block), entry.slot);
            } else if self.late.binary_search(&block).is_ok() {
                moved.push((block, entry));
            } else {
                if self.layout.unit == Unit::Bytes4096 {
                    self.cache.pinned(page).set_beside(cipher, index, &entry.context, entry.base);
                    pages.insert(page);
                }
                round.overwritten.push((block, entry));
            }
        }
        for (block, _) in &moved {
            round.batch.entries.remove(block);
        }
        moved
    }

    /// Queues the writes of a half of the journal.
    fn write_journal(&mut self, round: &mut Round, slots: &mut SlotRuns) {
        let (cipher, batch) = (self.layout.cipher, self.journal_batch);
        self.journal_batch += 1;
        round.journal_batch = Some(batch);
        let half = batch % 2;
        let contexts: Vec<(u64, Context)> =
            round.overwritten.iter().map(|(block, entry)| (*block, entry.context)).collect();
        let stamp = (self.superblock.session, batch);
        let mut bytes = Vec::new();
        let mut offset = self.layout.journal_page_offset(half, 0);
        let mut writes = Vec::new();
        for (page, entries) in (0..).zip(contexts.chunks(cipher.entries_per_page())) {
            let place = self.layout.journal_page_offset(half, page);
            bytes.extend(journal::emit(cipher, &self.epoch, place, stamp, entries));
            if bytes.len() >= OPERATION_BYTES_MAX {
                writes.push((offset, std::mem::take(&mut bytes)));
                offset = place + PAGE_BYTES as u64;
            }
        }
        if !bytes.is_empty() {
            writes.push((offset, bytes));
        }
        for (offset, bytes) in writes {
            round.left += 1;
            self.enqueue(Purpose::Round(0..0), Todo::Bytes { offset, bytes });
        }
        for (index, (_, entry)) in (0..).zip(&round.overwritten) {
            slots.add(self.layout.journal_data_offset(half, index), entry.slot);
        }
    }

    pub(super) fn enqueue_round(&mut self, pages: Range<u64>, todo: Todo) {
        self.round.as_mut().expect("a round is under way").left += 1;
        self.enqueue(Purpose::Round(pages), todo);
    }

    fn write_slots(&mut self, slots: SlotRuns) {
        for (offset, slots) in slots.0 {
            self.enqueue_round(0..0, Todo::Slots { offset, slots });
        }
    }

    /// Queues the writes of pages that no other operation is writing.
    fn write_pages(&mut self, pages: &BTreeSet<u64>) {
        let mut pages = pages.iter().copied().peekable();
        while let Some(first) = pages.next() {
            let mut end = first + 1;
            while end - first < RUN_PAGES_MAX && pages.next_if_eq(&end).is_some() {
                end += 1;
            }
            self.cache.writing(first..end);
            self.enqueue_round(first..end, Todo::Pages(first..end));
        }
    }

    /// An operation of the round is done.
    pub(super) fn on_round_step(&mut self) {
        let round = self.round.as_mut().expect("a round is under way");
        round.left -= 1;
        self.next_step();
    }

    fn next_step(&mut self) {
        while let Some(round) = &mut self.round
            && round.left == 0
        {
            match round.step {
                Step::Log => {
                    round.step = Step::LogSync;
                    self.enqueue_round(0..0, Todo::SyncLedger);
                }
                Step::LogSync => {
                    let log = round.log.as_mut().expect("a log was written");
                    let deferred = std::mem::take(&mut log.deferred);
                    self.begin_before(deferred);
                }
                Step::Before => {
                    round.step = Step::Barrier;
                    self.enqueue_round(0..0, Todo::Barrier);
                }
                Step::Barrier => {
                    round.step = Step::After;
                    self.is_undurable = false;
                    self.late.clear();
                    self.write_after();
                }
                Step::After if self.is_undurable && (round.needs_last_barrier() || round.log.is_some()) => {
                    round.step = Step::LastBarrier;
                    self.enqueue_round(0..0, Todo::Barrier);
                }
                Step::After => self.commit_round(),
                Step::LastBarrier => {
                    self.is_undurable = false;
                    self.commit_round();
                }
                Step::Commit => {
                    round.step = Step::CommitSync;
                    self.enqueue_round(0..0, Todo::SyncLedger);
                }
                Step::CommitSync => self.end_round(),
            }
        }
    }

    /// Queues the writes after the barrier.
    fn write_after(&mut self) {
        let cipher = self.layout.cipher;
        let round = self.round.take().expect("a round is under way");
        let (mut pages, mut map_pages) = (BTreeSet::new(), BTreeSet::new());
        let mut slots = SlotRuns::default();
        for (block, context) in round.contexts_after(self.layout.unit) {
            let (page, index) = (self.layout.page_of(block), self.layout.index_in_page(block));
            self.cache.pinned(page).set_only(cipher, index, &context);
            pages.insert(page);
        }
        for (block, entry) in &round.overwritten {
            slots.add(self.layout.data_offset(*block), entry.slot);
        }
        for range in &round.batch.discards {
            self.discard_in_storage(range, &mut pages, &mut map_pages);
        }
        let set = round.setting.iter().filter(|group| self.initialised.contains(**group));
        map_pages.extend(set.map(|group| self.layout.map_page_of(*group)));
        let retired = (self.layout.unit == Unit::Bytes512 && !round.batch.discards.is_empty())
            .then(|| round.journal_batch.unwrap_or(self.journal_batch));
        let is_checked = !round.flushes.is_empty();
        self.round = Some(round);
        self.write_pages(&pages);
        self.write_slots(slots);
        for page in map_pages {
            self.enqueue_round(0..0, Todo::MapPage(page));
        }
        if let Some(batch) = retired {
            self.round.as_mut().expect("a round is under way").left += 1;
            self.retire_journal(batch, Purpose::Round(0..0));
        }
        self.is_undurable = self.round.as_ref().is_some_and(|round| round.left > 0);
        if is_checked {
            self.round.as_mut().expect("a round is under way").left += 1;
            self.look(Purpose::Check { is_before: false });
        }
    }

    /// Makes a range unwritten: whole groups by the map, the blocks of others by their contexts.
    fn discard_in_storage(
        &mut self,
        range: &Range<u64>,
        pages: &mut BTreeSet<u64>,
        map_pages: &mut BTreeSet<u64>,
    ) {
        let (head, whole, tail) = self.split_at_groups(range);
        for group in whole {
            if self.initialised.remove(group) {
                map_pages.insert(self.layout.map_page_of(group));
            }
        }
        for block in head.chain(tail) {
            let (page, index) = (self.layout.page_of(block), self.layout.index_in_page(block));
            // A page that is not here was created after the discard: the block is unwritten there.
            let is_written = self.pair(block).is_some_and(|pair| pair != Pair::Unwritten);
            if is_written && self.initialised.contains(page / PAGES_PER_GROUP) {
                self.cache.pinned(page).set_unwritten(self.layout.cipher, &self.epoch, page, index);
                pages.insert(page);
            }
        }
    }

    /// All that the round wrote is durable, or without a ledger will be.
    fn commit_round(&mut self) {
        if self.begin_commit() {
            self.round.as_mut().expect("a round is under way").step = Step::Commit;
        } else {
            self.end_round();
        }
    }

    fn end_round(&mut self) {
        let round = self.round.take().expect("a round is under way");
        for entry in round.batch.entries.values() {
            self.pool.release(entry.slot);
        }
        for page in round.batch.pages.iter().chain(&round.batch.fresh_pages) {
            self.cache.unpin(*page);
        }
        if self.is_undurable && self.layout.unit == Unit::Bytes4096 {
            self.late = round.overwritten.iter().map(|(block, _)| *block).collect();
        }
        for id in round.flushes {
            self.complete(id, Ok(()));
        }
        self.wants_round = false;
        self.retry_stalled();
    }

    /// Ends the session for requests that close the volume, once all is durable.
    fn close(&mut self) {
        if self.closings.is_empty() || !self.turns.is_empty() {
            return;
        }
        if matches!(self.phase, Phase::Ready) {
            self.begin_unclaim();
        } else {
            for id in std::mem::take(&mut self.closings) {
                self.complete(id, Ok(()));
            }
        }
    }
}

impl Round {
    /// Contexts that are the only ones of their blocks after the round.
    pub(super) fn contexts_after(&self, unit: Unit) -> impl Iterator<Item = (u64, Context)> {
        let journaled = self.overwritten.iter().filter(move |_| unit == Unit::Bytes512);
        let journaled = journaled.map(|(block, entry)| (*block, entry.context));
        journaled.chain(self.batch.fresh.iter().map(|(block, context)| (*block, *context)))
    }

    fn needs_last_barrier(&self) -> bool {
        !self.flushes.is_empty() || !self.batch.discards.is_empty()
    }
}
