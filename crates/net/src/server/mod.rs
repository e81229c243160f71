//! `inet`, the protocol server, without its process: rings in, rings out. The supervisor's part (`crate::supervisor`)
//! gives it memory and sleeps for it; `lab` runs it in the process of the application.
//!
//! Three modules with the call rule of the paper. `request` (request management) alone meets other processes: it takes
//! requests and inputs out of rings, answers and rings bells. `socket` (socket management) has the sockets of each
//! client, and calls `protocol` to open and close connections. `protocol` (protocol management) drives the engine and asks
//! the drivers. The rule is kept by ownership: `request` owns both others and lends `protocol` to `socket` for a call;
//! neither has a way to the rings of applications, and `protocol` knows sockets only as opaque names.
//!
//! Every slot of another process is copied once and then checked. What is wrong is answered by an errno, or dropped and
//! counted; a client whose rings are broken is named by [`Server::faulty`].

mod counters;
mod frames;
mod protocol;
mod received;
mod request;
mod socket;

pub use counters::{COUNTERS_BYTES, Counters, Page};
pub(crate) use protocol::MTU_MIN;
pub use request::Server;

use inet::Capacity;

use crate::layout::HEADS;
use crate::slot::SPANS;

/// Interfaces of one server; frames of interface n have numbers from n * `HEADS` on.
pub const INTERFACES_MAX: usize = 4;
/// Memory regions of one client.
pub const REGIONS_MAX: usize = 64;
/// Requests of one client in one turn: then others have theirs.
const REQUESTS_PER_TURN: usize = 64;
/// Events delivered to one client in one turn.
const EVENTS_PER_TURN: usize = 128;
/// Most completions that one request causes at once: its own, and that of a request that it cancels. As many places
/// of a client's ring are kept for answers when events are delivered.
const ANSWERS_MAX: u64 = 2;
/// While a client has no room for completions, its ring is read this often: it rings no bell when it has consumed one.
const CLIENT_LOOK_US: u64 = 1000;

/// What one client may have of tables that all share.
#[derive(Clone, Copy, Debug)]
struct Quota {
    clients: usize,
    sockets: usize,
    /// Sends not released, besides one of each socket.
    tickets: u64,
}

impl Quota {
    /// Equal shares: what one client does then never makes a request of another fail.
    fn new(capacity: &Capacity) -> Self {
        let clients = capacity.clients.max(1);
        Self {
            clients: clients as usize,
            sockets: ((capacity.connections + capacity.listeners) / clients) as usize,
            tickets: u64::from(capacity.pieces / clients) / SPANS as u64,
        }
    }
}

/// The tables of an engine for a number of clients and interfaces.
pub fn capacity(clients: u32, interfaces: u32) -> Capacity {
    Capacity { clients, frames: interfaces * HEADS as u32, ..Capacity::default() }
}
