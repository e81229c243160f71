//! The state shared by all threads of a server. Each part has its own lock, held briefly.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use area::PoolLimits;

use super::copier::Copier;
use super::handshake::Handshakes;
use super::local_user::LocalUsers;
use super::lun::Lun;
use super::mail::{Mail, Mailbox};
use super::refusals::RefusalLog;
use super::sessions::Sessions;
use super::state::State;

pub(super) const POOL: PoolLimits = PoolLimits { bytes_max: 1 << 30 };

#[derive(Debug)]
pub(super) struct Shared {
    /// The part that a reload replaces. Read by logins and reloads; sessions keep copies of what they need.
    state: RwLock<Arc<State>>,
    /// Units by slot, including removed ones still in use. Locked for the duration of a reload.
    pub(super) slots: Mutex<Vec<Weak<Lun>>>,
    pub(super) local_users: LocalUsers,
    pub(super) sessions: Sessions,
    pub(super) handshakes: Handshakes,
    pub(super) refusals: RefusalLog,
    pub(super) copier: Arc<Copier>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    /// Number of live connections by worker, for placing new ones.
    pub(super) load: Vec<AtomicUsize>,
    pub(super) addresses: Vec<SocketAddr>,
    /// A drain was requested; for the status only.
    pub(super) draining: AtomicBool,
    /// Another process shares the listening sockets, and will serve when this one has ended.
    hands_over: AtomicBool,
}

impl Shared {
    pub(super) fn new(state: State, addresses: Vec<SocketAddr>, workers: usize) -> Self {
        Self {
            slots: Mutex::new(state.luns.iter().flatten().map(Arc::downgrade).collect()),
            state: RwLock::new(Arc::new(state)),
            local_users: LocalUsers::open(),
            sessions: Sessions::default(),
            handshakes: Handshakes::default(),
            refusals: RefusalLog::default(),
            copier: Arc::default(),
            mailboxes: (0..workers).map(|_| Arc::new(Mailbox::new())).collect(),
            load: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            addresses,
            draining: AtomicBool::new(false),
            hands_over: AtomicBool::new(false),
        }
    }

    pub(super) fn hands_over(&self) -> bool {
        self.hands_over.load(Ordering::Relaxed)
    }

    pub(super) fn set_hand_over(&self) {
        self.hands_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().expect("no panic while locked"))
    }

    pub(super) fn replace_state(&self, state: Arc<State>) {
        *self.state.write().expect("no panic while locked") = state;
    }

    pub(super) fn send_all(&self, mail: impl Fn() -> Mail) {
        for mailbox in &self.mailboxes {
            mailbox.send(mail());
        }
    }
}

pub(super) fn least_loaded(shared: &Shared) -> usize {
    let load = shared.load.iter().map(|count| count.load(Ordering::Relaxed));
    load.enumerate().min_by_key(|(_, count)| *count).map_or(0, |(index, _)| index)
}
