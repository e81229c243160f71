//! `readahead=SIZE`: reads ahead of sequential readers, so that a reader with one request outstanding does not wait a
//! round trip for each. `SIZE` bounds the bytes in memory, of all threads.
//!
//! What is promised about order holds: a read that begins after a change (write, discard, zeroes) has completed returns
//! the new bytes, also if the change was another thread's. `ledger.rs` says why. Changes of the storage that do not pass
//! this medium are not seen: what was read ahead is used for at most [`AGE_MAX`]. A flush, a lost session and another size
//! drop it.
//!
//! Without the option `serve` reads ahead of its initiators where the other end says that nobody else can write
//! ([`ReadaheadMedium::of_sole_writer`]).
//!
//! `ledger.rs`: what is read ahead, by all threads, and whether it still holds. `stream.rs`: which readers are sequential,
//! and how far ahead of them. `endpoint.rs`: one thread's requests.

mod endpoint;
mod ledger;
mod stream;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use io::Io;

use crate::{Endpoint, Medium, OpenError, parse_size};
use endpoint::Readahead;
use ledger::{Ledger, Ticket};

/// Age at which what was read ahead is dropped: the storage may have writers elsewhere.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Bytes for an endpoint without a size of its own: twice what 1 Gbit/s at 200 ms holds, and some.
const BYTES_DEFAULT: u64 = 64 << 20;
/// Bytes that all endpoints of this process read ahead together: the pool of a thread has to have room for commands.
const PROCESS_BYTES_MAX: u64 = 256 << 20;

static PROCESS_BYTES: AtomicU64 = AtomicU64::new(0);

const _: () = assert!(BYTES_DEFAULT <= PROCESS_BYTES_MAX);

/// Parses the value of the option: a size, none for [`BYTES_DEFAULT`], or `off`. `None`: off.
pub(super) fn parse(value: &str) -> Result<Option<u64>, String> {
    match value {
        "" => Ok(Some(BYTES_DEFAULT)),
        "off" | "no" => Ok(None),
        size => match parse_size(size)? {
            0 => Ok(None),
            bytes if bytes <= PROCESS_BYTES_MAX => Ok(Some(bytes)),
            _ => Err(format!("'{size}' is more than {} MiB; off or 0 turns it off", PROCESS_BYTES_MAX >> 20)),
        },
    }
}

#[derive(Debug)]
pub struct ReadaheadMedium {
    inner: Arc<dyn Medium>,
    shared: Arc<Shared>,
}

impl ReadaheadMedium {
    /// Reads ahead with at most `bytes_max` bytes of memory.
    pub fn new(inner: Arc<dyn Medium>, bytes_max: u64) -> Self {
        Self { inner, shared: Arc::new(Shared::new(bytes_max, true)) }
    }

    /// Reads ahead while the storage has no other writer ([`crate::Capability::sole_writer`]).
    pub fn of_sole_writer(inner: Arc<dyn Medium>) -> Self {
        Self { inner, shared: Arc::new(Shared::new(BYTES_DEFAULT, false)) }
    }
}

impl Medium for ReadaheadMedium {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn has_failed(&self) -> bool {
        self.inner.has_failed()
    }

    fn lasting_name(&self) -> Option<String> {
        self.inner.lasting_name()
    }

    fn drop_read_ahead(&self) {
        self.shared.ledger().invalidate();
        self.inner.drop_read_ahead();
    }

    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let owner = io.owner();
        let inner = self.inner.attach(io)?;
        Ok(Box::new(Readahead::new(owner, inner, Arc::clone(&self.shared))))
    }
}

/// What the endpoints of a medium share.
#[derive(Debug)]
struct Shared {
    bytes_max: u64,
    /// Read ahead even if the storage may have other writers.
    is_asked: bool,
    ledger: Mutex<Ledger>,
    counters: Counters,
}

/// Bytes, of all threads.
#[derive(Debug, Default)]
struct Counters {
    /// That have arrived.
    ahead: AtomicU64,
    used: AtomicU64,
    dropped: AtomicU64,
}

impl Shared {
    fn new(bytes_max: u64, is_asked: bool) -> Self {
        Self { bytes_max, is_asked, ledger: Mutex::default(), counters: Counters::default() }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no panic while locked")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Counters { ahead, used, dropped } = &self.counters;
        let [ahead, used, dropped] = [ahead, used, dropped].map(|count| count.load(Ordering::Relaxed));
        if ahead > 0 {
            tracing::debug!(bytes = ahead, used, dropped, "read ahead");
        }
    }
}

/// A chunk in the ledger, and its part of the bounds of memory.
#[derive(Debug)]
struct Claim {
    shared: Arc<Shared>,
    ticket: Ticket,
    bytes: u64,
}

impl Claim {
    fn new(shared: &Arc<Shared>, range: &Range<u64>) -> Option<Self> {
        let bytes = range.end - range.start;
        if PROCESS_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes <= PROCESS_BYTES_MAX
            && let Some(ticket) = shared.ledger().begin_chunk(range, shared.bytes_max)
        {
            return Some(Self { shared: Arc::clone(shared), ticket, bytes });
        }
        PROCESS_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        None
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shared.ledger().end_chunk(self.ticket, self.bytes);
        PROCESS_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A change in progress in the ledger.
#[derive(Debug)]
struct Change {
    shared: Arc<Shared>,
    ticket: Ticket,
}

impl Change {
    fn new(shared: &Arc<Shared>, range: &Range<u64>) -> Self {
        let ticket = shared.ledger().begin_change(range);
        Self { shared: Arc::clone(shared), ticket }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.shared.ledger().end_change(self.ticket);
    }
}

#[cfg(test)]
mod tests;
