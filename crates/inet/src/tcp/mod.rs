//! TCP. `connection` is the state machine of RFC 9293 §3.10 after LISTEN, with its two sides in `receive` and `send`;
//! `handshake` opens connections, `listen` keeps those that wait for `accept`, `time_wait` what is left of closed ones.
//! `congestion`, `rtt` and `recovery` decide when and how much is sent.
//!
//! Code of one connection changes its record and the pools, and nothing else: [`crate::Engine`] then settles the lists,
//! timers and tables that the connection belongs to.

mod congestion;
mod connection;
mod handshake;
mod isn;
mod listen;
mod receive;
pub(crate) mod recovery;
mod rtt;
mod send;
mod table;
mod time_wait;
mod timer;

pub(crate) use connection::{Connection, Final, Kind as ChainKind, Step};
pub(crate) use isn::{Secret, Tuple};
pub(crate) use listen::Listener;
pub(crate) use send::{Gathered, Piece};
pub(crate) use table::Table;
pub(crate) use time_wait::{TimeWait, Verdict as TimeWaitVerdict};
pub(crate) use timer::Timers;

use zerocopy::FromZeros;

/// MSL (RFC 9293 §3.4.1 says 2 minutes; 30 s as elsewhere), twice.
pub(crate) const TIME_WAIT_US: u64 = 60_000_000;
/// R2 (RFC 9293 §3.8.3: at least 100 s): after so many timeouts in a row a connection is given up. From an RTO of 200 ms,
/// doubled up to 60 s, it takes 8 minutes.
pub(crate) const R2_RETRIES: u8 = 15;
/// The same of a connection that its client has closed, answered window probes included: 100 s from an RTO of 200 ms, as
/// with Linux (tcp_orphan_retries).
pub(crate) const ORPHAN_RETRIES: u8 = 8;
/// R2 for SYN (RFC 9293 §3.8.3: at least 3 minutes).
pub(crate) const R2_SYN_US: u64 = 180_000_000;
/// A connection that its client has closed waits so long for the peer's FIN.
pub(crate) const FIN_WAIT_US: u64 = 60_000_000;
/// Keep-alive probes without an answer, and most time between them.
pub(crate) const KEEP_ALIVE_PROBES: u8 = 9;
pub(crate) const KEEP_ALIVE_US_MAX: u64 = 75_000_000;
/// Challenge ACKs and answers to empty segments out of the window of one connection in so much time (RFC 5961 §7).
pub(crate) const CHALLENGES: u8 = 10;
pub(crate) const CHALLENGES_US: u64 = 5_000_000;
/// RFC 7323 §5.5: TS.Recent is not used when it is older.
pub(crate) const TIMESTAMP_US_MAX: u64 = 24 * 24 * 3_600_000_000;

/// States of a connection. LISTEN is a [`Listener`], TIME-WAIT a [`TimeWait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub(crate) enum State {
    Free = 0,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    /// Nothing more is received. The record stays until the client has its events and its memory.
    Over,
}

impl State {
    /// Bytes, FIN, and what was lost of them, may be sent.
    pub(crate) fn sends(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::CloseWait | Self::Closing | Self::LastAck)
    }

    /// Bytes are taken (RFC 9293 §3.10.7.4, seventh).
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Both SYNs were acknowledged.
    pub(crate) fn is_synchronized(self) -> bool {
        self.sends() || self == Self::FinWait2
    }
}

/// The clock of timestamps: milliseconds (RFC 7323 §5.4).
pub(crate) fn timestamp(now: crate::Time) -> u32 {
    (now.0 / recovery::TIMESTAMP_TICK_US) as u32
}
