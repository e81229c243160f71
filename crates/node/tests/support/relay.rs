//! A relay between initiator and target that can drop what the target answers at the begin of a session.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

/// Login Response; transit to full feature phase (RFC 7143 §11.13).
const LOGIN_RESPONSE: u8 = 0x23;
const TO_FULL_FEATURE: u8 = 0x83;

/// Relays connections without digests until it is dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    pub(crate) faults: Arc<Faults>,
    _acceptor: Acceptor,
}

/// What a relay does to sessions; nothing at first.
#[derive(Default)]
pub(crate) struct Faults {
    /// The number of sessions to end.
    pub(crate) sessions: AtomicU32,
    /// The PDU of the target that does not arrive, counted from the login response, which is 0.
    pub(crate) at: AtomicU32,
    /// Does not end the session: holds back this PDU and all later ones until the target closes the connection, and then
    /// passes them on together.
    pub(crate) holds: AtomicBool,
    /// A PDU is held back.
    pub(crate) is_holding: AtomicBool,
}

impl Relay {
    pub(crate) fn start(target: SocketAddr) -> Self {
        let faults = Arc::<Faults>::default();
        let shared = Arc::clone(&faults);
        let acceptor = Acceptor::start(target, move |client, server| relay(client, server, &shared));
        Self { address: acceptor.address, faults, _acceptor: acceptor }
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
fn relay(client: &TcpStream, server: &TcpStream, faults: &Faults) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::copy(&mut &*client, &mut &*server);
            let _ = server.shutdown(Shutdown::Both);
        });
        // The number of PDUs that still pass.
        let mut passing = None;
        while let Ok(mut pdu) = pdu(server) {
            let login = pdu[0] & 0x3F == LOGIN_RESPONSE && pdu[1] & TO_FULL_FEATURE == TO_FULL_FEATURE;
            let left = |count: u32| count.checked_sub(1);
            if login && faults.sessions.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
                passing = Some(faults.at.load(Ordering::SeqCst));
            }
            if passing == Some(0) {
                if !faults.holds.load(Ordering::SeqCst) {
                    break;
                }
                faults.is_holding.store(true, Ordering::SeqCst);
                let _ = (&mut &*server).read_to_end(&mut pdu);
            }
            passing = passing.map(|count| count.saturating_sub(1));
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
