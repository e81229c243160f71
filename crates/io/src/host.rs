//! What drivers ask of the operating system beside the operations of a loop: randomness, sockets that are not
//! yet in use, threads. A thread that has entered a [`World`] gets all of it, and the back end of its loops, from
//! there; that is how the simulator runs drivers unchanged. Elsewhere this costs a look at one thread-local.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::Backend;

/// An operating system that is not the real one.
///
/// Descriptors it hands out are real ones that serve as names: they may be duplicated, shut down and closed by
/// system calls, which the world has to notice by itself.
pub trait World: Send + Sync {
    /// For a loop of the calling thread.
    fn backend(&self) -> io::Result<Box<dyn Backend>>;
    /// Fills `bytes` with randomness.
    fn entropy(&self, bytes: &mut [u8]);
    /// A stream socket to connect.
    fn socket(&self) -> io::Result<OwnedFd>;
    /// A socket that listens on `address`, and the address it got.
    fn listen(&self, address: SocketAddr) -> io::Result<Listener>;
    /// The two ends of a connected socket: its peer's address and its own.
    fn addresses(&self, socket: RawFd) -> io::Result<(SocketAddr, SocketAddr)>;
    /// Starts a thread that has entered this world, and returns when it waits in a loop for the first time, or has
    /// ended. The result is for [`World::join`].
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<u64>;
    /// Waits until a thread has ended.
    fn join(&self, thread: u64);
}

thread_local! {
    static WORLD: RefCell<Option<Arc<dyn World>>> = const { RefCell::new(None) };
}

/// From here on, the calling thread lives in `world`, or in the real one again.
#[doc(hidden)]
pub fn enter(world: Option<Arc<dyn World>>) {
    WORLD.set(world);
}

/// Where the calling thread lives, if that is not the real world.
pub(crate) fn world() -> Option<Arc<dyn World>> {
    WORLD.with_borrow(Clone::clone)
}

/// Fills `bytes` with randomness that nobody can guess.
pub fn entropy(bytes: &mut [u8]) -> io::Result<()> {
    match world() {
        Some(world) => {
            world.entropy(bytes);
            Ok(())
        }
        None => getrandom::fill(bytes).map_err(io::Error::other),
    }
}

/// A stream socket of the kind that `address` needs, to connect. What is sent leaves at once (`TCP_NODELAY`).
pub fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    if let Some(world) = world() {
        return world.socket();
    }
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    /// To accept from.
    pub socket: OwnedFd,
    /// Where, with the port that was chosen.
    pub address: SocketAddr,
}

/// Listens on `address`; up to `backlog` connections wait to be accepted.
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
    Ok(Listener { socket: socket.into(), address })
}

/// The two ends of a connected socket: its peer's address and its own.
pub fn addresses(socket: &OwnedFd) -> io::Result<(SocketAddr, SocketAddr)> {
    if let Some(world) = world() {
        return world.addresses(socket.as_raw_fd());
    }
    let socket = SockRef::from(socket);
    Ok((internet(&socket.peer_addr()?)?, internet(&socket.local_addr()?)?))
}

fn internet(address: &socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// A thread that runs a loop of its own.
#[derive(Debug)]
pub struct Thread<T>(Place<T>);

#[derive(Debug)]
enum Place<T> {
    Real(JoinHandle<T>),
    World { id: u64, result: Arc<Mutex<Option<std::thread::Result<T>>>> },
}

/// Starts a thread.
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
    /// Waits for its end, as [`JoinHandle::join`]: an error is its panic.
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
