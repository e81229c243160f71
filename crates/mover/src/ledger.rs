//! Which chunks are finished, and up to where all of them are.

use std::collections::BTreeMap;

/// Chunks finish out of order; what counts for a reader of the destination, and for taking a copy up again, is
/// the stretch from the start without a gap. Chunks are begun in order, so there are no more gaps than chunks in
/// flight, and no more stretches beyond them, however far one chunk stays behind.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    safe: u64,
    /// Finished stretches beyond a gap, none touching another: begin to end.
    ahead: BTreeMap<u64, u64>,
}

impl Ledger {
    /// The chunk of `length` bytes at `offset` is finished. Each chunk is finished once.
    pub(crate) fn finish(&mut self, offset: u64, length: u64) {
        let (mut begin, mut end) = (offset, offset + length);
        assert!(begin >= self.safe, "chunk at {offset} finished twice");
        if let Some((&before, &until)) = self.ahead.range(..=begin).next_back() {
            assert!(until <= begin, "chunk at {offset} finished twice");
            if until == begin {
                self.ahead.remove(&before);
                begin = before;
            }
        }
        end = self.ahead.remove(&end).unwrap_or(end);
        if begin == self.safe {
            self.safe = end;
        } else {
            self.ahead.insert(begin, end);
        }
    }

    /// Bytes from the start that are finished without a gap.
    pub(crate) fn safe(&self) -> u64 {
        self.safe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_stops_at_the_first_gap() {
        let mut ledger = Ledger::default();
        ledger.finish(10, 10);
        ledger.finish(30, 5);
        assert_eq!(ledger.safe(), 0);
        ledger.finish(0, 10);
        assert_eq!(ledger.safe(), 20);
        ledger.finish(20, 10);
        assert_eq!(ledger.safe(), 35);
        assert!(ledger.ahead.is_empty());
    }

    #[test]
    fn one_slow_chunk_does_not_make_it_grow() {
        let mut ledger = Ledger::default();
        for pair in 0..500 {
            ledger.finish(20 * pair + 20, 10);
            ledger.finish(20 * pair + 10, 10);
            assert_eq!(ledger.ahead.len(), 1);
        }
        ledger.finish(0, 10);
        assert_eq!((ledger.safe(), ledger.ahead.len()), (10_010, 0));
    }

    #[test]
    #[should_panic(expected = "finished twice")]
    fn a_chunk_finished_twice_is_ours() {
        let mut ledger = Ledger::default();
        ledger.finish(0, 10);
        ledger.finish(0, 10);
    }
}
