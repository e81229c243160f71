//! When which connection must be looked at: a heap of one deadline per connection. Derived from the records.

use crate::Time;

const ABSENT: u32 = u32::MAX;
/// Children of a node: fewer levels than a binary heap, and the children of one node share a cache line.
const CHILDREN: usize = 4;

/// A heap in which each of a fixed set of numbers is at most once, and which finds a number's place at once: the
/// deadline of a busy connection moves with each ACK.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Vec<(Time, u32)>,
    places: Vec<u32>,
}

impl Timers {
    pub(crate) fn new(numbers: usize) -> Self {
        Self { heap: Vec::with_capacity(numbers), places: vec![ABSENT; numbers] }
    }

    pub(crate) fn next(&self) -> Option<(Time, u32)> {
        self.heap.first().copied()
    }

    /// `Time::NEVER` removes the number.
    pub(crate) fn set(&mut self, number: u32, at: Time) {
        let place = self.places[number as usize];
        match (place, at) {
            (ABSENT, Time::NEVER) => {}
            (ABSENT, _) => {
                self.heap.push((at, number));
                self.rise(self.heap.len() - 1, (at, number));
            }
            (place, Time::NEVER) => {
                self.places[number as usize] = ABSENT;
                let last = self.heap.pop().expect("not empty: the number has a place");
                if (place as usize) < self.heap.len() {
                    self.place(place as usize, last);
                }
            }
            (place, _) if self.heap[place as usize].0 != at => self.place(place as usize, (at, number)),
            _ => {}
        }
    }

    /// Puts an entry where another one was, or is.
    fn place(&mut self, place: usize, entry: (Time, u32)) {
        if place > 0 && entry < self.heap[(place - 1) / CHILDREN] {
            self.rise(place, entry);
        } else {
            self.sink(place, entry);
        }
    }

    fn rise(&mut self, mut place: usize, entry: (Time, u32)) {
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.heap[parent] <= entry {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize, entry: (Time, u32)) {
        loop {
            let first = place * CHILDREN + 1;
            let children = first..(first + CHILDREN).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if self.heap[least] >= entry {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: (Time, u32)) {
        self.heap[place] = entry;
        self.places[entry.1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_next_is_the_earliest_and_among_equals_the_lowest(
            steps in prop::collection::vec((0..24u32, prop_oneof![(0..40u64).boxed(), Just(u64::MAX).boxed()]), 0..200),
        ) {
            let (mut timers, mut model) = (Timers::new(24), BTreeMap::new());
            for (number, at) in steps {
                timers.set(number, Time(at));
                model.insert(number, Time(at));
                let least = model.iter().map(|(&number, &at)| (at, number)).min();
                prop_assert_eq!(timers.next(), least.filter(|&(at, _)| at != Time::NEVER));
            }
        }
    }
}
