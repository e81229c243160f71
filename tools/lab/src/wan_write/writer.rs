//! The process that writes, and the receiver of plain sockets: parts of the experiment in the namespaces of the path.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use area::{PoolLimits, Span};
use block::{Completion, Endpoint, Kind, Medium, Request, Router, close_all, wait_ready};
use io::{Event, Io};
use node::initiator::{IscsiMedium, Options, Url};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::initiator::{Initiator, connect};
use crate::part::{Orders, send};
use crate::sys::unacknowledged;
use crate::{Attempted, LabError};

/// Bytes of the LUN that are written, again and again.
pub(super) const RANGE_BYTES: u64 = 64 << 20;
/// Writes of a measurement at least.
const WRITES_MIN: usize = 3;
/// Bytes of one write to a plain socket, and of one read from it.
const CHUNK_BYTES: usize = 256 << 10;

/// How the data leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Method {
    /// A plain socket.
    Socket { send_buffer: Option<u32> },
    /// One write at a time by blocking calls, as open-iscsi.
    Blocking { target: String, lun: u8, send_buffer: Option<u32> },
    /// The initiator of this project.
    Ours { target: String, lun: u8, depth: u32 },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Writer {
    /// The file of the network namespace.
    pub(crate) namespace: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) method: Method,
    pub(crate) block: u32,
}

/// First answer of a part of this experiment.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) pid: u32,
}

/// What was written, between the first completion and the last: bytes of those after the first.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Wrote {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) writes: usize,
}

impl Wrote {
    pub(super) fn mb_per_s(self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds.max(1e-9)
    }

    /// From the completion times of writes of `block` bytes.
    fn of(completions: &[Instant], block: u32) -> Self {
        let (Some(first), Some(last)) = (completions.first(), completions.last()) else {
            return Self::default();
        };
        let writes = completions.len() - 1;
        Self { bytes: writes as u64 * u64::from(block), seconds: (*last - *first).as_secs_f64(), writes }
    }
}

/// Moves the calling thread, and those that it starts later, into a network namespace.
pub(crate) fn enter(namespace: &Path) -> Result<(), LabError> {
    let doing = format!("enter the network namespace {}", namespace.display());
    let file = File::open(namespace).attempted(&doing)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).attempted(&doing)
}

impl Writer {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        enter(&self.namespace)?;
        let doing = format!("write to {}", self.address);
        let ready = Ready { pid: std::process::id() };
        match &self.method {
            Method::Socket { send_buffer } => {
                let mut stream = connect(self.address, *send_buffer).attempted(&doing)?;
                send(&ready)?;
                orders.serve(|time| write_socket(&mut stream, time).attempted(&doing))
            }
            Method::Blocking { target, lun, send_buffer } => {
                let login = Initiator::login(self.address, target, *lun, *send_buffer);
                let mut initiator = login.attempted(&doing)?;
                send(&ready)?;
                let data = vec![0xa5; self.block as usize];
                orders.serve(|time| write_blocking(&mut initiator, &data, time).attempted(&doing))
            }
            Method::Ours { target, lun, depth } => {
                let url = format!("iscsi://{}/{target}/{lun}", self.address);
                write_ours(&url, *depth, self.block, orders, ready)
            }
        }
    }
}

/// Bytes that the peer has acknowledged, by time.
fn write_socket(stream: &mut TcpStream, time: Duration) -> std::io::Result<Wrote> {
    let chunk = vec![0x5a; CHUNK_BYTES];
    let left = unacknowledged(stream)?;
    let (begun, mut written) = (Instant::now(), 0);
    while begun.elapsed() < time {
        written += stream.write(&chunk)? as u64;
    }
    let bytes = (written + u64::from(left)).saturating_sub(unacknowledged(stream)?.into());
    Ok(Wrote { bytes, seconds: begun.elapsed().as_secs_f64(), writes: 1 })
}

fn write_blocking(initiator: &mut Initiator, data: &[u8], time: Duration) -> Result<Wrote, String> {
    let (begun, mut completions) = (Instant::now(), Vec::new());
    while begun.elapsed() < time || completions.len() <= WRITES_MIN {
        let offset = completions.len() as u64 * data.len() as u64 % RANGE_BYTES;
        initiator.write(offset, data)?;
        completions.push(Instant::now());
    }
    Ok(Wrote::of(&completions, data.len() as u32))
}

fn write_ours(url: &str, depth: u32, block: u32, orders: Orders, ready: Ready) -> Result<(), LabError> {
    let doing = format!("write to {url}");
    let mut io = Io::new(PoolLimits::default()).attempted(&doing)?;
    let options = Options::new("iqn.2026-11.example.hikyaku:lab.writer");
    let medium = IscsiMedium::new(Url::parse(url).attempted(&doing)?, options, false).attempted(&doing)?;
    let mut endpoint = Arc::new(medium).attach(&mut io).attempted(&doing)?;
    wait_ready(&mut io, &mut [&mut *endpoint]).attempted(&doing)?;
    let spans: Option<Vec<Span>> = (0..depth).map(|_| io.pool().take(block as usize)).collect();
    let spans = spans.ok_or_else(|| LabError::new(&doing, &"there is no memory"))?;
    let mut router = Router::new();
    router.add_endpoint(&*endpoint, ());
    send(&ready)?;
    let mut queue = Queue { io: &mut io, endpoint: &mut *endpoint, router, spans, block, next: 0 };
    orders.serve(|time| queue.write(time).attempted(&doing))?;
    close_all(&mut io, &mut [&mut *endpoint]);
    Ok(())
}

/// Writes in flight through the endpoint of our initiator. No other endpoint uses the loop.
struct Queue<'a> {
    io: &'a mut Io,
    endpoint: &'a mut dyn Endpoint,
    router: Router<()>,
    spans: Vec<Span>,
    block: u32,
    next: u64,
}

impl Queue<'_> {
    fn submit(&mut self, slot: u64, done: &mut Vec<Completion>) {
        let offset = self.next * u64::from(self.block) % RANGE_BYTES;
        self.next += 1;
        let kind = Kind::Write { offset, from: self.spans[slot as usize].clone(), durable: false };
        self.endpoint.submit(self.io, Request { id: slot, kind }, done);
    }

    fn write(&mut self, time: Duration) -> Result<Wrote, String> {
        let (begun, mut completions) = (Instant::now(), Vec::new());
        let (mut done, mut events): (Vec<Completion>, Vec<Event>) = (Vec::new(), Vec::new());
        let depth = self.spans.len();
        let (mut in_flight, mut steady) = (depth, 0);
        (0..in_flight).for_each(|slot| self.submit(slot as u64, &mut done));
        while in_flight > 0 {
            for Completion { id, result } in std::mem::take(&mut done) {
                result.map_err(|error| error.to_string())?;
                completions.push(Instant::now());
                if begun.elapsed() < time || completions.len() <= WRITES_MIN * depth {
                    self.submit(id, &mut done);
                    steady = completions.len();
                } else {
                    in_flight -= 1;
                }
            }
            if !done.is_empty() || in_flight == 0 {
                continue;
            }
            let router = &self.router;
            let turned = self.io.turn_for(|owner| router.route(owner).is_some(), None, &mut events);
            turned.map_err(|error| error.to_string())?;
            for event in events.drain(..) {
                self.endpoint.on_event(self.io, event, &mut done);
            }
        }
        // With all in flight, but neither the first of them nor the last.
        Ok(Wrote::of(&completions[depth - 1..=steady], self.block))
    }
}

/// Receives everything that arrives at plain sockets, and forgets it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sink {
    pub(crate) namespace: PathBuf,
    pub(crate) address: SocketAddr,
}

impl Sink {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        enter(&self.namespace)?;
        let doing = format!("listen at {}", self.address);
        let listener = TcpListener::bind(self.address).attempted(&doing)?;
        let accept = move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut buffer = vec![0; CHUNK_BYTES];
                    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
                });
            }
        };
        std::thread::Builder::new().name("sink".to_owned()).spawn(accept).attempted(&doing)?;
        send(&Ready { pid: std::process::id() })?;
        orders.serve(|_| Ok(()))
    }
}
