//! Serves a file, or the files of a directory, by HTTP/1.1: GET and HEAD, connections kept open. Bytes of a file go from
//! the page cache into memory to send from, which the servers then read in place.
//!
//! ```text
//! http --socket /run/net.sock --listen 10.0.0.2:80 FILE
//! ```

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use net::socket::{Stack, TcpListener, TcpStream};

/// Connections served at once; others wait to be accepted.
const WORKERS: usize = 32;
/// A connection without a request for so long is closed.
const IDLE: Duration = Duration::from_secs(15);
const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// Of a file in one send.
const CHUNK_BYTES: usize = 512 << 10;
const HEADER_BYTES: usize = 4 << 10;
const USAGE: &str = "\
usage: http --socket PATH --listen ADDRESS:PORT FILE|DIRECTORY

Serves FILE as / and under its name, or the files of DIRECTORY, through the TCP/IP servers of hikyaku net up --socket PATH.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let (socket, listen, root) = match words[..] {
        ["--socket", socket, "--listen", listen, root] => (socket, listen.parse(), root),
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => return usage(),
    };
    let Ok(listen) = listen else { return usage() };
    match run(socket, listen, Path::new(root)) {
        Ok(()) => eprintln!("http: the servers at {socket} have ended, and its connections with them"),
        Err(error) => eprintln!("http: {error}"),
    }
    ExitCode::FAILURE
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Until the servers are gone.
fn run(socket: &str, listen: SocketAddr, root: &Path) -> io::Result<()> {
    let about =
        |what: String| move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    std::fs::metadata(root).map_err(about(format!("cannot serve {}", root.display())))?;
    let stack = Stack::connect(socket)
        .map_err(about(format!("cannot join the servers at {socket} (does hikyaku net up run?)")))?;
    let listener = TcpListener::bind(&stack, listen).map_err(about(format!("cannot listen on {listen}")))?;
    println!("http://{}/", listener.local_addr()?);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&stack, &listener, root));
        }
    });
    Ok(())
}

/// Connections one after another, until the servers are gone.
fn work(stack: &Stack, listener: &TcpListener, root: &Path) {
    for stream in listener.incoming() {
        let served = match stream {
            Ok(stream) => serve(stack, &stream, root),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => Err(error),
        };
        match served {
            Err(error) if error.kind() != ErrorKind::WouldBlock => eprintln!("{error}"),
            _ => {}
        }
    }
}

/// The requests of one connection.
fn serve(stack: &Stack, stream: &TcpStream, root: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        respond(stack, stream, root, &request)?;
        if !request.is_kept {
            break;
        }
    }
    Ok(())
}

struct Request {
    method: String,
    path: String,
    /// The connection is used for another request.
    is_kept: bool,
}

/// `None` if the peer has closed the connection between two requests.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut reader = reader.take(REQUEST_BYTES_MAX);
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut is_kept = words.next().is_some_and(|version| version == "HTTP/1.1");
    loop {
        let mut field = String::new();
        if reader.read_line(&mut field)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        match field.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("connection") => {
                is_kept &= !value.trim().eq_ignore_ascii_case("close");
            }
            Some(_) => {}
            None => return Ok(Some(Request { method, path, is_kept })),
        }
    }
}

/// The file of a request: below `root` if that is a directory; else `root` itself, as `/` and under its name.
fn find(root: &Path, path: &str) -> io::Result<File> {
    let below: PathBuf =
        Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let is_root = below.as_os_str().is_empty() || root.file_name() == Some(below.as_os_str());
    let file = match root.is_dir() {
        true => File::open(root.join(below))?,
        false if is_root => File::open(root)?,
        false => return Err(ErrorKind::NotFound.into()),
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(ErrorKind::NotFound.into()) }
}

fn respond(stack: &Stack, mut stream: &TcpStream, root: &Path, request: &Request) -> io::Result<()> {
    let end = if request.is_kept { "\r\n\r\n" } else { "\r\nConnection: close\r\n\r\n" };
    let mut file = match (request.method.as_str(), find(root, &request.path)) {
        ("GET" | "HEAD", Ok(file)) => file,
        ("GET" | "HEAD", Err(_)) => {
            return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0{end}");
        }
        _ => return write!(stream, "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0{end}"),
    };
    let mut left = file.metadata()?.len();
    let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {left}{end}");
    if request.method == "HEAD" {
        return stream.write_all(header.as_bytes());
    }
    // The first area begins with the header, so that a short file leaves in one segment.
    let mut area = stack.alloc(HEADER_BYTES.max(header.len()) + CHUNK_BYTES)?;
    area[..header.len()].copy_from_slice(header.as_bytes());
    let mut start = header.len();
    loop {
        let chunk = left.min(CHUNK_BYTES as u64) as usize;
        file.read_exact(&mut area[start..start + chunk])?;
        left -= chunk as u64;
        // Waits only while too much of this connection is not acknowledged. The area is free after its release.
        drop(stream.send(area, 0..start + chunk)?);
        if left == 0 {
            return Ok(());
        }
        area = stack.alloc(CHUNK_BYTES)?;
        start = 0;
    }
}
