//! Reading the destination back and comparing it with what was read from the source, by digest. What was found to be the
//! same is hashed as a whole on the way.

use std::ops::Range;

use area::Span;

use crate::cutter::Piece;
use crate::job::{Extents, Job, Step};
use crate::map::{Map, Status};
use crate::progress::Phase;
use crate::sums::{Collector, Sums};
use crate::tree::{Hashed, Tree};
use crate::zero::is_zero;

/// In the place of a digest: all zero, a hole or data that turned out so.
const ZERO: [u8; 32] = [0; 32];
/// In the place of a digest: nothing was read here, or not in this run.
const UNKNOWN: [u8; 32] = [0xff; 32];

/// From where on what was read. It reaches to the next entry.
#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: u64,
    /// [`Hashed::digest`] of the bytes, [`ZERO`] or [`UNKNOWN`].
    digest: [u8; 32],
}

/// Most entries (160 MiB: 4 TiB of data in chunks of 1 MiB). What begins behind them has no digest and is read from both
/// ends in the verification.
const ENTRIES_MAX: usize = if cfg!(test) { 60 } else { 4 << 20 };

/// Where more zeroes than this, and more than there is data, would have to be hashed for the hash of the whole, there is none: they
/// can be skipped by a copy and looked at fast, and an image that is nearly all hole would be verified at the speed of hashing.
const ZERO_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 4 << 30 };

/// One entry per piece, 40 bytes each (40 MiB for 1 TiB in chunks of 1 MiB). Entries come in any order and tile the range
/// together; of two at one place the later one counts.
#[derive(Debug)]
pub(crate) struct Digests {
    entries: Vec<Entry>,
    /// Bytes of the range.
    total: u64,
    /// Bytes of the longest piece that has a digest.
    longest: u32,
    /// Most entries, and whether there were more.
    most: usize,
    is_full: bool,
}

impl Digests {
    /// Before anything was read. What is not to be read at first is unknown.
    pub(crate) fn new(map: &Map) -> Self {
        let (total, most) = (map.size(), ENTRIES_MAX);
        let mut digests = Self { entries: Vec::new(), total, longest: 0, most, is_full: false };
        digests.forget_all_but_open(map);
        digests
    }

    fn forget_all_but_open(&mut self, map: &Map) {
        let known = map.stretches().filter(|stretch| stretch.status != Status::NonTried);
        self.entries.extend(known.map(|stretch| Entry { offset: stretch.start, digest: UNKNOWN }));
    }

    /// Appends a piece, zero until [`Digests::set`]. Gives its index.
    pub(crate) fn push(&mut self, offset: u64) -> usize {
        let is_full = self.entries.len() >= self.most;
        if !is_full || !self.is_full {
            let digest = if is_full { UNKNOWN } else { ZERO };
            self.entries.push(Entry { offset, digest });
        }
        self.is_full |= is_full;
        if is_full { usize::MAX } else { self.entries.len() - 1 }
    }

    /// Takes the bytes of a piece.
    pub(crate) fn set(&mut self, index: usize, bytes: &[u8]) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        self.longest = self.longest.max(bytes.len() as u32);
        entry.digest = Hashed::new(entry.offset, bytes, self.total).digest();
    }

    /// The piece could not be read.
    pub(crate) fn forget(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.digest = UNKNOWN;
        }
    }

    /// What is not tried any more, because the destination lost it, will be cut anew.
    pub(crate) fn rewind(&mut self, map: &Map) {
        self.entries.retain(|entry| map.at(entry.offset).status != Status::NonTried);
        // Where there was no room, no entry says where what was not lost begins.
        if std::mem::take(&mut self.is_full) {
            self.forget_all_but_open(map);
        }
    }

    /// In the order of the range, one for each place.
    fn sort(&mut self) {
        self.entries.reverse();
        self.entries.sort_by_key(|entry| entry.offset);
        self.entries.dedup_by_key(|entry| entry.offset);
    }

    /// Of sorted ones: stretches that are zero. They may touch.
    fn zeroes(&self) -> impl Iterator<Item = Range<u64>> {
        let ends = self.entries.iter().skip(1).map(|next| next.offset).chain([self.total]);
        let zeroes = self.entries.iter().zip(ends).filter(|(entry, _)| entry.digest == ZERO);
        zeroes.map(|(entry, end)| entry.offset..end)
    }
}

/// Reads the destination and compares. What has no digest of this run is read from both ends.
pub(crate) struct Verify {
    digests: Digests,
    /// What the copy finished.
    copied: Map,
    /// The next byte to be read, and the entry it lies in.
    at: u64,
    entry: usize,
    /// Something has no digest, so that slots have room for both ends.
    both: bool,
    /// Of what is the same. None if it would cost too much.
    tree: Option<Tree>,
    /// Of what is the same too, if a table of it is wanted.
    collector: Option<Collector>,
    dst_offset: u64,
    /// Offset in the destination and length.
    difference: Option<(u64, u64)>,
}

impl Verify {
    /// `tells` if [`Verify::finish`] is to give the sums.
    pub(crate) fn new(mut digests: Digests, copied: Map, dst_offset: u64, tells: bool) -> Self {
        digests.sort();
        assert!(digests.entries.first().is_none_or(|entry| entry.offset == 0), "entries tile the range");
        let both = digests.entries.iter().any(|entry| entry.digest == UNKNOWN);
        let total = copied.size();
        let zero_bytes: u64 = digests.zeroes().map(|zeroes| zeroes.end - zeroes.start).sum();
        let tree = (zero_bytes <= ZERO_BYTES_MAX.max(total / 2)).then(|| Tree::new(total));
        let collector = tells.then(|| Collector::new(total, digests.zeroes()));
        let (at, entry, difference) = (0, 0, None);
        let mut verify = Self { digests, copied, at, entry, both, tree, collector, dst_offset, difference };
        verify.skip();
        verify
    }

    /// Offset in the destination and length of the first chunk that differs. Pieces are begun in order and
    /// all that were begun are looked at, so that no earlier one was missed.
    pub(crate) fn difference(&self) -> Option<(u64, u64)> {
        self.difference
    }

    /// When all is the same: BLAKE3 of the range, in hexadecimal digits, and the sums if they are wanted. No hash if a part was
    /// not copied, or only block by block, or if nearly all is zero ([`ZERO_BYTES_MAX`]).
    pub(crate) fn finish(self) -> (Option<String>, Option<Sums>) {
        let root = self.tree.and_then(|tree| tree.root()).map(|root| root.to_hex().to_string());
        let sums = self.collector.map(Collector::finish);
        let joined = sums.as_ref().and_then(Sums::blake3);
        assert!(root.is_none() || sums.is_none() || root == joined, "the sums are those of the range");
        (root.or(joined), sums)
    }

    /// The end of what can be read at once from `at` on, and what it is to be.
    fn stretch(&self) -> (u64, [u8; 32]) {
        let digest = self.digests.entries[self.entry].digest;
        let end = self.digests.entries.get(self.entry + 1).map_or(self.copied.size(), |next| next.offset);
        let end = if digest == UNKNOWN { end.min(self.copied.at(self.at).end) } else { end };
        (end, digest)
    }

    /// Passes by what was not copied.
    fn skip(&mut self) {
        while self.at < self.copied.size() {
            let (end, digest) = self.stretch();
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

impl Job for Verify {
    const PHASE: Phase = Phase::Verify;
    /// The digests are of whole pieces.
    const SHRINKS: bool = false;

    fn spans(&self) -> usize {
        1 + usize::from(self.both)
    }

    /// A chunk that shrank on the way may be shorter than the first ones were.
    fn chunk(&self, chunk: u32) -> u32 {
        chunk.max(self.digests.longest)
    }

    fn is_exhausted(&self, _map: &Map) -> bool {
        self.at == self.copied.size()
    }

    fn next(&mut self, chunk: u32, _map: &Map, _extents: &mut Extents<'_, '_>) -> Option<Piece> {
        let (end, digest) = self.stretch();
        let whole = digest != UNKNOWN && digest != ZERO;
        let length = if whole { end - self.at } else { (end - self.at).min(chunk.into()) };
        let piece = Piece { offset: self.at, length: length as u32, zero: digest == ZERO, index: self.entry };
        self.advance(self.at + length);
        self.skip();
        Some(piece)
    }

    fn on_begin(&mut self, piece: &Piece) -> Step {
        Step::Read([self.digests.entries[piece.index].digest == UNKNOWN, true])
    }

    fn on_read(&mut self, piece: &Piece, spans: &[Span]) -> Step {
        let bytes = &spans[spans.len() - 1].as_slice()[..piece.length as usize];
        let digest = self.digests.entries[piece.index].digest;
        let is_hashed = self.tree.is_some() || (digest != ZERO && digest != UNKNOWN);
        let hashed = is_hashed.then(|| Hashed::new(piece.offset, bytes, self.copied.size()));
        let same = match digest {
            ZERO => is_zero(bytes),
            UNKNOWN => spans[0].as_slice()[..piece.length as usize] == *bytes,
            digest => hashed.as_ref().is_some_and(|hashed| hashed.digest() == digest),
        };
        if same {
            if let (Some(tree), Some(hashed)) = (&mut self.tree, &hashed) {
                tree.add(hashed);
            }
            match (&mut self.collector, hashed) {
                (Some(collector), Some(hashed)) => collector.add(&hashed),
                (Some(collector), None) => collector.add_bytes(piece.offset, bytes),
                (None, _) => {}
            }
            return Step::Done;
        }
        let here = (self.dst_offset + piece.offset, u64::from(piece.length));
        self.difference = Some(self.difference.map_or(here, |earlier| earlier.min(here)));
        Step::Halt
    }
}
