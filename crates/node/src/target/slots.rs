//! A table of per-unit data of a thread, indexed by slot.

use std::ops::{Index, IndexMut};

/// A table indexed by slot. A slot is empty before its unit is attached and after it is detached; sessions and tasks
/// refer to occupied slots only.
#[derive(Debug)]
pub(super) struct Slots<T>(Vec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slots<T> {
    pub(super) fn put(&mut self, slot: usize, value: T) {
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        debug_assert!(self.0[slot].is_none(), "a slot is used again only when every thread has left it");
        self.0[slot] = Some(value);
    }

    pub(super) fn take(&mut self, slot: usize) -> Option<T> {
        self.0.get_mut(slot).and_then(Option::take)
    }

    pub(super) fn get(&self, slot: usize) -> Option<&T> {
        self.0.get(slot).and_then(Option::as_ref)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.0.iter().enumerate().filter_map(|(slot, value)| Some((slot, value.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.0.iter_mut().enumerate().filter_map(|(slot, value)| Some((slot, value.as_mut()?)))
    }

    pub(super) fn count(&self) -> usize {
        self.iter().count()
    }
}

impl<T> Index<usize> for Slots<T> {
    type Output = T;

    fn index(&self, slot: usize) -> &T {
        self.0[slot].as_ref().expect("occupied while it is named")
    }
}

impl<T> IndexMut<usize> for Slots<T> {
    fn index_mut(&mut self, slot: usize) -> &mut T {
        self.0[slot].as_mut().expect("occupied while it is named")
    }
}
