//! What a volume with a ledger does beside: it verifies superblock, map and pages of contexts against the file, and
//! keeps the file equal to what was flushed.
//!
//! A round first makes its *log* durable in the file, then writes to the storage, then *commits*: the file's tags are those
//! after the round. So a crash leaves a storage that the tags describe, or one between the two states that the log has;
//! [`Restore`] then takes one of both states for each block, by the data that the storage has.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use foldhash::{HashMap, HashSet};

use super::super::batch::Batch;
use super::super::context::{ContextPage, Pair};
use super::super::keys::{self, Tag};
use super::super::layout::{GROUPS_PER_SECTOR, MAP_BITS_BYTES, PAGES_PER_GROUP};
use super::super::ledger::{
    HEADERS_BYTES, Header, IMAGES_BYTES, LOG_HEAD_BYTES, LedgerLayout, Log, map_tag, page_tag,
};
use super::super::{
    BATCH_PAGES_MAX, BLOCK_BYTES, Context, FRESH_PAGES_MAX, LEDGER_GROUPS_MAX, LEDGER_PAGES_MAX, LedgerError,
    OPERATION_BYTES_MAX, PAGE_BYTES, PENDING_GROUPS_MAX, SECTOR_BYTES, Sealer,
};
use super::opening::Phase;
use super::round::{Round, Step as RoundStep};
use super::{Failure, Outcome, Purpose, Todo, Volume};

/// Pages that [`Restore`] reads at a time.
const RESTORE_PAGES: usize = OPERATION_BYTES_MAX / IMAGES_BYTES;

pub(super) struct Ledger {
    file_bytes: u64,
    layout: LedgerLayout,
    pub(super) header: Header,
    /// Of a round that was not committed.
    pub(super) pending: Option<Log>,
    /// The last round's log, whose tags may not be in their place.
    redo: Option<Log>,
    /// Tags of the sectors of the map, while the volume is opened.
    map: Vec<Tag>,
    /// Tags of pages that are not in their place in the file yet.
    tags: HashMap<u64, Tag>,
    /// Pages that were read and whose tags are being read, by their first.
    loads: HashMap<u64, Load>,
}

struct Load {
    bytes: Vec<u8>,
    /// Tags that were not in the file yet when the pages had been read.
    known: Vec<Option<Tag>>,
}

/// What is read of the file when the volume is opened, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Header,
    LogHead,
    Log,
    MapTags,
}

pub(super) struct LedgerReading {
    part: Part,
    /// By offset.
    read: BTreeMap<u64, Vec<u8>>,
}

/// Brings storage and file to one state after a round that was cut.
pub(super) struct Restore {
    step: Step,
    read: BTreeMap<u64, Vec<u8>>,
    /// Pages of the log that are done.
    next: usize,
    /// Of pages under way: before and after the round.
    images: Vec<(u64, ContextPage, ContextPage)>,
    tags: BTreeMap<u64, Tag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Only for what a round committed: its tags are written to their place.
    Redo,
    RedoSync,
    /// The log may be in a cache only, as may be what the storage shows.
    LogSync,
    FirstBarrier,
    Images,
    Data,
    Pages,
    LastBarrier,
    Tags,
    TagsSync,
    Header,
    HeaderSync,
    End,
}

/// What follows once the file's header is durable.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    Claim,
    Closed,
}

/// What the round under way has to do with the file.
#[derive(Default)]
pub(super) struct RoundLog {
    log: Log,
    /// Tags of pages that the round makes valid by the map; written before the log.
    tags: HashMap<u64, Tag>,
    /// Operations of the storage that wait for the log.
    pub(super) deferred: VecDeque<(Purpose, Todo)>,
}

impl Ledger {
    fn new(file_bytes: u64, layout: LedgerLayout) -> Self {
        Self {
            file_bytes,
            layout,
            header: Header { serial: 0, round: 0, sequence: 0, session: 0, needs_redo: false },
            pending: None,
            redo: None,
            map: Vec::new(),
            tags: HashMap::default(),
            loads: HashMap::default(),
        }
    }

    /// Whether a sector of the map is one that the file allows.
    fn allows_sector(&self, sector: u64, tag: &Tag) -> bool {
        let is_pending = || {
            let log = self.pending.as_ref().map(|log| &log.sectors);
            log.into_iter().flatten().any(|(number, after)| *number == sector && keys::is_equal(after, tag))
        };
        keys::is_equal(&self.map[sector as usize], tag) || is_pending()
    }
}

impl<E: Clone> Volume<E> {
    /// Verifies against a ledger of `file_bytes` bytes; to be called before the first [`Self::poll`].
    #[must_use]
    pub fn with_ledger(mut self, file_bytes: u64) -> Self {
        self.ledger = Some(Ledger::new(file_bytes, LedgerLayout::new(&self.layout)));
        self
    }

    pub(super) fn batch_pages_max(&self) -> usize {
        if self.ledger.is_some() { LEDGER_PAGES_MAX } else { BATCH_PAGES_MAX }
    }

    pub(super) fn fresh_pages_max(&self) -> usize {
        if self.ledger.is_some() { LEDGER_PAGES_MAX } else { FRESH_PAGES_MAX }
    }

    pub(super) fn pending_groups_max(&self) -> usize {
        if self.ledger.is_some() { LEDGER_GROUPS_MAX } else { PENDING_GROUPS_MAX }
    }

    // Opening.

    /// The superblock is known: reads the file's header.
    pub(super) fn begin_ledger(&mut self) {
        let layout = LedgerLayout::new(&self.layout);
        let ledger = self.ledger.as_mut().expect("a volume with a ledger");
        *ledger = Ledger::new(ledger.file_bytes, layout);
        if ledger.file_bytes < layout.log_offset() {
            return self.fail_opening(Failure::Ledger(LedgerError::Truncated));
        }
        self.phase = Phase::Ledger(LedgerReading { part: Part::Header, read: BTreeMap::new() });
        self.read_ledger_for_opening(0, HEADERS_BYTES);
    }

    fn read_ledger_for_opening(&mut self, offset: u64, length: usize) {
        for at in (0..length).step_by(OPERATION_BYTES_MAX) {
            let length = (length - at).min(OPERATION_BYTES_MAX);
            let offset = offset + at as u64;
            self.enqueue(Purpose::Opening { offset }, Todo::ReadLedger { offset, length });
        }
    }

    pub(super) fn on_ledger_read(&mut self, offset: u64, bytes: Vec<u8>) {
        let Phase::Ledger(reading) = &mut self.phase else { unreachable!("the ledger is being read") };
        reading.read.insert(offset, bytes);
        let part = reading.part;
        if self.has_operations() {
            return;
        }
        let Phase::Ledger(reading) = &mut self.phase else { unreachable!("the ledger is being read") };
        let bytes = std::mem::take(&mut reading.read).into_values().flatten().collect::<Vec<u8>>();
        match self.take_part(part, &bytes) {
            Ok(Some((next, offset, length))) => {
                self.phase = Phase::Ledger(LedgerReading { part: next, read: BTreeMap::new() });
                self.read_ledger_for_opening(offset, length);
            }
            Ok(None) => self.begin_map(),
            Err(failure) => self.fail_opening(failure),
        }
    }

    /// Takes a part of the file; the next one to read, with its place.
    fn take_part(&mut self, part: Part, bytes: &[u8]) -> Result<Option<(Part, u64, usize)>, Failure<E>> {
        let (superblock, epoch) = (&self.superblock, &self.epoch);
        let ledger = self.ledger.as_mut().expect("a volume with a ledger");
        let layout = ledger.layout;
        let map_sectors = layout.map_sectors() as usize;
        let map_tags = (Part::MapTags, LedgerLayout::map_tag_offset(0), map_sectors * size_of::<Tag>());
        Ok(Some(match part {
            Part::Header => {
                ledger.header = Header::latest(epoch, bytes).map_err(Failure::Ledger)?;
                if superblock.sequence < ledger.header.sequence {
                    return Err(Failure::OldVolume);
                }
                if superblock.session > ledger.header.session {
                    return Err(Failure::Ledger(LedgerError::Behind));
                }
                (Part::LogHead, layout.log_offset(), LOG_HEAD_BYTES)
            }
            Part::LogHead => match Log::length(&layout, bytes) {
                Some(length) => (Part::Log, layout.log_offset(), length),
                None => map_tags,
            },
            Part::Log => {
                if let Some(log) = Log::parse(epoch, bytes) {
                    let header = &ledger.header;
                    if log.round == header.round + 1 {
                        // The superblock was durable before the log.
                        if superblock.sequence < log.sequence {
                            return Err(Failure::OldVolume);
                        }
                        ledger.pending = Some(log);
                    } else if log.round == header.round && header.needs_redo {
                        ledger.tags.extend(log.pages.iter().map(|entry| (entry.page, entry.tag)));
                        ledger.redo = Some(log);
                    }
                }
                map_tags
            }
            Part::MapTags => {
                ledger.map = bytes.as_chunks().0.to_vec();
                let redo = ledger.redo.iter().flat_map(|log| &log.sectors);
                for (sector, tag) in redo {
                    if let Some(place) = ledger.map.get_mut(*sector as usize) {
                        *place = *tag;
                    }
                }
                return Ok(None);
            }
        }))
    }

    /// Whether the file allows a page of the map.
    pub(super) fn allows_map_page(&self, page: u64, bytes: &[u8]) -> bool {
        let Some(ledger) = &self.ledger else { return true };
        let first = page * (PAGE_BYTES / SECTOR_BYTES) as u64;
        let mut sectors = (first..).zip(bytes.chunks_exact(SECTOR_BYTES));
        sectors.all(|(sector, bytes)| {
            ledger.allows_sector(sector, &map_tag(&self.epoch, sector, &bytes[..MAP_BITS_BYTES]))
        })
    }

    /// The map is known, and what the journal had is in its place.
    pub(super) fn begin_restore(&mut self) {
        let Some(ledger) = &mut self.ledger else { return self.on_open() };
        ledger.map = Vec::new();
        let step = match (&ledger.pending, &ledger.redo) {
            (Some(_), _) if self.is_read_only => Step::Images,
            (Some(_), _) => Step::LogSync,
            (None, Some(_)) if !self.is_read_only => Step::Redo,
            _ => return self.on_open(),
        };
        let (read, tags) = (BTreeMap::new(), BTreeMap::new());
        self.on_restore(Restore { step, read, next: 0, images: Vec::new(), tags });
    }

    pub(super) fn on_restore_read(&mut self, offset: u64, bytes: Vec<u8>) {
        let Phase::Restore(restore) = &mut self.phase else { unreachable!("a restore is under way") };
        restore.read.insert(offset, bytes);
        if self.has_operations() {
            return;
        }
        let Phase::Restore(restore) = std::mem::replace(&mut self.phase, Phase::Map) else {
            unreachable!("a restore is under way");
        };
        self.on_restore(restore);
    }

    /// Begins steps until one has operations to wait for. A step begins when those of the one before are done.
    fn on_restore(&mut self, mut restore: Restore) {
        loop {
            let sync = (Purpose::Opening { offset: 0 }, Todo::SyncLedger);
            let barrier = (Purpose::Opening { offset: 0 }, Todo::Barrier);
            restore.step = match restore.step {
                Step::Redo => {
                    let redo = self.ledger.as_mut().and_then(|ledger| ledger.redo.take());
                    let redo = redo.expect("a log to redo");
                    self.write_tags(redo.pages.iter().map(|entry| (entry.page, entry.tag)).collect());
                    self.write_map_tags(&redo.sectors);
                    Step::RedoSync
                }
                Step::RedoSync => {
                    self.queued.push_back(sync);
                    Step::End
                }
                Step::LogSync => {
                    self.queued.push_back(sync);
                    Step::FirstBarrier
                }
                Step::FirstBarrier => {
                    self.queued.push_back(barrier);
                    Step::Images
                }
                Step::Images => {
                    restore.read.clear();
                    let ledger = self.ledger.as_ref().expect("a volume with a ledger");
                    let log = ledger.pending.as_ref().expect("a log");
                    let pages = (log.pages.len() - restore.next).min(RESTORE_PAGES);
                    if pages == 0 {
                        restore.step = if self.is_read_only { Step::End } else { Step::LastBarrier };
                        continue;
                    }
                    let offset = ledger.layout.images_offset(log, restore.next);
                    self.read_ledger_for_opening(offset, pages * IMAGES_BYTES);
                    Step::Data
                }
                Step::Data => {
                    self.take_images(&mut restore);
                    restore.read.clear();
                    for (page, before, after) in &restore.images {
                        let blocks = self.blocks_to_decide(*page, before, after);
                        if !blocks.is_empty() {
                            let length = (blocks.end - blocks.start) as usize * BLOCK_BYTES;
                            self.read_for_opening(self.layout.data_offset(blocks.start), length);
                        }
                    }
                    Step::Pages
                }
                Step::Pages => {
                    self.decide(&mut restore);
                    Step::Images
                }
                Step::LastBarrier => {
                    self.queued.push_back(barrier);
                    Step::Tags
                }
                Step::Tags => {
                    let tags: Vec<_> = restore.tags.iter().map(|(page, tag)| (*page, *tag)).collect();
                    self.write_tags(tags);
                    let ledger = self.ledger.as_ref().expect("a volume with a ledger");
                    let sectors = ledger.pending.iter().flat_map(|log| &log.sectors);
                    let sectors: Vec<_> = sectors.map(|(sector, _)| self.map_tag_now(*sector)).collect();
                    self.write_map_tags(&sectors);
                    Step::TagsSync
                }
                Step::TagsSync => {
                    self.queued.push_back(sync);
                    Step::Header
                }
                Step::Header => {
                    let ledger = self.ledger.as_mut().expect("a volume with a ledger");
                    ledger.header.round = ledger.pending.as_ref().expect("a log").round;
                    ledger.header.needs_redo = false;
                    self.write_header(Purpose::Opening { offset: 0 });
                    Step::HeaderSync
                }
                Step::HeaderSync => {
                    self.queued.push_back(sync);
                    Step::End
                }
                Step::End => {
                    let ledger = self.ledger.as_mut().expect("a volume with a ledger");
                    ledger.pending = None;
                    if !self.is_read_only {
                        ledger.tags.clear();
                    }
                    return self.on_open();
                }
            };
            if self.has_operations() {
                self.phase = Phase::Restore(restore);
                return;
            }
        }
    }

    /// Parses the images that were read. Where they do not verify the log was not written whole, so the storage was not
    /// changed: the page's tag holds.
    fn take_images(&self, restore: &mut Restore) {
        let ledger = self.ledger.as_ref().expect("a volume with a ledger");
        let log = ledger.pending.as_ref().expect("a log");
        restore.images.clear();
        let read: Vec<u8> = std::mem::take(&mut restore.read).into_values().flatten().collect();
        for images in read.chunks_exact(IMAGES_BYTES) {
            let index = restore.next;
            restore.next += 1;
            let page = log.pages[index].page;
            let is_counted = page < self.layout.groups() * PAGES_PER_GROUP
                && self.initialised.contains(page / PAGES_PER_GROUP);
            if !is_counted || !log.has_images(&self.epoch, index, images) {
                continue;
            }
            let parse = |bytes: &[u8]| {
                let bytes = bytes.first_chunk().expect("a page");
                ContextPage::parse(self.layout.cipher, &self.epoch, page, bytes)
            };
            let (before, after) = (parse(&images[..PAGE_BYTES]), parse(&images[PAGE_BYTES..]));
            restore.images.push((page, before, after));
        }
    }

    /// From the first to the last block of a page that a round wrote.
    fn blocks_to_decide(&self, page: u64, before: &ContextPage, after: &ContextPage) -> Range<u64> {
        let cipher = self.layout.cipher;
        let first = page * cipher.blocks_per_page() as u64;
        let mut changed = (0..cipher.blocks_per_page())
            .filter(|index| before.pair_bytes(cipher, *index) != after.pair_bytes(cipher, *index))
            .filter(|index| after.pair(cipher, *index) != Pair::Unwritten)
            .map(|index| first + index as u64)
            .filter(|block| *block < self.superblock.blocks);
        let Some(start) = changed.next() else { return 0..0 };
        start..changed.last().unwrap_or(start) + 1
    }

    /// Takes for each block the state that its data verifies with, the later one first, and writes the pages. A volume that is
    /// open for reading only holds them in memory.
    fn decide(&mut self, restore: &mut Restore) {
        let cipher = self.layout.cipher;
        let sealer = self.sealer();
        for (page, before, mut after) in std::mem::take(&mut restore.images) {
            let blocks = self.blocks_to_decide(page, &before, &after);
            for block in blocks {
                let index = self.layout.index_in_page(block);
                if before.pair_bytes(cipher, index) == after.pair_bytes(cipher, index) {
                    continue;
                }
                let data = block_of(&restore.read, self.layout.data_offset(block));
                let is_held = self.open.entries.contains_key(&block);
                let (earlier, later) = (before.pair(cipher, index), after.pair(cipher, index));
                let verifies =
                    |pair| certain(pair).is_some_and(|context| opens(&sealer, block, &context, data));
                let is_earlier = later != Pair::Unwritten
                    && !is_held
                    && !verifies(later)
                    && (earlier == Pair::Unwritten || verifies(earlier));
                if is_earlier {
                    after.copy_pair(cipher, index, &before);
                }
            }
            if self.is_read_only {
                self.cache.hold(page, after);
            } else {
                restore.tags.insert(page, page_tag(&self.epoch, page, after.bytes()));
                let (offset, bytes) = (self.layout.page_offset(page), after.bytes().to_vec());
                self.enqueue(Purpose::Opening { offset }, Todo::Bytes { offset, bytes });
            }
        }
        restore.read.clear();
    }

    // Sessions.

    /// Writes the file's header, and then makes it durable.
    pub(super) fn note(&mut self, next: Next) {
        let (session, sequence) = (self.superblock.session, self.superblock.sequence);
        let ledger = self.ledger.as_mut().expect("a volume with a ledger");
        ledger.header.session = session;
        if matches!(next, Next::Closed) {
            // Tags are where they belong since the last round was committed.
            (ledger.header.sequence, ledger.header.needs_redo) = (sequence, false);
        }
        self.write_header(Purpose::Note { next, is_sync: false });
    }

    pub(super) fn on_note(&mut self, next: Next, is_sync: bool, outcome: Outcome<E>) {
        match (next, outcome) {
            (Next::Claim, outcome @ Outcome::Failed(_)) => self.on_claim(false, outcome),
            (Next::Closed, outcome @ Outcome::Failed(_)) => self.on_unclaim(false, outcome),
            (next, _) if !is_sync => self.enqueue(Purpose::Note { next, is_sync: true }, Todo::SyncLedger),
            (Next::Claim, _) => self.write_superblock(Purpose::Claim { is_barrier: false }),
            (Next::Closed, _) => self.on_closed(),
        }
    }

    fn write_header(&mut self, purpose: Purpose) {
        let ledger = self.ledger.as_mut().expect("a volume with a ledger");
        ledger.header.serial += 1;
        let offset = LedgerLayout::header_offset(ledger.header.serial);
        let bytes = ledger.header.emit(&self.epoch).to_vec();
        self.enqueue(purpose, Todo::WriteLedger { offset, bytes });
    }

    // Pages.

    /// Pages are about to be written that the map does not make valid yet: their tags go to the file before it does.
    pub(super) fn note_tags(&mut self, pages: Range<u64>) {
        let Some(ledger) = &mut self.ledger else { return };
        for page in pages {
            let contexts = self.cache.peek(page).expect("a page being written stays");
            ledger.tags.insert(page, page_tag(&self.epoch, page, contexts.bytes()));
        }
    }

    /// Pages were read: their tags are read too, unless all are in memory.
    pub(super) fn verify_pages(&mut self, pages: Range<u64>, bytes: Vec<u8>) {
        let Some(ledger) = &mut self.ledger else { return self.fill_pages(&pages, &bytes) };
        let of_round = self.round.as_ref().and_then(|round| round.log.as_ref());
        let known = pages.clone().map(|page| {
            let tag = ledger.tags.get(&page).or_else(|| of_round?.tags.get(&page));
            tag.copied()
        });
        let known: Vec<Option<Tag>> = known.collect();
        let load = Load { bytes, known };
        if load.known.iter().all(Option::is_some) {
            return self.on_tags(&pages, &load, &[]);
        }
        let (offset, end) =
            (ledger.layout.page_tag_offset(pages.start), ledger.layout.page_tag_offset(pages.end));
        ledger.loads.insert(pages.start, load);
        let length = (end - offset) as usize;
        self.enqueue(Purpose::LoadTags(pages), Todo::ReadLedger { offset, length });
    }

    pub(super) fn on_tags_read(&mut self, pages: &Range<u64>, outcome: Outcome<E>) {
        let ledger = self.ledger.as_mut().expect("a volume with a ledger");
        let load = ledger.loads.remove(&pages.start).expect("the pages were read");
        match outcome {
            Outcome::Read(tags) => self.on_tags(pages, &load, &tags),
            Outcome::Failed(error) => {
                pages.clone().for_each(|page| self.fail_page(page, |_| Failure::Storage(error.clone())));
            }
            Outcome::Done => unreachable!("a read ends with its bytes"),
        }
    }

    /// Fills the pages that have their tags; requests for the others fail.
    fn on_tags(&mut self, pages: &Range<u64>, load: &Load, tags: &[u8]) {
        let tag_bytes = self.ledger.as_ref().expect("a volume with a ledger").layout.tag_bytes();
        for ((index, page), bytes) in pages.clone().enumerate().zip(load.bytes.chunks_exact(PAGE_BYTES)) {
            let tag = page_tag(&self.epoch, page, bytes);
            let is_fresh = match &load.known[index] {
                Some(known) => keys::is_equal(known, &tag),
                None => keys::is_equal(&tags[index * tag_bytes..][..tag_bytes], &tag[..tag_bytes]),
            };
            if is_fresh {
                self.fill_pages(&(page..page + 1), bytes);
            } else {
                self.fail_page(page, |block| Failure::OldBlock { block });
            }
        }
    }

    // Rounds.

    /// The pages that a round may change, as they are before it: of groups that are valid, or become so in this round if
    /// `is_setting`.
    pub(super) fn images_before(
        &self,
        batch: &Batch,
        setting: &HashSet<u64>,
        is_setting: bool,
        images: &mut BTreeMap<u64, Vec<u8>>,
    ) {
        if self.ledger.is_none() {
            return;
        }
        for page in batch.pages.iter().chain(&batch.fresh_pages) {
            let group = page / PAGES_PER_GROUP;
            if self.initialised.contains(group)
                && setting.contains(&group) == is_setting
                && let Some(contexts) = self.cache.peek(*page)
            {
                images.insert(*page, contexts.bytes().to_vec());
            }
        }
    }

    /// Queues what the file needs before the storage is changed. `deferred`, what the round has for the storage, leaves when
    /// that is durable.
    pub(super) fn begin_log(&mut self, before: &BTreeMap<u64, Vec<u8>>, deferred: VecDeque<(Purpose, Todo)>) {
        let Some(ledger) = &mut self.ledger else { return self.begin_before(deferred) };
        let tags = std::mem::take(&mut ledger.tags);
        let mut log = Log {
            round: ledger.header.round + 1,
            sequence: self.superblock.sequence,
            session: self.superblock.session,
            ..Log::default()
        };
        let mut round = self.round.take().expect("a round is under way");
        // Counted again when they leave.
        round.left = 0;
        log.batch = round.journal_batch.unwrap_or(u64::MAX);
        log.sectors = self.sectors_after(&round);
        let mut images: Vec<Vec<u8>> = Vec::new();
        for (page, contexts) in self.pages_after(&round, before.keys().copied()) {
            let before = &before[&page];
            if before[..] != contexts.bytes()[..] {
                let both = [&before[..], contexts.bytes()].concat();
                log.add(&self.epoch, page, &both);
                match images.last_mut() {
                    Some(last) if last.len() + both.len() <= OPERATION_BYTES_MAX => last.extend(both),
                    _ => images.push(both),
                }
            }
        }
        self.round = Some(round);
        if log.pages.is_empty() && log.sectors.is_empty() {
            return self.begin_before(deferred);
        }
        self.write_tags(tags.iter().map(|(page, tag)| (*page, *tag)).collect());
        let layout = self.ledger.as_ref().expect("a volume with a ledger").layout;
        self.write_ledger(layout.log_offset(), &log.emit(&self.epoch));
        let mut offset = layout.images_offset(&log, 0);
        for bytes in images {
            let next = offset + bytes.len() as u64;
            self.enqueue_round(0..0, Todo::WriteLedger { offset, bytes });
            offset = next;
        }
        let round = self.round.as_mut().expect("a round is under way");
        round.log = Some(RoundLog { log, tags, deferred });
        round.step = RoundStep::Log;
    }

    /// The pages as the round leaves them.
    fn pages_after(&self, round: &Round, pages: impl Iterator<Item = u64>) -> BTreeMap<u64, ContextPage> {
        let cipher = self.layout.cipher;
        let here = pages.filter_map(|page| Some((page, self.cache.peek(page)?.clone())));
        let mut after: BTreeMap<u64, ContextPage> = here.collect();
        let mut change = |block: u64, context: Option<Context>| {
            let (page, index) = (self.layout.page_of(block), self.layout.index_in_page(block));
            let Some(contexts) = after.get_mut(&page) else { return };
            match context {
                Some(context) => contexts.set_only(cipher, index, &context),
                None if contexts.pair(cipher, index) == Pair::Unwritten => {}
                None => contexts.set_unwritten(cipher, &self.epoch, page, index),
            }
        };
        for (block, context) in round.contexts_after(self.layout.unit) {
            change(block, Some(context));
        }
        for range in &round.batch.discards {
            let (head, _, tail) = self.split_at_groups(range);
            head.chain(tail).for_each(|block| change(block, None));
        }
        after
    }

    /// The sectors of the map that the round changes, with their tags after it.
    fn sectors_after(&self, round: &Round) -> Vec<(u64, Tag)> {
        let cleared = round.batch.discards.iter().flat_map(|range| self.split_at_groups(range).1);
        let cleared = cleared.filter(|group| self.initialised.contains(*group));
        let set = round.setting.iter().copied();
        let mut sectors = BTreeMap::new();
        for (group, is_set) in set.map(|group| (group, true)).chain(cleared.map(|group| (group, false))) {
            let sector = group / GROUPS_PER_SECTOR;
            let bits = sectors.entry(sector).or_insert_with(|| self.initialised.sector(sector));
            if !is_set {
                bits[(group % GROUPS_PER_SECTOR / 8) as usize] &= !(1 << (group % 8));
            }
        }
        sectors.into_iter().map(|(sector, bits)| (sector, map_tag(&self.epoch, sector, &bits))).collect()
    }

    fn map_tag_now(&self, sector: u64) -> (u64, Tag) {
        (sector, map_tag(&self.epoch, sector, &self.initialised.sector(sector)))
    }

    /// Queues the tags after the round, which is durable in the storage; `false` if there are none.
    pub(super) fn begin_commit(&mut self) -> bool {
        let Some(RoundLog { log, .. }) = self.round.as_mut().and_then(|round| round.log.take()) else {
            return false;
        };
        self.write_tags(log.pages.iter().map(|entry| (entry.page, entry.tag)).collect());
        self.write_map_tags(&log.sectors);
        let sequence = self.superblock.sequence;
        let ledger = self.ledger.as_mut().expect("a volume with a ledger");
        (ledger.header.round, ledger.header.sequence) = (log.round, sequence);
        // Tags and header become durable together, in any order.
        ledger.header.needs_redo = true;
        self.round.as_mut().expect("a round is under way").left += 1;
        self.write_header(Purpose::Round(0..0));
        true
    }

    /// Queues writes to the file, for the round under way or for the opening.
    fn write_ledger(&mut self, offset: u64, bytes: &[u8]) {
        for (offset, bytes) in (offset..).step_by(OPERATION_BYTES_MAX).zip(bytes.chunks(OPERATION_BYTES_MAX))
        {
            let todo = Todo::WriteLedger { offset, bytes: bytes.to_vec() };
            if self.round.is_some() {
                self.enqueue_round(0..0, todo);
            } else {
                self.enqueue(Purpose::Opening { offset }, todo);
            }
        }
    }

    fn write_tags(&mut self, mut tags: Vec<(u64, Tag)>) {
        tags.sort_unstable();
        let layout = self.ledger.as_ref().expect("a volume with a ledger").layout;
        for run in tags.chunk_by(|(page, _), (next, _)| page + 1 == *next) {
            let bytes: Vec<u8> =
                run.iter().flat_map(|(_, tag)| &tag[..layout.tag_bytes()]).copied().collect();
            self.write_ledger(layout.page_tag_offset(run[0].0), &bytes);
        }
    }

    fn write_map_tags(&mut self, tags: &[(u64, Tag)]) {
        for run in tags.chunk_by(|(sector, _), (next, _)| sector + 1 == *next) {
            let bytes: Vec<u8> = run.iter().flat_map(|(_, tag)| *tag).collect();
            self.write_ledger(LedgerLayout::map_tag_offset(run[0].0), &bytes);
        }
    }
}

/// The version of a pair that counts where every round is committed.
fn certain(pair: Pair) -> Option<Context> {
    match pair {
        Pair::One(context) | Pair::Two(context, _) => Some(context),
        Pair::Unwritten | Pair::Invalid => None,
    }
}

/// The stored bytes of a block among what was read, by offset.
fn block_of(read: &BTreeMap<u64, Vec<u8>>, offset: u64) -> &[u8] {
    let (start, bytes) = read.range(..=offset).next_back().expect("the block was read");
    &bytes[(offset - start) as usize..][..BLOCK_BYTES]
}

fn opens(sealer: &Sealer, block: u64, context: &Context, data: &[u8]) -> bool {
    sealer.open(block, context, &mut data.to_vec()).is_ok()
}
