//! Helper threads: work for the processor that a loop passes on, because its own thread has more to do and a core is idle.
//! All loops of the process share them. They start when they are needed, and sleep when there is nothing to do.
//!
//! A loop never waits for one: it submits the work and receives an event, as of any operation.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard};

use crate::spin::cores;

/// Most helper threads of a process; one core is left to the thread that passes work on.
const HELPERS_MAX: usize = 4;
/// The environment variable with the number of helper threads, which then get work whatever the load of the machine.
const VARIABLE: &str = "HIKYAKU_HELPERS";
/// Pieces of work for each helper: one under way, and one that follows without a wake-up.
const PIECES_PER_HELPER: usize = 2;

/// What a helper does with the bytes of an operation: reads the first, which may be empty, and changes the second.
pub type Work = Box<dyn FnOnce(&[u8], &mut [u8]) + Send>;

/// One piece of work. Its memory belongs to spans that `Io` keeps until its result.
pub(crate) struct Piece {
    pub(crate) key: usize,
    pub(crate) from: (*const u8, usize),
    pub(crate) into: (*mut u8, usize),
    pub(crate) work: Work,
}

// SAFETY: the pointers are to memory of spans that `Io` keeps until the piece is among its results, on whichever thread
// the work runs; `Io` waits for the pieces when it is dropped. Until then no other code accesses `into` or changes `from`
// (contract of `Io::compute`).
unsafe impl Send for Piece {}

impl Piece {
    /// Does the work; returns 0, or a negated errno if it panicked.
    pub(crate) fn perform(self) -> i32 {
        let Self { from, into, work, .. } = self;
        let done = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: live memory, `into` without another access meanwhile (as for `Send`).
            let (from, into) = unsafe {
                (std::slice::from_raw_parts(from.0, from.1), std::slice::from_raw_parts_mut(into.0, into.1))
            };
            work(from, into);
        }));
        if done.is_ok() { 0 } else { -libc::EIO }
    }
}

/// What the helpers have done for one loop.
pub(crate) struct Results {
    done: Mutex<Vec<(usize, i32)>>,
    /// Length of `done`, for a look without the lock.
    count: AtomicUsize,
    /// The loop is about to sleep, or sleeps.
    sleeps: AtomicBool,
    wake: OwnedFd,
}

impl Results {
    pub(crate) fn new(wake: OwnedFd) -> Self {
        let (done, count) = (Mutex::default(), AtomicUsize::new(0));
        Self { done, count, sleeps: AtomicBool::new(false), wake }
    }

    /// Whether the loop may sleep. If so, the next result wakes it.
    pub(crate) fn begins_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Takes the keys and results of what is done.
    pub(crate) fn take(&self) -> Vec<(usize, i32)> {
        self.sleeps.store(false, Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut done = self.done();
        self.count.store(0, Ordering::SeqCst);
        std::mem::take(&mut done)
    }

    fn done(&self) -> MutexGuard<'_, Vec<(usize, i32)>> {
        self.done.lock().expect("no panic while locked")
    }

    fn deliver(&self, key: usize, result: i32) {
        let mut done = self.done();
        done.push((key, result));
        self.count.store(done.len(), Ordering::SeqCst);
        drop(done);
        if self.sleeps.swap(false, Ordering::SeqCst) {
            // The loop reads the counter; a full one means that a wake is already pending.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

struct Queue {
    pieces: VecDeque<(Piece, Arc<Results>)>,
    started: usize,
    idle: usize,
}

struct Crew {
    /// Threads at most.
    size: usize,
    /// The size was chosen: the load of the machine is not looked at.
    is_forced: bool,
    queue: Mutex<Queue>,
    work: Condvar,
    /// Pieces that are queued or under way.
    load: AtomicUsize,
}

static CREW: LazyLock<Crew> = LazyLock::new(|| {
    let forced = std::env::var(VARIABLE).ok().and_then(|value| value.parse::<usize>().ok());
    Crew {
        size: forced.unwrap_or(cores() - 1).min(HELPERS_MAX),
        is_forced: forced.is_some(),
        queue: Mutex::new(Queue { pieces: VecDeque::new(), started: 0, idle: 0 }),
        work: Condvar::new(),
        load: AtomicUsize::new(0),
    }
});

/// Whether a helper would begin another piece soon. `is_busy`: more threads are runnable than there are cores.
pub(crate) fn is_free(is_busy: impl FnOnce() -> bool) -> bool {
    let crew = &*CREW;
    crew.load.load(Ordering::Relaxed) < PIECES_PER_HELPER * crew.size && (crew.is_forced || !is_busy())
}

/// Passes a piece on. If no thread could be started, returns it.
pub(crate) fn push(piece: Piece, results: &Arc<Results>) -> Result<(), Piece> {
    let mut queue = CREW.queue();
    if queue.pieces.len() >= queue.idle && queue.started < CREW.size {
        match std::thread::Builder::new().name("helper".to_owned()).spawn(|| CREW.run()) {
            Ok(_) => queue.started += 1,
            Err(error) => tracing::debug!(%error, "no further helper thread"),
        }
    }
    if queue.started == 0 {
        return Err(piece);
    }
    CREW.load.fetch_add(1, Ordering::Relaxed);
    queue.pieces.push_back((piece, Arc::clone(results)));
    let wakes = queue.idle > 0;
    drop(queue);
    if wakes {
        CREW.work.notify_one();
    }
    Ok(())
}

impl Crew {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panic while locked")
    }

    fn run(&self) {
        let mut queue = self.queue();
        loop {
            if let Some((piece, results)) = queue.pieces.pop_front() {
                drop(queue);
                let key = piece.key;
                let result = piece.perform();
                self.load.fetch_sub(1, Ordering::Relaxed);
                results.deliver(key, result);
                queue = self.queue();
            } else {
                queue.idle += 1;
                queue = self.work.wait(queue).expect("no panic while locked");
                queue.idle -= 1;
            }
        }
    }
}
