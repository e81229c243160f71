//! A TCP relay on loopback whose connections can be cut while both sides run.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

/// Maximum number of concurrent connections; further ones are refused.
const CONNECTIONS_MAX: usize = 64;
/// Interval at which the threads check whether the relay has ended.
const POLL: Duration = Duration::from_millis(5);

/// Relays connections to an address; dropping it ends the relay.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    over: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Relay {
    pub fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (open, over) = (Arc::<Mutex<Vec<TcpStream>>>::default(), Arc::<AtomicBool>::default());
        let (shared, ends) = (Arc::clone(&open), Arc::clone(&over));
        let acceptor = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                match listener.accept() {
                    // If the target does not listen, the initiator's connection is closed.
                    Ok((near, _)) => drop(pass_on(near, port, &shared)),
                    Err(_) => std::thread::sleep(POLL),
                }
            }
        });
        Ok(Self { address, open, over, acceptor: Some(acceptor) })
    }

    pub fn portal(&self) -> String {
        self.address.to_string()
    }

    pub fn cut(&self) -> usize {
        let cut = std::mem::take(&mut *self.open.lock().expect("no panic under this lock"));
        for stream in &cut {
            let _ = stream.shutdown(Shutdown::Both);
        }
        cut.len() / 2
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.cut();
    }
}

fn pass_on(near: TcpStream, port: u16, open: &Mutex<Vec<TcpStream>>) -> Result<()> {
    near.set_nonblocking(false)?;
    let far = TcpStream::connect(("127.0.0.1", port))?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
    }
    let mut open = open.lock().expect("no panic under this lock");
    anyhow::ensure!(open.len() < 2 * CONNECTIONS_MAX, "too many connections");
    open.extend([near.try_clone()?, far.try_clone()?]);
    for (from, to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        std::thread::spawn(move || copy(from, to));
    }
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_on_and_cuts() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let relay = Relay::start(listener.local_addr().unwrap().port()).unwrap();
        let mut near = TcpStream::connect(relay.portal()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let mut byte = [0];
        near.write_all(b"x").unwrap();
        far.read_exact(&mut byte).unwrap();
        far.write_all(b"y").unwrap();
        near.read_exact(&mut byte).unwrap();
        assert_eq!((&byte, relay.cut()), (b"y", 1));
        assert_eq!(near.read(&mut byte).unwrap_or(0), 0);
        assert_eq!(far.read(&mut byte).unwrap_or(0), 0);
    }
}
