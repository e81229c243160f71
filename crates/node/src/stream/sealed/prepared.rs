//! Units that were sealed before anyone asked for them.

use std::collections::VecDeque;

use area::{Pool, Span};
use seal::{Descriptor, Sealer};

use super::seal_unit;

/// A unit, sealed.
struct Ready {
    /// Where it begins in the transfer.
    start: usize,
    descriptor: Descriptor,
    sealed: Span,
}

impl Ready {
    /// Where it ends in the transfer.
    fn stop(&self) -> usize {
        self.start + self.sealed.len()
    }
}

/// Units of a transfer that are sealed ahead of it, in order: from its beginning, or from where it has been sent to.
#[derive(Default)]
pub(crate) struct Prepared {
    units: VecDeque<Ready>,
    /// What comes before is sealed, and none of it is in `units`.
    begin: usize,
}

impl Prepared {
    /// Bytes of the transfer that are sealed, sent or not.
    pub(crate) fn bytes(&self) -> usize {
        self.units.back().map_or(self.begin, Ready::stop)
    }

    /// Bytes that are sealed and wait.
    pub(super) fn waiting(&self) -> usize {
        self.bytes() - self.units.front().map_or(self.begin, |ready| ready.start)
    }

    /// Seals the next unit of `plain`, which is the whole transfer. False: there is none left, no memory, or a
    /// file cannot be read.
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

    /// How many of the bytes from `begin` to `stop` of a transfer that ends at `end` are sealed as they must be. Units that
    /// do not fit it (another end, or a generation that `carries` says is over) are dropped, with those behind them.
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

    /// All before `end` has been sealed for a record; what was sealed ahead of that is taken.
    pub(super) fn on_sealed(&mut self, end: usize) {
        self.begin = end;
    }

    /// The next unit, with the bytes it has.
    pub(super) fn take(&mut self) -> Option<(Descriptor, Span)> {
        self.units.pop_front().map(|ready| (ready.descriptor, ready.sealed))
    }
}
