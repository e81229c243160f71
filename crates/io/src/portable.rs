//! The portable back end, for places where io_uring is forbidden: sockets on epoll, files on a few threads.
//!
//! An operation on a socket is tried at once and, where it would block, again when epoll reports the
//! descriptor ready. Regular files and block devices are always "ready" and still block, so their operations
//! run on threads of this loop, which wake it through an eventfd.
//!
//! Registrations are `EPOLLONESHOT` and armed only while an operation waits, which holds the descriptor open.
//! What stays behind in the epoll set after the last operation reports nothing, not even an error, until it
//! is armed again. So nobody has to tell this module that a descriptor is closed: the kernel drops the
//! registration with the file, and if a duplicate keeps the file alive, the leftover stays silent. A
//! registration belongs to (number, file), hence a reused number is either still registered for the same
//! file or unknown (`ENOENT`) and added.
//!
//! Read epoll(7), questions 0, 1 and 6, before touching [`Portable::arm`].

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::{Backend, Durability, Raw};

/// File operations of one loop that run at once. Threads start when there is work for them.
const THREADS_MAX: usize = 8;
/// File operations of one loop that may wait for a thread; far more than a pool has areas for. One more
/// ends with `EAGAIN`.
const QUEUED_MAX: usize = 1 << 16;
/// Descriptors that one look at the epoll set reports; the others are reported by the next.
const EVENTS_MAX: usize = 256;
/// From here on a timeout may be late by the millisecond that `epoll_wait` counts in; shorter ones take a
/// system call more and are exact.
const COARSE: Duration = Duration::from_millis(20);
/// Marks the eventfd of the threads among the events; no descriptor has this number.
const WAKE: u64 = u64::MAX;

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    In,
    Out,
}

/// (descriptor, direction, age) of an operation that waits.
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
    /// What waits for readiness. A descriptor that is in here is armed for just the directions that it is in
    /// here with; one that is not is not armed.
    waiting: BTreeMap<Waiting, (usize, Raw)>,
    age: u64,
    /// Ended without a thread, not yet collected.
    ended: Vec<(usize, i32)>,
    threads: Threads,
}

impl Portable {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: plain system call; the result is checked before it is owned.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let threads = Threads::new()?;
        // Edge-triggered: each write to the eventfd is one event, and its counter need not be read.
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

    /// Makes epoll report `fd` once, when it is ready for what waits on it.
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

    /// Tries again what waits on `fd`, one operation for each direction that is ready: a second one might
    /// block where the first took what there was.
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

    /// Waits for readiness. Answers how many of `events` are filled.
    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let milliseconds = match timeout {
            None => -1,
            Some(Duration::ZERO) => 0,
            Some(timeout) if timeout < COARSE => {
                let mut epoll = libc::pollfd { fd: self.epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                let timeout = libc::timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
                // SAFETY: one pollfd and a timespec, both live. An error shows in the call below, too.
                unsafe { libc::ppoll(&raw mut epoll, 1, &raw const timeout, null()) };
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
            Place::Thread => return self.threads.push(Job { key, raw }),
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
            // EPERM: a device that cannot be polled.
            if error.raw_os_error() == Some(libc::EPERM) && !never_blocks(raw) {
                return self.threads.push(Job { key, raw });
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

    /// What is still armed afterwards finds nobody waiting.
    fn cancel(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let jobs = std::mem::take(&mut self.threads.shared.queue().jobs);
        let keys = waiting.into_values().map(|(key, _)| key).chain(jobs.into_iter().map(|job| job.key));
        self.ended.extend(keys.map(|key| (key, -libc::ECANCELED)));
    }
}

enum Place {
    Poll(RawFd, Direction),
    Thread,
}

/// Where an operation is carried out. By the kind of file, not by what epoll takes: regular files of FUSE
/// and procfs can be polled, but have offsets.
fn place(raw: Raw) -> io::Result<Place> {
    Ok(match raw {
        Raw::Poll { fd } | Raw::Accept { fd } | Raw::Receive { fd, .. } => Place::Poll(fd, Direction::In),
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

/// Whether an attempt needs no readiness: reads and writes of pipes and eventfds have no flag against blocking.
fn never_blocks(raw: Raw) -> bool {
    !matches!(raw, Raw::Read { .. } | Raw::Write { .. })
}

/// Tries an operation without blocking. `None`: not yet.
fn attempt(raw: Raw) -> Option<i32> {
    // SAFETY: the pointers in `raw` stay valid until the completion is delivered (contract of `Raw`).
    let result = unsafe {
        match raw {
            Raw::Receive { fd, message, .. } => retry(|| libc::recvmsg(fd, message, libc::MSG_DONTWAIT)),
            Raw::Send { fd, message } => {
                retry(|| libc::sendmsg(fd, message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))
            }
            Raw::Poll { fd } => poll(fd),
            Raw::Accept { fd } => accept(fd),
            Raw::Connect { fd, address, length } => connect(fd, address, length),
            // Only when ready. The loop is the only reader of its streams, so nobody takes what is there.
            Raw::Read { fd, into, length, .. } => retry(|| libc::read(fd, into.cast(), length as usize)),
            // As much as a pipe that is ready takes without blocking.
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

/// What a descriptor has to say, if it has.
fn poll(fd: RawFd) -> i32 {
    let mut about = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd; a zero timeout does not wait.
    match unsafe { libc::poll(&raw mut about, 1, 0) } {
        0 => -libc::EAGAIN,
        -1 => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        _ => about.revents.into(),
    }
}

/// Accepts a connection if there is one. The listener stays nonblocking: `accept4` has no flag for it.
fn accept(fd: RawFd) -> i32 {
    // SAFETY: plain system calls without memory of ours.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags >= 0 && flags & libc::O_NONBLOCK == 0 {
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        }
        retry(|| libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) as isize)
    }
}

/// Begins a connect, or asks how it went: the kernel answers the second call with the outcome of the first.
///
/// # Safety
/// `address` points to `length` bytes.
unsafe fn connect(fd: RawFd, address: *const libc::sockaddr, length: u32) -> i32 {
    // SAFETY: the caller vouches for the address.
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

/// A file operation on its way to a thread.
struct Job {
    key: usize,
    raw: Raw,
}

// SAFETY: the pointers in `raw` are to memory that the operation in `Io` keeps, with the descriptor, until its
// completion is delivered (contract of `Raw`), whichever thread looks at it: `Io` frees no operation before
// that, and leaks those that are still under way when it is dropped.
unsafe impl Send for Job {}

struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    is_over: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    results: Mutex<Vec<(usize, i32)>>,
    wake: OwnedFd,
}

/// Threads for operations that block.
struct Threads {
    shared: Arc<Shared>,
    started: usize,
}

impl Threads {
    fn new() -> io::Result<Self> {
        // SAFETY: plain system call; the result is checked before it is owned.
        let wake = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let queue = Mutex::new(Queue { jobs: VecDeque::new(), idle: 0, is_over: false });
        let shared = Shared { queue, work: Condvar::new(), results: Mutex::default(), wake };
        Ok(Self { shared: Arc::new(shared), started: 0 })
    }

    fn push(&mut self, job: Job) -> io::Result<()> {
        let mut queue = self.shared.queue();
        if queue.jobs.len() == QUEUED_MAX {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        // Each job in the queue is one idle thread's already.
        if queue.jobs.len() >= queue.idle && self.started < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new().name("file-io".to_owned()).spawn(move || shared.run()) {
                Ok(_) => self.started += 1,
                Err(error) if self.started == 0 => return Err(error),
                Err(_) => {} // Those that run will get to it.
            }
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.work.notify_one();
        Ok(())
    }
}

impl Drop for Threads {
    /// Lets the threads go: `Io` has waited for what they do, and keeps its memory if that was not enough (a
    /// disk that hangs).
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.is_over = true;
        queue.jobs.clear();
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
            if let Some(Job { key, raw }) = queue.jobs.pop_front() {
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

    /// Hands a result to the loop, and wakes it unless an earlier result that it has not taken yet did.
    fn deliver(&self, key: usize, result: i32) {
        let mut results = self.results();
        let is_first = results.is_empty();
        results.push((key, result));
        drop(results);
        if is_first {
            let one = 1u64;
            // SAFETY: eight bytes from a live local. The counter, which nobody reads, will not overflow.
            unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}

/// Carries out a file operation; blocks.
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
                    // Sandboxes that know no flags.
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
            Raw::Poll { .. }
            | Raw::Accept { .. }
            | Raw::Connect { .. }
            | Raw::Receive { .. }
            | Raw::Send { .. } => {
                unreachable!("never given to a thread")
            }
        }
    }
}

fn sync(fd: RawFd) -> i32 {
    // SAFETY: plain system call without memory of ours.
    retry(|| unsafe { libc::fdatasync(fd) as isize })
}

/// A system call in io_uring's terms: its result, or a negated errno. Goes on after signals.
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

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
