//! A TCP relay on loopback that cuts its connections at random bytes, in one of several ways.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::RngExt;
use rand::rngs::StdRng;

use crate::relay::{self, Acceptor};

/// Maximum number of bytes read at once in one direction.
const PART_BYTES: usize = 64 << 10;
/// Sleep between two passes over all sockets when none had data.
const IDLE_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum lifetime of a connection that is to be cut, so that idle ones are cut, too.
const LIFE_MAX: Duration = Duration::from_secs(4);
/// Delay of the bytes of a dead connection: longer than the initiator's timeout, so that they arrive after its
/// reconnection.
const LATE: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Closed on both sides, at any byte.
    Close,
    /// Closed towards the initiator only; the target receives neither data nor an end.
    HalfOpen,
    /// Neither side receives anything; the initiator's last bytes reach the target after the initiator has reconnected.
    Late,
}

#[derive(Clone, Copy, Debug)]
struct Fate {
    bytes: usize,
    at: Instant,
    ending: Ending,
}

#[derive(Debug)]
struct Fates {
    rng: StdRng,
    /// Whether the last connection was cut early. Two early cuts in a row are avoided: otherwise a command that is
    /// longer than the bytes before the cut would be repeated for ever.
    early: bool,
}

impl Fates {
    fn draw(&mut self) -> Fate {
        let rng = &mut self.rng;
        self.early = !self.early;
        // An early cut: every magnitude from the middle of a login to a few commands. Otherwise after some seconds of
        // work.
        let magnitude = if self.early { rng.random_range(9..=18u32) } else { 24 };
        let bytes = rng.random_range(1..=1usize << magnitude);
        let at = Instant::now() + LIFE_MAX.mul_f64(rng.random_range(0.1..1.0));
        let ending = [Ending::Close, Ending::Close, Ending::HalfOpen, Ending::Late][rng.random_range(0..4)];
        Fate { bytes, at, ending }
    }
}

#[derive(Debug, Default)]
struct Pipe {
    waiting: VecDeque<u8>,
}

impl Pipe {
    /// Moves available bytes, and reads at most `bytes_max`. Returns the number of bytes read, or `None` at the end of
    /// the stream.
    fn turn(&mut self, from: &mut TcpStream, to: &mut TcpStream, bytes_max: usize) -> Option<usize> {
        let mut taken = 0;
        if self.waiting.is_empty() {
            let mut part = vec![0; PART_BYTES.min(bytes_max)];
            match from.read(&mut part) {
                Ok(0) if !part.is_empty() => return None,
                Ok(count) => taken = count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
            self.waiting.extend(&part[..taken]);
        }
        self.send(to).then_some(taken)
    }

    fn send(&mut self, to: &mut TcpStream) -> bool {
        while !self.waiting.is_empty() {
            match to.write(self.waiting.as_slices().0) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

#[derive(Debug)]
struct Link {
    initiator: TcpStream,
    target: TcpStream,
    out: Pipe,
    back: Pipe,
    fate: Option<Fate>,
    /// Set when the connection is cut: until then the side towards the target stays open.
    lingers: Option<Instant>,
}

impl Link {
    fn new(initiator: TcpStream, port: u16, fate: Option<Fate>) -> std::io::Result<Self> {
        let target = relay::join(&initiator, port)?;
        initiator.set_nonblocking(true)?;
        target.set_nonblocking(true)?;
        Ok(Self { initiator, target, out: Pipe::default(), back: Pipe::default(), fate, lingers: None })
    }

    /// Moves bytes; false when the link has ended. Sets `moved` if any byte was moved.
    fn turn(&mut self, moved: &mut bool, cuts: &AtomicUsize) -> bool {
        if let Some(until) = self.lingers {
            return self.linger(until);
        }
        let budget = self.fate.map_or(usize::MAX, |fate| fate.bytes);
        let Some(out) = self.out.turn(&mut self.initiator, &mut self.target, budget) else { return false };
        let Some(back) = self.back.turn(&mut self.target, &mut self.initiator, budget - out) else {
            return false;
        };
        *moved |= out + back > 0;
        let Some(fate) = &mut self.fate else { return true };
        fate.bytes -= out + back;
        if fate.bytes > 0 && Instant::now() < fate.at {
            return true;
        }
        cuts.fetch_add(1, Ordering::Relaxed);
        match fate.ending {
            Ending::Close => return false,
            Ending::HalfOpen => drop(self.initiator.shutdown(Shutdown::Both)),
            Ending::Late => {}
        }
        self.lingers = Some(Instant::now() + LATE);
        true
    }

    fn linger(&mut self, until: Instant) -> bool {
        if Instant::now() < until {
            return true;
        }
        // Bytes of commands that the initiator has already repeated on another connection.
        let mut part = vec![0; 4 * PART_BYTES];
        if let Ok(count) = self.initiator.read(&mut part) {
            self.out.waiting.extend(&part[..count]);
        }
        self.out.send(&mut self.target);
        false
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// Draws the fate of new connections; with `None` they are not cut.
    fates: Mutex<Option<Fates>>,
    cuts: AtomicUsize,
}

/// The relay; dropping it ends it and closes all connections.
#[derive(Debug)]
pub struct Cutter {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

impl Cutter {
    /// Listens on a free port and relays to `target_port`, without cuts until [`Cutter::arm`].
    pub fn start(target_port: u16) -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let links = Arc::clone(&shared);
        let acceptor = Acceptor::run(move |listener, over| relay(listener, target_port, &links, over))?;
        Ok(Self { acceptor, shared })
    }

    pub fn port(&self) -> u16 {
        self.acceptor.port()
    }

    /// From now on cuts every connection, existing ones included, sooner or later.
    pub fn arm(&self, rng: StdRng) {
        *self.shared.fates.lock().expect("no panic under this lock") = Some(Fates { rng, early: false });
    }

    pub fn disarm(&self) {
        *self.shared.fates.lock().expect("no panic under this lock") = None;
    }

    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

fn relay(listener: &TcpListener, target_port: u16, shared: &Shared, over: &AtomicBool) {
    let mut links: Vec<Link> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let mut moved = false;
        {
            let mut fates = shared.fates.lock().expect("no panic under this lock");
            if let Ok((initiator, _)) = listener.accept() {
                // If the target does not listen, the initiator's connection is closed.
                links.extend(Link::new(initiator, target_port, fates.as_mut().map(Fates::draw)).ok());
            }
            for link in &mut links {
                match fates.as_mut() {
                    Some(fates) => drop(link.fate.get_or_insert_with(|| fates.draw())),
                    None if link.lingers.is_none() => link.fate = None,
                    None => {}
                }
            }
        }
        links.retain_mut(|link| link.turn(&mut moved, &shared.cuts));
        if !moved {
            std::thread::sleep(IDLE_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::random;

    use super::*;

    /// Sends until the relay closes the connection; returns the number of echoed bytes.
    fn echo_until_cut(cutter: &Cutter) -> usize {
        let mut client = TcpStream::connect(("127.0.0.1", cutter.port())).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (mut sent, mut part) = (0, [7; 512]);
        while client.write_all(&part).is_ok() && client.read_exact(&mut part).is_ok() {
            sent += part.len();
        }
        sent
    }

    #[test]
    fn armed_cuts_unarmed_does_not() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let cutter = Cutter::start(server.local_addr().unwrap().port()).unwrap();
        std::thread::spawn(move || {
            for stream in server.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        let mut client = TcpStream::connect(("127.0.0.1", cutter.port())).unwrap();
        let mut part = [3; 100_000];
        client.write_all(&part).unwrap();
        client.read_exact(&mut part).unwrap();
        assert_eq!((cutter.cuts(), part[99_999]), (0, 3));
        drop(client);
        cutter.arm(random::seeded(4));
        let first = echo_until_cut(&cutter);
        let second = echo_until_cut(&cutter);
        assert!(cutter.cuts() >= 2 && first != second, "{} {first} {second}", cutter.cuts());
    }
}
