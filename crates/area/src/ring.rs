//! A queue of 128-byte slots from one process to another: one producer, one consumer, no lock, no system call.
//!
//! Each side has a *part* that it alone can write and that the other side maps read-only:
//!
//! | part | word 0 | word 1 | word 8 | from word 16 on |
//! |---|---|---|---|---|
//! | the producer's | slots published so far | - | slots consumed, as last believed | the slots |
//! | the consumer's | slots consumed so far | nonzero: it sleeps, or will | slots published, as last believed | - |
//!
//! Counters never wrap (64 bits). Neither side trusts the other: a slot is copied out once and then checked by its
//! reader, and a counter that goes back or is outside of what the ring can hold is [`Corrupt`].
//!
//! A side that is started again continues from the counter in its own part. If its predecessor is not trusted
//! ([`Producer::succeed`], [`Consumer::succeed`]), that counter is set right first: the other side says in word 8 what it
//! believes, before it acts on it, and then reads the counter once more. The successor writes its counter and then
//! reads word 8 once more. A fence lies between the store and the load on either side, so a number that is believed is
//! never larger than the counter from which the successor continues.
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
/// In another cache line than the words that the other side reads often.
const BELIEVED: usize = 8;
/// No ring gets so far. From there on a successor can count without an overflow.
const COUNTER_MAX: u64 = 1 << 62;

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

/// The other side's counter, which was `last` and is now at most `most`.
fn believe<W: Words>(own: &W, peer: &W, last: u64, most: u64) -> Result<u64, Corrupt> {
    let counter = peer.load(COUNTER, Ordering::Acquire);
    if counter == last {
        return Ok(last);
    }
    if !(last..=most).contains(&counter) {
        return Err(Corrupt);
    }
    own.store(BELIEVED, counter, Ordering::Relaxed);
    W::fence();
    // A successor of the other side may have continued from a smaller one, and does not know of this one. Or it has come
    // as far meanwhile: then the slots are those that it wrote, hence Acquire.
    if !(counter..=most).contains(&peer.load(COUNTER, Ordering::Acquire)) {
        own.store(BELIEVED, last, Ordering::Relaxed);
        return Err(Corrupt);
    }
    Ok(counter)
}

/// Sets right the counter that a former process left in this side's part. It stays if the other side can believe it,
/// which is up to `most`; otherwise it becomes what the other side believes.
fn repair<W: Words>(own: &W, peer: &W, most: u64) -> u64 {
    let believed = || peer.load(BELIEVED, Ordering::Relaxed).min(COUNTER_MAX);
    let (left, least) = (own.load(COUNTER, Ordering::Relaxed), believed());
    let mut counter = if (least..=most).contains(&left) { left } else { least };
    // Twice at most: at the first store the other side can be about to believe one number of the former process, and
    // afterwards none.
    for _ in 0..2 {
        own.store(COUNTER, counter, Ordering::Release);
        W::fence();
        let now = believed();
        if now <= counter {
            break;
        }
        counter = now;
    }
    counter
}

#[derive(Debug)]
pub struct Producer<W = Mapped> {
    own: W,
    peer: W,
    slots: u64,
    /// Slots written; those from the published counter on are not visible yet.
    written: u64,
    published: u64,
    /// Slots consumed, as last believed.
    consumed: u64,
}

impl<W: Words> Producer<W> {
    /// # Panics
    /// If `slots` is not a power of two.
    pub fn new(own: W, peer: W, slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "a ring of {slots} slots");
        let slots = slots as u64;
        let (written, believed) =
            (own.load(COUNTER, Ordering::Relaxed), own.load(BELIEVED, Ordering::Relaxed));
        // No more than the ring holds, whatever lies in this side's part.
        let consumed = believed.clamp(written.saturating_sub(slots), written);
        let mut producer = Self { own, peer, slots, written, published: written, consumed };
        let _ = producer.consumed();
        producer
    }

    /// Continues after a process that is not trusted. Slots that it published may hold anything.
    ///
    /// # Panics
    /// As [`Producer::new`].
    pub fn succeed(own: W, peer: W, slots: usize) -> Self {
        let most = peer.load(COUNTER, Ordering::Relaxed).min(COUNTER_MAX) + slots as u64;
        let written = repair(&own, &peer, most);
        own.store(BELIEVED, written.saturating_sub(slots as u64), Ordering::Relaxed);
        Self::new(own, peer, slots)
    }

    /// Slots that the consumer has consumed since the ring was made.
    pub fn consumed(&mut self) -> Result<u64, Corrupt> {
        self.consumed = believe(&self.own, &self.peer, self.consumed, self.published)?;
        Ok(self.consumed)
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
        self.published = self.written;
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
    consumed: u64,
    /// Slots published, as last believed.
    published: u64,
}

impl<W: Words> Consumer<W> {
    /// # Panics
    /// If `slots` is not a power of two.
    pub fn new(own: W, peer: W, slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "a ring of {slots} slots");
        let taken = own.load(COUNTER, Ordering::Relaxed);
        Self { own, peer, slots: slots as u64, taken, consumed: taken, published: taken }
    }

    /// Continues after a process that is not trusted. What that has taken and not consumed is taken again.
    ///
    /// # Panics
    /// As [`Consumer::new`].
    pub fn succeed(own: W, peer: W, slots: usize) -> Self {
        let most = peer.load(COUNTER, Ordering::Relaxed).min(COUNTER_MAX);
        repair(&own, &peer, most);
        Self::new(own, peer, slots)
    }

    fn look(&mut self) -> Result<u64, Corrupt> {
        let most = self.consumed + self.slots;
        self.published = believe(&self.own, &self.peer, self.published, most)?;
        Ok(self.published)
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
        self.consumed = self.taken;
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
        producer.push(&slot(1));
        others.store(COUNTER, 2, Ordering::Relaxed);
        assert_eq!(producer.consumed(), Err(Corrupt), "more than was published");
        let _ = producer.publish();
        assert_eq!(producer.consumed(), Ok(2));
        others.store(COUNTER, 1, Ordering::Relaxed);
        assert_eq!(producer.consumed(), Err(Corrupt), "backwards");
    }

    /// What a process that is not trusted may leave in a counter of its part.
    const LEFT: [u64; 9] = [0, 1, 4, 5, 7, 1 << 40, COUNTER_MAX, u64::MAX - 1, u64::MAX];

    #[test]
    fn a_consumer_that_succeeds_takes_again_what_the_producer_believes_to_be_unread() {
        for left in LEFT {
            let (mut producer, mut consumer, words, others) = ring();
            for value in 0..4 {
                producer.push(&slot(value));
            }
            let _ = producer.publish();
            assert_eq!((consumer.take(), consumer.take()), (Ok(Some(slot(0))), Ok(Some(slot(1)))));
            consumer.consume();
            assert_eq!(producer.consumed(), Ok(2));
            others.store(COUNTER, left, Ordering::Relaxed);
            others.store(BELIEVED, left, Ordering::Relaxed);
            let believed = producer.consumed();
            assert_eq!(believed, if left == 4 { Ok(4) } else { Err(Corrupt) }, "{left}");
            let mut consumer = Consumer::succeed(others, words, SLOTS);
            let rest: Vec<_> = std::iter::from_fn(|| consumer.take().unwrap()).collect();
            assert_eq!(rest, [slot(2), slot(3)][believed.map_or(0, |_| 2)..], "{left}");
            consumer.consume();
            assert_eq!((producer.consumed(), producer.room()), (Ok(4), Ok(4)), "{left}");
        }
    }

    #[test]
    fn a_producer_that_succeeds_continues_where_the_consumer_believes_it_to_be() {
        for left in LEFT {
            let (mut producer, mut consumer, words, others) = ring();
            for value in 0..2 {
                producer.push(&slot(value));
            }
            let _ = producer.publish();
            assert_eq!(consumer.take(), Ok(Some(slot(0))));
            consumer.consume();
            words.store(COUNTER, left, Ordering::Relaxed);
            words.store(BELIEVED, left, Ordering::Relaxed);
            let most = if (4..=5).contains(&left) { left } else { 2 };
            assert_eq!(consumer.ready(), if most > 2 { Ok(most - 1) } else { Err(Corrupt) }, "{left}");
            let mut producer = Producer::succeed(words, others, SLOTS);
            assert_eq!((producer.position(), producer.room()), (most, Ok(5 - most)), "{left}");
            if producer.room() == Ok(0) {
                while consumer.take().unwrap().is_some() {}
                consumer.consume();
                assert_eq!(producer.room(), Ok(4));
            }
            producer.push(&slot(9));
            let _ = producer.publish();
            let last = std::iter::from_fn(|| consumer.take().unwrap()).last();
            assert_eq!(last, Some(slot(9)), "{left}");
        }
    }

    #[test]
    fn a_successor_survives_whatever_the_other_side_writes() {
        for counter in LEFT {
            for believed in LEFT {
                for left in LEFT {
                    let parts = |is_producer: bool| {
                        let (_, _, words, others) = ring();
                        let (own, peer) = if is_producer { (words, others) } else { (others, words) };
                        own.store(COUNTER, left, Ordering::Relaxed);
                        peer.store(COUNTER, counter, Ordering::Relaxed);
                        peer.store(BELIEVED, believed, Ordering::Relaxed);
                        (own, peer)
                    };
                    let (own, peer) = parts(true);
                    let mut producer = Producer::succeed(own, peer, SLOTS);
                    while producer.room().is_ok_and(|room| room > 0) {
                        producer.push(&slot(1));
                        let _ = producer.publish();
                    }
                    let (own, peer) = parts(false);
                    let mut consumer = Consumer::succeed(own, peer, SLOTS);
                    for _ in 0..2 * SLOTS {
                        let _ = consumer.take();
                        consumer.consume();
                    }
                }
            }
        }
    }
}
