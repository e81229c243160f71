//! One connection: socket, protocol machine, tasks with their buffers.
//!
//! A READ: `pump` takes its header from the stream; the machine yields `Command`; `on_command` asks the device
//! server, takes a buffer and starts a [`Job`]; the endpoint fills the buffer; `on_completion` ends the job and
//! tells the machine, which yields Data-In headers that refer to the buffer; `pump` sends headers and spans.
//! A WRITE: as above, but the buffer is taken first, the stream receives into it, and the job starts at `DataOut`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use area::Span;
use block::{Completion, Endpoint, IoError, Request, RequestId};
use io::{Event as IoEvent, Io, Owner, Token};
use iscsi::login::target::AuthRequirement;
use iscsi::machine::{Fatal, Machine, TargetRecord, TaskId};
use iscsi::name::IscsiName;
use iscsi::params::DigestPolicy;
use iscsi::target::{self as machine, Event, ManagementId};
use iscsi::wire::{Isid, LoginStatus};
use mutant::Mutant;
use scsi::{LbaExtent, Media, MediaError, MediaOp, NexusId, Outcome, Rights, Sense, Step};

use super::ahead::{AHEAD, Ahead, Extent};
use super::config::{LocalUsers, Peer, ServerConfig};
use super::copying::Copying;
use super::defects;
use super::handshake::{Agreement, Handshake, Next as HandshakeNext};
use super::local_user;
use super::login::{self, Claims, Denied, Grant};
use super::lun::Lun;
use super::mail::{AbortGroup, ConnectionId, Mail};
use super::media::{Job, Next};
use super::server::{POOL, Shared, State};
use super::sessions::{Admission, Claim};
use super::slots::Slots;
use crate::reassembly::Advance;
use crate::sealing::Protection;
use crate::stream::{Operation, Stream, sealed_segment_max};

/// Commands an initiator may have outstanding.
const COMMANDS_MAX: u32 = 128;
/// Seconds an initiator is given to log out when the server drains.
const LOGOUT_SECONDS: u16 = 3;
/// How long the last words of a connection may take: a peer that does not read them does not get them.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Memory for the data of one session's commands; TASK SET FULL beyond it. The pool serves several such sessions, so
/// that one which never reads, or whose storage never answers, leaves room for the others.
const SESSION_BYTES_MAX: usize = 256 << 20;

/// Bytes that a session sends at once from where the storage keeps them.
const LENT_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(3 * SESSION_BYTES_MAX < POOL.bytes_max);

/// What a connection needs of its thread.
pub(super) struct Context<'a> {
    pub(super) io: &'a mut Io,
    pub(super) shared: &'a Arc<Shared>,
    /// Every unit that this thread has, and its way to the storage, by slot.
    pub(super) luns: &'a Slots<Arc<Lun>>,
    pub(super) units: &'a mut Slots<Box<dyn Endpoint>>,
    pub(super) done: &'a mut Vec<Completion>,
    pub(super) draining: bool,
    /// Payload that one connection may send in this turn.
    pub(super) send_bytes: usize,
}

/// A unit that a session sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The LUN field that names it.
    pub(super) wire: u64,
    /// Its slot.
    pub(super) lun: usize,
    /// What the session may do with it.
    pub(super) rights: Rights,
}

/// What is known of the user at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalUser {
    /// It is not of this host, or it proves itself otherwise.
    Irrelevant,
    /// Every user is let in: none was asked for.
    Any,
    /// This one.
    Is(u32),
}

/// What the login settled.
pub(super) struct Session {
    pub(super) nexus: NexusId,
    /// `None` for discovery.
    pub(super) target: Option<usize>,
    pub(super) initiator: String,
    user: Option<String>,
    /// What the configuration gave it.
    grant: Grant,
    pub(super) luns: Vec<Seen>,
    /// The same as REPORT LUNS wants it.
    inventory: Vec<u64>,
}

impl Session {
    /// The unit behind a LUN field.
    pub(super) fn seen(&self, wire: u64) -> Option<Seen> {
        self.luns.iter().find(|seen| seen.wire == wire).copied()
    }

    /// What it may do with a unit that it sees.
    pub(super) fn rights(&self, lun: usize) -> Option<Rights> {
        self.luns.iter().find(|seen| seen.lun == lun).map(|seen| seen.rights)
    }
}

/// A login that is agreed and waits for its session.
struct Pending {
    initiator: String,
    isid: Isid,
    tsih: u16,
    target: Option<String>,
    user: Option<String>,
}

/// A command under way.
pub(super) struct Task {
    /// Slot of its unit.
    pub(super) lun: usize,
    cdb: [u8; 16],
    /// Length of the parameter list that it takes; 0: none.
    list_bytes: u32,
    media: Option<Media>,
    pub(super) buffer: Option<Span>,
    /// Bytes of buffers it has taken.
    charged: usize,
    /// Bytes of the storage's own that it is sending.
    lent: usize,
    pub(super) job: Option<Job>,
    /// A copy that runs on another thread.
    pub(super) copying: Option<Box<Copying>>,
    /// Its outcome is known and on its way to the initiator.
    pub(super) answered: bool,
    /// Task management of other sessions that waits for this task's end. With any, nothing is answered.
    pub(super) groups: Vec<Arc<AbortGroup>>,
}

impl Task {
    fn new(lun: usize, cdb: [u8; 16]) -> Self {
        Self {
            lun,
            cdb,
            list_bytes: 0,
            media: None,
            buffer: None,
            charged: 0,
            lent: 0,
            job: None,
            copying: None,
            answered: false,
            groups: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// What is queued is sent, then the socket is shut; at this time at the latest.
    Ending(Duration),
    /// Shut; what is with the kernel and the endpoints comes back.
    Shut,
}

pub(super) struct Connection {
    id: ConnectionId,
    owner: Owner,
    pub(super) peer: SocketAddr,
    local: SocketAddr,
    pub(super) stream: Stream,
    /// What comes before the machine, where sealing is configured.
    handshake: Option<Box<Handshake>>,
    pub(super) machine: machine::Connection,
    pub(super) tasks: Vec<Option<Task>>,
    pub(super) session: Option<Session>,
    /// Task management that waits for other threads.
    pub(super) requests: Vec<Option<ManagementId>>,
    pending: Option<Pending>,
    /// Why there was no session.
    pub(super) refusal: Option<String>,
    /// What the login says that it is and wants.
    refused_as: String,
    /// Whose key the initiator has proven; `None` in the clear.
    proven: Option<Peer>,
    /// The user at the other end.
    user: LocalUser,
    /// The configuration that the login began under, until there is a session.
    basis: Option<Arc<State>>,
    protection: Protection,
    pub(super) ahead: Ahead,
    /// Jobs whose requests are with endpoints, or with a copier.
    pub(super) busy: usize,
    /// Bytes of the tasks' buffers.
    charged: usize,
    /// Bytes of storage that are being sent, and READs that wait until they are fewer.
    lent: usize,
    lent_waiting: VecDeque<TaskId>,
    began: Duration,
    pub(super) phase: Phase,
    /// The earliest that is set.
    timer: Option<Duration>,
}

impl Connection {
    /// Takes a fresh stream. `timer` is one that is set for this place already. `None` when there is no randomness.
    pub(super) fn new(
        io: &Io,
        shared: &Shared,
        stream: Stream,
        owner: Owner,
        id: ConnectionId,
        (peer, local): (SocketAddr, SocketAddr),
        timer: Option<Duration>,
    ) -> Option<Self> {
        let machine = new_machine(u32::MAX, io.now())?;
        let handshake = Handshake::begin(&shared.state().config, io.now()).map(Box::new);
        tracing::debug!(%peer, "connected");
        Some(Self {
            id,
            owner,
            peer,
            local,
            stream,
            handshake,
            machine,
            tasks: Vec::new(),
            session: None,
            requests: Vec::new(),
            pending: None,
            refusal: None,
            refused_as: String::new(),
            proven: None,
            user: LocalUser::Irrelevant,
            basis: None,
            protection: Protection::None,
            ahead: Ahead::off(),
            busy: 0,
            charged: 0,
            lent: 0,
            lent_waiting: VecDeque::new(),
            began: io.now(),
            phase: Phase::Open,
            timer: timer.filter(|at| *at > io.now()),
        })
    }

    pub(super) fn id(&self) -> ConnectionId {
        self.id
    }

    /// The timer that is set.
    pub(super) fn timer(&self) -> Option<Duration> {
        self.timer
    }

    /// When it began, while it has no session.
    pub(super) fn logging_in_since(&self) -> Option<Duration> {
        (self.session.is_none() && self.phase == Phase::Open).then_some(self.began)
    }

    /// LUNs that have not answered a request of this connection.
    pub(super) fn awaited_luns(&self) -> impl Iterator<Item = usize> {
        let busy = |task: &&Task| task.job.as_ref().is_some_and(Job::is_outstanding);
        self.tasks.iter().flatten().filter(busy).map(|task| task.lun)
    }

    /// Units whose state may be in doubt after a panic: those of its tasks that are with the storage or with a copier.
    pub(super) fn doubtful_luns(&self) -> impl Iterator<Item = usize> {
        let under_way = |task: &&Task| task.job.is_some() || task.copying.is_some();
        self.tasks.iter().flatten().filter(under_way).map(|task| task.lun)
    }

    /// Who is at its other end, for the log.
    pub(super) fn initiator(&self) -> &str {
        self.session.as_ref().map_or("(no session)", |session| &session.initiator)
    }

    /// Nothing is left: the socket is shut and every task has ended.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Shut && self.stream.is_idle() && self.busy == 0 && !self.ahead.is_reading()
    }

    /// Whose key it has proven, by the list of peers.
    fn listed_as(&self) -> Option<&str> {
        self.proven.as_ref().map(|peer| peer.name.as_str())
    }

    /// What protects the session, for the log.
    fn protection_kind(&self, config: &ServerConfig, user: Option<&str>) -> &'static str {
        match self.protection {
            Protection::None if config.tls.is_some() => "tls",
            Protection::None if user.is_some() => "chap",
            _ => self.protection.kind(),
        }
    }

    /// The last act of a connection that is over.
    pub(super) fn end(self, luns: &Slots<Arc<Lun>>) {
        if let Some(session) = &self.session {
            for seen in &session.luns {
                luns[seen.lun].detach(session.nexus);
            }
            let counters = self.stream.counters();
            tracing::info!(
                peer = %self.peer, initiator = session.initiator, listed_as = self.listed_as(),
                received = counters.received, sent = counters.sent, copied = counters.copied,
                "session ended"
            );
        }
    }

    pub(super) fn on_event(&mut self, context: &mut Context<'_>, operation: Operation, event: IoEvent) {
        match operation {
            Operation::Receive => match self.stream.on_received(event) {
                Ok(true) => {}
                Ok(false) => self.shut("the initiator closed the connection"),
                Err(error) => self.shut(&error.to_string()),
            },
            Operation::Send => {
                if let Err(error) = self.stream.on_sent(event) {
                    self.shut(&error.to_string());
                }
            }
            Operation::Timer => {
                // Otherwise one that an earlier deadline, or an earlier connection in this place, has left behind.
                let now = context.io.now();
                if self.timer.is_some_and(|armed| armed <= now) {
                    self.timer = None;
                    self.on_timer(now);
                }
            }
            Operation::Connect => unreachable!("a target does not connect"),
        }
    }

    fn on_timer(&mut self, now: Duration) {
        match self.phase {
            Phase::Open => {
                let result = match &mut self.handshake {
                    Some(handshake) => handshake.on_timeout(now),
                    None => self.machine.on_timeout(now),
                };
                self.ahead.expire(now);
                if let Err(fatal) = result {
                    self.fail(&fatal, now);
                }
            }
            Phase::Ending(until) if now >= until => self.shut("the initiator does not read"),
            Phase::Ending(_) | Phase::Shut => {}
        }
    }

    /// Receives, acts and sends as far as it goes.
    pub(super) fn pump(&mut self, context: &mut Context<'_>) {
        self.shake_hands(context);
        while self.phase == Phase::Open && self.handshake.is_none() {
            self.drain_events(context);
            let Self { stream, machine, tasks, .. } = self;
            match stream.advance(context.io, machine, |task| buffer_of(tasks, task)) {
                Ok(Advance::Events) => {}
                Ok(Advance::Starved) => break,
                Err(fatal) => self.fail(&fatal, context.io.now()),
            }
        }
        self.drain_events(context);
        if self.phase == Phase::Shut {
            return;
        }
        self.start_waiting(context);
        self.send(context);
        self.drain_events(context);
        match self.phase {
            Phase::Open => {
                self.stream.receive(context.io);
                let now = context.io.now();
                let due = match &self.handshake {
                    Some(handshake) => handshake.poll_timeout(),
                    None => self.machine.poll_timeout(),
                };
                let due = due.into_iter().chain(self.stream.retry_at(now)).chain(self.ahead.due()).min();
                self.arm_timer(context.io, due);
            }
            Phase::Ending(_) if self.stream.is_sent() => self.shut("closed"),
            Phase::Ending(until) => {
                let retry = self.stream.retry_at(context.io.now());
                self.arm_timer(context.io, Some(retry.map_or(until, |at| at.min(until))));
            }
            Phase::Shut => {}
        }
    }

    /// Gathers and sends what there is.
    fn send(&mut self, context: &mut Context<'_>) {
        let Self { stream, machine, tasks, handshake, .. } = self;
        let sent = match handshake {
            Some(handshake) => {
                let gathers = stream.is_sent();
                let sent = stream.send(context.io, &mut handshake.exchange, context.send_bytes, |_| None);
                if gathers && let Some(agreement) = handshake.take_agreement() {
                    self.seal(agreement, &context.shared.state(), context.io.now());
                }
                sent
            }
            None => stream.send(context.io, machine, context.send_bytes, |task| buffer_of(tasks, task)),
        };
        if let Err(fatal) = sent {
            self.fail(&fatal, context.io.now());
        }
    }

    /// The outer login, as far as it goes.
    fn shake_hands(&mut self, context: &mut Context<'_>) {
        let (io, shared) = (&*context.io, context.shared);
        while self.phase == Phase::Open
            && let Some(handshake) = &mut self.handshake
        {
            match self.stream.advance(io, &mut handshake.exchange, |_| None) {
                Ok(Advance::Events) => {}
                Ok(Advance::Starved) => break,
                Err(fatal) => return self.fail(&fatal, io.now()),
            }
            match handshake.advance(&shared.state().config, &shared.handshakes, self.peer.ip(), io.now()) {
                HandshakeNext::Wait => {}
                HandshakeNext::Ordinary(first) => {
                    self.handshake = None;
                    if let Err(fatal) = first.replay(&mut self.machine, io.now()) {
                        self.fail(&fatal, io.now());
                    }
                }
                HandshakeNext::End(reason) => {
                    self.refusal = Some(reason);
                    self.conclude(io.now());
                }
            }
        }
    }

    /// The last word of the outer login is gathered: records follow, and within them a login.
    fn seal(&mut self, agreement: Agreement, state: &State, now: Duration) {
        let Agreement { channel, suite, unit, peer_key } = agreement;
        // It may have been taken off the list since it was looked up; a reload from here on finds it here.
        let Some(peer) = state.config.peer(&peer_key) else {
            return self.shut("its key is no longer among the peers");
        };
        let Some(machine) = new_machine(sealed_segment_max(unit), now) else {
            return self.shut("no randomness for the login");
        };
        self.stream.seal(channel, unit, now);
        (self.machine, self.handshake) = (machine, None);
        self.proven = Some(peer.clone());
        self.protection = Protection::Sealed { suite, unit, peer_key };
        self.ahead = Ahead::new(suite);
        tracing::debug!(peer = %self.peer, key = %peer_key, suite = suite.name(), unit, "sealed");
    }

    fn arm_timer(&mut self, io: &mut Io, due: Option<Duration>) {
        let Some(due) = due else { return };
        if self.timer.is_none_or(|armed| due < armed) {
            self.timer = Some(due);
            io.timer(Token { owner: self.owner, key: Operation::Timer.key(self.id.generation) }, due);
        }
    }

    fn fail(&mut self, fatal: &Fatal, now: Duration) {
        match self.session {
            Some(_) => tracing::info!(peer = %self.peer, reason = %fatal, "dropping the connection"),
            None => drop(self.refusal.get_or_insert_with(|| fatal.to_string())),
        }
        self.conclude(now);
    }

    /// Only the last words are still sent.
    fn conclude(&mut self, now: Duration) {
        if self.phase == Phase::Open {
            self.phase = Phase::Ending(now + LAST_WORDS);
            self.abandon();
        }
    }

    /// Ends the connection without a word.
    fn shut(&mut self, reason: &str) {
        if self.phase != Phase::Shut {
            tracing::debug!(peer = %self.peer, reason, "connection ends");
            self.phase = Phase::Shut;
            self.stream.shutdown();
            self.abandon();
        }
    }

    /// Work not yet begun is not begun any more, and no data is sent; what is with an endpoint ends there.
    fn abandon(&mut self) {
        self.ahead.end();
        for id in self.machine.tasks().collect::<Vec<_>>() {
            let task = self.tasks.get_mut(id.index()).and_then(Option::as_mut);
            match task.and_then(|task| task.job.as_mut()) {
                Some(job) => job.abort(),
                None => self.machine.abort(id),
            }
        }
    }

    /// Ends the connection: its session is replaced, its target reset, or the server ends.
    pub(super) fn close(&mut self, reason: &str) {
        self.shut(reason);
    }

    /// Asks the initiator to log out.
    pub(super) fn drain(&mut self, now: Duration) {
        match &self.session {
            Some(_) => {
                if let Err(fatal) = self.machine.request_logout(LOGOUT_SECONDS) {
                    self.fail(&fatal, now);
                }
            }
            None => self.shut("the server ends"),
        }
    }

    fn drain_events(&mut self, context: &mut Context<'_>) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::TaskDone { task } => self.on_task_done(task),
                Event::Command(command) if self.phase != Phase::Open => self.machine.abort(command.task),
                // Nothing is begun any more.
                _ if self.phase != Phase::Open => {}
                Event::Command(command) => self.on_command(context, &command),
                Event::DataOut { task } => self.on_data_out(context, task),
                Event::Identify(identity) => {
                    let state = context.shared.state();
                    let policy = if context.draining {
                        Err(LoginStatus::ServiceUnavailable.into())
                    } else {
                        login::policy(&state.config, &identity, self.proven.as_ref())
                            .map(|policy| self.as_protected(context.shared, policy))
                    };
                    let name = &identity.initiator_name;
                    self.refused_as = login::refused_as(&state.config, &identity);
                    let policy = policy.and_then(|policy| {
                        self.admit_user(context.shared, &state.config, &policy).map_err(|why| {
                            self.refusal = Some(format!("{name}: {why}"));
                            LoginStatus::AuthenticationFailure
                        })?;
                        Ok(policy)
                    });
                    self.basis = Some(state);
                    self.machine.identify(policy);
                }
                Event::LoginRefused { status, denial } => {
                    let why = denial.map_or_else(|| login::meaning(status), |denial| denial.to_string());
                    self.refusal.get_or_insert_with(|| format!("{}: {why}", self.refused_as));
                }
                Event::SessionReady(ready) => {
                    self.pending = Some(Pending {
                        initiator: ready.identity.initiator_name.to_string(),
                        isid: ready.identity.isid,
                        tsih: ready.identity.tsih,
                        target: ready.identity.target_name.as_ref().map(ToString::to_string),
                        user: ready.authenticated_as,
                    });
                    self.claim_session(context);
                }
                Event::SendTargets { request, scope } => self.on_send_targets(context, request, &scope),
                Event::TaskManagement { request, function, lun, .. } => {
                    self.on_management(context, request, function, lun);
                }
                Event::Logout { reason } => {
                    tracing::debug!(peer = %self.peer, ?reason, "logout");
                }
                Event::Close => self.conclude(context.io.now()),
            }
        }
    }

    /// What is negotiated, by what protects the connection. Within a seal: no digests, and segments that its heads can
    /// describe. Where nothing protects it beyond this machine, CRC32C is chosen of every list that has it: TCP's checksum
    /// misses errors, and nothing else would show them. An initiator that offers None alone gets that.
    fn as_protected(&self, shared: &Shared, mut policy: machine::Policy) -> machine::Policy {
        let params = &mut policy.params;
        if let Protection::Sealed { unit, .. } = self.protection {
            (params.header_digest, params.data_digest) = (DigestPolicy::Off, DigestPolicy::Off);
            let segment_max = &mut params.max_recv_data_segment_length;
            *segment_max = sealed_segment_max(unit).min(*segment_max);
        } else if shared.state().config.tls.is_none() && !self.is_local() {
            (params.header_digest, params.data_digest) = (DigestPolicy::Prefer, DigestPolicy::Prefer);
        }
        policy
    }

    /// Whether both ends are on this host for certain: one of them has a loopback address. The initiator's may be another one, as it
    /// chooses what it binds its socket to.
    fn is_local(&self) -> bool {
        [self.peer, self.local].iter().any(|end| end.ip().to_canonical().is_loopback())
    }

    /// Where nothing else is to be proven, a user of this host must be one that is let in. `Err`: why not, and what to type.
    fn admit_user(
        &mut self,
        shared: &Shared,
        config: &ServerConfig,
        policy: &machine::Policy,
    ) -> Result<(), String> {
        let is_proven = self.proven.is_some() || !matches!(policy.auth, AuthRequirement::None);
        if is_proven || !self.is_local() {
            self.user = LocalUser::Irrelevant;
            return Ok(());
        }
        if config.local_users == LocalUsers::Any {
            self.user = LocalUser::Any;
            return Ok(());
        }
        let instead = "or protect the target by CHAP or by keys of peers";
        match shared.local_users.of(self.peer, self.local) {
            Ok(uid) if config.local_users.admit(uid) => {
                self.user = LocalUser::Is(uid);
                Ok(())
            }
            Ok(uid) => {
                let name = local_user::name_of(uid).unwrap_or_else(|| uid.to_string());
                Err(format!(
                    "user {name} (uid {uid}) of this host may not use this server: say --allow-user {name}, {instead}"
                ))
            }
            Err(unknown) => Err(format!(
                "a user of this host, of whom nothing is known: {unknown}; say --allow-user any, {instead}"
            )),
        }
    }

    /// Whether the configuration still gives it what it rests on.
    fn is_granted(&self, config: &ServerConfig) -> bool {
        let peer = self.proven.as_ref();
        let is_listed =
            peer.is_none_or(|peer| config.peer(&peer.public_key).is_some_and(|listed| listed.is_same(peer)));
        let is_admitted = match self.user {
            LocalUser::Irrelevant => true,
            LocalUser::Any => config.local_users == LocalUsers::Any,
            LocalUser::Is(uid) => config.local_users.admit(uid),
        };
        is_listed
            && is_admitted
            && self.session.as_ref().is_none_or(|session| {
                let target = session.target.map(|index| config.targets[index].iqn.as_str());
                let claims = Claims { initiator: &session.initiator, peer, user: session.user.as_deref() };
                login::grant(config, target, claims).is_ok_and(|grant| grant.is_same(&session.grant))
            })
    }

    /// Takes a changed configuration. A session whose rights have changed ends: the initiator logs in again, to the new ones. Another
    /// one lives on and learns by unit attentions which units came and went. True: a session has ended.
    pub(super) fn revise(&mut self, context: &mut Context<'_>, state: &State) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        if self.is_granted(&state.config) && self.revise_luns(context, state) {
            return false;
        }
        if let Some(session) = &self.session {
            tracing::info!(
                peer = %self.peer, initiator = session.initiator, listed_as = self.listed_as(),
                chap_user = session.user, "session ends: its key, its user or its rights were changed by the reload"
            );
        }
        self.shut("its key, its user or its rights were changed by the reload");
        self.session.is_some()
    }

    /// Gives a session the units that there are now. False: it must log in again.
    fn revise_luns(&mut self, context: &mut Context<'_>, state: &State) -> bool {
        let Some(session) = &mut self.session else { return true };
        let Some(target) = session.target else { return true };
        let luns = state.visible_luns(target, session.grant.row.as_ref(), self.proven.as_ref());
        if luns == session.luns {
            return true;
        }
        let nexus = session.nexus;
        for seen in &luns {
            let unit = &context.luns[seen.lun];
            if session.luns.contains(seen) {
                unit.unit().luns_changed(nexus);
            } else if unit.config.exclusive {
                return false;
            } else {
                unit.unit().attach(nexus, None);
            }
        }
        for seen in session.luns.iter().filter(|seen| !luns.contains(seen)) {
            context.luns[seen.lun].detach(nexus);
        }
        let exclusive = luns.iter().map(|seen| seen.lun).filter(|lun| context.luns[*lun].config.exclusive);
        context.shared.sessions.set_exclusive(self.id, exclusive.collect());
        session.inventory = luns.iter().map(|seen| seen.wire).collect();
        session.luns = luns;
        self.ahead.forget();
        true
    }

    /// Whether something here still names the unit in a slot.
    pub(super) fn uses(&self, slot: usize) -> bool {
        let sees =
            self.session.as_ref().is_some_and(|session| session.luns.iter().any(|seen| seen.lun == slot));
        sees || self.ahead.is_reading() || self.tasks.iter().flatten().any(|task| task.lun == slot)
    }

    /// Asks for the session that the login agreed on; again when the one it replaces has ended.
    pub(super) fn claim_session(&mut self, context: &mut Context<'_>) {
        if self.phase != Phase::Open {
            return;
        }
        let Some(pending) = self.pending.take() else { return };
        if pending.tsih != 0 {
            // A second connection, or the first one again: a session has one connection here.
            let status = if context.shared.sessions.exists(pending.tsih) {
                LoginStatus::TooManyConnections
            } else {
                LoginStatus::SessionDoesNotExist
            };
            return self.machine.refuse_session(status);
        }
        let state = context.shared.state();
        let peer = self.proven.as_ref();
        let grant = {
            let claims = Claims { initiator: &pending.initiator, peer, user: pending.user.as_deref() };
            let grant = |state: &State| login::grant(&state.config, pending.target.as_deref(), claims);
            // What it has proven, it has proven to the configuration that its login began under.
            let begun =
                self.basis.as_ref().filter(|basis| !Arc::ptr_eq(basis, &state)).map(|basis| grant(basis));
            match (grant(&state), begun) {
                (Ok(now), None) => Ok(now),
                (Ok(now), Some(Ok(then))) if now.is_same(&then) => Ok(now),
                _ => Err(Denied),
            }
        };
        let granted =
            grant.and_then(|grant| if self.is_granted(&state.config) { Ok(grant) } else { Err(Denied) });
        let Ok(grant) = granted else {
            tracing::warn!(
                peer = %self.peer, initiator = pending.initiator, user = pending.user,
                "login refused: no row of the target's access list fits"
            );
            return self.machine.refuse_session(LoginStatus::AuthorizationFailure);
        };
        let target = pending.target.as_deref().and_then(|name| state.target(name));
        let luns =
            target.map(|index| state.visible_luns(index, grant.row.as_ref(), peer)).unwrap_or_default();
        let exclusive = luns.iter().map(|seen| seen.lun);
        let claim = Claim {
            initiator: pending.initiator.clone(),
            isid: pending.isid,
            target: pending.target.clone(),
            peer: self.peer,
            peer_key: peer.map(|peer| peer.public_key),
            connection: self.id,
            exclusive: exclusive.filter(|lun| context.luns[*lun].config.exclusive).collect(),
        };
        match context.shared.sessions.claim(claim) {
            Admission::Granted { tsih, nexus, former } => {
                for seen in &luns {
                    let mut unit = context.luns[seen.lun].unit();
                    unit.attach(nexus, former);
                    defects::claim_kept(&mut unit, nexus);
                }
                tracing::info!(
                    peer = %self.peer, initiator = pending.initiator,
                    target_name = pending.target.as_deref().unwrap_or("(discovery)"), tsih,
                    listed_as = peer.map(|peer| peer.name.as_str()), chap_user = pending.user,
                    protection = self.protection_kind(&state.config, pending.user.as_deref()), luns = login::listed(&luns), "logged in"
                );
                self.session = Some(Session {
                    nexus,
                    target,
                    initiator: pending.initiator,
                    user: pending.user,
                    inventory: luns.iter().map(|seen| seen.wire).collect(),
                    luns,
                    grant,
                });
                self.basis = None;
                self.machine.accept_session(tsih);
            }
            Admission::Wait { old } => {
                tracing::info!(peer = %self.peer, initiator = pending.initiator, "session reinstatement");
                self.pending = Some(pending);
                let reason = "replaced by a new session of the same initiator port";
                context.shared.mailboxes[old.worker].send(Mail::Close { connection: old, reason });
            }
            Admission::Busy { holder } => {
                tracing::warn!(peer = %self.peer, initiator = pending.initiator, holder, "LUN is exclusive");
                self.machine.refuse_session(LoginStatus::AuthorizationFailure);
            }
            Admission::OtherKey => {
                tracing::warn!(
                    peer = %self.peer, initiator = pending.initiator,
                    "login refused: its name is in session with another key"
                );
                self.machine.refuse_session(LoginStatus::AuthorizationFailure);
            }
            Admission::Full => self.machine.refuse_session(LoginStatus::ServiceUnavailable),
        }
    }

    fn on_send_targets(&mut self, context: &Context<'_>, request: machine::TextId, scope: &machine::Scope) {
        let session = self.session.as_ref().expect("text comes after the login");
        let state = context.shared.state();
        let config = &state.config;
        let address = login::portal_address(config, self.local);
        let own = session.target.map(|index| config.targets[index].iqn.as_str());
        let claims = Claims {
            initiator: &session.initiator,
            peer: self.proven.as_ref(),
            user: session.user.as_deref(),
        };
        let targets: Vec<_> = login::visible(config, claims)
            .filter(|target| match scope {
                machine::Scope::All => own.is_none() || own == Some(target.iqn.as_str()),
                machine::Scope::This => own == Some(target.iqn.as_str()),
                machine::Scope::Named(name) => target.iqn == name.as_str(),
            })
            .filter_map(|target| {
                let name = IscsiName::parse(&target.iqn).ok()?;
                Some(TargetRecord { name, addresses: address.iter().cloned().collect() })
            })
            .collect();
        self.machine.send_targets(request, &targets);
    }

    fn on_command(&mut self, context: &mut Context<'_>, command: &machine::Command) {
        let session = self.session.as_ref().expect("commands come after the login");
        let Some(Seen { lun, rights, .. }) = session.seen(command.lun) else {
            let outcome = scsi::no_unit(&command.cdb, &session.inventory);
            return self.answer(context, command.task, command.cdb, &outcome);
        };
        let unit = &context.luns[lun];
        if unit.is_clearing() {
            return self.answer(context, command.task, command.cdb, &Outcome::busy());
        }
        let step = match unit.working_unit() {
            Some(mut working) => working.command(session.nexus, rights, &command.cdb, &session.inventory),
            None => {
                let outcome = Outcome::check(Sense::INTERNAL);
                return self.answer(context, command.task, command.cdb, &outcome);
            }
        };
        self.place(command.task, Task::new(lun, command.cdb));
        self.on_step(context, command.task, step, Some(command));
    }

    fn place(&mut self, id: TaskId, task: Task) {
        if self.tasks.len() <= id.index() {
            self.tasks.resize_with(id.index() + 1, || None);
        }
        debug_assert!(self.tasks[id.index()].is_none(), "a slot is used again only after its end");
        self.tasks[id.index()] = Some(task);
    }

    /// `command` when this is the first step, before any data-out.
    fn on_step(
        &mut self,
        context: &mut Context<'_>,
        id: TaskId,
        step: Step,
        command: Option<&machine::Command>,
    ) {
        let task = self.tasks[id.index()].as_mut().expect("a task under way");
        match step {
            Step::Done(outcome) => self.finish(context, id, &outcome),
            Step::Collect { list_bytes, bytes } => {
                task.list_bytes = list_bytes;
                if command.map_or(0, data_out_offered) < list_bytes {
                    return self.misfit(context, id, list_bytes.into());
                }
                self.collect(context, id, bytes);
            }
            Step::Copy(list) => self.copy(context, id, list),
            Step::Media(media) => {
                let session = self.session.as_ref().expect("logged in");
                let lun = &context.luns[task.lun];
                if media.writes() {
                    lun.note_writer(session.nexus, &session.initiator);
                }
                let out = media.data_out_bytes(lun.block_size);
                let offered = command.map_or(0, data_out_offered);
                if command.is_some() && !media.accepts_data_out(u64::from(offered), lun.block_size) {
                    return self.misfit(context, id, out);
                }
                task.media = Some(media);
                let wanted = out.min(u64::from(offered)) as u32;
                if command.is_some() && wanted > 0 {
                    self.collect(context, id, wanted);
                } else {
                    self.start(context, id);
                }
            }
        }
    }

    /// Ends a command whose data-out has a length that cannot serve. The residual says by how much it differs from `needed`.
    fn misfit(&mut self, context: &mut Context<'_>, id: TaskId, needed: u64) {
        let lun = self.tasks[id.index()].as_ref().expect("a task under way").lun;
        let outcome = context.luns[lun].unit().misfit();
        self.finish_with(id, &outcome, 0, needed);
    }

    /// Takes a buffer and lets the data-out come.
    fn collect(&mut self, context: &mut Context<'_>, id: TaskId, bytes: u32) {
        if bytes > 0 && !self.take_buffer(context.io, id, bytes as usize) {
            return self.finish(context, id, &Outcome::task_set_full());
        }
        self.machine.want_data_out(id, bytes);
    }

    /// Gives a task a buffer. False: there is no memory for it now.
    fn take_buffer(&mut self, io: &Io, id: TaskId, bytes: usize) -> bool {
        if self.charged + bytes > SESSION_BYTES_MAX {
            return false;
        }
        let reused = mutant::is_on(Mutant::ReuseSlot).then(|| self.buffer_in_use(bytes)).flatten();
        let Some(buffer) = reused.or_else(|| io.pool().take(bytes)) else { return false };
        let task = self.tasks[id.index()].as_mut().expect("a task under way");
        task.buffer = Some(buffer);
        task.charged += bytes;
        self.charged += bytes;
        true
    }

    fn on_data_out(&mut self, context: &mut Context<'_>, id: TaskId) {
        let Some(task) = self.tasks[id.index()].as_mut() else { return };
        if !self.stream.is_whole(id) {
            return self.shut("data of a command came without all of its seal");
        }
        if task.media.is_some() {
            return self.start(context, id);
        }
        let session = self.session.as_ref().expect("logged in");
        let Some(rights) = session.rights(task.lun) else {
            // A reload has taken the unit away since the command came.
            let outcome = scsi::no_unit(&task.cdb, &session.inventory);
            return self.finish(context, id, &outcome);
        };
        let list = task.buffer.take();
        let bytes = list.as_ref().map(Span::as_slice).unwrap_or_default();
        let step = context.luns[task.lun].unit().parameters(session.nexus, rights, &task.cdb, bytes);
        self.on_step(context, id, step, None);
    }

    /// The storage's turn.
    fn start(&mut self, context: &mut Context<'_>, id: TaskId) {
        let task = self.tasks[id.index()].as_mut().expect("a task under way");
        let media = task.media.as_ref().expect("set by the caller");
        let lun = &context.luns[task.lun];
        if let MediaOp::LbaStatus { descriptors_max } = media.op {
            let unit = &mut *context.units[task.lun];
            let extents = lba_extents(unit, media, lun.block_size, descriptors_max);
            let nexus = self.session.as_ref().expect("logged in").nexus;
            let outcome = lun.unit().lba_status(nexus, media, &extents);
            return self.finish(context, id, &outcome);
        }
        let data_in = media.data_in_bytes(lun.block_size) as usize;
        if data_in == 0 && media.blocks == 0 {
            let media = task.media.take().expect("just looked at");
            return self.finish_media(context, id, &media, Ok(()));
        }
        if matches!(media.op, MediaOp::Read { fua: false }) && data_in <= self.ahead.bytes_max() {
            let extent = Extent { lun: task.lun, lba: media.lba, blocks: media.blocks };
            if let Some(guess) = self.ahead.on_read(extent, lun.changes(), context.io.now()) {
                task.buffer = Some(guess.plain);
                let media = task.media.take().expect("just looked at");
                self.stream.adopt(id, guess.prepared);
                return self.finish_media(context, id, &media, Ok(()));
            }
        }
        // A digest would be computed of bytes that may change until they are sent.
        if matches!(media.op, MediaOp::Read { fua: false }) && !self.machine.receive_digests().data {
            // Beside what is being sent it would no longer fit in the cache. Nobody overtakes those who wait.
            if !self.lent_waiting.is_empty() || self.lent > 0 && self.lent + data_in > LENT_BYTES_MAX {
                return self.lent_waiting.push_back(id);
            }
            let offset = media.lba * u64::from(lun.block_size);
            if let Some(stored) = context.units[task.lun].lend(offset, data_in, self.stream.looks()) {
                (task.buffer, task.lent) = (Some(stored), data_in);
                self.lent += data_in;
                let media = task.media.take().expect("just looked at");
                return self.finish_media(context, id, &media, Ok(()));
            }
        }
        if data_in > 0 && !self.take_buffer(context.io, id, data_in) {
            return self.finish(context, id, &Outcome::task_set_full());
        }
        let task = self.tasks[id.index()].as_mut().expect("a task under way");
        let media = task.media.as_ref().expect("as before");
        let capability = context.units[task.lun].capability();
        let buffer = task.buffer.as_ref();
        match Job::plan(media, buffer, lun.block_size, capability, context.io.pool()) {
            Ok(job) => task.job = Some(job),
            Err(()) => return self.finish(context, id, &Outcome::task_set_full()),
        }
        self.busy += 1;
        self.advance(context, id);
    }

    /// What a task's requests are called at the endpoints.
    pub(super) fn request_id(&self, task: TaskId) -> RequestId {
        u64::from(self.id.slot as u32) << 32 | u64::from(task.0)
    }

    /// Starts READs that waited until less is lent, the oldest first.
    fn start_waiting(&mut self, context: &mut Context<'_>) {
        while self.lent < LENT_BYTES_MAX
            && let Some(id) = self.lent_waiting.pop_front()
        {
            let behind = std::mem::take(&mut self.lent_waiting);
            self.start(context, id);
            let waits_again = self.lent_waiting.pop_front();
            self.lent_waiting = behind;
            if let Some(id) = waits_again {
                return self.lent_waiting.push_front(id);
            }
        }
    }

    /// Submits what the job wants next, or ends the command.
    fn advance(&mut self, context: &mut Context<'_>, id: TaskId) {
        let request = self.request_id(id);
        let task = self.tasks[id.index()].as_mut().expect("a task under way");
        let lun = task.lun;
        match task.job.as_mut().expect("started").next() {
            Next::Wait => {}
            Next::One(kind) => {
                let Some(kind) = self.submit_wrongly(context, id, lun, kind) else { return };
                context.units[lun].submit(context.io, Request { id: request, kind }, context.done);
            }
            Next::Many(kinds) => {
                for kind in kinds {
                    context.units[lun].submit(context.io, Request { id: request, kind }, context.done);
                }
            }
            Next::Done(result) => {
                self.busy -= 1;
                task.job = None;
                if task.media.as_ref().is_some_and(|media| !matches!(media.op, MediaOp::Read { .. })) {
                    context.luns[lun].note_change();
                }
                if self.phase != Phase::Open || !task.groups.is_empty() {
                    return self.machine.abort(id);
                }
                let media = task.media.take().expect("started");
                // A miscompare is an answer that the initiator asked for.
                if let Err(error) = result
                    && !matches!(error, MediaError::Miscompare { .. })
                {
                    let lun = &context.luns[task.lun].config;
                    tracing::warn!(lun = lun.lun, storage = lun.medium.name(), ?error, op = ?media.op, lba = media.lba);
                }
                self.finish_media(context, id, &media, result);
            }
        }
    }

    pub(super) fn on_completion(
        &mut self,
        context: &mut Context<'_>,
        task: u32,
        result: Result<(), IoError>,
    ) {
        if task == AHEAD {
            return self.ahead.on_completion(result.is_ok());
        }
        let Some(Some(found)) = self.tasks.get_mut(task as usize) else { return };
        let Some(job) = found.job.as_mut() else { return };
        job.completed(result);
        if !job.is_outstanding() {
            self.advance(context, TaskId(task));
        }
    }

    fn finish_media(
        &mut self,
        context: &mut Context<'_>,
        id: TaskId,
        media: &Media,
        result: Result<(), MediaError>,
    ) {
        let task = self.tasks[id.index()].as_ref().expect("a task under way");
        let lun: &Lun = &context.luns[task.lun];
        let nexus = self.session.as_ref().expect("logged in").nexus;
        let outcome = lun.unit().finish(nexus, media, result);
        let good = outcome.sense.is_none();
        let data_in = if good { media.data_in_bytes(lun.block_size) } else { 0 };
        let transfer = if good { data_in + media.data_out_bytes(lun.block_size) } else { 0 };
        self.finish_with(id, &outcome, data_in, transfer);
    }

    /// Ends a command with what the device server says.
    pub(super) fn finish(&mut self, context: &mut Context<'_>, id: TaskId, outcome: &Outcome) {
        let task = self.tasks[id.index()].as_ref().expect("a task under way");
        let (mut length, mut transfer) = (0, u64::from(task.list_bytes));
        if !outcome.data.is_empty() {
            if !self.take_buffer(context.io, id, outcome.data.len()) {
                return self.finish_with(id, &Outcome::task_set_full(), 0, 0);
            }
            let buffer = self.tasks[id.index()].as_ref().and_then(|task| task.buffer.as_ref());
            buffer.expect("just taken").fill(0, &outcome.data);
            length = outcome.data.len() as u64;
            transfer = length;
        }
        self.finish_with(id, outcome, length, transfer);
    }

    /// Tells the machine: `data_in` bytes of the task's buffer go to the initiator, `transfer` bytes is what SCSI
    /// moved in whichever direction.
    fn finish_with(&mut self, id: TaskId, outcome: &Outcome, data_in: u64, transfer: u64) {
        let sense = outcome.sense.as_ref().map(Sense::to_bytes).unwrap_or_default();
        let status = outcome.status as u8;
        let data_in = u32::try_from(data_in).expect("bounded by the longest transfer");
        self.tasks[id.index()].as_mut().expect("a task under way").answered = true;
        self.machine.complete(id, machine::Completion { status, sense: &sense, data_in, transfer });
    }

    /// An answer that needs no unit.
    fn answer(&mut self, context: &mut Context<'_>, id: TaskId, cdb: [u8; 16], outcome: &Outcome) {
        self.place(id, Task::new(usize::MAX, cdb));
        self.finish(context, id, outcome);
    }

    fn on_task_done(&mut self, id: TaskId) {
        self.stream.end_task(id);
        // The spans that are still being sent keep the memory; letting go of the groups may answer an abort.
        if let Some(task) = self.tasks.get_mut(id.index()).and_then(Option::take) {
            self.charged -= task.charged;
            self.lent -= task.lent;
            if task.media.is_some() {
                self.lent_waiting.retain(|waiting| *waiting != id);
            }
        }
    }
}

/// A machine that expects a login. `None` when the system has no randomness.
fn new_machine(segment_max: u32, now: Duration) -> Option<machine::Connection> {
    let mut entropy = [0; 32];
    io::entropy(&mut entropy).ok()?;
    let config = machine::Config { tasks_max: COMMANDS_MAX, segment_max, ..machine::Config::default() };
    Some(machine::Connection::new(config, entropy, now))
}

/// What the storage knows of a range, in whole blocks: a block that is partly data is data.
fn lba_extents(unit: &mut dyn Endpoint, media: &Media, block_size: u32, count_max: u32) -> Vec<LbaExtent> {
    let block = u64::from(block_size);
    let (mut at, end) = (media.lba, media.lba + media.blocks);
    let mut extents = Vec::new();
    while at < end && extents.len() < count_max as usize {
        let extent = unit.extent(at * block);
        let (next, mapped) = match extent.data {
            true => (extent.end.div_ceil(block), true),
            false if extent.end / block > at => (extent.end / block, false),
            false => (at + 1, true),
        };
        let next = next.clamp(at + 1, end);
        extents.push(LbaExtent { blocks: next - at, mapped });
        at = next;
    }
    extents
}

fn data_out_offered(command: &machine::Command) -> u32 {
    if command.write { command.expected } else { 0 }
}

fn buffer_of(tasks: &[Option<Task>], id: TaskId) -> Option<Span> {
    tasks.get(id.index())?.as_ref()?.buffer.clone()
}
