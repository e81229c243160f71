//! A relay on loopback that delays and paces what passes: the round trips of a long path, without rights and without its packets.
//!
//! Both sides have TCP connections of their own to the relay. So the kernel measures the round trip to the relay, its
//! congestion control meets no bottleneck, and a lost segment costs a round trip and no rate.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::units;

/// Connections at once; further ones are closed.
const CONNECTIONS_MAX: usize = 8;
/// Bytes of one read from a connection.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes that wait in one direction of a connection, whatever path is asked for.
const HELD_BYTES_MAX: usize = 64 << 20;
const RTT_MAX: Duration = Duration::from_secs(2);
const LOSS_PERCENT_MAX: f64 = 10.0;
/// 1 Gbit/s.
const RATE: u64 = 125_000_000;
/// Payload of a segment of Ethernet, for which losses are counted.
const SEGMENT_BYTES: f64 = 1448.0;

/// `--wan`: round trip, share of lost segments, and bytes per second each way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wan {
    pub(super) rtt: Duration,
    /// From 0 to 1.
    pub(super) loss: f64,
    pub(super) bytes_per_s: u64,
}

impl FromStr for Wan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let rtt = units::parse_duration(parts.next().unwrap_or_default())?;
        if rtt > RTT_MAX {
            return Err(format!("a round trip is at most {}", units::duration(RTT_MAX)));
        }
        let loss = parts.next().map_or(Ok(0.0), parse_loss)?;
        let bytes_per_s = parts.next().map_or(Ok(RATE), units::parse_rate)?;
        match parts.next() {
            None => Ok(Self { rtt, loss, bytes_per_s }),
            Some(_) => Err("it is RTT, RTT,LOSS or RTT,LOSS,RATE".to_owned()),
        }
    }
}

/// A percentage, with or without its sign, as a share.
fn parse_loss(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.trim().trim_end_matches('%').trim().parse().ok();
    let percent = number.filter(|percent| (0.0..=LOSS_PERCENT_MAX).contains(percent));
    let percent = percent.ok_or_else(|| format!("a loss is from 0 to {LOSS_PERCENT_MAX}%, as 0.1%"))?;
    Ok(percent / 100.0)
}

impl Wan {
    /// `50.0 ms, 125 MB/s`, and the loss if there is any.
    pub(super) fn text(&self) -> String {
        let loss = if self.loss > 0.0 { format!(", {} % lost", self.loss * 100.0) } else { String::new() };
        format!("{}{loss}, {}", units::duration(self.rtt), units::rate(self.bytes_per_s as f64))
    }

    fn time_of(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64)
    }

    /// Twice what the path holds, as a router's queue would.
    fn held_bytes_max(&self) -> usize {
        let product = self.bytes_per_s as f64 * self.rtt.as_secs_f64();
        ((2.0 * product) as usize).clamp(4 * PIECE_BYTES, HELD_BYTES_MAX)
    }
}

/// A running relay. A drop closes its connections and ends its threads.
#[derive(Debug)]
pub(super) struct Relay {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    open: Connections,
    acceptor: Option<JoinHandle<()>>,
}

type Connections = Arc<Mutex<Vec<[TcpStream; 2]>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Relay {
    /// Listens on a free port of loopback.
    pub(super) fn start(target: SocketAddr, wan: Wan) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let (over, open) = (Arc::<AtomicBool>::default(), Connections::default());
        let (address, ends, connections) = (listener.local_addr()?, Arc::clone(&over), Arc::clone(&open));
        // All connections share the rate of each direction.
        let bottlenecks = [0, 1].map(|_| Arc::new(Mutex::new(Instant::now())));
        let accept = move || {
            for near in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let joined = near.and_then(|near| Ok([near, TcpStream::connect(target)?]));
                // A connection that cannot be joined is closed by its drop.
                let _ = joined.and_then(|sides| join(sides, wan, &bottlenecks, &connections));
            }
        };
        let acceptor = std::thread::Builder::new().name("relay".to_owned()).spawn(accept)?;
        Ok(Self { address, over, open, acceptor: Some(acceptor) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for side in lock(&self.open).drain(..).flatten() {
            let _ = side.shutdown(Shutdown::Both);
        }
    }
}

/// Starts both directions of a connection.
fn join(
    sides: [TcpStream; 2],
    wan: Wan,
    bottlenecks: &[Arc<Mutex<Instant>>; 2],
    open: &Connections,
) -> io::Result<()> {
    let mut open = lock(open);
    open.retain(|[near, _]| near.take_error().is_ok_and(|error| error.is_none()) && near.peer_addr().is_ok());
    if open.len() >= CONNECTIONS_MAX {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let now = Instant::now();
    for (from, bottleneck) in [0, 1].into_iter().zip(bottlenecks) {
        let line = Arc::new(Line {
            wan,
            bottleneck: Arc::clone(bottleneck),
            // On the path the connection would be established a round trip later, and then the first bytes would leave.
            held: Mutex::new(Held::new(if from == 0 { now + wan.rtt + wan.rtt / 2 } else { now })),
            changed: Condvar::new(),
        });
        let (mut source, mut sink) = (sides[from].try_clone()?, sides[1 - from].try_clone()?);
        sink.set_nodelay(true)?;
        let taking = Arc::clone(&line);
        std::thread::Builder::new().spawn(move || taking.take(&mut source))?;
        std::thread::Builder::new().spawn(move || line.deliver(&mut sink))?;
    }
    open.push(sides);
    Ok(())
}

/// One direction of a connection.
struct Line {
    wan: Wan,
    /// Time at which the bottleneck has sent all that it accepted.
    bottleneck: Arc<Mutex<Instant>>,
    held: Mutex<Held>,
    changed: Condvar,
}

/// Bytes on the way.
#[derive(Debug)]
struct Held {
    /// With the time at which they arrive; no bytes are the end.
    pieces: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// Arrival of the last piece: pieces keep their order.
    due: Instant,
    /// Segments since the last lost one, times the share that is lost.
    lost: f64,
    /// The receiver has gone.
    is_over: bool,
}

impl Held {
    fn new(now: Instant) -> Self {
        Self { pieces: VecDeque::new(), bytes: 0, due: now, lost: 0.0, is_over: false }
    }

    /// Accepts a piece that has left the bottleneck at `left`.
    fn push(&mut self, left: Instant, wan: &Wan, piece: Vec<u8>) {
        self.lost += wan.loss * (piece.len() as f64 / SEGMENT_BYTES).ceil();
        // What follows a lost segment waits until it was sent again.
        let again = if self.lost >= 1.0 { wan.rtt } else { Duration::ZERO };
        self.lost = self.lost.fract();
        self.due = self.due.max(left + wan.rtt / 2 + again);
        self.bytes += piece.len();
        self.pieces.push_back((self.due, piece));
    }
}

impl Line {
    /// Reads what arrives, until the end. Full, it reads nothing more, and TCP stops the sender.
    fn take(&self, source: &mut TcpStream) {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let count = source.read(&mut buffer).unwrap_or(0);
            let left = {
                let mut free = lock(&self.bottleneck);
                *free = (*free).max(Instant::now()) + self.wan.time_of(count);
                *free
            };
            let mut held = lock(&self.held);
            while held.bytes + count > self.wan.held_bytes_max() && !held.is_over {
                held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner);
            }
            if held.is_over {
                return;
            }
            held.push(left, &self.wan, buffer[..count].to_vec());
            self.changed.notify_all();
            if count == 0 {
                return;
            }
        }
    }

    /// Writes each piece when it is due.
    fn deliver(&self, sink: &mut TcpStream) {
        loop {
            let mut held = lock(&self.held);
            let (due, piece) = loop {
                match held.pieces.pop_front() {
                    Some(piece) => break piece,
                    None => held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(held);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if piece.is_empty() || sink.write_all(&piece).is_err() {
                break;
            }
            lock(&self.held).bytes -= piece.len();
            self.changed.notify_all();
        }
        lock(&self.held).is_over = true;
        self.changed.notify_all();
        // The other direction may go on.
        let _ = sink.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn wan(text: &str) -> Result<Wan, String> {
        text.parse()
    }

    #[test]
    fn paths_are_parsed() {
        let path = |ms, loss, bytes_per_s| Ok(Wan { rtt: MS * ms, loss, bytes_per_s });
        assert_eq!(wan("50ms"), path(50, 0.0, RATE));
        assert_eq!(wan("2s,0.5%"), path(2000, 0.005, RATE));
        assert_eq!(wan("0ms,1,20MB/s"), path(0, 0.01, 20_000_000));
        for wrong in
            ["", "50", "3s", "50ms,11%", "50ms,-1", "50ms,x", "50ms,nan", "50ms,0,0", "50ms,0,1MB/s,2"]
        {
            assert!(wan(wrong).is_err(), "{wrong}");
        }
        assert_eq!(wan("50ms,0.1%").unwrap().text(), "50.0 ms, 0.1 % lost, 125 MB/s");
        assert_eq!(wan("2s,0,100GB/s").unwrap().held_bytes_max(), HELD_BYTES_MAX);
    }

    #[test]
    fn pieces_arrive_in_order_and_a_lost_segment_holds_up_what_follows() {
        let now = Instant::now();
        let mut held = Held::new(now);
        let path = wan("100ms,1%").unwrap();
        // 46 segments each: the third piece has the hundredth.
        (0..4).for_each(|number| held.push(now + MS * number, &path, vec![0; PIECE_BYTES]));
        let due: Vec<_> = held.pieces.iter().map(|(due, _)| (*due - now).as_millis()).collect();
        assert_eq!(due, [50, 51, 152, 152]);
        assert_eq!(held.bytes, 4 * PIECE_BYTES);
    }

    #[test]
    fn what_passes_is_whole_late_and_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        // Answers with what it got, at the end.
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let relay = Relay::start(target, wan("20ms,0,100MB/s").unwrap()).unwrap();
        let mut near = TcpStream::connect(relay.address()).unwrap();
        let sent: Vec<u8> = (0..3_000_001u32).map(|at| (at >> 3) as u8).collect();
        let begun = Instant::now();
        let mut writer = near.try_clone().unwrap();
        let (data, mut got) = (sent.clone(), Vec::new());
        let writing = std::thread::spawn(move || {
            writer.write_all(&data).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        near.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
        // The connection, the way there, and the way back: two round trips, and each way the rate.
        assert!(begun.elapsed() >= MS * (40 + 30), "{:?}", begun.elapsed());
        writing.join().unwrap();
        echo.join().unwrap();
    }

    #[test]
    fn its_end_closes_its_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(listener.local_addr().unwrap(), wan("1ms").unwrap()).unwrap();
        let mut near = TcpStream::connect(relay.address()).unwrap();
        let (_far, _) = listener.accept().unwrap();
        // Joined at the latest when its bytes arrive.
        near.write_all(b"x").unwrap();
        std::thread::sleep(MS * 50);
        drop(relay);
        assert_eq!(near.read(&mut [0]).unwrap_or(0), 0);
    }
}
