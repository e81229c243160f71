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

/// The first units of a transfer, in order, sealed ahead of it.
#[derive(Default)]
pub(crate) struct Prepared {
    units: VecDeque<Ready>,
    /// Where the next one would begin.
    end: usize,
}

impl Prepared {
    /// Bytes of the transfer that are sealed.
    pub(crate) fn bytes(&self) -> usize {
        self.end
    }

    /// Seals the next unit of `plain`, which is the whole transfer. False: there is none left, no memory, or a
    /// file cannot be read.
    pub(super) fn seal_next(&mut self, sealer: &mut Sealer, pool: &Pool, unit: usize, plain: &Span) -> bool {
        let start = self.end;
        let length = unit.min(plain.len() - start);
        if length == 0 {
            return false;
        }
        let Some(sealed) = pool.take(length) else { return false };
        let plain = plain.slice(start, length);
        let Ok(descriptor) = sealed.change(0, length, |sealed| seal_unit(sealer, &plain, sealed)) else {
            return false;
        };
        self.units.push_back(Ready { start, descriptor, sealed });
        self.end += length;
        true
    }

    /// How many of the bytes from `begin` to `stop` of a transfer that ends at `end` are sealed as they must be. Units that
    /// do not fit it (another end, a generation that is forgotten) are dropped, with those behind them.
    pub(super) fn usable(
        &mut self,
        sealer: &Sealer,
        unit: usize,
        (begin, stop, end): (usize, usize, usize),
    ) -> usize {
        let mut at = begin;
        let fits = |ready: &Ready, at: usize| {
            ready.start == at && ready.sealed.len() == unit.min(end - at) && sealer.carries(&ready.descriptor)
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

    /// The next unit, with the bytes it has.
    pub(super) fn take(&mut self) -> Option<(Descriptor, Span)> {
        self.units.pop_front().map(|ready| (ready.descriptor, ready.sealed))
    }
}
