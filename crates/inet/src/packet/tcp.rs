//! The TCP header and its options (RFC 9293 §3.1 and §3.2).

use super::{DropReason, IpHeader, Result, TCP_BYTES_MAX, be16, be32, endpoint, seq};
use crate::{Endpoint, SeqNumber};

const FIXED_BYTES: usize = 20;
const OPTIONS_BYTES_MAX: usize = TCP_BYTES_MAX - FIXED_BYTES;
/// Offset of the checksum.
pub(super) const CHECKSUM: usize = 16;
/// Ranges of selective acknowledgement in one segment (RFC 2018 §3).
pub const SACK_RANGES_MAX: usize = 4;
/// RFC 7323 §2.3: a larger one counts as this.
const WINDOW_SCALE_MAX: u8 = 14;

/// Kinds of options.
mod option {
    pub(super) const END: u8 = 0;
    pub(super) const NO_OPERATION: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
}
/// The usual alignment of timestamps (RFC 7323, appendix A).
const ALIGNED_TIMESTAMPS: [u8; 4] = [option::NO_OPERATION, option::NO_OPERATION, option::TIMESTAMPS, 10];

/// Control bits of a segment (RFC 9293 §3.1). Those of ECN are neither used nor reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Flags(pub u8);

impl Flags {
    pub const FIN: Self = Self(0x01);
    pub const SYN: Self = Self(0x02);
    pub const RST: Self = Self(0x04);
    pub const PSH: Self = Self(0x08);
    pub const ACK: Self = Self(0x10);
    pub const URG: Self = Self(0x20);
    const ALL: u8 = 0x3f;

    /// All bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What the headers of a segment say, received or to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    pub source: Endpoint,
    pub destination: Endpoint,
    pub seq: SeqNumber,
    /// Means something if `flags` has ACK; 0 otherwise.
    pub ack: SeqNumber,
    pub flags: Flags,
    /// As on the wire: not scaled.
    pub window: u16,
    pub urgent: u16,
    /// Only of a SYN, as the next two.
    pub mss: Option<u16>,
    /// At most 14.
    pub window_scale: Option<u8>,
    pub has_sack_permitted: bool,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// The first `sack_count` are ranges, left edge and right edge.
    pub sack: [(SeqNumber, SeqNumber); SACK_RANGES_MAX],
    pub sack_count: u8,
    /// From the Ethernet header to the first byte of payload. `emit_tcp` does not look at it.
    pub payload_start: u32,
    pub payload_bytes: u32,
}

impl TcpHeader {
    /// Of the TCP header with its options, bytes.
    pub fn tcp_bytes(&self) -> usize {
        FIXED_BYTES + self.options_bytes_but_sack() + self.sack_bytes()
    }

    /// Payload and the sequence numbers of SYN and FIN (SEG.LEN of RFC 9293 §3.3.1).
    pub fn sequence_length(&self) -> u32 {
        self.payload_bytes + u32::from(self.flags.has(Flags::SYN)) + u32::from(self.flags.has(Flags::FIN))
    }

    fn options_bytes_but_sack(&self) -> usize {
        let timestamps =
            if self.timestamps.is_some() { 12 } else { 4 * usize::from(self.has_sack_permitted) };
        4 * usize::from(self.mss.is_some()) + timestamps + 4 * usize::from(self.window_scale.is_some())
    }

    /// Ranges for which there is room.
    fn sack_fitting(&self) -> usize {
        let room = OPTIONS_BYTES_MAX - self.options_bytes_but_sack();
        usize::from(self.sack_count).min(SACK_RANGES_MAX).min(room.saturating_sub(4) / 8)
    }

    fn sack_bytes(&self) -> usize {
        if self.sack_count == 0 {
            return 0;
        }
        match self.sack_fitting() {
            0 => 0,
            ranges => 4 + 8 * ranges,
        }
    }
}

/// The bytes of a TCP header whose lengths are right.
pub(super) struct Segment<'a> {
    fixed: &'a [u8; FIXED_BYTES],
    options: &'a [u8],
}

impl<'a> Segment<'a> {
    #[inline]
    pub(super) fn new(frame: &'a [u8], ip: &IpHeader) -> Result<Self> {
        let start = ip.payload_start as usize;
        if ip.payload_bytes < FIXED_BYTES as u32 {
            return Err(DropReason::Malformed);
        }
        let fixed: &[u8; FIXED_BYTES] =
            frame.get(start..).and_then(<[u8]>::first_chunk).ok_or(DropReason::TooLong)?;
        let header_bytes = usize::from(fixed[12] >> 4) * 4;
        if header_bytes < FIXED_BYTES || header_bytes as u32 > ip.payload_bytes {
            return Err(DropReason::Malformed);
        }
        let options = frame.get(start + FIXED_BYTES..start + header_bytes).ok_or(DropReason::TooLong)?;
        Ok(Self { fixed, options })
    }

    #[inline]
    pub(super) fn header(&self, ip: &IpHeader) -> TcpHeader {
        let Self { fixed, options } = *self;
        let header_bytes = (FIXED_BYTES + options.len()) as u32;
        let flags = Flags(fixed[13] & Flags::ALL);
        // Of almost every segment.
        let is_aligned = options.len() == 12 && options[..4] == ALIGNED_TIMESTAMPS;
        let header = TcpHeader {
            source: endpoint(ip.source, fixed, 0),
            destination: endpoint(ip.destination, fixed, 2),
            seq: seq(fixed, 4),
            ack: if flags.has(Flags::ACK) { seq(fixed, 8) } else { SeqNumber(0) },
            flags,
            window: be16(fixed, 14),
            urgent: be16(fixed, 18),
            payload_start: ip.payload_start + header_bytes,
            payload_bytes: ip.payload_bytes - header_bytes,
            timestamps: is_aligned.then(|| (be32(options, 4), be32(options, 8))),
            ..TcpHeader::default()
        };
        if is_aligned || options.is_empty() { header } else { parse_options(options, header) }
    }
}

/// Unknown options are skipped (RFC 9293 §3.2, MUST-6). One with an impossible length ends the list, as in Linux
/// (MUST-7); options before it count.
#[inline(never)]
fn parse_options(mut rest: &[u8], mut header: TcpHeader) -> TcpHeader {
    let is_syn = header.flags.has(Flags::SYN);
    loop {
        let (kind, length) = match *rest {
            [option::NO_OPERATION, ..] => {
                rest = &rest[1..];
                continue;
            }
            [] | [option::END, ..] | [_] => return header,
            [kind, length, ..] => (kind, usize::from(length)),
        };
        let Some((option, behind)) = rest.split_at_checked(length) else { return header };
        let Some(body) = option.get(2..) else { return header };
        rest = behind;
        match (kind, body.len()) {
            (option::MSS, 2) if is_syn => header.mss = Some(be16(body, 0)),
            (option::WINDOW_SCALE, 1) if is_syn => {
                header.window_scale = Some(body[0].min(WINDOW_SCALE_MAX));
            }
            (option::SACK_PERMITTED, 0) if is_syn => header.has_sack_permitted = true,
            (option::TIMESTAMPS, 8) => header.timestamps = Some((be32(body, 0), be32(body, 4))),
            // RFC 2018 §3: 8 * n + 2 bytes.
            (option::SACK, 8 | 16 | 24 | 32) => {
                header.sack_count = (body.len() / 8) as u8;
                for (range, words) in header.sack.iter_mut().zip(body.as_chunks::<8>().0) {
                    *range = (seq(words, 0), seq(words, 4));
                }
            }
            _ => {}
        }
    }
}

/// Writes the header into `bytes`, which are as long as `tcp_bytes` says.
pub(super) fn emit(bytes: &mut [u8], header: &TcpHeader, checksum: u16) {
    let data_offset = (bytes.len() / 4) as u8;
    let (fixed, options) = bytes.split_first_chunk_mut::<FIXED_BYTES>().expect("room for the fixed header");
    fixed[0..2].copy_from_slice(&header.source.port.to_be_bytes());
    fixed[2..4].copy_from_slice(&header.destination.port.to_be_bytes());
    fixed[4..8].copy_from_slice(&header.seq.0.to_be_bytes());
    fixed[8..12].copy_from_slice(&header.ack.0.to_be_bytes());
    fixed[12] = data_offset << 4;
    fixed[13] = header.flags.0;
    fixed[14..16].copy_from_slice(&header.window.to_be_bytes());
    fixed[CHECKSUM..18].copy_from_slice(&checksum.to_be_bytes());
    fixed[18..20].copy_from_slice(&header.urgent.to_be_bytes());
    if options.is_empty() {
        return;
    }
    // Of almost every segment.
    if let (Some((value, echo)), 12, false) = (header.timestamps, options.len(), header.has_sack_permitted) {
        options[..4].copy_from_slice(&ALIGNED_TIMESTAMPS);
        options[4..8].copy_from_slice(&value.to_be_bytes());
        options[8..12].copy_from_slice(&echo.to_be_bytes());
        return;
    }
    let mut rest = options;
    if let Some(mss) = header.mss {
        let [high, low] = mss.to_be_bytes();
        put(&mut rest, [option::MSS, 4, high, low]);
    }
    let permitted = [option::SACK_PERMITTED, 2];
    match (header.timestamps, header.has_sack_permitted) {
        (Some((value, echo)), has_sack_permitted) => {
            let mut kinds = ALIGNED_TIMESTAMPS;
            if has_sack_permitted {
                kinds[..2].copy_from_slice(&permitted);
            }
            put(&mut rest, kinds);
            put(&mut rest, value.to_be_bytes());
            put(&mut rest, echo.to_be_bytes());
        }
        (None, true) => {
            put(&mut rest, [option::NO_OPERATION, option::NO_OPERATION, permitted[0], permitted[1]]);
        }
        (None, false) => {}
    }
    if let Some(scale) = header.window_scale {
        put(&mut rest, [option::NO_OPERATION, option::WINDOW_SCALE, 3, scale]);
    }
    let ranges = rest.len() / 8;
    if ranges > 0 {
        put(&mut rest, [option::NO_OPERATION, option::NO_OPERATION, option::SACK, 2 + 8 * ranges as u8]);
        for (left, right) in &header.sack[..ranges] {
            put(&mut rest, left.0.to_be_bytes());
            put(&mut rest, right.0.to_be_bytes());
        }
    }
}

fn put(rest: &mut &mut [u8], word: [u8; 4]) {
    let (here, behind) = std::mem::take(rest).split_at_mut(4);
    here.copy_from_slice(&word);
    *rest = behind;
}
