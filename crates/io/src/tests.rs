//! The loop against real files, sockets and the clock.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use super::*;

fn io() -> Io {
    Io::new(PoolLimits::default()).unwrap()
}

fn next(io: &mut Io) -> Event {
    let mut events = Vec::new();
    while events.is_empty() {
        io.turn(&mut events).unwrap();
    }
    assert_eq!(events.len(), 1);
    events.pop().unwrap()
}

#[test]
fn a_file_write_is_read_back() {
    let mut io = io();
    let owner = io.owner();
    let file: Handle = Rc::new(tempfile::tempfile().unwrap().into());
    let span = io.pool().take(8192).unwrap();
    span.fill(0, &[7; 8192]);
    io.write(Token { owner, key: 1 }, &file, 4096, span, Durability::Durable);
    assert_eq!(next(&mut io).bytes().unwrap(), 8192);
    io.sync(Token { owner, key: 2 }, &file);
    assert_eq!(next(&mut io).bytes().unwrap(), 0);
    let back = io.pool().take(16384).unwrap();
    io.read(Token { owner, key: 3 }, &file, 0, back.clone());
    let event = next(&mut io);
    assert_eq!((event.token.key, event.bytes().unwrap()), (3, 12288));
    assert!(back.as_slice()[..4096].iter().all(|byte| *byte == 0));
    assert!(back.as_slice()[4096..12288].iter().all(|byte| *byte == 7));
}

#[test]
fn a_bad_descriptor_is_an_event_not_a_failure_of_the_loop() {
    let mut io = io();
    let owner = io.owner();
    let (reader, _writer) = io::pipe().unwrap();
    let pipe: Handle = Rc::new(OwnedFd::from(reader));
    io.allocate(Token { owner, key: 9 }, &pipe, Allocation::PunchHole, 0, 4096);
    assert!(next(&mut io).bytes().is_err());
}

#[test]
fn a_stream_gathers_headers_and_spans_in_order() {
    let mut io = io();
    let owner = io.owner();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener: Handle = Rc::new(listener.into());
    let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let client: Handle = Rc::new(client.into());
    io.accept(Token { owner, key: 0 }, &listener);
    io.connect(Token { owner, key: 1 }, &client, address);
    let mut server = None;
    let mut events = Vec::new();
    while server.is_none() || io.in_flight() > 0 {
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            if event.token.key == 0 {
                server = Some(event.into_handle().unwrap());
            } else {
                event.bytes().unwrap();
            }
        }
    }
    let payload = io.pool().take(1 << 20).unwrap();
    payload.fill(0, &[3; 1 << 20]);
    let mut outgoing = Box::<Outgoing>::default();
    outgoing.bytes(b"head");
    outgoing.bytes(b"er");
    outgoing.span(payload);
    outgoing.bytes(b"tail");
    io.send(Token { owner, key: 2 }, &client, outgoing);
    let server = server.unwrap();
    let mut total = 0;
    let mut bytes = Vec::new();
    while bytes.len() < (1 << 20) + 10 {
        let buffer = io.pool().take(65536).unwrap();
        let mut incoming = Box::<Incoming>::default();
        incoming.push(buffer.slice(0, 100));
        incoming.push(buffer.slice(100, 65436));
        io.receive(Token { owner, key: 3 }, &server, incoming);
        let mut received = false;
        while !received {
            io.turn(&mut events).unwrap();
            for event in events.drain(..) {
                let count = event.bytes().unwrap();
                match event.item {
                    Item::Incoming(_) => {
                        bytes.extend_from_slice(&buffer.as_slice()[..count]);
                        received = true;
                    }
                    Item::Outgoing(mut outgoing) => {
                        outgoing.advance(count);
                        total += count;
                        if !outgoing.is_empty() {
                            io.send(Token { owner, key: 2 }, &client, outgoing);
                        }
                    }
                    _ => unreachable!(),
                }
            }
        }
    }
    assert_eq!(total, bytes.len());
    assert_eq!(&bytes[..6], b"header");
    assert!(bytes[6..6 + (1 << 20)].iter().all(|byte| *byte == 3));
    assert_eq!(&bytes[6 + (1 << 20)..], b"tail");
}

#[test]
fn advance_resumes_inside_a_piece() {
    let pool = Pool::new(PoolLimits::default());
    let mut outgoing = Outgoing::default();
    outgoing.bytes(b"abcdef");
    outgoing.span(pool.take(10).unwrap());
    outgoing.advance(4);
    outgoing.advance(5);
    // SAFETY: the message was just built from live pieces.
    let vectors = unsafe { std::slice::from_raw_parts((*outgoing.message()).msg_iov, 1) };
    assert_eq!(vectors[0].iov_len, 7);
    outgoing.advance(7);
    assert!(outgoing.is_empty());
    assert_eq!(pool.lent(), 0, "spans are let go when sent");
}

#[test]
fn timers_come_in_order_and_wakers_wake() {
    let mut io = io();
    let owner = io.owner();
    let start = io.now();
    io.timer(Token { owner, key: 2 }, start + Duration::from_millis(20));
    io.timer(Token { owner, key: 1 }, start + Duration::from_millis(5));
    assert_eq!(next(&mut io).token.key, 1);
    assert_eq!(next(&mut io).token.key, 2);
    assert!(io.now() >= start + Duration::from_millis(20));
    let waker = io.waker(Token { owner, key: 7 }).unwrap();
    for _ in 0..3 {
        let waker = waker.clone();
        std::thread::spawn(move || waker.wake()).join().unwrap();
        assert_eq!(next(&mut io).token.key, 7);
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Tests of this file run beside each other, so descriptors are counted over many rounds.
#[test]
fn dropping_the_loop_takes_back_what_is_in_flight() {
    let before = descriptors();
    let mut pools = Vec::new();
    for _ in 0..100 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut io = io();
        let owner = io.owner();
        let mut incoming = Box::<Incoming>::default();
        incoming.push(io.pool().take(4096).unwrap());
        io.receive(Token { owner, key: 0 }, &Rc::new(client.into()), incoming);
        let _waker = io.waker(Token { owner, key: 1 }).unwrap();
        let listener: Handle = Rc::new(listener.into());
        io.accept(Token { owner, key: 2 }, &listener);
        io.accept(Token { owner, key: 3 }, &listener);
        let until = io.now() + Duration::from_millis(1);
        // The event of the first accept goes unheard.
        io.turn_until(Some(until), &mut Vec::new()).unwrap();
        pools.push(io.pool().clone());
    }
    assert!(pools.iter().all(|pool| pool.lent() == 0), "memory is back");
    assert!(descriptors() < before + 50, "descriptors are closed");
}

#[test]
fn more_operations_than_the_queue_holds_all_complete() {
    let mut io = io();
    let owner = io.owner();
    let file: Handle = Rc::new(tempfile::tempfile().unwrap().into());
    let count = 20 * SUBMISSIONS_MAX;
    let span = io.pool().take(8).unwrap();
    for key in 0..count {
        io.write(Token { owner, key }, &file, u64::from(key) * 8, span.clone(), Durability::Volatile);
    }
    let (mut events, mut seen) = (Vec::new(), vec![false; count as usize]);
    while io.in_flight() > 0 {
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            assert_eq!(event.bytes().unwrap(), 8);
            assert!(!std::mem::replace(&mut seen[event.token.key as usize], true));
        }
    }
    assert!(seen.iter().all(|seen| *seen));
}

#[test]
fn immediate_events_do_not_starve_the_kernels() {
    let mut io = io();
    let owner = io.owner();
    let waker = io.waker(Token { owner, key: 7 }).unwrap();
    std::thread::spawn(move || waker.wake()).join().unwrap();
    let mut events = Vec::new();
    let woken = (0..100_000).any(|_| {
        io.soon(Token { owner, key: 1 });
        io.turn(&mut events).unwrap();
        events.drain(..).any(|event| event.token.key == 7)
    });
    assert!(woken);
}
