//! An event loop with one endpoint.

use std::fmt::Display;
use std::time::{Duration, Instant};

use area::{PoolLimits, Span};
use block::{Completion, Endpoint, IoError, Kind, Medium, OpenError, Request, close_all, wait_ready};
use io::{Event, Io};
use node::initiator::{IscsiMedium, Options, Url};

use super::{IQN, TIME_LIMIT};

pub(crate) fn new_io() -> Io {
    Io::new(PoolLimits::default()).unwrap()
}

pub(crate) fn options() -> Options {
    Options { timeout: Duration::from_secs(10), ..Options::new("iqn.2026-11.example:tester") }
}

/// LUN `lun` of the target [`IQN`].
pub(crate) fn remote(address: impl Display, lun: u16, options: Options) -> Result<IscsiMedium, OpenError> {
    let url = Url::parse(&format!("iscsi://{address}/{IQN}/{lun}")).unwrap();
    IscsiMedium::new(url, options, false)
}

pub(crate) struct Host {
    pub(crate) io: Io,
    pub(crate) endpoint: Box<dyn Endpoint>,
    pub(crate) done: Vec<Completion>,
    events: Vec<Event>,
}

impl Host {
    pub(crate) fn open(address: impl Display, lun: u16, options: Options) -> Result<Self, OpenError> {
        Self::attach(&remote(address, lun, options)?)
    }

    pub(crate) fn attach(medium: &dyn Medium) -> Result<Self, OpenError> {
        let mut io = new_io();
        let mut endpoint = medium.attach(&mut io)?;
        wait_ready(&mut io, &mut [&mut *endpoint])?;
        Ok(Self { io, endpoint, done: Vec::with_capacity(8), events: Vec::with_capacity(64) })
    }

    pub(crate) fn take(&self, bytes: usize) -> Span {
        self.io.pool().take(bytes).unwrap()
    }

    pub(crate) fn submit(&mut self, id: u64, kind: Kind) {
        self.endpoint.submit(&mut self.io, Request { id, kind }, &mut self.done);
    }

    /// Handles what arrives within 10 ms; `before` sees each event first.
    pub(crate) fn turn(&mut self, mut before: impl FnMut(&Event)) {
        let until = self.io.now() + Duration::from_millis(10);
        self.io.turn_until(Some(until), &mut self.events).unwrap();
        for event in self.events.drain(..) {
            before(&event);
            self.endpoint.on_event(&mut self.io, event, &mut self.done);
        }
    }

    /// Turns the loop until `condition` holds.
    #[track_caller]
    pub(crate) fn turn_until(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < 2 * TIME_LIMIT, "{what}");
            self.turn(|_| {});
        }
    }

    /// Submits all requests at once; returns their results in the same order.
    #[track_caller]
    pub(crate) fn perform_all(&mut self, kinds: Vec<Kind>) -> Vec<Result<(), IoError>> {
        let count = kinds.len();
        (0..).zip(kinds).for_each(|(id, kind)| self.submit(id, kind));
        self.turn_until("the requests end", |host| host.done.len() >= count);
        self.done.sort_by_key(|completion| completion.id);
        self.done.drain(..).map(|completion| completion.result).collect()
    }

    #[track_caller]
    pub(crate) fn perform(&mut self, kind: Kind) -> Result<(), IoError> {
        self.perform_all(vec![kind]).remove(0)
    }

    /// Ends the session; asserts that it has ended.
    pub(crate) fn close(mut self) {
        close_all(&mut self.io, &mut [&mut *self.endpoint]);
        assert!(self.endpoint.is_closed());
    }
}
