//! The completion loop, one [`Io`] per thread: each operation is submitted with a [`Token`] and completes as one
//! [`Event`] of [`Io::turn`].
//!
//! An operation owns the memory and the descriptor that it uses until its event, so dropping a connection or an
//! endpoint at any moment is memory-safe: its late events find no owner and are ignored.
//!
//! The crate contains no protocols and no block devices. Two back ends implement [`Backend`]: `uring.rs`, and
//! `portable.rs` (epoll and threads) for systems that forbid io_uring; `choice.rs` selects one. `host.rs` wraps the
//! other services of the operating system that drivers use, so that a simulated one can replace them. Read
//! docs/internals/io.md first.

mod choice;
mod event;
mod helper;
mod host;
mod path;
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
use helper::{Piece, Results};
use rustix::event::EventfdFlags;
use slab::Slab;
use socket2::SockAddr;
use spin::{Spin, cores};

pub use choice::uring_features;
pub use event::{Event, Item, Owner, Token};
pub use helper::Work;
pub use host::{
    Listener, Tap, Thread, World, addresses, adopt, check_congestion_control, congestion_control, enter,
    entropy, force_send_buffer, listen, path, prefer_bbr, send_by_reference, settle, socket, spawn,
};
pub use path::{Path, SocketBuffer, is_queued};
pub use socket::{Incoming, Outgoing, SPANS_PER_RECEIVE};
pub use spin::SpinReport;

/// Submission queue entries per loop; further operations are submitted over several turns.
pub const SUBMISSIONS_MAX: u32 = 512;

/// Zero-timeout waits between two readings of the clock.
const POLLS_PER_CLOCK: u32 = 8;

/// The `PASSES_MAX`th turn in a row that has ready events also polls the kernel.
const PASSES_MAX: u32 = 4;
/// Sends up to this length are tried at once: they rarely block, and then need no turn for their completion.
const SEND_NOW_BYTES_MAX: usize = 64 << 10;

/// With so many cores the peer of a busy thread has the other one.
const CORES_FEW: usize = 2;
/// How long `Drop` waits for operations in flight, and the length of one wait.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);
const DROP_STEP: Duration = Duration::from_millis(5);

/// Open descriptor shared by the operations that use it; closed when the last of them completes.
pub type Handle = Rc<OwnedFd>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Made durable by a later flush.
    Volatile,
    /// On the medium, with its allocation, before the event (`RWF_DSYNC`).
    Durable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Deallocates the blocks, which then read as zeroes.
    PunchHole,
    /// Zeroes the range and keeps it allocated.
    ZeroRange,
}

impl Allocation {
    fn mode(self) -> i32 {
        libc::FALLOC_FL_KEEP_SIZE
            | match self {
                Self::PunchHole => libc::FALLOC_FL_PUNCH_HOLE,
                Self::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
            }
    }
}

/// One operation for a back end. Its pointers stay valid until its completion is delivered.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub enum Raw {
    /// `region`: index of the registered region that contains `into`.
    Read { fd: RawFd, into: *mut u8, length: u32, offset: u64, region: Option<u16> },
    /// `region` as for `Read`.
    Write {
        fd: RawFd,
        from: *const u8,
        length: u32,
        offset: u64,
        region: Option<u16>,
        durability: Durability,
    },
    /// `fdatasync`.
    Sync { fd: RawFd },
    /// `fallocate`.
    Allocate { fd: RawFd, how: Allocation, offset: u64, length: u64 },
    /// Completes when the descriptor is ready (`events`: `POLLIN` or `POLLOUT`) or has an error.
    Poll { fd: RawFd, events: i16 },
    /// The result is a descriptor with close-on-exec.
    Accept { fd: RawFd },
    /// `address` has `length` bytes.
    Connect { fd: RawFd, address: *const libc::sockaddr, length: u32 },
    /// `is_empty`: the previous receive emptied the socket, so data is unlikely to be there yet.
    Receive { fd: RawFd, message: *mut libc::msghdr, is_empty: bool },
    /// A closed peer is an error, not a signal.
    Send { fd: RawFd, message: *const libc::msghdr },
}

impl Raw {
    fn access(&self) -> Access {
        match self {
            Self::Read { .. } | Self::Receive { .. } => Access::Write,
            _ => Access::Read,
        }
    }
}

/// The interface of a back end. The `i32` of a completion is a byte count, descriptor, or negated errno.
pub trait Backend {
    fn name(&self) -> &'static str;
    /// Whether [`Io`] may poll with zero timeouts before it sleeps.
    fn spins(&self) -> bool {
        false
    }
    /// Time since an instant common to all loops of the process, so that threads can exchange times.
    fn now(&self) -> Duration {
        EPOCH.elapsed()
    }
    /// Registers region `index` of the loop's pool with the kernel, or unregisters it (`None`): operations in a
    /// registered region need no page lookup. Returns whether it succeeded.
    fn register(&mut self, index: u16, region: Option<(*mut u8, usize)>) -> bool {
        let _ = (index, region);
        false
    }
    /// Sends what the socket takes without blocking, as `sendmsg`. `None`: nothing was sent, or unsupported.
    fn send_now(&mut self, fd: RawFd, message: *const libc::msghdr) -> Option<usize> {
        let _ = (fd, message);
        None
    }
    /// Queues one operation, which starts at once or in the next [`Backend::wait`].
    fn push(&mut self, key: usize, raw: Raw) -> io::Result<()>;
    /// Starts the queued operations and appends completions to `completed`. Blocks until there is at least one, or for
    /// `timeout`; a zero timeout does not block.
    fn wait(&mut self, timeout: Option<Duration>, completed: &mut Vec<(usize, i32)>) -> io::Result<()>;
    /// Cancels operations that wait for peers (sockets, wake-ups), all or those at one descriptor; disk operations end
    /// by themselves.
    fn cancel(&mut self, only: Option<RawFd>);
}

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

struct Operation {
    token: Token,
    item: Item,
    /// None: for the processor.
    _handle: Option<Handle>,
}

#[derive(Clone, Debug)]
pub struct Waker {
    eventfd: Arc<OwnedFd>,
}

impl Waker {
    /// Makes the loop deliver the event of its [`Io::waker`]. Never blocks; undelivered wakes may merge.
    pub fn wake(&self) {
        // A full counter (EAGAIN) means that a wake is already pending.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }
}

/// Work that the helper threads do for this loop.
enum Helped {
    /// In a simulated world, or without a descriptor to be woken by.
    Never,
    NotYet,
    /// With the number of pieces in flight.
    By(Arc<Results>, usize),
}

struct WakeState {
    token: Token,
    handle: Handle,
    buffer: Span,
}

/// The completion loop of one thread. It is neither `Send` nor `Sync`.
///
/// The thread submits operations and timers, then calls [`Io::turn`] (or [`Io::turn_until`], [`Io::turn_for`])
/// repeatedly and passes each event to the driver of its owner, which may submit more. Between turns the loop holds the
/// operations in flight with their memory and descriptors, the timers, and the events of owners that a `turn_for`
/// excluded. Each operation yields exactly one event, also on failure, and the event returns the spans and lists of the
/// operation. Dropping the loop waits up to 1 s for operations in flight and leaks the memory of the rest.
pub struct Io {
    backend: Box<dyn Backend>,
    operations: Slab<Operation>,
    /// Sends among them.
    sends: usize,
    completed: Vec<(usize, i32)>,
    /// Events without a kernel operation, for the next turn.
    ready: VecDeque<Event>,
    /// Events of owners that [`Io::turn_for`] excluded, for the next turn that includes them.
    kept: Vec<Event>,
    /// Tokens of [`Io::idle`], one for each turn without other events.
    idle: VecDeque<Token>,
    /// Turns in a row without a system call.
    passes: u32,
    timers: BinaryHeap<Reverse<(Duration, u64, Token)>>,
    timer_serial: u64,
    wakes: Vec<WakeState>,
    helped: Helped,
    owners: Cell<u32>,
    now: Duration,
    spin: Spin,
    pool: Pool,
    /// Whether each region of the pool, by index, is registered with the back end.
    registered: Vec<bool>,
}

impl Io {
    /// Creates a loop for the calling thread with its own pool.
    ///
    /// It uses io_uring where that works, and epoll with threads where the kernel forbids it (containers with a strict
    /// seccomp profile, `kernel.io_uring_disabled`). The environment variable `HIKYAKU_IO`, `uring` or `portable`,
    /// forces one; the error then has the reason why it is unavailable.
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
            sends: 0,
            completed: Vec::with_capacity(SUBMISSIONS_MAX as usize),
            ready: VecDeque::new(),
            kept: Vec::new(),
            idle: VecDeque::new(),
            passes: 0,
            timers: BinaryHeap::new(),
            timer_serial: 0,
            wakes: Vec::new(),
            helped: if host::world().is_none() { Helped::NotYet } else { Helped::Never },
            owners: Cell::new(0),
            now,
            spin,
            pool: Pool::new(limits),
            registered: Vec::new(),
        }
    }

    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Loop time as of the current turn, since the process's first loop: the only clock of drivers and machines.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Loop time at the moment of the call, for measurements; decisions use [`Io::now`].
    pub fn clock(&self) -> Duration {
        self.backend.now()
    }

    pub fn owner(&self) -> Owner {
        let next = self.owners.get();
        self.owners.set(next.checked_add(1).expect("fewer than 2^32 owners in the life of a loop"));
        Owner(next)
    }

    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    fn submit(&mut self, token: Token, handle: &Handle, item: Item, raw: Raw) {
        if cfg!(debug_assertions) {
            item.each_span(|span| span.begin_flight(raw.access()));
        }
        let key = self.operations.insert(Operation { token, item, _handle: Some(Rc::clone(handle)) });
        if let Err(error) = self.backend.push(key, raw) {
            let result = -error.raw_os_error().unwrap_or(libc::EIO);
            let event = self.take(key, result);
            self.ready.push_back(event);
        }
    }

    /// Returns unused pool memory to the system; for a loop that expects to be idle.
    pub fn trim(&mut self) {
        self.pool.release();
        self.register_changes();
    }

    fn registered(&mut self, span: &Span) -> Option<u16> {
        self.register_changes();
        let index = span.region()?;
        self.registered.get(index as usize).copied().unwrap_or_default().then_some(index as u16)
    }

    /// Registers regions that the pool has mapped, and unregisters those that it has unmapped, since the last call.
    fn register_changes(&mut self) {
        while let Some((index, mapping)) = self.pool.changed_region() {
            let Ok(number) = u16::try_from(index) else { continue };
            let place = mapping.map(|mapping| (mapping.base, mapping.bytes));
            let known = self.backend.register(number, place) && place.is_some();
            let index = index as usize;
            if self.registered.len() <= index {
                self.registered.resize(index + 1, false);
            }
            self.registered[index] = known;
        }
    }

    /// Reads file bytes at `offset` into `into`. Event: bytes read, fewer than `into` only at end of file.
    pub fn read(&mut self, token: Token, file: &Handle, offset: u64, into: Span) {
        let (into_ptr, length, region) = (into.as_ptr(), into.len() as u32, self.registered(&into));
        let raw = Raw::Read { fd: file.as_raw_fd(), into: into_ptr, length, offset, region };
        self.submit(token, file, Item::Span(into), raw);
    }

    /// Writes `from` at `offset`. Event: bytes written, possibly fewer than `from`.
    pub fn write(&mut self, token: Token, file: &Handle, offset: u64, from: Span, durability: Durability) {
        let (from_ptr, length) = (from.as_ptr().cast_const(), from.len() as u32);
        let region = self.registered(&from);
        let raw = Raw::Write { fd: file.as_raw_fd(), from: from_ptr, length, offset, region, durability };
        self.submit(token, file, Item::Span(from), raw);
    }

    /// Writes `from` at `offset` synchronously; for files in memory (tmpfs): io_uring would pass such a write to a
    /// kernel worker at the cost of two context switches, and it never waits for a device. Returns bytes written,
    /// possibly fewer than `from`.
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
        // SAFETY: the vector describes the bytes of a live span, which the call only reads.
        let count = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const vector, 1, offset, flags) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Makes all completed writes durable (`fdatasync`).
    pub fn sync(&mut self, token: Token, file: &Handle) {
        self.submit(token, file, Item::None, Raw::Sync { fd: file.as_raw_fd() });
    }

    pub fn allocate(&mut self, token: Token, file: &Handle, how: Allocation, offset: u64, length: u64) {
        self.submit(token, file, Item::None, Raw::Allocate { fd: file.as_raw_fd(), how, offset, length });
    }

    /// Waits until `handle` is readable; the owner then reads it itself without blocking: for descriptors with their
    /// own protocol (`/dev/sg0`, another ring). Event: the `revents` of poll(2).
    pub fn poll(&mut self, token: Token, handle: &Handle) {
        self.submit(token, handle, Item::None, Raw::Poll { fd: handle.as_raw_fd(), events: libc::POLLIN });
    }

    /// Accepts one connection. Event: [`Event::into_handle`].
    pub fn accept(&mut self, token: Token, listener: &Handle) {
        self.submit(token, listener, Item::Accepting, Raw::Accept { fd: listener.as_raw_fd() });
    }

    /// Ends the operations that wait at `handle`, without an effect on the socket itself, which other processes may
    /// share. Each yields its event: ECANCELED, or the result if it was already complete.
    pub fn cancel(&mut self, handle: &Handle) {
        self.backend.cancel(Some(handle.as_raw_fd()));
    }

    /// Connects a stream socket. Event: zero, or the error.
    pub fn connect(&mut self, token: Token, socket: &Handle, address: SocketAddr) {
        let address = Box::new(SockAddr::from(address));
        let (pointer, length) = (address.as_ptr().cast(), address.len());
        let raw = Raw::Connect { fd: socket.as_raw_fd(), address: pointer, length };
        self.submit(token, socket, Item::Address(address), raw);
    }

    /// Receives into the spans of `incoming`, in order. Event: bytes received, zero at end of stream, with `incoming`
    /// in [`Item::Incoming`].
    pub fn receive(&mut self, token: Token, socket: &Handle, mut incoming: Box<Incoming>) {
        let is_empty = incoming.emptied_socket;
        let raw = Raw::Receive { fd: socket.as_raw_fd(), message: incoming.message(), is_empty };
        self.submit(token, socket, Item::Incoming(incoming), raw);
    }

    /// Sends the rest of `outgoing`. Event: bytes taken by the socket, with `outgoing` in [`Item::Outgoing`]; the owner
    /// calls [`Outgoing::advance`] and sends again until nothing is left.
    pub fn send(&mut self, token: Token, socket: &Handle, mut outgoing: Box<Outgoing>) {
        if outgoing.has_files() {
            return self.send_files(token, socket, outgoing);
        }
        let (fd, message) = (socket.as_raw_fd(), outgoing.message());
        if outgoing.len() <= SEND_NOW_BYTES_MAX
            && let Some(count) = self.backend.send_now(fd, message)
        {
            let event = Event { token, result: count as i32, item: Item::Outgoing(outgoing) };
            return self.ready.push_back(event);
        }
        let raw = Raw::Send { fd, message };
        self.sends += 1;
        self.submit(token, socket, Item::Outgoing(outgoing), raw);
    }

    /// Sends what the socket takes at once, of spans of files by reference to their pages. Nothing: the event comes when it
    /// takes more, with zero bytes.
    fn send_files(&mut self, token: Token, socket: &Handle, mut outgoing: Box<Outgoing>) {
        let result = match outgoing.send_now(socket) {
            Ok(count) => count as i32,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let raw = Raw::Poll { fd: socket.as_raw_fd(), events: libc::POLLOUT };
                self.sends += 1;
                return self.submit(token, socket, Item::Full(outgoing), raw);
            }
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        self.ready.push_back(Event { token, result, item: Item::Outgoing(outgoing) });
    }

    /// Delivers an event at `at` (loop time). Timers cannot be cancelled: the owner checks whether it still applies.
    pub fn timer(&mut self, token: Token, at: Duration) {
        self.timer_serial += 1;
        self.timers.push(Reverse((at, self.timer_serial, token)));
    }

    /// Delivers an event in the next turn.
    pub fn soon(&mut self, token: Token) {
        self.ready.push_back(Event { token, result: 0, item: Item::None });
    }

    /// Delivers an event in the first turn without other events, one per turn: for work of low priority. Until then no
    /// turn sleeps.
    pub fn idle(&mut self, token: Token) {
        self.idle.push_back(token);
    }

    /// Whether a helper thread would begin [`Self::compute`] soon, on a core that is idle.
    pub fn has_helper(&mut self) -> bool {
        !matches!(self.helped, Helped::Never) && helper::is_free(|| self.spin.is_busy(self.now))
    }

    /// Whether what this thread passes on, to a kernel worker or a helper, would find no core of its own.
    pub fn is_crowded(&mut self) -> bool {
        matches!(self.helped, Helped::Never) || cores() <= CORES_FEW || self.spin.is_busy(self.now)
    }

    /// Has a helper thread run `work` with the bytes of `from` (none: empty) and of `into`. Event: 0, with both spans.
    /// Until then no other code changes `from`, or accesses `into`. If no helper can be started the work is done by this
    /// call.
    pub fn compute(&mut self, token: Token, from: Option<Span>, into: Span, work: Work) {
        if matches!(self.helped, Helped::NotYet) {
            self.helped = self.results().map_or(Helped::Never, |results| Helped::By(Arc::new(results), 0));
        }
        let read =
            from.as_ref().map_or((std::ptr::dangling(), 0), |from| (from.as_ptr().cast_const(), from.len()));
        let change = (into.as_ptr(), into.len());
        let item = Item::Work { from, into };
        if cfg!(debug_assertions) {
            item.each_access(Span::begin_flight);
        }
        let key = self.operations.insert(Operation { token, item, _handle: None });
        let piece = Piece { key, from: read, into: change, work };
        let refused = match &mut self.helped {
            Helped::By(results, in_flight) => {
                let pushed = helper::push(piece, results);
                *in_flight += usize::from(pushed.is_ok());
                pushed.err()
            }
            Helped::Never | Helped::NotYet => Some(piece),
        };
        if let Some(piece) = refused {
            let result = piece.perform();
            let event = self.take(key, result);
            self.ready.push_back(event);
        }
    }

    /// Where helpers leave their results. The event of this waker has no owner.
    fn results(&mut self) -> io::Result<Results> {
        let waker = self.waker(Token { owner: Owner::WAKE, key: u32::MAX })?;
        Ok(Results::new(waker.eventfd.try_clone()?))
    }

    /// Takes what helpers have done.
    fn collect_helped(&mut self) {
        let Helped::By(results, in_flight) = &mut self.helped else { return };
        if *in_flight == 0 {
            return;
        }
        let done = results.take();
        *in_flight -= done.len();
        for (key, result) in done {
            let event = self.take(key, result);
            self.ready.push_back(event);
        }
    }

    /// Whether a helper will wake this loop; false if one has a result already.
    fn may_sleep(&self) -> bool {
        match &self.helped {
            Helped::By(results, 1..) => results.begins_sleep(),
            _ => true,
        }
    }

    /// Returns a handle with which other threads make this loop deliver events with `token`.
    pub fn waker(&mut self, token: Token) -> io::Result<Waker> {
        let eventfd = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
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

    /// Starts submitted operations, waits until one completes or a timer is due, and appends the events to `events`.
    pub fn turn(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.turn_until(None, events)
    }

    /// As [`Io::turn`], but returns at `deadline` (loop time) even without an event.
    pub fn turn_until(&mut self, deadline: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        events.append(&mut self.kept);
        self.step(deadline, events)
    }

    /// As [`Io::turn_until`], but delivers only events of owners for which `is_served` is true; all others are kept for
    /// a later turn that includes their owner, because a lost timer or receive would never be set again.
    ///
    /// The kept events are bounded by the operations that the other owners have in flight; owners with a [`Waker`]
    /// should not be excluded for long.
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
        self.collect_helped();
        events.extend(self.ready.drain(..));
        self.passes = if events.is_empty() { 0 } else { (self.passes + 1) % PASSES_MAX };
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let until = [timer, deadline].into_iter().flatten().min();
        let timeout = if events.is_empty() && self.idle.is_empty() && self.may_sleep() {
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
                let token = self.wakes[index].token;
                if token.owner != Owner::WAKE {
                    events.push(Event { token, result: 0, item: Item::None });
                }
                self.arm_wake(index);
            } else {
                events.push(event);
            }
        }
        self.completed = completed;
        self.collect_helped();
        events.extend(self.ready.drain(..));
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
    /// Starts queued operations; polls for as long as `spin` says, then sleeps. A send in flight waits for the peer to take
    /// bytes, of which the socket has plenty: a sleep costs it nothing, and polling would take a core from it.
    fn wait(&mut self, timeout: Option<Duration>, completed: &mut Vec<(usize, i32)>) -> io::Result<()> {
        let limit = if self.sends > 0 { None } else { self.spin.limit(self.now) };
        let Some(limit) = limit else { return self.backend.wait(timeout, completed) };
        let began = self.backend.now();
        let limit = timeout.map_or(limit, |timeout| timeout.min(limit));
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                self.backend.wait(Some(Duration::ZERO), completed)?;
                if !completed.is_empty() {
                    self.spin.hit(self.backend.now() - began);
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let spun = self.backend.now() - began;
            if spun >= limit {
                self.spin.miss(spun);
                return self.backend.wait(timeout.map(|timeout| timeout.saturating_sub(spun)), completed);
            }
        }
    }

    /// Whether later waits may poll before they sleep; initially true. A loop that does not gain from short latencies
    /// (logins, refusals) saves the processor time.
    pub fn set_spin(&mut self, is_enabled: bool) {
        self.spin.is_enabled = is_enabled;
    }

    pub fn spin_report(&self) -> SpinReport {
        self.spin.report
    }

    fn take(&mut self, key: usize, result: i32) -> Event {
        let Operation { token, item, .. } = self.operations.remove(key);
        // How it is ready: the next send says what it is.
        let result = if matches!(item, Item::Full(_)) { result.min(0) } else { result };
        if cfg!(debug_assertions) {
            item.each_span(Span::end_flight);
        }
        let item = match item {
            // SAFETY: a successful accept returns a new descriptor without another owner.
            Item::Accepting if result >= 0 => Item::Socket(unsafe { OwnedFd::from_raw_fd(result) }),
            Item::Accepting => Item::None,
            Item::Outgoing(outgoing) | Item::Full(outgoing) => {
                self.sends -= 1;
                Item::Outgoing(outgoing)
            }
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
    /// Waits for operations in flight, so that their memory and descriptors are freed. Operations that the kernel does
    /// not complete within 1 s (a disk that hangs) are leaked: memory must outlive the operation that uses it.
    fn drop(&mut self) {
        while let Helped::By(_, 1..) = self.helped {
            self.collect_helped();
            std::thread::yield_now();
        }
        let deadline = self.backend.now() + DROP_TIMEOUT;
        let mut completed = std::mem::take(&mut self.completed);
        while !self.operations.is_empty() && self.backend.now() < deadline {
            let waited = self.backend.wait(Some(Duration::ZERO), &mut completed);
            self.backend.cancel(None);
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
