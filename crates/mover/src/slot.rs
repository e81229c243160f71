//! One piece on its way, and the requests that it is moved in.

use std::time::Duration;

use area::Span;
use block::{IoError, Kind};

use crate::cutter::Piece;
use crate::parts::Parts;
use crate::patch::Patch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Free,
    Reading,
    /// What was read goes to the destination, patch by patch, all at once.
    Writing,
    /// A hole is made zero, one request after the other.
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
    /// The requests of `Writing`, by their number.
    pub(crate) patches: Vec<Patch>,
    /// Of `Zeroing`: bytes done, bytes of the request in flight, and whether that one moves zeroes or only names them.
    zeroed: u64,
    zeroing: u64,
    zeroes_named: bool,
    /// The first span was made zero, to be written.
    blank: bool,
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
            patches: Vec::new(),
            zeroed: 0,
            zeroing: 0,
            zeroes_named: false,
            blank: false,
            unreadable: None,
        }
    }

    /// Offset and length within the piece of request number `part` at the end that `parts` is of.
    pub(crate) fn request(&self, parts: Parts, part: u32) -> (u64, u64) {
        match self.stage {
            Stage::Zeroing => (self.zeroed, self.zeroing),
            Stage::Writing => {
                let patch = &self.patches[part as usize];
                (patch.range.start.into(), patch.length().into())
            }
            Stage::Free | Stage::Reading => {
                let (start, length) = parts.part(self.piece.length, part);
                (start.into(), length.into())
            }
        }
    }

    /// What brings patch number `part` to the destination, where the piece begins at `base`.
    pub(crate) fn patch(&self, base: u64, part: u32, durable: bool) -> Kind {
        let patch = &self.patches[part as usize];
        let (offset, length) = (base + u64::from(patch.range.start), patch.length());
        if patch.zero {
            return Kind::WriteZeroes { offset, length: length.into(), may_unmap: true };
        }
        let from = self.spans[0].slice(patch.range.start as usize, length as usize);
        Kind::Write { offset, from, durable }
    }

    /// The next request that makes a hole zero, of at most `most` bytes: by name, or else by moving zeroes. `base` is the
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

    /// Whether request number `part` names zeroes.
    pub(crate) fn names_zeroes(&self, part: u32) -> bool {
        match self.stage {
            Stage::Zeroing => self.zeroes_named,
            Stage::Writing => self.patches[part as usize].zero,
            Stage::Free | Stage::Reading => false,
        }
    }

    /// Whether data of it was moved, not only zeroes.
    pub(crate) fn is_data(&self) -> bool {
        self.stage != Stage::Zeroing
            && (self.patches.is_empty() || self.patches.iter().any(|patch| !patch.zero))
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
    fn a_hole_is_made_zero_request_by_request() {
        let mut slot = slot(0, 100 << 10, 65536);
        slot.stage = Stage::Zeroing;
        let Kind::WriteZeroes { offset, length, .. } = slot.zero(512, 32 << 10, true, false) else {
            panic!()
        };
        assert_eq!((offset, length), (512, 32 << 10));
        assert!(slot.names_zeroes(0) && slot.request(Parts::new(1 << 20, 512, 4096), 0) == (0, 32 << 10));
        slot.on_zeroed(true);
        // The destination does not do it by name after all: the same place once more, with what the span holds.
        let _ = slot.zero(512, 1 << 20, true, false);
        slot.on_zeroed(false);
        let Kind::Write { offset, from, durable } = slot.zero(512, 1 << 20, false, true) else { panic!() };
        assert_eq!((offset, from.len(), durable), (512 + (32 << 10), 65536, true));
        assert!(from.as_slice().iter().all(|byte| *byte == 0) && !slot.names_zeroes(0));
        slot.on_zeroed(true);
        assert!(!slot.is_zeroed());
        let Kind::Write { from, .. } = slot.zero(512, 1 << 20, false, true) else { panic!() };
        assert_eq!(from.len(), 4096);
        slot.on_zeroed(true);
        assert!(slot.is_zeroed());
    }
}
