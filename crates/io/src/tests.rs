//! The loop against real files, sockets and the real clock.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use super::choice::Kind;
use super::*;

/// Makes two tests of each function, one for each back end.
macro_rules! on_both_back_ends {
    ($($name:ident,)*) => {
        mod uring {
            $(#[test] fn $name() { super::$name(super::Kind::Uring); })*
        }
        mod portable {
            $(#[test] fn $name() { super::$name(super::Kind::Portable); })*
        }
    };
}

mod files;

on_both_back_ends! {
    a_file_write_is_read_back,
    memory_that_moved_is_known_to_the_kernel,
    a_busy_peer_is_awaited_without_sleeping,
    a_bad_descriptor_is_an_event_not_a_failure_of_the_loop,
    a_stream_gathers_headers_and_spans_in_order,
    timers_come_in_order_and_wakers_wake,
    events_of_others_wait_for_a_turn_of_theirs,
    dropping_the_loop_takes_back_what_is_in_flight,
    more_operations_than_the_queue_holds_all_complete,
    immediate_events_do_not_starve_the_kernels,
    idle_work_waits_for_a_turn_without_events_and_keeps_the_loop_awake,
    file_operations_at_random_offsets_do_not_mix,
    freed_blocks_read_as_zeroes,
    a_file_that_can_be_polled_is_read_at_its_offset,
    streams_that_stay_silent_leave_files_alone,
    sends_complete_while_a_receive_waits_on_the_same_socket,
    a_refused_connect_says_so,
    sockets_arrive_and_stay_blocking,
    the_end_of_a_stream_is_zero_bytes,
    shutting_a_socket_down_ends_what_waits_on_it,
    a_thousand_sockets_come_and_go,
    a_poll_tells_of_what_is_there_and_takes_nothing,
    dropping_the_loop_while_files_are_written_is_safe,
    a_deadline_is_met_and_no_time_means_no_waiting,
    a_sleep_outlasts_the_limits_of_those_before_it,
    bytes_in_flight_are_watched,
    helpers_change_bytes_and_wake_a_loop_that_sleeps,
    work_that_panics_is_an_error_of_its_event,
    dropping_the_loop_waits_for_helpers,
}

/// A loop, and an owner in it.
fn io(kind: Kind) -> (Io, Owner) {
    let io = Io::with_backend(Some(kind), PoolLimits::default()).unwrap();
    let owner = io.owner();
    (io, owner)
}

fn temporary() -> Handle {
    Rc::new(tempfile::tempfile().unwrap().into())
}

fn unconnected() -> socket2::Socket {
    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap()
}

/// A listening socket and its address.
fn listener() -> (Handle, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (Rc::new(listener.into()), address)
}

fn next(io: &mut Io) -> Event {
    let mut events = Vec::new();
    while events.is_empty() {
        io.turn(&mut events).unwrap();
    }
    assert_eq!(events.len(), 1);
    events.pop().unwrap()
}

/// Key and number of bytes of the next event.
fn count(io: &mut Io) -> (u32, usize) {
    let event = next(io);
    (event.token.key, event.bytes().unwrap())
}

fn a_file_write_is_read_back(kind: Kind) {
    let (mut io, owner) = io(kind);
    let file = temporary();
    let span = io.pool().take(8192).unwrap();
    span.fill(0, &[7; 8192]);
    io.write(Token { owner, key: 1 }, &file, 4096, span, Durability::Durable);
    assert_eq!(next(&mut io).bytes().unwrap(), 8192);
    io.sync(Token { owner, key: 2 }, &file);
    assert_eq!(next(&mut io).bytes().unwrap(), 0);
    let back = io.pool().take(16384).unwrap();
    io.read(Token { owner, key: 3 }, &file, 0, back.clone());
    assert_eq!(count(&mut io), (3, 12288));
    assert!(back.as_slice()[..4096].iter().all(|byte| *byte == 0));
    assert!(back.as_slice()[4096..12288].iter().all(|byte| *byte == 7));
}

/// The pool has room for one region at a time: each size reuses the place and the index of the previous one.
fn memory_that_moved_is_known_to_the_kernel(kind: Kind) {
    let backend = choice::open(Some(kind)).unwrap();
    let mut io = Io::over(backend, PoolLimits { bytes_max: 2 << 20 });
    let owner = io.owner();
    let file = temporary();
    for round in 0..20u8 {
        let length = [4096, 1 << 20, 8192, 128 << 10][usize::from(round % 4)];
        let span = io.pool().take(length).unwrap();
        span.fill(0, &vec![round; length]);
        io.write(Token { owner, key: 1 }, &file, 0, span, Durability::Volatile);
        assert_eq!(next(&mut io).bytes().unwrap(), length);
        let back = io.pool().take(length).unwrap();
        back.fill(0, &vec![0xFF; length]);
        io.read(Token { owner, key: 2 }, &file, 0, back.clone());
        assert_eq!(next(&mut io).bytes().unwrap(), length);
        assert!(back.as_slice().iter().all(|byte| *byte == round), "round {round}");
    }
}

/// The peer answers from another thread within microseconds, so after a while few waits sleep. That requires idle
/// cores, so the test only asserts that both modes work.
fn a_busy_peer_is_awaited_without_sleeping(kind: Kind) {
    for is_on in [true, false] {
        let (mut io, owner) = io(kind);
        io.spin = Spin::new(is_on);
        let (ours, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket: Handle = Rc::new(OwnedFd::from(ours));
        let echo = std::thread::spawn(move || {
            let mut byte = [0; 1];
            while peer.read(&mut byte).unwrap() == 1 {
                peer.write_all(&byte).unwrap();
            }
        });
        let mut incoming = Box::new(Incoming::default());
        for round in 0..1000u32 {
            let mut outgoing = Box::new(Outgoing::default());
            outgoing.bytes(&[round as u8]);
            io.send(Token { owner, key: 1 }, &socket, outgoing);
            assert_eq!(next(&mut io).bytes().unwrap(), 1);
            let span = io.pool().take(1).unwrap();
            incoming.clear();
            incoming.push(span.clone());
            io.receive(Token { owner, key: 2 }, &socket, incoming);
            let event = next(&mut io);
            assert_eq!(event.bytes().unwrap(), 1);
            assert_eq!(span.as_slice(), [round as u8]);
            let Item::Incoming(back) = event.item else { panic!("a receive returns its spans") };
            incoming = back;
        }
        let report = io.spin_report();
        assert!(is_on || report == SpinReport::default(), "off: {report:?}");
        drop((io, socket));
        echo.join().unwrap();
    }
}

fn a_bad_descriptor_is_an_event_not_a_failure_of_the_loop(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (reader, _writer) = io::pipe().unwrap();
    let pipe: Handle = Rc::new(OwnedFd::from(reader));
    io.allocate(Token { owner, key: 9 }, &pipe, Allocation::PunchHole, 0, 4096);
    assert!(next(&mut io).bytes().is_err());
}

fn a_stream_gathers_headers_and_spans_in_order(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (listener, address) = listener();
    let client: Handle = Rc::new(unconnected().into());
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
fn advance_resumes_inside_a_segment() {
    let pool = Pool::new(PoolLimits::default());
    let mut outgoing = Outgoing::default();
    outgoing.bytes(b"abcdef");
    outgoing.span(pool.take(10).unwrap());
    outgoing.advance(4);
    outgoing.advance(5);
    // SAFETY: the message was just built from live segments.
    let vectors = unsafe { std::slice::from_raw_parts((*outgoing.message()).msg_iov, 1) };
    assert_eq!(vectors[0].iov_len, 7);
    outgoing.advance(7);
    assert!(outgoing.is_empty());
    assert_eq!(pool.borrowed(), 0, "spans are let go when sent");
}

fn a_poll_tells_of_what_is_there_and_takes_nothing(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (reader, mut writer) = io::pipe().unwrap();
    let pipe: Handle = Rc::new(OwnedFd::from(reader.try_clone().unwrap()));
    io.poll(Token { owner, key: 1 }, &pipe);
    let mut events = Vec::new();
    io.turn_until(Some(io.clock() + Duration::from_millis(20)), &mut events).unwrap();
    assert!(events.is_empty(), "nothing is there");
    writer.write_all(&[7]).unwrap();
    let event = next(&mut io);
    assert_eq!((event.token.key, event.result & i32::from(libc::POLLIN)), (1, i32::from(libc::POLLIN)));
    io.poll(Token { owner, key: 2 }, &pipe);
    assert_eq!(next(&mut io).token.key, 2, "it is there still");
    let mut byte = [0];
    (&reader).read_exact(&mut byte).unwrap();
    assert_eq!(byte, [7]);
    drop(writer);
    io.poll(Token { owner, key: 3 }, &pipe);
    let event = next(&mut io);
    assert_eq!(event.result & i32::from(libc::POLLHUP), i32::from(libc::POLLHUP), "the other end has gone");
}

fn timers_come_in_order_and_wakers_wake(kind: Kind) {
    let (mut io, owner) = io(kind);
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

fn events_of_others_wait_for_a_turn_of_theirs(kind: Kind) {
    let (mut io, ours) = io(kind);
    let theirs = io.owner();
    let start = io.now();
    for key in 1..4 {
        io.timer(Token { owner: theirs, key }, start + Duration::from_millis(key.into()));
    }
    io.timer(Token { owner: ours, key: 9 }, start + Duration::from_millis(10));
    io.soon(Token { owner: theirs, key: 0 });
    let mut events = Vec::new();
    let mut turns = 0;
    while events.is_empty() {
        io.turn_for(|owner| owner == ours, None, &mut events).unwrap();
        turns += 1;
    }
    assert!(turns < 10, "what is kept keeps nobody awake: {turns} turns");
    assert_eq!((events.len(), events[0].token.key), (1, 9));
    // Events of one owner for a turn of that owner only: first the kept ones, then the new ones.
    io.soon(Token { owner: theirs, key: 4 });
    io.soon(Token { owner: ours, key: 10 });
    events.clear();
    io.turn_for(|owner| owner == theirs, None, &mut events).unwrap();
    assert_eq!(events.iter().map(|event| event.token.key).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(next(&mut io).token.key, 10);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The tests of this file run in parallel, so descriptors are counted over many rounds.
fn dropping_the_loop_takes_back_what_is_in_flight(kind: Kind) {
    let before = descriptors();
    let mut pools = Vec::new();
    for _ in 0..100 {
        let (listener, address) = listener();
        let client = TcpStream::connect(address).unwrap();
        let (mut io, owner) = io(kind);
        receive(&mut io, Token { owner, key: 0 }, &Rc::new(client.into()));
        let _waker = io.waker(Token { owner, key: 1 }).unwrap();
        io.accept(Token { owner, key: 2 }, &listener);
        io.accept(Token { owner, key: 3 }, &listener);
        let until = io.now() + Duration::from_millis(1);
        // The event of the first accept is not handled.
        io.turn_until(Some(until), &mut Vec::new()).unwrap();
        pools.push(io.pool().clone());
    }
    assert!(pools.iter().all(|pool| pool.borrowed() == 0), "memory is back");
    assert!(descriptors() < before + 50, "descriptors are closed");
}

fn more_operations_than_the_queue_holds_all_complete(kind: Kind) {
    let (mut io, owner) = io(kind);
    let file = temporary();
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

fn immediate_events_do_not_starve_the_kernels(kind: Kind) {
    let (mut io, owner) = io(kind);
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

fn idle_work_waits_for_a_turn_without_events_and_keeps_the_loop_awake(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (near, mut far) = pair();
    let near: Handle = Rc::new(near.into());
    far.write_all(b"here").unwrap();
    let _place = receive(&mut io, Token { owner, key: 1 }, &near);
    io.idle(Token { owner, key: 8 });
    io.idle(Token { owner, key: 9 });
    io.soon(Token { owner, key: 0 });
    let start = io.now();
    io.timer(Token { owner, key: 2 }, start);
    let mut events = Vec::new();
    let mut seen = Vec::new();
    while seen.len() < 5 {
        // After the other events only the idle ones end a turn.
        io.turn(&mut events).unwrap();
        let keys: Vec<u32> = events.drain(..).map(|event| event.token.key).collect();
        assert!(keys.len() == 1 || keys.iter().all(|key| *key < 8), "idle work beside events: {keys:?}");
        seen.extend(keys);
    }
    let place = |key| seen.iter().position(|seen| *seen == key).unwrap();
    assert_eq!(place(8) + 1, place(9), "one in a turn, in order: {seen:?}");
    assert!(place(0) < place(8) && place(2) < place(8), "{seen:?}");
}

/// Both ends of a connection over loopback.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn receive(io: &mut Io, token: Token, socket: &Handle) -> Span {
    let span = io.pool().take(4096).unwrap();
    let mut incoming = Box::<Incoming>::default();
    incoming.push(span.clone());
    io.receive(token, socket, incoming);
    span
}

fn send(io: &mut Io, token: Token, socket: &Handle, bytes: &[u8]) {
    let mut outgoing = Box::<Outgoing>::default();
    outgoing.bytes(bytes);
    io.send(token, socket, outgoing);
}

/// A small random generator with a fixed seed (Knuth's MMIX constants).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn file_operations_at_random_offsets_do_not_mix(kind: Kind) {
    const SLOT: u64 = 4096;
    const SLOTS: u64 = 64;
    let (mut io, owner) = io(kind);
    let file = temporary();
    let mut random = Random(42);
    let mut model = [0u8; SLOTS as usize];
    let mut busy: HashMap<u32, bool> = HashMap::new();
    let mut events = Vec::new();
    let (mut started, mut serial) = (0, 0u8);
    File::from(file.try_clone().unwrap()).set_len(SLOT * SLOTS).unwrap();
    while started < 4000 || io.in_flight() > 0 {
        while started < 4000 && busy.len() < 32 {
            let slot = random.below(SLOTS) as u32;
            if busy.contains_key(&slot) {
                continue;
            }
            started += 1;
            let (token, offset) = (Token { owner, key: slot }, u64::from(slot) * SLOT);
            let span = io.pool().take(SLOT as usize).unwrap();
            let is_read = random.below(2) == 0;
            busy.insert(slot, is_read);
            if is_read {
                io.read(token, &file, offset, span);
                continue;
            }
            serial = serial.wrapping_add(1);
            model[slot as usize] = serial;
            span.fill(0, &[serial; SLOT as usize]);
            let durable = random.below(20) == 0;
            let durability = if durable { Durability::Durable } else { Durability::Volatile };
            io.write(token, &file, offset, span, durability);
        }
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            assert_eq!(event.bytes().unwrap(), SLOT as usize);
            let is_read = busy.remove(&event.token.key).unwrap();
            let Item::Span(span) = event.item else { unreachable!() };
            let expected = model[event.token.key as usize];
            assert!(span.as_slice().iter().all(|byte| *byte == expected), "is read: {is_read}");
        }
    }
}

fn freed_blocks_read_as_zeroes(kind: Kind) {
    let (mut io, owner) = io(kind);
    let file = temporary();
    File::from(file.try_clone().unwrap()).write_all(&[9; 12288]).unwrap();
    io.allocate(Token { owner, key: 0 }, &file, Allocation::PunchHole, 4096, 4096);
    assert_eq!(next(&mut io).bytes().unwrap(), 0);
    let span = io.pool().take(12288).unwrap();
    io.read(Token { owner, key: 1 }, &file, 0, span.clone());
    assert_eq!(next(&mut io).bytes().unwrap(), 12288);
    for (index, byte) in span.as_slice()[..12288].iter().enumerate() {
        assert_eq!(*byte, if (4096..8192).contains(&index) { 0 } else { 9 });
    }
}

/// Files of procfs and FUSE signal changes through poll, but are files with offsets.
fn a_file_that_can_be_polled_is_read_at_its_offset(kind: Kind) {
    let mut expected = Vec::new();
    File::open("/proc/self/mounts").unwrap().read_to_end(&mut expected).unwrap();
    let (mut io, owner) = io(kind);
    let file: Handle = Rc::new(File::open("/proc/self/mounts").unwrap().into());
    for offset in [7, 0, 3] {
        let span = io.pool().take(8).unwrap();
        io.read(Token { owner, key: 0 }, &file, offset as u64, span.clone());
        let count = next(&mut io).bytes().unwrap();
        assert!(count > 0);
        assert_eq!(&span.as_slice()[..count], &expected[offset..offset + count]);
    }
}

fn streams_that_stay_silent_leave_files_alone(kind: Kind) {
    let (mut io, owner) = io(kind);
    let wakers: Vec<_> = (0..64).map(|key| io.waker(Token { owner, key }).unwrap()).collect();
    let (reader, mut writer) = io::pipe().unwrap();
    let pipe: Handle = Rc::new(OwnedFd::from(reader));
    let from_pipe = io.pool().take(8).unwrap();
    io.read(Token { owner, key: 100 }, &pipe, 0, from_pipe.clone());
    let zeroes: Handle = Rc::new(File::open("/dev/zero").unwrap().into());
    let file = temporary();
    for key in 101..200 {
        let span = io.pool().take(8).unwrap();
        match key {
            101 => io.read(Token { owner, key }, &zeroes, 0, span),
            _ => io.write(Token { owner, key }, &file, 0, span, Durability::Volatile),
        }
        assert_eq!(count(&mut io), (key, 8));
    }
    wakers[63].wake();
    assert_eq!(next(&mut io).token.key, 63);
    writer.write_all(b"pipe").unwrap();
    assert_eq!(count(&mut io), (100, 4));
    assert_eq!(&from_pipe.as_slice()[..4], b"pipe");
}

fn sends_complete_while_a_receive_waits_on_the_same_socket(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (ours, mut theirs) = pair();
    let ours: Handle = Rc::new(ours.into());
    let span = receive(&mut io, Token { owner, key: 0 }, &ours);
    for _ in 0..3 {
        send(&mut io, Token { owner, key: 1 }, &ours, b"question");
        assert_eq!(count(&mut io), (1, 8));
        let mut question = [0; 8];
        theirs.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"question");
    }
    // Fills the outgoing direction, so that a send waits together with the receive, and lets each complete without the
    // other.
    let payload = io.pool().take(1 << 20).unwrap();
    let mut queued = 0;
    loop {
        let mut outgoing = Box::<Outgoing>::default();
        (0..16).for_each(|_| outgoing.span(payload.clone()));
        io.send(Token { owner, key: 2 }, &ours, outgoing);
        let mut events = Vec::new();
        io.turn_until(Some(io.now() + Duration::from_millis(200)), &mut events).unwrap();
        match events.pop() {
            Some(event) => queued += event.bytes().unwrap(),
            None => break,
        }
    }
    theirs.write_all(b"answer").unwrap();
    assert_eq!(count(&mut io), (0, 6));
    assert_eq!(&span.as_slice()[..6], b"answer");
    receive(&mut io, Token { owner, key: 0 }, &ours);
    let reader = std::thread::spawn(move || io::copy(&mut theirs, &mut io::sink()).unwrap() as usize);
    let event = next(&mut io);
    assert_eq!(event.token.key, 2);
    queued += event.bytes().unwrap();
    // SAFETY: plain system call on an open socket.
    unsafe { libc::shutdown(ours.as_raw_fd(), libc::SHUT_WR) };
    assert_eq!(reader.join().unwrap(), queued);
    // The peer closes after reading: end of stream, or a reset.
    let event = next(&mut io);
    assert_eq!((event.token.key, event.result), (0, 0));
}

fn a_refused_connect_says_so(kind: Kind) {
    let (mut io, owner) = io(kind);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    io.connect(Token { owner, key: 0 }, &Rc::new(unconnected().into()), address);
    assert_eq!(next(&mut io).result, -libc::ECONNREFUSED);
}

fn sockets_arrive_and_stay_blocking(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (listener, address) = listener();
    let client: Handle = Rc::new(unconnected().into());
    io.connect(Token { owner, key: 1 }, &client, address);
    assert_eq!(next(&mut io).bytes().unwrap(), 0);
    io.accept(Token { owner, key: 0 }, &listener);
    let server = next(&mut io).into_handle().unwrap();
    for socket in [&client, &server] {
        // SAFETY: plain system calls on an open socket.
        let (flags, close) = unsafe {
            let fd = socket.as_raw_fd();
            (libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_GETFD))
        };
        assert_eq!(flags & libc::O_NONBLOCK, 0);
        assert_eq!(close & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
}

fn the_end_of_a_stream_is_zero_bytes(kind: Kind) {
    let (mut io, owner) = io(kind);
    for waits in [false, true] {
        let (ours, theirs) = pair();
        let ours: Handle = Rc::new(ours.into());
        if waits {
            receive(&mut io, Token { owner, key: 0 }, &ours);
            io.turn_until(Some(io.now() + Duration::from_millis(1)), &mut Vec::new()).unwrap();
            drop(theirs);
        } else {
            drop(theirs);
            receive(&mut io, Token { owner, key: 0 }, &ours);
        }
        assert_eq!(next(&mut io).bytes().unwrap(), 0);
    }
}

fn shutting_a_socket_down_ends_what_waits_on_it(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (ours, _theirs) = pair();
    let ours: Handle = Rc::new(ours.into());
    let (listener, _) = listener();
    receive(&mut io, Token { owner, key: 0 }, &ours);
    io.accept(Token { owner, key: 1 }, &listener);
    let mut events = Vec::new();
    io.turn_until(Some(io.now() + Duration::from_millis(1)), &mut events).unwrap();
    assert!(events.is_empty());
    for socket in [&ours, &listener] {
        // SAFETY: plain system call on an open socket.
        unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
    while events.len() < 2 {
        io.turn(&mut events).unwrap();
    }
    events.sort_by_key(|event| event.token.key);
    assert_eq!((events[0].result, events[1].result), (0, -libc::EINVAL));
    send(&mut io, Token { owner, key: 2 }, &ours, b"late");
    assert_eq!(next(&mut io).result, -libc::EPIPE);
}

/// Descriptor numbers are reused for other files; duplicates keep old files, and their registrations in the epoll set,
/// alive.
fn a_thousand_sockets_come_and_go(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (listener, address) = listener();
    let mut events = Vec::new();
    let mut duplicates = VecDeque::new();
    let mut numbers = HashMap::new();
    for round in 0..500u32 {
        let client = unconnected();
        // Closed by a reset, so that no sockets remain in TIME_WAIT.
        client.set_linger(Some(Duration::ZERO)).unwrap();
        let client: Handle = Rc::new(client.into());
        io.accept(Token { owner, key: 0 }, &listener);
        io.connect(Token { owner, key: 1 }, &client, address);
        while io.in_flight() > 0 || events.len() < 2 {
            io.turn(&mut events).unwrap();
        }
        events.sort_by_key(|event| event.token.key);
        assert_eq!(events.pop().unwrap().bytes().unwrap(), 0);
        let server = events.pop().unwrap().into_handle().unwrap();
        *numbers.entry(client.as_raw_fd()).or_insert(0) += 1;
        *numbers.entry(server.as_raw_fd()).or_insert(0) += 1;
        let span = receive(&mut io, Token { owner, key: 2 }, &server);
        io.turn_until(Some(io.now()), &mut events).unwrap();
        send(&mut io, Token { owner, key: 3 }, &client, &round.to_be_bytes());
        while io.in_flight() > 0 || events.len() < 2 {
            io.turn(&mut events).unwrap();
        }
        for event in events.drain(..) {
            assert_eq!(event.bytes().unwrap(), 4);
        }
        assert_eq!(span.as_slice()[..4], round.to_be_bytes());
        if round % 3 == 0 {
            duplicates.push_back(server.try_clone().unwrap());
        }
        if round % 2 == 0 {
            // The other end reports a reset if a registration is still armed; none may be.
            drop((client, server));
        } else {
            drop((server, client));
        }
        if duplicates.len() > 20 {
            duplicates.pop_front();
        }
    }
    let until = io.now() + Duration::from_millis(5);
    io.turn_until(Some(until), &mut events).unwrap();
    assert!(events.is_empty() && io.now() >= until, "nothing disturbs the wait");
    assert!(numbers.len() < 900, "numbers were used again");
}

fn dropping_the_loop_while_files_are_written_is_safe(kind: Kind) {
    for _ in 0..20 {
        let file = temporary();
        let (mut io, owner) = io(kind);
        let pool = io.pool().clone();
        for key in 0..64 {
            let span = pool.take(65536).unwrap();
            io.write(Token { owner, key }, &file, u64::from(key) * 65536, span, Durability::Durable);
            io.sync(Token { owner, key }, &file);
        }
        io.turn(&mut Vec::new()).unwrap();
        let began = Instant::now();
        drop(io);
        // A disk under load may need longer than the drop waits; what is in flight is leaked then.
        if began.elapsed() < DROP_TIMEOUT {
            assert_eq!((pool.borrowed(), Rc::strong_count(&file)), (0, 1), "everything is back");
        }
    }
}

fn a_deadline_is_met_and_no_time_means_no_waiting(kind: Kind) {
    let (mut io, owner) = io(kind);
    let _waker = io.waker(Token { owner, key: 0 }).unwrap();
    let mut events = Vec::new();
    for microseconds in [300, 3000, 30000] {
        let until = io.now() + Duration::from_micros(microseconds);
        io.turn_until(Some(until), &mut events).unwrap();
        assert!(io.now() >= until);
    }
    let start = Instant::now();
    for _ in 0..100 {
        io.turn_until(Some(Duration::ZERO), &mut events).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(events.is_empty());
}

fn a_sleep_outlasts_the_limits_of_those_before_it(kind: Kind) {
    let (mut io, owner) = io(kind);
    let waker = io.waker(Token { owner, key: 0 }).unwrap();
    let mut events = Vec::new();
    // Each wait is woken long before its limit, which is earlier than all limits before it.
    for milliseconds in (10..30).rev() {
        waker.wake();
        let until = io.now() + Duration::from_millis(milliseconds);
        io.turn_until(Some(until), &mut events).unwrap();
        assert_eq!(events.drain(..).count(), 1);
    }
    for milliseconds in [60, 20] {
        let until = io.now() + Duration::from_millis(milliseconds);
        io.turn_until(Some(until), &mut events).unwrap();
        assert!(io.now() >= until && events.is_empty());
    }
}

#[test]
fn a_back_end_is_forced_by_name() {
    assert_eq!(choice::parse("").unwrap(), None);
    assert_eq!(choice::parse("uring").unwrap(), Some(Kind::Uring));
    assert_eq!(choice::parse("portable").unwrap(), Some(Kind::Portable));
    let text = choice::parse("epoll").unwrap_err().to_string();
    assert_eq!(text, "HIKYAKU_IO=epoll is not a back end; choose portable or uring");
    assert_eq!(io(Kind::Uring).0.backend_name(), "io_uring");
    assert_eq!(io(Kind::Portable).0.backend_name(), "portable");
}

/// As in a container whose profile forbids io_uring.
#[test]
fn a_thread_without_io_uring_gets_the_portable_back_end() {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    // The number of the system call is the first word of a filter's input.
    let mut filter = [
        libc::sock_filter { code: load, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: equal, jt: 0, jf: 1, k: libc::SYS_io_uring_setup as u32 },
        libc::sock_filter { code: answer, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32 },
        libc::sock_filter { code: answer, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is live; it affects the thread of this test only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
    let mut io = Io::with_backend(None, PoolLimits::default()).unwrap();
    assert_eq!(io.backend_name(), "portable");
    let owner = io.owner();
    let file = temporary();
    io.sync(Token { owner, key: 0 }, &file);
    assert_eq!(next(&mut io).bytes().unwrap(), 0);
    let refused = Io::with_backend(Some(Kind::Uring), PoolLimits::default()).err().unwrap().to_string();
    assert!(refused.contains("HIKYAKU_IO forces it") && refused.contains("io_uring_disabled"), "{refused}");
}

/// In debug builds. A receive and a send on one socket, each in its own part of an area, as with a stream buffer and
/// the buffer of a task.
fn bytes_in_flight_are_watched(kind: Kind) {
    if !cfg!(debug_assertions) {
        return;
    }
    let (mut io, owner) = io(kind);
    let (ours, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let socket: Handle = Rc::new(OwnedFd::from(ours));
    // Longer than the limit for immediate sends.
    let length = SEND_NOW_BYTES_MAX + 4096;
    let area = io.pool().take(2048 + length).unwrap();
    let (received, sent) = (area.slice(0, 2048), area.slice(2048, length));
    let mut incoming = Box::<Incoming>::default();
    incoming.push(received.clone());
    io.receive(Token { owner, key: 1 }, &socket, incoming);
    let mut outgoing = Box::<Outgoing>::default();
    outgoing.span(sent.clone());
    io.send(Token { owner, key: 2 }, &socket, outgoing);
    let panics = |act: &dyn Fn()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).expect_err("not caught");
    };
    assert_eq!(sent.as_slice().len(), length);
    panics(&|| drop(received.range(2047..2048).to_vec()));
    panics(&|| sent.fill(0, &[1]));
    assert_eq!(next(&mut io).token.key, 2);
    sent.fill(0, &[1]);
    panics(&|| received.zero(0, 1));
    peer.write_all(&[7]).unwrap();
    assert_eq!(next(&mut io).token.key, 1);
    assert_eq!(received.as_slice()[0], 7);
    let file = temporary();
    io.read(Token { owner, key: 3 }, &file, 0, area.clone());
    panics(&|| drop(sent.as_slice().to_vec()));
    next(&mut io);
    io.write(Token { owner, key: 4 }, &file, 0, area.clone(), Durability::Volatile);
    panics(&|| received.fill(0, &[1]));
    next(&mut io);
    received.fill(0, &[1]);
}

fn helpers_change_bytes_and_wake_a_loop_that_sleeps(kind: Kind) {
    let (mut io, owner) = io(kind);
    io.set_spin(false);
    let mut events = Vec::new();
    // Each of them alone, so that the loop sleeps; then more than the helpers take at once.
    for count in [1, 1, 1, 100] {
        for key in 0..count {
            let (from, into) = (io.pool().take(4096).unwrap(), io.pool().take(4096).unwrap());
            from.fill(0, &[key as u8; 4096]);
            into.zero(0, 4096);
            let work = move |from: &[u8], into: &mut [u8]| {
                std::thread::sleep(Duration::from_micros(100));
                into.iter_mut().zip(from).for_each(|(into, from)| *into = from ^ 0x55);
            };
            io.compute(Token { owner, key }, Some(from), into, Box::new(work));
        }
        let mut done = vec![false; count as usize];
        while !done.iter().all(|done| *done) {
            io.turn(&mut events).unwrap();
            for event in events.drain(..) {
                assert_eq!((event.token.owner, event.bytes().unwrap()), (owner, 0));
                let Item::Work { from: Some(from), into } = &event.item else { panic!("{event:?}") };
                let key = event.token.key as u8;
                assert!(from.as_slice().iter().all(|byte| *byte == key));
                assert!(into.as_slice().iter().all(|byte| *byte == key ^ 0x55));
                assert!(!std::mem::replace(&mut done[usize::from(key)], true), "one event");
            }
        }
        assert_eq!(io.in_flight(), 1, "the read of the wake-up");
    }
}

fn work_that_panics_is_an_error_of_its_event(kind: Kind) {
    let (mut io, owner) = io(kind);
    let mut events = Vec::new();
    for key in [0, 1] {
        let into = io.pool().take(4096).unwrap();
        let work = move |from: &[u8], _: &mut [u8]| {
            assert!(from.is_empty());
            assert_ne!(key, 0, "meant to fail");
        };
        io.compute(Token { owner, key }, None, into, Box::new(work));
        while events.is_empty() {
            io.turn(&mut events).unwrap();
        }
        let event = events.pop().unwrap();
        assert_eq!(event.bytes().is_ok(), key == 1, "{event:?}");
    }
}

fn dropping_the_loop_waits_for_helpers(kind: Kind) {
    let (mut io, owner) = io(kind);
    let done = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    for key in 0..10 {
        let (into, done) = (io.pool().take(4096).unwrap(), Arc::clone(&done));
        let work = move |_: &[u8], into: &mut [u8]| {
            std::thread::sleep(Duration::from_millis(5));
            into.fill(1);
            done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        };
        io.compute(Token { owner, key }, None, into, Box::new(work));
    }
    drop(io);
    assert_eq!(done.load(std::sync::atomic::Ordering::SeqCst), 10);
}
