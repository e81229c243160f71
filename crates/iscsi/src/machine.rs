//! The interface through which an edge drives the connection machine of either role.
//!
//! A machine is one connection (and, with MaxConnections=1, its session) without socket, clock or threads. The edge
//! owns the socket and the payload buffers; the machine names the place of each received data segment and the PDUs to
//! send.
//!
//! For each PDU received, the edge
//! 1. reads the 48 bytes of the Basic Header Segment, the AHS that byte 4 announces, and the header digest if
//!    [`Machine::receive_digests`] announces one, and verifies that digest;
//! 2. calls [`Machine::on_header`], then drains `poll_event` of the role (the edge allocates a command's buffer here);
//! 3. if the DataSegmentLength is not zero: calls [`Machine::placement`], receives the segment there, calls
//!    [`Machine::on_data`], then drains `poll_event` again;
//! 4. drains [`Machine::poll_transmit`] into its send queue.
//!
//! Payload never passes through a machine: a [`Payload::Task`] names bytes in the buffer that the edge keeps for that
//! task, and the edge keeps that memory alive until its socket has taken them.

use std::time::Duration;

use crate::limits;
use crate::name::{IscsiName, TargetAddress};
use crate::params::Negotiated;

/// The slot of a task: dense, below [`limits::TASKS_MAX`], so that the edge can keep its buffers in an array. A slot is
/// reused only after the event that ended its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

impl TaskId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where the data segment of the PDU last given to [`Machine::on_header`] belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    Nothing,
    /// The first `length` bytes go into the task's buffer at `offset`. The rest of the segment exceeds what the command
    /// transfers: the edge reads it (the data digest covers it) and discards it.
    Task {
        task: TaskId,
        offset: u32,
        /// Bytes to keep: at least 1, at most the DataSegmentLength.
        length: u32,
    },
    /// The edge receives the segment, at most [`Machine::data_segment_max`] bytes, into its own memory and passes all
    /// of it to [`Machine::on_data`].
    Inline,
    Discard,
}

/// Result of receiving a data segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received<'a> {
    /// The bytes lie where [`Placement::Task`] put them.
    Placed,
    /// The whole segment, for [`Placement::Inline`]; borrowed for the call only.
    Inline(&'a [u8]),
    Discarded,
    /// The data digest was wrong; replaces the other variants for every placement.
    DigestError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    pub header: bool,
    /// CRC32C after a data segment; absent if the segment is empty.
    pub data: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameters {
    pub(crate) digests: Digests,
    pub(crate) receive_segment_max: u32,
    pub(crate) send_segment_max: u32,
    pub(crate) max_burst: u32,
    pub(crate) first_burst: u32,
    pub(crate) initial_r2t: bool,
    pub(crate) immediate_data: bool,
    pub(crate) outstanding_r2t_max: u32,
    pub(crate) time2wait: u16,
    pub(crate) time2retain: u16,
}

impl From<&Negotiated> for Parameters {
    fn from(negotiated: &Negotiated) -> Self {
        Self {
            digests: Digests { header: negotiated.header_digest, data: negotiated.data_digest },
            receive_segment_max: negotiated.max_recv_data_segment_length,
            send_segment_max: negotiated.max_send_data_segment_length.max(1),
            max_burst: negotiated.max_burst_length.max(1),
            first_burst: negotiated.first_burst_length,
            initial_r2t: negotiated.initial_r2t,
            immediate_data: negotiated.immediate_data,
            outstanding_r2t_max: u32::from(negotiated.max_outstanding_r2t)
                .clamp(1, limits::R2T_OUTSTANDING_MAX),
            time2wait: negotiated.default_time2wait,
            time2retain: negotiated.default_time2retain,
        }
    }
}

/// The data segment of a PDU to send. The header already holds its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    None,
    /// Bytes built by the machine: text, sense, login, ping.
    Bytes(Vec<u8>),
    /// Bytes in the buffer that the edge keeps for a task.
    Task {
        task: TaskId,
        offset: u32,
        length: u32,
        /// End, in the buffer, of all data that this transfer sends; equal in each of its PDUs. Data-In: the length
        /// that the edge completed the command with, at most the initiator's expectation. Immediate data and Data-Out:
        /// the Expected Data Transfer Length, even if the target requests less.
        end: u32,
    },
}

/// A PDU to send. The edge adds the digests and pads the data segment to four bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Basic Header Segment, with the DataSegmentLength set.
    pub header: [u8; 48],
    pub payload: Payload,
    pub digests: Digests,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetRecord {
    pub name: IscsiName,
    /// TargetAddress values with portal group tags; empty: the target is at the address of this connection.
    pub addresses: Vec<TargetAddress>,
}

/// Why a connection must be dropped. The edge first sends what `poll_transmit` still holds (a Reject, a login
/// response), as far as the socket takes it without blocking.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// The peer's header digest was wrong: without a trusted length the start of the next PDU is unknown, and
    /// ErrorRecoveryLevel 0 defines no recovery (RFC 7143 §7.8).
    #[error("header digest error")]
    HeaderDigest,
    /// The peer's data digest was wrong, and ErrorRecoveryLevel 0 cannot request the data again.
    #[error("data digest error in {0}")]
    DataDigest(&'static str),
    /// The peer violated the protocol in a way that leaves no defined state to continue from.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    #[error("login: {0}")]
    Login(String),
    #[error("login timed out")]
    LoginTimeout,
    #[error("the peer does not answer pings")]
    PingTimeout,
    #[error("the peer does not answer the logout")]
    LogoutTimeout,
    /// PDUs queued for the peer exceed a bound of [`limits`].
    #[error("too many {0} queued for the peer")]
    Overload(&'static str),
    /// The peer rejected a PDU that the session cannot do without; holds the reason code of the Reject PDU.
    #[error("rejected by the peer, reason 0x{0:02x}")]
    Rejected(u8),
    /// The peer failed authentication below the protocol. Raised by the edge, never by a machine.
    #[error("{0}")]
    Untrusted(String),
    /// The protection of the connection (sealed records) failed. Raised by the edge, never by a machine.
    #[error("{0}")]
    Protection(String),
    /// A PDU arrived after the protocol had closed the connection.
    #[error("PDU after the end of the session")]
    Closed,
}

pub trait Machine {
    /// Digests of the next PDU to be received. They change once, at the end of the login.
    fn receive_digests(&self) -> Digests;

    /// The longest data segment that the peer may send now, bytes (the MaxRecvDataSegmentLength of this side; 8192
    /// during login). The edge drops the connection on a longer one before it reserves memory.
    fn data_segment_max(&self) -> u32;

    /// Takes the header of a PDU. `ahs` holds all bytes that TotalAHSLength announces, padding included.
    fn on_header(&mut self, bhs: &[u8; 48], ahs: &[u8], now: Duration) -> Result<(), Fatal>;

    /// Reports a wrong header digest; returns the reason with which the connection ends.
    fn on_header_digest_error(&mut self) -> Fatal;

    /// Where the data segment belongs; valid after `poll_event` was drained and until [`Machine::on_data`].
    fn placement(&self) -> Placement;

    /// Takes the data segment of that PDU; called exactly once per PDU whose DataSegmentLength is not zero.
    fn on_data(&mut self, data: Received<'_>, now: Duration) -> Result<(), Fatal>;

    /// The next PDU to send. This call assigns StatSN and the other sequence numbers, so the edge must send PDUs in the
    /// order of the calls.
    fn poll_transmit(&mut self) -> Option<Transmit>;

    /// When to call [`Machine::on_timeout`]. The time moves with every PDU received, but the edge need not re-arm its
    /// timer each time: an early call does nothing, and the edge then calls `poll_timeout` again.
    fn poll_timeout(&self) -> Option<Duration>;

    fn on_timeout(&mut self, now: Duration) -> Result<(), Fatal>;
}
