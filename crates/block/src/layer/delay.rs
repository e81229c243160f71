//! `delay=2ms`: every request waits before it reaches the storage. Requests wait beside each other, as on a
//! slow device with a deep queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use io::{Event, Io, Owner, Token};

use super::forward_endpoint;
use crate::{Completion, Endpoint, Medium, OpenError, Request};

/// Storage that is `delay` further away.
#[derive(Debug)]
pub struct DelayMedium {
    inner: Arc<dyn Medium>,
    delay: Duration,
}

impl DelayMedium {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Medium>, delay: Duration) -> Self {
        Self { inner, delay }
    }
}

impl Medium for DelayMedium {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let owner = io.owner();
        let inner = self.inner.attach(io)?;
        Ok(Box::new(Delay { inner, owner, delay: self.delay, waiting: VecDeque::new() }))
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn lasting_name(&self) -> Option<String> {
        self.inner.lasting_name()
    }
}

struct Delay {
    inner: Box<dyn Endpoint>,
    owner: Owner,
    delay: Duration,
    /// In the order of their timers: all wait equally long.
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
