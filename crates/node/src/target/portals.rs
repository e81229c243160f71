//! The listening sockets of a thread, and the socket options of accepted connections.
//!
//! Each listener has one accept in flight, whose event goes to [`Portals::on_accepted`]; the worker then calls
//! [`Portals::accept`] again while it serves. After [`Portals::close`] the accepts in flight end and none is started.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use io::{Event, Handle, Io, Item, Listener, Owner, Token};
use socket2::{SockRef, TcpKeepalive};

/// How long a peer may leave data unacknowledged, or not read it, before the kernel drops the connection
/// (`TCP_USER_TIMEOUT`).
const UNREAD_MAX: Duration = Duration::from_secs(30);
/// Keepalive probes: they detect a vanished peer even if no data is sent to it.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
/// Pause of accepting after an error, as when no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Portals {
    owner: Owner,
    /// Key of the first listener's events; those of the others follow.
    key: u32,
    listeners: Vec<Handle>,
}

impl Portals {
    pub(super) fn new(owner: Owner, key: u32, listeners: Vec<Listener>) -> Self {
        let listeners = listeners.into_iter().map(|listener| Rc::new(listener.socket)).collect();
        Self { owner, key, listeners }
    }

    pub(super) fn accept_all(&self, io: &mut Io) {
        for listener in 0..self.listeners.len() {
            self.accept(io, listener);
        }
    }

    pub(super) fn accept(&self, io: &mut Io, listener: usize) {
        io.accept(self.token(listener), &self.listeners[listener]);
    }

    fn token(&self, listener: usize) -> Token {
        Token { owner: self.owner, key: self.key + listener as u32 }
    }

    /// Processes the event of an accept. `Some`: the accepted socket, if any; take it, then accept again.
    pub(super) fn on_accepted(&self, io: &mut Io, listener: usize, event: Event) -> Option<Option<OwnedFd>> {
        if listener >= self.listeners.len() {
            // The event of an accept that was in flight when the server began to drain.
            return None;
        }
        if event.result == 0 && matches!(event.item, Item::None) {
            // The end of a pause.
            return Some(None);
        }
        match event.into_handle() {
            Ok(handle) => Some(Some(Rc::into_inner(handle).expect("a fresh socket has one holder"))),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR)) => {
                Some(None)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections: waiting");
                io.timer(self.token(listener), io.now() + ACCEPT_PAUSE);
                None
            }
        }
    }

    /// Stops accepting; accepts in flight end. Unless `stay`, new connections are refused; otherwise they wait in the
    /// backlog for the process that shares the sockets.
    pub(super) fn close(&mut self, io: &mut Io, stay: bool) {
        for listener in self.listeners.drain(..) {
            if stay {
                io.cancel(&listener);
            } else {
                let _ = SockRef::from(&*listener).shutdown(Shutdown::Both);
            }
        }
    }
}

pub(super) fn tune(socket: &OwnedFd) -> std::io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_tcp_user_timeout(Some(UNREAD_MAX))
}
