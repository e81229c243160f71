//! Commands of a channel in flight: their memory must stay in place until they complete.

use std::time::{Duration, Instant};

use area::{Access, Span};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::disk_command::Verb;
use crate::endpoint::Channel;

/// Time limit of the wait at the end of a channel, and the length of one poll.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

pub(crate) struct Flight<T> {
    pub(crate) slot: u32,
    /// Memory that the device reads or writes.
    pub(crate) span: Option<Span>,
    pub(crate) with: T,
}

/// Commands in flight, by number; leaked on drop, because the device may still write to their memory.
pub(crate) struct Flights<T> {
    places: Vec<Option<Flight<T>>>,
    count: u32,
}

impl<T> Flights<T> {
    pub(crate) fn new(max: u32) -> Self {
        Self { places: (0..max).map(|_| None).collect(), count: 0 }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn has_room(&self) -> bool {
        (self.count as usize) < self.places.len()
    }

    /// A free number for the next command. Panics unless [`Self::has_room`].
    pub(crate) fn number(&self) -> usize {
        self.places.iter().position(Option::is_none).expect("checked for room before")
    }

    /// Records that the device has accepted a command under `number`, the last result of [`Self::number`].
    pub(crate) fn begin(&mut self, number: usize, verb: Verb, flight: Flight<T>) {
        if let Some(span) = &flight.span {
            span.begin_flight(if verb == Verb::Read { Access::Write } else { Access::Read });
        }
        let before = self.places[number].replace(flight);
        assert!(before.is_none(), "two commands have the number {number}");
        self.count += 1;
    }

    /// Removes the completed command `number`. `None`: no such command is in flight, so the device is faulty.
    pub(crate) fn end(&mut self, number: usize) -> Option<Flight<T>> {
        let flight = self.places.get_mut(number)?.take()?;
        self.count -= 1;
        if let Some(span) = &flight.span {
            span.end_flight();
        }
        Some(flight)
    }
}

impl<T> Drop for Flights<T> {
    fn drop(&mut self) {
        self.places.drain(..).for_each(std::mem::forget);
    }
}

/// Waits up to [`DRAIN_TIMEOUT`] for the commands in flight; for the end of a channel.
pub(crate) fn drain(channel: &mut impl Channel) {
    let until = Instant::now() + DRAIN_TIMEOUT;
    while channel.in_flight() > 0 && Instant::now() < until {
        match channel.take() {
            Ok(Some(_)) => {}
            Ok(None) => {
                let mut poll = [PollFd::new(channel.handle(), PollFlags::IN)];
                let _ = rustix::event::poll(&mut poll, Some(&POLL_TIMEOUT));
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use area::{Pool, PoolLimits};

    use super::*;

    fn flight(pool: &Pool, slot: u32) -> Flight<()> {
        Flight { slot, span: pool.take(4096), with: () }
    }

    #[test]
    fn a_number_is_one_commands_until_it_is_over() {
        let pool = Pool::new(PoolLimits::default());
        let mut flights = Flights::new(2);
        for slot in [10, 11] {
            assert!(flights.has_room());
            let number = flights.number();
            flights.begin(number, Verb::Read, flight(&pool, slot));
        }
        assert!(!flights.has_room());
        assert_eq!(flights.end(0).map(|flight| flight.slot), Some(10));
        assert!(flights.end(0).is_none() && flights.end(2).is_none(), "answers to no command");
        assert_eq!((flights.number(), flights.count()), (0, 1), "used again");
        assert_eq!(flights.end(1).map(|flight| flight.slot), Some(11));
    }

    #[test]
    fn memory_that_the_device_may_still_write_to_never_comes_back() {
        let pool = Pool::new(PoolLimits::default());
        let mut flights = Flights::new(2);
        for slot in [0, 1] {
            flights.begin(slot as usize, Verb::Read, flight(&pool, slot));
        }
        drop(flights.end(0));
        assert_eq!(pool.borrowed(), 1);
        drop(flights);
        assert_eq!(pool.borrowed(), 1);
    }
}
