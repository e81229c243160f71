//! A peer in memory, an endpoint of it and its loop, under a fake clock: for the tests of the endpoint's life.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::io::{Backend, Event, Io, Item, Listener, Owner, Raw, Token, World};
use area::{PoolLimits, Span};

use super::{
    Addresses, Change, Effect, Link, Links, Next, Nouns, Peer, Remote, Report, Several, Submitted, Verdict,
    WriteCache, ZERO_BYTES,
};
use crate::{
    Capability, Completion, Direction, Endpoint, Identity, IoError, IoErrorKind, Kind, OpenError, PathReport,
    Request, RequestId, State,
};

pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that one command moves at most.
pub(super) const STEP_BYTES: u64 = 4096;

#[derive(Clone, Default)]
pub(super) struct Still(Arc<AtomicU64>);

impl Still {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl World for Still {
    fn backend(&self) -> io::Result<Box<dyn Backend>> {
        Ok(Box::new(self.clone()))
    }

    fn entropy(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }

    fn socket(&self) -> io::Result<OwnedFd> {
        unreachable!("links are in memory")
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Listener> {
        unreachable!("links are in memory")
    }

    fn addresses(&self, _: RawFd) -> io::Result<(SocketAddr, SocketAddr)> {
        unreachable!("links are in memory")
    }

    fn spawn(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> io::Result<u64> {
        unreachable!("there is one thread")
    }

    fn join(&self, _: u64) {}
}

impl Backend for Still {
    fn name(&self) -> &'static str {
        "still"
    }

    fn now(&self) -> Duration {
        Still::now(self)
    }

    fn push(&mut self, _: usize, _: Raw) -> io::Result<()> {
        unreachable!("links are in memory")
    }

    fn wait(&mut self, timeout: Option<Duration>, _: &mut Vec<(usize, i32)>) -> io::Result<()> {
        let timeout = timeout.expect("a test waits for a time");
        self.0.fetch_add(timeout.as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn cancel(&mut self, _: Option<RawFd>) {}
}

/// What the other end does.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Up,
    /// The command with this number has ended.
    Answer(usize, Answer),
    /// The other end has forgotten what was not flushed.
    Forget,
    Cut(&'static str),
    /// Another link would be of no use: see [`Peer::on_failure`].
    Fail(Failure),
    /// The link does not serve, and has not ended.
    Refuse(Next),
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Good,
    Bad,
    Again,
    Later(Duration),
}

#[derive(Clone, Debug)]
pub(super) enum Failure {
    Lost(&'static str),
    Busy,
    Redirect,
    Final(OpenError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Write(u64),
    Read(u64),
    Flush,
    Query,
}

/// The other end, shared by a test and the links.
#[derive(Default)]
pub(super) struct Far {
    /// Each attempt to connect: when, and the address.
    pub(super) attempts: Vec<(Duration, u32)>,
    /// What becomes of the next attempts; they just hang when it is empty.
    pub(super) accepts: VecDeque<Act>,
    /// What it has done and the link has not taken yet.
    pub(super) acts: VecDeque<Act>,
    /// Commands in the order in which they came, with their numbers; of the present link only.
    pub(super) commands: Vec<(usize, Command)>,
    pub(super) window: u32,
    /// Memory has run out: no command can be made.
    pub(super) is_starved: bool,
    /// The kernel works on buffers: the end of a link is delayed until it does not.
    pub(super) holds: bool,
    /// The peer must send a query.
    pub(super) wants_answer: bool,
    pub(super) wants_idle: bool,
    pub(super) idled: u32,
    pub(super) logged_out: u32,
    pub(super) changes: Vec<String>,
    /// The other ends of further links, as they open.
    pub(super) siblings: VecDeque<Rc<RefCell<Far>>>,
    pub(super) path: Option<::io::Path>,
    pub(super) worth: Option<u64>,
    answered: u64,
    /// Of the present link's events.
    owner: Option<Owner>,
}

impl Far {
    pub(super) fn new(accepts: impl IntoIterator<Item = Act>) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { accepts: accepts.into_iter().collect(), ..Self::default() }))
    }

    /// Commands of the present link.
    pub(super) fn commands(&self) -> Vec<Command> {
        self.commands.iter().map(|(_, command)| command.clone()).collect()
    }
}

pub(super) struct Wire {
    far: Rc<RefCell<Far>>,
    is_up: bool,
    ending: Option<&'static str>,
}

impl Link for Wire {
    type Outcome = Act;

    fn on_event(&mut self, _: &mut Io, _: Event, outcomes: &mut Vec<Act>) {
        let acts: Vec<Act> = self.far.borrow_mut().acts.drain(..).collect();
        for act in acts {
            match act {
                Act::Cut(reason) => self.cut_off(reason, outcomes),
                act if self.ending.is_none() => {
                    self.is_up |= matches!(act, Act::Up);
                    outcomes.push(act);
                }
                _ => {}
            }
        }
    }

    fn pump(&mut self, _: &mut Io, outcomes: &mut Vec<Act>) {
        if let Some(reason) = self.ending.take_if(|_| !self.far.borrow().holds) {
            outcomes.push(Act::Cut(reason));
        }
    }

    fn window(&self) -> u32 {
        if self.is_up { self.far.borrow().window } else { 0 }
    }

    fn cut_off(&mut self, reason: &str, _: &mut Vec<Act>) {
        let known = ["no answer in time", "cut", "logged out"].into_iter().find(|known| *known == reason);
        self.is_up = false;
        self.ending = Some(known.unwrap_or("?"));
    }

    fn log_out(&mut self, _: Duration) {
        self.far.borrow_mut().logged_out += 1;
    }

    fn transferred(&self) -> u64 {
        self.far.borrow().answered * STEP_BYTES
    }

    fn wants_idle(&mut self) -> bool {
        self.far.borrow().wants_idle
    }

    fn on_idle(&mut self, _: &mut Io) {
        let mut far = self.far.borrow_mut();
        (far.idled, far.wants_idle) = (far.idled + 1, false);
    }
}

pub(super) struct Script {
    far: Rc<RefCell<Far>>,
    addresses: Addresses<u32>,
    capability: Capability,
    is_open: bool,
    clock: Still,
}

impl Script {
    fn send(&self, command: Command) -> usize {
        let mut far = self.far.borrow_mut();
        let task = far.commands.len();
        far.commands.push((task, command));
        far.window -= 1;
        task
    }
}

impl Peer for Script {
    type Link = Wire;
    type Failure = Failure;
    type Answer = Answer;

    const NOUNS: Nouns = Nouns { other_end: "far end", link: "wire" };

    fn name(&self) -> &dyn Display {
        &"memory"
    }

    fn connect(&mut self, _: &mut Io, owner: Owner, _: u32) -> Result<Wire, Report<Self>> {
        let mut far = self.far.borrow_mut();
        far.owner = Some(owner);
        far.attempts.push((self.clock.now(), *self.addresses.current()));
        (far.commands, far.window) = (Vec::new(), 3);
        far.acts.clear();
        match far.accepts.pop_front() {
            Some(Act::Fail(failure)) => Err(Report::Failed { failure, lost: false }),
            act => {
                far.acts.extend(act);
                Ok(Wire { far: Rc::clone(&self.far), is_up: false, ending: None })
            }
        }
    }

    fn next_address(&mut self) -> bool {
        self.addresses.next_address()
    }

    fn address_count(&self) -> usize {
        self.addresses.all().len()
    }

    fn has_untried_address(&self) -> bool {
        self.addresses.has_untried()
    }

    fn on_outcome(&mut self, _: &mut Io, _: &mut Wire, outcome: Act, reports: &mut Vec<Report<Self>>) {
        reports.push(match outcome {
            Act::Up => {
                self.is_open = true;
                Report::Ready
            }
            Act::Answer(task, answer) => {
                let mut far = self.far.borrow_mut();
                (far.window, far.answered) = (far.window + 1, far.answered + 1);
                Report::Ended { task, answer }
            }
            Act::Forget => Report::CacheLost,
            Act::Cut(reason) => Report::Failed { failure: Failure::Lost(reason), lost: true },
            Act::Fail(failure) => Report::Failed { failure, lost: false },
            Act::Refuse(next) => Report::Refused(next),
        });
    }

    fn on_failure(&mut self, failure: Failure) -> Next {
        match failure {
            Failure::Lost(reason) => Next::retry(reason),
            Failure::Busy => Next::Retry { reason: "busy".into(), opening_max: Duration::from_millis(250) },
            Failure::Redirect => {
                self.addresses = Addresses::new(vec![77]);
                Next::AtOnce
            }
            Failure::Final(error) => Next::GiveUp(error),
        }
    }

    fn on_change(&mut self, change: &Change<'_>) {
        let text = match change {
            Change::Lost { reason, unanswered, pause } => {
                format!("{reason}, {unanswered} unanswered, {} ms", pause.as_millis())
            }
            other => format!("{other:?}"),
        };
        self.far.borrow_mut().changes.push(text);
    }

    fn submit_own(&mut self, _: &mut Io, _: &mut Wire) {
        if std::mem::take(&mut self.far.borrow_mut().wants_answer) {
            self.send(Command::Query);
        }
    }

    fn check(&self, kind: &Kind) -> Result<(), IoError> {
        match kind {
            Kind::Discard { .. } => Err(IoError::new(IoErrorKind::Unsupported, "no discards")),
            _ => Ok(()),
        }
    }

    fn submit(&mut self, _: &mut Io, _: &mut Wire, kind: &Kind, done: u64, zeroes: &Span) -> Submitted {
        assert!(zeroes.as_slice().iter().all(|byte| *byte == 0) && zeroes.len() == ZERO_BYTES);
        if self.far.borrow().is_starved {
            return Submitted::NotNow;
        }
        let Some((offset, length)) = kind.range() else {
            let step = Effect { bytes: 0, is_volatile: false, is_last: true };
            return Submitted::Task(self.send(Command::Flush), step);
        };
        if length == 0 {
            return Submitted::Nothing;
        }
        let bytes = (length - done).min(STEP_BYTES);
        let is_volatile = kind.is_write();
        let command = if is_volatile { Command::Write(offset + done) } else { Command::Read(offset + done) };
        let is_last = done + bytes == length;
        Submitted::Task(self.send(command), Effect { bytes, is_volatile, is_last })
    }

    fn judge(&mut self, _: &Kind, _: u64, answer: Answer) -> Verdict {
        match answer {
            Answer::Good => Verdict::Done,
            Answer::Bad => Verdict::Fail(IoError::new(IoErrorKind::Medium, "bad")),
            Answer::Again => Verdict::Again("not now".into()),
            Answer::Later(pause) => Verdict::Later(pause, "BUSY".into()),
        }
    }

    fn advice(&self) -> (IoErrorKind, &'static str) {
        (IoErrorKind::Unreachable, "look at it")
    }

    fn is_open(&self) -> bool {
        self.is_open
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn in_flight(&self, _: Direction) -> Option<u64> {
        self.far.borrow().worth
    }

    fn sibling(&self) -> Option<Self> {
        let far = self.far.borrow_mut().siblings.pop_front()?;
        Some(script(&far, &self.clock, 1))
    }

    fn is_renewal_worth(&self, bytes: u64) -> bool {
        bytes > STEP_BYTES
    }

    fn path(&self) -> Option<PathReport> {
        let connection = self.far.borrow().path?;
        Some(PathReport { sessions: 1, connection, ..PathReport::default() })
    }

    fn identity(&self) -> Identity {
        Identity::Unique
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// An endpoint, its loop and its other end.
pub(super) struct Pair {
    pub(super) clock: Still,
    pub(super) io: Io,
    pub(super) far: Rc<RefCell<Far>>,
    pub(super) cache: Arc<WriteCache>,
    pub(super) remote: Remote<Script>,
    pub(super) done: Vec<Completion>,
    pub(super) last: RequestId,
}

impl Pair {
    /// With addresses 0 and up to `addresses`, the attempts end as in `accepts`.
    pub(super) fn open(addresses: u32, accepts: impl IntoIterator<Item = Act>) -> Self {
        let (clock, mut io) = still();
        let far = Far::new(accepts);
        let cache = Arc::new(WriteCache::default());
        let remote = endpoint(&mut io, &clock, &far, &cache, addresses);
        let mut pair = Self { clock, io, far, cache, remote, done: Vec::new(), last: 0 };
        pair.deliver();
        pair
    }

    /// Already open.
    pub(super) fn serving() -> Self {
        let pair = Self::open(1, [Act::Up]);
        assert!(matches!(pair.remote.state(), State::Ready));
        pair
    }

    /// The link takes what the other end has done.
    pub(super) fn deliver(&mut self) {
        let mut owners = Vec::new();
        self.remote.owners(&mut owners);
        let token = Token { owner: owners[0], key: 0 };
        self.remote.on_event(&mut self.io, Event { token, result: 0, item: Item::None }, &mut self.done);
    }

    pub(super) fn act(&mut self, acts: impl IntoIterator<Item = Act>) {
        self.far.borrow_mut().acts.extend(acts);
        self.deliver();
    }

    pub(super) fn answer(&mut self, task: usize) {
        self.act([Act::Answer(task, Answer::Good)]);
    }

    pub(super) fn submit(&mut self, kind: Kind) -> RequestId {
        self.last += 1;
        let before = self.done.len();
        self.remote.submit(&mut self.io, Request { id: self.last, kind }, &mut self.done);
        assert!(self.done[before..].iter().all(|completion| completion.result.is_err()));
        self.last
    }

    pub(super) fn write(&mut self, offset: u64, bytes: usize) -> RequestId {
        let from = self.io.pool().take(bytes).unwrap();
        self.submit(Kind::Write { offset, from, durable: false })
    }

    pub(super) fn flush(&mut self) -> RequestId {
        self.submit(Kind::Flush)
    }

    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.clock.now() + time;
        let mut events = Vec::new();
        while self.clock.now() < until {
            self.io.turn_until(Some(until), &mut events).unwrap();
            for event in events.drain(..) {
                self.remote.on_event(&mut self.io, event, &mut self.done);
            }
            self.deliver();
        }
    }

    /// One turn, in which no time passes.
    pub(super) fn turn(&mut self) {
        let mut events = Vec::new();
        let now = self.clock.now();
        self.io.turn_until(Some(now), &mut events).unwrap();
        for event in events {
            self.remote.on_event(&mut self.io, event, &mut self.done);
        }
    }

    /// Commands at the other end, over the present link.
    pub(super) fn commands(&self) -> Vec<Command> {
        self.far.borrow().commands()
    }

    /// What has completed since the last call: which requests, and how.
    pub(super) fn completed(&mut self) -> Vec<(RequestId, Option<IoErrorKind>)> {
        self.done.drain(..).map(|one| (one.id, one.result.err().map(|error| error.kind))).collect()
    }

    /// Messages of the requests that failed.
    pub(super) fn failures(&mut self) -> Vec<String> {
        self.done.drain(..).filter_map(|one| Some(one.result.err()?.to_string())).collect()
    }

    /// Since the endpoint was made.
    pub(super) fn attempts_ms(&self) -> Vec<u128> {
        let attempts = &self.far.borrow().attempts;
        attempts.iter().map(|(at, _)| (*at - attempts[0].0).as_millis()).collect()
    }

    pub(super) fn addresses(&self) -> Vec<u32> {
        self.far.borrow().attempts.iter().map(|(_, address)| *address).collect()
    }
}

pub(super) fn endpoint(
    io: &mut Io,
    clock: &Still,
    far: &Rc<RefCell<Far>>,
    cache: &Arc<WriteCache>,
    addresses: u32,
) -> Remote<Script> {
    Remote::open(io, script(far, clock, addresses), Arc::clone(cache), TIMEOUT)
}

fn script(far: &Rc<RefCell<Far>>, clock: &Still, addresses: u32) -> Script {
    Script {
        far: Rc::clone(far),
        addresses: Addresses::new((0..addresses).collect()),
        capability: crate::memory::synthetic_capability(1 << 20),
        is_open: false,
        clock: clock.clone(),
    }
}

/// A fake clock and a loop that follows it.
fn still() -> (Still, Io) {
    let clock = Still::default();
    // A time of day of zero would hide times that are not set.
    clock.0.store(1_000_000_000, Ordering::Relaxed);
    ::io::enter(Some(Arc::new(clock.clone())));
    let io = Io::new(PoolLimits::default()).unwrap();
    ::io::enter(None);
    (clock, io)
}

/// An endpoint of several links, its loop, and the other end of each link, in the order of their first attempt.
pub(super) struct Group {
    clock: Still,
    pub(super) io: Io,
    pub(super) fars: Vec<Rc<RefCell<Far>>>,
    pub(super) cache: Arc<WriteCache>,
    pub(super) several: Several<Script>,
    done: Vec<Completion>,
    last: RequestId,
}

impl Group {
    /// With one other end for each element; the attempts there end as it says.
    pub(super) fn open(links: Links, accepts: Vec<Vec<Act>>) -> Self {
        let (clock, mut io) = still();
        let fars: Vec<_> = accepts.into_iter().map(Far::new).collect();
        fars[0].borrow_mut().siblings = fars[1..].iter().cloned().collect();
        let cache = Arc::new(WriteCache::default());
        let first = script(&fars[0], &clock, 1);
        let several = Several::open(&mut io, first, Arc::clone(&cache), TIMEOUT, links);
        let mut group = Self { clock, io, fars, cache, several, done: Vec::new(), last: 0 };
        (0..group.fars.len()).for_each(|far| group.deliver(far));
        group
    }

    /// So many links that serve.
    pub(super) fn serving(count: usize) -> Self {
        let group = Self::open(Links::Fixed(count), vec![vec![Act::Up]; count]);
        assert!(matches!(group.several.state(), State::Ready));
        group
    }

    /// A link takes what its other end has done.
    pub(super) fn deliver(&mut self, far: usize) {
        let owner = self.fars[far].borrow().owner;
        let Some(owner) = owner else { return };
        let event = Event { token: Token { owner, key: 0 }, result: 0, item: Item::None };
        self.several.on_event(&mut self.io, event, &mut self.done);
    }

    pub(super) fn act(&mut self, far: usize, acts: impl IntoIterator<Item = Act>) {
        self.fars[far].borrow_mut().acts.extend(acts);
        self.deliver(far);
    }

    pub(super) fn answer(&mut self, far: usize, task: usize) {
        self.act(far, [Act::Answer(task, Answer::Good)]);
    }

    pub(super) fn submit(&mut self, kind: Kind) -> RequestId {
        self.last += 1;
        self.several.submit(&mut self.io, Request { id: self.last, kind }, &mut self.done);
        self.last
    }

    /// Writes a command's worth at `offset`.
    pub(super) fn write(&mut self, offset: u64) -> RequestId {
        let from = self.io.pool().take(STEP_BYTES as usize).unwrap();
        self.submit(Kind::Write { offset, from, durable: false })
    }

    pub(super) fn read(&mut self, offset: u64) -> RequestId {
        let into = self.io.pool().take(STEP_BYTES as usize).unwrap();
        self.submit(Kind::Read { offset, into })
    }

    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.clock.now() + time;
        let mut events = Vec::new();
        while self.clock.now() < until {
            self.io.turn_until(Some(until), &mut events).unwrap();
            for event in events.drain(..) {
                self.several.on_event(&mut self.io, event, &mut self.done);
            }
            (0..self.fars.len()).for_each(|far| self.deliver(far));
        }
    }

    /// One turn, in which no time passes.
    pub(super) fn turn(&mut self) {
        let mut events = Vec::new();
        let now = self.clock.now();
        self.io.turn_until(Some(now), &mut events).unwrap();
        for event in events {
            self.several.on_event(&mut self.io, event, &mut self.done);
        }
    }

    pub(super) fn commands(&self, far: usize) -> Vec<Command> {
        self.fars[far].borrow().commands()
    }

    pub(super) fn attempts(&self, far: usize) -> usize {
        self.fars[far].borrow().attempts.len()
    }

    /// What has completed since the last call: which requests, and how.
    pub(super) fn completed(&mut self) -> Vec<(RequestId, Option<IoErrorKind>)> {
        self.done.drain(..).map(|one| (one.id, one.result.err().map(|error| error.kind))).collect()
    }
}
