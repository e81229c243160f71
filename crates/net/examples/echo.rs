//! Sends back what arrives, by area: the bytes are copied once, from where the driver put them into memory to send from.
//!
//! ```text
//! echo --socket /run/net.sock --listen 10.0.0.2:7
//! echo --socket /run/net.sock --connect 10.0.0.1:7 --bytes 256 --count 10000
//! ```

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Instant;

use net::socket::{Stack, TcpListener, TcpStream};

const USAGE: &str =
    "echo --socket PATH (--listen ADDRESS:PORT | --connect ADDRESS:PORT [--bytes N] [--count N])";

struct Arguments {
    socket: String,
    listen: Option<SocketAddr>,
    connect: Option<SocketAddr>,
    bytes: usize,
    count: usize,
}

fn arguments() -> Option<Arguments> {
    let mut found =
        Arguments { socket: String::new(), listen: None, connect: None, bytes: 256, count: 10_000 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--socket" => found.socket = value,
            "--listen" => found.listen = Some(value.parse().ok()?),
            "--connect" => found.connect = Some(value.parse().ok()?),
            "--bytes" => found.bytes = value.parse().ok()?,
            "--count" => found.count = value.parse().ok().filter(|&count| count > 0)?,
            _ => return None,
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments().filter(|found| found.listen.is_some() != found.connect.is_some())
    else {
        eprintln!("usage: {USAGE}");
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let stack = Stack::connect(&arguments.socket)?;
    match (arguments.listen, arguments.connect) {
        (Some(address), _) => serve(&stack, address),
        (None, Some(address)) => measure(&stack, address, arguments.bytes, arguments.count),
        (None, None) => Ok(()),
    }
}

fn serve(stack: &Stack, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(stack, address)?;
    println!("echo at {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let (stack, stream) = (stack.clone(), stream?);
        std::thread::spawn(move || {
            if let Err(error) = echo(&stack, &stream) {
                eprintln!("{stream:?}: {error}");
            }
        });
    }
    Ok(())
}

/// Until the peer closes its direction.
fn echo(stack: &Stack, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(received) = stream.recv()? {
        let mut area = stack.alloc(received.len())?;
        let [first, second] = received.slices();
        area[..first.len()].copy_from_slice(first);
        area[first.len()..].copy_from_slice(second);
        // Gives the memory back in which the driver received.
        drop(received);
        let length = area.len();
        // The area is free once the peer has acknowledged its bytes: nothing here waits for that.
        drop(stream.send(area, 0..length)?);
    }
    Ok(())
}

/// Sends messages and waits for each to come back, by the calls of std.
fn measure(stack: &Stack, address: SocketAddr, bytes: usize, count: usize) -> io::Result<()> {
    let mut stream = TcpStream::connect(stack, address)?;
    stream.set_nodelay(true)?;
    let (message, mut answer) = (vec![0x5A; bytes], vec![0; bytes]);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut answer)?;
        times.push(start.elapsed());
        if answer != message {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "other bytes came back"));
        }
    }
    times.sort_unstable();
    println!(
        "{count} messages of {bytes} bytes: median {:?}, p99 {:?}",
        times[count / 2],
        times[count * 99 / 100]
    );
    Ok(())
}
