//! A connection over the servers of crate `net`.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use net::socket::{SendArea, Stack, TcpStream, Ticket};

use super::near::Connection;

/// Areas that take turns in a stream, so that the hot ones stay in the cache.
const AREAS: usize = 8;
const ATTACH_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Ours {
    stack: Stack,
    stream: TcpStream,
    flying: VecDeque<Ticket>,
    free: Vec<SendArea>,
}

impl Ours {
    pub(super) fn connect(stack: Stack, to: SocketAddr) -> io::Result<Self> {
        let stream = connect(&stack, to)?;
        Ok(Self { stack, stream, flying: VecDeque::new(), free: Vec::new() })
    }

    /// An area of which the last send is released. Half of them are waited for at a time, so that several sends are
    /// handed over before the next process runs.
    fn area(&mut self, bytes: usize) -> io::Result<SendArea> {
        if self.free.is_empty() && self.flying.len() >= AREAS {
            let mut tickets: Vec<_> = self.flying.drain(..AREAS / 2).collect();
            // The last one first: it waits for all.
            while let Some(ticket) = tickets.pop() {
                self.free.push(ticket.released()?);
            }
        }
        match self.free.pop() {
            Some(area) if area.len() == bytes => Ok(area),
            _ => {
                let mut area = self.stack.alloc(bytes)?;
                area.fill(7);
                Ok(area)
            }
        }
    }
}

/// Connects to the peer, without Nagle's algorithm. There is no route until the driver has attached.
pub(super) fn connect(stack: &Stack, to: SocketAddr) -> io::Result<TcpStream> {
    let begin = Instant::now();
    loop {
        match TcpStream::connect(stack, to) {
            Err(error)
                if error.kind() == ErrorKind::NetworkUnreachable && begin.elapsed() < ATTACH_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            connected => {
                let stream = connected?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
        }
    }
}

impl Connection for Ours {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    fn send_ready(&mut self, bytes: usize) -> io::Result<()> {
        let area = self.area(bytes)?;
        let ticket = self.stream.send(area, 0..bytes)?;
        self.flying.push_back(ticket);
        Ok(())
    }

    fn receive_all(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes)
    }

    fn receive_some(&mut self) -> io::Result<usize> {
        Ok(self.stream.recv()?.map_or(0, |area| area.len()))
    }

    fn receive_into(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }
}
