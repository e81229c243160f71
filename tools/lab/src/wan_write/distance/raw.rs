//! A transfer over a plain socket: what a path carries at best. The near end is a process that is measured from its start
//! to its exit; the far end serves all transfers of a path.
//!
//! The near end sends 9 bytes, what it wants and how much; then the data flows, and after a write one byte confirms that all of
//! it has arrived.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::super::initiator::connect;
use super::super::writer::{Ready, enter};
use super::plan::Way;
use crate::part::{Orders, send};
use crate::{Attempted, LabError};

/// Bytes of a call.
const CHUNK_BYTES: usize = 256 << 10;
const READS: u8 = b'r';
const WRITES: u8 = b'w';
const CONFIRMED: u8 = b'.';

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Near {
    /// The file of the network namespace.
    pub(crate) namespace: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) bytes: u64,
    pub(crate) reads: bool,
}

impl Near {
    pub(super) fn new(namespace: PathBuf, address: SocketAddr, bytes: u64, way: Way) -> Self {
        Self { namespace, address, bytes, reads: way == Way::Read }
    }

    /// One transfer; takes no orders.
    pub(crate) fn run(self) -> Result<(), LabError> {
        enter(&self.namespace)?;
        self.transfer().attempted(&format!("move {} bytes to or from {}", self.bytes, self.address))
    }

    fn transfer(&self) -> std::io::Result<()> {
        let mut stream = connect(self.address, None)?;
        let mut order = [if self.reads { READS } else { WRITES }; 9];
        order[1..].copy_from_slice(&self.bytes.to_be_bytes());
        stream.write_all(&order)?;
        if self.reads {
            return receive(&mut stream, self.bytes);
        }
        transmit(&mut stream, self.bytes)?;
        stream.read_exact(&mut [0])
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Far {
    pub(crate) namespace: PathBuf,
    pub(crate) address: SocketAddr,
}

impl Far {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        enter(&self.namespace)?;
        let doing = format!("listen at {}", self.address);
        let listener = TcpListener::bind(self.address).attempted(&doing)?;
        let accept = move || {
            for mut stream in listener.incoming().flatten() {
                // An error ends the connection, which the near end reports.
                std::thread::spawn(move || serve(&mut stream));
            }
        };
        std::thread::Builder::new().name("far end".to_owned()).spawn(accept).attempted(&doing)?;
        send(&Ready { pid: std::process::id() })?;
        orders.serve(|_| Ok(()))
    }
}

fn serve(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut order = [0; 9];
    stream.read_exact(&mut order)?;
    let [way, bytes @ ..] = order;
    let bytes = u64::from_be_bytes(bytes);
    if way == READS {
        return transmit(stream, bytes);
    }
    receive(stream, bytes)?;
    stream.write_all(&[CONFIRMED])
}

fn transmit(stream: &mut TcpStream, bytes: u64) -> std::io::Result<()> {
    let chunk = vec![0x5a; CHUNK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(CHUNK_BYTES as u64);
        stream.write_all(&chunk[..length as usize])?;
        left -= length;
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, bytes: u64) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(CHUNK_BYTES as u64) as usize;
        match stream.read(&mut chunk[..length])? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => left -= count as u64,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_confirm_that_all_has_arrived() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let far = std::thread::spawn(move || {
            for _ in 0..2 {
                serve(&mut listener.accept().unwrap().0).unwrap();
            }
            // The third transfer ends before all has arrived.
            listener.accept().unwrap();
        });
        let near = |way| Near::new(PathBuf::new(), address, 1_000_003, way).transfer();
        near(Way::Write).unwrap();
        near(Way::Read).unwrap();
        assert!(near(Way::Read).is_err());
        far.join().unwrap();
    }
}
