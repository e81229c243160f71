//! A world in which one thread at a time has the turn.
//!
//! Each thread of the code under test is a real thread, so that its blocking loops run unchanged. A thread that waits
//! in `Backend::wait` advances simulated time until some thread can continue, passes the turn to that thread, and
//! sleeps until it gets the turn back. So nothing is concurrent, the queue of `State` orders everything, and the same
//! seed is the same run.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::backend::SimBackend;
use crate::counters::Counters;
use crate::random::Random;
use crate::state::{Due, Machine, MachineId, State, Thread, ThreadId, Waits};

/// The run is over, because of a failure elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over;

thread_local! {
    static THREAD: Cell<ThreadId> = const { Cell::new(0) };
    static SHARED: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

pub(crate) fn this_thread() -> ThreadId {
    THREAD.get()
}

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    seed: u64,
    forks: AtomicU64,
    /// Message of the first panic of the code under test.
    panic: Mutex<Option<String>>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of the code under test is a finding; the state is consistent whenever the lock is free.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Passes the turn on and returns when the thread gets it back. The caller has set what it waits for.
    pub(crate) fn hand_over<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let me = this_thread();
        let next = match state.threads[me].spawner.take() {
            Some(spawner) => spawner,
            None => state.pick(),
        };
        state = self.give(state, next);
        state.threads[me].waits = Waits::No;
        state.threads[me].wait += 1;
        state
    }

    fn give<'a>(&'a self, mut state: MutexGuard<'a, State>, next: ThreadId) -> MutexGuard<'a, State> {
        let me = this_thread();
        if next == me {
            return state;
        }
        state.current = next;
        state.threads[next].turn.notify_one();
        self.await_turn(state)
    }

    fn await_turn<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let me = this_thread();
        let turn = Arc::clone(&state.threads[me].turn);
        while state.current != me {
            state = turn.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state
    }
}

/// A machine of a world, in one life of its process.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) machine: MachineId,
    pub(crate) life: u32,
}

impl Context {
    /// Creates a world; the context is the scenario's own machine, which has no faults.
    pub fn begin(seed: u64, tracing: bool) -> io::Result<Self> {
        let mut state = State::new(seed, tracing)?;
        state.machines.push(Machine { life: 0, on: true, idle: false });
        state.threads.push(thread("scenario", 0, None));
        THREAD.set(0);
        let shared = Shared {
            state: Mutex::new(state),
            seed,
            forks: AtomicU64::new(0),
            panic: Mutex::default(),
            threads: Mutex::default(),
        };
        let context = Self { shared: Arc::new(shared), machine: 0, life: 0 };
        io::Result::Ok(context).inspect(Self::enter)
    }

    fn enter(&self) {
        io_enter(Some(self.clone()));
    }

    /// Adds a machine with power and without a process.
    pub fn add_machine(&self) -> MachineId {
        let mut state = self.shared.lock();
        state.machines.push(Machine { life: 0, on: true, idle: true });
        state.machines.len() - 1
    }

    /// Runs `act` on the calling thread, as the process of a machine.
    pub fn on<T>(&self, machine: MachineId, act: impl FnOnce() -> T) -> T {
        let life = {
            let mut state = self.shared.lock();
            state.machines[machine].idle = false;
            state.machines[machine].on = true;
            state.machines[machine].life
        };
        Self { shared: Arc::clone(&self.shared), machine, life }.enter();
        let result = act();
        self.enter();
        result
    }

    /// A separate sequence of random numbers for a part of the scenario.
    pub fn fork(&self) -> Random {
        let number = self.shared.forks.fetch_add(1, Ordering::Relaxed);
        Random::fork(self.shared.seed, &number.to_string())
    }

    /// The sequence of random numbers for `purpose`, which does not shift those of [`Self::fork`].
    pub fn fork_for(&self, purpose: &str) -> Random {
        Random::fork(self.shared.seed, purpose)
    }

    pub fn now(&self) -> Duration {
        self.shared.lock().now
    }

    pub fn sleep(&self, time: Duration) -> Result<(), Over> {
        let mut state = self.shared.lock();
        if !state.over {
            let me = this_thread();
            state.threads[me].waits = Waits::Sleep;
            let wait = state.threads[me].wait;
            state.after(time, Due::Run { thread: me, wait });
            state = self.shared.hand_over(state);
        }
        if state.over { Err(Over) } else { Ok(()) }
    }

    pub fn note(&self, what: &str, details: &[u64]) {
        self.shared.lock().trace(what, details);
    }

    /// Reports a failure. The first one ends the run.
    pub fn fail(&self, text: impl Into<String>) {
        let mut state = self.shared.lock();
        state.fail(text.into());
        if !state.over {
            state.end();
        }
    }

    pub fn count(&self, add: impl FnOnce(&mut Counters)) {
        add(&mut self.shared.lock().counters);
    }

    pub(crate) fn net<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.shared.lock())
    }

    /// Ends the process of a machine. With `power`, the machine vanishes from the network without notice; without, its
    /// kernel closes the descriptors of the process.
    pub fn kill(&self, machine: MachineId, power: bool) {
        let mut state = self.shared.lock();
        state.trace("kill", &[machine as u64, u64::from(power)]);
        state.notice();
        state.vanish(machine, power);
        state.machines[machine].life += 1;
        state.machines[machine].on = !power;
        state.machines[machine].idle = true;
        for thread in 0..state.threads.len() {
            if state.threads[thread].machine == machine
                && matches!(state.threads[thread].waits, Waits::Loop(_))
            {
                state.wake(thread);
            }
        }
    }

    /// Ends the run and all its threads. Returns the counters, the trace's hash, and the first failure.
    pub fn finish(self) -> (Counters, u64, Option<String>) {
        let mut state = self.shared.lock();
        if !state.over {
            state.end();
        }
        while let Some(thread) = state.threads.iter().skip(1).position(|thread| !thread.ended) {
            state.threads[0].waits = Waits::Join(thread + 1);
            state = self.shared.hand_over(state);
        }
        let panic = self.shared.panic.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let result = (state.counters.clone(), state.hash, panic.or(state.failure.clone()));
        drop(state);
        io_enter(None);
        let threads = std::mem::take(&mut *self.shared.threads.lock().expect("no panic while locked"));
        for thread in threads {
            let _ = thread.join();
        }
        result
    }
}

/// Records the message of a panic for the run of the panicking thread.
pub(crate) fn panicked(words: &str) {
    match SHARED.with_borrow(Clone::clone) {
        // Not in the state: the panicking thread may hold its lock.
        Some(shared) => {
            let mut panic = shared.panic.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            panic.get_or_insert(words.to_owned());
        }
        None => eprintln!("{words}"),
    }
}

/// Binds the calling thread, and those that it starts, to one core: only one thread of a run works at a time, and a
/// wake-up is faster on the core where the last thread has just gone to sleep.
pub fn keep_to_core(number: usize) {
    // SAFETY: the set is plain data and live; the calls affect only the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of_val(&set);
        if libc::sched_getaffinity(0, size, &raw mut set) != 0 {
            return;
        }
        let cores: Vec<usize> =
            (0..libc::CPU_SETSIZE as usize).filter(|core| libc::CPU_ISSET(*core, &set)).collect();
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(cores[number % cores.len()], &mut set);
        libc::sched_setaffinity(0, size, &raw const set);
    }
}

fn io_enter(context: Option<Context>) {
    SHARED.set(context.as_ref().map(|context| Arc::clone(&context.shared)));
    ::io::enter(context.map(|context| Arc::new(context) as Arc<dyn ::io::World>));
}

fn thread(name: &str, machine: MachineId, spawner: Option<ThreadId>) -> Thread {
    Thread {
        name: name.to_owned(),
        machine,
        waits: Waits::No,
        wait: 0,
        ended: false,
        spawner,
        turn: Arc::new(Condvar::new()),
    }
}

impl ::io::World for Context {
    fn backend(&self) -> io::Result<Box<dyn ::io::Backend>> {
        Ok(Box::new(SimBackend::new(self.clone())))
    }

    fn entropy(&self, bytes: &mut [u8]) {
        let mut state = self.shared.lock();
        for byte in bytes {
            *byte = state.random.draw() as u8;
        }
    }

    fn socket(&self) -> io::Result<OwnedFd> {
        self.shared.lock().open_socket(self.machine, self.life)
    }

    fn listen(&self, address: SocketAddr) -> io::Result<::io::Listener> {
        self.shared.lock().listen(self.machine, self.life, address)
    }

    fn addresses(&self, socket: RawFd) -> io::Result<(SocketAddr, SocketAddr)> {
        self.shared.lock().addresses(socket)
    }

    fn path(&self, socket: RawFd) -> Option<::io::Path> {
        self.shared.lock().path(socket)
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<u64> {
        let mut state = self.shared.lock();
        let (me, id) = (this_thread(), state.threads.len());
        state.threads.push(thread(name, self.machine, Some(me)));
        state.trace("spawn", &[id as u64, self.machine as u64]);
        let context = self.clone();
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            THREAD.set(id);
            drop(context.shared.await_turn(context.shared.lock()));
            context.enter();
            body();
            io_enter(None);
            let mut state = context.shared.lock();
            state.threads[id].ended = true;
            state.trace("end", &[id as u64]);
            for other in 0..state.threads.len() {
                if state.threads[other].waits == Waits::Join(id) {
                    state.wake(other);
                }
            }
            let next = state.threads[id].spawner.take().unwrap_or_else(|| state.pick());
            state.current = next;
            state.threads[next].turn.notify_one();
        })?;
        self.shared.threads.lock().expect("no panic while locked").push(handle);
        drop(self.shared.give(state, id));
        Ok(id as u64)
    }

    fn join(&self, thread: u64) {
        let mut state = self.shared.lock();
        while !state.threads[thread as usize].ended {
            state.threads[this_thread()].waits = Waits::Join(thread as usize);
            state = self.shared.hand_over(state);
        }
    }
}
