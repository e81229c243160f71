//! The baseline: kernel sockets over a veth pair, or over any path to the peer.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};

use super::near::Connection;
use super::peer::{receive_all, retry, send_all};
use super::waiting::Waiting;

pub(super) struct Kernel {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Kernel {
    pub(super) fn connect(to: SocketAddr, waiting: Waiting) -> io::Result<Self> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(waiting == Waiting::Spin)?;
        Ok(Self { stream, buffer: vec![7; 1 << 20] })
    }
}

impl Connection for Kernel {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        send_all(&mut self.stream, bytes)
    }

    fn send_ready(&mut self, bytes: usize) -> io::Result<()> {
        send_all(&mut self.stream, &self.buffer[..bytes])
    }

    /// write(2) returns when the device has the frame.
    fn submitted(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn receive_all(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let length = bytes.len();
        receive_all(&mut self.stream, bytes, length)
    }

    fn receive_some(&mut self) -> io::Result<usize> {
        retry(|| self.stream.read(&mut self.buffer))
    }

    fn receive_into(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| self.stream.read(buffer))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }
}
