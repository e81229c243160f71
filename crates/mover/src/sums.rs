//! The content of a range by extent: a BLAKE3 value of each, and which are zero or unknown.
//!
//! Pure. An extent is a subtree of the range's BLAKE3 (`tree.rs`), so the values combine to the hash of the whole. A
//! verification creates a table ([`Collector`]), `manifest.rs` stores it as text, and `recheck.rs` compares it with a
//! disk. Read "The manifest" in `docs/internals/mover-verify.md`.

use std::ops::Range;

use blake3::Hash;
use blake3::hazmat::{ChainingValue, Mode, merge_subtrees_non_root};

use crate::tree::{ExtentTree, Hashed, SUBTREE_BYTES_MAX, Subtree, Tree};

/// Bound of the extents of a range: for ranges of more MiB, extents are longer.
pub const EXTENTS_MAX: u64 = 1 << 20;
pub const EXTENT_BYTES_MIN: u64 = SUBTREE_BYTES_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Unknown: the extent was not read, or not in whole blocks.
    Unknown,
    /// Zero in every byte; with the chaining value, if that was computed.
    Zero(Option<[u8; 32]>),
    Data([u8; 32]),
}

impl Content {
    pub fn value(&self) -> Option<[u8; 32]> {
        match self {
            Self::Unknown | Self::Zero(None) => None,
            Self::Zero(Some(value)) | Self::Data(value) => Some(*value),
        }
    }
}

/// One extent, or an aligned power of two of extents that are all unknown or all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// First byte, counted from the start of the range.
    pub offset: u64,
    pub bytes: u64,
    pub content: Content,
}

/// The content of a range. The sums tile it, which [`Sums::new`] checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    total: u64,
    extent: u64,
    sums: Vec<Sum>,
    whole: Option<Hash>,
}

impl Sums {
    /// Bytes of an extent for a range of `total` bytes: a power of two.
    pub fn extent_of(total: u64) -> u64 {
        total.div_ceil(EXTENTS_MAX).next_power_of_two().max(EXTENT_BYTES_MIN)
    }

    /// A table, if the sums tile the range and each is a subtree of it. `total` bytes in extents of `extent` bytes, a
    /// power of two, at least [`EXTENT_BYTES_MIN`]; at most [`EXTENTS_MAX`] extents.
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

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of an extent; the last one may be shorter.
    pub fn extent(&self) -> u64 {
        self.extent
    }

    pub fn extents(&self) -> u64 {
        self.total.div_ceil(self.extent)
    }

    /// The sums in ascending order, without gaps.
    pub fn sums(&self) -> &[Sum] {
        &self.sums
    }

    pub fn unknown_bytes(&self) -> u64 {
        let unknown = self.sums.iter().filter(|sum| sum.content == Content::Unknown);
        unknown.map(|sum| sum.bytes).sum()
    }

    /// BLAKE3 of the range in hexadecimal digits, combined from the values. `None` if an extent has no value.
    pub fn blake3(&self) -> Option<String> {
        self.whole.map(|whole| whole.to_hex().to_string())
    }

    fn joined(&self) -> Option<Hash> {
        match self.sums.as_slice() {
            // A range of one extent has the root as value: the root is finalized differently from subtrees.
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

/// Whether a sum is one extent, or an aligned power of two of extents without data that is not the whole range.
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

/// Appends one extent, and joins sums that can be one line.
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

/// Collects verified runs, in any order.
#[derive(Debug)]
pub(crate) struct Collector {
    total: u64,
    extent: u64,
    tree: ExtentTree,
    /// Indexed by extent.
    contents: Vec<Content>,
}

impl Collector {
    /// For a range in which `zeroes` (ascending ranges that may be adjacent) are expected to be zero; their runs are
    /// verified too.
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

    /// Adds a verified run. No byte may be added twice.
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

    /// Adds a verified run that was not hashed; hashes it, except for parts in extents that are all zero.
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

    /// The table, after all copied runs were added.
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
