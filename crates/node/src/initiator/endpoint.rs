//! A remote LUN as an endpoint: requests become commands, lost connections are made again.
//!
//! After a lost connection the unanswered commands are sent again, in their first order, on a session that
//! replaces the old one (same ISID): the target must have ended every task of the old session before it answers
//! that login (RFC 7143 §6.3.5), so a repeated write never races its first copy. What the old session acknowledged and
//! nobody flushed may be gone with the target's power: see `cache.rs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use area::Span;
use block::{
    Backlog, Backoff, Capability, Completion, Endpoint, Identity, IoError, IoErrorKind, Kind, OpenError,
    Request, Run, State,
};
use io::{Event as IoEvent, Io, Owner, Token};
use iscsi::chap::{Algorithm, Algorithms};
use iscsi::initiator::{Command, Direction};
use iscsi::login::initiator::LoginError;
use iscsi::wire::{Attribute, Isid};
use mutant::{Mutant, is_on};
use scsi::Sense;
use scsi::cdb::Cdb;

use super::cache::{self, Fate, WriteCache};
use super::command::{self, Data, Step, Verdict};
use super::facts::{self, Known};
use super::medium::IscsiMedium;
use super::options::{Options, random_isid, resolve, resolve_redirect};
use super::refusal::{BUSY_TIME_MAX, damaged, is_transient, login_error};
use super::session::{Failure, Outcome, Session};
use super::setup::{ANSWER_BYTES, Answer, Disk, Progress, Setup};
use super::trust::{Login, Portal};
use super::url::Url;
use crate::sealing::Protection;
use crate::stream::GENERATION_MASK;

/// Requests a LUN is worth having in flight.
const QUEUE_DEPTH: u32 = 32;
/// Pause before a command is sent again that a busy target did not take.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// How often the clock is looked at while something is outstanding.
const TICK: Duration = Duration::from_millis(100);
/// Times a command is repeated because of what the target answered.
const REPEATS_MAX: u32 = 20;
/// Redirections followed in a row.
const REDIRECTS_MAX: u32 = 4;
/// Zeroes sent at once where the target cannot make them itself.
const ZERO_BYTES: usize = 1 << 20;

/// Keys of the clock's events.
const KEY_TICK: u32 = 0;
const KEY_FEED: u32 = 1;
const KEY_AHEAD: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Connecting, logging in, asking what the disk is.
    Opening,
    Serving,
    /// The connection is lost; tried again at this time.
    Waiting(Duration),
    Closing,
    Closed,
}

pub(super) struct IscsiEndpoint {
    owner: Owner,
    clock: Owner,
    ticking: bool,
    feeding: bool,
    idling: bool,
    url: Url,
    options: Options,
    algorithms: Algorithms,
    read_only: bool,
    lun: u64,
    isid: Isid,
    addresses: Vec<SocketAddr>,
    /// Where to begin again after a redirection that leads nowhere any more.
    home: Vec<SocketAddr>,
    address: usize,
    redirects: u32,
    /// Where the last redirection led, as the target named it.
    redirected: Option<String>,
    born: Duration,
    /// It was ready once; from then on it is not given up, only its requests are.
    opened: bool,
    state: State,
    phase: Phase,
    session: Option<Session>,
    generation: u32,
    setup: Setup,
    setup_again: Option<Duration>,
    disk: Disk,
    cache: Arc<WriteCache>,
    /// Number of the last volatile write of this endpoint.
    written: u64,
    /// A session has begun, or may have, whose disk has not told whether its cache survived.
    unheard: bool,
    capability: Capability,
    /// The last session.
    known: Option<Known>,
    /// The target does not seal, and need not: the next session is asked for without.
    declined: bool,
    /// A handshake that may have been damaged on the way was made once more already.
    tried_again: bool,
    /// What is asked; of each how often in a row the target has sent it back.
    backlog: Backlog<u32, Span>,
    /// Nothing was answered in time: what the requests are told when the session has let go of their buffers.
    expired: Option<IoError>,
    backoff: Backoff,
    last_failure: String,
    /// The last login was refused by the seal.
    seal_refused: bool,
    losses: u64,
    zeroes: Option<Span>,
}

impl IscsiEndpoint {
    /// Begins to connect.
    pub(super) fn open(io: &mut Io, medium: &IscsiMedium) -> Result<Self, OpenError> {
        let lun = medium.url.lun.and_then(scsi::lun::to_wire).expect("checked by IscsiMedium::new");
        let addresses = resolve(&medium.url)?;
        let mut endpoint = Self {
            owner: io.owner(),
            clock: io.owner(),
            ticking: false,
            feeding: false,
            idling: false,
            home: addresses.clone(),
            addresses,
            url: medium.url.clone(),
            options: medium.options.clone(),
            algorithms: Algorithms::default(),
            read_only: medium.read_only,
            lun,
            isid: random_isid(),
            address: 0,
            redirects: 0,
            redirected: None,
            born: io.now(),
            opened: false,
            state: State::Opening,
            phase: Phase::Opening,
            session: None,
            generation: 0,
            setup: Setup::default(),
            setup_again: None,
            disk: Disk::default(),
            cache: Arc::clone(&medium.cache),
            written: 0,
            unheard: false,
            capability: command::unknown_capability(),
            known: None,
            declined: false,
            tried_again: false,
            backlog: Backlog::new(io.now()),
            expired: None,
            backoff: Backoff::default(),
            last_failure: String::new(),
            seal_refused: false,
            losses: 0,
            zeroes: None,
        };
        let mut done = Vec::new();
        endpoint.connect(io, &mut done);
        assert!(done.is_empty(), "nothing was submitted yet");
        Ok(endpoint)
    }

    fn tick(&mut self, io: &mut Io) {
        if !self.ticking {
            self.ticking = true;
            io.timer(Token { owner: self.clock, key: KEY_TICK }, io.now() + TICK);
        }
    }

    fn connect(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        self.generation = (self.generation + 1) & GENERATION_MASK;
        (self.setup, self.setup_again) = (Setup::default(), None);
        self.phase = Phase::Opening;
        self.tick(io);
        let address = self.addresses[self.address % self.addresses.len()];
        let config = match self.options.login(self.url.target.as_deref(), self.isid) {
            Ok(config) => iscsi::login::initiator::Config { algorithms: self.algorithms.clone(), ..config },
            Err(error) => return self.give_up(io, error, done),
        };
        let addresses = [&self.home[..], &self.addresses].concat();
        let portal = Portal { address, addresses: &addresses, redirected: self.redirected.as_deref() };
        let (sealing, tls) = match self.options.protect(&self.url, &portal) {
            Ok(protection) => protection,
            Err(error) => return self.give_up(io, error, done),
        };
        tracing::debug!(url = %self.url, %address, "connecting");
        let sealing = sealing.filter(|_| !std::mem::take(&mut self.declined));
        match Session::connect(io, self.owner, self.generation, address, config, sealing.as_ref(), tls) {
            Ok(session) => self.session = Some(session),
            Err(failure) => self.on_failure(io, failure, done),
        }
    }

    /// Whether the last session was sealed.
    fn was_sealed(&self) -> bool {
        self.known.is_some_and(|known| matches!(known.protection, Protection::Sealed { .. }))
    }

    /// It will not be opened; or, if it was open before, perhaps later.
    fn give_up(&mut self, io: &mut Io, error: OpenError, done: &mut Vec<Completion>) {
        self.session = None;
        if !self.opened {
            self.state = State::Failed(error);
            self.phase = Phase::Closed;
        } else if let OpenError::Unreachable(text) | OpenError::Missing(text) = error {
            // A target that starts may answer before it has all its LUNs, or one of its names.
            self.last_failure = text;
            self.lose(io);
        } else {
            let kind = match &error {
                OpenError::Authentication(_)
                | OpenError::Unprotected(_)
                | OpenError::Certificate(_)
                | OpenError::Refused(_) => IoErrorKind::Refused,
                OpenError::Exchanged(_) => IoErrorKind::Gone,
                _ => IoErrorKind::Unreachable,
            };
            self.backlog.fail(&IoError::new(kind, error.to_string()), io.now(), done);
            self.phase = Phase::Closed;
        }
    }

    fn on_failure(&mut self, io: &mut Io, failure: Failure, done: &mut Vec<Completion>) {
        self.session = None;
        self.losses += u64::from(matches!(failure, Failure::Lost(_)));
        if matches!((&failure, self.phase), (Failure::Lost(_), Phase::Opening)) {
            // The answer to its login may have been lost: for the target it was a session all the same.
            self.unheard = true;
        }
        if let Some(error) = self.expired.take() {
            return self.expire(io, &error, done);
        }
        if matches!(self.phase, Phase::Closing | Phase::Closed) {
            self.phase = Phase::Closed;
            return;
        }
        let url = &self.url;
        let is_busy = failure.is_busy();
        if failure.may_be_damage() && !std::mem::replace(&mut self.tried_again, true) {
            tracing::debug!(%url, ?failure, "the handshake failed: trying once more");
            return self.connect(io, done);
        }
        self.seal_refused = matches!(failure, Failure::Seal(_));
        self.last_failure = match failure {
            Failure::Redirect(redirect) => {
                self.redirects += 1;
                let named = redirect.address.to_string();
                let found = resolve_redirect(&named);
                // `host:port,tag`
                self.redirected = named.split(',').next().map(str::to_owned);
                if self.redirects > REDIRECTS_MAX || found.is_empty() {
                    let text = format!("{url}: redirected to {}, which leads nowhere", redirect.address);
                    return self.give_up(io, OpenError::Unreachable(text), done);
                }
                (self.addresses, self.address) = (found, 0);
                return self.connect(io, done);
            }
            // tgt calls SHA-1 by SHA-256's number: with that left out, both mean the same.
            Failure::Login(LoginError::Authentication { algorithm: Some(Algorithm::Sha256) })
                if self.algorithms.contains(Algorithm::Sha256) =>
            {
                if let Ok(algorithms) = self.algorithms.without(Algorithm::Sha256, false) {
                    self.algorithms = algorithms;
                    return self.connect(io, done);
                }
                "authentication failed".into()
            }
            Failure::Declined if !self.was_sealed() => {
                tracing::warn!(url = %self.url, "the target does not seal: going on in the clear");
                self.declined = true;
                return self.connect(io, done);
            }
            // It did before. Whoever says so now has proven nothing.
            Failure::Declined => "the target does not seal any more".into(),
            Failure::Seal(text) if !self.opened => {
                let error = OpenError::Authentication(format!("{}: {text}", self.url));
                return self.give_up(io, error, done);
            }
            Failure::Damaged(text) if !self.opened => return self.give_up(io, damaged(url, &text), done),
            Failure::Seal(text) | Failure::Damaged(text) | Failure::Dropped(text) => text,
            Failure::Untrusted(text) => {
                let error = OpenError::Certificate(format!("{url}: {text}"));
                return self.give_up(io, error, done);
            }
            Failure::Login(error) if !is_transient(&error) => {
                let error = login_error(&self.url, &error);
                return self.give_up(io, error, done);
            }
            Failure::Login(error) => error.to_string(),
            Failure::Connect(error) => format!("connecting to {}: {error}", self.url.address()),
            Failure::Lost(text) => text,
        };
        if !self.opened {
            self.address += 1;
            if self.address < self.addresses.len() {
                return self.connect(io, done);
            }
            if is_busy && io.now() < self.born + BUSY_TIME_MAX.min(self.options.timeout) {
                // Others want in as well: who asks rarely waits long.
                self.backoff = Backoff::default();
                return self.lose(io);
            }
            let text = format!("{}: {}", self.url, self.last_failure);
            return self.give_up(io, OpenError::Unreachable(text), done);
        }
        self.lose(io);
    }

    /// The session is gone: what was not answered goes first when there is a new one.
    fn lose(&mut self, io: &mut Io) {
        self.backlog.lost();
        if self.redirects > 0 {
            (self.redirects, self.redirected, self.address) = (0, None, 0);
            self.addresses.clone_from(&self.home);
        } else {
            self.address += 1;
        }
        let pause = self.backoff.pause();
        self.phase = Phase::Waiting(io.now() + pause);
        tracing::warn!(
            url = %self.url, reason = self.last_failure, unanswered = self.backlog.len(),
            "connection lost: connecting again in {} ms", pause.as_millis()
        );
        self.tick(io);
    }

    fn on_outcomes(&mut self, io: &mut Io, outcomes: Vec<Outcome>, done: &mut Vec<Completion>) {
        for outcome in outcomes {
            match outcome {
                Outcome::LoggedIn(negotiated) => {
                    let protection = self.session.as_ref().map(Session::protection).unwrap_or_default();
                    let address = self.addresses[self.address % self.addresses.len()];
                    self.known = Some(Known { negotiated, protection, address });
                    self.options.on_login(&Login { address, protection });
                    self.tried_again = false;
                    // A session that ended before we heard may have been told for ever: this one will not be.
                    if std::mem::replace(&mut self.unheard, true) {
                        self.cache_lost();
                    }
                    self.ask(io);
                }
                Outcome::Completed { task, status, sense, moved } => match self.backlog.ended(task.index()) {
                    Some(Run::Question(buffer)) => {
                        let data = &buffer.as_slice()[..(moved as usize).min(buffer.len())];
                        self.on_answer(io, &Answer { status, sense, data }, done);
                    }
                    Some(Run::Work { key, bytes }) => {
                        self.on_completed(io, key, bytes, status, sense, moved, done);
                    }
                    None => {}
                },
                Outcome::Interrupted { task } => match self.backlog.ended(task.index()) {
                    Some(Run::Question(_)) => self.ask(io),
                    Some(Run::Work { key, .. }) => self.repeat(io, key, "ended without a status", done),
                    None => {}
                },
                Outcome::Failed(failure) => self.on_failure(io, failure, done),
                Outcome::Targets(_) | Outcome::LoggedOut => {}
            }
        }
    }

    /// Asks the disk the next question about itself; in a moment, if there is no memory or the target takes no
    /// command now.
    fn ask(&mut self, io: &mut Io) {
        let (Some(cdb), Some(session)) = (self.setup.question(), &mut self.session) else { return };
        let (_, length) =
            scsi::cdb::data_bytes(cdb.as_bytes(), 512).unwrap_or((scsi::cdb::Direction::None, 0));
        let length = (length as u32).min(ANSWER_BYTES);
        let command = command(self.lun, &cdb, command::direction_in(length), length);
        let asked = io.pool().take(ANSWER_BYTES as usize).and_then(|buffer| {
            let task = session.submit(command, Some(buffer.clone())).ok()?;
            Some((task, buffer))
        });
        match asked {
            Some((task, buffer)) => self.backlog.started(task.index(), Run::Question(buffer)),
            None => self.ask_later(io),
        }
    }

    fn ask_later(&mut self, io: &mut Io) {
        self.setup_again = Some(io.now() + TICK);
        self.tick(io);
    }

    fn on_answer(&mut self, io: &mut Io, answer: &Answer<'_>, done: &mut Vec<Completion>) {
        let progress = self.setup.answer(answer);
        if self.unheard
            && let Some(survived) = self.setup.cache_survived()
        {
            self.unheard = false;
            if !survived {
                self.cache_lost();
            }
        }
        match progress {
            Ok(Progress::Ask) if self.setup.question().is_some() => self.ask(io),
            Ok(Progress::Ask) => {
                if let Err(error) = self.set_up(io) {
                    self.give_up(io, error, done);
                }
            }
            Ok(Progress::Pause) => self.ask_later(io),
            Err(error) => self.give_up(io, error, done),
        }
    }

    /// The target may have lost what this endpoint's earlier sessions left in its cache.
    fn cache_lost(&mut self) {
        if self.opened && !is_on(Mutant::ForgetCacheLost) && self.cache.lost() {
            tracing::error!(
                url = %self.url,
                "the target may have lost power: writes it acknowledged since the last flush may be gone; the next \
                 flush fails"
            );
        }
    }

    /// The disk has told everything: serve.
    fn set_up(&mut self, io: &mut Io) -> Result<(), OpenError> {
        let disk = std::mem::take(&mut self.setup.disk);
        let failed = |text: String| OpenError::Failed(format!("{}: {text}", self.url));
        let capability = command::capability(&disk, self.read_only, QUEUE_DEPTH).map_err(failed)?;
        if self.opened && !is_on(Mutant::MissExchange) {
            let before = (self.capability.block_size, &self.disk.designator, &self.disk.serial);
            if before != (capability.block_size, &disk.designator, &disk.serial) {
                let text = "another disk answers at this address than before: nothing was written to it";
                return Err(OpenError::Exchanged(format!("{}: {text}", self.url)));
            }
        }
        self.disk = disk;
        self.capability = capability;
        self.opened = true;
        self.state = State::Ready;
        self.phase = Phase::Serving;
        if self.backlog.connected(io.now()) {
            self.backoff = Backoff::default();
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one outcome")]
    fn on_completed(
        &mut self,
        io: &mut Io,
        key: usize,
        bytes: u64,
        status: u8,
        sense: Option<Sense>,
        moved: u32,
        done: &mut Vec<Completion>,
    ) {
        let work = self.backlog.get_mut(key);
        let verdict = command::judge(status, sense.as_ref());
        if matches!(verdict, Verdict::Done) {
            if let Kind::Write { .. } = &work.kind
                && u64::from(moved) < bytes
            {
                let text =
                    format!("the target answered GOOD after it had asked for {moved} of {bytes} bytes");
                return self.backlog.finish(
                    key,
                    Err(IoError::new(IoErrorKind::Medium, text)),
                    io.now(),
                    done,
                );
            }
            if let Kind::Read { into, .. } = &work.kind
                && (moved as usize) < into.len()
            {
                let text = format!("the target sent {moved} of {} bytes", into.len());
                return self.backlog.finish(
                    key,
                    Err(IoError::new(IoErrorKind::Medium, text)),
                    io.now(),
                    done,
                );
            }
            work.done += bytes;
            work.note = 0;
            if command::is_volatile(&work.kind, &self.disk) {
                self.written = self.cache.wrote();
            }
            let total = work.kind.range().map_or(0, |(_, length)| length);
            // A command that moves nothing is the flush: of a flush, or behind a write.
            if work.done >= total && (bytes == 0 || !command::needs_flush(&work.kind, &self.disk)) {
                let result = match work.kind {
                    Kind::Flush => self.cache.flushed(work.mark),
                    _ => Ok(()),
                };
                return self.backlog.finish(key, result, io.now(), done);
            }
            self.backlog.progressed(io.now());
            return self.backlog.again(key);
        }
        if sense.as_ref().map(cache::fate) == Some(Fate::Lost) {
            self.cache_lost();
        }
        match verdict {
            Verdict::Done => unreachable!("seen to above"),
            Verdict::Fail(error) => self.backlog.finish(key, Err(error), io.now(), done),
            Verdict::Again => {
                let said = sense.as_ref().map(super::setup::describe).unwrap_or_default();
                self.repeat(io, key, &said, done);
            }
            Verdict::Later => {
                self.backlog.again_at(key, io.now() + BUSY_PAUSE);
                self.tick(io);
            }
        }
    }

    /// Sends a command again, unless it has been too often.
    fn repeat(&mut self, io: &Io, key: usize, why: &str, done: &mut Vec<Completion>) {
        let repeats = &mut self.backlog.get_mut(key).note;
        *repeats += 1;
        if *repeats <= REPEATS_MAX {
            return self.backlog.again(key);
        }
        let text = format!("the target refuses it again and again: {why}");
        self.backlog.finish(key, Err(IoError::new(IoErrorKind::Other, text)), io.now(), done);
    }

    /// Sends as much of the queue as the target takes.
    fn feed(&mut self, io: &mut Io) {
        if self.phase != Phase::Serving {
            return;
        }
        let Some(zeroes) = self.zeroes(io) else { return };
        let Some(session) = &mut self.session else { return };
        while session.window() > 0 {
            let Some(key) = self.backlog.pop() else { break };
            let work = self.backlog.get(key);
            let step = command::step(&work.kind, work.done, &self.disk, &self.capability, &zeroes);
            let Step { cdb, direction, data, bytes } = step;
            let buffer = match data {
                Data::None => None,
                Data::Span(span) => Some(span),
                Data::Bytes(list) => {
                    let Some(span) = io.pool().take(list.len()) else {
                        self.backlog.again(key);
                        break;
                    };
                    span.fill(0, &list);
                    Some(span)
                }
            };
            let length = buffer.as_ref().map_or(0, Span::len) as u32;
            let command = command(self.lun, &cdb, direction, length);
            if is_on(Mutant::RetryTwice) && self.backlog.retries() > 0 && work.kind.is_write() {
                let _ = session.submit(command, buffer.clone());
            }
            let Ok(task) = session.submit(command, buffer) else {
                self.backlog.again(key);
                break;
            };
            self.backlog.started(task.index(), Run::Work { key, bytes });
        }
    }

    /// Feeds in the next turn, when there is someone to take completions.
    fn feed_soon(&mut self, io: &mut Io) {
        if !self.feeding {
            self.feeding = true;
            io.soon(Token { owner: self.clock, key: KEY_FEED });
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

    /// Lets the session receive and send, and acts on what it says, until nothing more happens.
    fn pump(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        loop {
            self.feed(io);
            let mut outcomes = Vec::new();
            if let Some(session) = &mut self.session {
                session.pump(io, &mut outcomes);
            }
            if outcomes.is_empty() {
                return self.look_ahead(io);
            }
            self.on_outcomes(io, outcomes, done);
        }
    }

    /// Seals ahead in the next turn that has nothing better to do, if there is something.
    fn look_ahead(&mut self, io: &mut Io) {
        let is_eager = self.session.as_mut().is_some_and(Session::is_eager);
        if is_eager && !self.idling {
            self.idling = true;
            io.idle(Token { owner: self.clock, key: KEY_AHEAD });
        }
    }

    fn on_tick(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        let now = io.now();
        self.backlog.on_time(now);
        let late = self.backlog.waited(now) >= self.options.timeout;
        if self.setup_again.is_some_and(|at| at <= now) {
            self.setup_again = None;
            self.ask(io);
        }
        if !self.opened && self.phase == Phase::Opening && late {
            let (url, seconds) = (&self.url, self.options.timeout.as_secs());
            let text = format!("{url}: no answer in {seconds} s");
            return self.give_up(io, OpenError::Unreachable(text), done);
        }
        if self.backlog.is_empty() && self.opened {
            self.backlog.progressed(now);
        } else if self.opened && self.expired.is_none() && late {
            let reason = if self.last_failure.is_empty() {
                "the target does not answer"
            } else {
                self.last_failure.as_str()
            };
            // A refusal is not authenticated, so it ends nothing before the time is over.
            let (kind, advice) = if self.seal_refused {
                (IoErrorKind::Refused, "see whether the target's peers still list this host's key")
            } else {
                (IoErrorKind::Unreachable, "check that the target is running and reachable")
            };
            let (url, seconds) = (&self.url, self.options.timeout.as_secs());
            let text = format!("{url}: nothing completed for {seconds} s ({reason}); {advice}");
            let error = IoError::new(kind, text);
            if let Some(session) = &mut self.session {
                let mut outcomes = Vec::new();
                session.cut(Failure::Lost("no answer in time".into()), &mut outcomes);
                self.expired = Some(error);
                self.on_outcomes(io, outcomes, done);
            } else {
                self.expire(io, &error, done);
            }
        }
        if let Phase::Waiting(at) = self.phase
            && at <= now
        {
            self.connect(io, done);
        }
        let idle = self.backlog.is_empty() && matches!(self.phase, Phase::Serving | Phase::Closed);
        if !idle {
            self.tick(io);
        }
    }
}

impl IscsiEndpoint {
    /// The requests have waited long enough; the session is gone.
    fn expire(&mut self, io: &mut Io, error: &IoError, done: &mut Vec<Completion>) {
        self.backlog.fail(error, io.now(), done);
        self.phase = match self.phase {
            Phase::Closing | Phase::Closed => Phase::Closed,
            // However short the timeout is, the next attempt comes.
            Phase::Waiting(at) => Phase::Waiting(at),
            _ => Phase::Waiting(io.now() + Backoff::MAX),
        };
        self.tick(io);
    }
}

impl Endpoint for IscsiEndpoint {
    fn state(&self) -> State {
        self.state.clone()
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        if self.phase == Phase::Closed {
            let error = IoError::new(IoErrorKind::Unreachable, format!("{} is closed", self.url));
            return done.push(Completion { id: request.id, result: Err(error) });
        }
        if let Err(error) = command::check(&self.capability, &request.kind) {
            return done.push(Completion { id: request.id, result: Err(error) });
        }
        self.backlog.push(request, self.cache.mark(), io.now());
        self.tick(io);
        // Sent together with whatever else is submitted in this turn.
        self.feed_soon(io);
    }

    fn on_event(&mut self, io: &mut Io, event: IoEvent, done: &mut Vec<Completion>) {
        if event.token.owner == self.clock {
            match event.token.key {
                KEY_FEED => self.feeding = false,
                KEY_AHEAD => {
                    self.idling = false;
                    if let Some(session) = &mut self.session {
                        session.seal_ahead(io);
                    }
                    return self.look_ahead(io);
                }
                _ => {
                    self.ticking = false;
                    self.on_tick(io, done);
                }
            }
        } else if let Some(session) = &mut self.session {
            let mut outcomes = Vec::new();
            session.on_event(io, event, &mut outcomes);
            self.on_outcomes(io, outcomes, done);
        }
        self.pump(io, done);
        if self.phase == Phase::Closed && !self.backlog.is_empty() {
            let error = IoError::new(IoErrorKind::Aborted, "the session was closed");
            self.backlog.fail(&error, io.now(), done);
        }
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.extend([self.owner, self.clock]);
    }

    fn identity(&self) -> Identity {
        let unit = self.disk.designator.clone();
        Identity::Remote(unit.unwrap_or_else(|| self.url.to_string()))
    }

    fn close(&mut self, io: &mut Io) {
        match (&mut self.session, self.phase) {
            (Some(session), Phase::Serving) => {
                session.logout(io.now());
                self.phase = Phase::Closing;
            }
            (Some(_), Phase::Closing) => {}
            // No session holds a request's buffer.
            _ => {
                self.session = None;
                self.phase = Phase::Closed;
            }
        }
        self.feed_soon(io);
    }

    fn is_closed(&self) -> bool {
        self.phase == Phase::Closed && self.backlog.is_empty()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        facts::facts(&self.disk, self.known.as_ref())
    }

    fn retries(&self) -> u64 {
        self.backlog.retries()
    }

    fn losses(&self) -> u64 {
        self.losses
    }
}

impl Drop for IscsiEndpoint {
    /// Nobody is left who would hear whether its writes survive: a flush by another endpoint cannot vouch for them.
    fn drop(&mut self) {
        if self.cache.holds(self.written) {
            self.cache_lost();
        }
    }
}

fn command(lun: u64, cdb: &Cdb, direction: Direction, length: u32) -> Command {
    Command { lun, cdb: cdb.padded(), direction, length, attribute: Attribute::Simple }
}
