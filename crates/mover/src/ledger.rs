//! Which chunks are finished, and up to where all of them are.

use std::collections::BTreeMap;

/// Chunks finish out of order; what counts for a reader of the destination, and for taking a copy up again, is
/// the stretch from the start without a gap. Holds no more than the chunks in flight.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    safe: u64,
    /// Finished chunks beyond a gap: offset to length.
    ahead: BTreeMap<u64, u64>,
}

impl Ledger {
    /// The chunk of `length` bytes at `offset` is finished. Each chunk is finished once.
    pub(crate) fn finish(&mut self, offset: u64, length: u64) {
        assert!(offset >= self.safe, "chunk at {offset} finished twice");
        if offset > self.safe {
            let twice = self.ahead.insert(offset, length);
            assert!(twice.is_none(), "chunk at {offset} finished twice");
            return;
        }
        self.safe += length;
        while let Some(entry) = self.ahead.first_entry() {
            if *entry.key() != self.safe {
                break;
            }
            self.safe += entry.remove();
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
    #[should_panic(expected = "finished twice")]
    fn a_chunk_finished_twice_is_ours() {
        let mut ledger = Ledger::default();
        ledger.finish(0, 10);
        ledger.finish(0, 10);
    }
}
