//! Debug builds record which bytes of an area an operation in flight reads or writes, and panic on a conflicting access
//! by other code. In release builds the type is empty, because the check is not free: spans of one area may be in use
//! at once as long as they do not overlap, which a reference count cannot express; each area needs a list of ranges,
//! and each access a search in it.

use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// By a send or a write to a disk.
    Read,
    /// By a receive or a read from a disk.
    Write,
}

#[cfg(debug_assertions)]
#[derive(Default)]
pub(crate) struct Flights(std::cell::RefCell<Vec<(Range<usize>, Access)>>);

#[cfg(debug_assertions)]
impl Flights {
    pub(crate) fn begin(&self, range: Range<usize>, access: Access) {
        self.check(&range, access);
        self.0.borrow_mut().push((range, access));
    }

    /// Ends one operation on exactly this range. Several on the same range all read, so any of them may be removed.
    pub(crate) fn end(&self, range: &Range<usize>) {
        let mut flights = self.0.borrow_mut();
        let index = flights.iter().position(|(flight, _)| flight == range);
        flights.swap_remove(index.expect("an operation ends once"));
    }

    pub(crate) fn check(&self, range: &Range<usize>, access: Access) {
        for (flight, theirs) in self.0.borrow().iter() {
            let is_apart = range.start.max(flight.start) >= range.end.min(flight.end);
            assert!(
                is_apart || (access, *theirs) == (Access::Read, Access::Read),
                "{access:?} access to bytes {range:?} of an area while an operation in flight has {theirs:?} access to \
                 its bytes {flight:?}: wait for that operation's event"
            );
        }
    }
}

#[cfg(not(debug_assertions))]
#[derive(Default)]
pub(crate) struct Flights;

#[cfg(not(debug_assertions))]
impl Flights {
    pub(crate) fn begin(&self, _: Range<usize>, _: Access) {}

    pub(crate) fn end(&self, _: &Range<usize>) {}

    pub(crate) fn check(&self, _: &Range<usize>, _: Access) {}
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::{PAGE_BYTES, Pool, PoolLimits, Span};

    fn span() -> Span {
        Pool::new(PoolLimits::default()).take(PAGE_BYTES).unwrap()
    }

    #[test]
    fn other_bytes_of_an_area_in_flight_are_free() {
        let span = span();
        let (received, sent) = (span.slice(0, 100), span.slice(100, 100));
        received.begin_flight(Access::Write);
        sent.begin_flight(Access::Read);
        sent.begin_flight(Access::Read);
        assert_eq!(sent.as_slice().len(), 100, "who sends may look");
        assert_eq!(span.range(100..PAGE_BYTES).len(), PAGE_BYTES - 100);
        span.fill(200, &[1; 50]);
        span.zero(300, 50);
        sent.end_flight();
        sent.end_flight();
        received.end_flight();
        span.fill(0, &[1; PAGE_BYTES]);
    }

    #[test]
    #[should_panic(expected = "Read access to bytes 0..4096")]
    fn a_look_at_what_is_being_received_is_caught() {
        let span = span();
        span.slice(4000, 96).begin_flight(Access::Write);
        span.as_slice();
    }

    #[test]
    #[should_panic(expected = "Write access to bytes 10..11")]
    fn a_change_of_what_is_being_sent_is_caught() {
        let span = span();
        span.slice(0, 11).begin_flight(Access::Read);
        span.fill(10, &[1]);
    }

    #[test]
    #[should_panic(expected = "Read access to bytes 9..10")]
    fn a_look_at_what_is_being_changed_is_caught() {
        let span = span();
        span.change(0, 10, |_| span.range(9..10).len());
    }

    #[test]
    #[should_panic(expected = "Write access to bytes 0..512")]
    fn a_second_use_of_a_buffer_in_flight_is_caught() {
        let span = span();
        span.slice(511, 1).begin_flight(Access::Read);
        span.slice(0, 512).begin_flight(Access::Write);
    }
}
