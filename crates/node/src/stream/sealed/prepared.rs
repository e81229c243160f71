//! Units sealed ahead of their transfer.

use std::collections::VecDeque;

use area::{Pool, Span};
use seal::{Descriptor, Sealer};

use super::seal_unit;

struct Ready {
    /// Its offset in the transfer.
    start: usize,
    descriptor: Descriptor,
    sealed: Span,
}

impl Ready {
    fn stop(&self) -> usize {
        self.start + self.sealed.len()
    }
}

/// Consecutive units sealed ahead of a transfer, from its start or from the first byte not yet sent.
#[derive(Default)]
pub(crate) struct Prepared {
    units: VecDeque<Ready>,
    /// Bytes before this offset are sealed and no longer in `units`.
    begin: usize,
}

impl Prepared {
    /// Bytes of the transfer that are sealed, sent or not.
    pub(crate) fn bytes(&self) -> usize {
        self.units.back().map_or(self.begin, Ready::stop)
    }

    /// Bytes that are sealed and not sent.
    pub(super) fn waiting(&self) -> usize {
        self.bytes() - self.units.front().map_or(self.begin, |ready| ready.start)
    }

    /// Seals the next unit of `plain`, which is the whole transfer. False: no unit is left, no memory, or the file
    /// could not be read.
    pub(super) fn seal_next(&mut self, sealer: &mut Sealer, pool: &Pool, unit: usize, plain: &Span) -> bool {
        let start = self.bytes();
        let length = unit.min(plain.len().saturating_sub(start));
        if length == 0 {
            return false;
        }
        let Some(sealed) = pool.take(length) else { return false };
        let plain = plain.slice(start, length);
        let Ok(descriptor) = sealed.change(0, length, |sealed| seal_unit(sealer, &plain, sealed)) else {
            return false;
        };
        self.units.push_back(Ready { start, descriptor, sealed });
        true
    }

    /// How many of the bytes from `begin` to `stop`, of a transfer that ends at `end`, are validly sealed. A unit with
    /// another offset or length, or of a generation for which `carries` is false, is dropped, and so are all units
    /// after it.
    pub(super) fn usable(
        &mut self,
        carries: impl Fn(&Descriptor) -> bool,
        unit: usize,
        (begin, stop, end): (usize, usize, usize),
    ) -> usize {
        let mut at = begin;
        let fits = |ready: &Ready, at: usize| {
            ready.start == at && ready.sealed.len() == unit.min(end - at) && carries(&ready.descriptor)
        };
        for index in 0..self.units.len() {
            if at >= stop {
                break;
            }
            if !fits(&self.units[index], at) {
                self.units.truncate(index);
                break;
            }
            at += self.units[index].sealed.len();
        }
        at - begin
    }

    /// Records that all bytes before `end` were sealed for a record, after the units sealed ahead were taken.
    pub(super) fn on_sealed(&mut self, end: usize) {
        self.begin = end;
    }

    /// Removes the next unit: its descriptor and its sealed bytes.
    pub(super) fn take(&mut self) -> Option<(Descriptor, Span)> {
        self.units.pop_front().map(|ready| (ready.descriptor, ready.sealed))
    }
}
