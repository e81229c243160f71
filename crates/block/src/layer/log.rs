//! `log`: one line per request and completion, with its latency.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use io::{Event, Io, Owner};
use tracing::info;

use super::{forward_endpoint, forward_medium};
use crate::{Completion, Endpoint, Medium, OpenError, Request, RequestId};

#[derive(Debug)]
pub struct LogMedium {
    inner: Arc<dyn Medium>,
}

impl LogMedium {
    pub fn new(inner: Arc<dyn Medium>) -> Self {
        Self { inner }
    }
}

impl Medium for LogMedium {
    forward_medium!();

    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let inner = self.inner.attach(io)?;
        Ok(Box::new(Log { inner, name: self.inner.name(), begun: HashMap::new() }))
    }
}

/// Verb, range and start (loop time) of a request in flight.
type Begun = (&'static str, Option<(u64, u64)>, Duration);

struct Log {
    inner: Box<dyn Endpoint>,
    name: String,
    begun: HashMap<RequestId, Begun>,
}

impl Log {
    fn note(&mut self, io: &Io, completions: &[Completion]) {
        for Completion { id, result } in completions {
            let Some((verb, range, begun)) = self.begun.remove(id) else { continue };
            let (offset, length) = range.unwrap_or_default();
            let micros = (io.now() - begun).as_micros() as u64;
            let result = result.as_ref().map_or_else(ToString::to_string, |()| "ok".into());
            info!(target: "hikyaku::log", endpoint = self.name, verb, offset, length, micros, result);
        }
    }
}

impl Endpoint for Log {
    forward_endpoint!();

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        self.begun.insert(request.id, (request.kind.verb(), request.kind.range(), io.now()));
        let already = done.len();
        self.inner.submit(io, request, done);
        self.note(io, &done[already..]);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        let already = done.len();
        self.inner.on_event(io, event, done);
        self.note(io, &done[already..]);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        self.inner.owners(owners);
    }
}
