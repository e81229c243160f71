//! The application's connection to the servers, and how its threads wait.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use area::{Doorbell, Region};
use libc::ECONNRESET;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::area::{AREA_BYTES_MAX, Arena, Lease, SendArea};
use super::state::{Id, State};
use crate::layout::{self, Channel};
use crate::slot::{Completion, Request};

/// A thread without success looks at the rings this long before it sleeps.
const LOOK_TIME: Duration = Duration::from_micros(30);
/// The longest sleep of a thread that waits for a direct return, for which no bell rings.
const DIRECT_NAP: Duration = Duration::from_micros(200);
/// How long the last drop of a stack waits until what was written and closed is acknowledged: the connections of an
/// application that is gone are reset.
const LINGER: Duration = Duration::from_secs(5);

/// What the library needs of the servers besides rings.
pub trait Servers: Send {
    /// Gives the servers memory to send from, a memfd of `bytes` that is sealed against shrinking. Returns its number and
    /// generation when `inet` and the driver know it.
    fn register(&mut self, memory: BorrowedFd<'_>, bytes: u32) -> io::Result<(u32, u32)>;

    /// Servers without a process of their own do some work. `false` if they have one: then threads that wait may sleep.
    fn turn(&mut self) -> bool {
        false
    }
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
    pub inet_bell: Doorbell,
    /// Becomes readable or hangs up when the servers are gone.
    pub control: Option<OwnedFd>,
    pub servers: Box<dyn Servers>,
}

/// A connection to the servers of one machine, shared by all sockets and threads of an application.
///
/// When the servers are gone, every call fails with `ECONNRESET`.
#[derive(Clone)]
pub struct Stack(pub(super) Arc<Shared>);

pub(super) struct Shared {
    state: Mutex<State>,
    /// Something was taken out of the rings, or nobody leads.
    changed: Condvar,
    servers: Mutex<Box<dyn Servers>>,
    arena: Arc<Arena>,
    pub(super) received: Arc<Region>,
    bell: Doorbell,
    inet_bell: Doorbell,
    control: Option<OwnedFd>,
    addresses: Vec<(IpAddr, u8)>,
}

pub(super) fn errno(status: i32) -> io::Error {
    io::Error::from_raw_os_error(status)
}

impl Stack {
    /// Joins the servers that listen at a path (`net up --socket`).
    pub fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::from_parts(super::join::join(path.as_ref())?))
    }

    /// For servers in this process, and for tests.
    pub fn from_parts(parts: Parts) -> Self {
        let Parts { addresses, channel, direct, received, bell, inet_bell, control, servers } = parts;
        let (requests, completions) = layout::client::application(&channel);
        let state = State::new(requests, completions, layout::direct::application(&direct));
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            servers: Mutex::new(servers),
            arena: Arc::default(),
            received,
            bell,
            inet_bell,
            control,
            addresses,
        }))
    }

    /// Addresses of the stack, with the lengths of their prefixes.
    pub fn addresses(&self) -> &[(IpAddr, u8)] {
        &self.0.addresses
    }

    /// Memory to send from, at most [`AREA_BYTES_MAX`] bytes. Waits until earlier sends are released if all of it is in
    /// use; `OutOfMemory` if the application itself holds all of it.
    pub fn alloc(&self, bytes: usize) -> io::Result<SendArea> {
        Ok(SendArea::new(self.0.lease(bytes)?, bytes))
    }
}

impl Shared {
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
        let mut servers = None;
        if let Some(lease) = self.arena.take(bytes) {
            return Ok(lease);
        }
        let register = &mut |memory: BorrowedFd<'_>, bytes: u32| {
            servers.get_or_insert_with(|| self.servers()).register(memory, bytes)
        };
        if self.arena.grow(bytes, register)?
            && let Some(lease) = self.arena.take(bytes)
        {
            return Ok(lease);
        }
        drop(servers);
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
    }

    /// Takes what the servers have written, and wakes the threads for whom it may be.
    pub(super) fn look(&self, state: &mut State) -> usize {
        let count = state.look();
        self.publish(state);
        if count > 0 {
            if state.followers > 0 {
                self.changed.notify_all();
            }
            if state.is_asleep {
                self.bell.ring();
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
    /// One of the threads that wait leads: it looks at the rings for [`LOOK_TIME`] and then sleeps on the doorbell; the
    /// others sleep until the leader, or a thread that looks before it waits, has taken something out of the rings.
    /// With `nap` no sleep is longer.
    pub(super) fn wait<T>(
        &self,
        until: Option<Instant>,
        nap: Option<Duration>,
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
            let left = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Err(io::ErrorKind::WouldBlock.into()),
                left => [left, nap].into_iter().flatten().min(),
            };
            if state.is_led {
                state.followers += 1;
                state = match left {
                    Some(left) => {
                        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
                state.followers -= 1;
                continue;
            }
            state.is_led = true;
            drop(state);
            self.lead(left);
            state = self.lock();
            state.is_led = false;
            if state.followers > 0 {
                self.changed.notify_all();
            }
        }
    }

    /// Returns when something was taken out of the rings, or at the end of the time.
    fn lead(&self, left: Option<Duration>) {
        let start = Instant::now();
        let has_process = loop {
            let has_process = !self.servers_turn();
            if self.look(&mut self.lock()) > 0 {
                return;
            }
            if start.elapsed() >= left.map_or(LOOK_TIME, |left| left.min(LOOK_TIME)) {
                break has_process;
            }
            std::thread::yield_now();
        };
        let mut state = self.lock();
        state.flush_returns();
        self.publish(&mut state);
        if !has_process {
            return;
        }
        if state.arm() {
            state.is_asleep = true;
            drop(state);
            self.sleep(left);
            state = self.lock();
            state.is_asleep = false;
        }
        state.disarm();
        self.bell.silence();
    }

    fn servers_turn(&self) -> bool {
        // A thread that registers memory holds the lock: the servers do their turn then.
        self.servers.try_lock().is_ok_and(|mut servers| servers.turn())
    }

    fn sleep(&self, left: Option<Duration>) {
        let mut ready = Vec::with_capacity(2);
        ready.push(PollFd::new(&self.bell, PollFlags::IN));
        // Messages on the control socket are answers to a thread that waits for them; its end is for all.
        ready.extend(self.control.as_ref().map(|control| PollFd::new(control, PollFlags::empty())));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An interrupted sleep ends early, which is harmless.
        if poll(&mut ready, left.as_ref()).is_ok()
            && ready.get(1).is_some_and(|control| !control.revents().is_empty())
        {
            self.lock().is_gone = true;
        }
    }

    /// Waits until the driver has submitted, or the servers have released, all sends of a flow up to a ticket.
    pub(super) fn wait_submitted(&self, id: Id, ticket: u64) -> io::Result<()> {
        self.wait(None, Some(DIRECT_NAP), |state| {
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

impl Drop for Shared {
    fn drop(&mut self) {
        if self.lock().lingers() {
            let until = Some(Instant::now() + LINGER);
            // What is not acknowledged then is lost, as the type's documentation says.
            let _ = self.wait(until, None, |state| (!state.lingers()).then_some(Ok(())));
        }
    }
}
