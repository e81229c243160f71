//! Authenticated volumes: every block of 4096 bytes has a context (nonce and tag) in storage, and only the key makes a
//! block readable or unwritten.
//!
//! [`Volume`] decides which requests may run beside each other and in which order their writes reach the storage; it
//! holds no payload. [`Sealer`] encrypts and decrypts blocks. [`format()`] yields the writes of an empty volume. Read
//! docs/VOLUME.md section 2 before this code: it has the argument for the order of writes.

mod ahead;
mod batch;
mod cache;
mod context;
mod format;
mod grow;
mod journal;
mod keys;
mod layout;
mod ledger;
mod map;
mod pool;
mod reencrypt;
mod sealer;
mod superblock;
mod turns;
mod volume;

pub use context::{Context, Generation};
pub use format::format;
pub use grow::{GrowError, Room, RoomLedgerError};
pub use keys::Keys;
pub use layout::{Cipher, Layout, LayoutError, Unit};
pub use ledger::{LedgerError, format_ledger, ledger_bytes};
pub use reencrypt::{ReencryptError, Reencryption, ReencryptionProgress, Unverified};
pub use sealer::{Broken, Sealer};
pub use superblock::Superblock;
pub use volume::{
    Action, Candidates, Failure, Operation, OperationId, Outcome, Place, ReadError, Request, RequestId, Run,
    Source, State, Volume,
};

/// Bytes of a block, which is sealed as a whole.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a page of contexts or of the map.
pub const PAGE_BYTES: usize = 4096;
/// Storage keeps at least this many bytes whole.
pub const SECTOR_BYTES: usize = 512;
/// Longest read or write, in bytes.
pub const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Blocks of the memory in which a volume's writes wait for a barrier. The caller owns that memory, [`BLOCK_BYTES`] for
/// each slot.
pub const POOL_SLOTS: u32 = 16384;
/// Blocks that wait for one barrier: 32 MiB.
pub const BATCH_BLOCKS_MAX: usize = 8192;
/// Pages of contexts that the blocks of one batch may lie in. They stay in memory until the batch is written.
pub const BATCH_PAGES_MAX: usize = 1024;
/// Blocks that are written for the first time in groups that are already initialised, and wait for a flush.
pub const FRESH_BLOCKS_MAX: usize = 32768;
/// Pages of contexts that those blocks may lie in.
pub const FRESH_PAGES_MAX: usize = 1024;
/// Groups whose first blocks wait for a flush: 64 GiB, 40 GiB of AEGIS-256X4.
pub const PENDING_GROUPS_MAX: usize = 65536;
/// Of a volume with a ledger, whose log has two images of each page: pages of contexts that a round may overwrite, and
/// as many in which it writes blocks for the first time.
pub const LEDGER_PAGES_MAX: usize = 512;
/// Of a volume with a ledger, which keeps the tags of their pages in memory: groups whose first blocks wait for a flush.
pub const LEDGER_GROUPS_MAX: usize = 16384;
/// Discarded ranges that wait for a flush.
pub const DISCARDS_MAX: usize = 256;
/// Pages of contexts in memory that no request or batch needs at the moment: 16 MiB.
pub const CACHE_PAGES_MAX: usize = 4096;
/// Pages of contexts that are read ahead of a sequence of requests: those of 64 MiB (AEGIS-256X4: 40 MiB) of data, which
/// is more than a batch.
pub const AHEAD_PAGES_MAX: u64 = 256;
/// Pages with changes that may be written at any time; beyond this number they are.
pub const DIRTY_PAGES_MAX: usize = 1024;
/// Requests that may run at the same time; others wait.
pub const ACTIVE_MAX: usize = 256;
/// Operations of the storage that a volume has in flight.
pub const OPERATIONS_MAX: usize = 64;
/// Longest operation on contexts, map or journal headers, in bytes.
pub const OPERATION_BYTES_MAX: usize = 128 << 10;

const _: () = assert!(POOL_SLOTS as usize == 2 * BATCH_BLOCKS_MAX);
const _: () = assert!(2 * BATCH_PAGES_MAX + 2 * FRESH_PAGES_MAX <= CACHE_PAGES_MAX);
