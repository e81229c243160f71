//! SCSI commands on the wire: when each part of them passed, and what the connection waits for at a moment.
//!
//! [`Tracker`] makes them from the events of one connection.

mod arrivals;
mod kept;
mod open;
mod stream;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod tracker;

pub use kept::{Kept, Shares};
pub use summary::{Direction, Summary, Tally, Times};
pub use tracker::Tracker;

/// The name of a SCSI operation code, as the standards write it.
#[must_use]
pub fn operation_name(code: u8) -> &'static str {
    scsi::cdb::name(code)
}

/// Whether a command's data goes to the target or comes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    Write,
    Read,
}

/// What the sender waited for before a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Acknowledgements alone arrived before it.
    Ack,
    /// An R2T arrived before it.
    R2t,
    /// A response of an earlier command arrived before it.
    Response,
    /// The command itself began it.
    Command,
    /// Nothing arrived: the sender paused by itself.
    Nothing,
}

/// Data packets of one command without a pause between them that is longer than half a round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Packets on the wire: bytes by the maximum segment size, each frame rounded up.
    pub packets: u32,
    pub bytes: u64,
    /// Pause before it since the last data packet of the burst before; 0 for the command's first.
    pub gap_ns: u64,
    pub trigger: Trigger,
}

/// A command that has ended, in times of the initiator's clock as far as the vantage allows.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Frame of its first byte.
    pub frame: u64,
    pub at_ns: u64,
    pub itt: u32,
    pub lun: u64,
    /// SCSI operation code.
    pub operation: u8,
    pub transfer: Transfer,
    pub bytes: u64,
    /// First to last data packet.
    pub ta_ns: u64,
    /// Last data packet to the response's end; for a read: command to first data.
    pub tb_ns: u64,
    /// Response to the next command of this connection; `None` until it comes.
    pub tc_ns: Option<u64>,
    /// First byte of the command to the response's end; 0 if it is not known.
    pub latency_ns: u64,
    /// What the target took itself: the part of waits for it beyond the round trip, summed over R2T waits and response.
    pub target_ns: u64,
    pub r2t_rounds: u32,
    pub r2t_bytes: u32,
    pub unsolicited_bytes: u32,
    /// Commands outstanding when it was sent, itself included.
    pub depth: u32,
    pub bursts: Vec<Burst>,
    /// SCSI status; `None` if the capture did not show it.
    pub status: Option<u8>,
    /// Its start or its end was not captured: what is known of it follows from R2Ts and sequence numbers, and times are
    /// rough.
    pub is_inferred: bool,
}

/// What iSCSI waits for at a moment, as the data sender's end sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub outstanding: u32,
    /// Commands that MaxCmdSN still allows.
    pub command_window: Option<u32>,
    /// Bytes (headers included) of started PDUs and of bursts that R2Ts or the unsolicited limit permit, not yet sent.
    pub permitted_bytes: u64,
    /// The same of the target: Data-In of reads that it has, not yet sent.
    pub permitted_read_bytes: u64,
    /// Writes with data left to send, all of it without an R2T.
    pub awaiting_r2t: u32,
    /// Writes whose data is all sent, and commands without data.
    pub awaiting_response: u32,
    /// Reads without the first Data-In.
    pub awaiting_data: u32,
    /// Reads of which a part of Data-In was sent.
    pub receiving: u32,
}

/// What the login agreed on, as far as it matters to commands; `None`: not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// FirstBurstLength, bytes.
    pub first_burst_length: Option<u32>,
}

/// What passed on a connection besides complete commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands that started, without data included.
    pub commands: u64,
    /// Commands without data that ended.
    pub without_data: u64,
    /// Data-Out, Data-In, R2Ts and responses of commands whose start was not seen.
    pub unknown: u64,
    /// Commands whose response was not seen: lost by the capture, their tag used again, or open at the end.
    pub unfinished: u64,
    /// Commands ended by task management.
    pub aborted: u64,
    /// Open commands whose response the capture may have lost.
    pub doubted: u64,
    pub r2ts: u64,
    /// R2Ts of one command whose data was not all sent, most.
    pub r2ts_outstanding_max: u32,
    pub task_management: u64,
    pub rejects: u64,
    /// PDUs of login, text, logout, NOP, and asynchronous messages.
    pub other: u64,
    /// Headers that are no PDU of their direction.
    pub malformed: u64,
    pub capture_losses: u64,
    /// Writes whose start passed unseen, known by their R2Ts or by their responses alone.
    pub inferred: u64,
    /// Data of PDUs whose headers were not captured: given to the commands in their order.
    pub inferred_bytes: u64,
}
