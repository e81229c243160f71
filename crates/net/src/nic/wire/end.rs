//! One end of a wire, as its supervisor sees it: how two stacks find each other at a path, and again after one has ended.
//!
//! The first that comes listens at the path as long as it lives; the second connects. A connection begins with one
//! message each way: what it is, and whether it has become the other end. After that it carries frames.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use thiserror::Error;

use super::opened;
use crate::nic::Opened;
use crate::socket_file::{self, Joined, Listener, connect_or_listen};

/// What the connecting end says, and the two answers.
const GREETING: &[u8] = b"hikyaku wire 1";
const JOINED: &[u8] = b"joined";
const IN_USE: &[u8] = b"in use";
/// Time for the answer: the listening end's supervisor waits for nothing, but may be starting servers.
const ANSWER: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// Time for the greeting, which was sent before the connection was accepted, or almost.
const HELLO: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Why a stack cannot become an end of a wire.
#[derive(Debug, Error)]
pub enum Fault {
    #[error(transparent)]
    Socket(#[from] socket_file::Fault),
    #[error("two stacks use this wire already")]
    InUse,
    #[error("the process that listens there is no end of a wire, or of another release")]
    Stranger,
}

#[derive(Debug)]
pub struct End {
    path: PathBuf,
    /// Of the end that came first.
    listener: Option<Listener>,
}

impl End {
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), listener: None }
    }

    /// Joins the other end; `None` if none is there: it will connect ([`End::accept`]). To be called again when the other
    /// end has ended.
    pub fn join(&mut self) -> Result<Option<Opened>, Fault> {
        if self.listener.is_some() {
            return Ok(None);
        }
        match connect_or_listen(&self.path)? {
            Joined::Listening(listener) => {
                self.listener = Some(listener);
                Ok(None)
            }
            Joined::Connected(socket) => {
                greet(&socket)?;
                Ok(Some(opened(socket).map_err(socket_file::Fault::System)?))
            }
        }
    }

    /// Readable when a stack connects.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// Accepts a connection: the other end, unless there `is_one` already.
    pub fn accept(&self, is_one: bool) -> Option<Opened> {
        let socket =
            accept_with(self.listener.as_ref()?, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
        if message(&socket, HELLO).ok()? != GREETING {
            return None;
        }
        let answer = if is_one { IN_USE } else { JOINED };
        send(&socket, answer, SendFlags::NOSIGNAL).ok()?;
        if is_one { None } else { opened(socket).ok() }
    }
}

fn greet(socket: &OwnedFd) -> Result<(), Fault> {
    // An error shows when the answer is awaited.
    let _ = send(socket, GREETING, SendFlags::NOSIGNAL);
    match message(socket, ANSWER) {
        Ok(answer) if answer == JOINED => Ok(()),
        Ok(answer) if answer == IN_USE => Err(Fault::InUse),
        _ => Err(Fault::Stranger),
    }
}

/// The first message, empty at the end of the connection. Its length is that of the longest, plus one.
fn message(socket: &OwnedFd, limit: Timespec) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; GREETING.len() + 1];
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit))?;
    let (count, _) = recv(socket, &mut bytes[..], RecvFlags::DONTWAIT)?;
    bytes.truncate(count);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// `one` accepts while `two` joins.
    fn join(one: &End, is_one: bool, two: &mut End) -> (Option<Opened>, Result<Option<Opened>, Fault>) {
        thread::scope(|scope| {
            let accepted = scope.spawn(move || {
                let listener = one.listener().expect("it came first");
                poll(&mut [PollFd::from_borrowed_fd(listener, PollFlags::IN)], Some(&ANSWER)).unwrap();
                one.accept(is_one)
            });
            let joined = two.join();
            (accepted.join().unwrap(), joined)
        })
    }

    fn carries(from: &Opened, to: &Opened) -> bool {
        send(&from.descriptor, b"frame", SendFlags::empty()).unwrap();
        message(&to.descriptor, ANSWER).unwrap() == b"frame"
    }

    #[test]
    fn a_third_end_is_refused_and_a_new_second_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wire");
        let [mut one, mut two, mut three] = [(); 3].map(|()| End::new(&path));
        assert!(one.join().unwrap().is_none() && one.join().unwrap().is_none());
        let (Some(ours), Ok(Some(theirs))) = join(&one, false, &mut two) else { panic!("not joined") };
        assert!(carries(&ours, &theirs) && carries(&theirs, &ours));
        assert!(matches!(join(&one, true, &mut three), (None, Err(Fault::InUse))));
        drop((two, theirs));
        assert!(matches!(join(&one, false, &mut three), (Some(_), Ok(Some(_)))));
    }

    #[test]
    fn the_second_end_listens_once_the_first_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wire");
        let [mut one, mut two] = [(); 2].map(|()| End::new(&path));
        assert!(one.join().unwrap().is_none());
        assert!(matches!(join(&one, false, &mut two), (Some(_), Ok(Some(_)))));
        drop(one);
        assert!(two.join().unwrap().is_none() && path.exists());
        let mut one = End::new(&path);
        assert!(matches!(join(&two, false, &mut one), (Some(_), Ok(Some(_)))));
        drop(two);
        assert!(!path.exists());
    }

    #[test]
    fn a_process_that_is_no_end_of_a_wire_is_not_joined() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wire");
        let mut one = End::new(&path);
        assert!(one.join().unwrap().is_none());
        let Joined::Connected(stranger) = connect_or_listen(&path).unwrap() else { panic!("it listens") };
        send(&stranger, b"{\"status\":null}", SendFlags::empty()).unwrap();
        assert!(one.accept(false).is_none());
        let mut two = End::new(&path);
        thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let listener = one.listener().expect("it came first");
                poll(&mut [PollFd::from_borrowed_fd(listener, PollFlags::IN)], Some(&ANSWER)).unwrap();
                drop(accept_with(listener, SocketFlags::CLOEXEC));
            });
            assert!(matches!(two.join(), Err(Fault::Stranger)));
            accepted.join().unwrap();
        });
    }
}
