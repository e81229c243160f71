//! The initiator's side: requests blocks and opens them.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::tls::TlsReceiver;
use super::{SILENCE_MAX, records};
use crate::capture::Transfer;
use crate::part::{Orders, send};
use crate::secure_read::cipher::Opening;
use crate::secure_read::figures::{Figures, Moments, Notes};
use crate::secure_read::shape::{Protection, Reading};
use crate::sys::Cpu;
use crate::{Attempted, LabError};

const WARM_UP: Duration = Duration::from_millis(20);
/// Blocks compared with the stored data before the measurement.
const CHECKED_MAX: u64 = 2;
/// Maximum number of recorded calls.
const TRANSFERS_MAX: usize = 1 << 14;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SocketInitiator {
    pub(crate) reading: Reading,
    pub(crate) port: u16,
    /// Whether to record every call that moves data.
    pub(crate) trace: bool,
    pub(crate) folder: PathBuf,
}

/// A socket that records when bytes arrive.
pub(super) struct Watched {
    socket: TcpStream,
    since: Instant,
    /// Arrival of the first and last bytes of the current block.
    first: Option<Duration>,
    last: Duration,
    transfers: Option<Vec<Transfer>>,
}

impl Watched {
    fn note(&mut self, is_data: bool, count: usize) {
        let now = self.since.elapsed();
        if is_data {
            self.first.get_or_insert(now);
            self.last = now;
        }
        if let Some(transfers) = self.transfers.as_mut().filter(|transfers| transfers.len() < TRANSFERS_MAX) {
            transfers.push(Transfer { at_ns: now.as_nanos() as u64, is_data, bytes: count as u32 });
        }
    }
}

impl Read for Watched {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.socket.read(into)?;
        self.note(true, count);
        Ok(count)
    }
}

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.socket.write(bytes)?;
        self.note(false, count);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

pub(super) trait Receiver {
    fn send_request(&mut self, request: &[u8]) -> io::Result<()> {
        self.watched().write_all(request)
    }

    /// Receives the next block into `block` and opens it; returns the time of opening.
    fn receive(&mut self, block: &mut [u8]) -> io::Result<Duration>;

    fn watched(&mut self) -> &mut Watched;
}

struct Plain(Watched);

impl Receiver for Plain {
    fn receive(&mut self, block: &mut [u8]) -> io::Result<Duration> {
        self.0.read_exact(block)?;
        Ok(Duration::ZERO)
    }

    fn watched(&mut self) -> &mut Watched {
        &mut self.0
    }
}

struct Sealed {
    stream: BufReader<Watched>,
    opening: Opening,
}

/// Bytes of the read buffer: small units arrive many at a time; large ones are read directly into the block, so reading
/// a head should bring little of the following unit into the buffer.
fn buffer_bytes(unit: u32) -> usize {
    if unit > 4096 { 2048 } else { 64 << 10 }
}

impl Receiver for Sealed {
    fn receive(&mut self, block: &mut [u8]) -> io::Result<Duration> {
        records::receive(&mut self.stream, &mut self.opening, block)
    }

    fn watched(&mut self) -> &mut Watched {
        self.stream.get_mut()
    }
}

struct Reader {
    reading: Reading,
    receiver: Box<dyn Receiver>,
    block: Vec<u8>,
    next: u64,
    /// Request times of the blocks in flight.
    requested: VecDeque<Duration>,
    since: Instant,
}

impl SocketInitiator {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        let doing =
            format!("read blocks of {} bytes, {}", self.reading.block, self.reading.protection.name());
        let mut reader = self.reader().attempted(&doing)?;
        reader.check().attempted(&doing)?;
        reader.read(WARM_UP).attempted(&doing)?;
        send(&())?;
        orders.serve(|time| {
            reader.receiver.watched().transfers = self.trace.then(Vec::new);
            reader.read(time).attempted(&doing)
        })
    }

    fn reader(&self) -> io::Result<Reader> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE_MAX))?;
        let since = Instant::now();
        let watched = Watched { socket, since, first: None, last: Duration::ZERO, transfers: None };
        let receiver: Box<dyn Receiver> = match self.reading.protection {
            Protection::Plain => Box::new(Plain(watched)),
            Protection::Tls => Box::new(TlsReceiver::new(watched, &self.folder)?),
            Protection::Sealed { cipher, unit, .. } => Box::new(Sealed {
                stream: BufReader::with_capacity(buffer_bytes(unit.min(self.reading.block)), watched),
                opening: Opening::new(cipher).map_err(records::broken)?,
            }),
            Protection::Volume(_) => unreachable!("rows of volumes are over iSCSI"),
        };
        Ok(Reader {
            reading: self.reading,
            receiver,
            block: vec![0; self.reading.block as usize],
            next: 0,
            requested: VecDeque::with_capacity(self.reading.depth as usize),
            since,
        })
    }
}

impl Reader {
    fn send_request(&mut self) -> io::Result<()> {
        self.requested.push_back(self.since.elapsed());
        let request = self.next.to_be_bytes();
        self.next += 1;
        self.receiver.send_request(&request)
    }

    fn receive(&mut self) -> io::Result<Moments> {
        self.receiver.watched().first = None;
        let opening = self.receiver.receive(&mut self.block)?;
        let ready = self.since.elapsed();
        let requested = self.requested.pop_front().expect("every block was requested");
        let watched = self.receiver.watched();
        // With several blocks in flight its first bytes may have arrived together with the end of the block before.
        let first = watched.first.unwrap_or(requested).max(requested);
        Ok(Moments { requested, first, last: watched.last.max(first), ready, opening })
    }

    /// Reads the first blocks, one at a time, and compares them with the stored data.
    fn check(&mut self) -> io::Result<()> {
        for index in 0..self.reading.blocks().min(CHECKED_MAX) {
            self.send_request()?;
            self.receive()?;
            if !self.reading.is_block(index, &self.block) {
                return Err(io::Error::other(format!("block {index} is not what is stored")));
            }
        }
        Ok(())
    }

    /// Reads for `time`, with `depth` blocks requested at all times.
    fn read(&mut self, time: Duration) -> io::Result<Figures> {
        let (start, cpu) = (Instant::now(), Cpu::now());
        let until = self.since.elapsed() + time;
        let mut notes = Notes::new(self.reading.block);
        for _ in 0..self.reading.depth {
            self.send_request()?;
        }
        while !self.requested.is_empty() {
            let moments = self.receive()?;
            if moments.ready < until || notes.is_short() {
                self.send_request()?;
            }
            notes.block(moments);
        }
        let transfers = self.receiver.watched().transfers.take().unwrap_or_default();
        Ok(notes.figures(start, Cpu::now().since(cpu), transfers))
    }
}
