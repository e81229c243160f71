//! The volatile versions of each sector, and the choice of the versions that survive a power cut. No I/O here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{CrashRule, SECTOR_BYTES, When};

/// Maximum number of sector versions in the cache: 64 MiB of data.
pub const SECTORS_MAX: usize = 128 << 10;

/// Bytes of one sector; `None` for zeroes.
pub(super) type Bytes = Option<Arc<[u8; SECTOR_BYTES]>>;

pub(super) type Serial = u64;

#[derive(Debug, Default)]
struct Sector {
    /// Bytes that survived a power cut: they count as stored on the medium, but are not yet written to the storage
    /// beneath.
    base: Option<Bytes>,
    /// Bytes written since the last flush, oldest first.
    versions: Vec<(Serial, Bytes)>,
}

impl Sector {
    /// The bytes of the sector after request `last` and before any later request.
    fn until(&self, last: Serial) -> Option<&Bytes> {
        let version = self.versions.iter().rev().find(|(serial, _)| *serial <= last);
        version.map(|(_, bytes)| bytes).or(self.base.as_ref())
    }
}

#[derive(Debug)]
pub(super) struct Cache {
    sectors: BTreeMap<u64, Sector>,
    versions: usize,
    serial: Serial,
    rule: CrashRule,
    random: u64,
    acknowledged: u64,
    /// Number of power cuts so far; an endpoint that was attached under a smaller number is dead.
    pub(super) cuts: u64,
    /// The power failed by rule: the process must end.
    pub(super) ends: bool,
    /// The range and the last serial of the versions that one thread is writing to the storage beneath.
    writing: Option<(Range<u64>, Serial)>,
}

impl Cache {
    pub(super) fn new(rule: CrashRule) -> Self {
        Self {
            sectors: BTreeMap::new(),
            versions: 0,
            serial: 0,
            rule,
            random: rule.seed,
            acknowledged: 0,
            cuts: 0,
            ends: false,
            writing: None,
        }
    }

    pub(super) fn write(&mut self, range: Range<u64>, mut bytes: impl FnMut(u64) -> Bytes) -> Serial {
        self.serial += 1;
        for lba in range {
            self.sectors.entry(lba).or_default().versions.push((self.serial, bytes(lba)));
            self.versions += 1;
        }
        self.serial
    }

    pub(super) fn serial(&self) -> Serial {
        self.serial
    }

    /// `Some` if the cache holds more than `SECTORS_MAX` versions: versions up to this serial should be written back.
    pub(super) fn overflow(&self) -> Option<Serial> {
        let oldest =
            || self.sectors.values().filter_map(|sector| sector.versions.first()).map(|(serial, _)| *serial);
        (self.versions > SECTORS_MAX).then(|| oldest().min().unwrap_or(0).midpoint(self.serial))
    }

    /// The newest bytes of those sectors of `range` that the storage beneath does not have yet.
    pub(super) fn visible(&self, range: Range<u64>) -> Vec<(u64, Bytes)> {
        self.until(range, Serial::MAX)
    }

    /// Like `visible`, but without the writes after request `last`.
    pub(super) fn until(&self, range: Range<u64>, last: Serial) -> Vec<(u64, Bytes)> {
        let sectors = self.sectors.range(range);
        sectors.filter_map(|(lba, sector)| Some((*lba, sector.until(last)?.clone()))).collect()
    }

    /// False if another thread is writing: one at a time writes to the storage beneath, so that writes stay in order.
    pub(super) fn begin_writing(&mut self, range: &Range<u64>, last: Serial) -> bool {
        let free = self.writing.is_none();
        if free {
            self.writing = Some((range.clone(), last));
        }
        free
    }

    /// Ends the write-back. `written`: all its versions are in the storage beneath, and leave the cache.
    pub(super) fn end_writing(&mut self, written: bool) {
        let (range, last) = self.writing.take().expect("begun before");
        if !written {
            return;
        }
        for sector in self.sectors.range_mut(range.clone()).map(|(_, sector)| sector) {
            let before = sector.versions.len();
            sector.versions.retain(|(serial, _)| *serial > last);
            self.versions -= before - sector.versions.len();
            sector.base = None;
        }
        let empty: Vec<u64> =
            self.sectors.range(range).filter(|(_, s)| s.versions.is_empty()).map(|(lba, _)| *lba).collect();
        for lba in empty {
            self.sectors.remove(&lba);
        }
    }

    /// Counts an acknowledged write. True if the power fails after it.
    pub(super) fn acknowledge(&mut self) -> bool {
        self.acknowledged += 1;
        let fails = match self.rule.when {
            When::Never => false,
            When::After(count) => self.acknowledged == count,
            When::Every(count) => self.below(count) == 0,
        };
        if fails {
            self.cut();
            self.ends = true;
        }
        fails
    }

    /// Cuts the power: each unit becomes its state on the medium, or its state after one of the writes since.
    pub(super) fn cut(&mut self) {
        self.cuts += 1;
        let mut sectors = std::mem::take(&mut self.sectors);
        // Mode 0 keeps no write and mode 1 every write; in other modes each unit keeps writes with probability
        // `share`/8. This models different kinds of caches.
        let (mode, share) = (self.below(8), 1 + self.below(7));
        if let Some((range, last)) = &self.writing {
            // Writes in flight to the storage beneath will still arrive there, so they count as stored.
            for (_, sector) in sectors.range_mut(range.clone()) {
                if let Some(bytes) = sector.until(*last).cloned() {
                    sector.base = Some(bytes);
                    sector.versions.retain(|(serial, _)| serial > last);
                }
            }
        }
        let unit = self.rule.unit;
        let mut all: Vec<_> = sectors.iter_mut().collect();
        for sectors in all.chunk_by_mut(|(one, _), (other, _)| *one / unit == *other / unit) {
            let mut writes: Vec<Serial> =
                sectors.iter().flat_map(|(_, sector)| &sector.versions).map(|(serial, _)| *serial).collect();
            writes.sort_unstable();
            writes.dedup();
            let kept = match mode {
                0 => false,
                1 => true,
                _ => self.below(8) < share,
            };
            if kept && !writes.is_empty() {
                let last = writes.len() - 1;
                let chosen = if mode == 1 { last } else { self.below(writes.len() as u64) as usize };
                for (_, sector) in sectors.iter_mut() {
                    sector.base = sector.until(writes[chosen]).cloned();
                }
            }
            sectors.iter_mut().for_each(|(_, sector)| sector.versions.clear());
        }
        sectors.retain(|_, sector| sector.base.is_some());
        (self.sectors, self.versions) = (sectors, 0);
    }

    /// A pseudo-random number below `bound` (SplitMix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % bound
    }
}
