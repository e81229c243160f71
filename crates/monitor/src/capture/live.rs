//! Packets that were not read from a capture but from a packet socket.

use super::headers;
use crate::packet::Packet;

/// The TCP segment in `bytes`, which begin with an IP header; `original_bytes` is the packet's length on the wire.
/// `None` if it is none.
pub(crate) fn live(
    bytes: &[u8],
    original_bytes: usize,
    at_ns: u64,
    frame: u64,
    interface: u32,
) -> Option<Packet<'_>> {
    Some(headers::read(bytes, original_bytes).ok()?.packet(bytes, at_ns, frame, interface))
}
