//! What waits for a round of barriers.

use std::collections::BTreeMap;
use std::ops::Range;

use foldhash::HashSet;

use super::{Context, Generation};

/// A sealed block that waits in a slot of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) slot: u32,
    pub(super) context: Context,
    /// The version that is in storage, or will be when this entry is written.
    pub(super) base: Option<Generation>,
}

/// Writes and discards since the last round began.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) entries: BTreeMap<u64, Entry>,
    /// Slots of requests that will become entries.
    pub(super) reserved: usize,
    /// Blocks that become unwritten; none of them has an entry.
    pub(super) discards: Vec<Range<u64>>,
    /// Blocks whose first data is in storage and whose contexts are in memory only. Their groups are initialised.
    pub(super) fresh: BTreeMap<u64, Context>,
    /// Pages of entries and discards; each has one pin for this batch.
    pub(super) pages: HashSet<u64>,
    /// Pages of `fresh`, likewise.
    pub(super) fresh_pages: HashSet<u64>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.discards.is_empty() && self.fresh.is_empty()
    }

    /// Whether it says anything of one of the blocks.
    pub(super) fn has_any(&self, blocks: &Range<u64>) -> bool {
        self.entries.range(blocks.clone()).next().is_some()
            || self.fresh.range(blocks.clone()).next().is_some()
            || self.has_discarded_any(blocks)
    }

    pub(super) fn has_discarded(&self, block: u64) -> bool {
        self.discards.iter().any(|range| range.contains(&block))
    }

    pub(super) fn has_discarded_any(&self, blocks: &Range<u64>) -> bool {
        self.discards.iter().any(|range| range.start < blocks.end && blocks.start < range.end)
    }

    /// Adds a discarded range; overlapping and adjacent ones become one.
    pub(super) fn discard(&mut self, mut blocks: Range<u64>) {
        self.discards.retain(|range| {
            let is_apart = range.end < blocks.start || blocks.end < range.start;
            if !is_apart {
                blocks = range.start.min(blocks.start)..range.end.max(blocks.end);
            }
            is_apart
        });
        self.discards.push(blocks);
    }
}
