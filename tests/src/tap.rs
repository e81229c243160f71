//! A TCP relay on loopback that records every byte, and whose [`Middle`] can alter the stream.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::process::wait_until;
use crate::relay::{self, Acceptor};

/// Maximum number of connections of one tap, over its whole life.
const CONNECTIONS_MAX: usize = 256;
/// Bytes kept of one direction, from its beginning.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Time without data after which held bytes are passed on.
const IDLE: Duration = Duration::from_millis(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    ToTarget,
    ToInitiator,
}

impl Way {
    pub const BOTH: [Self; 2] = [Self::ToTarget, Self::ToInitiator];
}

pub trait Middle: Send {
    /// Called with received bytes, or with none after `IDLE`. The bytes to send instead are appended to `out`.
    /// `false` ends the connection after `out` is sent.
    fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool;
}

pub struct Passive;

impl Middle for Passive {
    fn pass(&mut self, _way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(bytes);
        true
    }
}

#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Bytes sent by each side, before alteration.
    sent: [Vec<u8>; 2],
    /// Time at which the first side closed the connection.
    pub ended: Option<Instant>,
}

impl Conversation {
    pub fn sent(&self, way: Way) -> &[u8] {
        &self.sent[way as usize]
    }
}

type Conversations = Arc<Mutex<Vec<Conversation>>>;
/// Returns the [`Middle`] of the connection with this number.
pub type Chooser = Box<dyn FnMut(usize) -> Box<dyn Middle> + Send>;

/// Listens and relays; dropping it ends the tap.
#[derive(Debug)]
pub struct Tap {
    acceptor: Acceptor,
    conversations: Conversations,
    over: Arc<AtomicBool>,
}

impl Tap {
    pub fn start(port: u16, mut chooser: Chooser) -> Result<Self> {
        let (conversations, over) = (Conversations::default(), Arc::<AtomicBool>::default());
        let (shared, ends) = (Arc::clone(&conversations), Arc::clone(&over));
        let acceptor = Acceptor::start(move |near| join(near, port, &shared, &mut chooser, &ends))?;
        Ok(Self { acceptor, conversations, over })
    }

    pub fn passive(port: u16) -> Result<Self> {
        Self::start(port, Box::new(|_| Box::new(Passive)))
    }

    pub fn portal(&self) -> String {
        self.acceptor.portal()
    }

    pub fn conversations(&self) -> Vec<Conversation> {
        self.conversations.lock().expect("no panic under this lock").clone()
    }

    pub fn wait_ended(&self, index: usize, limit: Duration) -> Result<Conversation> {
        let mut found = None;
        let ended = wait_until(limit, || {
            found = self.conversations().get(index).cloned();
            Ok(found.as_ref().is_some_and(|conversation| conversation.ended.is_some()))
        });
        let found = found.with_context(|| format!("there was no connection {index}"))?;
        ended.with_context(|| format!("connection {index} still stands"))?;
        Ok(found)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn join(
    near: TcpStream,
    port: u16,
    conversations: &Conversations,
    chooser: &mut Chooser,
    over: &Arc<AtomicBool>,
) -> Result<()> {
    let index = {
        let mut all = conversations.lock().expect("no panic under this lock");
        ensure!(all.len() < CONNECTIONS_MAX, "too many connections");
        all.push(Conversation::default());
        all.len() - 1
    };
    let middle = Arc::new(Mutex::new(chooser(index)));
    let far = relay::join(&near, port)?;
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(IDLE))?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    }
    let ways = [(near.try_clone()?, far.try_clone()?, Way::ToTarget), (far, near, Way::ToInitiator)];
    for (from, to, way) in ways {
        let (middle, conversations, over) =
            (Arc::clone(&middle), Arc::clone(conversations), Arc::clone(over));
        std::thread::spawn(move || {
            relay(&from, &to, way, &middle, &over, |bytes| {
                let mut all = conversations.lock().expect("no panic under this lock");
                let kept = &mut all[index].sent[way as usize];
                let room = KEPT_BYTES_MAX.saturating_sub(kept.len());
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            });
            let mut all = conversations.lock().expect("no panic under this lock");
            all[index].ended.get_or_insert_with(Instant::now);
            drop(all);
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
    Ok(())
}

fn relay(
    mut from: &TcpStream,
    mut to: &TcpStream,
    way: Way,
    middle: &Mutex<Box<dyn Middle>>,
    over: &AtomicBool,
    mut keep: impl FnMut(&[u8]),
) {
    let mut buffer = vec![0; 64 << 10];
    let mut out = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(_) => break,
        };
        keep(&buffer[..count]);
        out.clear();
        let goes_on = middle.lock().expect("no panic under this lock").pass(way, &buffer[..count], &mut out);
        if to.write_all(&out).is_err() || !goes_on {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    struct Uppercase;

    impl Middle for Uppercase {
        fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
            out.extend(bytes.iter().map(u8::to_ascii_uppercase));
            !(way == Way::ToInitiator && bytes.contains(&b'!'))
        }
    }

    #[test]
    fn it_records_what_was_sent_and_sends_what_the_middle_returns() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let tap = Tap::start(server.local_addr().unwrap().port(), Box::new(|_| Box::new(Uppercase))).unwrap();
        let mut near = TcpStream::connect(tap.portal()).unwrap();
        let mut far = server.accept().unwrap().0;
        near.write_all(b"say").unwrap();
        let mut received = [0; 3];
        far.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"SAY");
        far.write_all(b"no!").unwrap();
        near.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"NO!");
        assert_eq!(near.read(&mut received).unwrap_or(0), 0, "it ended the connection");
        let all = tap.wait_ended(0, Duration::from_secs(5)).unwrap();
        assert_eq!((all.sent(Way::ToTarget), all.sent(Way::ToInitiator)), (&b"say"[..], &b"no!"[..]));
    }
}
