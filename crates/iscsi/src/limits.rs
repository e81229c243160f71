//! Every bound of the session machines, in one place, with its unit and the reason for its size.
//!
//! The login and text modules keep their own bounds on keys and negotiation; what is here bounds the Full Feature
//! Phase. Nothing a peer sends can make a queue of ours longer than the number beside its name.

/// Task slots of one connection, immediate commands included. A `TaskId` is below this, and a transfer tag has
/// room for it in its low bits (see [`TASK_BITS`]).
pub const TASKS_MAX: u32 = 1024;

/// Low bits of a tag of ours that name the slot.
pub const TASK_BITS: u32 = 10;

/// Extra slots of a target for immediate commands: those are outside the command window (RFC 7143 §4.2.2.1), so
/// a peer that keeps the window full can still send this many. The next one is rejected.
pub const IMMEDIATE_TASKS_MAX: u32 = 8;

/// R2Ts outstanding for one task. MaxOutstandingR2T above this is not negotiated by us.
pub const R2T_OUTSTANDING_MAX: u32 = 16;

/// Bits of a Target Transfer Tag that name the R2T within its task.
pub const R2T_BITS: u32 = 4;

/// Bytes solicited by R2Ts and not yet arrived, over all tasks of a connection, by default. One R2T may always
/// be outstanding, however long it is.
pub const SOLICITED_BYTES_MAX: u32 = 64 << 20;

/// Task management requests in progress on one connection.
pub const MANAGEMENT_MAX: u32 = 8;

/// PDUs that are not commands' (NOP, text, reject, asynchronous, logout) queued and not yet handed out. The edge
/// takes everything after each PDU, so more than this is a peer that sends nothing but errors faster than the
/// edge sends: the connection is dropped.
pub const CONTROL_MAX: usize = 64;

/// Bytes of NOP ping data that are echoed. What is longer is cut, as RFC 7143 §11.18 permits.
pub const PING_DATA_MAX: usize = 4096;

/// Bytes of text a peer may send in one text request or response sequence to us as target.
pub const TEXT_REQUEST_MAX: usize = 8192;

/// Text in one text response of ours, bytes, however much the initiator takes at once.
pub const TEXT_SEGMENT_MAX: u32 = 64 << 10;

/// Bytes of a SendTargets answer we accept as initiator.
pub const TEXT_RESPONSE_MAX: usize = 1 << 20;

/// Targets in a SendTargets answer we accept as initiator, and addresses of one target.
pub const TARGETS_MAX: usize = 4096;

/// Addresses of one target in a SendTargets answer.
pub const ADDRESSES_MAX: usize = 64;

/// Bytes of sense data carried in a SCSI Response (SPC-5: at most 252).
pub const SENSE_MAX: usize = 252;

/// Bytes of data of one task that go out before another task's turn.
pub const TURN_BYTES: u32 = 256 << 10;

/// PDUs without data (responses, R2Ts) that go out in a row before a task with data has a turn.
pub const URGENT_RUN_MAX: u32 = 64;

/// Data segment of a login PDU (RFC 7143 §6.1: the default MaxRecvDataSegmentLength applies).
pub const LOGIN_SEGMENT_MAX: u32 = 8192;

/// Extended CDB: bytes beyond the 16 of the header. SPC's longest CDB is 260 bytes.
pub const EXTENDED_CDB_MAX: usize = 244;

const _: () = assert!(TASKS_MAX <= 1 << TASK_BITS);
const _: () = assert!(R2T_OUTSTANDING_MAX <= 1 << R2T_BITS);
// The generation in a tag has at least 16 bits, so that a stale tag is not mistaken for a live one.
const _: () = assert!(TASK_BITS + R2T_BITS <= 16);
const _: () = assert!(IMMEDIATE_TASKS_MAX < TASKS_MAX);
// Each management request is a bit in a task's mask.
const _: () = assert!(MANAGEMENT_MAX <= 8);
const _: () = assert!(CONTROL_MAX > MANAGEMENT_MAX as usize);
