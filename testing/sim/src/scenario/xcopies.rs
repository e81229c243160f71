//! The target copies from one of its LUNs to another while connections are lost, copies are aborted and LUNs reset, the
//! target is killed or loses its power, and other clients write at both ends. [`ledger`](super::ledger) checks what
//! each copy may do, and when it must have ended.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iscsi::initiator::Event;
use iscsi::machine::TaskId;
use iscsi::wire::{TmFunction, TmResult};
use scsi::cdb;
use scsi::copy::{CopyList, Cscd, Segment};

use super::faults;
use super::host::{Answer, Broken, Host, answer, pause};
use super::ledger::{Extent, Ledger, OTHERS, Role, sector};
use super::process::Process;
use super::remote::{CopyJournal, Remote};
use super::target::{Target, naa};
use crate::disk::{Disk, SECTOR};
use crate::random::Random;
use crate::world::{Context, Over};

pub(super) const SECTORS: u64 = 1024;
const DESTINATION: u16 = 0;
pub(super) const SOURCE: u16 = 1;
/// Sectors of the source that no client writes: a copy with a journal needs an unchanged source.
pub(super) const KEPT: Range<u64> = 768..SECTORS;
const CLIENTS_MAX: u64 = 3;
/// Maximum number of segments of a copy, and of sectors per segment.
const SEGMENTS_MAX: u64 = 6;
const SEGMENT_SECTORS_MAX: u64 = 96;
const COPY_TIME_MAX: Duration = Duration::from_secs(120);
/// Interval at which the initiator queries whether another client has ended its copy.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Board {
    pub(super) context: Context,
    pub(super) ledger: Ledger,
    word: AtomicU64,
    pub(super) finish: AtomicBool,
}

impl Board {
    fn word(&self) -> u64 {
        self.word.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn is_over(&self) -> bool {
        self.finish.load(Ordering::Relaxed)
    }
}

pub(super) fn play(context: &Context) -> Result<(), Over> {
    let mut random = context.fork();
    context.net(|net| net.weather = faults::weather(&mut random));
    let write_cache = !random.one_in(4);
    let transfer_bytes = random.pick(&[4 << 10, 16 << 10, 1 << 20]);
    let mut disk = |name| {
        let latency = random.pick(&[50, 500, 20_000]);
        Disk::new(name, SECTORS, context.fork(), latency).with_transfer(transfer_bytes)
    };
    let (source, destination) = (disk("sim:source"), disk("sim:lun"));
    let mut word = 0;
    source.fill(&contents(&mut word, &mut random));
    destination.fill(&sector(OTHERS).repeat(SECTORS as usize));
    let mut target = Target::of(context, destination, write_cache, &mut random);
    target.add(&source, true);
    let ledger = Ledger::new(context, &source, &target.disk, !write_cache);
    let (context, finish) = (context.clone(), AtomicBool::new(false));
    let board = Arc::new(Board { context: context.clone(), ledger, word: word.into(), finish });
    target.boot();
    let mut clients: Vec<_> = (0..random.within(1..CLIENTS_MAX + 1))
        .map(|number| Client::new(&context, number, &mut random))
        .collect();
    clients.iter_mut().for_each(|client| client.start(&board));
    for _ in 0..random.within(1..12) {
        context.sleep(Duration::from_micros(random.magnitude(100..3_000_000)))?;
        let power = random.one_in(2);
        match random.within(0..10) {
            0 | 1 => {
                kill(&board, &mut target, power);
                context.sleep(Duration::from_micros(random.magnitude(1000..8_000_000)))?;
                target.boot();
            }
            2 => {
                let client = random.within(0..clients.len() as u64) as usize;
                clients[client].restart(&board, power, &mut random)?;
            }
            3 => {
                if target.end(random.one_in(2)) {
                    board.ledger.ended();
                }
                if power {
                    kill(&board, &mut target, true);
                }
                context.sleep(Duration::from_micros(random.magnitude(1000..3_000_000)))?;
                target.boot();
            }
            _ => faults::inject(&context, &mut random),
        }
    }
    board.finish.store(true, Ordering::Relaxed);
    clients.iter_mut().for_each(|client| client.process.join());
    if random.one_in(2) && target.end(false) {
        board.ledger.ended();
    }
    kill(&board, &mut target, true);
    Ok(())
}

fn kill(board: &Board, target: &mut Target, power: bool) {
    board.ledger.settle();
    target.kill(power);
    board.ledger.killed(power);
}

/// Sectors with distinct words, with ranges of zeroes.
fn contents(word: &mut u64, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..SECTORS / 32 {
        let zeroes = random.one_in(4);
        for _ in 0..32 {
            *word += 1;
            bytes.extend(sector(if zeroes { 0 } else { *word }));
        }
    }
    bytes
}

struct Client {
    context: Context,
    process: Process,
    number: u64,
    /// `Some` if the client uses the initiator of this project, with this journal.
    journal: Option<Arc<Mutex<CopyJournal>>>,
}

impl Client {
    fn new(context: &Context, number: u64, random: &mut Random) -> Self {
        let journal =
            (number > 0 && random.one_in(2)).then(|| Arc::new(Mutex::new(CopyJournal::new(random))));
        Self { context: context.clone(), process: Process::new(context), number, journal }
    }

    fn start(&mut self, board: &Arc<Board>) {
        let (board, number, mut random) = (Arc::clone(board), self.number, self.context.fork());
        let journal = self.journal.clone();
        let body = move || {
            if let Some(journal) = journal {
                Remote { board, number, random, journal }.run();
            } else {
                let name = format!("client-{number}");
                while !board.is_over()
                    && pause(Duration::from_micros(random.magnitude(1000..2_000_000))).is_some()
                {
                    let Ok(host) = Host::login(&name) else { continue };
                    board.ledger.logged_in(number);
                    let _ = Session { board: &board, number, random: &mut random, host }.run();
                }
            }
        };
        let name = format!("client-{number}");
        self.process.start(&name, body);
    }

    fn restart(&mut self, board: &Arc<Board>, power: bool, random: &mut Random) -> Result<(), Over> {
        self.process.kill(power, random)?;
        self.start(board);
        Ok(())
    }
}

struct Session<'a> {
    board: &'a Board,
    number: u64,
    random: &'a mut Random,
    host: Host,
}

impl Session<'_> {
    fn run(mut self) -> Result<(), Broken> {
        self.host.clear_attentions(DESTINATION)?;
        self.host.clear_attentions(SOURCE)?;
        for _ in 0..self.random.within(1..24) {
            if self.board.is_over() {
                break;
            }
            let until = self.host.now() + Duration::from_micros(self.random.magnitude(1..500_000));
            while self.host.next(until)?.is_some() {}
            match self.random.within(0..10) {
                0..=4 => self.copy()?,
                5 | 6 => self.write(DESTINATION, 0..SECTORS, OTHERS)?,
                7 => self.write(SOURCE, 0..KEPT.start, 0)?,
                8 => self.flush()?,
                _ => self.reset()?,
            }
        }
        Ok(())
    }

    /// Writes some sectors of `within`, each with a new word.
    fn write(&mut self, lun: u16, within: Range<u64>, mark: u64) -> Result<(), Broken> {
        let first = self.random.within(within.clone());
        let count = self.random.within(1..33).min(within.end - first);
        let data = (0..count).flat_map(|_| sector(mark | self.board.word())).collect();
        let cdb = cdb::write_10(first as u32, count as u16, self.random.one_in(4));
        self.host.command(lun, &cdb, data).map(|_| ())
    }

    fn flush(&mut self) -> Result<(), Broken> {
        let mark = self.board.ledger.flush();
        if self.host.command(DESTINATION, &cdb::synchronize_cache_10(), Vec::new())? == Answer::Good {
            self.board.ledger.flushed(mark);
            self.board.context.count(|counters| counters.flushes += 1);
        }
        Ok(())
    }

    /// Resets a LUN: the copies of its commands must have ended when the reset is answered.
    fn reset(&mut self) -> Result<(), Broken> {
        let lun = self.random.pick(&[SOURCE, DESTINATION]);
        let exposed = self.board.ledger.exposed(lun);
        let requested = self.host.manage(TmFunction::LogicalUnitReset, lun, None)?;
        let until = self.host.now() + COPY_TIME_MAX;
        loop {
            match self.host.next(until)? {
                Some(Event::ManagementDone { request, result: TmResult::Complete })
                    if request == requested =>
                {
                    break;
                }
                Some(_) => {}
                None => return Err(self.endless("a LUN RESET is not answered")),
            }
        }
        for copy in exposed {
            self.over(copy, false);
        }
        self.host.clear_attentions(lun)
    }

    fn endless(&self, text: &str) -> Broken {
        self.board.context.fail(text);
        Broken
    }

    fn over(&self, copy: u64, good: bool) {
        if self.board.ledger.end(copy, good) {
            self.board.context.count(|counters| {
                *(if good { &mut counters.target_copies } else { &mut counters.target_copies_ended }) += 1;
            });
        }
    }

    /// Runs a copy to its end, or until it is aborted, reset or abandoned.
    fn copy(&mut self) -> Result<(), Broken> {
        let extents = extents(self.random, 0..SECTORS);
        let lun = self.random.pick(&[SOURCE, DESTINATION, DESTINATION]);
        let (cdb, list) = cdb::extended_copy(&list(&extents));
        let copy = self.board.ledger.begin(Role::Command, self.number, lun, extents);
        let task = self.host.submit(lun, &cdb, list)?;
        let result = self.watch(copy, lun, task);
        if result.is_err() {
            self.board.context.count(|counters| counters.target_copies_lost += 1);
        }
        result
    }

    fn watch(&mut self, copy: u64, lun: u16, task: TaskId) -> Result<(), Broken> {
        let disturb = self.host.now() + Duration::from_micros(self.random.magnitude(1..100_000));
        let (mut plans, mut requested) = (vec![self.random.within(0..8)], None);
        let give_up = self.host.now() + COPY_TIME_MAX;
        // Its answer shows that the copy has begun; later answers show whether another client has ended it.
        let mut query = Some(self.host.submit(lun, &cdb::test_unit_ready(), Vec::new())?);
        loop {
            let next = self.host.now() + QUERY_INTERVAL;
            let until = if plans.is_empty() { next } else { disturb.max(self.host.now()) };
            match self.host.next(until)? {
                Some(Event::Complete(outcome)) if outcome.task == task => {
                    self.over(copy, answer(&outcome) == Answer::Good);
                    return Ok(());
                }
                Some(Event::Complete(outcome)) if Some(outcome.task) == query => {
                    query = None;
                    self.board.ledger.taken(copy);
                    if let Answer::Attention(0x29 | 0x2f, _) = answer(&outcome) {
                        self.over(copy, false);
                        return Ok(());
                    }
                }
                Some(Event::Failed { task: ended, .. }) if ended == task => {
                    self.over(copy, false);
                    return Ok(());
                }
                Some(Event::ManagementDone { request, .. }) if Some(request) == requested => {
                    self.over(copy, false);
                    return Ok(());
                }
                Some(_) => {}
                None if self.host.now() >= give_up => return Err(self.endless("a copy does not end")),
                None => match plans.pop() {
                    Some(0 | 1) => {
                        requested = Some(self.host.manage(TmFunction::AbortTask, lun, Some(task))?);
                    }
                    Some(2) => requested = Some(self.host.manage(TmFunction::LogicalUnitReset, lun, None)?),
                    // Drops the connection without a logout.
                    Some(3) => return Err(Broken),
                    Some(_) => {}
                    None if query.is_none() => {
                        query = Some(self.host.submit(lun, &cdb::test_unit_ready(), Vec::new())?);
                    }
                    None => {}
                },
            }
        }
    }
}

/// Ranges that do not overlap at either end, all of them within `of` at the source.
fn extents(random: &mut Random, of: Range<u64>) -> Vec<Extent> {
    let (mut from, mut to) = (random.within(of.clone()), random.within(0..SECTORS));
    let mut extents = Vec::new();
    for _ in 0..random.within(1..SEGMENTS_MAX + 1) {
        let count = random.within(1..SEGMENT_SECTORS_MAX + 1);
        if from + count > of.end || to + count > SECTORS {
            break;
        }
        extents.push(Extent { from, to, count });
        // Some are adjacent at both ends, and are one range for the target.
        let apart = if random.one_in(3) { 0 } else { random.within(1..64) };
        (from, to) = (from + count + apart, to + count + apart);
    }
    extents
}

fn list(extents: &[Extent]) -> CopyList {
    let end = |lun| Cscd::naa(&naa(lun).to_be_bytes(), SECTOR as u32).expect("eight bytes");
    let segment = |extent: &Extent| Segment {
        source: 0,
        destination: 1,
        destination_count: false,
        blocks: extent.count as u16,
        source_lba: extent.from,
        destination_lba: extent.to,
    };
    let segments = extents.iter().map(segment).collect();
    CopyList { list_id: None, cscds: vec![end(SOURCE), end(DESTINATION)], segments }
}
