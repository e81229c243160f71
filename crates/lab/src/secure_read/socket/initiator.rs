//! The side that wants the blocks.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::tls::TlsReceiver;
use super::{SILENCE_MAX, records};
use crate::capture::Seen;
use crate::part::{Order, Talk};
use crate::secure_read::cipher::Opening;
use crate::secure_read::figures::{Figures, Moments, Notes};
use crate::secure_read::shape::{Protection, Reading};
use crate::sys::Cpu;
use crate::{Attempted, LabError};

/// Before the clock runs.
const WARM_UP: Duration = Duration::from_millis(20);
/// Blocks compared with what is stored, before the clock runs.
const CHECKED_MAX: u64 = 2;
/// Calls that are noted.
const SEEN_MAX: usize = 1 << 14;

/// What an initiator is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SocketInitiator {
    pub(crate) reading: Reading,
    /// The target's, on the loopback.
    pub(crate) port: u16,
    /// Note every call that moves data.
    pub(crate) trace: bool,
    /// Where the certificate lies.
    pub(crate) folder: PathBuf,
}

/// A socket, and when bytes came out of it.
pub(super) struct Watched {
    socket: TcpStream,
    since: Instant,
    /// When the first and last bytes of the block in hand came.
    first: Option<Duration>,
    last: Duration,
    seen: Option<Vec<Seen>>,
}

impl Watched {
    fn note(&mut self, is_data: bool, count: usize) {
        let now = self.since.elapsed();
        if is_data {
            self.first.get_or_insert(now);
            self.last = now;
        }
        if let Some(seen) = self.seen.as_mut().filter(|seen| seen.len() < SEEN_MAX) {
            seen.push(Seen { at_ns: now.as_nanos() as u64, is_data, bytes: count as u32 });
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

/// Receives blocks, one at a time.
pub(super) trait Receiver {
    /// Sends a request.
    fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        self.watched().write_all(request)
    }

    /// Receives the next block into `block` and opens it; the time spent on opening.
    fn receive(&mut self, block: &mut [u8]) -> io::Result<Duration>;

    /// The socket below.
    fn watched(&mut self) -> &mut Watched;
}

/// As it comes.
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

/// Records, opened unit by unit.
struct Sealed {
    stream: BufReader<Watched>,
    opening: Opening,
}

/// Read at once beside what is wanted: small units come many at a time; large ones go where they belong, so that a head
/// should bring little of the unit behind it.
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

/// A reading under way.
struct Reader {
    reading: Reading,
    receiver: Box<dyn Receiver>,
    block: Vec<u8>,
    /// Number of the next block to ask for.
    next: u64,
    /// When those asked for were asked for.
    asked: VecDeque<Duration>,
    since: Instant,
}

impl SocketInitiator {
    pub(crate) fn run(self, mut talk: Talk) -> Result<(), LabError> {
        let doing =
            format!("read blocks of {} bytes, {}", self.reading.block, self.reading.protection.name());
        let mut reader = self.reader().attempted(&doing)?;
        reader.check().attempted(&doing)?;
        reader.read(WARM_UP).attempted(&doing)?;
        talk.say(&())?;
        while let Some(order) = talk.next()? {
            match order {
                Order::Go { ms } => {
                    reader.receiver.watched().seen = self.trace.then(Vec::new);
                    talk.say(&reader.read(Duration::from_millis(ms)).attempted(&doing)?)?;
                }
                Order::Mark => talk.say(&())?,
            }
        }
        Ok(())
    }

    fn reader(&self) -> io::Result<Reader> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE_MAX))?;
        let since = Instant::now();
        let watched = Watched { socket, since, first: None, last: Duration::ZERO, seen: None };
        let receiver: Box<dyn Receiver> = match self.reading.protection {
            Protection::Plain => Box::new(Plain(watched)),
            Protection::Tls => Box::new(TlsReceiver::new(watched, &self.folder)?),
            Protection::Sealed { cipher, unit, .. } => Box::new(Sealed {
                stream: BufReader::with_capacity(buffer_bytes(unit.min(self.reading.block)), watched),
                opening: Opening::new(cipher).map_err(records::broken)?,
            }),
        };
        Ok(Reader {
            reading: self.reading,
            receiver,
            block: vec![0; self.reading.block as usize],
            next: 0,
            asked: VecDeque::with_capacity(self.reading.depth as usize),
            since,
        })
    }
}

impl Reader {
    fn ask(&mut self) -> io::Result<()> {
        self.asked.push_back(self.since.elapsed());
        let request = self.next.to_be_bytes();
        self.next += 1;
        self.receiver.ask(&request)
    }

    /// The next block; when what happened to it.
    fn receive(&mut self) -> io::Result<Moments> {
        self.receiver.watched().first = None;
        let opening = self.receiver.receive(&mut self.block)?;
        let ready = self.since.elapsed();
        let asked = self.asked.pop_front().expect("it was asked for");
        let watched = self.receiver.watched();
        // With several on their way, its first bytes may have come with those of the one before.
        let first = watched.first.unwrap_or(asked).max(asked);
        Ok(Moments { asked, first, last: watched.last.max(first), ready, opening })
    }

    /// The first blocks, one at a time: they must be what is stored.
    fn check(&mut self) -> io::Result<()> {
        for index in 0..self.reading.blocks().min(CHECKED_MAX) {
            self.ask()?;
            self.receive()?;
            if !self.reading.is_block(index, &self.block) {
                return Err(io::Error::other(format!("block {index} is not what is stored")));
            }
        }
        Ok(())
    }

    /// Reads for so long, always `depth` blocks asked for.
    fn read(&mut self, time: Duration) -> io::Result<Figures> {
        let (start, cpu) = (Instant::now(), Cpu::now());
        let until = self.since.elapsed() + time;
        let mut notes = Notes::new(self.reading.block);
        for _ in 0..self.reading.depth {
            self.ask()?;
        }
        while !self.asked.is_empty() {
            let moments = self.receive()?;
            if moments.ready < until || notes.is_short() {
                self.ask()?;
            }
            notes.block(moments);
        }
        let seen = self.receiver.watched().seen.take().unwrap_or_default();
        Ok(notes.figures(start, Cpu::now().since(cpu), seen))
    }
}
