//! An authenticated volume whose storage answers in any order, fails, dies, and changes, exchanges and returns old bytes.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use volume::auth::{
    Action, BLOCK_BYTES, Cipher, Context, Failure, Keys, Layout, Operation, OperationId, Outcome, Place,
    ReadError, Request, RequestId, Run, Sealer, Source as Content, Unit, Volume, format,
};

use crate::Source;

const PAGE_BYTES: u64 = 4096;
/// Of AEGIS-256X4 two groups, the second one not full.
const BLOCKS: u64 = 170;
/// Blocks that requests begin at.
const PLACES: [u64; 6] = [0, 1, 38, 39, 159, 166];
const STEPS_MAX: usize = 400;
const REQUESTS_MAX: usize = 6;

/// What can be done next.
enum Task {
    Operate(OperationId, Operation),
    Open(RequestId, Vec<Content>),
    Examine(RequestId, Vec<(u64, Content)>),
    Seal(RequestId, Vec<Run>, Vec<Context>, bool),
}

struct Provider {
    pages: HashMap<u64, Vec<u8>>,
    old: HashMap<u64, Vec<u8>>,
    /// It failed or changed something: requests may fail.
    is_hostile: bool,
}

impl Provider {
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let pages = offset / PAGE_BYTES..(offset + length as u64) / PAGE_BYTES;
        pages.flat_map(|page| self.pages.get(&page).cloned().unwrap_or_else(|| vec![0; 4096])).collect()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, bytes) in (offset / PAGE_BYTES..).zip(bytes.chunks(4096)) {
            let mut bytes = bytes.to_vec();
            bytes.resize(4096, 0);
            if let Some(old) = self.pages.insert(page, bytes) {
                self.old.insert(page, old);
            }
        }
    }

    fn change(&mut self, layout: &Layout, source: &mut Source<'_>) {
        self.is_hostile = true;
        let parts = [
            layout.superblock(0)..layout.superblock(1) + PAGE_BYTES,
            layout.map(),
            layout.pair(0).start..layout.pair(BLOCKS - 1).end,
            layout.data_offset(0)..layout.data_offset(BLOCKS),
        ];
        let pick = |source: &mut Source<'_>| {
            let part = &parts[source.below(parts.len())];
            part.start / PAGE_BYTES
                + source.below(((part.end - part.start).div_ceil(PAGE_BYTES)) as usize) as u64
        };
        let page = pick(source);
        match source.below(3) {
            0 => {
                let bytes = self.pages.entry(page).or_insert_with(|| vec![0; 4096]);
                bytes[usize::from(source.u16()) % 4096] ^= 1 << source.below(8);
            }
            1 => {
                let other = pick(source);
                let (left, right) = (self.pages.remove(&page), self.pages.remove(&other));
                self.pages.extend(right.map(|bytes| (page, bytes)));
                self.pages.extend(left.map(|bytes| (other, bytes)));
            }
            _ => {
                if let Some(old) = self.old.get(&page) {
                    self.pages.insert(page, old.clone());
                }
            }
        }
    }
}

struct Client<'a> {
    volume: Volume<()>,
    sealer: Option<Sealer>,
    cipher: Cipher,
    provider: Provider,
    pool: HashMap<u32, Vec<u8>>,
    tasks: Vec<Task>,
    requests: HashMap<RequestId, (Request, u8)>,
    /// Bytes that each block was ever filled with.
    written: HashMap<u64, BTreeSet<u8>>,
    nonces: u64,
    source: Source<'a>,
}

fn open(keys: &Keys, (cipher, unit): (Cipher, Unit), writer: u8) -> Volume<()> {
    let volume = Volume::new(keys.clone(), (cipher, unit, 0), u64::MAX, [writer; 16], false);
    volume.expect("a segment that is allowed")
}

impl Client<'_> {
    fn poll(&mut self) {
        while let Some(action) = self.volume.poll() {
            let task = match action {
                Action::Fetch { .. } => continue,
                Action::Open { id, sources } => Task::Open(id, sources),
                Action::Examine { id, blocks } => Task::Examine(id, blocks),
                Action::Operate { id, operation } => Task::Operate(id, operation),
                Action::Seal { id, runs, generations } => {
                    let empty = |generation| Context { generation, nonce: [0; 28], tag: [0; 16] };
                    Task::Seal(id, runs, generations.into_iter().map(empty).collect(), false)
                }
                Action::Complete { id, result } => {
                    self.requests.remove(&id).expect("a request ends once");
                    if !self.provider.is_hostile {
                        assert_eq!(result, Ok(()), "nothing failed");
                    }
                    assert_ne!(result, Err(Failure::OutOfRange), "requests are inside");
                    continue;
                }
            };
            self.tasks.push(task);
        }
    }

    fn sealer(&mut self) -> &Sealer {
        self.sealer.get_or_insert_with(|| self.volume.sealer())
    }

    /// The byte that fills the block, and which candidate opens it.
    fn content(&mut self, block: u64, content: Content) -> Option<(u8, u8)> {
        let offset = self.volume.layout().data_offset(block);
        let (mut data, candidate) = match content {
            Content::Zeroes => return Some((0, 0)),
            Content::Invalid => return None,
            Content::Held { slot, context } => {
                let mut data = self.pool[&slot].clone();
                self.sealer().open(block, &context, &mut data).expect("memory does not change");
                (data, 0)
            }
            Content::Stored(candidates) => {
                let mut data = self.provider.read(offset, BLOCK_BYTES);
                match self.sealer().open_any(block, &candidates, &mut data) {
                    Ok(candidate) => (data, candidate),
                    Err(_) => {
                        assert!(self.provider.is_hostile, "nothing was changed");
                        assert!(data.iter().all(|byte| *byte == 0), "nothing unverified is left");
                        return None;
                    }
                }
            }
        };
        let byte = data[0];
        assert!(self.written[&block].contains(&byte), "a block that verifies was written there");
        assert!(data.drain(..).all(|other| other == byte), "blocks are whole");
        Some((byte, candidate))
    }

    fn step(&mut self, index: usize) {
        match self.tasks.remove(index) {
            Task::Operate(id, operation) => {
                let outcome = if self.source.byte() == 255 {
                    self.provider.is_hostile = true;
                    Outcome::Failed(())
                } else {
                    self.operate(operation)
                };
                self.volume.done(id, outcome);
            }
            Task::Open(id, contents) => {
                let (Request::Read { offset, .. }, _) = self.requests[&id] else { panic!("not a read") };
                let blocks = (offset / BLOCK_BYTES as u64..).zip(contents);
                let mut result = Ok(());
                for (block, content) in blocks {
                    if self.content(block, content).is_none() {
                        result = result.and(Err(ReadError::Unverified { block }));
                    }
                }
                self.volume.opened(id, result);
            }
            Task::Examine(id, blocks) => {
                let found = blocks.into_iter().map(|(block, content)| Some(self.content(block, content)?.1));
                let found = found.collect();
                self.volume.examined(id, Ok(found));
            }
            Task::Seal(id, runs, mut contexts, false) => {
                self.seal(id, &runs, &mut contexts);
                self.tasks.push(Task::Seal(id, runs, contexts, true));
            }
            Task::Seal(id, _, contexts, true) => self.volume.sealed(id, Ok(&contexts)),
        }
        self.poll();
    }

    fn operate(&mut self, operation: Operation) -> Outcome<()> {
        match operation {
            Operation::Read { offset, length } => return Outcome::Read(self.provider.read(offset, length)),
            Operation::Write { offset, bytes } => self.provider.write(offset, &bytes),
            Operation::WriteSlots { offset, slots } => {
                let bytes: Vec<u8> = slots.flat_map(|slot| self.pool[&slot].clone()).collect();
                self.provider.write(offset, &bytes);
            }
            Operation::FillSlot { slot, bytes } => drop(self.pool.insert(slot, bytes)),
            Operation::Barrier => {}
            Operation::ReadLedger { .. } | Operation::WriteLedger { .. } | Operation::SyncLedger => {
                unreachable!("the volume has no freshness file")
            }
        }
        Outcome::Done
    }

    fn seal(&mut self, id: RequestId, runs: &[Run], contexts: &mut [Context]) {
        let (_, byte) = self.requests[&id];
        let mut contexts = contexts.iter_mut();
        for run in runs {
            for index in 0..run.count {
                let (block, context) = (run.block + u64::from(index), contexts.next().expect("one for each"));
                let mut nonce = [0; 28];
                self.nonces += 1;
                nonce[..8].copy_from_slice(&self.nonces.to_le_bytes());
                let nonce = &nonce[..self.cipher.nonce_bytes()];
                let (plain, mut sealed) = ([byte; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
                *context = self.sealer().seal(block, context.generation, nonce, &plain, &mut sealed);
                self.written.entry(block).or_default().insert(byte);
                match run.place {
                    Place::Slot(slot) => drop(self.pool.insert(slot + index, sealed)),
                    Place::Storage => {
                        let offset = self.volume.layout().data_offset(block);
                        self.provider.write(offset, &sealed);
                    }
                }
            }
        }
    }

    fn submit(&mut self, id: RequestId) {
        let first = PLACES[self.source.below(PLACES.len())];
        let count = [1, 2, 4, BLOCKS][self.source.below(4)].min(BLOCKS - first);
        let blocks: Range<u64> = first..first + count;
        let (offset, length) = (blocks.start * BLOCK_BYTES as u64, count * BLOCK_BYTES as u64);
        let request = match self.source.below(5) {
            0 | 1 => Request::Write { offset, length },
            2 => Request::Read { offset, length },
            3 => Request::Discard { offset, length },
            _ => Request::Flush,
        };
        self.requests.insert(id, (request, 1 + self.source.byte() % 255));
        self.volume.submit(id, request);
        self.poll();
    }
}

pub fn auth_volume(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    let cipher = Cipher::ALL[source.below(2)];
    let unit = [Unit::Bytes4096, Unit::Bytes512][source.below(2)];
    let keys = Keys::new(&[9; 64], "uuid", cipher, unit, 0);
    let layout = Layout::new(cipher, unit, 0, BLOCKS).expect("a layout");
    let mut provider = Provider { pages: HashMap::new(), old: HashMap::new(), is_hostile: false };
    for (offset, bytes) in format(&layout, &keys, BLOCKS) {
        provider.write(offset, &bytes);
    }
    let mut client = Client {
        volume: open(&keys, (cipher, unit), 1),
        sealer: None,
        cipher,
        provider,
        pool: HashMap::new(),
        tasks: Vec::new(),
        requests: HashMap::new(),
        written: HashMap::new(),
        nonces: 0,
        source,
    };
    client.poll();
    for step in 0..STEPS_MAX {
        if client.source.is_empty() {
            break;
        }
        match client.source.below(16) {
            0..=4 if client.requests.len() < REQUESTS_MAX => client.submit(step as u64),
            5 => {
                client.volume.write_out();
                client.poll();
            }
            6 => client.provider.change(&layout, &mut client.source),
            7 if client.source.below(4) == 3 => {
                client.volume = open(&keys, (cipher, unit), step as u8);
                client.tasks.clear();
                client.requests.clear();
                client.poll();
            }
            _ if !client.tasks.is_empty() => {
                let index = client.source.below(client.tasks.len());
                client.step(index);
            }
            _ => {}
        }
    }
    for _ in 0..100_000 {
        if client.tasks.is_empty() {
            assert!(client.requests.is_empty(), "requests end");
            return;
        }
        client.step(0);
    }
    panic!("the volume does not come to rest");
}
