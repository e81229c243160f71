//! The measured end: a connection to the [`Peer`](super::peer::Peer), and what is measured over it. The same code for
//! kernel sockets and for the servers of crate `net`.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use net::nic::tap;
use net::socket::Stack;
use serde::{Deserialize, Serialize};

use super::kernel::Kernel;
use super::ours::Ours;
use super::pattern::Pattern;
use super::peer::{SUNK_BYTES, Sunk, Task};
use super::place::HERE;
use super::rig::Rig;
use super::waiting::{Waiting, pin};
use crate::part::{Orders, send};
use crate::stats::percentile;
use crate::sys::{Cpu, switches};
use crate::wan_write::enter;
use crate::{Attempted, LabError};

/// A connection, as the measurements need it.
pub(super) trait Connection {
    /// Sends all bytes; returns when the stack has taken them.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Sends `bytes` bytes that lie ready in memory of the stack, where it has such; else as [`Connection::send`].
    fn send_ready(&mut self, bytes: usize) -> io::Result<()>;
    fn receive_all(&mut self, bytes: &mut [u8]) -> io::Result<()>;
    /// Receives some bytes and drops them; 0 at the end. By reference where the stack can.
    fn receive_some(&mut self) -> io::Result<usize>;
    /// The same, copied into a buffer of the caller.
    fn receive_into(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    /// No more bytes follow.
    fn finish(&mut self) -> io::Result<()>;
}

/// Times of one kind, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Times {
    fn of(ns: &mut [u64]) -> Self {
        let mut us = |share| percentile(ns, share).unwrap_or(0) as f64 / 1e3;
        Self { p50_us: us(0.5), p99_us: us(0.99) }
    }
}

/// How the sender's bytes come to lie in memory of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Payload {
    /// Copied into an area by each send: as write(2) does.
    Copied,
    /// Written in place before.
    InPlace,
}

/// Request and one-byte answer, `count` times after a warm-up: round-trip times.
pub(super) fn echo(
    connection: &mut impl Connection,
    waiting: Waiting,
    bytes: usize,
    count: usize,
    payload: Payload,
) -> io::Result<Times> {
    let warm = count / 10;
    let task = Task::Echo { bytes: bytes as u32, count: (warm + count) as u32 };
    connection.send(&task.encode(waiting))?;
    let buffer = vec![7; bytes];
    let mut round_trips = Vec::with_capacity(count);
    for turn in 0..warm + count {
        let begin = Instant::now();
        match payload {
            Payload::Copied => connection.send(&buffer)?,
            Payload::InPlace => connection.send_ready(bytes)?,
        }
        connection.receive_all(&mut [0])?;
        if turn >= warm {
            round_trips.push(begin.elapsed().as_nanos() as u64);
        }
    }
    connection.finish()?;
    Ok(Times::of(&mut round_trips))
}

/// Bytes sent for a time, in calls of `bytes` bytes; of the pattern, if there is one.
pub(super) fn stream_out(
    connection: &mut impl Connection,
    waiting: Waiting,
    bytes: usize,
    duration: Duration,
    payload: Payload,
    pattern: Option<&Pattern>,
) -> io::Result<Sunk> {
    let task = if pattern.is_some() { Task::SinkChecked } else { Task::Sink };
    connection.send(&task.encode(waiting))?;
    let buffer = vec![7; bytes];
    let mut sent = 0;
    let begin = Instant::now();
    while begin.elapsed() < duration {
        match (payload, pattern) {
            (Payload::InPlace, _) => connection.send_ready(bytes)?,
            (Payload::Copied, None) => connection.send(&buffer)?,
            (Payload::Copied, Some(pattern)) => connection.send(pattern.at(sent, bytes))?,
        }
        sent += bytes as u64;
    }
    connection.finish()?;
    let mut answer = [0; SUNK_BYTES];
    connection.receive_all(&mut answer)?;
    let sunk = Sunk::decode(answer);
    if sunk.bytes == sent { Ok(sunk) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Bytes received until the peer closes, in place or copied.
pub(super) fn stream_in(
    connection: &mut impl Connection,
    waiting: Waiting,
    bytes: usize,
    duration: Duration,
    by_area: bool,
    pattern: Option<&Pattern>,
) -> io::Result<Sunk> {
    const INTO_BYTES: usize = 256 << 10;
    let (bytes, ms) = (bytes as u32, duration.as_millis() as u32);
    let task = match pattern {
        Some(_) => Task::SourceChecked { bytes, ms },
        None => Task::Source { bytes, ms },
    };
    connection.send(&task.encode(waiting))?;
    let sunk = Sunk::receive(pattern, |buffer| match by_area {
        true => connection.receive_some(),
        false => connection.receive_into(&mut buffer[..INTO_BYTES]),
    })?;
    // Its processor time is this process's.
    Ok(Sunk { cpu_us: 0, ..sunk })
}

/// What carries the connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Over {
    /// Kernel sockets in a namespace.
    Kernel { namespace: PathBuf, peer: SocketAddr },
    /// Our stack within this process, over the TAP interface in a namespace.
    OneProcess { namespace: PathBuf },
    /// The servers that listen at a path.
    Servers { socket: PathBuf, peer: SocketAddr },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Measure {
    Echo {
        bytes: usize,
        count: usize,
        payload: Payload,
    },
    Out {
        bytes: usize,
        ms: u64,
        payload: Payload,
    },
    In {
        bytes: usize,
        ms: u64,
        by_area: bool,
    },
    /// To and from the kernel in sends of 64 KiB, all bytes compared by the receiver.
    Checked {
        is_out: bool,
        ms: u64,
    },
}

/// The role: one measurement, whose result is the first answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Near {
    pub(super) over: Over,
    pub(super) cpu: Option<usize>,
    pub(super) waiting: Waiting,
    pub(super) measure: Measure,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) round_trip: Times,
    pub(super) streamed: Sunk,
    /// Of this process, seconds.
    pub(super) cpu: Cpu,
    /// From this process to others.
    pub(super) switches: u64,
    /// The connection ended in the middle of [`Measure::Checked`]; all else is 0.
    pub(super) is_lost: bool,
}

impl Near {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        let Self { over, cpu, waiting, measure } = self;
        let measured = match over {
            Over::Kernel { namespace, peer } => {
                enter(&namespace)?;
                pin(cpu);
                let connection = Kernel::connect(peer, waiting).attempted("connect to the peer")?;
                measure.take(connection, waiting)
            }
            Over::OneProcess { namespace } => {
                enter(&namespace)?;
                pin(cpu);
                let device = tap::open(HERE.name).attempted("open the TAP interface")?;
                let rig = Rig::new(device, HERE.ours).attempted("make the servers")?;
                let stack = rig.one_process().attempted("make the servers")?;
                let connection = Ours::connect(stack, HERE.peer()).attempted("connect to the peer")?;
                measure.take(connection, waiting)
            }
            Over::Servers { socket, peer } => {
                pin(cpu);
                let waiting = waiting.among_servers();
                let stack = join(&socket)?;
                if waiting == Waiting::Block {
                    stack.sleep_at_once();
                }
                let connection = Ours::connect(stack, peer).attempted("connect to the peer")?;
                measure.take(connection, waiting)
            }
        };
        let measured = match measured {
            Err(_) if matches!(measure, Measure::Checked { .. }) => {
                Measured { is_lost: true, ..Measured::default() }
            }
            measured => measured.attempted("measure")?,
        };
        send(&measured)?;
        orders.serve(|_| Ok(()))
    }
}

/// Joins the servers, which have room for one application: the last one may not be gone yet.
pub(super) fn join(socket: &Path) -> Result<Stack, LabError> {
    let begin = Instant::now();
    loop {
        match Stack::connect(socket) {
            Err(_) if begin.elapsed() < JOIN_TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            result => return result.attempted("join the servers"),
        }
    }
}

const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Of one send of [`Measure::Checked`].
const CHECKED_BYTES: usize = 64 << 10;

impl Measure {
    fn take(self, mut connection: impl Connection, waiting: Waiting) -> io::Result<Measured> {
        let mut measured = Measured::default();
        let (cpu, switches) = (Cpu::now(), switches());
        match self {
            Self::Echo { bytes, count, payload } => {
                measured.round_trip = echo(&mut connection, waiting, bytes, count, payload)?;
            }
            Self::Out { bytes, ms, payload } => {
                let duration = Duration::from_millis(ms);
                measured.streamed = stream_out(&mut connection, waiting, bytes, duration, payload, None)?;
            }
            Self::In { bytes, ms, by_area } => {
                let duration = Duration::from_millis(ms);
                measured.streamed = stream_in(&mut connection, waiting, bytes, duration, by_area, None)?;
            }
            Self::Checked { is_out, ms } => {
                let (duration, pattern) = (Duration::from_millis(ms), Pattern::new());
                measured.streamed = match is_out {
                    true => {
                        let payload = Payload::Copied;
                        stream_out(
                            &mut connection,
                            waiting,
                            CHECKED_BYTES,
                            duration,
                            payload,
                            Some(&pattern),
                        )?
                    }
                    false => {
                        stream_in(&mut connection, waiting, CHECKED_BYTES, duration, false, Some(&pattern))?
                    }
                };
            }
        }
        measured.cpu = Cpu::now().since(cpu);
        measured.switches = self::switches() - switches;
        Ok(measured)
    }
}
