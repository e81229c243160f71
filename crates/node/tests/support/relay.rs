//! A relay between initiator and target that can drop a login response.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

/// Login Response; transit to full feature phase (RFC 7143 §11.13).
const LOGIN_RESPONSE: u8 = 0x23;
const TO_FULL_FEATURE: u8 = 0x83;

/// Relays connections without digests until it is dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    /// The number of successful login responses to drop; each time the connection is closed instead.
    pub(crate) swallow: Arc<AtomicU32>,
    _acceptor: Acceptor,
}

impl Relay {
    pub(crate) fn start(target: SocketAddr) -> Self {
        let swallow = Arc::new(AtomicU32::new(0));
        let shared = Arc::clone(&swallow);
        let acceptor = Acceptor::start(target, move |client, server| relay(client, server, &shared));
        Self { address: acceptor.address, swallow, _acceptor: acceptor }
    }
}

/// Connects each of its clients to a target, one client at a time, until it is dropped.
pub(crate) struct Acceptor {
    pub(crate) address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    pub(crate) fn start(target: SocketAddr, relay: impl Fn(&TcpStream, &TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            // At most one client connects at a time; a connection without data ends the relay.
            while let Ok((client, _)) = listener.accept() {
                let mut first = [0];
                if !matches!(client.peek(&mut first), Ok(1)) {
                    return;
                }
                if let Ok(server) = TcpStream::connect(target) {
                    relay(&client, &server);
                }
            }
        });
        Self { address, thread: Some(thread) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        drop(TcpStream::connect(self.address));
        let _ = self.thread.take().expect("dropped once").join();
    }
}

/// Relays until either side closes.
fn relay(client: &TcpStream, server: &TcpStream, swallow: &AtomicU32) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::copy(&mut &*client, &mut &*server);
            let _ = server.shutdown(Shutdown::Both);
        });
        while let Ok(pdu) = pdu(server) {
            let login = pdu[0] & 0x3F == LOGIN_RESPONSE && pdu[1] & TO_FULL_FEATURE == TO_FULL_FEATURE;
            let left = |count: u32| count.checked_sub(1);
            if login && swallow.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok() {
                break;
            }
            if (&mut &*client).write_all(&pdu).is_err() {
                break;
            }
        }
        for stream in [client, server] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

fn pdu(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut pdu = vec![0; 48];
    stream.read_exact(&mut pdu)?;
    let data = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
    pdu.resize(48 + usize::from(pdu[4]) * 4 + data.next_multiple_of(4), 0);
    stream.read_exact(&mut pdu[48..])?;
    Ok(pdu)
}
