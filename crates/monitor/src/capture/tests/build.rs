//! Frames and capture files, built byte by byte.

use std::io::{Cursor, Write};

use crate::capture::{CaptureError, Counts, Note, Reader};

/// TCP header with `options` (padded by the caller) and `payload`: ports 40000 to 3260, seq 1000, ack 2000, ACK and PSH.
pub(super) fn tcp(options: &[u8], payload: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let words = 5 + options.len() / 4;
    let mut bytes = vec![0x9c, 0x40, 0x0c, 0xbc, 0, 0, 3, 0xe8, 0, 0, 7, 0xd0];
    bytes.extend([(words as u8) << 4, 0x18, 0x12, 0x34, 0, 0, 0, 0]);
    bytes.extend(options);
    bytes.extend(payload);
    bytes
}

/// IPv4 packet from 10.1.2.3 to 10.4.5.6, identification 77, TTL 63, ECN 3.
pub(super) fn ipv4(options: &[u8], protocol: u8, inner: &[u8]) -> Vec<u8> {
    let words = 5 + options.len() / 4;
    let total = u16::try_from(words * 4 + inner.len()).unwrap_or(0).to_be_bytes();
    let mut bytes = vec![0x40 | words as u8, 3, total[0], total[1], 0, 77, 0x40, 0, 63, protocol, 0, 0];
    bytes.extend([10, 1, 2, 3, 10, 4, 5, 6]);
    bytes.extend(options);
    bytes.extend(inner);
    bytes
}

/// IPv6 packet from fe80::1 to fe80::2, hop limit 61, ECN 2; `inner` begins with extension headers, if any.
pub(super) fn ipv6(next: u8, inner: &[u8]) -> Vec<u8> {
    let length = u16::try_from(inner.len()).unwrap_or(0).to_be_bytes();
    let mut bytes = vec![0x60, 0x20, 0, 0, length[0], length[1], next, 61];
    for last in [1, 2] {
        bytes.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    bytes.extend(inner);
    bytes
}

pub(super) fn ethernet(kind: u16, inner: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    bytes.extend(kind.to_be_bytes());
    bytes.extend(inner);
    bytes
}

/// One frame of a file to be built.
#[derive(Clone)]
pub(super) struct Stamped {
    pub(super) at_ns: u64,
    pub(super) original: usize,
    pub(super) bytes: Vec<u8>,
}

impl Stamped {
    pub(super) fn whole(at_ns: u64, bytes: Vec<u8>) -> Self {
        Self { at_ns, original: bytes.len(), bytes }
    }

    pub(super) fn cut(mut self, snap: usize) -> Self {
        self.bytes.truncate(snap);
        self
    }
}

fn word(value: u32, big: bool) -> [u8; 4] {
    if big { value.to_be_bytes() } else { value.to_le_bytes() }
}

fn half(value: u16, big: bool) -> [u8; 2] {
    if big { value.to_be_bytes() } else { value.to_le_bytes() }
}

pub(super) fn pcap(big: bool, nanoseconds: bool, link: u16, frames: &[Stamped]) -> Vec<u8> {
    let mut out = word(if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }, big).to_vec();
    out.extend([half(2, big), half(4, big)].concat());
    out.extend([0; 8]);
    out.extend([word(262_144, big), word(link.into(), big)].concat());
    for frame in frames {
        let part = frame.at_ns % 1_000_000_000;
        out.extend(word((frame.at_ns / 1_000_000_000) as u32, big));
        out.extend(word(if nanoseconds { part } else { part / 1000 } as u32, big));
        out.extend([word(frame.bytes.len() as u32, big), word(frame.original as u32, big)].concat());
        out.extend(&frame.bytes);
    }
    out
}

pub(super) fn block(kind: u32, big: bool, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let length = word(padded as u32 + 12, big);
    let mut out = [word(kind, big), length].concat();
    out.extend(body);
    out.resize(8 + padded, 0);
    out.extend(length);
    out
}

pub(super) fn section(big: bool) -> Vec<u8> {
    let body = [&word(0x1a2b_3c4d, big)[..], &half(1, big), &half(0, big), &[0xff; 8]].concat();
    block(0x0a0d_0d0a, big, &body)
}

/// `unit` and `offset_s` as in if_tsresol and if_tsoffset.
pub(super) fn interface(big: bool, link: u16, unit: Option<u8>, offset_s: Option<i64>) -> Vec<u8> {
    let mut body = [&half(link, big)[..], &[0, 0], &word(0, big)].concat();
    // A name before them, of a length that needs padding.
    body.extend([&half(2, big)[..], &half(5, big), b"eth10\0\0\0"].concat());
    if let Some(unit) = unit {
        body.extend([&half(9, big)[..], &half(1, big), &[unit, 0, 0, 0]].concat());
    }
    if let Some(seconds) = offset_s {
        let value = if big { seconds.to_be_bytes() } else { seconds.to_le_bytes() };
        body.extend([&half(14, big)[..], &half(8, big), &value].concat());
    }
    body.extend([0; 4]);
    block(1, big, &body)
}

pub(super) fn enhanced(big: bool, interface: u32, ticks: u64, frame: &Stamped) -> Vec<u8> {
    let mut body = [word(interface, big), word((ticks >> 32) as u32, big), word(ticks as u32, big)].concat();
    body.extend([word(frame.bytes.len() as u32, big), word(frame.original as u32, big)].concat());
    body.extend(&frame.bytes);
    block(6, big, &body)
}

pub(super) fn pcapng(link: u16, frames: &[Stamped]) -> Vec<u8> {
    let mut out = [section(false), interface(false, link, Some(9), None)].concat();
    frames.iter().for_each(|frame| out.extend(enhanced(false, 0, frame.at_ns, frame)));
    out
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// What a reader yields: everything of a packet as text, so that expectations are data.
pub(super) fn read(file: &[u8]) -> Result<(Vec<String>, Counts, Vec<Note>), CaptureError> {
    let mut reader = Reader::new(Cursor::new(file.to_vec()))?;
    let mut found = Vec::new();
    while let Some(packet) = reader.next()? {
        let options = packet.options;
        found.push(format!(
            "{} if{} {}>{} at {} seq {} ack {} {:02x} win {} id {:?} hops {} ecn {} mss {:?} ws {:?} sp {} ts {:?} sack {:?} {}+{:?}",
            packet.frame,
            packet.interface,
            packet.source,
            packet.destination,
            packet.at_ns,
            packet.seq,
            packet.ack,
            packet.flags.0,
            packet.window,
            packet.ip_id,
            packet.hops,
            packet.ecn,
            options.mss,
            options.window_scale,
            u8::from(options.sack_permitted),
            options.timestamps,
            &options.sacks[..options.sack_count.into()],
            packet.payload_bytes,
            packet.payload.escape_ascii().to_string(),
        ));
    }
    Ok((found, reader.counts(), reader.notes()))
}
