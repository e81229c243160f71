//! What a driver and its device do to bytes: gather, complete checksums, divide long segments, verify.

use inet::{HEADER_BYTES, Transmit, VNET_BYTES};

const ETHERNET: usize = 14;

/// A frame on its way: bytes from the Ethernet header on, and the payload of each segment if it was not divided.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) segment_bytes: u16,
    /// Whether checksums still have to be verified.
    pub(crate) was_on_wire: bool,
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| low.into())).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Offset of the TCP header, if the frame is TCP over IPv4 or IPv6 without extension headers.
pub(crate) fn tcp_at(frame: &[u8]) -> Option<usize> {
    match (word(frame, 12), frame.len()) {
        (0x0800, 54..) if frame[ETHERNET + 9] == 6 => {
            Some(ETHERNET + usize::from(frame[ETHERNET] & 15) * 4).filter(|at| at + 20 <= frame.len())
        }
        (0x86dd, 74..) if frame[ETHERNET + 6] == 6 => Some(ETHERNET + 40),
        _ => None,
    }
}

fn pseudo_header(frame: &[u8], tcp_bytes: usize) -> u64 {
    let addresses = if word(frame, 12) == 0x0800 {
        &frame[ETHERNET + 12..ETHERNET + 20]
    } else {
        &frame[ETHERNET + 8..ETHERNET + 40]
    };
    sum(addresses) + 6 + tcp_bytes as u64
}

/// The packet's own length, without padding.
fn ip_end(frame: &[u8]) -> usize {
    if word(frame, 12) == 0x0800 {
        ETHERNET + usize::from(word(frame, ETHERNET + 2))
    } else {
        ETHERNET + 40 + usize::from(word(frame, ETHERNET + 4))
    }
}

/// What a device verifies: false only for TCP whose checksum is wrong.
pub(crate) fn is_right(frame: &[u8]) -> bool {
    let Some(tcp) = tcp_at(frame) else { return true };
    let end = ip_end(frame);
    end <= frame.len() && end >= tcp + 20 && {
        let segment = &frame[tcp..end];
        fold(sum(segment) + pseudo_header(frame, segment.len())) == 0xffff
    }
}

/// The frame as it leaves the gather list; its checksum is completed as the engine asks for it.
pub(crate) fn gather(header: &[u8; HEADER_BYTES], transmit: &Transmit, payload: &[u8]) -> Packet {
    let mut bytes = header[VNET_BYTES..VNET_BYTES + usize::from(transmit.header_bytes)].to_vec();
    bytes.extend(payload);
    let (start, offset) = (usize::from(transmit.checksum_start), usize::from(transmit.checksum_offset));
    if start > 0 && transmit.segment_bytes == 0 {
        let checksum = !fold(sum(&bytes[start..]));
        put(&mut bytes, start + offset, checksum);
    }
    Packet { bytes, segment_bytes: transmit.segment_bytes, was_on_wire: false }
}

/// Divides a long segment as TSO does.
pub(crate) fn divide(packet: &Packet) -> Vec<Packet> {
    if packet.segment_bytes == 0 {
        return vec![Packet { was_on_wire: true, ..packet.clone() }];
    }
    let frame = &packet.bytes;
    let tcp = tcp_at(frame).expect("only TCP is divided");
    let start = tcp + usize::from(frame[tcp + 12] >> 4) * 4;
    let seq = u32::from_be_bytes(frame[tcp + 4..tcp + 8].try_into().unwrap());
    let parts: Vec<_> = frame[start..].chunks(packet.segment_bytes.into()).collect();
    let mut offset = 0_u32;
    let mut divided = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let mut bytes = frame[..start].to_vec();
        bytes.extend(*part);
        bytes[tcp + 4..tcp + 8].copy_from_slice(&seq.wrapping_add(offset).to_be_bytes());
        offset += part.len() as u32;
        if number + 1 < parts.len() {
            bytes[tcp + 13] &= !(1 | 8);
        }
        let length = bytes.len() - ETHERNET;
        if word(&bytes, 12) == 0x0800 {
            put(&mut bytes, ETHERNET + 2, length as u16);
            put(&mut bytes, ETHERNET + 10, 0);
            let checksum = !fold(sum(&bytes[ETHERNET..tcp]));
            put(&mut bytes, ETHERNET + 10, checksum);
        } else {
            put(&mut bytes, ETHERNET + 4, (length - 40) as u16);
        }
        put(&mut bytes, tcp + 16, 0);
        let checksum = !fold(sum(&bytes[tcp..]) + pseudo_header(&bytes, bytes.len() - tcp));
        put(&mut bytes, tcp + 16, checksum);
        divided.push(Packet { bytes, segment_bytes: 0, was_on_wire: true });
    }
    divided
}
