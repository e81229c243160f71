//! `fault=SPEC`: requests that fail, for tests of the layers above.
//!
//! `SPEC` is `WHAT[@OFFSET+LENGTH][:after=N][:count=N][:every=N]`, where WHAT is `read-error`, `write-error`,
//! `flush-error`, `discard-error`, `no-space`, `corrupt-write` (one bit of the data is inverted) or `hang` (the request
//! never completes). Only requests that touch the range count; the first `after` of them succeed; of the others every
//! `every`th fails, at most `count` times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io::{Event, Io, Owner};

use super::{forward_endpoint, forward_medium};
use crate::{Completion, Endpoint, IoError, IoErrorKind, Kind, Medium, OpenError, Request, parse_size};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    ReadError,
    WriteError,
    FlushError,
    DiscardError,
    NoSpace,
    CorruptWrite,
    Hang,
}

const WHATS: &[(&str, What)] = &[
    ("read-error", What::ReadError),
    ("write-error", What::WriteError),
    ("flush-error", What::FlushError),
    ("discard-error", What::DiscardError),
    ("no-space", What::NoSpace),
    ("corrupt-write", What::CorruptWrite),
    ("hang", What::Hang),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    what: What,
    range: Option<(u64, u64)>,
    after: u64,
    count: u64,
    every: u64,
}

impl FaultRule {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let head = words.next().unwrap_or_default();
        let (name, range) = head.split_once('@').map_or((head, None), |(name, range)| (name, Some(range)));
        let what =
            WHATS.iter().find(|(known, _)| *known == name).map(|(_, what)| *what).ok_or_else(|| {
                let known: Vec<_> = WHATS.iter().map(|(name, _)| *name).collect();
                format!("'{name}' is not a fault; known: {}", known.join(", "))
            })?;
        let range = match range {
            None => None,
            Some(range) => {
                let (offset, length) =
                    range.split_once('+').ok_or_else(|| format!("'{range}' is not OFFSET+LENGTH"))?;
                Some((parse_size(offset)?, parse_size(length)?))
            }
        };
        let mut rule = Self { what, range, after: 0, count: u64::MAX, every: 1 };
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is not NAME=NUMBER"))?;
            let value: u64 = value.parse().map_err(|_| format!("'{word}' is not NAME=NUMBER"))?;
            match name {
                "after" => rule.after = value,
                "count" => rule.count = value,
                "every" => rule.every = value.max(1),
                _ => return Err(format!("'{name}' is not known here; known: after, count, every")),
            }
        }
        Ok(rule)
    }

    fn matches(&self, kind: &Kind) -> bool {
        let verb = match self.what {
            What::ReadError => matches!(kind, Kind::Read { .. }),
            What::WriteError | What::NoSpace => matches!(kind, Kind::Write { .. } | Kind::WriteZeroes { .. }),
            What::CorruptWrite => matches!(kind, Kind::Write { .. }),
            What::FlushError => matches!(kind, Kind::Flush),
            What::DiscardError => matches!(kind, Kind::Discard { .. }),
            What::Hang => true,
        };
        let inside = match (self.range, kind.range()) {
            (Some((start, length)), Some((offset, bytes))) => {
                offset < start.saturating_add(length) && start < offset.saturating_add(bytes)
            }
            _ => true,
        };
        verb && inside
    }

    /// The error of a request at `offset`, if it has a range.
    fn error(&self, offset: Option<u64>) -> IoError {
        let kind = match self.what {
            What::NoSpace => IoErrorKind::NoSpace,
            What::DiscardError => IoErrorKind::Other,
            What::FlushError => IoErrorKind::FlushFailed,
            _ => IoErrorKind::Medium,
        };
        let first = self.range.zip(offset).map(|((start, _), offset)| offset.max(start));
        IoError::new(kind, "injected by the fault layer").at(first)
    }
}

#[derive(Debug)]
pub struct FaultMedium {
    inner: Arc<dyn Medium>,
    rule: FaultRule,
    seen: Arc<AtomicU64>,
}

impl FaultMedium {
    pub fn new(inner: Arc<dyn Medium>, rule: FaultRule) -> Self {
        Self { inner, rule, seen: Arc::default() }
    }
}

impl Medium for FaultMedium {
    forward_medium!();

    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let inner = self.inner.attach(io)?;
        Ok(Box::new(Fault { inner, rule: self.rule.clone(), seen: Arc::clone(&self.seen) }))
    }
}

struct Fault {
    inner: Box<dyn Endpoint>,
    rule: FaultRule,
    seen: Arc<AtomicU64>,
}

impl Fault {
    fn applies(&self, kind: &Kind) -> bool {
        if !self.rule.matches(kind) {
            return false;
        }
        let Some(index) = self.seen.fetch_add(1, Ordering::Relaxed).checked_sub(self.rule.after) else {
            return false;
        };
        index % self.rule.every == 0 && index / self.rule.every < self.rule.count
    }
}

impl Endpoint for Fault {
    forward_endpoint!();

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        if !self.applies(&request.kind) {
            return self.inner.submit(io, request, done);
        }
        match (self.rule.what, &request.kind) {
            (What::Hang, _) => {}
            (What::CorruptWrite, Kind::Write { offset, from, durable }) => {
                let Some(copy) = io.pool().take(from.len()) else {
                    return self.inner.submit(io, request, done);
                };
                copy.fill(0, from.as_slice());
                let middle = copy.len() / 2;
                copy.fill(middle, &[copy.as_slice()[middle] ^ 1]);
                let kind = Kind::Write { offset: *offset, from: copy, durable: *durable };
                self.inner.submit(io, Request { id: request.id, kind }, done);
            }
            (_, kind) => {
                let error = self.rule.error(kind.range().map(|(offset, _)| offset));
                done.push(Completion { id: request.id, result: Err(error) });
            }
        }
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        self.inner.on_event(io, event, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        self.inner.owners(owners);
    }
}
