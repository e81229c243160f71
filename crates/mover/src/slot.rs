//! One piece on its way, and the requests that it is moved in.

use std::ops::Range;
use std::time::Duration;

use area::Span;
use block::{IoError, Kind};

use crate::cutter::Piece;
use crate::parts::Parts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Free,
    Reading,
    Writing,
    Zeroing,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) stage: Stage,
    pub(crate) piece: Piece,
    pub(crate) spans: Vec<Span>,
    /// Requests in flight at the source and at the destination.
    pub(crate) pending: [u32; 2],
    /// When the requests of this stage were submitted.
    pub(crate) since: Duration,
    /// `Zeroing` goes request by request: bytes done, bytes of the one in flight, and whether that one moves
    /// zeroes or only names them.
    zeroed: u64,
    zeroing: u64,
    zeroes_named: bool,
    /// The first span is all zero.
    pub(crate) blank: bool,
    /// The medium could not read a part of it: where that was, and why.
    pub(crate) unreadable: Option<(u32, IoError)>,
}

impl Slot {
    /// A piece that begins at `now`.
    pub(crate) fn new(piece: Piece, spans: Vec<Span>, now: Duration) -> Self {
        Self {
            stage: Stage::Reading,
            piece,
            spans,
            pending: [0; 2],
            since: now,
            zeroed: 0,
            zeroing: 0,
            zeroes_named: false,
            blank: false,
            unreadable: None,
        }
    }

    /// Offset and length within the piece of request number `part` at the end that `parts` is of.
    pub(crate) fn request(&self, parts: Parts, part: u32) -> (u64, u64) {
        if self.stage == Stage::Zeroing {
            return (self.zeroed, self.zeroing);
        }
        let (start, length) = parts.part(self.piece.length, part, self.stage == Stage::Reading);
        (start.into(), length.into())
    }

    /// Leaves these bytes of the piece, in the first span too. What lies before and behind them in the range is finished.
    pub(crate) fn narrow(&mut self, part: &Range<u32>) -> [Range<u64>; 2] {
        let Self { piece, spans, .. } = self;
        let (start, end) = (piece.offset, piece.offset + u64::from(piece.length));
        let (from, to) = (start + u64::from(part.start), start + u64::from(part.end));
        (piece.offset, piece.length) = (from, part.end - part.start);
        spans[0] = spans[0].slice(part.start as usize, piece.length as usize);
        [start..from, to..end]
    }

    /// The next request that makes the piece zero, of at most `most` bytes: by name, or else by moving zeroes. `base` is the
    /// piece's place at the destination.
    pub(crate) fn zero(&mut self, base: u64, most: u32, named: bool, durable: bool) -> Kind {
        let offset = base + self.zeroed;
        let left = (u64::from(self.piece.length) - self.zeroed).min(most.into());
        self.zeroes_named = named;
        if named {
            self.zeroing = left;
            return Kind::WriteZeroes { offset, length: left, may_unmap: true };
        }
        let span = &self.spans[0];
        if !self.blank {
            span.zero(0, span.len());
            self.blank = true;
        }
        self.zeroing = left.min(span.len() as u64);
        Kind::Write { offset, from: span.slice(0, self.zeroing as usize), durable }
    }

    /// Whether the request in flight names zeroes.
    pub(crate) fn names_zeroes(&self) -> bool {
        self.stage == Stage::Zeroing && self.zeroes_named
    }

    /// The request that made a part of it zero has ended.
    pub(crate) fn on_zeroed(&mut self, well: bool) {
        self.zeroed += if well { self.zeroing } else { 0 };
        self.zeroing = 0;
    }

    /// Whether all of it is zero.
    pub(crate) fn is_zeroed(&self) -> bool {
        self.zeroed == self.piece.length.into()
    }
}

#[cfg(test)]
mod tests {
    use area::{Pool, PoolLimits};

    use super::*;

    fn slot(offset: u64, length: u32, span_bytes: usize) -> Slot {
        let pool = Pool::new(PoolLimits::default());
        let span = pool.take(span_bytes).unwrap();
        span.fill(0, &vec![7; span_bytes]);
        let piece = Piece { offset, length, zero: false, index: 0 };
        Slot::new(piece, vec![span], Duration::ZERO)
    }

    #[test]
    fn what_is_narrowed_away_is_finished() {
        let mut slot = slot(1 << 20, 65536, 65536);
        assert_eq!(
            slot.narrow(&(4096..12288)),
            [1 << 20..(1 << 20) + 4096, (1 << 20) + 12288..(1 << 20) + 65536]
        );
        assert_eq!(
            (slot.piece.offset, slot.piece.length, slot.spans[0].len()),
            ((1 << 20) + 4096, 8192, 8192)
        );
    }

    #[test]
    fn a_hole_is_made_zero_request_by_request() {
        let mut slot = slot(0, 100 << 10, 65536);
        slot.stage = Stage::Zeroing;
        let Kind::WriteZeroes { offset, length, .. } = slot.zero(512, 32 << 10, true, false) else {
            panic!()
        };
        assert_eq!((offset, length), (512, 32 << 10));
        assert!(slot.names_zeroes() && slot.request(Parts::new(1 << 20, 512, 4096), 0) == (0, 32 << 10));
        slot.on_zeroed(true);
        // The destination does not do it by name after all: the same place once more, with what the span holds.
        let _ = slot.zero(512, 1 << 20, true, false);
        slot.on_zeroed(false);
        let Kind::Write { offset, from, durable } = slot.zero(512, 1 << 20, false, true) else { panic!() };
        assert_eq!((offset, from.len(), durable), (512 + (32 << 10), 65536, true));
        assert!(from.as_slice().iter().all(|byte| *byte == 0) && !slot.names_zeroes());
        slot.on_zeroed(true);
        assert!(!slot.is_zeroed());
        let Kind::Write { from, .. } = slot.zero(512, 1 << 20, false, true) else { panic!() };
        assert_eq!(from.len(), 4096);
        slot.on_zeroed(true);
        assert!(slot.is_zeroed());
    }
}
