//! What the endpoints of one medium have read ahead, and which of it is still what the storage holds. No I/O here.
//!
//! A chunk is *valid* if no change of its bytes was in progress when its read began, and none has begun since. So its
//! bytes are those of the storage at every moment of that time, and it does not matter at which of them the storage read
//! them: a read that begins while the chunk is valid may be answered from it. A change is a request that may change
//! bytes, from before its submission until its completion is about to be reported. A flush counts as a change of all
//! bytes: a reader that wants those of the medium flushes first (READ with FUA).

use std::ops::Range;

pub(super) type Ticket = u64;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Bytes of all chunks that have not ended, valid or not.
    bytes: u64,
    last: Ticket,
    valid: Vec<(Ticket, Range<u64>)>,
    changes: Vec<(Ticket, Range<u64>)>,
}

impl Ledger {
    /// Begins a chunk before its read is submitted. `None`: a change of its bytes is in progress, or there would be more
    /// than `bytes_max` bytes.
    pub(super) fn begin_chunk(&mut self, range: &Range<u64>, bytes_max: u64) -> Option<Ticket> {
        let bytes = self.bytes + (range.end - range.start);
        if bytes > bytes_max || self.changes.iter().any(|(_, change)| overlap(change, range)) {
            return None;
        }
        self.bytes = bytes;
        self.last += 1;
        self.valid.push((self.last, range.clone()));
        Some(self.last)
    }

    pub(super) fn is_valid(&self, chunk: Ticket) -> bool {
        self.valid.iter().any(|(ticket, _)| *ticket == chunk)
    }

    /// The memory of a chunk of `length` bytes is free again.
    pub(super) fn end_chunk(&mut self, chunk: Ticket, length: u64) {
        self.valid.retain(|(ticket, _)| *ticket != chunk);
        self.bytes -= length;
    }

    /// A change is about to be submitted.
    pub(super) fn begin_change(&mut self, range: &Range<u64>) -> Ticket {
        self.valid.retain(|(_, chunk)| !overlap(chunk, range));
        self.last += 1;
        self.changes.push((self.last, range.clone()));
        self.last
    }

    /// The completion of a change is about to be reported.
    pub(super) fn end_change(&mut self, change: Ticket) {
        self.changes.retain(|(ticket, _)| *ticket != change);
    }

    /// Number of valid chunks, changes in progress, and bytes.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> (usize, usize, u64) {
        (self.valid.len(), self.changes.len(), self.bytes)
    }

    /// No chunk is valid any more.
    pub(super) fn invalidate(&mut self) {
        self.valid.clear();
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_ends_what_it_overlaps_and_nothing_else() {
        for (change, is_valid) in
            [(0..10, true), (0..11, false), (19..30, false), (20..30, true), (12..13, false)]
        {
            let mut ledger = Ledger::default();
            let chunk = ledger.begin_chunk(&(10..20), 100).unwrap();
            let ticket = ledger.begin_change(&change);
            assert_eq!(ledger.is_valid(chunk), is_valid, "{change:?}");
            let again = ledger.begin_chunk(&(10..20), 100);
            assert_eq!(again.is_some(), is_valid, "while {change:?} is in progress");
            ledger.end_change(ticket);
            assert_eq!(ledger.is_valid(chunk), is_valid, "{change:?} has ended");
            assert!(ledger.begin_chunk(&(10..20), 100).is_some());
        }
    }

    #[test]
    fn memory_is_counted_until_a_chunk_has_ended() {
        let mut ledger = Ledger::default();
        let chunk = ledger.begin_chunk(&(0..60), 100).unwrap();
        ledger.begin_change(&(0..1));
        assert!(ledger.begin_chunk(&(60..101), 100).is_none(), "not valid, but in memory");
        assert!(ledger.begin_chunk(&(60..100), 100).is_some());
        ledger.end_chunk(chunk, 60);
        assert!(ledger.begin_chunk(&(60..120), 100).is_some());
    }
}
