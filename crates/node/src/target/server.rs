//! Start, drain and end of a server.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use area::PoolLimits;
use io::{Io, Listener, Thread};
use seal::PublicKey;

use super::config::{Confine, NextIdentity, ServeError, ServerConfig, check};
use super::lun::{Lun, LunState, LunStatus, capability_of};
use super::mail::Mail;
use super::reload::Reloader;
use super::sessions::{FormerPort, SessionStatus};
use super::shared::{POOL, Shared};
use super::state::State;
use super::worker::Worker;
use crate::SealPolicy;

/// Backlog of a listening socket, in connections.
const BACKLOG: i32 = 1024;
/// How long a port may remain in use by a dead server, and the interval of retries.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(1);
const LISTEN_PAUSE: Duration = Duration::from_millis(10);

/// What an earlier process leaves to this one.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Listening sockets: those with a configured address are used, the others closed.
    pub listeners: Vec<Listener>,
    pub ports: Vec<FormerPort>,
}

/// A server at one moment.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    pub addresses: Vec<SocketAddr>,
    pub sessions: Vec<SessionStatus>,
    /// The units of all targets.
    pub luns: Vec<LunStatus>,
    /// Live connections, logged in or not.
    pub connections: usize,
    /// Connections that came to no session since the start.
    pub refused: u64,
    pub sealing: SealPolicy,
    /// The static key of sealed sessions.
    pub key: Option<PublicKey>,
    pub next_key: Option<Arc<NextIdentity>>,
    pub draining: bool,
}

#[derive(Clone, Debug)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

impl ServerHandle {
    /// A reloader of the configuration, for use by the calling thread. It has its own loop, created now.
    pub fn reloader(&self) -> Result<Reloader, ServeError> {
        Reloader::new(Arc::clone(&self.shared))
    }

    /// Drains the server: no new logins; sessions are requested to log out, their tasks are finished and flushed; then
    /// the threads end. Takes at most the configured drain timeout, plus the time for outstanding I/O and the last
    /// flush. Further calls have no effect.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        self.shared.send_all(|| Mail::Drain);
    }

    /// The listening sockets are kept by another process, which will serve after this one: a drain leaves them open, so
    /// that new connections wait in their backlog, and gives sessions less time to log out.
    pub fn hand_over(&self) {
        self.shared.set_hand_over();
    }

    /// The initiator ports for the process that serves next. Only after [`Server::wait`] has returned without an error,
    /// which means that all storage is flushed.
    pub fn former_ports(&self) -> Vec<FormerPort> {
        let state = self.shared.state();
        let units = |port: &FormerPort, nexus| {
            let target = state.target(&port.target);
            let luns = target.map(|index| &state.luns[index][..]).unwrap_or_default();
            let recallable = luns.iter().filter(|lun| {
                lun.status(&port.target).state == LunState::Ready && lun.unit().is_recallable(nexus)
            });
            recallable.map(|lun| lun.former_unit()).collect::<Vec<_>>()
        };
        let ports = self.shared.sessions.former().into_iter();
        let ports = ports.map(|(port, nexus)| FormerPort { units: units(&port, nexus), ..port });
        ports.filter(|port| !port.units.is_empty()).collect()
    }

    /// Whether every thread answers within `timeout`.
    pub fn is_responsive(&self, timeout: Duration) -> bool {
        let (answer, answers) = mpsc::channel();
        self.shared.send_all(|| Mail::Probe { answer: answer.clone() });
        drop(answer);
        let until = Instant::now() + timeout;
        let answered = |()| answers.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok();
        self.shared.mailboxes.iter().map(|_| ()).all(answered)
    }

    /// Flushes and ends now, without waiting for logouts.
    pub fn stop(&self) {
        self.shared.send_all(|| Mail::Stop);
    }

    pub fn sessions(&self) -> Vec<SessionStatus> {
        self.shared.sessions.status()
    }

    pub fn status(&self) -> ServerStatus {
        let state = self.shared.state();
        let targets = state.config.targets.iter().zip(&state.luns);
        let sealing = state.config.sealing.as_ref();
        ServerStatus {
            addresses: self.shared.addresses.clone(),
            sessions: self.sessions(),
            luns: targets.flat_map(|(target, luns)| luns.iter().map(|lun| lun.status(&target.iqn))).collect(),
            connections: self.shared.load.iter().map(|count| count.load(Ordering::Relaxed)).sum(),
            refused: self.shared.refusals.total(),
            sealing: state.config.seal_policy(),
            key: sealing.map(|sealing| sealing.identity.public()),
            next_key: sealing.and_then(|sealing| sealing.next.clone()),
            draining: self.shared.draining.load(Ordering::Relaxed),
        }
    }

    /// Closes the connection of a session. Its initiator may log in again. False: there is no such session.
    pub fn end_session(&self, tsih: u16) -> bool {
        let Some(connection) = self.shared.sessions.connection_of(tsih) else { return false };
        let reason = "ended by the operator";
        self.shared.mailboxes[connection.worker].send(Mail::Close { connection, reason });
        true
    }
}

/// A running server. Dropping it without [`Server::wait`] leaves its threads running.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<Thread<Result<(), ServeError>>>,
    /// Duplicates of the listening sockets.
    sockets: Vec<OwnedFd>,
}

impl Server {
    pub fn start(config: ServerConfig) -> Result<Self, ServeError> {
        Self::start_with(config, None, Inherited::default())
    }

    /// As [`Self::start`]. With `confine`, each thread calls it after it has created its loop and opened its storage, and
    /// before it serves; since no loop can be created later, the threads of third-party copies start at once and stay.
    /// The calling thread must confine itself.
    pub fn start_with(
        config: ServerConfig,
        confine: Option<Confine>,
        inherited: Inherited,
    ) -> Result<Self, ServeError> {
        let Inherited { listeners: mut inherited, ports } = inherited;
        check(&config)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = config.threads.unwrap_or(cores).max(1);
        let luns = open_luns(&config, workers)?;
        let listeners: Vec<Listener> = config
            .listen
            .iter()
            .map(|at| match inherited.iter().position(|listener| listener.address == *at) {
                Some(index) => Ok(inherited.swap_remove(index)),
                None => listen(*at),
            })
            .collect::<Result<_, _>>()?;
        drop(inherited);
        let sockets: Result<Vec<_>, _> =
            listeners.iter().map(|listener| listener.socket.try_clone()).collect();
        let sockets = sockets.map_err(ServeError::Loop)?;
        let addresses = listeners.iter().map(|listener| listener.address).collect();
        let shared = Arc::new(Shared::new(State { config, luns }, addresses, workers));
        recall(&shared, &ports);
        let (opened, openings) = mpsc::channel();
        let mut listeners = Some(listeners);
        let mut server = Self { shared, threads: Vec::with_capacity(workers), sockets };
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

    fn abandon(self, error: ServeError) -> ServeError {
        self.shared.send_all(|| Mail::Stop);
        // The first error is the one to report.
        let _ = self.wait();
        error
    }

    /// The listening addresses, with the actual ports.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.addresses.clone()
    }

    /// The listening sockets, for a process that keeps them beyond this one's end.
    pub fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    pub fn handle(&self) -> ServerHandle {
        ServerHandle { shared: Arc::clone(&self.shared) }
    }

    /// Waits until the server has ended. Returns the first error of a thread, which also stops the others.
    pub fn wait(self) -> Result<(), ServeError> {
        let mut result = Ok(());
        for thread in self.threads {
            let ended = thread.join().unwrap_or(Err(ServeError::Panicked));
            result = result.and(ended);
        }
        result
    }
}

/// Stops the whole server when its thread ends by an error or a panic, because connections are placed on any thread.
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

/// A loop thread, from opening to end. Reports once whether it has opened.
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

fn open_luns(config: &ServerConfig, workers: usize) -> Result<Vec<Vec<Arc<Lun>>>, ServeError> {
    let mut io = Io::new(PoolLimits::default()).map_err(ServeError::Loop)?;
    let (mut luns, mut slot) = (Vec::new(), 0);
    for target in &config.targets {
        let mut own = Vec::new();
        for lun in &target.luns {
            let failed = |cause| ServeError::Lun { target: target.iqn.clone(), lun: lun.lun, cause };
            let capability = capability_of(&mut io, lun.medium.as_ref()).map_err(failed)?;
            own.push(Arc::new(Lun::new(target, lun, &capability, slot, workers)?));
            slot += 1;
        }
        luns.push(own);
    }
    Ok(luns)
}

/// Remembers the ports of an earlier process at the units that are still the same.
fn recall(shared: &Shared, ports: &[FormerPort]) {
    let state = shared.state();
    for port in ports {
        let nexus = shared.sessions.recall(port);
        let Some(target) = state.target(&port.target) else { continue };
        for lun in state.luns[target].iter().filter(|lun| port.units.contains(&lun.former_unit())) {
            lun.unit().recall(nexus);
        }
    }
}

/// Retries if the address is in use: the kernel releases the port of a killed server only after its ring has ended.
fn listen(address: SocketAddr) -> Result<Listener, ServeError> {
    let until = Instant::now() + LISTEN_TIMEOUT;
    loop {
        match io::listen(address, BACKLOG) {
            Err(cause) if cause.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(LISTEN_PAUSE);
            }
            result => return result.map_err(|cause| ServeError::Listen { address, cause }),
        }
    }
}
