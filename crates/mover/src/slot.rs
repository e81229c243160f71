//! A run in progress, and its requests.

use std::time::Duration;

use area::Span;
use block::{IoError, Kind};

use crate::cutter::Run;
use crate::extent::WriteExtent;
use crate::parts::Parts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Free,
    Reading,
    /// All extents of the data read are being written to the destination concurrently.
    Writing,
    /// A hole is being zeroed, one request at a time.
    Zeroing,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) stage: Stage,
    pub(crate) run: Run,
    pub(crate) spans: Vec<Span>,
    /// Requests in flight at the source and at the destination.
    pub(crate) pending: [u32; 2],
    /// When the requests of this stage were submitted, in loop time.
    pub(crate) since: Duration,
    /// When the run began, in loop time.
    pub(crate) begun: Duration,
    /// The extents of `Writing`, indexed by request number.
    pub(crate) extents: Vec<WriteExtent>,
    /// For `Zeroing`: bytes complete, bytes of the request in flight, and whether that request zeroes without data.
    zeroed: u64,
    zeroing: u64,
    is_write_zeroes: bool,
    /// The first span was filled with zeroes, to be written.
    blank: bool,
    /// A part that the medium could not read: its offset in the run, and the error.
    pub(crate) unreadable: Option<(u32, IoError)>,
}

impl Slot {
    pub(crate) fn new(run: Run, spans: Vec<Span>, now: Duration) -> Self {
        Self {
            stage: Stage::Reading,
            run,
            spans,
            pending: [0; 2],
            since: now,
            begun: now,
            extents: Vec::new(),
            zeroed: 0,
            zeroing: 0,
            is_write_zeroes: false,
            blank: false,
            unreadable: None,
        }
    }

    /// Offset and length within the run of request number `part`; `parts` is of the same end.
    pub(crate) fn request(&self, parts: Parts, part: u32) -> (u64, u64) {
        match self.stage {
            Stage::Zeroing => (self.zeroed, self.zeroing),
            Stage::Writing => {
                let extent = &self.extents[part as usize];
                (extent.range.start.into(), extent.length().into())
            }
            Stage::Free | Stage::Reading => {
                let (start, length) = parts.part(self.run.length, part);
                (start.into(), length.into())
            }
        }
    }

    /// The request for extent number `part`; the run starts at `base` of the destination.
    pub(crate) fn extent(&self, base: u64, part: u32, durable: bool) -> Kind {
        let extent = &self.extents[part as usize];
        let (offset, length) = (base + u64::from(extent.range.start), extent.length());
        if extent.zero {
            return Kind::WriteZeroes { offset, length: length.into(), may_unmap: true };
        }
        let from = self.spans[0].slice(extent.range.start as usize, length as usize);
        Kind::Write { offset, from, durable }
    }

    /// The next request that zeroes a part of a hole, of at most `most` bytes: without data if `named`, otherwise by
    /// writing zeroes. `base` is the offset of the run at the destination.
    pub(crate) fn zero(&mut self, base: u64, most: u32, named: bool, durable: bool) -> Kind {
        let offset = base + self.zeroed;
        let left = (u64::from(self.run.length) - self.zeroed).min(most.into());
        self.is_write_zeroes = named;
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

    /// Whether request number `part` zeroes without data.
    pub(crate) fn can_write_zeroes(&self, part: u32) -> bool {
        match self.stage {
            Stage::Zeroing => self.is_write_zeroes,
            Stage::Writing => self.extents[part as usize].zero,
            Stage::Free | Stage::Reading => false,
        }
    }

    pub(crate) fn is_data(&self) -> bool {
        self.stage != Stage::Zeroing
            && (self.extents.is_empty() || self.extents.iter().any(|extent| !extent.zero))
    }

    /// The request that zeroes a part has ended; `well`: successfully.
    pub(crate) fn on_zeroed(&mut self, well: bool) {
        self.zeroed += if well { self.zeroing } else { 0 };
        self.zeroing = 0;
    }

    pub(crate) fn is_zeroed(&self) -> bool {
        self.zeroed == u64::from(self.run.length)
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
        let run = Run { offset, length, zero: false, index: 0 };
        Slot::new(run, vec![span], Duration::ZERO)
    }

    #[test]
    fn a_hole_is_made_zero_request_by_request() {
        let mut slot = slot(0, 100 << 10, 65536);
        slot.stage = Stage::Zeroing;
        let Kind::WriteZeroes { offset, length, .. } = slot.zero(512, 32 << 10, true, false) else {
            panic!()
        };
        assert_eq!((offset, length), (512, 32 << 10));
        assert!(slot.can_write_zeroes(0) && slot.request(Parts::new(1 << 20, 512, 4096), 0) == (0, 32 << 10));
        slot.on_zeroed(true);
        // The destination refuses to zero without data: the same range again, by writing the span.
        let _ = slot.zero(512, 1 << 20, true, false);
        slot.on_zeroed(false);
        let Kind::Write { offset, from, durable } = slot.zero(512, 1 << 20, false, true) else { panic!() };
        assert_eq!((offset, from.len(), durable), (512 + (32 << 10), 65536, true));
        assert!(from.as_slice().iter().all(|byte| *byte == 0) && !slot.can_write_zeroes(0));
        slot.on_zeroed(true);
        assert!(!slot.is_zeroed());
        let Kind::Write { from, .. } = slot.zero(512, 1 << 20, false, true) else { panic!() };
        assert_eq!(from.len(), 4096);
        slot.on_zeroed(true);
        assert!(slot.is_zeroed());
    }
}
