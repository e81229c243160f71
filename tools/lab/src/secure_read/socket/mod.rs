//! Blocks over a bare TCP connection: requests of 8 bytes (the block's number), blocks in response.

mod ahead;
mod initiator;
mod records;
mod target;
mod tls;

pub(super) use ahead::RING_BYTES;
pub(crate) use initiator::SocketInitiator;
pub(crate) use target::SocketTarget;

/// Timeout of a silent peer, which counts as hung: an ended one closes the connection, and waiting for a processor
/// takes less on any machine.
const SILENCE_MAX: std::time::Duration = std::time::Duration::from_secs(300);
