//! TCP on loopback: a thread that accepts connections, and a relay whose connections can be cut while both sides run.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, ensure};

/// Maximum number of concurrent connections; further ones are refused.
const CONNECTIONS_MAX: usize = 64;
/// Interval at which the threads check whether the relay has ended.
const POLL: Duration = Duration::from_millis(5);

/// A listener on a free port with its thread; dropping it ends the thread.
#[derive(Debug)]
pub struct Acceptor {
    port: u16,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Calls `serve` with each connection, one after the other. Their errors close only the connection.
    pub fn start(mut serve: impl FnMut(TcpStream) -> Result<()> + Send + 'static) -> Result<Self> {
        Self::run(move |listener, over| {
            while !over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((near, _)) => drop(near.set_nonblocking(false).map(|()| serve(near))),
                    Err(_) => std::thread::sleep(POLL),
                }
            }
        })
    }

    /// Runs `work` on a thread with a listener that does not block, until the flag is set.
    pub fn run(work: impl FnOnce(&TcpListener, &AtomicBool) + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let (port, over) = (listener.local_addr()?.port(), Arc::<AtomicBool>::default());
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || work(&listener, &ends));
        Ok(Self { port, over, thread: Some(thread) })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn portal(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Relays connections to a port; dropping it ends the relay.
#[derive(Debug)]
pub struct Relay {
    acceptor: Acceptor,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    pub fn start(port: u16) -> Result<Self> {
        let open = Arc::<Mutex<Vec<TcpStream>>>::default();
        let shared = Arc::clone(&open);
        Ok(Self { acceptor: Acceptor::start(move |near| pass_on(near, port, &shared))?, open })
    }

    pub fn portal(&self) -> String {
        self.acceptor.portal()
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
        self.cut();
    }
}

/// Connects to the target behind a relay. If it does not listen, the initiator's connection is closed.
pub fn join(near: &TcpStream, port: u16) -> std::io::Result<TcpStream> {
    let far = TcpStream::connect(("127.0.0.1", port))?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok(far)
}

fn pass_on(near: TcpStream, port: u16, open: &Mutex<Vec<TcpStream>>) -> Result<()> {
    let far = join(&near, port)?;
    let mut open = open.lock().expect("no panic under this lock");
    ensure!(open.len() < 2 * CONNECTIONS_MAX, "too many connections");
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
