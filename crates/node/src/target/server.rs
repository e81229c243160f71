//! Starting, draining and ending the whole.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

use area::PoolLimits;
use block::{Capability, wait_ready};
use io::{Io, Listener, Thread};

use super::config::{AclEntry, Peer, ServeError, ServerConfig};
use super::connection::Seen;
use super::copier::Copier;
use super::handshake::Handshakes;
use super::local_user::LocalUsers;
use super::login;
use super::lun::Lun;
use super::mail::{Mail, Mailbox};
use super::refusals::Refusals;
use super::reload::Reloader;
use super::sessions::{SessionStatus, Sessions};
use super::worker::Worker;

/// Connections waiting to be accepted.
const BACKLOG: i32 = 1024;
/// How long a port may still be a dead server's, and how often that is looked at.
const LISTEN_PATIENCE: Duration = Duration::from_secs(1);
const LISTEN_PAUSE: Duration = Duration::from_millis(10);
/// Payload memory of one loop thread.
pub(super) const POOL: PoolLimits = PoolLimits { bytes_max: 1 << 30 };

/// What all threads see.
#[derive(Debug)]
pub(super) struct Shared {
    /// What a reload replaces. Read by logins and reloads, never by a command: sessions keep what they need of it.
    state: RwLock<Arc<State>>,
    /// Units by slot, whatever still holds them: a slot is free when its unit has gone. Locked for the length of a reload.
    pub(super) slots: Mutex<Vec<Weak<Lun>>>,
    /// Who is at the other end of a connection from this host.
    pub(super) local_users: LocalUsers,
    pub(super) sessions: Sessions,
    pub(super) handshakes: Handshakes,
    pub(super) refusals: Mutex<Refusals>,
    pub(super) copier: Arc<Copier>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    /// Live connections by worker, to place new ones.
    pub(super) load: Vec<AtomicUsize>,
    pub(super) addresses: Vec<SocketAddr>,
}

/// What may change while the server runs.
#[derive(Debug)]
pub(super) struct State {
    pub(super) config: ServerConfig,
    /// By target, its units.
    pub(super) luns: Vec<Vec<Arc<Lun>>>,
}

impl State {
    /// The index of a target.
    pub(super) fn target(&self, name: &str) -> Option<usize> {
        self.config.targets.iter().position(|target| target.iqn == name)
    }

    /// What an initiator sees of a target, by the row that decided and its key.
    pub(super) fn visible_luns(
        &self,
        target: usize,
        row: Option<&AclEntry>,
        peer: Option<&Peer>,
    ) -> Vec<Seen> {
        let seen = self.luns[target].iter().filter_map(|lun| {
            let rights = login::rights(row, peer, lun.config.lun)?;
            Some(Seen { wire: lun.wire, lun: lun.slot, rights })
        });
        seen.collect()
    }
}

impl Shared {
    /// What holds now.
    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().expect("no panic while locked"))
    }

    /// This holds from now on.
    pub(super) fn replace_state(&self, state: Arc<State>) {
        *self.state.write().expect("no panic while locked") = state;
    }

    pub(super) fn send_all(&self, mail: impl Fn() -> Mail) {
        for mailbox in &self.mailboxes {
            mailbox.send(mail());
        }
    }
}

/// Controls a running server from any thread.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

impl ServerHandle {
    /// What reloads the configuration, for the thread that calls this. It holds a loop of its own, made now.
    pub fn reloader(&self) -> Result<Reloader, ServeError> {
        Reloader::new(Arc::clone(&self.shared))
    }

    /// No new logins; sessions are asked to log out, their tasks finished and flushed; then the threads end.
    /// At most the configured drain timeout. Calling it again changes nothing.
    pub fn drain(&self) {
        self.shared.send_all(|| Mail::Drain);
    }

    /// Flushes and ends now.
    pub fn stop(&self) {
        self.shared.send_all(|| Mail::Stop);
    }

    /// Live sessions.
    pub fn sessions(&self) -> Vec<SessionStatus> {
        self.shared.sessions.status()
    }
}

/// Binds the thread that calls it to what a server may do once everything is open; see [`Server::start_confined`].
pub type Confine = Arc<dyn Fn() + Send + Sync>;

/// A running server. Dropping it without [`Server::wait`] leaves its threads running.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<Thread<Result<(), ServeError>>>,
}

impl Server {
    /// Opens portals and logical units, and serves from threads of its own.
    pub fn start(config: ServerConfig) -> Result<Self, ServeError> {
        Self::start_threads(config, None)
    }

    /// As [`Self::start`]; each thread calls `confine` when it has its loop and its ways to the storage, and before it
    /// serves. A loop cannot be made later then, so the threads of third-party copies are started at once and stay. The calling
    /// thread confines itself.
    pub fn start_confined(config: ServerConfig, confine: Confine) -> Result<Self, ServeError> {
        Self::start_threads(config, Some(confine))
    }

    fn start_threads(config: ServerConfig, confine: Option<Confine>) -> Result<Self, ServeError> {
        check(&config)?;
        let luns = open_luns(&config)?;
        let slots = luns.iter().flatten().map(Arc::downgrade).collect();
        let listeners: Vec<_> = config.listen.iter().map(|at| listen(*at)).collect::<Result<_, _>>()?;
        let addresses = listeners.iter().map(|listener| listener.address).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = config.threads.unwrap_or(cores).max(1);
        let shared = Arc::new(Shared {
            state: RwLock::new(Arc::new(State { config, luns })),
            slots: Mutex::new(slots),
            local_users: LocalUsers::open(),
            sessions: Sessions::default(),
            handshakes: Handshakes::default(),
            refusals: Mutex::default(),
            copier: Arc::default(),
            mailboxes: (0..workers).map(|_| Arc::new(Mailbox::new())).collect(),
            load: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            addresses,
        });
        let (opened, openings) = mpsc::channel();
        let mut listeners = Some(listeners);
        let mut server = Self { shared, threads: Vec::with_capacity(workers) };
        for index in 0..workers {
            let (shared, opened) = (Arc::clone(&server.shared), opened.clone());
            let listeners = listeners.take().unwrap_or_default();
            let confine = confine.clone();
            let body = move || work(index, shared, listeners, opened, confine);
            let thread = io::spawn(&format!("target-{index}"), body);
            match thread {
                Ok(thread) => server.threads.push(thread),
                Err(error) => return Err(server.abandon(ServeError::Loop(error))),
            }
        }
        drop(opened);
        let mut open = 0;
        for opening in openings {
            match opening {
                Ok(()) => open += 1,
                Err(error) => return Err(server.abandon(error)),
            }
        }
        if open < workers {
            return Err(server.abandon(ServeError::Panicked));
        }
        if let Some(confine) = confine
            && let Err(error) = server.shared.copier.start(&confine)
        {
            return Err(server.abandon(ServeError::Loop(error)));
        }
        Ok(server)
    }

    /// Ends the threads that did start.
    fn abandon(self, error: ServeError) -> ServeError {
        self.shared.send_all(|| Mail::Stop);
        // It is the first error that counts.
        let _ = self.wait();
        error
    }

    /// The addresses served, with the ports that were chosen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.addresses.clone()
    }

    /// To drain, stop or ask from elsewhere.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { shared: Arc::clone(&self.shared) }
    }

    /// Waits until the server has ended. The first error of a thread, if any: it makes the others stop.
    pub fn wait(self) -> Result<(), ServeError> {
        let mut result = Ok(());
        for thread in self.threads {
            let ended = thread.join().unwrap_or(Err(ServeError::Panicked));
            result = result.and(ended);
        }
        result
    }
}

/// Stops the whole server when its thread ends other than well: connections are placed on any thread.
struct Alarm {
    shared: Arc<Shared>,
    index: usize,
    armed: bool,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if self.armed {
            self.shared.mailboxes[self.index].close();
            self.shared.send_all(|| Mail::Stop);
        }
    }
}

/// A loop thread, from opening to end. Says once whether it has opened.
fn work(
    index: usize,
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    opened: mpsc::Sender<Result<(), ServeError>>,
    confine: Option<Confine>,
) -> Result<(), ServeError> {
    let mut alarm = Alarm { shared: Arc::clone(&shared), index, armed: true };
    let (worker, opening) = match Worker::new(index, POOL, shared, listeners) {
        Ok(worker) => (Some(worker), Ok(())),
        Err(error) => (None, Err(error)),
    };
    if let Some(confine) = confine.filter(|_| worker.is_some()) {
        confine();
    }
    let _ = opened.send(opening);
    drop(opened);
    let result = worker.map_or(Ok(()), Worker::run);
    alarm.armed = result.is_err();
    result
}

pub(super) fn check(config: &ServerConfig) -> Result<(), ServeError> {
    let wrong = |text: String| Err(ServeError::Config(text));
    if config.listen.is_empty() || config.targets.is_empty() {
        return wrong("a portal and a target are needed".into());
    }
    if config.tls.is_some() && config.sealing.is_some() {
        return wrong("sessions are sealed or go through TLS, not both".into());
    }
    let mut identities: Vec<(u64, String)> = Vec::new();
    for (index, target) in config.targets.iter().enumerate() {
        if config.targets[..index].iter().any(|other| other.iqn == target.iqn) {
            return wrong(format!("target {} is configured twice", target.iqn));
        }
        if target.luns.is_empty() {
            return wrong(format!("target {} has no LUN", target.iqn));
        }
        for (at, lun) in target.luns.iter().enumerate() {
            if target.luns[..at].iter().any(|other| other.lun == lun.lun) {
                return wrong(format!("LUN {} of {} is configured twice", lun.lun, target.iqn));
            }
            let name = format!("LUN {} of {}", lun.lun, target.iqn);
            if let Some((_, other)) = identities.iter().find(|(naa, _)| *naa == lun.naa) {
                return wrong(format!("{name} and {other} have one identity (NAA {:016x})", lun.naa));
            }
            identities.push((lun.naa, name));
        }
    }
    Ok(())
}

fn open_luns(config: &ServerConfig) -> Result<Vec<Vec<Arc<Lun>>>, ServeError> {
    let mut io = Io::new(PoolLimits::default()).map_err(ServeError::Loop)?;
    let (mut luns, mut slot) = (Vec::new(), 0);
    for target in &config.targets {
        let mut own = Vec::new();
        for lun in &target.luns {
            let failed = |cause| ServeError::Lun { target: target.iqn.clone(), lun: lun.lun, cause };
            let capability = capability_of(&mut io, lun.medium.as_ref()).map_err(failed)?;
            own.push(Arc::new(Lun::new(target, lun, &capability, slot)?));
            slot += 1;
        }
        luns.push(own);
    }
    Ok(luns)
}

/// Opens the storage for a moment, to learn what it is.
pub(super) fn capability_of(io: &mut Io, medium: &dyn block::Medium) -> Result<Capability, block::OpenError> {
    let mut endpoint = medium.attach(io)?;
    wait_ready(io, &mut [&mut *endpoint])?;
    let capability = endpoint.capability().clone();
    block::close_all(io, &mut [&mut *endpoint]);
    Ok(capability)
}

/// A server that was killed lets go of its port a moment later than of its life: the kernel ends its ring first.
fn listen(address: SocketAddr) -> Result<Listener, ServeError> {
    let until = Instant::now() + LISTEN_PATIENCE;
    loop {
        match io::listen(address, BACKLOG) {
            Err(cause) if cause.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(LISTEN_PAUSE);
            }
            result => return result.map_err(|cause| ServeError::Listen { address, cause }),
        }
    }
}

/// The worker with the fewest connections.
pub(super) fn least_loaded(shared: &Shared) -> usize {
    let load = shared.load.iter().map(|count| count.load(Ordering::Relaxed));
    load.enumerate().min_by_key(|(_, count)| *count).map_or(0, |(index, _)| index)
}
