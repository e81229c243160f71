//! Drives a volume over a simulated disk, one step of one operation at a time.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::Random;
use super::disk::{Disk, Image, WriteId};
use super::file::{self, File};
use volume::auth::{
    Action, BLOCK_BYTES, Candidates, Cipher, Context, Failure, Generation, Keys, Layout, Operation,
    OperationId, Outcome, Place, ReadError, Request, RequestId, Run, SECTOR_BYTES, Sealer, Source, Unit,
    Volume, format, format_ledger, ledger_bytes,
};

pub(super) const SEGMENT: u64 = 4096;
pub(super) const STORAGE_BYTES: u64 = 1 << 40;
pub(super) const VOLUME_KEY: [u8; 64] = [7; 64];
pub(super) const UUID: &str = "6e8f2d1c-0000-4000-8000-000000000001";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Error {
    Injected,
    CacheLost,
}

type Fault = Failure<Error>;

/// Errors to inject: one in so many operations; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) failed_write: u64,
    pub(super) failed_read: u64,
    pub(super) lost_cache: u64,
}

/// Something under way. Steps of different tasks may come in any order.
enum Task {
    Begin(OperationId, Operation),
    Write(OperationId, WriteId, Option<(Range<u32>, Vec<u8>)>),
    Barrier(OperationId, Vec<WriteId>),
    WriteFile(OperationId, file::WriteId),
    SyncFile(OperationId, Vec<file::WriteId>),
    Fetch(RequestId),
    Open(RequestId, Vec<Source>),
    Examine(RequestId, Vec<(u64, Source)>),
    Seal(RequestId, Vec<Run>, Vec<Generation>),
    /// Blocks that go to storage are being written.
    Store(RequestId, Vec<WriteId>, Vec<Context>),
}

struct Pending {
    request: Request,
    data: Vec<u8>,
    /// Stored blocks of a read, read before their contexts were known.
    fetched: Option<Vec<u8>>,
    /// Old contents of blocks that the request covers in part.
    merged: HashMap<u64, Vec<u8>>,
}

/// A request that is complete; `data` is what a read returned.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) id: RequestId,
    pub(super) data: Vec<u8>,
    pub(super) result: Result<(), Fault>,
}

pub(super) fn keys(cipher: Cipher, unit: Unit) -> Keys {
    keys_of(cipher, unit, UUID)
}

pub(super) fn keys_of(cipher: Cipher, unit: Unit, uuid: &str) -> Keys {
    Keys::new(&VOLUME_KEY, uuid, cipher, unit, SEGMENT)
}

/// An empty volume with room for `blocks`.
pub(super) fn formatted(cipher: Cipher, unit: Unit, blocks: u64) -> Image {
    let layout = Layout::new(cipher, unit, SEGMENT, blocks).expect("a layout");
    let mut image = Image::default();
    for (offset, bytes) in format(&layout, &keys(cipher, unit), blocks) {
        image.write(offset, &bytes);
    }
    image
}

/// The ledger of an empty volume.
pub(super) fn formatted_ledger(cipher: Cipher, unit: Unit, blocks: u64) -> Vec<u8> {
    let layout = Layout::new(cipher, unit, SEGMENT, blocks).expect("a layout");
    let mut bytes = vec![0; ledger_bytes(&layout) as usize];
    for (offset, some) in format_ledger(&layout, &keys(cipher, unit), blocks) {
        bytes[offset as usize..][..some.len()].copy_from_slice(&some);
    }
    bytes
}

pub(super) struct Machine {
    pub(super) volume: Volume<Error>,
    pub(super) disk: Disk,
    /// Of a volume with a ledger.
    pub(super) file: Option<File>,
    pub(super) random: Random,
    pub(super) faults: Faults,
    /// Reads of the volume's own that meet one of these ranges fail.
    pub(super) unreadable: Vec<Range<u64>>,
    pub(super) completed: Vec<Completed>,
    /// Reads of the volume's own.
    pub(super) reads: u64,
    /// Writes and barriers of the volume's own do not end.
    pub(super) is_slow: bool,
    /// Failed writes and barriers of the volume's own.
    pub(super) losses: u64,
    cipher: Cipher,
    sealer: Option<Rc<Sealer>>,
    pool: HashMap<u32, Vec<u8>>,
    tasks: Vec<Task>,
    pending: HashMap<RequestId, Pending>,
    next: RequestId,
    /// Whether the oldest task always goes first.
    pub(super) is_ordered: bool,
}

impl Machine {
    pub(super) fn new(cipher: Cipher, disk: Disk, random: Random) -> Self {
        let mut machine = Self::with_file(cipher, disk, None, false, random);
        machine.is_ordered = false;
        machine
    }

    /// With a ledger in `file`, if there is one.
    pub(super) fn with_file(
        cipher: Cipher,
        disk: Disk,
        file: Option<File>,
        is_read_only: bool,
        mut random: Random,
    ) -> Self {
        let mut writer = [0; 16];
        writer[..8].copy_from_slice(&random.next().to_le_bytes());
        let unit = disk.unit;
        let volume =
            Volume::new(keys(cipher, unit), (cipher, unit, SEGMENT), STORAGE_BYTES, writer, is_read_only);
        let mut volume = volume.expect("a volume");
        if let Some(file) = &file {
            volume = volume.with_ledger(file.len());
        }
        let mut machine = Self { random, ..Self::idle(volume, cipher, disk) };
        machine.file = file;
        machine.poll();
        machine
    }

    /// Drives this volume, in order.
    pub(super) fn of(volume: Volume<Error>, cipher: Cipher, disk: Disk) -> Self {
        let mut machine = Self::idle(volume, cipher, disk);
        machine.poll();
        machine
    }

    fn idle(volume: Volume<Error>, cipher: Cipher, disk: Disk) -> Self {
        Self {
            volume,
            disk,
            file: None,
            random: Random(1),
            faults: Faults::default(),
            unreadable: Vec::new(),
            completed: Vec::new(),
            reads: 0,
            is_slow: false,
            losses: 0,
            cipher,
            sealer: None,
            pool: HashMap::new(),
            tasks: Vec::new(),
            pending: HashMap::new(),
            next: 0,
            is_ordered: true,
        }
    }

    /// Opens the volume on an image, without faults.
    pub(super) fn on(cipher: Cipher, unit: Unit, image: Image) -> Self {
        let mut machine = Self::new(cipher, Disk::new(unit, image), Random(1));
        machine.is_ordered = true;
        machine.run();
        machine
    }

    pub(super) fn submit(&mut self, request: Request, data: Vec<u8>) -> RequestId {
        let id = self.next;
        self.next += 1;
        self.pending.insert(id, Pending { request, data, fetched: None, merged: HashMap::new() });
        self.volume.submit(id, request);
        self.poll();
        id
    }

    pub(super) fn write_out(&mut self) {
        self.volume.write_out();
        self.poll();
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    fn poll(&mut self) {
        while let Some(action) = self.volume.poll() {
            let task = match action {
                Action::Fetch { id } => Task::Fetch(id),
                Action::Open { id, sources } => Task::Open(id, sources),
                Action::Examine { id, blocks } => Task::Examine(id, blocks),
                Action::Seal { id, runs, generations } => Task::Seal(id, runs, generations),
                Action::Operate { id, operation } => Task::Begin(id, operation),
                Action::Complete { id, result } => {
                    let pending = self.pending.remove(&id).expect("a request completes once");
                    self.completed.push(Completed { id, data: pending.data, result });
                    continue;
                }
            };
            self.tasks.push(task);
        }
    }

    /// Runs until nothing is left to do.
    pub(super) fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the volume does not come to rest");
    }

    /// Performs one step of one task; false if there is none.
    pub(super) fn step(&mut self) -> bool {
        if self.tasks.is_empty() {
            let left: Vec<_> = self.pending.values().map(|pending| pending.request).collect();
            assert!(left.is_empty(), "nothing is under way, and these are not complete: {left:?}");
            return false;
        }
        let index = if self.is_slow {
            let ends = |task: &Task| !matches!(task, Task::Write(..) | Task::Barrier(..));
            let Some(index) = self.tasks.iter().position(ends) else { return false };
            index
        } else if self.is_ordered {
            0
        } else {
            self.random.below(self.tasks.len() as u64) as usize
        };
        match self.tasks.remove(index) {
            Task::Begin(id, operation) => self.begin(id, operation),
            Task::Write(id, write, slots) => {
                if let Some((slots, bytes)) = slots {
                    assert_eq!(bytes, self.slots(slots), "slots do not change while they are written");
                }
                if self.is_hit(self.faults.failed_write) {
                    self.disk.fail(write, &mut self.random);
                    self.losses += 1;
                    self.volume.done(id, Outcome::Failed(Error::Injected));
                } else {
                    self.disk.complete(write);
                    self.volume.done(id, Outcome::Done);
                }
            }
            Task::Barrier(id, writes) => {
                if self.is_hit(self.faults.lost_cache) {
                    self.disk.lose_power(&mut self.random);
                    self.losses += 1;
                    self.volume.done(id, Outcome::Failed(Error::CacheLost));
                } else {
                    self.disk.make_durable(&writes);
                    self.volume.done(id, Outcome::Done);
                }
            }
            Task::WriteFile(id, write) => {
                if self.is_hit(self.faults.failed_write) {
                    self.file.as_mut().expect("a file").fail(write, &mut self.random);
                    self.losses += 1;
                    self.volume.done(id, Outcome::Failed(Error::Injected));
                } else {
                    self.file.as_mut().expect("a file").complete(write);
                    self.volume.done(id, Outcome::Done);
                }
            }
            Task::SyncFile(id, writes) => {
                self.file.as_mut().expect("a file").make_durable(&writes);
                self.volume.done(id, Outcome::Done);
            }
            Task::Fetch(id) => self.fetch(id),
            Task::Open(id, sources) => self.open(id, &sources),
            Task::Examine(id, blocks) => self.examine(id, blocks),
            Task::Seal(id, runs, generations) => self.seal(id, &runs, &generations),
            Task::Store(id, mut writes, contexts) => {
                if let Some(write) = writes.pop() {
                    if self.is_hit(self.faults.failed_write) {
                        self.disk.fail(write, &mut self.random);
                        writes.into_iter().for_each(|write| self.disk.complete(write));
                        self.volume.sealed(id, Err(Error::Injected));
                    } else {
                        self.disk.complete(write);
                        self.tasks.push(Task::Store(id, writes, contexts));
                    }
                } else {
                    self.volume.sealed(id, Ok(&contexts));
                }
            }
        }
        self.poll();
        true
    }

    fn is_hit(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.random.one_in(one_in)
    }

    fn slots(&self, slots: Range<u32>) -> Vec<u8> {
        slots.flat_map(|slot| self.pool[&slot].iter().copied()).collect()
    }

    fn begin(&mut self, id: OperationId, operation: Operation) {
        match operation {
            Operation::Read { offset, length } => {
                self.reads += 1;
                let end = offset + length as u64;
                let is_unreadable =
                    self.unreadable.iter().any(|range| range.start < end && offset < range.end);
                let outcome = if is_unreadable || self.is_hit(self.faults.failed_read) {
                    self.losses += u64::from(offset == SEGMENT);
                    Outcome::Failed(Error::Injected)
                } else {
                    let mut bytes = vec![0; length];
                    self.disk.read(offset, &mut bytes, &mut self.random);
                    Outcome::Read(bytes)
                };
                self.volume.done(id, outcome);
            }
            Operation::Write { offset, bytes } => {
                let write = self.disk.submit(offset, &bytes);
                self.tasks.push(Task::Write(id, write, None));
            }
            Operation::WriteSlots { offset, slots } => {
                let bytes = self.slots(slots.clone());
                let write = self.disk.submit(offset, &bytes);
                self.tasks.push(Task::Write(id, write, Some((slots, bytes))));
            }
            Operation::FillSlot { slot, bytes } => {
                self.pool.insert(slot, bytes);
                self.volume.done(id, Outcome::Done);
            }
            Operation::Barrier => self.tasks.push(Task::Barrier(id, self.disk.completed())),
            Operation::ReadLedger { offset, length } => {
                let bytes = self.file.as_ref().expect("a file").read(offset, length);
                self.volume.done(id, Outcome::Read(bytes));
            }
            Operation::WriteLedger { offset, bytes } => {
                let write = self.file.as_mut().expect("a file").submit(offset, bytes);
                self.tasks.push(Task::WriteFile(id, write));
            }
            Operation::SyncLedger => {
                let completed = self.file.as_ref().expect("a file").completed();
                self.tasks.push(Task::SyncFile(id, completed));
            }
        }
    }

    fn sealer(&mut self) -> Rc<Sealer> {
        self.sealer.get_or_insert_with(|| Rc::new(self.volume.sealer())).clone()
    }

    /// The content of a block, and which candidate it verified with.
    fn content(&mut self, block: u64, source: Source) -> Result<(Vec<u8>, u8), ReadError<Error>> {
        let sealer = self.sealer();
        let mut data = vec![0; BLOCK_BYTES];
        let broken = |_| ReadError::Unverified { block };
        match source {
            Source::Zeroes => Ok((data, 0)),
            Source::Invalid => Err(ReadError::Unverified { block }),
            Source::Held { slot, context } => {
                data.copy_from_slice(&self.pool[&slot]);
                sealer.open(block, &context, &mut data).expect("memory does not change");
                Ok((data, 0))
            }
            Source::Stored(candidates) => {
                if self.is_hit(self.faults.failed_read) {
                    return Err(ReadError::Storage(Error::Injected));
                }
                self.disk.read(self.volume.layout().data_offset(block), &mut data, &mut self.random);
                let found = sealer.open_any(block, &candidates, &mut data).map_err(broken)?;
                Ok((data, found))
            }
        }
    }

    fn fetch(&mut self, id: RequestId) {
        let is_opened = self.tasks.iter().any(|task| matches!(task, Task::Open(other, _) if *other == id));
        let Some(Request::Read { offset, length }) = self.pending.get(&id).map(|pending| pending.request)
        else {
            return;
        };
        if is_opened {
            return;
        }
        let blocks = offset / BLOCK_BYTES as u64..(offset + length).div_ceil(BLOCK_BYTES as u64);
        let mut bytes = vec![0; (blocks.end - blocks.start) as usize * BLOCK_BYTES];
        self.disk.read(self.volume.layout().data_offset(blocks.start), &mut bytes, &mut self.random);
        self.pending.get_mut(&id).expect("a request under way").fetched = Some(bytes);
    }

    fn open(&mut self, id: RequestId, sources: &[Source]) {
        let Request::Read { offset, length } = self.pending[&id].request else { panic!("not a read") };
        let first = offset / BLOCK_BYTES as u64;
        let mut data = Vec::new();
        let fetched = self.pending.get_mut(&id).expect("a request under way").fetched.take();
        for (block, source) in (first..).zip(sources) {
            let content = match (&fetched, source) {
                (Some(fetched), Source::Stored(candidates)) => {
                    let mut data = fetched[(block - first) as usize * BLOCK_BYTES..][..BLOCK_BYTES].to_vec();
                    let found = self.sealer().open_any(block, candidates, &mut data);
                    found.map(|found| (data, found)).map_err(|_| ReadError::Unverified { block })
                }
                _ => self.content(block, *source),
            };
            match content {
                Ok((bytes, _)) => data.extend(bytes),
                Err(error) => return self.volume.opened(id, Err(error)),
            }
        }
        let start = (offset % BLOCK_BYTES as u64) as usize;
        data.drain(..start);
        data.truncate(length as usize);
        self.pending.get_mut(&id).expect("a request under way").data = data;
        self.volume.opened(id, Ok(()));
    }

    fn examine(&mut self, id: RequestId, blocks: Vec<(u64, Source)>) {
        let mut found = Vec::new();
        for (block, source) in blocks {
            match self.content(block, source) {
                Ok((bytes, candidate)) => {
                    self.pending.get_mut(&id).expect("a request under way").merged.insert(block, bytes);
                    found.push(Some(candidate));
                }
                Err(ReadError::Unverified { .. }) => found.push(None),
                Err(ReadError::Storage(error)) => return self.volume.examined(id, Err(error)),
            }
        }
        self.volume.examined(id, Ok(found));
    }

    fn seal(&mut self, id: RequestId, runs: &[Run], generations: &[Generation]) {
        let sealer = self.sealer();
        let pending = &self.pending[&id];
        let Request::Write { offset, length } = pending.request else { panic!("not a write") };
        let first = offset / BLOCK_BYTES as u64;
        let (mut contexts, mut writes) = (Vec::new(), Vec::new());
        for run in runs {
            let mut stored = Vec::new();
            for index in 0..run.count {
                let block = run.block + u64::from(index);
                let start = block * BLOCK_BYTES as u64;
                let mut plain = vec![0; BLOCK_BYTES];
                let covered = offset.max(start)..(offset + length).min(start + BLOCK_BYTES as u64);
                if covered.end - covered.start < BLOCK_BYTES as u64 {
                    plain.copy_from_slice(&pending.merged[&block]);
                }
                plain[(covered.start - start) as usize..(covered.end - start) as usize].copy_from_slice(
                    &pending.data[(covered.start - offset) as usize..(covered.end - offset) as usize],
                );
                let mut nonce = [0; 28];
                for chunk in nonce.chunks_mut(8) {
                    chunk.copy_from_slice(&self.random.next().to_le_bytes()[..chunk.len()]);
                }
                let nonce = &nonce[..self.cipher.nonce_bytes()];
                let generation = generations[(block - first) as usize];
                let mut sealed = vec![0; BLOCK_BYTES];
                contexts.push(sealer.seal(block, generation, nonce, &plain, &mut sealed));
                match run.place {
                    Place::Slot(slot) => drop(self.pool.insert(slot + index, sealed)),
                    Place::Storage => stored.extend(sealed),
                }
            }
            if run.place == Place::Storage {
                let offset = self.volume.layout().data_offset(run.block);
                writes.push(self.disk.submit(offset, &stored));
            }
        }
        self.tasks.push(Task::Store(id, writes, contexts));
    }

    /// Runs a request to its end; the data of a read.
    pub(super) fn perform(&mut self, request: Request, data: Vec<u8>) -> Result<Vec<u8>, Fault> {
        let id = self.submit(request, data);
        self.run();
        let at =
            self.completed.iter().position(|completed| completed.id == id).expect("the request completes");
        let completed = self.completed.swap_remove(at);
        completed.result.map(|()| completed.data)
    }

    pub(super) fn read(&mut self, block: u64) -> Result<Vec<u8>, Fault> {
        let offset = block * BLOCK_BYTES as u64;
        self.perform(Request::Read { offset, length: BLOCK_BYTES as u64 }, Vec::new())
    }

    pub(super) fn write(&mut self, block: u64, data: Vec<u8>) -> Result<(), Fault> {
        let offset = block * BLOCK_BYTES as u64;
        self.perform(Request::Write { offset, length: data.len() as u64 }, data).map(drop)
    }

    pub(super) fn flush(&mut self) -> Result<(), Fault> {
        self.perform(Request::Flush, Vec::new()).map(drop)
    }
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));
const _: fn(&Candidates) -> Context = |candidates| candidates.first;
