//! Starting, draining and ending the whole.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use area::PoolLimits;
use block::{Capability, wait_ready};
use io::{Io, Listener, Thread};

use super::config::{ServeError, ServerConfig, TargetConfig};
use super::copier::Copier;
use super::handshake::Handshakes;
use super::lun::Lun;
use super::mail::{Mail, Mailbox};
use super::refusals::Refusals;
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
    pub(super) config: ServerConfig,
    /// Every logical unit; targets refer by index.
    pub(super) luns: Vec<Lun>,
    /// By target, the indices of its units.
    pub(super) target_luns: Vec<Vec<usize>>,
    pub(super) sessions: Sessions,
    pub(super) handshakes: Handshakes,
    pub(super) refusals: Mutex<Refusals>,
    pub(super) copier: Arc<Copier>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    /// Live connections by worker, to place new ones.
    pub(super) load: Vec<AtomicUsize>,
    pub(super) addresses: Vec<SocketAddr>,
}

impl Shared {
    pub(super) fn target(&self, name: &str) -> Option<(usize, &TargetConfig)> {
        self.config.targets.iter().enumerate().find(|(_, target)| target.iqn == name)
    }

    fn send_all(&self, mail: impl Fn() -> Mail) {
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

/// A running server. Dropping it without [`Server::wait`] leaves its threads running.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<Thread<Result<(), ServeError>>>,
}

impl Server {
    /// Opens portals and logical units, and serves from threads of its own.
    pub fn start(config: ServerConfig) -> Result<Self, ServeError> {
        check(&config)?;
        let (luns, target_luns) = open_luns(&config)?;
        let listeners: Vec<_> = config.listen.iter().map(|at| listen(*at)).collect::<Result<_, _>>()?;
        let addresses = listeners.iter().map(|listener| listener.address).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = config.threads.unwrap_or(cores).max(1);
        let shared = Arc::new(Shared {
            config,
            luns,
            target_luns,
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
            let body = move || work(index, shared, listeners, opened);
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
) -> Result<(), ServeError> {
    let mut alarm = Alarm { shared: Arc::clone(&shared), index, armed: true };
    let (worker, opening) = match Worker::new(index, POOL, shared, listeners) {
        Ok(worker) => (Some(worker), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let _ = opened.send(opening);
    drop(opened);
    let result = worker.map_or(Ok(()), Worker::run);
    alarm.armed = result.is_err();
    result
}

fn check(config: &ServerConfig) -> Result<(), ServeError> {
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

fn open_luns(config: &ServerConfig) -> Result<(Vec<Lun>, Vec<Vec<usize>>), ServeError> {
    let (mut luns, mut target_luns) = (Vec::new(), Vec::new());
    for target in &config.targets {
        let first = luns.len();
        for lun in &target.luns {
            let failed = |cause| ServeError::Lun { target: target.iqn.clone(), lun: lun.lun, cause };
            let capability = capability_of(lun.medium.as_ref()).map_err(failed)?;
            luns.push(Lun::new(target, lun, &capability)?);
        }
        target_luns.push((first..luns.len()).collect());
    }
    Ok((luns, target_luns))
}

/// Opens the storage for a moment, to learn what it is.
fn capability_of(medium: &dyn block::Medium) -> Result<Capability, block::OpenError> {
    let failed = |error: std::io::Error| block::OpenError::Failed(error.to_string());
    let mut io = Io::new(PoolLimits::default()).map_err(failed)?;
    let mut endpoint = medium.attach(&mut io)?;
    wait_ready(&mut io, &mut [&mut *endpoint])?;
    let capability = endpoint.capability().clone();
    block::close_all(&mut io, &mut [&mut *endpoint]);
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
