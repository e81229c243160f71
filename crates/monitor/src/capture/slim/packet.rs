//! IP and TCP headers written anew, with other addresses and without what is not known.

use std::net::{IpAddr, SocketAddr};

use super::header::Numbers;
use crate::packet::{Options, Packet};

#[derive(Debug, Default)]
pub(super) struct Addresses {
    v4: Numbers<[u8; 4]>,
    v6: Numbers<[u8; 16]>,
}

impl Addresses {
    /// The n-th IPv4 address becomes the n-th of 10.0.0.0/8.
    fn v4(&mut self, address: [u8; 4]) -> [u8; 4] {
        let [_, a, b, c] = self.v4.of(address).to_be_bytes();
        [10, a, b, c]
    }

    /// The n-th IPv6 address becomes fd00::n.
    fn v6(&mut self, address: [u8; 16]) -> [u8; 16] {
        let mut out = [0; 16];
        out[0] = 0xfd;
        out[12..].copy_from_slice(&self.v6.of(address).to_be_bytes());
        out
    }
}

/// Appends the headers of `packet`; returns the packet's length on the wire with them.
pub(super) fn write(packet: &Packet<'_>, addresses: &mut Addresses, out: &mut Vec<u8>) -> u32 {
    let options = options(&packet.options);
    let tcp = 20 + options.len();
    let segment = tcp as u64 + u64::from(packet.payload_bytes);
    let total = match (packet.source.ip(), packet.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = segment + 20;
            let start = out.len();
            out.extend([0x45, packet.ecn & 3]);
            // 0 for more than 64 KiB: the length is then the frame's.
            out.extend(u16::try_from(total).unwrap_or(0).to_be_bytes());
            out.extend(packet.ip_id.unwrap_or(0).to_be_bytes());
            out.extend([0x40, 0, packet.hops, 6, 0, 0]);
            out.extend(addresses.v4(source.octets()));
            out.extend(addresses.v4(destination.octets()));
            let sum = checksum(&out[start..]);
            out[start + 10..start + 12].copy_from_slice(&sum);
            total
        }
        (source, destination) => {
            out.extend([0x60, (packet.ecn & 3) << 4, 0, 0]);
            out.extend(u16::try_from(segment).unwrap_or(0).to_be_bytes());
            out.extend([6, packet.hops]);
            out.extend(addresses.v6(octets(source)));
            out.extend(addresses.v6(octets(destination)));
            segment + 40
        }
    };
    transport(packet, &options, out);
    u32::try_from(total).unwrap_or(u32::MAX)
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The TCP header; its checksum is 0, as the payload is not there.
fn transport(packet: &Packet<'_>, options: &[u8], out: &mut Vec<u8>) {
    let port = |address: SocketAddr| address.port().to_be_bytes();
    out.extend(port(packet.source));
    out.extend(port(packet.destination));
    out.extend(packet.seq.to_be_bytes());
    out.extend(packet.ack.to_be_bytes());
    out.extend([(((20 + options.len()) / 4) << 4) as u8, packet.flags.0]);
    out.extend(packet.window.to_be_bytes());
    out.extend([0; 4]);
    out.extend(options);
}

/// The options that are known, at most 40 bytes, padded: others (Fast Open cookies, signatures, MPTCP) are left out.
fn options(options: &Options) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    if let Some(mss) = options.mss {
        out.extend([2, 4]);
        out.extend(mss.to_be_bytes());
    }
    if options.sack_permitted {
        out.extend([4, 2]);
    }
    if let Some((value, echo)) = options.timestamps {
        out.extend([8, 10]);
        out.extend(value.to_be_bytes());
        out.extend(echo.to_be_bytes());
    }
    if let Some(scale) = options.window_scale {
        out.extend([3, 3, scale]);
    }
    let room = (40 - out.len()).saturating_sub(2) / 8;
    let sacks = &options.sacks[..usize::from(options.sack_count).min(options.sacks.len()).min(room)];
    if !sacks.is_empty() {
        out.extend([5, 2 + 8 * sacks.len() as u8]);
        for (left, right) in sacks {
            out.extend(left.to_be_bytes());
            out.extend(right.to_be_bytes());
        }
    }
    out.resize(out.len().next_multiple_of(4), 1);
    out
}

/// RFC 1071, of a header whose checksum is 0.
fn checksum(header: &[u8]) -> [u8; 2] {
    let sum: u32 = header.chunks_exact(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}
