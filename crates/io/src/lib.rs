//! The completion loop. One [`Io`] per thread; operations are submitted with a [`Token`] and come back as one
//! [`Event`] each, out of [`Io::turn`].
//!
//! An operation keeps the memory and the descriptor it uses alive until its event, so dropping a connection or
//! an endpoint at any moment is safe: its late events find no owner and are ignored.
//!
//! Not here: protocols, block devices. Two back ends share the narrow interface [`Backend`]: `uring.rs`, and
//! `portable.rs` (epoll and threads) for where io_uring is forbidden. `choice.rs` picks one. What else drivers ask of
//! the operating system is in `host.rs`, where a simulated one can take its place.

mod choice;
mod event;
mod host;
mod portable;
mod socket;
mod spin;
mod uring;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use area::{Access, Pool, PoolLimits, Span};
use slab::Slab;
use spin::{SPIN_MAX, Spin};

pub use event::{Event, Item, Owner, Token};
pub use host::{Listener, Thread, World, addresses, enter, entropy, listen, socket, spawn};
pub use socket::{Incoming, Outgoing, SPANS_PER_RECEIVE};
pub use spin::SpinReport;

/// Operations that may wait for the kernel at once, per loop; more than that are submitted in several turns.
pub const SUBMISSIONS_MAX: u32 = 512;

/// Looks between two looks at the clock.
const LOOKS: u32 = 8;

/// Turns that only deliver what needs no kernel, until one looks at the kernel all the same.
const PASSES_MAX: u32 = 4;
/// What is not longer is sent at once: it hardly ever has to wait, and its completion needs no turn of its own.
const SEND_NOW_BYTES_MAX: usize = 64 << 10;

/// How long the end of a loop waits for operations in flight, and for how long at a time.
const DROP_PATIENCE: Duration = Duration::from_secs(1);
const DROP_STEP: Duration = Duration::from_millis(5);

/// Open descriptor shared by the operations that use it; closed when the last of them is done.
pub type Handle = Rc<OwnedFd>;

/// How a file write is to be made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Left to a later flush.
    Volatile,
    /// On the medium, allocation included, before the event (`RWF_DSYNC`).
    Durable,
}

/// What `fallocate` does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Give the blocks back; reads as zeroes.
    PunchHole,
    /// Zero the range, keeping it allocated.
    ZeroRange,
}

impl Allocation {
    /// The mode that `fallocate` knows it by.
    fn mode(self) -> i32 {
        libc::FALLOC_FL_KEEP_SIZE
            | match self {
                Self::PunchHole => libc::FALLOC_FL_PUNCH_HOLE,
                Self::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
            }
    }
}

/// One operation as a back end sees it. Pointers stay valid until the operation's completion is delivered.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub enum Raw {
    /// `region`: the registered one that `into` lies in.
    Read {
        fd: RawFd,
        into: *mut u8,
        length: u32,
        offset: u64,
        region: Option<u16>,
    },
    Write {
        fd: RawFd,
        from: *const u8,
        length: u32,
        offset: u64,
        region: Option<u16>,
        durability: Durability,
    },
    Sync {
        fd: RawFd,
    },
    Allocate {
        fd: RawFd,
        how: Allocation,
        offset: u64,
        length: u64,
    },
    /// Until there is something to take, or an error to hear of.
    Poll {
        fd: RawFd,
    },
    Accept {
        fd: RawFd,
    },
    Connect {
        fd: RawFd,
        address: *const libc::sockaddr,
        length: u32,
    },
    /// `is_empty`: the receive before took everything, so there is hardly anything to take yet.
    Receive {
        fd: RawFd,
        message: *mut libc::msghdr,
        is_empty: bool,
    },
    Send {
        fd: RawFd,
        message: *const libc::msghdr,
    },
}

impl Raw {
    /// What it does with memory.
    fn access(&self) -> Access {
        match self {
            Self::Read { .. } | Self::Receive { .. } => Access::Write,
            Self::Write { .. } | Self::Send { .. } => Access::Read,
            Self::Sync { .. }
            | Self::Allocate { .. }
            | Self::Poll { .. }
            | Self::Accept { .. }
            | Self::Connect { .. } => Access::Read,
        }
    }
}

/// What a back end must do. `result` is a byte count or descriptor, or a negated errno, as in io_uring.
pub trait Backend {
    /// For people.
    fn name(&self) -> &'static str;
    /// Whether [`Io`] may look with a zero timeout, again and again, before it waits.
    fn spins(&self) -> bool {
        false
    }
    /// The time since an instant that all loops of a process share, so that times may be told to other threads.
    fn now(&self) -> Duration {
        EPOCH.elapsed()
    }
    /// Makes region `index` of the loop's pool known to the kernel, or forgotten, so that it need not look up its pages
    /// for each operation. False: not possible.
    fn register(&mut self, index: u16, region: Option<(*mut u8, usize)>) -> bool {
        let _ = (index, region);
        false
    }
    /// Sends what a socket takes at this moment, as `sendmsg`. `None`: nothing, or not here.
    fn send_now(&mut self, fd: RawFd, message: *const libc::msghdr) -> Option<usize> {
        let _ = (fd, message);
        None
    }
    /// Queues one operation; it may start at once or in the next [`Backend::wait`].
    fn push(&mut self, key: usize, raw: Raw) -> io::Result<()>;
    /// Starts what is queued and collects completions. Blocks until there is at least one, or for `timeout`;
    /// a zero timeout only looks.
    fn wait(&mut self, timeout: Option<Duration>, completed: &mut Vec<(usize, i32)>) -> io::Result<()>;
    /// Makes what waits for others (sockets, wake-ups) end soon; what works on a disk ends by itself.
    fn cancel(&mut self);
}

/// Where loop time begins.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What an operation in flight keeps alive, and who is told.
struct Operation {
    token: Token,
    item: Item,
    _handle: Handle,
}

/// Wakes a loop from another thread.
#[derive(Clone, Debug)]
pub struct Waker {
    eventfd: Arc<OwnedFd>,
}

impl Waker {
    /// Makes the loop deliver the event of its [`Io::waker`] soon. Never blocks.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight bytes from a live local; a full counter (EAGAIN) means that a wake is already due.
        unsafe { libc::write(self.eventfd.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

struct WakeState {
    token: Token,
    handle: Handle,
    buffer: Span,
}

/// The completion loop of one thread.
pub struct Io {
    backend: Box<dyn Backend>,
    operations: Slab<Operation>,
    completed: Vec<(usize, i32)>,
    /// Events that need no kernel: delivered by the next turn.
    ready: VecDeque<Event>,
    /// Events of those whom [`Io::turn_for`] left out: delivered by the next turn that is theirs.
    kept: Vec<Event>,
    /// For turns that find nothing else.
    idle: VecDeque<Token>,
    /// Turns in a row that went without the kernel.
    passes: u32,
    timers: BinaryHeap<Reverse<(Duration, u64, Token)>>,
    timer_serial: u64,
    wakes: Vec<WakeState>,
    owners: Cell<u32>,
    now: Duration,
    spin: Spin,
    pool: Pool,
    /// Which regions of the pool the back end knows, by number.
    registered: Vec<bool>,
}

impl Io {
    /// A loop on the calling thread with a pool of its own.
    ///
    /// It uses io_uring where that works, and epoll with threads where the kernel forbids it (containers with
    /// a strict seccomp profile, `kernel.io_uring_disabled`). The environment variable `HIKYAKU_IO`, `uring`
    /// or `portable`, forces one of them; then the error says why it cannot be had.
    pub fn new(limits: PoolLimits) -> io::Result<Self> {
        let backend = match host::world() {
            Some(world) => world.backend()?,
            None => choice::open(choice::forced()?)?,
        };
        Ok(Self::over(backend, limits))
    }

    #[cfg(test)]
    fn with_backend(forced: Option<choice::Kind>, limits: PoolLimits) -> io::Result<Self> {
        Ok(Self::over(choice::open(forced)?, limits))
    }

    fn over(backend: Box<dyn Backend>, limits: PoolLimits) -> Self {
        let (now, spin) = (backend.now(), Spin::new(backend.spins()));
        Self {
            backend,
            operations: Slab::with_capacity(SUBMISSIONS_MAX as usize),
            completed: Vec::with_capacity(SUBMISSIONS_MAX as usize),
            ready: VecDeque::new(),
            kept: Vec::new(),
            idle: VecDeque::new(),
            passes: 0,
            timers: BinaryHeap::new(),
            timer_serial: 0,
            wakes: Vec::new(),
            owners: Cell::new(0),
            now,
            spin,
            pool: Pool::new(limits),
            registered: Vec::new(),
        }
    }

    /// What carries out this loop's operations: `io_uring` or `portable`.
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// The pool whose areas this loop's operations use.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Time since the process's first loop began, as of the present turn. The only clock that drivers and machines see.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The time at this moment. For measuring; what is decided by time goes by [`Io::now`].
    pub fn clock(&self) -> Duration {
        self.backend.now()
    }

    /// A number that no other owner of this loop has.
    pub fn owner(&self) -> Owner {
        let next = self.owners.get();
        self.owners.set(next.checked_add(1).expect("fewer than 2^32 owners in the life of a loop"));
        Owner(next)
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    fn submit(&mut self, token: Token, handle: &Handle, item: Item, raw: Raw) {
        if cfg!(debug_assertions) {
            item.each_span(|span| span.begin_flight(raw.access()));
        }
        let key = self.operations.insert(Operation { token, item, _handle: Rc::clone(handle) });
        if let Err(error) = self.backend.push(key, raw) {
            let result = -error.raw_os_error().unwrap_or(libc::EIO);
            let event = self.take(key, result);
            self.ready.push_back(event);
        }
    }

    /// Gives memory that is not in use back to the system, for a loop that has nothing to do for a while.
    pub fn trim(&mut self) {
        self.pool.release();
        self.register_changes();
    }

    /// The registered region that a span lies in.
    fn registered(&mut self, span: &Span) -> Option<u16> {
        self.register_changes();
        let index = span.region()?;
        self.registered.get(index as usize).copied().unwrap_or_default().then_some(index as u16)
    }

    /// Makes regions known to the back end that were mapped or unmapped meanwhile.
    fn register_changes(&mut self) {
        while let Some((index, place)) = self.pool.changed_region() {
            let Ok(number) = u16::try_from(index) else { continue };
            let known = self.backend.register(number, place) && place.is_some();
            let index = index as usize;
            if self.registered.len() <= index {
                self.registered.resize(index + 1, false);
            }
            self.registered[index] = known;
        }
    }

    /// Reads file bytes at `offset` into `into`. Event: bytes read, short only at end of file.
    pub fn read(&mut self, token: Token, file: &Handle, offset: u64, into: Span) {
        let (into_ptr, length, region) = (into.as_ptr(), into.len() as u32, self.registered(&into));
        let raw = Raw::Read { fd: file.as_raw_fd(), into: into_ptr, length, offset, region };
        self.submit(token, file, Item::Span(into), raw);
    }

    /// Writes `from` at `offset`. Event: bytes written, possibly fewer than asked.
    pub fn write(&mut self, token: Token, file: &Handle, offset: u64, from: Span, durability: Durability) {
        let (from_ptr, length) = (from.as_ptr().cast_const(), from.len() as u32);
        let region = self.registered(&from);
        let raw = Raw::Write { fd: file.as_raw_fd(), from: from_ptr, length, offset, region, durability };
        self.submit(token, file, Item::Span(from), raw);
    }

    /// Writes `from` at `offset` here and now, for files that are memory: handing such a write to the kernel's
    /// workers costs two context switches, and it never waits for a device. Bytes written, possibly fewer than asked.
    pub fn write_now(
        &self,
        file: &Handle,
        offset: u64,
        from: &Span,
        durability: Durability,
    ) -> io::Result<usize> {
        let vector = libc::iovec { iov_base: from.as_ptr().cast(), iov_len: from.len() };
        let flags = match durability {
            Durability::Volatile => 0,
            Durability::Durable => libc::RWF_DSYNC,
        };
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the vector names the bytes of a live span, which the call only reads.
        let count = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const vector, 1, offset, flags) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Makes everything written so far durable (`fdatasync`).
    pub fn sync(&mut self, token: Token, file: &Handle) {
        self.submit(token, file, Item::None, Raw::Sync { fd: file.as_raw_fd() });
    }

    /// Frees or zeroes a range of a file or block device.
    pub fn allocate(&mut self, token: Token, file: &Handle, how: Allocation, offset: u64, length: u64) {
        self.submit(token, file, Item::None, Raw::Allocate { fd: file.as_raw_fd(), how, offset, length });
    }

    /// Waits until `handle` has something to take, which whoever asks takes itself, without blocking: for descriptors that
    /// answer in ways of their own (`/dev/sg0`, another ring). Event: what poll(2) says of it.
    pub fn poll(&mut self, token: Token, handle: &Handle) {
        self.submit(token, handle, Item::None, Raw::Poll { fd: handle.as_raw_fd() });
    }

    /// Accepts one connection. Event: [`Event::into_handle`].
    pub fn accept(&mut self, token: Token, listener: &Handle) {
        self.submit(token, listener, Item::Accepting, Raw::Accept { fd: listener.as_raw_fd() });
    }

    /// Connects a stream socket.
    pub fn connect(&mut self, token: Token, socket: &Handle, address: SocketAddr) {
        let address = Box::new(socket::Address::from(address));
        let (pointer, length) = address.as_raw();
        let raw = Raw::Connect { fd: socket.as_raw_fd(), address: pointer, length };
        self.submit(token, socket, Item::Address(address), raw);
    }

    /// Receives into the spans of `incoming`, in order. Event: bytes received, zero at end of stream, and the
    /// `incoming` back in [`Item::Incoming`].
    pub fn receive(&mut self, token: Token, socket: &Handle, mut incoming: Box<Incoming>) {
        let is_empty = incoming.took_everything;
        let raw = Raw::Receive { fd: socket.as_raw_fd(), message: incoming.message(), is_empty };
        self.submit(token, socket, Item::Incoming(incoming), raw);
    }

    /// Sends what is left of `outgoing`. Event: bytes taken by the socket, and `outgoing` back in
    /// [`Item::Outgoing`]; call [`Outgoing::advance`] and send again while anything is left.
    pub fn send(&mut self, token: Token, socket: &Handle, mut outgoing: Box<Outgoing>) {
        let (fd, message) = (socket.as_raw_fd(), outgoing.message());
        if outgoing.len() <= SEND_NOW_BYTES_MAX
            && let Some(count) = self.backend.send_now(fd, message)
        {
            let event = Event { token, result: count as i32, item: Item::Outgoing(outgoing) };
            return self.ready.push_back(event);
        }
        let raw = Raw::Send { fd, message };
        self.submit(token, socket, Item::Outgoing(outgoing), raw);
    }

    /// Delivers an event at `at` (loop time). Timers cannot be withdrawn: whoever set one checks on delivery
    /// whether it still matters.
    pub fn timer(&mut self, token: Token, at: Duration) {
        self.timer_serial += 1;
        self.timers.push(Reverse((at, self.timer_serial, token)));
    }

    /// Delivers an event in the next turn.
    pub fn soon(&mut self, token: Token) {
        self.ready.push_back(Event { token, result: 0, item: Item::None });
    }

    /// Delivers an event in the first turn that has no other, for work that nothing should wait for; one such event in a
    /// turn. Until then no turn sleeps.
    pub fn idle(&mut self, token: Token) {
        self.idle.push_back(token);
    }

    /// A handle with which other threads make this loop deliver an event with `token`, again and again.
    pub fn waker(&mut self, token: Token) -> io::Result<Waker> {
        // SAFETY: plain system call; the result is checked before it is owned.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` is a fresh descriptor that nobody else owns.
        let eventfd = Arc::new(unsafe { OwnedFd::from_raw_fd(raw) });
        let handle = Rc::new(eventfd.try_clone()?);
        let buffer = self.pool.take(8).ok_or(io::ErrorKind::OutOfMemory)?;
        self.wakes.push(WakeState { token, handle, buffer });
        self.arm_wake(self.wakes.len() - 1);
        Ok(Waker { eventfd })
    }

    fn arm_wake(&mut self, index: usize) {
        let wake = &self.wakes[index];
        let token = Token { owner: Owner::WAKE, key: index as u32 };
        let (handle, buffer) = (Rc::clone(&wake.handle), wake.buffer.clone());
        self.read(token, &handle, 0, buffer);
    }

    /// Starts what was submitted, waits until something completes or a timer is due, and moves the events out.
    pub fn turn(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.turn_until(None, events)
    }

    /// As [`Io::turn`], but returns at `deadline` (loop time) even if nothing happened.
    pub fn turn_until(&mut self, deadline: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        events.append(&mut self.kept);
        self.step(deadline, events)
    }

    /// As [`Io::turn_until`], for someone who serves only some of the loop's owners for a while: the events of all others
    /// wait for a turn of theirs. A timer or a receive whose event is lost is never set again.
    ///
    /// What waits is bounded by what the others have in flight; those with a [`Waker`] should not be left out for long.
    pub fn turn_for(
        &mut self,
        is_served: impl Fn(Owner) -> bool,
        deadline: Option<Duration>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        events.extend(self.kept.extract_if(.., |event| is_served(event.token.owner)));
        let turned = self.step(deadline, events);
        self.kept.extend(events.extract_if(.., |event| !is_served(event.token.owner)));
        turned
    }

    fn step(&mut self, deadline: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        events.extend(self.ready.drain(..));
        self.passes = if events.is_empty() { 0 } else { (self.passes + 1) % PASSES_MAX };
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let until = match (timer, deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let timeout = if events.is_empty() && self.idle.is_empty() {
            until.map(|until| until.saturating_sub(self.backend.now()))
        } else {
            Some(Duration::ZERO)
        };
        let mut completed = std::mem::take(&mut self.completed);
        let waited = match timeout {
            _ if self.passes > 0 => Ok(()),
            Some(Duration::ZERO) => self.backend.wait(timeout, &mut completed),
            _ => self.wait(timeout, &mut completed),
        };
        self.now = self.backend.now();
        for (key, result) in completed.drain(..) {
            let event = self.take(key, result);
            let token = event.token;
            if token.owner == Owner::WAKE {
                let index = token.key as usize;
                events.push(Event { token: self.wakes[index].token, result: 0, item: Item::None });
                self.arm_wake(index);
            } else {
                events.push(event);
            }
        }
        self.completed = completed;
        while let Some(Reverse((at, _, token))) = self.timers.peek().copied() {
            if at > self.now {
                break;
            }
            self.timers.pop();
            events.push(Event { token, result: 0, item: Item::None });
        }
        if events.is_empty()
            && let Some(token) = self.idle.pop_front()
        {
            events.push(Event { token, result: 0, item: Item::None });
        }
        waited
    }
}

impl Io {
    /// Starts what is queued, and looks for a while, or sleeps, or both.
    fn wait(&mut self, timeout: Option<Duration>, completed: &mut Vec<(usize, i32)>) -> io::Result<()> {
        if !self.spin.is_due(self.now) {
            return self.backend.wait(timeout, completed);
        }
        let began = self.backend.now();
        let patience = timeout.map_or(SPIN_MAX, |timeout| timeout.min(SPIN_MAX));
        loop {
            for _ in 0..LOOKS {
                self.backend.wait(Some(Duration::ZERO), completed)?;
                if !completed.is_empty() {
                    self.spin.hit(self.backend.now() - began);
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let spun = self.backend.now() - began;
            if spun >= patience {
                self.spin.miss(spun);
                return self.backend.wait(timeout.map(|timeout| timeout.saturating_sub(spun)), completed);
            }
        }
    }

    /// Whether the waits from now on may look before they sleep, which they may at first. A loop whose work does not gain from short
    /// latencies (logins, refusals) saves the processor time.
    pub fn set_spin(&mut self, wanted: bool) {
        self.spin.is_wanted = wanted;
    }

    /// What looking before sleeping has cost and spared this loop so far.
    pub fn spin_report(&self) -> SpinReport {
        self.spin.report
    }

    /// What became of the operation `key`, which is over.
    fn take(&mut self, key: usize, result: i32) -> Event {
        let Operation { token, item, .. } = self.operations.remove(key);
        if cfg!(debug_assertions) {
            item.each_span(Span::end_flight);
        }
        let item = match item {
            // SAFETY: a successful accept hands over a fresh descriptor that nobody else owns.
            Item::Accepting if result >= 0 => Item::Socket(unsafe { OwnedFd::from_raw_fd(result) }),
            Item::Accepting => Item::None,
            Item::Incoming(mut incoming) => {
                incoming.on_received(result);
                Item::Incoming(incoming)
            }
            item => item,
        };
        Event { token, result, item }
    }
}

impl Drop for Io {
    /// Takes back what is in flight, so that its memory and descriptors are free. What the kernel does not give
    /// back in time (a disk that hangs) is leaked: memory must outlive the operation that uses it.
    fn drop(&mut self) {
        let deadline = self.backend.now() + DROP_PATIENCE;
        let mut completed = std::mem::take(&mut self.completed);
        while !self.operations.is_empty() && self.backend.now() < deadline {
            let waited = self.backend.wait(Some(Duration::ZERO), &mut completed);
            self.backend.cancel();
            let waited = waited.and_then(|()| self.backend.wait(Some(DROP_STEP), &mut completed));
            for (key, result) in completed.drain(..) {
                self.take(key, result);
            }
            if waited.is_err() {
                break;
            }
        }
        for operation in self.operations.drain() {
            std::mem::forget(operation);
        }
    }
}

#[cfg(test)]
mod tests;
