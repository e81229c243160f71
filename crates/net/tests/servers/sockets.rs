//! The application library over server, driver and wire, all in this process.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use net::control::Wire;
use net::socket::{Parts, Servers, Stack, TcpListener, TcpStream};

use super::common::{Host, Machine, new_counters, pair};

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed) | 0x1_0000;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(count)
    .collect()
}

/// A connection between two applications.
fn connected(one: &Machine, two: &Machine) -> (Stack, TcpStream, Stack, TcpStream) {
    let ((client, _), (server, _)) = (one.stack(), two.stack());
    let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
    let stream = TcpStream::connect(&client, (two.address, 7)).unwrap();
    let (accepted, peer) = listener.accept().unwrap();
    assert_eq!(stream.local_addr().unwrap(), peer);
    assert_eq!(stream.peer_addr().unwrap(), accepted.local_addr().unwrap());
    (client, stream, server, accepted)
}

/// A large transfer in both directions at once, by std's calls, with the FIN of each side.
fn transfer(one: &Machine, two: &Machine, count: usize) {
    let (_client, stream, _server, accepted) = connected(one, two);
    std::thread::scope(|scope| {
        for (seed, from, to) in [(1, &stream, &accepted), (2, &accepted, &stream)] {
            let sent = bytes(count, seed);
            let expected = sent.clone();
            scope.spawn(move || {
                let mut from = from;
                from.write_all(&sent).unwrap();
                from.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let (mut to, mut received) = (to, Vec::new());
                to.read_to_end(&mut received).unwrap();
                assert!(received == expected, "{} bytes of {}", received.len(), expected.len());
            });
        }
    });
}

#[test]
fn a_large_transfer_arrives_whole_both_ways() {
    let [one, two] = pair(Wire::default(), 1);
    transfer(&one, &two, 20 << 20);
    let counters: std::collections::HashMap<_, _> = one.counters.read().into_iter().collect();
    assert_eq!(counters["bytes_copied"], 0, "one client reads where the driver received");
    assert_eq!(counters["requests_refused"], 0);
}

#[test]
fn a_large_transfer_arrives_whole_where_each_application_has_its_copy() {
    let [one, two] = pair(Wire::default(), 2);
    transfer(&one, &two, 20 << 20);
    let counters: std::collections::HashMap<_, _> = one.counters.read().into_iter().collect();
    assert_eq!(counters["bytes_copied"], 20 << 20);
}

#[test]
fn a_transfer_over_a_bad_line_arrives_whole() {
    let wire =
        Wire { delay_us: 500, loss: 0.01, reordering: 0.01, duplication: 0.01, seed: 3, ..Wire::default() };
    let [one, two] = pair(wire, 1);
    transfer(&one, &two, 2 << 20);
}

#[test]
fn the_driver_is_started_again_in_a_transfer() {
    let [one, two] = pair(Wire::default(), 1);
    std::thread::scope(|scope| {
        let handle = scope.spawn(|| transfer(&one, &two, 10 << 20));
        while !handle.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
            one.restart_driver();
            two.restart_driver();
        }
    });
}

#[test]
fn messages_go_and_come() {
    let [one, two] = pair(Wire::default(), 1);
    let (_client, mut stream, _server, mut accepted) = connected(&one, &two);
    stream.set_nodelay(true).unwrap();
    accepted.set_nodelay(true).unwrap();
    for round in 0..200u32 {
        let message = bytes(1 + round as usize * 37, round as u8);
        let mut received = vec![0; message.len()];
        stream.write_all(&message).unwrap();
        accepted.read_exact(&mut received).unwrap();
        accepted.write_all(&received).unwrap();
        received.fill(0);
        stream.read_exact(&mut received).unwrap();
        assert_eq!(received, message, "round {round}");
    }
}

#[test]
fn areas_are_sent_where_they_lie_and_come_back_once() {
    let [one, two] = pair(Wire::default(), 1);
    let (client, stream, _server, accepted) = connected(&one, &two);
    let sent = bytes(200_000, 9);
    let mut area = client.alloc(sent.len()).unwrap();
    area.copy_from_slice(&sent);
    let address = area.as_ptr();
    for _ in 0..50 {
        let ticket = stream.send(area, 0..sent.len()).unwrap();
        ticket.submitted().unwrap();
        let mut received = Vec::new();
        while received.len() < sent.len() {
            let part = accepted.recv().unwrap().expect("no FIN");
            received.extend(part.to_vec());
        }
        assert!(received == sent);
        area = ticket.released().unwrap();
        assert_eq!((area.as_ptr(), area.len()), (address, sent.len()));
    }
    // A ticket that is dropped gives the area back to the stack.
    drop(stream.send(area, 0..10).unwrap());
    let mut ten = [0; 10];
    (&accepted).read_exact(&mut ten).unwrap();
    assert_eq!(ten, sent[..10]);
    let until = Instant::now() + Duration::from_secs(5);
    while client.alloc(sent.len()).unwrap().as_ptr() != address {
        assert!(Instant::now() < until, "the area did not come back");
        // A look at the rings.
        stream.set_nodelay(true).unwrap();
    }
}

#[test]
fn a_port_without_listener_refuses() {
    let [one, two] = pair(Wire::default(), 1);
    let (client, _) = one.stack();
    let error = TcpStream::connect(&client, (two.address, 9)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let nowhere: SocketAddr = "192.0.2.1:9".parse().unwrap();
    assert_eq!(TcpStream::connect(&client, nowhere).unwrap_err().kind(), ErrorKind::NetworkUnreachable);
    let silent: SocketAddr = "10.0.0.77:9".parse().unwrap();
    let error = TcpStream::connect_timeout(&client, &silent, Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn a_port_is_bound_once_and_free_again_when_closed() {
    let [one, _two] = pair(Wire::default(), 1);
    let (stack, _) = one.stack();
    let listener = TcpListener::bind(&stack, (one.address, 80)).unwrap();
    assert_eq!(listener.local_addr().unwrap().to_string(), "10.0.0.1:80");
    let again = TcpListener::bind(&stack, (one.address, 80)).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    let foreign = TcpListener::bind(&stack, "10.0.0.9:80").unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
    drop(listener);
    let ephemeral = TcpListener::bind(&stack, (one.address, 0)).unwrap();
    assert_ne!(ephemeral.local_addr().unwrap().port(), 0);
    TcpListener::bind(&stack, (one.address, 80)).unwrap();
}

#[test]
fn an_aborted_connection_is_reset_at_the_peer() {
    let [one, two] = pair(Wire::default(), 1);
    let (_client, stream, _server, mut accepted) = connected(&one, &two);
    stream.abort();
    assert_eq!(accepted.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!((&stream).read(&mut [0; 10]).is_err());
}

/// RFC 1122 §4.2.2.13, RFC 2525 §2.17: the peer of an application that closes with bytes unread gets RST; in memory of the
/// library or on their way to it, whole or in part.
#[test]
fn a_connection_closed_with_unread_bytes_is_reset() {
    // Bytes written by the peer, read by the closing side, and whether that looks at the rings after their arrival.
    let cases = [
        ("nothing was sent", 0, 0, false, None),
        ("all was read", 1000, 1000, true, None),
        ("read in part", 1000, 999, true, Some(ErrorKind::ConnectionReset)),
        ("in the library", 1000, 0, true, Some(ErrorKind::ConnectionReset)),
        ("in the ring", 1000, 0, false, Some(ErrorKind::ConnectionReset)),
        ("of many frames", 300_000, 150_000, true, Some(ErrorKind::ConnectionReset)),
    ];
    for clients in [1, 2] {
        for (name, written, read, looks, expected) in cases {
            let [one, two] = pair(Wire::default(), clients);
            let (_client, mut stream, _server, mut accepted) = connected(&one, &two);
            accepted.write_all(&bytes(written, 1)).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            if looks {
                stream.read_exact(&mut vec![0; read]).unwrap();
                stream.set_nodelay(true).unwrap();
            }
            drop(stream);
            accepted.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let result = accepted.read(&mut [0]).map_err(|error| error.kind());
            assert_eq!(result, expected.map_or(Ok(0), Err), "{name}, {clients} clients");
        }
    }
}

#[test]
fn what_was_written_before_a_drop_still_arrives() {
    let [one, two] = pair(Wire { delay_us: 2000, ..Wire::default() }, 1);
    let (client, mut stream, _server, mut accepted) = connected(&one, &two);
    let sent = bytes(3 << 20, 5);
    let expected = sent.clone();
    let writer = std::thread::spawn(move || {
        stream.write_all(&sent).unwrap();
        drop(stream);
        drop(client);
    });
    let mut received = Vec::new();
    accepted.read_to_end(&mut received).unwrap();
    assert!(received == expected);
    writer.join().unwrap();
}

#[test]
fn calls_that_must_not_wait_or_not_for_long() {
    let [one, two] = pair(Wire::default(), 1);
    let (_client, mut stream, server, accepted) = connected(&one, &two);
    stream.set_nonblocking(true).unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut written = 0;
    let error = loop {
        match stream.write(&[7; 100_000]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(written >= net::socket::SEND_BYTES_MAX, "{written}");
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let start = Instant::now();
    assert_eq!(stream.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!((20..2000).contains(&start.elapsed().as_millis()));
    let mut received = vec![0; written];
    (&accepted).read_exact(&mut received).unwrap();
    assert!(received.iter().all(|&byte| byte == 7));
    let listener = TcpListener::bind(&server, (two.address, 8)).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn an_application_that_dies_resets_its_connections_alone() {
    let [one, two] = pair(Wire::default(), 2);
    let ((dying, number), (living, _), (server, _)) = (one.stack(), one.stack(), two.stack());
    let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
    let lost = TcpStream::connect(&dying, (two.address, 7)).unwrap();
    let (mut lost_peer, _) = listener.accept().unwrap();
    let mut kept = TcpStream::connect(&living, (two.address, 7)).unwrap();
    let (mut kept_peer, _) = listener.accept().unwrap();
    (&lost).write_all(&[1; 10_000]).unwrap();
    one.gone(number);
    let mut all = Vec::new();
    assert_eq!(lost_peer.read_to_end(&mut all).unwrap_err().kind(), ErrorKind::ConnectionReset);
    kept.write_all(b"still here").unwrap();
    let mut received = [0; 10];
    kept_peer.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"still here");
    // Its library does not wait for servers that do not know it.
    std::mem::forget((lost, dying));
}

#[test]
fn many_connections_at_once() {
    let [one, two] = pair(Wire::default(), 1);
    let ((client, _), (server, _)) = (one.stack(), two.stack());
    let listener = TcpListener::bind(&server, (two.address, 7)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming().take(24) {
                let mut stream = stream.unwrap();
                scope.spawn(move || {
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).unwrap();
                    stream.write_all(&all).unwrap();
                });
            }
        });
        for number in 0..24u8 {
            let client = &client;
            scope.spawn(move || {
                let mut stream = TcpStream::connect(client, (two.address, 7)).unwrap();
                let sent = bytes(10_000 * usize::from(number), number);
                stream.write_all(&sent).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                assert!(received == sent, "connection {number}");
            });
        }
    });
}

/// Both machines and both applications on one thread, as `lab` runs them: a call that waits gives the servers turns.
#[test]
fn all_of_it_runs_on_one_thread() {
    type Hosts = Arc<Mutex<Vec<Host<'static>>>>;
    struct OneThread {
        hosts: Hosts,
        host: usize,
    }
    impl Servers for OneThread {
        fn register(&mut self, memory: BorrowedFd<'_>, bytes: u32) -> std::io::Result<(u32, u32)> {
            let memory = memory.try_clone_to_owned()?;
            Ok(self.hosts.lock().unwrap()[self.host].add_region(0, memory, bytes))
        }

        fn are_here(&self) -> bool {
            true
        }

        fn turn(&mut self) {
            for host in self.hosts.lock().unwrap().iter_mut() {
                host.turn();
            }
        }
    }
    let hosts: Hosts = Arc::default();
    for (number, device) in (1..).zip(net::nic::wire::pair().unwrap()) {
        let owned = Box::leak(Box::new(inet::Owned::new(&net::server::capacity(1, 1))));
        let host = Host::new(owned, number, device.descriptor, Wire::default(), 1, new_counters());
        hosts.lock().unwrap().push(host);
    }
    let [client, server] = [0, 1].map(|host| {
        let (_, parts, _) = hosts.lock().unwrap()[host].add_client();
        let servers = Box::new(OneThread { hosts: Arc::clone(&hosts), host });
        Stack::from_parts(Parts { servers, ..parts }).unwrap()
    });
    let listener = TcpListener::bind(&server, "10.0.0.2:7").unwrap();
    let mut stream = TcpStream::connect(&client, "10.0.0.2:7").unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    for round in 0..100 {
        let message = bytes(1 + 13 * round, 3);
        let mut received = vec![0; message.len()];
        stream.write_all(&message).unwrap();
        accepted.read_exact(&mut received).unwrap();
        assert_eq!(received, message);
        accepted.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
}

/// More small sends than `inet` takes at once, and then no call of the library.
#[test]
fn what_a_call_took_leaves_though_no_other_call_follows() {
    const SENDS: usize = 3000;
    let [one, two] = pair(Wire::default(), 5);
    let (_client, mut stream, _server, accepted) = connected(&one, &two);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            accepted.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // The sender is done before the first byte is read, so that all room is taken.
            std::thread::sleep(Duration::from_millis(300));
            let mut received = vec![0; SENDS * 40];
            (&accepted).read_exact(&mut received).map(|()| received)
        });
        for number in 0..SENDS {
            stream.write_all(&bytes(40, number as u8)).unwrap();
        }
        let received = reader.join().unwrap().unwrap();
        let expected: Vec<_> = (0..SENDS).flat_map(|number| bytes(40, number as u8)).collect();
        assert!(received == expected);
    });
}
