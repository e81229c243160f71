//! TCP segmentation in software, for devices that do not divide frames.

use super::checksum::{Sum, TCP, locate};
use super::{ETHERNET_BYTES, HEADERS_MAX};

/// Of the flags in byte 13 of the header (RFC 9293 §3.1).
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
const TCP_BYTES: usize = 20;
const CHECKSUM: usize = 16;

/// Divides a TCP frame into frames with `segment_bytes` of payload, the last one perhaps less, with complete checksums,
/// and passes each to `each`. Returns false, without a call, if the frame is not TCP with that header.
///
/// Each header is written into `frame` right in front of its payload, over payload that has been passed on already.
pub(super) fn divide(
    frame: &mut [u8],
    header_bytes: usize,
    segment_bytes: usize,
    mut each: impl FnMut(&[u8]),
) -> bool {
    let mut header = [0; HEADERS_MAX];
    let (Some(header), Some(source)) = (header.get_mut(..header_bytes), frame.get(..header_bytes)) else {
        return false;
    };
    header.copy_from_slice(source);
    let Some(transport) = locate(header, frame.len()) else { return false };
    let tcp = transport.start;
    if transport.protocol != TCP || tcp + TCP_BYTES > header_bytes || segment_bytes == 0 {
        return false;
    }
    let is_v4 = header[ETHERNET_BYTES] >> 4 == 4;
    let sequence = u32::from_be_bytes([header[tcp + 4], header[tcp + 5], header[tcp + 6], header[tcp + 7]]);
    let identification = u16::from_be_bytes([header[18], header[19]]);
    let flags = header[tcp + 13];
    let payload = frame.len() - header_bytes;
    for (index, start) in (0..payload).step_by(segment_bytes).enumerate() {
        let length = segment_bytes.min(payload - start);
        let segment = &mut frame[start..start + header_bytes + length];
        segment[..header_bytes].copy_from_slice(header);
        if is_v4 {
            let total = (segment.len() - ETHERNET_BYTES) as u16;
            segment[16..18].copy_from_slice(&total.to_be_bytes());
            // Different in each datagram (RFC 6864 §4.3 asks it only of those that may be fragmented).
            segment[18..20].copy_from_slice(&identification.wrapping_add(index as u16).to_be_bytes());
            segment[24..26].fill(0);
            let mut sum = Sum::default();
            sum.add(&segment[ETHERNET_BYTES..tcp]);
            segment[24..26].copy_from_slice(&(!sum.fold()).to_ne_bytes());
        } else {
            let bytes = (segment.len() - tcp) as u16;
            segment[18..20].copy_from_slice(&bytes.to_be_bytes());
        }
        segment[tcp + 4..tcp + 8].copy_from_slice(&sequence.wrapping_add(start as u32).to_be_bytes());
        // FIN lies behind the last byte; PSH is of the last (RFC 9293 §3.9.1.2); CWR is of the first (RFC 3168 §6.1.2).
        let is_last = start + length == payload;
        let removed = if is_last { 0 } else { FIN | PSH } | if index == 0 { 0 } else { CWR };
        segment[tcp + 13] = flags & !removed;
        segment[tcp + CHECKSUM..tcp + CHECKSUM + 2].fill(0);
        let mut sum = transport.pseudo_header(segment.len() - tcp);
        sum.add(&segment[tcp..]);
        segment[tcp + CHECKSUM..tcp + CHECKSUM + 2].copy_from_slice(&(!sum.fold()).to_ne_bytes());
        each(segment);
    }
    true
}
