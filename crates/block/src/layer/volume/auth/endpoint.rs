//! One thread's endpoint of an `auth` volume.
//!
//! A request of the caller becomes one or several of the volume (`Parent`). Whole blocks are read into the caller's span
//! and opened there; what begins or ends within a block goes through an area of this endpoint. Writes are sealed into
//! areas that go to the storage, or into slots that the volume writes later.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use area::Span;
use io::{Event, Io, Item, Owner, Token, Work};
use volume::auth::{
    Action, BLOCK_BYTES, Context, Failure, LedgerError, Operation, OperationId, Outcome, Place,
    REQUEST_BYTES_MAX, ReadError, Request, RequestId, Run, Sealer, Source,
};

use super::super::areas::{Areas, PIECE_BYTES};
use super::super::pace::Pace;
use super::ledger::{FIRST_KEY, LedgerIo};
use super::work::{
    Examine, Fetch, Given, Job, Parent, Part, Piece, Plain, Read, Seal, Todo, Write, seal_block,
};
use super::{Act, SERIAL_BITS, Shared, failure};
use crate::{
    Capability, Completion, Direction, Endpoint, Extent, Fingerprint, Identity, Inspect, IoError,
    IoErrorKind, Kind, OpenError, State, memory,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that are sealed into one area.
const BLOCKS_PER_PIECE: u32 = (PIECE_BYTES / BLOCK_BYTES) as u32;
const WAKE: u32 = 0;
const IDLE: u32 = 1;
/// What was written and not flushed is written out when no write has come for this time.
const IDLE_AFTER: Duration = Duration::from_secs(2);

pub(super) struct Auth {
    inner: Box<dyn Endpoint>,
    shared: Arc<Shared>,
    seat: usize,
    owner: Owner,
    ledger: Option<LedgerIo>,
    sealer: Option<Arc<Sealer>>,
    capability: Capability,
    state: State,
    /// All slots, as a span of stored bytes.
    slots: Span,
    areas: Areas,
    actions: VecDeque<Act>,
    parents: HashMap<u64, Parent>,
    jobs: HashMap<RequestId, Job>,
    examines: HashMap<RequestId, Examine>,
    seals: HashMap<RequestId, Seal>,
    /// Pieces that helper threads seal, by the key of the event that ends each.
    given: HashMap<u32, Given>,
    given_last: u32,
    pace: Pace,
    /// Operations that have not begun; they go before `todo`, which writes wait for.
    waiting: VecDeque<(OperationId, Operation)>,
    todo: VecDeque<Todo>,
    /// By request to the storage beneath.
    parts: HashMap<crate::RequestId, Part>,
    /// Parts of operations that are longer than one request, and their first error.
    operations: HashMap<OperationId, (u32, Result<(), IoError>)>,
    next: u64,
    has_written: bool,
    is_timing: bool,
    closing: Closing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// The volume is being closed.
    Volume,
    /// Another endpoint goes on. Operations that this one has begun for it end first: an aborted one fails its flush.
    Operations,
    Inner,
}

impl Auth {
    pub(super) fn new(
        io: &mut Io,
        inner: Box<dyn Endpoint>,
        shared: Arc<Shared>,
        ledger: Option<LedgerIo>,
    ) -> Result<Self, OpenError> {
        let owner = io.owner();
        let waker = io
            .waker(Token { owner, key: WAKE })
            .map_err(|error| OpenError::Failed(format!("a descriptor to wake this thread: {error}")))?;
        let mut areas = Areas::default();
        if !areas.reserve(io) {
            return Err(OpenError::Failed("no memory is left for the volume's ciphertext".to_owned()));
        }
        let seat = shared.enter(waker);
        let (capability, slots) = (inner.capability().clone(), shared.stored());
        let mut this = Self {
            inner,
            shared,
            seat,
            owner,
            ledger,
            sealer: None,
            capability,
            state: State::Opening,
            slots,
            areas,
            actions: VecDeque::new(),
            parents: HashMap::new(),
            jobs: HashMap::new(),
            examines: HashMap::new(),
            seals: HashMap::new(),
            given: HashMap::new(),
            given_last: 0,
            pace: Pace::new(owner),
            waiting: VecDeque::new(),
            todo: VecDeque::new(),
            parts: HashMap::new(),
            operations: HashMap::new(),
            next: 0,
            has_written: false,
            is_timing: false,
            closing: Closing::No,
        };
        let mut done = Vec::new();
        this.advance(io, Vec::new(), &mut done);
        debug_assert!(done.is_empty(), "nothing was submitted yet");
        Ok(this)
    }

    /// Nonces for so many blocks, drawn from the kernel for each write: what a process keeps for later, two copies of a
    /// restored machine would use twice.
    fn nonces(&self, count: usize) -> Vec<u8> {
        let sealer = self.sealer.as_ref().expect("the volume is open");
        let mut nonces = vec![0; count * sealer.cipher().nonce_bytes()];
        io::entropy(&mut nonces).expect("the kernel's random numbers");
        nonces
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes what the volume wants, and works until nothing is left that can be done now.
    fn advance(&mut self, io: &mut Io, mut inner: Vec<Completion>, done: &mut Vec<Completion>) {
        if !matches!(self.inner.state(), State::Ready) {
            self.state = self.inner.state();
            return self.close_inner(io);
        }
        loop {
            for completion in inner.drain(..) {
                self.on_completion(io, completion, done);
            }
            self.poll();
            while let Some(action) = self.actions.pop_front() {
                self.act(io, action, &mut inner, done);
            }
            self.work(io, &mut inner);
            self.poll();
            if inner.is_empty() && self.actions.is_empty() {
                break;
            }
        }
        if self.waiting.is_empty() && self.operations.is_empty() && self.is_ledger_idle() {
            self.close_inner(io);
        }
    }

    fn is_ledger_idle(&self) -> bool {
        self.ledger.as_ref().is_none_or(|ledger| ledger.operations().next().is_none())
    }

    /// Closes the storage, if only operations kept this endpoint from it.
    fn close_inner(&mut self, io: &mut Io) {
        if self.closing == Closing::Operations {
            self.closing = Closing::Inner;
            self.inner.close(io);
        }
    }

    fn poll(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut shared = shared.lock();
        shared.poll(self.seat, &mut self.actions);
        let volume = &shared.volume;
        self.state = match volume.state() {
            volume::auth::State::Opening => State::Opening,
            volume::auth::State::Open => State::Ready,
            volume::auth::State::Failed if self.sealer.is_none() => {
                let text = volume.failure().map_or_else(String::new, ToString::to_string);
                State::Failed(match volume.failure() {
                    Some(Failure::OldVolume | Failure::Ledger(LedgerError::Behind)) => {
                        OpenError::OlderState(text)
                    }
                    Some(Failure::Ledger(LedgerError::OtherVolume)) => OpenError::OtherFreshness(text),
                    Some(Failure::Damaged) => OpenError::OtherKey(text),
                    _ => OpenError::Refused(text),
                })
            }
            // Requests say what is wrong.
            volume::auth::State::Failed | volume::auth::State::Foreign => State::Ready,
        };
        if matches!(self.state, State::Ready) && self.sealer.is_none() {
            self.sealer = Some(Arc::new(volume.sealer()));
            self.capability = above(self.inner.capability(), volume.size_bytes());
        }
    }

    fn act(&mut self, io: &mut Io, action: Act, inner: &mut Vec<Completion>, done: &mut Vec<Completion>) {
        match action {
            Action::Fetch { id } => self.fetch(io, id, inner),
            Action::Open { id, sources } => self.open(io, id, sources, inner),
            Action::Examine { id, blocks } => {
                self.examines.insert(id, Examine::new(blocks));
                self.todo.push_back(Todo::Examine(id));
            }
            Action::Seal { id, runs, generations } => {
                let nonces = self.nonces(generations.len());
                let nonces = nonces.chunks_exact(nonces.len() / generations.len());
                let contexts = generations.into_iter().zip(nonces);
                let contexts =
                    contexts.map(|(generation, nonce)| Context::begin(generation, nonce)).collect();
                let seal = Seal { runs: runs.into(), contexts, cut: 0, in_flight: 0, result: Ok(()) };
                self.seals.insert(id, seal);
                self.todo.push_back(Todo::Seal(id));
            }
            Action::Operate { id, operation } => self.waiting.push_back((id, operation)),
            Action::Complete { id, result } => self.complete(io, id, result, done),
        }
    }

    fn complete(
        &mut self,
        io: &mut Io,
        id: RequestId,
        result: Result<(), Failure<IoError>>,
        done: &mut Vec<Completion>,
    ) {
        if let Some(Job::Read(read)) = self.jobs.get_mut(&id)
            && matches!(read.fetch, Fetch::InFlight)
        {
            // The storage still writes into the caller's memory.
            read.ended = Some(result);
            return;
        }
        let parent = match self.jobs.remove(&id).expect("a request completes once") {
            Job::Read(Read { parent, .. }) | Job::Write(Write { parent, .. }) | Job::Other { parent } => {
                parent
            }
            Job::Close => {
                if let Err(error) = result {
                    tracing::warn!(%error, "the volume was not closed in order");
                }
                self.closing = Closing::Inner;
                return self.inner.close(io);
            }
        };
        let number = parent;
        let parent = self.parents.get_mut(&number).expect("a part belongs to a request");
        parent.left -= 1;
        if let Err(error) = result {
            let error = failure(&error, parent.offset);
            parent.result = Err(match std::mem::replace(&mut parent.result, Ok(())) {
                Ok(()) => error,
                Err(first) => first.or_lower(error),
            });
        }
        if parent.left > 0 {
            return;
        }
        if std::mem::take(&mut parent.flushes) && parent.result.is_ok() {
            parent.left = 1;
            return self.submit_job(Job::Other { parent: number }, Request::Flush);
        }
        let Parent { id, result, .. } = self.parents.remove(&number).expect("it was there");
        done.push(Completion { id, result });
    }

    fn submit_job(&mut self, job: Job, request: Request) {
        let id = (self.seat as u64) << SERIAL_BITS | self.number();
        self.jobs.insert(id, job);
        self.shared.lock().volume.submit(id, request);
    }

    fn submit_inner(&mut self, io: &mut Io, part: Part, kind: Kind, inner: &mut Vec<Completion>) {
        let id = self.number();
        self.submit_numbered(io, id, part, kind, inner);
    }

    fn submit_numbered(&mut self, io: &mut Io, id: u64, part: Part, kind: Kind, inner: &mut Vec<Completion>) {
        self.parts.insert(id, part);
        self.inner.submit(io, crate::Request { id, kind }, inner);
    }

    // Reads.

    fn fetch(&mut self, io: &mut Io, id: RequestId, inner: &mut Vec<Completion>) {
        let Some(Job::Read(read)) = self.jobs.get_mut(&id) else { return };
        if !read.is_whole() || !matches!(read.fetch, Fetch::Not) {
            return;
        }
        read.fetch = Fetch::InFlight;
        let (block, into) = (read.offset / BLOCK, read.into.clone());
        let offset = self.shared.lock().volume.layout().data_offset(block);
        self.submit_inner(io, Part::Fetch(id), Kind::Read { offset, into }, inner);
    }

    fn open(&mut self, io: &mut Io, id: RequestId, sources: Vec<Source>, inner: &mut Vec<Completion>) {
        let Some(Job::Read(read)) = self.jobs.get_mut(&id) else { return };
        if !read.is_whole() {
            let blocks = (read.offset / BLOCK..).zip(sources).collect();
            self.examines.insert(id, Examine::new(blocks));
            return self.todo.push_back(Todo::Examine(id));
        }
        let is_stored = sources.iter().any(|source| matches!(source, Source::Stored(_)));
        read.sources = Some(sources);
        match read.fetch {
            Fetch::Not if is_stored => self.fetch(io, id, inner),
            Fetch::InFlight => {}
            Fetch::Not | Fetch::Done(_) => self.todo.push_back(Todo::Open(id)),
        }
    }

    /// Opens the blocks of a read where they are.
    fn open_fetched(&mut self, id: RequestId) {
        let Some(Job::Read(read)) = self.jobs.get_mut(&id) else { return };
        let Some(sources) = read.sources.take() else { return };
        self.pace.worked(read.into.len());
        let fetched = match std::mem::replace(&mut read.fetch, Fetch::Not) {
            Fetch::Done(result) => result,
            Fetch::Not | Fetch::InFlight => Ok(()),
        };
        let (first, into) = (read.offset / BLOCK, read.into.clone());
        let (sealer, slots) = (self.sealer.as_ref().expect("the volume is open"), &self.slots);
        let is_stored = sources.iter().any(|source| matches!(source, Source::Stored(_)));
        let result = match fetched {
            Err(error) if is_stored => Err(ReadError::Storage(error)),
            _ => (first..).zip(&sources).try_for_each(|(block, source)| {
                let at = (block - first) as usize * BLOCK_BYTES;
                let opened = into.change(at, BLOCK_BYTES, |data| unseal(sealer, slots, block, source, data));
                opened.map(drop).ok_or(ReadError::Unverified { block })
            }),
        };
        if result.is_err() {
            // Nothing of it leaves, not even what was verified.
            into.zero(0, into.len());
        }
        self.shared.lock().volume.opened(id, result);
    }

    // Work that takes time, or memory of its own.

    fn work(&mut self, io: &mut Io, inner: &mut Vec<Completion>) {
        while let Some((id, operation)) = self.waiting.pop_front() {
            if !self.operate(io, id, &operation, inner) {
                self.waiting.push_front((id, operation));
                break;
            }
        }
        while let Some(todo) = self.todo.pop_front() {
            let is_done = self.pace.may_work(io)
                && match todo {
                    Todo::Open(id) => {
                        self.open_fetched(id);
                        true
                    }
                    Todo::Examine(id) => self.examine(io, id, inner),
                    Todo::Seal(id) => self.seal(io, id, inner),
                };
            if !is_done {
                return self.todo.push_front(todo);
            }
        }
    }

    /// Reads the next blocks to look at; false if there is no memory for them.
    fn examine(&mut self, io: &mut Io, id: RequestId, inner: &mut Vec<Completion>) -> bool {
        let key = self.number();
        let Some(area) = self.areas.take(io, key) else { return false };
        let examine = self.examines.get_mut(&id).expect("a request that examines");
        let count = examine.blocks.len().min(PIECE_BYTES / BLOCK_BYTES);
        examine.now = examine.blocks.drain(..count).collect();
        examine.area = Some((key, area.clone()));
        let is_stored = |source: &Source| matches!(source, Source::Stored(_));
        let mut reads: Vec<(u64, usize, usize)> = Vec::new();
        for (at, (block, _)) in examine.now.iter().enumerate().filter(|(_, (_, source))| is_stored(source)) {
            match reads.last_mut() {
                Some((first, start, count)) if *first + *count as u64 == *block && *start + *count == at => {
                    *count += 1;
                }
                _ => reads.push((*block, at, 1)),
            }
        }
        examine.in_flight = reads.len();
        if reads.is_empty() {
            self.look(id);
            return true;
        }
        for (block, at, count) in reads {
            let into = area.slice(at * BLOCK_BYTES, count * BLOCK_BYTES);
            let offset = self.shared.lock().volume.layout().data_offset(block);
            self.submit_inner(io, Part::Examine(id), Kind::Read { offset, into }, inner);
        }
        true
    }

    /// Opens the blocks that were read, and answers once there are no more.
    fn look(&mut self, id: RequestId) {
        let examine = self.examines.get_mut(&id).expect("a request that examines");
        let (key, area) = examine.area.take().expect("an area for the blocks");
        let (sealer, slots) = (self.sealer.as_ref().expect("the volume is open"), &self.slots);
        let job = self.jobs.get_mut(&id).expect("a request under way");
        for (index, (block, source)) in std::mem::take(&mut examine.now).into_iter().enumerate() {
            if examine.result.is_err() {
                break;
            }
            let (at, merges) = (index * BLOCK_BYTES, job.covers_in_part(block));
            let found = area.change(at, BLOCK_BYTES, |data| unseal(sealer, slots, block, &source, data));
            match job {
                Job::Read(read) if found.is_some() => read.copy(block, area.range(at..at + BLOCK_BYTES)),
                Job::Read(_) => examine.result = Err(ReadError::Unverified { block }),
                Job::Write(write) if found.is_some() && merges => {
                    write.merged.insert(block, area.range(at..at + BLOCK_BYTES).to_vec().into());
                }
                _ => {}
            }
            examine.found.push(found);
        }
        area.zero(0, area.len());
        self.pace.worked(area.len());
        drop(area);
        self.areas.give_back(key);
        if examine.result.is_ok() && !examine.blocks.is_empty() {
            return self.todo.push_back(Todo::Examine(id));
        }
        let Examine { found, result, .. } = self.examines.remove(&id).expect("it was there");
        let mut shared = self.shared.lock();
        match (job, result) {
            (Job::Read(read), result) => {
                if result.is_err() {
                    read.into.zero(0, read.into.len());
                }
                shared.volume.opened(id, result);
            }
            (_, Ok(())) => shared.volume.examined(id, Ok(found)),
            (_, Err(ReadError::Storage(error))) => shared.volume.examined(id, Err(error)),
            (_, Err(ReadError::Unverified { .. })) => {
                unreachable!("`found` has a write's blocks that do not verify")
            }
        }
    }

    /// Seals as many blocks of a write as this turn allows and there is memory for; false if some are left.
    fn seal(&mut self, io: &mut Io, id: RequestId, inner: &mut Vec<Completion>) -> bool {
        loop {
            let seal = self.seals.get_mut(&id).expect("a request that seals");
            if seal.result.is_err() {
                seal.runs.clear();
            }
            let Some(run) = seal.runs.front() else { break };
            let has_more = seal.runs.len() > 1 || run.count > BLOCKS_PER_PIECE || !self.todo.is_empty();
            let is_given = (has_more || !self.given.is_empty()) && io.has_helper();
            if !is_given && !self.pace.may_work(io) {
                return false;
            }
            let Some(mut piece) = self.cut(io, id) else { return false };
            let Some(Job::Write(write)) = self.jobs.get(&id) else { unreachable!("a write is sealed") };
            if is_given && let Some(from) = write.steady(piece.block, piece.contexts.len()) {
                self.give(io, piece, from);
                continue;
            }
            let result = piece.seal(self.sealer.as_ref().expect("the volume is open"), write);
            self.pace.worked(piece.into.len());
            self.end_piece(io, piece, result, inner);
        }
        self.end_seal(id);
        true
    }

    /// Takes the next blocks of a write that lie together, with memory for them; `None` if there is none.
    fn cut(&mut self, io: &Io, id: RequestId) -> Option<Piece> {
        let part = self.next + 1;
        let seal = self.seals.get_mut(&id).expect("a request that seals");
        let run = seal.runs.front_mut().expect("blocks that are left");
        let Run { block, place, .. } = *run;
        let count = run.count.min(BLOCKS_PER_PIECE);
        let bytes = count as usize * BLOCK_BYTES;
        let into = match place {
            Place::Slot(slot) => {
                run.place = Place::Slot(slot + count);
                self.slots.slice(slot as usize * BLOCK_BYTES, bytes)
            }
            Place::Storage => self.areas.take(io, part)?.slice(0, bytes),
        };
        self.next = part;
        run.block += u64::from(count);
        run.count -= count;
        if run.count == 0 {
            seal.runs.pop_front();
        }
        let first = seal.cut;
        seal.cut += count as usize;
        seal.in_flight += 1;
        let contexts = seal.contexts[first..seal.cut].to_vec();
        Some(Piece { id, part, block, first, contexts, is_stored: place == Place::Storage, into })
    }

    /// Has a helper thread seal the piece, whose plaintext `from` does not change.
    fn give(&mut self, io: &mut Io, mut piece: Piece, from: Span) {
        let sealer = Arc::clone(self.sealer.as_ref().expect("the volume is open"));
        let sealed = Arc::new(OnceLock::new());
        let (block, mut contexts) = (piece.block, std::mem::take(&mut piece.contexts));
        let given = Given { piece, sealed: Arc::clone(&sealed) };
        let work: Work = Box::new(move |plain, into| {
            let blocks = plain.chunks_exact(BLOCK_BYTES).zip(into.chunks_exact_mut(BLOCK_BYTES));
            for ((block, context), (plain, into)) in (block..).zip(&mut contexts).zip(blocks) {
                seal_block(&sealer, block, context, plain, into);
            }
            sealed.set(contexts).expect("set once");
        });
        self.given_last = self.given_last.wrapping_add(1);
        let token = Token { owner: self.owner, key: self.given_last };
        io.compute(token, Some(from), given.piece.into.clone(), work);
        self.given.insert(self.given_last, given);
    }

    /// A helper has sealed a piece.
    fn on_given(&mut self, io: &mut Io, event: Event, inner: &mut Vec<Completion>) {
        let Some(Given { mut piece, sealed }) = self.given.remove(&event.token.key) else { return };
        let result = event.bytes().map(drop).map_err(IoError::from);
        drop(event);
        piece.contexts = sealed.get().cloned().unwrap_or_default();
        let id = piece.id;
        self.end_piece(io, piece, result, inner);
        self.end_seal(id);
    }

    /// A piece is sealed, or its plaintext could not be read.
    fn end_piece(
        &mut self,
        io: &mut Io,
        piece: Piece,
        result: Result<(), IoError>,
        inner: &mut Vec<Completion>,
    ) {
        let Piece { id, part, block, first, contexts, is_stored, into } = piece;
        let seal = self.seals.get_mut(&id).expect("a request that seals");
        if result.is_ok() {
            seal.contexts[first..][..contexts.len()].copy_from_slice(&contexts);
            if is_stored {
                let offset = self.shared.lock().volume.layout().data_offset(block);
                let kind = Kind::Write { offset, from: into, durable: false };
                return self.submit_numbered(io, part, Part::Seal(id), kind, inner);
            }
        } else {
            seal.result = result;
        }
        seal.in_flight -= 1;
        drop(into);
        self.areas.give_back(part);
    }

    /// Answers if all blocks are sealed, and those for the storage written.
    fn end_seal(&mut self, id: RequestId) {
        let Some(seal) = self.seals.get(&id) else { return };
        if !seal.runs.is_empty() || seal.in_flight > 0 {
            return;
        }
        let Seal { contexts, result, .. } = self.seals.remove(&id).expect("it was there");
        self.shared.lock().volume.sealed(id, result.map(|()| &contexts[..]));
    }

    fn operate(
        &mut self,
        io: &mut Io,
        id: OperationId,
        operation: &Operation,
        inner: &mut Vec<Completion>,
    ) -> bool {
        let part = self.number();
        let (kind, into) = match operation {
            Operation::ReadLedger { .. } | Operation::WriteLedger { .. } | Operation::SyncLedger => {
                let ledger = self.ledger.as_mut().expect("an operation of a volume with a ledger");
                return ledger.begin(io, self.owner, (id, part), operation, &mut self.areas);
            }
            Operation::FillSlot { slot, bytes } => {
                self.slots.fill(*slot as usize * BLOCK_BYTES, bytes);
                self.shared.lock().volume.done(id, Outcome::Done);
                return true;
            }
            Operation::Barrier => (Kind::Flush, None),
            Operation::Read { offset, length } => {
                let Some(area) = self.areas.take(io, part) else { return false };
                let into = area.slice(0, *length);
                (Kind::Read { offset: *offset, into: into.clone() }, Some(into))
            }
            Operation::Write { offset, bytes } => {
                let Some(area) = self.areas.take(io, part) else { return false };
                area.fill(0, bytes);
                (Kind::Write { offset: *offset, from: area.slice(0, bytes.len()), durable: false }, None)
            }
            Operation::WriteSlots { offset, slots } => {
                let all = self.slots.slice(slots.start as usize * BLOCK_BYTES, slots.len() * BLOCK_BYTES);
                let longest = self.inner.capability().max_transfer_bytes as usize / BLOCK_BYTES * BLOCK_BYTES;
                let starts: Vec<usize> = (0..all.len()).step_by(longest).collect();
                self.operations.insert(id, (starts.len() as u32, Ok(())));
                for start in starts {
                    let from = all.slice(start, longest.min(all.len() - start));
                    let kind = Kind::Write { offset: offset + start as u64, from, durable: false };
                    self.submit_inner(io, Part::Operation { id, into: None }, kind, inner);
                }
                return true;
            }
        };
        self.operations.insert(id, (1, Ok(())));
        self.submit_numbered(io, part, Part::Operation { id, into }, kind, inner);
        true
    }

    fn on_completion(&mut self, io: &mut Io, completion: Completion, done: &mut Vec<Completion>) {
        let Completion { id: number, result } = completion;
        match self.parts.remove(&number) {
            Some(Part::Fetch(id)) => {
                let Some(Job::Read(read)) = self.jobs.get_mut(&id) else { return };
                read.fetch = Fetch::Done(result);
                match read.ended.take() {
                    Some(result) => self.complete(io, id, result, done),
                    None if read.sources.is_some() => self.todo.push_back(Todo::Open(id)),
                    None => {}
                }
            }
            Some(Part::Examine(id)) => {
                let examine = self.examines.get_mut(&id).expect("a request that examines");
                examine.in_flight -= 1;
                if let Err(error) = result {
                    examine.result = Err(ReadError::Storage(error));
                }
                if examine.in_flight == 0 {
                    self.look(id);
                }
            }
            Some(Part::Seal(id)) => {
                self.areas.give_back(number);
                let seal = self.seals.get_mut(&id).expect("a request that seals");
                seal.in_flight -= 1;
                if let Err(error) = result {
                    seal.result = Err(error);
                }
                self.end_seal(id);
            }
            Some(Part::Operation { id, into }) => {
                let (left, first) = self.operations.get_mut(&id).expect("an operation in flight");
                *left -= 1;
                if let Err(error) = result {
                    *first = Err(error);
                }
                if *left == 0 {
                    let (_, result) = self.operations.remove(&id).expect("it was there");
                    let outcome = match (result, &into) {
                        (Err(error), _) => Outcome::Failed(error),
                        (Ok(()), Some(into)) => Outcome::Read(into.as_slice().to_vec()),
                        (Ok(()), None) => Outcome::Done,
                    };
                    self.shared.lock().volume.done(id, outcome);
                }
                drop(into);
                self.areas.give_back(number);
            }
            None => {}
        }
    }

    // Writes.

    fn write(&mut self, io: &mut Io, parent: u64, offset: u64, length: u64, plain: Plain) {
        self.has_written = true;
        if !std::mem::replace(&mut self.is_timing, true) {
            io.timer(Token { owner: self.owner, key: IDLE }, io.now() + IDLE_AFTER);
        }
        let write = Write { parent, offset, length, plain, merged: HashMap::new() };
        self.submit_job(Job::Write(write), Request::Write { offset, length });
    }

    /// Whole blocks become unwritten; of others the part is overwritten.
    fn zero(&mut self, io: &mut Io, parent: u64, offset: u64, length: u64) {
        let end = offset + length;
        let (first, last) = (offset.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        let parts = if first < last {
            self.submit_job(Job::Other { parent }, Request::Discard { offset: first, length: last - first });
            [(offset, first), (last, end)]
        } else {
            // Both in one block, or in two without a whole one between.
            let middle = first.min(end);
            [(offset, middle), (middle, end)]
        };
        for (from, to) in parts.into_iter().filter(|(from, to)| from < to) {
            self.write(io, parent, from, to - from, Plain::Zeroes);
        }
    }

    fn parts_of_zero(offset: u64, length: u64) -> u32 {
        let end = offset + length;
        let (first, last) = (offset.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        if first < last {
            1 + u32::from(offset < first) + u32::from(last < end)
        } else {
            u32::from(offset < first.min(end)) + u32::from(first.min(end) < end)
        }
    }
}

/// Opens a block in place: which candidate verified; `None` and zeroes if none does.
fn unseal(sealer: &Sealer, slots: &Span, block: u64, source: &Source, data: &mut [u8]) -> Option<u8> {
    match source {
        Source::Zeroes => {
            data.fill(0);
            Some(0)
        }
        Source::Invalid => {
            data.fill(0);
            None
        }
        Source::Stored(candidates) => sealer.open_any(block, candidates, data).ok(),
        Source::Held { slot, context } => {
            slots.fetch(*slot as usize * BLOCK_BYTES, data).expect("memory is read");
            sealer.open(block, context, data).ok().map(|()| 0)
        }
    }
}

/// Blocks of any size that the storage has; a part of 4096 bytes is read, verified and merged.
fn above(inner: &Capability, size_bytes: u64) -> Capability {
    let longest =
        (REQUEST_BYTES_MAX as u32).min(inner.max_transfer_bytes) / BLOCK_BYTES as u32 * BLOCK_BYTES as u32;
    Capability {
        size_bytes,
        physical_block_size: BLOCK_BYTES as u32,
        granularity: inner.block_size,
        max_transfer_bytes: longest,
        optimal_transfer_bytes: inner.optimal_transfer_bytes.min(longest),
        discard: true,
        write_zeroes: true,
        volatile_cache: true,
        ..inner.clone()
    }
}

impl Endpoint for Auth {
    fn state(&self) -> State {
        self.state.clone()
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, io: &mut Io, request: crate::Request, done: &mut Vec<Completion>) {
        let crate::Request { id, kind } = request;
        let unit = u64::from(self.capability.granularity);
        let is_whole = kind.range().is_none_or(|(offset, length)| (offset | length).is_multiple_of(unit));
        let checked = match memory::check(&self.capability, &kind) {
            Ok(()) if !is_whole => {
                let text = format!("the volume takes whole blocks of {unit} bytes");
                Err(IoError::new(IoErrorKind::Other, text))
            }
            checked => checked,
        };
        if checked.is_err() || kind.range().is_some_and(|(_, length)| length == 0) {
            return done.push(Completion { id, result: checked });
        }
        let parent = self.number();
        let (left, flushes) = match &kind {
            Kind::Discard { offset, length } | Kind::WriteZeroes { offset, length, .. } => {
                (Self::parts_of_zero(*offset, *length), false)
            }
            Kind::Write { durable, .. } => (1, *durable),
            _ => (1, false),
        };
        let offset = kind.range().map_or(0, |(offset, _)| offset);
        self.parents.insert(parent, Parent { id, offset, left, flushes, result: Ok(()) });
        match kind {
            Kind::Read { offset, into } => {
                let length = into.len() as u64;
                let (fetch, sources, ended) = (Fetch::Not, None, None);
                let read = Read { parent, offset, into, fetch, sources, ended };
                self.submit_job(Job::Read(read), Request::Read { offset, length });
            }
            Kind::Write { offset, from, .. } => {
                let length = from.len() as u64;
                self.write(io, parent, offset, length, Plain::Bytes { from, at: 0 });
            }
            Kind::Flush => self.submit_job(Job::Other { parent }, Request::Flush),
            Kind::Discard { offset, length } | Kind::WriteZeroes { offset, length, .. } => {
                self.zero(io, parent, offset, length);
            }
        }
        self.advance(io, Vec::new(), done);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        let mut inner = Vec::new();
        if event.token.owner != self.owner {
            self.inner.on_event(io, event, &mut inner);
        } else if let Item::Work { .. } = event.item {
            self.on_given(io, event, &mut inner);
        } else if !self.pace.is_turn(&event) && event.token.key == IDLE {
            self.is_timing = std::mem::take(&mut self.has_written);
            if self.is_timing {
                io.timer(Token { owner: self.owner, key: IDLE }, io.now() + IDLE_AFTER);
            } else {
                self.shared.lock().volume.write_out();
            }
        } else if event.token.key >= FIRST_KEY {
            let ended = self.ledger.as_mut().and_then(|ledger| ledger.on_event(io, &event));
            // The span of the event goes before its memory is used again.
            drop(event);
            if let Some((id, outcome, memory)) = ended {
                self.areas.give_back(memory);
                self.shared.lock().volume.done(id, outcome);
            }
        }
        self.advance(io, inner, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
        self.inner.owners(owners);
    }

    fn in_flight(&self, direction: Direction) -> Option<u64> {
        self.inner.in_flight(direction)
    }

    fn extent(&mut self, offset: u64) -> Extent {
        let (end, data) = self.shared.lock().volume.extent(offset);
        Extent { end, data }
    }

    fn renew(&mut self, io: &mut Io, bytes: u64) {
        self.inner.renew(io, bytes);
    }

    /// The last endpoint closes the volume, after which the next to open it need not expect a crash.
    fn close(&mut self, io: &mut Io) {
        let is_last = self.shared.lock().ends_use(self.seat);
        if is_last && self.sealer.is_some() {
            self.closing = Closing::Volume;
            self.submit_job(Job::Close, Request::Close);
        } else {
            self.closing = Closing::Operations;
        }
        let mut done = Vec::new();
        self.advance(io, Vec::new(), &mut done);
    }

    fn is_closed(&self) -> bool {
        let is_waiting = matches!(self.closing, Closing::Volume | Closing::Operations);
        !is_waiting && self.is_ledger_idle() && self.inner.is_closed()
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Drop for Auth {
    fn drop(&mut self) {
        let ledger = self.ledger.iter().flat_map(LedgerIo::operations);
        let in_flight = self.operations.keys().copied().chain(ledger);
        self.shared.leave(self.seat, in_flight, self.waiting.drain(..));
    }
}

impl Inspect for Auth {
    fn beneath(&self) -> Option<&dyn Inspect> {
        Some(self.inner.inspect())
    }

    fn identity(&self) -> Identity {
        self.inner.inspect().identity()
    }

    fn fingerprint(&self) -> Fingerprint {
        let Fingerprint { storage, contents } = self.inner.inspect().fingerprint();
        Fingerprint { storage: format!("{storage}, volume {}", self.shared.name), contents }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.inner.inspect().facts();
        facts.push(("volume", format!("auth {}", self.shared.name)));
        if let Some(sealer) = &self.sealer {
            facts.push(("volume cipher", sealer.cipher().name().to_owned()));
        }
        facts
    }
}
