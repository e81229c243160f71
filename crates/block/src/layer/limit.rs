//! `limit=100MB/s`, `iops=1000`: a rate limit shared by all threads that use the storage.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use io::{Event, Io, Owner, Token};

use super::{forward_endpoint, forward_medium};
use crate::{Capability, Completion, Endpoint, Kind, Medium, OpenError, Request};

/// How far `paid_until` may lag behind the present: after a pause, requests that cost this much pass without delay.
const BURST: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
enum Rate {
    BytesPerSecond(u64),
    OperationsPerSecond(u64),
}

impl Rate {
    /// Time that a device of this rate needs for a request.
    fn cost(self, kind: &Kind, capability: &Capability) -> Duration {
        match self {
            Self::OperationsPerSecond(rate) => {
                Duration::from_secs(1) / u32::try_from(rate).unwrap_or(u32::MAX)
            }
            Self::BytesPerSecond(rate) => {
                let bytes = bytes(kind, capability);
                Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64)
            }
        }
    }
}

/// Bytes that a device reads or writes for a request. A device that deallocates blocks only records it, for a discard
/// or for zeroes; a device that cannot deallocate writes the zeroes itself, though none are transferred to it.
fn bytes(kind: &Kind, capability: &Capability) -> u64 {
    match kind {
        Kind::Discard { .. } | Kind::Flush => 0,
        Kind::WriteZeroes { may_unmap: true, .. } if capability.discard => 0,
        Kind::WriteZeroes { length, .. } => *length,
        Kind::Read { into: span, .. } | Kind::Write { from: span, .. } => span.len() as u64,
    }
}

#[derive(Debug)]
pub struct LimitMedium {
    inner: Arc<dyn Medium>,
    rate: Rate,
    /// Loop time at which the device would have finished all admitted requests. All loops share one epoch.
    paid_until: Arc<Mutex<Duration>>,
}

impl LimitMedium {
    pub fn bytes(inner: Arc<dyn Medium>, rate: u64) -> Self {
        Self { inner, rate: Rate::BytesPerSecond(rate), paid_until: Arc::default() }
    }

    pub fn operations(inner: Arc<dyn Medium>, rate: u64) -> Self {
        Self { inner, rate: Rate::OperationsPerSecond(rate), paid_until: Arc::default() }
    }
}

impl Medium for LimitMedium {
    forward_medium!();

    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let owner = io.owner();
        let inner = self.inner.attach(io)?;
        let paid_until = Arc::clone(&self.paid_until);
        Ok(Box::new(Limit { inner, owner, rate: self.rate, paid_until, waiting: VecDeque::new() }))
    }
}

struct Limit {
    inner: Box<dyn Endpoint>,
    owner: Owner,
    rate: Rate,
    paid_until: Arc<Mutex<Duration>>,
    waiting: VecDeque<Request>,
}

impl Endpoint for Limit {
    forward_endpoint!();

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let start = {
            let mut paid_until = self.paid_until.lock().expect("no panic while locked");
            let start = (*paid_until).max(io.now().saturating_sub(BURST));
            *paid_until = start + self.rate.cost(&request.kind, self.inner.capability());
            start
        };
        if start <= io.now() && self.waiting.is_empty() {
            return self.inner.submit(io, request, done);
        }
        io.timer(Token { owner: self.owner, key: 0 }, start);
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

#[cfg(test)]
mod tests {
    use area::{Pool, PoolLimits};
    use io::Io;

    use super::*;
    use crate::{OpenOptions, Spec};

    #[test]
    fn a_request_costs_what_the_device_has_to_do() {
        let pool = Pool::new(PoolLimits::default());
        let span = pool.take(4096).unwrap();
        let (offset, length) = (0, 1 << 20);
        let zeroes = |may_unmap| Kind::WriteZeroes { offset, length, may_unmap };
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let options = OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
        let memory = crate::open(&Spec::parse("mem:1M").unwrap(), &options).unwrap();
        let thin = Capability { discard: true, ..memory.attach(&mut io).unwrap().capability().clone() };
        let thick = Capability { discard: false, ..thin.clone() };
        let second = Rate::BytesPerSecond(1 << 20);
        let page = Duration::from_secs(1) / 256;
        for (kind, of_thin, of_thick) in [
            (Kind::Read { offset, into: span.clone() }, page, page),
            (Kind::Write { offset, from: span, durable: false }, page, page),
            (zeroes(true), Duration::ZERO, Duration::from_secs(1)),
            (zeroes(false), Duration::from_secs(1), Duration::from_secs(1)),
            (Kind::Discard { offset, length }, Duration::ZERO, Duration::ZERO),
            (Kind::Flush, Duration::ZERO, Duration::ZERO),
        ] {
            let cost = [&thin, &thick].map(|capability| second.cost(&kind, capability));
            assert_eq!(cost, [of_thin, of_thick], "{kind:?}");
            let operation = Rate::OperationsPerSecond(100).cost(&kind, &thin);
            assert_eq!(operation, Duration::from_millis(10), "each is one operation");
        }
    }
}
