//! Requests: from their turn on their blocks to their completion.

use std::ops::Range;

use foldhash::HashMap;

use super::super::batch::Entry;
use super::super::cache::RUN_PAGES_MAX;
use super::super::context::{ContextPage, Pair};
use super::super::layout::PAGES_PER_GROUP;
use super::super::{
    BLOCK_BYTES, DISCARDS_MAX, FRESH_BLOCKS_MAX, PAGE_BYTES, REQUEST_BYTES_MAX, SECTOR_BYTES,
};
use super::opening::Phase;
use super::{
    Action, Candidates, Context, Failure, Generation, Outcome, Place, Purpose, ReadError, Request, RequestId,
    Run, Source, State, Todo, Volume,
};

/// A request that is not complete.
pub(super) struct Active {
    request: Request,
    arrival: u64,
    stage: Stage,
    blocks: Range<u64>,
    has_turn: bool,
    /// Pages that this request pins.
    pins: Vec<u64>,
    /// Of the volume, when the caller was last given something to do.
    incarnation: u32,
    /// Rounds that had begun then.
    rounds: u64,
    is_fetched: bool,
    /// What the caller opens next may have been read before its contexts were known.
    is_early: bool,
    /// Slots that a read shares, or that a write has taken.
    slots: Vec<u32>,
    /// For each block of a write being sealed: where to, and the version that it follows.
    grants: Vec<(Place, Option<Generation>)>,
    /// Versions that the caller found in storage, of blocks with two candidates.
    resolved: HashMap<u64, Option<Generation>>,
    is_examined: bool,
    /// What the caller examines.
    examined: Vec<(u64, Source)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    /// Waits for its turn.
    Waiting,
    /// Has its turn; waits for pages, slots or a barrier, if it waits.
    Granted,
    /// With the caller.
    Out,
    Flushing,
}

/// What a write has to know of a block as it is before it.
#[derive(Clone, Copy)]
struct Present {
    is_written: bool,
    /// Which of two versions the storage has is not known.
    is_unclear: bool,
    /// The version that the next one follows.
    base: Option<Generation>,
}

impl Active {
    pub(super) fn is_close(&self) -> bool {
        self.request == Request::Close
    }

    /// Whether a write has only a part of the block.
    fn covers_in_part(&self, block: u64) -> bool {
        let Request::Write { offset, length } = self.request else { return false };
        let start = block * BLOCK_BYTES as u64;
        start < offset || offset + length < start + BLOCK_BYTES as u64
    }
}

impl<E: Clone> Volume<E> {
    /// Accepts a request; its number must not be in use.
    pub fn submit(&mut self, id: RequestId, request: Request) {
        self.arrivals += 1;
        let active = Active {
            request,
            arrival: self.arrivals,
            stage: Stage::New,
            blocks: 0..0,
            has_turn: false,
            pins: Vec::new(),
            incarnation: self.incarnation,
            rounds: self.rounds,
            is_fetched: false,
            is_early: false,
            slots: Vec::new(),
            grants: Vec::new(),
            resolved: HashMap::default(),
            is_examined: false,
            examined: Vec::new(),
        };
        let replaced = self.requests.insert(id, active);
        assert!(replaced.is_none(), "the number of a request is in use");
        if matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Draining;
        }
        self.ready.push_back(id);
    }

    /// The caller opened the blocks of a read, or failed to.
    pub fn opened(&mut self, id: RequestId, result: Result<(), ReadError<E>>) {
        let is_current = self.take_back(id);
        let request = self.requests.get_mut(&id).expect("the request is active");
        let is_early = std::mem::take(&mut request.is_early);
        match result {
            Ok(()) => self.complete(id, Ok(())),
            // The contexts may have been those of writes that a lost cache undid, or the blocks those from before a round
            // that ended meanwhile, or from before a failure.
            Err(ReadError::Unverified { .. }) if !is_current || is_early => self.run_again(id),
            Err(ReadError::Unverified { block }) => self.complete(id, Err(Failure::Unverified { block })),
            Err(ReadError::Storage(error)) => self.complete(id, Err(Failure::Storage(error))),
        }
    }

    /// The caller read and opened the blocks of [`Action::Examine`]. For each the candidate that verifies: 0, or 1 for the
    /// other one; 0 also for blocks that need no check. `None`: none.
    pub fn examined(&mut self, id: RequestId, result: Result<Vec<Option<u8>>, E>) {
        let is_current = self.take_back(id);
        let found = match result {
            Err(error) => return self.complete(id, Err(Failure::Storage(error))),
            Ok(_) if !is_current => return self.run_again(id),
            Ok(found) => found,
        };
        let request = self.requests.get_mut(&id).expect("the request is active");
        let blocks = std::mem::take(&mut request.examined);
        assert_eq!(blocks.len(), found.len(), "a result for each block");
        for ((block, source), found) in blocks.into_iter().zip(found) {
            let version = match (source, found) {
                (Source::Stored(candidates), Some(0)) => Some(candidates.first.generation),
                (Source::Stored(candidates), Some(_)) => candidates.other.map(|other| other.generation),
                // Overwriting all of a block repairs it; a part of it cannot be kept.
                (Source::Stored(_) | Source::Held { .. } | Source::Invalid, None) => {
                    if self.requests[&id].covers_in_part(block) {
                        return self.complete(id, Err(Failure::Unverified { block }));
                    }
                    None
                }
                _ => continue,
            };
            let request = self.requests.get_mut(&id).expect("the request is active");
            request.resolved.insert(block, version);
        }
        self.requests.get_mut(&id).expect("the request is active").is_examined = true;
        self.ready.push_back(id);
    }

    /// The caller sealed the blocks of [`Action::Seal`], and wrote those that go to storage at once. The contexts are those
    /// that [`Sealer::seal`](super::super::Sealer::seal) returned, in order.
    pub fn sealed(&mut self, id: RequestId, result: Result<&[Context], E>) {
        let is_current = self.take_back(id);
        let request = self.requests.get_mut(&id).expect("the request is active");
        let (grants, blocks) = (std::mem::take(&mut request.grants), request.blocks.clone());
        // The request has its turn, so no other request has written these blocks; the version that they follow changes only
        // when a round begins, which turns entries that wait into what storage holds.
        let is_same_round = request.rounds == self.rounds;
        let taken = std::mem::take(&mut request.slots);
        if is_current {
            self.open.reserved -= taken.len();
        }
        let mut bases = grants.iter().zip(blocks.clone());
        let is_unchanged = |((place, base), block): (&(Place, Option<Generation>), u64)| {
            let source = || self.source(block).expect("its page is pinned");
            *place == Place::Storage || self.base(&self.requests[&id], block, source()) == *base
        };
        let holds = is_current && (is_same_round || bases.all(is_unchanged));
        match result {
            Ok(contexts) if holds => {
                assert_eq!(contexts.len(), grants.len(), "a context for each block");
                let mut last_page = None;
                for ((context, (place, base)), block) in contexts.iter().zip(grants).zip(blocks) {
                    match place {
                        Place::Storage => {
                            let page = self.layout.page_of(block);
                            let is_new_page = last_page.replace(page) != Some(page);
                            self.enter_fresh(block, *context, is_new_page);
                        }
                        Place::Slot(slot) => self.enter(block, Entry { slot, context: *context, base }),
                    }
                }
                self.complete(id, Ok(()));
            }
            Ok(_) => {
                taken.into_iter().for_each(|slot| self.pool.release(slot));
                self.run_again(id);
                self.retry_stalled();
            }
            Err(error) => {
                taken.into_iter().for_each(|slot| self.pool.release(slot));
                self.complete(id, Err(Failure::Storage(error)));
                self.retry_stalled();
            }
        }
    }

    /// Whether what the caller was given still holds.
    fn take_back(&mut self, id: RequestId) -> bool {
        let request = self.requests.get_mut(&id).expect("the request is active");
        assert_eq!(request.stage, Stage::Out, "the caller was asked for this");
        request.stage = Stage::Granted;
        request.incarnation == self.incarnation
    }

    fn run_again(&mut self, id: RequestId) {
        self.drop_slots(id);
        let request = self.requests.get_mut(&id).expect("the request is active");
        request.resolved.clear();
        request.is_examined = false;
        self.ready.push_back(id);
    }

    /// Releases the slots that a request shares; returns whether there were any.
    fn drop_slots(&mut self, id: RequestId) -> bool {
        let request = self.requests.get_mut(&id).expect("the request is active");
        let slots = std::mem::take(&mut request.slots);
        for slot in &slots {
            self.pool.release(*slot);
        }
        !slots.is_empty()
    }

    /// `is_new_page`: the block entered before it was of another page.
    fn enter_fresh(&mut self, block: u64, context: Context, is_new_page: bool) {
        let page = self.layout.page_of(block);
        if self.pending.contains(&self.layout.group_of(block)) {
            let index = self.layout.index_in_page(block);
            self.cache.pinned(page).set_only(self.layout.cipher, index, &context);
            if is_new_page {
                self.cache.set_dirty(page);
            }
        } else {
            self.open.fresh.insert(block, context);
            if self.open.fresh_pages.insert(page) {
                self.cache.pin(page);
            }
        }
    }

    pub(super) fn enter(&mut self, block: u64, entry: Entry) {
        let page = self.layout.page_of(block);
        if self.open.pages.insert(page) {
            self.cache.pin(page);
        }
        if let Some(replaced) = self.open.entries.insert(block, entry) {
            self.pool.release(replaced.slot);
        }
    }

    fn stall(&mut self, id: RequestId) {
        self.stalled.push_back(id);
    }

    /// Looks at all stalled requests again, in the order in which they arrived.
    pub(super) fn retry_stalled(&mut self) {
        self.ready.extend(std::mem::take(&mut self.stalled));
    }

    /// Makes all requests that are not with the caller start again: memory was forgotten.
    pub(super) fn restart_requests(&mut self) {
        self.stalled.clear();
        self.loading.clear();
        self.ready.clear();
        let mut ids = Vec::new();
        for (id, request) in &mut self.requests {
            request.pins.clear();
            if matches!(request.stage, Stage::New | Stage::Granted) {
                ids.push((request.arrival, *id));
                request.resolved.clear();
                request.is_examined = false;
            }
        }
        ids.sort_unstable();
        self.ready.extend(ids.into_iter().map(|(_, id)| id));
    }

    pub(super) fn complete(&mut self, id: RequestId, result: Result<(), Failure<E>>) {
        if self.drop_slots(id) {
            self.retry_stalled();
        }
        let request = self.requests.remove(&id).expect("the request is active");
        for page in request.pins {
            self.cache.unpin(page);
        }
        if request.has_turn {
            for id in self.turns.leave(id) {
                self.take_turn(id);
            }
        }
        self.actions.push_back(Action::Complete { id, result });
    }

    /// Takes the next step of a request that is not with the caller.
    pub(super) fn advance(&mut self, id: RequestId) {
        match &self.phase {
            Phase::Failed(failure) => {
                let failure = failure.clone();
                return self.complete(id, Err(failure));
            }
            Phase::Foreign => return self.complete(id, Err(Failure::Foreign)),
            _ if self.state() != State::Open => return self.stall(id),
            Phase::Draining => return self.stall(id),
            _ => {}
        }
        let request = self.requests.get_mut(&id).expect("the request is active");
        match (request.stage, request.request) {
            (Stage::New, _) => self.begin(id),
            (Stage::Granted, Request::Read { .. }) => self.advance_read(id),
            (Stage::Granted, Request::Write { .. }) => self.advance_write(id),
            (Stage::Granted, Request::Discard { .. }) => self.advance_discard(id),
            (stage, _) => unreachable!("the request waits for something else: {stage:?}"),
        }
    }

    fn begin(&mut self, id: RequestId) {
        let size_bytes = self.size_bytes();
        let request = self.requests.get_mut(&id).expect("the request is active");
        let (offset, length, length_max, unit) = match request.request {
            Request::Read { offset, length } | Request::Write { offset, length } => {
                (offset, length, REQUEST_BYTES_MAX, SECTOR_BYTES as u64)
            }
            Request::Discard { offset, length } => (offset, length, u64::MAX, BLOCK_BYTES as u64),
            Request::Flush | Request::Close => {
                request.stage = Stage::Flushing;
                return self.begin_flush(id);
            }
        };
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= size_bytes);
        let is_aligned = offset.is_multiple_of(unit) && length.is_multiple_of(unit);
        if !is_inside || !is_aligned || length == 0 || length > length_max {
            return self.complete(id, Err(Failure::OutOfRange));
        }
        let is_write = !matches!(request.request, Request::Read { .. });
        if is_write && self.is_read_only {
            return self.complete(id, Err(Failure::ReadOnly));
        }
        request.blocks = offset / BLOCK_BYTES as u64..(offset + length).div_ceil(BLOCK_BYTES as u64);
        request.stage = Stage::Waiting;
        if self.turns.enter(id, request.blocks.clone(), is_write) {
            self.take_turn(id);
        }
    }

    fn take_turn(&mut self, id: RequestId) {
        let request = self.requests.get_mut(&id).expect("the request is active");
        request.stage = Stage::Granted;
        request.has_turn = true;
        self.ready.push_back(id);
    }

    fn blocks(&self, id: RequestId) -> Range<u64> {
        self.requests[&id].blocks.clone()
    }

    fn advance_read(&mut self, id: RequestId) {
        let blocks = self.blocks(id);
        if !self.pin_pages(id, blocks.clone()) {
            self.loading.push(id);
            let request = self.requests.get_mut(&id).expect("the request is active");
            if !std::mem::replace(&mut request.is_fetched, true) {
                request.is_early = true;
                self.actions.push_back(Action::Fetch { id });
            }
            return;
        }
        let sources = self.sources(blocks);
        self.share(id, sources.iter());
        self.send_out(id);
        self.actions.push_back(Action::Open { id, sources });
    }

    fn share<'a>(&mut self, id: RequestId, sources: impl Iterator<Item = &'a Source>) {
        let request = self.requests.get_mut(&id).expect("the request is active");
        for source in sources {
            if let Source::Held { slot, .. } = source {
                self.pool.share(*slot);
                request.slots.push(*slot);
            }
        }
    }

    fn send_out(&mut self, id: RequestId) {
        let request = self.requests.get_mut(&id).expect("the request is active");
        request.stage = Stage::Out;
        (request.incarnation, request.rounds) = (self.incarnation, self.rounds);
    }

    /// Whether writes may begin; otherwise the request waits until the volume is claimed.
    fn is_claimed(&mut self, id: RequestId) -> bool {
        match self.phase {
            Phase::Ready => return true,
            Phase::Reading => self.begin_claim(),
            _ => {}
        }
        self.stall(id);
        false
    }

    fn advance_write(&mut self, id: RequestId) {
        let blocks = self.blocks(id);
        self.drop_slots(id);
        if !self.is_claimed(id) {
            return;
        }
        let rounds = [Some(&self.open), self.round.as_ref().map(|round| &round.batch)];
        if rounds.into_iter().flatten().any(|batch| batch.has_discarded_any(&blocks)) {
            self.wants_round = true;
            return self.stall(id);
        }
        self.touch_groups(&blocks);
        if !self.pin_pages(id, blocks.clone()) {
            return self.loading.push(id);
        }
        let present = self.present(id, blocks);
        if !self.requests[&id].is_examined {
            let examined = self.to_examine(id, &present);
            if !examined.is_empty() {
                self.share(id, examined.iter().map(|(_, source)| source));
                self.send_out(id);
                let request = self.requests.get_mut(&id).expect("the request is active");
                request.examined.clone_from(&examined);
                self.actions.push_back(Action::Examine { id, blocks: examined });
                return;
            }
        }
        self.grant(id, &present);
    }

    /// Hands out places and generations for the blocks of a write, if there is room for all of them.
    fn grant(&mut self, id: RequestId, present: &[Present]) {
        let blocks = self.blocks(id);
        let held = present.iter().filter(|present| present.is_written).count();
        let has_room = held <= self.pool.free() as usize
            && self.open.entries.len() + self.open.reserved + held <= self.layout.batch_blocks_max()
            && self.open.pages.len() < self.batch_pages_max();
        let has_fresh_room =
            self.open.fresh.len() < FRESH_BLOCKS_MAX && self.open.fresh_pages.len() < self.fresh_pages_max();
        if (held > 0 && !has_room) || (held < present.len() && !has_fresh_room) {
            self.wants_round = true;
            return self.stall(id);
        }
        let session = self.superblock.session;
        let mut runs = Vec::new();
        let (mut generations, mut grants) =
            (Vec::with_capacity(present.len()), Vec::with_capacity(present.len()));
        let mut slots = Vec::with_capacity(held);
        let mut free = 0..0;
        for (index, block) in blocks.enumerate() {
            let Present { is_written, base, .. } = present[index];
            let place = if is_written {
                if free.is_empty() {
                    let wanted = present[index..].iter().take_while(|present| present.is_written).count();
                    free = self.pool.take(wanted as u32).expect("enough slots are free");
                }
                let slot = free.next().expect("a slot was taken");
                slots.push(slot);
                Place::Slot(slot)
            } else {
                Place::Storage
            };
            generations.push(base.map_or_else(|| Generation::new(session, 0), |base| base.next(session)));
            grants.push((place, base));
            add_to_runs(&mut runs, block, place);
        }
        self.open.reserved += slots.len();
        let request = self.requests.get_mut(&id).expect("the request is active");
        request.slots = slots;
        request.grants = grants;
        self.send_out(id);
        self.actions.push_back(Action::Seal { id, runs, generations });
    }

    fn advance_discard(&mut self, id: RequestId) {
        if !self.is_claimed(id) {
            return;
        }
        if self.open.discards.len() >= DISCARDS_MAX || self.open.pages.len() >= self.batch_pages_max() {
            self.wants_round = true;
            return self.stall(id);
        }
        let blocks = self.blocks(id);
        let (head, _, tail) = self.split_at_groups(&blocks);
        let is_loaded = self.pin_pages(id, head.clone()) & self.pin_pages(id, tail.clone());
        if !is_loaded {
            return self.loading.push(id);
        }
        for page in self.layout.pages_of(&head).chain(self.layout.pages_of(&tail)) {
            if self.cache.peek(page).is_some() && self.open.pages.insert(page) {
                self.cache.pin(page);
            }
        }
        let discarded: Vec<u64> = self.open.entries.range(blocks.clone()).map(|(block, _)| *block).collect();
        for block in discarded {
            let entry = self.open.entries.remove(&block).expect("it was just found");
            self.pool.release(entry.slot);
        }
        let fresh: Vec<u64> = self.open.fresh.range(blocks.clone()).map(|(block, _)| *block).collect();
        for block in fresh {
            self.open.fresh.remove(&block);
        }
        self.open.discard(blocks);
        self.complete(id, Ok(()));
        self.retry_stalled();
    }

    /// The groups all of whose blocks are in the range, and the blocks before and after them. The last group ends with
    /// the volume.
    pub(super) fn split_at_groups(&self, blocks: &Range<u64>) -> (Range<u64>, Range<u64>, Range<u64>) {
        let per_group = self.layout.blocks_per_group();
        let first = blocks.start.div_ceil(per_group);
        let is_last = blocks.end == self.superblock.blocks;
        let end = if is_last { blocks.end.div_ceil(per_group) } else { blocks.end / per_group };
        if end <= first {
            return (blocks.clone(), 0..0, blocks.end..blocks.end);
        }
        (blocks.start..first * per_group, first..end, (end * per_group).min(blocks.end)..blocks.end)
    }

    /// Creates the pages of groups that get their first block.
    fn touch_groups(&mut self, blocks: &Range<u64>) {
        for group in self.layout.group_of(blocks.start)..=self.layout.group_of(blocks.end - 1) {
            if self.initialised.contains(group) || !self.pending.insert(group) {
                continue;
            }
            for page in group * PAGES_PER_GROUP..(group + 1) * PAGES_PER_GROUP {
                let contexts = ContextPage::unwritten(self.layout.cipher, &self.epoch, page);
                self.cache.create(page, contexts);
            }
        }
    }

    /// Pins the pages of those blocks of which pages exist, and queues reads of missing ones. Whether all are here;
    /// otherwise the request has to wait in `loading`.
    fn pin_pages(&mut self, id: RequestId, blocks: Range<u64>) -> bool {
        let mut is_complete = true;
        let mut missing: Option<Range<u64>> = None;
        for page in self.layout.pages_of(&blocks) {
            if !self.is_touched(page / PAGES_PER_GROUP) {
                continue;
            }
            let request = self.requests.get_mut(&id).expect("the request is active");
            if !request.pins.contains(&page) {
                request.pins.push(page);
                if self.cache.pin(page) {
                    missing = self.and_load(missing, page);
                }
            }
            is_complete &= self.cache.get(page).is_some();
        }
        self.load(missing);
        self.read_ahead(&blocks);
        is_complete
    }

    /// Queues reads of the pages that requests after this one will need, if it is one of a sequence.
    fn read_ahead(&mut self, blocks: &Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let wanted = self.ahead.follow(self.layout.pages_of(blocks));
        let end = self.layout.page_of(self.superblock.blocks - 1) + 1;
        let mut missing: Option<Range<u64>> = None;
        for page in wanted.start..wanted.end.min(end) {
            if self.initialised.contains(page / PAGES_PER_GROUP) && self.cache.expect(page) {
                missing = self.and_load(missing, page);
            }
        }
        self.load(missing);
    }

    /// Appends a page to the run that will be read, or begins another one.
    fn and_load(&mut self, run: Option<Range<u64>>, page: u64) -> Option<Range<u64>> {
        match run {
            Some(run) if run.end == page && run.end - run.start < RUN_PAGES_MAX => Some(run.start..page + 1),
            run => {
                self.load(run);
                Some(page..page + 1)
            }
        }
    }

    fn load(&mut self, pages: Option<Range<u64>>) {
        let Some(pages) = pages else { return };
        let length = (pages.end - pages.start) as usize * PAGE_BYTES;
        let offset = self.layout.page_offset(pages.start);
        self.enqueue(Purpose::LoadPages(pages), Todo::Read { offset, length });
    }

    pub(super) fn on_loaded(&mut self, pages: &Range<u64>, outcome: Outcome<E>) {
        match outcome {
            Outcome::Read(bytes) => {
                self.verify_pages(pages.clone(), bytes);
            }
            Outcome::Failed(error) => {
                pages.clone().for_each(|page| self.fail_page(page, |_| Failure::Storage(error.clone())));
            }
            Outcome::Done => unreachable!("a read ends with its bytes"),
        }
    }

    pub(super) fn fill_pages(&mut self, pages: &Range<u64>, bytes: &[u8]) {
        for (page, bytes) in pages.clone().zip(bytes.chunks_exact(PAGE_BYTES)) {
            let bytes = bytes.try_into().expect("a page");
            self.cache.fill(page, ContextPage::parse(self.layout.cipher, &self.epoch, page, bytes));
        }
        self.retry_loading();
    }

    /// Looks at all requests again that wait for pages.
    fn retry_loading(&mut self) {
        self.ready.extend(std::mem::take(&mut self.loading));
    }

    /// Drops a page that was not read, and fails the requests that need it, whatever they wait for now: for the first block
    /// of each in the page.
    pub(super) fn fail_page(&mut self, page: u64, failure: impl Fn(u64) -> Failure<E>) {
        if self.cache.forget(page) {
            // It does not depend on what is in storage.
            return self.retry_loading();
        }
        let mut failed = Vec::new();
        for (id, request) in &mut self.requests {
            let pins = request.pins.len();
            request.pins.retain(|pin| *pin != page);
            // What the caller was given does not need the page: its group was discarded meanwhile.
            if request.pins.len() < pins && request.stage != Stage::Out {
                failed.push((request.arrival, *id));
            }
        }
        failed.sort_unstable();
        let stays = |id: &RequestId| !failed.iter().any(|(_, other)| other == id);
        self.loading.retain(stays);
        self.ready.retain(stays);
        self.stalled.retain(stays);
        let first = page * self.layout.cipher.blocks_per_page() as u64;
        for (_, id) in failed {
            let block = first.max(self.requests[&id].blocks.start);
            self.complete(id, Err(failure(block)));
        }
    }

    /// The blocks of a write whose content or version must be known before it is sealed.
    fn to_examine(&self, id: RequestId, present: &[Present]) -> Vec<(u64, Source)> {
        let request = &self.requests[&id];
        let blocks = request.blocks.clone().zip(present);
        let blocks = blocks.filter(|(block, present)| present.is_unclear || request.covers_in_part(*block));
        blocks.map(|(block, _)| (block, self.source(block).expect("its page is pinned"))).collect()
    }

    /// What a write has to know of the blocks, whose pages are pinned.
    fn present(&self, id: RequestId, blocks: Range<u64>) -> Vec<Present> {
        let request = &self.requests[&id];
        if self.has_any(&blocks) {
            let present = blocks.map(|block| {
                let source = self.source(block).expect("its page is pinned");
                let is_unclear = matches!(source, Source::Stored(Candidates { other: Some(_), .. }));
                let base = self.base(request, block, source);
                Present { is_written: source != Source::Zeroes, is_unclear, base }
            });
            return present.collect();
        }
        let mut present = Vec::with_capacity((blocks.end - blocks.start) as usize);
        for page in self.layout.pages_of(&blocks) {
            let in_page = self.layout.blocks_of(page, &blocks);
            // The write has touched its groups.
            let contexts = self.cache.peek(page).expect("its page is pinned");
            let first = self.layout.index_in_page(in_page.start);
            for (index, block) in (first..).zip(in_page) {
                let versions = contexts.versions(self.layout.cipher, index);
                let is_written = versions != Pair::Unwritten;
                let (latest, is_unclear) = match versions {
                    Pair::Unwritten | Pair::Invalid => (None, false),
                    Pair::One(only) => (Some(only.generation), false),
                    Pair::Two(later, _) => (Some(later.generation), self.is_unclear(later.generation)),
                };
                let resolved = request.resolved.get(&block).copied().filter(|_| latest.is_some());
                present.push(Present { is_written, is_unclear, base: resolved.unwrap_or(latest) });
            }
        }
        present
    }

    /// Whether the other version of a pair may be the stored one.
    fn is_unclear(&self, later: Generation) -> bool {
        self.ledger.is_none() && self.superblock.is_unclean(later.session())
    }

    /// Whether a batch says anything of one of the blocks.
    fn has_any(&self, blocks: &Range<u64>) -> bool {
        let batches = [Some(&self.open), self.round.as_ref().map(|round| &round.batch)];
        batches.into_iter().flatten().any(|batch| batch.has_any(blocks))
    }

    /// The version that the next one of a block follows: the one in storage when the next one is written.
    fn base(&self, request: &Active, block: u64, source: Source) -> Option<Generation> {
        if let Some(entry) = self.open.entries.get(&block) {
            return entry.base;
        }
        match source {
            Source::Zeroes | Source::Invalid => None,
            Source::Held { context, .. } => Some(context.generation),
            Source::Stored(candidates) => {
                let resolved = request.resolved.get(&block).copied();
                resolved.unwrap_or(Some(candidates.first.generation))
            }
        }
    }

    /// Where the contents of blocks are whose pages are pinned.
    fn sources(&self, blocks: Range<u64>) -> Vec<Source> {
        if self.has_any(&blocks) {
            return blocks.map(|block| self.source(block).expect("its page is pinned")).collect();
        }
        let mut sources = Vec::with_capacity((blocks.end - blocks.start) as usize);
        for page in self.layout.pages_of(&blocks) {
            let in_page = self.layout.blocks_of(page, &blocks);
            if !self.is_touched(page / PAGES_PER_GROUP) {
                sources.extend(in_page.map(|_| Source::Zeroes));
                continue;
            }
            let contexts = self.cache.peek(page).expect("its page is pinned");
            let first = self.layout.index_in_page(in_page.start);
            let pairs = (first..).zip(in_page).map(|(index, _)| contexts.pair(self.layout.cipher, index));
            sources.extend(pairs.map(|pair| self.source_of(pair)));
        }
        sources
    }

    /// Whether pages of contexts of the group exist.
    pub(super) fn is_touched(&self, group: u64) -> bool {
        self.initialised.contains(group) || self.pending.contains(&group)
    }

    /// Where the content of a block is. `None` if its page of contexts is not in memory.
    pub(super) fn source(&self, block: u64) -> Option<Source> {
        for batch in [Some(&self.open), self.round.as_ref().map(|round| &round.batch)].into_iter().flatten() {
            if let Some(entry) = batch.entries.get(&block) {
                return Some(Source::Held { slot: entry.slot, context: entry.context });
            }
            if batch.has_discarded(block) {
                return Some(Source::Zeroes);
            }
            if let Some(context) = batch.fresh.get(&block) {
                return Some(Source::Stored(Candidates { first: *context, other: None }));
            }
        }
        if !self.is_touched(self.layout.group_of(block)) {
            return Some(Source::Zeroes);
        }
        Some(self.source_of(self.pair(block)?))
    }

    /// Where the content of a block is that no batch has.
    fn source_of(&self, pair: Pair) -> Source {
        match pair {
            Pair::Unwritten => Source::Zeroes,
            Pair::Invalid => Source::Invalid,
            Pair::One(context) => Source::Stored(Candidates { first: context, other: None }),
            Pair::Two(later, earlier) => {
                let other = self.is_unclear(later.generation).then_some(earlier);
                Source::Stored(Candidates { first: later, other })
            }
        }
    }

    /// The contexts of a block. `None` if its page is not in memory.
    pub(super) fn pair(&self, block: u64) -> Option<Pair> {
        let contexts = self.cache.peek(self.layout.page_of(block))?;
        Some(contexts.pair(self.layout.cipher, self.layout.index_in_page(block)))
    }
}

/// Appends a block with its place to the last run, or begins another.
fn add_to_runs(runs: &mut Vec<Run>, block: u64, place: Place) {
    if let Some(run) = runs.last_mut() {
        let follows = match (run.place, place) {
            (Place::Storage, Place::Storage) => true,
            (Place::Slot(first), Place::Slot(slot)) => slot == first + run.count,
            _ => false,
        };
        if follows {
            run.count += 1;
            return;
        }
    }
    runs.push(Run { block, count: 1, place });
}
