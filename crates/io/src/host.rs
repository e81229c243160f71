//! Services of the operating system that drivers use outside of a loop: randomness, creation of sockets, threads. On a
//! thread that has entered a [`World`] all of them, and the back end of its loops, come from that world; thus the
//! simulator runs drivers unchanged. Otherwise the cost is one access to a thread-local.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::{Backend, Path};

/// A simulated operating system. Its descriptors are real ones that serve as names: system calls may duplicate them,
/// shut them down and close them, and the world must detect that itself.
pub trait World: Send + Sync {
    fn backend(&self) -> io::Result<Box<dyn Backend>>;
    fn entropy(&self, bytes: &mut [u8]);
    fn socket(&self) -> io::Result<OwnedFd>;
    /// Creates a socket that listens on `address`; returns it with its actual address.
    fn listen(&self, address: SocketAddr) -> io::Result<Listener>;
    /// Addresses of a connected socket: the peer's, then its own.
    fn addresses(&self, socket: RawFd) -> io::Result<(SocketAddr, SocketAddr)>;
    /// As [`path`].
    fn path(&self, socket: RawFd) -> Option<Path> {
        let _ = socket;
        None
    }
    /// Sets the congestion control of a socket that is not connected yet.
    fn set_congestion_control(&self, socket: RawFd, name: &str) -> io::Result<()> {
        let _ = (socket, name);
        Ok(())
    }
    /// Starts a thread that has entered this world; returns when that thread first waits in a loop, or has ended. The
    /// result is the id for [`World::join`].
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<u64>;
    fn join(&self, thread: u64);
}

thread_local! {
    static WORLD: RefCell<Option<Arc<dyn World>>> = const { RefCell::new(None) };
}

/// Makes the calling thread enter `world`, or the real operating system (`None`).
#[doc(hidden)]
pub fn enter(world: Option<Arc<dyn World>>) {
    WORLD.set(world);
}

pub(crate) fn world() -> Option<Arc<dyn World>> {
    WORLD.with_borrow(Clone::clone)
}

pub fn entropy(bytes: &mut [u8]) -> io::Result<()> {
    match world() {
        Some(world) => {
            world.entropy(bytes);
            Ok(())
        }
        None => getrandom::fill(bytes).map_err(io::Error::other),
    }
}

/// Creates a stream socket of the family of `address`, to connect, with `TCP_NODELAY` and, where this process has
/// CAP_NET_ADMIN, a receive window for a distance; see [`settle`]. `congestion`: its congestion control; `None`: the host's.
pub fn socket(address: SocketAddr, congestion: Option<&str>) -> io::Result<OwnedFd> {
    if let Some(world) = world() {
        let socket = world.socket()?;
        congestion.map_or(Ok(()), |name| world.set_congestion_control(socket.as_raw_fd(), name))?;
        return Ok(socket);
    }
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    let socket = socket.into();
    match congestion {
        Some(name) => crate::path::set_congestion_control(&socket, name)?,
        None => crate::path::begin_unpaced(&socket),
    }
    crate::path::widen_window(&socket);
    crate::path::retransmit_often(&socket);
    Ok(socket)
}

/// To be called when a socket of [`socket`], or of a [`Listener`], is connected: takes back a receive window that the
/// round trip does not need, and gives the host's congestion control to a connection that leaves the host, unless the user has
/// named one (`is_chosen`).
pub fn settle(socket: &OwnedFd, is_chosen: bool) {
    if world().is_none() {
        let _ = crate::path::settle(socket);
        if !is_chosen {
            crate::path::settle_pace(socket);
        }
    }
}

#[derive(Debug)]
pub struct Listener {
    pub socket: OwnedFd,
    pub address: SocketAddr,
}

/// Listens on `address`; the kernel queues up to `backlog` connections for accept.
pub fn listen(address: SocketAddr, backlog: i32) -> io::Result<Listener> {
    if let Some(world) = world() {
        return world.listen(address);
    }
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    let address = internet(&socket.local_addr()?)?;
    let socket = socket.into();
    crate::path::reach_far(&socket);
    Ok(Listener { socket, address })
}

/// Takes a listening TCP socket that another process has created. `None`: it is another kind of descriptor.
pub fn adopt(socket: OwnedFd) -> Option<Listener> {
    let (is_listening, address) = {
        let socket = SockRef::from(&socket);
        (socket.is_listener().ok()?, internet(&socket.local_addr().ok()?).ok()?)
    };
    if !is_listening {
        return None;
    }
    crate::path::reach_far(&socket);
    Some(Listener { socket, address })
}

pub fn addresses(socket: &OwnedFd) -> io::Result<(SocketAddr, SocketAddr)> {
    if let Some(world) = world() {
        return world.addresses(socket.as_raw_fd());
    }
    let socket = SockRef::from(socket);
    Ok((internet(&socket.peer_addr()?)?, internet(&socket.local_addr()?)?))
}

/// What a driver shows of the connection that it has at present, for an observer on the same thread. A driver with
/// successive connections has one tap. In a simulated world, whose sockets have no state in the kernel, it shows no socket.
#[derive(Clone, Debug, Default)]
pub struct Tap(Rc<Tapped>);

#[derive(Debug, Default)]
struct Tapped {
    socket: RefCell<Weak<OwnedFd>>,
    outstanding: Cell<u32>,
}

impl Tap {
    /// A new connection begins: nothing is outstanding on it.
    pub fn begin(&self, socket: &crate::Handle) {
        self.0.outstanding.set(0);
        if world().is_none() {
            *self.0.socket.borrow_mut() = Rc::downgrade(socket);
        }
    }

    pub fn set_outstanding(&self, commands: u32) {
        self.0.outstanding.set(commands);
    }

    /// Commands that the other end has not answered.
    pub fn outstanding(&self) -> u32 {
        self.0.outstanding.get()
    }

    /// The socket; `None` without a connection. To be dropped before the driver runs again.
    pub fn socket(&self) -> Option<crate::Handle> {
        self.0.socket.borrow().upgrade()
    }
}

/// The path of a connected TCP socket. `None`: unknown, as within a [`World`] without one.
pub fn path(socket: &OwnedFd) -> Option<Path> {
    match world() {
        Some(world) => world.path(socket.as_raw_fd()),
        None => crate::path::of(socket),
    }
}

/// Whether [`socket`] can be given this congestion control here. The error lists those that it can be given.
pub fn check_congestion_control(name: &str) -> io::Result<()> {
    socket(SocketAddr::from(([127, 0, 0, 1], 0)), Some(name)).map(drop)
}

/// Name of the congestion control of a TCP socket; `None` within a [`World`].
pub fn congestion_control(socket: &OwnedFd) -> Option<String> {
    match world() {
        Some(_) => None,
        None => crate::path::congestion_control(socket),
    }
}

/// Lets a TCP socket that sends by CUBIC or Reno go on with BBR. False: it sends by another one, or the kernel has no BBR,
/// or reserves it for root; within a [`World`] always.
pub fn prefer_bbr(socket: &OwnedFd) -> bool {
    world().is_none() && crate::path::prefer_bbr(socket)
}

/// Whether a connected TCP socket may send the pages of files by reference, and does not block from now on. False: it sends
/// by BBR, whose pace is a timer for each send; or within a [`World`].
pub fn send_by_reference(socket: &OwnedFd) -> bool {
    world().is_none() && crate::path::send_by_reference(socket)
}

/// Lets the send buffer of a TCP socket hold `bytes`, as the kernel counts them, of which little waits for the congestion
/// window. Fails without CAP_NET_ADMIN; within a [`World`] nothing happens.
pub fn force_send_buffer(socket: &OwnedFd, bytes: u64) -> io::Result<()> {
    match world() {
        Some(_) => Ok(()),
        None => crate::path::force_buffer(socket, bytes),
    }
}

fn internet(address: &socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

#[derive(Debug)]
pub struct Thread<T>(Place<T>);

#[derive(Debug)]
enum Place<T> {
    Real(JoinHandle<T>),
    World { id: u64, result: Arc<Mutex<Option<std::thread::Result<T>>>> },
}

/// Starts a thread, in the world of the caller.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Thread<T>> {
    let Some(world) = world() else {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        return Ok(Thread(Place::Real(thread)));
    };
    let result = Arc::new(Mutex::new(None));
    let ended = Arc::clone(&result);
    let body = move || {
        let outcome = catch_unwind(AssertUnwindSafe(body));
        *ended.lock().expect("no panic while locked") = Some(outcome);
    };
    let id = world.spawn(name, Box::new(body))?;
    Ok(Thread(Place::World { id, result }))
}

impl<T> Thread<T> {
    /// Waits for the end of the thread, as [`JoinHandle::join`]: `Err` holds its panic.
    pub fn join(self) -> std::thread::Result<T> {
        match self.0 {
            Place::Real(thread) => thread.join(),
            Place::World { id, result } => {
                world().expect("joined from within its world").join(id);
                result.lock().expect("no panic while locked").take().expect("it has ended")
            }
        }
    }
}
