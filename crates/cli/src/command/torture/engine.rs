//! Keeps the requests of all clients in flight, reports them to the history, and waits while storage is unreachable.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use area::Span;
use block::{Completion, IoError, IoErrorKind, Kind, Request, RequestId, Router, State};
use io::Io;
use job::Sample;
use torture::history::{Cut, History, Outcome};
use torture::journal::{self as record, FILLER, Header, Record};
use torture::plan::{Action, Plan};
use torture::stamp::{Content, Stamper};
use torture::{Client as ClientId, SECTOR_BYTES};

use super::Client;
use super::journal::Journal;
use super::verdict::{Tally, VIOLATIONS_SHOWN_MAX};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::progress::Progress;

/// Requests in flight per client.
const DEPTH: usize = 8;
/// Pause of a client after a failed attempt to attach its storage.
const PAUSE: Duration = Duration::from_millis(500);
/// Consecutive attempts to attach without an answered request, before the run fails.
const ROUNDS_MAX: u32 = 10;
/// Interval of the checks for stop and progress.
const TICK: Duration = Duration::from_millis(50);
/// Number of violations that ends the run: more add no information.
const VIOLATIONS_MAX: u64 = 100_000;

#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    Time(Duration),
    /// Number of requests of each client.
    Operations(u64),
    /// No workload: only the check.
    Check,
}

/// The purpose of one request. All except planned actions are repeated until answered.
#[derive(Clone, Copy, Debug)]
enum Work {
    Fill(u64),
    Planned(ClientId, u64),
    Flush,
    Check(u64),
}

struct Flight {
    session: usize,
    work: Work,
    action: Action,
    span: Option<Span>,
}

struct Session {
    client: Client,
    in_flight: usize,
    next: u64,
    /// The endpoint's count of lost connections, as last seen.
    losses: u64,
    way: Way,
    rests_until: Duration,
    /// Attempts to attach since the last answered request.
    rounds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// The storage gave up requests: it is attached again when none is in flight.
    Lost,
    Opening,
}

pub(super) struct Engine<'a> {
    context: &'a Context,
    io: &'a mut Io,
    sessions: Vec<Session>,
    router: Router<usize>,
    header: Header,
    plan: Plan,
    stamper: Stamper,
    history: History,
    journal: Option<Journal>,
    cuts: bool,
    flights: HashMap<RequestId, Flight>,
    next_id: RequestId,
    todo: VecDeque<Work>,
    bytes: u64,
    tally: Tally,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        context: &'a Context,
        io: &'a mut Io,
        clients: Vec<Client>,
        header: Header,
        history: Option<History>,
        journal: Option<Journal>,
        cuts: bool,
    ) -> Self {
        let session = |client: Client| Session {
            client,
            in_flight: 0,
            next: 0,
            losses: 0,
            way: Way::Open,
            rests_until: Duration::ZERO,
            rounds: 0,
        };
        // The initiator of this program reports lost caches.
        let losses_reported = clients.iter().all(Client::is_remote);
        let sessions: Vec<Session> = clients.into_iter().map(session).collect();
        let mut router = Router::new();
        for (index, session) in sessions.iter().enumerate() {
            router.add_endpoint(&*session.client.endpoint, index);
        }
        Self {
            context,
            io,
            sessions,
            router,
            plan: header.plan(),
            stamper: Stamper::new(header.run),
            history: history.unwrap_or_else(|| header.history(losses_reported)),
            header,
            journal,
            cuts,
            flights: HashMap::new(),
            next_id: 0,
            todo: VecDeque::new(),
            bytes: 0,
            tally: Tally::default(),
        }
    }

    pub(super) fn into_parts(self) -> (Tally, Vec<Client>) {
        (self.tally, self.sessions.into_iter().map(|session| session.client).collect())
    }

    /// Runs all phases: fill, torture, flush, check. The tally counts violations.
    pub(super) fn run(&mut self, until: Until) -> Result<(), Failure> {
        let begun = self.io.now();
        let chunks = self.header.chunks();
        let result = (|| {
            match until {
                Until::Check => {
                    if self.cuts {
                        self.history.cut(Cut::Possible);
                    }
                }
                until => {
                    self.phase("fill", (0..chunks).map(Work::Fill).collect(), None)?;
                    self.phase("flush", [Work::Flush].into(), None)?;
                    self.phase("torture", VecDeque::new(), Some(until))?;
                    self.phase("flush", [Work::Flush].into(), None)?;
                }
            }
            self.tally.sectors = self.header.ability.sectors;
            self.phase("check", (0..chunks).map(Work::Check).collect(), None)
        })();
        self.tally.seconds = (self.io.now() - begun).as_secs_f64();
        for session in &self.sessions {
            self.tally.retries += session.client.endpoint.inspect().retries();
        }
        result
    }

    /// Runs one phase, until `todo` is empty or the workload until `planned` is over, and no request is in flight.
    fn phase(
        &mut self,
        name: &'static str,
        todo: VecDeque<Work>,
        planned: Option<Until>,
    ) -> Result<(), Failure> {
        let begun = self.io.now();
        let total = todo.len() as u64;
        self.todo = todo;
        self.bytes = 0;
        let mut progress = Progress::new(self.context);
        let (mut events, mut done) = (Vec::new(), Vec::new());
        let result = loop {
            let now = self.io.now();
            let over = match planned {
                None => self.todo.is_empty(),
                Some(Until::Time(time)) => now - begun >= time,
                Some(Until::Operations(count)) => self.sessions.iter().all(|session| session.next >= count),
                Some(Until::Check) => true,
            };
            if self.flights.is_empty() && over {
                break Ok(());
            }
            if self.context.stop.is_requested() {
                break Err(self.context.stop.failure("finish the torture of", ""));
            }
            if self.tally.violations > VIOLATIONS_MAX {
                break Err(Failure::new(Exit::Mismatch, "torture", "", "too many violations to go on"));
            }
            let limit = match planned {
                Some(Until::Operations(count)) => count,
                _ => u64::MAX,
            };
            let result = self.submit(planned.is_some() && !over, limit, &mut done);
            if let Err(failure) = result.and_then(|()| self.complete(&mut done)) {
                break Err(failure);
            }
            let share = match planned {
                Some(Until::Time(time)) => (now - begun).as_secs_f64() / time.as_secs_f64().max(1e-3),
                Some(Until::Operations(count)) => {
                    self.sessions.iter().map(|s| s.next).min().unwrap_or(0) as f64 / count.max(1) as f64
                }
                _ => 1.0 - (self.todo.len() + self.flights.len()) as f64 / total.max(1) as f64,
            };
            progress.update(&Sample {
                phase: name,
                bytes: self.bytes,
                data_bytes: self.bytes,
                total: (self.bytes as f64 / share.clamp(1e-3, 1.0)) as u64,
                retries: self.tally.losses,
                ..Sample::default()
            });
            let failed = |error| Failure::failed("wait for", "", error);
            if let Err(error) = self.io.turn_until(Some(now + TICK), &mut events) {
                break Err(failed(error));
            }
            for event in events.drain(..) {
                if let Some(index) = self.router.route(event.token.owner) {
                    self.sessions[index].client.endpoint.on_event(self.io, event, &mut done);
                    self.look_for_losses(index);
                    if let Err(failure) = self.complete(&mut done) {
                        progress.finish();
                        return Err(failure);
                    }
                }
            }
            if let Err(failure) = self.return_to_storage() {
                break Err(failure);
            }
        };
        progress.finish();
        result
    }

    fn next_work(&mut self, index: usize, planned: bool, limit: u64) -> Option<Work> {
        if !planned {
            return self.todo.pop_front();
        }
        let number = self.sessions[index].next;
        (number < limit).then(|| {
            self.sessions[index].next += 1;
            Work::Planned(index as ClientId, number)
        })
    }

    /// Fills the slots of all clients. The journal records a request before it is submitted.
    fn submit(&mut self, planned: bool, limit: u64, done: &mut Vec<Completion>) -> Result<(), Failure> {
        let mut requests = Vec::new();
        for index in 0..self.sessions.len() {
            while self.sessions[index].in_flight < DEPTH && self.sessions[index].way == Way::Open {
                let Some(work) = self.next_work(index, planned, limit) else { break };
                let action = match work {
                    Work::Fill(chunk) => record::action(&self.header, FILLER, chunk),
                    Work::Planned(client, number) => self.plan.action(client, number),
                    Work::Flush => Action::Flush,
                    Work::Check(chunk) => Action::Read(self.header.chunk(chunk)),
                };
                let range = action.range();
                let (offset, length) =
                    (range.start * SECTOR_BYTES as u64, (range.end - range.start) as usize);
                let bytes = length * SECTOR_BYTES;
                let span = match &action {
                    Action::Write { .. } | Action::Read(_) => {
                        Some(self.io.pool().take(bytes).ok_or_else(|| {
                            Failure::failed(
                                "torture",
                                "",
                                "no memory for a request; fewer --clients need less",
                            )
                        })?)
                    }
                    _ => None,
                };
                let kind = match (&action, &span) {
                    (Action::Write { stamp, durable, .. }, Some(span)) => {
                        let mut content = vec![0; bytes];
                        self.stamper.fill(range.start, *stamp, &mut content);
                        span.fill(0, &content);
                        Kind::Write { offset, from: span.clone(), durable: *durable }
                    }
                    (Action::Read(_), Some(span)) => Kind::Read { offset, into: span.clone() },
                    (Action::Discard(_), _) => Kind::Discard { offset, length: bytes as u64 },
                    (Action::WriteZeroes(_), _) => {
                        Kind::WriteZeroes { offset, length: bytes as u64, may_unmap: true }
                    }
                    _ => Kind::Flush,
                };
                self.next_id += 1;
                let id = self.next_id;
                record::begin(&mut self.history, &self.header, id, index as ClientId, &action);
                self.note(work, &action, Record::Begin);
                self.sessions[index].in_flight += 1;
                self.flights.insert(id, Flight { session: index, work, action, span });
                requests.push((index, Request { id, kind }));
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.write()?;
        }
        for (index, request) in requests {
            self.sessions[index].client.endpoint.submit(self.io, request, done);
        }
        Ok(())
    }

    /// Records in the journal a fill or an action that changes the storage.
    fn note(&mut self, work: Work, action: &Action, what: fn(ClientId, u64) -> Record) {
        let Some(journal) = &mut self.journal else { return };
        let (client, number) = match work {
            Work::Fill(chunk) => (FILLER, chunk),
            Work::Planned(client, number) if !matches!(action, Action::Read(_)) => (client, number),
            _ => return,
        };
        match what(client, number) {
            Record::Begin(client, number) => journal.begin(client, number),
            record => journal.note(record),
        }
    }

    fn complete(&mut self, done: &mut Vec<Completion>) -> Result<(), Failure> {
        for Completion { id, result } in done.drain(..) {
            let Some(flight) = self.flights.remove(&id) else { continue };
            self.sessions[flight.session].in_flight -= 1;
            match result {
                Ok(()) => self.on_answer(id, &flight),
                Err(error) => self.on_silence(id, &flight, &error)?,
            }
        }
        Ok(())
    }

    fn on_answer(&mut self, id: RequestId, flight: &Flight) {
        let range = flight.action.range();
        let sectors = range.end - range.start;
        self.sessions[flight.session].rounds = 0;
        self.bytes += sectors * SECTOR_BYTES as u64;
        match (&flight.action, &flight.span) {
            (Action::Read(_), Some(span)) => {
                let bytes = span.as_slice().chunks(SECTOR_BYTES);
                let found: Vec<Content> =
                    (range.start..).zip(bytes).map(|(lba, sector)| self.stamper.read(lba, sector)).collect();
                let violations = self.history.complete_read(id, &found);
                self.tally.reads += 1;
                self.tally.judged += sectors;
                self.tally.violations += violations.len() as u64;
                let room = VIOLATIONS_SHOWN_MAX - self.tally.first.len();
                self.tally.first.extend(violations.into_iter().take(room).map(|violation| {
                    let at = (violation.lba - range.start) as usize * SECTOR_BYTES;
                    let bytes = span.as_slice()[at..at + SECTOR_BYTES].to_vec();
                    (violation, bytes)
                }));
                return;
            }
            (Action::Write { durable, .. }, _) => {
                self.tally.writes += 1;
                self.tally.durable += u64::from(*durable);
            }
            (Action::Flush, _) => self.tally.flushes += 1,
            _ => self.tally.discards += 1,
        }
        self.history.complete(id, Outcome::Done);
        self.note(flight.work, &flight.action, Record::Done);
    }

    /// Handles a request that failed: without an answer it stays unknown; a refusal by the storage ends the run.
    fn on_silence(&mut self, id: RequestId, flight: &Flight, error: &IoError) -> Result<(), Failure> {
        let lost = error.kind == IoErrorKind::CacheLost;
        self.history.complete(id, if lost { Outcome::CacheLost } else { Outcome::Unknown });
        self.note(flight.work, &flight.action, Record::Unknown);
        if lost {
            // The initiator reports that unflushed writes may be lost. Without this report all acknowledged writes must
            // be there.
            self.tally.warnings += 1;
            if !matches!(flight.work, Work::Planned(..)) {
                self.todo.push_front(flight.work);
            }
            return Ok(());
        }
        if !matches!(error.kind, IoErrorKind::Unreachable | IoErrorKind::Aborted) {
            let attempted = match &flight.action {
                Action::Read(_) => "read",
                Action::Write { .. } => "write to",
                Action::Flush => "flush",
                Action::Discard(_) | Action::WriteZeroes(_) => "discard of",
            };
            return Err(Failure::io(attempted, "", error));
        }
        self.tally.unanswered += 1;
        if !matches!(flight.work, Work::Planned(..)) {
            self.todo.push_front(flight.work);
        }
        if std::mem::replace(&mut self.sessions[flight.session].way, Way::Lost) == Way::Open {
            self.on_loss();
        }
        Ok(())
    }

    fn on_loss(&mut self) {
        self.tally.losses += 1;
        if self.cuts {
            self.history.cut(Cut::Possible);
            if let Some(journal) = &mut self.journal {
                journal.note(Record::Cut);
            }
        }
    }

    fn look_for_losses(&mut self, index: usize) {
        let losses = self.sessions[index].client.endpoint.inspect().losses();
        for _ in std::mem::replace(&mut self.sessions[index].losses, losses)..losses {
            self.on_loss();
        }
    }

    /// Attaches lost clients again and marks those whose endpoints are ready.
    fn return_to_storage(&mut self) -> Result<(), Failure> {
        let now = self.io.now();
        for (index, session) in self.sessions.iter_mut().enumerate() {
            let text = &session.client.named.text;
            match (session.way, session.client.endpoint.state()) {
                (Way::Opening, State::Ready) => {
                    (session.way, session.losses) = (Way::Open, session.client.endpoint.inspect().losses());
                }
                (Way::Opening, State::Failed(_)) => {
                    (session.way, session.rests_until) = (Way::Lost, now + PAUSE);
                }
                (Way::Lost, _) if session.in_flight == 0 && session.rests_until <= now => {
                    session.rounds += 1;
                    if session.rounds > ROUNDS_MAX {
                        let cause = format!("it did not come back in {ROUNDS_MAX} attempts");
                        return Err(Failure::new(Exit::Unreachable, "reach", text.clone(), cause));
                    }
                    self.tally.retries += session.client.endpoint.inspect().retries();
                    let mut owners = Vec::new();
                    session.client.endpoint.owners(&mut owners);
                    owners.into_iter().for_each(|owner| self.router.remove(owner));
                    let attached = session.client.medium.attach(self.io);
                    session.client.endpoint =
                        attached.map_err(|error| Failure::open("use", text.clone(), &error))?;
                    session.way = Way::Opening;
                    self.router.add_endpoint(&*session.client.endpoint, index);
                    self.tally.reattached += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
