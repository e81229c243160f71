//! One direction of a connection: where its PDUs lie, and the payload of a packet with nothing but them.

use std::collections::VecDeque;

use iscsi::digest::{self, DIGEST_LENGTH};
use iscsi::wire::{BHS_LENGTH, Bhs, Opcode, field};

use super::header::Headers;
use super::text::Text;
use crate::event::PduStart;

/// Bytes of a TLS record's header, and the type of the handshake message in it.
const TLS_BYTES: u64 = 6;
/// The C bit of login and text PDUs (RFC 7143 §11.10.2, §11.12.2).
const CONTINUE: u8 = 0x40;

#[derive(Debug)]
struct Pdu {
    offset: u64,
    end: u64,
    /// `None`: the snap length cut it.
    header: Option<[u8; BHS_LENGTH]>,
    /// AHS, which is zeroed, and then the header digest, if there is one.
    ahs: u64,
    digest: Option<[u8; DIGEST_LENGTH]>,
    text: Option<TextRange>,
}

/// A data segment that is text, in offsets of the stream.
#[derive(Debug)]
struct TextRange {
    from: u64,
    to: u64,
    /// Where the text ended that it continues (C bit of the PDU before).
    before: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// In the order of the stream.
    pdus: VecDeque<Pdu>,
    /// All before it belongs to PDUs that are known.
    framed: Option<u64>,
    /// No further PDU will be found.
    is_closed: bool,
    pub(super) is_tls: bool,
    /// Whether PDUs have header digests; `None` until one shows it.
    has_digests: Option<bool>,
    /// Where the text of the last text PDU ends, if that has the C bit.
    continues: Option<u64>,
    text: Text,
    /// Where the text that was replaced last ended.
    text_at: u64,
}

impl Stream {
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether every PDU that begins before `end` is known, or will never be.
    pub(super) fn is_known(&self, end: u64) -> bool {
        self.is_closed || self.framed.is_some_and(|framed| framed >= end)
    }

    /// PDUs that begin from `offset` to `end` will never be known. Where one follows the PDU before, the part of its
    /// header that was captured may say how long it is.
    pub(super) fn pass(&mut self, offset: u64, end: u64) -> usize {
        let is_start = self.framed == Some(offset) && offset < end;
        if is_start {
            self.pdus.push_back(Pdu { offset, end, header: None, ahs: 0, digest: None, text: None });
        }
        self.framed = self.framed.max(Some(end));
        usize::from(is_start)
    }

    pub(super) fn start(&mut self, start: &PduStart, headers: &mut Headers) {
        let bhs = Bhs(&start.header);
        let (ahs, data) = (bhs.total_ahs_length() as u64, u64::from(bhs.data_segment_length()));
        let plain = BHS_LENGTH as u64 + ahs + data.next_multiple_of(4);
        let has_digest = self.has_digest(start.bytes.saturating_sub(plain), data);
        let header = headers.replace(&start.header);
        let digest =
            has_digest.then(|| digest::header(&header, &[0; iscsi::wire::AHS_LENGTH_MAX][..ahs as usize]));
        let text = self.text_of(start, BHS_LENGTH as u64 + ahs + if has_digest { 4 } else { 0 }, data);
        let end = start.offset.saturating_add(start.bytes);
        self.pdus.push_back(Pdu { offset: start.offset, end, header: Some(header), ahs, digest, text });
        self.framed = self.framed.max(Some(end));
    }

    /// By how much the PDU is longer than its segments: a data digest exists only with data.
    fn has_digest(&mut self, digests: u64, data: u64) -> bool {
        let has = match (digests, data) {
            (0, _) => false,
            (8, _) => true,
            (4, 0) => true,
            // One of two: as the PDUs without data said.
            _ => return self.has_digests.unwrap_or(false),
        };
        self.has_digests = Some(has);
        has
    }

    /// The text in a PDU, `at` bytes from its start.
    fn text_of(&mut self, start: &PduStart, at: u64, data: u64) -> Option<TextRange> {
        let opcode = Bhs(&start.header).opcode().ok()?;
        let is_text = matches!(
            opcode,
            Opcode::LoginRequest | Opcode::LoginResponse | Opcode::TextRequest | Opcode::TextResponse
        );
        if !is_text {
            return None;
        }
        let from = start.offset.saturating_add(at);
        let to = from.saturating_add(data);
        let continues = (start.header[field::FLAGS] & CONTINUE != 0).then_some(to);
        let before = std::mem::replace(&mut self.continues, continues);
        Some(TextRange { from, to, before })
    }

    /// Forgets PDUs that end at `offset` or before; returns how many.
    pub(super) fn forget(&mut self, offset: u64) -> usize {
        let before = self.pdus.len();
        while self.pdus.front().is_some_and(|pdu| pdu.end <= offset) {
            self.pdus.pop_front();
        }
        before - self.pdus.len()
    }

    pub(super) fn pdus(&self) -> usize {
        self.pdus.len()
    }

    /// Appends what stays of `payload`, which is at `offset`, up to the last byte that stays.
    pub(super) fn keep(&mut self, offset: u64, payload: &[u8], out: &mut Vec<u8>) {
        let mut kept = Kept { start: out.len(), offset, payload, out };
        let end = kept.end();
        if self.is_tls {
            kept.copy(offset, TLS_BYTES.min(end));
            return;
        }
        let first = self.pdus.partition_point(|pdu| pdu.end <= offset);
        let mut framed = end;
        for pdu in self.pdus.range(first..).take_while(|pdu| pdu.offset < end) {
            framed = pdu.end;
            let Some(header) = &pdu.header else {
                kept.beginning(pdu.offset);
                continue;
            };
            kept.put(pdu.offset, header);
            if let Some(digest) = pdu.digest {
                kept.put(pdu.offset.saturating_add(BHS_LENGTH as u64 + pdu.ahs), &digest);
            }
            if let Some(range) = &pdu.text {
                let (from, to) = (range.from.max(offset), range.to.min(end));
                // What the text goes on from: nothing, the text of the PDU before, or the packet before.
                let before = if from == range.from { range.before } else { Some(from) };
                match before {
                    None => self.text = Text::default(),
                    Some(before) if before != self.text_at => self.text.lost(),
                    Some(_) => {}
                }
                if let Some(bytes) = kept.copy(from, to) {
                    self.text.replace(bytes);
                    self.text_at = to;
                }
            }
        }
        // Digests that are not known to be any yet: where they end, the next header begins.
        if framed < end && end - framed <= 2 * DIGEST_LENGTH as u64 {
            kept.room(framed, end);
        }
    }
}

/// The payload of one packet that is written.
struct Kept<'a> {
    /// Where it begins in `out`.
    start: usize,
    offset: u64,
    payload: &'a [u8],
    out: &'a mut Vec<u8>,
}

impl Kept<'_> {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.payload.len() as u64)
    }

    /// Writes the part of `bytes`, which begin at `at` of the stream, that lies in the packet.
    fn put(&mut self, at: u64, bytes: &[u8]) {
        let (from, to) = (at.max(self.offset), at.saturating_add(bytes.len() as u64).min(self.end()));
        if let Some(room) = self.room(from, to) {
            room.copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
        }
    }

    /// Operation code and lengths of a header that is cut, if it is one.
    fn beginning(&mut self, at: u64) {
        let Some(first) = at.checked_sub(self.offset).and_then(|first| usize::try_from(first).ok()) else {
            return;
        };
        let is_header = self.payload.get(first).is_some_and(|byte| Opcode::parse(*byte).is_ok());
        if is_header {
            let end = at.saturating_add(field::LUN.start as u64).min(self.end());
            self.copy(at, end);
        }
    }

    /// Copies the captured bytes between two offsets of the stream, both in the packet.
    fn copy(&mut self, from: u64, to: u64) -> Option<&mut [u8]> {
        let payload = self.payload;
        let first = from.checked_sub(self.offset)? as usize;
        let room = self.room(from, to)?;
        room.copy_from_slice(&payload[first..first + room.len()]);
        Some(room)
    }

    /// Bytes of the output for a range of the stream in the packet, with zeros before them; `None` if it is empty.
    fn room(&mut self, from: u64, to: u64) -> Option<&mut [u8]> {
        if from >= to {
            return None;
        }
        let first = self.start + (from - self.offset) as usize;
        let last = self.start + (to - self.offset) as usize;
        if self.out.len() < last {
            self.out.resize(last, 0);
        }
        Some(&mut self.out[first..last])
    }
}
