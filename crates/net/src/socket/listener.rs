//! A port that accepts connections.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use inet::Endpoint;

use super::stack::{Shared, Stack, errno};
use super::state::{Id, local_of};
use super::stream::TcpStream;
use crate::slot::{Request, request};
use crate::wait::now;

/// Connections that are open and not accepted.
const BACKLOG: u32 = 128;

/// Accepts TCP connections, as `std::net::TcpListener`.
pub struct TcpListener {
    shared: Arc<Shared>,
    id: Id,
    local: SocketAddr,
    is_nonblocking: AtomicBool,
}

impl TcpListener {
    /// At the first of the addresses that can be had.
    pub fn bind(stack: &Stack, at: impl ToSocketAddrs) -> io::Result<Self> {
        let mut last = io::ErrorKind::InvalidInput.into();
        for local in at.to_socket_addrs()? {
            match Self::open(stack, local) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn open(stack: &Stack, local: SocketAddr) -> io::Result<Self> {
        let shared = &stack.0;
        let socket = shared.ask(Request { code: request::SOCKET, ..Request::default() }, 0)?;
        let id = Id { number: socket.socket, generation: socket.generation };
        let asked = |code, value| Request {
            code,
            socket: id.number,
            generation: id.generation,
            value,
            ..Request::default()
        };
        let Endpoint { address, port } = local.into();
        let opened = shared
            .ask(Request { address: address.0, port, ..asked(request::BIND, 0) }, 0)
            .and_then(|_| shared.ask(asked(request::LISTEN, BACKLOG), 0));
        match opened {
            Ok(answer) => {
                let mut state = shared.lock();
                state.add_listener(id);
                shared.publish(&mut state);
                drop(state);
                let (shared, local) = (Arc::clone(shared), local_of(&answer));
                Ok(Self { shared, id, local, is_nonblocking: AtomicBool::new(false) })
            }
            Err(error) => {
                let _ = shared.ask(asked(request::CLOSE, 0), 0);
                Err(error)
            }
        }
    }

    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let until = self.is_nonblocking.load(Ordering::Relaxed).then(now);
        let (id, peer) = self
            .shared
            .wait(until, None, |state| state.accepted(self.id).map(|accepted| accepted.map_err(errno)))?;
        Ok((TcpStream::new(Arc::clone(&self.shared), id), peer))
    }

    /// Connections without end; each may be an error.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    pub fn set_nonblocking(&self, is_on: bool) -> io::Result<()> {
        self.is_nonblocking.store(is_on, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.close(self.id);
        self.shared.publish(&mut state);
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpListener({})", self.local)
    }
}
