//! Blocks over a bare TCP connection: requests of 8 bytes (the block's number), blocks in answer.

mod ahead;
mod initiator;
mod records;
mod target;
mod tls;

pub(super) use ahead::RING_BYTES;
pub(crate) use initiator::SocketInitiator;
pub(crate) use target::SocketTarget;

/// A peer that is silent for so long hangs: one that has ended is noticed at once, and one that has to wait for a processor
/// takes less, however busy the machine is.
const SILENCE_MAX: std::time::Duration = std::time::Duration::from_secs(300);
