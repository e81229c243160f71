//! Doubly linked lists through records of one table: a record can be in several lists, in each at most once.

use zerocopy::FromZeros;

use crate::NONE;

/// A list; the records hold the rest. Ends mean something while `length` is not 0.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Chain {
    first: u32,
    last: u32,
    pub(crate) length: u32,
}

/// A record's place in one list.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Link {
    before: u32,
    next: u32,
    pub(crate) is_in: bool,
}

/// A record of which lists of kind `K` are made.
pub(crate) trait Linked<K> {
    fn link(&mut self, kind: K) -> &mut Link;
}

impl Chain {
    pub(crate) fn first(&self) -> Option<u32> {
        (self.length > 0).then_some(self.first)
    }

    /// A record that is in the list already stays where it is.
    pub(crate) fn push_back<K: Copy, T: Linked<K>>(&mut self, records: &mut [T], kind: K, index: u32) {
        let before = if self.length == 0 { NONE } else { self.last };
        let link = records[index as usize].link(kind);
        if link.is_in {
            return;
        }
        *link = Link { before, next: NONE, is_in: true };
        match before {
            NONE => self.first = index,
            _ => records[before as usize].link(kind).next = index,
        }
        self.last = index;
        self.length += 1;
    }

    /// A record that is not in the list stays out of it.
    pub(crate) fn remove<K: Copy, T: Linked<K>>(&mut self, records: &mut [T], kind: K, index: u32) {
        let Link { before, next, is_in } = std::mem::take(records[index as usize].link(kind));
        if !is_in {
            return;
        }
        match before {
            NONE => self.first = next,
            _ => records[before as usize].link(kind).next = next,
        }
        match next {
            NONE => self.last = before,
            _ => records[next as usize].link(kind).before = before,
        }
        self.length -= 1;
    }

    pub(crate) fn pop_front<K: Copy, T: Linked<K>>(&mut self, records: &mut [T], kind: K) -> Option<u32> {
        let first = self.first()?;
        self.remove(records, kind, first);
        Some(first)
    }

    /// The record behind `index`, which is in the list.
    pub(crate) fn after<K: Copy, T: Linked<K>>(records: &mut [T], kind: K, index: u32) -> Option<u32> {
        let next = records[index as usize].link(kind).next;
        (next != NONE).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Default)]
    struct Two([Link; 2]);

    impl Linked<usize> for Two {
        fn link(&mut self, kind: usize) -> &mut Link {
            &mut self.0[kind]
        }
    }

    fn indices(chain: &Chain, records: &mut [Two], kind: usize) -> Vec<u32> {
        let mut at = chain.first();
        std::iter::from_fn(|| {
            let index = at?;
            at = Chain::after(records, kind, index);
            Some(index)
        })
        .collect()
    }

    #[test]
    fn a_record_is_once_in_each_of_two_lists() {
        let mut records = [Two::default(); 4];
        let mut chains = [Chain::default(); 2];
        for index in [2, 0, 3, 2] {
            chains[0].push_back(&mut records, 0, index);
        }
        chains[1].push_back(&mut records, 1, 0);
        assert_eq!(indices(&chains[0], &mut records, 0), [2, 0, 3]);
        chains[0].remove(&mut records, 0, 0);
        chains[0].remove(&mut records, 0, 0);
        assert_eq!((indices(&chains[0], &mut records, 0), chains[0].length), (vec![2, 3], 2));
        assert_eq!(indices(&chains[1], &mut records, 1), [0]);
        chains[0].remove(&mut records, 0, 3);
        chains[0].push_back(&mut records, 0, 1);
        let popped: Vec<_> = std::iter::from_fn(|| chains[0].pop_front(&mut records, 0)).collect();
        assert_eq!((popped, chains[0].length), (vec![2, 1], 0));
    }
}
