//! Random interleavings of requests, executions and answers: each read returns, for each block, bytes that the storage
//! held at some moment between the read's submission and its completion.

use std::collections::HashMap;

use super::*;

const BLOCK: u64 = 512;
const BLOCKS: u64 = 96;
const ENDPOINTS: usize = 3;
const SEEDS: u64 = 400;
const STEPS: u64 = 600;
/// Requests outstanding.
const DEPTH_MAX: usize = 12;

/// A read in flight: its blocks, its buffer, and the time of its submission.
struct Read {
    blocks: Range<u64>,
    into: Span,
    since: u64,
}

struct Model {
    scene: Scene,
    random: Random,
    time: u64,
    /// Of each block the contents since a time, oldest first; the content of a block is a number of 8 bytes.
    history: Vec<Vec<(u64, u64)>>,
    written: u64,
    reads: HashMap<u64, Read>,
    changes: usize,
    /// Where each endpoint's sequential reader is.
    places: [u64; ENDPOINTS],
    compared: u64,
}

fn range(kind: &Kind) -> Range<u64> {
    kind.range().map_or(0..0, |(offset, length)| offset / BLOCK..(offset + length) / BLOCK)
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            scene: Scene::new(Far::new(BLOCKS * BLOCK, PATH_BYTES), Some(1 << 20), ENDPOINTS),
            random: Random(seed),
            time: 0,
            history: vec![vec![(0, 0)]; BLOCKS as usize],
            written: 0,
            reads: HashMap::new(),
            changes: 0,
            places: [0; ENDPOINTS],
            compared: 0,
        }
    }

    fn any_range(&mut self) -> (u64, u64) {
        let start = self.random.below(BLOCKS);
        (start * BLOCK, (1 + self.random.below(4.min(BLOCKS - start))) * BLOCK)
    }

    fn submit(&mut self) {
        let endpoint = self.random.below(ENDPOINTS as u64) as usize;
        let (offset, length) = self.any_range();
        let kind = match self.random.below(24) {
            // Mostly sequential reads.
            0..16 => {
                let blocks = 1 + self.random.below(2);
                if self.places[endpoint] + blocks > BLOCKS || self.random.below(40) == 0 {
                    self.places[endpoint] = self.random.below(BLOCKS / 2);
                }
                let offset = self.places[endpoint] * BLOCK;
                self.places[endpoint] += blocks;
                Kind::Read { offset, into: self.scene.filled((blocks * BLOCK) as usize, 0xEE) }
            }
            16..18 => Kind::Read { offset, into: self.scene.filled(length as usize, 0xEE) },
            18..21 => {
                self.written += 1;
                let bytes = self.written.to_le_bytes().repeat(length as usize / 8);
                let from = self.scene.filled(length as usize, 0);
                from.fill(0, &bytes);
                Kind::Write { offset, from, durable: false }
            }
            21 => Kind::Discard { offset, length },
            22 => Kind::WriteZeroes { offset, length, may_unmap: false },
            _ if self.random.below(4) == 0 => Kind::Flush,
            _ => return,
        };
        let read = match &kind {
            Kind::Read { into, .. } => {
                Some(Read { blocks: range(&kind), into: into.clone(), since: self.time })
            }
            _ => None,
        };
        self.changes += usize::from(read.is_none());
        // A read may be completed within the call.
        let next = self.scene.next();
        self.reads.extend(read.map(|read| (next, read)));
        assert_eq!(self.scene.submit(endpoint, kind), next);
    }

    fn execute(&mut self) {
        let mut disk = self.scene.far.disk();
        if disk.waiting.is_empty() {
            return;
        }
        let index = self.random.below(disk.waiting.len() as u64) as usize;
        let kind = disk.execute(index);
        if kind.is_write() {
            for block in range(&kind) {
                let at = (block * BLOCK) as usize;
                let content = u64::from_le_bytes(disk.bytes[at..at + 8].try_into().unwrap());
                self.history[block as usize].push((self.time, content));
            }
        }
    }

    fn deliver(&mut self) {
        let count = self.scene.far.disk().answered.len() as u64;
        if count > 0 {
            let index = self.random.below(count) as usize;
            self.scene.deliver(index);
        }
    }

    /// The session of one endpoint was lost, or a byte cannot be read any more; nothing that was written is lost.
    fn disturb(&mut self) {
        let mut disk = self.scene.far.disk();
        match self.random.below(2) {
            0 => disk.losses += 1,
            _ => disk.unreadable = (self.random.below(2) == 0).then(|| self.random.below(BLOCKS * BLOCK)),
        }
    }

    fn check(&mut self) -> Result<(), String> {
        for completion in std::mem::take(&mut self.scene.done) {
            let Some(Read { blocks, into, since }) = self.reads.remove(&completion.id) else {
                self.changes -= 1;
                continue;
            };
            if completion.result.is_err() {
                continue;
            }
            for (block, bytes) in blocks.zip(into.as_slice().chunks(BLOCK as usize)) {
                let words: Vec<u64> =
                    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
                let history = &self.history[block as usize];
                let first = history.iter().rposition(|(time, _)| *time <= since).unwrap();
                let is_possible = history[first..].iter().any(|(_, content)| *content == words[0]);
                if !is_possible || words.iter().any(|word| *word != words[0]) {
                    return Err(format!(
                        "read {} of block {block} since {since}, at {}: {}, of {:?}",
                        completion.id, self.time, words[0], history
                    ));
                }
                self.compared += 1;
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.time += 1;
        match self.random.below(100) {
            0..40 if self.reads.len() + self.changes < DEPTH_MAX => self.submit(),
            0..70 => self.execute(),
            70..99 => self.deliver(),
            _ if self.random.below(4) == 0 => self.disturb(),
            _ => {}
        }
        self.check()
    }

    fn finish(&mut self) -> Result<(), String> {
        while !self.reads.is_empty() || self.changes > 0 {
            self.time += 1;
            self.execute();
            self.deliver();
            self.check()?;
        }
        Ok(())
    }
}

#[test]
fn reads_return_what_the_storage_held_while_they_were_in_flight() {
    let first = std::env::var("SEED").ok().map(|seed| seed.parse::<u64>().expect("SEED is a number"));
    let seeds = first.map_or(0..SEEDS, |seed| seed..seed + 1);
    let (mut used, mut compared) = (0, 0);
    for seed in seeds.clone() {
        let mut model = Model::new(seed);
        let result = (0..STEPS).try_for_each(|_| model.step()).and_then(|()| model.finish());
        assert_eq!(result, Ok(()), "SEED={seed}");
        used += model.scene.shared.counters.used.load(Ordering::Relaxed) / BLOCK;
        compared += model.compared;
        drop(model.scene.endpoints.drain(..));
        let ledger = model.scene.shared.ledger();
        assert_eq!(ledger.in_use(), (0, 0, 0), "SEED={seed}");
    }
    assert!(used * 5 > compared, "{used} blocks of {compared} were read ahead");
}
