//! What another process writes is read once: words that change after each load, as a hostile process could change them
//! between a check and a use. All above the rings works on the copy of a slot that [`Consumer::take`] returns.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use area::ring::{Consumer, Corrupt, Producer, SLOT_BYTES, Words};

const SLOTS: usize = 4;
const SLOT_WORDS: usize = SLOT_BYTES / 8;
const COUNTER: usize = 0;

/// A part of a ring. Each load is recorded; it returns the next one of the values that were prepared for its word, and
/// the last one again and again.
#[derive(Clone, Default)]
struct Fickle(Rc<RefCell<Memory>>);

#[derive(Default)]
struct Memory {
    values: Vec<(usize, Vec<u64>)>,
    loads: Vec<usize>,
}

impl Fickle {
    fn prepare(&self, word: usize, values: &[u64]) {
        self.0.borrow_mut().values.push((word, values.to_vec()));
    }

    fn loads(&self) -> Vec<usize> {
        std::mem::take(&mut self.0.borrow_mut().loads)
    }
}

impl Words for Fickle {
    fn load(&self, word: usize, _: Ordering) -> u64 {
        let mut memory = self.0.borrow_mut();
        memory.loads.push(word);
        let prepared = memory.values.iter_mut().find(|(other, _)| *other == word);
        let Some((_, values)) = prepared else { return 0 };
        if values.len() > 1 { values.remove(0) } else { values[0] }
    }

    fn store(&self, word: usize, value: u64, _: Ordering) {
        let mut memory = self.0.borrow_mut();
        memory.values.retain(|(other, _)| *other != word);
        memory.values.push((word, vec![value]));
    }

    fn fence() {}
}

#[test]
fn a_slot_is_copied_word_by_word_and_each_word_once() {
    let (own, peer) = (Fickle::default(), Fickle::default());
    let mut consumer = Consumer::new(own, peer.clone(), SLOTS);
    peer.prepare(COUNTER, &[1]);
    for word in 0..SLOT_WORDS {
        peer.prepare(SLOT_WORDS + word, &[word as u64, u64::MAX]);
    }
    peer.loads();
    let slot = consumer.take().unwrap().expect("one is published");
    assert_eq!(slot, std::array::from_fn(|word| word as u64), "the first values");
    // The counter twice: the second load only refuses (see below).
    let expected: Vec<_> = [COUNTER, COUNTER].into_iter().chain(SLOT_WORDS..2 * SLOT_WORDS).collect();
    assert_eq!(peer.loads(), expected);
}

#[test]
fn the_number_of_published_slots_is_the_one_that_was_checked() {
    let (own, peer) = (Fickle::default(), Fickle::default());
    let mut consumer = Consumer::new(own, peer.clone(), SLOTS);
    peer.prepare(COUNTER, &[1, 2, 1 << 40]);
    assert!(consumer.take().unwrap().is_some());
    assert_eq!(consumer.take(), Err(Corrupt), "a second slot that was never published");
    let (own, peer) = (Fickle::default(), Fickle::default());
    let mut consumer = Consumer::new(own, peer.clone(), SLOTS);
    peer.prepare(COUNTER, &[1, 2, 1 << 40]);
    assert_eq!((consumer.ready(), consumer.ready()), (Ok(1), Err(Corrupt)));
}

/// A number that is no longer there when it has been written down as believed is not believed.
#[test]
fn a_counter_that_goes_back_at_once_is_not_believed() {
    for second in [0, 1, 5, 1 << 40] {
        let (own, peer) = (Fickle::default(), Fickle::default());
        let mut consumer = Consumer::new(own, peer.clone(), SLOTS);
        peer.prepare(COUNTER, &[2, second]);
        assert_eq!(consumer.ready(), Err(Corrupt), "{second}");
    }
}

#[test]
fn the_number_of_consumed_slots_is_the_one_that_was_checked() {
    let (own, peer) = (Fickle::default(), Fickle::default());
    let mut producer = Producer::new(own, peer.clone(), SLOTS);
    for _ in 0..SLOTS {
        producer.push(&[7; SLOT_WORDS]);
    }
    peer.prepare(COUNTER, &[0, 1 << 40]);
    assert_eq!(producer.room(), Ok(0), "all are in use");
    assert_eq!(producer.room(), Err(Corrupt));
}
