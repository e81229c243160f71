//! BLAKE3 of a range from its runs in any order: subtrees are joined when both halves are known.
//!
//! Section 2.1 of the BLAKE3 paper: the tree consists of chunks of 1024 bytes, and a chaining value depends on the
//! position of its subtree. So a run has the chaining values of the largest aligned subtrees that it consists of:
//! one, if its length is a power of two and its offset a multiple of that. Zeroes are hashed like data, because their
//! values depend on the position too.

use std::collections::BTreeMap;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, max_subtree_len, merge_subtrees_non_root,
    merge_subtrees_root,
};
use blake3::{CHUNK_LEN, Hash, Hasher};

/// Longest subtree that a run is hashed as, in bytes: the shortest extent of [`crate::Sums`], so that a subtree is
/// part of only one extent.
pub(crate) const SUBTREE_BYTES_MAX: u64 = if cfg!(test) { 16 << 10 } else { 1 << 20 };

/// A subtree other than the root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subtree {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) value: ChainingValue,
}

#[derive(Debug)]
pub(crate) enum Hashed {
    /// The subtrees of the run, in order.
    Subtrees(Vec<Subtree>),
    /// The run is the whole range, or begins or ends within a chunk: it has no subtree.
    Alone(Hash),
}

impl Hashed {
    /// Hashes the run at `offset` of a range of `total` bytes.
    pub(crate) fn new(offset: u64, bytes: &[u8], total: u64) -> Self {
        let chunk = CHUNK_LEN as u64;
        let end = offset + bytes.len() as u64;
        assert!(end <= total && !bytes.is_empty(), "{offset}..{end} of {total}");
        let fits = offset.is_multiple_of(chunk) && (end.is_multiple_of(chunk) || end == total);
        if !fits || total <= chunk {
            return Self::Alone(blake3::hash(bytes));
        }
        let (mut subtrees, mut at, mut rest) = (Vec::with_capacity(1), offset, bytes);
        while !rest.is_empty() {
            let most = max_subtree_len(at).unwrap_or_else(|| left_subtree_len(total)).min(SUBTREE_BYTES_MAX);
            let left = rest.len() as u64;
            // The last subtree of the range ends with the range; the length of any other is a power of two.
            let whole = if at + left == total { left } else { 1 << left.ilog2() };
            let (here, behind) = rest.split_at(whole.min(most) as usize);
            let value = Hasher::new().set_input_offset(at).update(here).finalize_non_root();
            subtrees.push(Subtree { offset: at, bytes: here.len() as u64, value });
            (at, rest) = (at + here.len() as u64, behind);
        }
        Self::Subtrees(subtrees)
    }

    /// A 32-byte value that identifies the content of the run at this offset.
    pub(crate) fn digest(&self) -> [u8; 32] {
        match self {
            Self::Alone(hash) => *hash.as_bytes(),
            Self::Subtrees(subtrees) => match subtrees.as_slice() {
                [one] => one.value,
                several => {
                    let mut hasher = Hasher::new();
                    for subtree in several {
                        hasher.update(&subtree.value);
                    }
                    *hasher.finalize().as_bytes()
                }
            },
        }
    }
}

/// The known subtrees of a range. If the added runs have no gaps, these are few: about one per level of the tree.
#[derive(Debug)]
pub(crate) struct Tree {
    total: u64,
    /// Length and chaining value of the subtree at each offset.
    subtrees: BTreeMap<u64, (u64, ChainingValue)>,
    /// The hash of a range of one chunk.
    alone: Option<Hash>,
}

impl Tree {
    pub(crate) fn new(total: u64) -> Self {
        Self { total, subtrees: BTreeMap::new(), alone: (total == 0).then(|| blake3::hash(&[])) }
    }

    /// Adds a run. No byte may be added twice.
    pub(crate) fn add(&mut self, hashed: &Hashed) {
        match hashed {
            Hashed::Subtrees(subtrees) => subtrees.iter().for_each(|subtree| self.insert(*subtree)),
            Hashed::Alone(hash) if self.total <= CHUNK_LEN as u64 => self.alone = Some(*hash),
            // The run remains a gap.
            Hashed::Alone(_) => {}
        }
    }

    /// Adds a subtree. No byte may be added twice.
    pub(crate) fn insert(&mut self, subtree: Subtree) {
        let Subtree { mut offset, mut bytes, mut value } = subtree;
        // The two halves of the root stay separate, since the root is finalized differently; so do the last subtrees,
        // which may be short.
        while bytes.is_power_of_two() && bytes >= CHUNK_LEN as u64 && 2 * bytes < self.total {
            let other = offset ^ bytes;
            let Some((length, sibling)) = self.subtrees.get(&other).copied() else { break };
            if length != bytes {
                break;
            }
            self.subtrees.remove(&other);
            let (left, right) = if offset < other { (value, sibling) } else { (sibling, value) };
            value = merge_subtrees_non_root(&left, &right, Mode::Hash);
            (offset, bytes) = (offset.min(other), 2 * bytes);
        }
        self.subtrees.insert(offset, (bytes, value));
    }

    /// The BLAKE3 of the range; `None` if a part was not added.
    pub(crate) fn root(&self) -> Option<Hash> {
        if self.total <= CHUNK_LEN as u64 {
            return self.alone;
        }
        let left = left_subtree_len(self.total);
        let (left, right) = (self.value(0, left)?, self.value(left, self.total - left)?);
        Some(merge_subtrees_root(&left, &right, Mode::Hash))
    }

    fn value(&self, offset: u64, bytes: u64) -> Option<ChainingValue> {
        let (length, value) = self.subtrees.get(&offset).copied()?;
        if length == bytes {
            return Some(value);
        }
        if bytes <= CHUNK_LEN as u64 {
            return None;
        }
        let left = left_subtree_len(bytes);
        let (left, right) = (self.value(offset, left)?, self.value(offset + left, bytes - left)?);
        Some(merge_subtrees_non_root(&left, &right, Mode::Hash))
    }
}

/// The extents of equal length of a range, of which the last may be shorter: reports the value of each extent when all
/// its bytes were added. Holds a few subtrees for each incomplete extent.
#[derive(Debug)]
pub(crate) struct ExtentTree {
    tree: Tree,
    /// Bytes of an extent, a power of two, at least [`SUBTREE_BYTES_MAX`].
    extent: u64,
}

impl ExtentTree {
    pub(crate) fn new(total: u64, extent: u64) -> Self {
        assert!(extent.is_power_of_two() && extent >= SUBTREE_BYTES_MAX, "extents of {extent} bytes");
        Self { tree: Tree::new(total), extent }
    }

    /// Adds a run; calls `complete` for each extent completed. One extent has the root as value. No byte twice.
    pub(crate) fn add(&mut self, hashed: &Hashed, mut complete: impl FnMut(u64, ChainingValue)) {
        let total = self.tree.total;
        if total <= self.extent {
            self.tree.add(hashed);
            if let Some(root) = self.tree.root() {
                complete(0, *root.as_bytes());
            }
            return;
        }
        let Hashed::Subtrees(subtrees) = hashed else { return };
        for subtree in subtrees {
            self.tree.insert(*subtree);
            let index = subtree.offset / self.extent;
            let start = index * self.extent;
            let bytes = self.extent.min(total - start);
            if let Some(value) = self.tree.value(start, bytes) {
                // Removes the extent's subtrees, so that they do not merge with those of its neighbour.
                while let Some((&offset, _)) = self.tree.subtrees.range(start..start + bytes).next() {
                    self.tree.subtrees.remove(&offset);
                }
                complete(index, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Random;

    #[test]
    fn pieces_in_any_order_come_to_the_hash_of_all_bytes() {
        for seed in 1..=400 {
            let mut random = Random::new(seed);
            let total = match seed % 4 {
                0 => random.below(3000),
                1 => 1024 << random.below(9),
                _ => random.below(300_000),
            };
            let mut bytes = vec![0; total as usize];
            if !random.one_in(5) {
                random.fill(&mut bytes);
            }
            let step = 1024 << random.below(4);
            let (mut runs, mut at) = (Vec::new(), 0);
            while at < total {
                let end = (at + step * (1 + random.below(40))).min(total);
                runs.push((at, end));
                at = end;
            }
            let mut tree = Tree::new(total);
            while !runs.is_empty() {
                assert!(tree.root().is_none(), "seed {seed}: a part is missing");
                let place = random.below(runs.len() as u64) as usize;
                let (start, end) = runs.swap_remove(place);
                tree.add(&Hashed::new(start, &bytes[start as usize..end as usize], total));
            }
            assert_eq!(tree.root(), Some(blake3::hash(&bytes)), "seed {seed}: {total} bytes");
        }
    }

    #[test]
    fn in_order_few_subtrees_are_kept() {
        let bytes = vec![7; 4096];
        let total = 4096 * 1000 + 5;
        let mut tree = Tree::new(total);
        for run in 0..1000 {
            tree.add(&Hashed::new(run * 4096, &bytes, total));
            assert!(tree.subtrees.len() <= 12, "{}", tree.subtrees.len());
        }
        tree.add(&Hashed::new(4096 * 1000, &[7; 5], total));
        assert_eq!(tree.root(), Some(blake3::hash(&vec![7; total as usize])));
    }

    #[test]
    fn a_piece_inside_a_chunk_is_no_part_of_a_tree() {
        let bytes = [3; 4096];
        let mut tree = Tree::new(4096);
        tree.add(&Hashed::new(0, &bytes[..512], 4096));
        tree.add(&Hashed::new(512, &bytes[512..1024], 4096));
        tree.add(&Hashed::new(1024, &bytes[1024..], 4096));
        assert_eq!(tree.root(), None);
    }

    #[test]
    fn a_digest_tells_pieces_apart() {
        let mut bytes = [0; 12 << 10];
        let digest = |bytes: &[u8]| Hashed::new(4096, bytes, 1 << 20).digest();
        let (zero, one) = (digest(&bytes), digest(&bytes[..8192]));
        assert_ne!(zero, one);
        bytes[12_000] = 1;
        assert_ne!(digest(&bytes), zero);
        assert_eq!(digest(&bytes[..8192]), one);
    }
}
