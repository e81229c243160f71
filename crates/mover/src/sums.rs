//! What a range held, extent by extent: a BLAKE3 value for each, and what of it is zero or not known.
//!
//! Pure. An extent is a subtree of the range's BLAKE3 (`tree.rs`), so that the values join to the hash of the whole. A table is made by
//! a verification ([`Collector`]), kept as text (`manifest.rs`), and compared with a disk (`recheck.rs`). Read "The
//! manifest" in `docs/internals/mover.md`.

use std::ops::Range;

use blake3::Hash;
use blake3::hazmat::{ChainingValue, Mode, merge_subtrees_non_root};

use crate::tree::{ExtentTree, Hashed, SUBTREE_BYTES_MAX, Subtree, Tree};

/// Most extents of a range: beyond so many MiB an extent is longer.
pub const EXTENTS_MAX: u64 = 1 << 20;
/// Shortest extent, in bytes.
pub const EXTENT_BYTES_MIN: u64 = SUBTREE_BYTES_MAX;

/// What an extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nobody knows: it was not read, or not in whole blocks.
    Unknown,
    /// Zero in every byte; with its value, if that was computed.
    Zero(Option<[u8; 32]>),
    /// Bytes that have this value.
    Data([u8; 32]),
}

impl Content {
    /// Its value in the tree of the range.
    pub fn value(&self) -> Option<[u8; 32]> {
        match self {
            Self::Unknown | Self::Zero(None) => None,
            Self::Zero(Some(value)) | Self::Data(value) => Some(*value),
        }
    }
}

/// One extent; or, where nothing is known or all is zero, an aligned power of two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// First byte, counted from the start of the range.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// What they are.
    pub content: Content,
}

/// What a range held. Sums tile it; whoever makes one has seen to that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    total: u64,
    extent: u64,
    sums: Vec<Sum>,
    whole: Option<Hash>,
}

impl Sums {
    /// Bytes of an extent of a range of `total` bytes: a power of two.
    pub fn extent_of(total: u64) -> u64 {
        total.div_ceil(EXTENTS_MAX).next_power_of_two().max(EXTENT_BYTES_MIN)
    }

    /// A table, if these tile the range and each is a subtree of it. `total` bytes in extents of `extent` bytes, a power
    /// of two, at least [`EXTENT_BYTES_MIN`]; not more than [`EXTENTS_MAX`] of them.
    pub fn new(total: u64, extent: u64, sums: Vec<Sum>) -> Option<Self> {
        let is_extent = extent.is_power_of_two() && extent >= EXTENT_BYTES_MIN;
        if !is_extent || total.div_ceil(extent) > EXTENTS_MAX {
            return None;
        }
        let mut at = 0;
        for sum in &sums {
            if sum.offset != at || !is_subtree(sum, total, extent) {
                return None;
            }
            at += sum.bytes;
        }
        let mut table = Self { total, extent, sums, whole: None };
        table.whole = table.joined();
        (at == total).then_some(table)
    }

    /// Bytes of the range.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of an extent; the last one may be shorter.
    pub fn extent(&self) -> u64 {
        self.extent
    }

    /// Extents in all.
    pub fn extents(&self) -> u64 {
        self.total.div_ceil(self.extent)
    }

    /// What they hold, in order, without gaps.
    pub fn sums(&self) -> &[Sum] {
        &self.sums
    }

    /// Bytes of extents that nothing is known of.
    pub fn unknown_bytes(&self) -> u64 {
        let unknown = self.sums.iter().filter(|sum| sum.content == Content::Unknown);
        unknown.map(|sum| sum.bytes).sum()
    }

    /// BLAKE3 of the range, in hexadecimal digits: what the values join to. `None` if an extent has none.
    pub fn blake3(&self) -> Option<String> {
        self.whole.map(|whole| whole.to_hex().to_string())
    }

    fn joined(&self) -> Option<Hash> {
        match self.sums.as_slice() {
            // The root is no subtree like the others, and the value of a range that is one extent.
            [one] if self.total <= self.extent => one.content.value().map(Hash::from_bytes),
            sums => {
                let mut tree = Tree::new(self.total);
                for sum in sums {
                    let value = sum.content.value()?;
                    tree.insert(Subtree { offset: sum.offset, bytes: sum.bytes, value });
                }
                tree.root()
            }
        }
    }
}

/// Whether it is one extent, or an aligned power of two of them that have no data, and not the whole.
fn is_subtree(sum: &Sum, total: u64, extent: u64) -> bool {
    let Some(left) = total.checked_sub(sum.offset) else { return false };
    let one = sum.offset.is_multiple_of(extent) && sum.bytes > 0 && sum.bytes == extent.min(left);
    let several = sum.bytes.is_power_of_two()
        && sum.bytes > extent
        && sum.offset.is_multiple_of(sum.bytes)
        && sum.bytes <= left
        && sum.bytes < total;
    one || several && !matches!(sum.content, Content::Data(_))
}

/// Appends one extent, and joins what can be one line.
fn push(sums: &mut Vec<Sum>, mut sum: Sum, total: u64) {
    while let Some(last) = sums.last() {
        let fits = last.bytes == sum.bytes
            && sum.bytes < total - sum.bytes
            && last.offset.is_multiple_of(2 * sum.bytes);
        let content = match (last.content, sum.content) {
            _ if !fits => break,
            (Content::Unknown, Content::Unknown) => Content::Unknown,
            (Content::Zero(None), Content::Zero(None)) => Content::Zero(None),
            (Content::Zero(Some(left)), Content::Zero(Some(right))) => {
                Content::Zero(Some(merge_subtrees_non_root(&left, &right, Mode::Hash)))
            }
            _ => break,
        };
        sum = Sum { offset: last.offset, bytes: 2 * sum.bytes, content };
        sums.pop();
    }
    sums.push(sum);
}

/// Takes what a verification finds to be right, piece by piece, in any order.
#[derive(Debug)]
pub(crate) struct Collector {
    total: u64,
    extent: u64,
    tree: ExtentTree,
    /// One for each extent.
    contents: Vec<Content>,
}

impl Collector {
    /// Of a range in which `zeroes` (ascending stretches that may touch) are expected to be zero, and will be looked at.
    pub(crate) fn new(total: u64, zeroes: impl Iterator<Item = Range<u64>>) -> Self {
        let extent = Sums::extent_of(total);
        let mut contents = vec![Content::Unknown; total.div_ceil(extent) as usize];
        let mut mark = |run: &Range<u64>| {
            let end = if run.end == total { contents.len() as u64 } else { run.end / extent };
            for index in run.start.div_ceil(extent)..end {
                contents[index as usize] = Content::Zero(None);
            }
        };
        let mut run = 0..0;
        for next in zeroes {
            if next.start != run.end {
                mark(&run);
                run.start = next.start;
            }
            run.end = next.end;
        }
        mark(&run);
        Self { total, extent, tree: ExtentTree::new(total, extent), contents }
    }

    /// Takes a piece that is as it should be. No byte may come twice.
    pub(crate) fn add(&mut self, hashed: &Hashed) {
        let contents = &mut self.contents;
        self.tree.add(hashed, |index, value: ChainingValue| {
            let content = &mut contents[index as usize];
            *content = match content {
                Content::Zero(_) => Content::Zero(Some(value)),
                _ => Content::Data(value),
            };
        });
    }

    /// Takes a piece that is as it should be and was not hashed, and hashes it but for what lies in extents that are all zero.
    pub(crate) fn add_bytes(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let index = at / self.extent;
            let stop = end.min((index + 1).saturating_mul(self.extent));
            if !matches!(self.contents[index as usize], Content::Zero(_)) {
                let part = &bytes[(at - offset) as usize..(stop - offset) as usize];
                self.add(&Hashed::new(at, part, self.total));
            }
            at = stop;
        }
    }

    /// The table, when all that was copied has come.
    pub(crate) fn finish(self) -> Sums {
        let mut sums = Vec::new();
        for (index, content) in self.contents.into_iter().enumerate() {
            let offset = index as u64 * self.extent;
            let bytes = self.extent.min(self.total - offset);
            push(&mut sums, Sum { offset, bytes, content }, self.total);
        }
        Sums::new(self.total, self.extent, sums).expect("extents tile their range")
    }
}

#[cfg(test)]
mod tests;
