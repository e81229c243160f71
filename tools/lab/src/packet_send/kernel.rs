//! The baseline: kernel sockets over a veth pair, or over any path to the peer; and the peer's socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use inet::Time;
use net::wait::{Next, Turn, Waiter};
use rustix::event::PollFlags;

use super::near::Connection;
use super::waiting::Waiting;

/// A kernel socket whose owner waits as it is told.
pub(super) struct Socket {
    stream: TcpStream,
    waiter: Option<Waiter>,
    sleeps: bool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, waiting: Waiting) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(waiting != Waiting::Block)?;
        Ok(Self { stream, waiter: waiting.waiter()?, sleeps: waiting.sleeps() })
    }

    /// Repeats a call until it does something.
    fn repeat<T>(
        &mut self,
        interest: PollFlags,
        mut call: impl FnMut(&mut TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match call(&mut self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &mut self.waiter {
                    None => std::hint::spin_loop(),
                    Some(waiter) => match waiter.after(Turn::Nothing) {
                        Next::Look => {}
                        Next::Sleep if self.sleeps => {
                            waiter.sleep(&[(self.stream.as_fd(), interest)], Time::NEVER)?;
                        }
                        // An end that only looks is never idle.
                        Next::Sleep => std::thread::yield_now(),
                    },
                },
                done => return done,
            }
        }
    }

    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.repeat(PollFlags::IN, |stream| stream.read(buffer))
    }

    pub(super) fn receive_all(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut have = 0;
        while have < bytes.len() {
            match self.receive(&mut bytes[have..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => have += count,
            }
        }
        Ok(())
    }

    pub(super) fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.repeat(PollFlags::OUT, |stream| stream.write(&bytes[sent..]))?;
        }
        if let Some(waiter) = &mut self.waiter {
            let _ = waiter.after(Turn::Handed);
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }
}

pub(super) struct Kernel {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Kernel {
    pub(super) fn connect(to: SocketAddr, waiting: Waiting) -> io::Result<Self> {
        let socket = Socket::new(TcpStream::connect(to)?, waiting)?;
        Ok(Self { socket, buffer: vec![7; 1 << 20] })
    }
}

impl Connection for Kernel {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.send_all(bytes)
    }

    fn send_ready(&mut self, bytes: usize) -> io::Result<()> {
        self.socket.send_all(&self.buffer[..bytes])
    }

    fn receive_all(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.socket.receive_all(bytes)
    }

    fn receive_some(&mut self) -> io::Result<usize> {
        self.socket.receive(&mut self.buffer)
    }

    fn receive_into(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.receive(buffer)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.socket.finish()
    }
}
