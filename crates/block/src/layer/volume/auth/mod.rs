//! An `auth` volume: the state that its threads share, and the medium.
//!
//! [`::volume::auth::Volume`] decides what is read and written, and in which order; it lives in [`Shared`] behind a lock
//! that is never held while bytes are read, written, encrypted or decrypted. Each thread's endpoint (`endpoint.rs`) takes
//! the actions that belong to its requests and any operation of the storage; actions for another thread's requests go to
//! that thread's mailbox, and its loop is woken. `work.rs` has the requests of one thread while they are under way.

mod endpoint;
mod ledger;
#[cfg(test)]
mod tests;
mod work;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use area::{Region, Span};
use io::{Io, Waker};
use volume::auth::{
    Action, BLOCK_BYTES, Failure, Operation, Outcome, POOL_SLOTS, ReadError, RequestId, Volume,
};

use crate::{Endpoint, IoError, IoErrorKind, Medium, OpenError};
use endpoint::Auth;
pub(super) use ledger::LedgerFile;
use ledger::LedgerIo;
pub use ledger::open_freshness;

type Act = Action<IoError>;

/// Bits of a request's number that count within a seat.
const SERIAL_BITS: u32 = 40;
/// Actions that [`Shared::leave`] hands over or refuses at most.
const LAST_TURNS_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct AuthMedium {
    inner: Arc<dyn Medium>,
    shared: Arc<Shared>,
    /// The file that the volume's ledger is in.
    ledger: Option<LedgerFile>,
}

impl AuthMedium {
    /// `name`: UUID and digest of the key. `ledger` belongs to a volume that has one.
    pub(super) fn new(
        inner: Arc<dyn Medium>,
        volume: Volume<IoError>,
        name: String,
        ledger: Option<LedgerFile>,
    ) -> Result<Self, OpenError> {
        let bytes = POOL_SLOTS as usize * BLOCK_BYTES;
        let slots = Region::on_demand(bytes)
            .map_err(|error| OpenError::Failed(format!("{bytes} bytes for blocks that wait: {error}")))?;
        let state = Mutex::new(State { volume, seats: Vec::new(), is_opening: true });
        Ok(Self { inner, shared: Arc::new(Shared { state, slots: Arc::new(slots), name }), ledger })
    }
}

impl Medium for AuthMedium {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let inner = self.inner.attach(io)?;
        let ledger = self.ledger.as_ref().map(LedgerIo::new).transpose()?;
        Ok(Box::new(Auth::new(io, inner, Arc::clone(&self.shared), ledger)?))
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn has_failed(&self) -> bool {
        self.inner.has_failed()
    }

    fn drop_read_ahead(&self) {
        self.inner.drop_read_ahead();
    }

    fn lasting_name(&self) -> Option<String> {
        Some(format!("{}, volume {}", self.inner.lasting_name()?, self.shared.name))
    }
}

/// What the threads of a volume share.
struct Shared {
    state: Mutex<State>,
    /// Slots in which sealed blocks wait; the volume decides who accesses which.
    slots: Arc<Region>,
    name: String,
}

struct State {
    volume: Volume<IoError>,
    /// One for each endpoint; `None` once it is gone.
    seats: Vec<Option<Seat>>,
    /// At the last look at it. Endpoints that wait for the end of it get no action then.
    is_opening: bool,
}

/// What reaches an endpoint from other threads.
struct Seat {
    mail: VecDeque<Act>,
    waker: Waker,
    /// Its thread ends, and another one goes on: it takes no more operations.
    is_closing: bool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

fn seat_of(id: RequestId) -> usize {
    (id >> SERIAL_BITS) as usize
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while locked")
    }

    fn stored(&self) -> Span {
        Span::stored(Arc::clone(&self.slots))
    }

    fn enter(&self, waker: Waker) -> usize {
        let seat = Seat { mail: VecDeque::new(), waker, is_closing: false };
        let mut state = self.lock();
        state.seats.push(Some(seat));
        state.seats.len() - 1
    }

    /// The endpoint `own` is gone, with `operations` of the storage in flight, and others, `waiting`, not begun.
    fn leave(
        &self,
        own: usize,
        operations: impl IntoIterator<Item = u64>,
        waiting: impl IntoIterator<Item = (u64, Operation)>,
    ) {
        let mut state = self.lock();
        let mail = state.seats[own].take().map(|seat| seat.mail).unwrap_or_default();
        for id in operations {
            state.volume.done(id, Outcome::Failed(aborted()));
        }
        let waiting = waiting.into_iter().map(|(id, operation)| Action::Operate { id, operation });
        mail.into_iter().chain(waiting).for_each(|action| state.hand_over(action));
        for _ in 0..LAST_TURNS_MAX {
            let Some(action) = state.volume.poll() else { break };
            state.hand_over(action);
        }
        state.announce();
    }
}

impl State {
    /// Takes all actions: those for `own`, and operations, go to `mine`.
    fn poll(&mut self, own: usize, mine: &mut VecDeque<Act>) {
        if let Some(seat) = &mut self.seats[own] {
            mine.append(&mut seat.mail);
        }
        while let Some(action) = self.volume.poll() {
            let is_mine = match request_of(&action) {
                Some(id) => seat_of(id) == own,
                None => self.seats[own].as_ref().is_some_and(|seat| !seat.is_closing),
            };
            if is_mine {
                mine.push_back(action);
            } else {
                self.hand_over(action);
            }
        }
        self.announce();
    }

    /// Wakes all threads once the volume is open, or could not be opened.
    fn announce(&mut self) {
        let is_opening = matches!(self.volume.state(), volume::auth::State::Opening);
        if std::mem::replace(&mut self.is_opening, is_opening) && !is_opening {
            self.seats.iter().flatten().for_each(|seat| seat.waker.wake());
        }
    }

    /// Gives an action to the thread that it is for, or, an operation, to any.
    fn hand_over(&mut self, action: Act) {
        let seat = match request_of(&action) {
            Some(id) => self.seats.get_mut(seat_of(id)).and_then(Option::as_mut),
            None => self.seats.iter_mut().flatten().find(|seat| !seat.is_closing),
        };
        match seat {
            Some(seat) => {
                seat.mail.push_back(action);
                seat.waker.wake();
            }
            None => self.refuse(&action),
        }
    }

    /// Ends an action whose endpoint is gone, as aborted.
    fn refuse(&mut self, action: &Act) {
        match *action {
            Action::Open { id, .. } => self.volume.opened(id, Err(ReadError::Storage(aborted()))),
            Action::Examine { id, .. } => self.volume.examined(id, Err(aborted())),
            Action::Seal { id, .. } => self.volume.sealed(id, Err(aborted())),
            Action::Operate { id, .. } => self.volume.done(id, Outcome::Failed(aborted())),
            Action::Fetch { .. } | Action::Complete { .. } => {}
        }
    }

    /// The thread of `own` ends. Returns whether no other goes on, so that it has to close the volume.
    fn ends_use(&mut self, own: usize) -> bool {
        let others = self.seats.iter().enumerate().filter(|(seat, _)| *seat != own);
        let is_last = others.filter_map(|(_, seat)| seat.as_ref()).all(|seat| seat.is_closing);
        if !is_last && let Some(seat) = &mut self.seats[own] {
            seat.is_closing = true;
        }
        is_last
    }
}

fn request_of(action: &Act) -> Option<RequestId> {
    match action {
        Action::Fetch { id }
        | Action::Open { id, .. }
        | Action::Examine { id, .. }
        | Action::Seal { id, .. }
        | Action::Complete { id, .. } => Some(*id),
        Action::Operate { .. } => None,
    }
}

fn aborted() -> IoError {
    IoError::new(IoErrorKind::Aborted, "the thread of this request has ended")
}

/// The error of a request for the bytes from `offset`, in this crate's words. A block that does not verify may begin before
/// them.
fn failure(failure: &Failure<IoError>, offset: u64) -> IoError {
    let first = match failure {
        Failure::Unverified { block } | Failure::OldBlock { block } => {
            Some(offset.max(block * BLOCK_BYTES as u64))
        }
        _ => None,
    };
    let kind = match failure {
        // The place in the storage is no place in the volume.
        Failure::Storage(error) => return error.clone().at(None),
        Failure::Unverified { .. } | Failure::OldBlock { .. } | Failure::OldVolume | Failure::Damaged => {
            IoErrorKind::Medium
        }
        Failure::ReadOnly => IoErrorKind::ReadOnly,
        Failure::OutOfRange | Failure::Truncated => IoErrorKind::OutOfRange,
        Failure::Foreign | Failure::Ledger(_) | Failure::Exhausted => IoErrorKind::Other,
    };
    IoError::new(kind, failure.to_string()).at(first)
}
