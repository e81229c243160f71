//! A frame of a TUN interface: the offload header (virtio, legacy layout), then an IP packet. A large TCP frame stands
//! for several segments; any range of them can be made a frame of its own.

use std::ops::Range;

/// Flags, GSO type, header length, GSO size, checksum start and checksum offset.
pub(super) const OFFLOAD_BYTES: usize = 10;
pub(super) const FRAME_BYTES_MAX: usize = OFFLOAD_BYTES + (64 << 10) + 64;
/// Bytes of each segment on the wire besides its IP packet: preamble, Ethernet header, checksum and gap.
pub(super) const ETHERNET_BYTES: usize = 38;

/// Offset of each field of the offload header, and their values (linux/virtio_net.h).
const FLAGS: usize = 0;
const KIND: usize = 1;
const SEGMENT_SIZE: Range<usize> = 4..6;
const CHECKSUM_START: Range<usize> = 6..8;
const CHECKSUM_OFFSET: Range<usize> = 8..10;
const NEEDS_CHECKSUM: u8 = 1;
const KIND_NONE: u8 = 0;
const KIND_TCP4: u8 = 1;
const KIND_TCP6: u8 = 4;
/// Flag of the kind: the first segment has CWR set.
const KIND_ECN: u8 = 0x80;

const TCP: u32 = 6;
const TCP_BYTES_MIN: usize = 20;
/// Offset of the flags in a TCP header, and of the checksum.
const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: usize = 16;
const FIN_AND_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    bytes: &'a [u8],
    large: Option<Large>,
}

/// Layout of a large TCP frame, checked against the frame's length.
#[derive(Clone, Copy, Debug)]
struct Large {
    /// Bytes of the IP header with its extensions.
    ip_bytes: usize,
    /// Bytes of IP and TCP header.
    header_bytes: usize,
    /// Payload bytes of each segment but the last.
    segment_bytes: usize,
}

impl<'a> Frame<'a> {
    /// `None` if there is no packet. A frame whose headers do not fit its length is one segment.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() > OFFLOAD_BYTES).then(|| Self { bytes, large: Large::parse(bytes) })
    }

    pub(super) fn packet(&self) -> &'a [u8] {
        &self.bytes[OFFLOAD_BYTES..]
    }

    pub(super) fn segments(&self) -> usize {
        self.large.map_or(1, |large| self.payload_bytes(large).div_ceil(large.segment_bytes).max(1))
    }

    /// Bytes on the wire of one segment.
    pub(super) fn wire_bytes(&self, segment: usize) -> u64 {
        let packet = match self.large {
            None => self.packet().len(),
            Some(large) => large.header_bytes + self.payload(large, segment..segment + 1).len(),
        };
        (packet + ETHERNET_BYTES) as u64
    }

    fn payload_bytes(&self, large: Large) -> usize {
        self.packet().len() - large.header_bytes
    }

    /// The range of the payload that these segments hold.
    fn payload(&self, large: Large, segments: Range<usize>) -> Range<usize> {
        let all = self.payload_bytes(large);
        (segments.start * large.segment_bytes).min(all)..(segments.end * large.segment_bytes).min(all)
    }

    /// The frame of a range of segments. Its TCP checksum is left to the kernel, as that of the whole frame was.
    pub(super) fn extract(&self, segments: Range<usize>) -> Vec<u8> {
        let count = self.segments();
        let Some(large) = self.large.filter(|_| segments != (0..count)) else { return self.bytes.to_vec() };
        let payload = self.payload(large, segments.clone());
        let mut frame = Vec::with_capacity(OFFLOAD_BYTES + large.header_bytes + payload.len());
        frame.extend_from_slice(&self.bytes[..OFFLOAD_BYTES + large.header_bytes]);
        frame.extend_from_slice(&self.packet()[large.header_bytes..][payload.clone()]);
        let (offload, packet) = frame.split_at_mut(OFFLOAD_BYTES);
        if segments.len() == 1 {
            offload[KIND] = KIND_NONE;
            offload[SEGMENT_SIZE].fill(0);
        }
        offload[FLAGS] |= NEEDS_CHECKSUM;
        offload[CHECKSUM_START].copy_from_slice(&(large.ip_bytes as u16).to_ne_bytes());
        offload[CHECKSUM_OFFSET].copy_from_slice(&(TCP_CHECKSUM as u16).to_ne_bytes());
        let pseudo = address_ip(packet, large.ip_bytes, segments.start);
        let tcp = &mut packet[large.ip_bytes..];
        let number = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        tcp[4..8].copy_from_slice(&number.wrapping_add(payload.start as u32).to_be_bytes());
        if segments.end < count {
            tcp[TCP_FLAGS] &= !FIN_AND_PSH;
        }
        if segments.start > 0 {
            tcp[TCP_FLAGS] &= !CWR;
            offload[KIND] &= !KIND_ECN;
        }
        tcp[TCP_CHECKSUM..TCP_CHECKSUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        frame
    }
}

impl Large {
    fn parse(frame: &[u8]) -> Option<Self> {
        let (offload, packet) = frame.split_at_checked(OFFLOAD_BYTES)?;
        let kind = offload[KIND] & !KIND_ECN;
        let segment_bytes = number(&offload[SEGMENT_SIZE]);
        if !matches!(kind, KIND_TCP4 | KIND_TCP6) || segment_bytes == 0 {
            return None;
        }
        let version = packet.first()? >> 4;
        let (ip_bytes, least) = match version {
            4 => (usize::from(packet[0] & 15) * 4, 20),
            6 => (number(&offload[CHECKSUM_START]), 40),
            _ => return None,
        };
        let tcp = packet.get(ip_bytes..).filter(|tcp| ip_bytes >= least && tcp.len() >= TCP_BYTES_MIN)?;
        let tcp_bytes = usize::from(tcp[12] >> 4) * 4;
        let fits = (TCP_BYTES_MIN..=tcp.len()).contains(&tcp_bytes);
        fits.then_some(Self { ip_bytes, header_bytes: ip_bytes + tcp_bytes, segment_bytes })
    }
}

/// A 16-bit field of the offload header, which is in the machine's byte order.
fn number(field: &[u8]) -> usize {
    usize::from(u16::from_ne_bytes([field[0], field[1]]))
}

/// Sets length, identification and checksum of the IP header for segment `index`; returns the sum of TCP's
/// pseudo-header.
fn address_ip(packet: &mut [u8], ip_bytes: usize, index: usize) -> u16 {
    let total = packet.len();
    let tcp_bytes = (total - ip_bytes) as u32;
    if packet[0] >> 4 == 4 {
        let identification = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(index as u16);
        packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        packet[4..6].copy_from_slice(&identification.to_be_bytes());
        packet[10..12].fill(0);
        let checksum = !sum(&packet[..ip_bytes], 0);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        sum(&packet[12..20], TCP + tcp_bytes)
    } else {
        packet[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
        sum(&packet[8..40], TCP + tcp_bytes)
    }
}

/// The one's complement sum of RFC 1071, without the final complement.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A large TCP frame with this payload, as the kernel gives it: a partial checksum, CWR, PSH and FIN set.
    pub(crate) fn large(version: u8, segment_bytes: u16, payload: &[u8]) -> Vec<u8> {
        let ip_bytes: usize = if version == 4 { 20 } else { 40 };
        let mut frame = vec![NEEDS_CHECKSUM, if version == 4 { KIND_TCP4 } else { KIND_TCP6 } | KIND_ECN];
        for field in [(ip_bytes + 32) as u16, segment_bytes, ip_bytes as u16, TCP_CHECKSUM as u16] {
            frame.extend_from_slice(&field.to_ne_bytes());
        }
        let mut packet = vec![0u8; ip_bytes + 32];
        if version == 4 {
            packet[..20].copy_from_slice(&[
                0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2,
            ]);
        } else {
            (packet[0], packet[6], packet[7]) = (0x60, 6, 64);
            packet[8..40].copy_from_slice(&[0xfd; 32]);
        }
        let tcp = &mut packet[ip_bytes..];
        tcp[..4].copy_from_slice(&[0x0c, 0xbc, 0x9c, 0x40]);
        tcp[4..8].copy_from_slice(&0xffff_ff00_u32.to_be_bytes());
        tcp[12..16].copy_from_slice(&[8 << 4, 0x99, 0xff, 0xff]);
        packet.extend_from_slice(payload);
        let pseudo = address_ip(&mut packet, ip_bytes, 0);
        packet[ip_bytes + TCP_CHECKSUM..][..2].copy_from_slice(&pseudo.to_be_bytes());
        frame.extend_from_slice(&packet);
        frame
    }

    /// The packets that this frame stands for on a wire: split by the book (RFC 9293, RFC 791), checksums complete.
    fn on_the_wire(frame: &[u8]) -> Vec<Vec<u8>> {
        use etherparse::{IpHeaders, TcpHeader};
        let parsed = Frame::parse(frame).unwrap();
        let (ip, rest) = IpHeaders::from_slice(parsed.packet()).unwrap();
        let (tcp, payload) = TcpHeader::from_slice(rest.payload).unwrap();
        let size = match number(&frame[SEGMENT_SIZE]) {
            0 => payload.len(),
            size => size,
        };
        let pieces: Vec<&[u8]> = payload.chunks(size).collect();
        let mut packets = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let (mut ip, mut tcp) = (ip.clone(), tcp.clone());
            tcp.sequence_number = tcp.sequence_number.wrapping_add((index * size) as u32);
            (tcp.cwr, tcp.psh, tcp.fin) = (
                tcp.cwr && index == 0,
                tcp.psh && index + 1 == pieces.len(),
                tcp.fin && index + 1 == pieces.len(),
            );
            ip.set_payload_len(tcp.header_len() + piece.len()).unwrap();
            match &mut ip {
                IpHeaders::Ipv4(header, _) => {
                    header.identification = header.identification.wrapping_add(index as u16);
                    header.header_checksum = header.calc_header_checksum();
                    tcp.checksum = tcp.calc_checksum_ipv4(header, piece).unwrap();
                }
                IpHeaders::Ipv6(header, _) => tcp.checksum = tcp.calc_checksum_ipv6(header, piece).unwrap(),
            }
            let mut packet = Vec::new();
            ip.write(&mut packet).unwrap();
            tcp.write(&mut packet).unwrap();
            packet.extend_from_slice(piece);
            packets.push(packet);
        }
        packets
    }

    /// Checks that the kernel would complete the checksums of the frame to right ones.
    fn assert_checksums(frame: &[u8]) {
        let parsed = Frame::parse(frame).unwrap();
        let start = number(&frame[CHECKSUM_START]);
        let mut packet = parsed.packet().to_vec();
        let checksum = !sum(&packet[start..], 0);
        packet[start + TCP_CHECKSUM..][..2].copy_from_slice(&checksum.to_be_bytes());
        let whole = etherparse::PacketHeaders::from_ip_slice(&packet).unwrap();
        let Some(etherparse::TransportHeader::Tcp(tcp)) = whole.transport else { panic!("no TCP") };
        match whole.net.unwrap() {
            etherparse::NetHeaders::Ipv4(ip, _) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(&ip, whole.payload.slice()).unwrap());
            }
            etherparse::NetHeaders::Ipv6(ip, _) => {
                assert_eq!(tcp.checksum, tcp.calc_checksum_ipv6(&ip, whole.payload.slice()).unwrap());
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn extracted_segments_are_those_of_a_reference_segmentation() {
        let payload: Vec<u8> = (0..5000u32).map(|at| (at * 7 + at / 251) as u8).collect();
        for version in [4, 6] {
            for bytes in [5000, 4 * 1000, 1001, 999] {
                let frame = large(version, 1000, &payload[..bytes]);
                let parsed = Frame::parse(&frame).unwrap();
                let (count, expected) = (parsed.segments(), on_the_wire(&frame));
                assert_eq!(count, expected.len());
                for start in 0..count {
                    for end in start + 1..=count {
                        let piece = parsed.extract(start..end);
                        assert_checksums(&piece);
                        assert_eq!(on_the_wire(&piece), expected[start..end], "{version}: {start}..{end}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_segment_pays_for_its_headers() {
        let frame = large(4, 1448, &[0; 2 * 1448 + 100]);
        let parsed = Frame::parse(&frame).unwrap();
        let wire: Vec<u64> = (0..parsed.segments()).map(|segment| parsed.wire_bytes(segment)).collect();
        assert_eq!(wire, [1538, 1538, 52 + 100 + 38]);
        let small = parsed.extract(2..3);
        assert_eq!(Frame::parse(&small).unwrap().wire_bytes(0), 52 + 100 + 38);
    }

    #[test]
    fn frames_with_wrong_headers_are_one_segment() {
        let frame = large(4, 1000, &[0; 5000]);
        let broken: [fn(&mut Vec<u8>); 7] = [
            |frame| frame.truncate(OFFLOAD_BYTES + 19),
            |frame| frame.truncate(OFFLOAD_BYTES + 39),
            |frame| frame[SEGMENT_SIZE].fill(0),
            |frame| frame[OFFLOAD_BYTES] = 0x54,
            |frame| frame[OFFLOAD_BYTES] = 0x41,
            |frame| frame[OFFLOAD_BYTES + 20 + 12] = 4 << 4,
            |frame| frame[KIND] = 3,
        ];
        for (index, change) in broken.iter().enumerate() {
            let mut frame = frame.clone();
            change(&mut frame);
            let parsed = Frame::parse(&frame).unwrap();
            assert_eq!(parsed.segments(), 1, "{index}");
            assert_eq!(parsed.extract(0..1), frame);
        }
        assert!(Frame::parse(&frame[..OFFLOAD_BYTES]).is_none());
    }
}
