//! The other end: kernel sockets in the far namespace, the same for every row.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::kernel::Socket;
use super::pattern::{Pattern, SLICE_BYTES_MAX};
use super::waiting::{Waiting, pin};
use crate::part::{Orders, send};
use crate::sys::Cpu;
use crate::wan_write::enter;
use crate::{Attempted, LabError};

pub(super) const PORT: u16 = 7;
/// Most bytes of one call.
const BUFFER_BYTES: usize = SLICE_BYTES_MAX;

/// What a connection does, sent by its opener as its first bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Task {
    /// `count` times: receive `bytes` bytes, answer one.
    Echo { bytes: u32, count: u32 },
    /// Receive to the end, answer what that took ([`Sunk`]).
    Sink,
    /// The same, and compare with the [`Pattern`].
    SinkChecked,
    /// Send for `ms` milliseconds in calls of `bytes` bytes, and close.
    Source { bytes: u32, ms: u32 },
    /// The same with the bytes of the [`Pattern`].
    SourceChecked { bytes: u32, ms: u32 },
}

pub(super) const TASK_BYTES: usize = 16;

impl Task {
    pub(super) fn encode(self, waiting: Waiting) -> [u8; TASK_BYTES] {
        let (code, one, two) = match self {
            Self::Echo { bytes, count } => (1, bytes, count),
            Self::Sink => (2, 0, 0),
            Self::SinkChecked => (3, 0, 0),
            Self::Source { bytes, ms } => (4, bytes, ms),
            Self::SourceChecked { bytes, ms } => (5, bytes, ms),
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
            3 => Self::SinkChecked,
            4 => Self::Source { bytes: word(1), ms: word(2) },
            5 => Self::SourceChecked { bytes: word(1), ms: word(2) },
            _ => return None,
        };
        let waiting = Waiting::ALL.into_iter().find(|&kind| kind as u32 == word(3));
        Some((task, waiting?))
    }
}

/// What a receiver of a stream has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sunk {
    pub(super) bytes: u64,
    /// Receives whose bytes were not those that were sent.
    pub(super) wrong: u64,
    /// Microseconds: of processor time, of the longest pause between two receives, from the first to the last byte.
    pub(super) cpu_us: u64,
    pub(super) pause_us: u64,
    pub(super) elapsed_us: u64,
}

pub(super) const SUNK_BYTES: usize = 40;

impl Sunk {
    fn encode(self) -> [u8; SUNK_BYTES] {
        let mut bytes = [0; SUNK_BYTES];
        let words = [self.bytes, self.wrong, self.cpu_us, self.pause_us, self.elapsed_us];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: [u8; SUNK_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"));
        Self { bytes: word(0), wrong: word(1), cpu_us: word(2), pause_us: word(3), elapsed_us: word(4) }
    }

    pub(super) fn gb_per_s(self) -> f64 {
        self.bytes as f64 / 1e3 / (self.elapsed_us as f64).max(1.0)
    }

    /// Receives to the end. `receive` fills a part of its buffer and returns its length, 0 at the end.
    pub(super) fn receive(
        pattern: Option<&Pattern>,
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Self> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut sunk = Self::default();
        let (mut begun, mut last) = (None, Instant::now());
        let cpu = Cpu::now();
        loop {
            let count = receive(&mut buffer)?;
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
            if pattern.is_some_and(|pattern| *pattern.at(sunk.bytes, count) != buffer[..count]) {
                sunk.wrong += 1;
            }
            sunk.bytes += count as u64;
            last = now;
        }
    }
}

/// The role: serves connections until its orders end.
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
        let pattern = Arc::new(Pattern::new());
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        spawn("listener")
            .spawn(move || {
                for stream in listener.incoming().flatten() {
                    let pattern = Arc::clone(&pattern);
                    // A thread each: one whose other end died without a word waits for ever.
                    let served = spawn("peer").spawn(move || {
                        pin(pinned);
                        // The opener of the connection reports what goes wrong.
                        let _ = serve(stream, &pattern);
                    });
                    if let Err(error) = served {
                        eprintln!("error: the peer cannot serve: {error}");
                    }
                }
            })
            .attempted("start the peer")?;
        send(&())?;
        orders.serve(|_| Ok(()))
    }
}

fn serve(mut stream: TcpStream, pattern: &Pattern) -> io::Result<()> {
    let mut head = [0; TASK_BYTES];
    stream.read_exact(&mut head)?;
    let (task, waiting) = Task::decode(head).ok_or(io::ErrorKind::InvalidData)?;
    let mut socket = Socket::new(stream, waiting)?;
    match task {
        Task::Echo { bytes, count } => {
            let mut buffer = vec![0; bytes as usize];
            for _ in 0..count {
                socket.receive_all(&mut buffer)?;
                socket.send_all(b"x")?;
            }
        }
        Task::Sink | Task::SinkChecked => {
            let pattern = (task == Task::SinkChecked).then_some(pattern);
            let sunk = Sunk::receive(pattern, |buffer| socket.receive(buffer))?;
            socket.send_all(&sunk.encode())?;
        }
        Task::Source { bytes, ms } | Task::SourceChecked { bytes, ms } => {
            let end = Instant::now() + Duration::from_millis(ms.into());
            let bytes = (bytes as usize).min(BUFFER_BYTES);
            let is_checked = matches!(task, Task::SourceChecked { .. });
            let mut sent = 0;
            while Instant::now() < end {
                // Unless it is compared, the same memory again and again, which stays in the cache.
                socket.send_all(pattern.at(sent, bytes))?;
                sent += if is_checked { bytes as u64 } else { 0 };
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_answers_survive_their_encoding() {
        for task in [
            Task::Echo { bytes: 256, count: 9 },
            Task::Sink,
            Task::SinkChecked,
            Task::Source { bytes: 65536, ms: 10 },
            Task::SourceChecked { bytes: 1, ms: 2 },
        ] {
            for waiting in Waiting::ALL {
                assert_eq!(Task::decode(task.encode(waiting)), Some((task, waiting)));
            }
        }
        assert_eq!(Task::decode([0; TASK_BYTES]), None);
        let sunk = Sunk { bytes: 1, wrong: 2, cpu_us: 3, pause_us: 4, elapsed_us: 5 };
        assert_eq!(Sunk::decode(sunk.encode()), sunk);
    }
}
