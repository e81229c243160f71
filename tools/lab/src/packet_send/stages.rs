//! One send at a time, taken apart (the paper's Table 3): `inet` and the driver run in processes of their own, made by
//! fork; all three note the steps of [`inet::step`].

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::nic::tap;
use net::socket::{SendArea, Servers, Stack, TcpStream};
use net::wait::{Next, Turn, Waiter};
use rustix::event::PollFlags;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::near::Payload;
use super::notes::{Mode, Notes, now_ns};
use super::ours::connect;
use super::parts::{Parts, rows_of};
use super::peer::Task;
use super::place::HERE;
use super::rig::Rig;
use super::waiting::{Waiting, pin};
use crate::part::{Orders, send};
use crate::stats::Spread;
use crate::wan_write::enter;
use crate::{Attempted, LabError};

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

/// The role: sends one at a time, each after the answer to the last, first without and then with notes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stages {
    pub(super) namespace: PathBuf,
    pub(super) cores: Cores,
    pub(super) bytes: usize,
    /// Of each kind.
    pub(super) count: usize,
    pub(super) payload: Payload,
}

/// Of one send: begin of the call, the direct return was seen, the area was released.
type Times = [u64; 3];

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
        let [application, inet, nic] = [Notes::new()?, Notes::new()?, Notes::new()?];
        let children = [
            fork(|| serve_inet(&rig, &registered, &inet, self.cores[1]))?,
            fork(|| serve_nic(&rig, &registered, &nic, self.cores[2]))?,
        ];
        pin(self.cores[0]);
        application.take_steps();
        let note_ns = application.cost_ns();
        let all = [&application, &inet, &nic];
        let result = self.sends(&stack, all);
        for notes in all {
            notes.set(Mode::Over);
        }
        for of in [Rig::INET, Rig::NIC] {
            rig.bell(of).ring();
        }
        for child in children {
            let mut status = 0;
            // SAFETY: a child of this process; the call fills an int.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
        }
        let [quiet, noted] = result?;
        let median = |until: usize| {
            let us = quiet.iter().map(|times| times[until].saturating_sub(times[0]) as f64 / 1e3);
            Spread::of(us).unwrap_or_default().median
        };
        let ends: Vec<_> = noted.iter().map(|times| [times[0], times[1]]).collect();
        Ok(Parts {
            rows: rows_of(&ends, &all.map(Notes::read), note_ns),
            whole: median(1),
            released: median(2),
            note: note_ns / 1e3,
        })
    }

    /// Without notes, and with.
    fn sends(&self, stack: &Stack, notes: [&Notes; 3]) -> io::Result<[Vec<Times>; 2]> {
        let stream = connect(stack, HERE.peer())?;
        let warm = self.count / 4;
        let task = Task::Echo { bytes: self.bytes as u32, count: (warm + 2 * self.count) as u32 };
        (&stream).write_all(&task.encode(Waiting::Spin.among_servers()))?;
        let mut area = Some(stack.alloc(self.bytes)?);
        let mut run = |count| self.one_by_one(&stream, &mut area, count);
        run(warm)?;
        let quiet = run(self.count)?;
        for notes in notes {
            notes.set(Mode::Noting);
        }
        let noted = run(self.count)?;
        stream.shutdown(Shutdown::Write)?;
        Ok([quiet, noted])
    }

    fn one_by_one(
        &self,
        mut stream: &TcpStream,
        area: &mut Option<SendArea>,
        count: usize,
    ) -> io::Result<Vec<Times>> {
        let source = vec![7; self.bytes];
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let mut taken = area.take().expect("returned by the last turn");
            if self.payload == Payload::InPlace {
                taken.copy_from_slice(&source);
            }
            let begin = now_ns();
            if self.payload == Payload::Copied {
                taken.copy_from_slice(&source);
            }
            let ticket = stream.send(taken, 0..self.bytes)?;
            ticket.submitted()?;
            let seen = now_ns();
            *area = Some(ticket.released()?);
            times.push([begin, seen, now_ns()]);
            stream.read_exact(&mut [0])?;
        }
        Ok(times)
    }
}

/// Area of what is not sent by area.
const WRITE_BYTES: usize = 64 << 10;

/// Runs `work` in a child process, which ends with it, and with this one.
pub(super) fn fork(work: impl FnOnce() -> io::Result<()>) -> io::Result<libc::pid_t> {
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let code = match work() {
                Ok(()) => 0,
                Err(error) => {
                    eprintln!("error: a process of the experiment: {error}");
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
    notes.take_steps();
    let mut server = rig.server()?;
    let counters = rig.counters()?;
    for (region, (_, bytes)) in (0..).zip(registered.all().iter()) {
        rig.add_region_to_server(&mut server, region, GENERATION, *bytes)?;
    }
    let mut waiter = Waiter::new(true)?;
    while !notes.is_over() {
        // As `net::process` has it.
        let frames = counters.frames_out.load(Ordering::Relaxed);
        let turn = match server.turn(rig.now()) {
            0 => Turn::Nothing,
            _ if counters.frames_out.load(Ordering::Relaxed) != frames => Turn::Handed,
            _ => Turn::Worked,
        };
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
    notes.take_steps();
    let mut driver = rig.driver()?;
    for (region, (memory, bytes)) in (0..).zip(registered.all().iter()) {
        rig.add_region_to_driver(&mut driver, region, GENERATION, memory.as_fd(), *bytes)?;
    }
    let mut waiter = Waiter::new(true)?;
    while !notes.is_over() {
        let turn = if driver.turn().map_err(io::Error::other)? { Turn::Handed } else { Turn::Nothing };
        if waiter.after(turn) == Next::Sleep && driver.arm().map_err(io::Error::other)? {
            let sources = [(rig.bell(Rig::NIC).as_fd(), PollFlags::IN), (driver.as_fd(), driver.interest())];
            waiter.sleep(&sources, inet::Time::NEVER)?;
            driver.disarm();
            rig.bell(Rig::NIC).silence();
        }
    }
    Ok(())
}
