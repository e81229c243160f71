//! The other end: kernel sockets in the far namespace, the same for every row.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use net::wait::{Next, Turn, Waiter};
use serde::{Deserialize, Serialize};

use super::waiting::{Waiting, pin};
use crate::part::{Orders, send};
use crate::sys::Cpu;
use crate::wan_write::enter;
use crate::{Attempted, LabError};

pub(super) const PORT: u16 = 7;
/// Most bytes of one call.
const BUFFER_BYTES: usize = 1 << 20;

/// What a connection does, sent by its opener as its first 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Task {
    /// `count` times: receive `bytes` bytes, answer one.
    Echo { bytes: u32, count: u32 },
    /// Receive to the end, answer what that took ([`Sunk`]).
    Sink,
    /// Send for `ms` milliseconds in calls of `bytes` bytes, and close.
    Source { bytes: u32, ms: u32 },
}

pub(super) const TASK_BYTES: usize = 16;

impl Task {
    pub(super) fn encode(self, waiting: Waiting) -> [u8; TASK_BYTES] {
        let (code, one, two) = match self {
            Self::Echo { bytes, count } => (1, bytes, count),
            Self::Sink => (2, 0, 0),
            Self::Source { bytes, ms } => (3, bytes, ms),
        };
        let words = [code, one, two, waiting as u32];
        let mut bytes = [0; TASK_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; TASK_BYTES]) -> Option<(Self, Waiting)> {
        let word = |at: usize| u32::from_le_bytes(bytes[at * 4..][..4].try_into().expect("four bytes"));
        let task = match word(0) {
            1 => Self::Echo { bytes: word(1), count: word(2) },
            2 => Self::Sink,
            3 => Self::Source { bytes: word(1), ms: word(2) },
            _ => return None,
        };
        let waiting =
            [Waiting::Spin, Waiting::Round, Waiting::Block].into_iter().find(|&kind| kind as u32 == word(3));
        Some((task, waiting?))
    }
}

/// The answer to [`Task::Sink`]: bytes, microseconds of processor time, of the longest pause between two receives, and
/// from the first to the last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sunk {
    pub(super) bytes: u64,
    pub(super) cpu_us: u64,
    pub(super) pause_us: u64,
    pub(super) elapsed_us: u64,
}

pub(super) const SUNK_BYTES: usize = 32;

impl Sunk {
    fn encode(self) -> [u8; SUNK_BYTES] {
        let mut bytes = [0; SUNK_BYTES];
        let words = [self.bytes, self.cpu_us, self.pause_us, self.elapsed_us];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: [u8; SUNK_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"));
        Self { bytes: word(0), cpu_us: word(1), pause_us: word(2), elapsed_us: word(3) }
    }
}

/// The role: serves one connection after another until its orders end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(super) namespace: PathBuf,
    pub(super) cpu: Option<usize>,
}

impl Peer {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        enter(&self.namespace)?;
        let listener =
            TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT)).attempted("listen")?;
        let pinned = self.cpu;
        std::thread::Builder::new()
            .name("peer".to_owned())
            .spawn(move || {
                pin(pinned);
                for stream in listener.incoming().flatten() {
                    // The opener of the connection reports what goes wrong.
                    let _ = serve(stream);
                }
            })
            .attempted("start the peer")?;
        send(&())?;
        orders.serve(|_| Ok(()))
    }
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; TASK_BYTES];
    stream.read_exact(&mut head)?;
    let (task, waiting) = Task::decode(head).ok_or(io::ErrorKind::InvalidData)?;
    stream.set_nonblocking(waiting != Waiting::Block)?;
    let mut stream = Yielding { stream, waiter: Waiter::new(waiting == Waiting::Round)? };
    let mut buffer = vec![0; BUFFER_BYTES];
    match task {
        Task::Echo { bytes, count } => {
            for _ in 0..count {
                stream.receive_all(&mut buffer[..bytes as usize])?;
                stream.send_all(b"x")?;
            }
        }
        Task::Sink => {
            let sunk = sink(&mut stream, &mut buffer)?;
            stream.stream.set_nonblocking(false)?;
            stream.stream.write_all(&sunk.encode())?;
        }
        Task::Source { bytes, ms } => {
            let end = Instant::now() + Duration::from_millis(ms.into());
            let bytes = (bytes as usize).min(BUFFER_BYTES);
            while Instant::now() < end {
                stream.send_all(&buffer[..bytes])?;
            }
        }
    }
    Ok(())
}

fn sink(stream: &mut Yielding, buffer: &mut [u8]) -> io::Result<Sunk> {
    let mut sunk = Sunk::default();
    let (mut begun, mut last) = (None, Instant::now());
    let cpu = Cpu::now();
    loop {
        let count = stream.repeat(|stream| stream.read(buffer))?;
        let now = Instant::now();
        let first = *begun.get_or_insert(now);
        if count == 0 {
            let used = Cpu::now().since(cpu);
            sunk.cpu_us = ((used.user + used.system) * 1e6) as u64;
            sunk.elapsed_us = last.duration_since(first).as_micros() as u64;
            return Ok(sunk);
        }
        if sunk.bytes > 0 {
            sunk.pause_us = sunk.pause_us.max(now.duration_since(last).as_micros() as u64);
        }
        sunk.bytes += count as u64;
        last = now;
    }
}

/// A socket whose owner waits by the rule of the servers.
struct Yielding {
    stream: TcpStream,
    waiter: Waiter,
}

impl Yielding {
    fn repeat<T>(&mut self, mut call: impl FnMut(&mut TcpStream) -> io::Result<T>) -> io::Result<T> {
        loop {
            match call(&mut self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // It yields where the rule would sleep: the experiment's two ends are never idle.
                    if self.waiter.after(Turn::Nothing) == Next::Sleep {
                        std::thread::yield_now();
                    }
                }
                done => return done,
            }
        }
    }

    fn receive_all(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut have = 0;
        while have < bytes.len() {
            match self.repeat(|stream| stream.read(&mut bytes[have..]))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => have += count,
            }
        }
        Ok(())
    }

    fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.repeat(|stream| stream.write(&bytes[sent..]))?;
        }
        let _ = self.waiter.after(Turn::Handed);
        Ok(())
    }
}

/// Repeats a call of a non-blocking socket until it does something.
pub(super) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            done => return done,
        }
    }
}

pub(super) fn receive_all(stream: &mut TcpStream, buffer: &mut [u8], bytes: usize) -> io::Result<()> {
    let mut have = 0;
    while have < bytes {
        match retry(|| stream.read(&mut buffer[have..bytes]))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => have += count,
        }
    }
    Ok(())
}

pub(super) fn send_all(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += retry(|| stream.write(&bytes[sent..]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_answers_survive_their_encoding() {
        for task in [Task::Echo { bytes: 256, count: 9 }, Task::Sink, Task::Source { bytes: 65536, ms: 10 }] {
            for waiting in [Waiting::Spin, Waiting::Round, Waiting::Block] {
                assert_eq!(Task::decode(task.encode(waiting)), Some((task, waiting)));
            }
        }
        assert_eq!(Task::decode([0; TASK_BYTES]), None);
        let sunk = Sunk { bytes: 1, cpu_us: 2, pause_us: 3, elapsed_us: 4 };
        assert_eq!(Sunk::decode(sunk.encode()), sunk);
    }
}
