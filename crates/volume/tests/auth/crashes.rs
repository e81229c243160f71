//! Power is lost after every step of short runs, and every subset of what was not durable is kept.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::Random;
use super::disk::{Disk, Image, Piece};
use super::file::File;
use super::machine::{Machine, SEGMENT, formatted, formatted_ledger};
use volume::auth::{BLOCK_BYTES, Cipher, Layout, PAGE_BYTES, Request, RequestId, Unit};

const BLOCKS: u64 = 4;

/// A version of a block: 0 is unwritten or discarded.
type Version = u64;

fn content(block: u64, version: Version) -> Vec<u8> {
    if version == 0 { vec![0; BLOCK_BYTES] } else { vec![(version * 16 + block + 1) as u8; BLOCK_BYTES] }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Write(u64),
    Discard(u64),
    Flush,
    /// What waits in memory is written, without a flush.
    WriteOut,
    /// The next request is submitted before earlier ones are complete.
    Beside,
}

/// What each block may hold after power loss.
#[derive(Clone)]
struct Expectation {
    /// Versions in the order of their submission.
    versions: Vec<Vec<Version>>,
    /// Index of the first one that may be read.
    floors: Vec<usize>,
    /// Index of the last one that is complete.
    completed: Vec<usize>,
    writes: Vec<(RequestId, u64, usize)>,
    /// Of each flush under way: what it makes durable.
    flushes: Vec<(RequestId, Vec<usize>)>,
}

impl Expectation {
    fn new(initial: &[Version]) -> Self {
        let count = initial.len();
        Self {
            versions: initial.iter().map(|version| vec![*version]).collect(),
            floors: vec![0; count],
            completed: vec![0; count],
            writes: Vec::new(),
            flushes: Vec::new(),
        }
    }

    /// Whether a flush ended.
    fn collect(&mut self, machine: &mut Machine) -> bool {
        let mut has_flushed = false;
        for completed in machine.completed.drain(..) {
            completed.result.expect("nothing fails");
            if let Some((_, block, index)) = self.writes.iter().find(|(id, ..)| *id == completed.id) {
                let last = &mut self.completed[*block as usize];
                *last = (*last).max(*index);
            }
            if let Some((_, floors)) = self.flushes.iter().find(|(id, _)| *id == completed.id) {
                has_flushed = true;
                for (floor, index) in self.floors.iter_mut().zip(floors) {
                    *floor = (*floor).max(*index);
                }
            }
        }
        has_flushed
    }

    fn allowed(&self, block: u64) -> Vec<Version> {
        self.versions[block as usize][self.floors[block as usize]..].to_vec()
    }
}

/// Checks what every subset of the pieces leaves, and counts the images looked at.
struct Checker {
    cipher: Cipher,
    unit: Unit,
    seen: HashSet<u64>,
    images: usize,
    /// Images with returned parts.
    returned: usize,
    /// Whether recovery is cut as well.
    cuts_recovery: bool,
    /// Whether every subset of the pieces is looked at, not only of the writes.
    cuts_pieces: bool,
    /// Whether the process is killed instead, and the power fails while another one recovers and writes.
    kills: bool,
    /// States of the disk when flushes ended: the provider returns them, or parts of them, to a volume with a ledger.
    flushed: Vec<Image>,
    random: Random,
}

/// Most pieces, or writes, of which every subset is looked at.
const PIECES_MAX: usize = 12;
/// Torn images of each kind, where not every subset of the pieces is looked at.
const TORN: usize = 4;
/// Most sectors of the file of which every subset is looked at.
const FILE_PIECES_MAX: usize = 3;

impl Checker {
    fn new(unit: Unit) -> Self {
        Self {
            cipher: Cipher::Aegis256X4,
            unit,
            seen: HashSet::new(),
            images: 0,
            returned: 0,
            cuts_recovery: unit == Unit::Bytes512,
            cuts_pieces: unit == Unit::Bytes4096,
            kills: false,
            flushed: Vec::new(),
            random: Random(1),
        }
    }

    /// The file after crashes of the client: every subset of few sectors, some of many.
    fn files(&mut self, file: Option<&File>) -> Vec<Option<Vec<u8>>> {
        let Some(file) = file else { return vec![None] };
        let pieces = file.volatile();
        let all = (1_u64 << pieces.len().min(63)) - 1;
        assert!(pieces.len() <= 64, "{} sectors", pieces.len());
        let masks: Vec<u64> = if pieces.len() <= FILE_PIECES_MAX {
            (0..=all).collect()
        } else {
            vec![0, all, self.random.next() & all]
        };
        let kept = |mask: u64| {
            let chosen = pieces.iter().enumerate().filter(move |(index, _)| mask >> index & 1 == 1);
            chosen.map(|(_, piece)| piece)
        };
        masks.into_iter().map(|mask| Some(file.image(kept(mask)))).collect()
    }

    fn subsets(&mut self, disk: &Disk) -> Vec<Image> {
        let writes = disk.volatile();
        let pieces: Vec<Piece> = writes.iter().flatten().cloned().collect();
        let mut masks: Vec<u64> = Vec::new();
        assert!(pieces.len() <= 64, "{} pieces", pieces.len());
        if self.cuts_pieces && pieces.len() <= PIECES_MAX {
            masks.extend(0..1 << pieces.len());
        } else {
            // Every subset of the writes, and torn ones at random.
            assert!(writes.len() <= PIECES_MAX, "{} writes", writes.len());
            let mut first = 0;
            let parts: Vec<u64> = writes
                .iter()
                .map(|pieces| {
                    let mask = ((1 << pieces.len()) - 1) << first;
                    first += pieces.len();
                    mask
                })
                .collect();
            masks.extend((0_u64..1 << parts.len()).map(|mask| {
                let kept = parts.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1);
                kept.map(|(_, part)| part).sum::<u64>()
            }));
            let torn = if pieces.len() > writes.len() { TORN } else { 0 };
            masks.extend((0..torn).map(|_| self.random.next() & self.random.next()));
            masks.extend((0..torn).map(|_| self.random.next() | self.random.next()));
        }
        let kept = |mask: u64| {
            let chosen = pieces.iter().enumerate().filter(move |(index, _)| mask >> index & 1 == 1);
            chosen.map(|(_, piece)| piece.clone())
        };
        masks.into_iter().map(|mask| disk.image(kept(mask))).collect()
    }

    fn collect(&mut self, expectation: &mut Expectation, machine: &mut Machine) {
        if expectation.collect(machine) && machine.file.is_some() {
            self.flushed.push(machine.disk.image(machine.disk.volatile().into_iter().flatten()));
        }
    }

    fn check(&mut self, machine: &Machine, expectation: &Expectation, what: &dyn Fn() -> String) {
        if self.kills {
            return self.kill(machine, expectation, what);
        }
        let allowed: Vec<Vec<Version>> = (0..BLOCKS).map(|block| expectation.allowed(block)).collect();
        let files = self.files(machine.file.as_ref());
        for image in self.subsets(&machine.disk) {
            for file in &files {
                self.check_image(&image, file.as_deref(), &allowed, self.cuts_recovery, what);
            }
        }
        if let Some(file) = &machine.file {
            let file = file.kept();
            let now = machine.disk.image(machine.disk.volatile().into_iter().flatten());
            for returned in std::mem::take(&mut self.flushed) {
                for (part, image) in returns(self.cipher, self.unit, &now, &returned) {
                    self.check_returned(&image, &file, &allowed, &|| format!("{part} returned, {}", what()));
                }
                self.flushed.push(returned);
            }
        }
    }

    /// Blocks of a disk whose parts the provider exchanged for older ones are errors or versions that power loss could
    /// leave.
    fn check_returned(
        &mut self,
        image: &Image,
        file: &[u8],
        allowed: &[Vec<Version>],
        what: &dyn Fn() -> String,
    ) {
        let mut hasher = DefaultHasher::new();
        (image.digest(), file, allowed, "returned").hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return;
        }
        self.returned += 1;
        let disk = Disk::new(self.unit, image.clone());
        let file = Some(File::new(file.to_vec()));
        let mut machine = Machine::with_file(self.cipher, disk, file, false, Random(2));
        machine.run();
        for block in 0..BLOCKS {
            let Ok(read) = machine.read(block) else { continue };
            let mut versions = allowed[block as usize].iter();
            assert!(
                versions.any(|version| content(block, *version) == read),
                "block {block} holds {:x?}.., not one of versions {:?}: {}",
                &read[..4],
                allowed[block as usize],
                what(),
            );
        }
    }

    /// The process ends while the storage goes on, so that what is not durable is seen by the next process. That one
    /// overwrites a block.
    fn kill(&mut self, killed: &Machine, expectation: &Expectation, what: &dyn Fn() -> String) {
        self.kills = false;
        let mut expectation = expectation.clone();
        expectation.completed.clone_from(&expectation.floors);
        expectation.writes.clear();
        expectation.flushes.clear();
        let (disk, file) =
            (killed.disk.after_kill(&mut self.random), killed.file.as_ref().map(File::after_kill));
        let mut machine = Machine::with_file(self.cipher, disk, file, false, Random(3));
        let version = 15;
        expectation.versions[0].push(version);
        let request = Request::Write { offset: 0, length: BLOCK_BYTES as u64 };
        let id = machine.submit(request, content(0, version));
        expectation.writes.push((id, 0, expectation.versions[0].len() - 1));
        for flushes in [false, true] {
            if flushes {
                let id = machine.submit(Request::Flush, Vec::new());
                expectation.flushes.push((id, expectation.completed.clone()));
            }
            while machine.step() {
                expectation.collect(&mut machine);
                self.check(&machine, &expectation, &|| format!("{}; killed", what()));
            }
        }
        self.kills = true;
    }

    fn check_image(
        &mut self,
        image: &Image,
        file: Option<&[u8]>,
        allowed: &[Vec<Version>],
        cuts_recovery: bool,
        what: &dyn Fn() -> String,
    ) {
        let mut hasher = DefaultHasher::new();
        (image.digest(), file, allowed, cuts_recovery).hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return;
        }
        self.images += 1;
        let open = |is_read_only| {
            let disk = Disk::new(self.unit, image.clone());
            let file = file.map(|file| File::new(file.to_vec()));
            Machine::with_file(self.cipher, disk, file, is_read_only, Random(2))
        };
        let mut machine = open(false);
        let mut reader = file.map(|_| open(true));
        // The ledger's recovery leaves nothing that needs the ledger.
        let mut without = file.map(|_| Machine::on(self.cipher, self.unit, image.clone()));
        let mut steps = 0;
        while machine.step() {
            steps += 1;
            let file_changes = || machine.file.as_ref().is_some_and(|file| !file.volatile().is_empty());
            if cuts_recovery && (!machine.disk.volatile().is_empty() || file_changes()) {
                let files = self.files(machine.file.as_ref());
                for image in self.subsets(&machine.disk) {
                    for file in &files {
                        self.check_image(&image, file.as_deref(), allowed, false, &|| {
                            format!("{}; recovery cut at {steps}", what())
                        });
                    }
                }
            }
        }
        if let Some(reader) = &mut reader {
            reader.run();
        }
        for block in 0..BLOCKS {
            let read =
                machine.read(block).unwrap_or_else(|error| panic!("block {block}: {error:?}: {}", what()));
            if let Some(reader) = &mut reader {
                assert_eq!(reader.read(block), Ok(read.clone()), "block {block} by a reader: {}", what());
            }
            if let Some(without) = &mut without {
                let read = without.read(block);
                let mut versions = allowed[block as usize].iter();
                assert!(
                    versions.any(|version| read == Ok(content(block, *version))),
                    "block {block} without the ledger: {read:.20?}: {}",
                    what()
                );
            }
            let found = allowed[block as usize].iter().find(|version| content(block, **version) == read);
            assert!(
                found.is_some(),
                "block {block} holds {:x?}.., not one of versions {:?}: {}",
                &read[..4],
                allowed[block as usize],
                what(),
            );
        }
    }
}

/// The disk with a part of another state of it, or all but that part; with what was returned.
fn returns(cipher: Cipher, unit: Unit, now: &Image, returned: &Image) -> Vec<(String, Image)> {
    let layout = Layout::new(cipher, unit, SEGMENT, BLOCKS).expect("a layout");
    let page = PAGE_BYTES as u64;
    let contexts = layout.map().end;
    let journal = contexts + 4 * page;
    let mut parts = vec![
        ("superblocks".to_owned(), layout.superblock(0)..layout.map().start),
        ("map".to_owned(), layout.map()),
        ("contexts".to_owned(), contexts..journal),
        ("journal".to_owned(), journal..layout.data_offset(0)),
    ];
    parts.extend(
        (0..BLOCKS).map(|block| {
            (format!("block {block}"), layout.data_offset(block)..layout.data_offset(block + 1))
        }),
    );
    let mut images = vec![("all".to_owned(), returned.clone())];
    for (name, range) in parts {
        for (name, into, from) in [(name.clone(), now, returned), (format!("all but {name}"), returned, now)]
        {
            let mut image = into.clone();
            let mut bytes = [0; PAGE_BYTES];
            for offset in range.clone().step_by(PAGE_BYTES) {
                from.read(offset, &mut bytes);
                image.write(offset, &bytes);
            }
            images.push((name, image));
        }
    }
    images
}

/// Blocks in the order of their first use get numbers in that order: other scripts are the same one.
fn patterns(writes: usize) -> Vec<Vec<u64>> {
    let mut patterns = vec![vec![]];
    for _ in 0..writes {
        patterns = patterns
            .into_iter()
            .flat_map(|pattern: Vec<u64>| {
                let next = pattern.iter().max().map_or(0, |last| last + 1);
                (0..=next.min(BLOCKS - 1)).map(move |block| [pattern.clone(), vec![block]].concat())
            })
            .collect();
    }
    patterns
}

fn scripts(with_discards: bool) -> Vec<Vec<Step>> {
    let between: [&[Step]; 7] = [
        &[],
        &[Step::WriteOut],
        &[Step::Beside, Step::WriteOut, Step::Beside],
        &[Step::Beside],
        &[Step::Flush],
        &[Step::Flush, Step::Beside],
        &[Step::Beside, Step::Flush, Step::Beside],
    ];
    let kinds = if with_discards { 1..8 } else { 0..1 };
    let mut scripts = Vec::new();
    for pattern in patterns(3) {
        for kinds in kinds.clone() {
            let request = |index: usize| {
                let block = pattern[index];
                if kinds >> index & 1 == 1 { Step::Discard(block) } else { Step::Write(block) }
            };
            for first in between {
                for second in between {
                    let parts: [&[Step]; 6] =
                        [&[request(0)], first, &[request(1)], second, &[request(2)], &[Step::Flush]];
                    scripts.push(parts.concat());
                }
            }
        }
    }
    scripts
}

/// A disk, and the file of its ledger.
type State = (Image, Option<Vec<u8>>);

/// Runs a script on a volume whose first `written` blocks hold version 1, and checks every cut.
fn run(checker: &mut Checker, initial: &State, written: u64, script: &[Step], seed: u64) {
    let versions: Vec<Version> = (0..BLOCKS).map(|block| u64::from(block < written)).collect();
    let mut expectation = Expectation::new(&versions);
    let (image, file) = initial;
    let disk = Disk::new(checker.unit, image.clone());
    let mut machine =
        Machine::with_file(checker.cipher, disk, file.clone().map(File::new), false, Random(seed));
    machine.is_ordered = seed == 0;
    checker.flushed = vec![image.clone()];
    let mut next: Version = 2;
    let mut is_beside = false;
    for (index, step) in script.iter().enumerate() {
        let what = || format!("step {index} of {script:?}, {written} blocks written, seed {seed}");
        if !is_beside {
            while machine.step() {
                checker.collect(&mut expectation, &mut machine);
                checker.check(&machine, &expectation, &what);
            }
        }
        is_beside = false;
        let length = BLOCK_BYTES as u64;
        match step {
            Step::Write(block) | Step::Discard(block) => {
                let offset = block * BLOCK_BYTES as u64;
                let is_write = matches!(step, Step::Write(_));
                let version = if is_write { next } else { 0 };
                next += 1;
                expectation.versions[*block as usize].push(version);
                let last = expectation.versions[*block as usize].len() - 1;
                let request = if is_write {
                    Request::Write { offset, length }
                } else {
                    Request::Discard { offset, length }
                };
                let id = machine.submit(request, content(*block, version));
                expectation.writes.push((id, *block, last));
            }
            Step::Flush => {
                checker.collect(&mut expectation, &mut machine);
                let completed = expectation.completed.clone();
                let id = machine.submit(Request::Flush, Vec::new());
                expectation.flushes.push((id, completed));
            }
            Step::WriteOut => machine.write_out(),
            Step::Beside => {
                is_beside = true;
                // Some steps, so that what comes next finds earlier requests half done.
                for _ in 0..seed % 5 {
                    machine.step();
                    checker.collect(&mut expectation, &mut machine);
                    checker.check(&machine, &expectation, &what);
                }
            }
        }
        checker.collect(&mut expectation, &mut machine);
        checker.check(&machine, &expectation, &what);
    }
    while machine.step() {
        checker.collect(&mut expectation, &mut machine);
        checker.check(&machine, &expectation, &|| format!("end of {script:?}, seed {seed}"));
    }
    assert_eq!(machine.pending(), 0, "all requests complete: {script:?}, seed {seed}");
    for block in 0..BLOCKS {
        let last = *expectation.versions[block as usize].last().expect("a version");
        assert_eq!(machine.read(block), Ok(content(block, last)), "block {block} of {script:?}, seed {seed}");
    }
}

/// A volume whose first `written` blocks hold version 1. `is_closed`: opened and closed since, or not.
fn initial(cipher: Cipher, unit: Unit, written: u64, is_closed: bool, with_ledger: bool) -> State {
    let disk = Disk::new(unit, formatted(cipher, unit, BLOCKS));
    let file = with_ledger.then(|| File::new(formatted_ledger(cipher, unit, BLOCKS)));
    let mut machine = Machine::with_file(cipher, disk, file, false, Random(1));
    machine.run();
    for block in 0..written {
        machine.write(block, content(block, 1)).expect("nothing fails");
    }
    if written > 0 {
        machine.flush().expect("nothing fails");
    }
    if is_closed {
        machine.perform(Request::Close, Vec::new()).expect("nothing fails");
    }
    let image = machine.disk.image(machine.disk.volatile().into_iter().flatten());
    (image, machine.file.map(|file| file.kept()))
}

/// With this environment variable every script is run, otherwise one of each so many.
const ALL_SCRIPTS: &str = "HIKYAKU_ALL_CRASHES";

fn exhaust(unit: Unit, written: u64, with_discards: bool, seeds: &[u64], one_of: usize) {
    exhaust_with(unit, written, with_discards, false, (seeds, one_of));
}

fn exhaust_with(
    unit: Unit,
    written: u64,
    with_discards: bool,
    with_ledger: bool,
    (seeds, one_of): (&[u64], usize),
) {
    let mut checker = Checker::new(unit);
    checker.cuts_recovery |= with_ledger;
    let initial = initial(checker.cipher, unit, written, written != 1, with_ledger);
    let step = if std::env::var_os(ALL_SCRIPTS).is_some() { 1 } else { one_of };
    for script in scripts(with_discards).into_iter().step_by(step) {
        for seed in seeds {
            checker.seen.clear();
            run(&mut checker, &initial, written, &script, *seed);
        }
    }
    println!("{} images, {} with returned parts", checker.images, checker.returned);
    assert!(checker.images > 1000, "{} images", checker.images);
}

#[test]
fn three_first_writes_unit_4096() {
    exhaust(Unit::Bytes4096, 0, false, &[0, 1, 2, 3, 4], 5);
}

#[test]
fn three_writes_beside_a_written_block_unit_4096() {
    exhaust(Unit::Bytes4096, 1, false, &[0, 1, 2, 3, 4], 1);
}

#[test]
fn three_overwrites_unit_4096() {
    exhaust(Unit::Bytes4096, BLOCKS, false, &[0, 1, 2, 3, 4], 1);
}

#[test]
fn three_writes_and_discards_unit_4096() {
    exhaust(Unit::Bytes4096, 1, true, &[0], 1);
}

#[test]
fn three_overwrites_and_discards_unit_4096() {
    exhaust(Unit::Bytes4096, BLOCKS, true, &[3], 1);
}

#[test]
fn three_first_writes_unit_512() {
    exhaust(Unit::Bytes512, 0, false, &[0, 3], 31);
}

#[test]
fn three_overwrites_unit_512() {
    exhaust(Unit::Bytes512, BLOCKS, false, &[3], 37);
}

#[test]
fn three_overwrites_and_discards_unit_512() {
    exhaust(Unit::Bytes512, BLOCKS, true, &[3], 83);
}

fn kill(unit: Unit, written: u64, one_of: usize) {
    let step = if std::env::var_os(ALL_SCRIPTS).is_some() { 1 } else { one_of };
    kill_in(unit, written, false, scripts(true).into_iter().step_by(step));
}

fn kill_in(unit: Unit, written: u64, with_ledger: bool, scripts: impl Iterator<Item = Vec<Step>>) {
    let mut checker = Checker::new(unit);
    checker.kills = true;
    checker.cuts_recovery = false;
    let initial = initial(checker.cipher, unit, written, true, with_ledger);
    for script in scripts {
        checker.seen.clear();
        run(&mut checker, &initial, written, &script, 0);
    }
    println!("{} images", checker.images);
}

#[test]
fn killed_process_then_power_loss_unit_4096() {
    kill(Unit::Bytes4096, BLOCKS, 60);
}

#[test]
fn killed_process_then_power_loss_unit_512() {
    kill(Unit::Bytes512, BLOCKS, 200);
}

/// Each sector of the block, of its context and of the journal is kept or lost alone, in recovery too.
#[test]
fn one_overwritten_block_by_sectors() {
    let mut checker = Checker::new(Unit::Bytes512);
    checker.cuts_pieces = true;
    let initial = initial(checker.cipher, checker.unit, 1, true, false);
    run(&mut checker, &initial, 1, &[Step::Write(0), Step::Flush], 0);
    println!("{} images", checker.images);
}

#[test]
fn ledger_three_first_writes_unit_4096() {
    exhaust_with(Unit::Bytes4096, 0, false, true, (&[0, 3], 31));
}

#[test]
fn ledger_three_writes_beside_a_written_block_unit_4096() {
    exhaust_with(Unit::Bytes4096, 1, false, true, (&[0, 3], 29));
}

#[test]
fn ledger_three_overwrites_and_discards_unit_4096() {
    exhaust_with(Unit::Bytes4096, BLOCKS, true, true, (&[0, 3], 163));
}

#[test]
fn ledger_three_writes_and_discards_unit_512() {
    exhaust_with(Unit::Bytes512, 1, true, true, (&[0, 3], 613));
}

#[test]
fn ledger_three_overwrites_unit_512() {
    exhaust_with(Unit::Bytes512, BLOCKS, false, true, (&[0, 3], 127));
}

#[test]
fn ledger_killed_process_then_power_loss() {
    let scripts = [0, 1].map(|block| vec![Step::Write(block), Step::WriteOut]);
    kill_in(Unit::Bytes4096, 1, true, scripts.into_iter());
}
