//! The state of each byte of a range: tried, finished, unreadable.
//!
//! Pure. The states and their signs are those of GNU ddrescue's mapfile; `mapfile.rs` reads and writes them.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    NonTried,
    /// A read of the range failed; the defect was not located.
    NonTrimmed,
    /// The edges were read; the rest failed and was not located further.
    NonScraped,
    BadSector,
    /// Written to the destination.
    Finished,
}

impl Status {
    /// All states, in the order in which a copy works on them.
    pub const ALL: [Self; 5] =
        [Self::NonTried, Self::NonTrimmed, Self::NonScraped, Self::BadSector, Self::Finished];

    /// The sign in ddrescue's mapfile.
    pub fn sign(self) -> char {
        match self {
            Self::NonTried => '?',
            Self::NonTrimmed => '*',
            Self::NonScraped => '/',
            Self::BadSector => '-',
            Self::Finished => '+',
        }
    }

    /// Whether a read failed, so that the destination has no data of the source there.
    pub fn is_bad(self) -> bool {
        matches!(self, Self::NonTrimmed | Self::NonScraped | Self::BadSector)
    }
}

/// A range of one state, counted from the start of the map's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    pub start: u64,
    /// End (exclusive).
    pub end: u64,
    pub status: Status,
}

impl MapEntry {
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// The state of every byte of a range of fixed size. Entries tile it, and neighbours differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    size: u64,
    /// The start of each entry; it ends where the next one starts. Empty only if the range is.
    starts: BTreeMap<u64, Status>,
}

impl Map {
    pub fn new(size: u64) -> Self {
        let starts = (size > 0).then_some((0, Status::NonTried)).into_iter().collect();
        Self { size, starts }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn set(&mut self, start: u64, end: u64, status: Status) {
        assert!(start <= end && end <= self.size, "{start}..{end} of {}", self.size);
        if start == end {
            return;
        }
        let behind = (end < self.size).then(|| self.at(end).status);
        let before = start.checked_sub(1).map(|at| self.at(at).status);
        // Entries that start inside are replaced; they are few, as runs are short or entirely of one state.
        let inside: Vec<_> = self.starts.range(start..=end).map(|(at, _)| *at).collect();
        for at in inside {
            self.starts.remove(&at);
        }
        if before != Some(status) {
            self.starts.insert(start, status);
        }
        if let Some(behind) = behind.filter(|behind| *behind != status) {
            self.starts.insert(end, behind);
        }
    }

    /// The entry that contains byte `at`, which must be in the range.
    pub fn at(&self, at: u64) -> MapEntry {
        assert!(at < self.size, "byte {at} of {}", self.size);
        let (start, status) = self.starts.range(..=at).next_back().expect("entries tile the range");
        let end = self.starts.range(at + 1..).next().map_or(self.size, |(end, _)| *end);
        MapEntry { start: *start, end, status: *status }
    }

    pub fn entries(&self) -> impl Iterator<Item = MapEntry> + '_ {
        let ends = self.starts.keys().skip(1).copied().chain([self.size]);
        self.starts.iter().zip(ends).map(|((start, status), end)| MapEntry {
            start: *start,
            end,
            status: *status,
        })
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    pub fn bytes(&self, status: Status) -> u64 {
        self.entries().filter(|entry| entry.status == status).map(|entry| entry.bytes()).sum()
    }

    /// Number of finished bytes from the start without a gap.
    pub fn safe(&self) -> u64 {
        match self.starts.first_key_value() {
            Some((_, Status::Finished)) => self.at(0).end,
            _ => 0,
        }
    }

    /// Prepares the map for work in whole blocks: a block of `block` bytes with more than one state counts as not
    /// tried, and so does a `unit` that is partly not tried. `block` divides `unit`; the last of each may be cut short
    /// by the end of the range. A map made with the same numbers does not change.
    pub fn fit(&mut self, unit: u32, block: u32) {
        let (unit, block) = (u64::from(unit), u64::from(block));
        assert!(block > 0 && unit.is_multiple_of(block), "blocks of {block} in units of {unit}");
        let cuts: Vec<_> = self.starts.keys().copied().filter(|at| !at.is_multiple_of(block)).collect();
        for at in cuts {
            self.forget(at / block * block, at, block);
        }
        let open: Vec<_> = self.entries().filter(|entry| entry.status == Status::NonTried).collect();
        for MapEntry { start, end, .. } in open {
            self.forget(start / unit * unit, end, unit);
        }
    }

    /// Marks as not tried from `start` to the end of the multiple of `step` that contains the byte before `end`.
    fn forget(&mut self, start: u64, end: u64, step: u64) {
        let end = end.checked_next_multiple_of(step).map_or(self.size, |end| end.min(self.size));
        self.set(start, end, Status::NonTried);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Random;

    fn signs(map: &Map) -> String {
        map.entries().map(|entry| format!("{}{}", entry.bytes(), entry.status.sign())).collect()
    }

    #[test]
    fn entries_split_and_merge() {
        let mut map = Map::new(100);
        assert_eq!(signs(&map), "100?");
        map.set(10, 20, Status::Finished);
        map.set(30, 40, Status::Finished);
        assert_eq!(signs(&map), "10?10+10?10+60?");
        map.set(20, 30, Status::Finished);
        assert_eq!((signs(&map).as_str(), map.safe()), ("10?30+60?", 0));
        map.set(15, 16, Status::BadSector);
        assert_eq!(signs(&map), "10?5+1-24+60?");
        map.set(0, 10, Status::Finished);
        assert_eq!((signs(&map).as_str(), map.safe()), ("15+1-24+60?", 15));
        map.set(0, 100, Status::Finished);
        assert_eq!((signs(&map).as_str(), map.safe(), map.len()), ("100+", 100, 1));
        map.set(50, 50, Status::BadSector);
        assert_eq!(signs(&map), "100+");
        let empty = Map::new(0);
        assert_eq!((signs(&empty).as_str(), empty.safe(), empty.is_empty()), ("", 0, true));
    }

    #[test]
    fn the_end_of_the_number_range() {
        let mut map = Map::new(u64::MAX);
        map.set(u64::MAX - 1, u64::MAX, Status::Finished);
        assert_eq!(map.at(u64::MAX - 1).bytes(), 1);
        map.fit(4096, 512);
        assert_eq!(map.bytes(Status::NonTried), u64::MAX);
    }

    /// Compares with a model of one state per byte.
    #[test]
    fn any_changes_leave_what_a_list_of_bytes_would() {
        for seed in 1..=300 {
            let mut random = Random::new(seed);
            let size = 1 + random.below(300);
            let mut bytes = vec![Status::NonTried; size as usize];
            let mut map = Map::new(size);
            for _ in 0..40 {
                let (one, two) = (random.below(size + 1), random.below(size + 1));
                let status = Status::ALL[random.below(5) as usize];
                let (start, end) = (one.min(two), one.max(two));
                map.set(start, end, status);
                bytes[start as usize..end as usize].fill(status);
                let mut at = 0;
                let mut last = None;
                for entry in map.entries() {
                    assert_eq!(entry.start, at, "seed {seed}");
                    assert!(entry.end > at && last != Some(entry.status), "seed {seed}");
                    assert!(bytes[at as usize..entry.end as usize].iter().all(|byte| *byte == entry.status));
                    assert_eq!(map.at(random.below(entry.bytes()) + at), entry);
                    (at, last) = (entry.end, Some(entry.status));
                }
                assert_eq!(at, size, "seed {seed}");
                let safe = bytes.iter().take_while(|byte| **byte == Status::Finished).count();
                assert_eq!(map.safe(), safe as u64, "seed {seed}");
                let finished = bytes.iter().filter(|byte| **byte == Status::Finished).count();
                assert_eq!(map.bytes(Status::Finished), finished as u64, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_map_made_to_fit_is_in_blocks_and_claims_no_more() {
        for seed in 1..=300 {
            let mut random = Random::new(seed);
            let size = 1 + random.below(30_000);
            let mut map = Map::new(size);
            for _ in 0..random.below(20) {
                let step = [1, 512, 4096][random.below(3) as usize];
                let (one, two) = (random.below(size + 1) / step * step, random.below(size + 1));
                map.set(one.min(two), one.max(two), Status::ALL[random.below(5) as usize]);
            }
            let before = map.clone();
            map.fit(4096, 512);
            for MapEntry { start, end, status } in map.entries() {
                let step = if status == Status::NonTried { 4096 } else { 512 };
                assert!(start % step == 0 || map.at(start - 1).status == Status::NonTried, "seed {seed}");
                assert!(start.is_multiple_of(512) && (end.is_multiple_of(512) || end == size));
                if status == Status::NonTried {
                    assert!(start.is_multiple_of(4096) && (end.is_multiple_of(4096) || end == size));
                } else {
                    assert!((start..end).all(|at| before.at(at).status == status), "seed {seed}");
                }
            }
            let once = map.clone();
            map.fit(4096, 512);
            assert_eq!(map, once, "seed {seed}: it fits");
        }
    }
}
