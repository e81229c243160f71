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
use super::tracefs::{Event, Trace};
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

/// The role: sends one at a time, each after the answer to the last: without notes, with notes, and while the driver
/// traces its system calls.
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
            rig.ring(of);
        }
        for child in children {
            let mut status = 0;
            // SAFETY: a child of this process; the call fills an int.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
        }
        let [quiet, noted, traced] = result?;
        let median = |all: &[Times], until: usize| {
            let us = all.iter().map(|times| times[until].saturating_sub(times[0]) as f64 / 1e3);
            Spread::of(us).unwrap_or_default().median
        };
        let whole = median(&quiet, 1);
        let event = (median(&traced, 1) - whole).max(0.0) / EVENTS.len() as f64;
        let ends: Vec<_> = noted.iter().map(|times| [times[0], times[1]]).collect();
        Ok(Parts {
            rows: rows_of(&ends, &all.map(Notes::read), note_ns),
            whole,
            released: median(&quiet, 2),
            note: note_ns / 1e3,
            reception_share: reception_share(nic.traced().map(|us| us - event)),
        })
    }

    /// Without notes, with notes, and traced.
    fn sends(&self, stack: &Stack, notes: [&Notes; 3]) -> io::Result<[Vec<Times>; 3]> {
        let stream = connect(stack, HERE.peer())?;
        let warm = self.count / 4;
        let task = Task::Echo { bytes: self.bytes as u32, count: (2 * warm + 3 * self.count) as u32 };
        (&stream).write_all(&task.encode(Waiting::Spin.among_servers()))?;
        let mut area = Some(stack.alloc(self.bytes)?);
        let mut run = |count| self.one_by_one(&stream, &mut area, count);
        run(warm)?;
        let quiet = run(self.count)?;
        for notes in notes {
            notes.set(Mode::Noting);
        }
        let noted = run(self.count)?;
        for notes in notes {
            notes.set(Mode::Tracing);
        }
        // Until the driver has begun to trace.
        run(warm)?;
        let traced = run(self.count)?;
        stream.shutdown(Shutdown::Write)?;
        Ok([quiet, noted, traced])
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
    // SAFETY: the child uses nothing that another thread may hold: the library's own thread sleeps while there is no
    // connection, the child does not use the library, and the C library's allocator survives a fork.
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
    while !notes.is(Mode::Over) {
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
    let mut trace = None;
    while !notes.is(Mode::Over) {
        if notes.is(Mode::Tracing) && trace.is_none() {
            trace = Some(Trace::start(&EVENTS));
        }
        let turn = if driver.turn().map_err(io::Error::other)? { Turn::Handed } else { Turn::Nothing };
        if waiter.after(turn) == Next::Sleep && driver.arm().map_err(io::Error::other)? {
            let sources = [(rig.bell(Rig::NIC).as_fd(), PollFlags::IN), (driver.as_fd(), driver.interest())];
            waiter.sleep(&sources, inet::Time::NEVER)?;
            driver.disarm();
            rig.bell(Rig::NIC).silence();
        }
    }
    // Without the right to trace there is no result.
    if let Some(Ok(events)) = trace.map(|trace| trace.and_then(Trace::finish)) {
        notes.set_traced(halves(&events));
    }
    Ok(())
}

/// Of the driver's system call that sends a frame. A TAP interface gives the frame to the kernel's receiving side in it.
const EVENTS: [&str; 3] =
    ["syscalls/sys_enter_writev", "net/netif_receive_skb_entry", "syscalls/sys_exit_writev"];

/// Medians of the part before the frame is received, and of the rest, microseconds.
fn halves(events: &[Event]) -> [f64; 2] {
    let mut columns: [Vec<f64>; 2] = Default::default();
    for call in events.windows(3) {
        let [enter, receive, exit] = call else { continue };
        let names = [enter, receive, exit].map(|event| event.name.as_str());
        if names == ["sys_writev", "netif_receive_skb_entry", "sys_writev"] {
            columns[0].push((receive.at_ns - enter.at_ns) / 1e3);
            columns[1].push((exit.at_ns - receive.at_ns) / 1e3);
        }
    }
    columns.map(|column| Spread::of(column).unwrap_or_default().median)
}

/// `None` if there was no trace.
fn reception_share([before, after]: [f64; 2]) -> Option<f64> {
    (before > 0.0 && after > 0.0).then(|| after / (before + after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_sends_is_divided_where_the_frame_is_received() {
        let names = ["sys_writev", "netif_receive_skb_entry", "sys_writev", "sys_writev", "sys_writev"];
        let events: Vec<_> = names
            .into_iter()
            .zip([0.0, 1000.0, 4000.0, 9000.0, 9500.0])
            .map(|(name, at_ns)| Event { name: name.to_owned(), at_ns })
            .collect();
        assert_eq!(halves(&events), [1.0, 3.0]);
        assert_eq!(reception_share([1.0, 3.0]), Some(0.75));
        assert_eq!(reception_share(halves(&[])), None);
    }
}
