//! The reconnecting endpoint: its connections and its requests.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use area::Span;
use io::{Event, Io, Owner};

use super::backlog::{Backlog, Backoff};
use super::clock::{Clock, Moment};
use super::{Change, Link, Next, Peer, REPEATS_MAX, Report, Submitted, Verdict, WriteCache, ZERO_BYTES};
use crate::{
    Capability, Completion, Direction, Endpoint, Extent, Fingerprint, Identity, Inspect, IoError,
    IoErrorKind, Kind, OpenError, Request, State,
};

/// The answer to a logout is awaited for this time where no request is outstanding: all was answered and nothing depends on
/// it, and on a long path it would cost every command a round trip.
pub(super) const LOGOUT_WAIT: Duration = Duration::from_millis(5);

/// A link whose commands are all to be sent again later, for this time, is turned away.
const TURNED_AWAY: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Opening,
    Serving,
    /// No link; the next attempt is at this time.
    Waiting(Duration),
    /// Logged out; without requests, the answer is awaited until this time.
    Closing(Duration),
    /// Logged out, and no command is in flight. The next link follows the answer, or begins at this time.
    Renewing(Duration),
    /// No link, and no further attempt.
    Closed,
}

/// An endpoint that reaches its storage by `P`, over successive links.
///
/// ```text
///             connect                Ready                 close
///  (open) ──────────────► Opening ───────────► Serving ───────────────► Closing ───► Closed
///                            ▲ │                  │                                    ▲
///              after a pause │ │ Failed           │ Failed                             │
///                            │ ▼                  ▼                                    │
///                          Waiting ◄──────────────┘            GiveUp, or close without a link that serves
/// ```
/// `renew` leads from Serving through Renewing, while the logout is answered, to Opening.
///
/// - **Order.** Requests are submitted in the order of [`Endpoint::submit`], within the link's window. After a lost link,
///   unanswered requests are submitted to the next one in that order, before later ones.
/// - **Turns.** [`Endpoint::submit`] only queues: commands are submitted together in the next turn. Only refusals complete
///   within it; all other requests complete within [`Endpoint::on_event`].
/// - **Buffers.** A request ends when its last command was answered, or when its link has ended ([`Report::Failed`]): then
///   neither the kernel nor the link uses its buffer. If no request progresses for `timeout`, the link is cut, and the
///   requests fail when it has ended.
/// - **Attempts.** Until the unit was open once, each address is tried once. Afterwards attempts continue until the
///   endpoint is closed, with pauses that grow from 0.1 s to 2 s; `timeout` ends the requests, not the attempts. While
///   another address is to be tried, an attempt that is not ready after its part of `timeout` ends
///   (`attempt_max`).
/// - **Cache.** If acknowledged writes that are not durable may be lost with a link, the next flush fails, once
///   ([`WriteCache`]). An endpoint dropped with such writes counts them as lost, since it cannot detect a loss later.
pub struct Remote<P: Peer> {
    peer: P,
    owner: Owner,
    clock: Clock,
    /// Limit of the time without progress, and of opening the unit.
    timeout: Duration,
    born: Duration,
    link_state: LinkState,
    failed: Option<OpenError>,
    /// The first permanent failure of an address of a unit that is not open yet.
    refusal: Option<OpenError>,
    /// When the present link began.
    attempt_at: Duration,
    /// `Some` in `Opening`, `Serving`, `Closing` and `Renewing`.
    link: Option<P::Link>,
    incarnation: u32,
    backlog: Backlog,
    backoff: Backoff,
    /// After a timeout: the error with which the requests fail once the link does not use their buffers.
    expired: Option<IoError>,
    /// Why there was no link last; empty once there is one.
    last_failure: String,
    /// What the other end answered last to a command that is to be sent again later, until another one is done.
    last_answer: Option<Cow<'static, str>>,
    losses: u64,
    cache: Arc<WriteCache>,
    /// Number of the last volatile write of this endpoint.
    written: u64,
    /// [`ZERO_BYTES`] zeroes, allocated at first use.
    zeroes: Option<Span>,
    /// A write has failed without an answer, and no link has become ready since: the other end may still carry it out.
    is_stale: bool,
    /// Empty between calls; kept to reuse its memory.
    reports: Vec<Report<P>>,
}

impl<P: Peer> Remote<P> {
    /// Starts to connect. `cache` is shared by all endpoints of the same unit.
    pub fn open(io: &mut Io, peer: P, cache: Arc<WriteCache>, timeout: Duration) -> Self {
        let owners = [io.owner(), io.owner()];
        Self::open_as(io, owners, peer, cache, timeout)
    }

    /// [`Remote::open`] with the owners of its events.
    pub(super) fn open_as(
        io: &mut Io,
        [owner, clock]: [Owner; 2],
        peer: P,
        cache: Arc<WriteCache>,
        timeout: Duration,
    ) -> Self {
        let mut remote = Self {
            peer,
            owner,
            clock: Clock::new(clock),
            timeout,
            born: io.now(),
            link_state: LinkState::Opening,
            failed: None,
            refusal: None,
            attempt_at: io.now(),
            link: None,
            incarnation: 0,
            backlog: Backlog::new(io.now()),
            backoff: Backoff::default(),
            expired: None,
            last_failure: String::new(),
            last_answer: None,
            losses: 0,
            cache,
            written: 0,
            zeroes: None,
            is_stale: false,
            reports: Vec::new(),
        };
        remote.begin(io);
        remote
    }

    /// Starts to connect again, by another peer of the same unit. The endpoint is closed, and [`Remote::is_stale`] is
    /// false.
    pub(super) fn reopen(&mut self, io: &mut Io, peer: P) {
        assert!(self.is_closed() && !self.is_stale, "requests of the former peer may not have ended");
        self.peer = peer;
        (self.failed, self.refusal, self.expired, self.last_answer) = (None, None, None, None);
        (self.backoff, self.born) = (Backoff::default(), io.now());
        self.last_failure.clear();
        self.begin(io);
    }

    fn begin(&mut self, io: &mut Io) {
        let mut done = Vec::new();
        self.connect(io, &mut done);
        assert!(done.is_empty(), "nothing was submitted yet");
    }

    pub(super) fn peer(&self) -> &P {
        &self.peer
    }

    /// Whether requests are submitted to a link.
    pub(super) fn is_serving(&self) -> bool {
        self.link_state == LinkState::Serving && self.peer.is_open() && self.expired.is_none()
    }

    /// Whether the other end may still carry out a write that has failed here. A later write to the same place must go
    /// through this endpoint, behind the link that ends it.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Whether it was closed, or its last link has ended for good.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.link_state, LinkState::Closing(_) | LinkState::Closed)
    }

    /// What the other end answers for some time instead of carrying out any command.
    pub(super) fn turned_away(&self, now: Duration) -> Option<&str> {
        let is_long = !self.backlog.is_empty() && self.backlog.waited(now) >= TURNED_AWAY;
        self.last_answer.as_deref().filter(|_| is_long && self.is_serving())
    }

    pub(super) fn own(&self) -> [Owner; 2] {
        [self.owner, self.clock.owner()]
    }

    pub(super) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Bytes received and sent by the present link.
    pub(super) fn transferred(&self) -> u64 {
        self.link.as_ref().map_or(0, Link::transferred)
    }

    /// [`Backlog::take_unsent`].
    pub(super) fn take_unsent(&mut self) -> Vec<Request> {
        self.backlog.take_unsent()
    }

    /// After a change that lets [`Peer::submit_own`] submit commands, call [`Remote::feed_soon`].
    pub fn peer_mut(&mut self) -> &mut P {
        &mut self.peer
    }

    /// Submits commands in the next turn, together with those of requests.
    pub fn feed_soon(&mut self, io: &mut Io) {
        self.clock.feed(io);
    }

    fn connect(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        self.incarnation = self.incarnation.wrapping_add(1);
        self.link_state = LinkState::Opening;
        self.attempt_at = io.now();
        self.clock.tick(io);
        match self.peer.connect(io, self.owner, self.incarnation) {
            Ok(link) => self.link = Some(link),
            Err(report) => self.on_report(io, report, done),
        }
    }

    fn on_outcomes(
        &mut self,
        io: &mut Io,
        outcomes: Vec<<P::Link as Link>::Outcome>,
        done: &mut Vec<Completion>,
    ) {
        let (mut reports, incarnation) = (std::mem::take(&mut self.reports), self.incarnation);
        for outcome in outcomes {
            // Outcomes of a link that has ended belong to no other link.
            let Some(link) = self.link.as_mut().filter(|_| self.incarnation == incarnation) else { break };
            self.peer.on_outcome(io, link, outcome, &mut reports);
            for report in reports.drain(..) {
                self.on_report(io, report, done);
            }
        }
        self.reports = reports;
    }

    fn on_report(&mut self, io: &mut Io, report: Report<P>, done: &mut Vec<Completion>) {
        match report {
            Report::Ready => {
                self.link_state = LinkState::Serving;
                self.is_stale = false;
                self.last_failure.clear();
                if self.backlog.connected(io.now()) {
                    self.backoff = Backoff::default();
                }
            }
            Report::Ended { task, answer } => self.on_ended(io, task, answer, done),
            Report::CacheLost => self.cache_lost(&Change::CacheLost),
            Report::Failed { failure, lost } => self.on_failed(io, failure, lost, done),
            Report::Refused(next) => {
                self.link = None;
                self.go_on(io, next, done);
            }
        }
    }

    fn on_failed(&mut self, io: &mut Io, failure: P::Failure, lost: bool, done: &mut Vec<Completion>) {
        self.link = None;
        self.losses += u64::from(lost && !matches!(self.link_state, LinkState::Renewing(_)));
        if let Some(error) = self.expired.take() {
            return self.expire(io, &error, done);
        }
        match self.link_state {
            LinkState::Closing(_) | LinkState::Closed => {
                self.link_state = LinkState::Closed;
                return;
            }
            LinkState::Renewing(_) => return self.connect(io, done),
            LinkState::Opening | LinkState::Serving | LinkState::Waiting(_) => {}
        }
        let next = self.peer.on_failure(failure);
        self.go_on(io, next, done);
    }

    /// Carries out the peer's decision; there is no link.
    fn go_on(&mut self, io: &mut Io, next: Next, done: &mut Vec<Completion>) {
        let (reason, opening_max) = match next {
            Next::AtOnce => return self.connect(io, done),
            Next::GiveUp(error) if !self.may_differ_elsewhere(&error) => {
                return self.give_up(io, error, done);
            }
            Next::GiveUp(error) => {
                let reason = error.to_string();
                if !self.peer.is_open() {
                    self.refusal.get_or_insert(error);
                }
                (reason, Duration::ZERO)
            }
            Next::Retry { reason, opening_max } => (reason, opening_max),
        };
        self.last_failure = reason;
        let is_untried = self.peer.next_address();
        if self.peer.is_open() {
            self.lose(io);
        } else if is_untried {
            self.connect(io, done);
        } else if io.now() < self.born + opening_max {
            // Attempts to open are few and end soon, so their pauses need not grow.
            self.backoff = Backoff::default();
            self.lose(io);
        } else {
            let text = format!("{}: {}", self.peer.name(), self.last_failure);
            self.give_up(io, OpenError::Unreachable(text), done);
        }
    }

    /// Whether another address, if there is one, may do better. The answers of all addresses to a login with wrong
    /// secrets or keys are the same, and a secret is not to be offered to more hosts than necessary.
    fn may_differ_elsewhere(&self, error: &OpenError) -> bool {
        let is_of_address =
            matches!(error, OpenError::Missing(_) | OpenError::Unreachable(_) | OpenError::Failed(_));
        is_of_address && self.peer.address_count() > 1
    }

    /// Limit of the time from the start of a link until the unit is ready on it; `None` where no other address is left
    /// to try. All addresses can be tried within `timeout`.
    fn attempt_max(&self) -> Option<Duration> {
        let count = self.peer.address_count();
        let is_followed = self.peer.has_untried_address() || (self.peer.is_open() && count > 1);
        is_followed.then(|| self.timeout / (count as u32 + 1))
    }

    /// Cuts a link on which the unit does not become ready, so that the next address is tried.
    fn on_attempt_late(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        let is_ready = self.link_state == LinkState::Serving && self.peer.is_open();
        let Some(limit) = self.attempt_max().filter(|_| !is_ready && self.expired.is_none()) else { return };
        if let Some(link) = &mut self.link
            && matches!(self.link_state, LinkState::Opening | LinkState::Serving)
            && io.now() >= self.attempt_at + limit
        {
            let mut outcomes = Vec::new();
            let reason = format!("the {} was not ready in {:.1} s", P::NOUNS.link, limit.as_secs_f64());
            link.cut_off(&reason, &mut outcomes);
            self.on_outcomes(io, outcomes, done);
        }
    }

    /// Closes the endpoint: opening fails, or if the unit was open before, its requests fail.
    fn give_up(&mut self, io: &mut Io, error: OpenError, done: &mut Vec<Completion>) {
        self.link = None;
        self.link_state = LinkState::Closed;
        if !self.peer.is_open() {
            // What an address answered explains more than the silence of the others.
            let refusal = self.refusal.take().filter(|_| matches!(error, OpenError::Unreachable(_)));
            self.failed = Some(refusal.unwrap_or(error));
            return;
        }
        let kind = match &error {
            OpenError::Authentication(_)
            | OpenError::Chap(_)
            | OpenError::Unprotected(_)
            | OpenError::Certificate(_)
            | OpenError::Refused(_) => IoErrorKind::Refused,
            OpenError::Exchanged(_) => IoErrorKind::Gone,
            _ => IoErrorKind::Unreachable,
        };
        self.fail(&IoError::new(kind, error.to_string()), io.now(), done);
    }

    /// Fails every request; there is no link.
    fn fail(&mut self, error: &IoError, now: Duration, done: &mut Vec<Completion>) {
        self.is_stale |= self.backlog.has_sent_writes();
        self.backlog.fail(error, now, done);
    }

    /// After the loss of the link: unanswered requests are queued again, and an attempt is scheduled.
    fn lose(&mut self, io: &mut Io) {
        self.backlog.lost();
        let pause = self.backoff.pause();
        self.link_state = LinkState::Waiting(io.now() + pause);
        let unanswered = self.backlog.len();
        self.peer.on_change(&Change::Lost { reason: &self.last_failure, unanswered, pause });
        self.clock.tick(io);
    }

    fn cache_lost(&mut self, change: &Change<'_>) {
        if self.cache.lost() {
            self.peer.on_change(change);
        }
    }

    fn on_ended(&mut self, io: &mut Io, task: usize, answer: P::Answer, done: &mut Vec<Completion>) {
        let Some(key) = self.backlog.ended(task) else { return };
        let work = self.backlog.get_mut(key);
        let step = work.step;
        match self.peer.judge(&work.kind, step.bytes, answer) {
            Verdict::Done => {
                self.last_answer = None;
                work.done += step.bytes;
                work.repeats = 0;
                if step.is_volatile {
                    self.written = self.cache.wrote();
                }
                if step.is_last {
                    return self.complete(io, key, done);
                }
                self.backlog.progressed(io.now());
                self.backlog.again(key);
            }
            Verdict::Again(reason) => {
                work.repeats += 1;
                if work.repeats <= REPEATS_MAX {
                    return self.backlog.again(key);
                }
                let text = format!("the {} refuses it again and again: {reason}", P::NOUNS.other_end);
                self.backlog.finish(key, Err(IoError::new(IoErrorKind::Other, text)), io.now(), done);
            }
            Verdict::Later(pause, answer) => {
                self.last_answer = Some(answer);
                self.backlog.again_at(key, io.now() + pause);
                self.clock.tick(io);
            }
            Verdict::Fail(error) => self.backlog.finish(key, Err(error), io.now(), done),
        }
    }

    fn complete(&mut self, io: &Io, key: usize, done: &mut Vec<Completion>) {
        let work = self.backlog.get(key);
        let result = match work.kind {
            Kind::Flush => self.cache.flushed(work.mark),
            _ => Ok(()),
        };
        self.backlog.finish(key, result, io.now(), done);
    }

    /// Submits as much of the queue as the link takes, then the peer's own commands.
    fn feed(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        if self.link_state != LinkState::Serving {
            return;
        }
        let Some(zeroes) = self.zeroes(io) else { return };
        while let Some(link) = self.link.as_mut().filter(|link| link.window() > 0) {
            let Some(key) = self.backlog.pop() else { break };
            let work = self.backlog.get(key);
            match self.peer.submit(io, link, &work.kind, work.done, &zeroes) {
                Submitted::Task(task, step) => self.backlog.started(task, key, step),
                Submitted::Nothing => self.complete(io, key, done),
                Submitted::NotNow => {
                    self.backlog.again(key);
                    break;
                }
            }
        }
        if let Some(link) = &mut self.link {
            self.peer.submit_own(io, link);
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

    /// Lets the link receive and send, and handles its outcomes, until there are none.
    fn pump(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        loop {
            self.feed(io, done);
            let mut outcomes = Vec::new();
            if let Some(link) = &mut self.link {
                link.pump(io, &mut outcomes);
            }
            if outcomes.is_empty() {
                return self.look_ahead(io);
            }
            self.on_outcomes(io, outcomes, done);
        }
    }

    fn look_ahead(&mut self, io: &mut Io) {
        if self.link.as_mut().is_some_and(Link::wants_idle) {
            self.clock.idle(io);
        }
    }

    fn on_tick(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        let now = io.now();
        self.backlog.on_time(now);
        let is_late = self.backlog.waited(now) >= self.timeout;
        let goes_on = self.peer.on_tick(io, self.link.as_mut());
        if !self.peer.is_open() {
            if self.link.is_some() && is_late {
                let (name, seconds) = (self.peer.name(), self.timeout.as_secs());
                let text = match self.peer.not_ready() {
                    Some(answer) => format!(
                        "{name}: not ready in {seconds} s: the {} answers {answer}",
                        P::NOUNS.other_end
                    ),
                    None => format!("{name}: no answer in {seconds} s"),
                };
                return self.give_up(io, OpenError::Unreachable(text), done);
            }
        } else if is_late && self.expired.is_none() && !self.backlog.is_empty() {
            self.on_late(io, done);
        }
        self.on_attempt_late(io, done);
        match self.link_state {
            LinkState::Waiting(at) if at <= now => self.connect(io, done),
            // No link holds a request's buffer.
            LinkState::Closing(until) if until <= now && self.backlog.is_empty() => {
                (self.link, self.link_state) = (None, LinkState::Closed);
            }
            LinkState::Renewing(until) if until <= now => {
                self.link = None;
                self.connect(io, done);
            }
            _ => {}
        }
        let is_idle = match self.link_state {
            // A unit that is not open yet may wait for commands of the peer itself.
            LinkState::Serving => !goes_on && self.backlog.is_empty() && self.peer.is_open(),
            LinkState::Closed => self.backlog.is_empty(),
            _ => false,
        };
        if !is_idle {
            self.clock.tick(io);
        }
    }

    /// Times out the requests: they fail when the link has ended, without a link immediately.
    fn on_late(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        let reason = match (self.last_failure.as_str(), &self.last_answer) {
            ("", None) => format!("the {} does not answer", P::NOUNS.other_end),
            ("", Some(answer)) => format!("the {} keeps answering {answer}", P::NOUNS.other_end),
            (known, _) => known.to_owned(),
        };
        let (kind, advice) = self.peer.advice();
        let (name, seconds) = (self.peer.name(), self.timeout.as_secs());
        let text = format!("{name}: nothing completed for {seconds} s ({reason}); {advice}");
        let error = IoError::new(kind, text);
        let Some(link) = &mut self.link else { return self.expire(io, &error, done) };
        let mut outcomes = Vec::new();
        link.cut_off("no answer in time", &mut outcomes);
        self.expired = Some(error);
        self.on_outcomes(io, outcomes, done);
    }

    /// Fails the timed-out requests; there is no link.
    fn expire(&mut self, io: &mut Io, error: &IoError, done: &mut Vec<Completion>) {
        self.fail(error, io.now(), done);
        self.peer.on_change(&Change::Expired);
        self.link_state = match self.link_state {
            LinkState::Closing(_) | LinkState::Closed => LinkState::Closed,
            // The scheduled attempt stays, however short the timeout is.
            LinkState::Waiting(at) => LinkState::Waiting(at),
            LinkState::Opening | LinkState::Serving | LinkState::Renewing(_) => {
                LinkState::Waiting(io.now() + Backoff::MAX)
            }
        };
        self.clock.tick(io);
    }
}

impl<P: Peer> Endpoint for Remote<P> {
    fn state(&self) -> State {
        match &self.failed {
            Some(error) => State::Failed(error.clone()),
            None if self.peer.is_open() => State::Ready,
            None => State::Opening,
        }
    }

    fn capability(&self) -> &Capability {
        self.peer.capability()
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let refused = if self.link_state == LinkState::Closed {
            Err(IoError::new(IoErrorKind::Unreachable, format!("{} is closed", self.peer.name())))
        } else {
            self.peer.check(&request.kind)
        };
        if let Err(error) = refused {
            return done.push(Completion { id: request.id, result: Err(error) });
        }
        self.backlog.push(request, self.cache.mark(), io.now());
        self.clock.tick(io);
        self.clock.feed(io);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        if event.token.owner == self.clock.owner() {
            match self.clock.on_event(&event) {
                Moment::Feed => {}
                Moment::Idle => {
                    if let Some(link) = &mut self.link {
                        link.on_idle(io);
                    }
                    return self.look_ahead(io);
                }
                Moment::Tick => self.on_tick(io, done),
            }
        } else if let Some(link) = &mut self.link {
            let mut outcomes = Vec::new();
            link.on_event(io, event, &mut outcomes);
            self.on_outcomes(io, outcomes, done);
        }
        self.pump(io, done);
        if self.link_state == LinkState::Closed && !self.backlog.is_empty() {
            let error = IoError::new(IoErrorKind::Aborted, format!("the {} was closed", P::NOUNS.link));
            self.fail(&error, io.now(), done);
        }
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.extend(self.own());
    }

    fn in_flight(&self, direction: Direction) -> Option<u64> {
        self.peer.in_flight(direction).filter(|_| self.link_state == LinkState::Serving)
    }

    fn extent(&mut self, offset: u64) -> Extent {
        self.peer.extent(offset)
    }

    fn renew(&mut self, io: &mut Io, bytes: u64) {
        let is_settled = self.backlog.is_empty() && !self.is_stale && !self.cache.holds(self.written);
        let is_worth = is_settled && self.is_serving() && self.peer.is_renewal_worth(bytes);
        let Some(link) = self.link.as_mut().filter(|_| is_worth) else { return };
        link.log_out(io.now());
        let until = io.now() + LOGOUT_WAIT;
        self.link_state = LinkState::Renewing(until);
        self.clock.tick_at(io, until);
        self.clock.feed(io);
    }

    fn close(&mut self, io: &mut Io) {
        match (&mut self.link, self.link_state) {
            (Some(link), LinkState::Serving) => {
                link.log_out(io.now());
                let until = io.now() + LOGOUT_WAIT;
                self.link_state = LinkState::Closing(until);
                self.clock.tick_at(io, until);
            }
            (Some(_), LinkState::Closing(_)) => {}
            // No link holds a request's buffer.
            _ => {
                self.link = None;
                self.link_state = LinkState::Closed;
            }
        }
        self.clock.feed(io);
    }

    fn is_closed(&self) -> bool {
        self.link_state == LinkState::Closed && self.backlog.is_empty()
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl<P: Peer> Inspect for Remote<P> {
    fn identity(&self) -> Identity {
        self.peer.identity()
    }

    fn fingerprint(&self) -> Fingerprint {
        self.identity().fingerprint(self.capability().size_bytes)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        self.peer.facts()
    }

    fn retries(&self) -> u64 {
        self.backlog.retries()
    }

    fn losses(&self) -> u64 {
        self.losses
    }

    fn tap(&self) -> Option<io::Tap> {
        self.peer.tap()
    }

    fn path(&self) -> Option<crate::PathReport> {
        self.peer.path()
    }
}

impl<P: Peer> Drop for Remote<P> {
    fn drop(&mut self) {
        if self.cache.holds(self.written) {
            self.cache_lost(&Change::Dropped);
        }
    }
}
