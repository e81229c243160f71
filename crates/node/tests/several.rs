//! Several sessions of one attached LUN with a real target.

mod support;

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::remote::Links;
use block::{IoErrorKind, Kind};
use node::initiator::Options;
use node::target::{Access, LunConfig};
use support::host::{Host, options};
use support::{Guard, eventually, lun, medium};

const BLOCK: usize = 64 << 10;

fn several(count: usize) -> Options {
    Options { sessions: Links::Fixed(count), ..options() }
}

/// Waits until the target has so many sessions.
fn wait_for(host: &mut Host, target: &Guard, count: usize) {
    let handle = target.handle();
    host.turn_until("the sessions begin", |_| handle.sessions().len() == count);
}

fn writes(host: &Host, count: usize, version: u8) -> Vec<Kind> {
    let write = |at: usize| {
        let from = host.take(BLOCK);
        from.fill(0, &[version ^ at as u8; BLOCK]);
        Kind::Write { offset: (at * BLOCK) as u64, from, durable: false }
    };
    (0..count).map(write).collect()
}

/// Reads what [`writes`] wrote, and compares.
fn verify(host: &mut Host, count: usize, version: u8) {
    let spans: Vec<_> = (0..count).map(|_| host.take(BLOCK)).collect();
    let reads = spans.iter().enumerate();
    let reads = reads.map(|(at, into)| Kind::Read { offset: (at * BLOCK) as u64, into: into.clone() });
    host.perform_all(reads.collect()).into_iter().for_each(|result| result.unwrap());
    for (at, span) in spans.iter().enumerate() {
        assert!(span.as_slice().iter().all(|byte| *byte == version ^ at as u8), "block {at}");
    }
}

#[test]
fn one_initiator_with_an_exclusive_lun_has_several() {
    let unit = LunConfig { exclusive: true, ..lun(0, medium("mem:8M")) };
    let target = Guard::start(vec![unit], Access::default());
    let mut host = Host::open(target.address(), 0, several(4)).unwrap();
    wait_for(&mut host, &target, 4);
    for version in 0..8 {
        let kinds = writes(&host, 64, version);
        host.perform_all(kinds).into_iter().for_each(|result| result.unwrap());
        host.perform(Kind::Flush).unwrap();
        verify(&mut host, 64, version);
    }
    let sessions = target.handle().sessions();
    assert!(sessions.iter().all(|session| session.initiator == options().initiator_name));
    assert!(
        sessions.iter().all(|session| session.usage.commands.iter().sum::<u64>() > 50),
        "all are used: {sessions:?}"
    );
    let other = Options { initiator_name: "iqn.2026-11.example:other".into(), ..options() };
    Host::open(target.address(), 0, other).err().expect("it has the LUN");
    let handle = target.handle();
    host.close();
    eventually("all are logged out", || handle.sessions().is_empty());
}

/// Passes connections on; keeps them, to cut them one by one.
struct Switch {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    /// Connections that are let in.
    granted: Arc<AtomicUsize>,
}

impl Switch {
    fn start(target: SocketAddr, granted: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let switch = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            granted: Arc::new(AtomicUsize::new(granted)),
        };
        let (connections, granted) = (Arc::clone(&switch.connections), Arc::clone(&switch.granted));
        // Ends with the process: a test has few of them.
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let mut open = connections.lock().unwrap();
                if open.len() >= granted.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(target) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let mut bytes = vec![0; 16 << 10];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            if std::io::Write::write_all(&mut to, &bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
                open.push(client);
            }
        });
        switch
    }

    /// Cuts a connection, counted from the oldest one.
    fn cut(&self, index: usize) {
        let mut connections = self.connections.lock().unwrap();
        let count = connections.len();
        let connection = connections.remove(index % count);
        let _ = connection.shutdown(Shutdown::Both);
    }
}

#[test]
fn sessions_that_are_cut_one_by_one_lose_nothing() {
    let target = Guard::of("mem:16M");
    let switch = Switch::start(target.address(), usize::MAX);
    let mut host = Host::open(switch.address, 0, several(3)).unwrap();
    wait_for(&mut host, &target, 3);
    for version in 0..20u8 {
        let kinds = writes(&host, 128, version);
        let count = kinds.len();
        (0..).zip(kinds).for_each(|(id, kind)| host.submit(id, kind));
        host.turn(|_| {});
        switch.cut(version.into());
        host.turn_until("the writes end", |host| host.done.len() >= count);
        host.done.drain(..).for_each(|one| one.result.unwrap());
        verify(&mut host, 128, version);
    }
    // The target has kept running: no flush fails.
    host.perform(Kind::Flush).unwrap();
    assert!(host.endpoint.inspect().losses() >= 20);
}

#[test]
fn a_target_that_grants_fewer_sessions_is_no_failure() {
    for granted in [1, 2] {
        let target = Guard::of("mem:8M");
        let switch = Switch::start(target.address(), granted);
        let mut host = Host::open(switch.address, 0, several(4)).unwrap();
        wait_for(&mut host, &target, granted);
        for version in 0..4 {
            let kinds = writes(&host, 64, version);
            host.perform_all(kinds).into_iter().for_each(|result| result.unwrap());
            verify(&mut host, 64, version);
        }
        host.perform(Kind::Flush).unwrap();
        assert_eq!(target.handle().sessions().len(), granted);
    }
}

#[test]
fn a_session_that_cannot_come_back_fails_its_requests_in_time_and_later_writes_wait_for_it() {
    let target = Guard::of("mem:8M");
    let switch = Switch::start(target.address(), usize::MAX);
    let timeout = Duration::from_secs(1);
    let mut host = Host::open(switch.address, 0, Options { timeout, ..several(2) }).unwrap();
    wait_for(&mut host, &target, 2);
    let kinds = writes(&host, 64, 1);
    (0..).zip(kinds).for_each(|(id, kind)| host.submit(id, kind));
    host.turn(|_| {});
    switch.granted.store(0, Ordering::SeqCst);
    switch.cut(1);
    host.turn_until("all end", |host| host.done.len() >= 64);
    let failed: Vec<_> = host.done.drain(..).filter_map(|one| one.result.err()).collect();
    assert!(failed.iter().all(|error| error.kind == IoErrorKind::Unreachable), "{failed:?}");
    verify_reads(&mut host);
    if failed.is_empty() {
        // All were answered before the cut.
        return;
    }
    let kinds = writes(&host, 1, 2);
    (0..).zip(kinds).for_each(|(id, kind)| host.submit(id, kind));
    switch.granted.store(usize::MAX, Ordering::SeqCst);
    host.turn_until("it is back", |host| !host.done.is_empty());
    host.done.drain(..).for_each(|one| one.result.unwrap());
    verify(&mut host, 1, 2);
}

/// Reads go on by the session that is there.
fn verify_reads(host: &mut Host) {
    let into = host.take(BLOCK);
    host.perform(Kind::Read { offset: 0, into }).unwrap();
}

#[test]
fn another_disk_is_not_written_by_a_further_session() {
    let (first, second) = (
        Guard::of("mem:8M"),
        Guard::start(
            vec![LunConfig { naa: 0x3000_0000_0000_00AA, ..lun(0, medium("mem:8M")) }],
            Access::default(),
        ),
    );
    // The first connection leads to the one, further ones to the other.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let targets = [first.address(), second.address()];
    std::thread::spawn(move || {
        for (index, client) in listener.incoming().enumerate() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(targets[index.min(1)])) else {
                return;
            };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    let mut host = Host::open(address, 0, several(2)).unwrap();
    let handle = second.handle();
    host.turn_until("the other one is asked", |_| !handle.sessions().is_empty());
    host.turn_until("and left", |_| handle.sessions().is_empty());
    let kinds = writes(&host, 64, 3);
    host.perform_all(kinds).into_iter().for_each(|result| result.unwrap());
    verify(&mut host, 64, 3);
    let mut other = Host::open(second.address(), 0, options()).unwrap();
    let into = other.take(8 << 20);
    other.perform(Kind::Read { offset: 0, into: into.clone() }).unwrap();
    assert!(into.as_slice().iter().all(|byte| *byte == 0));
}
