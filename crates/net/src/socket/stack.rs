//! The application's connection to the servers, and how its threads wait.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use area::{Doorbell, Region, Ringer};
use inet::Time;
use libc::ECONNRESET;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::area::{AREA_BYTES_MAX, Arena, Lease, SendArea};
use super::attendant;
use super::state::{Id, State};
use crate::layout::{self, Channel};
use crate::slot::{Completion, Request};
use crate::wait::{LOOPS, Next, Turn, Waiter, is_core_shared, now};

/// The longest sleep of a thread that waits for a direct return, for which no bell rings, microseconds.
const DIRECT_NAP_US: u64 = 200;
/// How long the last drop of a stack waits until what was written and closed is acknowledged, microseconds: the
/// connections of an application that is gone are reset.
const LINGER_US: u64 = 5_000_000;

/// What the library needs of the servers besides rings.
pub trait Servers: Send {
    /// Gives the servers memory to send from, a memfd of `bytes` that is sealed against shrinking. Returns its number and
    /// generation when `inet` and the driver know it.
    fn register(&mut self, memory: BorrowedFd<'_>, bytes: u32) -> io::Result<(u32, u32)>;

    /// The servers have no process of their own: who waits calls [`Servers::turn`], and neither yields nor sleeps.
    fn are_here(&self) -> bool {
        false
    }

    /// Servers that are here do some work.
    fn turn(&mut self) {}
}

/// What an application shares with the servers.
pub struct Parts {
    pub addresses: Vec<(IpAddr, u8)>,
    /// With `inet`; with the driver.
    pub channel: Channel,
    pub direct: Channel,
    /// Where received bytes lie, read-only.
    pub received: Arc<Region>,
    /// Of this application, and of `inet`.
    pub bell: Doorbell,
    pub inet_bell: Ringer,
    /// Becomes readable or hangs up when the servers are gone.
    pub control: Option<OwnedFd>,
    pub servers: Box<dyn Servers>,
}

/// A connection to the servers of one machine, shared by all sockets and threads of an application.
///
/// When the servers are gone, every call fails with `ECONNRESET`.
#[derive(Clone)]
pub struct Stack(pub(super) Arc<Shared>);

/// What all sockets hold: the last one to go waits for what was written, and ends the library's own thread.
pub(super) struct Shared {
    core: Arc<Core>,
    /// `None` for servers that are here: they work only while a thread waits.
    attendant: Option<JoinHandle<()>>,
}

pub(super) struct Core {
    state: Mutex<State>,
    /// Something was taken out of the rings, or no thread leads.
    changed: Condvar,
    /// For the library's own thread.
    pub(super) unfinished: Condvar,
    servers: Mutex<Box<dyn Servers>>,
    are_servers_here: bool,
    /// Of the thread that leads.
    waiter: Mutex<Waiter>,
    arena: Arc<Arena>,
    pub(super) received: Arc<Region>,
    bell: Doorbell,
    /// For the thread that sleeps, rung by the other ones.
    own_bell: (Doorbell, Ringer),
    inet_bell: Ringer,
    control: Option<OwnedFd>,
    addresses: Vec<(IpAddr, u8)>,
}

pub(super) fn errno(status: i32) -> io::Error {
    io::Error::from_raw_os_error(status)
}

impl Stack {
    /// Joins the servers that listen at a path (`net up --socket`).
    pub fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_parts(super::join::join(path.as_ref())?)
    }

    /// For servers in this process, and for tests.
    pub fn from_parts(parts: Parts) -> io::Result<Self> {
        let Parts { addresses, channel, direct, received, bell, inet_bell, control, servers } = parts;
        let (requests, completions) = layout::client::application(&channel);
        let state = State::new(requests, completions, layout::direct::application(&direct));
        let core = Arc::new(Core {
            state: Mutex::new(state),
            changed: Condvar::new(),
            unfinished: Condvar::new(),
            are_servers_here: servers.are_here(),
            servers: Mutex::new(servers),
            waiter: Mutex::new(Waiter::new(is_core_shared(LOOPS))?),
            arena: Arc::default(),
            received,
            bell,
            own_bell: Doorbell::new()?,
            inet_bell,
            control,
            addresses,
        });
        let attendant = match core.are_servers_here {
            true => None,
            false => Some(attendant::start(Arc::clone(&core))?),
        };
        Ok(Self(Arc::new(Shared { core, attendant })))
    }

    /// Addresses of the stack, with the lengths of their prefixes.
    pub fn addresses(&self) -> &[(IpAddr, u8)] {
        &self.0.addresses
    }

    /// Threads that wait sleep at once, without looking for a while before.
    #[cfg(feature = "lab")]
    pub fn sleep_at_once(&self) {
        self.0.waiter.lock().unwrap_or_else(PoisonError::into_inner).sleep_at_once();
    }

    /// Memory to send from, at most [`AREA_BYTES_MAX`] bytes. Waits until earlier sends are released if all of it is in
    /// use; `OutOfMemory` if the application itself holds all of it.
    pub fn alloc(&self, bytes: usize) -> io::Result<SendArea> {
        Ok(SendArea::new(self.0.lease(bytes)?, bytes))
    }
}

impl Core {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another thread cannot leave the state half changed: its methods do not panic in between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn servers(&self) -> MutexGuard<'_, Box<dyn Servers>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lease(&self, bytes: usize) -> io::Result<Lease> {
        if bytes > AREA_BYTES_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        loop {
            if let Some(lease) = self.arena.take(bytes) {
                return Ok(lease);
            }
            let mut servers = self.servers();
            // Another thread may have grown the arena before this one had the lock.
            if let Some(lease) = self.arena.take(bytes) {
                return Ok(lease);
            }
            if !self.arena.grow(bytes, &mut |memory, bytes| servers.register(memory, bytes))? {
                break;
            }
        }
        self.wait(None, None, |state| match self.arena.take(bytes) {
            Some(lease) => Some(Ok(lease)),
            None if !state.has_flights() => Some(Err(io::ErrorKind::OutOfMemory.into())),
            None => None,
        })
    }

    /// Makes what was requested visible, and wakes `inet` if it sleeps.
    pub(super) fn publish(&self, state: &mut State) {
        if state.publish() {
            self.inet_bell.ring();
        }
        if state.is_attendant_asleep && state.is_busy() {
            state.is_attendant_asleep = false;
            self.unfinished.notify_one();
        }
    }

    /// Takes what the servers have written, and wakes the threads for whom it may be.
    pub(super) fn look(&self, state: &mut State) -> usize {
        let count = state.look();
        self.publish(state);
        if count > 0 {
            state.looks += 1;
            if state.followers > 0 {
                self.changed.notify_all();
            }
            if state.is_asleep {
                self.own_bell.1.ring();
            }
        }
        count
    }

    /// A request and its answer.
    pub(super) fn ask(&self, asked: Request, low: u32) -> io::Result<Completion> {
        let mut state = self.lock();
        let ticket = state.ask(asked, low);
        self.publish(&mut state);
        drop(state);
        let answer = self.wait(None, None, |state| state.answer(ticket).map(Ok))?;
        if answer.status == 0 { Ok(answer) } else { Err(errno(answer.status.cast_signed())) }
    }

    /// Waits until `ready` returns something. Errors: `WouldBlock` at `until`; ECONNRESET if the servers are gone.
    ///
    /// One of the threads that wait leads: it waits for the rings as [`crate::wait`] says; the others sleep until the
    /// leader, or a thread that looks before it waits, has taken something out of the rings. With `nap` no sleep is
    /// longer, microseconds.
    pub(super) fn wait<T>(
        &self,
        until: Option<Time>,
        nap: Option<u64>,
        mut ready: impl FnMut(&mut State) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        let mut state = self.lock();
        loop {
            self.look(&mut state);
            if let Some(result) = ready(&mut state) {
                self.publish(&mut state);
                return result;
            }
            if state.is_gone {
                return Err(errno(ECONNRESET));
            }
            let mut deadline = until.unwrap_or(Time::NEVER);
            if deadline != Time::NEVER || nap.is_some() {
                let now = now();
                if deadline <= now {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                deadline = deadline.min(nap.map_or(Time::NEVER, |nap| now.after(nap)));
            }
            if state.is_led {
                state = self.follow(state, deadline);
                continue;
            }
            state.is_led = true;
            let looks = state.looks;
            drop(state);
            self.lead(looks, deadline);
            state = self.lock();
            state.is_led = false;
            if state.followers > 0 {
                self.changed.notify_all();
            }
        }
    }

    fn follow<'a>(&self, mut state: MutexGuard<'a, State>, deadline: Time) -> MutexGuard<'a, State> {
        state.followers += 1;
        let mut state = if deadline == Time::NEVER {
            self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
        } else {
            let left = Duration::from_micros(deadline.since(now()));
            self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
        };
        state.followers -= 1;
        state
    }

    /// Returns when something was taken out of the rings since the `looks`th successful look, perhaps by another thread,
    /// or at the deadline.
    fn lead(&self, looks: u64, deadline: Time) {
        let mut waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner);
        let mut turn = Turn::Worked;
        loop {
            if self.are_servers_here {
                self.servers_turn();
            }
            let mut state = self.lock();
            self.look(&mut state);
            if state.looks != looks {
                return;
            }
            if std::mem::take(&mut state.has_handed) {
                turn = Turn::Handed;
            }
            drop(state);
            if deadline != Time::NEVER && deadline <= now() {
                break;
            }
            // Servers that are here share no core with this thread, and ring no bell.
            if !self.are_servers_here && waiter.after(turn) == Next::Sleep {
                break;
            }
            turn = Turn::Nothing;
        }
        let mut state = self.lock();
        state.flush_returns();
        self.publish(&mut state);
        if !self.are_servers_here && state.looks == looks && state.arm() {
            state.is_asleep = true;
            drop(state);
            self.sleep(&mut waiter, deadline);
            state = self.lock();
            state.is_asleep = false;
            self.own_bell.0.silence();
        }
        state.disarm();
        self.bell.silence();
    }

    fn servers_turn(&self) {
        // A thread that registers memory holds the lock: the servers do their turn then.
        if let Ok(mut servers) = self.servers.try_lock() {
            servers.turn();
        }
    }

    fn sleep(&self, waiter: &mut Waiter, deadline: Time) {
        let bells = [&self.bell, &self.own_bell.0].map(|bell| (bell.as_fd(), PollFlags::IN));
        let Some(control) = &self.control else {
            let _ = waiter.sleep(&bells, deadline);
            return;
        };
        // Messages on the control socket are answers to a thread that waits for them; its end is for all. A sleep that
        // fails ends early, which is harmless.
        let _ = waiter.sleep(&[bells[0], bells[1], (control.as_fd(), PollFlags::empty())], deadline);
        let mut over = [PollFd::new(control, PollFlags::empty())];
        if poll(&mut over, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0) {
            self.lock().is_gone = true;
        }
    }

    /// Waits until the driver has submitted, or the servers have released, all sends of a flow up to a ticket.
    pub(super) fn wait_submitted(&self, id: Id, ticket: u64) -> io::Result<()> {
        self.wait(None, Some(DIRECT_NAP_US), |state| {
            let flow = state.flow(id)?;
            match flow.ended {
                _ if flow.submitted >= ticket => Some(Ok(())),
                Some(status) => Some(Err(errno(if status == 0 { ECONNRESET } else { status }))),
                None => None,
            }
        })
    }

    pub(super) fn local_to(&self, id: Id) -> io::Result<(SocketAddr, SocketAddr)> {
        let mut state = self.lock();
        let flow = state.flow(id).ok_or_else(|| errno(libc::EBADF))?;
        Ok((flow.local, flow.peer))
    }
}

impl Deref for Shared {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.lock().lingers() {
            let until = Some(now().after(LINGER_US));
            // What is not acknowledged then is lost, as the type's documentation says.
            let _ = self.wait(until, None, |state| (!state.lingers()).then_some(Ok(())));
        }
        self.lock().is_over = true;
        self.unfinished.notify_one();
        if let Some(attendant) = self.attendant.take() {
            // It does not panic; and if it did, nothing is left for it to do.
            let _ = attendant.join();
        }
    }
}
