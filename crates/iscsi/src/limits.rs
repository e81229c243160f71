//! Every bound of the machines of the Full Feature Phase, with its unit and the reason for its size.
//!
//! No input of a peer makes a queue longer than the bound beside its name. Login and text have bounds of their own.

/// Task slots of one connection, immediate commands included. A `TaskId` is below this, and the low bits of a transfer
/// tag hold it (see [`TASK_BITS`]).
pub const TASKS_MAX: u32 = 1024;

/// Low bits of the tags that a machine assigns; they hold the slot.
pub const TASK_BITS: u32 = 10;

/// Extra slots of a target for immediate commands, which are outside the command window (RFC 7143 §4.2.2.1): a peer
/// that keeps the window full can still send this many. The next one is rejected.
pub const IMMEDIATE_TASKS_MAX: u32 = 8;

/// R2Ts outstanding for one task: the largest MaxOutstandingR2T negotiated.
pub const R2T_OUTSTANDING_MAX: u32 = 16;

/// Bits of a Target Transfer Tag that name the R2T within its task.
pub const R2T_BITS: u32 = 4;

/// Default bound of the bytes that R2Ts have solicited and that have not arrived, over all tasks of a connection. One
/// R2T may always be outstanding, of any length.
pub const SOLICITED_BYTES_MAX: u32 = 64 << 20;

/// Task management requests in progress on one connection.
pub const MANAGEMENT_MAX: u32 = 8;

/// PDUs that belong to no command (NOP, text, reject, asynchronous, logout) and are queued but not yet handed out. The
/// edge drains the queue after each PDU received, so only a peer that sends nothing but errors, faster than the edge
/// sends, exceeds this: the connection is dropped.
pub const CONTROL_MAX: usize = 64;

/// Bytes of NOP ping data that are echoed. Longer data is cut, as RFC 7143 §11.18 permits.
pub const PING_DATA_MAX: usize = 4096;

/// Bytes of text that a target accepts in one text request sequence.
pub const TEXT_REQUEST_MAX: usize = 8192;

/// Bytes of text in one text response, even if the initiator's MaxRecvDataSegmentLength is larger.
pub const TEXT_SEGMENT_MAX: u32 = 64 << 10;

/// Bytes of a SendTargets response that an initiator accepts.
pub const TEXT_RESPONSE_MAX: usize = 1 << 20;

/// Targets in a SendTargets response that an initiator accepts.
pub const TARGETS_MAX: usize = 4096;

/// Addresses of one target in a SendTargets response.
pub const ADDRESSES_MAX: usize = 64;

/// Bytes of sense data carried in a SCSI Response (SPC-5: at most 252).
pub const SENSE_MAX: usize = 252;

/// Bytes of data of one task sent before the next task's turn.
pub const TURN_BYTES: u32 = 256 << 10;

/// PDUs without data (responses, R2Ts) sent in a row before a task with data has its turn.
pub const URGENT_RUN_MAX: u32 = 64;

/// Data segment of a login PDU (RFC 7143 §6.1: the default MaxRecvDataSegmentLength applies).
pub const LOGIN_SEGMENT_MAX: u32 = 8192;

/// Extended CDB: bytes beyond the 16 of the header. SPC's longest CDB is 260 bytes.
pub const EXTENDED_CDB_MAX: usize = 244;

const _: () = assert!(TASKS_MAX <= 1 << TASK_BITS);
const _: () = assert!(R2T_OUTSTANDING_MAX <= 1 << R2T_BITS);
// A tag keeps at least 16 bits for the generation, which separates a stale tag from a live one.
const _: () = assert!(TASK_BITS + R2T_BITS <= 16);
const _: () = assert!(IMMEDIATE_TASKS_MAX < TASKS_MAX);
// Each management request is one bit of a task's `u8` mask.
const _: () = assert!(MANAGEMENT_MAX <= 8);
const _: () = assert!(CONTROL_MAX > MANAGEMENT_MAX as usize);
