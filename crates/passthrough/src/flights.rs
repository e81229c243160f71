//! Commands of a channel that the device has: what they use must stay where it is until they are over.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use area::{Access, Span};

use crate::endpoint::Channel;
use crate::step::Verb;

/// How long the end of a channel waits for its commands, and how long at a time.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE_MS: i32 = 100;

/// A command in flight.
pub(crate) struct Flight<T> {
    /// The request's, at the endpoint.
    pub(crate) slot: u32,
    /// Where the device reads or writes.
    pub(crate) span: Option<Span>,
    /// What else its channel keeps of it.
    pub(crate) with: T,
}

/// Commands in flight, by the number that their answer comes with. What has not ended when this is dropped is leaked: the
/// device may write there at any time.
pub(crate) struct Flights<T> {
    places: Vec<Option<Flight<T>>>,
    count: u32,
}

impl<T> Flights<T> {
    /// Room for `max`.
    pub(crate) fn new(max: u32) -> Self {
        Self { places: (0..max).map(|_| None).collect(), count: 0 }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn has_room(&self) -> bool {
        (self.count as usize) < self.places.len()
    }

    /// A number for the next command. There must be room.
    pub(crate) fn number(&self) -> usize {
        self.places.iter().position(Option::is_none).expect("asked for room before")
    }

    /// The device has taken a command with the number that was given last.
    pub(crate) fn begin(&mut self, number: usize, verb: Verb, flight: Flight<T>) {
        if let Some(span) = &flight.span {
            span.begin_flight(if verb == Verb::Read { Access::Write } else { Access::Read });
        }
        let before = self.places[number].replace(flight);
        assert!(before.is_none(), "two commands have the number {number}");
        self.count += 1;
    }

    /// The command with this number is over. `None`: there is none, so that the device cannot be believed.
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

/// Waits until what is in flight has ended, for a while. For the end of a channel.
pub(crate) fn drain(channel: &mut impl Channel) {
    let until = Instant::now() + PATIENCE;
    while channel.in_flight() > 0 && Instant::now() < until {
        match channel.take() {
            Ok(Some(_)) => {}
            Ok(None) => {
                let fd = channel.handle().as_raw_fd();
                let mut about = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one live pollfd.
                unsafe { libc::poll(&raw mut about, 1, PAUSE_MS) };
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
        assert_eq!(pool.lent(), 1);
        drop(flights);
        assert_eq!(pool.lent(), 1);
    }
}
