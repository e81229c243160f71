//! Initiators that read, write, discard and flush; a history checks the answers.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use node::initiator::Options;
use torture::Client as ClientId;
use torture::history::{Cut, History, OperationId, Outcome, Rules, Value};
use torture::stamp::Stamper;

use super::faults;
use super::process::Process;
use super::target::{Target, medium, options};
use super::volume::Volume;
use super::worker::Worker;
use crate::disk::SECTOR;
use crate::random::Random;
use crate::world::{Context, Over};

/// Sectors that the clients use; those before them stay zeroes.
const SECTORS: u64 = 256;
const CLIENTS_MAX: usize = 3;

const SCENARIO: ClientId = ClientId::MAX;

pub(super) struct Board {
    history: Mutex<History>,
    pub(super) stamper: Stamper,
    /// The last operation number; the number also identifies the written data.
    operations: AtomicU64,
    /// The last process number: to the history, each process is a client that does not rely on writes of earlier ones.
    processes: AtomicU32,
    /// Set when clients must read everything once more and end.
    pub(super) finish: AtomicBool,
    pub(super) write_through: bool,
    /// Some zeroes and discards go up to the end of the client's sectors.
    pub(super) long_zeroes: bool,
}

impl Board {
    fn new(sectors: u64, strict: bool, run: u64, write_through: bool, long_zeroes: bool) -> Self {
        let rules = Rules { atomic_sectors: true, losses_reported: strict };
        Self {
            history: Mutex::new(History::new(sectors, Value::Zero, rules)),
            stamper: Stamper::new(run),
            operations: AtomicU64::new(0),
            processes: AtomicU32::new(0),
            finish: AtomicBool::new(false),
            write_through,
            long_zeroes,
        }
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn operation(&self) -> OperationId {
        self.operations.fetch_add(1, Ordering::Relaxed)
    }

    /// The target has ended in order: all acknowledged writes are durable.
    fn ended_in_order(&self) {
        let operation = self.operation();
        self.history().flush(operation, SCENARIO);
        self.history().complete(operation, Outcome::Done);
    }

    /// No target runs: requests that ended without an answer can no longer take effect.
    fn fence(&self) {
        for client in 0..self.processes.load(Ordering::Relaxed) {
            self.history().fence(client);
        }
    }

    /// Judges what the disk holds while no target runs.
    fn check(&self, context: &Context, target: &Target) {
        let Some(contents) = target.contents() else { return };
        let operation = self.operation();
        self.history().read(operation, SCENARIO, 0..(contents.len() / SECTOR) as u64);
        if let Err(text) = self.judge(operation, 0, &contents) {
            context.fail(format!("on the disk after a cut: {text}"));
        }
    }

    pub(super) fn judge(&self, operation: OperationId, first: u64, bytes: &[u8]) -> Result<(), String> {
        let sectors = (first..).zip(bytes.chunks_exact(SECTOR));
        let contents: Vec<_> = sectors.map(|(lba, sector)| self.stamper.read(lba, sector)).collect();
        let violations = self.history().complete_read(operation, &contents);
        violations.first().map_or(Ok(()), |violation| Err(violation.to_string()))
    }
}

pub(super) fn play(context: &Context, drains: bool, strict: bool) -> Result<(), Over> {
    let mut random = context.fork();
    context.net(|net| net.weather = faults::weather(&mut random));
    let write_through = random.one_in(5);
    let mut sealing = context.fork_for("volume");
    // A volume loses its memory with the process, which a flush has to report too.
    let volume = Volume::choose(&mut sealing).filter(|_| strict);
    let first = volume.map_or(0, |volume| volume.crossing(&mut sealing));
    let end = first + SECTORS;
    let mut target = Target::new(context, volume, end, !write_through, &mut random);
    target.boot();
    let board = Arc::new(Board::new(end, strict, random.draw(), write_through, volume.is_some()));
    let shared = random.one_in(3);
    let count = random.within(1..CLIENTS_MAX as u64 + 1);
    let mut clients = Vec::new();
    for index in 0..count {
        let share = SECTORS / count;
        let own = first + index * share..first + (index + 1) * share;
        let sectors = if shared { first..end } else { own };
        let process = Process::new(context);
        let options = options(&format!("client-{index}"), &mut random);
        let mut client = Client { context: context.clone(), process, index, sectors, options };
        client.start(&board);
        clients.push(client);
    }
    for _ in 0..random.within(1..12) {
        context.sleep(Duration::from_micros(random.magnitude(100..3_000_000)))?;
        let power = random.one_in(2);
        let kind = random.within(0..10);
        match kind {
            0 | 1 | 9 if kind < 9 || target.has_memory() => {
                match target.has_memory() {
                    _ if power => board.history().cut(Cut::Certain),
                    // What reached the disk is in its cache.
                    true => board.history().cut(Cut::Possible),
                    false => {}
                }
                target.kill(power);
                context.sleep(Duration::from_micros(random.magnitude(1000..8_000_000)))?;
                board.fence();
                if target.has_memory() {
                    board.check(context, &target);
                    if sealing.one_in(2) {
                        target.boot_in_vain(&mut sealing);
                        board.history().cut(Cut::Certain);
                        board.fence();
                        board.check(context, &target);
                    }
                }
                target.boot();
            }
            2 => {
                let client = random.within(0..count) as usize;
                clients[client].restart(&board, power, &mut random)?;
            }
            3..=5 if drains => {
                if target.end(random.one_in(2)) {
                    board.ended_in_order();
                }
                if power {
                    board.history().cut(Cut::Certain);
                    target.kill(true);
                }
                context.sleep(Duration::from_micros(random.magnitude(1000..3_000_000)))?;
                board.fence();
                target.boot();
            }
            _ => faults::inject(context, &mut random),
        }
    }
    board.finish.store(true, Ordering::Relaxed);
    clients.iter_mut().for_each(|client| client.process.join());
    board.history().cut(Cut::Certain);
    target.kill(true);
    board.fence();
    board.check(context, &target);
    Ok(())
}

struct Client {
    context: Context,
    process: Process,
    index: u64,
    sectors: std::ops::Range<u64>,
    options: Options,
}

impl Client {
    fn start(&mut self, board: &Arc<Board>) {
        let (context, board, random) = (self.context.clone(), Arc::clone(board), self.context.fork());
        let (sectors, options) = (self.sectors.clone(), self.options.clone());
        let name = format!("client-{}", self.index);
        let number = board.processes.fetch_add(1, Ordering::Relaxed);
        let body = move || Worker::new(context, board, number, sectors, random).run(&medium(&options));
        self.process.start(&name, body);
    }

    fn restart(&mut self, board: &Arc<Board>, power: bool, random: &mut Random) -> Result<(), Over> {
        self.process.kill(power, random)?;
        self.start(board);
        Ok(())
    }
}
