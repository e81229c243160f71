//! The state of a simulated world, and the queue of its next events.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar};
use std::time::Duration;

use crate::counters::Counters;
use crate::fd::{Message, Watch};
use crate::net::{Link, Listening, Net, Socket};
use crate::random::Random;

pub(crate) type ThreadId = usize;
pub(crate) type MachineId = usize;
pub(crate) type LoopId = u64;
/// An operation in flight: its loop, and its number in the loop.
pub(crate) type OpId = (LoopId, usize);

/// Maximum simulated time: a run that takes longer counts as endless.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of events: a run with more counts as endless.
const EVENTS_MAX: u64 = 20_000_000;

#[derive(Debug)]
pub(crate) enum Due {
    /// A thread continues, if it is still in its wait of this number.
    Run {
        thread: ThreadId,
        wait: u64,
    },
    Complete {
        op: OpId,
        result: i32,
    },
    Net(Net),
}

#[derive(Debug)]
struct Entry {
    at: Duration,
    serial: u64,
    due: Due,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest entry is the greatest, for a max-heap; equal times are ordered by insertion.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Nothing: it runs, or waits for the first wait of a thread that it has started.
    No,
    Loop(LoopId),
    Sleep,
    Join(ThreadId),
}

/// A thread of the code under test or of the scenario. Exactly one has the turn.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) machine: MachineId,
    pub(crate) waits: Waits,
    pub(crate) wait: u64,
    pub(crate) ended: bool,
    /// The thread that continues when this one waits for the first time.
    pub(crate) spawner: Option<ThreadId>,
    pub(crate) turn: Arc<Condvar>,
}

/// A computer, with the life of the process that runs on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// Number of the process; each new process has another.
    pub(crate) life: u32,
    pub(crate) on: bool,
    pub(crate) idle: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// A read of an eventfd.
    Wake {
        fd: RawFd,
        into: Place,
    },
    Accept,
    Connect,
    Receive(Message),
    Send {
        message: Message,
        done: usize,
    },
}

/// Buffer of 8 bytes for the counter of an eventfd; like [`Message`], live while the operation is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(pub(crate) *mut u8);

// SAFETY: as for `Message`.
unsafe impl Send for Place {}

/// One `io::Io`.
#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) thread: ThreadId,
    pub(crate) machine: MachineId,
    pub(crate) life: u32,
    pub(crate) ops: BTreeMap<usize, Op>,
    pub(crate) ready: Vec<(usize, i32)>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) now: Duration,
    pub(crate) random: Random,
    queue: BinaryHeap<Entry>,
    serial: u64,
    events: u64,
    pub(crate) current: ThreadId,
    pub(crate) threads: Vec<Thread>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) loops: BTreeMap<LoopId, Loop>,
    pub(crate) loop_last: LoopId,
    pub(crate) sockets: BTreeMap<RawFd, Socket>,
    pub(crate) socket_last: u64,
    /// Operations by the watch's word of their eventfd.
    pub(crate) wakes: BTreeMap<u64, OpId>,
    pub(crate) listeners: Vec<Listening>,
    pub(crate) links: Vec<Link>,
    pub(crate) weather: crate::net::Weather,
    pub(crate) watch: Watch,
    pub(crate) counters: Counters,
    /// The run is over: every thread must end.
    pub(crate) over: bool,
    pub(crate) failure: Option<String>,
    /// Of all events passed to [`State::trace`].
    pub(crate) hash: u64,
    pub(crate) tracing: bool,
}

impl State {
    pub(crate) fn new(seed: u64, tracing: bool) -> std::io::Result<Self> {
        Ok(Self {
            now: Duration::ZERO,
            random: Random::fork(seed, "world"),
            queue: BinaryHeap::new(),
            serial: 0,
            events: 0,
            current: 0,
            threads: Vec::new(),
            machines: Vec::new(),
            loops: BTreeMap::new(),
            loop_last: 0,
            sockets: BTreeMap::new(),
            socket_last: 0,
            wakes: BTreeMap::new(),
            listeners: Vec::new(),
            links: Vec::new(),
            weather: crate::net::Weather::fair(),
            watch: Watch::new()?,
            counters: Counters::default(),
            over: false,
            failure: None,
            hash: 0xcbf2_9ce4_8422_2325,
            tracing,
        })
    }

    /// Adds an event to the trace, which is equal in every run of a seed.
    pub(crate) fn trace(&mut self, what: &str, details: &[u64]) {
        let time = self.now.as_nanos() as u64;
        let mut add = |number: u64| self.hash = (self.hash ^ number).wrapping_mul(0x0100_0000_01b3);
        add(time);
        what.bytes().for_each(|byte| add(u64::from(byte)));
        details.iter().for_each(|detail| add(*detail));
        if self.tracing {
            eprintln!("{:>15.6} ms  {what} {details:?}", time as f64 / 1e6);
        }
    }

    pub(crate) fn fail(&mut self, text: String) {
        self.failure.get_or_insert(text);
    }

    pub(crate) fn after(&mut self, delay: Duration, due: Due) {
        self.at(self.now + delay, due);
    }

    pub(crate) fn at(&mut self, at: Duration, due: Due) {
        self.serial += 1;
        self.queue.push(Entry { at: at.max(self.now), serial: self.serial, due });
    }

    pub(crate) fn micros(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_nanos(self.random.within(range.start * 1000..range.end * 1000))
    }

    /// Whether the process of a loop or thread is alive.
    pub(crate) fn lives(&self, machine: MachineId, life: u32) -> bool {
        !self.over && self.machines[machine].life == life
    }

    /// Schedules a thread to continue soon.
    pub(crate) fn wake(&mut self, thread: ThreadId) {
        if self.threads[thread].waits != Waits::No {
            let wait = self.threads[thread].wait;
            let delay = self.micros(0..20);
            self.after(delay, Due::Run { thread, wait });
        }
    }

    /// Completes an operation: its loop gets the result in the next turn of its thread.
    pub(crate) fn complete(&mut self, op: OpId, result: i32) {
        let Some(found) = self.loops.get_mut(&op.0) else { return };
        if found.ops.remove(&op.1).is_some() {
            found.ready.push((op.1, result));
            let (id, thread) = (op.0, found.thread);
            if self.threads[thread].waits == Waits::Loop(id) {
                self.wake(thread);
            }
        }
    }

    pub(crate) fn complete_later(&mut self, op: OpId, result: i32) {
        let delay = self.micros(1..30);
        self.after(delay, Due::Complete { op, result });
    }

    pub(crate) fn op(&self, op: OpId) -> Option<Op> {
        self.loops.get(&op.0)?.ops.get(&op.1).copied()
    }

    /// Processes what the code under test did to descriptors since the last call.
    pub(crate) fn notice(&mut self) {
        for word in self.watch.reports() {
            if let Some(op) = self.wakes.remove(&word) {
                if let Some(Op::Wake { fd, into }) = self.op(op) {
                    // SAFETY: the operation is in flight, so its buffer is live; the descriptor has a count.
                    let count = unsafe { libc::read(fd, into.0.cast(), 8) };
                    self.complete_later(op, count as i32);
                }
            } else {
                self.on_shut(word);
            }
        }
    }

    /// Advances time until a thread can continue; returns that thread.
    pub(crate) fn pick(&mut self) -> ThreadId {
        self.notice();
        loop {
            let Some(Entry { at, due, .. }) = self.queue.pop() else {
                self.give_up("no event is left");
                continue;
            };
            self.events += 1;
            if !self.over && (at > TIME_MAX || self.events > EVENTS_MAX) {
                self.give_up("it does not end");
            }
            self.now = self.now.max(at);
            match due {
                Due::Run { thread, wait } => {
                    let found = &self.threads[thread];
                    if found.wait == wait && found.waits != Waits::No && !found.ended {
                        self.trace("run", &[thread as u64]);
                        return thread;
                    }
                }
                Due::Complete { op, result } => {
                    if !matches!(self.op(op), Some(Op::Receive(_) | Op::Send { .. })) {
                        self.complete(op, result);
                    }
                }
                Due::Net(net) => self.on_net(net),
            }
        }
    }

    fn give_up(&mut self, why: &str) {
        assert!(!self.over, "a thread does not end although its machine is off: {:?}", self.threads);
        let waiting: Vec<_> = self
            .threads
            .iter()
            .filter(|thread| !thread.ended)
            .map(|thread| format!("{} waits for {:?}", thread.name, thread.waits))
            .collect();
        self.fail(format!("{why}: {}", waiting.join(", ")));
        self.end();
    }

    /// Ends the run: every thread must end.
    pub(crate) fn end(&mut self) {
        self.over = true;
        for thread in 0..self.threads.len() {
            if matches!(self.threads[thread].waits, Waits::Loop(_) | Waits::Sleep) {
                self.wake(thread);
            }
        }
    }
}
