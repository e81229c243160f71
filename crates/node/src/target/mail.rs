//! Messages between loop threads. All content is passed by value; no sender blocks for an answer.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{PoisonError, mpsc};

use block::OpenError;
use iscsi::machine::TaskId;
use iscsi::wire::TmFunction;
use scsi::NexusId;
use scsi::copy::CopyFailure;

use super::lun::Lun;
use super::state::State;
use super::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, Waker};

/// A connection of one generation of a slot, unique in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConnectionId {
    pub(super) worker: usize,
    pub(super) slot: usize,
    pub(super) generation: u32,
}

#[derive(Debug)]
pub(super) enum Mail {
    /// A socket to serve.
    Connection { socket: OwnedFd, peer: SocketAddr, local: SocketAddr },
    /// Drop a connection for this reason: its session is being reinstated, or a target was reset.
    Close { connection: ConnectionId, reason: &'static str },
    /// The session that a login waited for has ended: claim again.
    Retry { connection: ConnectionId },
    /// Abort the tasks of every connection of this thread that the group's scope covers.
    Abort { group: Arc<AbortGroup> },
    /// All tasks of an abort have ended (`found`: any existed): apply its other effects, answer the request.
    Aborted { aborts: Aborts, found: bool },
    /// The copy of a task has ended; `Ok` has its bytes.
    Copied { connection: ConnectionId, task: TaskId, result: Result<u64, CopyFailure> },
    /// Attach a new unit, and answer when it can be used.
    Attach { lun: Arc<Lun>, answer: mpsc::Sender<Result<(), OpenError>> },
    /// The configuration has changed. The answer is the number of sessions of this thread that it ended; `gone` is
    /// dropped when the removed units have left this thread.
    Reload { change: Arc<Change>, answer: mpsc::Sender<usize>, gone: mpsc::Sender<()> },
    /// Answer, as a sign that the thread runs.
    Probe { answer: mpsc::Sender<()> },
    /// Request sessions to log out, and end when they have.
    Drain,
    /// End without waiting for logouts.
    Stop,
}

#[derive(Debug)]
pub(super) struct Mailbox {
    /// `None` once the thread has ended.
    messages: Mutex<Option<Vec<Mail>>>,
    waker: Mutex<Option<Waker>>,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        Self { messages: Mutex::new(Some(Vec::new())), waker: Mutex::new(None) }
    }

    /// The loop of this mailbox runs and can be woken.
    pub(super) fn connect(&self, waker: Waker) {
        waker.wake();
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// The list is consistent after every statement: poisoning is ignored.
    fn messages(&self) -> MutexGuard<'_, Option<Vec<Mail>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, mail: Mail) {
        let mut messages = self.messages();
        let Some(open) = messages.as_mut() else {
            // Dropped without the lock: a message closes its socket, or releases its abort group, which sends in turn.
            drop(messages);
            return drop(mail);
        };
        open.push(mail);
        drop(messages);
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }

    pub(super) fn take(&self) -> Vec<Mail> {
        let mut messages = self.messages();
        messages.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The thread has ended: later messages are dropped.
    pub(super) fn close(&self) {
        let messages = self.messages().take();
        drop(messages);
    }
}

#[derive(Debug)]
pub(super) struct Change {
    /// The new state; `None` if only units are removed.
    pub(super) state: Option<Arc<State>>,
    pub(super) removed: Vec<usize>,
    /// Slots of units whose storage was resized, and the new size in bytes.
    pub(super) resized: Vec<(usize, u64)>,
}

/// The tasks that a task management function covers, beyond those of its own session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those of the unit in this slot.
    Lun(usize),
    /// Those of the target with this index.
    Target(usize),
}

/// The part of a task management request that is beyond its own session.
#[derive(Clone, Debug)]
pub(super) struct Aborts {
    pub(super) function: TmFunction,
    pub(super) scope: Scope,
    pub(super) luns: Arc<[Arc<Lun>]>,
    pub(super) nexus: NexusId,
    pub(super) origin: ConnectionId,
    pub(super) request: u32,
}

/// The tasks that one task management request aborts, on all threads. Every such task that has not ended holds a
/// reference; dropping the last one answers the request.
#[derive(Debug)]
pub(super) struct AbortGroup {
    pub(super) aborts: Aborts,
    /// Set by a thread that finds a task to end.
    pub(super) found: AtomicBool,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Drop for AbortGroup {
    fn drop(&mut self) {
        let found = self.found.load(Ordering::Relaxed);
        self.mailbox.send(Mail::Aborted { aborts: self.aborts.clone(), found });
    }
}
