//! Verification: reads the destination back and compares it with the data read from the source, by digest. Equal data
//! is also hashed to the BLAKE3 of the range.

use std::ops::Range;

use area::Span;

use crate::cutter::Run;
use crate::map::{Map, Status};
use crate::operation::{Extents, Operation, Step};
use crate::progress::Phase;
use crate::sums::{Collector, Sums};
use crate::tree::{Hashed, Tree};
use crate::zero::is_zero;

/// Marker instead of a digest: all zero, a hole or zero data.
const ZERO: [u8; 32] = [0; 32];
/// Marker instead of a digest: not read, or not in this run.
const UNKNOWN: [u8; 32] = [0xff; 32];

/// The digest of a run, which ends at the next entry.
#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: u64,
    /// [`Hashed::digest`] of the bytes, [`ZERO`] or [`UNKNOWN`].
    digest: [u8; 32],
}

/// Bound of the entries (160 MiB: 4 TiB of data in chunks of 1 MiB). Runs beyond it have no digest; the verification
/// reads them from both ends.
const ENTRIES_MAX: usize = if cfg!(test) { 60 } else { 4 << 20 };

/// If more than this and more than half of the range is zero, no hash of the whole is computed: zeroes can be skipped
/// by a copy and verified fast, and an image that is mostly holes would be verified at the speed of hashing.
const ZERO_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 4 << 30 };

/// One entry per run, 40 bytes each (40 MiB for 1 TiB in chunks of 1 MiB). Entries are added in any order and tile
/// the range together; of two at one offset the later one is valid.
#[derive(Debug)]
pub(crate) struct Digests {
    entries: Vec<Entry>,
    total: u64,
    /// Bytes of the longest run with a digest.
    longest: u32,
    /// Bound of the entries, and whether it was exceeded.
    most: usize,
    is_full: bool,
}

impl Digests {
    /// The state before anything is read. Ranges that are not read at first are unknown.
    pub(crate) fn new(map: &Map) -> Self {
        let (total, most) = (map.size(), ENTRIES_MAX);
        let mut digests = Self { entries: Vec::new(), total, longest: 0, most, is_full: false };
        digests.forget_all_but_open(map);
        digests
    }

    fn forget_all_but_open(&mut self, map: &Map) {
        let known = map.entries().filter(|entry| entry.status != Status::NonTried);
        self.entries.extend(known.map(|entry| Entry { offset: entry.start, digest: UNKNOWN }));
    }

    /// Appends a run, marked as zero until [`Digests::set`]. Returns its index.
    pub(crate) fn push(&mut self, offset: u64) -> usize {
        let is_full = self.entries.len() >= self.most;
        if !is_full || !self.is_full {
            let digest = if is_full { UNKNOWN } else { ZERO };
            self.entries.push(Entry { offset, digest });
        }
        self.is_full |= is_full;
        if is_full { usize::MAX } else { self.entries.len() - 1 }
    }

    /// Sets the digest of a run from its bytes.
    pub(crate) fn set(&mut self, index: usize, bytes: &[u8]) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        self.longest = self.longest.max(bytes.len() as u32);
        entry.digest = Hashed::new(entry.offset, bytes, self.total).digest();
    }

    /// Marks a run that could not be read as unknown.
    pub(crate) fn forget(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.digest = UNKNOWN;
        }
    }

    /// Removes the runs that are not tried any more because the destination lost them; they will be cut again.
    pub(crate) fn rewind(&mut self, map: &Map) {
        self.entries.retain(|entry| map.at(entry.offset).status != Status::NonTried);
        // Entries beyond the bound are missing, so the start of what was not lost is unknown there.
        if std::mem::take(&mut self.is_full) {
            self.forget_all_but_open(map);
        }
    }

    /// Sorts the entries by offset and keeps one for each.
    fn sort(&mut self) {
        self.entries.reverse();
        self.entries.sort_by_key(|entry| entry.offset);
        self.entries.dedup_by_key(|entry| entry.offset);
    }

    /// The ranges of zeroes of sorted entries. They may be adjacent.
    fn zeroes(&self) -> impl Iterator<Item = Range<u64>> {
        let ends = self.entries.iter().skip(1).map(|next| next.offset).chain([self.total]);
        let zeroes = self.entries.iter().zip(ends).filter(|(entry, _)| entry.digest == ZERO);
        zeroes.map(|(entry, end)| entry.offset..end)
    }
}

/// The operation that verifies. Ranges without a digest of this run are read from both ends.
pub(crate) struct Verify {
    digests: Digests,
    /// The map after the copy.
    copied: Map,
    /// Offset of the next byte to read, and the index of its entry.
    at: u64,
    entry: usize,
    /// Some ranges have no digest, so slots have two areas.
    both: bool,
    /// Hashes equal data. `None` if that would cost too much.
    tree: Option<Tree>,
    collector: Option<Collector>,
    dst_offset: u64,
    /// Offset in the destination and length of the first difference.
    difference: Option<(u64, u64)>,
}

impl Verify {
    /// `with_sums`: [`Verify::finish`] returns the sums.
    pub(crate) fn new(mut digests: Digests, copied: Map, dst_offset: u64, with_sums: bool) -> Self {
        digests.sort();
        assert!(digests.entries.first().is_none_or(|entry| entry.offset == 0), "entries tile the range");
        let both = digests.entries.iter().any(|entry| entry.digest == UNKNOWN);
        let total = copied.size();
        let zero_bytes: u64 = digests.zeroes().map(|zeroes| zeroes.end - zeroes.start).sum();
        let tree = (zero_bytes <= ZERO_BYTES_MAX.max(total / 2)).then(|| Tree::new(total));
        let collector = with_sums.then(|| Collector::new(total, digests.zeroes()));
        let (at, entry, difference) = (0, 0, None);
        let mut verify = Self { digests, copied, at, entry, both, tree, collector, dst_offset, difference };
        verify.skip();
        verify
    }

    /// Offset in the destination and length of the first chunk that differs. Runs start in order and every started
    /// run is compared, so no earlier difference is missed.
    pub(crate) fn difference(&self) -> Option<(u64, u64)> {
        self.difference
    }

    /// If everything is equal: the BLAKE3 of the range in hexadecimal digits, and the sums if requested. No hash if a
    /// part was not copied, or only block by block, or if most of the range is zero ([`ZERO_BYTES_MAX`]).
    pub(crate) fn finish(self) -> (Option<String>, Option<Sums>) {
        let root = self.tree.and_then(|tree| tree.root()).map(|root| root.to_hex().to_string());
        let sums = self.collector.map(Collector::finish);
        let joined = sums.as_ref().and_then(Sums::blake3);
        assert!(root.is_none() || sums.is_none() || root == joined, "the sums are those of the range");
        (root.or(joined), sums)
    }

    /// The end of the range from `at` on that can be read in one run, and its expected digest.
    fn next_range(&self) -> (u64, [u8; 32]) {
        let digest = self.digests.entries[self.entry].digest;
        let end = self.digests.entries.get(self.entry + 1).map_or(self.copied.size(), |next| next.offset);
        let end = if digest == UNKNOWN { end.min(self.copied.at(self.at).end) } else { end };
        (end, digest)
    }

    fn skip(&mut self) {
        while self.at < self.copied.size() {
            let (end, digest) = self.next_range();
            if digest != UNKNOWN || self.copied.at(self.at).status == Status::Finished {
                return;
            }
            self.advance(end);
        }
    }

    fn advance(&mut self, to: u64) {
        self.at = to;
        if self.digests.entries.get(self.entry + 1).is_some_and(|next| next.offset == to) {
            self.entry += 1;
        }
    }
}

impl Operation for Verify {
    const PHASE: Phase = Phase::Verify;
    /// Digests are of whole runs, so runs must not shrink.
    const SHRINKS: bool = false;

    fn spans(&self) -> usize {
        1 + usize::from(self.both)
    }

    /// At least the length of the longest digested run: the current chunk may have been reduced since.
    fn chunk(&self, chunk: u32) -> u32 {
        chunk.max(self.digests.longest)
    }

    fn is_exhausted(&self, _map: &Map) -> bool {
        self.at == self.copied.size()
    }

    fn next(&mut self, chunk: u32, _map: &Map, _extents: &mut Extents<'_, '_>) -> Option<Run> {
        let (end, digest) = self.next_range();
        let whole = digest != UNKNOWN && digest != ZERO;
        let length = if whole { end - self.at } else { (end - self.at).min(chunk.into()) };
        let run = Run { offset: self.at, length: length as u32, zero: digest == ZERO, index: self.entry };
        self.advance(self.at + length);
        self.skip();
        Some(run)
    }

    fn on_begin(&mut self, run: &Run) -> Step {
        Step::Read([self.digests.entries[run.index].digest == UNKNOWN, true])
    }

    fn on_read(&mut self, run: &Run, spans: &[Span]) -> Step {
        let bytes = &spans[spans.len() - 1].as_slice()[..run.length as usize];
        let digest = self.digests.entries[run.index].digest;
        let is_hashed = self.tree.is_some() || (digest != ZERO && digest != UNKNOWN);
        let hashed = is_hashed.then(|| Hashed::new(run.offset, bytes, self.copied.size()));
        let same = match digest {
            ZERO => is_zero(bytes),
            UNKNOWN => spans[0].as_slice()[..run.length as usize] == *bytes,
            digest => hashed.as_ref().is_some_and(|hashed| hashed.digest() == digest),
        };
        if same {
            if let (Some(tree), Some(hashed)) = (&mut self.tree, &hashed) {
                tree.add(hashed);
            }
            match (&mut self.collector, hashed) {
                (Some(collector), Some(hashed)) => collector.add(&hashed),
                (Some(collector), None) => collector.add_bytes(run.offset, bytes),
                (None, _) => {}
            }
            return Step::Done;
        }
        let here = (self.dst_offset + run.offset, u64::from(run.length));
        self.difference = Some(self.difference.map_or(here, |earlier| earlier.min(here)));
        Step::Halt
    }
}
