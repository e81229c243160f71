//! Drives `N` endpoints on one loop: for copies and comparisons (`engine.rs`), copies with a stream (`stream/`) and
//! loads (`load/`).
//!
//! [`Driver::submit`] submits a request; [`Driver::completed`] returns completions in the order of their arrival,
//! including those that an endpoint reports inside `submit`. [`Driver::turn`] runs the loop, routes each event to the
//! endpoint it belongs to, and passes the user's own events (timers, wake-ups) to the user. Events of other owners are
//! dropped.

use std::collections::VecDeque;

use block::{Completion, Endpoint, Kind, Request, RequestId, Router};
use io::{Event, Io, Owner};

pub(crate) struct Driver<'a, const N: usize> {
    pub(crate) io: &'a mut Io,
    pub(crate) ends: [&'a mut dyn Endpoint; N],
    router: Router<usize>,
    /// Completions not yet taken, oldest first, with the index of the endpoint.
    completions: VecDeque<(usize, Completion)>,
    /// Output buffer for endpoints; empty between calls.
    done: Vec<Completion>,
    events: Vec<Event>,
    retries_before: u64,
}

impl<'a, const N: usize> Driver<'a, N> {
    pub(crate) fn new(io: &'a mut Io, ends: [&'a mut dyn Endpoint; N]) -> Self {
        let mut driver = Self {
            io,
            ends,
            router: Router::new(),
            completions: VecDeque::new(),
            done: Vec::new(),
            events: Vec::new(),
            retries_before: 0,
        };
        driver.retries_before = driver.retries();
        driver
    }

    pub(crate) fn submit(&mut self, end: usize, id: RequestId, kind: Kind) {
        self.ends[end].submit(self.io, Request { id, kind }, &mut self.done);
        self.completions.extend(self.done.drain(..).map(|completion| (end, completion)));
    }

    pub(crate) fn completed(&mut self) -> Option<(usize, Completion)> {
        self.completions.pop_front()
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.completions.is_empty()
    }

    /// Runs the loop once by `turn`, such as [`io::Io::turn_until`], and processes its events even if that fails. `own`
    /// receives the events of `owner`.
    pub(crate) fn turn(
        &mut self,
        turn: impl FnOnce(&mut Io, &mut Vec<Event>) -> std::io::Result<()>,
        owner: Option<Owner>,
        mut own: impl FnMut(Event),
    ) -> std::io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        let turned = turn(self.io, &mut events);
        for event in events.drain(..) {
            if owner == Some(event.token.owner) {
                own(event);
            } else {
                self.on_event(event);
            }
        }
        self.events = events;
        turned
    }

    fn on_event(&mut self, event: Event) {
        let end = self.router.route(event.token.owner).or_else(|| {
            // The first event of an owner, or of an endpoint that has reconnected and has new owner numbers.
            for (index, end) in self.ends.iter().enumerate() {
                self.router.add_endpoint(&**end, index);
            }
            self.router.route(event.token.owner)
        });
        if let Some(end) = end {
            self.ends[end].on_event(self.io, event, &mut self.done);
            self.completions.extend(self.done.drain(..).map(|completion| (end, completion)));
        }
    }

    pub(crate) fn retries(&self) -> u64 {
        self.ends.iter().map(|end| end.inspect().retries()).sum::<u64>().saturating_sub(self.retries_before)
    }
}
