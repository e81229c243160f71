//! Endpoints that reconnect after a lost connection.
//!
//! `endpoint.rs`: [`Remote`]. `several.rs`: [`Several`] of them for one unit; `growth.rs`: how many. `peer.rs`: the traits
//! that a protocol implements. `backlog.rs`: the requests.
//! `write_cache.rs`: acknowledged writes that are not durable. `clock.rs`: the endpoint's own events.
//!
//! Not here: bytes of any protocol, sockets, and the meaning of a failure. Read [`Remote`] first, then [`Peer`].

mod addresses;
mod backlog;
mod clock;
mod endpoint;
mod growth;
mod peer;
mod several;
mod write_cache;

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use addresses::Addresses;
pub use endpoint::Remote;
pub use growth::{LINKS_MAX, Links};
pub use peer::{Change, Effect, Link, Next, Nouns, Peer, Report, Submitted, Verdict};
pub use several::Several;
pub use write_cache::{Mark, WriteCache};

/// Interval at which deadlines are checked while a request or link is outstanding.
pub const TICK: Duration = Duration::from_millis(100);
/// Bytes of zeroes per command, for a server that cannot write zeroes by itself.
pub const ZERO_BYTES: usize = 1 << 20;
/// Consecutive repetitions of a command that the server refuses for now ([`Verdict::Again`]).
pub const REPEATS_MAX: u32 = 20;
