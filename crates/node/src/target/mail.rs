//! What loop threads tell each other. Everything crosses by value; nobody waits for an answer.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use io::Waker;

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
    /// All tasks of an abort have ended: answer the task management request.
    Aborted { connection: ConnectionId, request: u32 },
    /// Ask sessions to log out and end when they have.
    Drain,
    /// End now.
    Stop,
}

/// A thread's letter box.
#[derive(Debug)]
pub(super) struct Mailbox {
    letters: Mutex<Vec<Mail>>,
    waker: Mutex<Option<Waker>>,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        Self { letters: Mutex::new(Vec::new()), waker: Mutex::new(None) }
    }

    /// The loop of this box is up and can be woken.
    pub(super) fn connect(&self, waker: Waker) {
        waker.wake();
        *self.waker.lock().expect("no panic while locked") = Some(waker);
    }

    pub(super) fn send(&self, mail: Mail) {
        self.letters.lock().expect("no panic while locked").push(mail);
        if let Some(waker) = &*self.waker.lock().expect("no panic while locked") {
            waker.wake();
        }
    }

    pub(super) fn take(&self) -> Vec<Mail> {
        std::mem::take(&mut *self.letters.lock().expect("no panic while locked"))
    }
}

/// Which tasks a task management function covers, beyond those of its own session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those of one logical unit.
    Lun(usize),
    /// Those of a whole target.
    Target(usize),
}

/// The tasks that one task management request aborts, on whatever thread. Everyone who still has one holds the
/// group; when the last lets go, the request is answered.
#[derive(Debug)]
pub(super) struct AbortGroup {
    pub(super) scope: Scope,
    pub(super) origin: ConnectionId,
    pub(super) request: u32,
    /// Set by whoever finds a task to end.
    pub(super) found: Arc<AtomicBool>,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Drop for AbortGroup {
    fn drop(&mut self) {
        self.mailbox.send(Mail::Aborted { connection: self.origin, request: self.request });
    }
}
