//! What loop threads tell each other. Everything crosses by value; nobody waits for an answer.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{PoisonError, mpsc};

use block::OpenError;
use iscsi::machine::TaskId;
use iscsi::wire::TmFunction;
use scsi::NexusId;
use scsi::copy::CopyFailure;

use super::lun::Lun;
use super::server::State;
use super::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, Waker};

/// One connection of one incarnation of a slot, anywhere in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConnectionId {
    pub(super) worker: usize,
    pub(super) slot: usize,
    pub(super) generation: u32,
}

/// A message to a loop thread.
#[derive(Debug)]
pub(super) enum Mail {
    /// A socket to serve.
    Connection { socket: OwnedFd, peer: SocketAddr, local: SocketAddr },
    /// Drop a connection, for the reason given: its session is being replaced, or a target was reset.
    Close { connection: ConnectionId, reason: &'static str },
    /// The session that a login waited for is gone: look again.
    Retry { connection: ConnectionId },
    /// Abort tasks of every connection here that the group's scope covers.
    Abort { group: Arc<AbortGroup> },
    /// All tasks of an abort have ended; `found` says whether there were any. What the function does besides is done
    /// now, and the request answered if its connection still lives.
    Aborted { aborts: Aborts, found: bool },
    /// The copy of a task has ended; `Ok` is its bytes.
    Copied { connection: ConnectionId, task: TaskId, result: Result<u64, CopyFailure> },
    /// Open a new unit here, and answer when it can be used.
    Attach { lun: Arc<Lun>, answer: mpsc::Sender<Result<(), OpenError>> },
    /// The configuration has changed. The answer is how many sessions here have ended by it; `gone` is dropped when the units that
    /// are no longer served have left this thread.
    Reload { change: Arc<Change>, answer: mpsc::Sender<usize>, gone: mpsc::Sender<()> },
    /// Ask sessions to log out and end when they have.
    Drain,
    /// End now.
    Stop,
}

/// A thread's letter box.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// `None` once the thread has ended.
    letters: Mutex<Option<Vec<Mail>>>,
    waker: Mutex<Option<Waker>>,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        Self { letters: Mutex::new(Some(Vec::new())), waker: Mutex::new(None) }
    }

    /// The loop of this box is up and can be woken.
    pub(super) fn connect(&self, waker: Waker) {
        waker.wake();
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// A list that is whole between any two statements: a panic elsewhere on the thread that holds it changes nothing.
    fn letters(&self) -> MutexGuard<'_, Option<Vec<Mail>>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, mail: Mail) {
        let mut letters = self.letters();
        let Some(open) = letters.as_mut() else {
            // A socket is closed with its letter, and an abort lets go of its group, which sends in turn.
            drop(letters);
            return drop(mail);
        };
        open.push(mail);
        drop(letters);
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }

    pub(super) fn take(&self) -> Vec<Mail> {
        let mut letters = self.letters();
        letters.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The thread has ended: nobody reads any more.
    pub(super) fn close(&self) {
        let letters = self.letters().take();
        drop(letters);
    }
}

/// What a reload changes, as each thread carries it out.
#[derive(Debug)]
pub(super) struct Change {
    /// What holds from now on; `None` when only units leave.
    pub(super) state: Option<Arc<State>>,
    /// Slots of units that are no longer served.
    pub(super) removed: Vec<usize>,
    /// Slots of units whose storage has another size, and that size in bytes.
    pub(super) resized: Vec<(usize, u64)>,
}

/// Which tasks a task management function covers, beyond those of its own session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those of one logical unit.
    Lun(usize),
    /// Those of a whole target.
    Target(usize),
}

/// What a task management request does beyond its own session.
#[derive(Clone, Debug)]
pub(super) struct Aborts {
    pub(super) function: TmFunction,
    pub(super) scope: Scope,
    /// The units that it concerns.
    pub(super) luns: Arc<[Arc<Lun>]>,
    /// Who asked.
    pub(super) nexus: NexusId,
    pub(super) origin: ConnectionId,
    pub(super) request: u32,
}

/// The tasks that one task management request aborts, on whatever thread. Everyone who still has one holds the
/// group; when the last lets go, the request is answered.
#[derive(Debug)]
pub(super) struct AbortGroup {
    pub(super) aborts: Aborts,
    /// Set by whoever finds a task to end.
    pub(super) found: AtomicBool,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Drop for AbortGroup {
    fn drop(&mut self) {
        let found = self.found.load(Ordering::Relaxed);
        self.mailbox.send(Mail::Aborted { aborts: self.aborts.clone(), found });
    }
}
