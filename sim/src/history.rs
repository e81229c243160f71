//! What clients did to sectors, and whether what they read can be explained by it.
//!
//! A sector is a register. A read may return what was there when it began, or anything written while it was under
//! way. A write that was acknowledged hides what was written before it began, unless a power cut may have taken it:
//! it was in a volatile cache, and no flush after it had succeeded before the cut. A write whose outcome nobody knows
//! may take effect at any later time, or never.

use std::time::Duration;

use crate::disk::SECTOR;
use crate::random::Random;

/// What is in a sector: 0 is zeroes, anything else names a write.
pub type Value = u64;

/// The contents of a sector.
pub fn stamp(sector: u64, value: Value) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if value != 0 {
        let mut random = Random::new(sector << 40 ^ value);
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        for word in bytes[8..].chunks_exact_mut(8) {
            word.copy_from_slice(&random.draw().to_le_bytes());
        }
    }
    bytes
}

/// The value in a sector, if it is whole and belongs there.
pub fn value_of(sector: u64, bytes: &[u8]) -> Option<Value> {
    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    (stamp(sector, value) == bytes).then_some(value)
}

/// The time of something that took a while, if it has ended well.
#[derive(Clone, Copy, Debug)]
struct Write {
    client: usize,
    value: Value,
    start: Duration,
    end: Option<Duration>,
    /// From then on, no cut takes it.
    durable: Option<Duration>,
    /// Its client was told that it may be lost.
    told: bool,
}

/// A write that is under way: see [`History::write`].
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    first: u64,
    count: u64,
    value: Value,
}

/// All that was done to a LUN.
#[derive(Debug)]
pub struct History {
    sectors: Vec<Vec<Write>>,
    cuts: Vec<Duration>,
    /// Whether a flush speaks for what its client wrote before the last cut.
    strict: bool,
}

impl History {
    /// Of a disk of zeroes. `strict`: a client whose disk lost power may not have its next flush succeed.
    pub fn new(sectors: u64, strict: bool) -> Self {
        let zero = Duration::ZERO;
        let first = Write {
            client: usize::MAX,
            value: 0,
            start: zero,
            end: Some(zero),
            durable: Some(zero),
            told: false,
        };
        Self { sectors: vec![vec![first]; sectors as usize], cuts: Vec::new(), strict }
    }

    /// A client begins to write `count` sectors with `value` (0: zeroes).
    pub fn write(&mut self, client: usize, first: u64, count: u64, value: Value, now: Duration) -> Writing {
        for sector in &mut self.sectors[first as usize..(first + count) as usize] {
            sector.push(Write { client, value, start: now, end: None, durable: None, told: false });
        }
        Writing { first, count, value }
    }

    /// It was acknowledged. `begun`: when it began. `durable`: the target promised that too.
    pub fn written(&mut self, writing: Writing, begun: Duration, now: Duration, durable: bool) {
        for sector in &mut self.sectors[writing.first as usize..][..writing.count as usize] {
            let found = sector
                .iter_mut()
                .find(|write| write.value == writing.value && write.start == begun && write.end.is_none());
            let write = found.expect("it was begun");
            write.end = Some(now);
            write.durable = durable.then_some(now);
        }
    }

    /// A flush of `client` has succeeded that began at `begun`.
    pub fn flushed(&mut self, client: usize, begun: Duration, now: Duration) {
        let cut = self.cuts.last().copied().unwrap_or_default();
        for write in self.sectors.iter_mut().flatten() {
            let own = self.strict && write.client == client && !write.told;
            if write.durable.is_none()
                && write.end.is_some_and(|end| end <= begun)
                && (own || write.start > cut)
            {
                write.durable = Some(now);
            }
        }
    }

    /// A flush of `client` has failed because what was in the cache may be lost: nothing is promised of what it wrote
    /// before the last cut.
    pub fn cache_lost(&mut self, client: usize) {
        let cut = self.cuts.last().copied().unwrap_or_default();
        for write in self.sectors.iter_mut().flatten() {
            write.told |= write.client == client && write.durable.is_none() && write.start <= cut;
        }
    }

    /// The target has ended in order: everything acknowledged is durable.
    pub fn ended_in_order(&mut self, now: Duration) {
        self.flushed(usize::MAX, now, now);
    }

    /// Power was lost.
    pub fn cut(&mut self, now: Duration) {
        self.cuts.push(now);
    }

    /// Whether a read of `sector` between `start` and `end` may return these bytes; else why not.
    pub fn check(
        &self,
        sector: u64,
        bytes: &[u8],
        start: Duration,
        end_of_read: Duration,
    ) -> Result<(), String> {
        let Some(value) = value_of(sector, bytes) else {
            let head: Vec<u8> = bytes[..16].to_vec();
            return Err(format!("sector {sector} holds what nobody wrote there: {head:02x?}…"));
        };
        let writes = &self.sectors[sector as usize];
        let mut candidates =
            writes.iter().filter(|write| write.value == value && write.start <= end_of_read).peekable();
        if candidates.peek().is_none() {
            return Err(format!("sector {sector} holds value {value}, which was not yet written"));
        }
        let hidden = |old: &Write| {
            let old_end = old.end?;
            writes.iter().find(|new| {
                new.start > old_end
                    && new.end.is_some_and(|end| end < start && self.survives(new, end_of_read))
            })
        };
        let mut over = None;
        for candidate in candidates {
            match hidden(candidate) {
                None => return Ok(()),
                Some(new) => over = Some((*candidate, *new)),
            }
        }
        let (old, new) = over.expect("there was a candidate");
        Err(format!(
            "sector {sector} read between {start:?} and {end_of_read:?} holds an old value: {old:?} was overwritten by {new:?}; \
             power cuts at {:?}",
            self.cuts
        ))
    }

    /// No cut until then may have taken it. The cut may come before the acknowledgement, which travels on.
    fn survives(&self, write: &Write, until: Duration) -> bool {
        let cut = self.cuts.iter().find(|cut| **cut >= write.start && **cut <= until);
        cut.is_none_or(|cut| write.durable.is_some_and(|durable| durable <= *cut || self.strict))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Value 1 written in 1..2, value 2 in 3..4.
    fn two_writes(strict: bool) -> History {
        let mut history = History::new(1, strict);
        for value in [1, 2] {
            let begun = at(value * 2 - 1);
            let writing = history.write(0, 0, 1, value, begun);
            history.written(writing, begun, at(value * 2), false);
        }
        history
    }

    fn reads(history: &History, value: Value, start: u64, end: u64) -> bool {
        history.check(0, &stamp(0, value), at(start), at(end)).is_ok()
    }

    #[test]
    fn an_acknowledged_write_hides_older_ones() {
        let history = two_writes(true);
        assert!(reads(&history, 2, 5, 6));
        assert!(!reads(&history, 1, 5, 6));
        assert!(reads(&history, 1, 3, 6), "overlaps the second write");
        assert!(!reads(&history, 3, 5, 6), "never written");
        assert!(history.check(0, &[7; SECTOR], at(5), at(6)).is_err(), "garbage");
        assert!(history.check(0, &stamp(1, 2), at(5), at(6)).is_err(), "of another sector");
    }

    #[test]
    fn a_cut_takes_what_was_not_flushed() {
        let mut history = two_writes(true);
        history.cut(at(5));
        assert!(reads(&history, 2, 6, 7) && reads(&history, 1, 6, 7) && reads(&history, 0, 6, 7));
    }

    #[test]
    fn a_cut_does_not_take_what_was_flushed_before() {
        let mut history = two_writes(true);
        history.flushed(1, at(4), at(5));
        history.cut(at(6));
        assert!(reads(&history, 2, 7, 8));
        assert!(!reads(&history, 1, 7, 8));
    }

    #[test]
    fn a_flush_after_the_cut_speaks_for_its_client_only() {
        for (client, strict, old) in [(0, true, false), (1, true, true), (0, false, true)] {
            let mut history = two_writes(strict);
            history.cut(at(5));
            history.flushed(client, at(6), at(7));
            assert_eq!(reads(&history, 1, 8, 9), old, "client {client}, strict {strict}");
        }
    }

    #[test]
    fn a_client_that_was_told_of_its_loss_may_flush() {
        let mut history = two_writes(true);
        history.cut(at(5));
        history.cache_lost(0);
        history.flushed(0, at(6), at(7));
        assert!(reads(&history, 1, 8, 9));
    }

    #[test]
    fn an_unknown_outcome_may_still_come() {
        let mut history = two_writes(true);
        history.write(0, 0, 1, 3, at(5));
        assert!(reads(&history, 2, 50, 51) && reads(&history, 3, 50, 51));
        assert!(!reads(&history, 1, 50, 51));
    }
}
