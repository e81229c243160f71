//! A remote LUN as a peer of [`block::remote`]: login, set-up of the disk, and block requests as commands.
//!
//! After a lost connection the unanswered commands are sent again in their original order, on a session that reinstates
//! the old one (same ISID). The target must have ended every task of the old session before it answers that login (RFC
//! 7143 §6.3.5), so a repeated write never races its first copy. Writes that the old session acknowledged and that were
//! not flushed may be lost if the target lost power: see `cache.rs`.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use area::Span;
use block::remote::{
    Change, Effect, Link, Links, Next, Nouns, Peer, Remote, Report, Several, Submitted, TICK, Verdict,
};
use block::{Capability, Endpoint, Identity, IoError, IoErrorKind, Kind, OpenError, PathReport};

use io::{Io, Owner, Tap};
use iscsi::chap::{Algorithm, Algorithms};
use iscsi::initiator::{Command, Direction};
use iscsi::login::initiator::LoginError;
use iscsi::machine::TaskId;
use iscsi::params::Negotiated;
use iscsi::wire::{Attribute, Isid};
use scsi::cdb::Cdb;
use scsi::{Sense, Status};

use super::cache::{self, Fate};
use super::command::{self, Data};
use super::distance::{Distance, Most, write_rounds};
use super::facts::{self, Known};
use super::medium::IscsiMedium;
use super::options::{Options, random_isid, resolve};
use super::refusal::{BUSY_TIME_MAX, damaged, is_transient, login_error, unverified};
use super::route::Route;
use super::same;
use super::session::{Failure, Outcome, Session};
use super::setup::{ANSWER_BYTES, Answer, Disk, Progress, Query, Setup};
use super::trust::{Login, Portal};
use super::url::Url;
use crate::sealing::Protection;
use crate::stream::{BufferState, GENERATION_MASK};

const QUEUE_DEPTH: u32 = 32;

/// `moved`: bytes of data transferred. `residual`: bytes more or fewer than that by the target's account. `Interrupted`: ended without a status; the command may be sent again.
pub(super) enum Ended {
    Status { status: u8, sense: Option<Sense>, moved: u32, residual: u32 },
    Interrupted,
}

/// A LUN across its successive sessions. [`Remote`] drives it. Each session logs in, then the disk is set up
/// ([`Setup`]), then the session serves requests.
pub(super) struct IscsiPeer {
    url: Url,
    options: Options,
    algorithms: Algorithms,
    read_only: bool,
    lun: u64,
    isid: Isid,
    route: Route,
    opened: bool,
    /// `disk` and `capability` are those of the unit as another session has found it.
    is_sibling: bool,
    /// The set-up commands of this session; complete before it serves requests.
    setup: Setup,
    setup_again: Option<Duration>,
    queries: Vec<(TaskId, Query, Span)>,
    disk: Disk,
    capability: Capability,
    /// A command was sent whose answer may have reported a unit attention, and the answer did not arrive. The target
    /// reports each once, so those of a later session do not tell whether its cache survived.
    attention_missed: bool,
    known: Option<Known>,
    distance: Distance,
    /// The path and the buffers of the last session, as of the last round trip.
    seen: Option<(io::Path, BufferState)>,
    congestion_control: Option<String>,
    /// Most commands that were in flight or could have been.
    window_max: u32,
    /// The target declined to seal and the policy permits that: the next login is not sealed.
    declined: bool,
    /// The one retry after a handshake that may have been damaged in transit has been used.
    tried_again: bool,
    /// The sealed handshake of the last attempt to log in was refused.
    seal_refused: bool,
    /// The next attempt is made with the announced next key of the target, if there is one.
    uses_next_key: bool,
    tap: Tap,
    /// Why there is no session, as the log says; empty once there is one.
    lost_by: String,
}

pub(super) fn open(io: &mut Io, medium: &IscsiMedium) -> Result<Box<dyn Endpoint>, OpenError> {
    let (peer, cache) = (IscsiPeer::new(medium)?, Arc::clone(&medium.cache));
    let (timeout, sessions) = (medium.options.timeout, medium.options.sessions);
    Ok(match sessions {
        Links::One => Box::new(Remote::open(io, peer, cache, timeout)),
        Links::Fixed(_) | Links::Auto => Box::new(Several::open(io, peer, cache, timeout, sessions)),
    })
}

impl IscsiPeer {
    fn new(medium: &IscsiMedium) -> Result<Self, OpenError> {
        let lun = medium.url.lun.and_then(scsi::lun::to_wire).expect("checked by IscsiMedium::new");
        let route = Route::new(resolve(&medium.url)?);
        Ok(Self::begin(&medium.url, &medium.options, route, lun, medium.read_only))
    }

    fn begin(url: &Url, options: &Options, route: Route, lun: u64, read_only: bool) -> Self {
        Self {
            url: url.clone(),
            options: options.clone(),
            algorithms: Algorithms::default(),
            read_only,
            lun,
            isid: random_isid(),
            route,
            opened: false,
            is_sibling: false,
            setup: Setup::default(),
            setup_again: None,
            queries: Vec::new(),
            disk: Disk::default(),
            capability: command::unknown_capability(),
            attention_missed: false,
            known: None,
            distance: Distance::new(Duration::ZERO, Most::default()),
            seen: None,
            congestion_control: None,
            window_max: 0,
            declined: false,
            tried_again: false,
            seal_refused: false,
            uses_next_key: false,
            tap: Tap::default(),
            lost_by: String::new(),
        }
    }

    fn was_sealed(&self) -> bool {
        self.known.is_some_and(|known| matches!(known.protection, Protection::Sealed { .. }))
    }

    fn refused(&self, error: OpenError) -> Next {
        match error {
            // While a target starts, it may answer logins before all of its names and LUNs exist.
            OpenError::Unreachable(text) if self.opened => Next::retry(text),
            OpenError::Missing(text) => {
                let text = match text.contains("hikyaku ls") {
                    true => text,
                    false => {
                        format!("{text}; list what is there with: hikyaku ls iscsi://{}", self.url.address())
                    }
                };
                if self.opened { Next::retry(text) } else { Next::GiveUp(OpenError::Missing(text)) }
            }
            error => Next::GiveUp(error),
        }
    }

    fn failed(&mut self, failure: Failure) -> Report<Self> {
        let lost = matches!(failure, Failure::Lost(_));
        // Without a command the session has missed nothing, even if the target has seen it begin: what is not reported
        // remains pending, and POWER ON has precedence over I_T NEXUS LOSS (SAM-5 5.14).
        self.attention_missed |= !self.queries.is_empty() && self.setup.cache_survived().is_none();
        Report::Failed { failure, lost }
    }

    fn on_login(&mut self, io: &Io, session: &mut Session, negotiated: Negotiated) {
        let (address, protection) = (self.route.address(), session.protection());
        self.known = Some(Known { negotiated, protection, address });
        self.options.on_login(&Login { address, protection, next_key: session.next_key() });
        (self.tried_again, self.seal_refused) = (false, false);
        self.lost_by.clear();
        self.distance = self.distance.of_next(io.now());
        // The counters of another connection do not tell what this one has lost.
        self.seen = None;
        self.look_at_path(io, session);
        self.send_queries(io, session);
    }

    fn look_at_path(&mut self, io: &Io, session: &mut Session) {
        let seen = session.path(io.now());
        let paths = [seen, self.seen].map(|seen| seen.map(|(path, _)| path));
        self.distance.on_round(io.now(), paths);
        self.seen = seen.or(self.seen);
        let name = self.tap.socket().and_then(|socket| io::congestion_control(&socket));
        self.congestion_control = name.or_else(|| self.congestion_control.take());
        self.window_max = self.window_max.max(session.window() + self.distance.commands());
    }

    /// A command of a request ends, after so many bytes.
    fn on_end(&mut self, task: TaskId, moved: u32) {
        self.distance.on_end(task.index(), moved);
        self.tap.set_outstanding(self.distance.commands());
    }

    fn cache_lost(&self, reports: &mut Vec<Report<Self>>) {
        if self.opened {
            reports.push(Report::CacheLost);
        }
    }

    /// Submits set-up commands; the rest later if there is no memory or the command window is full.
    fn send_queries(&mut self, io: &Io, session: &mut Session) {
        while let Some((query, cdb)) = self.setup.next() {
            let (_, length) =
                scsi::cdb::data_bytes(cdb.as_bytes(), 512).unwrap_or((scsi::cdb::Direction::None, 0));
            let length = (length as u32).min(ANSWER_BYTES);
            let command = command(self.lun, &cdb, command::direction_in(length), length);
            let submitted = io.pool().take(ANSWER_BYTES as usize).and_then(|buffer| {
                let task = session.submit(command, Some(buffer.clone())).ok()?;
                Some((task, query, buffer))
            });
            let Some(submitted) = submitted else {
                self.setup.unasked(query);
                // The answer to a command that was sent leads here again.
                if self.queries.is_empty() {
                    self.query_later(io);
                }
                return;
            };
            self.queries.push(submitted);
        }
    }

    fn query_later(&mut self, io: &Io) {
        self.setup_again = Some(io.now() + TICK);
    }

    fn on_answer(
        &mut self,
        io: &Io,
        session: &mut Session,
        (query, answer): (Query, &Answer<'_>),
        reports: &mut Vec<Report<Self>>,
    ) {
        let before = self.setup.cache_survived();
        let progress = self.setup.answer(query, answer);
        let after = self.setup.cache_survived();
        if before != after {
            let missed = std::mem::take(&mut self.attention_missed);
            if missed || after == Some(false) {
                self.cache_lost(reports);
            }
        }
        match progress {
            Ok(Progress::Query) => self.send_queries(io, session),
            Ok(Progress::Complete) => reports.push(match self.set_up() {
                Ok(()) => Report::Ready,
                Err(error) => Report::Refused(self.refused(error)),
            }),
            Ok(Progress::Pause) => self.query_later(io),
            Err(error) => reports.push(Report::Refused(self.refused(error))),
        }
    }

    fn set_up(&mut self) -> Result<(), OpenError> {
        let disk = std::mem::take(&mut self.setup.disk);
        let failed = |text: String| OpenError::Failed(format!("{}: {text}", self.url));
        let capability = command::capability(&disk, self.read_only, QUEUE_DEPTH).map_err(failed)?;
        if self.opened || self.is_sibling {
            let (before, now) = ((&self.disk, &self.capability), (&disk, &capability));
            same::check(before, now).map_err(|why| {
                OpenError::Exchanged(format!("{}: {why}: nothing was written to it", self.url))
            })?;
            let (before_bytes, bytes) = (self.capability.size_bytes, capability.size_bytes);
            if before_bytes != bytes {
                tracing::warn!(url = %self.url, before_bytes, bytes, "the LUN has grown since it was opened");
            }
        }
        self.disk = disk;
        self.capability = capability;
        self.opened = true;
        Ok(())
    }

    fn take_query(&mut self, task: TaskId) -> Option<(Query, Span)> {
        let index = self.queries.iter().position(|(current, ..)| *current == task)?;
        let (_, query, buffer) = self.queries.swap_remove(index);
        Some((query, buffer))
    }
}

impl Peer for IscsiPeer {
    type Link = Session;
    type Failure = Failure;
    type Answer = Ended;

    const NOUNS: Nouns = Nouns { other_end: "target", link: "session" };

    fn name(&self) -> &dyn Display {
        &self.url
    }

    fn not_ready(&self) -> Option<String> {
        self.setup.not_ready.clone()
    }

    fn connect(&mut self, io: &mut Io, owner: Owner, incarnation: u32) -> Result<Session, Report<Self>> {
        (self.setup, self.setup_again, self.queries) = (Setup::default(), None, Vec::new());
        let address = self.route.address();
        let login = self.options.login(self.url.target.as_deref(), self.isid);
        let login = login.map_err(|error| Report::Refused(self.refused(error)))?;
        let login = iscsi::login::initiator::Config { algorithms: self.algorithms.clone(), ..login };
        let addresses = self.route.all();
        let portal = Portal { address, addresses: &addresses, redirected: self.route.redirected() };
        let protection = self.options.protect(&self.url, &portal);
        let (sealing, tls) = protection.map_err(|error| Report::Refused(self.refused(error)))?;
        tracing::debug!(url = %self.url, %address, "connecting");
        let sealing = sealing.filter(|_| !std::mem::take(&mut self.declined));
        let sealing = sealing.map(|sealing| sealing.with_next(self.uses_next_key));
        let generation = incarnation & GENERATION_MASK;
        let to = (address, self.options.congestion.as_deref());
        let session = Session::connect(io, owner, generation, to, login, sealing.as_ref(), tls)
            .map_err(|failure| self.failed(failure))?;
        if let Some(socket) = session.connecting() {
            self.tap.begin(socket);
        }
        Ok(session)
    }

    fn next_address(&mut self) -> bool {
        self.route.next_address()
    }

    fn address_count(&self) -> usize {
        self.route.count()
    }

    fn has_untried_address(&self) -> bool {
        self.route.has_untried()
    }

    fn on_outcome(
        &mut self,
        io: &mut Io,
        session: &mut Session,
        outcome: Outcome,
        reports: &mut Vec<Report<Self>>,
    ) {
        match outcome {
            Outcome::LoggedIn(negotiated) => self.on_login(io, session, negotiated),
            Outcome::Completed { task, status, sense, moved, residual } => {
                if let Some((query, buffer)) = self.take_query(task) {
                    let data = &buffer.as_slice()[..(moved as usize).min(buffer.len())];
                    return self.on_answer(io, session, (query, &Answer { status, sense, data }), reports);
                }
                let is_good = status == Status::Good as u8;
                if !is_good && sense.as_ref().map(cache::fate) == Some(Fate::Lost) {
                    self.cache_lost(reports);
                }
                self.on_end(task, moved);
                if self.distance.is_due(io.now()) {
                    self.look_at_path(io, session);
                }
                reports.push(Report::Ended {
                    task: task.index(),
                    answer: Ended::Status { status, sense, moved, residual },
                });
            }
            Outcome::Interrupted { task, was_sent } => match self.take_query(task) {
                Some((query, _)) => {
                    self.attention_missed |= was_sent && self.setup.cache_survived().is_none();
                    self.setup.unasked(query);
                    self.send_queries(io, session);
                }
                None => {
                    self.on_end(task, 0);
                    reports.push(Report::Ended { task: task.index(), answer: Ended::Interrupted });
                }
            },
            Outcome::Failed(failure) => reports.push(self.failed(failure)),
            Outcome::Targets(_) | Outcome::LoggedOut => {}
        }
    }

    fn on_failure(&mut self, failure: Failure) -> Next {
        let url = &self.url;
        // A target with another key refuses the handshake.
        self.uses_next_key ^= matches!(failure, Failure::Seal(_));
        if failure.may_be_damage() && !std::mem::replace(&mut self.tried_again, true) {
            tracing::debug!(%url, ?failure, "the handshake failed: trying once more");
            return Next::AtOnce;
        }
        self.seal_refused = matches!(failure, Failure::Seal(_));
        // A connection that ends after the login, during the set-up, is that of a target that restarts.
        let restarts = self.known.is_some() && matches!(failure, Failure::Lost(_) | Failure::Connect(_));
        let is_busy = failure.is_busy() || restarts;
        let opening_max = if is_busy { BUSY_TIME_MAX.min(self.options.timeout) } else { Duration::ZERO };
        let reason = match failure {
            Failure::Redirect(redirect) => {
                if self.route.redirect(&redirect.address.to_string()) {
                    return Next::AtOnce;
                }
                let text = format!("{url}: redirected to {}, which leads nowhere", redirect.address);
                return self.refused(OpenError::Unreachable(text));
            }
            // tgt uses the number of SHA-256 for SHA-1. Without SHA-256 in the offer both sides mean the same
            // algorithm.
            Failure::Login(LoginError::Authentication { algorithm: Some(Algorithm::Sha256) })
                if self.algorithms.contains(Algorithm::Sha256) =>
            {
                if let Ok(algorithms) = self.algorithms.without(Algorithm::Sha256, false) {
                    self.algorithms = algorithms;
                    return Next::AtOnce;
                }
                "authentication failed".into()
            }
            Failure::Declined if !self.was_sealed() => {
                tracing::warn!(%url, "the target does not seal: going on in the clear");
                self.declined = true;
                return Next::AtOnce;
            }
            // The last session was sealed. A refusal is not authenticated, so it does not end the policy to seal.
            Failure::Declined => "the target does not seal any more".into(),
            Failure::Seal(text) if !self.opened => {
                return Next::GiveUp(OpenError::Authentication(format!("{url}: {text}")));
            }
            Failure::Unverified if !self.opened => return Next::GiveUp(unverified(url)),
            Failure::Unverified => unverified(url).to_string(),
            Failure::Damaged(text) if !self.opened => return Next::GiveUp(damaged(url, &text)),
            Failure::Seal(text) | Failure::Damaged(text) | Failure::Dropped(text) => text,
            Failure::Untrusted(text) => {
                return Next::GiveUp(OpenError::Certificate(format!("{url}: {text}")));
            }
            Failure::Login(error) if !is_transient(&error) => {
                return self.refused(login_error(url, &error));
            }
            Failure::Login(error) => error.to_string(),
            Failure::Connect(error) => format!("connecting to {}: {error}", url.address()),
            Failure::Lost(text) => text,
        };
        Next::Retry { reason, opening_max }
    }

    fn on_change(&mut self, change: &Change<'_>) {
        let url = &self.url;
        match change {
            Change::Lost { reason, unanswered, pause } => {
                let pause_ms = pause.as_millis();
                // A further session without a request delays nothing, and an attempt that fails as the last one says
                // nothing new.
                if (self.is_sibling && *unanswered == 0) || self.lost_by == *reason {
                    tracing::debug!(%url, reason, "no connection: connecting again in {pause_ms} ms");
                } else {
                    let waiting = match unanswered {
                        0 => String::new(),
                        1 => "; 1 request waits for it".to_owned(),
                        count => format!("; {count} requests wait for it"),
                    };
                    tracing::warn!(%url, reason, "connection lost: connecting again in {pause_ms} ms{waiting}");
                    self.lost_by = (*reason).to_owned();
                }
                self.route.on_lost();
            }
            // No alarm: a copy that ends without a flush has failed for another reason, which it reports.
            Change::Dropped => {
                tracing::info!(%url, "closed before a flush: the next flush by others fails, as writes may be volatile");
            }
            Change::CacheLost => tracing::error!(
                %url,
                "the target may have lost power: writes it acknowledged since the last flush may be gone; the next \
                 flush fails"
            ),
            Change::Expired => {}
        }
    }

    fn on_tick(&mut self, io: &mut Io, session: Option<&mut Session>) -> bool {
        if self.setup_again.take_if(|at| *at <= io.now()).is_some()
            && let Some(session) = session
        {
            self.send_queries(io, session);
        }
        false
    }

    fn check(&self, kind: &Kind) -> Result<(), IoError> {
        command::check(&self.capability, kind)
    }

    fn submit(
        &mut self,
        io: &mut Io,
        session: &mut Session,
        kind: &Kind,
        done: u64,
        zeroes: &Span,
    ) -> Submitted {
        let step = command::next(kind, done, &self.disk, &self.capability, zeroes);
        let buffer = match step.data {
            Data::None => None,
            Data::Span(span) => Some(span),
            Data::Bytes(list) => {
                let Some(span) = io.pool().take(list.len()) else { return Submitted::NotNow };
                span.fill(0, &list);
                Some(span)
            }
        };
        let length = buffer.as_ref().map_or(0, Span::len) as u32;
        let command = command(self.lun, &step.cdb, step.direction, length);
        let Ok(task) = session.submit(command, buffer) else { return Submitted::NotNow };
        let keys = self.known.as_ref().filter(|_| step.direction == Direction::Out);
        let rounds = keys.map(|known| write_rounds(&known.negotiated, length));
        self.distance.on_submit(task.index(), length, rounds);
        self.tap.set_outstanding(self.distance.commands());
        let is_volatile = command::is_volatile(kind, &self.disk);
        let is_last = command::is_last(kind, done, step.bytes, &self.disk);
        Submitted::Task(task.index(), Effect { bytes: step.bytes, is_volatile, is_last })
    }

    fn judge(&mut self, kind: &Kind, bytes: u64, answer: Ended) -> Verdict {
        let Ended::Status { status, sense, moved, residual } = answer else {
            return Verdict::Again("ended without a status".into());
        };
        let verdict = match command::judge(status, sense.as_ref()) {
            Verdict::Fail(error) if error.kind == IoErrorKind::Medium => {
                let lba = sense.and_then(|sense| sense.information);
                let offset = lba.and_then(|lba| lba.checked_mul(self.capability.block_size.into()));
                Verdict::Fail(error.at(offset))
            }
            verdict => verdict,
        };
        let text = match kind {
            _ if !matches!(verdict, Verdict::Done) => return verdict,
            Kind::Write { .. } if u64::from(moved) < bytes => {
                format!("the target answered GOOD after requesting only {moved} of {bytes} bytes")
            }
            // The command carried the data itself, not a pattern or a list.
            Kind::Write { .. } | Kind::WriteZeroes { .. } if residual > 0 && u64::from(moved) == bytes => {
                format!(
                    "the target answered GOOD with a residual of {residual} of {bytes} bytes: it did not take them all"
                )
            }
            Kind::Read { into, .. } if (moved as usize) < into.len() => {
                format!("the target sent {moved} of {} bytes", into.len())
            }
            _ => return verdict,
        };
        Verdict::Fail(IoError::new(IoErrorKind::Medium, text))
    }

    fn advice(&self) -> (IoErrorKind, &'static str) {
        // A refusal is not authenticated, so it fails requests only after the timeout.
        if self.seal_refused {
            (IoErrorKind::Refused, "see whether the target's peers still list this host's key")
        } else {
            (IoErrorKind::Unreachable, "check that the target is running and reachable")
        }
    }

    fn is_open(&self) -> bool {
        self.opened
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn in_flight(&self, direction: block::Direction) -> Option<u64> {
        Some(match direction {
            block::Direction::Read => self.distance.of_reads(),
            block::Direction::Write => self.distance.of_writes(),
        })
    }

    fn is_renewal_worth(&self, bytes: u64) -> bool {
        let is_far = self.seen.is_some_and(|(path, _)| path.is_far());
        is_far && bytes > self.distance.of_reads()
    }

    fn sibling(&self) -> Option<Self> {
        Some(Self {
            algorithms: self.algorithms.clone(),
            is_sibling: true,
            disk: self.disk.clone(),
            capability: self.capability.clone(),
            // Where this session is sealed, that one must be.
            known: self.known,
            declined: !self.was_sealed(),
            uses_next_key: self.uses_next_key,
            distance: self.distance.of_sibling(),
            ..Self::begin(&self.url, &self.options, self.route.clone(), self.lun, self.read_only)
        })
    }

    fn identity(&self) -> Identity {
        let unit = self.disk.designator.clone();
        Identity::Remote(unit.unwrap_or_else(|| self.url.to_string()))
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        facts::facts(&self.disk, self.known.as_ref())
    }

    fn tap(&self) -> Option<Tap> {
        Some(self.tap.clone())
    }

    fn path(&self) -> Option<PathReport> {
        let (connection, buffers) = self.seen?;
        let most = self.distance.most();
        Some(PathReport {
            sessions: 1,
            connection,
            congestion_control: self.congestion_control.clone(),
            bytes_per_s: self.distance.measured_rate(),
            in_flight_max_bytes: most.in_flight,
            window_max_commands: self.window_max,
            rounds_max: most.r2t_rounds,
            is_send_buffer_forced: buffers.is_send_forced,
            send_buffer_wanted: buffers.send_wanted,
            receive_buffer_wanted: buffers.receive_wanted,
        })
    }
}

fn command(lun: u64, cdb: &Cdb, direction: Direction, length: u32) -> Command {
    Command { lun, cdb: cdb.padded(), direction, length, attribute: Attribute::Simple }
}

#[cfg(test)]
mod tests;
