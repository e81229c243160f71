//! Random runs: several clients, errors of the storage, lost caches, killed processes and power loss.

use std::collections::HashMap;
use std::ops::Range;

use super::Random;
use super::disk::Disk;
use super::file::File;
use super::machine::{Faults, Machine, formatted, formatted_ledger};
use volume::auth::{BLOCK_BYTES, Cipher, Failure, Request, RequestId, SECTOR_BYTES, Unit};

const BLOCKS: u64 = 700;
const SECTORS: u64 = BLOCKS * PER_BLOCK;
const PER_BLOCK: u64 = (BLOCK_BYTES / SECTOR_BYTES) as u64;

/// Number of the request that wrote a sector; 0: unwritten.
type Version = u64;

fn content(sector: u64, version: Version) -> Vec<u8> {
    if version == 0 {
        return vec![0; SECTOR_BYTES];
    }
    [sector, version].into_iter().cycle().flat_map(u64::to_le_bytes).take(SECTOR_BYTES).collect()
}

/// What is known of a sector.
#[derive(Clone, Debug)]
struct Sector {
    /// In the order of submission.
    versions: Vec<Version>,
    /// Index of the first one that may be found after power loss.
    durable: usize,
    /// Index of the last complete one that was not lost.
    complete: usize,
}

enum Kind {
    Read(Vec<usize>),
    Write,
    Flush(HashMap<u64, usize>),
}

struct UnderWay {
    sectors: Range<u64>,
    indices: Vec<usize>,
    kind: Kind,
}

struct Model {
    sectors: HashMap<u64, Sector>,
    under_way: HashMap<RequestId, UnderWay>,
    next: Version,
    losses: u64,
}

impl Model {
    fn sector(&mut self, sector: u64) -> &mut Sector {
        self.sectors.entry(sector).or_insert_with(|| Sector { versions: vec![0], durable: 0, complete: 0 })
    }

    /// Completed writes that were not flushed may be lost from now on.
    fn lose(&mut self) {
        for sector in self.sectors.values_mut() {
            sector.complete = sector.durable;
        }
        let durable: HashMap<u64, usize> =
            self.sectors.iter().map(|(number, sector)| (*number, sector.durable)).collect();
        for request in self.under_way.values_mut() {
            match &mut request.kind {
                Kind::Read(floors) => {
                    for (sector, floor) in request.sectors.clone().zip(floors) {
                        *floor = (*floor).min(durable[&sector]);
                    }
                }
                Kind::Flush(floors) => floors.clone_from(&durable),
                Kind::Write => {}
            }
        }
    }

    /// Runs until nothing is left to do.
    fn run(&mut self, machine: &mut Machine, what: &str) {
        while machine.step() {
            self.collect(machine, what);
        }
        self.collect(machine, what);
    }

    fn collect(&mut self, machine: &mut Machine, what: &str) {
        if machine.losses != self.losses {
            self.losses = machine.losses;
            self.lose();
        }
        for completed in std::mem::take(&mut machine.completed) {
            let request = self.under_way.remove(&completed.id).expect("a request under way");
            match completed.result {
                Ok(()) => {}
                Err(Failure::Storage(_)) => continue,
                Err(failure) => panic!("{failure:?}: {what}"),
            }
            match request.kind {
                Kind::Write => {
                    for (number, index) in request.sectors.zip(request.indices) {
                        let sector = self.sector(number);
                        sector.complete = sector.complete.max(index);
                    }
                }
                Kind::Flush(floors) => {
                    for (number, floor) in floors {
                        let sector = self.sector(number);
                        sector.durable = sector.durable.max(floor);
                    }
                }
                Kind::Read(floors) => {
                    let data = completed.data.chunks(SECTOR_BYTES);
                    for ((number, floor), data) in request.sectors.zip(floors).zip(data) {
                        let sector = self.sector(number);
                        let is_one =
                            sector.versions[floor..].iter().any(|version| content(number, *version) == data);
                        assert!(
                            is_one,
                            "sector {number} holds {:x?}, {sector:?} from {floor}: {what}",
                            &data[..16]
                        );
                    }
                }
            }
        }
    }
}

fn submit(machine: &mut Machine, model: &mut Model, random: &mut Random) {
    // Most requests touch few places, at the edges of pages and groups too.
    let around = [0, 38, 60, 158, 254, 318, 480, 690];
    let first = around[random.below(around.len() as u64) as usize] + random.below(6);
    let (mut sectors, kind) = match random.below(20) {
        0..=5 => (first * PER_BLOCK..(first + 1 + random.below(4)) * PER_BLOCK, 'r'),
        6..=12 => (first * PER_BLOCK..(first + 1 + random.below(4)) * PER_BLOCK, 'w'),
        13..=15 => {
            let start = first * PER_BLOCK + random.below(8);
            (start..start + 1 + random.below(12), 'w')
        }
        16 => (first * PER_BLOCK..(first + 1 + random.below(4)) * PER_BLOCK, 'd'),
        17 if random.one_in(4) => (first * PER_BLOCK..(first + random.below(400) + 1) * PER_BLOCK, 'd'),
        _ => (0..0, 'f'),
    };
    sectors.end = sectors.end.min(SECTORS);
    let offset = sectors.start * SECTOR_BYTES as u64;
    let length = (sectors.end - sectors.start) * SECTOR_BYTES as u64;
    let numbers: Vec<u64> = sectors.clone().collect();
    let (request, data, kind, indices) = match kind {
        'r' => {
            let floors = numbers.iter().map(|number| model.sector(*number).complete).collect();
            (Request::Read { offset, length }, Vec::new(), Kind::Read(floors), Vec::new())
        }
        'w' | 'd' => {
            model.next += 1;
            let version = if kind == 'w' { model.next } else { 0 };
            let indices = numbers.iter().map(|number| {
                let sector = model.sector(*number);
                sector.versions.push(version);
                sector.versions.len() - 1
            });
            let indices: Vec<usize> = indices.collect();
            let request = if kind == 'w' {
                Request::Write { offset, length }
            } else {
                Request::Discard { offset, length }
            };
            let data = numbers.iter().flat_map(|number| content(*number, version)).collect();
            (request, data, Kind::Write, indices)
        }
        _ => {
            let floors = model.sectors.iter().map(|(number, sector)| (*number, sector.complete)).collect();
            (Request::Flush, Vec::new(), Kind::Flush(floors), Vec::new())
        }
    };
    let id = machine.submit(request, data);
    model.under_way.insert(id, UnderWay { sectors, indices, kind });
}

fn reopen(cipher: Cipher, disk: Disk, file: Option<File>, random: &mut Random, faults: Faults) -> Machine {
    let mut machine = Machine::with_file(cipher, disk, file, false, Random(random.next()));
    (machine.faults, machine.is_ordered) = (faults, false);
    machine
}

fn run(cipher: Cipher, unit: Unit, with_ledger: bool, seed: u64) {
    let mut random = Random(seed);
    let rate = |random: &mut Random, one_in: u64| if random.one_in(2) { 0 } else { one_in };
    let faults = Faults {
        failed_write: rate(&mut random, 150),
        failed_read: rate(&mut random, 150),
        lost_cache: rate(&mut random, 15),
    };
    let mut model = Model { sectors: HashMap::new(), under_way: HashMap::new(), next: 0, losses: 0 };
    let disk = Disk::new(unit, formatted(cipher, unit, BLOCKS));
    let file = with_ledger.then(|| File::new(formatted_ledger(cipher, unit, BLOCKS)));
    let mut machine = reopen(cipher, disk, file, &mut random, faults);
    let what = format!("{cipher:?}, {unit:?}, seed {seed}");
    for _ in 0..6 {
        for _ in 0..random.below(120) {
            if machine.pending() < 12 {
                submit(&mut machine, &mut model, &mut random);
                model.collect(&mut machine, &what);
            }
            if random.one_in(15) {
                machine.write_out();
                model.collect(&mut machine, &what);
            }
            for _ in 0..random.below(12) {
                machine.step();
                model.collect(&mut machine, &what);
            }
        }
        match random.below(4) {
            // The process goes on.
            0 => {}
            1 => {
                model.run(&mut machine, &what);
                let id = machine.submit(Request::Close, Vec::new());
                let floors =
                    model.sectors.iter().map(|(number, sector)| (*number, sector.complete)).collect();
                model
                    .under_way
                    .insert(id, UnderWay { sectors: 0..0, indices: Vec::new(), kind: Kind::Flush(floors) });
                model.run(&mut machine, &what);
                let disk = machine.disk.after_kill(&mut random);
                let file = machine.file.map(|file| file.after_kill());
                machine = reopen(cipher, disk, file, &mut random, faults);
                model.losses = 0;
                model.lose();
            }
            // The process ends, then the storage loses power or not.
            kind => {
                model.under_way.clear();
                model.lose();
                model.losses = 0;
                let mut disk = machine.disk.after_kill(&mut random);
                if kind == 2 {
                    disk.lose_power(&mut random);
                }
                let client_crashes = random.one_in(2);
                let file = machine.file.map(|file| {
                    if client_crashes { file.after_crash(&mut random) } else { file.after_kill() }
                });
                machine = reopen(cipher, disk, file, &mut random, faults);
            }
        }
    }
    machine.faults = Faults::default();
    model.run(&mut machine, &what);
    assert_eq!(machine.pending(), 0, "all requests complete: {what}");
    // Reports the last loss, if there was one.
    let _ = machine.flush();
    let complete: Vec<(u64, usize)> =
        model.sectors.iter().map(|(number, sector)| (*number, sector.complete)).collect();
    machine.flush().unwrap_or_else(|failure| panic!("{failure:?}: {what}"));
    for (number, index) in complete {
        model.sector(number).durable = index;
    }
    machine.disk.lose_power(&mut random);
    let file = machine.file.map(|file| file.after_crash(&mut random));
    let mut machine = reopen(cipher, machine.disk, file, &mut random, Faults::default());
    machine.run();
    for block in 0..BLOCKS {
        let read = machine.read(block).unwrap_or_else(|failure| panic!("block {block}: {failure:?}: {what}"));
        for (number, data) in (block * PER_BLOCK..).zip(read.chunks(SECTOR_BYTES)) {
            let sector = model.sector(number);
            let allowed = &sector.versions[sector.durable..];
            let is_one = allowed.iter().any(|version| content(number, *version) == data);
            assert!(is_one, "sector {number} holds {:x?}, {sector:?}: {what}", &data[..16]);
        }
    }
}

/// With this environment variable, so many seeds are run instead of a few.
const SEEDS: &str = "HIKYAKU_AUTH_SEEDS";

fn run_all(cipher: Cipher, unit: Unit) {
    run_some(cipher, unit, false, if unit == Unit::Bytes512 { 8 } else { 30 });
}

fn run_some(cipher: Cipher, unit: Unit, with_ledger: bool, few: u64) {
    let seeds = std::env::var(SEEDS).map_or(few, |seeds| seeds.parse().expect("a number of seeds"));
    (0..seeds).for_each(|seed| run(cipher, unit, with_ledger, seed));
}

#[test]
fn random_runs_with_a_ledger() {
    run_some(Cipher::Aegis256X4, Unit::Bytes4096, true, 15);
    run_some(Cipher::Aes256GcmSiv, Unit::Bytes4096, true, 10);
    run_some(Cipher::Aegis256X4, Unit::Bytes512, true, 5);
}

#[test]
fn random_runs_aegis_unit_4096() {
    run_all(Cipher::Aegis256X4, Unit::Bytes4096);
}

#[test]
fn random_runs_aegis_unit_512() {
    run_all(Cipher::Aegis256X4, Unit::Bytes512);
}

#[test]
fn random_runs_gcm_siv_unit_4096() {
    run_all(Cipher::Aes256GcmSiv, Unit::Bytes4096);
}

#[test]
fn random_runs_gcm_siv_unit_512() {
    run_all(Cipher::Aes256GcmSiv, Unit::Bytes512);
}
