//! One send at a time, taken apart (the paper's Table 3): `inet` and the driver run in processes of their own, made by
//! fork, and note when a turn that did something began and ended; the application notes its own steps. All clocks are
//! CLOCK_MONOTONIC, which the processes share.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use area::Region;
use area::ring::{Mapped, Words};
use net::nic::tap;
use net::socket::{Servers, Stack};
use net::wait::{Next, Turn, Waiter};
use rustix::event::PollFlags;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::near::Payload;
use super::ours::connect;
use super::peer::{SUNK_BYTES, Task};
use super::place::HERE;
use super::rig::{Rig, memory};
use super::waiting::{Waiting, pin};
use crate::part::{Orders, send};
use crate::stats::Spread;
use crate::wan_write::enter;
use crate::{Attempted, LabError};

/// Turns that a process notes; the last ones.
const TURNS: usize = 1 << 14;
const NOTE_BYTES: usize = 16 + TURNS * 16;

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Turns of one process, written by it, read by the application. Word 0 counts; word 1 asks the process to end.
#[derive(Clone)]
struct Notes(Mapped);

impl Notes {
    fn new() -> io::Result<Self> {
        let memory = memory(NOTE_BYTES)?;
        Ok(Self(Mapped::new(Arc::new(Region::shared(memory.as_fd(), NOTE_BYTES, true)?), 0, NOTE_BYTES)))
    }

    fn add(&self, begin: u64, end: u64) {
        let count = self.0.load(0, Ordering::Relaxed);
        let at = 2 + (count as usize % TURNS) * 2;
        self.0.store(at, begin, Ordering::Relaxed);
        self.0.store(at + 1, end, Ordering::Relaxed);
        self.0.store(0, count + 1, Ordering::Release);
    }

    fn stop(&self) {
        self.0.store(1, 1, Ordering::Release);
    }

    fn is_stopped(&self) -> bool {
        self.0.load(1, Ordering::Acquire) != 0
    }

    /// The turns in order.
    fn read(&self) -> Vec<(u64, u64)> {
        let count = self.0.load(0, Ordering::Acquire) as usize;
        (count.saturating_sub(TURNS)..count)
            .map(|turn| {
                let at = 2 + (turn % TURNS) * 2;
                (self.0.load(at, Ordering::Relaxed), self.0.load(at + 1, Ordering::Relaxed))
            })
            .collect()
    }
}

/// Memory that the application has made before the servers were started.
#[derive(Clone, Default)]
struct Registered(Arc<Mutex<Vec<(OwnedFd, u32)>>>);

impl Servers for Registered {
    fn register(&mut self, memory: BorrowedFd<'_>, bytes: u32) -> io::Result<(u32, u32)> {
        let mut all = self.all();
        all.push((memory.try_clone_to_owned()?, bytes));
        Ok((all.len() as u32 - 1, GENERATION))
    }
}

impl Registered {
    fn all(&self) -> MutexGuard<'_, Vec<(OwnedFd, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const GENERATION: u32 = 1;

/// Cores of the application, of `inet` and of the driver.
pub(super) type Cores = [Option<usize>; 3];

/// The role: sends one at a time, each after the last was acknowledged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stages {
    pub(super) namespace: PathBuf,
    pub(super) cores: Cores,
    pub(super) bytes: usize,
    pub(super) count: usize,
    pub(super) payload: Payload,
}

/// Medians of the parts of a send, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Parts {
    /// The application's own work until the request was published; the copy into the area is in it.
    pub(super) request: f64,
    pub(super) to_inet: f64,
    /// The turn of `inet` that took the request and published the frame.
    pub(super) inet: f64,
    pub(super) to_nic: f64,
    /// The turn of the driver that wrote the frame.
    pub(super) nic: f64,
    pub(super) to_application: f64,
    /// From the call of send to the direct return.
    pub(super) whole: f64,
}

/// One of the parts, or what follows from them.
type Part = fn(&Parts) -> f64;

impl Parts {
    pub(super) const NAMES: [(&'static str, Part); 8] = [
        ("request, the application's part", |parts| parts.request),
        ("hop from the application to inet", |parts| parts.to_inet),
        ("inet", |parts| parts.inet),
        ("hop from inet to the driver", |parts| parts.to_nic),
        ("driver, with the device", |parts| parts.nic),
        ("hop from the driver to the application", |parts| parts.to_application),
        ("the three hops", Self::ipc),
        ("whole send", |parts| parts.whole),
    ];

    pub(super) fn ipc(&self) -> f64 {
        self.to_inet + self.to_nic + self.to_application
    }
}

impl Stages {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        send(&self.measure().attempted("send one at a time")?)?;
        orders.serve(|_| Ok(()))
    }

    fn measure(&self) -> io::Result<Parts> {
        enter(&self.namespace).map_err(io::Error::other)?;
        let rig = Rig::new(tap::open(HERE.name)?, HERE.ours)?;
        let registered = Registered::default();
        let stack = rig.stack(Box::new(registered.clone()))?;
        // Makes the memory, which the servers then know from their start.
        drop(stack.alloc(self.bytes)?);
        drop(stack.alloc(WRITE_BYTES)?);
        let [inet, nic] = [Notes::new()?, Notes::new()?];
        let children = [
            fork(|| serve_inet(&rig, &registered, &inet, self.cores[1]))?,
            fork(|| serve_nic(&rig, &registered, &nic, self.cores[2]))?,
        ];
        pin(self.cores[0]);
        let result = self.sends(&stack);
        for notes in [&inet, &nic] {
            notes.stop();
        }
        for of in [Rig::INET, Rig::NIC] {
            rig.bell(of).ring();
        }
        for child in children {
            let mut status = 0;
            // SAFETY: a child of this process; the call fills an int.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
        }
        Ok(parts(&result?, &inet.read(), &nic.read()))
    }

    /// For each send: begin of the call, its end, and when the direct return was seen.
    fn sends(&self, stack: &Stack) -> io::Result<Vec<[u64; 3]>> {
        let stream = connect(stack, HERE.peer())?;
        (&stream).write_all(&Task::Sink.encode(Waiting::Block))?;
        let source = vec![7; self.bytes];
        let mut area = Some(stack.alloc(self.bytes)?);
        let mut times = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            let mut taken = area.take().expect("returned by the last turn");
            let begin = now_ns();
            if self.payload == Payload::Copied {
                taken.copy_from_slice(&source);
            }
            let ticket = stream.send(taken, 0..self.bytes)?;
            let sent = now_ns();
            ticket.submitted()?;
            times.push([begin, sent, now_ns()]);
            area = Some(ticket.released()?);
        }
        stream.shutdown(Shutdown::Write)?;
        (&stream).read_exact(&mut [0; SUNK_BYTES])?;
        Ok(times)
    }
}

/// Area of what is not sent by area.
const WRITE_BYTES: usize = 64 << 10;

/// Runs `work` in a child process, which ends with it.
fn fork(work: impl FnOnce() -> io::Result<()>) -> io::Result<libc::pid_t> {
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = match work() {
                Ok(()) => 0,
                Err(error) => {
                    eprintln!("error: a server of the experiment: {error}");
                    1
                }
            };
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(code) }
        }
        child => Ok(child),
    }
}

fn serve_inet(rig: &Rig, registered: &Registered, notes: &Notes, core: Option<usize>) -> io::Result<()> {
    pin(core);
    let mut server = rig.server()?;
    for (region, (_, bytes)) in (0..).zip(registered.all().iter()) {
        rig.add_region_to_server(&mut server, region, GENERATION, *bytes)?;
    }
    let mut waiter = Waiter::new(true)?;
    while !notes.is_stopped() {
        let begin = now_ns();
        let done = server.turn(rig.now());
        let turn = if done > 0 { Turn::Handed } else { Turn::Nothing };
        if done > 0 {
            notes.add(begin, now_ns());
        }
        if waiter.after(turn) == Next::Sleep && server.arm() {
            let deadline = server.deadline(rig.now()).unwrap_or(inet::Time::NEVER);
            waiter.sleep(&[(rig.bell(Rig::INET).as_fd(), PollFlags::IN)], deadline)?;
            rig.bell(Rig::INET).silence();
        }
    }
    Ok(())
}

fn serve_nic(rig: &Rig, registered: &Registered, notes: &Notes, core: Option<usize>) -> io::Result<()> {
    pin(core);
    let mut driver = rig.driver()?;
    for (region, (memory, bytes)) in (0..).zip(registered.all().iter()) {
        rig.add_region_to_driver(&mut driver, region, GENERATION, memory.as_fd(), *bytes)?;
    }
    let mut waiter = Waiter::new(true)?;
    while !notes.is_stopped() {
        let begin = now_ns();
        let turn = if driver.turn().map_err(io::Error::other)? { Turn::Handed } else { Turn::Nothing };
        if turn != Turn::Nothing {
            notes.add(begin, now_ns());
        }
        if waiter.after(turn) == Next::Sleep && driver.arm().map_err(io::Error::other)? {
            let sources = [(rig.bell(Rig::NIC).as_fd(), PollFlags::IN), (driver.as_fd(), driver.interest())];
            waiter.sleep(&sources, inet::Time::NEVER)?;
            driver.disarm();
            rig.bell(Rig::NIC).silence();
        }
    }
    Ok(())
}

/// Takes sends apart by the turns that handled them: the first turn of `inet` that ended after the request was begun,
/// and the first turn of the driver that ended after that turn began.
fn parts(sends: &[[u64; 3]], inet: &[(u64, u64)], nic: &[(u64, u64)]) -> Parts {
    let after = |turns: &[(u64, u64)], at: u64| {
        let index = turns.partition_point(|turn| turn.1 <= at);
        turns.get(index).copied()
    };
    let us = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
    let mut columns: [Vec<f64>; 7] = Default::default();
    for &[begin, sent, seen] in sends {
        let Some(first) = after(inet, begin) else { continue };
        let Some(second) = after(nic, first.0) else { continue };
        let values = [
            us(begin, sent),
            us(sent, first.0),
            us(first.0, first.1),
            us(first.1, second.0),
            us(second.0, second.1),
            us(second.1, seen),
            us(begin, seen),
        ];
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    let [request, to_inet, inet, to_nic, nic, to_application, whole] =
        columns.map(|column| Spread::of(column).unwrap_or_default().median);
    Parts { request, to_inet, inet, to_nic, nic, to_application, whole }
}
