//! Bounds of all quantities that a server controls.

/// Bound of the requests on the wire.
pub const TASKS_MAX: usize = 64;
/// Longest string of the protocol, in bytes: names, descriptions, error messages (proto, "Terminology").
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest payload of an option reply, in bytes.
pub const OPTION_REPLY_BYTES_MAX: usize = 8192;
/// Bound of the replies to one option; more are a violation.
pub const OPTION_REPLIES_MAX: u32 = 64;
/// Bound of the disjoint ranges of one read that have arrived.
pub const RANGES_MAX: usize = 1024;
/// Bound of the extents kept of one block status reply; the rest is requested again.
pub const STATUS_EXTENTS_MAX: usize = 64 << 10;
/// Bound of the block status replies that list the ranges of a dirty bitmap.
pub const STATUS_REPLIES_MAX: u32 = 64 << 10;
/// Bound of the extents known ahead of use.
pub const EXTENTS_MAX: usize = 128 << 10;
/// Largest minimum block size, in bytes (proto, "Block size constraints").
pub const BLOCK_BYTES_MAX: u32 = 64 << 10;

const _: () = assert!(STRING_BYTES_MAX + 64 < OPTION_REPLY_BYTES_MAX);
const _: () = assert!(STATUS_EXTENTS_MAX <= EXTENTS_MAX);
const _: () = assert!(TASKS_MAX <= 1 << 16, "a cookie has 16 bits for the slot");
