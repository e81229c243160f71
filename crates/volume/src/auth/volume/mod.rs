//! The state of an open volume, shared by the threads that use it.
//!
//! A volume performs no operation itself and holds no payload. Threads [`submit`](Volume::submit) requests and take
//! [`Action`]s by [`poll`](Volume::poll) until there are none, after every call. An action belongs to a request, and is
//! for the thread that submitted it; or it is an [`Operation`] of the storage, which any thread may perform. Each is
//! answered by the call that its documentation names. All of it happens under one lock that the caller owns; reading,
//! writing, sealing and opening of payload happen outside.
//!
//! A request is complete when [`Action::Complete`] leaves. Requests that touch the same blocks wait in here for each
//! other, so their number is what the callers submit. No operation waits for a caller's memory: sealed blocks lie in a
//! pool of [`POOL_SLOTS`](super::POOL_SLOTS) slots that the caller sets aside for this volume.

mod ledger;
mod opening;
mod requests;
mod round;

use std::collections::VecDeque;
use std::ops::Range;

use foldhash::{HashMap, HashSet};

use thiserror::Error;

use self::ledger::{Ledger, Next};
use self::opening::Phase;
use self::requests::Active;
use self::round::{Check, Round};
use super::ahead::Ahead;
use super::batch::Batch;
use super::cache::Cache;
use super::keys::{EpochKeys, Keys};
use super::map::Groups;
use super::pool::Pool;
use super::superblock::WRITER_BYTES;
use super::turns::Turns;
use super::{
    BLOCK_BYTES, Cipher, Context, DIRTY_PAGES_MAX, Generation, Layout, LedgerError, OPERATIONS_MAX, Sealer,
    Superblock, Unit,
};

/// Number that the caller gives a request; unique among those that are not complete.
pub type RequestId = u64;
/// Number of an operation of the storage.
pub type OperationId = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// At most [`REQUEST_BYTES_MAX`](super::REQUEST_BYTES_MAX), not empty.
    Read { offset: u64, length: u64 },
    /// As `Read`. Of blocks that it covers in part, the rest is read, verified and written again.
    Write { offset: u64, length: u64 },
    /// Makes whole blocks unwritten, so that they read as zeroes; of any length.
    Discard { offset: u64, length: u64 },
    /// Makes all that completed before durable.
    Flush,
    /// A flush, after which the next one to open the volume need not expect a crash. To be submitted when no other
    /// request is under way. A later write claims the volume again.
    Close,
}

/// Contexts that may belong to the data of a block, the likelier first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidates {
    pub first: Context,
    pub other: Option<Context>,
}

/// Where the content of a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: the block is unwritten and reads as zeroes.
    Zeroes,
    /// In storage, at [`Layout::data_offset`].
    Stored(Candidates),
    /// In a slot of the pool, which does not change until the request completes.
    Held { slot: u32, context: Context },
    /// Unknown: its contexts are not valid. Reading it is a failed check.
    Invalid,
}

/// Where a block is sealed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory of the caller, which then writes it to [`Layout::data_offset`].
    Storage,
    /// A slot of the pool; the volume writes it later.
    Slot(u32),
}

/// Successive blocks of a write with successive places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub block: u64,
    pub count: u32,
    /// Of the first block.
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Read {
        offset: u64,
        length: usize,
    },
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Writes slots of the pool.
    WriteSlots {
        offset: u64,
        slots: Range<u32>,
    },
    /// Copies a block into a slot of the pool: a volume that is open for reading only keeps there what a crash left in the
    /// journal.
    FillSlot {
        slot: u32,
        bytes: Vec<u8>,
    },
    /// Makes all completed writes durable.
    Barrier,
    /// Of the ledger's file; bytes beyond its end are zero.
    ReadLedger {
        offset: u64,
        length: usize,
    },
    WriteLedger {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Makes all completed writes of the ledger's file durable.
    SyncLedger,
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub enum Outcome<E> {
    Done,
    /// The bytes of a read, all of them.
    Read(Vec<u8>),
    Failed(E),
}

/// Why a read did not succeed.
#[derive(Clone, Debug)]
pub enum ReadError<E> {
    Storage(E),
    /// This block does not verify.
    Unverified {
        block: u64,
    },
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure<E> {
    /// The storage failed. Of a flush: writes since the last one may be lost, those that are made again are not.
    #[error("{0}")]
    Storage(E),
    /// The stored block, or its context, is not one that a holder of the key wrote there.
    #[error("the block at byte {} does not verify", block * BLOCK_BYTES as u64)]
    Unverified { block: u64 },
    /// Another writer has claimed the volume.
    #[error("another writer uses the volume")]
    Foreign,
    /// The context of the block, or of one beside it, verifies and is not that of the last flush.
    #[error("the storage has an older state of the block at byte {} than was flushed", block * BLOCK_BYTES as u64)]
    OldBlock { block: u64 },
    #[error("the storage has an older state of the volume than was flushed")]
    OldVolume,
    #[error(transparent)]
    Ledger(LedgerError),
    #[error("the volume is open for reading only")]
    ReadOnly,
    #[error("the request is beyond the end of the volume, or longer than allowed")]
    OutOfRange,
    /// Neither copy of the superblock, or not this sector of the map, verifies: another key, or changed storage.
    #[error("the volume's superblock or map does not verify")]
    Damaged,
    /// The layout needs more storage than there is.
    #[error("the storage is smaller than the volume")]
    Truncated,
    /// All session numbers are used.
    #[error("the volume has been opened too often and needs a new key")]
    Exhausted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<E> {
    /// The caller may begin to read the stored blocks of a read; their contexts follow with [`Action::Open`]. Need not
    /// be obeyed. If a block does not verify, [`Action::Open`] comes again, and the blocks are to be read again.
    Fetch {
        id: RequestId,
    },
    /// The contents of the blocks that a read touches, in order. Answered by [`Volume::opened`].
    Open {
        id: RequestId,
        sources: Vec<Source>,
    },
    /// Blocks of a write whose content or present version must be known first. Answered by [`Volume::examined`]. The
    /// contents of blocks that the write covers in part are merged with its data when they are sealed.
    Examine {
        id: RequestId,
        blocks: Vec<(u64, Source)>,
    },
    /// All blocks of a write, in order: seal block `i` with `generations[i]`. Answered by [`Volume::sealed`], when the
    /// blocks with [`Place::Storage`] are written. May come again for the same request.
    Seal {
        id: RequestId,
        runs: Vec<Run>,
        generations: Vec<Generation>,
    },
    /// Answered by [`Volume::done`].
    Operate {
        id: OperationId,
        operation: Operation,
    },
    Complete {
        id: RequestId,
        result: Result<(), Failure<E>>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests are accepted and wait.
    Opening,
    Open,
    /// The volume could not be opened; requests fail, and each first tries to open it again.
    Failed,
    /// Another writer was noticed. Final.
    Foreign,
}

/// An open volume. See the module's documentation for how it is driven.
pub struct Volume<E> {
    keys: Keys,
    epoch: EpochKeys,
    layout: Layout,
    storage_bytes: u64,
    writer: [u8; WRITER_BYTES],
    is_read_only: bool,

    phase: Phase<E>,
    ledger: Option<Ledger>,
    superblock: Superblock,
    /// Raised when what memory knew of the storage was forgotten, and when a session ends: a request that was given
    /// contexts or generations before is run again.
    incarnation: u32,
    /// The last claim failed and is being tried again.
    is_claim_repeated: bool,
    /// To be reported by the next flush.
    lost: Option<Failure<E>>,

    /// Groups whose bit is set in storage, or will be when the round under way ends.
    initialised: Groups,
    /// Groups with pages of contexts whose bit is not set yet.
    pending: HashSet<u64>,
    cache: Cache,
    ahead: Ahead,
    pool: Pool,
    open: Batch,
    round: Option<Round>,
    /// Rounds that have begun.
    rounds: u64,
    /// Before the next one.
    check: Check,
    /// Something completed since the last barrier that was not preceded by it.
    is_undurable: bool,
    /// Blocks whose data was overwritten in the last round, and is not known to be durable, in ascending order. Unit 4096 only.
    late: Vec<u64>,
    /// Number of the next batch in the journal.
    journal_batch: u64,

    turns: Turns,
    requests: HashMap<RequestId, Active>,
    /// Requests to look at next.
    ready: VecDeque<RequestId>,
    /// Requests that wait for slots, for a barrier, or for the volume to open, in order.
    stalled: VecDeque<RequestId>,
    /// Requests that wait for pages of contexts.
    loading: Vec<RequestId>,
    /// Requests so far: the order in which they are run again.
    arrivals: u64,
    /// Flushes that wait for the next round.
    flushes: Vec<RequestId>,
    /// Requests to close the volume.
    closings: Vec<RequestId>,
    /// A stalled request waits for a round.
    wants_round: bool,

    actions: VecDeque<Action<E>>,
    queued: VecDeque<(Purpose, Todo)>,
    in_flight: HashMap<OperationId, Purpose>,
    next_operation: OperationId,
    /// Writes of dirty pages in flight or queued, outside of rounds.
    writebacks: usize,
}

/// What an operation is for.
#[derive(Clone, Debug)]
enum Purpose {
    Opening {
        offset: u64,
    },
    BeforeClaim,
    Claim {
        is_barrier: bool,
    },
    LoadPages(Range<u64>),
    LoadTags(Range<u64>),
    WriteBack(Range<u64>),
    /// Of the round under way; pages are no longer written when it ends.
    Round(Range<u64>),
    /// Of the superblock, before a round or at its end.
    Check {
        is_before: bool,
    },
    /// Of the ledger's header.
    Note {
        next: Next,
        is_sync: bool,
    },
    Unclaim {
        is_barrier: bool,
    },
}

/// An operation that is built when it leaves, from what memory holds then.
#[derive(Clone, Debug)]
enum Todo {
    Read { offset: u64, length: usize },
    Bytes { offset: u64, bytes: Vec<u8> },
    Pages(Range<u64>),
    Slots { offset: u64, slots: Range<u32> },
    Fill { slot: u32, bytes: Vec<u8> },
    MapPage(u64),
    Barrier,
    ReadLedger { offset: u64, length: usize },
    WriteLedger { offset: u64, bytes: Vec<u8> },
    SyncLedger,
}

/// Ranges that [`Volume::extent`] looks at.
const EXTENT_LOOKS_MAX: usize = 4096;
/// Writes of dirty pages in flight or queued outside of rounds.
const WRITEBACKS_MAX: usize = 16;

impl<E: Clone> Volume<E> {
    /// A volume that begins to open. `writer` is randomness that no other opening has; `storage_bytes` the size of the
    /// storage from whose beginning `segment` counts.
    pub fn new(
        keys: Keys,
        (cipher, unit, segment): (Cipher, Unit, u64),
        storage_bytes: u64,
        writer: [u8; WRITER_BYTES],
        is_read_only: bool,
    ) -> Result<Self, super::LayoutError> {
        let layout = Layout::new(cipher, unit, segment, 1)?;
        let superblock = Superblock::new(0, 1);
        let mut volume = Self {
            epoch: keys.of_epoch(&layout, superblock.epoch),
            keys,
            layout,
            storage_bytes,
            writer,
            is_read_only,
            phase: Phase::Superblock,
            ledger: None,
            superblock,
            incarnation: 0,
            is_claim_repeated: false,
            lost: None,
            initialised: Groups::new(1),
            pending: HashSet::default(),
            cache: Cache::default(),
            ahead: Ahead::default(),
            pool: Pool::new(),
            open: Batch::default(),
            round: None,
            rounds: 0,
            check: Check::No,
            is_undurable: false,
            late: Vec::new(),
            journal_batch: 0,
            turns: Turns::default(),
            requests: HashMap::default(),
            ready: VecDeque::new(),
            stalled: VecDeque::new(),
            loading: Vec::new(),
            flushes: Vec::new(),
            closings: Vec::new(),
            wants_round: false,
            arrivals: 0,
            actions: VecDeque::new(),
            queued: VecDeque::new(),
            in_flight: HashMap::default(),
            next_operation: 0,
            writebacks: 0,
        };
        volume.begin_opening();
        Ok(volume)
    }

    pub fn state(&self) -> State {
        match self.phase {
            Phase::Reading | Phase::Claim | Phase::Ready | Phase::Unclaim | Phase::Draining => State::Open,
            Phase::Superblock | Phase::Ledger(_) | Phase::Map | Phase::Recovery(_) | Phase::Restore(_) => {
                State::Opening
            }
            Phase::Failed(_) => State::Failed,
            Phase::Foreign => State::Foreign,
        }
    }

    /// Why the volume could not be opened.
    pub fn failure(&self) -> Option<&Failure<E>> {
        if let Phase::Failed(failure) = &self.phase { Some(failure) } else { None }
    }

    /// Size in bytes; 0 before the volume is open.
    pub fn size_bytes(&self) -> u64 {
        self.superblock.blocks * BLOCK_BYTES as u64
    }

    /// Valid once open.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Valid once open.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Seals and opens blocks of this volume. Valid once open.
    pub fn sealer(&self) -> Sealer {
        Sealer::new(self.layout.cipher, &self.epoch.data)
    }

    /// The next action. To be called until it returns `None` after each other call.
    pub fn poll(&mut self) -> Option<Action<E>> {
        self.settle();
        self.actions.pop_front()
    }

    /// Begins to write what waits in memory, without a flush; to be called when no writes have come for a while.
    pub fn write_out(&mut self) {
        self.wants_round = true;
    }

    /// An operation ended. After a write that failed or a cache that was lost, what memory knows of the storage is
    /// forgotten, and the next flush fails with that error.
    pub fn done(&mut self, id: OperationId, outcome: Outcome<E>) {
        let purpose = self.in_flight.remove(&id).expect("an operation ends once");
        if matches!(self.phase, Phase::Draining | Phase::Failed(_) | Phase::Foreign) {
            return;
        }
        match purpose {
            Purpose::Opening { offset } => self.on_opening(offset, outcome),
            Purpose::Claim { is_barrier } => self.on_claim(is_barrier, outcome),
            Purpose::Unclaim { is_barrier } => self.on_unclaim(is_barrier, outcome),
            Purpose::Note { next, is_sync } => self.on_note(next, is_sync, outcome),
            Purpose::LoadPages(pages) => self.on_loaded(&pages, outcome),
            Purpose::LoadTags(pages) => self.on_tags_read(&pages, outcome),
            Purpose::WriteBack(pages) => match outcome {
                Outcome::Failed(error) => self.fail(&Failure::Storage(error)),
                _ => {
                    self.writebacks -= 1;
                    self.cache.written(pages);
                }
            },
            Purpose::Round(pages) => match outcome {
                Outcome::Failed(error) => self.fail(&Failure::Storage(error)),
                _ => {
                    self.cache.written(pages);
                    self.on_round_step();
                }
            },
            Purpose::BeforeClaim => self.on_before_claim(outcome),
            Purpose::Check { is_before } => self.on_check(is_before, outcome),
        }
    }

    /// The extent that begins at `offset`, from what memory knows: its end, and whether it may hold data. A hole is
    /// unwritten.
    pub fn extent(&self, offset: u64) -> (u64, bool) {
        let size = self.superblock.blocks;
        let first = offset / BLOCK_BYTES as u64;
        if first >= size || !matches!(self.state(), State::Open) {
            return (self.size_bytes().max(offset), true);
        }
        let (mut end, is_hole) = self.hole_at(first);
        for _ in 0..EXTENT_LOOKS_MAX {
            if end >= size {
                break;
            }
            let (next, is_next_hole) = self.hole_at(end);
            if is_next_hole != is_hole {
                break;
            }
            end = next;
        }
        (end.min(size) * BLOCK_BYTES as u64, !is_hole)
    }

    /// Whether the block is known to be unwritten, and the end of the range of which that was determined.
    fn hole_at(&self, block: u64) -> (u64, bool) {
        let group = self.layout.group_of(block);
        if !self.is_touched(group) {
            return ((group + 1) * self.layout.blocks_per_group(), true);
        }
        (block + 1, self.source(block) == Some(Source::Zeroes))
    }

    /// Starts what can start: requests, a round, operations.
    fn settle(&mut self) {
        loop {
            while let Some(id) = self.ready.pop_front() {
                self.advance(id);
            }
            self.finish_draining();
            self.start_round();
            self.write_back();
            if self.ready.is_empty() {
                break;
            }
        }
        self.issue();
    }

    fn enqueue(&mut self, purpose: Purpose, todo: Todo) {
        self.queued.push_back((purpose, todo));
    }

    fn issue(&mut self) {
        while self.in_flight.len() < OPERATIONS_MAX
            && let Some((purpose, todo)) = self.queued.pop_front()
        {
            let operation = self.operation(todo);
            let id = self.next_operation;
            self.next_operation += 1;
            self.in_flight.insert(id, purpose);
            self.actions.push_back(Action::Operate { id, operation });
        }
    }

    fn operation(&self, todo: Todo) -> Operation {
        match todo {
            Todo::Read { offset, length } => Operation::Read { offset, length },
            Todo::Bytes { offset, bytes } => Operation::Write { offset, bytes },
            Todo::Slots { offset, slots } => Operation::WriteSlots { offset, slots },
            Todo::Fill { slot, bytes } => Operation::FillSlot { slot, bytes },
            Todo::Barrier => Operation::Barrier,
            Todo::ReadLedger { offset, length } => Operation::ReadLedger { offset, length },
            Todo::WriteLedger { offset, bytes } => Operation::WriteLedger { offset, bytes },
            Todo::SyncLedger => Operation::SyncLedger,
            Todo::Pages(pages) => {
                let offset = self.layout.page_offset(pages.start);
                let pages = pages.map(|page| self.cache.peek(page).expect("a page being written stays"));
                Operation::Write { offset, bytes: pages.flat_map(|page| *page.bytes()).collect() }
            }
            Todo::MapPage(page) => {
                let bytes = self.initialised.emit_page(&self.epoch, page).to_vec();
                Operation::Write { offset: self.layout.map_offset(page), bytes }
            }
        }
    }

    /// Queues the writes of pages outside of rounds, once there are many.
    fn write_back(&mut self) {
        let is_wanted = self.cache.dirty() > DIRTY_PAGES_MAX;
        if !is_wanted || self.needs_round() || !matches!(self.phase, Phase::Ready) {
            return;
        }
        while self.cache.dirty() > DIRTY_PAGES_MAX / 2
            && self.writebacks < WRITEBACKS_MAX
            && let Some(pages) = self.cache.take_dirty()
        {
            self.writebacks += 1;
            self.note_tags(pages.clone());
            self.enqueue(Purpose::WriteBack(pages.clone()), Todo::Pages(pages));
        }
    }
}
