//! A queue of 128-byte slots from one process to another: one producer, one consumer, no lock, no system call.
//!
//! Each side has a *part* that it alone can write and that the other side maps read-only:
//!
//! | part | word 0 | word 1 | from word 16 on |
//! |---|---|---|---|
//! | the producer's | slots published so far | - | the slots |
//! | the consumer's | slots consumed so far | nonzero: it sleeps, or will | - |
//!
//! Counters never wrap (64 bits). Neither side trusts the other: a slot is copied out once and then checked by its
//! reader, and a counter outside of what the ring can hold is [`Corrupt`]. A side that is started again continues from
//! the counters in its own part.
//!
//! Order of a wake-up (sDDF's protocol): the consumer takes all, sets `waiting`, looks once more and sleeps; the
//! producer publishes and then reads `waiting`. Between its store and its load each side has a sequentially consistent
//! fence, so at least one of them sees the other's store. `tests/loom.rs` runs every interleaving.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Region;

pub const SLOT_BYTES: usize = 128;
const SLOT_WORDS: usize = SLOT_BYTES / 8;
/// Bytes of the part of a ring's consumer.
pub const CONSUMER_BYTES: usize = 128;
const COUNTER: usize = 0;
const WAITING: usize = 1;

/// Plain words: any content is a valid slot, and what it means is checked by its reader.
pub type Slot = [u64; SLOT_WORDS];

/// Bytes of the part of a producer of a ring with `slots` slots.
pub const fn producer_bytes(slots: usize) -> usize {
    SLOT_BYTES + slots * SLOT_BYTES
}

/// The other side's counter is impossible. The ring is of no more use: drop the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

impl std::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the other process has written an impossible counter into a ring")
    }
}

impl std::error::Error for Corrupt {}

/// One side's part of a ring: words that both sides reach, of which one side writes.
pub trait Words {
    fn load(&self, word: usize, order: Ordering) -> u64;
    /// Only for the writing side.
    fn store(&self, word: usize, value: u64, order: Ordering);
    fn fence();
}

/// Words in shared memory.
#[derive(Clone, Debug)]
pub struct Mapped {
    region: Arc<Region>,
    /// Of the first word, bytes from the start of the region.
    offset: usize,
    words: usize,
}

impl Mapped {
    /// `bytes` bytes at `offset` of a region; all accesses are of whole aligned words and atomic.
    ///
    /// # Panics
    /// If they lie outside of the region or are not aligned to 8 bytes.
    pub fn new(region: Arc<Region>, offset: usize, bytes: usize) -> Self {
        assert!((offset | bytes).is_multiple_of(8), "words that are not aligned");
        assert!(offset <= region.len() && bytes <= region.len() - offset, "words outside of the region");
        Self { region, offset, words: bytes / 8 }
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.words, "a word outside of the part");
        // SAFETY: the word lies inside the region, which `region` keeps mapped, and is aligned to 8 bytes; all
        // processes access it by whole-word atomics. A store through a read-only mapping is a fault of this process:
        // `Words::store` is for the writing side.
        unsafe { &*self.region.as_ptr().add(self.offset + word * 8).cast::<AtomicU64>() }
    }
}

impl Words for Mapped {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.word(word).load(order)
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.word(word).store(value, order);
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

#[derive(Debug)]
pub struct Producer<W = Mapped> {
    own: W,
    peer: W,
    slots: u64,
    /// Slots written; those from the published counter on are not visible yet.
    written: u64,
    /// Slots consumed, as last read.
    consumed: u64,
}

impl<W: Words> Producer<W> {
    /// # Panics
    /// If `slots` is not a power of two.
    pub fn new(own: W, peer: W, slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "a ring of {slots} slots");
        let written = own.load(COUNTER, Ordering::Relaxed);
        Self { own, peer, slots: slots as u64, written, consumed: written }.refreshed()
    }

    fn refreshed(mut self) -> Self {
        let _ = self.consumed();
        self
    }

    /// Slots that the consumer has consumed since the ring was made.
    pub fn consumed(&mut self) -> Result<u64, Corrupt> {
        let consumed = self.peer.load(COUNTER, Ordering::Acquire);
        if consumed > self.written || self.written - consumed > self.slots {
            return Err(Corrupt);
        }
        self.consumed = consumed;
        Ok(consumed)
    }

    /// Slots pushed since the ring was made; the position of the next one.
    pub fn position(&self) -> u64 {
        self.written
    }

    /// Slots that can be pushed now.
    pub fn room(&mut self) -> Result<u64, Corrupt> {
        if self.written - self.consumed == self.slots {
            self.consumed()?;
        }
        Ok(self.slots - (self.written - self.consumed))
    }

    /// Writes a slot; [`Producer::publish`] makes it visible.
    ///
    /// # Panics
    /// If there was no room.
    pub fn push(&mut self, slot: &Slot) {
        assert!(self.written - self.consumed < self.slots, "a push into a full ring");
        let at = SLOT_WORDS * (1 + (self.written % self.slots) as usize);
        for (word, &value) in slot.iter().enumerate() {
            self.own.store(at + word, value, Ordering::Relaxed);
        }
        self.written += 1;
    }

    /// Makes all slots visible. Returns whether the consumer sleeps or will: then ring its doorbell.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.own.store(COUNTER, self.written, Ordering::Release);
        W::fence();
        self.peer.load(WAITING, Ordering::Relaxed) != 0
    }
}

#[derive(Debug)]
pub struct Consumer<W = Mapped> {
    own: W,
    peer: W,
    slots: u64,
    /// Slots copied out; those from the consumed counter on still belong to this side.
    taken: u64,
    /// Slots published, as last read.
    published: u64,
}

impl<W: Words> Consumer<W> {
    /// # Panics
    /// If `slots` is not a power of two.
    pub fn new(own: W, peer: W, slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "a ring of {slots} slots");
        let taken = own.load(COUNTER, Ordering::Relaxed);
        Self { own, peer, slots: slots as u64, taken, published: taken }
    }

    fn look(&mut self) -> Result<u64, Corrupt> {
        let published = self.peer.load(COUNTER, Ordering::Acquire);
        if published < self.taken || published - self.taken > self.slots {
            return Err(Corrupt);
        }
        self.published = published;
        Ok(published)
    }

    /// Copies the next slot out. It stays the consumer's until [`Consumer::consume`].
    pub fn take(&mut self) -> Result<Option<Slot>, Corrupt> {
        if self.taken == self.published && self.look()? == self.taken {
            return Ok(None);
        }
        let at = SLOT_WORDS * (1 + (self.taken % self.slots) as usize);
        let slot = std::array::from_fn(|word| self.peer.load(at + word, Ordering::Relaxed));
        self.taken += 1;
        Ok(Some(slot))
    }

    /// Slots published and not yet taken.
    pub fn ready(&mut self) -> Result<u64, Corrupt> {
        Ok(self.look()? - self.taken)
    }

    /// Slots taken since the ring was made.
    pub fn position(&self) -> u64 {
        self.taken
    }

    /// Gives the slots taken so far back to the producer.
    pub fn consume(&mut self) {
        self.own.store(COUNTER, self.taken, Ordering::Release);
    }

    /// Announces that this side is about to sleep. Returns whether it may: if not, slots have arrived and the
    /// announcement is withdrawn.
    pub fn arm(&mut self) -> Result<bool, Corrupt> {
        self.own.store(WAITING, 1, Ordering::Relaxed);
        W::fence();
        let may_sleep = self.look()? == self.taken;
        if !may_sleep {
            self.disarm();
        }
        Ok(may_sleep)
    }

    /// This side is awake again.
    pub fn disarm(&mut self) {
        self.own.store(WAITING, 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 4;

    fn ring() -> (Producer, Consumer, Mapped, Mapped) {
        let region = Arc::new(Region::new(4096, true).unwrap());
        let producer = Mapped::new(Arc::clone(&region), 0, producer_bytes(SLOTS));
        let consumer = Mapped::new(region, 2048, CONSUMER_BYTES);
        (
            Producer::new(producer.clone(), consumer.clone(), SLOTS),
            Consumer::new(consumer.clone(), producer.clone(), SLOTS),
            producer,
            consumer,
        )
    }

    fn slot(value: u64) -> Slot {
        std::array::from_fn(|word| value * 100 + word as u64)
    }

    #[test]
    fn slots_arrive_in_order_and_return_when_consumed() {
        let (mut producer, mut consumer, ..) = ring();
        for lap in 0..5 {
            for value in 0..SLOTS as u64 {
                assert_eq!(producer.room(), Ok(SLOTS as u64 - value));
                producer.push(&slot(lap * 10 + value));
            }
            assert_eq!((producer.room(), consumer.take()), (Ok(0), Ok(None)), "not published");
            assert!(!producer.publish());
            for value in 0..SLOTS as u64 {
                assert_eq!(consumer.take(), Ok(Some(slot(lap * 10 + value))));
            }
            assert_eq!((producer.room(), consumer.take()), (Ok(0), Ok(None)), "not consumed");
            consumer.consume();
            assert_eq!(producer.consumed(), Ok((lap + 1) * SLOTS as u64));
        }
    }

    #[test]
    fn a_consumer_that_sleeps_is_known_to_the_producer() {
        let (mut producer, mut consumer, ..) = ring();
        assert_eq!(consumer.arm(), Ok(true));
        producer.push(&slot(1));
        assert!(producer.publish(), "ring the doorbell");
        consumer.disarm();
        assert_eq!((consumer.ready(), consumer.arm()), (Ok(1), Ok(false)), "looks once more");
        producer.push(&slot(2));
        assert!(!producer.publish(), "awake");
    }

    #[test]
    fn both_sides_continue_where_a_former_process_stopped() {
        let (mut producer, mut consumer, words, others) = ring();
        for value in 0..3 {
            producer.push(&slot(value));
        }
        let _ = producer.publish();
        producer.push(&slot(9));
        assert_eq!(consumer.take(), Ok(Some(slot(0))));
        consumer.consume();
        assert_eq!(consumer.take(), Ok(Some(slot(1))), "taken, not consumed");
        let mut producer = Producer::new(words.clone(), others.clone(), SLOTS);
        let mut consumer = Consumer::new(others, words, SLOTS);
        assert_eq!(producer.position(), 3, "what was not published is gone");
        producer.push(&slot(3));
        let _ = producer.publish();
        let rest: Vec<_> = std::iter::from_fn(|| consumer.take().unwrap()).collect();
        assert_eq!(rest, [slot(1), slot(2), slot(3)]);
    }

    #[test]
    fn impossible_counters_are_noticed() {
        let (mut producer, mut consumer, words, others) = ring();
        words.store(COUNTER, 5, Ordering::Relaxed);
        assert_eq!(consumer.take(), Err(Corrupt), "more than the ring holds");
        words.store(COUNTER, 0, Ordering::Relaxed);
        producer.push(&slot(0));
        let _ = producer.publish();
        assert!(consumer.take().unwrap().is_some());
        words.store(COUNTER, 0, Ordering::Relaxed);
        assert_eq!(consumer.take(), Err(Corrupt), "backwards");
        others.store(COUNTER, 2, Ordering::Relaxed);
        assert_eq!(producer.consumed(), Err(Corrupt), "more than was published");
    }
}
