//! The Internet checksum (RFC 1071) in software, for devices that do not verify or complete it.

use super::ETHERNET_BYTES;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const ICMPV6: u8 = 58;
/// Options before another header (RFC 8200 §4.3).
const HOP_BY_HOP: u8 = 0;

const IPV6_BYTES: usize = 40;
/// Of a frame, enough for Ethernet and IP: IPv4 with all its options.
const NETWORK_BYTES_MAX: usize = ETHERNET_BYTES + 60;

/// A one's complement sum of 16-bit words. Its words have the machine's byte order, which RFC 1071 §2 (B) allows: only
/// the result is stored, in the same order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// Below 2^48: each addition is folded to 33 bits.
    sum: u64,
    /// An odd number of bytes has been added.
    is_odd: bool,
}

impl Sum {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let sum = fold(words(bytes));
        // Bytes that begin at an odd place count in swapped order, RFC 1071 §2 (B).
        self.sum += u64::from(if self.is_odd { sum.swap_bytes() } else { sum });
        self.is_odd ^= bytes.len() % 2 == 1;
    }

    /// A word in host order; at an even place.
    pub(super) fn add_word(&mut self, word: u16) {
        self.sum += u64::from(word.to_be());
    }

    /// The sum in 16 bits, in the machine's order: store it by `to_ne_bytes`, complemented for a checksum.
    pub(super) fn fold(self) -> u16 {
        fold(self.sum)
    }

    /// Whether the bytes that were summed contain their own right checksum.
    pub(super) fn is_right(self) -> bool {
        self.fold() == 0xffff
    }
}

fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Sum of the 32-bit words, by lanes that the compiler turns into vectors; 2^32 of them fit.
fn words(bytes: &[u8]) -> u64 {
    const LANES: usize = 8;
    let mut lanes = [0u64; LANES];
    let (chunks, rest) = bytes.as_chunks::<{ LANES * 4 }>();
    for chunk in chunks {
        let (words, _) = chunk.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let (words, rest) = rest.as_chunks::<4>();
    let mut sum: u64 = lanes.iter().sum();
    sum += words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(last))
}

/// Where in a frame the transport's header and payload lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transport {
    pub(super) protocol: u8,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Of addresses and protocol; the length is missing.
    pub(super) addresses: Sum,
}

impl Transport {
    /// With the length: RFC 9293 §3.1, RFC 8200 §8.1; of ICMP for IPv4 nothing, RFC 792.
    pub(super) fn pseudo_header(&self, length: usize) -> Sum {
        let mut sum = Sum::default();
        if self.protocol != ICMP {
            sum = self.addresses;
            sum.add_word(length as u16);
        }
        sum
    }
}

/// Finds the transport of an IP packet that is whole; `None` for what has none here: other kinds, fragments, other
/// extension headers than one of hop-by-hop options, wrong lengths. `header` is the start of the frame, `frame_bytes` its length.
pub(super) fn locate(header: &[u8], frame_bytes: usize) -> Option<Transport> {
    let kind = u16::from_be_bytes(*header.get(12..)?.first_chunk()?);
    let ip = header.get(ETHERNET_BYTES..)?;
    let mut addresses = Sum::default();
    let (protocol, header_bytes, length) = match kind {
        ETHERTYPE_IPV4 => {
            let ip: &[u8; 20] = ip.first_chunk()?;
            let header_bytes = usize::from(ip[0] & 0xf) * 4;
            let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
            if ip[0] >> 4 != 4 || header_bytes < ip.len() || fragment != 0 {
                return None;
            }
            addresses.add(&ip[12..20]);
            (ip[9], header_bytes, usize::from(u16::from_be_bytes([ip[2], ip[3]])))
        }
        ETHERTYPE_IPV6 => {
            let (ip, behind) = ip.split_first_chunk::<IPV6_BYTES>()?;
            if ip[0] >> 4 != 6 {
                return None;
            }
            addresses.add(&ip[8..40]);
            let length = IPV6_BYTES + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            match ip[6] {
                // Queries of multicast listeners have one (RFC 3810 §5).
                HOP_BY_HOP => {
                    let options: &[u8; 2] = behind.first_chunk()?;
                    (options[0], IPV6_BYTES + 8 * (1 + usize::from(options[1])), length)
                }
                protocol => (protocol, IPV6_BYTES, length),
            }
        }
        _ => return None,
    };
    let (start, end) = (ETHERNET_BYTES + header_bytes, ETHERNET_BYTES + length);
    let is_known = match kind {
        ETHERTYPE_IPV4 => matches!(protocol, TCP | ICMP),
        _ => matches!(protocol, TCP | ICMPV6),
    };
    if !is_known || start > end || end > frame_bytes {
        return None;
    }
    addresses.add_word(protocol.into());
    Some(Transport { protocol, start, end, addresses })
}

/// Whether the checksum of TCP, ICMP or ICMPv6 in a frame is right; `None` if it has none of these. The frame lies in
/// two parts, the second may be empty.
pub(super) fn verify(parts: [&[u8]; 2]) -> Option<bool> {
    let [head, tail] = parts;
    let transport = locate(&head[..head.len().min(NETWORK_BYTES_MAX)], head.len() + tail.len())?;
    let mut sum = transport.pseudo_header(transport.end - transport.start);
    let in_head = transport.end.min(head.len());
    sum.add(head.get(transport.start..in_head)?);
    sum.add(&tail[..transport.end - in_head]);
    Some(sum.is_right())
}

/// Completes a partial checksum: bytes `start..` are summed, the result is stored at `start + offset`, whose content is
/// the sum of the pseudo-header. Returns false if that place is not in the frame.
pub(super) fn complete(frame: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(transport) = frame.get_mut(start..) else { return false };
    let mut sum = Sum::default();
    sum.add(transport);
    let Some(place) = transport.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) else { return false };
    *place = (!sum.fold()).to_ne_bytes();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071 §1 by the letter: big-endian words, a last odd byte padded with zero.
    fn simple(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(length)
        .collect()
    }

    #[test]
    fn rfc_1071_section_3_example() {
        let mut sum = Sum::default();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(u16::from_be(sum.fold()), 0xddf2);
    }

    #[test]
    fn sums_of_all_lengths_and_of_parts_are_those_of_the_simple_way() {
        let bytes = noise(300);
        for length in 0..bytes.len() {
            for cut in [0, 1, 2, 31, 32, 33, length / 2, length] {
                let cut = cut.min(length);
                let mut sum = Sum::default();
                sum.add(&bytes[..cut]);
                sum.add(&bytes[cut..length]);
                assert_eq!(u16::from_be(sum.fold()), simple(&bytes[..length]), "{cut} of {length}");
            }
        }
    }

    #[test]
    fn the_largest_words_do_not_overflow() {
        let mut sum = Sum::default();
        for _ in 0..100 {
            sum.add(&vec![0xff; 65_535]);
            sum.add(&[0xff]);
        }
        assert_eq!(sum.fold(), 0xffff);
    }

    #[test]
    #[ignore = "prints a measurement: cargo test --release -p hikyaku-net --lib cost_of_sums -- --ignored --nocapture"]
    fn cost_of_sums() {
        for length in [64, 1460, 65_160] {
            let bytes = noise(length);
            let rounds = (if cfg!(debug_assertions) { 4_000_000 } else { 400_000_000 }) / length;
            let begin = std::time::Instant::now();
            let mut all = 0u64;
            for _ in 0..rounds {
                let mut sum = Sum::default();
                sum.add(std::hint::black_box(&bytes));
                all += u64::from(sum.fold());
            }
            let took = begin.elapsed();
            std::hint::black_box(all);
            let (per, total) = (took.as_nanos() / rounds as u128, (rounds * length) as f64);
            println!("{length:6} B: {per:5} ns, {:5.1} GB/s", total / took.as_secs_f64() / 1e9);
        }
    }
}
