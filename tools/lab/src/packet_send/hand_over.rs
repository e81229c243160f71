//! What it takes to hand an area over, by mode and size, as a send does: to a first taker, from it to a second one, and
//! back to the owner; and what a slot of a ring takes in a stream of them. The owner has a core, both takers are one
//! process on another: what is measured is the memory, not the switch of processes.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use area::Region;
use area::ring::{CONSUMER_BYTES, Consumer, Mapped, Producer, SLOT_BYTES, Slot, Words, producer_bytes};
use serde::{Deserialize, Serialize};

use super::hand::{Mode, Owner, Taker};
use super::notes::now_ns;
use super::rig::memory;
use super::stages::fork;
use super::waiting::pin;
use crate::part::{Orders, send};
use crate::stats::percentile;
use crate::{Attempted, LabError};

const AREAS: usize = 4;
/// Bytes of a cache line: an access takes one.
const LINE_BYTES: usize = 64;
/// Words of the channel, on a cache line each: turns of the owner, turns of the taker, and of the taker, at its end, the
/// median of first less second accesses in nanoseconds.
const GIVEN: usize = 0;
const RETURNED: usize = 8;
const FIRST_NS: usize = 16;
const CHANNEL_WORDS: usize = 24;
/// A turn number that ends the taker.
const OVER: u64 = u64::MAX;
const LAST_SLOT: Slot = [OVER; SLOT_BYTES / 8];
const RING_SLOTS: usize = 256;
const RING_BATCH: u64 = 64;

/// The role: all modes at one size, or (0 bytes) the ring.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HandOver {
    pub(super) bytes: usize,
    /// Of one mode.
    pub(super) ms: u64,
    /// Cores of the owner and the taker.
    pub(super) cores: [Option<usize>; 2],
}

/// Of one mode, medians in microseconds; in the order of [`Mode::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Handed {
    /// From the owner's write at each page to the next one: handed over twice, read at each page by both, given back.
    pub(super) turn_us: f64,
    /// Reading the bytes for the first time after the hand-over, less reading them again.
    pub(super) first_access_us: f64,
}

impl HandOver {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        if self.bytes == 0 {
            send(&self.ring().attempted("measure a ring")?)?;
        } else {
            let modes: io::Result<Vec<_>> = Mode::ALL.iter().map(|&mode| self.both(mode)).collect();
            send(&modes.attempted("hand areas over")?)?;
        }
        orders.serve(|_| Ok(()))
    }

    fn both(&self, mode: Mode) -> io::Result<Handed> {
        let (turn, accesses) = (self.measure(mode, area::PAGE_BYTES)?, self.measure(mode, LINE_BYTES)?);
        Ok(Handed { first_access_us: accesses.first_access_us, ..turn })
    }

    /// The taker reads a byte of every `step`.
    fn measure(&self, mode: Mode, step: usize) -> io::Result<Handed> {
        let channel = words(CHANNEL_WORDS * 8)?;
        let mut owner = Owner::new(mode, AREAS, self.bytes)?;
        let first = Taker::new(owner.lend()?)?;
        let takers = [Taker::new(first.forward()?)?, first];
        let child = fork(|| self.take(takers, mode, &channel, step))?;
        pin(self.cores[0]);
        let mut give = |turn: u64| -> io::Result<()> {
            let area = turn as usize % AREAS;
            touch(owner.area(area), self.bytes, turn as u8);
            owner.give(area)?;
            channel.store(GIVEN, turn, Ordering::Release);
            while channel.load(RETURNED, Ordering::Acquire) != turn {
                std::hint::spin_loop();
            }
            owner.take_back(area)
        };
        let mut turn = 0;
        for _ in 0..2 * AREAS {
            turn += 1;
            give(turn)?;
        }
        let (begin, duration) = (Instant::now(), Duration::from_millis(self.ms));
        let (mut last, mut turns) = (now_ns(), Vec::new());
        while begin.elapsed() < duration {
            turn += 1;
            give(turn)?;
            let now = now_ns();
            turns.push(now - last);
            last = now;
        }
        channel.store(GIVEN, OVER, Ordering::Release);
        wait_for(child);
        let us = |ns: u64| ns as f64 / 1e3;
        let turn_us = us(percentile(&mut turns, 0.5).unwrap_or_default());
        Ok(Handed { turn_us, first_access_us: us(channel.load(FIRST_NS, Ordering::Acquire)) })
    }

    fn take(&self, takers: [Taker; 2], mode: Mode, channel: &Mapped, step: usize) -> io::Result<()> {
        let [mut second, mut first] = takers;
        pin(self.cores[1]);
        let (mut last, mut accesses) = (0, Vec::new());
        loop {
            let turn = channel.load(GIVEN, Ordering::Acquire);
            if turn == last {
                std::hint::spin_loop();
                continue;
            }
            if turn == OVER {
                let first_ns = percentile(&mut accesses, 0.5).unwrap_or_default();
                channel.store(FIRST_NS, first_ns, Ordering::Release);
                return Ok(());
            }
            last = turn;
            let area = turn as usize % AREAS;
            first.take(area, self.bytes)?;
            if step == LINE_BYTES {
                let begin = now_ns();
                let once = read(first.area(area), self.bytes, step);
                let twice = read(first.area(area), self.bytes, step);
                accesses.push((once - begin).saturating_sub(twice - once));
            } else {
                read(first.area(area), self.bytes, step);
            }
            first.give(area)?;
            second.take(area, self.bytes)?;
            read(second.area(area), self.bytes, step);
            second.give_back(area)?;
            if mode == Mode::WriteProtected {
                first.give_back(area)?;
            }
            channel.store(RETURNED, turn, Ordering::Release);
        }
    }

    /// Nanoseconds of a slot in a stream of batches from one core to the other.
    fn ring(&self) -> io::Result<f64> {
        let (own, peer) = (words(producer_bytes(RING_SLOTS))?, words(CONSUMER_BYTES)?);
        let child = fork(|| {
            pin(self.cores[1]);
            let mut consumer = Consumer::new(peer.clone(), own.clone(), RING_SLOTS);
            loop {
                let mut count = 0;
                while let Some(slot) = consumer.take().map_err(io::Error::other)? {
                    if slot == LAST_SLOT {
                        return Ok(());
                    }
                    count += 1;
                }
                if count > 0 {
                    consumer.consume();
                } else {
                    std::hint::spin_loop();
                }
            }
        })?;
        pin(self.cores[0]);
        let mut producer = Producer::new(own.clone(), peer.clone(), RING_SLOTS);
        let (begin, duration) = (Instant::now(), Duration::from_millis(self.ms));
        let (mut slots, mut last, mut batches) = (0, now_ns(), Vec::new());
        while begin.elapsed() < duration {
            while producer.room().map_err(io::Error::other)? < RING_BATCH {
                producer.consumed().map_err(io::Error::other)?;
            }
            for _ in 0..RING_BATCH {
                producer.push(&[slots; SLOT_BYTES / 8]);
                slots += 1;
            }
            // The consumer never sleeps.
            let _ = producer.publish();
            let now = now_ns();
            batches.push(now - last);
            last = now;
        }
        let ns = percentile(&mut batches, 0.5).unwrap_or_default() as f64 / RING_BATCH as f64;
        while producer.room().map_err(io::Error::other)? == 0 {
            producer.consumed().map_err(io::Error::other)?;
        }
        producer.push(&LAST_SLOT);
        // The consumer never sleeps.
        let _ = producer.publish();
        wait_for(child);
        Ok(ns)
    }
}

fn words(bytes: usize) -> io::Result<Mapped> {
    let bytes = bytes.next_multiple_of(area::PAGE_BYTES);
    let memory = memory(bytes)?;
    Ok(Mapped::new(Arc::new(Region::shared(memory.as_fd(), bytes, true)?), 0, bytes))
}

fn wait_for(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: a child of this process; the call fills an int.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
}

/// Writes a byte of each page.
fn touch(area: *mut u8, bytes: usize, value: u8) {
    for offset in (0..bytes).step_by(area::PAGE_BYTES) {
        // SAFETY: inside the area, which is this process's now; volatile, because another process reads the byte.
        unsafe { area.add(offset).write_volatile(value) };
    }
}

/// Reads a byte of every `step`. Returns the time at the end.
fn read(area: *const u8, bytes: usize, step: usize) -> u64 {
    for offset in (0..bytes).step_by(step) {
        // SAFETY: inside the area, which is this process's now; volatile, because another process wrote the byte.
        unsafe { area.add(offset).read_volatile() };
    }
    now_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_and_the_ring_take_some_time() {
        let hand_over = HandOver { bytes: 5000, ms: 2, cores: [None, None] };
        for mode in Mode::ALL {
            let handed = hand_over.both(mode).unwrap();
            assert!(handed.turn_us > 0.0 && handed.turn_us < 1e6, "{mode}: {handed:?}");
        }
        assert!(hand_over.ring().unwrap() > 0.0);
    }
}
