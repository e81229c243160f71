//! Slots of the memory in which sealed blocks wait for a barrier.

use std::ops::Range;

use super::POOL_SLOTS;

/// References to each slot: one of the entry that holds it, one of each request that reads it.
pub(super) struct Pool {
    references: Vec<u16>,
    free: u32,
    /// Where the last search ended: successive allocations are contiguous.
    next: u32,
}

impl Pool {
    pub(super) fn new() -> Self {
        Self { references: vec![0; POOL_SLOTS as usize], free: POOL_SLOTS, next: 0 }
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Takes at most `count` contiguous slots, at least one; none if no slot is free.
    pub(super) fn take(&mut self, count: u32) -> Option<Range<u32>> {
        if self.free == 0 || count == 0 {
            return None;
        }
        let is_free = |slot: u32| self.references[slot as usize] == 0;
        let first = (self.next..POOL_SLOTS).chain(0..self.next).find(|slot| is_free(*slot))?;
        let limit = POOL_SLOTS.min(first + count);
        let end = (first..limit).find(|slot| !is_free(*slot)).unwrap_or(limit);
        for slot in first..end {
            self.references[slot as usize] = 1;
        }
        self.free -= end - first;
        self.next = end % POOL_SLOTS;
        Some(first..end)
    }

    pub(super) fn share(&mut self, slot: u32) {
        self.references[slot as usize] += 1;
    }

    pub(super) fn release(&mut self, slot: u32) {
        let references = &mut self.references[slot as usize];
        *references -= 1;
        self.free += u32::from(*references == 0);
    }
}
