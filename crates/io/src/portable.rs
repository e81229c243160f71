//! The portable back end, for systems that forbid io_uring: sockets on epoll, files on up to eight threads.
//!
//! A socket operation is attempted at once; if it would block, it is attempted again when epoll reports the descriptor
//! ready. Regular files and block devices are always "ready" and still block, so their operations run on threads of
//! this loop, which wake it through an eventfd.
//!
//! Registrations are `EPOLLONESHOT` and armed only while an operation waits, which holds the descriptor open. A
//! registration that remains in the epoll set after the last operation reports no event, not even an error, until it is
//! armed again. Therefore this module needs no notice of closed descriptors: the kernel removes the registration with
//! the file, and if a duplicate keeps the file open, the registration stays silent. A registration belongs to (number,
//! file), hence a reused number is either still registered for the same file or unknown (`ENOENT`) and added.
//!
//! Read epoll(7), questions 0, 1 and 6, before changing [`Portable::arm`].

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};

use crate::{Backend, Durability, Raw};

/// Most threads of one loop, each with one file operation. A thread starts when the others are busy.
const THREADS_MAX: usize = 8;
/// File operations of one loop that may wait for a thread; far more than a pool has areas for. A further one fails with
/// `EAGAIN`.
const QUEUED_MAX: usize = 1 << 16;
/// Descriptors that one `epoll_wait` reports; the next call reports the rest.
const EVENTS_MAX: usize = 256;
/// Timeouts from this length on may end late by the millisecond resolution of `epoll_wait`; shorter ones are exact at
/// the cost of one more system call.
const COARSE: Duration = Duration::from_millis(20);
/// `u64` of the threads' eventfd among the events; no descriptor has this number.
const WAKE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    In,
    Out,
}

/// (descriptor, direction, age) of a waiting operation.
type Waiting = (RawFd, Direction, u64);

impl Direction {
    const BOTH: [Self; 2] = [Self::In, Self::Out];

    fn events(self) -> u32 {
        (match self {
            Self::In => libc::EPOLLIN,
            Self::Out => libc::EPOLLOUT,
        }) as u32
    }
}

pub(crate) struct Portable {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// Operations that wait for readiness. A descriptor is armed for exactly the directions of its entries here.
    waiting: BTreeMap<Waiting, (usize, Raw)>,
    age: u64,
    /// Completions of operations without a thread, not yet collected.
    ended: Vec<(usize, i32)>,
    threads: Threads,
}

impl Portable {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let threads = Threads::new()?;
        // Edge-triggered: each write to the eventfd is one event, so its counter is never read.
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        control(&epoll, libc::EPOLL_CTL_ADD, threads.shared.wake.as_raw_fd(), events, WAKE)?;
        let none = libc::epoll_event { events: 0, u64: 0 };
        Ok(Self {
            epoll,
            events: vec![none; EVENTS_MAX],
            waiting: BTreeMap::new(),
            age: 0,
            ended: Vec::new(),
            threads,
        })
    }

    /// The oldest operation that waits on `fd` in this direction.
    fn first(&self, fd: RawFd, direction: Direction) -> Option<(Waiting, (usize, Raw))> {
        let range = (fd, direction, 0)..=(fd, direction, u64::MAX);
        self.waiting.range(range).next().map(|(at, operation)| (*at, *operation))
    }

    /// Makes epoll report `fd` once, when it is ready for an operation that waits on it.
    fn arm(&self, fd: RawFd) -> io::Result<()> {
        let mut events = libc::EPOLLONESHOT as u32;
        for direction in Direction::BOTH {
            if self.first(fd, direction).is_some() {
                events |= direction.events();
            }
        }
        match control(&self.epoll, libc::EPOLL_CTL_MOD, fd, events, fd as u64) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                control(&self.epoll, libc::EPOLL_CTL_ADD, fd, events, fd as u64)
            }
            other => other,
        }
    }

    /// Attempts the operations that wait on `fd` again, one for each ready direction: after the first has taken the
    /// data, a second one might block.
    fn resume(&mut self, fd: RawFd, events: u32) {
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        for direction in Direction::BOTH {
            if events & (direction.events() | always) == 0 {
                continue;
            }
            if let Some((at, (key, raw))) = self.first(fd, direction)
                && let Some(result) = attempt(raw)
            {
                self.waiting.remove(&at);
                self.ended.push((key, result));
            }
        }
        let rest = (fd, Direction::In, 0)..=(fd, Direction::Out, u64::MAX);
        if self.waiting.range(rest.clone()).next().is_none() {
            return;
        }
        if let Err(error) = self.arm(fd) {
            let result = -error.raw_os_error().unwrap_or(libc::EIO);
            self.ended.extend(self.waiting.extract_if(rest, |_, _| true).map(|(_, (key, _))| (key, result)));
        }
    }

    /// Waits for readiness. Returns how many of `events` are filled.
    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let milliseconds = match timeout {
            None => -1,
            Some(Duration::ZERO) => 0,
            Some(timeout) if timeout < COARSE => {
                let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
                let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
                // An error recurs in the `epoll_wait` below.
                let _ = rustix::event::poll(&mut epoll, Some(&timeout));
                0
            }
            Some(timeout) => i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
        };
        // SAFETY: `events` has room for EVENTS_MAX.
        let count = unsafe {
            let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
            libc::epoll_wait(epoll, events, EVENTS_MAX as i32, milliseconds)
        };
        match usize::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EINTR) => Ok(0),
                error => Err(error),
            },
        }
    }

    fn collect(&mut self, completed: &mut Vec<(usize, i32)>) {
        completed.append(&mut self.ended);
        completed.append(&mut self.threads.shared.results());
    }
}

impl Backend for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn spins(&self) -> bool {
        true
    }

    fn push(&mut self, key: usize, raw: Raw) -> io::Result<()> {
        let (fd, direction) = match place(raw)? {
            Place::Thread => return self.threads.push(FileOperation { key, raw }),
            Place::Poll(fd, direction) => (fd, direction),
        };
        let is_behind_another = self.first(fd, direction).is_some();
        if !is_behind_another
            && never_blocks(raw)
            && let Some(result) = attempt(raw)
        {
            self.ended.push((key, result));
            return Ok(());
        }
        let at = (fd, direction, self.age);
        self.age += 1;
        self.waiting.insert(at, (key, raw));
        if is_behind_another {
            return Ok(());
        }
        self.arm(fd).or_else(|error| {
            self.waiting.remove(&at);
            // EPERM: a file that epoll does not support.
            if error.raw_os_error() == Some(libc::EPERM) && !never_blocks(raw) {
                return self.threads.push(FileOperation { key, raw });
            }
            Err(error)
        })
    }

    fn wait(&mut self, timeout: Option<Duration>, completed: &mut Vec<(usize, i32)>) -> io::Result<()> {
        self.collect(completed);
        let timeout = if completed.is_empty() { timeout } else { Some(Duration::ZERO) };
        for index in 0..self.sleep(timeout)? {
            let libc::epoll_event { events, u64: about } = self.events[index];
            if about != WAKE {
                self.resume(about as RawFd, events);
            }
        }
        self.collect(completed);
        Ok(())
    }

    /// Registrations that are still armed report events for which no operation waits.
    fn cancel(&mut self, only: Option<RawFd>) {
        if let Some(fd) = only {
            let ended = self.waiting.extract_if(.., |at, _| at.0 == fd).map(|(_, (key, _))| key);
            return self.ended.extend(ended.map(|key| (key, -libc::ECANCELED)));
        }
        let waiting = std::mem::take(&mut self.waiting);
        let queued = std::mem::take(&mut self.threads.shared.queue().operations);
        let keys =
            waiting.into_values().map(|(key, _)| key).chain(queued.into_iter().map(|queued| queued.key));
        self.ended.extend(keys.map(|key| (key, -libc::ECANCELED)));
    }
}

enum Place {
    Poll(RawFd, Direction),
    Thread,
}

/// Where an operation runs, by the kind of file: regular files of FUSE and procfs can be polled, but have offsets.
fn place(raw: Raw) -> io::Result<Place> {
    Ok(match raw {
        Raw::Poll { fd, events: libc::POLLOUT } => Place::Poll(fd, Direction::Out),
        Raw::Poll { fd, .. } | Raw::Accept { fd } | Raw::Receive { fd, .. } => Place::Poll(fd, Direction::In),
        Raw::Connect { fd, .. } | Raw::Send { fd, .. } => Place::Poll(fd, Direction::Out),
        Raw::Read { fd, .. } if is_stream(fd)? => Place::Poll(fd, Direction::In),
        Raw::Write { fd, .. } if is_stream(fd)? => Place::Poll(fd, Direction::Out),
        Raw::Read { .. } | Raw::Write { .. } | Raw::Sync { .. } | Raw::Allocate { .. } => Place::Thread,
    })
}

/// Whether `fd` is anything but a regular file, a directory or a block device.
fn is_stream(fd: RawFd) -> io::Result<bool> {
    // SAFETY: all zeroes is a valid `stat`, which the call fills.
    let (result, stat) = unsafe {
        let mut stat: libc::stat = zeroed();
        (libc::fstat(fd, &raw mut stat), stat)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(!matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK))
}

/// Whether an attempt never blocks without readiness; pipes and eventfds have no flag against blocking.
fn never_blocks(raw: Raw) -> bool {
    !matches!(raw, Raw::Read { .. } | Raw::Write { .. })
}

/// Attempts an operation without blocking. `None`: it would block.
fn attempt(raw: Raw) -> Option<i32> {
    // SAFETY: the pointers in `raw` stay valid until the completion is delivered (contract of `Raw`).
    let result = unsafe {
        match raw {
            Raw::Receive { fd, message, .. } => retry(|| libc::recvmsg(fd, message, libc::MSG_DONTWAIT)),
            Raw::Send { fd, message } => {
                retry(|| libc::sendmsg(fd, message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))
            }
            Raw::Poll { fd, events } => poll(fd, events),
            Raw::Accept { fd } => accept(fd),
            Raw::Connect { fd, address, length } => connect(fd, address, length),
            // Only when ready. The loop is the only reader of its streams, so the data is still there.
            Raw::Read { fd, into, length, .. } => retry(|| libc::read(fd, into.cast(), length as usize)),
            // At most PIPE_BUF, which a ready pipe takes without blocking.
            Raw::Write { fd, from, length, .. } => {
                retry(|| libc::write(fd, from.cast(), (length as usize).min(libc::PIPE_BUF)))
            }
            Raw::Sync { .. } | Raw::Allocate { .. } => unreachable!("carried out by threads"),
        }
    };
    let is_connect = matches!(raw, Raw::Connect { .. });
    match -result {
        libc::EINPROGRESS | libc::EALREADY if is_connect => None,
        libc::EAGAIN if !is_connect => None,
        _ => Some(result),
    }
}

/// The pending events of a descriptor, or `EAGAIN`.
fn poll(fd: RawFd, events: i16) -> i32 {
    let mut about = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one live pollfd; a zero timeout does not wait.
    match unsafe { libc::poll(&raw mut about, 1, 0) } {
        0 => -libc::EAGAIN,
        -1 => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        _ => about.revents.into(),
    }
}

/// Accepts a pending connection. The listener stays nonblocking: `accept4` has no flag for a single call.
fn accept(fd: RawFd) -> i32 {
    // SAFETY: plain system calls that access no memory of this process.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags >= 0 && flags & libc::O_NONBLOCK == 0 {
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        }
        retry(|| libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) as isize)
    }
}

/// Starts a connect, or returns its outcome: a second call on the same socket yields the result of the first.
unsafe fn connect(fd: RawFd, address: *const libc::sockaddr, length: u32) -> i32 {
    // SAFETY: the caller guarantees the address.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 {
            return -last_errno();
        }
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        let result = retry(|| libc::connect(fd, address, length) as isize);
        libc::fcntl(fd, libc::F_SETFL, flags);
        result
    }
}

struct FileOperation {
    key: usize,
    raw: Raw,
}

// SAFETY: the pointers in `raw` are to memory that the operation in `Io` keeps, with the descriptor, until its
// completion is delivered (contract of `Raw`), on whichever thread it runs: `Io` frees no operation before that, and
// leaks those that are still in flight when it is dropped.
unsafe impl Send for FileOperation {}

struct Queue {
    operations: VecDeque<FileOperation>,
    /// Number of threads that wait for an operation.
    idle: usize,
    is_over: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    results: Mutex<Vec<(usize, i32)>>,
    wake: OwnedFd,
}

struct Threads {
    shared: Arc<Shared>,
    started: usize,
}

impl Threads {
    fn new() -> io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let queue = Mutex::new(Queue { operations: VecDeque::new(), idle: 0, is_over: false });
        let shared = Shared { queue, work: Condvar::new(), results: Mutex::default(), wake };
        Ok(Self { shared: Arc::new(shared), started: 0 })
    }

    fn push(&mut self, operation: FileOperation) -> io::Result<()> {
        let mut queue = self.shared.queue();
        if queue.operations.len() == QUEUED_MAX {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        // Each queued operation already has one idle thread.
        if queue.operations.len() >= queue.idle && self.started < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new().name("file-io".to_owned()).spawn(move || shared.run()) {
                Ok(_) => self.started += 1,
                Err(error) if self.started == 0 => return Err(error),
                Err(_) => {} // The running threads will take the operation.
            }
        }
        queue.operations.push_back(operation);
        drop(queue);
        self.shared.work.notify_one();
        Ok(())
    }
}

impl Drop for Threads {
    /// Ends the threads. `Io` has waited for their operations, and keeps the memory of those that did not complete (a
    /// disk that hangs).
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.is_over = true;
        queue.operations.clear();
        drop(queue);
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panic while locked")
    }

    fn results(&self) -> MutexGuard<'_, Vec<(usize, i32)>> {
        self.results.lock().expect("no panic while locked")
    }

    fn run(&self) {
        let mut queue = self.queue();
        while !queue.is_over {
            if let Some(FileOperation { key, raw }) = queue.operations.pop_front() {
                drop(queue);
                self.deliver(key, perform(raw));
                queue = self.queue();
            } else {
                queue.idle += 1;
                queue = self.work.wait(queue).expect("no panic while locked");
                queue.idle -= 1;
            }
        }
    }

    /// Passes a result to the loop, and wakes it unless an earlier result is still uncollected.
    fn deliver(&self, key: usize, result: i32) {
        let mut results = self.results();
        let is_first = results.is_empty();
        results.push((key, result));
        drop(results);
        if is_first {
            // The counter, which is never read, does not overflow.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// Executes a file operation; blocks.
fn perform(raw: Raw) -> i32 {
    // SAFETY: the pointers in `raw` stay valid until the completion is delivered (contract of `Raw`).
    unsafe {
        match raw {
            Raw::Read { fd, into, length, offset, .. } => {
                retry(|| libc::pread(fd, into.cast(), length as usize, offset as i64))
            }
            Raw::Write { fd, from, length, offset, durability, .. } => {
                let write = || libc::pwrite(fd, from.cast(), length as usize, offset as i64);
                if durability == Durability::Volatile {
                    return retry(write);
                }
                let vector = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length as usize };
                match retry(|| libc::pwritev2(fd, &raw const vector, 1, offset as i64, libc::RWF_DSYNC)) {
                    // Sandboxes without support for the flags of pwritev2.
                    refused if refused == -libc::EOPNOTSUPP || refused == -libc::ENOSYS => {
                        let written = retry(write);
                        let synced = if written > 0 { sync(fd) } else { 0 };
                        if synced < 0 { synced } else { written }
                    }
                    result => result,
                }
            }
            Raw::Sync { fd } => sync(fd),
            Raw::Allocate { fd, how, offset, length } => {
                retry(|| libc::fallocate(fd, how.mode(), offset as i64, length as i64) as isize)
            }
            _ => unreachable!("never given to a thread"),
        }
    }
}

fn sync(fd: RawFd) -> i32 {
    // SAFETY: plain system call that accesses no memory of this process.
    retry(|| unsafe { libc::fdatasync(fd) as isize })
}

/// Executes a system call with a result as in io_uring: its return value, or a negated errno. Repeats it after signals.
fn retry(mut call: impl FnMut() -> isize) -> i32 {
    loop {
        let result = call();
        if result >= 0 {
            return i32::try_from(result).expect("the kernel moves less than 2 GiB at once");
        }
        match last_errno() {
            libc::EINTR => {}
            errno => return -errno,
        }
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn control(epoll: &OwnedFd, what: i32, fd: RawFd, events: u32, about: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: about };
    // SAFETY: the event is a live local that the kernel copies.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), what, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
