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
    let header = headers::read(bytes, original_bytes).ok()?;
    Some(Packet {
        at_ns,
        frame,
        interface,
        source: header.source,
        destination: header.destination,
        seq: header.seq,
        ack: header.ack,
        flags: header.flags,
        window: header.window,
        options: header.options,
        ip_id: header.ip_id,
        hops: header.hops,
        ecn: header.ecn,
        payload_bytes: header.payload_bytes,
        payload: bytes.get(header.payload.clone()).unwrap_or_default(),
    })
}
