//! Blocks over a bare TCP connection: requests of 8 bytes (the block's number), blocks in answer.

mod ahead;
mod initiator;
mod records;
mod target;
mod tls;

pub(super) use ahead::RING_BYTES;
pub(crate) use initiator::SocketInitiator;
pub(crate) use target::SocketTarget;

/// A peer that is silent for so long has failed.
const SILENCE_MAX: std::time::Duration = std::time::Duration::from_secs(20);
