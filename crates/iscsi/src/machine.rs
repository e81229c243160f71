//! What the machines of both roles have in common: how an edge drives one.
//!
//! A machine is a connection (and, with MaxConnections=1, its session) without socket, clock or threads. The edge
//! owns the socket and the payload buffers; the machine says where payload belongs and what to send.
//!
//! Per PDU received, the edge
//! 1. reads the 48 bytes of the Basic Header Segment, the AHS that byte 4 announces, and the header digest when
//!    [`Machine::receive_digests`] says so, which it verifies;
//! 2. calls [`Machine::on_header`], then drains `poll_event` of the role (a command's buffer is allocated here);
//! 3. if the DataSegmentLength is not zero: asks [`Machine::placement`], receives the segment there, and calls
//!    [`Machine::on_data`], then drains `poll_event` again;
//! 4. drains [`Machine::poll_transmit`] into its send queue.
//!
//! Payload never passes through a machine: a [`Payload::Task`] names bytes in the buffer that the edge keeps for
//! that task, and the edge keeps that memory alive until its socket has taken them.

use std::time::Duration;

use crate::limits;
use crate::name::{IscsiName, TargetAddress};
use crate::params::Negotiated;

/// The slot of a task: dense, below [`limits::TASKS_MAX`], so that the edge can keep
/// its buffers in an array. A slot is used again only after the event that ended its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

impl TaskId {
    /// The slot as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where the data segment of the PDU just given belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// There is no data segment.
    Nothing,
    /// The first `length` bytes go into the task's buffer at `offset`. What is left of the segment is more than
    /// the command wanted: it is read (it is part of the data digest) and thrown away.
    Task {
        /// Whose buffer.
        task: TaskId,
        /// First byte in the buffer.
        offset: u32,
        /// Bytes to keep: at least 1, at most the DataSegmentLength.
        length: u32,
    },
    /// Into memory of the edge's own, at most [`Machine::data_segment_max`] bytes, shown to the machine whole.
    Inline,
    /// Read and thrown away.
    Discard,
}

/// What became of a data segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received<'a> {
    /// The bytes are where [`Placement::Task`] said.
    Placed,
    /// The bytes, as [`Placement::Inline`] asked.
    Inline(&'a [u8]),
    /// Thrown away, as [`Placement::Discard`] asked.
    Discarded,
    /// The data digest was wrong, whatever the placement was.
    DigestError,
}

/// Which digests a PDU carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// CRC32C after the header and AHS.
    pub header: bool,
    /// CRC32C after a data segment (not present when there is none).
    pub data: bool,
}

/// What of the negotiation the full feature phase needs, in either role.
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
    /// No data segment.
    None,
    /// Bytes of the machine's: text, sense, login, ping.
    Bytes(Vec<u8>),
    /// Bytes in the buffer that the edge holds for a task.
    Task {
        /// Whose buffer.
        task: TaskId,
        /// First byte.
        offset: u32,
        /// Bytes, at least 1.
        length: u32,
        /// End, in the buffer, of the data that this transfer sends in all; the same in each of its PDUs. Data-In: what
        /// the edge completed the command with, the initiator's expectation at most. Immediate data and Data-Out: the
        /// Expected Data Transfer Length, whether or not the target asks for all of it.
        end: u32,
    },
}

/// A PDU to send. The edge adds digests and pads the data segment to four bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Basic Header Segment.
    pub header: [u8; 48],
    /// Data segment.
    pub payload: Payload,
    /// Digests in force for this PDU.
    pub digests: Digests,
}

/// A target in the answer to SendTargets (RFC 7143 Appendix C).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetRecord {
    /// TargetName.
    pub name: IscsiName,
    /// TargetAddress, each with its portal group tag. None: reachable where it was asked for.
    pub addresses: Vec<TargetAddress>,
}

/// Why a connection must be dropped. The edge first sends what `poll_transmit` still has (a Reject, a login
/// response), as far as the socket takes it without waiting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// The peer's header digest was wrong: without a trusted length the next PDU cannot be found, and
    /// ErrorRecoveryLevel 0 has no way back (RFC 7143 §7.8).
    #[error("header digest error")]
    HeaderDigest,
    /// The peer's data digest was wrong and the data cannot be asked for again at ErrorRecoveryLevel 0.
    #[error("data digest error in {0}")]
    DataDigest(&'static str),
    /// The peer broke the protocol in a way that leaves nothing to continue with.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The login phase ended without a session.
    #[error("login: {0}")]
    Login(String),
    /// The login took longer than the configured time.
    #[error("login timed out")]
    LoginTimeout,
    /// A ping was not answered in time.
    #[error("the peer does not answer pings")]
    PingTimeout,
    /// A logout was not answered in time.
    #[error("the peer does not answer the logout")]
    LogoutTimeout,
    /// The peer makes us queue more than a bound allows.
    #[error("too many {0} queued for the peer")]
    Overload(&'static str),
    /// The peer rejected something that we cannot do without; the reason code of the Reject PDU.
    #[error("rejected by the peer, reason 0x{0:02x}")]
    Rejected(u8),
    /// The peer is not the one it should be. The edge's own finding, below the protocol.
    #[error("{0}")]
    Untrusted(String),
    /// What protects the connection has failed. The edge's own finding, below the protocol.
    #[error("{0}")]
    Protection(String),
    /// The connection was already closed by the protocol: nothing more may arrive on it.
    #[error("PDU after the end of the session")]
    Closed,
}

/// A connection machine of either role.
pub trait Machine {
    /// Digests of the next PDU to be received. They change once, when the login ends.
    fn receive_digests(&self) -> Digests;

    /// The longest data segment that the peer may send now (our MaxRecvDataSegmentLength; 8192 during login).
    /// The edge drops the connection on a longer one before it reserves memory.
    fn data_segment_max(&self) -> u32;

    /// The header of a PDU. `ahs` is without padding rules of its own: all bytes that TotalAHSLength announces.
    fn on_header(&mut self, bhs: &[u8; 48], ahs: &[u8], now: Duration) -> Result<(), Fatal>;

    /// The header digest was wrong. Says with what reason the connection ends.
    fn on_header_digest_error(&mut self) -> Fatal;

    /// Where the data segment of the PDU just given belongs. Valid after `poll_event` has been drained and until
    /// [`Machine::on_data`].
    fn placement(&self) -> Placement;

    /// The data segment of the PDU just given; called exactly once per PDU whose DataSegmentLength is not zero.
    fn on_data(&mut self, data: Received<'_>, now: Duration) -> Result<(), Fatal>;

    /// The next PDU to send. `StatSN` and the like are given out here, so PDUs must be sent in this order.
    fn poll_transmit(&mut self) -> Option<Transmit>;

    /// When to call [`Machine::on_timeout`]. It moves with every PDU received, so the edge need not re-arm a timer
    /// each time: an early call does nothing, and the edge asks again.
    fn poll_timeout(&self) -> Option<Duration>;

    /// Time has passed.
    fn on_timeout(&mut self, now: Duration) -> Result<(), Fatal>;
}
