//! Where the engine's state lies: fixed-size records in tables that the caller lends, linked by index.

use zerocopy::FromZeros;

/// No index.
pub const NONE: u32 = u32::MAX;

/// A record in a [`Slab`] and the index of the next one of its list.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub struct Node<T> {
    pub next: u32,
    pub value: T,
}

/// The free list of a [`Slab`].
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct SlabHead {
    free: u32,
    used: u32,
}

impl Default for SlabHead {
    fn default() -> Self {
        Self { free: NONE, used: 0 }
    }
}

/// Records that are allocated one by one and kept in [`List`]s.
#[derive(Debug)]
pub struct Slab<'m, T> {
    head: &'m mut SlabHead,
    nodes: &'m mut [Node<T>],
}

/// A singly linked list of records of one slab, to lie in another record.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct List {
    pub first: u32,
    pub last: u32,
    pub length: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE, length: 0 }
    }
}

impl List {
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl<'m, T: Copy> Slab<'m, T> {
    /// Over records in any state, all of which become free.
    pub fn format(head: &'m mut SlabHead, nodes: &'m mut [Node<T>]) -> Self {
        let count = nodes.len() as u32;
        assert!(count < NONE, "more records than indices");
        for (index, node) in (1..).zip(nodes.iter_mut()) {
            node.next = if index < count { index } else { NONE };
        }
        *head = SlabHead { free: if count == 0 { NONE } else { 0 }, used: 0 };
        Self { head, nodes }
    }

    /// Over records that another slab has left.
    pub fn attach(head: &'m mut SlabHead, nodes: &'m mut [Node<T>]) -> Self {
        Self { head, nodes }
    }

    pub fn capacity(&self) -> u32 {
        self.nodes.len() as u32
    }

    pub fn room(&self) -> u32 {
        self.capacity() - self.head.used
    }

    pub fn get(&self, index: u32) -> &T {
        &self.nodes[index as usize].value
    }

    pub fn get_mut(&mut self, index: u32) -> &mut T {
        &mut self.nodes[index as usize].value
    }

    pub fn next(&self, index: u32) -> Option<u32> {
        some(self.nodes[index as usize].next)
    }

    fn allocate(&mut self, value: T) -> Option<u32> {
        let index = some(self.head.free)?;
        let node = &mut self.nodes[index as usize];
        self.head.free = node.next;
        self.head.used += 1;
        *node = Node { next: NONE, value };
        Some(index)
    }

    fn free(&mut self, index: u32) -> T {
        let node = &mut self.nodes[index as usize];
        node.next = self.head.free;
        self.head.free = index;
        self.head.used -= 1;
        self.nodes[index as usize].value
    }

    /// The index of the new last record; `None` if the slab is full.
    pub fn push_back(&mut self, list: &mut List, value: T) -> Option<u32> {
        let index = self.allocate(value)?;
        match some(list.last) {
            Some(last) => self.nodes[last as usize].next = index,
            None => list.first = index,
        }
        list.last = index;
        list.length += 1;
        Some(index)
    }

    /// The index of the new record behind `before`, or of the new first one.
    pub fn insert_after(&mut self, list: &mut List, before: Option<u32>, value: T) -> Option<u32> {
        let index = self.allocate(value)?;
        let next = match before {
            Some(before) => std::mem::replace(&mut self.nodes[before as usize].next, index),
            None => std::mem::replace(&mut list.first, index),
        };
        self.nodes[index as usize].next = next;
        if next == NONE {
            list.last = index;
        }
        list.length += 1;
        Some(index)
    }

    pub fn pop_front(&mut self, list: &mut List) -> Option<T> {
        self.remove_after(list, None)
    }

    /// Removes the record behind `before`, or the first one.
    pub fn remove_after(&mut self, list: &mut List, before: Option<u32>) -> Option<T> {
        let index = match before {
            Some(before) => self.next(before),
            None => some(list.first),
        }?;
        let next = self.nodes[index as usize].next;
        match before {
            Some(before) => self.nodes[before as usize].next = next,
            None => list.first = next,
        }
        if next == NONE {
            list.last = before.unwrap_or(NONE);
        }
        list.length -= 1;
        Some(self.free(index))
    }

    pub fn clear(&mut self, list: &mut List) {
        while self.pop_front(list).is_some() {}
    }

    /// Indices and records of a list, the first one first.
    pub fn iter<'a>(&'a self, list: &List) -> impl Iterator<Item = (u32, &'a T)> + use<'a, 'm, T> {
        let mut at = some(list.first);
        std::iter::from_fn(move || {
            let index = at?;
            at = self.next(index);
            Some((index, self.get(index)))
        })
    }
}

fn some(index: u32) -> Option<u32> {
    (index != NONE).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(slab: &Slab<'_, u32>, list: &List) -> Vec<u32> {
        slab.iter(list).map(|(_, &value)| value).collect()
    }

    #[test]
    fn lists_share_a_slab_and_return_what_they_lose() {
        let (mut head, mut nodes) = (SlabHead::default(), [Node::<u32>::default(); 4]);
        let mut slab = Slab::format(&mut head, &mut nodes);
        let (mut one, mut two) = (List::default(), List::default());
        let first = slab.push_back(&mut one, 1).unwrap();
        slab.push_back(&mut two, 10).unwrap();
        slab.push_back(&mut one, 3).unwrap();
        slab.insert_after(&mut one, Some(first), 2).unwrap();
        assert_eq!((values(&slab, &one), values(&slab, &two)), (vec![1, 2, 3], vec![10]));
        assert_eq!((slab.room(), slab.push_back(&mut one, 4)), (0, None));
        assert_eq!(slab.remove_after(&mut one, Some(first)), Some(2));
        assert_eq!(slab.insert_after(&mut one, None, 0).map(|_| values(&slab, &one)), Some(vec![0, 1, 3]));
        let before_last = slab.next(one.first).unwrap();
        assert_eq!(slab.remove_after(&mut one, Some(before_last)), Some(3));
        slab.push_back(&mut one, 5).unwrap();
        assert_eq!(values(&slab, &one), [0, 1, 5]);
        slab.clear(&mut one);
        assert_eq!((slab.pop_front(&mut two), slab.room()), (Some(10), 4));
        assert!(one.is_empty() && two.is_empty());
    }
}
