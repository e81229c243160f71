//! `delay=2ms`: delays every request before it reaches the storage; the delays overlap, as on a slow, deep queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use io::{Event, Io, Owner, Token};

use super::{forward_endpoint, forward_medium};
use crate::{Completion, Endpoint, Medium, OpenError, Request};

#[derive(Debug)]
pub struct DelayMedium {
    inner: Arc<dyn Medium>,
    delay: Duration,
}

impl DelayMedium {
    pub fn new(inner: Arc<dyn Medium>, delay: Duration) -> Self {
        Self { inner, delay }
    }
}

impl Medium for DelayMedium {
    forward_medium!();

    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let owner = io.owner();
        let inner = self.inner.attach(io)?;
        Ok(Box::new(Delay { inner, owner, delay: self.delay, waiting: VecDeque::new() }))
    }
}

struct Delay {
    inner: Box<dyn Endpoint>,
    owner: Owner,
    delay: Duration,
    /// In the order of their timers, as every delay is equal.
    waiting: VecDeque<Request>,
}

impl Endpoint for Delay {
    forward_endpoint!();

    fn submit(&mut self, io: &mut Io, request: Request, _done: &mut Vec<Completion>) {
        io.timer(Token { owner: self.owner, key: 0 }, io.now() + self.delay);
        self.waiting.push_back(request);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        if event.token.owner != self.owner {
            return self.inner.on_event(io, event, done);
        }
        let request = self.waiting.pop_front().expect("one timer for each request");
        self.inner.submit(io, request, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
        self.inner.owners(owners);
    }
}
