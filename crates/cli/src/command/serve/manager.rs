//! The service manager (systemd): readiness, watchdog, and listening sockets that outlive this process.
//!
//! At the start the sockets come as descriptors from 3 on (sd_listen_fds(3)): those of a socket unit, or those that an
//! earlier process has stored. When ready, this process stores its own (`FDSTORE=1`): if it is restarted, connections
//! wait in their backlog for its successor.

use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::Duration;

use io::Listener;
use node::target::{FormerPort, Inherited, ServerHandle};
use rustix::io::{FdFlags, fcntl_setfd};
use sd_notify::NotifyState;

use super::heritage;

const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
const SOCKET_NAME: &str = "hikyaku-listen";
const PORTS_NAME: &str = "hikyaku-ports";

/// What the service manager has passed.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) inherited: Inherited,
    /// Addresses of the sockets that only an earlier process has stored; the others are a socket unit's.
    stored: Vec<SocketAddr>,
}

impl Passed {
    /// The addresses of socket units: where to listen if the configuration does not say.
    pub(super) fn activated(&self) -> Vec<SocketAddr> {
        let addresses = self.inherited.listeners.iter().map(|listener| listener.address);
        addresses.filter(|address| !self.stored.contains(address)).collect()
    }

    /// Leaves the sockets for `listen`. A stored socket that is no longer configured stops listening, and the service
    /// manager, which polls it, drops it from the store: connections to it would wait for an accept that never comes,
    /// and another socket with its port could not be bound.
    pub(super) fn keep_only(&mut self, listen: &[SocketAddr]) {
        self.inherited.listeners.retain(|listener| {
            let (address, is_used) = (listener.address, listen.contains(&listener.address));
            if !is_used && self.stored.contains(&address) {
                tracing::info!("no longer listening on {address}: listen does not name it now");
                let _ = rustix::net::shutdown(&listener.socket, rustix::net::Shutdown::Both);
            } else if !is_used {
                tracing::warn!(
                    "the socket {address} of the service manager is not used: listen does not name it"
                );
            }
            is_used
        });
    }

    fn add(&mut self, listener: Listener, name: &str) {
        // What this process stores of a socket unit comes a second time, behind the unit's own.
        if self.inherited.listeners.iter().any(|known| known.address == listener.address) {
            return;
        }
        if name == SOCKET_NAME {
            self.stored.push(listener.address);
        }
        self.inherited.listeners.push(listener);
    }
}

/// The descriptors that the service manager has passed. Called once, before any thread is started.
pub(super) fn passed() -> Passed {
    let mut passed = Passed::default();
    let descriptors = match sd_notify::listen_fds_with_names() {
        Ok(descriptors) => descriptors,
        Err(error) => {
            tracing::warn!("LISTEN_FDS of the service manager: {error}");
            return passed;
        }
    };
    for (number, name) in descriptors {
        // SAFETY: sd_listen_fds(3): the descriptors are open and belong to this process, and this is the only call.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        if fcntl_setfd(&descriptor, FdFlags::CLOEXEC).is_err() {
            // Not an open descriptor: it must not be closed.
            std::mem::forget(descriptor);
            continue;
        }
        if name == PORTS_NAME {
            notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(PORTS_NAME)]);
            match heritage::take(descriptor) {
                Ok(ports) => passed.inherited.ports = ports,
                Err(error) => tracing::warn!("the ports of the server before are not used: {error}"),
            }
            continue;
        }
        match io::adopt(descriptor) {
            Some(listener) => passed.add(listener, &name),
            None => tracing::warn!("descriptor {number} of the service manager is no listening TCP socket"),
        }
    }
    passed
}

/// Whether a service manager waits for notifications.
pub(super) fn is_there() -> bool {
    std::env::var_os(NOTIFY_SOCKET).is_some_and(|path| !path.is_empty())
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

/// Stores the listening sockets with the service manager. True: it keeps them beyond this process.
pub(super) fn store(sockets: &[OwnedFd]) -> bool {
    // Without `FileDescriptorStoreMax=` the manager closes what it gets, and new connections would be refused. It sets this
    // variable since version 254; for an earlier one the unit does.
    let max = std::env::var("FDSTORE").ok().and_then(|max| max.parse::<usize>().ok());
    is_there() && max.is_some_and(|max| max > sockets.len()) && keep(SOCKET_NAME, sockets)
}

/// Stores the ports of this server, which has ended and flushed its storage.
pub(super) fn store_ports(file: OwnedFd, ports: &[FormerPort]) {
    match heritage::write(file, ports) {
        Ok(file) => drop(keep(PORTS_NAME, &[file])),
        Err(error) => tracing::warn!("initiators will report lost caches: {error}"),
    }
}

fn keep(name: &str, descriptors: &[OwnedFd]) -> bool {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let states = [NotifyState::FdStore, NotifyState::FdName(name)];
    let stored = sd_notify::notify_with_fds(&states, &descriptors);
    if let Err(error) = &stored {
        tracing::warn!("the service manager does not keep {name}: {error}");
    }
    stored.is_ok()
}

pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Reports that every thread of the server answers, twice in each interval of `WatchdogSec=`, until the process ends.
pub(super) fn watch(handle: &ServerHandle) {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    let step = (interval / 2).max(Duration::from_millis(1));
    loop {
        if handle.is_responsive(step) {
            notify(&[NotifyState::Watchdog]);
        } else {
            tracing::error!("a thread of the server has not answered for {} ms", step.as_millis());
        }
        std::thread::sleep(step);
    }
}
