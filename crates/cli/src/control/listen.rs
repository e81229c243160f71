//! The process's side of its control socket.
//!
//! [`ControlSocket::open`] creates the socket, [`ControlSocket::serve`] answers until [`ControlSocket::close`] is called
//! by another thread; the last reference removes the file. A connection that sends no request in time is closed.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};

use super::{REQUEST_BYTES_MAX, Request, SUFFIX, Timed};
use crate::error::Failure;
use crate::{output, sys};

/// Bound of connections at a time; more are closed.
const CONNECTIONS_MAX: usize = 8;
/// Time for a request to arrive, and for a response to be taken.
const EXCHANGE_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept, as when no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Open connections; `close` ends them.
    open: Mutex<Vec<Arc<UnixStream>>>,
    closed: AtomicBool,
}

impl ControlSocket {
    /// Creates the socket of this process, running `command`, and its directory if need be.
    pub(crate) fn open(directory: &Path, command: &str) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let name = format!("{command}-{}", std::process::id());
        let (path, new) = (directory.join(format!("{name}{SUFFIX}")), directory.join(format!("{name}.new")));
        let listener = bind(&path, &new).inspect_err(|_| drop(fs::remove_file(&new)))?;
        Ok(Self { listener, path, open: Mutex::default(), closed: AtomicBool::new(false) })
    }

    /// Answers requests, each on a thread of its own, until the socket is closed.
    pub(crate) fn serve(&self, answer: impl Fn(Request) -> Result<Value, Failure> + Sync) {
        std::thread::scope(|scope| {
            while !self.closed.load(Ordering::Acquire) {
                let Ok((stream, _)) = self.listener.accept() else {
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                let stream = Arc::new(stream);
                if !self.admit(&stream) {
                    continue;
                }
                let answer = &answer;
                let talk = {
                    let stream = Arc::clone(&stream);
                    move || {
                        // The peer sees the end of the connection.
                        let _ = talk(&stream, answer);
                        self.dismiss(&stream);
                    }
                };
                let name = "control-answer".to_owned();
                if std::thread::Builder::new().name(name).spawn_scoped(scope, talk).is_err() {
                    self.dismiss(&stream);
                }
            }
        });
    }

    /// Adds a connection to the open ones. False: there are too many, or the socket is closed.
    fn admit(&self, stream: &Arc<UnixStream>) -> bool {
        let mut open = self.streams();
        let admitted = open.len() < CONNECTIONS_MAX && !self.closed.load(Ordering::Acquire);
        if admitted {
            open.push(Arc::clone(stream));
        }
        admitted
    }

    fn dismiss(&self, stream: &Arc<UnixStream>) {
        self.streams().retain(|open| !Arc::ptr_eq(open, stream));
    }

    /// The list is consistent after every statement: poisoning is ignored.
    fn streams(&self) -> MutexGuard<'_, Vec<Arc<UnixStream>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().expect("a file in a directory")
    }

    /// Ends [`Self::serve`] and its connections, and removes the file.
    pub(crate) fn close(&self) {
        let _ = fs::remove_file(&self.path);
        let open = self.streams();
        self.closed.store(true, Ordering::Release);
        // Ends a waiting `accept`; fails only if there is none.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for stream in &*open {
            // A response that is being sent still arrives.
            let _ = stream.shutdown(std::net::Shutdown::Read);
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Listens at `path`. The socket gets this name when it listens: `status` removes a socket that refuses connections, as
/// that of a dead process. A dead process of the same number may have left a socket under each of the two names.
fn bind(path: &Path, new: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(new) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            fs::remove_file(new)?;
            UnixListener::bind(new)?
        }
        bound => bound?,
    };
    fs::set_permissions(new, Permissions::from_mode(0o600))?;
    fs::rename(new, path)?;
    Ok(listener)
}

fn talk(stream: &UnixStream, answer: impl Fn(Request) -> Result<Value, Failure>) -> io::Result<()> {
    stream.set_write_timeout(Some(EXCHANGE_MAX))?;
    let line = receive(stream, Instant::now() + EXCHANGE_MAX)?;
    let user = socket_peercred(stream)?.uid.as_raw();
    if user != sys::user() && user != 0 {
        return respond(stream, &refused("the socket is for the user of this process and root"));
    }
    let response = match Request::parse(&line) {
        Ok(request) => answer(request).unwrap_or_else(|failure| failure.to_json()),
        Err(cause) => refused(&cause),
    };
    respond(stream, &response)
}

/// Reads a request, of which one byte more than the bound. The time limit is that of all its bytes together.
fn receive(stream: &UnixStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let bytes = Timed { stream, until }.take(REQUEST_BYTES_MAX as u64 + 1);
    BufReader::new(bytes).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn refused(cause: &str) -> Value {
    Failure::usage("understand the request", "", cause).to_json()
}

fn respond(mut stream: &UnixStream, response: &Value) -> io::Result<()> {
    let response = match response.get("schema") {
        Some(_) => response.clone(),
        None => {
            let mut object = json!({ "schema": output::SCHEMA });
            let fields = response.as_object().cloned().unwrap_or_default();
            object.as_object_mut().expect("an object").extend(fields);
            object
        }
    };
    stream.write_all(format!("{response}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn opened(directory: &Path) -> (Arc<ControlSocket>, std::thread::JoinHandle<()>) {
        let socket = Arc::new(ControlSocket::open(directory, "serve").unwrap());
        let thread = std::thread::spawn({
            let socket = Arc::clone(&socket);
            move || {
                socket.serve(|request| match request {
                    Request::Status {} => Ok(json!({ "state": "fine" })),
                    other => Err(Failure::usage("do", "this", format!("{other:?}"))),
                });
            }
        });
        (socket, thread)
    }

    fn ask(socket: &ControlSocket, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(&socket.path).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn requests_are_answered_and_nonsense_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let (socket, thread) = opened(&home.path().join("hikyaku"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&socket.path), mode(socket.path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(ask(&socket, b"{\"request\":\"status\"}\n"), "{\"schema\":1,\"state\":\"fine\"}\n");
        for bytes in
            [&b"\n"[..], b"", b"\xff\xff\n", b"{\"request\":\"halt\"}\n", b"{\"request\":\"drain\"}\n"]
        {
            let answer: Value = serde_json::from_str(&ask(&socket, bytes)).unwrap();
            assert!(answer["error"]["cause"].is_string() && answer["schema"] == 1, "{answer}");
        }
        let long = vec![b' '; REQUEST_BYTES_MAX + 1];
        assert!(ask(&socket, &long).contains("at most 65536 bytes"));
        let path = socket.path.clone();
        socket.close();
        thread.join().unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_request_that_arrives_slowly_is_cut() {
        let (stream, mut peer) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..20 {
                    let _ = peer.write_all(b" ");
                    std::thread::sleep(Duration::from_millis(25));
                }
            });
            let started = Instant::now();
            receive(&stream, started + Duration::from_millis(200)).unwrap_err();
            assert!(started.elapsed() < Duration::from_millis(450), "{:?}", started.elapsed());
        });
    }

    #[test]
    fn silent_connections_do_not_keep_others_out_for_ever() {
        let home = tempfile::tempdir().unwrap();
        let (socket, thread) = opened(home.path());
        let silent: Vec<_> =
            (0..CONNECTIONS_MAX).map(|_| UnixStream::connect(&socket.path).unwrap()).collect();
        let mut stream = UnixStream::connect(&socket.path).unwrap();
        let _ = stream.write_all(b"{\"request\":\"status\"}\n");
        let mut text = String::new();
        assert!(!matches!(stream.read_to_string(&mut text), Ok(1..)), "the bound is reached: {text}");
        drop(silent);
        let deadline = Instant::now() + EXCHANGE_MAX;
        while !ask_if_open(&socket).contains("fine") {
            assert!(Instant::now() < deadline);
        }
        socket.close();
        thread.join().unwrap();
    }

    fn ask_if_open(socket: &ControlSocket) -> String {
        let mut text = String::new();
        if let Ok(mut stream) = UnixStream::connect(&socket.path)
            && stream.write_all(b"{\"request\":\"status\"}\n").is_ok()
        {
            let _ = stream.read_to_string(&mut text);
        }
        text
    }

    #[test]
    fn sockets_left_by_a_dead_process_are_replaced() {
        let home = tempfile::tempdir().unwrap();
        for suffix in ["sock", "new"] {
            let name = format!("serve-{}.{suffix}", std::process::id());
            drop(UnixListener::bind(home.path().join(name)).unwrap());
        }
        let (socket, thread) = opened(home.path());
        assert!(ask(&socket, b"{\"request\":\"status\"}\n").contains("fine"));
        socket.close();
        thread.join().unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }

    /// A reader that removes what refuses connections, as `status` does, never meets a socket that does not listen yet.
    #[test]
    fn a_socket_listens_when_it_gets_its_name() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(format!("serve-{}.sock", std::process::id()));
        let (attempts, refusals, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let error = UnixStream::connect(&path).err().map(|error| error.kind());
                    let is_refused = error == Some(io::ErrorKind::ConnectionRefused);
                    refusals.fetch_add(is_refused.into(), Ordering::SeqCst);
                    attempts.fetch_add(1, Ordering::SeqCst);
                }
            });
            for _ in 0..1000 {
                let socket = ControlSocket::open(home.path(), "serve").unwrap();
                fs::remove_file(&path).unwrap();
                // An attempt that has found the file ends before the socket is closed, which would refuse it.
                let before = attempts.load(Ordering::SeqCst);
                while attempts.load(Ordering::SeqCst) < before + 2 {
                    std::thread::yield_now();
                }
                drop(socket);
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert_eq!(refusals.into_inner(), 0);
    }
}
