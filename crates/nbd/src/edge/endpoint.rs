//! An export as an endpoint: requests become commands, lost connections are made again.
//!
//! After a lost connection the unanswered requests are sent again, in their first order. A server knows no sessions: what
//! it had received on the old connection it may still carry out. Of one request that is the same bytes twice; a submitter
//! that writes the same blocks anew right after a lost connection has no promise from anybody. What the old connection
//! acknowledged and nobody flushed may be gone with the server, so the next flush says so once (`WriteCache`).

use std::sync::Arc;
use std::time::Duration;

use area::Span;
use block::{
    Backlog, Backoff, Capability, Completion, Endpoint, Extent, Identity, IoError, IoErrorKind, Kind,
    OpenError, Request, Run, State, WriteCache,
};
use io::{Event, Io, Owner, Token};

use super::connection::{Address, Connection, Failure, GENERATION_MASK, Outcome};
use super::medium::NbdMedium;
use super::request::{self, Step, capability, unknown_capability};
use super::status::{Knowledge, Question, Subject};
use crate::negotiation::{Config, Export, NegotiationError};
use crate::transmission::{Command, Ended};
use crate::uri::Uri;
use crate::wire::{ESHUTDOWN, flag};

/// How often the clock is looked at while something is outstanding.
const TICK: Duration = Duration::from_millis(100);
/// Zeroes sent at once where the server cannot make them itself.
const ZERO_BYTES: usize = 1 << 20;

/// Keys of the clock's events.
const KEY_TICK: u32 = 0;
const KEY_FEED: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Serving,
    /// The connection is lost; tried again at this time.
    Waiting(Duration),
    Closing,
    Closed,
}

pub(super) struct NbdEndpoint {
    owner: Owner,
    clock: Owner,
    ticking: bool,
    feeding: bool,
    uri: Uri,
    timeout: Duration,
    read_only: bool,
    addresses: Vec<Address>,
    address: usize,
    /// It was ready once; from then on it is not given up, only its requests are.
    opened: bool,
    state: State,
    phase: Phase,
    connection: Option<Connection>,
    generation: u32,
    export: Option<Export>,
    capability: Capability,
    cache: Arc<WriteCache>,
    /// Number of the last volatile write of this endpoint.
    written: u64,
    knowledge: Knowledge,
    /// What is asked; of each whether the flush that it ends with is done.
    backlog: Backlog<bool, Question>,
    /// Nothing was answered in time: what the requests are told when the kernel has let go of their buffers.
    expired: Option<IoError>,
    backoff: Backoff,
    last_failure: String,
    losses: u64,
    zeroes: Option<Span>,
}

impl NbdEndpoint {
    /// Begins to connect. `subject` is what [`NbdEndpoint::ask`] and [`Endpoint::extent`] are about.
    pub(super) fn open(io: &mut Io, medium: &NbdMedium, subject: Subject) -> Result<Self, OpenError> {
        let mut endpoint = Self {
            owner: io.owner(),
            clock: io.owner(),
            ticking: false,
            feeding: false,
            uri: medium.uri.clone(),
            timeout: medium.timeout,
            read_only: medium.read_only,
            addresses: medium.addresses()?,
            address: 0,
            opened: false,
            state: State::Opening,
            phase: Phase::Connecting,
            connection: None,
            generation: 0,
            export: None,
            capability: unknown_capability(),
            cache: Arc::clone(&medium.cache),
            written: 0,
            knowledge: Knowledge::new(subject),
            backlog: Backlog::new(io.now()),
            expired: None,
            backoff: Backoff::default(),
            last_failure: String::new(),
            losses: 0,
            zeroes: None,
        };
        let mut done = Vec::new();
        endpoint.connect(io, &mut done);
        assert!(done.is_empty(), "nothing was submitted yet");
        Ok(endpoint)
    }

    /// The extent that contains `offset`: its end, and its bit. `None`: it is being asked.
    pub(super) fn ask(&mut self, io: &mut Io, offset: u64) -> Result<Option<(u64, bool)>, &'static str> {
        if self.knowledge.is_given_up() {
            return Err("the server refuses to tell");
        }
        let known = self.knowledge.at(offset);
        if known.is_none() {
            self.feed_soon(io);
        }
        Ok(known)
    }

    fn tick(&mut self, io: &mut Io) {
        if !self.ticking {
            self.ticking = true;
            io.timer(Token { owner: self.clock, key: KEY_TICK }, io.now() + TICK);
        }
    }

    /// Feeds in the next turn, when there is someone to take completions.
    fn feed_soon(&mut self, io: &mut Io) {
        if !self.feeding {
            self.feeding = true;
            io.soon(Token { owner: self.clock, key: KEY_FEED });
        }
    }

    fn connect(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        self.generation = (self.generation + 1) & GENERATION_MASK;
        self.phase = Phase::Connecting;
        self.tick(io);
        let address = &self.addresses[self.address % self.addresses.len()];
        let config =
            Config { export: self.uri.export.clone(), contexts: vec![self.knowledge.subject.context()] };
        tracing::debug!(uri = %self.uri, ?address, "connecting");
        match Connection::connect(io, self.owner, self.generation, address, config) {
            Ok(connection) => self.connection = Some(connection),
            Err(failure) => self.on_failure(io, failure, done),
        }
    }

    /// The server has told what the export is.
    fn on_ready(&mut self, io: &mut Io, export: Export, done: &mut Vec<Completion>) {
        let subject = &self.knowledge.subject;
        if *subject != Subject::Allocation && export.context(&subject.context()).is_none() {
            let text = format!("{}: the export has no {}", self.uri, subject.context());
            return self.give_up(io, OpenError::Missing(text), done);
        }
        let capability = capability(&export, self.read_only);
        if self.opened && before_and_now_differ(&self.capability, &capability) {
            let text = "another export answers at this address than before: nothing was written to it";
            return self.give_up(io, OpenError::Exchanged(format!("{}: {text}", self.uri)), done);
        }
        if !self.opened && self.read_only {
            // A copy asks where its source's holes are before anything else happens.
            self.knowledge.want(0);
        }
        if self.opened && self.cache.lost() {
            tracing::error!(
                uri = %self.uri,
                "the server may have been restarted: writes it acknowledged since the last flush may be gone; the next \
                 flush fails"
            );
        }
        self.capability = capability;
        self.export = Some(export);
        self.phase = Phase::Serving;
        if self.backlog.connected(io.now()) {
            self.backoff = Backoff::default();
        }
        self.become_ready();
    }

    /// Ready for its user once it knows what it can tell about the beginning.
    fn become_ready(&mut self) {
        let Some(export) = &self.export else { return };
        let can_ask = export.context(&self.knowledge.subject.context()).is_some();
        if self.phase == Phase::Serving && (!can_ask || self.knowledge.is_settled(self.capability.size_bytes))
        {
            (self.opened, self.state) = (true, State::Ready);
        }
    }

    /// It will not be opened; or, if it was open before, its requests fail.
    fn give_up(&mut self, io: &mut Io, error: OpenError, done: &mut Vec<Completion>) {
        self.connection = None;
        self.phase = Phase::Closed;
        if self.opened {
            let is_exchanged = matches!(error, OpenError::Exchanged(_));
            let kind = if is_exchanged { IoErrorKind::Gone } else { IoErrorKind::Unreachable };
            self.backlog.fail(&IoError::new(kind, error.to_string()), io.now(), done);
        } else {
            self.state = State::Failed(error);
        }
    }

    fn on_failure(&mut self, io: &mut Io, failure: Failure, done: &mut Vec<Completion>) {
        self.connection = None;
        self.losses += u64::from(matches!(failure, Failure::Lost(_)));
        if let Some(error) = self.expired.take() {
            return self.expire(io, &error, done);
        }
        if matches!(self.phase, Phase::Closing | Phase::Closed) {
            self.phase = Phase::Closed;
            return;
        }
        let (is_final, error) = match failure {
            Failure::Connect(error) => (false, format!("connecting to {}: {error}", self.uri.place)),
            Failure::Lost(text) => (false, text),
            Failure::Negotiation(error @ NegotiationError::ShuttingDown) => (false, error.to_string()),
            Failure::Negotiation(error) if self.opened => (false, error.to_string()),
            Failure::Negotiation(NegotiationError::UnknownExport) => {
                let text = format!("{}: the server has no export '{}'", self.uri, self.uri.export);
                return self.give_up(io, OpenError::Missing(text), done);
            }
            Failure::Negotiation(error) => (true, error.to_string()),
        };
        self.last_failure = error;
        if self.opened {
            return self.lose(io);
        }
        self.address += 1;
        if !is_final && self.address < self.addresses.len() {
            return self.connect(io, done);
        }
        let text = format!("{}: {}", self.uri, self.last_failure);
        let error = if is_final { OpenError::Failed(text) } else { OpenError::Unreachable(text) };
        self.give_up(io, error, done);
    }

    /// The connection is gone: what was not answered goes first when there is a new one.
    fn lose(&mut self, io: &mut Io) {
        for run in self.backlog.running() {
            if let Run::Work { key, bytes: 1.. } = run
                && self.backlog.get(*key).kind.is_write()
            {
                self.knowledge.on_written();
            }
        }
        self.backlog.lost();
        self.knowledge.on_lost();
        self.address += 1;
        let pause = self.backoff.pause();
        self.phase = Phase::Waiting(io.now() + pause);
        tracing::warn!(
            uri = %self.uri, reason = self.last_failure, unanswered = self.backlog.len(),
            "connection lost: connecting again in {} ms", pause.as_millis()
        );
        self.tick(io);
    }

    fn on_outcomes(&mut self, io: &mut Io, outcomes: Vec<Outcome>, done: &mut Vec<Completion>) {
        for outcome in outcomes {
            match outcome {
                Outcome::Ready(export) => self.on_ready(io, export, done),
                Outcome::Ended(ended) => self.on_ended(io, &ended, done),
                Outcome::Failed(failure) => self.on_failure(io, failure, done),
            }
        }
    }

    fn on_ended(&mut self, io: &mut Io, ended: &Ended, done: &mut Vec<Completion>) {
        let Some(run) = self.backlog.ended(ended.task.index()) else { return };
        if let Err(error) = &ended.result
            && error.code == ESHUTDOWN
        {
            // It goes; perhaps another one comes. Nothing of the request was done.
            self.backlog.started(ended.task.index(), run);
            let failure = Failure::Lost("the server is shutting down".into());
            return self.cut(io, failure, done);
        }
        match run {
            Run::Question(question) => {
                let size = self.capability.size_bytes;
                let context = self.knowledge.subject.context();
                match (&ended.result, self.export.as_ref().and_then(|export| export.context(&context))) {
                    (Ok(status), Some(context)) => self.knowledge.on_answer(question, context, status, size),
                    (Ok(_), None) => unreachable!("only asked where there is a context"),
                    (Err(error), _) => {
                        tracing::info!(uri = %self.uri, %error, "where the holes are is not known");
                        self.knowledge.on_refused();
                    }
                }
                self.become_ready();
            }
            Run::Work { key, bytes } => {
                let is_flush = bytes == 0;
                let work = self.backlog.get_mut(key);
                if work.kind.is_write() && !is_flush {
                    self.knowledge.on_written();
                }
                if let Err(error) = &ended.result {
                    return self.backlog.finish(key, Err(request::io_error(error)), io.now(), done);
                }
                work.done += bytes;
                work.note |= is_flush;
                let Some(export) = &self.export else { unreachable!("commands come after it") };
                if !is_flush && request::is_volatile(&work.kind, export) {
                    self.written = self.cache.wrote();
                }
                if request::is_over(&work.kind, work.done, work.note, export) {
                    return self.complete(io, key, done);
                }
                self.backlog.progressed(io.now());
                self.backlog.again(key);
            }
        }
    }

    fn cut(&mut self, io: &mut Io, failure: Failure, done: &mut Vec<Completion>) {
        if let Some(connection) = &mut self.connection {
            let mut outcomes = Vec::new();
            connection.cut(failure, &mut outcomes);
            self.on_outcomes(io, outcomes, done);
        }
    }

    /// All of a request is done.
    fn complete(&mut self, io: &Io, key: usize, done: &mut Vec<Completion>) {
        let work = self.backlog.get(key);
        let result = match work.kind {
            Kind::Flush => self.cache.flushed(work.mark),
            _ => Ok(()),
        };
        self.backlog.finish(key, result, io.now(), done);
    }

    /// Sends as much of the queue as the server takes, and a question if there is one.
    fn feed(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        if self.phase != Phase::Serving {
            return;
        }
        let Some(zeroes) = self.zeroes(io) else { return };
        while let (Some(connection), Some(export)) = (&mut self.connection, &self.export) {
            if connection.window() == 0 {
                return;
            }
            let Some(key) = self.backlog.pop() else { break };
            let work = self.backlog.get(key);
            match request::step(&work.kind, work.done, work.note, export, &self.capability, &zeroes) {
                None => self.complete(io, key, done),
                Some(Step { command, span, bytes }) => {
                    assert_eq!(command == Command::Flush, bytes == 0, "a flush is what moves nothing");
                    if work.kind.is_write() && bytes > 0 {
                        self.knowledge.on_write();
                    }
                    let task = connection.submit(command, span);
                    self.backlog.started(task.index(), Run::Work { key, bytes });
                }
            }
        }
        self.put_question(io);
    }

    fn put_question(&mut self, io: &Io) {
        let (Some(connection), Some(export)) = (&mut self.connection, &self.export) else { return };
        if connection.window() == 0 || export.context(&self.knowledge.subject.context()).is_none() {
            return;
        }
        let (size, unit) = (self.capability.size_bytes, self.capability.granularity);
        if let Some(question) = self.knowledge.question(size, unit, io.now()) {
            let command = Command::BlockStatus { offset: question.offset, length: question.length };
            let task = connection.submit(command, None);
            self.backlog.started(task.index(), Run::Question(question));
        }
    }

    fn zeroes(&mut self, io: &Io) -> Option<Span> {
        if self.zeroes.is_none() {
            let span = io.pool().take(ZERO_BYTES)?;
            span.zero(0, ZERO_BYTES);
            self.zeroes = Some(span);
        }
        self.zeroes.clone()
    }

    /// Lets the connection receive and send, and acts on what it says, until nothing more happens.
    fn pump(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        loop {
            self.feed(io, done);
            let mut outcomes = Vec::new();
            if let Some(connection) = &mut self.connection {
                connection.pump(io, &mut outcomes);
            }
            if outcomes.is_empty() {
                return;
            }
            self.on_outcomes(io, outcomes, done);
        }
    }

    fn on_tick(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        let now = io.now();
        let late = self.backlog.waited(now) >= self.timeout;
        let seconds = self.timeout.as_secs();
        if !self.opened && self.phase != Phase::Closed && late {
            let text = format!("{}: no answer in {seconds} s", self.uri);
            return self.give_up(io, OpenError::Unreachable(text), done);
        }
        if self.backlog.is_empty() && self.opened {
            self.backlog.progressed(now);
        } else if self.opened && self.expired.is_none() && late {
            let reason = match self.last_failure.as_str() {
                "" => "the server does not answer",
                known => known,
            };
            let text = format!(
                "{}: nothing completed for {seconds} s ({reason}); check that the server is running and reachable",
                self.uri
            );
            let error = IoError::new(IoErrorKind::Unreachable, text);
            if self.connection.is_some() {
                self.expired = Some(error);
                self.cut(io, Failure::Lost("no answer in time".into()), done);
            } else {
                self.expire(io, &error, done);
            }
        }
        if let Phase::Waiting(at) = self.phase
            && at <= now
        {
            self.connect(io, done);
        }
        let knows = self.knowledge.on_time(now);
        let idle = self.backlog.is_empty() && matches!(self.phase, Phase::Serving | Phase::Closed);
        if !idle || (knows && self.phase == Phase::Serving) {
            self.tick(io);
        }
    }

    /// The requests have waited long enough; the connection is gone.
    fn expire(&mut self, io: &mut Io, error: &IoError, done: &mut Vec<Completion>) {
        self.backlog.fail(error, io.now(), done);
        self.knowledge = Knowledge::new(self.knowledge.subject.clone());
        self.phase = match self.phase {
            Phase::Closing | Phase::Closed => Phase::Closed,
            // However short the timeout is, the next attempt comes.
            Phase::Waiting(at) => Phase::Waiting(at),
            _ => Phase::Waiting(io.now() + Backoff::MAX),
        };
        self.tick(io);
    }
}

impl Endpoint for NbdEndpoint {
    fn state(&self) -> State {
        self.state.clone()
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let Request { id, kind } = request;
        let refused = match &self.export {
            Some(export) if self.phase != Phase::Closed => {
                request::check(&self.capability, export, &kind).err()
            }
            _ => Some(IoError::new(IoErrorKind::Unreachable, format!("{} is closed", self.uri))),
        };
        if let Some(error) = refused {
            return done.push(Completion { id, result: Err(error) });
        }
        self.backlog.push(Request { id, kind }, self.cache.mark(), io.now());
        self.tick(io);
        // Sent together with whatever else is submitted in this turn.
        self.feed_soon(io);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        if event.token.owner == self.clock {
            if event.token.key == KEY_FEED {
                self.feeding = false;
            } else {
                self.ticking = false;
                self.on_tick(io, done);
            }
        } else if let Some(connection) = &mut self.connection {
            let mut outcomes = Vec::new();
            connection.on_event(event, &mut outcomes);
            self.on_outcomes(io, outcomes, done);
        }
        self.pump(io, done);
        if self.phase == Phase::Closed && !self.backlog.is_empty() {
            let error = IoError::new(IoErrorKind::Aborted, "the connection was closed");
            self.backlog.fail(&error, io.now(), done);
        }
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.extend([self.owner, self.clock]);
    }

    fn extent(&mut self, offset: u64) -> Extent {
        self.knowledge.extent(offset, self.capability.size_bytes)
    }

    fn identity(&self) -> Identity {
        Identity::Remote(self.uri.to_string())
    }

    fn close(&mut self, io: &mut Io) {
        match (&mut self.connection, self.phase) {
            (Some(connection), Phase::Serving) => {
                connection.disconnect();
                self.phase = Phase::Closing;
            }
            (Some(_), Phase::Closing) => {}
            _ => {
                self.connection = None;
                self.phase = Phase::Closed;
            }
        }
        self.feed_soon(io);
    }

    fn is_closed(&self) -> bool {
        self.phase == Phase::Closed && self.backlog.is_empty()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let Some(export) = &self.export else { return Vec::new() };
        let yes = |on: bool| if on { "yes" } else { "no" }.to_owned();
        let contexts: Vec<&str> = export.contexts.iter().map(|context| context.name.as_str()).collect();
        let blocks = export.blocks.map_or("not told".to_owned(), |blocks| {
            format!("{}, {}, {}", blocks.minimum, blocks.preferred, blocks.maximum)
        });
        vec![
            ("kind", "NBD export".to_owned()),
            ("protection", "none".to_owned()),
            ("export name", self.uri.export.clone()),
            ("block sizes (minimum, preferred, maximum)", blocks),
            ("structured replies", yes(export.structured)),
            ("metadata contexts", contexts.join(", ")),
            ("read-only", yes(export.has(flag::READ_ONLY))),
            ("FUA", yes(export.has(flag::FUA))),
            ("flush", yes(export.has(flag::FLUSH))),
            ("trim", yes(export.has(flag::TRIM))),
            ("several connections", yes(export.has(flag::MULTI_CONN))),
        ]
    }

    fn retries(&self) -> u64 {
        self.backlog.retries()
    }

    fn losses(&self) -> u64 {
        self.losses
    }
}

impl Drop for NbdEndpoint {
    /// Nobody is left who would hear whether its writes survive: a flush by another endpoint cannot vouch for them.
    fn drop(&mut self) {
        if self.cache.holds(self.written) {
            self.cache.lost();
        }
    }
}

/// An export has no name of its own: what was measured by its size must keep it.
fn before_and_now_differ(before: &Capability, now: &Capability) -> bool {
    (before.size_bytes, before.granularity) != (now.size_bytes, now.granularity)
}
