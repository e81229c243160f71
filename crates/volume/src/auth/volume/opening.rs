//! Opening a volume, claiming it for writes, closing it, and beginning again after the storage failed.
//!
//! A *session* begins with a claim: its number, never used before, and the writer are durable in the superblock before the
//! first context with that number is written. It ends with the volume closed, or without. After a failure this module
//! reads everything again, as after a crash; the next write begins another session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foldhash::HashSet;

use super::super::ahead::Ahead;
use super::super::batch::Entry;
use super::super::context::ContextPage;
use super::super::journal;
use super::super::map::Groups;
use super::super::{BLOCK_BYTES, Layout, OPERATION_BYTES_MAX, PAGE_BYTES, Superblock, Unit};
use super::super::{cache::Cache, context::SESSION_MAX};
use super::ledger::{LedgerReading, Next, Restore};
use super::round::Check;
use super::{Context, Failure, Outcome, Purpose, RequestId, Todo, Volume};

pub(super) enum Phase<E> {
    /// Reads both copies of the superblock.
    Superblock,
    /// Reads the ledger.
    Ledger(LedgerReading),
    Map,
    Recovery(Recovery),
    /// Brings ledger and storage to one state.
    Restore(Restore),
    /// Open, not claimed: nothing was written yet.
    Reading,
    /// The superblock of a new session is being made durable.
    Claim,
    /// Open and claimed.
    Ready,
    /// The superblock of a closed volume is being made durable.
    Unclaim,
    /// Operations under way end; then the volume is opened again.
    Draining,
    Failed(Failure<E>),
    Foreign,
}

/// Writes the batches of the journal again that a crash may have torn: the last one and the one before.
pub(super) struct Recovery {
    step: Step,
    /// Bytes read in this step, by offset.
    read: BTreeMap<u64, Vec<u8>>,
    pieces: VecDeque<Piece>,
    /// Blocks that are written again, or of which a later version is.
    seen: HashSet<u64>,
    /// Of the piece under way: blocks that verify.
    found: Vec<(u64, Context, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// What the journal holds may be in the cache of the storage only; in its place a block must not be written from it
    /// then.
    FirstBarrier,
    Headers,
    Data,
    Pages,
    Writes,
    Barrier,
}

/// The entries of a page of a header.
struct Piece {
    half: u64,
    /// Index of the first entry in its half.
    first: u64,
    entries: Vec<(u64, Context)>,
}

impl<E: Clone> Volume<E> {
    pub(super) fn begin_opening(&mut self) {
        self.phase = Phase::Superblock;
        self.read_for_opening(self.layout.superblock(0), 2 * PAGE_BYTES);
    }

    pub(super) fn read_for_opening(&mut self, offset: u64, length: usize) {
        for at in (0..length).step_by(OPERATION_BYTES_MAX) {
            let length = (length - at).min(OPERATION_BYTES_MAX);
            let offset = offset + at as u64;
            self.enqueue(Purpose::Opening { offset }, Todo::Read { offset, length });
        }
    }

    /// Whether an operation of the step under way is not done.
    pub(super) fn has_operations(&self) -> bool {
        !self.in_flight.is_empty() || !self.queued.is_empty()
    }

    pub(super) fn on_opening(&mut self, offset: u64, outcome: Outcome<E>) {
        let bytes = match outcome {
            Outcome::Failed(error) => return self.fail_opening(Failure::Storage(error)),
            Outcome::Read(bytes) => bytes,
            Outcome::Done => Vec::new(),
        };
        match &mut self.phase {
            Phase::Superblock => self.on_superblock(&bytes),
            Phase::Ledger(_) => self.on_ledger_read(offset, bytes),
            Phase::Restore(_) => self.on_restore_read(offset, bytes),
            Phase::Map => {
                let first = (offset - self.layout.map_offset(0)) / PAGE_BYTES as u64;
                for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE_BYTES)) {
                    if self.initialised.parse_page(&self.epoch, page, bytes).is_err() {
                        return self.fail_opening(Failure::Damaged);
                    }
                    if !self.allows_map_page(page, bytes) {
                        return self.fail_opening(Failure::OldVolume);
                    }
                }
                if !self.has_operations() {
                    self.on_map();
                }
            }
            Phase::Recovery(recovery) => {
                recovery.read.insert(offset, bytes);
                if !self.has_operations() {
                    self.on_recovery();
                }
            }
            _ => {}
        }
    }

    fn on_superblock(&mut self, bytes: &[u8]) {
        let copies = [&bytes[..PAGE_BYTES], &bytes[PAGE_BYTES..]];
        let Some(mut superblock) = Superblock::latest(&self.keys, copies) else {
            return self.fail_opening(Failure::Damaged);
        };
        let layout =
            Layout::new(self.layout.cipher, self.layout.unit, self.layout.segment, superblock.capacity);
        let Ok(layout) = layout else { return self.fail_opening(Failure::Damaged) };
        if superblock.blocks == 0 || superblock.blocks > superblock.capacity {
            return self.fail_opening(Failure::Damaged);
        }
        if layout.data_offset(superblock.blocks) > self.storage_bytes {
            return self.fail_opening(Failure::Truncated);
        }
        superblock.note_unclean();
        self.epoch = self.keys.of_epoch(&layout, superblock.epoch);
        self.layout = layout;
        self.superblock = superblock;
        self.initialised = Groups::new(layout.groups());
        self.pending.clear();
        if self.ledger.is_some() {
            return self.begin_ledger();
        }
        self.begin_map();
    }

    pub(super) fn begin_map(&mut self) {
        self.phase = Phase::Map;
        self.read_for_opening(self.layout.map_offset(0), self.layout.map_pages() as usize * PAGE_BYTES);
    }

    fn on_map(&mut self) {
        // With a ledger, a batch of the journal is in its place durably unless its round was not committed.
        let is_done = self.ledger.as_ref().is_some_and(|ledger| ledger.pending.is_none());
        if self.layout.unit == Unit::Bytes4096 || self.superblock.is_closed || is_done {
            return self.begin_restore();
        }
        self.phase = Phase::Recovery(Recovery {
            step: Step::FirstBarrier,
            read: BTreeMap::new(),
            pieces: VecDeque::new(),
            seen: HashSet::default(),
            found: Vec::new(),
        });
        if self.is_read_only {
            // Nothing is written, so nothing has to be durable first.
            return self.on_recovery();
        }
        self.enqueue(Purpose::Opening { offset: 0 }, Todo::Barrier);
    }

    pub(super) fn on_open(&mut self) {
        self.phase = Phase::Reading;
        self.retry_stalled();
    }

    /// Fails the requests that wait. There are no changes in memory: nothing is claimed.
    pub(super) fn fail_opening(&mut self, failure: Failure<E>) {
        let mut flushes = std::mem::take(&mut self.flushes);
        flushes.append(&mut self.closings);
        self.forget();
        for id in flushes {
            self.complete(id, Err(failure.clone()));
        }
        self.phase = Phase::Failed(failure);
    }

    fn on_recovery(&mut self) {
        let Phase::Recovery(mut recovery) = std::mem::replace(&mut self.phase, Phase::Map) else {
            unreachable!("a recovery is under way");
        };
        loop {
            match recovery.step {
                Step::FirstBarrier => {
                    recovery.step = Step::Headers;
                    recovery.read.clear();
                    for half in 0..2 {
                        let offset = self.layout.journal_page_offset(half, 0);
                        self.read_for_opening(offset, self.layout.journal_pages() as usize * PAGE_BYTES);
                    }
                }
                Step::Headers => {
                    recovery.pieces = self.pieces(&recovery.read);
                    recovery.step = Step::Writes;
                }
                Step::Data => {
                    self.verify_entries(&mut recovery);
                    recovery.read.clear();
                    if self.is_read_only {
                        self.hold_entries(&mut recovery);
                        recovery.step = Step::Writes;
                    } else if self.ledger.is_some() {
                        self.write_data(&mut recovery);
                        recovery.step = Step::Writes;
                    } else {
                        let pages: BTreeSet<u64> =
                            recovery.found.iter().map(|(block, ..)| self.layout.page_of(*block)).collect();
                        for page in pages {
                            self.read_for_opening(self.layout.page_offset(page), PAGE_BYTES);
                        }
                        recovery.step = Step::Pages;
                    }
                }
                Step::Pages => {
                    self.write_entries(&mut recovery);
                    recovery.step = Step::Writes;
                }
                Step::Writes => {
                    recovery.read.clear();
                    if let Some(piece) = recovery.pieces.front() {
                        recovery.step = Step::Data;
                        let offset = self.layout.journal_data_offset(piece.half, piece.first);
                        self.read_for_opening(offset, piece.entries.len() * BLOCK_BYTES);
                    } else if self.is_read_only {
                        return self.begin_restore();
                    } else {
                        recovery.step = Step::Barrier;
                        self.enqueue(Purpose::Opening { offset: 0 }, Todo::Barrier);
                    }
                }
                Step::Barrier => return self.begin_restore(),
            }
            if self.has_operations() {
                self.phase = Phase::Recovery(recovery);
                return;
            }
        }
    }

    /// The entries to consider, of the last batch first. The batch before the last but one is durable in its place:
    /// the last one was written after the barrier that made it so.
    fn pieces(&self, read: &BTreeMap<u64, Vec<u8>>) -> VecDeque<Piece> {
        let (cipher, superblock) = (self.layout.cipher, &self.superblock);
        let mut pages = Vec::new();
        for half in 0..2 {
            let start = self.layout.journal_page_offset(half, 0);
            let end = self.layout.journal_page_offset(half, self.layout.journal_pages());
            for (offset, bytes) in read.range(start..end) {
                let offsets = (*offset..).step_by(PAGE_BYTES);
                for (offset, bytes) in offsets.zip(bytes.chunks_exact(PAGE_BYTES)) {
                    let Some(page) = journal::parse(cipher, &self.epoch, offset, bytes) else { continue };
                    if page.session == superblock.session && page.batch >= superblock.journal_from {
                        let index = (offset - start) / PAGE_BYTES as u64;
                        pages.push((half, index * cipher.entries_per_page() as u64, page));
                    }
                }
            }
        }
        match self.ledger.as_ref().and_then(|ledger| ledger.pending.as_ref()) {
            // The batches before are in their place durably. The provider may return them.
            Some(log) => pages.retain(|(.., page)| (page.session, page.batch) == (log.session, log.batch)),
            None => {
                let last = pages.iter().map(|(.., page)| page.batch).max().unwrap_or(0);
                pages.retain(|(.., page)| page.batch + 1 >= last);
            }
        }
        pages.sort_by_key(|(.., page)| std::cmp::Reverse(page.batch));
        let pieces = pages.into_iter().map(|(half, first, page)| {
            let room = self.layout.journal_blocks().saturating_sub(first) as usize;
            Piece { half, first, entries: page.entries.into_iter().take(room).collect() }
        });
        pieces.collect()
    }

    fn verify_entries(&self, recovery: &mut Recovery) {
        let piece = recovery.pieces.pop_front().expect("a piece is under way");
        let sealer = self.sealer();
        let data = recovery.read.values().flat_map(|bytes| bytes.chunks_exact(BLOCK_BYTES));
        let mut opened = vec![0; BLOCK_BYTES];
        recovery.found.clear();
        for ((block, context), data) in piece.entries.iter().zip(data) {
            let exists =
                *block < self.superblock.blocks && self.initialised.contains(self.layout.group_of(*block));
            if !exists || recovery.seen.contains(block) {
                continue;
            }
            opened.copy_from_slice(data);
            if sealer.open(*block, context, &mut opened).is_ok() {
                recovery.seen.insert(*block);
                recovery.found.push((*block, *context, data.to_vec()));
            }
        }
    }

    /// A volume that is open for reading only keeps what it would write: both halves of the journal fit into the pool.
    fn hold_entries(&mut self, recovery: &mut Recovery) {
        for (block, context, bytes) in recovery.found.drain(..) {
            let slot = self.pool.take(1).expect("room for both halves of the journal").start;
            self.open.entries.insert(block, Entry { slot, context, base: None });
            self.enqueue(Purpose::Opening { offset: 0 }, Todo::Fill { slot, bytes });
        }
    }

    /// With a ledger, contexts follow from the data.
    fn write_data(&mut self, recovery: &mut Recovery) {
        for (block, _, bytes) in recovery.found.drain(..) {
            let offset = self.layout.data_offset(block);
            self.enqueue(Purpose::Opening { offset }, Todo::Bytes { offset, bytes });
        }
    }

    fn write_entries(&mut self, recovery: &mut Recovery) {
        let cipher = self.layout.cipher;
        let mut pages = BTreeMap::new();
        for (offset, bytes) in std::mem::take(&mut recovery.read) {
            let page = (offset - self.layout.page_offset(0)) / PAGE_BYTES as u64;
            let bytes = bytes.first_chunk().expect("a page was read");
            pages.insert(page, ContextPage::parse(cipher, &self.epoch, page, bytes));
        }
        for (block, context, data) in recovery.found.drain(..) {
            let contexts = pages.get_mut(&self.layout.page_of(block)).expect("the page was read");
            contexts.set_only(cipher, self.layout.index_in_page(block), &context);
            let offset = self.layout.data_offset(block);
            self.enqueue(Purpose::Opening { offset }, Todo::Bytes { offset, bytes: data });
        }
        for (page, contexts) in pages {
            let (offset, bytes) = (self.layout.page_offset(page), contexts.bytes().to_vec());
            self.enqueue(Purpose::Opening { offset }, Todo::Bytes { offset, bytes });
        }
    }

    pub(super) fn write_superblock(&mut self, purpose: Purpose) {
        self.superblock.sequence += 1;
        let offset = self.layout.superblock((self.superblock.sequence + 1) % 2);
        let mut bytes = self.superblock.emit(&self.keys).to_vec();
        bytes.resize(PAGE_BYTES, 0);
        self.enqueue(purpose, Todo::Bytes { offset, bytes });
    }

    /// For a round that discards where there is a journal: batches before `batch` are done with.
    pub(super) fn retire_journal(&mut self, batch: u64, purpose: Purpose) {
        self.superblock.journal_from = batch;
        self.write_superblock(purpose);
    }

    /// Looks at the superblock once more before the claim: another writer may have used the volume since it was opened here.
    pub(super) fn begin_claim(&mut self) {
        self.phase = Phase::Claim;
        self.look(Purpose::BeforeClaim);
    }

    pub(super) fn look(&mut self, purpose: Purpose) {
        let todo = Todo::Read { offset: self.layout.superblock(0), length: 2 * PAGE_BYTES };
        self.enqueue(purpose, todo);
    }

    /// Claims the volume if what memory knows of it is still so; else opens it again first. Nothing of ours waits in memory.
    pub(super) fn on_before_claim(&mut self, outcome: Outcome<E>) {
        let bytes = match outcome {
            Outcome::Read(bytes) => bytes,
            failed => return self.on_claim(false, failed),
        };
        let state = |superblock: &Superblock| (superblock.sequence, superblock.session, superblock.writer);
        match Superblock::latest(&self.keys, [&bytes[..PAGE_BYTES], &bytes[PAGE_BYTES..]]) {
            Some(latest) if state(&latest) == state(&self.superblock) => self.claim(),
            Some(_) => {
                self.forget();
                self.phase = Phase::Draining;
            }
            None => self.fail_opening(Failure::Damaged),
        }
    }

    fn claim(&mut self) {
        if self.superblock.session >= SESSION_MAX {
            return self.fail_opening(Failure::Exhausted);
        }
        self.superblock.session += 1;
        self.superblock.is_closed = false;
        self.superblock.writer = self.writer;
        self.superblock.journal_from = 0;
        self.journal_batch = 0;
        if self.ledger.is_some() {
            return self.note(Next::Claim);
        }
        self.write_superblock(Purpose::Claim { is_barrier: false });
    }

    pub(super) fn on_claim(&mut self, is_barrier: bool, outcome: Outcome<E>) {
        match outcome {
            // A barrier reports once that the storage lost its cache earlier: a flush passes that on, the write goes on.
            Outcome::Failed(error) if !self.is_claim_repeated => {
                self.is_claim_repeated = true;
                self.fail(&Failure::Storage(error));
            }
            Outcome::Failed(error) => {
                self.is_claim_repeated = false;
                self.fail_opening(Failure::Storage(error));
            }
            _ if is_barrier => {
                self.is_claim_repeated = false;
                self.phase = Phase::Ready;
                self.retry_stalled();
            }
            _ => self.enqueue(Purpose::Claim { is_barrier: true }, Todo::Barrier),
        }
    }

    pub(super) fn begin_unclaim(&mut self) {
        self.phase = Phase::Unclaim;
        // Generations given out before belong to the session that ends.
        self.incarnation += 1;
        self.superblock.is_closed = true;
        self.write_superblock(Purpose::Unclaim { is_barrier: false });
    }

    pub(super) fn on_unclaim(&mut self, is_barrier: bool, outcome: Outcome<E>) {
        match outcome {
            Outcome::Failed(error) => {
                for id in std::mem::take(&mut self.closings) {
                    self.complete(id, Err(Failure::Storage(error.clone())));
                }
                self.fail_opening(Failure::Storage(error));
            }
            _ if is_barrier && self.ledger.is_some() => self.note(Next::Closed),
            _ if is_barrier => self.on_closed(),
            _ => self.enqueue(Purpose::Unclaim { is_barrier: true }, Todo::Barrier),
        }
    }

    /// The request to close completes as flushes do while nothing is claimed.
    pub(super) fn on_closed(&mut self) {
        self.phase = Phase::Reading;
        self.retry_stalled();
    }

    /// Another writer's claim is seen here, and whether the superblock is still readable: before a round writes, so that it
    /// writes nothing over the other's, and before a flush completes.
    pub(super) fn on_check(&mut self, is_before: bool, outcome: Outcome<E>) {
        let bytes = match outcome {
            Outcome::Read(bytes) => bytes,
            Outcome::Failed(error) => return self.fail(&Failure::Storage(error)),
            Outcome::Done => unreachable!("a read ends with its bytes"),
        };
        let copies = [&bytes[..PAGE_BYTES], &bytes[PAGE_BYTES..]];
        match Superblock::latest(&self.keys, copies) {
            Some(superblock) if superblock.writer == self.writer && is_before => self.check = Check::Passed,
            Some(superblock) if superblock.writer == self.writer => self.on_round_step(),
            Some(_) => {
                self.fail(&Failure::Foreign);
                self.phase = Phase::Foreign;
            }
            None => self.fail(&Failure::Damaged),
        }
    }

    /// A write or barrier failed: whatever completed since the last barrier may be lost. Flushes that wait fail, or the
    /// next one.
    pub(super) fn fail(&mut self, failure: &Failure<E>) {
        let mut flushes = std::mem::take(&mut self.flushes);
        flushes.append(&mut self.closings);
        flushes.extend(self.round.iter_mut().flat_map(|round| std::mem::take(&mut round.flushes)));
        self.forget();
        self.phase = Phase::Draining;
        if flushes.is_empty() {
            self.lost = Some(failure.clone());
        }
        for id in flushes {
            self.complete(id, Err(failure.clone()));
        }
    }

    /// Drops what memory knows of the storage, and what waits to be written.
    fn forget(&mut self) {
        self.incarnation += 1;
        self.queued.clear();
        self.writebacks = 0;
        let rounds = self.round.take().map(|round| round.batch);
        for batch in rounds.into_iter().chain([std::mem::take(&mut self.open)]) {
            for entry in batch.entries.values() {
                self.pool.release(entry.slot);
            }
        }
        self.cache = Cache::default();
        self.ahead = Ahead::default();
        self.late.clear();
        self.pending.clear();
        self.check = Check::No;
        self.is_undurable = false;
        self.wants_round = false;
        self.restart_requests();
    }

    /// Opens again once nothing is in flight any more.
    pub(super) fn finish_draining(&mut self) {
        if matches!(self.phase, Phase::Draining) && self.in_flight.is_empty() {
            self.begin_opening();
        }
    }

    pub(super) fn begin_flush(&mut self, id: RequestId) {
        match self.lost.take() {
            Some(failure) => self.complete(id, Err(failure)),
            None if self.requests[&id].is_close() => self.closings.push(id),
            None => self.flushes.push(id),
        }
    }
}
