//! Initiators that read, write, discard and flush; a history says whether the answers were right.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use area::{PoolLimits, Span};
use block::{Completion, Endpoint, IoErrorKind, Kind, Medium, Request, wait_ready};
use io::{Io, Thread};
use node::initiator::{IscsiMedium, Options};

use super::faults;
use super::target::{Target, medium, options};
use crate::disk::SECTOR;
use crate::history::{History, Writing, stamp};
use crate::random::Random;
use crate::state::MachineId;
use crate::world::{Context, Over};

const SECTORS: u64 = 256;
const CLIENTS_MAX: usize = 3;
/// Sectors of one request.
const LENGTH_MAX: u64 = 24;
/// Requests that a client makes as fast as it likes.
const REQUESTS_AT_ONCE: u32 = 80;
/// Requests of one client at once.
const DEPTH_MAX: u64 = 6;

/// What all clients of a run share.
struct Board {
    history: Mutex<History>,
    values: AtomicU64,
    /// Clients are to read everything once more and end.
    finish: AtomicBool,
    write_through: bool,
}

impl Board {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

pub(super) fn play(context: &Context, drains: bool, strict: bool) -> Result<(), Over> {
    let mut random = context.fork();
    context.net(|net| net.weather = faults::weather(&mut random));
    let write_through = random.one_in(5);
    let mut target = Target::new(context, SECTORS, !write_through, &mut random);
    target.boot();
    let board = Arc::new(Board {
        history: Mutex::new(History::new(SECTORS, strict)),
        values: AtomicU64::new(0),
        finish: AtomicBool::new(false),
        write_through,
    });
    let shared = random.one_in(3);
    let count = random.within(1..CLIENTS_MAX as u64 + 1);
    let mut clients = Vec::new();
    for index in 0..count {
        let share = SECTORS / count;
        let sectors = if shared { 0..SECTORS } else { index * share..(index + 1) * share };
        let machine = context.add_machine();
        let options = options(&format!("client-{index}"), &mut random);
        let mut client = Client {
            context: context.clone(),
            machine,
            index: index as usize,
            lives: 0,
            sectors,
            options,
            thread: None,
        };
        client.start(&board);
        clients.push(client);
    }
    for _ in 0..random.within(1..12) {
        context.sleep(Duration::from_micros(random.magnitude(100..3_000_000)))?;
        let power = random.one_in(2);
        match random.within(0..10) {
            0 | 1 => {
                if power {
                    board.history().cut(context.now());
                }
                target.kill(power);
                context.sleep(Duration::from_micros(random.magnitude(1000..8_000_000)))?;
                target.boot();
            }
            2 => {
                let client = random.within(0..count) as usize;
                clients[client].restart(&board, power, &mut random)?;
            }
            3..=5 if drains => {
                if target.end(random.one_in(2)) {
                    board.history().ended_in_order(context.now());
                }
                if power {
                    board.history().cut(context.now());
                    target.kill(true);
                }
                context.sleep(Duration::from_micros(random.magnitude(1000..3_000_000)))?;
                target.boot();
            }
            _ => faults::befall(context, &mut random),
        }
    }
    board.finish.store(true, Ordering::Relaxed);
    for client in clients {
        client.end();
    }
    board.history().cut(context.now());
    target.kill(true);
    let now = context.now();
    for (sector, bytes) in target.disk.contents().chunks_exact(SECTOR).enumerate() {
        if let Err(text) = board.history().check(sector as u64, bytes, now, now) {
            context.fail(format!("on the disk after the last power cut: {text}"));
        }
    }
    Ok(())
}

struct Client {
    context: Context,
    machine: MachineId,
    index: usize,
    lives: usize,
    sectors: std::ops::Range<u64>,
    options: Options,
    thread: Option<Thread<()>>,
}

impl Client {
    fn start(&mut self, board: &Arc<Board>) {
        let (context, board, random) = (self.context.clone(), Arc::clone(board), self.context.fork());
        let (sectors, options) = (self.sectors.clone(), self.options.clone());
        let name = format!("client-{}", self.index);
        // A new process knows nothing of what an earlier one wrote: to the history it is another client.
        let index = self.index + CLIENTS_MAX * self.lives;
        self.lives += 1;
        let body = move || {
            Worker { context, board, index, sectors, random, depth: 0, made: 0, under_way: Vec::new() }
                .run(&medium(&options));
        };
        self.thread = Some(self.context.on(self.machine, || io::spawn(&name, body)).expect("a thread"));
    }

    fn restart(&mut self, board: &Arc<Board>, power: bool, random: &mut Random) -> Result<(), Over> {
        self.context.count(|counters| counters.initiator_cuts += 1);
        self.context.kill(self.machine, power);
        let _ = self.thread.take().expect("started").join();
        self.context.sleep(Duration::from_micros(random.magnitude(1000..5_000_000)))?;
        self.start(board);
        Ok(())
    }

    fn end(mut self) {
        let _ = self.thread.take().expect("started").join();
    }
}

/// A request and what is to be made of its completion.
struct Doing {
    begun: Duration,
    what: What,
}

enum What {
    Read { first: u64, into: Span },
    Write { writing: Writing, durable: bool },
    Flush,
}

struct Worker {
    context: Context,
    board: Arc<Board>,
    index: usize,
    sectors: std::ops::Range<u64>,
    random: Random,
    depth: u64,
    made: u32,
    under_way: Vec<Option<Doing>>,
}

impl Worker {
    fn run(mut self, medium: &IscsiMedium) {
        self.depth = self.random.within(1..DEPTH_MAX + 1);
        // An attempt fails when nobody answers, or when the process is killed: then the clock stands still for it.
        for _ in 0..100 {
            let Ok(mut io) = Io::new(PoolLimits { bytes_max: 64 << 20 }) else { return };
            let Ok(mut endpoint) = medium.attach(&mut io) else { return };
            if wait_ready(&mut io, &mut [&mut *endpoint]).is_ok() {
                let ended = self.serve(&mut io, &mut *endpoint);
                self.context.count(|counters| counters.retries += endpoint.retries());
                if ended.is_some() {
                    block::close_all(&mut io, &mut [&mut *endpoint]);
                    return;
                }
            }
            self.under_way.clear();
            let until = io.now() + Duration::from_millis(self.random.magnitude(1..2000));
            while io.now() < until {
                if io.turn_until(Some(until), &mut Vec::new()).is_err() {
                    return;
                }
            }
        }
    }

    /// Works until told to finish, then flushes and reads everything. `None`: the loop has failed, or the endpoint
    /// refuses everything.
    fn serve(&mut self, io: &mut Io, endpoint: &mut dyn Endpoint) -> Option<()> {
        let mut refused = 0;
        while !self.board.finish.load(Ordering::Relaxed) {
            while self.busy() < self.depth
                && !self.random.one_in(if self.made < REQUESTS_AT_ONCE { 4 } else { 2 })
            {
                let doing = self.choose(io, endpoint.capability().discard)?;
                refused += self.submit(io, endpoint, doing);
            }
            // At first without much rest; later just enough to be there when something happens.
            let pause = if self.made < REQUESTS_AT_ONCE { 1..200_000 } else { 50_000..4_000_000 };
            let pause = Duration::from_micros(self.random.magnitude(pause));
            refused = if refused > 50 { return None } else { refused };
            self.turn(io, endpoint, Some(io.now() + pause))?;
        }
        while self.busy() > 0 {
            self.turn(io, endpoint, None)?;
        }
        let flush = self.doing(What::Flush);
        self.submit(io, endpoint, (Kind::Flush, flush));
        let mut first = self.sectors.start;
        while first < self.sectors.end {
            let count = LENGTH_MAX.min(self.sectors.end - first);
            while self.busy() >= self.depth {
                self.turn(io, endpoint, None)?;
            }
            let read = self.read(io, first, count)?;
            self.submit(io, endpoint, read);
            first += count;
        }
        while self.busy() > 0 {
            self.turn(io, endpoint, None)?;
        }
        Some(())
    }

    fn busy(&self) -> u64 {
        self.under_way.iter().flatten().count() as u64
    }

    fn doing(&self, what: What) -> Doing {
        Doing { begun: self.context.now(), what }
    }

    fn read(&self, io: &Io, first: u64, count: u64) -> Option<(Kind, Doing)> {
        let into = io.pool().take(count as usize * SECTOR)?;
        let what = What::Read { first, into: into.clone() };
        Some((Kind::Read { offset: first * SECTOR as u64, into }, self.doing(what)))
    }

    fn choose(&mut self, io: &Io, discards: bool) -> Option<(Kind, Doing)> {
        let first = self.random.within(self.sectors.clone());
        let most = LENGTH_MAX.min(self.sectors.end - first);
        let count = self.random.within(1..most + 1);
        let (offset, length) = (first * SECTOR as u64, count * SECTOR as u64);
        let kind = self.random.within(0..20);
        let value = match kind {
            0..=7 => return self.read(io, first, count),
            8 | 9 => return Some((Kind::Flush, self.doing(What::Flush))),
            10 | 11 => 0,
            _ => self.board.values.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let doing = self.doing(What::Flush);
        let writing = self.board.history().write(self.index, first, count, value, doing.begun);
        let durable = kind == 12 || kind == 13;
        let kind = match kind {
            10 if discards => Kind::Discard { offset, length },
            10 | 11 => Kind::WriteZeroes { offset, length, may_unmap: self.random.one_in(2) },
            _ => {
                let from = io.pool().take(length as usize)?;
                for at in 0..count {
                    from.fill(at as usize * SECTOR, &stamp(first + at, value));
                }
                Kind::Write { offset, from, durable }
            }
        };
        Some((kind, Doing { what: What::Write { writing, durable }, ..doing }))
    }

    /// Returns how many were refused at once.
    fn submit(&mut self, io: &mut Io, endpoint: &mut dyn Endpoint, (kind, doing): (Kind, Doing)) -> u32 {
        let slot = self.under_way.iter().position(Option::is_none).unwrap_or_else(|| {
            self.under_way.push(None);
            self.under_way.len() - 1
        });
        self.under_way[slot] = Some(doing);
        self.made += 1;
        self.context.count(|counters| counters.requests += 1);
        let mut done = Vec::new();
        endpoint.submit(io, Request { id: slot as u64, kind }, &mut done);
        let refused = done.iter().filter(|completion| completion.result.is_err()).count() as u32;
        self.completed(done);
        refused
    }

    fn turn(&mut self, io: &mut Io, endpoint: &mut dyn Endpoint, until: Option<Duration>) -> Option<()> {
        let (mut events, mut done) = (Vec::new(), Vec::new());
        io.turn_until(until, &mut events).ok()?;
        for event in events {
            endpoint.on_event(io, event, &mut done);
        }
        self.completed(done);
        Some(())
    }

    fn completed(&mut self, done: Vec<Completion>) {
        let now = self.context.now();
        for Completion { id, result } in done {
            let Doing { begun, what } = self.under_way[id as usize].take().expect("completed once");
            if let Err(error) = result {
                self.context.note(&error.text, &[self.index as u64]);
                self.context.count(|counters| counters.failures += 1);
                if error.kind == IoErrorKind::CacheLost {
                    self.context.count(|counters| counters.losses_told += 1);
                    self.board.history().cache_lost(self.index);
                }
                continue;
            }
            match what {
                What::Read { first, into } => self.check(first, &into, begun, now),
                What::Write { writing, durable } => {
                    self.context.count(|counters| counters.durable_writes += u64::from(durable));
                    let durable = durable || self.board.write_through;
                    self.board.history().written(writing, begun, now, durable);
                }
                What::Flush => {
                    self.context.count(|counters| counters.flushes += 1);
                    self.board.history().flushed(self.index, begun, now);
                }
            }
        }
    }

    fn check(&self, first: u64, into: &Span, begun: Duration, now: Duration) {
        let history = self.board.history();
        for (at, bytes) in into.as_slice().chunks_exact(SECTOR).enumerate() {
            if let Err(text) = history.check(first + at as u64, bytes, begun, now) {
                self.context.fail(format!("client {}: {text}", self.index));
            }
        }
        self.context.count(|counters| counters.sectors_checked += (into.len() / SECTOR) as u64);
    }
}
