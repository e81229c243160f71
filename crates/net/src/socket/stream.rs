//! A connection.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use inet::{Endpoint, Time};
use libc::{ECONNRESET, EINVAL, EPIPE, ETIMEDOUT};

use super::area::{Lease, SendArea};
use super::stack::{Shared, Stack, errno};
use super::state::{Chunk, Id, State, local_of};
use crate::slot::{Request, option, request};
use crate::wait::now;

/// Bytes of one connection that were sent and not released; more wait.
pub const SEND_BYTES_MAX: usize = 4 << 20;
/// A call that had no room goes on with so much, as a writer of Linux with a third: who sends a stream hands over many
/// sends before the next process runs.
const ROOM_AFTER_WAIT: usize = SEND_BYTES_MAX / 3;
/// Most bytes that one `write` copies.
const WRITE_BYTES_MAX: usize = 256 << 10;
/// Smaller writes share areas of this size.
const SHARED_AREA_BYTES: usize = 64 << 10;

/// A TCP connection, as `std::net::TcpStream`; and by area, without copies ([`TcpStream::send`], [`TcpStream::recv`]).
pub struct TcpStream {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    id: Id,
    /// The area that small writes append to, and the bytes that it holds. Also keeps writes of several threads apart.
    writer: Mutex<Option<(Arc<Lease>, usize)>>,
    is_nonblocking: AtomicBool,
    /// No read returns bytes any more.
    is_read_shut: AtomicBool,
    is_no_delay: AtomicBool,
    /// Microseconds, 0 for none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

impl Inner {
    /// When a call that starts now must give up.
    fn until(&self, timeout: &AtomicU64) -> Option<Time> {
        if self.is_nonblocking.load(Ordering::Relaxed) {
            return Some(now());
        }
        match timeout.load(Ordering::Relaxed) {
            0 => None,
            us => Some(now().after(us)),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.close(self.id);
        self.shared.publish(&mut state);
    }
}

impl TcpStream {
    pub(super) fn new(shared: Arc<Shared>, id: Id) -> Self {
        Self {
            inner: Arc::new(Inner {
                shared,
                id,
                writer: Mutex::new(None),
                is_nonblocking: AtomicBool::new(false),
                is_read_shut: AtomicBool::new(false),
                is_no_delay: AtomicBool::new(false),
                read_timeout: AtomicU64::new(0),
                write_timeout: AtomicU64::new(0),
            }),
        }
    }

    /// Opens a connection to the first address that answers.
    pub fn connect(stack: &Stack, to: impl ToSocketAddrs) -> io::Result<Self> {
        let mut last = ErrorKind::InvalidInput.into();
        for peer in to.to_socket_addrs()? {
            match Self::open(stack, peer, None) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub fn connect_timeout(stack: &Stack, peer: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::open(stack, *peer, Some(now().after(micros(timeout))))
    }

    fn open(stack: &Stack, peer: SocketAddr, until: Option<Time>) -> io::Result<Self> {
        let shared = &stack.0;
        let socket = shared.ask(Request { code: request::SOCKET, ..Request::default() }, 0)?;
        let id = Id { number: socket.socket, generation: socket.generation };
        let Endpoint { address, port } = peer.into();
        let asked = Request {
            code: request::CONNECT,
            socket: id.number,
            generation: id.generation,
            address: address.0,
            port,
            ..Request::default()
        };
        let mut state = shared.lock();
        state.add_flow(id, peer, peer);
        let ticket = state.ask(asked, 0);
        shared.publish(&mut state);
        drop(state);
        // From here on a drop of the stream closes the socket.
        let stream = Self::new(Arc::clone(shared), id);
        let answer = shared.wait(until, None, |state| state.answer(ticket).map(Ok));
        let mut state = shared.lock();
        let status = match &answer {
            Ok(answer) if answer.status == 0 => {
                if let Some(flow) = state.flow(id) {
                    flow.local = local_of(answer);
                }
                return Ok(stream);
            }
            Ok(answer) => {
                let status = answer.status.cast_signed();
                // No other end follows.
                if let Some(flow) = state.flow(id) {
                    flow.ended = Some(status);
                }
                status
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => ETIMEDOUT,
            Err(_) => ECONNRESET,
        };
        state.forget(ticket);
        drop(state);
        Err(errno(status))
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner.shared.local_to(self.inner.id)?.1)
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner.shared.local_to(self.inner.id)?.0)
    }

    /// Another handle of the same connection.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { inner: Arc::clone(&self.inner) })
    }

    /// Closes directions: FIN behind what was written, or no more reads.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let inner = &*self.inner;
        if how != Shutdown::Write {
            inner.is_read_shut.store(true, Ordering::Relaxed);
        }
        if how != Shutdown::Read {
            let mut state = inner.shared.lock();
            if state.flow(inner.id).is_none_or(|flow| flow.ended.is_some()) {
                return Err(errno(libc::ENOTCONN));
            }
            state.shutdown(inner.id);
            inner.shared.publish(&mut state);
        }
        Ok(())
    }

    /// RST now; what was not sent is lost.
    pub fn abort(&self) {
        let mut state = self.inner.shared.lock();
        state.abort(self.inner.id);
        self.inner.shared.publish(&mut state);
    }

    fn set_option(&self, option: u32, value: u32) -> io::Result<()> {
        let Id { number, generation } = self.inner.id;
        let asked = Request {
            code: request::OPTION,
            socket: number,
            generation,
            value: option,
            ..Request::default()
        };
        self.inner.shared.ask(asked, value).map(drop)
    }

    /// `true`: small segments do not wait for acknowledgements of earlier ones.
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        self.set_option(option::NO_DELAY, is_on.into())?;
        self.inner.is_no_delay.store(is_on, Ordering::Relaxed);
        Ok(())
    }

    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.inner.is_no_delay.load(Ordering::Relaxed))
    }

    /// Probes the peer after so many seconds of silence.
    pub fn set_keep_alive(&self, seconds: Option<u32>) -> io::Result<()> {
        self.set_option(option::KEEP_ALIVE, seconds.unwrap_or(0))
    }

    /// Calls that would wait return `WouldBlock`.
    pub fn set_nonblocking(&self, is_on: bool) -> io::Result<()> {
        self.inner.is_nonblocking.store(is_on, Ordering::Relaxed);
        Ok(())
    }

    /// Bounds the wait of reads, after which they return `WouldBlock`.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.inner.read_timeout, timeout)
    }

    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.inner.write_timeout, timeout)
    }

    /// Sends bytes of an area without copying them. The area comes back by [`Ticket::released`]; if the ticket is dropped,
    /// the area is free once it is released.
    ///
    /// Waits while [`SEND_BYTES_MAX`] bytes are sent and not released.
    ///
    /// # Panics
    /// If the range is outside of the area.
    pub fn send(&self, area: SendArea, range: Range<usize>) -> io::Result<Ticket> {
        assert!(range.start <= range.end && range.end <= area.len(), "a range outside of the area");
        if range.is_empty() {
            return Err(errno(EINVAL));
        }
        let _writer = self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let until = self.inner.until(&self.inner.write_timeout);
        let (lease, length) = area.into_lease();
        let lease = Arc::new(lease);
        let ticket = self.submit(&lease, range, until)?;
        Ok(Ticket { inner: Arc::clone(&self.inner), ticket, lease, length })
    }

    fn submit(&self, lease: &Arc<Lease>, range: Range<usize>, until: Option<Time>) -> io::Result<u64> {
        let Inner { shared, id, .. } = &*self.inner;
        let span = lease.span(range.start, range.len());
        let mut least = 1;
        shared.wait(until, None, |state| match room(state, *id, &mut least) {
            Ok(0) => None,
            Ok(_) => state.send(*id, span, Arc::clone(lease)).map(Ok),
            Err(error) => Some(Err(error)),
        })
    }

    /// The next bytes as they were received, without a copy; `None` after the peer's FIN. The memory goes back, and the
    /// window opens, when the area is dropped.
    pub fn recv(&self) -> io::Result<Option<ReceivedArea>> {
        let Inner { shared, id, .. } = &*self.inner;
        let until = self.inner.until(&self.inner.read_timeout);
        let chunk = self.wait_received(until, |state| {
            let chunk = state.flow(*id)?.take_received();
            chunk.map(|chunk| (chunk, chunk.bytes()))
        })?;
        Ok(chunk.map(|(chunk, bytes)| ReceivedArea { shared: Arc::clone(shared), chunk, bytes }))
    }

    /// Waits until `take` returns something, or there will be nothing.
    fn wait_received<T>(
        &self,
        until: Option<Time>,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let Inner { shared, id, .. } = &*self.inner;
        if self.inner.is_read_shut.load(Ordering::Relaxed) {
            return Ok(None);
        }
        shared.wait(until, None, |state| {
            if let Some(taken) = take(state) {
                return Some(Ok(Some(taken)));
            }
            let flow = state.flow(*id)?;
            match flow.ended {
                _ if flow.is_peer_closed => Some(Ok(None)),
                Some(0) => Some(Ok(None)),
                Some(status) => Some(Err(errno(status))),
                None => None,
            }
        })
    }

    fn read_into(&self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let Inner { shared, id, .. } = &*self.inner;
        let until = self.inner.until(&self.inner.read_timeout);
        let count = self.wait_received(until, |state| {
            let mut done = 0;
            while done < into.len() {
                let Some(chunk) = state.flow(*id)?.received.front_mut() else { break };
                let count = copy(shared, chunk, &mut into[done..]);
                chunk.skip(count);
                done += count;
                if chunk.bytes() == 0 {
                    let frame = chunk.frame;
                    state.flow(*id)?.take_received();
                    state.give_back(frame, count);
                }
            }
            (done > 0).then_some(done)
        })?;
        Ok(count.unwrap_or(0))
    }

    fn write_from(&self, from: &[u8]) -> io::Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        let Inner { shared, id, writer, .. } = &*self.inner;
        let until = self.inner.until(&self.inner.write_timeout);
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut least = 1;
        let count = shared.wait(until, None, |state| match room(state, *id, &mut least) {
            Ok(0) => None,
            Ok(room) => Some(Ok(room.min(from.len()).min(WRITE_BYTES_MAX))),
            Err(error) => Some(Err(error)),
        })?;
        if count >= SHARED_AREA_BYTES {
            let lease = Arc::new(shared.lease(count)?);
            fill(&lease, 0, &from[..count]);
            self.submit(&lease, 0..count, until)?;
            return Ok(count);
        }
        // All bytes before may have been released: then the area starts again, with its bytes in the cache.
        let (lease, start) = match writer.take() {
            Some((lease, _)) if Arc::strong_count(&lease) == 1 => (lease, 0),
            Some((lease, used)) if used + count <= lease.bytes() => (lease, used),
            _ => (Arc::new(shared.lease(SHARED_AREA_BYTES)?), 0),
        };
        fill(&lease, start, &from[..count]);
        self.submit(&lease, start..start + count, until)?;
        *writer = Some((lease, start + count));
        Ok(count)
    }
}

fn set_timeout(place: &AtomicU64, timeout: Option<Duration>) -> io::Result<()> {
    if timeout == Some(Duration::ZERO) {
        return Err(errno(EINVAL));
    }
    place.store(timeout.map_or(0, micros), Ordering::Relaxed);
    Ok(())
}

/// At least 1.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// Bytes that can be sent now; 0 if they are fewer than `least`, which then becomes [`ROOM_AFTER_WAIT`].
fn room(state: &mut State, id: Id, least: &mut usize) -> io::Result<usize> {
    let flow = state.flow(id).ok_or_else(|| errno(ECONNRESET))?;
    match flow.ended {
        Some(0) => Err(errno(EPIPE)),
        Some(status) => Err(errno(status)),
        None if flow.is_shut() => Err(errno(EPIPE)),
        None => {
            let room = SEND_BYTES_MAX.saturating_sub(flow.flight_bytes);
            if room >= *least {
                return Ok(room);
            }
            *least = ROOM_AFTER_WAIT;
            Ok(0)
        }
    }
}

/// Copies into an area at bytes that no send refers to.
fn fill(lease: &Lease, start: usize, bytes: &[u8]) {
    assert!(start <= lease.bytes() && bytes.len() <= lease.bytes() - start, "a copy outside of its area");
    // SAFETY: checked above; sends refer to other bytes of the area, or to none, and no reference to these exists.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), lease.as_ptr().add(start), bytes.len()) };
}

/// Copies received bytes, which the driver may have written into wrongly but not out of its memory. Returns how many.
fn copy(shared: &Shared, chunk: &Chunk, into: &mut [u8]) -> usize {
    let mut done = 0;
    for range in slices(shared, chunk) {
        let count = range.len().min(into.len() - done);
        into[done..done + count].copy_from_slice(&range[..count]);
        done += count;
    }
    done
}

/// The ranges of a chunk; empty where they lie outside of the memory, which a server that works does not say.
fn slices<'a>(shared: &'a Shared, chunk: &Chunk) -> [&'a [u8]; 2] {
    chunk.ranges.map(|[offset, length]| {
        let (offset, length) = (offset as usize, length as usize);
        let memory = &shared.received;
        if offset > memory.len() || length > memory.len() - offset {
            return &[][..];
        }
        // SAFETY: inside the region, which lives as long as `shared`. The memory is the application's until it gives the
        // frame back, so a driver that keeps its rules does not write it; one that does not changes bytes that came
        // from the network and mean no more to this process than any others.
        unsafe { std::slice::from_raw_parts(memory.as_ptr().add(offset), length) }
    })
}

impl Read for &TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_into(into)
    }
}

impl Read for TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_into(into)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_from(from)
    }

    /// Does nothing: what was written is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for TcpStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_from(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpStream({:?})", self.inner.id)
    }
}

/// A send by area.
#[must_use = "the area comes back by `released`"]
pub struct Ticket {
    inner: Arc<Inner>,
    ticket: u64,
    lease: Arc<Lease>,
    length: usize,
}

impl Ticket {
    /// Waits until the driver has sent all bytes once (direct return). The area is not free yet.
    pub fn submitted(&self) -> io::Result<()> {
        self.inner.shared.wait_submitted(self.inner.id, self.ticket)
    }

    /// Waits until the peer has acknowledged all bytes and no repetition of them waits at the driver; returns the area.
    pub fn released(self) -> io::Result<SendArea> {
        let Self { inner, ticket, lease, length } = self;
        inner.shared.wait(None, None, |state| {
            let Some(flow) = state.flow(inner.id) else { return Some(Err(errno(ECONNRESET))) };
            match flow.ended {
                _ if flow.released >= ticket => Some(Ok(())),
                // Memory of a connection that ended is released too, as soon as no frame refers to it.
                Some(status) if !flow.is_in_flight(ticket) => {
                    Some(Err(errno(if status == 0 { ECONNRESET } else { status })))
                }
                _ => None,
            }
        })?;
        let lease = Arc::into_inner(lease).ok_or_else(|| errno(ECONNRESET))?;
        Ok(SendArea::new(lease, length))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:?}, {})", self.inner.id, self.ticket)
    }
}

/// Bytes of a connection where they were received; given back when dropped.
pub struct ReceivedArea {
    shared: Arc<Shared>,
    chunk: Chunk,
    bytes: usize,
}

impl ReceivedArea {
    /// The bytes, in two parts if the frame was a long one.
    pub fn slices(&self) -> [&[u8]; 2] {
        slices(&self.shared, &self.chunk)
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub fn to_vec(&self) -> Vec<u8> {
        self.slices().concat()
    }
}

impl Drop for ReceivedArea {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.give_back(self.chunk.frame, self.bytes);
        self.shared.publish(&mut state);
    }
}

impl fmt::Debug for ReceivedArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceivedArea({} bytes)", self.bytes)
    }
}
