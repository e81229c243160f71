//! `ring.rs` under loom: all interleavings of a producer and a consumer, with the weakest memory order that the code
//! permits. The rings' words are loom's atomics here; the doorbell counts like an eventfd.
//!
//! A lost bell shows as a deadlock, which loom reports: the consumer sleeps while a slot is in its ring.

use std::sync::atomic::Ordering;

use area::ring::{Consumer, Producer, SLOT_BYTES, Slot, Words};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::Notify;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

/// Most of a ring here.
const SLOTS: usize = 2;
const SLOT_WORDS: usize = SLOT_BYTES / 8;

/// A part of a ring. Slots are plain memory, in which loom reports two accesses that are not ordered by the counters; the
/// first word of a slot stands for all.
#[derive(Clone)]
struct Part(Arc<Memory>);

struct Memory {
    /// The counter, `waiting`, and what is believed of the other side.
    words: [AtomicU64; 3],
    slots: [UnsafeCell<u64>; SLOTS],
}

// SAFETY: the rings order all accesses to the cells. Loom checks that, which is the purpose of this test.
unsafe impl Sync for Memory {}

impl Part {
    fn new() -> Self {
        Self(Arc::new(Memory {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            slots: std::array::from_fn(|_| UnsafeCell::new(0)),
        }))
    }
}

impl Words for Part {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        match (word / SLOT_WORDS, word % SLOT_WORDS) {
            (0, word) => self.0.words[place(word)].load(order),
            // SAFETY: see `Memory`.
            (slot, 0) => self.0.slots[slot - 1].with(|value| unsafe { *value }),
            _ => 0,
        }
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        match (word / SLOT_WORDS, word % SLOT_WORDS) {
            (0, word) => self.0.words[place(word)].store(value, order),
            // SAFETY: see `Memory`.
            (slot, 0) => self.0.slots[slot - 1].with_mut(|place| unsafe { *place = value }),
            _ => {}
        }
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Of a word of a part in `Memory::words`: the third one is word 8.
fn place(word: usize) -> usize {
    word.min(2)
}

fn slot(value: u64) -> Slot {
    let mut slot = Slot::default();
    slot[0] = value;
    slot
}

/// Explores all interleavings with at most `preemptions_max` preemptions.
fn explore(preemptions_max: usize, scene: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions_max);
    builder.check(scene);
}

struct Ring {
    slots: usize,
    producer: Part,
    consumer: Part,
    /// Of the consumer.
    bell: Arc<Notify>,
}

impl Ring {
    fn new(slots: usize) -> Arc<Self> {
        let (producer, consumer) = (Part::new(), Part::new());
        Arc::new(Self { slots, producer, consumer, bell: Arc::new(Notify::new()) })
    }

    fn producer(&self) -> Producer<Part> {
        Producer::new(self.producer.clone(), self.consumer.clone(), self.slots)
    }

    fn consumer(&self) -> Consumer<Part> {
        Consumer::new(self.consumer.clone(), self.producer.clone(), self.slots)
    }

    /// Pushes `values`, published one by one.
    fn produce(&self, values: std::ops::Range<u64>) {
        let mut producer = self.producer();
        for value in values {
            while producer.room().unwrap() == 0 {
                thread::yield_now();
            }
            producer.push(&slot(value));
            if producer.publish() {
                self.bell.notify();
            }
        }
    }

    /// Takes `count` slots in the order of `doorbell.rs` and `ring.rs`: all, `waiting`, one more look, sleep.
    fn consume(&self, count: u64) -> Vec<u64> {
        let mut consumer = self.consumer();
        let mut taken = Vec::new();
        loop {
            while let Some(slot) = consumer.take().unwrap() {
                taken.push(slot[0]);
                consumer.consume();
            }
            if taken.len() as u64 == count {
                return taken;
            }
            if consumer.arm().unwrap() {
                self.bell.wait();
                consumer.disarm();
            }
        }
    }
}

#[test]
fn no_slot_waits_for_a_consumer_that_sleeps() {
    explore(4, || {
        let ring = Ring::new(2);
        let produces = Arc::clone(&ring);
        let producer = thread::spawn(move || produces.produce(0..2));
        assert_eq!(ring.consume(2), [0, 1]);
        producer.join().unwrap();
    });
}

/// A ring of one slot: the second is written where the first was.
#[test]
fn slots_of_the_next_lap_are_written_only_when_consumed() {
    explore(4, || {
        let ring = Ring::new(1);
        let produces = Arc::clone(&ring);
        let producer = thread::spawn(move || produces.produce(1..3));
        assert_eq!(ring.consume(2), [1, 2]);
        producer.join().unwrap();
    });
}

/// What is pushed together is published together, and the counter of consumed slots covers whole batches.
#[test]
fn a_batch_is_seen_whole_or_from_its_start() {
    explore(3, || {
        let ring = Ring::new(2);
        let produces = Arc::clone(&ring);
        let producer = thread::spawn(move || {
            let mut producer = produces.producer();
            producer.push(&slot(1));
            producer.push(&slot(2));
            if producer.publish() {
                produces.bell.notify();
            }
            // What the driver's position says of memory: all that it has consumed it no longer reads.
            assert!(producer.consumed().unwrap() <= 2);
        });
        let mut consumer = ring.consumer();
        let ready = consumer.ready().unwrap();
        assert!(ready == 0 || ready == 2, "{ready} of a batch");
        drop(consumer);
        assert_eq!(ring.consume(2), [1, 2]);
        producer.join().unwrap();
    });
}

/// The process of the consumer dies between taking and consuming; the next one continues from the counters and takes
/// again what was not consumed, while the producer goes on.
#[test]
fn a_consumer_that_is_started_again_loses_nothing_and_sleeps_safely() {
    explore(3, || {
        let ring = Ring::new(2);
        let produces = Arc::clone(&ring);
        let producer = thread::spawn(move || produces.produce(1..3));
        let mut first = ring.consumer();
        let taken = first.take().unwrap().map(|slot| slot[0]);
        assert!(matches!(taken, None | Some(1)));
        // The former consumer may have died asleep: `waiting` is then set until its successor clears it, and producers ring
        // the bell without need.
        let _ = first.arm();
        drop(first);
        assert_eq!(ring.consume(2), [1, 2]);
        producer.join().unwrap();
    });
}

/// A producer that is not trusted has left a counter that the consumer may or may not believe, while its successor sets it
/// right and goes on. What the successor pushes arrives: the consumer never believes in more slots than it continues from.
#[test]
fn a_producer_that_succeeds_a_liar_is_believed() {
    for lies in [[2, 0], [2, 1], [2, 9]] {
        explore(2, move || {
            let ring = Ring::new(2);
            let produces = Arc::clone(&ring);
            let producer = thread::spawn(move || {
                for lie in lies {
                    produces.producer.store(0, lie, Ordering::Relaxed);
                }
                let (own, peer) = (produces.producer.clone(), produces.consumer.clone());
                let mut producer = Producer::succeed(own, peer, produces.slots);
                while producer.room().unwrap() == 0 {
                    thread::yield_now();
                }
                producer.push(&slot(7));
                let _ = producer.publish();
            });
            let mut consumer = ring.consumer();
            loop {
                match consumer.take() {
                    Ok(Some(slot)) if slot[0] == 7 => break,
                    Ok(Some(_)) => consumer.consume(),
                    // Until it is set right.
                    Ok(None) | Err(_) => thread::yield_now(),
                }
            }
            producer.join().unwrap();
        });
    }
}

/// The same of a consumer: it takes every slot that the producer believes to be unread, so memory that the producer takes
/// back is read no more.
#[test]
fn a_consumer_that_succeeds_a_liar_reads_nothing_that_was_taken_back() {
    for lies in [[2, 0], [2, 1], [2, 9]] {
        explore(2, move || {
            let ring = Ring::new(2);
            let mut producer = ring.producer();
            producer.push(&slot(1));
            producer.push(&slot(2));
            let _ = producer.publish();
            let consumes = Arc::clone(&ring);
            let consumer = thread::spawn(move || {
                for lie in lies {
                    consumes.consumer.store(0, lie, Ordering::Relaxed);
                }
                let (own, peer) = (consumes.consumer.clone(), consumes.producer.clone());
                let mut consumer = Consumer::succeed(own, peer, consumes.slots);
                consumer.take().unwrap().map(|slot| slot[0])
            });
            let before = producer.consumed();
            let first = consumer.join().unwrap();
            let least = before.unwrap_or(0);
            assert!(first.is_none_or(|first| first > least), "{first:?} though {before:?} were taken back");
            assert!(first.is_some() || producer.consumed() == Ok(2), "a slot is lost: {lies:?}");
        });
    }
}
