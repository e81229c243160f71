//! One direction of a connection: which command each packet's bytes belong to.
//!
//! A packet's [`crate::event::Segment`] precedes the starts of the PDUs within it. Bytes beyond the last PDU that
//! is known to have started wait as pieces until its successor starts; all others are counted immediately.

use std::collections::VecDeque;
use std::ops::Range;

use iscsi::wire::{BHS_LENGTH, Bhs};

use super::table::Key;
use crate::event::PduStart;
use crate::limits::{PDUS_STARTED_MAX, PIECES_WAITING_MAX};

/// Payload of one packet, or the rest of it that no started PDU covers yet.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) span: Range<u64>,
    pub(super) at_ns: u64,
    pub(super) frame: u64,
    pub(super) mss: u16,
}

/// A PDU that has started and not ended.
#[derive(Clone, Debug)]
pub(super) struct Pdu {
    pub(super) span: Range<u64>,
    /// Its data segment, without padding and digests.
    data: Range<u64>,
    /// Bytes of `data` that have passed.
    passed: u64,
    /// The command whose data it carries.
    pub(super) task: Option<Key>,
    pub(super) header: [u8; BHS_LENGTH],
}

impl Pdu {
    /// Data that has passed without being captured, when the PDU has ended.
    pub(super) fn missing_bytes(&self) -> u64 {
        (self.data.end - self.data.start).saturating_sub(self.passed)
    }
}

/// Bytes of one packet that belong to the data of one command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    pub(super) at_ns: u64,
    pub(super) frame: u64,
    pub(super) mss: u16,
    /// Headers and padding included.
    pub(super) wire_bytes: u64,
    pub(super) data_bytes: u64,
    /// Stream offset after them.
    pub(super) end: u64,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    pieces: VecDeque<Piece>,
    pdus: VecDeque<Pdu>,
    /// End of the last PDU that started.
    framed_until: u64,
    passed_until: u64,
    is_opaque: bool,
    /// Some headers were not captured, or are not found.
    is_patchy: bool,
}

/// Bytes without the start of a PDU from which on headers count as not found.
const WAITING_BYTES_MAX: u64 = 64 << 10;

impl Stream {
    /// Whether PDUs of this direction may have passed unseen.
    pub(super) fn is_patchy(&self) -> bool {
        let waiting = self.pieces.front().zip(self.pieces.back());
        self.is_patchy
            || waiting.is_some_and(|(a, b)| b.span.end.saturating_sub(a.span.start) > WAITING_BYTES_MAX)
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.pieces.capacity() * size_of::<Piece>() + self.pdus.capacity() * size_of::<Pdu>()
    }

    /// Offset after the last byte that passed.
    pub(super) fn passed_until(&self) -> u64 {
        self.passed_until
    }

    /// Offset at which the next PDU begins, at the least.
    pub(super) fn framed_until(&self) -> u64 {
        self.framed_until
    }

    pub(super) fn set_patchy(&mut self) {
        self.is_patchy = true;
    }

    /// Counts new payload for the commands whose PDUs it belongs to.
    pub(super) fn on_piece(&mut self, piece: Piece, mut count: impl FnMut(Key, Passed)) {
        self.passed_until = self.passed_until.max(piece.span.end);
        if self.is_opaque {
            return;
        }
        if piece.span.start < self.framed_until {
            let first = self.pdus.partition_point(|pdu| pdu.span.end <= piece.span.start);
            for pdu in self.pdus.range_mut(first..) {
                if pdu.span.start >= piece.span.end {
                    break;
                }
                pass(pdu, &piece, &mut count);
            }
        }
        if piece.span.end > self.framed_until {
            if self.pieces.len() == PIECES_WAITING_MAX {
                self.pieces.pop_front();
            }
            self.pieces.push_back(piece);
        }
    }

    /// The packet in which the first byte of a PDU passed, if it still waits.
    pub(super) fn first_byte(&self, offset: u64) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.span.contains(&offset))
    }

    /// A PDU has started; `task` is the command whose data it carries.
    pub(super) fn on_start(
        &mut self,
        start: &PduStart,
        task: Option<Key>,
        mut count: impl FnMut(Key, Passed),
    ) {
        let end = start.offset.saturating_add(start.bytes);
        let data = data_span(start);
        let mut pdu = Pdu { span: start.offset..end, data, passed: 0, task, header: start.header };
        for piece in &self.pieces {
            pass(&mut pdu, piece, &mut count);
        }
        self.pieces.retain(|piece| piece.span.end > end);
        self.framed_until = end;
        if self.pdus.len() == PDUS_STARTED_MAX {
            self.pdus.pop_front();
        }
        self.pdus.push_back(pdu);
    }

    /// PDUs passed in `span` whose headers are not known. Their packets go to `count` as they wait, in order.
    pub(super) fn on_unseen(&mut self, span: &Range<u64>, mut count: impl FnMut(Passed)) {
        for piece in &self.pieces {
            let bytes = overlap(span, &piece.span);
            if bytes > 0 {
                let Piece { at_ns, frame, mss, .. } = *piece;
                let end = piece.span.end.min(span.end);
                count(Passed { at_ns, frame, mss, wire_bytes: bytes, data_bytes: bytes, end });
            }
        }
        self.pieces.retain(|piece| piece.span.end > span.end);
        self.framed_until = self.framed_until.max(span.end);
        self.is_patchy = true;
    }

    /// Removes the next PDU that started at `offset` or before.
    pub(super) fn pop_until(&mut self, offset: u64) -> Option<Pdu> {
        let is_due = self.pdus.front().is_some_and(|pdu| pdu.span.start <= offset);
        if is_due { self.pdus.pop_front() } else { None }
    }

    /// Nothing more of this stream can be read.
    pub(super) fn close(&mut self) {
        self.pieces.clear();
        self.pdus.clear();
        self.is_opaque = true;
    }
}

/// The data segment of a PDU. Digests are what its length leaves beside header, AHS and padded data: 4 bytes of them
/// may belong to the header or to the data; they are taken for the header's.
fn data_span(start: &PduStart) -> Range<u64> {
    let bhs = Bhs(&start.header);
    let (ahs, data) = (bhs.total_ahs_length() as u64, u64::from(bhs.data_segment_length()));
    let plain = BHS_LENGTH as u64 + ahs + u64::from(bhs.data_segment_length_padded());
    let header_digest = start.bytes.saturating_sub(plain).min(4);
    let first = start.offset.saturating_add(BHS_LENGTH as u64 + ahs + header_digest);
    first..first.saturating_add(data)
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

fn pass(pdu: &mut Pdu, piece: &Piece, count: &mut impl FnMut(Key, Passed)) {
    let wire_bytes = overlap(&pdu.span, &piece.span);
    let Some(task) = pdu.task.filter(|_| wire_bytes > 0) else { return };
    // A packet that repeats a part of another must not count twice.
    let left = (pdu.data.end - pdu.data.start).saturating_sub(pdu.passed);
    let data_bytes = overlap(&pdu.data, &piece.span).min(left);
    pdu.passed += data_bytes;
    let Piece { at_ns, frame, mss, .. } = *piece;
    count(task, Passed { at_ns, frame, mss, wire_bytes, data_bytes, end: piece.span.end.min(pdu.span.end) });
}
