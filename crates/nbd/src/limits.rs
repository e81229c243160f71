//! Everything that a server can make longer, and where it ends.

/// Requests on the wire at once.
pub const TASKS_MAX: usize = 64;
/// Longest string of the protocol: names, descriptions, error messages (proto, "Terminology").
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest payload of one option reply that is read, in bytes.
pub const OPTION_REPLY_BYTES_MAX: usize = 8192;
/// Replies to one option, until the server is taken for hostile.
pub const OPTION_REPLIES_MAX: u32 = 64;
/// Stretches of one read that have arrived and do not touch each other.
pub const STRETCHES_MAX: usize = 1024;
/// Extents of one block status reply that are kept; what follows is asked for again.
pub const STATUS_EXTENTS_MAX: usize = 64 << 10;
/// Extents that are remembered of what lies ahead.
pub const EXTENTS_MAX: usize = 128 << 10;
/// The largest minimum block size (proto, "Block size constraints").
pub const BLOCK_BYTES_MAX: u32 = 64 << 10;

const _: () = assert!(STRING_BYTES_MAX + 64 < OPTION_REPLY_BYTES_MAX);
const _: () = assert!(STATUS_EXTENTS_MAX <= EXTENTS_MAX);
const _: () = assert!(TASKS_MAX <= 1 << 16, "a cookie has 16 bits for the slot");
